"""The verbs, each with what it can be said of and what can be said with it.

In the tables `*` after a French verb says that its passé composé takes être, `~` that it is a state, whose English past
is the imparfait.
"""

from dataclasses import dataclass
from typing import Literal

from phrasebook import lexicon as lex
from phrasebook.grammar import Clitic, Verb
from phrasebook.lexicon import Adjective, Noun

# How an object may stand: as a mass (water), as the one of its kind (the door) or its town (the market), alone (a car),
# in any number, as provisions (apples), as a possession (a car, two cars), as a stranger (a man), or as what one likes
# (coffee, cats).
Style = Literal["mass", "the", "place", "one", "any", "food", "owned", "person", "generic"]


@dataclass(frozen=True)
class Frame:
    """A verb with the class of its objects, how they may stand, and the adjectives that suit them.

    `extras` says what may be added: t a time, p a place where it happens, h a place at home, c company (with us).
    """

    verb: Verb
    nouns: tuple[Noun, ...]
    style: Style
    adjectives: tuple[Adjective, ...] = ()
    extras: str = "t"
    preposition: str = ""


BE = Verb("be", "être", stative=True)
HAVE = Verb("have", "avoir", stative=True)
FEEL = Verb("be", "avoir", stative=True)
THINK, KNOW_THAT = Verb("think", "penser", stative=True), Verb("know", "savoir", stative=True)
SAY = Verb("say", "dire")


def _frame(
    english: str,
    french: str,
    nouns: tuple[Noun, ...],
    style: Style,
    adjectives: tuple[Adjective, ...] = (),
    extras: str = "t",
    preposition: str = "",
) -> Frame:
    return Frame(Verb.read(english, french), nouns, style, adjectives, extras, preposition)


EATING = (
    _frame("eat", "manger", lex.FOOD, "mass", lex.FLAVORS, "tpc"),
    _frame("eat", "manger", lex.SNACKS, "food", lex.FRESHNESS, "tpc"),
    _frame("drink", "boire", lex.DRINKS, "mass", lex.FLAVORS, "tpc"),
    _frame("buy", "acheter", lex.FOOD + lex.DRINKS, "mass", lex.FLAVORS[1:]),
    _frame("buy", "acheter", lex.SNACKS, "food", lex.FRESHNESS),
    _frame("want", "vouloir~", lex.FOOD + lex.DRINKS, "mass", (), ""),
    _frame("like", "aimer~", lex.FOOD + lex.DRINKS, "generic", (), ""),
    _frame("like", "aimer~", lex.SNACKS + lex.ANIMALS, "generic", (), ""),
    _frame("cook", "cuisiner", lex.FOOD[2:6], "mass", (), "th"),
    _frame("make", "faire", lex.CAKES + lex.CLOTHES[1:3], "one", lex.QUALITIES[:2]),
)
READING = (
    _frame("read", "lire", lex.TEXTS, "any", lex.TEXT_QUALITIES, "tp"),
    _frame("write", "écrire", lex.WRITINGS, "any", lex.TEXT_QUALITIES, "tp"),
    _frame("finish", "finir", lex.TASKS + lex.TEXTS[:3], "the"),
    _frame("understand", "comprendre", lex.PUZZLES, "the", (), ""),
    _frame("learn", "apprendre", lex.STUDIES, "the", lex.TEXT_QUALITIES[:5]),
    _frame("choose", "choisir", lex.CLOTHES + lex.TEXTS[:1] + lex.CAKES, "one", lex.QUALITIES[:3]),
)
HANDLING = (
    _frame("see", "voir", lex.PEOPLE, "person", lex.NOUN_CHARACTERS),
    _frame("see", "voir", lex.ANIMALS, "any", lex.ANIMAL_QUALITIES),
    _frame("see", "voir", lex.SIGHTS, "one", lex.BUILDING_QUALITIES),
    _frame("look for", "chercher", lex.SMALL_THINGS, "one", lex.COLORS),
    _frame("look for", "chercher", lex.PETS, "one", lex.ANIMAL_QUALITIES),
    _frame("find", "trouver", lex.SMALL_THINGS, "any"),
    _frame("buy", "acheter", lex.BIG_THINGS, "one", lex.QUALITIES[:5] + lex.COLORS),
    _frame("buy", "acheter", lex.CLOTHES, "any", lex.COLORS + lex.QUALITIES[:6]),
    _frame("sell", "vendre", lex.BIG_THINGS + lex.SMALL_THINGS[:2], "one", lex.QUALITIES[:4]),
    _frame("want", "vouloir~", lex.CLOTHES + lex.BIG_THINGS, "one", lex.COLORS[:1] + lex.QUALITIES[:4], ""),
    _frame("want", "vouloir~", lex.PETS, "one", lex.ANIMAL_QUALITIES, ""),
    _frame("take", "prendre", lex.TRANSPORT, "the"),
    _frame("take", "prendre", lex.SMALL_THINGS, "one", lex.COLORS),
    _frame("lose", "perdre", lex.SMALL_THINGS, "any", lex.COLORS),
    _frame("wear", "porter", lex.CLOTHES, "one", lex.COLORS + lex.QUALITIES[:5]),
    _frame("wash", "laver", lex.WASHABLE, "the", lex.COLORS, "th"),
    _frame("break", "casser", lex.FRAGILE, "the", lex.COLORS),
    _frame("open", "ouvrir", lex.OPENINGS, "the", lex.COLORS),
    _frame("close", "fermer", lex.OPENINGS, "the", lex.COLORS),
    _frame("visit", "visiter", lex.SIGHTS, "one", lex.BUILDING_QUALITIES, "tc"),
    _frame("watch", "regarder", lex.SHOWS, "any", lex.QUALITIES[:2], "tc"),
    _frame("listen to", "écouter", lex.SOUNDS, "the", lex.QUALITIES[2:4], "tp"),
)
MEETING = (
    _frame("help", "aider", lex.PEOPLE, "person", lex.NOUN_CHARACTERS, "tp"),
    _frame("help", "aider", lex.FAMILY, "the"),
    _frame("wait for", "attendre", lex.TRANSPORT, "the"),
    _frame("wait for", "attendre", lex.FAMILY, "the", (), "tp"),
    _frame("know", "connaître~", lex.FAMILY, "the", (), ""),
    _frame("know", "connaître~", lex.PEOPLE, "person", lex.NOUN_CHARACTERS, ""),
    _frame("talk to", "parler", lex.PEOPLE, "person", lex.NOUN_CHARACTERS, "tp", "à"),
    _frame("talk to", "parler", lex.FAMILY, "the", (), "tp", "à"),
)
MOVING = (
    _frame("go to", "aller*", lex.PLACES, "place", (), "tc", "à"),
    _frame("come to", "venir*", lex.PLACES, "place", (), "tc", "à"),
    _frame("arrive at", "arriver*", lex.PLACES, "place", (), "tc", "à"),
    _frame("stay at", "rester*", lex.PLACES, "place", (), "tc", "à"),
    _frame("work at", "travailler", lex.PLACES, "place", (), "tc", "à"),
    _frame("live near", "habiter~", lex.PLACES, "place", (), "", "près de"),
    _frame("live in", "habiter~", lex.HOMES, "one", lex.BUILDING_QUALITIES[:5], "", "dans"),
)
OWNING = (
    _frame("have", "avoir~", lex.BIG_THINGS, "owned", lex.QUALITIES[:5] + lex.COLORS, ""),
    _frame("have", "avoir~", lex.SMALL_THINGS + lex.CLOTHES, "owned", lex.QUALITIES[:5] + lex.COLORS, ""),
    _frame("have", "avoir~", lex.ANIMALS, "owned", lex.ANIMAL_QUALITIES, ""),
    _frame("have", "avoir~", lex.PUZZLES[:1] + lex.PUZZLES[7:] + lex.TEXTS, "owned", lex.TEXT_QUALITIES[2:], ""),
)


def _verbs(table: str) -> tuple[Verb, ...]:
    return tuple(Verb.read(*(part.strip() for part in entry.split("="))) for entry in table.split(","))


# What one can do without an object, anywhere.
ACTIVITIES = _verbs("""
    eat = manger, sleep = dormir, work = travailler, read = lire, write = écrire, sing = chanter,
    run = courir, walk = marcher, play = jouer, cook = cuisiner, laugh = rire, cry = pleurer,
    wait = attendre
""")
SKILLS = _verbs("""
    swim = nager, read = lire, write = écrire, sing = chanter, dance = danser, cook = cuisiner, run = courir,
    play = jouer
""")
EVENTS = _verbs("""
    leave = partir*, go out = sortir*, fall = tomber*, arrive = arriver*, come = venir*, get up = se lever,
    go to bed = se coucher, lose = perdre, answer = répondre
""")
GO_HOME, STAY_HOME = Verb.read("go home", "rentrer*"), Verb.read("stay home", "rester*")
REACTIONS = (
    GO_HOME,
    STAY_HOME,
    *_verbs("go to bed = se coucher, laugh = rire, cry = pleurer, sleep = dormir"),
)
SPEAK, LEARN, PLAY = Verb.read("speak", "parler"), Verb.read("learn", "apprendre"), Verb.read("play", "jouer")
# Fixed phrases with a verb: make coffee, faire du café.
PHRASES = (
    ("make", "faire", "coffee", "de le café", "de café"),
    ("make", "faire", "tea", "de le thé", "de thé"),
    ("make", "faire", "soup", "de la soupe", "de soupe"),
    ("do", "faire", "the dishes", "la vaisselle", "la vaisselle"),
    ("do", "faire", "the shopping", "les courses", "les courses"),
    ("do", "faire", "the laundry", "la lessive", "la lessive"),
    ("listen to", "écouter", "music", "de la musique", "de musique"),
    ("listen to", "écouter", "the radio", "la radio", "la radio"),
    ("watch", "regarder", "television", "la télévision", "la télévision"),
    ("answer", "répondre", "the question", "à la question", "à la question"),
    ("answer", "répondre", "the letter", "à la lettre", "à la lettre"),
)
GIVING = _verbs("give = donner, show = montrer, sell = vendre")
WANT, LIKE = Verb("want", "vouloir", stative=True), Verb("like", "aimer", stative=True)
CAN, MUST = Verb("can", "pouvoir", modal=True), Verb("must", "devoir", modal=True)
KNOW_HOW = Verb("know how", "savoir", stative=True)
START, TRY = Verb("start", "commencer", link="à"), Verb("try", "essayer", link="de")
MEET = _verbs("see = voir, help = aider, look for = chercher, know = connaître~")
SEARCHES = _verbs("""
    eat = manger, drink = boire, read = lire, write = écrire, buy = acheter, sell = vendre, see = voir,
    want = vouloir~, look for = chercher, wash = laver, take = prendre, choose = choisir, learn = apprendre,
    understand = comprendre, break = casser, lose = perdre, listen to = écouter, do = faire,
    find = trouver, cook = cuisiner, wait for = attendre
""")

CLITICS = (
    Clitic("me", "me"),
    Clitic("you", "te"),
    Clitic("him", "le"),
    Clitic("her", "la", feminine=True),
    Clitic("us", "nous", plural=True),
    Clitic("them", "les", plural=True),
)
