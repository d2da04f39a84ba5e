"""The textbook's helper library on PyTorch: `from dikkat.textbook import torch as d2l`.

Names, signatures and shapes are the book's, of both its generations: *Dive into Deep Learning* 0.17 and its Chinese
second edition, whose layers are told all sizes; and 1.0, whose layers take the sizes of their inputs from the first
call. A class of both generations tells them apart by its arguments.

What differs from the book, because it is right:

- a row of attention without a valid key has weights 0, scores may lie below −10⁶, and no function writes to its
  arguments;
- an encoder that is given lengths, as `EncoderDecoder` gives them, reads no padding, and its last state is that at each
  sentence's end;
- lengths and token ids may be integral floats; a length above the number of keys means all of them.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

import dikkat
from dikkat import call
from dikkat.layers import join_heads, split_heads
from dikkat.masking import can_read_values, restrict
from dikkat.recurrent import AttentionalGRU, GRUEncoder
from dikkat.scores import Additive, ScaledDot, Score, whole
from dikkat.textbook import learning, pictures, text, tools
from dikkat.textbook.pictures import plt, set_axes, set_figsize, use_svg_display
from dikkat.textbook.positions import positions
from dikkat.textbook.text import Vocab, bleu, preprocess_nmt, read_data_nmt, tokenize_nmt, truncate_pad
from dikkat.textbook.tools import HyperParameters, Timer, add_to_class, check_len, check_shape, first_that_takes

__all__ = [  # noqa: RUF022  (by kind)
    # arrays
    "abs", "arange", "argmax", "astype", "batch_matmul", "concat", "cos", "cosh", "exp", "expand_dims", "eye",
    "float32", "int32", "linspace", "log", "matmul", "meshgrid", "normal", "numpy", "ones", "ones_like", "rand",
    "randn", "reduce_mean", "reduce_sum", "repeat", "reshape", "sigmoid", "sin", "sinh", "size", "stack", "swapaxes",
    "tanh", "tensor", "to", "transpose", "zeros", "zeros_like",
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
    "Seq2SeqAttentionDecoder", "Seq2SeqEncoder", "init_seq2seq", "predict_seq2seq", "train_seq2seq", "grad_clipping",
    # learning
    "DataModule", "Module", "Trainer", "nn_Module",
]  # fmt: skip

# --- arrays

ones, ones_like, zeros, zeros_like, eye = torch.ones, torch.ones_like, torch.zeros, torch.zeros_like, torch.eye
tensor, arange, linspace, meshgrid = torch.tensor, torch.arange, torch.linspace, torch.meshgrid
normal, rand, randn = torch.normal, torch.rand, torch.randn
abs, exp, log, sigmoid = torch.abs, torch.exp, torch.log, torch.sigmoid
sin, cos, sinh, cosh, tanh = torch.sin, torch.cos, torch.sinh, torch.cosh, torch.tanh
matmul, batch_matmul, concat, stack = torch.matmul, torch.bmm, torch.cat, torch.stack
float32, int32 = torch.float32, torch.int32
nn_Module = nn.Module  # noqa: N816  (the book's name)
reshape, astype, to, transpose, repeat = Tensor.reshape, Tensor.type, Tensor.to, Tensor.t, Tensor.repeat
reduce_sum, reduce_mean, argmax, size = Tensor.sum, Tensor.mean, Tensor.argmax, Tensor.numel
expand_dims, swapaxes = Tensor.unsqueeze, Tensor.swapaxes


def numpy(x: Tensor) -> Any:
    """A tensor's values as a NumPy array, from any device and with or without gradients."""
    values = x.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def _as_array(x: Any) -> Any:
    return numpy(x) if isinstance(x, Tensor) else np.asarray(x)


def _whole(name: str, numbers: Tensor) -> Tensor:
    """Integers, from integers or integral floats.

    Raises:
        ValueError: a number that is not whole.
    """
    if numbers.is_floating_point():
        wrong = numbers[numbers.frac() != 0]  # NaN and infinities among them, whose fraction is NaN
        if wrong.numel():
            raise ValueError(f"{name}: came with {wrong[0].item()}; allowed: whole numbers, as integers or as floats")
    return numbers.long()


# --- devices


def cpu() -> torch.device:
    """The CPU."""
    return torch.device("cpu")


def gpu(i: int = 0) -> torch.device:
    """The i-th GPU."""
    return torch.device(f"cuda:{i}")


def num_gpus() -> int:
    """How many GPUs there are."""
    return torch.cuda.device_count()


def try_gpu(i: int = 0) -> torch.device:
    """The i-th GPU if it is there, otherwise the CPU."""
    return gpu(i) if num_gpus() > i else cpu()


def try_all_gpus() -> list[torch.device]:
    """All GPUs, or a list of the CPU where there are none."""
    return [gpu(i) for i in range(num_gpus())] or [cpu()]


# --- pictures and tools

_pictures = pictures.Pictures(_as_array)
plot, show_heatmaps = _pictures.plot, _pictures.show_heatmaps


class Animator(pictures.Animator):
    """Curves that grow while a model learns: `dikkat.textbook.pictures.Animator` of tensors."""

    as_array = staticmethod(_as_array)


class ProgressBoard(pictures.ProgressBoard):
    """A board of curves: `dikkat.textbook.pictures.ProgressBoard` of tensors."""

    as_array = staticmethod(_as_array)


class Accumulator(tools.Accumulator):
    """Sums of n figures: `dikkat.textbook.tools.Accumulator` of tensors."""

    as_array = staticmethod(_as_array)


# --- attention


def sequence_mask(X: Tensor, valid_len: Tensor, value: float = 0) -> Tensor:
    """A copy in which what stands behind each sequence's length is another value.

    Args:
        X: (B, T, ...).
        valid_len: (B,).
        value: what is to stand there.

    Raises:
        ValueError: a length that is not whole.
    """
    behind = torch.arange(X.shape[1], device=X.device) >= _whole("valid_len", valid_len)[:, None]
    return X.masked_fill(behind.reshape(*behind.shape, *[1] * (X.ndim - 2)), value)


def masked_softmax(X: Tensor, valid_lens: Tensor | None) -> Tensor:
    """`dikkat.masked_softmax`: over the first entries of each row; 0 where there are none.

    Args:
        X: (B, n, m) scores; they stay as they are.
        valid_lens: (B,) or (B, n); None: all are valid.

    Example:
        >>> masked_softmax(torch.zeros(1, 2, 4), torch.tensor([[2, 0]]))
        tensor([[[0.5000, 0.5000, 0.0000, 0.0000],
                 [0.0000, 0.0000, 0.0000, 0.0000]]])
    """
    return F.softmax(X, dim=-1) if valid_lens is None else dikkat.masked_softmax(X, _lengths(valid_lens, X.shape[-1]))


def _lengths(valid_lens: Tensor, keys: int, name: str = "valid_lens") -> Tensor:
    return _whole(name, valid_lens).clamp(max=keys)


class _Attention(Score):
    """A score that attends by itself, and keeps what it looked at last.

    Attributes:
        attention_weights: the last call's, before dropout; (B, n, m).
    """

    dropout: nn.Dropout
    attention_weights: Tensor

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None) -> Tensor:
        """Attend.

        Args:
            queries: (B, n, d_q).
            keys: (B, m, d_k).
            values: (B, m, d_v).
            valid_lens: (B,) or (B, n), how many keys count; None: all.

        Returns:
            (B, n, d_v).
        """
        output, self.attention_weights = dikkat.attend(
            queries,
            keys,
            values,
            score=self,
            valid_lens=None if valid_lens is None else _lengths(valid_lens, keys.shape[-2]),
            dropout=self.dropout.p if self.training else 0.0,
            return_weights=True,
        )
        return output


class AdditiveAttention(_Attention, Additive):
    """Additive attention, `AdditiveAttention(key_size, query_size, num_hiddens, dropout)`.

    Without the first two, `AdditiveAttention(num_hiddens, dropout)`, the sizes are those of the first call. The weights
    are `W_k`, `W_q` and `w_v`, as there.

    Args:
        *args: those of either generation.
        **kwargs: likewise.

    Example:
        >>> attention = AdditiveAttention(num_hiddens=19, dropout=0.25)
        >>> queries, keys, values = torch.zeros(5, 3, 17), torch.ones(5, 7, 11), torch.ones(5, 7, 13)
        >>> attention(queries, keys, values, torch.tensor([7, 1, 4, 0, 3])).shape, attention.attention_weights.shape
        (torch.Size([5, 3, 13]), torch.Size([5, 3, 7]))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        key_size, query_size, num_hiddens, dropout = first_that_takes(
            args,
            kwargs,
            lambda key_size, query_size, num_hiddens, dropout: (key_size, query_size, num_hiddens, dropout),
            lambda num_hiddens, dropout: (None, None, num_hiddens, dropout),
        )
        Score.__init__(self)
        self.W_k = _linear("key_size", key_size, num_hiddens)
        self.W_q = _linear("query_size", query_size, num_hiddens)
        self.w_v = nn.Linear(num_hiddens, 1, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None) -> Tensor:
        """Attend; the arguments are those of every attention here."""
        for layer, features in ((self.W_q, queries), (self.W_k, keys)):
            _settle(layer, features)
        alike = queries.ndim == keys.ndim == values.ndim == 3 and len(queries) == len(keys) == len(values)
        if alike and queries.shape[1] == 1 and queries.dtype in (torch.float32, torch.float64):
            return self._step(queries, keys, values, valid_lens)
        return super().forward(queries, keys, values, valid_lens)

    def _step(self, query: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None) -> Tensor:
        """What a decoder's loop calls for each word: of one query there are no more pairs than keys to keep.

        So the formula as it stands is faster here than the kernels for many, and their checks.
        """
        call.check_call(keys, values, self)
        hidden = None
        if valid_lens is not None:
            lens = _lengths(valid_lens, keys.shape[1])
            hidden = _behind(keys, lens)
        if hidden is not None and not _finite(query, keys, values):
            # Before the projections: a hidden NaN would reach their weights' gradients as 0 · NaN.
            query = query.masked_fill(hidden.all(-1, keepdim=True), 0)
            keys, values = keys.masked_fill(hidden.mT, 0), values.masked_fill(hidden.mT, 0)
        features = torch.tanh(self.project_query(query) + self.project_key(keys))
        scores = (features @ self.pair_weight())[:, None]
        if hidden is None:
            weights = F.softmax(scores, dim=-1)
        else:
            weights = F.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1).masked_fill(hidden, 0)
        self.attention_weights = weights
        return torch.bmm(self.dropout(weights), values)


def _behind(keys: Tensor, valid_lens: Tensor) -> Tensor:
    """(B, 1, m) booleans: the keys behind each length, which is one of each of the batch."""
    limits = restrict(keys.shape[:1], 1, keys.shape[1], keys.device, valid_lens=valid_lens)
    return torch.arange(keys.shape[1], device=keys.device) >= cast(Tensor, limits.lens)[..., None]


def _finite(*tensors: Tensor) -> bool:
    """Whether all numbers are seen to be finite, by their sum: no more than a few microseconds."""
    return can_read_values(*tensors) and all(math.isfinite(each.detach().sum()) for each in tensors)


def _linear(name: str, size: int | None, num_hiddens: int, bias: bool = False) -> nn.Linear:
    """A linear layer; of no size one that takes its size from the first input."""
    if size is None:
        return nn.LazyLinear(num_hiddens, bias=bias)
    return nn.Linear(whole(name, size), num_hiddens, bias=bias)


def _settle(layer: nn.Linear, features: Tensor) -> None:
    """Give a layer without a size that of its input."""
    if isinstance(layer, nn.LazyLinear):
        layer(features[..., :1, :])


class DotProductAttention(_Attention, ScaledDot):
    """Scaled dot-product attention.

    Args:
        dropout: the probability with which a weight is dropped, in training.
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)


def transpose_qkv(X: Tensor, num_heads: int) -> Tensor:
    """(B, n, heads · d) -> (B · heads, n, d)."""
    return split_heads(X, num_heads).flatten(0, 1)


def transpose_output(X: Tensor, num_heads: int) -> Tensor:
    """(B · heads, n, d) -> (B, n, heads · d), the reverse of `transpose_qkv`."""
    return join_heads(X.unflatten(0, (-1, num_heads)))


class MultiHeadAttention(nn.Module):
    """Multi-head attention, `(key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False)`.

    Without the first three the sizes are those of the first call. The last call's weights are
    `attention.attention_weights`, (B · heads, n, m).

    Args:
        *args: those of either generation.
        **kwargs: likewise.

    Raises:
        ValueError: `num_hiddens` is no multiple of `num_heads`.

    Example:
        >>> attention, X = MultiHeadAttention(21, 3, 0.25), torch.ones(5, 7, 11)
        >>> attention(X, X, X, torch.tensor([7, 1, 4, 0, 3])).shape
        torch.Size([5, 7, 21])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        sizes, num_hiddens, self.num_heads, dropout, bias = first_that_takes(
            args,
            kwargs,
            lambda key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False: (
                (query_size, key_size, value_size), num_hiddens, num_heads, dropout, bias,
            ),
            lambda num_hiddens, num_heads, dropout, bias=False: ((None,) * 3, num_hiddens, num_heads, dropout, bias),
        )  # fmt: skip
        if whole("num_hiddens", num_hiddens) % whole("num_heads", self.num_heads):
            raise ValueError(f"num_hiddens: came {num_hiddens}; allowed: a multiple of num_heads, {self.num_heads}")
        self.attention = DotProductAttention(dropout)
        names = ("query_size", "key_size", "value_size")
        self.W_q, self.W_k, self.W_v = (
            _linear(name, size, num_hiddens, bias) for name, size in zip(names, sizes, strict=True)
        )
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None) -> Tensor:
        """(B, n, ·), (B, m, ·), (B, m, ·) and lengths (B,) or (B, n) -> (B, n, num_hiddens)."""
        if valid_lens is not None:
            valid_lens = _lengths(valid_lens, keys.shape[-2])
            # Before the projections: a hidden NaN would reach their weights' gradients as 0 · NaN.
            limits = restrict(
                queries.shape[:-2], queries.shape[-2], keys.shape[-2], queries.device, valid_lens=valid_lens
            )
            queries = call.hide(queries, limits.live())
            keys, values = (call.hide(each, limits.seen()) for each in (keys, values))
        projected = self.W_q(queries), self.W_k(keys), self.W_v(values)
        output = self.attention(*(split_heads(each, self.num_heads) for each in projected), valid_lens)
        self.attention.attention_weights = self.attention.attention_weights.flatten(0, 1)
        return cast(Tensor, self.W_o(join_heads(output)))

    def transpose_qkv(self, X: Tensor) -> Tensor:
        """`transpose_qkv` with this layer's heads."""
        return transpose_qkv(X, self.num_heads)

    def transpose_output(self, X: Tensor) -> Tensor:
        """`transpose_output` with this layer's heads."""
        return transpose_output(X, self.num_heads)


class NWKernelRegression(Score):
    """Nadaraya–Watson regression with a learnt Gaussian kernel, softmax(−((q − k) w)² / 2).

    Attributes:
        w: (1,), one over the bandwidth.
        attention_weights: the last call's, (n, m).

    Example:
        >>> net = NWKernelRegression()
        >>> net(torch.zeros(3), torch.ones(3, 5), torch.ones(3, 5)).tolist(), net.attention_weights.shape
        ([1.0, 1.0, 1.0], torch.Size([3, 5]))
    """

    pair = "distance"

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(1))

    def project_query(self, query: Tensor) -> Tensor:
        """q w."""
        return query * self.w

    def project_key(self, key: Tensor) -> Tensor:
        """k w."""
        return key * self.w

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Predict.

        Args:
            queries: (n,).
            keys: (n, m), those of each query; or (m,), of all.
            values: likewise.

        Returns:
            (n,).
        """
        output, weights = dikkat.attend(
            queries[:, None, None], keys[..., None], values[..., None], score=self, return_weights=True
        )
        self.attention_weights = weights.squeeze(-2)
        return output.flatten()


class PositionalEncoding(nn.Module):
    r"""Adds to each position sines and cosines of its own.

    $$ p_{i, 2j} = \sin(i / 10000^{2j/d}), \qquad p_{i, 2j+1} = \cos(i / 10000^{2j/d}) $$

    Args:
        num_hiddens: d.
        dropout: the probability with which a feature is dropped, in training.
        max_len: positions.

    Attributes:
        P: (1, max_len, d).

    Source: Vaswani et al. 2017, section 3.5.
    """

    P: Tensor

    def __init__(self, num_hiddens: int, dropout: float, max_len: int = 1000) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("P", torch.from_numpy(positions(num_hiddens, max_len)), persistent=False)

    def forward(self, X: Tensor) -> Tensor:
        """(B, n, d) -> (B, n, d)."""
        return cast(Tensor, self.dropout(X + self.P[:, : X.shape[1]]))


# --- text


def build_array_nmt(lines: Sequence[Sequence[str]], vocab: Vocab, num_steps: int) -> tuple[Tensor, Tensor]:
    """Sentences as token ids (sentences, num_steps), each ended and padded, and their lengths (sentences,)."""
    ids, lens = text.build_array_nmt(lines, vocab, num_steps)
    return torch.from_numpy(ids), torch.from_numpy(lens)


def load_array(data_arrays: Sequence[Tensor], batch_size: int, is_train: bool = True) -> DataLoader[Any]:
    """Batches of tensors that belong together row by row, in another order each time if `is_train`."""
    dataset = TensorDataset(*data_arrays)
    order = RandomSampler(dataset) if is_train else SequentialSampler(dataset)
    # A batch is taken out of each tensor at once, where the loader itself would take its rows one by one.
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=False), batch_size=None)


def load_data_nmt(batch_size: int, num_steps: int, num_examples: int = 600) -> tuple[DataLoader[Any], Vocab, Vocab]:
    """Batches of the corpus's first sentence pairs, and the vocabularies of both languages.

    The corpus is that of `read_data_nmt`. In a batch are sources, their lengths, targets and their lengths.
    """
    arrays, source_vocab, target_vocab = text.load_data_nmt(num_steps, num_examples)
    return load_array([torch.from_numpy(each) for each in arrays], batch_size), source_vocab, target_vocab


# --- translators


class Encoder(nn.Module):
    """The interface of encoders."""

    def forward(self, X: Tensor, *args: Any) -> Any:
        """What a decoder is to know of X; the encoder's own."""
        raise NotImplementedError


class Decoder(nn.Module):
    """The interface of decoders."""

    def init_state(self, enc_outputs: Any, *args: Any) -> Any:
        """The state before the first step; the decoder's own."""
        raise NotImplementedError

    def forward(self, X: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The outputs of some steps, and the state after them; the decoder's own."""
        raise NotImplementedError


class AttentionDecoder(Decoder):
    """The interface of decoders that attend."""

    @property
    def attention_weights(self) -> Any:
        """What the last call looked at; the decoder's own."""
        raise NotImplementedError


class EncoderDecoder(nn.Module):
    """An encoder, and a decoder that begins with what it found."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, enc_X: Tensor, dec_X: Tensor, *args: Any) -> Any:
        """The decoder's outputs and its state; further arguments, such as lengths, go to both."""
        state = self.decoder.init_state(self.encoder(enc_X, *args), *args)  # type: ignore[operator]
        return self.decoder(dec_X, state)


class GRU(nn.Module):
    """A GRU of several layers, steps first.

    Args:
        num_inputs: features of an input.
        num_hiddens: features of a state.
        num_layers: layers.
        dropout: the probability with which a feature is dropped between layers, in training.
    """

    def __init__(self, num_inputs: int, num_hiddens: int, num_layers: int, dropout: float = 0) -> None:
        super().__init__()
        self.rnn = nn.GRU(num_inputs, num_hiddens, num_layers, dropout=_between(num_layers, dropout))

    def forward(self, inputs: Tensor, H: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(T, B, num_inputs) and a state (layers, B, h) -> states (T, B, h), the last state."""
        outputs, state = self.rnn(inputs, H)
        return outputs, state


def _between(num_layers: int, dropout: float) -> float:
    """What is dropped between layers, of which the book takes a single one too."""
    return dropout if num_layers > 1 else 0.0


def init_seq2seq(module: nn.Module) -> None:
    """Xavier-uniform matrices for linear and recurrent layers: for `net.apply(init_seq2seq)`."""
    recurrent = isinstance(module, nn.RNNBase | AttentionalGRU)
    if isinstance(module, nn.LazyLinear) or not (recurrent or isinstance(module, nn.Linear)):
        return
    for name, parameter in module.named_parameters(recurse=False):
        if name.startswith("weight"):
            nn.init.xavier_uniform_(parameter)


class Seq2SeqEncoder(Encoder):
    """An embedding and a GRU. Given lengths, it reads no padding.

    Args:
        vocab_size: tokens.
        embed_size: features of an embedding.
        num_hiddens: features of a state.
        num_layers: GRU layers.
        dropout: the probability with which a feature is dropped between layers, in training.
    """

    def __init__(self, vocab_size: int, embed_size: int, num_hiddens: int, num_layers: int, dropout: float = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = GRUEncoder(embed_size, num_hiddens, num_layers, False, _between(num_layers, dropout))
        self.apply(init_seq2seq)

    def forward(self, X: Tensor, valid_len: Tensor | None = None, *args: Any) -> tuple[Tensor, Tensor]:
        """Encode.

        Args:
            X: (B, T) token ids.
            valid_len: (B,), how many of them are read; None: all.
            *args: what else `EncoderDecoder` gives to both, of which an encoder makes nothing.

        Returns:
            The top layer's states (T, B, h), 0 behind a length; each layer's last state (layers, B, h).

        Raises:
            ValueError: a length that is not whole, or less than 1.
        """
        if valid_len is None:
            lens = torch.full((len(X),), X.shape[1])
        else:
            lens = _lengths(valid_len, X.shape[1], "valid_len")
            if lens.numel() and can_read_values(lens) and int(lens.min()) < 1:
                raise ValueError(
                    f"valid_len: came with {int(lens.min())}; allowed: at least 1, for a state to end with"
                )
        outputs, state = self.rnn(self.embedding(_whole("X", X)), lens)
        return outputs.transpose(0, 1), state


class Seq2SeqAttentionDecoder(AttentionDecoder):
    """A GRU that looks at the encoder's states before every step, by additive attention.

    Args:
        vocab_size: tokens.
        embed_size: features of an embedding.
        num_hiddens: features of a state, and of the encoder's.
        num_layers: GRU layers.
        dropout: the probability with which an attention weight, or a feature between layers, is dropped, in training.
    """

    def __init__(self, vocab_size: int, embed_size: int, num_hiddens: int, num_layers: int, dropout: float = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = AttentionalGRU(
            embed_size,
            num_hiddens,
            num_hiddens,
            Additive(num_hiddens, num_hiddens, num_hiddens),
            num_layers,
            _between(num_layers, dropout),
            weight_dropout=dropout,
        )
        self.dense = nn.Linear(num_hiddens, vocab_size)
        self._looked_at = torch.empty(0, 0, 0)
        self.apply(init_seq2seq)

    def init_state(
        self, enc_outputs: tuple[Tensor, Tensor], enc_valid_lens: Tensor | None = None, *args: Any
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The encoder's states, batch first; its last state; the lengths, None for no padding."""
        outputs, state = enc_outputs
        return outputs.transpose(0, 1), state, enc_valid_lens

    def forward(self, X: Tensor, state: Any) -> tuple[Tensor, list[Any]]:
        """Run some steps.

        Args:
            X: (B, T) token ids.
            state: as `init_state` returns it.

        Returns:
            Scores (B, T, vocab_size); the state after the last step.
        """
        encoded, hidden, lens = state
        memory = self.rnn.prepare(encoded, None if lens is None else _lengths(lens, encoded.shape[1]))
        outputs, _, weights, hidden = self.rnn(self.embedding(_whole("X", X)), memory, hidden, return_weights=True)
        self._looked_at = weights
        return self.dense(outputs), [encoded, hidden, lens]

    @property
    def attention_weights(self) -> list[Tensor]:
        """What each step of the last call looked at, (B, 1, m) each; of none before the first call."""
        return list(self._looked_at.unsqueeze(2).unbind(1))


class MaskedSoftmaxCELoss(nn.CrossEntropyLoss):
    """Cross-entropy of the labels that are no padding.

    Args:
        weight: (vocab_size,), what a token's loss counts; None: all 1.
        ignore_index: a label that does not count wherever it stands.
        label_smoothing: the part of each label that is shared out among all tokens, 0 to 1.
    """

    def __init__(self, weight: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0) -> None:
        super().__init__(weight, ignore_index=ignore_index, reduction="none", label_smoothing=label_smoothing)

    def forward(self, pred: Tensor, label: Tensor, valid_len: Tensor) -> Tensor:  # type: ignore[override]
        """The sum over each sequence's real tokens, divided by all its positions.

        Args:
            pred: (B, T, vocab_size) scores.
            label: (B, T) token ids.
            valid_len: (B,).

        Returns:
            (B,).
        """
        losses = super().forward(pred.transpose(1, 2), _whole("label", label))
        return sequence_mask(losses, valid_len).mean(dim=1)


def grad_clipping(net: Any, theta: float) -> None:
    """Shrink the gradients of a module, or of an object's `params`, to a norm of theta if it is larger."""
    nn.utils.clip_grad_norm_(net.parameters() if isinstance(net, nn.Module) else net.params, theta)


def train_seq2seq(
    net: nn.Module,
    data_iter: DataLoader[Any],
    lr: float,
    num_epochs: int,
    tgt_vocab: Vocab,
    device: torch.device,
) -> None:
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
    net.apply(init_seq2seq)
    net.to(device)
    net.train()
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    loss = MaskedSoftmaxCELoss()
    animator = Animator(xlabel="epoch", ylabel="loss", xlim=[1, num_epochs])
    timer, metric = Timer(), Accumulator(2)
    for epoch in range(num_epochs):
        timer.start()
        metric.reset()
        for batch in data_iter:
            X, X_lens, Y, Y_lens = (each.to(device) for each in batch)
            begin = torch.full_like(Y[:, :1], tgt_vocab["<bos>"])
            scores, _ = net(X, torch.cat([begin, Y[:, :-1]], dim=1), X_lens)
            total = loss(scores, Y, Y_lens).sum()
            optimizer.zero_grad()
            total.backward()
            grad_clipping(net, 1)
            optimizer.step()
            metric.add(total, Y_lens.sum())
        timer.stop()
        if (epoch + 1) % 10 == 0:
            animator.add(epoch + 1, metric[0] / metric[1])
    print(f"loss {metric[0] / metric[1]:.3f}, {metric[1] / timer.times[-1]:.1f} tokens/sec on {device}")


@torch.no_grad()
def predict_seq2seq(
    net: nn.Module,
    src_sentence: str,
    src_vocab: Vocab,
    tgt_vocab: Vocab,
    num_steps: int,
    device: torch.device,
    save_attention_weights: bool = False,
) -> tuple[str, list[Any]]:
    """Translate a sentence, the likeliest word at each step.

    Args:
        net: as it was trained; it is left in evaluation mode.
        src_sentence: words and punctuation marks with spaces between them.
        src_vocab: of the source.
        tgt_vocab: of the target.
        num_steps: to which the source is padded, and how many words are said at most.
        device: where the net is.
        save_attention_weights: whether to return the decoder's `attention_weights` of each step.

    Returns:
        The translation, and for each step, that of `<eos>` among them, its attention weights, if they were asked for.
    """
    net.eval()
    sources, lens = (each.to(device) for each in build_array_nmt([src_sentence.lower().split()], src_vocab, num_steps))
    begin, end = torch.tensor([[tgt_vocab["<bos>"]]], device=device), tgt_vocab["<eos>"]
    said, looked_at = _likeliest(net, sources, lens, begin, num_steps, save_attention_weights, end)
    words = said[0].tolist()
    return " ".join(tgt_vocab.to_tokens(words[:-1] if words[-1] == end else words)), looked_at


def _likeliest(
    net: Any, sources: Tensor, lens: Tensor, begin: Tensor, num_steps: int, keep: bool, end: int | None = None
) -> tuple[Tensor, list[Any]]:
    """The likeliest token at each step, (B, steps), until all are `end`; what the decoder looked at, if it is kept."""
    state = net.decoder.init_state(net.encoder(sources, lens), lens)
    said, looked_at = [begin], []
    for _ in range(num_steps):
        scores, state = net.decoder(said[-1], state)
        said.append(scores.argmax(dim=2))
        if keep:
            looked_at.append(net.decoder.attention_weights)
        if end is not None and bool((said[-1] == end).all()):
            break
    return torch.cat(said[1:], dim=1), looked_at


# --- learning, in the second generation's way


class Module(nn.Module, learning.LearningModel):
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
        return cast(nn.Module, self.net)(*inputs)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Stochastic gradient descent with the learning rate `lr`."""
        return torch.optim.SGD(self.parameters(), lr=cast(float, self.lr))

    def apply_init(self, inputs: Sequence[Any], init: Any = None) -> None:
        """Run the model once, so that every layer has a size, and draw the weights by `init`."""
        self(*inputs)
        if init is not None:
            cast(nn.Module, self.net).apply(init)


class DataModule(learning.LearningData):
    """Batches to learn from and to validate with."""

    def get_tensorloader(
        self, tensors: Sequence[Tensor], train: bool, indices: slice = slice(0, None)
    ) -> DataLoader[Any]:
        """Batches of `batch_size` of some rows of tensors."""
        return load_array([each[indices] for each in tensors], cast(Any, self).batch_size, train)


class MTFraEng(learning.FrenchFromEnglish, DataModule):
    """English sentences and their French translations, `dikkat.textbook.learning.FrenchFromEnglish` of tensors."""

    as_tensor = staticmethod(torch.from_numpy)


class Trainer(learning.LearningTrainer):
    """Goes through the data, epoch by epoch; on the first GPU if it may use one and there is one.

    Args:
        max_epochs: how often.
        num_gpus: how many GPUs it may use.
        gradient_clip_val: the norm to which a batch's gradients are shrunk; 0: not at all.
    """

    def prepare_model(self, model: Any) -> None:
        """Take the model to the device."""
        self.device = try_gpu() if cast(Any, self).num_gpus else cpu()
        super().prepare_model(model.to(self.device))

    def prepare_batch(self, batch: Sequence[Tensor]) -> list[Tensor]:
        """A batch on the model's device."""
        return [each.to(self.device) for each in batch]

    def step(self, batch: Sequence[Tensor]) -> None:
        """Learn from a batch."""
        self.model.train()
        self.optimizer.zero_grad()
        self.model.training_step(batch).backward()
        if self.gradient_clip_val:
            grad_clipping(self.model, self.gradient_clip_val)
        self.optimizer.step()

    def judge(self, batch: Sequence[Tensor]) -> None:
        """Validate with a batch."""
        self.model.eval()
        with torch.no_grad():
            super().judge(batch)


class Seq2Seq(EncoderDecoder, Module):
    """A translator that `Trainer` trains with Adam.

    Args:
        encoder: `encoder(X, lengths)`.
        decoder: with `init_state`.
        tgt_pad: the padding token's number, whose loss does not count.
        lr: the learning rate.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, tgt_pad: int, lr: float) -> None:
        super().__init__(encoder, decoder)
        self.save_hyperparameters()

    def forward(self, enc_X: Tensor, dec_X: Tensor, *args: Any) -> Any:
        """The decoder's scores (B, T, vocab_size), without its state."""
        return super().forward(enc_X, dec_X, *args)[0]

    def loss(self, Y_hat: Tensor, Y: Tensor) -> Tensor:
        """The mean cross-entropy of the tokens that are no padding."""
        return F.cross_entropy(Y_hat.flatten(0, 1), Y.flatten(), ignore_index=cast(int, self.tgt_pad))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam with the learning rate `lr`."""
        return torch.optim.Adam(self.parameters(), lr=cast(float, self.lr))

    @torch.no_grad()
    def predict_step(
        self, batch: Sequence[Tensor], device: torch.device, num_steps: int, save_attention_weights: bool = False
    ) -> tuple[Tensor, list[Any]]:
        """Translate a batch, the likeliest token at each step.

        Args:
            batch: sources, what the decoder reads, of which the first tokens count, and the sources' lengths.
            device: where to.
            num_steps: how many tokens to say, whether `<eos>` was among them or not.
            save_attention_weights: whether to return the decoder's `attention_weights` of each step.

        Returns:
            Tokens (B, num_steps), and the attention weights of each step, if they were asked for.
        """
        self.to(device).eval()
        sources, targets, lens = (each.to(device) for each in batch[:3])
        return _likeliest(self, sources, lens, targets[:, :1], num_steps, save_attention_weights)
