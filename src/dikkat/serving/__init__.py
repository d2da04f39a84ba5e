"""Translators over HTTP: the ASGI application of `dikkat serve`. Needs the extra `serve`."""

from dikkat.extras import require_extra

with require_extra("serve"):
    from dikkat.serving.application import create_app
    from dikkat.serving.limits import Limits

__all__ = ["Limits", "create_app"]
