"""The table of cases in Keras, on the backend of this process: layers, values and gradients."""

import dataclasses
from inspect import signature
from typing import Any

import keras
import pytest
from conformance import CASES, Array, Case
from gradients import Tensors, differentiate

from dikkat.frameworks import keras as dikkat

SQUARES = [case for case in CASES if "of one square" in case.name and case.layer != "masked_softmax"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case(case: Case) -> None:
    case.check(*run(case))


@pytest.mark.parametrize("case", SQUARES, ids=lambda case: case.name)
def test_a_case_in_a_graph(case: Case) -> None:
    """Of a known shape, as `predict` makes one of a single sequence."""
    layer = made(case)
    inputs = [keras.Input(batch_shape=array.shape) for array in case.inputs.values()]
    output, weights = layer(*inputs, **restrictions(case), return_weights=True)
    dikkat.load_tensors(layer, case.tensors)
    found = keras.Model(inputs, {"output": output, "weights": weights}).predict(list(case.inputs.values()), verbose=0)
    dataclasses.replace(case, differentiated=False).check(found)


def restrictions(case: Case) -> dict[str, Any]:
    return {("attention_mask" if name == "mask" else name): each for name, each in case.given.items()}


def run(case: Case) -> tuple[dict[str, Array], dict[str, Array]]:
    layer = made(case)
    if case.layer.startswith("Attentional"):
        layer.build_sizes(case.inputs["inputs"].shape[-1], case.inputs["encoded"].shape[-1])
    elif case.layer.endswith("Encoder"):
        layer.build(case.inputs["inputs"].shape)
    elif case.layer != "masked_softmax":  # which has no weights
        shapes = {f"{name}_shape": array.shape for name, array in case.inputs.items()}
        layer.build(**{name: shapes[name] for name in signature(layer.build).parameters})
    if case.layer != "masked_softmax":
        dikkat.load_tensors(layer, case.tensors)
    given = restrictions(case)

    def function(tensors: Tensors) -> Tensors:
        if case.layer == "masked_softmax":
            return {"weights": layer(tensors["scores"], **given)}
        if case.layer.endswith("Encoder"):
            outputs, final = layer(tensors["inputs"], given["lengths"])
            return {"outputs": outputs} | state(final)
        if case.layer.startswith("Attentional"):
            return decode(layer, tensors, given)
        output, weights = layer(*tensors.values(), **given, return_weights=True)
        return {"output": output, "weights": weights}

    return differentiate(function, case.inputs, case.probes, layer, case.dtype)


def decode(layer: Any, tensors: Tensors, given: dict[str, Any]) -> Tensors:
    memory = layer.prepare(tensors["encoded"], given["valid_lens"])
    before = (tensors["state"], tensors["cell"]) if "cell" in tensors else tensors["state"]
    outputs, contexts, weights, last = layer(
        tensors["inputs"], memory, layer.begin(before, memory), lengths=given["lengths"], return_weights=True
    )
    last = last.state if isinstance(last, dikkat.Covered) else last
    return {"outputs": outputs, "contexts": contexts, "weights": weights} | state(last)


def state(last: Any) -> Tensors:
    return dict(zip(("state", "cell"), last, strict=True)) if isinstance(last, (tuple, list)) else {"state": last}


def made(case: Case) -> Any:
    settings = dict(case.settings)
    if case.layer == "masked_softmax":
        return dikkat.MaskedSoftmax(dtype=case.dtype)
    if "score" in settings:
        own = {"hiddens": "num_hiddens", "bandwidth": "bandwidth", "learnable": "learnable"}
        of_score = {own[name]: settings.pop(name) for name in own if name in settings}
        settings["score"] = getattr(dikkat, settings["score"])(**of_score)
    layer = dikkat.Attention if case.layer == "attend" else getattr(dikkat, case.layer)
    return layer(**settings, dtype=case.dtype)
