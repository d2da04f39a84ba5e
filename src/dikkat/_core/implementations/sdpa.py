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

from dikkat._core.operators import no_second_derivatives, once
from dikkat._core.problem import Examined, Problem, Result
from dikkat._core.restrictions import Hidden, are_finite, largest_magnitude
from dikkat._engine.addresses import on_cpu
from dikkat._engine.pytorch_state import can_read_values, extremes, is_transformed

# Not cuDNN's kernels, which are planned anew for each shape: batches of texts have many shapes.
_FAST = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
_SWITCHES = Lock()
# Numbers of the largest vector of a processor.
_VECTOR = 16
_TRIED = ("cpu", "cuda")
_ONE_DERIVATIVE = no_second_derivatives("sdpa")


class _Masked(NamedTuple):
    """A call without the keys past every length, and its mask as PyTorch takes it."""

    problem: Problem
    mask: Tensor | None = None  # what the kernel adds or selects by, (B, H or 1, n or 1, m); None where all is seen
    empty: Tensor | None = None  # the rows that see no key, (..., n or 1, 1)


def examine(problem: Problem) -> Examined:
    """Why PyTorch's fast paths would not serve this call; and the mask, where it was made to ask."""
    reasons = _obstacles(problem)
    if reasons or not problem.query.is_cuda or torch.compiler.is_compiling():
        return Examined(reasons)
    kind = problem.narrow_dtype
    for name, bias in (("bias", problem.restrictions.bias), ("key_bias", problem.restrictions.key_bias)):
        if bias is not None and torch.promote_types(bias.dtype, kind) != kind:
            return Examined([f"{name} is {bias.dtype}, and PyTorch's fast paths would round it to {kind}"])
    masked = _masked(problem)
    return Examined(_refused_by_cuda(masked), masked)


def _obstacles(problem: Problem) -> list[str]:
    restrictions, device = problem.restrictions, problem.query.device.type
    found = []
    if problem.pair != "inner":
        found.append(f"the score's pair function is {problem.pair!r}; PyTorch fuses 'inner' only")
    if problem.softcap:
        found.append("PyTorch's fused kernels have no soft cap")
    if problem.wants_state:
        found.append("PyTorch returns no log-sum-exp, so there is no state to merge")
    if problem.wants_weights:
        found.append("PyTorch's fused kernels show no weights")
    if restrictions.starts is not None or (restrictions.lens is not None and restrictions.lens.shape[-1] != 1):
        found.append("valid_lens of one length a query, a window or segments would need an n × m mask")
    if restrictions.causal and restrictions.queries != restrictions.keys:
        found.append("causal with n ≠ m would need an n × m mask: PyTorch's is aligned top-left")
    if restrictions.causal and _needs_mask(problem):
        found.append("PyTorch takes causal or a mask, not both")
    if restrictions.exclude is not None:
        found.append("exclude would need an n × m mask")
    if restrictions.key_bias is not None and restrictions.key_bias.requires_grad and torch.is_grad_enabled():
        found.append("PyTorch's fast paths give no gradient to key_bias")
    found += _obstacles_to_bias(problem)
    if not (restrictions.queries and restrictions.keys and problem.value.shape[-1] and math.prod(problem.lead)):
        found.append("PyTorch's fast paths take no empty tensors")
    if device not in _TRIED:
        found.append(f"it has not been tried on {device}, only on cpu and cuda")
    if device == "cpu" and problem.dropout:
        found.append("PyTorch's fast path on a CPU has no dropout")
    if device == "cpu" and not (torch.compiler.is_compiling() or flash_sdp_enabled()):
        found.append("PyTorch's fast path on a CPU has been switched off (torch.backends.cuda.enable_flash_sdp)")
    if device == "cuda" and problem.dtype == torch.float64:
        found.append("PyTorch's fast paths on CUDA take no float64")
    if is_transformed() or problem.has_tangents:
        found.append("PyTorch's fast paths do not run under torch.func transforms, nor in forward mode")
    if problem.pair == "inner" and restrictions.vary_by_row() and _is_seen_to_do_harm(problem):
        found.append("something is not finite, and PyTorch's fast paths would show it to rows that it is hidden from")
    if _loses_nan(problem):
        found.append(f"a query is not finite, and PyTorch's kernel would give 0 for it over fewer than {_VECTOR} keys")
    return found


def _obstacles_to_bias(problem: Problem) -> list[str]:
    """The reasons for which PyTorch would not take a bias of pairs as it is."""
    restrictions, lead, bias = problem.restrictions, problem.lead, problem.restrictions.bias
    if bias is None:
        return []
    found = []
    if problem.wants_bias_grad:
        found.append("PyTorch's fast paths give no gradient to bias")
    if any(t is not None for t in (restrictions.lens, restrictions.mask, restrictions.key_bias)):
        found.append("bias beside lengths, a mask or a key_bias would need another n × m bias")
    if len(lead) > 2 and bias.shape[:-3] != lead[:-1]:
        found.append("PyTorch's fast paths take a bias of two leading dimensions, so that this one would be copied")
    if restrictions.bias_hides and not (can_read_values(bias) and bool((bias != -math.inf).any(-1).all())):
        found.append("bias may leave a row without a key, and would have to be copied for it")
    return found


def _loses_nan(problem: Problem) -> bool:
    """Whether PyTorch's kernel takes a row of NaN for one without keys: on a CPU, where they do not fill a vector."""
    query = problem.query
    if problem.finite or not (query.is_cpu and can_read_values(query)):
        return False
    return problem.restrictions.keys < _VECTOR and largest_magnitude(query) == math.inf


def _is_seen_to_do_harm(problem: Problem) -> bool:
    """Whether a NaN or ∞ is seen, where values can be read without synchronising with a device."""
    operands = (problem.query, problem.key, problem.value)
    if problem.finite is not None:
        return not problem.finite
    return can_read_values(*operands) and not are_finite(*operands)


def _refused_by_cuda(masked: _Masked) -> list[str]:
    """Why PyTorch itself refuses these shapes on this device."""
    problem, kind = masked.problem, masked.problem.narrow_dtype
    size = width(problem.query, problem.value.shape[-1])
    query, key, value = (
        problem.query.new_empty((*_four(t, problem.lead).shape[:3], size), dtype=kind)
        for t in (problem.query, problem.key, problem.value)
    )
    parameters = SDPAParams(query, key, value, masked.mask, problem.dropout, problem.restrictions.causal, False)
    if can_use_flash_attention(parameters) or can_use_efficient_attention(parameters):
        return []
    return [f"none of PyTorch's fast paths takes these shapes in {kind} on this device"]


def run(problem: Problem, masked: _Masked | None = None) -> Result:
    problem, mask, empty = masked or _masked(problem)
    kind = problem.narrow_dtype
    query, key, value = (_once(t.to(kind)) for t in (problem.query, problem.key, problem.value))
    # On a CPU the fast path is taken by itself, wherever there is no obstacle.
    with _pinned() if query.is_cuda else nullcontext():
        out = fused(query, key, value, mask, problem.lead, problem.restrictions.causal, problem.dropout, problem.scale)
    return Result(out if empty is None else out.masked_fill(empty, 0.0), None, None)


def ready(template: Problem) -> Callable[..., list[Tensor]] | None:
    """`run` on a device for calls in the shapes of a problem, given what is hidden; its keys and queries are 0."""
    if on_cpu(template.query):
        return None
    lead, causal, kind = template.lead, template.restrictions.causal, template.narrow_dtype
    alone = causal and template.restrictions.lens is template.restrictions.mask is None
    template = template.without_tensors()

    def run(query: Tensor, key: Tensor, _: Tensor | None, value: Tensor, hidden: Hidden | None) -> list[Tensor]:
        mask = empty = None
        if hidden is not None and not alone and hidden.queries is not None:
            empty = hidden.queries.unsqueeze(-1)
            mask = _as_mask(hidden.pairs() <= empty, template)  # all, in a row that sees none
        if hidden is not None and hidden.keys is not None:
            value = value.masked_fill(hidden.keys.unsqueeze(-1), 0.0)
        query, key, value = (_once(t.to(kind)) for t in (query, key, value))
        with _pinned() if query.is_cuda else nullcontext():
            out = fused(query, key, value, mask, lead, causal, 0.0)
        return [out if empty is None else out.masked_fill(empty, 0.0)]

    return run


def _once(tensor: Tensor) -> Tensor:
    """The tensor, whose gradient is not differentiated: PyTorch's own error says neither where nor what has one."""
    if not tensor.requires_grad or torch.compiler.is_compiling():
        return tensor
    own = tensor.view_as(tensor)
    own.register_hook(lambda grad: once(_ONE_DERIVATIVE, grad.clone, grad) if grad.requires_grad else None)
    return own


def fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, lead: torch.Size, causal: bool, dropout: float,
    scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """Run the fused kernel on operands (..., n, h), (..., m, h), (..., m, d_v) of one dtype, folded and padded for it.

    `mask` is (B, H or 1, n or 1, m); `lead` are the leading dimensions of the result; `scale` multiplies products.
    """
    values = value.shape[-1]
    size = width(query, values)
    out = scaled_dot_product_attention(
        fold(query, size, lead), fold(key, size, lead), fold(value, size, lead),
        attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale,
    )  # fmt: skip
    return unfold(out, values, lead)


@contextmanager
def _pinned() -> Iterator[None]:
    """Pin PyTorch's backend on CUDA.

    Its switches are the process's: a second thread could restore the state that the first had set.
    """
    if torch.compiler.is_compiling():
        with sdpa_kernel(_FAST):
            yield
        return
    with _SWITCHES, sdpa_kernel(_FAST):
        yield


def width(query: Tensor, values: int) -> int:
    """The number of features that the kernels need: on CPU the same for all operands, on CUDA a multiple of 8."""
    most = max(query.shape[-1], values)
    return -(-most // 8) * 8 if query.is_cuda else max(1, most)


def _needs_mask(problem: Problem) -> bool:
    restrictions = problem.restrictions
    others = (restrictions.lens, restrictions.mask, restrictions.bias, restrictions.key_bias)
    return any(t is not None for t in others)


def _cut(problem: Problem) -> Problem:
    """Drop the keys past every length, if lengths can be read, except those that a NaN needs."""
    restrictions, lens, known = problem.restrictions, problem.restrictions.lens, problem.restrictions.extremes
    if lens is None or restrictions.causal:
        return problem
    if known is None and lens.numel() and can_read_values(lens):
        known = extremes(lens)
    if known is None:
        return problem
    shortest, keys = known[0], max(_VECTOR if restrictions.keys >= _VECTOR else 1, known[1])
    mask, bias = restrictions.mask, restrictions.key_bias
    restricted = restrictions.unchecked_copy(
        keys=keys,
        lens=lens if shortest < keys else None,
        mask=mask if mask is None or mask.shape[-1] == 1 else mask[..., :keys],
        key_bias=None if bias is None else bias[..., :keys],
    )
    key, value = problem.key.narrow(-2, 0, keys), problem.value.narrow(-2, 0, keys)
    return problem.unchecked_copy(key=key, value=value, restrictions=restricted)


def _masked(problem: Problem) -> _Masked:
    """The call's mask, from its restrictions.

    A row without keys sees all of them here and its output becomes 0: PyTorch's result for it depends on the version.
    """
    problem = _cut(problem)
    restrictions, bias = problem.restrictions, problem.restrictions.bias
    # The CPU kernel takes a mask in float32 beside halves, which would round a bias, and large ones to −∞.
    kind = problem.narrow_dtype if problem.query.is_cuda else problem.dtype
    if bias is not None:  # and nothing else: as it is
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
    """A mask (..., n or 1, m or 1) in the four dimensions of PyTorch's."""
    if mask.shape[-1] != problem.restrictions.keys:
        mask = mask.expand(*mask.shape[:-1], problem.restrictions.keys)
    full = mask.expand(*problem.lead, *mask.shape[-2:]) if len(problem.lead) > 2 else mask
    return _four(full, problem.lead)


def fold(tensor: Tensor, size: int, lead: torch.Size) -> Tensor:
    """(B, H, length, size), with the features of a row side by side, as PyTorch's fast paths have it."""
    more = size - tensor.shape[-1]
    if more:  # without which `pad` would copy too
        tensor = pad(tensor, (0, more))
    if tensor.stride(-1) != 1:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    if tensor.shape[:-2] != lead:
        tensor = tensor.expand(*lead, *tensor.shape[-2:])
    return _four(tensor, lead)


def unfold(out: Tensor, values: int, lead: torch.Size) -> Tensor:
    """The reverse of `fold`, of `values` features."""
    if out.shape[-1] != values:
        out = out[..., :values]
    return out.squeeze(1) if len(lead) == 1 else out if len(lead) == 2 else out.reshape(*lead, *out.shape[-2:])


def _four(tensor: Tensor, lead: torch.Size) -> Tensor:
    """Four dimensions, whatever the leading ones; those that are 1 stay 1."""
    if len(lead) == 1:
        return tensor.unsqueeze(1)
    if len(lead) < 1:
        return tensor.reshape(1, 1, *tensor.shape)
    return tensor if len(lead) == 2 else tensor.reshape(-1, *tensor.shape[-3:])
