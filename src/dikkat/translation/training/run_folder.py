"""The folder of a training, from which it can resume; for one training at a time."""

import dataclasses
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from dikkat.storage.files import parse_json, write_whole
from dikkat.storage.folders import digest, remove_folder, remove_leftovers
from dikkat.storage.locks import LockedError, locked
from dikkat.translation.errors import TrainingFolderError
from dikkat.translation.formats.model_folder import SOURCE, TARGET
from dikkat.translation.settings import Settings
from dikkat.translation.text.slots import Slots
from dikkat.translation.text.tokenizer import Tokenizer
from dikkat.translation.training import checkpoints

SETTINGS, SLOTS, _LOCK = "settings.json", "slots.json", "lock"
_STEP = re.compile(r"step-(\d{9,})")


class RunFolder:
    """Settings, tokenizers, the newest checkpoint, the best weights, and the weights of each epoch of a training.

    `settings.json`, `slots.json`, `source.tokenizer.json`, `target.tokenizer.json`; `checkpoints/step-000001234/`;
    `best/step-000001000.safetensors`; with `keep_epochs`, `epochs/epoch-0001.safetensors`; and `lock`, which a running
    training holds.
    """

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        self.path = path
        self.writes = writes
        self._checkpoints, self._best, self._epochs = path / "checkpoints", path / "best", path / "epochs"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Return a context that locks the folder; without effect in processes that do not write."""
        if not self.writes:
            yield
            return
        with ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.path / _LOCK, wait=False))
            except OSError as error:
                raise TrainingFolderError(
                    f"{self.path}: cannot save a training run there ({error.strerror}). Choose another folder"
                ) from error
            except LockedError as error:
                raise TrainingFolderError(
                    f"{self.path}: {error} is training into it. Wait until it ends, or choose another output folder"
                ) from error
            yield

    def check_free(self) -> None:
        """Check that the folder has no unfinished training."""
        if not self.writes:
            return
        if (newest := self.newest()) and not checkpoints.load(newest).course["finished"]:
            raise TrainingFolderError(
                f"{self.path}: a training stopped here after step {step_of(newest)}. Continue it with resume, or "
                "replace it with overwrite (on the command line --resume, --overwrite)"
            )

    def begin(self, source: Tokenizer, target: Tokenizer, slots: Slots) -> None:
        """Replace the folder's training by a new one without settings, which `prepare` writes.

        The settings are removed first and written last: after any interruption a new training can begin.
        """
        if not self.writes:
            return
        (self.path / SETTINGS).unlink(missing_ok=True)
        for folder in (self._checkpoints, self._best, self._epochs):
            if folder.exists():
                remove_folder(folder)
        write_whole(self.path / SOURCE, source.to_json())
        write_whole(self.path / TARGET, target.to_json())
        write_whole(self.path / SLOTS, json.dumps(slots.to_dict(), indent=2) + "\n")

    def prepare(self, settings: Settings) -> None:
        """Prepare the folder for the next step, also for the first one."""
        if not self.writes:
            return
        for folder in (self._checkpoints, self._best):
            folder.mkdir(exist_ok=True)
        for folder in (self.path, self._checkpoints, self._best):
            remove_leftovers(folder)
        write_whole(self.path / SETTINGS, json.dumps(settings.to_dict(), indent=2) + "\n")

    def resumable(self, settings: Settings) -> Path | None:
        """Check that the folder's training can resume with the settings, and return its newest checkpoint, if any."""
        path = self.path / SETTINGS
        try:
            saved = Settings.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise TrainingFolderError(
                f"{self.path}: no training to resume. Start one without resume (on the command line --resume)"
            ) from None
        except (ValueError, TypeError) as error:
            raise TrainingFolderError(f"{path}: damaged ({error}). Remove the folder and train again") from error
        _check_changes(saved, settings, self.path)
        return self.newest()

    def newest(self) -> Path | None:
        """Return the path of the newest checkpoint, if any."""
        steps = [entry for entry in self._checkpoints.glob("step-*") if _STEP.fullmatch(entry.name)]
        return max(steps, key=step_of, default=None)

    def checkpoint(self, step: int) -> Path:
        """Return the path of the checkpoint after a step."""
        return self._checkpoints / f"step-{step:09}"

    def keep_newest(self, best: list[int]) -> None:
        """Remove older checkpoints, and weights of steps that are not in `best`; for a process that writes."""
        newest = self.newest()
        for entry in self._checkpoints.glob("step-*"):
            if entry != newest:
                remove_folder(entry)
        best_files = [self._weights_path(step) for step in best]
        for file in self._best.glob("step-*"):
            if file not in best_files:
                file.unlink()

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer, Slots]:
        """Return the tokenizers and slots of the folder's training."""
        path = self.path / SLOTS
        try:
            slots = Slots.from_dict(parse_json(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise TrainingFolderError(
                f"{path}: missing or damaged ({error}). Remove the folder and train again"
            ) from error
        return Tokenizer.load(self.path / SOURCE), Tokenizer.load(self.path / TARGET), slots

    def save_weights(self, step: int, tensors: dict[str, Tensor]) -> str:
        """Save the weights after a step, and return their checksum."""
        if not self.writes:
            return ""
        content = dump_tensors(tensors)
        write_whole(self._weights_path(step), content)
        return digest(content)

    def weights(self, step: int, checksum: str) -> dict[str, Tensor]:
        """Load the weights after a step."""
        path = self._weights_path(step)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise TrainingFolderError(
                f"{path}: cannot be read ({error.strerror}). Restore the file, or train again"
            ) from error
        if digest(content) != checksum:
            raise TrainingFolderError(f"{path}: damaged: wrong checksum. Copy it again, or train again")
        return load_tensors(content)

    def save_epoch(self, epoch: int, tensors: dict[str, Tensor]) -> None:
        """Save the weights after an epoch, counted from 1."""
        if self.writes:
            self._epochs.mkdir(exist_ok=True)
            remove_leftovers(self._epochs)
            write_whole(self._epochs / f"epoch-{epoch:04}.safetensors", dump_tensors(tensors))

    def epoch_files(self) -> dict[int, Path]:
        """Return the files of the weights after each epoch, in their order."""
        files = {int(path.stem[6:]): path for path in self._epochs.glob("epoch-[0-9]*.safetensors")}
        return dict(sorted(files.items()))

    def _weights_path(self, step: int) -> Path:
        return self._best / f"step-{step:09}.safetensors"


# Settings that may change on resume. Earlier steps used them only for a learning rate that falls to 0 at the end.
CHANGEABLE = ("checkpoint_steps", "keep_epochs", "epochs", "max_minutes", "patience", "length_penalty")


def _check_changes(saved: Settings, current: Settings, folder: Path) -> None:
    old, new = saved.to_dict(), current.to_dict()
    changed = [
        f"{field.name} was {old[field.name]} and is {new[field.name]}"
        for field in dataclasses.fields(Settings)
        if old[field.name] != new[field.name] and field.name not in CHANGEABLE
    ]
    if changed:
        raise TrainingFolderError(
            f"{folder}: the training there has other settings: {'; '.join(changed)}. Use the same settings to resume "
            f"it (only {', '.join(CHANGEABLE)} may change), or train in another folder"
        )


def step_of(path: Path) -> int:
    """Return the step of a checkpoint's path."""
    match = _STEP.match(path.name)
    return int(match[1]) if match else 0
