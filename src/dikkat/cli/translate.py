"""`dikkat translate`."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

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
from dikkat.translation.terms import NO_TERMS, Terms


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    'dikkat translate my-model "She is tired."\n\n'
    "dikkat translate my-model --file letters.en > letters.fr\n\n"
    "cat letters.en | dikkat translate my-model --json > letters.jsonl\n\n"
    "dikkat translate my-model --file letters.en --sort confidence > to-check.tsv\n\n"
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
            help="Print each translation as a line of JSON, with among others source, target, the tokens of both, "
            "score, for each target token the source token with the largest attention weight (alignment), the unknown "
            "words (unknown), the confidence, the reasons to check it (flags), and for each target token the stored "
            "corrections that took part in its probability (sources).",
        ),
    ] = False,
    weights: Annotated[
        bool,
        typer.Option(
            "--weights",
            help="With --json: also print the attention weights of each target token over the source tokens (weights), "
            "rounded to four digits. A long sentence has millions.",
        ),
    ] = False,
    sort: Annotated[
        Literal["confidence", "line"] | None,
        option(
            "Print a table with the columns line, confidence, flags, source and target. The confidence is the "
            "probability that the line is right, and the flags are reasons to check it. confidence: the lines to check "
            "come first; line: in the order of the input. With --json: only the order.",
            "ORDER",
        ),
    ] = None,
    markup: Annotated[
        Markup | None, option("html: the sentences are HTML; the tags move with the words that they enclose.", "html")
    ] = None,
    split: Annotated[
        bool, typer.Option("--split/--no-split", help="Translate each sentence of a line separately.")
    ] = True,
    terms: Annotated[
        Path | None,
        option(
            "Terms to use: a file with a source term, a tab and its translation in each line, or a CSV file. The "
            "translation gets the form that fits the sentence.",
            "FILE",
        ),
    ] = None,
    **options: Any,
) -> None:
    """Translate the arguments, a file or standard input, line by line.

    Files of any length are translated in batches. Lines from standard input are translated as they arrive. Standard
    error lists sentences with unknown words, lost or invented numbers, or unused terms, and translations that were cut
    because they repeated themselves or did not end.

    In a PO or XLIFF file, untranslated entries get a translation, marked as fuzzy or as needing a review.
    """
    if sentences and file:
        raise InputError("sentences and --file cannot be combined: remove one of them")
    is_catalogue = file is not None and kind_of(file) is not None
    if is_catalogue and (as_json or sort):
        name = "--json" if as_json else "--sort"
        raise InputError(f"{name}: got it with {file}, whose result is a file of the same kind; expected no {name}")
    if weights and not as_json:
        raise InputError("--weights: got it without --json; expected both, as only JSON has the attention weights")
    if not is_catalogue and (output or replace_fuzzy):
        name, got = "--output" if output else "--replace-fuzzy", f" with {file}" if file else ""
        raise InputError(f"{name}: got it{got}; expected a PO or XLIFF --file. Write translations of text with > FILE")
    search = read_search(options)
    translator = join([Translator.load(folder) for folder in (model, *(ensemble or []))])
    used_terms = NO_TERMS if terms is None else translator.check_terms(Terms.read(terms))
    if file is not None and is_catalogue:
        with naming_options():
            fill(
                translator, file, output, replace_fuzzy=replace_fuzzy, search=search, batch_size=batch_size,
                markup=markup, split=split, terms=used_terms,
            )  # fmt: skip
        return
    if sort == "confidence" and translator.confidence_model is None:
        raise InputError(
            f"--sort: got confidence, but {model} has none, as it was trained without validation pairs; expected line. "
            "Or train it again, with validation pairs"
        )
    if sort and not as_json:
        print("\t".join(lines.COLUMNS), flush=True)
    number, source = 0, file if file or sentences else "standard input"
    with naming_options(), _sorted_rows() as rows, lines.progress(lambda: lines.line_count(file)) as advance:
        for group in lines.groups(sentences, file):
            with lines.naming_lines(source, number):
                for n_best in translator.translate_n_best(
                    group, batch_size=batch_size, search=search, markup=markup, split=split, terms=used_terms
                ):
                    number += 1
                    for translation in n_best:
                        if sort and not as_json:
                            text = lines.row(number, translation, markup=markup is not None)
                        else:
                            is_html = markup is not None
                            text = (
                                lines.json_line(number, translation, weights=weights)
                                if as_json
                                else lines.line(number, translation, numbered=search.n_best > 1, markup=is_html)
                            )
                        if sort == "confidence":
                            rows.append((n_best[0].confidence or 0.0, text))
                        else:
                            print(text, flush=True)
                    lines.warn_about(n_best[0], source, number)
                    advance()
    if sentences:
        arguments = " ".join(map(shlex.quote, sentences))
        suggest(f"dikkat show {shlex.quote(str(model))} {arguments}, to see its attention")


@contextmanager
def _sorted_rows() -> Iterator[list[tuple[float, str]]]:
    """Collect (confidence, text), and print the sorted texts at the end of the context, even after an error."""
    rows = list[tuple[float, str]]()
    try:
        yield rows
    finally:
        for _, text in sorted(rows, key=itemgetter(0)):
            print(text)


def join(translators: Sequence[Translator]) -> BaseTranslator:
    """Return the only translator, or the ensemble of several."""
    return Translator.ensemble(translators) if len(translators) > 1 else translators[0]
