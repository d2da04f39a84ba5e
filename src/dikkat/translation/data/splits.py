"""Splits of a corpus that share no source sentence."""

import hashlib
import random
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import overload

from dikkat.translation.data.corpus import Corpus, Pair, as_corpus
from dikkat.translation.errors import CorpusError

_FEW = 1_000  # different source sentences: of fewer, a part by their hashes would often be empty
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
    """Split pairs in two that have no source sentence in common, whatever its case and spacing.

    A sentence with several translations goes to one side with all of them, so a model cannot score by having seen it.

    Args:
        pairs: The corpus. Of a list, equal pairs are taken once; a `Corpus` of 1,000 different source sentences or more
            is split as it streams, by `split`.
        share: The part of the source sentences to hold out, between 0 and 1; at least one is, save by `split`.
        seed: Which sentences.

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
    keys = _sentences(pairs, _FEW if isinstance(pairs, Corpus) else None)
    if isinstance(pairs, Corpus) and len(keys) == _FEW:
        training, held_out = split(pairs, share, seed=seed)
        return training, held_out
    if len(keys) < 2:
        raise NothingToHoldOutError(
            f"{_count(keys)}: with fewer than two there is nothing to hold out. Give more pairs, {_ADVICE}"
        )
    random.Random(seed).shuffle(keys)
    held = set(keys[: min(len(keys) - 1, max(1, round(share * len(keys))))])
    part, name = len(held) / len(keys), f"few {share} {seed}"
    left = _Part(as_corpus(pairs), 1 - part, f"{name} left", lambda sentence: sentence not in held)
    taken = _Part(as_corpus(pairs), part, f"{name} held out", held.__contains__)
    return (left, taken) if isinstance(pairs, Corpus) else (_distinct(left), _distinct(taken))


def split(corpus: Corpus | Sequence[Pair], *shares: float, seed: int = 0) -> tuple[Corpus, ...]:
    """Split a corpus of any size into parts that have no source sentence in common, whatever its case and spacing.

    A keyed hash of the source sentence says which part a pair is in. So nothing is kept in memory, a sentence stays
    in its part when the corpus grows, and the parts are as large as requested up to chance.

    Args:
        corpus: What to split.
        shares: Of the source sentences, for each part but the first, which has the rest.
        seed: Which sentences.

    Returns:
        The part for training, and one for each share. Each reads the whole corpus when it is gone through.

    Raises:
        CorpusError: A share outside 0…1, or shares that leave nothing for training. When gone through: a part that
            no pair fell into.

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
        _Part(as_corpus(corpus), (end - first) / 2**64, f"{first} {end} {seed}", partial(_within, first, end, seed))
        for first, end in pairwise(bounds)
    ]
    return held_out[-1], *held_out[:-1]


def without_leaks(training: Corpus | Sequence[Pair], held_out: Corpus | Sequence[Pair]) -> Corpus:
    """The training pairs whose source sentence is not among the held-out ones, whatever its case and spacing.

    The training pairs are streamed; the held-out source sentences are in memory. When some were left out, a warning at
    the end of the first time through says how many.

    Args:
        training: Any number of pairs.
        held_out: Pairs for validation or test; so few that they fit into memory.

    Raises:
        CorpusError, OSError: The held-out pairs cannot be read. When gone through: no pair is left.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True, action="always") as said:
        ...     list(without_leaks([("Go.", "Va !"), ("I lost.", "J'ai perdu.")], [("go.", "Marche.")]))
        [('I lost.', "J'ai perdu.")]
        >>> print(said[0].message)
        2 pairs in memory: 1 of 2 pairs left out: their source sentence is held out (1 pair in memory)
    """
    return _WithoutLeaks(as_corpus(training), as_corpus(held_out))


def _within(first: int, end: int, seed: int, sentence: str) -> bool:
    digest = hashlib.blake2b(sentence.encode(), digest_size=8, key=str(seed).encode()).digest()
    return first <= int.from_bytes(digest, "little") < end


class _Part(Corpus):
    """The pairs whose source sentence passes a test, which the name tells from every other."""

    def __init__(self, corpus: Corpus, share: float, name: str, has: Callable[[str], bool]) -> None:
        self._corpus, self._share, self._name, self._has = corpus, share, name, has

    def __iter__(self) -> Iterator[Pair]:
        empty = True
        for pair in self._corpus:
            if self._has(_same(pair[0])):
                empty = False
                yield pair
        if empty:
            keys = _sentences(self._corpus, _FEW)
            more = "Use a larger share" if len(keys) > 1 else "Give more pairs"
            raise CorpusError(f"{self} has no sentence pairs: {_count(keys)}. {more}, {_ADVICE}")

    def __str__(self) -> str:
        return f"{self._corpus}, {self._share:.3g} of it"

    def fingerprint(self) -> str | None:
        whole = self._corpus.fingerprint()
        return whole and f"part {self._name} of {whole}"

    @property
    def whole(self) -> Corpus:
        return self._corpus.whole


class _WithoutLeaks(Corpus):
    def __init__(self, training: Corpus, held_out: Corpus) -> None:
        self._corpus, self._held_out = training, str(held_out)
        self._keys = {_same(source) for source, _ in held_out}
        self._said = False

    def __iter__(self) -> Iterator[Pair]:
        read = kept = 0
        for pair in self._corpus:
            read += 1
            if _same(pair[0]) not in self._keys:
                kept += 1
                yield pair
        message = (
            f"{self._corpus}: {read - kept:,} of {read:,} pairs left out: their source sentence is held out "
            f"({self._held_out})"
        )
        if not kept:
            raise CorpusError(f"{message}. Nothing is left to learn from: give other validation pairs")
        if kept < read and not self._said:
            self._said = True
            warnings.warn(message, UserWarning, stacklevel=2)

    def __str__(self) -> str:
        return str(self._corpus)

    def fingerprint(self) -> str | None:
        whole = self._corpus.fingerprint()
        keys = hashlib.sha256("\n".join(sorted(self._keys)).encode()).hexdigest()
        return whole and f"without {keys} of {whole}"

    @property
    def whole(self) -> Corpus:
        return self._corpus.whole


def _check_shares(*shares: float) -> None:
    for share in shares:
        if not 0.0 < share < 1.0:
            raise CorpusError(f"share: got {share}; expected a number between 0 and 1")
    if sum(shares) >= 1.0:
        raise CorpusError(f"shares: got {shares}; expected numbers of a sum below 1")


def _sentences(pairs: Iterable[Pair], most: int | None) -> list[str]:
    seen: set[str] = set()
    for source, _ in pairs:
        seen.add(_same(source))
        if len(seen) == most:
            break
    return sorted(seen)


def _distinct(pairs: Iterable[Pair]) -> list[Pair]:
    return list(dict.fromkeys((source, target) for source, target in pairs))


def _count(keys: Sequence[str]) -> str:
    few = f"{len(keys):,}{' or more' if len(keys) == _FEW else ''}"
    return f"the corpus has {few} different source {'sentence' if len(keys) == 1 else 'sentences'}"


def _same(sentence: str) -> str:
    """The form that sentences share which differ in case, spacing and apostrophes alone."""
    if not sentence.isascii():
        sentence = unicodedata.normalize("NFC", sentence).replace("’", "'")
    return " ".join(sentence.casefold().split())
