import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import dikkat
import kit
from dikkat import masked_softmax, scores
from dikkat._core.implementations import reference
from dikkat._core.restrictions import Restrictions
from dikkat._core.softmax import softmax, softmax_weights


def softmax_of(row: list[float]) -> list[float]:
    top = max(row)
    shares = [math.exp(x - top) for x in row]
    return [share / sum(shares) for share in shares]


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 7)),
    scale=st.sampled_from([1e-3, 1.0, 1e3, 1e7]),
    two=st.booleans(),
    data=st.data(),
)
@settings(max_examples=15, deadline=None)
def test_masked_softmax_row_by_row(shape: tuple[int, int, int], scale: float, two: bool, data: st.DataObject) -> None:
    batch, rows, keys = shape
    numbers = st.floats(-scale, scale, allow_nan=False)
    given_scores = torch.tensor(
        data.draw(st.lists(numbers, min_size=batch * rows * keys, max_size=batch * rows * keys)), dtype=torch.float64
    ).reshape(shape)
    size = batch * rows if two else batch
    lens = torch.tensor(data.draw(st.lists(st.integers(0, keys), min_size=size, max_size=size)))
    lens = lens.reshape(batch, rows) if two else lens
    came = masked_softmax(given_scores, lens)
    for b in range(batch):
        for i in range(rows):
            length = int(lens[b, i] if two else lens[b])
            row = given_scores[b, i, :length].tolist()
            expected = (softmax_of(row) if row else []) + [0.0] * (keys - length)
            torch.testing.assert_close(came[b, i].tolist(), expected, rtol=1e-12, atol=1e-15)


def test_masked_softmax_does_not_write_and_ignores_what_is_hidden() -> None:
    hidden = torch.tensor([[[1.0, 2.0, math.nan, -math.inf]], [[math.nan, math.inf, 3.0, 4.0]]], requires_grad=True)
    before = hidden.detach().clone()
    came = masked_softmax(hidden, torch.tensor([2, 0]))
    torch.testing.assert_close(hidden.detach(), before, equal_nan=True)
    torch.testing.assert_close(came[0, 0], torch.tensor([0.26894142, 0.73105858, 0, 0]))
    assert bool((came[1] == 0).all())
    (grad,) = torch.autograd.grad((came * torch.arange(4.0)).sum(), hidden)
    assert bool(grad.isfinite().all())
    assert bool((grad[..., 2:] == 0).all())


@pytest.mark.parametrize("dtype", kit.DTYPES, ids=str)
def test_masked_softmax_keeps_the_dtype_and_sums_to_one(dtype: torch.dtype) -> None:
    came = masked_softmax(torch.full((2, 3, 1009), -3e4, dtype=dtype), torch.tensor([1009, 1]))
    assert came.dtype == dtype
    torch.testing.assert_close(came.double().sum(-1), torch.ones(2, 3, dtype=torch.float64), rtol=5e-3, atol=0)


def test_masked_softmax_without_leading_dimensions_and_without_keys() -> None:
    torch.testing.assert_close(masked_softmax(torch.zeros(2, 3), torch.tensor([1, 2]))[1], torch.tensor([0.5, 0.5, 0]))
    torch.testing.assert_close(masked_softmax(torch.zeros(2, 3), 1)[1], torch.tensor([1.0, 0, 0]))
    assert masked_softmax(torch.zeros(2, 3, 0)).shape == (2, 3, 0)
    assert masked_softmax(torch.zeros(2, 0, 3), torch.tensor([1, 2])).shape == (2, 0, 3)


@kit.each(
    ("given", "lens", "error", "message"),
    [
        ([1.0], None, TypeError, "scores: got list"),
        (torch.zeros(2, 3, dtype=torch.int64), None, TypeError, "scores: got dtype torch.int64"),
        (torch.zeros(3), None, ValueError, r"scores: got shape \(3,\)"),
        (torch.zeros(2, 3, 5), torch.tensor([1, 6]), ValueError, "valid_lens: got 6; expected 0 to 5"),
        (torch.zeros(2, 3, 5), torch.tensor([-1, 5]), ValueError, "valid_lens: got -1; expected 0 to 5"),
        (torch.zeros(2, 3, 5), torch.tensor([1.0, 5.0]), TypeError, "valid_lens: got dtype torch.float32"),
        (torch.zeros(2, 3, 5), torch.tensor([True, True]), TypeError, "valid_lens: got dtype torch.bool"),
        (torch.zeros(2, 3, 5), torch.tensor([1, 2, 3]), ValueError, r"shape \(3,\); expected \(2,\).*or \(2, 3\)"),
        (torch.zeros(2, 3, 5), [1, 2], TypeError, "valid_lens: got list"),
        (torch.zeros(2, 3, 5), 2, ValueError, r"valid_lens: got shape \(\); expected \(2,\)"),
    ],
)
def test_masked_softmax_errors(given: Tensor, lens: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        masked_softmax(given, lens)


def restrictions(**given: Tensor | bool | None) -> Restrictions:
    names = ("lens", "starts", "mask", "causal", "bias", "key_bias", "exclude")
    filled = {name: given.get(name, False if name == "causal" else None) for name in names}
    return Restrictions(5, 7, device=torch.device("cpu"), **filled)  # type: ignore[arg-type]


def test_seen_and_live_are_what_the_pairs_say() -> None:
    """Both have an arithmetic of their own where there is no mask; the pairs are the truth."""
    torch.manual_seed(0)
    for trial in range(400):
        pick = torch.rand(7) < 0.5
        bias = torch.zeros(3, 2, 7).masked_fill(torch.rand(3, 2, 7) < 0.5, -math.inf)
        made = restrictions(
            lens=torch.randint(0, 8, (3, 1, 5 if trial % 2 else 1)) if pick[0] else None,
            mask=torch.rand(3, 2, 5 if trial % 3 else 1, 7) < 0.3 if pick[1] else None,
            causal=bool(pick[2]),
            key_bias=bias if pick[3] else None,
            exclude=torch.randint(-1, 7, (3, 1, 5)) if pick[4] else None,
            starts=torch.randint(0, 8, (3, 1, 5 if trial % 5 else 1)) if pick[5] else None,
            bias=torch.zeros(3, 1, 5, 7).masked_fill(torch.rand(3, 1, 5, 7) < 0.5, -math.inf) if pick[6] else None,
        )
        visible = made.visible()
        if visible is None:
            assert not made.may_hide()
            continue
        pairs = visible.expand(3, 2, 5, 7)
        assert torch.equal(made.seen_keys().expand(3, 2, 7), pairs.any(-2)), trial
        assert torch.equal(made.live_queries().expand(3, 2, 5), pairs.any(-1)), trial
        if not made.vary_by_row():
            assert torch.equal(pairs, pairs[..., :1, :].expand(3, 2, 5, 7))


def test_check_values_switches_checking_on_and_off_again() -> None:
    assert not dikkat.check_values.everywhere
    with dikkat.check_values():
        assert dikkat.check_values.everywhere
        with dikkat.check_values(False):
            assert not dikkat.check_values.everywhere
        assert dikkat.check_values.everywhere
    assert not dikkat.check_values.everywhere


def test_values_that_cannot_be_read_are_clamped() -> None:
    x, lens = torch.ones(2, 3, 5), torch.tensor([9, -4])

    def run(lens: Tensor) -> Tensor:
        return dikkat.attend(x, x, x, score=scores.Dot(), valid_lens=lens)

    with pytest.raises(ValueError, match="got -4"):
        run(lens)
    came = torch.compile(run, fullgraph=True, backend="aot_eager")(lens)
    torch.testing.assert_close(came, torch.stack([torch.ones(3, 5), torch.zeros(3, 5)]))


@pytest.mark.parametrize("weights_of", [lambda *given: softmax(*given)[0], softmax_weights], ids=["softmax", "shares"])
@pytest.mark.parametrize("visible", [torch.tensor([[True], [False]]), torch.tensor([[True], [True]])])
def test_a_row_with_nothing_in_it_has_no_weights_and_no_gradient(weights_of, visible):
    scores = torch.tensor([[1.0, 2.0, 3.0], [-math.inf] * 3], dtype=torch.float64, requires_grad=True)
    weights = weights_of(scores, visible)
    torch.testing.assert_close(weights[0], torch.tensor(softmax_of([1.0, 2.0, 3.0]), dtype=torch.float64))
    assert not weights[1].any()
    (grad,) = torch.autograd.grad((weights * torch.arange(6.0).view(2, 3)).sum(), scores)
    assert bool(grad[0].any())
    assert not grad[1].any()


def test_numbers_of_numpy_and_of_any_size() -> None:
    x, score = torch.randn(2, 5, 3), scores.Dot()
    for window, plain in (((10**30, np.int64(1)), (5, 1)), ((np.uint8(2), 2**64), (2, 5))):
        came = dikkat.attend(x, x, x, score=score, window=window)
        torch.testing.assert_close(came, dikkat.attend(x, x, x, score=score, window=plain), rtol=0, atol=0)
    with pytest.raises(TypeError, match=r"window: got .*True.*; expected a whole number"):
        dikkat.attend(x, x, x, score=score, window=(np.bool_(True), 1))
    assert dikkat.attend(x, x, x, score=score, dropout=np.float32(0.25)).isfinite().all()
    causal = dikkat.attend(x, x, x, score=score, mask=torch.ones(5, 5, dtype=torch.bool).tril())
    for flag, expected in ((np.bool_(True), causal), (np.bool_(False), dikkat.attend(x, x, x, score=score))):
        torch.testing.assert_close(dikkat.attend(x, x, x, score=score, causal=flag), expected)


@pytest.mark.parametrize("name", ["bias", "key_bias", "sink"])
def test_numbers_of_8_bits_are_refused(name: str) -> None:
    x = torch.randn(2, 5, 3)
    with pytest.raises(TypeError, match=f"{name}: got dtype torch.float8_e5m2; expected a floating-point type of 16"):
        dikkat.attend(x, x, x, score=scores.Dot(), **{name: torch.zeros(1).to(torch.float8_e5m2)})


@pytest.mark.parametrize("door", ["attend", "state", "memory", "layer", "layer without a batch", "jagged"])
def test_a_function_of_positions_is_the_mask_that_it_returns(door: str) -> None:
    """A dilation of 3: each query sees every third key, in both directions."""
    torch.manual_seed(0)
    x, layer, score = torch.randn(2, 7, 6).double(), dikkat.MultiHeadAttention(6, 2).double(), scores.Dot()
    mask = torch.tensor([[(i - j) % 3 == 0 for j in range(7)] for i in range(7)])

    def call(mask: Any) -> Any:
        if door == "state":
            return dikkat.attention_state(x, x, x, score=score, mask=mask).mean
        if door == "memory":
            return dikkat.attend_memory(x, dikkat.prepare(x, x, score=score), mask=mask)
        if door.startswith("layer"):
            batch = x if door == "layer" else x[0]
            return layer(batch, batch, batch, mask=mask)
        return dikkat.attend(x, x, x, score=score, mask=mask)

    def dilated(query: Tensor, key: Tensor) -> Tensor:
        assert query.shape == (7, 1)
        assert key.shape == (7,)
        return (query - key) % 3 == 0

    if door == "jagged":
        nested = torch.nested.nested_tensor_from_jagged(x.flatten(0, 1), torch.tensor([0, 7, 14]))
        with pytest.raises(TypeError, match="mask: got a value with nested tensors"):
            dikkat.attend(nested, nested, nested, score=score, mask=dilated)
        return
    for _ in range(2):
        torch.testing.assert_close(call(dilated), call(mask))
    assert not torch.allclose(call(dilated), call(None))
    with pytest.raises(TypeError, match=r"mask: got dtype torch.int64; expected torch.bool"):
        call(lambda query, key: query - key)


def test_a_query_whose_window_ends_before_the_first_key_sees_nothing() -> None:
    """Lengths above 0 do not say that it sees a key: 5 queries, 3 keys, and query i sees the keys up to i − 2."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, rows, 4, dtype=torch.float64) for rows in (5, 3, 3))
    given = {"valid_lens": torch.tensor([3, 2]), "window": (None, 0)}
    for impl in ("reference", "chunked", "numba"):
        came = dikkat.attend(query, key, value, score=scores.Dot(), impl=impl, **given)
        for b, length in enumerate((3, 2)):
            for i in range(5):
                seen = [j for j in range(length) if j <= i - 2]
                weights = torch.softmax(query[b, i] @ key[b, seen].T, -1)
                torch.testing.assert_close(came[b, i], weights @ value[b, seen])


def test_lengths_of_rows_and_of_batch_elements_take_turns() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, rows, 4, dtype=torch.float64) for rows in (3, 7, 7))
    for lens in (torch.tensor([5, 2]), torch.tensor([[1, 5, 7], [2, 3, 4]]), torch.tensor([7, 3])):
        came = dikkat.attend(query, key, value, score=scores.Dot(), valid_lens=lens, impl="numba-few")
        for b in range(2):
            for i in range(3):
                seen = int(lens[b] if lens.ndim == 1 else lens[b, i])
                weights = torch.softmax(query[b, i] @ key[b, :seen].T, -1)
                torch.testing.assert_close(came[b, i], weights @ value[b, :seen])


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
