"""The gradient by hand of all steps as one function, against differences in float64; dropouts as they are given."""

from typing import Any

import numpy
import pytest
import torch
from mxnet import autograd, np

import dikkat
from dikkat import recurrent
from dikkat.frameworks import mxnet as dikkat_mxnet
from dikkat.frameworks.mxnet import scores, sequence

L, B, T, M, E, C, A, H = 2, 3, 5, 7, 2, 11, 6, 4


def _numbers(*shape: int, seed: int = 0) -> Any:
    return numpy.random.default_rng([seed, *shape]).normal(size=shape)


def _tensors(mode: str, pair: str, scale: float) -> dict[str, Any]:
    gates = {"gru": 3, "lstm": 4}[mode] * H
    tensors = {
        "inputs": _numbers(B, T, E),
        "key": scale * _numbers(B, M, A),
        "value": _numbers(B, M, C),
        "hidden": _numbers(L, B, H),
        "query_weight": scale * _numbers(A, H),
        "query_bias": _numbers(A),
    }
    tensors |= {"cell": _numbers(L, B, H, seed=1)} if mode == "lstm" else {}
    tensors |= {"pair_weight": _numbers(A, seed=1)} if pair == "additive" else {}
    for layer, columns in enumerate((E + C, H)):
        tensors |= {
            f"below_weight_{layer}": _numbers(gates, columns),
            f"below_bias_{layer}": _numbers(gates, seed=layer),
            f"hidden_weight_{layer}": _numbers(gates, H, seed=3 + layer),
            f"hidden_bias_{layer}": _numbers(gates, seed=5 + layer),
        }
    return tensors


@pytest.mark.parametrize("mode", ["gru", "lstm"])
@pytest.mark.parametrize(("pair", "scale"), [("inner", 1.0), ("additive", 1.0), ("additive", 60.0)])
def test_the_gradient_is_that_of_differences(mode: str, pair: str, scale: float) -> None:
    plan = sequence.Plan(
        mode,
        pair,
        L,
        shown=numpy.arange(M) < numpy.array([[7], [0], [4]]),
        features=numpy.random.default_rng(1).choice([0.0, 2.0], (L - 1, B, T, H)),
        weights=numpy.random.default_rng(2).choice([0.0, 2.0], (B, T, M)),
        real=numpy.arange(T) < numpy.array([[5], [3], [1]]),
    )
    tensors = _tensors(mode, pair, scale)
    run = sequence._Steps(plan, tensors)
    probes = [_numbers(*each.shape, seed=9) for each in run.forward()]
    gradients = run.backward(probes)

    def total(name: str, change: Any) -> float:
        found = sequence._Steps(plan, tensors | {name: tensors[name] + change}).forward()
        return sum(float((each * probe).sum()) for each, probe in zip(found, probes, strict=True))

    for name, tensor in tensors.items():
        direction = _numbers(*tensor.shape, seed=11)
        step = 1e-6 / scale
        slope = (total(name, step * direction) - total(name, -step * direction)) / (2 * step)
        assert (gradients[name] * direction).sum() == pytest.approx(slope, rel=2e-6, abs=1e-6), name


@pytest.mark.parametrize("score", [scores.Dot, lambda: scores.Additive(H, H, A)])
def test_a_second_backward_pass_gives_the_same_gradients(score: Any) -> None:
    layer = dikkat_mxnet.AttentionalGRU(E, H, H, score(), L)
    layer.initialize()
    inputs, encoded, state = (np.array(_numbers(*each), dtype="float32") for each in ((B, T, E), (B, M, H), (L, B, H)))
    encoded.attach_grad()
    with autograd.record():
        outputs = layer(inputs, layer.prepare(encoded), state)[0]
    learned = [encoded.grad, *(each.grad() for each in layer.collect_params().values())]
    outputs.backward(retain_graph=True)
    once = [each.asnumpy() for each in learned]
    outputs.backward()
    for again, expected in zip(learned, once, strict=True):
        numpy.testing.assert_array_equal(again.asnumpy(), expected)


@pytest.mark.parametrize("largest", [0.0, 50.0])  # above 43 the exponentials are not split
def test_a_small_slope_of_a_step_keeps_its_digits(largest: float) -> None:
    query = numpy.array([[4.5, -4.5, 0.0, largest]], dtype="float32")
    weight = _numbers(4).astype("float32")
    look = sequence._Additive({"key": query[:, None], "pair_weight": weight})
    by_query = look.gradient(query, numpy.ones((1, 1), "float32"), look.zeros())
    numpy.testing.assert_allclose(
        by_query, weight / numpy.cosh(2 * query.astype("float64")) ** 2, rtol=1e-5, atol=1e-37
    )


def test_exponentials_whose_product_overflows() -> None:
    plan = sequence.Plan("gru", "additive", L, None, None, None, None)
    tensors = {name: each.astype("float32") for name, each in _tensors("gru", "additive", 1.0).items()}
    tensors["key"][0], tensors["query_bias"][:] = 42, 42
    tensors["query_weight"] /= 1000  # e^84 · e^84 is more than float32 has; neither of them is
    run = sequence._Steps(plan, tensors)
    outputs = run.forward()
    exact = sequence._Steps(plan, {name: each.astype("float64") for name, each in tensors.items()})
    for found, expected in zip(outputs, exact.forward(), strict=True):
        numpy.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    gradients = run.backward(outputs)
    for name, expected in exact.backward(outputs).items():
        numpy.testing.assert_allclose(gradients[name], expected, rtol=0, atol=1e-5 * max(1, abs(expected).max()))


def test_features_and_weights_that_are_dropped() -> None:
    """A weight's share of the context goes with it; what the first layer says does not come to the second."""
    plan = sequence.Plan("gru", "inner", L, None, numpy.zeros((1, B, T, H)), numpy.zeros((B, T, M)), None)
    tensors = _tensors("gru", "inner", 1.0)
    outputs, contexts, weights, _ = sequence._Steps(plan, tensors).forward()
    assert (contexts == 0).all()
    numpy.testing.assert_allclose(weights.sum(-1), 1)
    others = sequence._Steps(plan, tensors | {"inputs": 2 * tensors["inputs"]}).forward()
    numpy.testing.assert_array_equal(others[0], outputs)


@pytest.mark.parametrize(
    "name", ["Dot", "ScaledDot", "Bilinear", "VectorSum", "Average", "Additive", "Gaussian", "Cosine"]
)
@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
def test_every_score_is_that_of_pytorch(cell: str, name: str) -> None:
    """As one function or in a loop: which, nobody who calls can see."""
    sizes = {"Bilinear": (H, H), "VectorSum": (H,), "Additive": (H, H, A)}.get(name, ())
    ours = getattr(dikkat_mxnet, f"Attentional{cell}")(E, H, H, getattr(scores, name)(*sizes), L)
    theirs = getattr(recurrent, f"Attentional{cell}")(E, H, H, getattr(dikkat.scores, name)(*sizes), L)
    dikkat_mxnet.load_tensors(ours, {name: each.detach().numpy() for name, each in theirs.state_dict().items()})
    inputs, encoded, state = (_numbers(*shape).astype("float32") for shape in ((B, T, E), (B, M, H), (L, B, H)))
    encoded_array = np.array(encoded)
    encoded_array.attach_grad()
    with autograd.record():
        memory = ours.prepare(encoded_array, np.array([7, 2, 4]))
        begun = np.array(state) if cell == "GRU" else (np.array(state),) * 2
        outputs, _, weights, _ = ours(np.array(inputs), memory, begun, return_weights=True)
    outputs.backward()
    encoded_tensor = torch.tensor(encoded, requires_grad=True)
    memory = theirs.prepare(encoded_tensor, torch.tensor([7, 2, 4]))
    begun = torch.tensor(state) if cell == "GRU" else (torch.tensor(state),) * 2
    expected, _, looked_at, _ = theirs(torch.tensor(inputs), memory, begun, return_weights=True, impl="reference")
    expected.sum().backward()
    for found, truth in ((outputs, expected), (weights, looked_at), (encoded_array.grad, encoded_tensor.grad)):
        numpy.testing.assert_allclose(found.asnumpy(), truth.detach().numpy(), rtol=0, atol=1e-5)
