"""Fused attention on a CPU: scores, softmax and average in one pass over tiles, compiled by Numba.

This module turns a problem into a record of numbers and addresses, `record.CALL`, which the kernels read. Kernels are
imported when they first run, because importing Numba is slow.
"""

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from dikkat._core.arithmetic import dropout_numbers, farthest, must_exclude
from dikkat._core.compiled.scoring import PAIRS, PROFILES, RANGES
from dikkat._core.implementations.numba.record import CALL, FOLD, GROUP, PEAK_KEYS, ROWS, SHARED, SIDE, TILE, TILE_BACK
from dikkat._core.operators import Gradients, Operator, Output, upstream
from dikkat._core.problem import OWN_DIMENSIONS, Examined, Problem
from dikkat._core.restrictions import Restrictions
from dikkat._core.summary import Asked, Summary, cell_sizes
from dikkat._engine import addresses
from dikkat._engine.pytorch_state import is_transformed
from dikkat._engine.record import BYTES, CallRecord, Record, round_up
from dikkat.scores import Pair
from dikkat.state import log_sum_exp

# Rows of a task.
_ROWS = 32
# Vectors of sums in a backward task: rows times features.
_MAX_SUMS = 4096
# Largest bytes of shares that a worker keeps until row totals are known, and the fewest rows of such a task.
_SHARES, _MIN_ROWS = 2**23, 16


def examine(problem: Problem) -> Examined:
    reasons = []
    device = problem.query.device.type
    if device != "cpu":
        reasons.append(f"it runs on the CPU; the tensors are on {device}, where 'chunked' and 'reference' run")
    if problem.has_tangents:
        reasons.append("it has no forward-mode derivative; 'reference' has")
    return Examined(reasons or addresses.numba_obstacles())


class ProblemRecord(CallRecord):
    """The record of a problem's sizes; `of` returns one that also has the addresses of a call's operands."""

    problem: Problem
    _sizes: "ProblemRecord"

    def __init__(self, record: Record, problem: Problem) -> None:
        super().__init__(record, problem.query.dtype, tuple(True if problem.pair == pair else None for pair in PAIRS))
        restrictions, lens = problem.restrictions, problem.restrictions.lens
        self.batch = problem.lead.numel()
        self.fields |= {
            "queries": restrictions.queries, "keys": restrictions.keys, "features": problem.query.shape[-1],
            "values": problem.value.shape[-1], "causal": restrictions.causal,
        }  # fmt: skip
        if lens is not None:
            self.fields["lens_row"] = lens.shape[-1] != 1
            self.divide("lens", lens.shape[:-1], problem.lead)

    def divide(self, name: str, owners: torch.Size, lead: torch.Size) -> None:
        """Write which element of the operand each batch element uses."""
        count = owners.numel()
        if owners == lead:
            self.fields[f"{name}_step"] = 1
        elif count != 1:
            table = torch.arange(count, device="cpu").reshape(owners)
            self.point(f"{name}_table", table.expand(lead).contiguous())

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Return a problem's record without operands, copied from `problem.kept` if that is a cache."""
        cache, key = problem.kept, (cls, problem.restrictions.lens is None)
        sizes = cls(problem) if cache is None or key not in cache else cache[key]  # type: ignore[arg-type, call-arg]
        if cache is not None:
            cache[key] = sizes
        call: Self = sizes.copy()
        call._sizes, call.problem = sizes, problem  # keeps the tables alive
        return call


class _AttentionRecord(ProblemRecord):
    element_tasks: int  # tasks of a backward for each batch element

    def __init__(self, problem: Problem) -> None:
        super().__init__(CALL, problem)
        restrictions, size, ranges = problem.restrictions, problem.query.shape[-1], RANGES[self.dtype]
        highest, (threshold, kept_scale) = ranges.highest, dropout_numbers(problem.dropout)
        if problem.pair == "distance":  # squares stay finite; beyond a compact support they may overflow
            highest = farthest(size, self.dtype) if problem.profile == "gaussian" else math.inf
        self.fields |= {
            "profile": PROFILES.index(problem.profile),
            "padded": round_up(size, FOLD) if problem.pair == "additive" else size,
            "blocks": -(-restrictions.keys // self.lanes), "scale": ranges.scale, "limit": ranges.limit,
            "highest": highest, "softcap": problem.softcap, "key_bias_stride": round_up(restrictions.keys, self.lanes),
            "dropout": threshold, "kept_scale": kept_scale,
        }  # fmt: skip
        if restrictions.starts is not None:
            self.fields["starts_row"] = restrictions.starts.shape[-1] != 1
        if restrictions.exclude is not None:
            self.fields["exclude_row"] = restrictions.exclude.shape[-1] != 1
        if restrictions.mask is not None:
            self.fields["mask_row"], self.fields["mask_col"] = (size != 1 for size in restrictions.mask.shape[-2:])
        for name, tensor in problem.tensors().items():
            if name in SHARED and name != "lens":
                self.divide(name, tensor.shape[: tensor.ndim - OWN_DIMENSIONS[name]], problem.lead)
        self.key_owners, self.value_owners = (t.shape[:-2].numel() for t in (problem.key, problem.value))
        self.turns = _find_turns(problem) if problem.wants_bias_grad else None

    @classmethod
    def of(cls, problem: Problem) -> Self:
        call = super().of(problem)
        for name, tensor in problem.tensors().items():
            tensor = tensor.resolve_neg()
            if name == "bias":
                call.point_bias(tensor)
            elif name == "key_bias":
                call.point(name, _pad_features(tensor, call.fields["key_bias_stride"]))
            elif name in SHARED:
                call.point(name, tensor.contiguous())
        return call

    def point_bias(self, bias: Tensor) -> None:
        """Point to the bias without a copy; kernels use its strides."""
        self.kept["bias"] = bias
        self.fields["bias"] = addresses.strided_address("bias", bias, self.dtype)
        *steps, row, col = (0 if size == 1 else step for size, step in zip(bias.shape, bias.stride(), strict=True))
        self.fields |= {"bias_row": row, "bias_col": col}
        offsets = torch.zeros((), dtype=torch.int64, device="cpu")
        for size, step in zip(self.problem.lead, steps, strict=True):
            offsets = offsets[..., None] + step * torch.arange(size, device="cpu")
        self.point("bias_offsets", offsets.contiguous())

    def make_bias_grad(self) -> Tensor:
        """Allocate the gradient of the bias. If all rows share the bias, each task gets its own, summed afterwards."""
        bias = self.problem.restrictions.bias
        if bias is None or self.turns is None:
            return torch.empty(0, device="cpu")
        *owners, rows, cols = bias.shape
        by_row = rows != 1
        grad_rows = rows if by_row else self.fields["element_tasks"]
        self.fields |= {"bias_row_apart": by_row, "bias_rows": grad_rows, "bias_cols": cols}
        return self.zeros("bias_grad", *owners, grad_rows, cols)

    def run_in_turns(self, kernel: Callable[..., Any], **regions: int) -> None:
        """Run a backward kernel; batch elements that share a bias gradient run one after the other."""
        if self.turns is None:
            self.run(kernel, self.batch * self.element_tasks, **regions)
            return
        for turn in self.turns:
            self.point("turns", turn)
            self.run(kernel, len(turn) * self.element_tasks, **regions)

    def pack(self, values: bool) -> Tensor:
        """Pack the keys unless the problem has packed ones, and the values if `values`; return the packed keys."""
        from dikkat._core.implementations.numba import packing

        fields, packed, blocks = self.fields, self.problem.packed, self.fields["blocks"]
        owners = self.value_owners if values else 0
        shape = (blocks, fields["padded"], self.lanes)
        # Packed keys do not fit if the call's keys were cut, cast or expanded since.
        if packed is None or packed.shape != (*self.problem.key.shape[:-2], *shape) or packed.dtype != self.dtype:
            fields["key_owners"] = self.key_owners
            packed = self.new("packed_key", self.key_owners, *shape)
            owners += self.key_owners
        else:
            self.point("packed_key", packed.contiguous())
        if values:
            self.new("packed_value", self.value_owners, blocks, fields["values"], self.lanes)
        self.run(packing.pack, owners * blocks)
        return packed

    def means(self) -> Tensor:
        """Allocate the means, and pack the operands for a forward pass."""
        fields, problem = self.fields, self.problem
        size = fields["values"]
        fields["exact"] = must_exclude(problem)
        narrow = size < self.lanes // 2
        stride = size * self.lanes if narrow else round_up(size, self.lanes)
        fields["narrow"], fields["value_stride"] = narrow, stride
        self.pack(values=narrow)
        if not narrow and stride != size:
            self.point("value", _pad_features(problem.value, stride))
        return self.new("mean", *problem.lead, fields["queries"], size)


def _find_turns(problem: Problem) -> Tensor:
    """Return batch elements (turns, bias elements); a turn has one batch element for each element of the bias."""
    bias = problem.restrictions.bias
    owners = torch.Size() if bias is None else bias.shape[:-2]
    owner_of_element = torch.arange(owners.numel(), device="cpu").reshape(owners).expand(problem.lead).flatten()
    turns = len(owner_of_element) // max(1, owners.numel())
    return owner_of_element.argsort(stable=True).reshape(owners.numel(), turns).mT.contiguous()


def _pad_features(tensor: Tensor, size: int) -> Tensor:
    """Pad the features with zeros and make the tensor contiguous."""
    padding = size - tensor.shape[-1]
    # `pad` may return a channels-last layout.
    return (torch.nn.functional.pad(tensor, (0, padding)) if padding else tensor.resolve_neg()).contiguous()


def can_pack(pair: Pair, key: Tensor) -> bool:
    """Return whether packing keys once saves time in later calls: only additive keys need exponentials."""
    return pair == "additive" and key.device.type == "cpu" and not (is_transformed() or addresses.numba_obstacles())


@torch.library.custom_op("dikkat::numba_pack", mutates_args=())
def pack(key: Tensor) -> Tensor:
    """Pack an additive score's projected keys (..., m, h) into `Problem.packed`, (..., blocks, padded h, lanes)."""
    lead, count = key.shape[:-2], key.shape[-2]
    restrictions = Restrictions(1, count, key.device)
    no_values = key.new_empty((*lead, count, 0))
    problem = Problem("additive", "gaussian", key[..., :1, :], key, None, no_values, restrictions, lead).in_wide_dtype()
    return _AttentionRecord.of(problem).pack(values=False).reshape(_packed_shape(key))


@pack.register_fake
def _(key: Tensor) -> Tensor:
    return key.new_empty(_packed_shape(key), dtype=torch.promote_types(key.dtype, torch.float32))


def _packed_shape(key: Tensor) -> tuple[int, ...]:
    *lead, count, size = key.shape
    lanes = BYTES // torch.promote_types(key.dtype, torch.float32).itemsize
    return (*lead, -(-count // lanes), round_up(size, FOLD), lanes)


def _forward(problem: Problem) -> Output:
    from dikkat._core.implementations.numba import kernel

    call = _AttentionRecord.of(problem)
    fields, lead, restrictions = call.fields, problem.lead, problem.restrictions
    rows = min(_ROWS, max(1, restrictions.queries))
    tasks = -(-restrictions.queries // rows)
    fields |= {"rows": rows, "element_tasks": tasks}
    mean = call.means()
    peak, total = (call.new(name, *lead, restrictions.queries) for name in ("peak", "total"))
    if problem.wants_weights:
        weights = call.zeros("weights", *lead, restrictions.queries, restrictions.keys)
    else:
        weights = problem.query.new_zeros(0)
    width = TILE * call.lanes
    call.run(
        kernel.forward, call.batch * tasks, scores=rows * width, weights=rows * width, drop_factors=width,
        weight=fields["padded"], query=rows * fields["padded"], mean=rows * fields["value_stride"], peaks=rows,
        sums=rows, limits=rows,
    )  # fmt: skip
    return Output(mean, peak, total, weights)


def _backward(problem: Problem, out: Output, grads: Output) -> Gradients:
    call = _AttentionRecord.of(problem)
    grad = upstream(problem, out, grads)
    fields, lead, queries = call.fields, problem.lead, problem.restrictions.queries
    bias = problem.restrictions.bias
    if problem.wants_weights:
        call.point("weights_grad", grad.weights.contiguous())
    for name, tensor in (("peak", out.peak), ("total", out.total), ("total_grad", grad.total), ("drift", grad.drift)):
        call.point(name, tensor.contiguous())
    fields["exact"] = must_exclude(problem, grad.mean)
    # Every task has gradients of all keys: no more tasks than keep the threads busy.
    parallel_elements = call.batch if call.turns is None else call.turns.shape[1]
    tasks = max(1, min(-(-queries // _ROWS), -(-2 * torch.get_num_threads() // max(1, parallel_elements))))
    fields |= {"element_tasks": tasks, "task_rows": -(-queries // tasks)}
    call.element_tasks = tasks
    bias_grad = call.make_bias_grad()
    query_grad = call.new("query_grad", *lead, queries, fields["features"])
    run_backward = _additive_backward if problem.pair == "additive" else _blocked_backward
    key_grad, weight_grad, value_grad, key_bias_grad = run_backward(call, grad.mean)

    def summed(tensor: Tensor | None, operand: Tensor | None, trailing_dims: int) -> Tensor:
        """Sum gradients (tasks, ...), which may be padded, to the operand's shape; empty without an operand."""
        if tensor is None or operand is None:
            return torch.empty(0, device="cpu")
        total = tensor.reshape(call.batch, tasks, *tensor.shape[1:])
        total = total.sum(1) if tasks > 1 else total.squeeze(1)
        for dim in range(-trailing_dims, 0):
            total = total.narrow(dim, 0, operand.shape[dim])
        return total.reshape(*lead, *total.shape[1:]).sum_to_size(operand.shape).contiguous()

    return Gradients(
        query_grad.sum_to_size(problem.query.shape).contiguous(),
        summed(key_grad, problem.key, 2),
        summed(weight_grad, problem.weight, 1),
        summed(value_grad, problem.value, 2),
        bias_grad if bias is None or call.turns is None else bias_grad.sum_to_size(bias.shape),
        summed(key_bias_grad, problem.restrictions.key_bias, 1),
    )


def _additive_backward(
    call: _AttentionRecord, mean_grad: Tensor
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    from dikkat._core.implementations.numba import additive_backward

    fields, problem = call.fields, call.problem
    keys, size, values = fields["keys"], fields["features"], fields["values"]
    padded, stride = round_up(size, call.lanes), round_up(values, call.lanes)
    fields |= {"padded": padded, "value_stride": stride, "key_owners": call.key_owners}
    call.point("mean_grad", _pad_features(mean_grad, stride))
    call.point("value", _pad_features(problem.value, stride))
    call.new("packed_key", call.key_owners, keys, padded)
    call.new("key_beyond", call.key_owners, keys)
    tiles = -(-keys // PEAK_KEYS)
    call.new("key_peak", call.key_owners, tiles, padded)
    call.run(additive_backward.pack_features, call.key_owners * tiles)
    # A pair stores a number for each feature: as many rows as fit into a cache.
    group = ROWS if padded <= 256 else ROWS // 2
    rows = max(group, min(_ROWS, _MAX_SUMS // max(1, padded) // group * group))
    fields |= {"group": group, "rows": rows}
    tasks = call.batch * call.element_tasks
    key_grad, value_grad = call.new("key_grad", tasks, keys, padded), call.new("value_grad", tasks, keys, stride)
    weight_grad = call.new("weight_grad", tasks, size)
    key_bias_grad = call.zeros("key_bias_grad", tasks, keys) if problem.restrictions.key_bias is not None else None
    pairs, row_pairs = group * SIDE, rows * SIDE
    call.run_in_turns(
        additive_backward.backward,
        scores=pairs, weights=pairs, by_score=pairs, in_fast=pairs, drop_factors=pairs, upstream=pairs,
        peaks=row_pairs, totals=row_pairs, drifts=row_pairs, factors=row_pairs,
        score_sums=pairs * call.lanes, value_sums=pairs * call.lanes, reciprocals=pairs * padded,
        weight=padded, weight_sums=padded, query_peak=padded, key_sums=SIDE * padded,
        query=rows * padded, query_sums=rows * padded, query_exact=rows * padded,
        limits=rows, beyond=rows, sweeps=rows, exact_rows=group,
    )  # fmt: skip
    return key_grad, weight_grad, value_grad, key_bias_grad


def _blocked_backward(call: _AttentionRecord, mean_grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    from dikkat._core.implementations.numba import backward

    fields, lanes = call.fields, call.lanes
    size, values, width = fields["features"], fields["values"], TILE_BACK * lanes
    call.point("mean_grad", mean_grad.contiguous())
    call.pack(values=True)
    rows = max(GROUP, min(_ROWS, _MAX_SUMS // max(1, size) // GROUP * GROUP))
    fields["rows"] = rows
    regions = {
        "scores": GROUP * width, "weights": GROUP * width, "by_score": GROUP * width, "drop_factors": width,
        "query": rows * size, "query_sums": rows * size * lanes, "limits": rows,
    }  # fmt: skip
    biased = call.problem.restrictions.key_bias is not None
    blocks_of_tasks = call.batch * call.element_tasks, fields["blocks"]
    key_grad = call.zeros("key_grad", *blocks_of_tasks, size, lanes)
    value_grad = call.zeros("value_grad", *blocks_of_tasks, values, lanes)
    key_bias_grad = call.zeros("key_bias_grad", *blocks_of_tasks, lanes) if biased else None
    call.run_in_turns(backward.backward, **regions)

    def unpacked(blocked: Tensor) -> Tensor:
        return blocked.mT.flatten(1, 2)

    key_bias_grad = None if key_bias_grad is None else key_bias_grad.flatten(1, 2)
    return unpacked(key_grad), None, unpacked(value_grad), key_bias_grad


run = Operator("numba", _forward, _backward)


def _divide_summary(call: _AttentionRecord, request: Asked) -> tuple[int, int, bool]:
    """Return a group's rows, a batch element's tasks, and whether shares are stored until the totals are known."""
    queries, width = call.fields["queries"], TILE * call.lanes
    rows = min(_ROWS, max(1, queries))
    if not (request.sums or request.cells is not None):
        return rows, -(-queries // rows), False
    fitting_rows = _SHARES // max(1, round_up(call.fields["keys"], width) * call.dtype.itemsize)
    keeps = fitting_rows >= min(rows, _MIN_ROWS)
    rows = min(rows, fitting_rows) if keeps else rows
    # Every task has sums of all keys: no more tasks than keep the threads busy.
    return rows, max(1, min(-(-queries // rows), -(-4 * torch.get_num_threads() // max(1, call.batch)))), keeps


def summarise(problem: Problem, request: Asked, *, pools: bool = False) -> Summary:
    """Return the requested summaries, with the weights of a few rows in memory at a time."""
    from dikkat._core.implementations.numba import summaries

    problem = problem.in_wide_dtype()
    call, lead, queries, keys = (
        _AttentionRecord.of(problem), problem.lead, problem.restrictions.queries, problem.restrictions.keys,
    )  # fmt: skip
    rows, element_tasks, keeps = _divide_summary(call, request)
    fields, tasks, width = call.fields, call.batch * element_tasks, TILE * call.lanes
    fields |= {"element_tasks": element_tasks, "rows": rows, "top": request.top, "keeps": keeps}
    fields["cell_rows"], fields["cell_cols"] = request.cells or (0, 0)
    fields["by_largest"] = request.by_largest
    mean = call.means() if pools else None
    if not pools:
        call.pack(values=False)
    peak, total = (call.new(name, *lead, queries) for name in ("peak", "total"))
    top_weights, top_keys = (call.new(name, *lead, queries, request.top) for name in ("top_weights", "top_keys"))
    entropy = call.new("entropy", *lead, queries) if request.entropy else None
    sums = call.zeros("key_sums_of_task", tasks, keys) if request.sums else None
    cells = call.zeros("cells_of_task", tasks, *request.cells) if request.cells else None
    tiles, top = -(-keys // width) if keeps else 1, rows * request.top
    call.run(
        summaries.summarise, tasks, scores=rows * width, shares=tiles * rows * width, key_sums=width,
        weight=fields["padded"], query=rows * fields["padded"], mean=rows * fields["value_stride"], peaks=rows,
        sums=rows, drifts=rows, factors=rows, limits=rows, top_scores=top, top_indices=top, tile_peaks=tiles * rows,
    )  # fmt: skip

    def joined(by_task: Tensor | None, *, by_largest: bool = False) -> Tensor | None:
        if by_task is None:
            return None
        stacked = by_task.reshape(*lead, element_tasks if call.batch else 0, *by_task.shape[1:])
        return (stacked.amax(len(lead)) if by_largest else stacked.sum(len(lead))).to(problem.dtype)

    pooled = joined(cells, by_largest=request.by_largest)
    if pooled is not None and request.cells and not request.by_largest:
        pooled = pooled / cell_sizes(queries, keys, request.cells).to(problem.dtype)
    lse = log_sum_exp(peak, total)[0]
    return Summary(
        lse, top_weights if request.top else None, top_keys if request.top else None, joined(sums), entropy, pooled,
        mean, torch.where(lse.isnan(), lse, peak) if request.peak else None,
    )  # fmt: skip
