"""Terms: words and phrases whose translation the user gives."""

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from dikkat.errors import InputError
from dikkat.translation.data.corpus import TsvCorpus
from dikkat.translation.text.slots import find_span_offsets
from dikkat.translation.text.special_tokens import SLOTS
from dikkat.translation.text.units import UNIT, UNSPACED

LONGEST = 1_000
"""The most characters of a term."""


class Occurrence(NamedTuple):
    """An occurrence of a source term in a text: its first character, the one after its last, and both terms."""

    start: int
    end: int
    source: str
    target: str


@dataclass(frozen=True)
class Terms:
    """Source terms and their translations.

    A term matches whole words: with the given letters, with a capital first letter, or in capital letters. At each
    place of a text, the longest term matches.

    Attributes:
        targets: The translation of each source term.

    Raises:
        InputError: A term is empty, has no letter or digit, has superfluous spaces, or is longer than `LONGEST`
            characters.
        TypeError: A term is not a string.

    Example:
        >>> terms = Terms.of({"data range": "Datenbereich", "range": "Bereich"})
        >>> [(term.source, term.start) for term in terms.find("Range of a data range, arrange.")]
        [('range', 0), ('data range', 11)]
    """

    targets: Mapping[str, str]

    def __post_init__(self) -> None:
        for number, pair in enumerate(self.targets.items(), start=1):
            for term in pair:
                if _check_term(term, f"terms, term {number}") != term:
                    raise InputError(
                        f"terms, term {number}: got {term!r:.80}; expected single spaces between words and no outer "
                        "spaces, as of `Terms.of`"
                    )

    @classmethod
    def of(cls, terms: "Terms | Mapping[str, str]") -> "Terms":
        """Return terms from a mapping of source terms to their translations, without outer spaces.

        Raises:
            InputError: A term is empty, has no letter or digit, or is longer than `LONGEST` characters.
            TypeError: A term is not a string.
        """
        return terms if isinstance(terms, Terms) else cls.of_pairs(terms.items())

    @classmethod
    def of_pairs(cls, pairs: Iterable[tuple[str, str]], name: str = "terms") -> "Terms":
        """Return terms from pairs. Of several translations of a term, the last one is used, with a warning."""
        targets: dict[str, str] = {}
        for number, pair in enumerate(pairs, start=1):
            source, target = (_check_term(term, f"{name}, term {number}") for term in pair)
            if targets.get(source, target) != target:
                warnings.warn(
                    f"{name}: got two translations of {source!r}, {targets[source]!r} and {target!r}; dikkat uses the "
                    "last one",
                    UserWarning,
                    stacklevel=3,
                )
            targets[source] = target
        return cls(targets)

    @classmethod
    def read(cls, path: str | Path) -> "Terms":
        r"""Read terms from a table, as `TsvCorpus` reads it: a term, a tab and its translation in each line, or a CSV.

        Raises:
            CorpusError: A line has no translation; the message names the line.
            OSError: The file cannot be opened.

        Example:
            >>> import tempfile
            >>> path = Path(tempfile.mkdtemp(), "terms.tsv")
            >>> _ = path.write_text("chuck\tmandrin\n", encoding="utf-8")
            >>> Terms.read(path).targets
            {'chuck': 'mandrin'}
        """
        return cls.of_pairs(TsvCorpus(path), str(path))

    def find(self, text: str) -> list[Occurrence]:
        """Return the terms in a text, in order and without overlaps; none is a part of an address or placeholder."""
        occurrences, end, spans = list[Occurrence](), 0, find_span_offsets(text)
        for unit in UNIT.finditer(text):
            start = unit.start()
            if start < end:
                continue
            for term in self._by_first_unit.get(_key(unit[0]), ()):
                stop = start + len(term)
                is_whole = all(stop <= a or b <= start or (start <= a and b <= stop) for a, b in spans)
                if is_whole and _matches(term, text[start:stop]) and _ends_word(text, stop):
                    end = stop
                    occurrences.append(Occurrence(start, end, term, self.targets[term]))
                    break
        return occurrences

    @cached_property
    def _by_first_unit(self) -> Mapping[str, Sequence[str]]:
        """The source terms by their first unit; longer terms, and terms in the text's case, come first."""
        terms = defaultdict[str, list[str]](list)
        for source in sort_terms(self.targets):
            if first := UNIT.search(source):
                terms[_key(first[0])].append(source)
        return terms


NO_TERMS = Terms({})
"""No terms."""


def sort_terms(terms: Iterable[str]) -> list[str]:
    """Return terms with the most characters first, and of equal length in the order of their code points."""
    return sorted(terms, key=lambda term: (-len(term), term))


def _check_term(term: str, name: str) -> str:
    if not isinstance(term, str):
        raise TypeError(f"{name}: got {type(term).__name__}; expected a string")
    stripped = " ".join(term.split())
    if not any(map(str.isalnum, stripped)) or not set(SLOTS).isdisjoint(stripped) or len(stripped) > LONGEST:
        raise InputError(f"{name}: got {term!r:.80}; expected words, at most {LONGEST:,} characters")
    return stripped


def _key(unit: str) -> str:
    return unit.rstrip("'’").casefold().replace("i\u0307", "i").replace("ı", "i")  # İ is i with a dot


def _matches(term: str, text: str) -> bool:
    dotted = term.replace("i", "İ")  # capitals in Turkish
    capitals = {upper[0] + term[1:] for upper in (term.upper(), dotted.upper())}
    return text == term or text in capitals or (len(term) > 1 and text in (term.upper(), dotted.upper()))


def _ends_word(text: str, end: int) -> bool:
    after = UNIT.match(text, end)
    is_inside = after is not None and text[end].isalnum() and text[end - 1].isalnum()
    return not is_inside or bool(UNSPACED.match(text, end)) or bool(UNSPACED.fullmatch(text[end - 1]))
