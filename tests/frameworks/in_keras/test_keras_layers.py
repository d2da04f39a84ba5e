"""Keras's own ways with the layers: masks, symbolic calls, training, precision, files; PyTorch is the truth."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch
from gradients import Array, numpy
from keras import ops

import dikkat as in_torch
from dikkat.frameworks import keras as dikkat

B, N, M, D_Q, D_K, D_V, H = 2, 3, 5, 7, 11, 13, 17


def arrays(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(len(shapes))
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def qkv() -> list[Array]:
    return arrays((B, N, D_Q), (B, M, D_K), (B, M, D_V))


def layers(**options: Any) -> list[tuple[Any, torch.nn.Module]]:
    """Every layer of queries and keys of different sizes, with PyTorch's."""
    additive = in_torch.scores.Additive(D_Q, D_Q, 3)
    heads = {"key_dim": 2 * D_Q, "value_dim": 6}
    return [
        (dikkat.AdditiveAttention(H, **options), in_torch.AdditiveAttention(D_K, D_Q, H)),
        (dikkat.BilinearAttention(**options), in_torch.BilinearAttention(D_K, D_Q)),
        (
            dikkat.MultiHeadAttention(D_Q, num_heads=2, **heads, score=dikkat.Additive(3, **options), **options),
            in_torch.MultiHeadAttention(D_Q, 2, key_size=D_K, value_size=D_V, **heads, score=additive),
        ),
    ]


def twins(pair: tuple[Any, torch.nn.Module]) -> tuple[Any, torch.nn.Module]:
    """The layer with the weights of PyTorch's."""
    layer, module = pair
    layer(*map(ops.convert_to_tensor, qkv()))
    dikkat.load_tensors(layer, {name: each.numpy() for name, each in module.state_dict().items()})
    return layer, module.double().eval()


def expected(module: torch.nn.Module, *tensors: Array, **limits: Any) -> Array:
    wide = [torch.tensor(each, dtype=torch.float64) for each in tensors]
    named = {name: torch.tensor(each) if isinstance(each, np.ndarray) else each for name, each in limits.items()}
    return module(*wide, **named).detach().numpy()


@pytest.mark.parametrize("which", range(3))
def test_masks_of_keras_hide_and_go_on(which: int) -> None:
    layer, module = twins(layers()[which])
    query, key, value = qkv()
    masks = {
        "query": np.array([[True, True, False], [True, False, True]]),
        "key": np.array([[True, False, True, True, True], [False, True, True, True, False]]),
        "value": np.array([[True, True, True, True, False], [True, True, True, False, True]]),
    }
    marked = {}
    for name, array in (("query", query), ("key", key), ("value", value)):
        array = np.where(masks[name][..., None], array, 0.0)
        marked[name] = keras.layers.Masking()(ops.convert_to_tensor(array))
    lens = np.array([4, 5])
    output = layer(*marked.values(), ops.convert_to_tensor(lens))
    pairs = masks["query"][:, :, None] & (masks["key"] & masks["value"])[:, None, :]
    np.testing.assert_allclose(
        numpy(output), expected(module, query, key, value, valid_lens=torch.tensor(lens), mask=pairs), atol=2e-6
    )
    np.testing.assert_array_equal(ops.convert_to_numpy(output._keras_mask), masks["query"])


def test_a_mask_reaches_self_attention_alone_and_beside_lengths() -> None:
    layer, module = dikkat.SelfAttention(6, 4, num_heads=2), in_torch.SelfAttention(D_Q, 6, 4, num_heads=2)
    (x,) = arrays((B, M, D_Q))
    x[0, 3:], x[1, 0] = 0.0, 0.0
    shown = np.array([[True] * 3 + [False] * 2, [False] + [True] * 4])
    marked = keras.layers.Masking()(ops.convert_to_tensor(x))
    layer(marked)
    dikkat.load_tensors(layer, {name: each.numpy() for name, each in module.state_dict().items()})
    pairs, lens = shown[:, :, None] & shown[:, None, :], np.array([5, 4])
    module = module.double()
    np.testing.assert_allclose(numpy(layer(marked)), expected(module, x, mask=pairs), atol=2e-6)
    both = layer(marked, ops.convert_to_tensor(lens))
    np.testing.assert_allclose(numpy(both), expected(module, x, mask=pairs, valid_lens=lens), atol=2e-6)


@pytest.mark.parametrize("which", range(3))
def test_symbolic_calls_with_unknown_sizes(which: int) -> None:
    layer, module = twins(layers()[which])
    inputs = [keras.Input((None, size)) for size in (D_Q, D_K, D_V)]
    lens = keras.Input((None,), dtype="int32")
    output, weights = layer(*inputs, lens, causal=True, return_weights=True)
    width = D_Q if which == 2 else D_V
    assert output.shape == (None, None, width)
    assert weights.shape == ((None, 2, None, None) if which == 2 else (None, None, None))
    model = keras.Model([*inputs, lens], output)
    for batch, queries, keys in ((2, 3, 5), (5, 1, 7)):
        tensors = arrays((batch, queries, D_Q), (batch, keys, D_K), (batch, keys, D_V))
        counts = np.arange(batch * queries).reshape(batch, queries) % (keys + 1)
        found = model.predict([*tensors, counts.astype(np.int32)], verbose=0)
        np.testing.assert_allclose(found, expected(module, *tensors, valid_lens=counts, causal=True), atol=5e-6)


def test_symbolic_calls_with_some_sizes_known() -> None:
    """One length is known and another is not, though both are of the same axis."""
    query, key = keras.Input((N, D_Q)), keras.Input((M, D_Q))
    lens, mask = keras.Input((None,), dtype="int32"), keras.Input((None, M), dtype="bool")
    output = dikkat.DotProductAttention()(query, key, key, lens, attention_mask=mask)
    assert output.shape == (None, N, D_Q)
    with pytest.raises(ValueError, match=r"value: got 5 rows"):
        dikkat.DotProductAttention()(query, query, key)
    with pytest.raises(ValueError, match=r"attention_mask: got shape \(None, 2, 5\)"):
        dikkat.DotProductAttention()(query, key, key, attention_mask=keras.Input((2, M), dtype="bool"))
    with pytest.raises(TypeError, match="valid_lens: got dtype float32; expected an integer type"):
        dikkat.MultiHeadAttention(D_Q, num_heads=1)(query, key, key, keras.Input(()))


@pytest.mark.parametrize("which", range(3))
def test_a_step_of_compiled_training_is_pytorchs(which: int) -> None:
    """With lengths past the keys, which are cut where no value can be read, and a row without keys."""
    layer, module = twins(layers()[which])
    inputs = [keras.Input(array.shape[1:]) for array in qkv()]
    lens = keras.Input((), dtype="int32")
    model = keras.Model([*inputs, lens], layer(*inputs, lens))
    # PyTorch's compiler builds C++; what it is given is what runs eagerly.
    compiled = keras.backend.backend() != "torch"
    model.compile(keras.optimizers.SGD(0.5), "mse", jit_compile=compiled)
    (target,) = arrays((B, N, D_Q if which == 2 else D_V))
    long = 23 if compiled else M  # an eager call reads the lengths, and refuses
    model.fit([*qkv(), np.array([0, long], np.int32)], target, batch_size=B, verbose=0)

    output = module(*(torch.tensor(each).double() for each in qkv()), torch.tensor([0, M]))
    torch.nn.functional.mse_loss(output, torch.tensor(target).double()).backward()
    found = dikkat.tensors(layer)
    for name, parameter in module.named_parameters():
        stepped = (parameter - 0.5 * parameter.grad).detach().numpy()
        np.testing.assert_allclose(found[name], stepped, atol=5e-6, err_msg=name)
        assert np.abs(stepped - parameter.detach().numpy()).max() > 1e-4, name


@pytest.mark.parametrize(("policy", "tolerance"), [("mixed_float16", 4e-3), ("mixed_bfloat16", 3e-2)])
@pytest.mark.parametrize("which", range(3))
def test_mixed_precision(which: int, policy: str, tolerance: float) -> None:
    layer, module = twins(layers(dtype=policy)[which])
    assert {str(array.dtype) for array in dikkat.tensors(layer).values()} == {"float32"}
    lens = np.array([0, 4])
    output, weights = layer(*map(ops.convert_to_tensor, qkv()), ops.convert_to_tensor(lens), return_weights=True)
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
    np.testing.assert_allclose(numpy(output), expected(module, *qkv(), valid_lens=lens), atol=tolerance)
    assert not numpy(weights)[0].any()
    assert which == 2 or not numpy(output)[0].any()


@pytest.mark.parametrize("learnable", [True, False])
def test_a_bandwidth_stays_float32_in_mixed_precision(learnable: bool) -> None:
    """One that float16 does not have."""
    layer = dikkat.KernelAttention(1e5, learnable, dtype="mixed_float16")
    key = np.array([[[0.0], [6e4]]], np.float32)
    weights = layer(*map(ops.convert_to_tensor, (key[:, :1], key, key)), return_weights=True)[1]
    true = 1 / (1 + np.exp(-(key[0, 1, 0] ** 2) / 2e10))
    np.testing.assert_allclose(numpy(weights)[0, 0], [true, 1 - true], atol=1e-3)


def test_half_precision_accumulates_in_float32() -> None:
    """A sum of many weights that float16 has not, and a score beyond its range."""
    value = np.full((1, 20011, 1), 1 / 3, np.float16)
    key = np.zeros((1, 20011, 1), np.float16)
    assert numpy(dikkat.attend(key[:, :1], key, value, score=dikkat.Dot())).item() == value[0, 0, 0]
    far = np.array([[[300.0], [301.0]]], np.float16)
    weights = numpy(dikkat.attend(far[:, :1], far, far, score=dikkat.Dot(), return_weights=True)[1])
    np.testing.assert_allclose(weights[0, 0], [0.0, 1.0], atol=1e-6)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has float64 where a whole process switches it on")
@pytest.mark.parametrize("which", range(3))
def test_float64_stays_float64(which: int) -> None:
    layer, module = twins(layers(dtype="float64")[which])
    wide = [each.astype(np.float64) for each in qkv()]
    lens = np.array([[1, 5, 0], [4, 3, 2]])
    output = layer(*map(ops.convert_to_tensor, wide), ops.convert_to_tensor(lens))
    np.testing.assert_allclose(numpy(output), expected(module, *wide, valid_lens=lens), atol=1e-13)
    x = ops.convert_to_tensor(arrays((B, N, D_Q))[0].astype(np.float64))
    for score in ("Cosine", "Epanechnikov", "ScaledDot"):
        weights = dikkat.attend(x, x, x, score=getattr(dikkat, score)(dtype="float64"), return_weights=True)[1]
        true = in_torch.attention_weights(*[torch.tensor(numpy(x))] * 2, score=getattr(in_torch.scores, score)())
        np.testing.assert_allclose(numpy(weights), true.numpy(), atol=1e-13)


def test_what_the_caller_has_is_not_written_to() -> None:
    scores = ops.ones((B, N, M))
    dikkat.attend(scores, scores, scores, score=dikkat.Dot(), valid_lens=np.array([0, 2]))
    assert (ops.convert_to_numpy(scores) == 1).all()


def test_keys_shared_by_a_batch_are_hidden_from_those_who_do_not_see_them() -> None:
    """Keys (m, d), of which a NaN is seen by the second element alone."""
    query, key, value = arrays((B, N, D_Q), (M, D_Q), (M, D_V))
    key[3:], value[3:] = np.nan, np.inf
    lens = np.array([3, 5])
    output = numpy(dikkat.attend(query, key, value, score=dikkat.Dot(), valid_lens=lens))
    true = in_torch.attend(
        *(torch.tensor(each)[None] for each in (query[0], key[:3], value[:3])), score=in_torch.scores.Dot()
    )
    np.testing.assert_allclose(output[0], true[0].numpy(), atol=1e-5)
    assert np.isnan(output[1]).all()


@pytest.mark.parametrize("mask", [np.array([True, False, True, True, False]), np.array(True), np.array(False)])
def test_a_mask_of_few_dimensions(mask: Array) -> None:
    query, key, value = arrays((B, N, D_Q), (B, M, D_Q), (B, M, D_V))
    true = in_torch.attend(
        *(torch.tensor(each).double() for each in (query, key, value)),
        score=in_torch.scores.ScaledDot(),
        mask=torch.tensor(np.broadcast_to(mask, (N, M))),
    )
    np.testing.assert_allclose(
        numpy(dikkat.attend(query, key, value, score=dikkat.ScaledDot(), mask=mask)), true.numpy(), atol=2e-6
    )
    layer, tensors = dikkat.DotProductAttention(), map(ops.convert_to_tensor, (query, key, value))
    np.testing.assert_allclose(
        numpy(layer(*tensors, attention_mask=ops.convert_to_tensor(mask))), true.numpy(), atol=2e-6
    )


def test_no_keys_no_queries_and_no_batch() -> None:
    query, key, value = ops.ones((B, N, D_Q)), ops.ones((B, 0, D_Q)), ops.ones((B, 0, D_V))
    output, weights = dikkat.attend(query, key, value, score=dikkat.Dot(), return_weights=True)
    assert not numpy(output).any()
    assert tuple(output.shape) == (B, N, D_V)
    assert tuple(weights.shape) == (B, N, 0)
    for score in (dikkat.Cosine(), dikkat.Additive(3), dikkat.Gaussian()):
        assert tuple(dikkat.attend(query[:, :0], query, query, score=score).shape) == (B, 0, D_Q)
    one = dikkat.attend(
        np.ones((N, 2), "f"), np.ones((M, 2), "f"), np.eye(M, dtype="f"), score=dikkat.Dot(), valid_lens=2
    )
    np.testing.assert_allclose(numpy(one), [[0.5, 0.5, 0, 0, 0]] * N)


def test_dropout_acts_on_the_weights_in_training_alone() -> None:
    keys = 211
    x, key, value = ops.zeros((1, 7, 3)), ops.zeros((1, keys, 3)), ops.eye(keys)[None]
    layer = dikkat.DotProductAttention(dropout=0.25)
    for training in (False, None):
        np.testing.assert_allclose(numpy(layer(x, key, value, training=training)), 1 / keys, rtol=1e-5)
    output, weights = layer(x, key, value, training=True, return_weights=True)
    np.testing.assert_allclose(numpy(weights), 1 / keys, rtol=1e-5)
    dropped = numpy(output) == 0
    np.testing.assert_allclose(numpy(output)[~dropped], 1 / (0.75 * keys), rtol=1e-5)
    assert 0.15 < dropped.mean() < 0.35  # of 1477
    assert (numpy(layer(x, key, value, training=True)) != numpy(output)).any()
    heads = dikkat.MultiHeadAttention(4, num_heads=2, dropout=1.0, bias=False)
    assert numpy(heads(*[ops.ones((1, 3, 4))] * 3, training=False)).any()
    assert not numpy(heads(*[ops.ones((1, 3, 4))] * 3, training=True)).any()


@pytest.mark.parametrize(
    "made",
    [
        lambda seed: dikkat.AdditiveAttention(H, 0.5, seed),
        lambda seed: dikkat.DotProductAttention(0.5, seed),
        lambda seed: dikkat.BilinearAttention(0.5, seed),
        lambda seed: dikkat.MultiHeadAttention(D_Q, num_heads=1, dropout=0.5, seed=seed),
    ],
)
def test_a_seed_drops_the_same(made: Any) -> None:
    (x,) = arrays((B, N, D_Q))
    first, other, third = (made(seed) for seed in (7, 7, 8))
    again = type(first).from_config(first.get_config())
    for layer in (first, other, third, again):
        layer(x, x)
        dikkat.load_tensors(layer, dikkat.tensors(first))
    found = [numpy(layer(x, x, training=True)) for layer in (first, other, third, again)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[3])
    assert (found[0] != found[2]).any()


def test_a_layer_in_every_step() -> None:
    """`TimeDistributed` asks for the shape beforehand."""
    (x,) = arrays((B, N, M, D_Q))
    layer = dikkat.SelfAttention(4, 6, num_heads=2)
    found = keras.layers.TimeDistributed(layer)(x)
    for step in range(N):
        np.testing.assert_allclose(numpy(found[:, step]), numpy(layer(x[:, step])), atol=1e-6)
    shapes = (B, None, D_Q), (B, M, D_K), (B, M, D_V)
    assert dikkat.AdditiveAttention(H).compute_output_shape(*shapes) == (B, None, D_V)
    assert dikkat.MultiHeadAttention(D_Q, num_heads=1).compute_output_shape(*shapes) == (B, None, D_Q)


def test_a_pattern_addresses_a_weight() -> None:
    """However many layers there were before."""
    x = ops.ones((B, N, D_Q))
    paths = []
    for _ in range(2):
        layers = [
            dikkat.AdditiveAttention(H, dropout=0.5, name="additive"),
            dikkat.BilinearAttention(name="bilinear"),
            dikkat.MultiHeadAttention(D_Q, num_heads=1, score=dikkat.Additive(3), name="heads"),
            dikkat.KernelAttention(2.0, learnable=True, name="kernel"),
        ]
        for layer in layers:
            layer(x, x, x)
        itself = dikkat.SelfAttention(4, 6, name="itself")
        itself(x)
        paths.append([each.path for layer in (*layers, itself) for each in layer.variables])
    assert paths[0] == paths[1]
    assert {"additive/score/W_q/weight", "additive/score/w_v/weight", "bilinear/score/W_q/weight"} < set(paths[0])
    assert {"heads/score/W_k/weight", "heads/out_proj/weight", "kernel/score/log_bandwidth"} < set(paths[0])
    assert {"itself/W_q/weight", "itself/W_v/weight"} < set(paths[0])
    mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], devices=["cpu:0"])
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*W_q/weight"] = keras.distribution.TensorLayout(["model", None], mesh)
    assert [path for path in paths[0] if layout[path] is not None] == [path for path in paths[0] if "W_q" in path]


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have")  # Keras's own
def test_quantizing_leaves_these_layers_as_they_are() -> None:
    """And Keras says of which: their weights stay, and with them their outputs, to the last digit."""
    inputs, (x,) = keras.Input((N, D_Q)), arrays((B, N, D_Q))
    model = keras.Model(inputs, dikkat.AdditiveAttention(H)(dikkat.Linear(D_Q)(inputs), inputs, inputs))
    before = numpy(model(x))
    with pytest.warns(UserWarning, match="Layer Linear does not have a `quantize` method"):
        model.quantize("int8")
    assert {str(each.dtype) for each in model.variables} == {"float32"}
    np.testing.assert_array_equal(numpy(model(x)), before)


def every_layer() -> list[Any]:
    return [
        dikkat.Attention(dikkat.Cosine(), dropout=0.1),
        dikkat.KernelAttention([0.5] * D_Q, learnable=True),
        dikkat.KernelAttention(np.float32(2.0)),
        dikkat.AdditiveAttention(H, dropout=0.1, seed=3, dtype="mixed_bfloat16"),
        dikkat.DotProductAttention(0.2),
        dikkat.BilinearAttention(),
        dikkat.MultiHeadAttention(D_Q, num_heads=1, score=dikkat.Additive(3)),
        dikkat.MultiHeadAttention(D_Q, num_heads=2, key_dim=4, value_dim=6, bias=False, dropout=0.3, seed=5),
        dikkat.MultiHeadAttention(D_Q, num_heads=1, score=dikkat.Triangular(3.0, learnable=True)),
    ]


@pytest.mark.parametrize("layer", every_layer(), ids=lambda layer: type(layer).__name__)
def test_a_layer_is_made_again_from_its_configuration(layer: Any) -> None:
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.dtype_policy == layer.dtype_policy
    x = ops.ones((B, N, D_Q))
    for each in (layer, again):
        each(x, x, x)
    shapes = [{name: (each.shape, each.dtype) for name, each in dikkat.tensors(one).items()} for one in (layer, again)]
    assert shapes[0] == shapes[1]


MODEL = """
import sys, numpy, keras
import dikkat.frameworks.keras
backend, name = sys.argv[1:]
model = keras.saving.load_model(f"{name}.keras")
numpy.save(f"{name}-{backend}.npy", model.predict(dict(numpy.load(f"{name}.npz")), verbose=0))
model.save(f"{name}-{backend}.keras")
"""


def test_saved_models_open_here_and_under_another_backend(tmp_path: Path) -> None:
    """A chain of layers against the same in PyTorch; and what is saved there opens here."""
    pairs = [twins(pair) for pair in layers()[:2]]
    heads = dikkat.MultiHeadAttention(D_V, num_heads=1, score=dikkat.Gaussian(2.0, learnable=True))
    inputs = [keras.Input((None, size), name=name) for name, size in (("query", D_Q), ("key", D_K), ("value", D_V))]
    lens = keras.Input((), dtype="int32", name="lens")
    found = [layer(*inputs, lens) for layer, _ in pairs]
    alike = dikkat.Attention(dikkat.Cosine())(found[0], found[1])
    last = heads(alike, found[1], found[1])
    module = in_torch.MultiHeadAttention(D_V, 1, score=in_torch.scores.Gaussian(2.0, learnable=True))
    dikkat.load_tensors(heads, {name: each.numpy() for name, each in module.state_dict().items()})
    keras.Model([*inputs, lens], last).save(tmp_path / "chain.keras")

    counts = np.array([0, 3])
    between = [expected(each, *qkv(), valid_lens=counts) for _, each in pairs]
    query, key = (torch.tensor(each) for each in between)
    query = in_torch.attend(query, key, key, score=in_torch.scores.Cosine())
    true = module.double()(query, key, key).detach().numpy()
    given = dict(zip(("query", "key", "value"), qkv(), strict=True)) | {"lens": counts.astype(np.int32)}

    def check(name: str) -> None:
        model = keras.saving.load_model(tmp_path / f"{name}.keras")
        np.testing.assert_allclose(model.predict(given, verbose=0), true, atol=5e-6, err_msg=name)

    check("chain")
    if keras.backend.backend() == "tensorflow":  # once is enough
        np.savez(tmp_path / "chain.npz", **given)
        for other in ("jax", "torch"):
            environment = os.environ | {"KERAS_BACKEND": other, "PYTHONPATH": os.pathsep.join(sys.path)}
            command = [sys.executable, "-c", MODEL, other, str(tmp_path / "chain")]
            subprocess.run(command, check=True, env=environment, timeout=300)
            np.testing.assert_allclose(np.load(tmp_path / f"chain-{other}.npy"), true, atol=5e-6, err_msg=other)
            check(f"chain-{other}")


def test_bfloat16_weights_as_a_file(tmp_path: Path) -> None:
    """From PyTorch, and from here to there."""
    from safetensors.torch import load_file, save_file

    module = torch.nn.Linear(5, 3, dtype=torch.bfloat16)
    save_file(module.state_dict(), tmp_path / "torch.safetensors")
    for dtype in ("bfloat16", "float32"):
        layer = dikkat.Linear(3, dtype=dtype)
        layer.build((None, 5))
        dikkat.load_tensors(layer, tmp_path / "torch.safetensors")
        dikkat.save_tensors(layer, tmp_path / "keras.safetensors")
        for found in (dikkat.tensors(layer), load_file(tmp_path / "keras.safetensors")):
            for name, each in module.state_dict().items():
                assert found[name].dtype in (np.float32, torch.float32)
                np.testing.assert_array_equal(found[name], each.float().numpy())


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="whose sizes that come with the call are symbols")
@pytest.mark.filterwarnings("ignore:.*native_serialization:DeprecationWarning")  # Keras's export has it
def test_an_exported_model_is_of_any_lengths(tmp_path: Path) -> None:
    """Every additive score, as TensorFlow's saved model."""
    import tensorflow as tf

    additive, heads = dikkat.AdditiveAttention(H), dikkat.MultiHeadAttention(D_Q, num_heads=1, score=dikkat.Additive(3))
    query, key = keras.Input((None, D_Q)), keras.Input((None, D_K))
    model = keras.Model([query, key], additive(heads(query, key, key), key, key))
    model.export(tmp_path / "exported", format="tf_saved_model", verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    for queries, keys in ((N, M), (53, 47)):  # few, and many
        tensors = arrays((B, queries, D_Q), (B, keys, D_K))
        np.testing.assert_allclose(exported.serve(tensors), numpy(model(tensors)), atol=1e-6)


def test_weights_as_a_file(tmp_path: Path) -> None:
    """PyTorch's file loads here, and what is saved here loads in PyTorch; `torch.nn.MultiheadAttention` too."""
    from safetensors.torch import load_file, save_file

    module = torch.nn.MultiheadAttention(6, 2, batch_first=True)
    save_file(module.state_dict(), tmp_path / "torch.safetensors")
    layer, (x,) = dikkat.MultiHeadAttention(6, num_heads=2), arrays((B, N, 6))
    layer.build(x.shape, x.shape, x.shape)
    dikkat.load_tensors(layer, tmp_path / "torch.safetensors")
    true = module(*[torch.tensor(x)] * 3)[0].detach().numpy()
    np.testing.assert_allclose(numpy(layer(*[ops.convert_to_tensor(x)] * 3)), true, atol=2e-6)
    dikkat.save_tensors(layer, tmp_path / "keras.safetensors")
    other = torch.nn.MultiheadAttention(6, 2, batch_first=True)
    other.load_state_dict(load_file(tmp_path / "keras.safetensors"))
    for name, each in module.state_dict().items():
        assert torch.equal(other.state_dict()[name], each)


def test_a_layer_starts_as_pytorchs_does() -> None:
    """Uniform in ±1/√(features in), and MultiHeadAttention by Glorot with biases of 0."""
    layer = dikkat.AdditiveAttention(1009)
    layer.build((None, 16), (None, 25))
    for name, size in (("W_q", 16), ("W_k", 25), ("w_v", 1009)):
        array = dikkat.tensors(layer)[f"score.{name}.weight"]
        assert 0.95 * size**-0.5 < np.abs(array).max() <= size**-0.5
        assert array.std() == pytest.approx(size**-0.5 / 3**0.5, rel=0.1)
    heads = dikkat.MultiHeadAttention(36, num_heads=2)
    heads.build(*[(None, None, 36)] * 3)
    found = dikkat.tensors(heads)
    assert np.abs(found["in_proj_weight"]).max() == pytest.approx((6 / (4 * 36)) ** 0.5, rel=0.05)
    assert not found["in_proj_bias"].any()
    assert not found["out_proj.bias"].any()
