import dataclasses
from typing import get_args

import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.nn import functional as F

from dikkat.translation import Settings, TranslationModel, greedy
from dikkat.translation.model import Batch, collate, expected
from dikkat.translation.search import length_limit
from dikkat.translation.settings import ScoreName
from dikkat.translation.tokenizer import BEGIN, END, PAD, UNKNOWN

SETTINGS = Settings(embedding_size=6, hidden_size=10, num_layers=2, dropout=0.0)
PAIRS = [([5, 6, 7, 8, 9], [4, 5]), ([4], [6, 7, 8, 9]), ([10, 5], [4])]


def make(settings=SETTINGS, **changes) -> TranslationModel:
    torch.manual_seed(0)
    return TranslationModel(dataclasses.replace(settings, **changes), 11, 13).double().eval()


def test_only_real_positions_reach_the_output_layer():
    model, batch = make(), collate(PAIRS)
    assert model(batch).shape == (3 + 5 + 2, 13)
    assert expected(batch).tolist() == [4, 5, END, 6, 7, 8, 9, END, 4, END]


@pytest.mark.parametrize("score", get_args(ScoreName))
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_batch_is_its_sentences_one_by_one(score, bidirectional):
    model = make(score=score, bidirectional=bidirectional)
    alone = torch.cat([model(collate([pair])) for pair in PAIRS])
    torch.testing.assert_close(model(collate(PAIRS)), alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_is_the_cross_entropy_of_the_scores_and_the_tied_table_gets_both_gradients(reduction):
    model, batch = make(), collate(PAIRS)
    options = {"label_smoothing": 0.1, "reduction": reduction}
    wanted = F.cross_entropy(model(batch), expected(batch), **options)
    gradients = torch.autograd.grad(wanted, list(model.parameters()))
    loss = model.loss(batch, **options)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(torch.autograd.grad(loss, list(model.parameters())), gradients)
    plain = F.cross_entropy(model(batch), expected(batch), reduction=reduction)
    torch.testing.assert_close(model.loss(batch, reduction=reduction), plain)


def test_features_are_what_the_scores_are_made_of():
    model, batch = make(), collate(PAIRS)
    features = model.features(batch)
    assert features.shape == (10, 6)
    scores = features @ model.target_embedding.weight.T + model.output_bias
    torch.testing.assert_close(scores, model(batch))


def test_states_are_float32_under_autocast_and_the_products_are_not(monkeypatch):
    model, batch = make().float(), collate(PAIRS)
    found = {}
    encode, readout = model.encode, model._readout

    def spy_encode(*arguments):
        memory, state = encode(*arguments)
        found["encoder"] = memory.key.dtype  # a product
        return memory, state

    def spy_readout(states, contexts, previous):
        found["decoder"] = states.dtype
        features = readout(states, contexts, previous)
        found["readout"] = features.dtype
        return features

    monkeypatch.setattr(model, "encode", spy_encode)
    monkeypatch.setattr(model, "_readout", spy_readout)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model.loss(batch)
    assert found == {"encoder": torch.bfloat16, "decoder": torch.float32, "readout": torch.bfloat16}
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, model.loss(batch), rtol=0.02, atol=0)


def test_what_stands_in_the_padding_has_no_effect():
    model, batch = make(), collate(PAIRS)
    source, target = batch.source.clone(), batch.target.clone()
    source[1, 1:], source[2, 2:] = 9, 3
    target[0, 4:], target[2, 3:] = 7, 2
    found = model(Batch(source, batch.source_lengths, target, batch.target_lengths))
    torch.testing.assert_close(found, model(batch), rtol=0, atol=0)
    F.cross_entropy(found, expected(batch)).backward()
    wanted = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    F.cross_entropy(model(batch), expected(batch)).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=0, atol=0)


def test_an_embedding_of_padding_that_is_not_a_number_has_no_effect():
    model, batch = make(), collate(PAIRS)
    wanted = model.encode(batch.source, batch.source_lengths)[0]
    with torch.no_grad():
        model.source_embedding.weight[PAD] = torch.nan
    found = model.encode(batch.source, batch.source_lengths)[0]
    torch.testing.assert_close(found.key, wanted.key, rtol=0, atol=0)


def by_hand(model, source):
    """Greedy search as the textbook has it: one sentence, whole vocabulary, no batch."""
    memory, state = model.encode(torch.tensor([source]), torch.tensor([len(source)]))
    previous, ids, score, weights = BEGIN, [], 0.0, []
    while len(ids) < length_limit(len(source)):
        scores, looked_at, state = model.step(torch.tensor([previous]), memory, state)
        log_probabilities = scores[0].log_softmax(0)
        allowed = [token for token in range(13) if token not in (PAD, BEGIN)]
        if UNKNOWN not in source:
            allowed.remove(UNKNOWN)
        if not ids:
            allowed.remove(END)
        previous = max(allowed, key=lambda token: log_probabilities[token].item())
        score += log_probabilities[previous].item()
        if previous == END:
            break
        ids.append(previous)
        weights.append(looked_at[0])
    return ids, score, torch.stack(weights)


@hypothesis_settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.sampled_from([UNKNOWN, *range(4, 11)]), min_size=1, max_size=6), min_size=1, max_size=5))
@example([[5, 6], [7], [8, 9, 10, 4], [UNKNOWN, 4, 5, 6], [10, 10], [9, 4, 4]])
def test_a_batch_is_searched_as_its_sentences_are_one_by_one(sources):
    model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)  # an untrained model looks everywhere alike
        model.output_bias[UNKNOWN] += 0.5
        lengths = set()
        for source, found in zip(sources, greedy(model, sources), strict=True):
            ids, score, weights = by_hand(model, source)
            lengths.add(len(ids))
            assert found.ids == ids
            assert found.score == pytest.approx(score, rel=1e-6)
            torch.testing.assert_close(found.weights, weights.float())
            torch.testing.assert_close(found.weights.sum(1), torch.ones(len(ids)))
            assert found.finished == (len(ids) < length_limit(len(source)))
    if len(sources) == 6:
        assert len(lengths) >= 4  # in the example sentences leave the batch at different times


@pytest.mark.parametrize("favourite", [PAD, BEGIN, END, UNKNOWN])
def test_tokens_that_are_no_words_are_not_output(favourite):
    model = make()
    with torch.no_grad():
        model.output_bias[favourite] = 100.0
    known, unknown = greedy(model, [[5, 6], [5, UNKNOWN]])
    assert not {PAD, BEGIN, END} & {*known.ids, *unknown.ids}
    assert UNKNOWN not in known.ids
    assert UNKNOWN in unknown.ids or favourite != UNKNOWN
    assert known.ids
    if favourite == END:
        assert len(known.ids) == 1
        assert known.finished


def test_a_model_that_never_stops_is_stopped():
    model = make()
    with torch.no_grad():
        model.output_bias[END] = -100.0
    short, long = greedy(model, [[5, 6], [5] * 100])
    assert (len(short.ids), len(long.ids)) == (14, 150)
    assert not short.finished
    assert not long.finished


def test_a_source_without_tokens_is_refused():
    assert greedy(make(), []) == []
    with pytest.raises(ValueError, match="no tokens"):
        greedy(make(), [[4], []])
