"""HTML document of self-contained pages: their policy against network access, and escaping.

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


def document(title: str, plain: str, *, model: bytes = b"", titled: bool = True, **content: object) -> str:
    """Fill the template of a page."""
    style, script, packed = part("living.css"), part("living.js"), ""
    if model:
        # Without a date in gzip's header, equal models give equal pages.
        text = base64.b64encode(gzip.compress(model, 6, mtime=0)).decode()
        packed = f'<script id="dikkat-model" type="application/gzip;base64">{text}</script>\n'
    return Template(part("document.html")).substitute(
        title=escaped(title), given=escaped(title) if titled else "", plain=plain, content=json_in_html(content),
        model=packed, compiled=" 'wasm-unsafe-eval'" if model else "", style=style, style_hash=content_hash(style),
        script=script, script_hash=content_hash(script),
    )  # fmt: skip


def part(name: str) -> str:
    """Text of a file in this package."""
    return resources.files("dikkat.show").joinpath(name).read_text(encoding="utf-8")


def content_hash(text: str) -> str:
    """Hash of a style or script for the page's Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def encodable(text: str) -> str:
    """Text with lone surrogates and NUL replaced, which HTML cannot hold."""
    return re.sub("[\ud800-\udfff\0]", "\N{REPLACEMENT CHARACTER}", text)


def escaped(text: str) -> str:
    """Text with HTML's special characters escaped."""
    return html.escape(encodable(text), quote=True)


def json_in_html(content: object) -> str:
    """JSON that no HTML parser can take for the end of its script element."""
    text = encodable(json.dumps(content, ensure_ascii=False, separators=(",", ":")))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
