"""Self-contained page of a translator: the model in int8 and a decoder in JavaScript."""

import json
from collections.abc import Mapping, Sequence

from dikkat.show.document import document

_NAMES = {"en": "English", "fr": "French", "de": "German"}
_PLAIN = "<noscript><p>This page translates and draws with JavaScript, which is switched off.</p></noscript>"


def bundle(files: Mapping[str, bytes]) -> bytes:
    """Files by name as the page carries them: a header's length as 8 bytes, little-endian; the header; the contents.

    The header is JSON: for each name its first byte and the one past its last, counted from the end of the header.

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
    """The page of a translator."""
    content: dict[str, object] = {"examples": list(examples)}
    if languages:
        content["languages"] = languages
    names = " → ".join(_NAMES.get(each, each) for each in languages or ())
    return document(title or names or "Translator", _PLAIN, model=model, titled=title is not None, **content)
