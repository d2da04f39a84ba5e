"""Inflected forms of words, by the endings of a vocabulary."""

import pickle

import pytest

from dikkat.translation.text.forms import Forms

TURKISH = [stem + ending for stem in ("dosya", "sayfa", "hesap", "aralık") for ending in ("", "lar", "lardan")]
TURKISH += ["hesabı", "kitap", "kitabı", "dolap", "dolabı", "çorap", "çorabı", "dosyalama", "arabı"]
GERMAN = [stem + "n" * plural for stem in ("zelle", "seite", "reihe", "spalte") for plural in (False, True)]
GERMAN += ["daten", "datei", "dateien", "partei", "parteien", "kartei", "karteien"]
GERMAN += [first + last for first in ("zell", "reih", "datei", "spalten") for last in ("bereich", "name", "namen")]
GERMAN += [
    "zellenname",
    "reihenname",
    "seitenname",
    "bereich",
    "name",
    "namen",
    "seit",
    "heut",
    "heute",
    "lang",
    "lange",
]
GERMAN += ["kurz", "kurze", "lieb", "liebe"]
FRENCH = ["cheval", "chevaux", "canal", "canaux", "journal", "journaux", "animal", "animaux", "chevelure", "le", "les"]


@pytest.mark.parametrize(
    ("words", "word", "forms"),
    [
        (TURKISH, "dosya", ["dosya", "dosyalar", "dosyalardan"]),  # -lama has one stem
        (TURKISH, "kitap", ["kitap", "kitabı"]),
        (TURKISH, "sayfalar", ["sayfalar", "sayfa", "sayfalardan"]),
        (TURKISH, "mandren", ["mandren"]),
        (FRENCH, "cheval", ["cheval", "chevaux"]),
        (FRENCH, "le", ["le"]),  # shorter than a stem
        (GERMAN, "zelle", ["zelle", "zellen"]),  # no compounds, with or without linking letters
        (GERMAN, "datei", ["datei", "dateien"]),
        (GERMAN, "seite", ["seite", "seiten"]),  # but also e and nothing: lang, kurz, lieb
        (GERMAN, "lang", ["lang", "lange"]),
        (["chat", "char", "rat", "rar", "états", "étars", "éclat", "éclar", "plat", "plar"], "chat", ["chat"]),
        ([], "cheval", ["cheval"]),
    ],
)
def test_forms_share_a_stem_and_exchange_endings_that_three_stems_have(words, word, forms):
    found = Forms(words).of(word)
    assert found[0] == word
    assert sorted(found) == sorted(forms)


def test_words_outside_the_vocabulary_have_forms_too():
    forms = Forms(TURKISH)
    assert forms.are_forms("mandrenk", "mandrenklar")
    assert not forms.are_forms("mandren", "mandrenlama")
    assert not forms.are_forms("mandren", "dosyalar")
    assert forms.are_forms("c", "c")
    assert not forms.are_forms("c", "clar")


def test_a_frequent_ending_that_is_a_word_too_makes_forms():
    stems = [f"{a}{b}m{c}" for a in "bdk" for b in "eiü" for c in "eir"]
    rare, frequent = (
        Forms([*stems, *(stem + "leri" for stem in stems[:number]), "leri"]) for number in (18, 19)
    )  # with the word itself, 19 and 20 words have the ending
    assert not rare.are_forms("hücre", "hücreleri")
    assert frequent.are_forms("hücre", "hücreleri")
    others = [f"{a}{b}{c}o" for a in "bdfghjklmnprstvyz" for b in "eiüaou" for c in "bdfghjklmnprstvyz"]
    large = Forms([*stems, *(stem + "leri" for stem in stems[:19]), "leri", *others, *(word + "x" for word in others)])
    assert not large.are_forms("hücre", "hücreleri")  # 20 of more than 2,500 words


def test_the_number_of_forms_is_limited():
    stems = ("taba", "kaba", "saba")
    endings = ["", *(a + b for a in "abcdefghij" for b in "klmnopqrst")]
    found = Forms(stem + ending for stem in stems for ending in endings).of("taba")
    assert (len(found), found[0]) == (60, "taba")


def test_used_forms_can_be_pickled():
    forms = Forms(TURKISH)
    found = forms.of("kitap")
    assert pickle.loads(pickle.dumps(forms)).of("kitap") == found
