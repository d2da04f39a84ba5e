"""`dikkat translate`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dikkat.cli import lines, sharded
from dikkat.cli.app import FLAG, Command, app, option
from dikkat.cli.options import (
    BatchSizeOption,
    EnsembleOption,
    FileOption,
    ModelArgument,
    SentencesArgument,
    naming_options,
    search_given,
    search_options,
    with_options,
)
from dikkat.errors import InputError
from dikkat.translation import Translator
from dikkat.translation.decoding.options import Search
from dikkat.translation.decoding.shards import Shard
from dikkat.translation.decoding.translator import Translates

_PANEL = "Long texts"


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    'dikkat translate my-model "She is tired." "He is calm."\n\n'
    "dikkat translate my-model --file letters.en > letters.fr\n\n"
    "cat letters.en | dikkat translate my-model --json > letters.jsonl\n\n"
    "dikkat translate my-model --file letters.en --pieces letters.d --workers 4\n\n"
    "dikkat translate my-model --file letters.en --pieces letters.d --collect > letters.fr\n\n"
    "dikkat translate my-model --ensemble my-second-model --file letters.en",
)
@with_options(search_options())
def translate(
    model: ModelArgument,
    sentences: SentencesArgument = None,
    file: FileOption = None,
    ensemble: EnsembleOption = None,
    batch_size: BatchSizeOption = 64,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print each translation as a line of JSON: source, target, the tokens of both, score, the attention "
            "of each target token to the source tokens (weights), and the one with the most (alignment).",
            metavar=FLAG,
        ),
    ] = False,
    pieces: Annotated[
        Path | None,
        option(
            "Translate the file, or all files of a folder, in pieces that are kept here: what was stopped goes on, "
            "and several processes may share the work, on one machine or on many that see the folder.",
            "FOLDER",
            panel=_PANEL,
        ),
    ] = None,
    shard: Annotated[
        str | None,
        option(
            "With --pieces: which share of the work is this process's, 3/64 for the third of 64; env: as torchrun "
            "(RANK, WORLD_SIZE) or Slurm say. \\[default: 1/1, all of it]",
            "I/N",
            panel=_PANEL,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="With --pieces: let so many processes of this machine share the work.",
            min=1,
            metavar="N",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ] = None,
    collect: Annotated[
        bool,
        typer.Option(
            "--collect",
            help="With --pieces: check that all of it has been translated, and print it, in order.",
            metavar=FLAG,
            rich_help_panel=_PANEL,
        ),
    ] = False,
    **options: Any,
) -> None:
    """Translate sentences: those given, those of a file, or those of standard input; one translation a line.

    A file may be of any length: it is read and translated part by part. From standard input, each line is translated
    as soon as it comes.
    """
    if sentences and file:
        raise InputError("sentences and --file are both given: give one of them")
    search = search_given(options)
    if pieces is None:
        for name, value in (("--shard", shard), ("--workers", workers), ("--collect", collect)):
            if value:
                raise InputError(f"{name} is given without --pieces: give the folder of the pieces too")
    else:
        with naming_options():
            _in_pieces(file, pieces, [model, *(ensemble or [])], batch_size, search, shard, workers, collect, as_json)
        return
    translator = load(model, ensemble)
    number = 0
    with naming_options(), lines.progress(lambda: lines.line_count(file)) as advance:
        for group in lines.groups(sentences, file):
            for found in translator.translate_n_best(group, batch_size=batch_size, search=search):
                number += 1
                for translation in found:
                    text = lines.line(number, translation, as_json=as_json, numbered=search.n_best > 1)
                    print(text, flush=True)
                advance()


def _in_pieces(
    file: Path | None, folder: Path, models: list[Path], batch_size: int, search: Search, shard: str | None,
    workers: int | None, collect: bool, as_json: bool,
) -> None:  # fmt: skip
    given = [name for name, value in (("--shard", shard), ("--workers", workers), ("--collect", collect)) if value]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are both given: give one of them")
    if file is None:
        raise InputError("--pieces is given without --file: give a file of sentences, or a folder of such files")
    try:
        mine = Shard.parse(shard or "1/1")
    except InputError as error:
        raise InputError(f"--{error}") from None
    work = sharded.pieces(file, folder, models, batch_size, search, as_json=as_json)
    if collect:
        sharded.collect(work)
        return
    if workers:
        sharded.by_workers(work, workers)
    else:
        sharded.translate(work, mine, lambda: load(models[0], models[1:]), batch_size, search, as_json=as_json)
    print(f"{work.done()} pieces are done; the same command with --collect joins them", file=sys.stderr)


def load(model: Path, others: Sequence[Path] | None) -> Translates:
    """A translator from a model folder; with others, one that asks them all."""
    first = Translator.load(model)
    return Translator.ensemble([first, *map(Translator.load, others)]) if others else first
