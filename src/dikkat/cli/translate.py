"""`dikkat translate`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dikkat.cli import lines
from dikkat.cli.app import Command, app, option
from dikkat.cli.filling import fill
from dikkat.cli.messages import suggest
from dikkat.cli.options import (
    BatchSizeOption,
    EnsembleOption,
    ModelArgument,
    SentencesArgument,
    naming_options,
    read_search,
    search_options,
    with_options,
)
from dikkat.errors import InputError
from dikkat.translation import Translator
from dikkat.translation.data.catalogues import kind_of
from dikkat.translation.decoding.translator import BaseTranslator, Markup


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    'dikkat translate my-model "She is tired."\n\n'
    "dikkat translate my-model --file letters.en > letters.fr\n\n"
    "cat letters.en | dikkat translate my-model --json > letters.jsonl\n\n"
    "dikkat translate my-model --ensemble my-second-model --file letters.en\n\n"
    "dikkat translate my-model --file messages.po --output messages.po",
)
@with_options(search_options())
def translate(
    model: ModelArgument,
    sentences: SentencesArgument = None,
    file: Annotated[
        Path | None, option("A file with one sentence per line, or a PO or XLIFF file.", "FILE", "--file", "-f")
    ] = None,
    output: Annotated[
        Path | None,
        option("For a PO or XLIFF --file: the file to write, which may be the same.", "FILE", "-o", "--output"),
    ] = None,
    replace_fuzzy: Annotated[
        bool,
        typer.Option(
            "--replace-fuzzy",
            help="For a PO or XLIFF --file: also translate entries again that are fuzzy (PO) or unreviewed (XLIFF).",
        ),
    ] = False,
    ensemble: EnsembleOption = None,
    batch_size: BatchSizeOption = 64,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print each translation as a line of JSON: source, target, the tokens of both, score, the attention "
            "weights of each target token over the source tokens (weights), the source token with the largest weight "
            "(alignment), and the unknown words (unknown).",
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

    In a PO or XLIFF file, untranslated entries get a translation, marked as fuzzy or as needing a review.
    """
    if sentences and file:
        raise InputError("sentences and --file cannot be combined: remove one of them")
    is_catalogue = file is not None and kind_of(file) is not None
    if is_catalogue and as_json:
        raise InputError(f"--json: got it with {file}, whose result is a file of the same kind; expected no --json")
    if not is_catalogue and (output or replace_fuzzy):
        name, got = "--output" if output else "--replace-fuzzy", f" with {file}" if file else ""
        raise InputError(f"{name}: got it{got}; expected a PO or XLIFF --file. Write translations of text with > FILE")
    search = read_search(options)
    translator = join([Translator.load(folder) for folder in (model, *(ensemble or []))])
    if file is not None and is_catalogue:
        with naming_options():
            fill(
                translator, file, output, replace_fuzzy=replace_fuzzy, search=search, batch_size=batch_size,
                markup=markup, split=split,
            )  # fmt: skip
        return
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
