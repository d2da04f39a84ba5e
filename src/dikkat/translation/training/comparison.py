"""Train the same recipe in several ways, and put quality beside cost."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dikkat.errors import InputError
from dikkat.storage.files import write_whole
from dikkat.translation.data.corpus import Pair
from dikkat.translation.decoding.evaluation import evaluate
from dikkat.translation.decoding.translator import Translator
from dikkat.translation.fields import nearest
from dikkat.translation.formats.recipe import Recipe
from dikkat.translation.network.model import TranslationModel, collate
from dikkat.translation.settings import Settings
from dikkat.translation.text.tokenizer import SPECIAL_TOKENS
from dikkat.translation.training.distributed import processes
from dikkat.translation.training.run_folder import SETTINGS

RESULT, RECIPE, COMPARISON = "result.json", "recipe.toml", "comparison.json"
_BY_ITSELF = "not given"


@dataclass(frozen=True)
class Trial:
    """One way to train, and what it came to.

    Attributes:
        name: What is varied in it, `cell=gru,score=dot`.
        settings: All settings of it.
        parameters: Numbers that the model learns.
        validation_loss: Mean loss of a target token in the best validation, in nats; None without validation.
        bleu: Of translations of the test pairs, or without such of the validation pairs, from 0 to 100; None where
            there are neither.
        chrf: Of the same translations.
        seconds: Spent training and validating.
        tokens_per_second: Target tokens trained on in a second.
        error: Why there is no result; None where there is one.
    """

    name: str
    settings: dict[str, Any]
    parameters: int | None = None
    validation_loss: float | None = None
    bleu: float | None = None
    chrf: float | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    error: str | None = None


def combinations(recipe: Recipe, vary: Mapping[str, Sequence[Any]]) -> dict[str, Recipe]:
    """The recipe with every combination of the values, by a name that says what is varied; each is checked.

    Args:
        recipe: What all have in common.
        vary: Values of settings, by name.

    Raises:
        InputError: A setting that there is not, a value that it may not have, twice the same, or a combination that
            contradicts itself; the message has the combination.

    Example:
        >>> list(combinations(Recipe(), {"score": ["dot", "none"], "cell": ["gru", "lstm"]}))
        ['score=dot,cell=gru', 'score=dot,cell=lstm', 'score=none,cell=gru', 'score=none,cell=lstm']
    """
    for setting in vary:
        if setting not in Settings.options():
            raise InputError(f"{setting}: no such setting; {nearest(setting, list(Settings.options()))}")
    recipes: dict[str, Recipe] = {}
    for values in itertools.product(*vary.values()):
        chosen = dict(zip(vary, values, strict=True))
        name = ",".join(f"{setting}={value}" for setting, value in chosen.items())
        if name in recipes:
            raise InputError(f"{name} is given twice")
        try:
            recipes[name] = recipe.with_values(chosen)
        except InputError as error:
            raise type(error)(f"{error} (in {name})") from error
    return recipes


def compare(trials: Mapping[str, Recipe], folder: Path) -> Iterator[Trial]:
    """Train each way in a folder of its own, one after another, and score it.

    One that is finished is not trained again, one that was interrupted goes on: to continue a comparison, call this
    again. One that fails has its error in place of a result, and the others go on.

    Args:
        trials: From `combinations`.
        folder: Where; made if need be. `comparison.json` there has all results so far.

    Yields:
        Each result as soon as it is there.

    Raises:
        InputError: There are neither validation nor test pairs; the folder holds a result of another recipe; or
            `torchrun` started several processes, each of which would do all of it.
        KeyboardInterrupt: Ctrl-C; what is done stays done.
    """
    if (world := processes().world) > 1:
        raise InputError(f"one process compares; there are {world}: leave out torchrun")
    for name, recipe in trials.items():
        if recipe.test is None and recipe.validation == "none":
            raise InputError(f"{name}: there are neither validation nor test pairs to compare by: give one of the two")
    earlier = {name: _earlier(folder / _folder_name(name), name, recipe) for name, recipe in trials.items()}
    folder.mkdir(parents=True, exist_ok=True)
    done: list[Trial] = []
    for name, recipe in trials.items():
        trial = earlier[name] or _tried(name, recipe, folder / _folder_name(name))
        done.append(trial)
        _write(folder / COMPARISON, [asdict(each) for each in done])
        yield trial


def _folder_name(name: str) -> str:
    return re.sub(r"[^\w=,.+-]", "_", name) or "as-it-is"


def _earlier(folder: Path, name: str, recipe: Recipe) -> Trial | None:
    """The result of a trial that is finished."""
    path = folder / RESULT
    if not path.exists():
        return None
    try:
        trial = Trial(**json.loads(path.read_text(encoding="utf-8")))
        was = Recipe.load(folder / RECIPE).spelling()
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: damaged ({error}). Remove it, and the trial is made again") from error
    now = recipe.spelling()
    if other := [
        f"{key} was {was.get(key, _BY_ITSELF)} and is {now.get(key, _BY_ITSELF)}"
        for key in {**was, **now}
        if was.get(key) != now.get(key)
    ]:
        raise InputError(f"{folder}: holds {name} made otherwise: {'; '.join(other)}. Give another folder")
    return trial


def _tried(name: str, recipe: Recipe, folder: Path) -> Trial:
    trial = Trial(name, recipe.settings.to_dict())
    try:
        trial = _trained(trial, recipe, folder)
    except Exception as error:  # whatever it is, the other trials go on
        return replace(trial, error=f"{type(error).__name__}: {' '.join(str(error).split())}")
    recipe.save(folder / RECIPE)  # first, since a result is nothing without what it is of
    _write(folder / RESULT, asdict(trial))
    return trial


def _trained(trial: Trial, recipe: Recipe, folder: Path) -> Trial:
    from dikkat.translation.training.suited import fitted
    from dikkat.translation.training.train import train

    learnt, judged = recipe.data()
    settings = fitted(recipe, learnt, validated=judged is not None)[0].settings
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / "training"
    _compile(settings)
    result = train(settings, learnt, judged, folder=run, resume=(run / SETTINGS).exists())
    if result.interrupted:
        raise KeyboardInterrupt
    result.translator.save(folder / "model")
    scored = recipe.test.open("test") if recipe.test is not None else judged
    return replace(
        trial,
        settings=settings.to_dict(),
        parameters=sum(each.numel() for each in result.translator.model.parameters()),
        validation_loss=None if result.best is None else result.best.loss,
        **_quality(result.translator, scored),
        seconds=result.seconds,
        tokens_per_second=result.tokens_per_second,
    )


def _compile(settings: Settings) -> None:
    """Compile the kernels beforehand, so that the first way to train does not look slow for it."""
    model = TranslationModel(settings, len(SPECIAL_TOKENS) + 1, len(SPECIAL_TOKENS) + 1)
    one = len(SPECIAL_TOKENS)
    with torch.autocast("cpu", torch.bfloat16, enabled=settings.precision == "bfloat16"):
        loss = model.loss(collate([([one, one], [one])]), label_smoothing=settings.label_smoothing)
    loss.backward()


def _quality(translator: Translator, pairs: Iterable[Pair] | None) -> dict[str, Any]:
    if pairs is None:
        return {}
    sources, references = zip(*pairs, strict=True)
    scores = evaluate([each.target for each in translator.translate(sources)], references)
    return {"bleu": scores.bleu, "chrf": scores.chrf}


def _write(path: Path, content: Any) -> None:
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
