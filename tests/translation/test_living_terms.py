"""Terms, confidence and flags on the page against Python's."""

import random
from dataclasses import replace

import pytest
import torch

import kit
from dikkat.translation import Search
from dikkat.translation.decoding.term_use import _elided, _find_pending, _Line, _use_next, _used_spans
from dikkat.translation.terms import Terms
from dikkat.translation.text.special_tokens import END
from translation.taught import PAIRS
from translation.test_corrections import NEW, corrected_copy
from translation.test_living import entities_of, in_node, in_utf16, needs_node

TERMS = {
    "calm": "parti", "man": "monsieur", "Marie": "Anne", "lost": "manqué", "home": "l'hôtel", "her home": "sa maison",
    "go": "vas-y", "ANNE": "Zoé", "7": "Renault 5", "{a b}": "x",
}  # fmt: skip
ASKED = [
    *(source for source, _ in PAIRS), "Go. I lost.", "THE MAN lost.", "The man lost the man 7.", "Marie's home.",
    "7 men", "12", "Zorglub lost 14 {name} at 9:30.", "manly calmer", "https://man.example.org/man lost.",
    "",
]  # fmt: skip


def assert_doubts_agree(page, asked, expected):
    """Hold texts, unused terms, confidence and flags on the page against Python's."""
    for text, found, group in zip(asked, in_node(page, asked), expected, strict=True):
        assert found.get("error") is None, found
        if not found["source"]["ids"]:
            continue
        assert [one["target"] for one in found["best"]] == [one.target for one in group], text
        for one, other in zip(found["best"], group, strict=True):
            assert tuple(one["unused"]) == other.unused_terms
            assert (tuple(one["lost"]), tuple(one["invented"])) == (other.lost, other.invented)
            assert tuple(one["flags"]) == other.flags
            assert one["tokens"] == other.target_tokens
            assert one["confidence"] == pytest.approx(other.confidence, abs=0.02)
            if not any(other.sources):
                assert max((share["weight"] for shares in one["sources"] for share in shares), default=0) < 0.02


@needs_node
@kit.each("search", [(5, 1), (4, 3)])
def test_terms_are_used_as_in_python(translator, tmp_path, search):
    corrected = corrected_copy(translator, NEW)
    corrected.export_html(tmp_path / "page.html")
    beam, n_best = search
    options = {"beam": beam, "best": n_best, "terms": list(TERMS.items())}
    asked = [{"text": text, "options": options} for text in ASKED]
    expected = list(
        corrected.translate_n_best(ASKED, search=Search(beam=beam, n_best=n_best, precision="int8"), terms=TERMS)
    )
    assert any("parti" in group[0].target for group in expected)
    assert_doubts_agree(tmp_path / "page.html", asked, expected)


@needs_node
def test_a_text_has_as_many_terms_and_words_as_in_python(translator, tmp_path):
    translator.export_html(tmp_path / "page.html")
    text, terms = "man " * 61 + "calm", {"man": "ami", "calm": "parti"}
    (expected,) = translator.translate_n_best([text], search=Search(precision="int8"), terms=terms, split=False)
    assert len(expected[0].unused_terms) == 62 - 50
    asked = [{"text": text, "options": {"terms": list(terms.items())}}]
    assert_doubts_agree(tmp_path / "page.html", asked, [expected])
    for count in (1, 98, 99, 100):  # words, after each of which a term can be inserted
        translation = replace(translator.translate("Go."), target=" ".join(["calme"] * count))
        line = _Line(translation, translation.target, list(Terms.of({"Go": "Marie"}).find("Go.")))
        expected = list(next(_use_next(line, torch.zeros(count, 2), translator.target_tokenizer), []))
        (found,) = in_node(tmp_path / "page.html", [{"text": "Go.", "line": [[["Go", "Marie"]], "Go.", line.target]}])
        assert (found["candidates"], found["left"]) == (expected, line.unused)
        assert len(expected) == (count + 1 if count < 100 else 0)


WORDS = [
    "data", "range", "DATA", "Range", "straße", "İstek", "istek", "l'homme", "老人", "C++", "𐐨𐐩", "𐐀𐐩", "𐐀𐐁", "𞤀𞤁", "𝟙",
    "ﬀa", "\uff5a", "x", "X", "7", "e\u0301té",
]  # fmt: skip


@needs_node
def test_the_longest_terms_come_first_as_in_python(translator, tmp_path):
    """Letters beyond U+FFFF are one character in Python and two in JavaScript."""
    translator.export_html(tmp_path / "page.html")
    forms, draw = translator.target_tokenizer.forms, random.Random(5)

    def phrase(words, most):
        return " ".join(draw.choice(words) for _ in range(draw.randint(1, most)))

    cases = [({"a": "𐐨𐐩 x", "b": "data", "c": "ﬀa 𐐨", "d": "𐐨𐐩 𐐨"}, "a b c d", "")]  # 4 characters each
    for words in (draw.sample(WORDS, 4) for _ in range(150)):
        terms = {phrase(words, 3): phrase(words, 3) for _ in range(9)}
        cases.append((terms, phrase(words, 14), phrase(words, 14)))
    asked = [{"text": "", "line": [list(terms.items()), source, target]} for terms, source, target in cases]
    nested = 0
    for (terms, source, target), found in zip(cases, in_node(tmp_path / "page.html", asked), strict=True):
        expected = Terms.of(terms).find(source)
        matched = [(*term["span"], term["source"], term["target"]) for term in found["matched"]["occurrences"]]
        in_source = in_utf16(source, [(term.start, term.end) for term in expected])
        assert matched == [(*span, *term[2:]) for span, term in zip(in_source, expected, strict=True)], (terms, source)
        translation = replace(translator.translate("Go."), source=source, target=target)
        line = _find_pending(translation, Terms.of(terms), forms, is_fixed=True)
        assert found["matched"]["missing"] == line.unused, (terms, source, target)
        used = list(zip(*_used_spans(Terms.of(terms), translation, forms), strict=True))
        pairs = zip(*map(in_utf16, (source, target), used), strict=True) if used else []
        assert found["matched"]["used"] == [list(pair) for pair in pairs], (terms, source, target)
        nested += len({term.start for term in expected if " " in term.source})
    assert nested > 50


@needs_node
def test_confidence_and_flags_are_those_of_python(translator, tmp_path):
    translator.export_html(tmp_path / "page.html")
    texts = [*ASKED, "the the the the the calm", "Where is 1,000 or 2,5 or $NAME?"]
    expected = list(translator.translate_n_best(texts, search=Search(precision="int8")))
    assert {flag for group in expected for flag in group[0].flags} >= {"unknown words", "lost numbers"}
    assert_doubts_agree(tmp_path / "page.html", [{"text": text} for text in texts], expected)


@needs_node
def test_tags_move_with_terms(translator, tmp_path):
    texts = ["The <b>man</b> is <i>calm</i>.", "She lost <u>Marie</u>."]
    translator.export_html(tmp_path / "page.html")
    expected = list(translator.translate_n_best(texts, search=Search(precision="int8"), markup="html", terms=TERMS))
    asked = [
        {"text": text, "options": {"terms": list(TERMS.items())}, "entities": entities_of(*texts)} for text in texts
    ]
    assert_doubts_agree(tmp_path / "page.html", asked, expected)
    assert "<i>parti</i>" in expected[0][0].target


@needs_node
def test_pins_stay_up_to_the_first_word_of_a_term(translator, tmp_path):
    translator.export_html(tmp_path / "page.html")
    text = "The man is calm."

    def steered(pins, terms, tokens):
        asked = {"text": text, "options": {"terms": terms}, "chosen": {"pins": pins, "tokens": tokens}}
        (found,) = in_node(tmp_path / "page.html", [asked])
        return found["best"][0]

    tokens = [*steered([], [], [])["ids"], END]
    free = steered([], [["calm", "parti"]], tokens)
    assert free["target"] == "L'homme est parti."
    assert free["tokens"] == ["L'", "homme", "est", "parti", "."]
    for step in range(5):
        found = steered([[step, [[0, 0.875]]]], [["calm", "parti"]], tokens)
        assert found["target"] == free["target"]
        if step <= 3:  # the word of the term is read with the pinned weight
            assert found["weights"][step][0] == pytest.approx(0.875)
        else:
            assert found["weights"] == free["weights"]


BEFORE = [
    "", "l'", "l’", "L'", "la ", "le ", "d'", "à l'", "all'", "dell'", "qu'", "jusqu'", "presqu'", "aujourd'",
    "abcdefgh'", "abcdefghijklmnop’", "J'ai la ", "J’ai la ", "la\u00a0", "la\u2009", "la\x1c", "la\x85",
    "la\ufeff", "la\u200b", "chez le ", "3l'", "3la ", "-la ", "é'", "e\u0301'", "𝟙l'", "😀l'", "😀 la ",
    "l'\n", "la \n", "ll'", "l''", "l' ", "une ", "extraordinaire ",
]  # fmt: skip


@needs_node
def test_elisions_are_those_of_python(translator, tmp_path):
    translator.export_html(tmp_path / "page.html")

    class Knowing:
        """A tokenizer that knows all words."""

        def knows(self, piece):
            return True

    for tokenizer, knows_all in ((translator.target_tokenizer, False), (Knowing(), True)):
        asked = [{"text": "", "before": before, "knows": knows_all} for before in BEFORE]
        for before, found in zip(BEFORE, in_node(tmp_path / "page.html", asked), strict=True):
            expected = [[in_utf16(before, [(start, start)])[0][0], head] for start, head in _elided(before, tokenizer)]
            assert found["elided"] == expected, ascii(before)
