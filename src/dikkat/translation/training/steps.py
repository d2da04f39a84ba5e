"""The batches of an epoch as steps of the optimiser."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from dikkat.translation.data.batches import Batches
from dikkat.translation.network.model import Batch
from dikkat.translation.training.state import TrainingState


class OptimizerStep(NamedTuple):
    """The batches of one step of the optimiser.

    Attributes:
        batches: This process's.
        weights: The factor of each batch's mean loss. The mean over all processes of their weighted sums is the mean
            loss of a target token.
        tokens: Target tokens of all batches of all processes.
        position: Batches of the epoch up to and with these.
        last: Whether the epoch ends with it.
    """

    batches: tuple[Batch, ...]
    weights: tuple[float, ...]
    tokens: int
    position: int
    last: bool


def steps(
    batches: Batches, state: TrainingState, *, epochs: int, accumulate: int, world: int
) -> Iterator[OptimizerStep]:
    """The steps that a training has yet to take.

    Args:
        batches: Those of an epoch.
        state: Where to begin, read when the first step is taken.
        epochs: Where to end.
        accumulate: Batches of a step; the last step of an epoch has those that are left.
        world: Processes that train together.

    Yields:
        Step by step, epoch by epoch.
    """
    position = state.batch
    for epoch in range(state.epoch, epochs):
        batches.load_state_dict({"epoch": epoch, "batch": position})
        left = iter(batches)
        while group := tuple(islice(left, accumulate)):
            position += len(group)
            own = [int(batch.target_lengths.sum()) for batch in group]
            tokens = sum(batch.total_tokens or count for batch, count in zip(group, own, strict=True))
            weights = [world * count / tokens if batch.counts else 0.0 for batch, count in zip(group, own, strict=True)]
            yield OptimizerStep(group, tuple(weights), tokens, position, position == len(batches))
        position = 0
