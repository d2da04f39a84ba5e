"""Communication between the ranks of a process group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from dikkat._core.operators import first_derivatives_only

ResultT = TypeVar("ResultT")
_NO_SECOND_DERIVATIVES = "attention over a group has no second derivatives; use one process to compute them"


class RankError(RuntimeError):
    """A rank of the group left, did not answer in time, or passed different arguments.

    Args:
        message: The message.
        rank: The rank at fault, if known.
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
        size: The number of ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "group: got no process group; expected one. Call torch.distributed.init_process_group in each process "
                "that torchrun starts"
            )
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("group: got a group without this process; expected a group that contains it")

    def exchange(self, rank_object: Any) -> list[Any]:
        """Return every rank's object, in the order of the ranks."""
        gathered: list[Any] = [None] * self.size
        with self._as_rank_errors():
            dist.all_gather_object(gathered, rank_object, group=self.group)
        return gathered

    def run_checked(self, step: Callable[[], tuple[dict[str, Any], ResultT]]) -> ResultT:
        """Run a step of all ranks, and return its result after checking that the ranks' arguments agree.

        The step returns its arguments, {name: value}, and its result. The arguments must be equal on all ranks. An
        error of one rank is sent to the other ranks, so that they do not wait for it.

        Raises:
            RankError: The arguments differ, or another rank raised an error.
        """
        try:
            arguments, result = step()
        except Exception as error:  # a user's score may raise any exception
            with suppress(RankError):
                self.exchange(str(error))  # a message in place of arguments means an error
            raise
        arguments_by_rank = self.exchange(arguments)
        for rank, other in enumerate(arguments_by_rank):
            if isinstance(other, str):
                raise RankError(f"group: rank {rank} raised an error: {other}", rank)
        for name, first in arguments_by_rank[0].items():
            for rank, other in enumerate(arguments_by_rank):
                if other.get(name) != first:
                    raise RankError(
                        f"{name}: got {other.get(name)} on rank {rank} and {first} on rank 0; expected the same on all "
                        "ranks",
                        rank,
                    )
        return result

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return every rank's tensor, all of one shape and dtype, in the order of the ranks.

        Only this rank's own tensor gets its gradient, and gradients are not summed. This is correct if all ranks
        compute the same loss from the result.
        """
        return list(_Gathered.apply(self, tensor))  # type: ignore[no-untyped-call]

    def sum_gradients_over_ranks(self, *tensors: Tensor) -> list[Tensor]:
        """Return the tensors, which must be equal on all ranks; their gradients are summed over the ranks."""
        return list(_GradientsSummed.apply(self, *tensors))  # type: ignore[no-untyped-call]

    def summed(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the sums of each tensor over the ranks, without gradients."""
        sums = tuple(tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors)
        with self._as_rank_errors():
            for total in sums:
                dist.all_reduce(total, group=self.group)
        return sums

    @contextmanager
    def _as_rank_errors(self) -> Iterator[None]:
        """Convert errors of PyTorch's communication to `RankError`."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().split("\n")[0]
            raise RankError(
                f"group: rank {self.rank} found that another of {self.size} ranks left or did not answer in time "
                f"({reason}); expected all ranks to make the same calls to the end. Look for the first error of the "
                "other ranks, then restart all ranks"
            ) from None  # the message contains the reason


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, tensor: Tensor) -> tuple[Tensor, ...]:
        ctx.rank = ranks.rank
        gathered = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(ranks.size)]
        with ranks._as_rank_errors():
            dist.all_gather(gathered, tensor.contiguous(), group=ranks.group)
        return tuple(gathered)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (grad,) = first_derivatives_only(_NO_SECOND_DERIVATIVES, lambda: (grads[ctx.rank].detach(),), *grads)
        return None, grad


class _GradientsSummed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks = ranks
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *first_derivatives_only(_NO_SECOND_DERIVATIVES, lambda: ctx.ranks.summed(*grads), *grads)
