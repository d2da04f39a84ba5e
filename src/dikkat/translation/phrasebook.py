"""An English-French phrasebook: 26,125 sentence pairs, composed from a small grammar and lexicon.

French distinguishes forms that English does not. The phrasebook always chooses the same one, so that the English
sentence determines its translation:

| English | French |
| --- | --- |
| I, you, we, they | masculine; `you` is tu, one person; `they` is ils |
| friend, teacher, doctor, student, child, neighbor, cousin | masculine |
| `he eats` | présent |
| `he ate` | passé composé; for states (be, have, want, like, know, live) imparfait: `he wanted`, il voulait |
| `he's going to eat` | futur proche |
| a bare noun: `he drinks water` | partitive, il boit de l'eau; after like the definite article, il aime l'eau |
| a question | est-ce que; only `where is` and `who` as a subject go without |
| a command | tu with an exclamation mark: `Go.`, Va ! |
| big, tall | grand; of an animal, big is gros |
| know someone, know that, know how | connaître, savoir, savoir |

The columns of `phrasebook.tsv` in this folder: English, French, training or test, and the links of a test pair.

Examples:
    >>> from dikkat.translation import phrasebook
    >>> training, held_out = phrasebook.split()
    >>> ("Go.", "Va !") in training
    True
"""

from functools import cache
from importlib.resources import files

__all__ = ["links", "pairs", "split"]

Pair = tuple[str, str]


def pairs() -> list[Pair]:
    """Return all English sentences with their French translations.

    The first 600 are short; the rest are sorted by their number of words. No English sentence occurs twice.

    Returns:
        The (English, French) pairs, as a new list.

    Examples:
        >>> book = pairs()
        >>> len(book) > 20_000
        True
        >>> ("I'm home.", "Je suis chez moi.") in book[:600]
        True
    """
    return [pair for pair, *_ in _book()]


def split() -> tuple[list[Pair], list[Pair]]:
    """Split the phrasebook into training pairs and held-out pairs.

    The held-out pairs are spread evenly over all kinds and lengths of sentence after the first 600, and each of their
    words occurs several times among the training pairs.

    Returns:
        The training pairs and about 1,000 held-out pairs, both in the order of `pairs`.

    Examples:
        >>> training, held_out = split()
        >>> len(training) + len(held_out) == len(pairs()), len(set(training) & set(held_out))
        (True, 0)
    """
    training = [pair for pair, subset, _ in _book() if subset == "training"]
    held_out = [pair for pair, subset, _ in _book() if subset == "test"]
    return training, held_out


def links() -> list[str]:
    """Return the word links of the held-out pairs, which are known by construction.

    A determiner may link to the determiner or to the noun that determines its form. Each word of an expression, such
    as last night, links to all words of its translation. A word without a counterpart links to a neighbouring word.

    Returns:
        One line per pair in the Pharaoh format, with sure and possible links of words: `0-0 1p1 1-2`.

    Examples:
        >>> len(links()) == len(split()[1])
        True
    """
    return [pair_links for _, subset, pair_links in _book() if subset == "test"]


@cache
def _book() -> tuple[tuple[Pair, str, str], ...]:
    """Return (pair, "training" or "test", links of a test pair) of each row."""
    text = files("dikkat.translation").joinpath("phrasebook.tsv").read_text(encoding="utf-8")
    rows = (line.split("\t") for line in text.splitlines())
    return tuple(((english, french), subset, "".join(links)) for english, french, subset, *links in rows)
