import dataclasses
from typing import get_args

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import kit
from dikkat.translation import Settings, Tokenizer, TranslationModel, Translator, greedy
from dikkat.translation.network.model import Batch, collate, expected
from dikkat.translation.settings import ScoreName
from dikkat.translation.text.special_tokens import BEGIN, END, PAD, UNKNOWN

SETTINGS = Settings(embedding_size=6, hidden_size=10, num_layers=2, dropout=0.0)
PAIRS = [([5, 6, 7, 8, 9], [4, 5]), ([4], [6, 7, 8, 9]), ([10, 5], [4])]


def make(settings=SETTINGS, **changes) -> TranslationModel:
    torch.manual_seed(0)
    return TranslationModel(dataclasses.replace(settings, **changes), 11, 13).double().eval()


def test_only_real_positions_reach_the_output_layer():
    model, batch = make(), collate(PAIRS)
    assert model(batch).shape == (3 + 5 + 2, 13)
    assert expected(batch).tolist() == [4, 5, END, 6, 7, 8, 9, END, 4, END]


@kit.each("score", get_args(ScoreName))
@kit.each("changes", [
    {"bidirectional": False}, {}, {"cell": "lstm", "num_layers": 1}, {"tied_embeddings": "none"},
    {"cell": "lstm", "num_layers": 3},
])  # fmt: skip
def test_a_batch_is_its_sentences_one_by_one(score, changes):
    model = make(**{"score": score} | changes)
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
    scores = features @ model.target_embedding.weight.T
    torch.testing.assert_close(scores + model.output_bias, model(batch))


def test_two_passes_of_which_different_features_are_dropped():
    model, batch = make(dropout=0.4).train(), collate(PAIRS)
    twice = Batch(*(torch.cat([each, each]) for each in batch[:4]))
    torch.manual_seed(3)
    first, second = model(twice).chunk(2)
    assert not torch.allclose(first, second)
    p, q = first.log_softmax(1), second.log_softmax(1)
    apart = ((p.exp() - q.exp()) * (p - q)).sum(1)
    wanted = F.cross_entropy(torch.cat([first, second]), expected(batch).repeat(2)) + 0.6 / 4 * apart.mean()
    torch.manual_seed(3)
    torch.testing.assert_close(model.loss(batch, r_drop=0.6), wanted)
    model.eval()
    torch.testing.assert_close(model.loss(batch, r_drop=0.6), model.loss(batch))


def test_a_word_votes_by_its_embedding_and_its_weight():
    model, source, lengths = make(), torch.tensor([[7, 8, 9], [8, 5, 0]]), torch.tensor([3, 2])
    with torch.no_grad():
        memory, state = model.encode(source, lengths)
        before = torch.tensor([BEGIN, BEGIN])
        features, weights, _ = model.step_features(before, memory, state)
        votes = model.lexical.weight.clone()
        model.lexical.weight.zero_()
        without, _, _ = model.step_features(before, memory, state)
        embedded = model.source_embedding(source) * 6**0.5
    wanted = torch.stack([sum(w * e for w, e in zip(*row, strict=True)) for row in zip(weights, embedded, strict=True)])
    torch.testing.assert_close(features - without, wanted @ votes.T)


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


@pytest.mark.parametrize("changes", [{}, {"cell": "lstm"}, {"score": "none"}])
def test_every_kind_of_model_runs_under_autocast(changes):
    model, batch = make(**changes).float(), collate(PAIRS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model.loss(batch)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, model.loss(batch), rtol=0.02, atol=0)
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


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


@kit.each("tied", ["none", "two", "three"])
@kit.each("layers", [1, 3])
@kit.each("cell", ["gru", "lstm"])
def test_without_attention_it_is_torchs_networks_with_the_last_state_at_every_step(cell, layers, tied):
    """The whole model in PyTorch's own words, sentence by sentence."""
    torch.manual_seed(0)
    settings = dataclasses.replace(SETTINGS, cell=cell, num_layers=layers, score="none", tied_embeddings=tied)
    model = TranslationModel(settings, 13, 13).double().eval()
    values = model.state_dict()
    kind = nn.GRU if cell == "gru" else nn.LSTM
    encoder = kind(6, 5, layers, batch_first=True, bidirectional=True).double()
    encoder.load_state_dict({name: values[f"encoder.{cell}.{name}"] for name in encoder.state_dict()})
    decoder = kind(6 + 10, 10, layers, batch_first=True).double()
    decoder.load_state_dict({name: values[f"decoder.{name}"] for name in decoder.state_dict()})
    target = values["target_embedding.weight"]
    source = target if tied == "three" else values["source_embedding.weight"]
    output = values["output_weight"] if tied == "none" else target
    found = model(collate(PAIRS)).split([3, 5, 2])

    def joined(last):  # forwards and backwards of each layer
        return torch.cat([last[0::2], last[1::2]], dim=-1)

    for scores, (read, written) in zip(found, PAIRS, strict=True):
        _, last = encoder(source[read][None] * 6**0.5)
        state = joined(last if cell == "gru" else last[0])
        first = torch.tanh(state @ values["bridge.weight"].T + values["bridge.bias"])
        if cell == "lstm":
            first = first, joined(last[1]) @ values["cell_bridge.weight"].T + values["cell_bridge.bias"]
        previous = target[[BEGIN, *written]][None] * 6**0.5
        context = state[-1].expand(1, len(written) + 1, -1)
        states, _ = decoder(torch.cat([previous, context], dim=-1), first)
        features = torch.tanh(
            torch.cat([states, context, previous], dim=-1) @ values["readout.weight"].T + values["readout.bias"]
        )
        torch.testing.assert_close(scores, features[0] @ output.T + values["output_bias"], rtol=1e-10, atol=1e-12)


def test_a_model_of_before_has_the_names_it_had():
    """Folders that were saved by an older dikkat must load."""
    old = {"embedding_size": 6, "hidden_size": 10, "num_layers": 1, "score": "additive", "bidirectional": True}
    names = TranslationModel(Settings.from_dict(old | {"lexical": False}), 11, 13).state_dict().keys()
    network = [f"{part}_{kind}_l0" for part in ("weight", "bias") for kind in ("ih", "hh")]
    assert sorted(names) == sorted([
        "source_embedding.weight", "target_embedding.weight", "bridge.weight", "bridge.bias", "readout.weight",
        "readout.bias", "output_bias", "decoder.score.W_q.weight", "decoder.score.W_k.weight",
        "decoder.score.w_v.weight", *(f"decoder.{name}" for name in network),
        *(f"encoder.gru.{name}{end}" for name in network for end in ("", "_reverse")),
    ])  # fmt: skip


@pytest.mark.parametrize("changes", [
    {"cell": "lstm"}, {"tied_embeddings": "none"}, {"tied_embeddings": "three"}, {"score": "none"},
])  # fmt: skip
def test_every_kind_of_model_can_be_saved(changes, tmp_path):
    tokenizer = Tokenizer.train(["go !", "va ! je suis"], "word", min_freq=1, vocabulary_size=99)
    settings = dataclasses.replace(SETTINGS, **changes)
    translator = Translator(TranslationModel(settings, len(tokenizer), len(tokenizer)), settings, tokenizer, tokenizer)
    translator.save(tmp_path / "model")
    found = Translator.load(tmp_path / "model")
    assert found.settings == settings
    assert found.score([("va !", "go")]) == translator.score([("va !", "go")])


def test_embeddings_are_one_table_where_they_are_tied():
    assert sum(p.shape == (13, 6) for p in make(tied_embeddings="none", lexical=False).parameters()) == 2
    assert sum(p.shape == (13, 6) for p in make(tied_embeddings="two", lexical=False).parameters()) == 1
    one = TranslationModel(dataclasses.replace(SETTINGS, tied_embeddings="three", lexical=False), 13, 13)
    assert [name for name, p in one.named_parameters() if p.shape == (13, 6)] == ["target_embedding.weight"]
    one.loss(collate([([7, 8], [9])])).backward()
    gradient = one.target_embedding.weight.grad
    assert all(gradient[token].any() for token in (7, 8, 9))
    with pytest.raises(ValueError, match=r"'three' with 11 source tokens and 13 target tokens; expected one"):
        make(tied_embeddings="three")


def test_features_are_dropped_of_the_embeddings_the_memory_and_the_readout():
    batch, p = collate(PAIRS), 0.4
    for changes in ({}, {"cell": "lstm"}, {"score": "none"}):
        model = make(dropout=p, **changes).train()
        dropped = []
        model.dropout.register_forward_hook(lambda _, args, out, dropped=dropped: dropped.append((args[0], out)))
        model.loss(batch)
        positions = 5 if model.attends else 1
        assert [tuple(out.shape) for _, out in dropped] == [(3, 5, 6), (3, positions, 10), (3, 5, 6), (10, 6)]
        for whole, out in dropped:
            kept = out != 0
            assert 0 < kept.sum() < (whole != 0).sum()
            torch.testing.assert_close(out[kept], whole[kept] / (1 - p))
        assert model.encoder.get_submodule(model.encoder.network_name).dropout == model.decoder.dropout == p
    assert make(dropout=p, num_layers=1).decoder.dropout == 0


@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
def test_every_dropout_acts_in_training_alone(name):
    model, batch = make(**{name: 0.5}), collate(PAIRS)
    wanted = make().loss(batch)
    torch.testing.assert_close(model.loss(batch), wanted, rtol=0, atol=0)
    model.train()
    losses = {seed: torch.manual_seed(seed) and model.loss(batch).item() for seed in range(3)}
    assert len({*losses.values(), wanted.item()}) == 4
    torch.manual_seed(1)
    assert model.loss(batch).item() == losses[1]


@pytest.mark.parametrize("changes", [{}, {"cell": "lstm"}])
@pytest.mark.parametrize("score", ["additive", "none"])
@torch.no_grad()
def test_any_rows_can_be_selected(changes, score):
    model, batch, rows = make(score=score, **changes), collate(PAIRS), torch.tensor([2, 0, 2])
    memory, state = model.encode(batch.source, batch.source_lengths)
    _, _, state = model.step(batch.target[:, 0], memory, state)
    scores, weights, after = model.step(batch.target[:, 1], memory, state)
    found = model.step(batch.target[rows, 1], memory.select(rows), model.select(state, rows))
    torch.testing.assert_close(found[0], scores[rows])
    torch.testing.assert_close(found[1], weights[rows])
    further = batch.target[rows, 2], memory.select(rows)
    torch.testing.assert_close(model.step(*further, found[2])[0], model.step(*further, model.select(after, rows))[0])


@pytest.mark.parametrize("changes", [
    {}, {"cell": "lstm", "attention_dropout": 0.1}, {"score": "none"},
    {"cell": "lstm", "num_layers": 2, "tied_embeddings": "none", "attention_dropout": 0.1},
])  # fmt: skip
def test_every_kind_of_model_learns(changes):
    torch.manual_seed(0)
    settings = Settings(embedding_size=16, hidden_size=32, dropout=0.0, **changes)
    model, batch = TranslationModel(settings, 11, 13), collate(PAIRS)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        model.loss(batch).backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
    assert [found.ids for found in greedy(model, [source for source, _ in PAIRS])] == [target for _, target in PAIRS]


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
