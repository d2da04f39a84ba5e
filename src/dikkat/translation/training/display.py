"""The display of a running training on a terminal or in a log."""

import sys

import torch

from dikkat.translation.settings import Criterion
from dikkat.translation.training.state import Epoch, TrainingState, Validation

LOG_EVERY = 10  # steps: displaying a number takes as long as a small step


class Display:
    """A display that shows nothing; subclasses show the training."""

    def on_epoch_start(self, epoch: int) -> None:
        """Called when an epoch, from 1, begins or resumes."""

    def on_step(self, batch: int, loss: float, tokens_per_second: float) -> None:
        """Called every `LOG_EVERY` steps, with the epoch's batches so far and its speed."""

    def on_validation(self, validation: Validation) -> None:
        """Called after a validation."""

    def on_epoch_end(self, epoch: Epoch) -> None:
        """Called after an epoch."""

    def close(self) -> None:
        """Called when the training ends or fails."""


class Bar(Display):
    """A progress bar for each epoch on standard error, in one line of 80 columns."""

    def __init__(self, epochs: int, batches: int, criterion: Criterion) -> None:
        # Not at the top: loading a model needs no progress bar.
        from rich.progress import Progress, TaskID

        self._epochs, self._batches, self._criterion = epochs, batches, criterion
        self._valid = ""
        self._progress, self._task = Progress(), TaskID(0)

    def on_epoch_start(self, epoch: int) -> None:
        """Start the epoch's bar below earlier bars."""
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
        """Show the newest numbers."""
        text = f"loss: {loss:.3f}{self._valid} tokens/s: {tokens_per_second:,.0f}"
        self._progress.update(self._task, completed=batch, text=text)

    def on_validation(self, validation: Validation) -> None:
        """Show the newest validation from now on."""
        by_loss = self._criterion == "loss"
        self._valid = f" valid: {validation.loss:.3f}" if by_loss else f" BLEU: {validation.bleu:.1f}"

    def on_epoch_end(self, epoch: Epoch) -> None:
        """Show the full bar with the epoch's result."""
        self.on_step(self._batches, epoch.training_loss, epoch.tokens_per_second)
        self._progress.stop()

    def close(self) -> None:
        """Stop updating the bar."""
        self._progress.stop()


class Lines(Display):
    """A line for each epoch, without a terminal, and for each validation with `validations`."""

    def __init__(self, criterion: Criterion, *, validations: bool) -> None:
        self._criterion, self._validations = criterion, validations
        self._bleu = ""

    def on_validation(self, validation: Validation) -> None:
        """Print the validation's result."""
        self._bleu = f", BLEU {validation.bleu:.1f}" if self._criterion == "bleu" else ""
        if self._validations:
            _print(f"step {validation.step}: validation loss {validation.loss:.3f}{self._bleu}")

    def on_epoch_end(self, epoch: Epoch) -> None:
        """Print the epoch's result."""
        shows_loss = epoch.validation_loss is not None and not self._validations
        loss = f"validation loss {epoch.validation_loss:.3f}{self._bleu}, " if shows_loss else ""
        _print(
            f"epoch {epoch.number}: training loss {epoch.training_loss:.3f}, {loss}{epoch.tokens_per_second:,.0f} "
            "tokens/s"
        )


def print_resume_point(state: TrainingState) -> None:
    """Print the epoch and step from which a training resumes, and the number of threads."""
    number = torch.get_num_threads()
    _print(f"resuming in epoch {state.epoch + 1} after step {state.step}, with {number} thread{'s' * (number > 1)}")


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
