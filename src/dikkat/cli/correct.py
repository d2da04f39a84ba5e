"""`dikkat correct`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from dikkat.cli.app import Command, app
from dikkat.cli.messages import complain, suggest
from dikkat.cli.options import ModelArgument
from dikkat.errors import InputError


@app.command(cls=Command, epilog="Example:\n\ndikkat correct my-model corrections.tsv")
def correct(
    model: ModelArgument,
    corrections: Annotated[
        Path,
        typer.Argument(
            help="Corrections, one per line: a sentence, a tab and its right translation, or a CSV. The last one of a "
            "sentence is used.",
            show_default=False,
        ),
    ],
) -> None:
    """Store corrections in a model folder. Later translations of these sentences, and of similar ones, follow them.

    Standard error lists lines that replace an earlier correction, and lines with words that the model cannot write.
    """
    from dikkat.translation import Translator
    from dikkat.translation.data.corpus import TsvCorpus
    from dikkat.translation.formats import model_folder

    sums = model_folder.read_sums(model)
    translator = Translator.load(model)
    count = 0
    for number, pair in TsvCorpus(corrections).numbered_pairs():
        where = f"{corrections}, line {number}"
        try:
            messages = translator.correct(*pair)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        for message in messages:
            complain(f"{where}: {message}")
        count += 1
    if not count:
        raise InputError(f"{corrections}: got no corrections; expected at least one")
    model_folder.write_memory(model, translator.memory, sums)
    print(f"{model}: {count:,} corrections read, {len(translator.memory):,} stored", file=sys.stderr)
    suggest(f"dikkat translate {shlex.quote(str(model))} {shlex.quote(translator.memory.pairs[-1][0])}")
