"""Training a translator: what is read, checked and made before the loop, and what comes out behind it."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dikkat._engine.pytorch_state import fast_products
from dikkat.translation.data.batches import Batches
from dikkat.translation.data.corpus import Corpus, Pair, as_corpus, keeps_duplicates
from dikkat.translation.data.doubts import doubts
from dikkat.translation.data.store import Store
from dikkat.translation.decoding.translator import Translator
from dikkat.translation.errors import CorpusError, SettingsError, TrainingFolderError
from dikkat.translation.network.model import TranslationModel
from dikkat.translation.settings import Settings
from dikkat.translation.text.slots import Slots
from dikkat.translation.text.tokenizer import SPECIAL_TOKENS, Tokenizer, check_size
from dikkat.translation.training.display import Bar, Display, Lines, say_where
from dikkat.translation.training.distributed import Group, check_precision, device_type, processes
from dikkat.translation.training.loop import Loop
from dikkat.translation.training.results import Training, TrainingError
from dikkat.translation.training.run_folder import RunFolder
from dikkat.translation.training.signals import Interrupts

__all__ = ["Training", "train"]

_VOCABULARY_PAIRS = 1_000_000  # more show hardly any new word that is frequent enough
# Validation pairs whose BLEU chooses a model. One takes .92 of a training pair's CPU time (captions, beam of 5,
# hidden_size 512): 2.9 % of the time of an epoch of 9,500 pairs, less of larger ones.
_CRITERION_PAIRS = 300
_SCORED_PAIRS = 500  # validation pairs that score the finished translator and choose its length penalty
_SAID = 200_000  # pairs from one line about the reading to the next


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
    `OMP_NUM_THREADS` is set, or there are fewer processors, a warning says that the last bits may differ. The settings
    must be the same, save `epochs`, `max_minutes`, `patience`, `checkpoint_steps` and `length_penalty`: a training that
    has come to its end is made longer by more epochs or minutes, counted from its beginning.

    Ctrl-C, and the signal to end, stop the training after the step at work, with a checkpoint; the second time at once.

    Started by `torchrun` in several processes, on one machine or more, they train together: each has its share of every
    batch. All must see the same corpora and the same folder. The first one alone writes. As many that go on come to
    the same bits; more or fewer come to the same weights to rounding where nothing is dropped at random. Where one
    ends, PyTorch ends the others with an error of the connection.

    Args:
        settings: The model's and the training's.
        training: (source, target) sentences to learn from, a list or a corpus. Of equal pairs of a file one counts.
        validation: (source, target) sentences to stop by; none of them should be a training pair. None, or none at
            all: no validation, no early stopping, and the last weights are kept. At most 500 of them, spread evenly,
            choose the length penalty where the settings have None, once the training has come to its end.
        folder: Where checkpoints are kept; None: nowhere.
        resume: Whether to go on with the training there.
        progress: Whether to show a progress bar; None: where standard error is a terminal. Without one, each epoch is
            a line on standard error; False shows nothing.
        on_begin: Called with the folder once everything is checked and the training begins or goes on, in the process
            that writes, while no other training may write there.
        tell: Called with each line about what is being read and what was found in it, in the process that writes.

    Returns:
        The translator, and how it became one.

    Raises:
        CorpusError: No training pairs, or none that is short enough.
        TypeError: A corpus that is neither a list nor a `Corpus`.
        SettingsError: A precision that the processor does not have, a pair longer than `batch_tokens`, or without
            validation a setting that needs it; a vocabulary too small for all bytes; an average of more validations
            than there will be.
        TrainingFolderError: The folder is another training's, has one that did not come to its end (without
            `resume`), or none or a different one (with it); the message names what differs.
        TrainingDivergedError: The loss, a gradient or a weight became NaN or infinite; the message names the step.
        TrainingMemoryError: A batch needs more memory than there is; the message says how large it is.
        TrainingStorageError: A checkpoint could not be written. These three have the best translator so far, if there
            is one, as `error.training.translator`.
        KeyboardInterrupt: Ctrl-C before the first validation was over, without a folder.

    Example:
        >>> from dikkat.translation import settings_for
        >>> pairs = [("Go.", "Va !"), ("I lost.", "J'ai perdu.")] * 9
        >>> settings = settings_for(pairs, {"epochs": 2, "hidden_size": 8}, validated=False)
        >>> result = train(settings, pairs, progress=False)
        >>> len(result.epochs), result.translator.translate("Go.").source
        (2, 'Go.')
    """
    if validation is None or next(iter(validation), None) is None:
        validation = None
        _check_without_validation(settings)
    if resume and folder is None:
        raise TrainingFolderError("resume needs the folder of the training that is to go on")
    check_precision(settings.precision, device_type())
    check_size(settings.tokenizer, settings.vocabulary_size)
    if settings.average > settings.epochs and settings.validation_steps is None:
        raise SettingsError(
            f"average is {settings.average} and epochs is {settings.epochs}: each epoch ends with one validation, so "
            "that there are not so many models to average. Use more epochs, a smaller average, or validation_steps"
        )
    leads = processes().rank == 0
    run_folder = None if folder is None else RunFolder(Path(folder), writes=leads)
    # The caller's random numbers and threads stay as they were.
    with (
        nullcontext() if run_folder is None else run_folder.locked(),
        torch.random.fork_rng(),
        _same_threads(settings.precision),
    ):
        newest = None
        if run_folder is not None and resume:
            newest = run_folder.resumable(settings)
        elif run_folder is not None:
            run_folder.check_free()
        torch.manual_seed(settings.seed)
        judges = None if validation is None else as_corpus(validation)
        say: Callable[[str], object] = tell if tell is not None and leads else lambda _: None
        loop, pairs = _loop(settings, as_corpus(training), judges, run_folder, newest, say)
        if loop.group.rank:
            torch.manual_seed(settings.seed + loop.group.rank)  # so that dropout differs
        if newest is not None:
            loop.restore(newest)
        if run_folder is not None:
            if newest is None:
                translator = loop.translator
                run_folder.begin(translator.source_tokenizer, translator.target_tokenizer, translator.slots)
            if leads and on_begin is not None:
                on_begin(run_folder.path)
            run_folder.go_on(settings)
        shown = progress is not False and leads
        if shown and newest is not None:
            say_where(loop.state)
        display = _display(settings, progress, len(loop.batches)) if leads else Display()
        fault = _run(loop, display, Interrupts(aloud=shown))
        return _result(loop, pairs, fault, say)


@contextmanager
def _same_threads(precision: str) -> Iterator[None]:
    threads, halves = torch.get_num_threads(), precision == "bfloat16" and device_type() == "cuda"
    try:  # products of float32 that are left, as of a recurrence's steps, need no more digits
        with fast_products() if halves else nullcontext():
            yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def _loop(
    settings: Settings,
    training: Corpus,
    validation: Corpus | None,
    folder: RunFolder | None,
    newest: Path | None,
    say: Callable[[str], object],
) -> tuple[Loop, int]:
    """The loop of an untrained translator over the corpora as token numbers; and the number of training pairs."""
    if folder is not None and newest is not None:
        source, target, slots = folder.texts()
        pairs = None
    else:
        say(f"reading {training}, for the vocabularies")
        sample, interval = evenly(training, _VOCABULARY_PAIRS)
        if processes().rank == 0:
            whole = training.whole  # whose numbers are those of the file, and in which validation is looked at too
            looked = (sample, interval) if whole is training else evenly(whole, _VOCABULARY_PAIRS)
            for doubt in doubts(str(whole), *looked, str(validation), validation or ()):
                warnings.warn(doubt, UserWarning, stacklevel=4)
        source, target, slots = _texts(settings, sample)
        pairs = sample if interval == 1 else None
    model = TranslationModel(settings, len(source), len(target))
    translator = Translator(model, settings, source, target, slots=slots)
    if pairs is None:
        say(f"reading {training}, sentence by sentence")
    distinct = not keeps_duplicates(training)
    learnt = _stored(translator, training, "training", say, pairs=pairs, distinct=distinct, practice=True)
    judged = None if validation is None else _stored(translator, validation, "validation", say, distinct=False)
    for line in _sizes(translator, learnt, judged, resumed=newest is not None):
        say(line)
    group = Group(processes())
    batches = partial(
        Batches,
        batch_size=settings.batch_size,
        batch_tokens=settings.batch_tokens,
        buffer=settings.shuffle_buffer,
        rank=group.rank,
        world=group.world,
    )
    by_bleu = validation is not None and settings.criterion == "bleu"
    loop = Loop(
        translator,
        batches(learnt, seed=settings.seed),
        validation=None if judged is None else batches(judged, seed=None),
        sample=evenly(validation or (), _CRITERION_PAIRS)[0] if by_bleu else [],
        judges=[] if validation is None else list(_judges(translator, validation)),
        fingerprint={
            "vocabulary": [len(source), len(target)],
            "training corpus": _fingerprint(learnt),
            "validation corpus": None if judged is None else _fingerprint(judged),
        },
        folder=folder,
        group=group,
    )
    return loop, len(learnt) - learnt.counts.copies


def _run(loop: Loop, display: Display, interrupts: Interrupts) -> TrainingError | None:
    try:
        with interrupts.watched():
            loop.run(display, interrupts)
    except KeyboardInterrupt:
        if not loop.state.validations:
            raise
        loop.interrupted = True
    except TrainingError as error:
        return error
    finally:
        display.close()
    return None


def _result(loop: Loop, pairs: int, fault: TrainingError | None, say: Callable[[str], object]) -> Training:
    """The result of a training; its error is raised, with the result if there is one."""
    state, folder = loop.state, loop.folder
    resumable = folder is not None and folder.newest() is not None and not state.finished
    if fault is not None and not state.validations:
        raise fault
    if loop.interrupted and not state.validations and loop.validation is not None and not resumable:
        raise KeyboardInterrupt
    loop.keep_best()
    loop.model.to("cpu").eval()
    if loop.judges and fault is None and state.finished and not loop.interrupted:
        say(f"translating {len(loop.judges)} validation pair{'s' * (len(loop.judges) != 1)}")
        loop.score_translator()
        if (chosen := loop.translator.settings.length_penalty) is not None:
            say(f"length penalty {chosen:g}")
    result = Training(
        loop.translator,
        state.all_epochs(),
        pairs,
        state.elapsed,
        state.all_tokens / state.all_seconds if state.all_seconds else 0.0,
        loop.interrupted,
        loop.interrupted and resumable,
        state.validations,
        loop.scores,
    )
    if fault is not None:
        fault.training = result
        raise fault
    return result


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


def _display(settings: Settings, progress: bool | None, batches: int) -> Display:
    if sys.stderr.isatty() if progress is None else progress:
        return Bar(settings.epochs, batches, settings.criterion)
    return (
        Lines(settings.criterion, validations=settings.validation_steps is not None) if progress is None else Display()
    )


def _texts(settings: Settings, sample: Sequence[Pair]) -> tuple[Tokenizer, Tokenizer, Slots]:
    if not sample:
        raise CorpusError("training: got no pairs; expected at least one")
    slots = Slots.learn(sample)
    sources, targets = (
        [side.text for side in sides] for sides in zip(*(slots.mask(*pair) for pair in sample), strict=True)
    )
    if settings.tied_embeddings == "three":
        source = target = _tokenizer(settings, sources + targets, "source or target")
    else:
        source, target = _tokenizer(settings, sources, "source"), _tokenizer(settings, targets, "target")
    return source, target, slots.known(source, target)


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


def evenly(pairs: Iterable[Pair], most: int) -> tuple[list[Pair], int]:
    """A sample spread evenly over the pairs, of at most `most`, in one pass; and its interval k.

    Every k-th pair is kept; when there are too many, k is doubled and every other one of them goes. Where k is 1, the
    sample is all pairs.

    Example:
        >>> sample, interval = evenly(((f"{number}", "") for number in range(10)), most=4)
        >>> [first for first, _ in sample], interval
        (['0', '4', '8'], 4)
    """
    kept: list[Pair] = []
    interval = 1
    for number, pair in enumerate(pairs):
        if number % interval == 0:
            if len(kept) == most:
                kept, interval = kept[::2], 2 * interval
                if number % interval:
                    continue
            kept.append(pair)
    return kept, interval


def _sizes(translator: Translator, learnt: Store, judged: Store | None, *, resumed: bool) -> Iterator[str]:
    """Lines about sizes and device; where the training is resumed, `say_where` has the threads."""
    copies, validated = learnt.counts.copies, 0 if judged is None else len(judged)
    added = f" (and {copies:,} copies that practise slots)" if copies else ""
    yield f"{len(learnt) - copies:,} pairs to learn from{added}, {validated:,} to validate with"
    source, target = len(translator.source_tokenizer), len(translator.target_tokenizer)
    parameters = sum(each.numel() for each in translator.model.parameters())
    place = "the CPU" if device_type() == "cpu" else torch.cuda.get_device_name()
    yield f"{source:,} source and {target:,} target tokens, {parameters:,} parameters"
    threads = torch.get_num_threads()
    yield f"on {place}" + ("" if resumed else f", {threads} {'thread' if threads == 1 else 'threads'}")


def _stored(
    translator: Translator, corpus: Corpus, purpose: str, say: Callable[[str], object], **options: Any
) -> Store:
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
        slots=translator.slots,
        max_length=translator.settings.max_length,
        progress=read,
        **options,
    )
    if losses := store.losses():
        warnings.warn(f"{purpose} corpus: {losses}", UserWarning, stacklevel=4)
    return store


def _fingerprint(store: Store) -> dict[str, int | str]:
    fingerprint: dict[str, int | str] = {"pairs": store.counts.read, "sha256": store.counts.digest}
    return fingerprint | ({"copies": store.counts.copies} if store.counts.copies else {})


def _judges(translator: Translator, validation: Corpus) -> Iterator[Pair]:
    """Validation pairs that score the finished translator, of lengths that are learnt."""
    sides = translator.source_tokenizer, translator.target_tokenizer
    for pair in evenly(validation, _SCORED_PAIRS)[0]:
        masked = translator.slots.mask(*pair)
        lengths = [len(side.encode(text.text).ids) for side, text in zip(sides, masked, strict=True)]
        if max(lengths) <= translator.settings.max_length:
            yield pair
