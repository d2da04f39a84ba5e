"""The progress and the intermediate results of a training."""

import dataclasses
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from dikkat.translation.settings import Criterion


@dataclass(frozen=True)
class Epoch:
    """The result of an epoch.

    Attributes:
        number: From 1.
        training_loss: Mean loss of a target token in training, with dropout, label smoothing and `r_drop`; in nats.
        validation_loss: Mean loss of a target token in the last validation so far, without dropout, label smoothing
            and `r_drop`; in nats. None without validation.
        tokens_per_second: Target tokens, ends included, per second of training.
    """

    number: int
    training_loss: float
    validation_loss: float | None
    tokens_per_second: float


@dataclass(frozen=True)
class Validation:
    """The result of a validation.

    Attributes:
        step: The number of optimiser steps before the validation.
        loss: Mean loss of a target token, without dropout and label smoothing; in nats.
        bleu: sacreBLEU of the translations of validation pairs, cased, from 0 to 100; None if it was not computed.
    """

    step: int
    loss: float
    bleu: float | None = None

    def quality(self, criterion: Criterion) -> float:
        """Return the criterion's value, with the sign that makes larger values better."""
        if criterion == "loss":
            return -self.loss
        if self.bleu is None:
            raise ValueError(f"the validation after step {self.step} has no BLEU")
        return self.bleu


@dataclass
class TrainingState:
    """The progress of a training.

    `batch`, `loss_sum`, `tokens` and `seconds` belong to the current epoch, `all_tokens` and `all_seconds` to all
    epochs. `elapsed` counts seconds since the start without pauses between a stop and its resume. `sums` has the
    SHA-256 of the best weights' files by step.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    all_tokens: int = 0
    all_seconds: float = 0.0
    elapsed: float = 0.0
    epochs: list[Epoch] = field(default_factory=list)
    validations: list[Validation] = field(default_factory=list)
    finished: bool = False
    sums: dict[str, str] = field(default_factory=dict)

    def add_step(self, loss: float, tokens: int, seconds: float, batch: int) -> None:
        """Count a step."""
        self.step, self.batch = self.step + 1, batch
        self.loss_sum += loss * tokens
        self.tokens += tokens
        self.seconds += seconds
        self.all_tokens += tokens
        self.all_seconds += seconds

    def end_epoch(self) -> Epoch:
        """End the current epoch, and return its result."""
        epoch = self._present_epoch()
        self.epochs.append(epoch)
        self.epoch, self.batch = self.epoch + 1, 0
        self.loss_sum, self.tokens, self.seconds = 0.0, 0, 0.0
        return epoch

    def all_epochs(self) -> list[Epoch]:
        """Return the completed epochs, and an incomplete one if the training ended within it."""
        return [*self.epochs, self._present_epoch()] if self.finished and self.tokens else list(self.epochs)

    def _present_epoch(self) -> Epoch:
        validation_loss = self.validations[-1].loss if self.validations else None
        return Epoch(self.epoch + 1, self.loss_sum / self.tokens, validation_loss, self.tokens / self.seconds)

    def best(self, criterion: Criterion, count: int) -> list[int]:
        """Return the steps of the best validations, best first; earlier ones first if equal."""
        ranked = sorted(self.validations, key=lambda validation: (-validation.quality(criterion), validation.step))
        return [validation.step for validation in ranked[:count]]

    def since_best(self, criterion: Criterion) -> int:
        """Return the number of validations after the best one."""
        qualities = [validation.quality(criterion) for validation in self.validations]
        return len(qualities) - 1 - qualities.index(max(qualities)) if qualities else 0

    def halvings(self, criterion: Criterion) -> int:
        """Return how often "plateau" halved the learning rate: once per validation no better than the best before."""
        qualities = [validation.quality(criterion) for validation in self.validations]
        return sum(quality <= best for best, quality in zip(accumulate(qualities, max), qualities[1:], strict=False))

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name, of types that JSON has."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TrainingState":
        """Return the state from the values of `to_dict`."""
        epochs = [Epoch(**epoch) for epoch in values["epochs"]]
        validations = [Validation(**validation) for validation in values["validations"]]
        return cls(**{**values, "epochs": epochs, "validations": validations})
