"""`dikkat.compare`, and the difference of two recordings."""

import math
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dikkat.inspection.calls import Call
from dikkat.inspection.request import Inspection
from dikkat.inspection.tables import heads_of, make_frame
from dikkat.show.positions import Grid, Times, Token, TokenList
from dikkat.show.views import labels_of

if TYPE_CHECKING:
    from dikkat.inspection.trace import Trace

Calls = Sequence[tuple[Call, Inspection]]
TokensByKind = Mapping[str, TokenList]


def compare(a: "Trace", b: "Trace", *, element: int = 0) -> Any:
    r"""Return a table of the heads, ranked by how much their weights differ between two recordings.

    $$ \text{change} = \operatorname{mean}_i \tfrac12 \sum_j |w_{ij} - w'_{ij}| $$

    where i are the queries and j the keys that are in both texts. The change is the total variation of the weights: 0
    for equal weights, 1 for weights without a common key. Texts of equal length are compared position by position.
    Otherwise, `difflib.SequenceMatcher` aligns equal tokens, and weights of other tokens do not count. Padding is no
    query. Calls are compared in running order, so that modules may have other names.

    Args:
        a: A recording with `weights=True`.
        b: Another one, such as of another prompt, checkpoint or adapter. `a - b` is a trace of the differences, whose
            page has two colours: blue for keys with more weight in `a`, orange for keys with less.
        element: The element of the batch.

    Returns:
        A `pandas.DataFrame`, or a NumPy record array if pandas is not installed: layer, module, head, change; the
        largest change first.

    Raises:
        TypeError: `a` or `b` is not a trace.
        ValueError: A recording has no weights; the calls, heads or batch sizes differ; texts of different lengths have
            no tokens, or are in a batch; or `element` is out of range.

    Source:
        Total variation: Levin and Peres 2017, "Markov Chains and Mixing Times", section 4.1.

    Example:
        >>> import dikkat
        >>> model, traces = dikkat.show.example_model(), []
        >>> for text in ("a rose is a rose is a", "a rose is red and a rose is a"):
        ...     with dikkat.record(model, weights=True) as trace:
        ...         _ = model(text.split())
        ...     trace.tokens = text.split()
        ...     traces.append(trace)
        >>> len(dikkat.compare(*traces)["change"])  # two layers of four heads
        8
    """
    for name, trace in (("a", a), ("b", b)):
        if not hasattr(trace, "set_tokens"):
            raise TypeError(f"{name}: got {type(trace).__name__}; expected a trace of dikkat.record")
    rows = list[tuple[Any, ...]]()
    for call, batch in (a - b).calls():
        changes = head_changes(batch.of_batch(element))
        rows += [(call.layer, call.name, *pair) for pair in zip(heads_of(batch), changes.tolist(), strict=True)]
    order = np.argsort([-row[-1] for row in rows], kind="stable")  # NaN comes last
    columns = zip(("layer", "module", "head", "change"), zip(*rows, strict=True), strict=True)
    return make_frame({name: np.asarray(values)[order] for name, values in columns})


def head_changes(record: Inspection) -> Tensor:
    """Return the mean change (H,) of each head in one element of a difference."""
    assert record.change is not None
    return record.change.nanmean(-1)


def subtract(runs: Sequence[Calls], tokens: Sequence[TokensByKind]) -> list[tuple[Call, Inspection]]:
    """Return the calls of a difference: signed weights (B, H, n, m), and the change (B, H, n) of each query."""
    if len(runs[0]) != len(runs[1]):
        raise ValueError(f"trace - other: got {len(runs[0])} and {len(runs[1])} calls; expected the same layers and "
                         "runs in both")  # fmt: skip
    return [(pair[0][0], _subtract_call(pair, tokens)) for pair in zip(*runs, strict=True)]


def merge_tokens(tokens: TokensByKind, subtracted: TokensByKind, *, aligned: bool) -> dict[str, TokenList]:
    """Return the tokens of a difference: the aligned tokens, or both texts at a position if they are not equal.

    Grids and times remain if both recordings have them at the same positions.

    Raises:
        ValueError: The recordings have other grids or times at the same positions.
    """
    merged = dict[str, TokenList]()
    for kind, labels in tokens.items():
        second = subtracted.get(kind, labels)
        if aligned and len(labels) != len(second):
            pairs = zip((labels, second), _match(_texts_of(labels), _texts_of(second)), strict=True)
            aligned_labels, aligned_second = (tokens.select(positions.tolist()) for tokens, positions in pairs)
            merged[kind] = TokenList(aligned_labels, _common_parts(aligned_labels, aligned_second))
        else:
            layouts = _common_parts(labels, second)
            if second.parts and len(layouts) < len(labels.parts):
                raise ValueError(f"trace - other: got {kind!r} with {labels.parts} and {second.parts}; expected equal "
                                 "rows, columns, orders and times at the same positions")  # fmt: skip
            texts = _texts_of([*second, *labels[len(second) :]])
            merged[kind] = TokenList(
                (
                    token if token.text == text else token._replace(text=f"{token.text} / {text}")
                    for token, text in zip(labels, texts, strict=False)
                ),
                layouts,
            )
    return merged


def _common_parts(tokens: TokenList, subtracted: TokenList) -> dict[int, Grid | Times]:
    """Return the grids and times that the subtracted tokens have at the same positions, on any image."""
    return {first: layout for first, layout in tokens.parts.items()
            if first in subtracted.parts and _shape_of(layout) == _shape_of(subtracted.parts[first])}  # fmt: skip


def _shape_of(layout: Grid | Times) -> tuple[Any, ...]:
    return tuple(layout.values) if isinstance(layout, Times) else (layout.rows, layout.columns, layout.cells())


def _subtract_call(pair: Calls, tokens: Sequence[TokensByKind]) -> Inspection:
    weights, layouts, padding = [], [], []
    for call, record in pair:
        if record.weights is None or record.change is not None:
            problem = "a difference" if record.change is not None else ", ".join(record.tensors())
            raise ValueError(f"trace[{call.name!r}]: got {problem}; expected two recordings with weights=True")
        batch = math.prod(record.weights.shape[:-2]) // max(1, record.sizes[0])
        weights.append(record.weights.reshape(batch, *record.sizes))
        layouts.append(f"layer {call.layer} ({call.kind or 'other'}), batch {batch}, heads {heads_of(record)}")
        padding.append(_find_padding(record, call.kind, weights[-1]))
    if layouts[0] != layouts[1]:
        raise ValueError(f"trace[{pair[0][0].name!r}] - other: got {' and '.join(layouts)}; expected the same")
    for axis in (-2, -1):
        if weights[0].shape[axis] != weights[1].shape[axis]:
            for index, positions in enumerate(_align(pair, axis, tokens)):
                weights[index] = weights[index].index_select(axis, positions)
                padding[index] = padding[index][..., positions] if axis == -2 else padding[index]
    difference, record = weights[0] - weights[1], pair[0][1]
    change = (difference.abs().sum(-1) / 2).masked_fill(padding[0] | padding[1], math.nan)
    return Inspection(
        weights=difference, change=change, heads=record.heads, queries=record.queries, shape=tuple(difference.shape),
        positions=record.positions,
    )  # fmt: skip


def _find_padding(record: Inspection, kind: str, weights: Tensor) -> Tensor:
    """Return a mask (B, 1, n) of the queries that are padding: no query sees the keys at their positions."""
    (first, first_key), (_, count, keys) = record.positions, record.sizes
    positions = torch.arange(count) + first - max(0, first_key)
    if kind == "cross" or first_key < 0 or record.queries is not None or bool((positions >= keys).any()):
        return torch.zeros(len(weights), 1, count, dtype=torch.bool)
    padding = (weights == 0).flatten(1, 2).all(1)[:, None, positions]
    return padding & ~padding.all(-1, keepdim=True)  # a cut layer has only zeros


def _align(pair: Calls, axis: int, tokens: Sequence[TokensByKind]) -> tuple[Tensor, Tensor]:
    """Return the positions of equal tokens in the queries or keys of two calls."""
    texts = []
    for (call, record), labels in zip(pair, tokens, strict=True):
        texts.append(_texts_of(labels_of(labels, call.kind, *record.sizes[1:])[axis]))
        is_part = record.positions[0] or record.positions[1] > 0 or record.queries is not None
        if len(texts[-1]) != record.sizes[axis] or math.prod(record.shape[:-3]) > 1 or is_part:
            counts = " and ".join(str(record.sizes[axis]) for _, record in pair)
            raise ValueError(
                f"trace[{call.name!r}] - other: got {counts} {'queries' if axis == -2 else 'keys'}; expected equal "
                "numbers, or one whole text with tokens in each trace (trace.tokens = [...])"
            )
    return _match(texts[0], texts[1])


def _texts_of(tokens: Sequence[Token]) -> tuple[str, ...]:
    return tuple(token.text for token in tokens)


@lru_cache(maxsize=8)
def _match(text: tuple[str, ...], second: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Return the positions of equal tokens in two texts."""
    blocks = SequenceMatcher(None, text, second, autojunk=False).get_matching_blocks()
    pairs = [(start + k, second_start + k) for start, second_start, size in blocks for k in range(size)]
    if not pairs:
        raise ValueError("trace - other: got texts without a common token; expected at least one")
    positions, second_positions = torch.tensor(pairs).T
    return positions, second_positions
