"""Measures of attention over positions: mean distances on a grid, and contacts of a protein."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dikkat.inspection import tables
from dikkat.show.blocks import Layouts, find_cells
from dikkat.show.positions import Grid, TokenList


def distances_table(calls: tables.Calls, element: int, tokens: Mapping[str, TokenList], unit: str) -> Any:
    """Return the table of `Trace.distances`."""
    if unit not in ("patches", "pixels"):
        raise ValueError(f"unit: got {unit!r}; expected 'patches' or 'pixels'")
    rows = list[tuple[Any, ...]]()
    for call, batch in calls:
        record = batch.of_batch(element)
        layouts = tables.layouts_of(call.kind, record, tokens)[1]
        if record.weights is None:
            raise ValueError(f"trace[{call.name!r}]: got {', '.join(record.tensors())}; expected a recording with "
                             "weights=True")  # fmt: skip
        known = tables.known_weights(record, call.kind)
        if not known.is_self or not any(isinstance(layout, Grid) for layout in layouts.values()):
            continue
        means = _mean_distances(known.weights, known.queries, _centres(layouts, unit, known.key_count))
        rows += [(call.layer, call.name, *pair) for pair in zip(tables.heads_of(record), means.tolist(), strict=True)]
    if not rows:
        raise ValueError("distances: got no self-attention over a grid; expected tokens=[..., dikkat.Grid(...)]")
    columns = zip(("layer", "module", "head", "distance"), zip(*rows, strict=True), strict=True)
    return tables.make_frame({name: np.asarray(values) for name, values in columns})


def _centres(layouts: Layouts, unit: str, count: int) -> Tensor:
    """Return the number of the grid of each key, and the row and the column of its centre, (m, 3)."""
    centres = find_cells(layouts, count).double()
    for number, (first, layout) in enumerate(layouts.items()):
        if isinstance(layout, Grid) and unit == "pixels":
            size = layout.cell_size()
            if size is None:
                raise ValueError(f"unit: got 'pixels' for part {number} without an image; expected 'patches'")
            centres[first : first + len(layout), 1:] *= torch.tensor(size[::-1], dtype=torch.float64)
    return centres


def _mean_distances(weights: Tensor, queries: Tensor, centres: Tensor) -> Tensor:
    """Return the mean distances (H,) of weights (H, n, m) between the patches of the same grid."""
    centres_of_queries = centres[queries]
    is_pair = (centres_of_queries[:, None, 0] == centres[None, :, 0]) & (centres[:, 0] >= 0)
    lengths = torch.cdist(centres_of_queries[:, 1:], centres[:, 1:])
    shares = weights * is_pair
    totals = shares.sum(-1)
    by_query = (shares * lengths).sum(-1) / totals
    return torch.where(totals > 0, by_query, torch.nan).nanmean(-1)


def contact_maps(layers: Sequence[Tensor], residues: slice) -> Tensor:
    """Return the maps of `Trace.contacts`."""
    if not layers or len({weights.shape[-2:] for weights in layers}) != 1 or layers[0].shape[-1] != layers[0].shape[-2]:
        shapes = ", ".join(str(tuple(weights.shape)) for weights in layers)
        raise ValueError(f"contacts: got weights {shapes or 'of no layer'}; expected (B, H, n, n) of one run")
    weights = torch.cat([weights.reshape(-1, *weights.shape[-3:]) for weights in layers], 1)[..., residues, residues]
    symmetric = weights + weights.mT
    products = symmetric.sum(-1, keepdim=True) * symmetric.sum(-2, keepdim=True)
    return symmetric - products / symmetric.sum((-2, -1), keepdim=True)
