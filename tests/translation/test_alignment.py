import gzip

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dikkat.translation import CorpusError, InputError, Settings, Tokenizer, TranslationModel, Translator
from dikkat.translation.decoding.alignment import (
    GoldLinks,
    alignment_error_rate,
    forced_weights,
    grow_diag_final_and,
    merge_pieces,
    posteriors,
    read_links,
)
from dikkat.translation.text.units import Units


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
    with pytest.raises(InputError, match="got neither found nor sure links"):
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
    with pytest.raises(CorpusError, match=r"links, line 2: got '.*'; expected links: 1-2"):
        read_links(tmp_path / "links")


def translator(kind="word", **values):
    text = ["The man is calm , l'homme .", "un deux trois quatre"] * 3
    tokenizer = Tokenizer.train(text, kind, min_freq=1, vocabulary_size=300)
    settings = Settings(embedding_size=5, hidden_size=6, tokenizer=kind, **values)
    torch.manual_seed(1)
    return Translator(TranslationModel(settings, len(tokenizer), len(tokenizer)), settings, tokenizer, tokenizer)


def test_a_place_counts_by_its_attention_and_by_what_would_be_written_from_it_alone():
    for values in ({}, {"cell": "lstm", "num_layers": 2}, {"score": "bilinear"}):
        model = translator(**values).model.double().eval()
        source, target = [4, 5, 6, 7, 8], [9, 4, 6]
        found = posteriors(model, [(source, target), ([5, 4], [7])])[0]
        assert (found > 0).all()  # so that a tag around what is never tried has a place
        with torch.no_grad():
            memory, state = model.encode(torch.tensor([source]), torch.tensor([5]))
            for step, (previous, token) in enumerate(zip([2, 9, 4], target, strict=True)):
                _, weights, after = model.step(torch.tensor([previous]), memory, state)
                wanted = []
                for place in range(5):
                    value = memory.value[:, place : place + 1]
                    alone = model.decoder.prepare(value[..., :6], values=value)
                    scores, _, _ = model.step(torch.tensor([previous]), alone, state)
                    probability = (scores[0, token] - scores[0].exp().sum().log()).exp()
                    wanted.append(weights[0, place].sqrt() * probability)
                wanted[int(weights.argmin())].zero_()  # of five places four count
                wanted = 0.99 * torch.stack(wanted) / sum(wanted) + 0.01 * weights[0]
                torch.testing.assert_close(found[step], wanted, rtol=1e-9, atol=1e-12)
                state = after


def test_a_larger_share_of_attention_is_a_mean_with_the_attention_weights():
    model, pairs = translator().model.double().eval(), [([4, 5, 6, 7, 8], [9, 4, 6]), ([5, 4], [7])]
    attention = forced_weights(model, pairs)
    means = [(one.double() + other) / 2 for one, other in zip(posteriors(model, pairs), attention, strict=True)]
    for weights, mean in zip(posteriors(model, pairs, attention_share=0.505), means, strict=True):
        torch.testing.assert_close(weights, mean, rtol=0, atol=1e-7)  # `forced_weights` are float32


def test_units_of_a_sentence():
    units = Units.of("l'homme est-il  là ?")
    assert ["l'homme est-il  là ?"[start:end] for start, end in units.spans] == [
        "l'", "homme", "est", "-", "il", "là", "?",
    ]  # fmt: skip
    assert units.words == [0, 0, 1, 1, 1, 2, 3]


def test_a_character_is_a_word_where_there_are_no_spaces():
    text = "我有PC2台，カート ｶﾞ น้ำ ๒๕ ទៅ។ 한국어 𠀀𠀁"
    assert [text[start:end] for start, end in Units.of(text).spans] == [
        "我", "有", "PC2", "台", "，", "カ", "ー", "ト", "ｶﾞ", "น้", "ำ", "๒๕", "ទៅ", "។", "한국어", "𠀀", "𠀁",
    ]  # fmt: skip


def test_weights_of_pieces_becomeweights_of_units():
    # Source "he's ok": one piece for he's, which is two units, and two pieces for ok. Target "a b": a in two pieces.
    source, target = Units.of("he's ok"), Units.of("ab c")
    pieces = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.4, 0.4], [0.0, 0.5, 0.5]])
    found = merge_pieces(pieces, source.shares([(0, 4), (4, 6), (6, 7)]), target.shares([(0, 1), (1, 2), (3, 4)]))
    torch.testing.assert_close(found, torch.tensor([[0.2, 0.2, 0.6], [0.0, 0.0, 1.0]]))


SPANS = st.lists(st.tuples(st.integers(0, 13), st.integers(0, 13)), max_size=7)


@given(SPANS, SPANS)
def test_a_unit_has_the_pieces_that_overlap_it(units, pieces):
    found = Units(units, [], []).shares(pieces)
    assert found.shape == (len(units), len(pieces))
    assert found.tolist() == [[float(a < end and start < b) for a, b in pieces] for start, end in units]


def test_two_directions_are_joined():
    # Both have 0-0, which brings 1-1, and that 2-1 and 2-2: one word of each is free. 4-4 is free on both sides.
    assert grow_diag_final_and(links("0-0 1-1 2-2 4-4"), links("0-0 2-1")) == links("0-0 1-1 2-1 2-2 4-4")
    # 1-0 has no word that is not linked yet.
    assert grow_diag_final_and(links("0-0 1-1 1-0"), links("0-0 1-1")) == links("0-0 1-1")
    # 5-0 is no neighbour and source word 5 alone is free: grow-diag-final would take it, -and does not.
    assert grow_diag_final_and(links("0-0 5-0"), links("0-0")) == links("0-0")
    assert grow_diag_final_and(set(), set()) == set()


LINKS = st.frozensets(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=9)


@given(LINKS, LINKS)
def test_what_is_joined_has_all_that_both_have_and_nothing_new(forward, backward):
    found = grow_diag_final_and(set(forward), set(backward))
    assert forward & backward <= found <= forward | backward
    for one, other in (forward | backward) - found:
        assert any(one == each for each, _ in found) or any(other == each for _, each in found)
    assert grow_diag_final_and(set(backward), set(backward)) == backward


def test_links_are_between_words_whatever_the_tokens(monkeypatch):
    # Units: The man l' homme . | un deux l' homme, with these weights.
    model, weights = translator(), torch.tensor(
        [[0.9, 0.1, 0.0, 0.0, 0.0], [0.0, 0.9, 0.1, 0.0, 0.0], [0.0, 0.0, 0.9, 0.0, 0.1], [0.0, 0.0, 0.0, 0.8, 0.2]]
    )  # fmt: skip
    monkeypatch.setattr(Translator, "weights_of_units", lambda self, pairs, size: [weights])
    pair = ("The man l'homme.", "un deux l'homme")
    assert model.align([pair]) == [links("0-0 1-1 2-2")]
    # The other direction looks at man for un: the product counts.
    back = torch.full((5, 4), 0.25)
    back[:, 0] = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
    other = translator()
    monkeypatch.setattr(Translator, "weights_of_units", lambda self, *_: [back if self is other else weights])
    assert (1, 0) in model.align([pair], reverse=other)[0]


@pytest.mark.parametrize("kind", ["word", "bpe"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_links_do_not_depend_on_what_else_is_in_the_batch(cell, kind):
    model = translator(kind, cell=cell)
    pairs = [("un deux trois", "The man"), ("un", "is calm , l'homme ."), ("quatre un The man is", "trois")]
    alone = [model.align([pair])[0] for pair in pairs]
    assert model.align(iter(pairs)) == alone == model.align(pairs, batch_size=2)
    for found, (source, target) in zip(alone, pairs, strict=True):
        assert max(word for word, _ in found) < len(source.split())
        assert max(word for _, word in found) < len(target.split())
    assert Translator.ensemble([model]).align(pairs) == alone
    assert model.align([]) == []
    assert model.align([("un", " "), pairs[1], ("", "un"), ("", "")]) == [set(), alone[1], set(), set()]


def test_what_cannot_be_aligned():
    with pytest.raises(InputError, match="model: got score='none'; expected a model with attention"):
        translator(score="none").align([("un", "un")])
    marked = translator(score="none").translate_lines(["un", "<b>un</b>"], markup="html")
    assert next(marked).source == "un"
    with pytest.raises(InputError, match=r"sentences\[1\]: got tags; expected text without tags"):
        next(marked)
    with pytest.raises(TypeError, match=r"pairs\[0\]: got 'un un'; expected a sentence and its translation"):
        translator().align(["un un"])
