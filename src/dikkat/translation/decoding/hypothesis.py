"""The input sentences and the resulting hypotheses of all search engines."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dikkat.translation.memory.pair_memory import StoredPair
from dikkat.translation.memory.states import Nearest
from dikkat.translation.text.special_tokens import UNKNOWN
from dikkat.translation.text.tokenizer import Encoded, Tokenizer

_LONGEST = 30  # the most tokens of a sequence whose repetition is counted


class Sentence(NamedTuple):
    """A sentence to translate: its token numbers, at least one, and the limits of its translations.

    If `copies`, `<unk>` may be written, for a word of the source or of a stored translation. `slots` is a bit set of
    the slots to write, once each.
    """

    tokens: Sequence[int]
    copies: bool
    min_tokens: int
    max_tokens: int
    slots: int = 0


@dataclass(frozen=True)
class Hypothesis:
    """A translation of a sentence, as the result of a search.

    Attributes:
        ids: The T target tokens, without the end.
        score: The natural log-probability of the tokens and, if finished, the end; not normalised.
        weights: (T, S) float32 on the CPU, the attention weights. Rows sum to 1. All are equal if the model has no
            attention.
        finished: Whether the model ended the sentence. If not, the length limit cut it.
        nearest: The stored states that were merged with the model's probabilities of each token, (T, K) each. None if
            no pairs are stored, or several models translated together.
    """

    ids: list[int]
    score: float
    weights: Tensor
    finished: bool
    nearest: Nearest | None = None


def repetition(ids: Sequence[int], begins_word: Callable[[int], bool], allowed: float = math.inf) -> tuple[int, int]:
    """Return how often a sequence of tokens repeats in a row, at most, and where to cut the first excessive repetition.

    A repetition is excessive if there are more than `allowed`. The cut is after its first occurrence, or after all
    tokens if there is none. Only sequences with the beginning of a word count: `1000` and `Schifffahrt` repeat nothing.

    Example:
        >>> repetition([5, 6, 7, 6, 7, 6, 7], lambda token: token == 6, allowed=2)
        (3, 3)
    """
    repeats, start, end = 1, len(ids), len(ids)
    if len(set(ids)) == len(ids):
        return repeats, end
    for size in range(1, min(_LONGEST, len(ids) // 3) + 1):
        equal = 0
        for index in range(size, len(ids) + 1):
            if index < len(ids) and ids[index] == ids[index - size]:
                equal += 1
                continue
            times, first, equal = 1 + equal // size, index - size - equal, 0
            if times > repeats and any(begins_word(token) for token in ids[first : first + size]):
                repeats = times
            if allowed < times and first < start and any(begins_word(token) for token in ids[first : first + size]):
                start, end = first, first + size
    return repeats, end


def find_end(
    tokenizers: tuple[Tokenizer, Tokenizer], ids: Sequence[int], source: Sequence[int], pair: StoredPair | None
) -> int:
    """Return where to cut a translation: after the first occurrence of tokens that repeat too often.

    Too often means at least three times in a row, and more often than any tokens of the source. The translation of the
    source's stored `pair` is not cut.
    """
    begins_source_word, begins_word = (tokenizer.begins_word for tokenizer in tokenizers)
    if repetition(ids, begins_word)[0] <= 2 or (pair is not None and pair.target_ids == tuple(ids)):
        return len(ids)
    return repetition(ids, begins_word, max(2, repetition(source, begins_source_word)[0]))[1]


def find_copies(encoded: Encoded, ids: Sequence[int], weights: Tensor) -> list[str | None]:
    """Return for each unknown target token the unknown source word with the largest weight; None for other tokens."""
    words: list[str | None] = [None] * len(ids)
    if UNKNOWN not in ids or UNKNOWN not in encoded.ids:
        return words
    is_known = torch.tensor([token != UNKNOWN for token in encoded.ids], device="cpu")
    for index, token in enumerate(ids):
        if token == UNKNOWN:
            words[index] = encoded.pieces[int(weights[index].masked_fill(is_known, -1.0).argmax())]
    return words


def fill_unknown(
    pair: Sequence[Encoded], encoded: Encoded, ids: Sequence[int], copies: Sequence[str | None]
) -> list[str | None]:
    """Return for each unknown target token the next unknown word of a stored translation; None for other tokens.

    Args:
        pair: The texts of a stored pair with the source tokens of the sentence. An unknown word of both becomes the
            sentence's own unknown word.
        encoded: The sentence.
        ids: The target tokens.
        copies: The words for further unknown tokens.
    """
    stored_source, stored_target, source = (
        [piece for token, piece in zip(text.ids, text.pieces, strict=True) if token == UNKNOWN]
        for text in (*pair, encoded)
    )
    by_stored = dict(zip(stored_source, source, strict=True))
    words = iter([by_stored.get(word, word) for word in stored_target])
    return [next(words, copy) if token == UNKNOWN else None for token, copy in zip(ids, copies, strict=True)]
