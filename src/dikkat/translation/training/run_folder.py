"""The folder of a training: what it needs to go on after it was stopped, for one training at a time."""

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
    """Settings, tokenizers, the newest checkpoint and the best weights of a training.

    `settings.json`, `slots.json`, `source.tokenizer.json`, `target.tokenizer.json`; `checkpoints/step-000001234/`;
    `best/step-000001000.safetensors`; `lock`, which a training holds while it runs.
    """

    def __init__(self, path: Path, *, writes: bool = True) -> None:
        self.path = path
        self.writes = writes
        self._checkpoints, self._best = path / "checkpoints", path / "best"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other training out, and out of this one's way if it is not the one that writes."""
        if not self.writes:
            yield
            return
        with ExitStack() as stack:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.path / _LOCK, wait=False))
            except OSError as error:
                raise TrainingFolderError(
                    f"{self.path}: no training can be kept there ({error.strerror}). Give another name"
                ) from error
            except LockedError as error:
                raise TrainingFolderError(
                    f"{self.path}: {error} is training into it. Wait for its end, or give this training another output"
                ) from error
            yield

    def check_free(self) -> None:
        """Check that a new training may begin here."""
        if not self.writes:
            return
        if (newest := self.newest()) and not checkpoints.load(newest).course["finished"]:
            raise TrainingFolderError(
                f"{self.path}: a training stopped here after step {step_of(newest)}. Go on with it (resume; on the "
                "command line --resume), or remove the folder to begin anew"
            )

    def begin(self, source: Tokenizer, target: Tokenizer, slots: Slots) -> None:
        """Remove the training that is there; `go_on` then makes ready for a new one.

        The settings go first and come last: whenever this is cut short, a new training can begin.
        """
        if not self.writes:
            return
        (self.path / SETTINGS).unlink(missing_ok=True)
        for folder in (self._checkpoints, self._best):
            if folder.exists():
                remove_folder(folder)
        write_whole(self.path / SOURCE, source.to_json())
        write_whole(self.path / TARGET, target.to_json())
        write_whole(self.path / SLOTS, json.dumps(slots.to_dict(), indent=2) + "\n")

    def go_on(self, settings: Settings) -> None:
        """Make ready for the next step, be it the first one."""
        if not self.writes:
            return
        for folder in (self._checkpoints, self._best):
            folder.mkdir(exist_ok=True)
        for folder in (self.path, self._checkpoints, self._best):
            remove_leftovers(folder)
        write_whole(self.path / SETTINGS, json.dumps(settings.to_dict(), indent=2) + "\n")

    def resumable(self, settings: Settings) -> Path | None:
        """Check that the training that is there can go on."""
        path = self.path / SETTINGS
        try:
            begun = Settings.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise TrainingFolderError(
                f"{self.path}: no training to go on with. Begin one without resume (on the command line --resume)"
            ) from None
        except (ValueError, TypeError) as error:
            raise TrainingFolderError(f"{path}: damaged ({error}). Remove the folder and train anew") from error
        _check_changes(begun, settings, self.path)
        return self.newest()

    def newest(self) -> Path | None:
        """The newest checkpoint."""
        steps = [entry for entry in self._checkpoints.glob("step-*") if _STEP.fullmatch(entry.name)]
        return max(steps, key=step_of, default=None)

    def checkpoint(self, step: int) -> Path:
        """The path of the checkpoint after a step."""
        return self._checkpoints / f"step-{step:09}"

    def keep_newest(self, best: list[int]) -> None:
        """Remove older checkpoints, and the weights that the newest one does not call its best."""
        newest = self.newest()
        for entry in self._checkpoints.glob("step-*"):
            if entry != newest:
                remove_folder(entry)
        kept = [self._weights(step) for step in best]
        for file in self._best.glob("step-*"):
            if file not in kept:
                file.unlink()

    def texts(self) -> tuple[Tokenizer, Tokenizer, Slots]:
        """Return the tokenizers and slots of the training that is there."""
        path = self.path / SLOTS
        try:
            slots = Slots.from_dict(parse_json(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise TrainingFolderError(
                f"{path}: missing or damaged ({error}). Remove the folder and train anew"
            ) from error
        return Tokenizer.load(self.path / SOURCE), Tokenizer.load(self.path / TARGET), slots

    def save_weights(self, step: int, tensors: dict[str, Tensor]) -> str:
        """Keep the weights after a step."""
        if not self.writes:
            return ""
        data = dump_tensors(tensors)
        write_whole(self._weights(step), data)
        return digest(data)

    def weights(self, step: int, sum_: str) -> dict[str, Tensor]:
        """The weights after a step."""
        path = self._weights(step)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise TrainingFolderError(f"{path}: missing ({error.strerror}). Train anew") from error
        if digest(data) != sum_:
            raise TrainingFolderError(f"{path}: damaged: not what was written. Copy it again, or train anew")
        return load_tensors(data)

    def _weights(self, step: int) -> Path:
        return self._best / f"step-{step:09}.safetensors"


# Of these no step so far depended, or a schedule that falls to 0 does so anew from where it stands.
CHANGEABLE = ("checkpoint_steps", "epochs", "max_minutes", "patience", "length_penalty")


def _check_changes(begun: Settings, now: Settings, folder: Path) -> None:
    before, after = begun.to_dict(), now.to_dict()
    changed = [
        f"{field.name} was {before[field.name]} and is {after[field.name]}"
        for field in dataclasses.fields(Settings)
        if before[field.name] != after[field.name] and field.name not in CHANGEABLE
    ]
    if changed:
        raise TrainingFolderError(
            f"{folder}: the training there has other settings: {'; '.join(changed)}. Go on with the same, or train anew"
            f" into another folder; only {', '.join(CHANGEABLE)} may change"
        )


def step_of(path: Path) -> int:
    """The step after which a checkpoint was made."""
    match = _STEP.match(path.name)
    return int(match[1]) if match else 0
