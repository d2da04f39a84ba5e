"""The memory of a translator: stored sentence pairs, which later translations follow."""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from dikkat.errors import InputError
from dikkat.translation.memory.states import States
from dikkat.translation.text.slots import NO_SLOTS, Masked, Slots
from dikkat.translation.text.special_tokens import END, UNKNOWN

Ids = tuple[int, ...]

LARGEST = 1 << 30
"""The largest file of a memory, in bytes."""
_TENSORS = {
    "projection": torch.float32, "keys": torch.float16, "biases": torch.float32, "source_tokens": torch.int32,
    "source_lengths": torch.int32, "target_tokens": torch.int32, "target_lengths": torch.int32, "texts": torch.uint8,
}  # fmt: skip
_MOST_NEAREST = 64
_LARGEST_BIAS = 16.0


def normalise(sentence: str) -> str:
    """Return the sentence in Unicode's composed form, with single spaces: sentences with the same result are equal."""
    return " ".join(unicodedata.normalize("NFC", sentence).split())


@dataclass(frozen=True, eq=False)
class StoredPair:
    """A sentence pair of a memory.

    Attributes:
        source: The sentence.
        target: Its translation.
        source_ids: The token numbers that the model reads.
        target_ids: The token numbers to write, without the end.
        keys: (T + 1, d) float16, the states before each token and before the end.
        bias: The log-weight of the states; the model's is 0.
        has_slots: Whether the token numbers are those of the texts with slots for the spans that both have. If not,
            the spans are text.
    """

    source: str
    target: str
    source_ids: Ids
    target_ids: Ids
    keys: Tensor
    bias: float
    has_slots: bool = True

    @cached_property
    def key(self) -> str:
        """The sentence, as `normalise` returns it."""
        return normalise(self.source)

    @property
    def has_unknown(self) -> bool:
        """Whether the translation has words outside the vocabulary."""
        return UNKNOWN in self.target_ids

    @cached_property
    def line(self) -> str:
        """The translation as one line."""
        return re.sub(r"[\t-\r]+", " ", self.target).strip()

    def mask(self, slots: Slots, sentence: str | None = None) -> tuple[Masked, Masked]:
        """Return both texts with their slots; `sentence` replaces the source and may differ from it in white space."""
        source = self.source if sentence is None else sentence
        return (slots if self.has_slots else NO_SLOTS).mask(source, self.target)


@dataclass(frozen=True)
class Snapshot:
    """The contents of a memory at one time: the pairs in the order of storing, at least one.

    Attributes:
        pairs: The pairs.
        projection: The map to queries (d, e).
        nearest: The most states that have an effect on a query.
    """

    pairs: Sequence[StoredPair]
    projection: Tensor
    nearest: int

    @cached_property
    def states(self) -> States:
        """The states of all pairs, concatenated once."""
        lengths = torch.tensor([len(pair.keys) for pair in self.pairs], device="cpu")
        tokens = [token for pair in self.pairs for token in (*pair.target_ids, END)]
        return States(
            self.projection,
            torch.cat([pair.keys for pair in self.pairs]).float(),
            torch.tensor(tokens, device="cpu"),
            torch.tensor([pair.bias for pair in self.pairs], device="cpu").repeat_interleave(lengths),
            torch.arange(len(self.pairs), device="cpu").repeat_interleave(lengths),
            min(self.nearest, len(tokens)),
        )

    @cached_property
    def by_source(self) -> Mapping[str, StoredPair]:
        """The pairs by their keys."""
        return {pair.key: pair for pair in self.pairs}

    @cached_property
    def by_ids(self) -> Mapping[Ids, StoredPair]:
        """The pairs by their source tokens."""
        return {pair.source_ids: pair for pair in self.pairs}


class PairMemory:
    """Stored sentence pairs, at most one for the same sentence or the same source tokens. The newest pair is kept.

    All methods may be called from several threads. A search uses the pairs that are stored when it starts.

    Example:
        >>> memory = PairMemory()
        >>> len(memory), memory.snapshot is None
        (0, True)
    """

    def __init__(self, pairs: Iterable[StoredPair] = (), projection: Tensor | None = None, *, nearest: int = 8) -> None:
        self._lock = Lock()
        self._projection, self._nearest = projection, nearest
        self._snapshot = self._make_snapshot(list(pairs))

    def __len__(self) -> int:
        return 0 if self._snapshot is None else len(self._snapshot.pairs)

    @property
    def snapshot(self) -> Snapshot | None:
        """The current contents; None if no pair is stored."""
        return self._snapshot

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The stored sentences and their translations, in the order of storing."""
        return [] if self._snapshot is None else [(pair.source, pair.target) for pair in self._snapshot.pairs]

    @property
    def is_new(self) -> bool:
        """Whether the memory has no pairs and no map to queries, so that a file would have no content."""
        return self._projection is None

    def projection(self, make: Callable[[], Tensor]) -> Tensor:
        """Return the map to queries (d, e), from `make` if the memory is new."""
        with self._lock:
            if self._projection is None:
                self._projection = make()
            return self._projection

    def store(self, pair: StoredPair) -> list[StoredPair]:
        """Store a pair; return the pairs that it replaces: those of the same sentence, or the same source tokens."""
        with self._lock:
            pairs = [] if self._snapshot is None else self._snapshot.pairs
            replaced = [old for old in pairs if old.source_ids == pair.source_ids or old.key == pair.key]
            self._snapshot = self._make_snapshot([*(old for old in pairs if old not in replaced), pair])
        return replaced

    def remove(self, source: str) -> str:
        """Remove the pair of a sentence, which may differ in white space; return its translation.

        Raises:
            InputError: No pair of this sentence is stored.
        """
        with self._lock:
            pairs, key = [] if self._snapshot is None else self._snapshot.pairs, normalise(source)
            removed = [pair for pair in pairs if pair.key == key]
            if not removed:
                raise InputError(f"source: got {source!r:.120}, which has no correction; expected a corrected sentence")
            self._snapshot = self._make_snapshot([pair for pair in pairs if pair.key != key])
        return removed[0].target

    def _make_snapshot(self, stored: list[StoredPair]) -> Snapshot | None:
        if not stored or self._projection is None:
            return None
        return Snapshot(stored, self._projection, self._nearest)

    def __reduce__(self) -> tuple[Any, ...]:
        """Make copies and pickles independent: later corrections of one do not change the other."""
        pairs = () if self._snapshot is None else tuple(self._snapshot.pairs)
        return _restore, (pairs, self._projection, self._nearest)

    # --- files

    def to_tensors(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the tensors and the metadata of a memory file; the memory has a projection."""
        pairs = [] if self._snapshot is None else self._snapshot.pairs
        if self._projection is None:
            raise ValueError("memory: got no projection; expected one, as of a memory with pairs")

        def flat(numbers: Iterable[int]) -> Tensor:
            return torch.tensor(list(numbers), dtype=torch.int32, device="cpu")

        no_keys = torch.empty(0, len(self._projection), dtype=torch.float16, device="cpu")
        texts = json.dumps([(pair.source, pair.target, pair.has_slots) for pair in pairs], ensure_ascii=False).encode()
        tensors = {
            "projection": self._projection.contiguous(),
            "keys": torch.cat([no_keys, *(pair.keys for pair in pairs)]),
            "biases": torch.tensor([pair.bias for pair in pairs], dtype=torch.float32, device="cpu"),
            "source_tokens": flat(token for pair in pairs for token in pair.source_ids),
            "source_lengths": flat(len(pair.source_ids) for pair in pairs),
            "target_tokens": flat(token for pair in pairs for token in pair.target_ids),
            "target_lengths": flat(len(pair.target_ids) for pair in pairs),
            "texts": torch.frombuffer(bytearray(texts), dtype=torch.uint8),
        }
        return tensors, {"nearest": str(self._nearest)}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, features: int, sizes: tuple[int, int]
    ) -> "PairMemory":
        """Return the memory of a file.

        Args:
            tensors: The tensors of `to_tensors`.
            metadata: The metadata of `to_tensors`.
            features: The width e of the model's output layer.
            sizes: The sizes of the source and the target vocabulary.

        Raises:
            ValueError: Tensors or metadata that `to_tensors` cannot have written; the message names them.
        """
        for name, dtype in _TENSORS.items():
            if name not in tensors or tensors[name].dtype != dtype:
                raise ValueError(f"{name}: missing, or not {dtype}")
        nearest = metadata.get("nearest", "")
        if not nearest.isdecimal() or int(nearest) not in range(1, _MOST_NEAREST + 1):
            raise ValueError(f"nearest: got {nearest!r:.80}; expected 1 to {_MOST_NEAREST}")
        projection, keys, biases = (tensors[name] for name in ("projection", "keys", "biases"))
        ids = [
            _split(tensors[f"{side}_tokens"], tensors[f"{side}_lengths"], side, size)
            for side, size in zip(("source", "target"), sizes, strict=True)
        ]
        lengths = [len(target) + 1 for target in ids[1]]
        shapes = {
            "projection": (projection.shape[0], features),
            "keys": (sum(lengths), projection.shape[0]),
            "biases": (len(ids[0]),),
        }
        for name, shape in shapes.items():
            if tensors[name].shape != shape or not tensors[name].isfinite().all():
                raise ValueError(f"{name}: got {tuple(tensors[name].shape)}; expected {shape} finite numbers")
        if not 1 <= len(projection) <= features:
            raise ValueError(f"projection: got {len(projection)} dimensions; expected 1 to {features}")
        if bool((biases.abs() > _LARGEST_BIAS).any()):
            raise ValueError(f"biases: got {float(biases.abs().max())}; expected at most {_LARGEST_BIAS:g}")
        texts = json.loads(tensors["texts"].numpy().tobytes())
        if not isinstance(texts, list) or not all(
            isinstance(item, list) and list(map(type, item)) == [str, str, bool] for item in texts
        ):
            raise ValueError("texts: expected a list of two strings and a bool for each pair")
        if not len(texts) == len(ids[0]) == len(ids[1]) or not all(ids[0]):
            raise ValueError(f"texts: got {len(texts)} pairs; expected {len(ids[0])} with source tokens")
        pairs = [
            StoredPair(source, target, source_ids, target_ids, pair_keys.clone(), bias, has_slots)
            for (source, target, has_slots), source_ids, target_ids, pair_keys, bias in zip(
                texts, *ids, keys.split(lengths), biases.tolist(), strict=True
            )
        ]
        return cls(pairs, projection, nearest=int(nearest))


def _restore(pairs: tuple[StoredPair, ...], projection: Tensor | None, nearest: int) -> PairMemory:
    return PairMemory(pairs, projection, nearest=nearest)


def _split(tokens: Tensor, lengths: Tensor, side: str, size: int) -> list[Ids]:
    if tokens.ndim != 1 or lengths.ndim != 1 or bool((lengths < 0).any()) or int(lengths.sum()) != len(tokens):
        raise ValueError(f"{side}_lengths: expected lengths with the sum {tokens.numel()}")
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < size:
        raise ValueError(f"{side}_tokens: expected 0 to {size - 1}, numbers of the model's vocabulary")
    return [tuple(row.tolist()) for row in tokens.split(lengths.tolist())]


def find_stored(memories: Sequence[Snapshot | None], sentence: str) -> StoredPair | None:
    """Return the stored pair of a sentence, if all memories have it."""
    if not memories or None in memories:
        return None
    key = normalise(sentence)
    pairs = [memory.by_source.get(key) for memory in memories if memory is not None]
    first = pairs[0]
    if first is None or any(pair is None or pair.target_ids != first.target_ids for pair in pairs):
        return None
    return first


def find_by_ids(memories: Sequence[Snapshot | None], ids: Sequence[int]) -> StoredPair | None:
    """Return the stored pair with these source tokens, if a memory has one."""
    pairs = (memory.by_ids.get(tuple(ids)) for memory in memories if memory is not None)
    return next((pair for pair in pairs if pair is not None), None)
