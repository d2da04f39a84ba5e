"""The parts of Numba beside its documented interface, which a new version may move: no other module names them."""

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
    "AbstractTemplate", "Callback", "FunctionCache", "cgutils", "index_of", "infer_global", "is_kept", "signature",
]  # fmt: skip


def index_of(function: Callable[..., Any]) -> Path:
    """The file in which Numba lists the compiled versions of a function."""
    return Path(FunctionCache(function)._cache_file._index_path)


def is_kept(function: Callable[..., Any], of: Any) -> bool:
    """True where a function's index has it compiled for a signature and this processor."""
    cache = FunctionCache(function)
    return cache._index_key(of, cpu_target.target_context.codegen()) in cache._cache_file._load_index()


class _Cache(FunctionCache):
    """A function's files on disk, read without importing and registering all that Numba can compile (SciPy too)."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)  # what a compiled function may call
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


class Callback(CFunc):
    """A C callback, as `numba.cfunc` makes it, with this cache."""

    def enable_caching(self) -> None:
        self._cache = _Cache(self._pyfunc)
