"""Training on Lightning. Nothing else of dikkat imports it, so that translating does not wait for it."""

import logging
import math
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, RichProgressBar, Timer
from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from dikkat.translation.batches import Batches, TokenPair
from dikkat.translation.corpus import Pair
from dikkat.translation.errors import CorpusError
from dikkat.translation.model import Batch, TranslationModel
from dikkat.translation.precision import check_precision
from dikkat.translation.settings import Settings
from dikkat.translation.tokenizer import SPECIAL_TOKENS, Tokenizer
from dikkat.translation.translator import Translator

_LOG_EVERY = 10  # steps; Lightning's log costs as much as a small step


class TrainingError(RuntimeError):
    """Training cannot go on.

    Attributes:
        training: what there is: the translator with the best weights so far; None before the first validation.
    """

    training: "Training | None" = None


class TrainingDivergedError(TrainingError):
    """A loss, a gradient or a weight is no longer a number, so that going on would be useless."""


class TrainingMemoryError(TrainingError):
    """A batch needs more memory than there is."""


@dataclass(frozen=True)
class Epoch:
    """What an epoch came to.

    Attributes:
        number: from 1.
        training_loss: mean loss of a target token in training, with dropout and label smoothing; in nats.
        validation_loss: mean loss of a target token in validation, without them; in nats.
        tokens_per_second: target tokens, ends included, trained on in a second.
    """

    number: int
    training_loss: float
    validation_loss: float
    tokens_per_second: float


@dataclass(frozen=True)
class Training:
    """A trained translator, and how it became one.

    Attributes:
        translator: with the weights of the epoch that had the lowest validation loss.
        epochs: all epochs, in order.
        pairs: training pairs used; longer ones than the settings allow are left out.
        seconds: time spent training and validating.
        tokens_per_second: target tokens, ends included, over the time spent training on them.
        interrupted: whether Ctrl-C ended it.
    """

    translator: Translator
    epochs: list[Epoch]
    pairs: int
    seconds: float
    tokens_per_second: float
    interrupted: bool = False


def train(
    settings: Settings,
    training: Sequence[Pair],
    validation: Sequence[Pair],
    *,
    progress: bool | None = None,
) -> Training:
    """Train a translator: Adam with warm-up and decay, clipped gradients, early stopping on the validation loss.

    The vocabularies come from the training pairs alone. The weights that are kept are those with the lowest validation
    loss. The same settings, pairs and number of threads give the same translator, unless `max_minutes` is set. Ctrl-C
    ends the training; the best translator so far is then returned.

    Args:
        settings: the model's and the training's.
        training: (source, target) sentences to learn from.
        validation: (source, target) sentences to stop by; none of them should be a training pair.
        progress: whether to show a progress bar; None: where standard error is a terminal. Without one, each epoch is
            a line on standard error; False shows nothing.

    Returns:
        The translator and the course of the training.

    Raises:
        CorpusError: no training or no validation pairs, or none that is short enough.
        SettingsError: a precision that the processor does not have, or a pair longer than `batch_tokens`.
        TrainingDivergedError: the loss, a gradient or a weight became NaN or infinite; the message names the step.
        TrainingMemoryError: a batch needs more memory than there is; the message says how large it is. Both have
            the best translator so far, if there is one, as `error.training.translator`.
        KeyboardInterrupt: Ctrl-C before the first epoch was over.
    """
    if not training or not validation:
        raise CorpusError(
            f"there are {len(training)} training and {len(validation)} validation pairs; both need at least one"
        )
    check_precision(settings.precision, _device())
    with torch.random.fork_rng(), _quiet_lightning():  # the caller's random numbers stay as they were
        torch.manual_seed(settings.seed)
        translator = _untrained(settings, training)
        training_pairs = _short(_numbered(translator, training), settings.max_length, "training")
        validation_pairs = _short(_numbered(translator, validation), settings.max_length, "validation")
        batches = _batches(training_pairs, settings, settings.seed)
        lesson = _Lesson(translator.model, settings, steps=settings.epochs * len(batches))
        trainer = _trainer(settings, sys.stderr.isatty() if progress is None else progress, lines=progress is None)
        started = time.perf_counter()
        fault = _fit(trainer, lesson, batches, _batches(validation_pairs, settings, seed=None))
        seconds = time.perf_counter() - started
    if fault is not None and not lesson.best:
        raise fault
    lesson.restore_best()
    translator.model.to("cpu").eval()
    rate = lesson.all_tokens / lesson.all_seconds
    result = Training(translator, lesson.epochs, len(training_pairs), seconds, rate, trainer.interrupted)
    if fault is not None:
        fault.training = result
        raise fault
    return result


def _fit(trainer: lightning.Trainer, lesson: "_Lesson", training: Batches, validation: Batches) -> TrainingError | None:
    """Train; after Ctrl-C or a fault, go on with what there is. The fault comes back."""
    try:
        trainer.fit(lesson, training, validation)
    except (KeyboardInterrupt, SystemExit):  # Lightning makes the one into the other
        if not trainer.interrupted or not lesson.best:
            raise KeyboardInterrupt from None
    except TrainingError as error:
        return error
    except (RuntimeError, MemoryError) as error:
        if lesson.batch is None or not _lacks_memory(error):
            raise
        fault = lesson.memory_error(lesson.batch)
        fault.__cause__ = error
        return fault
    return None


def _lacks_memory(error: RuntimeError | MemoryError) -> bool:
    # On a CPU PyTorch has no type of its own for it.
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "DefaultCPUAllocator" in str(error)


def _batches(pairs: Sequence[TokenPair], settings: Settings, seed: int | None) -> Batches:
    return Batches(pairs, settings.batch_size, seed, batch_tokens=settings.batch_tokens)


def _untrained(settings: Settings, training: Sequence[Pair]) -> Translator:
    source, target = (
        Tokenizer.train(
            [pair[side] for pair in training],
            settings.tokenizer,
            min_freq=settings.min_freq,
            vocabulary_size=settings.vocabulary_size,
        )
        for side in (0, 1)
    )
    for tokenizer, language in ((source, "source"), (target, "target")):
        if len(tokenizer) <= len(SPECIAL_TOKENS):
            raise CorpusError(
                f"no {language} word occurs {settings.min_freq} times, so that none would be learnt: use a min_freq "
                "of 1, or a larger corpus"
            )
    return Translator(TranslationModel(settings, len(source), len(target)), settings, source, target)


def _numbered(translator: Translator, pairs: Sequence[Pair]) -> list[TokenPair]:
    sources = translator.source_tokenizer.numbers([source for source, _ in pairs])
    targets = translator.target_tokenizer.numbers([target for _, target in pairs])
    return list(zip(sources, targets, strict=True))


def _short(pairs: Sequence[TokenPair], max_length: int, purpose: str) -> list[TokenPair]:
    short = [pair for pair in pairs if max(map(len, pair)) <= max_length]
    kept = [pair for pair in short if pair[0]]
    if not kept:
        raise CorpusError(
            f"none of the {len(pairs)} {purpose} pairs has at most {max_length} tokens on each side: raise max_length"
        )
    if left_out := len(pairs) - len(short):
        warnings.warn(
            f"{left_out:,} of {len(pairs):,} {purpose} pairs left out: longer than {max_length} tokens on a side; "
            "see max_length",
            UserWarning,
            stacklevel=3,
        )
    return kept


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _trainer(settings: Settings, bar: bool, lines: bool) -> lightning.Trainer:
    callbacks: list[Callback] = [EarlyStopping("validation_loss", patience=settings.patience, check_finite=False)]
    if settings.max_minutes is not None:
        callbacks.append(Timer(timedelta(minutes=settings.max_minutes), verbose=False))
    if bar:
        callbacks.append(_Bar(refresh_rate=_LOG_EVERY, leave=True, console_kwargs={"stderr": True}))
    elif lines:
        callbacks.append(_Lines())
    return lightning.Trainer(
        accelerator={"cuda": "gpu", "cpu": "cpu"}[_device()],
        devices=1,
        max_epochs=settings.epochs,
        callbacks=callbacks,
        log_every_n_steps=_LOG_EVERY,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=bar,
        num_sanity_val_steps=0,
    )


class _Lesson(lightning.LightningModule):
    """What Lightning asks of a training."""

    def __init__(self, model: TranslationModel, settings: Settings, steps: int) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        self.steps = steps
        self.started = time.monotonic()
        self.epochs: list[Epoch] = []
        self.best: dict[str, Tensor] = {}
        self.batch: Batch | None = None  # the one at work
        self.all_tokens, self.all_seconds = 0, 0.0
        self._begin_epoch()

    def configure_optimizers(self) -> Any:  # Lightning's own type is a union of twelve
        """Adam, and a learning rate that rises over the warm-up and falls to 0 at the planned end."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.settings.learning_rate, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._share_of_learning_rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _share_of_learning_rate(self, step: int) -> float:
        warm = min(1.0, (step + 1) / (self.settings.warmup_steps + 1))
        done = step / self.steps
        if self.settings.max_minutes is not None:
            done = max(done, (time.monotonic() - self.started) / (60 * self.settings.max_minutes))
        return warm * max(0.0, 1.0 - done)

    def on_train_epoch_start(self) -> None:
        """A new count."""
        self._begin_epoch()

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """Loss of a batch."""
        self.batch = batch
        tokens = int(batch.target_lengths.sum())
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
            loss = self.model.loss(batch, label_smoothing=self.settings.label_smoothing)
        value = loss.item()
        if not math.isfinite(value):
            raise self._diverged(
                f"the loss became {value} at step {self.global_step + 1}", self.model.named_parameters()
            )
        self.loss_sum += value * tokens
        self.tokens += tokens
        if index % _LOG_EVERY == 0:
            rate = self.tokens / (time.perf_counter() - self.epoch_started)
            self.log_dict({"loss": value, "tokens/s": rate}, prog_bar=True, batch_size=tokens, logger=False)
        return loss

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clips the gradient; its norm, which that takes, tells whether the step would spoil the weights."""
        named = [(name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([gradient for _, gradient in named])
        if not math.isfinite(float(norm)):
            gradients = ((f"the gradient of {name}", gradient) for name, gradient in named)
            raise self._diverged(f"the gradient's norm became {float(norm)} at step {self.global_step + 1}", gradients)
        nn.utils.clip_grads_with_norm_(self.model.parameters(), self.settings.gradient_clip, norm)

    def on_validation_epoch_start(self) -> None:
        """The epoch's training is over."""
        self.epoch_seconds = time.perf_counter() - self.epoch_started

    def validation_step(self, batch: Batch, index: int) -> None:
        """Adds up the loss of a batch."""
        self.batch = batch
        self.validation_sum += self.model.loss(batch, reduction="sum").item()
        self.validation_tokens += int(batch.target_lengths.sum())

    def on_validation_epoch_end(self) -> None:
        """Keeps the weights if they are the best so far."""
        loss = self.validation_sum / self.validation_tokens
        if not math.isfinite(loss) or _first_not_finite(self.model.named_parameters()):
            raise self._diverged(
                f"the validation loss is {loss} after step {self.global_step}", self.model.named_parameters()
            )
        if loss < min((epoch.validation_loss for epoch in self.epochs), default=math.inf):
            self.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        self.all_tokens += self.tokens
        self.all_seconds += self.epoch_seconds
        training_loss, rate = self.loss_sum / self.tokens, self.tokens / self.epoch_seconds
        self.epochs.append(Epoch(len(self.epochs) + 1, training_loss, loss, rate))
        self.log("validation_loss", loss, prog_bar=True, batch_size=self.validation_tokens, logger=False)

    def memory_error(self, batch: Batch) -> TrainingMemoryError:
        """How large the batch was, and which settings make smaller ones."""
        source, target = batch.source_lengths, batch.target_lengths
        return TrainingMemoryError(
            f"out of memory after {self.global_step} steps, on a batch of {len(source)} pairs of up to "
            f"{int(source.max())} source and {int(target.max())} target tokens: use a smaller batch_size (or "
            "batch_tokens), max_length or hidden_size"
        )

    def _diverged(self, what: str, tensors: Iterable[tuple[str, Tensor | None]]) -> TrainingDivergedError:
        name = _first_not_finite(tensors)
        return TrainingDivergedError(
            f"{what}{f', where {name} is not finite' if name else ''}: the training has diverged. Use a learning_rate "
            f"below {self.settings.learning_rate} or a gradient_clip below "
            f"{self.settings.gradient_clip}"
        )

    def restore_best(self) -> None:
        """Put back the weights of the best validation."""
        self.model.load_state_dict(self.best)

    def _begin_epoch(self) -> None:
        self.loss_sum, self.tokens, self.epoch_started, self.epoch_seconds = 0.0, 0, time.perf_counter(), 0.0
        self.validation_sum, self.validation_tokens = 0.0, 0


def _first_not_finite(tensors: Iterable[tuple[str, Tensor | None]]) -> str | None:
    return next((name for name, tensor in tensors if tensor is not None and not bool(tensor.isfinite().all())), None)


class _Bar(RichProgressBar):
    """A bar an epoch on standard error, in one line of 80 columns."""

    def configure_columns(self, trainer: lightning.Trainer) -> list[ProgressColumn]:
        """What stands before the losses; the time is what is left of the epoch."""
        return [
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
        ]

    def get_metrics(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> dict[str, Any]:
        """The losses and the speed, with as many digits as they are good for."""
        values = super().get_metrics(trainer, pl_module)
        shown = {"loss": "loss", "validation_loss": "valid", "tokens/s": "tokens/s"}
        return {
            name: f"{values[key]:{',.0f' if key == 'tokens/s' else '.3f'}}"
            for key, name in shown.items()
            if key in values
        }

    def _get_train_description(self, current_epoch: int) -> str:  # Lightning's own counts from 0
        return f"{f'Epoch {current_epoch + 1}/{self.trainer.max_epochs}':{len(self.validation_description)}}"


class _Lines(Callback):
    """A line an epoch, where there is no terminal for a bar."""

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Says how the epoch went."""
        if isinstance(pl_module, _Lesson):
            epoch = pl_module.epochs[-1]
            print(
                f"epoch {epoch.number}: training loss {epoch.training_loss:.3f}, validation loss "
                f"{epoch.validation_loss:.3f}, {epoch.tokens_per_second:,.0f} tokens/s",
                file=sys.stderr,
                flush=True,
            )


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Lightning's remarks on devices, on services to subscribe to, and on its own use of PyTorch are not for users."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Lightning 2.6 walks trees in a way that PyTorch 2.13 wants spelled differently.
            warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated", category=FutureWarning)
            yield
    finally:
        logger.setLevel(level)
