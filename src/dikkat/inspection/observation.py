"""Watches the attention calls of a running model, for recordings and changes, with one mode for each thread."""

import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._higher_order_ops import flex_attention
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from dikkat._core import recording_hooks
from dikkat._core.dispatch import run_problem
from dikkat._core.problem import Problem, Result
from dikkat._engine.pytorch_state import is_in_backward, is_transformed, uncompiled
from dikkat.inspection.calls import OWN_SOFTMAX
from dikkat.inspection.dataflow import Dataflow
from dikkat.inspection.edits import BoundEdit, Edits, Gate, Mass, edit_result, edit_weights
from dikkat.inspection.layer_selection import LayerChoice, Numbering, cached_length, gets_no_hooks, uncompiled_name
from dikkat.inspection.origins import Streams
from dikkat.inspection.request import Inspection, Request
from dikkat.inspection.single_call import inspect_problem
from dikkat.inspection.torch_attention import (
    call_multi_head,
    fused_arguments,
    group_heads,
    inspect_fused,
    inspect_weights,
    multi_head_arguments,
    problem_of_fused,
    run_heads,
    weights_of_one_query,
    without_autocast,
)


class RunningModule(NamedTuple):
    """A running module, its layer (−1 for none), its cache's length (None if unknown), and if the cache drops keys."""

    name: str
    module: nn.Module
    layer: int
    cached: int | None
    drops_keys: bool


class Watcher:
    """Records or changes the attention of a model in this thread, and follows its running modules and positions.

    Attributes:
        changes: Whether it changes calls; if not, it records them.
        needs_scores: Whether a recording needs the scores of a model's own softmax.
        is_regular: Whether later runs repeat the second one, with one call of each module.
        observation: The observation that reports calls.
    """

    changes = needs_scores = is_regular = False
    observation: "Observation"

    def __init__(self, model: nn.Module, choices: list[LayerChoice]) -> None:
        self._choices = choices
        self._modules = {name: module for choice in choices for name, module in choice.modules.items()}
        self._numbering = Numbering([uncompiled_name(name) for name, _ in model.named_modules()])
        self._thread, self.running, self._watched_depth = threading.get_ident(), list[RunningModule](), 0
        self.run_count, self.layers = 0, 0  # how often the model ran, and how many numbered layers ran
        # By the sequence that a self-attention returns: the sequence that it reads, and its first position.
        self.parents: dict[int, tuple[int, int]] = {}
        self.query_sequences, self.key_sequences = set[int](), set[int]()  # of cross attention
        self._last_calls: dict[tuple[str, int], tuple[int, int]] = {}  # by module: end and keys of the last call
        self._call_counts = Counter[str]()  # of this run, by module
        self.softmaxes = set[str]()  # modules with attention in their class name that called softmax

    def compute(self, name: str, problem: Problem, streams: Streams) -> Result | None:
        """Return the result of a dikkat call if the requested summaries are a by-product of it, else None."""
        return None

    def add(
        self, inspect: Callable[[Request], Inspection], streams: Streams, queries: int, keys: int, source: str = ""
    ) -> Tensor | None:
        """Record the summaries that `inspect` returns for a request; return their output, if any."""
        return None

    def add_row(self, weights: Tensor) -> None:
        """Record the weights (B, H, m) of a call with one query, if the observation `repeats`."""

    def lose_weights(self) -> None:
        """Note lost weights: they multiplied values in an unsupported way."""

    def edits_of(self, streams: Streams, queries: int, keys: int, step: int | None) -> list[BoundEdit]:
        """Return the edits of a call; `step` is the number of its query in a recurrence."""
        return []

    def reject(self, reason: str) -> None:
        """Raise an error if a selected module makes a call that cannot be changed."""

    def check_layer(self) -> None:
        """Raise an error if a negative number selects the running module, whose last layer is not known yet."""
        module = self.running[-1]
        for choice in self._choices:
            if (choice.number or 0) < 0 and module.name in choice.counted and module.layer > 0:
                raise ValueError(
                    f"layers: got {choice.number} for {module.name!r}, which runs as several layers; expected a number "
                    "from 0"
                )

    def entered(self, name: str) -> None:
        """Handle the start of a selected module."""

    def start_run(self) -> None:
        """Handle the start of a run of the model, which `run_count` counts."""

    @property
    def is_watching(self) -> bool:
        """Whether a selected module is running."""
        return self._watched_depth > 0

    def saw_softmax(self) -> None:
        """Note a module with attention in its class name: its softmax may be attention that dikkat does not find."""
        if re.search(r"att(entio)?n", type(self.running[-1].module).__name__, re.IGNORECASE):
            self.softmaxes.add(self.running[-1].name)

    def stop(self) -> None:
        """Stop watching, until a selected module starts again."""
        self._watched_depth = 0
        self.observation.update()

    @contextmanager
    def hooked(self, model: nn.Module) -> Iterator[None]:
        """Count the calls of the model in `run_count` and keep its running modules in `running`, innermost last."""

        def count_run(*_: Any) -> None:
            if threading.get_ident() == self._thread:
                self.run_count += 1
                self._numbering.restart()
                self._call_counts.clear()
                self.start_run()

        with ExitStack() as stack:
            if not gets_no_hooks(model):
                stack.callback(model.register_forward_pre_hook(count_run).remove)
            for name, module in self._modules.items():
                if not gets_no_hooks(module):
                    for handle in self._hooks(name, module):
                        stack.callback(handle.remove)
            yield

    def _hooks(self, name: str, module: nn.Module) -> Iterator[RemovableHandle]:
        # PyTorch may call a hook once more after its removal, and then without keywords.
        def enter(_: nn.Module, arguments: Any, keywords: Any = MappingProxyType({})) -> None:
            if threading.get_ident() == self._thread:
                layer = self._numbering.enter(name)
                cached, drops_keys = cached_length(module, (*arguments, *keywords.values()))
                if self.running:
                    layer = self.running[-1].layer if layer < 0 else layer
                    if cached is None:
                        cached, drops_keys = self.running[-1].cached, self.running[-1].drops_keys
                self.layers = max(self.layers, layer + 1)
                self.running.append(RunningModule(name, module, layer, cached, drops_keys))
                if any(choice.includes(name, layer) for choice in self._choices):
                    self.entered(name)
                    if not self._watched_depth:
                        self._watched_depth = len(self.running)
                        self.observation.update()

        def leave(*_: Any) -> None:
            # Another hook may have raised before `enter`, or an interrupt may have skipped `leave` of inner modules.
            if threading.get_ident() == self._thread and any(running.name == name for running in self.running):
                while self.running.pop().name != name:
                    pass
                if len(self.running) < self._watched_depth:
                    self.stop()

        yield module.register_forward_pre_hook(enter, with_kwargs=True)
        # Nested recordings close in reverse order.
        yield module.register_forward_hook(leave, always_call=True, prepend=True)

    def find_positions(self, streams: Streams, queries: int, keys: int) -> tuple[int, int]:
        """Return the positions of the first query and key of a call; −1 for keys of another sequence."""
        name, (query, key, output) = self.running[-1].name, streams
        if query.sequence != key.sequence:
            self.query_sequences.add(query.sequence)
            self.key_sequences.add(key.sequence)
            return self.parents.get(query.sequence, (0, 0))[1], -1
        slot = name, self._call_counts[name]
        self._call_counts[name] += 1
        last_end, last_keys = self._last_calls.get(slot, (0, 0))
        cached = self.running[-1].cached
        if cached is not None and not self.running[-1].drops_keys:
            # A module that runs several times may use other slots of the cache than that of its number.
            cached = min(cached, max(0, keys - queries))
        if cached is None:
            cached = max(keys - queries, last_end if keys >= last_keys else 0) if keys > queries else 0
        self._last_calls[slot] = cached + queries, keys
        self.parents[output.sequence] = query.sequence, cached
        return cached, max(0, cached + queries - keys) if keys >= queries else -1


class Observation(Dataflow):
    """Passes the attention calls of this thread to its watchers, the outermost first.

    Attributes:
        repeats: Whether each module attends as in the run before, with one query. Then it follows no tensors, and sees
            only calls of attention functions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.watchers: list[Watcher] = []
        self._observed = ExitStack()
        self._is_observing, self.repeats = False, False
        self._last_streams, self._query_shapes = dict[str, Streams](), dict[str, torch.Size]()  # by module
        self._outer: recording_hooks.Observer | None = None  # of a relevance that is computed in a recording
        self._logits: Tensor | None = None  # of the last softmax in a module with sinks
        self._step: int | None = None  # of a recurrence that is changed
        self._queries_are_heads = False

    def update(self) -> None:
        """Receive dikkat's calls if a watcher's selected module is running."""
        watches = any(watcher.is_watching for watcher in self.watchers)
        if watches and not self._is_observing:
            self._outer = recording_hooks.current_observer()
            self._observed.enter_context(recording_hooks.observed_by(self))
        elif self._is_observing and not watches:
            self._observed.close()
        self._is_observing = watches

    def _watching(self) -> list[Watcher]:
        return [watcher for watcher in self.watchers if watcher.is_watching and watcher.running]

    def _recordings(self) -> list[Watcher]:
        # In a backward, a checkpoint repeats calls that are recorded already.
        if self._step is not None or is_in_backward():
            return []
        return [watcher for watcher in self._watching() if not watcher.changes]

    def _edits(self, streams: Streams, queries: int, keys: int) -> Edits:
        self._reject_transforms()
        return [edit for watcher in self._watching() for edit in watcher.edits_of(streams, queries, keys, self._step)]

    def _reject_transforms(self) -> None:
        if is_transformed() or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            self._reject("a call inside a transform of torch.func (vmap, grad ...) or with fake tensors")

    def _reject(self, reason: str) -> None:
        for watcher in self._watching():
            watcher.reject(reason)

    def _naming_errors(self) -> AbstractContextManager[None]:
        return naming_errors("changing", next(w.running[-1].name for w in self._watching() if w.changes))

    def streams(self, query: Tensor, key: Tensor, heads: bool = True) -> Streams:
        """Return the origins of queries, keys and outputs of a call of the running module."""
        name = next((watcher.running[-1].name for watcher in self._watching()), None)
        if self.repeats and name in self._last_streams:
            return self._last_streams[name]
        streams = super().streams(query, key, heads)
        if name is not None:
            self._last_streams[name] = streams
        return streams

    @property
    def changes(self) -> bool:
        """Whether a selected module of a change is running."""
        return any(watcher.changes for watcher in self._watching())

    @property
    def keeps_logits(self) -> bool:  # type: ignore[override]
        """Whether to keep the arguments of each softmax."""
        return self.changes or any(recording.needs_scores for recording in self._recordings())

    # --- dikkat's calls

    def run_call(self, name: str, problem: Problem, run: Callable[[Problem], Result]) -> Result:
        """Run a dikkat call, edited if a change is active, and record it."""
        streams, restrictions = self.streams(problem.query, problem.key), problem.restrictions
        edits, recordings = self._edits(streams, restrictions.queries, restrictions.keys), self._recordings()
        if self._step is not None:
            self._step += 1

        def run_unchanged() -> Result:
            return run(problem) if self._outer is None else self._outer.run_call(name, problem, run)

        result = None
        if edits:
            with self._naming_errors():
                result = edit_result(problem, run_unchanged, edits)
        elif recordings and self._queries_are_heads:
            result, inspect = run_heads(problem, run_unchanged)
            for recording in recordings:
                recording.add(inspect, streams, 1, restrictions.keys)
            recordings = []
        elif recordings and self._outer is None:
            result = recordings[-1].compute(name, problem, streams)
            recordings = recordings if result is None else recordings[:-1]
        if result is None:
            result = run_unchanged()
        for recording in recordings:
            recording.add(*_inspection_of(problem, streams, edits))
        self.follow(result.mean, streams[2])
        return result

    def observe_calls(self, problems: Sequence[Problem], output: Tensor | None = None) -> None:
        """Record the calls of packed sequences, or a call over keys of several ranks."""
        self._reject("a call of packed sequences (attend_ragged) or of keys on several ranks")
        if self._outer is not None:
            self._outer.observe_calls(problems, output)
        sizes = [(problem.restrictions.queries, problem.restrictions.keys) for problem in problems]
        longest, longest_keys = map(max, zip(*sizes, strict=True))
        for problem in problems:
            streams = self.streams(problem.query, problem.key)
            for recording in self._recordings():
                recording.add(*_inspection_of(problem, streams, (), longest or math.inf, longest_keys))
            if output is not None:
                self.follow(output, streams[2])

    def observe_weights(self, weights: Tensor) -> None:
        """Record the weights of a recurrence."""
        if self._outer is not None:
            self._outer.observe_weights(weights)
        query, key = (self.origin(weights.new_zeros(())) for _ in range(2))
        for recording in self._recordings():
            recording.add(partial(inspect_weights, weights), (query, key, query), *weights.shape[-2:])

    def as_heads(self) -> AbstractContextManager[None] | None:
        """Return a context in which the queries (B, H', g, d) of a call are one query each of H' · g heads.

        None during changes and relevances, which need repeated keys.
        """
        return None if self.changes or self._outer is not None else self._grouping()

    @contextmanager
    def _grouping(self) -> Iterator[None]:
        self._queries_are_heads = True
        try:
            yield
        finally:
            self._queries_are_heads = False

    @contextmanager
    def as_one_call(self) -> Iterator[None]:
        """Edit the calls within the context as steps of one call, and do not record them."""
        self._step = 0
        try:
            with nullcontext() if self.changes else recording_hooks.observed_by(None):
                yield
        finally:
            self._step = None

    # --- PyTorch's functions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.repeats and func not in (F.scaled_dot_product_attention, flex_attention):
            return func(*args, **(kwargs or {}))
        if func is flex_attention:
            self._reject("flexible attention")
            self.lose_weights()
        if func in _BACKWARD and any(watcher.changes for watcher in self.watchers):
            with self:  # a checkpoint repeats calls in the backward pass, which the change must change too
                return _BACKWARD[func](*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)

    def call_fused(self, function: Any, arguments: Any, keywords: Any, streams: Streams) -> Any:
        """Call one of PyTorch's attention functions, edited if a change is active, and record the call."""
        if recording_hooks.current_observer() is not self:
            return function(*arguments, **keywords)
        if function is F.multi_head_attention_forward:
            return self._call_multi_head(function, arguments, keywords, streams)
        query: Tensor = arguments[0] if arguments else keywords["query"]
        name = next((watcher.running[-1].name for watcher in self._watching()), "")
        if not self.repeats:
            self._query_shapes[name] = query.shape
        elif len(self.watchers) == 1 and self._query_shapes.get(name) == query.shape:
            options = fused_arguments(*arguments, **keywords)
            if not options.get("is_causal"):
                with without_autocast():
                    self.watchers[0].add_row(weights_of_one_query(options))
                return function(*arguments, **keywords)
        inputs = group_heads(streams, *arguments, **keywords)
        queries, keys = (inputs[name].shape[-2] for name in ("query", "key"))
        edits = self._edits(streams, queries, keys)
        if edits:
            shape = (*query.shape[:-1], inputs["value"].shape[-1])
            result = self._edited(inputs, edits, lambda: function(*arguments, **keywords)).mean.reshape(shape)
        else:
            result = function(*arguments, **keywords)
        for recording in self._recordings():
            recording.add(partial(inspect_fused, inputs, edits), streams, queries, keys)
        return result

    def _edited(self, inputs: dict[str, Any], edits: Edits, run: Callable[[], Tensor] | None = None) -> Result:
        """Return the result of PyTorch's attention with edits, in its dtype; with its weights without `run`."""
        query = inputs["query"]
        with recording_hooks.observed_by(None), self._naming_errors():
            problem = problem_of_fused(**inputs, with_values=True).unchecked_copy(wants_weights=run is None)
            shape = torch.Size((*problem.lead, query.shape[-2], inputs["value"].shape[-1]))

            def run_unchanged() -> Result:
                return run_problem(problem) if run is None else Result(run().reshape(shape), None, None)

            result = edit_result(problem, run_unchanged, edits)
        device = query.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
        return Result(result.mean.to(dtype), None, None if result.weights is None else result.weights.to(dtype))

    def _call_multi_head(self, function: Any, arguments: Any, keywords: Any, streams: Streams) -> Any:
        bound = multi_head_arguments(*arguments, **keywords)
        changes, unbatched, weights = self.changes, bound["query"].ndim == 2, list[Tensor]()

        def attend(query: Tensor, key: Tensor, value: Tensor, *options: Any) -> Tensor:
            inputs = fused_arguments(query, key, value, *options)
            edits = self._edits(streams, query.shape[-2], key.shape[-2])
            for recording in self._recordings():
                recording.is_regular = False
                inspect = partial(inspect_fused, inputs, edits)
                recording.add(inspect, streams, query.shape[-2], key.shape[-2])
            if not changes:
                return query
            if not bound["need_weights"]:
                run = partial(F.scaled_dot_product_attention, query, key, value, *options)
                return self._edited(inputs, edits, run).mean
            result = self._edited(inputs, edits)
            weights.append(result.shown_weights())
            return result.mean

        if not changes:
            result = function(*arguments, **keywords)
            with torch.no_grad():
                call_multi_head(attend, bound)
            return result
        output = call_multi_head(attend, bound)
        if not bound["need_weights"]:
            return output, None
        shown = weights[0].mean(1) if bound["average_attn_weights"] else weights[0]
        return output, shown[0] if unbatched else shown

    # --- the model's own softmax

    def softmax(self, name: str, logits: Tensor, function: Callable[[Tensor], Any]) -> tuple[Any, Tensor | None]:
        """Return the result, and weights with 0 for queries that see no key ("eager" returns uniform weights)."""
        result = function(logits)
        if "softmax" not in name:
            return result, None
        self._logits = None if self._sinks() is None else logits
        observes = recording_hooks.current_observer() is self
        if not observes or not logits.is_floating_point() or logits.ndim < 2:
            return result, None
        self._reject_transforms()
        for watcher in self._watching():
            watcher.saw_softmax()
        blind = (logits.detach() <= torch.finfo(logits.dtype).min / 2).all(-1, keepdim=True)
        if not bool(blind.any()):
            return result, None
        return result, (result if self.changes else result.detach()).masked_fill(blind, 0.0)

    def _sinks(self) -> Tensor | None:
        return next((getattr(watcher.running[-1].module, "sinks", None) for watcher in self._watching()), None)

    def lose_weights(self) -> None:
        """Note lost weights, or raise if a change is active."""
        if recording_hooks.current_observer() is self:
            self._reject("weights that multiply values in a way that dikkat does not follow")
            for recording in self._recordings():
                recording.lose_weights()

    def saw_weights(
        self, weights: Tensor, logits: Tensor | None, arrange: Callable[[Tensor], Tensor], streams: Streams
    ) -> Tensor | None:
        """Record weights, and return them edited if a change is active."""
        if recording_hooks.current_observer() is not self:
            return None
        last_logits, self._logits, edited = self._logits, None, None
        logits = None if logits is None or logits.shape != weights.shape else arrange(logits)
        weights = arrange(weights)
        edits = self._edits(streams, weights.shape[-2], weights.shape[-1])
        sinks = self._sinks()
        # Granite's sinks scale the output afterwards. Other models' sinks have a column in the softmax.
        scales = sinks is not None and last_logits is not None and last_logits.shape == weights.shape
        if scales and not all(isinstance(bound.edit, Gate | Mass) for bound in edits):
            self._reject("a sink that scales the output after the softmax, which only `cut` and `mass` keep,")
        if edits:
            with torch._C.DisableTorchFunction(), self._naming_errors():
                edited = edit_weights(weights, logits, edits)
        shown = edited if edited is not None and all(bound.edit.is_shown for bound in edits) else weights
        if scales and sinks is not None and last_logits is not None:
            shown = shown * (last_logits.logsumexp(-1, keepdim=True) - sinks.view(-1, 1, 1)).sigmoid()
        for recording in self._recordings():
            queries, keys = weights.shape[-2:]
            lse = None
            if recording.needs_scores and logits is not None and edited is None and sinks is None:
                lse = _lse_of(logits.detach(), shown.detach())
            recording.add(partial(inspect_weights, shown, lse=lse), streams, queries, keys, OWN_SOFTMAX)
        return edited


def _lse_of(logits: Tensor, weights: Tensor) -> Tensor | None:
    """Return the log-sum-exp of a softmax with these arguments and weights, including a sink; None if unknown.

    Some models subtract each row's largest argument before the softmax, which hides the scores.
    """
    peak, top = logits.float().amax(-1), weights.float().amax(-1)
    if logits.shape[-1] > 1 and bool((peak == 0).all()):
        return None
    return torch.where(top > 0, peak - top.log(), -math.inf)


class NotSeenError(ValueError):
    """No call of attention was recorded or changed."""


@contextmanager
def naming_errors(activity: str, name: str) -> Iterator[None]:
    """Add the name of the running module to errors of an activity, "recording" or "changing"."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error} ({activity} {name!r})" if name else str(error)) from error


def check_model(activity: str, model: object) -> None:
    """Check the model of an activity, "record" or "change", which PyTorch must not be compiling."""
    if torch.compiler.is_compiling():
        raise RuntimeError(f"{activity}: got a call inside torch.compile; call {activity} outside the compiled code")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: got {type(model).__name__}; expected a torch.nn.Module")


def no_call_message(
    activity: str, model: nn.Module, entry: int | str | None, choice: LayerChoice, layer_count: int
) -> str:
    """Return the message for an activity, "recording" or "change", during which no attention ran."""
    if choice.counted and layer_count:
        return f"layers: got {entry}; expected {-layer_count} to {layer_count - 1}"
    kinds = sorted({type(module).__name__ for module in choice.modules.values()})
    subject = f"model: got {type(model).__name__}" if entry is None else f"layers: got {entry!r}"
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    hint = "" if attention in (None, "dikkat", "sdpa", "eager") else f" (this model has {attention!r}: load it again)"
    return (
        f"{subject}, in which no attention ran during the {activity}; expected dikkat's layers, "
        "torch.nn.MultiheadAttention, scaled_dot_product_attention, a softmax that multiplies values, or a Hugging "
        f"Face model loaded with attn_implementation='dikkat', 'sdpa' or 'eager'{hint}. Call the model inside the "
        "`with` block. To draw weights that you already have, call dikkat.show.weights. "
        f"The modules: {', '.join(kinds)}"
    )


def _without_dispatch(function: Any) -> Any:
    """Return a copy of a PyTorch function, without its check for modes: the current mode remains active."""
    never = {"has_torch_function": lambda _: False, "has_torch_function_unary": lambda _: False}
    copy = FunctionType(function.__code__, {**function.__globals__, **never}, None, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_BACKWARD = {
    function: _without_dispatch(function)
    for function in (torch.autograd.grad, torch.autograd.backward, Tensor.backward)
}
_thread = threading.local()


@contextmanager
def observing(model: nn.Module, watcher: Watcher) -> Iterator[None]:
    """Let a watcher see the attention calls of a model in this thread; compiled models run uncompiled."""
    outer: Observation | None = getattr(_thread, "observation", None)
    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        observation = Observation() if outer is None else outer
        observation.add_constants(model)
        observation.watchers.append(watcher)
        stack.callback(observation.watchers.remove, watcher)
        watcher.observation = observation
        stack.callback(watcher.stop)
        stack.enter_context(watcher.hooked(model))
        if outer is None:
            _thread.observation = observation
            stack.callback(setattr, _thread, "observation", None)
            stack.enter_context(observation)
        yield


def _inspection_of(
    problem: Problem, streams: Streams, edits: Edits = (), longest: float = 0, longest_keys: float = 0
) -> tuple[Callable[[Request], Inspection], Streams, int, int]:
    """Return the arguments of `Recording.add` for a dikkat call."""
    edits = [bound for bound in edits if bound.edit.is_shown]

    def inspect(request: Request) -> Inspection:
        longest_queries = longest or (0 if problem.restrictions.queries else math.inf)
        request = replace(request, longest=longest_queries, longest_keys=longest_keys)
        return inspect_problem(replace(problem, dropout=0.0, seeds=None), request, edits=edits)

    return inspect, streams, problem.restrictions.queries, problem.restrictions.keys
