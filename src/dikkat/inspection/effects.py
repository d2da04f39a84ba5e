"""Effects: how much a result changes if each head of a model is cut."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dikkat._engine.pytorch_state import is_transformed
from dikkat.inspection.edits import BoundEdit, Gate
from dikkat.inspection.layer_selection import LayerChoice, Layers, is_within, list_entries, select_layers
from dikkat.inspection.observation import Watcher, observing
from dikkat.inspection.origins import Streams
from dikkat.inspection.recording import record
from dikkat.inspection.tables import make_frame, scores_columns
from dikkat.inspection.trace import Trace
from dikkat.show.positions import Tokens

# A call: the name of its module, and how many calls the module made before.
Key = tuple[str, int]

# The largest number of batch elements in one run with cut heads.
_ELEMENTS = 16
# The largest difference of the target between two runs of an unchanged model, relative to its size.
_SAME = 1e-3


def effects(
    model: nn.Module,
    *arguments: Any,
    target: int | Callable[[Any], Any],
    mean: bool = False,
    exact: bool = True,
    layers: Layers | None = None,
    tokens: Tokens | None = None,
    **inputs: Any,
) -> Any:
    r"""Return a table of the heads with the change of a result if each head is cut.

    $$ \text{effect}_h = f(\text{output with head } h \text{ cut}) - f(\text{output}), \qquad
       \text{estimate}_h = -\sum_i \Big\langle \frac{\partial f}{\partial z_{hi}},\ z_{hi} - \bar z_h \Big\rangle $$

    where z are the head's outputs and z̄ is 0, or with `mean` their mean over the text. The estimate of all heads takes
    one forward and one backward pass. Each effect is a run of the layers from the head on: dikkat reuses the results of
    the layers before. If `target` returns a number per element, several heads share a run.

    Args:
        model: A model in evaluation mode whose attention `dikkat.change` can change.
        *arguments: The model's inputs.
        target: A function of the model's output, or the index of a class or token. A function returns a number, or a
            number for each element of the batch, whose mean counts. An index selects a logit, at the last position if
            the logits are (B, n, classes).
        mean: Whether a cut head's output becomes its mean over the text instead of 0.
        exact: Whether to compute `effect`, or only `estimate`.
        layers: The layers, as in `dikkat.record`; all by default.
        tokens: The tokens, for the patterns in `looks`, as in `Trace.tokens`.
        **inputs: The model's inputs by name.

    Returns:
        The table of `Trace.scores` with two more columns after `looks`, `effect` and `estimate`, in the unit of the
        target. `estimate` is NaN if the target has no gradient. The scores are of the first element of the batch.

    Raises:
        TypeError: `target` is neither a function nor an index, or does not return numbers.
        ValueError: As in `dikkat.change`; the target does not depend on attention; or two runs of the model differ, as
            with dropout.

    Source:
        Cut heads: Michel et al. 2019, "Are sixteen heads really better than one?", section 2 (effect) and 4
        (estimate).

    Example:
        >>> import dikkat
        >>> model, words = dikkat.show.example_model(), "a rose is a rose is a".split()
        >>> table = dikkat.effects(model, words, target=lambda logits: logits[0, -1].max(), tokens=words)
        >>> len(table["effect"]), len(table["estimate"])  # two layers of four heads
        (8, 8)
    """
    if not callable(target) and type(target) is not int:
        raise TypeError(f"target: got {type(target).__name__}; expected a function of the output, or a logit's index")
    if is_transformed() or torch.is_inference_mode_enabled():
        raise ValueError(
            "model: got a call inside a transform of torch.func, or in inference mode; expected one outside"
        )
    dropping = [name for name, module in model.named_modules() if module.training and _drops(module)]
    if dropping:
        raise ValueError(f"model: got dropout in {dropping[0]!r}, which makes runs differ; expected model.eval()")
    choices = list(select_layers(model, layers).values())
    run = _Runs(model, choices, arguments, inputs, target, mean)
    trace, estimates = run.estimate(layers)
    columns: dict[str, list[float]] = {"effect": [], "estimate": []}
    counts = Counter[str]()
    exact_effects = run.exact({key: gate.shape[-1] for key, gate in estimates.items()}) if exact else {}
    for call, _ in trace.calls():
        key = call.name, counts[call.name]
        counts[call.name] += 1
        columns["estimate"] += estimates[key].tolist()
        columns["effect"] += exact_effects[key] if exact else [float("nan")] * estimates[key].shape[-1]
    if tokens is not None:
        trace.tokens = tokens
    scores = scores_columns(trace.calls(), 0, trace.tokens)
    first = {name: scores.pop(name) for name in ("layer", "module", "kind", "head", "looks")}
    return make_frame(first | {name: np.asarray(column) for name, column in columns.items()} | scores)


class _Gates(Watcher):
    """Multiplies the outputs of heads by gates: ones with a gradient, or those of one call."""

    changes = True

    def __init__(self, model: nn.Module, choices: list[LayerChoice], mean: bool) -> None:
        super().__init__(model, choices)
        self._mean, self.counts = mean, Counter[str]()  # how many calls each module made in this run
        self.gates: dict[Key, Tensor] = {}  # by call; made at the first use in an estimate
        self.only: Key | None = None  # the call with a gate; None for all

    def edits_of(self, streams: Streams, queries: int, keys: int, step: int | None) -> list[BoundEdit]:
        self.check_layer()
        name = self.running[-1].name
        self.counts[name] += not step
        key = name, self.counts[name] - 1
        if self.only not in (None, key):
            return []

        def factors(count: int) -> Tensor:
            return self.gates.setdefault(key, torch.ones(1, count, requires_grad=True))

        first_key = 0 if streams[0].sequence == streams[1].sequence else -1
        return [BoundEdit(Gate(None, self._mean, factors), 0, first_key, lambda _: None)]

    def reject(self, reason: str) -> None:
        raise ValueError(f"effects: got {reason} in {self.running[-1].name!r}, which dikkat cannot cut")


class _Runs:
    """Runs of a model on one input, with gates on its heads."""

    def __init__(
        self, model: nn.Module, choices: list[LayerChoice], arguments: Any, inputs: Any, target: Any, mean: bool
    ) -> None:
        self._model, self._arguments, self._inputs, self._target = model, arguments, inputs, target
        self._gates, self._blocks = _Gates(model, choices, mean), _Blocks(model)
        self._base, self._scale = 0.0, 0.0  # the target, and the largest estimate
        self._logits: tuple[int, ...] = ()  # the shape of the logits, if the target is an index
        self._elements: int | None = None  # how many numbers the target returns; None for one number

    def _result(self, arguments: Any, inputs: Any) -> Tensor:
        """Return the target, (B,) or a number."""
        self._gates.counts.clear()
        output = self._model(*arguments, **inputs)
        if callable(self._target):
            result = self._target(output)
        else:
            result = self._logit(output if isinstance(output, Tensor) else getattr(output, "logits", output))
        result = torch.as_tensor(result)
        batches = {
            len(tensor) for tensor in (*arguments, *inputs.values()) if isinstance(tensor, Tensor) and tensor.ndim
        }
        misfits = result.ndim == 1 and bool(batches) and len(result) not in batches
        if not result.is_floating_point() or result.ndim > 1 or misfits:
            raise TypeError(
                f"target: got {tuple(result.shape)} {result.dtype} from the function; expected a floating-point "
                "number, or one for each element of the batch"
            )
        return result

    def _logit(self, logits: Any) -> Tensor:
        if not isinstance(logits, Tensor) or not logits.ndim:
            raise TypeError(f"target: got an index for {type(logits).__name__}; expected a function of the output")
        if not -logits.shape[-1] <= self._target < logits.shape[-1]:
            classes = logits.shape[-1]
            raise ValueError(f"target: got {self._target}; expected {-classes} to {classes - 1}, a class of the logits")
        self._logits = tuple(logits.shape)
        return (logits[:, -1] if logits.ndim > 2 else logits)[..., self._target]

    def estimate(self, layers: Layers | None) -> tuple[Trace, dict[Key, Tensor]]:
        """Return a trace of the unchanged model and the estimates (H,) of each call."""
        with (
            torch.enable_grad(),
            observing(self._model, self._gates),
            record(self._model, layers=layers, top_k=8) as trace,
            self._blocks.noted(),
        ):
            result = self._result(self._arguments, self._inputs)
            counts = {(math.prod(record.shape[:-2]) // record.sizes[0], record.sizes[1]) for _, record in trace.calls()}
            if self._logits[:-1] in {(queries,) for _, queries in counts} and {batch for batch, _ in counts} == {1}:
                raise ValueError(
                    f"target: got an index, and logits {self._logits} for inputs without a batch; expected a batch of "
                    "inputs, such as tensor[None], or a function of the output"
                )
            if not bool(result.isfinite().all()):
                raise ValueError(f"target: got {result.tolist()}; expected finite numbers")
            self._base, self._elements = result.detach().mean().item(), len(result) if result.ndim else None
            gates = self._gates.gates
            gradients = (
                torch.autograd.grad(result.mean(), [*gates.values()], allow_unused=True)
                if result.requires_grad and gates
                else [torch.full_like(gate, math.nan) for gate in gates.values()]
            )
        if gates and all(gradient is None for gradient in gradients):
            raise ValueError("target: got a result that depends on no head; expected a function of the model's output")
        estimates = {
            key: torch.zeros(gates[key].shape[-1]) if gradient is None else -gradient[0]
            for key, gradient in zip(gates, gradients, strict=True)
        }
        self._scale = max((float(estimate.nan_to_num().abs().max()) for estimate in estimates.values()), default=0.0)
        return trace, estimates

    @torch.no_grad()
    def exact(self, sizes: dict[Key, int]) -> dict[Key, list[float]]:
        """Return the effects of each call's heads."""
        with observing(self._model, self._gates):
            self._gates.only = ("", -1)  # no call
            result = self._result(self._arguments, self._inputs)
            if not self._is_same(result):
                raise ValueError(
                    f"model: got the target {self._base:.6g}, and {float(result.mean()):.6g} from a second run; "
                    "expected equal results. Call model.eval(), since dropout makes runs differ"
                )
            self._base = float(result.mean())
            self._blocks.check(list(sizes), lambda: self._is_same(self._result(self._arguments, self._inputs)))
            together = self._count_together(*next(iter(sizes.items())))
            return {key: self._effects_of(key, heads, together) for key, heads in sizes.items()}

    def _is_same(self, result: Tensor) -> bool:
        return abs(float(result.mean()) - self._base) <= _SAME * max(abs(self._base), self._scale)

    def _count_together(self, key: Key, heads: int) -> int:
        """Return how many heads share a run: 1 if the target is one number or the model does not repeat its inputs."""
        if self._elements is None:
            return 1
        self._gates.only, self._gates.gates[key] = key, torch.ones(2 * self._elements, heads)
        try:
            result = self._result(*self._repeated(2))
        except (RuntimeError, ValueError, IndexError):
            return 1
        repeats = result.ndim == 1 and len(result) == 2 * self._elements
        repeats = repeats and all(map(self._is_same, result.view(2, -1)))
        return max(1, _ELEMENTS // self._elements) if repeats else 1

    def _repeated(self, times: int) -> tuple[Any, Any]:
        elements = self._elements or 1
        return _repeat(self._arguments, elements, times), _repeat(self._inputs, elements, times)

    def _effects_of(self, key: Key, heads: int, together: int) -> list[float]:
        changes, self._gates.only = list[float](), key
        for first in range(0, heads, together):
            group = range(first, min(first + together, heads))
            gates = torch.ones(len(group), heads)
            gates[range(len(group)), group] = 0
            # One head alone has one row of gates, for calls with another batch, such as windows.
            self._gates.gates[key] = gates.repeat_interleave(self._elements or 1, 0) if len(group) > 1 else gates
            arguments, inputs = self._repeated(len(group)) if len(group) > 1 else (self._arguments, self._inputs)
            with self._blocks.skipped(key[0], self._elements or 1, len(group)):
                result = self._result(arguments, inputs)
            changes += [float(value) - self._base for value in result.reshape(len(group), -1).mean(1)]
        return changes


class _Blocks:
    """The entries of a model's outermost lists of modules, and their results in an unchanged run."""

    def __init__(self, model: nn.Module) -> None:
        modules = dict(model.named_modules())
        self._modules = {name: modules[name] for name in list_entries(list(modules)) if name in modules}
        self._results: dict[str, Any] = {}
        self._earlier: dict[str, list[str]] = {}  # the entries that had ended when an entry began
        self._can_skip = True

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the results of the entries that run."""
        handles = []
        for name, module in self._modules.items():

            def begin(*_: Any, name: str = name) -> None:
                self._can_skip = self._can_skip and name not in self._earlier
                self._earlier[name] = [*self._results]

            def end(_: nn.Module, __: Any, result: Any, *, name: str = name) -> None:
                self._results[name] = _copy(result)  # before the model writes to it

            handles += [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._can_skip = self._can_skip and all(result is not None for result in self._results.values())

    @contextmanager
    def skipped(self, name: str, elements: int, times: int) -> Iterator[None]:
        """Let the entries that ended before the entry of a module began return their results, for repeated inputs."""
        skipped = next((earlier for entry, earlier in self._earlier.items() if is_within(name, entry)), [])
        skipped = skipped if self._can_skip else []
        before = {entry: vars(self._modules[entry]).get("forward") for entry in skipped}
        hooks = list[Any]()
        try:
            for entry in skipped:
                # The hook runs after others, whose changes the result has already.
                module, result = self._modules[entry], _repeat(_copy(self._results[entry]), elements, times)
                module.forward = lambda *_, result=result, **__: result
                hooks.append(module.register_forward_hook(lambda *_, result=result: result))
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for entry, forward in before.items():
                del self._modules[entry].forward
                if forward is not None:
                    self._modules[entry].forward = forward

    def check(self, keys: list[Key], run: Callable[[], bool]) -> None:
        """Skip no entries if a run without the entries before the last call is not the same."""
        try:
            with self.skipped(keys[-1][0], 1, 1):
                self._can_skip = run() and self._can_skip
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError):
            self._can_skip = False


def _drops(module: nn.Module) -> bool:
    """Return whether a module in training mode has dropout, also as a number such as `attention_dropout`."""
    numbers = [value for name, value in vars(module).items() if "drop" in name and isinstance(value, float)]
    return max([*numbers, module.p if isinstance(module, _DropoutNd) else 0.0]) > 0


def _copy(result: Any) -> Any:
    """Return a copy of a result without its graph; None if it has items other than tensors."""
    if isinstance(result, Tensor):
        return result.detach().clone()
    if isinstance(result, tuple | list) and type(result) in (tuple, list):
        results = [_copy(item) for item in result]
        return None if any(item is None for item in results) else type(result)(results)
    return None


def _repeat(values: Any, elements: int, times: int) -> Any:
    """Repeat the batch in all tensors whose first dimension has `elements`."""
    if times == 1:
        return values
    if isinstance(values, Tensor):
        return torch.cat([values] * times) if values.ndim and len(values) == elements else values
    if isinstance(values, dict):
        return {name: _repeat(value, elements, times) for name, value in values.items()}
    if isinstance(values, tuple | list) and type(values) in (tuple, list):
        return type(values)(_repeat(value, elements, times) for value in values)
    return values
