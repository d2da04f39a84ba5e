"""`dikkat show`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dikkat.cli.app import Command, app
from dikkat.cli.messages import in_browser, model_contents, printable, suggest
from dikkat.cli.options import (
    FileOption,
    ModelArgument,
    SentencesArgument,
    naming_options,
    read_search,
    search_options,
    with_options,
)
from dikkat.errors import InputError
from dikkat.translation import Translator
from dikkat.translation.data.corpus import read_lines


@app.command(
    cls=Command,
    epilog='Examples:\n\ndikkat show my-model "She is tired." --output pictures\n\n'
    "dikkat show my-model --file letters.en --beam 1 --model-inside",
)
@with_options({"beam": search_options()["beam"]})
def show(
    model: ModelArgument,
    sentences: SentencesArgument = None,
    file: FileOption = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for heatmap.png and translations.html.", metavar="FOLDER")
    ] = Path(),
    model_inside: Annotated[
        bool,
        typer.Option(
            "--model-inside",
            help="Embed the model in the page, in int8, so that the page translates typed sentences, as with `dikkat "
            "export --html`. It also contains the texts of the stored corrections.",
        ),
    ] = False,
    **options: Any,
) -> None:
    """Translate sentences and draw the attention of each word, as a picture and as an HTML page."""
    from dikkat.cli.pictures import draw

    if not sentences and file is None:
        raise InputError("got no text; give sentences or --file FILE")
    if sentences and file is not None:
        raise InputError("got sentences and --file; give only one of them")
    search = read_search(options)
    lines = list(read_lines(file)) if file else sentences or []
    with naming_options():
        translator = Translator.load(model)
        translations = translator.translate(lines, search=search)
    picture, page = draw(translations, output, translator=translator if model_inside else None)
    for translation in translations:
        print(printable(f"{translation.source} => {translation.target}"))
    print(f"picture: {picture}")
    print(f"page: {page}" + (f", with {model_contents(len(translator.memory))}" if model_inside else ""))
    suggest(in_browser(page))
