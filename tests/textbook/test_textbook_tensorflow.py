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

from dikkat.textbook import tensorflow as d2l
from dikkat.textbook import text

# isort: split
import tensorflow as tf

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


def test_a_readers_translator_learns_the_four_sentences(sentences, capsys):
    draw_alike()
    batches, source_vocab, target_vocab = d2l.load_data_nmt(batch_size=3, num_steps=7)
    net = d2l.EncoderDecoder(d2l.Seq2SeqEncoder(len(source_vocab), 16, 16, 1), Glance(len(target_vocab), 16))
    d2l.train_seq2seq(net, batches, 0.02, 60, target_vocab, d2l.try_gpu())
    assert "tokens/sec on /CPU:0" in capsys.readouterr().out
    assert translations(net, source_vocab, target_vocab) == [
        "va !", "j'ai perdu .", "il est calme .", "je suis chez moi .",
    ]  # fmt: skip
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
    PositionalEncoding Encoder Decoder AttentionDecoder EncoderDecoder Seq2SeqEncoder MaskedSoftmaxCELoss
    Vocab read_data_nmt preprocess_nmt tokenize_nmt truncate_pad
    build_array_nmt load_data_nmt load_array train_seq2seq predict_seq2seq bleu grad_clipping show_heatmaps plot plt
    set_axes set_figsize use_svg_display Animator Accumulator Timer cpu gpu num_gpus try_gpu try_all_gpus tensor zeros
    ones zeros_like ones_like eye normal rand arange linspace meshgrid reshape concat stack transpose expand_dims repeat
    reduce_sum reduce_mean argmax astype to numpy size matmul batch_matmul sin cos sinh cosh tanh exp log abs sigmoid
    int32 int64 float32 nn_Module ProgressBoard HyperParameters add_to_class
    check_len check_shape
"""


def test_every_name_is_there():
    assert sorted(d2l.__all__) == sorted(NAMES.split())
    assert [name for name in NAMES.split() if not hasattr(d2l, name)] == []


def test_modules_are_reached_through_it():
    assert d2l.np is np
    assert d2l.math is math
    assert d2l.collections.Counter("aab")["a"] == 2


@pytest.mark.parametrize(
    ("name", "why"),
    [("Trainer", "edition 1.0"), ("Seq2SeqAttentionDecoder", "own cell"), ("Updater", "not of the attention chapters")],
)
def test_what_it_does_not_have_it_says(name, why):
    with pytest.raises(AttributeError, match=f"'dikkat.textbook.tensorflow' has no attribute '{name}': .*{why}"):
        getattr(d2l, name)


@pytest.mark.parametrize("shapes", [((2, 3, 7), (3, 5, 7), (3, 5, 11)), ((2, 3, 7), (2, 5, 7), (2, 4, 11))])
def test_shapes_that_do_not_fit_are_refused(shapes):
    with pytest.raises(ValueError, match="queries, keys, values: got shapes"):
        d2l.DotProductAttention(0)(*map(tf.zeros, shapes))
    with pytest.raises(ValueError, match=r"X: got shape \(2, 3\)"):
        d2l.masked_softmax(tf.zeros((2, 3)), tf.constant([1, 2]))


SIGNATURES = {
    "masked_softmax": "X, valid_lens",
    "sequence_mask": "X, valid_len, value=0",
    "AdditiveAttention": "key_size, query_size, num_hiddens, dropout, **kwargs",
    "DotProductAttention": "dropout, **kwargs",
    "MultiHeadAttention": "key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False, **kwargs",
    "transpose_qkv": "X, num_heads",
    "transpose_output": "X, num_heads",
    "PositionalEncoding": "num_hiddens, dropout, max_len=1000, **kwargs",
    "Seq2SeqEncoder": "vocab_size, embed_size, num_hiddens, num_layers, dropout=0, **kwargs",
    "EncoderDecoder": "encoder, decoder, **kwargs",
    "MaskedSoftmaxCELoss": "valid_len",
    "load_array": "data_arrays, batch_size, is_train=True",
    "load_data_nmt": "batch_size, num_steps, num_examples=600",
    "build_array_nmt": "lines, vocab, num_steps",
    "train_seq2seq": "net, data_iter, lr, num_epochs, tgt_vocab, device",
    "predict_seq2seq": "net, src_sentence, src_vocab, tgt_vocab, num_steps, save_attention_weights=False",
    "grad_clipping": "grads, theta",
    "show_heatmaps": "matrices, xlabel, ylabel, titles=None, figsize=(2.5, 2.5), cmap='Reds'",
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
        ("tf_keras", Other(spec=d2l.__spec__, layers=Other(Layer=object)), "TF_USE_LEGACY_KERAS=1"),
    ],
)
def test_an_import_that_cannot_work_says_why(name, module, said, monkeypatch):
    monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ImportError, match=said):
        runpy.run_path(d2l.__file__)
