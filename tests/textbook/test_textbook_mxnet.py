"""The textbook's helper library on MXNet, beside NumPy in float64 and PyTorch's own modules."""

import in_both
import matplotlib
import numpy as onp
import pytest
import torch
from in_both import *  # noqa: F403
from in_both import BATCH, FEATURES, FRENCH, HIDDENS, KEYS, QUERIES, VALUES, WIDE, assert_close, normal
from torch.nn import functional as F

pytest.importorskip("mxnet", reason="MXNet needs Python 3.11 or older, and an environment of its own")

from dikkat.textbook import mxnet as d2l

# isort: split
import mxnet
from mxnet import autograd, init, np, npx
from mxnet.gluon import nn, rnn

matplotlib.use("Agg")
npx.set_np()


def arrays(*shapes):
    return [np.array(normal(*shape)) for shape in shapes]


def linear(layer, x):
    out = x.astype(onp.float64) @ layer.weight.data().asnumpy().T
    return out if layer.bias is None else out + layer.bias.data().asnumpy()


def given(lens):
    return None if lens is None else np.array(lens)


def begun(block):
    block.initialize(init.Uniform(0.5))
    return block


def heads(bias):
    attention = begun(d2l.MultiHeadAttention(15, in_both.HEADS, dropout=0.5, use_bias=bias))
    attention(*arrays((BATCH, QUERIES, WIDE), (BATCH, KEYS, FEATURES), (BATCH, KEYS, VALUES)))  # which makes weights
    for layer in (attention.W_q, attention.W_k, attention.W_v, attention.W_o):
        if bias:
            layer.bias.set_data(np.array(normal(15)))
    return attention


@pytest.fixture
def framework():
    return in_both.Framework(
        d2l,
        lambda array: np.array(array, dtype=array.dtype),
        linear,
        lambda: begun(d2l.AdditiveAttention(num_hiddens=HIDDENS, dropout=0.5)),
        heads,
        names="randn swapaxes",
        signatures={
            "AdditiveAttention": "num_hiddens, dropout, **kwargs",
            "MultiHeadAttention": "num_hiddens, num_heads, dropout, use_bias=False, **kwargs",
            "PositionalEncoding": "num_hiddens, dropout, max_len=1000",
            "MaskedSoftmaxCELoss": "",
            "predict_seq2seq": (
                "net, src_sentence, src_vocab, tgt_vocab, num_steps, device, save_attention_weights=False"
            ),
            "grad_clipping": "net, theta",
        },
    )


# --- attention


def test_the_chapters_page_shows_the_same_digits():
    """What the book prints under its cells, with MXNet's first random numbers."""
    mxnet.random.seed(0)
    weights = d2l.masked_softmax(np.random.uniform(size=(2, 2, 4)), d2l.tensor([2, 3]))
    assert_close(weights[0, 0], [0.488994, 0.511006, 0, 0], 1e-6)
    attention, keys, values = d2l.AdditiveAttention(8, 0.1), d2l.ones((2, 10, 2)), np.arange(40).reshape(1, 10, 4)
    output = begun(attention)(d2l.normal(0, 1, (2, 1, 20)), keys, values.repeat(2, axis=0), d2l.tensor([2, 6]))
    assert_close(output, [[[2, 3, 4, 5]], [[10, 11, 12, 13]]])


def test_weights_are_dropped_in_training_alone():
    attention = d2l.DotProductAttention(dropout=0.9)
    tensors = [*arrays((BATCH, QUERIES, FEATURES), (BATCH, KEYS, FEATURES)), np.ones((BATCH, KEYS, VALUES))]
    assert_close(attention(*tensors), onp.ones((BATCH, QUERIES, VALUES)))
    with autograd.train_mode():
        dropped = attention(*tensors).asnumpy()
    assert not onp.allclose(dropped, 1, atol=0.01)
    assert_close(attention.attention_weights.sum(-1), onp.ones((BATCH, QUERIES)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: d2l.DotProductAttention(0),
        lambda: d2l.AdditiveAttention(13, 0),
        lambda: d2l.MultiHeadAttention(15, 3, 0),
    ],
)
def test_what_is_hidden_has_no_effect(make):
    attention, lens = begun(make()), np.array([2, 0])
    tensors = arrays((BATCH, QUERIES, FEATURES), (BATCH, KEYS, FEATURES), (BATCH, KEYS, VALUES))
    expected = attention(*tensors, lens).asnumpy()
    for each in tensors[1:]:
        each[0, 2:] = each[1] = onp.nan
    for each in tensors:
        each.attach_grad()
    with autograd.record():
        output = attention(*tensors, lens)
    output.backward()
    assert_close(output, expected)
    onp.testing.assert_array_equal(output[1].asnumpy(), onp.zeros(output.shape[1:]))
    for gradient in [*(each.grad for each in tensors), *(p.grad() for p in attention.collect_params().values())]:
        assert onp.isfinite(gradient.asnumpy()).all()


# --- encoders and decoders


def encoder_of(vocab=17, layers=2, hiddens=HIDDENS):
    return begun(d2l.Seq2SeqEncoder(vocab, 5, hiddens, layers))


@pytest.mark.parametrize("lens", [None, [2, 7, 5]])
def test_an_encoder_is_a_gru_that_reads_no_padding(lens):
    encoder, X = encoder_of(), onp.random.default_rng(0).integers(17, size=(3, 7))
    encoder(np.array(X))  # which makes its weights
    peer = torch.nn.GRU(5, HIDDENS, num_layers=2)
    for layer in range(2):
        for ours, theirs in (("i2h", "ih"), ("h2h", "hh")):
            for kind in ("weight", "bias"):
                value = normal(*getattr(peer, f"{kind}_{theirs}_l{layer}").shape, seed=layer) / 2
                getattr(encoder.rnn, f"l{layer}_{ours}_{kind}").set_data(np.array(value))
                getattr(peer, f"{kind}_{theirs}_l{layer}").data = torch.tensor(value)
    outputs, state = encoder(np.array(X), given(lens))
    embedded = torch.tensor(encoder.embedding.weight.data().asnumpy()[X]).transpose(0, 1)
    packed = torch.nn.utils.rnn.pack_padded_sequence(embedded, lens or [7] * 3, enforce_sorted=False)
    expected, expected_state = peer(packed)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(expected, total_length=7)
    assert_close(outputs, expected.detach())
    assert len(state) == 1
    assert_close(state[0], expected_state.detach())


def test_an_encoder_refuses_parts_of_tokens():
    encoder, X = encoder_of(), np.array([[3, 4, 5, 1, 1], [6, 7, 8, 9, 2]])
    with pytest.raises(ValueError, match=r"X: got 3\.5"):
        encoder(X + 0.5)
    with pytest.raises(ValueError, match=r"valid_len: got 1\.5"):
        encoder(X, np.array([1.5, 2]))


class Glance(d2l.AttentionDecoder):
    """A decoder of a reader's own: it moves one layer on a word, and then looks at the sentence with the new state."""

    def __init__(self, words, width):
        super().__init__()
        self.glances = []
        self.words = nn.Embedding(words, 3)
        self.layer = rnn.GRU(width)
        self.looking = d2l.AdditiveAttention(11, 0.25)
        self.choice = nn.Dense(words)

    def init_state(self, found, lens):
        sentence, (below,) = found
        return {"sentence": sentence.transpose(1, 0, 2), "lens": lens, "top": below[-1]}

    def forward(self, tokens, state):
        said, self.glances, top, sentence = [], [], state["top"], state["sentence"]
        for place in range(tokens.shape[1]):
            (top,), _ = self.layer(self.words(tokens[:, place : place + 1].T), [top.reshape(1, len(top), -1)])
            seen = self.looking(top.reshape(len(top), 1, -1), sentence, sentence, state["lens"])
            said.append(self.choice(np.concatenate([seen[:, 0], top], axis=-1)))
            self.glances.append(self.looking.attention_weights)
        return np.stack(said, axis=1), {**state, "top": top}

    @property
    def attention_weights(self):
        return self.glances


@pytest.mark.parametrize("lens", [None, [7, 2, 5]])
def test_a_readers_decoder_steps_as_it_runs(lens):
    encoder, decoder = encoder_of(), begun(Glance(19, HIDDENS))
    state = decoder.init_state(encoder(np.ones((3, 7)), given(lens)), given(lens))
    tokens = np.array([[2, 5], [2, 7], [3, 3]])
    scores, _ = decoder(tokens, state)
    weights = decoder.attention_weights
    assert scores.shape == (3, 2, 19)
    assert [each.shape for each in weights] == [(3, 1, 7)] * 2
    if lens:
        assert float(weights[1][1, 0, 2:].sum()) == 0
    for step in range(2):
        one, state = decoder(tokens[:, step : step + 1], state)
        assert_close(one[:, 0], scores[:, step].asnumpy())


# --- training


def test_a_readers_translator_learns_the_four_sentences(sentences, capsys):
    mxnet.random.seed(0)
    onp.random.seed(0)
    batches, source_vocab, target_vocab = d2l.load_data_nmt(batch_size=3, num_steps=7)
    assert sorted(len(batch[0]) for batch in batches) == [1, 3]
    assert [each.shape[1:] for each in next(iter(batches))] == [(7,), (), (7,), ()]
    net = d2l.EncoderDecoder(d2l.Seq2SeqEncoder(len(source_vocab), 16, 16, 1), Glance(len(target_vocab), 16))
    d2l.train_seq2seq(net, batches, 0.02, 60, target_vocab, d2l.try_gpu())
    assert "tokens/sec on cpu(0)" in capsys.readouterr().out
    ask = source_vocab, target_vocab, 7, d2l.try_gpu()
    for english, french in FRENCH.items():
        assert d2l.predict_seq2seq(net, english, *ask)[0] == french
    _, weights = d2l.predict_seq2seq(net, "go .", *ask, True)
    assert [len(step) for step in weights] == [1, 1, 1]  # two words and the end
    looked_at = onp.stack([step[0].asnumpy() for step in weights])
    assert looked_at.shape == (3, 1, 1, 7)
    assert_close(looked_at[..., :3].sum(-1), onp.ones((3, 1, 1)))
    onp.testing.assert_array_equal(looked_at[..., 3:], 0)


def test_a_loss_has_whole_labels():
    with pytest.raises(ValueError, match=r"label: got 0\.5"):
        d2l.MaskedSoftmaxCELoss()(np.zeros((2, 3, 5)), np.full((2, 3), 0.5), np.array([1, 2]))


def test_the_first_generations_loss():
    scores, labels, lens = normal(2, 3, 19), onp.array([[4, 5, 1], [6, 1, 1]]), onp.array([2, 1])
    each = F.cross_entropy(torch.tensor(scores).transpose(1, 2), torch.tensor(labels), reduction="none").numpy()
    loss = d2l.MaskedSoftmaxCELoss()(np.array(scores), np.array(labels), np.array(lens))
    assert_close(loss, (each * (onp.arange(3) < lens[:, None])).sum(1) / 3)


@pytest.mark.parametrize("theta", [0.5, 1e6])
def test_gradients_are_clipped_together(theta):
    net = begun(nn.Dense(3, in_units=5))
    with autograd.record():
        loss = (net(np.array(normal(7, 5))) ** 2).sum()
    loss.backward()
    before = onp.concatenate([each.grad().asnumpy().ravel() for each in net.collect_params().values()])
    d2l.grad_clipping(net, theta)
    after = onp.concatenate([each.grad().asnumpy().ravel() for each in net.collect_params().values()])
    onp.testing.assert_allclose(after, before * min(1, theta / onp.linalg.norm(before)), rtol=1e-5)


# --- arrays and the rest


def test_random_arrays_and_devices():
    assert d2l.normal(0, 1, (2, 1)).shape == d2l.rand(2, 1).shape == d2l.randn(2, 1).shape == (2, 1)
    assert d2l.to(d2l.ones(3), d2l.cpu()).ctx == d2l.cpu()
