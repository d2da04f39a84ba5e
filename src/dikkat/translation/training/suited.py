"""Settings that suit a corpus, where none are chosen: by its pairs, its words, its scripts, and the processor."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Self

import numpy as np
import torch

from dikkat.translation.data.corpus import Corpus, Pair, keeps_duplicates
from dikkat.translation.data.store import COPIES
from dikkat.translation.formats.recipe import Recipe
from dikkat.translation.network.model import TranslationModel, collate
from dikkat.translation.settings import Settings
from dikkat.translation.text.slots import Slots
from dikkat.translation.text.tokenizer import SPECIAL_TOKENS
from dikkat.translation.text.units import UNIT, UNSPACED
from dikkat.translation.training.distributed import device_type, has_bfloat16, processes
from dikkat.translation.training.train import evenly

# docs/recipes.md has the trials that all of these come from.
_MANY = 10_000  # pairs from which on the larger network is worth its time
_RARE = 0.06  # share of the words that occur once, from which on words are better cut into parts
_SINGLE = 1.5  # words and marks of a side, on average, below which a corpus has mostly single words
_FEW = 1_000  # pairs that are too few to learn parts from where words stand apart, or to leave out a word
_STEPS = 2_500  # of a training on few pairs, which takes more epochs for them
_SMALL_EPOCHS = (30, 200)  # of such a training, at least and at most
_WORDS = 9_000_000  # of the target, of a training on many pairs: one to three hours of one core
_LARGE_EPOCHS = (5, 20)  # of such a training
_SAMPLED = 50_000  # pairs, by which settings are chosen
_TIMED = 64  # pairs of the step by which the time is estimated
# Of a batch on a GPU: up to about 8,192 tokens a step takes as long as its launches; with more than these Adam takes
# too few steps. The learning rate grows with the root of what 64 pairs, about 1,024 tokens, grow by.
_GPU: dict[str, Any] = {"batch_tokens": 4_096, "learning_rate": 2e-3}
_PARTS = {True: 5_000, False: 2_000}  # of words, of a corpus of many pairs and of few
_PARTS_OF_SINGLE = 260  # of a corpus of single words: the 256 bytes, so that letters are read and written
_LARGE: dict[str, Any] = {
    "tokenizer": "bpe", "hidden_size": 512, "dropout": 0.4, "label_smoothing": 0.1, "learning_rate": 1e-3,
    "warmup_steps": 300, "criterion": "bleu", "average": 3, "patience": 10,
}  # fmt: skip
_SMALL: dict[str, Any] = {
    "dropout": 0.4, "label_smoothing": 0.1, "r_drop": 2.0, "batch_size": 32, "average": 3, "patience": 8,
}  # fmt: skip
_CHOSEN = frozenset({*_LARGE, *_SMALL, "min_freq", "vocabulary_size", "epochs", "precision"})


@dataclass(frozen=True)
class Sample:
    """Pairs of a corpus, spread evenly, and about how many pairs the corpus has."""

    kept: Sequence[Pair]
    pairs: int

    @classmethod
    def of(cls, pairs: Corpus | Sequence[Pair]) -> Self:
        """A sample of these pairs; of equal ones that training takes once, one counts."""
        kept, interval = evenly(pairs, _SAMPLED)
        kept = kept if keeps_duplicates(pairs) else list(dict.fromkeys(kept))
        return cls(kept, len(kept) * interval)

    @cached_property
    def words(self) -> tuple[Counter[str], Counter[str]]:
        """How often each word occurs, in the source and in the target."""
        source, target = (
            Counter(word for pair in self.kept for word in UNIT.findall(pair[side].lower())) for side in (0, 1)
        )
        return source, target

    @property
    def once(self) -> float:
        """The share of the words that occur once, of the side that has more of them."""
        return max(sum(n == 1 for n in words.values()) / max(1, words.total()) for words in self.words)

    @property
    def single(self) -> bool:
        """Whether most pairs are single words, such as names."""
        return max(words.total() for words in self.words) < _SINGLE * len(self.kept) and not any(self.unspaced)

    @property
    def copies(self) -> int:
        """The number of copies that training adds to practise slots."""
        pairs = self.kept[:_MANY]
        slots = Slots.learn(pairs)
        return sum(1 for _ in islice(filter(None, (slots.practise(*pair) for pair in pairs)), COPIES))

    @property
    def unspaced(self) -> tuple[bool, bool]:
        """Whether most words are letters of scripts without spaces, in the source and in the target."""
        source, target = (
            2 * sum(n for word, n in words.items() if UNSPACED.match(word)) > words.total() for words in self.words
        )
        return source, target


def settings_for(
    pairs: Corpus | Sequence[Pair], given: Mapping[str, Any] | None = None, *, validated: bool = True
) -> Settings:
    """The settings that `dikkat train` takes for these pairs, on this machine.

    Of 10,000 pairs or more, `precision` is bfloat16 where the processor has it, in half the time.

    Args:
        pairs: To learn from, a list or a corpus; gone through once.
        given: Settings that are chosen, by name; the others follow from the pairs, or have their defaults.
        validated: Whether there are validation pairs, without which nothing is chosen by them.

    Raises:
        SettingsError: A name that is no setting, or a value that it may not have.

    Example:
        >>> settings = settings_for([("go", "va"), ("go home", "va chez toi")] * 300, {"dropout": 0.1})
        >>> settings.tokenizer, settings.dropout, settings.epochs
        ('word', 0.1, 132)
    """
    return suited(Sample.of(pairs), given or {}, validated=validated)


def fitted(recipe: Recipe, pairs: Corpus | Sequence[Pair], *, validated: bool) -> tuple[Recipe, Sample | None]:
    """A recipe with the settings that it lacks, and the sample of the pairs that they follow from, if any do."""
    settings, sample = recipe.settings, None
    if not recipe.values.keys() >= _CHOSEN:
        sample = Sample.of(pairs)
        settings = suited(sample, recipe.values, validated=validated)
    return replace(recipe, values=settings.to_dict()), None if settings == recipe.settings else sample


def suited(sample: Sample, given: Mapping[str, Any], *, validated: bool = True) -> Settings:
    """The settings for a corpus by its sample: those that are given stay, and without validation none needs it."""
    many = sample.pairs >= _MANY
    values = dict(_LARGE if many else _SMALL)
    if many and has_bfloat16(device_type()):
        values["precision"] = "bfloat16"
    if sample.single or any(sample.unspaced) or (sample.once > _RARE and sample.pairs >= _FEW):
        values["tokenizer"] = "bpe"
    if not validated:
        for name in ("criterion", "average", "patience"):
            values.pop(name, None)
    if given.get("batch_tokens"):
        values.pop("batch_size", None)
    elif many and device_type() == "cuda" and "batch_size" not in given:
        values |= _GPU
    values |= given
    if values.get("tokenizer") == "bpe":
        values.setdefault("vocabulary_size", _PARTS_OF_SINGLE if sample.single else _PARTS[many])
    elif sample.pairs < _FEW:
        values.setdefault("min_freq", 1)
    if not any(values.get(name) for name in ("dropout", "attention_dropout")):
        values["r_drop"] = given.get("r_drop", 0.0)  # both passes would be the same
    values.setdefault("epochs", _epochs(sample, Settings.from_dict(values)))
    if "average" in values and not given.keys() & {"average", "validation_steps"}:
        values["average"] = min(values["average"], values["epochs"])
    return Settings.from_dict(values)


def _epochs(sample: Sample, settings: Settings) -> int:
    if sample.pairs >= _MANY:
        words = max(1, sample.pairs * sample.words[1].total() / len(sample.kept))
        return int(np.clip(round(_WORDS / words), *_LARGE_EPOCHS))
    batch: float = settings.batch_size
    if settings.batch_tokens is not None:
        source, target = (words.total() for words in sample.words)
        batch = settings.batch_tokens * len(sample.kept) / max(source, target + len(sample.kept))  # each target's end
    steps = math.ceil(max(1, sample.pairs) / (batch * settings.accumulate))
    return int(np.clip(math.ceil(_STEPS / steps), *_SMALL_EPOCHS))


def reason(sample: Sample, settings: Settings) -> str:
    """The settings that follow from a corpus, in one line, with the time that they will take here."""
    whole = "whole words" if settings.tokenizer == "word" else f"{settings.vocabulary_size:,} parts of words"
    kind = ", a script without spaces" if any(sample.unspaced) else ", mostly single words" * sample.single
    of = "" if len(sample.kept) == sample.pairs else f" (of {len(sample.kept):,} of them)"
    minutes = _minutes(sample, settings)
    pairs = f"{sample.pairs:,} pair{'s' * (sample.pairs != 1)}"
    return (
        f"{pairs}, {sample.once:.0%} of running words occur once{of}{kind}: {whole}, hidden_size "
        f"{settings.hidden_size}, dropout {settings.dropout:g}, r_drop {settings.r_drop:g}, up to {settings.epochs} "
        f"epochs in {settings.precision}{minutes}. A setting that is given counts instead"
    )


def _minutes(sample: Sample, settings: Settings) -> str:
    """Estimate the CPU time of all epochs by that of one step, as the end of a sentence; empty on other devices."""
    if device_type() != "cpu":
        return ""
    pieces = 1.3 if settings.tokenizer == "bpe" else 1.0  # of a word, about
    lengths, sizes = [], []
    for words in sample.words:
        length = round(pieces * words.total() / max(1, len(sample.kept)))
        lengths.append(max(1, min(settings.max_length, length)))
        known = sum(count >= settings.min_freq for count in words.values()) + len(SPECIAL_TOKENS) + 1
        sizes.append(min(settings.vocabulary_size, known))
    if settings.tied_embeddings == "three":
        sizes = [max(sizes)] * 2
    count, taken = min(settings.batch_size, _TIMED), []
    with torch.random.fork_rng():
        model = TranslationModel(settings, *sizes).train()
        batch = collate([([sizes[0] - 1] * lengths[0], [sizes[1] - 1] * lengths[1])] * count)
        for _ in range(3):  # the first compiles
            start = time.thread_time()  # which stands still while another program has the core
            with torch.autocast("cpu", torch.bfloat16, enabled=settings.precision == "bfloat16"):
                loss = model.loss(batch, label_smoothing=settings.label_smoothing, r_drop=settings.r_drop)
            loss.backward()
            taken.append(time.thread_time() - start)
    overhead = 1.3  # the optimiser, and validation
    minutes = overhead * min(taken) * (sample.pairs + sample.copies) / count * settings.epochs / 60 / processes().world
    about = "less than a minute" if minutes < 1 else f"about {minutes:.0f} minutes"
    most = settings.max_minutes or minutes
    limit = f", of which max_minutes allows {most:g}" if minutes > most else ""
    cores = f" on each of {threads} cores" if (threads := torch.get_num_threads()) > 1 else ""
    return f"; {about} of CPU time{cores}{limit}"
