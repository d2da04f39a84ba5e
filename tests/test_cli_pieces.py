"""`dikkat translate --pieces`: shards, workers, and joining what they have done."""

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from command import command_line
from dikkat.storage.locks import locked
from dikkat.translation.training.train import train
from translation.conftest import PAIRS, TINY


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that has learnt next to nothing, which is enough to write something."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("pieces") / "model"
    train(replace(TINY, epochs=1, hidden_size=8, embedding_size=8), PAIRS, PAIRS, progress=False).translator.save(
        folder
    )
    return folder


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line; returns (status, standard output, standard error)."""
    return command_line(monkeypatch, capsys)


@pytest.fixture
def letters(tmp_path):
    path = tmp_path / "letters.en"
    path.write_text("".join(f"{source}\n" for source, _ in PAIRS * 5), encoding="utf-8")
    return path


def test_pieces_by_shards_are_what_one_process_translates(run, model, letters, tmp_path, monkeypatch):
    monkeypatch.setattr("dikkat.cli.sharded._LINES", 16)  # 16 lines a piece, with a batch of one
    whole = ["translate", model, "--file", letters, "--batch-size", 1]
    pieces = [*whole, "--pieces", tmp_path / "pieces"]
    assert run(*pieces, "--shard", "2/2")[0] == 0
    status, _, error = run(*pieces, "--collect")
    assert status == 2
    assert "2 pieces are missing, the first with lines 1 to 16 of letters.en" in error
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(*pieces, "--shard", "env") == (0, "", "3 pieces are done; the same command with --collect joins them\n")
    collected = subprocess.run(  # what it writes are bytes
        [sys.executable, "-c", _WITH_SMALL_PIECES, *map(str, pieces), "--collect"], capture_output=True, check=True
    )
    assert collected.stdout.decode() == run(*whole)[1]
    status, _, error = run(*pieces, "--collect", "--beam", 2)
    assert status == 2
    assert "search" in error


_WITH_SMALL_PIECES = "from dikkat.cli import main, sharded; sharded._LINES = 16; main()"


def test_workers_share_a_file(run, model, letters, tmp_path, monkeypatch):
    """The first of two is killed by itself as soon as it has done a piece, and started again."""
    monkeypatch.setattr("dikkat.cli.sharded._LINES", 16)
    real = subprocess.Popen
    kills = []

    def popen(command, **more):
        code = _WITH_SMALL_PIECES
        if command[-1] == "--shard=1/2" and not kills:
            kills.append(command)
            code = _WITH_SMALL_PIECES.replace("main()", _KILLED + "main()")
        return real([sys.executable, "-c", code, *command[3:]], **more)

    monkeypatch.setattr("dikkat.cli.sharded.subprocess.Popen", popen)
    pieces = ["translate", model, "--file", letters, "--batch-size", 1, "--pieces", tmp_path / "pieces"]
    assert run(*pieces, "--workers", 2) == (0, "", "3 pieces are done; the same command with --collect joins them\n")
    assert len(kills) == 1
    assert len(list((tmp_path / "pieces").glob("*.piece"))) == 3


_KILLED = """
import os, signal
from dikkat.translation.decoding import shards
write = shards.Pieces._write
def killed(self, *more):
    write(self, *more)
    os.kill(os.getpid(), signal.SIGKILL)
shards.Pieces._write = killed
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--shard", "1/2"], "--shard is given without --pieces"),
        (["--pieces", "p"], "--pieces is given without --file"),
        (["--file", "f", "--pieces", "p", "--shard", "3/2"], "--shard: got 3/2; expected one of 1/N to N/N"),
        (["--file", "f", "--pieces", "p", "--shard", "1/2", "--collect"], "--shard and --collect are both given"),
        (["--file", "f", "--pieces", "p", "--sample"], "--sample is given with --pieces"),
    ],
)
def test_pieces_that_cannot_be(run, model, options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_text("Go.\n")
    status, _, error = run("translate", model, *options)
    assert status == 2
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_faults_are_a_line_that_says_what_to_do(run, model, letters, tmp_path, monkeypatch):
    """A full disk, another process at the shard, a model that has changed since, an empty file."""
    folder, mine = tmp_path / "pieces", tmp_path / "model"
    shutil.copytree(model, mine)
    pieces = ["translate", mine, "--file", letters, "--pieces", folder]
    with monkeypatch.context() as patch:
        patch.setattr("dikkat.translation.decoding.shards.write_whole", _full)
        status, _, error = run(*pieces, "--shard", "1/2")  # the plan, which is the first to be written
    assert (status, len(error.splitlines())) == (2, 1)
    assert "plan.json: No space left on device; pieces that are done are kept: start again when" in error
    assert run(*pieces, "--shard", "2/2")[0] == 0  # of the one piece that there is, nothing
    with monkeypatch.context() as patch:
        patch.setattr("dikkat.translation.decoding.shards.write_whole", _full)
        status, _, error = run(*pieces)
    assert (status, len(error.splitlines())) == (2, 1)
    assert "letters.en.000000000.piece: No space left on device; pieces that are done are kept" in error
    with locked(folder / "locks" / "1-of-1", wait=False):
        status, _, error = run(*pieces)
    assert (status, len(error.splitlines())) == (2, 1)
    assert f"shard: 1/1 is being translated by process {os.getpid()} on " in error
    (mine / "note.txt").write_text("another")
    status, _, error = run(*pieces)
    assert (status, len(error.splitlines())) == (2, 1)
    assert "got made by models ['" in error
    assert "expected as it was begun: give the same model and options, or another folder" in error
    (tmp_path / "nothing").write_text("")
    empty = ["translate", mine, "--file", tmp_path / "nothing", "--pieces", tmp_path / "none"]
    assert run(*empty)[0] == 0
    assert run(*empty, "--collect") == (0, "", "")


def _full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
