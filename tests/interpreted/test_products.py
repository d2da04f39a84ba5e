"""The kernels of `products` against float64, against plain PyTorch's steps, and beyond what their series reach."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import dikkat
import kit
from dikkat._core import operators
from dikkat._core.implementations import products
from dikkat._core.implementations.products import launch
from dikkat._core.implementations.products.launch import TileMask
from dikkat._core.implementations.triton import launch as gpu_launch
from interpreted.test_triton import DEVICE, given, moved

pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")

# The interpreter cuts numbers off to bfloat16, where a GPU rounds them.
KIND = torch.float16
NAMES = ("output", "query", "key", "weight", "value")


def numbers(*sizes: int, scale: float = 1.0, seed: int = 0) -> list[Tensor]:
    """Query, key, v and value of (elements, n, m, h, d_v)."""
    torch.manual_seed(seed)
    elements, n, m, features, values = sizes
    made = torch.randn(elements, n, features) * scale, torch.randn(elements, m, features) * scale
    return [t.to(KIND) for t in (*made, torch.randn(features), torch.randn(elements, m, values))]


def plain(operands: list[Tensor], dtype: torch.dtype, mask: Tensor | None = None) -> list[Tensor]:
    """The textbook's lines and their gradients."""
    leaves = [t.to(dtype).requires_grad_() for t in operands]
    q, k, w, v = leaves
    scores = (q[:, :, None] + k[:, None]).tanh() @ w
    out = (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1) @ v
    return [out.detach(), *torch.autograd.grad(out, leaves, kit.upstream_of(out).to(dtype))]


def attended(operands: list[Tensor], above: float = 1.0, **more: Any) -> list[Tensor]:
    leaves = [t.detach().to(DEVICE).requires_grad_() for t in operands]
    out = dikkat.attend(leaves[0], leaves[1], leaves[3], score=given(leaves[2]), impl="products", **more)
    grads = torch.autograd.grad(out, leaves, (kit.upstream_of(out) * above).to(DEVICE, out.dtype))
    return [t.detach().cpu() for t in (out, *grads)]


def assert_as_good(came: list[Tensor], operands: list[Tensor], mask: Tensor | None = None) -> None:
    """By the norm of the error no worse than plain PyTorch in the same type, and not far off anywhere."""
    for name, ours, near, exact in zip(
        NAMES, came, plain(operands, KIND, mask), plain(operands, torch.float64, mask), strict=True
    ):
        error, allowed = ((t.double() - exact).norm() for t in (ours, near))
        assert float(error) <= 1.2 * float(allowed) + 2e-4 * float(exact.norm()), name
        worst, usual = ((t.double() - exact).abs().max() for t in (ours, near))
        assert float(worst) <= 4 * float(usual) + 2e-3 * float(exact.abs().max()), name


# The others are one tensor of who sees whom, as with plain PyTorch's steps, which the whole kit runs.
@pytest.mark.parametrize("restriction", ["none", "lengths", "lengths a query", "causal", "all with a pair bias"])
def test_results_are_within_the_error_budget(restriction: str) -> None:
    made = moved(kit.call("additive", restriction, round_to=KIND).to(KIND))
    with kit.record() as ran:
        out, weights = made.run("products", return_weights=True)
        found = {"output": out, "weights": weights} | kit.gradients(made, out, kit.upstream_of(out).to(DEVICE))
    assert ran == ["products"]
    for name, came in found.items():
        kit.assert_within_budget(name, came.detach().cpu(), kit.expected("additive", restriction, KIND))


def test_tiles_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two by three of them, of which one has an outlier."""
    operands = numbers(1, 19, 37, 3, 2)
    operands[1][0, 20, 2] = 1e4
    for name, size in {"_PAIRS": 1, "_FACTORS": 1, "_STEP": 16}.items():
        monkeypatch.setattr(products, name, size)
    assert_as_good(attended(operands), operands)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 4.0])
def test_any_reach(scale: float) -> None:
    """4 is beyond all series for most blocks, and not for all."""
    operands = numbers(1, 19, 37, 5, 3, scale=scale)
    assert_as_good(attended(operands), operands)


@pytest.mark.parametrize("where", [(0, 3, 1e4), (1, 7, 30.0)])
def test_an_outlier_is_computed_pair_by_pair(where: tuple[int, int, float]) -> None:
    side, row, size = where
    operands = numbers(2, 11, 19, 5, 3)
    operands[side][0, row, 2] = size
    assert_as_good(attended(operands), operands)


@pytest.mark.parametrize(
    ("where", "how"), [("query", math.nan), ("key", math.nan), ("key", math.inf), ("value", math.inf)]
)
def test_what_is_not_finite_reaches_those_who_see_it(where: str, how: float) -> None:
    operands = numbers(1, 11, 17, 5, 3)
    mask = torch.rand(11, 17) < 0.6
    mask[:, 0] = True
    clean = attended(operands, mask=mask.to(DEVICE))
    place = {"query": 0, "key": 1, "value": 3}[where]
    operands[place] = operands[place].clone()
    operands[place][0, 4] = how
    touched = torch.zeros(11, dtype=torch.bool)
    touched[4] = where == "query"
    touched |= mask[:, 4] & (where != "query")
    out, by_query, *_ = attended(operands, mask=mask.to(DEVICE))
    expected = plain(operands, torch.float64, mask)[0]
    if where == "value":  # ∞ times a weight is ∞ to PyTorch, and NaN here
        assert bool(expected[0, touched].isfinite().logical_not().all() and out[0, touched].isnan().all())
    else:
        torch.testing.assert_close(out[0, touched].double(), expected[0, touched], rtol=2e-2, atol=2e-2, equal_nan=True)
    torch.testing.assert_close(out[0, ~touched], clean[0][0, ~touched], rtol=0, atol=5e-3)
    torch.testing.assert_close(by_query[0, ~touched], clean[1][0, ~touched], rtol=0, atol=5e-3)


@pytest.mark.parametrize("above", [1e-6, 1e4])
def test_upstream_gradients_of_any_size(above: float) -> None:
    operands = [t.float() for t in numbers(1, 11, 17, 5, 3)]
    expected = plain(operands, torch.float64)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        came = attended(operands, above * 1e3)
    finally:
        torch.set_float32_matmul_precision(precision)
    for ours, exact in zip(came[1:], expected[1:], strict=True):
        error = (ours.double() / (above * 1e3) - exact).norm() / exact.norm()
        assert float(error) < 3e-3


def test_kernels_do_what_the_plain_steps_do() -> None:
    """Each on the same numbers; two v, so that one belongs to each batch element."""
    query, key, _, value = (t.to(DEVICE) for t in numbers(2, 11, 21, 5, 3))
    weight = torch.randn(2, 5, device=DEVICE).to(KIND)
    table = products._table(query.device, 10.0)
    plan = launch.plan_series(query, key, weight, table)
    expected = products.Plain.plan_series(query, key, weight, table)
    assert expected is not None
    torch.testing.assert_close(plan.numbers, expected.numbers)
    factors, right = (steps.factors(query, key, weight, plan) for steps in (launch, products.Plain))
    torch.testing.assert_close(factors, right, rtol=1e-3, atol=1e-5)
    scores = products.product(right[0], right[1].mT)
    seeds = torch.randint(2**62, (2, 11), device=DEVICE)
    mask = torch.rand(2, 11, 21, device=DEVICE) < 0.7
    mask[0, 2] = False
    seen = TileMask(None, False, 10, mask, seeds, 0.3, 0, 0)
    weighed, right_weighed = (s.weigh(scores, plan, seen, torch.float32) for s in (launch, products.Plain))
    torch.testing.assert_close(weighed, right_weighed)
    known = weighed[2:]
    torch.testing.assert_close(launch.weigh(scores, plan, seen, torch.float32, known)[:2], right_weighed[:2])
    grad = torch.randn(2, 11, 3, device=DEVICE)
    wanted, by_weight, drift = grad @ value.float().mT, torch.randn(2, 11, 21, device=DEVICE), torch.randn(2, 11)
    more = torch.full((1,), 20.0, device=DEVICE)
    for given_too in ((None, None, True, None), (by_weight, drift.to(DEVICE), False, more)):
        found, size = launch.score_grads(weighed[0], wanted, grad, value, seen, *given_too)
        right_found, right_size = products.Plain.score_grads(weighed[0], wanted, grad, value, seen, *given_too)
        torch.testing.assert_close(found / size, right_found / right_size, rtol=2e-3, atol=2e-4)
    by_factors = [torch.randn(t.shape, device=DEVICE) for t in right]
    summed, right_summed = (
        s.input_grads(query, key, weight, *by_factors, found, size, plan, (torch.float32, torch.float32))
        for s in (launch, products.Plain)
    )
    torch.testing.assert_close(summed, right_summed, rtol=1e-3, atol=1e-3)


def test_dropout_drops_what_the_reference_drops() -> None:
    made = moved(kit.call("additive", "lengths a query", round_to=KIND).to(KIND))

    def run(impl: str) -> tuple[Tensor, dict[str, Tensor]]:
        torch.manual_seed(5)
        out = made.run(impl, dropout=0.4)
        return out, kit.gradients(made, out, kit.upstream_of(out).to(DEVICE))

    (out, grads), (expected, exact) = run("products"), run("reference")
    torch.testing.assert_close(out, expected, rtol=5e-3, atol=5e-3)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, exact[name], rtol=2e-2, atol=2e-2)


# Operations that touch no number.
_VIEWS = {
    "unsqueeze", "view", "_unsafe_view", "detach", "expand", "transpose", "t", "squeeze", "select", "slice", "alias",
    "empty", "new_empty", "empty_like", "as_strided", "promote_types", "lift_fresh",
}  # fmt: skip


class Launches(TorchDispatchMode):
    """The operations of a device, by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.inside = False
        # The eager road, as without a mode; `bmm` of halves, which a CPU has not; and kernels, of many operations here.
        monkeypatch.setattr(operators, "is_eager", lambda: True)
        self._count(monkeypatch, products, "product")
        self._count(monkeypatch, launch, "launch")

    def _count(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        real = getattr(module, name)

        def counted(*args: Any, **options: Any) -> Any:
            self.seen.append(name)
            self.inside = True
            try:
                return real(*args, **options)
            finally:
                self.inside = False

        monkeypatch.setattr(module, name, counted)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = op.overloadpacket.__name__
        if not self.inside and name not in _VIEWS:
            self.seen.append(name)
        return op(*args, **(kwargs or {}))


@pytest.mark.skipif(not gpu_launch._INTERPRETED, reason="operations are counted in the interpreter")
def test_launches_are_at_most_four_more_than_plain_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = [t.to(torch.bfloat16).requires_grad_() for t in numbers(2, 5, 7, 3, 2)]
    q, k, w, v = operands
    counts = {}
    with Launches(monkeypatch) as counted:
        for name in ("plain", "products"):
            if name == "plain":
                out = ((q[:, :, None] + k[:, None]).tanh() @ w).softmax(-1) @ v
            else:
                out = dikkat.attend(q, k, v, score=given(w), impl="products")
            forward = len(counted.seen)
            torch.autograd.grad(out, operands, out.detach())
            counts[name] = forward, len(counted.seen)
            counted.seen.clear()
    assert counts["plain"] == (5, 13)
    assert counts["products"][0] <= counts["plain"][0] + 4
    assert counts["products"][1] <= counts["plain"][1] + 4
