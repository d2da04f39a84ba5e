"""The pair functions in blocks, with gradients by hand, against PyTorch in float64."""

from typing import Any

import numpy
import pytest
import torch
from mxnet import autograd, np

from dikkat.frameworks.mxnet import pairs


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_FEW", 0)
    monkeypatch.setattr(pairs, "_BLOCK", 60)


def _numbers(*shape: int, scale: float = 1.0) -> Any:
    return numpy.random.default_rng(sum(shape)).normal(size=shape) * scale


def _compared(ours: Any, theirs: Any, arrays: list[Any], kind: str = "float32") -> list[tuple[Any, Any]]:
    """Value and gradients of both."""
    inputs = [np.array(each, dtype=kind) for each in arrays]
    for each in inputs:
        each.attach_grad()
    with autograd.record():
        output = ours(*inputs)
        (output * np.array(_numbers(*output.shape), dtype=kind)).sum().backward()
    truth = [torch.tensor(each.asnumpy(), dtype=torch.float64, requires_grad=True) for each in inputs]
    expected = theirs(*truth)
    (expected * torch.tensor(_numbers(*expected.shape))).sum().backward()
    assert {str(output.dtype), *(str(each.grad.dtype) for each in inputs)} == {kind}
    found = [output, *(each.grad for each in inputs)]
    return [(a.asnumpy(), b.detach().numpy()) for a, b in zip(found, [expected, *(t.grad for t in truth)], strict=True)]


def _assert_close(compared: list[tuple[Any, Any]], tolerance: float = 1e-5) -> None:
    for found, expected in compared:
        numpy.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1, numpy.abs(expected).max()))


def _additive(query: Any, key: Any, weight: Any) -> Any:
    return torch.tanh(query[..., :, None, :] + key[..., None, :, :]) @ weight


def _distance(query: Any, key: Any) -> Any:
    return (query[..., :, None, :] - key[..., None, :, :]).square().sum(-1)


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("shapes", [((2, 3, 7), (2, 5, 7)), ((1, 13, 7), (1, 5, 7)), ((2, 1, 3, 7), (1, 2, 5, 7))])
def test_additive_scores_and_their_gradients(shapes: tuple[Any, Any], kind: str) -> None:
    arrays = [_numbers(*shapes[0]), _numbers(*shapes[1]), _numbers(7)]
    _assert_close(_compared(pairs.additive, _additive, arrays, kind), 1e-5 if kind == "float32" else 1e-13)


@pytest.mark.parametrize("largest", [40, 400])  # the exponentials' product overflows; the exponentials do
def test_additive_scores_where_tanh_is_saturated(largest: float) -> None:
    query, key = _numbers(2, 3, 7, scale=20).round(), _numbers(2, 5, 7, scale=20).round()
    query, key = query.clip(-40, 40), key.clip(-40, 40)
    query[0, 1, 2] = key[0, 3, 2] = query[0, 2, 4] = largest
    key[0, 3, 4] = -largest
    _assert_close(_compared(pairs.additive, _additive, [query, key, _numbers(7)]))


@pytest.mark.parametrize("few", [0, 2**16])
@pytest.mark.parametrize("largest", [0.0, 50.0])  # above 43 the exponentials are not split
def test_a_small_slope_keeps_its_digits(few: int, largest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """4·p·r² and neither 4(r − r²) nor 1 − tanh², which have none left at ±9; nor is the slope lost at 0."""
    monkeypatch.setattr(pairs, "_FEW", few)
    query = numpy.array([[[4.5, -4.5, 0.0, largest]]])
    found = _compared(pairs.additive, _additive, [query, query.copy(), _numbers(4)])
    for by_feature, _ in found[1:3]:
        slopes = _numbers(1, 1, 1) * _numbers(4) / numpy.cosh(2 * query) ** 2
        numpy.testing.assert_allclose(by_feature, slopes, rtol=1e-5, atol=1e-37)
    _assert_close(found)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_squared_distances_and_their_gradients(kind: str) -> None:
    arrays = [_numbers(2, 13, 7), _numbers(2, 5, 7)]
    _assert_close(_compared(pairs.squared_distance, _distance, arrays, kind), 1e-5 if kind == "float32" else 1e-13)


@pytest.mark.parametrize("wanted", [[0], [1], [2], [0, 2], [1, 2]])
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_the_gradients_of_some_inputs_alone(wanted: list[int], grad_req: str) -> None:
    """MXNet's own functions lose those that come after one that needs none, and those that are to be added."""
    arrays = [_numbers(2, 3, 7), _numbers(2, 5, 7), _numbers(7)]
    inputs = [np.array(each, dtype="float32") for each in arrays]
    for index in wanted:
        inputs[index].attach_grad(grad_req)
    for _ in range(2):
        with autograd.record():
            output = pairs.additive(*inputs)
        output.backward()
    truth = [torch.tensor(each, requires_grad=True) for each in arrays]
    _additive(*truth).sum().backward()
    for index in wanted:
        times = 2 if grad_req == "add" else 1
        numpy.testing.assert_allclose(inputs[index].grad.asnumpy(), times * truth[index].grad.numpy(), atol=1e-5)
