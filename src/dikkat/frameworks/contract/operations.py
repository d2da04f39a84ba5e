"""The operations in which one framework's tensors differ from another's."""

from typing import Any, Protocol

Tensor = Any
"""A framework's tensor: it has a `shape`, and takes arithmetic, comparisons and indices with `...` and `None`."""


class Operations(Protocol):
    """What a backend brings; all of it is differentiable but for `peak`."""

    def wide(self, *tensors: Tensor) -> str:
        """The dtype in which tensors are computed together: at least float32."""

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        """The tensor in another dtype."""

    def fill(self, tensor: Tensor, condition: Tensor, number: float) -> Tensor:
        """The tensor with a number where the condition holds; the gradient there is 0, even one of NaN."""

    def log1p(self, tensor: Tensor) -> Tensor:
        """log(1 + x)."""

    def sqrt(self, tensor: Tensor) -> Tensor:
        """√x."""

    def peak(self, tensor: Tensor) -> Tensor:
        """(..., d) -> (..., 1): the largest absolute value, without a gradient."""

    def total(self, tensor: Tensor) -> Tensor:
        """(..., d) -> (..., 1): the sum."""

    def zeros_like(self, tensor: Tensor) -> Tensor:
        """Zeros of a tensor's shape and dtype."""

    def ones_like(self, tensor: Tensor) -> Tensor:
        """Ones of a tensor's shape and dtype."""

    def concatenate(self, tensors: list[Tensor]) -> Tensor:
        """Tensors side by side, along the last dimension."""

    def linear(self, layer: Any, tensor: Tensor, name: str) -> Tensor:
        """A linear layer's output, after a check of the tensor's features that names it."""

    def inner(self, query: Tensor, key: Tensor) -> Tensor:
        """(..., n, h), (..., m, h) -> ⟨q, k⟩, (..., n, m)."""

    def additive(self, query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
        """(..., n, h), (..., m, h), (h,) -> Σ_h v_h tanh(q_h + k_h), (..., n, m)."""

    def squared_distance(self, query: Tensor, key: Tensor) -> Tensor:
        """(..., n, h), (..., m, h) -> ‖q − k‖², (..., n, m)."""
