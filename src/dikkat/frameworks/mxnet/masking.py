"""Which keys a query may see, and the softmax over them.

The restrictions of a call are brought into one form, booleans that broadcast to (..., n, m). That is done in NumPy:
MXNet is imperative, so their values can be read, and it has no logical operations.

Two things to know of MXNet 1.9.1 in this package. `np.where` with a number in place of an array has the gradient of the
other branch; with two arrays it has the right one, which is also 0 where the other branch was taken, NaN or not. And a
comparison of arrays of two dtypes is an error.
"""

from functools import reduce
from numbers import Integral
from typing import Any

import numpy
from mxnet import np, npx

Array = Any  # mxnet.np.ndarray
Booleans = Any  # numpy.ndarray of booleans
Shape = tuple[int, ...]

_FLOATS = ("float16", "float32", "float64")


def check_semantics() -> None:
    """Whether MXNet's NumPy semantics are on; without them shapes such as () and (0, 3) mean "unknown".

    Raises:
        RuntimeError: they are off.
    """
    if not (npx.is_np_shape() and npx.is_np_array()):
        raise RuntimeError(
            "MXNet's NumPy semantics are off, and dikkat.frameworks.mxnet is written for them: call mxnet.npx.set_np() "
            "once, before arrays and layers are made"
        )


def check_array(name: str, tensor: object) -> None:
    """An array of `mxnet.np`.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(tensor, np.ndarray):
        raise TypeError(
            f"{name}: came {type(tensor).__module__}.{type(tensor).__name__}; allowed: an mxnet.np.ndarray (of an "
            "mxnet.nd.NDArray its as_np_ndarray(), of a NumPy array mxnet.np.array)"
        )


def check_features(name: str, tensor: Array) -> None:
    """Queries, keys, values and scores are (..., length, features), in a type that is computed with.

    Raises:
        TypeError: no array, or one of another dtype.
        ValueError: one dimension or none.
    """
    check_array(name, tensor)
    if str(numpy.dtype(tensor.dtype)) not in _FLOATS:
        raise TypeError(f"{name}: came with dtype {numpy.dtype(tensor.dtype)}; allowed: {', '.join(_FLOATS)}")
    if tensor.ndim < 2:
        raise ValueError(f"{name}: came with shape {tensor.shape}; allowed: (..., length, features)")


def cast(tensor: Array, kind: Any) -> Array:
    """The array in a dtype; itself where it has it."""
    return tensor if numpy.dtype(tensor.dtype) == numpy.dtype(kind) else tensor.astype(numpy.dtype(kind).name)


def wide(*tensors: Array) -> str:
    """The dtype that these are computed in together: at least float32."""
    return numpy.result_type(numpy.float32, *(numpy.dtype(tensor.dtype) for tensor in tensors)).name


def where(shown: Booleans | Array, tensor: Array, other: float) -> Array:
    """The array where shown, a number elsewhere; the gradient is 0 there, even one of NaN."""
    if isinstance(shown, numpy.ndarray):
        shown = np.array(shown, dtype="bool", ctx=tensor.ctx)
    return np.where(shown, tensor, np.full((), other, dtype=tensor.dtype, ctx=tensor.ctx))


def whole_numbers(name: str, tensor: Array) -> Any:
    """Lengths, indices or token numbers as NumPy's int64; MXNet's own are mostly float32.

    Raises:
        TypeError: no array of numbers.
        ValueError: one that is not whole.
    """
    check_array(name, tensor)
    values = tensor.asnumpy()
    if values.dtype == numpy.bool_:
        raise TypeError(f"{name}: came with dtype bool; allowed: whole numbers, of an integer or a floating-point type")
    numbers = values.astype(numpy.int64)
    if numbers.size and not (numbers == values).all():
        came = values[numbers != values].flat[0]
        raise ValueError(f"{name}: came {came}; allowed: whole numbers, of an integer or a floating-point type")
    return numbers


def visible(
    lead: Shape,
    queries: int,
    keys: int,
    *,
    valid_lens: Array | int | None = None,
    mask: Array | None = None,
    causal: bool = False,
    key_bias: Array | None = None,
    exclude: Array | None = None,
) -> Booleans | None:
    """The pairs that take part: the intersection of the restrictions of a call, checked.

    Args:
        lead: the leading dimensions of the call, broadcast over query, key and value.
        queries: n.
        keys: m.
        valid_lens: (B,) or (B, n) whole numbers in 0 ... m, as in `dikkat.attend`.
        mask: broadcasts to (..., n, m); True, or 1, takes part.
        causal: query i sees keys j <= i + m - n.
        key_bias: (..., m); -inf hides a key.
        exclude: (..., n) whole numbers: the one key index that a row must not see; -1 for none.

    Returns:
        NumPy booleans of as many leading dimensions as `lead`, which broadcast to (..., n, m); their row axis has
        length 1 where all queries see the same keys. None where all pairs take part.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: one of the wrong shape, or a value out of range.
    """
    if not isinstance(causal, bool):
        raise TypeError(f"causal: came {type(causal).__name__}; allowed: True or False")
    key = numpy.arange(keys)
    parts: list[Booleans] = []
    if valid_lens is not None:
        parts.append(key < _lens(valid_lens, lead, queries, keys)[..., None])
    if causal:
        parts.append(key <= (numpy.arange(queries) + keys - queries)[:, None])
    if mask is not None:
        parts.append(_mask(mask, (*lead, queries, keys)))
    if key_bias is not None:
        check_bias(key_bias, (*lead, keys))
        parts.append((key_bias.asnumpy() != -numpy.inf)[..., None, :])
    if exclude is not None:
        rows = whole_numbers("exclude", exclude)
        _check_fit("exclude", rows.shape, (*lead, queries))
        _check_range("exclude", rows, -1, keys - 1, "the index of a key, or -1 for none")
        parts.append(key != rows[..., None])
    if not parts:
        return None
    shown = reduce(numpy.logical_and, parts)
    shown = numpy.broadcast_to(shown, (*shown.shape[:-1], keys))  # a mask may have one column for all keys
    return None if shown.all() else shown.reshape((1,) * (len(lead) + 2 - shown.ndim) + shown.shape)


def check_bias(key_bias: Array, shape: Shape) -> None:
    """A bias is floating point and broadcasts to (..., m).

    Raises:
        TypeError: no array, or one of another dtype.
        ValueError: it does not broadcast.
    """
    check_array("key_bias", key_bias)
    if str(numpy.dtype(key_bias.dtype)) not in _FLOATS:
        raise TypeError(f"key_bias: came with dtype {numpy.dtype(key_bias.dtype)}; allowed: {', '.join(_FLOATS)}")
    _check_fit("key_bias", key_bias.shape, shape)


def _lens(valid_lens: Array | int, lead: Shape, queries: int, keys: int) -> Any:
    if isinstance(valid_lens, Integral) and not isinstance(valid_lens, bool):
        lens = numpy.asarray(int(valid_lens), dtype=numpy.int64)
    else:
        lens = whole_numbers("valid_lens", valid_lens)
    allowed = [lead[:1], (*lead[:1], queries)]
    if lens.shape not in allowed:
        raise ValueError(
            f"valid_lens: came with shape {lens.shape}; allowed: {allowed[0]} (one length a batch element) or "
            f"{allowed[1]} (one a query), aligned with the first leading dimension and shared by the heads"
        )
    _check_range("valid_lens", lens, 0, keys, "a length among the keys")
    if lens.ndim == len(lead[:1]):
        lens = lens[..., None]
    return lens.reshape(*lens.shape[:-1], *(1,) * (len(lead) - 1), lens.shape[-1])


def _mask(mask: Array, shape: Shape) -> Booleans:
    check_array("mask", mask)
    values = mask.asnumpy()
    shown = values == 1
    if not (shown | (values == 0)).all():
        raise TypeError(f"mask: came with dtype {values.dtype}; allowed: bool, or 0 and 1, which takes part")
    _check_fit("mask", shown.shape, shape)
    return shown.reshape((1,) * (len(shape) - shown.ndim) + shown.shape)


def _check_fit(name: str, came: Shape, shape: Shape) -> None:
    extra = len(shape) - len(came)
    fits = extra >= 0 and all(have in (1, want) for have, want in zip(came, shape[extra:], strict=True))
    if not fits:
        raise ValueError(f"{name}: came with shape {came}; allowed: one that broadcasts to {shape}")


def _check_range(name: str, values: Any, low: int, high: int, meaning: str) -> None:
    outside = values[(values < low) | (values > high)]
    if outside.size:
        raise ValueError(f"{name}: came {outside.flat[0]}; allowed: {low} to {high}, {meaning}")


def softmax(scores: Array, shown: Booleans | Array | None) -> Array:
    """Weights over the visible keys; 0 in a row that sees none.

    Args:
        scores: (..., n, m), float32 or float64. A score of -inf is a weight of 0.
        shown: booleans that broadcast to (..., n, m), of NumPy or MXNet; None where all pairs take part.
    """
    if not scores.size:
        return scores
    if shown is None:
        return npx.softmax(scores, axis=-1)
    if isinstance(shown, numpy.ndarray):
        shown = np.array(shown, dtype="bool", ctx=scores.ctx)
    # A row that sees nobody comes out of the softmax as NaN: `where` takes that back, and its gradient too.
    return where(shown, npx.softmax(where(shown, scores, -numpy.inf), axis=-1), 0.0)


def masked_softmax(scores: Array, valid_lens: Array | int | None = None) -> Array:
    r"""Softmax over the last axis, over the first `valid_lens` entries of each row.

    $$ w_{ij} = \frac{[j < L_i]\, e^{s_{ij}}}{\sum_{l < L_i} e^{s_{il}}} $$

    A row of length 0 has weights 0. Entries past the length have no effect, whatever they hold, and the array that came
    is not written to.

    Args:
        scores: (..., n, m), floating point.
        valid_lens: None, (B,) or (B, n) whole numbers in 0 ... m, aligned with the first leading dimension (without
            leading dimensions: a scalar or (n,)).

    Returns:
        Weights (..., n, m) in the dtype of `scores`.

    Raises:
        RuntimeError: MXNet's NumPy semantics are off.
        TypeError: `scores` or `valid_lens` of the wrong kind.
        ValueError: `valid_lens` of the wrong shape or out of range.

    Source:
        Zhang et al., *Dive into Deep Learning*, section "Attention Scoring Functions", masked softmax.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> masked_softmax(np.zeros((1, 2, 4)), np.array([2]))
        array([[[0.5, 0.5, 0. , 0. ],
                [0.5, 0.5, 0. , 0. ]]])
    """
    check_semantics()
    check_features("scores", scores)
    shown = visible(scores.shape[:-2], *scores.shape[-2:], valid_lens=valid_lens)
    return cast(softmax(cast(scores, wide(scores)), shown), scores.dtype)
