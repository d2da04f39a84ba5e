"""Checkpoints as folders of safetensors and JSON, written atomically and never pickled.

`model.safetensors`, `optimizer.safetensors` and `random.safetensors` have tensors by name, `state.json` has all other
values, and `SHA256SUMS` has checksums for `sha256sum --check`.
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
_ADVICE = "remove the folder of this training and train again"


class Checkpoint(NamedTuple):
    """Everything that a training needs to resume.

    `optimizer` names Adam's tensors by the parameter's number, a dot and the tensor's name. `random` has (processes, …)
    states by device type. `course` is `TrainingState.to_dict()`.
    """

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    course: dict[str, Any]
    fingerprint: dict[str, Any]
    threads: int


def save(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint atomically."""
    fields = checkpoint._asdict()
    content = {}
    for group in _TENSORS:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in fields.pop(group).items()}
        content[f"{group}{_SUFFIX}"] = dump_tensors(tensors)
    text = json.dumps({**header(FORMAT, VERSION), "state": fields}, allow_nan=False) + "\n"
    write_folder(path, {**content, _STATE: text.encode()})


def load(path: Path) -> Checkpoint:
    """Read a checkpoint onto the CPU, after checking its checksums."""
    content = _read_checked(path)
    try:
        state = check_header(json.loads(content[_STATE]), FORMAT, (VERSION,), _ADVICE)["state"]
        model, optimizer, random = (load_tensors(content[f"{group}{_SUFFIX}"]) for group in _TENSORS)
        return Checkpoint(model, optimizer, random, **state)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TrainingFolderError(f"{path}: got a checkpoint that this dikkat cannot read ({error})") from error


def _read_checked(folder: Path) -> dict[str, bytes]:
    try:
        sums = parse_sums((folder / SUMS).read_bytes())
        content = {name: (folder / name).read_bytes() for name in sums}
        damaged = [name for name in sums if digest(content[name]) != sums[name]]
    except (OSError, ValueError) as error:
        raise TrainingFolderError(
            f"{folder}: the checkpoint is incomplete or damaged ({error}). Copy it again, or {_ADVICE}"
        ) from error
    if damaged or _STATE not in content:
        raise TrainingFolderError(
            f"{folder}: {', '.join(damaged) or _STATE} is damaged: wrong checksum. Copy it again, or {_ADVICE}"
        )
    return content
