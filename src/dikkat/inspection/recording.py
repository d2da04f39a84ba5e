"""Recording: what every call of attention of a model looks at, while the model runs as it does."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from dikkat import watching
from dikkat.inspection.captured import of_fused_function, of_multi_head_function, of_weights
from dikkat.inspection.front import inspected, is_by_product
from dikkat.inspection.request import Inspection, Overview, Pool, Request
from dikkat.inspection.trace import Trace
from dikkat.masking import transformed
from dikkat.problem import Problem, Result

_CAPTURED: dict[Any, Callable[..., Inspection]] = {
    F.scaled_dot_product_attention: of_fused_function,
    F.multi_head_attention_forward: of_multi_head_function,
}
# In Hugging Face's models, the functions whose softmax makes the weights with `attn_implementation="eager"`.
_MODES = frozenset({"__torch_function__", "handle_torch_function"})
_EAGER = frozenset({"eager_attention_forward", "_upcast_and_reordered_attn"})


@contextmanager
def record(
    model: nn.Module,
    *,
    rows: Sequence[int] | Tensor | None = None,
    top_k: int | None = None,
    sums: bool = False,
    entropy: bool = False,
    argmax: bool = False,
    overview: Overview | None = None,
    pool: Pool = "mean",
) -> Iterator[Trace]:
    """Record what a model's attention looks at, layer by layer, while it runs as it does.

    What is seen: every call of `dikkat.attend` and its sisters, dikkat's layers and recurrences,
    `torch.nn.MultiheadAttention`, and `torch.nn.functional.scaled_dot_product_attention` inside any module; so too
    Hugging Face's models with `attn_implementation="dikkat"`, `"sdpa"` or `"eager"`, but not with flash or flexible
    attention. Weights are those before dropout; they are summarised at once, moved to the CPU, and have no gradient.
    Neither the model's results nor its gradients change, but for the rounding where PyTorch would have
    taken a shortcut in evaluation.

    Nothing is patched or hooked: this thread is watched, and the module that called is found on its stack. So other
    threads are as they were, and may record too; recordings may be nested. What `torch.compile` made runs uncompiled
    meanwhile, in all threads. What is computed once more for a backward (checkpoints) is not recorded again.

    Args:
        model: The calls within its modules are recorded, by the modules' names in it.
        rows: As of `dikkat.inspect`, as are all that follow: which queries' weights.
        top_k: How many of each query's largest weights.
        sums: Whether to record the sums by key.
        entropy: Whether to record each query's entropy.
        argmax: Whether to record the key of each query's largest weight.
        overview: How many cells the map is pooled to.
        pool: "mean" or "max".

    Yields:
        The `Trace`, which fills while the model runs.

    Raises:
        TypeError: `model` is no module, or an argument is of the wrong kind.
        ValueError: Nothing is asked for; an argument that does not fit a call, with the name of its module; or, at the
            end, no call was seen.

    Example:
        >>> import torch, dikkat
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> with dikkat.record(model, sums=True, top_k=2) as trace:
        ...     _ = model(torch.randn(3, 5, 8))
        >>> trace.names, trace["self_attn"].sums.shape, trace["self_attn"].top_keys.shape
        (['self_attn'], torch.Size([3, 2, 5]), torch.Size([3, 2, 5, 2]))
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: got {type(model).__name__}; expected a torch.nn.Module")
    request = Request(rows, None, top_k, sums, entropy, argmax, overview, pool)
    if request == Request(pool=pool):
        raise ValueError("record: got nothing to record; expected rows, top_k, sums, entropy, argmax or overview")
    recorder = _Recorder(model, request)
    with ExitStack() as stack:
        stack.enter_context(_uncompiled())
        stack.enter_context(watching.watched_by(*watching.watchers(), recorder))
        stack.enter_context(_Mode(recorder))
        yield recorder.trace
    if not recorder.trace.names:
        kinds = sorted({type(module).__name__ for module in model.modules()})
        raise ValueError(
            f"model: got {type(model).__name__}, in which no attention was seen: it was not run here, or has none but "
            "in operations of its own; expected a run of a model with layers of dikkat, torch.nn.MultiheadAttention or "
            "scaled_dot_product_attention, or one of Hugging Face's that is loaded with attn_implementation='dikkat', "
            "'sdpa' or 'eager'. "
            f"Its modules: {', '.join(kinds)}"
        )


class _Recorder:
    """Adds to a trace what this thread's calls within a model look at."""

    def __init__(self, model: nn.Module, request: Request) -> None:
        self.trace, self._request = Trace(), request
        # By identity, and kept alive meanwhile; a compiled module stands for its original.
        self._names = {id(module): (name, module) for name, module in _named(model)}

    def runs(self, name: str, problem: Problem) -> Result | None:
        """A call of dikkat's of whose output what is asked for is a by-product."""
        if not is_by_product(name, problem):
            return None
        found = self.add(lambda: inspected(problem, self._request, impl=name, pools=True))
        return None if found is None or found.output is None else Result(found.output, None, None)

    def saw(self, problem: Problem) -> None:
        """A call of dikkat's."""
        plain = replace(problem, dropout=0.0, seeds=None)
        self.add(lambda: inspected(plain, self._request))

    def saw_weights(self, weights: Tensor) -> None:
        """Weights that a recurrence, or a model's own operations, made."""
        self.add(lambda: of_weights(weights, self._request))

    def saw_function(self, function: Any, *arguments: Any, **named: Any) -> None:
        """A call of one of PyTorch's functions."""
        self.add(lambda: _CAPTURED[function](self._request, *arguments, **named))

    def add(self, look: Callable[[], Inspection]) -> Inspection | None:
        """Look at a call, if it is of a module of the model."""
        name = self._caller()
        # In a backward, what a checkpoint computes has been seen before.
        if name is None or torch._C._current_graph_task_id() != -1:
            return None
        if transformed():
            raise ValueError(
                f"record: got a call of {name!r} under torch.func (vmap, grad ...), where tensors stand for many "
                "values; expected plain ones"
            )
        with torch.no_grad(), watching.watched_by(), _without_autocast():
            try:
                found = look()
            except (TypeError, ValueError) as error:
                raise type(error)(f"{error} (recording {name!r})") from error
        self.trace.add(name, replace(found, output=None))
        return found

    def _caller(self) -> str | None:
        """The innermost module of the model on the stack; None where there is none."""
        frame = sys._getframe(1)
        while frame is not None:
            own = frame.f_locals.get("self")
            if id(own) in self._names:
                return self._names[id(own)][0]
            frame = frame.f_back  # type: ignore[assignment]
        return None


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """A model's modules by name, without what compilation adds to names."""
    for name, module in model.named_modules():
        original = ".".join(part for part in name.split(".") if part != "_orig_mod")
        yield original, module


class _Mode(TorchFunctionMode):
    """Tells a recorder of PyTorch's own attention in this thread."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if self._recorder not in watching.watchers():
            return func(*args, **named)
        if func is F.softmax:
            result = func(*args, **named)
            keys = _keys_of_eager_attention()
            if keys is not None:  # beyond which there may be sinks
                self._recorder.saw_weights(result[..., :keys])
            return result
        if func not in _CAPTURED:
            return func(*args, **named)
        # Where one of these functions calls the other, it is one call: the mode is off within.
        result = func(*args, **named)
        self._recorder.saw_function(func, *args, **named)
        return result


def _keys_of_eager_attention() -> int | None:
    """How many keys one of Hugging Face's own attentions has, if it is what has called `F.softmax`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code is F.softmax.__code__ or frame.f_code.co_name in _MODES):
        frame = frame.f_back
    if frame is None or frame.f_code.co_name not in _EAGER:
        return None
    key = frame.f_locals.get("key")
    return key.shape[-2] if isinstance(key, Tensor) else None


@contextmanager
def _without_autocast() -> Iterator[None]:
    """What is looked at is not to be halved."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


class _Stance:
    """How many recordings there are, and how to compile again after the last one."""

    lock, count = threading.Lock(), 0
    forced: Any = None


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Run compiled code as it was written, while anybody records."""
    with _Stance.lock:
        if not _Stance.count:
            _Stance.forced = torch.compiler.set_stance("force_eager")
        _Stance.count += 1
    try:
        yield
    finally:
        with _Stance.lock:
            _Stance.count -= 1
            if not _Stance.count:
                _Stance.forced.__exit__(None, None, None)
