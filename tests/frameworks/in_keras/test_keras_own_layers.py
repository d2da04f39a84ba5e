"""Keras's own attention layers beside those that take their places: the same weights, call and numbers."""

from typing import Any

import keras
import numpy as np
import pytest
from gradients import Array, numpy
from keras import ops

from dikkat.frameworks import keras as dikkat

B, N, M, D, V, HEADS, SIZE = 2, 3, 5, 7, 11, 2, 13
LONG, SHORT = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 1, 0]]), np.array([[1, 0, 1], [1, 1, 1]])
CALLS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"use_causal_mask": True},
    "scores": {"return_attention_scores": True},
    "all": {"use_causal_mask": True, "return_attention_scores": True},
}


def tensors(value_size: int = V) -> list[Any]:
    """Query, value and key, in Keras's order; their number of features is one, as Keras's own has it."""
    rng = np.random.default_rng(5)
    return [
        ops.convert_to_tensor(rng.normal(size=shape).astype(np.float32))
        for shape in ((B, N, D), (B, M, value_size), (B, M, D))
    ]


def near(found: Any, expected: Any, seen: Any = None) -> None:
    """Equal up to rounding; with several outputs, each. Only at the queries that are `seen`."""
    found, expected = (each if isinstance(each, tuple) else (each,) for each in (found, expected))
    for one, other in zip(found, expected, strict=True):
        one, other = numpy(one), numpy(other)
        if seen is not None:
            axes = (slice(None), slice(None)) if one.ndim == 3 else (slice(None), 0)
            one, other = (each[axes][seen] for each in (one, other))
        np.testing.assert_allclose(one, other, atol=2e-6)


def additive(theirs: Any) -> Any:
    """With W_q and W_k that leave everything as it is: Keras's layer compares what comes in."""
    layer = dikkat.AdditiveAttention(D)
    layer.build((None, None, D), (None, None, D))
    eye = np.eye(D)
    v = numpy(theirs.scale)[None]
    dikkat.load_tensors(layer, {"score.W_q.weight": eye, "score.W_k.weight": eye, "score.w_v.weight": v})
    return layer


def scaled(theirs: Any) -> Any:
    """The layer's factor is 1/√d, and Keras's is learned: here it has learned the same."""
    theirs.scale.assign(D**-0.5)
    return dikkat.DotProductAttention()


def plain(theirs: Any) -> Any:
    """Keras's layer without a factor."""
    return dikkat.Attention(dikkat.Dot())


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("own", "made"), [("AdditiveAttention", additive), ("Attention", scaled), ("Attention", plain)]
)
def test_a_list_is_in_keras_order(own: str, made: Any, call: str) -> None:
    query, value, key = tensors()
    theirs = getattr(keras.layers, own)(use_scale=made is not plain)
    theirs([query, value, key])
    if own == "AdditiveAttention":
        theirs.scale.assign(np.linspace(-1, 1, D))
    ours = made(theirs)
    near(ours([query, value, key], **CALLS[call]), theirs([query, value, key], **CALLS[call]))
    near(ours([query, key], **CALLS[call]), theirs([query, key], **CALLS[call]))
    near(ours(query, key, **CALLS[call]), theirs([query, key], **CALLS[call]))
    masks = [SHORT.astype(bool), LONG.astype(bool)]
    for given in (masks, [SHORT, LONG]):
        found = ours([query, value, key], mask=given)
        near(found, theirs([query, value, key], mask=masks))
    both = theirs([query, value, key], mask=masks, **CALLS[call])
    near(ours([query, value, key], mask=masks, **CALLS[call]), both, masks[0])
    # And in a functional model.
    inputs = [keras.Input(each.shape[1:]) for each in (query, value, key)]
    model = keras.Model(inputs, ours(inputs, **CALLS[call]))
    again = keras.Model.from_config(model.get_config())
    again.set_weights(model.get_weights())
    for each in (model, again):
        found = each([query, value, key])
        near(tuple(found) if isinstance(found, list) else found, theirs([query, value, key], **CALLS[call]))


def heads(theirs: Any, repeats: int = 1) -> dict[str, Array]:
    """The weights of Keras's layer with heads: a key's and a value's head may serve several of the query's."""
    layers = {"q": theirs.query_dense, "k": theirs.key_dense, "v": theirs.value_dense, "o": theirs.output_dense}
    kernels = {name: numpy(each.kernel) for name, each in layers.items()}
    biases = {name: numpy(each.bias) for name, each in layers.items()}
    for name in "kv":
        kernels[name], biases[name] = kernels[name].repeat(repeats, 1), biases[name].repeat(repeats, 0)
    found = {f"{name}_proj_weight": kernels[name].reshape(len(kernels[name]), -1).T for name in "qkv"}
    out = kernels["o"].reshape(-1, kernels["o"].shape[-1]).T
    bias = np.concatenate([biases[name].ravel() for name in "qkv"])
    return found | {"in_proj_bias": bias, "out_proj.weight": out, "out_proj.bias": biases["o"]}


def twins(grouped: bool) -> tuple[Any, Any]:
    query, value, key = tensors()
    if grouped:
        theirs = keras.layers.GroupQueryAttention(head_dim=SIZE, num_query_heads=4, num_key_value_heads=2)
        ours = dikkat.MultiHeadAttention(D, num_heads=4, key_dim=4 * SIZE, value_dim=4 * SIZE)
    else:
        theirs = keras.layers.MultiHeadAttention(num_heads=HEADS, key_dim=SIZE)
        ours = dikkat.MultiHeadAttention(D, num_heads=HEADS, key_dim=HEADS * SIZE, value_dim=HEADS * SIZE)
    theirs(query, value, key)
    rng = np.random.default_rng(3)
    theirs.set_weights([rng.normal(size=each.shape) * 0.3 for each in theirs.get_weights()])
    ours([query, value, key])
    if grouped:
        for name in ("query", "key", "value", "output"):
            setattr(theirs, f"{name}_dense", getattr(theirs, f"_{name}_dense"))
    dikkat.load_tensors(ours, heads(theirs, 2 if grouped else 1))
    return ours, theirs


@pytest.mark.parametrize("grouped", [False, True])
def test_heads(grouped: bool) -> None:
    ours, theirs = twins(grouped)
    query, value, key = tensors()
    for call in CALLS.values():
        near(ours([query, value, key], **call), theirs(query, value, key, **call))
        near(ours(query, value=value, key=key, **call), theirs(query, value=value, key=key, **call))
    pairs = np.array([[[1, 0, 1, 1, 0], [0, 0, 0, 1, 1], [1, 1, 1, 1, 1]]] * B)
    for mask in (pairs, pairs.astype(bool)):
        near(
            ours([query, value, key], attention_mask=mask, use_causal_mask=True, return_attention_scores=True),
            theirs(query, value, key, attention_mask=pairs, use_causal_mask=True, return_attention_scores=True),
            np.array([[True, False, True]] * B),  # of the second row's keys, causality hides all
        )
    near(ours([query, value, key], key_mask=LONG), theirs(query, value, key, key_mask=LONG.astype(bool)))
    near(
        ours([query, value, key], mask=[None, LONG, LONG[::-1]]),
        theirs(query, value, key, value_mask=LONG.astype(bool), key_mask=LONG[::-1].astype(bool)),
    )


def test_a_sequence_with_itself() -> None:
    x, _, _ = tensors()
    layer = dikkat.SelfAttention(D, D)
    found = layer(x, use_causal_mask=True, return_attention_scores=True)
    near(found, layer(x, causal=True, return_weights=True))
    q, k, v = (x @ ops.transpose(each.weight) for each in (layer.W_q, layer.W_k, layer.W_v))
    theirs = keras.layers.Attention(use_scale=True)
    theirs([q, v, k])
    theirs.scale.assign(D**-0.5)
    near(found[0], theirs([q, v, k], use_causal_mask=True))


def refused(*args: Any, **options: Any) -> str:
    with pytest.raises(TypeError) as caught:
        dikkat.DotProductAttention()(*args, **options)
    return str(caught.value)


def test_a_function_names_the_layer_for_a_functional_model() -> None:
    query, key = keras.Input((N, D)), keras.Input((None, D))
    for tensors, limits in (((query, key, key), {}), ((np.ones((B, N, D), "f"),) * 3, {"valid_lens": keras.Input(())})):
        with pytest.raises(TypeError, match=r"got a symbolic tensor of a functional model.*Attention\(score\)"):
            dikkat.attend(*tensors, score=dikkat.Dot(), **limits)


def test_what_is_refused() -> None:
    query, _, key = tensors()
    assert "query: got a list of 4; expected a tensor, or the list [query, value]" in refused([query] * 4)
    assert "and key or value beside it" in refused([query, key], key)
    assert "value: got None" in refused(query)
    assert "mask: got ndarray; expected Keras's list [query_mask, value_mask]" in refused(query, key, mask=LONG)
    assert "value_mask: got one by its name and one in the list mask" in refused(
        query, key, mask=[None, LONG], value_mask=LONG
    )
    assert "return_attention_scores: got beside return_weights" in refused(
        query, key, return_weights=True, return_attention_scores=True
    )
    assert "use_causal_mask: got int; expected True or False" in refused(query, key, use_causal_mask=1)
    assert "key_mask: got dtype float32; expected bool" in refused(query, key, key_mask=LONG.astype("f"))


@pytest.mark.parametrize(
    "made", [lambda: dikkat.Attention(dikkat.Additive(3)), lambda: dikkat.MultiHeadAttention(D, num_heads=1)]
)
def test_a_list_of_shapes_is_in_keras_order(made: Any) -> None:
    query, value, key = (tuple(each.shape) for each in tensors())
    layer, called = made(), made()
    layer.build([query, value, key])
    called(tensors())
    assert [each.shape for each in layer.weights] == [each.shape for each in called.weights]
    expected = called.compute_output_shape(query_shape=query, key_shape=key, value_shape=value)
    assert layer.compute_output_shape(input_shape=[query, value, key]) == expected == tuple(called(tensors()).shape)
    assert layer.compute_output_spec([keras.KerasTensor(each) for each in (query, value, key)]).shape == expected
    again = made()
    again.build_from_config(layer.get_build_config())
    assert [each.shape for each in layer.weights] == [each.shape for each in again.weights]


def test_the_querys_mask_goes_on() -> None:
    query, value, _ = tensors()
    theirs, ours = keras.layers.Attention(), dikkat.DotProductAttention()
    for mask in (None, [SHORT, LONG]):
        for found in (theirs.compute_mask(inputs=[query, value], mask=mask), ours.compute_mask([query, value], mask)):
            assert found is None if mask is None else np.array_equal(numpy(found), SHORT)
    assert ours.compute_mask(query, SHORT) is SHORT
