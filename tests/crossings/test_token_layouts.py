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


@cache
def recorded(layout: str, request: str) -> tuple[dikkat.Trace, np.ndarray]:
    """A trace, and its weights (B, H, n, n) in float64."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    tokens = LAYOUTS[layout]
    x = torch.randn(2, HEADS, count_of(tokens), SIZE, generator=torch.Generator().manual_seed(7))
    with dikkat.record(model := Model(), **REQUESTS[request](tokens)) as trace:
        model(x)
    trace.tokens = tokens
    return trace, (x.double() @ x.double().mT / SIZE**0.5).softmax(-1).numpy()


def maps_of(path: Path) -> list[np.ndarray]:
    (content,) = re.findall(r'<script id="dikkat-content" type="application/json">(.*?)</script>', path.read_text())
    found = []
    for view in json.loads(content)["calls"]["views"]:
        (layer,) = view["layers"]
        codes = np.frombuffer(gzip.decompress(base64.b64decode(layer["maps"]["blocks"])), np.uint8).astype(float)
        found.append(np.where(codes, 2 ** ((codes - 255) / 12), 0).reshape(HEADS, len(view["queries"]), -1))
    return found


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
    table, has_grid = trace.scores(), any(isinstance(entry, dikkat.Grid) for entry in tokens)
    assert ("row" in table) == has_grid
    assert has_grid == ("nearby" in table and bool((table["nearby"] >= 0).all()))


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
        assert len(drawn.axes) >= HEADS


def distances(trace: dikkat.Trace, weights: np.ndarray, tokens: list[Any], path: Path) -> None:
    if trace[""].weights is not None and not any(isinstance(entry, dikkat.Grid) for entry in tokens):
        with pytest.raises(ValueError, match="distances: got no self-attention over a grid"):
            trace.distances()
        return
    table = trace.distances(unit="pixels", element=1)
    assert len(table) == HEADS
    assert ((table["distance"] > 0) & (table["distance"] < 9)).all()


def difference(trace: dikkat.Trace, weights: np.ndarray, tokens: list[Any], path: Path) -> None:
    (trace - trace).to_html(path / "page.html")
    assert (trace - trace).parts == trace.parts
    assert not maps_of(path / "page.html")[0].any()


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
