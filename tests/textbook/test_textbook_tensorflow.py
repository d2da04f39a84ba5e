"""The textbook's helper library on TensorFlow, beside NumPy in float64 and PyTorch's own modules.

It runs in a process of its own: TF_USE_LEGACY_KERAS=1 python -m pytest tests/textbook/test_textbook_tensorflow.py
"""

import inspect
import math
import os
import runpy
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dikkat.textbook import keras2, text
from dikkat.textbook import tensorflow as d2l
from dikkat.textbook.keras2 import tf

matplotlib.use("Agg")
BATCH, QUERIES, KEYS, FEATURES, VALUES, HIDDENS = 2, 3, 5, 7, 11, 13

LENS = [None, [2, 5], [[1, 3, 5], [2, 4, 1]]]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def visible(lens: object, queries: int = QUERIES) -> np.ndarray:
    """Booleans (BATCH, queries, KEYS)."""
    if lens is None:
        return np.ones((BATCH, queries, KEYS), bool)
    each = np.asarray(lens).reshape(BATCH, -1, 1)
    return np.broadcast_to(np.arange(KEYS) < each, (BATCH, queries, KEYS))


def softmax(scores: np.ndarray, shown: np.ndarray) -> np.ndarray:
    shares = np.where(shown, np.exp(scores.astype(np.float64)), 0)
    return shares / np.where(shares.sum(-1, keepdims=True) == 0, 1, shares.sum(-1, keepdims=True))


def linear(layer: object, x: np.ndarray) -> np.ndarray:
    out = x.astype(np.float64) @ layer.kernel.numpy()
    return out + layer.bias.numpy() if layer.use_bias else out


# --- attention


@pytest.mark.parametrize("lens", LENS)
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_masked_softmax(lens, dtype):
    scores = normal(BATCH, QUERIES, KEYS)
    given = None if lens is None else tf.constant(np.array(lens, dtype))
    weights = d2l.masked_softmax(tf.constant(scores), given)
    np.testing.assert_allclose(weights, softmax(scores, visible(lens)), atol=1e-6)


def test_masked_softmax_of_an_empty_row_is_zero_and_low_scores_count():
    scores = tf.Variable([[[-3e8, -1e8, -5e6]], [[1.0, 2.0, 3.0]]])
    weights = d2l.masked_softmax(scores, tf.constant([2, 0]))
    np.testing.assert_array_equal(weights, [[[0, 1, 0]], [[0, 0, 0]]])
    np.testing.assert_array_equal(scores, [[[-3e8, -1e8, -5e6]], [[1, 2, 3]]])


def test_a_length_above_the_keys_means_all():
    np.testing.assert_allclose(d2l.masked_softmax(tf.zeros((1, 1, 4)), tf.constant([9])), [[[0.25] * 4]])


@pytest.mark.parametrize(("lens", "named"), [([1.5, 2], "valid_lens"), ([1, 2, 3], "valid_lens"), ([-1, 2], "-1")])
def test_masked_softmax_refuses(lens, named):
    with pytest.raises(ValueError, match=named):
        d2l.masked_softmax(tf.zeros((2, 1, 4)), tf.constant(lens))


@pytest.mark.parametrize("lens", LENS)
@pytest.mark.parametrize("count", [QUERIES, 1])
def test_additive_attention(lens, count):
    lens = [row[:count] for row in lens] if np.ndim(lens) == 2 else lens
    queries, keys, values = normal(BATCH, count, 17), normal(BATCH, KEYS, FEATURES), normal(BATCH, KEYS, VALUES)
    attention = d2l.AdditiveAttention(key_size=FEATURES, query_size=17, num_hiddens=HIDDENS, dropout=0.5)
    output = attention(queries, keys, values, None if lens is None else tf.constant(lens), training=False)
    hidden = np.tanh(linear(attention.W_q, queries)[:, :, None] + linear(attention.W_k, keys)[:, None])
    weights = softmax(linear(attention.w_v, hidden)[..., 0], visible(lens, count))
    np.testing.assert_allclose(attention.attention_weights, weights, atol=1e-6)
    np.testing.assert_allclose(output, weights @ values, atol=1e-5)


def test_additive_attention_refuses_keys_of_another_size():
    attention = d2l.AdditiveAttention(key_size=FEATURES, query_size=17, num_hiddens=HIDDENS, dropout=0)
    with pytest.raises(ValueError, match="7"):
        attention(normal(BATCH, QUERIES, 17), normal(BATCH, KEYS, 3), normal(BATCH, KEYS, VALUES), None)


def test_weights_are_dropped_in_training_alone():
    attention = d2l.DotProductAttention(dropout=0.9)
    arrays = normal(BATCH, QUERIES, FEATURES), normal(BATCH, KEYS, FEATURES), np.ones((BATCH, KEYS, VALUES), np.float32)
    np.testing.assert_allclose(attention(*arrays, training=False), np.ones((BATCH, QUERIES, VALUES)), atol=1e-6)
    assert not np.allclose(attention(*arrays, training=True), 1, atol=0.01)
    np.testing.assert_allclose(tf.reduce_sum(attention.attention_weights, -1), np.ones((BATCH, QUERIES)), atol=1e-6)


@pytest.mark.parametrize("lens", LENS)
def test_dot_product_attention(lens):
    arrays = normal(BATCH, QUERIES, FEATURES), normal(BATCH, KEYS, FEATURES), normal(BATCH, KEYS, VALUES)
    output = d2l.DotProductAttention(dropout=0.5)(*arrays, None if lens is None else tf.constant(lens), training=False)
    expected = F.scaled_dot_product_attention(*map(torch.tensor, arrays), attn_mask=torch.tensor(visible(lens)))
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: d2l.DotProductAttention(0),
        lambda: d2l.AdditiveAttention(7, 7, 13, 0),
        lambda: d2l.MultiHeadAttention(7, 7, 11, 15, 3, 0),
    ],
)
def test_what_is_hidden_has_no_effect(make):
    attention, lens = make(), tf.constant([2, 0])
    arrays = [normal(BATCH, QUERIES, FEATURES), normal(BATCH, KEYS, FEATURES), normal(BATCH, KEYS, VALUES)]
    expected = attention(*arrays, lens)
    tensors = [tf.Variable(each) for each in arrays]
    for each in tensors[1:]:
        each.assign(tf.where(tf.sequence_mask(lens, KEYS)[..., None], each, np.nan))
    with tf.GradientTape() as tape:
        output = attention(*tensors, lens)
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(output[1], np.zeros(output.shape[1:]))
    for gradient in tape.gradient(output, [*tensors, *attention.trainable_variables]):
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("lens", LENS)
@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention(lens, bias):
    heads, hiddens = 3, 15
    attention = d2l.MultiHeadAttention(FEATURES, 17, VALUES, hiddens, heads, dropout=0.5, bias=bias)
    queries, keys, values = normal(BATCH, QUERIES, 17), normal(BATCH, KEYS, FEATURES), normal(BATCH, KEYS, VALUES)
    for layer in (attention.W_q, attention.W_k, attention.W_v, attention.W_o):
        if bias:
            layer.bias.assign(normal(hiddens))
    output = attention(queries, keys, values, None if lens is None else tf.constant(lens), training=False)
    projected = (linear(attention.W_q, queries), linear(attention.W_k, keys), linear(attention.W_v, values))
    split = [torch.tensor(x).unflatten(-1, (heads, -1)).transpose(1, 2) for x in projected]
    shown = torch.tensor(visible(lens))[:, None]
    joined = F.scaled_dot_product_attention(*split, attn_mask=shown).transpose(1, 2).flatten(-2)
    np.testing.assert_allclose(output, linear(attention.W_o, joined.numpy()), atol=1e-5)
    assert attention.attention.attention_weights.shape == (BATCH * heads, QUERIES, KEYS)


def test_heads_are_split_and_joined():
    X = np.arange(2 * 3 * 10).reshape(2, 3, 10)
    split = d2l.transpose_qkv(tf.constant(X), 5)
    assert split.shape == (10, 3, 2)
    np.testing.assert_array_equal(split[7], X[1, :, 4:6])  # the second sentence's third head
    np.testing.assert_array_equal(d2l.transpose_output(split, 5), X)


@pytest.mark.parametrize("shape", [(QUERIES, KEYS), (KEYS,)])
def test_kernel_regression(shape):
    net = d2l.NWKernelRegression()
    queries, keys, values = normal(QUERIES), normal(*shape), normal(*shape, seed=1)
    w = float(net.w[0])
    weights = softmax(-(((queries[:, None] - keys) * w) ** 2) / 2, np.ones((QUERIES, KEYS), bool))
    with tf.GradientTape() as tape:
        output = net(queries, keys, values)
    np.testing.assert_allclose(output, (weights * values).sum(-1), atol=1e-5)
    np.testing.assert_allclose(net.attention_weights, weights, atol=1e-6)
    (gradient,) = tape.gradient(output, net.trainable_variables)
    assert gradient.shape == (1,)
    assert abs(float(gradient[0])) > 0


def test_positions_are_sines_and_cosines():
    encoding = d2l.PositionalEncoding(6, dropout=0.5, max_len=11)
    X = normal(2, 5, 6)
    added = encoding(X, training=False).numpy() - X
    for place, feature in ((0, 0), (3, 1), (4, 4), (4, 5)):
        angle = place / 10000 ** (feature // 2 * 2 / 6)
        assert added[1, place, feature] == pytest.approx((math.cos if feature % 2 else math.sin)(angle), abs=1e-5)
    assert encoding.P.shape == (1, 11, 6)


def test_sequence_mask_leaves_its_argument():
    X = tf.Variable(normal(2, 3, 5))
    masked = d2l.sequence_mask(X, tf.constant([1, 3]), value=-1)
    np.testing.assert_array_equal(masked[0, 1:], -np.ones((2, 5)))
    np.testing.assert_array_equal(masked[1], X[1])
    np.testing.assert_array_equal(X, normal(2, 3, 5))


# --- encoders and decoders


def as_torch(cell: object) -> dict[str, torch.Tensor]:
    """A Keras cell's weights for PyTorch, whose gates are reset, update, new and not update, reset, new."""

    def ordered(columns: np.ndarray) -> torch.Tensor:
        update, reset, new = np.split(columns, 3, -1)
        return torch.tensor(np.concatenate([reset, update, new], -1).T)

    bias = cell.bias.numpy()
    return {
        "weight_ih": ordered(cell.kernel.numpy()),
        "weight_hh": ordered(cell.recurrent_kernel.numpy()),
        "bias_ih": ordered(bias[0]),
        "bias_hh": ordered(bias[1]),
    }


@pytest.mark.parametrize("lens", [None, [2, 7, 5]])
def test_gru(lens):
    gru, inputs = d2l.GRU(HIDDENS, num_layers=2), normal(7, 3, VALUES)
    gru(inputs)  # which makes its weights
    for cell in gru.cells:
        cell.bias.assign(normal(2, 3 * HIDDENS))
    outputs, state = gru(inputs, None, None if lens is None else tf.constant(lens))
    peer = torch.nn.GRU(VALUES, HIDDENS, num_layers=2)
    for layer, cell in enumerate(gru.cells):
        for name, value in as_torch(cell).items():
            getattr(peer, f"{name}_l{layer}").data = value
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(inputs), lens or [7] * 3, enforce_sorted=False)
    expected, expected_state = peer(packed)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(expected, total_length=7)
    np.testing.assert_allclose(outputs, expected.detach(), atol=1e-5)
    np.testing.assert_allclose(tf.stack(state), expected_state.detach(), atol=1e-5)


def translator(vocab: int = 17, layers: int = 2, dropout: float = 0.0) -> tuple[object, object]:
    sizes = {"embed_size": 5, "num_hiddens": HIDDENS, "num_layers": layers, "dropout": dropout}
    return d2l.Seq2SeqEncoder(vocab, **sizes), d2l.Seq2SeqAttentionDecoder(vocab + 2, **sizes)


def test_an_encoder_reads_no_padding():
    encoder, _ = translator()
    X, lens = tf.constant([[3, 4, 5, 1, 1], [6, 7, 8, 9, 2]]), tf.constant([3, 5])
    outputs, state = encoder(X, lens)
    short, short_state = encoder(X[:1, :3], lens[:1])
    np.testing.assert_allclose(outputs[:1, :3], short, atol=1e-6)
    np.testing.assert_array_equal(outputs[0, 3:], np.zeros((2, HIDDENS)))
    np.testing.assert_allclose([layer[0] for layer in state], [layer[0] for layer in short_state], atol=1e-6)


def test_a_decoder_steps_as_it_runs():
    encoder, decoder = translator()
    X, lens = tf.constant([[3, 4, 5, 1], [6, 7, 8, 9]]), tf.constant([3.0, 4.0])
    before = decoder.init_state(encoder(X, lens), lens)
    Y = tf.constant([[2, 5, 6], [2, 7, 3]])
    scores, after = decoder(Y, before, training=False)
    weights = decoder.attention_weights
    assert [each.shape.as_list() for each in weights] == [[2, 1, 4]] * 3
    np.testing.assert_array_equal(weights[1][0, 0, 3], 0)
    state = before
    for step in range(3):
        one, state = decoder(Y[:, step : step + 1], state, training=False)
        np.testing.assert_allclose(one[:, 0], scores[:, step], atol=1e-5)
        np.testing.assert_allclose(decoder.attention_weights[0], weights[step], atol=1e-6)
    np.testing.assert_allclose(tf.stack(state[1]), tf.stack(after[1]), atol=1e-5)


def test_a_step_of_the_decoder_is_that_of_the_formula():
    """Additive attention with the top layer's state, its context before the embedding, and PyTorch's cells."""
    encoder, decoder = translator()
    X, lens = tf.constant([[3, 4, 5, 1], [6, 7, 8, 9]]), tf.constant([3, 4])
    encoded, hidden = encoder(X, lens)
    scores, _ = decoder(tf.constant([[2], [3]]), (encoded, hidden, lens))
    attention = decoder.attention
    queries = linear(attention.W_q, hidden[-1].numpy())[:, None, None]
    hiddens = np.tanh(queries + linear(attention.W_k, encoded.numpy())[:, None])
    shown = np.arange(4) < np.array([[[3]], [[4]]])
    context = softmax(linear(attention.w_v, hiddens)[..., 0], shown) @ encoded.numpy()
    x = torch.tensor(np.hstack([context[:, 0], decoder.embedding.embeddings.numpy()[[2, 3]]]).astype(np.float32))
    for cell, state in zip(decoder.cells, hidden, strict=True):
        peer = torch.nn.GRUCell(x.shape[1], HIDDENS)
        peer.load_state_dict(as_torch(cell))
        x = peer(x, torch.tensor(state.numpy()))
    np.testing.assert_allclose(scores[:, 0], linear(decoder.dense, x.detach().numpy()), atol=1e-5)


class Glance(d2l.AttentionDecoder):
    """A decoder of a reader's own: it moves one cell on a word, and then looks at the sentence with the new state."""

    def __init__(self, words, width, steps_first=False):
        super().__init__()
        self.steps_first, self.glances = steps_first, []
        self.words = tf.keras.layers.Embedding(words, 3)
        self.cell = tf.keras.layers.GRUCell(width)
        self.looking = d2l.AdditiveAttention(width, width, 11, 0.25)
        self.choice = tf.keras.layers.Dense(words)

    def init_state(self, found, lens):
        sentence, (*_, top) = found
        if lens is not None:
            assert lens.shape == top.shape[:1]
        return {"sentence": tf.einsum("tbh->bth", sentence) if self.steps_first else sentence, "lens": lens, "top": top}

    def call(self, tokens, state, training=None):
        said, self.glances, top = [], [], state["top"]
        for place in range(tokens.shape[1]):
            _, top = self.cell(self.words(tokens[:, place]), top)
            sentence = state["sentence"]
            seen = self.looking(top[:, None], sentence, sentence, state["lens"], training=training)
            said.append(self.choice(tf.concat([seen[:, 0], top], -1)))
            self.glances.append(self.looking.attention_weights)
        return tf.stack(said, 1), state | {"top": top}

    @property
    def attention_weights(self):
        return self.glances


@pytest.mark.parametrize("steps_first", [False, True])
@pytest.mark.parametrize("lens", [False, True])
@pytest.mark.parametrize(("batch", "steps"), [(5, 7), (3, 3), (1, 1)])
def test_decoders_of_both_generations_get_what_they_expect(steps_first, lens, batch, steps):
    encoder, _ = translator()
    decoder = Glance(19, HIDDENS, steps_first)
    X = tf.constant(np.random.default_rng(0).integers(17, size=(batch, steps)))
    lens = tf.fill((batch,), 1) if lens else None
    encoded = encoder(X, lens)
    state = decoder.init_state(encoded, lens)
    np.testing.assert_array_equal(state["sentence"], encoded.outputs)
    scores, _ = decoder(tf.zeros((batch, 2)), state)
    assert scores.shape == (batch, 2, 19)
    assert [each.shape.as_list() for each in decoder.attention_weights] == [[batch, 1, steps]] * 2


class Exact(d2l.Decoder):
    """A decoder of a reader's own, whose `init_state` is called with real batches alone, and says so."""

    def __init__(self, shape, turns):
        super().__init__()
        self.shape, self.turns = shape, turns

    def init_state(self, found, lens, source):
        outputs, (*_, top) = found
        batch, steps, width = self.shape
        d2l.check_shape(outputs, (steps, batch, width) if self.turns else self.shape)
        assert top.shape == (batch, width)
        assert source.shape == (batch, steps)
        self.first, self.seen = source[:, 0], tf.sequence_mask(lens, steps)
        return tf.transpose(outputs, (1, 0, 2)) if self.turns else outputs, top

    def call(self, tokens, state):
        return tokens, state


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(("batch", "steps"), [(5, 7), (3, 3)])
def test_a_state_is_begun_with_the_real_batch_alone(turns, graph, batch, steps):
    encoder, _ = translator()
    source = tf.constant(np.random.default_rng(0).integers(17, size=(batch, steps)))
    lens = tf.range(1, batch + 1)
    encoded = encoder(source, lens)
    decoder = Exact((batch, steps, HIDDENS), turns)
    begin = tf.function(decoder.init_state, autograph=False) if graph else decoder.init_state
    outputs, _ = begin(encoded, lens, source)
    np.testing.assert_array_equal(outputs, encoded.outputs)
    if not graph:
        np.testing.assert_array_equal(decoder.first, source[:, 0])
        assert decoder.seen.shape == (batch, steps)


@pytest.mark.parametrize("steps_first", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("batch", "steps"), [(5, 7), (3, 3)])
def test_a_state_is_begun_in_a_graph(steps_first, known, batch, steps):
    encoder, _ = translator()
    encoded = encoder(tf.constant(np.random.default_rng(0).integers(17, size=(batch, steps))))
    sizes = (batch, steps) if known else (None, None)
    specs = [tf.TensorSpec((*sizes, HIDDENS)), *[tf.TensorSpec((sizes[0], HIDDENS)) for _ in encoded.state]]
    decoder = Glance(19, HIDDENS, steps_first)
    begin = tf.function(
        lambda outputs, *state: decoder.init_state(d2l.Encoded(outputs, list(state)), None)["sentence"],
        input_signature=specs,
        autograph=False,
    )
    np.testing.assert_array_equal(begin(encoded.outputs, *encoded.state), encoded.outputs)


def test_a_readers_mistake_is_told():
    encoder, _ = translator()
    source = tf.ones((3, 4), tf.int32)
    with pytest.raises(ValueError, match=r"expected \(3, 4, 14\)"):
        Exact((3, 4, HIDDENS + 1), turns=False).init_state(encoder(source), tf.constant([1, 2, 4]), source)


def test_a_decoder_reads_nothing_behind_the_lengths():
    """An encoder of a reader's own may leave anything there."""
    encoder, decoder = translator()
    X, lens = tf.constant([[3, 4, 5, 1], [6, 7, 8, 9]]), tf.constant([3, 4])
    outputs, state = encoder(X, lens)
    broken = tf.Variable(tf.where(tf.sequence_mask(lens, 4)[..., None], outputs, np.nan))
    tokens = tf.constant([[2, 5], [2, 7]])
    expected, _ = decoder(tokens, decoder.init_state((outputs, state), lens))
    with tf.GradientTape() as tape:
        scores, _ = decoder(tokens, decoder.init_state((broken, state), lens))
    np.testing.assert_array_equal(scores, expected)
    for gradient in tape.gradient(scores, [broken, *decoder.attention.trainable_variables]):
        assert np.isfinite(gradient).all()


def test_before_the_first_call_nothing_was_looked_at():
    assert translator()[1].attention_weights == []


def test_an_encoder_takes_further_arguments_as_the_base_does():
    encoder, _ = translator()
    X, lens = tf.constant([[3, 4, 5]]), tf.constant([2])
    np.testing.assert_array_equal(encoder(X, lens, "more", training=True).outputs, encoder(X, lens).outputs)


# --- training

PAIRS = "Go.\tVa !\nI lost.\tJ'ai perdu.\nHe's calm.\tIl est calme.\nI'm home.\tJe suis chez moi.\n"


@pytest.fixture
def sentences(monkeypatch):
    """The four sentences of the book, and no others, without a network."""
    monkeypatch.setattr(text, "raw_corpus", lambda: text.RawCorpus(PAIRS, min_freq=1))


def draw_alike():
    """Seeds every generator: Keras 2 draws its initialisers' seeds from Python's, not from TensorFlow's."""
    tf.keras.utils.set_random_seed(0)


def translations(net, source_vocab, target_vocab):
    return [
        d2l.predict_seq2seq(net, english, source_vocab, target_vocab, 7)[0]
        for english in ("go .", "i lost .", "he's calm .", "i'm home .")
    ]


def test_the_first_generation_learns_to_translate(sentences, capsys):
    draw_alike()
    batches, source_vocab, target_vocab = d2l.load_data_nmt(batch_size=3, num_steps=7)
    net = d2l.EncoderDecoder(
        d2l.Seq2SeqEncoder(len(source_vocab), 16, 16, 1), d2l.Seq2SeqAttentionDecoder(len(target_vocab), 16, 16, 1)
    )
    d2l.train_seq2seq(net, batches, 0.02, 60, target_vocab, d2l.try_gpu())
    assert "tokens/sec on /CPU:0" in capsys.readouterr().out
    assert translations(net, source_vocab, target_vocab) == [
        "va !", "j'ai perdu .", "il est calme .", "je suis chez moi .",
    ]  # fmt: skip
    _, weights = d2l.predict_seq2seq(net, "go .", source_vocab, target_vocab, 7, True)
    looked_at = np.array(weights)  # two words and the end, of one step, one sentence and one query each
    assert looked_at.shape == (3, 1, 1, 1, 7)
    np.testing.assert_allclose(looked_at[..., :3].sum(-1), np.ones((3, 1, 1, 1)), atol=1e-6)


def test_a_readers_decoder_is_trained_too(sentences, capsys):
    draw_alike()
    batches, _, target_vocab = d2l.load_data_nmt(batch_size=4, num_steps=7)
    net = d2l.EncoderDecoder(d2l.Seq2SeqEncoder(17, 8, 8, 1), Glance(len(target_vocab), 8))
    losses = []
    for _ in range(2):
        d2l.train_seq2seq(net, batches, 0.02, 5, target_vocab, d2l.cpu())
        losses.append(float(capsys.readouterr().out.split()[1].rstrip(",")))
    assert losses[1] < losses[0]


def test_the_second_generation_learns(sentences):
    draw_alike()
    data = d2l.MTFraEng(batch_size=2, num_steps=7, num_train=4, num_val=0)
    assert len(data.arrays[0]) == 4  # the fixture's sentences
    sizes = {"embed_size": 16, "num_hiddens": 16, "num_layers": 1}
    encoder = d2l.Seq2SeqEncoder(len(data.src_vocab), **sizes)
    decoder = d2l.Seq2SeqAttentionDecoder(len(data.tgt_vocab), **sizes)
    model = d2l.Seq2Seq(encoder, decoder, tgt_pad=data.tgt_vocab["<pad>"], lr=0.02)
    trainer = d2l.Trainer(max_epochs=12, gradient_clip_val=1)
    trainer.fit(model, data)
    losses = [loss for _, loss in model.board.data["train_loss"]]
    assert losses[-1] < 0.7 * losses[0]
    tokens, weights = model.predict_step(data.build(["go .", "i lost ."], ["va !", "?"]), d2l.try_gpu(), 7, True)
    assert tokens.shape == (2, 7)
    assert weights[6][0].shape == (2, 1, 7)
    assert model.predict_step(data.build(["go ."], ["va !"]), d2l.try_gpu(), 7)[1] == []


def test_the_second_generations_loss_leaves_padding_out(sentences):
    model = d2l.Seq2Seq(*translator(), tgt_pad=1, lr=0.1)
    scores, labels = normal(2, 3, 19), np.array([[4, 5, 1], [6, 1, 1]])
    expected = F.cross_entropy(torch.tensor(scores).flatten(0, 1), torch.tensor(labels).flatten(), ignore_index=1)
    assert float(model.loss(tf.constant(scores), tf.constant(labels))) == pytest.approx(float(expected), abs=1e-5)


def test_the_first_generations_loss():
    scores, labels, lens = normal(2, 3, 19), np.array([[4, 5, 1], [6, 1, 1]]), np.array([2, 1])
    each = F.cross_entropy(torch.tensor(scores).transpose(1, 2), torch.tensor(labels), reduction="none").numpy()
    loss = d2l.MaskedSoftmaxCELoss(tf.constant(lens))(tf.constant(labels), tf.constant(scores))
    np.testing.assert_allclose(loss, (each * (np.arange(3) < lens[:, None])).sum(1) / 3, atol=1e-5)


def test_gradients_are_clipped_together():
    clipped = d2l.grad_clipping([tf.constant([3.0]), tf.constant([[4.0]])], 2)
    np.testing.assert_allclose([float(clipped[0][0]), float(clipped[1][0, 0])], [1.2, 1.6], atol=1e-6)
    kept = d2l.grad_clipping([tf.constant([3.0])], 5)
    np.testing.assert_allclose(kept[0], [3.0])


def test_a_module_of_the_readers_own():
    class Line(d2l.Module):
        def __init__(self, lr):
            super().__init__()
            self.save_hyperparameters()
            self.net = tf.keras.layers.Dense(1)

        def loss(self, y_hat, y):
            return tf.reduce_mean((y_hat - y) ** 2)

    class Points(d2l.DataModule):
        def __init__(self, batch_size):
            super().__init__()
            self.save_hyperparameters()
            self.X = tf.constant(normal(32, 2))
            self.y = self.X @ tf.constant([[2.0], [-3.0]]) + 1

        def get_dataloader(self, train):
            return self.get_tensorloader((self.X, self.y), train)

    model, trainer = Line(lr=0.1), d2l.Trainer(max_epochs=20)
    trainer.fit(model, Points(batch_size=8))
    np.testing.assert_allclose(model.net.kernel, [[2], [-3]], atol=0.05)
    assert set(model.board.data) == {"train_loss", "val_loss"}
    assert model.lr == 0.1
    assert (trainer.steps, trainer.progress) == (80, 20)
    with pytest.raises(NotImplementedError):
        d2l.Module().loss(1, 2)


# --- arrays and the rest


def test_arrays():
    X = d2l.reshape(d2l.arange(6.0), (2, 3))
    np.testing.assert_array_equal(d2l.numpy(d2l.transpose(X)), np.arange(6).reshape(2, 3).T)
    np.testing.assert_array_equal(d2l.reduce_sum(X, 0), [3, 5, 7])
    np.testing.assert_array_equal(d2l.astype(X > 2, d2l.float32), [[0, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(d2l.concat([d2l.ones((1, 2)), d2l.zeros((1, 2))], 0), [[1, 1], [0, 0]])
    np.testing.assert_array_equal(d2l.matmul(d2l.eye(3), d2l.expand_dims(d2l.tensor([1.0, 2, 3]), -1)), [[1], [2], [3]])
    assert d2l.size(X) == 6
    assert d2l.normal((2, 1)).shape == d2l.rand((2, 1)).shape == (2, 1)
    assert d2l.to(X, d2l.cpu()).device.endswith("CPU:0")
    with d2l.try_gpu() as outer, outer:  # entered twice, as the book's code may
        assert d2l.ones(1).device.endswith("CPU:0")
    assert d2l.try_all_gpus() == [d2l.try_gpu()] == ["/CPU:0"]


NAMES = """
    masked_softmax sequence_mask AdditiveAttention DotProductAttention MultiHeadAttention transpose_qkv transpose_output
    NWKernelRegression PositionalEncoding Encoder Decoder AttentionDecoder EncoderDecoder GRU Seq2SeqEncoder
    Seq2SeqAttentionDecoder MaskedSoftmaxCELoss Vocab read_data_nmt preprocess_nmt tokenize_nmt truncate_pad
    build_array_nmt load_data_nmt load_array train_seq2seq predict_seq2seq bleu grad_clipping show_heatmaps plot plt
    set_axes set_figsize use_svg_display Animator Accumulator Timer cpu gpu num_gpus try_gpu try_all_gpus tensor zeros
    ones zeros_like ones_like eye normal rand arange linspace meshgrid reshape concat stack transpose expand_dims repeat
    reduce_sum reduce_mean argmax astype to numpy size matmul batch_matmul sin cos sinh cosh tanh exp log abs sigmoid
    int32 int64 float32 nn_Module Module DataModule Trainer MTFraEng Seq2Seq ProgressBoard HyperParameters add_to_class
    check_len check_shape
"""


def test_every_name_is_there():
    assert sorted(d2l.__all__) == sorted(NAMES.split())
    assert [name for name in NAMES.split() if not hasattr(d2l, name)] == []


SIGNATURES = {
    "masked_softmax": "X, valid_lens",
    "sequence_mask": "X, valid_len, value=0",
    "AdditiveAttention": "key_size, query_size, num_hiddens, dropout, **kwargs",
    "DotProductAttention": "dropout, **kwargs",
    "MultiHeadAttention": "key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False, **kwargs",
    "transpose_qkv": "X, num_heads",
    "transpose_output": "X, num_heads",
    "NWKernelRegression": "**kwargs",
    "PositionalEncoding": "num_hiddens, dropout, max_len=1000, **kwargs",
    "Seq2SeqEncoder": "vocab_size, embed_size, num_hiddens, num_layers, dropout=0, **kwargs",
    "Seq2SeqAttentionDecoder": "vocab_size, embed_size, num_hiddens, num_layers, dropout=0, **kwargs",
    "EncoderDecoder": "encoder, decoder, **kwargs",
    "GRU": "num_hiddens, num_layers, dropout=0, **kwargs",
    "MaskedSoftmaxCELoss": "valid_len",
    "load_array": "data_arrays, batch_size, is_train=True",
    "load_data_nmt": "batch_size, num_steps, num_examples=600",
    "build_array_nmt": "lines, vocab, num_steps",
    "train_seq2seq": "net, data_iter, lr, num_epochs, tgt_vocab, device",
    "predict_seq2seq": "net, src_sentence, src_vocab, tgt_vocab, num_steps, save_attention_weights=False",
    "grad_clipping": "grads, theta",
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


class Other:
    """A module in the place of another."""

    def __init__(self, spec=None, **attributes):
        self.__spec__ = spec
        self.__dict__ |= attributes


def test_tensorflow_may_be_imported_before():
    program = (
        "import tensorflow as tf; tf.constant(1); from dikkat.textbook import tensorflow; print(tf.keras.__name__)"
    )
    environment = {
        name: each for name, each in os.environ.items() if name not in ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND")
    }
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.startswith("tf_keras")


@pytest.mark.parametrize(
    ("name", "module", "said"),
    [
        ("tf_keras", None, r"pip install '\.\[textbook-tensorflow\]'"),
        ("tf_keras", Other(spec=keras2.__spec__, layers=Other(Layer=object)), "TF_USE_LEGACY_KERAS=1"),
        ("keras", Other(backend=Other(backend=lambda: "jax")), "backend 'jax'"),
    ],
)
def test_an_import_that_cannot_work_says_why(name, module, said, monkeypatch):
    monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ImportError, match=said):
        runpy.run_path(keras2.__file__)
