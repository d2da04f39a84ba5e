"""Names of PyTorch's functions by their effect on attention weights.

Names have no underscores: "softmax" is `x.softmax`, `F.softmax` and `torch.ops.aten._softmax`.
"""

from typing import Any

from torch import Tensor

SOFTMAX = {"softmax", "safe_softmax", "special_softmax"}
# Their results are weights if they sum to 1, or after a division by their sum.
EXPONENTIAL = {"exp", "exp2", "gumbel_softmax", "softmin"}
NORMALISED = SOFTMAX | EXPONENTIAL
# Products that pool values if one factor has weights; `MATRIX` has all products that sum over a dimension.
PRODUCT = {"matmul", "bmm", "mm", "mv", "dot", "einsum", "linear"}
MATRIX = {*PRODUCT, "addmm", "baddbmm", "rmatmul", "inner", "tensordot"}
CONCATENATE = {"cat", "concat", "index_copy", "copy", "setitem"}
CAST_OR_DROPOUT = {
    "bfloat16", "clone", "contiguous", "cpu", "cuda", "detach", "double", "dropout", "float", "half", "to", "type",
    "type_as",
}  # fmt: skip
SHAPED_LIKE = {"empty_like", "full_like", "ones_like", "rand_like", "randn_like", "zeros_like"}
MULTIPLY = {"mul", "multiply"}
DIVIDE = {"div", "divide", "idiv", "itruediv", "true_divide", "truediv"}
RESCALE = {
    *MULTIPLY, *DIVIDE, "add", "clamp", "clamp_min", "masked_fill", "nan_to_num", "normalize", "setitem", "where",
}  # fmt: skip
KEEP_WEIGHTS = RESCALE | CAST_OR_DROPOUT
REARRANGE = {
    "broadcast_to", "chunk", "expand", "expand_as", "flatten", "flip", "getitem", "index_select", "movedim", "narrow",
    "permute", "repeat", "repeat_interleave", "reshape", "roll", "select", "split", "squeeze", "swapaxes", "t", "tile",
    "transpose", "unbind", "unflatten", "unsqueeze", "view",
}  # fmt: skip
# `x.mT` and `x.T` are properties: PyTorch passes their getters, whose name is "__get__".
_PROPERTIES: tuple[Any, ...] = (Tensor.mT, Tensor.T)
TRANSPOSE = [attribute.__get__ for attribute in _PROPERTIES]
_FACTS: tuple[Any, ...] = (
    Tensor.shape, Tensor.dtype, Tensor.device, Tensor.ndim, Tensor.layout, Tensor.itemsize, Tensor.nbytes,
    Tensor.requires_grad, Tensor.is_cpu, Tensor.is_cuda, Tensor.is_nested, Tensor.is_sparse, Tensor.is_quantized,
)  # fmt: skip
# Getters and methods that return no tensor, which are half of all calls.
READ = {attribute.__get__ for attribute in _FACTS} | {
    Tensor.size, Tensor.dim, Tensor.numel, Tensor.stride, Tensor.storage_offset, Tensor.untyped_storage,
    Tensor.is_contiguous, Tensor.is_floating_point,
}  # fmt: skip
