"""Encoders and decoders beside PyTorch's: values, gradients, lengths, and what Keras does with layers."""

import itertools

import keras
import numpy as np
import pytest
import torch
from gradients import differentiate, numpy

import dikkat
from dikkat import recurrent
from dikkat.frameworks import keras as layers
from dikkat.frameworks.keras import load_tensors, scores, tensors

# JAX computes in float32 unless the whole process is told otherwise.
DTYPE, BOUND = ("float32", 2e-5) if keras.backend.backend() == "jax" else ("float64", 1e-12)
# PyTorch compiles every Keras model, but takes minutes for the smallest.
COMPILES = keras.backend.backend() != "torch"
BATCH, POSITIONS, STEPS = 5, 7, 6
INPUT, HIDDEN, CONTEXT, HIDDENS = 3, 4, 4, 2
LENGTHS, SOURCE_LENGTHS = np.array([6, 1, 3, 6, 2]), np.array([7, 3, 1, 5, 2])
ENCODERS = {
    "gru": (recurrent.GRUEncoder, layers.GRUEncoder),
    "lstm": (recurrent.LSTMEncoder, layers.LSTMEncoder),
}
DECODERS = {
    "gru": (recurrent.AttentionalGRU, layers.AttentionalGRU),
    "lstm": (recurrent.AttentionalLSTM, layers.AttentionalLSTM),
}
SCORES = {
    "additive": (lambda: dikkat.scores.Additive(CONTEXT, HIDDEN, HIDDENS), lambda **o: scores.Additive(HIDDENS, **o)),
    "dot": (dikkat.scores.Dot, scores.Dot),
    "scaled_dot": (dikkat.scores.ScaledDot, scores.ScaledDot),
    "bilinear": (lambda: dikkat.scores.Bilinear(CONTEXT, HIDDEN), scores.Bilinear),
    "cosine": (dikkat.scores.Cosine, scores.Cosine),
    "gaussian": (lambda: dikkat.scores.Gaussian(1.5, learnable=True), lambda **o: scores.Gaussian(1.5, True, **o)),
    "boxcar": (lambda: dikkat.scores.Boxcar(2.0), lambda **o: scores.Boxcar(2.0, **o)),
    "epanechnikov": (
        lambda: dikkat.scores.Epanechnikov(9.0, learnable=True),
        lambda **o: scores.Epanechnikov(9.0, True, **o),
    ),
    "triangular": (
        lambda: dikkat.scores.Triangular(9.0, learnable=True),
        lambda **o: scores.Triangular(9.0, True, **o),
    ),
    "vector_sum": (lambda: dikkat.scores.VectorSum(HIDDEN), scores.VectorSum),
    "average": (dikkat.scores.Average, scores.Average),
}


def near(found, expected, bound=BOUND):
    found = numpy(found) if not isinstance(found, np.ndarray) else found
    expected = expected.detach().double().numpy() if isinstance(expected, torch.Tensor) else expected
    np.testing.assert_allclose(found, expected, atol=bound, rtol=10 * bound)


def behind(array, lengths):
    """With NaN behind each length."""
    poisoned = array.copy()
    poisoned[np.arange(array.shape[1]) >= lengths[:, None]] = np.nan
    return poisoned


def arrays(module):
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def draws(seed, **shapes):
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape) for name, shape in shapes.items()}


def together(results, probes):
    """The gradients of the sum of results times probes, with PyTorch."""
    return sum((result * torch.from_numpy(probes[name])).sum() for name, result in results.items())


def reference_gradients(module, inputs, results, probes):
    of = {**inputs, **dict(module.named_parameters())}
    found = torch.autograd.grad(together(results, probes), list(of.values()), allow_unused=True)
    return {
        name: torch.zeros_like(each) if gradient is None else gradient
        for (name, each), gradient in zip(of.items(), found, strict=True)
    }


def encoders(cell, num_layers, bidirectional, **options):
    torch.manual_seed(3)
    theirs, ours = ENCODERS[cell]
    reference = theirs(INPUT, HIDDEN, num_layers, bidirectional, **options).double()
    layer = ours(HIDDEN, num_layers, bidirectional, dtype=DTYPE, **options)
    layer.build((None, None, INPUT))
    load_tensors(layer, arrays(reference))
    return reference, layer


def states_of(final):
    return dict(zip(("state", "cell"), final if isinstance(final, tuple) else (final,), strict=False))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("cell", list(ENCODERS))
def test_encoder(cell, num_layers, bidirectional):
    reference, layer = encoders(cell, num_layers, bidirectional)
    assert tensors(layer).keys() == reference.state_dict().keys()
    inputs = draws(1, inputs=(BATCH, POSITIONS, INPUT))["inputs"]
    tensor = torch.from_numpy(inputs).requires_grad_()
    outputs, final = reference(tensor, torch.from_numpy(SOURCE_LENGTHS), impl="reference")
    expected = {"outputs": outputs, **states_of(final)}
    probes = draws(2, **{name: tuple(each.shape) for name, each in expected.items()})
    gradients = reference_gradients(reference, {"inputs": tensor}, expected, probes)

    def run(given):
        outputs, final = layer(given["inputs"], lengths=SOURCE_LENGTHS)
        return {"outputs": outputs, **states_of(final)}

    found, found_gradients = differentiate(run, {"inputs": behind(inputs, SOURCE_LENGTHS)}, probes, layer, DTYPE)
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        near(found[name], each)
    assert found_gradients.keys() == gradients.keys()
    for name, each in gradients.items():
        near(found_gradients[name], each)


@pytest.mark.parametrize("cell", list(ENCODERS))
def test_encoder_without_lengths_and_with_a_mask(cell):
    reference, layer = encoders(cell, 1, True)
    inputs = draws(1, inputs=(BATCH, POSITIONS, INPUT))["inputs"]
    whole, _ = reference(torch.from_numpy(inputs), torch.full((BATCH,), POSITIONS), impl="reference")
    near(layer(inputs)[0], whole)
    mask = np.arange(POSITIONS) < SOURCE_LENGTHS[:, None]
    masked, _ = reference(torch.from_numpy(inputs), torch.from_numpy(SOURCE_LENGTHS), impl="reference")
    near(layer(behind(inputs, SOURCE_LENGTHS), mask=mask)[0], masked)
    # Both: where both see.
    near(layer(inputs, lengths=np.full(BATCH, POSITIONS), mask=mask)[0], masked)
    # A sequence of padding alone, as Keras masks know it, has nothing.
    mask[2] = False
    outputs, final = layer(inputs, mask=mask)
    assert not numpy(outputs)[2].any()
    assert not any(numpy(each)[:, 2].any() for each in states_of(final).values())


def test_masks_go_through_layers():
    embedding = keras.layers.Embedding(11, INPUT, mask_zero=True)
    reference, layer = encoders("gru", 1, True)
    numbers = np.where(np.arange(POSITIONS) < SOURCE_LENGTHS[:, None], 5, 0)
    embedded = embedding(numbers)
    expected, _ = reference(torch.from_numpy(numpy(embedded)), torch.from_numpy(SOURCE_LENGTHS), impl="reference")
    outputs, _ = layer(embedded)
    near(outputs, expected, max(BOUND, 1e-6))
    # And on, to what reads the outputs.
    pooled = keras.layers.GlobalAveragePooling1D(dtype=DTYPE)(outputs)
    mean = expected.detach().numpy().sum(1) / SOURCE_LENGTHS[:, None]
    near(pooled, mean, 1e-5)


@pytest.mark.parametrize("cell", list(ENCODERS))
def test_dropout_between_layers(cell):
    reference, layer = encoders(cell, 2, True, dropout=1.0)
    inputs = draws(1, inputs=(BATCH, POSITIONS, INPUT))["inputs"]
    # All is dropped: the second layer reads zeros.
    expected, _ = reference.train()(torch.from_numpy(inputs), torch.full((BATCH,), POSITIONS), impl="reference")
    near(layer(inputs, training=True)[0], expected)
    kept, _ = reference.eval()(torch.from_numpy(inputs), torch.full((BATCH,), POSITIONS), impl="reference")
    near(layer(inputs)[0], kept)
    seeded = [ENCODERS[cell][1](HIDDEN, 2, dropout=0.5, seed=seed, dtype=DTYPE) for seed in (1, 1, 2)]
    for each in seeded:
        each.build((None, None, INPUT))
        load_tensors(each, arrays(reference))
    first, same, other = (numpy(each(inputs, training=True)[0]) for each in seeded)
    assert (first == same).all()
    assert (first != other).any()


def decoders(cell, score, num_layers=1, **options):
    torch.manual_seed(5)
    theirs, ours = DECODERS[cell]
    their_score, our_score = SCORES[score]
    reference = theirs(INPUT, HIDDEN, CONTEXT, their_score(), num_layers, **options).double()
    if options.get("coverage"):
        torch.nn.init.normal_(reference.coverage_weight)
    layer = ours(HIDDEN, our_score(dtype=DTYPE), num_layers, dtype=DTYPE, **options)
    layer.build_sizes(INPUT, CONTEXT)
    assert tensors(layer).keys() == reference.state_dict().keys()
    load_tensors(layer, arrays(reference))
    return reference, layer


def given(cell, num_layers=1):
    names = ("state", "cell") if cell == "lstm" else ("state",)
    shapes = dict.fromkeys(names, (num_layers, BATCH, HIDDEN))
    return draws(7, inputs=(BATCH, STEPS, INPUT), encoded=(BATCH, POSITIONS, CONTEXT), **shapes)


def of_cells(values):
    return (values["state"], values["cell"]) if "cell" in values else values["state"]


def named(outputs, contexts, weights, state):
    covered = {}
    if isinstance(state, (recurrent.Covered, layers.Covered)):
        covered = {"coverage": state.coverage}
        state = state.state
    return {"outputs": outputs, "contexts": contexts, "weights": weights, **states_of(state), **covered}


CASES = [
    *zip(itertools.cycle(DECODERS), SCORES, itertools.repeat(1), itertools.repeat(False)),
    ("lstm", "additive", 3, False),
    *(("gru", score, 2, True) for score in ("additive", "bilinear", "gaussian", "average")),
    ("lstm", "additive", 1, True),
]


@pytest.mark.parametrize(("cell", "score", "num_layers", "coverage"), CASES)
def test_decoder(cell, score, num_layers, coverage):
    reference, layer = decoders(cell, score, num_layers, coverage=coverage)
    values = given(cell, num_layers)
    leaves = {name: torch.from_numpy(array).requires_grad_() for name, array in values.items()}
    memory = reference.prepare(leaves["encoded"], torch.from_numpy(SOURCE_LENGTHS))
    state = reference.begin(of_cells(leaves), memory)
    expected = named(
        *reference(
            leaves["inputs"],
            memory,
            state,
            lengths=torch.from_numpy(LENGTHS),
            return_weights=True,
            impl="reference",
        )
    )
    probes = draws(8, **{name: tuple(each.shape) for name, each in expected.items()})
    gradients = reference_gradients(reference, leaves, expected, probes)

    def run(given):
        memory = layer.prepare(given["encoded"], SOURCE_LENGTHS)
        state = layer.begin(of_cells(given), memory)
        return named(*layer(given["inputs"], memory, state, lengths=LENGTHS, return_weights=True))

    poisoned = {
        **values,
        "inputs": behind(values["inputs"], LENGTHS),
        "encoded": behind(values["encoded"], SOURCE_LENGTHS),
    }
    found, found_gradients = differentiate(run, poisoned, probes, layer, DTYPE)
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        near(found[name], each)
    assert found_gradients.keys() == gradients.keys()
    for name, each in gradients.items():
        near(found_gradients[name], each)


@pytest.mark.parametrize("coverage", [False, True])
@pytest.mark.parametrize("cell", list(DECODERS))
def test_steps_and_selected_rows(cell, coverage):
    reference, layer = decoders(cell, "additive", 2, coverage=coverage)
    values = given(cell, 2)
    parts = {name: torch.from_numpy(array) for name, array in values.items()}
    memory = reference.prepare(parts["encoded"], torch.from_numpy(SOURCE_LENGTHS))
    state = reference.begin(of_cells(parts), memory)
    ours = layer.prepare(values["encoded"].astype(DTYPE), SOURCE_LENGTHS)
    our_state = layer.begin(of_cells({name: array.astype(DTYPE) for name, array in values.items()}), ours)
    rows = np.arange(BATCH)
    for step, order in enumerate([[4, 4, 0, 2, 1], [1, 0], [0, 1, 1]]):
        *expected, state = reference.step(parts["inputs"][rows, step], memory, state, return_weights=True)
        inputs = values["inputs"][rows, step].astype(DTYPE)
        *found, our_state = layer.step(inputs, ours, our_state, return_weights=True)
        for name, each in named(*expected, state).items():
            near(named(*found, our_state)[name], each)
        chosen = torch.tensor(order)
        state, memory = reference.select(state, chosen), memory.select(chosen)
        our_state, ours = layer.select(our_state, np.array(order)), ours.select(np.array(order))
        rows = rows[order]
    assert layer.step(values["inputs"][rows, 5].astype(DTYPE), ours, our_state)[2] is None


@pytest.mark.parametrize("cell", list(DECODERS))
def test_dropout_of_the_decoder(cell):
    values = given(cell, 2)
    parts = {name: torch.from_numpy(array) for name, array in values.items()}
    for options in ({"dropout": 1.0}, {"weight_dropout": 1.0}):
        reference, layer = decoders(cell, "additive", 2, **options)
        memory = reference.prepare(parts["encoded"])
        expected = reference.train()(parts["inputs"], memory, of_cells(parts), return_weights=True, impl="reference")
        found = layer(values["inputs"], values["encoded"], of_cells(values), return_weights=True, training=True)
        for name, each in named(*expected).items():
            near(named(*found)[name], each)
        kept = reference.eval()(parts["inputs"], memory, of_cells(parts), impl="reference")
        near(layer(values["inputs"], values["encoded"], of_cells(values))[0], kept[0])
    _, layer = decoders(cell, "additive", 2, weight_dropout=0.5)
    first, second = (
        numpy(layer(values["inputs"], values["encoded"], of_cells(values), training=True)[1]) for _ in range(2)
    )
    assert (first != second).any()


def test_memory_masks_and_input_masks():
    reference, layer = decoders("gru", "additive")
    values = given("gru")
    parts = {name: torch.from_numpy(array) for name, array in values.items()}
    memory = reference.prepare(parts["encoded"], torch.from_numpy(SOURCE_LENGTHS))
    expected, *_ = reference(
        parts["inputs"], memory, parts["state"], lengths=torch.from_numpy(LENGTHS), impl="reference"
    )
    found, *_ = layer(
        values["inputs"],
        values["encoded"],
        values["state"],
        inputs_mask=np.arange(STEPS) < LENGTHS[:, None],
        memory_mask=np.arange(POSITIONS) < SOURCE_LENGTHS[:, None],
    )
    near(found, expected)


@pytest.mark.parametrize(("policy", "bound"), [("mixed_float16", 4e-3), ("mixed_bfloat16", 3e-2)])
@pytest.mark.parametrize("cell", list(DECODERS))
def test_mixed_precision(cell, policy, bound):
    reference, _ = encoders(cell, 2, True)
    inputs = draws(1, inputs=(BATCH, POSITIONS, INPUT))["inputs"]
    half = ENCODERS[cell][1](HIDDEN, 2, dtype=policy)
    half.build((None, None, INPUT))
    load_tensors(half, arrays(reference))
    expected, _ = reference(torch.from_numpy(inputs), torch.from_numpy(SOURCE_LENGTHS), impl="reference")
    outputs, _ = half(inputs, lengths=SOURCE_LENGTHS)
    assert keras.backend.standardize_dtype(outputs.dtype) == policy.removeprefix("mixed_")
    near(outputs, expected, bound)
    reference, _ = decoders(cell, "additive", 2)
    values = given(cell, 2)
    parts = {name: torch.from_numpy(array) for name, array in values.items()}
    expected, contexts, *_ = reference(
        parts["inputs"], reference.prepare(parts["encoded"]), of_cells(parts), impl="reference"
    )
    half = DECODERS[cell][1](HIDDEN, scores.Additive(HIDDENS, dtype=policy), 2, dtype=policy)
    half.build_sizes(INPUT, CONTEXT)
    load_tensors(half, arrays(reference))
    outputs, found_contexts, *_ = half(values["inputs"], values["encoded"], of_cells(values))
    assert keras.backend.standardize_dtype(outputs.dtype) == policy.removeprefix("mixed_")
    near(outputs, expected, bound)
    near(found_contexts, contexts, bound)


def functional(cell):
    """A small network of both in the functional API, of any batch and any lengths."""
    source, target = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    encoder, decoder = ENCODERS[cell][1](HIDDEN // 2), DECODERS[cell][1](HIDDEN, scores.Additive(HIDDENS))
    embedding = keras.layers.Embedding(13, INPUT, mask_zero=True)
    outputs, state = encoder(embedding(source))
    states, contexts, _, _ = decoder(embedding(target), outputs, state, return_weights=True)
    joined = keras.layers.Concatenate()([states, contexts])
    return keras.Model([source, target], keras.layers.Dense(13)(joined))


@pytest.mark.parametrize("cell", list(DECODERS))
def test_functional_models_fit_compiled_and_come_back(cell, tmp_path):
    keras.utils.set_random_seed(1)
    model = functional(cell)
    assert model.output_shape == (None, None, 13)
    random = np.random.default_rng(0)
    source, target = (random.integers(1, 13, (8, length)).astype("int32") for length in (POSITIONS, STEPS))
    source[3, 2:] = target[5, 4:] = 0
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.1), loss, jit_compile=COMPILES)
    losses = model.fit([source, target], target, epochs=8, batch_size=8, verbose=0).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    before, after = (numpy(each([source, target])) for each in (model, again))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("coverage", [False, True])
@pytest.mark.parametrize("cell", list(DECODERS))
def test_a_functional_model_of_a_prepared_memory(cell, coverage, tmp_path):
    """Without asking for the weights, which are there all the same; and after a way through a file."""
    reference, layer = decoders(cell, "additive", coverage=coverage)
    values = given(cell)
    own = {name: keras.Input(array.shape[1:], dtype=DTYPE) for name, array in values.items() if name[0] in "ie"}
    states = {name: array for name, array in values.items() if name not in own}
    own |= {name: keras.Input(batch_shape=array.shape, dtype=DTYPE) for name, array in states.items()}
    lens = keras.Input((), dtype="int32")
    memory = layer.prepare(own["encoded"], lens)
    outputs = layer(own["inputs"], memory, layer.begin(of_cells(own), memory))
    model = keras.Model([*own.values(), lens], outputs)
    model.save(tmp_path / "model.keras")

    parts = {name: torch.from_numpy(array) for name, array in values.items()}
    memory = reference.prepare(parts["encoded"], torch.from_numpy(SOURCE_LENGTHS))
    expected = reference(
        parts["inputs"], memory, reference.begin(of_cells(parts), memory), return_weights=True, impl="reference"
    )
    for each in (model, keras.models.load_model(tmp_path / "model.keras")):
        found = each([*values.values(), SOURCE_LENGTHS.astype("int32")])
        for one, right in zip(keras.tree.flatten(found), named(*expected).values(), strict=True):
            near(one, right)


def test_shapes_of_outputs_are_known_beforehand():
    states = (2, BATCH, 2 * HIDDEN)
    assert layers.GRUEncoder(HIDDEN, 2).compute_output_shape((BATCH, None, INPUT)) == ((BATCH, None, 8), states)
    assert layers.LSTMEncoder(HIDDEN, 2).compute_output_shape((BATCH, None, INPUT))[1] == (states, states)
    decoder = layers.AttentionalGRU(HIDDEN, scores.Dot())
    assert decoder.compute_output_shape((BATCH, STEPS, INPUT), (BATCH, None, CONTEXT), (1, BATCH, HIDDEN)) == (
        (BATCH, STEPS, HIDDEN),
        (BATCH, STEPS, CONTEXT),
        (BATCH, STEPS, None),
        (1, BATCH, HIDDEN),
    )


def raises(error, text, call):
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)


def test_errors_of_encoders():
    _, layer = encoders("gru", 1, True)
    inputs = draws(1, inputs=(BATCH, POSITIONS, INPUT))["inputs"]
    raises(ValueError, "num_layers", lambda: layers.GRUEncoder(3, 0))
    raises(ValueError, "dropout: got 0.5", lambda: layers.LSTMEncoder(3, dropout=0.5))
    raises(ValueError, "(batch, positions, 3)", lambda: layer(inputs[..., :2]))
    raises(ValueError, "1 to the 7 positions", lambda: layer(inputs, lengths=np.array([7, 0, 1, 1, 1])))
    raises(ValueError, "1 to the 7 positions", lambda: layer(inputs, lengths=np.array([8, 1, 1, 1, 1])))
    raises(ValueError, "lengths: got shape (4,)", lambda: layer(inputs, lengths=np.array([7, 1, 1, 1])))
    raises(TypeError, "expected integers", lambda: layer(inputs, lengths=np.full(BATCH, 2.0)))
    raises(TypeError, "expected booleans", lambda: layer(inputs, mask=np.ones((BATCH, POSITIONS))))
    gap = np.ones((BATCH, POSITIONS), bool)
    gap[1, 3] = False
    raises(ValueError, "padding before a real position", lambda: layer(inputs, mask=gap))


def test_errors_of_decoders():
    _, layer = decoders("gru", "additive")
    values = given("gru")
    inputs, encoded, state = (values[name].astype(DTYPE) for name in ("inputs", "encoded", "state"))
    memory = layer.prepare(encoded)
    raises(ValueError, "weight_dropout: got 2", lambda: layers.AttentionalGRU(3, scores.Dot(), weight_dropout=2))
    raises(ValueError, "(batch, steps, 3)", lambda: layer(inputs[..., :1], memory, state))
    raises(ValueError, "at least one step", lambda: layer(inputs[:, :0], memory, state))
    raises(ValueError, "(layers, batch, hidden) = (1, 5, 4)", lambda: layer(inputs, memory, state[..., :2]))
    raises(ValueError, "expected one tensor", lambda: layer(inputs, memory, (state, state)))
    raises(ValueError, "got 2 sequences", lambda: layer(inputs, memory.select(np.array([0, 1])), state))
    raises(ValueError, "expected 4", lambda: layer(inputs, encoded[..., :3], state))
    raises(ValueError, "from 0 to the 7", lambda: layer.prepare(encoded, np.full(BATCH, 8)))
    _, covering = decoders("gru", "additive", coverage=True)
    raises(ValueError, "what begin makes", lambda: covering(inputs, memory, state))
    _, lstm = decoders("lstm", "additive")
    raises(ValueError, "states and cells", lambda: lstm(inputs, lstm.prepare(encoded), state))
