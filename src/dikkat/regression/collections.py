"""Dask's arrays and data frames as an estimator takes them: checked partition by partition, where they are."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from dikkat.errors import InputError
from dikkat.regression.coding import Coding
from dikkat.regression.joined import Array
from dikkat.regression.partitions import places
from dikkat.regression.partitions.graphs import Later, here, later
from dikkat.regression.partitions.places import Partitioned, only_at_hand
from dikkat.regression.rows import Rows
from dikkat.regression.validation import check_size, check_sizes

_PLAIN = {
    "missing": "refuse", "categorical_features": "from_dtype", "ordered_features": "from_dtype", "neighbors": None
}  # fmt: skip


def is_dask(given: object) -> bool:
    """Whether it is a collection of Dask's."""
    return hasattr(given, "__dask_graph__")


def is_array(given: object) -> bool:
    """Whether it is an array of Dask's, whose name is none that a user gave."""
    return is_dask(given) and hasattr(given, "chunks")


def checked_rows(estimator: Any, X: Any, y: Any, sample_weight: Any, before: Rows | None) -> Rows:
    """Rows to learn from, as Dask arrays without empty partitions; d is set on the estimator.

    Raises:
        ValueError: A setting that is for rows at hand, or partitions that do not fit each other or hold what they
            should not.
    """
    if before is not None:
        raise ValueError("X: got a Dask collection in partial_fit; expected it in fit, with all rows")
    for name, plain in _PLAIN.items():
        if getattr(estimator, name) not in (plain, None):
            raise ValueError(
                f"{name}: got {getattr(estimator, name)!r} beside a Dask collection, of whose columns all are numbers, "
                f"whose rows lack nothing, and whose bandwidths are the same everywhere; expected {plain!r}"
            )
    kind = _Kind.of(estimator, X, reset=True)
    blocks = _aligned(kind, X, y, sample_weight)
    sizes = list(here([later(_size, *block) for block in blocks]))
    there = [(block, size) for block, size in zip(blocks, sizes, strict=True) if size.rows]
    if not there:
        raise ValueError(f"X: got no row in {len(blocks)} partitions; expected at least one")
    blocks, sizes = [block for block, _ in there], [size for _, size in there]
    total = sum(size.weight for size in sizes)
    if total == 0:
        raise ValueError("sample_weight: got zeros alone; expected at least one row whose weight is positive")
    if wrong := [size for size in sizes if size.outputs != sizes[0].outputs]:
        raise ValueError(f"y: got partitions with {sizes[0].outputs} and {wrong[0].outputs} outputs; expected the same")
    low, high = np.min([size.low for size in sizes], 0), np.max([size.high for size in sizes], 0)
    check_sizes(np.stack([low, high]), np.max([size.largest for size in sizes], 0), np.array([total], kind.dtype))
    shapes: list[tuple[tuple[int, ...], np.dtype[Any]]] = [
        ((kind.size,), kind.dtype),
        (sizes[0].outputs, np.dtype(np.float64)),
        ((), kind.dtype),
    ]
    x, values, weight = (
        _array([block[k] for block in blocks], [size.rows for size in sizes], *shape) for k, shape in enumerate(shapes)
    )
    return Rows(x, values, weight, (), 0)


def join(x: Any, y: Any, weight: Any, coding: Coding) -> Partitioned:
    """The places of such rows."""
    outputs = 1 if y.ndim == 1 else y.shape[1]
    values = [later(np.reshape, block, (-1, outputs)) for block in y.to_delayed().ravel()]
    blocks = zip(x.to_delayed().ravel(), values, weight.to_delayed().ravel(), strict=True)
    return places.join(list(blocks), coding.feature, coding.numbers, coding.center())


def predict(model: Any, X: Any, return_std: bool = False) -> Any:
    """Dask arrays of what the model predicts of each partition, still to be made."""
    kind = _Kind.of(model, X, reset=False)
    made = _predicted(
        model, [later(kind.checked_query, number, block) for number, block in enumerate(_parts(X))], return_std
    )
    rows = X.chunks[0] if is_array(X) else [np.nan] * len(made)
    shape, dtype = model.y_train_.shape[1:], model.X_train_.dtype
    if not return_std:
        return _array(made, rows, shape, dtype)
    return tuple(_array([later(_item, each, k) for each in made], rows, shape, dtype) for k in range(2))


def score(model: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    """R² of a model's predictions, the mean over the outputs. A row out of reach counts as the training rows' mean.

    Raises:
        ValueError: What does not fit.
    """
    kind = _Kind.of(model, X, reset=False)
    blocks = _aligned(kind, X, y, sample_weight)
    made = _predicted(model, [block[0] for block in blocks], False)
    instead = model._current().joined.mean()
    parts = here([later(_squares, found, *block[1:], instead) for found, block in zip(made, blocks, strict=True)])
    lost, rows = (sum(part[k] for part in parts) for k in (0, 1))
    if lost:
        warnings.warn(
            f"{lost} of {rows} rows of X have no training row in reach of the {model.kernel_} kernel, and count as "
            "their mean; choose a wider bandwidth, the Gaussian kernel or out_of_reach='nearest'",
            UserWarning,
            stacklevel=3,
        )
    zero = np.zeros(1)
    error, weight, mean, about = zero, 0.0, zero, zero
    for _, _, own_error, own_weight, own_mean, own_about in parts:
        if own_weight:
            share = own_weight / (weight + own_weight)
            apart = own_mean - mean
            about = about + own_about + weight * share * apart**2
            error, mean, weight = error + own_error, mean + share * apart, weight + own_weight
    explained = 1 - error / np.where(about > 0, about, 1)
    return float(np.where(about > 0, explained, np.where(error > 0, 0.0, 1.0)).mean())


class _Kind(NamedTuple):
    """What every partition of X must be.

    Attributes:
        names: Of the columns of a frame; None of an array.
        size: How many columns there are.
        dtype: What they are computed in.
        limit: The largest number that is allowed; 0 where that is still to be found out.
    """

    names: list[str] | None
    size: int
    dtype: np.dtype[Any]
    limit: float

    @classmethod
    def of(cls, estimator: Any, X: Any, reset: bool) -> _Kind:
        """As X says, after a look at whether that is what the estimator takes; with `reset` it remembers."""
        if getattr(X, "ndim", None) != 2:
            raise ValueError(f"X: got a Dask collection of {getattr(X, 'ndim', 'no')} dimensions; expected 2")
        array = is_array(X)
        if not reset and estimator.columns_:
            raise InputError(
                "X: got a Dask collection for a model with columns of categories; expected an array or a frame at hand"
            )
        empty = np.empty((0, X.shape[1]), X.dtype) if array else X._meta
        validate_data(estimator, empty, skip_check_array=True, reset=reset)
        dtypes = [np.dtype(X.dtype)] if array else list(X.dtypes)
        single = all(each == np.float32 for each in dtypes)
        if not reset:
            single = estimator.X_train_.dtype == np.float32
        dtype: np.dtype[Any] = np.dtype(np.float32 if single else np.float64)
        names = None if array else [str(name) for name in X.columns]
        return cls(names, X.shape[1], dtype, 0.0 if reset else float(np.finfo(dtype.type).max))

    def checked_query(self, number: int, block: Any) -> Array:
        """A partition's cells.

        Raises:
            ValueError: It has other columns, cells that are no numbers, or that are not finite.
        """
        if self.names is not None and [str(name) for name in block.columns] != self.names:
            got, expected = (", ".join(map(str, names)) for names in (block.columns, self.names))
            raise ValueError(f"X: got in partition {number} the columns {got}; expected {expected}")
        x = np.asarray(block)
        if x.ndim != 2 or x.shape[1] != self.size:
            raise ValueError(f"X: got in partition {number} shape {x.shape}; expected (rows, {self.size})")
        if self.limit and len(x):
            check_size("X", _numbers("X", number, x, np.float64), self.limit, self.dtype)
        return _numbers("X", number, x, self.dtype)

    def checked(self, number: int, block: Any, y: Any, weight: Any) -> tuple[Array, Array, Array]:
        """A partition's rows, with what is to be predicted and how often each counts.

        Raises:
            ValueError: As for `checked_query`; or they are not as many, or a weight is negative.
        """
        x, values = self.checked_query(number, block), _numbers("y", number, np.asarray(y), np.float64)
        counts = np.ones(len(x), self.dtype)
        if weight is not None:
            counts = _numbers("sample_weight", number, np.asarray(weight), self.dtype)
            if counts.ndim != 1 or (counts < 0).any():
                raise ValueError(
                    f"sample_weight: got in partition {number} shape {counts.shape}, least {counts.min(initial=0)}; "
                    "expected (rows,), numbers of at least 0"
                )
        for name, each in (("y", values), ("sample_weight", counts)):
            if len(each) != len(x):
                raise ValueError(f"{name}: got in partition {number} {len(each)} rows; expected {len(x)}, as X has")
        return x, values, counts


class _Size(NamedTuple):
    """Of a partition: rows, outputs, the ends of its columns, the largest values, the sum of its weights."""

    rows: int
    outputs: tuple[int, ...]
    low: Array
    high: Array
    largest: Array
    weight: float


def _size(x: Array, y: Array, weight: Array) -> _Size:
    if not len(x):
        return _Size(0, y.shape[1:], np.empty(0), np.empty(0), np.empty(0), 0.0)
    ends = x.min(0), x.max(0)
    return _Size(len(x), y.shape[1:], *ends, np.abs(y).max(0).reshape(1, -1), float(weight.sum(dtype=np.float64)))


def _numbers(name: str, number: int, given: NDArray[Any], dtype: Any) -> Array:
    """Finite numbers of a dtype."""
    try:
        found: Array = given.astype(dtype)
    except (TypeError, ValueError):
        found = np.array(np.nan)
    if given.dtype.kind not in "fiub" or not np.isfinite(found).all():
        wrong = given.ravel()[~np.isfinite(found).ravel()] if found.shape == given.shape else given.ravel()
        held = repr(wrong[0].item() if hasattr(wrong[0], "item") else wrong[0]) if len(wrong) else str(given.dtype)
        raise ValueError(f"{name}: got {held} in partition {number}; expected finite numbers")
    return found


def _parts(given: Any) -> list[Later]:
    """The partitions of a collection."""
    if is_array(given):
        given = given.rechunk({1: -1}) if given.ndim == 2 else given
        return list(given.to_delayed().ravel())
    return list(given.to_delayed())


def _aligned(kind: _Kind, X: Any, y: Any, weight: Any) -> list[tuple[Later, Later, Later]]:
    """The partitions of rows, checked."""
    columns = []
    for name, given in (("y", y), ("sample_weight", weight)):
        if given is None and name == "sample_weight":
            columns.append([None] * X.numblocks[0] if is_array(X) else [None] * X.npartitions)
            continue
        if not is_dask(given):
            raise InputError(f"{name}: got {type(given).__name__} beside a Dask collection as X; expected one too")
        if is_array(given) and is_array(X) and not np.isnan([*given.chunks[0], *X.chunks[0]]).any():
            if len(given) != len(X):
                raise ValueError(f"{name}: got {len(given)} rows; expected {len(X)}, as X has")
            given = given.rechunk({0: X.chunks[0]})
        columns.append(_parts(given))
    blocks = _parts(X)
    for name, parts in zip(("y", "sample_weight"), columns, strict=True):
        if len(parts) != len(blocks):
            raise ValueError(f"{name}: got {len(parts)} partitions; expected {len(blocks)}, as X has")
    found = []
    for number, (block, *others) in enumerate(zip(blocks, *columns, strict=True)):
        one = later(kind.checked, number, block, *others)
        found.append((later(_item, one, 0), later(_item, one, 1), later(_item, one, 2)))
    return found


def _item(given: Any, place: int) -> Any:
    return given[place]


def _array(parts: Sequence[Later], rows: Sequence[float], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A Dask array of its partitions, each of so many rows."""
    import dask.array

    pieces = [dask.array.from_delayed(part, (count, *shape), dtype) for part, count in zip(parts, rows, strict=True)]
    return dask.array.concatenate(pieces)


def _predicted(model: Any, queries: Sequence[Later], return_std: bool) -> list[Later]:
    """What a model predicts of partitions of cells."""
    smoother = model._current()
    if not isinstance(smoother.joined, Partitioned):
        import dask

        whole = dask.delayed(model, traverse=False)
        return [later(_answered, whole, query, return_std) for query in queries]
    if return_std:
        raise only_at_hand()
    shape = model.y_train_.shape[1:]
    found = []
    for query in queries:
        answer = smoother.estimates(query)
        nearest = smoother.nearest(later(_lost, query, answer)) if model._answers_lost() else None
        found.append(later(_filled, answer, nearest, shape, model.X_train_.dtype))
    return found


def _answered(model: Any, query: Array, return_std: bool) -> Any:
    """Of rows at hand, by a model that has its own."""
    shape, dtype = (0, *model.y_train_.shape[1:]), model.X_train_.dtype
    if not len(query):
        return (np.empty(shape, dtype), np.empty(shape, dtype)) if return_std else np.empty(shape, dtype)
    return model._answer(query, np.zeros(len(query), bool), return_std)


def _lost(query: Array, answer: tuple[Array, NDArray[np.bool_]]) -> Array:
    return query[~answer[1]]


def _filled(
    answer: tuple[Array, NDArray[np.bool_]], nearest: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    mean, reached = answer
    mean = mean.copy()
    mean[~reached] = np.nan if nearest is None else nearest
    return mean.reshape(len(mean), *shape).astype(dtype)


def _squares(found: Array, y: Array, weight: Array, instead: Array) -> tuple[int, int, Array, float, Array, Array]:
    """Rows without a prediction, for which others stand; all rows; squared errors, Σ w, mean of y, squares about it."""
    values, found = (each if each.ndim == 2 else each[:, None] for each in (y, found))
    counts = weight.astype(np.float64)
    total = float(counts.sum())
    mean = counts @ values / total if total else np.zeros(values.shape[1])
    lost: NDArray[np.bool_] = np.asarray(np.isnan(found).any(axis=1))
    found = np.where(lost[:, None], instead, found)
    return int(lost.sum()), len(y), counts @ (values - found) ** 2, total, mean, counts @ (values - mean) ** 2
