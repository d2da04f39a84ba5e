"""What is hidden is not there: rows without a key, and keys that nobody, or not everybody, may see."""

import math

import torch
from torch import Tensor

import dikkat
import kit
from dikkat import scores
from dikkat._core.implementations import reference
from kit import CASES, KEYS, KINDS, RESTRICTIONS, WITH_STATES, over, seen_pairs

# --- rows without a key


@over(restriction=["lengths", "lengths a query", "mask", "causal", "all"])
def test_a_row_without_a_key_is_zero_everywhere(way: str, case: str, restriction: str) -> None:
    made = kit.call(case, restriction, queries=kit.KEYS + 4 if restriction == "causal" else kit.QUERIES)
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


def test_the_two_products_are_each_others_derivatives_to_any_order() -> None:
    """With whatever gradient comes back to a hidden pair: it is no part of either."""
    torch.manual_seed(0)
    a, b, value = (torch.randn(2, n, 4, dtype=torch.float64, requires_grad=True) for n in (3, 5, 5))
    weights = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    visible = torch.rand(2, 3, 5) < 0.6
    upstream = torch.randn(2, 3, 5, dtype=torch.float64)

    def inner(a: Tensor, b: Tensor) -> Tensor:
        return reference._inner(a, b, visible)

    def pool(weights: Tensor, value: Tensor) -> Tensor:
        return reference._pool(torch.where(visible, weights, 0.0), value, visible)

    for function, leaves in ((inner, (a, b)), (pool, (weights, value))):
        assert torch.autograd.gradcheck(function, leaves)
        assert torch.autograd.gradgradcheck(function, leaves)
    came = torch.autograd.grad(inner(a, b), (a, b), upstream)
    expected = torch.autograd.grad((a @ b.mT)[visible], (a, b), upstream[visible])
    torch.testing.assert_close(came, expected)


def poison(tensor: Tensor, rows: Tensor, how: float) -> Tensor:
    """A leaf like `tensor`, with something else where `rows` (..., l) is True."""
    return torch.where(rows[..., None], how, tensor.detach()).requires_grad_()


@over(restriction=[r for r in RESTRICTIONS if r != "none"], how=kit.POISONS)
def test_keys_that_nobody_sees_have_no_effect(way: str, case: str, restriction: str, how: float) -> None:
    made = kit.call(case, restriction)
    unseen = ~seen_pairs(made).any(-2)
    poisoned = kit.replace(made, key=poison(made.key, unseen, how), value=poison(made.value, unseen, how))
    with kit.chosen(way) as impl:
        clean = made.run(impl)
        upstream = 3 * kit.upstream_of(clean)
        expected = kit.gradients(made, clean, upstream)
        # By name, and as users call it: the second call of a kind is run by the program that the first one made.
        for given, called in ((poisoned, impl), (poisoned, "auto"), (made, "auto"), (poisoned, "auto")):
            out, off = given.run(called), 0.0 if called == impl else 1e-11  # as they are, or as 0: they may round apart
            torch.testing.assert_close(out, clean, rtol=off, atol=off)
            for name, came in kit.gradients(given, out, upstream).items():
                torch.testing.assert_close(came, expected[name], rtol=off, atol=off, msg=f"{name}, {called}")


# The contract has it in the other implementations than PyTorch's.
@over(
    ways=WITH_STATES,
    restriction=["lengths a query", "mask", "causal", "exclude", "window", "pair bias that hides", "all"],
    where=["key", "value"],
    how=kit.POISONS,
)
def test_a_key_hidden_from_some_reaches_only_those_who_see_it(
    way: str, case: str, restriction: str, where: str, how: float
) -> None:
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


@kit.each("case", CASES)
@kit.each("way", kit.GENERAL)
def test_a_visible_nan_is_not_swallowed(way: str, case: str) -> None:
    if not kit.runs(way, case, "lengths a query"):
        return  # `test_what_must_run_runs` holds the table to it
    made = kit.call(case, "lengths a query")
    rows = torch.zeros(kit.BATCH, kit.HEADS, KEYS, dtype=torch.bool)
    rows[..., 1] = True
    poisoned = kit.replace(made, value=poison(made.value, rows, math.nan))
    with kit.way(way) as impl:
        out = poisoned.run(impl)
    weighed = kit.twin(made)[2][..., 1] > 0
    assert bool(weighed.any())
    assert bool(out[weighed].isnan().all())


@over(ways=kit.TRACED, cases=KINDS, restricted=["lengths", "mask a head"], how=kit.POISONS)
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
