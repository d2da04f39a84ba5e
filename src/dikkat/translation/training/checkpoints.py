"""Checkpoints as folders of safetensors and JSON: whole or not at all, and never pickled.

`model.safetensors`, `optimizer.safetensors` and `random.safetensors` hold the tensors of these parts, `state.json`
everything else, with a mark where a tensor belongs, and `SHA256SUMS` what `sha256sum --check` reads.
"""

import json
import math
from pathlib import Path
from typing import Any

from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from dikkat.storage.folders import SUMS, digest, parse_sums, write_folder
from dikkat.storage.headers import check_header, header
from dikkat.translation.errors import TrainingFolderError

FORMAT = "dikkat training"
VERSION = 2

_STATE = "state.json"
# The parts of a checkpoint whose tensors have a file of their own; those of all others share one.
_FILES = {"state_dict": "model", "optimizer_states": "optimizer", "random": "random"}
_REST = "rest"
_SUFFIX = ".safetensors"


def save(checkpoint: dict[str, Any], path: Path) -> None:
    """Write a checkpoint whole or not at all.

    Args:
        checkpoint: Names, and nested in any way dictionaries, lists, tuples, tensors, strings, numbers, None.
        path: The folder to be.

    Raises:
        TypeError: Something else in it; the message says where.
        OSError: The system could not write, or there is such a folder; nothing stays of this one.

    Example:
        >>> import tempfile, torch
        >>> folder = Path(tempfile.mkdtemp()) / "step-000000003"
        >>> save({"random": {"cpu": torch.arange(2)}, "sizes": {0: (1, 2)}}, folder)
        >>> load(folder)
        {'random': {'cpu': tensor([0, 1])}, 'sizes': {0: (1, 2)}}
    """
    files: dict[str, dict[str, Tensor]] = {}
    state = {name: _plain(part, _FILES.get(name, _REST), (name,), files) for name, part in checkpoint.items()}
    content = {f"{name}{_SUFFIX}": dump_tensors(tensors) for name, tensors in files.items()}
    text = json.dumps({**header(FORMAT, VERSION), "state": state}, allow_nan=False) + "\n"
    write_folder(path, {**content, _STATE: text.encode()})


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint, after checking every byte of it; its tensors are on the CPU.

    Args:
        path: What `save` wrote.

    Raises:
        TrainingFolderError: A file missing or damaged, another format or version.
    """
    content = _checked(path)
    try:
        found = check_header(json.loads(content.pop(_STATE)), FORMAT, (VERSION,), "train anew")
        files = {name.removesuffix(_SUFFIX): load_tensors(data) for name, data in content.items()}
        return {name: _rich(part, files) for name, part in found["state"].items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TrainingFolderError(f"{path}: not a checkpoint that this dikkat reads ({error})") from error


def _checked(folder: Path) -> dict[str, bytes]:
    """All files of a checkpoint by name, after comparing their sums."""
    try:
        sums = parse_sums((folder / SUMS).read_bytes())
        content = {name: (folder / name).read_bytes() for name in sums}
        damaged = [name for name in sums if digest(content[name]) != sums[name]]
    except (OSError, ValueError) as error:
        raise TrainingFolderError(
            f"{folder}: the checkpoint is incomplete or damaged ({error}). Copy it again, or train anew"
        ) from error
    if damaged or _STATE not in content:
        raise TrainingFolderError(
            f"{folder}: {', '.join(damaged) or _STATE} is damaged: not what was written. Copy it again, or train anew"
        )
    return content


def _plain(value: Any, file: str, path: tuple[Any, ...], files: dict[str, dict[str, Tensor]]) -> Any:
    """A value in JSON's types: others become a dictionary with a `$` key, and tensors go to the files."""
    if isinstance(value, Tensor):
        name = ".".join(map(str, path))
        # A copy, since safetensors refuses tensors that share memory, as tied ones do.
        files.setdefault(file, {})[name] = value.detach().cpu().clone().contiguous()
        return {"$tensor": [file, name]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        items = [_plain(item, file, (*path, index), files) for index, item in enumerate(value)]
        return items if type(value) is list else {"$tuple": items}
    if isinstance(value, dict):
        items = [[key, _plain(item, file, (*path, key), files)] for key, item in value.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return dict(items)
        if all(isinstance(key, (str, int)) for key in value):
            return {"$items": items}
    raise TypeError(f"{'.'.join(map(str, path))} is a {type(value).__name__}, of which no checkpoint can be made")


def _rich(value: Any, files: dict[str, dict[str, Tensor]]) -> Any:
    """The inverse of `_plain`."""
    if isinstance(value, list):
        return [_rich(item, files) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$tensor": [file, name]}:
            return files[file][name]
        case {"$float": text}:
            return float(text)
        case {"$tuple": items}:
            return tuple(_rich(item, files) for item in items)
        case {"$items": items}:
            return {key: _rich(item, files) for key, item in items}
    return {key: _rich(item, files) for key, item in value.items()}
