"""The training loop: optimiser steps, validations, checkpoints and early stopping."""

import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dikkat.storage.tensors import describe, joined, misfits
from dikkat.translation.confidence import ConfidenceModel
from dikkat.translation.data.batches import Batches
from dikkat.translation.data.corpus import Pair
from dikkat.translation.decoding.correction_bandwidth import fit_memory
from dikkat.translation.decoding.evaluation import Evaluation, evaluate, words_of
from dikkat.translation.decoding.options import Search
from dikkat.translation.decoding.translator import Translator
from dikkat.translation.errors import CorpusError, TrainingFolderError
from dikkat.translation.network.model import Batch, TranslationModel
from dikkat.translation.training import checkpoints
from dikkat.translation.training.display import LOG_EVERY, Display
from dikkat.translation.training.distributed import Group
from dikkat.translation.training.results import TrainingDivergedError, TrainingMemoryError, TrainingStorageError
from dikkat.translation.training.run_folder import RunFolder
from dikkat.translation.training.schedules import share_of_learning_rate
from dikkat.translation.training.signals import Interrupts
from dikkat.translation.training.state import TrainingState, Validation

_PENALTIES = (1.0, 1.2, 1.4)  # length penalties; with 1, models of few pairs translate too briefly


class _Loss(nn.Module):
    """The loss of a batch as a module, for `DistributedDataParallel`."""

    def __init__(self, model: TranslationModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, label_smoothing: float, r_drop: float) -> Tensor:
        return self.model.loss(batch, label_smoothing=label_smoothing, r_drop=r_drop)


class OptimizerStep(NamedTuple):
    """This process's batches of one optimiser step, and the weight of each batch's mean loss.

    The mean over all processes of their weighted sums is the mean loss of a target token. `tokens` counts the target
    tokens of all processes, and `position` the epoch's batches so far. `last` is True for the epoch's last step.
    """

    batches: tuple[Batch, ...]
    weights: tuple[float, ...]
    tokens: int
    position: int
    last: bool


def steps(
    batches: Batches, state: TrainingState, *, epochs: int, accumulate: int, world: int
) -> Iterator[OptimizerStep]:
    """Yield the remaining steps of a training; the last step of an epoch may have fewer batches."""
    position = state.batch
    for epoch in range(state.epoch, epochs):
        remaining = batches.epoch(epoch, position)
        while group := tuple(islice(remaining, accumulate)):
            position += len(group)
            counts = [int(batch.target_lengths.sum()) for batch in group]
            tokens = sum(batch.total_tokens or count for batch, count in zip(group, counts, strict=True))
            weights = [
                world * count / tokens if batch.counts else 0.0 for batch, count in zip(group, counts, strict=True)
            ]
            yield OptimizerStep(group, tuple(weights), tokens, position, position == len(batches))
        position = 0


class Loop:
    """A training from its first step, or from a checkpoint, to its end.

    `module` computes the loss of a batch. `scoring_pairs` are validation pairs that choose the length penalty and score
    the finished translator. Only the first process computes `scores`.
    """

    def __init__(
        self,
        translator: Translator,
        batches: Batches,
        *,
        validation: Batches | None,
        sample: Sequence[Pair],
        scoring_pairs: Sequence[Pair],
        fingerprint: dict[str, Any],
        folder: RunFolder | None,
        group: Group,
    ) -> None:
        self.translator, self.model, self.settings = translator, translator.model, translator.settings
        self.batches, self.validation, self.sample, self.scoring_pairs = batches, validation, sample, scoring_pairs
        self.fingerprint, self.folder, self.group = fingerprint, folder, group
        self.state, self.interrupted = TrainingState(), False
        self._planned_steps = self.settings.epochs * -(-len(batches) // self.settings.accumulate)
        self._display = Display()
        self._current_batch: Batch | None = None
        self._best: dict[int, dict[str, Tensor]] = {}
        self.scores: Evaluation | None = None
        self._random: dict[str, Tensor] | None = None
        self._time_is_over = False
        self.module = _Loss(self.model.to(group.device).train())
        # Before `parallel`, which requires equal shapes in all processes.
        _check_same_everywhere(group, [fingerprint, self.settings.to_dict()])
        self._parallel = group.parallel(self.module)
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=self.settings.learning_rate, fused=True)

    def restore(self, path: Path) -> None:
        """Restore state, weights, optimiser, random numbers and number of threads from a checkpoint."""
        checkpoint = checkpoints.load(path)
        folder = path.parent.parent
        models = (self.model.state_dict(), checkpoint.model)
        if faults := misfits(*({name: describe(tensor) for name, tensor in model.items()} for model in models)):
            raise TrainingFolderError(
                f"{folder}: got a checkpoint of another model: {joined(faults)}. Train again into another folder"
            )
        _check_fingerprint(checkpoint.fingerprint, self.fingerprint, f"{folder}")
        self._random = checkpoint.random
        self.state = TrainingState.from_dict(checkpoint.course)
        max_minutes = self.settings.max_minutes
        self._time_is_over = max_minutes is not None and self.state.elapsed >= 60 * max_minutes
        self.state.finished = self._is_over()  # changed settings may have moved the end
        self.model.load_state_dict(checkpoint.model)
        optimizer: dict[int, dict[str, Tensor]] = {}
        for name, tensor in checkpoint.optimizer.items():
            number, _, tensor_name = name.partition(".")
            optimizer.setdefault(int(number), {})[tensor_name] = tensor
        self._optimizer.load_state_dict(self._optimizer.state_dict() | {"state": optimizer})
        _use_threads(checkpoint.threads, warns=self.group.rank == 0)

    def run(self, display: Display, interrupts: Interrupts) -> None:
        """Train to the end, or until the user stops the training."""
        self._display = display
        try:
            self._run(interrupts)
        except (RuntimeError, MemoryError) as error:
            # PyTorch has no exception type for out of memory on a CPU.
            is_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "DefaultCPUAllocator" in str(error)
            if self._current_batch is None or not is_memory:
                raise
            source, target = self._current_batch.source_lengths, self._current_batch.target_lengths
            raise TrainingMemoryError(
                f"out of memory after {self.state.step} steps, on a batch of {len(source)} pairs of up to "
                f"{int(source.max())} source and {int(target.max())} target tokens: use a smaller batch_size (or "
                "batch_tokens), max_length or hidden_size; accumulate compensates for smaller batches"
            ) from error

    def keep_best(self) -> None:
        """Load the best weights, or the mean of the best ones; without validation keep the last weights."""
        best = self.state.best(self.settings.criterion, self.settings.average)
        if best:
            self.model.load_state_dict(mean_of(self._weights(step) for step in best))

    def score_translator(self) -> None:
        """Score the translations of `scoring_pairs`; choose the length penalty by BLEU if the settings have none.

        The first process's translator gets a confidence model of these translations, and the bandwidth of corrections.
        """
        penalty, confidence, memory = 0.0, None, self.translator.memory
        if self.group.rank == 0:
            try:
                penalty, self.scores, confidence = self._best_penalty()
                memory = fit_memory(self.translator, self.scoring_pairs[::2], self.scoring_pairs[1::2])
            except KeyboardInterrupt:
                self.interrupted = True
        penalty, scored, stopped = self.group.total(penalty, self.scores is not None, self.interrupted)
        self.interrupted = stopped > 0
        if scored:
            settings = replace(self.settings, length_penalty=penalty)
            self.translator = replace(self.translator, settings=settings, confidence_model=confidence, memory=memory)

    def _best_penalty(self) -> tuple[float, Evaluation, ConfidenceModel]:
        setting = self.settings.length_penalty
        sources, references = zip(*self.scoring_pairs, strict=True)
        translations = {
            penalty: self.translator.translate(sources, search=Search(length_penalty=penalty))
            for penalty in (_PENALTIES if setting is None else (setting,))
        }
        written = {
            penalty: [translation.target for translation in results] for penalty, results in translations.items()
        }
        best = max(written, key=lambda penalty: corpus_bleu(written[penalty], references))
        confidence = ConfidenceModel.fit(translations[best], references)
        return best, evaluate(written[best], references, sources), confidence

    def _run(self, interrupts: Interrupts) -> None:
        state, settings, world = self.state, self.settings, self.group.world
        self._started = time.monotonic() - state.elapsed
        if state.finished:
            return
        self._display.on_epoch_start(state.epoch + 1)
        self._restore_random()
        start = time.perf_counter()
        remaining = steps(self.batches, state, epochs=settings.epochs, accumulate=settings.accumulate, world=world)
        next_step = next(remaining, None)
        while (step := next_step) is not None:
            loss, stop, next_step = self._take_step(step, interrupts, remaining)
            state.add_step(loss, step.tokens, time.perf_counter() - start, step.position)
            self._after_step(step, loss, stop)
            if state.finished or self.interrupted:
                return
            if step.last:
                self._display.on_epoch_start(state.epoch + 1)
            start = time.perf_counter()

    def _take_step(
        self, step: OptimizerStep, interrupts: Interrupts, remaining: Iterator[OptimizerStep]
    ) -> tuple[float, bool, OptimizerStep | None]:
        """Return the loss, whether any process must stop, and the next step, prepared while a device computes."""
        rate = self.settings.learning_rate * self._share_of_learning_rate()
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad()
        total = self._backward(step)
        norm = nn.utils.get_total_norm(list(self._gradients().values()))
        next_step = next(remaining, None)
        local_loss, size = torch.stack([total, norm.double()]).tolist()  # the step's only synchronisation
        loss, stop_share, late_share = self.group.mean(local_loss, interrupts.requested, self._is_late())
        self._time_is_over = late_share > 0
        if not math.isfinite(loss):
            raise self._diverged(f"the loss became {loss} at step {self.state.step + 1}", self._parameters())
        if not math.isfinite(size):  # clipping would make the weights NaN
            raise self._diverged(f"the gradient's norm became {size} at step {self.state.step + 1}", self._gradients())
        nn.utils.clip_grads_with_norm_(self.model.parameters(), self.settings.gradient_clip, norm)
        self._optimizer.step()
        return loss, stop_share > 0, next_step

    def _after_step(self, step: OptimizerStep, loss: float, stop: bool) -> None:
        state, settings = self.state, self.settings
        if (state.step - 1) % LOG_EVERY == 0:
            self._display.on_step(state.batch, loss, state.tokens / state.seconds)
        interval = settings.validation_steps
        is_due = step.last if interval is None else state.step % interval == 0
        is_end = step.last and state.epoch + 1 == settings.epochs
        if self.validation is not None and (is_due or self._time_is_over or is_end):
            self._validate(self.validation)
        if step.last:
            self._display.on_epoch_end(state.end_epoch())
        state.finished = self._is_over()
        if state.finished and not step.last:
            self._display.on_epoch_end(state.all_epochs()[-1])
        self.interrupted = stop and not state.finished
        state.elapsed = self._elapsed()
        if state.finished or self.interrupted or step.last or state.step % settings.checkpoint_steps == 0:
            self._save()

    def _share_of_learning_rate(self) -> float:
        done = self.state.step / self._planned_steps
        if self.settings.max_minutes is not None:
            done = max(done, self._elapsed() / (60 * self.settings.max_minutes))
        is_plateau = self.settings.schedule == "plateau"
        halvings = self.state.halvings(self.settings.criterion) if is_plateau else 0
        return share_of_learning_rate(self.settings, self.state.step, done=done, halvings=halvings)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _is_late(self) -> bool:
        return self.settings.max_minutes is not None and self._elapsed() >= 60 * self.settings.max_minutes

    def _is_over(self) -> bool:
        is_end = self._time_is_over or self.state.epoch >= self.settings.epochs
        return is_end or self.state.since_best(self.settings.criterion) >= self.settings.patience

    def _backward(self, step: OptimizerStep) -> Tensor:
        bfloat16 = self.settings.precision == "bfloat16"
        total = torch.zeros((), dtype=torch.float64, device=self.group.device)
        for number, (batch, weight) in enumerate(zip(step.batches, step.weights, strict=True), start=1):
            self._current_batch = batch.to(self.group.device)
            is_last = number == len(step.batches)
            with nullcontext() if is_last else self.group.without_exchange(self._parallel):
                with torch.autocast(self.group.device.type, torch.bfloat16, enabled=bfloat16):
                    loss = self._parallel(self._current_batch, self.settings.label_smoothing, self.settings.r_drop)
                # The weight is usually 1; a multiplication would cost a pass over the largest gradient.
                (loss if weight == 1 else loss * weight).backward()
            total += loss.detach().double() * weight
        return total

    def _parameters(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters())

    def _gradients(self) -> dict[str, Tensor]:
        parameters = self.model.named_parameters()
        return {f"the gradient of {name}": weight.grad for name, weight in parameters if weight.grad is not None}

    @torch.no_grad()
    def _validate(self, batches: Batches) -> None:
        self.model.eval()
        total, tokens = torch.zeros((), dtype=torch.float64, device=self.group.device), 0
        for batch in batches:
            if batch.counts:
                self._current_batch = batch.to(self.group.device)
                total += self.model.loss(self._current_batch, reduction="sum").double()
                tokens += int(batch.target_lengths.sum())
        total_of_all, tokens_of_all = self.group.total(float(total), tokens)
        loss = total_of_all / tokens_of_all
        if not math.isfinite(loss) or _first_not_finite(self._parameters()):
            raise self._diverged(f"the validation loss is {loss} after step {self.state.step}", self._parameters())
        validation = Validation(self.state.step, loss, self._bleu_of_sample() if self.sample else None)
        self.model.train()
        self._keep_weights(validation)
        self._display.on_validation(validation)

    def _bleu_of_sample(self) -> float:
        score = 0.0
        if self.group.rank == 0:
            translations = self.translator.translate([source for source, _ in self.sample])
            score = corpus_bleu(
                [translation.target for translation in translations], [target for _, target in self.sample]
            )
        return self.group.total(score, 1)[0]

    def _keep_weights(self, validation: Validation) -> None:
        criterion, count = self.settings.criterion, self.settings.average
        best = TrainingState(validations=[*self.state.validations, validation]).best(criterion, count)
        if validation.step in best:
            tensors = {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}
            if self.folder is None:
                self._best[validation.step] = tensors
            else:
                with self._storing("the weights"):
                    checksum = self.folder.save_weights(validation.step, tensors)
                self.state.sums[str(validation.step)] = self.group.from_first(checksum)
        self.state.validations.append(validation)
        self._best = {step: tensors for step, tensors in self._best.items() if step in best}

    def _weights(self, step: int) -> dict[str, Tensor]:
        return self._best[step] if self.folder is None else self.folder.weights(step, self.state.sums[str(step)])

    def _save(self) -> None:
        if self.folder is None:
            return
        checkpoint = self._checkpoint()
        with self._storing("the checkpoint"):
            if self.settings.keep_epochs and not self.state.batch:
                weights = {name: tensor.cpu().contiguous() for name, tensor in checkpoint.model.items()}
                self.folder.save_epoch(self.state.epoch, weights)
            if self.folder.writes:
                checkpoints.save(checkpoint, self.folder.checkpoint(self.state.step))
                self.folder.keep_newest(self.state.best(self.settings.criterion, self.settings.average))
        self.group.wait()

    def _checkpoint(self) -> checkpoints.Checkpoint:
        random = {"cpu": torch.get_rng_state()}
        if self.group.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.group.device)
        states = self._optimizer.state_dict()["state"]
        return checkpoints.Checkpoint(
            model=self.model.state_dict(),
            optimizer={f"{index}.{name}": tensor for index, state in states.items() for name, tensor in state.items()},
            # Each process has its own random numbers; the checkpoint has all of them.
            random={name: self.group.gather(state) for name, state in random.items()},
            course=self.state.to_dict(),
            fingerprint=self.fingerprint,
            threads=torch.get_num_threads(),
        )

    @contextmanager
    def _storing(self, subject: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            newest = None if self.folder is None else self.folder.newest()
            previous = "there is no earlier one" if newest is None else f"{newest} is intact: free space, and resume"
            folder = "" if self.folder is None else f"{self.folder.path}: "
            raise TrainingStorageError(
                f"{folder}{subject} after step {self.state.step} could not be written ({error.strerror}); {previous}"
            ) from error

    def _restore_random(self) -> None:
        """Restore random numbers immediately before the first step, as anything earlier might use some.

        A new process, or one on another kind of device, keeps its initial random numbers.
        """
        for name, states in (self._random or {}).items():
            for state in states[self.group.rank : self.group.rank + 1]:
                copy = state.clone()  # PyTorch crashes on a view of another tensor's memory
                if name == "cpu":
                    torch.set_rng_state(copy)
                elif self.group.device.type == "cuda":
                    torch.cuda.set_rng_state(copy, self.group.device)

    def _diverged(self, event: str, tensors: Mapping[str, Tensor]) -> TrainingDivergedError:
        name = _first_not_finite(tensors)
        return TrainingDivergedError(
            f"{event}{f', where {name} is not finite' if name else ''}: the training has diverged. Use a learning_rate "
            f"below {self.settings.learning_rate} or a gradient_clip below {self.settings.gradient_clip}"
        )


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return sacreBLEU of translations, from 0 to 100; without four words in a row, of shorter n-grams."""
    from sacrebleu.metrics.bleu import BLEU

    words = words_of(references)
    score = BLEU(force=True, tokenize=words).corpus_score(hypotheses, [references])
    if not score.totals[-1]:  # without 4-grams, shorter n-grams count
        score = BLEU(force=True, tokenize=words, effective_order=True).corpus_score(hypotheses, [references])
    return float(score.score)


def mean_of(models: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of several models' weights, with one model in memory at a time.

    Example:
        >>> mean_of({"w": torch.tensor([value])} for value in (1.0, 2.0, 6.0))
        {'w': tensor([3.])}
    """
    means: dict[str, Tensor] = {}
    for count, tensors in enumerate(models, start=1):
        for name, tensor in tensors.items():
            mean = means.setdefault(name, torch.zeros_like(tensor, dtype=torch.float64))
            mean += (tensor.double() - mean) / count
    return {name: mean.to(tensors[name].dtype) for name, mean in means.items()}


def _use_threads(threads: int, *, warns: bool) -> None:
    """Use as many threads as the training began with, as their number determines the last bits of sums."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads <= processors and os.environ.get("OMP_NUM_THREADS", str(threads)) == str(threads):
        torch.set_num_threads(threads)
    current = torch.get_num_threads()
    if current != threads and warns:
        warnings.warn(
            f"the training began with {threads} threads and resumes with {current}, because of OMP_NUM_THREADS or too "
            "few processors: the last bits of its weights may differ from those of an uninterrupted training",
            UserWarning,
            stacklevel=3,
        )


def _check_same_everywhere(group: Group, values: Any) -> None:
    digest = hashlib.sha256(json.dumps(values).encode()).digest()
    digests = group.gather(torch.tensor(list(digest)))
    for rank in (digests != digests[0]).any(1).nonzero().flatten().tolist():
        raise CorpusError(
            f"process {rank} has other corpora, or other settings, than process 0: start all with the same"
        )


def _check_fingerprint(saved: dict[str, Any], current: dict[str, Any], folder: str) -> None:
    for name, value in saved.items():
        if current.get(name) != value:
            expected, actual = (_size(item) for item in (value, current.get(name)))
            raise TrainingFolderError(
                f"{folder}: the {name} has changed since the training began: got "
                f"{'as many others' if actual == expected else actual}; expected the same {expected}. Resume with the "
                "original one, or train again into another folder"
            )


def _size(fingerprint: Any) -> str:
    if isinstance(fingerprint, dict):
        return f"{fingerprint['pairs']:,} pairs"
    return "none" if fingerprint is None else f"{' and '.join(map(str, fingerprint))} tokens"


def _first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    finite = torch.stack([tensor.isfinite().all() for tensor in tensors.values()]).tolist()
    return next((name for name, is_finite in zip(tensors, finite, strict=True) if not is_finite), None)
