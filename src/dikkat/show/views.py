"""Data of a page's views of attention: the heads of a layer, all heads, one query and key."""

import base64
import gzip
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dikkat.show.blocks import (
    Layouts,
    count_blocks,
    find_groups,
    merge_blocks,
    positions_outside,
    reading_order,
    recorded_side,
)
from dikkat.show.positions import Grid, Times, Token, TokenList, grid_starts

__all__ = ["CELLS", "TOP", "Layer", "labels_of", "views_of"]

TOP = 16  # maximum keys stored of a query
CELLS = 64  # cells of a head's map in each direction
_MAP_BYTES = 3_000_000  # maps of blocks in a page before compression, in base64
_MOST_MAP_BYTES = 64_000_000
_MAX_SERIES = 2000  # numbers of a drawn series
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
    layouts: tuple[Layouts, Layouts] = ({}, {})  # the grids and times among queries and keys
    is_complete: bool = True  # whether `blocks` are means of all weights, not only of the largest ones


def views_of(
    layers: Sequence[Layer], tokens: Mapping[str, TokenList], element: int | None, images: list[Any], elements: int
) -> list[dict[str, Any]]:
    """Return a view for each kind and size of attention, in the format of `web/src/page/views.ts`; images are first.

    Adds a grid for each different image to `images`. The page has views of as many `elements`.
    """
    groups: dict[Any, list[Layer]] = {}
    for layer in layers:
        chosen = layer.tensors.get("queries")
        starts = tuple(map(tuple, layer.layouts))
        groups.setdefault(
            (layer.kind, *layer.sizes[1:], chosen if chosen is None else tuple(chosen.tolist()), starts), []
        ).append(layer)
    rows = sum(layer.tensors["top_weights"][..., 0].numel() for layer in layers)
    max_keys = max(1, _ENTRIES // max(1, rows))
    blocked = [layer for layer in layers if any(layer.layouts)]
    side, has_rows = choose_side(blocked, _MAP_BYTES // elements) if blocked else (1, False)
    return [
        {
            "kind": kind,
            "element": element,
            "title": "" if kind and is_only_view else calls[0].name,
            "lead": calls[0].lead,
            "queries": axis_labels(axis_tokens[0], shown[0]),
            "keys": axis_labels(axis_tokens[1], shown[1]),
            **_positions_data(shown, (queries, keys)),
            **({"parts": [_layout_data(axis, images) for axis in layouts]} if any(layouts) else {}),
            "layers": [_layer_data(call, max_keys, side, has_rows) for call in calls],
        }
        for (kind, queries, keys, chosen, _), calls in sorted(groups.items(), key=lambda group: not any(group[0][-1]))
        for layouts in [calls[0].layouts]
        for orders in [[reading_order(*axis).tolist() for axis in zip(layouts, (queries, keys), strict=True)]]
        for shown in [(orders[0] if chosen is None else [*chosen], orders[1])]
        for is_only_view in [sum(key[0] == kind for key in groups) == 1]
        for count in [queries if chosen is None else max(chosen, default=-1) + 1 if kind == "cross" else keys]
        for axis_tokens in [labels_of(tokens, kind, count, keys)]
    ]


# The kinds of the tokens of queries and keys, by kind of attention: the first one of fitting length.
_TEXT, _SOURCE = ("self", "image"), ("encoder", "image")
_LABELLED = {"self": (_TEXT, _TEXT), "encoder": (_SOURCE, _SOURCE), "cross": (("self",), _SOURCE),
             "": (("image", "self"), ("image", "self"))}  # fmt: skip


def labels_of(tokens: Mapping[str, TokenList], kind: str, queries: int, keys: int) -> tuple[TokenList, TokenList]:
    """Return the tokens of queries and keys for a kind of attention, with matching lengths if possible.

    Tokens of another kind are labels only if there are none of the kinds of this attention.
    """
    axis_tokens = []
    for kinds, count in zip(_LABELLED[kind], (queries, keys), strict=True):
        known = [tokens[name] for name in kinds if name in tokens]
        # Patches are no labels of a shorter text.
        usual = [tokens[name] for name in kinds if name in tokens and name != "image"]
        usual = [labels for labels in usual if not labels.parts or len(labels) <= count]
        fitting = (labels for labels in known or tokens.values() if len(labels) == count)
        axis_tokens.append(next(fitting, next(iter(usual), TokenList())))
    return axis_tokens[0], axis_tokens[1]


def _positions_data(shown: Sequence[list[int]], counts: Sequence[int]) -> dict[str, Any]:
    """Return the positions of the queries and keys of a page in the sequence, if they are not 0, 1, 2, and so on."""
    is_usual = all(axis == [*range(count)] for axis, count in zip(shown, counts, strict=True))
    return {} if is_usual else {"positions": list(shown)}


def axis_labels(tokens: list[Token], positions: Sequence[int]) -> list[Token]:
    """Return the labels of an axis, with numbers for missing tokens such as generated ones."""
    return [tokens[position] if position < len(tokens) else Token(str(position)) for position in positions]


def _layer_data(layer: Layer, max_keys: int, side: int, has_rows: bool) -> dict[str, Any]:
    """Return the data of a layer; with grids or times, the mean weights of blocks instead of the largest weights."""
    tensors = layer.tensors
    return {
        "name": "" if layer.name == f"layer {layer.number}" else layer.name,  # from `dikkat.show.weights`
        "number": layer.number,
        "heads": tensors["heads"].tolist() if "heads" in tensors else list(range(len(tensors["top_keys"]))),
        "shares": {
            name: [None if share != share else float(f"{share:.4g}") for share in values.tolist()]
            for name, values in layer.shares.items()
        },
        "looks": [pattern for pattern, _ in layer.patterns],
        "asked": [queries for _, queries in layer.patterns],
        **(_block_data(layer, side, has_rows) if any(layer.layouts) else _largest_data(layer, max_keys)),
    }


def _largest_data(layer: Layer, max_keys: int) -> dict[str, Any]:
    """Return the largest weights of the heads, their keys, and the maps."""
    tensors, signed = layer.tensors, layer.lead == "change"
    max_keys = min(max_keys, max(1, int((tensors["top_keys"] >= 0).sum(-1).max())))
    weights, keys = (tensors[name][..., :max_keys].numpy() for name in ("top_weights", "top_keys"))
    if keys.max(initial=0) >= 2**16:
        raise ValueError(f"trace[{layer.name!r}]: got {keys.max() + 1} keys; expected at most {2**16}")
    overview = tensors["overview"].numpy() if "overview" in tensors else _map_of_largest(tensors, layer.sizes[2])
    return {
        "top": weights.shape[-1],
        "keys": _pack(np.maximum(keys, 0).astype("<u2")),
        "weights": _pack(_encode_weights(weights, signed)),
        "cells": list(overview.shape[-2:]),
        "whole": "overview" in tensors,
        "map": _pack(_encode_weights(overview, signed)),
    }


def choose_side(layers: Sequence[Layer], budget: int) -> tuple[int, bool]:
    """Return the side of the blocks of a page, and whether it has the weights of the queries outside of grids.

    Raises:
        ValueError: The page would have more than 64 MB of maps.
    """
    choices = [(side, has_rows) for has_rows in (True, False) for side in _sides(layers)]
    sizes = {choice: sum(_count_bytes(layer, *choice) for layer in layers) for choice in choices}
    chosen = next((choice for choice, size in sizes.items() if size <= budget), choices[-1])
    if sizes[chosen] > _MOST_MAP_BYTES:
        heads = sum(layer.sizes[0] for layer in layers)
        raise ValueError(f"page: got maps of {heads} heads with {sizes[chosen] // 10**6} MB; expected at most "
                         f"{_MOST_MAP_BYTES // 10**6} MB; select layers=... or heads=...")  # fmt: skip
    return chosen


def _sides(layers: Sequence[Layer]) -> list[int]:
    """Return the possible sides of blocks: multiples of the recorded sides."""
    recorded = np.lcm.reduce([recorded_side(layer.layouts) for layer in layers])
    layouts = [layout for layer in layers for axis in layer.layouts for layout in axis.values()]
    longest = max(max(layout.rows, layout.columns) for layout in layouts)
    return [*range(int(recorded), longest + int(recorded), int(recorded))]


def _count_bytes(layer: Layer, side: int, has_rows: bool) -> int:
    (heads, queries, keys), groups = layer.sizes, []
    for axis, count in zip(layer.layouts, (queries, keys), strict=True):
        outside = count - sum(map(len, axis.values()))
        groups.append(outside + count_blocks(axis, side))
    rows = queries - sum(map(len, layer.layouts[0].values())) if has_rows and side > 1 else 0
    return heads * (groups[0] * groups[1] + rows * keys) * 4 // 3


def _block_data(layer: Layer, side: int, has_rows: bool) -> dict[str, Any]:
    """Return the mean weights between blocks, and the weights of the queries outside of grids."""
    (query_layouts, key_layouts), (_, queries, keys) = layer.layouts, layer.sizes
    recorded, blocks, outside = recorded_side(layer.layouts), layer.tensors["blocks"], layer.tensors.get("outside")
    if recorded == 1:  # `blocks` has all weights
        groups = find_groups(query_layouts, queries, 1)[positions_outside(query_layouts, queries)]
        outside = blocks[:, groups][..., find_groups(key_layouts, keys, 1)]
    for dim, axis, count in ((-2, query_layouts, queries), (-1, key_layouts, keys)):
        fine, coarse = (find_groups(axis, count, size) for size in (recorded, side))
        blocks = merge_blocks(blocks, fine, coarse, dim)
    rows, signed = "", layer.lead == "change"
    if has_rows and side > 1 and outside is not None:
        rows = _zip(_encode_bytes(outside[..., reading_order(key_layouts, keys)], signed))
    maps = {"block": side, "rows": rows, "blocks": _zip(_encode_bytes(blocks, signed))}
    empty = {"top": 0, "keys": "", "weights": "", "cells": [0, 0], "whole": layer.is_complete, "map": ""}
    return empty | {"maps": maps}


def _encode_bytes(weights: Tensor, signed: bool) -> NDArray[np.uint8]:
    """Return codes: 0 for 0, else 255 + 12 log₂ w; signed, 127 + 6 log₂ |w|, and 128 more for negative weights."""
    largest, steps = (127, 6) if signed else (255, 12)
    values = weights.double().numpy()
    with np.errstate(divide="ignore"):
        logs = largest + np.rint(np.log2(np.abs(values)) * steps)
    codes: NDArray[np.uint8] = np.clip(np.nan_to_num(logs, neginf=0), 0, largest).astype(np.uint8)
    return codes + np.uint8(128) * ((values < 0) & (codes > 0)) if signed else codes


def _zip(codes: NDArray[np.uint8]) -> str:
    return base64.b64encode(gzip.compress(codes.tobytes(), 9, mtime=0)).decode()


def _layout_data(layouts: Layouts, images: list[Any]) -> list[dict[str, Any]]:
    """Return the grids and times of an axis, and add a grid for each new image."""
    data, starts = [], grid_starts(layouts)
    for first, layout in layouts.items():
        if not isinstance(layout, Grid):
            series = None if layout.series is None else [float(f"{value:.5g}") for value in _outline(layout)]
            data.append({"kind": "times", "start": first, "values": layout.values, "series": series})
            continue
        known_images = [grid.image for grid in images]
        if layout.image is not None and layout.image not in known_images:
            images.append(layout)
        number = -1 if layout.image is None else [*known_images, layout.image].index(layout.image)
        cells = {"kind": "grid", "start": first, "rows": layout.rows, "columns": layout.columns}
        cells |= {"number": starts[first][0], "above": starts[first][1]}
        data.append(cells | {"image": number, "box": layout.box or (0, 0, layout.columns, layout.rows)})
    return data


def _outline(times: Times) -> Sequence[float]:
    """Return at most 2,000 numbers of a longer series than the times: the extremes of pieces of equal length."""
    series = times.series or ()
    if len(series) <= max(_MAX_SERIES, len(times)):
        return series
    pieces = np.array_split(np.asarray(series), _MAX_SERIES // 2)
    return [extreme for piece in pieces for extreme in (piece.min(), piece.max())]


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
