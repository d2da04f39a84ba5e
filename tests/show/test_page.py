import base64
import errno
import gzip
import hashlib
import json
import os
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dikkat.show import page, save_page

NASTY = [
    "<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "<!-- <script>",
    "]]> \" ' & &amp; $title $data ${style}", "😀 👩‍👩‍👧 שלום \u202eevil\u2028\u2029",
]  # fmt: skip


@dataclass
class Sentence:
    source_tokens: list
    target_tokens: list
    weights: object
    source: str = "le chat"
    target: str = "the cat"
    reference: str | None = None


def sentence(source="le chat", target="the black cat", **options):
    source_tokens, target_tokens = source.split(), target.split()
    weights = np.full((len(target_tokens), len(source_tokens)), 1 / len(source_tokens))
    return Sentence(source_tokens, target_tokens, options.pop("weights", weights), source, target, **options)


class Reader(HTMLParser):
    """Every element of the page with its attributes and its text, as a browser's parser would find them."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self.open = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))
        if tag != "meta":
            self.open.append(self.elements[-1])

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, _, pieces in self.open:
            pieces.append(data)

    def texts(self, tag, **wanted):
        wanted = {name.rstrip("_"): value for name, value in wanted.items()}
        return [
            "".join(pieces)
            for found, attributes, pieces in self.elements
            if found == tag and all(attributes.get(name) == value for name, value in wanted.items())
        ]

    def content(self):
        return json.loads(self.texts("script", id="dikkat-content")[0])

    def data(self):
        """Of each sentence both lists of tokens, and weights in thousandths: two digits of base 36 each, - for 0."""
        return [
            [source, target, [int(each.replace("-", "0"), 36) for each in re.findall("-|..", weights)]]
            for source, target, weights in self.content()["sentences"]
        ]


def test_sentences_can_be_read_without_the_script():
    reader = Reader(page([sentence(reference="the dark cat"), sentence("un", "one")], title="Cats & dogs"))
    assert reader.texts("title") == reader.texts("h1") == ["Cats & dogs"]
    assert reader.texts("p", class_="source") == ["le chat", "un"]
    assert reader.texts("p", class_="target") == ["the black cat", "one"]
    assert reader.texts("div", class_="reference") == ["Referencethe dark cat"]
    assert reader.texts("p", id="count") == ["2 sentences"]
    assert not reader.open


def test_the_script_finds_tokens_and_weights_in_thousandths():
    weights = torch.tensor([[0.25, 0.75], [0.0, 1.0], [0.3333, 0.5]], requires_grad=True)
    reader = Reader(page([sentence(weights=weights)]))
    assert reader.data() == [[["le", "chat"], ["the", "black", "cat"], [250, 750, 0, 1000, 333, 500]]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_low_precision_pass(dtype):
    weights = torch.randn(31, 37, generator=torch.Generator().manual_seed(1)).softmax(-1).to(dtype)
    assert weights.double().sum(-1).max() > 1
    given = sentence("s " * 37, "t " * 31, weights=weights)
    assert len(Reader(page([given])).data()[0][2]) == 31 * 37


@pytest.mark.parametrize("text", NASTY)
def test_any_text_is_shown_as_it_is_and_never_as_markup(text):
    plain = page([sentence(reference="r")], title="t", scores=[1], score_name="s")
    given = Sentence([text, text], [text], [[0.5, 0.5]], text, text, text)
    made = page([given], title=text, scores=[1], score_name=text)
    reader = Reader(made)
    assert reader.texts("p", class_="source") == [text]
    assert reader.texts("p", class_="target") == [text]
    assert reader.texts("div", class_="reference") == ["Reference" + text]
    assert reader.texts("span", class_="score") == [text + " 1.0000"]
    assert reader.texts("h1") == [text]
    assert reader.data() == [[[text, text], [text], [500, 500]]]
    assert "<" not in reader.texts("script", id="dikkat-content")[0]
    assert [tag for tag, _, _ in reader.elements] == [tag for tag, _, _ in Reader(plain).elements]
    assert made.count("</script>") == plain.count("</script>") == 2


def test_what_no_page_can_hold_is_replaced(tmp_path):
    save_page(tmp_path / "page.html", [Sentence(["\ud800"], ["\0"], [[1]], "a\ud800", "b\0")], title="\udfff")
    reader = Reader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert reader.data() == [[["�"], ["\0"], [1000]]]  # as JSON has it: \u0000
    assert reader.texts("p", class_="source") == ["a�"]
    assert reader.texts("h1") == ["�"]


def test_the_policy_allows_this_script_and_style_and_nothing_else():
    reader = Reader(page([sentence()]))
    policy = next(a["content"] for tag, a, _ in reader.elements if a.get("http-equiv") == "Content-Security-Policy")
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == "'none'"

    def content_hash(text):
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    assert [content_hash(text) for text in reader.texts("script", type="module")] == [directives["script-src"]]
    assert [content_hash(text) for text in reader.texts("style")] == [directives["style-src"]]
    assert directives.keys() == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    assert directives["img-src"] == "blob: data:"  # pictures that a reader saves, and images in the page
    types = [attributes["type"] for tag, attributes, _ in reader.elements if tag == "script"]
    assert types == ["application/json", "module"]


def test_nothing_is_asked_of_a_network():
    made = page([sentence()])
    reader = Reader(made)
    for _, attributes, _ in reader.elements:
        assert not {"src", "srcset", "style", "data", "action", "onclick", "onload", "onerror"} & attributes.keys()
        assert attributes.get("href", "#").startswith("#")
    assert set(re.findall(r"https?://[^\s\"']+", made)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|innerHTML|eval\(", made)


def test_scores_stand_beside_their_sentences():
    percent = Reader(page([sentence(), sentence()], scores=[64.2, 0.5], score_name="chrF"))
    assert percent.texts("span", class_="score") == ["chrF 64.20", "chrF 0.50"]
    unit = Reader(page([sentence()], scores=torch.tensor([-0.25])))
    assert unit.texts("span", class_="score") == ["score -0.2500"]
    assert Reader(page([sentence()])).texts("span", class_="score") == []


def test_languages_mark_the_texts():
    reader = Reader(page([sentence(reference="r")], source_language="fr", target_language="zh-Hant"))
    assert reader.texts("p", lang="fr") == ["le chat"]
    assert reader.texts("p", lang="zh-Hant") == ["the black cat", "r"]
    assert {a["dir"] for tag, a, _ in reader.elements if tag == "p" and "lang" in a} == {"auto"}


def test_two_hundred_sentences_make_a_page_of_less_than_a_megabyte():
    random = np.random.default_rng(7)
    many = [
        sentence("eleven " * 37, "letters " * 31, weights=random.dirichlet(np.ones(37), size=31)) for _ in range(200)
    ]
    made = page(many)
    assert len(made.encode()) < 1e6
    reader = Reader(made)
    for given, (_, _, weights) in zip(many, reader.data(), strict=True):
        np.testing.assert_allclose(np.reshape(weights, (31, 37)) / 1000, given.weights, rtol=0, atol=0.5001e-3)
    assert len({a["id"] for tag, a, _ in reader.elements if tag == "article"}) == 200


def test_a_translator_may_be_inside():
    bundled = bytes(range(256)) * 3
    given = [sentence(f"le chat {k}") for k in range(7)]
    reader = Reader(page(given, translator=SimpleNamespace(bundle=lambda: bundled)))
    (model,) = reader.texts("script", id="dikkat-model")
    assert gzip.decompress(base64.b64decode(model)) == bundled
    assert reader.content()["examples"] == [f"le chat {k}" for k in range(5)]
    assert len(reader.data()) == 7
    policy = next(a["content"] for tag, a, _ in reader.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert re.search(r"script-src 'sha256-[^']+' 'wasm-unsafe-eval';", policy)


def test_no_sentences_and_empty_translations():
    assert Reader(page([])).data() == []
    nothing = Sentence(["le"], [], torch.zeros(0, 1), "le", "")
    assert Reader(page([nothing])).data() == [[["le"], [], []]]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((2, 3)) / 3, r"translations\[1\].weights: got shape \(2, 3\); expected \(3, 2\)"),
        (np.ones((1, 3, 2)) / 2, r"translations\[1\].weights: got shape \(1, 3, 2\)"),
        ([[0.5, 0.5], [0.5, float("nan")], [0, 0]], r"translations\[1\].weights\[1, 1\]: got nan"),
        ([[0.5, 0.5], [0.5, 0.5], [-0.5, 0]], r"translations\[1\].weights\[2, 0\]: got -0.5"),
        ([[0.5, 0.5], [0.75, 0.5], [0, 0]], r"translations\[1\].weights\[1\]: got a sum of 1.25"),
    ],
)
def test_wrong_weights_name_the_sentence(weights, message):
    with pytest.raises(ValueError, match=message):
        page([sentence(), sentence(weights=weights)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source_tokens": "le"}, r"translations\[0\].source_tokens: got 'le'; expected a list of strings"),
        ({"target_tokens": [1, 2, 3]}, r"translations\[0\].target_tokens: got \[1, 2, 3\]"),
        ({"source": None}, r"translations\[0\].source: got NoneType"),
        ({"reference": ["r"]}, r"translations\[0\].reference: got list"),
    ],
)
def test_wrong_types_name_the_sentence(change, message):
    given = sentence()
    for name, value in change.items():
        setattr(given, name, value)
    with pytest.raises(TypeError, match=message):
        page([given])


def test_other_refusals():
    with pytest.raises(TypeError, match=r"translations\[0\]: got str, which has no attribute 'source_tokens'"):
        page(["le chat"])
    with pytest.raises(ValueError, match="scores: got 1; expected 2, one for each sentence"):
        page([sentence(), sentence()], scores=[1.0])
    with pytest.raises(ValueError, match=r"scores\[0\]: got nan"):
        page([sentence()], scores=[float("nan")])
    with pytest.raises(ValueError, match="target_language: got 'en\"onclick'"):
        page([sentence()], target_language='en"onclick')


def test_a_saved_page_is_the_page(tmp_path):
    options = {"title": "T", "scores": [1.5], "score_name": "chrF", "source_language": "fr", "target_language": "en"}
    save_page(tmp_path / "page.html", [sentence()], **options)
    assert (tmp_path / "page.html").read_bytes().decode() == page([sentence()], **options)


def test_a_failed_save_leaves_the_old_page(tmp_path, monkeypatch):
    def full_disk(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "page.html").write_text("old")
    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_page(tmp_path / "page.html", [sentence()])
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("page.html", "old")]
