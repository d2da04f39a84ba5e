"""Capitals at the beginnings of sentences, which depend on a text's learnt marks and names."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest

import regex

LETTER = r"[\p{L}\p{M}]"
INSIDE = r"\p{L}\p{M}\p{N}"  # of words
SLOT = r"\x01-\x08\x0e-\x1b"  # characters of slots, neither words nor marks
# White space of Unicode and of \s in regular expressions; str.strip also removes some control characters.
SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
# Elisions (l'homme, qu'il) are separate words; other apostrophes (he's, don't, aujourd'hui) are inside of words.
ELIDED = rf"(?<!{LETTER})(?i:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu)['’](?={LETTER})"
WORD = rf"(?:{ELIDED}|[{INSIDE}]+(?:(?:['’-]|(?<=\p{{N}})[.,:](?=\p{{N}}))[{INSIDE}]+)*)"

# The end of a sentence: a mark, closing quotation marks or brackets, a space; and then the beginning of a sentence. The
# full stops of single letters, of e.g. and the like, and of a few short words before names and numbers are no ends.
END = regex.compile(
    r"(?<=(?:[!?…]|(?<!\b(?:\p{L}|\p{L}\.\p{L}|Mr|Mrs|Ms|Dr|St|No|Nr|Prof|Mme|bzw|vs|cf|p|pp|vgl))\.)[\"'”’»)\]]{0,4})"
    r"(\s+)(?=[\"'“„«(\[¿¡–-]*\s?[\p{Lu}\p{Lo}\p{N}])|(?<=[。！？])(?=[^」』”）\s])"
)

_MAX_NAMES = 10_000
_SEVERAL_SHARE = 0.05  # share of lines with several sentences above which these are frequent
_START = "\n"  # in `marks`, the beginning of the text
_SEVERAL = "\r"  # in `marks`, frequent lines of several sentences
_MARK = regex.compile(r"\p{M}")
_AFTER_ONE_MARK = regex.compile(rf"(?<=[{INSIDE}{SLOT}])\s?([^{INSIDE}{SLOT}\s])\s({WORD})")
_INNER_WORD = regex.compile(rf"(?<=[{INSIDE}{SLOT}]\s){WORD}")
_FIRST_WORD = regex.compile(rf"\A[^{INSIDE}{SLOT}]{{0,8}}({WORD})")


@dataclass(frozen=True)
class Capitals:
    r"""The marks before sentences, and the words that always begin with a capital letter.

    Attributes:
        marks: Marks after which, with a space, most words have a capital. A line feed means the beginning of the text;
            a carriage return means that lines often have several sentences.
        names: The most frequent words that mostly have a capital within sentences too.
    """

    marks: str = ""
    names: frozenset[str] = frozenset()

    @classmethod
    def learn(cls, sentences: Sequence[str]) -> "Capitals":
        """Learn the names of a text, and its marks (only single marks between words)."""
        surplus: Counter[str] = Counter()
        for sentence in sentences:
            first_words = [(_START, match[1]) for match in _FIRST_WORD.finditer(sentence)]
            for mark, word in first_words + _AFTER_ONE_MARK.findall(sentence):
                surplus[mark] += word[0].isupper() - word[0].islower()
        counts = Counter(word for sentence in sentences for word in _INNER_WORD.findall(sentence))
        names = (word for word in sorted(counts) if counts[word] > counts[_both_cases(word)[0]])
        marks = "".join(sorted(mark for mark, excess in surplus.items() if excess > 0))
        several = sum(END.search(sentence) is not None for sentence in sentences) > _SEVERAL_SHARE * len(sentences)
        return cls(marks + _SEVERAL * several, frozenset(nlargest(_MAX_NAMES, names, key=counts.__getitem__)))

    def exchanged(self, sentences: Iterable[str]) -> list[str]:
        """Swap the case of the first letter after each beginning of a sentence, except in names.

        A second swap restores the text. So `The` at the beginning becomes the word `the`, and a sentence that really
        begins with a small letter remains different.
        """
        return [self._beginning.sub(lambda match: self.other_case(match[0]), sentence) for sentence in sentences]

    @property
    def several(self) -> bool:
        """Whether lines of the training text often have several sentences."""
        return _SEVERAL in self.marks

    @cached_property
    def _beginning(self) -> regex.Pattern[str]:
        marks = regex.escape(self.marks.replace(_START, "").replace(_SEVERAL, ""), special_only=False)
        patterns = [r"\A"] * (_START in self.marks) + [rf"[{marks}][^{INSIDE}{SLOT}\s]{{0,8}}\s"] * bool(marks)
        pattern = rf"(?:{'|'.join(patterns)})[^{INSIDE}{SLOT}]{{0,8}}\K{WORD}"
        return regex.compile(pattern if patterns else r"\A\b\B")

    def other_case(self, word: str) -> str:
        """Convert a word from its form at the beginning of a sentence to its form within one, or back."""
        small, large = _both_cases(word)
        return word if large in self.names else small if word == large else large


def _both_cases(word: str) -> tuple[str, str]:
    """Return the word with a small and with a capital first letter; twice unchanged if that is not reversible."""
    first = word[0]
    small, large = first.lower(), first.upper()
    is_reversible = len(small) == len(large) == 1 and small.upper() == large and large.lower() == small
    is_reversible = is_reversible and not _MARK.match(word, 1)  # İ as I and a combining dot would become one letter
    return (small + word[1:], large + word[1:]) if is_reversible and first in (small, large) else (word, word)


def sentences_of(line: str) -> tuple[list[str], list[str]]:
    """Return the sentences of a line, and the spaces between them.

    Example:
        >>> sentences_of("Dr. Li left at 5 p.m. on Monday. “Why?” He said no.")
        (['Dr. Li left at 5 p.m. on Monday.', '“Why?”', 'He said no.'], [' ', ' '])
    """
    sentences, spaces, start = [], [], 0
    for end in END.finditer(line):
        sentences.append(line[start : end.start()])
        spaces.append(end[0])
        start = end.end()
    return [*sentences, line[start:]], spaces
