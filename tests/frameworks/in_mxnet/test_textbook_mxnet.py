"""The textbook's helper library on MXNet, beside NumPy in float64 and PyTorch's own modules."""

import inspect
import math

import matplotlib
import numpy as onp
import pytest
import torch
from torch.nn import functional as F

from dikkat.textbook import mxnet as d2l
from dikkat.textbook import text

# isort: split
import mxnet
from mxnet import autograd, init, np, npx
from mxnet.gluon import nn, rnn

matplotlib.use("Agg")
npx.set_np()
BATCH, QUERIES, KEYS, FEATURES, VALUES, HIDDENS = 2, 3, 5, 7, 11, 13

LENS = [None, [2, 5], [[1, 3, 5], [2, 4, 1]]]


def normal(*shape, seed=0):
    return onp.random.default_rng([seed, *shape]).normal(size=shape).astype(onp.float32)


def arrays(*shapes):
    return [np.array(normal(*shape)) for shape in shapes]


def visible(lens, queries=QUERIES):
    """Booleans (BATCH, queries, KEYS)."""
    if lens is None:
        return onp.ones((BATCH, queries, KEYS), bool)
    each = onp.asarray(lens).reshape(BATCH, -1, 1)
    return onp.broadcast_to(onp.arange(KEYS) < each, (BATCH, queries, KEYS))


def softmax(scores, shown):
    shares = onp.where(shown, onp.exp(scores.astype(onp.float64)), 0)
    return shares / onp.where(shares.sum(-1, keepdims=True) == 0, 1, shares.sum(-1, keepdims=True))


def linear(layer, x):
    out = x.astype(onp.float64) @ layer.weight.data().asnumpy().T
    return out if layer.bias is None else out + layer.bias.data().asnumpy()


def close(found, expected, atol=1e-5):
    onp.testing.assert_allclose(found.asnumpy() if isinstance(found, np.ndarray) else found, expected, atol=atol)


def given(lens, dtype="float32"):
    return None if lens is None else np.array(lens, dtype=dtype)


def begun(block):
    block.initialize(init.Uniform(0.5))
    return block


# --- attention


@pytest.mark.parametrize("lens", LENS)
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_masked_softmax(lens, dtype):
    scores = normal(BATCH, QUERIES, KEYS)
    close(d2l.masked_softmax(np.array(scores), given(lens, dtype)), softmax(scores, visible(lens)), 1e-6)


def test_masked_softmax_of_an_empty_row_is_zero_and_low_scores_count():
    low = onp.array([[[-3e8, -1e8, -5e6]], [[1.0, 2.0, 3.0]]], onp.float32)
    scores = np.array(low)
    onp.testing.assert_array_equal(d2l.masked_softmax(scores, np.array([2, 0])).asnumpy(), [[[0, 1, 0]], [[0, 0, 0]]])
    onp.testing.assert_array_equal(scores.asnumpy(), low)


def test_a_length_above_the_keys_means_all():
    close(d2l.masked_softmax(np.zeros((1, 1, 4)), np.array([9])), [[[0.25] * 4]])


@pytest.mark.parametrize(("lens", "named"), [([1.5, 2], "valid_lens"), ([1, 2, 3], "valid_lens"), ([-1, 2], "-1")])
def test_masked_softmax_refuses(lens, named):
    with pytest.raises(ValueError, match=named):
        d2l.masked_softmax(np.zeros((2, 1, 4)), np.array(lens))


@pytest.mark.parametrize("lens", LENS)
def test_additive_attention(lens):
    queries, keys, values = normal(BATCH, QUERIES, 17), normal(BATCH, KEYS, FEATURES), normal(BATCH, KEYS, VALUES)
    attention = begun(d2l.AdditiveAttention(num_hiddens=HIDDENS, dropout=0.5))
    output = attention(*map(np.array, (queries, keys, values)), given(lens))
    hidden = onp.tanh(linear(attention.W_q, queries)[:, :, None] + linear(attention.W_k, keys)[:, None])
    weights = softmax(linear(attention.w_v, hidden)[..., 0], visible(lens))
    close(attention.attention_weights, weights)
    close(output, weights @ values)


def test_weights_are_dropped_in_training_alone():
    attention = d2l.DotProductAttention(dropout=0.9)
    tensors = [*arrays((BATCH, QUERIES, FEATURES), (BATCH, KEYS, FEATURES)), np.ones((BATCH, KEYS, VALUES))]
    close(attention(*tensors), onp.ones((BATCH, QUERIES, VALUES)))
    with autograd.train_mode():
        dropped = attention(*tensors).asnumpy()
    assert not onp.allclose(dropped, 1, atol=0.01)
    close(attention.attention_weights.sum(-1), onp.ones((BATCH, QUERIES)))


@pytest.mark.parametrize("lens", LENS)
def test_dot_product_attention(lens):
    shapes = (BATCH, QUERIES, FEATURES), (BATCH, KEYS, FEATURES), (BATCH, KEYS, VALUES)
    output = d2l.DotProductAttention(dropout=0.5)(*arrays(*shapes), given(lens))
    peers = [torch.tensor(normal(*shape)) for shape in shapes]
    close(output, F.scaled_dot_product_attention(*peers, attn_mask=torch.tensor(visible(lens))))


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
    close(output, expected)
    onp.testing.assert_array_equal(output[1].asnumpy(), onp.zeros(output.shape[1:]))
    for gradient in [*(each.grad for each in tensors), *(p.grad() for p in attention.collect_params().values())]:
        assert onp.isfinite(gradient.asnumpy()).all()


@pytest.mark.parametrize("lens", LENS)
@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention(lens, bias):
    heads, hiddens = 3, 15
    attention = begun(d2l.MultiHeadAttention(hiddens, heads, dropout=0.5, use_bias=bias))
    queries, keys, values = normal(BATCH, QUERIES, 17), normal(BATCH, KEYS, FEATURES), normal(BATCH, KEYS, VALUES)
    tensors = [*map(np.array, (queries, keys, values))]
    attention(*tensors)  # which makes its weights
    for layer in (attention.W_q, attention.W_k, attention.W_v, attention.W_o):
        if bias:
            layer.bias.set_data(np.array(normal(hiddens)))
    output = attention(*tensors, given(lens))
    projected = (linear(attention.W_q, queries), linear(attention.W_k, keys), linear(attention.W_v, values))
    split = [torch.tensor(x).unflatten(-1, (heads, -1)).transpose(1, 2) for x in projected]
    shown = torch.tensor(visible(lens))[:, None]
    joined = F.scaled_dot_product_attention(*split, attn_mask=shown).transpose(1, 2).flatten(-2)
    close(output, linear(attention.W_o, joined.numpy()))
    assert attention.attention.attention_weights.shape == (BATCH * heads, QUERIES, KEYS)


def test_heads_are_split_and_joined():
    X = onp.arange(2 * 3 * 10).reshape(2, 3, 10)
    split = d2l.transpose_qkv(np.array(X), 5)
    assert split.shape == (10, 3, 2)
    close(split[7], X[1, :, 4:6])  # the second sentence's third head
    close(d2l.transpose_output(split, 5), X)


@pytest.mark.parametrize("shape", [(QUERIES, KEYS), (KEYS,)])
def test_kernel_regression(shape):
    net = begun(d2l.NWKernelRegression())
    queries, keys, values = normal(QUERIES), normal(*shape), normal(*shape, seed=1)
    w = float(net.w.data())
    weights = softmax(-(((queries[:, None] - keys) * w) ** 2) / 2, onp.ones((QUERIES, KEYS), bool))
    with autograd.record():
        output = net(*map(np.array, (queries, keys, values)))
    output.backward()
    close(output, (weights * values).sum(-1))
    close(net.attention_weights, weights)
    assert abs(float(net.w.grad())) > 0


def test_positions_are_sines_and_cosines():
    encoding = d2l.PositionalEncoding(6, dropout=0.5, max_len=11)
    X = normal(2, 5, 6)
    added = encoding(np.array(X)).asnumpy() - X
    for place, feature in ((0, 0), (3, 1), (4, 4), (4, 5)):
        angle = place / 10000 ** (feature // 2 * 2 / 6)
        assert added[1, place, feature] == pytest.approx((math.cos if feature % 2 else math.sin)(angle), abs=1e-5)
    assert encoding.P.shape == (1, 11, 6)


def test_sequence_mask_leaves_its_argument():
    X = np.array(normal(2, 3, 5))
    masked = d2l.sequence_mask(X, np.array([1, 3]), value=-1)
    close(masked[0, 1:], -onp.ones((2, 5)))
    close(masked[1], normal(2, 3, 5)[1])
    close(X, normal(2, 3, 5))


# --- encoders and decoders


def as_torch(block, layer):
    """The weights of a layer of a dikkat block, which has PyTorch's names."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return {name: torch.tensor(getattr(block, f"{name}_l{layer}").data().asnumpy()) for name in names}


def test_gru():
    gru, inputs = begun(d2l.GRU(HIDDENS, num_layers=2)), normal(7, 3, VALUES)
    gru(np.array(inputs))  # which makes its weights
    peer = torch.nn.GRU(VALUES, HIDDENS, num_layers=2)
    for layer in range(2):
        for ours, theirs in (("i2h", "ih"), ("h2h", "hh")):
            for kind in ("weight", "bias"):
                value = normal(*getattr(peer, f"{kind}_{theirs}_l{layer}").shape, seed=layer) / 2
                getattr(gru.rnn, f"l{layer}_{ours}_{kind}").set_data(np.array(value))
                getattr(peer, f"{kind}_{theirs}_l{layer}").data = torch.tensor(value)
    outputs, state = gru(np.array(inputs))
    expected, expected_state = peer(torch.tensor(inputs))
    close(outputs, expected.detach())
    close(state, expected_state.detach())
    again, _ = gru(np.array(inputs), state)
    close(again, peer(torch.tensor(inputs), expected_state)[0].detach())


def translator(vocab=17, layers=2):
    sizes = {"embed_size": 5, "num_hiddens": HIDDENS, "num_layers": layers}
    return d2l.Seq2SeqEncoder(vocab, **sizes), d2l.Seq2SeqAttentionDecoder(vocab + 2, **sizes)


def test_an_encoder_reads_no_padding():
    encoder, _ = translator()
    X, lens = np.array([[3, 4, 5, 1, 1], [6, 7, 8, 9, 2]]), np.array([3, 5])
    outputs, state = encoder(X, lens)
    short, short_state = encoder(X[:1, :3], lens[:1])
    close(outputs[:3, :1], short.asnumpy())
    close(outputs[3:, 0], onp.zeros((2, HIDDENS)))
    close(state[0][:, :1], short_state[0].asnumpy())


def test_an_encoders_state_is_that_of_both_generations():
    encoder, _ = translator()
    _, state = encoder(np.zeros((4, 7)))
    assert len(state) == 1
    assert state[0].shape == (2, 4, HIDDENS)
    close(state[-1], state[0][-1].asnumpy())


def test_a_decoder_steps_as_it_runs():
    encoder, decoder = translator()
    X, lens = np.array([[3, 4, 5, 1], [6, 7, 8, 9]]), np.array([3, 4])
    before = decoder.init_state(encoder(X, lens), lens)
    Y = np.array([[2, 5, 6], [2, 7, 3]])
    scores, after = decoder(Y, before)
    weights = decoder.attention_weights
    assert [each.shape for each in weights] == [(2, 1, 4)] * 3
    assert float(weights[1][0, 0, 3]) == 0
    state = before
    for step in range(3):
        one, state = decoder(Y[:, step : step + 1], state)
        close(one[:, 0], scores[:, step].asnumpy())
        close(decoder.attention_weights[0], weights[step].asnumpy())
    close(state[1][0], after[1][0].asnumpy())


def test_a_step_of_the_decoder_is_that_of_the_formula():
    """Additive attention with the top layer's state, its context behind the embedding, and PyTorch's cells."""
    encoder, decoder = translator()
    X, lens = np.array([[3, 4, 5, 1], [6, 7, 8, 9]]), np.array([3, 4])
    encoded, hidden = encoder(X, lens)
    scores, _ = decoder(np.array([[2], [3]]), decoder.init_state((encoded, hidden), lens))
    score, values, states = decoder.rnn.score, encoded.asnumpy().swapaxes(0, 1), hidden[0].asnumpy()
    weight = {name: getattr(score, name).weight.data().asnumpy() for name in ("W_q", "W_k", "w_v")}
    hiddens = onp.tanh((states[-1] @ weight["W_q"].T)[:, None, None] + (values @ weight["W_k"].T)[:, None])
    shown = onp.arange(4) < onp.array([[[3]], [[4]]])
    context = softmax((hiddens @ weight["w_v"].T)[..., 0], shown) @ values
    embedded = decoder.embedding.weight.data().asnumpy()[[2, 3]]
    x = torch.tensor(onp.hstack([embedded, context[:, 0]]).astype(onp.float32))
    for layer, state in enumerate(states):
        peer = torch.nn.GRUCell(x.shape[1], HIDDENS)
        peer.load_state_dict(as_torch(decoder.rnn, layer))
        x = peer(x, torch.tensor(state))
    close(scores[:, 0], linear(decoder.dense, x.detach().numpy()))


class Glance(d2l.AttentionDecoder):
    """A decoder of a reader's own: it moves one layer on a word, and then looks at the sentence with the new state."""

    def __init__(self, words, width, second=False):
        super().__init__()
        self.second, self.glances = second, []
        self.words = nn.Embedding(words, 3)
        self.layer = rnn.GRU(width)
        self.looking = d2l.AdditiveAttention(11, 0.25)
        self.choice = nn.Dense(words)

    def init_state(self, found, lens):
        sentence, below = found
        top = below[-1] if self.second else below[0][-1]
        return {"sentence": sentence.transpose(1, 0, 2), "lens": lens, "top": top}

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


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("lens", [None, [7, 2, 5]])
def test_decoders_of_both_generations_get_what_they_expect(second, lens):
    encoder, decoder = translator()[0], begun(Glance(19, HIDDENS, second))
    outputs, states = encoder(np.ones((3, 7)), given(lens))
    state = decoder.init_state((outputs, states), given(lens))
    close(state["sentence"], outputs.asnumpy().swapaxes(0, 1))
    close(state["top"], states[0].asnumpy()[-1])
    scores, _ = decoder(np.zeros((3, 2)), state)
    assert scores.shape == (3, 2, 19)
    assert [each.shape for each in decoder.attention_weights] == [(3, 1, 7)] * 2


def test_a_decoder_reads_nothing_behind_the_lengths():
    """An encoder of a reader's own may leave anything there."""
    encoder, decoder = translator()
    lens, tokens = np.array([3, 4]), np.array([[2, 5], [2, 7]])
    outputs, state = encoder(np.array([[3, 4, 5, 1], [6, 7, 8, 9]]), lens)
    expected, _ = decoder(tokens, decoder.init_state((outputs, state), lens))
    broken = outputs.copy()
    broken[3, 0] = onp.nan
    found, _ = decoder(tokens, decoder.init_state((broken, state), lens))
    onp.testing.assert_array_equal(found.asnumpy(), expected.asnumpy())


def test_before_the_first_call_nothing_was_looked_at():
    assert translator()[1].attention_weights == []


# --- training

PAIRS = "Go.\tVa !\nI lost.\tJ'ai perdu.\nHe's calm.\tIl est calme.\nI'm home.\tJe suis chez moi.\n"


@pytest.fixture
def sentences(monkeypatch):
    """The four sentences of the book, and no others, without a network; the same numbers each time."""
    monkeypatch.setattr(text, "raw_corpus", lambda: text.RawCorpus(PAIRS, min_freq=1))
    mxnet.random.seed(0)
    onp.random.seed(0)


def test_the_first_generation_learns_to_translate(sentences, capsys):
    batches, source_vocab, target_vocab = d2l.load_data_nmt(batch_size=3, num_steps=7)
    net = d2l.EncoderDecoder(
        d2l.Seq2SeqEncoder(len(source_vocab), 16, 16, 1), d2l.Seq2SeqAttentionDecoder(len(target_vocab), 16, 16, 1)
    )
    d2l.train_seq2seq(net, batches, 0.02, 60, target_vocab, d2l.try_gpu())
    assert "tokens/sec on cpu(0)" in capsys.readouterr().out
    ask = source_vocab, target_vocab, 7, d2l.try_gpu()
    english = ("go .", "i lost .", "he's calm .", "i'm home .")
    assert [d2l.predict_seq2seq(net, each, *ask)[0] for each in english] == [
        "va !", "j'ai perdu .", "il est calme .", "je suis chez moi .",
    ]  # fmt: skip
    _, weights = d2l.predict_seq2seq(net, "go .", *ask, True)
    assert [len(step) for step in weights] == [1, 1, 1]  # two words and the end
    looked_at = onp.stack([step[0].asnumpy() for step in weights])
    assert looked_at.shape == (3, 1, 1, 7)
    close(looked_at[..., :3].sum(-1), onp.ones((3, 1, 1)))


def test_a_readers_decoder_is_trained_too(sentences, capsys):
    batches, _, target_vocab = d2l.load_data_nmt(batch_size=4, num_steps=7)
    net = d2l.EncoderDecoder(d2l.Seq2SeqEncoder(17, 8, 8, 1), Glance(len(target_vocab), 8))
    losses = []
    for epochs in (1, 20):
        d2l.train_seq2seq(net, batches, 0.02, epochs, target_vocab, d2l.cpu())
        losses.append(float(capsys.readouterr().out.split()[1].rstrip(",")))
    assert losses[1] < 0.7 * losses[0]


def test_the_second_generation_learns(sentences):
    data = d2l.MTFraEng(batch_size=2, num_steps=7, num_train=4, num_val=0)
    assert len(data.arrays[0]) == 4  # the fixture's sentences
    sizes = {"embed_size": 16, "num_hiddens": 16, "num_layers": 1}
    encoder = d2l.Seq2SeqEncoder(len(data.src_vocab), **sizes)
    decoder = d2l.Seq2SeqAttentionDecoder(len(data.tgt_vocab), **sizes)
    model = d2l.Seq2Seq(encoder, decoder, tgt_pad=data.tgt_vocab["<pad>"], lr=0.02)
    trainer = d2l.Trainer(max_epochs=10, gradient_clip_val=1, num_gpus=1)
    trainer.fit(model, data)
    losses = [loss for _, loss in model.board.data["train_loss"]]
    assert losses[-1] < 0.7 * losses[0]
    tokens, weights = model.predict_step(data.build(["go .", "i lost ."], ["va !", "?"]), d2l.try_gpu(), 7, True)
    assert tokens.shape == (2, 7)
    assert weights[6][0].shape == (2, 1, 7)
    assert model.predict_step(data.build(["go ."], ["va !"]), d2l.try_gpu(), 7)[1] == []


def test_the_second_generations_loss_leaves_padding_out():
    model = d2l.Seq2Seq(*translator(), tgt_pad=1, lr=0.1)
    scores, labels = normal(2, 3, 19), onp.array([[4, 5, 1], [6, 1, 1]])
    expected = F.cross_entropy(torch.tensor(scores).flatten(0, 1), torch.tensor(labels).flatten(), ignore_index=1)
    assert float(model.loss(np.array(scores), np.array(labels))) == pytest.approx(float(expected), abs=1e-5)


def test_the_first_generations_loss():
    scores, labels, lens = normal(2, 3, 19), onp.array([[4, 5, 1], [6, 1, 1]]), onp.array([2, 1])
    each = F.cross_entropy(torch.tensor(scores).transpose(1, 2), torch.tensor(labels), reduction="none").numpy()
    loss = d2l.MaskedSoftmaxCELoss()(np.array(scores), np.array(labels), np.array(lens))
    close(loss, (each * (onp.arange(3) < lens[:, None])).sum(1) / 3)


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


def test_a_module_of_the_readers_own():
    class Line(d2l.Module):
        def __init__(self, lr):
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Dense(1)
            self.net.initialize()

        def loss(self, y_hat, y):
            return ((y_hat - y) ** 2).mean()

    class Points(d2l.DataModule):
        def __init__(self, batch_size):
            super().__init__()
            self.save_hyperparameters()
            self.X = np.array(normal(32, 2))
            self.y = np.dot(self.X, np.array([[2.0], [-3.0]])) + 1

        def get_dataloader(self, train):
            return self.get_tensorloader((self.X, self.y), train)

    model, trainer = Line(lr=0.1), d2l.Trainer(max_epochs=20)
    trainer.fit(model, Points(batch_size=8))
    close(model.net.weight.data(), [[2, -3]], 0.05)
    assert set(model.board.data) == {"train_loss", "val_loss"}
    assert model.lr == 0.1
    assert (trainer.steps, trainer.progress) == (80, 20)


# --- arrays and the rest


def test_arrays():
    X = d2l.reshape(d2l.arange(6), (2, 3))
    close(d2l.numpy(d2l.transpose(X)), onp.arange(6).reshape(2, 3).T)
    close(d2l.reduce_sum(X, 0), [3, 5, 7])
    close(d2l.astype(X > 2, d2l.float32), [[0, 0, 0], [1, 1, 1]])
    close(d2l.concat([d2l.ones((1, 2)), d2l.zeros((1, 2))], 0), [[1, 1], [0, 0]])
    close(d2l.matmul(d2l.eye(3), d2l.expand_dims(d2l.tensor([1, 2, 3]), -1)), [[1], [2], [3]])
    assert d2l.size(X) == 6
    assert d2l.normal(0, 1, (2, 1)).shape == d2l.rand(2, 1).shape == d2l.randn(2, 1).shape == (2, 1)
    assert d2l.to(X, d2l.cpu()).ctx == d2l.cpu()
    assert d2l.try_all_gpus() == [d2l.try_gpu()]


NAMES = """
    masked_softmax sequence_mask AdditiveAttention DotProductAttention MultiHeadAttention transpose_qkv transpose_output
    NWKernelRegression PositionalEncoding Encoder Decoder AttentionDecoder EncoderDecoder GRU Seq2SeqEncoder
    Seq2SeqAttentionDecoder MaskedSoftmaxCELoss Vocab read_data_nmt preprocess_nmt tokenize_nmt truncate_pad
    build_array_nmt load_data_nmt load_array train_seq2seq predict_seq2seq bleu grad_clipping show_heatmaps plot plt
    set_axes set_figsize use_svg_display Animator Accumulator Timer cpu gpu num_gpus try_gpu try_all_gpus tensor zeros
    ones zeros_like ones_like eye normal rand randn arange linspace meshgrid reshape concat stack transpose expand_dims
    repeat reduce_sum reduce_mean argmax astype to numpy size matmul batch_matmul swapaxes sin cos sinh cosh tanh exp
    log abs sigmoid int32 int64 float32 nn_Module Module DataModule Trainer MTFraEng Seq2Seq ProgressBoard
    HyperParameters add_to_class check_len check_shape
"""


def test_every_name_is_there():
    assert sorted(d2l.__all__) == sorted(NAMES.split())
    assert [name for name in NAMES.split() if not hasattr(d2l, name)] == []


SIGNATURES = {
    "masked_softmax": "X, valid_lens",
    "sequence_mask": "X, valid_len, value=0",
    "AdditiveAttention": "num_hiddens, dropout, **kwargs",
    "DotProductAttention": "dropout, **kwargs",
    "MultiHeadAttention": "num_hiddens, num_heads, dropout, use_bias=False, **kwargs",
    "transpose_qkv": "X, num_heads",
    "transpose_output": "X, num_heads",
    "NWKernelRegression": "**kwargs",
    "PositionalEncoding": "num_hiddens, dropout, max_len=1000",
    "Seq2SeqEncoder": "vocab_size, embed_size, num_hiddens, num_layers, dropout=0, **kwargs",
    "Seq2SeqAttentionDecoder": "vocab_size, embed_size, num_hiddens, num_layers, dropout=0, **kwargs",
    "EncoderDecoder": "encoder, decoder, **kwargs",
    "GRU": "num_hiddens, num_layers, dropout=0",
    "MaskedSoftmaxCELoss": "",
    "load_array": "data_arrays, batch_size, is_train=True",
    "load_data_nmt": "batch_size, num_steps, num_examples=600",
    "build_array_nmt": "lines, vocab, num_steps",
    "train_seq2seq": "net, data_iter, lr, num_epochs, tgt_vocab, device",
    "predict_seq2seq": "net, src_sentence, src_vocab, tgt_vocab, num_steps, device, save_attention_weights=False",
    "grad_clipping": "net, theta",
    "show_heatmaps": "matrices, xlabel, ylabel, titles=None, figsize=(2.5, 2.5), cmap='Reds'",
    "Module": "plot_train_per_epoch=2, plot_valid_per_epoch=1",
    "DataModule": "root='../data', num_workers=4",
    "Trainer": "max_epochs, num_gpus=0, gradient_clip_val=0",
    "MTFraEng": "batch_size, num_steps=9, num_train=512, num_val=128",
    "Seq2Seq": "encoder, decoder, tgt_pad, lr",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_the_books(name):
    made = getattr(d2l, name)
    signature = inspect.signature(made.__init__ if isinstance(made, type) else made)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    assert str(inspect.Signature([each for each in plain if each.name != "self"])) == f"({SIGNATURES[name]})"
