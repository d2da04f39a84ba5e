"""The output layer and its cross-entropy in chunks, with the scores of a few hundred tokens in memory."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from dikkat._engine.pytorch_state import can_read_values
from dikkat.translation.network.fused_loss.launch import CrossEntropy, runs

Reduction = Literal["mean", "sum"]

# Bytes of a chunk's scores. Measured with 900 tokens, 256 features and a vocabulary of 8,000, where a chunk has 262
# tokens of float32 or 524 of bfloat16. Smaller chunks access the weight's gradient too often; larger ones gain nothing.
_CHUNK_BYTES = 2**23
_DEVICE_CHUNK_BYTES = 2**28  # on a GPU, where each chunk launches kernels
_MIN_ROWS = 64


def linear_cross_entropy(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    *,
    label_smoothing: float = 0.0,
    r_drop: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Return the cross-entropy of a linear layer's scores, with the scores of one chunk of tokens in memory at a time.

    With scores $z_n = W x_n + b$, probabilities $p_n = \mathrm{softmax}(z_n)$, target $t_n$ and label smoothing s,

    $$ \ell = \sum_n \Big[ -(1 - s) \log p_{n t_n} - \frac{s}{V} \sum_v \log p_{nv} \Big], \qquad
    \frac{\partial \ell}{\partial z_{nv}} = p_{nv} - (1 - s) [v = t_n] - \frac{s}{V} $$

    With `r_drop` α, `features` holds two passes with different dropout masks: rows n and N + n share target n, and have
    probabilities p and q. Their loss is the mean of both losses, plus the divergence in both directions

    $$ \frac{\alpha}{4} \sum_v (p_{nv} - q_{nv}) (\log p_{nv} - \log q_{nv}) $$

    Liang and others, "R-Drop: regularized dropout for neural networks" (2021), section 2.1; the
    paper's loss is twice this one.

    The forward pass computes the loss and the needed gradients, chunk by chunk; the backward pass only multiplies them
    by the upstream gradient. So there are no second derivatives. Label smoothing: Szegedy and others, "Rethinking the
    Inception architecture for computer vision" (2016), section 7. Computing gradients in the forward pass: Hsu and
    others, "Liger Kernel" (2024), section 3.2.

    Under `torch.autocast` the three products run in its dtype. Softmax, sums and the loss are at least float32;
    gradients have their operands' dtypes.

    Args:
        features: (N, e) floating point, N at least 1; (2N, e) with `r_drop`.
        weight: (V, e) floating point, V at least 1; outside autocast, of the features' dtype.
        bias: (V,) floating point, or None.
        target: (N,) int64, from 0 to V − 1.
        label_smoothing: The share of the target's probability that is spread evenly over all V, from 0 to 1.
        r_drop: The weight α of the divergence, at least 0; with 0, `features` holds a single pass.
        reduction: `"mean"` over the N tokens, or their `"sum"`.

    Returns:
        The loss in nats, a scalar of the features' dtype, or of float32 if that is wider.

    Raises:
        ValueError: Wrong shapes, a target outside 0…V − 1 (on a CPU; PyTorch's error elsewhere), a label smoothing
            outside 0…1, a negative weight, an unknown reduction.
        TypeError: Dtypes that differ or are not supported.
        RuntimeError: Gradients of the gradients are requested.

    Example:
        >>> features, weight = torch.ones(2, 3, requires_grad=True), torch.eye(5, 3)
        >>> loss = linear_cross_entropy(features, weight, None, torch.tensor([0, 4]))
        >>> round(loss.item(), 4)
        1.818
        >>> loss.backward()
        >>> features.grad[0]
        tensor([-0.3662,  0.1338,  0.1338])
    """
    _check(features, weight, bias, target, label_smoothing, r_drop, reduction)
    device, product_dtype = features.device.type, features.dtype
    if torch.is_autocast_enabled(device) and product_dtype != torch.float64:  # autocast leaves float64 unchanged
        product_dtype = torch.get_autocast_dtype(device)
    scale = 1 / len(target) if reduction == "mean" else 1.0
    if r_drop:  # makes pairs adjacent, so that a chunk has both rows
        features, target = features.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1), target.repeat_interleave(2)
        scale /= 2  # the mean of both passes; with r_drop / 2 below, the divergence gets the factor α/4
    # Grad mode is always off inside of an autograd.Function, so it is read here.
    loss: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]  # PyTorch's own has no types
        features, weight, bias, target, label_smoothing, r_drop / 2, scale, product_dtype, torch.is_grad_enabled()
    )
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        label_smoothing: float,
        divergence: float,
        scale: float,
        product_dtype: torch.dtype,
        with_gradients: bool,
    ) -> Tensor:
        needed = [with_gradients and needs for needs in ctx.needs_input_grad[:3]]
        with torch.autocast(features.device.type, enabled=False):
            operands = features.to(product_dtype), weight.to(product_dtype), bias, target
            total, gradients = _in_chunks(*operands, label_smoothing, divergence, scale, needed)
        ctx.save_for_backward(*gradients)
        return total * scale

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "linear_cross_entropy: got create_graph=True; expected False, as it has no second derivatives. Use "
                "torch.nn.functional.cross_entropy(torch.nn.functional.linear(features, weight, bias), target)"
            )
        gradients = ctx.saved_tensors
        # Usually upstream is 1: then this saves a pass over the weight's large gradient.
        if upstream.device.type != "cpu" or upstream != 1:
            gradients = [None if gradient is None else gradient * upstream for gradient in gradients]
        # PyTorch converts each gradient to its operand's dtype.
        return *gradients, None, None, None, None, None, None


def _in_chunks(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    label_smoothing: float,
    divergence: float,
    scale: float,
    needed: Sequence[bool],
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None, Tensor | None]]:
    """Return the summed loss, and the gradients of features, weight and bias; None for a gradient that is not needed.

    All chunks share one buffer, since allocating a new one for each chunk would cost as much as a pass over it.
    """
    chunk_bytes = _CHUNK_BYTES if features.is_cpu else _DEVICE_CHUNK_BYTES
    # An even number, so that both rows of a pair are in one chunk.
    rows = min(max(_MIN_ROWS, chunk_bytes // (len(weight) * features.itemsize)) // 2 * 2, len(features))
    score_buffer = features.new_empty(rows, len(weight))
    loss_class = CrossEntropy if runs(features) else _Plain
    entropy = loss_class(len(weight), features.dtype, bias, label_smoothing, scale if any(needed) else None, divergence)
    features_gradient = torch.empty_like(features) if needed[0] else None
    weight_gradient: Tensor | None = None
    for start in range(0, len(features), rows):
        chunk = features[start : start + rows]
        scores = torch.mm(chunk, weight.t(), out=score_buffer[: len(chunk)])
        entropy.add(scores, target[start : start + rows])  # also replaces the scores by their gradient, in place
        if features_gradient is not None:
            torch.mm(scores, weight, out=features_gradient[start : start + rows])
        if needed[1]:
            weight_gradient = _add_to_weight(weight_gradient, scores, chunk)
    return entropy.total, (features_gradient, weight_gradient, entropy.bias_gradient if needed[2] else None)


def _add_to_weight(total: Tensor | None, gradient: Tensor, features: Tensor) -> Tensor:
    if total is None:
        return (gradient.t() @ features).to(torch.promote_types(features.dtype, torch.float32))
    if gradient.dtype == total.dtype:
        return total.addmm_(gradient.t(), features)
    return total.add_(gradient.t() @ features)


class _Plain:
    """`CrossEntropy` in PyTorch's operations, for devices and types that have no kernel."""

    def __init__(
        self,
        size: int,
        dtype: torch.dtype,
        bias: Tensor | None,
        smoothing: float,
        scale: float | None,
        divergence: float = 0.0,
    ) -> None:
        self._sum_dtype = torch.promote_types(dtype, torch.float32)
        self._size, self._bias, self._smoothing, self._scale = size, bias, smoothing, scale
        self._divergence = divergence
        self.total: Any = 0.0
        self.bias_gradient: Any = 0.0

    def add(self, scores: Tensor, target: Tensor) -> None:
        """Add a chunk's losses to the total. With a `scale`, replace the scores by their gradient, in place."""
        labels, wide_scores = target.unsqueeze(1), scores.to(self._sum_dtype)
        log_probabilities = torch.log_softmax(wide_scores if self._bias is None else wide_scores + self._bias, 1)
        self.total = self.total - (1 - self._smoothing) * log_probabilities.gather(1, labels).sum()
        if self._smoothing:
            self.total -= self._smoothing * log_probabilities.mean(1).sum()
        divergence_gradient = self._add_divergence(log_probabilities) if self._divergence else None
        if self._scale is not None:
            gradient = log_probabilities.exp_()
            if divergence_gradient is not None:
                gradient += divergence_gradient
            gradient -= self._smoothing / self._size
            gradient.scatter_add_(1, labels, gradient.new_full(labels.shape, self._smoothing - 1))
            gradient *= self._scale
            self.bias_gradient = self.bias_gradient + gradient.sum(0)
            scores.copy_(gradient)

    def _add_divergence(self, log_probabilities: Tensor) -> Tensor:
        """Add the pairs' divergences to the total. Return the gradient p (r − Σ p r) + p − q, where r = log p/q."""
        pairs = log_probabilities.unflatten(0, (-1, 2))
        p = pairs.exp()
        # A token with probability 0 in both passes has no effect; the difference of its logarithms would be NaN.
        log_ratio = torch.where(p.any(1, keepdim=True), pairs[:, :1] - pairs[:, 1:], 0.0)
        difference = p[:, :1] - p[:, 1:]
        self.total = self.total + self._divergence * (difference * log_ratio).sum()
        log_ratios = torch.cat([log_ratio, -log_ratio], 1)
        gradients = p * (log_ratios - (p * log_ratios).sum(2, keepdim=True)) + torch.cat([difference, -difference], 1)
        gradient: Tensor = self._divergence * gradients.flatten(0, 1)
        return gradient


def _check(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    label_smoothing: float,
    r_drop: float,
    reduction: str,
) -> None:
    if not r_drop >= 0:
        raise ValueError(f"r_drop: got {r_drop}; expected a number of at least 0")
    if features.ndim != 2 or not len(features) or (r_drop and len(features) % 2):
        twice = ", of two passes," if r_drop else ","
        raise ValueError(f"features: got shape {tuple(features.shape)}; expected (tokens{twice} features), tokens ≥ 1")
    vocabulary = len(weight) if weight.ndim == 2 else 0
    shapes: dict[str, tuple[Tensor | None, tuple[int, ...]]] = {
        "weight": (weight, (max(vocabulary, 1), features.shape[1])),
        "bias": (bias, (vocabulary,)),
        "target": (target, (len(features) // (2 if r_drop else 1),)),
    }
    for name, (tensor, allowed) in shapes.items():
        if tensor is not None and tuple(tensor.shape) != allowed:
            raise ValueError(
                f"{name}: got shape {tuple(tensor.shape)}; expected {allowed}, because features have shape "
                f"{tuple(features.shape)}"
            )
    for name, tensor in (("features", features), ("weight", weight), ("bias", bias)):
        if tensor is not None and not tensor.is_floating_point():
            raise TypeError(f"{name}: got {tensor.dtype}; expected floating point")
    if weight.dtype != features.dtype and not torch.is_autocast_enabled(features.device.type):
        raise TypeError(
            f"weight: got {weight.dtype}; expected {features.dtype}, the dtype of features, because only "
            "torch.autocast mixes dtypes"
        )
    if target.dtype != torch.int64:
        raise TypeError(f"target: got {target.dtype}; expected torch.int64")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing: got {label_smoothing}; expected a number from 0 to 1")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction: got {reduction!r}; expected 'mean' or 'sum'")
    readable = target.device.type == "cpu" and can_read_values(target)
    if readable and not 0 <= int(target.min()) <= int(target.max()) < len(weight):
        raise ValueError(
            f"target: got {int(target.min())}…{int(target.max())}; expected numbers from 0 to {len(weight) - 1}, the "
            "rows of weight"
        )
