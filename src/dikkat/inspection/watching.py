"""Record statistics of each head during training, with warnings, files and logs."""

import copy
import csv
import html
import io
import logging
import math
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from dikkat._engine.pytorch_state import frame_compiler, is_in_backward, run_uncompiled
from dikkat.errors import InputError
from dikkat.extras import require_extra
from dikkat.inspection.layer_selection import Layers, select_layers
from dikkat.inspection.observation import NotSeenError
from dikkat.inspection.recording import recording
from dikkat.inspection.request import Inspection, Request
from dikkat.inspection.tables import make_frame
from dikkat.inspection.trace import Trace
from dikkat.scores import check_size
from dikkat.show.heatmaps import figure_class, save
from dikkat.storage.files import check_replaceable, write_whole

# `argmax` costs nothing if `max_score` is recorded, and its −1 marks queries that see no key.
_REQUEST = Request(max_score=True, argmax=True, entropy=True, spans={"first": slice(0, 1)}, tolerant=True)
_MIN_KEYS = 8  # in shorter texts, healthy heads have low entropies too
_WRITING_SHARE = 0.01  # the largest share of the training time that writing files may take
_FULLGRAPH = (
    "watch: got a model in torch.compile(model, fullgraph=True); expected the compiled model, "
    "dikkat.watch(torch.compile(model, fullgraph=True))"
)
_TITLES = ("Largest score", "Mean entropy (nats)", "Mean weight of the first token")
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Attention during the training</title><style>body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;
max-width:80rem;padding:0 1rem}svg{max-width:100%;height:auto}</style><h1>Attention during the training</h1>"""


class HeadStatistics(NamedTuple):
    """Statistics of a head in a watched forward pass.

    Attributes:
        step: The number of the pass, or the global step of a `transformers.Trainer`.
        layer: The number of the layer, in the order in which layers run; −1 for none.
        module: The name of the module.
        head: The number of the head.
        max_score: The largest score; NaN if dikkat does not know the scores, as in a recurrence.
        entropy: The mean entropy of the queries that see a key, in nats.
        first_mass: The mean weight that these queries give to the first key.
    """

    step: int
    layer: int
    module: str
    head: int
    max_score: float
    entropy: float
    first_mass: float


class _Thread(threading.local):
    # The open watch of a forward pass, and PyTorch's frame compiler and the handled exception at its start.
    open_pass: tuple[AbstractContextManager[None], Any, BaseException | None] | None = None


class watch:  # noqa: N801 - reads as the function it is used as
    r"""Watch the attention of a model during a training, and warn about low entropies and large scores.

    In forward pass 0 and in each `every`-th one after it, dikkat records these statistics of each head, over all
    elements b of the batch and all queries i that see a key, with scores a and weights w:

    $$ \text{max score} = \max_{b,i,j} a_{bij}, \qquad \text{entropy} = \operatorname{mean}_{b,i} H(w_{bi}), \qquad
       \text{first mass} = \operatorname{mean}_{b,i} w_{bi0} $$

    Scores include biases and a soft cap. Only forward passes in training mode with gradients count. If a module is
    called several times in a pass, its calls are joined. dikkat sees the calls that `dikkat.record` sees. A watched
    pass runs uncompiled. The watch ends with a `with` block, at `close()`, or with the model.

    Args:
        model: The model, also a compiled one; with `fullgraph=True`, the result of `torch.compile`. Call `watch` before
            the first call after `model.compile()`.
        every: The number of forward passes from one watched pass to the next.
        log: The receiver of the statistics after each watched pass: a function of the step and a dictionary, an object
            with `add_scalar` (TensorBoard) or `log` (a run of wandb, an `Accelerator`), or a path. A path ends in
            ".csv" for a table, or in ".html" for a page with all heads over the steps. dikkat rewrites the file
            during training, in at most 1 % of the time, and at the end. The keys of the dictionary have the form
            "attention/layers.0.self_attn/head 3/entropy".
        layers: The watched layers, as in `dikkat.record`; all by default.
        patience: The number of watched passes in a row with a low entropy before the warning. Passes with fewer than 8
            keys do not count.
        min_entropy: The lowest mean entropy of a healthy head, in nats.
        max_score: The largest score of a healthy head.
        first_step: The number of the first forward pass, to continue a training. The rows of earlier steps in an
            existing file `log` remain.

    Attributes:
        latest: The `HeadStatistics` of all heads in the last watched pass.

    Warns:
        UserWarning: The mean entropy of a head stays below `min_entropy`, or its largest score is above `max_score`.
            dikkat warns once per head. Also at the end, if no pass was watched.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A number is too small, `log` has another ending, no module fits `layers`, or the file to continue
            is not one of `watch`. In the first watched pass: dikkat sees no attention in the model.
        OSError: The file cannot be written.

    Source:
        Low entropies: Zhai et al. 2023, "Stabilizing transformer training by preventing attention entropy collapse".
        The limit of 100: the threshold of QK-clip in the Kimi K2 report (2025), section 2.1. The first token: Xiao et
        al. 2024, "Efficient streaming language models with attention sinks".

    Example:
        >>> import torch, dikkat
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> with dikkat.watch(model, every=2) as watched:
        ...     for _ in range(4):
        ...         loss = model(torch.randn(3, 5, 8)).sum()
        >>> [(row.step, row.module, row.head) for row in watched.latest], len(watched.frame())
        ([(2, 'self_attn', 0), (2, 'self_attn', 1)], 4)
    """

    def __init__(
        self, model: nn.Module, *, every: int = 100, log: Any = None, layers: Layers | None = None, patience: int = 3,
        min_entropy: float = 0.01, max_score: float = 100.0, first_step: int = 0,
    ) -> None:  # fmt: skip
        if not isinstance(model, nn.Module):
            raise TypeError(f"model: got {type(model).__name__}; expected a torch.nn.Module")
        for name, limit in (("min_entropy", min_entropy), ("max_score", max_score)):
            if not isinstance(limit, int | float) or math.isnan(limit):
                raise TypeError(f"{name}: got {limit!r}; expected a number")
        self._every, self._patience = check_size("every", every), check_size("patience", patience)
        self._min_entropy, self._max_score, self._layers = min_entropy, max_score, layers
        self._log, self._path = _check_log(log)
        self._model = getattr(model, "_orig_mod", model)  # the module inside a model that torch.compile returned
        select_layers(self._model, layers)
        self.latest, self._rows = list[HeadStatistics](), list[HeadStatistics]()
        self._low_steps, self._warnings = Counter[tuple[Any, ...]](), dict[tuple[Any, ...], str]()
        self._passes, self._last_watched, self._trainer_step, self._next_writing = 0, -1, -1, 0.0
        self._lock, self._thread = threading.Lock(), _Thread()
        self._is_continued = first_step != 0
        if self._is_continued:
            self._continue(check_size("first_step", first_step))
        begin, end = (run_uncompiled(hook, _FULLGRAPH) for hook in self._hooks(model))
        self._handles = [
            model.register_forward_pre_hook(begin, with_kwargs=True),
            model.register_forward_hook(end, always_call=True, prepend=True),
        ]

    def _hooks(self, model: nn.Module) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return the hooks. They are closures, so that a deep copy of the model shares them and they can ignore it."""
        set_compiler, fulfil_fullgraph = frame_compiler()

        def begin(module: nn.Module, arguments: Any, keywords: Any) -> None:
            if module is not model:
                return
            compiler = set_compiler(None)  # a watched pass runs uncompiled, until `end`
            try:
                self._stop(InterruptedError())  # after Ctrl-C, PyTorch did not call `end`
                trains = module.training and torch.is_grad_enabled() and not is_in_backward()
                if trains and (step := self._find_step()) is not None:
                    earlier_hooks, watched = {*module._forward_pre_hooks}, self._record_pass(step)
                    watched.__enter__()
                    self._thread.open_pass = watched, compiler, sys.exc_info()[1]
                    for number, hook in module._forward_pre_hooks.items():  # PyTorch calls new hooks in the next pass
                        if number not in earlier_hooks:
                            hook(module, arguments, keywords)
            finally:
                if self._thread.open_pass is None:
                    set_compiler(compiler)

        def end(module: nn.Module, *_: Any) -> None:
            if module is model and self._thread.open_pass is not None:
                compiler, earlier_error, error = *self._thread.open_pass[1:], sys.exc_info()[1]
                try:
                    self._stop(None if error is earlier_error else error)
                finally:
                    fulfil_fullgraph()
                    set_compiler(compiler)

        return begin, end

    @contextmanager
    def _record_pass(self, step: int) -> Iterator[None]:
        # After the first rows, a pass without attention is no error: a model may drop all layers at random.
        with suppress(*[NotSeenError] * bool(self._rows)), recording(self._model, _REQUEST, self._layers) as trace:
            yield
        if rows := [*_head_statistics(step, trace)]:
            self._add(rows)

    def _stop(self, error: BaseException | None) -> None:
        """End the watched pass of this thread, if any; an error discards its statistics."""
        if self._thread.open_pass is not None:
            watched, self._thread.open_pass = self._thread.open_pass[0], None
            watched.__exit__(None if error is None else type(error), error, None)

    def _find_step(self) -> int | None:
        """Count a pass, and return its step if it is watched."""
        with self._lock:
            step = self._passes if self._trainer_step < 0 else self._trainer_step
            self._passes += 1
            if step % self._every or step == self._last_watched:  # a trainer's step may have several passes
                return None
            self._last_watched = step
            return step

    def _add(self, rows: Sequence[tuple[HeadStatistics, int]]) -> None:
        with self._lock:
            self.latest = [row for row, _ in rows]
            self._rows += self.latest
            messages = [message for row, keys in rows for message in self._find_faults(row, keys)]
            if time.monotonic() >= self._next_writing:
                self._write()
        if self._log is not None:
            self._log(self.latest[0].step, _named_values(self.latest))
        for message in messages:
            warnings.warn(f"watch: {message}", stacklevel=2)

    def _find_faults(self, row: HeadStatistics, keys: int) -> Iterator[str]:
        """Yield new warnings about a head."""
        head, name = row[1:4], f"head {row.head} of {row.module!r}"
        if keys >= _MIN_KEYS:
            self._low_steps[head] = self._low_steps[head] + 1 if row.entropy < self._min_entropy else 0
        faults = dict[str, str]()
        if self._low_steps[head] >= self._patience:
            faults["entropy"] = (
                f"{name} attends to single keys: its mean entropy was below {self._min_entropy:g} nats in "
                f"{self._patience} watched steps, up to step {row.step}"
            )
        if row.max_score > self._max_score:
            faults["score"] = (
                f"{name} has a score of {row.max_score:.4g} in step {row.step}, above {self._max_score:g}. Lower the "
                "learning rate, normalise queries and keys, or clip their weights (QK-clip)"
            )
        for kind, fault in faults.items():
            if (head, kind) not in self._warnings:
                self._warnings[head, kind] = fault
                yield fault

    def _continue(self, step: int) -> None:
        """Read the rows and the warnings of earlier steps."""
        self._passes = step
        if self._path is not None and self._path.exists():
            rows, messages = _read_file(self._path)
            self._rows = [row for row in rows if row.step < step]
            self._warnings = {(message,): message for message in messages}

    def _write(self) -> None:
        if self._path is not None and self._rows:
            start, is_table = time.monotonic(), self._path.suffix == ".csv"
            write_whole(self._path, _table(self._rows) if is_table else _page(self._rows, self._warnings.values()))
            end = time.monotonic()
            self._next_writing = end + (end - start) / _WRITING_SHARE

    def frame(self) -> Any:
        """Return a table with a row for each watched step and head, and the columns of `HeadStatistics`.

        Returns:
            A `pandas.DataFrame`, or a NumPy record array if pandas is not installed.
        """
        columns = [*zip(*self._rows, strict=True)] or [()] * len(HeadStatistics._fields)
        return make_frame(dict(zip(HeadStatistics._fields, map(np.array, columns), strict=True)))

    def callback(self, trainer: Any = None) -> Any:
        """Return a `transformers.TrainerCallback`, for `trainer.add_callback(watched.callback(trainer))`.

        Steps are then the trainer's global steps, and the first forward pass of such a step may be watched. A training
        that continues at a checkpoint continues the file. Without `log`, the statistics become entries of
        `trainer.state.log_history`.

        Args:
            trainer: The trainer. Without `log`, its loggers (`report_to`) receive the statistics, too.

        Raises:
            ModuleNotFoundError: transformers is not installed.
        """
        with require_extra("transformers"):
            from transformers import PrinterCallback, ProgressCallback, TrainerCallback
        watch_ = self

        class WatchCallback(TrainerCallback):  # type: ignore[misc]
            def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step and not watch_._rows:
                    watch_._continue(state.global_step)

            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                watch_._trainer_step = state.global_step

            def on_step_end(self, args: Any, state: Any, control: Any, **models: Any) -> None:
                if (watch_._log, watch_._path, watch_._last_watched) == (None, None, watch_._trainer_step):
                    values, at_step = _named_values(watch_.latest), copy.copy(state)
                    state.log_history.append({"step": watch_._last_watched, **values})
                    at_step.global_step = watch_._last_watched
                    for logger in [] if trainer is None else trainer.callback_handler.callbacks:
                        if not isinstance(logger, PrinterCallback | ProgressCallback):  # they print all numbers
                            logger.on_log(args, at_step, control, logs=dict(values), **models)

            def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                # so that a later training can watch the same step again
                watch_._trainer_step = watch_._last_watched = -1
                watch_._write()

        return WatchCallback()

    def close(self) -> None:
        """Stop watching, and write the file."""
        for handle in self._handles:
            handle.remove()
        self._stop(InterruptedError())
        self._write()
        if not self._rows and not self._is_continued and sys.exc_info()[1] is None:
            warnings.warn(
                "watch: no forward pass was watched; expected calls of the model in training mode with gradients, and "
                "model.compile() only after dikkat.watch",
                stacklevel=2,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_path(name: str, path: Path) -> Path:
    """Return a path to which a watch can write.

    Raises:
        InputError: It has an unknown ending.
        OSError: The file cannot be written.
        ModuleNotFoundError: A page needs matplotlib, which is not installed.
    """
    if path.suffix not in (".csv", ".html"):
        raise InputError(f"{name}: got {os.fspath(path)!r}; expected a path that ends in .csv or .html")
    check_replaceable(path)
    if path.suffix == ".html":
        figure_class()
    return path


def _check_log(log: Any) -> tuple[Callable[[int, dict[str, float]], object] | None, Path | None]:
    """Return a function that receives the statistics, or a path."""
    if isinstance(log, str | os.PathLike):
        return None, check_path("log", Path(log))
    if hasattr(log, "add_scalar"):
        return lambda step, values: [log.add_scalar(name, value, step) for name, value in values.items()], None
    if hasattr(log, "log") and not isinstance(log, logging.Logger | logging.LoggerAdapter):
        return lambda step, values: log.log(values, step=step), None
    if log is not None and not callable(log):
        raise TypeError(
            f"log: got {type(log).__name__}; expected a function, an object with add_scalar(name, value, step) or "
            "log(values, step=...), a path, or None"
        )
    return log, None


def _head_statistics(step: int, trace: Trace) -> Iterator[tuple[HeadStatistics, int]]:
    """Yield the statistics of each head, and the largest number of keys in its module."""
    modules: dict[tuple[int, str, int], list[Inspection]] = {}
    for call, record in trace.calls():
        if 0 not in record.shape:
            modules.setdefault((call.layer, call.name, record.sizes[0]), []).append(record)
    for (layer, name, heads), calls in modules.items():
        live, scores = _join(calls, "argmax", heads) >= 0, _join(calls, "max_score", heads).amax(1)
        entropy, mass = (
            _join(calls, field, heads).where(live, 0.0).sum(1) / live.sum(1) for field in ("entropy", "span_mass")
        )
        for head, values in enumerate(torch.stack([scores, entropy, mass], 1).tolist()):
            yield HeadStatistics(step, layer, name or "model", head, *values), max(call.sizes[2] for call in calls)


def _join(calls: Sequence[Inspection], field: str, heads: int) -> Tensor:
    """Return a field of all calls, elements and queries, (heads, numbers) float64; NaN if it is unknown."""
    unknown = torch.tensor(math.nan)
    tensors = [call.tensors().get(field, unknown.expand(call.shape[:-1])) for call in calls]
    return torch.cat(
        [tensor.reshape(-1, heads, call.shape[-2]).transpose(0, 1).flatten(1).double()
         for tensor, call in zip(tensors, calls, strict=True)], 1,
    )  # fmt: skip


def _named_values(rows: Sequence[HeadStatistics]) -> dict[str, float]:
    """Return the known statistics of a step by name."""
    counts = Counter((row.module, row.head) for row in rows)
    layers = {row: f"layer {row.layer}/" if counts[row.module, row.head] > 1 else "" for row in rows}
    return {
        f"attention/{row.module}/{layers[row]}head {row.head}/{field}": value
        for row in rows
        for field, value in zip(row._fields[4:], row[4:], strict=True)
        if math.isfinite(value)
    }


def _table(rows: Sequence[HeadStatistics]) -> str:
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(HeadStatistics._fields)
    writer.writerows((*row[:4], *(f"{value:.6g}" if math.isfinite(value) else "" for value in row[4:])) for row in rows)
    return content.getvalue()


def _read_file(path: Path) -> tuple[list[HeadStatistics], list[str]]:
    """Return the rows and the warnings of a file that a watch wrote."""
    text = path.read_text(encoding="utf-8")
    table = text if path.suffix == ".csv" else html.unescape("".join(re.findall("<pre hidden>(.*?)</pre>", text, re.S)))
    lines = [*csv.reader(io.StringIO(table))]
    if not lines or tuple(lines[0]) != HeadStatistics._fields:
        raise InputError(f"log: got {os.fspath(path)!r} of another program; expected a file of dikkat.watch, or none")
    rows = [HeadStatistics(int(step), int(layer), name, int(head), *(float(x or "nan") for x in numbers))
            for step, layer, name, head, *numbers in lines[1:]]  # fmt: skip
    return rows, [html.unescape(message) for message in re.findall("<li>(.*?)</li>", text)]


def _page(rows: Sequence[HeadStatistics], messages: Iterable[str]) -> str:
    """Return an HTML page with a map of heads and steps for each statistic, and the warnings."""
    heads = {head: number for number, head in enumerate(dict.fromkeys(row[1:4] for row in rows))}
    steps, columns = np.unique([row.step for row in rows], return_inverse=True)
    values = np.full((3, len(heads), len(steps)), math.nan)
    values[:, [heads[row[1:4]] for row in rows], columns] = np.array([row[4:] for row in rows]).T
    known = [pair for pair in zip(_TITLES, values, strict=True) if np.isfinite(pair[1]).any()]
    figure = figure_class()(figsize=(4 * len(known) + 1, min(30, 2.2 + 0.15 * len(heads))), layout="constrained")
    edges = [*steps, 2 * steps[-1] - steps[-2] if len(steps) > 1 else steps[-1] + 1]
    for axes, (title, map_) in zip(figure.subplots(1, len(known), sharey=True, squeeze=False)[0], known, strict=True):
        drawn = axes.pcolormesh(edges, range(len(heads) + 1), map_, rasterized=True)
        axes.set(title=title, xlabel="Step", ylim=(len(heads), 0))
        figure.colorbar(drawn, ax=axes, orientation="horizontal", pad=0.02).outline.set_visible(False)
    starts = {head[:2]: number + 0.5 for head, number in reversed(heads.items())}
    figure.axes[0].set_yticks([*starts.values()], [module for _, module in starts], parse_math=False)
    with tempfile.TemporaryDirectory() as folder:
        save(figure, f"{folder}/heads.svg")
        picture = Path(folder, "heads.svg").read_text(encoding="utf-8")
    return (
        f"{_PAGE}<p>{len(heads)} head{'s' * (len(heads) > 1)}, steps {steps[0]} to {steps[-1]}. Each row is a head.</p>"
        f"{picture[picture.index('<svg') :]}<ul>{''.join(f'<li>{html.escape(text)}</li>' for text in messages)}</ul>"
        f"<pre hidden>{html.escape(_table(rows))}</pre>"
    )
