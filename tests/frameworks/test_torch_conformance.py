"""The table of cases in PyTorch: this library's own layers."""

from typing import Any

import numpy as np
import pytest
import torch
from conformance import CASES, Array, Case
from torch import Tensor, nn

import dikkat
from dikkat import scores


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case(case: Case) -> None:
    case.check(*run(case))


def test_the_gradients_of_the_table_are_those_of_differences() -> None:
    """The complex step against plain differences, of every input and parameter of one case."""
    case = next(case for case in CASES if case.name == "AdditiveAttention, a length a query")
    step = 1e-6
    for name, gradient in case.gradients.items():
        index = tuple(size // 2 for size in gradient.shape)
        of = "inputs" if name in case.inputs else "tensors"

        def total(change: float, name: str = name, of: str = of, index: tuple[int, ...] = index) -> float:
            arrays = {key: each.astype(np.float64) for key, each in getattr(case, of).items()}
            arrays[name][index] += change
            others = {"inputs": case.inputs, "tensors": case.tensors} | {of: arrays}
            found = case.reference(
                {key: each.astype(complex) for key, each in others["tensors"].items()},
                {key: each.astype(complex) for key, each in others["inputs"].items()},
                case.given,
            )
            return sum(float((value.real * case.probes[key]).sum()) for key, value in found.items())

        assert gradient[index] == pytest.approx((total(step) - total(-step)) / (2 * step), rel=1e-5, abs=1e-7)


def run(case: Case) -> tuple[dict[str, Array], dict[str, Array] | None]:
    """The outputs and the gradients."""
    dtype = getattr(torch, case.dtype)
    inputs = {name: torch.tensor(array).to(dtype).requires_grad_() for name, array in case.inputs.items()}
    module = _module(case).eval()
    module.to(dtype)
    state = {name: torch.from_numpy(np.asarray(each)) for name, each in case.tensors.items()}
    module.load_state_dict({name: each for name, each in state.items() if "fixed_bandwidth" not in name}, strict=False)
    outputs = _call(case, module, inputs)
    found = {name: each.detach().double().numpy() for name, each in outputs.items()}
    if case.dtype != "float32":
        return found, None
    total = sum((each * torch.from_numpy(case.probes[name]).to(dtype)).sum() for name, each in outputs.items())
    wanted = inputs | dict(module.named_parameters())
    gradients = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
    zeros = [
        torch.zeros_like(each) if gradient is None else gradient
        for each, gradient in zip(wanted.values(), gradients, strict=True)
    ]
    return found, {name: each.numpy() for name, each in zip(wanted, zeros, strict=True)}


def _sizes(case: Case) -> dict[str, int]:
    return {name: array.shape[-1] for name, array in case.inputs.items()}


def _score(name: str, settings: dict[str, Any], key: int) -> scores.Score:
    made = getattr(scores, name)
    if name == "VectorSum":
        return made(key)
    return made(**{key: value for key, value in settings.items() if key in ("bandwidth", "learnable")})


class _Attend(nn.Module):
    """A call of the function, with the score as a layer has it."""

    def __init__(self, score: scores.Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, *tensors: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        return dikkat.attend(*tensors, score=self.score, **given)


def _module(case: Case) -> nn.Module:
    settings, sizes = dict(case.settings), _sizes(case)
    if case.layer == "masked_softmax":
        return nn.Identity()
    if case.layer == "attend":
        return _Attend(_score(settings["score"], settings, sizes["key"]))
    made = getattr(dikkat, case.layer)
    if case.layer in ("AdditiveAttention", "BilinearAttention"):
        return made(sizes["key"], sizes["query"], **settings)
    if case.layer == "SelfAttention":
        return made(sizes["x"], **settings)
    if case.layer == "MultiHeadAttention":
        return made(**settings, key_size=sizes["key"], value_size=sizes["value"])
    return made(**settings)


def _call(case: Case, module: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    given = {
        name: torch.from_numpy(each) if isinstance(each, np.ndarray) else each for name, each in case.given.items()
    }
    if "key_bias" in given:
        given["key_bias"] = given["key_bias"].to(next(iter(inputs.values())).dtype)
    if case.layer == "masked_softmax":
        return {"weights": dikkat.masked_softmax(inputs["scores"], **given)}
    output, weights = module(*inputs.values(), **given, return_weights=True)
    return {"output": output, "weights": weights}
