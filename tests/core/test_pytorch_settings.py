"""PyTorch's settings of a process: read by names that work, part of a call's signature, and restored by a training.

Each program runs in a process of its own, since no function undoes the first use of `fp32_precision`.
"""

import pytest
import torch

from processes import python

HAS_FP32_PRECISION = hasattr(torch.backends.cuda.matmul, "fp32_precision")
FASTER = [
    "torch.set_float32_matmul_precision('high')",
    *(
        ["torch.backends.cuda.matmul.fp32_precision = 'tf32'", "torch.backends.fp32_precision = 'tf32'"]
        if HAS_FP32_PRECISION
        else []
    ),
]
CALLS = """
import torch, dikkat
from dikkat import scores
from dikkat._core import dispatch, validation
from dikkat.translation.training import train

def runs_products():
    q, score = torch.randn(2, 3, 4), scores.Additive(4, 4, 3)
    return next(each.runs for each in dikkat.implementations(q, q, q, score=score) if each.name == "products")

def signature():
    q = torch.randn(2, 3, 4, device="meta")
    dikkat.attend(q, q, q, score=scores.Dot())
    return dispatch._signature((q, q, q), scores.Dot(), validation.Requested(), None, None, {})
"""


@pytest.mark.parametrize("faster", FASTER)
def test_products_of_float32_may_be_made_faster_by_any_name(faster: str) -> None:
    python(f"""{CALLS}
before = signature()
assert not runs_products()
{faster}
assert runs_products()
assert before and signature() and signature() != before
""")


@pytest.mark.parametrize("first", ["pass", *FASTER])
def test_a_training_restores_the_precision_of_products(first: str) -> None:
    python(f"""{CALLS}
train.device_type = lambda: "cuda"
{first}
before = [torch.backends.cuda.matmul.fp32_precision] if {HAS_FP32_PRECISION} else [torch.get_float32_matmul_precision()]
try:
    legacy = torch.get_float32_matmul_precision()
except RuntimeError:
    legacy = None
with train._numeric_settings("bfloat16"):
    assert runs_products()
after = [torch.backends.cuda.matmul.fp32_precision] if {HAS_FP32_PRECISION} else [torch.get_float32_matmul_precision()]
assert after == before
assert legacy is None or legacy == torch.get_float32_matmul_precision()
with train._numeric_settings("float32"):
    assert runs_products() == ("{first}" != "pass")
""")


@pytest.mark.skipif(not HAS_FP32_PRECISION, reason="PyTorch before 2.9 has no precision that others follow")
@pytest.mark.parametrize("own", ["none", "ieee", "tf32"])
@pytest.mark.parametrize("general", ["none", "ieee", "tf32"])
def test_after_a_training_products_follow_the_general_precision_as_before(general: str, own: str) -> None:
    if own == general != "none":
        pytest.skip("PyTorch does not tell a precision that is set from an equal one that is followed")
    python(f"""{CALLS}
def precision(trains):
    torch.backends.cuda.matmul.fp32_precision = "{own}"
    torch.backends.fp32_precision = "{general}"
    if trains:
        train.device_type = lambda: "cuda"
        with train._numeric_settings("bfloat16"):
            pass
    found = []
    for later in ("tf32", "ieee"):
        torch.backends.fp32_precision = later
        found.append(torch.backends.cuda.matmul.fp32_precision)
    return found

assert precision(True) == precision(False) == (["tf32", "ieee"] if "{own}" == "none" else ["{own}"] * 2)
""")


@pytest.mark.parametrize(
    "setting",
    [
        "torch.use_deterministic_algorithms(True)",
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False",
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False",
    ],
)
def test_a_setting_by_which_kernels_are_chosen_is_part_of_the_signature(setting: str) -> None:
    python(f"""{CALLS}
before = signature()
{setting}
assert before and signature() != before
""")
