"""Frozen copies of modules, and detection of writes to their parameters by version counters."""

from collections.abc import Iterable
from operator import is_
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from dikkat._engine.pytorch_state import is_transformed, is_watched

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def frozen(module: ModuleT) -> ModuleT:
    """A frozen copy of a module: its tensors are cloned without gradients, all other attributes are shared.

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
    """True where gradients flow to a module's parameters, or to tensors that it is called with."""
    if not torch.is_grad_enabled():
        return False
    return any(tensor.requires_grad for tensor in tensors) or any(p.requires_grad for p in module.parameters())


def is_traced() -> bool:
    """Whether operations are being traced."""
    return torch.compiler.is_compiling() or is_transformed() or is_watched()


class Writes:
    """The writes to some tensors since this was made, as PyTorch counts them, and the steps of optimisers.

    PyTorch's count misses fused optimisers: any optimiser's step is a write to all of its parameters. Not counted are
    writes through `.data` or a NumPy view, to tensors made in inference mode, and by fused optimisers in torch.compile.

    Args:
        tensors: The tensors.
        none_before: False where one of them had been written to already.
    """

    def __init__(self, tensors: Iterable[Tensor], none_before: bool = True) -> None:
        self._tensors = list(tensors)
        self._counted = [tensor for tensor in self._tensors if not tensor.is_inference()]
        self._versions = [tensor._version for tensor in self._counted]
        self._stepped = not none_before
        _observers[id(self)] = self

    def are_none(self, tensors: Iterable[Tensor]) -> bool:
        """True where these are the same tensors as ever, and none has been written to."""
        if self._stepped or [tensor._version for tensor in self._counted] != self._versions:
            return False
        now = list(tensors)
        return len(now) == len(self._tensors) and all(map(is_, now, self._tensors))

    def count_step(self, parameters: set[int]) -> None:
        """Note an optimiser's step, by the ids of its parameters."""
        self._stepped = self._stepped or not parameters.isdisjoint(map(id, self._tensors))

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy counts the writes to its own copies of the tensors."""
        return Writes, (self._tensors, self.are_none(self._tensors))


_observers: WeakValueDictionary[int, Writes] = WeakValueDictionary()


def _count_step(optimizer: Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling() or not _observers:
        return
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for observer in _observers.valuerefs():  # a list, which other threads do not change
        if (writes := observer()) is not None:
            writes.count_step(stepped)


register_optimizer_step_post_hook(_count_step)
