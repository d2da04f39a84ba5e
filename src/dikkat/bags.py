"""Pooling of bags: rows of features of which a set has one label, as the patches of a slide. Nothing is padded."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Sampler, default_collate

from dikkat._core.validation import check_features, probability
from dikkat._engine.addresses import check_dense, many_at_once, searchsorted
from dikkat._engine.gating import blocks
from dikkat._engine.local_gradients import local_gradients
from dikkat._engine.pytorch_state import can_read_values, is_eager
from dikkat.scores import gated_scores, whole
from dikkat.state import Pooled, State, log_sum_exp, merge

__all__ = ["AttentionPooling", "LengthBatchSampler", "PooledBags", "collate_bags"]

# Rows summed in one go: rounding errors grow with the square root of this number and not of a bag's size.
_PIECE = 1024
# Numbers read at once; rows in half precision are copied to float32 this many at a time.
_AT_ONCE = 2**24


class PooledBags(NamedTuple):
    """The pooled bags with the weights and scores of their rows. With several heads, K stands after the rows or bags.

    Attributes:
        output: The pooled bags, (B, D) or (B, K, D).
        weights: Of each row in its bag, (N,) or (N, K); where a mask came, (B, N) or (B, N, K), 0 in rows that are not.
        scores: Before the softmax, of the same shape; −∞ in rows that are not, or were dropped.
        top: The rows of each bag with the largest weights, counted from the bag's first, (B, top_k) or (B, K, top_k),
            largest first, −1 beyond the bag's last; None where none were requested.
    """

    output: Tensor
    weights: Tensor
    scores: Tensor
    top: Tensor | None = None


class AttentionPooling(nn.Module):
    r"""The mean of a bag's rows, weighted by attention with learned queries.

    $$ z = \sum_i a_i h_i, \qquad a = \mathrm{softmax}_i\, w^\top (\tanh(V h_i) \odot \mathrm{sigmoid}(U h_i)) $$

    A bag is any number of rows; a batch of bags is their rows, one bag behind the other, and the bags' lengths. Scores
    are computed in blocks of rows, also in the backward, so that memory is that of the rows.

    Args:
        features: D, features of a row.
        hidden: Features of V and U.
        heads: K, queries: each has a row of w, and pools by itself.
        gated: Whether there is the second factor, with U; without it a score is $w^\top \tanh(V h)$.
        dropout: Probability with which a row is left out of its bag, in training mode only.

    Raises:
        TypeError: A size that is no whole number, or a dropout that is no number.
        ValueError: A size below 1, or a dropout outside of 0 to 1.

    Source: Ilse, Tomczak and Welling 2018, *Attention-based Deep Multiple Instance Learning*, section 2.4.

    Example:
        >>> pool = AttentionPooling(features=5, hidden=7)
        >>> pool(torch.randn(11, 5), bag_lens=torch.tensor([3, 0, 8])).shape
        torch.Size([3, 5])
    """

    def __init__(self, features: int, hidden: int, heads: int = 1, gated: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        features, hidden, self.heads = whole("features", features), whole("hidden", hidden), whole("heads", heads)
        self.V = nn.Linear(features, hidden)
        self.U = nn.Linear(features, hidden) if gated else None
        self.w = nn.Linear(hidden, heads)
        self.dropout = probability(dropout)

    def forward(
        self,
        bags: Tensor,
        bag_lens: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        return_weights: bool = False,
        top_k: int | None = None,
    ) -> Tensor | PooledBags:
        """Pool each bag.

        Args:
            bags: (N, D), the rows of all bags, one bag behind the other; or (B, N, D), floating point.
            bag_lens: (B,) int32 or int64, the rows of each bag, which add up to N; 0 is allowed. Without it and with
                (N, D), all rows are one bag.
            mask: (B, N) bool, for (B, N, D): True where there is a row. What other rows hold has no effect.
            return_weights: Whether weights and raw scores are returned too.
            top_k: How many of each bag's rows with the largest weights to return; it requests the weights too.

        Returns:
            (B, D), or (B, K, D) of several heads. An empty bag is 0. On request, `PooledBags`.

        Raises:
            TypeError: An argument of the wrong kind or dtype.
            ValueError: Shapes, lengths or devices that do not fit.
        """
        check_features("bags", bags)
        top_k = None if top_k is None else whole("top_k", top_k)
        rows, lens = _rows(bags, bag_lens, mask)
        pooled, scores = self._pooled(rows, lens)
        output = self._heads(pooled.mean.to(bags.dtype), 1)
        if not return_weights and top_k is None:
            return output
        bag = _bag_of(lens, rows.shape[0])
        weights = _weights(_shares(scores, bag, lens.shape[0])[0], pooled.total, bag)
        top = None if top_k is None else self._heads(_largest(weights.detach(), bag, lens, mask, top_k), 1)
        return PooledBags(
            output, self._as_came(weights, bags, mask, 0.0), self._as_came(scores, bags, mask, -math.inf), top
        )

    def state(self, chunk: Tensor) -> State:
        """The state over some rows of one bag, which `dikkat.merge` joins with those over the others.

        Args:
            chunk: (n, D).

        Returns:
            A `dikkat.State` of one row a head: mean (K, D), lse (K,).

        Example:
            >>> pool, bag = dikkat.AttentionPooling(features=5, hidden=7), torch.randn(11, 5)
            >>> whole = dikkat.merge(pool.state(bag[:3]), pool.state(bag[3:]))
            >>> torch.allclose(whole.mean, pool(bag), atol=1e-6)
            True
        """
        return self._state(chunk)

    def in_chunks(self, chunks: Iterable[Tensor | Callable[[], Tensor]]) -> Tensor:
        """Pool one bag that comes in chunks, in the memory of one of them, with gradients.

        The backward computes each chunk's hidden features again; a chunk that is given as a function is read again, and
        not kept meanwhile.

        Args:
            chunks: Rows (n, D), or functions that return them: the same each time.

        Returns:
            (1, D), or (1, K, D) of several heads, in float32 or wider.

        Raises:
            ValueError: No chunk.

        Example:
            >>> pool, bag = AttentionPooling(features=5, hidden=7), torch.randn(11, 5)
            >>> torch.allclose(pool.in_chunks(bag.split(4)), pool(bag), atol=1e-6)
            True
        """

        def part(chunk: Tensor | Callable[[], Tensor], known: list[Tensor]) -> State:
            return self._state(chunk if isinstance(chunk, Tensor) else chunk(), known)

        joined: State | None = None
        for chunk in chunks:
            state: State = checkpoint(part, chunk, [], use_reentrant=False)
            joined = state if joined is None else merge(joined, state)
        if joined is None:
            raise ValueError("chunks: got none; expected at least one, which may have no rows")
        return self._heads(joined.mean[None], 1)

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Tensor], dropout: float = 0.0) -> Self:
        """A layer with the attention parameters of CLAM, AttentionDeepMIL, TRIDENT or torchmil, or its own.

        They are found by their names, wherever in the model they stand, which do not tell torchmil's "relu" and "gelu"
        from its "tanh", the one taken. Heads of TRIDENT, each with its network, become heads of one as wide as all.

        Args:
            state_dict: Of a whole model, as `torch.load(path, weights_only=True)` reads it.
            dropout: As in the constructor.

        Raises:
            ValueError: None of the known names is there.

        Example:
            >>> clam = {f"attention_net.3.attention_{name}.{part}": torch.zeros(size) for name, part, size in (
            ...     ("a.0", "weight", (256, 512)), ("a.0", "bias", (256,)), ("b.0", "weight", (256, 512)),
            ...     ("b.0", "bias", (256,)), ("c", "weight", (1, 256)), ("c", "bias", (1,)))}
            >>> AttentionPooling.from_state_dict(clam).V
            Linear(in_features=512, out_features=256, bias=True)
        """
        found = _found(state_dict)
        (hidden, features), heads = found["V.weight"].shape, len(found["w.weight"])
        made = cls(features, hidden, heads, "U.weight" in found, dropout).to(found["V.weight"].dtype)
        made.load_state_dict(found)
        return made

    def extra_repr(self) -> str:
        """The part of `print(layer)` in brackets."""
        return f"heads={self.heads}, dropout={self.dropout}"

    def _state(self, chunk: Tensor, known: list[Tensor] | None = None) -> State:
        check_features("chunk", chunk)
        if chunk.ndim != 2:
            raise ValueError(f"chunk: got shape {tuple(chunk.shape)}; expected (rows, features), rows of one bag")
        pooled, _ = self._pooled(chunk, torch.tensor([len(chunk)], device=chunk.device), known)
        return State(pooled.mean[0], *log_sum_exp(pooled.peak[0], pooled.total[0]))

    def _pooled(self, rows: Tensor, lens: Tensor, known: list[Tensor] | None = None) -> tuple[Pooled, Tensor]:
        """The pooled bags, and the scores (N, K); `known` as in `gating.gated`."""
        scores, rows = gated_scores(rows, self.V, self.U, self.w, "bags", known)
        if self.training and self.dropout:
            scores = scores.masked_fill(torch.rand(rows.shape[0], 1, device=rows.device) < self.dropout, -math.inf)
        return pool(scores, rows, lens), scores

    def _as_came(self, of_rows: Tensor, bags: Tensor, mask: Tensor | None, empty: float) -> Tensor:
        """Numbers of rows, (N, K), in the shape in which the bags came."""
        if mask is not None:
            spread = of_rows.new_full((*mask.shape, self.heads), empty)
            of_rows = spread.masked_scatter(mask[..., None], of_rows)
        return self._heads(of_rows.reshape(*bags.shape[:-1], self.heads), -1)

    def _heads(self, tensor: Tensor, dim: int) -> Tensor:
        """Without the dimension of heads where there is one."""
        return tensor.squeeze(dim) if self.heads == 1 else tensor


# V, U and w: this layer's, CLAM's, AttentionDeepMIL's, torchmil's and, with a number for each head, TRIDENT's.
_NAMES = (
    ("V", "U", "w"),
    ("attention_a.0", "attention_b.0", "attention_c"),
    ("module.0", "", "module.2"),
    ("module.0", "", "module.3"),
    ("attention_V.0", "attention_U.0", "attention_weights"),
    ("attention_V.0", "attention_U.0", "attention_w"),
    ("attention.0", "", "attention.2"),
    ("fc1.module", "fc_gated.module", "fc2"),
    ("attention_heads.{}.0", "gating_layers.{}.0", "branching_layers.{}"),
)


def _found(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of the first of `_NAMES` that are there and fit, under the names of this layer."""
    for names in _NAMES:
        last = f".{names[0].format(0)}.weight"
        for prefix in [key.removesuffix(last) for key in (f".{key}" for key in state_dict) if key.endswith(last)]:
            V, U, w = (_stacked(state_dict, f"{prefix}.{name}"[1:]) for name in names)
            if V and w and sum(weight.shape[1] for weight in w[0]) == sum(map(len, V[0])):
                found = {"V": (torch.cat(V[0]), V[1]), "w": (torch.block_diag(*w[0]), w[1])}
                found |= {"U": (torch.cat(U[0]), U[1])} if U else {}
                parts = (("weight", 0), ("bias", 1))
                return {f"{name}.{kind}": both[place] for name, both in found.items() for kind, place in parts}
    known = "; ".join(", ".join(filter(None, names)) for names in _NAMES)
    raise ValueError(f"state_dict: got {', '.join([*state_dict][:6]) or 'no names'} ...; expected one of {known}")


def _stacked(state_dict: Mapping[str, Tensor], name: str) -> tuple[list[Tensor], Tensor] | None:
    """A layer's weight, of each head where its name counts them, and their bias; None where there is no such layer."""
    each = [name.format(head) for head in range(len(state_dict))] if "{}" in name else [name]
    weights = {start: state_dict[f"{start}.weight"] for start in each if f"{start}.weight" in state_dict}
    biases = [state_dict.get(f"{start}.bias", weight.new_zeros(len(weight))) for start, weight in weights.items()]
    return (list(weights.values()), torch.cat(biases)) if weights else None


def collate_bags(samples: Sequence[Any]) -> tuple[Any, ...]:
    """Put bags of any lengths one behind the other: `collate_fn` of a `torch.utils.data.DataLoader`.

    Args:
        samples: Bags (n, D), or tuples whose first element is one; the others (labels, coordinates of one size) are
            stacked as `DataLoader` does.

    Returns:
        (bags, bag_lens, *others): (N, D), (B,) int64, and (B, ...) each.

    Raises:
        TypeError: A bag that is no tensor, or of another dtype than the first.
        ValueError: No sample; a bag that is not (n, D), or has another D than the first.

    Example:
        >>> bags, bag_lens, labels = collate_bags([(torch.zeros(3, 5), 1), (torch.zeros(2, 5), 0)])
        >>> bags.shape, bag_lens, labels
        (torch.Size([5, 5]), tensor([3, 2]), tensor([1, 0]))
    """
    if not samples:
        raise ValueError("samples: got none; expected at least one bag")
    each = [sample if isinstance(sample, tuple | list) else (sample,) for sample in samples]
    bags = [sample[0] for sample in each]
    for place, bag in enumerate(bags):
        check_dense(f"samples[{place}]", bag)
        if bag.ndim != 2 or bag.shape[1:] != bags[0].shape[1:]:
            wanted = bags[0].shape[-1] if bags[0].ndim == 2 else "features"
            raise ValueError(f"samples[{place}]: got a bag of shape {tuple(bag.shape)}; expected (rows, {wanted})")
        if bag.dtype != bags[0].dtype:
            raise TypeError(f"samples[{place}]: got a bag of dtype {bag.dtype}; expected {bags[0].dtype}, the first's")
    others = default_collate([tuple(sample[1:]) for sample in each]) if len(each[0]) > 1 else ()
    return torch.cat(bags), torch.tensor([len(bag) for bag in bags], device=bags[0].device), *others


class LengthBatchSampler(Sampler[list[int]]):
    """Batches of bags that together have no more than so many rows: `batch_sampler` of a `DataLoader`.

    A bag that has more is a batch of its own. How many batches there are depends on the order, and is not told before.

    Args:
        lengths: Rows of each bag.
        max_rows: Rows of a batch, at most.
        shuffle: Whether each round takes the bags in another order.
        generator: What draws the order; PyTorch's own if None.

    Raises:
        TypeError: A length or `max_rows` that is no whole number.
        ValueError: A length below 0, or `max_rows` below 1.

    Example:
        >>> list(LengthBatchSampler([3, 4, 2, 9, 1], max_rows=7, shuffle=False))
        [[0, 1], [2], [3], [4]]
    """

    def __init__(
        self,
        lengths: Sequence[int] | Tensor,
        max_rows: int,
        shuffle: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        given = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
        for place, length in enumerate(given):
            if isinstance(length, bool) or not isinstance(length, Integral):
                raise TypeError(f"lengths[{place}]: got {length!r}; expected a whole number of rows")
            if length < 0:
                raise ValueError(f"lengths[{place}]: got {length}; expected at least 0 rows")
        self.lengths = [int(length) for length in given]
        self.max_rows, self.shuffle, self.generator = whole("max_rows", max_rows), shuffle, generator

    def __iter__(self) -> Iterator[list[int]]:
        """The indices of each batch."""
        number = len(self.lengths)
        order = torch.randperm(number, generator=self.generator).tolist() if self.shuffle else range(number)
        batch: list[int] = []
        rows = 0
        for index in order:
            if batch and rows + self.lengths[index] > self.max_rows:
                yield batch
                batch, rows = [], 0
            batch.append(index)
            rows += self.lengths[index]
        if batch:
            yield batch


def _rows(bags: Tensor, bag_lens: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """All rows (N, D), and the bags' lengths (B,)."""
    if bags.ndim == 3:
        if bag_lens is not None:
            raise ValueError(f"bag_lens: got some with bags {tuple(bags.shape)}; expected a mask, or bags (N, D)")
        if mask is None:
            return bags.flatten(0, 1), torch.full(bags.shape[:1], bags.shape[1], device=bags.device)
        _check_beside("mask", mask, bags, (torch.bool,), bags.shape[:2])
        if mask.is_meta:
            raise ValueError("mask: got one on meta, without numbers; expected bag_lens there, and bags (N, D)")
        return bags[mask], mask.sum(1)
    if bags.ndim != 2:
        raise ValueError(f"bags: got shape {tuple(bags.shape)}; expected (N, D), or (B, N, D) and a mask")
    if mask is not None:
        raise ValueError(f"mask: got one with bags {tuple(bags.shape)}; expected bag_lens, or bags (B, N, D)")
    if bag_lens is None:
        return bags, torch.tensor([len(bags)], device=bags.device)
    _check_beside("bag_lens", bag_lens, bags, (torch.int64, torch.int32), None)
    if can_read_values(bag_lens):
        if bag_lens.numel() and int(bag_lens.min()) < 0:
            raise ValueError(f"bag_lens: got {int(bag_lens.min())}; expected at least 0 rows in each bag")
        if bag_lens.numel() and int(bag_lens.max()) > len(bags):  # before the sum, which may wrap
            raise ValueError(f"bag_lens: got {int(bag_lens.max())}; expected at most {len(bags)}, all rows of bags")
        if int(bag_lens.sum()) != len(bags):
            raise ValueError(f"bag_lens: got {int(bag_lens.sum())} rows in all; expected {len(bags)}, those of bags")
    return bags, bag_lens.to(torch.int64)


def _check_beside(
    name: str, tensor: Tensor, bags: Tensor, dtypes: tuple[torch.dtype, ...], shape: torch.Size | None
) -> None:
    check_dense(name, tensor)
    if tensor.dtype not in dtypes:
        raise TypeError(f"{name}: got dtype {tensor.dtype}; expected {' or '.join(map(str, dtypes))}")
    if tensor.device != bags.device:
        raise ValueError(f"{name}: got a tensor on {tensor.device}; expected {bags.device}, where bags are")
    if tensor.ndim != 1 if shape is None else tensor.shape != shape:
        wanted = "(B,), one length a bag" if shape is None else str(tuple(shape))
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}; expected {wanted}")


def _bag_of(lens: Tensor, number: int) -> Tensor:
    """The bag of each of so many rows; its shape does not depend on what `lens` holds, so that it compiles."""
    return searchsorted(lens.cumsum(0), torch.arange(number, device=lens.device), right=True)


def _firsts(lens: Tensor) -> Tensor:
    """The first row of each bag, (B,)."""
    return lens.cumsum(0) - lens


def _largest(weights: Tensor, bag: Tensor, lens: Tensor, mask: Tensor | None, number: int) -> Tensor:
    """The rows of each bag with the largest weights (N, K), as places in the bag: (B, K, number)."""
    place = torch.arange(bag.shape[0], device=bag.device) - _firsts(lens)[bag] if mask is None else mask.nonzero()[:, 1]
    rank, beyond = torch.arange(number, device=bag.device), bag.shape[0]
    rows = torch.where(rank < lens[:, None], _firsts(lens)[:, None] + rank, beyond)
    place = torch.cat([place, place.new_tensor([-1])])
    found = []
    for of_head in weights.unbind(1):
        order = of_head.argsort(descending=True, stable=True)
        order = order[bag[order].argsort(stable=True)]
        found.append(place[torch.cat([order, order.new_tensor([beyond])])[rows]])
    return torch.stack(found, 1)


def pool(scores: Tensor, rows: Tensor, lens: Tensor) -> Pooled:
    """The softmax of scores (N, K) over each bag, and the mean of its rows: mean (B, K, D), peak and total (B, K)."""
    bag = _bag_of(lens, rows.shape[0])  # a size of its own while `torch.export` traces; `len` would read a number
    if rows.is_meta or not is_eager():
        return _unblocked(scores, rows, bag, lens.shape[0])
    return Pooled(*_Pool.apply(scores, rows, bag, lens))  # type: ignore[no-untyped-call]


def _unblocked(scores: Tensor, rows: Tensor, bag: Tensor, bags: int) -> Pooled:
    """All rows at once, in PyTorch's own operations, which it differentiates and compiles."""
    shares, peak = _shares(scores, bag, bags)
    total = torch.zeros_like(peak).index_add(0, bag, shares)
    weighted = _weights(shares, total, bag)[..., None] * rows[:, None]
    return Pooled(weighted.new_zeros(bags, *weighted.shape[1:]).index_add(0, bag, weighted), peak, total)


def _shares(scores: Tensor, bag: Tensor, bags: int) -> tuple[Tensor, Tensor]:
    """e^(score − peak) of each row, and the peak of each bag, which has no gradient."""
    peak = scores.detach().new_full((bags, scores.shape[1]), -math.inf)
    peak = peak.scatter_reduce(0, bag[:, None].expand_as(scores), scores.detach(), "amax")
    return (scores - peak.masked_fill(peak == -math.inf, 0.0)[bag]).exp(), peak


def _weights(shares: Tensor, total: Tensor, bag: Tensor) -> Tensor:
    return shares / total.masked_fill(total == 0, 1.0)[bag]


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, rows: Tensor, bag: Tensor, lens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shares, peak = _shares(scores, bag, len(lens))
        total = torch.zeros_like(peak, dtype=torch.float64).index_add_(0, bag, shares.double()).to(shares.dtype)
        mean = _sums(_weights(shares, total, bag), rows, lens)
        ctx.save_for_backward(scores, rows, bag, mean, total)
        ctx.mark_non_differentiable(peak)
        return mean, peak, total

    @staticmethod
    def backward(ctx: Any, of_mean: Tensor, _: Tensor, of_total: Tensor) -> tuple[Tensor | None, ...]:
        scores, rows, bag, mean, total = ctx.saved_tensors
        needs_scores, needs_rows = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled() or many_at_once(of_mean, of_total):
            found = local_gradients(
                lambda *given: _unblocked(given[0], given[1], bag, len(total)), (scores, rows),
                (needs_scores, needs_rows), (of_mean, None, of_total),
            )  # fmt: skip
            return *found, None, None
        shares, _ = _shares(scores, bag, len(total))
        weights, drift = _weights(shares, total, bag), (mean * of_mean).sum(-1)
        of_scores = shares * of_total[bag]
        of_rows = torch.zeros_like(rows, memory_format=torch.contiguous_format) if needs_rows else None
        parts = list(blocks(rows, rows.shape[1]))
        edges = [(each.start, each.stop - 1) for each in parts]
        ends = bag[torch.tensor(edges, dtype=torch.int64, device=bag.device)].tolist()
        for block, (first, last) in zip(parts, ends, strict=True):
            part, own, weight = rows[block].to(weights.dtype), bag[block], weights[block]
            if first == last:  # of one bag, as most blocks are of bags that are large
                of_weights = part @ of_mean[first].T
                if of_rows is not None:
                    of_rows[block] = weight @ of_mean[first]
            else:
                of_weights = torch.stack([(part * of_head[own]).sum(-1) for of_head in of_mean.unbind(1)], 1)
                if of_rows is not None:
                    for head, of_head in enumerate(of_mean.unbind(1)):
                        of_rows[block] += of_head[own] * weight[:, head, None]
            of_scores[block] += weight * (of_weights - drift[own])
        idle = ~(of_mean.any(-1) | of_total.any(-1, keepdim=True)).any(-1)
        if bool(idle.any()):  # bags without a gradient have none to give, whatever they hold
            of_scores = of_scores.masked_fill(idle[bag, None], 0.0)
            of_rows = None if of_rows is None else of_rows.masked_fill(idle[bag, None], 0.0)
        return of_scores if needs_scores else None, of_rows, None, None


def _sums(weights: Tensor, rows: Tensor, lens: Tensor) -> Tensor:
    """Σ weight · row of each bag and head, (B, K, D): of pieces of a bag, and of these."""
    heads, size, number = weights.shape[1], rows.shape[1], len(rows)
    firsts, row = _firsts(lens), torch.arange(number, device=rows.device)
    pieces = torch.cat([firsts[firsts < number], row[::_PIECE]]).unique()
    sums = rows.new_empty(heads, len(pieces), size, dtype=weights.dtype)
    step = _PIECE * max(1, _AT_ONCE // (_PIECE * max(1, size)))
    bounds = [*searchsorted(pieces, row[::step].contiguous()).tolist(), len(pieces)]
    for start, (first, last) in zip(range(0, number, step), pairwise(bounds), strict=True):
        part = rows[start : start + step].to(weights.dtype)
        for head in range(heads):
            by = weights[start : start + step, head].contiguous()
            sums[head, first:last] = embedding_bag(
                row[: len(part)], part, pieces[first:last] - start, mode="sum", per_sample_weights=by
            )
    piece, of_bag = torch.arange(len(pieces), device=rows.device), searchsorted(pieces, firsts)
    return torch.stack([embedding_bag(piece, of_head, of_bag, mode="sum") for of_head in sums], 1)
