"""The pixels of an image that each token of a model depends on, measured through its processor and embeddings.

No model is recognised by its name. dikkat runs the processor on test images: a black and a white one give the range of
each number of `pixel_values`, and two ramps its column and row in the image. Gradients of the model show which of these
numbers each token depends on, before a layer mixes the tokens.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dikkat.inspection.trace import Trace
from dikkat.show.positions import Grid, Token

Encode = Callable[[Any], Mapping[str, Any]]
# name of a tensor of pixels → the x and y image coordinates of each of its numbers
Located = Mapping[str, tuple[Tensor, Tensor]]
_MIN_SIDE = 8  # pixels; the ramps of smaller images have too few steps to measure positions


class Stream(NamedTuple):
    """A sequence of keys that attention modules read.

    Attributes:
        kind: Its name in `tokens`.
        name: A module that reads it.
        keys: The number of keys.
        batch: The number of batch elements.
    """

    kind: str
    name: str
    keys: int
    batch: int


class Cells(NamedTuple):
    """The region of the image of each token: its centre (n, 2) and size (n, 2), and its number of pixels (n,).

    Attributes:
        depends: Whether any token depends on pixels, including pixels that several tokens share.
    """

    centres: Tensor
    sizes: Tensor
    counts: Tensor
    depends: bool


class _Reached(Exception):  # noqa: N818
    """Ends a forward pass as soon as the inputs of all streams are known."""


def unknown_positions(reason: str) -> ValueError:
    """Return the error for positions that cannot be measured."""
    return ValueError(
        f"image: dikkat cannot find the position of each token: {reason}. Pass the positions, with the rows and "
        "columns of your model: attention(model, **inputs, tokens=['[CLS]', dikkat.Grid(rows, columns, image=image)])"
    )


def locate_pixels(encode: Encode, inputs: Mapping[str, Any], image: Any) -> Located:
    """Return the coordinates, in a Pillow image, of each number in the processor's output; NaN for padding."""
    from PIL import Image, ImageOps

    (width, height), pictures = image.size, list[Any]()
    if min(image.size) < _MIN_SIDE:
        raise ValueError(f"image: got {width} × {height} pixels; expected at least {_MIN_SIDE} × {_MIN_SIDE}, to "
                         "measure the position of each token. Scale the image first")  # fmt: skip
    columns, rows = (np.round((np.arange(size) + 0.5) / size * 255) for size in (width, height))
    for picture in (np.zeros(1), np.full(1, 255.0), columns, rows[:, None]):
        pixels = np.broadcast_to(picture.astype(np.uint8), (height, width))
        pictures.append(Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB"))
    encodings, located = [encode(picture) for picture in [*pictures, ImageOps.invert(image)]], {}
    for name, values in inputs.items():
        if not isinstance(values, Tensor) or not values.is_floating_point():
            continue
        tensors = [encoding[name].cpu().double() for encoding in encodings]  # MPS has no float64
        if any(tensor.shape != values.shape for tensor in tensors):
            raise unknown_positions("the processor returns another size for another image of the same size")
        black, white, *ramps, inverse = tensors
        is_pixel = black != white
        if not is_pixel.any():
            continue
        span = torch.where(is_pixel, white - black, math.nan)
        if float(((values.cpu().double() + inverse - black - white) / span).abs().nanmean()) > 0.02:
            raise unknown_positions("the processor changes an image according to its content")
        x, y = ((ramp - black) / span * size for ramp, size in zip(ramps, image.size, strict=True))
        if values.ndim > 3 and values.shape[-3] in (1, 3, 4):
            x, y = _fit_tiles(x, width), _fit_tiles(y, height)
        located[name] = x, y
    if not located:
        raise unknown_positions("no output of the processor depends on the pixels")
    return located


def _fit_tiles(coordinates: Tensor, size: int) -> Tensor:
    """Replace the coordinates of each tile (..., channels, rows, columns) by an affine fit that also covers padding."""
    rows, columns = coordinates.shape[-2:]
    row, column = torch.meshgrid(torch.arange(rows) / rows, torch.arange(columns) / columns, indexing="ij")
    basis = torch.stack([torch.ones_like(row), row, column], -1).reshape(-1, 3).double()
    tiles = coordinates.nanmean(-3).reshape(-1, rows * columns)
    fits = torch.full_like(tiles, math.nan)
    for tile, fit in zip(tiles, fits, strict=True):
        known = ~tile.isnan()
        if int(known.sum()) > 3:
            fit.copy_((basis @ torch.linalg.lstsq(basis[known], tile[known, None]).solution)[:, 0])
            if float((fit - tile)[known].abs().mean()) > 0.02 * size:
                raise unknown_positions("the processor rearranges the pixels")
    return fits.reshape(*coordinates.shape[:-3], 1, rows, columns).expand(coordinates.shape)


def embed_pixels(
    model: nn.Module, inputs: Mapping[str, Any], pixels: Mapping[str, Tensor], streams: Sequence[Stream],
    mixers: Iterable[str], random_state: Tensor,
) -> dict[Stream, Tensor]:  # fmt: skip
    """Return the input (B, m, d) of each stream that depends on the pixels, with its autograd graph.

    Hooks let each layer (an entry of a module list, or one of `mixers`) return its input unchanged if the shapes agree.
    So attention inside these modules does not mix the tokens, and each token depends only on its own pixels.
    """
    modules, embedded = dict(model.named_modules()), dict[Stream, Tensor]()

    def read(stream: Stream) -> Callable[..., None]:
        def hook(_: nn.Module, arguments: Any, keywords: Any) -> None:
            named = [("", value) for value in arguments] + [*keywords.items()]
            fitting = [(name, fit) for name, value in {id(value): (name, value) for name, value in named}.values()
                       for fit in _sequence_of(value, stream.keys)]  # fmt: skip
            if len(fitting) > 1 and stream.kind != "self":
                fitting = [pair for pair in fitting if any(word in pair[0] for word in ("encoder", "cross", "key"))]
            if fitting and stream not in embedded:
                embedded[stream] = fitting[0][1]
                if len(embedded) == len(streams):
                    raise _Reached

        return hook

    with ExitStack() as stack, torch.enable_grad(), torch.random.fork_rng():
        torch.set_rng_state(random_state)  # some models choose patches at random
        for stream in streams:
            stack.callback(modules[stream.name].register_forward_pre_hook(read(stream), with_kwargs=True).remove)
        for name in {name for name in modules if name.split(".")[-1].isdecimal()} | {*mixers}:
            stack.callback(modules[name].register_forward_hook(_pass_over, with_kwargs=True, prepend=True).remove)
        stack.enter_context(suppress(_Reached))
        model(**{**inputs, **pixels})
    return embedded


def _sequence_of(value: Any, keys: int) -> Iterator[Tensor]:
    """Yield the value as a sequence (B, m, d) if it has m keys and depends on the pixels."""
    if isinstance(value, Tensor) and value.requires_grad and value.ndim > 2:
        if value.shape[-2] == keys and value.ndim == 3:
            yield value
        elif value.ndim == 4 and value.shape[1] * value.shape[2] == keys:
            yield value.flatten(1, 2)


def _pass_over(_: nn.Module, arguments: Any, keywords: Any, output: Any) -> Any:
    """Return a module's input in place of its output if they have the same shape."""
    result = output[0] if isinstance(output, tuple) and output else output
    tensors = (value for value in [*arguments, *keywords.values()] if isinstance(value, Tensor))
    passed = next((tensor for tensor in tensors if tensor.shape == getattr(result, "shape", None)), result)
    return (passed, *output[1:]) if isinstance(output, tuple) and output else passed


def measure_cells(embedded: Tensor, pixels: Mapping[str, Tensor], located: Located) -> Cells:
    """Return the pixels of each token of a sequence (m, d) that is a function of the pixels.

    The gradient of a sum of tokens is nonzero at the pixels of these tokens. For each bit, one sum covers the tokens
    whose number has the bit, and another sum the rest. A pixel that has a nonzero gradient in exactly one sum for each
    bit belongs to one token, and the bits give its number.
    """
    count, generator = len(embedded), torch.Generator().manual_seed(0)
    direction = torch.rand(embedded.shape[1:], generator=generator).to(embedded) + 0.5
    numbers = torch.arange(count, device=embedded.device)
    shapes = {name: tensor.shape for name, tensor in pixels.items()}
    owners = {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()}
    unique = {name: torch.ones(shape, dtype=torch.bool) for name, shape in shapes.items()}
    depends = False
    for bit in range(max(1, (count - 1).bit_length())):
        gradients_by_bit = []
        for value in (0, 1):
            chosen = ((numbers >> bit) & 1) == value
            total = (embedded[chosen] * direction).sum()
            gradients = torch.autograd.grad(total, [*pixels.values()], retain_graph=True, allow_unused=True)
            gradients_by_bit.append([None if gradient is None else gradient.cpu() != 0 for gradient in gradients])
        for name, without, with_bit in zip(pixels, *gradients_by_bit, strict=True):
            if without is None or with_bit is None:
                unique[name][:] = False
            else:
                depends = depends or bool(without.any() or with_bit.any())
                unique[name] &= without != with_bit
                owners[name] += with_bit.long() << bit
    sums, counts = torch.zeros(count, 4, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    for name, (x, y) in located.items():
        chosen = unique[name] & ~x.isnan() & ~y.isnan()
        owner, (x, y) = owners[name][chosen], (x[chosen], y[chosen])
        counts.index_add_(0, owner, torch.ones_like(x))
        sums.index_add_(0, owner, torch.stack([x, y, x * x, y * y], -1))
    means = sums / counts[:, None]
    # The variance of numbers that fill an interval evenly is a twelfth of its squared length.
    sizes = (12 * (means[:, 2:] - means[:, :2] ** 2)).clamp(min=0).sqrt()
    return Cells(means[:, :2], sizes, counts, depends)


class Lattice(NamedTuple):
    """Tokens in complete rows and columns: the box that they cover, and the cell of each token unless row by row."""

    rows: int
    columns: int
    box: tuple[float, float, float, float]
    order: list[int] | None


def find_lattices(centres: Tensor, sizes: Tensor) -> list[Lattice]:
    """Divide consecutive tokens into lattices: one whose cells may have any order, or several that are row by row."""
    tolerance = torch.maximum(0.3 * sizes.median(0).values, 1e-3 * (centres.amax(0) - centres.amin(0))).clamp(min=1e-6)
    complete = _complete_lattice(centres, sizes, tolerance)
    if complete is not None:
        return [complete]
    lattices, start = [], 0
    while start < len(centres):
        points = centres[start:]
        steps = points.diff(dim=0)
        is_along = (steps[:, 0] > tolerance[0]) & (steps[:, 1].abs() < tolerance[1])
        columns = int(is_along.long().cumprod(0).sum()) + 1
        rows = points[: len(points) // columns * columns].reshape(-1, columns, 2)
        below = rows[1:] - rows[:-1]
        step = below[:1, :1, 1] if len(below) else below.new_zeros(1, 1)
        is_below = (below[..., 0].abs() < tolerance[0]) & (below[..., 1] > tolerance[1])
        is_below &= (below[..., 1] - step).abs() < tolerance[1]
        count = (int(is_below.all(-1).long().cumprod(0).sum()) + 1) * columns
        chosen = slice(start, start + count)
        lattice = _complete_lattice(centres[chosen], sizes[chosen], tolerance)
        if lattice is None:
            raise unknown_positions("tokens are not in rows and columns")
        lattices.append(lattice)
        start += count
    return lattices


def _complete_lattice(centres: Tensor, sizes: Tensor, tolerance: Tensor) -> Lattice | None:
    """Return the lattice of points in complete rows and columns, else None."""
    indices, edges, counts = [], [], []
    for axis in (0, 1):
        values, order = centres[:, axis].sort()
        groups = (values.diff(prepend=values[:1]) > tolerance[axis]).cumsum(0)
        index = torch.empty_like(groups).scatter_(0, order, groups)
        count = int(groups[-1]) + 1
        offset = index.double() - index.double().mean()
        spread = (offset**2).sum()
        step = (offset * centres[:, axis]).sum() / spread if count > 1 else sizes[:, axis].mean()
        middle = centres[:, axis].mean() - step * index.double().mean()
        if float((middle + step * index - centres[:, axis]).abs().max()) > 0.25 * float(step):
            return None
        first = float(middle - step / 2)
        indices.append(index)
        counts.append(count)
        edges.append((first, first + count * float(step)))
    (columns, rows), cells = counts, indices[1] * counts[0] + indices[0]
    if len(cells) != rows * columns or len(cells.unique()) != len(cells):
        return None
    numbers = cells.tolist()
    box = (edges[0][0], edges[1][0], edges[0][1], edges[1][1])
    return Lattice(rows, columns, box, None if numbers == [*range(len(numbers))] else numbers)


def arrange(cells: Cells, labels: Sequence[str | Token]) -> list[str | Token | Lattice]:
    """Return the `tokens` entries of a sequence: lattices for a run of tokens with pixels, labels for other tokens."""
    entries, start = list[str | Token | Lattice](), 0
    has_pixels = (cells.counts > 0).tolist()
    while start < len(has_pixels):
        if not has_pixels[start]:
            entries.append(labels[start])
            start += 1
            continue
        end = next((k for k in range(start, len(has_pixels)) if not has_pixels[k]), len(has_pixels))
        entries += find_lattices(cells.centres[start:end], cells.sizes[start:end])
        start = end
    return entries


def draw_grids(entries_by_kind: Mapping[str, Sequence[str | Token | Lattice]], image: Any) -> dict[str, Any]:
    """Return `tokens` with grids on the visible region of the image, in which padding is grey."""
    from PIL import Image

    boxes = np.array([e.box for entries in entries_by_kind.values() for e in entries if isinstance(e, Lattice)])
    if not len(boxes):
        raise unknown_positions("each token depends on all pixels, or none does")
    frame = np.array([*boxes[:, :2].min(0), *boxes[:, 2:].max(0)])
    edges = np.array([0, 0, *image.size])
    snapped = np.where(abs(frame - edges) < 0.01 * max(image.size), edges, frame).tolist()
    corner, size = tuple(map(math.floor, snapped[:2])), tuple(map(math.ceil, snapped[2:]))
    if (*corner, *size) == (0, 0, *image.size):
        region = image
    else:
        region = Image.new("RGB", (size[0] - corner[0], size[1] - corner[1]), (128, 128, 128))
        region.paste(image, (-corner[0], -corner[1]))
    limits = np.array([*region.size, *region.size])

    def draw(entry: Any) -> Any:
        if not isinstance(entry, Lattice):
            return entry
        box = np.clip(np.array(entry.box) - [*corner, *corner], 0, limits).tolist()
        original = None if region is image else (image, (*corner, *size))
        return Grid(entry.rows, entry.columns, image=region, box=box, order=entry.order, original=original)

    return {kind: [draw(entry) for entry in entries] for kind, entries in entries_by_kind.items()}


def grids_of(
    trace: Trace, model: nn.Module, encode: Encode, inputs: Mapping[str, Any], image: Any,
    random_state: Tensor, words: Sequence[str | Token] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return the `tokens=` of a recording of a model with an image, by kind.

    Args:
        trace: The recording.
        model: The model.
        encode: Returns the model's arguments for another image of the same size.
        inputs: The recorded arguments.
        image: The Pillow image.
        random_state: The state of PyTorch's random numbers before the recording.
        words: The tokens of the text, with placeholders for the image.

    Raises:
        ValueError: The positions cannot be measured.
    """
    streams, mixers = _find_streams(trace)
    located = locate_pixels(encode, inputs, image)
    pixels = {name: inputs[name].detach().clone().requires_grad_() for name in located}
    embedded = embed_pixels(model, inputs, pixels, streams, mixers, random_state)
    entries = dict[str, list[str | Token | Lattice]]()
    for stream in streams:
        sequence, names = embedded.get(stream), words if len(words) == stream.keys else None
        if sequence is None:
            new = [*(names or map(str, range(stream.keys)))]
        elif len(sequence) != 1 or stream.batch != 1:
            number = max(len(sequence), stream.batch)
            raise unknown_positions(f"{stream.name!r} attends within {number} windows or tiles")
        else:
            cells = measure_cells(sequence[0], pixels, located)
            if cells.depends and not cells.counts.any():
                raise unknown_positions(f"{stream.name!r} reads tokens that each depend on several patches")
            new = arrange(cells, names or _name_tokens(model, cells.counts == 0))
        if entries.setdefault(stream.kind, new) != new:
            raise unknown_positions(f"{stream.name!r} reads other positions than earlier layers; select layers=...")
    return draw_grids(entries, image)


def _find_streams(trace: Trace) -> tuple[list[Stream], set[str]]:
    """Return the streams of the first run, and the attention modules that are in no module list."""
    calls = [*trace.calls()]
    calls = [(call, record) for call, record in calls if call.run == calls[0][0].run]
    tower = "image" if any(call.kind == "self" for call, _ in calls) else "self"
    streams, mixers = dict[tuple[Any, ...], Stream](), set[str]()
    for call, record in calls:
        components = call.name.split(".")
        last = max((k for k, component in enumerate(components) if component.isdecimal()), default=-1)
        kind = {"": tower, "cross": "encoder"}.get(call.kind, call.kind)
        stream = Stream(kind, call.name, record.sizes[2], math.prod(record.shape[:-3]))
        streams.setdefault((stream._replace(name=""), *components[: max(last, 0)]), stream)
        mixers |= {call.name} if last < 0 and call.name else set()
    return [*streams.values()], mixers


_SPECIAL = {"class token": r"(cls|class)_(token|embedding|pos)$", "distillation token": r"distillation_token$",
            "register": r"(register|storage)_tokens?$", "detection": r"detection_tokens$"}  # fmt: skip


def _name_tokens(model: nn.Module, is_special: Tensor) -> list[str]:
    """Name tokens without pixels after the model's special-token parameters if their number fits; "" for others."""
    parameters, names = dict(model.named_parameters()), list[str]()
    for name, pattern in _SPECIAL.items():
        sizes = [p.numel() // p.shape[-1] for key, p in parameters.items() if re.search(pattern, key)]
        count = sizes[0] if sizes else 0
        names += [name] * count if "token" in name else [f"{name} {k + 1}" for k in range(count)]
    special = iter(names if len(names) == int(is_special.sum()) else [])
    return [next(special, f"token {k}") if unseen else "" for k, unseen in enumerate(is_special.tolist())]
