import dataclasses
import math

import pytest
import torch

from command import run_before
from dikkat.translation import SettingsError
from dikkat.translation.training.schedules import share_of_learning_rate
from dikkat.translation.training.train import train
from translation.taught import PAIRS, TINY


def shares(schedule, steps, done=lambda step: 0.0, warmup_steps=3, halvings=0):
    settings = dataclasses.replace(TINY, schedule=schedule, warmup_steps=warmup_steps)
    return [share_of_learning_rate(settings, step, done=done(step), halvings=halvings) for step in steps]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "inverse_sqrt", "plateau"])
def test_every_schedule_warms_up(schedule):
    assert shares(schedule, range(4)) == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1])


def test_the_decays_by_hand():
    over_ten = {"done": lambda step: step / 10, "warmup_steps": 0}
    assert shares("constant", (0, 5, 99), **over_ten) == [1, 1, 1]
    assert shares("linear", (0, 5, 9, 10, 11), **over_ten) == pytest.approx([1, 0.5, 0.1, 0, 0])
    # cos(0), cos(π/3) = 1/2 at a third, cos(π/2) = 0, cos(π) = −1
    third = {"done": lambda step: step / 6, "warmup_steps": 0}
    assert shares("cosine", (0, 2, 3, 6, 7), **third) == pytest.approx([1, 3 / 4, 1 / 2, 0, 0])
    # warm-up over at step 3; a ninth of the pace is reached at 9 · 4 steps begun
    assert shares("inverse_sqrt", (3, 15, 35)) == pytest.approx([1, 1 / 2, 1 / 3])
    assert [shares("plateau", (50,), halvings=h)[0] for h in range(3)] == [1, 1 / 2, 1 / 4]


def rates(monkeypatch, validation, **changes):
    """The learning rate of every step of a training, as the optimiser has it."""
    seen = []
    run_before(monkeypatch, torch.optim.Adam, "step", lambda adam, *_: seen.append(adam.param_groups[0]["lr"]))
    result = train(dataclasses.replace(TINY, **changes), PAIRS, validation, progress=False)
    return seen, result


def test_the_optimiser_gets_the_schedule_in_its_own_steps(monkeypatch):
    """Eight pairs, two a batch, three batches a step: two steps an epoch, ten in five epochs."""
    changes = {"batch_size": 2, "accumulate": 3, "epochs": 5, "warmup_steps": 1, "learning_rate": 0.01}
    seen, _ = rates(monkeypatch, PAIRS, schedule="cosine", **changes)
    wanted = [min(1, (s + 1) / 2) * (1 + math.cos(math.pi * s / 10)) / 2 * 0.01 for s in range(10)]
    assert seen == pytest.approx(wanted)


def test_a_plateau_halves_the_learning_rate(monkeypatch):
    backwards = [(target, source) for source, target in PAIRS]
    seen, result = rates(monkeypatch, backwards, schedule="plateau", epochs=12, warmup_steps=0, batch_size=8)
    losses, rate, best, wanted = [each.loss for each in result.validations], 0.02, math.inf, []
    for loss in losses:
        wanted.append(rate)
        rate, best = (rate, loss) if loss < best else (rate / 2, best)
    assert seen == pytest.approx(wanted)
    assert seen[-1] < 0.02  # it came to a plateau: the test could fail


@pytest.mark.parametrize(
    "change", [{"schedule": "plateau"}, {"criterion": "bleu"}, {"average": 2}, {"validation_steps": 3}]
)
def test_what_needs_validation_is_refused_without(change):
    name, value = next(iter(change.items()))
    with pytest.raises(SettingsError, match=f"{name}: got {value!r} without validation pairs"):
        train(dataclasses.replace(TINY, **change), PAIRS, progress=False)
