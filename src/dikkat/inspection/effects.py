"""Effects: how much a result changes if each head of a model is cut."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from dikkat._engine.pytorch_state import is_transformed
from dikkat.inspection.edits import BoundEdit, Gate
from dikkat.inspection.layer_selection import LayerChoice, Layers, is_within, list_entries, select_layers
from dikkat.inspection.observation import Watcher, observing
from dikkat.inspection.origins import Streams
from dikkat.inspection.recording import record
from dikkat.inspection.tables import make_frame, scores_columns
from dikkat.inspection.trace import Trace
from dikkat.inspection.whole_numbers import as_python
from dikkat.show.positions import Tokens

# A call: the name of its module, and how many calls the module made before.
Key = tuple[str, int]

# The largest number of batch elements in one run with cut heads.
_ELEMENTS = 16
# The largest difference of the target between two runs of an unchanged model, relative to its size. For heads that
# share a run, it is relative to the effect, or to the rounding of the target.
_SAME, _ROUNDING = 1e-3, 1e-5


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
    the layers before. Several heads share a run, as a batch, if the model's outputs of repeated inputs do not depend on
    each other.

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
        The table of `Trace.scores` with two more columns after `head`, `effect` and `estimate`, in the unit of the
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
    target = as_python(target)
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
    first = {name: scores.pop(name) for name in ("layer", "module", "kind", "head")}
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
        self._strongest: tuple[Key, int] | None = None  # the head with the largest estimate, and its call
        batches = [len(tensor) for tensor in (*arguments, *inputs.values()) if _has_rows(tensor)]
        self._elements, self._can_repeat = batches[0] if batches else 1, bool(batches)
        self._logits: tuple[int, ...] = ()  # the shape of the logits, if the target is an index

    def _run(self, times: int = 1) -> Tensor:
        """Return the mean target of each repetition of the inputs, (times,)."""
        self._gates.counts.clear()
        arguments, inputs = (_repeat(values, self._elements, times) for values in (self._arguments, self._inputs))
        output = self._model(*arguments, **inputs)
        if times == 1:
            return self._target_of(output).mean().view(1)
        return torch.stack(
            [self._target_of(_select_repetition(output, number, self._elements, times)).mean()
             for number in range(times)]
        )  # fmt: skip

    def _target_of(self, output: Any) -> Tensor:
        """Return the target, (B,) or a number."""
        if callable(self._target):
            result = self._target(output)
        else:
            result = self._logit(output if isinstance(output, Tensor) else getattr(output, "logits", output))
        result = torch.as_tensor(result)
        batches = {len(tensor) for tensor in (*self._arguments, *self._inputs.values()) if _has_rows(tensor)}
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
            [result] = self._run()
            counts = {(math.prod(record.shape[:-2]) // record.sizes[0], record.sizes[1]) for _, record in trace.calls()}
            if self._logits[:-1] in {(queries,) for _, queries in counts} and {batch for batch, _ in counts} == {1}:
                raise ValueError(
                    f"target: got an index, but the inputs have no batch dimension (logits {self._logits}); expected "
                    "batched inputs, such as tensor[None], or a function of the output"
                )
            self._base, gates = result.item(), self._gates.gates
            if not math.isfinite(self._base):
                raise ValueError(f"target: got {self._base}; expected finite numbers")
            gradients = (
                torch.autograd.grad(result, [*gates.values()], allow_unused=True)
                if result.requires_grad and gates
                else [torch.full_like(gate, math.nan) for gate in gates.values()]
            )
        if gates and all(gradient is None for gradient in gradients):
            raise ValueError("target: got a result that depends on no head; expected a function of the model's output")
        estimates = {
            key: torch.zeros(gates[key].shape[-1]) if gradient is None else -gradient[0]
            for key, gradient in zip(gates, gradients, strict=True)
        }
        sizes = {key: estimate.nan_to_num().abs().max(0) for key, estimate in estimates.items()}
        if sizes:
            key = max(sizes, key=lambda key: float(sizes[key].values))
            self._strongest, self._scale = (key, int(sizes[key].indices)), float(sizes[key].values)
        return trace, estimates

    @torch.no_grad()
    def exact(self, sizes: dict[Key, int]) -> dict[Key, list[float]]:
        """Return the effects of each call's heads."""
        with observing(self._model, self._gates):
            self._gates.only = ("", -1)  # no call
            second = float(self._run())
            if not self._is_same(second):
                raise ValueError(
                    f"model: got the target {self._base:.6g}, and {second:.6g} from a second run; "
                    "expected equal results. Call model.eval(), since dropout makes runs differ"
                )
            self._base = second
            self._blocks.check(list(sizes), lambda: self._is_same(float(self._run())))
            together = self._count_together(sizes)
            return {
                key: [
                    target - self._base
                    for first in range(0, heads, together)
                    for target in self._cut(key, heads, range(first, min(first + together, heads)))
                ]
                for key, heads in sizes.items()
            }

    def _is_same(self, target: float) -> bool:
        return abs(target - self._base) <= _SAME * max(abs(self._base), self._scale)

    def _count_together(self, sizes: dict[Key, int]) -> int:
        """Return how many heads share a run: 1 if a cut head changes the other repetitions of the inputs."""
        size = max(1, _ELEMENTS // self._elements)
        if size == 1 or not self._can_repeat or self._strongest is None:
            return 1
        key, head = self._strongest
        heads = sizes[key]
        try:
            together = self._cut(key, heads, [head, heads])  # `heads` is no head
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError):
            return 1
        expected = [*self._cut(key, heads, [head]), self._base]
        limit = max(_SAME * abs(expected[0] - self._base), _ROUNDING * max(abs(self._base), self._scale))
        apart = max(abs(target - single) for target, single in zip(together, expected, strict=True))
        return size if apart <= limit else 1

    def _cut(self, key: Key, heads: int, group: Sequence[int]) -> list[float]:
        """Return the target for each head of a group, if that head of a call is cut."""
        gates, self._gates.only = 1 - F.one_hot(torch.tensor(group), heads + 1)[:, :heads].float(), key
        # One head alone has one row of gates, for calls with another batch, such as windows.
        self._gates.gates[key] = gates.repeat_interleave(self._elements, 0) if len(group) > 1 else gates
        with self._blocks.skipped(key[0], self._elements, len(group)):
            targets: list[float] = self._run(len(group)).tolist()
        return targets


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


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _select_repetition(output: Any, number: int, elements: int, times: int) -> Any:
    """Return the output for one repetition of the inputs.

    Values without repetitions, such as the mean loss of a batch or a cache, become None.
    """

    def select(value: Any) -> Any:
        return _select_repetition(value, number, elements, times)

    if isinstance(output, Tensor):
        repeats = output.ndim > 0 and len(output) == elements * times
        return output[number * elements : (number + 1) * elements] if repeats else None
    if isinstance(output, dict):
        return type(output)(**{name: select(value) for name, value in output.items()})
    if isinstance(output, tuple | list):
        results = map(select, output)
        return type(output)(*results) if hasattr(output, "_fields") else type(output)(results)
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
