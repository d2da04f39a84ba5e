"""The textbook's helper library on TensorFlow: `from dikkat.textbook import tensorflow as d2l`.

Names, signatures and shapes are those of the book's edition 0.17 and of its second Chinese edition. Their layers are
Keras 2's, so importing this module replaces `tf.keras` with tf-keras (Keras 2), as `TF_USE_LEGACY_KERAS=1` does.
`dikkat.textbook.torch` lists the corrections of the book.
"""

import importlib.util
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

from dikkat.textbook import text
from dikkat.textbook.common import *  # noqa: F403
from dikkat.textbook.common import Vocab, absent, devices, run_epochs
from dikkat.textbook.tools import as_array, check_attention, check_heads, positions

if importlib.util.find_spec("tensorflow") is None or importlib.util.find_spec("tf_keras") is None:
    raise ImportError("dikkat.textbook.tensorflow needs TensorFlow and tf-keras: pip install '.[textbook-tensorflow]'")

import tensorflow as tf
import tf_keras

# Keras 3 does not run the book's code: it does not train a `tf.Variable` attribute of a layer, and passes the states
# of stacked cells in another shape. TensorFlow chooses the Keras of `tf.keras` at its first use: until then `tf.keras`
# and the four names below are loaders.
if "Loader" in type(vars(tf)["keras"]).__name__:
    for _name in ("initializers", "losses", "metrics", "optimizers"):
        setattr(tf, _name, getattr(tf_keras, _name))
    tf.keras = tf_keras
elif tf.keras.layers.Layer is not tf_keras.layers.Layer:
    raise ImportError(
        "tf.keras: got Keras 3, loaded at its first use; expected tf-keras. Import "
        "dikkat.textbook.tensorflow before the first use of tf.keras (not of TensorFlow), or set "
        "TF_USE_LEGACY_KERAS=1"
    )

__getattr__ = partial(absent, __name__)

Tensor = Any

# --- arrays

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


def size(a: Tensor) -> int:
    """Return the number of elements of a tensor."""
    return int(tf.size(a))


def to(x: Tensor, device: str) -> Tensor:
    """Return a tensor on a device."""
    with tf.device(str(device)):
        return tf.identity(x)


# --- devices


class Device(str):
    """The name of a device, and a context manager: `with try_gpu():`."""

    def __enter__(self) -> Self:
        self.entered = [*getattr(self, "entered", []), tf.device(str(self))]
        self.entered[-1].__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.entered.pop().__exit__(*error)


def cpu() -> Device:
    """Return the CPU."""
    return Device("/CPU:0")


def gpu(i: int = 0) -> Device:
    """Return the i-th GPU."""
    return Device(f"/GPU:{i}")


def num_gpus() -> int:
    """Return the number of GPUs."""
    return len(tf.config.list_physical_devices("GPU"))


try_gpu, try_all_gpus = devices(cpu, gpu, num_gpus)


# --- attention


def _integers(name: str, X: Tensor) -> Tensor:
    """Return whole numbers of any dtype as integers."""
    X = tf.convert_to_tensor(X)
    if not X.dtype.is_floating:
        return X
    if tf.executing_eagerly() and not bool(tf.reduce_all(tf.math.is_finite(X) & (tf.floor(X) == X))):
        raise ValueError(f"{name}: got {X.numpy().tolist()}; expected whole numbers, as integers or as floats")
    return tf.cast(X, tf.int32)


def sequence_mask(X: Tensor, valid_len: Tensor, value: float = 0) -> Tensor:
    """Return X (B, T, ...) with `value` after each sequence's length (B,).

    Raises:
        ValueError: A length that is not whole.
    """
    X = tf.convert_to_tensor(X)
    inside = tf.sequence_mask(_integers("valid_len", valid_len), X.shape[1])
    return tf.where(tf.reshape(inside, (-1, X.shape[1], *[1] * (len(X.shape) - 2))), X, tf.cast(value, X.dtype))


def _visible(valid_lens: Tensor | None, scores_shape: Sequence[int]) -> Tensor | None:
    """Return the visible pairs, booleans (B, n or 1, m), for scores of a shape; None for all."""
    if valid_lens is None:
        return None
    if len(scores_shape) != 3:
        raise ValueError(f"X: got shape {tuple(scores_shape)}; expected (batch, queries, keys)")
    batch, queries, keys = scores_shape
    lens = _integers("valid_lens", valid_lens)
    if not (lens.shape.is_compatible_with((batch,)) or lens.shape.is_compatible_with((batch, queries))):
        raise ValueError(f"valid_lens: got shape {tuple(lens.shape)}; expected ({batch},) or ({batch}, {queries})")
    if tf.executing_eagerly() and bool(tf.reduce_any(lens < 0)):
        raise ValueError(f"valid_lens: got {lens.numpy().min()}; expected at least 0")
    return tf.sequence_mask(lens if len(lens.shape) == 2 else lens[:, None], keys)


def _softmax(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Return weights over the visible keys; 0 in a row without any, where TensorFlow's softmax is NaN."""
    if visible is None:
        return tf.nn.softmax(scores)
    return tf.where(visible, tf.nn.softmax(tf.where(visible, scores, -math.inf)), 0.0)


def masked_softmax(X: Tensor, valid_lens: Tensor | None) -> Tensor:
    """Return the softmax over the first entries of each row, as `dikkat.textbook.layers.masked_softmax`.

    Example:
        >>> print(masked_softmax(tf.zeros((1, 2, 4)), tf.constant([[2, 0]])).numpy())
        [[[0.5 0.5 0.  0. ]
          [0.  0.  0.  0. ]]]
    """
    X = tf.convert_to_tensor(X)
    return _softmax(X, _visible(valid_lens, X.shape))


def _hide(
    queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the inputs as `dikkat.textbook.layers._hide`, and the visible pairs."""
    queries, keys, values = (tf.convert_to_tensor(tensor) for tensor in (queries, keys, values))
    visible = _visible(valid_lens, check_attention(queries.shape, keys.shape, values.shape))
    if visible is None:
        return queries, keys, values, None
    sees_key, is_seen = (tf.reduce_any(visible, axis)[..., None] for axis in (2, 1))
    return tf.where(sees_key, queries, 0.0), tf.where(is_seen, keys, 0.0), tf.where(is_seen, values, 0.0), visible


def _projection(inputs: int, features: int, bias: bool = False) -> Any:
    """Return a linear layer with weights, so that inputs of another size raise."""
    layer = tf.keras.layers.Dense(features, use_bias=bias)
    layer.build((inputs,))
    return layer


class AdditiveAttention(tf.keras.layers.Layer):
    """Additive attention as `dikkat.textbook.layers.AdditiveAttention`, with the arguments of edition 0.17.

    Example:
        >>> attention = AdditiveAttention(key_size=11, query_size=17, num_hiddens=19, dropout=0.25)
        >>> queries, keys, values = tf.zeros((5, 3, 17)), tf.ones((5, 7, 11)), tf.ones((5, 7, 13))
        >>> attention(queries, keys, values, tf.constant([7, 1, 4, 0, 3])).shape
        TensorShape([5, 3, 13])
    """

    def __init__(self, key_size: int, query_size: int, num_hiddens: int, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.W_k, self.W_q = _projection(key_size, num_hiddens), _projection(query_size, num_hiddens)
        self.w_v = _projection(num_hiddens, 1)
        self.dropout = tf.keras.layers.Dropout(dropout)

    def call(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None, training: Any = None
    ) -> Tensor:
        """(B, n, query_size), (B, m, key_size), (B, m, d_v), lengths (B,) or (B, n), None for all -> (B, n, d_v)."""
        queries, keys, values, visible = _hide(queries, keys, values, valid_lens)
        features = tf.tanh(self.W_q(queries)[:, :, None] + self.W_k(keys)[:, None])
        self.attention_weights = _softmax(tf.squeeze(self.w_v(features), -1), visible)
        return self.dropout(self.attention_weights, training=training) @ values


class DotProductAttention(tf.keras.layers.Layer):
    """Scaled dot-product attention, as `dikkat.textbook.layers.DotProductAttention`."""

    def __init__(self, dropout: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = tf.keras.layers.Dropout(dropout)

    def call(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None, training: Any = None
    ) -> Tensor:
        """(B, n, d), (B, m, d), (B, m, d_v), lengths (B,) or (B, n), None for all -> (B, n, d_v)."""
        queries, keys, values, visible = _hide(queries, keys, values, valid_lens)
        scores = tf.matmul(queries, keys, transpose_b=True) / math.sqrt(queries.shape[-1])
        self.attention_weights = _softmax(scores, visible)
        return self.dropout(self.attention_weights, training=training) @ values


def transpose_qkv(X: Tensor, num_heads: int) -> Tensor:
    """Reshape (B, n, heads · d) to (B · heads, n, d), one batch element for each head."""
    _, length, features = X.shape
    heads = tf.transpose(tf.reshape(X, (-1, length, num_heads, features // num_heads)), (0, 2, 1, 3))
    return tf.reshape(heads, (-1, length, features // num_heads))


def transpose_output(X: Tensor, num_heads: int) -> Tensor:
    """Reshape (B · heads, n, d) to (B, n, heads · d), the inverse of `transpose_qkv`."""
    _, length, features = X.shape
    joined = tf.transpose(tf.reshape(X, (-1, num_heads, length, features)), (0, 2, 1, 3))
    return tf.reshape(joined, (-1, length, num_heads * features))


class MultiHeadAttention(tf.keras.layers.Layer):
    """Multi-head attention as `dikkat.textbook.layers.MultiHeadAttention`, with the arguments of edition 0.17."""

    def __init__(
        self, key_size: int, query_size: int, value_size: int, num_hiddens: int, num_heads: int, dropout: float,
        bias: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        check_heads(num_hiddens, num_heads)
        self.num_heads, self.attention = num_heads, DotProductAttention(dropout)
        sizes = query_size, key_size, value_size, num_hiddens
        self.W_q, self.W_k, self.W_v, self.W_o = (_projection(size, num_hiddens, bias) for size in sizes)

    def call(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None, training: Any = None
    ) -> Tensor:
        """(B, n, query_size), (B, m, key_size), (B, m, value_size), lengths, None for all -> (B, n, num_hiddens)."""
        queries, keys, values, _ = _hide(queries, keys, values, valid_lens)
        heads = (
            transpose_qkv(layer(X), self.num_heads)
            for layer, X in ((self.W_q, queries), (self.W_k, keys), (self.W_v, values))
        )
        lens = None if valid_lens is None else tf.repeat(valid_lens, self.num_heads, axis=0)
        return self.W_o(transpose_output(self.attention(*heads, lens, training=training), self.num_heads))


class PositionalEncoding(tf.keras.layers.Layer):
    """Adds sines and cosines of positions, as `dikkat.textbook.layers.PositionalEncoding`."""

    def __init__(self, num_hiddens: int, dropout: float, max_len: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dropout = tf.keras.layers.Dropout(dropout)
        self.P = positions(num_hiddens, max_len)

    def call(self, X: Tensor, training: Any = None) -> Tensor:
        """Add the positions to X (B, n, num_hiddens), then apply dropout."""
        return self.dropout(X + tf.cast(self.P[:, : X.shape[1]], X.dtype), training=training)


# --- translators


class Encoder(tf.keras.layers.Layer):
    """The interface of encoders."""

    def call(self, X: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return the encoding of the inputs; defined by subclasses."""
        raise NotImplementedError


class Decoder(tf.keras.layers.Layer):
    """The interface of decoders."""

    def init_state(self, enc_outputs: Any, *args: Any) -> Any:
        """Return the state before the first step from the encoder's outputs; defined by subclasses."""
        raise NotImplementedError

    def call(self, X: Tensor, state: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        """Return the outputs of some steps, and the state after them; defined by subclasses."""
        raise NotImplementedError


class AttentionDecoder(Decoder):
    """The interface of decoders that attend."""

    @property
    def attention_weights(self) -> Any:
        """The attention weights of the last call; defined by subclasses."""
        raise NotImplementedError


class EncoderDecoder(tf.keras.Model):
    """An encoder, and a decoder that starts with the encoder's outputs."""

    def __init__(self, encoder: Any, decoder: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.encoder, self.decoder = encoder, decoder

    def call(self, enc_X: Tensor, dec_X: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        """Return the decoder's outputs and state; `args`, such as lengths, go to the encoder and to `init_state`."""
        state = self.decoder.init_state(self.encoder(enc_X, *args, **kwargs), *args)
        return self.decoder(dec_X, state, **kwargs)


class Seq2SeqEncoder(Encoder):
    """An embedding and a GRU that reads no padding if it has lengths, as `dikkat.textbook.layers.Seq2SeqEncoder`.

    Example:
        >>> outputs, state = Seq2SeqEncoder(23, 7, 13, num_layers=2)(tf.ones((3, 11)), tf.constant([11, 5, 1]))
        >>> outputs.shape, [tensor.shape.as_list() for tensor in state]
        (TensorShape([3, 11, 13]), [[3, 13], [3, 13]])
    """

    def __init__(
        self, vocab_size: int, embed_size: int, num_hiddens: int, num_layers: int, dropout: float = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.embedding = tf.keras.layers.Embedding(vocab_size, embed_size)
        cells = [tf.keras.layers.GRUCell(num_hiddens, dropout=dropout) for _ in range(num_layers)]
        self.rnn = tf.keras.layers.RNN(
            tf.keras.layers.StackedRNNCells(cells), return_sequences=True, return_state=True, zero_output_for_mask=True
        )

    def call(
        self, X: Tensor, valid_len: Tensor | None = None, *args: Any, training: Any = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Encode token ids (B, T) of lengths (B,), None for all.

        Returns:
            The top layer's states (B, T, h), 0 for padding; each layer's last state, (B, h).

        Raises:
            ValueError: Token ids or lengths that are not whole numbers.
        """
        mask = None if valid_len is None else tf.sequence_mask(_integers("valid_len", valid_len), X.shape[1])
        outputs, *state = self.rnn(self.embedding(_integers("X", X)), mask=mask, training=training)
        return outputs, state


class MaskedSoftmaxCELoss(tf.keras.losses.Loss):
    """The masked cross-entropy of each sentence: losses of padding are 0, but the mean is over all steps.

    Args:
        valid_len: (batch,) whole numbers, the sentences' lengths without padding.

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
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(_integers("label", label), pred)
        return tf.reduce_mean(sequence_mask(losses, self.valid_len), axis=1)


def grad_clipping(grads: Sequence[Tensor], theta: float) -> list[Tensor]:
    """Return the gradients, scaled to the joint norm `theta` if theirs is larger.

    Example:
        >>> [tf.norm(gradient).numpy().round(3) for gradient in grad_clipping([tf.constant([3.0, 4.0])], 1)] == [1]
        True
    """
    clipped, _ = tf.clip_by_global_norm([tf.convert_to_tensor(gradient) for gradient in grads], float(theta))
    return clipped


def load_array(data_arrays: Sequence[Tensor], batch_size: int, is_train: bool = True) -> Any:
    """Return batches of matching rows of tensors, shuffled in each epoch if `is_train`."""
    data = tf.data.Dataset.from_tensor_slices(tuple(data_arrays))
    return (data.shuffle(len(data)) if is_train else data).batch(batch_size)


def build_array_nmt(lines: Sequence[Sequence[str]], vocab: Vocab, num_steps: int) -> tuple[Tensor, Tensor]:
    """Return token ids (sentences, num_steps) and lengths (sentences,) of `text.build_array_nmt` as tensors."""
    ids, lens = text.build_array_nmt(lines, vocab, num_steps)
    return tf.constant(ids, tf.int32), tf.constant(lens, tf.int32)


def load_data_nmt(batch_size: int, num_steps: int, num_examples: int | None = 600) -> tuple[Any, Vocab, Vocab]:
    """Return batches of `dikkat.textbook.text.load_data_nmt`, and the vocabularies of both languages."""
    arrays, source, target = text.load_data_nmt(num_steps, num_examples)
    return load_array([tf.constant(array, tf.int32) for array in arrays], batch_size), source, target


def train_seq2seq(net: Any, data_iter: Any, lr: float, num_epochs: int, tgt_vocab: Vocab, device: Any) -> None:
    """Train an `EncoderDecoder` from its current weights, as `dikkat.textbook.learning.train_seq2seq`."""
    optimizer = tf.keras.optimizers.Adam(learning_rate=lr)

    def step(batch: Sequence[Tensor]) -> tuple[float, float]:
        X, X_lens, Y, Y_lens = batch
        dec_input = tf.concat([tf.fill(Y[:, :1].shape, tf.cast(tgt_vocab["<bos>"], Y.dtype)), Y[:, :-1]], 1)
        with tf.GradientTape() as tape:
            scores, _ = net(X, dec_input, X_lens, training=True)
            loss = tf.reduce_sum(MaskedSoftmaxCELoss(Y_lens)(Y, scores))
        weights = net.trainable_variables
        optimizer.apply_gradients(zip(grad_clipping(tape.gradient(loss, weights), 1), weights, strict=True))
        return float(loss), float(tf.reduce_sum(Y_lens))

    with tf.device(str(device)) if isinstance(device, str) else device:
        run_epochs(step, data_iter, num_epochs, device)


def predict_seq2seq(
    net: Any, src_sentence: str, src_vocab: Vocab, tgt_vocab: Vocab, num_steps: int,
    save_attention_weights: bool = False,
) -> tuple[str, list[Any]]:  # fmt: skip
    """Translate a sentence on TensorFlow's default device, as `dikkat.textbook.learning.predict_seq2seq`."""
    X, lens = build_array_nmt([src_sentence.lower().split()], src_vocab, num_steps)
    state = net.decoder.init_state(net.encoder(X, lens, training=False), lens)
    token, tokens, weights = tf.constant([[tgt_vocab["<bos>"]]]), [], []
    for _ in range(num_steps):
        scores, state = net.decoder(token, state, training=False)
        token = tf.argmax(scores, axis=2, output_type=tf.int32)
        if save_attention_weights:
            weights.append(net.decoder.attention_weights)
        if int(token[0, 0]) == tgt_vocab["<eos>"]:
            break
        tokens.append(int(token[0, 0]))
    return " ".join(tgt_vocab.to_tokens(tokens)), weights
