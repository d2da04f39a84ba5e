"""Inflected forms of words, by the endings of a vocabulary."""

import pickle

import pytest

from dikkat.translation.text.forms import Forms

TURKISH = [stem + ending for stem in ("dosya", "sayfa", "hesap", "aralık") for ending in ("", "lar", "lardan")]
TURKISH += ["hesabı", "kitap", "kitabı", "dolap", "dolabı", "çorap", "çorabı", "dosyalama", "arabı"]
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


def test_the_number_of_forms_is_limited():
    stems = ("taba", "kaba", "saba")
    endings = ["", *(a + b for a in "abcdefghij" for b in "klmnopqrst")]
    found = Forms(stem + ending for stem in stems for ending in endings).of("taba")
    assert (len(found), found[0]) == (60, "taba")


def test_used_forms_can_be_pickled():
    forms = Forms(TURKISH)
    found = forms.of("kitap")
    assert pickle.loads(pickle.dumps(forms)).of("kitap") == found
