"""Every arrangement of words, grids and times × every request of a recording × every view of it.

A cell shows the weights in float64 at the positions of its words, patches and times. A new arrangement, request or view
is one more name in `LAYOUTS`, `REQUESTS` or `VIEWS`.
"""

import base64
import gzip
import json
import re
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import dikkat
from dikkat import show

IMAGE = Image.fromarray(np.arange(35, dtype=np.uint8).reshape(5, 7) * 7)
ORDER = [5, 2, 0, 1, 4, 3]
GRID, MIXED = dikkat.Grid(2, 3, image=IMAGE), dikkat.Grid(3, 2, image=IMAGE, box=(0, 0, 4, 5), order=ORDER)
TIMES = dikkat.Times([0.5, 1.0, 3.0], series=[1.0, 2.0])
LAYOUTS: dict[str, list[Any]] = {
    "a grid": [GRID],
    "a class token and a grid": ["[CLS]", GRID],
    "words around a grid": ["look", "at", GRID, "now"],
    "two grids of an image": [GRID, MIXED],
    "cells in another order": ["[CLS]", "[REG]", MIXED],
    "times": [TIMES],
    "a grid and times": [GRID, "and", TIMES],
}
REQUESTS: dict[str, Callable[[list[Any]], dict[str, Any]]] = {
    "weights": lambda tokens: {"weights": True},
    "top_k of all keys": lambda tokens: {"top_k": 20},
    "blocks": lambda tokens: {"blocks": tokens},
    "blocks and top_k": lambda tokens: {"blocks": tokens, "top_k": 20},
}
HEADS, SIZE = 2, 5


def count_of(tokens: list[Any]) -> int:
    return sum(1 if isinstance(entry, str) else len(entry) for entry in tokens)


def reading(tokens: list[Any]) -> list[int]:
    """The positions, with the cells of each grid row by row."""
    positions: list[int] = []
    for entry in tokens:
        start, order = len(positions), getattr(entry, "order", None)
        length = 1 if isinstance(entry, str) else len(entry)
        positions += [start + (order.index(k) if order else k) for k in range(length)]
    return positions


def cells_of(tokens: list[Any]) -> dict[int, tuple[int, int, int]]:
    """The grid, row and column of each position in a grid."""
    cells: dict[int, tuple[int, int, int]] = {}
    position = 0
    for number, entry in enumerate(tokens):
        length = 1 if isinstance(entry, str) else len(entry)
        if isinstance(entry, dikkat.Grid):
            order = entry.order or range(length)
            cells |= {position + k: (number, *divmod(cell, entry.columns)) for k, cell in enumerate(order)}
        position += length
    return cells


@cache
def recorded(layout: str, request: str, seed: int = 7) -> tuple[dikkat.Trace, np.ndarray]:
    """A trace, and its weights (B, H, n, n) in float64."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    tokens = LAYOUTS[layout]
    x = torch.randn(2, HEADS, count_of(tokens), SIZE, generator=torch.Generator().manual_seed(seed))
    with dikkat.record(model := Model(), **REQUESTS[request](tokens)) as trace:
        model(x)
    trace.tokens = tokens
    return trace, (x.double() @ x.double().mT / SIZE**0.5).softmax(-1).numpy()


def maps_of(path: Path, *, signed: bool = False) -> list[np.ndarray]:
    (content,) = re.findall(r'<script id="dikkat-content" type="application/json">(.*?)</script>', path.read_text())
    maps = []
    for view in json.loads(content)["calls"]["views"]:
        (layer,) = view["layers"]
        codes = np.frombuffer(gzip.decompress(base64.b64decode(layer["maps"]["blocks"])), np.uint8).astype(float)
        if signed:
            weights = np.where(codes > 127, -1, 1) * np.where(codes % 128, 2 ** ((codes % 128 - 127) / 6), 0)
        else:
            weights = np.where(codes, 2 ** ((codes - 255) / 12), 0)
        maps.append(weights.reshape(HEADS, len(view["queries"]), -1))
    return maps


def page(trace: dikkat.Trace, weights: np.ndarray, tokens: list[Any], path: Path) -> None:
    trace.to_html(path / "page.html", element=[1, 0])
    order = reading(tokens)
    for shown, element in zip(maps_of(path / "page.html"), (1, 0), strict=True):
        np.testing.assert_allclose(shown, weights[element][:, order][:, :, order], rtol=0.03)


def saved(trace: dikkat.Trace, weights: np.ndarray, tokens: list[Any], path: Path) -> None:
    trace.save(path / "trace")
    loaded = dikkat.Trace.load(path / "trace")
    assert (loaded.tokens, loaded.parts) == (trace.tokens, trace.parts)
    page(loaded, weights, tokens, path)


def frame(trace: dikkat.Trace, weights: np.ndarray, tokens: list[Any], path: Path) -> None:
    table = trace.frame(element=1)
    shown = np.zeros(weights.shape[1:])
    shown[table["head"], table["query"], table["key"]] = table["weight"]
    np.testing.assert_allclose(shown, weights[1], atol=1e-6)
    texts = [token.text for token in trace.tokens["self"]]
    assert all(texts[key] == text for key, text in zip(table["key"], table["key_token"], strict=True))


def scores(trace: dikkat.Trace, weights: np.ndarray, tokens: list[Any], path: Path) -> None:
    """The mean share of the keys in the same row, compared with that of uniform weights."""
    table, cells = trace.scores(), cells_of(tokens)
    assert ("row" in table) == bool(cells)
    if not cells:
        return
    count = weights.shape[-1]
    for name, axis in (("row", 0), ("column", 1)):
        is_member = np.zeros((count, count), bool)
        for (i, (grid, *cell)), (j, (other, *key)) in product(cells.items(), cells.items()):
            is_member[i, j] = i != j and grid == other and cell[axis] == key[axis]
        uniform = is_member.mean(-1)
        shares = ((weights[0] * is_member).sum(-1) - uniform) / (1 - uniform)
        expected = shares[:, is_member.any(-1)].mean(-1).clip(0)
        np.testing.assert_allclose(table[name], expected, atol=1e-5)


def figure(trace: dikkat.Trace, weights: np.ndarray, tokens: list[Any], path: Path) -> None:
    """The opacity of each patch, and the height of each time."""
    drawn, row = trace.figure(0, 1, kind="image", query=0, element=1), weights[1, 1, 0]
    heights, opacities = [], []
    for axes in drawn.axes:
        opacities += [image.get_array()[..., 3].ravel() for image in axes.images[1:]]
        if axes.get_ylabel() == "Weight":
            heights.append(axes.collections[0].get_paths()[0].vertices[:, 1].max())
    start, grids, times = 0, [], []
    for entry in tokens:
        length = 1 if isinstance(entry, str) else len(entry)
        values = row[np.array(reading(tokens))[start : start + length]]
        grids += [values] if isinstance(entry, dikkat.Grid) else []
        times += [values.max()] if isinstance(entry, dikkat.Times) else []
        start += length
    largest = max(values.max() for values in [*grids, *[np.array([time]) for time in times]])
    for shown, values in zip(opacities, grids, strict=True):
        np.testing.assert_allclose(shown, 0.85 * np.sqrt(values / largest), atol=1e-3)
    np.testing.assert_allclose(heights, times, rtol=1e-5)


def on_image(trace: dikkat.Trace, weights: np.ndarray, tokens: list[Any], path: Path) -> None:
    for first, layout in trace.parts["self"].items():
        drawn = show.on_image(weights[0, :, 0, first : first + len(layout)], layout)
        if isinstance(layout, dikkat.Grid):
            values = weights[0, :, 0, reading(tokens)[first : first + len(layout)]].T
            images = [axes.images[1 if layout.image is not None else 0] for axes in drawn.axes[:HEADS]]
            for image, head in zip(images, values, strict=True):
                shown = image.get_array()[..., 3].ravel()
                np.testing.assert_allclose(shown, 0.85 * np.sqrt(head / values.max()), atol=1e-3)
        else:
            heights = [axes.collections[0].get_paths()[0].vertices[:, 1].max() for axes in drawn.axes[:HEADS]]
            expected = weights[0, :, 0, first : first + len(layout)].max(-1)
            np.testing.assert_allclose(heights, expected, rtol=1e-5)


def distances(trace: dikkat.Trace, weights: np.ndarray, tokens: list[Any], path: Path) -> None:
    if trace[""].weights is not None and not any(isinstance(entry, dikkat.Grid) for entry in tokens):
        with pytest.raises(ValueError, match="distances: got no self-attention over a grid"):
            trace.distances()
        return
    table = trace.distances(unit="pixels", element=1)
    assert len(table) == HEADS
    cells, count = cells_of(tokens), weights.shape[-1]
    is_pair, lengths = np.zeros((count, count), bool), np.zeros((count, count))
    for (i, (grid, *cell)), (j, (other, *key)) in product(cells.items(), cells.items()):
        layout = tokens[grid]
        left, top, right, bottom = layout.box
        size = np.array([(bottom - top) / layout.rows, (right - left) / layout.columns])
        is_pair[i, j], lengths[i, j] = grid == other, np.linalg.norm((np.array(cell) - key) * size)
    shares = (weights[1] * is_pair)[:, is_pair.any(-1)]
    expected = ((shares * lengths[is_pair.any(-1)]).sum(-1) / shares.sum(-1)).mean(-1)
    np.testing.assert_allclose(table["distance"], expected, rtol=1e-5)


def difference(trace: dikkat.Trace, weights: np.ndarray, tokens: list[Any], path: Path) -> None:
    layout = next(name for name, entries in LAYOUTS.items() if entries is tokens)
    other, other_weights = recorded(layout, "weights", seed=11)
    (trace - other).to_html(path / "page.html")
    assert (trace - other).parts == trace.parts
    expected = (weights - other_weights)[0][:, reading(tokens)][:, :, reading(tokens)]
    np.testing.assert_allclose(maps_of(path / "page.html", signed=True)[0], expected, rtol=0.06, atol=1e-5)


VIEWS: dict[str, Callable[[dikkat.Trace, np.ndarray, list[Any], Path], None]] = {
    "to_html": page, "save and load": saved, "frame": frame, "scores": scores, "figure": figure,
    "show.on_image": on_image, "distances": distances, "a difference": difference,
}  # fmt: skip
# What a view needs, and the error without it.
LARGEST = {"weights", "top_weights"}, "expected a recording with weights=True or top_k"
NEEDED: dict[str, tuple[set[str], str]] = {
    "frame": LARGEST, "scores": LARGEST, "figure": LARGEST,
    "distances": ({"weights"}, "expected a recording with weights=True"),
    "a difference": ({"weights"}, "expected two recordings with weights=True"),
}  # fmt: skip


@pytest.mark.parametrize(("layout", "request_", "view"), list(product(LAYOUTS, REQUESTS, VIEWS)))
def test_a_view_of_a_layout(layout: str, request_: str, view: str, tmp_path: Path) -> None:
    trace, weights = recorded(layout, request_)
    needed, message = NEEDED.get(view, (set(), ""))
    if needed and not needed & trace[""].tensors().keys():
        with pytest.raises(ValueError, match=message):
            VIEWS[view](trace, weights, LAYOUTS[layout], tmp_path)
    else:
        VIEWS[view](trace, weights, LAYOUTS[layout], tmp_path)
