"""Keras itself: whether it can be had, on a backend that is served; and what its backends must be asked one by one."""

import os
from typing import Any

import numpy as np

BACKENDS = ("tensorflow", "jax", "torch")


def _refuse(name: str | None) -> None:
    if name is not None and name not in BACKENDS:
        raise ImportError(
            f"KERAS_BACKEND: came {name!r}; allowed: {', '.join(BACKENDS)}. Set it before Keras is imported (or in "
            "Keras's own keras.json); PyTorch is here with dikkat: KERAS_BACKEND=torch"
        )


_refuse(os.environ.get("KERAS_BACKEND"))
try:
    import keras
except ModuleNotFoundError as error:
    if error.name == "keras":
        raise ImportError("dikkat.frameworks.keras needs Keras 3: pip install '.[keras]'") from error
    raise ImportError(
        f"Keras does not find {error.name}, which its backend needs: pip install '.[tensorflow]' or "
        "'.[jax]', or set KERAS_BACKEND=torch, which is here with dikkat"
    ) from error
_refuse(keras.backend.backend())

Array = np.ndarray[Any, Any]


def readable(tensor: Any) -> bool:
    """Whether Python may look at the values of a tensor, here and now: it is eager and on the CPU."""
    backend = keras.backend.backend()
    if keras.utils.is_keras_tensor(tensor):
        return False
    if backend == "tensorflow":
        return hasattr(tensor, "numpy") and "CPU" in tensor.device
    if backend == "jax":
        import jax

        return not isinstance(tensor, jax.core.Tracer) and all(each.platform == "cpu" for each in tensor.devices())
    from dikkat.masking import can_read_values

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
