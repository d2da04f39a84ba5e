"""Keras itself, on a backend that is served; and what differs from backend to backend."""

import os
from typing import Any

import numpy as np

from dikkat.extras import missing

BACKENDS = ("tensorflow", "jax", "torch")


def _refuse(name: str | None) -> None:
    if name is not None and name not in BACKENDS:
        raise ImportError(
            f"KERAS_BACKEND: got {name!r}; expected {', '.join(BACKENDS)}. Set it before Keras is imported (or in "
            "Keras's own keras.json); PyTorch is here with dikkat: KERAS_BACKEND=torch"
        )


_refuse(os.environ.get("KERAS_BACKEND"))
try:
    import keras
except ModuleNotFoundError as error:
    if error.name == "keras":
        raise ImportError(f"dikkat.frameworks.keras: {missing('keras', 'keras')}") from error
    raise ImportError(
        f"Keras does not find {error.name}, which its backend needs: run pip install '.[tensorflow]' or '.[jax]' in "
        "the folder of dikkat's sources, or set KERAS_BACKEND=torch, which is here with dikkat"
    ) from error
_refuse(keras.backend.backend())

from keras import ops  # noqa: E402

Shape = tuple[int | None, ...]  # None: a length that is not known yet
Array = np.ndarray[Any, Any]


def readable(tensor: Any) -> bool:
    """True of a tensor whose values Python may read here and now: it is eager and on the CPU."""
    backend = keras.backend.backend()
    if keras.utils.is_keras_tensor(tensor):
        return False
    if backend == "tensorflow":
        return hasattr(tensor, "numpy") and "CPU" in tensor.device
    if backend == "jax":
        import jax

        traced = isinstance(tensor, jax.core.Tracer)  # which stands for numbers in a program or under a transform
        return not traced and all(each.platform == "cpu" for each in tensor.devices())
    from dikkat._engine.pytorch_state import can_read_values

    return can_read_values(tensor)


def kind(tensor: Any) -> str:
    """The name of a tensor's dtype."""
    name: str = keras.backend.standardize_dtype(tensor.dtype)
    return name


def wide(*tensors: Any) -> str:
    """The dtype to compute in: at least float32."""
    return "float64" if any(kind(each) == "float64" for each in tensors) else "float32"


def product(a: Any, b: Any) -> Any:
    """The matrix product a b of tensors of one dtype, in that dtype.

    By the operator where that broadcasts: `keras.ops.matmul` rounds float64 to float32 on PyTorch.
    """
    return keras.ops.matmul(a, b) if keras.backend.backend() == "tensorflow" else a @ b


def as_tensor(value: Any) -> Any:
    """A tensor of the backend from what was given; None and symbolic tensors as they are."""
    return value if value is None or keras.utils.is_keras_tensor(value) else ops.convert_to_tensor(value)


def shape_of(tensor: Any) -> Shape:
    """A tensor's shape, as far as it is known."""
    return tuple(tensor.shape)


def features(name: str, tensor: Any) -> Any:
    """A tensor (..., length, features), in a type that is computed with.

    Raises:
        TypeError: One of another dtype, or None.
        ValueError: One dimension or none.
    """
    tensor = as_tensor(tensor)
    if tensor is None or not keras.backend.is_float_dtype(kind(tensor)):
        got = "None" if tensor is None else f"dtype {kind(tensor)}"
        raise TypeError(f"{name}: got {got}; expected float16, bfloat16, float32, float64")
    if len(shape_of(tensor)) < 2:
        raise ValueError(f"{name}: got shape {shape_of(tensor)}; expected (..., length, features)")
    return tensor
