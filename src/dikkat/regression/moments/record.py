"""Call records of the local moments, and sizes that the launcher and the kernels share."""

from dikkat._engine.record import Record

TILE = 4
"""Blocks of keys in a tile."""
GROUP = 32
"""Tiles in a group, which has its own box; a multiple of a vector's lanes."""
BINS, PRICES = 512, 32
"""Bins of tail mass by squared distance; steps beyond the reach with a price, the last for all larger distances."""
LARGEST = 1e30
"""A ridge that removes a slope, but does not overflow in float32 sums and quotients."""

CALL = Record(
    numbers="query key value weight scale low high group_low group_high mass lse row fit ridge target moments",
    integers="exclude feature",
    whole="rows queries features values tiles boxes groups columns degree gaussian squared stride lines slopes held",
    real="tolerance unit second_ridge rounding far_lse",  # the tolerance's logarithm, of base 2
    regions="sums weights weighted delta distances tails prices peaks spent row_distances transposed scales means"
    " system right scaling",
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
