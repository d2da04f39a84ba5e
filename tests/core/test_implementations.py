"""Every implementation × score × restriction × dtype against the twin in `kit.py`."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import dikkat
import kit
from dikkat import scores
from dikkat._core import dispatch
from dikkat._core.implementations import BACKENDS
from kit import (
    CASES,
    DTYPES,
    KEYS,
    KINDS,
    RESTRICTIONS,
    WITH_STATES,
    assert_refused,
    every_case,
    every_kind,
    over,
    runs,
    seen_pairs,
)

HALVES = ["none", "lengths", "all"]  # what the half types are tried with


def _is_tried(restriction: str, dtype: torch.dtype, way: str = "", **_: str) -> bool:
    return dtype.itemsize > 2 or restriction in HALVES or way.startswith("products")


@kit.each("case", CASES)
def test_what_must_run_runs(case: str) -> None:
    """And nothing else does: a refusal of everything would leave the tests below without a call."""
    for restriction in RESTRICTIONS:
        made = kit.call(case, restriction)
        for way in BACKENDS:
            if way == "triton":
                continue  # tests/interpreted has it
            assert (not made.obstacles(way)) == runs(way, case, restriction), (way, restriction)
            for more in ({"return_weights": True}, {"return_state": True}, {"dropout": 0.5}):
                found = dikkat.implementations(
                    made.query, made.key, made.value, score=made.score, **made.restricted, **more
                )
                able = way in (kit.GENERAL if "dropout" in more else WITH_STATES)
                expected = able and runs(way, case, restriction)
                assert next(i for i in found if i.name == way).runs == expected, (way, restriction, more)


@pytest.mark.parametrize(
    ("case", "restriction"), [("additive", "none"), ("dot", "causal"), ("dot", "exclude"), ("dot", "bias")]
)
def test_what_does_not_run_is_refused(case: str, restriction: str) -> None:
    assert not runs("sdpa", case, restriction)
    assert_refused("sdpa", kit.call(case, restriction))
    for more in ({"return_weights": True}, {"dropout": 0.5}):
        assert_refused("sdpa", kit.call("dot", "none"), **more)


@over(restriction=list(RESTRICTIONS), dtype=DTYPES, valid=_is_tried)
def test_values_and_gradients(way: str, case: str, restriction: str, dtype: torch.dtype) -> None:
    made = kit.call(case, restriction, round_to=dtype).to(dtype)
    budget = kit.expected(case, restriction, dtype)
    with kit.chosen(way) as impl:
        for kept in (False, True):  # the second call is run by the program that the first one made
            if bool(dispatch._PROGRAMS) != kept:
                continue
            with kit.record() as ran:
                out = made.run()
            assert ran == [impl]
            assert out.dtype == dtype
            came = {"output": out} | kit.gradients(made, out, kit.upstream_of(out))
            for name, tensor in came.items():
                assert tensor.dtype == dtype
                kit.assert_within_budget(name, tensor.detach(), budget)


@kit.each(
    ("case", "restriction", "shared", "dtype", "asked"),
    kit.pairwise(
        {
            "case": KINDS,
            "restriction": list(RESTRICTIONS),
            "shared": ["", "query", "key", "value"],
            "dtype": [torch.float64, torch.float32, torch.bfloat16],
            "asked": ["gradients", "output", "weights"],
        },
        _is_tried,
    ),
)
def test_calls_like_earlier_ones(case: str, restriction: str, shared: str, dtype: torch.dtype, asked: str) -> None:
    """As users call it: `impl="auto"`, and again with other numbers of the same shapes and types."""
    for seed in range(3):
        made = kit.call(case, restriction, round_to=dtype, seed=seed, shared=shared).to(dtype)
        with torch.set_grad_enabled(asked == "gradients"):
            found = made.run(return_weights=asked == "weights")
        came = dict(zip(("output", "weights"), found if asked == "weights" else (found,), strict=False))
        if asked == "gradients":
            came |= kit.gradients(made, found, kit.upstream_of(found))
        budget = kit.expected(case, restriction, dtype, seed, shared)
        for name, tensor in came.items():
            kit.assert_within_budget(name, tensor.detach(), budget)


@over(
    ways=WITH_STATES,
    restriction=list(RESTRICTIONS),
    dtype=[torch.float64, torch.bfloat16],
    valid=lambda way, restriction, dtype, **_: dtype == torch.float64 or restriction == "all" or "products" in way,
)
def test_states_and_weights(way: str, case: str, restriction: str, dtype: torch.dtype) -> None:
    made = kit.call(case, restriction, round_to=dtype).to(dtype)
    budget = kit.expected(case, restriction, dtype)
    with kit.way(way) as impl:
        state = made.state(impl)
        out, weights = made.run(impl, return_weights=True)
        alone = dikkat.attention_weights(made.query, made.key, score=made.score, impl=impl, **made.restricted)
    wide = torch.promote_types(dtype, torch.float32)
    assert (state.mean.dtype, state.lse.dtype, weights.dtype) == (wide, wide, dtype)
    torch.testing.assert_close(alone, weights, rtol=0, atol=0)
    torch.testing.assert_close(out, state.mean.to(dtype), rtol=0, atol=0)
    for name, tensor in (("output", state.mean.to(dtype)), ("lse", state.lse.to(dtype)), ("weights", weights)):
        kit.assert_within_budget(name, tensor.detach(), budget)
    assert bool((state.lse.isinf() == (weights.sum(-1) == 0)).all())


@over(ways=WITH_STATES, cases=KINDS, restriction=["all", "lengths a query", "causal"])
def test_gradients_through_log_sum_exp_and_weights(way: str, case: str, restriction: str) -> None:
    made = kit.call(case, restriction)
    out, lse, weights = kit.twin(made)
    live = lse.isfinite()
    with kit.way(way) as impl:
        state, weighted = made.state(impl), made.run(impl, return_weights=True)
    pairs = [
        (
            torch.where(live, lse, 0.0).sin().sum() + out.sum(),
            torch.where(live, state.lse, 0.0).sin().sum() + state.mean.sum(),
        ),
        (weights.sin().sum() + out.cos().sum(), weighted[1].sin().sum() + weighted[0].cos().sum()),
    ]
    for expected, came in pairs:
        exact, grads = (kit.gradients(made, loss, torch.ones(())) for loss in (expected, came))
        for name in exact:
            size = max(1.0, float(exact[name].abs().max()))  # near the edge of a kernel's support gradients are large
            torch.testing.assert_close(
                grads[name], exact[name], rtol=1e-11, atol=1e-11 * size, msg=lambda m, n=name: f"{n}: {m}"
            )


@over(ways=["reference", "chunked, small tiles"], cases=KINDS, restriction=list(RESTRICTIONS))
def test_gradcheck(way: str, case: str, restriction: str) -> None:
    """Finite differences, empty rows included. Without the kernels' edges, where there is no derivative."""
    made = kit.call(case, restriction, seed=3)
    names = [name for name in made.leaves() if name != "key_bias"]
    leaves = [made.leaves()[name] for name in names]

    class Attend(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = made.score

        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
            state = dikkat.attention_state(query, key, value, score=self.score, impl=impl, **made.restricted)
            return state.mean, torch.where(state.lse.isinf(), 0.0, state.lse)

    module = Attend()

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(names, tensors, strict=True))
        made.restricted.update({name: given.pop(name) for name in names if name in made.restricted})
        sides = [given.pop(name) for name in ("query", "key", "value")]
        return torch.func.functional_call(module, {f"score.{name}": each for name, each in given.items()}, tuple(sides))

    with kit.way(way) as impl:
        assert torch.autograd.gradcheck(run, leaves, fast_mode=True, atol=1e-6)


@pytest.mark.parametrize("case", ["dot", "additive", "gaussian, learned"])
def test_second_derivatives_are_the_references(case: str) -> None:
    made = kit.call(case, "lengths a query")
    assert torch.autograd.gradgradcheck(
        lambda q, k, v: dikkat.attend(q, k, v, score=made.score, impl="reference", **made.restricted),
        (made.query, made.key, made.value),
        fast_mode=True,
    )
    grads = torch.autograd.grad(made.run("chunked").sin().sum(), made.query, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="no second derivatives; impl='reference' has them"):
        grads.sum().backward()


# --- metamorphic


@over(ways=kit.GENERAL, cases=KINDS, restriction=["none", "mask", "bias", "lengths", "all"])
def test_split_and_merge(way: str, case: str, restriction: str) -> None:
    made = kit.call(case, restriction)
    with kit.way(way) as impl:
        whole = made.state(impl)
        parts = [part_state(made, impl, start, stop) for start, stop in ((0, 3), (3, 3), (3, 4), (4, 7))]
    a, b, c, d = parts
    orders = [
        dikkat.merge(dikkat.merge(a, b), dikkat.merge(c, d)),
        dikkat.merge(a, dikkat.merge(b, dikkat.merge(c, d))),
        dikkat.merge(dikkat.merge(d, a), dikkat.merge(c, b)),
    ]
    for state in orders:
        torch.testing.assert_close(state, whole, rtol=1e-12, atol=1e-12)
    upstream = kit.upstream_of(whole.mean)
    expected = kit.gradients(made, whole.mean, upstream)
    for name, grad in kit.gradients(made, orders[0].mean, upstream).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def part_state(made: kit.Call, impl: str, start: int, stop: int) -> dikkat.State:
    """The state over keys start ... stop, with every restriction said as a mask or a bias."""
    cols = slice(start, stop)
    bias, pairs = made.restricted.get("key_bias"), made.restricted.get("bias")
    return dikkat.attention_state(
        made.query,
        made.key[..., cols, :],
        made.value[..., cols, :],
        score=made.score,
        mask=seen_pairs(made)[..., cols],
        bias=None if pairs is None else pairs[..., cols],
        key_bias=None if bias is None else bias[..., cols],
        impl=impl,
    )


@given(
    seed=st.integers(0, 10**6),
    cut=st.lists(st.integers(0, 23), max_size=4),
    spread=st.sampled_from([0.01, 1, 100, 1e4]),
)
@settings(max_examples=60, deadline=None)
def test_merging_any_parts_in_any_order_gives_the_whole(seed: int, cut: list[int], spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(size, dtype=torch.float64, generator=generator) for size in ((3, 2), (23, 2), (23, 5))
    )
    edges = [0, *sorted(cut), 23]
    order = torch.randperm(len(edges) - 1, generator=generator).tolist()
    states = [
        dikkat.attention_state(spread * query, key[a:b], value[a:b], score=scores.Dot())
        for a, b in ((edges[i], edges[i + 1]) for i in order)
    ]
    merged = states[0]
    for state in states[1:]:
        merged = dikkat.merge(merged, state)
    whole = dikkat.attention_state(spread * query, key, value, score=scores.Dot())
    torch.testing.assert_close(merged, whole, rtol=1e-10, atol=1e-10)


@every_kind("mask of keys")
def test_the_order_of_keys_does_not_matter(way: str, case: str) -> None:
    made = kit.call(case, "mask of keys")
    order = torch.randperm(KEYS)
    moved = kit.replace(
        made,
        key=made.key[..., order, :],
        value=made.value[..., order, :],
        restricted={"mask": made.restricted["mask"][..., order]},
    )
    with kit.way(way) as impl:
        torch.testing.assert_close(moved.run(impl), made.run(impl), rtol=1e-12, atol=1e-12)


LEADING = [
    ((), (), (), ()), ((2,), (), (2,), (2,)), ((3,), (2, 1), (2, 3), (2, 3)), ((2, 1), (3,), (), (2, 3)),
    ((2, 1, 3), (5, 1), (2, 5, 3), (2, 5, 3)),
]  # fmt: skip


@over(ways=kit.TRACED, cases=KINDS, leading=LEADING)
def test_leading_dimensions_broadcast(way: str, case: str, leading: tuple[tuple[int, ...], ...]) -> None:
    query, key, value, lead = leading
    made = kit.call(case, "none")
    sizes = ((query, 5, CASES[case].query_features), (key, 7, kit.FEATURES), (value, 7, 11))
    q, k, v = (torch.randn(*shape, n, d, dtype=torch.float64, requires_grad=True) for shape, n, d in sizes)
    valid_lens = torch.tensor(4) if not lead else torch.randint(1, 8, lead[:1])
    small = kit.replace(made, query=q, key=k, value=v, restricted={"valid_lens": valid_lens})
    full = [t.detach().expand(*lead, *t.shape[-2:]).contiguous().requires_grad_() for t in (q, k, v)]
    large = kit.replace(small, query=full[0], key=full[1], value=full[2])
    with kit.way(way) as impl:
        came, expected = small.run(impl), large.run("reference")
    assert came.shape == (*lead, 5, 11)
    torch.testing.assert_close(came, expected, rtol=1e-12, atol=1e-12)
    upstream = kit.upstream_of(came)
    few, many = kit.gradients(small, came, upstream), kit.gradients(large, expected, upstream)
    for name in few:
        torch.testing.assert_close(few[name], many[name].sum_to_size(few[name].shape), rtol=1e-11, atol=1e-11)


def every_other(tensor: Tensor) -> Tensor:
    """The same numbers, which stand in memory in another order and with gaps."""
    stored = tensor.permute(3, 1, 0, 2).contiguous().repeat_interleave(2, 0)
    return stored[::2].permute(2, 1, 3, 0)


def channels_last(tensor: Tensor) -> Tensor:
    """The same numbers, in an order that PyTorch's own functions keep."""
    return tensor.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("strange", "restriction"), [(every_other, "lengths"), (channels_last, "none")])
@every_kind("lengths")
def test_strides(way: str, case: str, strange: Callable[[Tensor], Tensor], restriction: str) -> None:
    made = kit.call(case, restriction)
    query, key, value = (strange(t.detach()).requires_grad_() for t in (made.query, made.key, made.value))
    odd = kit.replace(made, query=query, key=key, value=value)
    assert key.stride() != made.key.stride()
    with kit.way(way) as impl:
        came, expected = odd.run(impl), made.run(impl)
    torch.testing.assert_close(came, expected, rtol=1e-12, atol=1e-12)
    upstream = kit.upstream_of(came)
    exact = kit.gradients(made, expected, upstream)
    for name, grad in kit.gradients(odd, came, upstream).items():
        torch.testing.assert_close(grad, exact[name], rtol=1e-11, atol=1e-12)


@over(ways=kit.GENERAL, cases=KINDS, sizes=[(0, 7, 2), (5, 0, 2), (5, 7, 0), (1, 1, 1), (0, 0, 0)])
def test_nothing_to_attend(way: str, case: str, sizes: tuple[int, int, int]) -> None:
    queries, keys, batch = sizes
    made = kit.call(case, "none")
    q, k, v = (
        torch.randn(batch, n, d, dtype=torch.float64, requires_grad=True)
        for n, d in ((queries, CASES[case].query_features), (keys, 4), (keys, 3))
    )
    made = kit.replace(
        made, query=q, key=k, value=v, restricted={"valid_lens": torch.full((batch,), keys), "causal": True}
    )
    with kit.way(way) as impl:
        out = made.run(impl)
    assert out.shape == (batch, queries, 3)
    assert bool(out.isfinite().all())
    for grad in kit.gradients(made, out, torch.ones_like(out)).values():
        assert bool(grad.isfinite().all())


@every_case("mask of keys")
def test_callers_tensors_are_not_written_to(way: str, case: str) -> None:
    for restriction in ("all", "mask of keys"):
        if not runs(way, case, restriction):
            continue
        made = kit.call(case, restriction)
        tensors = [made.query, made.key, made.value, *(t for t in made.restricted.values() if isinstance(t, Tensor))]
        before = [(t.detach().clone(), t._version) for t in tensors]
        with kit.way(way) as impl:
            made.run(impl).sum().backward()
        for tensor, (copy, version) in zip(tensors, before, strict=True):
            torch.testing.assert_close(tensor.detach(), copy, rtol=0, atol=0)
            assert tensor._version == version


# --- dropout


def seeded(made: kit.Call, impl: str, dropout: float, seed: int = 5) -> Tensor:
    torch.manual_seed(seed)
    return made.run(impl, dropout=dropout)


@every_kind(ways=kit.GENERAL)
def test_dropout_follows_the_seed_and_the_gradient_follows_dropout(way: str, case: str) -> None:
    made = kit.call(case, "lengths a query")
    with kit.way(way) as impl:
        first, again, other = (seeded(made, impl, 0.4, seed) for seed in (5, 5, 6))
        torch.testing.assert_close(first, again, rtol=0, atol=0)
        assert not torch.equal(first, other)
        torch.testing.assert_close(seeded(made, "reference", 0.4), first, rtol=1e-12, atol=1e-12)
        assert torch.autograd.gradcheck(
            lambda q, k, v: seeded(kit.replace(made, query=q, key=k, value=v), impl, 0.4),
            (made.query, made.key, made.value),
            fast_mode=True,
        )
        assert bool((seeded(made, impl, 1.0) == 0).all())
        torch.manual_seed(5)
        torch.testing.assert_close(made.state(impl, dropout=0.4).lse, made.state(impl).lse)
        torch.manual_seed(5)
        before, plain = (made.run(impl, dropout=p, return_weights=True)[1] for p in (0.4, 0.0))
        torch.testing.assert_close(before, plain, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("way", [way for way in kit.GENERAL if kit.runs(way, "average")])
def test_dropout_drops_the_share_it_is_told_and_keeps_the_mean(way: str) -> None:
    torch.manual_seed(0)
    with kit.way(way) as impl:
        eye = dikkat.attend(
            torch.zeros(40, 101, 1),
            torch.zeros(40, 103, 1),
            torch.eye(103),
            score=scores.Average(),
            dropout=0.3,
            impl=impl,
        )
    kept = (eye != 0).double()
    count = kept.numel()
    assert abs(kept.mean() - 0.7) < 4 * math.sqrt(0.21 / count)
    torch.testing.assert_close(eye[eye != 0], torch.full_like(eye[eye != 0], 1 / 103 / 0.7))
    # No row, key or batch element repeats another: neighbours agree as often as chance has it (0.49 + 0.09).
    for dim in range(3):
        agree = (kept == kept.roll(1, dim)).double().mean()
        assert abs(agree - 0.58) < 5 * math.sqrt(0.25 / count)


# --- magnitudes


@over(under="lengths", size=[1e-30, 1e-3, 1e4, 1e8, 1e15])
def test_any_finite_magnitude_gives_finite_results(way: str, case: str, size: float) -> None:
    made = kit.call(case, "lengths")
    score = made.score
    q, k, v = ((t.detach() * size).float().requires_grad_() for t in (made.query, made.key, made.value))
    made = kit.replace(made, score=score.float(), query=q, key=k, value=v)
    with kit.way(way) as impl:
        out = made.run(impl)
    assert bool(out.isfinite().all())
    assert bool((out.abs() <= v.abs().max() * (1 + 1e-5)).all())


@pytest.mark.parametrize("way", [way for way in kit.WAYS if kit.runs(way, "dot", "lengths")])
def test_scores_far_below_minus_a_million(way: str) -> None:
    """A mask by a large negative number would let padding win here."""
    q, k = torch.full((1, 2, 3), -3e4), torch.full((1, 5, 3), 3e4)
    k[:, 1] *= 1.001
    v = torch.arange(5.0).reshape(1, 5, 1)
    with kit.way(way) as impl:
        out = dikkat.attend(q, k, v, score=scores.Dot(), valid_lens=torch.tensor([2]), impl=impl)
    torch.testing.assert_close(out, torch.zeros(1, 2, 1))


# --- choosing


def test_looking_at_implementations_draws_no_random_number() -> None:
    made = kit.call("dot", "none")
    before = torch.get_rng_state()
    made.obstacles("sdpa", dropout=0.5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("device", kit.DEVICES)
@every_kind("lengths")
def test_devices(way: str, case: str, device: str) -> None:
    made = kit.call(case, "lengths").to(torch.float32)
    expected = made.run("reference")
    moved = kit.replace(
        made,
        score=made.score.to(device),
        query=made.query.detach().to(device).requires_grad_(),
        key=made.key.detach().to(device).requires_grad_(),
        value=made.value.detach().to(device).requires_grad_(),
        restricted={name: t.to(device) for name, t in made.restricted.items()},
    )
    if device != "cpu" and way in ("numba", "numba-few"):
        assert_refused(way, moved)
        return
    with kit.way(way) as impl:
        came = moved.run(impl)
        came.sum().backward()
    torch.testing.assert_close(came.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_shapes_can_be_found_without_data() -> None:
    x = torch.empty(2, 3, 8, device="meta")
    out = dikkat.attend(x, x, x, score=scores.ScaledDot(), valid_lens=torch.empty(2, dtype=torch.int64, device="meta"))
    assert (out.shape, out.device.type) == ((2, 3, 8), "meta")


def test_implementations_name_the_one_that_auto_runs_first() -> None:
    for case, restriction in (("scaled dot", "none"), ("additive", "lengths"), ("gaussian", "all")):
        made = kit.call(case, restriction)
        found = dikkat.implementations(made.query, made.key, made.value, score=made.score, **made.restricted)
        assert {i.name for i in found} == set(BACKENDS)
        assert all(i.runs == (not i.reasons) for i in found)
        with kit.record() as ran:
            made.run()
        assert ran == [found[0].name]


def test_large_problems_go_to_what_needs_linear_memory() -> None:
    x = torch.zeros(1, 300, 64)
    found = dikkat.implementations(x, x, x, score=scores.Additive(64, 64, 64))
    assert found[0].name == "numba"
    # The compiled kernels' call takes longer than plain PyTorch on little.
    assert (
        dikkat.implementations(x[:, :1, :8], x[:, :5, :8], x[:, :5], score=scores.Additive(8, 8, 64))[0].name
        == "reference"
    )
    large = torch.zeros(1, 2100, 1).expand(-1, -1, 8)
    inner = dikkat.implementations(large, large, large, score=scores.Dot(), return_weights=True)
    assert inner[0].name == "chunked"
    weights = dikkat.implementations(x, x, x, score=scores.Dot(), return_weights=True)
    assert weights[0].name == "reference"
    assert [i.name for i in weights[1:]] == [name for name in BACKENDS if name != "reference"]  # the table's order


def test_an_unknown_implementation_is_an_error() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"impl: got 'flash'; expected 'auto', 'sdpa', 'reference', 'chunked'"):
        dikkat.attend(x, x, x, score=scores.Dot(), impl="flash")
