"""A training as Lightning runs it.

Lightning sees one long epoch in which each batch is a step of the optimiser: a `Step` with all batches whose gradients
make it. What is an epoch, when to validate and when to stop is the `Course`'s, which is stored in every checkpoint:
so a training that goes on needs nothing of the state of Lightning's loops, which only remember a place between
batches when no validation and no accumulation is under way.
"""

import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import lightning.pytorch as lightning
import torch
from torch import Tensor, nn

from dikkat.storage.tensors import described, joined, misfits
from dikkat.translation.data.batches import Batches
from dikkat.translation.data.corpus import Pair
from dikkat.translation.decoding.options import Search
from dikkat.translation.decoding.translator import Translator
from dikkat.translation.errors import (
    CorpusError,
    TrainingDivergedError,
    TrainingFolderError,
    TrainingMemoryError,
    TrainingStorageError,
)
from dikkat.translation.network.model import Batch
from dikkat.translation.training.course import Course, Validation
from dikkat.translation.training.progress import LOG_EVERY, Listener, Moment
from dikkat.translation.training.run_folder import RunFolder
from dikkat.translation.training.schedules import share_of_learning_rate
from dikkat.translation.training.signals import Interrupts
from dikkat.translation.training.threads import go_on_with

_GREEDY = Search(beam=1)
_SHOW_SECONDS = 30  # to translate and to draw for show takes about one


class Step(NamedTuple):
    """The batches of one step of the optimiser.

    Attributes:
        batches: this process's.
        weights: what each batch's mean loss counts, so that the mean over all processes of their sums is the mean
            loss of a target token.
        tokens: target tokens of all batches of all processes.
        epoch: from 0.
        position: batches of the epoch up to and with these.
        last: whether the epoch ends with it.
    """

    batches: tuple[Batch, ...]
    weights: tuple[float, ...]
    tokens: int
    epoch: int
    position: int
    last: bool


class Steps:
    """The steps that a training has yet to take.

    Args:
        batches: those of an epoch.
        course: where to begin, read when the first step is asked for.
        epochs: where to end.
        accumulate: batches of a step; at the end of an epoch those that are left.
        world: processes that train together.
    """

    def __init__(self, batches: Batches, course: Course, *, epochs: int, accumulate: int, world: int) -> None:
        self._batches, self._course = batches, course
        self._epochs, self._accumulate, self._world = epochs, accumulate, world

    def __iter__(self) -> Iterator[Step]:
        """Step by step, from the course's position on."""
        if self._course.finished:
            return
        position = self._course.batch
        for epoch in range(self._course.epoch, self._epochs):
            self._batches.load_state_dict({"epoch": epoch, "batch": position})
            for group, last in _groups(self._batches, self._accumulate):
                position += len(group)
                yield self._step(group, epoch, position, last)
            position = 0

    def _step(self, group: tuple[Batch, ...], epoch: int, position: int, last: bool) -> Step:
        own = [int(batch.target_lengths.sum()) for batch in group]
        tokens = sum(batch.total_tokens or count for batch, count in zip(group, own, strict=True))
        weights = [
            self._world * count / tokens if batch.counts else 0.0 for batch, count in zip(group, own, strict=True)
        ]
        return Step(group, tuple(weights), tokens, epoch, position, last)


def _groups(batches: Iterable[Batch], size: int) -> Iterator[tuple[tuple[Batch, ...], bool]]:
    """So many batches at a time, the last time those that are left; and whether it is the last time."""
    waiting: tuple[Batch, ...] = ()
    for batch in batches:
        if len(waiting) == size:
            yield waiting, False
            waiting = ()
        waiting = (*waiting, batch)
    if waiting:
        yield waiting, True


class Lesson(lightning.LightningModule):
    """What Lightning asks of a training.

    Args:
        translator: the model to train, with its tokenizers.
        course: where it begins.
        planned: steps of the optimiser up to the planned end.
        validation: the validation batches; None: no validation.
        sample: validation pairs to translate at each validation, for BLEU.
        begin: called once everything is checked, before the first step; makes ready, and gives who is to hear of it.
        interrupts: whether the user wants an end.
        fingerprint: of the corpora; a checkpoint of others is refused.
        folder: where checkpoints are kept; None: nowhere.
    """

    def __init__(
        self,
        translator: Translator,
        course: Course,
        *,
        planned: int,
        validation: Batches | None,
        sample: Sequence[Pair],
        begin: Callable[[], Sequence[Listener]],
        interrupts: Interrupts,
        fingerprint: dict[str, Any],
        folder: RunFolder | None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False  # a step here is all of its batches
        self.translator, self.model, self.settings = translator, translator.model, translator.settings
        self.course, self.planned = course, planned
        self.validation, self.sample = validation, sample
        self.begin, self.interrupts, self.fingerprint, self.folder = begin, interrupts, fingerprint, folder
        self.listeners: Sequence[Listener] = ()
        self.interrupted = False
        self.batch: Batch | None = None  # the one at work
        self._kept: dict[int, dict[str, Tensor]] = {}
        self._random: dict[str, Tensor] | None = None
        self._shown: float | None = None
        self._loss, self._rate, self._asked, self._late = 0.0, 0.0, False, False

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam; `training_step` sets the learning rate."""
        return torch.optim.Adam(self.parameters(), lr=self.settings.learning_rate, fused=True)

    def setup(self, stage: str) -> None:
        """The processes know of each other, and are not yet one model's, whose shapes would have to be the same."""
        self._check_agreement()

    def on_train_start(self) -> None:
        """Everything is in its place, and the same in all processes."""
        self.listeners = self.begin()
        self.interrupts.listen()
        self._started = time.monotonic() - self.course.elapsed
        self._clock = time.perf_counter()
        if not self.course.finished and self.course.epoch < self.settings.epochs:
            self._tell("on_epoch_start", self.course.epoch + 1)

    def training_step(self, step: Step, index: int) -> None:
        """One step of the optimiser."""
        self._restore_random()
        optimizer: Any = self.optimizers()
        rate = self.settings.learning_rate * self._share_of_learning_rate()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        self._loss, asked, late = self._over_processes(
            "mean", self._backward(step), self.interrupts.asked, self._is_late()
        )
        self._asked, self._late = asked > 0, late > 0
        if not math.isfinite(self._loss):
            raise self._diverged(
                f"the loss became {self._loss} at step {self.course.step + 1}", self.model.named_parameters()
            )
        self._clip_gradients()
        optimizer.step()
        self._rate = rate

    def on_train_batch_end(self, outputs: Any, step: Step, index: int) -> None:
        """Counts the step; validates, keeps a checkpoint and stops where it is time to."""
        course, settings = self.course, self.settings
        course.add_step(self._loss, step.tokens, time.perf_counter() - self._clock, step.position)
        if (course.step - 1) % LOG_EVERY == 0:
            self._tell_moment()
        every = settings.validation_steps
        due = step.last if every is None else course.step % every == 0
        if self.validation is not None and (due or self._late or (step.last and step.epoch + 1 == settings.epochs)):
            self._validate(self.validation)
            course.extra = not due
        if step.last:
            self._tell("on_epoch_end", course.end_epoch())
        course.finished = self._is_over()
        if course.finished and not step.last:
            self._tell("on_epoch_end", course.all_epochs()[-1])
        self.interrupted = self._asked and not course.finished
        stops = course.finished or self.interrupted
        course.elapsed = self._elapsed()
        if stops or step.last or course.step % settings.checkpoint_steps == 0:
            self._save()
        self.trainer.should_stop = stops
        if step.last and not stops:
            self._tell("on_epoch_start", course.epoch + 1)
        self._clock = time.perf_counter()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """What Lightning knows nothing of; its own loops are not needed, since the course has the position."""
        del checkpoint["loops"]
        checkpoint["course"] = self.course.to_dict()
        checkpoint["fingerprint"] = self.fingerprint
        checkpoint["threads"] = torch.get_num_threads()
        random = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        # Each process has random numbers of its own: the checkpoint, which one of them writes, has those of all.
        checkpoint["random"] = {name: self._of_all_processes(state) for name, state in random.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Checks that the checkpoint is one of this training; takes course, random numbers and threads from it."""
        folder = None if self.folder is None else self.folder.path
        sides = (self.state_dict(), checkpoint["state_dict"])
        if faults := misfits(*({name: described(tensor) for name, tensor in side.items()} for side in sides)):
            raise TrainingFolderError(
                f"{folder}: the checkpoint is one of another model: {joined(faults)}. Train anew into another folder"
            )
        _check_fingerprint(checkpoint["fingerprint"], self.fingerprint, f"{folder}")
        # The steps look at this very object for where to begin.
        vars(self.course).update(vars(Course.from_dict(checkpoint["course"])))
        limit = self.settings.max_minutes
        self._late = limit is not None and self.course.elapsed >= 60 * limit
        # Other settings may have moved the end.
        if self.course.extra and not self._is_at_end():
            self.course.drop_extra()
        self.course.finished = self._is_over()
        self._random = checkpoint["random"]
        processes = len(self._random["cpu"])
        if processes != self.trainer.world_size:
            raise TrainingFolderError(
                f"{folder}: the training ran in {processes} processes, and this is one of {self.trainer.world_size}. Go"
                " on with as many"
            )
        # Checkpoints of earlier versions do not have the number.
        remark = go_on_with(checkpoint.get("threads", torch.get_num_threads()))
        if remark is not None and self.trainer.is_global_zero:
            warnings.warn(remark, UserWarning, stacklevel=2)

    def close(self) -> None:
        """Nothing more is to be heard of."""
        self._tell("close")

    def keep_best(self) -> None:
        """Give the model the weights that were best, or the mean of the best ones; without validation the last."""
        steps = self.course.best(self.settings.criterion, self.settings.average)
        if len(steps) == 1:
            self.model.load_state_dict(self._weights(steps[0]))
        elif steps:
            self.model.load_state_dict(mean_of(self._weights(step) for step in steps))

    def memory_error(self, batch: Batch) -> TrainingMemoryError:
        """How large the batch was, and which settings make smaller ones."""
        source, target = batch.source_lengths, batch.target_lengths
        return TrainingMemoryError(
            f"out of memory after {self.course.step} steps, on a batch of {len(source)} pairs of up to "
            f"{int(source.max())} source and {int(target.max())} target tokens: use a smaller batch_size (or "
            "batch_tokens), max_length or hidden_size; accumulate makes up for smaller batches"
        )

    def _share_of_learning_rate(self) -> float:
        done = self.course.step / self.planned
        if self.settings.max_minutes is not None:
            done = max(done, self._elapsed() / (60 * self.settings.max_minutes))
        plateau = self.settings.schedule == "plateau"
        halvings = self.course.halvings(self.settings.criterion) if plateau else 0
        return share_of_learning_rate(self.settings, self.course.step, done=done, halvings=halvings)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _is_late(self) -> bool:
        return self.settings.max_minutes is not None and self._elapsed() >= 60 * self.settings.max_minutes

    def _is_over(self) -> bool:
        """Whether no further step is to be taken."""
        course, settings = self.course, self.settings
        return self._is_at_end() or course.since_best(settings.criterion) >= settings.patience

    def _is_at_end(self) -> bool:
        return self._late or self.course.epoch >= self.settings.epochs

    def _backward(self, step: Step) -> float:
        """Adds up the gradients of the batches' losses, and those losses; both are of the mean over all tokens."""
        total = 0.0
        for number, (batch, weight) in enumerate(zip(step.batches, step.weights, strict=True), start=1):
            self.batch = batch
            with self._alone(number < len(step.batches)):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
                    loss = self.model.loss(batch, label_smoothing=self.settings.label_smoothing)
                # By far the usual case; the multiplication would cost a pass over the largest gradient.
                self.manual_backward(loss if weight == 1 else loss * weight)
            total += loss.item() * weight
        return total

    def _alone(self, alone: bool) -> AbstractContextManager[Any]:
        """Keeps the processes' gradients apart until the last batch of a step."""
        module: Any = self.trainer.model
        return module.no_sync() if alone and self.trainer.world_size > 1 else nullcontext()

    def _clip_gradients(self) -> None:
        """Their norm, which that takes, tells whether the step would spoil the weights."""
        named = [(name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([gradient for _, gradient in named])
        if not math.isfinite(float(norm)):
            gradients = ((f"the gradient of {name}", gradient) for name, gradient in named)
            raise self._diverged(f"the gradient's norm became {float(norm)} at step {self.course.step + 1}", gradients)
        nn.utils.clip_grads_with_norm_(self.model.parameters(), self.settings.gradient_clip, norm)

    @torch.no_grad()
    def _validate(self, batches: Batches) -> None:
        """Adds a validation to the course, and keeps the weights if they are among the best."""
        self.model.eval()
        total, tokens = 0.0, 0
        for batch in batches:
            if batch.counts:
                self.batch = self.trainer.strategy.batch_to_device(batch)
                total += self.model.loss(self.batch, reduction="sum").item()
                tokens += int(batch.target_lengths.sum())
        total, tokens_of_all = self._over_processes("sum", total, tokens)
        loss = total / tokens_of_all
        if not math.isfinite(loss) or _first_not_finite(self.model.named_parameters()):
            raise self._diverged(
                f"the validation loss is {loss} after step {self.course.step}", self.model.named_parameters()
            )
        validation = Validation(self.course.step, loss, self._bleu() if self.sample else None)
        self.model.train()
        self._keep_weights(validation)
        self._tell("on_validation", validation)

    def _bleu(self) -> float | None:
        """Of greedy translations of the sample, which one process makes; None if it is for show and not yet time."""
        score, shows = 0.0, self._is_time_to_show()
        judges = shows or self.settings.criterion == "bleu"
        if judges and self.trainer.is_global_zero:
            from sacrebleu.metrics.bleu import BLEU

            translations = self.translator.translate([source for source, _ in self.sample], search=_GREEDY)
            hypotheses = [translation.target for translation in translations]
            score = BLEU(force=True).corpus_score(hypotheses, [[target for _, target in self.sample]]).score
            if shows:
                self._tell("on_translations", self.course.step, translations)
                self._shown = time.monotonic()
        # The clocks of the processes differ: the first one's counts.
        score, judged = self._over_processes("sum", score, judges and self.trainer.is_global_zero)
        return score if judged else None

    def _is_time_to_show(self) -> bool:
        return self._shown is None or time.monotonic() - self._shown >= _SHOW_SECONDS

    def _keep_weights(self, validation: Validation) -> None:
        """Add a validation to the course, once the weights are safe if they are among the best."""
        criterion, count = self.settings.criterion, self.settings.average
        best = Course(validations=[*self.course.validations, validation]).best(criterion, count)
        if validation.step in best:
            tensors = {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}
            if self.folder is None:
                self._kept[validation.step] = tensors
            else:
                with self._storing("the weights"):
                    digest = self.folder.save_weights(validation.step, tensors)
                self.course.sums[str(validation.step)] = self.trainer.strategy.broadcast(digest)
        self.course.validations.append(validation)
        self._kept = {step: tensors for step, tensors in self._kept.items() if step in best}

    def _weights(self, step: int) -> dict[str, Tensor]:
        return self._kept[step] if self.folder is None else self.folder.weights(step, self.course.sums[str(step)])

    def _save(self) -> None:
        """Keep a checkpoint; only then does what the one before it needed go."""
        if self.folder is None:
            return
        with self._storing("the checkpoint"):
            self.trainer.save_checkpoint(self.folder.checkpoint(self.course.step))
            if self.trainer.is_global_zero:
                self.folder.keep_newest(self.course.needed(self.settings.criterion, self.settings.average))

    @contextmanager
    def _storing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            newest = None if self.folder is None else self.folder.newest()
            before = "none was before it" if newest is None else f"{newest} is intact: make room, and go on with it"
            raise TrainingStorageError(
                f"{what} after step {self.course.step} could not be written ({error.strerror}); {before}"
            ) from error

    def _restore_random(self) -> None:
        """Right before the first step, so that nothing in between can have used them."""
        if self._random is not None:
            torch.set_rng_state(self._random["cpu"][self.global_rank])
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(self._random["cuda"][self.global_rank], self.device)
            self._random = None

    def _over_processes(self, how: str, *values: float) -> list[float]:
        """The mean or the sum of each value over all processes."""
        if self.trainer.world_size == 1:
            return [float(value) for value in values]
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        reduced: Tensor = self.trainer.strategy.reduce(numbers, reduce_op=how)
        return reduced.tolist()

    def _of_all_processes(self, state: Tensor) -> Tensor:
        """(processes, …), from each process's own, on the CPU."""
        if self.trainer.world_size == 1:
            return state.unsqueeze(0)
        gathered: Tensor = self.trainer.strategy.all_gather(state.to(self.trainer.strategy.root_device))
        return gathered.cpu()

    def _check_agreement(self) -> None:
        """Processes that learn from different corpora would wait for each other for ever, or learn nonsense."""
        digest = hashlib.sha256(json.dumps([self.fingerprint, self.settings.to_dict()]).encode()).digest()
        digests = self._of_all_processes(torch.tensor(list(digest)))
        for rank in (digests != digests[0]).any(1).nonzero().flatten().tolist():
            raise CorpusError(
                f"process {rank} has other corpora, or other settings, than process 0: start all with the same"
            )

    def _tell(self, what: str, *news: Any) -> None:
        for listener in self.listeners:
            getattr(listener, what)(*news)

    def _tell_moment(self) -> None:
        course = self.course
        rate = course.tokens / course.seconds
        moment = Moment(course.step, course.epoch + 1, course.batch, self._loss, self._rate, rate)
        self._tell("on_step", moment)

    def _diverged(self, what: str, tensors: Iterable[tuple[str, Tensor | None]]) -> TrainingDivergedError:
        name = _first_not_finite(tensors)
        return TrainingDivergedError(
            f"{what}{f', where {name} is not finite' if name else ''}: the training has diverged. Use a learning_rate "
            f"below {self.settings.learning_rate} or a gradient_clip below {self.settings.gradient_clip}"
        )


def mean_of(models: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several models' weights, one of them in memory at a time.

    Args:
        models: at least one; all with the same names and shapes.

    Returns:
        The means, computed in float64, in the dtypes of the first one.

    Example:
        >>> mean_of({"w": torch.tensor([value])} for value in (1.0, 2.0, 6.0))
        {'w': tensor([3.])}
    """
    means: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for count, tensors in enumerate(models, start=1):
        for name, tensor in tensors.items():
            mean = means.setdefault(name, torch.zeros_like(tensor, dtype=torch.float64))
            mean += (tensor.double() - mean) / count
            dtypes.setdefault(name, tensor.dtype)
    return {name: mean.to(dtypes[name]) for name, mean in means.items()}


def _check_fingerprint(begun: dict[str, Any], now: dict[str, Any], folder: str) -> None:
    for name, before in begun.items():
        if now.get(name) != before:
            raise TrainingFolderError(
                f"{folder}: the {name} differs from what the training began with: it was {before} and is "
                f"{now.get(name)}. Go on with the same, or train anew into another folder"
            )


def _first_not_finite(tensors: Iterable[tuple[str, Tensor | None]]) -> str | None:
    return next((name for name, tensor in tensors if tensor is not None and not bool(tensor.isfinite().all())), None)
