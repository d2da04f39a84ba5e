"""Model folders: weights, settings and tokenizers, saved atomically and loaded without unpickling."""

import json
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from dikkat.storage.locks import locked
from dikkat.storage.tensors import describe, joined, misfits
from dikkat.translation.confidence import ConfidenceModel
from dikkat.translation.errors import ModelFolderError, SettingsError
from dikkat.translation.formats.origin import Origin
from dikkat.translation.memory import pair_memory
from dikkat.translation.memory.pair_memory import PairMemory
from dikkat.translation.network.model import TranslationModel
from dikkat.translation.settings import Settings
from dikkat.translation.text.slots import NO_SLOTS, Slots
from dikkat.translation.text.tokenizer import LARGEST as LARGEST_TOKENIZER
from dikkat.translation.text.tokenizer import Tokenizer

FORMAT = "dikkat translator"
VERSION = 2
_INT8_VERSION = 3

SCALES = ".scales"
"""The suffix that makes an int8 matrix's name the name of its rows' scales."""
WEIGHTS, SETTINGS = "model.safetensors", "settings.json"
SOURCE, TARGET = "source.tokenizer.json", "target.tokenizer.json"
MEMORY = "memory.safetensors"
"""The file of the bandwidth and the stored pairs, if there are any."""
_REQUIRED = (WEIGHTS, SETTINGS, SOURCE, TARGET)
FILES = (*_REQUIRED, MEMORY)
"""The files of a model folder, without the file of their checksums."""
_MODEL = "model"  # tensor of a memory file: the checksum of its model's weights

_LARGEST_TEXT = 1 << 20  # bytes of settings, of checksums, and of the header of the weights

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "int8"}  # of safetensors


def check_replaceable(folder: Path) -> None:
    """Raise `ModelFolderError` unless the name is free, an empty folder, or a folder with only a model's files."""
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.resolve() == Path.cwd():
        raise ModelFolderError(f"{folder}: got the current folder, which cannot be replaced. Choose a folder inside it")
    if folder.is_symlink():
        raise ModelFolderError(f"{folder}: got a link; expected a folder or a new path. Give the link's target")
    if not folder.is_dir():
        raise ModelFolderError(f"{folder}: got a file; expected a folder or a new path. Choose another path")
    extras = sorted({entry.name for entry in folder.iterdir()} - {*FILES, SUMS})
    if extras:
        raise ModelFolderError(
            f"{folder}: has {', '.join(extras[:3])}{' …' if extras[3:] else ''}, which would be lost. Choose another "
            "path, or an empty folder"
        )


def check_writable(folder: Path, *, overwrite: bool, advice: str = "") -> None:
    """Check before the work that a model can be saved as `folder`; `advice` is the end of the error about a model."""
    check_replaceable(folder)
    if not overwrite and folder.exists() and any(folder.iterdir()):
        raise ModelFolderError(
            f"{folder}: already has a model. Choose another folder, or add --overwrite to replace it{advice}"
        )
    try:
        check_free(absolute(folder))
    except OSError as error:
        raise ModelFolderError(
            f"{folder}: cannot save a model there ({error.strerror}). Choose another folder"
        ) from error


class Contents(NamedTuple):
    """The contents of a model folder; the model may be on any device and of any dtype."""

    model: TranslationModel
    settings: Settings
    source: Tokenizer
    target: Tokenizer
    origin: Origin | None = None
    slots: Slots = NO_SLOTS
    confidence: ConfidenceModel | None = None
    memory: PairMemory | None = None


def write(folder: str | Path, contents: Contents, *, int8: bool = False) -> None:
    """Save a model folder atomically.

    The files are written to a new folder next to `folder` and flushed to the disk; then two renames exchange the
    folders. If the system stops between the renames, the next `load` finds the older model, and the next `write`
    restores it. The weights get the dtypes of `TranslationModel`.

    Raises:
        ModelFolderError: `folder` has other files than a model's, or the weights do not fit the settings or are not
            finite.
        OSError: The system could not write. Nothing was saved, and an older model is unchanged.
    """
    folder = absolute(Path(folder))
    files = content(contents, int8=int8, where=folder)
    with _writing(folder):
        write_folder(folder, files, replace=True)


def read_sums(folder: str | Path) -> dict[str, str]:
    """Return the checksums of a model folder's files by name, for `write_memory`; read them before `load`.

    Raises:
        ModelFolderError: The folder or its list of checksums is missing or damaged.
    """
    return _load_sums(_find_folder(Path(folder)) / SUMS)


def write_memory(folder: str | Path, memory: PairMemory, sums: Mapping[str, str]) -> None:
    """Replace the stored pairs of a model folder atomically; the other files stay the same.

    Args:
        folder: The path.
        memory: The pairs to store, with states of the folder's weights.
        sums: The checksums of the folder's files when the model was loaded, from `read_sums`.

    Raises:
        ModelFolderError: A file is missing, cannot be read, or has changed since the model was loaded.
        OSError: The system could not write; the older model is unchanged.
    """
    folder = absolute(Path(folder))
    with _writing(folder):
        if _load_sums(folder / SUMS) != sums:
            raise ModelFolderError(f"{folder}: another program changed the model since it was loaded. Correct it again")
        files = {name: _read_bytes(folder / name, LARGEST_TOKENIZER) for name in _REQUIRED if name != WEIGHTS}
        files = {WEIGHTS: _read_bytes(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size), **files}
        for name, data in files.items():
            _check_sum(folder / name, data, sums)
        write_folder(folder, files | _memory_files(memory, files[WEIGHTS]), replace=True)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Let one process at a time check and replace a model folder."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(f".{folder.name}.lock"), wait=True):
            recover(folder)
            check_replaceable(folder)
            yield
    except OSError as error:
        older = "; the older model is unchanged" if folder.exists() else ""
        message = f"the model was not saved: {error.strerror} in {folder.parent}{older}"
        raise OSError(error.errno, message, str(folder)) from error


def _memory_files(memory: PairMemory | None, weights: bytes) -> dict[str, bytes]:
    if memory is None or memory.is_new:
        return {}
    tensors, metadata = memory.to_tensors()
    checksum = torch.frombuffer(bytearray.fromhex(digest(weights)), dtype=torch.uint8)
    data = dump_tensors(tensors | {_MODEL: checksum}, metadata=metadata)
    if len(data) > pair_memory.LARGEST:
        raise ModelFolderError(
            f"memory: got {len(data):,} bytes of corrections; expected at most {pair_memory.LARGEST:,}. Store fewer "
            "corrections, or let the model learn them with `dikkat train --from`"
        )
    return {MEMORY: data}


def content(contents: Contents, *, int8: bool, where: Path) -> dict[str, bytes]:
    """Return the files of a model folder by name, after checking the weights; errors name `where`."""
    expected = _skeleton(contents.settings, contents.source, contents.target).state_dict()
    weights = {
        name: tensor.detach().to("cpu", expected[name].dtype if name in expected else tensor.dtype).contiguous()
        for name, tensor in contents.model.state_dict().items()
    }
    _check_tensors(expected, {name: describe(tensor) for name, tensor in weights.items()}, where)
    _check_finite(weights, where)
    if int8:
        weights = _to_int8(weights, quantized)
    settings = {**header(FORMAT, _INT8_VERSION if int8 else VERSION), "settings": contents.settings.to_dict()}
    if contents.origin is not None:
        settings["origin"] = contents.origin.to_dict()
    if contents.slots.most or contents.slots.shapes:
        settings["slots"] = contents.slots.to_dict()
    if contents.confidence is not None:
        settings["confidence"] = contents.confidence.to_dict()
    weights_data = dump_tensors(weights, metadata={"format": "pt"})
    return {
        WEIGHTS: weights_data,
        SETTINGS: (json.dumps(settings, indent=2) + "\n").encode(),
        SOURCE: contents.source.to_json().encode(),
        TARGET: contents.target.to_json().encode(),
        **_memory_files(contents.memory, weights_data),
    }


def load(folder: str | Path) -> Contents:
    """Load a model folder onto the CPU, after checking all files; int8 weights are loaded without gradients.

    Raises:
        ModelFolderError: The folder is missing; a file is missing, truncated, damaged, too large, or not regular; the
            version is unknown; a tensor is missing, unexpected, or of another shape.
    """
    folder = _find_folder(Path(folder))
    settings, origin, slots, confidence, sums, int8 = _load_settings(folder)
    source, target = (_load_tokenizer(folder / name, sums) for name in (SOURCE, TARGET))
    try:
        model = _skeleton(settings, source, target)
    except SettingsError as error:
        raise ModelFolderError(f"{folder}: {error}") from error
    expected = model.state_dict()
    stored = _to_int8(expected, _placeholder) if int8 else expected
    tensors = _load_tensors(folder / WEIGHTS, stored, sums)
    _check_finite(tensors, folder / WEIGHTS)
    if int8:
        tensors = _from_int8(tensors)
    model.load_state_dict(tensors, assign=True)
    memory = _load_memory(folder / MEMORY, model, (len(source), len(target)), sums) if MEMORY in sums else None
    model = model.eval().requires_grad_(not int8)
    return Contents(model, settings, source, target, origin, slots, confidence, memory)


def _find_folder(folder: Path) -> Path:
    if not folder.exists() and (old := set_aside(absolute(folder))).is_dir():
        folder = old  # a save is, or was interrupted, between its two renames
    if not folder.is_dir():
        raise ModelFolderError(f"{folder}: model folder not found. `dikkat train --output {folder}` makes one")
    return folder


def _skeleton(settings: Settings, source: Tokenizer, target: Tokenizer) -> TranslationModel:
    """Return the network on the meta device: untrusted settings allocate no memory before the weights are checked."""
    with torch.device("meta"), _NoInitialValues():
        return TranslationModel(settings, len(source), len(target))


class _NoInitialValues(TorchFunctionMode):
    """Skips initial values: on the meta device, filling weights would import the compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func.__name__ in ("normal_", "uniform_", "zero_", "fill_"):
            return args[0] if args else options["tensor"]
        return func(*args, **options)


def absolute(folder: Path) -> Path:
    """Return the absolute path, with links unresolved."""
    return Path(os.path.abspath(folder))  # noqa: PTH100  (resolve() would follow a link that must not be replaced)


# --- weights in int8


def _to_int8(weights: Mapping[str, Tensor], rows_of: Callable[[Tensor], Rows]) -> dict[str, Tensor]:
    """Return the weights with int8 matrices, except those of one row, and with their rows' scales by a second name."""
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


def _load_settings(folder: Path) -> tuple[Settings, Origin | None, Slots, ConfidenceModel | None, dict[str, str], bool]:
    path = folder / SETTINGS
    data = _read_bytes(path, _LARGEST_TEXT)
    try:
        content = parse_json(data)
    except ValueError as error:
        raise ModelFolderError(f"{path}: truncated or not JSON ({error}). Save the model again") from error
    try:
        check_header(content, FORMAT, (VERSION, _INT8_VERSION), "train again")
    except ValueError as error:
        raise ModelFolderError(f"{path}: {error}") from error
    if unknown := sorted(content.keys() - {"format", "version", "settings", "origin", "slots", "confidence"}):
        raise ModelFolderError(f"{path}: got unknown key {reprlib.repr(unknown[0])}. Save the model again")
    sums = _load_sums(folder / SUMS)
    _check_sum(path, data, sums)
    for key in ("settings", "origin"):
        if not isinstance(content.get(key, None if key == "settings" else {}), dict):
            raise ModelFolderError(f'{path}: "{key}" is missing or not an object. Save the model again')
    try:
        origin = Origin.from_dict(content["origin"]) if "origin" in content else None
        settings, int8 = Settings.from_dict(content["settings"]), content["version"] == _INT8_VERSION
        slots = Slots.from_dict(content["slots"]) if "slots" in content else NO_SLOTS
        confidence = ConfidenceModel.from_dict(content["confidence"]) if "confidence" in content else None
        return settings, origin, slots, confidence, sums, int8
    except (SettingsError, ModelFolderError, ValueError) as error:
        raise ModelFolderError(f"{path}: {error}") from error


def _load_sums(path: Path) -> dict[str, str]:
    data = _read_bytes(path, _LARGEST_TEXT)
    try:
        sums = parse_sums(data)
    except ValueError as error:
        raise ModelFolderError(f"{path}: not a list of SHA-256 sums ({error}). Copy the folder again") from error
    if set(sums) - {MEMORY} != set(_REQUIRED):
        raise ModelFolderError(f"{path}: expected the sums of {', '.join(_REQUIRED)}. Copy the folder again")
    if MEMORY not in sums and (path.parent / MEMORY).exists():
        raise ModelFolderError(f"{path}: has no sum of {MEMORY}, which another model wrote. Remove {MEMORY}")
    return sums


def _check_sum(path: Path, data: bytes, sums: Mapping[str, str]) -> None:
    if sums[path.name] != digest(data):
        raise ModelFolderError(f"{path}: damaged: its checksum differs from {SUMS}. Copy the folder again")


def _load_tokenizer(path: Path, sums: Mapping[str, str]) -> Tokenizer:
    data = _read_bytes(path, LARGEST_TOKENIZER)
    _check_sum(path, data, sums)
    return Tokenizer.from_json(data, str(path))


def _load_tensors(path: Path, expected: Mapping[str, Tensor], sums: Mapping[str, str]) -> dict[str, Tensor]:
    limit = sum(tensor.numel() * tensor.itemsize for tensor in expected.values()) + _LARGEST_TEXT
    head = _read_bytes(path, limit, first=_LARGEST_TEXT)
    _check_weights_header(expected, head, path)
    data = _read_bytes(path, limit)
    _check_sum(path, data, sums)
    try:
        return load_tensors(data)
    except Exception as error:  # the library raises nothing narrower
        raise ModelFolderError(f"{path}: truncated or damaged ({error}). Copy the folder again") from error


def _load_memory(path: Path, model: TranslationModel, sizes: tuple[int, int], sums: Mapping[str, str]) -> PairMemory:
    data = _read_bytes(path, pair_memory.LARGEST)
    _check_sum(path, data, sums)
    try:
        metadata = parse_json(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        tensors = load_tensors(data)
        if _MODEL not in tensors or bytes(tensors[_MODEL].tolist()).hex() != sums[WEIGHTS]:
            raise ValueError(f"another model than {WEIGHTS}, or an earlier version, wrote the memory; remove it")
        features = model.output_table.shape[1]
        return PairMemory.from_tensors(tensors, metadata, features=features, sizes=sizes)
    except Exception as error:  # the library raises nothing narrower
        raise ModelFolderError(f"{path}: damaged, or of another model ({error}). Copy the folder again") from error


def _check_weights_header(expected: Mapping[str, Tensor], head: bytes, path: Path) -> None:
    """Check the header of the weights before reading gigabytes of them."""
    try:
        entries = parse_json(head[8 : 8 + int.from_bytes(head[:8], "little")])
        stored = {
            name: f"{_DTYPES.get(entry['dtype'], entry['dtype'])} {tuple(entry['shape'])}"
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelFolderError(f"{path}: truncated or damaged ({error}). Copy the folder again") from error
    _check_tensors(expected, stored, path)


def _read_bytes(path: Path, limit: int, first: int | None = None) -> bytes:
    try:
        return read_regular(path, most=limit, first=first)
    except FileNotFoundError:
        raise ModelFolderError(
            f"{path}: missing, so {path.parent} is not a complete model folder. Copy the folder again, or give another"
        ) from None
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read ({error.strerror})") from error
    except InputError as error:
        raise ModelFolderError(str(error)) from error


def _check_tensors(expected: Mapping[str, Tensor], stored: Mapping[str, str], path: Path) -> None:
    """Check that the stored tensors have the expected names, dtypes and shapes.

    `stored` maps each name to the text that `describe` returns for the tensor.
    """
    if faults := misfits({name: describe(tensor) for name, tensor in expected.items()}, stored):
        raise ModelFolderError(
            f"{path}: {joined(faults)}. The weights belong to other settings or vocabularies: take all files from one "
            "model"
        )


def _check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    if faults := [f"{name}: got values that are not finite" for name in tensors if not tensors[name].isfinite().all()]:
        raise ModelFolderError(f"{path}: {joined(faults)}. Train again, with a lower learning_rate")
