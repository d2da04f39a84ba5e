import dataclasses
import itertools
import math
import re
import time
from typing import get_args

import pytest
import torch

from dikkat.translation import CorpusError, Settings
from dikkat.translation import training as module
from dikkat.translation.settings import ScoreName
from dikkat.translation.training import TrainingDivergedError, train
from translation.conftest import PAIRS, TINY


def shorter(**changes) -> Settings:
    return dataclasses.replace(TINY, **{"epochs": 3, **changes})


@pytest.mark.parametrize("score", get_args(ScoreName))
def test_every_score_learns(score):
    result = train(shorter(score=score, epochs=6), PAIRS, PAIRS, progress=False)
    losses = [epoch.validation_loss for epoch in result.epochs]
    assert losses[-1] < 0.8 * losses[0]
    assert result.pairs == len(PAIRS)
    assert result.tokens_per_second > 0


@pytest.mark.parametrize("changes", [{"num_layers": 2, "dropout": 0.1}, {"bidirectional": False}, {"tokenizer": "bpe"}])
def test_every_kind_of_network_learns(changes):
    losses = [epoch.validation_loss for epoch in train(shorter(**changes), PAIRS, PAIRS, progress=False).epochs]
    assert losses[-1] < losses[0]


def test_the_same_seed_gives_the_same_model_and_leaves_the_callers_random_numbers():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    first = train(shorter(dropout=0.3), PAIRS, PAIRS, progress=False).translator.model.state_dict()
    assert torch.equal(torch.rand(3), wanted)
    second = train(shorter(dropout=0.3), PAIRS, PAIRS, progress=False).translator.model.state_dict()
    other = train(shorter(dropout=0.3, seed=1), PAIRS, PAIRS, progress=False).translator.model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["bridge.weight"], other["bridge.weight"])


def test_the_reported_losses_are_those_of_the_kept_model_by_hand():
    """Mean cross-entropy of a target token, ends included, of the model that was kept: the best one."""
    result = train(shorter(epochs=30, patience=30), PAIRS[:5], PAIRS[5:], progress=False)
    kept, losses, tokens = result.translator, 0.0, 0
    for source, target in PAIRS[5:]:
        ids = kept.target_tokenizer.encode(target).ids
        numbers = torch.tensor([kept.source_tokenizer.encode(source).ids])
        with torch.no_grad():
            memory, state = kept.model.encode(numbers, torch.tensor([numbers.shape[1]]))
            for previous, token in zip([2, *ids], [*ids, 3], strict=True):
                scores, _, state = kept.model.step(torch.tensor([previous]), memory, state)
                losses, tokens = losses - scores[0].log_softmax(0)[token].item(), tokens + 1
    best = min(epoch.validation_loss for epoch in result.epochs)
    assert losses / tokens == pytest.approx(best, rel=1e-4)
    assert result.epochs[-1].validation_loss > best  # the last model was not the best: the test could fail


def test_it_stops_when_validation_no_longer_improves():
    backwards = [(target, source) for source, target in PAIRS]
    result = train(shorter(epochs=200, patience=2), PAIRS, backwards, progress=False)
    losses = [epoch.validation_loss for epoch in result.epochs]
    assert len(losses) < 200
    assert losses.index(min(losses)) == len(losses) - 3


def test_it_stops_when_the_time_is_up_and_keeps_what_it_has():
    started = time.monotonic()
    result = train(shorter(epochs=100_000, patience=100_000, max_minutes=0.02), PAIRS, PAIRS, progress=False)
    assert time.monotonic() - started < 15
    assert result.epochs
    assert result.translator.translate(["Go."])[0].target


def test_the_learning_rate_rises_and_falls_to_zero():
    lesson = module._Lesson(torch.nn.Linear(1, 1), shorter(warmup_steps=9), steps=100)
    shares = [lesson._share_of_learning_rate(step) for step in range(101)]
    assert shares[0] == pytest.approx(0.1)
    assert shares.index(max(shares)) == 9
    assert shares[100] == 0.0
    assert all(before >= after for before, after in itertools.pairwise(shares[9:]))


def test_a_loss_that_is_not_a_number_stops_with_advice(monkeypatch):
    monkeypatch.setattr(module.F, "cross_entropy", lambda *_, **__: torch.tensor(math.nan, requires_grad=True))
    with pytest.raises(TrainingDivergedError, match=r"loss became nan at step 1: .*learning_rate below 0\.02"):
        train(shorter(), PAIRS, PAIRS, progress=False)


def test_an_empty_or_too_long_corpus_is_refused():
    with pytest.raises(CorpusError, match="0 training and 8 validation pairs"):
        train(shorter(), [], PAIRS, progress=False)
    with pytest.raises(CorpusError, match="8 training and 0 validation pairs"):
        train(shorter(), PAIRS, [], progress=False)
    with pytest.raises(CorpusError, match="none of the 8 training pairs has at most 1 token"):
        train(shorter(max_length=1), PAIRS, PAIRS, progress=False)


def test_long_pairs_are_left_out():
    with pytest.warns(UserWarning, match="pairs left out: longer than 4 tokens on a side; see max_length") as caught:
        assert train(shorter(max_length=4, epochs=1), PAIRS, PAIRS, progress=False).pairs == 4
    assert [str(each.message)[:25] for each in caught] == ["4 of 8 training pairs lef", "4 of 8 validation pairs l"]


def test_each_epoch_is_a_line_where_no_terminal_is_and_no_file_is_left(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(shorter(), PAIRS, PAIRS)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.partition(":")[0] for line in captured.err.splitlines()] == ["epoch 1", "epoch 2", "epoch 3"]
    assert "tokens/s" in captured.err
    assert list(tmp_path.iterdir()) == []


def test_the_bar_is_on_standard_error_counts_from_1_and_is_as_wide_as_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    train(shorter(), PAIRS, PAIRS, progress=True)
    captured = capsys.readouterr()
    lines = [line.rstrip() for line in captured.err.splitlines() if line.strip()]
    assert captured.out == ""
    assert [line[:9] for line in lines] == ["Epoch 1/3", "Epoch 2/3", "Epoch 3/3"]
    assert re.search(r"100% 0:00:00 loss: \d\.\d{3} valid: \d\.\d{3} tokens/s: [\d,]+$", lines[-1])


def test_label_smoothing_and_clipping_take_part():
    plain = train(shorter(epochs=1), PAIRS, PAIRS, progress=False).epochs[0]
    smoothed = train(shorter(epochs=1, label_smoothing=0.5), PAIRS, PAIRS, progress=False).epochs[0]
    clipped = train(shorter(epochs=1, gradient_clip=1e-9), PAIRS, PAIRS, progress=False).epochs[0]
    assert plain.validation_loss != smoothed.validation_loss
    assert plain.validation_loss != clipped.validation_loss
