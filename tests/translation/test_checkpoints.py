import errno
import json
import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dikkat.storage import folders
from dikkat.translation.errors import TrainingFolderError
from dikkat.translation.training import checkpoints

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
    | st.sampled_from([torch.tensor(2.5), torch.arange(6).reshape(2, 3), torch.zeros(0), torch.ones(3).bfloat16()])
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9) | st.just("$tensor"), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["state_dict", "optimizer_states", "random", "course", "x"]), TREES))
def test_whatever_a_checkpoint_holds_comes_back(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("checkpoints") / "step-000000001"
    checkpoints.save(tree, path)
    assert same(checkpoints.load(path), tree)


def test_numbers_that_json_has_not_come_back(tmp_path):
    checkpoints.save({"best": [float("inf"), float("-inf"), float("nan")]}, tmp_path / "a")
    up, down, none = checkpoints.load(tmp_path / "a")["best"]
    assert (up, down) == (float("inf"), float("-inf"))
    assert none != none
    assert "Infinity" not in (tmp_path / "a" / "state.json").read_text()


def test_tied_tensors_are_taken_as_two(tmp_path):
    shared = torch.arange(5.0)
    checkpoints.save({"state_dict": {"one": shared, "other": shared[1:3]}}, tmp_path / "a")
    found = checkpoints.load(tmp_path / "a")["state_dict"]
    assert found["other"].tolist() == [1.0, 2.0]


def test_each_part_has_a_file_of_its_own_and_nothing_is_pickled(tmp_path):
    parts = {"state_dict": {"w": torch.ones(2)}, "optimizer_states": [{0: torch.ones(1)}], "random": torch.ones(1)}
    checkpoints.save({**parts, "course": {"step": 3}}, tmp_path / "a")
    names = {file.name for file in (tmp_path / "a").iterdir()}
    assert names == {
        "model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json", "SHA256SUMS"
    }  # fmt: skip
    assert json.loads((tmp_path / "a" / "state.json").read_text())["state"]["course"] == {"step": 3}


@pytest.mark.parametrize("value", [{1, 2}, object(), {(1, 2): 3}, {"in": [b"bytes"]}])
def test_what_it_cannot_hold_is_named(tmp_path, value):
    with pytest.raises(TypeError, match=r"^course[.in0]* is a \w+, of which no checkpoint can be made"):
        checkpoints.save({"course": value}, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def saved(tmp_path):
    checkpoints.save({"state_dict": {"w": torch.ones(7)}, "course": {"step": 3}}, tmp_path / "step-000000003")
    return tmp_path / "step-000000003"


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


def test_every_single_bit_counts(saved):
    """Whichever byte of the tensors changes, it is noticed; safetensors alone has no sums."""
    file = saved / "model.safetensors"
    data = file.read_bytes()
    for place in range(0, len(data), 11):
        file.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(TrainingFolderError, match=re.escape("model.safetensors is damaged")):
            checkpoints.load(saved)


def rewritten(saved, **changes):
    """The same with other content, its sums made anew."""
    state = json.loads((saved / "state.json").read_text()) | changes
    data = json.dumps(state).encode()
    other = saved.with_name("other")
    folders.write_folder(other, {"model.safetensors": (saved / "model.safetensors").read_bytes(), "state.json": data})
    return other


def test_the_version_before_is_read(saved):
    assert same(checkpoints.load(rewritten(saved, version=1)), checkpoints.load(saved))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 99}, r"version: got 99; expected 1 or 2\. Use the dikkat that wrote it, or train anew"),
        ({"format": "cake"}, "format: got 'cake'; expected 'dikkat training'"),
        ({"state": [1]}, "not a checkpoint that this dikkat reads"),
        ({"state": {"w": {"$tensor": ["model", "nothing"]}}}, "not a checkpoint that this dikkat reads"),
    ],
)
def test_another_version_or_content_is_refused(saved, changes, message):
    with pytest.raises(TrainingFolderError, match=message):
        checkpoints.load(rewritten(saved, **changes))


@pytest.mark.parametrize("failing", range(4))
def test_no_space_left_leaves_nothing(tmp_path, monkeypatch, failing):
    """Three files, then the flush of the finished folder's name: whichever write fails."""
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
        checkpoints.save({"state_dict": {"w": torch.ones(7)}}, tmp_path / "step-000000003")
    whole = failing == 3  # all is written: only its name may not last through a power cut
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
