"""Fitted estimators in a file: one `.safetensors`, whole or not at all, loaded without unpickling anything."""

from __future__ import annotations

import json
import math
import os
import reprlib
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dikkat.errors import InputError
from dikkat.regression.columns import Column
from dikkat.regression.joined import Rows
from dikkat.storage.files import write_whole
from dikkat.storage.headers import check_header, header
from dikkat.storage.tensors import described, misfits

Array = NDArray[Any]

FORMAT = "dikkat kernel regression"
VERSION = 10

_KEY = "dikkat"  # the metadata key; metadata hold texts alone, so its value is JSON
_TENSORS = ("X_train_", "y_train_", "sample_weight_", "bandwidth_")
_FOLDS, _METRIC = "folds_", "metric_"  # of models with `cv`, or a learned metric, alone
_DTYPES = (np.dtype(np.float64), np.dtype(np.float32))


class Saved(NamedTuple):
    """The content of a file: arrays are tensors, the rest is JSON, under the names of the estimator's attributes."""

    settings: dict[str, Any]
    rows: Rows
    bandwidth: Array
    feature_names: list[str] | None
    history: list[Any]
    ridge: float
    target: str | None


def write(path: str | os.PathLike[str], saved: Saved) -> None:
    """Write a file, whole or not at all."""
    from safetensors.numpy import save

    arrays = saved.rows[:3]
    content = header(FORMAT, VERSION) | saved._asdict() | {"columns": [each._asdict() for each in saved.rows.columns]}
    del content["rows"], content["bandwidth"]
    tensors = dict(zip(_TENSORS, map(np.ascontiguousarray, (*arrays, saved.bandwidth)), strict=True))
    for name, array in ((_FOLDS, saved.rows.folds), (_METRIC, saved.rows.metric)):
        if array is not None:
            tensors[name] = np.ascontiguousarray(array)
    write_whole(path, save(tensors, metadata={_KEY: json.dumps(content, allow_nan=False)}))


def read(path: str | os.PathLike[str], known: dict[str, Any]) -> Saved:
    """Read what `write` wrote, after checking everything but the settings' values."""
    path = Path(path)
    metadata, tensors = _read(path)
    folds, metric = tensors.pop(_FOLDS, None), tensors.pop(_METRIC, None)
    content = _content(path, metadata)
    if content["settings"].keys() != known.keys():
        raise InputError(
            f"{path}: got the settings {', '.join(sorted(content['settings']))}; expected {', '.join(known)}"
        )
    if faults := _misfits(tensors, content["feature_names"], content.get("columns"), metric):
        raise InputError(f"{path}: {'; '.join(faults)}. Save the model again")
    if not all(_is_step(step, len(tensors["bandwidth_"])) for step in content["history"]):
        raise InputError(f"{path}: its history is not one of bandwidths and errors. Save the model again")
    x, y, weight, bandwidth = (tensors[name] for name in _TENSORS)
    rows = Rows(x, y, weight, _columns(path, content.get("columns"), x), metric, folds)
    if folds is not None and not (
        folds.dtype == np.int8 and folds.shape[1:] == (len(x),) and np.isin(folds, (0, 1, 2)).all()
    ):
        raise InputError(f"{path}: {_FOLDS}: got {described(folds)}; expected int8 (folds, {len(x)}) of 0, 1 and 2")
    others = {name: content[name] for name in ("settings", "feature_names", "history", "ridge", "target")}
    return Saved(rows=rows, bandwidth=bandwidth, **others)


def _read(path: Path) -> tuple[dict[str, str], dict[str, Array]]:
    """Metadata and tensors."""
    from safetensors import SafetensorError, safe_open

    path.stat()  # whose errors name the file
    try:
        with safe_open(path, framework="numpy") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, TypeError) as error:  # TypeError: a dtype that NumPy has not
        raise InputError(f"{path}: truncated, damaged, or not a safetensors file ({error})") from error


def _content(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    """All but the tensors."""
    try:
        content = json.loads(metadata.get(_KEY, "null"))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: its metadata are not JSON ({error}). Save the model again") from error
    try:
        check_header(content, FORMAT, (VERSION,), "fit again")
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    settings, names, history = (content.get(name) for name in ("settings", "feature_names", "history"))
    if not (isinstance(settings, dict) and isinstance(names, list | None) and isinstance(history, list)):
        raise InputError(f"{path}: settings, feature_names or history are missing or not what they should be")
    ridge = content.get("ridge", "nothing")
    if not isinstance(ridge, float) or not 0 <= ridge < math.inf:
        raise InputError(f"{path}: ridge: got {reprlib.repr(ridge)}; expected a number of at least 0")
    if not isinstance(content.get("target", 0), str | None):
        got = reprlib.repr(content["target"]) if "target" in content else "nothing"
        raise InputError(f"{path}: target: got {got}; expected a name, or none")
    return cast(dict[str, Any], content)


def _columns(path: Path, saved: object, x: Array) -> tuple[Column, ...]:
    """The kinds of the columns, checked against the rows."""
    if saved == []:
        return ()
    try:
        columns = tuple(
            Column(each["kind"], tuple(each["levels"]), each["origin"]) for each in cast(list[dict[str, Any]], saved)
        )
        faults = [j for j, column in enumerate(columns) if not _is_column(column, x[:, j])]
    except (TypeError, KeyError, IndexError, AttributeError):
        columns, faults = (), [0]
    if faults or len(columns) != x.shape[1]:
        raise InputError(f"{path}: columns: got {reprlib.repr(saved)}; expected what each column of X_train_ is")
    return columns


def _is_column(column: Column, values: Array) -> bool:
    if column.kind == "date":
        try:
            return not np.isnat(np.datetime64(column.origin))
        except (TypeError, ValueError):
            return False
    if column.kind == "periodic":
        return len(column.levels) == 1 and isinstance(column.levels[0], float) and 0 < column.levels[0] < math.inf
    if not column.coded:
        return column.kind == "number"
    texts = all(isinstance(level, str | int | float) for level in column.levels)
    indices = np.arange(len(column.levels))
    return texts and len(set(column.levels)) == len(indices) > 0 and bool(np.isin(values, indices).all())


def _misfits(tensors: dict[str, Array], names: list[str] | None, columns: object, metric: Array | None) -> list[str]:
    """The faults of the tensors, one by one and together."""
    if faults := misfits(dict.fromkeys(_TENSORS, "a tensor"), dict.fromkeys(tensors, "a tensor")):
        return faults
    x, y, weight, bandwidth = (tensors[name] for name in _TENSORS)
    if x.ndim != 2 or 0 in x.shape or x.dtype not in _DTYPES:
        return [f"X_train_: got {described(x)}; expected float32 or float64 (rows, features), with some of both"]
    rows, size = x.shape
    if y.shape not in ((rows,), (rows, *y.shape[1:2])) or 0 in y.shape or y.dtype != np.float64:
        faults.append(f"y_train_: got {described(y)}; expected float64 ({rows},) or ({rows}, outputs)")
    kinds = np.full(size, "number", object)
    if isinstance(columns, list) and len(columns) == size:
        kinds = np.array([each.get("kind") if isinstance(each, dict) else None for each in columns], object)
    numbers, coded = np.isin(kinds, ("number", "date")), np.isin(kinds, ("category", "ordered"))
    if metric is not None:
        count = int(numbers.sum())
        if metric.shape[:1] != (count,) or metric.ndim != 2 or metric.dtype != np.float64 or not metric.size:
            return [*faults, f"{_METRIC}: got {described(metric)}; expected float64 ({count}, directions)"]
        faults += [f"{_METRIC} is not finite"] * (not np.isfinite(metric).all())
        coded = np.append(np.zeros(metric.shape[1], bool), coded[~numbers])
    expected = {"sample_weight_": f"{x.dtype} ({rows},)", "bandwidth_": f"float64 ({len(coded)},)"}
    faults += misfits(expected, {name: described(tensors[name]) for name in expected})
    every = columns if isinstance(columns, list) else []
    gaps = sum(isinstance(each, dict) and each.get("kind") == "category" and bool(each.get("origin")) for each in every)
    if names is not None and (len(names) != size - gaps or not all(isinstance(name, str) for name in names)):
        faults.append(f"feature_names: got {reprlib.repr(names)}; expected {size - gaps} texts")
    faults += [f"{name} is not finite" for name in _TENSORS[:3] if not np.isfinite(tensors[name]).all()]
    if not (weight >= 0).all() or not weight.any():
        faults.append(
            "sample_weight_: got negative numbers, or zeros alone; expected at least 0, and positive somewhere"
        )
    limits = np.finfo(x.dtype)
    if bandwidth.shape != coded.shape:
        return faults
    fits = (bandwidth >= limits.tiny) & (bandwidth <= limits.max)
    if not np.where(coded, (bandwidth >= 0) & (bandwidth <= 1), fits & (bandwidth > 0)).all():
        faults.append(f"bandwidth_: got {reprlib.repr(bandwidth.tolist())}; expected positive and finite in {x.dtype}")
    return faults


def _is_step(step: Any, size: int) -> bool:
    if not isinstance(step, dict) or step.keys() != {"bandwidth", "error"} or not isinstance(step["bandwidth"], list):
        return False
    numbers = [*step["bandwidth"], step["error"]]
    return len(numbers) == size + 1 and all(isinstance(number, float) for number in numbers)
