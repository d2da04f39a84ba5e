import gzip

import pytest
import torch

from dikkat.translation import CorpusError, InputError, Settings, Tokenizer, TranslationModel, Translator
from dikkat.translation.decoding.alignment import GoldLinks, align, alignment_error_rate, read_links


def links(text):
    return {tuple(map(int, link.split("-"))) for link in text.split()}


def gold(sure, possible=""):
    return GoldLinks(frozenset(links(sure)), frozenset(links(f"{sure} {possible}")))


@pytest.mark.parametrize(
    ("found", "given", "rate"),
    [
        (["0-0 1-1"], [gold("0-0 1-1")], 0.0),
        (["0-1 1-0"], [gold("0-0 1-1")], 1.0),
        # |A| = 4, |S| = 2, |A∩S| = 1, |A∩P| = 3: 1 − (1 + 3)/(4 + 2).
        (["0-0 1-2 2-1 3-3"], [gold("0-0 1-1", "1-2 2-1")], 1 / 3),
        # Links are counted over all sentences: 1 − (1 + 2 + 1 + 1)/(2 + 2 + 1 + 3), not the mean of the two.
        (["0-0 1-0", "2-2"], [gold("0-0 1-1", "1-0"), gold("2-2 1-1 0-0")], 1 - 5 / 8),
        (["", "0-0"], [gold(""), gold("", "0-0")], 0.0),
    ],
)
def test_the_rate_by_hand(found, given, rate):
    assert alignment_error_rate([links(each) for each in found], given) == pytest.approx(rate, abs=1e-12)


def test_links_that_do_not_fit():
    with pytest.raises(InputError, match="got links of 2 pairs; expected 1"):
        alignment_error_rate([set(), set()], [gold("0-0")])
    with pytest.raises(InputError, match="no link at all"):
        alignment_error_rate([set()], [gold("")])


def test_links_of_a_file(tmp_path):
    (tmp_path / "plain").write_text("0-0 1p2  10-3\n\n")
    wanted = [gold("0-0 10-3", "1-2"), gold("")]
    assert read_links(tmp_path / "plain") == wanted
    (tmp_path / "packed.gz").write_bytes(gzip.compress((tmp_path / "plain").read_bytes()))
    assert read_links(tmp_path / "packed.gz") == wanted


@pytest.mark.parametrize("text", ["0-", "a-1", "0:1", "-1-2", "1-2-3", "1?2", "²-1"])
def test_what_is_no_link_is_named_with_its_line(tmp_path, text):
    (tmp_path / "links").write_text(f"0-0\n1-1 {text}\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"links, line 2: '.*' is no link: write 1-2"):
        read_links(tmp_path / "links")


def translator(kind="word", **values):
    text = ["The man is calm , l'homme .", "un deux trois quatre"] * 3
    tokenizer = Tokenizer.train(text, kind, min_freq=1, vocabulary_size=300)
    settings = Settings(embedding_size=5, hidden_size=6, tokenizer=kind, **values)
    torch.manual_seed(1)
    return Translator(TranslationModel(settings, len(tokenizer), len(tokenizer)), settings, tokenizer, tokenizer)


def looking(monkeypatch, model, places):
    """The model looks at these source tokens, one before each target token."""
    step, at = TranslationModel.step_features, iter(places)

    def looks(self, previous, memory, state):
        features, weights, state = step(self, previous, memory, state)
        weights = torch.zeros_like(weights)
        weights[:, next(at)] = 1
        return features, weights, state

    monkeypatch.setattr(TranslationModel, "step_features", looks)


def test_links_are_between_words_whatever_the_tokens(monkeypatch):
    # "l'homme." has the tokens l', homme and a full stop, and is one word.
    looking(monkeypatch, translator(), [0, 3, 2, 1])
    assert align(translator(), [("The man l'homme.", "un deux l'homme")]) == [{(0, 0), (2, 1), (2, 2), (1, 2)}]


def test_a_word_in_parts_has_the_links_of_its_parts(monkeypatch):
    model = translator("bpe")
    pieces = model.source_tokenizer.encode("xyz homme").pieces
    first = next(place for place, piece in enumerate(pieces) if "h" in piece)
    assert first > 1  # xyz has several
    steps = len(model.target_tokenizer.encode("xyz").ids)
    assert steps > 2
    looking(monkeypatch, model, [0] * (steps - 2) + [first - 1, first])
    assert align(model, [("xyz homme", "xyz")]) == [{(0, 0), (1, 0)}]


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_links_do_not_depend_on_what_else_is_in_the_batch(cell):
    model = translator(cell=cell)
    pairs = [("un deux trois", "The man"), ("un", "is calm , l'homme ."), ("quatre un The man is", "trois")]
    alone = [align(model, [pair])[0] for pair in pairs]
    assert align(model, pairs) == alone == align(model, pairs, batch_size=2)
    for found, (source, target) in zip(alone, pairs, strict=True):
        assert {word for _, word in found} == set(range(len(target.split())))
        assert max(word for word, _ in found) < len(source.split())


def test_what_cannot_be_aligned():
    with pytest.raises(InputError, match="pair 2 has an empty sentence"):
        align(translator(), [("un", "un"), ("un", " ")])
    with pytest.raises(InputError, match="without attention there are no links"):
        align(translator(score="none"), [("un", "un")])
