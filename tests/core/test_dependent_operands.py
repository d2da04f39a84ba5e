"""Gradients under `create_graph=True` and of many directions at once, where operands of a call depend on each other.

A backward pass that differentiates its operands with their history counts a dependent operand several times. Neither
`gradgradcheck` of one call nor a plain backward pass shows that. The expected values are plain PyTorch's, in float64.
"""

import itertools
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from test_graphs import captured
from torch import Tensor

import device
import dikkat
import kit
from dikkat import scores

BATCH, ROWS, FEATURES, HIDDEN = 2, 5, 3, 7
LENGTHS = torch.tensor([3, 5])


def gate(module: Any, rows: Tensor) -> Tensor:
    hidden = torch.tanh(rows @ module.V.weight.T + module.V.bias)
    hidden = hidden / (1 + torch.exp(-(rows @ module.U.weight.T + module.U.bias)))
    return hidden @ module.w.weight.T + module.w.bias


# Of `kit.CASES`.
SCORES: dict[str, Callable[[], scores.Score]] = {
    "dot": scores.Dot,
    "scaled dot": scores.ScaledDot,
    "bilinear": lambda: scores.Bilinear(FEATURES, FEATURES),
    "additive": lambda: scores.Additive(FEATURES, FEATURES, HIDDEN),
    "gaussian, learned": lambda: scores.Gaussian(1.3, learnable=True),
    "gated": lambda: scores.Gated(FEATURES, HIDDEN),
}


def weigh(name: str, score: scores.Score, query: Tensor, key: Tensor, lens: Tensor | None = None) -> Tensor:
    seen = kit.visible({"valid_lens": lens}, (BATCH,), query.shape[-2], ROWS)
    return kit.attend_plainly(kit.CASES[name].dense, dict(score.named_parameters()), query, key, key, seen)[2]


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
CHAINS: dict[str, Callable[[Attend, Tensor, Tensor], Tensor]] = {
    "one tensor as all three": lambda attend, x, _: attend(x, x, x),
    "the value leads to the key": lambda attend, x, W: attend(x[:, :2] * 2, x @ W, x),
    "the key leads to query and value": lambda attend, x, W: attend(x.cos(), x, (x @ W).tanh()),
    "two uses": lambda attend, x, W: attend(attend(x, x @ W, x), x, x.sin()),
}


WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "CPU": nullcontext,
    "device": device.kept,
    "graph of plain arithmetic": lambda: captured(small=True),
    "graph of kernels": lambda: captured(small=False),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_of_attention_has_the_gradients_of_plain_torch(way: str, name: str, chain: str) -> None:
    torch.manual_seed(0)
    score = SCORES[name]().double()
    x, W = torch.randn(BATCH, ROWS, FEATURES).double(), torch.randn(FEATURES, FEATURES).double()
    leaves = [x.requires_grad_(), W.requires_grad_(), *score.parameters()]

    def plainly(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return weigh(name, score, query, key, LENGTHS) @ (value.sin() + value if inner else value)

    impl = "reference" if way == "CPU" else "auto"
    inner = score.pair == "inner"  # PyTorch's fused kernel has no second derivatives, and shows no weights

    def attend(*given: Tensor) -> Tensor:
        found: Any = dikkat.attend(*given, score=score, valid_lens=LENGTHS, impl=impl, return_weights=inner)
        return found[1] @ given[2].sin() + found[0] if inner else found

    with WAYS[way]():
        for _ in range(1 if way in ("CPU", "device") else 3):
            result = CHAINS[chain](attend, x, W)
        assert_gradients(result, CHAINS[chain](plainly, x, W), leaves)


def assert_gradients(result: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    """Compare the plain gradients, those that are recorded, the second ones, and those of several directions."""
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-11)
    directions = torch.randn(3, *result.shape, dtype=result.dtype)
    more: list[dict[str, Any]] = [{}, {"create_graph": True}]
    firsts = [gradients(result, leaves, directions[0], **each) for each in more]
    wanted = gradients(expected, leaves, directions[0], create_graph=True)
    for first in firsts:
        for came, right in zip(first, wanted, strict=True):
            torch.testing.assert_close(came, right, rtol=1e-8, atol=1e-10)
    seconds = [
        gradients(sum((g * g.detach().cos()).sum() for g in first if g.requires_grad), leaves)
        for first in (firsts[1], wanted)
    ]
    for came, right in zip(*seconds, strict=True):
        torch.testing.assert_close(came, right, rtol=1e-7, atol=1e-9)
    for create in (False, True):
        batched = gradients(result, leaves, directions, is_grads_batched=True, create_graph=create)
        for i, direction in enumerate(directions):
            for came, right in zip(batched, gradients(expected, leaves, direction), strict=True):
                found = torch.zeros_like(right) if came is None else came[i]
                torch.testing.assert_close(found, right, rtol=1e-8, atol=1e-10)


def gradients(result: Any, leaves: list[Tensor], *above: Tensor, **more: Any) -> list[Tensor]:
    zeros = not more.get("is_grads_batched")  # PyTorch makes none of a batch
    return list(
        torch.autograd.grad(
            result, leaves, *above, retain_graph=True, allow_unused=True, materialize_grads=zeros, **more
        )
    )


def bag_means(scored: Tensor, rows: Tensor, lens: list[int]) -> Tensor:
    """The mean of each bag of rows, weighted by the softmax of its scores (N, 1)."""
    pairs = zip(scored.split(lens), rows.split(lens), strict=True)
    return torch.cat([of_bag.softmax(0).mT @ own for of_bag, own in pairs])


def two_pools(shared: bool) -> tuple[Any, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """A pool of pools, where the second use has the parameters of the first, or rows made by one of its layers."""
    pool = dikkat.AttentionPooling(FEATURES, FEATURES).double()
    if shared:
        return (
            pool,
            lambda x: pool(pool.V(x).tanh() @ pool.V.weight, torch.tensor([2, 4])),
            lambda x: bag_means(gate(pool, rows := pool.V(x).tanh() @ pool.V.weight), rows, [2, 4]),
        )
    return (
        pool,
        lambda x: pool(pool(x, torch.tensor([2, 2, 2])), torch.tensor([1, 2])),
        lambda x: bag_means(gate(pool, rows := bag_means(gate(pool, x), x, [2, 2, 2])), rows, [1, 2]),
    )


@pytest.mark.parametrize("shared", [False, True], ids=["pool of a pool", "rows made by a layer of the pool"])
def test_a_chain_of_bags_has_the_gradients_of_plain_torch(shared: bool) -> None:
    torch.manual_seed(1)
    pool, run, plainly = two_pools(shared)
    x = torch.randn(6, FEATURES, dtype=torch.float64, requires_grad=True)
    assert_gradients(run(x), plainly(x), [x, *pool.parameters()])
    found = torch.autograd.functional.jacobian(run, x, vectorize=True)
    torch.testing.assert_close(found, torch.autograd.functional.jacobian(plainly, x), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "CPU"])
def test_an_operand_that_is_frozen_after_the_forward_gets_its_gradient(way: str) -> None:
    torch.manual_seed(2)
    score, x = scores.Additive(FEATURES, FEATURES, HIDDEN).double(), torch.randn(BATCH, ROWS, FEATURES).double()
    x.requires_grad_()
    with WAYS[way]():
        for _ in range(3):
            result = dikkat.attend(x, x, x, score=score).sin().sum()
        score.w_v.weight.requires_grad_(False)
        found = torch.autograd.grad(result, x, create_graph=True)
    score.w_v.weight.requires_grad_()
    plain = weigh("additive", score, x, x) @ x
    torch.testing.assert_close(found, torch.autograd.grad(plain.sin().sum(), x), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["dot", "additive", "gaussian, learned"])
def test_each_implementation_has_first_gradients_that_are_recorded(name: str) -> None:
    torch.manual_seed(3)
    score, x = SCORES[name]().double(), torch.randn(BATCH, ROWS, FEATURES).double().requires_grad_()
    W, leaves = torch.eye(FEATURES).double() * 2, [x, *score.parameters()]
    plain = CHAINS["two uses"](lambda q, k, v: weigh(name, score, q, k) @ v, x, W)
    expected = gradients(plain.sin().sum(), leaves)
    runs = [each.name for each in dikkat.implementations(x, x, x, score=score) if each.runs]
    assert {"reference", "chunked", "numba"} <= set(runs)
    for impl, create in itertools.product(runs, (False, True)):
        result = CHAINS["two uses"](lambda *given, i=impl: dikkat.attend(*given, score=score, impl=i), x, W)
        for came, right in zip(gradients(result.sin().sum(), leaves, create_graph=create), expected, strict=True):
            torch.testing.assert_close(came, right, rtol=1e-8, atol=1e-10)


def test_no_other_module_differentiates_in_a_backward() -> None:
    source = Path(dikkat.__file__).parent
    users = {p.stem for p in source.rglob("*.py") if re.search(r"autograd\.grad\(|autograd\.backward\(", p.read_text())}
    assert users == {"effects", "images", "local_gradients", "relevance"}, (
        "a backward takes its gradients by local_gradients"
    )
