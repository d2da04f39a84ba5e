"""Every change × every kind of attention × heads × recordings × self or cross attention: 2,160 cells.

A cell has the output and the recorded weights of a map that is edited row by row in float64. A second table has the
gradients.
"""

import copy
import math
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dikkat
import kit
from dikkat import scores

BATCH, HEADS, QUERIES, KEYS, SIZE = 2, 3, 5, 7, 4
LENGTHS = torch.tensor([QUERIES, 3])
# Pairs that the first element and the second see: causal, and without padding.
SELF = torch.ones(QUERIES, QUERIES).tril().bool() & (torch.arange(QUERIES) < LENGTHS[:, None, None])
CROSS = (torch.arange(KEYS) < torch.tensor([KEYS, 4])[:, None, None]).expand(BATCH, QUERIES, KEYS)


def close(got: Tensor, expected: Tensor, atol: float = 2e-6) -> None:
    torch.testing.assert_close(got, expected, rtol=max(1e-5, atol if atol > 1e-3 else 0), atol=atol)


def hidden(scores_of_pairs: Tensor, visible: Tensor) -> Tensor:
    return scores_of_pairs.masked_fill(~visible[:, None], torch.finfo(scores_of_pairs.dtype).min)


# --- kinds of attention: each takes queries, keys and values (B, H, n, d) and the visible pairs (B, n, m)


def by_attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return dikkat.attend(q, k, v, score=scores.ScaledDot(), mask=visible[:, None])


def by_fused(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible[:, None])


def by_bias(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=hidden(torch.zeros(BATCH, 1, *visible.shape[1:]), visible))


def by_softmax(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return hidden(q @ k.mT / math.sqrt(SIZE), visible).softmax(-1) @ v


def by_lowered_softmax(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(SIZE)).masked_fill(~visible[:, None], -1e9).softmax(-1) @ v


def by_lowered_scores(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    bias = torch.where(visible, 0.0, -1e4)[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def by_half_softmax(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Softmax and dropout as in "eager" models in half precision, whose weights are rounded to it."""
    weights = F.softmax(hidden(q @ k.mT / math.sqrt(SIZE), visible), -1, dtype=torch.float32).half()
    return (F.dropout(weights, 0.5, training=False) @ v.half()).to(v.dtype)


def by_dropped_softmax(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    weights = F.softmax(hidden(q @ k.mT / math.sqrt(SIZE), visible), -1)
    return torch.einsum("bhnm,bhmd->bhnd", F.dropout(weights, 0.5, training=False), v)


def by_joined_heads(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    logits = hidden(q @ k.mT / math.sqrt(SIZE), visible)
    return torch.bmm(logits.softmax(-1).flatten(0, 1), v.flatten(0, 1)).unflatten(0, (BATCH, HEADS))


def by_sum(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    weights = hidden(q @ k.mT / math.sqrt(SIZE), visible).softmax(-1)
    return (weights[..., None] * v[:, :, None]).sum(-2)


KINDS: dict[str, Callable[..., Tensor]] = {
    "attend": by_attend, "fused": by_fused, "fused, bias": by_bias, "softmax": by_softmax,
    "softmax, -1e9": by_lowered_softmax, "fused, -1e4": by_lowered_scores, "softmax, half": by_half_softmax,
    "softmax, dropout, einsum": by_dropped_softmax, "softmax, joined heads": by_joined_heads, "softmax, sum": by_sum,
}  # fmt: skip


class Layer(nn.Module):
    """Attention of a kind, with projections so that gradients reach queries, keys and values."""

    def __init__(self, attend: Callable[..., Tensor], keys: int) -> None:
        super().__init__()
        self.attend, self.keys = attend, keys
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(SIZE * HEADS, SIZE * HEADS) for _ in range(3))
        with torch.no_grad():
            for module in (self.query, self.key):
                module.weight.mul_(3)  # so that weights differ

    def heads(self, x: Tensor, memory: Tensor) -> tuple[Tensor, ...]:
        parts = self.query(x), self.key(memory), self.value(memory)
        return tuple(part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in parts)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        visible = SELF if self.keys == QUERIES else CROSS
        return self.attend(*self.heads(x, memory), visible).transpose(1, 2).flatten(-2)


# --- changes: the arguments, and what they do to one row of weights in float64


def edges(*pairs: tuple[int, int]) -> Callable[..., Tensor]:
    def edit(row: Tensor, query: int, *_: Any) -> Tensor:
        left = torch.stack([w * ((query, key) not in pairs) for key, w in enumerate(row)])
        return left / left.sum() if left.sum() > 0 else left

    return edit


def masses(*parts: tuple[slice, float]) -> Callable[..., Tensor]:
    def edit(row: Tensor, query: int, visible: Tensor, *_: Any) -> Tensor:
        new, rest, left = torch.zeros_like(row), torch.ones(len(row)).bool(), 1.0
        for span, mass in parts:
            if not visible[span].any():
                return row
            new[span] = mass * row[span] / row[span].sum()
            rest[span], left = False, left - mass
        if left > 1e-9:
            if not visible[rest].any():
                return row
            new[rest] = left * row[rest] / row[rest].sum()
        return new

    return edit


def scaled(span: slice, factor: float) -> Callable[..., Tensor]:
    def edit(row: Tensor, *_: Any) -> Tensor:
        factors = torch.ones_like(row)
        factors[span] = factor
        new = row * factors
        return new / new.sum() if new.sum() > 0 else new

    return edit


def given(row: Tensor, query: int, visible: Tensor, table: Tensor) -> Tensor:
    return table[query]


def table(keys: int) -> Tensor:
    """Weights that every query may have: 1 for its first keys."""
    weights = torch.zeros(QUERIES, keys)
    weights[:, 0], weights[1:, 0], weights[1:, 1] = 1, 0.25, 0.75
    return weights


MASK = torch.zeros(QUERIES, KEYS).bool()
MASK[2, 1] = MASK[4, :2] = MASK[1, 0] = True

CHANGES: dict[str, tuple[dict[str, Any], Callable[..., Tensor] | None]] = {
    "cut": ({"cut": True}, lambda row, *_: row * 0),
    "cut, mean": ({"cut": True, "mean": True}, None),
    "edge": ({"edges": (2, 1)}, edges((2, 1))),
    "edges": ({"edges": [(slice(1, 4), 0), (4, 2)]}, edges((1, 0), (2, 0), (3, 0), (4, 2))),
    "edges, mask": ({"edges": MASK}, edges(*map(tuple, MASK.nonzero().tolist()))),
    "mass": ({"spans": {"a": slice(1, 3)}, "mass": 0.4}, masses((slice(1, 3), 0.4))),
    "mass 0": ({"spans": {"a": [0]}, "mass": 0}, masses((slice(0, 1), 0.0))),
    "mass 1": ({"spans": {"a": slice(0, 2)}, "mass": 1}, masses((slice(0, 2), 1.0))),
    "masses": (
        {"spans": {"a": slice(0, 1), "b": slice(2, 3)}, "mass": {"a": 0.2, "b": 0.5}},
        masses((slice(0, 1), 0.2), (slice(2, 3), 0.5)),
    ),
    "scale": ({"spans": {"a": slice(1, 3)}, "scale": {"a": 3.0}}, scaled(slice(1, 3), 3.0)),
    "scale 0": ({"spans": {"a": slice(0, 2)}, "scale": {"a": 0}}, scaled(slice(0, 2), 0.0)),
    "weights": ({"weights": None}, given),
}
HEADS_OF = {"all heads": None, "one head": 1, "two heads": [-1, 0]}
RECORDINGS = ("none", "outside", "inside")


def edited_map(weights: Tensor, visible: Tensor, edit: Callable[..., Tensor] | None, heads: Any) -> Tensor:
    """Edit a map (B, H, n, m) row by row; `edit` None: replace rows by the mean over the text."""
    numbers = (
        range(HEADS) if heads is None else {head % HEADS for head in ([heads] if isinstance(heads, int) else heads)}
    )
    rows, keys = [], weights.shape[-1]
    for b, h in product(range(BATCH), range(HEADS)):
        own = weights[b, h]
        if h not in numbers:
            rows.append(own)
        elif edit is None:
            live = visible[b].any(-1) & (visible[b].any(0) if keys == QUERIES else True)
            rows.append(own[live].mean(0).expand(QUERIES, -1))
        else:
            rows.append(torch.stack([edit(own[i], i, visible[b, i], table(keys).double()) for i in range(QUERIES)]))
    return torch.stack(rows).unflatten(0, (BATCH, HEADS))


def expected(layer: Layer, x: Tensor, memory: Tensor, edit: Any, heads: Any) -> tuple[Tensor, Tensor]:
    """Return the edited map and the output of a layer in float64."""
    visible = SELF if layer.keys == QUERIES else CROSS
    q, k, v = layer.heads(x, memory)
    logits = (q @ k.mT / math.sqrt(SIZE)).masked_fill(~visible[:, None], -math.inf)
    weights = edited_map(logits.softmax(-1), visible, edit, heads)
    return weights, (weights @ v).transpose(1, 2).flatten(-2)


def inputs(keys: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(BATCH, QUERIES, SIZE * HEADS)
    return x, x if keys == QUERIES else torch.randn(BATCH, KEYS, SIZE * HEADS)


def arguments(change: str, keys: int) -> dict[str, Any]:
    requested = dict(CHANGES[change][0])
    if change == "weights":
        requested["weights"] = table(keys)
    if change == "edges, mask":
        requested["edges"] = MASK[:, :keys]
    return requested


@cache
def _expected(change: str, heads: str, keys: int) -> tuple[Tensor, Tensor]:
    """Return what `expected` does for the layer and inputs of `test_changes`."""
    layer, (x, memory) = Layer(by_attend, keys).double(), inputs(keys)
    with torch.no_grad():
        return expected(layer, x.double(), memory.double(), CHANGES[change][1], HEADS_OF[heads])


@kit.each("keys", [QUERIES, KEYS])
@kit.each("recording", RECORDINGS)
@kit.each("heads", HEADS_OF)
@kit.each("change", CHANGES)
@kit.each("kind", KINDS)
def test_changes(kind: str, change: str, heads: str, recording: str, keys: int) -> None:
    layer, (x, memory), chosen = Layer(KINDS[kind], keys), inputs(keys), HEADS_OF[heads]
    before = layer(x, memory)
    changed = dikkat.change(layer, heads=chosen, **arguments(change, keys))
    recorded = dikkat.record(layer, weights=True)
    order = {"none": [changed], "outside": [recorded, changed], "inside": [changed, recorded]}[recording]
    twice, trace = [], None
    with order[0] as first:
        if len(order) > 1:
            with order[1] as second:
                trace = first if recording == "outside" else second
                twice = [layer(x, memory), layer(x, memory)]
        else:
            twice = [layer(x, memory), layer(x, memory)]
    weights, output = _expected(change, heads, keys)
    live = (SELF if keys == QUERIES else CROSS).any(-1)
    atol = 5e-3 if "half" in kind else 2e-6
    for result in twice:
        close(result[live], output[live].float(), atol)
    if trace is not None and change != "cut, mean":
        close(trace["", -1].weights.transpose(1, 2)[live], weights.transpose(1, 2)[live].float(), atol)
    assert torch.equal(layer(x, memory), before)


@kit.each("change", CHANGES)
@kit.each("kind", KINDS)
def test_gradients(kind: str, change: str) -> None:
    layer, x = Layer(KINDS[kind], QUERIES), inputs(QUERIES)[0].requires_grad_()
    live = SELF.any(-1)
    factors = torch.randn(BATCH, QUERIES, SIZE * HEADS)
    with dikkat.change(layer, heads=[0, 1], **arguments(change, QUERIES)):
        gradients = torch.autograd.grad((layer(x, x) * factors)[live].sum(), [x, *layer.parameters()])
    exact, wide = copy.deepcopy(layer).double(), x.detach().double().requires_grad_()
    output = expected(exact, wide, wide, CHANGES[change][1], [0, 1])[1]
    for got, true in zip(
        gradients, torch.autograd.grad((output * factors)[live].sum(), [wide, *exact.parameters()]), strict=True
    ):
        close(got, true.float(), 2e-2 if "half" in kind else 1e-5)
