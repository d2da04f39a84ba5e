"""The textbook's layers, written once: what the classes of the same names in its three modules share.

A framework's class inherits the one here, which has the text and the steps, and a layer of its kind. What its
constructor takes is said here, but for `**kwargs`, which go to the framework's layer, and for what differs.
In the shapes, B is the batch, T and m are steps, n queries, h features of a state.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dikkat.scores import Pair, whole
from dikkat.textbook.skeleton import Layer, OfAFramework, Tensor

__all__ = [
    "AdditiveAttention",
    "Attention",
    "AttentionDecoder",
    "Decoder",
    "DotProductAttention",
    "Encoder",
    "EncoderDecoder",
    "MultiHeadAttention",
    "NWKernelRegression",
    "PositionalEncoding",
    "Seq2SeqAttentionDecoder",
    "Seq2SeqEncoder",
    "between_layers",
    "check_heads",
    "positions",
]

# --- attention


class Attention(OfAFramework):
    """A layer that attends, and keeps what it looked at last.

    Attributes:
        attention_weights: The last call's, before dropout; (B, n, m).
    """

    attention_weights: Tensor

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None) -> Tensor:
        """Attend. TensorFlow's layers take `training` too: whether weights are dropped.

        Args:
            queries: (B, n, d_q).
            keys: (B, m, d_k).
            values: (B, m, d_v).
            valid_lens: (B,) or (B, n), how many keys count; None: all.

        Returns:
            (B, n, d_v).

        Raises:
            ValueError: Shapes that do not fit, or lengths that are not whole numbers from 0.
        """
        return self.look(queries, keys, values, valid_lens)

    def look(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None, training: Any = None
    ) -> Tensor:
        """`forward`, in training or not; None: as the framework says."""
        dropout = self.framework.dropping(self, training)
        output, self.attention_weights = self.framework.attend(self, queries, keys, values, valid_lens, dropout)
        return output


class AdditiveAttention(Attention):
    """Additive attention, of the score Σ_h v_h tanh((W_q q)_h + (W_k k)_h) with the layers `W_q`, `W_k` and `w_v`.

    Its constructor takes:

    - `key_size`: features of a key.
    - `query_size`: features of a query.
    - `num_hiddens`: features of both projections.
    - `dropout`: the probability with which a weight is dropped, in training.

    Source: Bahdanau, Cho and Bengio 2015, section 3.1.
    """

    pair: ClassVar[Pair] = "additive"
    W_q: Layer
    W_k: Layer
    w_v: Layer

    def project_query(self, query: Tensor) -> Tensor:
        """W_q q."""
        return self.W_q(query)

    def project_key(self, key: Tensor) -> Tensor:
        """W_k k."""
        return self.W_k(key)


class DotProductAttention(Attention):
    """Scaled dot-product attention, of the score ⟨q, k⟩ / √d.

    Its constructor takes:

    - `dropout`: the probability with which a weight is dropped, in training.

    Source: Vaswani et al. 2017, section 3.2.1.
    """

    pair: ClassVar[Pair] = "inner"

    def project_query(self, query: Tensor) -> Tensor:
        """q / √d."""
        return query / query.shape[-1] ** 0.5

    def project_key(self, key: Tensor) -> Tensor:
        """k."""
        return key

    def pair_weight(self) -> Tensor:
        """None: the products of all features count alike."""
        return None


class MultiHeadAttention(OfAFramework):
    """Several scaled dot-product attentions, each on its share of the projected features.

    Its constructor takes:

    - `key_size`: features of a key.
    - `query_size`: features of a query.
    - `value_size`: features of a value.
    - `num_hiddens`: features of the projections and of the output; a multiple of `num_heads`.
    - `num_heads`: how many attentions.
    - `dropout`: the probability with which a weight is dropped, in training.
    - `bias`: whether the projections have one; in MXNet `use_bias`.

    Attributes:
        attention: The `DotProductAttention` of the heads, whose `attention_weights` are (B · heads, n, m).

    Raises:
        ValueError: `num_hiddens` is no multiple of `num_heads`.

    Source: Vaswani et al. 2017, section 3.2.2.
    """

    num_heads: int
    attention: Layer
    W_q: Layer
    W_k: Layer
    W_v: Layer
    W_o: Layer

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None) -> Tensor:
        """(B, n, query_size), (B, m, key_size), (B, m, value_size), lengths (B,) or (B, n) -> (B, n, num_hiddens)."""
        return self.look(queries, keys, values, valid_lens)

    def look(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None, training: Any = None
    ) -> Tensor:
        """`forward`, in training or not; None: as the framework says."""
        dropout = self.framework.dropping(self.attention, training)
        output, weights = self.framework.attend_heads(self, queries, keys, values, valid_lens, dropout)
        self.attention.attention_weights = weights
        return self.W_o(output)

    def transpose_qkv(self, X: Tensor) -> Tensor:
        """`Skeleton.transpose_qkv` with this layer's heads."""
        return self.framework.transpose_qkv(X, self.num_heads)

    def transpose_output(self, X: Tensor) -> Tensor:
        """`Skeleton.transpose_output` with this layer's heads."""
        return self.framework.transpose_output(X, self.num_heads)


def check_heads(num_hiddens: int, num_heads: int) -> None:
    """Check that the heads of a `MultiHeadAttention` share its features evenly.

    Raises:
        TypeError: A size that is no whole number.
        ValueError: `num_hiddens` is no multiple of `num_heads`.
    """
    if whole("num_hiddens", num_hiddens) % whole("num_heads", num_heads):
        raise ValueError(f"num_hiddens: got {num_hiddens}; expected a multiple of num_heads, {num_heads}")


class NWKernelRegression(OfAFramework):
    """Nadaraya–Watson regression with a Gaussian kernel whose width is learnt: softmax(−((q − k) w)² / 2).

    Attributes:
        w: (1,), one over the bandwidth.
        attention_weights: The last call's, (n, m).

    Source: Nadaraya 1964; Watson 1964.
    """

    pair: ClassVar[Pair] = "distance"
    w: Tensor
    attention_weights: Tensor

    def project_query(self, query: Tensor) -> Tensor:
        """q w."""
        return query * self.w

    def project_key(self, key: Tensor) -> Tensor:
        """k w."""
        return key * self.w

    def pair_weight(self) -> Tensor:
        """None: there is one feature."""
        return None

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Predict.

        Args:
            queries: (n,).
            keys: (n, m), those of each query; or (m,), of all.
            values: Likewise.

        Returns:
            (n,).
        """
        framework, shape = self.framework, (queries.shape[0], keys.shape[-1])
        keys, values = (framework.broadcast_to(each, shape)[:, :, None] for each in (keys, values))
        queries = framework.reshape(queries, (-1, 1, 1))
        output, weights = framework.attend(self, queries, keys, values, None, 0.0)
        self.attention_weights = weights[:, 0]
        return framework.reshape(output, (-1,))


class PositionalEncoding(OfAFramework):
    """Adds to each position sines and cosines of its own, those of `positions`.

    Its constructor takes:

    - `num_hiddens`: features.
    - `dropout`: the probability with which a feature is dropped, in training.
    - `max_len`: positions.

    Attributes:
        P: (1, max_len, num_hiddens).

    Source: Vaswani et al. 2017, section 3.5.
    """


def positions(num_hiddens: int, max_len: int) -> NDArray[np.float32]:
    r"""Sines and cosines of positions.

    $$ P_{i, 2j} = \sin\left(i / 10000^{2j/d}\right), \qquad P_{i, 2j+1} = \cos\left(i / 10000^{2j/d}\right) $$

    Args:
        num_hiddens: d.
        max_len: How many positions.

    Returns:
        P, (1, max_len, d).

    Source: Vaswani et al. 2017, section 3.5.

    Example:
        >>> positions(3, 2).round(2).tolist()[0][0]
        [0.0, 1.0, 0.0]
    """
    column: NDArray[Any] = np.arange(num_hiddens)
    angle = np.arange(max_len)[:, None] / 10000.0 ** ((column - column % 2) / num_hiddens)
    return np.where(column % 2, np.cos(angle), np.sin(angle))[None].astype(np.float32)


# --- translators


class Encoder(OfAFramework):
    """The interface of encoders. In TensorFlow `forward` is `call`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What a decoder is to know of the inputs; the encoder's own."""
        raise NotImplementedError


class Decoder(OfAFramework):
    """The interface of decoders. In TensorFlow `forward` is `call`."""

    def init_state(self, enc_outputs: Any, *args: Any) -> Any:
        """The state before the first step, made of what the encoder returned; the decoder's own."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        """The outputs of some steps, of inputs X and a state, and the state after them; the decoder's own."""
        raise NotImplementedError


class AttentionDecoder:
    """The interface of decoders that attend."""

    @property
    def attention_weights(self) -> Any:
        """What the last call looked at; the decoder's own."""
        raise NotImplementedError


class EncoderDecoder(OfAFramework):
    """An encoder, and a decoder that begins with what it found."""

    encoder: Layer
    decoder: Layer

    def forward(self, enc_X: Tensor, dec_X: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The decoder's outputs and its state.

        Args:
            enc_X: What the encoder reads.
            dec_X: What the decoder reads.
            *args: What goes to both, such as lengths.
            **kwargs: What goes to the calls of both, such as TensorFlow's `training`.
        """
        state = self.decoder.init_state(self.encoder(enc_X, *args, **kwargs), *args)
        return self.decoder(dec_X, state, **kwargs)


def between_layers(num_layers: int, dropout: float) -> float:
    """The dropout between layers, which the book takes for a single one too."""
    return dropout if num_layers > 1 else 0.0


class Seq2SeqEncoder(OfAFramework):
    """An embedding and a GRU. Given lengths, it reads no padding.

    Its constructor takes:

    - `vocab_size`: tokens.
    - `embed_size`: features of an embedding.
    - `num_hiddens`: features of a state.
    - `num_layers`: GRU layers.
    - `dropout`: the probability with which a feature is dropped between layers, in training.
    """

    embedding: Layer
    rnn: Layer

    def forward(self, X: Tensor, valid_len: Tensor | None = None, *args: Any) -> tuple[Tensor, Tensor]:
        """Encode.

        Args:
            X: (B, T) token ids.
            valid_len: (B,), how many of them are read; None: all.
            *args: What else `EncoderDecoder` gives to both, of which an encoder makes nothing.

        Returns:
            The top layer's states (T, B, h), 0 behind a length; each layer's last state (layers, B, h).

        Raises:
            ValueError: A length that is not whole, or less than 1.
        """
        framework, (batch, steps) = self.framework, X.shape
        everything = framework.tensor(np.full(batch, steps))
        lens = everything if valid_len is None else framework.lengths(valid_len, steps, "valid_len", 1)
        outputs, state = self.rnn(self.embedding(framework.integers("X", X)), lens)
        return framework.swapaxes(outputs, 0, 1), self.state_out(state)

    def state_out(self, state: Tensor) -> Any:
        """The recurrent layers' state as the book's framework has it."""
        return state


class Seq2SeqAttentionDecoder(OfAFramework):
    """A GRU that looks at the encoder's states before every step, by additive attention.

    Its constructor takes:

    - `vocab_size`: tokens.
    - `embed_size`: features of an embedding.
    - `num_hiddens`: features of a state, and of the encoder's.
    - `num_layers`: GRU layers, as the encoder has.
    - `dropout`: the probability with which an attention weight, or a feature between layers, is dropped, in training.

    Source: Bahdanau, Cho and Bengio 2015, section 3; as in *Dive into Deep Learning*, section "Bahdanau Attention".
    """

    embedding: Layer
    rnn: Layer
    dense: Layer
    _looked_at: Tensor | None = None  # (B, T, m) of the last call

    def init_state(self, enc_outputs: Any, enc_valid_lens: Tensor | None = None, *args: Any) -> tuple[Any, ...]:
        """The encoder's states, batch first; its last state; the lengths, None for no padding."""
        outputs, state = enc_outputs
        return self.framework.swapaxes(outputs, 0, 1), state, enc_valid_lens

    def forward(self, X: Tensor, state: Any) -> tuple[Tensor, list[Any]]:
        """Run some steps.

        Args:
            X: (B, T) token ids.
            state: As `init_state` returns it.

        Returns:
            Scores (B, T, vocab_size); the state after the last step.
        """
        encoded, hidden, lens = state
        framework = self.framework
        memory = self.rnn.prepare(encoded, None if lens is None else framework.lengths(lens, encoded.shape[1]))
        embedded = self.embedding(framework.integers("X", X))
        outputs, _, self._looked_at, hidden = self.rnn(embedded, memory, self.state_in(hidden), return_weights=True)
        return self.dense(outputs), [encoded, self.state_out(hidden), lens]

    def state_in(self, state: Any) -> Tensor:
        """The state (layers, B, h), from what `state_out` makes of it."""
        return state

    def state_out(self, state: Tensor) -> Any:
        """The recurrent layers' state as the book's framework has it."""
        return state

    @property
    def attention_weights(self) -> list[Tensor]:
        """What each step of the last call looked at, (B, 1, m) each; empty before the first call."""
        weights = self._looked_at
        return [] if weights is None else [weights[:, step : step + 1] for step in range(weights.shape[1])]
