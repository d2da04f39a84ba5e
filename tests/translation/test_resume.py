"""A training that was stopped and goes on comes to what it would have come to: bit for bit."""

import dataclasses
import functools
import json
import math
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
import torch

from command import run_before
from dikkat.storage import folders
from dikkat.translation import CorpusError, SettingsError, TrainingDivergedError
from dikkat.translation.errors import TrainingFolderError
from dikkat.translation.training import checkpoints, run_folder
from dikkat.translation.training.loop import Loop
from dikkat.translation.training.results import TrainingStorageError
from dikkat.translation.training.run_folder import RunFolder
from dikkat.translation.training.train import train
from processes import python
from translation.taught import PAIRS, TINY

# Eight pairs, two a batch: four batches an epoch.
SHORT = dataclasses.replace(
    TINY, epochs=3, batch_size=2, dropout=0.2, attention_dropout=0.1, checkpoint_steps=1, length_penalty=None,
)  # fmt: skip
KINDS = {
    "every step": {},
    "every third step": {"checkpoint_steps": 3},
    "accumulation with a remainder": {"accumulate": 3, "num_layers": 2},
    "validations within epochs": {
        "validation_steps": 3, "average": 2, "checkpoint_steps": 2, "schedule": "plateau", "epochs": 2,
    },
    "by BLEU": {"criterion": "bleu", "schedule": "cosine", "checkpoint_steps": 5},
}  # fmt: skip


class KilledError(BaseException):
    """As abrupt as something within the process can be."""


def weights(result):
    return result.translator.model.state_dict()


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def learn(settings, folder=None, *, validation=PAIRS[:5], **options):
    return train(settings, PAIRS, validation, folder=folder, progress=False, **options)


def losses(result):
    return [(each.step, each.loss) for each in result.validations]


@functools.cache
def in_peace(settings):
    return learn(settings)


def killed_in(monkeypatch, settings, folder, method, call, *, before=True, **options):
    """Train until a method of the loop is called for the so manieth time, from 1."""
    inner, calls = getattr(Loop, method), []

    def killing(self, *args, **kwargs):
        calls.append(args)
        if before and len(calls) == call:
            raise KilledError
        result = inner(self, *args, **kwargs)
        if len(calls) == call:
            raise KilledError
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Loop, method, killing)
        with pytest.raises(KilledError):
            learn(settings, folder, **options)


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
def test_a_training_goes_on_from_wherever_it_was_stopped(tmp_path, monkeypatch, changes):
    settings = dataclasses.replace(SHORT, **changes)
    whole = in_peace(settings)
    steps = settings.epochs * (2 if settings.accumulate > 1 else 4)
    for call in range(1, steps + 1) if settings.average > 1 else (1, 4, 6):
        folder = tmp_path / f"{call}"
        killed_in(monkeypatch, settings, folder, "_take_step", call, before=call % 2 == 0)
        again = learn(settings, folder, resume=True)
        assert equal(weights(again), weights(whole)), call
        assert [each.loss for each in again.validations] == [each.loss for each in whole.validations]
        assert [each.training_loss for each in again.epochs] == [each.training_loss for each in whole.epochs]


@pytest.mark.parametrize("method", ["_validate", "_bleu_of_sample", "_save", "_checkpoint", "_keep_weights"])
def test_also_from_within_a_validation_or_a_checkpoint(tmp_path, monkeypatch, method):
    settings = dataclasses.replace(SHORT, criterion="bleu" if method == "_bleu_of_sample" else "loss")
    whole = in_peace(settings)
    for call in (1, 2):
        folder = tmp_path / f"{call}"
        killed_in(monkeypatch, settings, folder, method, call, before=call % 2 == 0)
        assert equal(weights(learn(settings, folder, resume=True)), weights(whole))


def test_a_folder_changes_nothing_and_holds_the_newest_checkpoint_and_the_best_weights_alone(tmp_path):
    settings = dataclasses.replace(SHORT, average=2)
    with_folder = learn(settings, tmp_path / "run")
    assert equal(weights(with_folder), weights(in_peace(settings)))
    assert [entry.name for entry in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000000012"]
    best = sorted(with_folder.validations, key=lambda each: each.loss)[:2]
    wanted = {f"step-{each.step:09}.safetensors" for each in best}
    assert {entry.name for entry in (tmp_path / "run" / "best").iterdir()} == wanted
    pickled = [file for file in tmp_path.rglob("*") if file.suffix in (".ckpt", ".pt", ".pth", ".pkl")]
    assert pickled == []


def test_a_finished_training_gives_its_result_again_and_makes_room_for_a_new_one(tmp_path):
    first = learn(SHORT, tmp_path / "run")
    again = learn(SHORT, tmp_path / "run", resume=True)
    assert equal(weights(again), weights(first))
    assert again.epochs == first.epochs
    other = learn(dataclasses.replace(SHORT, seed=1), tmp_path / "run")
    assert not equal(weights(other), weights(first))


def test_an_unfinished_training_is_not_begun_anew_by_mistake(tmp_path, monkeypatch):
    killed_in(monkeypatch, SHORT, tmp_path / "run", "_take_step", 6)
    with pytest.raises(TrainingFolderError, match=r"run: a training stopped here after step 5\. Continue it"):
        learn(SHORT, tmp_path / "run")
    with pytest.raises(TrainingFolderError, match=r"resume and overwrite .*: expected only one of them"):
        learn(SHORT, tmp_path / "run", resume=True, overwrite=True)
    assert equal(weights(learn(SHORT, tmp_path / "run", overwrite=True)), weights(in_peace(SHORT)))


def test_there_must_be_something_to_go_on_with(tmp_path):
    with pytest.raises(TrainingFolderError, match="empty: no training to resume"):
        learn(SHORT, tmp_path / "empty", resume=True)
    with pytest.raises(TrainingFolderError, match="folder: got None; expected the folder"):
        learn(SHORT, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingFolderError, match="cannot save a training run there"):
        learn(SHORT, tmp_path / "file" / "run")


def test_changed_settings_are_named_each_with_both_values(tmp_path, monkeypatch):
    killed_in(monkeypatch, SHORT, tmp_path / "run", "_take_step", 6)
    other = dataclasses.replace(SHORT, hidden_size=34, dropout=0.1, epochs=9, patience=2)
    message = r"other settings: hidden_size was 32 and is 34; dropout was 0\.2 and is 0\.1\. "
    with pytest.raises(TrainingFolderError, match=message) as caught:
        learn(other, tmp_path / "run", resume=True)
    assert "only checkpoint_steps, keep_epochs, epochs, max_minutes, patience, length_penalty may change" in str(
        caught.value
    )


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt", "plateau"])
def test_a_longer_training_is_the_one_that_was_planned_so(tmp_path, schedule):
    settings = dataclasses.replace(SHORT, schedule=schedule, epochs=2)
    longer = dataclasses.replace(settings, epochs=4, checkpoint_steps=7)
    learn(settings, tmp_path / "run")
    again = learn(longer, tmp_path / "run", resume=True)
    assert len(again.epochs) == 4
    assert equal(weights(again), weights(in_peace(longer)))


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_made_longer_the_rate_falls_to_0_anew_from_where_the_new_plan_has_it(tmp_path, monkeypatch, schedule):
    settings = dataclasses.replace(SHORT, schedule=schedule, epochs=2, warmup_steps=0)
    learn(settings, tmp_path / "run")
    shares, inner = [], Loop._share_of_learning_rate
    monkeypatch.setattr(Loop, "_share_of_learning_rate", lambda self: shares.append(inner(self)) or shares[-1])
    assert len(learn(dataclasses.replace(settings, epochs=5), tmp_path / "run", resume=True).epochs) == 5
    left = [1 - step / 20 for step in range(8, 20)]
    assert shares == pytest.approx(left if schedule == "linear" else [(1 - math.cos(math.pi * x)) / 2 for x in left])


@pytest.mark.parametrize(
    ("training", "validation", "message"),
    [
        (PAIRS[:7], PAIRS[:5], "the (vocabulary|training corpus) has changed"),
        (
            PAIRS[::-1],
            PAIRS[:5],
            "the training corpus has changed since .*: got as many others; expected the same 8 pairs",
        ),
        (PAIRS, PAIRS[:4], "the validation corpus has changed .*: got 4 pairs; expected the same 5 pairs"),
        (PAIRS, None, "the validation corpus has changed .*: got none; expected the same 5 pairs"),
    ],
)
def test_a_changed_corpus_is_refused(tmp_path, monkeypatch, training, validation, message):
    killed_in(monkeypatch, SHORT, tmp_path / "run", "_take_step", 6)
    with pytest.raises(TrainingFolderError, match=message):
        train(SHORT, training, validation, folder=tmp_path / "run", resume=True, progress=False)


def test_a_checkpoint_of_another_model_names_the_tensors(tmp_path, monkeypatch):
    killed_in(monkeypatch, SHORT, tmp_path / "run", "_take_step", 6)
    newest = RunFolder(tmp_path / "run").newest()
    checkpoint = checkpoints.load(newest)
    checkpoint.model["bridge.weight"] = torch.ones(3, 5)
    del checkpoint.model["bridge.bias"]
    checkpoint.model["more"] = torch.ones(2)
    folders.remove_folder(newest)
    checkpoints.save(checkpoint, newest)
    with pytest.raises(TrainingFolderError, match="got a checkpoint of another model") as caught:
        learn(SHORT, tmp_path / "run", resume=True)
    for fault in (
        "bridge.weight: got float32 (3, 5); expected float32 (32, 32)",
        "bridge.bias: got nothing; expected float32 (32,)",
        "more: got float32 (2,); expected nothing",
    ):
        assert fault in str(caught.value)


def test_a_damaged_checkpoint_is_not_gone_on_with(tmp_path, monkeypatch):
    killed_in(monkeypatch, SHORT, tmp_path / "run", "_take_step", 6)
    file = RunFolder(tmp_path / "run").newest() / "optimizer.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(TrainingFolderError, match=r"optimizer\.safetensors is damaged"):
        learn(SHORT, tmp_path / "run", resume=True)


def test_two_trainings_into_one_folder(tmp_path):
    with (
        RunFolder(tmp_path / "run").locked(),
        pytest.raises(TrainingFolderError, match=rf"run: process {os.getpid()} on .* is training into it"),
    ):
        learn(SHORT, tmp_path / "run")
    learn(dataclasses.replace(SHORT, epochs=1), tmp_path / "run")  # afterwards it is free


def test_what_a_killed_process_left_half_written_goes(tmp_path):
    half = tmp_path / "run" / "checkpoints" / ".step-000000004.abcd1234.part"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    (tmp_path / "run" / "best").mkdir()
    (tmp_path / "run" / "best" / ".0123.part").write_bytes(b"half")
    learn(dataclasses.replace(SHORT, epochs=1), tmp_path / "run")
    assert list(tmp_path.rglob("*.part")) == []


def test_a_loss_that_is_not_a_number_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    def spoiled(loop, *_):
        if loop.state.step == 6:
            with torch.no_grad():
                loop.model.bridge.bias[3] = float("nan")

    with monkeypatch.context() as patch:
        run_before(patch, Loop, "_take_step", spoiled)
        with pytest.raises(TrainingDivergedError, match=r"at step 7, where bridge\.bias is not finite"):
            learn(SHORT, tmp_path / "run")
    newest = RunFolder(tmp_path / "run").newest()
    assert newest.name == "step-000000006"
    assert all(bool(tensor.isfinite().all()) for tensor in checkpoints.load(newest).model.values())


@pytest.mark.parametrize("module", [folders, run_folder])
def test_no_space_left_says_which_and_keeps_the_checkpoint_before(tmp_path, monkeypatch, module):
    write, calls = module.write_whole, []

    def full(*args):
        calls.append(args)
        if len(calls) > 13:
            raise OSError(28, "No space left on device")
        write(*args)

    settings = dataclasses.replace(SHORT, epochs=40, average=20)
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_whole", full)
        with pytest.raises(TrainingStorageError, match="could not be written") as caught:
            learn(settings, tmp_path / "run")
    what = "the checkpoint" if module is folders else "the weights"
    assert str(caught.value).startswith(f"{tmp_path / 'run'}: {what} after step ")
    assert "(No space left on device)" in str(caught.value)
    newest = RunFolder(tmp_path / "run").newest()
    assert f"{newest} is intact: free space, and resume" in str(caught.value)
    checkpoints.load(newest)
    assert list((tmp_path / "run").rglob("*.part")) == []
    assert bool(caught.value.training) == bool(module is run_folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_at_the_next_step_with_a_checkpoint(tmp_path, monkeypatch, number):
    handler, settings = signal.getsignal(number), dataclasses.replace(SHORT, checkpoint_steps=1000)
    with monkeypatch.context() as patch:
        run_before(patch, Loop, "_take_step", lambda loop, *_: loop.state.step == 5 and os.kill(os.getpid(), number))
        result = learn(settings, tmp_path / "run")
    assert result.interrupted
    assert result.resumable
    assert len(result.epochs) == 1
    assert RunFolder(tmp_path / "run").newest().name == "step-000000006"
    assert signal.getsignal(number) is handler
    again = learn(settings, tmp_path / "run", resume=True)
    assert not again.interrupted
    assert equal(weights(again), weights(in_peace(settings)))


def test_before_the_first_validation_there_is_nothing_but_the_folder(tmp_path, monkeypatch):
    run_before(monkeypatch, Loop, "_take_step", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    result = learn(SHORT, tmp_path / "run")
    assert (result.interrupted, result.resumable, result.epochs) == (True, True, [])
    with pytest.raises(KeyboardInterrupt):
        learn(SHORT)


def test_the_second_ctrl_c_stops_at_once(tmp_path, monkeypatch):
    reached = []

    def interrupted(self, *args):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        reached.append(args)

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Loop, "_take_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        learn(SHORT, tmp_path / "run")
    assert reached == []
    assert signal.getsignal(signal.SIGINT) is handler


def test_in_another_thread_signals_are_left_alone():
    found = []
    thread = threading.Thread(target=lambda: found.append(learn(dataclasses.replace(SHORT, epochs=1))))
    thread.start()
    thread.join()
    assert len(found[0].epochs) == 1


PROGRAM = """
import dataclasses, json, random, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from translation.test_resume import PAIRS, SHORT
from dikkat.translation.training.train import train
from tests.stress import kills
kills.import_once()
settings = dataclasses.replace(SHORT, epochs=2)
train(settings, PAIRS, PAIRS[:5], progress=False)  # so that not every child loads the kernels
*_, found = kills.kill(Path(sys.argv[1]), settings, PAIRS, PAIRS[:5], 2, random.Random(2))
print(json.dumps(found))
"""


@pytest.mark.skipif(os.name == "nt", reason="no fork there")
def test_killed_by_the_system_at_any_time(tmp_path):
    """`tests.stress.kills` does it many times more."""
    found = json.loads(python(PROGRAM, tmp_path).stdout.splitlines()[-1])
    assert found["kills"] >= 2
    assert (found["unreadable"], found["different_in_silence"]) == (0, 0)


def test_no_validation_keeps_the_last_weights_and_goes_on_too(tmp_path, monkeypatch):
    whole = train(SHORT, PAIRS, progress=False)
    assert whole.validations == []
    assert {epoch.validation_loss for epoch in whole.epochs} == {None}
    killed_in(monkeypatch, SHORT, tmp_path / "run", "_take_step", 7, validation=[])
    assert equal(weights(train(SHORT, PAIRS, folder=tmp_path / "run", resume=True, progress=False)), weights(whole))
    with pytest.raises(SettingsError, match="average: got 2 without validation pairs"):
        train(dataclasses.replace(SHORT, average=2), PAIRS, progress=False)


def test_the_time_before_a_stop_counts(tmp_path, monkeypatch):
    """What is left of `max_minutes` is what had not passed when the checkpoint was made."""
    settings = dataclasses.replace(SHORT, max_minutes=50.0)
    elapsed = Loop._elapsed
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_elapsed", lambda self: elapsed(self) + 40 * 60)
        killed_in(monkeypatch, settings, tmp_path / "run", "_take_step", 2)
        again = learn(settings, tmp_path / "run", resume=True)  # 80 minutes: over after a step
    assert [each.step for each in again.validations] == [2]
    third = learn(settings, tmp_path / "run", resume=True)  # it has come to its end
    assert equal(weights(third), weights(again))


def test_the_seconds_are_those_of_the_whole_training(tmp_path, monkeypatch):
    elapsed = Loop._elapsed
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_elapsed", lambda self: elapsed(self) + 1000)
        assert 1000 < learn(SHORT).seconds < 1100
        killed_in(monkeypatch, SHORT, tmp_path / "run", "_take_step", 6)
    assert 1000 < learn(SHORT, tmp_path / "run", resume=True).seconds < 1100


@pytest.mark.parametrize("progress", [None, False])
def test_ctrl_c_is_answered_where_anything_is_shown(capfd, monkeypatch, progress):
    def interrupted(loop, *_):
        if loop.state.step == 5:
            signal.raise_signal(signal.SIGINT)

    run_before(monkeypatch, Loop, "_take_step", interrupted)
    assert train(SHORT, PAIRS, PAIRS[:5], progress=progress).interrupted
    answered = "dikkat: stopping after this step; Ctrl-C again stops at once" in capfd.readouterr().err.splitlines()
    assert answered == (progress is None)


def test_a_new_training_that_is_refused_leaves_the_one_that_is_there(tmp_path):
    first = learn(SHORT, tmp_path / "run")
    kept = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != "lock"}
    begun = []
    for settings, corpus, validation in (
        (dataclasses.replace(SHORT, criterion="bleu"), PAIRS, None),
        (SHORT, [], PAIRS),
        (dataclasses.replace(SHORT, min_freq=99), PAIRS, PAIRS),
        (dataclasses.replace(SHORT, batch_tokens=2), PAIRS, PAIRS),
    ):
        with pytest.raises((SettingsError, CorpusError)):
            train(settings, corpus, validation, folder=tmp_path / "run", progress=False, on_begin=begun.append)
        assert {path: path.read_bytes() for path in kept} == kept
    with pytest.raises(TrainingFolderError, match="corpus has changed"):
        learn(SHORT, tmp_path / "run", resume=True, validation=PAIRS[:3], on_begin=begun.append)
    assert begun == []
    again = learn(SHORT, tmp_path / "run", resume=True, on_begin=begun.append)
    assert begun == [tmp_path / "run"]
    assert equal(weights(again), weights(first))


@pytest.mark.parametrize("call", range(1, 8))
def test_killed_while_a_new_training_begins(tmp_path, monkeypatch, call):
    """Before each change of the folder: the old training is whole, or another can begin."""
    old, new = dataclasses.replace(SHORT, epochs=1), dataclasses.replace(SHORT, epochs=1, seed=1)
    first, calls = learn(old, tmp_path / "run"), []

    def killing(inner):
        def change(*args, **options):
            calls.append(args)
            if len(calls) == call:
                raise KilledError
            return inner(*args, **options)

        return change

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_whole", killing(run_folder.write_whole))
        patch.setattr(shutil, "rmtree", killing(shutil.rmtree))
        patch.setattr(Path, "unlink", killing(Path.unlink))
        with pytest.raises(KilledError):
            learn(new, tmp_path / "run")
    if call == 1:
        assert equal(weights(learn(old, tmp_path / "run", resume=True)), weights(first))
    else:
        with pytest.raises(TrainingFolderError, match=r"no training to resume\. Start one without resume"):
            learn(new, tmp_path / "run", resume=True)
    assert equal(weights(learn(new, tmp_path / "run")), weights(in_peace(new)))
    assert list((tmp_path / "run").rglob(".*")) == []


def test_a_bit_that_flips_in_the_best_weights_is_noticed(tmp_path):
    learn(SHORT, tmp_path / "run")
    (file,) = (tmp_path / "run" / "best").iterdir()
    data = bytearray(file.read_bytes())
    data[-3] ^= 1  # of a number: the file can still be read
    file.write_bytes(data)
    with pytest.raises(TrainingFolderError, match=rf"{file.name}: damaged: wrong checksum"):
        learn(SHORT, tmp_path / "run", resume=True)
    file.unlink()
    with pytest.raises(TrainingFolderError, match=rf"{file.name}: cannot be read"):
        learn(SHORT, tmp_path / "run", resume=True)


def test_an_epoch_that_the_end_cut_short_counts_as_far_as_it_came(tmp_path, monkeypatch, capsys):
    settings = dataclasses.replace(SHORT, schedule="constant", max_minutes=50.0)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_is_late", lambda self: self.state.step == 5)  # in its sixth step, the second epoch's
        result = train(settings, PAIRS, PAIRS[:5], folder=tmp_path / "run")
    assert [each.number for each in result.epochs] == [1, 2]
    assert result.epochs[-1].validation_loss == result.validations[-1].loss
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == ["epoch 1", "epoch 2"]
    again = learn(dataclasses.replace(settings, max_minutes=None), tmp_path / "run", resume=True)  # goes on within it
    whole = in_peace(dataclasses.replace(settings, max_minutes=None))
    assert [each.training_loss for each in again.epochs] == [each.training_loss for each in whole.epochs]
    assert set(losses(again)) == {*losses(whole), losses(result)[-1]}
    assert equal(weights(again), weights(whole))


@pytest.fixture
def begun_with_two_threads(tmp_path, monkeypatch):
    """The folder of a training of two threads that was stopped; now there is one."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(2)
    killed_in(monkeypatch, SHORT, tmp_path / "run", "_take_step", 6)
    torch.set_num_threads(1)
    return tmp_path / "run"


@pytest.fixture
def threads_of_steps(monkeypatch):
    found = set()
    run_before(monkeypatch, Loop, "_take_step", lambda *_: found.add(torch.get_num_threads()))
    return found


def test_it_goes_on_with_as_many_threads(begun_with_two_threads, threads_of_steps, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    learn(SHORT, begun_with_two_threads, resume=True)
    assert threads_of_steps == {2}
    assert torch.get_num_threads() == 1  # the caller's own stay


@pytest.mark.parametrize(("processors", "requested"), [({0}, None), ({0, 1}, "1")])
def test_it_says_where_it_cannot(begun_with_two_threads, threads_of_steps, monkeypatch, processors, requested):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: processors, raising=False)
    if requested is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", requested)
    with pytest.warns(UserWarning, match="began with 2 threads and resumes with 1, .* may differ"):
        learn(SHORT, begun_with_two_threads, resume=True)
    assert threads_of_steps == {1}


def test_it_says_from_where_it_goes_on(tmp_path, monkeypatch, capsys):
    killed_in(monkeypatch, SHORT, tmp_path, "_take_step", 6)
    train(SHORT, PAIRS, PAIRS[:5], folder=tmp_path, resume=True)
    assert capsys.readouterr().err.startswith("resuming in epoch 2 after step 5, with 1 thread\n")


def test_the_length_penalty_may_change_once_a_training_has_ended(tmp_path):
    first = learn(SHORT, tmp_path / "run").translator
    given = learn(dataclasses.replace(SHORT, length_penalty=0.5), tmp_path / "run", resume=True).translator
    assert given.settings.length_penalty == 0.5
    begun = tmp_path / "run" / "settings.json"
    older = json.loads(begun.read_text())
    del older["length_penalty"]  # of a training by a version without this setting
    begun.write_text(json.dumps(older))
    again = learn(SHORT, tmp_path / "run", resume=True).translator
    assert again.settings.length_penalty == first.settings.length_penalty is not None
    wanted = first.model.state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in again.model.state_dict().items())
