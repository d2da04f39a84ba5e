"""The HTML document of self-contained pages: policy against network access, escaping, and template.

The script `living.js` of all pages is built from the TypeScript in `web/`.
"""

import base64
import gzip
import hashlib
import html
import json
import re
from importlib import resources
from string import Template


def document(title: str, plain: str, *, model: bytes = b"", titled: bool = True, **content: object) -> str:
    """Fill the template of a page."""
    style, script, packed = part("living.css"), part("living.js"), ""
    if model:
        # Without a date in gzip's header, equal models have equal pages.
        text = base64.b64encode(gzip.compress(model, 6, mtime=0)).decode()
        packed = f'<script id="dikkat-model" type="application/gzip;base64">{text}</script>\n'
    return Template(part("document.html")).substitute(
        title=escaped(title), given=escaped(title) if titled else "", plain=plain, content=json_in_html(content),
        model=packed, compiled=" 'wasm-unsafe-eval'" if model else "", style=style, style_hash=content_hash(style),
        script=script, script_hash=content_hash(script),
    )  # fmt: skip


def part(name: str) -> str:
    """Return the text of a file in this package."""
    return resources.files("dikkat.show").joinpath(name).read_text(encoding="utf-8")


def content_hash(text: str) -> str:
    """Return the hash of a style or script for the page's Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def encodable(text: str) -> str:
    """Replace lone surrogates and NUL, which HTML does not allow."""
    return re.sub("[\ud800-\udfff\0]", "\N{REPLACEMENT CHARACTER}", text)


def escaped(text: str) -> str:
    """Escape HTML's special characters."""
    return html.escape(encodable(text), quote=True)


def json_in_html(content: object) -> str:
    """Return JSON that cannot end an HTML script element."""
    text = encodable(json.dumps(content, ensure_ascii=False, separators=(",", ":")))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
