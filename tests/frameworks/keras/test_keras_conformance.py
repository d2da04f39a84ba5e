"""The table of cases in Keras, on the backend of this process: layers, values and gradients."""

from inspect import signature
from typing import Any

import pytest
from conformance import CASES, Array, Case
from gradients import Tensors, differentiate

from dikkat.frameworks import keras as dikkat

ATTENTION = [case for case in CASES if not case.layer.endswith(("Encoder", "GRU", "LSTM"))]


class Attend(dikkat.Block):
    """The function, with the score as a layer has it."""

    def __init__(self, score: dikkat.Score, **options: Any) -> None:
        super().__init__(**options)
        self.score = score

    def build(self, query_shape: Any, key_shape: Any) -> None:
        self.score.build(query_shape, key_shape)

    def call(self, query: Any, key: Any, value: Any, valid_lens: Any = None, return_weights: bool = False) -> Any:
        return dikkat.attend(query, key, value, score=self.score, valid_lens=valid_lens, return_weights=return_weights)


@pytest.mark.parametrize("case", ATTENTION, ids=lambda case: case.name)
def test_a_case(case: Case) -> None:
    case.check(*run(case))


def run(case: Case) -> tuple[dict[str, Array], dict[str, Array]]:
    layer = made(case)
    if case.layer != "masked_softmax":  # which has no weights
        shapes = {f"{name}_shape": array.shape for name, array in case.inputs.items()}
        layer.build(**{name: shapes[name] for name in signature(layer.build).parameters})
        dikkat.load_tensors(layer, case.tensors)
    given = {("attention_mask" if name == "mask" else name): each for name, each in case.given.items()}

    def function(tensors: Tensors) -> Tensors:
        if case.layer == "masked_softmax":
            return {"weights": layer(tensors["scores"], **given)}
        output, weights = layer(*tensors.values(), **given, return_weights=True)
        return {"output": output, "weights": weights}

    return differentiate(function, case.inputs, case.probes, layer, case.dtype)


def made(case: Case) -> Any:
    settings = dict(case.settings)
    if case.layer == "masked_softmax":
        return dikkat.MaskedSoftmax(dtype=case.dtype)
    if case.layer == "attend":
        return Attend(getattr(dikkat, settings.pop("score"))(**settings))
    return getattr(dikkat, case.layer)(**settings, dtype=case.dtype)
