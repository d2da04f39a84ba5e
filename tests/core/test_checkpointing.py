"""Activation checkpointing: what a backward computes once more saves the same tensors, at the first step and later."""

from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import dikkat
import kit
from dikkat.recurrent import AttentionalGRU, AttentionalLSTM

# Sizes that no other test has: a program kept elsewhere would make the first call here a second one.
QUERIES, KEYS = 19, 23
LENGTHS: dict[str, Any] = {"none": lambda: None, "lengths": lambda: torch.tensor([17, KEYS])}


@kit.over(
    ways=["auto", *(way for way in kit.WAYS if "," not in way)],
    restriction=list(LENGTHS), weights=[False, True], reentrant=[False, True],
    valid=lambda way, weights, **_: not (way == "sdpa" and weights),
)  # fmt: skip
def test_gradients_are_those_without_it(
    way: str, case: str, restriction: str, weights: bool, reentrant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dikkat._core.dispatch, "_PROGRAMS", {})
    torch.manual_seed(0)
    made = kit.CASES[case]
    score, lens = made.make().double(), LENGTHS[restriction]()
    for _ in range(3):
        sizes = ((QUERIES, made.query_features), (KEYS, kit.FEATURES), (KEYS, kit.VALUES))
        given = [torch.randn(2, *size, dtype=torch.float64).requires_grad_() for size in sizes]

        def attend(query: Tensor, key: Tensor, value: Tensor, impl: str = way) -> Tensor:
            came = dikkat.attend(query, key, value, score=score, valid_lens=lens, impl=impl, return_weights=weights)
            return came[0].square().sum() + came[1].sin().sum() if weights else came.square().sum()

        leaves = [*given, *score.parameters()]
        right = torch.autograd.grad(attend(*given, impl="reference"), leaves, allow_unused=True)
        for each in leaves:
            each.grad = None
        checkpoint(attend, *given, use_reentrant=reentrant).backward()
        for leaf, grad in zip(leaves, right, strict=True):
            came = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            torch.testing.assert_close(came, torch.zeros_like(leaf) if grad is None else grad, rtol=1e-10, atol=1e-11)


def test_the_first_step_saves_what_the_second_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dikkat._core.dispatch, "_PROGRAMS", {})
    for case, made in kit.CASES.items():
        score, lens = made.make(), torch.tensor([17, KEYS])
        steps = []
        for _ in range(3):
            saved: list[tuple[Any, ...]] = []

            def pack(tensor: Tensor, saved: list[tuple[Any, ...]] = saved) -> Tensor:
                saved.append((tensor.shape, tensor.dtype))
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                query = torch.randn(2, QUERIES, made.query_features, requires_grad=True)
                key, value = torch.randn(2, KEYS, kit.FEATURES), torch.randn(2, KEYS, kit.VALUES, requires_grad=True)
                dikkat.attend(query, key, value, score=score, valid_lens=lens)
            steps.append(saved)
        assert steps[0] == steps[1] == steps[2], case


@pytest.mark.parametrize("layer", ["additive", "heads"])
def test_layers(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dikkat._core.dispatch, "_PROGRAMS", {})
    torch.manual_seed(0)
    score = dikkat.scores.Gaussian(1.5, learnable=True)
    made = dikkat.AdditiveAttention(6, 6, 5) if layer == "additive" else dikkat.MultiHeadAttention(6, 2, score=score)
    x = torch.randn(2, QUERIES, 6, requires_grad=True)
    (right,) = torch.autograd.grad(made(x, x, x).square().sum(), x)
    for _ in range(2):
        monkeypatch.setattr(dikkat._core.dispatch, "_PROGRAMS", {})
        for _ in range(2):
            out = checkpoint(lambda x: made(x, x, x), x, use_reentrant=False)
            torch.testing.assert_close(torch.autograd.grad(out.square().sum(), x)[0], right)


def _bytes_of_graph(result: Tensor) -> int:
    """The bytes that a graph holds in other ways than as saved tensors, which hooks can take away."""
    nodes, seen, storages = [result.grad_fn], set[int](), dict[int, int]()
    waiting: list[Any] = []
    while nodes:
        node = nodes.pop()
        if node is not None and id(node) not in seen:
            seen.add(id(node))
            nodes += [each for each, _ in node.next_functions]
            waiting += list(getattr(node, "__dict__", {}).values())
    while waiting:
        held = waiting.pop()
        if id(held) in seen:
            continue
        seen.add(id(held))
        if isinstance(held, Tensor):
            storages[held.untyped_storage().data_ptr()] = held.untyped_storage().nbytes()
        elif isinstance(held, dict | list | tuple):
            waiting += held.values() if isinstance(held, dict) else held
        elif isinstance(held, FunctionType):
            waiting += [cell.cell_contents for cell in held.__closure__ or ()]
        elif type(held).__module__.startswith("dikkat."):
            waiting += getattr(held, "__dict__", {}).values()
    return sum(storages.values())


@pytest.mark.parametrize("impl", ["reference", "numba"])
@pytest.mark.parametrize("cells", [AttentionalGRU, AttentionalLSTM])
def test_a_recurrence_leaves_no_steps_in_a_graph_with_hooks(cells: Any, impl: str) -> None:
    torch.manual_seed(0)
    batch, steps, hidden = 3, 11, 8
    layer = cells(6, hidden, hidden, dikkat.scores.Additive(hidden, hidden, 8), 2, 0.0).double()
    inputs, state = torch.randn(batch, steps, 6).double(), torch.zeros(2, batch, hidden).double()
    encoded = torch.randn(batch, 7, hidden).double().requires_grad_()
    state = state if cells is AttentionalGRU else (state, state)

    def run(encoded: Tensor) -> Tensor:
        return layer(inputs, layer.prepare(encoded), state, impl=impl)[0].square().sum()

    leaves, states_of_a_layer = [encoded, *layer.parameters()], batch * steps * hidden * 8
    plain = run(encoded)
    right = torch.autograd.grad(plain, leaves)
    assert _bytes_of_graph(run(encoded)) > states_of_a_layer
    with torch.autograd.graph.save_on_cpu():
        saved = run(encoded)
    for result in (checkpoint(run, encoded, use_reentrant=False), saved):
        assert _bytes_of_graph(result) < states_of_a_layer
        for came, expected in zip(torch.autograd.grad(result, leaves), right, strict=True):
            torch.testing.assert_close(came, expected, rtol=1e-10, atol=1e-12)
