"""Formulas become MathML when the pages are built, so that they need no script and no network."""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs with each page's HTML."""
    return FORMULA.sub(_mathml, html)


def _mathml(match: re.Match[str]) -> str:
    source = unescape(match[2]).strip()
    display = "block" if source.startswith(r"\[") else "inline"
    return convert(source[2:-2].strip(), display=display)
