"""Records for the pages of a trace: largest weights by position in the text, over all runs that continue it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dikkat.inspection.calls import Call
from dikkat.inspection.request import Inspection, Request
from dikkat.inspection.single_call import summarise_weights
from dikkat.show.views import CELLS, TOP


def drawable(record: Inspection) -> Inspection | None:
    """Return the largest weights (H, n, k), their keys and the map (H, a, b) of a call; None if not recorded."""
    summary = record
    if record.weights is not None:
        weights, request = record.weights.float(), Request(top_k=TOP, overview=CELLS, pool="max")
        summary = summarise_weights(weights[..., 0], weights.abs(), request)
        if record.change is not None:
            summary = _add_signs(summary, weights, request)
    if summary.top_weights is None or summary.top_keys is None:
        return None
    return Inspection(
        top_weights=summary.top_weights, top_keys=summary.top_keys, overview=summary.overview, heads=record.heads,
        queries=record.queries, shape=record.shape, positions=record.positions, hidden=record.hidden,
        change=record.change,
    )  # fmt: skip


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
    """Return the first `start` queries of a text with the queries of a later run."""
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
        **tops, hidden=hidden, change=change, heads=later.heads, shape=(1, heads, start + count, keys),
        positions=(earlier.positions[0], min(first_key, 0)),
    )  # fmt: skip
