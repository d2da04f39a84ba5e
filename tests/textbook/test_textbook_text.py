from types import SimpleNamespace

import numpy as np
import pytest

from dikkat.textbook import text
from dikkat.textbook.text import Vocab
from dikkat.translation import PairCorpus


def test_a_vocabulary_puts_the_unknown_first_then_the_reserved_then_the_frequent():
    vocab = Vocab([["b", "a", "c"], ["a", "b", "a"]], min_freq=2, reserved_tokens=["<pad>", "<bos>"])
    assert vocab.idx_to_token == ["<unk>", "<pad>", "<bos>", "a", "b"]
    assert vocab.token_freqs == [("a", 3), ("b", 2), ("c", 1)]
    assert (len(vocab), vocab.unk, vocab["c"], vocab["a"]) == (5, 0, 0, 3)
    assert vocab[["a", ["b", "nowhere"]]] == [3, [4, 0]]
    assert vocab.token_to_idx["b"] == 4


def test_a_vocabulary_takes_flat_tokens_and_none():
    assert Vocab(["x", "y", "x"]).idx_to_token == ["<unk>", "x", "y"]
    assert Vocab().idx_to_token == ["<unk>"]
    assert Vocab([], reserved_tokens=["<pad>"]).idx_to_token == ["<unk>", "<pad>"]


@pytest.mark.parametrize(
    ("indices", "tokens"),
    [
        *((each, ["x", "y"]) for each in ([1, 2], (1, 2), np.array([1, 2]), np.array([1.0, 2.0]))),
        *((each, "y") for each in (2, 2.0, np.array(2), np.float32(2))),
        ([2], ["y"]),
    ],
)
def test_numbers_become_tokens(indices, tokens):
    assert Vocab(["x", "y"]).to_tokens(indices) == tokens


def test_a_token_number_is_whole():
    with pytest.raises(ValueError, match=r"1\.5"):
        Vocab(["x", "y"]).to_tokens(1.5)


def test_marks_stand_apart_and_letters_are_small():
    assert text.preprocess_nmt("Go.\tVa\u202f!\nWell... no ?\tBon\xa0!") == "go .\tva !\nwell . . . no ?\tbon !"
    assert text.preprocess_nmt(".a") == ".a"


def test_lines_that_are_no_pair_are_left_out():
    raw = "a b\tc d\nno pair\nx\ty\tz\ne\tf g\nh\ti"
    assert text.tokenize_nmt(raw) == ([["a", "b"], ["e"], ["h"]], [["c", "d"], ["f", "g"], ["i"]])
    assert text.tokenize_nmt(raw, 2) == ([["a", "b"], ["e"]], [["c", "d"], ["f", "g"]])


def test_sentences_are_ended_cut_and_padded():
    vocab = Vocab(["a", "b"], reserved_tokens=["<pad>", "<eos>"])  # a 3, b 4
    ids, lens = text.build_array_nmt([["a"], ["b", "z", "a"], []], vocab, 3)
    assert ids.tolist() == [[3, 2, 1], [4, 0, 3], [2, 1, 1]]
    assert lens.tolist() == [2, 3, 1]
    assert ids.dtype == lens.dtype == np.int64


def test_the_second_generation_reads_what_it_is_to_say_one_step_later():
    (source, read, lens, said), source_vocab, target_vocab = text.parallel_arrays("Hi you.\tSalut !\nGo.\tVa !", 4)
    assert [source_vocab.to_tokens(row) for row in source] == [
        ["hi", "you", ".", "<eos>"],
        ["go", ".", "<eos>", "<pad>"],
    ]
    assert target_vocab.to_tokens(read[0]) == ["<bos>", "salut", "!", "<eos>"]
    assert target_vocab.to_tokens(said[0]) == ["salut", "!", "<eos>", "<pad>"]
    assert lens.tolist() == [4, 3]


def test_without_the_corpus_the_phrasebook_speaks(phrasebook, capsys):
    raw = text.read_data_nmt()
    assert "phrasebook" in capsys.readouterr().out
    text.read_data_nmt()
    assert capsys.readouterr().out == ""  # said once
    source, target = text.tokenize_nmt(text.preprocess_nmt(raw), 600)
    assert len(source) == len(target) == 600
    pairs = {" ".join(english): " ".join(french) for english, french in zip(source, target, strict=True)}
    assert pairs["go ."] == "va !"
    assert pairs["i lost ."] == "j'ai perdu ."
    assert pairs["he's calm ."] == "il est calme ."
    assert pairs["i'm home ."] == "je suis chez moi ."


def test_every_word_of_the_phrasebook_can_be_said(phrasebook):
    (sources, source_lens, targets, _), source_vocab, target_vocab = text.load_data_nmt(10, 600)
    assert sources.shape == targets.shape == (600, 10)
    assert not (sources == source_vocab.unk).any()
    assert not (targets == target_vocab.unk).any()
    assert source_lens[0] == 3  # go . <eos>


def test_the_books_corpus_comes_first_and_as_the_book_counts(monkeypatch, capsys):
    whole = PairCorpus([("Go.", "Va !"), ("Hi.", "Salut !"), ("Go.", "Allez !")])
    monkeypatch.setattr(text, "named", lambda name: {"tatoeba-fra-eng": SimpleNamespace(whole=whole)}[name])
    text.raw_corpus.cache_clear()
    try:
        assert text.read_data_nmt() == "Go.\tVa !\nHi.\tSalut !\nGo.\tAllez !\n"
        assert "tatoeba" in capsys.readouterr().out
        _, source_vocab, target_vocab = text.load_data_nmt(5)
        assert source_vocab.idx_to_token == ["<unk>", "<pad>", "<bos>", "<eos>", ".", "go"]
        assert target_vocab.idx_to_token == ["<unk>", "<pad>", "<bos>", "<eos>", "!"]
    finally:
        text.raw_corpus.cache_clear()


def test_bleu_of_the_book():
    assert text.bleu("va !", "va !", 2) == 1
    assert text.bleu("", "va !", 2) == 0
    assert text.bleu("il est", "il est calme .", k=2) == pytest.approx(np.exp(1 - 4 / 2))  # too short, else right
    assert text.bleu("il a calme .", "il est calme .", 2) == pytest.approx((3 / 4) ** 0.5 * (1 / 3) ** 0.25)
