"""The order of the dimensions of attention weights in a product with values.

An order lists the dimensions that bring weights to (..., n, m): those that weights and values share, the queries, the
keys. It has −1 for a missing query, and omits dimensions of size 1.
"""

from torch import Tensor

_ELLIPSIS = "UVWXYZ"  # letters for the dimensions of an ellipsis in an einsum


def matmul_order(name: str, ndims: list[int], index: int) -> tuple[list[int], int]:
    """Return the order of factor `index` of a matrix product, and the key dimension of the other factor."""
    ndim = ndims[index]
    if ndim == 1:
        order = [-1, 0]
    elif index == 0:
        order = [*range(ndim)]
    else:  # values (..., d, m) @ weights (..., m, n)
        order = [*range(ndim - 2), ndim - 1, ndim - 2]
    return order, -1 if index or name == "linear" or ndims[-1] == 1 else -2


def einsum_order(equation: object, ndims: list[int], index: int) -> tuple[list[int] | None, int]:
    """Return the order of factor `index` of an einsum, None if unsupported, and the key dimension of the other."""
    if not isinstance(equation, str) or "->" not in equation or len(ndims) != 2:
        return None, 0
    inputs, output = equation.replace(" ", "").split("->")
    terms = [
        term.replace("...", _ELLIPSIS[len(_ELLIPSIS) - 3 + len(term) - ndim :])
        for term, ndim in zip(inputs.split(","), ndims, strict=True)
    ]
    weights, values = terms[index], terms[1 - index]
    output = output.replace("...", _ELLIPSIS)
    summed_letters = [letter for letter in weights if letter in values and letter not in output]
    query_letters = [letter for letter in weights if letter not in values and letter in output]
    shared_letters = [letter for letter in weights if letter in values and letter in output]
    if len(summed_letters) != 1 or len(query_letters) + len(shared_letters) + 1 != len(weights):
        return None, 0
    order = [weights.index(letter) for letter in [*shared_letters, *query_letters]] + [-1] * (not query_letters)
    return [*order, weights.index(summed_letters[0])], values.index(summed_letters[0])


def sum_order(weights: Tensor, values: Tensor, products: Tensor, dim: int) -> list[int]:
    """Return the order of weights in a sum over `dim` of `products`, weights times values of the same `ndim`."""
    lead_dims = [k for k in range(products.ndim) if k != dim and weights.shape[k] == products.shape[k]]
    has_queries = bool(lead_dims) and values.shape[lead_dims[-1]] == 1  # all queries have the same values
    return [*lead_dims, *([] if has_queries else [-1]), dim]


def permute(tensor: Tensor, order: list[int]) -> Tensor:
    """Return the tensor with its dimensions in this order."""
    dropped = [dim for dim in range(tensor.ndim) if dim not in order]
    moved = tensor.permute([*dropped, *(dim for dim in order if dim >= 0)])[(0,) * len(dropped)]
    return moved.unsqueeze(-2) if -1 in order else moved


def unpermute(tensor: Tensor, order: list[int], ndim: int) -> Tensor:
    """Return the tensor of `ndim` dimensions of which `permute` made this one."""
    dropped = [dim for dim in range(ndim) if dim not in order]
    moved = (tensor.squeeze(-2) if -1 in order else tensor)[(None,) * len(dropped)]
    dims = [*dropped, *(dim for dim in order if dim >= 0)]
    return moved.permute([dims.index(dim) for dim in range(ndim)])
