"""Tests of what the textbook's modules have in common, beside NumPy in float64 and PyTorch.

The test files of TensorFlow and MXNet import all of them, that of PyTorch most; each has a fixture `framework`.
"""

import collections
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dikkat.textbook import text

BATCH, QUERIES, KEYS, FEATURES, VALUES, HIDDENS, WIDE, HEADS = 2, 3, 5, 7, 11, 13, 17, 3
LENS = [None, [2, 5], [[1, 3, 5], [2, 4, 1]]]
PAIRS = "Go.\tVa !\nI lost.\tJ'ai perdu.\nHe's calm.\tIl est calme.\nI'm home.\tJe suis chez moi.\n"
FRENCH = {
    "go .": "va !", "i lost .": "j'ai perdu .", "he's calm .": "il est calme .", "i'm home .": "je suis chez moi .",
}  # fmt: skip


@dataclass(frozen=True)
class Framework:
    """A framework under test.

    Attributes:
        d2l: The textbook's module.
        tensor: A tensor of an array.
        linear: The output of a linear layer by its weights, float64.
        additive: An additive attention of keys with 7 features, queries with 17 and 13 hidden ones.
        heads: A multi-head attention of 3 heads and 15 hidden features, values of 11; with biases that are not 0 or
            without.
        names: Those that the other module has not.
        signatures: Those that differ from the other module's.
        dropout: The probability in layers that are called as they are made, and so train in PyTorch.
    """

    d2l: Any
    tensor: Callable[..., Any]
    linear: Callable[[Any, np.ndarray], np.ndarray]
    additive: Callable[[], Any]
    heads: Callable[[bool], Any]
    names: str
    signatures: dict[str, str]
    dropout: float = 0.5

    def given(self, lens: Any, dtype: str = "float32") -> Any:
        return None if lens is None else self.tensor(np.array(lens, dtype))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def visible(lens: Any) -> np.ndarray:
    """Booleans (BATCH, QUERIES, KEYS)."""
    each = np.full(BATCH, KEYS) if lens is None else np.asarray(lens)
    return np.broadcast_to(np.arange(KEYS) < each.reshape(BATCH, -1, 1), (BATCH, QUERIES, KEYS))


def softmax(scores: np.ndarray, shown: np.ndarray) -> np.ndarray:
    shares = np.where(shown, np.exp(scores.astype(np.float64)), 0)
    return shares / np.where(shares.sum(-1, keepdims=True) == 0, 1, shares.sum(-1, keepdims=True))


def assert_close(found: Any, expected: Any, atol: float = 1e-5) -> None:
    found = found.detach() if isinstance(found, torch.Tensor) else found
    np.testing.assert_allclose(found.asnumpy() if hasattr(found, "asnumpy") else found, expected, atol=atol)


@pytest.fixture
def sentences(monkeypatch):
    """The four sentences of the book, and no others, without a network."""
    monkeypatch.setattr(text, "raw_corpus", lambda: text.RawCorpus(PAIRS, min_freq=1))


@pytest.mark.parametrize("lens", LENS)
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_masked_softmax(framework, lens, dtype):
    scores = normal(BATCH, QUERIES, KEYS)
    weights = framework.d2l.masked_softmax(framework.tensor(scores), framework.given(lens, dtype))
    assert_close(weights, softmax(scores, visible(lens)), 1e-6)


def test_masked_softmax_of_an_empty_row_is_zero_and_low_scores_count(framework):
    low = np.array([[[-3e8, -1e8, -5e6]], [[1.0, 2.0, 3.0]]], np.float32)
    scores = framework.tensor(low)
    assert_close(framework.d2l.masked_softmax(scores, framework.given([2, 0])), [[[0, 1, 0]], [[0, 0, 0]]], 0)
    assert_close(scores, low, 0)


def test_a_length_above_the_keys_means_all(framework):
    assert_close(framework.d2l.masked_softmax(framework.d2l.zeros((1, 1, 4)), framework.given([9])), [[[0.25] * 4]])


@pytest.mark.parametrize(("lens", "named"), [([1.5, 2], "valid_lens"), ([1, 2, 3], "valid_lens"), ([-1, 2], "-1")])
def test_masked_softmax_refuses(framework, lens, named):
    with pytest.raises(ValueError, match=named):
        framework.d2l.masked_softmax(framework.d2l.zeros((2, 1, 4)), framework.given(lens))


@pytest.mark.parametrize("lens", LENS)
def test_additive_attention(framework, lens):
    queries, keys, values = normal(BATCH, QUERIES, WIDE), normal(BATCH, KEYS, FEATURES), normal(BATCH, KEYS, VALUES)
    attention, linear = framework.additive(), framework.linear
    output = attention(*map(framework.tensor, (queries, keys, values)), framework.given(lens))
    hidden = np.tanh(linear(attention.W_q, queries)[:, :, None] + linear(attention.W_k, keys)[:, None])
    weights = softmax(linear(attention.w_v, hidden)[..., 0], visible(lens))
    assert_close(attention.attention_weights, weights)
    assert_close(output, weights @ values)


@pytest.mark.parametrize("lens", LENS)
def test_dot_product_attention(framework, lens):
    arrays = normal(BATCH, QUERIES, FEATURES), normal(BATCH, KEYS, FEATURES), normal(BATCH, KEYS, VALUES)
    output = framework.d2l.DotProductAttention(framework.dropout)(*map(framework.tensor, arrays), framework.given(lens))
    assert_close(
        output, F.scaled_dot_product_attention(*map(torch.tensor, arrays), attn_mask=torch.tensor(visible(lens)))
    )


@pytest.mark.parametrize("lens", LENS)
@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention(framework, lens, bias):
    attention, linear = framework.heads(bias), framework.linear
    queries, keys, values = normal(BATCH, QUERIES, WIDE), normal(BATCH, KEYS, FEATURES), normal(BATCH, KEYS, VALUES)
    output = attention(*map(framework.tensor, (queries, keys, values)), framework.given(lens))
    projected = (linear(attention.W_q, queries), linear(attention.W_k, keys), linear(attention.W_v, values))
    split = [torch.tensor(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in projected]
    shown = torch.tensor(visible(lens))[:, None]
    joined = F.scaled_dot_product_attention(*split, attn_mask=shown).transpose(1, 2).flatten(-2)
    assert_close(output, linear(attention.W_o, joined.numpy()))
    assert attention.attention.attention_weights.shape == (BATCH * HEADS, QUERIES, KEYS)


def test_heads_are_split_and_joined(framework):
    X = np.arange(2 * 3 * 10).reshape(2, 3, 10).astype(np.float32)
    split = framework.d2l.transpose_qkv(framework.tensor(X), 5)
    assert split.shape == (10, 3, 2)
    assert_close(split[7], X[1, :, 4:6])  # the second sentence's third head
    assert_close(framework.d2l.transpose_output(split, 5), X)


def test_positions_are_sines_and_cosines(framework):
    encoding = framework.d2l.PositionalEncoding(6, framework.dropout, max_len=11)
    added = framework.d2l.numpy(encoding(framework.d2l.zeros((2, 5, 6))))
    for place, feature in ((0, 0), (3, 1), (4, 4), (4, 5)):
        angle = place / 10000 ** (feature // 2 * 2 / 6)
        assert added[1, place, feature] == pytest.approx((math.cos if feature % 2 else math.sin)(angle), abs=1e-5)
    assert encoding.P.shape == (1, 11, 6)


def test_sequence_mask_leaves_its_argument(framework):
    X = framework.tensor(normal(2, 3, 5))
    masked = framework.d2l.sequence_mask(X, framework.given([1, 3]), value=-1)
    assert_close(masked[0, 1:], -np.ones((2, 5)))
    assert_close(masked[1], normal(2, 3, 5)[1])
    assert_close(X, normal(2, 3, 5))


def test_arrays(framework):
    d2l = framework.d2l
    X = d2l.reshape(d2l.arange(6.0), (2, 3))
    assert_close(d2l.numpy(d2l.transpose(X)), np.arange(6).reshape(2, 3).T)
    assert_close(d2l.reduce_sum(X, 0), [3, 5, 7])
    assert_close(d2l.astype(X > 2, d2l.float32), [[0, 0, 0], [1, 1, 1]])
    assert_close(d2l.concat([d2l.ones((1, 2)), d2l.zeros((1, 2))], 0), [[1, 1], [0, 0]])
    assert_close(d2l.matmul(d2l.eye(3), d2l.expand_dims(d2l.tensor([1.0, 2, 3]), -1)), [[1], [2], [3]])
    assert d2l.size(X) == 6
    assert d2l.try_all_gpus() == [d2l.try_gpu()]


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


def test_every_name_is_there(framework):
    assert [name for name in (NAMES + framework.names).split() if name not in vars(framework.d2l)] == []


def test_modules_are_reached_through_it(framework):
    assert framework.d2l.math is math
    assert framework.d2l.collections is collections


@pytest.mark.parametrize(
    ("name", "why"),
    [("Trainer", "edition 1.0"), ("Seq2SeqAttentionDecoder", "cell of the chapter"), ("Updater", "attention chapters")],
)
def test_what_it_does_not_have_it_says(framework, name, why):
    with pytest.raises(AttributeError, match=f"'{framework.d2l.__name__}' has no attribute '{name}': .*{why}"):
        getattr(framework.d2l, name)


@pytest.mark.parametrize("shapes", [((2, 3, 7), (3, 5, 7), (3, 5, 11)), ((2, 3, 7), (2, 5, 7), (2, 4, 11))])
def test_shapes_that_do_not_fit_are_refused(framework, shapes):
    zeros = framework.d2l.zeros
    with pytest.raises(ValueError, match="queries, keys, values: got shapes"):
        framework.d2l.DotProductAttention(0)(*map(zeros, shapes))
    with pytest.raises(ValueError, match=r"X: got shape \(2, 3\)"):
        framework.d2l.masked_softmax(zeros((2, 3)), framework.given([1, 2]))


SIGNATURES = {
    "masked_softmax": "X, valid_lens",
    "sequence_mask": "X, valid_len, value=0",
    "DotProductAttention": "dropout, **kwargs",
    "transpose_qkv": "X, num_heads",
    "transpose_output": "X, num_heads",
    "Seq2SeqEncoder": "vocab_size, embed_size, num_hiddens, num_layers, dropout=0, **kwargs",
    "EncoderDecoder": "encoder, decoder, **kwargs",
    "load_array": "data_arrays, batch_size, is_train=True",
    "load_data_nmt": "batch_size, num_steps, num_examples=600",
    "build_array_nmt": "lines, vocab, num_steps",
    "train_seq2seq": "net, data_iter, lr, num_epochs, tgt_vocab, device",
    "show_heatmaps": "matrices, xlabel, ylabel, titles=None, figsize=(2.5, 2.5), cmap='Reds'",
}


def test_signatures_are_the_books(framework):
    expected, found = SIGNATURES | framework.signatures, {}
    for name in expected:
        made = getattr(framework.d2l, name)
        signature = inspect.signature(made.__init__ if isinstance(made, type) else made)
        plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
        found[name] = str(inspect.Signature([each for each in plain if each.name != "self"]))[1:-1]
    assert found == expected
