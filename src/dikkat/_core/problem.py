"""One validated call with hidden rows zeroed and operands projected, as every implementation receives it."""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from dikkat._core.restrictions import OWN_DIMENSIONS as _OF_RESTRICTIONS
from dikkat._core.restrictions import Restrictions
from dikkat._engine.pytorch_state import have_tangents
from dikkat.scores import Pair, Profile
from dikkat.state import State

# The number of trailing dimensions of each tensor after the call's leading dimensions.
OWN_DIMENSIONS = {
    "query": 2, "key": 2, "weight": 1, "value": 2, **_OF_RESTRICTIONS, "seeds": 0, "sink": 0, "packed": 3,
}  # fmt: skip
_WIDE = (torch.float32, torch.float64)
# The tensors that enter the arithmetic and therefore share one dtype in a kernel.
_NUMBERS = ("query", "key", "weight", "value", "bias", "key_bias")


class Result(NamedTuple):
    """An implementation's result; `lse`, `tail` and `weights` (before dropout) are None unless requested."""

    mean: Tensor
    lse: Tensor | None
    weights: Tensor | None
    tail: Tensor | None = None

    def state(self) -> State:
        if self.lse is None:
            raise ValueError("change: got a call that returns a state, which dikkat cannot change; expected attend")
        return State(self.mean, self.lse, self.tail)

    def shown_weights(self) -> Tensor:
        return cast(Tensor, self.weights)


class Examined(NamedTuple):
    """The reasons why an implementation cannot run a problem, if any, and findings that its `run` reuses."""

    reasons: list[str]
    findings: Any = None


@dataclass(frozen=True)
class Problem:
    """One call as every implementation receives it: validated, projected, hidden rows set to 0.

    All tensors have the same number of leading dimensions, which broadcast. Operators take the fields in this order.
    """

    pair: Pair  # the pair function
    profile: Profile  # the log-kernel g of `distance`
    query: Tensor  # (..., n, h), projected
    key: Tensor  # (..., m, h), projected
    weight: Tensor | None  # (..., h): v, for `additive`
    value: Tensor  # (..., m, d_v)
    restrictions: Restrictions  # the visibility of pairs
    lead: torch.Size  # the leading dimensions of the result
    # The factor of inner products; other than 1 only for implementations that multiply by it (`scaled`).
    scale: float = 1.0
    softcap: float = 0.0  # c of the score c·tanh(a / c) of an inner product a; 0 for a itself
    dropout: float = 0.0  # the probability that a normalised weight is set to 0
    seeds: Tensor | None = None  # (...) integers, one per batch element, for a dropout above 0
    sink: Tensor | None = None  # (...), one more logit per head; `Program` adds it, implementations ignore it
    # The keys packed by `implementations.pack`, with the leading dimensions of `key`; or None.
    packed: Tensor | None = None
    wants_state: bool = False  # whether the log-sum-exp is requested
    wants_weights: bool = False  # whether the weights are requested
    wants_bias_grad: bool = False  # whether the bias needs a gradient
    finite: bool | None = None  # whether query, key, value and their inner products are finite; None if unchecked
    # A cache of implementations for calls of the same shapes and types; None for a single call.
    kept: dict[Any, Any] | None = None

    @property
    def narrow_dtype(self) -> torch.dtype:
        """The common dtype of query, key and value; they may differ under autocast."""
        return torch.promote_types(self.query.dtype, torch.promote_types(self.key.dtype, self.value.dtype))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the arithmetic: at least float32."""
        return torch.promote_types(self.narrow_dtype, torch.float32)

    @property
    def records(self) -> bool:
        restrictions = self.restrictions
        operands = (self.query, self.key, self.weight, self.value, restrictions.bias, restrictions.key_bias, self.sink)
        return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)

    @property
    def has_tangents(self) -> bool:
        """True if a tensor that implementations see has a forward-mode derivative."""
        return have_tangents(*(tensor for name, tensor in self.tensors().items() if name != "sink"))

    def tensors(self) -> dict[str, Tensor]:
        """Return the call's tensors by name, including the tensors of its restrictions."""
        fields = self.__dict__ | self.restrictions.__dict__
        return {name: tensor for name in OWN_DIMENSIONS if (tensor := fields[name]) is not None}

    def in_wide_dtype(self) -> "Problem":
        query_dtype, restrictions = self.query.dtype, self.restrictions
        alike = query_dtype is self.key.dtype is self.value.dtype and self._weight_is(query_dtype)
        if query_dtype in _WIDE and alike and restrictions.bias is restrictions.key_bias is None:
            return self
        dtype, tensors = self.dtype, self.tensors()
        converted = {
            name: tensors[name].to(dtype) for name in _NUMBERS if name in tensors and tensors[name].dtype != dtype
        }
        return self.unchecked_copy(**converted) if converted else self

    def scaled(self) -> "Problem":
        """Return the call with its scale multiplied into the smaller of query and key, which costs less."""
        query, key = scaled(self.query, self.key, self.scale)
        return self.unchecked_copy(query=query, key=key, scale=1.0)

    def unchecked_copy(self, **fields: Any) -> "Problem":
        """Copy with other fields, including fields of the restrictions; they must not hide other pairs."""
        copy = object.__new__(Problem)
        restriction_fields = {name: fields.pop(name) for name in _OF_RESTRICTIONS if name in fields}
        if restriction_fields:
            fields["restrictions"] = fields.get("restrictions", self.restrictions).unchecked_copy(**restriction_fields)
        copy.__dict__.update(self.__dict__, **fields)
        return copy

    def without_tensors(self) -> "Problem":
        return self.unchecked_copy(**dict.fromkeys(OWN_DIMENSIONS))

    def _weight_is(self, dtype: torch.dtype) -> bool:
        return self.weight is None or self.weight.dtype is dtype

    def part(self, dim: int, rows: slice) -> "Problem":
        lead = torch.Size((*self.lead[:dim], rows.stop - rows.start, *self.lead[dim + 1 :]))
        tensors = {name: narrow(tensor, dim, rows) for name, tensor in self.tensors().items()}
        return self.unchecked_copy(**tensors, lead=lead)


def narrow(tensor: Tensor, dim: int, rows: slice) -> Tensor:
    return tensor if tensor.shape[dim] == 1 else tensor.narrow(dim, rows.start, rows.stop - rows.start)


def scaled(query: Tensor, key: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    if scale == 1.0:
        return query, key
    return (query * scale, key) if query.numel() <= key.numel() else (query, key * scale)
