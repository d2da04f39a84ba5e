"""Layers beside the table of cases: what is shared between batch elements, dropout, weights as files, training."""

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from mxnet import autograd, gluon, np

import dikkat
from dikkat.frameworks import mxnet as dikkat_mxnet
from dikkat.frameworks.mxnet import scores


def _numbers(*shape: int) -> Any:
    return numpy.random.default_rng(sum(shape)).normal(size=shape).astype("float32")


def _arrays(*arrays: Any) -> list[Any]:
    made = [np.array(each) for each in arrays]
    for each in made:
        each.attach_grad()
    return made


def _tensors(*arrays: Any) -> list[torch.Tensor]:
    return [torch.tensor(each, requires_grad=True) for each in arrays]


def _assert_same(found: list[Any], expected: list[Any]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        numpy.testing.assert_allclose(ours.asnumpy(), theirs.detach().numpy(), rtol=0, atol=1e-5)


def test_keys_that_batch_elements_share_and_do_not_see_alike() -> None:
    """A NaN behind one element's length is real to the other."""
    query, key, value = _numbers(2, 3, 5), _numbers(1, 7, 5), _numbers(1, 7, 11)
    key[0, 6], value[0, 5] = numpy.nan, numpy.inf
    lens = [5, 4]
    ours, theirs = _arrays(query, key, value), _tensors(query, key, value)
    with autograd.record():
        found = dikkat_mxnet.attend(*ours, score=scores.ScaledDot(), valid_lens=np.array(lens))
    found.backward()
    expected = dikkat.attend(*theirs, score=dikkat.scores.ScaledDot(), valid_lens=torch.tensor(lens), impl="reference")
    expected.sum().backward()
    _assert_same([found, *(each.grad for each in ours)], [expected, *(each.grad for each in theirs)])


def test_a_key_that_one_element_alone_sees_is_spoilt_for_that_one_alone() -> None:
    query, key, value = _numbers(2, 3, 5), _numbers(1, 7, 5), _numbers(1, 7, 11)
    value[0, 6] = numpy.nan
    found = dikkat_mxnet.attend(*_arrays(query, key, value), score=scores.Dot(), valid_lens=np.array([7, 6])).asnumpy()
    assert numpy.isnan(found[0]).all()
    assert numpy.isfinite(found[1]).all()


def test_heads_that_a_mask_tells_apart() -> None:
    ours = dikkat_mxnet.MultiHeadAttention(6, 2)
    theirs = dikkat.MultiHeadAttention(6, 2)
    dikkat_mxnet.load_tensors(ours, {name: each.detach().numpy() for name, each in theirs.state_dict().items()})
    x, mask = _numbers(2, 5, 6), numpy.random.default_rng(3).random((2, 2, 5, 5)) < 0.5
    found = ours(*[np.array(x)] * 3, mask=np.array(mask), return_weights=True)
    expected = theirs(*[torch.tensor(x)] * 3, mask=torch.tensor(mask), return_weights=True)
    _assert_same(list(found), list(expected))
    (alone, _), (expected_alone, _) = (
        ours(*[np.array(x[0])] * 3, valid_lens=3, return_weights=True),
        theirs(*[torch.tensor(x[0])] * 3, valid_lens=3, return_weights=True),
    )
    _assert_same([alone], [expected_alone])


def test_the_arrays_of_a_call_are_as_they_were() -> None:
    arrays = _arrays(_numbers(2, 3, 5), _numbers(2, 7, 5), _numbers(2, 7, 5))
    before = [each.asnumpy() for each in arrays]
    lens = np.array([2, 0])
    dikkat_mxnet.DotProductAttention()(*arrays, lens)
    dikkat_mxnet.masked_softmax(arrays[0], lens)
    for each, copy in zip([*arrays, lens], [*before, numpy.array([2, 0])], strict=True):
        numpy.testing.assert_array_equal(each.asnumpy(), copy)


@pytest.mark.parametrize("dropout", [0.5, 1.0])
def test_dropout_acts_on_weights_in_training_alone(dropout: float) -> None:
    layer = dikkat_mxnet.DotProductAttention(dropout)
    query = key = np.zeros((1, 1000, 3))
    value = np.broadcast_to(np.eye(1000), (1, 1000, 1000))  # so that the output is the weights
    plain = layer(query, key, value)
    assert plain.asnumpy().min() > 0
    with autograd.record():
        output, weights = layer(query, key, value, return_weights=True)
    numpy.testing.assert_allclose(weights.asnumpy(), plain.asnumpy())
    dropped = output.asnumpy()
    assert (dropped == 0).mean() == pytest.approx(dropout, abs=0.01)
    if dropout < 1:
        numpy.testing.assert_allclose(dropped[dropped > 0], 2 / 1000, rtol=1e-5)


def test_weights_come_in_the_dtype_of_the_values() -> None:
    value = np.array([[1.0], [3.0]], dtype="float16")
    output, weights = dikkat_mxnet.pool(np.zeros((1, 2)), value)
    assert (str(output.dtype), str(weights.dtype)) == ("float16", "float16")


def test_nothing_to_look_at_and_nobody_who_looks() -> None:
    for queries, keys in ((3, 0), (0, 7), (0, 0)):
        for layer in (dikkat_mxnet.DotProductAttention(), dikkat_mxnet.AdditiveAttention(5, 5, 11)):
            layer.initialize()
            output = layer(np.zeros((2, queries, 5)), np.zeros((2, keys, 5)), np.zeros((2, keys, 13)))
            numpy.testing.assert_array_equal(output.asnumpy(), numpy.zeros((2, queries, 13)))


def test_weights_go_to_pytorch_and_back(tmp_path: Path) -> None:
    for ours, theirs in (
        (dikkat_mxnet.AdditiveAttention(3, 5, 7), dikkat.AdditiveAttention(3, 5, 7)),
        (dikkat_mxnet.KernelAttention([0.1, 0.2]), dikkat.KernelAttention([0.3, 0.4])),
        (dikkat_mxnet.KernelAttention(0.1, learnable=True), dikkat.KernelAttention(0.3, learnable=True)),
        (dikkat_mxnet.MultiHeadAttention(6, 2), dikkat.MultiHeadAttention(6, 2)),
        (dikkat_mxnet.MultiHeadAttention(6, 2, key_size=5), dikkat.MultiHeadAttention(6, 2, key_size=5)),
        (dikkat_mxnet.SelfAttention(5, 6, 8), dikkat.SelfAttention(5, 6, 8)),
        (dikkat_mxnet.LSTMEncoder(3, 5, 2), dikkat.recurrent.LSTMEncoder(3, 5, 2)),
    ):
        ours.initialize()
        dikkat_mxnet.save_tensors(ours, tmp_path / "layer.safetensors")
        from safetensors.torch import load_file

        theirs.load_state_dict(load_file(tmp_path / "layer.safetensors"))
        for name, tensor in theirs.state_dict().items():
            numpy.testing.assert_array_equal(tensor.numpy(), dikkat_mxnet.tensors(ours)[name])
            assert tensor.numpy().dtype == dikkat_mxnet.tensors(ours)[name].dtype


def test_a_fixed_bandwidth_is_exact_in_float64() -> None:
    layer, x = dikkat_mxnet.KernelAttention(0.1), numpy.random.default_rng(0).normal(size=(7, 1))
    layer.initialize()
    expected = dikkat.KernelAttention(0.1)(*[torch.tensor(x)] * 3)
    numpy.testing.assert_allclose(layer(*[np.array(x)] * 3).asnumpy(), expected.numpy(), rtol=1e-14)


def test_a_layer_is_trained() -> None:
    """Nadaraya–Watson with a learnt bandwidth: the loss of the data falls to that of a bandwidth that fits."""
    x = np.array(numpy.linspace(0, 5, 40).reshape(-1, 1), dtype="float32")
    y = np.sin(2 * x)
    layer = dikkat_mxnet.KernelAttention(3.0, learnable=True)
    layer.initialize()
    trainer = gluon.Trainer(layer.collect_params(), "adam", {"learning_rate": 0.1})
    losses = []
    for _ in range(40):
        with autograd.record():
            loss = np.square(layer(x, x, y, exclude=np.arange(40)) - y).mean()
        loss.backward()
        trainer.step(1)
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 10


@pytest.mark.parametrize(
    ("shapes", "lens"),
    [
        (((3, 5), (7, 5), (2, 7, 4)), None),
        (((3, 5), (2, 7, 5), (7, 4)), [3, 0]),
        (((2, 2, 3, 5), (2, 1, 7, 5), (7, 4)), [3, 7]),
    ],
)
def test_gradients_of_what_is_shared(shapes: Any, lens: list[int] | None) -> None:
    """MXNet's own product has a wrong gradient where it broadcasts."""
    arrays = [numpy.random.default_rng(sum(shape)).normal(size=shape).astype("float32") for shape in shapes]
    ours, theirs = [np.array(each) for each in arrays], [torch.tensor(each, requires_grad=True) for each in arrays]
    for each in ours:
        each.attach_grad()
    with autograd.record():
        given = None if lens is None else np.array(lens)
        found = dikkat_mxnet.attend(*ours, score=scores.ScaledDot(), valid_lens=given)
        np.square(found).sum().backward()
    given = None if lens is None else torch.tensor(lens)
    expected = dikkat.attend(*theirs, score=dikkat.scores.ScaledDot(), valid_lens=given, impl="reference")
    expected.square().sum().backward()
    numpy.testing.assert_allclose(found.asnumpy(), expected.detach().numpy(), atol=1e-5)
    for array, tensor in zip(ours, theirs, strict=True):
        numpy.testing.assert_allclose(array.grad.asnumpy(), tensor.grad.numpy(), atol=1e-5)
