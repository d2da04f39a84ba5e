"""`dikkat align`."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from dikkat.cli import lines
from dikkat.cli.app import Command, app, option
from dikkat.cli.options import ModelArgument
from dikkat.errors import InputError
from dikkat.storage.files import check_replaceable, write_whole
from dikkat.translation import Translator
from dikkat.translation.data.corpus import Pair, read_lines

_WINDOW = 1024  # pairs that are in memory at once


@app.command(
    cls=Command,
    epilog="Examples:\n\ndikkat align my-model pairs.tsv --output links\n\n"
    "dikkat align my-model pairs.tsv --reverse my-model-back --output links",
)
def align(
    model: ModelArgument,
    pairs: Annotated[
        Path, typer.Argument(help="A file with a sentence, a tab and its translation in each line.", show_default=False)
    ],
    output: Annotated[
        Path | None, option("Where to write; without it, to standard output.", "FILE", "-o", "--output")
    ] = None,
    reverse: Annotated[
        Path | None, option("A model of the other direction, whose probabilities are multiplied with these.", "FOLDER")
    ] = None,
) -> None:
    """Link the words of sentence pairs: a line a pair, 0-2 where source word 0 goes with target word 2.

    White space separates words, and both are counted from 0. A line with an empty side has no links.
    """
    if output:
        check_replaceable(output)  # before the work, not after it
    translator, back = Translator.load(model), Translator.load(reverse) if reverse else None
    found = _links(translator, back, pairs)
    if output:
        write_whole(output, "".join(f"{line}\n" for line in found))
    else:
        for line in found:
            print(line, flush=True)


def _links(translator: Translator, back: Translator | None, path: Path) -> Iterator[str]:
    with lines.progress(lambda: lines.line_count(path), "linking") as advance:
        pairs = _pairs(path)
        while window := list(islice(pairs, _WINDOW)):
            for links in translator.align(window, reverse=back):
                yield " ".join(f"{source}-{target}" for source, target in sorted(links))
                advance()


def _pairs(path: Path) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(path), start=1):
        source, *others = line.split("\t")
        if not others and source.strip():
            raise InputError(f"{path}, line {number}: got no tab; expected a sentence, a tab and its translation")
        yield source, "".join(others[:1])
