"""Attention pooling of bags: sets of rows with one label each, such as the patches of a slide, without padding."""

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
from dikkat._engine.addresses import are_batched, check_dense, searchsorted
from dikkat._engine.gating import blocks
from dikkat._engine.local_gradients import local_gradients
from dikkat._engine.pytorch_state import can_read_values, is_eager
from dikkat.scores import check_size, gated_scores
from dikkat.state import Pooled, State, log_sum_exp, merge

__all__ = ["AttentionPooling", "LengthBatchSampler", "PooledBags", "collate_bags"]

# Rows in one partial sum: rounding errors grow with the square root of this number instead of a bag's size.
_PIECE = 1024
# Numbers read at once; rows in half precision are copied to float32 in pieces of this size.
_AT_ONCE = 2**24


class PooledBags(NamedTuple):
    """The pooled bags with the weights and scores of their rows. With several heads, K follows the rows or bags.

    Attributes:
        output: The pooled bags, (B, D) or (B, K, D).
        weights: The weight of each row in its bag, (N,) or (N, K). With a mask, (B, N) or (B, N, K), 0 for masked rows.
        scores: The scores before the softmax, in the shape of `weights`; −∞ for masked and dropped rows.
        top: The indices in each bag of the rows with the largest weights, (B, top_k) or (B, K, top_k), largest first,
            −1 beyond the last row; None unless requested.
    """

    output: Tensor
    weights: Tensor
    scores: Tensor
    top: Tensor | None = None


class AttentionPooling(nn.Module):
    r"""The weighted mean of a bag's rows, by attention with learned queries.

    $$ z = \sum_i a_i h_i, \qquad a = \mathrm{softmax}_i\, w^\top (\tanh(V h_i) \odot \mathrm{sigmoid}(U h_i)) $$

    A bag is any number of rows. A batch of bags is the concatenation of their rows, with the bags' lengths. Scores are
    computed in blocks of rows, also in the backward, so that the memory is that of the rows.

    Args:
        features: D, features of a row.
        hidden: Features of V and U.
        heads: K, the number of queries: each has a row of w and its own output.
        gated: Whether to use the second factor, with U; without it a score is $w^\top \tanh(V h)$.
        dropout: Probability of leaving a row out of its bag, in training mode only.

    Raises:
        TypeError: A size is not a whole number, or `dropout` is not a number.
        ValueError: A size is below 1, or `dropout` is outside 0 to 1.

    Source: Ilse, Tomczak and Welling 2018, *Attention-based Deep Multiple Instance Learning*, section 2.4.

    Example:
        >>> pool = AttentionPooling(features=5, hidden=7)
        >>> pool(torch.randn(11, 5), bag_lens=torch.tensor([3, 0, 8])).shape
        torch.Size([3, 5])
    """

    def __init__(self, features: int, hidden: int, heads: int = 1, gated: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        features, hidden = check_size("features", features), check_size("hidden", hidden)
        self.heads = check_size("heads", heads)
        self.V = nn.Linear(features, hidden)
        self.U = nn.Linear(features, hidden) if gated else None
        self.w = nn.Linear(hidden, heads)
        self.dropout = probability(dropout)

    def forward(
        self, bags: Tensor, bag_lens: Tensor | None = None, mask: Tensor | None = None, *, return_weights: bool = False,
        top_k: int | None = None,
    ) -> Tensor | PooledBags:  # fmt: skip
        """Pool each bag.

        Args:
            bags: (N, D), the concatenated rows of all bags; or (B, N, D), floating point.
            bag_lens: (B,) int32 or int64, the number of rows in each bag, with sum N; 0 is allowed. Without it, bags
                (N, D) are one bag.
            mask: (B, N) bool, for bags (B, N, D): True for rows of the bag. Other rows have no effect, even NaN.
            return_weights: Whether to also return the weights and the scores.
            top_k: The number of each bag's rows with the largest weights to return. It implies `return_weights`.

        Returns:
            (B, D), or (B, K, D) for several heads. An empty bag is 0. On request, `PooledBags`.

        Raises:
            TypeError: An argument has the wrong type or dtype.
            ValueError: Shapes, lengths or devices do not fit.
        """
        check_features("bags", bags)
        top_k = None if top_k is None else check_size("top_k", top_k)
        rows, lens = _rows(bags, bag_lens, mask)
        pooled, scores = self._pool(rows, lens)
        output = self._drop_single_head(pooled.mean.to(bags.dtype), 1)
        if not return_weights and top_k is None:
            return output
        bag = _bag_of(lens, rows.shape[0])
        weights = _weights(_shares(scores, bag, lens.shape[0])[0], pooled.total, bag)
        top = None if top_k is None else self._drop_single_head(_largest(weights.detach(), bag, lens, mask, top_k), 1)
        return PooledBags(
            output, self._like_input(weights, bags, mask, 0.0), self._like_input(scores, bags, mask, -math.inf), top
        )

    def state(self, chunk: Tensor) -> State:
        """Return the state over some rows of one bag, which `dikkat.merge` combines with states over other rows.

        Args:
            chunk: (n, D).

        Returns:
            A `dikkat.State` with one row for each head: mean (K, D), lse (K,).

        Example:
            >>> pool, bag = dikkat.AttentionPooling(features=5, hidden=7), torch.randn(11, 5)
            >>> whole = dikkat.merge(pool.state(bag[:3]), pool.state(bag[3:]))
            >>> torch.allclose(whole.mean, pool(bag), atol=1e-6)
            True
        """
        return self._state(chunk)

    def in_chunks(self, chunks: Iterable[Tensor | Callable[[], Tensor]]) -> Tensor:
        """Pool one bag in chunks, with gradients, in the memory of one chunk.

        The backward computes each chunk's hidden features again. It calls a chunk's function again instead of keeping
        the chunk in memory.

        Args:
            chunks: Rows (n, D), or functions that return equal rows on every call.

        Returns:
            (1, D), or (1, K, D) for several heads, in float32 or wider.

        Raises:
            ValueError: There are no chunks.

        Example:
            >>> pool, bag = AttentionPooling(features=5, hidden=7), torch.randn(11, 5)
            >>> torch.allclose(pool.in_chunks(bag.split(4)), pool(bag), atol=1e-6)
            True
        """

        def compute_state(chunk: Tensor | Callable[[], Tensor], known: list[Tensor]) -> State:
            return self._state(chunk if isinstance(chunk, Tensor) else chunk(), known)

        joined: State | None = None
        for chunk in chunks:
            state: State = checkpoint(compute_state, chunk, [], use_reentrant=False)
            joined = state if joined is None else merge(joined, state)
        if joined is None:
            raise ValueError("chunks: got no chunk; expected at least one, which may have no rows")
        return self._drop_single_head(joined.mean[None], 1)

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, Tensor], dropout: float = 0.0) -> Self:
        """Make a layer from the attention parameters of CLAM, AttentionDeepMIL, TRIDENT, torchmil or this class.

        The parameters are found by their names, at any depth of the model. The names do not distinguish torchmil's
        "relu", "gelu" and "tanh", so "tanh" is assumed. The networks of TRIDENT's heads become one wider network.

        Args:
            state_dict: The state dict of a whole model, as `torch.load(path, weights_only=True)` returns it.
            dropout: As in the constructor.

        Raises:
            ValueError: The state dict contains no known names.

        Example:
            >>> clam = {f"attention_net.3.attention_{name}.{part}": torch.zeros(size) for name, part, size in (
            ...     ("a.0", "weight", (256, 512)), ("a.0", "bias", (256,)), ("b.0", "weight", (256, 512)),
            ...     ("b.0", "bias", (256,)), ("c", "weight", (1, 256)), ("c", "bias", (1,)))}
            >>> AttentionPooling.from_state_dict(clam).V
            Linear(in_features=512, out_features=256, bias=True)
        """
        parameters = _find_parameters(state_dict)
        (hidden, features), heads = parameters["V.weight"].shape, len(parameters["w.weight"])
        layer = cls(features, hidden, heads, "U.weight" in parameters, dropout).to(parameters["V.weight"].dtype)
        layer.load_state_dict(parameters)
        return layer

    def extra_repr(self) -> str:
        """Return the settings for `print(layer)`."""
        return f"heads={self.heads}, dropout={self.dropout}"

    def _state(self, chunk: Tensor, known: list[Tensor] | None = None) -> State:
        check_features("chunk", chunk)
        if chunk.ndim != 2:
            raise ValueError(f"chunk: got shape {tuple(chunk.shape)}; expected (rows, features), rows of one bag")
        pooled, _ = self._pool(chunk, torch.tensor([len(chunk)], device=chunk.device), known)
        return State(pooled.mean[0], *log_sum_exp(pooled.peak[0], pooled.total[0]))

    def _pool(self, rows: Tensor, lens: Tensor, known: list[Tensor] | None = None) -> tuple[Pooled, Tensor]:
        """Return the pooled bags and the scores (N, K); `known` as in `gating.gated`."""
        scores, rows = gated_scores(rows, self.V, self.U, self.w, "bags", known)
        if self.training and self.dropout:
            scores = scores.masked_fill(torch.rand(rows.shape[0], 1, device=rows.device) < self.dropout, -math.inf)
        return pool(scores, rows, lens), scores

    def _like_input(self, by_row: Tensor, bags: Tensor, mask: Tensor | None, empty: float) -> Tensor:
        if mask is not None:
            padded = by_row.new_full((*mask.shape, self.heads), empty)
            by_row = padded.masked_scatter(mask[..., None], by_row)
        return self._drop_single_head(by_row.reshape(*bags.shape[:-1], self.heads), -1)

    def _drop_single_head(self, tensor: Tensor, dim: int) -> Tensor:
        return tensor.squeeze(dim) if self.heads == 1 else tensor


# The names of V, U and w in this layer, CLAM, AttentionDeepMIL, torchmil and, with a number for each head, TRIDENT.
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


def _find_parameters(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the first parameters that match `_NAMES` and fit, under the names of this layer."""
    for names in _NAMES:
        suffix = f".{names[0].format(0)}.weight"
        for prefix in [key.removesuffix(suffix) for key in (f".{key}" for key in state_dict) if key.endswith(suffix)]:
            V, U, w = (_stacked(state_dict, f"{prefix}.{name}"[1:]) for name in names)
            if V and w and sum(weight.shape[1] for weight in w[0]) == sum(map(len, V[0])):
                layers = {"V": (torch.cat(V[0]), V[1]), "w": (torch.block_diag(*w[0]), w[1])}
                layers |= {"U": (torch.cat(U[0]), U[1])} if U else {}
                kinds = (("weight", 0), ("bias", 1))
                return {f"{name}.{kind}": tensors[i] for name, tensors in layers.items() for kind, i in kinds}
    known = "; ".join(", ".join(filter(None, names)) for names in _NAMES)
    got = ", ".join([*state_dict][:6]) + ", …" * (len(state_dict) > 6)
    raise ValueError(f"state_dict: got {got or 'no names'}; expected the names of one set: {known}")


def _stacked(state_dict: Mapping[str, Tensor], name: str) -> tuple[list[Tensor], Tensor] | None:
    """Return a layer's weights (one for each head if the name has {}) and concatenated biases; None if missing."""
    names = [name.format(head) for head in range(len(state_dict))] if "{}" in name else [name]
    weights = {start: state_dict[f"{start}.weight"] for start in names if f"{start}.weight" in state_dict}
    biases = [state_dict.get(f"{start}.bias", weight.new_zeros(len(weight))) for start, weight in weights.items()]
    return (list(weights.values()), torch.cat(biases)) if weights else None


def collate_bags(samples: Sequence[Any]) -> tuple[Any, ...]:
    """Concatenate bags of any lengths: `collate_fn` of a `torch.utils.data.DataLoader`.

    Args:
        samples: Bags (n, D), or tuples whose first element is a bag; other elements (labels, coordinates of one size)
            are stacked as `DataLoader` does.

    Returns:
        (bags, bag_lens, *others): (N, D), (B,) int64, and (B, ...) for each other element.

    Raises:
        TypeError: A bag is not a tensor, or its dtype differs from the first bag's.
        ValueError: There are no samples, or a bag is not (n, D) with the D of the first bag.

    Example:
        >>> bags, bag_lens, labels = collate_bags([(torch.zeros(3, 5), 1), (torch.zeros(2, 5), 0)])
        >>> bags.shape, bag_lens, labels
        (torch.Size([5, 5]), tensor([3, 2]), tensor([1, 0]))
    """
    if not samples:
        raise ValueError("samples: got none; expected at least one bag")
    tuples = [sample if isinstance(sample, tuple | list) else (sample,) for sample in samples]
    bags = [sample[0] for sample in tuples]
    for index, bag in enumerate(bags):
        check_dense(f"samples[{index}]", bag)
        if bag.ndim != 2 or bag.shape[1:] != bags[0].shape[1:]:
            features = bags[0].shape[-1] if bags[0].ndim == 2 else "features"
            raise ValueError(f"samples[{index}]: got a bag of shape {tuple(bag.shape)}; expected (rows, {features})")
        if bag.dtype != bags[0].dtype:
            raise TypeError(f"samples[{index}]: got a bag of dtype {bag.dtype}; expected {bags[0].dtype}, as the first")
    extras = default_collate([tuple(sample[1:]) for sample in tuples]) if len(tuples[0]) > 1 else ()
    return torch.cat(bags), torch.tensor([len(bag) for bag in bags], device=bags[0].device), *extras


class LengthBatchSampler(Sampler[list[int]]):
    """Batches of bags with at most `max_rows` rows in total: `batch_sampler` of a `DataLoader`.

    A larger bag is a batch of its own. The number of batches depends on the order, so the sampler has no length.

    Args:
        lengths: The number of rows in each bag.
        max_rows: The maximum number of rows in a batch.
        shuffle: Whether to shuffle the bags in each epoch.
        generator: The random generator for the order; PyTorch's default if None.

    Raises:
        TypeError: A length or `max_rows` is not a whole number.
        ValueError: A length is below 0, or `max_rows` is below 1.

    Example:
        >>> list(LengthBatchSampler([3, 4, 2, 9, 1], max_rows=7, shuffle=False))
        [[0, 1], [2], [3], [4]]
    """

    def __init__(
        self, lengths: Sequence[int] | Tensor, max_rows: int, shuffle: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:  # fmt: skip
        numbers = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
        for index, length in enumerate(numbers):
            if isinstance(length, bool) or not isinstance(length, Integral):
                raise TypeError(f"lengths[{index}]: got {length!r}; expected a whole number of rows")
            if length < 0:
                raise ValueError(f"lengths[{index}]: got {length}; expected at least 0 rows")
        self.lengths = [int(length) for length in numbers]
        self.max_rows, self.shuffle, self.generator = check_size("max_rows", max_rows), shuffle, generator

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of each batch."""
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
    """Return all rows (N, D), and the bags' lengths (B,)."""
    if bags.ndim == 3:
        if bag_lens is not None:
            raise ValueError(f"bag_lens: got lengths with bags {tuple(bags.shape)}; expected a mask, or bags (N, D)")
        if mask is None:
            return bags.flatten(0, 1), torch.full(bags.shape[:1], bags.shape[1], device=bags.device)
        _check_lens_or_mask("mask", mask, bags, (torch.bool,), bags.shape[:2])
        if mask.is_meta:
            raise ValueError("mask: got a tensor on meta, without values; expected bag_lens, and bags (N, D)")
        return bags[mask], mask.sum(1)
    if bags.ndim != 2:
        raise ValueError(f"bags: got shape {tuple(bags.shape)}; expected (N, D), or (B, N, D) and a mask")
    if mask is not None:
        raise ValueError(f"mask: got a mask with bags {tuple(bags.shape)}; expected bag_lens, or bags (B, N, D)")
    if bag_lens is None:
        return bags, torch.tensor([len(bags)], device=bags.device)
    _check_lens_or_mask("bag_lens", bag_lens, bags, (torch.int64, torch.int32), None)
    if can_read_values(bag_lens):
        if bag_lens.numel() and int(bag_lens.min()) < 0:
            raise ValueError(f"bag_lens: got {int(bag_lens.min())}; expected at least 0 rows in each bag")
        if bag_lens.numel() and int(bag_lens.max()) > len(bags):  # before the sum, which may wrap
            raise ValueError(f"bag_lens: got {int(bag_lens.max())}; expected at most {len(bags)}, the rows of bags")
        if int(bag_lens.sum()) != len(bags):
            raise ValueError(f"bag_lens: got {int(bag_lens.sum())} rows in total; expected {len(bags)}, as in bags")
    return bags, bag_lens.to(torch.int64)


def _check_lens_or_mask(
    name: str, tensor: Tensor, bags: Tensor, dtypes: tuple[torch.dtype, ...], shape: torch.Size | None
) -> None:
    check_dense(name, tensor)
    if tensor.dtype not in dtypes:
        raise TypeError(f"{name}: got dtype {tensor.dtype}; expected {' or '.join(map(str, dtypes))}")
    if tensor.device != bags.device:
        raise ValueError(f"{name}: got a tensor on {tensor.device}; expected {bags.device}, the device of bags")
    if tensor.ndim != 1 if shape is None else tensor.shape != shape:
        expected = "(B,), one length for each bag" if shape is None else str(tuple(shape))
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}; expected {expected}")


def _bag_of(lens: Tensor, number: int) -> Tensor:
    """Return the bag of each row, (number,). The shape does not depend on the values of `lens`, so this compiles."""
    return searchsorted(lens.cumsum(0), torch.arange(number, device=lens.device), right=True)


def _firsts(lens: Tensor) -> Tensor:
    return lens.cumsum(0) - lens


def _largest(weights: Tensor, bag: Tensor, lens: Tensor, mask: Tensor | None, number: int) -> Tensor:
    """Return for each bag and column of `weights` (N, K) the rows with the largest weights, as indices in the bag.

    The result is (B, K, number), −1 for a bag with fewer rows.
    """
    index = torch.arange(bag.shape[0], device=bag.device) - _firsts(lens)[bag] if mask is None else mask.nonzero()[:, 1]
    rank, beyond = torch.arange(number, device=bag.device), bag.shape[0]
    rows = torch.where(rank < lens[:, None], _firsts(lens)[:, None] + rank, beyond)
    index = torch.cat([index, index.new_tensor([-1])])
    top = []
    for head_weights in weights.unbind(1):
        order = head_weights.argsort(descending=True, stable=True)
        order = order[bag[order].argsort(stable=True)]
        top.append(index[torch.cat([order, order.new_tensor([beyond])])[rows]])
    return torch.stack(top, 1)


def pool(scores: Tensor, rows: Tensor, lens: Tensor) -> Pooled:
    """Return the softmax-weighted mean of each bag's rows (B, K, D), with peak and total (B, K); scores are (N, K)."""
    bag = _bag_of(lens, rows.shape[0])  # `torch.export` keeps this size symbolic; `len` would not
    if rows.is_meta or not is_eager():
        return _unblocked(scores, rows, bag, lens.shape[0])
    return Pooled(*_Pool.apply(scores, rows, bag, lens))  # type: ignore[no-untyped-call]


def _unblocked(scores: Tensor, rows: Tensor, bag: Tensor, bags: int) -> Pooled:
    shares, peak = _shares(scores, bag, bags)
    total = torch.zeros_like(peak).index_add(0, bag, shares)
    weighted = _weights(shares, total, bag)[..., None] * rows[:, None]
    return Pooled(weighted.new_zeros(bags, *weighted.shape[1:]).index_add(0, bag, weighted), peak, total)


def _shares(scores: Tensor, bag: Tensor, bags: int) -> tuple[Tensor, Tensor]:
    """Return e^(score − peak) of each row, and the peak of each bag, which has no gradient."""
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
    def backward(ctx: Any, mean_grad: Tensor, _: Tensor, total_grad: Tensor) -> tuple[Tensor | None, ...]:
        scores, rows, bag, mean, total = ctx.saved_tensors
        needs_scores, needs_rows = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled() or are_batched(mean_grad, total_grad):
            grads = local_gradients(
                lambda *operands: _unblocked(operands[0], operands[1], bag, len(total)), (scores, rows),
                (needs_scores, needs_rows), (mean_grad, None, total_grad),
            )  # fmt: skip
            return *grads, None, None
        shares, _ = _shares(scores, bag, len(total))
        weights, drift = _weights(shares, total, bag), (mean * mean_grad).sum(-1)
        scores_grad = shares * total_grad[bag]
        rows_grad = torch.zeros_like(rows, memory_format=torch.contiguous_format) if needs_rows else None
        row_blocks = list(blocks(rows, rows.shape[1]))
        edges = [(block.start, block.stop - 1) for block in row_blocks]
        ends = bag[torch.tensor(edges, dtype=torch.int64, device=bag.device)].tolist()
        for block, (first, last) in zip(row_blocks, ends, strict=True):
            x, bags, weight = rows[block].to(weights.dtype), bag[block], weights[block]
            if first == last:  # one bag, as in most blocks of large bags
                weights_grad = x @ mean_grad[first].T
                if rows_grad is not None:
                    rows_grad[block] = weight @ mean_grad[first]
            else:
                weights_grad = torch.stack([(x * head_grad[bags]).sum(-1) for head_grad in mean_grad.unbind(1)], 1)
                if rows_grad is not None:
                    for head, head_grad in enumerate(mean_grad.unbind(1)):
                        rows_grad[block] += head_grad[bags] * weight[:, head, None]
            scores_grad[block] += weight * (weights_grad - drift[bags])
        idle = ~(mean_grad.any(-1) | total_grad.any(-1, keepdim=True)).any(-1)
        if bool(idle.any()):  # bags without an incoming gradient pass none on, even if their rows are NaN
            scores_grad = scores_grad.masked_fill(idle[bag, None], 0.0)
            rows_grad = None if rows_grad is None else rows_grad.masked_fill(idle[bag, None], 0.0)
        return scores_grad if needs_scores else None, rows_grad, None, None


def _sums(weights: Tensor, rows: Tensor, lens: Tensor) -> Tensor:
    """Return Σ weight · row of each bag and head, (B, K, D), summed over pieces of bags, then over the pieces."""
    heads, size, number = weights.shape[1], rows.shape[1], len(rows)
    firsts, row = _firsts(lens), torch.arange(number, device=rows.device)
    pieces = torch.cat([firsts[firsts < number], row[::_PIECE]]).unique()
    sums = rows.new_empty(heads, len(pieces), size, dtype=weights.dtype)
    step = _PIECE * max(1, _AT_ONCE // (_PIECE * max(1, size)))
    bounds = [*searchsorted(pieces, row[::step].contiguous()).tolist(), len(pieces)]
    for start, (first, last) in zip(range(0, number, step), pairwise(bounds), strict=True):
        block = rows[start : start + step].to(weights.dtype)
        for head in range(heads):
            block_weights = weights[start : start + step, head].contiguous()
            sums[head, first:last] = embedding_bag(
                row[: len(block)], block, pieces[first:last] - start, mode="sum", per_sample_weights=block_weights
            )
    piece, bag_pieces = torch.arange(len(pieces), device=rows.device), searchsorted(pieces, firsts)
    return torch.stack([embedding_bag(piece, head_sums, bag_pieces, mode="sum") for head_sums in sums], 1)
