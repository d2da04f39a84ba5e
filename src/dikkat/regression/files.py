"""Saving and loading fitted estimators: one `.safetensors` file, written atomically, without pickle."""

from __future__ import annotations

import json
import math
import os
import reprlib
from numbers import Integral
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dikkat.errors import InputError
from dikkat.regression.columns import Column
from dikkat.regression.joined import Rows
from dikkat.storage.files import write_whole
from dikkat.storage.headers import check_header, header
from dikkat.storage.tensors import describe, misfits

Array = NDArray[Any]

FORMAT = "dikkat kernel regression"
VERSION = 14

ANSWER_SETTINGS = {"kernel", "order", "missing", "weights", "support"}
"""The settings that queries need: `fit` stores them with an underscore, so that `set_params` changes no answer."""

_KEY = "dikkat"  # the metadata key; its value is JSON, because metadata are text
_TENSORS = ("X_train_", "y_train_", "sample_weight_", "bandwidth_")
# Only in models with `cv`, with a learned metric, or with a surface of second order.
_OPTIONAL = _FOLDS, _METRIC, _SURFACE = "folds_", "metric_", "surface_"
_BAD_COLUMNS = "columns: got {}; expected a kind for each column of X_train_"
_DTYPES = (np.dtype(np.float64), np.dtype(np.float32))


def save_model(model: Any, path: str | os.PathLike[str]) -> None:
    """Save a fitted estimator atomically: its arrays as tensors, the rest as JSON."""
    from safetensors.numpy import save

    names = getattr(model, "feature_names_in_", None)
    content = header(FORMAT, VERSION) | {
        "estimator": type(model).__name__, "settings": _settings_of(model),
        "columns": [*map(Column._asdict, model.columns_)], "feature_names": None if names is None else list(names),
        "history": model.history_, "ridge": model.ridge_, "target": model.target_name_,
        "attributes": model._saved_attributes(),
    }  # fmt: skip
    arrays = {name: getattr(model, name) for name in (*_TENSORS, *_OPTIONAL)}
    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}
    write_whole(path, save(tensors, metadata={_KEY: json.dumps(content, allow_nan=False)}))


def load_model(kind: type[Any], path: str | os.PathLike[str]) -> Any:
    """Load an estimator of this class, after checking everything in the file."""
    from safetensors import SafetensorError, safe_open

    Path(path).open("rb").close()  # its errors name the file
    try:
        with safe_open(path, framework="numpy") as file:
            metadata, tensors = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, TypeError) as error:  # TypeError: a dtype that NumPy lacks
        raise InputError(f"{path}: truncated, damaged, or not a safetensors file ({error})") from error
    try:
        content = _parse(metadata)
        rows, bandwidth = _check(content, tensors, kind.__name__, _settings_of(kind()))
        model = kind(**content["settings"])
        model._check_settings()
        attributes = model._loaded_attributes(rows, content["attributes"])
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    names = range(rows.x.shape[1])
    if content["feature_names"] is not None:
        names = content["feature_names"]
        model.feature_names_in_ = np.array(names, dtype=object)
    kinds = dict(zip(names, rows.columns, strict=False))
    periods = {name: float(column.levels[0]) for name, column in kinds.items() if column.kind == "periodic"}
    model.periodic_features = periods or None
    model.n_features_in_ = rows.x.shape[1] - sum(column.is_gap for column in rows.columns)
    model.target_name_, model.row_labels_ = content["target"], None
    attributes |= {"bandwidth_": bandwidth, "ridge_": content["ridge"], "history_": content["history"]}
    return model._fit_copy(rows, **attributes)


def _settings_of(model: Any) -> dict[str, Any]:
    """Return the settings as JSON values; for a fitted model those of `fit`."""
    settings = dict(getattr(model, "_fit_settings", None) or model.get_params(deep=False))
    settings.pop("periodic_features", None)  # they are in the columns
    if not isinstance(settings.get("cv"), Integral | str | None):
        settings["cv"] = type(settings["cv"]).__name__  # an error in `fit`
    return {
        name: value if isinstance(value, str | None) else np.asarray(value).tolist() for name, value in settings.items()
    }


def _parse(metadata: dict[str, str]) -> dict[str, Any]:
    """Return the metadata's JSON; the types of its entries are checked, except for `columns`."""
    try:
        content = json.loads(metadata.get(_KEY, "null"))
    except json.JSONDecodeError as error:
        raise ValueError(f"its metadata are not JSON ({error}). Save the model again") from error
    check_header(content, FORMAT, (VERSION,), "fit again")
    types: dict[str, Any] = {
        "estimator": str, "settings": dict, "feature_names": list | None, "history": list, "attributes": dict,
    }  # fmt: skip
    if faults := [name for name, kind in types.items() if not isinstance(content.get(name), kind)]:
        raise ValueError(f"{', '.join(faults)}: missing or of a wrong type. Save the model again")
    ridge = content.get("ridge", "nothing")
    if not isinstance(ridge, float) or not 0 <= ridge < math.inf:
        raise ValueError(f"ridge: got {reprlib.repr(ridge)}; expected a number of at least 0")
    if not isinstance(content.get("target", 0), str | None):
        got = reprlib.repr(content["target"]) if "target" in content else "nothing"
        raise ValueError(f"target: got {got}; expected a name or null. Save the model again")
    return cast(dict[str, Any], content)


def _check(
    content: dict[str, Any], tensors: dict[str, Array], estimator: str, expected: dict[str, Any]
) -> tuple[Rows, Array]:
    """Return the rows and the bandwidths of a file, or raise if its parts do not fit together.

    The values of the settings are not checked; `expected` has their names.
    """
    settings = content["settings"]
    if settings.keys() != expected.keys():
        if content["estimator"] != estimator:
            raise ValueError(f"got a saved {content['estimator']}; expected a {estimator}. Use the load of its class")
        raise ValueError(f"got the settings {', '.join(sorted(settings))}; expected {', '.join(expected)}")
    folds, metric, surface = (tensors.pop(name, None) for name in _OPTIONAL)
    faults = misfits(dict.fromkeys(_TENSORS, "a tensor"), dict.fromkeys(tensors, "a tensor"))
    if not faults:
        x, y, weight, bandwidth = (tensors[name] for name in _TENSORS)
        columns, meaning = _columns(content.get("columns")), settings.get("weights", "repeats")
        rows = Rows(x, y, weight, columns, metric, folds, meaning, surface)
        faults = _find_faults(rows, bandwidth, content)
    if faults:
        raise ValueError(f"{'; '.join(faults)}. Save the model again")
    return rows, bandwidth


def _columns(saved: Any) -> tuple[Column, ...]:
    """Return the columns' kinds; () if all are numbers."""
    try:
        return tuple(
            Column(column["kind"], tuple(column["levels"]), column["origin"], tuple(column["log"])) for column in saved
        )
    except (TypeError, KeyError):
        raise ValueError(_BAD_COLUMNS.format(reprlib.repr(saved))) from None


def _is_column(column: Column, values: Array) -> bool:
    if column.kind == "date":
        try:
            return not np.isnat(np.datetime64(column.origin))
        except (TypeError, ValueError):
            return False
    if column.kind == "periodic":
        return len(column.levels) == 1 and isinstance(column.levels[0], float) and 0 < column.levels[0] < math.inf
    if column.log:
        is_log = len(column.log) == 2 and all(isinstance(end, float) and 0 <= end < math.inf for end in column.log)
        return column.kind == "number" and is_log and sum(column.log) > 0
    if not column.coded:
        return column.kind == "number"
    texts = all(isinstance(level, str | int | float) for level in column.levels)
    indices = np.arange(len(column.levels))
    return texts and len(set(column.levels)) == len(indices) > 0 and bool(np.isin(values, indices).all())


def _find_faults(rows: Rows, bandwidth: Array, content: dict[str, Any]) -> list[str]:
    """Return messages about invalid rows, bandwidths, names or history."""
    x, y, weight, columns, metric, folds, _, surface = rows
    if x.ndim != 2 or 0 in x.shape or x.dtype not in _DTYPES:
        return [f"X_train_: got {describe(x)}; expected float32 or float64 (rows, features), not empty"]
    count, size = x.shape
    fits = len(columns) in (0, size) and all(map(_is_column, columns, x.T))
    faults = [] if fits else [_BAD_COLUMNS.format(reprlib.repr(content["columns"]))]
    is_rate = [column.is_category for column in columns] or [False] * size
    if metric is not None:
        coded = [column.is_category for column in columns if column.coded]
        if metric.ndim != 2 or len(metric) != size - len(coded) or metric.dtype != np.float64 or not metric.size:
            return [*faults, f"{_METRIC}: got {describe(metric)}; expected float64 ({size - len(coded)}, directions)"]
        is_rate = [False] * metric.shape[1] + coded
    if y.shape not in ((count,), (count, *y.shape[1:2])) or 0 in y.shape or y.dtype != np.float64:
        faults.append(f"y_train_: got {describe(y)}; expected float64 ({count},) or ({count}, outputs)")
    layouts = {"sample_weight_": f"{x.dtype} ({count},)", "bandwidth_": f"float64 ({len(is_rate)},)"}
    faults += misfits(layouts, {"sample_weight_": describe(weight), "bandwidth_": describe(bandwidth)})
    if folds is not None and not (
        folds.dtype == np.int8 and folds.shape[1:] == (count,) and np.isin(folds, (0, 1, 2)).all()
    ):
        faults.append(f"{_FOLDS}: got {describe(folds)}; expected int8 (folds, {count}) of 0, 1 and 2")
    if surface is not None:
        numbers = size - sum(column.coded for column in columns)
        is_surface = surface.shape == (4 + numbers, numbers) and surface.dtype == np.float64
        if not is_surface or not (surface[1] > 0).all() or not np.isin(surface[4:], (0, 1)).all():
            faults.append(
                f"{_SURFACE}: got {describe(surface)}; expected float64 ({4 + numbers}, {numbers}), positive in row 1, "
                "and 0 or 1 from row 4 on"
            )
    optional = {name: array for name, array in ((_METRIC, metric), (_SURFACE, surface)) if array is not None}
    finite = {"X_train_": x, "y_train_": y, "sample_weight_": weight} | optional
    infinite = [name for name, array in finite.items() if not np.isfinite(array).all()]
    faults += [f"{name}: got NaN or infinity; expected finite numbers" for name in infinite]
    if not (weight >= 0).all() or not weight.any():
        faults.append("sample_weight_: got negative numbers, or only zeros; expected at least one positive number")
    low, high = (np.where(is_rate, *ends) for ends in ((0, np.finfo(x.dtype).tiny), (1, np.finfo(x.dtype).max)))
    if bandwidth.shape == low.shape and not ((bandwidth >= low) & (bandwidth <= high)).all():
        faults.append(f"bandwidth_: got {reprlib.repr(bandwidth.tolist())}; expected positive and finite in {x.dtype}")
    names, feature_count = content["feature_names"], size - sum(column.is_gap for column in columns)
    if names is not None and (len(names) != feature_count or not all(isinstance(name, str) for name in names)):
        faults.append(f"feature_names: got {reprlib.repr(names)}; expected {feature_count} texts")
    if not all(_is_step(step, len(is_rate)) for step in content["history"]):
        faults.append("history: got an invalid entry; expected bandwidths and errors")
    return faults


def _is_step(step: Any, size: int) -> bool:
    if not isinstance(step, dict) or step.keys() != {"bandwidth", "error"} or not isinstance(step["bandwidth"], list):
        return False
    numbers = [*step["bandwidth"], step["error"]]
    return len(numbers) == size + 1 and all(isinstance(number, float) for number in numbers)
