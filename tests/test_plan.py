"""The short road: what takes it, and that it comes to the same bits as the long one."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import dikkat
import kit
from dikkat import plan, scores

SCORES: dict[str, Any] = {
    "average": scores.Average,
    "dot": scores.Dot,
    "scaled dot": scores.ScaledDot,
    "bilinear": lambda: scores.Bilinear(7, 7),
    "cosine": scores.Cosine,
    "vector sum": lambda: scores.VectorSum(7),
    "additive": lambda: scores.Additive(7, 7, 13),
    "gaussian": lambda: scores.Gaussian(1.3, learnable=True),
}
# Small enough for plain products, and large enough for fused kernels; of few queries, for their own kernel.
SHAPES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "small": ((2,), 3, 5),
    "one": ((1,), 3, 5),
    "few": ((11,), 3, 2**11),
    "heads": ((2, 3), 5, 11),
    "large": ((5,), 67, 131),
}
RESTRICTIONS = ["none", "all", "alike", "some", "by row"]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call came to its end on the short road."""
    monkeypatch.setattr(plan, "_PLANS", {})
    real, found = plan.attend, []

    def attend(*given: Any) -> Any:
        came = real(*given)
        found.append(came is not None)
        return came

    monkeypatch.setattr(plan, "attend", attend)
    return found


def lengths(kind: str, batch: int, queries: int, keys: int) -> Tensor | None:
    if kind == "none":
        return None
    if kind == "all":
        return torch.full((batch,), keys)
    if kind == "alike":
        return torch.full((batch,), keys - 2)
    if kind == "some":
        return torch.randint(1, keys - 1, (batch,))
    return torch.randint(1, keys + 1, (batch, queries))


def run(tensors: list[Tensor], score: scores.Score, lens: Tensor | None, weights: bool, record: bool) -> list[Tensor]:
    leaves = [t.clone().requires_grad_(record) for t in tensors]
    came = dikkat.attend(*leaves, score=score, valid_lens=lens, return_weights=weights)
    found = list(came) if isinstance(came, tuple) else [came]
    if record:
        reached = [t for t in found if t.requires_grad]  # no operand moves an average's weights
        upstream = [torch.cos(torch.arange(t.numel(), dtype=t.dtype)).view_as(t) for t in reached]
        grads = torch.autograd.grad(reached, [*leaves, *score.parameters()], upstream, allow_unused=True)
        found += [g for g in grads if g is not None]
    return found


@pytest.mark.parametrize(
    ("case", "shape", "restriction", "weights", "record", "dtype"),
    kit.pairwise(
        {
            "case": list(SCORES),
            "shape": list(SHAPES),
            "restriction": RESTRICTIONS,
            "weights": [False, True],
            "record": [False, True],
            "dtype": [torch.float32, torch.float64],
        }
    ),
)
def test_both_roads_come_to_the_same_bits(
    case: str, shape: str, restriction: str, weights: bool, record: bool, dtype: torch.dtype, taken: list[bool]
) -> None:
    torch.manual_seed(0)
    lead, n, m = SHAPES[shape]
    tensors = [torch.randn(*lead, length, 7, dtype=dtype) for length in (n, m, m)]
    score, lens = SCORES[case]().to(dtype), lengths(restriction, lead[0], n, m)
    long, short = (run(tensors, score, lens, weights, record) for _ in range(2))
    assert taken == [False, True]
    for one, other in zip(long, short, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0)


@pytest.mark.parametrize("case", ["scaled dot", "bilinear", "additive", "gaussian"])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("place", ["key", "value"])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_hidden_is_not_met(case: str, weights: bool, place: str, broken: float, taken: list[bool]) -> None:
    torch.manual_seed(0)
    tensors = dict(zip(("query", "key", "value"), (torch.randn(2, length, 7) for length in (3, 5, 5)), strict=True))
    score, lens = SCORES[case](), torch.tensor([3, 5])
    for _ in range(2):
        expected = run(list(tensors.values()), score, lens, weights, record=True)
    assert taken == [False, True]
    tensors[place][0, 3:] = broken
    came = run(list(tensors.values()), score, lens, weights, record=True)
    for one, other in zip(came, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_lengths_out_of_range_are_refused_as_ever(taken: list[bool]) -> None:
    x = torch.randn(2, 5, 7)
    for _ in range(2):
        dikkat.attend(x, x, x, score=scores.Dot(), valid_lens=torch.tensor([3, 4]))
    for wrong, came in (([3, 6], "6"), ([-1, 4], "-1")):
        with pytest.raises(ValueError, match=f"valid_lens: got {came}; expected 0 to 5"):
            dikkat.attend(x, x, x, score=scores.Dot(), valid_lens=torch.tensor(wrong))
    empty = dikkat.attend(x, x, x, score=scores.Dot(), valid_lens=torch.tensor([0, 4]))
    assert not empty[0].any()
    assert taken == [False, True, False, False, False]


def test_scores_of_one_class_and_other_sizes_are_apart(taken: list[bool]) -> None:
    x = torch.randn(2, 5, 7)
    for size in (3, 11):
        score = scores.Additive(7, 7, size)
        first, second = (dikkat.attend(x, x, x, score=score) for _ in range(2))
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert taken == [False, True, False, True]


def test_what_is_not_plain_goes_the_long_way(taken: list[bool]) -> None:
    x = torch.randn(2, 5, 7)
    for _ in range(2):
        dikkat.attend(x, x, x, score=scores.Dot())
    del taken[:]
    with torch.autocast("cpu", torch.bfloat16):
        dikkat.attend(x, x, x, score=scores.Dot())
    torch.func.vmap(lambda t: dikkat.attend(t, x, x, score=scores.Dot()))(x[None])
    torch.func.jvp(lambda t: dikkat.attend(t, x, x, score=scores.Dot()), (x,), (x,))
    with torch.device("cpu"):
        dikkat.attend(x, x, x, score=scores.Dot())

    class Own(scores.Dot):
        pass

    dikkat.attend(x, x, x, score=Own())
    dikkat.attend(x.half(), x.half(), x.half(), score=scores.Dot())
    assert not any(taken)


def test_a_plan_keeps_no_tensor_of_a_call(taken: list[bool]) -> None:
    x = torch.randn(5, 67, 7)
    for _ in range(2):
        dikkat.attend(x, x, x, score=scores.Gaussian(), valid_lens=torch.tensor([3, 5, 7, 11, 13]))
    ((only,),) = (plans.values() for plans in plan._PLANS.values())
    assert not only.problem.again(weight=None).limits.again().lens
    assert all(getattr(only.problem, name) is None for name in ("query", "key", "value", "weight"))


def test_distances_whose_squares_overflow_go_the_long_way(taken: list[bool]) -> None:
    query, value = torch.zeros(1, 1, 3, requires_grad=True), torch.tensor([[[5.0], [7.0]]])
    key = torch.tensor([[[1.0], [1e8]]]).expand(1, 2, 3)
    for size in (1.0, 1.0, 1e17):
        came = dikkat.attend(query, size * key, value, score=scores.Gaussian())
    assert taken == [False, True, False]
    assert came.item() == 5.0


def test_distances_whose_squares_overflow_are_clipped_where_nothing_is_recorded(taken: list[bool]) -> None:
    query, value = torch.zeros(1, 1, 3), torch.tensor([[[5.0], [7.0]]])
    key = torch.tensor([[[1.0], [1e8]]]).expand(1, 2, 3)
    for size in (1.0, 1.0, 1e17):
        came = dikkat.attend(query, size * key, value, score=scores.Gaussian())
    assert taken == [False, True, True]
    assert came.item() == 5.0


@pytest.mark.parametrize(("queries", "keys"), [(3, 11), (11, 3)])
def test_a_scaled_product_is_the_same_whichever_side_is_scaled(queries: int, keys: int) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(queries, 7, dtype=torch.float64), torch.randn(keys, 7, dtype=torch.float64)
    came = dikkat.attention_weights(query, key, score=scores.ScaledDot())
    torch.testing.assert_close(came, torch.softmax(query @ key.mT / 7**0.5, -1), rtol=1e-13, atol=0)


def test_operands_that_lie_otherwise_are_read_as_they_lie(taken: list[bool]) -> None:
    """A signature says nothing of strides, nor of numbers that are stored negated."""
    torch.manual_seed(0)
    lens = torch.tensor([2, 5])
    query, key, value = torch.randn(2, 3, 7), torch.randn(2, 5, 7), torch.randn(2, 5, 11)
    score = scores.Additive(7, 7, 13)

    def turned(tensor: Tensor) -> Tensor:
        return tensor.mT.contiguous().mT

    with torch.no_grad():
        expected, weights = dikkat.attend(
            query, key, value, score=score, valid_lens=lens, return_weights=True, impl="reference"
        )
        for each in (
            (query, key, value), tuple(map(turned, (query, key, value))), (query, key, torch._neg_view(-value)),
        ):  # fmt: skip
            for whole in (lens, lens.int(), torch.stack([lens, lens]).T[:, 0]):
                came, shown = dikkat.attend(*each, score=score, valid_lens=whole, return_weights=True)
                torch.testing.assert_close(came, expected, rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(shown, weights, rtol=1e-5, atol=1e-6)
    assert any(taken[1:])


HIDDEN: dict[str, tuple[Any, int, int, int]] = {
    "few additive": (lambda: scores.Additive(64, 64, 64), 3, 256, 64),
    "few gaussian": (lambda: scores.Gaussian(1.3, learnable=True), 4, 1024, 64),
    "fused cosine": (scores.Cosine, 67, 131, 7),
    "fused vector sum": (lambda: scores.VectorSum(7), 67, 131, 7),
    "products": (lambda: scores.Bilinear(7, 7), 3, 5, 7),
    "kernel": (lambda: scores.Additive(7, 7, 13), 67, 131, 7),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_nan_does_not_reach_the_gradients_of_a_projection(name: str, taken: list[bool]) -> None:
    make, queries, keys, size = HIDDEN[name]
    torch.manual_seed(0)
    score, lens = make(), torch.tensor([keys - 3, keys - 2, keys - 2, keys - 3, keys - 2])
    query, key, value = torch.randn(5, queries, size), torch.randn(5, keys, size), torch.randn(5, keys, 11)

    def gradients() -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in (query, key, value)]
        dikkat.attend(*leaves, score=score, valid_lens=lens).square().sum().backward()
        found = [t.grad for t in (*leaves, *score.parameters())]
        score.zero_grad()
        return [t for t in found if t is not None]

    gradients()
    expected = gradients()
    assert taken == [False, True]
    key[:, keys - 2 :] = torch.nan
    value[:, keys - 2 :] = torch.nan
    for came, right in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(came, right, rtol=1e-4, atol=1e-5)


def test_a_weight_of_another_type_is_not_read_as_the_plans(taken: list[bool]) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 7), torch.randn(2, 5, 7), torch.randn(2, 5, 11)
    score = scores.Additive(7, 7, 13)
    with torch.no_grad():
        expected = dikkat.attend(query, key, value, score=score)
        dikkat.attend(query, key, value, score=score)
        for dtype in (torch.float64, torch.bfloat16):
            score.w_v.to(dtype)
            for _ in range(3):
                came = dikkat.attend(query, key, value, score=score)
                torch.testing.assert_close(came, expected, rtol=1e-2, atol=1e-2)
    assert taken == [False, True, *[False] * 6]


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_no_batch_element_has_no_length(shape: tuple[int, ...]) -> None:
    x, lens = torch.randn(0, 3, 7), torch.empty(shape, dtype=torch.int64)
    for _ in range(3):
        assert dikkat.attend(x, x, x, score=scores.Dot(), valid_lens=lens).shape == (0, 3, 7)


def test_negated_operands_have_gradients() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 67, 64), torch.randn(2, 131, 64), torch.randn(2, 131, 64)
    score = scores.Additive(64, 64, 64)
    by: list[list[Tensor]] = []
    for given in (value, torch._neg_view(-value)):
        leaf = query.clone().requires_grad_()
        dikkat.attend(leaf, key, given, score=score).square().sum().backward()
        assert leaf.grad is not None
        by.append([leaf.grad])
    torch.testing.assert_close(*by)


def test_threads_share_a_plan_and_not_its_record(taken: list[bool]) -> None:
    torch.manual_seed(0)
    score, lens = scores.Additive(7, 7, 13), torch.tensor([2, 5])
    given = [[torch.randn(2, length, 7) for length in (3, 5, 5)] for _ in range(4)]
    with torch.no_grad():
        right = [dikkat.attend(*each, score=score, valid_lens=lens, impl="reference") for each in given]
        dikkat.attend(*given[0], score=score, valid_lens=lens)
    wrong: list[int] = []

    def ask(number: int) -> None:
        with torch.no_grad():
            for _ in range(500):
                came = dikkat.attend(*given[number], score=score, valid_lens=lens)
                if not torch.allclose(came, right[number], rtol=1e-5, atol=1e-6):
                    wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(taken) == 2001
    assert all(taken[1:])
