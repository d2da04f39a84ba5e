"""Tables of a recording: what each head does, and every weight that is known."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from dikkat.inspection.heads import KINDS, Known, scores_of
from dikkat.inspection.request import Inspection
from dikkat.show.views import Token, labels_of

# The layer, the module, the kind of attention, whether the model ran before, and one element of what was recorded.
Rows = Iterable[tuple[int, str, str, bool, Inspection]]


def known_of(seen: Inspection, kind: str, again: bool) -> Known | None:
    """The weights that are known of an element's heads; None where neither all nor the largest were recorded."""
    _, count, keys = seen.sizes
    if seen.weights is not None:
        weights, places = seen.weights.double(), torch.arange(keys).expand(seen.weights.shape)
    elif seen.top_weights is not None and seen.top_keys is not None:
        weights, places = seen.top_weights.double(), seen.top_keys
    else:
        return None
    is_self = kind != "cross" and (count == keys or (seen.queries is not None and kind != "") or again)
    queries = seen.queries if seen.queries is not None else torch.arange(count) + (keys - count if is_self else 0)
    return Known(weights, places, queries, keys, is_self and bool((queries < keys).all()))


def scores_table(rows: Rows, tokens: Mapping[str, list[Token]]) -> Any:
    """A row for each head: its shares, and which is the largest."""
    table: dict[str, list[Any]] = {name: [] for name in ("layer", "module", "kind", "head", "looks")}
    table |= {name: [] for name in (*KINDS, "information")}
    for layer, name, kind, again, seen in rows:
        known = known_of(seen, kind, again)
        if known is None:
            raise ValueError(
                f"trace[{name!r}]: got {', '.join(seen.tensors())}; expected a recording with weights=True or top_k"
            )
        found = scores_of(known, keys_of(known, kind, tokens))
        heads = range(len(known.weights)) if seen.heads is None else seen.heads.tolist()
        for place, head in enumerate(heads):
            shares = {each: float(found[each][place]) for each in (*KINDS, "information")}
            looks = most_of(shares)
            for column, value in {
                "layer": layer,
                "module": name,
                "kind": kind,
                "head": head,
                "looks": looks,
                **shares,
            }.items():
                table[column].append(value)
    return frame_of({name: np.asarray(values) for name, values in table.items()})


def keys_of(known: Known, kind: str, tokens: Mapping[str, list[Token]]) -> list[Token]:
    """What the keys are."""
    return labels_of(tokens, kind, known.key_count, known.key_count)[1]


def most_of(shares: Mapping[str, float]) -> str:
    """The largest share of a head, the first of equal ones; "" where there is none."""
    there = [name for name in KINDS if shares[name] == shares[name]]
    return max(there, key=lambda name: shares[name], default="")


def weights_table(rows: Rows, tokens: Mapping[str, list[Token]]) -> Any:
    """A row for each weight above 0 that is known."""
    parts: dict[str, list[Any]] = {name: [] for name in ("layer", "module", "head", "query", "key", "weight")}
    words: dict[str, list[Any]] = {"query_token": [], "key_token": []}
    for layer, name, kind, again, seen in rows:
        known = known_of(seen, kind, again)
        if known is None:
            raise ValueError(
                f"trace[{name!r}]: got {', '.join(seen.tensors())}; expected a recording with weights=True or top_k"
            )
        head, query, place = np.nonzero((known.weights > 0).numpy() & (known.keys >= 0).numpy())
        keys, numbers = known.keys.numpy()[head, query, place], known.queries.numpy()[query]
        heads = np.arange(len(known.weights)) if seen.heads is None else seen.heads.numpy()
        columns = {
            "layer": np.full(len(head), layer), "module": np.full(len(head), name), "head": heads[head],
            "query": numbers, "key": keys, "weight": known.weights.numpy()[head, query, place].astype(np.float32),
        }  # fmt: skip
        for column, values in columns.items():
            parts[column].append(values)
        rows_of = known.key_count if known.is_self else len(known.queries)
        labelled = zip(words, labels_of(tokens, kind, rows_of, known.key_count), (numbers, keys), strict=True)
        for column, labels, at in labelled:
            known_words = np.array([token.text for token in labels] + [""])
            words[column].append(known_words[np.minimum(at, len(labels))])
    table = parts | (words if tokens else {})
    return frame_of({name: np.concatenate(values) for name, values in table.items()})


def frame_of(columns: Mapping[str, Any]) -> Any:
    """The columns as a frame of pandas, where that is installed; else as an array of NumPy with named fields."""
    try:
        from pandas import DataFrame
    except ModuleNotFoundError:
        return np.rec.fromarrays(
            list(columns.values()), dtype=[(name, values.dtype) for name, values in columns.items()]
        )
    return DataFrame(columns)
