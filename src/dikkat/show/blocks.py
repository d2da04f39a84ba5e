"""Mean weights between words and blocks of patches, for recordings and pages of any length."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dikkat.show.positions import Grid, Times, TokenList

Layouts = Mapping[int, Grid | Times]  # by first position
_MAX_BLOCKS = 256  # recorded blocks of the grids and times of an axis


def fitting_layouts(tokens: TokenList, count: int, *, is_longer: bool = False) -> Layouts:
    """Return the grids and times in tokens of `count` positions; with `is_longer`, positions may follow the tokens."""
    return tokens.parts if len(tokens) == count or (is_longer and len(tokens) < count) else {}


def matching_tokens(tokens: Sequence[TokenList], count: int, known: int) -> TokenList:
    """Return the tokens of `count` positions, or of at most the `known` first ones; without tokens if none fit."""
    exact = [labels for labels in tokens if len(labels) == count]
    shorter = sorted((labels for labels in tokens if len(labels) <= known), key=len)
    return next(iter([*exact, *shorter[::-1]]), TokenList())


def find_groups(layouts: Layouts, count: int, side: int) -> Tensor:
    """Return the number of the group of each position, (count,).

    Groups are in the order of positions. A position outside of grids is a group. Each grid has square blocks of
    side × side cells, row by row, smaller at its right and lower edge.
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
    """Return the number of the grid, the row and the column of each position, (count, 3); −1 outside of grids."""
    cells = torch.full((count, 3), -1)
    for number, (first, layout) in enumerate(layouts.items()):
        if isinstance(layout, Grid):
            cells[first : first + len(layout)] = torch.tensor([(number, *cell) for cell in layout.cells()])
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
    """Return the side of recorded blocks: the smallest for which each axis has at most 256 of them.

    An axis with more than 256 grids and times has a block for each.
    """
    side, limit = 1, max(_MAX_BLOCKS, *map(len, axes))
    while max(count_blocks(layouts, side) for layouts in axes) > limit:
        side += 1
    return side


def count_blocks(layouts: Layouts, side: int) -> int:
    """Return the number of blocks of grids and times."""
    return sum(-(-layout.rows // side) * -(-layout.columns // side) for layout in layouts.values())


def group_means(values: Tensor, groups: Tensor, dim: int) -> Tensor:
    """Return the means of the values in each group along a dimension."""
    sizes = groups.bincount()
    shape = [*values.shape]
    shape[dim] = len(sizes)
    sums = values.new_zeros(shape).index_add_(dim, groups.to(values.device), values)
    return sums / sizes.to(values).reshape([-1 if axis == dim % values.ndim else 1 for axis in range(values.ndim)])


def merge_blocks(blocks: Tensor, fine: Tensor, coarse: Tensor, dim: int) -> Tensor:
    """Return the means of coarse groups along a dimension, from the means of fine groups that they consist of."""
    sizes, merged = fine.bincount(), torch.zeros(int(fine.max()) + 1, dtype=torch.int64)
    merged[fine] = coarse
    shape = [-1 if axis == dim % blocks.ndim else 1 for axis in range(blocks.ndim)]
    totals = blocks * sizes.to(blocks).reshape(shape)
    output = [*blocks.shape]
    output[dim] = int(coarse.max()) + 1
    return blocks.new_zeros(output).index_add_(dim, merged, totals) / coarse.bincount().to(blocks).reshape(shape)
