"""PyTorch's fused dot-product attention, for `inner` scores: forward and backward, without states or weights."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from threading import Lock

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention, flash_sdp_enabled
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from dikkat.masking import are_harmless, can_read_values, have_tangents, transformed
from dikkat.problem import Problem, Result

_INF = float("inf")
# Not cuDNN's, which makes a plan for each new shape: texts have many.
_FAST = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
_SWITCHES = Lock()


def obstacles(problem: Problem) -> list[str]:
    """Why PyTorch's fast paths would not serve this call."""
    limits, device = problem.limits, problem.query.device.type
    found = []
    if problem.pair != "inner":
        found.append(f"the score's pair function is {problem.pair!r}; PyTorch fuses 'inner' only")
    if problem.wants_state:
        found.append("PyTorch returns no log-sum-exp, so there is no state to merge")
    if problem.wants_weights:
        found.append("PyTorch's fused kernels show no weights")
    if limits.lens is not None and limits.lens.shape[-1] != 1:
        found.append("valid_lens of one length a query would need an n × m mask")
    if limits.causal and limits.queries != limits.keys:
        found.append("causal with n ≠ m would need an n × m mask: PyTorch's is aligned top-left")
    if limits.causal and _needs_mask(problem):
        found.append("PyTorch takes causal or a mask, not both")
    if limits.exclude is not None:
        found.append("exclude would need an n × m mask")
    if limits.key_bias is not None and limits.key_bias.requires_grad:
        found.append("PyTorch's fast paths give no gradient to key_bias")
    if not (limits.queries and limits.keys and problem.value.shape[-1] and math.prod(problem.lead)):
        found.append("PyTorch's fast paths take no empty tensors")
    if device not in ("cpu", "cuda"):
        found.append(f"not tried on {device}; allowed: cpu, cuda")
    if device == "cpu" and problem.dropout:
        found.append("PyTorch's fast path on a CPU has no dropout")
    if device == "cpu" and not (torch.compiler.is_compiling() or flash_sdp_enabled()):
        found.append("PyTorch's fast path on a CPU has been switched off (torch.backends.cuda.enable_flash_sdp)")
    if device == "cuda" and problem.dtype == torch.float64:
        found.append("PyTorch's fast paths on CUDA take no float64")
    if transformed() or have_tangents(problem.query, problem.key, problem.value):
        found.append("PyTorch's fast paths do not run under torch.func transforms, nor in forward mode")
    operands = (problem.query, problem.key, problem.value)
    # Where it can be seen without waiting for a device.
    if limits.vary_by_row() and can_read_values(*operands) and not are_harmless(*operands):
        found.append("something is not finite, and PyTorch's fast paths would show it to rows that it is hidden from")
    if not found and device == "cuda":
        found += _refused_by_cuda(problem)
    return found


def _refused_by_cuda(problem: Problem) -> list[str]:
    """What PyTorch itself says of these shapes on this device."""
    if torch.compiler.is_compiling():
        return []
    bias, kind = problem.limits.key_bias, _kind(problem)
    if bias is not None and torch.promote_types(bias.dtype, kind) != kind:
        return [f"key_bias is {bias.dtype}, and PyTorch's fast paths would round it to {kind}"]
    query, key, value = (
        problem.query.new_empty((*_four(t, problem.lead).shape[:3], _size(problem)), dtype=kind)
        for t in (problem.query, problem.key, problem.value)
    )
    mask = _mask(problem, kind)[0]
    parameters = SDPAParams(query, key, value, mask, problem.dropout, problem.limits.causal, False)
    if can_use_flash_attention(parameters) or can_use_efficient_attention(parameters):
        return []
    return [f"none of PyTorch's fast paths takes these shapes in {kind} on this device"]


def run(problem: Problem) -> Result:
    """One call of the fused kernel, on features padded with zeros to one size."""
    problem = _cut(problem)
    kind = _kind(problem)
    mask, empty = _mask(problem, kind)
    query, key, value = (_padded(t.to(kind), problem) for t in (problem.query, problem.key, problem.value))
    # On a CPU the fast path is taken by itself, wherever there is no obstacle.
    with _pinned() if query.is_cuda else nullcontext():
        out = scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=problem.dropout, is_causal=problem.limits.causal, scale=1.0
        )
    out = out[..., : problem.value.shape[-1]].reshape(*problem.lead, *out.shape[-2:-1], problem.value.shape[-1])
    return Result(out if empty is None else out.masked_fill(empty, 0.0), None, None)


@contextmanager
def _pinned() -> Iterator[None]:
    """On CUDA, one of the fast paths.

    PyTorch's switches are the whole process's: of two threads that turn them and turn them back, the second would
    leave them as the first had them meanwhile.
    """
    if torch.compiler.is_compiling():
        with sdpa_kernel(_FAST):
            yield
        return
    with _SWITCHES, sdpa_kernel(_FAST):
        yield


def _kind(problem: Problem) -> torch.dtype:
    """The dtype of the call: autocast may have halved some of its tensors."""
    return torch.promote_types(problem.query.dtype, torch.promote_types(problem.key.dtype, problem.value.dtype))


def _size(problem: Problem) -> int:
    """The CPU kernel wants one number of features for all three; CUDA's want a multiple of 8."""
    most = max(problem.query.shape[-1], problem.value.shape[-1])
    return -(-most // 8) * 8 if problem.query.is_cuda else max(1, most)


def _needs_mask(problem: Problem) -> bool:
    limits = problem.limits
    return any(t is not None for t in (limits.lens, limits.mask, limits.key_bias))


def _cut(problem: Problem) -> Problem:
    """Without the keys past every length, where the lengths can be read: their work is not done."""
    limits = problem.limits
    if limits.lens is None or limits.causal or not can_read_values(limits.lens):
        return problem
    shortest, longest = (int(length) for length in limits.lens.aminmax())
    keys = max(1, longest)
    mask, bias = limits.mask, limits.key_bias
    return replace(
        problem,
        key=problem.key[..., :keys, :],
        value=problem.value[..., :keys, :],
        limits=replace(
            limits,
            keys=keys,
            lens=limits.lens if shortest < keys else None,
            mask=mask if mask is None or mask.shape[-1] == 1 else mask[..., :keys],
            key_bias=None if bias is None else bias[..., :keys],
        ),
    )


def _mask(problem: Problem, kind: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """What the kernel adds or selects by, (B, H or 1, n or 1, m), and the rows that see no key, (..., n or 1, 1).

    A row with no key sees all of them here, and its output is set to 0 afterwards: what PyTorch's kernels make of such
    a row, NaN or 0, depends on its version and the device.
    """
    if not _needs_mask(problem):
        return None, None
    visible = problem.limits.visible()
    if visible is None:
        return None, None
    empty = ~visible.any(-1, keepdim=True)
    mask = visible | empty
    if problem.limits.key_bias is not None:
        # The CPU kernel takes a mask in float32 beside halves, which would round a bias, and large ones to −∞.
        wide = kind if problem.query.is_cuda else torch.promote_types(kind, torch.float32)
        bias = problem.limits.key_bias[..., None, :].to(wide)
        mask = torch.where(visible, bias, torch.where(empty, 0.0, -_INF).to(bias.dtype))
    mask = mask.expand(*mask.shape[:-1], problem.limits.keys)
    lead = problem.lead
    full = mask.expand(*lead, *mask.shape[-2:]) if len(lead) > 2 else mask
    return _four(full, lead), empty


def _padded(tensor: Tensor, problem: Problem) -> Tensor:
    """(B, H, length, size), with the features of a row side by side, as PyTorch's fast paths have it."""
    size = _size(problem)
    more = size - tensor.shape[-1]
    if more:  # without which `pad` would copy too
        tensor = pad(tensor, (0, more))
    if tensor.stride(-1) != 1:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return _four(tensor.expand(*problem.lead, *tensor.shape[-2:]), problem.lead)


def _four(tensor: Tensor, lead: torch.Size) -> Tensor:
    """Four dimensions, whatever the leading ones; those that are 1 stay 1."""
    if len(lead) == 1:
        return tensor.unsqueeze(1)
    if len(lead) < 1:
        return tensor.reshape(1, 1, *tensor.shape)
    return tensor if len(lead) == 2 else tensor.reshape(-1, *tensor.shape[-3:])
