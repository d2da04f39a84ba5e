"""Weights and summaries on request, against the rows of the twin and plain arithmetic in float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import dikkat
import kit
from dikkat import scores
from dikkat._core.implementations.numba import launch
from dikkat.inspection import row_blocks
from kit import QUERIES, RESTRICTIONS, over

EVERYTHING: dict[str, Any] = {
    "rows": [4, -5], "top_k": 3, "sums": True, "entropy": True, "argmax": True, "overview": (2, 3),
}  # fmt: skip
# Cells of 5 queries in 2 and of 7 keys in 3, in so many words.
CELLS = [[0, 1, 2], [3, 4]], [[0, 1, 2], [3, 4], [5, 6]]
# Compiled code, and blocks of rows, which come from any implementation alike.
WAYS = ["reference", "numba"]


def described(weights: Tensor) -> dict[str, Tensor]:
    """The summaries of weights (..., 5, 7), each from its definition."""
    wide = weights.to(torch.float64)
    order = wide.sort(dim=-1, descending=True, stable=True)
    cells = [[wide[..., rows, :][..., cols].flatten(-2) for cols in CELLS[1]] for rows in CELLS[0]]
    return {
        "rows": wide[..., [4, 0], :],
        "top_weights": order.values[..., :3],
        "sums": wide.sum(-2),
        "entropy": -(wide * wide.log().nan_to_num(neginf=0.0)).sum(-1),
        "overview": torch.stack([torch.stack([cell.mean(-1) for cell in row], -1) for row in cells], -2),
        "largest": torch.stack([torch.stack([cell.amax(-1) for cell in row], -1) for row in cells], -2),
    }


@over(
    ways=WAYS, cases=kit.KINDS, restriction=list(RESTRICTIONS), dtype=kit.DTYPES,
    valid=lambda restriction, dtype, **_: dtype.itemsize > 2 or restriction in ("none", "lengths", "all"),
)  # fmt: skip
def test_every_summary_is_within_the_budget(way: str, case: str, restriction: str, dtype: torch.dtype) -> None:
    made = kit.call(case, restriction, round_to=dtype).to(dtype)
    budget, plain = kit.expected(case, restriction, dtype), kit.twin(made)[2].detach()
    exact, plain_ones = described(budget.exact["weights"]), described(plain)
    given = {"score": made.score, "impl": way, **made.restricted}
    seen = dikkat.inspect(made.query, made.key, **given, **EVERYTHING)
    largest = dikkat.inspect(made.query, made.key, **given, overview=(2, 3), pool="max").overview
    pooled = dikkat.inspect(made.query, made.key, value=made.value, **given, **EVERYTHING)
    assert pooled.output.dtype == dtype
    kit.assert_within_budget("output", pooled.output, budget)
    wide = torch.promote_types(dtype, torch.float32)
    # Sums of n weights are off by as much as the sum of their errors.
    scale = budget.scale["weights"] * QUERIES
    for found in (seen, pooled):
        came = found.tensors() | {"largest": largest}
        for name, right in sorted(exact.items()):  # the last are the largest weights
            error = (came[name].to(torch.float64) - right).abs().max()
            off = (plain_ones[name] - right).abs().max()
            assert came[name].dtype == wide
            assert error <= 2 * off + 8 * torch.finfo(dtype).eps * scale, (name, error)
        assert not any(tensor.requires_grad for tensor in came.values())
        _check_order(found, budget.exact["weights"], 2 * float(2 * off + 8 * torch.finfo(dtype).eps * scale))
    assert bool((seen.lse.isinf() == (budget.exact["lse"].isinf())).all())


def _check_order(found: dikkat.Inspection, weights: Tensor, slack: float) -> None:
    """Top keys are those of the weights that stand beside them, and none has a larger weight."""
    keys = found.top_keys
    assert keys is not None
    seen = (weights > 0).sum(-1, keepdim=True)
    there = torch.arange(3) < seen
    assert torch.equal(keys >= 0, there)
    own = weights.gather(-1, keys.clamp(min=0)).masked_fill(~there, 0.0)
    best = weights.sort(-1, descending=True).values[..., :3]
    torch.testing.assert_close(own, best, rtol=0, atol=slack)
    assert torch.equal(found.argmax, keys[..., 0])


@pytest.mark.parametrize("case", ["scaled dot", "additive", "gaussian", "epanechnikov"])
@pytest.mark.parametrize("way", ["kept", "kept for few rows", "made again"])
@pytest.mark.parametrize("values", [0, 3, 19])
def test_many_tiles_and_tasks(case: str, way: str, values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes beyond a task's 32 rows and a tile's 128 keys, with everything that restricts.

    Of 512 keys' shares those of 16 or more rows are kept.
    """
    torch.manual_seed(3)
    room = {"kept for few rows": 21 * 512 * 8, "made again": 15 * 512 * 8}
    monkeypatch.setattr(launch, "_SHARES", room.get(way, launch._SHARES))
    n, m = 157, 401
    made = kit.CASES[case]
    query, key = (torch.randn(2, 3, length, size, dtype=torch.float64)
                  for length, size in ((n, made.query_features), (m, kit.FEATURES)))  # fmt: skip
    score = made.make().to(torch.float64)
    limits = {
        "valid_lens": torch.tensor([m - 7, 211]),
        "mask": torch.rand(3, n, m) < 0.9,
        "causal": True,
        "key_bias": torch.randn(m, dtype=torch.float64),
    }
    dense = dikkat.attention_weights(query, key, score=score, impl="reference", **limits).detach()
    value = torch.randn(2, 1, m, values, dtype=torch.float64) if values else None
    asked = {"top_k": 5, "sums": True, "entropy": True, "overview": (11, 13), "rows": [0, 150]}
    seen = dikkat.inspect(query, key, score=score, value=value, impl="numba", **limits, **asked)
    rows, cols = (torch.arange(n) * 11 // n, torch.arange(m) * 13 // m)
    by_row, by_col = ((torch.arange(size)[:, None] == cell).double() for size, cell in ((11, rows), (13, cols)))
    right = {
        "sums": dense.sum(-2),
        "entropy": torch.special.entr(dense).sum(-1),
        "top_weights": dense.sort(-1, descending=True).values[..., :5],
        "overview": by_row @ dense @ by_col.T / (by_row.sum(-1)[:, None] * by_col.sum(-1)),
        "rows": dense[..., [0, 150], :],
    } | ({} if value is None else {"output": dense @ value})
    assert (seen.output is None) == (value is None)
    for name, tensor in right.items():
        torch.testing.assert_close(
            getattr(seen, name), tensor, rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )
    found = dense.gather(-1, seen.top_keys.clamp(min=0)).masked_fill(seen.top_keys < 0, 0.0)
    torch.testing.assert_close(found, right["top_weights"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_the_map_is_built_in_blocks_of_few_rows(impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kit.call("additive", "all")
    whole = dikkat.inspect(made.query, made.key, score=made.score, impl="reference", **made.restricted, **EVERYTHING)
    monkeypatch.setattr(row_blocks, "_BLOCK", 1)
    with kit.record() as ran:
        parts = dikkat.inspect(made.query, made.key, score=made.score, impl=impl, **made.restricted, **EVERYTHING)
    assert ran == [impl] * (QUERIES + 2)  # the summaries' rows, and the chosen rows
    for name, tensor in whole.tensors().items():
        torch.testing.assert_close(parts.tensors()[name], tensor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("impl", ["reference", "numba"])
def test_of_equal_weights_the_first_keys_come_first(impl: str) -> None:
    query, key = torch.zeros(1, 3), torch.zeros(300, 3)
    seen = dikkat.inspect(query, key, score=scores.Dot(), top_k=4, argmax=True, impl=impl)
    assert seen.top_keys.tolist() == [[0, 1, 2, 3]]
    assert seen.argmax.tolist() == [0]


@kit.each("impl", ["auto", "reference", "chunked", "numba"])
@kit.each(("n", "m"), [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_look_at(impl: str, n: int, m: int) -> None:
    query, key = torch.zeros(2, n, 5), torch.zeros(2, m, 5)
    seen = dikkat.inspect(query, key, score=scores.Dot(), sums=True, entropy=True, argmax=True, overview=2, impl=impl)
    assert {name: tuple(t.shape) for name, t in seen.tensors().items()} == {
        "lse": (2, n), "sums": (2, m), "entropy": (2, n), "argmax": (2, n), "overview": (2, min(n, 2), min(m, 2)),
    }  # fmt: skip
    assert seen.argmax.tolist() == [[-1] * n] * 2
    assert seen.entropy.tolist() == [[0.0] * n] * 2


@pytest.mark.parametrize("impl", ["reference", "numba"])
def test_a_nan_stays_with_the_rows_that_see_it(impl: str) -> None:
    key = torch.zeros(5, 3)
    key[3] = math.nan
    seen = dikkat.inspect(torch.ones(5, 3), key, score=scores.Dot(), causal=True, top_k=1, entropy=True, impl=impl)
    assert seen.entropy.isnan().tolist() == [False] * 3 + [True] * 2
    assert seen.top_weights[:, 0].isnan().tolist() == [False] * 3 + [True] * 2


@pytest.mark.parametrize("impl", ["reference", "numba"])
def test_a_hidden_key_has_nothing_of_a_row_of_nan(impl: str) -> None:
    key, mask = torch.zeros(401, 3), torch.ones(5, 401, dtype=torch.bool)
    key[3] = math.nan
    mask[:, 3], mask[2], mask[2, :4] = False, False, True
    given: dict[str, Any] = {"score": scores.Dot(), "mask": mask, "impl": impl}
    seen = dikkat.inspect(torch.ones(5, 3), key, **given, sums=True, overview=(1, 401))
    for found in (seen.sums, seen.overview[0] * 5):
        torch.testing.assert_close(found, torch.full((401,), 4 / 400).index_fill(0, torch.arange(4), math.nan),
                                   equal_nan=True)  # fmt: skip


@pytest.mark.parametrize("value", [None, torch.ones(600, 1)])
def test_scores_as_far_apart_as_numbers_go(value: torch.Tensor | None) -> None:
    key = torch.full((600, 1), -2e38)
    key[300], key[599] = 0.0, 2e38
    seen = dikkat.inspect(torch.ones(1, 1), key, score=scores.Dot(), value=value, sums=True, entropy=True, argmax=True,
                          impl="numba")  # fmt: skip
    assert seen.entropy.tolist() == [0.0]
    assert seen.argmax.tolist() == [599]
    assert seen.sums.nonzero().tolist() == [[599]]


def test_halves_under_autocast_and_in_inference_mode() -> None:
    x = torch.randn(2, 7, 5)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        seen = dikkat.inspect(x, x, score=scores.Additive(5, 5, 3), sums=True)
    assert seen.sums.dtype == torch.float32
    torch.testing.assert_close(seen.sums.sum(-1), torch.full((2,), 7.0))


@kit.each(
    ("asked", "error", "message"),
    [
        ({"rows": [5]}, ValueError, "rows: got 5; expected -5 to 4"),
        ({"rows": [-6]}, ValueError, "rows: got -6; expected -5 to 4"),
        ({"rows": "all"}, TypeError, "rows: got 'all'; expected a list of whole numbers"),
        ({"rows": [1.5]}, TypeError, r"rows: got \[1.5\]; expected a list of whole numbers"),
        ({"top_k": 0}, ValueError, "top_k: got 0; expected a whole number of at least 1"),
        ({"overview": 0}, ValueError, "overview: got 0; expected a whole number of at least 1"),
        ({"overview": (3, 0)}, ValueError, "overview: got 0; expected a whole number of at least 1"),
        ({"overview": 2.5}, TypeError, "overview: got 2.5; expected a whole number of cells"),
        ({"overview": 2, "pool": "sum"}, ValueError, "pool: got 'sum'; expected 'mean' or 'max'"),
        ({"sums": 1}, TypeError, "sums: got int; expected True or False"),
        ({"tile": 3}, TypeError, "tile: got an unknown argument; expected weights, rows, top_k, .*, mask"),
        ({"sums": True, "impl": "sdpa"}, ValueError, "cannot run this call: .*PyTorch's fused kernels show no weights"),
        ({"sums": True, "impl": "fast"}, ValueError, "impl: got 'fast'; expected 'auto'"),
    ],
)  # fmt: skip
def test_bad_input(asked: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dikkat.inspect(torch.zeros(2, 5, 3), torch.zeros(2, 7, 3), score=scores.Dot(), **asked)


@pytest.mark.parametrize("impl", ["auto", "reference", "chunked", "numba"])
@pytest.mark.parametrize("keys", [3, 301])
def test_keys_that_weigh_nothing_are_not_among_the_largest(impl: str, keys: int) -> None:
    """Whether they are hidden, or seen with a weight that is too small for the type."""
    query, key = torch.tensor([[200.0], [0.0]]), torch.zeros(keys, 1)
    key[0], key[2] = 1.0, -1.0
    seen = dikkat.inspect(query, key, score=scores.Dot(), top_k=3, argmax=True, impl=impl)
    assert seen.top_keys.tolist() == [[0, -1, -1], [0, 1, 2]]
    assert seen.argmax.tolist() == [0, 0]
    for count in (0, 2):  # fewer keys than are asked for
        few = dikkat.inspect(query, key[:count], score=scores.Dot(), top_k=3, impl=impl)
        assert few.top_keys.tolist() == ([[0, -1, -1], [0, 1, -1]] if count else [[-1] * 3] * 2)
        assert torch.equal(few.top_weights == 0, few.top_keys == -1)
    hidden = dikkat.inspect(query, key, score=scores.Dot(), top_k=3, valid_lens=torch.tensor([3, 2]), impl=impl)
    assert hidden.top_keys.tolist() == [[0, -1, -1], [0, 1, -1]]
