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
    """Everything that a training needs to go on."""

    model: dict[str, Tensor]  # the weights
    optimizer: dict[str, Tensor]  # adam's tensors, by the number of the parameter, a dot and their name
    random: dict[str, Tensor]  # by the kind of device, the random numbers of all processes, (processes, …)
    course: dict[str, Any]  # `TrainingState.to_dict()`
    fingerprint: dict[str, Any]  # of the corpora, as JSON has it
    threads: int  # as many as PyTorch computed with


def save(checkpoint: Checkpoint, path: Path) -> None:
    """Write a checkpoint, its tensors on any device, whole or not at all; an OSError leaves nothing behind."""
    parts = checkpoint._asdict()
    content = {}
    for part in _TENSORS:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in parts.pop(part).items()}
        content[f"{part}{_SUFFIX}"] = dump_tensors(tensors)
    text = json.dumps({**header(FORMAT, VERSION), "state": parts}, allow_nan=False) + "\n"
    write_folder(path, {**content, _STATE: text.encode()})


def load(path: Path) -> Checkpoint:
    """Read a checkpoint to the CPU, after checking every byte of it; TrainingFolderError for a damaged or older one."""
    content = _checked(path)
    try:
        state = check_header(json.loads(content[_STATE]), FORMAT, (VERSION,), _ANEW)["state"]
        model, optimizer, random = (load_tensors(content[f"{part}{_SUFFIX}"]) for part in _TENSORS)
        return Checkpoint(model, optimizer, random, **state)
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
            f"{folder}: the checkpoint is incomplete or damaged ({error}). Copy it again, or {_ANEW}"
        ) from error
    if damaged or _STATE not in content:
        raise TrainingFolderError(
            f"{folder}: {', '.join(damaged) or _STATE} is damaged: not what was written. Copy it again, or {_ANEW}"
        )
    return content
