"""Several processes that train together come to what one comes to, to rounding."""

import dataclasses
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from dikkat.translation import CorpusError
from dikkat.translation.network.model import collate
from dikkat.translation.training import loop
from dikkat.translation.training.distributed import Processes, processes
from dikkat.translation.training.loop import steps as steps_of
from dikkat.translation.training.state import TrainingState
from dikkat.translation.training.train import train
from translation.taught import PAIRS, TINY

# Seven pairs, three a batch, in two processes: a row over in each batch, and in the last one a process without any.
SETTINGS = dataclasses.replace(
    TINY, epochs=3, batch_size=3, accumulate=2, average=2, criterion="bleu", length_penalty=None
)
RANDOM = dataclasses.replace(SETTINGS, epochs=2, dropout=0.2, attention_dropout=0.1, criterion="loss")
PROGRAM = """
import json, signal, sys
import torch
torch.set_num_threads(1)
from dikkat.translation.training.loop import Loop
from dikkat.translation.training.distributed import processes
from dikkat.translation import CorpusError
from dikkat.translation.training.train import train
from translation.test_processes import PAIRS, RANDOM, SETTINGS
try:  # other vocabularies, so that the models have other shapes
    train(SETTINGS, PAIRS[:3 + 4 * processes().rank], PAIRS, progress=False)
except CorpusError as error:
    with open(f"{sys.argv[1]}-{processes().rank}.txt", "w") as file:
        file.write(str(error))
result = train(SETTINGS, PAIRS[:7], PAIRS, folder=sys.argv[1], progress=False)
weights = {name: tensor.double().sum().item() for name, tensor in result.translator.model.state_dict().items()}
found = {"losses": [epoch.training_loss for epoch in result.epochs], "weights": weights,
         "validations": [[each.step, each.loss, each.bleu] for each in result.validations],
         "penalty": result.translator.settings.length_penalty}
with open(f"{sys.argv[1]}-{processes().rank}.json", "w") as file:
    json.dump(found, file)

# Stopped in one of the processes and gone on with, a training comes to the same bits.
peace, step = train(RANDOM, PAIRS[:7], PAIRS, progress=False), Loop._take_step
def stopping(self, *more):
    if self.state.step == 2 and processes().rank == 1:
        signal.raise_signal(signal.SIGTERM)
    return step(self, *more)
Loop._take_step, again = stopping, dict(folder=sys.argv[1] + "-stopped", progress=False)
assert train(RANDOM, PAIRS[:7], PAIRS, **again).interrupted
Loop._take_step = step
resumed = train(RANDOM, PAIRS[:7], PAIRS, resume=True, **again)
wanted = peace.translator.model.state_dict()
assert all(torch.equal(tensor, wanted[name]) for name, tensor in resumed.translator.model.state_dict().items())
"""


def test_two_processes_come_to_what_one_comes_to(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, "tests"]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*command, str(program), str(tmp_path / "run")], env=environment, check=True, timeout=240)
    one = train(SETTINGS, PAIRS[:7], PAIRS, progress=False)
    for rank in (0, 1):
        refusal = (tmp_path / f"run-{rank}.txt").read_text()
        assert "process 1 has other corpora, or other settings, than process 0" in refusal
        found = json.loads((tmp_path / f"run-{rank}.json").read_text())
        assert found["losses"] == pytest.approx([epoch.training_loss for epoch in one.epochs], rel=1e-5)
        wanted = [[each.step, each.loss, each.bleu] for each in one.validations]
        assert [each[:2] for each in found["validations"]] == [pytest.approx(each[:2], rel=1e-5) for each in wanted]
        assert [each[2] for each in found["validations"]] == pytest.approx([each[2] for each in wanted])
        sums = {name: tensor.double().sum().item() for name, tensor in one.translator.model.state_dict().items()}
        assert found["penalty"] == one.translator.settings.length_penalty
        assert found["weights"] == pytest.approx(sums, rel=1e-4, abs=1e-4)
    steps = [entry.name for entry in (tmp_path / "run" / "checkpoints").iterdir()]
    assert steps == [f"step-{one.validations[-1].step:09}"]


def test_alone_unless_torchrun_says_otherwise(monkeypatch):
    assert processes() == Processes(0, 1, 0)
    for name, value in {"WORLD_SIZE": "6", "RANK": "4", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert processes() == Processes(0, 1, 0)  # other launchers set some of these too
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert processes() == Processes(4, 6, 1)


class Fixed:
    """Batches of a known order."""

    def __init__(self, batches):
        self.batches = batches

    def epoch(self, _, first):
        return iter(self.batches[first:])

    def __len__(self):
        return len(self.batches)


def test_a_step_weighs_its_batches_by_their_tokens():
    sizes = [2, 4, 1, 3, 5]  # with the ends 3, 5, 2, 4, 6 tokens
    batches = [collate([([5], [6] * size)]) for size in sizes]
    steps = list(steps_of(Fixed(batches), TrainingState(), epochs=2, accumulate=2, world=1))
    first, *_ = steps
    assert [step.tokens for step in steps] == [8, 6, 6] * 2
    assert first.weights == (3 / 8, 5 / 8)
    assert [len(step.batches) for step in steps] == [2, 2, 1] * 2
    assert [(step.position, step.last) for step in steps] == [(2, False), (4, False), (5, True)] * 2
    on = list(steps_of(Fixed(batches), TrainingState(epoch=1, batch=2), epochs=2, accumulate=2, world=1))
    assert [(step.position, step.tokens) for step in on] == [(4, 6), (5, 6)]


def test_of_two_processes_one_without_rows_weighs_nothing():
    batch = collate([([5], [6, 7])])
    whole = batch._replace(total_tokens=4)  # the other process has one token
    (step,) = steps_of(Fixed([whole]), TrainingState(), epochs=1, accumulate=1, world=2)
    assert step.weights == (2 * 3 / 4,)
    (step,) = steps_of(Fixed([whole._replace(counts=False)]), TrainingState(), epochs=1, accumulate=1, world=2)
    assert (step.weights, step.tokens) == ((0.0,), 4)


def test_processes_that_have_different_corpora_are_told_so():
    values = [{"training corpus": 3}, TINY.to_dict()]
    with pytest.raises(CorpusError, match="process 2 has other corpora, or other settings, than process 0"):
        loop._check_same_everywhere(SimpleNamespace(gather=lambda own: torch.stack([own, own, own + 1])), values)
    loop._check_same_everywhere(SimpleNamespace(gather=lambda own: torch.stack([own, own])), values)
