"""Frozen copies of modules, and detection of writes to their parameters."""

from collections.abc import Iterable
from operator import is_
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dikkat._engine.addresses import exact, start_addresses
from dikkat._engine.pytorch_state import can_read_values, has_dispatch_mode, is_transformed

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def frozen(module: ModuleT) -> ModuleT:
    """Copy a module without gradients, cloning only tensors, because `copy.deepcopy` fails for some weights."""
    copied = object.__new__(type(module))
    state: dict[str, Any] = {name: _clone(value) for name, value in vars(module).items()}
    state["_parameters"] = {
        name: None if tensor is None else nn.Parameter(_clone(tensor), requires_grad=False)
        for name, tensor in module._parameters.items()
    }
    state["_buffers"] = {name: _clone(tensor) for name, tensor in module._buffers.items()}
    state["_modules"] = {name: None if child is None else frozen(child) for name, child in module._modules.items()}
    copied.__dict__.update(state)
    return copied


def _clone(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def learns(module: nn.Module, *tensors: Tensor) -> bool:
    """True if gradients flow to a module's parameters, or to tensors that the module is called with."""
    if not torch.is_grad_enabled():
        return False
    return any(tensor.requires_grad for tensor in tensors) or any(p.requires_grad for p in module.parameters())


def is_traced() -> bool:
    return torch.compiler.is_compiling() or is_transformed() or has_dispatch_mode()


class Writes:
    """Detects writes to some tensors since construction.

    PyTorch's version counters miss fused optimisers, `.data` and NumPy views. So some numbers of each CPU tensor are
    compared too, but a write of few numbers may go undetected.
    """

    def __init__(self, tensors: Iterable[Tensor], none_before: bool = True) -> None:
        self._tensors, self._none_before = list(tensors), none_before
        self._counted = [tensor for tensor in self._tensors if not tensor.is_inference()]
        readable = (t for t in self._tensors if t.numel() and t.is_contiguous() and can_read_values(t))
        numbers = [t.detach().view(-1) for t in readable if t.untyped_storage().nbytes()]
        self._sampled = [flat[:: -(-len(flat) // _SAMPLED)] for flat in numbers]
        self._versions, self._numbers = self._current_versions(), self._current_numbers()

    def _current_versions(self) -> tuple[list[int], list[int]]:
        """Return the tensors' version counters and addresses; a module's `.to()` changes the addresses."""
        return [tensor._version for tensor in self._counted], start_addresses(self._tensors)

    def _current_numbers(self) -> Tensor:
        with exact("cpu"):  # under autocast, CPUs cannot concatenate float16
            return torch.cat(self._sampled).view(torch.uint8) if self._sampled else torch.empty(0, device="cpu")

    def are_none(self, tensors: Iterable[Tensor] | None = None) -> bool:
        """True if no write was detected, and `tensors`, if given, are the same tensors."""
        if tensors is not None:
            current = list(tensors)
            if len(current) != len(self._tensors) or not all(map(is_, current, self._tensors)):
                return False
        if not self._none_before or self._current_versions() != self._versions:
            return False
        return not can_read_values(*self._sampled) or torch.equal(self._current_numbers(), self._numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Writes, (self._tensors, self.are_none())


_SAMPLED = 61  # numbers of a tensor that are compared
