"""The display of a running training on a terminal or in a log."""

import sys

import torch

from dikkat.translation.settings import Criterion
from dikkat.translation.training.state import Epoch, TrainingState, Validation

LOG_EVERY = 10  # steps: to show a number costs as much as a small step


class Display:
    """Shows nothing of a training; subclasses show it."""

    def on_epoch_start(self, epoch: int) -> None:
        """An epoch, from 1, begins or goes on."""

    def on_step(self, batch: int, loss: float, tokens_per_second: float) -> None:
        """Every `LOG_EVERY` steps, from the first one on: the epoch's batches so far, and its speed."""

    def on_validation(self, validation: Validation) -> None:
        """A validation is over."""

    def on_epoch_end(self, epoch: Epoch) -> None:
        """An epoch is over."""

    def close(self) -> None:
        """The training is over, or broken off."""


class Bar(Display):
    """A bar an epoch on standard error, in one line of 80 columns."""

    def __init__(self, epochs: int, batches: int, criterion: Criterion) -> None:
        # Here: loading a model needs no progress bar.
        from rich.progress import Progress, TaskID

        self._epochs, self._batches, self._criterion = epochs, batches, criterion
        self._valid = ""
        self._progress, self._task = Progress(), TaskID(0)

    def on_epoch_start(self, epoch: int) -> None:
        """The next bar, below those of the epochs before."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(f"Epoch {epoch}/{self._epochs}", total=self._batches, text="")
        self._progress.start()

    def on_step(self, batch: int, loss: float, tokens_per_second: float) -> None:
        """The newest numbers, with as many digits as they are good for."""
        text = f"loss: {loss:.3f}{self._valid} tokens/s: {tokens_per_second:,.0f}"
        self._progress.update(self._task, completed=batch, text=text)

    def on_validation(self, validation: Validation) -> None:
        """The newest validation, from now on."""
        by_loss = self._criterion == "loss"
        self._valid = f" valid: {validation.loss:.3f}" if by_loss else f" BLEU: {validation.bleu:.1f}"

    def on_epoch_end(self, epoch: Epoch) -> None:
        """The bar is full, and shows what the epoch came to."""
        self.on_step(self._batches, epoch.training_loss, epoch.tokens_per_second)
        self._progress.stop()

    def close(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()


class Lines(Display):
    """A line an epoch, where there is no terminal for a bar; with `validations`, one for each of them too."""

    def __init__(self, criterion: Criterion, *, validations: bool) -> None:
        self._criterion, self._validations = criterion, validations
        self._bleu = ""

    def on_validation(self, validation: Validation) -> None:
        """Say how it went."""
        self._bleu = f", BLEU {validation.bleu:.1f}" if self._criterion == "bleu" else ""
        if self._validations:
            _say(f"step {validation.step}: validation loss {validation.loss:.3f}{self._bleu}")

    def on_epoch_end(self, epoch: Epoch) -> None:
        """Say how the epoch went."""
        validated = epoch.validation_loss is not None and not self._validations
        loss = f"validation loss {epoch.validation_loss:.3f}{self._bleu}, " if validated else ""
        _say(
            f"epoch {epoch.number}: training loss {epoch.training_loss:.3f}, {loss}{epoch.tokens_per_second:,.0f} "
            "tokens/s"
        )


def say_where(state: TrainingState) -> None:
    """Say from where a training goes on, and with how many threads."""
    number = torch.get_num_threads()
    _say(f"going on in epoch {state.epoch + 1} after step {state.step}, with {number} thread{'s' * (number > 1)}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
