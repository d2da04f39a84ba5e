"""One call, validated, its hidden rows zeroed, projected: the object that goes from the front door to every kernel."""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from dikkat._core.restrictions import OWN_DIMENSIONS as _OF_RESTRICTIONS
from dikkat._core.restrictions import Restrictions
from dikkat._engine.pytorch_state import have_tangents
from dikkat.scores import Pair, Profile
from dikkat.state import State

# How many of a tensor's last dimensions are its own: those before them are the call's leading dimensions.
OWN_DIMENSIONS = {
    "query": 2, "key": 2, "weight": 1, "value": 2, **_OF_RESTRICTIONS, "seeds": 0, "sink": 0, "packed": 3,
}  # fmt: skip
_WIDE = (torch.float32, torch.float64)
# What is computed with, and so has one dtype in a kernel.
_NUMBERS = ("query", "key", "weight", "value", "bias", "key_bias")


class Result(NamedTuple):
    """The answer of an implementation; `lse`, `tail` and `weights` (before dropout) if they were requested."""

    mean: Tensor
    lse: Tensor | None
    weights: Tensor | None
    tail: Tensor | None = None

    def state(self) -> State:
        """The state of a call that requested it."""
        return State(self.mean, cast(Tensor, self.lse), self.tail)

    def shown_weights(self) -> Tensor:
        """The weights of a call that requested them."""
        return cast(Tensor, self.weights)


class Examined(NamedTuple):
    """The answer of `examine`: why an implementation cannot run a problem, and what its run need not find out again."""

    reasons: list[str]
    found: Any = None


@dataclass(frozen=True)
class Problem:
    """One call as every implementation receives it: validated, projected, hidden rows set to 0.

    All tensors have the same number of leading dimensions, which broadcast. Operators take these fields in order.
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
    seeds: Tensor | None = None  # (...) integers, one a batch element, for a dropout above 0
    sink: Tensor | None = None  # (...), one more logit a head, which a program joins: no implementation sees it
    # The keys as `implementations.pack` returns them, with the leading dimensions of `key`; or None.
    packed: Tensor | None = None
    wants_state: bool = False  # whether the log-sum-exp is requested
    wants_weights: bool = False  # whether the weights are requested
    wants_bias_grad: bool = False  # whether the bias needs a gradient
    finite: bool | None = None  # whether query, key, value and their inner products are finite; None if unchecked
    # A cache of implementations for calls of the same shapes and types; None for a single call.
    kept: dict[Any, Any] | None = None

    @property
    def narrow_dtype(self) -> torch.dtype:
        """The dtype of query, key and value together: autocast may have halved some of them."""
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
        """Whether forward-mode derivatives go through a tensor that an implementation sees."""
        return have_tangents(*(tensor for name, tensor in self.tensors().items() if name != "sink"))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the call by name, those of the restrictions among them."""
        held = self.__dict__ | self.restrictions.__dict__
        return {name: tensor for name in OWN_DIMENSIONS if (tensor := held[name]) is not None}

    def in_wide_dtype(self) -> "Problem":
        query, restrictions = self.query.dtype, self.restrictions
        plain = query is self.key.dtype is self.value.dtype and self._weight_is(query)
        if query in _WIDE and plain and restrictions.bias is restrictions.key_bias is None:
            return self
        kind, tensors = self.dtype, self.tensors()
        wide = {name: tensors[name].to(kind) for name in _NUMBERS if name in tensors and tensors[name].dtype != kind}
        return self.unchecked_copy(**wide) if wide else self

    def scaled(self) -> "Problem":
        """The call with its scale in an operand: in the smaller one, a pass over fewer numbers."""
        query, key = scaled(self.query, self.key, self.scale)
        return self.unchecked_copy(query=query, key=key, scale=1.0)

    def unchecked_copy(self, **fields: Any) -> "Problem":
        """A copy with other fields, those of the restrictions among them, that hides no other pairs."""
        made = object.__new__(Problem)
        restricting = {name: fields.pop(name) for name in _OF_RESTRICTIONS if name in fields}
        if restricting:
            fields["restrictions"] = fields.get("restrictions", self.restrictions).unchecked_copy(**restricting)
        made.__dict__.update(self.__dict__, **fields)
        return made

    def without_tensors(self) -> "Problem":
        return self.unchecked_copy(**dict.fromkeys(OWN_DIMENSIONS))

    def _weight_is(self, kind: torch.dtype) -> bool:
        return self.weight is None or self.weight.dtype is kind

    def part(self, dim: int, rows: slice) -> "Problem":
        """Some of the elements of one leading dimension."""
        lead = torch.Size((*self.lead[:dim], rows.stop - rows.start, *self.lead[dim + 1 :]))
        tensors = {name: narrow(tensor, dim, rows) for name, tensor in self.tensors().items()}
        return self.unchecked_copy(**tensors, lead=lead)


def narrow(tensor: Tensor, dim: int, rows: slice) -> Tensor:
    return tensor if tensor.shape[dim] == 1 else tensor.narrow(dim, rows.start, rows.stop - rows.start)


def scaled(query: Tensor, key: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Query and key, of which the one with fewer numbers is multiplied by `scale`."""
    if scale == 1.0:
        return query, key
    return (query * scale, key) if query.numel() <= key.numel() else (query, key * scale)
