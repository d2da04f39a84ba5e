"""The patterns of questions, all with est-ce que but for where something is and who does something."""

from phrasebook import lexicon as lex
from phrasebook import verbs
from phrasebook.dice import Dice
from phrasebook.grammar import Clause, Pair, Predicate, Subject, Verb, question, sentence
from phrasebook.ingredients import (
    ALL_FRAMES,
    MODALS,
    TENSES,
    WILLED,
    Pattern,
    action,
    is_predicate,
    people,
    predicate,
    question_clause,
    subject,
    tense_of,
    thing,
)

_WHO = Subject("who", "qui", 2)


def _asked(dice: Dice) -> Pair:
    frame = dice.pick(ALL_FRAMES + verbs.OWNING)
    return question(
        question_clause(dice, subject(dice), predicate(dice, frame), frame.extras.replace("p", "").replace("h", ""))
    )


def _wanting_asked(dice: Dice) -> Pair:
    verb = dice.pick((*MODALS, verbs.LIKE))
    return question(Clause(subject(dice), action(dice).under(verb)))


def _wondering(dice: Dice) -> Pair:
    """Where, when, why and how someone does something."""
    word = dice.pick((("where", "où"), ("when", "quand"), ("why", "pourquoi")))
    who = subject(dice)
    if word[0] == "why" and dice.chance(0.3):
        what = dice.pick((is_predicate(dice, lex.MOODS, 0), Predicate.simple(verbs.FEEL, *dice.pick(lex.SENSATIONS))))
        return question(Clause(who, what, dice.pick(TENSES[:2])), word)
    if word[0] == "where" or dice.chance(0.4):
        live = Verb("live", "habiter", stative=True)
        verb = dice.pick((*verbs.ACTIVITIES, live, live) if word[0] == "where" else verbs.EVENTS + verbs.ACTIVITIES[:2])
        what = Predicate.simple(verb)
        return question(Clause(who, what, tense_of(dice, what)), word)
    frame = dice.pick(WILLED)
    return question(Clause(who, predicate(dice, frame), dice.pick(TENSES)), word)


def _where_is(dice: Dice) -> Pair:
    """Where is it? The one question without est-ce que."""
    who = dice.pick((people(dice), thing(dice, lex.SMALL_THINGS + lex.ANIMALS + lex.PLACES, lex.QUALITIES[3:4])))
    past = dice.chance(0.25)
    be = ("were" if who.plural else "was") if past else "are" if who.plural else "is"
    est = ("étaient" if who.plural else "était") if past else "sont" if who.plural else "est"
    return sentence(f"where {be} {who.english}", f"où {est} {who.french}", "?")


def _what(dice: Dice) -> Pair:
    """Questions of what someone eats or wants to eat, and of whom someone sees."""
    if dice.chance(0.25):
        what = Predicate.simple(dice.pick(verbs.MEET))
        return question(Clause(subject(dice), what, tense_of(dice, what)), ("who", "qui"))
    what = Predicate.simple(dice.pick(verbs.SEARCHES))
    if not what.verb.stative and what.verb.english not in {"lose", "break"} and dice.chance(0.4):
        what = what.under(dice.pick(MODALS))
        return _qu(question(Clause(subject(dice), what)))
    return _qu(question(Clause(subject(dice), what, dice.pick(TENSES[:2] if what.verb.stative else TENSES))))


def _qu(asked: Pair) -> Pair:
    """Makes a yes-or-no question one that starts with what."""
    english, french = asked
    return "What " + english[0].lower() + english[1:], "Qu'" + french[0].lower() + french[1:]


def _who(dice: Dice) -> Pair:
    """Who does it, who is tired."""
    if dice.chance(0.25):
        clause_ = Clause(_WHO, is_predicate(dice, lex.MOODS + lex.CHARACTERS, 0.1))
    else:
        frame = dice.pick(ALL_FRAMES + verbs.OWNING)
        what = predicate(dice, frame)
        clause_ = Clause(_WHO, what, tense_of(dice, what))
    return sentence(clause_.english, clause_.french, "?")


def _how_many(dice: Dice) -> Pair:
    """How many books someone has; in the present, where no participle has to agree."""
    nouns, verb = dice.pick(
        (
            (lex.SMALL_THINGS + lex.TEXTS + lex.ANIMALS + lex.BIG_THINGS[:3], verbs.HAVE),
            (lex.FAMILY[2:6] + lex.FAMILY[7:9], verbs.HAVE),
            (lex.SNACKS + lex.CLOTHES, Verb("want", "vouloir", stative=True)),
            (lex.SMALL_THINGS + lex.ANIMALS, Verb("see", "voir")),
        )
    )
    noun = dice.pick(nouns)
    asked = Clause(subject(dice), Predicate(verb), "present")
    words = (f"how many {noun.plural_english}", f"combien de {noun.plural_french}")
    return question(asked, words)


# How many sentences each pattern gives.
PATTERNS: tuple[tuple[int, Pattern], ...] = (
    (900, _asked),
    (400, _wanting_asked),
    (700, _wondering),
    (300, _where_is),
    (500, _what),
    (500, _who),
    (300, _how_many),
)
