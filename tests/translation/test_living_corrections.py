"""Corrections on the page: its search and its own corrections against Python's."""

import re
from pathlib import Path

import pytest

import kit
from command import command_line, made
from dikkat.translation import Search, TsvCorpus
from dikkat.translation.data.corpus import COLUMN_NAME
from translation.taught import PAIRS, untrained
from translation.test_corrections import NEW, corrected_copy
from translation.test_living import assert_page_agrees, in_node, needs_node, run_node

SLOTTED = [
    ("He sees 12 men.", "Il voit 12 hommes."), ("He sees 13 men.", "Il voit Marie."),
    ("Go to {a}. Go.", "Va chez {a} !"), ("The man lost.", "Zut, il perd 7 Züge !"),
    ("Foobar lost.", "Zut, Foobar a perdu."),
]  # fmt: skip
ASKED = [
    "He sees 15 men.", "The man  lost.", "Foobar lost.", "Zanzibar lost.",
    *(source for source, _ in [*NEW, *PAIRS, *SLOTTED]), "He sees 14 men.", "Go to {b}. Go.",
    " Go  to {a}.  Go. ", "Go. I lost.", "She is the man.", "Where is the calm man?", "I'm lost.", "The man is home.",
    "Marie is calm.", "Zanzibar is calm.",
    "",
]  # fmt: skip


def assert_sources_agree(translator, page, corrections=(), tolerance=0.02):
    """Hold the page's best translations, and the stored pairs that took part in each token, against Python's."""
    asked = [{"text": text, "corrections": corrections if not k else []} for k, text in enumerate(ASKED)]
    expected = translator.translate(ASKED, search=Search(precision="int8"))
    shares = []
    for each, wanted in zip(in_node(page, asked), expected, strict=True):
        assert [one["target"] for one in each["best"]] == [wanted.target] * bool(each["source"]["ids"])
        for found, sources in zip(each["best"][0]["sources"] if each["best"] else [], wanted.sources, strict=True):
            weights = {(one["source"], one["target"]): one["weight"] for one in found}
            for source, target, weight in sources:
                assert weights.pop((source, target), 0) == pytest.approx(weight, abs=tolerance)
                shares.append(weight)
            assert sum(weights.values()) < tolerance
    assert sum(weight > 0.5 for weight in shares) > 3 * len(NEW)


@needs_node
@kit.each("search", [(1, 1), (5, 3)])
def test_a_page_with_corrections_translates_as_python_does(translator, tmp_path, search):
    corrected = corrected_copy(translator, [*NEW, *SLOTTED])
    corrected.export_html(tmp_path / "page.html")
    assert_page_agrees(corrected, tmp_path / "page.html", ASKED, *search, False)
    assert_sources_agree(corrected, tmp_path / "page.html")


@needs_node
def test_corrections_on_a_page_are_those_of_python(translator, tmp_path):
    pairs = [*NEW, *SLOTTED, ("Go.", "Elle voit Marie.")]
    translator.export_html(tmp_path / "page.html")
    first, later = corrected_copy(translator, pairs[:4]), corrected_copy(translator, pairs)
    # The page computes states in int8, and Python here in float32.
    assert_sources_agree(later, tmp_path / "page.html", pairs, tolerance=0.2)
    first.export_html(tmp_path / "other.html")
    assert_sources_agree(later, tmp_path / "other.html", pairs[4:], tolerance=0.2)


def test_export_tells_that_the_page_contains_corrections(translator, tmp_path, capsys, monkeypatch):
    corrected_copy(translator, NEW).save(tmp_path / "model")
    run = command_line(monkeypatch, capsys, "export", str(tmp_path / "model"))
    said, _ = made(run("--html", tmp_path / "page.html"))
    assert said.splitlines()[0].endswith(f"MB, with the model and the texts of {len(NEW)} corrections")


@needs_node
def test_corrections_that_cannot_be(translator, tmp_path):
    translator.export_html(tmp_path / "page.html")
    wrong = {"correction-empty": [("", "Va !"), ("Go.", " "), (" ", "")], "correction-letters": [("12 !", "Va !")]}
    for reason, pairs in wrong.items():
        for pair in pairs:
            assert in_node(tmp_path / "page.html", [{"text": "Go.", "corrections": [pair]}])[0]["error"] == reason
    for target in ("Va zut !", "va  zut!"):
        (found,) = in_node(tmp_path / "page.html", [{"text": "Go.", "corrections": [("Go.", target)]}])
        assert (
            found["best"][0]["target"]
            == corrected_copy(translator, [("Go.", target)]).translate("Go.").target
            == target
        )


@needs_node
def test_a_correction_tells_which_ones_it_replaces(translator, tmp_path):
    translator.export_html(tmp_path / "page.html")
    pairs = [("Go 3.", "Elle va."), ("She is calm.", "Va !"), ("Go 4.", "Il est calme."), ("She  is calm.", "Il va.")]
    (found,) = in_node(tmp_path / "page.html", [{"text": "Go.", "corrections": pairs}])
    assert found["corrected"] == [[], [], [list(pairs[0])], [list(pairs[1])]]
    python = corrected_copy(translator)
    messages = ["".join(python.correct(*pair)) for pair in pairs]
    assert ["replaces" in message for message in messages] == [False, False, True, True]


@needs_node
def test_the_name_of_the_storage_depends_on_weights_and_tokenizers(translator, tmp_path):
    def checksum(model):
        model.export_html(tmp_path / "page.html", examples=["Go."])
        return in_node(tmp_path / "page.html", [{"text": "Go."}])[0]["checksum"]

    assert checksum(corrected_copy(translator, NEW)) == checksum(translator) != checksum(untrained(translator))


@needs_node
def test_python_reads_the_saved_corrections(tmp_path):
    rows = [
        ('Say "yes".', '"Oui" ?'), ('"', '""'), ("a\tb\nc", "  d\u00a0 e\x1c"), ("plain", 'x"'), ("'single'", "l’été"),
        ("a,b;c", "\u200bx"), ('"quoted"', "y"),
    ]  # fmt: skip
    for number, table in enumerate((rows, rows[4:6], rows[6:])):
        path = tmp_path / f"{number}.tsv"
        path.write_text(run_node("table.mjs", table), encoding="utf-8")
        expected = [tuple(" ".join(text.split()) for text in row) for row in table]
        assert list(TsvCorpus(path)) == expected  # a warning would be an error
        assert run_node("table.mjs", path.read_text(encoding="utf-8")) == [list(pair) for pair in expected]


@needs_node
def test_the_page_reads_copied_cells():
    copied = 'Source\tTarget\r\n"say ""hi"""\t"a\tb\nc"\tx\r\n"so" be it\t5" long\r\none cell\r\n\r\nlast\t'
    expected = [['say "hi"', "a\tb\nc"], ['"so" be it', '5" long'], ["last", ""]]
    assert run_node("table.mjs", copied) == expected
    assert run_node("table.mjs", "text\ttranslation\n") == [["text", "translation"]]  # one term
    assert run_node("table.mjs", "no tabs\n") == []


def test_the_page_has_the_column_names_of_python():
    code = (Path(__file__).parents[2] / "web/src/page/table.ts").read_text(encoding="utf-8")
    pattern = "".join(re.findall(r'"([^"]*)"', code[code.index("new RegExp(") : code.index(', "i")')]))
    assert pattern == f"^{COLUMN_NAME.pattern}$".replace("(?P<language>", "(?:")


@needs_node
@pytest.mark.filterwarnings("always:.*skipped the column names")
def test_a_command_stores_the_saved_corrections(translator, tmp_path, capsys, monkeypatch):
    rows = [("text", "translation"), ("Say 'Go'.", 'Va "zut" !'), ("Go.", "Va !")]
    translator.save(tmp_path / "model")
    (tmp_path / "saved.tsv").write_text(run_node("table.mjs", rows), encoding="utf-8")
    run = command_line(monkeypatch, capsys, "correct", str(tmp_path / "model"))
    assert "skipped the column names" in made(run(tmp_path / "saved.tsv"))[1]
    listed, _ = made(run("--list"))
    (tmp_path / "listed.tsv").write_text(listed, encoding="utf-8")
    with pytest.warns(UserWarning, match="skipped the column names"):
        assert list(TsvCorpus(tmp_path / "listed.tsv")) == rows


@needs_node
def test_unfinished_translations_have_the_words_of_the_finished_one(translator, tmp_path):
    translator.export_html(tmp_path / "page.html")
    pairs = [("Foobar lost.", "Zut Foobar a perdu."), ("She sees Foobar.", "Elle voit Foobar Ouf !")]
    asked = [{"text": "Zorglub lost. She sees Zorglub.", "corrections": pairs, "options": {"forming": True}}]
    (found,) = in_node(tmp_path / "page.html", asked)
    target = "Zut Zorglub a perdu. Elle voit Zorglub Ouf !"
    assert found["best"][0]["target"] == target
    words = target.split()
    assert {" ".join(words[:count]) for count in range(1, len(words))} <= {text.strip() for text in found["forming"]}
