"""The additive pair function."""

from typing import Any

from keras import ops


def additive(query: Any, key: Any, weight: Any) -> Any:
    """Σ_h v_h tanh(q_h + k_h): (..., n, h), (..., m, h), (h,) -> (..., n, m)."""
    return ops.sum(ops.tanh(ops.expand_dims(query, -2) + ops.expand_dims(key, -3)) * weight, axis=-1)
