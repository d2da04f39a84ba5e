"""The frame of self-contained pages: their head, which lets nothing of any network in, and what HTML may hold."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib import resources
from string import Template


def document(title: str, lead: str, body: str, *, style: str, policy: str) -> str:
    """One page that asks nothing of any network.

    Args:
        title: The heading, as text.
        lead: HTML under it.
        body: HTML of what follows.
        style: CSS.
        policy: What the page lets in beside its style, such as `"img-src data:"`.
    """
    return Template(part("document.html")).substitute(
        title=escaped(title), lead=lead, body=body, style=style, style_hash=content_hash(style), policy=policy
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


def json_in_html(records: Sequence[object]) -> str:
    """JSON that no HTML parser can take for the end of its script element."""
    text = json.dumps(records, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
