"""Arrays of `mxnet.np`: their checks, and what MXNet 1.9.1 must be asked for in its own way.

Two things to know of it. `np.where` with a number in place of an array has the gradient of the other branch; with two
arrays it has the right one, which is also 0 where the other branch was taken, NaN or not. And a comparison of arrays of
two dtypes is an error.
"""

from typing import Any

import numpy
from mxnet import np, npx

from dikkat.frameworks.contract.checks import check_rank
from dikkat.frameworks.mxnet import pairs

Array = Any  # mxnet.np.ndarray
Booleans = Any  # numpy.ndarray of booleans

_FLOATS = ("float16", "float32", "float64")


def check_semantics() -> None:
    """Whether MXNet's NumPy semantics are on; without them shapes such as () and (0, 3) mean "unknown".

    Raises:
        RuntimeError: They are off.
    """
    if not (npx.is_np_shape() and npx.is_np_array()):
        raise RuntimeError(
            "MXNet's NumPy semantics are off, and dikkat.frameworks.mxnet is written for them: call mxnet.npx.set_np() "
            "once, before arrays and layers are made"
        )


def check_array(name: str, tensor: object) -> None:
    """Whether something is an array of `mxnet.np`.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(tensor, np.ndarray):
        raise TypeError(
            f"{name}: got {type(tensor).__module__}.{type(tensor).__name__}; expected an mxnet.np.ndarray (of an "
            "mxnet.nd.NDArray its as_np_ndarray(), of a NumPy array mxnet.np.array)"
        )


def check_floats(name: str, tensor: Array) -> None:
    """Whether something is an array of a floating-point type.

    Raises:
        TypeError: It is not.
    """
    check_array(name, tensor)
    if kind(tensor) not in _FLOATS:
        raise TypeError(f"{name}: got dtype {kind(tensor)}; expected {', '.join(_FLOATS)}")


def check_features(name: str, tensor: Array) -> None:
    """Whether queries, keys, values or scores are (..., length, features), in a type that is computed with.

    Raises:
        TypeError: No array, or one of another dtype.
        ValueError: One dimension or none.
    """
    check_floats(name, tensor)
    check_rank(name, tensor.shape)


def kind(tensor: Array) -> str:
    """The name of an array's dtype."""
    return numpy.dtype(tensor.dtype).name


def cast(tensor: Array, dtype: str) -> Array:
    """The array in a dtype; itself where it has it."""
    return tensor if kind(tensor) == dtype else tensor.astype(dtype)


def wide(*tensors: Array) -> str:
    """The dtype that these are computed in together: at least float32."""
    return numpy.result_type(numpy.float32, *(numpy.dtype(tensor.dtype) for tensor in tensors)).name


def where(shown: Booleans | Array, tensor: Array, other: float) -> Array:
    """The array where shown, a number elsewhere; the gradient is 0 there, even one of NaN."""
    return np.where(on_device(shown, tensor), tensor, np.full((), other, dtype=tensor.dtype, ctx=tensor.ctx))


def on_device(shown: Booleans | Array, like: Array) -> Array:
    """Booleans of NumPy or MXNet as MXNet's, where another array is."""
    return np.array(shown, dtype="bool", ctx=like.ctx) if isinstance(shown, numpy.ndarray) else shown


def product(a: Array, b: Array) -> Array:
    """The matrix product, over leading dimensions that broadcast."""
    if not a.size or not b.size:
        return np.matmul(a, b)
    if a.ndim == b.ndim == 3 and len(a) == len(b):
        return npx.batch_dot(a, b)
    # Not by MXNet's own product, whose gradient is wrong where it broadcasts, and which is slower.
    lead = numpy.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    flat = (np.broadcast_to(each, (*lead, *each.shape[-2:])).reshape(-1, *each.shape[-2:]) for each in (a, b))
    return npx.batch_dot(*flat).reshape(*lead, a.shape[-2], b.shape[-1])


def whole_numbers(name: str, tensor: Array) -> Any:
    """Lengths, indices or token numbers as NumPy's int64; MXNet's own are mostly float32.

    Raises:
        TypeError: No array of numbers.
        ValueError: One that is not whole.
    """
    check_array(name, tensor)
    values = tensor.asnumpy()
    if values.dtype == numpy.bool_:
        raise TypeError(f"{name}: got dtype bool; expected whole numbers, of an integer or a floating-point type")
    numbers = values.astype(numpy.int64)
    if numbers.size and not (numbers == values).all():
        got = values[numbers != values].flat[0]
        raise ValueError(f"{name}: got {got}; expected whole numbers, of an integer or a floating-point type")
    return numbers


class MXNet:
    """`dikkat.frameworks.contract.operations.Operations` of MXNet's arrays."""

    wide, cast = staticmethod(wide), staticmethod(cast)
    log1p, sqrt = staticmethod(np.log1p), staticmethod(np.sqrt)
    ones_like = staticmethod(np.ones_like)
    additive, squared_distance = staticmethod(pairs.additive), staticmethod(pairs.squared_distance)

    @staticmethod
    def fill(tensor: Array, condition: Array, number: float) -> Array:
        """As in `Operations`."""
        return np.where(condition, np.full((), number, dtype=tensor.dtype, ctx=tensor.ctx), tensor)

    @staticmethod
    def zeros_like(tensor: Array) -> Array:
        """As in `Operations`; not MXNet's own, through whose gradient of zeros it crashes."""
        return np.zeros(tensor.shape, dtype=tensor.dtype, ctx=tensor.ctx)

    @staticmethod
    def peak(tensor: Array) -> Array:
        """As in `Operations`."""
        return np.abs(tensor.detach()).max(-1, keepdims=True)

    @staticmethod
    def total(tensor: Array) -> Array:
        """As in `Operations`."""
        return tensor.sum(-1, keepdims=True)

    @staticmethod
    def concatenate(tensors: list[Array]) -> Array:
        """As in `Operations`."""
        return np.concatenate(tensors, axis=-1)

    @staticmethod
    def linear(layer: Any, tensor: Array, name: str) -> Array:
        """As in `Operations`."""
        return layer(tensor, name)

    @staticmethod
    def inner(query: Array, key: Array) -> Array:
        """As in `Operations`."""
        return product(query, key.swapaxes(-1, -2))
