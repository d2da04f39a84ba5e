"""How kernels are compiled, and kept on disk between processes."""

import ctypes
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
from numba import njit, types

from dikkat.cpu.engine.internals import Callback, FunctionCache, index_of, is_kept
from dikkat.cpu.engine.vectors import FLAGS
from dikkat.storage.locks import locked

# Division by zero is ∞, not an error.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": set(FLAGS)}

# Of a kernel: the address of a call's record.
_SIGNATURE = types.void(types.voidptr)

# Called from compiled code alone: without what Python would need to call them, they compile faster. No call of one is
# left in a kernel's code: Numba compiles them alone too, under the names that the kernel would call, and a process runs
# whichever it met first. The two round differently, so that the process that compiles would come to other bits.
inlined = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True, **_OPTIONS)


class Kernel:
    """A function that is compiled for one type of number, and one variant, when it is first asked for.

    Args:
        make: Given a zero of the type, and the flags of a variant if there are several, returns the function to
            compile, of the address of a call's record. A flag is True or None: what belongs to a None is not compiled.
    """

    def __init__(self, make: Callable[..., Callable[[Any], None]]) -> None:
        self._make = make
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self._lock = Lock()

    def __call__(self, dtype: np.dtype[Any], *flags: bool | None) -> Any:
        """The compiled function, as ctypes calls it: without Python's lock."""
        found = self._compiled.get((dtype, flags))
        if found is None:
            with self._lock:  # several threads may ask first
                found = self._compiled.get((dtype, flags)) or _compile(self._make(dtype.type(0), *flags))
                self._compiled[dtype, flags] = found
        return found[1]


def _compile(function: Callable[[Any], None]) -> tuple[Any, Any]:
    """Compile, through the cache on disk if it has a folder; return the compiled function, to keep, and its handle."""

    def compiled(kept: bool) -> Any:
        made = Callback(function, (_SIGNATURE.args, _SIGNATURE.return_type), locals={}, options=_OPTIONS)
        if kept:
            made.enable_caching()
        made.compile()
        return made

    try:
        with _alone(function):
            found = compiled(kept=True)
    except Exception as error:
        if not (_nowhere(error) or _forget(function)):
            raise
        # A damaged cache file raises nearly anything; an error that comes again is not the cache's.
        found = compiled(kept=not _nowhere(error))
        _warn() if _nowhere(error) else _warn_of_damage(type(error).__name__)
    return found, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(found.address)


@contextmanager
def _alone(function: Callable[[Any], None]) -> Iterator[None]:
    """Of several processes that miss a kernel, one compiles it, and the others wait and find it.

    Side by side, they would also give two kernels of one function the same file, if they keep them at the same moment.
    """
    with ExitStack() as stack:
        if not is_kept(function, _SIGNATURE):
            index = index_of(function)
            index.parent.mkdir(parents=True, exist_ok=True)
            with suppress(OSError, NotImplementedError):  # a file system without locks
                stack.enter_context(locked(index.with_suffix(".lock"), wait=True))
        yield


def _nowhere(error: Exception) -> bool:
    """Whether the error says that there is no folder to write to, or no room in it."""
    return isinstance(error, OSError) or (isinstance(error, RuntimeError) and "cannot cache" in str(error))


def _forget(function: Callable[[Any], None]) -> bool:
    """Discard a function's files on disk; return False if that fails."""
    try:
        FunctionCache(function).flush()
    except OSError:
        return False
    return True


@cache
def _warn() -> None:
    """Warn once, whatever the warning filters are."""
    warnings.warn(
        "Numba finds no folder that it can write compiled kernels to: they are compiled again in every process, "
        "which takes seconds. Set NUMBA_CACHE_DIR to one",
        stacklevel=1,
    )


@cache
def _warn_of_damage(error: str) -> None:
    """Warn once, whatever the warning filters are."""
    warnings.warn(
        f"a compiled kernel in Numba's cache was damaged ({error}): it is compiled again and replaced", stacklevel=1
    )
