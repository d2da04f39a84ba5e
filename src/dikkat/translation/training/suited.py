"""Settings that suit a corpus, where nobody chose any: by its pairs, and by how many of its words occur once."""

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch

from dikkat.translation.data.corpus import Pair
from dikkat.translation.network.model import TranslationModel, collate
from dikkat.translation.settings import Settings
from dikkat.translation.text.tokenizer import SPECIAL_TOKENS

# docs/recipes.md has the trials that all of these come from.
_MANY = 10_000  # pairs from which on the larger network is worth its time
_RARE = 0.06  # share of the words that occur once, from which on words are better cut into parts
_FEW = 1_000  # pairs that are too few to learn parts of words from, or to leave out a word
_STEPS = 2_500  # of a training on few pairs, which takes more epochs for them
_SMALL_EPOCHS = (30, 200)  # of such a training, at least and at most
_WORDS = 9_000_000  # of the target, of a training on many pairs: about an hour of one core
_LARGE_EPOCHS = (5, 20)  # of such a training
_LARGE: dict[str, Any] = {
    "tokenizer": "bpe", "vocabulary_size": 5_000, "hidden_size": 512, "dropout": 0.4, "label_smoothing": 0.1,
    "learning_rate": 1e-3, "warmup_steps": 300, "criterion": "bleu", "average": 3, "patience": 10,
}  # fmt: skip
_SMALL: dict[str, Any] = {
    "dropout": 0.4, "label_smoothing": 0.1, "r_drop": 2.0, "batch_size": 32, "average": 3, "patience": 8,
}  # fmt: skip
_PARTS: dict[str, Any] = {"tokenizer": "bpe", "vocabulary_size": 2_000}


@dataclass(frozen=True)
class Sample:
    """Pairs of a corpus, spread evenly.

    Attributes:
        kept: These pairs.
        pairs: How many the corpus has, about.
    """

    kept: Sequence[Pair]
    pairs: int

    @classmethod
    def of(cls, kept: Sequence[Pair], interval: int) -> Self:
        """The sample of which `evenly` kept these pairs, one of so many."""
        return cls(kept, len(kept) * interval)

    @cached_property
    def words(self) -> tuple[Counter[str], Counter[str]]:
        """How often each word occurs, in the source and in the target."""
        source, target = (
            Counter(word for pair in self.kept for word in re.findall(r"\w+|[^\w\s]", pair[side].lower()))
            for side in (0, 1)
        )
        return source, target

    @property
    def once(self) -> float:
        """The share of the words that occur once, of the side that has more of them."""
        return max(sum(n == 1 for n in words.values()) / max(1, words.total()) for words in self.words)


def suited(sample: Sample, given: Mapping[str, Any], *, validated: bool = True) -> Settings:
    """The settings for a corpus.

    Args:
        sample: Of its pairs to learn from.
        given: Settings that somebody chose, which stay.
        validated: Whether there are validation pairs, without which nothing is chosen by them.

    Example:
        >>> sample = Sample([("go", "va"), ("go home", "va chez toi")] * 300, 600)
        >>> settings = suited(sample, {"dropout": 0.1})
        >>> settings.tokenizer, settings.dropout, settings.epochs
        ('word', 0.1, 132)
    """
    if sample.pairs >= _MANY:
        words = sample.pairs * sample.words[1].total() / len(sample.kept)
        values = _LARGE | {"epochs": _within(round(_WORDS / words), _LARGE_EPOCHS)}
    else:
        steps = math.ceil(max(1, sample.pairs) / _SMALL["batch_size"])
        values = _SMALL | {"epochs": _within(math.ceil(_STEPS / steps), _SMALL_EPOCHS)}
        if sample.pairs < _FEW:
            values["min_freq"] = 1
        elif sample.once > _RARE:
            values |= _PARTS
    if given.get("dropout") == 0:
        values.pop("r_drop", None)  # nothing is dropped
    if not validated:
        for name in ("criterion", "average", "patience"):
            values.pop(name, None)
    if "batch_tokens" in given:
        values.pop("batch_size", None)
    values |= given
    if "average" in values and not given.keys() & {"average", "validation_steps"}:
        values["average"] = min(values["average"], values["epochs"])
    return Settings.from_dict(values)


def _within(count: int, bounds: tuple[int, int]) -> int:
    return min(max(count, bounds[0]), bounds[1])


def reason(sample: Sample, settings: Settings) -> str:
    """The settings that follow from a corpus, in one line, with the time that they will take here."""
    whole = "whole words" if settings.tokenizer == "word" else f"{settings.vocabulary_size:,} parts of words"
    return (
        f"{sample.pairs:,} pairs, {len(sample.words[1]):,} target word forms, {sample.once:.0%} of the words met once: "
        f"{whole}, hidden_size {settings.hidden_size}, dropout {settings.dropout:g}, up to {settings.epochs} epochs; "
        f"{_minutes(sample, settings)} on this machine if nothing else runs. Any option changes that"
    )


def _minutes(sample: Sample, settings: Settings) -> str:
    """About the time of all epochs, from that of one step."""
    pieces = 1.3 if settings.tokenizer == "bpe" else 1.0  # of a word, about
    lengths, sizes = [], []
    for words in sample.words:
        length = round(pieces * words.total() / max(1, len(sample.kept)))
        lengths.append(max(1, min(settings.max_length, length)))
        known = sum(count >= settings.min_freq for count in words.values()) + len(SPECIAL_TOKENS) + 1
        sizes.append(min(settings.vocabulary_size, known))
    if settings.tied_embeddings == "three":
        sizes = [max(sizes)] * 2
    count = min(settings.batch_size, max(1, sample.pairs))
    taken = []
    with torch.random.fork_rng():
        model = TranslationModel(settings, *sizes).train()
        batch = collate([([sizes[0] - 1] * lengths[0], [sizes[1] - 1] * lengths[1])] * count)
        for _ in range(3):  # the first compiles
            start = time.perf_counter()
            model.loss(batch, label_smoothing=settings.label_smoothing, r_drop=settings.r_drop).backward()
            taken.append(time.perf_counter() - start)
    overhead = 1.3  # the optimiser, and validation
    minutes = overhead * min(taken) * math.ceil(sample.pairs / count) * settings.epochs / 60
    minutes = min(minutes, settings.max_minutes or minutes)
    return "less than a minute" if minutes < 1 else f"about {minutes:.0f} minutes"
