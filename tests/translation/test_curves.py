import dataclasses
import sys

import pytest
from matplotlib.figure import Figure
from sacrebleu.metrics.bleu import BLEU
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from tensorboard.summary.writer.event_file_writer import AtomicCounter, EventFileWriter
from torch.utils.tensorboard import SummaryWriter

from command import run_before
from dikkat.translation import Search
from dikkat.translation.training import train as module
from dikkat.translation.training.curves import Curves
from dikkat.translation.training.loop import Loop
from dikkat.translation.training.state import TrainingState, Validation
from dikkat.translation.training.train import train
from processes import python
from translation.conftest import PAIRS, TINY

SETTINGS = dataclasses.replace(TINY, epochs=6, batch_size=1, checkpoint_steps=9, learning_rate=0.01, warmup_steps=0)


def read(folder):
    curves = EventAccumulator(str(folder / "tensorboard"))
    curves.Reload()
    return curves


def points(curves, name):
    return [(event.step, event.value) for event in curves.Scalars(name)]


def test_the_curves_are_those_of_the_training(tmp_path):
    result = train(SETTINGS, PAIRS, PAIRS[:5], folder=tmp_path / "run", progress=False)
    curves = read(tmp_path / "run")
    assert [step for step, _ in points(curves, "training/loss")] == [1, 11, 21, 31, 41]
    # linear: of 48 steps, those before
    wanted = [(step, pytest.approx(0.01 * (1 - (step - 1) / 48))) for step in (1, 11, 21, 31, 41)]
    assert points(curves, "training/learning rate") == wanted
    assert all(rate > 0 for _, rate in points(curves, "training/tokens a second"))
    losses = [(each.step, pytest.approx(each.loss)) for each in result.validations]
    assert points(curves, "validation/loss") == losses
    pictures = curves.Tags()["images"]
    assert all(event.width >= 500 for name in pictures for event in curves.Images(name))  # 270 at matplotlib's own dpi
    assert pictures == [f"attention/sentence {number}" for number in (1, 2, 3)]
    assert {event.step for event in curves.Images(pictures[0])} == {8}  # the next are half a minute away


def test_bleu_is_that_of_what_translate_writes(tmp_path):
    settings = dataclasses.replace(SETTINGS, criterion="bleu", epochs=8)
    result = train(settings, PAIRS, PAIRS[:5], folder=tmp_path / "run", progress=False)
    best = max(each.bleu for each in result.validations)
    found = result.translator.translate([source for source, _ in PAIRS[:5]], search=Search(length_penalty=1))
    score = BLEU().corpus_score([each.target for each in found], [[target for _, target in PAIRS[:5]]]).score
    assert best == pytest.approx(score)
    assert min(each.bleu for each in result.validations) < best  # the choice was one
    written = [(each.step, pytest.approx(each.bleu, rel=1e-5)) for each in result.validations]
    assert points(read(tmp_path / "run"), "validation/BLEU") == written


def test_who_goes_on_goes_on_with_the_curve(tmp_path, monkeypatch):
    def stopping(loop, *_):
        if loop.state.step == 34:
            raise SystemExit

    # Files of one second are read by the names' last part, as text: a 10th would come before a 9th.
    monkeypatch.setattr(event_file_writer, "_global_uid", AtomicCounter(1))
    with monkeypatch.context() as patch:
        run_before(patch, Loop, "_take_step", stopping)
        with pytest.raises(SystemExit):
            train(SETTINGS, PAIRS, PAIRS[:5], folder=tmp_path / "run", progress=False)
    train(SETTINGS, PAIRS, PAIRS[:5], folder=tmp_path / "run", resume=True, progress=False)
    curves = read(tmp_path / "run")
    assert [step for step, _ in points(curves, "training/loss")] == [1, 11, 21, 31, 41]
    assert [step for step, _ in points(curves, "validation/loss")] == [8, 16, 24, 32, 40, 48]


def test_without_tensorboard_training_says_so_and_goes_on(tmp_path, monkeypatch):
    for name in list(sys.modules):
        if name == "torch.utils.tensorboard" or name.startswith("torch.utils.tensorboard."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    settings = dataclasses.replace(SETTINGS, epochs=1)
    with pytest.warns(
        UserWarning, match=r"no curves: TensorBoard is not installed. Run: pip install .*\[tensorboard\]"
    ):
        assert train(settings, PAIRS, PAIRS, folder=tmp_path / "run", progress=False).epochs


def test_what_is_shown_comes_from_all_over_the_validation_pairs(tmp_path, monkeypatch):
    shown = []

    def heatmaps(weights, *, queries, keys, xlabel, ylabel):
        assert (xlabel, ylabel) == ("source", "translation")
        shown.append(keys)
        return Figure()

    monkeypatch.setattr("dikkat.show.heatmaps", heatmaps)
    monkeypatch.setattr(SummaryWriter, "add_figure", lambda *_, **__: None)
    monkeypatch.setattr(module, "_BLEU_PAIRS", 7)
    validation = [(f"Go {number}.", "Va !") for number in range(7)] + [(f"I lost {'m' * 4}.", "Va !")] * 7
    sampled = module._sample_for_bleu(SETTINGS, validation, tmp_path)
    assert sampled == validation[::2]
    translator = train(dataclasses.replace(SETTINGS, epochs=1), PAIRS, PAIRS[:5], progress=False).translator
    translations = translator.translate([source for source, _ in PAIRS[:7]])
    Curves(tmp_path, 0).on_translations(1, translations)
    assert shown == [translations[index].source_tokens for index in (0, 2, 4)]


@pytest.mark.parametrize("call", [1, 3, 1000])
def test_a_full_disk_ends_the_curves_alone(tmp_path, monkeypatch, call):
    """At the opening, at a number, and, as it comes after the last, at the closing."""
    calls = []

    def full(inner):
        def write(*args):
            calls.append(args)
            if len(calls) >= call:
                raise OSError(28, "No space left on device")
            inner(*args)

        return write

    monkeypatch.setattr(EventFileWriter, "add_event", full(EventFileWriter.add_event))
    close = EventFileWriter.close
    monkeypatch.setattr(
        EventFileWriter, "close", lambda self: (close(self), calls.extend([self] * 1000), full(close)())
    )
    monkeypatch.setattr(Curves, "on_translations", lambda *_: None)
    settings = dataclasses.replace(SETTINGS, epochs=1)
    with pytest.warns(UserWarning, match=r"curves .* could not be written \(No space left on device\)") as caught:
        result = train(settings, PAIRS, PAIRS[:5], folder=tmp_path / "run", progress=False)
    assert len(caught) == 1
    assert len(result.validations) == 1


def test_tensorflow_is_not_imported_because_it_is_there(tmp_path):
    """What is called tensorflow here must not be touched: it stands before whatever is installed."""
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was imported')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from pathlib import Path\n"
        "from dikkat.translation.training.curves import Curves\n"
        f"Curves(Path({str(tmp_path / 'run')!r}), 0).close()\n"
        "print(sorted({'tensorflow', 'tensorboard'} & sys.modules.keys()))\n"
    )
    done = python(code)
    assert (done.stdout, done.stderr) == ("['tensorboard']\n", "")


def test_of_equally_good_validations_the_earlier_is_the_better():
    state = TrainingState(validations=[Validation(step, loss) for step, loss in ((2, 1.5), (3, 0.5), (5, 0.5), (7, 1))])
    assert state.best("loss", 3) == [3, 5, 7]
