"""The textbook's helper library on TensorFlow: `from dikkat.textbook import tensorflow as d2l`.

Its layers are Keras 2's, as the textbook's are, over this library's functions. Both generations of the book have the
same signatures here. One thing they differ in: what an encoder puts out is (batch, steps, hiddens) in the first, and
(steps, batch, hiddens) in the second, whose decoders turn it in `init_state`. A decoder of either gets what it expects.

What differs from the book: a masked softmax leaves its argument as it is, weights nothing where no key is valid, and
holds at scores below -1e6; an encoder's state is that of a sentence's last word, not of the padding after it; and
`Seq2SeqAttentionDecoder` is trained as a compiled graph.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, NamedTuple, Self

import numpy as np

from dikkat.textbook import learning, pictures, text, tools
from dikkat.textbook.keras2 import tf  # which sets what Keras 3 reads when it is imported
from dikkat.textbook.pictures import plt, set_axes, set_figsize, use_svg_display
from dikkat.textbook.positions import positions
from dikkat.textbook.text import Vocab, bleu, preprocess_nmt, read_data_nmt, tokenize_nmt, truncate_pad
from dikkat.textbook.tools import HyperParameters, Timer, add_to_class, check_len, check_shape

# isort: split
from dikkat.frameworks.keras import masking
from dikkat.frameworks.keras.attention import compare, hide
from dikkat.frameworks.keras.masking import check_restrictions, visible

__all__ = [  # noqa: RUF022 - by kind
    # arrays
    "abs", "arange", "argmax", "astype", "batch_matmul", "concat", "cos", "cosh", "exp", "expand_dims", "eye",
    "float32", "int32", "int64", "linspace", "log", "matmul", "meshgrid", "normal", "numpy", "ones", "ones_like",
    "rand", "reduce_mean", "reduce_sum", "repeat", "reshape", "sigmoid", "sin", "sinh", "size", "stack", "tanh",
    "tensor", "to", "transpose", "zeros", "zeros_like",
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

Tensor = Any
Keras = Any  # a layer or a model

# --- arrays


def numpy(x: Tensor) -> Any:
    """A tensor as NumPy's array."""
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


def size(a: Tensor) -> int:
    """How many elements a tensor has."""
    return int(tf.size(a))


def to(x: Tensor, device: str) -> Tensor:
    """A tensor on a device."""
    with tf.device(str(device)):
        return tf.identity(x)


tensor, zeros, ones, zeros_like, ones_like, eye = tf.constant, tf.zeros, tf.ones, tf.zeros_like, tf.ones_like, tf.eye
arange, linspace, meshgrid = tf.range, tf.linspace, tf.meshgrid
normal, rand = tf.random.normal, tf.random.uniform
reshape, transpose, concat, stack = tf.reshape, tf.transpose, tf.concat, tf.stack
expand_dims, repeat, astype = tf.expand_dims, tf.repeat, tf.cast
matmul = batch_matmul = tf.matmul
reduce_sum, reduce_mean, argmax = tf.reduce_sum, tf.reduce_mean, tf.argmax
sin, cos, sinh, cosh, tanh = tf.sin, tf.cos, tf.sinh, tf.cosh, tf.tanh
exp, log, abs, sigmoid = tf.exp, tf.math.log, tf.abs, tf.sigmoid
int32, int64, float32 = tf.int32, tf.int64, tf.float32
nn_Module = tf.keras.Model  # noqa: N816 - the book's name


def _whole(name: str, x: Tensor) -> Tensor:
    """Lengths and token ids as integers; integral floats are taken, as the textbook's code makes them.

    Raises:
        ValueError: a number that is not whole.
    """
    x = tf.convert_to_tensor(x)
    if not x.dtype.is_floating:
        return x
    if tf.executing_eagerly() and bool(tf.reduce_any(x != tf.floor(x))):
        raise ValueError(f"{name}: came with {x.numpy().tolist()}; allowed: whole numbers")
    return tf.cast(x, tf.int32)


def _lens(valid_lens: Tensor | None, keys: int) -> Tensor | None:
    """Lengths as integers, none of them above the number of keys."""
    return None if valid_lens is None else tf.minimum(tf.cast(_whole("valid_lens", valid_lens), tf.int32), keys)


# --- pictures and tools

_pictures = pictures.Pictures(numpy)
plot, show_heatmaps = _pictures.plot, _pictures.show_heatmaps


class Animator(pictures.Animator):
    """Curves that grow while a model learns: `dikkat.textbook.pictures.Animator` of tensors."""

    as_array = staticmethod(numpy)


class ProgressBoard(pictures.ProgressBoard):
    """A board of curves: `dikkat.textbook.pictures.ProgressBoard` of tensors."""

    as_array = staticmethod(numpy)


class Accumulator(tools.Accumulator):
    """Sums of n figures: `dikkat.textbook.tools.Accumulator` of tensors."""

    as_array = staticmethod(numpy)


class Device(str):
    """A device's name, which is also a context: `with try_gpu():`."""

    def __enter__(self) -> Self:
        self.entered = [*getattr(self, "entered", []), tf.device(str(self))]
        self.entered[-1].__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.entered.pop().__exit__(*error)


def _on(device: Any) -> Any:
    """A context in which tensors are made on a device, which came as a name or as such a context."""
    return tf.device(str(device)) if isinstance(device, str) else device


def cpu() -> Device:
    """The CPU."""
    return Device("/CPU:0")


def gpu(i: int = 0) -> Device:
    """The GPU of number i."""
    return Device(f"/GPU:{i}")


def num_gpus() -> int:
    """How many GPUs there are."""
    return len(tf.config.list_physical_devices("GPU"))


def try_gpu(i: int = 0) -> Device:
    """The GPU of number i if there is one, otherwise the CPU."""
    return gpu(i) if num_gpus() > i else cpu()


def try_all_gpus() -> list[Device]:
    """All GPUs, or the CPU where there is none."""
    return [gpu(i) for i in range(num_gpus())] or [cpu()]


# --- attention


def sequence_mask(X: Tensor, valid_len: Tensor, value: float = 0) -> Tensor:
    """A copy in which the entries past each sequence's length are `value`.

    Args:
        X: (n, m) or (n, m, ...).
        valid_len: (n,) whole numbers.
        value: what stands there.

    Example:
        >>> sequence_mask(tf.constant([[7, 7], [8, 8], [9, 9]]), tf.constant([0, 2, 1]), value=-1).numpy()
        array([[-1, -1],
               [ 8,  8],
               [ 9, -1]], dtype=int32)
    """
    X, lens = tf.convert_to_tensor(X), _whole("valid_len", valid_len)
    inside = tf.sequence_mask(lens, X.shape[1])
    return tf.where(tf.reshape(inside, (-1, X.shape[1], *[1] * (len(X.shape) - 2))), X, tf.cast(value, X.dtype))


def masked_softmax(X: Tensor, valid_lens: Tensor | None) -> Tensor:
    """`dikkat.frameworks.keras.masked_softmax`: over the keys that are valid; all 0 in a row that has none.

    Args:
        X: (batch, queries, keys) scores.
        valid_lens: (batch,) or (batch, queries) whole numbers; None: all are valid.

    Raises:
        ValueError: lengths of another shape, below 0, or not whole.

    Source: *Dive into Deep Learning*, section "Attention Scoring Functions".

    Example:
        >>> masked_softmax(tf.zeros((2, 1, 4)), tf.constant([2, 0])).numpy().tolist()
        [[[0.5, 0.5, 0.0, 0.0]], [[0.0, 0.0, 0.0, 0.0]]]
    """
    X = tf.convert_to_tensor(X)
    return masking.masked_softmax(X, _lens(valid_lens, X.shape[-1]))


def _shown(lead: Sequence[int], queries: int, keys: int, valid_lens: Tensor | None) -> Tensor | None:
    """Which keys each query may see, (batch, queries or 1, keys); None: all."""
    lens = _lens(valid_lens, keys)
    check_restrictions(tuple(lead), queries, keys, valid_lens=lens)
    return visible(len(lead), queries, keys, valid_lens=lens)


class _Attention(tf.keras.layers.Layer):
    """What the layers share: they keep the weights of the last call as `attention_weights`."""

    def __init__(self, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = tf.keras.layers.Dropout(dropout)

    def call(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None, training: Any = None
    ) -> Tensor:
        """Attend.

        Args:
            queries: (batch, queries, query features).
            keys: (batch, keys, key features).
            values: (batch, keys, value features).
            valid_lens: (batch,) or (batch, queries) whole numbers; None: all keys are valid.
            training: whether weights are dropped.

        Returns:
            (batch, queries, value features).
        """
        shown = _shown(queries.shape[:-2], queries.shape[-2], keys.shape[-2], valid_lens)
        queries, keys, values = hide(queries, keys, values, shown)
        return self.average(self.scores(queries, self.project_key(keys)), values, shown, training)

    def project_key(self, keys: Tensor) -> Tensor:
        """What is done once for each key: nothing, unless a layer says otherwise."""
        return keys

    def scores(self, queries: Tensor, projected: Tensor) -> Tensor:
        """The scores (batch, queries, keys) of queries and of projected keys; the layer's own."""
        raise NotImplementedError

    def average(self, scores: Tensor, values: Tensor, shown: Tensor | None, training: bool | None) -> Tensor:
        """The mean of the values by the softmax of the scores that are shown."""
        self.attention_weights = masking.softmax(scores, shown)
        return self.dropout(self.attention_weights, training=training) @ values


class AdditiveAttention(_Attention):
    """Additive attention: Σ_h v_h tanh((W_q q)_h + (W_k k)_h), its masked softmax, and the mean of the values by it.

    Args:
        key_size: features of a key.
        query_size: features of a query.
        num_hiddens: features of both projections.
        dropout: the probability to drop a weight, in training.
        **kwargs: those of every Keras layer.

    Attributes:
        attention_weights: of the last call, (batch, queries, keys), before dropout.

    Source: Bahdanau, Cho and Bengio 2015, section 3.1.

    Example:
        >>> attention = AdditiveAttention(key_size=11, query_size=17, num_hiddens=19, dropout=0.25)
        >>> queries, keys, values = tf.zeros((5, 3, 17)), tf.ones((5, 7, 11)), tf.ones((5, 7, 13))
        >>> attention(queries, keys, values, tf.constant([7, 1, 4, 0, 3])).shape
        TensorShape([5, 3, 13])
    """

    def __init__(self, key_size: int, query_size: int, num_hiddens: int, dropout: float, **kwargs: Any) -> None:
        super().__init__(dropout, **kwargs)
        self.W_k, self.W_q = _projection(key_size, num_hiddens), _projection(query_size, num_hiddens)
        self.w_v = _projection(num_hiddens, 1)

    def project_key(self, keys: Tensor) -> Tensor:
        """W_k k."""
        return self.W_k(keys)

    def scores(self, queries: Tensor, projected: Tensor) -> Tensor:
        """Σ_h v_h tanh((W_q q)_h + k'_h)."""
        queries, weight = self.W_q(queries), self.w_v.kernel[:, 0]
        if queries.shape[1] == 1:  # a decoder's step: the features of all pairs are as many as those of the keys
            return tf.reduce_sum(tf.tanh(queries + projected) * weight, -1)[:, None]
        return compare(queries, projected, pair="additive", weight=weight)


def _projection(inputs: int, features: int, bias: bool = False) -> Keras:
    """A linear layer that is there at once, so that inputs of another size are refused."""
    layer = tf.keras.layers.Dense(features, use_bias=bias)
    layer.build((inputs,))
    return layer


class DotProductAttention(_Attention):
    """Scaled dot-product attention: ⟨q, k⟩ / √d, its masked softmax, and the mean of the values by it.

    Args:
        dropout: the probability to drop a weight, in training.

    Attributes:
        attention_weights: of the last call, (batch, queries, keys), before dropout.

    Source: Vaswani et al. 2017, section 3.2.1.

    Example:
        >>> DotProductAttention(dropout=0.5)(tf.ones((2, 1, 3)), tf.ones((2, 5, 3)), tf.ones((2, 5, 7))).shape
        TensorShape([2, 1, 7])
    """

    def scores(self, queries: Tensor, projected: Tensor) -> Tensor:
        """⟨q, k⟩ / √d."""
        return compare(queries / queries.shape[-1] ** 0.5, projected, pair="inner")


class MultiHeadAttention(tf.keras.layers.Layer):
    """Several scaled dot-product attentions beside each other, each on its share of the projected features.

    Args:
        key_size: features of a key.
        query_size: features of a query.
        value_size: features of a value.
        num_hiddens: features of the projections and of the output; a multiple of `num_heads`.
        num_heads: how many.
        dropout: the probability to drop a weight, in training.
        bias: whether the projections have one.

    Attributes:
        attention: the `DotProductAttention` of the heads, whose `attention_weights` are (batch * heads, queries, keys).

    Raises:
        ValueError: `num_hiddens` is no multiple of `num_heads`.

    Source: Vaswani et al. 2017, section 3.2.2.

    Example:
        >>> attention = MultiHeadAttention(11, 11, 11, 21, num_heads=3, dropout=0.25)
        >>> X = tf.ones((5, 7, 11))
        >>> attention(X, X, X, tf.constant([7, 1, 4, 0, 3]), training=False).shape
        TensorShape([5, 7, 21])
    """

    def __init__(
        self,
        key_size: int,
        query_size: int,
        value_size: int,
        num_hiddens: int,
        num_heads: int,
        dropout: float,
        bias: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if num_hiddens % num_heads:
            raise ValueError(f"num_hiddens: came {num_hiddens}; allowed: a multiple of num_heads, {num_heads}")
        self.num_heads, self.attention = num_heads, DotProductAttention(dropout)
        sizes = query_size, key_size, value_size, num_hiddens
        self.W_q, self.W_k, self.W_v, self.W_o = (_projection(size, num_hiddens, bias) for size in sizes)

    def call(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None, training: Any = None
    ) -> Tensor:
        """Attend: as in `AdditiveAttention`; returns (batch, queries, num_hiddens)."""
        shown = _shown(queries.shape[:-2], queries.shape[-2], keys.shape[-2], valid_lens)
        queries, keys, values = hide(queries, keys, values, shown)
        projected = self.W_q(queries), self.W_k(keys), self.W_v(values)
        queries, keys, values = (self.transpose_qkv(each) for each in projected)
        shown = None if shown is None else tf.repeat(shown, self.num_heads, axis=0)
        averages = self.attention.average(self.attention.scores(queries, keys), values, shown, training)
        return self.W_o(self.transpose_output(averages))

    def transpose_qkv(self, X: Tensor) -> Tensor:
        """(batch, length, num_hiddens) -> (batch * num_heads, length, num_hiddens / num_heads)."""
        return transpose_qkv(X, self.num_heads)

    def transpose_output(self, X: Tensor) -> Tensor:
        """The reverse of `transpose_qkv`."""
        return transpose_output(X, self.num_heads)


def transpose_qkv(X: Tensor, num_heads: int) -> Tensor:
    """Make a batch element of each head: (batch, length, hiddens) -> (batch * heads, length, hiddens / heads)."""
    batch, length = tf.shape(X)[0], tf.shape(X)[1]
    share = X.shape[-1] // num_heads
    split = tf.transpose(tf.reshape(X, (batch, length, num_heads, share)), (0, 2, 1, 3))
    return tf.reshape(split, (batch * num_heads, length, share))


def transpose_output(X: Tensor, num_heads: int) -> Tensor:
    """The reverse of `transpose_qkv`: (batch * heads, length, hiddens / heads) -> (batch, length, hiddens)."""
    rows, length = tf.shape(X)[0], tf.shape(X)[1]
    joined = tf.transpose(tf.reshape(X, (rows // num_heads, num_heads, length, X.shape[-1])), (0, 2, 1, 3))
    return tf.reshape(joined, (rows // num_heads, length, num_heads * X.shape[-1]))


class NWKernelRegression(tf.keras.layers.Layer):
    """Nadaraya-Watson regression with a Gaussian kernel whose width is learned: scores −((q − k) w)² / 2.

    Attributes:
        w: one over the bandwidth, (1,).
        attention_weights: of the last call, (queries, keys).

    Source: Nadaraya 1964; Watson 1964.

    Example:
        >>> net = NWKernelRegression()
        >>> net(tf.constant([0.0, 1.0]), tf.zeros((2, 3)), tf.ones((2, 3))).numpy().round(2).tolist()
        [1.0, 1.0]
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.w = tf.Variable(tf.random.uniform((1,)))

    def call(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Predict.

        Args:
            queries: (queries,).
            keys: (queries, keys), those of each query; or (keys,), of all.
            values: likewise.

        Returns:
            (queries,).
        """
        queries = tf.reshape(queries, (-1, 1, 1))
        scores = compare(queries * self.w, keys[..., None] * self.w, pair="distance")
        self.attention_weights = masking.softmax(scores)[:, 0]
        return tf.reduce_sum(self.attention_weights * values, -1)


class PositionalEncoding(tf.keras.layers.Layer):
    """Adds to each position sines and cosines of its number, of falling frequencies.

    Args:
        num_hiddens: features.
        dropout: the probability to drop a feature, in training.
        max_len: positions that there are.

    Attributes:
        P: what is added, (1, max_len, num_hiddens).

    Source: Vaswani et al. 2017, section 3.5.

    Example:
        >>> PositionalEncoding(4, dropout=0.0)(tf.zeros((1, 2, 4))).numpy().round(2).tolist()
        [[[0.0, 1.0, 0.0, 1.0], [0.8399999737739563, 0.5400000214576721, 0.009999999776482582, 1.0]]]
    """

    def __init__(self, num_hiddens: int, dropout: float, max_len: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = tf.keras.layers.Dropout(dropout)
        self.P = positions(num_hiddens, max_len)

    def call(self, X: Tensor, training: Any = None) -> Tensor:
        """Encode (batch, length, num_hiddens)."""
        return self.dropout(X + tf.cast(self.P[:, : X.shape[1]], X.dtype), training=training)


# --- encoders and decoders


class Encoded(NamedTuple):
    """What an encoder puts out.

    Attributes:
        outputs: (batch, steps, hiddens).
        state: after the last step, one tensor (batch, hiddens) a layer.
    """

    outputs: Tensor
    state: list[Tensor]


class Encoder(tf.keras.layers.Layer):
    """The base of encoders: `call(X, *args)` returns what a decoder's `init_state` takes."""

    def call(self, X: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Encode; the encoder's own."""
        raise NotImplementedError


class Decoder(tf.keras.layers.Layer):
    """The base of decoders: `init_state(encoded, *args)`, and `call(X, state)`, which returns outputs and a state.

    A subclass may be of either generation: where its `init_state` turns the encoder's outputs, they come to it as
    (steps, batch, hiddens).
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "init_state" in vars(cls):
            cls.init_state = _of_either_generation(cls.init_state)  # type: ignore[method-assign]

    def init_state(self, enc_outputs: Any, *args: Any) -> Any:
        """The state before the first step, made of what the encoder put out; the decoder's own."""
        raise NotImplementedError

    def call(self, X: Tensor, state: Any, **kwargs: Any) -> Any:
        """Decode; the decoder's own."""
        raise NotImplementedError


def _of_either_generation(init_state: Callable[..., Any]) -> Callable[..., Any]:
    """An `init_state` that turns the encoder's outputs gets them turned: what comes out is (batch, steps, hiddens)."""

    @wraps(init_state)
    def init(self: Decoder, enc_outputs: Any, *args: Any) -> Any:
        if not isinstance(enc_outputs, Encoded):
            return init_state(self, enc_outputs, *args)
        outputs, other = enc_outputs.outputs, tf.transpose(enc_outputs.outputs, (1, 0, 2))
        try:
            straight = init_state(self, enc_outputs, *args)
        except Exception:
            # One that checks shapes may refuse what is not turned yet. It is believed if it then turns it.
            with suppress(Exception):
                turned = init_state(self, (other, enc_outputs.state), *args)
                if bool(_holds(turned, outputs)):
                    return turned
            raise
        kept = any(part is outputs for part in tf.nest.flatten(straight))
        does_turn = False if kept else _holds(straight, other)
        if tf.is_tensor(does_turn) and not tf.executing_eagerly():  # in a graph, of sizes that do not say it
            turned = init_state(self, (other, enc_outputs.state), *args)
            return tf.nest.map_structure(
                lambda one, two: tf.cond(does_turn, lambda: two, lambda: one) if tf.is_tensor(one) else one,
                straight,
                turned,
            )
        return init_state(self, (other, enc_outputs.state), *args) if does_turn else straight

    return init


def _holds(state: Any, outputs: Tensor) -> Any:
    """Whether a decoder's state holds an encoder's outputs in this layout: by sizes if these say it, else by values.

    Returns:
        A bool; a boolean tensor where a graph has only sizes or values to come.
    """
    found: Any = False
    steps, batch = outputs.shape[:2]
    for part in tf.nest.flatten(state):
        if not tf.is_tensor(part) or part.shape.rank != 3 or not part.shape[:2].is_compatible_with(outputs.shape[:2]):
            continue
        if None not in (steps, batch) and steps != batch:
            return True
        if part.shape.is_compatible_with(outputs.shape):
            alike = tf.cond(
                tf.reduce_all(tf.shape(part) == tf.shape(outputs)),
                lambda part=part: tf.reduce_all((part == outputs) | (tf.math.is_nan(part) & tf.math.is_nan(outputs))),
                lambda: False,
            )
            found = alike if found is False else found | alike
    return found


class AttentionDecoder(Decoder):
    """The base of decoders that attend: `attention_weights` are those of the last call, one tensor a step."""

    @property
    def attention_weights(self) -> Any:
        """Of the last call; the decoder's own."""
        raise NotImplementedError


def _cells(num_hiddens: int, inputs: Sequence[int]) -> list[Keras]:
    cells = [tf.keras.layers.GRUCell(num_hiddens) for _ in inputs]
    for cell, features in zip(cells, inputs, strict=True):
        cell.build((None, features))
    return cells


def _gates(cell: Keras, inputs: Tensor) -> Tensor:
    """The inputs' share of a cell's gates, for all steps at once: it does not depend on the state."""
    return inputs @ cell.kernel + cell.bias[0]


def _advance(cell: Keras, gates: Tensor, state: Tensor) -> Tensor:
    """One step of a cell, from the inputs' share of its gates: Keras's order is update, reset, candidate."""
    update, reset, candidate = tf.split(gates, 3, -1)
    inner_update, inner_reset, inner = tf.split(state @ cell.recurrent_kernel + cell.bias[1], 3, -1)
    kept = tf.sigmoid(update + inner_update)
    return kept * state + (1 - kept) * tf.tanh(candidate + tf.sigmoid(reset + inner_reset) * inner)


class GRU(tf.keras.layers.Layer):
    """A stack of gated recurrent units over (steps, batch, features), the second generation's layout.

    Args:
        num_hiddens: features of a state.
        num_layers: how many.
        dropout: the probability to drop a feature between layers, in training.

    Source: Cho et al. 2014, section 2.3, with the reset gate after the recurrent product.

    Example:
        >>> outputs, state = GRU(num_hiddens=5, num_layers=3)(tf.ones((7, 2, 11)))
        >>> outputs.shape, len(state), state[0].shape
        (TensorShape([7, 2, 5]), 3, TensorShape([2, 5]))
    """

    def __init__(self, num_hiddens: int, num_layers: int, dropout: float = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_hiddens, self.num_layers = num_hiddens, num_layers
        self.dropout = tf.keras.layers.Dropout(dropout)

    def build(self, shape: Any) -> None:
        """Make the weights, which depend on the inputs' features."""
        self.cells = _cells(self.num_hiddens, [shape[-1], *[self.num_hiddens] * (self.num_layers - 1)])
        super().build(shape)

    def call(
        self, X: Tensor, state: Sequence[Tensor] | None = None, valid_len: Tensor | None = None, training: Any = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Run over all steps.

        Args:
            X: (steps, batch, features).
            state: before the first step, (batch, num_hiddens) a layer; None: zeros.
            valid_len: (batch,) integers: from there on the state stays and the outputs are 0. None: all count.
            training: whether features are dropped.

        Returns:
            The top layer's states (steps, batch, num_hiddens), and each layer's last.
        """
        counts = None if valid_len is None else tf.sequence_mask(valid_len, X.shape[0])[..., None]
        before = [tf.zeros((tf.shape(X)[1], self.num_hiddens), X.dtype)] * self.num_layers if state is None else state
        last = []
        for layer, (cell, now) in enumerate(zip(self.cells, before, strict=True)):
            X = self.dropout(X, training=training) if layer else X
            after = []
            for step, gates in enumerate(tf.unstack(_gates(cell, X))):
                moved = _advance(cell, gates, now)
                now = moved if counts is None else tf.where(counts[:, step], moved, now)
                after.append(now)
            X = tf.stack(after)
            last.append(now)
        return X if counts is None else tf.where(tf.transpose(counts, (1, 0, 2)), X, 0.0), last


class Seq2SeqEncoder(Encoder):
    """An encoder of sentences: embeddings and a stack of gated recurrent units.

    Args:
        vocab_size: tokens of the source language.
        embed_size: features of an embedding.
        num_hiddens: features of a state.
        num_layers: how many units above each other.
        dropout: the probability to drop a feature between them, in training.

    Example:
        >>> encoder = Seq2SeqEncoder(vocab_size=23, embed_size=7, num_hiddens=13, num_layers=3)
        >>> outputs, state = encoder(tf.ones((5, 11)), tf.constant([11, 2, 1, 7, 3]))
        >>> outputs.shape, len(state), state[0].shape
        (TensorShape([5, 11, 13]), 3, TensorShape([5, 13]))
    """

    def __init__(
        self, vocab_size: int, embed_size: int, num_hiddens: int, num_layers: int, dropout: float = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.embedding = tf.keras.layers.Embedding(vocab_size, embed_size)
        self.rnn = GRU(num_hiddens, num_layers, dropout)

    def call(self, X: Tensor, valid_len: Tensor | None = None, *args: Any, training: Any = None) -> Encoded:
        """Encode.

        Args:
            X: (batch, steps) token ids.
            valid_len: (batch,) whole numbers: each sentence's own tokens, the state after which is returned. None: all.
            *args: taken, as the base does; there is nothing in it for this encoder.
            training: whether features are dropped.
        """
        embedded = self.embedding(tf.transpose(_whole("X", X)))
        outputs, state = self.rnn(embedded, None, _lens(valid_len, X.shape[1]), training=training)
        return Encoded(tf.transpose(outputs, (1, 0, 2)), state)


class Seq2SeqAttentionDecoder(AttentionDecoder):
    """A decoder that looks, before each step, at what an encoder put out: additive attention over its outputs.

    Args:
        vocab_size: tokens of the target language.
        embed_size: features of an embedding.
        num_hiddens: features of a state, as the encoder has.
        num_layers: how many units above each other, as the encoder has.
        dropout: the probability to drop an attention weight, or a feature between units, in training.

    Attributes:
        attention_weights: of the last call outside a graph, (batch, 1, steps of the source) a step.

    Source: Bahdanau, Cho and Bengio 2015, section 3; as in *Dive into Deep Learning*, section "Bahdanau Attention".

    Example:
        >>> encoder = Seq2SeqEncoder(vocab_size=23, embed_size=7, num_hiddens=13, num_layers=1)
        >>> decoder = Seq2SeqAttentionDecoder(vocab_size=29, embed_size=5, num_hiddens=13, num_layers=1)
        >>> sources, lens = tf.ones((2, 11)), tf.constant([11, 3])
        >>> scores, _ = decoder(tf.ones((2, 3)), decoder.init_state(encoder(sources, lens), lens))
        >>> scores.shape, [each.shape.as_list() for each in decoder.attention_weights]
        (TensorShape([2, 3, 29]), [[2, 1, 11], [2, 1, 11], [2, 1, 11]])
    """

    def __init__(
        self, vocab_size: int, embed_size: int, num_hiddens: int, num_layers: int, dropout: float = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.attention = AdditiveAttention(num_hiddens, num_hiddens, num_hiddens, dropout)
        self.embedding = tf.keras.layers.Embedding(vocab_size, embed_size)
        self.cells = _cells(num_hiddens, [num_hiddens + embed_size, *[num_hiddens] * (num_layers - 1)])
        self.dropout = tf.keras.layers.Dropout(dropout)
        self.dense = tf.keras.layers.Dense(vocab_size)
        self._attention_weights: list[Tensor] = []

    def init_state(self, enc_outputs: Any, enc_valid_lens: Tensor | None, *args: Any) -> tuple[Any, ...]:
        """The state before the first step.

        Args:
            enc_outputs: what an encoder returned: outputs (batch, steps, num_hiddens), and a state for each layer.
            enc_valid_lens: (batch,) whole numbers, the sources' own tokens; None: all.
            *args: taken, as the base does; there is nothing in it for this decoder.
        """
        outputs, hidden_state = enc_outputs
        return outputs, hidden_state, enc_valid_lens

    def call(  # type: ignore[override]
        self, X: Tensor, state: Any, training: Any = None
    ) -> tuple[Tensor, list[Any]]:
        """Decode.

        Args:
            X: (batch, steps) token ids.
            state: what `init_state` or the last call returned.
            training: whether features and weights are dropped.

        Returns:
            Scores of the next tokens (batch, steps, vocab_size), and the state after the last step.
        """
        encoded, hidden_state, lens = state
        shown, now = _shown(encoded.shape[:1], 1, encoded.shape[1], lens), list(hidden_state)
        _, encoded, _ = hide(now[-1][:, None], encoded, encoded, shown)
        projected = self.attention.project_key(encoded)
        features, first = encoded.shape[-1], self.cells[0]
        embedded = self.embedding(tf.transpose(_whole("X", X)))
        outputs, weights = [], []
        for gates in tf.unstack(embedded @ first.kernel[features:] + first.bias[0]):
            scores = self.attention.scores(now[-1][:, None], projected)
            context = self.attention.average(scores, encoded, shown, training)[:, 0]
            now[0] = _advance(first, gates + context @ first.kernel[:features], now[0])
            for layer, cell in enumerate(self.cells[1:], start=1):
                below = self.dropout(now[layer - 1], training=training)
                now[layer] = _advance(cell, _gates(cell, below), now[layer])
            outputs.append(now[-1])
            weights.append(self.attention.attention_weights)
        if tf.executing_eagerly():
            self._attention_weights = weights
        return self.dense(tf.stack(outputs, axis=1)), [encoded, now, lens]

    @property
    def attention_weights(self) -> list[Tensor]:
        """Of the last call outside a graph, (batch, 1, steps of the source) a step."""
        return list(self._attention_weights)


# --- the first generation's training and translation


def _new_data(arrays: Iterable[Any], batch_size: int, shuffle: bool) -> Any:
    data = tf.data.Dataset.from_tensor_slices(tuple(arrays))
    return (data.shuffle(len(data)) if shuffle else data).batch(batch_size)


def load_array(data_arrays: Sequence[Tensor], batch_size: int, is_train: bool = True) -> Any:
    """Batches of arrays, in another order each time if `is_train`: a `tf.data.Dataset`.

    Example:
        >>> [X.shape[0] for X, y in load_array((tf.zeros((5, 2)), tf.zeros(5)), batch_size=2)]
        [2, 2, 1]
    """
    return _new_data(data_arrays, batch_size, is_train)


def _ids(array: text.Ids) -> Tensor:
    return tf.constant(array, tf.int32)


def build_array_nmt(lines: Sequence[Sequence[str]], vocab: Vocab, num_steps: int) -> tuple[Tensor, Tensor]:
    """Sentences as token ids (sentences, num_steps) and their lengths (sentences,): `dikkat.textbook.text`'s."""
    ids, lens = text.build_array_nmt(lines, vocab, num_steps)
    return _ids(ids), _ids(lens)


def load_data_nmt(batch_size: int, num_steps: int, num_examples: int | None = 600) -> tuple[Any, Vocab, Vocab]:
    """Batches of sources, their lengths, targets and theirs, of `read_data_nmt`'s first pairs; both vocabularies."""
    arrays, source_vocab, target_vocab = text.load_data_nmt(num_steps, num_examples)
    return load_array([_ids(array) for array in arrays], batch_size), source_vocab, target_vocab


class MaskedSoftmaxCELoss(tf.keras.losses.Loss):
    """The cross-entropy of token scores, without padding: for each sentence the mean over all its steps.

    Args:
        valid_len: (batch,) whole numbers: each sentence's own tokens. Padding counts as 0.

    Example:
        >>> loss = MaskedSoftmaxCELoss(tf.constant([0, 5]))
        >>> print(loss(tf.zeros((2, 5)), tf.zeros((2, 5, 7))).numpy().round(3))
        [0.    1.946]
    """

    def __init__(self, valid_len: Tensor) -> None:
        super().__init__(reduction="none")
        self.valid_len = valid_len

    def call(self, label: Tensor, pred: Tensor) -> Tensor:
        """(batch, steps) token ids and (batch, steps, tokens) scores -> (batch,)."""
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(_whole("label", label), pred)
        return tf.reduce_mean(sequence_mask(losses, self.valid_len), axis=1)


def grad_clipping(grads: Sequence[Tensor], theta: float) -> list[Tensor]:
    """Gradients, all shrunk together to norm `theta` where it is larger.

    Example:
        >>> [tf.norm(gradient).numpy().round(3) for gradient in grad_clipping([tf.constant([3.0, 4.0])], 1)] == [1]
        True
    """
    clipped, _ = tf.clip_by_global_norm([tf.convert_to_tensor(each) for each in grads], float(theta))
    return clipped


class EncoderDecoder(tf.keras.Model):
    """An encoder and a decoder.

    Args:
        encoder: an `Encoder`.
        decoder: a `Decoder`.
    """

    def __init__(self, encoder: Keras, decoder: Keras, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.encoder, self.decoder = encoder, decoder

    def call(self, enc_X: Tensor, dec_X: Tensor, *args: Any, **kwargs: Any) -> Any:
        """What the decoder makes of `dec_X` and of what the encoder makes of `enc_X` and `args`, such as lengths."""
        state = self.decoder.init_state(self.encoder(enc_X, *args, **kwargs), *args)
        return self.decoder(dec_X, state, **kwargs)


def train_seq2seq(
    net: Keras, data_iter: Iterable[Any], lr: float, num_epochs: int, tgt_vocab: Vocab, device: Any
) -> None:
    """Train a translator with Adam, gradients clipped to norm 1; it draws the loss and prints it, with the speed.

    Args:
        net: called as `net(sources, decoder's inputs, sources' lengths, training=True)`; returns scores and a state.
        data_iter: of `load_data_nmt`.
        lr: the learning rate.
        num_epochs: how often to go through the data.
        tgt_vocab: of the targets, for `<bos>`.
        device: of `try_gpu`.
    """
    optimizer = tf.keras.optimizers.Adam(learning_rate=lr)

    def step(sources: Tensor, source_lens: Tensor, targets: Tensor, target_lens: Tensor) -> Tensor:
        begin = tf.fill((tf.shape(targets)[0], 1), tf.cast(tgt_vocab["<bos>"], targets.dtype))
        inputs = tf.concat([begin, targets[:, :-1]], 1)
        with tf.GradientTape() as tape:
            scores, _ = net(sources, inputs, source_lens, training=True)
            loss = tf.reduce_sum(MaskedSoftmaxCELoss(target_lens)(targets, scores))
        weights = net.trainable_variables
        optimizer.apply_gradients(zip(grad_clipping(tape.gradient(loss, weights), 1), weights, strict=True))
        return loss

    animator = Animator(xlabel="epoch", ylabel="loss", xlim=[0, num_epochs])
    with _on(device):
        # A decoder of the reader's goes step by step in Python, over tensors that a graph does not have.
        own = type(net.decoder) is Seq2SeqAttentionDecoder and type(net.encoder) is Seq2SeqEncoder
        run = tf.function(step, autograph=False, reduce_retracing=True) if own else step
        for epoch in range(1, num_epochs + 1):
            timer, metric = Timer(), Accumulator(2)
            for batch in data_iter:
                metric.add(run(*batch), tf.reduce_sum(batch[3]))
            if epoch % 10 == 0:
                animator.add(epoch, metric[0] / metric[1])
    print(f"loss {metric[0] / metric[1]:.3f}, {metric[1] / timer.stop():.1f} tokens/sec on {device}")


def predict_seq2seq(
    net: Keras,
    src_sentence: str,
    src_vocab: Vocab,
    tgt_vocab: Vocab,
    num_steps: int,
    save_attention_weights: bool = False,
) -> tuple[str, list[Any]]:
    """Translate a sentence, the most likely token at each step.

    Args:
        net: an encoder and a decoder.
        src_sentence: its words and marks with spaces between them.
        src_vocab: of the source language.
        tgt_vocab: of the target language.
        num_steps: tokens at most, of the source and of the translation.
        save_attention_weights: whether to return what each step looked at.

    Returns:
        The translation, and the decoder's `attention_weights` after each step, or nothing.
    """
    sources, lens = build_array_nmt([src_sentence.lower().split()], src_vocab, num_steps)
    begin, end = tf.constant([[tgt_vocab["<bos>"]]]), tgt_vocab["<eos>"]
    said, looked_at = _likeliest(net, sources, lens, begin, num_steps, end, keep=save_attention_weights)
    words = said[0].numpy().tolist()
    if words[-1] == end:
        words.pop()
    return " ".join(tgt_vocab.to_tokens(words)), looked_at


def _likeliest(
    net: Keras, sources: Tensor, lens: Tensor, begin: Tensor, num_steps: int, end: int | None, keep: bool
) -> tuple[Tensor, list[Any]]:
    """The likeliest token at each step, (batch, steps), until all are `end`; the decoder's weights after each, kept."""
    state = net.decoder.init_state(net.encoder(sources, lens, training=False), lens)
    token, said, looked_at = begin, [], []
    for _ in range(num_steps):
        scores, state = net.decoder(token, state, training=False)
        token = tf.argmax(scores, axis=2, output_type=tf.int32)
        said.append(token)
        if keep:
            looked_at.append(net.decoder.attention_weights)
        if end is not None and bool(tf.reduce_all(token == end)):
            break
    return tf.concat(said, 1), looked_at


# --- the second generation's models


class Module(learning.LearningModel, tf.keras.Model):
    """A Keras model that draws how it learns; `net` is its network, unless it has a `forward` or `call` of its own.

    Args:
        plot_train_per_epoch: points an epoch of what training says.
        plot_valid_per_epoch: points an epoch of what validation says.
    """

    def __init__(self, plot_train_per_epoch: int = 2, plot_valid_per_epoch: int = 1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.board = ProgressBoard()

    def forward(self, X: Tensor, *args: Any) -> Any:
        """What `net` makes of the inputs."""
        return self.net(X, *args)

    def call(self, X: Tensor, *args: Any, **kwargs: Any) -> Any:
        """What `forward` makes of the inputs; `training` among the others is kept as an attribute for it."""
        self.training = kwargs.get("training")
        return self.forward(X, *args)

    def training_step(self, batch: Sequence[Any]) -> Any:
        """The loss of a batch, whose last array is what to say; it is drawn."""
        return self.drawn_loss(batch, train=True, training=True)

    def configure_optimizers(self) -> Any:
        """Stochastic gradient descent with the learning rate `lr`."""
        return tf.keras.optimizers.SGD(self.lr)


class DataModule(learning.LearningData):
    """Batches to learn from and to validate with."""

    def get_tensorloader(self, tensors: Sequence[Tensor], train: bool, indices: slice = slice(0, None)) -> Any:
        """Batches of `batch_size` of some rows of tensors."""
        return load_array([each[indices] for each in tensors], self.batch_size, train)  # type: ignore[attr-defined]


class MTFraEng(learning.FrenchFromEnglish, DataModule):
    """English sentences and their French translations, `dikkat.textbook.learning.FrenchFromEnglish` of tensors."""

    as_tensor = staticmethod(_ids)


class Seq2Seq(EncoderDecoder, Module):
    """The second generation's translator.

    Args:
        encoder: an `Encoder`.
        decoder: a `Decoder`.
        tgt_pad: the number of the targets' padding, which is not to be learned.
        lr: Adam's learning rate.
    """

    def __init__(self, encoder: Keras, decoder: Keras, tgt_pad: int, lr: float) -> None:
        Module.__init__(self)
        self.encoder, self.decoder, self.tgt_pad, self.lr = encoder, decoder, tgt_pad, lr

    def call(self, enc_X: Tensor, dec_X: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        """The decoder's scores, (batch, steps, tokens)."""
        scores, _ = EncoderDecoder.call(self, enc_X, dec_X, *args, **kwargs)
        return scores

    def loss(self, Y_hat: Tensor, Y: Tensor) -> Tensor:
        """The cross-entropy of the targets that are no padding: their mean."""
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(_whole("Y", Y), Y_hat)
        real = tf.cast(tf.not_equal(Y, self.tgt_pad), losses.dtype)
        return tf.reduce_sum(losses * real) / tf.reduce_sum(real)

    def configure_optimizers(self) -> Any:
        """Adam."""
        return tf.keras.optimizers.Adam(learning_rate=self.lr)

    def predict_step(
        self, batch: Sequence[Tensor], device: Any, num_steps: int, save_attention_weights: bool = False
    ) -> tuple[Tensor, list[Any]]:
        """Translate a batch, the likeliest token at each step.

        Args:
            batch: as `MTFraEng.build` makes it.
            device: of `try_gpu`.
            num_steps: how many.
            save_attention_weights: whether to return what each step looked at.

        Returns:
            Token ids (batch, num_steps), and the decoder's `attention_weights` after each step, or nothing.
        """
        sources, inputs, lens, _ = batch
        with _on(device):
            return _likeliest(self, sources, lens, inputs[:, :1], num_steps, None, keep=save_attention_weights)


class Trainer(learning.LearningTrainer):
    """Goes through the data, epoch by epoch, where TensorFlow puts it: on the first GPU if there is one.

    Args:
        max_epochs: how often.
        num_gpus: taken for the other frameworks' sake; `try_gpu` as a context says more here.
        gradient_clip_val: the norm to which a batch's gradients are shrunk; 0: not at all.
    """

    def step(self, batch: Sequence[Tensor]) -> None:
        """Learn from a batch."""
        with tf.GradientTape() as tape:
            loss = self.model.training_step(batch)
        weights = self.model.trainable_variables
        found = tape.gradient(loss, weights)
        slopes = grad_clipping(found, self.gradient_clip_val) if self.gradient_clip_val else found
        self.optimizer.apply_gradients(zip(slopes, weights, strict=True))
