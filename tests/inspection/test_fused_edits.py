"""Masses and odds of causal calls by PyTorch's fused attention, compared with weights edited by hand in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dikkat
from dikkat.inspection import edits

TOKENS, WIDTH = 53, 7
CASES: dict[str, tuple[dict[str, slice], dict[str, float]]] = {
    "middle": ({"a": slice(5, 17)}, {"a": 0.4}),
    "start": ({"a": slice(0, 11)}, {"a": 0.97}),
    "end": ({"a": slice(47, 53)}, {"a": 0.01}),
    "two": ({"a": slice(29, 41), "b": slice(2, 5)}, {"a": 0.2, "b": 0.5}),
    "nothing": ({"a": slice(5, 17)}, {"a": 0.0}),
    "everything": ({"a": slice(5, 17)}, {"a": 1.0}),
    "scattered": ({"a": slice(19, 23), "b": slice(7, 13)}, {"a": 0.0, "b": 1.0}),
}


class Causal(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def operands(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(5)
    return [torch.randn(2, 3, TOKENS, WIDTH, dtype=torch.float64).to(dtype).requires_grad_() for _ in range(3)]


def weights_of(query: Tensor, key: Tensor) -> Tensor:
    scores = query.double() @ key.double().mT / WIDTH**0.5
    return scores.masked_fill(torch.ones(TOKENS, TOKENS).triu(1).bool(), -torch.inf).softmax(-1)


def set_masses(weights: Tensor, spans: dict[str, slice], masses: dict[str, float]) -> tuple[Tensor, int]:
    """Return the weights with these masses, and how many rows lack a key of a group."""
    edited, rest, can_edit = torch.zeros_like(weights), torch.ones(TOKENS, dtype=torch.bool), True
    shares = {}
    for name, span in spans.items():
        group = torch.zeros(TOKENS, dtype=torch.bool)
        group[span], rest[span] = True, False
        shares[name] = group, masses[name]
    rest_mass = 1 - sum(masses.values())
    for group, mass in [*shares.values(), *([(rest, rest_mass)] if rest_mass > 1e-9 else [])]:
        total = (weights * group).sum(-1, keepdim=True)
        can_edit = can_edit & (total > 0)
        edited = edited + mass * weights * group / total.clamp(min=1e-300)
    return torch.where(can_edit, edited, weights), int((~can_edit).sum())


def compare(result: Tensor, expected: Tensor, tensors: list[Tensor], dtype: torch.dtype) -> None:
    factor = torch.sin(torch.arange(expected.numel(), dtype=torch.float64)).view(expected.shape)
    gradients = [
        torch.autograd.grad((output.double() * factor).sum(), tensors, materialize_grads=True)
        for output in (result, expected)
    ]
    limits = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    for found, right in zip((result, *gradients[0]), (expected, *gradients[1]), strict=True):
        torch.testing.assert_close(found.double(), right.double(), **limits)


@pytest.fixture
def _only_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("the call took another path")

    monkeypatch.setattr(edits.Mass, "pool", fail)
    monkeypatch.setattr(edits, "run_problem", fail)


@pytest.mark.usefixtures("_only_fused")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", CASES)
def test_masses(case: str, dtype: torch.dtype) -> None:
    (spans, masses), tensors = CASES[case], operands(dtype)
    edited, unedited = set_masses(weights_of(*tensors[:2]), spans, masses)
    model = Causal()
    with dikkat.change(model, spans=spans, mass=masses) as changed:
        result = model(*tensors)
    compare(result, edited @ tensors[2].double(), tensors, dtype)
    assert changed.unchanged_queries == unedited


@pytest.mark.usefixtures("_only_fused")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_odds(dtype: torch.dtype) -> None:
    tensors, factors = operands(dtype), torch.ones(TOKENS, dtype=torch.float64)
    factors[5:17], factors[31:37] = 3.0, 0.25
    model, spans = Causal(), {"a": slice(5, 17), "b": slice(31, 37)}
    with dikkat.change(model, spans=spans, scale={"a": 3.0, "b": 0.25}):
        result = model(*tensors)
    odds = weights_of(*tensors[:2]) * factors
    compare(result, odds / odds.sum(-1, keepdim=True) @ tensors[2].double(), tensors, dtype)


@pytest.mark.usefixtures("_only_fused")
def test_odds_and_then_a_mass() -> None:
    tensors, factors = operands(torch.float64), torch.ones(TOKENS, dtype=torch.float64)
    factors[11:31] = 7.0
    model, spans = Causal(), {"a": slice(5, 17)}
    odds = weights_of(*tensors[:2]) * factors
    edited, _ = set_masses(odds / odds.sum(-1, keepdim=True), spans, {"a": 0.4})
    with (
        dikkat.change(model, spans={"b": slice(11, 31)}, scale=7.0),
        dikkat.change(model, spans=spans, mass=0.4),
        dikkat.record(model, weights=True) as trace,
    ):
        result = model(*tensors)
    compare(result, edited @ tensors[2], tensors, torch.float64)
    torch.testing.assert_close(trace[""].weights, edited.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("arguments", [{"mass": 0.4}, {"scale": {"a": 3.0}}])
def test_a_hidden_value_that_is_not_finite_has_no_effect(arguments: dict[str, Any]) -> None:
    query, key, value = (tensor.detach() for tensor in operands(torch.float32))
    model, spoilt = Causal(), value.clone()
    spoilt[..., -1, :] = torch.nan
    with dikkat.change(model, spans={"a": slice(5, 17)}, **arguments):
        result, expected = model(query, key, spoilt), model(query, key, value)
    torch.testing.assert_close(result[..., :-1, :], expected[..., :-1, :], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("heads", [None, [0, 2]])
@pytest.mark.parametrize("shape", [(), (3,), (2, 1)])
def test_given_weights(shape: tuple[int, ...], heads: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edits, "_edited_rows", None)  # the call takes no other path
    tensors, model = operands(torch.float64), Causal()
    table = torch.rand(*shape, TOKENS, TOKENS, dtype=torch.float64).tril_()
    table /= table.sum(-1, keepdim=True)
    table[..., 3, :] = 0  # a row without weights
    with dikkat.change(model, weights=table, heads=heads):
        result = model(*tensors)
    weights = table.expand(2, 3, -1, -1).clone()
    if heads is not None:
        weights[:, 1] = weights_of(*tensors[:2])[:, 1]
    compare(result, weights @ tensors[2], tensors, torch.float64)


def test_given_weights_of_hidden_keys_are_refused() -> None:
    model, table = Causal(), torch.full((TOKENS, TOKENS), 1 / TOKENS)
    refused = pytest.raises(ValueError, match="weights: got a weight above 0 for a key that the model hides")
    with refused, dikkat.change(model, weights=table):
        model(*operands(torch.float32))
