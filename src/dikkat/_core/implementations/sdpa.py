"""PyTorch's fused dot-product attention, for `inner` scores: forward and backward, without states or weights."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention, flash_sdp_enabled
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from dikkat._core.operators import first_derivatives_only, no_second_derivatives
from dikkat._core.problem import Examined, Problem, Result
from dikkat._core.restrictions import Hidden, are_finite, largest_magnitude
from dikkat._engine.addresses import on_cpu
from dikkat._engine.pytorch_state import can_read_values, extremes, is_transformed

# Without cuDNN's kernels, which plan each shape again: batches of texts have many shapes.
_FAST = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
_SWITCHES = Lock()
# Numbers in a processor's largest vector.
_VECTOR = 16
_TESTED_DEVICES = ("cpu", "cuda")
_NO_SECOND_DERIVATIVES = no_second_derivatives("sdpa")


class _Masked(NamedTuple):
    """A call without the keys past every length, and its mask in PyTorch's form."""

    problem: Problem
    mask: Tensor | None = None  # added to scores, or True if visible, (B, H or 1, n or 1, m); None if all are visible
    empty: Tensor | None = None  # rows that see no key, (..., n or 1, 1)


def examine(problem: Problem) -> Examined:
    """Return the obstacles to PyTorch's fast paths, and the mask if the check needed it."""
    reasons = _obstacles(problem)
    if reasons or not problem.query.is_cuda or torch.compiler.is_compiling():
        return Examined(reasons)
    kind = problem.narrow_dtype
    for name, bias in (("bias", problem.restrictions.bias), ("key_bias", problem.restrictions.key_bias)):
        if bias is not None and torch.promote_types(bias.dtype, kind) != kind:
            return Examined([f"{name} is {bias.dtype}, and PyTorch's fast paths would round it to {kind}"])
    masked = _make_mask(problem)
    return Examined(_obstacles_on_cuda(masked), masked)


def _obstacles(problem: Problem) -> list[str]:
    restrictions, device = problem.restrictions, problem.query.device.type
    reasons = []
    if problem.pair != "inner":
        reasons.append(f"the score's pair function is {problem.pair!r}; PyTorch fuses 'inner' only")
    if problem.softcap:
        reasons.append("PyTorch's fused kernels have no soft cap")
    if problem.wants_state:
        reasons.append("PyTorch returns no log-sum-exp, so there is no state to merge")
    if problem.wants_weights:
        reasons.append("PyTorch's fused kernels show no weights")
    if restrictions.starts is not None or (restrictions.lens is not None and restrictions.lens.shape[-1] != 1):
        reasons.append("valid_lens of one length a query, a window or segments would need an n × m mask")
    if restrictions.causal and restrictions.queries != restrictions.keys:
        reasons.append("causal with n ≠ m would need an n × m mask: PyTorch's is aligned top-left")
    if restrictions.causal and _needs_mask(problem):
        reasons.append("PyTorch takes causal or a mask, not both")
    if restrictions.exclude is not None:
        reasons.append("exclude would need an n × m mask")
    if restrictions.key_bias is not None and restrictions.key_bias.requires_grad and torch.is_grad_enabled():
        reasons.append("PyTorch's fast paths give no gradient to key_bias")
    reasons += _obstacles_to_bias(problem)
    if not (restrictions.queries and restrictions.keys and problem.value.shape[-1] and math.prod(problem.lead)):
        reasons.append("PyTorch's fast paths take no empty tensors")
    if device not in _TESTED_DEVICES:
        reasons.append(f"it is not tested on {device}, only on cpu and cuda")
    if device == "cpu" and problem.dropout:
        reasons.append("PyTorch's fast path on a CPU has no dropout")
    if device == "cpu" and not (torch.compiler.is_compiling() or flash_sdp_enabled()):
        reasons.append("PyTorch's fast path on a CPU has been switched off (torch.backends.cuda.enable_flash_sdp)")
    if device == "cuda" and problem.dtype == torch.float64:
        reasons.append("PyTorch's fast paths on CUDA take no float64")
    if is_transformed() or problem.has_tangents:
        reasons.append("PyTorch's fast paths do not run under torch.func transforms, nor in forward mode")
    if problem.pair == "inner" and restrictions.vary_by_row() and _has_non_finite(problem):
        reasons.append("an operand has NaN or ∞, and PyTorch's fast paths would show it to rows that must not see it")
    if _loses_nan(problem):
        reasons.append(f"a query is not finite, and PyTorch's kernel returns 0 for it over fewer than {_VECTOR} keys")
    return reasons


def _obstacles_to_bias(problem: Problem) -> list[str]:
    """Return the reasons why PyTorch cannot use the bias of pairs without a copy."""
    restrictions, lead, bias = problem.restrictions, problem.lead, problem.restrictions.bias
    if bias is None:
        return []
    reasons = []
    if problem.wants_bias_grad:
        reasons.append("PyTorch's fast paths give no gradient to bias")
    if any(t is not None for t in (restrictions.lens, restrictions.mask, restrictions.key_bias)):
        reasons.append("bias with lengths, a mask or a key_bias would need another n × m bias")
    if len(lead) > 2 and bias.shape[:-3] != lead[:-1]:
        reasons.append("PyTorch's fast paths take a bias of two leading dimensions, so this bias would be copied")
    if restrictions.bias_hides and not (can_read_values(bias) and bool((bias != -math.inf).any(-1).all())):
        reasons.append("bias may leave a row without a key, and PyTorch would need a changed copy")
    return reasons


def _loses_nan(problem: Problem) -> bool:
    """Return whether PyTorch returns 0 for a row of NaN, as its CPU kernel does if the keys do not fill a vector."""
    query = problem.query
    if problem.finite or not (query.is_cpu and can_read_values(query)):
        return False
    return problem.restrictions.keys < _VECTOR and largest_magnitude(query) == math.inf


def _has_non_finite(problem: Problem) -> bool:
    """Return whether operands contain NaN or ∞; False if reading them would synchronise with a device."""
    operands = (problem.query, problem.key, problem.value)
    if problem.finite is not None:
        return not problem.finite
    return can_read_values(*operands) and not are_finite(*operands)


def _obstacles_on_cuda(masked: _Masked) -> list[str]:
    problem, kind = masked.problem, masked.problem.narrow_dtype
    size = width(problem.query, problem.value.shape[-1])
    query, key, value = (
        problem.query.new_empty((*_to_four_dims(t, problem.lead).shape[:3], size), dtype=kind)
        for t in (problem.query, problem.key, problem.value)
    )
    parameters = SDPAParams(query, key, value, masked.mask, problem.dropout, problem.restrictions.causal, False)
    if can_use_flash_attention(parameters) or can_use_efficient_attention(parameters):
        return []
    return [f"none of PyTorch's fast paths takes these shapes in {kind} on this device"]


def run(problem: Problem, masked: _Masked | None = None) -> Result:
    problem, mask, empty = masked or _make_mask(problem)
    kind = problem.narrow_dtype
    query, key, value = (_differentiable_once(t.to(kind)) for t in (problem.query, problem.key, problem.value))
    # On a CPU PyTorch chooses the fast path without pinning.
    with _pin_backend() if query.is_cuda else nullcontext():
        out = fused(query, key, value, mask, problem.lead, problem.restrictions.causal, problem.dropout, problem.scale)
    return Result(out if empty is None else out.masked_fill(empty, 0.0), None, None)


def make_fast_run(template: Problem) -> Callable[..., list[Tensor]] | None:
    """Return `run` on a device for calls in a problem's shapes, whose hidden keys and queries are 0."""
    if on_cpu(template.query):
        return None
    lead, causal, kind = template.lead, template.restrictions.causal, template.narrow_dtype
    only_causal = causal and template.restrictions.lens is template.restrictions.mask is None
    template = template.without_tensors()

    def run(query: Tensor, key: Tensor, _: Tensor | None, value: Tensor, hidden: Hidden | None) -> list[Tensor]:
        mask = empty = None
        if hidden is not None and not only_causal and hidden.queries is not None:
            empty = hidden.queries.unsqueeze(-1)
            mask = _as_mask(hidden.pairs() <= empty, template)  # rows without keys see all
        if hidden is not None and hidden.keys is not None:
            value = value.masked_fill(hidden.keys.unsqueeze(-1), 0.0)
        query, key, value = (_differentiable_once(t.to(kind)) for t in (query, key, value))
        with _pin_backend() if query.is_cuda else nullcontext():
            out = fused(query, key, value, mask, lead, causal, 0.0)
        return [out if empty is None else out.masked_fill(empty, 0.0)]

    return run


def _differentiable_once(tensor: Tensor) -> Tensor:
    """Return a view whose second derivative raises dikkat's error, since PyTorch's names neither operand nor cause."""
    if not tensor.requires_grad or torch.compiler.is_compiling():
        return tensor
    view = tensor.view_as(tensor)
    view.register_hook(
        lambda grad: first_derivatives_only(_NO_SECOND_DERIVATIVES, grad.clone, grad) if grad.requires_grad else None
    )
    return view


def fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, lead: torch.Size, causal: bool, dropout: float,
    scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """Fold operands (..., n, h), (..., m, h), (..., m, d_v) of one dtype, run the fused kernel, and unfold the result.

    `mask` is (B, H or 1, n or 1, m). The result has the leading dimensions `lead`. `scale` multiplies ⟨q, k⟩.
    """
    values = value.shape[-1]
    size = width(query, values)
    out = scaled_dot_product_attention(
        fold(query, size, lead), fold(key, size, lead), fold(value, size, lead),
        attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale,
    )  # fmt: skip
    return unfold(out, values, lead)


@contextmanager
def _pin_backend() -> Iterator[None]:
    """Pin PyTorch's backend on CUDA, under a lock: its switches are global, and threads would restore each other's."""
    if torch.compiler.is_compiling():
        with sdpa_kernel(_FAST):
            yield
        return
    with _SWITCHES, sdpa_kernel(_FAST):
        yield


def width(query: Tensor, values: int) -> int:
    """Return the number of features that the kernels need: equal for all operands, on CUDA a multiple of 8."""
    largest = max(query.shape[-1], values)
    return -(-largest // 8) * 8 if query.is_cuda else max(1, largest)


def _needs_mask(problem: Problem) -> bool:
    restrictions = problem.restrictions
    masking = (restrictions.lens, restrictions.mask, restrictions.bias, restrictions.key_bias)
    return any(t is not None for t in masking)


def _cut_keys(problem: Problem) -> Problem:
    """Drop the keys past every length, if lengths can be read, but leave a vector of keys (see `_loses_nan`)."""
    restrictions, lens, bounds = problem.restrictions, problem.restrictions.lens, problem.restrictions.extremes
    if lens is None or restrictions.causal:
        return problem
    if bounds is None and lens.numel() and can_read_values(lens):
        bounds = extremes(lens)
    if bounds is None:
        return problem
    shortest, keys = bounds[0], max(_VECTOR if restrictions.keys >= _VECTOR else 1, bounds[1])
    mask, bias = restrictions.mask, restrictions.key_bias
    restricted = restrictions.unchecked_copy(
        keys=keys,
        lens=lens if shortest < keys else None,
        mask=mask if mask is None or mask.shape[-1] == 1 else mask[..., :keys],
        key_bias=None if bias is None else bias[..., :keys],
    )
    key, value = problem.key.narrow(-2, 0, keys), problem.value.narrow(-2, 0, keys)
    return problem.unchecked_copy(key=key, value=value, restrictions=restricted)


def _make_mask(problem: Problem) -> _Masked:
    """Make the mask from a call's restrictions.

    Rows without keys see all keys here and their output is set to 0, because PyTorch's result depends on its version.
    """
    problem = _cut_keys(problem)
    restrictions, bias = problem.restrictions, problem.restrictions.bias
    # The CPU kernel takes a float32 mask with float16 operands; float16 would round a bias, large ones to −∞.
    kind = problem.narrow_dtype if problem.query.is_cuda else problem.dtype
    if bias is not None:  # the only restriction: passed on without a mask
        kind = bias.dtype if bias.dtype is problem.narrow_dtype else kind
        return _Masked(problem, _as_mask(bias.to(kind), problem))
    visible = restrictions.visible() if _needs_mask(problem) else None
    if visible is None:
        return _Masked(problem)
    mask, empty = visible, None
    if not restrictions.leaves_some():
        empty = ~visible.any(-1, keepdim=True)
        mask = visible | empty
    if restrictions.key_bias is not None and empty is not None:
        bias = restrictions.key_bias[..., None, :].to(kind)
        mask = torch.where(visible, bias, torch.where(empty, 0.0, -math.inf).to(kind))
    return _Masked(problem, _as_mask(mask, problem), empty)


def _as_mask(mask: Tensor, problem: Problem) -> Tensor:
    """Return a mask (..., n or 1, m or 1) with PyTorch's four dimensions: batch, heads, n, m."""
    if mask.shape[-1] != problem.restrictions.keys:
        mask = mask.expand(*mask.shape[:-1], problem.restrictions.keys)
    full = mask.expand(*problem.lead, *mask.shape[-2:]) if len(problem.lead) > 2 else mask
    return _to_four_dims(full, problem.lead)


def fold(tensor: Tensor, size: int, lead: torch.Size) -> Tensor:
    """Return (B, H, length, size) with contiguous features, as PyTorch's fast paths need it."""
    padding = size - tensor.shape[-1]
    if padding:  # `pad` copies even without padding
        tensor = pad(tensor, (0, padding))
    if tensor.stride(-1) != 1:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    if tensor.shape[:-2] != lead:
        tensor = tensor.expand(*lead, *tensor.shape[-2:])
    return _to_four_dims(tensor, lead)


def unfold(out: Tensor, values: int, lead: torch.Size) -> Tensor:
    """Undo `fold` for an output of `values` features."""
    if out.shape[-1] != values:
        out = out[..., :values]
    return out.squeeze(1) if len(lead) == 1 else out if len(lead) == 2 else out.reshape(*lead, *out.shape[-2:])


def _to_four_dims(tensor: Tensor, lead: torch.Size) -> Tensor:
    """Reshape to four dimensions; leading dimensions of 1 stay 1."""
    if len(lead) == 1:
        return tensor.unsqueeze(1)
    if len(lead) < 1:
        return tensor.reshape(1, 1, *tensor.shape)
    return tensor if len(lead) == 2 else tensor.reshape(-1, *tensor.shape[-3:])
