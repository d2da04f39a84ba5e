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

    Groups are in the order of positions. A position outside grids and times is its own group. Grids and times
    are divided into blocks of side × side cells, row by row, which are smaller at the right and lower edges.
    """
    groups, total, position = torch.empty(count, dtype=torch.int64), 0, 0
    while position < count:
        if position not in layouts:
            groups[position] = total
            total, position = total + 1, position + 1
            continue
        cells = torch.tensor(layouts[position].cells()) // side
        rows, columns = (cells.amax(0) + 1).tolist()
        groups[position : position + len(cells)] = total + cells[:, 0] * columns + cells[:, 1]
        total, position = total + rows * columns, position + len(cells)
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

    An axis with more than 256 grids and times has a block for each.
    """
    side, limit = 1, max(_MAX_BLOCKS, *map(len, axes))
    while max(count_blocks(layouts, side) for layouts in axes) > limit:
        side += 1
    return side


def count_blocks(layouts: Layouts, side: int) -> int:
    """Return the number of blocks of side × side cells in all grids and times."""
    return sum(-(-layout.rows // side) * -(-layout.columns // side) for layout in layouts.values())


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
