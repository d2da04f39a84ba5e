"""Positions of queries and keys: words, the patches of an image, and times."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dikkat.scores import check_size
from dikkat.show.arrays import as_array
from dikkat.show.pictures import read_image

__all__ = ["Grid", "Labels", "Part", "Times", "Token", "TokenList", "Tokens", "Words", "describe_counts", "tokens_of"]


class Token(NamedTuple):
    """A token as a page shows it."""

    text: str
    special: bool = False  # whether the tokenizer added it, such as the start of a text
    continues: bool = False  # whether it continues the word of the previous token


@dataclass(frozen=True)
class Grid:
    """The patches of an image as queries and keys, row by row.

    Pass it as `tokens`, or in a list with words: `tokens=["[CLS]", dikkat.Grid(14, 14, image=image)]`. Several grids
    may share an image, such as its tiles.

    Args:
        rows: The number of rows of patches.
        columns: The number of patches in a row.
        image: The image that the model saw: a Pillow image, a path, or an array or tensor (rows, columns),
            (rows, columns, 1|3|4) or (1|3|4, rows, columns) of floats from 0 to 1, uint8 or uint16. None draws an empty
            grid.
        box: (left, top, right, bottom) in pixels of the image: the region that the patches cover. None for all of it.
        order: The cell of each position, row · columns + column. None for row by row.
        original: (image, (left, top, right, bottom)): the Pillow image that `image` is a region of, and the region in
            its pixels, which a page shows. A saved trace does not have it. None for no other image.
        pixel_size: The width and height of a pixel of `image`, in pixels of the original size if you scaled the image.

    Attributes:
        image: A Pillow image in mode "L" or "RGB" with transparent pixels in white, or None. A longer side above 2,048
            pixels is scaled down.
        box: The region in pixels of this image; None without an image.
        pixel_size: The width and height of a pixel of this image, in pixels of the original size.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A number or shape does not fit, or Pillow cannot read the file.
        OSError: The file cannot be read.
        ModuleNotFoundError: Pillow is not installed.

    Example:
        >>> Grid(2, 3, image=np.zeros((32, 48)))
        Grid(2, 3, image=48 × 32 pixels)
    """

    rows: int
    columns: int
    _: KW_ONLY
    image: Any = None
    box: Sequence[float] | None = None
    order: Sequence[int] | None = None
    original: tuple[Any, Sequence[float]] | None = field(default=None, compare=False)
    pixel_size: tuple[float, float] = field(default=(1.0, 1.0), compare=False)

    def __post_init__(self) -> None:
        """Check and convert the arguments."""
        for name in ("rows", "columns"):
            check_size(name, getattr(self, name))
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.order is not None:
            try:
                order = tuple(map(operator.index, self.order))
            except TypeError:
                raise TypeError(f"order: got {self.order!r}; expected a list of whole numbers") from None
            if sorted(order) != [*range(len(self))]:
                raise ValueError(f"order: got {len(order)} cells; expected 0 to {len(self) - 1}, once each")
            object.__setattr__(self, "order", order)
        if len(scale := tuple(self.pixel_size)) != 2 or not all(0 < side < math.inf for side in scale):
            raise ValueError(f"pixel_size: got {self.pixel_size!r}; expected (width, height), two numbers above 0")
        if self.image is None:
            if self.box is not None:
                raise ValueError(
                    f"box: got {self.box} without an image; expected image=..., whose pixels the box counts"
                )
            return
        image, original = read_image(self.image)
        object.__setattr__(self, "image", image)
        object.__setattr__(self, "box", self._check_box(image.size, original))
        pixel_size = tuple(side * scale[k] / image.size[k] for k, side in enumerate(original))
        object.__setattr__(self, "pixel_size", pixel_size)

    def _check_box(self, size: tuple[int, int], original: tuple[int, int]) -> tuple[float, ...]:
        """Return the box in pixels of the scaled image."""
        if self.box is None:
            return 0.0, 0.0, float(size[0]), float(size[1])
        box, (width, height) = tuple(float(edge) for edge in self.box), original
        fits = len(box) == 4 and 0 <= box[0] < box[2] <= width + 1e-3 and 0 <= box[1] < box[3] <= height + 1e-3
        if not fits:
            raise ValueError(f"box: got {self.box}; expected (left, top, right, bottom) inside the image of "
                             f"{width} × {height} pixels")  # fmt: skip
        scales = (size[0] / width, size[1] / height) * 2
        return tuple(min(edge * scale, size[k % 2]) for k, (edge, scale) in enumerate(zip(box, scales, strict=True)))

    def __len__(self) -> int:
        return self.rows * self.columns

    def __repr__(self) -> str:
        image = "" if self.image is None else f", image={self.image.width} × {self.image.height} pixels"
        return f"Grid({self.rows}, {self.columns}{image})"

    def cell_size(self) -> tuple[float, float] | None:
        """Return the width and height of a cell in pixels of the original size; None without an image."""
        if self.box is None:
            return None
        width, height = (self.box[axis + 2] - self.box[axis] for axis in (0, 1))
        return width / self.columns * self.pixel_size[0], height / self.rows * self.pixel_size[1]

    def in_reading_order(self, values: Any) -> Any:
        """Return the values (..., p) of the positions row by row."""
        return values if self.order is None else values[..., np.argsort(self.order)]

    def cells(self) -> list[tuple[int, int]]:
        """Return the row and the column of each position, from 0."""
        return [divmod(cell, self.columns) for cell in self.order or range(len(self))]

    def labels(self) -> list[Token]:
        """Return a token for each position. Rows and columns count from 1."""
        return [Token(f"row {row + 1}, column {column + 1}") for row, column in self.cells()]


@dataclass(frozen=True)
class Words:
    """Words as queries and keys. A list of strings in `tokens` means the same.

    Args:
        texts: A string or `dikkat.inspection.Token` for each position.

    Raises:
        TypeError: A text is not a string.

    Example:
        >>> len(Words(["[CLS]", "[REG]"]))
        2
    """

    texts: Sequence[str | Token]

    def __post_init__(self) -> None:
        """Check the texts."""
        object.__setattr__(self, "texts", tuple(_check_labels("texts", self.texts)))

    def __len__(self) -> int:
        return len(self.texts)

    def labels(self) -> list[Token]:
        """Return a token for each position."""
        return [text if isinstance(text, Token) else Token(text) for text in self.texts]


@dataclass(frozen=True)
class Times:
    """Points in time as queries and keys.

    Args:
        values: A rising time for each position.
        series: Numbers to draw along the same axis, evenly spaced from the first to the last time, or one for each time
            if there are as many. None draws only the axis.

    Raises:
        TypeError: The values or the series are not real numbers.
        ValueError: Times do not rise, a number is not finite, or there are none.

    Example:
        >>> Times([0.0, 0.5, 1.0], series=[2.0, 3.0, 1.0]).labels()[1].text
        '0.5'
    """

    values: Sequence[float]
    _: KW_ONLY
    series: Sequence[float] | None = None
    columns = 1

    def __post_init__(self) -> None:
        """Check and convert the numbers."""
        values = _check_numbers("values", self.values)
        if any(later <= earlier for earlier, later in pairwise(values)):
            raise ValueError(f"values: got times that do not rise, from {values[0]:g}; expected rising numbers")
        object.__setattr__(self, "values", values)
        if self.series is not None:
            object.__setattr__(self, "series", _check_numbers("series", self.series))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def rows(self) -> int:
        """The number of times."""
        return len(self)

    def cells(self) -> list[tuple[int, int]]:
        """Return the row and the column of each position, from 0."""
        return [(row, 0) for row in range(len(self))]

    def labels(self) -> list[Token]:
        """Return a token for each position."""
        texts = [f"{value:.6g}" for value in self.values]
        return [Token(text) for text in (texts if len({*texts}) == len(texts) else map(repr, self.values))]


def _check_numbers(name: str, numbers: Any) -> tuple[float, ...]:
    """Return finite numbers as a tuple."""
    array = as_array(numbers, name)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(f"{name}: got numbers of shape {array.shape}; expected a list of finite numbers")
    return tuple(array.tolist())


Part = Grid | Words | Times
Labels = Sequence[str | Token | Part] | Part
Tokens = Labels | tuple[Labels, Labels] | Mapping[str, Labels]  # what users pass as `tokens`


class TokenList(list[Token]):
    """The tokens of a sequence.

    Attributes:
        parts: The grids and times in the sequence, by their first position.
    """

    def __init__(self, tokens: Iterable[Token] = (), layouts: Mapping[int, Grid | Times] | None = None) -> None:
        super().__init__(tokens)
        self.parts = dict[int, Grid | Times]()
        for first, layout in (layouts or {}).items():
            self.add(first, layout)

    def add(self, first: int, layout: Grid | Times) -> None:
        """Add a grid or times of the tokens from the position `first` on."""
        if first < 0 or first + len(layout) > len(self):
            last = first + len(layout) - 1
            raise ValueError(
                f"parts: got {layout} at positions {first} to {last}; expected positions from 0 to {len(self) - 1}"
            )
        self.parts[first] = layout

    def select(self, positions: Sequence[int]) -> TokenList:
        """Return the tokens at these positions, with the parts that remain complete."""
        numbers, layouts = [*positions], dict[int, Grid | Times]()
        for first, layout in self.parts.items():
            start = numbers.index(first) if first in numbers else len(numbers)
            if numbers[start : start + len(layout)] == [*range(first, first + len(layout))]:
                layouts[start] = layout
        return TokenList([self[position] for position in numbers], layouts)

    def __repr__(self) -> str:
        layouts = ", ".join(f"{first}: {layout}" for first, layout in self.parts.items())
        return super().__repr__() if not layouts else f"TokenList of {len(self)} with {{{layouts}}}"


def grid_starts(layouts: Mapping[int, Grid | Times]) -> dict[int, tuple[int, int]]:
    """Return the number of the lattice of each grid and the number of its rows above the grid, by first position.

    A grid is a part of the previous grid's lattice if it has as many columns directly below it on the same image. So
    the rows of an image are one lattice, even if a separator follows each row.
    """
    starts, last, number, row = dict[int, tuple[int, int]](), None, -1, 0
    for first, grid in layouts.items():
        if not isinstance(grid, Grid):
            continue
        is_below = last is not None and _is_below(last, grid)
        number, row = (number, row + last.rows) if last is not None and is_below else (number + 1, 0)
        starts[first], last = (number, row), grid
    return starts


def _is_below(upper: Grid, lower: Grid) -> bool:
    """Return whether the columns of a grid continue directly below another grid of the same image."""
    is_same = upper.image is lower.image or upper.image == lower.image
    if upper.image is None or not is_same or upper.box is None or lower.box is None:
        return False
    width, height = (upper.box[2] - upper.box[0]) / upper.columns, (upper.box[3] - upper.box[1]) / upper.rows
    changes = lower.box[0] - upper.box[0], lower.box[2] - upper.box[2]
    gaps = lower.box[1] - upper.box[3], (lower.box[3] - lower.box[1]) / lower.rows - height
    is_aligned = max(map(abs, changes)) < 0.25 * width and max(map(abs, gaps)) < 0.25 * height
    return is_aligned and upper.columns == lower.columns


def of_only_element(tokens: Any) -> Any:
    """Return the tokens in a list of one element's tokens; other tokens unchanged."""
    is_batch = isinstance(tokens, list) and len(tokens) == 1 and not isinstance(tokens[0], str | Token | Part)
    return tokens[0] if is_batch else tokens


def tokens_of(tokens: object) -> dict[str, TokenList]:
    """Convert a list, a pair (source, target) or a mapping to tokens by kind: "self", "encoder", "image"."""
    if isinstance(tokens, Mapping):
        by_kind = dict(tokens)
    elif (
        isinstance(tokens, tuple)
        and not isinstance(tokens, Token)
        and len(tokens) == 2
        and not any(isinstance(labels, str | Token) for labels in tokens)
    ):
        by_kind = {"self": tokens[1], "encoder": tokens[0]}
    else:
        by_kind = {"self": tokens}
    if by_kind.keys() - {"self", "encoder", "image"}:
        names = ", ".join(map(repr, by_kind))
        raise TypeError(f"tokens: got {names}; expected 'self', and 'encoder' for a source, 'image' for an image tower")
    return {kind: _join_layouts(labels) for kind, labels in by_kind.items()}


def _join_layouts(labels: object) -> TokenList:
    """Join words, grids and times to one list of tokens."""
    if isinstance(labels, TokenList):
        return labels
    entries = [labels] if isinstance(labels, Part) else labels
    sequence = TokenList()
    for entry in _check_labels("tokens", entries, (str, Token, Grid, Words, Times)):
        if isinstance(entry, Grid | Times):
            sequence.parts[len(sequence)] = entry
        sequence += entry.labels() if isinstance(entry, Part) else [entry if isinstance(entry, Token) else Token(entry)]
    starts = grid_starts(sequence.parts)
    has_several = any(number for number, _ in starts.values())
    for first, (number, above) in starts.items():  # texts of cells are unique
        image = f"image {number + 1}, " if has_several else ""
        for position, (row, column) in enumerate(sequence.parts[first].cells(), first):
            sequence[position] = Token(f"{image}row {above + row + 1}, column {column + 1}")
    return sequence


def _check_labels(name: str, labels: Any, types: tuple[type, ...] = (str, Token)) -> Sequence[Any]:
    """Raise TypeError unless `labels` is a list of these types."""
    if isinstance(labels, str | bytes | Token) or not isinstance(labels, Sequence):
        raise TypeError(f"{name}: got {type(labels).__name__}; expected a list of strings, or (source, target), two "
                        "lists")  # fmt: skip
    for index, label in enumerate(labels):
        if not isinstance(label, types) or (isinstance(label, Token) and not isinstance(label.text, str)):
            layouts = ", or dikkat.Grid, Words or Times" if Grid in types else ""
            raise TypeError(f"{name}[{index}]: got {type(label).__name__}; expected str or dikkat.inspection.Token"
                            f"{layouts}")  # fmt: skip
    return labels


def describe_counts(tokens: TokenList, expected: int) -> str:
    """Return the end of an error message: the token count of each part, and an example with the expected count."""
    words = len(tokens) - sum(map(len, tokens.parts.values()))
    counts = " + ".join([*([f"{words} word{'s' * (words > 1)}"] if words else []), *map(repr, tokens.parts.values())])
    for extra in (words, *range(min(6, expected))):
        side = math.isqrt(max(0, expected - extra))
        if side and side * side == expected - extra:
            first = "*words, " if extra > 1 else "'[CLS]', " if extra else ""
            return f"{counts}; expected {expected}, such as tokens=[{first}dikkat.Grid({side}, {side}, image=image)]"
    return f"{counts}; expected {expected}, such as tokens=[dikkat.Grid(rows, columns, image=image)]"
