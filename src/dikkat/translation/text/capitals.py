"""Capitals of beginnings: the marks after which a text begins anew are learnt, and a word there is read as within."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest

import regex

LETTER = r"[\p{L}\p{M}]"
INSIDE = r"\p{L}\p{M}\p{N}"  # of words
SLOT = r"\x01-\x08\x0e-\x1b"  # characters that are neither of words nor marks
# White space to Unicode, which \s is in regular expressions; to str.strip some control characters are too.
SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
# Elided words (l'homme, qu'il) are words of their own; every other apostrophe (he's, don't, aujourd'hui) is within one.
ELIDED = rf"(?<!{LETTER})(?i:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu)['’](?={LETTER})"
WORD = rf"(?:{ELIDED}|[{INSIDE}]+(?:(?:['’-]|(?<=\p{{N}})[.,:](?=\p{{N}}))[{INSIDE}]+)*)"

# An end of a sentence: a mark, what closes behind it, a space; and then what begins one. No end is the full stop of a
# letter alone, of what has one within (e.g.), and of a few short words before names and numbers.
END = regex.compile(
    r"(?<=(?:[!?…]|(?<!\b(?:\p{L}|\p{L}\.\p{L}|Mr|Mrs|Ms|Dr|St|No|Nr|Prof|Mme|bzw|vs|cf|p|pp|vgl))\.)[\"'”’»)\]]{0,4})"
    r"(\s+)(?=[\"'“„«(\[¿¡–-]*\s?[\p{Lu}\p{Lo}\p{N}])|(?<=[。！？])(?=[^」』”）\s])"
)

_MAX_NAMES = 10_000  # names
_SEVERAL_SHARE = 0.05  # of the sentences have another behind them in their line
_START = "\n"  # stands for the beginning of the text
_SEVERAL = "\r"  # and this for lines of several sentences
_MARK = regex.compile(r"\p{M}")
_AFTER_ONE_MARK = regex.compile(rf"(?<=[{INSIDE}{SLOT}])\s?([^{INSIDE}{SLOT}\s])\s({WORD})")
_INNER_WORD = regex.compile(rf"(?<=[{INSIDE}{SLOT}]\s){WORD}")
_FIRST_WORD = regex.compile(rf"\A[^{INSIDE}{SLOT}]{{0,8}}({WORD})")


@dataclass(frozen=True)
class Capitals:
    r"""Where a text begins anew, and what has a capital anywhere.

    Attributes:
        marks: The marks after which, with a space, most words have a capital; a line feed: the text's own beginning; a
            carriage return is none: several sentences often stand in a line.
        names: Words that mostly have a capital elsewhere too; the most frequent ones.
    """

    marks: str = ""
    names: frozenset[str] = frozenset()

    @classmethod
    def learn(cls, sentences: Sequence[str]) -> "Capitals":
        """The marks of a text, those that stand alone between words, and its names."""
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
        """Sentences with the first letter of each beginning in the other case; done twice, they are as before.

        So `The` is the word `the` there, and what begins small can be told from it. Names stay as they are.
        """
        return [self._beginning.sub(lambda match: self.other_case(match[0]), sentence) for sentence in sentences]

    @property
    def several(self) -> bool:
        """Whether several sentences often stand in a line of the text that this was learnt from."""
        return _SEVERAL in self.marks

    @cached_property
    def _beginning(self) -> regex.Pattern[str]:
        marks = regex.escape(self.marks.replace(_START, "").replace(_SEVERAL, ""), special_only=False)
        patterns = [r"\A"] * (_START in self.marks) + [rf"[{marks}][^{INSIDE}{SLOT}\s]{{0,8}}\s"] * bool(marks)
        pattern = rf"(?:{'|'.join(patterns)})[^{INSIDE}{SLOT}]{{0,8}}\K{WORD}"
        return regex.compile(pattern if patterns else r"\A\b\B")

    def other_case(self, word: str) -> str:
        """A word that begins a sentence as it is within one, and the other way round."""
        small, large = _both_cases(word)
        return word if large in self.names else small if word == large else large


def _both_cases(word: str) -> tuple[str, str]:
    """A word with a small and a capital first letter; the same twice where there is no way back."""
    first = word[0]
    small, large = first.lower(), first.upper()
    is_reversible = len(small) == len(large) == 1 and small.upper() == large and large.lower() == small
    is_reversible = is_reversible and not _MARK.match(word, 1)  # I with a dot above would become one letter
    return (small + word[1:], large + word[1:]) if is_reversible and first in (small, large) else (word, word)


def sentences_of(line: str) -> tuple[list[str], list[str]]:
    """The sentences of a line, and the space between each and the next one.

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
