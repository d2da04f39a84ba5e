"""The self-contained page of a translator, with the model in int8 and a decoder in JavaScript."""

import json
from collections.abc import Mapping, Sequence

from dikkat.show.document import document

_NAMES = {"en": "English", "fr": "French", "de": "German"}
_PLAIN = "<noscript><p>This page translates and draws with JavaScript, which is switched off.</p></noscript>"


def bundle(files: Mapping[str, bytes]) -> bytes:
    """Return files as one byte string: length of the header (8 bytes, little-endian), header, contents.

    The header is JSON with the first byte and the byte after the last of each file, counted from the header's end.

    Example:
        >>> bundle({"a": b"12", "b": b"3"})[8:]
        b'{"a": [0, 2], "b": [2, 3]}123'
    """
    ranges, start = {}, 0
    for name, data in files.items():
        ranges[name] = [start, start + len(data)]
        start += len(data)
    header = json.dumps(ranges).encode()
    return len(header).to_bytes(8, "little") + header + b"".join(files.values())


def living_page(
    model: bytes, *, title: str | None = None, languages: tuple[str, str] | None = None, examples: Sequence[str] = ()
) -> str:
    """Return the HTML page of a translator."""
    content: dict[str, object] = {"examples": list(examples)}
    if languages:
        content["languages"] = languages
    names = " → ".join(_NAMES.get(code, code) for code in languages or ())
    return document(title or names or "Translator", _PLAIN, model=model, titled=title is not None, **content)
