"""The frame of self-contained pages: their head, which lets nothing of any network in, and what HTML may hold.

The script of all of them, `living.js`, is built from the TypeScript in `web/`.
"""

import base64
import gzip
import hashlib
import html
import json
import re
from importlib import resources
from string import Template


def document(title: str, plain: str, *, model: bytes = b"", **content: object) -> str:
    """One page that asks nothing of any network.

    Args:
        title: The heading, as text.
        plain: HTML of what can be read before the script has run, or without it.
        model: The bundle of a translator that the page has inside; empty for none.
        content: What the script reads, by name, as JSON has it.
    """
    style, script, packed = part("living.css"), part("living.js"), ""
    if model:
        # The same model gives the same page: no date inside.
        text = base64.b64encode(gzip.compress(model, 6, mtime=0)).decode()
        packed = f'<script id="dikkat-model" type="application/gzip;base64">{text}</script>\n'
    return Template(part("document.html")).substitute(
        title=escaped(title),
        plain=plain,
        content=json_in_html(content),
        model=packed,
        compiled=" 'wasm-unsafe-eval'" if model else "",
        style=style,
        style_hash=content_hash(style),
        script=script,
        script_hash=content_hash(script),
    )


def part(name: str) -> str:
    """A file of the pages' parts."""
    return resources.files("dikkat.show").joinpath(name).read_text(encoding="utf-8")


def content_hash(text: str) -> str:
    """The hash by which a page's own policy knows its style and its script, and refuses any other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def encodable(text: str) -> str:
    """The text with what no HTML page can hold (half of a surrogate pair, NUL) replaced."""
    return re.sub("[\ud800-\udfff\0]", "\N{REPLACEMENT CHARACTER}", text)


def escaped(text: str) -> str:
    """A text as HTML holds it."""
    return html.escape(encodable(text), quote=True)


def json_in_html(content: object) -> str:
    """JSON that no HTML parser can take for the end of its script element."""
    text = encodable(json.dumps(content, ensure_ascii=False, separators=(",", ":")))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
