"""Translators over HTTP: `dikkat serve`, and the application for whoever runs a server of their own.

Needs the extra `serve`.
"""

from dikkat.extras import needing

with needing("serve"):
    from dikkat.serving.application import create_app
    from dikkat.serving.limits import Limits

__all__ = ["Limits", "create_app"]
