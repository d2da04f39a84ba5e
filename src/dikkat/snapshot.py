"""Modules as they are now, for memories that are not to change with them."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dikkat.kernels import addresses
from dikkat.masking import transformed

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
    """Whether gradients are to be had of a module's parameters, or of tensors that it is called with."""
    if not torch.is_grad_enabled():
        return False
    return any(tensor.requires_grad for tensor in tensors) or any(p.requires_grad for p in module.parameters())


def traced() -> bool:
    """Whether PyTorch records operations and not values: a memory then lives no longer than the record."""
    return torch.compiler.is_compiling() or transformed() or addresses.watched()


def versions(module: nn.Module) -> tuple[tuple[Tensor, int], ...]:
    """A module's parameters and how often each has been written to, as autograd counts."""
    return tuple((p, p._version) for p in module.parameters() if not p.is_inference())
