"""Splits of a corpus that share no source sentence."""

import hashlib
import random
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

from dikkat.translation.data.corpus import Corpus, Pair, as_corpus
from dikkat.translation.errors import CorpusError

_MIN_SENTENCES = 1_000  # different source sentences: with fewer, a part by hashes would often be empty
SKETCH_SIZE = 4_096  # hashes
_ADVICE = "separate validation files, or none (--validation none)"


class NothingToHoldOutError(CorpusError):
    """A corpus has fewer than two different source sentences."""


@overload
def hold_out(pairs: Corpus, share: float, seed: int = 0) -> tuple[Corpus, Corpus]: ...
@overload
def hold_out(pairs: Sequence[Pair], share: float, seed: int = 0) -> tuple[list[Pair], list[Pair]]: ...
def hold_out(
    pairs: Corpus | Sequence[Pair], share: float, seed: int = 0
) -> tuple[Corpus, Corpus] | tuple[list[Pair], list[Pair]]:
    """Split pairs in two sets without a common source sentence; case and spacing make no difference.

    All translations of a sentence go to one set, so that a model cannot score well because it knows the sentence.

    Args:
        pairs: The corpus. A list's equal pairs are used once. A `Corpus` of 1,000 different source sentences or more is
            streamed by `split`.
        share: The share of the source sentences to hold out, between 0 and 1; at least one sentence unless streamed.
        seed: The seed that determines the held-out sentences.

    Returns:
        Training pairs and held-out pairs, each in the corpus's order.

    Raises:
        CorpusError: A share outside 0…1; fewer than two different source sentences; a corpus that cannot be read.
        OSError: A file of the corpus cannot be opened.

    Example:
        >>> training, held_out = hold_out([("Go.", "Va !"), ("go.", "Marche."), ("I lost.", "J'ai perdu.")], share=0.5)
        >>> training, held_out
        ([('I lost.', "J'ai perdu.")], [('Go.', 'Va !'), ('go.', 'Marche.')])
    """
    _check_shares(share)
    keys = _distinct_sentences(pairs, _MIN_SENTENCES if isinstance(pairs, Corpus) else None)
    if isinstance(pairs, Corpus) and len(keys) == _MIN_SENTENCES:
        training, held_out = split(pairs, share, seed=seed)
        return training, held_out
    if len(keys) < 2:
        raise NothingToHoldOutError(
            f"{_describe_count(keys)}: with fewer than two there is nothing to hold out. Give more pairs, {_ADVICE}"
        )
    random.Random(seed).shuffle(keys)
    held_keys = set(keys[: min(len(keys) - 1, max(1, round(share * len(keys))))])
    fraction, name = len(held_keys) / len(keys), f"few {share} {seed}"
    training = _Part(as_corpus(pairs), 1 - fraction, f"{name} left", lambda sentence: sentence not in held_keys)
    held_out = _Part(as_corpus(pairs), fraction, f"{name} held out", held_keys.__contains__)
    return (training, held_out) if isinstance(pairs, Corpus) else (_distinct(training), _distinct(held_out))


def split(corpus: Corpus | Sequence[Pair], *shares: float, seed: int = 0) -> tuple[Corpus, ...]:
    """Split a corpus of any size into parts without a common source sentence; case and spacing make no difference.

    A keyed hash of the source sentence determines a pair's part. So nothing is held in memory, a sentence stays in its
    part when the corpus grows, and the parts have the requested sizes up to chance.

    Args:
        corpus: The corpus to split.
        shares: The share of the source sentences for each part except the first, which gets the rest.
        seed: The seed that determines the parts.

    Returns:
        The training part, and one part for each share. Each reads the whole corpus when you iterate over it.

    Raises:
        CorpusError: A share outside 0…1, or shares that leave nothing for training. During iteration: a part without a
            pair.

    Example:
        >>> pairs = [(str(number), "x") for number in range(1000)]
        >>> training, validation, test = split(pairs, 0.1, 0.1)
        >>> sorted([*training, *validation, *test]) == sorted(pairs)
        True
        >>> 60 < len(list(test)) < 140
        True
    """
    _check_shares(*shares)
    bounds = [0, *(round(end * 2**64) for end in accumulate(shares)), 2**64]
    held_out = [
        _Part(as_corpus(corpus), (end - first) / 2**64, f"{first} {end} {seed}", partial(_is_within, first, end, seed))
        for first, end in pairwise(bounds)
    ]
    return held_out[-1], *held_out[:-1]


def without_leaks(training: Corpus | Sequence[Pair], held_out: Corpus | Sequence[Pair]) -> Corpus:
    """Return the training pairs whose source sentence is not held out; case and spacing make no difference.

    The training pairs are streamed; the held-out source sentences are in memory. At the end of the first iteration a
    warning reports how many pairs were left out, if any.

    Args:
        training: Any number of pairs.
        held_out: Pairs for validation or test that fit into memory.

    Raises:
        CorpusError, OSError: The held-out pairs cannot be read. During iteration: no pair remains.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True, action="always") as caught:
        ...     list(without_leaks([("Go.", "Va !"), ("I lost.", "J'ai perdu.")], [("go.", "Marche.")]))
        [('I lost.', "J'ai perdu.")]
        >>> print(caught[0].message)
        2 pairs in memory: 1 of 2 pairs left out, because their source sentence is held out (1 pair in memory)
    """
    return _WithoutLeaks(as_corpus(training), as_corpus(held_out))


def sketch(hashes: NDArray[np.uint32], sentences: Iterable[str]) -> NDArray[np.uint32]:
    """Return a sketch of a set of sentences: its smallest hashes, from the sketch of some and the other sentences."""
    return np.unique(np.concatenate([hashes, _hashes(sentences)]))[:SKETCH_SIZE]


def count_common(sentences: Iterable[str], hashes: NDArray[np.uint32]) -> tuple[int, int]:
    """Return how many sentences are in the set of a sketch, and how many could be compared: all, if the set is small.

    Example:
        >>> hashes = sketch(np.empty(0, np.uint32), ["Go.", "I lost."])
        >>> count_common(["go.", "go away.", "I  lost."], hashes)
        (2, 3)
    """
    compared = _hashes(sentences)
    if len(hashes) == SKETCH_SIZE:
        compared = compared[compared <= hashes[-1]]
    return int(np.isin(compared, hashes).sum()), len(compared)


def _hashes(sentences: Iterable[str]) -> NDArray[np.uint32]:
    texts = (normalise(sentence).encode() for sentence in sentences)
    digests = b"".join(hashlib.blake2b(text, digest_size=4).digest() for text in texts)
    return np.frombuffer(digests, "<u4").astype(np.uint32)


def _is_within(first: int, end: int, seed: int, sentence: str) -> bool:
    digest = hashlib.blake2b(sentence.encode(), digest_size=8, key=str(seed).encode()).digest()
    return first <= int.from_bytes(digest, "little") < end


class _Part(Corpus):
    """The pairs whose source sentence passes the test `is_member`, which `name` identifies."""

    def __init__(self, corpus: Corpus, share: float, name: str, is_member: Callable[[str], bool]) -> None:
        self._corpus, self._share, self._name, self._is_member = corpus, share, name, is_member

    def __iter__(self) -> Iterator[Pair]:
        is_empty = True
        for pair in self._corpus:
            if self._is_member(normalise(pair[0])):
                is_empty = False
                yield pair
        if is_empty:
            keys = _distinct_sentences(self._corpus, _MIN_SENTENCES)
            advice = "Use a larger share" if len(keys) > 1 else "Give more pairs"
            raise CorpusError(f"{self} has no sentence pairs: {_describe_count(keys)}. {advice}, {_ADVICE}")

    def __str__(self) -> str:
        return f"{100 * self._share:.3g}% of {self._corpus}"

    def fingerprint(self) -> str | None:
        corpus_fingerprint = self._corpus.fingerprint()
        return corpus_fingerprint and f"part {self._name} of {corpus_fingerprint}"

    @property
    def unsplit(self) -> Corpus:
        return self._corpus.unsplit


class _WithoutLeaks(Corpus):
    def __init__(self, training: Corpus, held_out: Corpus) -> None:
        self._corpus, self._held_out = training, str(held_out)
        self._keys = {normalise(source) for source, _ in held_out}
        self._has_warned = False

    def __iter__(self) -> Iterator[Pair]:
        total = kept_pairs = 0
        for pair in self._corpus:
            total += 1
            if normalise(pair[0]) not in self._keys:
                kept_pairs += 1
                yield pair
        message = (
            f"{self._corpus}: {total - kept_pairs:,} of {total:,} pairs left out, because their source sentence is "
            f"held out ({self._held_out})"
        )
        if not kept_pairs:
            raise CorpusError(f"{message}. No training pair is left: give other validation pairs")
        if kept_pairs < total and not self._has_warned:
            self._has_warned = True
            warnings.warn(message, UserWarning, stacklevel=2)

    def __str__(self) -> str:
        return str(self._corpus)

    def fingerprint(self) -> str | None:
        corpus_fingerprint = self._corpus.fingerprint()
        keys = hashlib.sha256("\n".join(sorted(self._keys)).encode()).hexdigest()
        return corpus_fingerprint and f"without {keys} of {corpus_fingerprint}"

    @property
    def unsplit(self) -> Corpus:
        return self._corpus.unsplit


def _check_shares(*shares: float) -> None:
    for share in shares:
        if not 0.0 < share < 1.0:
            raise CorpusError(f"share: got {share}; expected a number between 0 and 1")
    if sum(shares) >= 1.0:
        raise CorpusError(f"shares: got {shares}; expected numbers of a sum below 1")


def _distinct_sentences(pairs: Iterable[Pair], limit: int | None) -> list[str]:
    sentences: set[str] = set()
    for source, _ in pairs:
        sentences.add(normalise(source))
        if len(sentences) == limit:
            break
    return sorted(sentences)


def _distinct(pairs: Iterable[Pair]) -> list[Pair]:
    return list(dict.fromkeys((source, target) for source, target in pairs))


def _describe_count(keys: Sequence[str]) -> str:
    count = f"{len(keys):,}{' or more' if len(keys) == _MIN_SENTENCES else ''}"
    return f"the corpus has {count} different source {'sentence' if len(keys) == 1 else 'sentences'}"


def normalise(sentence: str) -> str:
    """Return the sentence without differences of case, spacing, apostrophes and Unicode composition."""
    if not sentence.isascii():
        sentence = unicodedata.normalize("NFC", sentence).replace("’", "'")
    return " ".join(sentence.casefold().split())
