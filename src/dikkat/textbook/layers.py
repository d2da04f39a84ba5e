"""The textbook's layers on PyTorch: attention, encoders and decoders.

In the shapes, B is the batch, T and m are steps, n queries, h features of a state.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import dikkat
from dikkat._engine.pytorch_state import can_read_values
from dikkat.recurrent import AttentionalGRU, AttentionalLSTM, GRUEncoder
from dikkat.scores import Additive, ScaledDot, Score, check_size, is_plain
from dikkat.textbook.tools import call_matching, check_heads, positions

__all__ = [
    "GRU", "AdditiveAttention", "AttentionDecoder", "Decoder", "DotProductAttention", "Encoder", "EncoderDecoder",
    "MaskedSoftmaxCELoss", "MultiHeadAttention", "PositionalEncoding", "Seq2SeqAttentionDecoder", "Seq2SeqEncoder",
    "init_seq2seq", "masked_softmax", "sequence_mask", "transpose_output", "transpose_qkv",
]  # fmt: skip

# --- masks


def _integers(name: str, X: Tensor) -> Tensor:
    """Return whole numbers of any dtype as int64."""
    if X.is_floating_point():
        fractional = X[X.frac() != 0]  # also NaN and infinities
        if fractional.numel():
            raise ValueError(f"{name}: got {fractional[0].item()}; expected whole numbers, as integers or as floats")
    return X.long()


def _lengths(valid_lens: Tensor | None, keys: int) -> Tensor | None:
    return None if valid_lens is None else _integers("valid_lens", valid_lens).clamp(max=keys)


def sequence_mask(X: Tensor, valid_len: Tensor, value: float = 0) -> Tensor:
    """Return a copy with `value` after each sequence's length.

    Args:
        X: (B, T, ...).
        valid_len: (B,) whole numbers.
        value: The value of padding.

    Raises:
        ValueError: A length that is not whole.
    """
    is_padding = torch.arange(X.shape[1], device=X.device) >= _integers("valid_len", valid_len)[:, None]
    return X.masked_fill(is_padding.reshape(*is_padding.shape, *[1] * (X.ndim - 2)), value)


def masked_softmax(X: Tensor, valid_lens: Tensor | None) -> Tensor:
    """Return the softmax over the first entries of each row; weights 0 in a row of length 0.

    Args:
        X: (B, n, m) scores, not changed.
        valid_lens: (B,) or (B, n) whole numbers; above m counts as m; None: all entries.

    Returns:
        (B, n, m).

    Raises:
        ValueError: Lengths of another shape, below 0, or not whole.

    Source: *Dive into Deep Learning*, section "Attention Scoring Functions".

    Example:
        >>> from dikkat.textbook import torch as d2l
        >>> d2l.masked_softmax(torch.zeros(1, 2, 4), torch.tensor([[2, 0]]))
        tensor([[[0.5000, 0.5000, 0.0000, 0.0000],
                 [0.0000, 0.0000, 0.0000, 0.0000]]])
    """
    if valid_lens is None:
        return F.softmax(X, dim=-1)
    return dikkat.masked_softmax(X, _lengths(valid_lens, X.shape[-1]))


def _hide(queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the inputs with 0 for queries without a visible key, and for keys and values without a query.

    This precedes the projections: a hidden NaN would reach their weights' gradients as 0 · NaN.
    """
    if valid_lens is None:
        return queries, keys, values
    lens = valid_lens.reshape(len(valid_lens), -1, 1)
    hidden = torch.arange(keys.shape[1], device=keys.device)[:, None] >= lens.amax(1, keepdim=True)
    return queries.masked_fill(lens <= 0, 0.0), keys.masked_fill(hidden, 0.0), values.masked_fill(hidden, 0.0)


# --- attention


class _Attention(Score):
    """A layer that passes itself to `attend` as the score, and stores the last attention weights."""

    dropout: nn.Module
    attention_weights: Tensor

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None) -> Tensor:
        """Return the attention output.

        Args:
            queries: (B, n, d_q).
            keys: (B, m, d_k).
            values: (B, m, d_v).
            valid_lens: (B,) or (B, n), the number of visible keys; None: all.

        Returns:
            (B, n, d_v).

        Raises:
            ValueError: Shapes that do not fit, or lengths that are not whole numbers from 0.
        """
        lens, dropout = _lengths(valid_lens, keys.shape[-2]), self.dropout
        if isinstance(dropout, nn.Dropout) and all(is_plain(layer, nn.Linear, nn.Dropout) for layer in self.children()):
            p = dropout.p if dropout.training else 0.0
            output, self.attention_weights = dikkat.attend(
                queries, keys, values, score=self, valid_lens=lens, dropout=p, return_weights=True
            )
            return output
        # Replaced or hooked submodules are called with the arguments of the book's layer.
        queries, keys, values = _hide(queries, keys, values, lens)
        self.attention_weights = masked_softmax(self._scores(queries, keys), lens)
        return cast(Tensor, dropout(self.attention_weights) @ values)

    def _scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the scores (B, n, m), computed by the submodules."""
        raise NotImplementedError


class AdditiveAttention(_Attention, Additive):
    """Additive attention with the score Σ_i v_i tanh((W_q q)_i + (W_k k)_i) and the layers `W_q`, `W_k`, `w_v`.

    Edition 0.17: `AdditiveAttention(key_size, query_size, num_hiddens, dropout)`. Edition 1.0:
    `AdditiveAttention(num_hiddens, dropout)`; the first call infers the other sizes.

    Args:
        *args: `key_size` and `query_size`, features of a key and of a query; `num_hiddens`, those of both projections;
            `dropout`, the probability of dropping a weight in training.
        **kwargs: The same by their names.

    Attributes:
        attention_weights: The last call's, before dropout; (B, n, m).

    Source: Bahdanau, Cho and Bengio 2015, section 3.1.

    Example:
        >>> attention = AdditiveAttention(num_hiddens=19, dropout=0.25)
        >>> queries, keys, values = torch.zeros(5, 3, 17), torch.ones(5, 7, 11), torch.ones(5, 7, 13)
        >>> attention(queries, keys, values, torch.tensor([7, 1, 4, 0, 3])).shape, attention.attention_weights.shape
        (torch.Size([5, 3, 13]), torch.Size([5, 3, 7]))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        key_size, query_size, num_hiddens, dropout = call_matching(
            args,
            kwargs,
            lambda key_size, query_size, num_hiddens, dropout: (key_size, query_size, num_hiddens, dropout),  # 0.17
            lambda num_hiddens, dropout: (None, None, num_hiddens, dropout),  # edition 1.0
        )
        Score.__init__(self)  # not `Additive.__init__`, which needs all sizes
        self.num_hiddens = num_hiddens
        self.W_k = _linear("key_size", key_size, num_hiddens)
        self.W_q = _linear("query_size", query_size, num_hiddens)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None) -> Tensor:
        """(B, n, query_size), (B, m, key_size), (B, m, d_v), lengths (B,) or (B, n), None for all -> (B, n, d_v)."""
        for layer, features in ((self.W_q, queries), (self.W_k, keys)):
            if isinstance(layer, nn.LazyLinear):
                layer(features[..., :1, :])  # infers its size
        return super().forward(queries, keys, values, valid_lens)

    def _scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        features = torch.tanh(self.W_q(queries).unsqueeze(2) + self.W_k(keys).unsqueeze(1))
        return cast(Tensor, self.w_v(features).squeeze(-1))


def _linear(name: str, size: int | None, num_hiddens: int, bias: bool = False) -> nn.Linear:
    """Return a linear layer; without a size, the first call infers it."""
    if size is None:
        return nn.LazyLinear(num_hiddens, bias=bias)
    return nn.Linear(check_size(name, size), num_hiddens, bias=bias)


class DotProductAttention(_Attention, ScaledDot):
    """Scaled dot-product attention with the score ⟨q, k⟩ / √d.

    Args:
        dropout: The probability of dropping a weight in training.

    Attributes:
        attention_weights: The last call's, before dropout; (B, n, m).

    Source: Vaswani et al. 2017, section 3.2.1.
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def _scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.mT / math.sqrt(queries.shape[-1])


def transpose_qkv(X: Tensor, num_heads: int) -> Tensor:
    """Reshape (B, n, heads · d) to (B · heads, n, d), one batch element for each head."""
    return X.unflatten(-1, (num_heads, -1)).transpose(1, 2).flatten(0, 1)


def transpose_output(X: Tensor, num_heads: int) -> Tensor:
    """Reshape (B · heads, n, d) to (B, n, heads · d), the inverse of `transpose_qkv`."""
    return X.unflatten(0, (-1, num_heads)).transpose(1, 2).flatten(2)


class MultiHeadAttention(nn.Module):
    """Multi-head scaled dot-product attention; each head uses a part of the projected features.

    Edition 0.17: `MultiHeadAttention(key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False)`.
    Edition 1.0: without the first three sizes, which the first call infers.

    Args:
        *args: `key_size`, `query_size`, `value_size`, features of the inputs; `num_hiddens`, features of the
            projections and of the output; `num_heads`; `dropout` of weights; `bias`, whether projections have a bias.
        **kwargs: The same by their names.

    Attributes:
        attention: The `DotProductAttention` of the heads, whose `attention_weights` are (B · heads, n, m).

    Raises:
        ValueError: `num_hiddens` is not a multiple of `num_heads`.

    Source: Vaswani et al. 2017, section 3.2.2.

    Example:
        >>> attention, X = MultiHeadAttention(21, 3, 0.25), torch.ones(5, 7, 11)
        >>> attention(X, X, X, torch.tensor([7, 1, 4, 0, 3])).shape
        torch.Size([5, 7, 21])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        sizes, num_hiddens, self.num_heads, dropout, bias = call_matching(
            args,
            kwargs,
            lambda key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False: (  # edition 0.17
                (query_size, key_size, value_size), num_hiddens, num_heads, dropout, bias,
            ),  # and edition 1.0
            lambda num_hiddens, num_heads, dropout, bias=False: ((None,) * 3, num_hiddens, num_heads, dropout, bias),
        )  # fmt: skip
        check_heads(num_hiddens, self.num_heads)
        self.attention = DotProductAttention(dropout)
        names = ("query_size", "key_size", "value_size")
        self.W_q, self.W_k, self.W_v = (
            _linear(name, size, num_hiddens, bias) for name, size in zip(names, sizes, strict=True)
        )
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None) -> Tensor:
        """(B, n, query_size), (B, m, key_size), (B, m, value_size), lengths (B,) or (B, n) -> (B, n, num_hiddens)."""
        lens = _lengths(valid_lens, keys.shape[1])
        queries, keys, values = _hide(queries, keys, values, lens)
        heads = (
            transpose_qkv(layer(X), self.num_heads)
            for layer, X in ((self.W_q, queries), (self.W_k, keys), (self.W_v, values))
        )
        lens = None if lens is None else lens.repeat_interleave(self.num_heads, dim=0)
        return cast(Tensor, self.W_o(transpose_output(self.attention(*heads, lens), self.num_heads)))

    def transpose_qkv(self, X: Tensor) -> Tensor:
        """Call the function `transpose_qkv` with this layer's heads."""
        return transpose_qkv(X, self.num_heads)

    def transpose_output(self, X: Tensor) -> Tensor:
        """Call the function `transpose_output` with this layer's heads."""
        return transpose_output(X, self.num_heads)


class PositionalEncoding(nn.Module):
    """Adds the sines and cosines of `dikkat.textbook.tools.positions`.

    Args:
        num_hiddens: Features.
        dropout: The probability of dropping a feature in training.
        max_len: Positions.

    Attributes:
        P: (1, max_len, num_hiddens).

    Source: Vaswani et al. 2017, section 3.5.
    """

    P: Tensor

    def __init__(self, num_hiddens: int, dropout: float, max_len: int = 1000) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("P", torch.from_numpy(positions(num_hiddens, max_len)), persistent=False)

    def forward(self, X: Tensor) -> Tensor:
        """(B, n, num_hiddens) -> (B, n, num_hiddens)."""
        return cast(Tensor, self.dropout(X + self.P[:, : X.shape[1]]))


# --- translators


class Encoder(nn.Module):
    """The interface of encoders: `forward` encodes inputs for a decoder."""


class Decoder(nn.Module):
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


class EncoderDecoder(nn.Module):
    """An encoder, and a decoder that starts with the encoder's outputs."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, enc_X: Tensor, dec_X: Tensor, *args: Any) -> Any:
        """Return the decoder's outputs and state; `args`, such as lengths, go to the encoder and to `init_state`."""
        return self.decoder(dec_X, cast(Decoder, self.decoder).init_state(self.encoder(enc_X, *args), *args))


class GRU(nn.Module):
    """A GRU of several layers, with steps in the first dimension.

    Args:
        num_inputs: Features of an input.
        num_hiddens: Features of a state.
        num_layers: Layers.
        dropout: The probability of dropping a feature between layers in training.
    """

    def __init__(self, num_inputs: int, num_hiddens: int, num_layers: int, dropout: float = 0) -> None:
        super().__init__()
        self.rnn = nn.GRU(num_inputs, num_hiddens, num_layers, dropout=_layer_dropout(num_layers, dropout))

    def forward(self, inputs: Tensor, H: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run over inputs (T, B, num_inputs) from the state H (layers, B, h); return (T, B, h) and the last H."""
        return cast(tuple[Tensor, Tensor], self.rnn(inputs, H))


def _layer_dropout(num_layers: int, dropout: float) -> float:
    """Return the dropout between layers: 0 for a single layer, where PyTorch would warn about another number."""
    return dropout if num_layers > 1 else 0.0


def init_seq2seq(module: nn.Module) -> None:
    """Initialise matrices of linear and recurrent layers Xavier-uniformly: `net.apply(init_seq2seq)`."""
    recurrent = isinstance(module, nn.RNNBase | AttentionalGRU)
    if isinstance(module, nn.LazyLinear) or not (recurrent or isinstance(module, nn.Linear)):
        return
    for name, parameter in module.named_parameters(recurse=False):
        if name.startswith("weight"):
            nn.init.xavier_uniform_(parameter)


class Seq2SeqEncoder(Encoder):
    """An embedding and a GRU. With lengths, the GRU skips padding.

    `rnn` may be replaced. PyTorch's recurrent networks, also bidirectional, skip padding too. As in the book, other
    modules get only inputs (T, B, embed_size), without lengths. Weights saved with either edition can be loaded.

    Args:
        vocab_size: Tokens.
        embed_size: Features of an embedding.
        num_hiddens: Features of a state.
        num_layers: GRU layers.
        dropout: The probability of dropping a feature between layers in training.
    """

    def __init__(self, vocab_size: int, embed_size: int, num_hiddens: int, num_layers: int, dropout: float = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn: nn.Module = nn.GRU(embed_size, num_hiddens, num_layers, dropout=_layer_dropout(num_layers, dropout))
        self.apply(init_seq2seq)
        self.register_load_state_dict_pre_hook(_convert_edition_1)

    def forward(self, X: Tensor, valid_len: Tensor | None = None, *args: Any) -> tuple[Tensor, Any]:
        """Return the states of the top layer, and the last states.

        Args:
            X: (B, T) token ids.
            valid_len: (B,), the number of tokens to read; None: all.
            *args: Further arguments of `EncoderDecoder`, ignored.

        Returns:
            The top layer's states (T, B, h), 0 for padding; each layer's last state (layers, B, h).

        Raises:
            ValueError: A token id or a length that is not whole, or a length that is less than 1.
        """
        embedded, rnn = self.embedding(_integers("X", X)), self.rnn
        if valid_len is None or not len(X) or not isinstance(rnn, nn.RNNBase | GRU):
            return cast(tuple[Tensor, Any], rnn(embedded.transpose(0, 1)))
        lens = _integers("valid_len", valid_len).clamp(max=X.shape[1])
        if lens.numel() and can_read_values(lens) and int(lens.min()) < 1:
            raise ValueError(f"valid_len: got {int(lens.min())}; expected at least 1")
        if type(rnn) is nn.GRU and not rnn.bidirectional:
            outputs, state = GRUEncoder.of(rnn)(embedded, lens)
            return outputs.transpose(0, 1), state
        packed = pack_padded_sequence(embedded, lens.cpu(), batch_first=True, enforce_sorted=False)
        outputs, state = rnn(packed)
        return pad_packed_sequence(outputs, total_length=X.shape[1])[0], state


def _convert_edition_1(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Rename the weights of an encoder saved with edition 1.0 of the book.

    Its `rnn` was the class `GRU`, which contains PyTorch's.
    """
    if not isinstance(module.rnn, GRU):
        for name in [name for name in state_dict if name.startswith(f"{prefix}rnn.rnn.")]:
            state_dict[prefix + name.removeprefix(f"{prefix}rnn.")] = state_dict.pop(name)


class Seq2SeqAttentionDecoder(AttentionDecoder):
    """A GRU with additive attention on the encoder's states before every step.

    `attention` may be replaced by the chapters' other attention layers, and `rnn` by an `AttentionalLSTM` of
    `dikkat.recurrent`. Weights of the decoder in the chapter's cell can be loaded.

    Args:
        vocab_size: Tokens.
        embed_size: Features of an embedding.
        num_hiddens: Features of a state, and of the encoder's.
        num_layers: GRU layers, as in the encoder.
        dropout: The probability of dropping an attention weight, or a feature between layers, in training.

    Source: Bahdanau, Cho and Bengio 2015, section 3; as in *Dive into Deep Learning*, section "Bahdanau Attention".
    """

    _last_weights: Tensor | None = None  # (B, T, m) of the last call

    def __init__(self, vocab_size: int, embed_size: int, num_hiddens: int, num_layers: int, dropout: float = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_size)
        h, between = num_hiddens, _layer_dropout(num_layers, dropout)
        self.rnn = AttentionalGRU(embed_size, h, h, Additive(h, h, h), num_layers, between, weight_dropout=dropout)
        self.dense = nn.Linear(num_hiddens, vocab_size)
        self.apply(init_seq2seq)
        self.register_load_state_dict_pre_hook(_convert_chapter)

    def init_state(self, enc_outputs: Any, enc_valid_lens: Tensor | None = None, *args: Any) -> tuple[Any, ...]:
        """Return the encoder's states (batch first), its last state, and the lengths (None without padding)."""
        outputs, state = enc_outputs
        return outputs.transpose(0, 1), state, enc_valid_lens

    def forward(self, X: Tensor, state: Any) -> tuple[Tensor, list[Any]]:
        """Return the token scores of some steps, and the new state.

        Args:
            X: (B, T) token ids.
            state: As `init_state` returns it.

        Returns:
            Scores (B, T, vocab_size); the state after the last step.
        """
        encoded, hidden, lens = state
        memory = self.rnn.prepare(encoded, _lengths(lens, encoded.shape[1]))
        embedded = self.embedding(_integers("X", X))
        outputs, _, self._last_weights, hidden = self.rnn(embedded, memory, hidden, return_weights=True)
        return self.dense(outputs), [encoded, hidden, lens]

    @property
    def attention(self) -> Score:
        """The score of `rnn`; assign another of the chapters' attention layers to replace it."""
        return self.rnn.score

    def __setattr__(self, name: str, value: Any) -> None:
        allowed: Any = {"attention": (AdditiveAttention, DotProductAttention), "rnn": (AttentionalGRU, AttentionalLSTM)}
        if not isinstance(value, allowed.get(name, (object,))):
            raise TypeError(
                f"{name}: got {type(value).__name__}; expected {' or '.join(kind.__name__ for kind in allowed[name])}. "
                "For another module define the decoder in a cell, as the chapter does"
            )
        if name == "attention":  # not by the property's setter: `nn.Module` would register the module instead
            self.rnn.score, self.rnn.weight_dropout = value, getattr(value.dropout, "p", 0.0)
        else:
            super().__setattr__(name, value)

    @property
    def attention_weights(self) -> list[Tensor]:
        """The weights of each step of the last call, (B, 1, m) each; empty before the first call."""
        return [] if self._last_weights is None else list(self._last_weights.unsqueeze(2).unbind(1))


def _convert_chapter(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Rename the weights of the chapter's decoder, whose inputs are the context and then the embedding."""
    old_prefix = f"{prefix}attention."
    names = [name for name in state_dict if name.startswith(old_prefix)]
    for name in names:
        state_dict[f"{prefix}rnn.score.{name.removeprefix(old_prefix)}"] = state_dict.pop(name)
    if names:
        weight = state_dict[f"{prefix}rnn.weight_ih_l0"]
        state_dict[f"{prefix}rnn.weight_ih_l0"] = weight.roll(-cast(AttentionalGRU, module.rnn).hidden_size, 1)


class MaskedSoftmaxCELoss(nn.CrossEntropyLoss):
    """The masked cross-entropy of each sequence: losses of padding are 0, but the mean is over all positions.

    Args:
        weight: (vocab_size,), weights of the tokens' losses; None: all 1.
        ignore_index: A label without loss.
        label_smoothing: The share of each label that is spread over all tokens, 0 to 1.
    """

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0) -> None:
        super().__init__(weight, ignore_index=ignore_index, reduction="none", label_smoothing=label_smoothing)

    def forward(self, pred: Tensor, label: Tensor, valid_len: Tensor) -> Tensor:  # type: ignore[override]
        """Return the sum of losses over each sequence's tokens, divided by its number of positions.

        Args:
            pred: (B, T, vocab_size) scores.
            label: (B, T) token ids.
            valid_len: (B,).

        Returns:
            (B,).
        """
        losses = super().forward(pred.transpose(1, 2), _integers("label", label))
        return sequence_mask(losses, valid_len).mean(dim=1)
