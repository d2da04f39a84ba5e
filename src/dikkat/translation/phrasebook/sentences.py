"""The sentence patterns: each draws its parts and says one pair."""

from collections.abc import Callable

from dikkat.translation.phrasebook import lexicon as lex
from dikkat.translation.phrasebook import verbs
from dikkat.translation.phrasebook.dice import Dice
from dikkat.translation.phrasebook.french import imperative
from dikkat.translation.phrasebook.grammar import (
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
from dikkat.translation.phrasebook.ingredients import (
    NOTHING,
    TENSES,
    clause,
    extra,
    is_predicate,
    people,
    phrase,
    place,
    polarity,
    predicate,
    question_clause,
    relative,
    subject,
    tense_of,
    thing,
)
from dikkat.translation.phrasebook.verbs import Frame

Pattern = Callable[[Dice], Pair]
_IT = Subject("it", "il", 2, pronoun=True)
_WHO = Subject("who", "qui", 2)
_MODALS = (verbs.WANT, verbs.CAN, verbs.MUST)
_CATENATIVES = (verbs.WANT, verbs.CAN, verbs.MUST, verbs.LIKE, verbs.START, verbs.TRY)
_ALL_FRAMES = verbs.EATING + verbs.READING + verbs.HANDLING + verbs.MEETING + verbs.MOVING
# What one can be told to do, or can want to do.
_WILLED = tuple(
    frame
    for frame in _ALL_FRAMES
    if not frame.verb.stative and frame.verb.english not in {"forget", "lose", "break", "arrive at", "see", "understand"}
)


def _said(frames: tuple[Frame, ...]) -> Pattern:
    def pattern(dice: Dice) -> Pair:
        frame = dice.pick(frames)
        return statement(clause(dice, subject(dice), predicate(dice, frame), frame.extras))

    return pattern


def _asked(dice: Dice) -> Pair:
    frame = dice.pick(_ALL_FRAMES + verbs.OWNING)
    return question(question_clause(dice, subject(dice), predicate(dice, frame), frame.extras.replace("p", "")))


def _acting(dice: Dice) -> Pair:
    """Someone does something that needs no object."""
    who = subject(dice)
    if dice.chance(0.4):
        return statement(clause(dice, who, Predicate.simple(dice.pick(verbs.EVENTS)), "t"))
    if dice.chance(0.2):
        home = dice.pick((verbs.GO_HOME, verbs.STAY_HOME))
        return statement(clause(dice, who, Predicate.simple(home, "", "chez {self}"), "t"))
    # `read` alone would be both present and past.
    verb = dice.pick([verb for verb in verbs.ACTIVITIES if verb.english != "read"])
    return statement(clause(dice, who, Predicate.simple(verb), "tpc"))


def _busy_with(dice: Dice) -> Predicate:
    """Draws a fixed phrase, a language or a sport."""
    if dice.chance(0.35):
        verb = dice.pick((verbs.SPEAK, verbs.LEARN))
        english, french = dice.pick(lex.LANGUAGES)
        return Predicate.simple(verb, english, french if verb is verbs.SPEAK else f"le {french}")
    if dice.chance(0.4):
        return Predicate.simple(verbs.PLAY, *dice.pick(lex.SPORTS))
    english, french, object_english, object_french, negated = dice.pick(verbs.PHRASES)
    return Predicate(Verb(english, french), object_english, object_french, negated)


def _phrases(dice: Dice) -> Pair:
    what = _busy_with(dice)
    return statement(clause(dice, subject(dice), what, "t"))


def _action(dice: Dice) -> Predicate:
    """Draws something that one can want to do, with or without an object."""
    if dice.chance(0.3):
        return Predicate.simple(dice.pick(verbs.ACTIVITIES + verbs.SKILLS[:1]))
    return _busy_with(dice) if dice.chance(0.25) else predicate(dice, dice.pick(_WILLED))


def _under(dice: Dice, who: Subject) -> Clause:
    verb = dice.pick(_CATENATIVES)
    tense = "present" if verb.modal or dice.chance(0.6) else "past"
    negation = "not" if dice.chance(0.3) else ""
    what = _action(dice).under(verb)
    return Clause(who, what, tense, negation)


def _wanting(dice: Dice) -> Pair:
    if dice.chance(0.15):
        what = Predicate.simple(dice.pick(verbs.SKILLS)).under(verbs.KNOW_HOW)
        return statement(Clause(subject(dice), what, "present", "not" if dice.chance(0.4) else ""))
    return statement(_under(dice, subject(dice)))


def _wanting_asked(dice: Dice) -> Pair:
    verb = dice.pick((*_MODALS, verbs.LIKE))
    return question(Clause(subject(dice), _action(dice).under(verb)))


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
    return statement(Clause(who, what, dice.pick(TENSES[:2]), "not" if dice.chance(0.3) else ""))


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
    who = thing(dice, nouns)
    if nouns[0] in lex.FOOD:
        who = Subject.of(NounPhrase(dice.pick(nouns), dice.pick(("the", "this", "my", "your"))))
    return _be(dice, who, is_predicate(dice, adjectives, 0.3), False)


def _compared(dice: Dice) -> Pair:
    """Someone is taller than, or as tall as, someone else."""
    adjective = dice.pick([word for word in lex.CHARACTERS + lex.MOODS[:4] if word.english in lex.COMPARATIVES])
    who = subject(dice)
    if dice.chance(0.4):
        other: Pair = dice.pick([(pair[0][5:], pair[1][5:]) for pair in lex.COMPANY if pair[1][5:] != who.own])
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
    tense = "past" if dice.chance(0.2) else "present"
    negation = "not" if dice.chance(0.25) else ""
    return Clause(who, what, tense, negation, NOTHING, (f"{linked} {other[0]}", f"que {other[1]}"))


def _located(dice: Dice) -> Pair:
    """Things, animals and people are somewhere."""
    if dice.chance(0.35):
        who, where = subject(dice), place(dice)
        where = where if where[0] != "at home" else ("here", "ici")
    else:
        who = thing(dice, lex.SMALL_THINGS + lex.ANIMALS[:2] + lex.PETS, lex.COLORS)
        where = _spot(dice)
    tense = "past" if dice.chance(0.3) else "present"
    where_clause = Clause(who, Predicate.simple(verbs.BE, *where), tense, "not" if dice.chance(0.25) else "")
    return question(where_clause) if not where_clause.polarity and dice.chance(0.25) else statement(where_clause)


def _spot(dice: Dice) -> Pair:
    """Draws where a thing is: on the table, near the door."""
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
    where = NounPhrase(dice.pick(nouns), dice.pick(("the", "the", "the", "my", "your", "her")))
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
    where = place(dice) if nouns is lex.PEOPLE else _spot(dice)
    where = where if where[0] != "at home" else ("here", "ici")
    past, kind = dice.chance(0.25), dice.pick(("yes", "yes", "no", "question"))
    be = ("were" if past else "are") if what.plural else "was" if past else "is"
    has = "avait" if past else "a"
    if kind == "question":
        return sentence(f"{be} there {what.english} {where[0]}", f"est-ce que il y {has} {what.french} {where[1]}", "?")
    if kind == "no":
        return sentence(f"there {be}n't {what.english} {where[0]}", f"il ne y {has} pas {what.negated_french} {where[1]}")
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
    what = NounPhrase(dice.pick(group), dice.pick(POSSESSIVES_AND_A), plural)
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


POSSESSIVES_AND_A = ("a", "a", "a", "my", "your", "his", "her", "our", "their")


def _pronoun_object(dice: Dice) -> Pair:
    """Someone sees him, helps us, is going to wait for them."""
    who = subject(dice)
    what = _with_clitic(dice, who)
    stative = what.verb.stative
    if dice.chance(0.3) and not stative:
        modal = dice.pick(_MODALS)
        return statement(Clause(who, what.under(modal), "present", "not" if dice.chance(0.3) else ""))
    tense = tense_of(dice, what)
    if dice.chance(0.2):
        return question(Clause(who, what, tense))
    when = extra(dice, "t", tense) if not stative and dice.chance(0.5) else NOTHING
    negation = polarity(dice, tense)
    return statement(Clause(who, what, tense, negation, NOTHING, NOTHING if negation == "never" else when))


def pronoun_object(dice: Dice) -> Pair:
    """Says shortly that someone helps, or helped, someone."""
    who = dice.pick(PRONOUNS)
    return statement(Clause(who, _with_clitic(dice, who), dice.pick(TENSES[:2])))


def _with_clitic(dice: Dice, who: Subject) -> Predicate:
    """Draws a verb with an object pronoun other than the subject's own."""
    own = {"I": ("me", "us"), "we": ("me", "us", "you"), "you": ("you", "us")}.get(who.english, ())
    clitic = dice.pick([clitic for clitic in verbs.CLITICS if clitic.english not in own])
    return Predicate(dice.pick(verbs.MEET), clitic=clitic)


def _giving(dice: Dice) -> Pair:
    """Someone gives something to someone."""
    nouns, whom = lex.SMALL_THINGS + lex.TEXTS, _receiver(dice)
    verb = dice.pick(verbs.GIVING)
    what = Predicate.with_object(verb, phrase(dice, nouns, "any", ()))
    who = subject(dice)
    tense = dice.pick(TENSES)
    negation = "not" if dice.chance(0.2) else ""
    if dice.chance(0.25):
        return statement(Clause(who, what.under(dice.pick(_MODALS)), "present", negation, NOTHING, whom))
    if dice.chance(0.15):
        return question(Clause(who, what, tense, "", NOTHING, whom))
    return statement(Clause(who, what, tense, negation, NOTHING, whom))


def _receiver(dice: Dice) -> Pair:
    whom = relative(dice) if dice.chance(0.6) else phrase(dice, lex.PEOPLE, "the")
    return f"to {whom.english}", f"à {whom.french}"


def _putting(dice: Dice) -> Pair:
    """Someone puts something somewhere."""
    english, french, nouns = dice.pick(
        (("on", "sur", lex.SURFACES), ("under", "sous", lex.SURFACES), ("in", "dans", lex.CONTAINERS))
    )
    where = NounPhrase(dice.pick(nouns), dice.pick(("the", "the", "my", "her")))
    what = Predicate.with_object(Verb("put", "mettre"), phrase(dice, lex.SMALL_THINGS, "any", lex.COLORS))
    tense = dice.pick(TENSES)
    adjunct = f"{english} {where.english}", f"{french} {where.french}"
    negation = "not" if dice.chance(0.3) else ""
    if tense == "past" and not negation:  # "put" alone is read as the present
        when = dice.pick(lex.PAST_TIMES)
        adjunct = f"{adjunct[0]} {when[0]}", f"{adjunct[1]} {when[1]}"
    return statement(Clause(subject(dice), what, tense, negation, NOTHING, adjunct))


def _commanding(dice: Dice) -> Pair:
    """Do it, don't do it, let's do it."""
    frame = dice.pick(_WILLED)
    what = predicate(dice, frame)
    if dice.chance(0.25):
        what = Predicate.simple(dice.pick([verb for verb in verbs.ACTIVITIES if not verb.reflexive]))
    elif dice.chance(0.2):
        what = _busy_with(dice)
    added = extra(dice, "p" if frame.extras.find("p") >= 0 else "", "present") if dice.chance(0.3) else NOTHING
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
    if kind == "not":
        words = ("ne", verb, "pas", what.negated_french, added[1])
    else:
        words = (verb, what.french, added[1])
    prefix = {"": "", "not": "don't ", "together": "let's "}[kind]
    return sentence(prefix + english, " ".join(filter(None, words)).format(self=own), "!")


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
    frame = dice.pick(_WILLED)
    return question(Clause(who, predicate(dice, frame), dice.pick(TENSES)), word)


def _where_is(dice: Dice) -> Pair:
    """Where is it? The one question without est-ce que."""
    who = dice.pick((people(dice), thing(dice, lex.SMALL_THINGS + lex.ANIMALS + lex.PLACES, lex.QUALITIES[:3])))
    past = dice.chance(0.25)
    be = ("were" if who.plural else "was") if past else "are" if who.plural else "is"
    est = ("étaient" if who.plural else "était") if past else "sont" if who.plural else "est"
    return sentence(f"where {be} {who.english}", f"où {est} {who.french}", "?")


def _what(dice: Dice) -> Pair:
    """What someone eats, what someone wants to eat, whom someone sees."""
    if dice.chance(0.25):
        what = Predicate.simple(dice.pick(verbs.MEET))
        return question(Clause(subject(dice), what, tense_of(dice, what)), ("who", "qui"))
    what = Predicate.simple(dice.pick(verbs.SEARCHES))
    if not what.verb.stative and what.verb.english not in {"lose", "forget", "break"} and dice.chance(0.4):
        what = what.under(dice.pick(_MODALS))
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
        frame = dice.pick(_ALL_FRAMES + verbs.OWNING)
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


def _thinking(dice: Dice) -> Pair:
    """Someone thinks, knows, says or hopes that something is so."""
    verb = dice.pick((verbs.THINK, verbs.KNOW_THAT, verbs.SAY, verbs.HOPE))
    inner = _simple_clause(dice)
    return statement(Clause(subject(dice), Predicate.simple(verb), "present", "", NOTHING, _that(inner)))


def _that(inner: Clause) -> Pair:
    return f"that {inner.english}", f"que {inner.french}"


def _simple_clause(dice: Dice) -> Clause:
    """Draws a plain clause to stand inside another."""
    who = subject(dice)
    negation = "not" if dice.chance(0.2) else ""
    if dice.chance(0.4):
        return Clause(who, is_predicate(dice, lex.MOODS + lex.CHARACTERS, 0.1), dice.pick(TENSES[:2]), negation)
    if dice.chance(0.3):
        return Clause(who, Predicate.simple(verbs.FEEL, *dice.pick(lex.SENSATIONS)), "present", negation)
    if dice.chance(0.3):
        return Clause(who, Predicate.simple(verbs.BE, *dice.pick(lex.CONDITIONS)), "present", negation)
    what = predicate(dice, dice.pick(_ALL_FRAMES))
    # "He says that you read" would be both present and past.
    tense = "future" if what.verb.english == "read" else tense_of(dice, what)
    return Clause(who, what, tense, negation)


def _because(dice: Dice) -> Pair:
    """Someone stays home, goes to bed, cries because of a mood or a sensation."""
    who = dice.pick(PRONOUNS) if dice.chance(0.6) else people(dice)
    tense = dice.pick(TENSES[:2])
    verb = dice.pick((verbs.GO_HOME, verbs.STAY_HOME, *verbs.EVENTS[6:7], *verbs.ACTIVITIES[12:16], *verbs.ACTIVITIES[1:2]))
    complement = "chez {self}" if verb in (verbs.GO_HOME, verbs.STAY_HOME) else ""
    reason = dice.pick((is_predicate(dice, lex.MOODS[:5] + lex.MOODS[8:11]), _sensation(dice)))
    again = who if who.pronoun else PRONOUNS[5] if who.plural and not who.feminine else None
    if again is None:
        again = Subject("they", "elles", 5, True, True) if who.plural else PRONOUNS[3 if who.feminine else 2]
    why = Clause(again, reason, tense)
    what = Predicate.simple(verb, "", complement)
    return statement(Clause(who, what, tense, "", NOTHING, (f"because {why.english}", f"parce que {why.french}")))


def _sensation(dice: Dice) -> Predicate:
    return Predicate.simple(verbs.FEEL, *dice.pick(lex.SENSATIONS[2:5]))


# How many sentences each pattern gives.
PATTERNS: tuple[tuple[int, Pattern], ...] = (
    (1700, _said(verbs.EATING)),
    (1200, _said(verbs.READING)),
    (3200, _said(verbs.HANDLING)),
    (1000, _said(verbs.MEETING)),
    (1100, _said(verbs.MOVING)),
    (1000, _said(verbs.OWNING)),
    (1400, _asked),
    (1300, _acting),
    (700, _phrases),
    (1500, _wanting),
    (500, _wanting_asked),
    (1400, _being),
    (450, _feeling),
    (450, _condition),
    (150, _aged),
    (800, _described),
    (600, _compared),
    (300, _things_compared),
    (1000, _located),
    (800, _there_is),
    (700, _presented),
    (800, _pronoun_object),
    (800, _giving),
    (500, _putting),
    (700, _commanding),
    (900, _wondering),
    (300, _where_is),
    (500, _what),
    (500, _who),
    (400, _how_many),
    (1100, _thinking),
    (400, _because),
)
