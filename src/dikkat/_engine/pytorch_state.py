"""PyTorch's current state: tracing, transforms, autocast, settings; and whether values can be read."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode

# `TorchVersion` compares as a version. 2.6 is the first with all features of custom operators that dikkat needs.
if torch.__version__ < "2.6":
    raise ImportError(f"torch: got {torch.__version__}; expected 2.6 or later. Run: pip install --upgrade torch")


class check_values:  # noqa: N801 - reads as the function it is used as
    """Check values (the range of `valid_lens` and `exclude`) of tensors on every device.

    Values of CPU tensors are always checked. On an accelerator a check waits for the device, so by default kernels
    clamp. Enable the checks to find a mistake. Inside `torch.compile` and `torch.func.vmap` values cannot be read.

    A call changes the setting permanently, a context only within the context.

    Args:
        enabled: Whether to check values.

    Example:
        >>> with dikkat.check_values():
        ...     pass
    """

    everywhere: bool = False

    def __init__(self, enabled: bool = True) -> None:
        self._before = check_values.everywhere
        check_values.everywhere = enabled

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        check_values.everywhere = self._before


# Types of plain tensors. Other subclasses may behave differently.
PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})


def can_read_values(*tensors: Tensor, waits: bool = False) -> bool:
    """True if Python can read these tensors' values now; on a device only with `waits` or `check_values`."""
    if torch.compiler.is_compiling() or is_transformed() or _records_with_make_fx():
        return False
    if not all(type(t) in PLAIN_TYPES for t in tensors):
        return False
    if all(t.is_cpu for t in tensors):
        return True
    return (waits or check_values.everywhere) and not any(t.is_meta for t in tensors) and not _captures_graph(tensors)


# There is no public function for the active dispatch modes and torch.func transforms.
_functorch = torch._C._functorch
_modes, _transforms = torch._C._len_torch_dispatch_stack, _functorch.peek_interpreter_stack


def is_eager() -> bool:
    """True if operations run as they are called: no tracing, transform, mode, dual number or CPU autocast."""
    return not (
        torch.compiler.is_compiling()
        or _transforms() is not None
        or _modes()
        or torch._C._len_torch_function_stack()
        or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
        or torch.is_autocast_enabled("cpu")
    )


def has_dispatch_mode() -> bool:
    """True inside a dispatch mode of PyTorch, such as FakeTensorMode."""
    return bool(_modes())


def has_save_hooks() -> bool:
    """True if a hook, such as checkpointing or `save_on_cpu`, processes tensors saved for a backward."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None  # no public function


def is_in_backward() -> bool:
    """True inside a backward pass, where gradient checkpointing runs the forward pass again."""
    return torch._C._current_graph_task_id() != -1  # no public function


def _records_with_make_fx() -> bool:
    """True while `make_fx` records operations, which it repeats with other values."""
    return has_dispatch_mode() and get_proxy_mode() is not None


def _captures_graph(tensors: tuple[Tensor, ...]) -> bool:
    return any(t.is_cuda for t in tensors) and torch.cuda.is_current_stream_capturing()


def autocasts(device: str) -> bool:
    """True if autocast is on for this type of device; "meta" has none, and PyTorch raises if asked about it."""
    return device != "meta" and torch.is_autocast_enabled(device)


_MATMUL: Any = torch.backends.cuda.matmul
# The setting of TF32 and its values. PyTorch 2.9 renamed it. After a program sets the new name, reading the old raises.
_SETTING, _TF32, _UNSET = (
    ("fp32_precision", "tf32", "none") if hasattr(_MATMUL, "fp32_precision") else ("allow_tf32", True, False)
)


def uses_tf32() -> bool:
    """True if CUDA rounds the operands of float32 matrix products to TF32."""
    return bool(getattr(_MATMUL, _SETTING) == _TF32)


@contextmanager
def allow_tf32() -> Iterator[None]:
    before = getattr(_MATMUL, _SETTING)
    setattr(_MATMUL, _SETTING, _TF32)
    try:
        yield
    finally:
        # An unset precision follows `torch.backends.fp32_precision`, and reads as that value.
        setattr(_MATMUL, _SETTING, _UNSET)
        if getattr(_MATMUL, _SETTING) != before:
            setattr(_MATMUL, _SETTING, before)


def kernel_settings(device: str) -> tuple[bool, ...]:
    """Return the PyTorch settings that the choice of a device's kernels depends on."""
    reductions = _MATMUL.allow_fp16_reduced_precision_reduction, _MATMUL.allow_bf16_reduced_precision_reduction
    return autocasts(device), uses_tf32(), torch.are_deterministic_algorithms_enabled(), *reductions


def have_tangents(*tensors: Tensor) -> bool:
    """True if forward-mode differentiation goes through any of these tensors."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return False
    levels = _functorch.get_interpreter_stack() or []
    # The inner of two transforms hides the tangents of the outer one.
    if len(levels) > 1 and any(level.key() == _functorch.TransformType.Jvp for level in levels):
        return True
    return any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def is_transformed() -> bool:
    """True under `torch.func` (vmap, grad, jvp ...), where a tensor represents many values."""
    if torch.compiler.is_compiling():
        return False
    return _transforms() is not None


def extremes(numbers: Tensor) -> tuple[int, int]:
    if numbers.ndim == 1 and numbers.shape[0] <= 64:
        values = numbers.tolist()
        return min(values), max(values)
    smallest, largest = numbers.aminmax()
    return int(smallest), int(largest)


class _Stance:
    """The number of active `uncompiled` contexts, and the handle that enables compiling again."""

    lock, count = threading.Lock(), 0
    forced: Any = None


@contextmanager
def uncompiled() -> Iterator[None]:
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


def frame_compiler() -> tuple[Callable[[Any], Any], Callable[[], None]]:
    """Return PyTorch's setter of the compiler for this thread's frames, and a function for `fullgraph=True`.

    The setter takes a compiler or None, and returns the earlier one, also in a compiled call. The function lets an
    uncompiled call pass as compiled. PyTorch's public `set_stance` raises an error in a compiled call.

    Raises:
        ImportError: PyTorch has changed.
    """
    try:
        from torch._C._dynamo import eval_frame

        set_compiler: Callable[[Any], Any] = eval_frame.set_eval_frame
    except (ImportError, AttributeError) as error:
        raise ImportError(f"torch: got {torch.__version__}; expected 2.6 to 2.13, for a watch") from error
    set_frame_count = getattr(eval_frame, "set_fullgraph_compiled_frame_count", lambda _: -1)  # from 2.12 on

    def fulfil_fullgraph() -> None:
        count = set_frame_count(-1)  # −1 outside `fullgraph=True`
        set_frame_count(count or 1)

    return set_compiler, fulfil_fullgraph


def run_uncompiled(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """Return a copy of a function for compiled code, which runs it uncompiled; nested calls run compiled.

    With `fullgraph=True`, PyTorch raises an error that contains the reason, from version 2.7 on.
    """
    shows_reason = "reason" in signature(torch.compiler.disable).parameters
    options: dict[str, Any] = {"reason": reason} if shows_reason else {}
    disabled: Callable[..., Any] = torch.compiler.disable(function, recursive=False, **options)
    return disabled
