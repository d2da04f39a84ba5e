"""`dikkat translate --file messages.po`: the missing translations of PO and XLIFF files."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dikkat.cli import lines
from dikkat.errors import InputError
from dikkat.storage.files import check_replaceable, write_whole
from dikkat.translation.formats.catalogues import Gap, read_catalogue

if TYPE_CHECKING:
    from dikkat.translation import Search, Terms
    from dikkat.translation.decoding.translator import BaseTranslator, Markup


def fill(
    translator: "BaseTranslator", file: Path, output: Path | None, *, replace_fuzzy: bool, search: "Search",
    batch_size: int, markup: "Markup | None", split: bool, terms: "Terms",
) -> None:  # fmt: skip
    """Write a PO or XLIFF file with translations of its gaps, and print their number on standard error."""
    if output is None:
        raise InputError(f"--output: missing; expected the name of the filled-in file for {file}, which may be {file}")
    if search.n_best > 1:
        raise InputError(f"n_best: got {search.n_best} for {file}; expected 1, as each text has one translation")
    check_replaceable(output)  # before the work
    catalogue = read_catalogue(file, replace_fuzzy=replace_fuzzy, markup=markup is not None)
    filled = 0
    with lines.progress(lambda: sum(len(gap.sentences) for gap in catalogue.gaps)) as advance:
        for tagged in (False, True):
            gaps = [gap for gap in catalogue.gaps if gap.markup == tagged]
            targets: dict[str, str] = {}
            numbers = _first_lines(gaps)
            with lines.naming_lines(file, list(numbers.values())):
                best = translator.translate_lines(
                    numbers,
                    batch_size=batch_size,
                    search=search,
                    markup="html" if tagged else None,
                    split=split,
                    terms=terms,
                )
                for (sentence, number), translation in zip(numbers.items(), best, strict=True):
                    targets[sentence] = translation.target
                    lines.warn_about(translation, file, number)
                    advance()
            filled += sum(gap.fill([targets[sentence] for sentence in gap.sentences]) for gap in gaps)
    write_whole(output, catalogue.content())
    counts = f"{filled:,} texts translated, {catalogue.translated:,} were already translated"
    for count, reason in (
        (len(catalogue.gaps) - filled, "stay empty, as the model wrote nothing"),
        (catalogue.fuzzy, "are fuzzy and stay (--replace-fuzzy translates them)"),
        (catalogue.coded, "with code in inline tags stay empty"),
    ):
        counts += f", {count:,} {reason}" * bool(count)
    print(f"{output}: {counts}", file=sys.stderr)


def _first_lines(gaps: list[Gap]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for gap in gaps:
        for sentence in gap.sentences:
            numbers.setdefault(sentence, gap.line)
    return numbers
