"""Recording: what every call of attention of a model looks at, while the model runs as it does."""

import math
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch._higher_order_ops import flex_attention
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from dikkat._core import recording_hooks
from dikkat._core.dispatch import run_problem
from dikkat._core.problem import Problem, Result
from dikkat._core.restrictions import check_names
from dikkat._engine.pytorch_state import is_transformed, uncompiled
from dikkat.attention import weights_of
from dikkat.inspection.captured import of_fused_function, of_multi_head_function, of_weights
from dikkat.inspection.front import inspected, is_by_product
from dikkat.inspection.kinds import kinds_of
from dikkat.inspection.layer_selection import Chosen, Layers, Numbering, chosen
from dikkat.inspection.request import Inspection, Request, Requesting
from dikkat.inspection.trace import Trace

_CAPTURED: dict[Any, Callable[..., Inspection]] = {
    F.scaled_dot_product_attention: of_fused_function,
    F.multi_head_attention_forward: of_multi_head_function,
}
_HEARD = {torch.matmul, F.softmax, flex_attention, *_CAPTURED}


@contextmanager
def record(model: nn.Module, *, layers: Layers | None = None, **request: Unpack[Requesting]) -> Iterator[Trace]:
    """Record what a model's attention looks at, layer by layer, while it runs as it does.

    What is seen: every call of `dikkat.attend` and its sisters, dikkat's layers and recurrences,
    `torch.nn.MultiheadAttention`, and `torch.nn.functional.scaled_dot_product_attention` inside any module; so too
    Hugging Face's models with `attn_implementation="dikkat"`, `"sdpa"` or `"eager"`, but not with flash or flexible
    attention. Weights are those before dropout; they are summarised at once, moved to the CPU, and have no gradient.
    Neither the model's results nor its gradients change, but where a shortcut would have gone by a module without
    calling it: by rounding with the compiled search, and with PyTorch's for encoders in evaluation, which besides
    leaves 0 at padding (or NaN, where a row sees no key), and does not while it is recorded.

    A call belongs to the innermost module of the model that is being called (`module(...)`), which hooks on the modules
    tell meanwhile; a module's other methods count as part of what called them. Other threads are not seen, and may
    record for themselves; recordings may be nested. What `torch.compile` made runs uncompiled meanwhile, in all
    threads. What is computed once more for a backward (checkpoints) is not recorded again.

    What is not chosen by `layers` runs as if nobody recorded; of what is, `heads` and `queries` alone are computed.

    Args:
        model: The calls within its modules are recorded, by the modules' names in it.
        layers: The modules, with all in them, whose calls are recorded: a name, as `model.named_modules()` has it, a
            pattern with *, ? and [...] that the whole name follows, a number, which is a place in each of the model's
            outermost lists of modules, counted from the end below 0; or several of these in a list. None for all. An
            entry of a list that runs again, as ALBERT's one layer does, is the next layer each time.
        **request: What to record of each call (`Requesting`); if nothing, `top_k=8` and `overview=64`.

    Yields:
        The `Trace`, which fills while the model runs.

    Warns:
        UserWarning: Layers ran that are not seen, as their attention is PyTorch's flexible one; their names.

    Raises:
        TypeError: `model` is no module, or an argument is of the wrong kind.
        ValueError: Nothing is requested; no module has one of the `layers`; an argument that does not fit a call, with
            the name of its module; or, at the end, no call was seen, or none in one of the `layers`.
        RuntimeError: It is being compiled: record around what is compiled, not in it.

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
        yield recorder.trace
    if recorder.unseen:
        names = ", ".join(map(repr, dict.fromkeys(recorder.unseen)))
        warnings.warn(f"record: {names}: not recorded, as flexible attention shows no weights", stacklevel=3)
    recorder.finish(model)
    for entry, each in by_entry.items():
        if not any(each.takes(call.name, call.layer) for call, _ in recorder.trace.calls()):
            raise ValueError(_unseen(model, entry, each, recorder.layers))


def _unseen(model: nn.Module, entry: int | str | None, each: Chosen, layers: int) -> str:
    """The message of a recording without a call."""
    if each.counted and layers:
        return f"layers: got {entry}; expected {-layers} to {layers - 1}, as so many layers ran"
    kinds = sorted({type(module).__name__ for module in each.modules.values()})
    which = f"model: got {type(model).__name__}" if entry is None else f"layers: got {entry!r}"
    asks = getattr(getattr(model, "config", None), "_attn_implementation", None)
    own = "" if asks in (None, "dikkat", "sdpa", "eager") else f" (this one has {asks!r}: load it anew)"
    return (
        f"{which}, in which no attention was seen: it was not run here, or computes softmax(q kᵀ) v by operations of "
        "its own: call torch.nn.functional.scaled_dot_product_attention or dikkat.attend there, or draw weights that "
        "you have with dikkat.show.weights. Expected a run of a model with layers of dikkat, "
        "torch.nn.MultiheadAttention or scaled_dot_product_attention, or one of Hugging Face's that is loaded with "
        f"attn_implementation='dikkat', 'sdpa' or 'eager'{own}. Its modules: {', '.join(kinds)}"
    )


class _Recorder:
    """Adds to a trace what this thread's calls within a model look at."""

    def __init__(self, model: nn.Module, request: Request, entries: list[Chosen]) -> None:
        self.trace, self._request, self._entries = Trace(), request, entries
        self._modules = {name: module for each in entries for name, module in each.modules.items()}
        (self._kinds, self._says), self._numbering = kinds_of(model), Numbering(list(self._modules))
        self._entered = set[str]()  # modules whose weights the model returns, and that ran
        self._thread, self._calls = threading.get_ident(), list[tuple[str, nn.Module, int]]()
        self._listening, self._since, self._runs = ExitStack(), 0, 0
        self.layers = 0  # that ran, of those that were looked for
        self.unseen: list[str] = []  # modules, of flexible attention
        self.columns = 0  # of the last product of matrices: as many as keys, where a softmax follows

    def start(self) -> None:
        """Start to observe this thread's calls of attention."""
        self._listening.enter_context(recording_hooks.observed_by(self, *recording_hooks.current_observers()))
        self._listening.enter_context(_Mode(self))

    def stop(self) -> None:
        """Stop observing."""
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
        def enter(*_: Any) -> None:
            if threading.get_ident() == self._thread:
                layer = self._numbering.enter(name)
                if layer < 0 and self._calls:
                    layer = self._calls[-1][2]
                self.layers = max(self.layers, layer + 1)
                self._calls.append((name, module, layer))
                if self._kinds[name].root == name and any(each.takes(name, layer) for each in self._entries):
                    self._entered.add(name)
                if not self._since and any(each.takes(name, layer) for each in self._entries):
                    self.start()
                    self._since = len(self._calls)

        def leave(*_: Any) -> None:
            # Not entered where another hook raised before; and an interrupt may have left inner calls open.
            if threading.get_ident() == self._thread and any(each[0] == name for each in self._calls):
                while self._calls.pop()[0] != name:
                    pass
                if len(self._calls) < self._since:
                    self.stop()

        yield module.register_forward_pre_hook(enter)
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
        calls = [(call, self._kinds[call.name].root) for call, _ in self.trace.calls()]
        last = {(call.run, root): call.name for call, root in calls}
        self.trace.set_kinds(["" if root and last[call.run, root] != call.name else call.kind for call, root in calls])
        times = Counter((call.run, call.layer, call.name) for call, root in calls if root and call.layer >= 0)
        several = {name for (_, _, name), count in times.items() if count > 1}
        silent = sorted(self._entered - {root for _, root in calls if root})
        if silent and calls:
            names = ", ".join(map(repr, silent))
            self.trace.withheld = f"{names}: not recorded, as they compute their weights by operations of their own"
            warnings.warn(f"record: {self.trace.withheld}", stacklevel=4)
        elif several or not self._says:
            why = (
                f"{min(several)!r} attended several times in one layer, of which transformers returns one"
                if several
                else f"{type(model).__name__} does not say which weights it returns"
            )
            self.trace.withheld = f"{why}: take them by name, of dikkat.record(model, weights=True)"

    def compute(self, name: str, problem: Problem) -> Result | None:
        """The result of a call of dikkat's, if what is requested is a by-product of it."""
        # It computes all weights anyway; with gradients, a checkpoint must not find other tensors saved.
        if name == "reference" and self._calls and not problem.records:
            all_of_it = run_problem(replace(problem, wants_state=True, wants_weights=True), name)
            self.add(lambda: of_weights(weights_of(all_of_it), self._request, all_of_it.lse))
            wanted = problem.wants_state, problem.wants_weights, problem.wants_state
            return Result(all_of_it.mean, *(each if w else None for each, w in zip(all_of_it[1:], wanted, strict=True)))
        if self._request.is_of_some or self._request.weights or not is_by_product(name, problem):
            return None
        seen = self.add(lambda: inspected(problem, self._request, impl=name, pools=True))
        return None if seen is None or seen.output is None else Result(seen.output, None, None)

    def observe_calls(self, problems: Sequence[Problem]) -> None:
        """Look at a call of dikkat's, or at those of a batch of packed sequences."""
        longest = max(problem.restrictions.queries for problem in problems)
        request = replace(self._request, longest=longest or math.inf)  # a batch without a query has none of the rows
        for problem in problems:
            self.add(partial(inspected, replace(problem, dropout=0.0, seeds=None), request))

    def observe_weights(self, weights: Tensor) -> None:
        """Look at weights that a recurrence, or a model's own operations, made."""
        self.add(lambda: of_weights(weights, self._request))

    def saw_function(self, function: Any, *arguments: Any, **named: Any) -> None:
        """Look at a call of one of PyTorch's functions."""
        if function is F.scaled_dot_product_attention and self._calls:
            arguments, named = _unpacked(self._calls[-1][1], *arguments, **named)
        self.add(lambda: _CAPTURED[function](self._request, *arguments, **named))

    def saw_softmax(self, logits: Tensor, weights: Tensor) -> None:
        """Take note of a softmax, if Hugging Face's own ("eager") attention makes its weights by it."""
        if not self._calls or not _is_eager(module := self._calls[-1][1]):
            return
        sinks = getattr(module, "sinks", None)
        if sinks is not None and weights.shape[-1] == self.columns:  # Granite's sinks scale the rows afterwards
            weights = weights * (logits.logsumexp(-1, keepdim=True) - sinks.view(-1, 1, 1)).sigmoid()
        elif sinks is not None:  # a sink stands after the keys
            weights = weights[..., :-1]
        self.observe_weights(weights)

    def could_not_see(self) -> None:
        """Take note of a call whose weights nobody can see."""
        if self._calls:
            self.unseen.append(self._calls[-1][0])

    def add(self, look: Callable[[], Inspection]) -> Inspection | None:
        """Look at a call, if it is of a module of the model."""
        # In a backward, what a checkpoint computes has been seen before.
        if not self._calls or torch._C._current_graph_task_id() != -1:
            return None
        name, _, layer = self._calls[-1]
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
        layer = self._numbering.within(name) if layer < 0 else layer
        self.trace.add(name, replace(seen, output=None), self._runs, layer, self._kinds[name].name)
        return seen


def _is_passed_over(module: nn.Module) -> bool:
    """Whether a module gets no hooks: a TorchScript module, or one of PyTorch's leaf layers.

    Recurrences and scores run in compiled code only where nothing is hooked to their layers.
    """
    leaf = type(module).__module__.startswith("torch.nn.modules.") and not module._modules
    return leaf or isinstance(module, torch.jit.ScriptModule)


def _is_eager(module: nn.Module) -> bool:
    """True for an attention of Hugging Face's that computes its weights itself."""
    kind, config = type(module), getattr(module, "config", None)
    return (
        "Attention" in kind.__name__
        and hasattr(sys.modules[kind.__module__], "eager_attention_forward")
        and getattr(config, "_attn_implementation", None) == "eager"
    )


def _unpacked(module: nn.Module, *arguments: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call with its heads apart, where transformers hands on those of one query that share keys as queries of one."""
    groups, config = getattr(module, "num_key_value_groups", 1), getattr(module, "config", None)
    query, *rest = arguments or (None,)
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(query, Tensor) or groups == 1 or query.ndim != 4 or query.shape[1] * groups != heads:
        return arguments, named
    apart = {
        name: each.flatten(1, 2)[:, :, None] if isinstance(each, Tensor) and each.shape[1] != 1 else each
        for name, each in {"query": query, "attn_mask": named.get("attn_mask")}.items()
    }
    return (apart["query"], *rest), {**named, "attn_mask": apart["attn_mask"], "enable_gqa": True}


class _Mode(TorchFunctionMode):
    """Tells a recorder of PyTorch's own attention in this thread."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        # Where one of these functions calls the other, it is one call: the mode is off within.
        result = func(*args, **named)
        if func in _HEARD and self._recorder in recording_hooks.current_observers():
            if func is torch.matmul:
                self._recorder.columns = result.shape[-1]
            elif func is F.softmax:
                self._recorder.saw_softmax(args[0] if args else named["input"], result)
            elif func is flex_attention:
                self._recorder.could_not_see()
            else:
                self._recorder.saw_function(func, *args, **named)
        return result
