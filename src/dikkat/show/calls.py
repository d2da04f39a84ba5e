"""Self-contained page with attention maps of a model's calls."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dikkat.show.arrays import as_array
from dikkat.show.document import document, escaped
from dikkat.show.heatmaps import scale_of
from dikkat.show.summaries import mean_entropies

Call = tuple[str, Mapping[str, Tensor]]

_HEADS = 16  # most heads shown of a call
_CALLS = 100  # most calls shown
_CELLS = 2**16  # most cells stored of a call's rows or sums; longer sequences are max-pooled
_LEAST = 64  # least cells kept in a row


def calls_page(calls: Sequence[Call], *, title: str, count: int, views: Sequence[dict[str, Any]] = ()) -> str:
    """The page of recorded calls, as HTML: views over tokens, or maps of each call."""
    for name, seen in calls:
        if not seen.keys() & {"overview", "rows", "sums", "entropy"}:
            raise ValueError(
                f"trace[{name!r}]: got {', '.join(seen)}, of which nothing can be drawn; expected a recording with "
                "weights=True, top_k=8, overview=64, rows, sums=True or entropy=True"
            )
    shown = calls[:_CALLS]
    content = [{"name": name, "recorded": _recorded(seen), "maps": list(_maps(seen))} for name, seen in shown]
    articles = [
        f'<article class="card"><h2>{escaped(name)}</h2><p>Recorded: {escaped(_recorded(seen))}</p></article>'
        for name, seen in shown
    ]
    some = f", the first {_CALLS} of which are shown" if len(calls) > _CALLS else ""
    said = "1 call of attention" if count == 1 else f"{count} calls of attention{some}"
    plain = f'<main id="room"><p class="quiet">{said}</p>\n' + "\n".join(articles) + "\n</main>"
    given = {"count": count, "overall": _overall(shown), "calls": content, "views": list(views)}
    return document(title, plain, calls=given)


def _recorded(seen: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in seen.items())


def _overall(calls: Sequence[Call]) -> dict[str, Any] | None:
    """Map of the mean entropy of every head; None with fewer than two calls that recorded it."""
    by_layer = {name: seen["entropy"] for name, seen in calls if "entropy" in seen and seen["entropy"].numel()}
    if len(by_layer) < 2:
        return None
    return {"names": list(by_layer), **_described("entropy", mean_entropies(by_layer)[None])}


def _maps(seen: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """Maps of one call, as `web/src/page/calls.ts` reads them."""
    queries = next((seen[name].shape[-1] for name in ("lse", "entropy", "argmax") if name in seen), None)
    keys = next((seen[name].shape[-1] for name in ("sums", "rows") if name in seen), None)
    for name, own in (("overview", 2), ("rows", 2), ("sums", 1)):
        if name not in seen or not seen[name].numel():
            continue
        heads = _of_heads(seen[name], own)[:_HEADS]
        panels = as_array(heads[None] if own == 1 else heads, name)
        extent = list(panels.shape[1:])
        if name == "overview" and queries is not None and keys is not None:
            extent = [queries, keys]
        elif name != "overview":
            panels = _pooled(panels)
        lead = seen[name].shape[: seen[name].ndim - own]
        batch, of = lead[:-1].numel(), lead[-1] if lead else 1
        yield {**_described(name, panels), "extent": extent, "heads": len(heads), "of": of, "batch": batch}


def _of_heads(tensor: Tensor, own: int) -> Tensor:
    """(heads, own dimensions): of the first element of every leading dimension but the last one."""
    while tensor.ndim > own + 1:
        tensor = tensor[0]
    return tensor if tensor.ndim == own + 1 else tensor[None]


def _pooled(panels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Panels max-pooled along the keys to at most `_CELLS` cells."""
    count = panels.shape[-1]
    room = max(_LEAST, _CELLS // (panels.shape[0] * panels.shape[1]))
    if count <= room:
        return panels
    pooled: NDArray[np.float64] = np.fmax.reduceat(panels, np.arange(room) * count // room, axis=-1)
    return pooled


def _described(kind: str, panels: NDArray[np.float64]) -> dict[str, Any]:
    """Maps of one shape with their values as base64 of little-endian float32."""
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, and stay blank
        values = base64.b64encode(panels.astype("<f4").tobytes()).decode()
    shape = list(panels.shape[1:])
    return {"kind": kind, "shape": shape, "extent": shape, "range": scale_of(list(panels)), "values": values}
