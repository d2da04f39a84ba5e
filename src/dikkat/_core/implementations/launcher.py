"""Launches of Triton's kernels without Triton's inspection of the arguments, which takes 5× as long as a launch.

The compiled kernel of a first launch is reused for all arguments that Triton would compile in the same way.
"""

import inspect
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from dikkat._engine.addresses import is_aligned

# Compiled kernels, each with its constants in the order of the signature, and the largest number of entries.
_COMPILED: dict[Any, tuple[Any, tuple[Any, ...]]] = {}
_MAX_COMPILED = 4096


@cache
def _kernel(name: str) -> Any:
    module, function = name.rsplit(".", 1)
    return getattr(import_module(f"{__package__}.{module}"), function)  # imports Triton, which few calls need


def launch(name: str, grid: tuple[int, ...], *operands: Any, **constants: Any) -> None:
    """Run `kernel[grid](*operands, **constants)` on the current device; constants may include Triton's options."""
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    key = name, device, *constants.items(), *map(kind, operands)
    cached = _COMPILED.get(key)
    if cached is not None:
        cached[0][(*grid, 1, 1)[:3]](*operands, *cached[1])
        return
    kernel = _kernel(name)
    compiled = kernel[grid](*operands, **constants)
    if compiled is not None:  # the interpreter compiles nothing
        if len(_COMPILED) >= _MAX_COMPILED:
            _COMPILED.clear()
        names = list(inspect.signature(kernel.fn).parameters)[len(operands) :]
        _COMPILED[key] = compiled, tuple(constants[name] for name in names)


def power_of_two(size: int) -> int:
    """Return the smallest power of two ≥ size."""
    return 1 << max(0, size - 1).bit_length()


def kind(operand: Any) -> Any:
    """Return what Triton specialises an argument on: its (smallest integer) type, divisibility by 16, or being 1."""
    if isinstance(operand, Tensor):
        return operand.dtype, is_aligned(operand)
    if isinstance(operand, tuple):
        return tuple(map(kind, operand))
    if type(operand) is not int:
        return type(operand)
    if operand == 1:
        return "1"
    width = "i32" if -(2**31) <= operand < 2**31 else "i64" if operand < 2**63 else "u64"
    return width + "/16" if operand % 16 == 0 else width
