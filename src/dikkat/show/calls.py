"""One self-contained page with pictures of what the calls of attention of a model looked at."""

import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from dikkat.show.document import document, escaped, part
from dikkat.show.heatmaps import heatmaps, rendered
from dikkat.show.summaries import entropies, key_sums
from dikkat.storage.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Call = tuple[str, Mapping[str, Tensor]]

_PANELS, _COLUMNS = 16, (4, 3, 5)  # heads that are shown at most, and side by side, as leaves the fewest places free
_WIDE = 600  # pixels, beyond which a narrow window scrolls a picture rather than to make it too small to be read
_CALLS = 100  # that are shown at most
_MAPS = {"overview": "The map, pooled", "rows": "The chosen queries, in the order in which they were asked for"}


def save_calls(path: Path, calls: Sequence[Call], *, title: str) -> None:
    """Write the page, whole or not at all.

    Args:
        path: The file; its folder must exist.
        calls: Of each call its name, and what was recorded, by the names of `dikkat.Inspection`.
        title: The heading.

    Raises:
        OSError: The system could not write; an existing file is left as it was.
    """
    articles = [_overall(calls), *(_article(name, tensors) for name, tensors in calls[:_CALLS])]
    shown = f", the first {_CALLS} of which are shown" if len(calls) > _CALLS else ""
    count = "1 call of attention" if len(calls) == 1 else f"{len(calls)} calls of attention{shown}"
    body = "<main>\n" + "\n".join(filter(None, articles)) + "\n</main>"
    style = part("page.css") + part("calls.css")
    page = document(title, count, body, style=style, policy="img-src data:")
    write_whole(path, page)


def _overall(calls: Sequence[Call]) -> str:
    """The entropy of every head, where it was recorded of several calls."""
    by_layer = {name: tensors["entropy"] for name, tensors in calls[:_CALLS] if "entropy" in tensors}
    by_layer = {name: entropy for name, entropy in by_layer.items() if entropy.numel()}
    if len(by_layer) < 2:
        return ""
    caption = "Mean entropy in nats, by layer and head: 0 where a head looks at one key alone."
    return f'<article class="call"><h2>All calls</h2>{_picture(entropies(by_layer), caption)}</article>'


def _article(name: str, tensors: Mapping[str, Tensor]) -> str:
    pictures = "".join(_picture(figure, caption) for figure, caption in _pictures(tensors))
    kinds = ", ".join(f"{each} {tuple(tensor.shape)}" for each, tensor in tensors.items())
    return f'<article class="call"><h2>{escaped(name)}</h2><p>Recorded: {escaped(kinds)}</p>{pictures}</article>'


def _pictures(tensors: Mapping[str, Tensor]) -> Iterator[tuple["Figure", str]]:
    """The pictures of one call, with their captions."""
    queries = next((tensors[name].shape[-1] for name in ("lse", "entropy", "argmax") if name in tensors), None)
    keys = next((tensors[name].shape[-1] for name in ("sums", "rows") if name in tensors), None)
    for name, what in _MAPS.items():
        if name in tensors and tensors[name].numel():
            whole = (queries, keys) if name == "overview" and queries is not None and keys is not None else None
            yield _maps(_of_heads(tensors[name], 2)[:_PANELS], whole), what + _which(tensors[name], 2)
    if "sums" in tensors and tensors["sums"].numel():
        lines = _of_heads(tensors["sums"], 1)[:_PANELS]
        yield (
            key_sums(lines, labels=_titles(len(lines))),
            "How much each key was looked at" + _which(tensors["sums"], 1),
        )


def _of_heads(tensor: Tensor, own: int) -> Tensor:
    """(heads, own dimensions): of the first element of every leading dimension but the last one."""
    while tensor.ndim > own + 1:
        tensor = tensor[0]
    return tensor if tensor.ndim == own + 1 else tensor[None]


def _which(tensor: Tensor, own: int) -> str:
    """Which part of the leading dimensions is shown."""
    lead = tensor.shape[: tensor.ndim - own]
    some = f", the first {_PANELS} of {lead[-1]}" if lead and lead[-1] > _PANELS else ""
    return some + (f", of the first of a batch of {lead[:-1].numel()}." if lead[:-1].numel() > 1 else ".")


def _titles(count: int) -> list[str]:
    return [str(index) for index in range(count)]


def _maps(panels: Tensor, extent: tuple[int, int] | None) -> "Figure":
    """A panel for each head, some in a row; what stays free in the last row is left out."""
    count = len(panels)
    columns = count if count <= _COLUMNS[0] else min(_COLUMNS, key=lambda each: -count % each)
    rows = -(-count // columns)
    grid = panels.new_full((rows * columns, *panels.shape[1:]), float("nan"))
    grid[:count] = panels
    titles = [*_titles(count), *[""] * (rows * columns - count)]
    figure = heatmaps(grid.unflatten(0, (rows, columns)), titles=titles, extent=extent)
    for above, free in zip(figure.axes[count - columns : (rows - 1) * columns], figure.axes[count:], strict=False):
        free.set_visible(False)
        above.tick_params(labelbottom=True)
    return figure


def _picture(figure: "Figure", caption: str) -> str:
    image = rendered(figure, ".png", dpi=110, margin=0.1)
    width, height = struct.unpack(">II", image[16:24])
    kind, data = "wide" if width > _WIDE else "", base64.b64encode(image).decode()
    return (
        f'<figure><div class="picture"><img class="{kind}" width="{width}" height="{height}" '
        f'src="data:image/png;base64,{data}" alt="{escaped(caption)}"></div>'
        f"<figcaption>{escaped(caption)}</figcaption></figure>"
    )
