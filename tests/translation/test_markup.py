import html
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kit
from dikkat._engine import cancellation
from dikkat.translation import InputError, Translation, Translator
from dikkat.translation.text.markup import carry, parse
from dikkat.translation.text.units import Units


def carried(marked, target, links):
    """What comes of HTML where `links` has the source unit of each target unit; of None, all alike."""
    text, root = parse(marked)
    source, units = (Units.of(each, whole_spans=True) for each in (text, target))
    weights = torch.full((len(units.spans), len(source.spans)), 1 / max(1, len(source.spans)))
    for row, place in zip(weights, links, strict=True):
        if place is not None:
            row.zero_()[place] = 1
    return carry(root, target, weights, source, units)


@kit.each(
    ("marked", "target", "links", "wanted"),
    [
        ("the <b>red</b> car", "la voiture rouge", [0, 2, 1], "la voiture <b>rouge</b>"),
        ("the <b>man</b>.", "l'homme.", [0, 1, 2], "l'<b>homme</b>."),
        ("<i>the <b>red</b> car</i>", "la voiture rouge", [0, 2, 1], "<i>la voiture <b>rouge</b></i>"),
        ("<p>Go <a href='x>y'>home</a>!</p>", "Va chez toi !", [0, 1, 1, 2], "<p>Va <a href='x>y'>chez toi</a> !</p>"),
        # Two in the place of one: the one whose word it is more surely, and the other beside it, without a word.
        ("<b>go</b> <i>up</i>", "monte", [0], "<i></i><b>monte</b>"),
        ("one<br>two", "un deux", [0, 1], "un <br>deux"),
        ("one two<br/>", "un deux", [0, 1], "un deux<br/>"),
        ("<b></b>one <!-- x --> two", "un deux", [0, 1], "<b></b>un <!-- x -->deux"),
        ("<b>never</b> ate", "n'a jamais mangé", [1, 1, 0, 1], "n'a <b>jamais</b> mangé"),
        # Where nothing says which word it is, it goes somewhere and is not lost.
        ("a <b>b</b> c", "x y", [0, 0], "<b>x</b> y"),
        ("a &lt; b &amp; c", "a < b & c", [0, 1, 2, 3, 4], "a &lt; b &amp; c"),
        ("1 < 2 <b>x</b>", "1 < 2 x", [0, 1, 2, 3], "1 &lt; 2 <b>x</b>"),
        ("<br>", "", [], "<br>"),
        ("<B>x</b>", "y", [0], "<B>y</b>"),
        # A tag without a text stays in its element, also at its end.
        ("<b>ate<br></b> the man", "a mangé l'homme", [0, 0, 1, 2], "<b>a mangé<br></b> l'homme"),
        ("the <b>man<br></b> is", "l'homme est", [0, 1, 2], "l'<b>homme<br></b> est"),
        # A letter with its vowel sign is one word.
        ("<b>red</b>", "हिन्दी", [0], "<b>हिन्दी</b>"),
        ("<b>red</b> x", "cafe\u0301 y", [0, 1], "<b>cafe\u0301</b> y"),
        ("<style>a > b {}</style>one", "un", [0], "<style>a > b {}</style>un"),
        # Around a part of a word: around the word that comes from it, if that is free.
        ("H<sub>2</sub>O flows", "H2O coule", [0, 1], "<sub>H2O</sub> coule"),
        ("the car<b>s</b> go", "les voitures vont", [0, 1, 2], "les <b>voitures</b> vont"),
        ("un<b>believ</b>able x", "x incroyable", [1, 0], "x <b>incroyable</b>"),
        ("<b>1</b><sup>st</sup> man", "le 1er homme", [None, 0, 1], "le <b>1er</b> <sup></sup>homme"),
        ("un<b></b>able x", "incapable x", [0, 1], "incapable <b></b>x"),
        # A placeholder, a number and an address are not parted.
        ("{{ a <b>b</b> }} c", "c {{ a b }}", [1, 0], "c <b>{{ a b }}</b>"),
        ("<b>3</b>.5 km", "km 3.5", [1, 0], "km <b>3.5</b>"),
        ("c at <i>www</i>.example.org/a", "www.example.org/a c", [2, 0], "<i>www.example.org/a</i> c"),
    ],
)
def test_tags_go_where_their_words_went(marked, target, links, wanted):
    assert carried(marked, target, links) == wanted


@pytest.mark.parametrize(
    ("marked", "message"),
    [
        ("<b>one", "got <b>, which is not closed; expected tags that nest"),
        ("one</b>", "got </b> where no tag is open"),
        ("<b><i>one</b></i>", "got </b> where <i> is open"),
        ("if a<b && c>d", "got <b && c>, which is not closed.*Write &lt; for a < that begins no tag"),
        ("<b>" * 100 + "</b>" * 100, "got <b> inside of 99 tags; expected fewer levels"),
    ],
)
def test_tags_that_do_not_nest_are_named(marked, message):
    with pytest.raises(InputError, match=message):
        parse(marked)


@kit.each(
    ("marked", "text"),
    [
        ("<td>red</td><td>car</td>", "red car"),
        ("<p>Go.</p><p>Go <b>o</b>n.</p> x", "Go. Go on. x"),
        ("<ul><li>one</li>\n<li>two</li></ul>", "one\ntwo"),
        ("one<br><br/>two<br>", "one two"),
        ("see <a href=http://example.com/>it</a>", "see it"),
        ("write to <me@example.com>, <https://example.com>", "write to <me@example.com>, <https://example.com>"),
        ("<!DOCTYPE html><script>if (1 < 2) {}</script>Go.", "Go."),
        ("<script>x</script foo>Go.<!-->I.<!-- -->", "Go.I."),
        ('<?xml version="1.0"?><b>Go</b>.<![CDATA[x]]><?php echo 1; ?>', "Go."),
        ("a <x n='1'/>b <y on/>c <svg:g>d</svg:g>", "a b c d"),
    ],
)
def test_the_text_is_what_a_reader_sees(marked, text):
    assert parse(marked)[0] == text


@st.composite
def marked(draw, depth=3):
    """HTML of words and nested tags, each tag with a number of its own."""
    parts = draw(st.lists(st.one_of(st.sampled_from(["a", "bc", "d.", "&amp;"]), st.integers(0, 3)), max_size=5))
    written = []
    for part in parts:
        if isinstance(part, str):
            written.append(part)
        elif part == 0:
            written.append("<br>")
        elif depth:
            written.append(f"<t{part}>{draw(marked(depth - 1))}</t{part}>")
    return " ".join(written)


@given(marked(), st.lists(st.sampled_from(["x", "y'", "zz", "!", "<"]), max_size=6), st.data())
def test_no_tag_is_lost_and_all_nest(source, words, data):
    text, root = parse(source)
    target = " ".join(words)
    count = len(Units.of(text).spans), len(Units.of(target).spans)
    size = count[0] * count[1]
    numbers = data.draw(st.lists(st.floats(0, 1, width=32), min_size=size, max_size=size))
    weights = torch.tensor(numbers).view(count[1], count[0])
    found = carry(root, target, weights, Units.of(text), Units.of(target))
    text_found, root_found = parse(found)  # which raises where tags do not nest
    assert text_found.split() == target.split()

    def nested(element):
        return sorted((each.opening, each.closing, nested(each)) for each in element.inside)

    assert nested(root_found) == nested(root)


def test_translate_takes_and_gives_html(translator):
    one = translator.translate("She <b>lost</b> the man &amp; <i>Marie</i>.", markup="html")
    assert isinstance(one, Translation)
    assert one.source == "She <b>lost</b> the man &amp; <i>Marie</i>."
    assert re.findall(r"</?\w>", one.target).count("<b>") == 1
    plain = translator.translate("She lost the man & Marie.")
    assert html.unescape(re.sub(r"</?[bi]>", "", one.target)) == plain.target
    known = translator.translate(["The <b>man</b> is <i>calm</i>.", "", "<p></p>", "Go."], markup="html")
    assert [re.sub(r"</?[bi]>", "", each.target) for each in known] == ["L'homme est calme.", "", "<p></p>", "Va !"]
    assert re.findall(r"</?\w>", known[0].target) == ["<b>", "</b>", "<i>", "</i>"]
    with pytest.raises(InputError, match="markup: got 'xml'; expected one of html, or None"):
        translator.translate("Go.", markup="xml")
    with pytest.raises(InputError, match="got <b>, which is not closed"):
        translator.translate(["Go.", "<b>Go."], markup="html")


def test_a_wrong_tag_names_its_sentence_after_the_others(translator):
    lines = translator.translate_lines(["Go.", "<b>Go.", "Go."], markup="html")
    assert next(lines).target == "Va !"
    with pytest.raises(InputError, match=r"sentences\[1\]: got <b>, which is not closed"):
        next(lines)


def test_sentences_without_a_tag_are_not_looked_through(translator, monkeypatch):
    asked = []
    real = Translator.weights_of_units
    monkeypatch.setattr(
        Translator,
        "weights_of_units",
        lambda self, pairs, *options, **names: asked.extend(pairs) or real(self, pairs, *options, **names),
    )
    found = translator.translate(["Go.", "<b>Go</b>.", "1 &lt; 2"], markup="html")
    assert [source for source, _ in asked] == ["Go."]
    assert "&lt;" in found[2].target or "<" not in html.unescape(found[2].target)


def test_links_end_where_nobody_waits(translator):
    with cancellation.stopping(lambda: True), pytest.raises(cancellation.StoppedError):
        translator.align([("Go.", "Va !")])
