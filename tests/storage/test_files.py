import errno
import os
import stat
from pathlib import Path

import pytest

import kit
from dikkat.errors import InputError
from dikkat.storage.files import parse_json, read_regular, write_whole


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("data", [b"\x00\xff\r\n", "déjà\r\nvu 猫"])
def test_writes_what_it_was_given(tmp_path, data):
    write_whole(tmp_path / "new", data)
    assert (tmp_path / "new").read_bytes() == (data if isinstance(data, bytes) else data.encode())
    assert [entry.name for entry in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("existed", [True, False])
def test_a_failure_midway_leaves_what_was(tmp_path, monkeypatch, step, existed):
    target = tmp_path / "file"
    if existed:
        target.write_text("old")
    monkeypatch.setattr(os, step, full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_whole(target, "new" * 10_000)
    assert [entry.name for entry in tmp_path.iterdir()] == (["file"] if existed else [])
    assert not existed or target.read_text() == "old"


def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "file", "new")
    assert list(tmp_path.iterdir()) == []


def test_the_content_is_flushed_before_the_name_and_the_folder_after(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor):
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "content")
        if events[-1] == "content":
            assert os.fstat(descriptor).st_size == 3
        fsync(descriptor)

    def watched_replace(source, target):
        events.append("name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write_whole(tmp_path / "file", "new")
    assert events == ["content", "name", "folder"]


def test_a_folder_that_cannot_be_flushed_is_no_failure(tmp_path, monkeypatch):
    fsync = os.fsync

    def files_only(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    write_whole(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_permissions_are_the_usual_ones_and_stay(tmp_path):
    (tmp_path / "usual").write_text("x")
    write_whole(tmp_path / "file", "1")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode
    (tmp_path / "file").chmod(0o600)
    write_whole(tmp_path / "file", "2")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_a_link_keeps_pointing_at_its_target(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").write_text("old")
    (tmp_path / "latest").symlink_to(tmp_path / "run" / "file")
    write_whole(tmp_path / "latest", "new")
    assert (tmp_path / "latest").is_symlink()
    assert (tmp_path / "run" / "file").read_text() == "new"


def test_names_as_long_as_the_system_allows(tmp_path):
    write_whole(tmp_path / ("n" * 255), "x")
    assert (tmp_path / ("n" * 255)).read_text() == "x"


def test_a_missing_folder_is_named_and_not_created(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"folder '.*missing' does not exist; create it"):
        write_whole(tmp_path / "missing" / "file", "x")
    assert list(tmp_path.iterdir()) == []


def test_refusals_say_what_came(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder"):
        write_whole(tmp_path, "x")
    with pytest.raises(TypeError, match="got int; expected bytes or str"):
        write_whole(tmp_path / "file", 3)
    with pytest.raises(ValueError, match="surrogates"):
        write_whole(tmp_path / "file", "\ud800")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="device or a pipe"):
        write_whole(tmp_path / "pipe", "x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_file_and_a_link_to_one_are_read(tmp_path):
    (tmp_path / "file").write_bytes(b"\x00\xff\r\n")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", most=4) == b"\x00\xff\r\n"
    with pytest.raises(InputError, match="file: got 4 bytes; expected at most 3"):
        read_regular(tmp_path / "file", most=3)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none", most=3)


def test_what_may_never_end_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "folder", "device"):
        with pytest.raises(InputError, match=f"{name}: not a regular file"):
            read_regular(tmp_path / name, most=10**12)


def test_a_huge_file_costs_nothing(tmp_path):
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 10**13)
    with pytest.raises(InputError, match="10,000,000,000,000 bytes"):
        read_regular(tmp_path / "sparse", most=1 << 20)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no such file here")
def test_a_file_whose_size_is_not_its_own_is_refused():
    with pytest.raises(InputError, match="expected 0, the size of the file"):
        read_regular("/proc/self/maps", most=10)


@kit.each(
    ("text", "message"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' is given twice"),
        (b"[NaN]", "NaN is not allowed"),
        (b"-Infinity", "-Infinity is not allowed"),
        (b'{"loss": 1e999}', "1e999 is larger"),
        (b"[-2.5E+400]", "larger than any number in double precision"),
        (b"9" * 5000, "digits"),
        (b"\xff", "utf-8"),
        (b"[1] 2", "Extra data"),
    ],
)
def test_json_from_a_stranger(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_json_is_read_as_it_is():
    assert parse_json('{"é": [1, 2.5, true, null, {}]}'.encode()) == {"é": [1, 2.5, True, None, {}]}
