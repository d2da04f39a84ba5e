"""`dikkat train`."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dikkat.cli.app import Command, app, option
from dikkat.cli.messages import suggest
from dikkat.cli.options import (
    CorpusOption,
    TestOption,
    ValidationOption,
    check_together,
    given,
    naming_options,
    setting_options,
    with_options,
)
from dikkat.errors import InputError
from dikkat.translation import Evaluation, Settings, Translator, evaluate
from dikkat.translation.data.corpus import MAX_CHARACTERS
from dikkat.translation.formats.model_folder import check_writable
from dikkat.translation.formats.origin import Origin
from dikkat.translation.text.units import WORD
from dikkat.translation.training.distributed import processes

if TYPE_CHECKING:
    from dikkat.translation.formats.recipe import Recipe
    from dikkat.translation.training.results import Training
    from dikkat.translation.training.suited import Sample

RUN = ".training"  # the folder beside the model's that a training is resumed from
RECIPE = "recipe.toml"  # in it
_LOOKED = 1_000  # validation pairs, for examples
_TO_GO_ON = "To go on: dikkat train --resume --output "


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "dikkat train --corpus pairs.tsv --output my-model\n\n"
    "dikkat train phrasebook --output my-model\n\n"
    "dikkat train book --corpus '{name = \"phrasebook\", first = 600}' --seed 1 --output my-model\n\n"
    "dikkat train --corpus fra.txt --max-minutes 20 --output my-model\n\n"
    "dikkat train --resume --output my-model\n\n"
    "dikkat train --resume --max-minutes 40 --output my-model",
)
@with_options(setting_options())
def train(
    output: Annotated[
        Path,
        option(
            "The model folder to make. A model there is replaced. Beside it, in FOLDER.training, the training keeps "
            "what it needs to be resumed.",
            "FOLDER",
            "--output",
            "-o",
            panel="Result",
        ),
    ],
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe: a file, or the name of one that `dikkat recipes` lists. Options replace its values.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool,
        option(
            "Go on with the training that was interrupted, with its recipe; or, with more --epochs or --max-minutes "
            "than before, make one longer that has ended.",
            None,
            "--resume",
            panel="Result",
        ),
    ] = False,
    corpus: CorpusOption = None,
    validation: ValidationOption = None,
    test: TestOption = None,
    **options: Any,
) -> None:
    """Train a translator on sentence pairs and save it as a model folder.

    Settings that neither the recipe nor an option gives follow from the corpus, in place of some defaults below: from
    its pairs, how many of its words occur once, and whether words stand apart. A line says which, and how long it
    will take.
    """
    values = given({"corpus": corpus, "validation": validation, "test": test, **options})
    check_together(values)
    check_writable(output)  # before the work, not after it
    folder = output.with_name(f"{output.name}{RUN}")
    plan = _plan(recipe, values, folder, resume=resume)
    from dikkat.translation.training.suited import fitted

    with _interruptible(output, folder), naming_options():
        learnt, judged = plan.data()
        plan, sample = fitted(plan, learnt, validated=judged is not None)
        result = _train(plan, learnt, judged, output, folder, resume=resume, sample=sample)
        _finish(result, plan, judged, output)


@contextmanager
def _interruptible(output: Path, folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        from dikkat.translation.training.run_folder import RunFolder

        if RunFolder(folder).newest() is not None:
            _say("dikkat: interrupted at once; what came after the last checkpoint is lost")
            _say(_TO_GO_ON + shlex.quote(str(output)))
        else:
            _say("dikkat: interrupted before there was a checkpoint; nothing is saved")
        raise typer.Exit(130) from None


def _plan(recipe: str | None, values: dict[str, Any], folder: Path, *, resume: bool) -> "Recipe":
    """The recipe with the options that are given, on resuming that of the run folder."""
    from dikkat.translation.formats.recipe import Recipe
    from dikkat.translation.training.run_folder import RunFolder

    if resume:
        if recipe is not None:
            raise InputError(f"--resume goes on with the recipe of {folder}; leave out {recipe}")
        if not (folder / RECIPE).is_file():
            if folder.is_dir():
                with RunFolder(folder).locked():  # refused where a training is about to begin
                    pass
            raise InputError(f"{folder / RECIPE}: missing, so there is no training to resume. Train without --resume")
        recipe = str(folder / RECIPE)
    elif recipe is not None and _has_pairs(Path(recipe)):
        name = shlex.quote(recipe)
        raise InputError(f"{recipe}: got lines with tabs, and no recipe. Give sentence pairs by --corpus {name}")
    plan = Recipe.load(recipe) if recipe else Recipe()
    with naming_options():
        return plan.with_values(values)


def _has_pairs(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        first, tab, _ = file.readline(MAX_CHARACTERS).partition(b"\t")
    return bool(tab) and b"=" not in first and bool(first.strip())


def _train(
    plan: "Recipe", learnt: Any, judged: Any, output: Path, folder: Path, *, resume: bool, sample: "Sample | None"
) -> "Training":
    from dikkat.translation.training.results import TrainingError
    from dikkat.translation.training.suited import reason
    from dikkat.translation.training.train import train as train_translator

    def begin(place: Path) -> None:
        plan.save(place / RECIPE)
        if sample is not None:  # said here, once everything is checked, so that an error comes alone
            _say(reason(sample, plan.settings))

    try:
        return train_translator(plan.settings, learnt, judged, folder=folder, resume=resume, on_begin=begin, tell=_say)
    except TrainingError as error:
        if error.training is not None and _leads():
            error.training.translator.save(output)
            _say("dikkat: the training broke off; the best model so far is saved")
        raise InputError(str(error)) from error


def _finish(result: "Training", plan: "Recipe", judged: Any, output: Path) -> None:
    """Save the model and say how it is; after an interruption, how to go on."""
    usable = not result.interrupted or bool(result.epochs or result.validations)
    source_language, target_language = (plan.corpus and plan.corpus.languages) or (None, None)
    origin = Origin.now(
        corpus=plan.corpus and plan.corpus.title(), source_language=source_language, target_language=target_language,
        pairs=result.pairs, epochs=len(result.epochs),
        validation_loss=None if result.best is None else result.best.loss,
        examples=None if judged is None else _examples(judged, result.translator) or None,
    )  # fmt: skip
    translator = replace(result.translator, origin=origin)
    if usable and _leads():  # hardly begun, it must not replace an older model
        translator.save(output)
        if stopped := _stopped_early(result, plan.settings, output):
            _say(stopped)
        _say(f"{output}: {_summary(result, plan.settings)}")
    if result.interrupted:
        _say("dikkat: interrupted; " + ("the best model so far is saved" if usable else "no model is saved yet"))
        if result.resumable:
            _say(_TO_GO_ON + shlex.quote(str(output)))
        raise typer.Exit(130)
    if plan.test is not None and _leads():
        scores = _score(translator, list(plan.test.open("test")))
        replace(translator, origin=origin.scored(plan.test.title(), scores)).save(output)
    if _leads():
        suggest(f"dikkat export {shlex.quote(str(output))} --html translator.html")


def _examples(judged: Any, translator: Translator) -> str:
    """Three validation sentences, of middle length, longer and longest, of up to twelve words that were learnt."""
    from dikkat.translation.training.train import evenly

    sources = list(dict.fromkeys(source for source, _ in evenly(judged, _LOOKED)[0]))
    lengths = {source: len(WORD.findall(source)) for source in sources}
    learnt = [each for each in sources if lengths[each] <= 12 and not translator.source_tokenizer.unknown(each)]
    found = sorted(learnt or sources, key=lengths.__getitem__)
    return "\n".join(dict.fromkeys(found[place * (len(found) - 1) // 4] for place in (2, 3, 4)))


def _stopped_early(result: "Training", settings: Settings, output: Path) -> str | None:
    """The reason why the training ended before its last epoch, which model is kept, and how to make it longer."""
    best = result.best
    index = result.validations.index(best) if best else 0
    since = len(result.validations) - 1 - index
    if result.interrupted:
        return None
    if best is None or since < settings.patience:
        if settings.max_minutes is None or result.seconds < 60 * settings.max_minutes:
            return None
        better = "; the last validation was the best" if since == 0 else ""
        where = f"epoch {len(result.epochs)} of {settings.epochs}"
        longer = f"dikkat train --resume --max-minutes {2 * settings.max_minutes:g} --output {shlex.quote(str(output))}"
        return f"stopped after {settings.max_minutes:g} minutes, in {where}{better}. To train as long again: {longer}"
    place = f"step {best.step}" if settings.validation_steps else f"epoch {index + 1}"
    bleu = f", BLEU {best.bleu:.2f}" if settings.criterion == "bleu" else ""
    return (
        f"stopped after epoch {len(result.epochs)}: {since} validations without improvement; kept {place}, validation "
        f"loss {best.loss:.3f}{bleu}"
    )


def _summary(result: "Training", settings: Settings) -> str:
    course = f"{result.seconds:.0f} s, {result.tokens_per_second:,.0f} tokens/s"
    if (best := result.best) is None:
        epochs = len(result.epochs)
        return f"the model after {epochs} epoch{'s' * (epochs > 1)}; {course}"
    count = min(settings.average, len(result.validations))
    which = "the best" if count == 1 else f"the mean of the best {count}"
    text = f"{which} of {len(result.validations)} validations, the best one's loss {best.loss:.3f}; {course}"
    if (scores := result.scores) is None:
        return text
    bleu = "" if scores.bleu is None else f"BLEU {scores.bleu:.2f}, "
    return (
        f"{text}; {scores.sentences:,} validation sentences as dikkat translate writes them: {bleu}"
        f"{scores.exact_matches:,} exact, {scores.lost_numbers} numbers lost, {scores.invented_numbers} invented"
    )


def _score(translator: Translator, pairs: list[tuple[str, str]]) -> Evaluation:
    translations = translator.translate([source for source, _ in pairs])
    scores = evaluate([each.target for each in translations], [target for _, target in pairs])
    _say(f"on {len(pairs):,} test pairs:")
    for line in (scores.bleu_line, scores.bleu_signature, scores.chrf_line, scores.chrf_signature):
        _say(line)
    return scores


def _leads() -> bool:
    return processes().rank == 0


def _say(text: str) -> None:
    if _leads():
        print(text, file=sys.stderr)
