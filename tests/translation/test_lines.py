"""Lines as people have them: what is carried over, what was not learnt, and several sentences in one."""

from collections import Counter
from itertools import product

import pytest
import regex
import torch

from dikkat.translation import KEEP, InputError, Search, Tokenizer
from dikkat.translation.text.lines import sentences_of
from translation.conftest import untrained

KEPT = ["{name}", "%1$s", "<0/>", "https://example.org/a?b=c&d=e#f", "me@example.org", "2024-01-05", "🙂", "12,500.75"]
FRAMES = [
    "{} The man is calm.", "She lost {} the man.", "The man is calm ({}).", "I lost {}, {}.", "Where is {}?", "{}",
    "I'm home. Go to {}! He's calm.", "“{}”: {} / {}", "Go {} {}.",
]  # fmt: skip


@pytest.mark.parametrize("beam", [1, 4])
def test_what_is_kept_arrives_as_often_as_it_was_there(translator, beam):
    """Also by a model that has learnt nothing, which never writes it itself."""
    turned = [KEPT[at:] + KEPT[:at] for at in (0, 3, 1)]
    lines = [frame.format(*parts) for frame in FRAMES for parts in zip(*turned, strict=True)]
    for each in (translator, untrained(translator, hidden_size=34)):
        for found in each.translate(lines, keep=KEEP, split=True, search=Search(beam=beam)):
            assert counted(found.target) >= counted(found.source), found
            assert found.target == regex.sub(r"\s+", " ", found.target).strip(), found


def counted(text):
    return Counter(found[0] for found in regex.finditer(KEEP, text))


def test_it_stands_beside_what_comes_from_its_neighbours(translator):
    lines = ["She sees {name} Marie.", "The man (%1$s) is calm.", "{0}"]
    she, man, alone = translator.translate(lines, keep=KEEP)
    assert she.target == "Elle voit {name} Marie."
    assert "%1$s" in man.target
    assert alone.target == "{0}"
    assert [she.source, man.source, alone.source] == lines


def test_a_translation_that_has_it_already_is_the_models(translator):
    lines = ["Go.", "I'm home."]
    plain, kept = translator.translate(lines), translator.translate(lines, keep=KEEP)
    assert [each.score for each in plain] == [each.score for each in kept]


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_what_was_never_learnt_is_told(kind):
    tokenizer = Tokenizer.train(["The man’s dog, calm."] * 2, kind, min_freq=2, vocabulary_size=400)
    text = "the Man's astronaut: 12 Calm dogs 🙂"
    told = [text[first:last] for first, last in tokenizer.unknown(text)]
    assert told == ["astronaut", ":", "dogs", "🙂"]
    assert Tokenizer.from_json(tokenizer.to_json().encode(), "here").unknown(text) == tokenizer.unknown(text)


def test_the_translation_has_what_was_not_learnt(translator):
    assert translator.translate("The astronaut is calm 🙂.").unknown == ("astronaut", "🙂")
    assert translator.translate("The man is calm.").unknown == ()


def test_the_sentences_of_a_line_are_translated_one_by_one(translator):
    both = translator.translate("I'm home.  Where is the man?", split=True)
    one, other = translator.translate(["I'm home.", "Where is the man?"])
    assert both.target == f"{one.target}  {other.target}"
    assert both.source_tokens == one.source_tokens + other.source_tokens
    assert torch.equal(both.weights, torch.block_diag(one.weights, other.weights))
    assert both.score == pytest.approx(one.score + other.score)
    assert both.source == "I'm home.  Where is the man?"


def test_a_model_that_knows_several_sentences_in_a_line_gets_them_together():
    texts = ["He left. She came back.", "Go home."] * 9
    assert Tokenizer.train(texts, "word", min_freq=1, vocabulary_size=99).several
    tokenizer = Tokenizer.train(texts[1:2] * 99 + texts[:1], "word", min_freq=1, vocabulary_size=99)
    assert not tokenizer.several
    assert tokenizer.decode(tokenizer.encode("Go home. She left").ids) == "Go home. She left"


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("Go. Run! Why? “Yes.” He left.", ["Go.", "Run!", "Why?", "“Yes.”", "He left."]),
        ("Dr. Li met Mr. A. Smith, e.g. on 5 p.m. Monday.", ["Dr. Li met Mr. A. Smith, e.g. on 5 p.m. Monday."]),
        ("See v. 2.5 of a.b.C at 3.30 h. ok", ["See v. 2.5 of a.b.C at 3.30 h. ok"]),
        ("«Sí». ¿Dónde está? ¡Va!", ["«Sí».", "¿Dónde está?", "¡Va!"]),
        ("你好。再见！", ["你好。", "再见！"]),
        ("", [""]),
    ],
)
def test_where_a_line_is_split(line, sentences):
    assert sentences_of(line)[0] == sentences


def test_what_cannot_be_kept_is_refused(translator):
    with pytest.raises(InputError, match=r"keep: got '\('; expected a regular expression"):
        translator.translate("Go.", keep="(")
    with pytest.raises(InputError, match="keep and split are of plain text, and markup is 'html'"):
        translator.translate("Go.", keep=KEEP, markup="html")


def test_broken_letters_are_never_written():
    tokenizer = Tokenizer.train(["漢字 and words"], "bpe", min_freq=1, vocabulary_size=300)
    ids = tokenizer.encode("漢字 and").ids
    texts = [tokenizer.decode(part) for part in (ids[1:], ids[:2], ids[2:], *map(list, product(ids, ids)))]
    assert not any("\ufffd" in text for text in texts)
