"""The format and version in a file's metadata."""

import reprlib
from collections.abc import Mapping
from typing import Any


def header(format_: str, version: int) -> dict[str, Any]:
    """Return the entries that `check_header` checks."""
    return {"format": format_, "version": version}


def check_header(content: Any, format_: str, versions: tuple[int, ...], otherwise: str) -> Mapping[str, Any]:
    """Return the content if its format and version are allowed; `otherwise` is the remedy for another version.

    Example:
        >>> check_header({"format": "cake", "version": 2}, "cake", (1,), "bake again")
        Traceback (most recent call last):
            ...
        ValueError: version: got 2; expected 1. Use the dikkat that wrote it, or bake again
    """
    if not isinstance(content, Mapping) or content.get("format") != format_:
        actual = content.get("format") if isinstance(content, Mapping) else None
        raise ValueError(f"format: got {reprlib.repr(actual)}; expected {format_!r}. This is another kind of file")
    version = content.get("version")
    if type(version) is not int or version not in versions:
        allowed = " or ".join(map(str, versions))
        raise ValueError(
            f"version: got {reprlib.repr(version)}; expected {allowed}. Use the dikkat that wrote it, or {otherwise}"
        )
    return content
