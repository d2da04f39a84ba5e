"""The origins of a model's tensors: their sequences and positions, and which of them have attention weights."""

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary


class Origin(NamedTuple):
    """The origin of a tensor.

    Attributes:
        sequence: The number of its sequence. Each input and each output of self-attention is a new sequence.
        attended: Whether the sequence is an output of self-attention.
        positions: The position of each element, in the tensor's shape; None if unknown.
        keys: If the tensor has attention weights, the key of each weight, in the tensor's shape.
        weights: The weights before dropout, if the tensor has weights after dropout.
        logits: The softmax's arguments, if the tensor has its results and `Dataflow.keeps_logits` is set.
        altered: Whether it was computed from weights in a way that dikkat does not follow.
        features: Whether the last dimension has features from a matrix of the model. For weights, whether the softmax
            was over such features.
        is_pool: Whether the queries are an attention pool's, and not positions of the keys' sequence.
        exponential: "terms" if the tensor has exponentials, which may be divided by their sum; "sums" for sums of them.
    """

    sequence: int
    attended: bool = False
    positions: Tensor | None = None
    keys: Tensor | None = None
    weights: Tensor | None = None
    logits: Tensor | None = None
    altered: bool = False
    features: bool = False
    is_pool: bool = False
    exponential: str = ""

    @property
    def query_positions(self) -> Tensor | None:
        """The positions (B, n) of the queries, from `positions` (B, n, ...), or (B, H, n, ...) of the first head."""
        if self.positions is None:
            return None
        rows = self.positions[..., 0]
        return rows if rows.ndim < 3 else rows.select(-2, 0)

    def of_rows(self, tensor: Tensor) -> "Origin":
        """Return the sequence and positions of the origin, for a tensor with the same rows."""
        return Origin(self.sequence, self.attended, fit_positions(self.positions, tensor))


# The origins of queries, keys and outputs.
Streams = tuple[Origin, Origin, Origin]


class Origins:
    """The origins of the tensors of a running model."""

    def __init__(self) -> None:
        super().__init__()
        self._origins: Any = WeakIdKeyDictionary()
        self._constants: Any = WeakIdKeyDictionary()  # parameters, buffers and literals, which depend on no input
        self._sequence_numbers = itertools.count(1)
        self._query_positions: dict[int, Tensor | None] = {}  # by the sequence of an output of self-attention

    def add_constants(self, model: nn.Module) -> None:
        """Register a model's parameters and buffers."""
        for tensor in (*model.parameters(), *model.buffers()):
            self._constants[tensor] = True

    def origin(self, tensor: Tensor) -> Origin:
        """Return the origin of a tensor. An unknown tensor is an input."""
        origin: Origin | None = self._origins.get(tensor)
        if origin is None:
            origin = self._origins[tensor] = Origin(next(self._sequence_numbers))
        return origin

    def known(self, tensors: list[Tensor]) -> list[Origin]:
        """Return the origins of the tensors that have one."""
        origins = map(self._origins.get, tensors)
        return [origin for origin in origins if origin is not None]

    def has_weights(self, tensor: Tensor) -> bool:
        """Return whether a tensor has weights, or was computed from weights."""
        return any(origin.keys is not None or origin.altered for origin in self.known([tensor]))

    def with_positions(self, tensor: Tensor, heads: bool = False) -> Origin:
        """Return the origin of a tensor (..., n, d) with positions. With `heads`, dimension 1 of 4 has the heads."""
        origin = self.origin(tensor)
        if origin.positions is None:
            lead = [
                1 if heads and tensor.ndim == 4 and dim == 1 else size for dim, size in enumerate(tensor.shape[:-1])
            ]
            positions = torch.arange(torch.Size(lead).numel(), device=tensor.device).view(*lead, 1).expand(tensor.shape)
            origin = self._origins[tensor] = origin._replace(positions=positions)
        return origin

    def streams(self, query: Tensor, key: Tensor, heads: bool = True) -> Streams:
        """Return the origins of queries (..., n, d), keys and outputs."""
        origins = self.with_positions(query, heads), self.origin(key)
        return *origins, self.output_origin(*origins)

    def output_origin(self, query: Origin, key: Origin) -> Origin:
        """Return the origin of attention's output: a new sequence for self-attention, else the queries' origin."""
        is_self = query.sequence == key.sequence
        number = next(self._sequence_numbers) if is_self else query.sequence
        return Origin(number, is_self or query.attended, query.positions)

    def follow(self, output: Tensor, origin: Origin) -> None:
        """Record the origin of an output of attention."""
        self._origins[output] = origin.of_rows(output)

    def continued_sequence(self, streams: Streams) -> int:
        """Return the number of the sequence that self-attention reads, or −1 if its positions are in another order.

        Their order is compared with the queries of the self-attention that computed the sequence, if any.
        """
        query, _, output = streams
        previous, current = self._query_positions.get(query.sequence), query.query_positions
        self._query_positions[output.sequence] = current
        continues = previous is None or (current is not None and torch.equal(previous.to(current.device), current))
        return query.sequence if continues else -1


def fit_positions(positions: Tensor | None, tensor: Tensor) -> Tensor | None:
    """Return the positions for a tensor with the same rows; None if the rows differ."""
    if positions is None or positions.shape == tensor.shape:
        return None if positions is None else positions.to(tensor.device)
    fits = 0 < tensor.ndim == positions.ndim and positions.shape[:-1] == tensor.shape[:-1] and positions.shape[-1] > 0
    return positions[..., :1].to(tensor.device).expand(tensor.shape) if fits else None
