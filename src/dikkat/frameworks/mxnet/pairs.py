"""The pair functions that compare features one by one; in blocks where pairs are many.

MXNet's own differentiation keeps several arrays of (batch, queries, keys, features). Here the backward pass computes
them again, a block at a time.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mxnet import autograd, np, npx, util

Array = Any  # mxnet.np.ndarray
Shape = tuple[int, ...]

_FEW = 2**16  # pair-features; MXNet takes about as long to call a function of Python's as to differentiate so many
_BLOCK = 2**20  # pair-features at once: a few megabytes


def additive(query: Array, key: Array, weight: Array) -> Array:
    """Σ_h v_h tanh(q_h + k_h).

    Args:
        query: (..., n, h), float32 or float64.
        key: (..., m, h), of the same dtype and leading dimensions that broadcast.
        weight: v, (h,), of the same dtype.

    Returns:
        (..., n, m).
    """
    if _pair_features(query, key) <= _FEW:
        return np.dot(_tanh(np.expand_dims(query, -2) + np.expand_dims(key, -3)), weight)
    return _in_blocks(_Additive, query, key, weight)


def squared_distance(query: Array, key: Array) -> Array:
    """‖q − k‖², from the differences themselves.

    Args:
        query: (..., n, h), float32 or float64.
        key: (..., m, h), of the same dtype and leading dimensions that broadcast.

    Returns:
        (..., n, m).
    """
    if _pair_features(query, key) <= _FEW:
        return np.square(np.expand_dims(query, -2) - np.expand_dims(key, -3)).sum(-1)
    return _in_blocks(_SquaredDistance, query, key)


def _tanh(x: Array) -> Array:
    """±(1 − 2σ(−2|x|)), whose slope 4·σ·(1 − σ) keeps its digits: of `np.tanh` MXNet takes 1 − tanh², which loses them.

    Not by MXNet's sign and absolute value, whose slopes are 0 at 0.
    """
    with autograd.pause():
        turn = 2 - 4 * (x > 0).astype(x.dtype)  # −2 where x is positive, else 2
    return turn * npx.sigmoid(turn * x) - 0.5 * turn


def _pair_features(query: Array, key: Array) -> int:
    return math.prod(_lead(query, key)) * query.shape[-2] * math.prod(key.shape[-2:])


def _lead(query: Array, key: Array) -> Shape:
    return tuple(max(pair) for pair in zip(query.shape[:-2], key.shape[:-2], strict=True))


def _in_blocks(function: "Callable[[Sequence[Shape]], _Function]", query: Array, key: Array, *weights: Array) -> Array:
    lead = _lead(query, key)
    tensors = [np.broadcast_to(each, (*lead, *each.shape[-2:])).reshape(-1, *each.shape[-2:]) for each in (query, key)]
    tensors += weights
    # As one array: where one of several needs no gradient, MXNet 1.9.1 leaves those that follow it without theirs.
    together = np.concatenate(tensors, axis=None)
    return function([each.shape for each in tensors])(together).reshape(*lead, query.shape[-2], key.shape[-2])


class _Function(autograd.Function):
    """A function of queries (R, n, h) and keys (R, m, h), in one array with what else it needs, to scores (R, n, m)."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        super().__init__()
        self._shapes = shapes
        self._together: Array = None

    def forward(self, together: Array) -> Array:
        self._together = together
        query, key, *weights = self._parts()
        scores = np.empty((*query.shape[:2], key.shape[1]), dtype=query.dtype, ctx=query.ctx)
        for rows, queries in self._blocks():
            scores[rows, queries] = self.block(query[rows, queries], key[rows], *weights)
        return scores

    def backward(self, gradient: Any) -> Any:
        with util.np_shape(True), util.np_array(True):  # another thread, where the user's choice does not hold
            gradient = gradient.as_np_ndarray()
            query, key, *weights = parts = self._parts()
            found = [np.zeros_like(part) for part in parts]
            for rows, queries in self._blocks():
                by_query, by_key, *by_weights = self.block_gradient(
                    gradient[rows, queries], query[rows, queries], key[rows], *weights
                )
                found[0][rows, queries] = by_query
                found[1][rows] = found[1][rows] + by_key
                for total, part in zip(found[2:], by_weights, strict=True):
                    total += part
            return np.concatenate(found, axis=None).as_nd_ndarray()

    def block(self, query: Array, key: Array, *weights: Array) -> Array:
        """Scores (r, n, m) of some rows and queries."""
        raise NotImplementedError

    def block_gradient(self, gradient: Array, query: Array, key: Array, *weights: Array) -> tuple[Array, ...]:
        """The gradients by query, key and the weights, from (r, n, m)."""
        raise NotImplementedError

    def _parts(self) -> list[Array]:
        parts, start = [], 0
        for shape in self._shapes:
            parts.append(self._together[start : start + math.prod(shape)].reshape(shape))
            start += math.prod(shape)
        return parts

    def _blocks(self) -> Iterator[tuple[slice, slice]]:
        (rows, queries, features), (_, keys, _) = self._shapes[:2]
        at_once = max(1, _BLOCK // (keys * features))
        rows_at_once = max(1, at_once // queries)
        for row in range(0, rows, rows_at_once):
            for query in range(0, queries, at_once):
                yield slice(row, row + rows_at_once), slice(query, query + at_once)


class _Additive(_Function):
    """The slope is 4s/(1 + s)² with s = e^(−2|x|): 1 − tanh² has no digits left where tanh is nearly 1."""

    def block(self, query: Array, key: Array, weight: Array) -> Array:
        return np.dot(np.tanh(np.expand_dims(query, 2) + np.expand_dims(key, 1)), weight)

    def block_gradient(self, gradient: Array, query: Array, key: Array, weight: Array) -> tuple[Array, Array, Array]:
        pairs = np.expand_dims(query, 2) + np.expand_dims(key, 1)
        by_weight = np.dot(gradient.reshape(-1), np.tanh(pairs).reshape(-1, len(weight)))
        shares = np.exp(-2 * np.abs(pairs))
        by_query, by_key = _both_ways(gradient, shares / np.square(1 + shares))
        return by_query * 4 * weight, by_key * 4 * weight, by_weight


class _SquaredDistance(_Function):
    def block(self, query: Array, key: Array) -> Array:
        difference = np.expand_dims(query, 2) - np.expand_dims(key, 1)
        return np.dot(np.square(difference), np.ones((query.shape[-1],), dtype=query.dtype, ctx=query.ctx))

    def block_gradient(self, gradient: Array, query: Array, key: Array) -> tuple[Array, Array]:
        by_query, by_key = _both_ways(gradient, np.expand_dims(query, 2) - np.expand_dims(key, 1))
        return 2 * by_query, -2 * by_key


def _both_ways(gradient: Array, slopes: Array) -> tuple[Array, Array]:
    """Σ_j g_ij s_ij and Σ_i g_ij s_ij: (r, n, m), (r, n, m, h) -> (r, n, h), (r, m, h).

    As matrix products: MXNet takes ten times as long to sum over an inner axis.
    """
    rows, queries, keys, features = slopes.shape
    by_query = np.matmul(np.expand_dims(gradient, 2), slopes).reshape(rows, queries, features)
    weighted = (np.expand_dims(gradient, 3) * slopes).reshape(rows, queries, keys * features)
    ones = np.ones((rows, 1, queries), dtype=slopes.dtype, ctx=slopes.ctx)
    return by_query, np.matmul(ones, weighted).reshape(rows, keys, features)
