"""Groups of positions (words, or blocks of patches), and mean weights between groups."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dikkat.show.positions import Grid, Times, TokenList, grid_starts

Layouts = Mapping[int, Grid | Times]  # grids and times by the position of their first token
_MAX_BLOCKS = 256  # the most blocks that a recording keeps for the queries or the keys


def fitting_layouts(tokens: TokenList, count: int, *, is_longer: bool = False) -> Layouts:
    """Return the grids and times if the tokens label all `count` positions (`is_longer`: the first ones); else {}."""
    return tokens.parts if len(tokens) == count or (is_longer and len(tokens) < count) else {}


def matching_tokens(tokens: Sequence[TokenList], count: int, known: int) -> TokenList:
    """Return the token list with `count` tokens, else the longest with at most `known`, else an empty list."""
    exact = [labels for labels in tokens if len(labels) == count]
    shorter = sorted((labels for labels in tokens if len(labels) <= known), key=len)
    return next(iter([*exact, *shorter[::-1]]), TokenList())


def find_groups(layouts: Layouts, count: int, side: int) -> Tensor:
    """Return the index of the group of each position, (count,).

    A position outside grids and times is its own group. Grids and times are divided into blocks of side × side cells,
    which are smaller at the right and lower edges. A block of an image whose rows have separators between them covers
    several rows. Groups are in the order of their first positions, with grids row by row.
    """
    cells = find_cells(layouts, count)
    blocks = torch.cat([cells[:, :1], cells[:, 1:] // side], 1)
    outside = positions_outside(layouts, count)
    blocks[outside, 1] = outside
    for first, layout in layouts.items():
        if isinstance(layout, Times):
            blocks[first : first + len(layout), 0] = -2 - first
            blocks[first : first + len(layout), 1] = torch.arange(len(layout)) // side
    _, numbers = blocks.unique(dim=0, return_inverse=True)
    ranks = reading_order(layouts, count).argsort()
    first_ranks = torch.full((count,), count).scatter_reduce(0, numbers, ranks, "amin")
    groups: Tensor = first_ranks[numbers].unique(return_inverse=True)[1]
    return groups


def find_cells(layouts: Layouts, count: int) -> Tensor:
    """Return the index of the lattice, the row and the column of each position, (count, 3); −1 outside of grids."""
    cells = torch.full((count, 3), -1)
    for first, (number, above) in grid_starts(layouts).items():
        layout = layouts[first]
        numbered = [(number, above + row, column) for row, column in layout.cells()]
        cells[first : first + len(layout)] = torch.tensor(numbered)
    return cells


def positions_outside(layouts: Layouts, count: int) -> Tensor:
    """Return the positions that are in no grid or time axis."""
    outside = torch.ones(count, dtype=torch.bool)
    for first, layout in layouts.items():
        outside[first : first + len(layout)] = False
    return outside.nonzero()[:, 0]


def reading_order(layouts: Layouts, count: int) -> Tensor:
    """Return all positions, with those of a grid row by row."""
    order = torch.arange(count)
    for first, layout in layouts.items():
        if isinstance(layout, Grid):
            order[first : first + len(layout)] = layout.in_reading_order(order[first : first + len(layout)])
    return order


def recorded_side(axes: Sequence[Layouts]) -> int:
    """Return the side of recorded blocks: the smallest for which each axis has at most `_MAX_BLOCKS`.

    An axis with more than 256 images and times has a block for each.
    """
    sizes = [_lattice_sizes(layouts) for layouts in axes]
    side, limit = 1, max(_MAX_BLOCKS, *map(len, sizes))
    while max(_count_cells(axis, side) for axis in sizes) > limit:
        side += 1
    return side


def count_blocks(layouts: Layouts, side: int) -> int:
    """Return the number of blocks of side × side cells in all grids and times."""
    return _count_cells(_lattice_sizes(layouts), side)


def _lattice_sizes(layouts: Layouts) -> list[tuple[int, int]]:
    """Return the rows and columns of each lattice and time axis."""
    starts, sizes = grid_starts(layouts), dict[int, tuple[int, int]]()
    for first, layout in layouts.items():
        number, above = starts.get(first, (-1 - first, 0))
        sizes[number] = (above + layout.rows, layout.columns)
    return [*sizes.values()]


def _count_cells(sizes: Sequence[tuple[int, int]], side: int) -> int:
    return sum(-(-rows // side) * -(-columns // side) for rows, columns in sizes)


def group_means(values: Tensor, groups: Tensor, dim: int, sizes: Tensor | None = None) -> Tensor:
    """Return the means of the values in each group along a dimension, weighted by `sizes` if these are passed."""
    shape, totals = [*values.shape], groups.bincount(sizes)
    shape[dim] = len(totals)
    if sizes is not None:
        values = (values.movedim(dim, -1) * sizes.to(values)).movedim(-1, dim)
    sums = values.new_zeros(shape).index_add_(dim, groups.to(values.device), values)
    return (sums.movedim(dim, -1) / totals.to(values)).movedim(-1, dim)


def merge_blocks(blocks: Tensor, fine: Tensor, coarse: Tensor, dim: int) -> Tensor:
    """Combine means of fine groups into means of the coarse groups that contain them, along a dimension."""
    groups = torch.zeros(int(fine.max()) + 1, dtype=torch.int64)
    groups[fine] = coarse
    return group_means(blocks, groups, dim, fine.bincount())
