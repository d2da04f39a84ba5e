"""The pixels of an image that each token of a model depends on, measured through its processor and embeddings.

No model is recognised by its name. dikkat runs the processor on test images: a black and a white one give the range of
each number of `pixel_values`, and two ramps its column and row in the image. Gradients of the model show which of these
numbers each token depends on, before a layer mixes the tokens.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dikkat.inspection.image_inputs import ImageInputs
from dikkat.inspection.trace import Trace
from dikkat.show.positions import Grid, Token

Encode = Callable[[Any], Mapping[str, Any]]
# name of a tensor of pixels → the x and y image coordinates of each of its numbers
Located = Mapping[str, tuple[Tensor, Tensor]]
_SEVERAL_TOKENS, _NO_TOKEN = -1, -2
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
    inputs: ImageInputs, pixels: Mapping[str, Tensor], streams: Sequence[Stream], mixers: Iterable[str],
    random_state: Tensor,
) -> dict[Stream, Tensor]:  # fmt: skip
    """Return the input (B, m, d) of each stream that depends on the pixels, with its autograd graph.

    Hooks let each layer (an entry of a module list, or one of `mixers`) return its input unchanged if the shapes agree.
    So attention inside these modules does not mix the tokens, and each token depends only on its own pixels.
    """
    modules, embedded = dict(inputs.model.named_modules()), dict[Stream, Tensor]()
    if any(parameter.is_inference() for parameter in inputs.model.parameters()):
        raise ValueError("model: got parameters made in torch.inference_mode; expected parameters with gradients. Load "
                         "the model outside of torch.inference_mode")  # fmt: skip

    def hook_of(stream: Stream) -> Callable[..., None]:
        def hook(_: nn.Module, arguments: Any, keywords: Any) -> None:
            named = {id(value): (name, value) for name, value in [*(("", v) for v in arguments), *keywords.items()]}
            sequences = [(name, sequence) for name, value in named.values()
                         for sequence in _sequence_of(value, stream.keys)]  # fmt: skip
            if len(sequences) > 1 and stream.kind != "self":
                sequences = [pair for pair in sequences if any(word in pair[0] for word in ("encoder", "cross", "key"))]
            if sequences and stream not in embedded:
                embedded[stream] = sequences[0][1]
                if len(embedded) == len(streams):
                    raise _Reached

        return hook

    with ExitStack() as stack, torch.enable_grad(), torch.random.fork_rng():
        torch.set_rng_state(random_state)  # some models choose patches at random
        for stream in streams:
            stack.callback(modules[stream.name].register_forward_pre_hook(hook_of(stream), with_kwargs=True).remove)
        for name in {name for name in modules if name.split(".")[-1].isdecimal()} | {*mixers}:
            stack.callback(modules[name].register_forward_hook(_skip_module, with_kwargs=True, prepend=True).remove)
        stack.enter_context(suppress(_Reached))
        replace(inputs, arguments={**inputs.arguments, **pixels}).run(inputs.model)
    return embedded


def _sequence_of(value: Any, keys: int) -> Iterator[Tensor]:
    """Yield the value as a sequence (B, m, d) if it has m keys and depends on the pixels."""
    if isinstance(value, Tensor) and value.requires_grad and value.ndim > 2:
        if value.shape[-2] == keys and value.ndim == 3:
            yield value
        elif value.ndim == 4 and value.shape[1] * value.shape[2] == keys:
            yield value.flatten(1, 2)


def _skip_module(_: nn.Module, arguments: Any, keywords: Any, output: Any) -> Any:
    """Return a module's input in place of its output if they have the same shape."""
    result = output[0] if isinstance(output, tuple) and output else output
    tensors = (value for value in [*arguments, *keywords.values()] if isinstance(value, Tensor))
    unchanged = next((tensor for tensor in tensors if tensor.shape == getattr(result, "shape", None)), result)
    return (unchanged, *output[1:]) if isinstance(output, tuple) and output else unchanged


def measure_cells(embedded: Tensor, pixels: Mapping[str, Tensor], located: Sequence[Located]) -> list[Cells]:
    """Return the pixels in each image of each token of a sequence (m, d) that is a function of the pixels."""
    count, depends, owners = len(embedded), False, _find_owners(embedded, pixels)
    cells = list[Cells]()
    for coordinates in located:
        sums, counts = torch.zeros(count, 4, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
        for name, (x, y) in coordinates.items():
            is_owned = (owners[name] >= 0) & ~x.isnan() & ~y.isnan()
            depends = depends or bool((owners[name] > _NO_TOKEN).any())
            owner, (x, y) = owners[name][is_owned], (x[is_owned], y[is_owned])
            counts.index_add_(0, owner, torch.ones_like(x))
            sums.index_add_(0, owner, torch.stack([x, y, x * x, y * y], -1))
        means = sums / counts[:, None]
        # The variance of numbers that fill an interval evenly is a twelfth of its squared length.
        sizes = (12 * (means[:, 2:] - means[:, :2] ** 2)).clamp(min=0).sqrt()
        cells.append(Cells(means[:, :2], sizes, counts, depends))
    return cells


def _find_owners(embedded: Tensor, pixels: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the number of the token that depends on each pixel; −1 for several tokens, −2 for none.

    Each token has a code of digits. For each digit, a sum of all tokens multiplies a token with the digit d by 2^d. If
    only one token depends on a pixel, the gradient of this sum is exactly 2^d times the gradient of the plain sum.
    """
    count, digits, generator = len(embedded), 1, torch.Generator().manual_seed(0)
    base = 8 if embedded.dtype == torch.float16 else 64  # 2⁶³ is too large for float16
    while base**digits < count:
        digits += 1
    direction = torch.rand(embedded.shape[1:], generator=generator).to(embedded) + 0.5
    codes = torch.randperm(base**digits, generator=generator)[:count]
    token_of_code = torch.full((base**digits,), _SEVERAL_TOKENS)
    token_of_code[codes] = torch.arange(count)
    projections, gradients = (embedded * direction).sum(-1), []
    for factors in (torch.ones(count), *(2.0 ** (codes // base**k % base) for k in range(digits))):
        total = (projections * factors.to(projections)).sum()
        gradients.append(torch.autograd.grad(total, [*pixels.values()], retain_graph=True, allow_unused=True))
    owners = {name: torch.full(tensor.shape, _NO_TOKEN) for name, tensor in pixels.items()}
    for name, plain, *scaled in zip(pixels, *gradients, strict=True):
        if plain is None:
            continue
        divisor = plain.cpu().double()
        is_single, code = divisor != 0, torch.zeros(divisor.shape, dtype=torch.int64)
        owners[name][torch.stack([gradient.cpu() != 0 for gradient in (plain, *scaled)]).any(0)] = _SEVERAL_TOKENS
        for k, gradient in enumerate(scaled):
            quotient = gradient.cpu().double() / divisor
            digit = quotient.log2().round().nan_to_num(-1, -1, -1).clamp(-1, base)
            is_single &= ((quotient / 2**digit - 1).abs() < 1e-6) & (digit >= 0) & (digit < base)
            code += digit.clamp(0, base - 1).long() * base**k
        # By chance, a few pixels of several tokens have such quotients.
        if int(is_single.sum()) > 0.02 * int((owners[name] > _NO_TOKEN).sum()):
            owners[name] = torch.where(is_single, token_of_code[code], owners[name])
    return owners


class Lattice(NamedTuple):
    """Tokens in complete rows and columns: the box that they cover, and the cell of each token unless row by row."""

    rows: int
    columns: int
    box: tuple[float, float, float, float]
    order: list[int] | None
    image: int = 0  # the number of the image


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
        tokens = slice(start, start + count)
        lattice = _complete_lattice(centres[tokens], sizes[tokens], tolerance)
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


def place_tokens(cells_by_image: Sequence[Cells], labels: Sequence[str | Token]) -> list[str | Token | Lattice]:
    """Return the `tokens` entries of a sequence: lattices for a run of tokens with pixels, labels for other tokens.

    A token belongs to the image with most of its pixels, such as the first frame of several.
    """
    counts, entries, start = torch.stack([cells.counts for cells in cells_by_image]), list[str | Token | Lattice](), 0
    numbers = torch.where(counts.amax(0) > 0, counts.argmax(0), -1).tolist()
    for number, run in groupby(numbers):
        tokens = slice(start, start + len([*run]))
        if number < 0:
            entries += labels[tokens]
        else:
            cells = cells_by_image[number]
            lattices = find_lattices(cells.centres[tokens], cells.sizes[tokens])
            entries += [lattice._replace(image=number) for lattice in lattices]
        start = tokens.stop
    return entries


def draw_grids(entries_by_kind: Mapping[str, Sequence[str | Token | Lattice]], images: Sequence[Any]) -> dict[str, Any]:
    """Return `tokens` with grids on the visible region of each image, in which padding is grey."""
    boxes = dict[int, list[tuple[float, ...]]]()
    for entry in chain(*entries_by_kind.values()):
        if isinstance(entry, Lattice):
            boxes.setdefault(entry.image, []).append(entry.box)
    if not boxes:
        raise unknown_positions("each token depends on all pixels, or none does")
    regions = {number: _crop(images[number], np.array(boxes[number])) for number in boxes}

    def draw(entry: Any) -> Any:
        if not isinstance(entry, Lattice):
            return entry
        (region, frame), image = regions[entry.image], images[entry.image]
        box = np.clip(np.array(entry.box) - [*frame[:2], *frame[:2]], 0, [*region.size, *region.size]).tolist()
        original = None if region is image else (image, frame)
        return Grid(entry.rows, entry.columns, image=region, box=box, order=entry.order, original=original)

    return {kind: [draw(entry) for entry in entries] for kind, entries in entries_by_kind.items()}


def _crop(image: Any, boxes: NDArray[np.float64]) -> tuple[Any, tuple[int, ...]]:
    """Return the region of an image that boxes cover, and its (left, top, right, bottom)."""
    from PIL import Image

    edges = np.array([0, 0, *image.size])
    frame = np.array([*boxes[:, :2].min(0), *boxes[:, 2:].max(0)])
    snapped = np.where(abs(frame - edges) < 0.01 * max(image.size), edges, frame).tolist()
    corner, end = tuple(map(math.floor, snapped[:2])), tuple(map(math.ceil, snapped[2:]))
    if (*corner, *end) == (0, 0, *image.size):
        return image, (*corner, *end)
    region = Image.new("RGB", (end[0] - corner[0], end[1] - corner[1]), (128, 128, 128))
    region.paste(image, (-corner[0], -corner[1]))
    return region, (*corner, *end)


def find_tokens(
    trace: Trace, inputs: ImageInputs, random_state: Tensor, words: Sequence[str | Token] = ()
) -> dict[str, Any]:
    """Return the `tokens=` of a recording of a model with images, by kind.

    Args:
        trace: The recording.
        inputs: The recorded inputs.
        random_state: The state of PyTorch's random numbers before the recording.
        words: The tokens of the text, with placeholders for the images.

    Raises:
        ValueError: The positions cannot be measured.
    """
    streams, mixers = _find_streams(trace)
    located = [locate_pixels(partial(inputs.encode_with, number), inputs.arguments, image)
               for number, image in enumerate(inputs.images)]  # fmt: skip
    pixels = {name: inputs.arguments[name].detach().clone().requires_grad_() for name in {*chain(*located)}}
    embedded = embed_pixels(inputs, pixels, streams, mixers, random_state)
    entries = dict[str, list[str | Token | Lattice]]()
    for stream in streams:
        sequence, names = embedded.get(stream), words if len(words) == stream.keys else None
        if sequence is None:
            labels: list[str | Token | Lattice] = [*(names or map(str, range(stream.keys)))]
        elif len(sequence) != 1 or stream.batch != 1:
            number = max(len(sequence), stream.batch)
            raise unknown_positions(f"{stream.name!r} attends within {number} windows or tiles")
        else:
            cells = measure_cells(sequence[0], pixels, located)
            has_pixels = torch.stack([image.counts for image in cells]).any(0)
            if cells[0].depends and not has_pixels.any():
                raise unknown_positions(f"{stream.name!r} reads tokens that each depend on several patches")
            labels = place_tokens(cells, names or _name_tokens(inputs.model, ~has_pixels))
        if entries.setdefault(stream.kind, labels) != labels:
            raise unknown_positions(f"{stream.name!r} reads other positions than earlier layers; select layers=...")
    return draw_grids(entries, inputs.images)


def _find_streams(trace: Trace) -> tuple[list[Stream], set[str]]:
    """Return the streams of the first run, and the attention modules that are in no module list."""
    calls = [*trace.calls()]
    # `generate` runs image towers before the model's first run.
    calls = [(call, record) for call, record in calls if call.run <= max(1, calls[0][0].run)]
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
