"""The result of a training: a translator, or an error with the best one so far."""

from collections.abc import Sequence
from dataclasses import dataclass

from dikkat.translation.decoding.evaluation import Evaluation
from dikkat.translation.decoding.translator import Translator
from dikkat.translation.training.state import Epoch, Validation


@dataclass(frozen=True)
class Training:
    """A trained translator, and how it became one.

    Attributes:
        translator: With the weights of the best validation, or the mean of the best ones; without validation, and
            where it was interrupted before the first, the last weights.
        epochs: All epochs, in order; the last one as far as it came.
        pairs: Training pairs used; longer ones than the settings allow are left out.
        seconds: Time spent training and validating, before a stop too.
        tokens_per_second: Target tokens, ends included, over the time spent training on them.
        interrupted: Whether Ctrl-C, or the signal to end, ended it.
        resumable: Whether `resume` goes on from where it was interrupted.
        validations: All validations, in order.
        scores: Scores of what the translator's `translate` writes for up to 500 validation pairs; None without
            validation, after an interruption, and in all processes but the first.
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

    @property
    def best(self) -> Validation | None:
        """The best validation, by the settings' criterion; None where there is none."""
        criterion = self.translator.settings.criterion
        return max(self.validations, key=lambda validation: validation.quality(criterion), default=None)


class TrainingError(RuntimeError):
    """Training cannot go on.

    Attributes:
        training: What there is: the translator with the best weights so far; None before the first validation.
    """

    training: Training | None = None


class TrainingDivergedError(TrainingError):
    """A loss, a gradient or a weight is no longer a number, so that going on would be useless."""


class TrainingMemoryError(TrainingError):
    """A batch needs more memory than there is."""


class TrainingStorageError(TrainingError):
    """A checkpoint could not be written, for want of space for instance; the one before it is intact."""
