"""Model folders: weights, settings and tokenizers, saved whole or not at all, loaded without unpickling anything."""

import json
import os
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dikkat.errors import InputError
from dikkat.storage.files import parse_json, read_regular
from dikkat.storage.folders import SUMS, check_free, digest, parse_sums, recover, set_aside, write_folder
from dikkat.storage.headers import check_header, header
from dikkat.storage.int8 import Rows, dequantized, quantized
from dikkat.storage.tensors import described, joined, misfits
from dikkat.translation.errors import ModelFolderError, SettingsError
from dikkat.translation.formats.origin import Origin
from dikkat.translation.network.model import TranslationModel
from dikkat.translation.settings import Settings
from dikkat.translation.text.slots import NO_SLOTS, Slots
from dikkat.translation.text.tokenizer import LARGEST as LARGEST_TOKENIZER
from dikkat.translation.text.tokenizer import Tokenizer

FORMAT = "dikkat translator"
VERSION = 2
_QUANTIZED = 3  # of folders with weights in int8

SCALES = ".scales"
"""The suffix of an int8 matrix's name that names its rows' scales."""
WEIGHTS, SETTINGS = "model.safetensors", "settings.json"
SOURCE, TARGET = "source.tokenizer.json", "target.tokenizer.json"
FILES = (WEIGHTS, SETTINGS, SOURCE, TARGET)
"""The files of a model folder, beside their sums."""

_LARGEST_TEXT = 1 << 20  # bytes of settings, of sums, and of the header of the weights

_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "int8"}  # as safetensors says


def check_replaceable(folder: Path) -> None:
    """Refuse a place for a model that is no free name, empty folder, or model folder and nothing else."""
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.resolve() == Path.cwd():
        raise ModelFolderError(f"{folder}: the current folder, which cannot be exchanged. Give the name of one in it")
    if folder.is_symlink():
        raise ModelFolderError(f"{folder}: got a link; expected a folder, or a free name. Give what it leads to")
    if not folder.is_dir():
        raise ModelFolderError(f"{folder}: not a folder, so no model can be saved there. Give another name")
    others = sorted({entry.name for entry in folder.iterdir()} - {*FILES, SUMS})
    if others:
        raise ModelFolderError(
            f"{folder}: holds {', '.join(others[:3])}{' …' if others[3:] else ''}, which would be lost. Give another "
            "name, or an empty folder"
        )


def check_writable(folder: Path) -> None:
    """Try out, before the work, that a model can be saved in a place."""
    check_replaceable(folder)
    try:
        check_free(absolute(folder))
    except OSError as error:
        raise ModelFolderError(
            f"{folder}: no model can be saved there ({error.strerror}). Give another name"
        ) from error


class Contents(NamedTuple):
    """The contents of a model folder; the model is on any device and of any dtype."""

    model: TranslationModel
    settings: Settings
    source: Tokenizer
    target: Tokenizer
    origin: Origin | None = None
    slots: Slots = NO_SLOTS


def write(folder: str | Path, contents: Contents, *, int8: bool = False) -> None:
    """Save a model folder whole or not at all.

    The files are written to a new folder beside it and flushed to the disk; then that takes the name. If the system
    stops between the two renames that this takes, the next `load` finds the older model, and the next `write` puts it
    back. The weights get the dtypes that `TranslationModel` gives them.

    Raises:
        ModelFolderError: Something else than a model is there, or the weights are not of these settings or not finite.
        OSError: The system could not write; the message says that nothing was saved, and an older model is untouched.
    """
    folder = absolute(Path(folder))
    files = content(contents, int8=int8, where=folder)
    recover(folder)
    check_replaceable(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_folder(folder, files, replace=True)
    except OSError as error:
        older = "; the older model there is as it was" if folder.exists() else ""
        raise OSError(error.errno, f"the model was not saved: {error.strerror}{older}", str(folder)) from error


def content(contents: Contents, *, int8: bool, where: Path) -> dict[str, bytes]:
    """The files of a model folder by their names, after checking the weights; errors name `where`."""
    expected = _skeleton(contents.settings, contents.source, contents.target).state_dict()
    weights = {
        name: tensor.detach().to("cpu", expected[name].dtype if name in expected else tensor.dtype).contiguous()
        for name, tensor in contents.model.state_dict().items()
    }
    _check_names(expected, {name: described(tensor) for name, tensor in weights.items()}, where)
    _check_finite(weights, where)
    if int8:
        weights = _in_int8(weights, quantized)
    settings = {**header(FORMAT, _QUANTIZED if int8 else VERSION), "settings": contents.settings.to_dict()}
    if contents.origin is not None:
        settings["origin"] = contents.origin.to_dict()
    if contents.slots.most or contents.slots.shapes:
        settings["slots"] = contents.slots.to_dict()
    return {
        WEIGHTS: dump_tensors(weights, metadata={"format": "pt"}),
        SETTINGS: (json.dumps(settings, indent=2) + "\n").encode(),
        SOURCE: contents.source.to_json().encode(),
        TARGET: contents.target.to_json().encode(),
    }


def load(folder: str | Path) -> Contents:
    """Load a model folder onto the CPU, after checking everything in it; a model of int8 weights does not learn.

    Raises:
        ModelFolderError: No such folder; a file missing, truncated, damaged, far too large, or no regular file; another
            version; a tensor missing, too many or of another shape.
    """
    folder = Path(folder)
    if not folder.exists() and (old := set_aside(absolute(folder))).is_dir():
        folder = old  # a save was stopped between its two renames, or is there now
    if not folder.is_dir():
        raise ModelFolderError(f"{folder}: no such model folder. `dikkat train --output {folder}` makes one")
    settings, origin, slots, sums, int8 = _load_settings(folder)
    source, target = (_load_tokenizer(folder / name, sums) for name in (SOURCE, TARGET))
    try:
        model = _skeleton(settings, source, target)
    except SettingsError as error:
        raise ModelFolderError(f"{folder}: {error}") from error
    expected = model.state_dict()
    stored = _in_int8(expected, _placeholder) if int8 else expected
    tensors = _load_tensors(folder / WEIGHTS, stored, sums)
    _check_finite(tensors, folder / WEIGHTS)
    if int8:
        tensors = _from_int8(tensors)
    model.load_state_dict(tensors, assign=True)
    return Contents(model.eval().requires_grad_(not int8), settings, source, target, origin, slots)


def _skeleton(settings: Settings, source: Tokenizer, target: Tokenizer) -> TranslationModel:
    """The network on the meta device: a stranger's settings reserve no memory before the weights agree with them."""
    with torch.device("meta"), _NoInitialValues():
        return TranslationModel(settings, len(source), len(target))


class _NoInitialValues(TorchFunctionMode):
    """A mode that skips initial values: on the meta device, filling weights would import the compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func.__name__ in ("normal_", "uniform_", "zero_", "fill_"):
            return args[0] if args else named["tensor"]
        return func(*args, **named)


def absolute(folder: Path) -> Path:
    """The path from the root, links as they are."""
    return Path(os.path.abspath(folder))  # noqa: PTH100  (resolve() would follow a link that must not be replaced)


# --- weights in int8


def _in_int8(weights: Mapping[str, Tensor], rows_of: Callable[[Tensor], Rows]) -> dict[str, Tensor]:
    """The tensors of a folder in int8: of matrices with several rows, and under a second name the rows' scales."""
    stored = dict(weights)
    for name, tensor in weights.items():
        if tensor.ndim == 2 and len(tensor) > 1:
            numbers, scales = rows_of(tensor)
            stored |= {name: numbers.contiguous(), name + SCALES: scales.contiguous()}
    return stored


def _placeholder(tensor: Tensor) -> Rows:
    return Rows(tensor.to(torch.int8), tensor.new_empty(len(tensor), dtype=torch.float32))


def _from_int8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: dequantized(Rows(tensor, tensors[name + SCALES])) if tensor.dtype == torch.int8 else tensor
        for name, tensor in tensors.items()
        if not name.endswith(SCALES)
    }


# --- reading


def _load_settings(folder: Path) -> tuple[Settings, Origin | None, Slots, dict[str, str], bool]:
    path = folder / SETTINGS
    data = _bytes(path, _LARGEST_TEXT)
    try:
        content = parse_json(data)
    except ValueError as error:
        raise ModelFolderError(f"{path}: truncated or not JSON ({error}). Save the model again") from error
    try:
        check_header(content, FORMAT, (VERSION, _QUANTIZED), "train again")
    except ValueError as error:
        raise ModelFolderError(f"{path}: {error}") from error
    if unknown := sorted(content.keys() - {"format", "version", "settings", "origin", "slots"}):
        raise ModelFolderError(f"{path}: {reprlib.repr(unknown[0])} is not expected. Save the model again")
    sums = _load_sums(folder / SUMS)
    _check_sum(path, data, sums)
    for part in ("settings", "origin"):
        if not isinstance(content.get(part, None if part == "settings" else {}), dict):
            raise ModelFolderError(f'{path}: "{part}" is missing or not an object. Save the model again')
    try:
        origin = Origin.from_dict(content["origin"]) if "origin" in content else None
        settings, int8 = Settings.from_dict(content["settings"]), content["version"] == _QUANTIZED
        slots = Slots.from_dict(content["slots"]) if "slots" in content else NO_SLOTS
        return settings, origin, slots, sums, int8
    except (SettingsError, ModelFolderError, ValueError) as error:
        raise ModelFolderError(f"{path}: {error}") from error


def _load_sums(path: Path) -> dict[str, str]:
    data = _bytes(path, _LARGEST_TEXT)
    try:
        sums = parse_sums(data)
    except ValueError as error:
        raise ModelFolderError(f"{path}: not a list of SHA-256 sums ({error}). Copy the folder again") from error
    if set(sums) != set(FILES):
        raise ModelFolderError(
            f"{path}: lacks the sum of a file of a model, or has one too many. Copy the folder again"
        )
    return sums


def _check_sum(path: Path, data: bytes, sums: Mapping[str, str]) -> None:
    if sums[path.name] != digest(data):
        raise ModelFolderError(f"{path}: damaged: its checksum differs from {SUMS}. Copy the folder again")


def _load_tokenizer(path: Path, sums: Mapping[str, str]) -> Tokenizer:
    data = _bytes(path, LARGEST_TOKENIZER)
    _check_sum(path, data, sums)
    return Tokenizer.from_json(data, str(path))


def _load_tensors(path: Path, expected: Mapping[str, Tensor], sums: Mapping[str, str]) -> dict[str, Tensor]:
    most = sum(each.numel() * each.itemsize for each in expected.values()) + _LARGEST_TEXT
    head = _bytes(path, most, first=_LARGEST_TEXT)
    _check_weights_header(expected, head, path)
    data = _bytes(path, most)
    _check_sum(path, data, sums)
    try:
        return load_tensors(data)
    except Exception as error:  # the library raises nothing narrower for all that can be wrong
        raise ModelFolderError(f"{path}: truncated or damaged ({error}). Copy the folder again") from error


def _check_weights_header(expected: Mapping[str, Tensor], head: bytes, path: Path) -> None:
    """Compare the header of the weights with what is expected, before reading gigabytes of them."""
    try:
        said = parse_json(head[8 : 8 + int.from_bytes(head[:8], "little")])
        stored = {
            name: f"{_TYPES.get(entry['dtype'], entry['dtype'])} {tuple(entry['shape'])}"
            for name, entry in said.items()
            if name != "__metadata__"
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelFolderError(f"{path}: truncated or damaged ({error}). Copy the folder again") from error
    _check_names(expected, stored, path)


def _bytes(path: Path, most: int, first: int | None = None) -> bytes:
    try:
        return read_regular(path, most=most, first=first)
    except FileNotFoundError:
        raise ModelFolderError(
            f"{path}: missing. {path.parent} is not a model folder of dikkat's, or incomplete"
        ) from None
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read ({error.strerror})") from error
    except InputError as error:
        raise ModelFolderError(str(error)) from error


def _check_names(expected: Mapping[str, Tensor], found: Mapping[str, str], path: Path) -> None:
    """Check names, dtypes and shapes; of what was found, as `described` says them."""
    if faults := misfits({name: described(tensor) for name, tensor in expected.items()}, found):
        raise ModelFolderError(
            f"{path}: {joined(faults)}. The weights belong to other settings or vocabularies: take all files from one "
            "model"
        )


def _check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    if faults := [f"{name}: got values that are not finite" for name in tensors if not tensors[name].isfinite().all()]:
        raise ModelFolderError(f"{path}: {joined(faults)}. Train again, with a lower learning_rate")
