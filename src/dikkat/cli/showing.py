"""`dikkat show`."""

from pathlib import Path
from typing import Annotated

import typer

from dikkat.cli.app import Command, app
from dikkat.cli.options import ModelArgument, SentencesArgument
from dikkat.translation import Translator


@app.command(
    cls=Command,
    epilog='Example:\n\ndikkat show my-model "I am at home." "He is calm." --output pictures',
)
def show(
    model: ModelArgument,
    sentences: SentencesArgument,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Where to put heatmap.png and translations.html.", metavar="FOLDER"),
    ] = Path(),
) -> None:
    """Translate sentences and show what the model looked at for each word, as a picture and as a page for a browser."""
    from dikkat.cli.pictures import draw

    translations = Translator.load(model).translate(sentences)
    picture, page = draw(translations, output)
    for translation in translations:
        print(f"{translation.source} => {translation.target}")
    print(f"picture: {picture}")
    print(f"page: {page}")
