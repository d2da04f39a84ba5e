"""The textbook's helper library on TensorFlow: `from dikkat.textbook import tensorflow as d2l`.

Its layers are Keras 2's, as the textbook's are, over this library's functions. Both generations of the book have the
same signatures here. One thing they differ in: what an encoder puts out is (batch, steps, hiddens) in the first, and
(steps, batch, hiddens) in the second, whose decoders turn it in `init_state`. A decoder of either gets what it expects.

What the frameworks have in common stands in `dikkat.textbook.skeleton`, `layers` and `learning`. What differs from the
book: a masked softmax leaves its argument as it is, weights nothing where no key is valid, and holds at scores below
-1e6; an encoder's state is that of a sentence's last word, not of the padding after it; and `Seq2SeqAttentionDecoder`
is trained as a compiled graph.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Self

from dikkat.textbook import common, layers, learning
from dikkat.textbook.common import *  # noqa: F403
from dikkat.textbook.generations import Encoded, of_either_generation
from dikkat.textbook.keras2 import tf
from dikkat.textbook.keras2_gru import GRU, advance, cells, gates
from dikkat.textbook.layers import check_heads, positions
from dikkat.textbook.skeleton import Skeleton
from dikkat.textbook.text import Ids, Vocab
from dikkat.textbook.tools import as_array

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

Tensor = Any
Keras = Any  # a layer or a model

# --- arrays


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
numpy = as_array


# --- devices, and the skeleton's operations


class Device(str):
    """A device's name, which is also a context: `with try_gpu():`."""

    def __enter__(self) -> Self:
        self.entered = [*getattr(self, "entered", []), tf.device(str(self))]
        self.entered[-1].__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.entered.pop().__exit__(*error)


class _TensorFlow(Skeleton):
    """The skeleton of TensorFlow: attention is that of `dikkat.frameworks.keras`, with Keras 2's dropout."""

    training, evaluating = {"training": True}, {"training": False}
    reshape = staticmethod(tf.reshape)
    broadcast_to = staticmethod(tf.broadcast_to)
    concat = staticmethod(tf.concat)

    @staticmethod
    def shape(X: Tensor) -> list[Any]:
        return [known or found for known, found in zip(X.shape, tf.unstack(tf.shape(X)), strict=True)]

    @staticmethod
    def swapaxes(X: Tensor, one: int, other: int) -> Tensor:
        order = list(range(len(X.shape)))
        order[one], order[other] = other, one
        return tf.transpose(X, order)

    @staticmethod
    def full_like(X: Tensor, value: int) -> Tensor:
        return tf.fill(tf.shape(X), tf.cast(value, X.dtype))

    def tensor(self, ids: Ids) -> Tensor:
        return tf.constant(ids, tf.int32)

    def integers(self, name: str, X: Tensor) -> Tensor:
        X = tf.convert_to_tensor(X)
        if not X.dtype.is_floating:
            return X
        if tf.executing_eagerly() and bool(tf.reduce_any(tf.floor(X) != X)):
            raise ValueError(f"{name}: got {X.numpy().tolist()}; expected whole numbers")
        return tf.cast(X, tf.int32)

    def lengths(self, valid_lens: Tensor, keys: int, name: str = "valid_lens", least: int = 0) -> Tensor:
        return tf.minimum(tf.cast(self.integers(name, valid_lens), tf.int32), keys)

    def most_likely(self, scores: Tensor) -> Tensor:
        return tf.argmax(scores, axis=2, output_type=tf.int32)

    def cpu(self) -> Device:
        return Device("/CPU:0")

    def gpu(self, i: int = 0) -> Device:
        return Device(f"/GPU:{i}")

    def num_gpus(self) -> int:
        return len(tf.config.list_physical_devices("GPU"))

    def put(self, x: Tensor, device: Any) -> Tensor:
        return x  # TensorFlow takes tensors to where they are used

    def move(self, net: Keras, device: Any) -> None:
        pass  # likewise

    def on(self, device: Any) -> AbstractContextManager[Any]:
        return tf.device(str(device)) if isinstance(device, str) else device

    def sequence_mask(self, X: Tensor, valid_len: Tensor, value: float = 0) -> Tensor:
        X = tf.convert_to_tensor(X)
        inside = tf.sequence_mask(self.integers("valid_len", valid_len), X.shape[1])
        return tf.where(tf.reshape(inside, (-1, X.shape[1], *[1] * (len(X.shape) - 2))), X, tf.cast(value, X.dtype))

    def masked_softmax(self, X: Tensor, valid_lens: Tensor | None) -> Tensor:
        X = tf.convert_to_tensor(X)
        return masking.masked_softmax(X, None if valid_lens is None else self.lengths(valid_lens, X.shape[-1]))

    def shown(self, queries: Tensor, keys: Tensor, valid_lens: Tensor | None) -> Tensor | None:
        sizes = queries.shape[-2], keys.shape[-2]
        lens = None if valid_lens is None else self.lengths(valid_lens, sizes[1])
        check_restrictions(tuple(queries.shape[:-2]), *sizes, valid_lens=lens)
        return visible(len(queries.shape) - 2, *sizes, valid_lens=lens)

    def hide(
        self, queries: Tensor, keys: Tensor, values: Tensor, shown: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        return hide(queries, keys, values, shown)

    def compare(self, score: Keras, queries: Tensor, keys: Tensor) -> Tensor:
        weight = score.pair_weight()
        if score.pair == "additive" and queries.shape[1] == 1:
            # A decoder's step: the features of all pairs are as many as those of the keys, and need no blocks.
            return tf.reduce_sum(tf.tanh(queries + keys) * weight, -1)[:, None]
        return compare(queries, keys, pair=score.pair, weight=weight)

    def pool(self, scores: Tensor, values: Tensor, shown: Tensor | None, dropout: Any) -> tuple[Tensor, Tensor]:
        weights = masking.softmax(scores, shown)
        return (dropout(weights) if dropout else weights) @ values, weights

    def repeat_rows(self, shown: Tensor, times: int) -> Tensor:
        return tf.repeat(shown, times, axis=0)

    def dropping(self, layer: Keras, training: Any) -> Callable[[Tensor], Tensor]:
        return partial(layer.dropout, training=training)

    def load_array(self, data_arrays: Sequence[Tensor], batch_size: int, is_train: bool = True) -> Any:
        data = tf.data.Dataset.from_tensor_slices(tuple(data_arrays))
        return (data.shuffle(len(data)) if is_train else data).batch(batch_size)

    def optimizer(self, net: Keras, name: str, lr: float) -> Any:
        return {"adam": tf.keras.optimizers.Adam, "sgd": tf.keras.optimizers.SGD}[name](learning_rate=lr)

    def learn(self, net: Keras, optimizer: Any, loss: Callable[[], Tensor], theta: float) -> Tensor:
        with tf.GradientTape() as tape:
            value = loss()
        weights = net.trainable_variables
        found = tape.gradient(value, weights)
        optimizer.apply_gradients(zip(grad_clipping(found, theta) if theta else found, weights, strict=True))
        return value

    def total_loss(self, scores: Tensor, labels: Tensor, lens: Tensor) -> Tensor:
        return tf.reduce_sum(MaskedSoftmaxCELoss(lens)(labels, scores))

    def mean_loss(self, scores: Tensor, labels: Tensor, padding: int) -> Tensor:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(self.integers("Y", labels), scores)
        real = tf.cast(tf.not_equal(labels, padding), losses.dtype)
        return tf.reduce_sum(losses * real) / tf.reduce_sum(real)

    def compiled(self, step: Callable[..., Tensor], net: Keras) -> Callable[..., Tensor]:
        # A decoder of the reader's goes step by step in Python, over tensors that a graph does not have.
        own = type(net.decoder) is Seq2SeqAttentionDecoder and type(net.encoder) is Seq2SeqEncoder
        return tf.function(step, autograph=False, reduce_retracing=True) if own else step


_tensorflow = _TensorFlow()
cpu, gpu, num_gpus = _tensorflow.cpu, _tensorflow.gpu, _tensorflow.num_gpus
try_gpu, try_all_gpus = _tensorflow.try_gpu, _tensorflow.try_all_gpus
masked_softmax, sequence_mask = _tensorflow.masked_softmax, _tensorflow.sequence_mask
transpose_qkv, transpose_output = _tensorflow.transpose_qkv, _tensorflow.transpose_output
load_array, build_array_nmt = _tensorflow.load_array, _tensorflow.build_array_nmt
load_data_nmt, train_seq2seq = _tensorflow.load_data_nmt, _tensorflow.train_seq2seq


def predict_seq2seq(
    net: Keras,
    src_sentence: str,
    src_vocab: Vocab,
    tgt_vocab: Vocab,
    num_steps: int,
    save_attention_weights: bool = False,
) -> tuple[str, list[Any]]:
    """`Skeleton.predict_seq2seq` where TensorFlow puts it: as in the book, there is no argument for a device."""
    device = cpu()
    return _tensorflow.predict_seq2seq(
        net, src_sentence, src_vocab, tgt_vocab, num_steps, device, save_attention_weights
    )


# --- attention


class _Attention(layers.Attention, tf.keras.layers.Layer):
    """What the layers share: Keras's `call`, which is told whether it is training."""

    framework = _tensorflow

    def __init__(self, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = tf.keras.layers.Dropout(dropout)

    def call(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None, training: Any = None
    ) -> Tensor:
        """`forward`; `training`: whether weights are dropped."""
        return self.look(queries, keys, values, valid_lens, training)


class AdditiveAttention(layers.AdditiveAttention, _Attention):
    """Additive attention: `dikkat.textbook.layers.AdditiveAttention`.

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

    def pair_weight(self) -> Tensor:
        """v, (num_hiddens,)."""
        return self.w_v.kernel[:, 0]


def _projection(inputs: int, features: int, bias: bool = False) -> Keras:
    """A linear layer that has its weights at once, so that inputs of another size are refused."""
    layer = tf.keras.layers.Dense(features, use_bias=bias)
    layer.build((inputs,))
    return layer


class DotProductAttention(layers.DotProductAttention, _Attention):
    """Scaled dot-product attention: `dikkat.textbook.layers.DotProductAttention`."""

    def __init__(self, dropout: float, **kwargs: Any) -> None:
        super().__init__(dropout, **kwargs)


class MultiHeadAttention(layers.MultiHeadAttention, tf.keras.layers.Layer):
    """Multi-head attention: `dikkat.textbook.layers.MultiHeadAttention`."""

    framework = _tensorflow

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
        check_heads(num_hiddens, num_heads)
        self.num_heads, self.attention = num_heads, DotProductAttention(dropout)
        sizes = query_size, key_size, value_size, num_hiddens
        self.W_q, self.W_k, self.W_v, self.W_o = (_projection(size, num_hiddens, bias) for size in sizes)

    def call(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None, training: Any = None
    ) -> Tensor:
        """`forward`; `training`: whether weights are dropped."""
        return self.look(queries, keys, values, valid_lens, training)


class NWKernelRegression(layers.NWKernelRegression, tf.keras.layers.Layer):
    """Nadaraya–Watson regression: `dikkat.textbook.layers.NWKernelRegression`."""

    framework = _tensorflow
    call = layers.NWKernelRegression.forward

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.w = tf.Variable(tf.random.uniform((1,)))


class PositionalEncoding(layers.PositionalEncoding, tf.keras.layers.Layer):
    """Adds to each position sines and cosines of its own: `dikkat.textbook.layers.PositionalEncoding`."""

    def __init__(self, num_hiddens: int, dropout: float, max_len: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = tf.keras.layers.Dropout(dropout)
        self.P = positions(num_hiddens, max_len)

    def call(self, X: Tensor, training: Any = None) -> Tensor:
        """(B, n, num_hiddens) -> (B, n, num_hiddens); `training`: whether features are dropped."""
        return self.dropout(X + tf.cast(self.P[:, : X.shape[1]], X.dtype), training=training)


# --- encoders and decoders


class Encoder(layers.Encoder, tf.keras.layers.Layer):
    """The interface of encoders: `call(X, *args)` returns what a decoder's `init_state` takes."""

    framework = _tensorflow
    call = layers.Encoder.forward


class Decoder(layers.Decoder, tf.keras.layers.Layer):
    """The interface of decoders: `init_state(encoded, *args)`, and `call(X, state)`, which returns outputs and a state.

    A subclass may be of either generation: where its `init_state` turns the encoder's outputs, they come to it as
    (steps, batch, hiddens).
    """

    framework = _tensorflow
    call = layers.Decoder.forward

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "init_state" in vars(cls):
            cls.init_state = of_either_generation(cls.init_state)  # type: ignore[method-assign]


class AttentionDecoder(layers.AttentionDecoder, Decoder):
    """The interface of decoders that attend."""


class Seq2SeqEncoder(layers.Seq2SeqEncoder, Encoder):
    """An embedding and a GRU: `dikkat.textbook.layers.Seq2SeqEncoder`, but for the layout: it returns `Encoded`."""

    def __init__(
        self, vocab_size: int, embed_size: int, num_hiddens: int, num_layers: int, dropout: float = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.embedding = tf.keras.layers.Embedding(vocab_size, embed_size)
        self.rnn = GRU(num_hiddens, num_layers, dropout)

    def call(self, X: Tensor, valid_len: Tensor | None = None, *args: Any, training: Any = None) -> Encoded:
        """As the other frameworks' `forward`, but for the layout.

        Args:
            X: (B, T) token ids.
            valid_len: (B,), how many of them are read; None: all.
            *args: What else `EncoderDecoder` gives to both, of which an encoder makes nothing.
            training: Whether features are dropped.
        """
        embedded = self.embedding(tf.transpose(_tensorflow.integers("X", X)))
        lens = None if valid_len is None else _tensorflow.lengths(valid_len, X.shape[1], "valid_len")
        outputs, state = self.rnn(embedded, None, lens, training=training)
        return Encoded(tf.transpose(outputs, (1, 0, 2)), state)


class Seq2SeqAttentionDecoder(AttentionDecoder):
    """A GRU that looks at the encoder's states before every step: `dikkat.textbook.layers.Seq2SeqAttentionDecoder`.

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
        self.cells = cells(num_hiddens, [num_hiddens + embed_size, *[num_hiddens] * (num_layers - 1)])
        self.dropout = tf.keras.layers.Dropout(dropout)
        self.dense = tf.keras.layers.Dense(vocab_size)
        self._attention_weights: list[Tensor] = []

    def init_state(self, enc_outputs: Any, enc_valid_lens: Tensor | None, *args: Any) -> tuple[Any, ...]:
        """The encoder's outputs (B, m, h), its state, a tensor (B, h) a layer, and the lengths; None for no padding."""
        outputs, hidden_state = enc_outputs
        return outputs, hidden_state, enc_valid_lens

    def call(self, X: Tensor, state: Any, training: Any = None) -> tuple[Tensor, list[Any]]:
        """Run some steps.

        Args:
            X: (B, T) token ids.
            state: What `init_state` or the last call returned.
            training: Whether features and weights are dropped.

        Returns:
            Scores (B, T, vocab_size); the state after the last step.
        """
        encoded, hidden_state, lens = state
        now, attention = list(hidden_state), self.attention
        shown, dropout = _tensorflow.shown(now[-1][:, None], encoded, lens), _tensorflow.dropping(attention, training)
        _, encoded, _ = _tensorflow.hide(now[-1][:, None], encoded, encoded, shown)
        projected = attention.project_key(encoded)
        features, first = encoded.shape[-1], self.cells[0]
        embedded = self.embedding(tf.transpose(_tensorflow.integers("X", X)))
        outputs, looked_at = [], []
        for own in tf.unstack(embedded @ first.kernel[features:] + first.bias[0]):
            scores = _tensorflow.compare(attention, attention.project_query(now[-1][:, None]), projected)
            context, weights = _tensorflow.pool(scores, encoded, shown, dropout)
            now[0] = advance(first, own + context[:, 0] @ first.kernel[:features], now[0])
            for layer, cell in enumerate(self.cells[1:], start=1):
                below = self.dropout(now[layer - 1], training=training)
                now[layer] = advance(cell, gates(cell, below), now[layer])
            outputs.append(now[-1])
            looked_at.append(weights)
        if tf.executing_eagerly():
            self._attention_weights = looked_at
        return self.dense(tf.stack(outputs, axis=1)), [encoded, now, lens]

    @property
    def attention_weights(self) -> list[Tensor]:
        """What each step of the last call outside a graph looked at, (B, 1, m) each."""
        return list(self._attention_weights)


# --- the first generation's training


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
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(_tensorflow.integers("label", label), pred)
        return tf.reduce_mean(sequence_mask(losses, self.valid_len), axis=1)


def grad_clipping(grads: Sequence[Tensor], theta: float) -> list[Tensor]:
    """Gradients, all shrunk together to norm `theta` where it is larger.

    Example:
        >>> [tf.norm(gradient).numpy().round(3) for gradient in grad_clipping([tf.constant([3.0, 4.0])], 1)] == [1]
        True
    """
    clipped, _ = tf.clip_by_global_norm([tf.convert_to_tensor(each) for each in grads], float(theta))
    return clipped


class EncoderDecoder(layers.EncoderDecoder, tf.keras.Model):
    """An encoder, and a decoder that begins with what it found."""

    framework = _tensorflow
    call = layers.EncoderDecoder.forward

    def __init__(self, encoder: Keras, decoder: Keras, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.encoder, self.decoder = encoder, decoder


# --- learning, in the second generation's way


class Module(learning.LearningModel, tf.keras.Model):
    """A model that draws how it learns: `dikkat.textbook.learning.LearningModel`."""

    framework = _tensorflow

    def call(self, X: Tensor, *args: Any, **kwargs: Any) -> Any:
        """What `forward` makes of the inputs; `training` among the others is kept as an attribute for it."""
        self.training = kwargs.get("training")
        return self.forward(X, *args)


class DataModule(learning.LearningData):
    """Batches to learn from and to validate with: `dikkat.textbook.learning.LearningData`."""

    framework = _tensorflow


class MTFraEng(learning.FrenchFromEnglish, DataModule):
    """English sentences and their French translations: `dikkat.textbook.learning.FrenchFromEnglish`."""


class Trainer(learning.LearningTrainer):
    """Goes through the data, epoch by epoch: `dikkat.textbook.learning.LearningTrainer`.

    It trains where TensorFlow puts it, on the first GPU if there is one, whatever `num_gpus` says.
    """

    framework = _tensorflow


class Seq2Seq(learning.LearningTranslator, EncoderDecoder, Module):
    """A translator that `Trainer` trains: `dikkat.textbook.learning.LearningTranslator`."""

    def call(self, enc_X: Tensor, dec_X: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        """`forward`."""
        return self.forward(enc_X, dec_X, *args, **kwargs)
