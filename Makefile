# `make demo` does the main job on a fresh machine; `make test` passes all tests.
PYTHON ?= python3
BIN := .venv/bin
PEERS := .venv-peers/bin
MXNET_PYTHON ?= $(shell command -v python3.11 || command -v python3)
MXNET := .venv-mxnet/bin
SOURCES := src tests benchmarks examples docs conftest.py
KERAS_TESTS := tests/frameworks/in_keras src/dikkat/frameworks/keras
KERAS_2_TESTS := tests/textbook/test_textbook_tensorflow.py src/dikkat/textbook/keras2.py src/dikkat/textbook/tensorflow.py

.PHONY: demo test test-mxnet check install peers bench clean
.DEFAULT_GOAL := demo

demo: install  ## Train a translator on the phrasebook, score it, and show what it looks at.
	$(BIN)/python examples/demo.py

test: install  ## All tests, with the examples of the docstrings, README and docs.
	$(BIN)/python -m pytest -q --numprocesses=2 --dist=worksteal
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -q --numprocesses=2 --dist=worksteal tests/interpreted
	for backend in tensorflow jax torch; do \
	  XLA_FLAGS=--xla_backend_optimization_level=0 KERAS_BACKEND=$$backend $(BIN)/python -m pytest -q --numprocesses=2 --dist=worksteal $(KERAS_TESTS) || exit 1; done
	TF_USE_LEGACY_KERAS=1 KERAS_BACKEND=tensorflow $(BIN)/python -m pytest -q --numprocesses=2 $(KERAS_2_TESTS)

test-mxnet: .venv-mxnet/installed  ## The tests of MXNet, which wants Python 3.11 and an old NumPy, in an environment of its own.
	$(MXNET)/python -m pytest -q tests/frameworks/in_mxnet src/dikkat/frameworks/mxnet src/dikkat/textbook/mxnet.py

.venv-mxnet/installed: pyproject.toml constraints-mxnet.txt
	$(MXNET_PYTHON) src/dikkat/frameworks/mxnet/_require.py
	$(MXNET_PYTHON) -m venv .venv-mxnet
	$(MXNET)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints-mxnet.txt)"
	$(MXNET)/python -m pip install --quiet --disable-pip-version-check -c constraints-mxnet.txt -e '.[mxnet,textbook]' pytest
	touch $@

check: install  ## Linter, strict types, docs build.
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet, it would not count the warnings

bench: install peers demo .venv-mxnet/installed  ## Measure, and write benchmarks/results/ and the tables of docs/benchmarks.md.
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/phrasebook.py
	PYTHONPATH=src $(PEERS)/python benchmarks/additive.py
	PYTHONPATH=src $(PEERS)/python benchmarks/stress.py --write
	PYTHONPATH=src $(PEERS)/python benchmarks/regression.py
	$(BIN)/python benchmarks/keras_additive.py
	$(BIN)/python benchmarks/cross_loading.py --model demo/model --mxnet $(MXNET)/python
	$(BIN)/python benchmarks/textbook_experiment.py --mxnet $(MXNET)/python

peers: .venv-peers/installed  ## The environment of the benchmarks, with TensorFlow, JAX, KeOps, statsmodels and scikit-fda (3 GB).

.venv-peers/installed: benchmarks/peers.txt
	$(PYTHON) -m venv .venv-peers
	$(PEERS)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' $<)"
	$(PEERS)/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

install: .venv/installed  ## The environment, for everything here.

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or later is needed; {sys.executable} is {sys.version.split()[0]}. Try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:  ## Remove the environment and everything made.
	rm -rf .venv .venv-peers .venv-mxnet site demo textbook-figures
