"""Several processes that train together, as `torchrun` starts them."""

import atexit
import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dikkat.translation.errors import SettingsError

# How long a process may keep the others waiting: to read its corpora, to translate for BLEU, to write a checkpoint.
_TIMEOUT = timedelta(minutes=10)


class Processes(NamedTuple):
    """This process among those that train together; the first one alone writes, to files and to the screen.

    `local_rank` is its number on this machine, and that of its GPU.
    """

    rank: int
    world: int
    local_rank: int


def processes() -> Processes:
    """This process among those that `torchrun` started, by its environment variables; without it, one process alone.

    Example:
        >>> processes().world
        1
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return Processes(0, 1, 0)
    return Processes(int(os.environ["RANK"]), world, int(os.environ["LOCAL_RANK"]))


def device_type() -> str:
    """`"cuda"` where there is a GPU, else `"cpu"`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_precision(precision: str, device: str) -> None:
    """Raise an error for products in bfloat16 if the processor has none."""
    if precision == "bfloat16" and not has_bfloat16(device):
        raise SettingsError(
            f"precision is 'bfloat16'; this {device.upper()} has no products in bfloat16, or this PyTorch cannot tell, "
            "and imitated ones are slower than float32: use float32"
        )


def has_bfloat16(device: str) -> bool:
    """True where products in bfloat16 are the processor's own, by what PyTorch tells of it."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if not hasattr(torch.cpu, "get_capabilities") or not torch.backends.mkldnn.is_available():
        return False  # a PyTorch that is too old to tell, or that has no library of such products
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16"))


class Group:
    """The processes that train one model, connected; each method is one that all of them call.

    Attributes:
        device: Where this process computes.

    Example:
        >>> group = Group(Processes(0, 1, 0))
        >>> group.mean(1.0, 2.0), group.gather(torch.ones(3)).shape
        ([1.0, 2.0], torch.Size([1, 3]))
    """

    def __init__(self, process: Processes) -> None:
        self.rank, self.world, _ = process
        self.device = torch.device("cpu") if device_type() == "cpu" else torch.device("cuda", process.local_rank)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world > 1 and not dist.is_initialized():  # a second training goes on with the connections of the first
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo", timeout=_TIMEOUT)
            atexit.register(dist.destroy_process_group)

    def parallel(self, module: nn.Module) -> nn.Module:
        """The module, with gradients that are the mean of all processes' when `backward` ends."""
        if self.world == 1:
            return module
        return DistributedDataParallel(module, [self.device] if self.device.type == "cuda" else None)

    def without_exchange(self, module: nn.Module) -> AbstractContextManager[None]:
        """A context in which `backward` adds to this process's gradients alone."""
        return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()

    def total(self, *values: float) -> list[float]:
        """The sum of each value over all processes, float64."""
        if self.world == 1:
            return [float(value) for value in values]
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(numbers)
        return numbers.tolist()

    def mean(self, *values: float) -> list[float]:
        """The mean of each value over all processes, float64."""
        return [value / self.world for value in self.total(*values)]

    def gather(self, tensor: Tensor) -> Tensor:
        """(processes, …) on the CPU: each process's tensor, all of one shape and type."""
        if self.world == 1:
            return tensor.unsqueeze(0)
        tensors = [torch.empty_like(tensor, device=self.device) for _ in range(self.world)]
        dist.all_gather(tensors, tensor.to(self.device))
        return torch.stack(tensors).cpu()

    def from_first(self, text: str) -> str:
        """The first process's text."""
        texts = [text]
        if self.world > 1:
            dist.broadcast_object_list(texts, device=self.device)
        return texts[0]

    def wait(self) -> None:
        """Wait for all processes to come to this place."""
        if self.world > 1:
            dist.barrier()
