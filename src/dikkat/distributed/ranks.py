"""The ranks of a process group, what they agree upon, and what they exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from dikkat._core.operators import once

ResultT = TypeVar("ResultT")
_ONE_DERIVATIVE = "attention over a group has no second derivatives; expected one process, which has them"


class RankError(RuntimeError):
    """A rank of the group has left, did not answer in time, or brought what does not fit.

    Args:
        message: The message.
        rank: The rank at fault, where it is known.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class Ranks:
    """This process among the ranks of a group.

    Args:
        group: A process group; None is the default one.

    Attributes:
        rank: This process's number in the group.
        world: How many there are.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "group: got no process group; expected one (torch.distributed.init_process_group, in each of the "
                "processes that torchrun starts)"
            )
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("group: got one that this process is not in; expected one of its own groups")

    def exchange(self, own: Any) -> list[Any]:
        """Every rank's object, in the order of the ranks."""
        gathered: list[Any] = [None] * self.world
        with self._reached():
            dist.all_gather_object(gathered, own, group=self.group)
        return gathered

    def together(self, step: Callable[[], tuple[dict[str, Any], ResultT]]) -> ResultT:
        """The result of a step that all ranks take, each with a description that must be the same on all of them.

        An error of one rank is sent to the others, so that none waits for a message that never comes.

        Raises:
            RankError: The descriptions differ, or another rank raised an error.
        """
        try:
            own, result = step()
        except Exception as error:  # a user's score may raise any
            with suppress(RankError):
                self.exchange(str(error))
            raise
        said = self.exchange(own)
        for rank, other in enumerate(said):
            if isinstance(other, str):
                raise RankError(f"group: rank {rank} refuses its call: {other}", rank)
        for name, first in said[0].items():
            for rank, other in enumerate(said):
                if other.get(name) != first:
                    raise RankError(
                        f"{name}: got {other.get(name)} on rank {rank} and {first} on rank 0; expected the same on all "
                        "ranks",
                        rank,
                    )
        return result

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, all of one shape and type, in the order of the ranks; the gradient is that of its own.

        So it is right where all ranks make the same loss of what is gathered.
        """
        return list(_Gathered.apply(self, tensor))  # type: ignore[no-untyped-call]

    def with_whole_gradients(self, *tensors: Tensor) -> list[Tensor]:
        """Tensors that are alike on all ranks, whose gradients are the sums of the ranks' gradients."""
        return list(_Shared.apply(self, *tensors))  # type: ignore[no-untyped-call]

    def summed(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The sums of the ranks' tensors, outside autograd."""
        sums = tuple(tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors)
        with self._reached():
            for each in sums:
                dist.all_reduce(each, group=self.group)
        return sums

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Within, an error of PyTorch's messages is one of the ranks."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().split("\n")[0]
            raise RankError(
                f"group: a rank of {self.world} has left or did not answer in time, as rank {self.rank} sees it "
                f"({reason}); expected all of them to make the same calls to the end: see that rank's own message, and "
                "start all of them again"
            ) from None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, tensor: Tensor) -> tuple[Tensor, ...]:
        ctx.rank = ranks.rank
        gathered = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(ranks.world)]
        with ranks._reached():
            dist.all_gather(gathered, tensor.contiguous(), group=ranks.group)
        return tuple(gathered)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (own,) = once(_ONE_DERIVATIVE, lambda: (grads[ctx.rank].detach(),), *grads)
        return None, own


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks = ranks
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *once(_ONE_DERIVATIVE, lambda: ctx.ranks.summed(*grads), *grads)
