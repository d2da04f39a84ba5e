"""What is used of Numba beside its documented interface, named here and nowhere else: a new version may move it."""

from typing import Any

from numba.core import cgutils
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.runtime import rtsys
from numba.core.typing.templates import AbstractTemplate, infer_global, signature

__all__ = ["AbstractTemplate", "Callback", "FunctionCache", "cgutils", "infer_global", "signature"]


class _Cache(FunctionCache):
    """A function's files on disk, read without all that Numba can compile being imported and registered first.

    That is SciPy among others, takes longer than the rest of a process's first call, and is done by the compiler too.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What was compiled before; None where there is nothing."""
        rtsys.initialize(target_context)  # what a compiled function may call
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


class Callback(CFunc):
    """What `numba.cfunc` makes, with such a cache."""

    def enable_caching(self) -> None:
        """Keep it on disk."""
        self._cache = _Cache(self._pyfunc)
