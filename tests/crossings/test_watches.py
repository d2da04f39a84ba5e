"""Every kind of attention × every way in which a model trains: 132 cells.

A cell has the statistics of the weights in float64, by the formula, or raises a named error. The numbers of some kinds
are rounded, or their scores are unknown.
"""

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dikkat
import kit
from crossings.test_changes import BATCH, HEADS, KINDS, QUERIES, SELF, SIZE, Layer

MULTI_HEAD = "torch.nn.MultiheadAttention"
ATTENTIONS = [*KINDS, MULTI_HEAD]


class MultiHead(Layer):
    """The same layer, as PyTorch's module."""

    def __init__(self) -> None:
        super().__init__(KINDS["fused"], QUERIES)
        self.inner = nn.MultiheadAttention(HEADS * SIZE, HEADS, batch_first=True)
        with torch.no_grad():
            for name in ("weight", "bias"):
                parts = [getattr(module, name) for module in (self.query, self.key, self.value)]
                getattr(self.inner, f"in_proj_{name}").copy_(torch.cat(parts))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        hidden = ~SELF.repeat_interleave(HEADS, 0)
        output: Tensor = self.inner(x, memory, memory, attn_mask=hidden, need_weights=False)[0]
        return output


class Model(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = MultiHead() if kind == MULTI_HEAD else Layer(KINDS[kind], QUERIES)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x, x)


X = torch.randn(BATCH, QUERIES, HEADS * SIZE, generator=torch.Generator().manual_seed(5))


@cache
def expected() -> list[list[float]]:
    """The largest score, the mean entropy and the mean weight of the first key of each head."""
    layer, x = copy.deepcopy(Model("fused").layer).double(), X.double()
    with torch.no_grad():
        q, k, _ = layer.heads(x, x)
    table = []
    for head in range(HEADS):
        rows = [(q[b, head, i] @ k[b, head].T / math.sqrt(SIZE))[SELF[b, i]]
                for b in range(BATCH) for i in range(QUERIES)]  # fmt: skip
        weights = [row.softmax(0) for row in rows]
        entropies = [float(-(w * w.log()).sum()) for w in weights]
        table.append([
            max(float(row.max()) for row in rows), sum(entropies) / len(rows),
            sum(float(w[0]) for w in weights) / len(rows),
        ])  # fmt: skip
    return table


def compiled(model: Model) -> Tensor:
    return torch.compile(model, backend="aot_eager")(X)


def compiled_in_place(model: Model) -> Tensor:
    model.compile(backend="aot_eager")
    return model(X)


def rounded(model: Model) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(X)


def called_functionally(model: Model) -> Tensor:
    return torch.func.functional_call(model, dict(model.named_parameters()), X)


def mapped(model: Model) -> Tensor:
    return torch.func.vmap(lambda x: model(x), randomness="different")(X[None])


def differentiated(model: Model) -> Tensor:
    parameters = dict(model.named_parameters())
    gradients = torch.func.grad(lambda p: torch.func.functional_call(model, p, X).sum())(parameters)
    return next(iter(gradients.values()))


def recorded(model: Model) -> Tensor:
    with dikkat.record(model, sums=True):
        return model(X)


def changed(model: Model) -> Tensor:
    with dikkat.change(model, spans={"first": slice(0, 1)}, scale={"first": 1.0}):  # to the same weights
        return model(X)


def hooked(model: Model) -> Tensor:
    """The input and the output are replaced by hooks of others, before and after."""
    before = model.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 0,))
    with before, model.register_forward_hook(lambda _, __, output: 2 * output):
        return model(X)


def in_a_thread(model: Model) -> Tensor:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(model, X).result()


TRAININGS: dict[str, Callable[[Model], Tensor]] = {
    "plain": lambda model: model(X),
    "compiled": compiled,
    "compiled in place": compiled_in_place,
    "autocast": rounded,
    "checkpoint": lambda model: checkpoint(model, X, use_reentrant=False),
    "functional_call": called_functionally,
    "vmap": mapped,
    "grad": differentiated,
    "record": recorded,
    "change": changed,
    "hooks": hooked,
    "threads": in_a_thread,
}
ERROR = "inside a transform of torch.func|in which no attention ran"
TRANSFORMS = ("vmap", "grad")


@pytest.mark.filterwarnings("ignore:There is a performance drop because:UserWarning")
@kit.each("training", TRAININGS)
@kit.each("kind", ATTENTIONS)
def test_watches(kind: str, training: str) -> None:
    torch.compiler.reset()
    model = Model(kind)
    with pytest.raises(ValueError, match=ERROR) if training in TRANSFORMS else nullcontext():
        with dikkat.watch(model) as watched:
            TRAININGS[training](model).sum().backward()
        assert all(parameter.grad is not None for parameter in model.layer.query.parameters()) or kind == MULTI_HEAD
    if training in TRANSFORMS:
        return
    rows = [list(row[4:]) for row in watched.latest]
    atol = 0.1 if training == "autocast" else 2e-3 if "half" in kind else 2e-5
    for row, numbers in zip(rows, expected(), strict=True):
        known = 1 if training == "change" and kind.startswith("softmax") else 0  # of changed weights, no scores
        assert all(map(math.isnan, row[:known]))
        assert row[known:] == pytest.approx(numbers[known:], rel=1e-4, abs=atol)
    assert not {*model._forward_hooks, *model._forward_pre_hooks}
