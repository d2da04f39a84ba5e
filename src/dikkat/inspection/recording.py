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
from dikkat.inspection.captured import call_multi_head, multi_head_arguments, of_fused_function, of_weights
from dikkat.inspection.dataflow import Dataflow, Streams
from dikkat.inspection.front import inspected, is_by_product
from dikkat.inspection.kinds import Kind, kinds_of
from dikkat.inspection.layer_selection import Chosen, Layers, Numbering, chosen, is_within
from dikkat.inspection.request import Inspection, Request, Requesting
from dikkat.inspection.trace import OWN, Call, Trace


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

    A call belongs to the innermost running module. Hooks on the modules tell which one that is. Other methods of a
    module belong to the module that called them. Other threads are not recorded; recordings can be nested. Compiled
    models run uncompiled in all threads during a recording. A checkpoint's second forward pass is not recorded.

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
        TypeError: `model` is no module, or an argument has the wrong type.
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
        raise RuntimeError("record: got a call inside torch.compile; expected one around what is compiled")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: got {type(model).__name__}; expected a torch.nn.Module")
    check_names(request, Requesting)
    about = {"heads", "queries", "pool"}
    checked = Request(**(request if request.keys() - about else request | {"top_k": 8, "overview": 64}))
    if checked.is_empty:
        raise ValueError(
            "record: got nothing to record; expected weights, rows, top_k, sums, entropy, argmax or overview"
        )
    by_entry = chosen(model, layers)
    recorder = _Recorder(model, checked, list(by_entry.values()))
    with ExitStack() as stack:
        stack.enter_context(uncompiled())
        stack.callback(recorder.stop)
        stack.enter_context(recorder.hooked(model))
        stack.enter_context(recorder)
        yield recorder.trace
    recorder.finish(model)
    for entry, each in by_entry.items():
        if not any(each.takes(call.name, call.layer) for call, _ in recorder.trace.calls()):
            lost = ", ".join(map(repr, sorted(recorder._lost)))
            why = f". Weights of {lost} multiply values in a way that dikkat does not follow" if lost else ""
            raise NotSeenError(_unseen(model, entry, each, recorder.layers) + why)


class NotSeenError(ValueError):
    """No attention was seen in a recording."""


def _unseen(model: nn.Module, entry: int | str | None, each: Chosen, layers: int) -> str:
    """The message of a recording without a call."""
    if each.counted and layers:
        return f"layers: got {entry}; expected {-layers} to {layers - 1}, as so many layers ran"
    kinds = sorted({type(module).__name__ for module in each.modules.values()})
    which = f"model: got {type(model).__name__}" if entry is None else f"layers: got {entry!r}"
    asks = getattr(getattr(model, "config", None), "_attn_implementation", None)
    own = "" if asks in (None, "dikkat", "sdpa", "eager") else f" (this model has {asks!r}: load it again)"
    return (
        f"{which}, in which no attention ran during the recording; expected layers of dikkat, "
        "torch.nn.MultiheadAttention, scaled_dot_product_attention or a softmax that multiplies values, or a model of "
        f"Hugging Face loaded with attn_implementation='dikkat', 'sdpa' or 'eager'{own}. Call the model inside the "
        "`with` block, or draw weights that you already have with dikkat.show.weights. "
        f"The modules: {', '.join(kinds)}"
    )


class _Running(NamedTuple):
    """A module that is being called, the layer that it is in, and how many positions its cache has; None if unknown."""

    name: str
    module: nn.Module
    layer: int
    cached: int | None


class _Recorder(Dataflow):
    """Adds to a trace what this thread's calls within a model look at."""

    def __init__(self, model: nn.Module, request: Request, entries: list[Chosen]) -> None:
        super().__init__(model)
        self.trace, self._request, self._entries = Trace(), request, entries
        self._modules = {name: module for each in entries for name, module in each.modules.items()}
        (self._kinds, self._says), self._numbering = kinds_of(model), Numbering(list(self._modules))
        self._entered = set[str]()  # modules whose weights the model returns, and that ran
        self._thread, self._calls = threading.get_ident(), list[_Running]()
        self._listening, self._since, self._runs = ExitStack(), 0, 0
        self.layers = 0  # that ran, of those that were looked for
        # For each self-attention by the number of its output's sequence: that of its input, the first position.
        self._made: dict[int, tuple[int, int]] = {}
        self._asked, self._looked_at = set[int](), set[int]()  # sequences of queries and of keys in cross attention
        self._reached: dict[tuple[str, int], tuple[int, int]] = {}  # the last call of a module: its end, its keys
        self._softmaxes = set[str]()  # modules of attention, by their classes' names, that take a softmax
        self._lost = set[str]()  # modules of flexible attention, or whose weights are not followed to the values
        self._in_run = Counter[tuple[int, str]]()
        self._logits: Tensor | None = None  # of the last softmax

    def stop(self) -> None:
        self._listening.close()
        self._since = 0

    @contextmanager
    def hooked(self, model: nn.Module) -> Iterator[None]:
        """Within, count the calls of the model, and know which of its modules are being called, the innermost last."""

        def count(*_: Any) -> None:
            if threading.get_ident() == self._thread:
                self._runs += 1
                self._numbering.again()

        with ExitStack() as stack:
            if not _is_passed_over(model):
                stack.callback(model.register_forward_pre_hook(count).remove)
            for name, module in self._modules.items():
                if not _is_passed_over(module):
                    for handle in self._hooks(name, module):
                        stack.callback(handle.remove)
            yield

    def _hooks(self, name: str, module: nn.Module) -> Iterator[RemovableHandle]:
        def enter(_: nn.Module, arguments: Any, named: Any) -> None:
            if threading.get_ident() == self._thread:
                layer, cached = self._numbering.enter(name), _cached(module, (*arguments, *named.values()))
                if self._calls:
                    layer = self._calls[-1].layer if layer < 0 else layer
                    cached = self._calls[-1].cached if cached is None else cached
                self.layers = max(self.layers, layer + 1)
                self._calls.append(_Running(name, module, layer, cached))
                if any(each.takes(name, layer) for each in self._entries):
                    if self._kind(name).root == name:
                        self._entered.add(name)
                    if not self._since:
                        self._since = len(self._calls)
                        self._listening.enter_context(
                            recording_hooks.observed_by(self, *recording_hooks.current_observers())
                        )

        def leave(*_: Any) -> None:
            # Not entered where another hook raised before; and an interrupt may have left inner calls open.
            if threading.get_ident() == self._thread and any(each.name == name for each in self._calls):
                while self._calls.pop().name != name:
                    pass
                if len(self._calls) < self._since:
                    self.stop()

        yield module.register_forward_pre_hook(enter, with_kwargs=True)
        # Nested recordings close in reverse order.
        yield module.register_forward_hook(leave, always_call=True, prepend=True)

    def finish(self, model: nn.Module) -> None:
        """Keep what was chosen and say what each call is, now that all is known."""
        if any(each.counted and (each.number or 0) < 0 for each in self._entries):
            runs: dict[int, int] = {}
            for call, _ in self.trace.calls():
                runs[call.run] = max(runs.get(call.run, 0), call.layer + 1)
            self.trace.keep(
                lambda call: any(each.takes(call.name, call.layer, runs[call.run]) for each in self._entries)
            )
        # An encoder makes a sequence that others look at, and looks at none itself.
        chains = [chain for chain in map(self._chain, self._looked_at) if not self._asked & {*chain}]
        encoders = set().union(*chains) - set().union(*map(self._chain, self._asked))
        calls = [(call, self._kind(call.name).root) for call, _ in self.trace.calls()]
        last = {(call.run, root): call.name for call, root in calls}
        self.trace.set_kinds(
            "" if root and last[call.run, root] != call.name
            else "encoder" if not self._kinds and call.kind == "self" and call.writes in encoders else call.kind
            for call, root in calls
        )  # fmt: skip
        returns = hasattr(model, "get_encoder")
        # A model without a table may return some of the calls of a layer, or in another order.
        places = [((call.run, call.layer, call.name if root else call.kind), call.name)
                  for (call, _), (_, root) in zip(self.trace.calls(), calls, strict=True)
                  if call.layer >= 0 and (root or (returns and not self._kinds))]  # fmt: skip
        times = Counter(place for place, _ in places)
        several = {name for place, name in places if times[place] > 1}
        missing = self._entered - {root for _, root in calls if root}
        missing |= {name for name in self._softmaxes if not any(is_within(call.name, name) for call, _ in calls)}
        if calls and (silent := sorted(missing | self._lost)):
            why = "flexible attention, or weights that dikkat does not follow to the values"
            told = f"{', '.join(map(repr, silent))}: not recorded: {why}"
            warnings.warn(f"record: {told}", stacklevel=4)
            if missing or any(self._kind(name).root or not self._kinds for name in self._lost):
                self.trace.withheld = told
        # Weights (B · H, n, m) are not those that transformers returns.
        joined = returns and any(call.source and len(seen.shape) == 3 for call, seen in self.trace.calls())
        if self._kinds and self._says and not several and not joined:
            self.trace.lacking = {self._kind(name).name for name in missing | self._lost}
        if not self.trace.withheld and (several or not self._says or joined):
            why = f"{type(model).__name__} does not say which weights it returns"
            if several:
                why = f"{min(several)!r} attended several times in one layer, of which transformers returns one"
            self.trace.withheld = f"{why}: take them by name, of dikkat.record(model, weights=True)"

    def _chain(self, number: int) -> list[int]:
        """A sequence and those that self-attention made it of, the latest first."""
        chain = [number]
        while (number := self._made.get(number, (number, 0))[0]) not in chain:
            chain.append(number)
        return chain

    def _kind(self, name: str) -> Kind:
        return self._kinds.get(name, Kind(""))

    def compute(self, name: str, problem: Problem) -> Result | None:
        """The result of a call of dikkat's, if what is requested is a by-product of it."""
        # It computes all weights anyway; with gradients, a checkpoint must not find other tensors saved.
        if name == "reference" and self._calls and not problem.records:
            all_of_it = run_problem(replace(problem, wants_state=True, wants_weights=True), name)
            self._add_call(problem, lambda: of_weights(all_of_it.shown_weights(), self._request, all_of_it.lse))
            wanted = problem.wants_state, problem.wants_weights, problem.wants_state
            return Result(all_of_it.mean, *(each if w else None for each, w in zip(all_of_it[1:], wanted, strict=True)))
        if self._request.is_of_some or self._request.weights or not is_by_product(name, problem):
            return None
        seen = self._add_call(problem, lambda: inspected(problem, self._request, impl=name, pools=True))
        return None if seen is None or seen.output is None else Result(seen.output, None, None)

    def observe_calls(self, problems: Sequence[Problem]) -> None:
        """Look at a call of dikkat's, or at those of a batch of packed sequences."""
        longest = max(problem.restrictions.queries for problem in problems)
        request = replace(self._request, longest=longest or math.inf)  # a batch without a query has none of the rows
        for problem in problems:
            self._add_call(problem, partial(inspected, replace(problem, dropout=0.0, seeds=None), request))

    def _add_call(self, problem: Problem, look: Callable[[], Inspection]) -> Inspection | None:
        return self.add(look, self.streams_of(problem), problem.restrictions.queries, problem.restrictions.keys)

    def observe_weights(self, weights: Tensor, streams: Streams | None = None) -> None:
        """Look at weights (..., n, m) of a softmax of the model's own, or of a recurrence, which looks at a memory."""
        query, key = (self.origin(weights.new_zeros(())) for _ in range(2))
        look, source = partial(of_weights, weights, self._request), OWN if streams else ""
        self.add(look, streams or (query, key, query), weights.shape[-2], weights.shape[-1], source)

    @property
    def _listens(self) -> bool:
        return self in recording_hooks.current_observers()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is flex_attention:
            self.lose_weights()
        return super().__torch_function__(func, types, args, kwargs)

    def call_fused(self, function: Any, arguments: Any, named: Any, streams: Streams) -> Any:
        result = function(*arguments, **named)
        if self._listens and function is F.multi_head_attention_forward:
            given = multi_head_arguments(*arguments, **named)

            def attend(query: Tensor, key: Tensor, *more: Any) -> Tensor:
                def look() -> Inspection:
                    seen = of_fused_function(self._request, query, key, *more)
                    return seen.of_element(0) if given["query"].ndim == 2 else seen

                self.add(look, streams, query.shape[-2], key.shape[-2])
                return query

            with torch.no_grad():
                call_multi_head(attend, given)
        elif self._listens:
            inputs = _with_heads_apart(streams[0].rows, *arguments, **named)
            look, sizes = partial(of_fused_function, self._request, **inputs), (inputs["query"], inputs["key"])
            self.add(look, streams, *(each.shape[-2] for each in sizes))
        return result

    def softmax(self, name: str, logits: Tensor, function: Callable[[Tensor], Any]) -> tuple[Any, Tensor | None]:
        """The result; and weights of 0 for a query that sees no key, of which "eager" makes the mean of all."""
        result = function(logits)
        if "softmax" not in name:
            return result, None
        self._logits = logits
        if not self._listens or not logits.is_floating_point() or logits.ndim < 2:
            return result, None
        if self._calls and re.search(r"att(entio)?n", type(self._calls[-1].module).__name__, re.IGNORECASE):
            self._softmaxes.add(self._calls[-1].name)  # which may be attention that is not seen
        dead = (logits.detach() <= torch.finfo(logits.dtype).min / 2).all(-1, keepdim=True)
        return result, result.detach().masked_fill(dead, 0.0) if bool(dead.any()) else None

    def lose_weights(self) -> None:
        if self._listens and self._calls:
            self._lost.add(self._calls[-1].name)

    def saw_weights(self, weights: Tensor, arranged: Callable[[Tensor], Tensor], streams: Streams) -> None:
        weights, logits, self._logits = arranged(weights), self._logits, None
        sinks = getattr(self._calls[-1].module, "sinks", None) if self._calls else None
        if sinks is not None and logits is not None and logits.shape == weights.shape:
            # Granite's sinks scale the output afterwards. Those of other models have a column in the softmax.
            weights = weights * (logits.logsumexp(-1, keepdim=True) - sinks.view(-1, 1, 1)).sigmoid()
        if self._listens:
            self.observe_weights(weights, streams)

    def add(
        self, look: Callable[[], Inspection], streams: Streams, queries: int, keys: int, source: str = ""
    ) -> Inspection | None:
        """Look at a call, if it is of a module of the model."""
        # In a backward, what a checkpoint computes has been seen before.
        if not self._calls or torch._C._current_graph_task_id() != -1:
            return None
        name, layer = self._calls[-1].name, self._calls[-1].layer
        if is_transformed():
            raise ValueError(
                f"record: got a call of {name!r} under torch.func (vmap, grad ...), where tensors stand for many "
                "values; expected plain ones"
            )
        # Without autocast: weights are not to be rounded to halves.
        cpu, cuda = (torch.autocast(device, enabled=False) for device in ("cpu", "cuda"))
        with torch.no_grad(), recording_hooks.observed_by(), torch._C.DisableTorchFunction(), cpu, cuda:
            try:
                seen = look()
            except (TypeError, ValueError) as error:
                raise type(error)(f"{error} (recording {name!r})" if name else str(error)) from error
            positions, reads = self._placed(name, streams, queries, keys)
        layer = self._numbering.within(name) if layer < 0 else layer
        same = "" if streams[0].pools else "self"
        kind = same if streams[0].sequence == streams[1].sequence else "cross"
        kind = self._kinds[name].name if self._kinds else kind
        call = Call(name, self._runs, layer, kind, source, reads, streams[2].sequence)
        self.trace.add(replace(seen, output=None, positions=positions), call)
        return seen

    def _placed(self, name: str, streams: Streams, queries: int, keys: int) -> tuple[tuple[int, int], int]:
        """The positions of the first query and key of a call, and the sequence that it continues."""
        query, key, output = streams
        if query.sequence != key.sequence:
            self._asked.add(query.sequence)
            self._looked_at.add(key.sequence)
            return (self._made.get(query.sequence, (0, 0))[1], -1), 0
        place = name, self._in_run[self._runs, name]
        self._in_run[self._runs, name] += 1
        reached, last_keys = self._reached.get(place, (0, 0))
        cached = self._calls[-1].cached
        if cached is None:
            cached = max(keys - queries, reached if keys >= last_keys else 0) if keys > queries else 0
        self._reached[place] = cached + queries, keys
        self._made[output.sequence] = query.sequence, cached
        return (cached, max(0, cached + queries - keys) if keys >= queries else -1), self.reads(streams)


def _is_passed_over(module: nn.Module) -> bool:
    """Whether a module gets no hooks: a TorchScript module, or one of PyTorch's leaf layers.

    Recurrences and scores run in compiled code only where nothing is hooked to their layers.
    """
    leaf = type(module).__module__.startswith("torch.nn.modules.") and not module._modules
    return leaf or isinstance(module, torch.jit.ScriptModule)


def _cached(module: nn.Module, given: tuple[Any, ...]) -> int | None:
    """How many positions a cache of transformers' has for a layer that is called; None without one."""
    layer = getattr(module, "layer_idx", None)
    cache = next((each for each in given if hasattr(each, "get_seq_length")), None) if type(layer) is int else None
    try:
        return None if cache is None else int(cache.get_seq_length(layer))
    except (TypeError, ValueError):  # of a layer or a cache of another kind
        return None


def _with_heads_apart(rows: Tensor | None, *arguments: Any, **named: Any) -> dict[str, Any]:
    """A call by name, where queries (B, H', g, d) may be g heads of one position, as their `rows` (B, g) say."""
    given = dict(zip(_FUSED, arguments, strict=False)) | named
    if rows is not None and rows.ndim == 2 and rows.shape[1] > 1 and bool((rows == rows[:, :1]).all()):
        given["enable_gqa"] = True
        for name in ("query", "attn_mask"):
            if isinstance(given.get(name), Tensor) and given[name].shape[1] != 1:
                given[name] = given[name].flatten(1, 2)[:, :, None]
    return given


_FUSED = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")  # arguments by position
