"""The softmax over the keys that a query may see."""

import math

import torch
from torch import Tensor

from dikkat._core.restricting import restrict
from dikkat._core.restrictions import FLOATS
from dikkat._engine.addresses import check_dense


def softmax(scores: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights, the largest score (peak) and Σ e^(score − peak) of each row; 0, -inf and 0 for an empty row.

    Scores are (..., n, m), float32 or float64; -inf is a weight of 0. `visible` broadcasts to them.
    """
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    if scores.shape[-1] == 0:
        peak = scores.new_full((*scores.shape[:-1], 1), -math.inf)
    else:
        peak = scores.detach().amax(-1, keepdim=True)
    shares = (scores - peak.masked_fill(peak == -math.inf, 0.0)).exp()
    total = shares.sum(-1, keepdim=True)
    # `== 0` and not `> 0`: a row of NaN is not an empty row.
    weights = shares / total.masked_fill(total == 0, 1.0)
    if visible is not None:  # in a row of NaN, hidden keys still get weight 0
        weights = weights.masked_fill(~visible, 0.0)
    return weights, peak.squeeze(-1), total.squeeze(-1)


def softmax_weights(scores: Tensor, visible: Tensor | None, *, plain: bool = False) -> Tensor:
    """Return the weights of `softmax` by PyTorch's softmax; `plain`: every row sees a key and no score is NaN."""
    if visible is None:
        return torch.softmax(scores, -1)
    scores = torch.where(visible, scores, -math.inf)
    if plain:
        return torch.softmax(scores, -1)
    hidden = scores == -math.inf
    # An empty row and its gradient would be NaN. In a row of NaN, hidden keys still get weight 0.
    scores = scores.masked_fill(hidden.all(-1, keepdim=True), 0.0)
    return torch.softmax(scores, -1).masked_fill(hidden, 0.0)


def masked_softmax(scores: Tensor, valid_lens: Tensor | int | None = None) -> Tensor:
    r"""Softmax over the last axis, over the first `valid_lens` entries of each row.

    $$ w_{ij} = \frac{[j < L_i]\, e^{s_{ij}}}{\sum_{l < L_i} e^{s_{il}}} $$

    A row of length 0 has weights 0. Entries past the length have no effect, even NaN, and `scores` is not modified.

    Args:
        scores: (..., n, m), floating point.
        valid_lens: None, (B,) or (B, n) integers in 0 ... m, aligned with the first leading dimension (without leading
            dimensions: a scalar or (n,)).

    Returns:
        Weights (..., n, m) in the dtype of `scores`.

    Raises:
        TypeError: `scores` or `valid_lens` has the wrong type.
        ValueError: `valid_lens` has the wrong shape or is out of range.

    Source: Zhang et al., *Dive into Deep Learning*, section "Attention Scoring Functions", masked softmax.

    Example:
        >>> import torch
        >>> masked_softmax(torch.zeros(1, 2, 4), torch.tensor([2]))
        tensor([[[0.5000, 0.5000, 0.0000, 0.0000],
                 [0.5000, 0.5000, 0.0000, 0.0000]]])
    """
    if not isinstance(scores, Tensor) or scores.dtype not in FLOATS:
        got = f"dtype {scores.dtype}" if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"scores: got {got}; expected a floating-point torch.Tensor of 16 bits or more")
    check_dense("scores", scores)
    if scores.ndim < 2:
        raise ValueError(f"scores: got shape {tuple(scores.shape)}; expected (..., queries, keys)")
    queries, keys = scores.shape[-2:]
    restrictions = restrict(scores.shape[:-2], queries, keys, scores.device, valid_lens=valid_lens)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    visible = restrictions.visible()
    return softmax_weights(wide, wide != -math.inf if visible is None else visible).to(scores.dtype)
