"""Noun phrases and clauses, each of which can say itself in English and in French.

French parts are kept as full words; `sentence` joins them once, at the end. `{self}` and `{reflexive}` in a French
complement stand for the subject's own pronouns (chez moi, me lever).
"""

from dataclasses import dataclass
from typing import Literal

from phrasebook import english as en
from phrasebook import french as fr
from phrasebook.lexicon import NUMBERS, Adjective, Noun

Tense = Literal["present", "past", "future"]
Polarity = Literal["", "not", "never"]
Pair = tuple[str, str]

_REFLEXIVE = ("me", "te", "se", "nous", "vous", "se")
_SELF = (("moi", "toi", "lui", "nous", "vous", "eux"), ("moi", "toi", "elle", "nous", "vous", "elles"))
_BE = ("am", "are", "is", "are", "are", "are")
_CONTRACTED_BE = {"am": "'m", "are": "'re", "is": "'s"}
_NEGATION = {"": "", "not": "pas", "never": "jamais"}
_NUMBERS = dict(NUMBERS)
# How a determiner starts in French, by (feminine, plural).
_ARTICLES = {
    "the": ("le", "les", "la", "les"),
    "generic": ("le", "les", "la", "les"),
    "a": ("un", "des", "une", "des"),
    "bare": ("de le", "des", "de la", "des"),
}


@dataclass(frozen=True)
class NounPhrase:
    """A noun with its determiner and, perhaps, an adjective.

    The determiner is named by its English word. `bare` has none in English and is partitive in French (water, de
    l'eau); `generic` has none in English either and is definite in French, as after `like` (water, l'eau).
    """

    noun: Noun
    determiner: str = "the"
    plural: bool = False
    adjective: Adjective | None = None

    @property
    def english(self) -> str:
        """The English phrase."""
        words = (self.adjective.english + " " if self.adjective else "") + (
            self.noun.plural_english if self.plural else self.noun.english
        )
        if self.determiner in ("bare", "generic"):
            return words
        if self.determiner == "a":
            return f"{en.article(words)} {words}"
        if self.determiner == "this" and self.plural:
            return f"these {words}"
        return f"{self.determiner} {words}"

    @property
    def french(self) -> str:
        """The French phrase."""
        words = self._french_words
        if self.determiner in ("a", "bare") and self.plural and self.adjective and self.adjective.before:
            return f"de {words}"  # de belles fleurs: an adjective in front turns des into de
        return f"{self._french_determiner(words)} {words}"

    @property
    def negated_french(self) -> str:
        """The French phrase as the object of a negated verb, where un, des, du become de."""
        return f"de {self._french_words}" if self.determiner in ("a", "bare") else self.french

    @property
    def _french_words(self) -> str:
        noun = self.noun.plural_french if self.plural else self.noun.french
        if not self.adjective:
            return noun
        if self.adjective.before:
            return f"{self.adjective.french(self.noun.feminine, self.plural, noun)} {noun}"
        return f"{noun} {self.adjective.french(self.noun.feminine, self.plural)}"

    def _french_determiner(self, following: str) -> str:
        if forms := _ARTICLES.get(self.determiner):
            return forms[2 * self.noun.feminine + self.plural]
        if self.determiner == "this":
            return fr.demonstrative(self.noun.feminine, self.plural, following)
        if number := _NUMBERS.get(self.determiner):
            return number
        return fr.possessive(self.determiner, self.noun.feminine, self.plural, following)


@dataclass(frozen=True)
class Subject:
    """A subject; `person` counts I, you, he or she, we, (vous), they from 0."""

    english: str
    french: str
    person: int
    feminine: bool = False
    pronoun: bool = False

    @property
    def plural(self) -> bool:
        """Whether the subject is plural."""
        return self.person > 2

    @property
    def own(self) -> str:
        """The French pronoun after a preposition: chez moi."""
        return _SELF[self.feminine][self.person]

    @classmethod
    def of(cls, phrase: NounPhrase) -> "Subject":
        """Makes a subject of a noun phrase."""
        return cls(phrase.english, phrase.french, 5 if phrase.plural else 2, phrase.noun.feminine)


PRONOUNS = (
    Subject("I", "je", 0, pronoun=True),
    Subject("you", "tu", 1, pronoun=True),
    Subject("he", "il", 2, pronoun=True),
    Subject("she", "elle", 2, feminine=True, pronoun=True),
    Subject("we", "nous", 3, pronoun=True),
    Subject("they", "ils", 5, pronoun=True),
)


@dataclass(frozen=True)
class Verb:
    """A verb in both languages.

    `moves` marks the verbs whose passé composé takes être; the English past of a `stative` verb is the imparfait.
    `modal` marks can and must, which take no do and no to. `link` comes before an infinitive (commencer à).
    """

    english: str
    french: str
    moves: bool = False
    reflexive: bool = False
    stative: bool = False
    modal: bool = False
    link: str = ""

    @classmethod
    def read(cls, english: str, french: str) -> "Verb":
        """Reads a table's entry: `*` after the French verb says that it takes être, `~` that it is stative."""
        reflexive = french.startswith("se ")
        infinitive = french.removeprefix("se ").rstrip("*~")
        return cls(english, infinitive, french.endswith("*"), reflexive, french.endswith("~"))


@dataclass(frozen=True)
class Clitic:
    """An object pronoun, with what a participle after it agrees with."""

    english: str
    french: str
    feminine: bool = False
    plural: bool = False


@dataclass(frozen=True)
class Predicate:
    """A verb with its complement; an adjective at the end of the complement agrees with the subject."""

    verb: Verb
    english: str = ""
    french: str = ""
    negated_french: str = ""
    adjective: Adjective | None = None
    clitic: Clitic | None = None

    @classmethod
    def with_object(cls, verb: Verb, phrase: NounPhrase, preposition: str = "") -> "Predicate":
        """Makes a predicate of a verb and its object; behind a French preposition negation changes nothing."""
        if preposition:
            return cls(verb, phrase.english, f"{preposition} {phrase.french}", f"{preposition} {phrase.french}")
        return cls(verb, phrase.english, phrase.french, phrase.negated_french)

    @classmethod
    def simple(cls, verb: Verb, english: str = "", french: str = "", adjective: Adjective | None = None) -> "Predicate":
        """Makes a predicate whose complement does not depend on negation."""
        return cls(verb, english, french, french, adjective)

    def under(self, verb: Verb) -> "Predicate":
        """Puts the predicate in the infinitive under a verb: want to eat, vouloir manger."""
        before = " ".join(filter(None, (verb.link, self._infinitive_clitic, self.verb.french)))
        return Predicate(
            verb,
            ("" if verb.modal else "to ") + self.infinitive_english,
            f"{before} {self.french}".strip(),
            f"{before} {self.negated_french}".strip(),
            self.adjective,
        )

    @property
    def infinitive_english(self) -> str:
        """The English infinitive with its complement, without to."""
        clitic = self.clitic.english if self.clitic else ""
        return " ".join(filter(None, (self.verb.english, clitic, self.english)))

    @property
    def _infinitive_clitic(self) -> str:
        if self.verb.reflexive:
            return "{reflexive}"
        return self.clitic.french if self.clitic else ""


@dataclass(frozen=True)
class Clause:
    """A subject and a predicate in a tense, affirmed or negated.

    `adverb` stands by the verb (often, souvent), `adjunct` at the end (in the garden, dans le jardin).
    """

    subject: Subject
    predicate: Predicate
    tense: Tense = "present"
    polarity: Polarity = ""
    adverb: Pair = ("", "")
    adjunct: Pair = ("", "")

    @property
    def english(self) -> str:
        """The English statement."""
        return _words(self._english_core, self.adjunct[0])

    @property
    def _english_core(self) -> str:
        operator, rest = self._operator, self._english_rest
        if self._has_be:
            return self._with_be(operator, rest)
        before = "never" if self.polarity == "never" else self.adverb[0]
        if self.predicate.verb.modal:
            negative = {"can": "can't", "must": "must not"}[operator] if self.polarity == "not" else operator
            return _words(self.subject.english, negative, before, self.predicate.english)
        if self.polarity == "not":
            return _words(self.subject.english, operator + "n't", rest)
        verb = self.predicate.verb.english
        if self.tense == "past":
            verb = en.past(verb)
        elif self.subject.person == 2:
            verb = en.third_person(verb)
        return _words(self.subject.english, before, verb, self._english_complement)

    @property
    def english_question(self) -> str:
        """The English question, without a question mark."""
        rest = self.predicate.english if self.predicate.verb.modal else self._english_rest
        return _words(self._operator, self.subject.english, rest, self.adjunct[0])

    @property
    def french(self) -> str:
        """The French statement, in full words; with `est-ce que` before it, it is the question."""
        verb, person = self.predicate.verb, self.subject.person
        clitic = _REFLEXIVE[person] if verb.reflexive else self.predicate.clitic.french if self.predicate.clitic else ""
        after: tuple[str, ...] = (self._french_complement,)
        if self.tense == "future":
            finite, after = fr.present("aller")[person], (clitic, verb.french, *after)
            clitic = ""
        elif self.tense == "past" and not verb.stative:
            auxiliary = "être" if verb.moves or verb.reflexive else "avoir"
            finite, after = fr.present(auxiliary)[person], (self._participle, *after)
        else:
            finite = (fr.imperfect if self.tense == "past" else fr.present)(verb.french)[person]
        negation = _NEGATION[self.polarity]
        particle = "ne" if negation else ""
        adverb = negation or self.adverb[1]
        words = _words(self.subject.french, particle, clitic, finite, adverb, *after, self.adjunct[1])
        return words.format(self=self.subject.own, reflexive=_REFLEXIVE[person]) if "{" in words else words

    @property
    def _has_be(self) -> bool:
        return self.tense == "future" or self.predicate.verb.english == "be"

    @property
    def _operator(self) -> str:
        """The English word that a question starts with and that `not` joins."""
        person = self.subject.person
        if self._has_be:
            return ("was" if person in (0, 2) else "were") if self.tense == "past" else _BE[person]
        if self.predicate.verb.modal:
            return self.predicate.verb.english
        return "did" if self.tense == "past" else "does" if person == 2 else "do"

    @property
    def _english_complement(self) -> str:
        clitic = self.predicate.clitic.english if self.predicate.clitic else ""
        return _words(clitic, self.predicate.english)

    @property
    def _english_rest(self) -> str:
        """The words after the operator in a question."""
        if self.tense == "future":
            return "going to " + self.predicate.infinitive_english
        return self.predicate.english if self._has_be else self.predicate.infinitive_english

    def _with_be(self, operator: str, rest: str) -> str:
        adverb = self.polarity if self.polarity == "never" else self.adverb[0]
        if self.subject.pronoun and self.tense != "past":
            adverb = self.polarity or adverb
            return _words(self.subject.english + _CONTRACTED_BE[operator], adverb, rest)
        return _words(self.subject.english, operator + ("n't" if self.polarity == "not" else ""), adverb, rest)

    @property
    def _french_complement(self) -> str:
        text = self.predicate.negated_french if self.polarity else self.predicate.french
        if adjective := self.predicate.adjective:
            return _words(text, adjective.french(self.subject.feminine, self.subject.plural))
        return text

    @property
    def _participle(self) -> str:
        verb, agreeing = self.predicate.verb, self.predicate.clitic
        if verb.moves or verb.reflexive:
            return fr.participle(verb.french, self.subject.feminine, self.subject.plural)
        if agreeing:
            return fr.participle(verb.french, agreeing.feminine, agreeing.plural)
        return fr.participle(verb.french)


def sentence(english: str, french: str, end: str = ".") -> Pair:
    """Capitalises and punctuates a pair; an exclamation is French only, since English commands end in a period.

    Examples:
        >>> sentence("go", "va", "!")
        ('Go.', 'Va !')
        >>> sentence("are you home", "est-ce que tu es chez toi", "?")
        ('Are you home?', 'Est-ce que tu es chez toi ?')
    """
    english_end, french_end = {".": (".", "."), "!": (".", " !"), "?": ("?", " ?")}[end]
    french = fr.join(french)
    return english[0].upper() + english[1:] + english_end, french[0].upper() + french[1:] + french_end


def statement(clause: Clause) -> Pair:
    """Says a clause as a sentence.

    Examples:
        >>> statement(Clause(PRONOUNS[0], Predicate(Verb("lose", "perdre")), "past"))
        ('I lost.', "J'ai perdu.")
    """
    return sentence(clause.english, clause.french)


def question(clause: Clause, word: Pair = ("", "")) -> Pair:
    """Asks a clause with `est-ce que`, perhaps after a question word.

    Examples:
        >>> question(Clause(PRONOUNS[3], Predicate(Verb("live", "habiter"))), ("where", "où"))
        ('Where does she live?', "Où est-ce qu'elle habite ?")
    """
    return sentence(_words(word[0], clause.english_question), _words(word[1], "est-ce que", clause.french), "?")


def _words(*parts: str) -> str:
    return " ".join(filter(None, parts))
