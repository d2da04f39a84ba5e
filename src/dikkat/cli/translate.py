"""`dikkat translate`."""

import shlex
from collections.abc import Sequence
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
    read_search,
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
            "weights of each target token over the source tokens (weights), the source token with the largest weight "
            "(alignment), the unknown words (unknown), and for each target token the stored corrections that took part "
            "in its probability (sources).",
        ),
    ] = False,
    markup: Annotated[
        Markup | None, option("html: the sentences are HTML; the tags move with the words that they enclose.", "html")
    ] = None,
    split: Annotated[
        bool, typer.Option("--split/--no-split", help="Translate each sentence of a line separately.")
    ] = True,
    **options: Any,
) -> None:
    """Translate the arguments, a file or standard input, line by line.

    Files of any length are translated in batches. Lines from standard input are translated as they arrive. Standard
    error lists sentences with unknown words, and translations that were cut because they repeated themselves or did
    not end.
    """
    if sentences and file:
        raise InputError("sentences and --file cannot be combined: remove one of them")
    search = read_search(options)
    translator = join([Translator.load(folder) for folder in (model, *(ensemble or []))])
    number, source = 0, file if file or sentences else "standard input"
    with naming_options(), lines.progress(lambda: lines.line_count(file)) as advance:
        for group in lines.groups(sentences, file):
            with lines.naming_lines(source, number):
                for n_best in translator.translate_n_best(
                    group, batch_size=batch_size, search=search, markup=markup, split=split
                ):
                    number += 1
                    for translation in n_best:
                        text = lines.line(
                            number, translation, as_json=as_json, numbered=search.n_best > 1, markup=markup is not None
                        )
                        print(text, flush=True)
                    lines.warn_about(n_best[0], source, number)
                    advance()
    if sentences:
        arguments = " ".join(map(shlex.quote, sentences))
        suggest(f"dikkat show {shlex.quote(str(model))} {arguments}, to see its attention")


def join(translators: Sequence[Translator]) -> BaseTranslator:
    """Return the only translator, or the ensemble of several."""
    return Translator.ensemble(translators) if len(translators) > 1 else translators[0]
