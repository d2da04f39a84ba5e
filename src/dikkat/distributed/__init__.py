"""Attention over keys and values that are divided among the ranks of a process group.

It uses `torch.distributed`, started by `torchrun`: gloo on CPUs, NCCL on GPUs.
"""

from dikkat.distributed.front import attend
from dikkat.distributed.ranks import RankError

__all__ = ["RankError", "attend"]
