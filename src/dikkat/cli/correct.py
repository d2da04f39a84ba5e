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
            help="Corrections, one per line: a sentence, a tab and its right translation. The last one of a sentence "
            "is used.",
            show_default=False,
        ),
    ],
) -> None:
    """Store corrections in a model folder. Later translations of these sentences, and of similar ones, follow them.

    Standard error lists lines that replace an earlier correction, and lines with words that the model cannot write.
    """
    from dikkat.translation import Translator
    from dikkat.translation.data.corpus import read_lines
    from dikkat.translation.formats import model_folder

    translator = Translator.load(model)
    count = 0
    for number, line in enumerate(read_lines(corrections), start=1):
        source, tab, target = line.partition("\t")
        where = f"{corrections}, line {number}"
        if not tab:
            raise InputError(f"{where}: got no tab; expected a sentence, a tab and its right translation")
        try:
            messages = translator.correct(source, target.partition("\t")[0])
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        for message in messages:
            complain(f"{where}: {message}")
        count += 1
    if not count:
        raise InputError(f"{corrections}: got no lines; expected a sentence, a tab and its right translation on each")
    model_folder.write_memory(model, translator.memory)
    print(f"{model}: {count:,} corrections read, {len(translator.memory):,} stored", file=sys.stderr)
    suggest(f"dikkat translate {shlex.quote(str(model))} {shlex.quote(translator.memory.pairs[-1][0])}")
