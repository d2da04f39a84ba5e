"""Records the attention weights of a model while it runs."""

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Literal, Unpack

from torch import Tensor, nn

from dikkat._core import recording_hooks
from dikkat._core.dispatch import run_problem
from dikkat._core.problem import Problem, Result
from dikkat._core.restricting import check_names
from dikkat._engine.pytorch_state import is_transformed
from dikkat.inspection.call_kinds import Kind, find_kinds
from dikkat.inspection.calls import Call
from dikkat.inspection.layer_selection import LayerChoice, Layers, is_within, select_layers
from dikkat.inspection.observation import NotSeenError, Watcher, check_model, naming_errors, no_call_message, observing
from dikkat.inspection.origins import Streams
from dikkat.inspection.request import Inspection, Request, Requesting, Spans
from dikkat.inspection.single_call import inspect_problem, is_by_product
from dikkat.inspection.torch_attention import inspect_weights, without_autocast
from dikkat.inspection.totals import Totals
from dikkat.inspection.trace import Trace


def record(
    model: nn.Module,
    *,
    layers: Layers | None = None,
    sum_over: Literal["calls"] | None = None,
    decay: float = 1.0,
    **request: Unpack[Requesting],
) -> AbstractContextManager[Trace]:
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
        sum_over: None for a record of each call. "calls" for one record of each layer, over all calls and queries:
            the `sums` and their `top_keys`, the mean `entropy` and `span_mass`, and the largest `max_score`. Its size
            depends only on the length of the text. `Totals` has the details.
        decay: With `sum_over`, the factor of all earlier calls at each call, above 0 and at most 1.
        **request: What to record of each call (`Requesting`); the default is `top_k=8` and `overview=64`. The keys of
            `spans` are positions of the text, also in `generate`; in cross attention, positions of the encoder's text.

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
    check_model("record", model)
    check_names(request, Requesting)
    selectors = {"heads", "queries", "pool"}
    default: Requesting = {"top_k": 8} if sum_over else {"top_k": 8, "overview": 64}
    checked = Request(**(request if request.keys() - selectors else request | default))
    if checked.is_empty:
        raise ValueError(
            "record: got nothing to record; expected weights, rows, top_k, sums, entropy, argmax, overview, blocks, "
            "spans or max_score"
        )
    return recording(model, checked, layers, sum_over, decay)


@contextmanager
def recording(
    model: nn.Module, checked: Request, layers: Layers | None = None, sum_over: object = None, decay: float = 1.0,
    trace: Trace | None = None,
) -> Iterator[Trace]:  # fmt: skip
    """Record the checked request of `record`, in an empty trace."""
    choices, trace = select_layers(model, layers), Trace() if trace is None else trace
    totals = None if sum_over is None and decay == 1.0 else Totals(trace, checked, sum_over, decay)
    trace.spans = checked.spans.names if isinstance(checked.spans, Spans) else ()
    recorder = _Recorder(model, trace, totals.request if totals else checked, list(choices.values()))
    recorder.is_regular = isinstance(trace, RowTrace)
    recorder.keep = totals.add if totals else trace.add
    with observing(model, recorder):
        yield trace
    recorder.finish(model)
    for entry, choice in choices.items():
        if not any(choice.includes(call.name, call.layer) for call, _ in trace.calls()):
            lost = ", ".join(map(repr, sorted(recorder.lost)))
            reason = f". Weights of {lost} multiply values in a way that dikkat does not follow" if lost else ""
            raise NotSeenError(no_call_message("recording", model, entry, choice, recorder.layers) + reason)


class RowTrace(Trace, ABC):
    """A trace of a generation, which gets only the weights of calls from the third run on.

    If the first two runs are regular (one call of each module, and one query in the second run), later runs are
    recorded without following tensors. With six layers and 1,024 tokens, a token of `generate` takes 17 ms of CPU time
    instead of 57 (9 without a recording).
    """

    @abstractmethod
    def add_row(self, name: str, weights: Tensor) -> None:
        """Add the weights (B, H, m) of the only query of a module's next call of PyTorch's function."""


class _Recorder(Watcher):
    """Adds the attention of a model's calls in this thread to a trace."""

    def __init__(self, model: nn.Module, trace: Trace, request: Request, choices: list[LayerChoice]) -> None:
        super().__init__(model, choices)
        self.trace, self._request, self.needs_scores = trace, request, request.max_score
        self.keep: Callable[[Inspection, Call], None] = trace.add
        self._kinds, self._returns_known = find_kinds(model)
        self._entered = set[str]()  # modules that ran and whose weights the model returns
        self._called = set[str]()  # modules with a call in this run
        self.lost = set[str]()  # modules with flexible attention, or whose weights dikkat does not follow

    def entered(self, name: str) -> None:
        if self._kind(name).root == name:
            self._entered.add(name)

    def start_run(self) -> None:
        self._called.clear()
        is_only_watcher = len(self.observation.watchers) == 1
        self.observation.repeats = self.run_count > 2 and self.is_regular and is_only_watcher

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
        chains = [chain for chain in map(self._chain, self.key_sequences) if not self.query_sequences & {*chain}]
        encoders = set().union(*chains) - set().union(*map(self._chain, self.query_sequences))
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
        missing |= {name for name in self.softmaxes if not any(is_within(call.name, name) for call, _ in calls)}
        if calls and (silent := sorted(missing | self.lost)):
            reason = "flexible attention, or weights that dikkat does not follow to the values"
            message = f"{', '.join(map(repr, silent))}: not recorded: {reason}"
            warnings.warn(f"record: {message}", stacklevel=4)
            if missing or any(self._kind(name).root or not self._kinds for name in self.lost):
                self.trace.withheld = message
        # transformers does not return weights (B · H, n, m).
        joined = is_transformers and any(call.source and len(result.shape) == 3 for call, result in self.trace.calls())
        if self._kinds and self._returns_known and not repeated and not joined:
            self.trace.lacking = {self._kind(name).name for name in missing | self.lost}
        if not self.trace.withheld and (repeated or not self._returns_known or joined):
            reason = f"dikkat does not know which weights {type(model).__name__} returns"
            if repeated:
                reason = f"{min(repeated)!r} attended several times in one layer, of which transformers returns one"
            self.trace.withheld = f"{reason}: use trace[name] of dikkat.record(model, weights=True)"

    def _chain(self, number: int) -> list[int]:
        """Return a sequence and its predecessors by self-attention, the latest first."""
        chain = [number]
        while (number := self.parents.get(number, (number, 0))[0]) not in chain:
            chain.append(number)
        return chain

    def _kind(self, name: str) -> Kind:
        return self._kinds.get(name, Kind(""))

    def compute(self, name: str, problem: Problem, streams: Streams) -> Result | None:
        sizes = problem.restrictions.queries, problem.restrictions.keys
        # The reference computes all weights. With gradients, a checkpoint must find the same saved tensors.
        if name == "reference" and not problem.records:
            full = run_problem(replace(problem, wants_state=True, wants_weights=True), name)
            self.add(lambda request: inspect_weights(full.shown_weights(), request, full.lse), streams, *sizes)
            wants = problem.wants_state, problem.wants_weights, problem.wants_state
            return Result(full.mean, *(t if flag else None for t, flag in zip(full[1:], wants, strict=True)))
        if self._request.is_partial or self._request.weights or not is_by_product(name, problem):
            return None
        inspect = partial(inspect_problem, problem, impl=name, with_output=True)
        output = self.add(inspect, streams, *sizes)
        return None if output is None else Result(output, None, None)

    def add_row(self, weights: Tensor) -> None:
        heads, _ = self._request.selection(weights.shape[:2], 1, weights.device)
        if isinstance(self.trace, RowTrace):
            self.trace.add_row(self.running[-1].name, weights if heads is None else weights[:, heads])

    def lose_weights(self) -> None:
        self.lost.add(self.running[-1].name)

    def add(
        self, inspect: Callable[[Request], Inspection], streams: Streams, queries: int, keys: int, source: str = ""
    ) -> Tensor | None:
        name, layer = self.running[-1].name, self.running[-1].layer
        if is_transformed():
            raise ValueError(
                f"record: got a call of {name!r} inside a transform of torch.func (vmap, grad ...); expected a call "
                "outside"
            )
        with recording_hooks.observed_by(None), without_autocast():
            with naming_errors("recording", name):
                positions = self.find_positions(streams, queries, keys)
                first_query, first_key = positions[0], max(0, positions[1])
                inspection = inspect(replace(self._request, first_key=first_key, first_query=first_query))
            is_self = streams[0].sequence == streams[1].sequence
            reads = self.observation.continued_sequence(streams) if is_self else 0
        self.is_regular &= not source and (self.run_count <= 1 or queries == 1) and name not in self._called
        self._called.add(name)
        layer = self._numbering.within(name) if layer < 0 else layer
        same_sequence_kind = "" if streams[0].is_pool else "self"
        kind = self._kinds[name].name if self._kinds else same_sequence_kind if is_self else "cross"
        call = Call(name, self.run_count, layer, kind, source, reads, streams[2].sequence)
        self.keep(replace(inspection, output=None, positions=positions), call)
        return inspection.output
