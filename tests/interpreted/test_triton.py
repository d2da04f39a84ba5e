"""The Triton kernels against float64: every score, restriction, range, profile and path."""

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import dikkat
import kit
from dikkat import scores
from dikkat._core.implementations.triton import launch as gpu_launch
from kit import CASES, RESTRICTIONS

# NumPy, which the interpreter runs on, warns of an ∞ or NaN that is selected against; a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")

DEVICE = "cpu" if gpu_launch._INTERPRETED else "cuda"
DISTANCES = [name for name, case in CASES.items() if case.make().pair == "distance" and name != "gaussian"]


def moved(made: kit.Call) -> kit.Call:
    """The call on the device, with leaves of its own."""

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.detach().to(DEVICE).requires_grad_(value.requires_grad)

    return kit.replace(
        made,
        score=copy.deepcopy(made.score).to(DEVICE),
        query=move(made.query),
        key=move(made.key),
        value=move(made.value),
        restricted={name: move(value) for name, value in made.restricted.items()},
    )


def single(case: str, restriction: str, **more: Any) -> kit.Call:
    return moved(kit.call(case, restriction, **more).to(torch.float32))


def results(made: kit.Call) -> dict[str, Tensor]:
    """Output, states, weights and every gradient."""
    state = made.state("triton")
    out, weights = made.run("triton", return_weights=True)
    plain = made.run("triton")
    torch.testing.assert_close(out, plain, rtol=0, atol=0)
    found = {"output": plain, "lse": state.lse.to(plain.dtype), "weights": weights}
    found |= kit.gradients(made, plain, kit.upstream_of(plain).to(DEVICE))
    return {name: tensor.detach().cpu() for name, tensor in found.items()}


def trained(made: kit.Call) -> dict[str, Tensor]:
    """Output and gradients."""
    out = made.run("triton")
    return {"output": out.detach()} | kit.gradients(made, out, kit.upstream_of(out).to(DEVICE))


# --- against the twin


@pytest.mark.parametrize(
    ("case", "restriction", "dtype"),
    [("additive", r, torch.float32) for r in RESTRICTIONS if r not in kit.REFUSED]
    + [(c, r, torch.float32) for c in DISTANCES for r in ("none", "all")]
    + [("gaussian, learned", "mask a head", torch.float32), ("gaussian, learned", "lengths a query", torch.float32)]
    + [(c, "all", d) for c in ("additive", "gaussian, learned") for d in (torch.bfloat16, torch.float16)],
    ids=str,
)
def test_results_are_within_the_error_budget(case: str, restriction: str, dtype: torch.dtype) -> None:
    budget = kit.expected(case, restriction, dtype)
    with kit.record() as ran:
        found = results(moved(kit.call(case, restriction, round_to=dtype).to(dtype)))
    assert set(ran) == {"triton"}
    for name, came in found.items():
        kit.assert_within_budget(name, came, budget)


@pytest.mark.parametrize("case", ["additive", "gaussian, learned"])
def test_gradients_through_log_sum_exp_and_weights(case: str) -> None:
    def loss(out: Tensor, lse: Tensor, weights: Tensor) -> Tensor:
        live = lse.isfinite()
        return torch.where(live, lse, 0.0).sin().sum() + weights.sin().sum() + out.cos().sum()

    exact, plain = (kit.call(case, "all", round_to=torch.float32).to(d) for d in (torch.float64, torch.float32))
    made = moved(plain)
    exact_grads, plain_grads = (kit.gradients(c, loss(*kit.twin(c)), torch.ones(())) for c in (exact, plain))
    out, weights = made.run("triton", return_weights=True)
    lse = made.state("triton").lse
    came = kit.gradients(made, loss(out, lse, weights), torch.ones((), device=DEVICE))
    for name, grad in came.items():
        assert_as_good(name, grad.cpu(), exact_grads[name], plain_grads[name], exact_grads[name].abs().max() * kit.KEYS)


def assert_as_good(name: str, came: Tensor, exact: Tensor, plain: Tensor, scale: Tensor) -> None:
    """The error budget: twice plain PyTorch's error, and 4·eps·S."""
    error, allowed = ((t.double() - exact).abs().max() for t in (came, plain))
    allowed = 2 * allowed + 4 * torch.finfo(came.dtype).eps * scale
    assert bool(error <= allowed), f"{name}: error {error:.3g}, allowed {allowed:.3g}"


# --- ranges


class Dense(NamedTuple):
    """Attention as the textbook has it, and its gradients with respect to query, key, v and value."""

    output: Tensor
    query: Tensor
    key: Tensor
    weight: Tensor
    value: Tensor


def dense(query: Tensor, key: Tensor, weight: Tensor, value: Tensor, dtype: torch.dtype) -> Dense:
    leaves = [t.detach().to(dtype, copy=True).requires_grad_() for t in (query, key, weight, value)]
    q, k, w, v = leaves
    out = ((q[:, None] + k[None]).tanh() @ w).softmax(-1) @ v
    return Dense(out.detach(), *torch.autograd.grad(out, leaves, kit.upstream_of(out).to(dtype)))


def scales(query: Tensor, key: Tensor, weight: Tensor, value: Tensor) -> Dense:
    """S of each: the sum of the absolute values of what it sums."""
    q, k, w, v = (t.double() for t in (query, key, weight, value))
    tanh = (q[:, None] + k[None]).tanh()
    weights = (tanh @ w).softmax(-1)
    upstream = kit.upstream_of(weights @ v).abs()
    wanted = upstream @ v.abs().mT
    by_score = (weights * (wanted + (weights * wanted).sum(-1, keepdim=True)))[..., None]
    by_pair = by_score * (1 - tanh.square()) * w.abs()
    sums = v.abs(), by_pair.sum(1), by_pair.sum(0), (by_score * tanh.abs()).sum((0, 1)), weights.mT @ upstream
    return Dense(*(t.max() for t in sums))


def given(weight: Tensor) -> scores.Score:
    """Additive, of queries and keys that are projected already."""

    class Given(scores.Score):
        pair = "additive"

        def pair_weight(self) -> Tensor:
            return weight

    return Given()


def attended(query: Tensor, key: Tensor, weight: Tensor, value: Tensor) -> Dense:
    leaves = [t.detach().to(DEVICE).requires_grad_() for t in (query, key, weight, value)]
    out = dikkat.attend(leaves[0], leaves[1], leaves[3], score=given(leaves[2]), impl="triton")
    grads = torch.autograd.grad(out, leaves, kit.upstream_of(out).to(DEVICE, torch.float32))
    return Dense(*(t.detach().cpu() for t in (out, *grads)))


def assert_within_budget(*operands: Tensor) -> None:
    exact, plain = dense(*operands, torch.float64), dense(*operands, torch.float32)
    for name, came, true, near, scale in zip(
        Dense._fields, attended(*operands), exact, plain, scales(*operands), strict=True
    ):
        assert_as_good(name, came, true, near, scale)


def spike(tensor: Tensor, row: int, feature: int, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor[row, feature] = value
    return tensor


# What is done to random queries and keys, and the largest max|q| + max|k| of a tile that follows.
RANGES: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], float, float]] = {
    "tiny": (lambda q, k: (1e-3 * q, 1e-3 * k), 0, 1),
    "small": (lambda q, k: (0.01 * q, 0.01 * k), 0, 1),
    "subnormal": (lambda q, k: (1e-39 * q, 1e-39 * k), 0, 1),
    "normal": (lambda q, k: (q, k), 1, 19),
    "four times": (lambda q, k: (6 * q, 6 * k), 19, 43),
    "two against one": (lambda q, k: (q.clamp(-1, 1) * 37, k.clamp(-1, 1) * 8), 43, 46),
    "thirty times": (lambda q, k: (30 * q, 30 * k), 46, math.inf),
    "opposite": (lambda q, k: (18 + 0 * q, -18 + 0.01 * k), 19, 43),
    "opposite and far": (lambda q, k: (1000 + 0 * q, -1000 + k), 46, math.inf),
    "one key": (lambda q, k: (q, spike(k, 20, 1, 1e4)), 46, math.inf),
    "one query": (lambda q, k: (spike(q, 3, 0, -1e4), k), 46, math.inf),
    "both, of other signs": (lambda q, k: (spike(q, 3, 0, -1e4), spike(k, 4, 0, 1e4)), 46, math.inf),
    "largest": (lambda q, k: (spike(q, 0, 0, 3e38), spike(k, 0, 1, -3e38)), 46, math.inf),
}


@pytest.mark.parametrize("how", RANGES)
def test_every_range_is_within_the_error_budget(how: str) -> None:
    torch.manual_seed(0)
    change, low, high = RANGES[how]
    query, key = change(torch.randn(19, 7), torch.randn(29, 7))
    assert low < float(query.abs().max() + key.abs().max()) <= high or how == "subnormal"
    operands = query, key, torch.randn(7), torch.randn(29, 5)
    assert_within_budget(*operands)


def test_folded_reciprocals_do_not_overflow_where_a_small_one_matters() -> None:
    """One feature of four near 0, the others as large as their range has them, or beyond; v of any size."""
    for reach, heavy in ((19.0, 1e30), (19.0, 1e-30), (29.0, 1.0), (46.0, 1.0), (60.0, 1.0)):
        query = torch.tensor([[reach / 2, reach / 2, reach / 2, -reach / 2 + 0.3, 0.0]]).repeat(17, 1)
        query = query.clamp(-38, 38)
        key = torch.tensor([[reach / 2, reach / 2, reach / 2, reach / 2, 0.1]]) * torch.linspace(0.9, 1, 17)[:, None]
        weight = torch.tensor([0.5, -0.25, 0.125, 1.0, -0.5]) * heavy
        operands = query, key, weight, torch.randn(17, 3)
        exact, plain = dense(*operands, torch.float64), dense(*operands, torch.float32)
        assert_as_good("output", attended(*operands).output, exact.output, plain.output, operands[3].abs().max())


@pytest.mark.parametrize("features", [1, 17, 1031])
def test_any_number_of_features(features: int) -> None:
    torch.manual_seed(features)
    operands = torch.randn(2, features), torch.randn(3, features), torch.randn(features) / features, torch.randn(3, 37)
    assert_within_budget(*operands)


def test_a_triangular_kernel_has_no_slope_at_its_tip() -> None:
    x = torch.randn(3, 2, device=DEVICE, requires_grad=True)
    out = dikkat.attend(x, x.detach(), x.detach(), score=scores.Triangular(9.0), impl="triton")
    expected = dikkat.attend(x, x.detach(), x.detach(), score=scores.Triangular(9.0), impl="reference")
    came, exact = (torch.autograd.grad(t, x, kit.upstream_of(t).to(DEVICE, torch.float32))[0] for t in (out, expected))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(came, exact, rtol=1e-4, atol=1e-5)


# --- what is hidden


@pytest.mark.parametrize("how", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["key", "value"])
@pytest.mark.parametrize("case", ["additive", "gaussian, learned", "epanechnikov"])
def test_a_key_hidden_from_some_reaches_only_those_who_see_it(case: str, where: str, how: float) -> None:
    mask = torch.zeros(kit.QUERIES, kit.KEYS, dtype=torch.bool, device=DEVICE)
    mask[:2, :4] = mask[2:, 3:] = True  # the first rows see key 1; the others do not, nor do the first see keys 4 ... 6
    made = kit.replace(single(case, "none"), restricted={"mask": mask})
    tensor = getattr(made, where).detach().clone()
    tensor[..., 1, :] = how
    poisoned = kit.replace(made, **{where: tensor.requires_grad_()})
    clean, dirty = made.run("triton"), poisoned.run("triton")
    torch.testing.assert_close(dirty[..., 2:, :], clean[..., 2:, :], rtol=1e-5, atol=1e-5)
    upstream = kit.upstream_of(clean).to(DEVICE)
    upstream[..., :2, :] = 0
    expected, came = (kit.gradients(c, out, upstream) for c, out in ((made, clean), (poisoned, dirty)))
    torch.testing.assert_close(came["query"][..., 2:, :], expected["query"][..., 2:, :], rtol=1e-4, atol=1e-5)
    for name in ("key", "value"):
        torch.testing.assert_close(came[name][..., 4:, :], expected[name][..., 4:, :], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["additive", "gaussian, learned"])
def test_a_visible_nan_is_not_swallowed(case: str) -> None:
    for restriction, where in (("mask", "value"), ("none", "value"), ("mask", "key")):
        made = single(case, restriction)
        tensor = getattr(made, where).detach().clone()
        tensor[..., 1, :] = math.nan
        sees = kit.seen_pairs(made)[..., 1]
        out = kit.replace(made, **{where: tensor}).run("triton")
        assert bool(out[sees].isnan().all())
        assert bool(out[~sees].isfinite().all())


@pytest.mark.parametrize("case", ["additive", "epanechnikov"])
@pytest.mark.parametrize("restriction", ["lengths", "mask", "causal"])
def test_a_row_without_a_key_is_zero_everywhere(case: str, restriction: str) -> None:
    made = single(case, restriction, queries=kit.KEYS + 4 if restriction == "causal" else kit.QUERIES)
    empty = ~kit.seen_pairs(made).any(-1)
    assert bool(empty.any())
    query = made.query.detach().clone()
    query[empty] = math.nan
    made = kit.replace(made, query=query.requires_grad_())
    out = made.run("triton")
    assert bool((out[empty] == 0).all())
    upstream = kit.upstream_of(out).to(DEVICE)
    upstream[empty] = math.nan
    for name, grad in kit.gradients(made, out, upstream).items():
        assert bool(grad.isfinite().all()), name
        if name == "query":
            assert bool((grad[empty] == 0).all())


@pytest.mark.skipif(DEVICE != "cpu", reason="tiles are counted in the interpreter")
@pytest.mark.parametrize(
    ("limits", "tiles"),
    [
        ({}, 9 * 2),
        ({"valid_lens": torch.tensor([37, 16])}, 9 + 3),
        ({"valid_lens": torch.tensor([0, 17])}, 0 + 6),
        ({"valid_lens": torch.cat([torch.full((2, 16), 5), torch.full((2, 21), 33)], 1)}, 2 * (1 + 3 + 3)),
        ({"causal": True}, 2 * (1 + 2 + 3)),
    ],
)
def test_tiles_in_which_nobody_sees_a_key_are_skipped(
    limits: dict[str, Any], tiles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dikkat._core.implementations.triton import kernel as gpu_kernel

    scored, seen = gpu_kernel.score_tile, []
    monkeypatch.setattr(gpu_kernel, "score_tile", lambda *args: seen.append(1) or scored(*args))
    x = torch.randn(2, 37, 3, requires_grad=True)
    out = dikkat.attend(x, x, x, score=scores.Gaussian(1.0), impl="triton", **limits)
    assert len(seen) == tiles
    out.sum().backward()
    assert len(seen) == 2 * tiles


# --- dropout


@pytest.mark.parametrize("case", ["additive", "gaussian, learned"])
def test_dropout_drops_what_the_reference_drops(case: str) -> None:
    made = single(case, "lengths a query")

    def run(impl: str, dropout: float) -> tuple[Tensor, dict[str, Tensor]]:
        torch.manual_seed(5)
        out = made.run(impl, dropout=dropout)
        return out, kit.gradients(made, out, kit.upstream_of(out).to(DEVICE))

    for dropout in (0.4, 1.0):
        (out, grads), (expected, exact) = run("triton", dropout), run("reference", dropout)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        for name, grad in grads.items():
            torch.testing.assert_close(grad, exact[name], rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    assert not bool(out.any())


# --- shapes


@pytest.mark.parametrize("case", ["additive", "gaussian, learned"])
@pytest.mark.parametrize(
    ("query", "key", "value", "lead"),
    [((), (), (), ()), ((3,), (2, 1), (2, 3), (2, 3)), ((2, 1, 1, 3), (5, 1, 1), (2, 5, 1, 3), (2, 5, 1, 3))],
)
def test_leading_dimensions_broadcast(
    case: str, query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], lead: tuple[int, ...]
) -> None:
    made = kit.call(case, "none")
    sizes = ((query, 5, CASES[case].query_features), (key, 7, kit.FEATURES), (value, 7, 11))
    q, k, v = (torch.randn(*shape, n, d, dtype=torch.float64, requires_grad=True) for shape, n, d in sizes)
    valid_lens = torch.tensor(4) if not lead else torch.randint(1, 8, lead[:1])
    exact = kit.replace(made, query=q, key=k, value=v, restricted={"valid_lens": valid_lens})
    few = moved(exact.to(torch.float32))
    few = kit.replace(few, key=few.key.detach().expand(*few.key.shape).requires_grad_())
    out, expected = few.run("triton"), exact.run("reference")
    torch.testing.assert_close(out.cpu(), expected.float(), rtol=1e-5, atol=1e-5)
    upstream = kit.upstream_of(out)
    true = kit.gradients(exact, expected, upstream)
    for name, grad in kit.gradients(few, out, upstream.to(DEVICE)).items():
        torch.testing.assert_close(grad.cpu(), true[name].float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ["additive", "epanechnikov"])
def test_strides(case: str) -> None:
    made = single(case, "all")

    def strange(tensor: Tensor) -> Tensor:
        stored = tensor.detach().permute(3, 1, 0, 2).contiguous().repeat_interleave(2, 0)
        return stored[::2].permute(2, 1, 3, 0).requires_grad_()

    odd = kit.replace(made, query=strange(made.query), key=strange(made.key), value=strange(made.value))
    assert odd.key.stride() != made.key.stride()
    expected = trained(made)
    for name, came in trained(odd).items():
        torch.testing.assert_close(came, expected[name], rtol=1e-5, atol=1e-5)


def test_operands_that_repeat_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is expanded over the batch is prepared once."""
    prepared, counts = gpu_launch._feature_major, []

    def count(*args: Any) -> tuple[Tensor, Tensor]:
        made, peaks = prepared(*args)
        counts.append(made.shape[0])
        return made, peaks

    monkeypatch.setattr(gpu_launch, "_feature_major", count)
    query, key = torch.randn(5, 3, 4, device=DEVICE), torch.randn(7, 4, device=DEVICE).expand(5, 7, 4)
    score = given(torch.randn(4, device=DEVICE))
    out = dikkat.attend(query, key, key, score=score, impl="triton")
    assert counts == [5, 1]
    torch.testing.assert_close(out, dikkat.attend(query, key, key, score=score, impl="reference"))


@pytest.mark.parametrize("case", ["additive", "epanechnikov"])
@pytest.mark.parametrize(("queries", "keys", "batch"), [(0, 7, 2), (5, 0, 2), (5, 7, 0), (1, 1, 1), (0, 0, 0)])
def test_nothing_to_attend(case: str, queries: int, keys: int, batch: int) -> None:
    made = kit.call(case, "none")
    q, k, v = (
        torch.randn(batch, n, d, dtype=torch.float64, requires_grad=True)
        for n, d in ((queries, CASES[case].query_features), (keys, 4), (keys, 3))
    )
    exact = kit.replace(made, query=q, key=k, value=v, restricted={"causal": True})
    made = moved(exact.to(torch.float32))
    out, expected = made.run("triton"), exact.run("reference")
    torch.testing.assert_close(out.cpu(), expected.float(), rtol=1e-5, atol=1e-5)
    for name, grad in kit.gradients(made, out, torch.ones_like(out)).items():
        true = kit.gradients(exact, expected, torch.ones_like(expected))[name]
        torch.testing.assert_close(grad.cpu(), true.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["additive", "triangular"])
def test_parts_of_the_backward_add_up_and_are_the_same_each_time(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = single(case, "all", queries=5)
    query = made.query.detach().repeat(1, 1, 4, 1).requires_grad_()  # two blocks of queries
    limits = {"causal": True, "key_bias": made.restricted["key_bias"], "mask": torch.rand(20, 7).to(DEVICE) < 0.8}
    limits |= {
        "exclude": torch.randint(-1, 7, (20,)).to(DEVICE),
        "valid_lens": torch.randint(2, 8, (kit.BATCH, 20)).to(DEVICE),
    }
    made = kit.replace(made, query=query, restricted=limits)
    whole = trained(made)
    for name, again in trained(made).items():
        torch.testing.assert_close(whole[name], again, rtol=0, atol=0)
    for pairs in (16 * kit.KEYS, 2 * 20 * kit.KEYS):  # a block of rows at a time; two batch elements at a time
        monkeypatch.setattr(gpu_launch, "_PAIRS", pairs)
        for name, came in trained(made).items():
            torch.testing.assert_close(came, whole[name], rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


# --- under transforms; the operator's own code is that of all, which `test_transforms` checks


def test_compile_and_vmap() -> None:
    made = single("additive", "lengths")

    def run(query: Tensor) -> Tensor:
        return dikkat.attend(query, made.key, made.value, score=made.score, impl="triton", **made.restricted)

    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(made.query), run(made.query), rtol=0, atol=0)
    queries = torch.stack([made.query.detach(), -made.query.detach()])
    torch.testing.assert_close(torch.func.vmap(run)(queries), torch.stack([run(q) for q in queries]))


@pytest.mark.skipif(DEVICE != "cuda", reason="larger than the interpreter has time for")
@pytest.mark.parametrize(("queries", "keys", "features", "values"), [(300, 500, 130, 64), (1, 50, 512, 512)])
def test_tiles_of_their_own_size(
    queries: int, keys: int, features: int, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    torch.manual_seed(0)
    operands = (
        torch.randn(queries, features), torch.randn(keys, features), torch.randn(features) / 8,
        torch.randn(keys, values),
    )  # fmt: skip
    assert_within_budget(*operands)
