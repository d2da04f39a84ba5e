"""The textbook's helper library on MXNet, beside NumPy in float64 and PyTorch's own modules."""

import inspect
import math

import matplotlib
import numpy as onp
import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("mxnet", reason="MXNet needs Python 3.11 or older, and an environment of its own")

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


def test_the_chapters_page_shows_the_same_digits():
    """What the book prints under its cells, with MXNet's first random numbers."""
    mxnet.random.seed(0)
    weights = d2l.masked_softmax(np.random.uniform(size=(2, 2, 4)), d2l.tensor([2, 3]))
    close(weights[0, 0], [0.488994, 0.511006, 0, 0], 1e-6)
    attention, keys, values = d2l.AdditiveAttention(8, 0.1), d2l.ones((2, 10, 2)), np.arange(40).reshape(1, 10, 4)
    output = begun(attention)(d2l.normal(0, 1, (2, 1, 20)), keys, values.repeat(2, axis=0), d2l.tensor([2, 6]))
    close(output, [[[2, 3, 4, 5]], [[10, 11, 12, 13]]])


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
    close(outputs, expected.detach())
    assert len(state) == 1
    close(state[0], expected_state.detach())


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
        close(one[:, 0], scores[:, step].asnumpy())


# --- training

PAIRS = "Go.\tVa !\nI lost.\tJ'ai perdu.\nHe's calm.\tIl est calme.\nI'm home.\tJe suis chez moi.\n"


@pytest.fixture
def sentences(monkeypatch):
    """The four sentences of the book, and no others, without a network; the same numbers each time."""
    monkeypatch.setattr(text, "raw_corpus", lambda: text.RawCorpus(PAIRS, min_freq=1))
    mxnet.random.seed(0)
    onp.random.seed(0)


def test_a_readers_translator_learns_the_four_sentences(sentences, capsys):
    batches, source_vocab, target_vocab = d2l.load_data_nmt(batch_size=3, num_steps=7)
    assert sorted(len(batch[0]) for batch in batches) == [1, 3]
    assert [each.shape[1:] for each in next(iter(batches))] == [(7,), (), (7,), ()]
    net = d2l.EncoderDecoder(d2l.Seq2SeqEncoder(len(source_vocab), 16, 16, 1), Glance(len(target_vocab), 16))
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
    onp.testing.assert_array_equal(looked_at[..., 3:], 0)


def test_a_loss_has_whole_labels():
    with pytest.raises(ValueError, match=r"label: got 0\.5"):
        d2l.MaskedSoftmaxCELoss()(np.zeros((2, 3, 5)), np.full((2, 3), 0.5), np.array([1, 2]))


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
    PositionalEncoding Encoder Decoder AttentionDecoder EncoderDecoder Seq2SeqEncoder MaskedSoftmaxCELoss
    Vocab read_data_nmt preprocess_nmt tokenize_nmt truncate_pad
    build_array_nmt load_data_nmt load_array train_seq2seq predict_seq2seq bleu grad_clipping show_heatmaps plot plt
    set_axes set_figsize use_svg_display Animator Accumulator Timer cpu gpu num_gpus try_gpu try_all_gpus tensor zeros
    ones zeros_like ones_like eye normal rand randn arange linspace meshgrid reshape concat stack transpose expand_dims
    repeat reduce_sum reduce_mean argmax astype to numpy size matmul batch_matmul swapaxes sin cos sinh cosh tanh exp
    log abs sigmoid int32 int64 float32 nn_Module ProgressBoard
    HyperParameters add_to_class check_len check_shape
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
    [
        ("Trainer", "edition 1.0"),
        ("Seq2SeqAttentionDecoder", "own cell"),
        ("BERTModel", "not of the attention chapters"),
    ],
)
def test_what_it_does_not_have_it_says(name, why):
    with pytest.raises(AttributeError, match=f"'dikkat.textbook.mxnet' has no attribute '{name}': .*{why}"):
        getattr(d2l, name)


@pytest.mark.parametrize("shapes", [((2, 3, 7), (3, 5, 7), (3, 5, 11)), ((2, 3, 7), (2, 5, 7), (2, 4, 11))])
def test_shapes_that_do_not_fit_are_refused(shapes):
    with pytest.raises(ValueError, match="queries, keys, values: got shapes"):
        d2l.DotProductAttention(0)(*map(np.zeros, shapes))
    with pytest.raises(ValueError, match=r"X: got shape \(2, 3\)"):
        d2l.masked_softmax(np.zeros((2, 3)), np.array([1, 2]))


SIGNATURES = {
    "masked_softmax": "X, valid_lens",
    "sequence_mask": "X, valid_len, value=0",
    "AdditiveAttention": "num_hiddens, dropout, **kwargs",
    "DotProductAttention": "dropout, **kwargs",
    "MultiHeadAttention": "num_hiddens, num_heads, dropout, use_bias=False, **kwargs",
    "transpose_qkv": "X, num_heads",
    "transpose_output": "X, num_heads",
    "PositionalEncoding": "num_hiddens, dropout, max_len=1000",
    "Seq2SeqEncoder": "vocab_size, embed_size, num_hiddens, num_layers, dropout=0, **kwargs",
    "EncoderDecoder": "encoder, decoder, **kwargs",
    "MaskedSoftmaxCELoss": "",
    "load_array": "data_arrays, batch_size, is_train=True",
    "load_data_nmt": "batch_size, num_steps, num_examples=600",
    "build_array_nmt": "lines, vocab, num_steps",
    "train_seq2seq": "net, data_iter, lr, num_epochs, tgt_vocab, device",
    "predict_seq2seq": "net, src_sentence, src_vocab, tgt_vocab, num_steps, device, save_attention_weights=False",
    "grad_clipping": "net, theta",
    "show_heatmaps": "matrices, xlabel, ylabel, titles=None, figsize=(2.5, 2.5), cmap='Reds'",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_the_books(name):
    made = getattr(d2l, name)
    signature = inspect.signature(made.__init__ if isinstance(made, type) else made)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    assert str(inspect.Signature([each for each in plain if each.name != "self"])) == f"({SIGNATURES[name]})"
