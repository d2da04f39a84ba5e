"""Tables of a recording: what each head does, and every weight that is known."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dikkat.inspection.heads import Known, scores_of
from dikkat.inspection.request import Inspection
from dikkat.show.views import Token, labels_of

Calls = Iterable[tuple[Any, Inspection]]  # each `Call` with its record


def known_of(seen: Inspection, kind: str) -> Known:
    """Return the known weights of an element's heads, of a call with all weights or the largest of each query."""
    _, count, keys = seen.sizes
    named = seen.tensors()
    weights = named["weights" if "weights" in named else "top_weights"].double()
    places = torch.arange(keys).expand(weights.shape) if "weights" in named else named["top_keys"]
    first, first_key = seen.positions
    queries = (torch.arange(count) if seen.queries is None else seen.queries) + first - max(0, first_key)
    is_self = kind != "cross" and first_key >= 0 and bool((queries < keys).all())
    hidden = torch.zeros(keys, dtype=torch.bool)
    if seen.hidden is not None and seen.queries is None:
        hidden = seen.hidden.all(0)
    return Known(weights, places, queries, keys, is_self, max(0, first_key), hidden)


def keys_of(known: Known, kind: str, tokens: Mapping[str, list[Token]]) -> list[Token]:
    """The tokens that the keys stand for."""
    end = known.first_key + known.key_count
    return labels_of(tokens, kind, end, end)[1]


def scores_table(calls: Calls, element: int, tokens: Mapping[str, list[Token]]) -> Any:
    """A row for each head: its scores, and which is the largest."""
    table: dict[str, list[Any]] = {}
    for call, known, heads in _known(calls, element):
        found = scores_of(known, keys_of(known, call.kind, tokens))
        for place, head in enumerate(heads.tolist()):
            shares = {each: float(shares[place]) for each, shares in found.shares.items()}
            row = {"layer": call.layer, "module": call.name, "kind": call.kind, "head": head,
                   "looks": found.looks[place], **shares, "queries": found.asked[place]}  # fmt: skip
            for column, value in row.items():
                table.setdefault(column, []).append(value)
    return frame_of({name: np.asarray(values) for name, values in table.items()})


def weights_table(calls: Calls, element: int, tokens: Mapping[str, list[Token]]) -> Any:
    """A row for each weight above 0 that is known."""
    parts: dict[str, list[Any]] = {}
    for call, known, heads in _known(calls, element):
        head, query, place = np.nonzero((known.weights > 0).numpy() & (known.keys >= 0).numpy())
        keys = known.keys.numpy()[head, query, place] + known.first_key
        queries = known.queries.numpy()[query] + known.first_key
        columns = {
            "layer": np.full(len(head), call.layer), "module": np.full(len(head), call.name),
            "head": heads.numpy()[head], "query": queries, "key": keys,
            "weight": known.weights.numpy()[head, query, place].astype(np.float32),
        }  # fmt: skip
        end = known.first_key + known.key_count
        labels = labels_of(tokens, call.kind, end if known.is_self else int(known.queries.max()) + 1, end)
        labelled = zip(("query_token", "key_token"), labels, (queries, keys), strict=True)
        for column, known_labels, at in labelled if tokens else ():
            words = np.array([token.text for token in known_labels] + [""])
            columns[column] = words[np.minimum(at, len(known_labels))]
        for column, values in columns.items():
            parts.setdefault(column, []).append(values)
    return frame_of({name: np.concatenate(values) for name, values in parts.items()})


def _known(calls: Calls, element: int) -> Iterator[tuple[Any, Known, Tensor]]:
    """Yield each call with weights, the known weights of one element of the batch, and the numbers of the heads."""
    for call, whole in calls:
        seen = whole.of_batch(element)
        if seen.weights is None and seen.top_weights is None:
            raise ValueError(f"trace[{call.name!r}]: got {', '.join(seen.tensors())}; expected a recording with "
                             "weights=True or top_k")  # fmt: skip
        if 0 in whole.shape:  # a call without a query or a key, as of an empty sequence
            continue
        known = known_of(seen, call.kind)
        yield call, known, torch.arange(len(known.weights)) if seen.heads is None else seen.heads


def frame_of(columns: Mapping[str, Any]) -> Any:
    """The columns as a frame of pandas, where that is installed; else as an array of NumPy with named fields."""
    try:
        from pandas import DataFrame
    except ModuleNotFoundError:
        return np.rec.fromarrays(
            list(columns.values()), dtype=[(name, values.dtype) for name, values in columns.items()]
        )
    return DataFrame(columns)
