"""The short sentences that the phrasebook begins with: two to five words, few words in all, many times each."""

from phrasebook import lexicon as lex
from phrasebook import verbs
from phrasebook.dice import Dice
from phrasebook.grammar import PRONOUNS, Clause, Pair, Predicate, Verb, question, statement
from phrasebook.ingredients import TENSES, Pattern, is_predicate
from phrasebook.sentences import command, pronoun_object

_ADJECTIVES = lex.MOODS + lex.CHARACTERS[:10]
_GOING = Verb("go", "aller", moves=True)
# "Read" alone would be both present and past.
_PLAIN = tuple(verb for verb in verbs.ACTIVITIES + verbs.EVENTS if verb.english != "read")
_WILLED = verbs.ACTIVITIES + verbs.EVENTS[:2]


def opening() -> tuple[Pair, ...]:
    """Gives the four pairs that a reader meets first."""
    i, he = PRONOUNS[0], PRONOUNS[2]
    calm = next(adjective for adjective in lex.MOODS if adjective.english == "calm")
    return (
        command(Predicate(_GOING)),
        statement(Clause(i, Predicate(Verb("lose", "perdre")), "past")),
        statement(Clause(he, Predicate.simple(verbs.BE, calm.english, "", calm))),
        statement(Clause(i, Predicate.simple(verbs.BE, *lex.CONDITIONS[0]))),
    )


def _being(dice: Dice) -> Pair:
    return statement(Clause(dice.pick(PRONOUNS), is_predicate(dice, _ADJECTIVES, 0)))


def _not_being(dice: Dice) -> Pair:
    return statement(Clause(dice.pick(PRONOUNS), is_predicate(dice, _ADJECTIVES, 0), "present", "not"))


def _asking(dice: Dice) -> Pair:
    return question(Clause(dice.pick(PRONOUNS), is_predicate(dice, lex.MOODS, 0)))


def _feeling(dice: Dice) -> Pair:
    return statement(Clause(dice.pick(PRONOUNS), Predicate.simple(verbs.FEEL, *dice.pick(lex.SENSATIONS))))


def _condition(dice: Dice) -> Pair:
    return statement(Clause(dice.pick(PRONOUNS), Predicate.simple(verbs.BE, *dice.pick(lex.CONDITIONS))))


def _acting(dice: Dice) -> Pair:
    tense = dice.pick(TENSES[:2])
    return statement(Clause(dice.pick(PRONOUNS), Predicate.simple(dice.pick(_PLAIN)), tense))


def _able(dice: Dice) -> Pair:
    what = Predicate.simple(dice.pick(_WILLED + verbs.SKILLS[:1])).under(dice.pick((verbs.CAN, verbs.MUST, verbs.WANT)))
    return statement(Clause(dice.pick(PRONOUNS), what))


def _commanding(dice: Dice) -> Pair:
    return command(Predicate.simple(dice.pick(_WILLED)), dice.pick(("", "not", "together")))


PATTERNS: tuple[tuple[int, Pattern], ...] = (
    (110, _being),
    (55, _not_being),
    (40, _asking),
    (40, _feeling),
    (34, _condition),
    (140, _acting),
    (60, _able),
    (45, _commanding),
    (72, pronoun_object),
)
