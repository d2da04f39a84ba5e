"""A device that is none: the road of calls on a GPU, on a CPU's tensors or on tensors without numbers."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

import dikkat
from dikkat._core import dispatch
from dikkat._engine import pytorch_state

# What only changes how memory is looked at, or reserves some: it launches nothing.
WITHOUT_KERNELS = {
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "diagonal", "empty", "empty_like",
    "empty_strided", "expand", "new_empty", "permute", "promote_types", "select", "slice", "split", "split_with_sizes",
    "squeeze", "t", "transpose", "unbind", "unsqueeze", "view",
}  # fmt: skip
# What waits for the device, to read numbers there.
READING = {
    "_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "_to_cpu", "_unique2",
}  # fmt: skip


class Operations(TorchDispatchMode):
    """The operations that run meanwhile, each a kernel that a host would launch.

    Attributes:
        names: Theirs, in order.
        read: Those that read numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.read: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in READING:
            self.read.append(name)
        if name not in WITHOUT_KERNELS:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


def operations(run: Callable[[], object]) -> Operations:
    """Those of one call."""
    with Operations() as found:
        run()
    return found


@contextmanager
def device() -> Iterator[None]:
    """Within, no tensor is the CPU's, whose numbers could be read; a mode that looks on does not count as one."""
    everywhere = [module for name, module in sys.modules.items() if name.partition(".")[0] == dikkat.__name__]
    with pytest.MonkeyPatch.context() as patch:
        for module in everywhere:
            for name in ("can_read_values", "on_cpu"):
                if name in vars(module):
                    patch.setattr(module, name, lambda *_, **__: False)
        patch.setattr(pytorch_state, "_modes", lambda: 0)
        patch.setattr(dispatch, "_PROGRAMS", {})
        yield


@contextmanager
def kept() -> Iterator[None]:
    """`device`, where each call is the second of its signature."""
    run = dispatch.run_call

    def twice(*given: Any, **more: Any) -> Any:
        run(*given, **more)
        return run(*given, **more)

    with device(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "run_call", twice)
        yield
