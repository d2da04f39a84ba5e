"""The page of a translator: its decoder in JavaScript against Python's search, and what it refuses."""

import base64
import gzip
import html
import importlib.util
import itertools
import json
import math
import random
import re
import shutil
import subprocess
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from command import command_line, made
from dikkat.show.living import bundle
from dikkat.translation import InputError, Search, Settings, Tokenizer, TranslationModel, Translator
from dikkat.translation.decoding.alignment import agreed
from dikkat.translation.formats.origin import Origin
from dikkat.translation.phrasebook import pairs
from dikkat.translation.text.capitals import sentences_of
from dikkat.translation.text.markup import carry, parse
from dikkat.translation.text.special_tokens import END
from dikkat.translation.text.units import Units
from dikkat.translation.training.train import train
from translation.taught import PAIRS, TINY

_ROOT = Path(__file__).parents[2]
_NODE = shutil.which("node")
needs_node = pytest.mark.skipif(_NODE is None, reason="no node here, which runs the page's decoder")
_CASES = {
    "gru": ("word", {}),
    "lstm": ("bpe", {"cell": "lstm", "num_layers": 2, "hidden_size": 34, "score": "scaled_dot"}),
    "untied": ("word", {"score": "bilinear", "bidirectional": False, "tied_embeddings": "none"}),
    "dot": ("bpe", {"score": "dot", "num_layers": 2, "lexical": False}),
    "no attention": ("word", {"score": "none"}),
}
NASTY = [
    "L'homme aujourd’hui, isn't 3.5 ... <eos> <unk>", "İSTANBUL ΣΑΣ ſtraße",
    "e\u0301te\u0301 \u200b\u200d\ufeff \u0085 \u001c x", "שלום 你好 😀 👩‍👩‍👧", "jusqu'ici L'AMI QU'IL",
    '"quoted" (text) « guillemets »', "   ",
]  # fmt: skip


def untrained(kind, changes):
    torch.manual_seed(11)
    corpus = pairs()[:400]
    source, target = (
        Tokenizer.train([pair[side] for pair in corpus], kind, min_freq=1, vocabulary_size=500) for side in (0, 1)
    )
    settings = Settings(**{"embedding_size": 20, "hidden_size": 26, "tokenizer": kind, **changes})
    model = TranslationModel(settings, len(source), len(target)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # so that scores lie apart
        if model.is_lexical:
            model.lexical.weight.mul_(0.2)  # what it is multiplied with has no bounds
    return Translator(model, settings, source, target)


def in_node(page, asked):
    return run_node("translate.mjs", asked, page)


def run_node(script, asked, *given):
    command = [_NODE, str(_ROOT / "web" / "test" / script), *map(str, given)]
    found = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True, timeout=120)
    return json.loads(found.stdout)


@pytest.fixture
def page(translator, tmp_path):
    translator.export_html(tmp_path / "page.html", title="A & B")
    return tmp_path / "page.html"


# --- the same translations

SPANS = [
    "7", "12", "2024", "12345", "1234567", "34", "(25)", "9:30 / 7!", "9:30", "14:05", "12:30:59", "1,000.50",
    "12,500.75", "1.000,50", "3.14", "1/4", "1 000 000", "1\u00a0000", "12\u202f000,5", "2024-01-05",
    "05/01/2024", "1'000", "12h30", "5-7", "٣٤", "٣:٤٥", "x2", "3D",
    "1,234,567", "12,345,678.5", "192.168.0.1", "2.0.1", "2:1", "2.25", "https://example.org/a?b=c&d=e#f.",
    "https://en.wikipedia.org/wiki/A_(b)", "www.example.org/x,y)", "a.b+c@mail.example.org", "%s", "%(name)s",
    "%1$s", "%-5.2f", "%@", "50 %", "%d%%", "{0}", "{name}", "{{ name }}", "${NAME}", "$NAME", "$5", "#{x}",
    "{count, number}", "{n, plural, one}", "{}", "<b>", "</0>", "<br/>", "<a href='x'>", "&amp;", "&#39;", "🙂",
    "👩\u200d🚒", "☎️",
]  # fmt: skip
WORDS = [
    "the man", "The man", "THE MAN", "I", "i", "he's", "calm", "Marie", "lost", "Zanzibar", "l'homme", "L’homme",
    "at", "costs", "e\u0301te\u0301", "E\u0301", "i\u0307 am", "I\u0307 am home", "a\u0323\u0301", "J\u030c",
    "T\u0308u", "H\u0331", "x\u0301\u0323", "\u1100\u1161\u11a8", "가", "か\u3099", "\u0344 a", "=\u0338",
    " \u0301a", "\u212bngstrom", "यह हिन्दी है।", "שלום", "你好。再见！", "İSTANBUL", "ΣΑΣ", "ſtraße", "😀", "𝟙2", "𐐀𐐁",
    "\u200b", "\ufeff", "\x01", "\x0e\x1b", "<eos>", "<unk>", "jusqu'ici", "“quoted”",
]  # fmt: skip
JOINTS = [
    *[" "] * 12, "", "  ", "\t", "\n", "\r\n", "\u00a0", "\u202f", "\u2000", "\u2028", "\x1c", " " * 9, ", ",
    ". ", "! ", " – ", " (", ") ", ": ",
]  # fmt: skip


def hard_texts(count, seed):
    """Random texts of numbers, addresses, placeholders, decomposed letters, blanks and several scripts."""
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        parts = [draw.choice(draw.choice([SPANS, WORDS, WORDS])) for _ in range(draw.randrange(1, 9))]
        text = "".join(part + draw.choice(JOINTS) for part in [draw.choice(["", "", *JOINTS]), *parts])
        texts.append(unicodedata.normalize(draw.choice(["NFC", "NFD", "NFC"]), text) if draw.random() < 0.5 else text)
    return texts


def in_utf16(text, spans):
    places = [0, *itertools.accumulate(len(letter.encode("utf-16-le")) // 2 for letter in text)]
    return [[places[first], places[last]] for first, last in spans]


def assert_reading_agrees(translator, text, found):
    """Hold what the page reads of a text against Python: tokens with their places, slots, and unknown words."""
    source, target = translator.slots.mask(text)
    encoded = translator.source_tokenizer.encode(source.text)
    (offsets,) = translator.source_tokenizer.offsets([source.text])
    assert found["ids"] == encoded.ids, ascii(text)
    assert found["pieces"] == [source.restore(piece) for piece in encoded.pieces], ascii(text)
    assert found["spans"] == in_utf16(text, source.locate(offsets)), ascii(text)
    assert found["slots"] == target.parts, ascii(text)


def assert_page_agrees(translator, path, sentences, beam, n_best, plain, others=0):
    """Hold the page against Python: all but so many sentences have the same translations, with the same numbers."""
    search = Search(beam=beam, n_best=n_best, precision="int8")
    expected = list(translator.translate_n_best(sentences, search=search))
    options = {"beam": beam, "best": n_best}
    found = in_node(path, [{"text": text, "options": options, "plain": plain} for text in sentences])
    differing = []
    for text, group, each in zip(sentences, expected, found, strict=True):
        assert each.get("error") is None, each
        assert each["kind"] == ("js" if plain else "wasm")
        assert_reading_agrees(translator, text, each["source"])
        if not each["source"]["ids"]:
            assert each["best"] == []
            continue
        if [one["target"] for one in each["best"]] != [one.target for one in group]:
            differing.append((text, [one["target"] for one in each["best"]], [one.target for one in group]))
            continue
        assert [one["tokens"] for one in each["best"]] == [one.target_tokens for one in group]
        assert [one["finished"] for one in each["best"]] == [one.finished for one in group]
        assert [one["repeated"] for one in each["best"]] == [one.repeated for one in group]
        assert [one["unknown"] for one in each["best"]] == [list(one.unknown) for one in group]
        for one, other in zip(each["best"], group, strict=True):
            # Where the last bit of a state tips one of its int8 numbers over, a hundredth part of it differs.
            assert one["score"] == pytest.approx(other.score, abs=1e-3, rel=1e-2)
            weights = np.array(one["weights"][: len(other.weights)]).reshape(other.weights.shape)
            np.testing.assert_allclose(weights, other.weights, atol=2e-2)
    assert len(differing) <= others, differing


@needs_node
@pytest.mark.parametrize("plain", [False, True], ids=["wasm", "js"])
def test_it_translates_as_python_does(translator, page, plain):
    sentences = ["Go.", "I lost.", "The man is calm.", "Zanzibar sees Marie.", "Where is Zanzibar?", *NASTY]
    assert_page_agrees(translator, page, sentences, 1, 1, plain)
    assert_page_agrees(translator, page, sentences, 5, 3, plain, others=1)  # where the links of a nonsense put a number


@needs_node
@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_hard_texts_are_translated_as_in_python(kind, tmp_path):
    numbers = [
        (
            f"At {hour}:{minute} it costs {price}.50 {{n}} 1{price}{price}{hour} {hour + 300} 9,{hour + 300}.",
            f"À {hour}h{minute}, ça coûte {price},50 {{n}} 1{price}{price}{hour} 9.{hour + 300}.",
        )
        for hour, minute, price in zip(range(1, 41), range(10, 50), range(7, 47), strict=True)
    ]
    copied = [(f"See {span} now, {k + 12}.", f"Voir {span}, {k + 12}.") for k, span in enumerate(SPANS[34:])]
    settings = replace(TINY, tokenizer=kind, vocabulary_size=500, epochs=12, batch_size=16)
    pairs = [*PAIRS * 3, *numbers, *copied]
    translator = train(settings, pairs, pairs[:9], progress=False).translator
    assert translator.slots.most >= 2
    translator.export_html(tmp_path / "page.html")
    assert_page_agrees(translator, tmp_path / "page.html", hard_texts(200, seed=65), 4, 1, False)


@needs_node
@pytest.mark.parametrize("name", _CASES)
def test_every_network_that_can_be_exported_is_computed(name, tmp_path):
    translator = untrained(*_CASES[name])
    translator.export_html(tmp_path / "page.html")
    sentences = [source for source, _ in pairs()[400:430]] + NASTY
    # Untrained, it finds many continuations nearly alike, between which a last bit decides.
    assert_page_agrees(translator, tmp_path / "page.html", sentences, 1, 1, False, others=1)
    assert_page_agrees(translator, tmp_path / "page.html", sentences, 4, 2, False, others=4)


@needs_node
def test_lines_are_split_as_in_python():
    lines = [
        "I lost. Go. I lost.", "{a}. {b}", "“Why?” (He's calm.) Go to 5! He", "Mr. A. Smith left. “Why?” ¿Dónde?",
        "e.g. on 5 p.m. Monday.\x85Go… Élan.\u3000 No. 5", "你好。再见！ 'x.' ¹a. ٣",
    ]  # fmt: skip
    lines += [f"{one}{space}{other}" for one in lines for other in lines for space in (" ", "\n\u2028", "\x1c")]
    found = run_node("markup.mjs", {"entities": {}, "cases": [{"line": line} for line in lines]})
    for line, each in zip(lines, found, strict=True):
        sentences, spaces = sentences_of(line)
        assert each == [list(pair) for pair in zip(sentences, [*spaces, ""], strict=True)], line


@needs_node
def test_a_change_in_a_sentence_of_several_is_as_in_that_sentence_alone(page):
    """The end of a sentence is a step, so those before it are held whole; a change in one leaves the later ones."""

    def ids(*asked):
        given = [
            {
                "text": text,
                "options": {"beam": 1},
                "chosen": {"tokens": tokens, "pins": [[step, [[place, 0.99]]] for step, place in pins]},
            }
            for text, tokens, *pins in asked
        ]
        return [found["best"][0]["ids"] for found in in_node(page, given)]

    sentences = ["She sees Marie.", "The man is calm {name}.", "Go."]
    text = " ".join(sentences)
    one, other, last, free = ids(*((each, []) for each in [*sentences, text]))
    assert free == [*one, END, *other, END, *last]
    steps, places = len(one) + 1, 4
    picked = [one[0], other[0]]
    pinned, chosen, *of_several = ids(
        (sentences[1], other[:1], (1, 3)),
        (sentences[0], picked),
        (text, [*one, END, other[0]], (steps + 1, places + 3)),
        (text, picked),
        (text, [*one[:2], END]),
    )
    assert pinned != other
    assert of_several[0] == [*one, END, *pinned, END, *last]
    assert of_several[1] == [*chosen, END, *other, END, *last]
    assert of_several[2] == [*one[:2], END, *other, END, *last]


@needs_node
def test_words_vote_by_their_weights_and_embeddings(translator, page):
    model = translator.model
    for sentence in ("I lost.", "The man is calm."):
        [found] = in_node(page, [{"text": sentence, "options": {"votes": True}}])[0]["best"]
        table = model.source_embedding.weight
        read = table[translator.source_tokenizer.encode(sentence).ids] * math.sqrt(table.shape[1])
        votes = model.target_embedding.weight[[*found["ids"], END]] @ model.lexical.weight @ read.T
        wanted = (torch.tensor(found["weights"]) * votes).detach()
        assert wanted.abs().max() > 0.5
        np.testing.assert_allclose(found["votes"], wanted, atol=0.02 * float(wanted.abs().max()))


# --- what a reader changes


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("reference_decoder", _ROOT / "docs" / "reference_decoder.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pinning(reference, step, weights):
    """The reference decoder, which looks elsewhere at one step: these weights, and the rest shared by the others."""

    class Pinned(reference.Decoder):
        steps = 0

        def attend(self, state, keys, *values):
            self.steps += 1
            if self.steps - 1 != step:
                return super().attend(state, keys, *values)
            query = self.times("decoder.score.W_q.weight", state)
            scores = np.tanh(query + keys) @ self.weights["decoder.score.w_v.weight"][0]
            shares = np.exp(scores - scores.max())
            for place in weights:
                shares[place] = 0
            shares *= (1 - sum(weights.values())) / shares.sum()
            for place, weight in weights.items():
                shares[place] = weight
            return [shares / shares.sum() @ each for each in values]

    return Pinned


@needs_node
@pytest.mark.parametrize(("step", "pins"), [(0, {3: 0.9}), (2, {0: 0.5, 4: 0.25}), (1, {2: 1.0}), (1, {2: 0.0})])
def test_pinned_weights_are_what_is_averaged(reference, tmp_path, step, pins):
    translator = untrained("word", {})
    translator.export_html(tmp_path / "page.html")
    translator.save(tmp_path / "model", int8=True)
    text = "She knows the old man."
    ids = translator.source_tokenizer.encode(text).ids
    assert len(ids) == 6
    expected, score = pinning(reference, step, pins)(tmp_path / "model").translate(ids)
    assert (expected, score) != reference.Decoder(tmp_path / "model").translate(ids)
    chosen = {"pins": [[step, list(pins.items())]]}
    (found,) = in_node(tmp_path / "page.html", [{"text": text, "options": {"beam": 1, "best": 1}, "chosen": chosen}])
    (best,) = found["best"]
    assert best["ids"] == expected[: len(best["ids"])]  # it is cut where it repeats itself, and the score is of all
    assert best["score"] == pytest.approx(score, abs=1e-3)
    assert sum(best["weights"][step]) == pytest.approx(1)
    for place, weight in pins.items():
        assert best["weights"][step][place] == pytest.approx(weight)


@needs_node
def test_a_chosen_word_stays_and_the_rest_goes_on_from_it(translator, page):
    end = 3
    word = translator.target_tokenizer.encode("Elle").ids[0]
    asked = {"text": "He's calm.", "options": {"beam": 3, "best": 1}}
    free, chosen, ended = in_node(
        page, [asked, {**asked, "chosen": {"tokens": [word]}}, {**asked, "chosen": {"tokens": [word, end]}}]
    )
    assert free["best"][0]["target"] == "Il est calme."
    assert chosen["best"][0]["ids"][0] == word
    assert chosen["best"][0]["target"].startswith("Elle")
    assert chosen["best"][0]["ids"] != free["best"][0]["ids"]
    assert chosen["best"][0]["score"] < free["best"][0]["score"]
    assert ended["best"][0]["ids"] == [word]
    assert ended["best"][0]["finished"]


@needs_node
def test_changes_that_cannot_be_are_refused(page):
    pins = [
        ([[0, [[1, -0.1]]]], "weight-range"), ([[0, [[1, 1.01]]]], "weight-range"),
        ([[0, [[1, None]]]], "weight-number"), ([[0, [[0, 0.7], [1, 0.4]]]], "weight-sum"),
        ([[0, [[9, 0.4]]]], "weight-place"), ([[99, [[0, 0.4]]]], "step-place"),
    ]  # fmt: skip
    asked = [{"text": "Go.", "chosen": {"pins": each}} for each, _ in pins]
    assert [each["error"] for each in in_node(page, asked)] == [reason for _, reason in pins]
    tokens = [[5] * 60, [0], [3, 5], [10_000], [None]]
    found = in_node(page, [{"text": "Go.", "chosen": {"tokens": each}} for each in tokens])
    assert [each["error"] for each in found] == ["step-place", *["token-place"] * 4]


@needs_node
def test_any_text_is_translated_or_refused(page):
    texts = ["x" * 1_000_000, "half \ud83d", "\x00\x07 \x1b[31m", "x" * 10_000]
    found = in_node(page, [{"text": text, "options": {"beam": 1, "best": 1, "light": True}} for text in texts])
    assert [each.get("error") for each in found] == ["too-long", "half-character", None, None]


# --- tags

SOURCES = [
    "the <b>red</b> car &amp; <i class='a>b'>me</i>.",
    "<p>one <b><i>two</i> three</b></p><p>four</p>",
    "<b>all of it</b>",
    "<b></b>one <!-- <i> --> two<br>three<br/>",
    "1 < 2 && 3 > 2, write to <me@example.com>, &lt;b&gt; &notit; &copy2 &#x41;&#65 &none; & so on",
    "<style>a > b {}</style><SCRIPT>if (a < b) {}</script>Go <X:y-1.z n='1'/>on",
    "see <a href=http://example.com/>it</a>\x1c<hr>\u00a0now",
    "<td>red</td><td>car</td>\n<li>two</li>",
    "<b>यह हिन्दी</b> <i>है</i>।",
    "هذا <b>كتاب <i>جديد</i></b>، <u>٣</u> ½ x²_",
    "cafe\u0301 <b>l’homme</b> l'<i>ami</i> 😀<u>😀</u>",
    "<br>",
    "",
    "H<sub>2</sub>O flow<b>s</b>, un<b></b>able, <b>1</b><sup>st</sup> l'<i>a</i>mi <u>re<i>do</i></u>",
    "老<b>人</b>买了<i>十匹<u>马</u></i>。 カー<b>ト</b> กำ<i>ลัง</i>",
    "<ſ>a</ſ> <İ>b</İ> <scripté>c</scripté>",
]
REFUSED = ["<b>one", "one</b>", "<b><i>one</b></i>", "if a<b && c>d", "<b>" * 100 + "</b>" * 100, "a </b\n> <i>"]
TARGETS = [
    "x", "", "la voiture < rouge & l'homme.", "एक हिन्दी वाक्य।", "كتاب، ٣ 😀", "... !", "cafe\u0301 qu'il y a",
    "他有PC2台車、トラックはน้ำ", "{{ x }} à 9:30 <a b>www.example.org/x-y", "ｶﾞ ๒๕ ទៅ។ ဗမာ\u200c 𠀀𠀁",
]  # fmt: skip


def entities_of(*sentences):
    return {each: html.unescape(each) for text in sentences for each in re.findall(r"&#?\w+;?", text)}


def random_html(draw, depth=3):
    written = []
    for _ in range(draw.randrange(6)):
        tag = draw.choice("bipu")
        inner = random_html(draw, depth - 1) if depth else ""
        written.append(
            draw.choice(["one", "l'ami", "two.", "{{ x }}", "&amp;", "<br>", *[f"<{tag}>{inner}</{tag}>"] * 3])
        )
    return draw.choice(["", " "]).join(written)


@needs_node
def test_tags_are_carried_as_python_carries_them():
    draw = random.Random(3)
    given = SOURCES + [random_html(draw) for _ in range(300)]
    cases, expected = [], []
    for marked in given:
        text, root = parse(marked)
        for target in TARGETS if marked in SOURCES else draw.sample(TARGETS, 2):
            source, units = (Units.of(each, whole_spans=True) for each in (text, target))
            # Eighths, whose sums are exact in any order, so that what weighs the same does so on both sides.
            shape = len(units.spans), len(source.spans)
            rows = [[draw.randrange(9) / 8 for _ in range(shape[1])] for _ in range(shape[0])]
            weights = torch.tensor(rows).view(shape)
            cases.append({"marked": marked, "target": target, "weights": rows})
            expected.append(
                {
                    "text": text,
                    "carried": carry(root, target, weights, source, units),
                    **{
                        name: [
                            [whole[start:end], word]
                            for (start, end), word in zip(found.spans, found.is_word, strict=True)
                        ]
                        for name, found, whole in (("source", source, text), ("units", units, target))
                    },
                    "agreed": agreed(weights).tolist(),
                }
            )
    found = run_node("markup.mjs", {"entities": entities_of(*given), "cases": cases})
    for case, each, wanted in zip(cases, found, expected, strict=True):
        assert each.pop("agreed", None) == [pytest.approx(row, abs=1e-6) for row in wanted.pop("agreed")], (case, each)
        assert each == wanted, case


@needs_node
def test_tags_that_do_not_nest_are_named_as_in_python():
    reasons = {
        "tag-unclosed": "got {}, which is not closed",
        "tag-stray": "got {} where no tag is open",
        "tag-crossed": "got {} where {} is open",
        "tag-deep": "got {} inside of 99 tags",
    }
    cases = [{"marked": marked, "target": "", "weights": []} for marked in REFUSED]
    for marked, each in zip(REFUSED, run_node("markup.mjs", {"entities": {}, "cases": cases}), strict=True):
        with pytest.raises(InputError, match=re.escape(reasons[each["error"]].format(each["detail"], each["open"]))):
            parse(marked)


@needs_node
@pytest.mark.parametrize("name", [name for name in _CASES if name != "no attention"])
def test_what_a_word_comes_from_is_what_python_finds(name, tmp_path):
    translator = untrained(*_CASES[name])
    translator.export_html(tmp_path / "page.html")
    translator.save(tmp_path / "model", int8=True)
    chosen = [
        *pairs()[400:408],
        ("l’homme\u0301 😀", "L'homme est\u0301 😀, ½."),
        ("हिन्दी है।", "x"),
        ("At 9:30 {a b}", "À 9:30 {a b}"),
    ]
    found = in_node(tmp_path / "page.html", [{"text": source, "given": target} for source, target in chosen])
    weights = Translator.load(tmp_path / "model").weights_of_units(chosen, whole_spans=True)
    differences = []
    for each, wanted in zip(found, weights, strict=True):
        # The page computes in int8, and Python here in float32 of the same weights: of two places that weigh about the
        # same, another one may be the fourth.
        np.testing.assert_allclose(each["weighed"], wanted, atol=0.15)
        assert (np.array(each["weighed"]) > 0).all() == (wanted > 0).all()  # what is not tried has a place too
        differences += np.abs(np.array(each["weighed"]) - wanted.numpy()).flatten().tolist()
    assert np.mean(differences) < 0.01


@needs_node
def test_a_sentence_in_html_is_translated_as_in_python(translator, page):
    sentences = [
        "The <b>man</b> is <i>calm</i>.", "<p>She <b>lost <i>the man</i></b> &amp; <u>Marie</u>.</p>",
        "<b>Where is</b> the <!-- x --> man<br>?", "<a href='?a=1&amp;b'>I</a> lost.",
        "1 &lt; 2 < 3 <b>Zanzibar</b>", "<b>Go</b>.", "Go &amp; I lost.", "<p> </p>", "<p><b></b></p>", "&nbsp; ",
    ]  # fmt: skip
    search = Search(beam=4, n_best=2, precision="int8")
    expected = list(translator.translate_n_best(sentences, search=search, markup="html"))
    asked = {"options": {"beam": 4, "best": 2}, "entities": entities_of(*sentences)}
    found = in_node(page, [{"text": text, **asked} for text in sentences])
    assert [[one["target"] for one in each["best"]] for each in found] == [
        [one.target for one in group] for group in expected
    ]
    assert "<b>" in found[0]["best"][0]["target"]
    assert [group[0].target for group in expected[-3:]] == sentences[-3:]  # nothing to translate
    (refused,) = in_node(page, [{"text": "Go <b>on.", **asked}])
    assert (refused["error"], refused["detail"]) == ("tag-unclosed", "<b>")


@needs_node
def test_a_model_without_attention_takes_no_tags(tmp_path):
    translator = untrained(*_CASES["no attention"])
    translator.export_html(tmp_path / "page.html")
    tagged, plain = in_node(tmp_path / "page.html", [{"text": text, "entities": {}} for text in ("<b>Go</b>.", "Go.")])
    assert tagged["error"] == "tag-unattended"
    assert plain["best"]


# --- the file


class Scripts(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.content, self.inside = {}, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "script":
            self.inside = dict(attributes).get("id", "program")
            self.content[self.inside] = ""

    def handle_data(self, data):
        if self.inside:
            self.content[self.inside] += data

    def handle_endtag(self, tag):
        if tag == "script":
            self.inside = None


def test_a_page_is_one_file_that_asks_nothing_of_a_network(translator, tmp_path):
    path = tmp_path / "page.html"
    examples = ["</script><script>alert(1)</script>", "<!-- <script>", "\u2028 😀"]
    translator.export_html(path, title="<script>alert(1)</script> $model", examples=examples)
    text = path.read_text(encoding="utf-8")
    found = Scripts(text).content
    assert list(found) == ["dikkat-content", "dikkat-model", "program"]
    assert json.loads(found["dikkat-content"]) == {"examples": examples}
    assert "<title>&lt;script&gt;alert(1)&lt;/script&gt; $model</title>" in text
    assert "default-src 'none'" in text
    assert not re.search(r"\b(?:src|href)\s*=\s*[\"']?(?:https?:)?//", text.replace(found["program"], ""))
    translator.export_html(path, title="<script>alert(1)</script> $model", examples=examples)
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("names", "title", "languages"),
    [
        ({"corpus": "phrasebook", "source_language": "en"}, "Translator", None),
        (
            {"source_language": "en", "target_language": "Plattdeutsch"},
            "English → Plattdeutsch",
            ["en", "Plattdeutsch"],
        ),
    ],
)
def test_the_title_is_of_the_languages_that_the_origin_knows(translator, names, title, languages):
    known = replace(translator, origin=Origin.now(**names))
    for given in (None, "mine"):
        text = known.as_html(title=given)
        assert f"<title>{given or title}</title>" in text
        assert f'data-title="{given or ""}"' in text
        assert json.loads(Scripts(text).content["dikkat-content"]).get("languages") == languages


@needs_node
@pytest.mark.parametrize("damage", ["letter", "cut", "nonsense", "empty", "not base64", "another file"])
def test_a_damaged_model_is_told(page, damage):
    text = page.read_text(encoding="utf-8")
    model = Scripts(text).content["dikkat-model"]
    middle = len(model) // 2
    other = {
        "letter": model[:middle] + ("A" if model[middle] != "A" else "B") + model[middle + 1 :],
        "cut": model[: middle // 4 * 4],
        "nonsense": "AAAA" * 50,
        "empty": "",
        "not base64": "é!",
        "another file": base64.b64encode(gzip.compress(bundle({"a": b"1"}))).decode(),
    }[damage]
    page.write_text(text.replace(model, other), encoding="utf-8")
    (found,) = in_node(page, [{"text": "Go."}])
    assert found["error"] == "damaged"


def test_models_that_the_page_cannot_compute_are_refused(tmp_path):
    hooked = untrained("word", {})
    hooked.model.bridge.register_forward_hook(lambda *given: None)
    with pytest.raises(InputError, match="bridge"):
        hooked.export_html(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_the_command(translator, tmp_path, capsys, monkeypatch):
    translator.save(tmp_path / "model")
    page = tmp_path / "page.html"
    run = command_line(monkeypatch, capsys, "export", str(tmp_path / "model"))
    said, _ = made(run("--html", page, "--example", "Go."))
    assert "MB, with the model" in said
    assert "<title>Translator</title>" in page.read_text(encoding="utf-8")
    status, _, said = run("--title", "x")
    assert status == 2
    assert "--html" in said
