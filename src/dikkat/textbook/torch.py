"""The textbook's helper library on PyTorch: `from dikkat.textbook import torch as d2l`.

Names, signatures and shapes are the book's, of both its generations: *Dive into Deep Learning* 0.17 and its Chinese
second edition, whose layers are told all sizes; and 1.0, whose layers take the sizes of their inputs from the first
call. A class of both generations tells them apart by its arguments.

What the frameworks have in common stands in `dikkat.textbook.skeleton`, `layers` and `learning`. What differs from the
book, because it is right:

- a row of attention without a valid key has weights 0, scores may lie below −10⁶, and no function writes to its
  arguments;
- an encoder that is given lengths, as `EncoderDecoder` gives them, reads no padding, and its last state is that at each
  sentence's end;
- lengths and token ids may be integral floats; a length above the number of keys means all of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

import dikkat
from dikkat.attention import Restricted
from dikkat.layers import attend_heads
from dikkat.masking import can_read_values
from dikkat.recurrent import AttentionalGRU, GRUEncoder
from dikkat.scores import Additive, ScaledDot, Score, whole
from dikkat.textbook import common, layers, learning
from dikkat.textbook.common import *  # noqa: F403
from dikkat.textbook.layers import between_layers, check_heads, positions
from dikkat.textbook.skeleton import Skeleton
from dikkat.textbook.text import Ids
from dikkat.textbook.tools import as_array, first_that_takes

__all__ = [  # noqa: RUF022  (by kind)
    # arrays
    "abs", "arange", "argmax", "astype", "batch_matmul", "concat", "cos", "cosh", "exp", "expand_dims", "eye",
    "float32", "int32", "linspace", "log", "matmul", "meshgrid", "normal", "numpy", "ones", "ones_like", "rand",
    "randn", "reduce_mean", "reduce_sum", "repeat", "reshape", "sigmoid", "sin", "sinh", "size", "stack", "swapaxes",
    "tanh", "tensor", "to", "transpose", "zeros", "zeros_like",
    # devices
    "cpu", "gpu", "num_gpus", "try_all_gpus", "try_gpu",
    # attention
    "AdditiveAttention", "DotProductAttention", "MultiHeadAttention", "NWKernelRegression", "PositionalEncoding",
    "masked_softmax", "sequence_mask", "transpose_output", "transpose_qkv",
    # translators
    "AttentionDecoder", "Decoder", "Encoder", "EncoderDecoder", "GRU", "MaskedSoftmaxCELoss", "Seq2SeqAttentionDecoder",
    "Seq2SeqEncoder", "build_array_nmt", "grad_clipping", "init_seq2seq", "load_array", "load_data_nmt",
    "predict_seq2seq", "train_seq2seq",
    # learning
    "DataModule", "MTFraEng", "Module", "Seq2Seq", "Trainer", "nn_Module",
]  # fmt: skip
__all__ += common.__all__

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
numpy = as_array


# --- the skeleton's operations


class _Torch(Skeleton):
    """The skeleton of PyTorch; attention goes in by dikkat's front door."""

    reshape = staticmethod(torch.reshape)
    swapaxes = staticmethod(torch.swapaxes)
    broadcast_to = staticmethod(torch.broadcast_to)
    concat = staticmethod(torch.cat)
    full_like = staticmethod(torch.full_like)

    def tensor(self, ids: Ids) -> Tensor:
        return torch.from_numpy(ids)

    def integers(self, name: str, X: Tensor) -> Tensor:
        if X.is_floating_point():
            wrong = X[X.frac() != 0]  # NaN and infinities among them, whose fraction is NaN
            if wrong.numel():
                raise ValueError(f"{name}: got {wrong[0].item()}; expected whole numbers, as integers or as floats")
        return X.long()

    def lengths(self, valid_lens: Tensor, keys: int, name: str = "valid_lens", least: int = 0) -> Tensor:
        lens = self.integers(name, valid_lens).clamp(max=keys)
        if least and lens.numel() and can_read_values(lens) and int(lens.min()) < least:
            raise ValueError(f"{name}: got {int(lens.min())}; expected {least} at least")
        return lens

    def most_likely(self, scores: Tensor) -> Tensor:
        return scores.argmax(dim=2)

    def cpu(self) -> torch.device:
        return torch.device("cpu")

    def gpu(self, i: int = 0) -> torch.device:
        return torch.device(f"cuda:{i}")

    def num_gpus(self) -> int:
        return torch.cuda.device_count()

    def put(self, x: Tensor, device: torch.device) -> Tensor:
        return x.to(device)

    def move(self, net: nn.Module, device: torch.device) -> None:
        net.to(device)

    def sequence_mask(self, X: Tensor, valid_len: Tensor, value: float = 0) -> Tensor:
        behind = torch.arange(X.shape[1], device=X.device) >= self.integers("valid_len", valid_len)[:, None]
        return X.masked_fill(behind.reshape(*behind.shape, *[1] * (X.ndim - 2)), value)

    def masked_softmax(self, X: Tensor, valid_lens: Tensor | None) -> Tensor:
        if valid_lens is None:
            return F.softmax(X, dim=-1)
        return dikkat.masked_softmax(X, self.lengths(valid_lens, X.shape[-1]))

    def attend(
        self, score: Score, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None, dropout: float
    ) -> tuple[Tensor, Tensor]:
        lens = None if valid_lens is None else self.lengths(valid_lens, keys.shape[-2])
        return dikkat.attend(queries, keys, values, score=score, valid_lens=lens, dropout=dropout, return_weights=True)

    def attend_heads(
        self, layer: Any, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None, dropout: float
    ) -> tuple[Tensor, Tensor]:
        lens = None if valid_lens is None else self.lengths(valid_lens, keys.shape[-2])
        projections, score = (layer.W_q, layer.W_k, layer.W_v), layer.attention
        tensors, restricted = (queries, keys, values), Restricted(return_weights=True)
        output, weights = attend_heads(tensors, projections, layer.num_heads, score, dropout, lens, restricted)
        return output, weights.flatten(0, 1)

    def dropping(self, layer: Any, training: None) -> float:
        return layer.dropout.p if layer.training else 0.0

    def load_array(self, data_arrays: Sequence[Tensor], batch_size: int, is_train: bool = True) -> DataLoader[Any]:
        dataset = TensorDataset(*data_arrays)
        order = RandomSampler(dataset) if is_train else SequentialSampler(dataset)
        # A batch is taken out of each tensor at once, where the loader itself would take its rows one by one.
        return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=False), batch_size=None)

    def optimizer(self, net: nn.Module, name: str, lr: float) -> torch.optim.Optimizer:
        return {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name](net.parameters(), lr=lr)

    def learn(
        self, net: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor], theta: float
    ) -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        if theta:
            grad_clipping(net, theta)
        optimizer.step()
        return value

    def total_loss(self, scores: Tensor, labels: Tensor, lens: Tensor) -> Tensor:
        return MaskedSoftmaxCELoss()(scores, labels, lens).sum()

    def mean_loss(self, scores: Tensor, labels: Tensor, padding: int) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=padding)

    def restart(self, net: nn.Module, device: torch.device) -> None:
        net.apply(init_seq2seq)
        net.to(device)

    def set_training(self, net: nn.Module, training: bool) -> None:
        net.train(training)

    def without_gradients(self) -> torch.no_grad:
        return torch.no_grad()


_torch = _Torch()
cpu, gpu, num_gpus = _torch.cpu, _torch.gpu, _torch.num_gpus
try_gpu, try_all_gpus = _torch.try_gpu, _torch.try_all_gpus
masked_softmax, sequence_mask = _torch.masked_softmax, _torch.sequence_mask
transpose_qkv, transpose_output = _torch.transpose_qkv, _torch.transpose_output
load_array, build_array_nmt, load_data_nmt = _torch.load_array, _torch.build_array_nmt, _torch.load_data_nmt
train_seq2seq, predict_seq2seq = _torch.train_seq2seq, _torch.predict_seq2seq


# --- attention


class AdditiveAttention(layers.Attention, Additive):
    """Additive attention, `AdditiveAttention(key_size, query_size, num_hiddens, dropout)`.

    Without the first two, `AdditiveAttention(num_hiddens, dropout)`, the sizes are those of the first call. See
    `dikkat.textbook.layers.AdditiveAttention`.

    Args:
        *args: Those of either generation.
        **kwargs: Likewise.

    Example:
        >>> attention = AdditiveAttention(num_hiddens=19, dropout=0.25)
        >>> queries, keys, values = torch.zeros(5, 3, 17), torch.ones(5, 7, 11), torch.ones(5, 7, 13)
        >>> attention(queries, keys, values, torch.tensor([7, 1, 4, 0, 3])).shape, attention.attention_weights.shape
        (torch.Size([5, 3, 13]), torch.Size([5, 3, 7]))
    """

    framework = _torch

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
        """Attend; the arguments are those of `dikkat.textbook.layers.Attention`."""
        for layer, features in ((self.W_q, queries), (self.W_k, keys)):
            if isinstance(layer, nn.LazyLinear):
                layer(features[..., :1, :])  # from which it takes its size
        return super().forward(queries, keys, values, valid_lens)


def _linear(name: str, size: int | None, num_hiddens: int, bias: bool = False) -> nn.Linear:
    """A linear layer; without a size, one that takes its size from the first input."""
    if size is None:
        return nn.LazyLinear(num_hiddens, bias=bias)
    return nn.Linear(whole(name, size), num_hiddens, bias=bias)


class DotProductAttention(layers.Attention, ScaledDot):
    """Scaled dot-product attention: `dikkat.textbook.layers.DotProductAttention`."""

    framework = _torch

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)


class MultiHeadAttention(layers.MultiHeadAttention, nn.Module):
    """Multi-head attention, `(key_size, query_size, value_size, num_hiddens, num_heads, dropout, bias=False)`.

    Without the first three the sizes are those of the first call. See `dikkat.textbook.layers.MultiHeadAttention`.

    Args:
        *args: Those of either generation.
        **kwargs: Likewise.

    Example:
        >>> attention, X = MultiHeadAttention(21, 3, 0.25), torch.ones(5, 7, 11)
        >>> attention(X, X, X, torch.tensor([7, 1, 4, 0, 3])).shape
        torch.Size([5, 7, 21])
    """

    framework = _torch

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
        check_heads(num_hiddens, self.num_heads)
        self.attention = DotProductAttention(dropout)
        names = ("query_size", "key_size", "value_size")
        self.W_q, self.W_k, self.W_v = (
            _linear(name, size, num_hiddens, bias) for name, size in zip(names, sizes, strict=True)
        )
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)


class NWKernelRegression(layers.NWKernelRegression, Score):
    """Nadaraya–Watson regression with a Gaussian kernel whose width is learnt.

    Example:
        >>> net = NWKernelRegression()
        >>> net(torch.zeros(3), torch.ones(3, 5), torch.ones(3, 5)).tolist(), net.attention_weights.shape
        ([1.0, 1.0, 1.0], torch.Size([3, 5]))
    """

    framework = _torch

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(1))


class PositionalEncoding(layers.PositionalEncoding, nn.Module):
    """Adds to each position sines and cosines of its own: `dikkat.textbook.layers.PositionalEncoding`."""

    P: Tensor

    def __init__(self, num_hiddens: int, dropout: float, max_len: int = 1000) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("P", torch.from_numpy(positions(num_hiddens, max_len)), persistent=False)

    def forward(self, X: Tensor) -> Tensor:
        """(B, n, num_hiddens) -> (B, n, num_hiddens)."""
        return cast(Tensor, self.dropout(X + self.P[:, : X.shape[1]]))


# --- translators


class Encoder(layers.Encoder, nn.Module):
    """The interface of encoders."""

    framework = _torch


class Decoder(layers.Decoder, nn.Module):
    """The interface of decoders."""

    framework = _torch


class AttentionDecoder(layers.AttentionDecoder, Decoder):
    """The interface of decoders that attend."""


class EncoderDecoder(layers.EncoderDecoder, nn.Module):
    """An encoder, and a decoder that begins with what it found."""

    framework = _torch

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder


class GRU(nn.Module):
    """A GRU of several layers, steps first.

    Args:
        num_inputs: Features of an input.
        num_hiddens: Features of a state.
        num_layers: Layers.
        dropout: The probability with which a feature is dropped between layers, in training.
    """

    def __init__(self, num_inputs: int, num_hiddens: int, num_layers: int, dropout: float = 0) -> None:
        super().__init__()
        self.rnn = nn.GRU(num_inputs, num_hiddens, num_layers, dropout=between_layers(num_layers, dropout))

    def forward(self, inputs: Tensor, H: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(T, B, num_inputs) and a state (layers, B, h) -> states (T, B, h), the last state."""
        outputs, state = self.rnn(inputs, H)
        return outputs, state


def init_seq2seq(module: nn.Module) -> None:
    """Xavier-uniform matrices for linear and recurrent layers: for `net.apply(init_seq2seq)`."""
    recurrent = isinstance(module, nn.RNNBase | AttentionalGRU)
    if isinstance(module, nn.LazyLinear) or not (recurrent or isinstance(module, nn.Linear)):
        return
    for name, parameter in module.named_parameters(recurse=False):
        if name.startswith("weight"):
            nn.init.xavier_uniform_(parameter)


class Seq2SeqEncoder(layers.Seq2SeqEncoder, Encoder):
    """An embedding and a GRU: `dikkat.textbook.layers.Seq2SeqEncoder`."""

    def __init__(self, vocab_size: int, embed_size: int, num_hiddens: int, num_layers: int, dropout: float = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = GRUEncoder(embed_size, num_hiddens, num_layers, False, between_layers(num_layers, dropout))
        self.apply(init_seq2seq)


class Seq2SeqAttentionDecoder(layers.Seq2SeqAttentionDecoder, AttentionDecoder):
    """A GRU that looks at the encoder's states before every step: `dikkat.textbook.layers.Seq2SeqAttentionDecoder`."""

    def __init__(self, vocab_size: int, embed_size: int, num_hiddens: int, num_layers: int, dropout: float = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = AttentionalGRU(
            embed_size,
            num_hiddens,
            num_hiddens,
            Additive(num_hiddens, num_hiddens, num_hiddens),
            num_layers,
            between_layers(num_layers, dropout),
            weight_dropout=dropout,
        )
        self.dense = nn.Linear(num_hiddens, vocab_size)
        self.apply(init_seq2seq)


class MaskedSoftmaxCELoss(nn.CrossEntropyLoss):
    """Cross-entropy of the labels that are no padding.

    Args:
        weight: (vocab_size,), what a token's loss counts; None: all 1.
        ignore_index: A label that does not count wherever it stands.
        label_smoothing: The part of each label that is shared out among all tokens, 0 to 1.
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
        losses = super().forward(pred.transpose(1, 2), _torch.integers("label", label))
        return sequence_mask(losses, valid_len).mean(dim=1)


def grad_clipping(net: Any, theta: float) -> None:
    """Shrink the gradients of a module, or of an object's `params`, to a norm of theta if it is larger."""
    nn.utils.clip_grad_norm_(net.parameters() if isinstance(net, nn.Module) else net.params, theta)


# --- learning, in the second generation's way


class Module(learning.LearningModel, nn.Module):
    """A model that draws how it learns: `dikkat.textbook.learning.LearningModel`."""

    framework = _torch

    def apply_init(self, inputs: Sequence[Any], init: Any = None) -> None:
        """Run the model once, so that every layer has a size, and draw the weights by `init`."""
        self(*inputs)
        if init is not None:
            self.net.apply(init)


class DataModule(learning.LearningData):
    """Batches to learn from and to validate with: `dikkat.textbook.learning.LearningData`."""

    framework = _torch


class MTFraEng(learning.FrenchFromEnglish, DataModule):
    """English sentences and their French translations: `dikkat.textbook.learning.FrenchFromEnglish`."""


class Trainer(learning.LearningTrainer):
    """Goes through the data, epoch by epoch: `dikkat.textbook.learning.LearningTrainer`."""

    framework = _torch


class Seq2Seq(learning.LearningTranslator, EncoderDecoder, Module):
    """A translator that `Trainer` trains: `dikkat.textbook.learning.LearningTranslator`."""
