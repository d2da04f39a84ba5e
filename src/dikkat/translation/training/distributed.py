"""Several processes that train together, as `torchrun` starts them."""

import os
from typing import NamedTuple


class Processes(NamedTuple):
    """This process among those that train together.

    Attributes:
        rank: its number, from 0; the first one alone writes, to files and to the screen.
        world: how many there are.
        local: how many there are on this machine.
    """

    rank: int
    world: int
    local: int


def processes() -> Processes:
    """As `torchrun` has told this process, in environment variables; one of one where it has not.

    Example:
        >>> processes().world
        1
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return Processes(0, 1, 1)
    return Processes(int(os.environ["RANK"]), world, int(os.environ["LOCAL_WORLD_SIZE"]))
