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

from dikkat._engine.internals import Callback, FunctionCache, index_of, is_kept
from dikkat._engine.vectors import FLAGS
from dikkat.storage.locks import locked

# Division by zero is ∞, not an error.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": set(FLAGS)}

# A kernel takes the address of a call's record.
_SIGNATURE = types.void(types.voidptr)

# Functions for compiled code alone: without wrappers for Python they compile faster. They are always inlined, since
# Numba also compiles each alone, with other roundings, and a process that had compiled both might run either.
inlined = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True, **_OPTIONS)


class Kernel:
    """A function that is compiled for each dtype and variant when it is first called with them.

    `make` gets a zero of the dtype and the variant's flags (True, or None for code that is left out), and returns the
    function to compile, of the address of a call's record.
    """

    def __init__(self, make: Callable[..., Callable[[Any], None]]) -> None:
        self.make = make
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self._lock = Lock()

    def __call__(self, dtype: np.dtype[Any], *flags: bool | None) -> Any:
        """The compiled function as a ctypes function, which runs without the GIL."""
        compiled = self._compiled.get((dtype, flags))
        if compiled is None:
            with self._lock:  # several threads may call first
                compiled = self._compiled.get((dtype, flags)) or _compile(self.make(dtype.type(0), *flags))
                self._compiled[dtype, flags] = compiled
        return compiled[1]


def _compile(function: Callable[[Any], None]) -> tuple[Any, Any]:
    """Compile, if possible through the cache on disk; return the compiled function, to keep, and its handle."""

    def compiled(cached: bool) -> Any:
        made = Callback(function, (_SIGNATURE.args, _SIGNATURE.return_type), locals={}, options=_OPTIONS)
        if cached:
            made.enable_caching()
        made.compile()
        return made

    try:
        with _compiling(function):
            result = compiled(cached=True)
    except Exception as error:
        if _cannot_write(error):
            result = compiled(cached=False)
            _warn(
                "Numba finds no folder that it can write compiled kernels to: they are compiled again in every "
                "process, which takes seconds. Set NUMBA_CACHE_DIR to one"
            )
        else:  # a damaged cache file raises nearly anything; an error that comes again is not the cache's
            try:
                FunctionCache(function).flush()
            except OSError:
                raise error from None
            result = compiled(cached=True)
            damage = type(error).__name__
            _warn(f"a compiled kernel in Numba's cache was damaged ({damage}): it is compiled again and replaced")
    return result, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(result.address)


@contextmanager
def _compiling(function: Callable[[Any], None]) -> Iterator[None]:
    """Hold the lock under which one of several processes compiles a missing kernel, while the others wait."""
    with ExitStack() as stack:
        if not is_kept(function, _SIGNATURE):
            _announce()
            index = index_of(function)
            index.parent.mkdir(parents=True, exist_ok=True)
            with suppress(OSError, NotImplementedError):  # a file system without locks
                stack.enter_context(locked(index.with_suffix(".lock"), wait=True))
        yield


@cache
def _announce() -> None:
    """Say once, on a terminal, why a call takes long; `dikkat warm`, which has workers, says it itself."""
    if sys.stderr.isatty() and parent_process() is None:
        text = "compiling for this processor, once: 5 to 20 seconds for a kind of call. `dikkat warm` compiles all"
        print(f"dikkat: {text}", file=sys.stderr)


def _cannot_write(error: Exception) -> bool:
    return isinstance(error, OSError) or (isinstance(error, RuntimeError) and "cannot cache" in str(error))


@cache
def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=1)
