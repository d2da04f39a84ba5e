"""Collecting the sentences, and parting them for training."""

from collections import Counter
from functools import cache
from itertools import chain

from phrasebook import questions, sentences, short
from phrasebook.dice import Dice
from phrasebook.grammar import Pair
from phrasebook.ingredients import Pattern
from phrasebook.links import pharaoh

SHORT_COUNT = 600
HELD_OUT_COUNT = 1000
# A word beyond the short sentences is used at least this often, and a held-out word met this often in training.
_LEAST_USED = 12
_LEAST_MET = 8
_SEED = 1848


def pairs() -> list[Pair]:
    """Gives all English sentences with their French translations.

    The first 600 are short; the others follow by their number of words. No English sentence occurs twice, and the same
    list comes back on every machine.

    Returns:
        The (English, French) pairs, as a new list.

    Examples:
        >>> book = pairs()
        >>> len(book) > 20_000
        True
        >>> ("I'm home.", "Je suis chez moi.") in book[:600]
        True
    """
    return list(_collected())


def split() -> tuple[list[Pair], list[Pair]]:
    """Parts the phrasebook into pairs to learn from and pairs to be tested on.

    The held-out pairs are spread evenly over all kinds and lengths of sentence after the first 600, and each of their
    words occurs several times among the training pairs.

    Returns:
        The training pairs and about 1,000 held-out pairs, both in the order of `pairs`.

    Examples:
        >>> training, held_out = split()
        >>> len(training) + len(held_out) == len(pairs()), len(set(training) & set(held_out))
        (True, 0)
    """
    training, held_out = _parted()
    return list(training), list(held_out)


def rows() -> list[tuple[str, ...]]:
    """Gives each pair with its part, training or test, the latter with its links, as the data file has it."""
    held_out = frozenset(_parted()[1])
    return [(*pair, "test", pharaoh(*pair)) if pair in held_out else (*pair, "training") for pair in _collected()]


@cache
def _collected() -> tuple[Pair, ...]:
    found: dict[str, Pair] = {}
    for pair in short.opening():
        _add(found, pair)
    dice = Dice(_SEED)
    _draw(found, short.PATTERNS, dice, SHORT_COUNT)
    _draw(found, sentences.PATTERNS + questions.PATTERNS, dice)
    everything = list(found.values())
    beginning = everything[:SHORT_COUNT]
    return (*_by_length(beginning), *_by_length(_familiar(beginning, everything[SHORT_COUNT:])))


def _by_length(book: list[Pair]) -> list[Pair]:
    return sorted(book, key=lambda pair: pair[0].count(" "))


def _familiar(beginning: list[Pair], rest: list[Pair]) -> list[Pair]:
    """Leaves out of `rest` the sentences with a word that the book hardly ever uses: nobody learns a word from those.

    Words of the beginning stay. Leaving a sentence out makes its other words rarer, hence the rounds.
    """
    spelled = {pair: _both(*pair) for pair in (*beginning, *rest)}
    met = Counter(chain.from_iterable(spelled.values()))
    begun = set(chain.from_iterable(spelled[pair] for pair in beginning))
    while True:
        rare = {word for word, count in met.items() if count < _LEAST_USED} - begun
        kept = [pair for pair in rest if rare.isdisjoint(spelled[pair])]
        if len(kept) == len(rest):
            return rest
        for pair in set(rest).difference(kept):
            met.subtract(spelled[pair])
        rest = kept


def _draw(
    found: dict[str, Pair], patterns: tuple[tuple[int, Pattern], ...], dice: Dice, limit: int | None = None
) -> None:
    """Draws the wanted number of new sentences from each pattern, and never more than `limit` in all."""
    for count, pattern in patterns:
        goal = len(found) + count
        if limit is not None:
            goal = min(goal, limit)
        while len(found) < goal:
            _add(found, pattern(dice))


def _add(found: dict[str, Pair], pair: Pair) -> None:
    english, french = pair
    known = found.setdefault(english.lower(), pair)
    if known[1] != french:
        raise ValueError(f"two translations of {english!r}: {known[1]!r} and {french!r}")


@cache
def _both(english: str, french: str) -> tuple[str, ...]:
    """Gives the words of both sides, French ones in capitals: the languages share some."""
    return tuple(_spaced(f"{english.lower()} {french.upper()}").split())


def _spaced(text: str) -> str:
    return text.replace(".", " .").replace(",", " ,").replace("!", " !").replace("?", " ?")


@cache
def _parted() -> tuple[tuple[Pair, ...], tuple[Pair, ...]]:
    book = _collected()
    met: Counter[str] = Counter()
    for pair in book:
        met.update(_both(*pair))
    step = (len(book) - SHORT_COUNT) / HELD_OUT_COUNT
    held_out = []
    for number in range(HELD_OUT_COUNT):
        pair = book[SHORT_COUNT + int(number * step)]
        mine = Counter(_both(*pair))
        if all(met[word] - count >= _LEAST_MET for word, count in mine.items()):
            met -= mine
            held_out.append(pair)
    chosen = frozenset(held_out)
    return tuple(pair for pair in book if pair not in chosen), tuple(held_out)
