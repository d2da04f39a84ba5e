"""Views of a model's attention over its tokens: heads of a layer, all heads, one query and key."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["CELLS", "TOP", "Layer", "Token", "Tokens", "labels_of", "tokens_of", "views_of"]

TOP = 16  # most keys of a query that are told of one by one
CELLS = 64  # cells of a head's map, in each direction
_ENTRIES = 1_350_000  # most weights of a page that are told of one by one, in four bytes each

# Weights are stored as minus their base-2 logarithm in steps, to .02 %; web/src/page/views.ts reads them.
_STEPS = 2048


class Token(NamedTuple):
    """A token as a page shows it."""

    text: str  # what is written
    special: bool = False  # whether the tokenizer put it there, as the beginning of a text
    continues: bool = False  # whether it continues the word of the token before


Labels = Sequence[str | Token]
Tokens = Labels | tuple[Labels, Labels] | Mapping[str, Labels]


class Layer(NamedTuple):
    """The drawn part of a call of attention."""

    name: str  # the module, and which of its calls
    number: int  # which layer of the model; −1 for none
    kind: str  # "self", "encoder", "cross", or "" for what is of no kind
    sizes: tuple[int, int, int]  # heads, queries and keys
    # The largest weights `top_weights` (H, n, k) with `top_keys`; the map `overview` (H, a, b) where it is known; and
    # `heads` and `queries` where such were chosen.
    seen: Mapping[str, Tensor]
    shares: Mapping[str, Tensor]  # what each head does, (H,) by name
    looks: Sequence[tuple[str, int]]  # what each head does most, and of how many queries that is the mean


def tokens_of(given: object) -> dict[str, list[Token]]:
    """Labels of a text ("self"), and of a source beside it ("encoder"): a list, a pair (source, target), or by name."""
    expected = "expected a list of strings, or (source, target), two lists"
    if isinstance(given, Mapping):
        by_kind = dict(given)
    elif (
        isinstance(given, tuple)
        and not isinstance(given, Token)
        and len(given) == 2
        and not all(isinstance(each, str | Token) for each in given)
    ):
        by_kind = {"self": given[1], "encoder": given[0]}
    else:
        by_kind = {"self": given}
    if by_kind.keys() - {"self", "encoder"}:
        raise TypeError(f"tokens: got {', '.join(map(repr, by_kind))}; expected 'self', and 'encoder' for a source")
    found = {}
    for kind, labels in by_kind.items():
        if isinstance(labels, str | bytes | Token) or not isinstance(labels, Sequence):
            raise TypeError(f"tokens: got {type(labels).__name__}; {expected}")
        for index, each in enumerate(labels):
            if not isinstance(each, str) and not (isinstance(each, Token) and isinstance(each.text, str)):
                raise TypeError(f"tokens[{index}]: got {type(each).__name__}; expected str, or dikkat.inspection.Token")
        found[kind] = [each if isinstance(each, Token) else Token(each) for each in labels]
    return found


def views_of(
    layers: Sequence[Layer], tokens: Mapping[str, list[Token]], element: int | None = None
) -> list[dict[str, Any]]:
    """The views, as `web/src/page/views.ts` reads them, one of each kind of attention and size, of a batch element."""
    groups: dict[Any, list[Layer]] = {}
    for each in layers:
        chosen = each.seen.get("queries")
        groups.setdefault(
            (each.kind, *each.sizes[1:], chosen if chosen is None else tuple(chosen.tolist())), []
        ).append(each)
    rows = sum(each.seen["top_weights"][..., 0].numel() for each in layers)
    most = max(1, _ENTRIES // max(1, rows))
    return [
        {
            "kind": kind,
            "element": element,
            "title": "" if kind and alone else calls[0].name,
            "queries": _named(known[0], range(queries) if chosen is None else chosen),
            "keys": _named(known[1], range(keys)),
            "layers": [_layer(one, most) for one in calls],
        }
        for (kind, queries, keys, chosen), calls in groups.items()
        for alone in [sum(other[0] == kind for other in groups) == 1]
        for known in [labels_of(tokens, kind, keys if chosen is not None and kind != "cross" else queries, keys)]
    ]


# Whose tokens the queries and the keys of each kind are.
_LABELLED = {"self": ("self", "self"), "encoder": ("encoder", "encoder"), "cross": ("self", "encoder"),
             "": ("self", "self")}  # fmt: skip


def labels_of(tokens: Mapping[str, list[Token]], kind: str, queries: int, keys: int) -> tuple[list[Token], list[Token]]:
    """The tokens of the queries and of the keys of a kind of attention, of the lengths that it has."""
    found = []
    for owner, count in zip(_LABELLED[kind], (queries, keys), strict=True):
        known = tokens.get(owner, [])
        fit = next((each for each in tokens.values() if len(each) == count), known)
        found.append(known if len(known) == count else fit)
    return found[0], found[1]


def _named(known: list[Token], places: Sequence[int]) -> list[Token]:
    """The labels of an axis; numbers where there are too few, as in what a model wrote itself."""
    return [known[place] if place < len(known) else Token(str(place)) for place in places]


def _layer(layer: Layer, most: int) -> dict[str, Any]:
    """One layer's numbers: of its heads the largest weights, with their keys, and the maps."""
    seen = layer.seen
    most = min(most, max(1, int((seen["top_keys"] >= 0).sum(-1).max())))
    weights, keys = (seen[what][..., :most].numpy() for what in ("top_weights", "top_keys"))
    if keys.max(initial=0) >= 2**16:
        raise ValueError(f"trace[{layer.name!r}]: got {keys.max() + 1} keys; expected at most {2**16}")
    heads = seen["heads"].tolist() if "heads" in seen else list(range(len(weights)))
    overview = seen["overview"].numpy() if "overview" in seen else _map_of(seen, layer.sizes[2])
    return {
        "name": "" if layer.name == f"layer {layer.number}" else layer.name,  # of weights from elsewhere
        "number": layer.number,
        "heads": heads,
        "shares": {
            name: [None if share != share else round(share, 3) for share in each.tolist()]
            for name, each in layer.shares.items()
        },
        "looks": [kind for kind, _ in layer.looks],
        "asked": [queries for _, queries in layer.looks],
        "top": weights.shape[-1],
        "keys": _packed(np.maximum(keys, 0).astype("<u2")),
        "weights": _packed(_codes(weights)),
        "cells": list(overview.shape[-2:]),
        "whole": "overview" in seen,
        "map": _packed(_codes(overview)),
    }


def _map_of(seen: Mapping[str, Tensor], count: int) -> NDArray[Any]:
    """The map (H, a, b) of the largest weights alone: of a cell the largest of them."""
    weights, keys = seen["top_weights"].numpy(), seen["top_keys"].numpy()
    (heads, queries, _), cells = weights.shape, (min(CELLS, weights.shape[1]), min(CELLS, count))
    found = np.zeros((heads, *cells), weights.dtype)
    head, query, place = np.nonzero(keys >= 0)
    columns = keys[head, query, place] * cells[1] // count
    np.maximum.at(found, (head, query * cells[0] // queries, columns), weights[head, query, place])
    return found


def _codes(weights: NDArray[Any]) -> NDArray[np.uint16]:
    """Minus the base-2 logarithms in steps, rounded; the largest number for smaller weights and 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.rint(-np.log2(weights.astype(np.float64)) * _STEPS)
    largest = np.iinfo(np.uint16).max
    codes: NDArray[np.uint16] = np.nan_to_num(logs, nan=largest, posinf=largest).clip(0, largest).astype(np.uint16)
    return codes


def _packed(numbers: NDArray[Any]) -> str:
    return base64.b64encode(numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()).decode()
