"""The additive comparison, all at once and in a loop, beside the formula in float64."""

from typing import Any

import keras
import numpy as np
import pytest
import torch
from gradients import differentiate

from dikkat.frameworks.keras import additive

SMALL, LARGE = (2, 3, 5, 7), (2, 53, 47, 17)  # batch, queries, keys, features: at once, and in a loop
SQUARE = (1, 67, 67, 17)  # one sequence, of which nothing but their place tells queries from keys


@pytest.mark.parametrize("sizes", [SMALL, LARGE, SQUARE], ids=["at once", "in a loop", "of one square"])
@pytest.mark.parametrize(("query", "key"), [(1.0, 1.0), (30.0, 0.5), (5.0, 0.01)], ids=["plain", "steep", "folded"])
def test_values_and_gradients(sizes: tuple[int, ...], query: float, key: float) -> None:
    batch, queries, keys, features = sizes
    rng = np.random.default_rng(3)
    arrays = {
        "query": query * rng.normal(size=(batch, queries, features)),
        "key": key * rng.normal(size=(batch, keys, features)),
        "weight": rng.normal(size=features),
        "upstream": rng.normal(size=(batch, queries, keys)),
    }
    narrow = {name: each.astype(np.float32) for name, each in arrays.items()}
    scores, gradients = _ours(narrow)
    expected, derived, sums = _right(narrow)
    assert np.abs(scores - expected).max() <= 1e-6 * np.abs(narrow["weight"]).sum()
    for found, right, size in zip(gradients, derived, sums, strict=True):
        assert (np.abs(found - right) <= 2e-6 * np.maximum(size, 1e-3)).all()


def test_one_large_product_does_not_hide_another() -> None:
    """At the limit of folding one denominator is e^59.8, and the other about 1, in the same pair."""
    query = np.array([[29.9, -5.0], [0.0, -3.0]], np.float32).repeat(200, 0)[None]
    key = np.zeros((1, 200, 2), np.float32)
    key[..., 1] = np.linspace(-0.05, 0.05, 200)
    weight = np.array([1.0, 2.0], np.float32)
    arrays = {"query": query, "key": key, "weight": weight, "upstream": np.ones((1, 400, 200), np.float32)}
    scores, _ = _ours(arrays)
    np.testing.assert_allclose(scores, _right(arrays)[0], atol=2e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the graphs of the other tests are JAX's")
@pytest.mark.parametrize("steepness", [1.0, 30.0])
def test_gradients_of_one_square_in_a_graph(steepness: float) -> None:
    import tensorflow as tf

    batch, queries, keys, features = SQUARE
    rng = np.random.default_rng(5)
    shapes = {"query": (batch, queries, features), "key": (batch, keys, features), "weight": (features,)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["query"] *= np.float32(steepness)
    upstream = arrays["upstream"] = rng.normal(size=(batch, queries, keys)).astype(np.float32)

    @tf.function
    def differentiated(*tensors: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            scores = additive.additive(*tensors)
        return scores, tape.gradient(scores, tensors, upstream)

    scores, gradients = differentiated(*(tf.constant(arrays[name]) for name in shapes))
    expected, derived, sums = _right(arrays)
    assert np.abs(scores - expected).max() <= 1e-6 * np.abs(arrays["weight"]).sum()
    for found, right, size in zip(gradients, derived, sums, strict=True):
        assert (np.abs(found - right) <= 2e-6 * np.maximum(size, 1e-3)).all()


def _ours(arrays: dict[str, Any]) -> Any:
    def scores(tensors: dict[str, Any]) -> dict[str, Any]:
        return {"scores": additive.additive(tensors["query"], tensors["key"], tensors["weight"])}

    inputs = {name: arrays[name] for name in ("query", "key", "weight")}
    outputs, gradients = differentiate(scores, inputs, {"scores": arrays["upstream"]})
    return outputs["scores"], [gradients[name] for name in inputs]


def _right(arrays: dict[str, Any]) -> Any:
    """Scores and gradients, and the sums of the absolute values that each gradient adds up."""
    query, key, weight, upstream = (torch.tensor(each, dtype=torch.float64) for each in arrays.values())
    wanted = [each.requires_grad_() for each in (query, key, weight)]
    tangent = torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3))
    scores = tangent @ weight
    gradients = torch.autograd.grad((scores * upstream).sum(), wanted)
    with torch.no_grad():
        share = (upstream.unsqueeze(-1) * weight * (1 - tangent**2)).abs()
        sums = share.sum(-2), share.sum(-3), upstream.abs().sum().expand(len(weight))
    return scores.detach().numpy(), [each.numpy() for each in gradients], [each.numpy() for each in sums]


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="TensorFlow has no such transforms")
@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["at once", "in a loop"])
def test_every_element_of_a_batch_its_own_gradient(sizes: tuple[int, ...]) -> None:
    """Of which one is beyond what may be folded; and weights of several models side by side."""
    batch, queries, keys, features = sizes
    rng = np.random.default_rng(7)
    shapes = (batch, queries, features), (batch, keys, features), (features,)
    tensors = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    tensors[0][0] *= np.float32(1e30)
    arrays = dict(zip(("query", "key", "weight"), tensors, strict=True))
    arrays["upstream"] = np.ones((batch, queries, keys), np.float32)
    scores, (of_query, of_key, of_weight), _ = _right(arrays)
    if keras.backend.backend() == "jax":
        from jax import grad, vmap
    else:
        from torch.func import grad, vmap

        tensors = list(map(torch.from_numpy, tensors))
    found = vmap(grad(lambda *each: additive.additive(*each).sum(), (0, 1, 2)), (0, 0, None))(*tensors)
    for each, right in zip(found, (of_query, of_key, of_weight), strict=True):
        each = np.asarray(each).sum(0) if each.ndim == 2 else np.asarray(each)
        np.testing.assert_allclose(each, right, atol=2e-5 * queries * keys)
    weights = tensors[2][None] * tensors[2][:3, None]
    several = vmap(additive.additive, (None, None, 0))(*tensors[:2], weights)
    expected = np.asarray(tensors[2])[:3, None, None, None] * scores
    np.testing.assert_allclose(np.asarray(several), expected, atol=1e-5)
