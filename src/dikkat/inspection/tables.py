"""Tables of a recording: scores of each head, and all known weights."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dikkat.inspection.heads import GRID_PATTERNS, PATTERNS, KnownWeights, compute_scores, spread_weights
from dikkat.inspection.request import Inspection
from dikkat.show.blocks import Layouts, fitting_layouts, positions_outside
from dikkat.show.positions import Grid, Token, TokenList
from dikkat.show.views import axis_labels, labels_of

Calls = Iterable[tuple[Any, Inspection]]  # `Call` and record
_COLUMNS = ("layer", "module", "kind", "head", "looks", *GRID_PATTERNS, *PATTERNS, "information", "queries")


def heads_of(record: Inspection) -> list[int]:
    """Return the numbers of the recorded heads."""
    return list(range(record.sizes[0])) if record.heads is None else record.heads.tolist()


def known_weights(record: Inspection, kind: str) -> KnownWeights:
    """Return the known weights of one element, from a record with all weights or the largest of each query."""
    _, count, keys = record.sizes
    tensors = record.tensors()
    weights = tensors["weights" if "weights" in tensors else "top_weights"].double()
    weight_keys = torch.arange(keys).expand(weights.shape) if "weights" in tensors else tensors["top_keys"]
    first, first_key = record.positions
    queries = (torch.arange(count) if record.queries is None else record.queries) + first - max(0, first_key)
    is_self = kind != "cross" and first_key >= 0 and bool((queries < keys).all())
    hidden = torch.zeros(keys, dtype=torch.bool)
    if record.hidden is not None and record.queries is None:
        hidden = record.hidden.all(0)
    return KnownWeights(weights, weight_keys, queries, keys, is_self, max(0, first_key), hidden)


def layouts_of(
    kind: str, record: Inspection, tokens: Mapping[str, TokenList], *, is_longer: bool = False
) -> tuple[Layouts, Layouts]:
    """Return the grids and times among the queries and keys of a call; `is_longer`: positions follow the tokens."""
    (first, first_key), (_, queries, keys) = record.positions, record.sizes
    axes = labels_of(tokens, kind, first + queries, max(0, first_key) + keys)
    is_grouped = record.queries is None and not first
    query_layouts = fitting_layouts(axes[0], queries, is_longer=is_longer) if is_grouped else {}
    return query_layouts, fitting_layouts(axes[1], keys, is_longer=is_longer or first > 0) if first_key <= 0 else {}


def key_tokens(known: KnownWeights, kind: str, tokens: Mapping[str, TokenList]) -> list[Token]:
    """Return the tokens of the keys."""
    end = known.first_key + known.key_count
    return labels_of(tokens, kind, end, end)[1]


def scores_columns(
    calls: Calls, element: int, tokens: Mapping[str, TokenList], patterns: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the columns of a table with a row for each head: its scores and its main pattern."""
    table: dict[str, list[Any]] = {}
    masks, sizes, fitted = _check_masks(patterns or {}), (0, 0), set[str]()
    calls = [*calls]
    layouts = (layout for call, record in calls for layout in layouts_of(call.kind, record, tokens)[1].values())
    has_grids = any(isinstance(layout, Grid) for layout in layouts)
    for call, record, known in _known_calls(calls, element):
        sizes = len(known.queries), known.key_count
        fitting = {name: mask for name, mask in masks.items() if mask.shape in (sizes, sizes[1:])}
        fitted |= fitting.keys()
        key_layouts = layouts_of(call.kind, record, tokens)[1]
        scores = compute_scores(known, key_tokens(known, call.kind, tokens), key_layouts, fitting)
        unknown = dict.fromkeys(GRID_PATTERNS if has_grids else (), np.nan)
        for index, head in enumerate(heads_of(record)):
            shares = unknown | {pattern: float(shares[index]) for pattern, shares in scores.shares.items()}
            row = {"layer": call.layer, "module": call.name, "kind": call.kind, "head": head,
                   "looks": scores.patterns[index], **dict.fromkeys(masks, np.nan), **shares,
                   "queries": scores.query_counts[index]}  # fmt: skip
            for column, value in row.items():
                table.setdefault(column, []).append(value)
    for name in masks.keys() - fitted:
        raise ValueError(f"patterns: got {name!r} of shape {tuple(masks[name].shape)}; expected (n, m) or (m,), the "
                         f"queries and keys of a call, such as {sizes}")  # fmt: skip
    return {name: np.asarray(values) for name, values in table.items()}


def _check_masks(patterns: Mapping[str, Any]) -> dict[str, Tensor]:
    if not isinstance(patterns, Mapping):
        raise TypeError(f"patterns: got {type(patterns).__name__}; expected boolean masks by name")
    masks = {name: torch.as_tensor(mask, device="cpu") for name, mask in patterns.items()}
    for name, mask in masks.items():
        if not isinstance(name, str) or name in _COLUMNS:
            raise ValueError(f"patterns: got the name {name!r}; expected strings except {', '.join(_COLUMNS)}")
        if mask.dtype != torch.bool:
            raise TypeError(f"patterns: got {mask.dtype} for {name!r}; expected a mask of booleans")
    return masks


def effects_by_head(table: Any, calls: Calls) -> tuple[str, dict[tuple[int, str, int], float]]:
    """Return "effect" or "estimate", and its value for each layer, module and head in a table of `dikkat.effects`."""
    names = "layer", "module", "head", "effect", "estimate"
    try:
        layers, modules, heads, effects, estimates = (np.asarray(table[name]).tolist() for name in names)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise ValueError(f"effects: got {type(table).__name__} without columns {', '.join(names)}; expected the table "
                         "of dikkat.effects") from error  # fmt: skip
    is_exact = any(effect == effect for effect in effects)
    rows = list(zip(layers, modules, heads, strict=True))
    recorded = {(call.layer, call.name, head) for call, record in calls for head in heads_of(record)}
    for row, count in Counter(rows).items():
        if row not in recorded or count > 1:
            problem = "twice" if row in recorded else "which is not in the trace"
            raise ValueError(f"effects: got head {row[2]} of layer {row[0]} ({row[1]!r}) {problem}; expected each head "
                             "of the trace once, at most")  # fmt: skip
    return "effect" if is_exact else "estimate", dict(zip(rows, effects if is_exact else estimates, strict=True))


def weights_table(calls: Calls, element: int, tokens: Mapping[str, TokenList]) -> Any:
    """Return a table with a row for each known weight except 0."""
    chunks: dict[str, list[Any]] = {}
    for call, record, known in _known_calls(calls, element):
        head, query, rank = np.nonzero((known.weights != 0).numpy() & (known.keys >= 0).numpy())
        keys = known.keys.numpy()[head, query, rank] + known.first_key
        queries = known.queries.numpy()[query] + known.first_key
        columns = {
            "layer": np.full(len(head), call.layer), "module": np.full(len(head), call.name),
            "head": np.array(heads_of(record))[head], "query": queries, "key": keys,
            "weight": known.weights.numpy()[head, query, rank].astype(np.float32),
        }  # fmt: skip
        labels = _labels_of_axes(known, call.kind, tokens)
        labelled = zip(("query_token", "key_token"), labels, (queries, keys), strict=True)
        for column, axis_tokens, indices in labelled if tokens else ():
            words = np.array([token.text for token in axis_tokens] + [""])
            columns[column] = words[np.minimum(indices, len(axis_tokens))]
        for column, values in columns.items():
            chunks.setdefault(column, []).append(values)
    return make_frame({name: np.concatenate(values) for name, values in chunks.items()})


def head_weights(
    call: Any, record: Inspection, index: int, element: int, tokens: Mapping[str, TokenList]
) -> tuple[NDArray[np.float64], list[str], list[str]]:
    """Return the known weights (n, m) of the head with this index, 0 for others, and the labels of both axes."""
    known = next((known for *_, known in _known_calls([(call, record)], element)), None)
    if known is None:
        raise ValueError(f"trace[{call.name!r}]: got an empty sequence; expected at least one query and key")
    weights = spread_weights(known.weights[index], known.keys[index], known.key_count)
    axes = zip(_labels_of_axes(known, call.kind, tokens), (known.queries, torch.arange(known.key_count)), strict=True)
    labels = [axis_labels(axis_tokens, (known.first_key + positions).tolist()) for axis_tokens, positions in axes]
    return weights.numpy(), [token.text for token in labels[0]], [token.text for token in labels[1]]


def query_weights(
    call: Any, record: Inspection, index: int, element: int, layouts: tuple[Layouts, Layouts], query: int | None
) -> tuple[NDArray[np.float64], int | None]:
    """Return the weights (m,) of a query, or the mean over all queries without padding, and the query's number.

    Raises:
        IndexError: The query was not recorded.
        ValueError: Only the largest weights were recorded.
    """
    batch_record = record.of_batch(element)
    known = known_weights(batch_record, call.kind)
    positions = (known.queries + known.first_key).tolist()
    if query is not None and query not in positions:
        is_range = positions == [*range(positions[0], positions[0] + len(positions))]
        expected = f"{positions[0]} to {positions[-1]}" if is_range else f"one of {', '.join(map(str, positions))}"
        raise IndexError(f"query: got {query}; expected {expected}")
    number = None if query is None else positions.index(query)
    weights = spread_weights(known.weights[index], known.keys[index], known.key_count)
    if batch_record.weights is None:
        exact, blocks = torch.zeros(len(positions), dtype=torch.bool), batch_record.blocks
        if blocks is not None and blocks.shape[-2:] == weights.shape:  # a block for each weight
            weights = blocks[index][batch_record.query_groups][:, batch_record.key_groups].double()
            exact = ~exact
        elif batch_record.outside is not None and batch_record.queries is None:
            outside = positions_outside(layouts[0], len(positions))
            weights[outside], exact[outside] = batch_record.outside[index].double(), True
        exact |= weights.sum(-1) > 0.999
        if not exact.all() if number is None else not exact[number]:
            raise ValueError(f"trace[{call.name!r}]: got only the largest weights; expected a recording with "
                             "weights=True")  # fmt: skip
    if number is not None:
        return weights[number].numpy(), number
    is_real = torch.ones(len(positions), dtype=torch.bool)
    if known.is_self:
        is_real = ~known.hidden[known.queries]
    return weights[is_real].mean(0).numpy(), None


def _labels_of_axes(known: KnownWeights, kind: str, tokens: Mapping[str, TokenList]) -> tuple[list[Token], TokenList]:
    end = known.first_key + known.key_count
    return labels_of(tokens, kind, end if known.is_self else int(known.queries.max()) + 1, end)


def _known_calls(calls: Calls, element: int) -> Iterator[tuple[Any, Inspection, KnownWeights]]:
    """Yield each call, and the record and the known weights of one batch element."""
    for call, batch in calls:
        record = batch.of_batch(element)
        if record.weights is None and record.top_weights is None:
            raise ValueError(f"trace[{call.name!r}]: got {', '.join(record.tensors())}; expected a recording with "
                             "weights=True or top_k")  # fmt: skip
        if 0 in batch.shape:  # an empty sequence
            continue
        yield call, record, known_weights(record, call.kind)


def make_frame(columns: Mapping[str, Any]) -> Any:
    """Return a pandas data frame, or a NumPy record array if pandas is not installed."""
    try:
        from pandas import DataFrame
    except ModuleNotFoundError:
        return np.rec.fromarrays(
            list(columns.values()), dtype=[(name, values.dtype) for name, values in columns.items()]
        )
    return DataFrame(columns)
