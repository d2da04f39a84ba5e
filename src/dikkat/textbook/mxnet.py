"""The textbook's helper library on Apache MXNet: `from dikkat.textbook import mxnet as d2l`.

Names, signatures and shapes are those of the book's edition 0.17 and of its second Chinese edition. As in the book,
call `npx.set_np()` before creating arrays and blocks. `np.array([2, 3])` has floats, so lengths and token ids may be
whole numbers of any dtype.
`dikkat.textbook.torch` lists the corrections of the book.
"""

import math
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as onp

from dikkat.textbook import text
from dikkat.textbook.common import *  # noqa: F403
from dikkat.textbook.common import Vocab, absent, devices, run_epochs
from dikkat.textbook.tools import check_attention, check_heads, positions


def _import_error(reason: str) -> ImportError:
    return ImportError(
        f"dikkat.textbook.mxnet: {reason}; expected MXNet 1.9.1, its last release, with Python 3.11 or older and numpy "
        "1.23.5. In a separate environment with Python 3.11, run: pip install '.[textbook-mxnet]'"
    )


if sys.version_info[:2] > (3, 11):
    raise _import_error(f"got Python {sys.version_info[0]}.{sys.version_info[1]}")
if find_spec("mxnet") is None:
    raise _import_error("got no MXNet")
if tuple(int(number) for number in onp.__version__.split(".")[:2]) > (1, 23):
    raise _import_error(f"got numpy {onp.__version__}, without names that MXNet uses")
try:
    with warnings.catch_warnings():  # MXNet, of 2022, imports names that are deprecated since
        warnings.simplefilter("ignore", DeprecationWarning)
        from mxnet import autograd, context, gluon, init, np, npx
        from mxnet.gluon import nn, rnn
except OSError as error:
    raise _import_error(
        f"got an MXNet library that does not load ({error}). Install libgomp1 and libquadmath0 (Debian, Ubuntu) or "
        "libgomp and libquadmath (Fedora)"
    ) from error

__getattr__ = partial(absent, __name__)

Array = Any  # mxnet.np.ndarray

# --- arrays

tensor, zeros, ones, zeros_like, ones_like, eye = np.array, np.zeros, np.ones, np.zeros_like, np.ones_like, np.eye
arange, linspace, meshgrid = np.arange, np.linspace, np.meshgrid
normal, rand, randn = np.random.normal, np.random.rand, np.random.randn
abs, exp, log, sigmoid = np.abs, np.exp, np.log, npx.sigmoid
sin, cos, sinh, cosh, tanh = np.sin, np.cos, np.sinh, np.cosh, np.tanh
matmul, batch_matmul, concat, stack, expand_dims = np.dot, npx.batch_dot, np.concatenate, np.stack, np.expand_dims
int32, int64, float32 = np.int32, np.int64, np.float32
nn_Module = nn.Block  # noqa: N816 - the book's name
_method = np.ndarray
numpy, reshape, to, astype, repeat = (
    _method.asnumpy, _method.reshape, _method.as_in_ctx, _method.astype, _method.repeat
)  # fmt: skip
reduce_sum, reduce_mean, argmax, swapaxes = _method.sum, _method.mean, _method.argmax, _method.swapaxes


def size(a: Array) -> int:
    """Return the number of elements of an array."""
    return int(a.size)


def transpose(a: Array) -> Array:
    """Return an array with its dimensions in reverse order."""
    return a.T


# --- devices

cpu, gpu, num_gpus = context.cpu, context.gpu, context.num_gpus


try_gpu, try_all_gpus = devices(cpu, gpu, num_gpus)


# --- attention


def _integers(name: str, X: Array) -> text.Ids:
    """Return whole numbers of any dtype as NumPy's int64."""
    values = X.asnumpy()
    invalid = values[~onp.isfinite(values) | (values != onp.floor(values))]
    if invalid.size:
        raise ValueError(f"{name}: got {invalid[0]}; expected whole numbers, as integers or as floats")
    return values.astype(onp.int64)


def _where(condition: Any, X: Array, value: float) -> Array:
    # With a number as the second branch, MXNet's `where` has the gradient of the wrong branch.
    return np.where(np.array(condition, dtype="bool", ctx=X.ctx), X, np.full((), value, dtype=X.dtype, ctx=X.ctx))


def sequence_mask(X: Array, valid_len: Array, value: float = 0) -> Array:
    """Return a copy of X (B, T, ...) with `value` after each sequence's length (B,).

    Raises:
        ValueError: A length that is not whole.
    """
    inside = onp.arange(X.shape[1]) < _integers("valid_len", valid_len)[:, None]
    return _where(inside.reshape(*inside.shape, *[1] * (X.ndim - 2)), X, value)


def _visible(valid_lens: Array | None, scores_shape: Sequence[int]) -> Any:
    """Return the visible pairs, NumPy booleans (B, n or 1, m), for scores of a shape; None for all."""
    if valid_lens is None:
        return None
    if len(scores_shape) != 3:
        raise ValueError(f"X: got shape {tuple(scores_shape)}; expected (batch, queries, keys)")
    batch, queries, keys = scores_shape
    lens = _integers("valid_lens", valid_lens)
    if lens.shape not in ((batch,), (batch, queries)):
        raise ValueError(f"valid_lens: got shape {lens.shape}; expected ({batch},) or ({batch}, {queries})")
    if lens.size and lens.min() < 0:
        raise ValueError(f"valid_lens: got {lens.min()}; expected at least 0")
    return onp.arange(keys) < lens.reshape(batch, -1, 1)


def _softmax(scores: Array, visible: Any) -> Array:
    """Return weights over the visible keys; 0 in a row without any, where MXNet's softmax is NaN."""
    if visible is None:
        return npx.softmax(scores, axis=-1)
    return _where(visible, npx.softmax(_where(visible, scores, -onp.inf), axis=-1), 0.0)


def masked_softmax(X: Array, valid_lens: Array | None) -> Array:
    """Return the softmax over the first entries of each row, as `dikkat.textbook.layers.masked_softmax`.

    Example:
        >>> npx.set_np()
        >>> masked_softmax(np.zeros((1, 2, 4)), np.array([[2, 0]]))
        array([[[0.5, 0.5, 0. , 0. ],
                [0. , 0. , 0. , 0. ]]])
    """
    return _softmax(X, _visible(valid_lens, X.shape))


def _hide(queries: Array, keys: Array, values: Array, valid_lens: Array | None) -> tuple[Array, Array, Array, Any]:
    """Return the inputs as `dikkat.textbook.layers._hide`, and the visible pairs."""
    visible = _visible(valid_lens, check_attention(queries.shape, keys.shape, values.shape))
    if visible is None:
        return queries, keys, values, None
    is_seen = visible.any(1)[..., None]
    return _where(visible.any(2)[..., None], queries, 0), _where(is_seen, keys, 0), _where(is_seen, values, 0), visible


def _dense(num_hiddens: int, bias: bool = False) -> nn.Dense:
    return nn.Dense(num_hiddens, use_bias=bias, flatten=False)


class AdditiveAttention(nn.Block):
    """Additive attention as `dikkat.textbook.layers.AdditiveAttention`, with sizes inferred from the first call.

    Example:
        >>> npx.set_np()
        >>> attention = AdditiveAttention(num_hiddens=19, dropout=0.25)
        >>> attention.initialize()
        >>> queries, keys, values = np.zeros((5, 3, 17)), np.ones((5, 7, 11)), np.ones((5, 7, 13))
        >>> attention(queries, keys, values, np.array([7, 1, 4, 0, 3])).shape, attention.attention_weights.shape
        ((5, 3, 13), (5, 3, 7))
    """

    def __init__(self, num_hiddens: int, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.W_k, self.W_q, self.w_v = _dense(num_hiddens), _dense(num_hiddens), _dense(1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries: Array, keys: Array, values: Array, valid_lens: Array | None = None) -> Array:
        """(B, n, d_q), (B, m, d_k), (B, m, d_v), lengths (B,) or (B, n), None for all -> (B, n, d_v)."""
        queries, keys, values, visible = _hide(queries, keys, values, valid_lens)
        features = np.tanh(np.expand_dims(self.W_q(queries), 2) + np.expand_dims(self.W_k(keys), 1))
        self.attention_weights = _softmax(self.w_v(features).squeeze(-1), visible)
        return npx.batch_dot(self.dropout(self.attention_weights), values)


class DotProductAttention(nn.Block):
    """Scaled dot-product attention, as `dikkat.textbook.layers.DotProductAttention`."""

    def __init__(self, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries: Array, keys: Array, values: Array, valid_lens: Array | None = None) -> Array:
        """(B, n, d), (B, m, d), (B, m, d_v), lengths (B,) or (B, n), None for all -> (B, n, d_v)."""
        queries, keys, values, visible = _hide(queries, keys, values, valid_lens)
        scores = npx.batch_dot(queries, keys, transpose_b=True) / math.sqrt(queries.shape[-1])
        self.attention_weights = _softmax(scores, visible)
        return npx.batch_dot(self.dropout(self.attention_weights), values)


def transpose_qkv(X: Array, num_heads: int) -> Array:
    """Reshape (B, n, heads · d) to (B · heads, n, d), one batch element for each head."""
    batch, length, features = X.shape
    heads = X.reshape(batch, length, num_heads, features // num_heads).swapaxes(1, 2)
    return heads.reshape(batch * num_heads, length, features // num_heads)


def transpose_output(X: Array, num_heads: int) -> Array:
    """Reshape (B · heads, n, d) to (B, n, heads · d), the inverse of `transpose_qkv`."""
    rows, length, features = X.shape
    joined = X.reshape(rows // num_heads, num_heads, length, features).swapaxes(1, 2)
    return joined.reshape(rows // num_heads, length, num_heads * features)


class MultiHeadAttention(nn.Block):
    """Multi-head attention as `dikkat.textbook.layers.MultiHeadAttention`, with sizes inferred from the first call."""

    def __init__(self, num_hiddens: int, num_heads: int, dropout: float, use_bias: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_heads(num_hiddens, num_heads)
        self.num_heads, self.attention = num_heads, DotProductAttention(dropout)
        self.W_q, self.W_k, self.W_v, self.W_o = (_dense(num_hiddens, use_bias) for _ in range(4))

    def forward(self, queries: Array, keys: Array, values: Array, valid_lens: Array | None = None) -> Array:
        """(B, n, d_q), (B, m, d_k), (B, m, d_v), lengths (B,) or (B, n), None for all -> (B, n, num_hiddens)."""
        queries, keys, values, _ = _hide(queries, keys, values, valid_lens)
        heads = (
            transpose_qkv(layer(X), self.num_heads)
            for layer, X in ((self.W_q, queries), (self.W_k, keys), (self.W_v, values))
        )
        output = self.attention(*heads, None if valid_lens is None else valid_lens.repeat(self.num_heads, axis=0))
        return self.W_o(transpose_output(output, self.num_heads))


class PositionalEncoding(nn.Block):
    """Adds sines and cosines of positions, as `dikkat.textbook.layers.PositionalEncoding`."""

    def __init__(self, num_hiddens: int, dropout: float, max_len: int = 1000) -> None:
        super().__init__()
        self.dropout, self.P = nn.Dropout(dropout), np.array(positions(num_hiddens, max_len))

    def forward(self, X: Array) -> Array:
        """(B, n, num_hiddens) -> (B, n, num_hiddens)."""
        return self.dropout(X + self.P[:, : X.shape[1]].as_in_ctx(X.ctx))


# --- translators


class Encoder(nn.Block):
    """The interface of encoders: `forward` encodes inputs for a decoder."""


class Decoder(nn.Block):
    """The interface of decoders: `forward` maps inputs and a state to outputs and the new state."""

    def init_state(self, enc_outputs: Any, *args: Any) -> Any:
        """Return the state before the first step from the encoder's outputs; defined by subclasses."""
        raise NotImplementedError


class AttentionDecoder(Decoder):
    """The interface of decoders that attend."""

    @property
    def attention_weights(self) -> Any:
        """The attention weights of the last call; defined by subclasses."""
        raise NotImplementedError


class EncoderDecoder(nn.Block):
    """An encoder, and a decoder that starts with the encoder's outputs."""

    def __init__(self, encoder: nn.Block, decoder: nn.Block, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.encoder, self.decoder = encoder, decoder

    def forward(self, enc_X: Array, dec_X: Array, *args: Any) -> tuple[Array, Any]:
        """Return the decoder's outputs and state; `args`, such as lengths, go to the encoder and to `init_state`."""
        return self.decoder(dec_X, self.decoder.init_state(self.encoder(enc_X, *args), *args))


class Seq2SeqEncoder(Encoder):
    """An embedding and a GRU that reads no padding if it has lengths, as `dikkat.textbook.layers.Seq2SeqEncoder`.

    Example:
        >>> npx.set_np()
        >>> encoder = Seq2SeqEncoder(vocab_size=23, embed_size=7, num_hiddens=13, num_layers=2)
        >>> encoder.initialize()
        >>> outputs, state = encoder(np.ones((3, 11)), np.array([11, 5, 1]))
        >>> outputs.shape, state[0].shape
        ((11, 3, 13), (2, 3, 13))
    """

    def __init__(
        self, vocab_size: int, embed_size: int, num_hiddens: int, num_layers: int, dropout: float = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = rnn.GRU(num_hiddens, num_layers, dropout=dropout)

    def forward(self, X: Array, valid_len: Array | None = None, *args: Any) -> tuple[Array, list[Array]]:
        """Encode token ids (B, T) of lengths (B,), None for all.

        Returns:
            The top layer's states (T, B, h), 0 for padding; the last states, a list of one array (layers, B, h).

        Raises:
            ValueError: Token ids or lengths that are not whole numbers.
        """
        _integers("X", X)
        inputs, state = self.embedding(X).swapaxes(0, 1), self.rnn.begin_state(X.shape[0], ctx=X.ctx)
        if valid_len is None:
            outputs, state = self.rnn(inputs, state)
            return outputs, state
        # Step by step, because MXNet's operator does not support lengths on a CPU.
        step_outputs, lens = [], _integers("valid_len", valid_len)
        for step, x in enumerate(inputs):
            is_token = np.array((step < lens)[:, None], dtype="bool", ctx=X.ctx)
            output, next_state = self.rnn(np.expand_dims(x, 0), state)
            state = [np.where(is_token, new, old) for new, old in zip(next_state, state, strict=True)]
            step_outputs.append(_where((step < lens)[:, None], output, 0))
        return np.concatenate(step_outputs, axis=0), state


class MaskedSoftmaxCELoss(nn.Block):
    """The masked cross-entropy of each sequence: losses of padding are 0, but the mean is over all positions.

    Example:
        >>> npx.set_np()
        >>> MaskedSoftmaxCELoss()(np.zeros((2, 5, 7)), np.zeros((2, 5)), np.array([0, 5])).round(2)
        array([0.  , 1.95])
    """

    def __init__(self) -> None:
        super().__init__()

    def forward(self, pred: Array, label: Array, valid_len: Array) -> Array:
        """Scores (B, T, vocab_size), token ids (B, T), lengths (B,) -> the sum over real tokens, divided by T, (B,)."""
        _integers("label", label)
        losses = -npx.pick(npx.log_softmax(pred, axis=-1), label, axis=-1)
        return sequence_mask(losses, valid_len).mean(axis=1)


def grad_clipping(net: Any, theta: float) -> None:
    """Scale the gradients of a block, or of an object's `params`, to the norm theta if theirs is larger."""
    if isinstance(net, nn.Block):
        grads = [parameter.grad() for parameter in net.collect_params().values() if parameter.grad_req != "null"]
    else:
        grads = [parameter.grad for parameter in net.params]
    norm = math.sqrt(sum(float((grad**2).sum()) for grad in grads))
    if norm > theta:
        for grad in grads:
            grad *= theta / norm


def load_array(data_arrays: Sequence[Array], batch_size: int, is_train: bool = True) -> gluon.data.DataLoader:
    """Return batches of matching rows of arrays, shuffled in each epoch if `is_train`."""
    return gluon.data.DataLoader(gluon.data.ArrayDataset(*data_arrays), batch_size, shuffle=is_train)


def build_array_nmt(lines: Sequence[Sequence[str]], vocab: Vocab, num_steps: int) -> tuple[Array, Array]:
    """Return token ids (sentences, num_steps) and lengths (sentences,) of `text.build_array_nmt` as arrays."""
    ids, lens = text.build_array_nmt(lines, vocab, num_steps)
    return np.array(ids, dtype="int32"), np.array(lens, dtype="int32")


def load_data_nmt(
    batch_size: int, num_steps: int, num_examples: int | None = 600
) -> tuple[gluon.data.DataLoader, Vocab, Vocab]:
    """Return batches of `dikkat.textbook.text.load_data_nmt`, and the vocabularies of both languages."""
    arrays, source, target = text.load_data_nmt(num_steps, num_examples)
    return load_array([np.array(array, dtype="int32") for array in arrays], batch_size), source, target


def train_seq2seq(net: nn.Block, data_iter: Any, lr: float, num_epochs: int, tgt_vocab: Vocab, device: Any) -> None:
    """Train an `EncoderDecoder` from new random weights, as `dikkat.textbook.learning.train_seq2seq`."""
    net.initialize(init.Xavier(), force_reinit=True, ctx=device)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": lr})
    loss = MaskedSoftmaxCELoss()

    def step(batch: Sequence[Array]) -> tuple[float, float]:
        X, X_lens, Y, Y_lens = (array.as_in_ctx(device) for array in batch)
        dec_input = np.concatenate([np.full_like(Y[:, :1], tgt_vocab["<bos>"]), Y[:, :-1]], axis=1)
        with autograd.record():
            scores, _ = net(X, dec_input, X_lens)
            total = loss(scores, Y, Y_lens).sum()
        total.backward()
        grad_clipping(net, 1)
        trainer.step(1)
        return float(total), float(Y_lens.sum())

    run_epochs(step, data_iter, num_epochs, device)


def predict_seq2seq(
    net: nn.Block, src_sentence: str, src_vocab: Vocab, tgt_vocab: Vocab, num_steps: int, device: Any,
    save_attention_weights: bool = False,
) -> tuple[str, list[Any]]:  # fmt: skip
    """Translate a sentence, as `dikkat.textbook.learning.predict_seq2seq`."""
    arrays = build_array_nmt([src_sentence.lower().split()], src_vocab, num_steps)
    X, lens = (array.as_in_ctx(device) for array in arrays)
    state = net.decoder.init_state(net.encoder(X, lens), lens)
    token, tokens, weights = np.array([[tgt_vocab["<bos>"]]], dtype="int32", ctx=device), [], []
    for _ in range(num_steps):
        scores, state = net.decoder(token, state)
        token = scores.argmax(axis=2).astype("int32")
        if save_attention_weights:
            weights.append(net.decoder.attention_weights)
        if int(token[0, 0]) == tgt_vocab["<eos>"]:
            break
        tokens.append(int(token[0, 0]))
    return " ".join(tgt_vocab.to_tokens(tokens)), weights
