"""The words and marks of a sentence, whatever a tokenizer makes of them."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import regex
import torch
from torch import Tensor

from dikkat.translation.text.slots import SPAN

# Scripts without spaces: a letter, with its marks, is a word.
_UNSPACED = (
    r"(?=\w)(?!\p{Nd})[\p{Han}\p{Hiragana}\p{Katakana}ーｰ\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
    r"[\p{M}\p{Join_Control}ﾞﾟ]*"
)
_LETTERS = rf"(?:(?!{_UNSPACED})\w)+"  # of this module's \w are marks on letters too, as in हिन्दी
UNIT = regex.compile(rf"{_UNSPACED}|{_LETTERS}['’]?|[^\w\s]")
_UNIT_OR_SPAN = regex.compile(rf"{SPAN.pattern}|{UNIT.pattern}")
UNSPACED = regex.compile(_UNSPACED)
WORD = regex.compile(rf"{_UNSPACED}|{_LETTERS}(?:[-'’.,:]{_LETTERS})*")  # 3.14 and well-known are one


class Units(NamedTuple):
    """The words and marks of a sentence: smaller than what white space separates, larger than pieces of words.

    Attributes:
        spans: Of each, the first character and the one behind the last.
        is_word: Of each, whether it is a word, and no mark.
        words: Of each, the number of the word, as white space separates them, that it belongs to.
    """

    spans: list[tuple[int, int]]
    is_word: list[bool]
    words: list[int]

    @classmethod
    def of(cls, sentence: str, *, whole_spans: bool = False) -> "Units":
        """The units of a sentence: `l'homme.` has `l'`, `homme` and a full stop, `老人。` has three.

        With `whole_spans`, a number, an address or a placeholder is one unit, with the white space in it.

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
        """(units, pieces): 1 where a piece, by its characters, is in a unit."""
        return torch.tensor(
            [[float(first < end and start < last) for first, last in pieces] for start, end in self.spans]
        ).view(len(self.spans), len(pieces))
