"""These tests run in a process for each backend: `KERAS_BACKEND=jax pytest tests/frameworks/keras`."""

import os

# Keras takes its backend when it is imported, once and for all; without a choice nothing here is imported.
collect_ignore_glob = [] if os.environ.get("KERAS_BACKEND") else ["*.py"]
