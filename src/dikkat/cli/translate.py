"""`dikkat translate`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dikkat.cli import lines
from dikkat.cli.app import Command, app, option
from dikkat.cli.messages import suggest
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
from dikkat.translation.decoding.translator import BaseTranslator, Markup


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    'dikkat translate my-model "She is tired."\n\n'
    "dikkat translate my-model --file letters.en > letters.fr\n\n"
    "cat letters.en | dikkat translate my-model --json > letters.jsonl\n\n"
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
            "of each target token to the source tokens (weights), the one with the most (alignment), and the words "
            "that the model has not learnt (unknown).",
        ),
    ] = False,
    markup: Annotated[
        Markup | None,
        option("html: the sentences are HTML, and their tags arrive around the words that say the same.", "html"),
    ] = None,
    split: Annotated[
        bool, typer.Option("--split/--no-split", help="Translate the sentences of a line one by one, and join them.")
    ] = True,
    **options: Any,
) -> None:
    """Translate sentences: those given, those of a file, or those of standard input; one translation a line.

    A file may be of any length: it is read and translated part by part. From standard input, each line is translated
    as soon as it comes. Standard error has the sentences with words that the model has not learnt, and those whose
    translation was cut because it repeated itself or did not end.
    """
    if sentences and file:
        raise InputError("sentences and --file are both given: give one of them")
    search = search_given(options)
    translator = load(model, ensemble)
    number, place = 0, file if file or sentences else "standard input"
    with naming_options(), lines.progress(lambda: lines.line_count(file)) as advance:
        for group in lines.groups(sentences, file):
            with lines.naming(place, number):
                for found in translator.translate_n_best(
                    group, batch_size=batch_size, search=search, markup=markup, split=split
                ):
                    number += 1
                    for translation in found:
                        text = lines.line(
                            number, translation, as_json=as_json, numbered=search.n_best > 1, markup=markup is not None
                        )
                        print(text, flush=True)
                    lines.warn_about(found[0], place, number)
                    advance()
    if sentences:
        seen = " ".join(map(shlex.quote, sentences))
        suggest(f"dikkat show {shlex.quote(str(model))} {seen}, to see what it looked at")


def load(model: Path, others: Sequence[Path] | None) -> BaseTranslator:
    """A translator from a model folder; with others, one that asks them all."""
    first = Translator.load(model)
    return Translator.ensemble([first, *map(Translator.load, others)]) if others else first
