"""`train`: reads the corpora, checks them and the folder, runs the training loop, and returns its result."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dikkat._engine.pytorch_state import allow_tf32
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
from dikkat.translation.training.display import Bar, Display, Lines, print_resume_point
from dikkat.translation.training.distributed import Group, check_precision, device_type, processes
from dikkat.translation.training.loop import Loop
from dikkat.translation.training.results import Training, TrainingError
from dikkat.translation.training.run_folder import RunFolder
from dikkat.translation.training.signals import Interrupts

__all__ = ["Training", "train"]

_VOCABULARY_PAIRS = 1_000_000  # beyond these, hardly any new word is frequent enough
# Validation pairs whose BLEU selects the best model. Translating one costs as much CPU time as 0.92 training pairs
# (captions, beam of 5, hidden_size 512), so 300 cost 2.9 % of an epoch of 9,500 pairs.
_CRITERION_PAIRS = 300
_SCORED_PAIRS = 500  # validation pairs that choose the length penalty and score the finished translator
_REPORT_INTERVAL = 200_000  # pairs between two lines about reading


def train(
    settings: Settings,
    training: Corpus | Sequence[Pair],
    validation: Corpus | Sequence[Pair] | None = None,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    on_begin: Callable[[Path], object] | None = None,
    tell: Callable[[str], object] | None = None,
    watch: Callable[..., AbstractContextManager[object]] | None = None,
) -> Training:
    """Train a translator with Adam, clipped gradients, a learning-rate schedule and early stopping.

    Only the training pairs determine the vocabularies. The translator gets the weights of the validation with the best
    result, or the mean of the best ones (`average`). The loss of a step is the mean over the target tokens of all its
    batches (`accumulate`) and of all processes. Equal settings, pairs and numbers of threads give equal translators,
    unless `max_minutes` is set.

    With a folder, checkpoints are saved every `checkpoint_steps` steps and at the end of each epoch. `resume` continues
    a stopped training from the newest checkpoint. On one CPU, the result is bit for bit that of an uninterrupted
    training, because `resume` restores the number of threads. If `OMP_NUM_THREADS` or the number of processors prevents
    that, dikkat warns that the last bits may differ. Only the settings `epochs`, `max_minutes`, `patience`,
    `checkpoint_steps`, `keep_epochs` and `length_penalty` may change. To extend a finished training, resume it with
    more epochs or minutes, counted from its start.

    Ctrl-C and the termination signal stop the training after the current step, with a checkpoint. The second signal
    stops it immediately.

    Several processes that `torchrun` starts, on one or more machines, train together on shares of each batch. All need
    the same corpora and the same folder; only the first process writes. If as many processes resume, the results are
    identical bit for bit. With another number of processes the weights are equal up to rounding, if there is no
    dropout. If one process ends, PyTorch ends the others with a connection error.

    Args:
        settings: The settings of the model and the training.
        training: The (source, target) training pairs, a list or a corpus. Duplicates in files are used once.
        validation: The (source, target) pairs for early stopping, which should not be training pairs. If None or empty,
            there is no early stopping, and the translator gets the last weights. After the training, up to 500 evenly
            spread pairs choose the length penalty if the settings have None.
        folder: The folder for checkpoints; None: no checkpoints.
        resume: Whether to continue the folder's training.
        overwrite: Whether to replace an unfinished training in the folder.
        progress: Whether to show a progress bar; None: a bar if standard error is a terminal, else a line on standard
            error for each epoch. False shows nothing.
        on_begin: A function that the writing process calls with the locked folder, after all checks and before the
            first step.
        tell: A function that the writing process calls with lines about the corpora.
        watch: A function that takes the trained module and `first_step`, the number of earlier batches, and returns a
            context for the training in the writing process, such as
            `functools.partial(dikkat.watch, every=20, log="attention.html")`.

    Returns:
        The translator and the training history.

    Raises:
        CorpusError: There are no training pairs, or all are too long.
        TypeError: A corpus is neither a list nor a `Corpus`.
        SettingsError: A precision that the processor does not support, a pair longer than `batch_tokens`, a setting
            that needs validation pairs, a vocabulary too small for all bytes, or an average of more validations than
            there will be.
        TrainingFolderError: The folder is in use, has an unfinished training (without `resume` and `overwrite`), or no
            training or a different one (with `resume`); the message names the difference.
        TrainingDivergedError: The loss, a gradient or a weight became NaN or infinite; the message names the step.
        TrainingMemoryError: A batch needs more memory than is available; the message names the batch's size.
        TrainingStorageError: A checkpoint could not be written. This error and the previous two have the best
            translator so far, if any, in `error.training.translator`.
        KeyboardInterrupt: Ctrl-C before the end of the first validation, without a folder.

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
        raise TrainingFolderError("folder: got None; expected the folder of the training to resume")
    if resume and overwrite:
        raise TrainingFolderError("resume and overwrite (--resume, --overwrite): expected only one of them")
    check_precision(settings.precision, device_type())
    check_size(settings.tokenizer, settings.vocabulary_size)
    if settings.average > settings.epochs and settings.validation_steps is None:
        raise SettingsError(
            f"average: got {settings.average}; expected at most {settings.epochs}, the number of epochs, as each epoch "
            "ends with one validation. Use more epochs, a smaller average, or validation_steps"
        )
    is_first = processes().rank == 0
    run_folder = None if folder is None else RunFolder(Path(folder), writes=is_first)
    # The caller's random state and number of threads are restored afterwards.
    with (
        nullcontext() if run_folder is None else run_folder.locked(),
        torch.random.fork_rng(),
        _numeric_settings(settings.precision),
    ):
        newest = None
        if run_folder is not None and resume:
            newest = run_folder.resumable(settings)
        elif run_folder is not None and not overwrite:
            run_folder.check_free()
        torch.manual_seed(settings.seed)
        validation_corpus = None if validation is None else as_corpus(validation)
        report: Callable[[str], object] = tell if tell is not None and is_first else lambda _: None
        loop, store = _make_loop(settings, as_corpus(training), validation_corpus, run_folder, newest, report)
        if loop.group.rank:
            torch.manual_seed(settings.seed + loop.group.rank)  # so that dropout differs
        if newest is not None:
            loop.restore(newest)
        if run_folder is not None:
            if newest is None:
                translator = loop.translator
                run_folder.begin(translator.source_tokenizer, translator.target_tokenizer, translator.slots)
            if is_first and on_begin is not None:
                on_begin(run_folder.path)
            run_folder.prepare(settings)
        is_shown = progress is not False and is_first
        if is_shown and newest is not None:
            print_resume_point(loop.state)
        display = _make_display(settings, progress, len(loop.batches)) if is_first else Display()
        earlier_batches = loop.state.epoch * len(loop.batches) + loop.state.batch
        watched = watch(loop.module, first_step=earlier_batches) if is_first and watch is not None else nullcontext()
        with watched:
            error = _run_loop(loop, display, Interrupts(verbose=is_shown))
        return _make_result(loop, store, error, report)


@contextmanager
def _numeric_settings(precision: str) -> Iterator[None]:
    threads, is_bfloat16 = torch.get_num_threads(), precision == "bfloat16" and device_type() == "cuda"
    try:
        # With bfloat16 on a GPU, the remaining float32 products, such as recurrent steps, may use TF32.
        with allow_tf32() if is_bfloat16 else nullcontext():
            yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def _make_loop(
    settings: Settings, training: Corpus, validation: Corpus | None, folder: RunFolder | None,
    checkpoint: Path | None, report: Callable[[str], object],
) -> tuple[Loop, Store]:  # fmt: skip
    """Tokenise the corpora, and return a training loop with an untrained translator, and the training pairs."""
    if folder is not None and checkpoint is not None:
        source, target, slots = folder.tokenizers()
        pairs = None
    else:
        report(f"reading {training}, for the vocabularies")
        sample, interval = sample_evenly(training, _VOCABULARY_PAIRS)
        if processes().rank == 0:
            corpus = training.unsplit  # pair numbers as in the file, held-out pairs included
            checked = (sample, interval) if corpus is training else sample_evenly(corpus, _VOCABULARY_PAIRS)
            for doubt in doubts(str(corpus), *checked, str(validation), validation or ()):
                warnings.warn(doubt, UserWarning, stacklevel=4)
        if not sample:
            raise CorpusError(f"training: got no pairs ({training}); expected at least one")
        source, target, slots = _learn_tokenizers(settings, sample)
        pairs = sample if interval == 1 else None
    model = TranslationModel(settings, len(source), len(target))
    translator = Translator(model, settings, source, target, slots=slots)
    if pairs is None:
        report(f"reading {training}, sentence by sentence")
    distinct = not keeps_duplicates(training)
    # `practice` adds copies of pairs that practise slots
    store = _build_store(translator, training, "training", report, pairs=pairs, distinct=distinct, practice=True)
    validated = (
        None if validation is None else _build_store(translator, validation, "validation", report, distinct=False)
    )
    for line in _describe_sizes(translator, store, validated, resumed=checkpoint is not None):
        report(line)
    group = Group(processes())
    batches = partial(
        Batches, batch_size=settings.batch_size, batch_tokens=settings.batch_tokens, buffer=settings.shuffle_buffer,
        rank=group.rank, world=group.world,
    )  # fmt: skip
    uses_bleu = validation is not None and settings.criterion == "bleu"
    loop = Loop(
        translator, batches(store, seed=settings.seed),
        validation=None if validated is None else batches(validated, seed=None),
        sample=sample_evenly(validation or (), _CRITERION_PAIRS)[0] if uses_bleu else [],
        scoring_pairs=[] if validation is None else list(_select_scoring_pairs(translator, validation)),
        fingerprint={
            "vocabulary": [len(source), len(target)],
            "training corpus": _fingerprint(store),
            "validation corpus": None if validated is None else _fingerprint(validated),
        },
        folder=folder, group=group,
    )  # fmt: skip
    return loop, store


def _run_loop(loop: Loop, display: Display, interrupts: Interrupts) -> TrainingError | None:
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


def _make_result(loop: Loop, store: Store, error: TrainingError | None, report: Callable[[str], object]) -> Training:
    state, folder = loop.state, loop.folder
    resumable = folder is not None and folder.newest() is not None and not state.finished
    if error is not None and not state.validations:
        raise error
    if loop.interrupted and not state.validations and loop.validation is not None and not resumable:
        raise KeyboardInterrupt
    loop.keep_best()
    loop.model.to("cpu").eval()
    if loop.scoring_pairs and error is None and state.finished and not loop.interrupted:
        report(f"translating {len(loop.scoring_pairs)} validation pair{'s' * (len(loop.scoring_pairs) != 1)}")
        loop.score_translator()
        if (length_penalty := loop.translator.settings.length_penalty) is not None:
            report(f"length penalty {length_penalty:g}")
    result = Training(
        loop.translator, state.all_epochs(), pairs=len(store) - store.counts.copies, seconds=state.elapsed,
        tokens_per_second=state.all_tokens / state.all_seconds if state.all_seconds else 0.0,
        interrupted=loop.interrupted, resumable=loop.interrupted and resumable, validations=state.validations,
        scores=loop.scores, sketch=store.counts.sketch,
    )  # fmt: skip
    if error is not None:
        error.training = result
        raise error
    return result


def _check_without_validation(settings: Settings) -> None:
    needs_validation = {
        "schedule": settings.schedule == "plateau",
        "criterion": settings.criterion == "bleu",
        "average": settings.average > 1,
        "validation_steps": settings.validation_steps is not None,
    }
    for name, needed in needs_validation.items():
        if needed:
            raise SettingsError(
                f"{name}: got {getattr(settings, name)!r} without validation pairs; expected the default. Give "
                f"validation pairs, or leave {name} at its default"
            )


def _make_display(settings: Settings, progress: bool | None, batches: int) -> Display:
    if sys.stderr.isatty() if progress is None else progress:
        return Bar(settings.epochs, batches, settings.criterion)
    return (
        Lines(settings.criterion, validations=settings.validation_steps is not None) if progress is None else Display()
    )


def _learn_tokenizers(settings: Settings, sample: Sequence[Pair]) -> tuple[Tokenizer, Tokenizer, Slots]:
    slots = Slots.learn(sample)
    sources, targets = (
        [side.text for side in sides] for sides in zip(*(slots.mask(*pair) for pair in sample), strict=True)
    )
    if settings.tied_embeddings == "three":
        source = target = _train_tokenizer(settings, sources + targets, "source or target")
    else:
        source, target = _train_tokenizer(settings, sources, "source"), _train_tokenizer(settings, targets, "target")
    return source, target, slots.known(source, target)


def _train_tokenizer(settings: Settings, sentences: Sequence[str], language: str) -> Tokenizer:
    tokenizer = Tokenizer.train(
        sentences, settings.tokenizer, min_freq=settings.min_freq, vocabulary_size=settings.vocabulary_size
    )
    if len(tokenizer) <= len(SPECIAL_TOKENS):
        raise CorpusError(
            f"no {language} word occurs {settings.min_freq} times, so the vocabulary would be empty: use a min_freq of "
            "1, or a larger corpus"
        )
    return tokenizer


def sample_evenly(pairs: Iterable[Pair], limit: int) -> tuple[list[Pair], int]:
    """Return an evenly spread sample of at most `limit` pairs and its interval k, in one pass.

    The sample has every k-th pair. When it is full, k is doubled and every other pair is removed. If k is 1, the sample
    has all pairs.

    Example:
        >>> sample, interval = sample_evenly(((f"{number}", "") for number in range(10)), limit=4)
        >>> [first for first, _ in sample], interval
        (['0', '4', '8'], 4)
    """
    sample: list[Pair] = []
    interval = 1
    for number, pair in enumerate(pairs):
        if number % interval == 0:
            if len(sample) == limit:
                sample, interval = sample[::2], 2 * interval
                if number % interval:
                    continue
            sample.append(pair)
    return sample, interval


def _describe_sizes(translator: Translator, store: Store, validated: Store | None, *, resumed: bool) -> Iterator[str]:
    """Yield lines about sizes and the device. If `resumed`, they omit the threads, as `print_resume_point` has them."""
    copies, validation_count = store.counts.copies, 0 if validated is None else len(validated)
    added = f" (and {copies:,} copies that practise slots)" if copies else ""
    yield f"{len(store) - copies:,} training pairs{added}, {validation_count:,} validation pairs"
    source, target = len(translator.source_tokenizer), len(translator.target_tokenizer)
    parameters = sum(parameter.numel() for parameter in translator.model.parameters())
    device = "the CPU" if device_type() == "cpu" else torch.cuda.get_device_name()
    yield f"{source:,} source and {target:,} target tokens, {parameters:,} parameters"
    threads = torch.get_num_threads()
    yield f"on {device}" + ("" if resumed else f", {threads} {'thread' if threads == 1 else 'threads'}")


def _build_store(
    translator: Translator, corpus: Corpus, purpose: str, report: Callable[[str], object], **options: Any
) -> Store:
    reported = 0

    def read(pairs: int) -> None:
        nonlocal reported
        if pairs >= reported + _REPORT_INTERVAL:
            reported = pairs
            report(f"{pairs:,} {purpose} pairs read")

    store = Store.build(
        corpus, translator.source_tokenizer, translator.target_tokenizer, slots=translator.slots,
        max_length=translator.settings.max_length, progress=read, **options,
    )  # fmt: skip
    if losses := store.losses():
        warnings.warn(f"{purpose} corpus: {losses}", UserWarning, stacklevel=4)
    return store


def _fingerprint(store: Store) -> dict[str, int | str]:
    fingerprint: dict[str, int | str] = {"pairs": store.counts.read, "sha256": store.counts.digest}
    return fingerprint | ({"copies": store.counts.copies} if store.counts.copies else {})


def _select_scoring_pairs(translator: Translator, validation: Corpus) -> Iterator[Pair]:
    sides = translator.source_tokenizer, translator.target_tokenizer
    for pair in sample_evenly(validation, _SCORED_PAIRS)[0]:
        masked = translator.slots.mask(*pair)
        lengths = [len(side.encode(text.text).ids) for side, text in zip(sides, masked, strict=True)]
        if max(lengths) <= translator.settings.max_length:
            yield pair
