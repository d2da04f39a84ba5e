"""Pages with images in the format that `web/src/page` reads, made of weights without the library that writes them."""

import base64
import gzip
import io

import numpy as np

from dikkat.show.document import document


def codes(weights):
    """A code of 8 bits for each weight: twelve for each factor of 2."""
    with np.errstate(divide="ignore"):
        steps = 255 + np.rint(12 * np.log2(weights))
    return np.where(weights > 0, steps.clip(0, 255), 0).astype(np.uint8)


def signed_codes(weights):
    with np.errstate(divide="ignore"):
        steps = (127 + np.rint(6 * np.log2(np.abs(weights)))).clip(0, 127)
    return np.where(weights == 0, 0, steps + 128 * (weights < 0)).astype(np.uint8)


def packed(numbers):
    raw = np.ascontiguousarray(numbers).tobytes()
    return base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode()


def source(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def shown(image, **original):
    return {"source": source(image), "width": image.width, "height": image.height, **original}


def grid(start, rows, columns, image=-1, box=(0, 0, 0, 0), number=0, above=0):
    return {
        "kind": "grid", "start": start, "rows": rows, "columns": columns, "image": image, "box": list(box),
        "number": number, "above": above,
    }  # fmt: skip


def groups_of(length, parts, block):
    """The group of each position, and its size."""
    names = [("word", position, 0) for position in range(length)]
    for part in parts:
        is_grid = part["kind"] == "grid"
        rows, columns = (part["rows"], part["columns"]) if is_grid else (len(part["values"]), 1)
        lattice, above = (part["number"], part["above"]) if is_grid else (f"times {part['start']}", 0)
        for k in range(rows * columns):
            names[part["start"] + k] = (lattice, (above + k // columns) // block, k % columns // block)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    groups = np.array([numbers[name] for name in names])
    return groups, np.bincount(groups)


def maps(weights, parts, block=1, signed=False):
    """The data of a layer's weights (heads, queries, keys)."""
    sides = [groups_of(length, own, block) for length, own in zip(weights.shape[1:], parts, strict=True)]
    means = weights
    for axis, (groups, sizes) in zip((1, 2), sides, strict=True):
        means = np.stack(
            [means.take(np.flatnonzero(groups == k), axis).sum(axis) / sizes[k] for k in range(len(sizes))], axis
        )
    inside = np.zeros(weights.shape[1], bool)
    for part in parts[0]:
        count = part["rows"] * part["columns"] if part["kind"] == "grid" else len(part["values"])
        inside[part["start"] : part["start"] + count] = True
    code = signed_codes if signed else codes
    rows = "" if block == 1 else packed(code(weights[:, ~inside]))
    return {"block": block, "rows": rows, "blocks": packed(code(means))}


def view(layers, queries, keys, parts, kind="self", block=1, looks=None, lead="", whole=True):
    return {
        "kind": kind, "element": None, "title": "", "lead": lead, "parts": list(parts),
        "queries": [[text, False, False] for text in queries], "keys": [[text, False, False] for text in keys],
        "layers": [
            {
                "name": "", "number": number, "heads": list(range(len(weights))), "looks": [""] * len(weights),
                "shares": (looks or {}).get(number, {}), "asked": [len(queries)] * len(weights),
                "top": 0, "keys": "", "weights": "", "cells": [0, 0], "whole": whole, "map": "",
                "maps": maps(weights, parts, block, lead == "change"),
            }
            for number, weights in enumerate(layers)
        ],
    }  # fmt: skip


def page(views, images, title="Where the model looks"):
    return document(title, "", calls={"count": 1, "overall": None, "calls": [], "views": views, "images": images})


def cells(rows, columns):
    return [f"row {row + 1}, column {column + 1}" for row in range(rows) for column in range(columns)]


def softmax(logits):
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)
