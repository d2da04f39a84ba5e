"""Format and version, by which a file says what it is."""

import reprlib
from collections.abc import Mapping
from typing import Any


def header(format_: str, version: int) -> dict[str, Any]:
    """The entries that `check_header` reads."""
    return {"format": format_, "version": version}


def check_header(content: Any, format_: str, versions: tuple[int, ...], otherwise: str) -> Mapping[str, Any]:
    """The content, checked to be of a format, in one of some versions; `otherwise` is the remedy for other versions.

    Example:
        >>> check_header({"format": "cake", "version": 2}, "cake", (1,), "bake again")
        Traceback (most recent call last):
            ...
        ValueError: version: got 2; expected 1. Use the dikkat that wrote it, or bake again
    """
    if not isinstance(content, Mapping) or content.get("format") != format_:
        found = content.get("format") if isinstance(content, Mapping) else None
        raise ValueError(f"format: got {reprlib.repr(found)}; expected {format_!r}: it is something else")
    version = content.get("version")
    if type(version) is not int or version not in versions:
        known = " or ".join(map(str, versions))
        raise ValueError(
            f"version: got {reprlib.repr(version)}; expected {known}. Use the dikkat that wrote it, or {otherwise}"
        )
    return content
