"""Model folders: weights, settings and tokenizers, saved whole or not at all, loaded without unpickling anything."""

import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dikkat.files import flush_folder, write_whole
from dikkat.translation.errors import ModelFolderError, SettingsError
from dikkat.translation.model import TranslationModel
from dikkat.translation.settings import Settings
from dikkat.translation.tokenizer import Tokenizer

FORMAT = "dikkat translator"
VERSION = 1

WEIGHTS, SETTINGS = "model.safetensors", "settings.json"
SOURCE, TARGET = "source.tokenizer.json", "target.tokenizer.json"

_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
_PICKLE_MAGIC = {b"PK\x03\x04": "a zip archive, as torch.save writes it", b"\x80": "a pickle"}


def check_replaceable(folder: Path) -> None:
    """Whether a model may be saved there: a free name, an empty folder, or a model folder and nothing else.

    Raises:
        ModelFolderError: something else is there, which saving would destroy.
    """
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.resolve() == Path.cwd():
        raise ModelFolderError(f"{folder}: the current folder, which cannot be exchanged. Give the name of one in it")
    if folder.is_symlink() or not folder.is_dir():
        raise ModelFolderError(f"{folder}: not a folder, so no model can be saved there. Give another name")
    others = sorted({entry.name for entry in folder.iterdir()} - {WEIGHTS, SETTINGS, SOURCE, TARGET})
    if others:
        raise ModelFolderError(
            f"{folder}: holds {', '.join(others[:3])}{' …' if others[3:] else ''}, which is not a model of dikkat's. "
            "Give another name, or an empty folder"
        )


def check_writable(folder: Path) -> None:
    """Whether a model can be saved there, tried out: for before the work, and not after it.

    Raises:
        ModelFolderError: something else is there, or the system lets nothing be written.
    """
    check_replaceable(folder)
    folder = _absolute(folder)
    trial = _aside(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        raise ModelFolderError(
            f"{folder}: no model can be saved there ({error.strerror}). Give another name"
        ) from error


def save(folder: str | Path, model: TranslationModel, settings: Settings, source: Tokenizer, target: Tokenizer) -> None:
    """Save a model folder whole or not at all.

    The files are written to a new folder beside it and flushed to the disk; then that takes the name. If anything fails
    on the way, a full disk for instance, an older model stays as it was, and nothing stays beside it. Where the system
    itself stops between the two renames that this takes, the next `load` or `save` puts the older model back.

    Args:
        folder: where; its parent folders are made if need be. A model folder is replaced.
        model: the network.
        settings: what it was built with.
        source: the source language's tokenizer.
        target: the target language's tokenizer.

    Raises:
        ModelFolderError: something else than a model is there, or the weights are not of these settings.
        OSError: the system could not write; the message says that nothing was saved, and an older model is untouched.
    """
    write(folder, Contents(dict(model.state_dict()), settings, source, target))


class Contents(NamedTuple):
    """What a model folder holds, of whatever framework the model is.

    Attributes:
        tensors: the weights, on any device and in any dtype, under the names that they have in `TranslationModel`.
        settings: what the model was built with.
        source: the source language's tokenizer.
        target: the target language's tokenizer.
    """

    tensors: Mapping[str, Tensor]
    settings: Settings
    source: Tokenizer
    target: Tokenizer


def write(folder: str | Path, contents: Contents) -> None:
    """Save a model folder whole or not at all: `save`, of any framework.

    The weights are written in the dtypes that `TranslationModel` gives them, whatever the model computes in: a folder
    of others would not load.

    Args:
        folder: as in `save`.
        contents: what it will hold.

    Raises:
        ModelFolderError: as in `save`.
        OSError: as in `save`.
    """
    folder = _absolute(Path(folder))
    expected = _skeleton(contents.settings, contents.source, contents.target).state_dict()
    weights = {
        name: tensor.detach().to("cpu", expected[name].dtype if name in expected else tensor.dtype).contiguous()
        for name, tensor in contents.tensors.items()
    }
    _refuse(_misfits(expected, weights), folder)
    _recover(folder)
    check_replaceable(folder)
    try:
        _write(folder, contents._replace(tensors=weights))
    except OSError as error:
        older = "; the older model there is as it was" if folder.exists() else ""
        raise OSError(error.errno, f"the model was not saved: {error.strerror}{older}", str(folder)) from error


def _write(folder: Path, contents: Contents) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    settings = {"format": FORMAT, "version": VERSION, "settings": contents.settings.to_dict()}
    aside = _aside(folder)
    try:
        aside.mkdir()
        write_whole(aside / WEIGHTS, dump_tensors(dict(contents.tensors), metadata={"format": "pt"}))
        write_whole(aside / SETTINGS, json.dumps(settings, indent=2) + "\n")
        write_whole(aside / SOURCE, contents.source.to_json())
        write_whole(aside / TARGET, contents.target.to_json())
        _take_name(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def load(folder: str | Path) -> tuple[TranslationModel, Settings, Tokenizer, Tokenizer]:
    """Load a model folder, after checking everything in it.

    Args:
        folder: what `save` wrote.

    Returns:
        The network in evaluation mode on the CPU, its settings, the source and the target tokenizer.

    Raises:
        ModelFolderError: no such folder; a file missing, truncated or damaged; another version; a tensor missing, too
            many or of another shape; a pickle in place of the weights.
    """
    model, contents = _read(Path(folder))
    model.load_state_dict(contents.tensors, assign=True)
    return model.eval(), contents.settings, contents.source, contents.target


def read(folder: str | Path) -> Contents:
    """What a model folder holds, after checking everything in it: `load`, for any framework.

    Args:
        folder: what `save` or `write` wrote.

    Returns:
        Weights on the CPU that are a `TranslationModel`'s of these settings and vocabularies, and all the rest.

    Raises:
        ModelFolderError: as in `load`.
    """
    return _read(Path(folder))[1]


def _read(folder: Path) -> tuple[TranslationModel, Contents]:
    """The checked contents, and the network that they fit, as yet without memory."""
    _recover(_absolute(folder))
    if not folder.is_dir():
        raise ModelFolderError(f"{folder}: no such model folder. `dikkat train --output {folder}` makes one")
    settings = _load_settings(folder / SETTINGS)
    source, target = Tokenizer.load(folder / SOURCE), Tokenizer.load(folder / TARGET)
    tensors = _load_tensors(folder / WEIGHTS)
    try:
        model = _skeleton(settings, source, target)
    except SettingsError as error:
        raise ModelFolderError(f"{folder}: {error}") from error
    _check_tensors(model.state_dict(), tensors, folder / WEIGHTS)
    return model, Contents(tensors, settings, source, target)


def _skeleton(settings: Settings, source: Tokenizer, target: Tokenizer) -> TranslationModel:
    """The network without memory: settings from outside must not reserve any before the weights agree with them."""
    with torch.device("meta"), _NoInitialValues():
        return TranslationModel(settings, len(source), len(target))


class _NoInitialValues(TorchFunctionMode):
    """Leaves new weights as they are, since others take their place: on meta, filling them imports the compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func.__name__ in ("normal_", "uniform_", "zero_", "fill_"):
            return args[0] if args else named["tensor"]
        return func(*args, **named)


def _absolute(folder: Path) -> Path:
    return Path(os.path.abspath(folder))  # noqa: PTH100  (resolve() would follow a link that must not be replaced)


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")


def _take_name(aside: Path, folder: Path) -> None:
    """Move the new folder to its name; an old one of that name goes only after the new one is there."""
    if not folder.exists():
        aside.rename(folder)
        flush_folder(folder.parent)
        return
    old = _old(folder)
    folder.rename(old)
    try:
        aside.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    try:
        flush_folder(folder.parent)
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _old(folder: Path) -> Path:
    """What a model is called while a new one takes its name."""
    return folder.with_name(f".{folder.name}.old")


def _recover(folder: Path) -> None:
    """After a stop between those two renames: the model that was there before; after one behind them: the new one."""
    old = _old(folder)
    if not old.is_dir():
        return
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.rename(folder)


def _load_settings(path: Path) -> Settings:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFolderError(
            f"{path}: missing. {path.parent} is not a model folder of dikkat's, or incomplete"
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelFolderError(f"{path}: truncated or not JSON ({error}). Save the model again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ModelFolderError(f'{path}: not the settings of a model of dikkat\'s, which say "format": "{FORMAT}"')
    if content.get("version") != VERSION:
        raise ModelFolderError(
            f"{path}: format version {content.get('version')!r}; this dikkat reads version {VERSION}. Use the dikkat "
            "that saved it, or train again"
        )
    values: Any = content.get("settings")
    if not isinstance(values, dict):
        raise ModelFolderError(f'{path}: "settings" is missing or not an object. Save the model again')
    try:
        return Settings.from_dict(values)
    except SettingsError as error:
        raise ModelFolderError(f"{path}: {error}") from error


def _load_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        pickles = sorted(file.name for file in path.parent.iterdir() if file.suffix in _PICKLES)
        found = f"; {pickles[0]} is there, but dikkat unpickles nothing, since that can run any code" if pickles else ""
        raise ModelFolderError(f"{path}: missing{found}. Save the weights as safetensors")
    data = path.read_bytes()
    for magic, kind in _PICKLE_MAGIC.items():
        # A safetensors file begins with the length of its header, in eight bytes, of any value; then comes JSON.
        if data.startswith(magic) and data[8:9] != b"{":
            raise ModelFolderError(
                f"{path}: this is {kind}, not safetensors. dikkat unpickles nothing, since that can run any code: "
                "save the weights as safetensors"
            )
    try:
        return load_tensors(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelFolderError(f"{path}: truncated or damaged ({error}). Copy the folder again") from error


def _check_tensors(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path) -> None:
    infinite = [f"{name} holds values that are not finite" for name in expected if not _finite(found.get(name))]
    _refuse(_misfits(expected, found) + infinite, path)


def _misfits(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """What is missing, too many, or of another dtype or shape."""
    faults = [f"{name} {_described(expected[name])} is missing" for name in expected if name not in found]
    faults += [f"{name} {_described(found[name])} is not expected" for name in sorted(found) if name not in expected]
    faults += [
        f"{name} is {_described(found[name])} and must be {_described(tensor)}"
        for name, tensor in expected.items()
        if name in found and _described(found[name]) != _described(tensor)
    ]
    return faults


def _refuse(faults: Sequence[str], path: Path) -> None:
    if faults:
        raise ModelFolderError(
            f"{path}: {'; '.join(faults[:5])}{' …' if faults[5:] else ''}. The weights belong to other settings or "
            "vocabularies: take all files from one model"
        )


def _finite(tensor: Tensor | None) -> bool:
    return tensor is None or bool(torch.isfinite(tensor).all())


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
