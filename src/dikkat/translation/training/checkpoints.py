"""Checkpoints as folders of safetensors and JSON: whole or not at all, and never pickled.

`model.safetensors`, `optimizer.safetensors` and `random.safetensors` hold tensors by their names, `state.json`
everything else, and `SHA256SUMS` what `sha256sum --check` reads.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from dikkat.storage.folders import SUMS, digest, parse_sums, write_folder
from dikkat.storage.headers import check_header, header
from dikkat.translation.errors import TrainingFolderError

FORMAT = "dikkat training"
VERSION = 3

_STATE = "state.json"
_TENSORS = ("model", "optimizer", "random")
_SUFFIX = ".safetensors"
_ANEW = "remove the folder of this training and train anew"


class Checkpoint(NamedTuple):
    """Everything that a training needs to go on.

    `optimizer` names Adam's tensors by the number of the parameter, a dot and their name; `random` has (processes, …)
    states by the kind of device; `course` is `TrainingState.to_dict()`.
    """

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    course: dict[str, Any]
    fingerprint: dict[str, Any]
    threads: int


def save(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint whole or not at all."""
    parts = checkpoint._asdict()
    content = {}
    for part in _TENSORS:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in parts.pop(part).items()}
        content[f"{part}{_SUFFIX}"] = dump_tensors(tensors)
    text = json.dumps({**header(FORMAT, VERSION), "state": parts}, allow_nan=False) + "\n"
    write_folder(path, {**content, _STATE: text.encode()})


def load(path: Path) -> Checkpoint:
    """Read a checkpoint onto the CPU, after checking every byte of it."""
    content = _checked(path)
    try:
        state = check_header(json.loads(content[_STATE]), FORMAT, (VERSION,), _ANEW)["state"]
        model, optimizer, random = (load_tensors(content[f"{part}{_SUFFIX}"]) for part in _TENSORS)
        return Checkpoint(model, optimizer, random, **state)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TrainingFolderError(f"{path}: not a checkpoint that this dikkat reads ({error})") from error


def _checked(folder: Path) -> dict[str, bytes]:
    try:
        sums = parse_sums((folder / SUMS).read_bytes())
        content = {name: (folder / name).read_bytes() for name in sums}
        damaged = [name for name in sums if digest(content[name]) != sums[name]]
    except (OSError, ValueError) as error:
        raise TrainingFolderError(
            f"{folder}: the checkpoint is incomplete or damaged ({error}). Copy it again, or {_ANEW}"
        ) from error
    if damaged or _STATE not in content:
        raise TrainingFolderError(
            f"{folder}: {', '.join(damaged) or _STATE} is damaged: not what was written. Copy it again, or {_ANEW}"
        )
    return content
