"""Drawing the parts of a sentence: subjects, objects, tenses, things to add."""

from collections.abc import Callable
from typing import get_args

from phrasebook import lexicon as lex
from phrasebook import verbs
from phrasebook.dice import Dice
from phrasebook.grammar import (
    PRONOUNS,
    Clause,
    NounPhrase,
    Pair,
    Polarity,
    Predicate,
    Subject,
    Tense,
    Verb,
)
from phrasebook.lexicon import Adjective, Noun
from phrasebook.verbs import Frame, Style

_UNGRADED = frozenset({"ready", "alone", "free", "new", *(color.english for color in lex.COLORS)})
MODALS = (verbs.WANT, verbs.CAN, verbs.MUST)
CATENATIVES = (verbs.WANT, verbs.CAN, verbs.MUST, verbs.LIKE, verbs.START, verbs.TRY)
ALL_FRAMES = verbs.EATING + verbs.READING + verbs.HANDLING + verbs.MEETING + verbs.MOVING
# What one can be told to do, or can want to do.
WILLED = tuple(
    frame
    for frame in ALL_FRAMES
    if not frame.verb.stative and frame.verb.english not in {"lose", "break", "arrive at", "see", "understand"}
)
POSSESSIVES = ("my", "your", "his", "her", "our", "their")
Pattern = Callable[[Dice], Pair]
TENSES: tuple[Tense, ...] = get_args(Tense)
# The object pronouns that mean, or include, the subject itself.
OWN = {"I": ("me", "us"), "you": ("you", "us"), "we": ("me", "us", "you")}
# I, you and we twice, since people share the verb forms of he, she and they.
_WHO = PRONOUNS + tuple(pronoun for pronoun in PRONOUNS if pronoun.person in (0, 1, 3))
NOTHING: Pair = ("", "")
# The determiners of each style of object, each with whether it may be plural.
_STANDS: dict[Style, tuple[tuple[str, bool], ...]] = {
    "mass": (("bare", False),) * 3 + (("the", False), ("this", False)),
    "the": (("the", False),) * 4 + (("my", False), ("this", False)),
    "place": (("the", False),) * 4 + (("this", False),),
    "food": (
        *(("a", False), ("a", False), ("my", False), ("this", False), ("the", True)),
        *(("bare", True), ("bare", True), ("my", True), ("this", True), ("two", True)),
    ),
    "person": (("a", False), ("the", False), ("the", False), ("this", False)),
    "owned": (("a", False), ("a", False), ("bare", True), ("two", True)),
    "one": (("a", False),) * 2 + (("the", False), ("my", False), ("this", False)),
    "any": (
        *(("a", False), ("a", False), ("the", False), ("my", False), ("this", False)),
        *(("bare", True), ("bare", True), ("the", True), ("my", True), ("this", True), ("two", True)),
    ),
    "generic": (("generic", True), ("the", False), ("this", False), ("my", False)),
}
_TIMES = {"present": lex.HABITUAL_TIMES, "past": lex.PAST_TIMES, "future": lex.FUTURE_TIMES}
# English does not tell the past of these from their present.
_SAME_PAST = frozenset({"read", "put"})


def subject(dice: Dice) -> Subject:
    """Draws who does it: a pronoun or people."""
    return dice.pick(_WHO) if dice.chance(0.6) else people(dice)


def people(dice: Dice) -> Subject:
    """Draws people: the old man, my sister, her neighbors."""
    if dice.chance(0.5):
        return Subject.of(relative(dice))
    plural = dice.chance(0.3)
    adjective = dice.pick(lex.NOUN_CHARACTERS) if dice.chance(0.15) else None
    return Subject.of(NounPhrase(dice.pick(lex.PEOPLE), dice.pick(("the", "the", "this")), plural, adjective))


def relative(dice: Dice) -> NounPhrase:
    """Draws someone who belongs to someone: my father, her cousins."""
    noun = dice.pick(lex.FAMILY)
    return NounPhrase(noun, dice.pick(POSSESSIVES), noun not in lex.PARENTS and dice.chance(0.3))


def thing(dice: Dice, nouns: tuple[Noun, ...], adjectives: tuple[Adjective, ...] = ()) -> Subject:
    """Draws something as a subject: the red car, these keys."""
    adjective = dice.pick(adjectives) if adjectives and dice.chance(0.25) else None
    determiner = dice.pick(("the", "the", "this", dice.pick(POSSESSIVES)))
    return Subject.of(NounPhrase(dice.pick(nouns), determiner, dice.chance(0.3), adjective))


def phrase(dice: Dice, nouns: tuple[Noun, ...], style: Style, adjectives: tuple[Adjective, ...] = ()) -> NounPhrase:
    """Draws a noun phrase in a style."""
    determiner, plural = dice.pick(_STANDS[style])
    if determiner == "my":
        determiner = dice.pick(POSSESSIVES)
    elif determiner == "two":
        determiner = dice.pick(lex.NUMBERS)[0]
    noun = dice.pick(nouns)
    if determiner == "generic" and noun in lex.FOOD + lex.DRINKS:
        plural = False
    adjective = dice.pick(adjectives) if adjectives and determiner != "generic" and dice.chance(0.3) else None
    return NounPhrase(noun, determiner, plural, adjective)


def predicate(dice: Dice, frame: Frame) -> Predicate:
    """Draws an object for a frame's verb."""
    nouns, style = frame.nouns, frame.style
    if frame.nouns is lex.FAMILY:  # relatives belong to someone
        return Predicate.with_object(frame.verb, relative(dice), frame.preposition)
    return Predicate.with_object(frame.verb, phrase(dice, nouns, style, frame.adjectives), frame.preposition)


def place(dice: Dice, inside: bool = False) -> Pair:
    """Draws where something happens, perhaps only `inside` a home."""
    if dice.chance(0.25):
        return "at home", "chez {self}"
    if inside or dice.chance(0.5):
        room = NounPhrase(dice.pick(lex.ROOMS), dice.pick(("the", "the", "my", "her")))
        return f"in {room.english}", f"dans {room.french}"
    spot = NounPhrase(dice.pick(lex.PLACES))
    return f"at {spot.english}", f"à {spot.french}"


def extra(dice: Dice, kinds: str, tense: Tense) -> Pair:
    """Draws something to add at the end, of the kinds that a verb allows, or nothing."""
    if not kinds or dice.chance(0.4):
        return NOTHING
    kind = dice.pick(kinds)
    if kind == "t":
        return dice.pick(_TIMES[tense])
    return place(dice, kind == "h") if kind in "ph" else dice.pick(lex.COMPANY)


def polarity(dice: Dice, tense: Tense) -> Polarity:
    """Draws affirmation or negation; never is not said of what is about to happen."""
    if dice.chance(0.65):
        return ""
    return "never" if tense != "future" and dice.chance(0.35) else "not"


def is_lasting(what: Predicate) -> bool:
    """Tells states such as liking and knowing, which have no times and no near future."""
    return what.verb.stative and what.verb.english not in ("be", "have")


def tense_of(dice: Dice, what: Predicate) -> Tense:
    """Draws a tense; nobody is going to want or to know."""
    timeless = is_lasting(what)
    return dice.pick(TENSES[:2] if timeless else (*TENSES, *TENSES[:1]))


def denial(dice: Dice, probability: float = 0.25) -> Polarity:
    """Draws not, or nothing."""
    return "not" if dice.chance(probability) else ""


def clause(dice: Dice, who: Subject, what: Predicate, extras: str) -> Clause:
    """Draws tense, polarity, and what is added to a predicate."""
    tense = tense_of(dice, what)
    negation = denial(dice, 0.35) if what.verb.stative else polarity(dice, tense)
    often = tense == "present" and not negation and not what.verb.stative and dice.chance(0.25)
    if often:
        return Clause(who, what, tense, "", dice.pick(lex.FREQUENCIES))
    added = extra(dice, extras if negation != "never" else extras.replace("t", ""), tense)
    if tense == "past" and not negation and what.verb.english in _SAME_PAST:
        added = dice.pick(lex.PAST_TIMES)
    return Clause(who, what, tense, negation, NOTHING, fitting(dice, who, added))


def fitting(dice: Dice, who: Subject, added: Pair) -> Pair:
    """Keeps company and subject apart: nobody goes with themselves."""
    if added in lex.COMPANY:
        return dice.pick([pair for pair in lex.COMPANY if pair[0][5:] not in OWN.get(who.english, ())])
    return added


def question_clause(dice: Dice, who: Subject, what: Predicate, extras: str = "") -> Clause:
    """Draws an affirmative clause to be asked."""
    tense = tense_of(dice, what)
    return Clause(who, what, tense, "", NOTHING, fitting(dice, who, extra(dice, extras, tense)))


def is_predicate(dice: Dice, adjectives: tuple[Adjective, ...], degree: float = 0.25) -> Predicate:
    """Draws an adjective after to be, perhaps with very or too."""
    adjective = dice.pick(adjectives)
    graded = adjective.english not in _UNGRADED and dice.chance(degree)
    english, french = dice.pick(lex.DEGREES) if graded else NOTHING
    return Predicate.simple(verbs.BE, f"{english} {adjective.english}".strip(), french, adjective)


def busy_with(dice: Dice) -> Predicate:
    """Draws a fixed phrase, a language or a sport."""
    if dice.chance(0.35):
        verb = dice.pick((verbs.SPEAK, verbs.LEARN))
        english, french = dice.pick(lex.LANGUAGES)
        return Predicate.simple(verb, english, french if verb is verbs.SPEAK else f"le {french}")
    if dice.chance(0.4):
        return Predicate.simple(verbs.PLAY, *dice.pick(lex.SPORTS))
    english, french, object_english, object_french, negated = dice.pick(verbs.PHRASES)
    return Predicate(Verb(english, french), object_english, object_french, negated)


def action(dice: Dice) -> Predicate:
    """Draws something that one can want to do, with or without an object."""
    if dice.chance(0.3):
        return Predicate.simple(dice.pick(verbs.ACTIVITIES + verbs.SKILLS[:1]))
    return busy_with(dice) if dice.chance(0.25) else predicate(dice, dice.pick(WILLED))
