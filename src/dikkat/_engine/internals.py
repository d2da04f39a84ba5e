"""Undocumented parts of Numba, which a new version may move. No other module imports them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba.core import cgutils
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.typing.templates import AbstractTemplate, infer_global, signature

__all__ = [
    "AbstractTemplate", "Callback", "FunctionCache", "cgutils", "index_of", "infer_global", "is_cached", "signature",
]  # fmt: skip


def index_of(function: Callable[..., Any]) -> Path:
    """Return the file in which Numba lists the compiled versions of a function."""
    return Path(FunctionCache(function)._cache_file._index_path)


def is_cached(function: Callable[..., Any], types: Any) -> bool:
    """True if a function's index contains a version compiled for a signature and this processor."""
    cache = FunctionCache(function)
    return cache._index_key(types, cpu_target.target_context.codegen()) in cache._cache_file._load_index()


class _Cache(FunctionCache):
    """A function's files on disk, read without importing everything that Numba can compile (even SciPy)."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)  # compiled functions may call it
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


class Callback(CFunc):
    """A C callback, as `numba.cfunc` makes it, with this cache."""

    def enable_caching(self) -> None:
        self._cache = _Cache(self._pyfunc)
