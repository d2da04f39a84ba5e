"""Layers over `attend`, batch first. Modules keep no state of a call.

Call a layer as `layer(query, key, value, valid_lens=None, ...)` with the restrictions of `dikkat.attend` as keywords
(`mask`, `causal`, `window`, `segment_ids`, `bias`, `key_bias`, `exclude`), `return_weights` and `impl`. It returns a
tensor, or with `return_weights=True` the pair (output, weights). Dropout acts on the weights, in training mode only.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

import torch
from torch import Tensor, nn

from dikkat._core import dispatch, validation
from dikkat._core.restricting import BY_ELEMENT, Restricting, check_names
from dikkat._engine.pytorch_state import autocasts
from dikkat.attention import Restricted, attend, output_of
from dikkat.distributed.front import attend_heads_together
from dikkat.distributed.ranks import Ranks
from dikkat.scores import Additive, Bilinear, Dot, Gaussian, ScaledDot, Score, check_size, linear

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "AdditiveAttention", "BilinearAttention", "DotProductAttention", "KernelAttention", "MultiHeadAttention",
    "SelfAttention", "self_attention",
]  # fmt: skip


class _Attention(nn.Module):
    def __init__(self, score: Score, dropout: float = 0.0) -> None:
        super().__init__()
        self.score = score
        self.dropout = validation.probability(dropout)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, valid_lens: Tensor | int | None = None,
        **restricted: Unpack[Restricted],
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        """Attend: (..., n, d_q), (..., m, d_k), (..., m, d_v) -> (..., n, d_v); arguments as in `dikkat.attend`."""
        check_names(restricted, Restricted)
        dropout = self.dropout if self.training else 0.0
        return attend(query, key, value, score=self.score, valid_lens=valid_lens, dropout=dropout, **restricted)

    def extra_repr(self) -> str:
        """Return the settings for `print(layer)`."""
        return f"dropout={self.dropout}"


class AdditiveAttention(_Attention):
    r"""Attention with the score of Bahdanau: a small network compares queries and keys, which may differ in size.

    $$ a(q, k) = w_v^\top \tanh(W_q q + W_k k) $$

    Args:
        key_size: Features of a key, d_k.
        query_size: Features of a query, d_q.
        num_hiddens: Features of both projections, h.
        dropout: On the weights.

    Source: Bahdanau, Cho and Bengio 2015, section 3.1 and appendix A.1.2.

    Example:
        >>> layer = AdditiveAttention(key_size=3, query_size=5, num_hiddens=7)
        >>> layer(torch.zeros(2, 1, 5), torch.zeros(2, 11, 3), torch.zeros(2, 11, 13), torch.tensor([2, 6])).shape
        torch.Size([2, 1, 13])
    """

    def __init__(self, key_size: int, query_size: int, num_hiddens: int, dropout: float = 0.0) -> None:
        super().__init__(Additive(key_size, query_size, num_hiddens), dropout)


class DotProductAttention(_Attention):
    r"""Attention with the scaled dot product, $a(q, k) = \langle q, k \rangle / \sqrt{d}$.

    Args:
        dropout: On the weights.

    Source: Vaswani et al. 2017, section 3.2.1.

    Example:
        >>> x = torch.zeros(2, 3, 5)
        >>> DotProductAttention()(x, x, x, torch.tensor([2, 0])).shape
        torch.Size([2, 3, 5])
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(ScaledDot(), dropout)


class BilinearAttention(_Attention):
    r"""Attention with the bilinear score, $a(q, k) = k^\top W_q q$.

    Args:
        key_size: Features of a key, d_k.
        query_size: Features of a query, d_q.
        dropout: On the weights.

    Source: Luong, Pham and Manning 2015, section 3.1, "general".

    Example:
        >>> BilinearAttention(3, 5)(torch.zeros(2, 1, 5), torch.zeros(2, 7, 3), torch.zeros(2, 7, 3)).shape
        torch.Size([2, 1, 3])
    """

    def __init__(self, key_size: int, query_size: int, dropout: float = 0.0) -> None:
        super().__init__(Bilinear(key_size, query_size), dropout)


class KernelAttention(_Attention):
    r"""Attention pooling with a Gaussian kernel: Nadaraya–Watson regression.

    $$ a(q, k) = -\tfrac12 \lVert (q - k) / \sigma \rVert^2 $$

    Args:
        bandwidth: σ, in the units of the data: a positive number, or one number for each feature.
        learnable: Whether σ is trained.

    Source: Nadaraya 1964; Watson 1964.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> KernelAttention(bandwidth=0.5)(x, x, x)
        tensor([[0.1192],
                [0.8808]])
    """

    def __init__(self, bandwidth: float | Sequence[float] | Tensor = 1.0, learnable: bool = False) -> None:
        super().__init__(Gaussian(bandwidth, learnable))


class SelfAttention(nn.Module):
    r"""Self-attention without an output projection: softmax(Q Kᵀ / √d) V, where Q, K and V are projections of X.

    Head h of token t is features h·d ... (h+1)·d of the token's projection, and the heads' outputs are concatenated.

    Args:
        embed_dim: Features of a token.
        key_dim: Features that queries and keys are projected to, over all heads.
        value_dim: Features that values are projected to, over all heads.
        num_heads: Number of heads; it divides `key_dim` and `value_dim`.

    Source: Vaswani et al. 2017, section 3.2.

    Example:
        >>> SelfAttention(embed_dim=5, key_dim=6, value_dim=8, num_heads=2)(torch.zeros(2, 3, 5)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, embed_dim: int, key_dim: int, value_dim: int, num_heads: int = 1) -> None:
        super().__init__()
        check_size("embed_dim", embed_dim)
        check_heads(num_heads, key_dim=key_dim, value_dim=value_dim)
        self.num_heads = num_heads
        self.W_q = nn.Linear(embed_dim, key_dim, bias=False)
        self.W_k = nn.Linear(embed_dim, key_dim, bias=False)
        self.W_v = nn.Linear(embed_dim, value_dim, bias=False)
        self.score = ScaledDot()

    def forward(
        self, x: Tensor, valid_lens: Tensor | int | None = None, **restricted: Unpack[Restricted]
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return (B, n, value_dim) for x (B, n, embed_dim), and with `return_weights` the weights (B, heads, n, n)."""
        projections = tuple(partial(linear, layer, name="x") for layer in (self.W_q, self.W_k, self.W_v))
        return attend_heads((x, x, x), projections, self.num_heads, self.score, 0.0, valid_lens, restricted)


def self_attention(
    x: Tensor, valid_lens: Tensor | int | None = None, **restricted: Unpack[Restricted]
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Return softmax(X Xᵀ) X: self-attention without parameters.

    Args:
        x: (..., n, d), floating point.
        valid_lens: (B,) or (B, n) integers in 0 ... n: token j takes part where j < valid_len.
        **restricted: The restrictions, `return_weights` and `impl` of `dikkat.attend`.

    Returns:
        (..., n, d), and with `return_weights` the weights (..., n, n).

    Raises what `attend` raises.

    Example:
        >>> self_attention(20 * torch.eye(2))
        tensor([[20.,  0.],
                [ 0., 20.]])
    """
    return attend(x, x, x, score=Dot(), valid_lens=valid_lens, **restricted)


class MultiHeadAttention(nn.Module):
    r"""Multi-head attention: each head attends with a share of the projected features, and a projection joins them.

    $$ o = W_o [o_1; \dots; o_H] + b_o, \qquad o_h = \mathrm{attend}(Q_h, K_h, V_h) $$

    Head h of token t is features h·d ... (h+1)·d of token t's projection.

    The parameters are those of `torch.nn.MultiheadAttention`. State dicts of both classes are interchangeable if
    `key_dim` and `value_dim` equal `embed_dim` and the score has no parameters. A score with parameters adds entries
    `score.*`, which all heads share.

    Args:
        embed_dim: Features of the input query and of the output.
        num_heads: Number of heads; it divides `key_dim` and `value_dim`.
        key_size: Features of the input keys; `embed_dim` if None.
        value_size: Features of the input values; `embed_dim` if None.
        key_dim: Features that queries and keys are projected to, over all heads; `embed_dim` if None.
        value_dim: Features that values are projected to, over all heads; `embed_dim` if None.
        score: Compares one head's queries and keys, of key_dim / num_heads features; the scaled dot product if None.
        dropout: On the weights.
        bias: Whether the projections have biases.
        group: The process group whose ranks hold the keys and values, as in `dikkat.distributed.attend`; None if this
            process holds all of them.

    Raises:
        ValueError: `num_heads` does not divide `key_dim` and `value_dim`.

    Source: Vaswani et al. 2017, section 3.2.2.

    Example:
        >>> layer, x = MultiHeadAttention(embed_dim=6, num_heads=2), torch.zeros(2, 3, 6)
        >>> output, weights = layer(x, x, x, torch.tensor([3, 1]), return_weights=True)
        >>> output.shape, weights.shape
        (torch.Size([2, 3, 6]), torch.Size([2, 2, 3, 3]))
    """

    def __init__(
        self, embed_dim: int, num_heads: int, *, key_size: int | None = None, value_size: int | None = None,
        key_dim: int | None = None, value_dim: int | None = None, score: Score | None = None, dropout: float = 0.0,
        bias: bool = True, group: "ProcessGroup | None" = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_size("embed_dim", embed_dim)
        key_size, value_size = size_or("key_size", key_size, embed_dim), size_or("value_size", value_size, embed_dim)
        key_dim, value_dim = size_or("key_dim", key_dim, embed_dim), size_or("value_dim", value_dim, embed_dim)
        check_heads(num_heads, key_dim=key_dim, value_dim=value_dim)
        self.num_heads = num_heads
        self.dropout = validation.probability(dropout)
        self.score = ScaledDot() if score is None else score
        validation.check_score(self.score)
        self.group = group
        self._sizes = (key_dim, key_dim, value_dim)
        self.in_proj_weight: nn.Parameter | None
        self.in_proj_bias: nn.Parameter | None
        # torch has one matrix if queries, keys and values have equal numbers of features, and otherwise three.
        if {key_size, value_size, key_dim, value_dim} == {embed_dim}:
            self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        else:
            self.register_parameter("in_proj_weight", None)
            self.q_proj_weight = nn.Parameter(torch.empty(key_dim, embed_dim))
            self.k_proj_weight = nn.Parameter(torch.empty(key_dim, key_size))
            self.v_proj_weight = nn.Parameter(torch.empty(value_dim, value_size))
        self.register_parameter("in_proj_bias", nn.Parameter(torch.empty(sum(self._sizes))) if bias else None)
        self.out_proj = nn.Linear(value_dim, embed_dim, bias=bias)
        self._reset()

    def _reset(self) -> None:
        for name, parameter in self.named_parameters(recurse=False):
            if name.endswith("weight"):
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, valid_lens: Tensor | int | None = None,
        **restricted: Unpack[Restricted],
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        """Attend with every head.

        Args:
            query: (B, n, embed_dim).
            key: (B, m, key_size).
            value: (B, m, value_size).
            valid_lens: None, (B,) or (B, n).
            **restricted: As in `dikkat.attend`; a `mask` or `bias` (B, n, m), `key_bias` (B, m) or `exclude` (B, n)
                applies to all heads; with one more dimension, the heads follow B.

        Returns:
            (B, n, embed_dim), and with `return_weights` the weights (B, heads, n, m).
        """
        # Read each attribute once: a pruned, normalised or parametrized parameter is computed on every read.
        joint_weight: Tensor | None = self.in_proj_weight
        bias: Tensor | None = self.in_proj_bias
        names = [f"{operand}_proj_weight" for operand in "qkv"]
        parameters: list[Any] = [getattr(self, name) for name in names] if joint_weight is None else [joint_weight]
        parameters += [] if bias is None else [bias]
        ranks = None if self.group is None else Ranks(self.group)
        if ranks is not None:  # every rank gets the sum of the gradients
            parameters = ranks.sum_gradients_over_ranks(*parameters)
        *weights, bias = parameters if bias is not None else [*parameters, None]
        biases = (None,) * 3 if bias is None else bias.split(self._sizes)
        if joint_weight is not None:
            (joint_weight,) = weights
            weights = joint_weight.split(self._sizes)
        by_operand = zip(("query", "key", "value"), weights, biases, strict=True)
        projections = tuple(partial(_project, *arguments) for arguments in by_operand)
        if query is key is value and joint_weight is not None:  # one product for all three, if nothing is hidden
            at_once = partial(_project, "query", joint_weight, bias)
        else:
            at_once = None
        dropout = self.dropout if self.training else 0.0
        output = attend_heads(
            (query, key, value), projections, self.num_heads, self.score, dropout, valid_lens, restricted, ranks,
            at_once,
        )  # fmt: skip
        if isinstance(output, tuple):
            return self.out_proj(output[0]), output[1]
        projected: Tensor = self.out_proj(output)
        return projected

    def extra_repr(self) -> str:
        """Return the settings for `print(layer)`."""
        return f"num_heads={self.num_heads}, dropout={self.dropout}"


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Return (..., heads, n, d) for (..., n, heads · d): head h of token t is features h·d ... (h+1)·d of token t."""
    heads: Tensor = x.unflatten(-1, (num_heads, -1))
    return heads.transpose(-2, -3)


def join_heads(x: Tensor) -> Tensor:
    """Return (..., n, heads · d) for (..., heads, n, d), the inverse of `split_heads`."""
    return x.transpose(-2, -3).flatten(-2)


def attend_heads(
    tensors: tuple[Tensor, Tensor, Tensor], projections: tuple[Callable[[Tensor], Tensor], ...], num_heads: int,
    score: Score, dropout: float, valid_lens: Tensor | int | None, restricted: Restricted, ranks: Ranks | None = None,
    at_once: Callable[[Tensor], Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Project query, key and value, attend with every head (over the keys of all `ranks`, if any), and join the heads.

    If query, key and value are one tensor, `at_once` computes its three projections, concatenated and equally wide.
    """
    check_names(restricted, Restricted)
    for name, tensor in zip(("query", "key", "value"), tensors, strict=True):
        validation.check_features(name, tensor)
    query, key, value = tensors
    if not query.ndim == key.ndim == value.ndim:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise ValueError(f"query, key, value: got shapes {shapes}; expected all with a batch dimension, or none")
    unbatched = query.ndim == 2  # otherwise the heads would be taken for a batch
    if unbatched and isinstance(valid_lens, int) and not isinstance(valid_lens, bool):
        valid_lens = torch.tensor(valid_lens, device=query.device)
    restrictions: Any = {"valid_lens": valid_lens, **restricted}
    return_weights, impl = restrictions.pop("return_weights", False), restrictions.pop("impl", "auto")
    requested = validation.Requested(dropout, wants_state=ranks is not None, wants_weights=return_weights)
    if unbatched:
        query, key, value = query[None], key[None], value[None]
        restrictions = {name: _add_batch_dim(argument) for name, argument in restrictions.items()}
    for name, dims in BY_ELEMENT.items():
        argument = restrictions.get(name)
        if isinstance(argument, Tensor) and argument.ndim == query.ndim - 2 + dims:
            restrictions[name] = argument.unsqueeze(-1 - dims)

    def by_head(project: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda tensor: split_heads(project(tensor), num_heads)

    output: Tensor | tuple[Tensor, Tensor]
    if ranks is None and all(argument is None or argument is False for argument in restrictions.values()):
        # If nothing is hidden, no rows must be zeroed before the projections.
        projected = (
            [project(t) for project, t in zip(projections, (query, key, value), strict=True)]
            if at_once is None
            else (at_once(query).chunk(3, -1))
        )
        by_heads = (split_heads(tensor, num_heads) for tensor in projected)
        output = attend(*by_heads, score=score, dropout=dropout, return_weights=return_weights, impl=impl)
    else:
        heads = validation.Heads(num_heads, tuple(map(by_head, projections)))
        if ranks is None:
            result = dispatch.run_call(query, key, value, score, requested, impl, restrictions, heads)
            output = output_of(result, result.mean, return_weights)
        elif return_weights:
            raise ValueError(
                "return_weights: got True with a group; expected False, because no rank has a whole row of weights"
            )
        else:
            arguments = {name: argument for name, argument in restrictions.items() if argument is not None}
            output = attend_heads_together(
                ranks, query, key, value, score, heads, requested, impl, cast(Restricting, arguments)
            )
    outputs = output if isinstance(output, tuple) else (output,)
    joined, *weights = (tensor[0] for tensor in outputs) if unbatched else outputs
    return (join_heads(joined), weights[0]) if weights else join_heads(joined)


def _add_batch_dim(argument: Any) -> Any:
    if isinstance(argument, tuple | list):
        return tuple(item[None] if isinstance(item, Tensor) else item for item in argument)
    return argument[None] if isinstance(argument, Tensor) else argument


def _project(name: str, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    if x.shape[-1] != weight.shape[-1]:
        raise ValueError(f"{name}: got shape {tuple(x.shape)}; expected (..., {weight.shape[-1]}), the layer's size")
    if x.dtype != weight.dtype and not autocasts(x.device.type):
        raise TypeError(f"{name}: got dtype {x.dtype}; expected {weight.dtype}, the dtype of the layer's parameters")
    return nn.functional.linear(x, weight, bias)


def size_or(name: str, size: int | None, default: int) -> int:
    """Return the checked size, or the default for None."""
    return default if size is None else check_size(name, size)


def check_heads(num_heads: int, **dims: int) -> None:
    """Check that the heads divide the features of each named projection."""
    check_size("num_heads", num_heads)
    for name, dim in dims.items():
        if check_size(name, dim) % num_heads:
            raise ValueError(f"{name}, num_heads: got {dim} and {num_heads}; expected a multiple of num_heads")
