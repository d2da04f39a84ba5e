"""What the ranks of a group must bring alike, and the message where they do not."""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from dikkat.distributed.ranks import RankError, Ranks
from dikkat.masking import can_read_values
from dikkat.scores import Score

# Bytes of what a rank says of its call; a message that is longer is cut.
_ROOM = 4096
_REFUSED = "refused"


def agree(ranks: Ranks, own: Mapping[str, Any], alike: Sequence[str], device: torch.device) -> list[dict[str, Any]]:
    """What every rank says of its call.

    Args:
        ranks: The ranks.
        own: What this one says: what JSON can say.
        alike: The names of what must be the same on all of them.
        device: Where the group's messages are.

    Raises:
        RankError: They differ, or one of them cannot go on.
    """
    text = json.dumps(own).encode()
    if len(text) > _ROOM:  # a refusal, or many dimensions: what is compared then is its sum
        text = json.dumps({_REFUSED: f"its call is too long to be told, {len(text)} bytes"}).encode()
    sheet = torch.frombuffer(bytearray(text.ljust(_ROOM)), dtype=torch.uint8).to(device)
    found = [json.loads(bytes(other.cpu().tolist())) for other in ranks.gather(sheet)]
    for rank, other in enumerate(found):
        if _REFUSED in other and rank != ranks.rank:
            raise RankError(f"group: rank {rank} refuses its call: {other[_REFUSED]}", rank)
    if _REFUSED not in found[ranks.rank]:
        for name in alike:
            _check_alike(name, [other.get(name) for other in found])
    return found


@contextmanager
def refusing(ranks: Ranks, device: torch.device) -> Iterator[None]:
    """Within, an error of this rank is told to the others, in the place of what they wait for next."""
    try:
        yield
    except Exception as error:  # of a score of one's own: any
        with suppress(RankError):
            agree(ranks, {_REFUSED: str(error)[: _ROOM // 8]}, (), device)
        raise


def _check_alike(name: str, values: list[Any]) -> None:
    for rank, value in enumerate(values):
        if value != values[0]:
            raise RankError(
                f"{name}: got {_shown(value)} on rank {rank} and {_shown(values[0])} on rank 0; expected the same on "
                "all ranks",
                rank,
            )


def _shown(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, list) else str(value)


def fingerprint(*tensors: Tensor | None) -> str:
    """A sum over the bytes of tensors whose values may be looked at; their shapes alone where they may not."""
    found = zlib.crc32(b"")
    for tensor in tensors:
        if tensor is None:
            continue
        found = zlib.crc32(repr((tuple(tensor.shape), tensor.dtype)).encode(), found)
        plain = tensor.detach()
        if can_read_values(plain):
            found = zlib.crc32(plain.contiguous().view(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"


def described(score: Score) -> str:
    """A score by its class, settings, parameters and other tensors."""
    own = {name: value for name, value in sorted(vars(score).items()) if name != "training"}
    settings = [(name, value) for name, value in own.items() if type(value) in (bool, int, float, str)]
    tensors = [value for value in own.values() if isinstance(value, Tensor)]
    numbers = fingerprint(*score.parameters(), *score.buffers(), *tensors)
    return f"{type(score).__name__} of sum {numbers}-{zlib.crc32(repr(settings).encode()):08x}"
