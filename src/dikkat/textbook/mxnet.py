"""The textbook's helper library on Apache MXNet: `from dikkat.textbook import mxnet as d2l`.

Names, signatures and shapes are the book's, of both its generations. As there, `npx.set_np()` comes before arrays and
blocks are made. MXNet's `np.array([2, 3])` is of floats: whole numbers are taken as lengths and token ids so.

What differs from the book, because it is right:

- a row of attention without a valid key has weights 0, scores may lie below −10⁶, and no function writes to its
  arguments;
- an encoder that is given lengths, as `EncoderDecoder` gives them, reads no padding, and its last state is that at each
  sentence's end;
- a length above the number of keys means all of them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as onp

from dikkat.frameworks import mxnet as dikkat
from dikkat.textbook import learning, pictures, text, tools
from dikkat.textbook.pictures import plt, set_axes, set_figsize, use_svg_display
from dikkat.textbook.positions import positions
from dikkat.textbook.text import Vocab, bleu, preprocess_nmt, read_data_nmt, tokenize_nmt, truncate_pad
from dikkat.textbook.tools import HyperParameters, Timer, add_to_class, check_len, check_shape

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
    # pictures and tools
    "Accumulator", "Animator", "HyperParameters", "ProgressBoard", "Timer", "add_to_class", "check_len", "check_shape",
    "plot", "plt", "set_axes", "set_figsize", "show_heatmaps", "use_svg_display",
    # attention
    "AdditiveAttention", "DotProductAttention", "MultiHeadAttention", "NWKernelRegression", "PositionalEncoding",
    "masked_softmax", "sequence_mask", "transpose_output", "transpose_qkv",
    # text
    "MTFraEng", "Vocab", "bleu", "build_array_nmt", "load_array", "load_data_nmt", "preprocess_nmt", "read_data_nmt",
    "tokenize_nmt", "truncate_pad",
    # translators
    "AttentionDecoder", "Decoder", "Encoder", "EncoderDecoder", "GRU", "MaskedSoftmaxCELoss", "Seq2Seq",
    "Seq2SeqAttentionDecoder", "Seq2SeqEncoder", "grad_clipping", "predict_seq2seq", "train_seq2seq",
    # learning
    "DataModule", "Module", "Trainer", "nn_Module",
]  # fmt: skip

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


def _as_array(x: Any) -> Any:
    return x.asnumpy() if isinstance(x, np.ndarray) else pictures.Pictures().as_array(x)


def _ids(name: str, X: Array) -> Array:
    """Token ids as they came, once they are seen to be whole."""
    whole_numbers(name, X)
    return X


def _lens(valid_lens: Array | None, keys: int) -> Array | None:
    """Lengths, none of them above the number of keys."""
    if valid_lens is None:
        return None
    return np.array(whole_numbers("valid_lens", valid_lens).clip(max=keys), dtype="int32")


# --- devices


def cpu() -> Any:
    """The CPU."""
    return context.cpu()


def gpu(i: int = 0) -> Any:
    """The i-th GPU."""
    return context.gpu(i)


def num_gpus() -> int:
    """How many GPUs there are."""
    return int(context.num_gpus())


def try_gpu(i: int = 0) -> Any:
    """The i-th GPU if it is there, otherwise the CPU."""
    return gpu(i) if num_gpus() > i else cpu()


def try_all_gpus() -> list[Any]:
    """All GPUs, or a list of the CPU where there are none."""
    return [gpu(i) for i in range(num_gpus())] or [cpu()]


# --- pictures and tools

_pictures = pictures.Pictures(_as_array)
plot, show_heatmaps = _pictures.plot, _pictures.show_heatmaps


class Animator(pictures.Animator):
    """Curves that grow while a model learns: `dikkat.textbook.pictures.Animator` of arrays."""

    as_array = staticmethod(_as_array)


class ProgressBoard(pictures.ProgressBoard):
    """A board of curves: `dikkat.textbook.pictures.ProgressBoard` of arrays."""

    as_array = staticmethod(_as_array)


class Accumulator(tools.Accumulator):
    """Sums of n figures: `dikkat.textbook.tools.Accumulator` of arrays."""

    as_array = staticmethod(_as_array)


# --- attention


def sequence_mask(X: Array, valid_len: Array, value: float = 0) -> Array:
    """A copy in which what stands behind each sequence's length is another value.

    Args:
        X: (B, T, ...).
        valid_len: (B,) whole numbers.
        value: what is to stand there.

    Example:
        >>> npx.set_np()
        >>> sequence_mask(np.array([[7, 7], [8, 8], [9, 9]]), np.array([0, 2, 1]), value=-1)
        array([[-1., -1.],
               [ 8.,  8.],
               [ 9., -1.]])
    """
    inside = onp.arange(X.shape[1]) < whole_numbers("valid_len", valid_len)[:, None]
    return where(inside.reshape(*inside.shape, *[1] * (X.ndim - 2)), X, value)


def masked_softmax(X: Array, valid_lens: Array | None) -> Array:
    """`dikkat.frameworks.mxnet.masked_softmax`: over the first entries of each row; 0 where there are none.

    Args:
        X: (B, n, m) scores.
        valid_lens: (B,) or (B, n) whole numbers; None: all are valid.

    Example:
        >>> npx.set_np()
        >>> masked_softmax(np.zeros((1, 2, 4)), np.array([[2, 0]]))
        array([[[0.5, 0.5, 0. , 0. ],
                [0. , 0. , 0. , 0. ]]])
    """
    return dikkat.masked_softmax(X, _lens(valid_lens, X.shape[-1]))


def _dense(num_hiddens: int, bias: bool = False, inputs: int = 0) -> Any:
    """A linear layer of the last dimension; of 0 inputs one that takes its size from the first call."""
    return nn.Dense(num_hiddens, use_bias=bias, flatten=False, in_units=inputs)


class _Attention(nn.Block):
    """What the layers share: they keep the weights of the last call as `attention_weights`."""

    def __init__(self, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = dropout

    def forward(self, queries: Array, keys: Array, values: Array, valid_lens: Array | None = None) -> Array:
        """Attend.

        Args:
            queries: (B, n, d_q).
            keys: (B, m, d_k).
            values: (B, m, d_v).
            valid_lens: (B,) or (B, n), how many keys count; None: all.

        Returns:
            (B, n, d_v).
        """
        shown = _shown(queries, keys, valid_lens)
        return self.average(*hide(queries, keys, values, shown), shown)

    def average(self, queries: Array, keys: Array, values: Array, shown: Any) -> Array:
        """The mean of the values by the softmax of the scores that are shown, of arrays whose hidden rows are 0."""
        dropout = self.dropout if autograd.is_training() else 0.0
        output, self.attention_weights = dikkat.pool(self.scores(queries, keys), values, shown, dropout=dropout)
        return output

    def scores(self, queries: Array, keys: Array) -> Array:
        """The scores (B, n, m); the layer's own."""
        raise NotImplementedError


def _shown(queries: Array, keys: Array, valid_lens: Array | None) -> Any:
    """Which keys each query may see, NumPy booleans (B, n or 1, m); None: all."""
    length = keys.shape[1]
    return visible(queries.shape[:1], queries.shape[1], length, valid_lens=_lens(valid_lens, length))


class AdditiveAttention(_Attention):
    """Additive attention: Σ_h v_h tanh((W_q q)_h + (W_k k)_h); its sizes are those of the first call.

    Args:
        num_hiddens: features of the projections.
        dropout: the probability with which a weight is dropped, in training.
        **kwargs: those of every block.

    Attributes:
        attention_weights: the last call's, before dropout; (B, n, m).

    Source: Bahdanau, Cho and Bengio 2015, section 3.1.

    Example:
        >>> npx.set_np()
        >>> attention = AdditiveAttention(num_hiddens=19, dropout=0.25)
        >>> attention.initialize()
        >>> queries, keys, values = np.zeros((5, 3, 17)), np.ones((5, 7, 11)), np.ones((5, 7, 13))
        >>> attention(queries, keys, values, np.array([7, 1, 4, 0, 3])).shape, attention.attention_weights.shape
        ((5, 3, 13), (5, 3, 7))
    """

    def __init__(self, num_hiddens: int, dropout: float, **kwargs: Any) -> None:
        super().__init__(dropout, **kwargs)
        self.W_k, self.W_q, self.w_v = _dense(num_hiddens), _dense(num_hiddens), _dense(1, inputs=num_hiddens)

    def scores(self, queries: Array, keys: Array) -> Array:
        """Σ_h v_h tanh((W_q q)_h + (W_k k)_h)."""
        weight = self.w_v.weight.data(queries.ctx)[0]
        return dikkat.compare(self.W_q(queries), self.W_k(keys), pair="additive", weight=weight)


class DotProductAttention(_Attention):
    """Scaled dot-product attention.

    Args:
        dropout: the probability with which a weight is dropped, in training.
        **kwargs: those of every block.

    Attributes:
        attention_weights: the last call's, before dropout; (B, n, m).

    Source: Vaswani et al. 2017, section 3.2.1.

    Example:
        >>> npx.set_np()
        >>> DotProductAttention(dropout=0.5)(np.ones((2, 1, 3)), np.ones((2, 5, 3)), np.ones((2, 5, 7))).shape
        (2, 1, 7)
    """

    def scores(self, queries: Array, keys: Array) -> Array:
        """⟨q, k⟩ / √d."""
        return dikkat.compare(dikkat.scores.ScaledDot().project_query(queries), keys, pair="inner")


def transpose_qkv(X: Array, num_heads: int) -> Array:
    """(B, n, heads · d) -> (B · heads, n, d)."""
    batch, length, features = X.shape
    split = X.reshape(batch, length, num_heads, features // num_heads).swapaxes(1, 2)
    return split.reshape(batch * num_heads, length, features // num_heads)


def transpose_output(X: Array, num_heads: int) -> Array:
    """(B · heads, n, d) -> (B, n, heads · d), the reverse of `transpose_qkv`."""
    rows, length, features = X.shape
    joined = X.reshape(rows // num_heads, num_heads, length, features).swapaxes(1, 2)
    return joined.reshape(rows // num_heads, length, num_heads * features)


class MultiHeadAttention(nn.Block):
    """Several scaled dot-product attentions, each on its share of the projected features.

    The last call's weights are `attention.attention_weights`, (B · heads, n, m).

    Args:
        num_hiddens: features of the projections and of the output; a multiple of `num_heads`.
        num_heads: how many attentions.
        dropout: the probability with which a weight is dropped, in training.
        use_bias: whether the projections have one.
        **kwargs: those of every block.

    Raises:
        ValueError: `num_hiddens` is no multiple of `num_heads`.

    Source: Vaswani et al. 2017, section 3.2.2.

    Example:
        >>> npx.set_np()
        >>> attention, X = MultiHeadAttention(21, 3, 0.25), np.ones((5, 7, 11))
        >>> attention.initialize()
        >>> attention(X, X, X, np.array([7, 1, 4, 0, 3])).shape
        (5, 7, 21)
    """

    def __init__(self, num_hiddens: int, num_heads: int, dropout: float, use_bias: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if num_hiddens % num_heads:
            raise ValueError(f"num_hiddens: came {num_hiddens}; allowed: a multiple of num_heads, {num_heads}")
        self.num_heads, self.attention = num_heads, DotProductAttention(dropout)
        self.W_q, self.W_k, self.W_v, self.W_o = (_dense(num_hiddens, use_bias) for _ in range(4))

    def forward(self, queries: Array, keys: Array, values: Array, valid_lens: Array | None = None) -> Array:
        """(B, n, ·), (B, m, ·), (B, m, ·) and lengths (B,) or (B, n) -> (B, n, num_hiddens)."""
        shown = _shown(queries, keys, valid_lens)
        queries, keys, values = hide(queries, keys, values, shown)
        projected = self.W_q(queries), self.W_k(keys), self.W_v(values)
        each_head = None if shown is None else shown.repeat(self.num_heads, axis=0)
        queries, keys, values = (self.transpose_qkv(each) for each in projected)
        return self.W_o(self.transpose_output(self.attention.average(queries, keys, values, each_head)))

    def transpose_qkv(self, X: Array) -> Array:
        """`transpose_qkv` with this layer's heads."""
        return transpose_qkv(X, self.num_heads)

    def transpose_output(self, X: Array) -> Array:
        """`transpose_output` with this layer's heads."""
        return transpose_output(X, self.num_heads)


class NWKernelRegression(nn.Block):
    """Nadaraya–Watson regression with a learnt Gaussian kernel, softmax(−((q − k) w)² / 2).

    Attributes:
        w: (1,), one over the bandwidth.
        attention_weights: the last call's, (n, m).

    Example:
        >>> npx.set_np()
        >>> net = NWKernelRegression()
        >>> net.initialize()
        >>> net(np.zeros(3), np.ones(5), np.ones(5)).shape, net.attention_weights.shape
        ((3,), (3, 5))
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.w = self.params.get("w", shape=(1,), init=init.Uniform(1))

    def forward(self, queries: Array, keys: Array, values: Array) -> Array:
        """Predict.

        Args:
            queries: (n,).
            keys: (n, m), those of each query; or (m,), of all.
            values: likewise.

        Returns:
            (n,).
        """
        w, shape = self.w.data(queries.ctx), (queries.size, keys.shape[-1], 1)
        keys, values = (np.broadcast_to(np.expand_dims(each, -1), shape) for each in (keys, values))
        scores = dikkat.compare(queries.reshape(-1, 1, 1) * w, keys * w, pair="distance")
        output, weights = dikkat.pool(scores, values)
        self.attention_weights = weights[:, 0]
        return output.reshape(-1)


class PositionalEncoding(nn.Block):
    """Adds to each position sines and cosines of its own: `dikkat.textbook.positions.positions`.

    Args:
        num_hiddens: d.
        dropout: the probability with which a feature is dropped, in training.
        max_len: positions.

    Attributes:
        P: (1, max_len, d).

    Source: Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, num_hiddens: int, dropout: float, max_len: int = 1000) -> None:
        super().__init__()
        self.dropout, self.P = nn.Dropout(dropout), np.array(positions(num_hiddens, max_len))

    def forward(self, X: Array) -> Array:
        """(B, n, d) -> (B, n, d)."""
        return self.dropout(X + self.P[:, : X.shape[1]].as_in_ctx(X.ctx))


# --- text


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


def load_array(data_arrays: Sequence[Array], batch_size: int, is_train: bool = True) -> _Batches:
    """Batches of arrays that belong together row by row, in another order each time if `is_train`.

    Example:
        >>> npx.set_np()
        >>> [len(X) for X, y in load_array((np.zeros((5, 2)), np.zeros(5)), batch_size=2)]
        [2, 2, 1]
    """
    return _Batches(data_arrays, batch_size, is_train)


def _from_numpy(array: text.Ids) -> Array:
    return np.array(array, dtype="int32")


def build_array_nmt(lines: Sequence[Sequence[str]], vocab: Vocab, num_steps: int) -> tuple[Array, Array]:
    """Sentences as token ids (sentences, num_steps), each ended and padded, and their lengths (sentences,)."""
    ids, lens = text.build_array_nmt(lines, vocab, num_steps)
    return _from_numpy(ids), _from_numpy(lens)


def load_data_nmt(batch_size: int, num_steps: int, num_examples: int | None = 600) -> tuple[_Batches, Vocab, Vocab]:
    """Batches of the corpus's first sentence pairs, and the vocabularies of both languages.

    The corpus is that of `read_data_nmt`. In a batch are sources, their lengths, targets and their lengths.
    """
    arrays, source_vocab, target_vocab = text.load_data_nmt(num_steps, num_examples)
    return load_array([_from_numpy(each) for each in arrays], batch_size), source_vocab, target_vocab


# --- translators


class Encoder(nn.Block):
    """The interface of encoders."""

    def forward(self, X: Array, *args: Any) -> Any:
        """What a decoder is to know of X; the encoder's own."""
        raise NotImplementedError


class Decoder(nn.Block):
    """The interface of decoders."""

    def init_state(self, enc_outputs: Any, *args: Any) -> Any:
        """The state before the first step; the decoder's own."""
        raise NotImplementedError

    def forward(self, X: Array, state: Any) -> tuple[Array, Any]:
        """The outputs of some steps, and the state after them; the decoder's own."""
        raise NotImplementedError


class AttentionDecoder(Decoder):
    """The interface of decoders that attend."""

    @property
    def attention_weights(self) -> Any:
        """What the last call looked at; the decoder's own."""
        raise NotImplementedError


class EncoderDecoder(nn.Block):
    """An encoder, and a decoder that begins with what it found."""

    def __init__(self, encoder: Any, decoder: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.encoder, self.decoder = encoder, decoder

    def forward(self, enc_X: Array, dec_X: Array, *args: Any) -> Any:
        """The decoder's outputs and its state; further arguments, such as lengths, go to both."""
        return _translated(self, enc_X, dec_X, *args)


def _translated(net: Any, enc_X: Array, dec_X: Array, *args: Any) -> Any:
    """What the decoder of a net makes of `dec_X` and of what its encoder makes of `enc_X`."""
    return net.decoder(dec_X, net.decoder.init_state(net.encoder(enc_X, *args), *args))


class GRU(nn.Block):
    """A GRU of several layers, steps first; the features of its inputs are those of the first call.

    Args:
        num_hiddens: features of a state.
        num_layers: layers.
        dropout: the probability with which a feature is dropped between layers, in training.

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


def _between(num_layers: int, dropout: float) -> float:
    """What is dropped between layers, of which the book takes a single one too."""
    return dropout if num_layers > 1 else 0.0


class Seq2SeqEncoder(_Ready, Encoder):
    """An embedding and a GRU. Given lengths, it reads no padding.

    Args:
        vocab_size: tokens.
        embed_size: features of an embedding.
        num_hiddens: features of a state.
        num_layers: GRU layers.
        dropout: the probability with which a feature is dropped between layers, in training.
        **kwargs: those of every block.

    Example:
        >>> npx.set_np()
        >>> encoder = Seq2SeqEncoder(vocab_size=23, embed_size=7, num_hiddens=13, num_layers=3)
        >>> outputs, state = encoder(np.ones((5, 11)), np.array([11, 2, 1, 7, 3]))
        >>> outputs.shape, len(state), state[0].shape
        ((11, 5, 13), 1, (3, 5, 13))
    """

    def __init__(
        self, vocab_size: int, embed_size: int, num_hiddens: int, num_layers: int, dropout: float = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = dikkat.GRUEncoder(embed_size, num_hiddens, num_layers, False, _between(num_layers, dropout))
        self.initialize(init.Xavier())

    def forward(self, X: Array, *args: Any) -> tuple[Array, States]:
        """Encode.

        Args:
            X: (B, T) token ids.
            *args: lengths (B,); without them, or with None, all are read.

        Returns:
            The top layer's states (T, B, h), 0 behind a length; each layer's last state, a list of (layers, B, h).
        """
        lens = next((_lens(each, X.shape[1]) for each in args[:1] if each is not None), None)
        lens = np.full((len(X),), X.shape[1], dtype="int32") if lens is None else lens
        outputs, state = self.rnn(self.embedding(_ids("X", X)), lens)
        return outputs.swapaxes(0, 1), States([state])


class Seq2SeqAttentionDecoder(_Ready, AttentionDecoder):
    """A GRU that looks at the encoder's states before every step, by additive attention.

    Args:
        vocab_size: tokens.
        embed_size: features of an embedding.
        num_hiddens: features of a state, and of the encoder's.
        num_layers: GRU layers.
        dropout: the probability with which an attention weight, or a feature between layers, is dropped, in training.
        **kwargs: those of every block.

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
            _between(num_layers, dropout),
            weight_dropout=dropout,
        )
        self.dense = _dense(vocab_size, bias=True, inputs=num_hiddens)
        self.looked_at: Any = ()  # (steps, B, m) of the last call
        self.initialize(init.Xavier())

    def init_state(self, enc_outputs: Any, enc_valid_lens: Array | None = None, *args: Any) -> tuple[Any, ...]:
        """The encoder's states, batch first; its last state; the lengths, None for no padding."""
        outputs, state = enc_outputs
        return outputs.swapaxes(0, 1), state, enc_valid_lens

    def forward(self, X: Array, state: Any) -> tuple[Array, list[Any]]:
        """Run some steps.

        Args:
            X: (B, T) token ids.
            state: as `init_state` returns it.

        Returns:
            Scores (B, T, vocab_size); the state after the last step.
        """
        encoded, hidden, lens = state
        memory = self.rnn.prepare(encoded, _lens(lens, encoded.shape[1]))
        before = hidden[0] if isinstance(hidden, list) else hidden
        outputs, _, weights, after = self.rnn(self.embedding(_ids("X", X)), memory, before, return_weights=True)
        self.looked_at = weights.swapaxes(0, 1)
        return self.dense(outputs), [encoded, States([after]), lens]

    @property
    def attention_weights(self) -> list[Array]:
        """What each step of the last call looked at, (B, 1, m) each."""
        return [np.expand_dims(each, 1) for each in self.looked_at]


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
    return -npx.pick(npx.log_softmax(pred, axis=-1), _ids("label", label), axis=-1)


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


def train_seq2seq(net: Any, data_iter: Any, lr: float, num_epochs: int, tgt_vocab: Vocab, device: Any) -> None:
    """Train an `EncoderDecoder` on sentence pairs: Adam, gradients of norm 1 at most, weights drawn anew.

    It prints the last epoch's loss a token and how many target tokens a second it read, and draws the loss.

    Args:
        net: `net(X, dec_X, lengths)` returns scores and a state.
        data_iter: batches of sources, their lengths, targets and their lengths.
        lr: the learning rate.
        num_epochs: how often to go through the data.
        tgt_vocab: of the targets.
        device: where to train.
    """
    net.initialize(init.Xavier(), force_reinit=True, ctx=device)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": lr})
    loss = MaskedSoftmaxCELoss()
    animator = Animator(xlabel="epoch", ylabel="loss", xlim=[0, num_epochs])
    timer, metric = Timer(), Accumulator(2)
    for epoch in range(num_epochs):
        timer.start()
        metric.reset()
        for batch in data_iter:
            X, X_lens, Y, Y_lens = (each.as_in_ctx(device) for each in batch)
            begin = np.full((len(Y), 1), tgt_vocab["<bos>"], dtype=Y.dtype, ctx=device)
            with autograd.record():
                scores, _ = net(X, np.concatenate([begin, Y[:, :-1]], axis=1), X_lens)
                total = loss(scores, Y, Y_lens).sum()
            total.backward()
            grad_clipping(net, 1)
            trainer.step(1)
            metric.add(total, Y_lens.sum())
        timer.stop()
        if (epoch + 1) % 10 == 0:
            animator.add(epoch + 1, metric[0] / metric[1])
    print(f"loss {metric[0] / metric[1]:.3f}, {metric[1] / timer.times[-1]:.1f} tokens/sec on {device}")


def _likeliest(
    net: Any, sources: Array, lens: Array, begin: Array, num_steps: int, end: int | None, keep: bool
) -> tuple[onp.ndarray[Any, Any], list[Any]]:
    """The likeliest token at each step, (batch, steps), until all are `end`; the decoder's weights after each, kept."""
    state = net.decoder.init_state(net.encoder(sources, lens), lens)
    token, said, looked_at = begin, [], []
    for _ in range(num_steps):
        scores, state = net.decoder(token, state)
        token = scores.argmax(axis=2).astype("int32")
        said.append(token.asnumpy())
        if keep:
            looked_at.append(net.decoder.attention_weights)
        if end is not None and (said[-1] == end).all():
            break
    return onp.concatenate(said, axis=1), looked_at


def predict_seq2seq(
    net: Any,
    src_sentence: str,
    src_vocab: Vocab,
    tgt_vocab: Vocab,
    num_steps: int,
    device: Any,
    save_attention_weights: bool = False,
) -> tuple[str, list[Any]]:
    """Translate a sentence, the likeliest word at each step.

    Args:
        net: as it was trained.
        src_sentence: words and punctuation marks with spaces between them.
        src_vocab: of the source.
        tgt_vocab: of the target.
        num_steps: to which the source is padded, and how many words are said at most.
        device: where the net is.
        save_attention_weights: whether to return the decoder's `attention_weights` of each step.

    Returns:
        The translation, and for each step, that of `<eos>` among them, its attention weights, if they were asked for.
    """
    end = tgt_vocab["<eos>"]
    arrays = build_array_nmt([src_sentence.lower().split()], src_vocab, num_steps)
    sources, lens = (each.as_in_ctx(device) for each in arrays)
    begin = np.full((1, 1), tgt_vocab["<bos>"], dtype="int32", ctx=device)
    said, looked_at = _likeliest(net, sources, lens, begin, num_steps, end, keep=save_attention_weights)
    words = [word for word in said[0].tolist() if word != end]
    return " ".join(tgt_vocab.to_tokens(words)), looked_at


# --- learning, in the second generation's way


class Module(nn.Block, learning.LearningModel):
    """A model that draws how it learns; `net` is its network, unless it has a `forward` of its own.

    Args:
        plot_train_per_epoch: points an epoch of what training says.
        plot_valid_per_epoch: points an epoch of what validation says.
    """

    def __init__(self, plot_train_per_epoch: int = 2, plot_valid_per_epoch: int = 1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.board = ProgressBoard()

    def forward(self, *inputs: Any) -> Any:
        """What `net` makes of the inputs."""
        return self.net(*inputs)

    def parameters(self) -> Any:
        """The parameters, by name."""
        return self.collect_params()

    def configure_optimizers(self) -> Any:
        """Stochastic gradient descent with the learning rate `lr`."""
        return gluon.Trainer(self.parameters(), "sgd", {"learning_rate": self.lr})


class DataModule(learning.LearningData):
    """Batches to learn from and to validate with."""

    def get_tensorloader(self, tensors: Sequence[Array], train: bool, indices: slice = slice(0, None)) -> _Batches:
        """Batches of `batch_size` of some rows of arrays."""
        return load_array([each[indices] for each in tensors], self.batch_size, train)  # type: ignore[attr-defined]


class MTFraEng(learning.FrenchFromEnglish, DataModule):
    """English sentences and their French translations, `dikkat.textbook.learning.FrenchFromEnglish` of arrays."""

    as_tensor = staticmethod(_from_numpy)


class Seq2Seq(Module):
    """The second generation's translator.

    Args:
        encoder: an `Encoder`.
        decoder: a `Decoder`.
        tgt_pad: the number of the targets' padding, which is not to be learned.
        lr: Adam's learning rate.
    """

    def __init__(self, encoder: Any, decoder: Any, tgt_pad: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()

    def forward(self, enc_X: Array, dec_X: Array, *args: Any) -> Array:
        """The decoder's scores, (B, T, tokens)."""
        scores, _ = _translated(self, enc_X, dec_X, *args)
        return scores

    def loss(self, Y_hat: Array, Y: Array) -> Array:
        """The mean cross-entropy of the targets that are no padding."""
        losses = _cross_entropy(Y_hat, Y)
        real = np.not_equal(Y, self.tgt_pad).astype(losses.dtype)
        return (losses * real).sum() / real.sum()

    def configure_optimizers(self) -> Any:
        """Adam."""
        return gluon.Trainer(self.parameters(), "adam", {"learning_rate": self.lr})

    def predict_step(
        self, batch: Sequence[Array], device: Any, num_steps: int, save_attention_weights: bool = False
    ) -> tuple[Array, list[Any]]:
        """Translate a batch, the likeliest token at each step.

        Args:
            batch: as `MTFraEng.build` makes it.
            device: where the model is.
            num_steps: how many.
            save_attention_weights: whether to return what each step looked at.

        Returns:
            Token ids (B, num_steps), and the decoder's `attention_weights` after each step, if they were asked for.
        """
        sources, inputs, lens, _ = (each.as_in_ctx(device) for each in batch)
        begin, keep = inputs[:, :1], save_attention_weights
        said, looked_at = _likeliest(self, sources, lens, begin, num_steps, None, keep)
        return _from_numpy(said), looked_at


class Trainer(learning.LearningTrainer):
    """Goes through the data, epoch by epoch; on the first GPU if it may use one and there is one.

    Args:
        max_epochs: how often.
        num_gpus: how many GPUs it may use.
        gradient_clip_val: the norm to which a batch's gradients are shrunk; 0: not at all.
    """

    def prepare_model(self, model: Any) -> None:
        """Take the model to the device, its weights with it."""
        self.device = try_gpu() if self.num_gpus else cpu()  # type: ignore[attr-defined]
        model.collect_params().reset_ctx(self.device)
        super().prepare_model(model)

    def prepare_batch(self, batch: Sequence[Array]) -> list[Array]:
        """A batch on the model's device."""
        return [each.as_in_ctx(self.device) for each in batch]

    def step(self, batch: Sequence[Array]) -> None:
        """Learn from a batch."""
        with autograd.record():
            loss = self.model.training_step(batch)
        loss.backward()
        if self.gradient_clip_val:
            grad_clipping(self.model, self.gradient_clip_val)
        self.optimizer.step(1)
