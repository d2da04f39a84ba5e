"""Arguments that models bring: sinks, soft caps, windows, segments and biases, beside their formulas."""

from typing import Any

import pytest
import torch
from torch import Tensor

import dikkat
import kit
from dikkat import scores

LENS, APART = torch.tensor([0, 4]), torch.tensor([[0, 1, 0, 1, 1, 1, 1]] * 2)


def operands(*lead: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*lead, length, 4, dtype=torch.float64, requires_grad=True) for length in (5, 7, 7)]


@kit.each("impl", ["auto", "reference", "chunked", "numba"])
@kit.each("shape", [(3,), (2, 1), ()])
def test_a_sink_is_one_more_logit_without_a_value(impl: str, shape: tuple[int, ...]) -> None:
    query, key, value = operands(2, 3)
    sink = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    logits = (query @ key.mT / 2).masked_fill(torch.arange(7) >= LENS[:, None, None, None], -torch.inf)
    logits = torch.cat([logits, sink.expand(2, 3)[..., None, None].expand(2, 3, 5, 1)], -1)
    weights = logits.softmax(-1)[..., :-1]
    given: dict[str, Any] = {"score": scores.ScaledDot(), "sink": sink, "valid_lens": LENS, "impl": impl}
    came = dikkat.attend(query, key, value, return_weights=True, **given)
    torch.testing.assert_close(came, (weights @ value, weights))
    torch.testing.assert_close(dikkat.attention_weights(query, key, **given), weights)
    torch.testing.assert_close(dikkat.attention_state(query, key, value, **given).lse, logits.logsumexp(-1))
    leaves = (query, key, value, sink)
    expected = torch.autograd.grad((weights @ value).square().sum() + weights.sin().sum(), leaves)
    for grad, exact in zip(
        torch.autograd.grad(came[0].square().sum() + came[1].sin().sum(), leaves), expected, strict=True
    ):
        torch.testing.assert_close(grad, exact)


def test_the_gradient_of_a_small_sink_has_all_its_digits() -> None:
    query, key, value = (x.detach() for x in operands(2, 3))
    weighed = []
    for dtype in (torch.float64, torch.float32):
        sink = torch.full((3,), -12.0, dtype=dtype, requires_grad=True)
        given = (query.to(dtype), key.to(dtype), value.to(dtype))
        _, weights = dikkat.attend(*given, score=scores.ScaledDot(), sink=sink, return_weights=True)
        weights[..., 0].sum().backward()
        weighed.append(sink.grad.double())
    logits = torch.cat([query @ key.mT / 2, torch.full((2, 3, 5, 1), -12.0, dtype=torch.float64)], -1)
    shares = logits.softmax(-1)
    expected = -(shares[..., 0] * shares[..., -1]).sum((0, 2))
    torch.testing.assert_close(weighed, [expected] * 2, rtol=1e-5, atol=0)


def test_a_sink_of_a_memory_and_of_an_inspection() -> None:
    query, key, value = (x.detach() for x in operands(2, 3))
    sink, score = torch.randn(3, dtype=torch.float64), scores.Dot()
    memory = dikkat.prepare(key, value, score=score)
    came = dikkat.attend_memory(query, memory, sink=sink)
    torch.testing.assert_close(came, dikkat.attend(query, key, value, score=score, sink=sink))

    class Attending(torch.nn.Module):
        def forward(self, x: Tensor) -> Any:
            return dikkat.attend(x, key, value, score=score, sink=sink)

    with dikkat.record(model := torch.nn.Sequential(Attending()), sums=True) as trace:
        torch.testing.assert_close(model(query), came)
    weights = dikkat.attention_weights(query, key, score=score, sink=sink)
    torch.testing.assert_close(trace[trace.names[0]].sums, weights.sum(-2))


def test_the_softcap_keeps_scores_between_its_bounds() -> None:
    query, key, _ = operands()
    weights = dikkat.attention_weights(100 * query, key, score=scores.Dot(softcap=0.5))
    exact = (0.5 * (100 * query @ key.mT / 0.5).tanh()).softmax(-1)
    torch.testing.assert_close(weights, exact)
    assert "no soft cap" in str(dikkat.implementations(query, key, key, score=scores.Dot(softcap=0.5)))


@kit.each(
    ("given", "error", "message"),
    [
        ({"window": 3}, TypeError, r"window: got 3; expected \(left, right\)"),
        ({"window": (1, -1)}, ValueError, "window: got -1; expected 0 or more keys"),
        ({"window": (1.0, 1)}, TypeError, "window: got 1.0; expected a whole number"),
        ({"segment_ids": torch.zeros(2, 5).long()}, ValueError, r"got shape \(2, 5\); expected \(2, 7\)"),
        ({"segment_ids": (APART[:, :5], APART)}, ValueError, "segment_ids: got a segment with separate keys"),
        ({"segment_ids": 3}, TypeError, "segment_ids: got int; expected a tensor, or a pair"),
        ({"bias": torch.zeros(5, 6)}, ValueError, r"bias: got shape \(5, 6\); expected one that broadcasts to"),
        ({"bias": torch.zeros(5, 7).long()}, TypeError, "bias: got dtype torch.int64; expected a floating-point type"),
        ({"sink": torch.zeros(4)}, ValueError, r"sink: got shape \(4,\); expected one that broadcasts to \(2, 3\)"),
        ({"sink": torch.zeros(3).long()}, TypeError, "sink: got dtype torch.int64"),
        ({"sink": 1.0}, TypeError, "sink: got float; expected a torch.Tensor"),
    ],
)  # fmt: skip
def test_errors(given: dict[str, Any], error: type[Exception], message: str) -> None:
    query, key, value = operands(2, 3)
    with pytest.raises(error, match=message):
        dikkat.attend(query, key, value, score=scores.Dot(), **given)


@pytest.mark.parametrize(("softcap", "error"), [(0, ValueError), (float("inf"), ValueError), ("1", TypeError)])
def test_a_softcap_is_a_positive_number(softcap: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="softcap: got"):
        scores.Dot(softcap)


@pytest.mark.parametrize("impl", ["chunked", "numba"])
def test_a_layer_takes_them(impl: str) -> None:
    torch.manual_seed(0)
    layer, x = dikkat.MultiHeadAttention(12, 3), torch.randn(2, 7, 12)
    ids = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [4] * 7])
    near = (torch.arange(7)[:, None] - torch.arange(7)).abs() <= 2
    bias = torch.randn(1, 3, 7, 7)
    came = layer(x, x, x, window=(2, 2), segment_ids=ids, bias=bias, impl=impl)
    mask = (near & (ids[:, :, None] == ids[:, None, :]))[:, None]
    torch.testing.assert_close(came, layer(x, x, x, mask=mask, bias=bias, impl="reference"), rtol=1e-5, atol=1e-5)
    alone = layer(x[0], x[0], x[0], window=(2, 2), segment_ids=(ids[0], ids[0]), impl=impl)
    torch.testing.assert_close(alone, layer(x[0], x[0], x[0], mask=mask[0, 0], impl="reference"), rtol=1e-5, atol=1e-5)
