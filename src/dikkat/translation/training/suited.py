"""Settings that suit a corpus, where nobody chose any: by its pairs, and by how many of its words occur once."""

import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from dikkat.translation.data.corpus import Pair
from dikkat.translation.network.model import TranslationModel, collate
from dikkat.translation.settings import Settings
from dikkat.translation.text.tokenizer import SPECIAL_TOKENS

_MANY = 10_000  # pairs from which on the larger network is worth its time
_RARE = 0.06  # share of the words that occur once, from which on words are better cut into parts
_FEW_STEPS = 2_500  # of a corpus of few pairs, which takes more epochs for them
_MOST_EPOCHS = 200
_PIECES = 1.3  # of a word, about
# docs/recipes.md has the trials that these come from.
_LARGE: dict[str, Any] = {
    "tokenizer": "bpe", "vocabulary_size": 5_000, "hidden_size": 512, "dropout": 0.4, "label_smoothing": 0.1,
    "learning_rate": 1e-3, "warmup_steps": 300, "epochs": 20, "criterion": "bleu", "average": 3, "patience": 10,
}  # fmt: skip
_SMALL: dict[str, Any] = {
    "dropout": 0.4, "label_smoothing": 0.1, "batch_size": 32, "average": 3, "patience": 8,
}  # fmt: skip
_PARTS: dict[str, Any] = {"tokenizer": "bpe", "vocabulary_size": 2_000}


class Corpus(NamedTuple):
    """What is known of a corpus.

    Attributes:
        sample: Pairs of it, spread evenly.
        pairs: How many there are in all.
    """

    sample: Sequence[Pair]
    pairs: int

    def forms(self, side: int) -> Counter[str]:
        """How often each word of a side occurs in the sample."""
        return Counter(word for pair in self.sample for word in re.findall(r"\w+|[^\w\s]", pair[side].lower()))

    def once(self) -> float:
        """The share of the words that occur once, of the side that has more of them."""
        counts = [self.forms(side) for side in (0, 1)]
        return max(sum(n == 1 for n in each.values()) / max(1, each.total()) for each in counts)


def suited(corpus: Corpus, given: Mapping[str, Any], *, validated: bool = True) -> Settings:
    """The settings for a corpus.

    Args:
        corpus: Its pairs to learn from.
        given: Settings that somebody chose, which stay.
        validated: Whether there are validation pairs, without which nothing is chosen by them.

    Example:
        >>> corpus = Corpus([("go", "va"), ("go home", "va chez toi")] * 300, 600)
        >>> settings = suited(corpus, {"dropout": 0.1})
        >>> settings.tokenizer, settings.dropout, settings.epochs
        ('word', 0.1, 132)
    """
    values = dict(_LARGE if corpus.pairs >= _MANY else _SMALL)
    if corpus.pairs < _MANY:
        steps = math.ceil(corpus.pairs / _SMALL["batch_size"])
        values["epochs"] = min(_MOST_EPOCHS, max(30, math.ceil(_FEW_STEPS / max(1, steps))))
        if corpus.once() > _RARE and corpus.pairs >= 1_000:
            values |= _PARTS
    if corpus.pairs < 1_000:
        values["min_freq"] = 1
    if not validated:
        for name in ("criterion", "average", "patience"):
            values.pop(name, None)
    if "batch_tokens" in given:
        values.pop("batch_size", None)
    values |= given
    if "average" not in given and "validation_steps" not in given and "average" in values:
        values["average"] = min(values["average"], values["epochs"])
    return Settings.from_dict(values)


def reason(corpus: Corpus, settings: Settings) -> str:
    """The settings that follow from a corpus, in one line, with the time that they will take here."""
    forms = len(corpus.forms(1))
    whole = "whole words" if settings.tokenizer == "word" else f"{settings.vocabulary_size:,} parts of words"
    return (
        f"{corpus.pairs:,} pairs, {forms:,} target word forms, {corpus.once():.0%} of the words met once: {whole}, "
        f"hidden_size {settings.hidden_size}, dropout {settings.dropout:g}, {settings.epochs} epochs; about "
        f"{minutes(corpus, settings):.0f} minutes on this machine, if nothing else runs. Any option changes that"
    )


def minutes(corpus: Corpus, settings: Settings) -> float:
    """The time that a training will take here, from that of one step."""
    pieces = _PIECES if settings.tokenizer == "bpe" else 1.0
    lengths, sizes = [], []
    for side in (0, 1):
        counts = corpus.forms(side)
        lengths.append(max(1, min(settings.max_length, round(pieces * counts.total() / max(1, len(corpus.sample))))))
        known = sum(count >= settings.min_freq for count in counts.values()) + len(SPECIAL_TOKENS) + 1
        sizes.append(min(settings.vocabulary_size, known))
    tied = settings.tied_embeddings == "three"
    count = min(settings.batch_size, max(1, corpus.pairs))
    with torch.random.fork_rng():
        model = TranslationModel(settings, *([max(sizes)] * 2 if tied else sizes)).train()
        batch = collate([([sizes[0] - 1] * lengths[0], [sizes[1] - 1] * lengths[1])] * count)
        taken = []
        for _ in range(3):  # the first compiles
            start = time.perf_counter()
            model.loss(batch, label_smoothing=settings.label_smoothing).backward()
            taken.append(time.perf_counter() - start)
    overhead = 1.3  # the optimiser, and validation
    return overhead * min(taken) * math.ceil(corpus.pairs / count) * settings.epochs / 60
