"""Checked memory addresses of tensors, for compiled code.

A wrong address or size would crash compiled code or corrupt memory. So no other module calls `data_ptr`.
"""

import importlib
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from dikkat._engine.pytorch_state import (
    PLAIN_TYPES,
    _functorch,
    autocasts,
    can_read_values,
    has_dispatch_mode,
    have_tangents,
    is_transformed,
)


def on_cpu(tensor: Tensor) -> bool:
    """True if compiled code can read the tensor's numbers."""
    return tensor.is_cpu


def exact(device: str) -> AbstractContextManager[Any]:
    """Return a context in which products have their operands' dtypes, even under autocast."""
    return torch.autocast(device, enabled=False) if autocasts(device) else nullcontext()


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device without a synchronisation."""
    if tensor.is_cpu and device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=device.type == "cuda")


def are_batched(*gradients: Tensor | None) -> bool:
    """True if a backward's gradients are batches: under `torch.func`, or by `is_grads_batched`, an older vmap."""
    return is_transformed() or any(_functorch.is_legacy_batchedtensor(t) for t in gradients if t is not None)


def check_dense(name: str, tensor: object) -> None:
    """Check for a dense tensor: not sparse, nested, masked, distributed or from mkldnn."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: got {type(tensor).__name__}; expected a torch.Tensor")
    if type(tensor).__name__ == "DTensor":  # importing its module is slow
        raise TypeError(
            f"{name}: got a DTensor; expected this rank's tensor, from its to_local() or full_tensor(). For "
            "keys that several ranks hold, see dikkat.distributed.attend"
        )
    if isinstance(tensor, torch.masked.MaskedTensor):
        raise TypeError(f"{name}: got a MaskedTensor; expected its get_data(), and a `mask` of the call instead")
    if tensor.layout is not torch.strided or tensor.is_nested:
        nested, padded = ("nested ", ", padded to one length") if tensor.is_nested else ("", "")
        raise TypeError(f"{name}: got a {nested}tensor with layout {tensor.layout}; expected a dense tensor{padded}")


def searchsorted(ordered: Tensor, numbers: Tensor, *, right: bool = False) -> Tensor:
    """Run `torch.searchsorted` of integers (..., m) and (..., n), by NumPy if values can be read.

    PyTorch's version starts threads even for few numbers, and hangs in a forked child, which has no thread pool.
    """
    if not (ordered.is_cpu and can_read_values(ordered, numbers)):
        return torch.searchsorted(ordered, numbers, right=right)
    tables, rows = (t.reshape(t.shape[:-1].numel(), t.shape[-1]).numpy() for t in (ordered, numbers))
    side: Literal["left", "right"] = "right" if right else "left"
    indices = np.array([np.searchsorted(*pair, side=side) for pair in zip(tables, rows, strict=True)], np.int64)
    return torch.from_numpy(indices).reshape(numbers.shape)


def address(name: str, tensor: Tensor, dtype: torch.dtype) -> int:
    """Return the address of a contiguous CPU tensor's numbers; the caller must keep the tensor alive during the call.

    Raises:
        TypeError: The dtype differs.
        ValueError: The tensor has no memory, is not contiguous, or its storage is too small.
    """
    start = _data_pointer(name, tensor)
    if tensor.dtype != dtype:
        raise TypeError(f"{name}: got dtype {tensor.dtype}; expected {dtype}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: got strides {tensor.stride()}; expected a contiguous tensor")
    if tensor.untyped_storage().nbytes() < tensor.storage_offset() * dtype.itemsize + tensor.nbytes:
        check_storage(name, tensor)
    return start


def plain_address(tensor: Tensor) -> int | None:
    """Return the `address` of a plain CPU tensor of the right dtype; None if it is not contiguous."""
    if tensor.is_neg() or not tensor.is_contiguous():
        return None
    needs, start = tensor.storage_offset() * tensor.itemsize + tensor.nbytes, tensor.data_ptr()
    return start if tensor.untyped_storage().nbytes() >= needs and (start or not needs) else None


def strided_address(name: str, tensor: Tensor, dtype: torch.dtype) -> int:
    """Return the address of a CPU tensor's first number, for code that accepts any strides."""
    start = _data_pointer(name, tensor)
    if tensor.dtype != dtype:
        raise TypeError(f"{name}: got dtype {tensor.dtype}; expected {dtype}")
    check_storage(name, tensor)
    return start


def rows_address(name: str, tensor: Tensor, dtype: torch.dtype) -> int:
    """Return the `address` of a matrix with contiguous rows, which may have gaps between them."""
    start = strided_address(name, tensor, dtype)
    if tensor.ndim != 2 or (tensor.stride(1) != 1 and tensor.shape[1] > 1) or tensor.stride(0) < 0:
        raise ValueError(f"{name}: got strides {tensor.stride()}; expected a matrix of contiguous rows")
    return start


def array_address(array: np.ndarray[Any, Any]) -> int:
    """Return the address of a NumPy array; the caller must keep the array alive during the call."""
    if not array.flags.c_contiguous:
        raise ValueError(f"array: got strides {array.strides}; expected a contiguous array")
    return array.ctypes.data


def check_numbers(name: str, tensor: Tensor, device: str) -> None:
    """Check that all numbers of a tensor are in memory, for compiled code that accepts any strides."""
    if device == "cpu":
        _data_pointer(name, tensor)
    else:
        _check_plain(name, tensor, device)
    check_storage(name, tensor)


def new_tensor(shape: Iterable[int], dtype: torch.dtype) -> tuple[Tensor, int]:
    tensor = torch.empty(tuple(shape), dtype=dtype, device=_CPU)
    if type(tensor) is not Tensor:
        raise ValueError(f"torch.empty: got a {type(tensor).__name__}; {_EXPECTED}")
    return tensor, tensor.data_ptr()


def new_tensor_like(like: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, int]:
    """Return an uninitialised CPU tensor of a shape, with the dtype of `like`, and its address.

    It is faster than `new_tensor`, which checks that no mode of PyTorch makes a tensor of another type.
    """
    tensor = like.new_empty(shape)
    return tensor, tensor.data_ptr()


_CPU = torch.device("cpu")  # PyTorch would parse a string at each call


def start_addresses(tensors: Iterable[Tensor]) -> list[int]:
    """Return the addresses of tensors, only for comparison; [] if a tensor has no memory."""
    try:
        return list(map(Tensor.data_ptr, tensors))
    except RuntimeError:
        return []


def is_aligned(tensor: Tensor) -> bool:
    """True if a tensor starts at a multiple of 16 bytes, for which Triton compiles other loads."""
    return tensor.data_ptr() % 16 == 0


def tensor_obstacles(tensors: Iterable[Tensor | None]) -> list[str]:
    """Return the reasons why compiled code cannot be called outside an operator with these tensors."""
    present = [tensor for tensor in tensors if tensor is not None]
    if not all(tensor.is_cpu for tensor in present):
        return ["it runs on the CPU"]
    if torch.compiler.is_compiling() or is_transformed() or have_tangents(*present):
        return ["it runs outside torch.compile, torch.func and forward-mode derivatives"]
    if has_dispatch_mode() or torch._C._get_tracing_state() is not None:
        return ["it runs outside traces and dispatch modes, such as FakeTensorMode and profilers"]
    if not all(_key_set(tensor) in _plain_key_sets("cpu") for tensor in present):
        return ["it takes dense tensors with values (no fake, functional, wrapped or sparse ones)"]
    return numba_obstacles()


def numba_obstacles() -> list[str]:
    """Return [] if Numba can be imported. If not, return the reason, and warn once."""
    return list(_numba_obstacles())


# Equivalent to `torch.compiler.assume_constant_result`, which would import the compiler.
numba_obstacles.__dict__["_dynamo_marked_constant"] = True


@cache
def _numba_obstacles() -> tuple[str, ...]:
    try:
        importlib.import_module("numba")
    except (ImportError, OSError) as error:  # OSError if LLVM's library is missing
        reason = f"numba cannot be imported here ({error})"
        message = f"impl: {reason}, so 'auto' uses slower implementations, and translators raise"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return (reason,)
    return ()


_EXPECTED = "expected a dense tensor with values, no fake, functional, wrapped, sparse or quantised one"


def _data_pointer(name: str, tensor: Tensor) -> int:
    # Read dispatch keys only if cheaper checks fail: they are too slow for small calls.
    if type(tensor) not in PLAIN_TYPES or not tensor.is_cpu or tensor.is_neg() or tensor.is_nested:
        _check_plain(name, tensor, "cpu")
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # PyTorch's error for functional, functorch's and sparse tensors
        raise _no_numbers(name, tensor, "cpu") from None
    if not start and tensor.numel():
        _check_plain(name, tensor, "cpu")
        check_storage(name, tensor)
        raise _no_numbers(name, tensor, "cpu")
    return start


def _check_plain(name: str, tensor: Tensor, device: str) -> None:
    if _key_set(tensor) not in _plain_key_sets(device):
        raise _no_numbers(name, tensor, device)


def _no_numbers(name: str, tensor: Tensor, device: str) -> ValueError:
    return ValueError(f"{name}: got {type(tensor).__name__} on {tensor.device}; {_EXPECTED}, on {device}")


def check_storage(name: str, tensor: Tensor) -> None:
    """Raise `ValueError` if a tensor's storage is too small for its shape and strides."""
    has = tensor.untyped_storage().nbytes()
    if tensor.is_contiguous() and has >= tensor.storage_offset() * tensor.itemsize + tensor.nbytes:
        return
    numbers = _count_span(tensor)
    needs = (tensor.storage_offset() + numbers) * tensor.itemsize if numbers else 0
    if has < needs:
        raise ValueError(
            f"{name}: got shape {tuple(tensor.shape)}, which needs {needs} bytes, and a storage of {has} bytes; "
            "expected a storage that was not resized"
        )


def _count_span(tensor: Tensor) -> int:
    """Count the storage elements from a tensor's first number to its last."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _key_set(tensor: Tensor) -> Any:
    """Return the dispatch key set as an integer; tensor subclasses and modes set further bits."""
    return _dispatch_keys(tensor).raw_repr()


_dispatch_keys = torch._C._dispatch_keys


@cache
def _plain_key_sets(device: str) -> frozenset[Any]:
    """Return the key sets of a device's plain tensors, with and without inference mode."""
    with _disable_current_modes():
        with torch.inference_mode(False):
            plain = _key_set(torch.empty(0, device=device))
        with torch.inference_mode():
            return frozenset({plain, _key_set(torch.empty(0, device=device))})
