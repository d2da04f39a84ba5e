"""Which keys a query may see, and the softmax over them.

The restrictions of a call are brought into one form, booleans that broadcast to (..., n, m). That is done in NumPy:
MXNet is imperative, so their values can be read, and it has no logical operations.
"""

from numbers import Integral

import numpy
from mxnet import npx

from dikkat.frameworks.contract import masking
from dikkat.frameworks.contract.checks import Call, Given, Shape, check_restrictions
from dikkat.frameworks.mxnet.backend import (
    Array,
    Booleans,
    cast,
    check_array,
    check_features,
    check_floats,
    check_semantics,
    on_device,
    where,
    whole_numbers,
    wide,
)


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
        lead: The leading dimensions of the call, broadcast over query, key and value.
        queries: n.
        keys: m.
        valid_lens: (B,) or (B, n) whole numbers in 0 ... m (no leading dimension: () or (n,)).
        mask: Booleans, or 0 and 1, that broadcast to (..., n, m); True, or 1, takes part.
        causal: Query i sees keys j <= i + m − n.
        key_bias: (..., m) floating point; −∞ hides a key.
        exclude: (..., n) whole numbers: the one key index that a row must not see; −1 for none.

    Returns:
        NumPy booleans of as many leading dimensions as `lead`, which broadcast to (..., n, m); their row axis has
        length 1 where all queries see the same keys. None where all pairs take part.

    Raises:
        TypeError: An argument of the wrong kind.
        ValueError: One of the wrong shape, or a value out of range.
    """
    found = {
        "valid_lens": None if valid_lens is None else _lens(valid_lens),
        "mask": None if mask is None else _booleans(mask),
        "key_bias": None if key_bias is None else _floats(key_bias),
        "exclude": None if exclude is None else whole_numbers("exclude", exclude),
    }
    given = {name: None if each is None else Given(each.shape, each) for name, each in found.items()}
    check_restrictions(Call(lead, queries, keys), causal=causal, **given)
    shown = masking.visible(numpy.arange, len(lead), queries, keys, causal=causal, **found)
    if shown is None:
        return None
    shown = numpy.broadcast_to(shown, (*shown.shape[:-1], keys))  # a mask may have one column for all keys
    return None if shown.all() else shown.reshape((1,) * (len(lead) + 2 - shown.ndim) + shown.shape)


def _lens(valid_lens: Array | int) -> Booleans:
    if isinstance(valid_lens, Integral) and not isinstance(valid_lens, bool):
        return numpy.asarray(int(valid_lens), dtype=numpy.int64)
    return whole_numbers("valid_lens", valid_lens)


def _booleans(mask: Array) -> Booleans:
    check_array("mask", mask)
    values = mask.asnumpy()
    shown = values == 1
    if not (shown | (values == 0)).all():
        raise TypeError(f"mask: got dtype {values.dtype}; expected bool, or 0 and 1, which takes part")
    return shown


def _floats(key_bias: Array) -> Booleans:
    check_floats("key_bias", key_bias)
    return key_bias.asnumpy()


def softmax(scores: Array, shown: Booleans | Array | None) -> Array:
    """Weights over the visible keys; 0 in a row that sees none.

    Args:
        scores: (..., n, m), float32 or float64. A score of −∞ is a weight of 0.
        shown: Booleans that broadcast to (..., n, m), of NumPy or MXNet; None where all pairs take part.
    """
    if not scores.size:
        return scores
    if shown is None:
        return npx.softmax(scores, axis=-1)
    shown = on_device(shown, scores)
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
    return cast(softmax(cast(scores, wide(scores)), shown), str(numpy.dtype(scores.dtype)))
