"""The words: nouns, adjectives and adverbials by what they can mean, written as compact tables.

An entry reads `English = French`. A French noun stands with its indefinite article, which tells its gender; an
irregular English plural follows a slash, and so does an irregular French feminine. The tables are grouped by meaning,
so that sentences make sense: what is eaten is food, what is read is a text.
"""

from dataclasses import dataclass

from phrasebook import english as en
from phrasebook import french as fr


@dataclass(frozen=True)
class Noun:
    """A noun in both languages; `plural_french` and `plural_english` are its plurals."""

    english: str
    plural_english: str
    french: str
    feminine: bool

    @property
    def plural_french(self) -> str:
        """The French plural."""
        return fr.plural_of(self.french)


@dataclass(frozen=True)
class Adjective:
    """An adjective in both languages; `before` says that French puts it before its noun."""

    english: str
    masculine: str
    feminine: str
    before: bool

    def french(self, feminine: bool, plural: bool, following: str = "") -> str:
        """Gives the French form that agrees; `following` is the noun where the adjective stands before it."""
        return fr.agree(self.masculine, self.feminine, feminine, plural, following)


# French puts these before the noun.
_BEFORE = frozenset({"grand", "petit", "nouveau", "vieux", "beau", "bon", "mauvais", "joli", "jeune", "gros"})


def _entries(table: str) -> list[tuple[str, str]]:
    """Splits a table at its commas and equals signs."""
    rows = (entry.split("=") for entry in table.split(","))
    return [(english.strip(), french.strip()) for english, french in rows]


def _nouns(table: str) -> tuple[Noun, ...]:
    """Reads nouns: `mouse/mice = une souris`."""
    nouns = []
    for english, french in _entries(table):
        singular, _, plural = english.partition("/")
        article, _, word = french.partition(" ")
        nouns.append(Noun(singular, plural or en.plural_of(singular), word, article == "une"))
    return tuple(nouns)


def _adjectives(table: str) -> tuple[Adjective, ...]:
    """Reads adjectives: `white = blanc/blanche`."""
    adjectives = []
    for english, french in _entries(table):
        masculine, _, feminine = french.partition("/")
        regular = masculine if masculine.endswith("e") else masculine + "e"
        adjectives.append(Adjective(english, masculine, feminine or regular, masculine in _BEFORE))
    return tuple(adjectives)


def _adverbials(table: str) -> tuple[tuple[str, str], ...]:
    """Reads adverbials: `last night = hier soir`."""
    return tuple(_entries(table))


PEOPLE = _nouns("""
    man/men = un homme, woman/women = une femme, boy = un garçon, girl = une fille, child/children = un enfant,
    student = un étudiant, teacher = un professeur, doctor = un médecin
""")
FAMILY = _nouns("""
    father = un père, mother = une mère, brother = un frère, sister = une sœur, uncle = un oncle, aunt = une tante,
    son = un fils, cousin = un cousin, friend = un ami, neighbor = un voisin, daughter = une fille,
    teacher = un professeur
""")
PARENTS = FAMILY[:2]
CHILDREN = _nouns("brother = un frère, sister = une sœur, son = un fils, daughter = une fille, cousin = un cousin")
ANIMALS = _nouns("""
    dog = un chien, cat = un chat, bird = un oiseau, horse = un cheval, cow = une vache, rabbit = un lapin,
    hamster = un hamster, mouse/mice = une souris
""")
PETS = ANIMALS[:4] + ANIMALS[5:7]
FOOD = _nouns("""
    bread = un pain, cheese = un fromage, meat = une viande, fish = un poisson, rice = un riz, soup = une soupe,
    salad = une salade, chocolate = un chocolat, butter = un beurre, ham = un jambon, jam = une confiture
""")
SNACKS = _nouns("""
    apple = une pomme, egg = un œuf, cake = un gâteau, vegetable = un légume, bean = un haricot,
    cookie = un biscuit, banana = une banane, strawberry = une fraise, carrot = une carotte, tomato = une tomate
""")
CAKES = _nouns("cake = un gâteau")
DRINKS = _nouns("""
    water = une eau, milk = un lait, coffee = un café, tea = un thé, wine = un vin, beer = une bière, juice = un jus
""")
TEXTS = _nouns("""
    book = un livre, letter = une lettre, newspaper = un journal, story = une histoire, poem = un poème,
    novel = un roman, message = un message
""")
WRITINGS = _nouns("""
    letter = une lettre, story = une histoire, poem = un poème, message = un message, book = un livre, novel = un roman
""")
SMALL_THINGS = _nouns("""
    key = une clé, bag = un sac, phone = un téléphone, umbrella = un parapluie, box = une boîte, glass = un verre,
    cup = une tasse, plate = une assiette, knife/knives = un couteau, ticket = un billet, flower = une fleur,
    photo = une photo, gift = un cadeau, ball = un ballon, ring = une bague, book = un livre, hat = un chapeau
""")
BIG_THINGS = _nouns("""
    car = une voiture, bike = un vélo, table = une table, chair = une chaise, lamp = une lampe,
    computer = un ordinateur, guitar = une guitare, piano = un piano, house = une maison, bed = un lit, boat = un bateau
""")
CLOTHES = _nouns("""
    hat = un chapeau, shirt = une chemise, dress = une robe, coat = un manteau, shoe = une chaussure,
    sweater = un pull, ring = une bague
""")
FRAGILE = _nouns("""
    window = une fenêtre, glass = un verre, plate = une assiette, cup = une tasse, lamp = une lampe, chair = une chaise,
    phone = un téléphone
""")
WASHABLE = _nouns("""
    car = une voiture, shirt = une chemise, dress = une robe, glass = un verre, plate = une assiette, cup = une tasse,
    window = une fenêtre, coat = un manteau, dog = un chien, apple = une pomme, knife/knives = un couteau
""")
OPENINGS = _nouns("""
    door = une porte, window = une fenêtre, box = une boîte, bag = un sac, umbrella = un parapluie, book = un livre
""")
PLACES = _nouns("""
    school = une école, market = un marché, park = un parc, station = une gare, beach = une plage, museum = un musée,
    library = une bibliothèque, bank = une banque, hospital = un hôpital, hotel = un hôtel, church = une église,
    restaurant = un restaurant, office = un bureau, airport = un aéroport, pool = une piscine
""")
SIGHTS = _nouns("""
    museum = un musée, church = une église, castle = un château, village = un village, city = une ville,
    house = une maison, school = une école, hotel = un hôtel
""")
HOMES = _nouns("village = un village, city = une ville, house = une maison, castle = un château")
ROOMS = _nouns("""
    kitchen = une cuisine, garden = un jardin, bedroom = une chambre, living room = un salon, garage = un garage,
    car = une voiture, house = une maison, street = une rue
""")
SURFACES = _nouns("table = une table, chair = une chaise, bed = un lit, piano = un piano")
CONTAINERS = _nouns("bag = un sac, box = une boîte, car = une voiture, kitchen = une cuisine, bedroom = une chambre")
LANDMARKS = _nouns("""
    door = une porte, window = une fenêtre, house = une maison, tree = un arbre, school = une école,
    church = une église, station = une gare, car = une voiture, hotel = un hôtel
""")
TRANSPORT = _nouns("train = un train, bus = un bus, taxi = un taxi, plane = un avion, boat = un bateau")
SOUNDS = _nouns("song = une chanson, story = une histoire, teacher = un professeur")
STUDIES = _nouns("lesson = une leçon, poem = un poème, song = une chanson")
PUZZLES = _nouns("""
    question = une question, lesson = une leçon, answer = une réponse, story = une histoire, letter = une lettre,
    message = un message, book = un livre, problem = un problème
""")
SHOWS = _nouns("movie = un film, game = un match, boat = un bateau, train = un train")
TASKS = _nouns("lesson = une leçon, book = un livre, letter = une lettre, cake = un gâteau, soup = une soupe")

MOODS = _adjectives("""
    tired = fatigué, happy = heureux/heureuse, sad = triste, calm = calme, sick = malade, ready = prêt, busy = occupé,
    alone = seul, worried = inquiet/inquiète, surprised = surpris, nervous = nerveux/nerveuse, proud = fier/fière,
    free = libre
""")
CHARACTERS = _adjectives("""
    tall = grand, small = petit, young = jeune, old = vieux/vieille, rich = riche, poor = pauvre, strong = fort,
    kind = gentil/gentille, serious = sérieux/sérieuse, shy = timide, funny = drôle, famous = célèbre, polite = poli,
    beautiful = beau/belle, intelligent = intelligent, lazy = paresseux/paresseuse, curious = curieux/curieuse,
    generous = généreux/généreuse, brave = courageux/courageuse
""")
# Beside a noun these would change their meaning with their place (un grand homme, un pauvre homme).
NOUN_CHARACTERS = tuple(word for word in CHARACTERS if word.english not in {"tall", "poor", "funny", "brave"})
COLORS = _adjectives("red = rouge, blue = bleu, green = vert, black = noir, white = blanc/blanche, yellow = jaune")
QUALITIES = _adjectives("""
    big = grand, small = petit, new = nouveau/nouvelle, old = vieux/vieille, beautiful = beau/belle,
    expensive = cher/chère, heavy = lourd, dirty = sale, good = bon/bonne, bad = mauvais
""")
STATES = _adjectives("expensive = cher/chère, dirty = sale, heavy = lourd, new = nouveau/nouvelle, old = vieux/vieille")
BUILDING_QUALITIES = _adjectives("""
    big = grand, small = petit, new = nouveau/nouvelle, old = vieux/vieille, beautiful = beau/belle,
    modern = moderne, famous = célèbre
""")
TEXT_QUALITIES = _adjectives("""
    new = nouveau/nouvelle, old = vieux/vieille, beautiful = beau/belle, good = bon/bonne, bad = mauvais,
    interesting = intéressant, difficult = difficile, easy = facile, sad = triste, funny = drôle
""")
FLAVORS = _adjectives("cold = froid, good = bon/bonne, bad = mauvais")
FRESHNESS = _adjectives("good = bon/bonne, bad = mauvais, fresh = frais/fraîche")
ANIMAL_QUALITIES = _adjectives("""
    big = gros/grosse, small = petit, black = noir, white = blanc/blanche, old = vieux/vieille, young = jeune,
    beautiful = beau/belle
""")

COMPARATIVES = {
    "tall": "taller",
    "small": "smaller",
    "young": "younger",
    "old": "older",
    "rich": "richer",
    "strong": "stronger",
    "kind": "kinder",
    "happy": "happier",
    "big": "bigger",
    "heavy": "heavier",
    "calm": "calmer",
}

# English "be", French "avoir".
SENSATIONS = _adverbials("""
    hungry = faim, thirsty = soif, cold = froid, hot = chaud, sleepy = sommeil, right = raison, wrong = tort,
    afraid = peur
""")
# Predicates of "be" that do not agree.
CONDITIONS = _adverbials("""
    home = chez {self}, late = en retard, early = en avance, angry = en colère, here = ici, on vacation = en vacances
""")
NUMBERS = _adverbials("two = deux, three = trois, four = quatre, five = cinq, six = six, ten = dix")
AGES = _adverbials("five = cinq, six = six, ten = dix, twelve = douze, twenty = vingt, thirty = trente")
DEGREES = _adverbials("very = très, too = trop, so = si")
LANGUAGES = _adverbials("French = français, English = anglais, Spanish = espagnol, German = allemand")
SPORTS = _adverbials("""
    soccer = à le football, tennis = à le tennis, cards = à les cartes, chess = à les échecs,
    the guitar = de la guitare, the piano = de le piano
""")
FREQUENCIES = _adverbials("often = souvent, always = toujours, sometimes = parfois")
PAST_TIMES = _adverbials("""
    yesterday = hier, last night = hier soir, this morning = ce matin, last week = la semaine dernière,
    yesterday morning = hier matin
""")
FUTURE_TIMES = _adverbials("""
    tomorrow = demain, tonight = ce soir, next week = la semaine prochaine, this afternoon = cet après-midi,
    tomorrow morning = demain matin
""")
HABITUAL_TIMES = _adverbials("""
    every day = tous les jours, in the morning = le matin, in the evening = le soir, every week = toutes les semaines,
    on weekends = le week-end
""")
CURRENT_TIMES = _adverbials("today = aujourd'hui, now = maintenant, this morning = ce matin, tonight = ce soir")
COMPANY = _adverbials("""
    with me = avec moi, with you = avec toi, with him = avec lui, with her = avec elle, with us = avec nous,
    with them = avec eux
""")
