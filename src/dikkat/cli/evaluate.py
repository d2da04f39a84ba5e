"""`dikkat evaluate`."""

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dikkat.cli import lines
from dikkat.cli.app import Command, app, option
from dikkat.cli.messages import suggest
from dikkat.cli.options import (
    BatchSizeOption,
    CorpusOption,
    EnsembleOption,
    JsonOption,
    given,
    naming_options,
    search_given,
    search_options,
    with_options,
)
from dikkat.cli.tables import show_table
from dikkat.cli.translate import load
from dikkat.errors import InputError
from dikkat.translation import Search, Translation, Translator, evaluate, evaluate_lowercased_tokens, phrasebook
from dikkat.translation.data.corpus import Pair, read_lines
from dikkat.translation.data.source import Source
from dikkat.translation.decoding.alignment import GoldLinks, alignment_error_rate, check_links, gold_links, read_links
from dikkat.translation.decoding.evaluation import check_language
from dikkat.translation.decoding.translator import BaseTranslator

_COMPARED = "Comparison"
_REPORT = "Report"
_FEW = 100  # sentences
_WORST = 50  # sentences

_LinksOption = Annotated[
    str | None,
    option(
        "Human word alignments of the corpus, a line a pair: 0-0 1-2 for sure links of words, 2p3 for possible "
        "ones; words are separated by white space and counted from 0. The links that `dikkat align` finds are "
        "compared to them. phrasebook: those of its test part; ./phrasebook: a file of that name.",
        "FILE",
        panel=_COMPARED,
    ),
]


@app.command(
    cls=Command,
    name="evaluate",
    epilog="Examples:\n\n"
    "dikkat evaluate my-model --corpus test.tsv\n\n"
    "dikkat evaluate my-model --versus my-second-model "
    '--corpus \'{source = "test.en.gz", target = "test.fr.gz"}\'\n\n'
    "dikkat evaluate --hypotheses letters.fr --references letters.human.fr --json",
)
@with_options(search_options("n_best", "sample", "temperature", "top_k", "seed"))
def evaluate_model(
    model: Annotated[
        Path | None,
        typer.Argument(help="A model folder that `dikkat train` made; or --hypotheses.", show_default=False),
    ] = None,
    corpus: CorpusOption = None,
    hypotheses: Annotated[
        Path | None, option("Translations to score in place of a model's, one a line.", "FILE")
    ] = None,
    references: Annotated[
        Path | None,
        option(
            "With --hypotheses, in place of --corpus: a human translation of each, one a line.", "FILE", panel="Corpus"
        ),
    ] = None,
    ensemble: EnsembleOption = None,
    versus: Annotated[
        Path | None, option("Another model, to compare with by a test of significance.", "FOLDER", panel=_COMPARED)
    ] = None,
    versus_file: Annotated[
        Path | None, option("Translations of another model, one a line, to compare with.", "FILE", panel=_COMPARED)
    ] = None,
    links: _LinksOption = None,
    reverse: Annotated[
        Path | None,
        option(
            "With --links: a model of the other direction, whose probabilities are multiplied with the model's.",
            "FOLDER",
            panel=_COMPARED,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        option(
            "Look where the model fails: report.json, with the faults of each sentence, and worst.html, a page of the "
            "worst ones and their attention, go here, and the faults are counted.",
            "FOLDER",
            panel=_REPORT,
        ),
    ] = None,
    training: Annotated[
        str | None,
        option(
            "With --report: the corpus that the model was trained on, for scores by how often the rarest word of a "
            "sentence was met there.",
            "CORPUS",
            panel=_REPORT,
        ),
    ] = None,
    lowercased_tokens: Annotated[
        str | None,
        option(
            "Also BLEU over tokens in lower case, by Moses's tokenizer for this language, as older papers have it: fr, "
            "de. Compare only where ref_len is the paper's.",
            "LANGUAGE",
        ),
    ] = None,
    batch_size: BatchSizeOption = 64,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Score a model on sentence pairs that it has not seen: BLEU and chrF from 0 to 100, as sacreBLEU computes them.

    They say how much of a human translation comes back word for word (BLEU) and letter for letter (chrF): a BLEU below
    10 is of little use, from 30 on a text can mostly be understood, and 100 is the human translation itself.

    If the corpus has parts, as the phrasebook has, its test part is used.
    """
    for wrong, message in (
        ((model is None) == (hypotheses is None), "give either a model folder or --hypotheses FILE, and not both"),
        ((corpus is None) == (references is None), "give either --corpus or --references FILE, and not both"),
        (
            references and (model or versus),
            "--references has no sentences for a model to translate: give --corpus in its place",
        ),
        (versus and versus_file, "--versus and --versus-file are both given: give one of them"),
        (links and not model, "--links needs a model, whose links it compares to them"),
        (reverse and not links, "--reverse is given without --links: it is for that alone"),
        (report and not model, "--report needs a model, whose attention it looks at"),
        (training and not report, "--training is given without --report: it is for that alone"),
    ):
        if wrong:
            raise InputError(message)
    if lowercased_tokens is not None:
        try:
            check_language(lowercased_tokens)
        except InputError as error:
            raise InputError(str(error).replace("language", "--lowercased-tokens", 1)) from error
    search = search_given(options)
    translator = load(model, ensemble) if model else None
    back = Translator.load(reverse) if reverse else None
    for folder, each in ((model, translator), (reverse, back)):
        if links and each and not each.attends:
            raise InputError(f"--links needs models with attention, and {folder} has none")
    pairs = _pairs(corpus, references)
    gold = _gold(links, pairs) if links else None  # before the work, as all that may be wrong
    met = _met(training) if training else None
    if report:
        if report.exists() and not report.is_dir():
            raise InputError(f"--report: {report} is a file; expected a folder")
        report.mkdir(parents=True, exist_ok=True)
    compared = [
        _written(each, pairs) if isinstance(each, Path) else each
        for each in (translator or hypotheses, Translator.load(versus) if versus else versus_file)
        if each is not None
    ]
    found = _translated(translator, pairs, search, batch_size) if translator else []
    systems = [
        [one.target for one in (found if each is translator else _translated(each, pairs, search, batch_size))]
        if isinstance(each, BaseTranslator)
        else each
        for each in compared
    ]
    results = _scores_of(systems, pairs, by_length=references is None)
    if lowercased_tokens is not None:
        of_tokens = evaluate_lowercased_tokens(systems[0], [target for _, target in pairs], lowercased_tokens)
        results["lowercased_tokens"] = asdict(of_tokens)
    if gold and translator:
        results["alignment_error_rate"] = alignment_error_rate(translator.align(pairs, reverse=back), gold)
    if report and translator:
        results |= _write_report(translator, found, pairs, report, met, batch_size)
    print(json.dumps(results, ensure_ascii=False, indent=2)) if as_json else _show(results)
    if model and not as_json:
        suggest(f"dikkat show {shlex.quote(str(model))} {shlex.quote(pairs[0][0])}, to see what it looks at")


def _pairs(corpus: str | None, references: Path | None) -> list[Pair]:
    if references:
        return [("", line) for line in read_lines(references)]
    return list(Source.parse(given({"corpus": corpus})["corpus"]).open("test"))


def _gold(links: str, pairs: Sequence[Pair]) -> list[GoldLinks]:
    gold = gold_links(phrasebook.links(), links) if links == "phrasebook" else read_links(links)
    check_links(gold, pairs, links)
    return gold


def _met(training: str) -> Counter[str]:
    """How often training met each source word."""
    from dikkat.translation.decoding.report import count_words

    return count_words(source for source, _ in Source.parse(given({"training": training})["training"]).open("training"))


def _written(file: Path, pairs: Sequence[Pair]) -> list[str]:
    targets = list(read_lines(file))
    if len(targets) != len(pairs):
        raise InputError(f"{file}: got {len(targets)} lines; expected {len(pairs)}, one for each pair")
    return targets


def _translated(system: BaseTranslator, pairs: Sequence[Pair], search: Search, batch_size: int) -> list[Translation]:
    found = []
    with naming_options(), lines.progress(lambda: len(pairs)) as advance:
        for best in system.translate_lines((source for source, _ in pairs), batch_size=batch_size, search=search):
            found.append(best)
            advance()
    return found


def _write_report(
    translator: BaseTranslator, translations: Sequence[Translation], pairs: Sequence[Pair], folder: Path,
    counts: Counter[str] | None, batch_size: int,
) -> dict[str, Any]:  # fmt: skip
    """Write the report; return scores by rarity, if the training corpus is known, and the counts of faults."""
    from dikkat.show import save_page
    from dikkat.storage.files import write_whole
    from dikkat.translation.decoding.report import evaluate_by_rarity, judge

    translated: Sequence[Any] = [None] * len(pairs)
    expected = translated
    if translator.attends:
        sides = [(each.source, each.target) for each in translations], pairs
        translated, expected = (
            [each.sum(0) for each in translator.weights_of_units(side, batch_size)] for side in sides
        )
    judged = [
        judge(each, reference, counts, *sums)
        for each, (_, reference), *sums in zip(translations, pairs, translated, expected, strict=True)
    ]
    faults = ["not_copied", "doubled"]
    if counts is not None:
        faults.insert(0, "unseen")
    if translator.attends:
        faults.append("dropped")
    results: dict[str, Any] = {"faults": {name: sum(len(getattr(each, name)) for each in judged) for name in faults}}
    if counts is not None:
        sources, references = [source for source, _ in pairs], [reference for _, reference in pairs]
        by_rarity = evaluate_by_rarity(sources, [each.target for each in translations], references, counts)
        results["by_rarity"] = [asdict(each) for each in by_rarity]
    fields = "source", "target", "reference", "chrf", *faults
    sentences = [{name: getattr(each, name) for name in fields} for each in judged]
    text = json.dumps({**results, "sentences": sentences}, ensure_ascii=False, indent=1)
    write_whole(folder / "report.json", text)
    worst = sorted(judged, key=lambda each: each.chrf)[:_WORST]
    title, scores = "The worst translations", [each.chrf for each in worst]
    save_page(folder / "worst.html", worst, title=title, scores=scores, score_name="chrF")
    return results


def _scores_of(systems: list[list[str]], pairs: list[Pair], *, by_length: bool) -> dict[str, Any]:
    from dikkat.translation.decoding.evaluation import evaluate_by_length, significance

    hypotheses, references = systems[0], [target for _, target in pairs]
    sources = [source for source, _ in pairs] if by_length else None
    report: dict[str, Any] = asdict(evaluate(hypotheses, references, sources))
    if sources:
        buckets = evaluate_by_length(sources, hypotheses, references)
        report["by_length"] = [asdict(bucket) for bucket in buckets]
    if len(systems) > 1:
        report["versus"] = [asdict(each) for each in significance(systems[0], systems[1], references)]
    return report


def _show(report: dict[str, Any]) -> None:
    rows = [
        [f"{each['least']} to {each['most']}", f"{each['sentences']:,}", *_scores(each)]
        for each in report.get("by_length", [])
    ]
    everything = ["all", f"{report['sentences']:,}", *_scores(report)]
    show_table(["source words", "sentences", "BLEU", "chrF2"], [*rows, everything])
    if any(row[2] == "—" for row in (*rows, everything)):
        print("—: no reference there has four words, of which BLEU would say something.")
    print()
    counts = ("sentences", "exact_matches", "lost_numbers", "invented_numbers")
    counted = ["—" if report[name] is None else f"{report[name]:,}" for name in counts]
    show_table([name.replace("_", " ") for name in counts], [counted])
    if versus := report.get("versus"):
        print()
        compared = [
            [
                each["metric"],
                f"{each['score']:.2f} ± {each['interval']:.2f}",
                f"{each['other_score']:.2f} ± {each['other_interval']:.2f}",
                f"{each['p_value']:.4f}",
            ]
            for each in versus
        ]
        show_table(["paired bootstrap", "this", "the other", "p-value"], compared)
        few = report["sentences"] < _FEW
        meaning = f"fewer than {_FEW} sentences say little" if few else "the difference is hardly chance"
        print(f"±: 95 % confidence. A p-value below 0.05: {meaning}.")
    if by_rarity := report.get("by_rarity"):
        print()
        rows = [[_times(each["least"], each["most"]), f"{each['sentences']:,}", *_scores(each)] for each in by_rarity]
        show_table(["rarest source word met", "sentences", "BLEU", "chrF2"], rows)
    if faults := report.get("faults"):
        print()
        show_table(["faults", "words"], [[name.replace("_", " "), f"{count:,}"] for name, count in faults.items()])
    if "alignment_error_rate" in report:
        print(f"\nalignment error rate: {report['alignment_error_rate']:.3f}")
    print()
    if report["bleu"] is not None:
        print(report["bleu_line"])
        print(f"signature: {report['bleu_signature']}")
    print(report["chrf_line"])
    print(f"signature: {report['chrf_signature']}")
    if of_tokens := report.get("lowercased_tokens"):
        print(of_tokens["bleu_line"])
        print(f"signature: {of_tokens['bleu_signature']}")
    for each in report.get("versus", []):
        print(f"signature of the comparison: {each['metric']}|{each['signature']}")


def _times(least: int, most: int | None) -> str:
    if most is None:
        return f"{least} times or more"
    return f"{least} to {most} times" if most > least else {0: "never", 1: "once"}[least]


def _scores(report: dict[str, Any]) -> list[str]:
    return ["—" if report["bleu"] is None else f"{report['bleu']:.2f}", f"{report['chrf']:.2f}"]
