"""Dask's arrays and data frames as queries: a fitted model predicts each partition where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from dikkat.extras import needing
from dikkat.regression.joined import Array


def predict(model: Any, X: Any, return_std: bool) -> Any:
    """Dask arrays, still to be made, of a fitted model's predictions for each partition."""
    with needing("dask"):
        import dask.array
        from dask import delayed
    if getattr(X, "ndim", None) != 2:
        raise ValueError(f"X: got a Dask collection of {getattr(X, 'ndim', 'no')} dimensions; expected 2")
    is_array = hasattr(X, "chunks")
    validate_data(model, np.empty((0, X.shape[1])) if is_array else X._meta, skip_check_array=True, reset=False)
    blocks = X.rechunk({1: -1}).to_delayed().ravel() if is_array else X.to_delayed()
    rows = X.chunks[0] if is_array else [np.nan] * len(blocks)
    whole, shape, dtype = delayed(model, traverse=False), model.y_train_.shape[1:], model.X_train_.dtype

    def predicted(model: Any, block: Any) -> tuple[Array, ...]:
        if not len(block):
            return np.empty((0, *shape), dtype), np.empty((0, *shape), dtype)
        result = model.predict(block, return_std)
        return result if return_std else (result,)

    made = [delayed(predicted, nout=2, traverse=False)(whole, block) for block in blocks]
    answers = [
        dask.array.concatenate(
            [dask.array.from_delayed(each[k], (n, *shape), dtype) for each, n in zip(made, rows, strict=True)]
        )
        for k in range(1 + return_std)
    ]
    return tuple(answers) if return_std else answers[0]
