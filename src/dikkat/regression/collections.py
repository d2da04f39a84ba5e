"""Dask's arrays and data frames as queries: a fitted model predicts each partition where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from dikkat.errors import InputError
from dikkat.extras import needing
from dikkat.regression.joined import Array


def is_dask(given: object) -> bool:
    """True for a collection of Dask's."""
    return hasattr(given, "__dask_graph__")


def check_at_hand(**given: object) -> None:
    """Refuse collections and frames that are still to be made."""
    for name, each in given.items():
        if is_dask(each):
            raise InputError(
                f"{name}: got a Dask collection; expected rows at hand, such as `.sample(frac=0.01).compute()`. A "
                "fitted model's predict takes collections"
            )
        if hasattr(each, "collect_schema") and hasattr(each, "lazy") and not hasattr(each, "to_numpy"):
            raise InputError(f"{name}: got a {type(each).__name__}; expected the frame that its `.collect()` makes")


def predict(model: Any, X: Any, return_std: bool) -> Any:
    """Dask arrays, still to be made, of what a fitted model predicts of each partition."""
    with needing("dask"):
        import dask.array
        from dask import delayed
    if getattr(X, "ndim", None) != 2:
        raise ValueError(f"X: got a Dask collection of {getattr(X, 'ndim', 'no')} dimensions; expected 2")
    is_array = hasattr(X, "chunks")
    validate_data(model, np.empty((0, X.shape[1])) if is_array else X._meta, skip_check_array=True, reset=False)
    blocks = X.rechunk({1: -1}).to_delayed().ravel() if is_array else X.to_delayed()
    rows = X.chunks[0] if is_array else [np.nan] * len(blocks)
    whole, shape = delayed(model, traverse=False), model.y_train_.shape[1:]
    made = [delayed(_predicted, nout=2, traverse=False)(whole, block, return_std) for block in blocks]

    def together(which: int) -> Any:
        return dask.array.concatenate(
            [
                dask.array.from_delayed(each[which], (count, *shape), model.X_train_.dtype)
                for each, count in zip(made, rows, strict=True)
            ]
        )

    return (together(0), together(1)) if return_std else together(0)


def _predicted(model: Any, block: Any, return_std: bool) -> tuple[Array, ...]:
    """The answers to one partition, which may be without rows."""
    if not len(block):
        empty = np.empty((0, *model.y_train_.shape[1:]), model.X_train_.dtype)
        return empty, empty
    found = model.predict(block, return_std)
    return found if return_std else (found,)
