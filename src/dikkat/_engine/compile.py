"""The compilation of kernels, and their cache on disk between processes."""

import ctypes
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from multiprocessing import parent_process
from threading import Lock
from typing import Any

import numpy as np
from numba import njit, types

from dikkat._engine.internals import Callback, FunctionCache, index_of, is_cached
from dikkat._engine.vectors import FLAGS
from dikkat.storage.locks import locked

# Division by zero is ∞, not an error.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": set(FLAGS)}

# A kernel's argument is the address of a call's record.
_SIGNATURE = types.void(types.voidptr)

# Functions only for compiled code: without wrappers for Python they compile faster. They are always inlined. Otherwise
# Numba also compiles each separately, with other roundings, and a process with both versions might run either.
inlined = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True, **_OPTIONS)


class Kernel:
    """A function that is compiled for each dtype and variant on first use.

    `make` gets a zero of the dtype and the variant's flags (True, or None to leave code out), and returns the function
    to compile, which takes the address of a call's record.
    """

    def __init__(self, make: Callable[..., Callable[[Any], None]]) -> None:
        self.make = make
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self._lock = Lock()

    def __call__(self, dtype: np.dtype[Any], *flags: bool | None) -> Any:
        """Return the compiled function as a ctypes function, which runs without the GIL."""
        compiled = self._compiled.get((dtype, flags))
        if compiled is None:
            with self._lock:  # several threads may make the first call
                compiled = self._compiled.get((dtype, flags)) or _compile(self.make(dtype.type(0), *flags))
                self._compiled[dtype, flags] = compiled
        return compiled[1]


def _compile(function: Callable[[Any], None]) -> tuple[Any, Any]:
    """Compile, with the disk cache if possible. Return the compiled function, which must stay alive, and its handle."""

    def compiled(cached: bool) -> Any:
        callback = Callback(function, (_SIGNATURE.args, _SIGNATURE.return_type), locals={}, options=_OPTIONS)
        if cached:
            callback.enable_caching()
        callback.compile()
        return callback

    try:
        with _compiling(function):
            result = compiled(cached=True)
    except Exception as error:
        if _cannot_write(error):
            result = compiled(cached=False)
            _warn(
                "Numba found no writable folder for compiled kernels, so each process compiles them again, which takes "
                "seconds. Set NUMBA_CACHE_DIR to a writable folder"
            )
        else:  # a damaged cache file may raise any error; if the error repeats, the cache is not the cause
            try:
                FunctionCache(function).flush()
            except OSError:
                raise error from None
            result = compiled(cached=True)
            damage = type(error).__name__
            _warn(f"a compiled kernel in Numba's cache was damaged ({damage}), so it is compiled again and replaced")
    return result, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(result.address)


@contextmanager
def _compiling(function: Callable[[Any], None]) -> Iterator[None]:
    """Hold a lock while this process compiles a missing kernel, so that other processes wait for it."""
    with ExitStack() as stack:
        if not is_cached(function, _SIGNATURE):
            _announce()
            index = index_of(function)
            index.parent.mkdir(parents=True, exist_ok=True)
            with suppress(OSError, NotImplementedError):  # a file system without locks
                stack.enter_context(locked(index.with_suffix(".lock"), wait=True))
        yield


@cache
def _announce() -> None:
    """Explain once, on a terminal, why a call takes long; `dikkat warm` prints its own messages."""
    if sys.stderr.isatty() and parent_process() is None:
        text = "compiling once for this processor: 5 to 20 seconds per kind of call. `dikkat warm` compiles all kernels"
        print(f"dikkat: {text}", file=sys.stderr)


def _cannot_write(error: Exception) -> bool:
    return isinstance(error, OSError) or (isinstance(error, RuntimeError) and "cannot cache" in str(error))


@cache
def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=1)
