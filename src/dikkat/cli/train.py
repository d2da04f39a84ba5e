"""`dikkat train`."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dikkat.cli.app import Command, app, option
from dikkat.cli.messages import suggest
from dikkat.cli.options import (
    CorpusOption,
    OverwriteOption,
    TestOption,
    ValidationOption,
    check_conflicts,
    naming_options,
    read_options,
    setting_options,
    with_options,
)
from dikkat.errors import InputError
from dikkat.translation import Evaluation, Settings, Translator, evaluate
from dikkat.translation.data.catalogues import kind_of
from dikkat.translation.data.corpus import MAX_CHARACTERS
from dikkat.translation.data.corpus_source import CorpusSource
from dikkat.translation.formats.model_folder import check_writable
from dikkat.translation.formats.origin import Origin
from dikkat.translation.text.units import WORD
from dikkat.translation.training.distributed import processes

if TYPE_CHECKING:
    from dikkat.translation.formats.recipe import Recipe
    from dikkat.translation.training.results import Training
    from dikkat.translation.training.suited import Sample

_RUN_SUFFIX = ".training"  # of the run folder next to the model folder, for --resume
_RECIPE = "recipe.toml"  # in the run folder
_WATCHED = 20  # batches from one watched one to the next
_MOST_PAIRS = 1_000  # validation pairs to select the examples from
_RESUME = "To resume: dikkat train --resume --output "


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "dikkat train --corpus pairs.tsv --output my-model\n\n"
    "dikkat train phrasebook --output my-model\n\n"
    "dikkat train book --corpus '{name = \"phrasebook\", first = 600}' --seed 1 --output my-model\n\n"
    "dikkat train --corpus fra.txt --max-minutes 20 --output my-model\n\n"
    "dikkat train --corpus pairs.tsv --output my-model --overwrite\n\n"
    "dikkat train --resume --output my-model\n\n"
    "dikkat train --resume --max-minutes 40 --output my-model\n\n"
    "dikkat train --from my-model --corpus pairs.tsv --corrections corrections.tsv --output my-new-model",
)
@with_options(setting_options())
def train(
    output: Annotated[
        Path,
        option(
            "Output folder for the model. FOLDER.training has the data for --resume.",
            "FOLDER",
            "--output",
            "-o",
            panel="Result",
        ),
    ],
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe: a file, or a name from `dikkat recipes`. Options override its values.", show_default=False
        ),
    ] = None,
    resume: Annotated[
        bool,
        option(
            "Resume an interrupted training with its recipe; with more --epochs or --max-minutes than before, continue "
            "a finished one.",
            None,
            "--resume",
            panel="Result",
        ),
    ] = False,
    overwrite: OverwriteOption = False,
    from_model: Annotated[
        Path | None,
        option(
            "Instead of training a new model: let this one learn --corrections. Its old pairs are in --corpus.",
            "FOLDER",
            "--from",
            panel="Result",
        ),
    ] = None,
    watch: Annotated[
        Path | None,
        option(
            "A .csv file for the attention's entropy and its weight of the first word, every 20 batches; or an .html "
            "file, for a picture. A warning says if the attention collapses.",
            "FILE",
            "--watch",
            panel="Result",
        ),
    ] = None,
    corpus: CorpusOption = None,
    corrections: Annotated[
        str | None,
        option(
            "With --from: the pairs to learn. Unset: the corrections that the model has stored.",
            "CORPUS",
            panel="Corpus",
        ),
    ] = None,
    validation: ValidationOption = None,
    test: TestOption = None,
    **options: Any,
) -> None:
    """Train a translator on sentence pairs and save it as a model folder.

    Unset settings follow from the corpus instead of some defaults below: from the number of its pairs, the share of
    rare words, and the script. A line gives the selected settings and the expected time.
    """
    values = read_options({"corpus": corpus, "validation": validation, "test": test, **options})
    check_conflicts(values)
    check_writable(output, overwrite=resume or overwrite, advice=", or --resume to continue its training")
    if from_model is None and corrections is not None:
        raise InputError("--from: missing; expected it with --corrections")
    if from_model is not None:
        exclusive = {"a recipe": recipe, "--resume": resume, "--watch": watch}
        if conflicts := [name for name, value in exclusive.items() if value]:
            raise InputError(f"--from: got {conflicts[0]} too; expected only one of them")
        from dikkat.cli.continuing import continue_model

        with naming_options():
            parsed = read_options({"corrections": corrections})
            source = CorpusSource.parse(parsed["corrections"]) if parsed else None
            continue_model(from_model, source, values, output)
        return
    if watch is not None:
        from dikkat.inspection.watching import check_path

        check_path("--watch", watch)
    folder = run_folder_of(output)
    plan = _load_plan(recipe, values, folder, resume=resume)
    if watch is not None and plan.settings.score == "none":
        raise InputError("--watch has no effect with --score none: remove one of them")
    from dikkat.translation.training.suited import fitted

    with _interruptible(output, folder), naming_options():
        training_pairs, validation_pairs = plan.data()
        plan, sample = fitted(plan, training_pairs, validated=validation_pairs is not None)
        result = _train(
            plan, training_pairs, validation_pairs, output, folder, resume=resume, overwrite=overwrite, sample=sample,
            watch=watch,
        )  # fmt: skip
        _finish(result, plan, validation_pairs, output)


def run_folder_of(model: Path) -> Path:
    """Return the folder of a model's training."""
    return model.with_name(f"{model.name}{_RUN_SUFFIX}")


@contextmanager
def _interruptible(output: Path, folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        from dikkat.translation.training.run_folder import RunFolder

        if RunFolder(folder).newest() is not None:
            _report("dikkat: interrupted; the steps after the last checkpoint are lost")
            _report(_RESUME + shlex.quote(str(output)))
        else:
            _report("dikkat: interrupted before the first checkpoint; nothing is saved")
        raise typer.Exit(130) from None


def _load_plan(recipe: str | None, values: dict[str, Any], folder: Path, *, resume: bool) -> "Recipe":
    """Return the recipe with the values of the options; to resume, the recipe from the run folder."""
    from dikkat.translation.formats.recipe import Recipe
    from dikkat.translation.training.run_folder import RunFolder

    if resume:
        if recipe is not None:
            raise InputError(f"--resume uses the recipe in {folder}; remove {recipe}")
        if not (folder / _RECIPE).is_file():
            if folder.is_dir():
                with RunFolder(folder).locked():  # raises if a training is about to begin
                    pass
            raise InputError(f"{folder / _RECIPE}: missing, so there is no training to resume. Train without --resume")
        recipe = str(folder / _RECIPE)
    elif recipe is not None and _has_pairs(Path(recipe)):
        raise InputError(
            f"{recipe}: got sentence pairs; expected a recipe. Pass them with --corpus {shlex.quote(recipe)}"
        )
    plan = Recipe.load(recipe) if recipe else Recipe()
    with naming_options():
        return plan.with_values(values)


def _has_pairs(path: Path) -> bool:
    if not path.is_file():
        return False
    if kind_of(path):
        return True
    with path.open("rb") as file:
        source, tab, _ = file.readline(MAX_CHARACTERS).partition(b"\t")
    return ".csv" in path.suffixes or (bool(tab) and b"=" not in source and bool(source.strip()))


def _train(
    plan: "Recipe", training_pairs: Any, validation_pairs: Any, output: Path, folder: Path, *, resume: bool,
    overwrite: bool, sample: "Sample | None", watch: Path | None,
) -> "Training":  # fmt: skip
    from dikkat.inspection import watch as watch_model
    from dikkat.translation.training.results import TrainingError
    from dikkat.translation.training.suited import reason
    from dikkat.translation.training.train import train as train_translator

    def on_begin(run_folder: Path) -> None:
        plan.save(run_folder / _RECIPE)
        if sample is not None:  # after all checks, so that an error is the only line
            _report(reason(sample, plan.settings))

    try:
        return train_translator(
            plan.settings, training_pairs, validation_pairs, folder=folder, resume=resume, overwrite=overwrite,
            on_begin=on_begin, tell=_report,
            watch=None if watch is None else partial(watch_model, every=_WATCHED, log=watch),
        )  # fmt: skip
    except TrainingError as error:
        if error.training is not None and _is_main_process():
            error.training.translator.save(output)
            _report("dikkat: the training failed; the best model so far is saved")
        raise InputError(str(error)) from error


def _finish(result: "Training", plan: "Recipe", validation_pairs: Any, output: Path) -> None:
    """Save the model and print its scores, or after an interruption the command to resume."""
    usable = not result.interrupted or bool(result.epochs or result.validations)
    source_language, target_language = (plan.corpus and plan.corpus.languages) or (None, None)
    origin = Origin.now(
        corpus=plan.corpus and plan.corpus.title(), source_language=source_language, target_language=target_language,
        pairs=result.pairs, epochs=len(result.epochs),
        validation_loss=None if result.best is None else result.best.loss, training_hashes=result.sketch,
        examples=None if validation_pairs is None else _select_examples(validation_pairs, result.translator) or None,
    )  # fmt: skip
    if (scores := result.scores) is not None:
        origin = replace(
            origin, validation_sentences=scores.sentences, validation_bleu=scores.bleu,
            validation_bleu_signature=scores.bleu_signature,
        )  # fmt: skip
    translator = replace(result.translator, origin=origin)
    if usable and _is_main_process():  # an untrained model must not replace an older one
        translator.save(output)
        if stopped := _describe_early_stop(result, plan.settings, output):
            _report(stopped)
        _report(f"{output}: {_summarize(result, plan.settings)}")
    if result.interrupted:
        _report("dikkat: interrupted; " + ("the best model so far is saved" if usable else "no model is saved yet"))
        if result.resumable:
            _report(_RESUME + shlex.quote(str(output)))
        raise typer.Exit(130)
    if plan.test is not None and _is_main_process():
        scores = _score(translator, list(plan.test.open("test")))
        replace(translator, origin=origin.scored(plan.test.title(), scores)).save(output)
    if _is_main_process():
        suggest(f"dikkat export {shlex.quote(str(output))} --html translator.html")


def _select_examples(validation_pairs: Any, translator: Translator) -> str:
    """Return three validation sentences of different lengths, if possible of at most 12 words, all known."""
    from dikkat.translation.training.train import sample_evenly

    sources = list(dict.fromkeys(source for source, _ in sample_evenly(validation_pairs, _MOST_PAIRS)[0]))
    lengths = {source: len(WORD.findall(source)) for source in sources}
    known = [s for s in sources if lengths[s] <= 12 and not translator.source_tokenizer.unknown(s)]
    by_length = sorted(known or sources, key=lengths.__getitem__)
    return "\n".join(dict.fromkeys(by_length[quarter * (len(by_length) - 1) // 4] for quarter in (2, 3, 4)))


def _describe_early_stop(result: "Training", settings: Settings, output: Path) -> str | None:
    """Return the reason for the early end, the selected model, and the command to continue; None without one."""
    best = result.best
    index = result.validations.index(best) if best else 0
    since = len(result.validations) - 1 - index
    if result.interrupted:
        return None
    if best is None or since < settings.patience:
        if settings.max_minutes is None or result.seconds < 60 * settings.max_minutes:
            return None
        better = "; the last validation was the best" if since == 0 else ""
        epoch = f"epoch {len(result.epochs)} of {settings.epochs}"
        resume = f"dikkat train --resume --max-minutes {2 * settings.max_minutes:g} --output {shlex.quote(str(output))}"
        return f"stopped after {settings.max_minutes:g} minutes, in {epoch}{better}. To train as long again: {resume}"
    selected = f"step {best.step}" if settings.validation_steps else f"epoch {index + 1}"
    bleu = f", BLEU {best.bleu:.2f}" if settings.criterion == "bleu" else ""
    return (
        f"stopped after epoch {len(result.epochs)}: {since} validations without improvement; selected {selected}, "
        f"validation loss {best.loss:.3f}{bleu}"
    )


def _summarize(result: "Training", settings: Settings) -> str:
    speed = f"{result.seconds:.0f} s, {result.tokens_per_second:,.0f} tokens/s"
    if (best := result.best) is None:
        epochs = len(result.epochs)
        return f"the model after {epochs} epoch{'s' * (epochs > 1)}; {speed}"
    count = min(settings.average, len(result.validations))
    model = "the best" if count == 1 else f"the mean of the best {count}"
    text = f"{model} of {len(result.validations)} validations, best loss {best.loss:.3f}; {speed}"
    if (scores := result.scores) is None:
        return text
    bleu = "" if scores.bleu is None else f"BLEU {scores.bleu:.2f}, "
    return (
        f"{text}; translations of {scores.sentences:,} validation sentences: {bleu}{scores.exact_matches:,} exact, "
        f"{scores.lost_numbers} numbers lost, {scores.invented_numbers} invented"
    )


def _score(translator: Translator, pairs: list[tuple[str, str]]) -> Evaluation:
    translations = translator.translate([source for source, _ in pairs])
    scores = evaluate([translation.target for translation in translations], [target for _, target in pairs])
    _report(f"on {len(pairs):,} test pairs:")
    for line in (scores.bleu_line, scores.bleu_signature, scores.chrf_line, scores.chrf_signature):
        _report(line)
    return scores


def _is_main_process() -> bool:
    return processes().rank == 0


def _report(text: str) -> None:
    if _is_main_process():
        print(text, file=sys.stderr)
