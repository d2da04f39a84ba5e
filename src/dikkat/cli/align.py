"""`dikkat align`."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dikkat.cli import lines
from dikkat.cli.app import Command, app, option
from dikkat.cli.options import ModelArgument
from dikkat.errors import InputError
from dikkat.storage.files import check_replaceable, write_whole

if TYPE_CHECKING:
    from dikkat.translation import Translator
    from dikkat.translation.data.corpus import Pair

_WINDOW = 1024  # pairs in memory


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
    output: Annotated[Path | None, option("Output file. [default: standard output]", "FILE", "-o", "--output")] = None,
    reverse: Annotated[
        Path | None, option("A model of the other direction, to multiply its probabilities with the model's.", "FOLDER")
    ] = None,
) -> None:
    """Link the words of sentence pairs, one output line per pair: 0-2 links source word 0 to target word 2.

    Words are separated by white space and counted from 0. A pair with an empty side has no links.
    """
    from dikkat.translation import Translator

    if output:
        check_replaceable(output)  # before the work
    translator, reverse_translator = Translator.load(model), Translator.load(reverse) if reverse else None
    output_lines = _align_file(translator, reverse_translator, pairs)
    if output:
        write_whole(output, "".join(f"{line}\n" for line in output_lines))
    else:
        for line in output_lines:
            print(line, flush=True)


def _align_file(translator: "Translator", reverse: "Translator | None", path: Path) -> Iterator[str]:
    with lines.progress(lambda: lines.line_count(path), "linking") as advance:
        pairs = _read_pairs(path)
        while window := list(islice(pairs, _WINDOW)):
            for links in translator.align(window, reverse=reverse):
                yield " ".join(f"{source}-{target}" for source, target in sorted(links))
                advance()


def _read_pairs(path: Path) -> Iterator["Pair"]:
    from dikkat.translation.data.corpus import read_lines

    for number, line in enumerate(read_lines(path), start=1):
        source, *columns = line.split("\t")
        if not columns and source.strip():
            raise InputError(f"{path}, line {number}: got no tab; expected a sentence, a tab and its translation")
        yield source, "".join(columns[:1])
