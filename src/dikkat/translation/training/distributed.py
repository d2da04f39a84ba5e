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

# How long a process may keep the others waiting: to read its corpora, to translate for BLEU, to write a checkpoint.
_TIMEOUT = timedelta(minutes=10)


class Processes(NamedTuple):
    """This process among those that train together."""

    rank: int  # its number, from 0; the first one alone writes, to files and to the screen
    world: int  # how many there are
    local_rank: int  # its number among those on this machine, and that of its GPU


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


class Group:
    """The processes that train one model, connected; each method is one that all of them call.

    Attributes:
        device: Where this process computes.

    Example:
        >>> group = Group(Processes(0, 1, 0))
        >>> group.mean(1.0, 2.0), group.gather(torch.ones(3)).shape
        ([1.0, 2.0], torch.Size([1, 3]))
    """

    def __init__(self, members: Processes) -> None:
        self.rank, self.world, _ = members
        self.device = torch.device("cpu") if device_type() == "cpu" else torch.device("cuda", members.local_rank)
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
