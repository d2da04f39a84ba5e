"""Lines as people have them: unknown words, and several sentences in one line."""

from itertools import product

import pytest
import torch

from dikkat.translation import Tokenizer
from dikkat.translation.text.capitals import sentences_of


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
    both = translator.translate("I'm home.  Where is the man?")
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


def test_broken_letters_are_never_written():
    tokenizer = Tokenizer.train(["漢字 and words"], "bpe", min_freq=1, vocabulary_size=300)
    ids = tokenizer.encode("漢字 and").ids
    texts = [tokenizer.decode(part) for part in (ids[1:], ids[:2], ids[2:], *map(list, product(ids, ids)))]
    assert not any("\ufffd" in text for text in texts)
