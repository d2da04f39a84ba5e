"""`dikkat export`."""

from pathlib import Path
from typing import Annotated

from dikkat.cli.app import Command, app, option
from dikkat.cli.messages import in_browser, model_contents, suggest
from dikkat.cli.options import ModelArgument
from dikkat.storage.files import check_replaceable


@app.command(
    cls=Command,
    epilog="Examples:\n\ndikkat export my-model --html translator.html\n\n"
    'dikkat export my-model --html translator.html --title "Phrasebook" --example "She is tired."',
)
def export(
    model: ModelArgument,
    html: Annotated[Path, option("Output file: one HTML file, which a browser opens from the disk.", "FILE", "--html")],
    title: Annotated[str | None, option("Heading of the page. [default: the languages, if known]", "TEXT")] = None,
    example: Annotated[
        list[str] | None,
        option(
            "A sentence that the page shows first. Repeatable. [default: three validation sentences]",
            "SENTENCE",
            "--example",
        ),
    ] = None,
) -> None:
    """Save a translator as one HTML page, which translates offline and shows the attention."""
    from dikkat.translation import Translator

    check_replaceable(html)
    translator = Translator.load(model)
    translator.export_html(html, title=title, examples=example)
    print(f"{html}: {html.stat().st_size / 1e6:.1f} MB, with {model_contents(len(translator.memory))}")
    suggest(in_browser(html))
