"""What the launcher and the kernels of local moments both know: the record of a call, and the sizes of tables."""

from dikkat.cpu.engine.record import Record
from dikkat.cpu.scoring import PROFILES

TILE = 4
"""Blocks of keys in a tile."""
GROUP = 32
"""Tiles in a group, around which there is a box too; a multiple of a vector's lanes."""
BINS, PRICES = 512, 32
"""Bins of tail mass by squared distance; steps beyond the reach that have a price, the last of all beyond."""
WINDOWS = (*PROFILES, "average")
"""The windows, in the order of their numbers."""
AVERAGE = len(PROFILES)

CALL = Record(
    numbers="query key value weight scale low high group_low group_high mass lse row fit moments",
    integers="exclude",
    whole="rows queries features values tiles boxes groups columns degree profile squared stride",
    real="tolerance",  # its logarithm, of base 2
    regions="sums weights weighted delta near tails prices peaks spent apart across scales",
)

SWEEP = Record(
    numbers="query key weight value left right powers",
    integers="exclude",
    whole="rows queries keys values terms order mass_powers value_powers degree columns profile squared closed",
    real="scale span limit floor",
    regions="sums before behind shifted factors",
)
"""The call of a sweep along one feature."""
