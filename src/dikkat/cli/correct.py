"""`dikkat correct`."""

import shlex
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dikkat.cli.app import Command, app
from dikkat.cli.lines import groups, one_line
from dikkat.cli.messages import complain, suggest
from dikkat.cli.options import ModelArgument
from dikkat.errors import InputError

if TYPE_CHECKING:
    from dikkat.translation import Translator


@app.command(
    cls=Command,
    epilog="Examples:\n\ndikkat correct my-model corrections.tsv\n\n"
    "dikkat correct my-model --list | grep printer | dikkat correct my-model --remove",
)
def correct(
    model: ModelArgument,
    corrections: Annotated[
        Path | None,
        typer.Argument(
            help="Corrections, one per line: a sentence, a tab and its right translation, or a CSV. The last one of a "
            "sentence is used.",
            show_default=False,
        ),
    ] = None,
    lists: Annotated[
        bool, typer.Option("--list", help="Print the stored corrections, in the format of CORRECTIONS.")
    ] = False,
    removes: Annotated[
        bool,
        typer.Option(
            "--remove",
            help="Remove the corrections of these sentences: one per line of CORRECTIONS or of standard input, in the "
            "format of CORRECTIONS. The translations are ignored and may be missing.",
        ),
    ] = False,
) -> None:
    """Store corrections in a model folder. Later translations of these sentences, and of similar ones, follow them.

    Standard error lists lines that replace an earlier correction, and lines whose translation will be cut.
    """
    from dikkat.translation import Translator
    from dikkat.translation.data.corpus import format_rows
    from dikkat.translation.formats import model_folder

    if lists and (removes or corrections):
        raise InputError(f"--list: got {'--remove' if removes else corrections} too; expected only the model")
    if corrections is None and not lists and not removes:
        raise InputError("corrections: missing; expected a file, --list or --remove")
    sums = model_folder.read_sums(model)
    translator = Translator.load(model)
    if lists:
        pairs = translator.memory.pairs
        if sys.stdout.isatty():
            pairs = [(one_line(source), one_line(target)) for source, target in pairs]
        for row in format_rows(pairs):
            print(row)
        return
    count = _remove(translator, corrections) if removes or corrections is None else _add(translator, corrections)
    if not count:
        kind = "sentences" if removes else "corrections"
        raise InputError(f"{corrections or 'standard input'}: got no {kind}; expected at least one")
    model_folder.write_memory(model, translator.memory, sums)
    stored = f"{len(translator.memory):,} stored"
    if removes:
        print(f"{model}: {count:,} corrections removed, {stored}", file=sys.stderr)
    else:
        print(f"{model}: {count:,} corrections read, {stored}", file=sys.stderr)
        suggest(f"dikkat translate {shlex.quote(str(model))} {shlex.quote(translator.memory.pairs[-1][0])}")


def _add(translator: "Translator", corrections: Path) -> int:
    """Store the corrections of a file, and return their number."""
    from dikkat.translation.data.corpus import TsvCorpus

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
    return count


def _remove(translator: "Translator", sentences: Path | None) -> int:
    """Remove the corrections of sentences in a file or on standard input, and return their number."""
    from dikkat.translation.data.corpus import find_header, read_rows, skipped_header

    lines, name, count = list(chain.from_iterable(groups(None, sentences))), sentences or "standard input", 0
    for index, (number, row) in enumerate(read_rows(lambda: iter(lines), name)[1]):
        where = f"{name}, line {number}"
        if index == 0 and (header := find_header(row)):
            complain(skipped_header(header, where))
        elif row[0].strip():
            try:
                translator.memory.remove(row[0])
            except InputError as error:
                raise InputError(f"{where}: {error}") from error
            count += 1
    return count
