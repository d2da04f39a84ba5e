"""`continue_training`: a trained translator learns corrections, and keeps its old translations."""

import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dikkat.errors import InputError
from dikkat.translation.confidence import ConfidenceModel
from dikkat.translation.data.batches import Batches
from dikkat.translation.data.corpus import Corpus, Pair, as_corpus
from dikkat.translation.data.splits import normalise, sketch
from dikkat.translation.data.store import Store, TokenPair
from dikkat.translation.decoding.correction_bandwidth import fit_memory
from dikkat.translation.decoding.translation import Translation
from dikkat.translation.decoding.translator import Translator
from dikkat.translation.errors import CorpusError, SettingsError
from dikkat.translation.formats.origin import Origin
from dikkat.translation.network.model import Batch, TranslationModel
from dikkat.translation.settings import Settings
from dikkat.translation.text.capitals import sentences_of
from dikkat.translation.text.special_tokens import UNKNOWN
from dikkat.translation.training.display import Display
from dikkat.translation.training.distributed import Group, check_precision, device_type, processes
from dikkat.translation.training.loop import Loop, corpus_bleu
from dikkat.translation.training.signals import Interrupts
from dikkat.translation.training.state import Validation
from dikkat.translation.training.train import sample_evenly

MOST_LOST = 0.3
"""The largest loss of BLEU on old validation pairs."""

_OLD_SHARE = 2  # old pairs per correction in each epoch
_FEWEST = 256  # pairs of an epoch
_MOST_COPIES = 2  # of a correction in an epoch
_MEASURED = 2  # epochs from one measurement to the next: translating takes as long as an epoch
_GUARD_PAIRS = 500  # old validation pairs whose translations are scored
_NEW_SHARES = (0.5, 0.25)  # of the last weights in their means with the old weights
_VALUES: dict[str, Any] = {  # settings that options may change
    "epochs": 10, "schedule": "linear", "warmup_steps": 10, "batch_size": 32, "dropout": 0.1,
    "r_drop": 0.0, "max_minutes": None,
}  # fmt: skip
_FEW = 50  # corrections, below which a smaller learning rate suffices
_LEARNING_RATES = {True: 7e-4, False: 1.5e-3}  # for few and for many corrections
_FIXED: dict[str, Any] = {  # settings without effect
    "batch_tokens": None, "accumulate": 1, "validation_steps": None, "criterion": "bleu", "average": 1,
    "patience": 1_000_000, "checkpoint_steps": 1_000, "keep_epochs": False,
    "shuffle_buffer": 1_000_000,
}  # fmt: skip


def continue_training(
    translator: Translator,
    corrections: Corpus | Sequence[Pair],
    pairs: Corpus | Sequence[Pair],
    validation: Corpus | Sequence[Pair],
    *,
    values: Mapping[str, Any] | None = None,
    tell: Callable[[str], object] | None = None,
) -> "Continuation":
    """Train a translator on corrections and old pairs, without changing the old translator.

    Each epoch has all corrections and at least twice as many old pairs, other ones in each epoch. After every second
    epoch, dikkat translates the corrections and up to 500 old validation pairs. The result has the weights with the
    most right corrections whose BLEU on the old validation pairs is at most 0.3 lower than before. If no weights reach
    this, dikkat tries the mean of the old and the last weights, and then a mean with a quarter of the last weights
    (Wortsman and others, "Robust fine-tuning of zero-shot models", 2022, section 3). The training ends early if all
    corrections are right, or after `max_minutes`, which is not inherited from the translator's settings.

    The corrections in the translator's memory are learnt too. The memory of the result has the corrections that its
    weights have not learnt, with a bandwidth that is fitted to the old validation pairs. dikkat warns if they lower the
    BLEU on these pairs by more than 0.3. The translator's settings of the vocabulary and the network
    stay. A word vocabulary gets a row for each new word of the corrections. At first, the new words together have a
    tenth of the probability of unknown words.

    Args:
        translator: The trained translator; its weights are float32.
        corrections: The (source, target) pairs to learn, after those in the memory. If several have the same source
            sentence, the last one counts.
        pairs: Old training pairs. Those that a correction translates differently are left out.
        validation: Old validation pairs. Those with the source sentence of a correction are left out.
        values: Settings of the training by name, such as `epochs` or `learning_rate`.
        tell: A function that is called with lines about the progress.

    Returns:
        The new translator, with the settings of the old one, and the scores before and after.

    Raises:
        CorpusError: There are no corrections, old pairs or validation pairs, or all are too long.
        InputError: Weights in int8; several processes; the BLEU of old validation pairs fell too far in all epochs,
            and with means of weights.
        SettingsError: An unknown setting, a value that is not allowed, a setting of the vocabulary or the network with
            a value that differs from the translator's, or a setting without effect.
        KeyboardInterrupt: Ctrl-C.

    Example:
        >>> from dikkat.translation import phrasebook
        >>> old, held_out = phrasebook.split()
        >>> result = continue_training(translator, [("Go.", "Va !")], old[:9], held_out[:3], values={"epochs": 1})
        >>> result.translator.translate("Go.").target
        'Va !'
    """
    report = tell or (lambda _: None)
    check_trainable(translator, "translator")
    if processes().world > 1:
        raise InputError(f"processes: got {processes().world}; expected one, as a continued training is short")
    new_pairs = _distinct([*translator.memory.pairs, *as_corpus(corrections)])
    rate = _LEARNING_RATES[len(new_pairs) < _FEW]
    settings = _make_settings(translator.settings, {"learning_rate": rate, **(values or {})})
    check_precision(settings.precision, device_type())
    targets = {normalise(source): target for source, target in new_pairs}
    old_pairs = _sample_old(as_corpus(pairs), targets, settings.epochs * _epoch_sizes(len(new_pairs))[1], report)
    random.Random(settings.seed).shuffle(old_pairs)
    guard = sample_evenly((pair for pair in validation if normalise(pair[0]) not in targets), _GUARD_PAIRS)[0]
    if not guard:
        raise CorpusError("validation: got no pairs without a correction; expected old validation pairs")
    before, _ = _measure(translator, guard, new_pairs)
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        grown = _grow(translator, settings, new_pairs)
        taught = new_pairs if translator.source_tokenizer.several else [*new_pairs, *_split(new_pairs)]
        mixture = _Mixture(_tokenize(grown, taught, "corrections"), _tokenize(grown, old_pairs, "old pairs"), settings)
        loop = _Loop(grown, mixture, _tokenize(grown, guard, "validation"), guard, new_pairs, before, report)
        added = [
            len(getattr(grown, side)) - len(getattr(translator, side))
            for side in ("source_tokenizer", "target_tokenizer")
        ]
        report(
            f"{len(new_pairs):,} corrections, {before.right:,} of them already right; {len(old_pairs):,} old pairs; "
            f"BLEU {before.bleu:.2f} of {len(guard):,} old validation pairs; {added[0]:,} new source words and "
            f"{added[1]:,} new target words"
        )
        interrupts = Interrupts()
        with interrupts.watched():
            loop.run(Display(), interrupts)
        if loop.interrupted:
            raise KeyboardInterrupt
        loop.keep_best()
    measured = loop.kept
    result = replace(grown, model=loop.model.to("cpu").eval(), settings=translator.settings)
    result, measured = _store_unlearnt(result, measured, guard, new_pairs, before.bleu - MOST_LOST, report)
    confidence = ConfidenceModel.fit(measured.translations[: len(guard)], [target for _, target in guard])
    origin = _make_origin(translator.origin, loop, measured.scores.bleu, new_pairs, len(guard))
    result = replace(result, confidence_model=confidence, origin=origin)
    counts = len(new_pairs), len(guard), len(loop.state.epochs)
    return Continuation(result, before, measured.scores, *counts, loop.state.elapsed)


class Measurement(NamedTuple):
    """The BLEU of old validation pairs, and the number of right corrections."""

    bleu: float
    right: int


class _Measured(NamedTuple):
    """The scores of a translator, and its translations of the old validation pairs and then of the corrections."""

    scores: Measurement
    translations: list[Translation]


@dataclass(frozen=True)
class Continuation:
    """The result of `continue_training`.

    Attributes:
        translator: The new translator.
        before: The scores of the old translator.
        after: The scores of the new translator.
        corrections: The number of corrections.
        validation_pairs: The number of old validation pairs whose BLEU was measured.
        epochs: The number of epochs.
        seconds: The time of training and validation.
    """

    translator: Translator
    before: Measurement
    after: Measurement
    corrections: int
    validation_pairs: int
    epochs: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.after.right:,} of {self.corrections:,} corrections right ({self.before.right:,} before), BLEU "
            f"{self.after.bleu:.2f} of {self.validation_pairs:,} old validation pairs ({self.before.bleu:.2f} before); "
            f"{self.epochs} epoch{'s' * (self.epochs != 1)}, {self.seconds:.0f} s"
        )


def check_trainable(translator: Translator, name: str) -> None:
    """Raise `InputError` for weights in int8."""
    if not next(translator.model.parameters()).requires_grad:
        raise InputError(f"{name}: got int8 weights, which cannot be trained; expected the model before `quantize`")


class _Loop(Loop):
    """A training that keeps the weights with the most right corrections and a sufficient BLEU."""

    def __init__(
        self, translator: Translator, batches: Batches, guard_tokens: Sequence[TokenPair], guard: Sequence[Pair],
        corrections: Sequence[Pair], before: Measurement, report: Callable[[str], object],
    ) -> None:  # fmt: skip
        super().__init__(
            translator, batches, validation=Batches(guard_tokens, translator.settings.batch_size, None), sample=guard,
            scoring_pairs=[], fingerprint={}, folder=None, group=Group(processes()),
        )  # fmt: skip
        self._corrections, self._before, self._report = corrections, before, report
        self._latest, self._highest = _Measured(before, []), -math.inf
        self._old = self._copy_weights()
        self._kept: tuple[_Measured, dict[str, Tensor]] | None = None

    @property
    def kept(self) -> _Measured:
        """The scores and translations of the kept weights; raises if no weights keep the BLEU."""
        if self._kept is None:
            raise InputError(
                f"learning_rate: got {self.settings.learning_rate:g}; expected less, or other old pairs: the BLEU of "
                f"old validation pairs fell from {self._before.bleu:.2f} to {self._highest:.2f} or less, by more than "
                f"{MOST_LOST}, also with a quarter of the new weights"
            )
        return self._kept[0]

    def keep_best(self) -> None:
        """Load the kept weights, or a mean of old and last weights that keeps the BLEU."""
        last = self._copy_weights()
        for share in _NEW_SHARES:
            if self._kept is None:
                mean = {name: torch.lerp(tensor, last[name], share) for name, tensor in self._old.items()}
                self.model.load_state_dict(mean)
                self._consider(_measure(self.translator, self.sample, self._corrections), f"{share:.0%} of new weights")
        if self.kept and self._kept:
            self.model.load_state_dict(self._kept[1])

    def _copy_weights(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def _validate(self, batches: Batches) -> None:
        epoch = self.state.epoch + 1
        if epoch % _MEASURED == 0 or epoch == self.settings.epochs or self._time_is_over:
            super()._validate(batches)

    def _bleu_of_sample(self) -> float:
        self._latest = _measure(self.translator, self.sample, self._corrections)
        return self._latest.scores.bleu

    def _keep_weights(self, validation: Validation) -> None:
        self.state.validations.append(validation)
        self._consider(self._latest, f"epoch {self.state.epoch + 1}")

    def _consider(self, measured: _Measured, name: str) -> None:
        """Keep the current weights if they are better than those kept, and report their scores."""
        bleu, right = measured.scores
        self._highest = max(self._highest, bleu)
        holds = bleu >= self._before.bleu - MOST_LOST
        if holds and (self._kept is None or (right, bleu) > self._kept[0].scores[::-1]):
            self._kept = measured, self._copy_weights()
        self._report(
            f"{name}: {right:,} of {len(self._corrections):,} corrections right, BLEU {bleu:.2f} of old validation "
            f"pairs{'' if holds else ', which is too low'}"
        )

    def _is_over(self) -> bool:
        is_learnt = self._kept is not None and self._kept[0].scores.right == len(self._corrections)
        return is_learnt or super()._is_over()


class _Mixture(Batches):
    """Batches of all corrections and of some old pairs, other ones in each epoch."""

    def __init__(self, new: Sequence[TokenPair], old: Sequence[TokenPair], settings: Settings) -> None:
        self._new, self._old, self._settings = list(new), old, settings
        super().__init__(self._pairs(0), settings.batch_size, settings.seed)

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of epoch `number`, from batch `first` on."""
        batches = Batches(self._pairs(number), self._settings.batch_size, self._settings.seed)
        yield from batches.epoch(number, first)

    def _pairs(self, number: int) -> list[TokenPair]:
        copies, old = _epoch_sizes(len(self._new))
        first = number * old % len(self._old)
        return [*copies * self._new, *islice(cycle(self._old), first, first + old)]


def _epoch_sizes(corrections: int) -> tuple[int, int]:
    """Return the copies of each correction, and the number of old pairs, in an epoch.

    Few corrections have copies, so that an epoch has several batches.
    """
    copies = min(_MOST_COPIES, math.ceil(_FEWEST / ((1 + _OLD_SHARE) * corrections)))
    return copies, max(_OLD_SHARE * copies * corrections, _FEWEST - copies * corrections)


def _measure(translator: Translator, guard: Sequence[Pair], corrections: Sequence[Pair]) -> _Measured:
    translations = translator.translate(source for source, _ in [*guard, *corrections])
    written = [result.target for result in translations]
    targets = [target for _, target in corrections]
    right = sum(map(_is_right, written[len(guard) :], targets))
    return _Measured(
        Measurement(corpus_bleu(written[: len(guard)], [target for _, target in guard]), right), translations
    )


def _make_settings(old: Settings, values: Mapping[str, Any]) -> Settings:
    options, settings = Settings.options(), Settings.from_dict({**old.to_dict(), **_VALUES, **_FIXED, **values})
    for name, value in values.items():
        was = getattr(old, name)
        if options[name].group in ("Vocabulary", "Network") and value != was:
            raise SettingsError(f"{name}: got {value}; expected {was}, as in the trained model. Remove the setting")
        if name in _FIXED:
            raise SettingsError(f"{name}: got {value}; a continued training does not use it. Remove the setting")
    return settings


def _store_unlearnt(
    translator: Translator, measured: _Measured, guard: Sequence[Pair], corrections: Sequence[Pair], lowest: float,
    report: Callable[[str], object],
) -> tuple[Translator, _Measured]:  # fmt: skip
    """Store unlearnt corrections; return the translator with the memory, and its scores.

    dikkat warns if the memory lowers the BLEU of old validation pairs below `lowest`.
    """
    translations = measured.translations[len(guard) :]
    unlearnt = [
        (source, target)
        for (source, target), translation in zip(corrections, translations, strict=True)
        if not _is_right(translation.target, target)
    ]
    result = replace(translator, memory=fit_memory(translator, unlearnt or guard[1::2], guard[::2]))
    for message in [f"{source!r}: {text}" for source, target in unlearnt for text in _correct(result, source, target)]:
        report(message)
    if count := len(result.memory):
        report(f"{count:,} corrections are not in the weights, but in the memory")
        measured = _measure(result, guard, corrections)
    if measured.scores.bleu < lowest:
        warnings.warn(
            f"corrections: got {len(result.memory):,} that are stored, with BLEU {measured.scores.bleu:.2f} of old "
            f"validation pairs; expected {lowest:.2f} or more. Remove corrections that you do not need",
            UserWarning,
            stacklevel=3,
        )
    return result, measured


def _correct(translator: Translator, source: str, target: str) -> list[str]:
    try:
        return translator.correct(source, target)
    except InputError as error:
        return [str(error)]


def _is_right(text: str, target: str) -> bool:
    return " ".join(text.split()) == " ".join(target.split())


def _distinct(corrections: Iterable[Pair]) -> list[Pair]:
    """Return the corrections, the last one of each source sentence, and warn about contradictions."""
    latest: dict[str, Pair] = {}
    contradicted: list[str] = []
    for source, target in corrections:
        key = normalise(source)
        if key in latest and latest[key][1] != target:
            contradicted.append(source)
        latest[key] = source, target
    if not latest:
        raise CorpusError("corrections: got no pairs, and none in the memory of the model; expected at least one")
    if contradicted:
        warnings.warn(
            f"corrections: {len(contradicted):,} of them left out, because a later one translates the same "
            f"source sentence differently, such as {contradicted[0]!r}",
            UserWarning,
            stacklevel=3,
        )
    return list(latest.values())


def _sample_old(pairs: Corpus, targets: Mapping[str, str], count: int, report: Callable[[str], object]) -> list[Pair]:
    left_out = 0

    def others() -> Iterator[Pair]:
        nonlocal left_out
        for pair in pairs:
            if targets.get(normalise(pair[0]), pair[1]) != pair[1]:
                left_out += 1
            else:
                yield pair

    sample, _ = sample_evenly(others(), count)
    if not sample:
        raise CorpusError(f"training: got no pairs without a correction ({pairs}); expected old training pairs")
    if left_out:
        report(f"{pairs}: {left_out:,} pairs left out, because a correction translates them differently")
    return sample


def _split(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Yield the sentences of pairs with several, as `translate` translates them one by one."""
    for pair in pairs:
        sources, targets = (sentences_of(side)[0] for side in pair)
        if len(sources) == len(targets) > 1:
            yield from zip(sources, targets, strict=True)


def _tokenize(translator: Translator, pairs: Sequence[Pair], name: str) -> list[TokenPair]:
    store = Store.build(
        pairs, translator.source_tokenizer, translator.target_tokenizer, slots=translator.slots,
        max_length=translator.settings.max_length, distinct=False,
    )  # fmt: skip
    if losses := store.losses():
        warnings.warn(f"{name}: {losses}", UserWarning, stacklevel=3)
    return [store[row] for row in range(len(store))]


def _grow(translator: Translator, settings: Settings, corrections: Sequence[Pair]) -> Translator:
    """Return a copy of a translator with rows for the words of the corrections."""
    masked = [translator.slots.mask(*pair) for pair in corrections]
    sides = [[pair[side].text for pair in masked] for side in (0, 1)]
    if settings.tied_embeddings == "three":
        sides = [sides[0] + sides[1]] * 2
    source = translator.source_tokenizer.extended(sides[0])
    target = translator.target_tokenizer.extended(sides[1])
    model, old = TranslationModel(settings, len(source), len(target)), translator.model.state_dict()
    model.load_state_dict({name: _grow_rows(old[name], len(new)) for name, new in model.state_dict().items()})
    return Translator(model, settings, source, target, origin=translator.origin, slots=translator.slots)


def _grow_rows(tensor: Tensor, rows: int) -> Tensor:
    """Return a table with more rows, which are those of unknown words.

    Together, new words get a tenth of the probability of unknown words: a bias is lower by the logarithm.
    """
    count = rows - len(tensor)
    if count == 0:
        return tensor.clone()
    added = tensor[UNKNOWN].expand(count, *tensor.shape[1:])
    return torch.cat([tensor, added - math.log(10 * count) if tensor.ndim == 1 else added])


def _make_origin(old: Origin | None, loop: _Loop, bleu: float, corrections: Sequence[Pair], sentences: int) -> Origin:
    """Return the origin of the old translator, with the corrections and the new scores."""
    now = Origin.now()
    hashes = np.frombuffer(bytes.fromhex((old and old.training_hashes) or ""), "<u4").astype(np.uint32)
    return replace(
        old or now, date=now.date, version=now.version, validation_sentences=sentences, validation_bleu=bleu,
        validation_loss=min(validation.loss for validation in loop.state.validations),
        pairs=None if old is None or old.pairs is None else old.pairs + len(corrections),
        training_hashes=sketch(hashes, (source for source, _ in corrections)).astype("<u4").tobytes().hex(),
        test=None, bleu=None, bleu_signature=None, chrf=None, chrf_signature=None,
    )  # fmt: skip
