"""Records the attention weights of a model while it runs."""

import math
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn
from torch._higher_order_ops import flex_attention
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from dikkat._core import recording_hooks
from dikkat._core.dispatch import run_problem
from dikkat._core.problem import Problem, Result
from dikkat._core.restricting import check_names
from dikkat._engine.pytorch_state import is_transformed, uncompiled
from dikkat.inspection.call_kinds import Kind, find_kinds
from dikkat.inspection.dataflow import Dataflow, Streams
from dikkat.inspection.layer_selection import LayerChoice, Layers, Numbering, is_within, select_layers
from dikkat.inspection.request import Inspection, Request, Requesting
from dikkat.inspection.single_call import inspect_problem, is_by_product
from dikkat.inspection.torch_attention import call_multi_head, inspect_fused, inspect_weights, multi_head_arguments
from dikkat.inspection.trace import OWN_SOFTMAX, Call, Trace


@contextmanager
def record(model: nn.Module, *, layers: Layers | None = None, **request: Unpack[Requesting]) -> Iterator[Trace]:
    """Record the attention weights of each layer of a model while it runs.

    `record` sees these calls inside the model's modules:

    - `dikkat.attend` and the other functions, layers and recurrences of dikkat
    - `torch.nn.MultiheadAttention` and `torch.nn.functional.scaled_dot_product_attention`
    - a softmax, or exponentials divided by their sum, whose result multiplies values (`@`, `torch.bmm`, `torch.einsum`,
      or `(weights * values).sum(dim)`)
    - Hugging Face's models with `attn_implementation="dikkat"`, `"sdpa"` or `"eager"`

    It does not see flash or flexible attention. It records the weights before dropout, summarises them at once and
    moves them to the CPU; they have no gradient. The model's results and gradients do not change, with two exceptions:
    modules that run instead of a shortcut differ by rounding (dikkat's compiled search, PyTorch's fast path of
    encoders), and that fast path returns 0 at padding (NaN in a row that sees no key), the recorded model does not.

    A call belongs to the innermost running module, which hooks on the modules find. A method other than `forward`
    belongs to the module that called it. Other threads are not recorded; recordings can be nested. Compiled models run
    uncompiled in all threads during a recording. The second forward pass of gradient checkpointing is not recorded.

    Modules that `layers` does not select get no hooks. Only the selected `heads` and `queries` are computed.

    Args:
        model: The model. Its modules' names are the names in the trace.
        layers: The modules whose calls are recorded, with all modules inside them; all modules if None. A name, as in
            `model.named_modules()`; a pattern for the whole name with *, ? and [...]; an index into each of the model's
            outermost lists of modules, negative from the end; or a list of these. If an entry of a list runs again, as
            ALBERT's only layer does, it counts as the next layer.
        **request: What to record of each call (`Requesting`); the default is `top_k=8` and `overview=64`.

    Yields:
        The `Trace`, which fills while the model runs.

    Warns:
        UserWarning: Layers ran that are not recorded: they use PyTorch's flexible attention, or their weights multiply
            values in a way that dikkat does not follow. The warning names the modules.

    Raises:
        TypeError: `model` is not a module, or an argument has the wrong type.
        ValueError: No summary is requested; no module fits an entry of `layers`; an argument does not fit a call (the
            message names the module); or, at the end, no call was recorded in the model or in an entry of `layers`.
        RuntimeError: `record` is called inside `torch.compile`.

    Example:
        >>> import torch, dikkat
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> with dikkat.record(model, sums=True, top_k=2) as trace:
        ...     _ = model(torch.randn(3, 5, 8))
        >>> trace.names, trace["self_attn"].sums.shape, trace["self_attn"].top_keys.shape
        (['self_attn'], torch.Size([3, 2, 5]), torch.Size([3, 2, 5, 2]))
    """
    if torch.compiler.is_compiling():
        raise RuntimeError("record: got a call inside torch.compile; call record outside the compiled function")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: got {type(model).__name__}; expected a torch.nn.Module")
    check_names(request, Requesting)
    selectors = {"heads", "queries", "pool"}
    checked = Request(**(request if request.keys() - selectors else request | {"top_k": 8, "overview": 64}))
    if checked.is_empty:
        raise ValueError(
            "record: got nothing to record; expected weights, rows, top_k, sums, entropy, argmax or overview"
        )
    choices = select_layers(model, layers)
    recorder = _Recorder(model, checked, list(choices.values()))
    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        stack.callback(recorder.stop)
        stack.enter_context(recorder.hooked(model))
        stack.enter_context(recorder)
        yield recorder.trace
    recorder.finish(model)
    for entry, choice in choices.items():
        if not any(choice.includes(call.name, call.layer) for call, _ in recorder.trace.calls()):
            lost = ", ".join(map(repr, sorted(recorder._lost)))
            reason = f". Weights of {lost} multiply values in a way that dikkat does not follow" if lost else ""
            raise NotSeenError(_no_call_message(model, entry, choice, recorder.layers) + reason)


class NotSeenError(ValueError):
    """No call of attention was recorded."""


def _no_call_message(model: nn.Module, entry: int | str | None, choice: LayerChoice, layer_count: int) -> str:
    if choice.counted and layer_count:
        return f"layers: got {entry}; expected {-layer_count} to {layer_count - 1}"
    kinds = sorted({type(module).__name__ for module in choice.modules.values()})
    subject = f"model: got {type(model).__name__}" if entry is None else f"layers: got {entry!r}"
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    hint = "" if attention in (None, "dikkat", "sdpa", "eager") else f" (this model has {attention!r}: load it again)"
    return (
        f"{subject}, in which no attention ran during the recording; expected dikkat's layers, "
        "torch.nn.MultiheadAttention, scaled_dot_product_attention, a softmax that multiplies values, or a Hugging "
        f"Face model loaded with attn_implementation='dikkat', 'sdpa' or 'eager'{hint}. Call the model inside the "
        "`with` block. To draw weights that you already have, call dikkat.show.weights. "
        f"The modules: {', '.join(kinds)}"
    )


class _RunningModule(NamedTuple):
    """A running module, its layer (−1 for none), and the length of its cache (None if unknown)."""

    name: str
    module: nn.Module
    layer: int
    cached: int | None


class _Recorder(Dataflow):
    """Adds the attention of a model's calls in this thread to a trace."""

    def __init__(self, model: nn.Module, request: Request, choices: list[LayerChoice]) -> None:
        super().__init__(model)
        self.trace, self._request, self._choices = Trace(), request, choices
        self._modules = {name: module for choice in choices for name, module in choice.modules.items()}
        (self._kinds, self._returns_known), self._numbering = find_kinds(model), Numbering(list(self._modules))
        self._entered = set[str]()  # modules that ran and whose weights the model returns
        self._thread, self._running = threading.get_ident(), list[_RunningModule]()
        self._observation, self._observed_depth, self._run_count = ExitStack(), 0, 0
        self.layers = 0  # how many numbered layers ran
        # By the sequence that a self-attention returns: the sequence that it reads, and its first position.
        self._parents: dict[int, tuple[int, int]] = {}
        self._query_sequences, self._key_sequences = set[int](), set[int]()  # of cross attention
        self._last_calls: dict[tuple[str, int], tuple[int, int]] = {}  # by module: end and keys of the last call
        self._softmaxes = set[str]()  # modules with attention in their class name that called softmax
        self._lost = set[str]()  # modules with flexible attention, or whose weights dikkat does not follow
        self._call_counts = Counter[tuple[int, str]]()
        self._logits: Tensor | None = None  # of the last softmax

    def stop(self) -> None:
        self._observation.close()
        self._observed_depth = 0

    @contextmanager
    def hooked(self, model: nn.Module) -> Iterator[None]:
        """Count the calls of the model in `_run_count` and keep its running modules in `_running`, innermost last."""

        def count_run(*_: Any) -> None:
            if threading.get_ident() == self._thread:
                self._run_count += 1
                self._numbering.restart()

        with ExitStack() as stack:
            if not _gets_no_hooks(model):
                stack.callback(model.register_forward_pre_hook(count_run).remove)
            for name, module in self._modules.items():
                if not _gets_no_hooks(module):
                    for handle in self._hooks(name, module):
                        stack.callback(handle.remove)
            yield

    def _hooks(self, name: str, module: nn.Module) -> Iterator[RemovableHandle]:
        def enter(_: nn.Module, arguments: Any, keywords: Any) -> None:
            if threading.get_ident() == self._thread:
                layer, cached = self._numbering.enter(name), _cached_length(module, (*arguments, *keywords.values()))
                if self._running:
                    layer = self._running[-1].layer if layer < 0 else layer
                    cached = self._running[-1].cached if cached is None else cached
                self.layers = max(self.layers, layer + 1)
                self._running.append(_RunningModule(name, module, layer, cached))
                if any(choice.includes(name, layer) for choice in self._choices):
                    if self._kind(name).root == name:
                        self._entered.add(name)
                    if not self._observed_depth:
                        self._observed_depth = len(self._running)
                        self._observation.enter_context(
                            recording_hooks.observed_by(self, *recording_hooks.current_observers())
                        )

        def leave(*_: Any) -> None:
            # Another hook may have raised before `enter`, or an interrupt may have skipped `leave` of inner modules.
            if threading.get_ident() == self._thread and any(running.name == name for running in self._running):
                while self._running.pop().name != name:
                    pass
                if len(self._running) < self._observed_depth:
                    self.stop()

        yield module.register_forward_pre_hook(enter, with_kwargs=True)
        # Nested recordings close in reverse order.
        yield module.register_forward_hook(leave, always_call=True, prepend=True)

    def finish(self, model: nn.Module) -> None:
        """Keep the selected layers, set the kind of each call, and warn about layers that were not recorded."""
        if any(choice.counted and (choice.number or 0) < 0 for choice in self._choices):
            counts: dict[int, int] = {}
            for call, _ in self.trace.calls():
                counts[call.run] = max(counts.get(call.run, 0), call.layer + 1)
            self.trace.keep(
                lambda call: any(choice.includes(call.name, call.layer, counts[call.run]) for choice in self._choices)
            )
        # Cross attention reads an encoder's sequence; an encoder has no cross attention.
        chains = [chain for chain in map(self._chain, self._key_sequences) if not self._query_sequences & {*chain}]
        encoders = set().union(*chains) - set().union(*map(self._chain, self._query_sequences))
        calls = [(call, self._kind(call.name).root) for call, _ in self.trace.calls()]
        last_names = {(call.run, root): call.name for call, root in calls}
        self.trace.set_kinds(
            "" if root and last_names[call.run, root] != call.name
            else "encoder" if not self._kinds and call.kind == "self" and call.writes in encoders else call.kind
            for call, root in calls
        )  # fmt: skip
        is_transformers = hasattr(model, "get_encoder")
        # A model without a table may return some calls of a layer, or in another order.
        slots = [((call.run, call.layer, call.name if root else call.kind), call.name)
                  for (call, _), (_, root) in zip(self.trace.calls(), calls, strict=True)
                  if call.layer >= 0 and (root or (is_transformers and not self._kinds))]  # fmt: skip
        slot_counts = Counter(slot for slot, _ in slots)
        repeated = {name for slot, name in slots if slot_counts[slot] > 1}
        missing = self._entered - {root for _, root in calls if root}
        missing |= {name for name in self._softmaxes if not any(is_within(call.name, name) for call, _ in calls)}
        if calls and (silent := sorted(missing | self._lost)):
            reason = "flexible attention, or weights that dikkat does not follow to the values"
            message = f"{', '.join(map(repr, silent))}: not recorded: {reason}"
            warnings.warn(f"record: {message}", stacklevel=4)
            if missing or any(self._kind(name).root or not self._kinds for name in self._lost):
                self.trace.withheld = message
        # transformers does not return weights (B · H, n, m).
        joined = is_transformers and any(call.source and len(result.shape) == 3 for call, result in self.trace.calls())
        if self._kinds and self._returns_known and not repeated and not joined:
            self.trace.lacking = {self._kind(name).name for name in missing | self._lost}
        if not self.trace.withheld and (repeated or not self._returns_known or joined):
            reason = f"dikkat does not know which weights {type(model).__name__} returns"
            if repeated:
                reason = f"{min(repeated)!r} attended several times in one layer, of which transformers returns one"
            self.trace.withheld = f"{reason}: use trace[name] of dikkat.record(model, weights=True)"

    def _chain(self, number: int) -> list[int]:
        """Return a sequence and its predecessors by self-attention, the latest first."""
        chain = [number]
        while (number := self._parents.get(number, (number, 0))[0]) not in chain:
            chain.append(number)
        return chain

    def _kind(self, name: str) -> Kind:
        return self._kinds.get(name, Kind(""))

    def compute(self, name: str, problem: Problem) -> Result | None:
        """Return the result of a dikkat call if the requested summaries are a by-product of it, else None."""
        # The reference computes all weights. With gradients, a checkpoint must find the same saved tensors.
        if name == "reference" and self._running and not problem.records:
            full = run_problem(replace(problem, wants_state=True, wants_weights=True), name)
            self._add_call(problem, lambda: inspect_weights(full.shown_weights(), self._request, full.lse))
            wants = problem.wants_state, problem.wants_weights, problem.wants_state
            return Result(full.mean, *(t if flag else None for t, flag in zip(full[1:], wants, strict=True)))
        if self._request.is_partial or self._request.weights or not is_by_product(name, problem):
            return None
        inspection = self._add_call(problem, lambda: inspect_problem(problem, self._request, impl=name, pools=True))
        return None if inspection is None or inspection.output is None else Result(inspection.output, None, None)

    def observe_calls(self, problems: Sequence[Problem]) -> None:
        """Record a dikkat call, or the calls of a batch of packed sequences."""
        longest = max(problem.restrictions.queries for problem in problems)
        request = replace(self._request, longest=longest or math.inf)  # without queries no row exists
        for problem in problems:
            self._add_call(problem, partial(inspect_problem, replace(problem, dropout=0.0, seeds=None), request))

    def _add_call(self, problem: Problem, inspect: Callable[[], Inspection]) -> Inspection | None:
        return self.add(inspect, self.streams_of(problem), problem.restrictions.queries, problem.restrictions.keys)

    def observe_weights(self, weights: Tensor, streams: Streams | None = None) -> None:
        """Record weights (..., n, m) of a model's own softmax, or of a recurrence (without `streams`)."""
        query, key = (self.origin(weights.new_zeros(())) for _ in range(2))
        inspect, source = partial(inspect_weights, weights, self._request), OWN_SOFTMAX if streams else ""
        self.add(inspect, streams or (query, key, query), weights.shape[-2], weights.shape[-1], source)

    @property
    def _is_observing(self) -> bool:
        return self in recording_hooks.current_observers()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is flex_attention:
            self.lose_weights()
        return super().__torch_function__(func, types, args, kwargs)

    def call_fused(self, function: Any, arguments: Any, keywords: Any, streams: Streams) -> Any:
        result = function(*arguments, **keywords)
        if self._is_observing and function is F.multi_head_attention_forward:
            bound = multi_head_arguments(*arguments, **keywords)

            def attend(query: Tensor, key: Tensor, *options: Any) -> Tensor:
                def inspect() -> Inspection:
                    inspection = inspect_fused(self._request, query, key, *options)
                    return inspection.of_element(0) if bound["query"].ndim == 2 else inspection

                self.add(inspect, streams, query.shape[-2], key.shape[-2])
                return query

            with torch.no_grad():
                call_multi_head(attend, bound)
        elif self._is_observing:
            inputs = _group_heads(streams[0].query_positions, *arguments, **keywords)
            inspect, sizes = partial(inspect_fused, self._request, **inputs), (inputs["query"], inputs["key"])
            self.add(inspect, streams, *(tensor.shape[-2] for tensor in sizes))
        return result

    def softmax(self, name: str, logits: Tensor, function: Callable[[Tensor], Any]) -> tuple[Any, Tensor | None]:
        """Return the result, and weights with 0 for queries that see no key ("eager" returns uniform weights)."""
        result = function(logits)
        if "softmax" not in name:
            return result, None
        self._logits = logits
        if not self._is_observing or not logits.is_floating_point() or logits.ndim < 2:
            return result, None
        if self._running and re.search(r"att(entio)?n", type(self._running[-1].module).__name__, re.IGNORECASE):
            self._softmaxes.add(self._running[-1].name)  # possibly attention that dikkat does not find
        blind = (logits.detach() <= torch.finfo(logits.dtype).min / 2).all(-1, keepdim=True)
        return result, result.detach().masked_fill(blind, 0.0) if bool(blind.any()) else None

    def lose_weights(self) -> None:
        if self._is_observing and self._running:
            self._lost.add(self._running[-1].name)

    def saw_weights(self, weights: Tensor, arrange: Callable[[Tensor], Tensor], streams: Streams) -> None:
        weights, logits, self._logits = arrange(weights), self._logits, None
        sinks = getattr(self._running[-1].module, "sinks", None) if self._running else None
        if sinks is not None and logits is not None and logits.shape == weights.shape:
            # Granite's sinks scale the output afterwards. Other models' sinks have a column in the softmax.
            weights = weights * (logits.logsumexp(-1, keepdim=True) - sinks.view(-1, 1, 1)).sigmoid()
        if self._is_observing:
            self.observe_weights(weights, streams)

    def add(
        self, inspect: Callable[[], Inspection], streams: Streams, queries: int, keys: int, source: str = ""
    ) -> Inspection | None:
        """Record a call if a module of the model is running."""
        # In a backward, a checkpoint repeats calls that are recorded already.
        if not self._running or torch._C._current_graph_task_id() != -1:
            return None
        name, layer = self._running[-1].name, self._running[-1].layer
        if is_transformed():
            raise ValueError(
                f"record: got a call of {name!r} inside a transform of torch.func (vmap, grad ...); expected a call "
                "outside"
            )
        # Without autocast, which would round weights to float16.
        cpu, cuda = (torch.autocast(device, enabled=False) for device in ("cpu", "cuda"))
        with torch.no_grad(), recording_hooks.observed_by(), torch._C.DisableTorchFunction(), cpu, cuda:
            try:
                inspection = inspect()
            except (TypeError, ValueError) as error:
                raise type(error)(f"{error} (recording {name!r})" if name else str(error)) from error
            positions, reads = self._find_positions(name, streams, queries, keys)
        layer = self._numbering.within(name) if layer < 0 else layer
        same_sequence_kind = "" if streams[0].pools else "self"
        kind = same_sequence_kind if streams[0].sequence == streams[1].sequence else "cross"
        kind = self._kinds[name].name if self._kinds else kind
        call = Call(name, self._run_count, layer, kind, source, reads, streams[2].sequence)
        self.trace.add(replace(inspection, output=None, positions=positions), call)
        return inspection

    def _find_positions(self, name: str, streams: Streams, queries: int, keys: int) -> tuple[tuple[int, int], int]:
        """Return the positions of the first query and key of a call, and the sequence that it reads."""
        query, key, output = streams
        if query.sequence != key.sequence:
            self._query_sequences.add(query.sequence)
            self._key_sequences.add(key.sequence)
            return (self._parents.get(query.sequence, (0, 0))[1], -1), 0
        slot = name, self._call_counts[self._run_count, name]
        self._call_counts[self._run_count, name] += 1
        last_end, last_keys = self._last_calls.get(slot, (0, 0))
        cached = self._running[-1].cached
        if cached is None:
            cached = max(keys - queries, last_end if keys >= last_keys else 0) if keys > queries else 0
        self._last_calls[slot] = cached + queries, keys
        self._parents[output.sequence] = query.sequence, cached
        return (cached, max(0, cached + queries - keys) if keys >= queries else -1), self.continued_sequence(streams)


def _gets_no_hooks(module: nn.Module) -> bool:
    """Return whether a module gets no hooks: a TorchScript module or one of PyTorch's leaf layers.

    Recurrences and scores run in compiled code only if their layers have no hooks.
    """
    is_leaf = type(module).__module__.startswith("torch.nn.modules.") and not module._modules
    return is_leaf or isinstance(module, torch.jit.ScriptModule)


def _cached_length(module: nn.Module, arguments: tuple[Any, ...]) -> int | None:
    """Return the length of a transformers cache among the arguments, for the module's layer; None without a cache."""
    layer = getattr(module, "layer_idx", None)
    cache = next((arg for arg in arguments if hasattr(arg, "get_seq_length")), None) if type(layer) is int else None
    try:
        return None if cache is None else int(cache.get_seq_length(layer))
    except (TypeError, ValueError):  # another kind of layer or cache
        return None


def _group_heads(rows: Tensor | None, *arguments: Any, **keywords: Any) -> dict[str, Any]:
    """Return arguments by name. Queries (B, H', g, d) of one position, as in `rows` (B, g), become H' · g heads."""
    inputs = dict(zip(_FUSED, arguments, strict=False)) | keywords
    if rows is not None and rows.ndim == 2 and rows.shape[1] > 1 and bool((rows == rows[:, :1]).all()):
        inputs["enable_gqa"] = True
        for name in ("query", "attn_mask"):
            if isinstance(inputs.get(name), Tensor) and inputs[name].shape[1] != 1:
                inputs[name] = inputs[name].flatten(1, 2)[:, :, None]
    return inputs


_FUSED = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")  # arguments by position
