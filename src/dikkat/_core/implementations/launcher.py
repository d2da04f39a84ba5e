"""Launches of Triton's kernels, past what Triton finds out about the arguments anew at each of them.

That takes five times as long as the launch itself. So the compiled kernel of a first launch is kept for all whose
arguments Triton would compile alike.
"""

import inspect
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from dikkat._engine.addresses import is_aligned

# The compiled kernels, each with its constants in the order of the signature; and how many are kept.
_COMPILED: dict[Any, tuple[Any, tuple[Any, ...]]] = {}
_MOST = 4096


@cache
def _kernel(name: str) -> Any:
    module, own = name.rsplit(".", 1)
    return getattr(import_module(f"{__package__}.{module}"), own)  # imports Triton, which few calls need


def launch(name: str, grid: tuple[int, ...], *operands: Any, **constants: Any) -> None:
    """`kernel[grid](*operands, **constants)` on the current device; Triton's own options may be among the constants."""
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    key = name, device, *constants.items(), *map(kind, operands)
    kept = _COMPILED.get(key)
    if kept is not None:
        kept[0][(*grid, 1, 1)[:3]](*operands, *kept[1])
        return
    kernel = _kernel(name)
    compiled = kernel[grid](*operands, **constants)
    if compiled is not None:  # the interpreter compiles nothing
        if len(_COMPILED) >= _MOST:
            _COMPILED.clear()
        names = list(inspect.signature(kernel.fn).parameters)[len(operands) :]
        _COMPILED[key] = compiled, tuple(constants[name] for name in names)


def power_of_two(size: int) -> int:
    """The least power of two that is not below a size."""
    return 1 << max(0, size - 1).bit_length()


def kind(operand: Any) -> Any:
    """The kind of an argument to Triton: its type (the smallest of integers), divisibility by 16, or the number 1."""
    if isinstance(operand, Tensor):
        return operand.dtype, is_aligned(operand)
    if isinstance(operand, tuple):
        return tuple(map(kind, operand))
    if type(operand) is not int:
        return type(operand)
    if operand == 1:
        return "1"
    wide = "i32" if -(2**31) <= operand < 2**31 else "i64" if operand < 2**63 else "u64"
    return wide + "/16" if operand % 16 == 0 else wide
