"""Fitted estimators in a file: one `.safetensors`, whole or not at all, loaded without unpickling anything."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dikkat.errors import InputError
from dikkat.storage.files import write_whole
from dikkat.storage.headers import check_header, header
from dikkat.storage.tensors import described, misfits

if TYPE_CHECKING:
    from dikkat.regression.estimator import NadarayaWatson

__all__ = ["load", "save"]

Array = NDArray[Any]
Estimator = TypeVar("Estimator", bound="NadarayaWatson")

FORMAT = "dikkat kernel regression"
VERSION = 1

_KEY = "dikkat"  # of the metadata, which hold texts alone: this one is JSON
_TENSORS = ("X_train_", "y_train_", "sample_weight_", "bandwidth_")
_DTYPES = (np.dtype(np.float64), np.dtype(np.float32))


def save(estimator: NadarayaWatson, path: str | os.PathLike[str]) -> None:
    """Save a fitted estimator in one file, whole or not at all.

    It has the training rows, their weights and the bandwidth as tensors `X_train_`, `y_train_`, `sample_weight_` and
    `bandwidth_`; and as JSON in its metadata the settings, the names of the features and the history of the bandwidth.

    Args:
        estimator: Fitted.
        path: The file; its folder must exist, and a file there is replaced.

    Raises:
        NotFittedError: It is not fitted.
        ValueError: A setting that is not allowed, which `load` would refuse.
        OSError: The system could not write.

    Example:
        >>> import tempfile
        >>> from dikkat.regression import NadarayaWatson
        >>> path = Path(tempfile.mkdtemp()) / "model.safetensors"
        >>> save(NadarayaWatson(bandwidth=0.5).fit([[0.0], [1.0]], [2.0, 3.0]), path)
        >>> load(path, NadarayaWatson).predict([[0.5]])
        array([2.5])
    """
    from safetensors.numpy import save as dump
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)
    estimator._check_saved_settings()
    names = getattr(estimator, "feature_names_in_", None)
    content = {
        **header(FORMAT, VERSION),
        "settings": _settings(estimator),
        "feature_names": None if names is None else list(names),
        "history": estimator.history_,
    }
    tensors = {name: np.ascontiguousarray(getattr(estimator, name)) for name in _TENSORS}
    write_whole(path, dump(tensors, metadata={_KEY: json.dumps(content, allow_nan=False)}))


def load(path: str | os.PathLike[str], kind: type[Estimator]) -> Estimator:
    """Load an estimator, after checking everything in its file.

    Args:
        path: What `save` wrote.
        kind: Its class, `NadarayaWatson` or one that is derived from it.

    Returns:
        An estimator of that class, which answers as the one that was saved, and goes on with `partial_fit`. It computes
        on the CPU, since the device on which it was fitted may not be here; `set_params(device=...)` moves it.

    Raises:
        InputError: The file is truncated, damaged or not of this kind; of a newer version; a tensor is missing, too
            many, or does not fit the others; a setting is not known or not allowed.
        OSError: The system could not read.
    """
    path = Path(path)
    content, tensors = _read(path)
    settings, names, history = _content(path, content)
    known = _settings(kind())
    if settings.keys() != known.keys():
        raise InputError(f"{path}: has the settings {', '.join(sorted(settings))}; expected are {', '.join(known)}")
    if faults := _misfits(tensors, names, settings["kernel"]):
        raise InputError(f"{path}: {'; '.join(faults)}. Save the model again")
    if not all(_is_step(step, tensors["X_train_"].shape[1]) for step in history):
        raise InputError(f"{path}: its history is not one of bandwidths and errors. Save the model again")
    model = kind(**settings)
    try:
        model._check_settings()
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    return _restored(model, tensors, names, history)


def _restored(model: Estimator, tensors: dict[str, Array], names: list[str] | None, history: list[Any]) -> Estimator:
    """The estimator with what it had learned, the way that unpickling gives it back."""
    y = tensors["y_train_"]
    learned = {**tensors, "history_": history, "n_outputs_": 1 if y.ndim == 1 else y.shape[1]}
    learned |= {"kernel_": model.kernel, "order_": model.order}
    learned["n_features_in_"] = tensors["X_train_"].shape[1]
    if names is not None:
        learned["feature_names_in_"] = np.array(names, dtype=object)
    model.__setstate__({**vars(model), **learned})
    return model


def _settings(estimator: NadarayaWatson) -> dict[str, Any]:
    """The settings as JSON has them, of a fitted one those that its answers have; not the device, the machine's own."""
    settings: dict[str, Any] = estimator.get_params()
    del settings["device"]
    settings |= {name: getattr(estimator, f"{name}_", settings[name]) for name in ("kernel", "order")}
    settings["tolerance"] = float(settings["tolerance"])
    if not isinstance(settings["bandwidth"], str):
        settings["bandwidth"] = np.asarray(settings["bandwidth"], np.float64).tolist()
    return settings


def _read(path: Path) -> tuple[dict[str, str], dict[str, Array]]:
    """Metadata and tensors."""
    from safetensors import SafetensorError, safe_open

    path.stat()  # whose errors name the file
    try:
        with safe_open(path, framework="numpy") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, TypeError) as error:  # TypeError: a dtype that NumPy has not
        raise InputError(f"{path}: truncated, damaged, or not a safetensors file ({error})") from error


def _content(path: Path, metadata: dict[str, str]) -> tuple[dict[str, Any], list[str] | None, list[Any]]:
    """Settings, names of features, history."""
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
    return settings, names, history


def _misfits(tensors: dict[str, Array], names: list[str] | None, kernel: object) -> list[str]:
    """What is wrong with the tensors, or between them."""
    if faults := misfits(dict.fromkeys(_TENSORS, "a tensor"), dict.fromkeys(tensors, "a tensor")):
        return faults
    x, y, weight, bandwidth = (tensors[name] for name in _TENSORS)
    if x.ndim != 2 or 0 in x.shape or x.dtype not in _DTYPES:
        return [f"X_train_ is {described(x)} and must be (rows, features) in float32 or float64, with some of both"]
    rows, size = x.shape
    if y.shape not in ((rows,), (rows, *y.shape[1:2])) or 0 in y.shape or y.dtype != np.float64:
        faults.append(f"y_train_ is {described(y)} and must be float64 ({rows},) or ({rows}, outputs)")
    if weight.shape != (rows,) or weight.dtype != x.dtype:
        faults.append(f"sample_weight_ is {described(weight)} and must be {x.dtype} ({rows},)")
    if bandwidth.shape != (size,) or bandwidth.dtype != np.float64:
        faults.append(f"bandwidth_ is {described(bandwidth)} and must be float64 ({size},)")
    if names is not None and (len(names) != size or not all(isinstance(name, str) for name in names)):
        faults.append(f"feature_names must be {size} texts")
    faults += [f"{name} is not finite" for name in _TENSORS[:3] if not np.isfinite(tensors[name]).all()]
    if not (weight >= 0).all() or not weight.any():
        faults.append("sample_weight_ must be at least 0, and positive somewhere")
    limits = np.finfo(x.dtype)
    fits = np.isinf(bandwidth) if kernel == "average" else (bandwidth >= limits.tiny) & (bandwidth <= limits.max)
    if not (fits & (bandwidth > 0)).all():
        faults.append(f"bandwidth_ must be positive and finite in {x.dtype}, or infinite for the kernel 'average'")
    return faults


def _is_step(step: Any, size: int) -> bool:
    """Whether an entry of the history is one."""
    if not isinstance(step, dict) or step.keys() != {"bandwidth", "error"} or not isinstance(step["bandwidth"], list):
        return False
    numbers = [*step["bandwidth"], step["error"]]
    return len(numbers) == size + 1 and all(isinstance(number, float) for number in numbers)
