"""The table of cases in MXNet."""

from typing import Any

import numpy
import pytest
from conformance import CASES, Array, Case
from mxnet import autograd, np

from dikkat.frameworks import mxnet as dikkat_mxnet
from dikkat.frameworks.mxnet import scores
from dikkat.frameworks.mxnet.blocks import Block, named_parameters

# mxnet.np has no bfloat16
MET = [case for case in CASES if case.dtype != "bfloat16"]


@pytest.mark.parametrize("case", MET, ids=lambda case: case.name)
def test_a_case(case: Case) -> None:
    case.check(*run(case))


@pytest.mark.parametrize("case", MET[::7], ids=lambda case: case.name)
def test_whole_numbers_that_are_of_a_floating_point_type(case: Case) -> None:
    """As MXNet itself makes them of lists: `np.array([2, 3])` is float32, and so is a list of booleans."""
    case.check(*run(case, as_floats=True))


def run(case: Case, as_floats: bool = False) -> tuple[dict[str, Array], dict[str, Array] | None]:
    """The outputs and the gradients."""
    inputs = {name: np.array(array, dtype=case.dtype) for name, array in case.inputs.items()}
    for array in inputs.values():
        array.attach_grad()
    layer = _layer(case)
    layer.initialize()
    layer.cast(case.dtype)
    dikkat_mxnet.load_tensors(layer, {name: numpy.asarray(each) for name, each in case.tensors.items()})
    parameters = named_parameters(layer)
    with autograd.record(train_mode=False):
        outputs = _call(case, layer, inputs, as_floats)
        total = sum((each * np.array(case.probes[name], dtype=case.dtype)).sum() for name, each in outputs.items())
    found = {name: each.asnumpy() for name, each in outputs.items()}
    assert {str(each.dtype) for each in found.values()} == {case.dtype}
    if case.dtype != "float32":
        return found, None
    total.backward()
    gradients = {name: each.grad.asnumpy() for name, each in inputs.items()}
    trained = {name: each for name, each in parameters.items() if each.grad_req != "null"}
    return found, gradients | {name: each.grad().asnumpy() for name, each in trained.items()}


def _sizes(case: Case) -> dict[str, int]:
    return {name: array.shape[-1] for name, array in case.inputs.items()}


def _score(name: str, settings: dict[str, Any], query: int, key: int) -> scores.Score:
    made = getattr(scores, name)
    if name == "Additive":
        return made(key, query, settings["hiddens"])
    if name == "Bilinear":
        return made(key, query)
    if name == "VectorSum":
        return made(key)
    return made(**{key: value for key, value in settings.items() if key in ("bandwidth", "learnable")})


class _Attend(Block):
    """A call of the function, with the score as a layer has it."""

    def __init__(self, score: scores.Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, *tensors: Any, **given: Any) -> Any:
        return dikkat_mxnet.attend(*tensors, score=self.score, **given)


def _layer(case: Case) -> Block:
    settings, sizes = dict(case.settings), _sizes(case)
    if case.layer == "masked_softmax":
        return dikkat_mxnet.MaskedSoftmax()
    if case.layer == "attend":
        return _Attend(_score(settings["score"], settings, sizes["query"], sizes["key"]))
    made = getattr(dikkat_mxnet, case.layer)
    if case.layer.startswith("Attentional"):
        score = _score(settings["score"], settings, settings["hidden_size"], sizes["encoded"])
        rest = {name: settings[name] for name in ("num_layers", "coverage") if name in settings}
        return made(sizes["inputs"], settings["hidden_size"], sizes["encoded"], score, **rest)
    if case.layer.endswith("Encoder"):
        return made(sizes["inputs"], **settings)
    if case.layer in ("AdditiveAttention", "BilinearAttention"):
        return made(sizes["key"], sizes["query"], **settings)
    if case.layer == "SelfAttention":
        return made(sizes["x"], **settings)
    if case.layer == "MultiHeadAttention":
        return made(**settings, key_size=sizes["key"], value_size=sizes["value"])
    return made(**settings)


def _call(case: Case, layer: Block, inputs: dict[str, Any], as_floats: bool) -> dict[str, Any]:
    given = {
        name: np.array(each, dtype="float32" if as_floats or name == "key_bias" else each.dtype)
        if isinstance(each, numpy.ndarray)
        else each
        for name, each in case.given.items()
    }
    if case.layer == "masked_softmax":
        return {"weights": layer(inputs["scores"], **given)}
    if case.layer.endswith("Encoder"):
        outputs, final = layer(inputs["inputs"], given["lengths"])
        return {"outputs": outputs} | _state(final)
    if case.layer.startswith("Attentional"):
        return _decode(layer, inputs, given)
    output, weights = layer(*inputs.values(), **given, return_weights=True)
    return {"output": output, "weights": weights}


def _decode(layer: Any, inputs: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    memory = layer.prepare(inputs["encoded"], given["valid_lens"])
    state = (inputs["state"], inputs["cell"]) if "cell" in inputs else inputs["state"]
    outputs, contexts, weights, last = layer(
        inputs["inputs"], memory, layer.begin(state, memory), lengths=given["lengths"], return_weights=True
    )
    last = last.state if isinstance(last, dikkat_mxnet.Covered) else last
    return {"outputs": outputs, "contexts": contexts, "weights": weights} | _state(last)


def _state(last: Any) -> dict[str, Any]:
    return {"state": last[0], "cell": last[1]} if isinstance(last, tuple) else {"state": last}
