"""Records for the pages of a trace: largest weights by position in the text, over all runs that continue it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat.inspection.calls import Call
from dikkat.inspection.heads import spread_weights
from dikkat.inspection.request import Inspection, Request
from dikkat.inspection.single_call import summarise_weights
from dikkat.show.blocks import Layouts, find_groups, group_means, positions_outside, recorded_side
from dikkat.show.views import CELLS, TOP


def summarise_for_page(record: Inspection, layouts: Sequence[Layouts]) -> Inspection | None:
    """Return the largest weights (H, n, k), their keys and the map (H, a, b) of a call; None if not recorded.

    With grids among the queries or keys, the result also has the mean weights of blocks if they are known.
    """
    summary = with_blocks(record, record.weights, layouts)
    blocks, outside = summary.blocks, summary.outside
    if record.weights is not None:
        weights, request = record.weights.float(), Request(top_k=TOP, overview=CELLS, pool="max")
        summary = summarise_weights(weights[..., 0], weights.abs(), request)
        if record.change is not None:
            summary = _add_signs(summary, weights, request)
    if blocks is not None and summary.top_weights is None:
        unknown = blocks.new_zeros(*record.sizes[:2], 1)
        summary = replace(summary, top_weights=unknown, top_keys=unknown.long() - 1)
    if summary.top_weights is None or summary.top_keys is None:
        return None
    return Inspection(
        top_weights=summary.top_weights, top_keys=summary.top_keys, overview=summary.overview, heads=record.heads,
        queries=record.queries, shape=record.shape, positions=record.positions, hidden=record.hidden,
        change=record.change, blocks=blocks, outside=outside,
    )  # fmt: skip


def with_blocks(record: Inspection, weights: Tensor | None, layouts: Sequence[Layouts]) -> Inspection:
    """Return the record of an element with the mean weights of blocks, from weights (H, n, m) if these are known."""
    _, queries, keys = record.sizes
    if not any(layouts) or (weights is None and record.blocks is None):
        return replace(record, blocks=None, outside=None)
    side = recorded_side(layouts)
    groups = [find_groups(axis, count, side) for axis, count in zip(layouts, (queries, keys), strict=True)]
    if weights is None:
        recorded = record.query_groups, record.key_groups
        is_fitting = all(old is not None and old.equal(new) for old, new in zip(recorded, groups, strict=True))
        return record if is_fitting else replace(record, blocks=None, outside=None)
    weights = weights.float()
    blocks = group_means(group_means(weights, groups[1], -1), groups[0], -2)
    outside = weights[:, positions_outside(layouts[0], queries)] if side > 1 else None
    return replace(record, blocks=blocks, outside=outside)


def with_largest_blocks(record: Inspection, layouts: Sequence[Layouts]) -> Inspection:
    """Return the record with the mean weights of blocks if only the largest weights are known."""
    assert record.top_weights is not None
    assert record.top_keys is not None
    return with_blocks(record, spread_weights(record.top_weights, record.top_keys, record.sizes[2]), layouts)


def _add_signs(summary: Inspection, weights: Tensor, request: Request) -> Inspection:
    """Return the summary of a difference, from the summary of its absolute weights."""
    decrease = summarise_weights(weights[..., 0], -weights.clamp(max=0), request)
    assert summary.top_keys is not None
    assert summary.overview is not None
    assert decrease.overview is not None
    overview = torch.where(decrease.overview == summary.overview, -decrease.overview, summary.overview)
    top_weights = weights.gather(-1, summary.top_keys.clamp(min=0)).masked_fill(summary.top_keys < 0, 0.0)
    return replace(summary, top_weights=top_weights, overview=overview)


def shift_to_text(record: Inspection) -> Inspection:
    """Return a record with keys from position 0 on, and the positions of its queries."""
    (first, first_key), (heads, count, keys) = record.positions, record.sizes
    queries = record.queries
    if first:
        queries = (torch.arange(count) if queries is None else queries) + first
    if first_key <= 0 or record.top_keys is None:
        return replace(record, queries=queries, hidden=None)
    top_keys = torch.where(record.top_keys < 0, record.top_keys, record.top_keys + first_key)
    shape = (1, heads, count, first_key + keys)
    return replace(record, top_keys=top_keys, queries=queries, overview=None, hidden=None, shape=shape)


def join_runs(runs: Sequence[tuple[Call, str, Inspection]]) -> Iterator[tuple[Call, str, Inspection]]:
    """Yield a module's runs; runs that continue a text are joined, as in `generate`."""
    joined: tuple[Call, str, Inspection] | None = None
    for call, label, record in runs:
        if joined is not None:
            first, name, earlier = joined
            start = record.positions[0] - earlier.positions[0]
            fits = call.kind == first.kind and (record.positions[1] >= 0 or earlier.sizes[2] == record.sizes[2])
            if fits and call.run > first.run and 0 < start <= earlier.sizes[1] and record.queries is None:
                joined = first, name, _append_run(earlier, record, start)
                continue
            yield joined
        joined = call, label, record
    if joined is not None:
        yield joined


def _append_run(earlier: Inspection, later: Inspection, start: int) -> Inspection:
    """Return one record with the first `start` queries of `earlier`, followed by the queries of `later`."""
    (first, first_key), (heads, count, keys) = later.positions, later.sizes
    before, after = shift_to_text(earlier), shift_to_text(later)
    tops = {field: torch.cat([before.tensors()[field][:, :start], after.tensors()[field]], -2)
            for field in ("top_weights", "top_keys")}  # fmt: skip
    hidden, change = later.hidden, later.change
    if change is not None and earlier.change is not None:
        change = torch.cat([earlier.change[:, :start], change], -1)
    if first_key >= 0 and hidden is not None and earlier.hidden is not None:
        later_hidden = hidden[:, first - first_key :][:, :count]
        hidden = torch.cat([earlier.hidden[:, :first], later_hidden], -1)
        keys = first + count
    return Inspection(
        **tops, **_append_blocks(earlier, later, start), hidden=hidden, change=change, heads=later.heads,
        shape=(1, heads, start + count, keys), positions=(earlier.positions[0], min(first_key, 0)),
    )  # fmt: skip


def _append_blocks(earlier: Inspection, later: Inspection, start: int) -> dict[str, Tensor]:
    """Return the blocks of a text with the queries of a later run; none if the runs overlap or a run has none."""
    appended = {}
    for field in ("blocks", "outside"):
        before, after = earlier.tensors().get(field), later.tensors().get(field)
        if before is not None and after is not None and start == earlier.sizes[1]:
            new_keys = after.shape[-1] - before.shape[-1]
            if new_keys >= 0:
                appended[field] = torch.cat([F.pad(before, (0, new_keys)), after], -2)
    return appended
