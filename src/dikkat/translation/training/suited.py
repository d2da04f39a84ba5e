"""Settings that are chosen by a corpus's size, words and scripts, and by the processor."""

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
from dikkat.translation.training.train import sample_evenly

# benchmarks/trials.md has the trials behind these numbers.
_LARGE_PAIRS = 10_000  # pairs of a large corpus, which uses the larger network
_RARE_SHARE = 0.06  # share of words that occur once, above which bpe is better
_SINGLE_WORDS = 1.5  # words and marks per side, below which a corpus has mostly single words
_MIN_PAIRS = 1_000  # fewer pairs use whole words if spaces separate them, and every word
_SMALL_STEPS = 2_500  # optimiser steps on a small corpus
_SMALL_EPOCHS = (30, 200)  # least and most epochs on a small corpus
_LARGE_WORDS = 9_000_000  # target words in all epochs on a large corpus: one to three hours on one core
_LARGE_EPOCHS = (5, 20)  # least and most epochs on a large corpus
_SAMPLED = 50_000  # pairs by which settings are chosen
_TIMED_PAIRS = 64  # pairs of the step that is timed
# On a GPU, the launches dominate steps of up to about 8,192 tokens, and with more tokens Adam takes too few steps. The
# learning rate grows with the square root of the batch size, from 64 pairs or about 1,024 tokens.
_GPU: dict[str, Any] = {"batch_tokens": 4_096, "learning_rate": 2e-3}
_BPE_SIZES = {True: 5_000, False: 2_000}  # vocabulary sizes for large and small corpora
_BPE_SIZE_SINGLE = 260  # vocabulary size for single words: all bytes, so that letters are read and written
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
    """An evenly spread sample of a corpus, and the approximate number of its pairs."""

    pairs: Sequence[Pair]
    pair_count: int

    @classmethod
    def of(cls, pairs: Corpus | Sequence[Pair]) -> Self:
        """Return a sample of `pairs`, without duplicates if training uses none."""
        sample, interval = sample_evenly(pairs, _SAMPLED)
        sample = sample if keeps_duplicates(pairs) else list(dict.fromkeys(sample))
        return cls(sample, len(sample) * interval)

    @cached_property
    def words(self) -> tuple[Counter[str], Counter[str]]:
        """The frequency of each word, in the source and in the target."""
        source, target = (
            Counter(word for pair in self.pairs for word in UNIT.findall(pair[side].lower())) for side in (0, 1)
        )
        return source, target

    @property
    def once(self) -> float:
        """The share of running words that occur once, on the side with the larger share."""
        return max(sum(n == 1 for n in words.values()) / max(1, words.total()) for words in self.words)

    @property
    def single(self) -> bool:
        """Whether most pairs are single words, such as names."""
        return max(words.total() for words in self.words) < _SINGLE_WORDS * len(self.pairs) and not any(self.unspaced)

    @property
    def copies(self) -> int:
        """The number of pairs that training adds to practise slots."""
        pairs = self.pairs[:_LARGE_PAIRS]
        slots = Slots.learn(pairs)
        return sum(1 for _ in islice(filter(None, (slots.practise(*pair) for pair in pairs)), COPIES))

    @property
    def unspaced(self) -> tuple[bool, bool]:
        """Whether most words are of scripts without spaces, in the source and in the target."""
        source, target = (
            2 * sum(n for word, n in words.items() if UNSPACED.match(word)) > words.total() for words in self.words
        )
        return source, target


def settings_for(
    pairs: Corpus | Sequence[Pair], given: Mapping[str, Any] | None = None, *, validated: bool = True
) -> Settings:
    """Return the settings that `dikkat train` chooses for these pairs on this machine.

    From 10,000 pairs on, `precision` is bfloat16 if the processor supports it, which halves the time.

    Args:
        pairs: The training pairs, a list or a corpus, which are read once.
        given: Chosen settings by name; the rest depend on the pairs, or have their defaults.
        validated: Whether there are validation pairs, which some settings require.

    Raises:
        SettingsError: An unknown setting, or a value that is not allowed.

    Example:
        >>> settings = settings_for([("go", "va"), ("go home", "va chez toi")] * 300, {"dropout": 0.1})
        >>> settings.tokenizer, settings.dropout, settings.epochs
        ('word', 0.1, 132)
    """
    return suited(Sample.of(pairs), given or {}, validated=validated)


def fitted(recipe: Recipe, pairs: Corpus | Sequence[Pair], *, validated: bool) -> tuple[Recipe, Sample | None]:
    """Return a recipe with all settings, and the sample of the pairs that determined some of them, if any."""
    settings, sample = recipe.settings, None
    if not recipe.values.keys() >= _CHOSEN:
        sample = Sample.of(pairs)
        settings = suited(sample, recipe.values, validated=validated)
    return replace(recipe, values=settings.to_dict()), None if settings == recipe.settings else sample


def suited(sample: Sample, chosen: Mapping[str, Any], *, validated: bool = True) -> Settings:
    """Return the `chosen` settings, completed from a corpus's sample, without settings that need missing validation."""
    is_large = sample.pair_count >= _LARGE_PAIRS
    values = dict(_LARGE if is_large else _SMALL)
    if is_large and has_bfloat16(device_type()):
        values["precision"] = "bfloat16"
    if sample.single or any(sample.unspaced) or (sample.once > _RARE_SHARE and sample.pair_count >= _MIN_PAIRS):
        values["tokenizer"] = "bpe"
    if not validated:
        for name in ("criterion", "average", "patience"):
            values.pop(name, None)
    if chosen.get("batch_tokens"):
        values.pop("batch_size", None)
    elif is_large and device_type() == "cuda" and "batch_size" not in chosen:
        values |= _GPU
    values |= chosen
    if values.get("tokenizer") == "bpe":
        values.setdefault("vocabulary_size", _BPE_SIZE_SINGLE if sample.single else _BPE_SIZES[is_large])
    elif sample.pair_count < _MIN_PAIRS:
        values.setdefault("min_freq", 1)
    if not any(values.get(name) for name in ("dropout", "attention_dropout")):
        values["r_drop"] = chosen.get("r_drop", 0.0)  # without dropout, both passes would be equal
    values.setdefault("epochs", _epochs(sample, Settings.from_dict(values)))
    if "average" in values and not chosen.keys() & {"average", "validation_steps"}:
        values["average"] = min(values["average"], values["epochs"])
    return Settings.from_dict(values)


def _epochs(sample: Sample, settings: Settings) -> int:
    if sample.pair_count >= _LARGE_PAIRS:
        words = max(1, sample.pair_count * sample.words[1].total() / len(sample.pairs))
        return int(np.clip(round(_LARGE_WORDS / words), *_LARGE_EPOCHS))
    batch: float = settings.batch_size
    if settings.batch_tokens is not None:
        source, target = (words.total() for words in sample.words)
        batch = settings.batch_tokens * len(sample.pairs) / max(source, target + len(sample.pairs))  # with target ends
    steps = math.ceil(max(1, sample.pair_count) / (batch * settings.accumulate))
    return int(np.clip(math.ceil(_SMALL_STEPS / steps), *_SMALL_EPOCHS))


def reason(sample: Sample, settings: Settings) -> str:
    """Return one line with the settings that follow from the corpus, and the expected time on this machine."""
    units = "whole words" if settings.tokenizer == "word" else f"{settings.vocabulary_size:,} parts of words"
    kind = ", a script without spaces" if any(sample.unspaced) else ", mostly single words" * sample.single
    scope = "" if len(sample.pairs) == sample.pair_count else f" in {len(sample.pairs):,} of them"
    time_text = _describe_time(sample, settings)
    pairs = f"{sample.pair_count:,} pair{'s' * (sample.pair_count != 1)}"
    return (
        f"settings from the corpus ({pairs}; {sample.once:.0%} of running words{scope} occur once{kind}): {units}, "
        f"hidden_size {settings.hidden_size}, dropout {settings.dropout:g}, r_drop {settings.r_drop:g}, up to "
        f"{settings.epochs} epochs in {settings.precision}{time_text}. To change one, use its option"
    )


def _describe_time(sample: Sample, settings: Settings) -> str:
    """Return the end of a sentence with the CPU time of all epochs, estimated from one step; "" on other devices."""
    if device_type() != "cpu":
        return ""
    tokens_per_word = 1.3 if settings.tokenizer == "bpe" else 1.0
    lengths, sizes = [], []
    for words in sample.words:
        length = round(tokens_per_word * words.total() / max(1, len(sample.pairs)))
        lengths.append(max(1, min(settings.max_length, length)))
        known_words = sum(count >= settings.min_freq for count in words.values()) + len(SPECIAL_TOKENS) + 1
        sizes.append(min(settings.vocabulary_size, known_words))
    if settings.tied_embeddings == "three":
        sizes = [max(sizes)] * 2
    count, times = min(settings.batch_size, _TIMED_PAIRS), []
    with torch.random.fork_rng():
        model = TranslationModel(settings, *sizes).train()
        batch = collate([([sizes[0] - 1] * lengths[0], [sizes[1] - 1] * lengths[1])] * count)
        for _ in range(3):  # the first step compiles
            start = time.thread_time()  # does not count while another program has the core
            with torch.autocast("cpu", torch.bfloat16, enabled=settings.precision == "bfloat16"):
                loss = model.loss(batch, label_smoothing=settings.label_smoothing, r_drop=settings.r_drop)
            loss.backward()
            times.append(time.thread_time() - start)
    overhead = 1.3  # for the optimiser and validation
    epoch_pairs = sample.pair_count + sample.copies
    minutes = overhead * min(times) * epoch_pairs / count * settings.epochs / 60 / processes().world
    duration = "less than a minute" if minutes < 1 else f"about {minutes:.0f} minute{'s' * (minutes >= 1.5)}"
    limit = settings.max_minutes or minutes
    limit_text = f", of which max_minutes allows {limit:g}" if minutes > limit else ""
    cores_text = f" on each of {threads} cores" if (threads := torch.get_num_threads()) > 1 else ""
    return f"; {duration} of CPU time{cores_text}{limit_text}"
