"""Callbacks of a training."""

from typing import NamedTuple

from dikkat.translation.training.state import Epoch, Validation

LOG_EVERY = 10  # steps: to show a number costs as much as a small step


class Moment(NamedTuple):
    """The position of a training after a step, and the step's numbers.

    Attributes:
        step: Steps of the optimiser so far.
        epoch: From 1.
        batch: Batches of the epoch so far.
        loss: Of the step, in nats a target token.
        learning_rate: Of the step.
        tokens_per_second: Target tokens of the epoch so far.
    """

    step: int
    epoch: int
    batch: int
    loss: float
    learning_rate: float
    tokens_per_second: float


class Callback:
    """Base class; every hook is a no-op."""

    def on_epoch_start(self, epoch: int) -> None:
        """An epoch begins, or goes on."""

    def on_step(self, moment: Moment) -> None:
        """Every `LOG_EVERY` steps, from the first one on."""

    def on_validation(self, validation: Validation) -> None:
        """A validation is over."""

    def on_epoch_end(self, epoch: Epoch) -> None:
        """An epoch is over."""

    def close(self) -> None:
        """The training is over, or broken off."""
