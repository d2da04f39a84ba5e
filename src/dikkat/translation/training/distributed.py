"""Training in several processes that `torchrun` starts."""

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

# The longest time that other processes wait: to read corpora, to translate for BLEU, to write a checkpoint.
_TIMEOUT = timedelta(minutes=10)


class Processes(NamedTuple):
    """The rank of this process and the number of processes; only rank 0 writes to files and to the screen.

    `local_rank` is the number of the process, and of its GPU, on this machine.
    """

    rank: int
    world: int
    local_rank: int


def processes() -> Processes:
    """Return the rank of this process and the number of processes from `torchrun`'s environment variables.

    Without `torchrun`, there is one process.

    Example:
        >>> processes().world
        1
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or "TORCHELASTIC_RUN_ID" not in os.environ:
        return Processes(0, 1, 0)
    return Processes(int(os.environ["RANK"]), world, int(os.environ["LOCAL_RANK"]))


def device_type() -> str:
    """Return `"cuda"` if there is a GPU, else `"cpu"`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_precision(precision: str, device: str) -> None:
    """Raise `SettingsError` for bfloat16 on a device without products in bfloat16."""
    if precision == "bfloat16" and not has_bfloat16(device):
        processor = "GPU" if device == "cuda" else "CPU"
        raise SettingsError(
            f"precision: got 'bfloat16'; expected 'float32', as PyTorch finds no bfloat16 products on this {processor} "
            "(emulated ones are slower)"
        )


def has_bfloat16(device: str) -> bool:
    """Return whether PyTorch reports products in bfloat16 for the device."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if not hasattr(torch.cpu, "get_capabilities") or not torch.backends.mkldnn.is_available():
        return False  # too old to report it, or built without oneDNN
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16"))


class Group:
    """The connected processes that train one model; all of them must call each method.

    Attributes:
        device: The device of this process.

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
        if self.world > 1 and not dist.is_initialized():  # a second training uses the first one's connections
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo", timeout=_TIMEOUT)
            atexit.register(dist.destroy_process_group)

    def parallel(self, module: nn.Module) -> nn.Module:
        """Return the module, wrapped so that `backward` averages the gradients over all processes."""
        if self.world == 1:
            return module
        return DistributedDataParallel(module, [self.device] if self.device.type == "cuda" else None)

    def without_exchange(self, module: nn.Module) -> AbstractContextManager[None]:
        """Return a context in which `backward` does not average gradients."""
        return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()

    def total(self, *values: float) -> list[float]:
        """Return the sum of each value over all processes, in float64."""
        if self.world == 1:
            return [float(value) for value in values]
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(numbers)
        return numbers.tolist()

    def mean(self, *values: float) -> list[float]:
        """Return the mean of each value over all processes, in float64."""
        return [value / self.world for value in self.total(*values)]

    def gather(self, tensor: Tensor) -> Tensor:
        """Gather a tensor of equal shape and dtype from each process; return all, (processes, …), on the CPU."""
        if self.world == 1:
            return tensor.unsqueeze(0)
        tensors = [torch.empty_like(tensor, device=self.device) for _ in range(self.world)]
        dist.all_gather(tensors, tensor.to(self.device))
        return torch.stack(tensors).cpu()

    def from_first(self, text: str) -> str:
        """Return the first process's text."""
        texts = [text]
        if self.world > 1:
            dist.broadcast_object_list(texts, device=self.device)
        return texts[0]

    def wait(self) -> None:
        """Wait until all processes have called this method."""
        if self.world > 1:
            dist.barrier()
