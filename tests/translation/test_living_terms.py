"""Terms, confidence and flags on the page against Python's."""

import pytest

import kit
from dikkat.translation import Search
from translation.taught import PAIRS
from translation.test_corrections import NEW, corrected_copy
from translation.test_living import entities_of, in_node, needs_node

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
