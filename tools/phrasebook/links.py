"""Which word of a pair says which: known by construction, since every word comes from the lexicon or from a rule.

The morphs of a sentence are its words, contractions parted (`he` `'s`, `l'` `homme`). What the lexicon has as one entry
is linked for sure, and so are determiners, pronouns, negations and auxiliaries with their counterparts. What one
language alone has (est-ce que, the particle ne, the article of de l'eau, do) may be linked to the words of its phrase.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from functools import cache
from itertools import product
from typing import NamedTuple

from phrasebook import english as en
from phrasebook import french as fr
from phrasebook import lexicon as lex
from phrasebook import verbs
from phrasebook.grammar import Pair, Verb
from phrasebook.lexicon import Adjective, Noun

Link = tuple[int, int]
Phrase = tuple[str, ...]

_OPERATORS = frozenset({"am", "are", "is", "was", "were", "do", "does", "did", "can", "must"})
_ENGLISH = re.compile(r"[a-z]+(?=n't)|n't|'(?:s|m|re)|[a-z]+|[.?]", re.IGNORECASE)
_FRENCH = re.compile(r"aujourd'hui|(?:qu|[lcdjmnst])'|[\w-]+|[.?!]", re.IGNORECASE)
_FULL = {"ca": "can", "n't": "not", "'m": "am", "'re": "are", "'s": "is"}
_ELIDED = {"j'": "je", "m'": "me", "t'": "te", "n'": "ne", "c'": "ce", "qu'": "que", "d'": "de", "l'": "le", "s'": "se"}

# Words that are no entry of the lexicon, with the French words that each stands for.
_WORDS = {
    "i": "je", "you": "tu te toi", "he": "il", "she": "elle", "we": "nous", "they": "ils", "me": "me moi",
    "him": "le lui", "her": "la le elle sa son ses", "us": "nous", "them": "les eux", "not": "pas", "never": "jamais",
    "who": "qui", "what": "que", "where": "où", "when": "quand", "why": "pourquoi", "that": "que", "than": "que",
    "the": "le la les au aux du", "a": "un une de", "an": "un une de", "this": "ce cet cette", "these": "ces ce",
    "my": "mon ma mes", "your": "ton ta tes", "his": "son sa ses", "our": "notre nos", "their": "leur leurs",
    "am": "suis ai", "are": "es sont sommes as avons ont a", "is": "est a", "was": "étais était avais avait",
    "were": "étais étions étaient avais avions avaient avait", "be": "être avoir", "very": "très", "too": "trop",
    "so": "si", "front": "devant", "to": "à au aux", "at": "à au aux chez", "on": "sur en", "under": "sous",
    "in": "dans", "behind": "derrière", "near": "près", "with": "avec", "because": "parce", "home": "chez",
    "years": "ans", "there": "y", "many": "combien", "together": "ensemble",
}  # fmt: skip
_FRENCH_DETERMINERS = frozenset(
    " ".join(_WORDS[word] for word in ("the", "a", "this", "these", "my", "your", "his", "our", "their")).split()
) | {"des"}
# Phrases whose words answer each other in part.
_PARTS = {
    "last night": "hier soir", "this morning": "ce matin", "last week": "semaine:week dernière:last",
    "yesterday morning": "hier:yesterday matin:morning", "next week": "semaine:week prochaine:next",
    "this afternoon": "cet:this après-midi:afternoon", "tomorrow morning": "demain:tomorrow matin:morning",
    "every day": "tous:every jours:day", "in the morning": "matin:morning", "tonight": "soir",
    "in the evening": "soir:evening", "every week": "toutes:every semaines:week", "on weekends": "week-end:weekends",
}  # fmt: skip


class Links(NamedTuple):
    """The links of a pair between its morphs, counted from 0, and the characters of these.

    Attributes:
        sure: Those that hold.
        possible: Those that may be drawn, the sure ones among them.
        source: First character and the one behind the last, of each English morph.
        target: The same of each French one.
    """

    sure: frozenset[Link]
    possible: frozenset[Link]
    source: list[tuple[int, int]]
    target: list[tuple[int, int]]


def links(english: str, french: str) -> Links:
    """Links the morphs of a pair of the phrasebook.

    Examples:
        >>> found = links("I'm hungry.", "J'ai faim.")
        >>> sorted(found.sure)
        [(0, 0), (1, 1), (2, 2), (3, 3)]
        >>> ["I'm hungry."[start:end] for start, end in found.source]
        ['I', "'m", 'hungry', '.']
    """
    ours, theirs = list(_ENGLISH.finditer(english)), list(_FRENCH.finditer(french))
    source = [_FULL.get(morph, morph) for morph in (each[0].lower() for each in ours)]
    target = [_ELIDED.get(morph, morph) for morph in (each[0].lower() for each in theirs)]
    sure = {(len(source) - 1, len(target) - 1)}
    sure |= _matched(source, target, {"going": {"vais", "vas", "va", "allons", "vont"}}, sure)
    sure |= _matched(source, target, _content(), sure)
    content = set(sure)
    sure |= _matched(source, target, {word: set(text.split()) for word, text in _WORDS.items()}, sure)
    possible = sure | set(_around(len(source), len(target), sure, content))
    # The form of a determiner comes from its noun as well: le médecin, la femme, cet ami.
    nouns = [link for link in content if source[link[0]] in _nouns()]
    possible |= {(noun, det) for det, (noun, _) in _before(target, _FRENCH_DETERMINERS, nouns)}
    for entry in (
        *_fixed(),
        ("there is", "il y"),
        ("there are", "il y"),
        ("there was", "il y"),
        ("there were", "il y"),
    ):
        ours_, theirs_ = (_run(each, text.split()) for each, text in zip((source, target), entry, strict=True))
        possible |= set(product(ours_, theirs_))
    negated = [place for place, word in enumerate(source) if word in ("not", "never")]
    possible |= set(product(negated, [place for place, word in enumerate(target) if word == "ne"]))
    if "est-ce" in target:  # English asks by the place of its first verb, and both by the mark
        asks = target.index("est-ce")
        first = next(place for place, word in enumerate(source) if word in _OPERATORS)
        possible |= set(product((first, len(source) - 1), (asks, asks + 1)))
    return Links(frozenset(sure), frozenset(possible), [each.span() for each in ours], [each.span() for each in theirs])


def words(english: str, french: str) -> tuple[set[Link], set[Link]]:
    """Gives the sure and the possible links of a pair between its words, which white space separates.

    Examples:
        >>> sure, possible = words("I'm hungry.", "J'ai faim.")
        >>> sorted(sure)
        [(0, 0), (1, 1)]
    """
    found = links(english, french)
    places = [
        [len(text[:start].split(" ")) - 1 for start, _ in spans]
        for text, spans in ((english, found.source), (french, found.target))
    ]
    sure, possible = (
        {(places[0][ours], places[1][theirs]) for ours, theirs in chosen} for chosen in (found.sure, found.possible)
    )
    return sure, possible


def pharaoh(english: str, french: str) -> str:
    """Gives the links of words as a line of a file: `0-0 1p1`, sure and merely possible.

    Examples:
        >>> pharaoh("He ate.", "Il a mangé.")
        '0-0 0p1 1p1 1-2'
    """
    sure, possible = words(english, french)
    return " ".join(f"{ours}{'-' if (ours, theirs) in sure else 'p'}{theirs}" for ours, theirs in sorted(possible))


def _matched(source: list[str], target: list[str], known: dict[str, set[str]], before: set[Link]) -> set[Link]:
    """Links of words to their translations among those that are free: those with one choice first, then the nearest."""
    found: set[Link] = set()
    while True:
        placed = sorted(before | found)
        mine, taken = {ours for ours, _ in placed}, {theirs for _, theirs in placed}
        choices = []
        for ours, word in enumerate(source):
            open_ = [place for place, other in enumerate(target) if place not in taken and other in known.get(word, ())]
            if ours not in mine and open_:
                # The nearest is the one just before the translation of the next word.
                after = min((link for link in placed if link[0] > ours), default=(ours, ours))
                expected = after[1] - (after[0] - ours)
                choices.append((len(open_), *min((abs(place - expected), ours, place) for place in open_)))
        if not choices:
            return found
        found.add(min(choices)[2:])


def _around(ours: int, theirs: int, sure: set[Link], content: set[Link]) -> Iterator[Link]:
    """Links of words without a translation of their own to what stands beside them, and to each other there."""
    anchors: tuple[dict[int, set[Link]], dict[int, set[Link]]] = ({}, {})
    for side, count in ((0, ours), (1, theirs)):
        for place in set(range(count)) - {link[side] for link in sure}:
            before = [link for link in sure if link[side] < place]
            after = [link for link in sure if link[side] > place]
            heads = [link for link in after if link in content]
            anchors[side][place] = {
                *([max(before, key=lambda link: link[side])] if before else []),
                *(min(each, key=lambda link: link[side]) for each in (after, heads) if each),
            }
    for place, near in anchors[0].items():
        yield from ((place, link[1]) for link in near)
        yield from ((place, other) for other, beside in anchors[1].items() if near & beside)
    for place, near in anchors[1].items():
        yield from ((link[0], place) for link in near)


def _before(target: list[str], determiners: Set[str], nouns: list[Link]) -> Iterator[tuple[int, Link]]:
    """The determiners of a sentence, each with the link of the noun that follows it, perhaps after an adjective."""
    for place, word in enumerate(target):
        near = min((link for link in nouns if link[1] > place), key=lambda link: link[1], default=None)
        if word in determiners and near and near[1] - place <= 2:
            yield place, near


def _fixed() -> Iterator[Pair]:
    """Entries of several words, which say one thing: last night, hier soir."""
    for table in (lex.PAST_TIMES, lex.FUTURE_TIMES, lex.HABITUAL_TIMES, lex.CURRENT_TIMES, lex.CONDITIONS):
        yield from (entry for entry in table if "{" not in entry[1])


def _run(words: list[str], part: list[str]) -> Iterable[int]:
    """The places of some words that stand beside each other; none where they do not."""
    starts = (start for start in range(len(words)) if words[start : start + len(part)] == part)
    return next((range(start, start + len(part)) for start in starts), ())


@cache
def _nouns() -> frozenset[str]:
    names = (value for value in vars(lex).values() if isinstance(value, tuple))
    nouns = [each for table in names for each in table if isinstance(each, Noun)]
    return frozenset(word for each in nouns for text in (each.english, each.plural_english) for word in text.split())


@cache
def _content() -> dict[str, set[str]]:
    """The words of the lexicon, each form with all French ones."""
    found: dict[str, set[str]] = defaultdict(set)
    for english, french in _PARTS.items():
        for word in french.split():
            other, _, one = word.partition(":")
            found[one or english.split()[-1]].add(other)
    found["last"].add("hier")
    for english, french in _phrases():
        for ours, theirs in _pairs(english, french):
            found[ours].add(theirs)
    return dict(found)


def _pairs(english: str, french: str) -> Iterator[Pair]:
    ours = english.split()
    theirs = [
        word for word in re.sub(r"\b[ld]'", "", french).split() if word not in ("à", "de", "le", "la", "les", "en")
    ]
    yield from product(ours[:1] if len(theirs) == 1 and len(ours) > 1 and ours[-1] in _PARTICLES else ours, theirs)


_PARTICLES = frozenset({"for", "to", "up", "out", "bed", "at", "in", "near", "how", "home"})


def _phrases() -> Iterator[tuple[str, str]]:
    """Every form of every entry, with each of its translations."""
    for name in dir(lex):
        for each in getattr(lex, name) if isinstance(getattr(lex, name), tuple) else ():
            if isinstance(each, Noun):
                yield from product((each.english, each.plural_english), (each.french, each.plural_french))
            elif isinstance(each, Adjective):
                agreeing = product((False, True), repeat=2)
                forms = {each.french(feminine, plural) for feminine, plural in agreeing}
                forms.add(each.french(feminine=False, plural=False, following="a"))
                yield from product({each.english, lex.COMPARATIVES.get(each.english, each.english)}, forms)
            elif name not in ("PAST_TIMES", "FUTURE_TIMES", "HABITUAL_TIMES", "CURRENT_TIMES", "COMPANY", "CONDITIONS"):
                yield each[0].lower().removeprefix("the "), each[1]
    yield from (
        ("yesterday", "hier"), ("tomorrow", "demain"), ("today", "aujourd'hui"), ("now", "maintenant"),
        ("late", "retard"), ("early", "avance"), ("angry", "colère"), ("here", "ici"), ("vacation", "vacances"),
        ("as", "aussi"), ("as", "que"),
    )  # fmt: skip
    for verb in _all_verbs():
        head = verb.english
        ours = (head, en.third_person(head), en.past(head))
        theirs = {*fr.present(verb.french), *fr.imperfect(verb.french), verb.french, *_participles(verb.french)}
        yield from product(ours, theirs | {fr.imperative(verb.french), fr.imperative(verb.french, together=True)})
    for _, _, object_english, object_french, _ in verbs.PHRASES:
        yield object_english.removeprefix("the "), object_french


def _participles(french: str) -> Iterable[str]:
    return [fr.participle(french, *kind) for kind in product((False, True), repeat=2)]


def _all_verbs() -> Iterator[Verb]:
    for name in dir(verbs):
        value = getattr(verbs, name)
        for each in value if isinstance(value, tuple) else [value]:
            verb = each.verb if isinstance(each, verbs.Frame) else each
            if isinstance(verb, Verb) and verb.english != "be":
                yield verb
    yield from (Verb("put", "mettre"), Verb("live", "habiter"))
    yield from (Verb(english, french) for english, french, *_ in verbs.PHRASES)
