"""Dask arrays and data frames as queries: the workers predict their partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from dikkat.extras import require_extra
from dikkat.regression.frames import select_columns
from dikkat.regression.joined import Array


def predict(model: Any, X: Any, return_std: bool) -> Any:
    """Return lazy Dask arrays of a fitted model's predictions."""
    with require_extra("dask"):
        import dask.array
        from dask import delayed
    if getattr(X, "ndim", None) != 2:
        got = f"{X.ndim} dimensions" if hasattr(X, "ndim") else type(X).__name__
        raise ValueError(f"X: got {got}; expected a Dask array or data frame of 2 dimensions")
    is_array = hasattr(X, "chunks")
    names = getattr(model, "feature_names_in_", None)
    table = np.empty((0, X.shape[1])) if is_array else select_columns(X._meta, names, model.n_features_in_)
    validate_data(model, table, skip_check_array=True, reset=False)
    blocks = X.rechunk({1: -1}).to_delayed().ravel() if is_array else X.to_delayed()
    rows = X.chunks[0] if is_array else [np.nan] * len(blocks)
    delayed_model, shape, dtype = delayed(model, traverse=False), model.y_train_.shape[1:], model.X_train_.dtype

    def predict_block(model: Any, block: Any) -> tuple[Array, ...]:
        if not len(block):
            return np.empty((0, *shape), dtype), np.empty((0, *shape), dtype)
        result = model.predict(block, return_std)
        return result if return_std else (result,)

    predictions = [delayed(predict_block, nout=2, traverse=False)(delayed_model, block) for block in blocks]
    answers = [
        dask.array.concatenate(
            [dask.array.from_delayed(pair[k], (n, *shape), dtype) for pair, n in zip(predictions, rows, strict=True)]
        )
        for k in range(1 + return_std)
    ]
    return tuple(answers) if return_std else answers[0]
