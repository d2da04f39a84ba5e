"""Frozen copies of modules, and detection of writes to their parameters by version counters."""

from collections.abc import Iterable
from operator import is_
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dikkat._engine.addresses import exact, start_addresses
from dikkat._engine.pytorch_state import can_read_values, is_transformed, is_watched

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def frozen(module: ModuleT) -> ModuleT:
    """A copy of a module without gradients, of which only tensors are cloned: `copy.deepcopy` refuses some weights."""
    copied = object.__new__(type(module))
    state: dict[str, Any] = {name: _own(value) for name, value in vars(module).items()}
    state["_parameters"] = {
        name: None if tensor is None else nn.Parameter(_own(tensor), requires_grad=False)
        for name, tensor in module._parameters.items()
    }
    state["_buffers"] = {name: _own(tensor) for name, tensor in module._buffers.items()}
    state["_modules"] = {name: None if part is None else frozen(part) for name, part in module._modules.items()}
    copied.__dict__.update(state)
    return copied


def _own(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def learns(module: nn.Module, *tensors: Tensor) -> bool:
    """True where gradients flow to a module's parameters, or to tensors that it is called with."""
    if not torch.is_grad_enabled():
        return False
    return any(tensor.requires_grad for tensor in tensors) or any(p.requires_grad for p in module.parameters())


def is_traced() -> bool:
    return torch.compiler.is_compiling() or is_transformed() or is_watched()


class Writes:
    """The writes to some tensors since this was made.

    Beside PyTorch's counters, which omit fused optimisers, `.data` and NumPy views, some numbers of each CPU tensor are
    compared: a write of few numbers may go unnoticed.
    """

    def __init__(self, tensors: Iterable[Tensor], none_before: bool = True) -> None:
        self._tensors, self._none_before = list(tensors), none_before
        self._counted = [tensor for tensor in self._tensors if not tensor.is_inference()]
        readable = (t for t in self._tensors if t.numel() and t.is_contiguous() and can_read_values(t))
        numbers = [t.detach().view(-1) for t in readable if t.untyped_storage().nbytes()]
        self._sampled = [each[:: -(-len(each) // _SAMPLED)] for each in numbers]
        self._versions, self._numbers = self._present_versions(), self._present_numbers()

    def _present_versions(self) -> tuple[list[int], list[int]]:
        """The tensors' version counters, and their addresses, which `.to()` of a module changes."""
        return [tensor._version for tensor in self._counted], start_addresses(self._tensors)

    def _present_numbers(self) -> Tensor:
        with exact("cpu"):  # autocast joins no float16 there
            return torch.cat(self._sampled).view(torch.uint8) if self._sampled else torch.empty(0, device="cpu")

    def are_none(self, tensors: Iterable[Tensor] | None = None) -> bool:
        """True if no write has been seen, and these are the same tensors, if given."""
        if tensors is not None:
            now = list(tensors)
            if len(now) != len(self._tensors) or not all(map(is_, now, self._tensors)):
                return False
        if not self._none_before or self._present_versions() != self._versions:
            return False
        return not can_read_values(*self._sampled) or torch.equal(self._present_numbers(), self._numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Writes, (self._tensors, self.are_none())


_SAMPLED = 61  # numbers of a tensor that are compared
