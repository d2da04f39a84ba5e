"""Which token of a model changes when a white square moves over a black image, and which cell is drawn there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import dikkat
from dikkat.inspection.image_inputs import ImageInputs

SIZE = (157, 101)  # of the image


class _Reached(Exception):  # noqa: N818
    pass


def square_image(left: int, top: int, side: int, size: tuple[int, int] = SIZE) -> Any:
    """A black image with a white square."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[top : top + side, left : left + side] = 255
    return Image.fromarray(pixels)


@contextmanager
def no_attention() -> Iterator[None]:
    """Attention, softmax and depthwise convolutions return zeros, so that positions do not mix."""

    def zeros(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        return query.new_zeros(*query.shape[:-1], value.shape[-1])

    def no_weights(weights: Tensor, *_: Any, **__: Any) -> Tensor:
        return torch.zeros_like(weights)

    def no_convolution(text: Tensor, weight: Tensor, *_: Any, **__: Any) -> Tensor:  # over the positions of a text
        return text.new_zeros(len(text), len(weight), text.shape[-1])

    conv2d = torch.nn.functional.conv2d

    def no_spatial_convolution(*arguments: Any, **keywords: Any) -> Tensor:  # of each feature, over the patches
        output = conv2d(*arguments, **keywords)
        is_depthwise = [*arguments[6:7], keywords.get("groups", 1)][0] > 1
        return torch.zeros_like(output) if is_depthwise else output

    with (
        mock.patch.object(torch.nn.functional, "conv1d", no_convolution),
        mock.patch.object(torch.nn.functional, "conv2d", no_spatial_convolution),
        mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", zeros),
        mock.patch.object(torch.nn.functional, "softmax", no_weights),
        mock.patch.object(torch, "softmax", no_weights),
        mock.patch.object(Tensor, "softmax", no_weights),
    ):
        yield


def keys_of(model: Any, inputs: dict[str, Any], name: str, count: int) -> list[Tensor]:
    """The sequences (n, d) of `count` positions that enter a module, without attention before it."""
    entered = []

    def hook(_: Any, arguments: Any, keywords: Any) -> None:
        for value in [*arguments, *keywords.values()]:
            if isinstance(value, Tensor) and value.ndim == 4 and value.shape[1] * value.shape[2] == count:
                value = value.flatten(1, 2)
            if isinstance(value, Tensor) and value.ndim == 3 and value.shape[:2] == (1, count):
                entered.append(value[0].double())
        raise _Reached

    handle = dict(model.named_modules())[name].register_forward_pre_hook(hook, with_kwargs=True)
    try:
        with torch.no_grad(), no_attention():
            torch.manual_seed(0)
            model(**inputs)
    except _Reached:
        pass
    finally:
        handle.remove()
    return entered


def check_squares(
    model: Any, processor: Any, text: str | None, squares: int = 5, seed: int = 3, side: int = 6
) -> dict[str, Any]:
    """Compare drawn cells with changed tokens for random squares; return counts and the faults."""
    drawn = np.random.default_rng(seed)
    report: dict[str, Any] = {"squares": 0, "cells": 0, "faults": [], "parts": {}}
    source = (lambda image: image) if text is None else (lambda image: (image, text))
    black = ImageInputs.read(model, processor, source(square_image(0, 0, 0))).arguments
    for _ in range(squares):
        left, top = (int(drawn.integers(0, length - side)) for length in SIZE)
        image = square_image(left, top, side)
        torch.manual_seed(0)
        trace = dikkat.show.attention(model, processor, source(image))
        inputs = ImageInputs.read(model, processor, source(image)).arguments
        report["parts"] = {kind: [(part.rows, part.columns) for part in parts.values()]
                           for kind, parts in trace.parts.items() if parts}  # fmt: skip
        report["squares"] += 1
        for kind, parts in trace.parts.items():
            labels = trace.tokens[kind]
            kinds = {"self": ("self",), "encoder": ("encoder", "cross"), "image": ("",)}[kind]
            name = next(call.name for call, record in trace.calls()
                        if call.kind in kinds and record.sizes[2] == len(labels))  # fmt: skip
            pairs = zip(*(keys_of(model, given, name, len(labels)) for given in (inputs, black)), strict=True)
            change = max(((a - b).norm(dim=-1) for a, b in pairs), key=lambda norms: float(norms.max()))
            seen = np.zeros(len(labels), bool)
            for first, grid in parts.items():
                seen[first : first + len(grid)] = True
                _compare(change[first : first + len(grid)], grid, report)
            rest = change[~torch.tensor(seen)]
            if len(parts) and len(rest) and float(rest.max()) > 0.01 * float(change.max()):
                report["faults"].append(f"{kind}: a token outside the grids changes")
    return report


def _compare(change: Tensor, grid: Any, report: dict[str, Any]) -> None:
    """Check that the tokens that change are the cells at the white pixels of the image."""
    pixels = np.asarray(grid.image.convert("L"))
    rows, columns = np.nonzero(pixels > 200)
    left, top, right, bottom = grid.box
    boxes = []
    for row, column in grid.cells():
        height, width = (bottom - top) / grid.rows, (right - left) / grid.columns
        boxes.append((left + column * width, top + row * height, left + (column + 1) * width, top + (row + 1) * height))
    margin = 1.0
    overlaps = [
        bool(len(rows)) and columns.max() + 1 + margin > box[0] and columns.min() - margin < box[2]
        and rows.max() + 1 + margin > box[1] and rows.min() - margin < box[3]
        for box in boxes
    ]  # fmt: skip
    largest = float(change.max())
    if not any(overlaps):
        return
    inside = len(rows) and columns.min() > left + 2 and columns.max() < right - 2
    inside = inside and rows.min() > top + 2 and rows.max() < bottom - 2
    if largest == 0:
        if inside:
            report["faults"].append(f"no token of a {grid.rows} × {grid.columns} grid changes")
        return
    report["cells"] += 1
    for index in (change >= 0.5 * largest).nonzero()[:, 0].tolist():
        if not overlaps[index]:
            report["faults"].append(f"token {index} changes, but its cell {grid.cells()[index]} is elsewhere")
