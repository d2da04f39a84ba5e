"""The records of the calls of local moments, and the sizes that their launcher and their kernels share."""

from dikkat._engine.record import Record

TILE = 4
"""Blocks of keys in a tile."""
GROUP = 32
"""Tiles in a group, around which there is a box too; a multiple of a vector's lanes."""
BINS, PRICES = 512, 32
"""Bins of tail mass by squared distance; steps beyond the reach that have a price, the last of all beyond."""
LARGEST = 1e30
"""A ridge that leaves nothing of a slope, and can be added and divided by in float32."""

CALL = Record(
    numbers="query key value weight scale low high group_low group_high mass lse row fit ridge toward moments",
    integers="exclude",
    whole="rows queries features values tiles boxes groups columns degree gaussian squared stride lines slopes",
    real="tolerance unit least rounding far",  # the tolerance's logarithm, of base 2
    regions="sums weights weighted delta near tails prices peaks spent apart across scales means system right by",
)
"""A call of `kernel`: pairs of queries and keys, in tiles."""

SORTED = Record(
    numbers="query key weight value polynomial powers",
    integers="exclude",
    whole="rows queries keys values terms order mass_powers value_powers degree columns gaussian squared",
    real="scale span limit floor",
    regions="sums before behind shifted factors",
)
"""A call of `sorted_sums`: one feature, along which keys and queries are sorted."""
