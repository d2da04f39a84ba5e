"""The textbook's helper library on TensorFlow, beside NumPy in float64 and PyTorch's own modules.

It runs in a process of its own: TF_USE_LEGACY_KERAS=1 python -m pytest tests/textbook/test_textbook_tensorflow.py
"""

import os
import runpy
import subprocess
import sys

import in_both
import matplotlib
import numpy as np
import pytest
import torch
from in_both import *  # noqa: F403
from in_both import BATCH, FEATURES, FRENCH, HIDDENS, KEYS, QUERIES, VALUES, WIDE, normal
from torch.nn import functional as F

from dikkat.textbook import tensorflow as d2l

# isort: split
import tensorflow as tf

matplotlib.use("Agg")


def linear(layer: object, x: np.ndarray) -> np.ndarray:
    out = x.astype(np.float64) @ layer.kernel.numpy()
    return out + layer.bias.numpy() if layer.use_bias else out


def heads(bias: bool) -> object:
    attention = d2l.MultiHeadAttention(FEATURES, WIDE, VALUES, 15, in_both.HEADS, dropout=0.5, bias=bias)
    for layer in (attention.W_q, attention.W_k, attention.W_v, attention.W_o):
        if bias:
            layer.bias.assign(normal(15))
    return attention


@pytest.fixture
def framework() -> in_both.Framework:
    return in_both.Framework(
        d2l,
        tf.constant,
        linear,
        lambda: d2l.AdditiveAttention(key_size=FEATURES, query_size=WIDE, num_hiddens=HIDDENS, dropout=0.5),
        heads,
        names="",
        signatures={
            "AdditiveAttention": "key_size, query_size, num_hiddens, dropout, **kwargs",
            "MultiHeadAttention": (
                "key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False, **kwargs"
            ),
            "PositionalEncoding": "num_hiddens, dropout, max_len=1000, **kwargs",
            "MaskedSoftmaxCELoss": "valid_len",
            "predict_seq2seq": "net, src_sentence, src_vocab, tgt_vocab, num_steps, save_attention_weights=False",
            "grad_clipping": "grads, theta",
        },
    )


# --- attention


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


def encoder_of(vocab: int = 17, layers: int = 2, dropout: float = 0.0):
    return d2l.Seq2SeqEncoder(vocab, 5, HIDDENS, layers, dropout)


@pytest.mark.parametrize("lens", [None, [2, 7, 5], [2.0, 7.0, 5.0]])
def test_an_encoder_is_a_gru_that_reads_no_padding(lens):
    encoder, X = encoder_of(), np.random.default_rng(0).integers(17, size=(3, 7))
    encoder(X)  # which makes its weights
    peer = torch.nn.GRU(5, HIDDENS, num_layers=2)
    for layer, cell in enumerate(encoder.rnn.cell.cells):
        cell.bias.assign(normal(2, 3 * HIDDENS))
        for name, value in as_torch(cell).items():
            getattr(peer, f"{name}_l{layer}").data = value
    outputs, state = encoder(X, None if lens is None else tf.constant(lens))
    embedded = torch.tensor(encoder.embedding.embeddings.numpy()[X]).transpose(0, 1)
    packed = torch.nn.utils.rnn.pack_padded_sequence(embedded, lens or [7] * 3, enforce_sorted=False)
    expected, expected_state = peer(packed)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(expected, batch_first=True, total_length=7)
    np.testing.assert_allclose(outputs, expected.detach(), atol=1e-5)
    np.testing.assert_allclose(tf.stack(state), expected_state.detach(), atol=1e-5)


def test_an_encoder_trains_on_batches_of_any_size():
    encoder = encoder_of(dropout=0.5)
    for batch in (5, 3, 5):
        outputs, _ = encoder(tf.ones((batch, 7)), tf.fill((batch,), 4), "more", training=True)
        assert outputs.shape == (batch, 7, HIDDENS)


def test_an_encoder_takes_an_lstm_in_the_place_of_its_gru():
    encoder, X, lens = encoder_of(), tf.constant([[3, 4, 5, 1, 1], [6, 7, 8, 9, 2]]), tf.constant([3, 5])
    encoder.rnn = tf.keras.layers.LSTM(HIDDENS, return_sequences=True, return_state=True)
    _, states = encoder(X, lens)
    _, short_states = encoder(X[:1, :3])
    for state, short in zip(states, short_states, strict=True):
        np.testing.assert_allclose(state[:1], short, atol=1e-6)


def test_parts_of_tokens_are_refused():
    for name, given in (("X", (tf.fill((2, 3), 1.5),)), ("valid_len", (tf.ones((2, 3)), tf.constant([1.5, 2])))):
        with pytest.raises(ValueError, match=f"{name}: got .*1.5"):
            encoder_of()(*given)


class Glance(d2l.AttentionDecoder):
    """A decoder of a reader's own: it moves one cell on a word, and then looks at the sentence with the new state."""

    def __init__(self, words, width):
        super().__init__()
        self.glances = []
        self.words = tf.keras.layers.Embedding(words, 3)
        self.cell = tf.keras.layers.GRUCell(width)
        self.looking = d2l.AdditiveAttention(width, width, 11, 0.25)
        self.choice = tf.keras.layers.Dense(words)

    def init_state(self, found, lens):
        sentence, (*_, top) = found
        return {"sentence": sentence, "lens": lens, "top": top}

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


@pytest.mark.parametrize("lens", [None, [7, 2, 5]])
def test_a_readers_decoder_steps_as_it_runs(lens):
    encoder, decoder, lens = encoder_of(), Glance(19, HIDDENS), None if lens is None else tf.constant(lens)
    encoded = encoder(tf.ones((3, 7)), lens)
    state, tokens = decoder.init_state(encoded, lens), tf.constant([[2, 5], [2, 7], [3, 3]])
    scores, _ = decoder(tokens, state, training=False)
    weights = decoder.attention_weights
    assert scores.shape == (3, 2, 19)
    assert [each.shape.as_list() for each in weights] == [[3, 1, 7]] * 2
    if lens is not None:
        np.testing.assert_array_equal(weights[1][1, 0, 2:], 0)
    for step in range(2):
        one, state = decoder(tokens[:, step : step + 1], state, training=False)
        np.testing.assert_allclose(one[:, 0], scores[:, step], atol=1e-5)


# --- training


def test_a_readers_translator_learns_the_four_sentences(sentences, capsys):
    tf.keras.utils.set_random_seed(0)  # Keras 2 draws its initialisers' seeds from Python's generator
    batches, source_vocab, target_vocab = d2l.load_data_nmt(batch_size=3, num_steps=7)
    net = d2l.EncoderDecoder(d2l.Seq2SeqEncoder(len(source_vocab), 16, 16, 1), Glance(len(target_vocab), 16))
    d2l.train_seq2seq(net, batches, 0.02, 60, target_vocab, d2l.try_gpu())
    assert "tokens/sec on /CPU:0" in capsys.readouterr().out
    for english, french in FRENCH.items():
        assert d2l.predict_seq2seq(net, english, source_vocab, target_vocab, 7)[0] == french
    _, weights = d2l.predict_seq2seq(net, "go .", source_vocab, target_vocab, 7, True)
    looked_at = np.array(weights)  # two words and the end, of one step, one sentence and one query each
    assert looked_at.shape == (3, 1, 1, 1, 7)
    np.testing.assert_allclose(looked_at[..., :3].sum(-1), np.ones((3, 1, 1, 1)), atol=1e-6)
    np.testing.assert_array_equal(looked_at[..., 3:], 0)


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


# --- arrays and the rest


def test_random_arrays_and_devices():
    assert d2l.normal((2, 1)).shape == d2l.rand((2, 1)).shape == (2, 1)
    assert d2l.to(d2l.ones(3), d2l.cpu()).device.endswith("CPU:0")
    with d2l.try_gpu() as outer, outer:  # entered twice, as the book's code may
        assert d2l.ones(1).device.endswith("CPU:0")
    assert d2l.try_gpu() == "/CPU:0"


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
        ("tf_keras", Other(spec=d2l.__spec__, layers=Other(Layer=object)), "TF_USE_LEGACY_KERAS=1"),
    ],
)
def test_an_import_that_cannot_work_says_why(name, module, said, monkeypatch):
    monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ImportError, match=said):
        runpy.run_path(d2l.__file__)
