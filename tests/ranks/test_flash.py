"""Blocks of inner products by PyTorch's fused kernel, joined and differentiated as a rank does, against float64."""

import pytest
import torch

from dikkat.distributed import flash
from dikkat.distributed.blocks import Keys, Shard
from dikkat.distributed.order import Span
from dikkat.masking import Restrictions
from dikkat.problem import Problem
from dikkat.problem.operator import Gradients, Kernel, Output

LEADS = {"none": ((), (), ()), "batch": ((2,), (1,), (2,)), "heads": ((2, 3), (2, 3), (1, 3)), "many": ((2, 3, 5),) * 3}
QUERIES, KEYS, FEATURES, VALUES = 7, 11, 5, 13


def refuse(*_):
    raise AssertionError("a block was left to another kernel")


def made(lead, dtype):
    torch.manual_seed(3)
    shapes = zip(lead, ((QUERIES, FEATURES), (KEYS, FEATURES), (KEYS, VALUES)), strict=True)
    return [torch.randn(*front, *own, dtype=torch.float64).to(dtype) for front, own in shapes]


def shard_of(query, key, value, kernel, causal=False):
    lead = torch.broadcast_shapes(*(t.shape[:-2] for t in (query, key, value)))
    n, m = query.shape[-2], key.shape[-2]
    limits = Restrictions(n, m, None, None, False, None, None, query.device)
    problem = Problem("inner", "gaussian", query, key, None, value, limits, lead)
    return Shard(problem, kernel, [Span(0, 0, n)], n, m, limits, causal)


def by_blocks(shard, cut, upstream):
    """Output and gradients over keys in two blocks."""
    problem = shard.problem
    m = problem.key.shape[-2]
    blocks = [
        Keys([Span(first, 0, stop - first)], problem.key[..., first:stop, :], problem.value[..., first:stop, :], None)
        for first, stop in ((0, cut), (cut, m))
    ]
    state = shard.empty()
    for keys in blocks:
        shard.pool(keys, state)
    none = state.mean.new_zeros(0)
    sums = [torch.zeros_like(t) for t in (problem.query, problem.key, problem.value)]
    for keys, rows in zip(blocks, (slice(0, cut), slice(cut, m)), strict=True):
        into = Gradients(sums[0], sums[1][..., rows, :], none, sums[2][..., rows, :], none)
        shard.pull(keys, Output(*state, none), upstream, into)
    return [state.mean, *sums]


def exactly(query, key, value, upstream):
    leaves = [t.double().requires_grad_() for t in (query, key, value)]
    out = (leaves[0] @ leaves[1].mT).softmax(-1) @ leaves[2]
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream.double())]


@pytest.mark.parametrize("lead", LEADS.values(), ids=LEADS)
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_blocks_join_and_share_their_gradients(lead, dtype, within):
    query, key, value = made(lead, dtype)
    shard = shard_of(query, key, value, flash.before(Kernel(refuse, refuse)))
    upstream = torch.randn(*shard.problem.lead, QUERIES, VALUES, dtype=dtype)
    for found, exact in zip(by_blocks(shard, 4, upstream), exactly(query, key, value, upstream), strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), exact, rtol=within, atol=within)


def test_who_turns_pytorchs_fused_kernels_off_gets_none_of_them():
    query, key, value = made(LEADS["none"], torch.float32)
    problem = shard_of(query, key, value, Kernel(refuse, refuse)).problem
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        assert not flash.knows(problem)
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    assert flash.knows(problem)


def largest(query, key):
    """Keys with which no score can be larger than 2⁹, and one nearly may."""
    return key * 2.0**9 / (query.norm(dim=-1).max() * key.norm(dim=-1).max())


def test_scores_at_the_bound_leave_enough_digits():
    query, key, value = made(LEADS["none"], torch.float32)
    key = 0.999 * largest(query, key)
    shard = shard_of(query, key, value, flash.before(Kernel(refuse, refuse)))
    upstream = torch.randn(QUERIES, VALUES)
    for found, exact in zip(by_blocks(shard, 4, upstream), exactly(query, key, value, upstream), strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=3e-4 * max(1.0, float(exact.abs().max())))


@pytest.mark.parametrize("broken", ["large", "infinite", "hidden"])
def test_blocks_that_it_does_not_serve_are_left_to_the_other_kernel(broken):
    """Large scores leave a log-sum-exp few digits for the number of keys; what is not finite is told apart there."""
    query, key, value = (t[..., :1, :] if broken == "hidden" else t for t in made(LEADS["none"], torch.float32))
    if broken == "large":
        key = 1.01 * largest(query, key)
    elif broken == "infinite":
        key[2, 1] = torch.inf
    asked = []

    def other(problem: Problem) -> Output:
        asked.append(problem)
        n = problem.query.shape[-2]
        return Output(torch.zeros(n, VALUES), torch.zeros(n), torch.ones(n), torch.zeros(0))

    shard = shard_of(query, key, value, flash.before(Kernel(other, refuse)), causal=broken == "hidden")
    if broken == "hidden":  # the second of two queries sees both keys, the first one of them
        shard = shard_of(query.expand(2, -1), key.expand(2, -1), value.expand(2, -1), shard.kernel, causal=True)
    m = shard.problem.key.shape[-2]
    shard.pool(Keys([Span(0, 0, m)], shard.problem.key, shard.problem.value, None), shard.empty())
    assert len(asked) == 1
