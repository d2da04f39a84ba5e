"""The table of cases in Keras, on the backend of this process: layers, values and gradients."""

import dataclasses
from typing import Any

import keras
import pytest
from conformance import CASES, Array, Case
from gradients import Tensors, differentiate

from dikkat.frameworks import keras as dikkat

SQUARES = [case for case in CASES if "of one square" in case.name]


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
    layer.build(**{f"{name}_shape": array.shape for name, array in case.inputs.items()})
    dikkat.load_tensors(layer, case.tensors)
    given = restrictions(case)

    def function(tensors: Tensors) -> Tensors:
        output, weights = layer(*tensors.values(), **given, return_weights=True)
        return {"output": output, "weights": weights}

    return differentiate(function, case.inputs, case.probes, layer, case.dtype)


def made(case: Case) -> Any:
    settings = dict(case.settings)
    if "score" in settings:
        of_score = {name: settings.pop(name) for name in ("bandwidth", "learnable") if name in settings}
        settings["score"] = getattr(dikkat, settings["score"])(**of_score)
    layer = dikkat.Attention if case.layer == "attend" else getattr(dikkat, case.layer)
    return layer(**settings, dtype=case.dtype)
