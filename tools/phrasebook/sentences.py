"""The patterns of statements and commands: each draws its parts and says one pair."""

from phrasebook import lexicon as lex
from phrasebook import verbs
from phrasebook.dice import Dice
from phrasebook.french import imperative
from phrasebook.grammar import (
    PRONOUNS,
    Clause,
    NounPhrase,
    Pair,
    Predicate,
    Subject,
    Verb,
    question,
    sentence,
    statement,
)
from phrasebook.ingredients import (
    ALL_FRAMES,
    CATENATIVES,
    MODALS,
    NOTHING,
    OWN,
    POSSESSIVES,
    TENSES,
    WILLED,
    Pattern,
    action,
    busy_with,
    clause,
    denial,
    extra,
    is_predicate,
    people,
    phrase,
    place,
    polarity,
    predicate,
    relative,
    subject,
    tense_of,
    thing,
)
from phrasebook.verbs import Frame


def _said(frames: tuple[Frame, ...]) -> Pattern:
    def pattern(dice: Dice) -> Pair:
        frame = dice.pick(frames)
        return statement(clause(dice, subject(dice), predicate(dice, frame), frame.extras))

    return pattern


def _acting(dice: Dice) -> Pair:
    """Someone does something that needs no object."""
    who = dice.pick(PRONOUNS) if dice.chance(0.5) else subject(dice)
    if dice.chance(0.5):
        return statement(clause(dice, who, Predicate.simple(dice.pick(verbs.EVENTS)), "t"))
    if dice.chance(0.2):
        home = dice.pick((verbs.GO_HOME, verbs.STAY_HOME))
        return statement(clause(dice, who, Predicate.simple(home, "", "chez {self}"), "t"))
    # `read` alone would be both present and past.
    verb = dice.pick([verb for verb in verbs.ACTIVITIES if verb.english != "read"])
    return statement(clause(dice, who, Predicate.simple(verb), "tpc"))


def _phrases(dice: Dice) -> Pair:
    what = busy_with(dice)
    return statement(clause(dice, subject(dice), what, "t"))


def _under(dice: Dice, who: Subject) -> Clause:
    verb = dice.pick(CATENATIVES)
    tense = TENSES[0] if verb.modal else dice.pick(TENSES[:2])
    negation = denial(dice, 0.3)
    deed = Predicate.simple(dice.pick(verbs.ACTIVITIES)) if verb is verbs.START and dice.chance(0.6) else action(dice)
    if verb is verbs.START and deed.verb.english in {"find", "finish", "start", "buy", "sell", "choose", "take"}:
        deed = busy_with(dice)
    what = deed.under(verb)
    return Clause(who, what, tense, negation)


def _wanting(dice: Dice) -> Pair:
    if dice.chance(0.15):
        what = Predicate.simple(dice.pick(verbs.SKILLS)).under(verbs.KNOW_HOW)
        return statement(Clause(subject(dice), what, "present", denial(dice, 0.4)))
    return statement(_under(dice, subject(dice)))


def _being(dice: Dice) -> Pair:
    """Someone is tired, a doctor's sister is very kind."""
    who = subject(dice)
    adjectives = dice.pick((lex.MOODS, lex.CHARACTERS))
    return _be(dice, who, is_predicate(dice, adjectives), adjectives is lex.MOODS)


def _be(dice: Dice, who: Subject, what: Predicate, passing: bool) -> Pair:
    """Says what someone is; only what passes has a time and a future."""
    tense = dice.pick(TENSES if passing else TENSES[:2])
    times = {"present": lex.CURRENT_TIMES[:2], "past": lex.PAST_TIMES, "future": lex.FUTURE_TIMES}[tense]
    when = dice.pick(times) if passing and dice.chance(0.35) else NOTHING
    if dice.chance(0.2):
        return question(Clause(who, what, tense, "", NOTHING, when))
    negation = polarity(dice, tense)
    if negation == "never":
        when, negation = NOTHING, "never" if passing else "not"
    often = dice.pick(lex.FREQUENCIES) if tense == "present" and passing and not negation and not when[0] else NOTHING
    return statement(Clause(who, what, tense, negation, often if dice.chance(0.3) else NOTHING, when))


def _feeling(dice: Dice) -> Pair:
    return _be(dice, subject(dice), Predicate.simple(verbs.FEEL, *dice.pick(lex.SENSATIONS)), True)


def _condition(dice: Dice) -> Pair:
    return _be(dice, subject(dice), Predicate.simple(verbs.BE, *dice.pick(lex.CONDITIONS)), True)


def _aged(dice: Dice) -> Pair:
    english, french = dice.pick(lex.AGES)
    what = Predicate.simple(verbs.FEEL, f"{english} years old", f"{french} ans")
    youth = NounPhrase(dice.pick(lex.PEOPLE[2:6]), dice.pick(("the", "this")), dice.chance(0.3))
    who = dice.pick((dice.pick(PRONOUNS), Subject.of(youth), Subject.of(NounPhrase(dice.pick(lex.CHILDREN), "my"))))
    return statement(Clause(who, what, dice.pick(TENSES[:2]), denial(dice, 0.3)))


def _described(dice: Dice) -> Pair:
    """Things have qualities: the red car is expensive."""
    nouns, adjectives = dice.pick(
        (
            (lex.SMALL_THINGS + lex.BIG_THINGS + lex.CLOTHES, lex.COLORS + lex.STATES),
            (lex.SIGHTS + lex.PLACES, lex.BUILDING_QUALITIES),
            (lex.TEXTS, lex.TEXT_QUALITIES),
            (lex.ANIMALS, lex.ANIMAL_QUALITIES),
            (lex.FOOD + lex.DRINKS, lex.FLAVORS),
        )
    )
    # A new thing is neuf or nouveau, which is more than the English says; it is only new beside its noun.
    adjectives = tuple(adjective for adjective in adjectives if adjective.english != "new")
    who = thing(dice, nouns)
    if nouns[0] in lex.FOOD:
        who = Subject.of(NounPhrase(dice.pick(nouns), dice.pick(("the", "this", "my", "your"))))
    return _be(dice, who, is_predicate(dice, adjectives, 0.3), False)


def _compared(dice: Dice) -> Pair:
    """Someone is taller than, or as tall as, someone else."""
    adjective = dice.pick([word for word in lex.CHARACTERS + lex.MOODS[:4] if word.english in lex.COMPARATIVES])
    who = subject(dice)
    if dice.chance(0.4):
        english, french = dice.pick([pair for pair in lex.COMPANY if pair[0][5:] not in OWN.get(who.english, ())])
        other = english.removeprefix("with "), french.removeprefix("avec ")
    else:
        than = relative(dice)
        other = than.english, than.french
    return statement(_comparison(dice, who, adjective, other))


def _things_compared(dice: Dice) -> Pair:
    nouns = dice.pick((lex.BIG_THINGS, lex.SIGHTS[:5], lex.SMALL_THINGS[:9], lex.ANIMALS))
    words = ("big", "small") if nouns is lex.ANIMALS else ("big", "small", "old")
    adjective = dice.pick([word for word in lex.QUALITIES if word.english in words])
    if nouns is lex.ANIMALS:
        adjective = dice.pick([word for word in lex.ANIMAL_QUALITIES if word.english in words])
    other = phrase(dice, nouns, "the")
    rest = tuple(noun for noun in nouns if noun is not other.noun)
    return statement(_comparison(dice, thing(dice, rest), adjective, (other.english, other.french)))


def _comparison(dice: Dice, who: Subject, adjective: lex.Adjective, other: Pair) -> Clause:
    if dice.chance(0.6):
        english, linked, degree = lex.COMPARATIVES[adjective.english], "than", "plus"
    else:
        english, linked, degree = f"as {adjective.english}", "as", "aussi"
    what = Predicate.simple(verbs.BE, english, degree, adjective)
    tense = dice.pick((*TENSES[:2], *TENSES[:1]))
    negation = denial(dice)
    return Clause(who, what, tense, negation, NOTHING, (f"{linked} {other[0]}", f"que {other[1]}"))


def _located(dice: Dice) -> Pair:
    """Things, animals and people are somewhere."""
    if dice.chance(0.35):
        who, where = subject(dice), place(dice)
        where = where if where[0] != "at home" else ("here", "ici")
    else:
        noun = dice.pick(lex.SMALL_THINGS + lex.ANIMALS[:2] + lex.PETS)
        who, where = thing(dice, (noun,), lex.COLORS if noun in lex.SMALL_THINGS else ()), _spot(dice, noun)
    tense = dice.pick((*TENSES[:2], *TENSES[:1]))
    where_clause = Clause(who, Predicate.simple(verbs.BE, *where), tense, denial(dice))
    return question(where_clause) if not where_clause.polarity and dice.chance(0.25) else statement(where_clause)


def _spot(dice: Dice, thing_there: lex.Noun) -> Pair:
    """Draws where a thing is, on the table, near the door, but not in another of its kind."""
    english, french, nouns = dice.pick(
        (
            ("on", "sur", lex.SURFACES),
            ("under", "sous", lex.SURFACES),
            ("in", "dans", lex.CONTAINERS),
            ("in front of", "devant", lex.LANDMARKS),
            ("behind", "derrière", lex.LANDMARKS),
            ("near", "près de", lex.LANDMARKS),
        )
    )
    if thing_there.english in ("horse", "cow"):
        english, french, nouns = "near", "près de", lex.LANDMARKS
    spots = [noun for noun in nouns if noun != thing_there]
    owners = ("the",) if nouns is lex.LANDMARKS else ("the", "the", "the", "my", "your", "her")
    where = NounPhrase(dice.pick(spots), dice.pick(owners))
    return f"{english} {where.english}", f"{french} {where.french}"


def _there_is(dice: Dice) -> Pair:
    """There is, or is not, something somewhere."""
    nouns, adjectives = dice.pick(
        (
            (lex.SMALL_THINGS, lex.COLORS),
            (lex.ANIMALS, lex.ANIMAL_QUALITIES),
            (lex.PEOPLE, lex.NOUN_CHARACTERS),
        )
    )
    style = dice.pick((("a", False), ("bare", True), (dice.pick(lex.NUMBERS)[0], True)))
    adjective = dice.pick(adjectives) if dice.chance(0.3) else None
    what = NounPhrase(dice.pick(nouns), *style, adjective)
    where = place(dice) if nouns is lex.PEOPLE else _spot(dice, what.noun)
    where = where if where[0] != "at home" else ("here", "ici")
    past, kind = dice.chance(0.25), dice.pick(("yes", "yes", "no", "question"))
    be = ("were" if past else "are") if what.plural else "was" if past else "is"
    has = "avait" if past else "a"
    if kind == "question":
        return sentence(f"{be} there {what.english} {where[0]}", f"est-ce que il y {has} {what.french} {where[1]}", "?")
    if kind == "no":
        none = f"il ne y {has} pas"
        return sentence(f"there {be}n't {what.english} {where[0]}", f"{none} {what.negated_french} {where[1]}")
    return sentence(f"there {be} {what.english} {where[0]}", f"il y {has} {what.french} {where[1]}")


def _presented(dice: Dice) -> Pair:
    """This is my brother; these are old books."""
    group, adjectives = dice.pick(
        (
            (lex.SMALL_THINGS + lex.BIG_THINGS, lex.QUALITIES + lex.COLORS),
            (lex.TEXTS, lex.TEXT_QUALITIES),
            (lex.SIGHTS[:5], lex.BUILDING_QUALITIES),
            (lex.ANIMALS, lex.ANIMAL_QUALITIES),
            (lex.FAMILY, ()),
        )
    )
    plural = dice.chance(0.3)
    what = NounPhrase(dice.pick(group), dice.pick(_OWNERS_AND_A), plural)
    if group is lex.FAMILY:
        what = relative(dice)
    elif dice.chance(0.6):
        determiner = "bare" if what.determiner == "a" and plural else what.determiner
        what = NounPhrase(what.noun, determiner, plural, dice.pick(adjectives))
    elif what.determiner == "a" and plural:
        what = NounPhrase(what.noun, "bare", plural)
    plural = what.plural
    if dice.chance(0.2):
        be, ce = ("are these", "est-ce que ce sont") if plural else ("is this", "est-ce que ce est")
        return sentence(f"{be} {what.english}", f"{ce} {what.french}", "?")
    if dice.chance(0.25):
        be, ce = ("these aren't", "ce ne sont pas") if plural else ("this isn't", "ce ne est pas")
    else:
        be, ce = ("these are", "ce sont") if plural else ("this is", "ce est")
    return sentence(f"{be} {what.english}", f"{ce} {what.french}")


_OWNERS_AND_A = ("a", "a", "a", *POSSESSIVES)


def _pronoun_object(dice: Dice) -> Pair:
    """Someone sees him, helps us, is going to wait for them."""
    who = dice.pick(PRONOUNS) if dice.chance(0.8) else subject(dice)
    what = _with_clitic(dice, who)
    stative = what.verb.stative
    if dice.chance(0.3) and not stative:
        modal = dice.pick(MODALS)
        return statement(Clause(who, what.under(modal), "present", denial(dice, 0.3)))
    tense = tense_of(dice, what)
    if dice.chance(0.2):
        return question(Clause(who, what, tense))
    when = extra(dice, "t", tense) if not stative and dice.chance(0.5) else NOTHING
    negation = denial(dice) if stative else polarity(dice, tense)
    return statement(Clause(who, what, tense, negation, NOTHING, NOTHING if negation == "never" else when))


def pronoun_object(dice: Dice) -> Pair:
    """Says shortly that someone helps, or helped, someone."""
    who = dice.pick(PRONOUNS)
    return statement(Clause(who, _with_clitic(dice, who), dice.pick(TENSES[:2])))


def _with_clitic(dice: Dice, who: Subject) -> Predicate:
    """Draws a verb with an object pronoun other than the subject's own."""
    clitic = dice.pick([clitic for clitic in verbs.CLITICS if clitic.english not in OWN.get(who.english, ())])
    return Predicate(dice.pick(verbs.MEET), clitic=clitic)


def _giving(dice: Dice) -> Pair:
    """Someone gives something to someone."""
    nouns, whom = lex.SMALL_THINGS + lex.TEXTS, _receiver(dice)
    verb = dice.pick(verbs.GIVING)
    what = Predicate.with_object(verb, phrase(dice, nouns, "any", ()))
    who = subject(dice)
    tense = dice.pick(TENSES)
    negation = denial(dice, 0.2)
    if dice.chance(0.25):
        return statement(Clause(who, what.under(dice.pick(MODALS)), "present", negation, NOTHING, whom))
    if dice.chance(0.15):
        return question(Clause(who, what, tense, "", NOTHING, whom))
    return statement(Clause(who, what, tense, negation, NOTHING, whom))


def _receiver(dice: Dice) -> Pair:
    whom = relative(dice) if dice.chance(0.6) else phrase(dice, lex.PEOPLE, "person")
    return f"to {whom.english}", f"à {whom.french}"


def _putting(dice: Dice) -> Pair:
    """Someone puts something somewhere."""
    english, french, nouns = dice.pick(
        (("on", "sur", lex.SURFACES), ("under", "sous", lex.SURFACES), ("in", "dans", lex.CONTAINERS))
    )
    thing_put = phrase(dice, lex.SMALL_THINGS, "any", lex.COLORS)
    spots = [noun for noun in nouns if noun != thing_put.noun]
    where = NounPhrase(dice.pick(spots), dice.pick(("the", "the", "my", "her")))
    what = Predicate.with_object(Verb("put", "mettre"), thing_put)
    tense = dice.pick(TENSES)
    adjunct = f"{english} {where.english}", f"{french} {where.french}"
    negation = denial(dice, 0.3)
    if tense == "past" and not negation:  # "put" alone is read as the present
        when = dice.pick(lex.PAST_TIMES)
        adjunct = f"{adjunct[0]} {when[0]}", f"{adjunct[1]} {when[1]}"
    return statement(Clause(subject(dice), what, tense, negation, NOTHING, adjunct))


def _commanding(dice: Dice) -> Pair:
    """Do it, don't do it, let's do it."""
    frame = dice.pick(WILLED)
    what = predicate(dice, frame)
    if dice.chance(0.25):
        what = Predicate.simple(dice.pick(verbs.ACTIVITIES))
    elif dice.chance(0.2):
        what = busy_with(dice)
    spots = "".join(kind for kind in frame.extras if kind in "ph")
    added = extra(dice, spots, "present") if dice.chance(0.3) else NOTHING
    return command(what, dice.pick(("", "", "not", "together")), added)


def command(what: Predicate, kind: str = "", added: Pair = NOTHING) -> Pair:
    """Says a command, a prohibition (`not`) or a proposal (`together`).

    Examples:
        >>> command(Predicate(Verb("go", "aller")))
        ('Go.', 'Va !')
        >>> command(Predicate(Verb("eat", "manger")), "together")
        ("Let's eat.", 'Mangeons !')
    """
    english = f"{what.infinitive_english} {added[0]}".strip()
    own = "nous" if kind == "together" else "toi"
    verb = imperative(what.verb.french, together=kind == "together")
    words = ["ne", verb, "pas", what.negated_french] if kind == "not" else [verb, what.french]
    prefix = {"": "", "not": "don't ", "together": "let's "}[kind]
    return sentence(prefix + english, " ".join(filter(None, (*words, added[1]))).format(self=own), "!")


def _thinking(dice: Dice) -> Pair:
    """Someone thinks, knows or says that something is so."""
    verb = dice.pick((verbs.THINK, verbs.KNOW_THAT, verbs.SAY))
    inner = _simple_clause(dice)
    return statement(Clause(subject(dice), Predicate.simple(verb), "present", "", NOTHING, _that(inner)))


def _that(inner: Clause) -> Pair:
    return f"that {inner.english}", f"que {inner.french}"


def _simple_clause(dice: Dice) -> Clause:
    """Draws a plain clause to stand inside another."""
    who = subject(dice)
    negation = denial(dice, 0.2)
    if dice.chance(0.4):
        return Clause(who, is_predicate(dice, lex.MOODS + lex.CHARACTERS, 0.1), dice.pick(TENSES[:2]), negation)
    if dice.chance(0.3):
        return Clause(who, Predicate.simple(verbs.FEEL, *dice.pick(lex.SENSATIONS)), "present", negation)
    if dice.chance(0.3):
        return Clause(who, Predicate.simple(verbs.BE, *dice.pick(lex.CONDITIONS)), "present", negation)
    what = predicate(dice, dice.pick(ALL_FRAMES))
    # "He says that you read" would be both present and past.
    tense = TENSES[2] if what.verb.english == "read" else tense_of(dice, what)
    return Clause(who, what, tense, negation)


_GLAD = tuple(mood for mood in lex.MOODS if mood.english in {"happy", "surprised", "nervous"})
_DOWN = tuple(mood for mood in lex.MOODS if mood.english in {"tired", "sad", "sick", "worried", "nervous"})


def _because(dice: Dice) -> Pair:
    """Someone stays home, goes to bed, cries because of a mood or a sensation."""
    who = dice.pick(PRONOUNS) if dice.chance(0.6) else people(dice)
    if who.plural and who.feminine:  # "they" is always ils here
        who = PRONOUNS[5]
    tense = dice.pick(TENSES[:2])
    verb = dice.pick(verbs.REACTIONS)
    complement = "chez {self}" if verb.english.endswith("home") else ""
    moods = _GLAD if verb.english == "laugh" else _DOWN
    reason = _sensation(dice) if moods is _DOWN and dice.chance(0.4) else is_predicate(dice, moods)
    again = who if who.pronoun else PRONOUNS[5] if who.plural else PRONOUNS[3 if who.feminine else 2]
    why = Clause(again, reason, tense)
    what = Predicate.simple(verb, "", complement)
    return statement(Clause(who, what, tense, "", NOTHING, (f"because {why.english}", f"parce que {why.french}")))


def _sensation(dice: Dice) -> Predicate:
    return Predicate.simple(verbs.FEEL, *dice.pick(lex.SENSATIONS[2:5:2] + lex.SENSATIONS[7:]))


# How many sentences each pattern gives.
PATTERNS: tuple[tuple[int, Pattern], ...] = (
    (1250, _said(verbs.EATING)),
    (1000, _said(verbs.READING)),
    (1900, _said(verbs.HANDLING)),
    (1000, _said(verbs.MEETING)),
    (1100, _said(verbs.MOVING)),
    (1000, _said(verbs.OWNING)),
    (3300, _acting),
    (600, _phrases),
    (1100, _wanting),
    (1500, _being),
    (400, _feeling),
    (400, _condition),
    (150, _aged),
    (800, _described),
    (500, _compared),
    (300, _things_compared),
    (800, _located),
    (600, _there_is),
    (700, _presented),
    (1700, _pronoun_object),
    (700, _giving),
    (500, _putting),
    (600, _commanding),
    (700, _thinking),
    (300, _because),
)
