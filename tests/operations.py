"""Operations counted as a device would be asked to run them, and values that the host would wait for."""

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

VIEWS = (
    "alias", "detach", "expand", "select", "slice", "split", "split_with_sizes", "t", "transpose", "unbind",
    "unsqueeze", "squeeze", "view", "_unsafe_view", "_reshape_alias", "as_strided", "permute", "unfold",
)  # fmt: skip
MADE = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
READS = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "_unique2", "equal")


class Operations(TorchDispatchMode):
    """Counts operations by name; views and memory are none. What waits for a device is counted as "read …".

    Lengths and what is made of them are whole numbers on the host: only numbers with a point are read from a device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        tensor = args[0] if args and isinstance(args[0], Tensor) else None
        by_mask = name.startswith(("index", "index_put")) and any(
            isinstance(each, Tensor) and not each.is_floating_point() and each.element_size() == 1
            for each in (args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ())
        )
        if by_mask or (name in READS and tensor is not None and tensor.is_floating_point()):
            self.counted[f"read by {name}"] += 1
        elif name not in (*VIEWS, *MADE):
            self.counted[name] += 1
        return func(*args, **(kwargs or {}))
