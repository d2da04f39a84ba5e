"""Parts of long sentences: the time of a search grows with the square of a sentence's tokens."""

from collections.abc import Callable, Sequence
from math import ceil

from dikkat.translation.text.capitals import SPACES, sentences_of
from dikkat.translation.text.tokenizer import Offsets

MOST_TOKENS = 256
"""The most source tokens that one search translates."""


def list_segments(
    line: str, read_offsets: Callable[[str], Sequence[Offsets]], is_stored: Callable[[str], object], *, split: bool
) -> tuple[list[str], list[str]]:
    """Return the parts of a line that are translated one by one, and the white space between them.

    They are the line's sentences if `split`, and the parts of sentences with too many tokens. A line or sentence of a
    stored pair is one part.

    Args:
        line: The text.
        read_offsets: Returns the start and the end of each token of a sentence.
        is_stored: Returns a true value if a text is the source of a stored pair.
        split: Whether to split the line into sentences.
    """
    if is_stored(line):
        return [line], []
    sentences, spaces = sentences_of(line) if split else ([line], [])
    segments = list[tuple[str, str]]()
    for sentence, space in zip(sentences, [*spaces, ""], strict=True):
        # A token has at least one byte.
        is_short = len(sentence.encode()) <= MOST_TOKENS or is_stored(sentence)
        *earlier, (last, _) = [(sentence, "")] if is_short else divide(sentence, read_offsets(sentence))
        segments += [*earlier, (last, space)]
    return [segment for segment, _ in segments], [space for _, space in segments[:-1]]


def divide(sentence: str, offsets: Sequence[Offsets]) -> list[tuple[str, str]]:
    """Return parts of a sentence with at most `MOST_TOKENS` tokens each, and the white space after each.

    The parts have about the same number of tokens. They end at white space, or in a long word between two characters.

    Args:
        sentence: The sentence.
        offsets: The start and the end of each token in the sentence.

    Example:
        >>> divide("ab " * 300, [(3 * k, 3 * k + 2) for k in range(300)])[0] == (("ab " * 150).strip(), " ")
        True
    """
    segments, start, first = list[tuple[str, str]](), 0, 0
    while (count := len(offsets) - first) > MOST_TOKENS:
        size = ceil(count / ceil(count / MOST_TOKENS))
        ends = range(first + size, first, -1)
        after_space = (end for end in ends[: size // 2] if sentence[offsets[end][0] - 1] in SPACES)
        after_character = (end for end in ends if offsets[end - 1][1] <= offsets[end][0])
        first = next(after_space, None) or next(after_character, len(offsets))
        cut = offsets[first][0] if first < len(offsets) else len(sentence)
        segment = sentence[start:cut].rstrip(SPACES)
        segments.append((segment, sentence[start + len(segment) : cut]))
        start = cut
    return [*segments, (sentence[start:], "")]
