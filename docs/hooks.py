"""Formulas become MathML when the pages are built, so that they need no script and no network; settings a table.

A subscript in running text, `d_q` in a docstring for instance, becomes one that looks like those of the formulas. The
living pages inside the site's are made of the demo's translator, by the programs that the gallery shows.
"""

import contextlib
import re
import runpy
import tempfile
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from dikkat.translation.settings import Option, Settings

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SETTINGS = "<!-- settings -->"
MODELS = "<!-- models -->"
PROGRAM = re.compile(r"<!-- program: (\w+) -->")
FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
# What must stay as it is, a tag, or a subscript: of one letter (or a closing bracket), and of one or two, or in braces.
SUBSCRIPT = re.compile(
    r"<(?P<kept>pre|code|math|script|style|svg)\b.*?</(?P=kept)>|<[^>]*>"
    r"|(?P<base>(?<!\w)[^\W\d_]'?|\))_(?:\{(?P<braced>[^{}<>]+)\}|(?P<plain>[^\W_]{1,2}))(?!\w)",
    re.DOTALL,
)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Called by MkDocs with the files of the site, to which living pages and notebooks are added."""
    if files.get_file_from_path("index.md") is None:
        return files
    for name, content in _living().items():
        files.append(File.generated(config, name, content=content))
    for notebook in sorted((EXAMPLES / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{notebook.name}", abs_src_path=str(notebook)))
    return files


def _living() -> dict[str, bytes]:
    """Pages that hold the demo's translator, which is trained if it is not there."""
    if not (ROOT / "demo" / "model").is_dir():
        with contextlib.chdir(ROOT):
            runpy.run_path(str(EXAMPLES / "demo.py"), run_name="__main__")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("demo").symlink_to(ROOT / "demo")
        for name in ("translator", "links"):
            runpy.run_path(str(EXAMPLES / "gallery" / f"{name}.py"))
        return {page.name: page.read_bytes() for page in Path().glob("*.html")}


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Called by MkDocs with each page's whole HTML: the folder of a translated page is its language."""
    output = output.replace('role="dialog"', 'role="dialog" aria-label="Search"')  # for which the theme has no name
    language = page.url.partition("/")[0]
    return output.replace('lang="en"', f'lang="{language}"', 1) if language in ("tr", "zh") else output


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs with each page's source."""
    for mark, table in ((SETTINGS, _settings), (MODELS, _models)):
        if mark in markdown:
            markdown = markdown.replace(mark, table())
    return PROGRAM.sub(_program, markdown)


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


def _program(match: re.Match[str]) -> str:
    text = (EXAMPLES / "gallery" / f"{match[1]}.py").read_text(encoding="utf-8")
    return f"```python\n{text}```"


def _models() -> str:
    """The models of transformers, one by one, from the file that `tests/stress/transformers_walk.py` writes."""
    head, *rows = (ROOT / "docs" / "transformers.tsv").read_text(encoding="utf-8").splitlines()
    lines = [head, head.count("\t") * "---\t" + "---", *rows]
    return "\n".join("| " + line.replace("\t", " | ") + " |" for line in lines)


def _value(value: object) -> str:
    """As recipes write it."""
    return "none" if value is None else str(value).lower()


def _range(option: Option) -> str:
    limits = option.allowed.range
    return f"{limits.smallest:,} … {limits.largest:,}" if limits else ""
