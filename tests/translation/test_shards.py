"""Translating in pieces: none lost, none doubled, whatever happens on the way."""

import errno
import gzip
import os
import signal
import subprocess
import sys

import pytest

from dikkat.errors import InputError
from dikkat.storage import files
from dikkat.translation.decoding.shards import Pieces, Shard


def upper(piece):
    for number, line in enumerate(piece.lines(), start=piece.first):
        yield f"{number} {line.upper()}\n"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "letters.en"
    path.write_text("".join(f"line {number}\n" for number in range(1, 24)), encoding="utf-8")
    return path


EXPECTED = "".join(f"{number} LINE {number}\n" for number in range(1, 24))


def pieces(source, **made_by):
    return Pieces(source, source.parent / "pieces", 5, made_by)


def joined(work):
    return b"".join(work.collect()).decode()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_make_the_whole(source, count):
    sizes = [list(pieces(source).translate(Shard(number, count), upper)) for number in range(count, 0, -1)]
    assert sum(map(sum, sizes)) == 23
    assert joined(pieces(source)) == EXPECTED


def test_what_is_done_is_not_done_twice(source):
    begun = []

    def killed(piece):
        begun.append(piece.first)
        yield from upper(piece)
        if piece.first == 11 and begun.count(11) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(pieces(source).translate(Shard(1, 1), killed))
    assert pieces(source).done() == 2
    with pytest.raises(InputError, match=r"3 pieces are missing, the first with lines 11 to 15 of letters\.en"):
        joined(pieces(source))
    assert list(pieces(source).translate(Shard(1, 1), killed)) == [5, 5, 5, 5, 3]
    assert begun == [1, 6, 11, 11, 16, 21]
    assert joined(pieces(source)) == EXPECTED


def test_another_number_of_shards_goes_on(source):
    list(pieces(source).translate(Shard(2, 3), upper))
    for number in (1, 2):
        list(pieces(source).translate(Shard(number, 2), upper))
    assert joined(pieces(source)) == EXPECTED


def test_a_folder_of_files(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "b.txt").write_text("three\nfour", encoding="utf-8")
    (folder / "a.txt.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    work = Pieces(folder, tmp_path / "pieces", 1, {})
    for number in (1, 2):
        list(work.translate(Shard(number, 2), upper))
    assert joined(work) == "1 ONE\n2 TWO\n1 THREE\n2 FOUR\n"


def test_a_source_that_has_changed(source):
    list(pieces(source).translate(Shard(1, 1), upper))
    text = source.read_bytes()
    source.write_bytes(text + b"more\n")
    with pytest.raises(InputError, match=r"letters\.en: the file is another than when .* was begun; expected the same"):
        pieces(source)
    source.write_bytes(text)
    work = pieces(source)
    source.write_bytes(text.replace(b"line 13", b"line 31"))
    for what in (lambda: joined(work), lambda: list(work.translate(Shard(1, 1), upper))):
        with pytest.raises(InputError, match=r"its lines are other lines of letters\.en than now"):
            what()


def test_a_piece_that_is_damaged(source):
    work = pieces(source)
    list(work.translate(Shard(1, 1), upper))
    path = sorted(work.folder.glob("*.piece"))[1]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match=r"letters\.en\.000000001\.piece: the piece is damaged; remove it"):
        joined(work)
    path.unlink()
    list(work.translate(Shard(1, 1), upper))
    assert joined(work) == EXPECTED


def test_other_options_are_refused(source):
    pieces(source, beam=5, model="a")
    with pytest.raises(InputError, match="got made by beam 3, and 5 before; expected as it was begun"):
        pieces(source, beam=3, model="a")
    with pytest.raises(InputError, match="got lines 7, and 5 before"):
        Pieces(source, source.parent / "pieces", 7, {"beam": 5, "model": "a"})


def test_a_full_disk_leaves_whole_pieces(source, monkeypatch):
    work, publish = pieces(source), files.publish

    def full(part, path):
        if path.name.endswith("2.piece"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        publish(part, path)

    with monkeypatch.context() as patch:
        patch.setattr(files, "publish", full)
        with pytest.raises(OSError, match="No space left on device"):
            list(work.translate(Shard(1, 1), upper))
    assert work.done() == 2
    list(work.translate(Shard(1, 1), upper))
    assert joined(work) == EXPECTED


def test_one_process_a_shard(source):
    first = pieces(source).translate(Shard(1, 2), upper)
    assert next(first) == 5
    with pytest.raises(InputError, match=r"shard: 1/2 is being translated by process \d+ on "):
        list(pieces(source).translate(Shard(1, 2), upper))
    list(pieces(source).translate(Shard(2, 2), upper))
    list(first)
    assert joined(pieces(source)) == EXPECTED


@pytest.mark.parametrize("text", ["0/4", "5/4", "3", "a/b", "-1/4", "1/0", "1/2/3"])
def test_no_such_shard(text):
    with pytest.raises(InputError, match=f"shard: got {text}; expected one of 1/N to N/N"):
        Shard.parse(text)


def test_a_shard_of_the_environment():
    assert Shard.parse("env", {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) == Shard(1, 8)
    assert Shard.parse("env", {"RANK": "7", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) == Shard(8, 8)
    with pytest.raises(InputError, match="neither RANK and WORLD_SIZE nor SLURM_PROCID and SLURM_NTASKS are set"):
        Shard.parse("env", {"RANK": "1"})
    with pytest.raises(InputError, match="shard: got RANK 8 of WORLD_SIZE 8; expected"):
        Shard.parse("env", {"RANK": "8", "WORLD_SIZE": "8"})


PROGRAM = """
import sys, time
from pathlib import Path
from dikkat.translation.decoding.shards import Pieces, Shard
from translation.test_shards import upper
def slowly(piece):
    time.sleep(0.02)
    yield from upper(piece)
source = Path(sys.argv[1])
for _ in Pieces(source, source.parent / "pieces", 5, {}).translate(Shard.parse(sys.argv[2]), slowly):
    print(flush=True)
"""


def test_a_process_that_is_killed_again_and_again(tmp_path):
    source = tmp_path / "letters.en"
    source.write_text("".join(f"line {number}\n" for number in range(1, 200)), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, "tests"])}
    command = [sys.executable, "-c", PROGRAM, str(source)]
    for _ in range(3):
        with subprocess.Popen([*command, "1/2"], env=environment, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(3):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
    for shard in ("1/2", "2/2"):
        subprocess.run([*command, shard], env=environment, check=True, stdout=subprocess.PIPE)
    assert joined(pieces(source)) == "".join(f"{number} LINE {number}\n" for number in range(1, 200))
    assert not list((tmp_path / "pieces").glob(".*.part"))


def test_a_full_disk_says_where_and_what_is_kept(source, monkeypatch):
    work = pieces(source)
    next(work.translate(Shard(1, 1), upper))

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")  # as the system says it: without a name

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device; pieces that are done are kept: .*0001\.piece"):
            list(work.translate(Shard(1, 1), upper))
    assert {path.name for path in work.folder.iterdir()} == {"letters.en.000000000.piece", "plan.json", "locks"}


def test_nothing_is_handed_out_before_all_is_checked(source):
    work = pieces(source)
    list(work.translate(Shard(1, 1), upper))
    last = work.folder / "letters.en.000000004.piece"
    last.write_bytes(last.read_bytes()[:-3])
    with pytest.raises(InputError, match=r"letters\.en\.000000004\.piece: the piece is damaged"):
        next(work.collect())
    last.unlink()
    with pytest.raises(InputError, match=r"1 piece is missing, the first with lines 21 to 23 of letters\.en"):
        next(work.collect())


@pytest.mark.parametrize("text", ["", "one", "one\n", "\n", "one\n\n", "one\r\ntwo"])
@pytest.mark.parametrize("count", [1, 3])
def test_texts_that_are_short_or_end_without_an_end(tmp_path, text, count):
    source = tmp_path / "letters.en"
    source.write_bytes(text.encode())
    for number in range(1, count + 1):
        list(Pieces(source, tmp_path / "pieces", 1, {}).translate(Shard(number, count), upper))
    lines = text.replace("\r", "").removesuffix("\n").split("\n") if text else []
    expected = "".join(f"{number} {line.upper()}\n" for number, line in enumerate(lines, start=1))
    assert joined(Pieces(source, tmp_path / "pieces", 1, {})) == expected


def test_files_come_in_the_order_of_their_names_characters(tmp_path):
    """Neither case nor numbers nor an alphabet's own order count: machines differ in those."""
    folder = tmp_path / "texts"
    folder.mkdir()
    names = ["B", "a", "part-10", "part-2", "z", "\u00e9"]  # as their characters' numbers rise
    for name in reversed(names):
        (folder / name).write_text(f"{name}\n", encoding="utf-8")
    (folder / ".hidden").write_text("no\n", encoding="utf-8")
    (folder / "empty").write_text("", encoding="utf-8")
    work = Pieces(folder, tmp_path / "pieces", 5, {})
    list(work.translate(Shard(1, 1), upper))
    assert joined(work) == "".join(f"1 {name.upper()}\n" for name in names)


def test_folders_that_cannot_be_translated(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / ".git").mkdir()
    with pytest.raises(InputError, match=r"texts: got a folder without files; expected files of sentences"):
        Pieces(folder, tmp_path / "pieces", 5, {})
    (folder / "a.txt").write_text("one\n", encoding="utf-8")
    (folder / "old").mkdir()
    with pytest.raises(InputError, match=r"old: got a folder within the folder of files; expected files alone"):
        Pieces(folder, tmp_path / "pieces", 5, {})
    (folder / "old").rmdir()
    (folder / "b.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"b\.txt: got a name that leads to no file; expected files alone"):
        Pieces(folder, tmp_path / "pieces", 5, {})


def test_files_that_come_or_go_are_named(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text("one\n", encoding="utf-8")
    Pieces(folder, tmp_path / "pieces", 5, {})
    (folder / "c").write_text("one\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"^c: the file is another than when"):
        Pieces(folder, tmp_path / "pieces", 5, {})
    (folder / "c").unlink()
    (folder / "b").rename(folder / "a.old")
    with pytest.raises(InputError, match=r"^a\.old: the file is another than when"):
        Pieces(folder, tmp_path / "pieces", 5, {})


def test_two_processes_with_shards_that_overlap(source):
    """Of three shards and of two: what both translate is the same, and stands once."""
    first = pieces(source).translate(Shard(1, 3), upper)
    second = pieces(source).translate(Shard(1, 2), upper)
    assert [next(first), next(second)] == [5, 5]
    for rest in (first, second, pieces(source).translate(Shard(2, 2), upper)):
        list(rest)
    assert joined(pieces(source)) == EXPECTED
