"""Encoders and decoders against PyTorch's, beside the table of cases."""

from typing import Any

import numpy
import pytest
import torch
from mxnet import autograd, np

import dikkat
from dikkat import recurrent
from dikkat.frameworks import mxnet as dikkat_mxnet
from dikkat.frameworks.mxnet import scores
from dikkat.frameworks.mxnet.blocks import named_parameters

B, T, M, E, C, H = 3, 5, 7, 2, 11, 13


def _numbers(*shape: int, kind: str = "float32") -> Any:
    return numpy.random.default_rng(sum(shape)).normal(size=shape).astype(kind)


def _pair(ours: Any, theirs: Any, kind: str = "float32") -> tuple[Any, Any]:
    """Of the same weights."""
    theirs = theirs.to(getattr(torch, kind))
    ours.initialize()
    ours.cast(kind)
    dikkat_mxnet.load_tensors(ours, {name: each.detach().numpy() for name, each in theirs.state_dict().items()})
    return ours, theirs


def _flat(found: Any) -> list[Any]:
    if found is None:
        return []
    if isinstance(found, recurrent.Covered | dikkat_mxnet.Covered):
        return [*_flat(found.state), found.coverage]
    return [part for each in found for part in _flat(each)] if isinstance(found, tuple) else [found]


def _backward(ours: list[Any], theirs: list[Any]) -> None:
    """From the same gradient of every output; `ours` are recorded."""
    for each in theirs:
        assert torch.isfinite(each).all()
    heads = [_numbers(*each.shape, kind=str(each.dtype)) for each in ours]
    autograd.backward(ours, [np.array(head, dtype=head.dtype) for head in heads])
    torch.autograd.backward(theirs, [torch.tensor(head) for head in heads])


def _assert_same(ours: list[Any], theirs: list[Any]) -> None:
    for found, expected in zip(ours, theirs, strict=True):
        tolerance = 2e-5 if str(found.dtype) == "float32" else 1e-12
        numpy.testing.assert_allclose(found.asnumpy(), expected.detach().numpy(), rtol=0, atol=tolerance)


def _gradients(ours: Any, theirs: Any) -> tuple[list[Any], list[Any]]:
    trained = {name: each for name, each in named_parameters(ours).items() if each.grad_req != "null"}
    return [each.grad() for each in trained.values()], [theirs.get_parameter(name).grad for name in trained]


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize(("name", "layers", "both"), [("GRU", 2, True), ("GRU", 1, False), ("LSTM", 2, True)])
def test_an_encoder_is_that_of_pytorch_and_reads_no_padding(name: str, layers: int, both: bool, kind: str) -> None:
    arguments = {"num_layers": layers, "bidirectional": both}
    ours, theirs = _pair(
        getattr(dikkat_mxnet, f"{name}Encoder")(E, H, **arguments),
        getattr(recurrent, f"{name}Encoder")(E, H, **arguments),
        kind,
    )
    inputs, lengths = _numbers(B, T, E, kind=kind), [5, 1, 3]
    inputs[1, 1:] = numpy.nan
    array, tensor = np.array(inputs, dtype=kind), torch.tensor(inputs, requires_grad=True)
    array.attach_grad()
    with autograd.record():
        found = _flat(ours(array, np.array(lengths)))
    expected = _flat(theirs(tensor, torch.tensor(lengths), impl="reference"))
    _backward(found, expected)
    _assert_same(found, expected)
    _assert_same([array.grad], [tensor.grad])
    _assert_same(*_gradients(ours, theirs))


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("coverage", [False, True])
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_a_decoder_is_that_of_pytorch(name: str, coverage: bool, kind: str) -> None:
    made = [
        getattr(package, f"Attentional{name}")(E, H, C, of.Additive(C, H, 4), 2, coverage=coverage)
        for package, of in ((dikkat_mxnet, scores), (recurrent, dikkat.scores))
    ]
    if coverage:
        torch.nn.init.normal_(made[1].coverage_weight)
    ours, theirs = _pair(*made, kind)
    arrays = [_numbers(B, T, E, kind=kind), _numbers(B, M, C, kind=kind)]
    arrays += [_numbers(2, B, H, kind=kind)] * (1 if name == "GRU" else 2)
    arrays[0][2, 1:], arrays[1][0, 2:] = numpy.nan, numpy.inf
    valid_lens, lengths = [2, 7, 4], [5, 3, 1]
    mine, its = [np.array(each, dtype=kind) for each in arrays], [torch.tensor(each) for each in arrays]
    for each, other in zip(mine, its, strict=True):
        each.attach_grad()
        other.requires_grad_()
    with autograd.record():
        memory = ours.prepare(mine[1], np.array(valid_lens))
        state = ours.begin(mine[2] if name == "GRU" else tuple(mine[2:]), memory)
        found = _flat(ours(mine[0], memory, state, lengths=np.array(lengths), return_weights=True))
    memory = theirs.prepare(its[1], torch.tensor(valid_lens))
    state = theirs.begin(its[2] if name == "GRU" else tuple(its[2:]), memory)
    expected = _flat(
        theirs(its[0], memory, state, lengths=torch.tensor(lengths), return_weights=True, impl="reference")
    )
    _backward(found, expected)
    _assert_same(found, expected)
    _assert_same([each.grad for each in mine], [each.grad for each in its])
    _assert_same(*_gradients(ours, theirs))


@pytest.mark.parametrize("coverage", [False, True])
def test_steps_with_reordered_rows_are_those_of_pytorch(coverage: bool) -> None:
    """As a beam search goes: rows are dropped, doubled and exchanged between the steps."""
    made = [
        package.AttentionalLSTM(E, H, H, of.Gaussian(2.0), coverage=coverage)
        for package, of in ((dikkat_mxnet, scores), (recurrent, dikkat.scores))
    ]
    ours, theirs = _pair(*made)
    encoded, state, rows = _numbers(B, M, H), _numbers(1, B, H), [[2, 0, 0, 1], [3, 1]]
    memories = (
        ours.prepare(np.array(encoded), np.array([2, 7, 4])),
        theirs.prepare(torch.tensor(encoded), torch.tensor([2, 7, 4])),
    )
    states = (
        ours.begin((np.array(state), np.array(state)), memories[0]),
        theirs.begin((torch.tensor(state), torch.tensor(state)), memories[1]),
    )
    for step, each in enumerate([[0, 1, 2], *rows]):
        chosen = np.array(each), torch.tensor(each)
        memories = memories[0].select(chosen[0]), memories[1].select(chosen[1])
        states = ours.select(states[0], chosen[0]), theirs.select(states[1], chosen[1])
        inputs = _numbers(len(each), E) + step
        found = ours.step(np.array(inputs), memories[0], states[0], return_weights=True)
        expected = theirs.step(torch.tensor(inputs), memories[1], states[1], return_weights=True)
        _assert_same(_flat(found), _flat(expected))
        states = found[-1], expected[-1]


def test_dropouts_act_in_training_alone() -> None:
    decoder = dikkat_mxnet.AttentionalGRU(E, H, C, scores.Bilinear(C, H), weight_dropout=1.0)
    stacked = dikkat_mxnet.AttentionalGRU(E, H, C, scores.Bilinear(C, H), 2, dropout=1.0)
    inputs, encoded = np.array(_numbers(B, T, E)), np.array(_numbers(B, M, C))
    for each in (decoder, stacked):
        each.initialize()
    memory = decoder.prepare(encoded)
    state = np.zeros((1, B, H))
    assert (decoder(inputs, memory, state)[1].asnumpy() != 0).all()
    with autograd.record():
        _, contexts, weights, _ = decoder(inputs, memory, state, return_weights=True)
    assert (contexts.asnumpy() == 0).all()
    numpy.testing.assert_allclose(weights.asnumpy().sum(-1), 1, rtol=1e-5)
    with autograd.record():  # nothing goes up to the second layer, whatever comes in
        first = stacked(inputs, stacked.prepare(encoded), np.zeros((2, B, H)))[0]
        second = stacked(inputs + 1, stacked.prepare(encoded), np.zeros((2, B, H)))[0]
    numpy.testing.assert_array_equal(first.asnumpy(), second.asnumpy())

    encoder = dikkat_mxnet.GRUEncoder(E, H, 2, dropout=1.0)
    encoder.initialize()
    with autograd.record():
        first, _ = encoder(inputs, np.array([5, 5, 5]))
        second, _ = encoder(inputs + 1, np.array([5, 5, 5]))
    numpy.testing.assert_array_equal(first.asnumpy(), second.asnumpy())
    assert (
        encoder(inputs, np.array([5] * B))[0].asnumpy() != encoder(inputs + 1, np.array([5] * B))[0].asnumpy()
    ).any()


@pytest.mark.parametrize("score", [scores.Dot, lambda: scores.Additive(H, H, 6)])
def test_a_second_backward_pass_gives_the_same_gradients(score: Any) -> None:
    layer = dikkat_mxnet.AttentionalGRU(E, H, H, score(), 2)
    layer.initialize()
    inputs, encoded, state = (np.array(_numbers(*each), dtype="float32") for each in ((B, T, E), (B, M, H), (2, B, H)))
    encoded.attach_grad()
    with autograd.record():
        outputs = layer(inputs, layer.prepare(encoded), state)[0]
    learned = [encoded.grad, *(each.grad() for each in layer.collect_params().values())]
    outputs.backward(retain_graph=True)
    once = [each.asnumpy() for each in learned]
    outputs.backward()
    for again, expected in zip(learned, once, strict=True):
        numpy.testing.assert_array_equal(again.asnumpy(), expected)


@pytest.mark.parametrize(
    "name", ["Dot", "ScaledDot", "Bilinear", "VectorSum", "Average", "Additive", "Gaussian", "Cosine"]
)
@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
def test_every_score_is_that_of_pytorch(cell: str, name: str) -> None:
    sizes = {"Bilinear": (H, H), "VectorSum": (H,), "Additive": (H, H, 6)}.get(name, ())
    ours = getattr(dikkat_mxnet, f"Attentional{cell}")(E, H, H, getattr(scores, name)(*sizes), 2)
    theirs = getattr(recurrent, f"Attentional{cell}")(E, H, H, getattr(dikkat.scores, name)(*sizes), 2)
    dikkat_mxnet.load_tensors(ours, {name: each.detach().numpy() for name, each in theirs.state_dict().items()})
    inputs, encoded, state = (_numbers(*shape).astype("float32") for shape in ((B, T, E), (B, M, H), (2, B, H)))
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


@pytest.mark.parametrize("largest", [0.0, 50.0])
def test_a_small_slope_of_a_step_keeps_its_digits(largest: float) -> None:
    """1 − tanh² would have none left at ±9."""
    query, weight = numpy.array([[[4.5, -4.5, 0.0, largest]]]), _numbers(4)
    array = np.array(query, dtype="float32")
    array.attach_grad()
    with autograd.record():
        compared = dikkat_mxnet.compare(
            array, np.array(query, dtype="float32"), pair="additive", weight=np.array(weight)
        )
    compared.backward()
    numpy.testing.assert_allclose(array.grad.asnumpy(), weight / numpy.cosh(2 * query) ** 2, rtol=1e-5, atol=1e-37)


def test_a_dropout_acts_between_layers() -> None:
    """Half of the features are dropped, and the others doubled: the mean stays."""
    decoder = dikkat_mxnet.AttentionalGRU(E, H, H, scores.Dot(), 2, dropout=0.5)
    decoder.initialize()
    inputs, memory = np.array(_numbers(1, 1, E)), decoder.prepare(np.array(_numbers(1, M, H)))
    expected, *_ = decoder(inputs, memory, np.zeros((2, 1, H)))
    with autograd.record():
        found = [decoder(inputs, memory, np.zeros((2, 1, H)))[0].asnumpy() for _ in range(300)]
    assert len({each.tobytes() for each in found}) > 200
    numpy.testing.assert_allclose(numpy.mean(found, 0), expected.asnumpy(), atol=0.05)
