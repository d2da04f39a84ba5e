"""PyTorch's present state: tracing, transforming, casting; and whether numbers may be read."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode

if torch.__version__ < "2.6":  # as versions are compared; the first whose operators register all that ours need
    raise ImportError(f"torch: got {torch.__version__}; expected 2.6 or later. Run: pip install --upgrade torch")


class check_values:  # noqa: N801 - reads as the function it is used as
    """Switch on checks of values (the range of `valid_lens` and `exclude`) for tensors on every device.

    Values of CPU tensors are always checked. On an accelerator a check waits for the device, so kernels clamp instead;
    call this while you look for a mistake. Inside `torch.compile` and `torch.func.vmap` values cannot be read at all.

    Works as a call, which lasts, and as a context, which ends.

    Args:
        enabled: Whether values are checked from here on.

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


# Types of plain tensors; a subclass may be anything.
PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})


def can_read_values(*tensors: Tensor, waits: bool = False) -> bool:
    """True if Python may read the values of these tensors now; those on a device only if the caller `waits` for it."""
    if torch.compiler.is_compiling() or is_transformed() or _recorded():
        return False
    if not all(type(t) in PLAIN_TYPES for t in tensors):
        return False
    if all(t.is_cpu for t in tensors):
        return True
    return (waits or check_values.everywhere) and not any(t.is_meta for t in tensors) and not _capturing(tensors)


# No public function counts the modes that see each operation, or says what torch.func transforms.
_functorch = torch._C._functorch
_modes, _transforms = torch._C._len_torch_dispatch_stack, _functorch.peek_interpreter_stack


def is_eager() -> bool:
    """True if operations run as they are called: no compiling, transform, autocast or dual number. Takes < 1 µs."""
    return not (
        torch.compiler.is_compiling()
        or _transforms() is not None
        or _modes()
        or torch._C._len_torch_function_stack()
        or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
        or torch.is_autocast_enabled("cpu")
    )


def is_watched() -> bool:
    return bool(_modes())


def saves_by_hook() -> bool:
    """Whether checkpointing, `save_on_cpu` or another hook takes the tensors that are saved for a backward."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None  # no public function asks


def _recorded() -> bool:
    """True where `make_fx` records operations, for other values too."""
    return is_watched() and get_proxy_mode() is not None


def _capturing(tensors: tuple[Tensor, ...]) -> bool:
    return any(t.is_cuda for t in tensors) and torch.cuda.is_current_stream_capturing()


def autocasts(device: str) -> bool:
    """True where autocast is on for this type of device; "meta" has none, and must not be asked for it."""
    return device != "meta" and torch.is_autocast_enabled(device)


_MATMUL: Any = torch.backends.cuda.matmul
# PyTorch 2.9 renamed the setting; once a program has set the new one, reading the old one raises.
_PRODUCTS, _FAST, _UNSET = (
    ("fp32_precision", "tf32", "none") if hasattr(_MATMUL, "fp32_precision") else ("allow_tf32", True, False)
)


def products_are_fast() -> bool:
    return bool(getattr(_MATMUL, _PRODUCTS) == _FAST)


@contextmanager
def fast_products() -> Iterator[None]:
    before = getattr(_MATMUL, _PRODUCTS)
    setattr(_MATMUL, _PRODUCTS, _FAST)
    try:
        yield
    finally:
        # An unset precision follows `torch.backends.fp32_precision`, but reads as the value that it follows.
        setattr(_MATMUL, _PRODUCTS, _UNSET)
        if getattr(_MATMUL, _PRODUCTS) != before:
            setattr(_MATMUL, _PRODUCTS, before)


def kernel_settings(device: str) -> tuple[bool, ...]:
    """PyTorch's settings on which the choice of a device's kernels depends."""
    halves = _MATMUL.allow_fp16_reduced_precision_reduction, _MATMUL.allow_bf16_reduced_precision_reduction
    return autocasts(device), products_are_fast(), torch.are_deterministic_algorithms_enabled(), *halves


def have_tangents(*tensors: Tensor) -> bool:
    """True where forward-mode differentiation goes through any of these."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return False
    levels = _functorch.get_interpreter_stack() or []
    # The inner one of two transforms hides whether the outer one goes through a tensor.
    if len(levels) > 1 and any(level.key() == _functorch.TransformType.Jvp for level in levels):
        return True
    return any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def is_transformed() -> bool:
    """True under `torch.func` (vmap, grad, jvp ...), where tensors stand for many values."""
    if torch.compiler.is_compiling():
        return False
    return _transforms() is not None


def extremes(numbers: Tensor) -> tuple[int, int]:
    """The smallest and the largest of some integers."""
    if numbers.ndim == 1 and numbers.shape[0] <= 64:
        few = numbers.tolist()
        return min(few), max(few)
    least, largest = numbers.aminmax()
    return int(least), int(largest)


class _Stance:
    """The number of active `uncompiled` contexts, and the means to compile again after the last one."""

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
