"""Terms: tables, matches in sources, and their use in translations."""

import dataclasses
import warnings

import pytest
import torch

from dikkat.translation import CorpusError, InputError, Search, Settings, Tokenizer, Translation, TranslationModel
from dikkat.translation.decoding import term_use
from dikkat.translation.decoding.alignment import forced_weights
from dikkat.translation.decoding.pairs import PairScorer
from dikkat.translation.decoding.term_use import find_term, use_terms
from dikkat.translation.terms import LONGEST, Terms
from dikkat.translation.text.forms import Forms
from dikkat.translation.text.slots import NO_SLOTS
from translation.taught import untrained

# --- tables


def test_a_table_of_terms(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("chuck\tmandrin\n\n cross  slide \tchariot transversal\n", encoding="utf-8")
    assert Terms.read(path).targets == {"chuck": "mandrin", "cross slide": "chariot transversal"}
    (tmp_path / "terms.csv").write_text('English;French\n"chuck";"mandrin"\n', encoding="utf-8")
    with pytest.warns(UserWarning, match="skipped the column names"):
        assert Terms.read(tmp_path / "terms.csv").targets == {"chuck": "mandrin"}


def test_the_last_of_two_translations_is_used_with_a_warning(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_text("chuck\tpince\nlathe\ttour\nchuck\tmandrin\nlathe\ttour\n", encoding="utf-8")
    with pytest.warns(UserWarning, match=r"terms.tsv: got two translations of 'chuck', 'pince' and 'mandrin'") as told:
        assert Terms.read(path).targets == {"chuck": "mandrin", "lathe": "tour"}
    assert len(told) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("chuck\n", r"terms.tsv, line 1: got .*has no tab"),
        ("chuck\tmandrin\nlathe\t\n", "terms.tsv, line 2"),
        ("", "got no sentence pairs"),
        ("chuck\t...\n", r"terms.tsv, term 1: got '...'; expected words"),
    ],
)
def test_a_table_without_terms_raises_with_its_line(tmp_path, content, message):
    path = tmp_path / "terms.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        Terms.read(path)


@pytest.mark.parametrize("term", ["", " ", "!", "\x01", "a" * (LONGEST + 1)])
def test_a_term_is_words(term):
    for terms in ({term: "mandrin"}, {"chuck": term}):
        for make_terms in (Terms, Terms.of):
            with pytest.raises(InputError, match=r"terms, term 1: got .*expected words, at most 1,000 characters"):
                make_terms(terms)


def test_a_text_has_no_form_of_an_empty_term():
    assert next(find_term("a b", "", Forms([])), None) is None


@pytest.mark.parametrize("term", [" chuck", "chuck ", "cross  slide", "cross\nslide"])
def test_terms_without_of_have_no_superfluous_spaces(term):
    for terms in ({term: "mandrin"}, {"chuck": term}):
        with pytest.raises(InputError, match=r"terms, term 1: got .*expected single spaces between words"):
            Terms(terms)
        Terms.of(terms)


def test_a_term_is_text(translator):
    with pytest.raises(TypeError, match="terms, term 1: got int; expected a string"):
        translator.translate("Go.", terms={"chuck": 7})


# --- matches


@pytest.mark.parametrize(
    ("terms", "text", "found"),
    [
        (["range"], "A range, arrange ranges.", [(2, "range")]),
        (["range"], "Range or RANGE or rANGE", [(0, "range"), (9, "range")]),
        (["US"], "us US Us", [(3, "US")]),
        (["range", "data range"], "data range range", [(0, "data range"), (11, "range")]),
        (["data", "data range", "range"], "a data range", [(2, "data range")]),
        (["homme"], "l'homme d’homme", [(2, "homme"), (10, "homme")]),
        (["C++", "C"], "C++ and C, C#", [(0, "C++"), (8, "C"), (11, "C")]),
        ([".NET"], "Use .NET.", [(4, ".NET")]),
        (["老人"], "我看见老人了", [(3, "老人")]),
        (["кот"], "Кот и котик", [(0, "кот")]),
        (
            ["istek", "ilk istek"],
            "İstek, ISTEK, istek, İSTEK: İlk istek",
            [(0, "istek"), (7, "istek"), (14, "istek"), (21, "istek"), (28, "ilk istek")],
        ),
        (["ırmak", "is"], "Irmak, ırmak, IRMAK, irmak. Is", [(0, "ırmak"), (7, "ırmak"), (14, "ırmak"), (28, "is")]),
        (["i", "ß", "straße"], "I İ i ß SS Straße STRASSE", [(0, "i"), (2, "i"), (4, "i"), (6, "ß"), (11, "straße")]),
        (["set"], "re-set the set_up", [(3, "set")]),
        (["range"], "", []),
        (["org", "file"], "See https://example.org/file, the file {file}.", [(34, "file")]),
        (["version 7"], "In version 7, version 7.2", [(3, "version 7")]),
    ],
)
def test_terms_match_whole_words(terms, text, found):
    result = Terms.of(dict.fromkeys(terms, "x")).find(text)
    assert [(each.start, each.source) for each in result] == found
    assert all(each.end - each.start == len(each.source) for each in result)


# --- use


@pytest.mark.parametrize(
    ("source", "terms", "target"),
    [
        ("The man is calm.", {"calm": "tranquille"}, "L'homme est tranquille."),
        ("The man is calm.", {"calm": "parti", "man": "ami"}, "L'ami est parti."),
        ("He's calm.", {"man": "ami"}, "Il est calme."),
        ("He's calm.", {"calm": "calme"}, "Il est calme."),
        ("The man is calm.", {"calm": "tout à fait calme"}, "L'homme est tout à fait calme."),
        ("The man is calm.", {"calm": "спокоен"}, "L'homme est спокоен."),
        ("The man is calm.", {"calm": "C++"}, "L'homme est C++."),
        ("", {"man": "ami"}, ""),
        ("(25 %)", {"25": "30"}, "(25 %)"),
    ],
)
def test_the_words_of_a_term_are_replaced(translator, source, terms, target):
    found = translator.translate(source, terms=terms)
    assert (found.target, found.unused_terms, found.source) == (target, (), source)


def test_a_changed_translation_has_its_tokens_weights_and_score(translator):
    source = "The man is calm."
    plain, found = translator.translate(source), translator.translate(source, terms={"calm": "perdu"})
    assert found.target == "L'homme est perdu."
    assert found.target_tokens == ["L'", "homme", "est", "perdu", "."]
    assert found.source_tokens == plain.source_tokens
    assert found.score == pytest.approx(translator.score([(source, found.target)])[0], abs=1e-5)
    torch.testing.assert_close(found.weights.sum(1), torch.ones(5))
    torch.testing.assert_close(found.weights[:4], plain.weights[:4], atol=1e-5, rtol=0)  # before the changed word


def test_forced_weights_are_those_of_the_search(translator):
    source, target = (
        side.encode(text).ids
        for side, text in zip(
            (translator.source_tokenizer, translator.target_tokenizer), ("I lost.", "J'ai perdu."), strict=True
        )
    )
    (weights,) = forced_weights(translator.model, [(source, target)])
    torch.testing.assert_close(weights, translator.translate("I lost.").weights, atol=1e-5, rtol=0)
    assert forced_weights(translator.model, [(source, [])])[0].shape == (0, len(source))


def test_a_dictionary_is_not_needed_twice(translator):
    terms = Terms.of({"man": "ami"})
    lines = ["The man is calm.", "Go.", "She sees Marie."]
    wanted = ["L'ami est calme.", "Va !", "Elle voit Marie."]
    assert [each.target for each in translator.translate(lines, terms=terms)] == wanted
    assert [each.target for each in translator.translate_lines(iter(lines), terms=terms, batch_size=1)] == wanted


def test_a_model_without_attention_raises(translator):
    blind = untrained(translator, score="none")
    with pytest.raises(InputError, match="terms: got terms, and a model without attention"):
        blind.translate("Go.", terms={"man": "ami"})
    assert blind.translate("Go.", terms={}).source == "Go."


def test_more_terms_than_allowed_are_reported(translator):
    source = "man " * 60
    found = translator.translate(source, terms={"man": "ami"}, split=False)
    assert found.unused_terms == ("man",) * (60 - 50)
    assert "unused terms" in found.flags
    assert found.target.lower().count("ami") == 50
    long = translator.translate("man " * 20, terms={"man": "a" * 900}, split=False)
    assert set(long.unused_terms) == {"man"}
    assert len(long.target) < 10_000


@pytest.mark.parametrize(
    ("source", "terms", "target", "lost", "invented"),
    [
        ("The man is calm.", {"man": "Renault 5"}, "Le Renault 5 est calme.", (), ()),
        ("The man is calm.", {"calm": "5 1/2"}, "L'homme est 5 1/2.", (), ()),
        ("See 5 apples.", {"5 apples": "cinq pommes"}, "Voir cinq pommes.", (), ()),
        ("See 5 apples.", {"5 apples": "cinq pommes"}, "Voir 5 pommes.", (), ()),  # not used: the model's number
        ("See 5 apples.", {"5 apples": "cinq pommes"}, "Voir les pommes.", ("5",), ()),
        ("See 5 apples, 7.", {"5 apples": "cinq pommes"}, "Voir cinq pommes, 8.", ("7",), ("8",)),
        ("5 man and 5 man", {"5 man": "cinq amis"}, "cinq amis et amis", ("5",), ()),
        ("The man.", {"man": "Renault 5"}, "Renault 5, Renault 5.", (), ("5",)),  # one of two comes from the term
    ],
)
def test_the_digits_of_used_terms_are_neither_lost_nor_invented(translator, source, terms, target, lost, invented):
    translation = Translation(source, target, source.split(), target.split(), torch.zeros(0, 0), -1.0)
    ((found,),) = translator._assess([[translation]], Terms.of(terms))
    assert (found.lost, found.invented) == (lost, invented)


def test_a_term_inside_a_longer_term_of_the_target_is_not_used(translator):
    terms = Terms.of({"data range 7": "plage 5 de données", "range 7": "plage 5"})
    source, target = "range 7, data range 7, 5.", "plage 5 de données 5 et plage 5, 6."
    translation = Translation(source, target, source.split(), target.split(), torch.zeros(0, 0), -1.0)
    blank = term_use.blank_terms(terms, translation, translator.target_tokenizer)
    assert [" ".join(text.replace("\n", " ").split()) for text in blank] == [", , 5.", "5 et , 6."]


@pytest.mark.parametrize("markup", [None, "html"])
def test_a_term_with_a_digit_makes_no_flag(translator, markup):
    for source in ("The man is calm.", "He's calm. The man is calm."):
        found = translator.translate(source, terms={"calm": "R 5"}, markup=markup)
        assert (found.target.count("R 5"), found.flags) == (source.count("calm"), ())


def test_translations_that_terms_make_equal_are_one(translator):
    terms, source = {"The man is calm": "ami"}, "The man is calm."
    search = Search(beam=8, n_best=8)
    ((*plain,),) = translator.translate_n_best([source], search=search)
    ((*found,),) = translator.translate_n_best([source], search=search, terms=terms)
    targets = [translation.target for translation in found]
    assert len(set(targets)) == len(targets) < len(plain) == 8
    samples = Search(sample=True, n_best=8, seed=1)
    ((*drawn,),) = translator.translate_n_best([source], search=samples, terms=terms)
    assert len(drawn) == 8 > len({translation.target for translation in drawn})


class Judge(PairScorer):
    """A translator whose scores count the words of a reference, with given links between units."""

    def __init__(self, translator, tokenizer, reference, links, attention):
        self._translator, self.slots = translator, NO_SLOTS
        self.source_tokenizer, self.target_tokenizer = translator.source_tokenizer, tokenizer
        torch.manual_seed(0)
        self._model = TranslationModel(
            Settings(embedding_size=4, hidden_size=4), len(self.source_tokenizer), len(tokenizer)
        )
        self._reference, self._links, self._attention = reference.split(), links, attention

    def _models(self):
        return (self._model,)

    def _memories(self):
        return (None,)

    def score(self, pairs, *, batch_size=64):
        return [
            -sum(a != b for a, b in zip(target.split(), self._reference, strict=False))
            - abs(len(target.split()) - len(self._reference))
            for _, target in pairs
        ]

    def weights_of_units(self, pairs, batch_size=64, *, whole_spans=False, attention_share=0.01):
        assert attention_share == pytest.approx(0.505)  # half of the posteriors' remaining 0.99
        matrices = [torch.tensor(self._links.pop(0)) for _ in pairs]
        return [links if self._attention is None else (links + torch.tensor(self._attention)) / 2 for links in matrices]


def use(translator, text, source, target, reference, links, terms, attention=None):
    tokenizer = Tokenizer.train(text, "word", min_freq=1, vocabulary_size=999)
    judge = Judge(translator, tokenizer, reference, links, attention)
    given = Translation(source, target, source.split(), target.split(), torch.zeros(0, 0), -1.0)
    ((result,),) = use_terms(judge, Terms.of(terms), [[given]], [None], 64, Search())
    return result.target


GERMAN = [f"{stem}{ending}" for stem in ("Zelle", "Seite", "Reihe", "Spalte") for ending in ("", "n")] + [
    "die",
    "in den",
]


def test_the_form_is_the_one_that_the_scores_prefer(translator):
    eye = torch.eye(4).tolist()
    arguments = translator, [*GERMAN, "der Absatz"], "in the cells now", "in den Absatz jetzt"
    assert use(*arguments, "in den Zellen jetzt", [eye], {"cells": "Zelle"}) == "in den Zellen jetzt"
    assert use(*arguments, "in den Zelle jetzt", [eye], {"cells": "Zelle"}) == "in den Zelle jetzt"


def test_a_form_that_is_there_stays(translator):
    assert use(translator, GERMAN, "the cells", "die Zellen", "die Zelle", [], {"cells": "Zelle"}) == "die Zellen"


def test_a_term_that_no_word_comes_from_is_inserted_where_the_scores_prefer_it(translator):
    none = [[1.0, 0.0], [1.0, 0.0]]
    found = use(translator, GERMAN, "the cells", "die .", "die Zellen .", [none], {"cells": "Zelle"})
    assert found == "die Zellen ."
    assert (
        use(translator, GERMAN, "the cells", "Ende", "Zelle Ende", [[[1.0, 0.0]]], {"cells": "Zelle"}) == "Zelle Ende"
    )


def test_no_term_is_inserted_into_a_long_text(translator, monkeypatch):
    scorer = untrained(translator)
    texts = ["Go " * 2, "Go " * 120]
    lines = [[Translation(text.strip(), text.strip(), ["Go"], ["Go"], torch.ones(1, 1), 0.0)] for text in texts]
    weights = lambda _, pairs, *rest, **options: [torch.zeros(len(t.split()), len(s.split())) for s, t in pairs]  # noqa: E731
    monkeypatch.setattr(PairScorer, "weights_of_units", weights)
    (short,), (long,) = use_terms(scorer, Terms.of({"Go": "Marie"}), lines, [None, None], 64, Search())
    assert (len(short.unused_terms), len(long.unused_terms)) == (0, 120)
    assert long.target == texts[1].strip()


def test_passes_end_with_the_largest_number_of_terms(translator, monkeypatch):
    passes, weights = [], PairScorer.weights_of_units
    monkeypatch.setattr(
        PairScorer, "weights_of_units", lambda *rest, **options: (passes.append(1), weights(*rest, **options))[1]
    )
    monkeypatch.setattr(term_use, "_MOST_TERMS", 2)
    found = translator.translate("man man man man man", terms={"man": "ami"}, split=False)
    assert found.unused_terms == ("man",) * 3
    assert len(passes) == 2  # one for each used term


def test_of_two_occurrences_the_missing_one_is_used(translator):
    links = [[0.9, 0.0, 0.1], [0.5, 0.5, 0.0], [0.1, 0.0, 0.9]]
    found = use(translator, GERMAN, "cell or cell", "Zelle oder Feld", "Zelle oder Zelle", [links], {"cell": "Zelle"})
    assert found == "Zelle oder Zelle"


def test_an_elision_before_a_term_follows_its_first_letter(translator):
    text = ["le chat", "la table", "l'outil", "l'ami"]
    eye = [[1.0, 0.0], [0.0, 1.0]]
    arguments = translator, text, "the tool"
    assert use(*arguments, "l'outil", "le mandrin", [eye], {"tool": "mandrin"}) == "le mandrin"
    assert use(*arguments, "la table", "l'ami", [eye], {"tool": "ami"}) == "l'ami"
    assert use(*arguments, "L'outil", "Le mandrin", [eye], {"tool": "mandrin"}) == "Le mandrin"
    assert use(*arguments, "l'outil", "l'mandrin", [eye], {"tool": "mandrin"}) in ("le mandrin", "la mandrin")
    assert use(*arguments, "la table", "l'homme", [eye], {"tool": "homme"}) == "l'homme"
    assert (
        use(translator, ["l'outil", "la vis"], "the tool", "l'outil", "le mandrin", [eye], {"tool": "mandrin"})
        == "la mandrin"
    )


def test_of_linked_words_the_longest_is_replaced_and_no_unlinked_one(translator):
    links, source = [[0.1, 0.9], [1.0, 0.0], [0.1, 0.9]], "spreadsheet cell"
    arguments = translator, GERMAN, source, "das Tabellenkalkulation Feld", "das Tabellenkalkulation Zelle", [links]
    assert use(*arguments, {"cell": "Zelle"}) == "das Tabellenkalkulation Zelle"


def test_attention_finds_a_word_whose_posterior_is_elsewhere(translator):
    elsewhere, attention = [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.1, 0.9]]
    arguments = translator, GERMAN, "the cells", "die Felder", "die Zellen", [elsewhere], {"cells": "Zelle"}
    assert use(*arguments, attention) == "die Zellen"


def test_a_term_at_the_beginning_gets_a_capital(translator):
    assert use(translator, GERMAN, "cells", "Felder", "Zeile", [[[1.0]]], {"cells": "zeile"}) == "Zeile"


def test_neighbouring_words_of_a_term_are_replaced_together(translator):
    links = [[1.0, 0.0, 0.0], [0.0, 0.7, 0.3], [0.4, 0.3, 0.3], [0.0, 0.2, 0.8]]
    arguments = translator, GERMAN, "the data range", "la plage de données", "la zone", [links]
    assert use(*arguments, {"data range": "zone"}) == "la zone"


def test_tags_move_with_a_term(translator):
    found = translator.translate("The man is <b>calm</b>.", terms={"calm": "tranquille"}, markup="html")
    assert found.target == "L'homme est <b>tranquille</b>."
    found = translator.translate("<i>She</i> sees Marie.", terms={"She": "Jeanne"}, markup="html")
    assert found.target == "<i>Jeanne</i> voit Marie."


def test_a_contradiction_warns_only_in_tables():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Terms.of({"a": "x", " a": "x"}).targets == {"a": "x"}
    assert dataclasses.replace(Terms.of({"a": "x"})) == Terms.of({"a": "x"})
    assert issubclass(CorpusError, InputError)
