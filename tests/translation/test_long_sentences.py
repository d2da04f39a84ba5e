"""Sentences with more tokens than one search translates: their parts, in Python and on the page."""

import random

import pytest

from dikkat.translation import Search
from dikkat.translation.decoding import translator as translator_module
from dikkat.translation.decoding.long_sentences import MOST_TOKENS, divide
from dikkat.translation.text.capitals import SPACES
from translation.test_corrections import corrected_copy
from translation.test_living import in_node, needs_node, untrained


def test_parts_are_the_sentence_and_end_at_white_space_or_between_characters():
    draw = random.Random(3)
    for count in (0, 1, 255, 256, 257, 512, 513, 1999):
        for widths in ((1,), (1, 2), (1, 1, 9)):
            offsets, sentence = [], ""
            while len(offsets) < count:
                start = len(sentence)
                sentence += "é" * draw.choice(widths)
                offsets += [(start, len(sentence))] * draw.randint(1, 4)  # bytes of one character
                sentence += draw.choice(["", "", "", " ", "\n\u3000"]) if len(widths) > 1 else ""
            parts = divide(sentence, offsets)
            assert "".join(part + space for part, space in parts) == sentence
            assert len(parts) >= -(-len(offsets) // MOST_TOKENS)
            start = 0
            for part, space in parts:
                end = start + len(part) + len(space)
                tokens = [span for span in offsets if start <= span[0] < end]
                assert len(tokens) <= MOST_TOKENS
                assert all(last <= end for _, last in tokens)
                start = end
            for part, space in parts[:-1]:
                assert not set(space) - set(SPACES)
                assert part == part.rstrip(SPACES)
                assert space or len(widths) == 1


@pytest.mark.parametrize("markup", [None, "html"])
def test_no_search_has_more_tokens(translator, monkeypatch, markup):
    lengths, search = [], translator_module.beam_search
    monkeypatch.setattr(
        translator_module,
        "beam_search",
        lambda models, sources, *rest: (lengths.extend(map(len, sources)), search(models, sources, *rest))[1],
    )
    text = "The man is " + "calm " * 600 + "lost."
    translation = translator.translate(text, markup=markup, search=Search(beam=1))
    assert set(lengths[:3]) == {202, 201}
    assert (len(translation.source_tokens), translation.source) == (605, text)
    assert translation.weights.shape == (len(translation.target_tokens), 605)
    corrected = corrected_copy(translator, [(text, "Calme.")])
    lengths.clear()
    assert corrected.translate(text, markup=markup).target == "Calme."
    assert lengths == [605]


@needs_node
@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_the_page_has_the_same_parts(kind, tmp_path):
    translator = untrained(kind, {})
    translator.export_html(tmp_path / "page.html")
    texts = ["é" * 300, "你好" * 200, "I am tired, and 𐐨𐐩 " * 60, "Go home. " + "We go 7 \u3000" * 190 + "\nHe left."]
    options = {"beam": 1, "light": True}
    for text, found in zip(
        texts, in_node(tmp_path / "page.html", [{"text": t, "options": options} for t in texts]), strict=True
    ):
        expected = translator.translate(text, search=Search(beam=1, precision="int8"))
        (best,) = found["best"]
        assert (best["target"], best["tokens"]) == (expected.target, expected.target_tokens), text
        assert (best["finished"], best["repeated"]) == (expected.finished, expected.repeated)
