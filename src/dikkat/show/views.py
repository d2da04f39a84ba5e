"""Data of a page's views of attention: the heads of a layer, all heads, one query and key."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dikkat.show.positions import Token

__all__ = ["CELLS", "TOP", "Layer", "labels_of", "views_of"]

TOP = 16  # maximum keys stored of a query
CELLS = 64  # cells of a head's map in each direction
_ENTRIES = 1_350_000  # maximum weights stored in a page, in four bytes each

# Weights are stored as minus their base-2 logarithm in steps, to 0.02 %. web/src/page/views.ts reads them.
_STEPS = 2048


class Layer(NamedTuple):
    """The drawn part of a call of attention."""

    name: str  # the module and the index of its call
    number: int  # the layer of the model; −1 for none
    kind: str  # "self", "encoder", "cross" or ""
    sizes: tuple[int, int, int]  # heads, queries and keys
    # The largest weights `top_weights` (H, n, k) with `top_keys`, and if known the map `overview` (H, a, b) and the
    # selected `heads` and `queries`.
    tensors: Mapping[str, Tensor]
    shares: Mapping[str, Tensor]  # the (H,) shares of each pattern
    patterns: Sequence[tuple[str, int]]  # the main pattern of each head, and how many queries its share is the mean of
    lead: str = ""  # the share that ranks the heads: "effect", "estimate", or "change" of signed weights


def views_of(
    layers: Sequence[Layer], tokens: Mapping[str, list[Token]], element: int | None = None
) -> list[dict[str, Any]]:
    """Return a view for each kind and size of attention, in the format of `web/src/page/views.ts`."""
    groups: dict[Any, list[Layer]] = {}
    for layer in layers:
        chosen = layer.tensors.get("queries")
        groups.setdefault(
            (layer.kind, *layer.sizes[1:], chosen if chosen is None else tuple(chosen.tolist())), []
        ).append(layer)
    rows = sum(layer.tensors["top_weights"][..., 0].numel() for layer in layers)
    max_keys = max(1, _ENTRIES // max(1, rows))
    return [
        {
            "kind": kind,
            "element": element,
            "title": "" if kind and is_only_view else calls[0].name,
            "lead": calls[0].lead,
            "queries": axis_labels(axis_tokens[0], range(queries) if chosen is None else chosen),
            "keys": axis_labels(axis_tokens[1], range(keys)),
            "layers": [_layer_data(call, max_keys) for call in calls],
        }
        for (kind, queries, keys, chosen), calls in groups.items()
        for is_only_view in [sum(key[0] == kind for key in groups) == 1]
        for axis_tokens in [labels_of(tokens, kind, keys if chosen is not None and kind != "cross" else queries, keys)]
    ]


# The kinds of the tokens of queries and keys, by kind of attention.
_LABELLED = {"self": ("self", "self"), "encoder": ("encoder", "encoder"), "cross": ("self", "encoder"),
             "": ("self", "self")}  # fmt: skip


def labels_of(tokens: Mapping[str, list[Token]], kind: str, queries: int, keys: int) -> tuple[list[Token], list[Token]]:
    """Return the tokens of queries and keys for a kind of attention, with matching lengths if possible."""
    axis_tokens = []
    for owner, count in zip(_LABELLED[kind], (queries, keys), strict=True):
        labels_of_owner = tokens.get(owner, [])
        fitting = next((labels for labels in tokens.values() if len(labels) == count), labels_of_owner)
        axis_tokens.append(labels_of_owner if len(labels_of_owner) == count else fitting)
    return axis_tokens[0], axis_tokens[1]


def axis_labels(tokens: list[Token], positions: Sequence[int]) -> list[Token]:
    """Return the labels of an axis, with numbers for missing tokens such as generated ones."""
    return [tokens[position] if position < len(tokens) else Token(str(position)) for position in positions]


def _layer_data(layer: Layer, max_keys: int) -> dict[str, Any]:
    """Return the data of a layer: the largest weights of its heads, their keys, and the maps."""
    tensors = layer.tensors
    max_keys = min(max_keys, max(1, int((tensors["top_keys"] >= 0).sum(-1).max())))
    weights, keys = (tensors[name][..., :max_keys].numpy() for name in ("top_weights", "top_keys"))
    if keys.max(initial=0) >= 2**16:
        raise ValueError(f"trace[{layer.name!r}]: got {keys.max() + 1} keys; expected at most {2**16}")
    heads = tensors["heads"].tolist() if "heads" in tensors else list(range(len(weights)))
    overview = tensors["overview"].numpy() if "overview" in tensors else _map_of_largest(tensors, layer.sizes[2])
    signed = layer.lead == "change"
    return {
        "name": "" if layer.name == f"layer {layer.number}" else layer.name,  # from `dikkat.show.weights`
        "number": layer.number,
        "heads": heads,
        "shares": {
            name: [None if share != share else float(f"{share:.4g}") for share in values.tolist()]
            for name, values in layer.shares.items()
        },
        "looks": [pattern for pattern, _ in layer.patterns],
        "asked": [queries for _, queries in layer.patterns],
        "top": weights.shape[-1],
        "keys": _pack(np.maximum(keys, 0).astype("<u2")),
        "weights": _pack(_encode_weights(weights, signed)),
        "cells": list(overview.shape[-2:]),
        "whole": "overview" in tensors,
        "map": _pack(_encode_weights(overview, signed)),
    }


def _map_of_largest(tensors: Mapping[str, Tensor], count: int) -> NDArray[Any]:
    """Return a map (H, a, b) of only the largest weights: in each cell, the weight with the largest absolute value."""
    weights, keys = tensors["top_weights"].numpy(), tensors["top_keys"].numpy()
    (heads, queries, _), cells = weights.shape, (min(CELLS, weights.shape[1]), min(CELLS, count))
    cells_map = np.zeros((heads, *cells), weights.dtype)
    head, query, rank = np.nonzero(keys >= 0)
    columns = keys[head, query, rank] * cells[1] // count
    values = weights[head, query, rank]
    order = np.argsort(np.abs(values), kind="stable")  # the last write to a cell remains
    index = (head, query * cells[0] // queries, columns)
    cells_map[tuple(numbers[order] for numbers in index)] = values[order]
    return cells_map


def _encode_weights(weights: NDArray[Any], signed: bool) -> NDArray[np.uint16]:
    """Return minus the base-2 logarithms of weights in steps, and the largest uint16 for tiny weights and 0.

    In signed weights, the first bit of a code is 1 for negative weights.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.rint(-np.log2(np.abs(weights.astype(np.float64))) * _STEPS)
    largest, sign = np.iinfo(np.uint16).max, 2**15
    codes: NDArray[np.uint16] = np.nan_to_num(logs, nan=largest, posinf=largest).clip(0, largest).astype(np.uint16)
    if signed:
        codes = np.where(codes < sign - 1, codes + sign * (weights < 0), largest).astype(np.uint16)
    return codes


def _pack(numbers: NDArray[Any]) -> str:
    return base64.b64encode(numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()).decode()
