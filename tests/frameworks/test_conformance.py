"""The table of cases itself: its gradients."""

import numpy as np
import pytest
from conformance import CASES


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
