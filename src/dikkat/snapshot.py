"""Copies and fingerprints of modules, for memories that must not change with them."""

from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from dikkat.masking import can_read_values, transformed, watched

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def frozen(module: ModuleT) -> ModuleT:
    """A copy of a module that nothing changes: its tensors are its own, without gradients; all else is shared.

    Not `copy.deepcopy`, which refuses the weights that pruning and weight norm compute, and copies what hooks hold.
    """
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
    """Whether gradients flow to a module's parameters, or to tensors that it is called with."""
    if not torch.is_grad_enabled():
        return False
    return any(tensor.requires_grad for tensor in tensors) or any(p.requires_grad for p in module.parameters())


def traced() -> bool:
    """Whether PyTorch records operations and not values: a memory then lives no longer than the record."""
    return torch.compiler.is_compiling() or transformed() or watched()


# Integer types by their number of bytes.
_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Mark(NamedTuple):
    """A parameter's fingerprint, by which a later change is noticed.

    Attributes:
        tensor: The parameter.
        version: How often it had been written to, as autograd counts, which misses fused optimisers and `.data`.
        digest: A sum of its bits, each number's by its place; None where they could not be read.
    """

    tensor: Tensor
    version: int
    digest: int | None

    def holds(self) -> bool:
        """Whether the parameter is as it was."""
        return self.tensor._version == self.version and _may_be(_digest(self.tensor), self.digest)


def marks(module: nn.Module) -> tuple[Mark, ...]:
    """Fingerprints of a module's parameters."""
    return tuple(Mark(p, p._version, _digest(p)) for p in module.parameters() if not p.is_inference())


def differ(one: nn.Module, other: nn.Module) -> bool:
    """Whether the parameters of two modules of one class differ, as far as their values can be read."""
    here, there = list(one.parameters()), list(other.parameters())
    return len(here) != len(there) or not all(_may_be(_digest(a), _digest(b)) for a, b in zip(here, there, strict=True))


def _may_be(one: int | None, other: int | None) -> bool:
    """Whether two digests are of the same bits; one that cannot be taken, as under vmap, says nothing."""
    return one is None or other is None or one == other


def _digest(tensor: Tensor) -> int | None:
    """A number that changes with the bits of a tensor; None where its values cannot be read without waiting."""
    if not can_read_values(tensor) or not tensor.is_floating_point():
        return None
    bits = tensor.detach().view(_WHOLE[tensor.itemsize]).flatten()
    return int((bits * _places(len(bits), bits.device)).sum())


@lru_cache(16)
def _places(count: int, device: torch.device) -> Tensor:
    """Odd numbers, so that each bit of each number counts, and numbers that change places are noticed."""
    return torch.arange(1, 2 * count, 2, device=device)
