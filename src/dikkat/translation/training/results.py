"""The result of a training: a translator, or an error with the best translator so far."""

from collections.abc import Sequence
from dataclasses import dataclass

from dikkat.translation.decoding.evaluation import Evaluation
from dikkat.translation.decoding.translator import Translator
from dikkat.translation.training.state import Epoch, Validation


@dataclass(frozen=True)
class Training:
    """A trained translator and the course of its training.

    Attributes:
        translator: The translator with the weights of the best validation, or the mean of the best ones; the last
            weights without validation, or if the training was interrupted before the first one.
        epochs: All epochs in order, including an incomplete last one.
        pairs: The number of training pairs without those that are too long.
        seconds: The time of training and validation, including the time before a stop.
        tokens_per_second: Target tokens, ends included, divided by the training time.
        interrupted: Whether Ctrl-C or a termination signal ended the training.
        resumable: Whether `resume` can continue the interrupted training.
        validations: All validations in order.
        sketch: Hashes of source sentences of the training pairs, in hexadecimal digits, for `Origin`.
        scores: Scores of the translations of up to 500 validation pairs; None without validation, after an
            interruption, and in all processes except the first.
    """

    translator: Translator
    epochs: list[Epoch]
    pairs: int
    seconds: float
    tokens_per_second: float
    interrupted: bool = False
    resumable: bool = False
    validations: Sequence[Validation] = ()
    scores: Evaluation | None = None
    sketch: str | None = None

    @property
    def best(self) -> Validation | None:
        """The best validation by the settings' criterion; None without validations."""
        criterion = self.translator.settings.criterion
        return max(self.validations, key=lambda validation: validation.quality(criterion), default=None)


class TrainingError(RuntimeError):
    """Training cannot continue.

    Attributes:
        training: The result with the best weights so far; None before the first validation.
    """

    training: Training | None = None


class TrainingDivergedError(TrainingError):
    """A loss, a gradient or a weight became NaN or infinite."""


class TrainingMemoryError(TrainingError):
    """A batch needs more memory than is available."""


class TrainingStorageError(TrainingError):
    """A checkpoint could not be written, for example because the disk is full; the previous one is intact."""
