"""Additive scores as products: the series against tanh, accuracy beside plain PyTorch's, and what it refuses."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dikkat
import kit
from dikkat import scores
from dikkat._core import implementations
from dikkat._core.implementations import products
from dikkat._core.implementations.products.sines import SERIES

HALVES = [torch.bfloat16, torch.float16]
NAMES = ("output", "query", "key", "weight", "value")
# The largest error of a series, of the value and of the derivative.
ALLOWED = {4: (2e-7, 2e-6), 8: (2e-5, 7e-5), 13: (2.5e-4, 8e-4), 18: (9e-4, 3e-3)}


@pytest.mark.parametrize(("reach", "period", "coefficients"), SERIES)
def test_a_series_follows_tanh_and_its_derivative(reach: float, period: float, coefficients: tuple[float, ...]) -> None:
    x = np.linspace(-reach, reach, 20_001)
    w = np.arange(1, 2 * len(coefficients), 2) * math.pi / (2 * period)
    value = np.sin(np.outer(x, w)) @ coefficients
    slope = np.cos(np.outer(x, w)) @ (w * coefficients)
    errors = np.abs(value - np.tanh(x)).max(), np.abs(slope - 1 / np.cosh(x) ** 2).max()
    allowed = ALLOWED[min(known for known in ALLOWED if known >= reach)]
    assert errors[0] <= allowed[0]
    assert errors[1] <= allowed[1]


class Given(scores.Score):
    """Additive, of queries and keys that are projected already."""

    pair = "additive"

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def pair_weight(self) -> Tensor:
        return self.weight


def numbers(
    sizes: tuple[int, int, int, int, int], dtype: torch.dtype, reach: float | None = None, seed: int = 0
) -> tuple[list[Tensor], Tensor]:
    """Query, key, v and value of (elements, n, m, h, d_v), the reach as given; and a gradient from above."""
    generator = torch.Generator().manual_seed(seed)
    elements, n, m, features, values = sizes

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    query, key = draw(elements, n, features), draw(elements, m, features)
    factor = 1.0 if reach is None else reach / float(query.abs().max() + key.abs().max())
    weight = 2 * draw(features) / features**0.5
    made = [(query * factor), (key * factor), weight, draw(elements, m, values)]
    return [t.to(dtype) for t in made], draw(elements, n, values).to(dtype)


def differentiated(run: Any, operands: list[Tensor], above: Tensor, dtype: torch.dtype) -> list[Tensor]:
    leaves = [t.to(dtype).requires_grad_() for t in operands]
    out = run(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, above.to(dtype))]


def plain(q: Tensor, k: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return ((q[:, :, None] + k[:, None]).tanh() @ w).softmax(-1) @ v


def ours(q: Tensor, k: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return dikkat.attend(q, k, v, score=Given(w), impl="products")


def assert_no_worse(operands: list[Tensor], above: Tensor) -> None:
    """Than plain PyTorch in the same type, by the norm of the error; and nothing is far off."""
    dtype = operands[0].dtype
    exact = differentiated(plain, operands, above, torch.float64)
    near, came = (differentiated(run, operands, above, dtype) for run in (plain, ours))
    for name, true, usual, own in zip(NAMES, exact, near, came, strict=True):
        error, allowed = ((t.double() - true).norm() for t in (own, usual))
        assert float(error) <= 1.05 * float(allowed) + torch.finfo(dtype).eps / 4 * float(true.norm()), name
        worst, most = ((t.double() - true).abs().max() for t in (own, usual))
        assert float(worst) <= 3 * float(most) + torch.finfo(dtype).eps * float(true.abs().max()), name


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("reach", [1.0, 3.0, 6.0, 9.5, 10.9, 17.5, 20.0, 30.0])
def test_no_reach_is_less_accurate_than_plain_pytorch(reach: float, dtype: torch.dtype) -> None:
    assert_no_worse(*numbers((2, 37, 41, 16, 7), dtype, reach))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("size", [30.0, 1e4])
def test_outliers(size: float, dtype: torch.dtype) -> None:
    for side in (0, 1):
        operands, above = numbers((2, 37, 41, 16, 7), dtype)
        operands[side][1, 5] = size
        assert_no_worse(operands, above)


@pytest.mark.parametrize("features", [1, 3, 13])
def test_any_number_of_features(features: int) -> None:
    assert_no_worse(*numbers((2, 19, 23, features, 5), torch.bfloat16))


@pytest.mark.parametrize("above", [1e-8, 1e6])
def test_gradients_from_above_of_any_size(above: float) -> None:
    operands, grad = numbers((2, 19, 23, 13, 5), torch.bfloat16)
    exact = differentiated(plain, operands, grad, torch.float64)
    came = differentiated(ours, operands, grad * above, torch.bfloat16)
    for own, true in zip(came[1:], exact[1:], strict=True):
        assert float((own.double() / above - true).norm()) <= 0.012 * float(true.norm())


def test_zeros_give_the_mean() -> None:
    operands, above = numbers((2, 19, 23, 13, 5), torch.bfloat16)
    operands = [0 * operands[0], 0 * operands[1], *operands[2:]]
    out, by_query, *_ = differentiated(ours, operands, above, torch.bfloat16)
    torch.testing.assert_close(out, operands[3].mean(1, keepdim=True).expand_as(out), rtol=0, atol=5e-3)
    assert bool(by_query.isfinite().all())


def test_what_it_refuses() -> None:
    operands, _ = numbers((2, 5, 7, 3, 2), torch.float64)

    def reasons(dtype: torch.dtype, score: scores.Score | None = None) -> str:
        q, k, w, v = (t.to(dtype) for t in operands)
        found = dikkat.implementations(q, k, v, score=score or Given(w))
        return "; ".join(next(each.reasons for each in found if each.name == "products"))

    assert "take float64" in reasons(torch.float64)
    assert "factors are float16, less precise than float32" in reasons(torch.float32)
    assert "additive" in reasons(torch.bfloat16, scores.Gaussian(1.0))
    assert not reasons(torch.bfloat16)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert not reasons(torch.float32)
        q, k, w, v = (t.float() for t in operands)
        torch.testing.assert_close(ours(q, k, w, v), plain(q, k, w, v), rtol=1e-3, atol=1e-3)
    finally:
        torch.set_float32_matmul_precision(precision)


def test_under_autocast_and_with_wider_values() -> None:
    operands, _ = numbers((2, 19, 23, 13, 5), torch.float32)
    query, key, _, value = operands
    score = scores.Additive(13, 13, 11)
    expected = dikkat.attend(query, key, value, score=score)
    with torch.autocast("cpu", torch.bfloat16):
        out = dikkat.attend(query, key, value, score=score, impl="products")
        out.sum().backward()
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in score.parameters())


@pytest.mark.parametrize("impl", ["products", "chunked"])
def test_a_backward_under_autocast_sums_in_float32(impl: str) -> None:
    (query, key, weight, value), above = numbers((2, 19, 23, 13, 5), torch.bfloat16)
    leaves = [t.to(torch.bfloat16 if impl == "products" else torch.float32) for t in (query, key, weight, value)]
    leaves = [t.requires_grad_() for t in leaves]
    out = dikkat.attend(leaves[0], leaves[1], leaves[3], score=Given(leaves[2]), impl=impl)
    expected = torch.autograd.grad(out, leaves, above.to(out.dtype), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        came = torch.autograd.grad(out, leaves, above.to(out.dtype))
    torch.testing.assert_close(came, expected, rtol=0, atol=0)


@pytest.mark.parametrize("chosen", ["forward", "backward"])
def test_lack_of_memory_says_which_call_it_was(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operands, above = numbers((2, 5, 7, 3, 2), torch.bfloat16)
    leaves = [t.requires_grad_() for t in operands]
    step = "weigh" if chosen == "forward" else "input_grads"

    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(products.Plain, step, staticmethod(fails))
    with pytest.raises(torch.OutOfMemoryError) as caught:
        ours(*leaves).backward(above)
    assert f"the {chosen} of additive attention" in caught.value.__notes__[0]
    assert "query (2, 5, 3)" in caught.value.__notes__[0]
    assert all(t.grad is None for t in leaves)


def test_compile_and_vmap() -> None:
    (query, key, weight, value), above = numbers((2, 5, 7, 3, 2), torch.bfloat16)
    torch.compiler.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    operands = [query, key, weight, value]
    for own, expected in zip(
        differentiated(compiled, operands, above, torch.bfloat16),
        differentiated(ours, operands, above, torch.bfloat16),
        strict=True,
    ):
        torch.testing.assert_close(own, expected, rtol=0, atol=0)
    many = torch.stack([query, -query])
    mapped = torch.func.vmap(lambda q: ours(q, key, weight, value))(many)
    torch.testing.assert_close(mapped, torch.stack([ours(q, key, weight, value) for q in many]), rtol=1e-2, atol=1e-2)


def test_sequences_end_to_end() -> None:
    query, key, value = (torch.randn(n, 6).bfloat16().requires_grad_() for n in (11, 13, 13))
    offsets = torch.tensor([0, 4, 11]), torch.tensor([0, 6, 13])
    score = Given(torch.randn(6).bfloat16())
    found = [dikkat.attend_ragged(query, key, value, *offsets, score=score, impl=i) for i in ("products", "reference")]
    torch.testing.assert_close(*found, rtol=2e-2, atol=2e-2)
    grads = [torch.autograd.grad(out.sum(), (query, key, value)) for out in found]
    torch.testing.assert_close(*grads, rtol=5e-2, atol=2e-2)


def test_other_devices_choose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device without numbers, since none is at hand, for many pairs; a CPU does not."""
    monkeypatch.setattr(implementations, "CROSSOVERS", implementations.CROSSOVERS._replace(device=0))
    (query, key, weight, value), _ = numbers((2, 37, 41, 16, 7), torch.bfloat16)
    made: dict[str, str] = {}
    for device in ("cpu", "meta"):
        with kit.record() as ran:
            q, k, w, v = (t.to(device) for t in (query, key, weight, value))
            found = dikkat.implementations(q, k, v, score=Given(w))
            made[device] = found[0].name
        assert ran == []
    assert made["meta"] == "products"
    assert made["cpu"] != "products"
