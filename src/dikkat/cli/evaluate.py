"""`dikkat evaluate`."""

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dikkat.cli import lines
from dikkat.cli.app import Command, app, option
from dikkat.cli.messages import complain, suggest
from dikkat.cli.options import (
    BatchSizeOption,
    CorpusOption,
    EnsembleOption,
    JsonOption,
    naming_options,
    read_options,
    read_search,
    search_options,
    with_options,
)
from dikkat.cli.tables import show_table
from dikkat.cli.translate import join
from dikkat.errors import InputError
from dikkat.translation import Search, Translation, Translator, evaluate, evaluate_lowercased_tokens, phrasebook
from dikkat.translation.confidence import RIGHT, calibration
from dikkat.translation.data.corpus import Pair, read_lines
from dikkat.translation.data.corpus_source import CorpusSource
from dikkat.translation.decoding.alignment import GoldLinks, alignment_error_rate, check_links, gold_links, read_links
from dikkat.translation.decoding.evaluation import check_language
from dikkat.translation.decoding.translator import BaseTranslator
from dikkat.translation.formats.origin import Origin
from dikkat.translation.memory.pair_memory import PairMemory, find_stored

if TYPE_CHECKING:
    from dikkat.translation.decoding.report import Judged

_COMPARED = "Comparison"
_REPORT = "Report"
_FEW = 100  # sentences: below, a p-value means little
_WORST = 50  # sentences on the page

_LinksOption = Annotated[
    str | None,
    option(
        "Human word alignments of the corpus, one line per pair: 0-0 1-2 for sure links, 2p3 for possible links; "
        "words are separated by white space and counted from 0. Computes the alignment error rate of `dikkat align`. "
        "phrasebook: the links of its test part; ./phrasebook: a file of this name.",
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
        Path | None, typer.Argument(help="A model folder from `dikkat train`; or use --hypotheses.", show_default=False)
    ] = None,
    corpus: CorpusOption = None,
    hypotheses: Annotated[Path | None, option("Instead of a model: its translations, one per line.", "FILE")] = None,
    references: Annotated[
        Path | None,
        option("With --hypotheses, instead of --corpus: human translations, one per line.", "FILE", panel="Corpus"),
    ] = None,
    ensemble: EnsembleOption = None,
    versus: Annotated[
        Path | None, option("Another model to compare with, by a test of significance.", "FOLDER", panel=_COMPARED)
    ] = None,
    versus_file: Annotated[
        Path | None, option("Translations of another model to compare with, one per line.", "FILE", panel=_COMPARED)
    ] = None,
    links: _LinksOption = None,
    reverse: Annotated[
        Path | None,
        option(
            "With --links: a model of the other direction, to multiply its probabilities with the model's.",
            "FOLDER",
            panel=_COMPARED,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        option(
            "Folder for an error report: report.json, with the faults of each sentence; worst.html, a page of the "
            "worst sentences and their attention; and reliability.png, the share of right translations by confidence. "
            "Also prints the counts of faults and the calibration error of the confidence.",
            "FOLDER",
            panel=_REPORT,
        ),
    ] = None,
    training: Annotated[
        str | None,
        option(
            "With --report: the training corpus of the model, for scores by the training frequency of the rarest word "
            "of a sentence.",
            "CORPUS",
            panel=_REPORT,
        ),
    ] = None,
    lowercased_tokens: Annotated[
        str | None,
        option(
            "Also compute BLEU over lowercase tokens from the Moses tokenizer of this language, as older papers do: "
            "fr, de. Comparable only if ref_len equals the paper's.",
            "LANGUAGE",
        ),
    ] = None,
    batch_size: BatchSizeOption = 64,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Score a model on held-out sentence pairs by BLEU and chrF, from 0 to 100, as sacreBLEU computes them.

    They measure how much of a human translation the model reproduces, in words (BLEU) and in letters (chrF). A BLEU
    below 10 is of little use, from 30 on most text is understandable, and 100 equals the human translation.

    If the corpus has parts, such as the phrasebook, its test part is used.
    """
    for is_wrong, message in (
        ((model is None) == (hypotheses is None), "expected either a model folder or --hypotheses FILE"),
        ((corpus is None) == (references is None), "expected either --corpus or --references FILE"),
        (references and (model or versus), "--references has no sentences to translate; expected --corpus instead"),
        (versus and versus_file, "--versus and --versus-file cannot be combined: remove one of them"),
        (links and not model, "--links needs a model: give a model folder"),
        (reverse and not links, "--reverse needs --links: add --links or remove --reverse"),
        (report and not model, "--report needs a model: give a model folder"),
        (training and not report, "--training needs --report: add --report or remove --training"),
    ):
        if is_wrong:
            raise InputError(message)
    if lowercased_tokens is not None:
        check_language(lowercased_tokens, "--lowercased-tokens")
    search = read_search(options)
    folders = [model, *(ensemble or [])] if model else []
    loaded = {folder: Translator.load(folder) for folder in (*folders, versus) if folder}
    translator = join([loaded[folder] for folder in folders]) if model else None
    reverse_translator = Translator.load(reverse) if reverse else None
    for folder, aligner in ((model, translator), (reverse, reverse_translator)):
        if links and aligner and not aligner.attends:
            raise InputError(f"--links: got {folder}, a model without attention; expected one with attention")
    pairs = _read_pairs(corpus, references)
    for folder, member in loaded.items():
        _warn_about_training_sentences(member.origin, folder, pairs, str(corpus))
        _warn_about_corrections(member.memory, folder, pairs, str(corpus))
    gold = _read_gold_links(links, pairs) if links else None  # before the work, to report errors early
    word_counts = _count_training_words(training) if training else None
    if report:
        if report.exists() and not report.is_dir():
            raise InputError(f"--report: got {report}, a file; expected a folder")
        report.mkdir(parents=True, exist_ok=True)
    systems = [
        _read_targets(system, pairs) if isinstance(system, Path) else system
        for system in (translator or hypotheses, loaded[versus] if versus else versus_file)
        if system is not None
    ]
    translations = _translate(translator, pairs, search, batch_size) if translator else []
    targets_by_system = [
        [t.target for t in (translations if system is translator else _translate(system, pairs, search, batch_size))]
        if isinstance(system, BaseTranslator)
        else system
        for system in systems
    ]
    results = _compute_scores(targets_by_system, pairs, by_length=references is None)
    if lowercased_tokens is not None:
        human = [target for _, target in pairs]
        token_scores = evaluate_lowercased_tokens(targets_by_system[0], human, lowercased_tokens)
        results["lowercased_tokens"] = asdict(token_scores)
    if gold and translator:
        model_links = translator.align(pairs, reverse=reverse_translator)
        results["alignment_error_rate"] = alignment_error_rate(model_links, gold)
    if report and translator:
        results |= _write_report(translator, translations, pairs, report, word_counts, batch_size)
    if as_json:
        print(json.dumps(results, ensure_ascii=False, indent=2))
        return
    _print_scores(results)
    if report:
        print(f"report: {report / 'report.json'}\npage: {report / 'worst.html'}")
        if "confidence" in results:
            print(f"reliability diagram: {report / 'reliability.png'}")
    if model:
        suggest(f"dikkat show {shlex.quote(str(model))} {shlex.quote(pairs[0][0])}, to see its attention")


def _read_pairs(corpus: str | None, references: Path | None) -> list[Pair]:
    if references:
        return [("", line) for line in read_lines(references)]
    return list(CorpusSource.parse(read_options({"corpus": corpus})["corpus"]).open("test"))


def _warn_about_training_sentences(origin: Origin | None, model: Path, pairs: Sequence[Pair], corpus: str) -> None:
    common, compared = origin.count_trained(source for source, _ in pairs) if origin else (0, 0)
    if common:
        sampled = "sampled " if compared < len(pairs) else ""
        complain(
            f"{corpus}: {common:,} of {compared:,} {sampled}source sentences are training sentences of {model}, so the "
            "scores are higher than on new sentences. Use other pairs. `dikkat train --test FILE` leaves the sentences "
            f"of FILE out of the training, and `dikkat info {model}` prints the scores on validation sentences"
        )


def _warn_about_corrections(memory: PairMemory, model: Path, pairs: Sequence[Pair], corpus: str) -> None:
    if common := sum(find_stored([memory.snapshot], source) is not None for source, _ in pairs):
        complain(
            f"{corpus}: {common:,} of {len(pairs):,} source sentences are stored corrections of {model}, so the scores "
            "are higher than on new sentences. Use other pairs"
        )


def _read_gold_links(links: str, pairs: Sequence[Pair]) -> list[GoldLinks]:
    gold = gold_links(phrasebook.links(), links) if links == "phrasebook" else read_links(links)
    check_links(gold, pairs, links)
    return gold


def _count_training_words(training: str) -> Counter[str]:
    from dikkat.translation.decoding.report import count_words

    corpus = CorpusSource.parse(read_options({"training": training})["training"])
    return count_words(source for source, _ in corpus.open("training"))


def _read_targets(file: Path, pairs: Sequence[Pair]) -> list[str]:
    targets = list(read_lines(file))
    if len(targets) != len(pairs):
        raise InputError(f"{file}: got {len(targets)} lines; expected {len(pairs)}, one for each pair")
    return targets


def _translate(system: BaseTranslator, pairs: Sequence[Pair], search: Search, batch_size: int) -> list[Translation]:
    translations = []
    with naming_options(), lines.progress(lambda: len(pairs)) as advance:
        for best in system.translate_lines((source for source, _ in pairs), batch_size=batch_size, search=search):
            translations.append(best)
            advance()
    return translations


def _write_report(
    translator: BaseTranslator, translations: Sequence[Translation], pairs: Sequence[Pair], folder: Path,
    word_counts: Counter[str] | None, batch_size: int,
) -> dict[str, Any]:  # fmt: skip
    """Write the report; return the counts of faults, and scores by rarity if there are word counts."""
    from dikkat.show import save_page
    from dikkat.storage.files import write_whole
    from dikkat.translation.decoding.report import evaluate_by_rarity, judge

    target_sums: Sequence[Any] = [None] * len(pairs)
    reference_sums = target_sums
    if translator.attends:
        sides = [(translation.source, translation.target) for translation in translations], pairs
        target_sums, reference_sums = (
            [weights.sum(0) for weights in translator.weights_of_units(side, batch_size)] for side in sides
        )
    judgements = [
        judge(translation, reference, word_counts, *sums)
        for translation, (_, reference), *sums in zip(translations, pairs, target_sums, reference_sums, strict=True)
    ]
    faults = ["not_copied", "doubled"]
    if word_counts is not None:
        faults.insert(0, "unseen")
    if translator.attends:
        faults.append("dropped")
    fault_counts = {name: sum(len(getattr(judgement, name)) for judgement in judgements) for name in faults}
    results: dict[str, Any] = {"faults": fault_counts}
    if word_counts is not None:
        sources, references = [source for source, _ in pairs], [reference for _, reference in pairs]
        targets = [translation.target for translation in translations]
        by_rarity = evaluate_by_rarity(sources, targets, references, word_counts)
        results["by_rarity"] = [asdict(bucket) for bucket in by_rarity]
    if all(judgement.confidence is not None for judgement in judgements):
        results["confidence"] = _write_calibration(judgements, folder / "reliability.png")
    fields = "source", "target", "reference", "chrf", "confidence", "flags", *faults
    sentences = [{name: getattr(judgement, name) for name in fields} for judgement in judgements]
    text = json.dumps({**results, "sentences": sentences}, ensure_ascii=False, indent=1)
    write_whole(folder / "report.json", text)
    worst = sorted(judgements, key=lambda judgement: judgement.chrf)[:_WORST]
    title, scores = "The worst translations", [judgement.chrf for judgement in worst]
    save_page(folder / "worst.html", worst, title=title, scores=scores, score_name="chrF")
    return results


def _write_calibration(judgements: "Sequence[Judged]", path: Path) -> dict[str, Any]:
    """Draw a reliability diagram; return the calibration of the judgements' confidences."""
    from dikkat.show import save
    from dikkat.show.reliability import draw_reliability

    is_right = [judgement.chrf >= RIGHT for judgement in judgements]
    result = calibration([judgement.confidence or 0.0 for judgement in judgements], is_right)
    bins = result.bins
    title = f"calibration error {result.error:.3f}"
    columns = [b.confidence for b in bins], [b.right for b in bins], [b.sentences for b in bins]
    save(draw_reliability(*columns, title=title), path)
    return asdict(result)


def _compute_scores(targets_by_system: list[list[str]], pairs: list[Pair], *, by_length: bool) -> dict[str, Any]:
    from dikkat.translation.decoding.evaluation import evaluate_by_length, significance

    targets, references = targets_by_system[0], [target for _, target in pairs]
    sources = [source for source, _ in pairs] if by_length else None
    report: dict[str, Any] = asdict(evaluate(targets, references, sources))
    if sources:
        buckets = evaluate_by_length(sources, targets, references)
        report["by_length"] = [asdict(bucket) for bucket in buckets]
    if len(targets_by_system) > 1:
        report["versus"] = [asdict(metric) for metric in significance(targets, targets_by_system[1], references)]
    return report


def _print_scores(report: dict[str, Any]) -> None:
    rows = [
        [f"{bucket['least']} to {bucket['most']}", f"{bucket['sentences']:,}", *_score_cells(bucket)]
        for bucket in report.get("by_length", [])
    ]
    rows.append(["all", f"{report['sentences']:,}", *_score_cells(report)])
    show_table(["source words", "sentences", "BLEU", "chrF2"], rows)
    if any(row[2] == "—" for row in rows):
        print("—: BLEU is undefined, because no reference has four words.")
    print()
    counts = ("sentences", "exact_matches", "lost_numbers", "invented_numbers")
    cells = ["—" if report[name] is None else f"{report[name]:,}" for name in counts]
    show_table([name.replace("_", " ") for name in counts], [cells])
    if versus := report.get("versus"):
        print()
        rows = [
            [
                metric["metric"],
                f"{metric['score']:.2f} ± {metric['interval']:.2f}",
                f"{metric['other_score']:.2f} ± {metric['other_interval']:.2f}",
                f"{metric['p_value']:.4f}",
            ]
            for metric in versus
        ]
        show_table(["paired bootstrap", "this", "the other", "p-value"], rows)
        few = report["sentences"] < _FEW
        meaning = f"not reliable with fewer than {_FEW} sentences" if few else "the difference is significant"
        print(f"±: 95 % confidence interval. A p-value below 0.05: {meaning}.")
    if by_rarity := report.get("by_rarity"):
        print()
        rows = [[_times(b["least"], b["most"]), f"{b['sentences']:,}", *_score_cells(b)] for b in by_rarity]
        show_table(["rarest source word in training", "sentences", "BLEU", "chrF2"], rows)
    if faults := report.get("faults"):
        print()
        show_table(["faults", "words"], [[name.replace("_", " "), f"{count:,}"] for name, count in faults.items()])
    if confidence := report.get("confidence"):
        print()
        rows = [
            [
                f"{b['lower']:.1f} to {b['upper']:.1f}",
                f"{b['sentences']:,}",
                f"{b['confidence']:.2f}",
                f"{b['right']:.2f}",
            ]
            for b in confidence["bins"]
        ]
        show_table(["confidence", "sentences", "mean confidence", "share right"], rows)
        auc = "undefined" if confidence["auc"] is None else f"{confidence['auc']:.3f}"
        print(f"right: a chrF of at least {RIGHT:g}. Calibration error: {confidence['error']:.3f}. AUC: {auc}.")
    if "alignment_error_rate" in report:
        print(f"\nalignment error rate: {report['alignment_error_rate']:.3f}")
    print()
    if report["bleu"] is not None:
        print(report["bleu_line"])
        print(f"signature: {report['bleu_signature']}")
    print(report["chrf_line"])
    print(f"signature: {report['chrf_signature']}")
    if token_scores := report.get("lowercased_tokens"):
        print(token_scores["bleu_line"])
        print(f"signature: {token_scores['bleu_signature']}")
    for metric in report.get("versus", []):
        print(f"signature of the comparison: {metric['metric']}|{metric['signature']}")


def _times(least: int, most: int | None) -> str:
    if most is None:
        return f"{least} times or more"
    return f"{least} to {most} times" if most > least else {0: "never", 1: "once"}[least]


def _score_cells(report: dict[str, Any]) -> list[str]:
    return ["—" if report["bleu"] is None else f"{report['bleu']:.2f}", f"{report['chrf']:.2f}"]
