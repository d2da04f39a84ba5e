"""A translator alive in one page: the model, and a decoder of its own, in one HTML file that asks nothing of a network.

Its script, `living.js`, is built from the TypeScript in `web/`.
"""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from string import Template

from dikkat.show.document import content_hash, escaped, json_in_html, part

SCORES = ("additive", "dot", "scaled_dot", "bilinear", "none")
"""The scores that the page's decoder has."""


def bundle(files: Mapping[str, bytes]) -> bytes:
    """Files as the page carries them: eight bytes with a header's length, the header, the files one behind the other.

    Args:
        files: Their contents by their names.

    Returns:
        The length as a little-endian number; JSON of each name with its first byte and the one behind its last, counted
        behind the header; the contents.

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


def living_page(files: Mapping[str, bytes], *, title: str, examples: Sequence[str] = ()) -> str:
    """The page of a translator.

    Args:
        files: Of a model folder in int8, by their names.
        title: The heading.
        examples: Sentences to begin with, the first of which is translated when the page opens.

    Returns:
        HTML.
    """
    # The same model gives the same page: no date inside.
    packed = base64.b64encode(gzip.compress(bundle(files), 6, mtime=0)).decode()
    style, script = part("living.css"), part("living.js")
    return Template(part("living.html")).substitute(
        title=escaped(title),
        examples=json_in_html(list(examples)),
        model=packed,
        style=style,
        style_hash=content_hash(style),
        script=script,
        script_hash=content_hash(script),
    )
