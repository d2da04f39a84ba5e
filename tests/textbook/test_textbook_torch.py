import inspect
import math

import in_both
import numpy as np
import pytest
import torch
from in_both import (  # noqa: F401 - tests
    test_a_length_above_the_keys_means_all,
    test_additive_attention,
    test_arrays,
    test_dot_product_attention,
    test_heads_are_split_and_joined,
    test_masked_softmax,
    test_masked_softmax_of_an_empty_row_is_zero_and_low_scores_count,
    test_masked_softmax_refuses,
    test_modules_are_reached_through_it,
    test_multi_head_attention,
    test_sequence_mask_leaves_its_argument,
)
from torch import nn
from torch.nn import functional as F

from dikkat.recurrent import AttentionalLSTM
from dikkat.textbook import torch as d2l
from dikkat.translation import bleu_k

FOUR = {"go .": "va !", "i lost .": "j'ai perdu .", "he's calm .": "il est calme .", "i'm home .": "je suis chez moi ."}


def linear(layer, x):
    weights = [parameter.detach().double() for parameter in layer.parameters()]
    return F.linear(torch.tensor(x).double(), *weights).numpy()


def heads(bias):
    attention = d2l.MultiHeadAttention(in_both.FEATURES, in_both.WIDE, in_both.VALUES, 15, in_both.HEADS, 0.5, bias)
    return attention.eval()


@pytest.fixture
def framework():
    return in_both.Framework(
        d2l,
        torch.tensor,
        linear,
        lambda: d2l.AdditiveAttention(in_both.FEATURES, in_both.WIDE, in_both.HIDDENS, 0.5).eval(),
        heads,
        names="",
        signatures={},
        dropout=0.0,
    )


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def softmax_over(scores, lens):
    """Weights by the formula, in float64; a row without a key is 0."""
    scores = np.asarray(scores, np.float64)
    lens = np.asarray(lens, int)
    lens = lens[:, None] if lens.ndim == 1 else lens
    kept = np.arange(scores.shape[-1]) < lens[..., None]
    highest = np.where(kept, scores, -np.inf).max(-1, keepdims=True)
    shares = np.where(kept, np.exp(np.where(kept, scores - highest, -np.inf)), 0)
    total = shares.sum(-1, keepdims=True)
    return np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)


def assert_close(found, expected, **tolerances):
    np.testing.assert_allclose(found.detach().numpy(), expected, **({"rtol": 1e-5, "atol": 1e-6} | tolerances))


# --- arrays


@pytest.mark.parametrize("count", [0, 2])
def test_devices_are_tried(count, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    cpu, gpus = torch.device("cpu"), [torch.device("cuda:0"), torch.device("cuda:1")]
    assert d2l.num_gpus() == count
    assert [d2l.try_gpu(), d2l.try_gpu(1), d2l.try_gpu(2)] == ([*gpus, cpu] if count else [cpu] * 3)
    assert d2l.try_all_gpus() == (gpus if count else [cpu])
    assert (d2l.cpu(), d2l.gpu(1)) == (cpu, gpus[1])


# --- attention


def test_lengths_are_whole_and_not_negative():
    for wrong in (1.5, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"valid_len: got {wrong}"):
            d2l.sequence_mask(torch.zeros(2, 3), torch.tensor([2.0, wrong]))
    attention, x = d2l.AdditiveAttention(3, 3, 7, 0.0), torch.zeros(2, 1, 3)
    for wrong in ([-1, 1], [1.5, 1], [1, 1, 1]):
        with pytest.raises(ValueError, match="valid_lens"):
            attention(x, x, x, torch.tensor(wrong))


def additive(attention, queries, keys, values, lens):
    W_q, W_k, w_v = (layer.weight.detach().double().numpy() for layer in (attention.W_q, attention.W_k, attention.w_v))
    q, k = queries.double().numpy() @ W_q.T, keys.double().numpy() @ W_k.T
    weights = softmax_over(np.tanh(q[:, :, None] + k[:, None]) @ w_v[0], lens)
    return weights @ values.double().numpy(), weights


@pytest.mark.parametrize(
    "make",
    [
        lambda: d2l.AdditiveAttention(2, 11, 7, 0.1),
        lambda: d2l.AdditiveAttention(key_size=2, query_size=11, num_hiddens=7, dropout=0.1),
        lambda: d2l.AdditiveAttention(7, 0.1),
        lambda: d2l.AdditiveAttention(num_hiddens=7, dropout=0.1),
    ],
)
def test_additive_attention_of_both_generations(make):
    attention = make().eval()
    queries, keys, values, lens = torch.randn(3, 1, 11), torch.randn(3, 5, 2), torch.randn(3, 5, 13), [2, 0, 5]
    output = attention(queries, keys, values, torch.tensor(lens))
    expected, weights = additive(attention, queries, keys, values, lens)
    assert_close(output, expected)
    assert_close(attention.attention_weights, weights)
    assert {name: tuple(each.shape) for name, each in attention.state_dict().items()} == {
        "W_k.weight": (7, 2), "W_q.weight": (7, 11), "w_v.weight": (1, 7),
    }  # fmt: skip


def test_a_lazy_layer_trains_with_an_optimizer_that_was_made_before_its_first_call():
    attention = d2l.AdditiveAttention(7, 0.0)
    optimizer = torch.optim.SGD(attention.parameters(), lr=1.0)
    queries, keys = torch.randn(3, 1, 11), torch.randn(3, 5, 2)
    attention(queries, keys, torch.randn(3, 5, 13), None).square().sum().backward()
    before = [each.clone() for each in attention.parameters()]
    optimizer.step()
    assert all(not torch.equal(old, new) for old, new in zip(before, attention.parameters(), strict=True))


def test_attention_says_which_arguments_it_takes():
    with pytest.raises(TypeError, match=r"num_hiddens, dropout.*or.*num_hiddens, dropout"):
        d2l.AdditiveAttention(1, 2, 3)
    with pytest.raises(TypeError, match="num_heads"):
        d2l.MultiHeadAttention(8, heads=2, dropout=0.1)


@pytest.mark.parametrize("queries", [1, 7])
@pytest.mark.parametrize(
    "make",
    [
        lambda: d2l.AdditiveAttention(11, 11, 5, 0.0),
        lambda: d2l.DotProductAttention(0.0),
        lambda: d2l.MultiHeadAttention(11, 11, 13, 6, 3, 0.0),
    ],
)
def test_what_is_hidden_has_no_effect(make, queries):
    attention, lens = make(), torch.tensor([2, 0])
    plain = [torch.randn(2, queries, 11), torch.randn(2, 5, 11), torch.randn(2, 5, 13)]
    expected = attention(*(each.clone().requires_grad_() for each in plain), lens)
    behind = torch.arange(5) >= lens[:, None, None]
    given = [torch.where(lens[:, None, None] == 0, torch.nan, plain[0])]
    given += [torch.where(behind.mT, torch.nan, each) for each in plain[1:]]
    tensors = [each.requires_grad_() for each in given]
    output = attention(*tensors, lens)
    assert torch.equal(output, expected)
    assert not output[1].any()
    output.square().sum().backward()
    for each in (*tensors, *attention.parameters()):
        assert each.grad.isfinite().all()
    for gradient, each in zip((tensors[1].grad, tensors[2].grad), plain[1:], strict=True):
        assert not gradient.masked_select(behind.mT.expand_as(each)).any()


@pytest.mark.parametrize("lens", [[2, 1, 5], [[2], [1], [5]], None])
def test_one_query_has_the_gradients_of_the_formula(lens):
    attention = d2l.AdditiveAttention(2, 11, 7, 0.0)
    query, keys, values = torch.randn(3, 1, 11), torch.randn(3, 5, 2), torch.randn(3, 5, 13)
    attention(query, keys, values, None if lens is None else torch.tensor(lens)).square().sum().backward()
    found = [each.grad.clone() for each in attention.parameters()]
    attention.zero_grad()
    q, k = query @ attention.W_q.weight.T, keys @ attention.W_k.weight.T
    scores = (torch.tanh(q + k) @ attention.w_v.weight[0])[:, None]
    if lens is not None:
        scores = scores.masked_fill(torch.arange(5) >= torch.tensor(lens).reshape(-1, 1, 1), -torch.inf)
    (scores.softmax(-1) @ values).square().sum().backward()
    for each, parameter in zip(found, attention.parameters(), strict=True):
        assert_close(each, parameter.grad.numpy(), atol=1e-5)


def test_sizes_are_checked_when_a_layer_is_made():
    with pytest.raises(ValueError, match="num_hiddens: got 7"):
        d2l.MultiHeadAttention(7, 2, 0.0)
    with pytest.raises(ValueError, match="key_size"):
        d2l.AdditiveAttention(0, 20, 8, 0.1)


def test_dropout_acts_in_training_and_not_on_the_weights_that_are_kept():
    attention = d2l.DotProductAttention(0.5)
    x = torch.ones(2, 1, 3)
    values = torch.eye(31).expand(2, 31, 31)
    output = attention(x, x.expand(2, 31, 3), values)
    assert set((output * 31).round().unique().tolist()) == {0, 2}
    assert_close(attention.attention_weights, np.full((2, 1, 31), 1 / 31))


@pytest.mark.parametrize("size", [6, 7, 32])
def test_positions_are_waves(size):
    encoding = d2l.PositionalEncoding(size, 0, max_len=1000)
    j = np.arange(size)
    angles = np.arange(1000)[:, None] / 10000 ** (2 * (j // 2) / size)
    expected = np.where(j % 2 == 0, np.sin(angles), np.cos(angles))
    assert_close(encoding.P[0], expected, rtol=0, atol=1e-7)
    X = torch.randn(2, 11, size)
    assert_close(encoding(X), X.numpy() + expected[:11], atol=1e-5)
    assert not encoding.state_dict()


def by_hand(attention, queries, keys, values, lens):
    """Additive attention with whatever modules stand in the layer, in the book's order."""
    features = torch.tanh(attention.W_q(queries)[:, :, None] + attention.W_k(keys)[:, None])
    weights = softmax_over(attention.w_v(features)[..., 0].detach(), lens)
    return attention.dropout(torch.from_numpy(weights).float()) @ values


@pytest.mark.parametrize(
    "change",
    [
        lambda attention: attention.w_v.register_forward_hook(lambda module, given, found: 3 * found),
        lambda attention: setattr(attention, "w_v", nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 1))),
        lambda attention: setattr(attention, "dropout", nn.Identity()),
        lambda attention: attention.dropout.register_forward_hook(lambda module, given, found: 2 * found),
        lambda attention: setattr(attention, "W_q", nn.Sequential(nn.Linear(11, 7), nn.ReLU())),
    ],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_hooks_and_other_modules_take_part(change, lazy):
    attention = d2l.AdditiveAttention(7, 0.5) if lazy else d2l.AdditiveAttention(2, 11, 7, 0.5)
    queries, keys, values = torch.randn(3, 3, 11), torch.randn(3, 5, 2), torch.randn(3, 5, 13)
    attention.eval()(queries, keys, values)  # so that lazy layers have a size
    change(attention)
    output = attention(queries, keys, values, torch.tensor([2, 0, 5]))
    assert_close(output, by_hand(attention, queries, keys, values, [2, 0, 5]).detach().numpy(), atol=1e-5)
    keys[0, 2:] = values[0, 2:] = keys[1] = values[1] = queries[1] = torch.nan
    assert torch.equal(attention(queries, keys, values, torch.tensor([2, 0, 5])), output)


@pytest.mark.parametrize("make", [lambda: nn.Identity(), lambda: nn.Dropout1d(0.5)])
def test_dot_product_attention_with_another_dropout(make):
    attention = d2l.DotProductAttention(0.5)
    attention.dropout = make().eval()
    queries, keys, values = torch.randn(3, 3, 11), torch.randn(3, 3, 11), torch.randn(3, 3, 2)
    output = attention(queries, keys, values, torch.tensor([2, 1, 3]))
    mask = torch.arange(3) < torch.tensor([2, 1, 3])[:, None, None]
    assert_close(output, F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask).numpy())


def test_heads_attend_with_what_stands_in_their_attention():
    heads, X, lens = d2l.MultiHeadAttention(6, 2, 0.0), torch.randn(3, 5, 4), torch.tensor([2, 5, 3])
    heads(X, X, X)
    heads.attention = d2l.AdditiveAttention(3, 3, 7, 0.0)
    split = [d2l.transpose_qkv(layer(X).detach(), 2) for layer in (heads.W_q, heads.W_k, heads.W_v)]
    expected, _ = additive(heads.attention, *split, np.repeat(lens.numpy(), 2))
    assert torch.equal(heads.transpose_output(heads.transpose_qkv(X.repeat(1, 1, 2))), X.repeat(1, 1, 2))
    expected = np.concatenate([expected.reshape(3, 2, 5, 3)[:, head] for head in range(2)], axis=-1)
    assert_close(heads(X, X, X, lens), expected @ heads.W_o.weight.detach().numpy().T, atol=1e-5)


# --- translators


def test_an_encoder_that_is_given_lengths_reads_no_padding():
    encoder = d2l.Seq2SeqEncoder(vocab_size=13, embed_size=5, num_hiddens=7, num_layers=2, dropout=0.5).eval()
    X, lens = torch.randint(13, (3, 11)), torch.tensor([11, 4, 1])
    outputs, state = encoder(X, lens)
    assert outputs.shape == (11, 3, 7)
    assert state.shape == (2, 3, 7)
    changed = torch.where(torch.arange(11) < lens[:, None], X, 12)
    for found, again in zip((outputs, state), encoder(changed, lens), strict=True):
        assert torch.equal(found, again)
    with pytest.raises(ValueError, match="valid_len"):
        encoder(X, torch.tensor([11, 0, 1]))
    assert not outputs[4:, 1].any()
    assert_close(state[-1, 1], outputs[3, 1].detach().numpy())


def test_an_encoder_without_lengths_is_a_gru():
    encoder = d2l.Seq2SeqEncoder(13, 5, 7, 2).eval()
    theirs = nn.GRU(5, 7, 2)
    theirs.load_state_dict(encoder.rnn.state_dict())
    X = torch.randint(13, (3, 11))
    expected = theirs(encoder.embedding(X).transpose(0, 1))
    for given in (X, X.float()):
        for found, wanted in zip(encoder(given), expected, strict=True):
            assert_close(found, wanted.detach().numpy())
    with pytest.raises(ValueError, match="whole"):
        encoder(X + 0.5)


NETWORKS = {
    "GRU": lambda: nn.GRU(5, 7, 2),
    "LSTM": lambda: nn.LSTM(5, 7, 2),
    "RNN": lambda: nn.RNN(5, 7),
    "both directions": lambda: nn.GRU(5, 7, 2, bidirectional=True),
    "LSTM in both directions": lambda: nn.LSTM(5, 7, bidirectional=True),
    "of edition 1.0": lambda: d2l.GRU(5, 7, 2),
}


def flat(state):
    return state if isinstance(state, tuple) else (state,)


@pytest.mark.parametrize("name", NETWORKS)
def test_another_network_in_the_place_of_the_gru(name):
    network, X, encoder = NETWORKS[name](), torch.randint(13, (3, 7)), d2l.Seq2SeqEncoder(13, 5, 7, 2)
    encoder.rnn = network
    outputs, state = encoder(X)
    expected, last = network(encoder.embedding(X).transpose(0, 1))
    for found, wanted in zip((outputs, *flat(state)), (expected, *flat(last)), strict=True):
        assert torch.equal(found, wanted)
    lens = [7, 2, 5]  # one sentence after the other, without its padding
    outputs, state = encoder(X, torch.tensor(lens))
    for row, length in enumerate(lens):
        expected, last = network(encoder.embedding(X[row : row + 1, :length]).transpose(0, 1))
        assert_close(outputs[:length, row], expected[:, 0].detach().numpy())
        assert not outputs[length:, row].any()
        for found, wanted in zip(flat(state), flat(last), strict=True):
            assert_close(found[:, row], wanted[:, 0].detach().numpy())


class Steps(nn.Module):
    """A recurrent network of a reader's own, steps first."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(5, 7)

    def forward(self, X):
        states = [self.cell(X[0])]
        for x in X[1:]:
            states.append(self.cell(x, states[-1]))
        return torch.stack(states), states[-1][None]


def test_a_readers_own_network_reads_all_steps_as_in_the_book():
    encoder, X = d2l.Seq2SeqEncoder(13, 5, 7, 1), torch.randint(13, (3, 7))
    encoder.rnn = Steps()
    outputs, state = encoder(X, torch.tensor([7, 2, 5]))
    expected, last = encoder.rnn(encoder.embedding(X).transpose(0, 1))
    assert torch.equal(outputs, expected)
    assert torch.equal(state, last)


class Saved(nn.Module):
    """Modules by the names that they have in the book's classes."""

    def __init__(self, **modules):
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


@pytest.mark.parametrize("network", [lambda: nn.GRU(5, 7, 2), lambda: Saved(rnn=nn.GRU(5, 7, 2))])
def test_the_books_saved_weights_load(network):
    """Of the encoder of either edition, and of the decoder of the chapter, which the four names are."""
    rnn = network()
    decoder = Saved(
        attention=Saved(W_k=nn.Linear(7, 7, False), W_q=nn.Linear(7, 7, False), w_v=nn.Linear(7, 1, False)),
        embedding=nn.Embedding(17, 5),
        rnn=nn.GRU(5 + 7, 7, 2),
        dense=nn.Linear(7, 17),
    )
    saved = Saved(encoder=Saved(embedding=nn.Embedding(13, 5), rnn=rnn), decoder=decoder)
    net = d2l.EncoderDecoder(d2l.Seq2SeqEncoder(13, 5, 7, 2), d2l.Seq2SeqAttentionDecoder(17, 5, 7, 2))
    net.load_state_dict(saved.state_dict())
    X, Y = torch.randint(13, (3, 11)), torch.randint(17, (3, 4))
    outputs, hidden = getattr(rnn, "rnn", rnn)(saved.encoder.embedding(X).transpose(0, 1))
    expected, encoded = [], outputs.transpose(0, 1)
    for token in Y.T:
        context, _ = additive(
            decoder.attention, hidden[-1][:, None].detach(), encoded.detach(), encoded.detach(), [11] * 3
        )
        x = torch.cat([torch.from_numpy(context[:, 0]).float(), decoder.embedding(token)], dim=-1)
        output, hidden = decoder.rnn(x[None], hidden)
        expected.append(decoder.dense(output[0]))
    assert_close(net(X, Y)[0], torch.stack(expected, 1).detach().numpy(), rtol=1e-4, atol=1e-5)
    again = d2l.EncoderDecoder(d2l.Seq2SeqEncoder(13, 5, 7, 2), d2l.Seq2SeqAttentionDecoder(17, 5, 7, 2))
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(X, Y)[0], net(X, Y)[0])


def stepwise(decoder, X, encoded, hidden, lens):
    """The decoder's scores and weights, step by step with PyTorch's own GRU and the formula of the attention."""
    size = decoder.rnn.hidden_size
    gru = nn.GRU(decoder.rnn.input_size + size, size, decoder.rnn.num_layers)
    gru.load_state_dict({name: each for name, each in decoder.rnn.state_dict().items() if not name.startswith("score")})
    scores, weights = [], []
    for token in X.T:
        context, looked_at = additive(decoder.rnn.score, hidden[-1][:, None].detach(), encoded, encoded, lens)
        x = torch.cat([decoder.embedding(token), torch.from_numpy(context[:, 0]).float()], dim=-1)
        output, hidden = gru(x[None], hidden)
        scores.append(decoder.dense(output[0]))
        weights.append(looked_at)
    return torch.stack(scores, 1).detach().numpy(), weights, hidden


def test_the_decoder_looks_before_every_step():
    decoder = d2l.Seq2SeqAttentionDecoder(vocab_size=13, embed_size=5, num_hiddens=7, num_layers=2, dropout=0.4).eval()
    encoded, hidden, lens = torch.randn(11, 3, 7), torch.randn(2, 3, 7), torch.tensor([11, 4, 1])
    X = torch.randint(13, (3, 6))
    state = decoder.init_state((encoded, hidden), lens)
    assert decoder.attention_weights == []
    scores, after = decoder(X, state)
    expected, weights, last = stepwise(decoder, X, encoded.transpose(0, 1), hidden, lens)
    assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    assert len(decoder.attention_weights) == 6
    for found, wanted in zip(decoder.attention_weights, weights, strict=True):
        assert found.shape == (3, 1, 11)
        assert_close(found, wanted, rtol=1e-4)
    assert (len(after), after[0].shape, after[1][0].shape) == (3, (3, 11, 7), (3, 7))
    assert_close(after[1], last.detach().numpy(), rtol=1e-4, atol=1e-5)
    first, middle = decoder(X[:, :2], state)
    second, _ = decoder(X[:, 2:].float(), middle)  # goes on where it stopped
    assert_close(torch.cat([first, second], dim=1), expected, rtol=1e-4, atol=1e-5)


def test_the_exercises_of_the_chapter_change_the_decoder():
    """Scaled dot products in the place of additive attention; an LSTM in the place of the GRU."""
    net = d2l.EncoderDecoder(d2l.Seq2SeqEncoder(13, 5, 7, 2), d2l.Seq2SeqAttentionDecoder(17, 5, 7, 2))
    net.decoder.attention = d2l.DotProductAttention(0.25)
    assert (type(net.decoder.attention), net.decoder.rnn.weight_dropout) == (d2l.DotProductAttention, 0.25)
    assert not [name for name, _ in net.decoder.named_parameters() if "W_q" in name]
    net.encoder.rnn = nn.LSTM(5, 7, 2)
    net.decoder.rnn = AttentionalLSTM(5, 7, 7, net.decoder.attention, 2)
    X, Y, lens = torch.randint(13, (3, 11)), torch.randint(17, (3, 4)), torch.tensor([11, 4, 1])
    encoded, hidden, lens = net.decoder.init_state(net.eval().encoder(X, lens), lens)
    lstm, expected = nn.LSTM(5 + 7, 7, 2), []
    weights = net.decoder.rnn.state_dict()
    lstm.load_state_dict({name: tensor for name, tensor in weights.items() if not name.startswith("score")})
    state = hidden
    for token in Y.T:
        query, keys = state[0][-1][:, None].detach().double().numpy(), encoded.detach().double().numpy()
        context = softmax_over(query @ keys.transpose(0, 2, 1) / 7**0.5, lens) @ keys
        x = torch.cat([net.decoder.embedding(token), torch.from_numpy(context[:, 0]).float()], dim=-1)
        output, state = lstm(x[None], state)
        expected.append(net.decoder.dense(output[0]))
    found, _ = net.decoder(Y, (encoded, hidden, lens))
    assert_close(found, torch.stack(expected, 1).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "module", "fits"),
    [
        ("rnn", nn.LSTM(24, 16, 2), "AttentionalGRU or AttentionalLSTM"),
        ("attention", nn.Linear(3, 3), "AdditiveAttention"),
    ],
)
def test_a_decoder_says_what_its_parts_may_be(name, module, fits):
    decoder = d2l.Seq2SeqAttentionDecoder(13, 8, 16, 2)
    with pytest.raises(TypeError, match=rf"^{name}: got {type(module).__name__}; expected .*{fits}.* in a cell"):
        setattr(decoder, name, module)
    assert sorted(dict(decoder.named_children())) == ["dense", "embedding", "rnn"]


def test_the_loss_of_what_is_said():
    pred, label, lens = torch.randn(3, 4, 5), torch.randint(5, (3, 4)), torch.tensor([4, 2, 0])
    logs = pred.double().log_softmax(-1).numpy()
    each = -np.take_along_axis(logs, label[..., None].numpy(), -1)[..., 0]
    expected = (each * (np.arange(4) < lens[:, None].numpy())).sum(1) / 4
    assert_close(d2l.MaskedSoftmaxCELoss()(pred, label, lens), expected)
    assert_close(d2l.MaskedSoftmaxCELoss()(pred, label.float(), lens.float()), expected)
    weight = torch.rand(5)
    weighted = (each * weight.double().numpy()[label] * (np.arange(4) < lens[:, None].numpy())).sum(1) / 4
    assert_close(d2l.MaskedSoftmaxCELoss(weight=weight)(pred, label, lens), weighted)
    smooth = 0.7 * each - 0.3 * logs.mean(-1)
    smoothed = (smooth * (np.arange(4) < lens[:, None].numpy())).sum(1) / 4
    assert_close(d2l.MaskedSoftmaxCELoss(label_smoothing=0.3)(pred, label, lens), smoothed)


def test_gradients_are_shrunk_together():
    net = nn.Linear(2, 1)
    net.weight.grad, net.bias.grad = torch.tensor([[3.0, 0.0]]), torch.tensor([4.0])
    d2l.grad_clipping(net, 10)
    assert net.bias.grad.tolist() == [4]
    d2l.grad_clipping(net, 1)
    assert_close(net.weight.grad, [[0.6, 0]])
    assert_close(net.bias.grad, [0.8])
    holder = type("Holder", (), {"params": list(net.parameters())})()
    d2l.grad_clipping(holder, 0.5)
    assert_close(net.bias.grad, [0.4])


def test_matrices_are_drawn_anew_and_biases_stay():
    net = nn.Sequential(nn.Linear(3, 500), nn.LazyLinear(2))
    net[0].weight.data.fill_(9)
    net[0].bias.data.fill_(9)
    net.apply(d2l.init_seq2seq)
    bound = math.sqrt(6 / 503)
    assert 0.9 * bound < net[0].weight.abs().max() <= bound
    assert (net[0].bias == 9).all()
    gru = nn.GRU(3, 5)
    gru.weight_hh_l0.data.fill_(9)
    gru.apply(d2l.init_seq2seq)
    assert gru.weight_hh_l0.abs().max() <= math.sqrt(6 / 20)


def test_batches_hold_all_rows_once():
    X = torch.arange(11)
    batches = list(d2l.load_array((X, X * 2), 4))
    assert [len(x) for x, _ in batches] == [4, 4, 3]
    assert all(torch.equal(2 * x, y) for x, y in batches)
    drawn = torch.cat([x for x, _ in batches])
    assert sorted(drawn.tolist()) == X.tolist() != drawn.tolist()
    in_order = d2l.load_array((X,), 4, is_train=False)
    assert len(in_order) == 3
    assert torch.equal(torch.cat([x for (x,) in in_order]), X)


def test_pairs_are_loaded_in_batches(phrasebook):
    batches, source_vocab, target_vocab = d2l.load_data_nmt(batch_size=64, num_steps=10)
    assert len(batches) == 10
    X, X_lens, Y, Y_lens = next(iter(batches))
    assert X.shape == Y.shape == (64, 10)
    assert X_lens.shape == Y_lens.shape == (64,)
    assert X.max() < len(source_vocab)
    assert Y.max() < len(target_vocab)


class OwnDecoder(d2l.AttentionDecoder):
    """As a reader writes it: a loop over attention and a cell."""

    def __init__(self, vocab_size, embed_size, num_hiddens, attention):
        super().__init__()
        self.attention = attention
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.cell = nn.GRUCell(embed_size + num_hiddens, num_hiddens)
        self.dense = nn.Linear(num_hiddens, vocab_size)

    def init_state(self, enc_outputs, enc_valid_lens, *args):
        outputs, hidden = enc_outputs
        return outputs.permute(1, 0, 2), hidden[-1], enc_valid_lens

    def forward(self, X, state):
        encoded, hidden, lens = state
        outputs, self._weights = [], []
        for x in self.embedding(X).permute(1, 0, 2):
            context = self.attention(hidden.unsqueeze(1), encoded, encoded, lens)
            hidden = self.cell(torch.cat([x, context[:, 0]], -1), hidden)
            outputs.append(self.dense(hidden))
            self._weights.append(self.attention.attention_weights)
        return torch.stack(outputs, 1), [encoded, hidden, lens]

    @property
    def attention_weights(self):
        return self._weights


@pytest.mark.parametrize("kind", ["drop-in", "own, lazy", "own, dot"])
def test_four_sentences_are_learnt(kind, phrasebook, figures, capsys):
    """The textbook's experiment in small: the pairs up to the last of its sentences, one batch of them."""
    batches, source_vocab, target_vocab = d2l.load_data_nmt(batch_size=18, num_steps=10, num_examples=18)
    if kind == "drop-in":
        decoder = d2l.Seq2SeqAttentionDecoder(len(target_vocab), 32, 32, 2, 0.1)
    else:
        attention = {
            "own, lazy": lambda: d2l.AdditiveAttention(32, 0.1),
            "own, dot": lambda: d2l.DotProductAttention(0.1),
        }[kind]()
        decoder = OwnDecoder(len(target_vocab), 32, 32, attention)
    net = d2l.EncoderDecoder(d2l.Seq2SeqEncoder(len(source_vocab), 32, 32, 2, 0.1), decoder)
    d2l.train_seq2seq(net, batches, 0.01, 60, target_vocab, d2l.cpu())
    assert "tokens/sec on cpu" in capsys.readouterr().out
    for english, french in FOUR.items():
        said, weights = d2l.predict_seq2seq(net, english, source_vocab, target_vocab, 10, d2l.cpu(), True)
        assert bleu_k(said, french, 2) == 1
        assert len(weights) == len(french.split()) + 1  # <eos> too
        pictured = d2l.stack([step[0] for step in weights], 2)  # of one step, one sentence and one query each
        assert pictured.shape == (1, 1, len(weights), 10)
        assert (pictured[..., len(english.split()) + 1 :] == 0).all()
        assert_close(pictured.sum(-1), np.ones((1, 1, len(weights))))
        d2l.show_heatmaps(pictured.cpu(), xlabel="Key positions", ylabel="Query positions")
    assert d2l.predict_seq2seq(net, "go .", source_vocab, target_vocab, 10, d2l.cpu())[1] == []


def test_a_sentence_longer_than_the_steps_is_cut(phrasebook):
    _, source_vocab, target_vocab = d2l.load_data_nmt(18, 3, 18)
    net = d2l.EncoderDecoder(
        d2l.Seq2SeqEncoder(len(source_vocab), 5, 7, 1), d2l.Seq2SeqAttentionDecoder(len(target_vocab), 5, 7, 1)
    )
    said, _ = d2l.predict_seq2seq(net, "go go go go go .", source_vocab, target_vocab, 3, d2l.cpu())
    assert len(said.split()) <= 3


# --- learning


def test_a_module_learns_and_draws(figures):
    class Line(d2l.Module):
        def __init__(self, lr):
            super().__init__(plot_train_per_epoch=1)
            self.save_hyperparameters()
            self.net = nn.LazyLinear(1)

        def loss(self, y_hat, y):
            return (y_hat - y).square().mean()

    class Points(d2l.DataModule):
        def __init__(self, batch_size):
            super().__init__()
            self.save_hyperparameters()
            self.X = torch.linspace(-1, 1, 24)[:, None]

        def get_dataloader(self, train):
            return self.get_tensorloader((self.X, 3 * self.X + 1), train, slice(0, 16) if train else slice(16, None))

    model, data, trainer = Line(lr=0.1), Points(batch_size=4), d2l.Trainer(max_epochs=30)
    model.apply_init([data.X], d2l.init_seq2seq)
    trainer.fit(model, data)
    assert_close(model.net.weight, [[3]], atol=0.3)
    assert_close(model.net.bias, [1], atol=0.3)
    assert (trainer.steps, trainer.progress) == (120, 30)
    assert [len(model.board.data[key]) for key in ("train_loss", "val_loss")] == [30, 30]
    assert model.board.data["val_loss"][-1][0] == 30
    assert (model.lr, model.trainer, model.board.xlim) == (0.1, trainer, [0, 30])


def test_a_module_draws_for_a_trainer():
    with pytest.raises(RuntimeError, match="trainer"):
        d2l.Module().plot("loss", torch.tensor(1.0), train=True)
    with pytest.raises(NotImplementedError):
        d2l.DataModule().train_dataloader()


def test_a_trainer_clips():
    class Steep(d2l.Module):
        def __init__(self):
            super().__init__()
            self.w, self.lr = nn.Parameter(torch.zeros(1)), 1.0

        def forward(self, X):
            return X * self.w

        def loss(self, y_hat, y):
            return 1000 * y_hat.sum()

    class One(d2l.DataModule):
        def get_dataloader(self, train):
            return d2l.load_array((torch.ones(1), torch.ones(1)), 1) if train else None

    model = Steep()
    model.board.display = False
    d2l.Trainer(max_epochs=1, gradient_clip_val=0.5).fit(model, One())
    assert_close(model.w, [-0.5], atol=1e-4)


def test_the_second_generation_translates(phrasebook, figures):
    data = d2l.MTFraEng(batch_size=18, num_train=18, num_val=5)
    assert data.num_steps == 9
    assert [len(part) for part in (data.train_dataloader(), data.val_dataloader())] == [1, 1]
    encoder = d2l.Seq2SeqEncoder(len(data.src_vocab), 32, 32, 2, 0.1)
    decoder = d2l.Seq2SeqAttentionDecoder(len(data.tgt_vocab), 32, 32, 2, 0.1)
    model = d2l.Seq2Seq(encoder, decoder, tgt_pad=data.tgt_vocab["<pad>"], lr=0.01)
    assert isinstance(model, d2l.EncoderDecoder)
    d2l.Trainer(max_epochs=60, gradient_clip_val=1, num_gpus=1).fit(model, data)
    preds, none = model.predict_step(data.build(list(FOUR), list(FOUR.values())), d2l.cpu(), data.num_steps)
    assert preds.shape == (4, 9)
    assert none == []
    for pred, french in zip(preds, FOUR.values(), strict=True):
        said = data.tgt_vocab.to_tokens(pred)
        assert said[: said.index("<eos>")] == french.split()
    _, weights = model.predict_step(data.build(["go ."], ["va !"]), d2l.cpu(), data.num_steps, True)
    assert [tuple(seen.shape) for step in weights for seen in step] == [(1, 1, 9)] * 9
    with pytest.raises(ValueError, match="tgt_sentences"):
        data.build(["go ."], [])


def test_the_loss_of_the_second_generation_counts_no_padding():
    model = d2l.Seq2Seq(nn.Identity(), nn.Identity(), tgt_pad=1, lr=0.1)
    Y_hat, Y = torch.randn(2, 3, 5), torch.tensor([[2, 3, 1], [4, 1, 1]])
    logs = Y_hat.double().log_softmax(-1).numpy()
    assert_close(model.loss(Y_hat, Y), -(logs[0, 0, 2] + logs[0, 1, 3] + logs[1, 0, 4]) / 3)


@pytest.mark.parametrize(
    ("name", "why"), [("BERTModel", "attention chapters.*d2l"), ("NWKernelRegression", "cell of the chapter")]
)
def test_what_it_does_not_have_it_says(name, why):
    with pytest.raises(AttributeError, match=f"'dikkat.textbook.torch' has no attribute '{name}': .*{why}"):
        getattr(d2l, name)


SIGNATURES = {
    "masked_softmax": "X, valid_lens",
    "sequence_mask": "X, valid_len, value=0",
    "DotProductAttention": "dropout",
    "PositionalEncoding": "num_hiddens, dropout, max_len=1000",
    "Seq2SeqEncoder": "vocab_size, embed_size, num_hiddens, num_layers, dropout=0",
    "Seq2SeqAttentionDecoder": "vocab_size, embed_size, num_hiddens, num_layers, dropout=0",
    "EncoderDecoder": "encoder, decoder",
    "GRU": "num_inputs, num_hiddens, num_layers, dropout=0",
    "load_array": "data_arrays, batch_size, is_train=True",
    "load_data_nmt": "batch_size, num_steps, num_examples=600",
    "build_array_nmt": "lines, vocab, num_steps",
    "tokenize_nmt": "text, num_examples=None",
    "truncate_pad": "line, num_steps, padding_token",
    "bleu": "pred_seq, label_seq, k",
    "Vocab": "tokens=None, min_freq=0, reserved_tokens=None",
    "train_seq2seq": "net, data_iter, lr, num_epochs, tgt_vocab, device",
    "predict_seq2seq": "net, src_sentence, src_vocab, tgt_vocab, num_steps, device, save_attention_weights=False",
    "grad_clipping": "net, theta",
    "show_heatmaps": "matrices, xlabel, ylabel, titles=None, figsize=(2.5, 2.5), cmap='Reds'",
    "transpose_qkv": "X, num_heads",
    "transpose_output": "X, num_heads",
    "Module": "plot_train_per_epoch=2, plot_valid_per_epoch=1",
    "DataModule": "root='../data', num_workers=4",
    "Trainer": "max_epochs, num_gpus=0, gradient_clip_val=0",
    "MTFraEng": "batch_size, num_steps=9, num_train=512, num_val=128",
    "Seq2Seq": "encoder, decoder, tgt_pad, lr",
}


def test_signatures_are_the_books():
    found = {}
    for name in SIGNATURES:
        parameters = inspect.signature(getattr(d2l, name)).parameters.values()
        plain = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
        found[name] = str(inspect.Signature(plain))[1:-1]
    assert found == SIGNATURES
