"""Every implementation × score × restriction × dtype against the twin in `kit.py`."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import dikkat
import kit
from dikkat import scores
from dikkat.kernels import KERNELS, chunked
from kit import CASES, DTYPES, KEYS, RESTRICTIONS, WAYS

every_case = pytest.mark.parametrize(("way", "case"), [(w, c) for w in WAYS for c in CASES])
# One score of each pair function, and one whose support ends.
KINDS = ["scaled dot", "additive", "gaussian", "epanechnikov"]
every_kind = pytest.mark.parametrize(("way", "case"), [(w, c) for w in WAYS for c in KINDS])
WITH_STATES = [w for w in WAYS if w != "sdpa"]
HALVES = ["none", "lengths", "all"]  # what the half types are tried with


def serves(way: str, made: kit.Call, **more: Any) -> bool:
    """Whether the implementation runs this call; where it does not, it must raise, and say why."""
    reasons = made.obstacles(way.split(",")[0], **more)
    if reasons:
        with pytest.raises(ValueError, match="cannot run this call"):
            made.run(way, **more)
    return not reasons


@pytest.mark.parametrize(
    ("way", "case", "restriction", "dtype"),
    [(w, c, r, d) for w in WAYS for c in CASES for r in RESTRICTIONS for d in DTYPES if d.itemsize > 2 or r in HALVES],
    ids=str,
)
def test_values_and_gradients(way: str, case: str, restriction: str, dtype: torch.dtype) -> None:
    made = kit.call(case, restriction, round_to=dtype).to(dtype)
    if not serves(way, made):
        return
    budget = kit.expected(case, restriction, dtype)
    with kit.way(way) as impl, kit.record() as ran:
        out = made.run(impl)
        came = {"output": out} | kit.gradients(made, out, kit.upstream_of(out))
    assert ran == [impl]
    assert out.dtype == dtype
    for name, tensor in came.items():
        assert tensor.dtype == dtype
        kit.assert_within_budget(name, tensor.detach(), budget)


@pytest.mark.parametrize(
    ("way", "case", "restriction", "dtype"),
    [(w, c, r, torch.float64) for w in WAYS for c in CASES for r in RESTRICTIONS]
    + [(w, c, "all", torch.bfloat16) for w in WAYS for c in CASES],
    ids=str,
)
def test_states_and_weights(way: str, case: str, restriction: str, dtype: torch.dtype) -> None:
    if way == "sdpa":
        assert not serves(way, kit.call(case, restriction), return_weights=True)
        return
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


@every_kind
def test_gradients_through_log_sum_exp_and_weights(way: str, case: str) -> None:
    made = kit.call(case, "all")
    if way == "sdpa":
        assert not serves(way, made, return_weights=True)
        return
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
            torch.testing.assert_close(
                grads[name], exact[name], rtol=1e-11, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}"
            )


@pytest.mark.parametrize("restriction", RESTRICTIONS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", ["reference", "chunked, small tiles"])
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
        parameters = {f"score.{name}": given[name] for name in names if name not in ("query", "key", "value")}
        return torch.func.functional_call(module, parameters, (given["query"], given["key"], given["value"]))

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


# --- rows without a key


@pytest.mark.parametrize("restriction", ["lengths", "lengths a query", "mask", "causal", "all"])
@every_case
def test_a_row_without_a_key_is_zero_everywhere(way: str, case: str, restriction: str) -> None:
    made = kit.call(case, restriction, queries=kit.KEYS + 4 if restriction == "causal" else kit.QUERIES)
    if not serves(way, made):
        return
    empty = ~seen_pairs(made).any(-1)
    assert bool(empty.any())
    query = made.query.detach().clone()
    query[empty] = math.nan  # whatever a padded query holds
    made = kit.replace(made, query=query.requires_grad_())
    with kit.way(way) as impl:
        out = made.run(impl)
    assert bool((out[empty] == 0).all())
    upstream = kit.upstream_of(out)
    upstream[empty] = math.nan  # and whatever comes back to it
    for name, grad in kit.gradients(made, out, upstream).items():
        assert bool(grad.isfinite().all()), name
        if name == "query":
            assert bool((grad[empty] == 0).all())


# --- what is hidden has no effect


def poison(tensor: Tensor, rows: Tensor, how: float) -> Tensor:
    """A leaf like `tensor`, with something else where `rows` (..., l) is True."""
    return torch.where(rows[..., None], how, tensor.detach()).requires_grad_()


def seen_pairs(made: kit.Call) -> Tensor:
    n, m = made.query.shape[-2], made.key.shape[-2]
    seen = torch.zeros(kit.BATCH, kit.HEADS, n, m, dtype=torch.bool)
    for b in range(kit.BATCH):
        for h in range(kit.HEADS):
            for i in range(n):
                seen[b, h, i, kit.visible_keys(made.restricted, b, h, i, n, m)] = True
    return seen


@pytest.mark.parametrize("how", [math.nan, math.inf])
@pytest.mark.parametrize("restriction", [r for r in RESTRICTIONS if r != "none"])
@every_case
def test_keys_that_nobody_sees_have_no_effect(way: str, case: str, restriction: str, how: float) -> None:
    made = kit.call(case, restriction)
    if not serves(way, made):
        return
    unseen = ~seen_pairs(made).any(-2)
    poisoned = kit.replace(made, key=poison(made.key, unseen, how), value=poison(made.value, unseen, how))
    with kit.way(way) as impl:
        clean, dirty = made.run(impl), poisoned.run(impl)
    torch.testing.assert_close(dirty, clean, rtol=0, atol=0)
    upstream = kit.upstream_of(clean)
    expected, came = kit.gradients(made, clean, upstream), kit.gradients(poisoned, dirty, upstream)
    for name in expected:
        torch.testing.assert_close(came[name], expected[name], rtol=0, atol=0, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("how", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["key", "value"])
@pytest.mark.parametrize("restriction", ["lengths a query", "mask", "causal", "exclude", "all"])
@every_case
def test_a_key_hidden_from_some_reaches_only_those_who_see_it(
    way: str, case: str, restriction: str, where: str, how: float
) -> None:
    if way == "sdpa":
        return  # the contract has it in the other implementations
    made = kit.call(case, restriction)
    seen = seen_pairs(made)
    index = next(j for j in range(KEYS) if seen[..., j].any() and not seen[..., j].all())
    struck = torch.arange(KEYS) == index
    rows = struck.expand(kit.BATCH, kit.HEADS, -1)
    poisoned = kit.replace(made, **{where: poison(getattr(made, where), rows, how)})
    sees = seen[..., index]
    with kit.way(way) as impl:
        clean, dirty = made.run(impl), poisoned.run(impl)
    torch.testing.assert_close(dirty[~sees], clean[~sees], rtol=1e-12, atol=1e-12)
    upstream = torch.where(sees[..., None], 0.0, kit.upstream_of(clean))
    expected, came = kit.gradients(made, clean, upstream), kit.gradients(poisoned, dirty, upstream)
    # With respect to what the rows that do not see it use.
    torch.testing.assert_close(came["query"][~sees], expected["query"][~sees], rtol=1e-12, atol=1e-12)
    # A row that was struck sees other keys too, and what comes back to those may be NaN.
    apart = ~(seen & sees[..., None]).any(-2) & ~struck
    for name in ("key", "value"):
        torch.testing.assert_close(came[name][apart], expected[name][apart], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", WITH_STATES)
def test_a_visible_nan_is_not_swallowed(way: str, case: str) -> None:
    made = kit.call(case, "lengths a query")
    rows = torch.zeros(kit.BATCH, kit.HEADS, KEYS, dtype=torch.bool)
    rows[..., 1] = True
    poisoned = kit.replace(made, value=poison(made.value, rows, math.nan))
    with kit.way(way) as impl:
        out = poisoned.run(impl)
    weighed = kit.twin(made)[2][..., 1] > 0
    assert bool(weighed.any())
    assert bool(out[weighed].isnan().all())


@pytest.mark.parametrize("how", [math.nan, math.inf])
@pytest.mark.parametrize("restricted", ["lengths", "mask a head"])
@every_kind
def test_what_is_shared_is_hidden_from_those_who_may_not_see_it(
    way: str, case: str, restricted: str, how: float
) -> None:
    """Keys and values that a batch, or the heads, have in common: what one sees, another may not."""
    made = kit.call(case, "none")
    if restricted == "lengths":
        limits = {"valid_lens": torch.tensor([3, 7])}
        key, value = made.key.detach()[0, 0], made.value.detach()[0, 0]
        blind, struck = (slice(0, 1), slice(None)), 5
    else:
        mask = torch.ones(kit.HEADS, 1, KEYS, dtype=torch.bool)
        mask[1, 0, 5] = False
        limits = {"mask": mask}
        key, value = made.key.detach()[:, :1], made.value.detach()[:, :1]
        blind, struck = (slice(None), slice(1, 2)), 5
    dirty_key, dirty_value = key.clone(), value.clone()
    dirty_key[..., struck, :] = how
    dirty_value[..., struck, :] = how
    clean = kit.replace(made, key=key.requires_grad_(), value=value.requires_grad_(), restricted=limits)
    dirty = kit.replace(clean, key=dirty_key.requires_grad_(), value=dirty_value.requires_grad_())
    if not serves(way, clean):
        return
    with kit.way(way) as impl:
        expected, came = clean.run(impl), dirty.run(impl)
    torch.testing.assert_close(came[blind], expected[blind], rtol=1e-12, atol=1e-12)
    upstream = torch.zeros_like(came)
    upstream[blind] = 1.0
    by_clean, by_dirty = kit.gradients(clean, expected, upstream), kit.gradients(dirty, came, upstream)
    torch.testing.assert_close(by_dirty["query"][blind], by_clean["query"][blind], rtol=1e-12, atol=1e-12)


def test_auto_shows_a_value_that_is_not_finite_only_to_those_who_see_it() -> None:
    x, value = torch.randn(1, 5, 8), torch.randn(1, 5, 8)
    value[:, -1] = math.nan
    out = dikkat.attend(x, x, value, score=scores.ScaledDot(), causal=True)
    assert bool(out[:, :-1].isfinite().all())
    assert bool(out[:, -1].isnan().all())


# --- metamorphic


@pytest.mark.parametrize("restriction", ["none", "mask", "bias", "lengths", "all"])
@every_kind
def test_split_and_merge(way: str, case: str, restriction: str) -> None:
    if way == "sdpa":
        return  # no states
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
    bias = made.restricted.get("key_bias")
    return dikkat.attention_state(
        made.query,
        made.key[..., cols, :],
        made.value[..., cols, :],
        score=made.score,
        mask=seen_pairs(made)[..., cols],
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


@every_kind
def test_the_order_of_keys_does_not_matter(way: str, case: str) -> None:
    made = kit.call(case, "mask of keys")
    if not serves(way, made):
        return
    order = torch.randperm(KEYS)
    moved = kit.replace(
        made,
        key=made.key[..., order, :],
        value=made.value[..., order, :],
        restricted={"mask": made.restricted["mask"][..., order]},
    )
    with kit.way(way) as impl:
        torch.testing.assert_close(moved.run(impl), made.run(impl), rtol=1e-12, atol=1e-12)


@every_kind
@pytest.mark.parametrize(
    ("query", "key", "value", "lead"),
    [
        ((), (), (), ()),
        ((2,), (), (2,), (2,)),
        ((3,), (2, 1), (2, 3), (2, 3)),
        ((2, 1), (3,), (), (2, 3)),
        ((2, 1, 3), (5, 1), (2, 5, 3), (2, 5, 3)),
    ],
)
def test_leading_dimensions_broadcast(
    way: str, case: str, query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], lead: tuple[int, ...]
) -> None:
    made = kit.call(case, "none")
    sizes = ((query, 5, CASES[case].query_features), (key, 7, kit.FEATURES), (value, 7, 11))
    q, k, v = (torch.randn(*shape, n, d, dtype=torch.float64, requires_grad=True) for shape, n, d in sizes)
    valid_lens = torch.tensor(4) if not lead else torch.randint(1, 8, lead[:1])
    small = kit.replace(made, query=q, key=k, value=v, restricted={"valid_lens": valid_lens})
    if not serves(way, small):
        return
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


@every_kind
def test_strides(way: str, case: str) -> None:
    made = kit.call(case, "lengths")
    if not serves(way, made):
        return

    def strange(tensor: Tensor) -> Tensor:
        stored = tensor.detach().permute(3, 1, 0, 2).contiguous().repeat_interleave(2, 0)
        return stored[::2].permute(2, 1, 3, 0).requires_grad_()

    odd = kit.replace(made, query=strange(made.query), key=strange(made.key), value=strange(made.value))
    assert odd.key.stride() != made.key.stride()
    with kit.way(way) as impl:
        came, expected = odd.run(impl), made.run(impl)
    torch.testing.assert_close(came, expected, rtol=1e-12, atol=1e-12)
    upstream = kit.upstream_of(came)
    exact = kit.gradients(made, expected, upstream)
    for name, grad in kit.gradients(odd, came, upstream).items():
        torch.testing.assert_close(grad, exact[name], rtol=1e-11, atol=1e-12)


@every_kind
@pytest.mark.parametrize(("queries", "keys", "batch"), [(0, 7, 2), (5, 0, 2), (5, 7, 0), (1, 1, 1), (0, 0, 0)])
def test_nothing_to_attend(way: str, case: str, queries: int, keys: int, batch: int) -> None:
    made = kit.call(case, "none")
    q, k, v = (
        torch.randn(batch, n, d, dtype=torch.float64, requires_grad=True)
        for n, d in ((queries, CASES[case].query_features), (keys, 4), (keys, 3))
    )
    made = kit.replace(
        made, query=q, key=k, value=v, restricted={"valid_lens": torch.full((batch,), keys), "causal": True}
    )
    if not serves(way, made):
        return
    with kit.way(way) as impl:
        out = made.run(impl)
    assert out.shape == (batch, queries, 3)
    assert bool(out.isfinite().all())
    for grad in kit.gradients(made, out, torch.ones_like(out)).values():
        assert bool(grad.isfinite().all())


@every_case
def test_callers_tensors_are_not_written_to(way: str, case: str) -> None:
    for restriction in ("all", "mask of keys"):
        made = kit.call(case, restriction)
        if not serves(way, made):
            continue
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


@every_kind
def test_dropout_follows_the_seed_and_the_gradient_follows_dropout(way: str, case: str) -> None:
    made = kit.call(case, "lengths a query")
    if not serves(way, made, dropout=0.4):
        return
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
        assert torch.equal(made.run(impl, dropout=0.4, return_weights=True)[1], made.run(impl, return_weights=True)[1])


@pytest.mark.parametrize("way", WITH_STATES)
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


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1e4, 1e8, 1e15])
@every_case
def test_any_finite_magnitude_gives_finite_results(way: str, case: str, size: float) -> None:
    made = kit.call(case, "lengths")
    score = made.score
    q, k, v = ((t.detach() * size).float().requires_grad_() for t in (made.query, made.key, made.value))
    made = kit.replace(made, score=score.float(), query=q, key=k, value=v)
    if not serves(way, made):
        return
    with kit.way(way) as impl:
        out = made.run(impl)
    assert bool(out.isfinite().all())
    assert bool((out.abs() <= v.abs().max() * (1 + 1e-5)).all())


@every_case
def test_scores_far_below_minus_a_million(way: str, case: str) -> None:
    """A mask by a large negative number would let padding win here."""
    made = kit.call("scaled dot" if case == "dot" else case, "lengths")
    if made.score.pair != "inner" or not serves(way, made):
        return
    q, k = torch.full((1, 2, 3), -3e4), torch.full((1, 5, 3), 3e4)
    k[:, 1] *= 1.001
    v = torch.arange(5.0).reshape(1, 5, 1)
    with kit.way(way) as impl:
        out = dikkat.attend(q, k, v, score=scores.Dot(), valid_lens=torch.tensor([2]), impl=impl)
    torch.testing.assert_close(out, torch.zeros(1, 2, 1))


# --- under torch's transforms


@pytest.mark.parametrize("restriction", ["none", "lengths", "all"])
@every_kind
def test_compile_fullgraph(way: str, case: str, restriction: str) -> None:
    made = kit.call(case, restriction)
    if not serves(way, made):
        return
    torch.compiler.reset()
    with kit.way(way) as impl:

        def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return dikkat.attend(query, key, value, score=made.score, impl=impl, **made.restricted)

        compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
        came, expected = compiled(made.query, made.key, made.value), made.run(impl)
        torch.testing.assert_close(came, expected, rtol=1e-12, atol=1e-12)
        upstream = kit.upstream_of(came)
        exact = kit.gradients(made, expected, upstream)
        for name, grad in kit.gradients(made, came, upstream).items():
            torch.testing.assert_close(grad, exact[name], rtol=1e-11, atol=1e-12)


def test_one_compiled_graph_serves_all_lengths() -> None:
    graphs = []

    def count(graph: Any, examples: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    layer = dikkat.AdditiveAttention(4, 4, 5)
    compiled = torch.compile(layer, fullgraph=True, backend=count)
    for length in (5, 7, 11, 13, 17):
        x, lens = torch.randn(2, length, 4), torch.tensor([length - 2, 3])
        torch.testing.assert_close(compiled(x, x, x, lens), layer(x, x, x, lens))
    assert len(graphs) == 2  # one for the first length, one for any


def test_compile_with_dropout_and_weights_and_a_memory() -> None:
    torch.compiler.reset()
    made = kit.call("additive", "lengths")
    memory = dikkat.prepare(made.key, made.value, score=made.score, **made.restricted)
    memory = kit.replace(memory, key=memory.key.detach(), value=memory.value.detach())

    def step(query: Tensor) -> tuple[Tensor, Tensor]:
        return dikkat.attend_memory(query, memory, return_weights=True)

    def dropped(query: Tensor) -> Tensor:
        return dikkat.attend(query, made.key, made.value, score=made.score, dropout=0.5, **made.restricted)

    for run in (step, dropped):
        compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
        torch.manual_seed(3)
        came = compiled(made.query)
        torch.manual_seed(3)
        torch.testing.assert_close(came, run(made.query), rtol=1e-12, atol=1e-12)


def test_export_with_any_number_of_keys() -> None:
    class Attend(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, lens: Tensor) -> Tensor:
            return dikkat.attend(query, key, key, score=scores.Gaussian(1.5), valid_lens=lens, impl="reference")

    keys = torch.export.Dim("keys", min=3, max=100)
    given = (torch.randn(2, 5, 4), torch.randn(2, 7, 4), torch.tensor([3, 7]))
    exported = torch.export.export(Attend(), given, dynamic_shapes=(None, {1: keys}, None)).module()
    other = (given[0], torch.randn(2, 11, 4), torch.tensor([9, 11]))
    torch.testing.assert_close(exported(*other), Attend()(*other))


@pytest.mark.parametrize("restriction", ["none", "lengths", "causal", "all"])
@pytest.mark.parametrize("case", KINDS[:3])
def test_forward_mode_is_the_references(case: str, restriction: str) -> None:
    made = kit.call(case, restriction)
    tensors = (made.query.detach(), made.key.detach(), made.value.detach())
    tangents = tuple(torch.randn_like(t) for t in tensors)
    limits = {n: t.detach() if isinstance(t, Tensor) else t for n, t in made.restricted.items()}

    def run(impl: str) -> Any:
        return lambda q, k, v: dikkat.attend(q, k, v, score=made.score, impl=impl, **limits)

    _, came = torch.func.jvp(run("reference"), tensors, tangents)
    step = 1e-6
    ahead, behind = (
        run("reference")(*(t + sign * step * d for t, d in zip(tensors, tangents, strict=True))) for sign in (1, -1)
    )
    torch.testing.assert_close(came, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(torch.func.jvp(run("auto"), tensors, tangents)[1], came)
    with torch.autograd.forward_ad.dual_level():
        duals = [torch.autograd.forward_ad.make_dual(t, d) for t, d in zip(tensors, tangents, strict=True)]
        with pytest.raises(ValueError, match="forward-mode"):
            run("chunked")(*duals)


@pytest.mark.parametrize("restriction", ["none", "lengths", "all"])
@every_kind
def test_vmap(way: str, case: str, restriction: str) -> None:
    made = kit.call(case, restriction)
    queries = torch.randn(4, *made.query.shape, dtype=torch.float64)
    key, value = made.key.detach(), made.value.detach()

    def run(query: Tensor, key: Tensor) -> Tensor:
        return dikkat.attend(query, key, value, score=made.score, impl=impl, **made.restricted)

    def loss(query: Tensor, key: Tensor) -> Tensor:
        return run(query, key).sin().sum()

    with kit.way(way) as impl:
        if impl == "sdpa":
            with pytest.raises(ValueError, match=r"under torch\.func"):
                torch.vmap(run, (0, None))(queries, key)
            return
        torch.testing.assert_close(
            torch.vmap(run, (0, None))(queries, key),
            torch.stack([run(q, key) for q in queries]),
            rtol=1e-12,
            atol=1e-12,
        )
        came = torch.vmap(torch.func.grad(loss, argnums=(0, 1)), (0, None))(queries, key)
        for index, query in enumerate(queries):
            q, k = query.clone().requires_grad_(), key.clone().requires_grad_()
            expected = torch.autograd.grad(loss(q, k), (q, k))
            torch.testing.assert_close((came[0][index], came[1][index]), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("way", WITH_STATES)
def test_vmap_over_lengths_and_scores_parameters(way: str) -> None:
    torch.manual_seed(2)
    score = scores.Additive(3, 5, 7).double()
    query, key, value = (torch.randn(4, n, d, dtype=torch.float64) for n, d in ((2, 5), (11, 3), (11, 13)))
    valid_lens = torch.tensor([0, 3, 11, 5])
    stacked = {name: torch.randn(4, *p.shape, dtype=torch.float64) for name, p in score.named_parameters()}

    class Attend(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = score

        def forward(self, q: Tensor, k: Tensor, v: Tensor, length: Tensor) -> Tensor:
            return dikkat.attend(q, k, v, score=self.score, valid_lens=length, impl=impl)

    module = Attend()

    def run(parameters: dict[str, Tensor], *rest: Tensor) -> Tensor:
        return torch.func.functional_call(module, {f"score.{name}": p for name, p in parameters.items()}, rest)

    with kit.way(way) as impl:
        came = torch.vmap(run)(stacked, query, key, value, valid_lens)
        for i in range(4):
            one = run({name: p[i] for name, p in stacked.items()}, query[i], key[i], value[i], valid_lens[i])
            torch.testing.assert_close(came[i], one, rtol=1e-12, atol=1e-12)


@every_kind
def test_autocast_leaves_attention_in_the_types_that_come(way: str, case: str) -> None:
    made = kit.call(case, "lengths").to(torch.float32)
    if case == "additive" or not serves(way, made):
        return  # its projections are autocast's to round
    with kit.way(way) as impl:
        expected = made.run(impl)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            came = made.run(impl)
            came.sum().backward()
    torch.testing.assert_close(came, expected, rtol=0, atol=0)


@pytest.mark.parametrize("way", WITH_STATES)
def test_autocast_projects_in_half_and_accumulates_in_single(way: str) -> None:
    made = kit.call("additive", "lengths").to(torch.float32)
    with kit.way(way) as impl, torch.autocast("cpu", dtype=torch.bfloat16):
        state, out = made.state(impl), made.run(impl)
        out.sum().backward()
    assert state.mean.dtype == out.dtype == torch.float32
    torch.testing.assert_close(out, made.run(impl), rtol=0.05, atol=0.05)
    assert made.query.grad is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_bias_is_not_rounded_to_half(way: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, n, 8).to(dtype) for n in (3, 5, 5))
    with kit.way(way) as impl:
        for bias in (torch.full((1, 5), -1e5), 1000 + torch.linspace(0, 1, 5)[None]):
            came = dikkat.attend(query, key, value, score=scores.Dot(), key_bias=bias, impl=impl)
            exact = dikkat.attend(
                query.double(), key.double(), value.double(), score=scores.Dot(), key_bias=bias.double()
            )
            torch.testing.assert_close(came.double(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("way", WAYS)
def test_autocast_with_mixed_types_and_a_bias(way: str) -> None:
    query, key, value = torch.randn(2, 3, 8).bfloat16(), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    bias = torch.randn(2, 5)
    with kit.way(way) as impl, torch.autocast("cpu", dtype=torch.bfloat16):
        came = dikkat.attend(query, key, value, score=scores.Dot(), key_bias=bias, impl=impl)
    expected = dikkat.attend(query.float(), key, value, score=scores.Dot(), key_bias=bias)
    torch.testing.assert_close(came, expected, rtol=1e-5, atol=1e-5)


# --- operators


OPERATORS = [name for name in KERNELS if hasattr(torch.ops.dikkat, name)]


def test_chunked_is_an_operator() -> None:
    assert "chunked" in OPERATORS


@pytest.mark.parametrize("restriction", ["none", "lengths", "all"])
@pytest.mark.parametrize("case", KINDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name: str, case: str, restriction: str) -> None:
    made = kit.call(case, restriction)
    operands: list[Any] = []
    operator = getattr(torch.ops.dikkat, name).default

    class Catch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is operator:
                operands.append(args)
            return func(*args, **(kwargs or {}))

    with Catch():
        made.run(name, return_weights=True)
    (args,) = operands
    detached = tuple(a.detach().requires_grad_(a.is_floating_point()) if isinstance(a, Tensor) else a for a in args)
    torch.library.opcheck(operator, detached)


def test_many_batch_elements_do_not_make_small_tiles() -> None:
    """Leading dimensions are cut before tiles become so small that there are thousands of them."""
    made = kit.call("additive", "none")
    large = [t.detach()[:1, :1].expand(1009, 3, -1, -1) for t in (made.query, made.key, made.value)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "_TILE", 2**16)
        tiles = []
        patch.setattr(chunked, "_state", lambda tile, run=chunked._state: tiles.append(tile) or run(tile))
        came = dikkat.attend(*large, score=made.score, impl="chunked")
    assert len(tiles) <= 1009
    torch.testing.assert_close(came, made.run()[:1, :1].expand_as(came), rtol=1e-12, atol=1e-12)


# --- choosing


def test_looking_at_implementations_draws_no_random_number() -> None:
    made = kit.call("dot", "none")
    before = torch.get_rng_state()
    made.obstacles("sdpa", dropout=0.5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("device", kit.DEVICES)
@every_kind
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
    if serves(way, moved):
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
        assert {i.name for i in found} == set(KERNELS)
        assert all(i.runs == (not i.reasons) for i in found)
        with kit.record() as ran:
            made.run()
        assert ran == [found[0].name]


def test_large_problems_go_to_chunked() -> None:
    x = torch.zeros(1, 300, 64)
    found = dikkat.implementations(x, x, x, score=scores.Additive(64, 64, 64))
    assert found[0].name == "chunked"
    weights = dikkat.implementations(x, x, x, score=scores.Dot(), return_weights=True)
    assert weights[0].name == "reference"
    assert weights[-1].name in ("sdpa", "chunked")


def test_an_unknown_implementation_is_an_error() -> None:
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"impl: came 'flash'; allowed: 'auto', 'sdpa', 'reference', 'chunked'"):
        dikkat.attend(x, x, x, score=scores.Dot(), impl="flash")
