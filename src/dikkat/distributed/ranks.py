"""The ranks of a process group, and messages between them that say who has left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

# What the start of each tensor in a message is a multiple of, so that it can be read in place; and the bytes behind
# them all, which say who has left.
_ALIGN = 16
_NOBODY = 0
# What a rank that goes gives its neighbour to take the news.
_LAST_WORDS = timedelta(seconds=5)


class RankError(RuntimeError):
    """A rank of the group has left, did not answer in time, or brought what does not fit.

    Args:
        message: What there is to say.
        rank: Which rank it is, as far as is known.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class Ranks:
    """This process among the ranks of a group.

    Args:
        group: A process group; None is the default one.
        timeout: Seconds that a message may take; None is the group's own time-out.

    Attributes:
        rank: This process's number in the group.
        world: How many there are.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float | None = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise ValueError(
                "group: got no process group; expected one (torch.distributed.init_process_group, in each of the "
                "processes that torchrun starts)"
            )
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("group: got one that this process is not in; expected one of its own groups")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout: got {timeout}; expected seconds, above 0, or None for the group's own")
        self.timeout = None if timeout is None else timedelta(seconds=timeout)

    @property
    def successor(self) -> int:
        """The next rank of the ring."""
        return (self.rank + 1) % self.world

    @property
    def predecessor(self) -> int:
        """The rank before this one in the ring."""
        return (self.rank - 1) % self.world

    def send(self, sent: Mapping[int, Tensor], received: Mapping[int, Tensor], tag: int = 0) -> Going:
        """Send a tensor to each of some ranks, and receive into a tensor from each of some.

        All of it goes on while the process computes, until `Going.arrive`.
        """
        peers = [*received, *sent]  # what comes is waited for first: it may say why what is sent cannot go
        operations = [
            dist.P2POp(call, tensor, self._global(peer), self.group, tag)
            for call, side in ((dist.irecv, received), (dist.isend, sent))
            for peer, tensor in side.items()
        ]
        batches = [operations] if dist.get_backend(self.group) == "nccl" else [[each] for each in operations]
        works: list[dist.Work | RuntimeError] = []
        for batch in batches:
            try:
                works += dist.batch_isend_irecv(batch) if batch else ()
            except RuntimeError as error:
                works.append(error)
        return Going(self, peers, works)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, all of one shape and type, in the order of the ranks."""
        others = [rank for rank in range(self.world) if rank != self.rank]
        tensor = tensor.contiguous()
        received = {rank: torch.empty_like(tensor) for rank in others}
        self.send(dict.fromkeys(others, tensor), received).arrive()
        return [tensor if rank == self.rank else received[rank] for rank in range(self.world)]

    def total(self, *tensors: Tensor) -> list[Tensor]:
        """The sum of every rank's tensors, in one message."""
        if self.world == 1 or not tensors:
            return list(tensors)
        self.gather(tensors[0].new_zeros(1))  # a roll call: who is not there is named
        kind = tensors[0].dtype
        for tensor in tensors:
            kind = torch.promote_types(kind, tensor.dtype)
        flat = torch.cat([tensor.reshape(-1).to(kind) for tensor in tensors])
        try:
            dist.all_reduce(flat, group=self.group)
        except RuntimeError as error:
            raise self.lost((), error) from None
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]

    def lost(self, peers: Sequence[int], error: BaseException | None) -> RankError:
        """What there is to say where a message did not arrive."""
        who = f"rank {peers[0]}" if len(set(peers)) == 1 else "a rank"
        late = "Timed out" in str(error)
        what = "did not answer in time" if late else "has left"
        return RankError(
            f"group: {who} of {self.world} {what}, as rank {self.rank} sees it; expected all of them to make the same "
            "calls to the end: see that rank's own message, and start all of them again",
            peers[0] if len(set(peers)) == 1 else None,
        )

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


class Going:
    """Messages on their way."""

    def __init__(self, ranks: Ranks, peers: Sequence[int], works: Sequence[dist.Work | RuntimeError]) -> None:
        self._ranks, self._peers, self._works = ranks, peers, works

    def arrive(self, timeout: timedelta | None = None) -> None:
        """Wait until all have been sent and received, or have failed.

        Also where one has failed, the others are waited for: this rank may go then, and what another still waits for
        must not go with it.

        Args:
            timeout: How long each may take; None is the ranks' time-out.

        Raises:
            RankError: One has not, with the rank's number.
        """
        timeout = timeout or self._ranks.timeout
        named = len(self._works) == len(self._peers)  # NCCL has one work for all
        lost: RankError | None = None
        for index, work in enumerate(self._works):
            try:
                if isinstance(work, RuntimeError):
                    raise work
                work.wait() if timeout is None else work.wait(timeout)
            except RuntimeError as error:
                lost = lost or self._ranks.lost(self._peers[index : index + 1] if named else (), error)
        if lost:
            raise lost


class Message:
    """Tensors as one run of bytes, with room for the number of a rank that has left.

    Args:
        like: The tensors' shapes and dtypes.
        device: Where they are.

    Attributes:
        bytes: What is sent.
        tensors: The same memory, as the tensors.
    """

    def __init__(self, like: Sequence[tuple[torch.Size, torch.dtype]], device: torch.device) -> None:
        starts, end = [], 0
        for shape, dtype in like:
            starts.append(end)
            end = -(-(end + shape.numel() * dtype.itemsize) // _ALIGN) * _ALIGN
        self.bytes = torch.zeros(end + _ALIGN, dtype=torch.uint8, device=device)
        self._left = self.bytes[end : end + 8].view(torch.int64)
        self.tensors = [
            self.bytes[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for start, (shape, dtype) in zip(starts, like, strict=True)
        ]

    @property
    def left(self) -> int | None:
        """The rank that has left, where the message says so instead of what was waited for."""
        found = int(self._left)
        return None if found == _NOBODY else found - 1

    def tell(self, left: int) -> None:
        """Let the message say that a rank has left."""
        self._left.fill_(left + 1)


class Ring:
    """Messages of one form, which travel round the ranks.

    A rank that fails, or hears that another has, tells its successor in the place of the next message: so each names
    the rank that left, and not just its neighbour.

    Args:
        ranks: The ranks.
        tag: What tells these messages from others on their way at the same time.
        like: The shapes and dtypes of a message's tensors.
        device: Where they are.
    """

    def __init__(
        self, ranks: Ranks, tag: int, like: Sequence[tuple[torch.Size, torch.dtype]], device: torch.device
    ) -> None:
        self.ranks, self.tag, self.like, self.device = ranks, tag, like, device

    def message(self) -> Message:
        """An empty message."""
        return Message(self.like, self.device)

    def shift(self, out: Message, into: Message) -> Callable[[], Message]:
        """Send a message on, and receive the predecessor's, for which the function that is returned waits."""
        ranks = self.ranks
        going = ranks.send({ranks.successor: out.bytes}, {ranks.predecessor: into.bytes}, self.tag)

        def arrive() -> Message:
            try:
                going.arrive()
            except RankError as error:
                if error.rank == ranks.successor != ranks.predecessor:
                    self._listen(into)
                if into.left is None:
                    raise
            if into.left is not None:
                raise ranks.lost([into.left], None) from None
            return into

        return arrive

    def _listen(self, into: Message) -> None:
        """Wait for what the predecessor has to say of a successor that is gone: it may be so for another's sake."""
        ranks = self.ranks
        with suppress(RankError):
            while into.left is None:
                ranks.send({}, {ranks.predecessor: into.bytes}, self.tag).arrive(_LAST_WORDS)

    def tell(self, error: BaseException) -> None:
        """Tell the successor of a failure, in the place of the message that it waits for next."""
        ranks = self.ranks
        message = self.message()
        named = error.rank if isinstance(error, RankError) else ranks.rank
        if ranks.world == 1 or named in (None, ranks.successor):
            return
        message.tell(named)
        with suppress(RankError):
            ranks.send({ranks.successor: message.bytes}, {}, self.tag).arrive(_LAST_WORDS)


@contextmanager
def telling(*rings: Ring) -> Iterator[None]:
    """Within, a failure of this rank's is told to the successor in each ring."""
    try:
        yield
    except BaseException as error:
        for ring in rings:
            ring.tell(error)
        raise
