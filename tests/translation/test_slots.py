"""Slots: what training pairs do with numbers and placeholders is learned, and translations do the same."""

import copy
import dataclasses
import json
import warnings

import pytest
import regex
import torch
from hypothesis import given
from hypothesis import strategies as st

from dikkat.translation import InputError, ModelFolderError, Search, Tokenizer, Translator
from dikkat.translation.decoding import translator as translator_module
from dikkat.translation.decoding.hypothesis import Hypothesis
from dikkat.translation.text.slots import NO_SLOTS, Masked, Shape, Slots
from dikkat.translation.text.units import Units
from dikkat.translation.training.train import train
from tests.stress.hostile_models import seal
from translation.taught import PAIRS, TINY

NAMES = ["Ana", "Rita", "João", "Zé"]
TIMES = [f"{hour}:{minute}" for hour, minute in zip(range(8, 20), range(10, 58, 4), strict=True)]
TAUGHT = [
    *[(f"{name} left at {t}.", f"{name} saiu às {t.replace(':', 'h')}.") for name in NAMES for t in TIMES[:3]],
    *[(f"{name} called at {t}.", f"{name} ligou às {t.replace(':', 'h')}.") for name in NAMES for t in TIMES[3:6]],
    *[(f"{a} left at {t}, {b} at {u}.", f"{a} saiu às {t}, {b} às {u}.".replace(":", "h")) for a, b, t, u in
      zip(NAMES * 2, NAMES[1:] * 3, TIMES, TIMES[3:], strict=False)],
]  # fmt: skip
NEW = ["João left at 14:05.", "Rita called at 7:59.", "Zé left at 9:10, Ana at 23:45."]
RIGHT = ["João saiu às 14h05.", "Rita ligou às 7h59.", "Zé saiu às 9h10, Ana às 23h45."]


@pytest.fixture(scope="module")
def taught():
    torch.set_num_threads(1)
    return train(TINY, TAUGHT, TAUGHT[::4], progress=False).translator


def learned(*frames, count=12):
    """Slots of pairs made of frames in which {d} is a number from 1 and {m} one that differs."""
    numbers = [{"d": f"{i + 1:02}", "m": f"{(i * 5) % 12 + 1:02}", "y": 2000 + i, "t": 100 + i} for i in range(count)]
    return Slots.learn([(source.format(**n), target.format(**n)) for n in numbers for source, target in frames])


@pytest.mark.parametrize(
    ("frames", "source", "written"),
    [
        ([("At 9:{d}.", "À 9h{d}.")], "At 14:05.", ["14h05"]),
        # A day that equals its month agrees with either order.
        ([("{y}-{m}-{d}", "{d}/{m}/{y}"), ("{y}-{d}-{d}", "{d}/{d}/{y}")], "2024-01-05", ["05/01/2024"]),
        ([("{t} 1,{t}.{d}", "{t} 1\u202f{t},{d}")], "5,000.10", ["5\u202f000,10"]),
        ([("{t} 1 {t}", "{t} 1.{t}")], "2 345", ["2.345"]),
        ([("{t} or {t}", "{t} ou {t}")], "See 777 of 888 or 999.", ["777", "888"]),  # more spans than slots
        # The pairs write other numbers in words, so that these stay for the model.
        ([("12 and {t}", "douze et {t}")], "12 and 345", ["345"]),
        # No number so long was met; of those met, numbers of two digits stay text and the rest is copied.
        ([("12 and {t}", "douze et {t}")], "12 and 345678", ["345678"]),
        # Half of the decimals have a comma, half a point: such are copied, rather than left to the model.
        ([("{t}.5", "{t},5"), ("Write {t}.7", "{t}.7 Yaz")], "7.2", ["7.2"]),
        ([("{d}.{d}", "{d},{d}")], "02.03", ["02,03"]),  # equal groups of digits are taken to stay in order
        ([("{t} a", "{t} a"), ("{t} b", "{t}"), ("1{t} c", "c")], "777 or 7777", ["777"]),
        ([("{t} a", "a {t}"), ("{t} b", "b"), ("{t} c", "c")], "777", []),  # a third is too little
        # Dates change their order, which other numbers with hyphens do not.
        ([("{y}-{m}-{d}", "{d}/{m}/{y}"), ("0-{y}", "0-{y}")], "5-6", ["5-6"]),
        ([("{{file}} {d}", "{{dosya}} {d}"), ("{{}} {m}", "{{}} {m}")], "{name} {}", ["{}"]),
        # No number so long was met, but all with commas are written alike.
        ([("1,{t}", "1.{t}")], "1,234,567", ["1.234.567"]),
        ([("1,{t}", "1.{t}")], "1:30", ["1:30"]),
        ([("{t}", "{t}")], "See https://en.wikipedia.org/wiki/A_(b) today.", ["https://en.wikipedia.org/wiki/A_(b)"]),
        ([("one", "un")], "See https://example.org, 12.", []),  # a model that has no slots
        ([("%s {d}", "{d}")], "%s", []),  # the pairs drop it
        ([("v{t}", "v{t}")], "v123", []),  # no number of its own
    ],
)
def test_spans_are_written_as_the_pairs_write_them(frames, source, written):
    slots = learned(*frames)
    assert slots.mask(source)[1].parts == written
    assert Slots.from_dict(json.loads(json.dumps(slots.to_dict()))) == slots


TIMED, POINTED = ("At 9:{d}.", "À 9h{d}."), ("{d}.5", "{d},5")
GROUPED = ("1,{t}.{d}", "1.{t},{d}")


@pytest.mark.parametrize(
    ("frame", "rewritten", "copied"),
    [
        (TIMED, {"14:05": "14h05"}, "2:1 1:1 119:105 14:05:30 ٣:٤ 1.5"),  # scores, verses, seconds
        (POINTED, {"2.25": "2,25", "3.14159": "3,14159", "9.125": "9,125"},
         "2.0.1 192.168.0.1 10.0.100.200 24.12.2025 1.234.567 1,234 1,234.50 555.123.4567 7:5"),
        (("10-{d}", "10 à {d}"), {"7-12": "7 à 12"},
         "2024-01-05 5-100 020-7946-0123 555-123-456 978-3-16-148410-0 1-2-3"),
        (GROUPED, {"2,345.6": "2.345,6", "1,234,567.50": "1.234.567,50"},
         "1,234,5.50 12,34,567.8 1,234,567 1.5 1,5 1.234,5"),
        (("7,{t}", "7.{t}"), {"1,234,567": "1.234.567"}, "1,5 1,2345 1,234,56 1,00,000 3,4,5 1,234.50 20,12,2025"),
        (("At 9.{d}.", "À 9h{d}."), {"14.05": "14h05"}, "2.5 3.141 14.05.30"),  # times with points, and no decimals
        (("9.{d} Uhr", "9:{d}"), {"14.05": "14:05"}, "2.5 1.0.2"),
        (("{d}.{d}.{y}", "{d}/{d}/{y}"), {"24.12.2025": "24/12/2025"}, "1.2.2025 2.5 192.168.0.1 1.2.3"),
    ],
)  # fmt: skip
def test_a_shape_that_no_pair_has_is_rewritten_only_if_it_is_such_a_quantity(frame, rewritten, copied):
    slots = learned(frame)
    expected = rewritten | {each: each for each in copied.split()}
    assert {each: slots.mask(each)[1].parts for each in expected} == {each: [text] for each, text in expected.items()}


def test_quantities_of_several_kinds_are_told_apart():
    slots = learned(("7,{t}", "7.{t}"), POINTED)
    for source, written in {"1,234,567": "1.234.567", "2.25": "2,25", "9.125": "9,125", "1,5": "1,5"}.items():
        assert slots.mask(source)[1].parts == [written]


@pytest.mark.parametrize(
    "text",
    [
        "1 000 000", "1\u00a0000\u202f000", "10.000,50", "14h05", "2024-01-05", "1/4", "3", "٣٤", "{name}", "{}",
        "{{ name }}", "${NAME}", "$NAME", "%(name)s", "%1$s", "%-5.2f", "%2", "%PRODUCTNAME", "{0, number, #.##}",
        "https://example.org/a_(b)?c=d&e#f", "www.example.org", "me.too@example.org", "<b>", "</0>", "&amp;", "&#8232;",
        "👩‍🚒", "🇫🇷", '<a href="x y">',
    ],
)  # fmt: skip
def test_each_kind_of_span_is_one_slot(text):
    shapes = {shape: Shape([0], 9, 9) for shape in ("9", "99", "999")}
    masked, _ = Slots(shapes, 5).mask(f"See ({text}), „{text}“.")
    assert masked.parts == [text, text]
    assert masked.text == "See (\x01), „\x02“."


ANYTHING = st.text(st.sampled_from("a1 0.,:/-{}%$s<>&;@é\u0301(\x01\x1b🙂\ue000h\u00a0"), max_size=40) | st.text()


@given(ANYTHING, st.lists(st.tuples(ANYTHING, ANYTHING), max_size=3), st.booleans())
def test_masking_and_restoring_gives_the_text_back(text, pairs, paired):
    slots = dataclasses.replace(Slots.learn(pairs * 5), most=4)
    masked, _ = slots.mask(text, text) if paired else slots.mask(text)
    blanked = regex.sub("[\x01-\x08\x0e-\x1b]", " ", text)
    assert masked.restore(masked.text) == blanked
    places = masked.locate((at, at + 1) for at in range(len(masked.text)))
    pieces = [masked.restore(each) for each in masked.text]
    assert [blanked[first:last] for first, last in places] == pieces


@pytest.mark.parametrize(
    ("most", "pair", "practised"),
    [
        (1, ("Open Calc.", "Ouvrez Calc."), ("Open \x01.", "Ouvrez \x01.")),
        (1, ("Calc and Calc", "Calc et Calc"), None),  # which is which?
        (1, ("Calc and calc", "Calc et Calc"), None),
        (1, ("The Calculator is a", "Un Calc, a"), None),  # single letters and parts of words are no words
        (3, ("Calc has 3 of $X", "3 : Calc, $X"), ("\x01 has \x02 of \x03", "\x02 : \x01, \x03")),
        (2, ("At 9:30 Ana left", "Ana saiu às 9h30"), ("At \x01 \x02 left", "\x02 saiu às \x01")),
        (0, ("Open Calc.", "Ouvrez Calc."), None),
        (1, ("\x01 left", "\x01 saiu"), None),
    ],
)
def test_words_of_both_sides_practise_slots(most, pair, practised):
    slots = Slots({"9": Shape([0], 9, 9), "#:99": Shape([0, "h", 1], 9, 9)}, most)
    assert slots.practise(*pair) == practised


def test_practice_uses_all_slots_in_increasing_order():
    slots, met = Slots({}, 4), set[str]()
    for k in range(40):
        source, target = slots.practise(f"Ana{k} and Zé{k} left.", f"Ana{k} e Zé{k} saíram.")
        first, second = source[0], source[6]
        assert (source, target) == (f"{first} and {second} left.", f"{first} e {second} saíram.")
        assert first < second
        met |= {first, second}
    assert met == set("\x01\x02\x03\x04")
    (crowded, _) = slots.practise("Ana Bo Cy Di Ed Flo", "Ana Bo Cy Di Ed Flo")
    assert [each for each in crowded if each in "\x01\x02\x03\x04"] == list("\x01\x02\x03\x04")


def test_numbers_that_nobody_taught_are_right(taught):
    assert taught.slots.most == 2
    found = taught.translate(NEW)
    assert [each.target for each in found] == RIGHT
    assert found[0].source_tokens == ["João", "left", "at", "14:05", "."]
    assert found[0].target_tokens[1:] == ["saiu", "às", "14h05", "."]
    assert found[0].weights.shape == (5, 5)
    assert not any(each.unknown for each in found)
    for text, written in [("14:05", "14h05"), ("(25 %)", "(25 %)"), ("\u200b", "\u200b"), ("…  14:05", "…  14h05")]:
        assert taught.translate(text).target == written
    for mark in "\x01\ue000\x1b":  # characters of slots, in a user's own text
        assert taught.translate(f"João left {mark} at 14:05.").target.count("14h05") == 1
        assert "\x01" not in taught.translate(f"Ana {mark} left.").target


def test_a_number_never_touches_a_word():
    target = Masked("", ["100", "<b>", "%s"], [])
    for text, written in [
        ("et\x01kg", "et 100 kg"), ("\x01\x01", "100 100"), ("\x02et\x02.", "<b>et<b>."), ("(\x01)%", "(100)%"),
        ("x\x03y", "x%s y"), ("a\x04b", "ab"), ("ab 1", "ab 1"), ("", ""),
    ]:  # fmt: skip
        assert target.write(text) == written


def test_it_is_the_same_however_it_is_asked(taught, tmp_path):
    sentences = [*NEW, "Ana left at 8:10, 9:20, 10:30.", "Rita 7:59 7:59 called", "Zé called."]
    alone = [taught.translate(each) for each in sentences]
    assert [each.target for each in taught.translate(sentences)] == [each.target for each in alone]
    eighths = taught.translate(sentences[:-2], search=Search(precision="int8"))
    assert [each.target for each in eighths] == [each.target for each in alone[:-2]]
    several = list(taught.translate_n_best(sentences, search=Search(n_best=3)))
    assert [group[0].target for group in several] == [each.target for each in alone]
    scores = taught.score([(each.source, each.target) for each in alone[:3]])
    assert scores == pytest.approx([each.score for each in alone[:3]], abs=1e-4)
    taught.save(tmp_path / "model")
    loaded = Translator.load(tmp_path / "model")
    assert loaded.slots == taught.slots
    both = Translator.ensemble([taught, loaded])
    for each in (loaded, both):
        assert [one.target for one in each.translate(sentences)] == [one.target for one in alone]
    with pytest.raises(InputError, match=r"translators\[1\]: got slots that differ from those of translators\[0\]"):
        Translator.ensemble([taught, dataclasses.replace(taught, slots=NO_SLOTS)])
    written = taught.translate("<b>João</b> left at <i>14:05</i>.", markup="html").target
    assert regex.sub("<[^>]*>", "", written) == "João saiu às 14h05."


def test_units_of_a_pair_are_those_of_the_whole_text(taught):
    pair = "Zé left at 9:10, Ana at 23:45.", "Zé saiu às 9h10, Ana às 23h45."
    (weights,) = taught.weights_of_units([pair])
    source, target = map(Units.of, pair)
    assert weights.shape == (len(target.spans), len(source.spans))
    assert weights.sum(1).tolist() == pytest.approx([1.0] * len(target.spans))  # a unit without a piece would have 0
    assert bool((weights.sum(0) > 0).all())
    assert {(0, 0), (4, 4)} <= taught.align([pair])[0]


@pytest.mark.parametrize(
    ("candidates", "chosen", "repeated"),
    [
        (["Ana saiu", "saiu Ana \x01"], "Ana saiu", False),  # the search ranks by slots
        (["Ana \x02 saiu"], "Ana saiu", False),  # a slot that the source lacks gives nothing
        (["\x01 Ana Ana Ana saiu", "Ana"], "Ana", False),
        (["\x01 Ana saiu Ana saiu Ana saiu Ana", "saiu saiu saiu"], "14h05 Ana saiu", True),
    ],
)
def test_of_one_search_a_candidate_without_repetition_is_taken(taught, monkeypatch, candidates, chosen, repeated):
    size = range(len(taught.target_tokenizer))
    tokens = {label.lower(): number for number, label in enumerate(taught.target_tokenizer.labels(size))}
    ids = [[tokens[each.lower()] for each in text.split()] for text in candidates]

    def search(_, sources, options, slots, *rest):
        assert slots == (taught.source_tokenizer.slots, taught.target_tokenizer.slots)
        weights = [torch.full((len(each), len(sources[0])), 1 / len(sources[0])) for each in ids]
        found = [Hypothesis(each, -1.0 - k, w, True) for k, (each, w) in enumerate(zip(ids, weights, strict=True))]
        return [found[: options.n_best] for _ in sources]

    monkeypatch.setattr(translator_module, "beam_search", search)
    for n_best in (1, 2):
        (best, *_), *_ = taught.translate_n_best(["Ana left at 14:05"], search=Search(n_best=n_best))
        assert best.target.lower().replace(" ", "") == chosen.lower().replace(" ", "")
        assert best.repeated is repeated
        assert best.weights.shape == (len(best.target_tokens), 4)
        assert all(best.target_tokens)
        assert "  " not in best.target


def test_a_training_with_slots_goes_on_to_the_same_bits(tmp_path):
    first = dataclasses.replace(TINY, schedule="constant", epochs=1, dropout=0.2)
    longer = dataclasses.replace(first, epochs=3)
    whole = train(longer, TAUGHT, TAUGHT[:5], progress=False).translator
    train(first, TAUGHT, TAUGHT[:5], progress=False, folder=tmp_path)
    again = train(longer, TAUGHT, TAUGHT[:5], progress=False, folder=tmp_path, resume=True)
    assert again.translator.slots == whole.slots
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(again.translator.model.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        ([], "expected an object with most and shapes"),
        ({"most": 1}, "expected an object with most and shapes"),
        *(({"most": most, "shapes": {}}, f"most: got {most!r}; expected 0 to 22") for most in (23, -1, True, 1.0, "1")),
        *(
            ({"most": 1, "shapes": {"99": {"written": [0], "times": times, "of": of}}}, "shape '99': expected")
            for times, of in [(-1, 1), (1, -1), (2, 1), (True, 1), (1, True), (1.0, 1), (None, 1)]
        ),
        ({"most": 1, "shapes": {str(n): {} for n in range(1001)}}, "at most 1,000"),
        *(
            ({"most": 1, "shapes": {name: {"written": written, "times": 1, "of": 1}}}, f"shape '{name}': expected")
            for name, written in [
                ("#:99", [0, "h", 2]), ("#:99", [0, "h"]), ("#:99", [0, "h", 0]), ("#:99", ["h", 0, 1]), ("99", []),
                ("99", [True]), ("99", [[]]), ("#:99", [0, "h" * 4, 1]), ("~.9", [",", ","]),
                ("~.9", [0]), ("~,999.9", ["."]), ("~", ["."]), ("url", "0"),
            ]
        ),
    ],
)  # fmt: skip
def test_a_record_that_dikkat_does_not_write_is_refused(taught, tmp_path, record, fault):
    taught.save(tmp_path / "model")
    path = tmp_path / "model" / "settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"slots": record}))
    seal(tmp_path / "model")
    with pytest.raises(ModelFolderError, match=regex.escape(fault)):
        Translator.load(tmp_path / "model")


def test_pairs_without_spans_have_no_slots(translator):
    assert Slots.learn(PAIRS) == translator.slots == NO_SLOTS


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_texts_are_composed_and_their_blanks_collapsed_first(kind):
    tokenizer = Tokenizer.train(["The man left. Ọ́ ẹ̀ i̇", "the ạ́ man"], kind, min_freq=1, vocabulary_size=400)
    for text, plain in [
        ("         the man left.", "the man left."), ('"' + " " * 20 + "The man", '" The man'),
        ("a\u0323\u0301 man", "ạ́ man"), ("the\t\n man ", "the man"), ("\u1112\u1161\u11ab the", "한 the"),
    ]:  # fmt: skip
        assert tokenizer.encode(text).ids == tokenizer.encode(plain).ids
        assert tokenizer.decode(tokenizer.encode(text).ids) == tokenizer.decode(tokenizer.encode(plain).ids)
    places = tokenizer.offsets(["  the a\u0323\u0301 man"])[0]
    text = "  the a\u0323\u0301 man"
    assert {text[first:last].strip() for first, last in places} >= {"the", "a\u0323\u0301", "man"}


# --- corrections


def test_a_correction_writes_the_numbers_of_each_sentence(taught):
    corrected = copy.deepcopy(taught)
    assert corrected.correct("Ana left at 14:05.", "Zé saiu às 14h05.") == []
    assert corrected.translate("Ana left at 14:05.").target == "Zé saiu às 14h05."
    assert corrected.translate("Ana left at 9:41.").target == "Zé saiu às 9h41."


def test_unknown_words_of_a_correction_are_written_with_other_numbers(taught):
    corrected = copy.deepcopy(taught)
    assert corrected.correct("Ana left at 14:05.", "Züge zut às 14h05.") == []
    assert corrected.translate("Ana left at 14:05.").target == "Züge zut às 14h05."
    assert corrected.translate("Ana left at 9:41.").target == "Züge zut às 9h41."


def test_a_correction_may_lack_a_number(taught):
    corrected = copy.deepcopy(taught)
    corrected.correct("Ana left at 14:05.", "Ana saiu.")
    assert corrected.translate("Ana left at 14:05.").target == "Ana saiu."
    assert "23h10" in corrected.translate("Rita left at 23:10.").target


def test_corrections_that_differ_only_in_numbers_may_contradict(taught):
    corrected = copy.deepcopy(taught)
    pairs = [("Ana left at 8:10.", "Ana saiu às 8h10."), ("Ana left at 8:14.", "Zé ligou às 8h14.")]
    messages = [corrected.correct(*pair) for pair in pairs]
    assert [pair.has_slots for pair in corrected.memory.snapshot.pairs] == [True, False]
    assert messages == [[], []]
    assert [translation.target for translation in corrected.translate([source for source, _ in pairs])] == [
        target for _, target in pairs
    ]


def test_an_ensemble_follows_corrections_of_its_models_that_differ_only_in_numbers(taught):
    pairs = [("Ana left at 8:10.", "Zé saiu às 8h10."), ("Ana left at 8:14.", "Zé saiu às 8h14.")]
    members = [copy.deepcopy(taught), copy.deepcopy(taught)]
    for member, pair in zip(members, pairs, strict=True):
        member.correct(*pair)
    for models, source in ((members, pairs[:1]), (members[::-1], pairs[1:])):
        ensemble = Translator.ensemble(models)
        assert [memory.pairs for memory in ensemble.memories] == [source, source]
        assert [t.target for t in ensemble.translate([source for source, _ in pairs])] == [t for _, t in pairs]


def test_an_ensemble_follows_the_first_of_different_corrections_that_differ_in_numbers(taught):
    first, second = copy.deepcopy(taught), copy.deepcopy(taught)
    first.correct("Ana left at 14:05.", "Zé saiu às 14h05.")
    second.correct("Ana left at 8:10.", "Rita ligou às 8h10.")  # with a slot
    second.correct("Ana left at 7:59.", "João saiu, 7h59.")  # as text
    second.correct("Zé called at 9:10.", "Ana ligou às 9h10.")  # of the second model only
    second.correct("Rita left at 9:10.", "Rita saiu.")
    first.correct("Rita left at 9:10.", "Rita saiu.")
    sentences = ["Ana left at 14:05.", "Ana left at 8:10.", "Ana left at 7:59.", "Ana left at 9:41."]
    with pytest.warns(UserWarning, match="2 corrections of later models are not used, .*: 'Rita ligou às 8h10.' of"):
        both = Translator.ensemble([first, second])
    assert [each.target for each in both.translate(sentences)] == [
        "Zé saiu às 14h05.", "Zé saiu às 8h10.", "Zé saiu às 7h59.", "Zé saiu às 9h41."
    ]  # fmt: skip
    assert both.translate("Zé called at 23:45.").target == "Ana ligou às 23h45."
    assert both.memories[0].pairs == [
        ("Zé called at 9:10.", "Ana ligou às 9h10."), *first.memory.pairs,
    ]  # fmt: skip
    with pytest.warns(UserWarning, match="1 corrections of later models are not used, .*: 'Zé saiu às 14h05.' of"):
        both = Translator.ensemble([second, first])
    assert [each.target for each in both.translate(sentences)] == [
        "Rita ligou às 14h05.", "Rita ligou às 8h10.", "João saiu, 7h59.", "Rita ligou às 9h41."
    ]  # fmt: skip


@pytest.mark.parametrize("shared", [slice(None), slice(1), slice(1, None)])
def test_an_ensemble_of_models_with_equal_corrections_warns_of_nothing(taught, shared):
    pairs = [("Ana left at 8:10.", "Ana saiu às 8h10."), ("Ana left at 8:14.", "Zé ligou às 8h14.")]
    members = [copy.deepcopy(taught), copy.deepcopy(taught)]
    for member, corrections in zip(members, (pairs, pairs[shared]), strict=True):
        for pair in corrections:
            member.correct(*pair)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ensemble = Translator.ensemble(members)
    assert [memory.pairs for memory in ensemble.memories] == [pairs, pairs]
    assert [t.target for t in ensemble.translate([source for source, _ in pairs])] == [t for _, t in pairs]
