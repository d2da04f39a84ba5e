"""The textbook's helper library on Apache MXNet: `from dikkat.textbook import mxnet as d2l`.

Names, signatures and shapes are the book's, of both its generations. As there, `npx.set_np()` comes before arrays and
blocks are made. MXNet's `np.array([2, 3])` is of floats: whole numbers are taken as lengths and token ids so.

What the frameworks have in common stands in `dikkat.textbook.skeleton`, `layers` and `learning`. What differs from the
book, because it is right:

- a row of attention without a valid key has weights 0, scores may lie below −10⁶, and no function writes to its
  arguments;
- an encoder that is given lengths, as `EncoderDecoder` gives them, reads no padding, and its last state is that at each
  sentence's end;
- a length above the number of keys means all of them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as onp

from dikkat.frameworks import mxnet as dikkat
from dikkat.textbook import common, layers, learning
from dikkat.textbook.common import *  # noqa: F403
from dikkat.textbook.layers import between_layers, check_heads, positions
from dikkat.textbook.skeleton import Skeleton
from dikkat.textbook.text import Ids

# isort: split

from mxnet import autograd, context, gluon, init, np, npx
from mxnet.gluon import nn, rnn

from dikkat.frameworks.mxnet.attention import hide
from dikkat.frameworks.mxnet.backend import where, whole_numbers
from dikkat.frameworks.mxnet.masking import visible

__all__ = [  # noqa: RUF022 - by kind
    # arrays
    "abs", "arange", "argmax", "astype", "batch_matmul", "concat", "cos", "cosh", "exp", "expand_dims", "eye",
    "float32", "int32", "int64", "linspace", "log", "matmul", "meshgrid", "normal", "numpy", "ones", "ones_like",
    "rand", "randn", "reduce_mean", "reduce_sum", "repeat", "reshape", "sigmoid", "sin", "sinh", "size", "stack",
    "swapaxes", "tanh", "tensor", "to", "transpose", "zeros", "zeros_like",
    # devices
    "cpu", "gpu", "num_gpus", "try_all_gpus", "try_gpu",
    # attention
    "AdditiveAttention", "DotProductAttention", "MultiHeadAttention", "NWKernelRegression", "PositionalEncoding",
    "masked_softmax", "sequence_mask", "transpose_output", "transpose_qkv",
    # translators
    "AttentionDecoder", "Decoder", "Encoder", "EncoderDecoder", "GRU", "MaskedSoftmaxCELoss", "Seq2SeqAttentionDecoder",
    "Seq2SeqEncoder", "build_array_nmt", "grad_clipping", "load_array", "load_data_nmt", "predict_seq2seq",
    "train_seq2seq",
    # learning
    "DataModule", "MTFraEng", "Module", "Seq2Seq", "Trainer", "nn_Module",
]  # fmt: skip
__all__ += common.__all__

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
    """How many elements an array has."""
    return int(a.size)


def transpose(a: Array) -> Array:
    """An array with its dimensions in the reverse order."""
    return a.T


# --- the skeleton's operations


class _Batches:
    """Batches of rows of arrays that belong together, in another order each time if `shuffle`."""

    def __init__(self, arrays: Sequence[Array], batch_size: int, shuffle: bool) -> None:
        self.arrays, self.batch_size, self.shuffle = arrays, batch_size, shuffle

    def __len__(self) -> int:
        return -(-len(self.arrays[0]) // self.batch_size)

    def __iter__(self) -> Iterator[list[Array]]:
        count = len(self.arrays[0])
        order = onp.random.permutation(count) if self.shuffle else onp.arange(count)
        for start in range(0, count, self.batch_size):
            rows = np.array(order[start : start + self.batch_size], dtype="int32")
            yield [np.take(array, rows, axis=0) for array in self.arrays]


class _MXNet(Skeleton):
    """The skeleton of MXNet: attention is that of `dikkat.frameworks.mxnet`."""

    reshape = staticmethod(np.reshape)
    swapaxes = staticmethod(np.swapaxes)
    broadcast_to = staticmethod(np.broadcast_to)
    concat = staticmethod(np.concatenate)
    full_like = staticmethod(np.full_like)

    def tensor(self, ids: Ids) -> Array:
        return np.array(ids, dtype="int32")

    def integers(self, name: str, X: Array) -> Array:
        whole_numbers(name, X)
        return X  # as they were given: MXNet's functions take floats

    def lengths(self, valid_lens: Array, keys: int, name: str = "valid_lens", least: int = 0) -> Array:
        return self.tensor(whole_numbers(name, valid_lens).clip(max=keys))

    def most_likely(self, scores: Array) -> Array:
        return scores.argmax(axis=2).astype("int32")

    def cpu(self) -> Any:
        return context.cpu()

    def gpu(self, i: int = 0) -> Any:
        return context.gpu(i)

    def num_gpus(self) -> int:
        return int(context.num_gpus())

    def put(self, x: Array, device: Any) -> Array:
        return x.as_in_ctx(device)

    def move(self, net: nn.Block, device: Any) -> None:
        net.collect_params().reset_ctx(device)

    def sequence_mask(self, X: Array, valid_len: Array, value: float = 0) -> Array:
        inside = onp.arange(X.shape[1]) < whole_numbers("valid_len", valid_len)[:, None]
        return where(inside.reshape(*inside.shape, *[1] * (X.ndim - 2)), X, value)

    def masked_softmax(self, X: Array, valid_lens: Array | None) -> Array:
        return dikkat.masked_softmax(X, None if valid_lens is None else self.lengths(valid_lens, X.shape[-1]))

    def shown(self, queries: Array, keys: Array, valid_lens: Array | None) -> Any:
        lens = None if valid_lens is None else self.lengths(valid_lens, keys.shape[1])
        return visible(queries.shape[:1], queries.shape[1], keys.shape[1], valid_lens=lens)

    def hide(self, queries: Array, keys: Array, values: Array, shown: Any) -> tuple[Array, Array, Array]:
        return hide(queries, keys, values, shown)

    def compare(self, score: nn.Block, queries: Array, keys: Array) -> Array:
        return dikkat.compare(queries, keys, pair=score.pair, weight=score.pair_weight())

    def pool(self, scores: Array, values: Array, shown: Any, dropout: float) -> tuple[Array, Array]:
        return dikkat.pool(scores, values, shown, dropout=dropout)

    def repeat_rows(self, shown: Any, times: int) -> Any:
        return shown.repeat(times, axis=0)

    def dropping(self, layer: nn.Block, training: None) -> float:
        return layer.dropout if autograd.is_training() else 0.0

    def load_array(self, data_arrays: Sequence[Array], batch_size: int, is_train: bool = True) -> _Batches:
        return _Batches(data_arrays, batch_size, is_train)

    def optimizer(self, net: nn.Block, name: str, lr: float) -> gluon.Trainer:
        return gluon.Trainer(net.collect_params(), name, {"learning_rate": lr})

    def learn(self, net: nn.Block, optimizer: gluon.Trainer, loss: Callable[[], Array], theta: float) -> Array:
        with autograd.record():
            value = loss()
        value.backward()
        if theta:
            grad_clipping(net, theta)
        optimizer.step(1)
        return value

    def total_loss(self, scores: Array, labels: Array, lens: Array) -> Array:
        return MaskedSoftmaxCELoss()(scores, labels, lens).sum()

    def mean_loss(self, scores: Array, labels: Array, padding: int) -> Array:
        losses = _cross_entropy(scores, labels)
        real = np.not_equal(labels, padding).astype(losses.dtype)
        return (losses * real).sum() / real.sum()

    def restart(self, net: nn.Block, device: Any) -> None:
        net.initialize(init.Xavier(), force_reinit=True, ctx=device)


_mxnet = _MXNet()
cpu, gpu, num_gpus = _mxnet.cpu, _mxnet.gpu, _mxnet.num_gpus
try_gpu, try_all_gpus = _mxnet.try_gpu, _mxnet.try_all_gpus
masked_softmax, sequence_mask = _mxnet.masked_softmax, _mxnet.sequence_mask
transpose_qkv, transpose_output = _mxnet.transpose_qkv, _mxnet.transpose_output
load_array, build_array_nmt, load_data_nmt = _mxnet.load_array, _mxnet.build_array_nmt, _mxnet.load_data_nmt
train_seq2seq, predict_seq2seq = _mxnet.train_seq2seq, _mxnet.predict_seq2seq


# --- attention


def _dense(num_hiddens: int, bias: bool = False, inputs: int = 0) -> nn.Dense:
    """A linear layer of the last dimension; of 0 inputs one that takes its size from the first call."""
    return nn.Dense(num_hiddens, use_bias=bias, flatten=False, in_units=inputs)


class AdditiveAttention(layers.AdditiveAttention, nn.Block):
    """Additive attention: `dikkat.textbook.layers.AdditiveAttention`, of the sizes of the first call.

    Example:
        >>> npx.set_np()
        >>> attention = AdditiveAttention(num_hiddens=19, dropout=0.25)
        >>> attention.initialize()
        >>> queries, keys, values = np.zeros((5, 3, 17)), np.ones((5, 7, 11)), np.ones((5, 7, 13))
        >>> attention(queries, keys, values, np.array([7, 1, 4, 0, 3])).shape, attention.attention_weights.shape
        ((5, 3, 13), (5, 3, 7))
    """

    framework = _mxnet

    def __init__(self, num_hiddens: int, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.W_k, self.W_q, self.w_v = _dense(num_hiddens), _dense(num_hiddens), _dense(1, inputs=num_hiddens)
        self.dropout = dropout

    def pair_weight(self) -> Array:
        """v, (num_hiddens,)."""
        return self.w_v.weight.data()[0]


class DotProductAttention(layers.DotProductAttention, nn.Block):
    """Scaled dot-product attention: `dikkat.textbook.layers.DotProductAttention`."""

    framework = _mxnet

    def __init__(self, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = dropout


class MultiHeadAttention(layers.MultiHeadAttention, nn.Block):
    """Multi-head attention: `dikkat.textbook.layers.MultiHeadAttention`, of the sizes of the first call."""

    framework = _mxnet

    def __init__(self, num_hiddens: int, num_heads: int, dropout: float, use_bias: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_heads(num_hiddens, num_heads)
        self.num_heads, self.attention = num_heads, DotProductAttention(dropout)
        self.W_q, self.W_k, self.W_v, self.W_o = (_dense(num_hiddens, use_bias) for _ in range(4))


class NWKernelRegression(layers.NWKernelRegression, nn.Block):
    """Nadaraya–Watson regression: `dikkat.textbook.layers.NWKernelRegression`."""

    framework = _mxnet

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.w = self.params.get("w", shape=(1,), init=init.Uniform(1))

    def project_query(self, query: Array) -> Array:
        """q w."""
        return query * self.w.data(query.ctx)

    def project_key(self, key: Array) -> Array:
        """k w."""
        return key * self.w.data(key.ctx)


class PositionalEncoding(layers.PositionalEncoding, nn.Block):
    """Adds to each position sines and cosines of its own: `dikkat.textbook.layers.PositionalEncoding`."""

    def __init__(self, num_hiddens: int, dropout: float, max_len: int = 1000) -> None:
        super().__init__()
        self.dropout, self.P = nn.Dropout(dropout), np.array(positions(num_hiddens, max_len))

    def forward(self, X: Array) -> Array:
        """(B, n, num_hiddens) -> (B, n, num_hiddens)."""
        return self.dropout(X + self.P[:, : X.shape[1]].as_in_ctx(X.ctx))


# --- translators


class Encoder(layers.Encoder, nn.Block):
    """The interface of encoders."""

    framework = _mxnet


class Decoder(layers.Decoder, nn.Block):
    """The interface of decoders."""

    framework = _mxnet


class AttentionDecoder(layers.AttentionDecoder, Decoder):
    """The interface of decoders that attend."""


class EncoderDecoder(layers.EncoderDecoder, nn.Block):
    """An encoder, and a decoder that begins with what it found."""

    framework = _mxnet

    def __init__(self, encoder: Any, decoder: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.encoder, self.decoder = encoder, decoder


class GRU(nn.Block):
    """A GRU of several layers, steps first; the features of its inputs are those of the first call.

    Args:
        num_hiddens: Features of a state.
        num_layers: Layers.
        dropout: The probability with which a feature is dropped between layers, in training.

    Example:
        >>> npx.set_np()
        >>> gru = GRU(5, 3)
        >>> gru.initialize()
        >>> outputs, state = gru(np.zeros((7, 2, 11)))
        >>> outputs.shape, state.shape
        ((7, 2, 5), (3, 2, 5))
    """

    def __init__(self, num_hiddens: int, num_layers: int, dropout: float = 0) -> None:
        super().__init__()
        self.rnn = rnn.GRU(num_hiddens, num_layers, dropout=dropout)

    def forward(self, inputs: Array, H: Array | None = None) -> tuple[Array, Array]:
        """(T, B, e) and a state (layers, B, h), None for zeros -> states (T, B, h), the last state."""
        before = self.rnn.begin_state(inputs.shape[1], ctx=inputs.ctx) if H is None else [H]
        outputs, (state,) = self.rnn(inputs, before)
        return outputs, state


class States(list[Any]):
    """An encoder's last state, for the decoders of both generations.

    To the first it is a list of one array, (layers, B, h), as Gluon's recurrent layers have it; the second asks it for
    its last entry, as of the array itself: the top layer's state, (B, h).
    """

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(0)[-1] if index == -1 else super().__getitem__(index)


class _Ready(nn.Block):
    """A block whose weights are there at once, and are drawn anew when it is initialized again."""

    def initialize(self, *args: Any, force_reinit: bool = True, **kwargs: Any) -> None:
        """As of every block."""
        super().initialize(*args, force_reinit=force_reinit, **kwargs)


class Seq2SeqEncoder(layers.Seq2SeqEncoder, _Ready, Encoder):
    """An embedding and a GRU: `dikkat.textbook.layers.Seq2SeqEncoder`; its last state is `States`."""

    def __init__(
        self, vocab_size: int, embed_size: int, num_hiddens: int, num_layers: int, dropout: float = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = dikkat.GRUEncoder(embed_size, num_hiddens, num_layers, False, between_layers(num_layers, dropout))
        self.initialize(init.Xavier())

    def state_out(self, state: Array) -> States:
        """(layers, B, h) as `States`."""
        return States([state])


class Seq2SeqAttentionDecoder(layers.Seq2SeqAttentionDecoder, _Ready, AttentionDecoder):
    """A GRU that looks at the encoder's states before every step: `dikkat.textbook.layers.Seq2SeqAttentionDecoder`.

    Example:
        >>> npx.set_np()
        >>> encoder = Seq2SeqEncoder(vocab_size=23, embed_size=7, num_hiddens=13, num_layers=1)
        >>> decoder = Seq2SeqAttentionDecoder(vocab_size=29, embed_size=5, num_hiddens=13, num_layers=1)
        >>> sources, lens = np.ones((2, 11)), np.array([11, 3])
        >>> scores, _ = decoder(np.ones((2, 3)), decoder.init_state(encoder(sources, lens), lens))
        >>> scores.shape, [each.shape for each in decoder.attention_weights]
        ((2, 3, 29), [(2, 1, 11), (2, 1, 11), (2, 1, 11)])
    """

    def __init__(
        self, vocab_size: int, embed_size: int, num_hiddens: int, num_layers: int, dropout: float = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = dikkat.AttentionalGRU(
            embed_size,
            num_hiddens,
            num_hiddens,
            dikkat.scores.Additive(num_hiddens, num_hiddens, num_hiddens),
            num_layers,
            between_layers(num_layers, dropout),
            weight_dropout=dropout,
        )
        self.dense = _dense(vocab_size, bias=True, inputs=num_hiddens)
        self.initialize(init.Xavier())

    def state_in(self, state: Any) -> Array:
        """(layers, B, h), of `States` or as it is."""
        return state[0] if isinstance(state, list) else state

    def state_out(self, state: Array) -> States:
        """(layers, B, h) as `States`."""
        return States([state])


class MaskedSoftmaxCELoss(nn.Block):
    """Cross-entropy of the labels that are no padding.

    Example:
        >>> npx.set_np()
        >>> MaskedSoftmaxCELoss()(np.zeros((2, 5, 7)), np.zeros((2, 5)), np.array([0, 5])).round(2)
        array([0.  , 1.95])
    """

    def __init__(self) -> None:
        super().__init__()

    def forward(self, pred: Array, label: Array, valid_len: Array) -> Array:
        """The sum over each sequence's real tokens, divided by all its positions.

        Args:
            pred: (B, T, vocab_size) scores.
            label: (B, T) token ids.
            valid_len: (B,).

        Returns:
            (B,).
        """
        return sequence_mask(_cross_entropy(pred, label), valid_len).mean(axis=1)


def _cross_entropy(pred: Array, label: Array) -> Array:
    return -npx.pick(npx.log_softmax(pred, axis=-1), _mxnet.integers("label", label), axis=-1)


def grad_clipping(net: Any, theta: float) -> None:
    """Shrink the gradients of a block, or of an object's `params`, to a norm of theta if it is larger."""
    if isinstance(net, nn.Block):
        grads = [each.grad() for each in net.collect_params().values() if each.grad_req != "null"]
    else:
        grads = [each.grad for each in net.params]
    # In NumPy: MXNet takes longer to begin a sum than to do this one.
    norm = float(onp.linalg.norm([onp.linalg.norm(grad.asnumpy()) for grad in grads]))
    if norm > theta:
        for grad in grads:
            grad *= theta / norm


# --- learning, in the second generation's way


class Module(learning.LearningModel, nn.Block):
    """A model that draws how it learns: `dikkat.textbook.learning.LearningModel`."""

    framework = _mxnet

    def parameters(self) -> Any:
        """The parameters, by name."""
        return self.collect_params()


class DataModule(learning.LearningData):
    """Batches to learn from and to validate with: `dikkat.textbook.learning.LearningData`."""

    framework = _mxnet


class MTFraEng(learning.FrenchFromEnglish, DataModule):
    """English sentences and their French translations: `dikkat.textbook.learning.FrenchFromEnglish`."""


class Trainer(learning.LearningTrainer):
    """Goes through the data, epoch by epoch: `dikkat.textbook.learning.LearningTrainer`."""

    framework = _mxnet


class Seq2Seq(learning.LearningTranslator, EncoderDecoder, Module):
    """A translator that `Trainer` trains: `dikkat.textbook.learning.LearningTranslator`."""
