"""Fused attention on a CPU: scores, softmax and average in one pass over tiles, compiled by Numba.

This is how a problem becomes a record of numbers and addresses, `kernel.CALL`, that the compiled kernels read.
"""

import math
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dikkat import addresses
from dikkat.cpu.engine import threads
from dikkat.masking import Restrictions, have_tangents, transformed
from dikkat.problem import Problem, farthest, must_exclude
from dikkat.problem.operator import Gradients, Output, Upstream, operator
from dikkat.scores import Pair

_HAS_NUMBA = find_spec("numba") is not None
# Rows of a task.
_ROWS = 32
# Of a task of the backward: rows times features, each a vector of sums.
_SUMS = 4096
# Of a vector. Said here and not in the kernels, which are not imported before they run.
BYTES = 64
# Additive features whose reciprocals are one; packed features are filled up to a multiple of it.
FOLD = 8
# A type's range: what scales an additive denominator, how large one may be, and which features have exponentials. (Of
# distances the last is which coordinates have squares.)
_RANGES = {torch.float32: (2.0**-12, 2.0**126, 20.0), torch.float64: (2.0**-100, 2.0**1022, 160.0)}
_NUMPY = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}
# What of a record is not of the type that is computed in; tables of owners are whole numbers too.
_KINDS = {
    "lens": torch.int64, "exclude": torch.int64, "seeds": torch.int64, "mask": torch.uint8, "key_astray": torch.uint8,
}  # fmt: skip


def obstacles(problem: Problem) -> list[str]:
    """Why it cannot run."""
    reasons = []
    device = problem.query.device.type
    if device != "cpu":
        reasons.append(f"it runs on the CPU; the tensors are on {device}, where 'chunked' and 'reference' run")
    if not _HAS_NUMBA:
        reasons.append("Numba is not installed (pip install numba); 'chunked' and 'reference' need none")
    if have_tangents(problem.query, problem.key, problem.value):
        reasons.append("it has no forward-mode derivative; 'reference' has")
    return reasons


def _tiles() -> ModuleType:
    """The compiled kernels, imported when first used: Numba takes as long to import as a small model trains."""
    from dikkat.cpu.attention import kernel as attention_kernel

    return attention_kernel


class _Call:
    """A problem as the record that the kernels read; keeps alive what its addresses point to."""

    def __init__(self, problem: Problem) -> None:
        tiles, limits, lead = _tiles(), problem.limits, problem.lead
        self.problem, self.dtype, self.batch = problem, problem.query.dtype, lead.numel()
        self.lanes = BYTES // self.dtype.itemsize
        self._kept: list[Tensor] = []
        self.fields: dict[str, Any] = dict.fromkeys(tiles.CALL.names, 0)
        size, values = problem.query.shape[-1], problem.value.shape[-1]
        additive = problem.pair == "additive"
        self.fields |= {
            "profile": ("gaussian", "boxcar", "epanechnikov", "triangular").index(problem.profile),
            "queries": limits.queries,
            "keys": limits.keys,
            "features": size,
            "padded": -(-size // FOLD) * FOLD if additive else size,
            "values": values,
            "blocks": -(-limits.keys // self.lanes),
            "causal": limits.causal,
        }
        self.fields |= zip(("scale", "limit", "highest"), _RANGES[self.dtype], strict=True)
        if problem.pair == "distance":  # what is beyond a kernel's support may be as far as it likes
            self.fields["highest"] = farthest(size, self.dtype) if problem.profile == "gaussian" else math.inf
        self.share("query", problem.query, 2)
        self.key_owners = self.share("key", problem.key, 2)
        self.value_owners = self.share("value", problem.value, 2)
        if problem.weight is not None:
            self.share("weight", problem.weight, 1)
        self._restrict()

    def _restrict(self) -> None:
        limits, fields = self.problem.limits, self.fields
        if limits.lens is not None:
            self.share("lens", limits.lens, 1)
            fields["lens_row"] = limits.lens.shape[-1] != 1
        if limits.mask is not None:
            self.share("mask", limits.mask.view(torch.uint8), 2)
            fields["mask_row"], fields["mask_col"] = (size != 1 for size in limits.mask.shape[-2:])
        if limits.exclude is not None:
            self.share("exclude", limits.exclude, 1)
            fields["exclude_row"] = limits.exclude.shape[-1] != 1
        if limits.key_bias is not None:
            wide = self.up(limits.keys)
            self.share("bias", torch.nn.functional.pad(limits.key_bias, (0, wide - limits.keys)), 1)
            fields["bias_stride"] = wide
        if self.problem.seeds is not None:
            self.share("seeds", self.problem.seeds, 0)
            dropout = self.problem.dropout
            fields["dropout"] = int(dropout * 2**32)
            fields["kept_scale"] = 1 / (1 - dropout) if dropout < 1 else 0.0

    def up(self, count: int) -> int:
        """The next multiple of a vector's lanes."""
        return -(-count // self.lanes) * self.lanes

    def share(self, name: str, tensor: Tensor, own: int) -> int:
        """Point to an operand whose last `own` dimensions are its own, and say whose are whose. How many it has."""
        tensor = tensor.contiguous()
        lead = tensor.shape[: tensor.ndim - own]
        count = lead.numel()
        self.point(name, tensor)
        if lead == self.problem.lead:
            self.fields[f"{name}_step"] = 1
        elif count != 1:
            owners = torch.arange(count, device="cpu").reshape(lead)
            self.point(f"{name}_table", owners.expand(self.problem.lead).contiguous())
        return count

    def point(self, name: str, tensor: Tensor) -> Tensor:
        """Put a tensor's address into the record."""
        self._kept.append(tensor)
        kind = torch.int64 if name.endswith("_table") else _KINDS.get(name, self.dtype)
        self.fields[name] = addresses.address(name, tensor, kind)
        return tensor

    def new(self, name: str, *shape: int) -> Tensor:
        """An output or buffer to be filled."""
        made, self.fields[name] = addresses.made(shape, self.dtype)
        self._kept.append(made)
        return made

    def zeros(self, name: str, *shape: int) -> Tensor:
        """An output or buffer that is added to, or written in part."""
        return self.point(name, torch.zeros(shape, dtype=self.dtype, device="cpu"))

    def filled(self, tensor: Tensor, size: int) -> Tensor:
        """With zeros up to a number of features, in one piece."""
        more = size - tensor.shape[-1]
        return torch.nn.functional.pad(tensor, (0, more)) if more else tensor.contiguous()

    def pack(self, values: bool) -> Tensor:
        """Keys, where they are not yet, and values, where they are wanted so, in blocks. The keys."""
        fields, packed = self.fields, self.problem.packed
        blocks, owners = fields["blocks"], self.value_owners if values else 0
        # Not those of other keys: where the call's keys were cut, widened or made apart since.
        wanted = (*self.problem.key.shape[:-2], blocks, fields["padded"], self.lanes)
        if packed is None or packed.shape != wanted or packed.dtype != self.dtype:
            fields["key_owners"] = self.key_owners
            packed = torch.empty(self.key_owners, blocks, fields["padded"], self.lanes, dtype=self.dtype, device="cpu")
            owners += self.key_owners
        self.point("packed_key", packed.contiguous())
        if values:
            self.new("packed_value", self.value_owners, blocks, fields["values"], self.lanes)
        self.run(_tiles().pack, owners * blocks, 0)
        return packed

    def run(self, kernel: Any, tasks: int, scratch: int) -> None:
        """Run a kernel whose workers need so many numbers of scratch each."""
        if not tasks:
            return
        fields, counters = self.fields, np.zeros(2, np.int64)
        workers = min(tasks, torch.get_num_threads())
        scratch = self.up(scratch) + self.lanes
        self.new("scratch", workers, scratch)
        fields |= {"tasks": tasks, "scratch_size": scratch, "counters": counters.ctypes.data}
        calls = np.array([tuple(fields.values())], dtype=_tiles().CALL)
        compiled = kernel(_NUMPY[self.dtype], self.problem.pair)
        threads.run(compiled, calls.ctypes.data, tasks)


def can_pack(pair: Pair, key: Tensor) -> bool:
    """Whether projected keys that are attended to many times are worth packing once: where they have exponentials."""
    return pair == "additive" and _HAS_NUMBA and key.device.type == "cpu" and not transformed()


@torch.library.custom_op("dikkat::numba_pack", mutates_args=())
def pack(key: Tensor) -> Tensor:
    """Projected keys (..., m, h) as `Problem.packed` wants them for additive scores, (..., blocks, h, lanes)."""
    lead, count = key.shape[:-2], key.shape[-2]
    limits = Restrictions(1, count, None, None, False, None, None, key.device)
    nothing = key.new_empty((*lead, count, 0))
    problem = Problem("additive", "gaussian", key[..., :1, :], key, None, nothing, limits, lead).wide()
    return _Call(problem).pack(values=False).reshape(_packed_shape(key))


@pack.register_fake
def _(key: Tensor) -> Tensor:
    return key.new_empty(_packed_shape(key), dtype=torch.promote_types(key.dtype, torch.float32))


def _packed_shape(key: Tensor) -> tuple[int, ...]:
    *lead, count, size = key.shape
    lanes = BYTES // torch.promote_types(key.dtype, torch.float32).itemsize
    return (*lead, -(-count // lanes), -(-size // FOLD) * FOLD, lanes)


def _forward(problem: Problem) -> Output:
    tiles, call = _tiles(), _Call(problem)
    fields, lead, limits = call.fields, problem.lead, problem.limits
    size = fields["values"]
    fields["exact"] = must_exclude(problem)
    narrow = size < call.lanes // 2
    stride = size * call.lanes if narrow else call.up(size)
    fields["narrow"], fields["value_stride"] = narrow, stride
    call.pack(values=narrow)
    if not narrow and stride != size:
        call.share("value", call.filled(problem.value, stride), 2)
    rows = min(_ROWS, max(1, limits.queries))
    parts = -(-limits.queries // rows)
    fields["rows"], fields["parts"] = rows, parts
    mean = call.new("mean", *lead, limits.queries, size)
    peak, whole = (call.new(name, *lead, limits.queries) for name in ("peak", "total"))
    if problem.wants_weights:
        weights = call.zeros("weights", *lead, limits.queries, limits.keys)
    else:
        weights = problem.query.new_zeros(0)
    width = tiles.TILE * call.lanes
    scratch = 2 * rows * width + width + call.up(fields["padded"] * (1 + rows)) + rows * (stride + 4)
    call.run(tiles.forward, call.batch * parts, scratch)
    return Output(mean, peak, whole, weights)


def _backward(problem: Problem, out: Output, grad: Upstream) -> Gradients:
    call = _Call(problem)
    fields, lead, queries = call.fields, problem.lead, problem.limits.queries
    if problem.wants_weights:
        call.point("weights_grad", grad.weights.contiguous())
    for name, tensor in (("peak", out.peak), ("total", out.total), ("total_grad", grad.total), ("drift", grad.drift)):
        call.point(name, tensor.contiguous())
    fields["exact"] = must_exclude(problem, grad.mean)
    # Tasks of one batch element each have gradients of all keys: no more of them than there is use for.
    parts = max(1, min(-(-queries // _ROWS), -(-2 * torch.get_num_threads() // max(1, call.batch))))
    fields |= {"parts": parts, "part_rows": -(-queries // parts)}
    by_query = call.new("query_grad", *lead, queries, fields["features"])
    run_backward = _additive_backward if problem.pair == "additive" else _blocked_backward
    by_key, by_weight, by_value, by_bias = run_backward(call, grad.mean)

    def summed(tensor: Tensor | None, operand: Tensor | None, own: int) -> Tensor:
        """(tasks, ...), perhaps with room at its end, in the shape of the operand; empty where there is none."""
        if tensor is None or operand is None:
            return torch.empty(0, device="cpu")
        whole = tensor.reshape(call.batch, parts, *tensor.shape[1:])
        whole = whole.sum(1) if parts > 1 else whole.squeeze(1)
        for dim in range(-own, 0):
            whole = whole.narrow(dim, 0, operand.shape[dim])
        return whole.reshape(*lead, *whole.shape[1:]).sum_to_size(operand.shape).contiguous()

    return Gradients(
        by_query.sum_to_size(problem.query.shape).contiguous(),
        summed(by_key, problem.key, 2),
        summed(by_weight, problem.weight, 1),
        summed(by_value, problem.value, 2),
        summed(by_bias, problem.limits.key_bias, 1),
    )


def _additive_backward(call: _Call, mean_grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """The gradients of key, weight, value and bias, for each task."""
    from dikkat.cpu.attention import additive

    fields, problem = call.fields, call.problem
    keys, size, values = fields["keys"], fields["features"], fields["values"]
    tasks, padded, stride = call.batch * fields["parts"], call.up(size), call.up(values)
    fields |= {"padded": padded, "value_stride": stride, "key_owners": call.key_owners}
    call.point("mean_grad", call.filled(mean_grad, stride))
    call.share("value", call.filled(problem.value, stride), 2)
    call.new("packed_key", call.key_owners, keys, padded)
    call.point("key_astray", torch.empty(call.key_owners, keys, dtype=torch.uint8, device="cpu"))
    tiles = call.key_owners * -(-keys // additive.TILE)
    call.new("key_peak", tiles, padded)
    call.run(additive.pack_features, tiles, 0)
    # What is kept of a pair is as long as its features: so many rows that it stays near.
    group = additive.MOST if padded <= 256 else additive.MOST // 2
    rows = max(group, min(_ROWS, _SUMS // max(1, padded) // group * group))
    fields |= {"group": group, "rows": rows}
    by_key, by_value = call.new("key_grad", tasks, keys, padded), call.new("value_grad", tasks, keys, stride)
    by_weight = call.new("weight_grad", tasks, size)
    by_bias = call.zeros("bias_grad", tasks, keys) if problem.limits.key_bias is not None else None
    side = additive.SIDE
    pairs = group * side
    scratch = 6 * pairs + 5 * rows * side + 2 * pairs * call.lanes + 6 * rows + 2 * group
    scratch += padded * (pairs + 3 + side + 3 * rows)
    call.run(additive.backward, tasks, scratch)
    return by_key, by_weight, by_value, by_bias


def _blocked_backward(call: _Call, mean_grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """The gradients of key, value and bias, for each task."""
    tiles, fields, problem = _tiles(), call.fields, call.problem
    size, values, blocks = fields["features"], fields["values"], fields["blocks"]
    tasks, width, group = call.batch * fields["parts"], tiles.TILE_BACK * call.lanes, tiles.GROUP
    call.point("mean_grad", mean_grad.contiguous())
    call.pack(values=True)
    rows = max(group, min(_ROWS, _SUMS // max(1, size) // group * group))
    fields["rows"] = rows
    by_key = call.zeros("key_grad", tasks, blocks, size, call.lanes)
    by_value = call.zeros("value_grad", tasks, blocks, values, call.lanes)
    by_bias = call.zeros("bias_grad", tasks, blocks * call.lanes) if problem.limits.key_bias is not None else None
    scratch = width * (3 * group + 1) + size * rows + call.lanes * (1 + size * rows) + 2 * rows
    call.run(tiles.backward, tasks, scratch)

    def unpacked(blocked: Tensor) -> Tensor:
        return blocked.mT.reshape(tasks, blocks * call.lanes, blocked.shape[2])

    return unpacked(by_key), None, unpacked(by_value), by_bias


run = operator("numba", _forward, _backward)
