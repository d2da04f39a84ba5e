import errno
import json

import pytest
import torch

from dikkat.storage import folders
from dikkat.translation.errors import TrainingFolderError
from dikkat.translation.training import checkpoints
from dikkat.translation.training.checkpoints import Checkpoint

CHECKPOINT = Checkpoint(
    model={"w": torch.ones(7), "one": torch.arange(5.0)[1:3], "half": torch.ones(3).bfloat16()},
    optimizer={"0.step": torch.tensor(3.0), "0.exp_avg": torch.zeros(7)},
    random={"cpu": torch.arange(6, dtype=torch.uint8).reshape(2, 3)},
    course={"step": 3, "epochs": []},
    fingerprint={"validation corpus": None},
    threads=2,
)


@pytest.fixture
def saved(tmp_path):
    checkpoints.save(CHECKPOINT, tmp_path / "step-000000003")
    return tmp_path / "step-000000003"


def test_what_a_checkpoint_holds_comes_back(saved):
    found = checkpoints.load(saved)
    assert found[3:] == CHECKPOINT[3:]
    for one, other in zip(found[:3], CHECKPOINT[:3], strict=True):
        assert one.keys() == other.keys()
        assert all(
            tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]) for name, tensor in one.items()
        )


def test_each_part_has_a_file_of_its_own_and_nothing_is_pickled(saved):
    names = {file.name for file in saved.iterdir()}
    assert names == {
        "model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json", "SHA256SUMS"
    }  # fmt: skip
    assert json.loads((saved / "state.json").read_text())["state"]["course"] == CHECKPOINT.course


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "SHA256SUMS"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_to_any_file_is_found(saved, name, damage):
    file = saved / name
    data = file.read_bytes()
    if damage == "remove":
        file.unlink()
    else:
        file.write_bytes(data[:-2] if damage == "cut" else data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    with pytest.raises(TrainingFolderError, match=r"step-000000003: .*(incomplete|damaged)"):
        checkpoints.load(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 99}, r"version: got 99; expected 3\. Use the dikkat that wrote it, or remove the folder of"),
        ({"format": "cake"}, "format: got 'cake'; expected 'dikkat training'"),
        ({"state": [1]}, "got a checkpoint that this dikkat cannot read"),
        ({"state": {"course": {}}}, "got a checkpoint that this dikkat cannot read"),
    ],
)
def test_another_version_or_content_is_refused(saved, changes, message):
    content = {file.name: file.read_bytes() for file in saved.iterdir() if file.name != "SHA256SUMS"}
    content["state.json"] = json.dumps(json.loads(content["state.json"]) | changes).encode()
    folders.write_folder(saved.with_name("other"), content)
    with pytest.raises(TrainingFolderError, match=message):
        checkpoints.load(saved.with_name("other"))


@pytest.mark.parametrize("failing", range(6))
def test_no_space_left_leaves_nothing(tmp_path, monkeypatch, failing):
    """Five files, then the flush of the finished folder's name: whichever write fails."""
    calls = []

    def counted(inner):
        def call(*args):
            calls.append(args)
            if len(calls) > failing:
                raise OSError(errno.ENOSPC, "No space left on device")
            return inner(*args)

        return call

    for name in ("write_whole", "flush_folder"):
        monkeypatch.setattr(folders, name, counted(getattr(folders, name)))
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(CHECKPOINT, tmp_path / "step-000000003")
    whole = failing == 5  # all is written: only its name may not last through a power cut
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000000003"] * whole


def test_removing_never_leaves_a_half(tmp_path, saved, monkeypatch):
    def broken(path):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(folders.shutil, "rmtree", broken)
    with pytest.raises(OSError, match="broken"):
        folders.remove_folder(saved)
    monkeypatch.undo()
    assert not saved.exists()
    folders.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []
