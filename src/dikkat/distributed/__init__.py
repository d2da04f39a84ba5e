"""Attention over keys and values that lie on the ranks of a process group: the merge rule over a cluster.

On `torch.distributed`, as `torchrun` starts it: gloo on CPUs, NCCL on GPUs.
"""

from dikkat.distributed.front import attend
from dikkat.distributed.ranks import RankError

__all__ = ["RankError", "attend"]
