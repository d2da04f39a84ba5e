"""Tables of a recording: scores of each head, and all known weights."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dikkat.inspection.heads import KnownWeights, compute_scores
from dikkat.inspection.request import Inspection
from dikkat.show.views import Token, labels_of

Calls = Iterable[tuple[Any, Inspection]]  # `Call` and record


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


def key_tokens(known: KnownWeights, kind: str, tokens: Mapping[str, list[Token]]) -> list[Token]:
    """Return the tokens of the keys."""
    end = known.first_key + known.key_count
    return labels_of(tokens, kind, end, end)[1]


def scores_columns(calls: Calls, element: int, tokens: Mapping[str, list[Token]]) -> dict[str, Any]:
    """Return the columns of a table with a row for each head: its scores and its main pattern."""
    table: dict[str, list[Any]] = {}
    for call, known, heads in _known_calls(calls, element):
        scores = compute_scores(known, key_tokens(known, call.kind, tokens))
        for index, head in enumerate(heads.tolist()):
            shares = {pattern: float(shares[index]) for pattern, shares in scores.shares.items()}
            row = {"layer": call.layer, "module": call.name, "kind": call.kind, "head": head,
                   "looks": scores.patterns[index], **shares, "queries": scores.query_counts[index]}  # fmt: skip
            for column, value in row.items():
                table.setdefault(column, []).append(value)
    return {name: np.asarray(values) for name, values in table.items()}


def weights_table(calls: Calls, element: int, tokens: Mapping[str, list[Token]]) -> Any:
    """Return a table with a row for each known weight above 0."""
    chunks: dict[str, list[Any]] = {}
    for call, known, heads in _known_calls(calls, element):
        head, query, rank = np.nonzero((known.weights > 0).numpy() & (known.keys >= 0).numpy())
        keys = known.keys.numpy()[head, query, rank] + known.first_key
        queries = known.queries.numpy()[query] + known.first_key
        columns = {
            "layer": np.full(len(head), call.layer), "module": np.full(len(head), call.name),
            "head": heads.numpy()[head], "query": queries, "key": keys,
            "weight": known.weights.numpy()[head, query, rank].astype(np.float32),
        }  # fmt: skip
        end = known.first_key + known.key_count
        labels = labels_of(tokens, call.kind, end if known.is_self else int(known.queries.max()) + 1, end)
        labelled = zip(("query_token", "key_token"), labels, (queries, keys), strict=True)
        for column, axis_tokens, indices in labelled if tokens else ():
            words = np.array([token.text for token in axis_tokens] + [""])
            columns[column] = words[np.minimum(indices, len(axis_tokens))]
        for column, values in columns.items():
            chunks.setdefault(column, []).append(values)
    return make_frame({name: np.concatenate(values) for name, values in chunks.items()})


def _known_calls(calls: Calls, element: int) -> Iterator[tuple[Any, KnownWeights, Tensor]]:
    """Yield each call, the known weights of one batch element, and the numbers of the heads."""
    for call, batch in calls:
        record = batch.of_batch(element)
        if record.weights is None and record.top_weights is None:
            raise ValueError(f"trace[{call.name!r}]: got {', '.join(record.tensors())}; expected a recording with "
                             "weights=True or top_k")  # fmt: skip
        if 0 in batch.shape:  # an empty sequence
            continue
        known = known_weights(record, call.kind)
        yield call, known, torch.arange(len(known.weights)) if record.heads is None else record.heads


def make_frame(columns: Mapping[str, Any]) -> Any:
    """Return a pandas data frame, or a NumPy record array if pandas is not installed."""
    try:
        from pandas import DataFrame
    except ModuleNotFoundError:
        return np.rec.fromarrays(
            list(columns.values()), dtype=[(name, values.dtype) for name, values in columns.items()]
        )
    return DataFrame(columns)
