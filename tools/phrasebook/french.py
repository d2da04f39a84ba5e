"""French word forms: conjugation, agreement, determiners, and how neighbouring words change each other.

Sentences are first written with full words (`je ai`, `à le marché`, `que elle`); `join` then elides and contracts them,
so that no pattern has to think about what the next word begins with. Only choices that are a matter of spelling the
whole word differently (`mon école`, `cet homme`, `un bel arbre`) are made while a noun phrase is built.
"""

import re
from functools import cache

_VOWELS = "aàâeéèêëiîïoôuùûœ"
# Words whose h forbids elision, by how they begin; every other h is mute.
_ASPIRATED = ("haricot", "hamster", "héros", "haut", "hibou")
_MUTE_START = re.compile(rf"[{_VOWELS}]|h(?!{'|'.join(word[1:] for word in _ASPIRATED)})|y\b")
_ELISION = re.compile(rf"\b(je|me|te|se|le|la|de|ne|que) (?={_MUTE_START.pattern})")
_CE_EST = re.compile(r"\bce (?=est\b|était\b)")
_CONTRACTION = re.compile(r"\b(à|de) (les?)\b")
_CONTRACTED = {("à", "le"): "au", ("à", "les"): "aux", ("de", "le"): "du", ("de", "les"): "des"}

# The six persons of the present, then the past participle. A prefix (apprendre, comprendre) changes neither.
_IRREGULAR = {
    infinitive: tuple(forms)
    for infinitive, *forms in map(
        str.split,
        """
        être      suis    es      est      sommes     êtes       sont       été
        avoir     ai      as      a        avons      avez       ont        eu
        aller     vais    vas     va       allons     allez      vont       allé
        venir     viens   viens   vient    venons     venez      viennent   venu
        faire     fais    fais    fait     faisons    faites     font       fait
        prendre   prends  prends  prend    prenons    prenez     prennent   pris
        voir      vois    vois    voit     voyons     voyez      voient     vu
        vouloir   veux    veux    veut     voulons    voulez     veulent    voulu
        pouvoir   peux    peux    peut     pouvons    pouvez     peuvent    pu
        devoir    dois    dois    doit     devons     devez      doivent    dû
        savoir    sais    sais    sait     savons     savez      savent     su
        boire     bois    bois    boit     buvons     buvez      boivent    bu
        lire      lis     lis     lit      lisons     lisez      lisent     lu
        dire      dis     dis     dit      disons     dites      disent     dit
        écrire    écris   écris   écrit    écrivons   écrivez    écrivent   écrit
        mettre    mets    mets    met      mettons    mettez     mettent    mis
        dormir    dors    dors    dort     dormons    dormez     dorment    dormi
        partir    pars    pars    part     partons    partez     partent    parti
        sortir    sors    sors    sort     sortons    sortez     sortent    sorti
        ouvrir    ouvre   ouvres  ouvre    ouvrons    ouvrez     ouvrent    ouvert
        courir    cours   cours   court    courons    courez     courent    couru
        rire      ris     ris     rit      rions      riez       rient      ri
        connaître connais connais connaît  connaissons connaissez connaissent connu
        """.strip().splitlines(),
    )
}
_PREFIXED = {"apprendre": "ap", "comprendre": "com"}
_IMPERATIVE = {"être": ("sois", "soyons"), "avoir": ("aie", "ayons")}
# Stems of -er verbs that change before a silent ending (j'achète, il essaie).
_STRONG_STEM = {
    "achet": "achèt",
    "lev": "lèv",
    "essay": "essai",
}
_ENDINGS = {
    "er": (("e", "es", "e", "ons", "ez", "ent"), "é"),
    "ir": (("is", "is", "it", "issons", "issez", "issent"), "i"),
    "re": (("s", "s", "", "ons", "ez", "ent"), "u"),
}
_IMPERFECT_ENDINGS = ("ais", "ais", "ait", "ions", "iez", "aient")

# Masculine adjectives that have a special form before a vowel.
_BEFORE_VOWEL = {"beau": "bel", "nouveau": "nouvel", "vieux": "vieil"}
_POSSESSIVE = {"my": "m", "your": "t", "his": "s", "her": "s"}
_SHARED_POSSESSIVE = {"our": ("notre", "nos"), "their": ("leur", "leurs")}


def is_mute_start(word: str) -> bool:
    """Tells whether a word makes the one before it elide.

    Examples:
        >>> [is_mute_start(word) for word in ("homme", "haricot", "œuf", "chat")]
        [True, False, True, False]
    """
    return _MUTE_START.match(word) is not None


def join(*parts: str) -> str:
    """Joins words to a phrase, eliding (`je ai`, `que il`) and contracting (`à le`, `de les`) where French does.

    Elision comes first: `de le homme` has to become `de l'homme` and not `du homme`.

    Examples:
        >>> join("je ai vu", "", "la amie de le homme")
        "j'ai vu l'amie de l'homme"
        >>> join("ce est le frère de le garçon")
        "c'est le frère du garçon"
    """
    text = _ELISION.sub(_elided, " ".join(filter(None, parts)))
    text = _CE_EST.sub("c'", text)
    return _CONTRACTION.sub(lambda match: _CONTRACTED[match[1], match[2]], text)


def _elided(match: re.Match[str]) -> str:
    return match[1][:-1] + "'"


@cache
def present(infinitive: str) -> tuple[str, ...]:
    """Gives the six persons of the present: je, tu, il, nous, vous, ils.

    Examples:
        >>> present("manger")
        ('mange', 'manges', 'mange', 'mangeons', 'mangez', 'mangent')
        >>> present("apprendre")[5]
        'apprennent'
    """
    prefix = _PREFIXED.get(infinitive, "")
    if forms := _IRREGULAR.get(infinitive.removeprefix(prefix)):
        return tuple(prefix + form for form in forms[:6])
    stem, group = infinitive[:-2], infinitive[-2:]
    endings = _ENDINGS[group][0]
    if group != "er":
        return tuple(stem + ending for ending in endings)
    strong = _STRONG_STEM.get(stem, stem)
    soft = _soften(stem)
    return tuple(
        (strong if ending in ("e", "es", "ent") else soft if ending == "ons" else stem) + ending for ending in endings
    )


def _soften(stem: str) -> str:
    """Keeps g and c soft before a or o: nous mangeons, nous commençons."""
    return stem + "e" if stem.endswith("g") else stem[:-1] + "ç" if stem.endswith("c") else stem


@cache
def imperfect(infinitive: str) -> tuple[str, ...]:
    """Gives the six persons of the imparfait.

    Examples:
        >>> imperfect("vouloir")[2], imperfect("être")[0]
        ('voulait', 'étais')
    """
    if infinitive == "être":
        stem = "ét"
    elif infinitive.endswith("er") and infinitive != "aller":
        stem = infinitive[:-2]
    else:
        stem = present(infinitive)[3].removesuffix("ons")
    return tuple((stem if ending[0] == "i" else _soften(stem)) + ending for ending in _IMPERFECT_ENDINGS)


@cache
def imperative(infinitive: str, together: bool = False) -> str:
    """Gives the imperative for tu or, `together`, for nous; verbs with tu in -es, and aller, drop the s.

    Examples:
        >>> imperative("aller"), imperative("finir"), imperative("manger", together=True)
        ('va', 'finis', 'mangeons')
    """
    if infinitive in _IMPERATIVE:
        return _IMPERATIVE[infinitive][together]
    if together:
        return present(infinitive)[3]
    form = present(infinitive)[1]
    return form.removesuffix("s") if form.endswith("es") or infinitive == "aller" else form


@cache
def participle(infinitive: str, feminine: bool = False, plural: bool = False) -> str:
    """Gives the past participle, in agreement.

    Examples:
        >>> participle("aller", feminine=True, plural=True), participle("mettre", plural=True)
        ('allées', 'mis')
    """
    prefix = _PREFIXED.get(infinitive, "")
    if forms := _IRREGULAR.get(infinitive.removeprefix(prefix)):
        form = prefix + forms[6]
    else:
        form = infinitive[:-2] + _ENDINGS[infinitive[-2:]][1]
    form += "e" * feminine
    return plural_of(form) if plural else form


@cache
def plural_of(word: str) -> str:
    """Gives the plural of a noun, an adjective or a participle.

    Examples:
        >>> [plural_of(word) for word in ("chat", "oiseau", "cheval", "souris", "heureux")]
        ['chats', 'oiseaux', 'chevaux', 'souris', 'heureux']
    """
    if word.endswith(("s", "x", "z")):
        return word
    if word.endswith(("eau", "eu")) and word != "bleu":
        return word + "x"
    return word[:-2] + "aux" if word.endswith("al") else word + "s"


def agree(masculine: str, feminine_form: str, feminine: bool, plural: bool, following: str = "") -> str:
    """Gives an adjective in agreement; `following` is the word after it, which matters to beau, nouveau and vieux.

    Examples:
        >>> agree("vieux", "vieille", False, False, following="homme")
        'vieil'
        >>> agree("blanc", "blanche", True, True)
        'blanches'
    """
    form = feminine_form if feminine else masculine
    if plural:
        return plural_of(form)
    return _BEFORE_VOWEL.get(form, form) if following and is_mute_start(following) else form


def possessive(english: str, feminine: bool, plural: bool, following: str) -> str:
    """Gives mon, ma, mes and so on; before a vowel a feminine noun takes the masculine form.

    Examples:
        >>> possessive("my", True, False, "école"), possessive("her", True, False, "sœur")
        ('mon', 'sa')
    """
    if english in _SHARED_POSSESSIVE:
        return _SHARED_POSSESSIVE[english][plural]
    ending = "es" if plural else "a" if feminine and not is_mute_start(following) else "on"
    return _POSSESSIVE[english] + ending


def demonstrative(feminine: bool, plural: bool, following: str) -> str:
    """Gives ce, cet, cette or ces.

    Examples:
        >>> demonstrative(False, False, "homme"), demonstrative(False, False, "haricot")
        ('cet', 'ce')
    """
    if plural:
        return "ces"
    if feminine:
        return "cette"
    return "cet" if is_mute_start(following) else "ce"
