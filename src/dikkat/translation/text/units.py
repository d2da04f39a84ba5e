"""The words and marks of a sentence, independent of tokenizers."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import regex
import torch
from torch import Tensor

from dikkat.translation.text.slots import SPAN

# In scripts without spaces, each letter with its marks is a word.
_UNSPACED = (
    r"(?=\w)(?!\p{Nd})[\p{Han}\p{Hiragana}\p{Katakana}ーｰ\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
    r"[\p{M}\p{Join_Control}ﾞﾟ]*"
)
_LETTERS = rf"(?:(?!{_UNSPACED})\w)+"  # regex's \w includes combining marks, as in हिन्दी
UNIT = regex.compile(rf"{_UNSPACED}|{_LETTERS}['’]?|[^\w\s]")
_UNIT_OR_SPAN = regex.compile(rf"{SPAN.pattern}|{UNIT.pattern}")
UNSPACED = regex.compile(_UNSPACED)
WORD = regex.compile(rf"{_UNSPACED}|{_LETTERS}(?:[-'’.,:]{_LETTERS})*")  # 3.14 and well-known are words


class Units(NamedTuple):
    """The words and marks of a sentence: smaller than words between spaces, larger than a tokenizer's pieces.

    Attributes:
        spans: The start and the end of each unit, in characters.
        is_word: Whether the unit is a word and not a mark.
        words: The number of the unit's word, where white space separates words.
    """

    spans: list[tuple[int, int]]
    is_word: list[bool]
    words: list[int]

    @classmethod
    def of(cls, sentence: str, *, whole_spans: bool = False) -> "Units":
        """Return the units of a sentence: `l'homme.` has `l'`, `homme` and a full stop, `老人。` has three.

        With `whole_spans`, a number, an address or a placeholder is one unit, including its white space.

        Example:
            >>> len(Units.of("{{ a }} 3.5").spans), len(Units.of("{{ a }} 3.5", whole_spans=True).spans)
            (8, 2)
        """
        words = [word.start() for word in regex.finditer(r"\S+", sentence)]
        spans = [unit.span() for unit in (_UNIT_OR_SPAN if whole_spans else UNIT).finditer(sentence)]
        return cls(
            spans,
            [sentence[start].isalnum() or sentence[start] == "_" for start, _ in spans],
            [bisect_right(words, start) - 1 for start, _ in spans],
        )

    def shares(self, pieces: Sequence[tuple[int, int]]) -> Tensor:
        """Return a matrix (units, pieces): 1 if the piece's characters overlap the unit, else 0."""
        unit, piece = (torch.tensor(spans, dtype=torch.int64).view(-1, 2) for spans in (self.spans, pieces))
        return ((piece[:, 0] < unit[:, 1:]) & (unit[:, :1] < piece[:, 1])).float()
