"""A self-contained page with attention maps of a model's calls."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dikkat.show.arrays import as_array
from dikkat.show.document import document, escaped
from dikkat.show.heatmaps import scale_of
from dikkat.show.pictures import data_url
from dikkat.show.positions import Grid
from dikkat.show.summaries import mean_entropies

Call = tuple[str, Mapping[str, Tensor]]

_HEADS = 16  # maximum heads shown of a call
_CALLS = 100  # maximum calls shown
_CELLS = 2**16  # maximum cells stored of a call's rows or sums; longer sequences are max-pooled
_MIN_CELLS = 64  # of a row
_IMAGE_SIDE = 1024  # maximum pixels of a side of an image
_ORIGINAL_SIDE = 512  # of an original that a page shows next to the region that the model saw


def calls_page(
    calls: Sequence[Call], *, title: str, count: int, views: Sequence[dict[str, Any]] = (), images: Sequence[Any] = ()
) -> str:
    """Return the HTML page of recorded calls: views over tokens, or maps of each call."""
    for name, record in calls:
        if not record.keys() & {"overview", "rows", "sums", "entropy"}:
            raise ValueError(
                f"trace[{name!r}]: got only {', '.join(record)}; expected a recording with weights=True, top_k=8, "
                "overview=64, rows, sums=True or entropy=True"
            )
    shown = calls[:_CALLS]
    content = [{"name": name, "recorded": _list_tensors(record), "maps": list(_maps(record))} for name, record in shown]
    articles = [
        f'<article class="card"><h2>{escaped(name)}</h2><p>Recorded: {escaped(_list_tensors(record))}</p></article>'
        for name, record in shown
    ]
    note = f", the first {_CALLS} of which are shown" if len(calls) > _CALLS else ""
    summary = "1 call of attention" if count == 1 else f"{count} calls of attention{note}"
    plain = f'<main id="room"><p class="quiet">{summary}</p>\n' + "\n".join(articles) + "\n</main>"
    data = {"count": count, "overall": _overall_map(shown), "calls": content, "views": list(views)}
    if images:
        data["images"] = [_describe_image(grid) for grid in images]
    return document(title, plain, calls=data)


def _describe_image(grid: Grid) -> dict[str, Any]:
    """Return the image of a grid, and the original with the frame of the region that the model saw."""
    image = grid.image
    described = {"source": data_url(image, _IMAGE_SIDE), "width": image.width, "height": image.height}
    if grid.original is None:
        return described
    original, frame = grid.original
    limits = original.width, original.height
    edges = [min(max(edge, 0), limits[k % 2]) for k, edge in enumerate(frame)]
    source = data_url(original, _ORIGINAL_SIDE)
    return described | {"original": {"source": source, "width": limits[0], "height": limits[1], "frame": edges}}


def _list_tensors(record: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in record.items())


def _overall_map(calls: Sequence[Call]) -> dict[str, Any] | None:
    """Return the map of the mean entropy of each head; None for fewer than two calls with entropies."""
    by_layer = {name: record["entropy"] for name, record in calls if "entropy" in record and record["entropy"].numel()}
    if len(by_layer) < 2:
        return None
    return {"names": list(by_layer), **_describe("entropy", mean_entropies(by_layer)[None])}


def _maps(record: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """Yield the maps of one call in the format of `web/src/page/calls.ts`."""
    queries = next((record[name].shape[-1] for name in ("lse", "entropy", "argmax") if name in record), None)
    keys = next((record[name].shape[-1] for name in ("sums", "rows") if name in record), None)
    for name, own_dims in (("overview", 2), ("rows", 2), ("sums", 1)):
        if name not in record or not record[name].numel():
            continue
        heads = _select_heads(record[name], own_dims)[:_HEADS]
        panels = as_array(heads[None] if own_dims == 1 else heads, name)
        extent = list(panels.shape[1:])
        if name == "overview" and queries is not None and keys is not None:
            extent = [queries, keys]
        elif name != "overview":
            panels = _pool(panels)
        lead = record[name].shape[: record[name].ndim - own_dims]
        batch, head_count = lead[:-1].numel(), lead[-1] if lead else 1
        yield {**_describe(name, panels), "extent": extent, "heads": len(heads), "of": head_count, "batch": batch}


def _select_heads(tensor: Tensor, own_dims: int) -> Tensor:
    """Return the first batch element as (heads, …) with `own_dims` further dimensions; 1 head if it has no heads."""
    while tensor.ndim > own_dims + 1:
        tensor = tensor[0]
    return tensor if tensor.ndim == own_dims + 1 else tensor[None]


def _pool(panels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Max-pool panels along the keys to at most `_CELLS` cells."""
    key_count = panels.shape[-1]
    cells = max(_MIN_CELLS, _CELLS // (panels.shape[0] * panels.shape[1]))
    if key_count <= cells:
        return panels
    pooled: NDArray[np.float64] = np.fmax.reduceat(panels, np.arange(cells) * key_count // cells, axis=-1)
    return pooled


def _describe(kind: str, panels: NDArray[np.float64]) -> dict[str, Any]:
    """Return maps of one shape, with values as base64 of little-endian float32."""
    with np.errstate(over="ignore"):  # values beyond float32 become infinite and stay blank
        values = base64.b64encode(panels.astype("<f4").tobytes()).decode()
    shape = list(panels.shape[1:])
    return {"kind": kind, "shape": shape, "extent": shape, "range": scale_of(list(panels)), "values": values}
