"""Four processes that train together: one that is killed, and going on with as many, with fewer, and alone."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from dikkat.translation.training.train import train
from translation.conftest import PAIRS, TINY

# Seven pairs, three a batch, in four processes: in no batch has each of them a row, and in the last one has only one.
SETTINGS = dataclasses.replace(TINY, epochs=4, batch_size=3, accumulate=2, average=2, checkpoint_steps=1, patience=40)
RANDOM = dataclasses.replace(SETTINGS, dropout=0.2, attention_dropout=0.1)
JUDGED = [("I lost the man.", "J'ai perdu l'homme."), ("She's calm.", "Elle est calme."), ("Go home.", "Va chez toi.")]
# Which process is killed after step 5, or asked to stop after step 4: two steps are an epoch.
KILLED = 2

# Each process: its words are what it is to do, one after another.
PROGRAM = """
import os, signal, sys, warnings
import torch
torch.set_num_threads(1)
from dikkat.cli import main
from dikkat.translation.training.loop import Loop
from dikkat.translation.training.train import train
from translation.test_lost_processes import KILLED, PAIRS, SETTINGS

rank, step = int(os.environ["RANK"]), Loop._take_step

def after(steps, act):
    def looking(self, *more):
        if self.state.step == steps and rank == KILLED:
            act()
        return step(self, *more)
    return looking

def command(*words):
    sys.argv = ["dikkat", "train", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise

for word in sys.argv[1:]:
    what, place, *words = word.split(",")
    Loop._take_step = step
    if what == "killed":
        Loop._take_step = after(5, lambda: os.kill(os.getpid(), signal.SIGKILL))
    if what == "asked":
        Loop._take_step = after(4, lambda: signal.raise_signal(signal.SIGTERM))
        assert train(SETTINGS, PAIRS[:7], PAIRS, folder=place, progress=False).interrupted
    elif what == "resumed":
        train(SETTINGS, PAIRS[:7], PAIRS, folder=place, resume=True, progress=False).translator.save(words[0])
    else:
        command("--output", place, *words)
"""


def run(folder, world, *words):
    """What each process said, and its status; as torchrun starts them, but without it: it would end them itself."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=4))
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, "tests"]), "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port), "WORLD_SIZE": str(world),
    }  # fmt: skip
    said = [folder / f"said-{rank}" for rank in range(world)]
    with ExitStack() as open_ones:
        started = []
        for rank, path in enumerate(said):
            process = subprocess.Popen(
                [sys.executable, str(program), *map(str, words)],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stderr=open_ones.enter_context(path.open("w")),
            )
            open_ones.callback(process.wait)
            open_ones.callback(process.kill)
            started.append(process)
        statuses = [process.wait(timeout=300) for process in started]
    return [(path.read_text(), status) for path, status in zip(said, statuses, strict=True)]


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """A training left in peace, one stopped within its third epoch, one killed there; and what the processes said."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("four")
    (folder / "pairs.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in PAIRS[:7]), encoding="utf-8")
    (folder / "judged.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in JUDGED), encoding="utf-8")
    settings = [f"--{name.replace('_', '-')}={value}" for name, value in _given().items()]
    corpora = [f"--corpus={folder / 'pairs.tsv'}", f"--validation={folder / 'judged.tsv'}"]
    options = ",".join([*corpora, *settings])
    said = run(folder, 4, f"peace,{folder / 'peace'},{options}", f"asked,{folder / 'asked'}",
               f"killed,{folder / 'killed'},{options}")  # fmt: skip
    return folder, said


def _given():
    before = dataclasses.asdict(type(RANDOM)())
    return {name: value for name, value in dataclasses.asdict(RANDOM).items() if value != before[name]}


def test_where_one_is_killed_the_others_end_with_a_line(four):
    _, said = four
    assert [status for _, status in said] == [-signal.SIGKILL if rank == KILLED else 2 for rank in range(4)]
    for rank, (text, _) in enumerate(said):
        if rank != KILLED:
            (line,) = (line for line in text.splitlines() if " has lost the others" in line)
            assert line.startswith(f"dikkat: process {rank} of 0 to 3 has lost the others: one of them has ended")
            assert line.endswith("Start all of them again, with resume if there is a checkpoint")
            assert "Traceback" not in text
    assert "the training broke off; the best model so far is saved" in said[0][0]


def test_as_many_go_on_to_the_same_bits(four, tmp_path):
    folder, _ = four
    again = run(tmp_path, 4, f"again,{folder / 'killed'},--resume")
    assert [status for _, status in again] == [0] * 4, again[0][0]
    assert "going on in epoch 3 after step 5" in again[0][0]
    peace, killed = (load_file(folder / name / "model.safetensors") for name in ("peace", "killed"))
    assert peace.keys() == killed.keys()
    assert all(torch.equal(peace[name], killed[name]) for name in peace)


def test_another_number_goes_on_to_rounding(four, tmp_path):
    """What four began, two and one bring to what one alone, from first to last, comes to."""
    folder, _ = four
    for name in ("two", "one"):
        shutil.copytree(folder / "asked", tmp_path / name)
    said = run(tmp_path, 2, f"resumed,{tmp_path / 'two'},{tmp_path / 'model'}")
    assert [status for _, status in said] == [0, 0], said[0][0]
    assert "the training ran in 4 processes and goes on in 2, so that its weights may differ" in " ".join(
        said[0][0].split()
    )
    with pytest.warns(UserWarning, match=r"ran in 4 processes and goes on in 1, .* never stopped by rounding"):
        one = train(SETTINGS, PAIRS[:7], PAIRS, folder=tmp_path / "one", resume=True, progress=False)
    whole = train(SETTINGS, PAIRS[:7], PAIRS, progress=False)
    assert [each.step for each in one.validations] == [each.step for each in whole.validations]
    wanted = whole.translator.model.state_dict()
    for found in (one.translator.model.state_dict(), load_file(tmp_path / "model" / "model.safetensors")):
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-4)
