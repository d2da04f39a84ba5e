"""The textbook's helper library on TensorFlow: `from dikkat.textbook import tensorflow as d2l`.

Its layers are Keras 2's, as the textbook's are, over this library's functions. Both generations of the book have the
same signatures here. One thing they differ in: what an encoder puts out is (batch, steps, hiddens) in the first, and
(steps, batch, hiddens) in the second, whose decoders turn it in `init_state`. A decoder of either gets what it expects.

What differs from the book: a masked softmax leaves its argument as it is, weights nothing where no key is valid, and
holds at scores below -1e6; an encoder's state is that of a sentence's last word, not of the padding after it; and
`Seq2SeqAttentionDecoder` is trained as a compiled graph.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, NamedTuple, Self

import numpy as np

from dikkat.textbook import pictures, text, tools
from dikkat.textbook.keras2 import tf  # which sets what Keras 3 reads when it is imported
from dikkat.textbook.pictures import plt, set_axes, set_figsize, use_svg_display
from dikkat.textbook.text import Vocab, bleu, preprocess_nmt, read_data_nmt, tokenize_nmt, truncate_pad
from dikkat.textbook.tools import HyperParameters, Timer, add_to_class, check_len, check_shape

# isort: split
from dikkat.frameworks.keras.attention import compare, pool
from dikkat.frameworks.keras.masking import masked_softmax as _masked_softmax

Tensor = Any
Layer, Model, Dense = tf.keras.layers.Layer, tf.keras.Model, tf.keras.layers.Dense

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
sin, cos, tan, sinh, cosh, tanh = tf.sin, tf.cos, tf.tan, tf.sinh, tf.cosh, tf.tanh
exp, log, abs, sigmoid = tf.exp, tf.math.log, tf.abs, tf.sigmoid  # noqa: A001 - the textbook's name
int32, int64, float32 = tf.int32, tf.int64, tf.float32


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


def _lens(valid_lens: Tensor | None) -> Tensor | None:
    return None if valid_lens is None else _whole("valid_lens", valid_lens)


# --- pictures and tools

_pictures = pictures.Pictures(numpy)
plot, show_heatmaps = _pictures.plot, _pictures.show_heatmaps


class Animator(pictures.Animator):
    __doc__ = pictures.Animator.__doc__
    as_array = staticmethod(numpy)


class ProgressBoard(pictures.ProgressBoard):
    __doc__ = pictures.ProgressBoard.__doc__
    as_array = staticmethod(numpy)


class Accumulator(tools.Accumulator):
    __doc__ = tools.Accumulator.__doc__
    as_array = staticmethod(numpy)


class Device(str):
    """A device's name, which is also a context: `with try_gpu():`."""

    def __enter__(self) -> Self:
        self.entered = [*getattr(self, "entered", []), tf.device(str(self))]
        self.entered[-1].__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.entered.pop().__exit__(*error)


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
        >>> sequence_mask(tf.constant([[1, 2, 3], [4, 5, 6]]), tf.constant([1, 2])).numpy()
        array([[1, 0, 0],
               [4, 5, 0]], dtype=int32)
    """
    X, lens = tf.convert_to_tensor(X), _whole("valid_len", valid_len)
    inside = tf.sequence_mask(lens, X.shape[1])
    return tf.where(tf.reshape(inside, (*inside.shape, *[1] * (len(X.shape) - 2))), X, tf.cast(value, X.dtype))


def masked_softmax(X: Tensor, valid_lens: Tensor | None) -> Tensor:
    """The softmax over the keys that are valid; all 0 in a row that has none.

    Args:
        X: (batch, queries, keys) scores.
        valid_lens: (batch,) or (batch, queries) whole numbers; None: all are valid.

    Raises:
        ValueError: lengths of another shape, outside 0 … keys, or not whole.

    Source: *Dive into Deep Learning*, section "Attention Scoring Functions".

    Example:
        >>> masked_softmax(tf.zeros((2, 1, 4)), tf.constant([2, 0])).numpy().round(2).tolist()
        [[[0.5, 0.5, 0.0, 0.0]], [[0.0, 0.0, 0.0, 0.0]]]
    """
    return _masked_softmax(tf.convert_to_tensor(X), _lens(valid_lens))


class _Attention(Layer):
    """What the layers share: they keep the weights of the last call as `attention_weights`."""

    def __init__(self, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = tf.keras.layers.Dropout(dropout)

    def pooled(self, scores: Tensor, values: Tensor, valid_lens: Tensor | None, training: bool | None) -> Tensor:
        """The mean of the values, by the scores' masked softmax: (batch, queries, value features)."""
        self.attention_weights = _masked_softmax(scores, valid_lens)
        return self.dropout(self.attention_weights, training=training) @ values


class AdditiveAttention(_Attention):
    """Additive attention: Σ_h v_h tanh((W_q q)_h + (W_k k)_h), its masked softmax, and the mean of the values by it.

    Args:
        key_size: features of a key.
        query_size: features of a query.
        num_hiddens: features of both projections.
        dropout: the probability to drop a weight, in training.

    Attributes:
        attention_weights: of the last call, (batch, queries, keys), before dropout.

    Source: Bahdanau, Cho and Bengio 2015, section 3.1.

    Example:
        >>> attention = AdditiveAttention(key_size=3, query_size=5, num_hiddens=7, dropout=0.1)
        >>> attention(tf.ones((2, 1, 5)), tf.ones((2, 11, 3)), tf.ones((2, 11, 13)), tf.constant([2, 6])).shape
        TensorShape([2, 1, 13])
    """

    def __init__(self, key_size: int, query_size: int, num_hiddens: int, dropout: float, **kwargs: Any) -> None:
        super().__init__(dropout, **kwargs)
        self.W_k, self.W_q, self.w_v = _projection(num_hiddens), _projection(num_hiddens), _projection(1)
        self.W_k.build((key_size,))
        self.W_q.build((query_size,))
        self.w_v.build((num_hiddens,))

    def call(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None, training: Any = None
    ) -> Tensor:
        """Attend.

        Args:
            queries: (batch, queries, query_size).
            keys: (batch, keys, key_size).
            values: (batch, keys, value features).
            valid_lens: (batch,) or (batch, queries) whole numbers; None: all keys are valid.
            training: whether weights are dropped.

        Returns:
            (batch, queries, value features).
        """
        return self.pooled(self.scores(queries, self.W_k(keys)), values, _lens(valid_lens), training)

    def scores(self, queries: Tensor, projected: Tensor) -> Tensor:
        """Scores of queries and of keys that went through `W_k` already: (batch, queries, keys)."""
        return compare(self.W_q(queries), projected, pair="additive", weight=self.w_v.kernel[:, 0])


def _projection(features: int, bias: bool = False) -> Layer:
    return Dense(features, use_bias=bias)


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

    def call(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None, training: Any = None
    ) -> Tensor:
        """Attend: queries (batch, queries, d), keys (batch, keys, d), else as in `AdditiveAttention`."""
        scores = compare(queries / queries.shape[-1] ** 0.5, keys, pair="inner")
        return self.pooled(scores, values, _lens(valid_lens), training)
