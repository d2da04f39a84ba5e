"""Every change × every kind of attention × heads × recordings × self or cross attention: 2,160 cells.

A cell has the output and the recorded weights of a map that is edited row by row in float64. Other tables have
gradients, soft caps, sinks, shared keys, dropout, half precision, calls without heads, two changes, transforms.
"""

import copy
import math
import threading
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
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
    bias = hidden(q.new_zeros(BATCH, 1, *visible.shape[1:]), visible)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def by_softmax(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return hidden(q @ k.mT / math.sqrt(SIZE), visible).softmax(-1) @ v


def by_lowered_softmax(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(SIZE)).masked_fill(~visible[:, None], -1e9).softmax(-1) @ v


def by_lowered_scores(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    bias = torch.where(visible, 0.0, -1e4)[:, None].to(q.dtype)
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
    "edges, open": (
        {"edges": [(slice(None), 1), (slice(1, None, 2), slice(3, None))]},
        edges(*product(range(QUERIES), [1]), *product(range(1, QUERIES, 2), range(3, 2 * KEYS))),
    ),
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
    rows, keys = [], visible.shape[-1]
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


@kit.each("call", ["grad", "backward"])
@kit.each("change", CHANGES)
@kit.each("kind", KINDS)
def test_gradients(kind: str, change: str, call: str) -> None:
    layer, x = Layer(KINDS[kind], QUERIES), inputs(QUERIES)[0].requires_grad_()
    live = SELF.any(-1)
    factors = torch.randn(BATCH, QUERIES, SIZE * HEADS)
    with dikkat.change(layer, heads=[0, 1], **arguments(change, QUERIES)):
        loss, leaves = (layer(x, x) * factors)[live].sum(), [x, *layer.parameters()]
        if call == "grad":
            gradients = torch.autograd.grad(loss, leaves)
        else:
            loss.backward()
            gradients = [leaf.grad for leaf in leaves]
    exact, wide = Layer(KINDS[kind], QUERIES).double(), x.detach().double().requires_grad_()
    output = expected(exact, wide, wide, CHANGES[change][1], [0, 1])[1]
    for got, true in zip(
        gradients, torch.autograd.grad((output * factors)[live].sum(), [wide, *exact.parameters()]), strict=True
    ):
        close(got, true.float(), 2e-2 if "half" in kind else 1e-5)


# --- soft caps, sinks and shared keys

CAP, SINK = 1.5, [-1.0, 0.5, 2.0]


def by_cap(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return dikkat.attend(q, k, v, score=scores.ScaledDot(softcap=CAP), mask=visible[:, None])


def by_capped_softmax(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return hidden(CAP * torch.tanh(q @ k.mT / math.sqrt(SIZE) / CAP), visible).softmax(-1) @ v


def by_sink(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return dikkat.attend(
        q, k, v, score=scores.ScaledDot(), mask=visible[:, None], sink=torch.tensor(SINK, dtype=q.dtype)
    )


def by_softmax_sink(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """A sink as a column of the softmax, as in "eager" gpt-oss."""
    logits = hidden(q @ k.mT / math.sqrt(SIZE), visible)
    column = torch.tensor(SINK, dtype=q.dtype)[:, None, None].expand(*logits.shape[:-1], 1)
    return torch.cat([logits, column], -1).softmax(-1)[..., :-1] @ v


def by_groups(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], attn_mask=visible[:, None], enable_gqa=True)


def by_shared_keys(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    return dikkat.attend(q, k[:, :1], v[:, :1], score=scores.ScaledDot(), mask=visible[:, None])


SPECIAL = {
    "attend, soft cap": by_cap, "softmax, soft cap": by_capped_softmax, "attend, sink": by_sink,
    "softmax, sink": by_softmax_sink, "fused, grouped heads": by_groups, "attend, shared keys": by_shared_keys,
}  # fmt: skip


def with_sink(change: str, edit: Callable[..., Tensor] | None) -> Callable[..., Tensor] | None:
    """Return an edit of rows whose last weight is a sink's: it keeps its weight if masses of keys are set."""
    if change == "edges, open":  # an open slice does not contain the sink
        return edges(*product(range(QUERIES), [1]), *product(range(1, QUERIES, 2), range(3, QUERIES)))
    if edit is None or ("mass" not in change and change != "weights"):
        return edit

    def edit_keys(row: Tensor, *call: Any) -> Tensor:
        if change == "weights":
            return torch.cat([edit(row, *call), torch.zeros(1)])
        return torch.cat([edit(row[:-1] / row[:-1].sum(), *call) * row[:-1].sum(), row[-1:]])

    return edit_keys


def special(kind: str, layer: Layer, x: Tensor, change: str, heads: Any) -> tuple[Tensor, Tensor]:
    """Return the edited map and the output of a layer with a soft cap, a sink or shared keys, in float64."""
    q, k, v = layer.heads(x, x)
    if "heads" in kind or "keys" in kind:
        k, v = (tensor[:, :1].expand_as(tensor) for tensor in (k, v))
    logits, edit = q @ k.mT / math.sqrt(SIZE), CHANGES[change][1]
    if "cap" in kind:
        logits = CAP * torch.tanh(logits / CAP)
    logits = logits.masked_fill(~SELF[:, None], -math.inf)
    if "sink" in kind:
        logits = torch.cat([logits, torch.tensor(SINK).double()[:, None, None].expand(*logits.shape[:-1], 1)], -1)
        edit = with_sink(change, edit)
    weights = edited_map(logits.softmax(-1), SELF, edit, heads)[..., :QUERIES]
    return weights, (weights @ v).transpose(1, 2).flatten(-2)


@kit.each("recording", [False, True])
@kit.each("heads", HEADS_OF)
@kit.each("change", CHANGES)
@kit.each("kind", SPECIAL)
def test_soft_caps_sinks_and_shared_keys(kind: str, change: str, heads: str, recording: bool) -> None:
    layer, (x, _), chosen, live = Layer(SPECIAL[kind], QUERIES), inputs(QUERIES), HEADS_OF[heads], SELF.any(-1)
    changed = dikkat.change(layer, heads=chosen, **arguments(change, QUERIES))
    if recording:
        with changed, dikkat.record(layer, weights=True) as trace:
            got = layer(x, x)
    else:
        with changed:
            got = layer(x, x)
    with torch.no_grad():
        weights, output = special(kind, Layer(SPECIAL[kind], QUERIES).double(), x.double(), change, chosen)
    close(got[live], output[live].float())
    if recording and change != "cut, mean":
        close(trace[""].weights.transpose(1, 2)[live], weights.transpose(1, 2)[live].float())


# --- dropout and half precision


class Dropping(nn.Module):
    """Attention with dropout whose output (B, H, n, m) has the weights."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        values = torch.eye(QUERIES).expand(BATCH, HEADS, -1, -1)
        if self.fused:
            return F.scaled_dot_product_attention(q, k, values, dropout_p=0.5)
        return F.dropout((q @ k.mT / math.sqrt(SIZE)).softmax(-1), 0.5) @ values


@kit.each("change", [name for name in CHANGES if name != "cut, mean"])
@kit.each("fused", [True, False])
def test_dropout(fused: bool, change: str) -> None:
    q, k = torch.randn(2, BATCH, HEADS, QUERIES, SIZE)
    layer = Dropping(fused)
    torch.manual_seed(3)
    before = layer(q, k)
    torch.manual_seed(3)
    with dikkat.change(layer, heads=1, **arguments(change, QUERIES)):
        got = layer(q, k)
    assert torch.equal(got[:, [0, 2]], before[:, [0, 2]])
    edit, all_pairs = CHANGES[change][1], torch.ones(BATCH, QUERIES, QUERIES).bool()
    weights = edited_map((q @ k.mT / math.sqrt(SIZE)).double().softmax(-1), all_pairs, edit, [1])[:, 1].float()
    dropped = got[:, 1] == 0
    close(got[:, 1], torch.where(dropped, 0.0, 2 * weights))
    assert dropped.float().mean() < 1 or "cut" in change


@kit.each("dtype", [torch.float16, torch.bfloat16])
@kit.each("change", CHANGES)
@kit.each("kind", [name for name in KINDS if "half" not in name and "1e9" not in name])
def test_half_precision(kind: str, change: str, dtype: torch.dtype) -> None:
    layer, x = Layer(KINDS[kind], QUERIES).to(dtype), inputs(QUERIES)[0].to(dtype)
    with torch.no_grad():
        weights, output = expected(copy.deepcopy(layer).double(), x.double(), x.double(), CHANGES[change][1], 1)
        with dikkat.change(layer, heads=1, **arguments(change, QUERIES)), dikkat.record(layer, weights=True) as trace:
            got = layer(x, x)
    assert got.dtype == dtype
    atol = 0.02 if dtype == torch.float16 else 0.1
    close(got.float(), output.float(), atol)
    if change != "cut, mean":
        close(trace[""].weights.float(), weights.float(), atol)
    if change == "mass":  # rounding of the scores does not change it
        given_masses = trace[""].weights[:, 1, 3:, 1:3].float().sum(-1)
        close(given_masses, torch.full_like(given_masses, 0.4), 2 * torch.finfo(dtype).eps)


# --- calls without heads, and changes of changes


FLAT: dict[str, Callable[[Tensor], Tensor]] = {
    "attend": lambda x: dikkat.attend(x, x, x, score=scores.ScaledDot(), causal=True),
    "fused": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "softmax": lambda x: (x @ x.mT / math.sqrt(SIZE)).masked_fill(~SELF[0], -math.inf).softmax(-1) @ x,
}  # fmt: skip


class Calling(nn.Module):
    def __init__(self, attend: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x)


@kit.each("ndim", [2, 3])
@kit.each("change", CHANGES)
@kit.each("kind", FLAT)
def test_calls_without_heads(kind: str, change: str, ndim: int) -> None:
    x = torch.randn(QUERIES, SIZE)
    layer, causal = Calling(FLAT[kind]), SELF[:1].expand(BATCH, -1, -1)
    with dikkat.change(layer, **arguments(change, QUERIES)):
        got = layer(x if ndim == 2 else x.expand(BATCH, -1, -1))
    logits = (x @ x.mT / math.sqrt(SIZE)).double().masked_fill(~SELF[0], -math.inf)
    weights = edited_map(logits.softmax(-1).expand(BATCH, HEADS, -1, -1), causal, CHANGES[change][1], None)[0, 0]
    close(got, (weights.float() @ x).expand_as(got))


@kit.each("inner", CHANGES)
@kit.each("outer", CHANGES)
@kit.each("kind", ["attend", "fused", "softmax"])
def test_two_changes_of_one_head(kind: str, outer: str, inner: str) -> None:
    layer, (x, _) = Layer(KINDS[kind], QUERIES), inputs(QUERIES)
    wide = Layer(KINDS[kind], QUERIES).double()
    q, k, v = wide.heads(x.double(), x.double())
    weights = (q @ k.mT / math.sqrt(SIZE)).masked_fill(~SELF[:, None], -math.inf).softmax(-1)
    for name in sorted((outer, inner), key=lambda name: "cut" in name):  # a cut applies last
        if name == "weights" and bool(((table(QUERIES) > 0) & (weights[:, 1] == 0)).any()):
            with (
                pytest.raises(ValueError, match="a key that the model hides"),
                dikkat.change(layer, heads=1, **arguments(outer, QUERIES)),
                dikkat.change(layer, heads=1, **arguments(inner, QUERIES)),
            ):
                layer(x, x)
            return
        seen = weights[:, 1] > 0 if "mass" in name else SELF
        weights = edited_map(weights, seen, CHANGES[name][1], 1)
    with (
        torch.no_grad(),
        dikkat.change(layer, heads=1, **arguments(outer, QUERIES)),
        dikkat.change(layer, heads=1, **arguments(inner, QUERIES)),
    ):
        got = layer(x, x)
    close(got, (weights @ v).transpose(1, 2).flatten(-2).float())


# --- other threads, copies, compiled models, transforms and interrupts


@pytest.fixture
def layer() -> Calling:
    return Calling(FLAT["fused"])


@pytest.fixture
def x() -> Tensor:
    return torch.randn(QUERIES, SIZE)


def test_other_threads_are_not_changed(layer: Calling, x: Tensor) -> None:
    before, results = layer(x), list[Tensor]()
    with dikkat.change(layer, cut=True):
        other = threading.Thread(target=lambda: results.append(layer(x)))
        other.start()
        other.join()
        assert not layer(x).any()
    assert torch.equal(results[0], before)


def test_a_copy_changes_within_the_block_only(layer: Calling, x: Tensor) -> None:
    before = layer(x)
    with dikkat.change(layer, cut=True):
        twin = copy.deepcopy(layer)
        assert not twin(x).any()
    assert torch.equal(twin(x), before)
    with dikkat.change(twin, edges=(4, 0)):
        assert torch.equal(layer(x), before)
        assert not torch.equal(twin(x), before)


def test_compiled_models_run_uncompiled(layer: Calling, x: Tensor) -> None:
    compiled = torch.compile(layer, backend="eager")
    before = compiled(x)
    with dikkat.change(layer, cut=True):
        assert not compiled(x).any()
    with dikkat.change(compiled, cut=True):
        assert not compiled(x).any()
    assert torch.equal(compiled(x), before)

    def change_inside(x: Tensor) -> Tensor:
        with dikkat.change(layer, cut=True):
            return layer(x)

    with pytest.raises(Exception, match=r"got a call inside torch\.compile"):
        torch.compile(change_inside, backend="eager", fullgraph=True)(x)


@kit.each("kind", FLAT)
@kit.each("change", CHANGES)
def test_transforms_and_fake_tensors_are_rejected(kind: str, change: str, x: Tensor) -> None:
    layer = Calling(FLAT[kind])
    with (
        pytest.raises(ValueError, match="which dikkat cannot change"),
        dikkat.change(layer, **arguments(change, QUERIES)),
    ):
        torch.vmap(layer)(x.expand(BATCH, -1, -1))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with pytest.raises(ValueError, match="fake tensors"), dikkat.change(layer, **arguments(change, QUERIES)), mode:
        layer(mode.from_tensor(x))


@kit.each("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_removes_the_change(error: type[BaseException], x: Tensor) -> None:
    class Interrupted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.raises = Calling(FLAT["fused"]), False

        def forward(self, x: Tensor) -> Tensor:
            if self.raises:
                raise error
            return self.layer(x)

    model = Interrupted()
    before, model.raises = model(x), True
    with pytest.raises(error), dikkat.change(model, cut=True):
        model(x)
    model.raises = False
    assert torch.equal(model(x), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_trace_with_heads_is_rejected() -> None:
    layer, (x, _) = Layer(KINDS["fused"], QUERIES), inputs(QUERIES)
    with dikkat.record(layer, weights=True, heads=[1]) as trace:
        layer(x, x)
    with pytest.raises(ValueError, match="a trace without all weights"), dikkat.change(layer, weights=trace):
        layer(x, x)
