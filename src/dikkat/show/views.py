"""Views of a model's attention over its tokens: heads of a layer, all heads, one query and key."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["CELLS", "TOP", "Token", "views_of"]

TOP = 16  # most keys of a query that are told of one by one
CELLS = 64  # cells of a head's map, in each direction
_ENTRIES = 1_800_000  # most weights of a page that are told of one by one, in three bytes each

# Weights are stored as whole numbers, minus their base-2 logarithm in so many steps; web/src/page/views.ts reads them.
_COARSE, _FINE = 12, 2048

Layers = Sequence[tuple[str, Mapping[str, Tensor]]]


class Token(NamedTuple):
    """A token as a page shows it.

    Attributes:
        text: What is written.
        special: Whether the tokenizer put it there, as the beginning of a text.
        continues: Whether it continues the word of the token before.
    """

    text: str
    special: bool = False
    continues: bool = False


def views_of(seen: Mapping[str, Layers], tokens: Mapping[str, list[Token]]) -> list[dict[str, Any]]:
    """The views, as `web/src/page/views.ts` reads them: one of each kind of attention.

    Args:
        seen: By kind ("self", "encoder", "cross") each layer's name, the largest weights `top_weights` (H, n, k) with
            `top_keys`, the map `overview` (H, a, b), and `heads` and `queries` where such were chosen.
        tokens: What queries and keys are, of "self" and "encoder".
    """
    rows = sum(one["top_weights"][..., 0].numel() for calls in seen.values() for _, one in calls)
    most = max(1, _ENTRIES // max(1, rows))
    return [
        {
            "kind": kind,
            "queries": _named(tokens, "encoder" if kind == "encoder" else "self", calls[0][1], "queries"),
            "keys": _named(tokens, "self" if kind == "self" else "encoder", calls[0][1], "keys"),
            "layers": [_layer(name, one, most) for name, one in calls],
        }
        for kind, calls in seen.items()
    ]


def _named(tokens: Mapping[str, list[Token]], kind: str, seen: Mapping[str, Tensor], axis: str) -> list[Token]:
    """The labels of an axis; numbers where there are too few, as in what a model wrote itself."""
    known, chosen = tokens.get(kind, []), seen.get("queries") if axis == "queries" else None
    count = seen["top_keys"].shape[-2] if axis == "queries" else int(seen["top_keys"].max()) + 1
    places = list(range(max(count, 0 if axis == "queries" else len(known)))) if chosen is None else chosen.tolist()
    return [known[place] if place < len(known) else Token(str(place)) for place in places]


def _layer(name: str, seen: Mapping[str, Tensor], most: int) -> dict[str, Any]:
    """One layer's numbers: of its heads the largest weights, with their keys, and the maps."""
    most = min(most, max(1, int((seen["top_keys"] >= 0).sum(-1).max())))
    weights, keys = (seen[what][..., :most].numpy() for what in ("top_weights", "top_keys"))
    if keys.max(initial=0) >= 2**16:
        raise ValueError(f"trace[{name!r}]: got {keys.max() + 1} keys; expected at most {2**16}")
    heads = seen["heads"].tolist() if "heads" in seen else list(range(len(weights)))
    return {
        "name": name or "model",
        "heads": heads,
        "top": weights.shape[-1],
        "keys": _packed(np.maximum(keys, 0).astype("<u2")),
        "weights": _packed(_steps(weights, np.uint8, _COARSE)),
        "cells": list(seen["overview"].shape[-2:]),
        "map": _packed(_steps(seen["overview"].numpy(), np.uint16, _FINE)),
    }


def _steps(weights: NDArray[Any], kind: type, steps: int) -> NDArray[Any]:
    """Minus the base-2 logarithms in so many steps, rounded; the largest number for what is smaller still."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.rint(-np.log2(weights.astype(np.float64)) * steps)
    most = np.iinfo(kind).max
    found: NDArray[Any] = np.nan_to_num(logs, nan=most, posinf=most).clip(0, most).astype(kind)
    return found


def _packed(numbers: NDArray[Any]) -> str:
    """Numbers in base64, little-endian."""
    return base64.b64encode(numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()).decode()
