"""Inflected forms of a word, by endings that other words of the same vocabulary exchange too."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice

_STEM = 3  # letters, at least, that all forms of a word share
_OLD_ENDING = 3  # letters of a word, at most, that a form replaces
_NEW_ENDING = 12  # letters, at most, of a form's ending
_STEM_OF_REPLACED = 4  # letters, at least, that a word shares with a form without the word's last letters
_STEM_OF_SHORTER = 5  # letters of a form, at least, that is the beginning of the word
_SHARED = 5 / 8  # of the word's letters, at least, that all forms share
_PART = 4  # letters, at least, of a word at the end of a compound
_LINKING = 2  # letters, at most, between the words of a compound
_ENDING_WORDS = 20  # words of the vocabulary, at least, that have an ending which is a word too
_ENDING_SHARE = 1 / 125  # share of the vocabulary, at least, that has such an ending
_SUPPORT = 3  # words of the vocabulary that exchange the same endings
_MOST = 60  # forms of a word
_AFTER_ALL = "\U0010ffff"


class Forms:
    """The inflected forms of words, in lower case, that a vocabulary has.

    A word is a form of another word if both share their stem, and the endings of at least three form stems of the
    vocabulary are exchanged in the same way: `-` and `ler`, `p` and `bı`, `al` and `aux`. So languages that inflect by
    endings need no rules. Forms that differ within the stem, such as `Wort` and `Wörter`, are not found.

    Compounds such as `Zelle` and `Zellbereich` are no forms: an ending of at least four letters is no word of the
    vocabulary, unless many words have it. Short words must share at least four letters with a form that replaces their
    last ones, and five with a form that only lacks them: `chat` and `char`, `seite` and `seit` are different words.

    Args:
        words: The vocabulary, in any order.

    Example:
        >>> stems = ["hücre", "dosya", "menü", "pencere", "liste"]
        >>> forms = Forms([*stems, *(stem + "ler" for stem in stems)])
        >>> forms.of("hücre"), forms.are_forms("satır", "satırler"), forms.are_forms("hücre", "hürriyet")
        (['hücre', 'hücreler'], True, False)
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = frozenset(words)
        self._sorted = sorted(self._words)
        self._reversed = sorted(word[::-1] for word in self._words)
        self._support = lru_cache(100_000)(self._count_support)

    def __reduce__(self) -> tuple[type["Forms"], tuple[frozenset[str]]]:
        """Make copies and pickles without the cache, which cannot be pickled."""
        return Forms, (self._words,)

    def of(self, word: str) -> list[str]:
        """Return a word and its forms in the vocabulary, the most similar ones first."""
        forms = {
            form
            for form in _with_prefix(self._sorted, word[: max(_STEM, len(word) - _OLD_ENDING)])
            if form != word and self.are_forms(word, form)
        }
        return [word, *sorted(forms, key=lambda form: (len(_ending(word, form)), form))][:_MOST]

    def are_forms(self, word: str, form: str) -> bool:
        """Return whether a word, of the vocabulary or not, is a form of another word."""
        if word == form:
            return True
        stem = _common_prefix(word, form)
        if stem < len(word):
            least = _STEM_OF_SHORTER if stem == len(form) else _STEM_OF_REPLACED
            if stem < max(least, _SHARED * len(word)):
                return False
        if any(self._is_part(form[start:]) for start in range(stem, min(stem + _LINKING, len(form) - _PART) + 1)):
            return False
        stems = range(stem, max(_STEM, len(word) - _OLD_ENDING) - 1, -1)
        return any(
            len(form) - length <= _NEW_ENDING and self._support(word[length:], form[length:]) >= _SUPPORT
            for length in stems
        )

    def _is_part(self, ending: str) -> bool:
        """Return whether an ending is a word of compounds: few words of the vocabulary have it."""
        if len(ending) < _PART or ending not in self._words:
            return False
        limit = math.ceil(max(_ENDING_WORDS, _ENDING_SHARE * len(self._words)))
        return sum(1 for _ in islice(_with_prefix(self._reversed, ending[::-1]), limit)) < limit

    def _count_support(self, old: str, new: str) -> int:
        """Count the stems that the vocabulary has with both endings, up to `_SUPPORT`."""
        count = 0
        rarer, common = (new, old) if len(new) >= len(old) else (old, new)
        for backwards in _with_prefix(self._reversed, rarer[::-1]):
            stem = backwards[len(rarer) :][::-1]
            count += len(stem) >= _STEM and stem + common in self._words
            if count >= _SUPPORT:
                break
        return count


def _with_prefix(words: list[str], prefix: str) -> Iterator[str]:
    first, last = bisect_left(words, prefix), bisect_left(words, prefix + _AFTER_ALL)
    return (words[index] for index in range(first, last))


def _common_prefix(word: str, form: str) -> int:
    pairs = enumerate(zip(word, form, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(word), len(form)))


def _ending(word: str, form: str) -> str:
    return form[_common_prefix(word, form) :]
