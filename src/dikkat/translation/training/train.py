"""Training on Lightning. Nothing else of dikkat imports it, so that translating does not wait for it."""

import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import lightning.pytorch as lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

from dikkat.translation.data.batches import Batches
from dikkat.translation.data.corpus import Corpus, Pair, as_corpus
from dikkat.translation.data.store import Store
from dikkat.translation.decoding.translator import Translator
from dikkat.translation.errors import (
    CorpusError,
    SettingsError,
    TrainingDivergedError,
    TrainingError,
    TrainingFolderError,
    TrainingMemoryError,
    TrainingStorageError,
)
from dikkat.translation.network.model import TranslationModel
from dikkat.translation.network.precision import check_precision
from dikkat.translation.settings import Settings
from dikkat.translation.text.tokenizer import SPECIAL_TOKENS, Tokenizer, check_size
from dikkat.translation.training.checkpoints import SafetensorsIO
from dikkat.translation.training.course import Course, Epoch, Validation
from dikkat.translation.training.curves import curves
from dikkat.translation.training.distributed import Processes, processes
from dikkat.translation.training.lesson import Lesson, Steps
from dikkat.translation.training.progress import Bar, Lines, Listener, say_where
from dikkat.translation.training.run_folder import RunFolder, step_of
from dikkat.translation.training.signals import Interrupts
from dikkat.translation.training.threads import kept_threads

__all__ = [
    "Epoch",
    "Training",
    "TrainingDivergedError",
    "TrainingError",
    "TrainingFolderError",
    "TrainingMemoryError",
    "TrainingStorageError",
    "Validation",
    "train",
]

_VOCABULARY_PAIRS = 1_000_000  # more show hardly any new word that is frequent enough
_BLEU_PAIRS = 200  # for the curve alone
_SAID = 200_000  # pairs from one line about the reading to the next


@dataclass(frozen=True)
class Training:
    """A trained translator, and how it became one.

    Attributes:
        translator: with the weights of the best validation, or the mean of the best ones; without validation, and
            where it was interrupted before the first, the last weights.
        epochs: all epochs, in order; the last one as far as it came.
        pairs: training pairs used; longer ones than the settings allow are left out.
        seconds: time spent training and validating, before a stop too.
        tokens_per_second: target tokens, ends included, over the time spent training on them.
        interrupted: whether Ctrl-C, or the signal to end, ended it.
        resumable: whether `resume` goes on from where it was interrupted.
        validations: all validations, in order.
    """

    translator: Translator
    epochs: list[Epoch]
    pairs: int
    seconds: float
    tokens_per_second: float
    interrupted: bool = False
    resumable: bool = False
    validations: Sequence[Validation] = ()


def train(
    settings: Settings,
    training: Corpus | Sequence[Pair],
    validation: Corpus | Sequence[Pair] | None = None,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    on_begin: Callable[[Path], object] | None = None,
    tell: Callable[[str], object] | None = None,
) -> Training:
    """Train a translator: Adam, clipped gradients, a learning rate that rises and falls, early stopping.

    The vocabularies come from the training pairs alone. The weights that are kept are those of the best validation, or
    the mean of the best ones (`average`). Gradients are those of the mean loss of a target token over all the batches
    of a step (`accumulate`) and all processes. The same settings, pairs and number of threads give the same
    translator, unless `max_minutes` is set.

    With a folder, checkpoints are kept there: every `checkpoint_steps` steps and at the end of each epoch. A training
    that was stopped, by whatever, goes on from the newest one with `resume`, and on one CPU the result is bit for bit
    that of a training that was never stopped. For that it goes on with as many threads as before; where
    `OMP_NUM_THREADS` asks for another number, or there are fewer processors, a warning says that the last bits may
    differ. The settings must be the same, save those of which no step depends: `patience` and `checkpoint_steps`; and
    `epochs` and `max_minutes`, unless the schedule is `linear` or `cosine`, which were made for the planned end. A
    validation that only the earlier end called for then counts no more. Curves for TensorBoard are there too; a disk
    too full for them ends them, and not the training.

    Ctrl-C, and the signal to end, stop the training after the step at work, with a checkpoint; the second time at once.

    Started by `torchrun` in several processes, on one machine or more, they train together: each has its share of every
    batch. All must see the same corpora and the same folder. The first one alone writes.

    Args:
        settings: the model's and the training's.
        training: (source, target) sentences to learn from, a list or a corpus. Of equal pairs of a file one counts.
        validation: (source, target) sentences to stop by; none of them should be a training pair. None, or none at
            all: no validation, no early stopping, and the last weights are kept.
        folder: where checkpoints and curves are kept; None: nowhere.
        resume: whether to go on with the training there.
        progress: whether to show a progress bar; None: where standard error is a terminal. Without one, each epoch is
            a line on standard error; False shows nothing.
        on_begin: called with the folder once everything is checked and the training begins or goes on, in the process
            that writes, while no other training may write there.
        tell: called with each line about what is being read and what was found in it, in the process that writes.

    Returns:
        The translator and the course of the training.

    Raises:
        CorpusError: no training pairs, or none that is short enough.
        TypeError: a corpus that is neither a list nor a `Corpus`.
        SettingsError: a precision that the processor does not have, a pair longer than `batch_tokens`, or without
            validation a setting that needs it; a vocabulary too small for all bytes; an average of more validations
            than there will be.
        TrainingFolderError: the folder is another training's, has one that did not come to its end (without
            `resume`), or none or a different one (with it); the message names what differs.
        TrainingDivergedError: the loss, a gradient or a weight became NaN or infinite; the message names the step.
        TrainingMemoryError: a batch needs more memory than there is; the message says how large it is.
        TrainingStorageError: a checkpoint could not be written. These three have the best translator so far, if
            there is one, as `error.training.translator`.
        KeyboardInterrupt: Ctrl-C before the first validation was over, without a folder.
    """
    if validation is None or not _any(validation):
        validation = None
        _check_without_validation(settings)
    if resume and folder is None:
        raise TrainingFolderError("resume needs the folder of the training that is to go on")
    check_precision(settings.precision, _device())
    check_size(settings.tokenizer, settings.vocabulary_size)
    _check_average(settings)
    team = processes()
    place = None if folder is None else RunFolder(Path(folder), writes=team.rank == 0)
    # The caller's random numbers and threads stay as they were.
    with (
        nullcontext() if place is None else place.locked(),
        torch.random.fork_rng(),
        kept_threads(),
        _quiet_lightning(),
    ):
        newest = None
        if place is not None and resume:
            newest = place.resumable(settings)
        elif place is not None:
            place.check_free()
        judges = None if validation is None else as_corpus(validation)
        say = tell if tell is not None and team.rank == 0 else _nothing
        return _train(settings, as_corpus(training), judges, place, newest, team, progress, on_begin, say)


def _train(
    settings: Settings,
    training: Corpus,
    validation: Corpus | None,
    folder: RunFolder | None,
    newest: Path | None,
    team: Processes,
    progress: bool | None,
    on_begin: Callable[[Path], object] | None,
    say: Callable[[str], object],
) -> Training:
    torch.manual_seed(settings.seed)
    say(f"reading {training}, for the vocabularies")
    translator = _untrained(settings, training, folder, newest)
    say(f"reading {training}, sentence by sentence")
    # Who repeats pairs of a list means it; a file's came so by accident.
    learnt = _stored(translator, training, "training", say, distinct=training.fingerprint() is not None)
    judged = None if validation is None else _stored(translator, validation, "validation", say, distinct=False)
    for line in _found(translator, learnt, judged, resumed=newest is not None):
        say(line)
    batches = _batches(learnt, settings, team, settings.seed)
    course, interrupts = Course(), Interrupts(aloud=progress is not False and team.rank == 0)

    def begin() -> list[Listener]:
        if folder is not None and newest is None:
            folder.begin(translator.source_tokenizer, translator.target_tokenizer)
        if folder is not None and folder.writes and on_begin is not None:
            on_begin(folder.path)
        if folder is not None:
            folder.go_on(settings)
        if newest is not None and progress is not False and team.rank == 0:
            say_where(course)
        return _listeners(settings, folder, newest, progress, len(batches))

    steps = Steps(batches, course, epochs=settings.epochs, accumulate=settings.accumulate, world=team.world)
    lesson = Lesson(
        translator,
        course,
        planned=settings.epochs * -(-len(batches) // settings.accumulate),
        validation=None if judged is None else _batches(judged, settings, team, None),
        sample=[] if validation is None else _sample_for_bleu(settings, validation, folder),
        begin=begin,
        interrupts=interrupts,
        fingerprint={
            "vocabulary": [len(translator.source_tokenizer), len(translator.target_tokenizer)],
            "training corpus": _fingerprint(learnt),
            "validation corpus": None if judged is None else _fingerprint(judged),
        },
        folder=folder,
    )
    if team.rank:
        torch.manual_seed(settings.seed + team.rank)  # so that dropout differs
    trainer = _trainer(team)
    try:
        with interrupts.watched():
            fault = _fit(trainer, lesson, steps, newest)
    finally:
        lesson.close()
    resumable = folder is not None and folder.newest() is not None and not course.finished
    if fault is not None and not course.validations:
        raise fault
    if lesson.interrupted and not course.validations and judged is not None and not resumable:
        raise KeyboardInterrupt
    lesson.keep_best()
    translator.model.to("cpu").eval()
    rate = course.all_tokens / course.all_seconds if course.all_seconds else 0.0
    result = Training(
        translator,
        course.all_epochs(),
        len(learnt),
        course.elapsed,
        rate,
        lesson.interrupted,
        lesson.interrupted and resumable,
        course.validations,
    )
    if fault is not None:
        fault.training = result
        raise fault
    return result


def _fit(trainer: lightning.Trainer, lesson: Lesson, steps: Steps, newest: Path | None) -> TrainingError | None:
    """Train; after a second Ctrl-C or a fault, go on with what there is. The fault comes back."""
    try:
        trainer.fit(lesson, steps, ckpt_path=newest)
    except (KeyboardInterrupt, SystemExit):  # Lightning makes the one into the other
        if not trainer.interrupted or not lesson.course.validations:
            raise KeyboardInterrupt from None
        lesson.interrupted = True
    except TrainingError as error:
        return error
    except (RuntimeError, MemoryError) as error:
        if lesson.batch is None or not _lacks_memory(error):
            raise
        fault = lesson.memory_error(lesson.batch)
        fault.__cause__ = error
        return fault
    return None


def _lacks_memory(error: RuntimeError | MemoryError) -> bool:
    # On a CPU PyTorch has no type of its own for it.
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "DefaultCPUAllocator" in str(error)


def _check_without_validation(settings: Settings) -> None:
    needs = {
        "schedule": settings.schedule == "plateau",
        "criterion": settings.criterion == "bleu",
        "average": settings.average > 1,
        "validation_steps": settings.validation_steps is not None,
    }
    for name, needed in needs.items():
        if needed:
            raise SettingsError(
                f"{name} is {getattr(settings, name)!r}, and there are no validation pairs, which it needs: give some, "
                f"or leave {name} at its default"
            )


def _check_average(settings: Settings) -> None:
    if settings.average > settings.epochs and settings.validation_steps is None:
        raise SettingsError(
            f"average is {settings.average} and epochs is {settings.epochs}: each epoch ends with one validation, so "
            "that there are not so many models to average. Use more epochs, a smaller average, or validation_steps"
        )


def _listeners(
    settings: Settings, folder: RunFolder | None, newest: Path | None, progress: bool | None, batches: int
) -> list[Listener]:
    if processes().rank:
        return []
    listeners: list[Listener] = []
    if sys.stderr.isatty() if progress is None else progress:
        listeners.append(Bar(settings.epochs, batches, settings.criterion))
    elif progress is None:
        listeners.append(Lines(settings.criterion, validations=settings.validation_steps is not None))
    if folder is not None:
        listeners += curves(folder.curves, 0 if newest is None else step_of(newest))
    return listeners


def _batches(store: Store, settings: Settings, team: Processes, seed: int | None) -> Batches:
    return Batches(
        store,
        settings.batch_size,
        seed,
        batch_tokens=settings.batch_tokens,
        buffer=settings.shuffle_buffer,
        rank=team.rank,
        world=team.world,
    )


def _untrained(
    settings: Settings, training: Iterable[Pair], folder: RunFolder | None, newest: Path | None
) -> Translator:
    if folder is not None and newest is not None:
        source, target = folder.tokenizers()
    else:
        source, target = _tokenizers(settings, training)
    return Translator(TranslationModel(settings, len(source), len(target)), settings, source, target)


def _tokenizers(settings: Settings, training: Iterable[Pair]) -> tuple[Tokenizer, Tokenizer]:
    sample = evenly(training, _VOCABULARY_PAIRS)
    if not sample:
        raise CorpusError("there are no training pairs; there must be at least one")
    sides = [[pair[side] for pair in sample] for side in (0, 1)]
    if settings.tied_embeddings == "three":
        both = _tokenizer(settings, sides[0] + sides[1], "source or target")
        return both, both
    source, target = sides
    return _tokenizer(settings, source, "source"), _tokenizer(settings, target, "target")


def _tokenizer(settings: Settings, sentences: Sequence[str], language: str) -> Tokenizer:
    tokenizer = Tokenizer.train(
        sentences, settings.tokenizer, min_freq=settings.min_freq, vocabulary_size=settings.vocabulary_size
    )
    if len(tokenizer) <= len(SPECIAL_TOKENS):
        raise CorpusError(
            f"no {language} word occurs {settings.min_freq} times, so that none would be learnt: use a min_freq of 1, "
            "or a larger corpus"
        )
    return tokenizer


def evenly(pairs: Iterable[Pair], most: int) -> list[Pair]:
    """At most so many of the pairs, as far from each other as they can be, in one pass and the memory of those alone.

    Every k-th pair is kept; when there are too many, k is doubled and every other one of them goes.

    Args:
        pairs: any number, read one by one.
        most: at least 1.

    Returns:
        All of them, or between half as many as are allowed and as many.

    Example:
        >>> [first for first, _ in evenly(((f"{number}", "") for number in range(10)), most=4)]
        ['0', '4', '8']
    """
    kept: list[Pair] = []
    apart = 1
    for number, pair in enumerate(pairs):
        if number % apart == 0:
            if len(kept) == most:
                kept, apart = kept[::2], 2 * apart
                if number % apart:
                    continue
            kept.append(pair)
    return kept


def _nothing(_: str) -> None:
    """For those who want no lines."""


def _found(translator: Translator, learnt: Store, judged: Store | None, *, resumed: bool) -> Iterator[str]:
    """What is about to be trained, on what, and where; the threads of a resumed training are told with its place."""
    yield f"{len(learnt):,} pairs to learn from, {0 if judged is None else len(judged):,} to validate with"
    source, target = len(translator.source_tokenizer), len(translator.target_tokenizer)
    parameters = sum(each.numel() for each in translator.model.parameters())
    place = "the CPU" if _device() == "cpu" else torch.cuda.get_device_name()
    threads = "" if resumed else f", {torch.get_num_threads()} threads"
    yield f"{source:,} source and {target:,} target tokens, {parameters:,} parameters; on {place}{threads}"


def _stored(
    translator: Translator, corpus: Corpus, purpose: str, say: Callable[[str], object], *, distinct: bool
) -> Store:
    """A corpus as token numbers."""
    said = 0

    def read(pairs: int) -> None:
        nonlocal said
        if pairs >= said + _SAID:
            said = pairs
            say(f"{pairs:,} {purpose} pairs read")

    store = Store.build(
        corpus,
        translator.source_tokenizer,
        translator.target_tokenizer,
        max_length=translator.settings.max_length,
        distinct=distinct,
        progress=read,
    )
    if losses := store.losses():
        warnings.warn(f"{purpose} corpus: {losses}", UserWarning, stacklevel=4)
    return store


def _fingerprint(store: Store) -> dict[str, int | str]:
    """By what a corpus is known again."""
    return {"pairs": store.counts.read, "sha256": store.counts.digest}


def _any(pairs: Iterable[Pair]) -> bool:
    return next(iter(pairs), None) is not None


def _sample_for_bleu(settings: Settings, validation: Corpus, folder: RunFolder | None) -> list[Pair]:
    """All pairs to choose the best model by; some for the curve; none where there is no curve."""
    if settings.criterion == "bleu":
        return list(validation)
    return [] if folder is None else evenly(validation, _BLEU_PAIRS)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _trainer(team: Processes) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator={"cuda": "gpu", "cpu": "cpu"}[_device()],
        devices=team.local,
        num_nodes=team.world // team.local,
        strategy=DDPStrategy() if team.world > 1 else "auto",
        plugins=[SafetensorsIO()],
        max_epochs=1,  # that Lightning knows of; see `lesson`
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Lightning's remarks on devices, on services to subscribe to, and on its own use of PyTorch are not for users."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Lightning 2.6 walks trees in a way that PyTorch 2.13 wants spelled differently.
            warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated", category=FutureWarning)
            yield
    finally:
        logger.setLevel(level)
