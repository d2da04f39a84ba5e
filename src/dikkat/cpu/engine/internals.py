"""What is used of Numba beside its documented interface, named here and nowhere else: a new version may move it."""

from numba.core import cgutils
from numba.core.caching import FunctionCache
from numba.core.typing.templates import AbstractTemplate, infer_global, signature

__all__ = ["AbstractTemplate", "FunctionCache", "cgutils", "infer_global", "signature"]
