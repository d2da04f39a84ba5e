"""Curves of a training for TensorBoard."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from dikkat.extras import missing
from dikkat.translation.decoding.translator import Translation
from dikkat.translation.training.callbacks import Callback, Moment
from dikkat.translation.training.state import Validation

_NO_TENSORFLOW = "tensorboard.compat.notf"
_DOTS = 200  # an inch, as in the files of heat maps: TensorBoard enlarges a picture to its card
_PICTURES = 3  # each takes a fifth of a second to draw


class Curves(Callback):
    """Losses, learning rate, speed, BLEU, and what the model looked at in a few sentences that are always the same."""

    def __init__(self, folder: Path, step: int) -> None:
        _leave_tensorflow_alone()
        from torch.utils.tensorboard import SummaryWriter

        self._writer: SummaryWriter | None = None
        try:
            self._writer = SummaryWriter(folder, purge_step=step + 1)
        except OSError as error:
            self._give_up(error)

    def on_step(self, moment: Moment) -> None:
        """The numbers of a step."""
        self._write("add_scalar", "training/loss", moment.loss, moment.step)
        self._write("add_scalar", "training/learning rate", moment.learning_rate, moment.step)
        self._write("add_scalar", "training/tokens a second", moment.tokens_per_second, moment.step)

    def on_validation(self, validation: Validation) -> None:
        """The numbers of a validation."""
        self._write("add_scalar", "validation/loss", validation.loss, validation.step)
        if validation.bleu is not None:
            self._write("add_scalar", "validation/BLEU", validation.bleu, validation.step)

    def on_translations(self, step: int, translations: Sequence[Translation]) -> None:
        """Heat maps of a few translations, spread evenly over all."""
        from dikkat.show import heatmaps

        if self._writer is None:
            return
        count = min(_PICTURES, len(translations))
        for number in range(1, count + 1):
            each = translations[(number - 1) * len(translations) // count]
            if each.weights.numel():
                figure = heatmaps(
                    each.weights,
                    queries=each.target_tokens,
                    keys=each.source_tokens,
                    xlabel="source",
                    ylabel="translation",
                )
                figure.set_dpi(_DOTS)
                # Figures of dikkat's are not pyplot's, so there is nothing to close.
                self._write("add_figure", f"attention/sentence {number}", figure, step, close=False)

    def close(self) -> None:
        """Write what is still waiting."""
        self._write("close")

    def _write(self, what: str, *values: Any, **options: Any) -> None:
        try:
            if self._writer is not None:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)  # heatmaps has warned
                    getattr(self._writer, what)(*values, **options)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Warn, and write no more curves: the training goes on."""
        self._writer = None
        warnings.warn(
            f"the curves for TensorBoard end here, since they could not be written ({error.strerror or error}); the "
            "training goes on",
            UserWarning,
            stacklevel=4,
        )


def _leave_tensorflow_alone() -> None:
    """Have TensorBoard use its own stub of TensorFlow, which is all that a writer needs.

    It imports TensorFlow, for seconds and with remarks on standard error, wherever that is installed, unless there is
    a module of this name: `tensorboard.compat.tf` says so. Where TensorFlow is imported already, nothing is to be won.
    """
    if "tensorflow" not in sys.modules:
        sys.modules.setdefault(_NO_TENSORFLOW, ModuleType(_NO_TENSORFLOW))


def curves(folder: Path, step: int) -> list[Callback]:
    """`Curves`, where TensorBoard is installed; where it is not, a warning says so."""
    try:
        return [Curves(folder, step)]
    except ImportError:
        warnings.warn(
            f"there will be no curves: {missing('TensorBoard', 'tensorboard')}",
            UserWarning,
            stacklevel=2,
        )
        return []
