"""Formulas become MathML when the pages are built, so that they need no script and no network; settings a table.

A subscript in running text, `d_q` in a docstring for instance, becomes one that looks like those of the formulas.
"""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

from dikkat.translation.settings import Option, Settings

SETTINGS = "<!-- settings -->"
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
# What must stay as it is, a tag, or a subscript: of one letter (or a closing bracket), and of one or two, or in braces.
SUBSCRIPT = re.compile(
    r"<(?P<kept>pre|code|math|script|style|svg)\b.*?</(?P=kept)>|<[^>]*>"
    r"|(?P<base>(?<!\w)[^\W\d_]'?|\))_(?:\{(?P<braced>[^{}<>]+)\}|(?P<plain>[^\W_]{1,2}))(?!\w)",
    re.DOTALL,
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs with each page's source."""
    return markdown.replace(SETTINGS, _settings()) if SETTINGS in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs with each page's HTML."""
    return SUBSCRIPT.sub(_subscript, FORMULA.sub(_mathml, html))


def _subscript(match: re.Match[str]) -> str:
    if match["base"] is None:
        return match[0]
    base = match["base"] if match["base"] == ")" else f"<i>{match['base']}</i>"
    return f"{base}<sub>{match['braced'] or match['plain']}</sub>"


def _mathml(match: re.Match[str]) -> str:
    source = unescape(match[2]).strip()
    display = "block" if source.startswith(r"\[") else "inline"
    return convert(source[2:-2].strip(), display=display)


def _settings() -> str:
    defaults = Settings()
    rows = [
        f"| `{name}` | {_value(getattr(defaults, name))} | {_range(option)} | {option.help} |"
        for name, option in Settings.options().items()
    ]
    return "\n".join(["| setting | default | from … to | what it does |", "| --- | --- | --- | --- |", *rows])


def _value(value: object) -> str:
    """As recipes write it."""
    return "none" if value is None else str(value).lower()


def _range(option: Option) -> str:
    limits = option.allowed.range
    return f"{limits.smallest:,} … {limits.largest:,}" if limits else ""
