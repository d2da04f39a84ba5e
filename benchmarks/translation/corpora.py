"""What the translators are trained on: numbered sentence pairs in random batches, the same for all of them."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

from dikkat.translation import AlignedCorpus, Tokenizer, phrasebook
from dikkat.translation.data.corpus import Pair
from dikkat.translation.data.store import TokenPair
from dikkat.translation.network.model import Batch, pad
from dikkat.translation.text.tokenizer import BEGIN, END, PAD, UNKNOWN, Kind


@dataclass(frozen=True)
class Sizes:
    """How large a translator is; `steps` is the length to which sentences, ends included, are cut."""

    name: str
    batch: int
    steps: int
    hidden: int
    embedding: int
    layers: int
    source: int
    target: int


@dataclass(frozen=True)
class Corpus:
    """Numbered pairs, and sources to be translated, without unknown words."""

    sizes: Sizes
    training: list[TokenPair]
    held_out: list[list[int]]

    def batches(self, count: int) -> list[Batch]:
        """Full batches of pairs in random order, gone through anew when they are used up."""
        chance, size, made = random.Random(0), self.sizes.batch, []
        while len(made) < count:
            order = chance.sample(self.training, len(self.training))
            made += [batch(order[at : at + size], self.sizes.steps) for at in range(0, len(order) - size + 1, size)]
        return made[:count]


def book() -> Corpus:
    """The phrasebook's short sentences at the textbook's size."""
    text = phrasebook.pairs()[:600]
    return _corpus("book", text, held_out=64, kind="word", vocabulary=200, steps=10, width=32, layers=2)


def real(folder: Path) -> Corpus:
    """Multi30k, English to French, in byte pairs."""
    text = list(AlignedCorpus(folder / "train.en.gz", folder / "train.fr.gz"))
    return _corpus("real", text, held_out=256, kind="bpe", vocabulary=8000, steps=20, width=256, layers=1)


def _corpus(
    name: str, text: list[Pair], *, held_out: int, kind: Kind, vocabulary: int, steps: int, width: int, layers: int
) -> Corpus:
    text = random.Random(1).sample(text, len(text))
    tokenizers = [
        Tokenizer.train([pair[side] for pair in text], kind, min_freq=1, vocabulary_size=vocabulary) for side in (0, 1)
    ]
    sizes = Sizes(name, 64, steps, width, width, layers, *map(len, tokenizers))
    sources, targets = (tokenizer.numbers([pair[side] for pair in text]) for side, tokenizer in enumerate(tokenizers))
    numbered = list(zip(sources, targets, strict=True))
    known = [source for source, _ in numbered if UNKNOWN not in source][:held_out]
    kept = [pair[0] not in known for pair in numbered]
    training = list(itertools.compress(numbered, kept))
    return Corpus(sizes, training, [[*source, END][:steps] for source in known])


def batch(pairs: Sequence[TokenPair], steps: int) -> Batch:
    """A batch as the textbook makes it, ends on both sides, cut to `steps`; padded to its own longest alone."""
    source, source_lengths = pad([[*source, END][:steps] for source, _ in pairs])
    target, lengths = pad([[BEGIN, *[*target, END][:steps]] for _, target in pairs])
    return Batch(source, source_lengths, target, lengths - 1)


def padded(made: Batch, steps: int) -> Batch:
    """The same with a fixed number of positions."""
    source = F.pad(made.source, (0, steps - made.source.shape[1]), value=PAD)
    target = F.pad(made.target, (0, steps + 1 - made.target.shape[1]), value=PAD)
    return made._replace(source=source, target=target)


def tokens(made: Batch) -> int:
    """Target tokens that count, ends included."""
    return int(made.target_lengths.sum())


def toy(seed: int = 0) -> tuple[Sizes, Batch]:
    """Something tiny, of distinct sizes."""
    sizes, chance = Sizes("toy", 5, 7, 11, 3, 2, 19, 23), torch.Generator().manual_seed(seed)

    def some(size: int, most: int) -> list[int]:
        length = int(torch.randint(1, most + 1, (), generator=chance))
        return torch.randint(4, size, (length,), generator=chance).tolist()

    return sizes, batch([(some(sizes.source, 6), some(sizes.target, 5)) for _ in range(sizes.batch)], sizes.steps)


def given(folder: Path | None, size: str | None) -> list[Corpus]:
    """The corpora that can be had: the one of size real needs its folder."""
    found = [book()] if size != "real" else []
    return [*found, real(folder)] if folder and size != "book" else found
