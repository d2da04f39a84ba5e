import dataclasses
import itertools
import math
import re
from random import Random
from typing import get_args

import pytest
import torch
from sacrebleu import corpus_bleu

import kit
from command import run_before
from dikkat.translation import Corpus, CorpusError, Search, Settings, SettingsError, TranslationModel
from dikkat.translation.settings import ScoreName
from dikkat.translation.training import loop as loop_module
from dikkat.translation.training import train as module
from dikkat.translation.training.distributed import check_precision
from dikkat.translation.training.loop import Loop
from dikkat.translation.training.results import Training, TrainingDivergedError, TrainingMemoryError
from dikkat.translation.training.state import TrainingState, Validation
from dikkat.translation.training.train import train
from translation.taught import PAIRS, TINY, tell_bfloat16


def shorter(**changes) -> Settings:
    return dataclasses.replace(TINY, **{"epochs": 3, **changes})


@kit.each("score", get_args(ScoreName))
def test_every_score_learns(score):
    result = train(shorter(score=score, epochs=6), PAIRS, PAIRS, progress=False)
    losses = [epoch.validation_loss for epoch in result.epochs]
    assert losses[-1] < 0.8 * losses[0]
    assert result.pairs == len(PAIRS)
    assert result.tokens_per_second > 0


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
    result = train(shorter(epochs=100_000, patience=100_000, max_minutes=0.02), PAIRS, PAIRS, progress=False)
    assert 0 < len(result.epochs) < 100_000
    assert math.isfinite(result.translator.translate(["Go."])[0].score)  # of words, only if the machine had time


def test_a_loss_that_is_not_a_number_stops_with_advice(monkeypatch):
    monkeypatch.setattr(TranslationModel, "loss", lambda *_, **__: torch.tensor(math.nan, requires_grad=True))
    message = r"loss became nan at step 1: the training has diverged\. Use a learning_rate below 0\.02"
    with pytest.raises(TrainingDivergedError, match=message) as caught:
        train(shorter(), PAIRS, PAIRS, progress=False)
    assert caught.value.training is None


def before_step(monkeypatch, number, change):
    """Have something happen before a training step, counted from 1."""
    run_before(monkeypatch, Loop, "_take_step", lambda loop, *_: loop.state.step == number - 1 and change(loop.model))


def spoil(model):
    with torch.no_grad():
        model.readout.weight[1, 2] = math.nan


def check_that_the_best_is_kept(training):
    """What is given back is the model that was best until then, and it is ready for use."""
    assert training.epochs
    assert all(bool(t.isfinite().all()) for t in training.translator.model.state_dict().values())
    assert not training.translator.model.training
    best = min(epoch.validation_loss for epoch in training.epochs)
    again = train(shorter(epochs=6), PAIRS, PAIRS, progress=False)  # as far as it came, the same
    assert best == min(epoch.validation_loss for epoch in again.epochs[: len(training.epochs)])
    assert training.translator.translate(["Go."])[0].target


def test_a_weight_that_is_not_a_number_is_named_with_the_step_and_the_best_model_is_kept(monkeypatch):
    with monkeypatch.context() as patch:
        before_step(patch, 6, spoil)  # two steps an epoch: in the third
        message = r"loss became nan at step 6, where readout\.weight is not finite: the training has diverged"
        with pytest.raises(TrainingDivergedError, match=message) as caught:
            train(shorter(epochs=6), PAIRS, PAIRS, progress=False)
    assert len(caught.value.training.epochs) == 2
    check_that_the_best_is_kept(caught.value.training)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_stops_before_it_spoils_the_weights(monkeypatch, value):
    def hook(model):
        model.bridge.weight.register_hook(lambda gradient: torch.full_like(gradient, value))

    before_step(monkeypatch, 3, hook)
    message = f"gradient's norm became {value} at step 3, where the gradient of bridge.weight is not finite"
    with pytest.raises(TrainingDivergedError, match=message) as caught:
        train(shorter(epochs=6), PAIRS, PAIRS, progress=False)
    assert len(caught.value.training.epochs) == 1


def test_a_validation_that_is_not_finite_stops(monkeypatch):
    run_before(monkeypatch, Loop, "_validate", lambda loop, _: len(loop.state.epochs) == 1 and spoil(loop.model))
    message = r"the validation loss is nan after step 4, where readout\.weight is not finite"
    with pytest.raises(TrainingDivergedError, match=message) as caught:
        train(shorter(epochs=6), PAIRS, PAIRS, progress=False)
    assert len(caught.value.training.epochs) == 1
    assert bool(caught.value.training.translator.model.readout.weight.isfinite().all())


def demand(model):
    torch.empty(2**60)  # PyTorch's own error, whatever the machine


def test_out_of_memory_says_how_large_the_batch_was_and_keeps_the_best_model(monkeypatch):
    with monkeypatch.context() as patch:
        before_step(patch, 5, demand)
        message = (
            r"out of memory after 4 steps, on a batch of 4 pairs of up to \d+ source and \d+ target tokens: use a "
            r"smaller batch_size \(or batch_tokens\), max_length or hidden_size"
        )
        with pytest.raises(TrainingMemoryError, match=message) as caught:
            train(shorter(epochs=6), PAIRS, PAIRS, progress=False)
    assert "allocate memory" in str(caught.value.__cause__)
    check_that_the_best_is_kept(caught.value.training)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA"), RuntimeError("a fault of ours")])
def test_other_words_for_out_of_memory_and_errors_of_another_kind(monkeypatch, error):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(TranslationModel, "loss", broken)
    with pytest.raises(RuntimeError, match=r"of ours|out of memory after 0 steps, on a batch of 4 pairs") as caught:
        train(shorter(), PAIRS, PAIRS, progress=False)
    ours = type(error) is RuntimeError
    assert type(caught.value) is (RuntimeError if ours else TrainingMemoryError)
    assert ours or caught.value.training is None


def test_batches_by_tokens_reach_the_training_and_the_validation(monkeypatch):
    seen = []

    def spied(model, batch, **_):
        seen.append((model.training, max(batch.source.numel(), batch.target[:, 1:].numel()), len(batch.source)))

    run_before(monkeypatch, TranslationModel, "loss", spied)
    train(shorter(epochs=1, batch_tokens=17, batch_size=1), PAIRS, PAIRS, progress=False)
    for training in (False, True):
        sizes = [(tokens, rows) for which, tokens, rows in seen if which == training]
        assert sum(rows for _, rows in sizes) == len(PAIRS)
        assert max(tokens for tokens, _ in sizes) <= 17
        assert max(rows for _, rows in sizes) > 1
    with pytest.raises(SettingsError, match=r"batch_tokens: got 3; expected at least \d, the tokens of the longest"):
        train(shorter(batch_tokens=3), PAIRS, PAIRS, progress=False)


def test_bfloat16_is_for_training_alone_and_reaches_the_products(monkeypatch):
    tell_bfloat16(monkeypatch, bf16=True)
    seen = set()

    def spied(model, *_, **__):
        seen.add((model.training, torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")))

    run_before(monkeypatch, TranslationModel, "loss", spied)
    result = train(shorter(precision="bfloat16", epochs=6), PAIRS, PAIRS, progress=False)
    assert seen == {(True, torch.bfloat16), (False, False)}
    assert {t.dtype for t in result.translator.model.state_dict().values()} == {torch.float32}
    plain = train(shorter(epochs=6), PAIRS, PAIRS, progress=False)
    assert 0 < abs(result.epochs[-1].validation_loss - plain.epochs[-1].validation_loss) < 0.1


@pytest.mark.parametrize(
    ("capabilities", "has"),
    [({"amx_bf16": True}, True), ({"avx512_bf16": True}, True), ({"bf16": True}, True), ({"avx2": True}, False)],
)
def test_a_processor_without_bfloat16_is_refused(monkeypatch, capabilities, has):
    tell_bfloat16(monkeypatch, **capabilities)
    if has:
        check_precision("bfloat16", "cpu")
    else:
        monkeypatch.setattr(module, "device_type", lambda: "cpu")
        with pytest.raises(SettingsError, match="precision: got 'bfloat16'; expected 'float32', as PyTorch finds no"):
            train(shorter(precision="bfloat16"), PAIRS, PAIRS, progress=False)


def test_a_pytorch_that_cannot_tell_has_no_bfloat16(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    with pytest.raises(SettingsError, match="PyTorch finds no bfloat16 products on this CPU"):
        check_precision("bfloat16", "cpu")


def test_an_empty_or_too_long_corpus_is_refused():
    with pytest.raises(CorpusError, match=r"training: got no pairs \(0 pairs in memory\); expected at least one"):
        train(shorter(), [], PAIRS, progress=False)
    with pytest.raises(CorpusError, match="none of the 8 pairs has between 1 and 1 tokens on each side"):
        train(shorter(max_length=1), PAIRS, PAIRS, progress=False)


def test_long_pairs_are_left_out():
    with pytest.warns(UserWarning, match="4 of 8 pairs left out: 4 longer than max_length tokens on a side") as caught:
        assert train(shorter(max_length=4, epochs=1), PAIRS, PAIRS, progress=False).pairs == 4
    assert [str(each.message).partition(":")[0] for each in caught] == ["training corpus", "validation corpus"]


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


def without_noise(**changes):
    return shorter(**{"epochs": 2, "batch_size": 2, "gradient_clip": 1e6, **changes})


def gradients(monkeypatch, settings):
    """Of every step, as the optimiser gets them."""
    seen = []

    def spied(optimizer, *_, **__):
        seen.append([p.grad.clone() for group in optimizer.param_groups for p in group["params"]])

    with monkeypatch.context() as patch:
        run_before(patch, torch.optim.Adam, "step", spied)
        train(settings, PAIRS, PAIRS, progress=False)
    return seen


def test_accumulated_gradients_are_those_of_the_mean_over_all_tokens(monkeypatch):
    """Batches of other sizes, whose means would weigh short sentences more; all pairs at once are one batch."""
    whole = gradients(monkeypatch, without_noise(batch_size=8))
    for accumulate in (4, 99):  # 99: what is left at the end of an epoch makes a step as well
        parts = gradients(monkeypatch, without_noise(accumulate=accumulate))
        assert len(parts) == len(whole) == 2
        for one, other in zip(whole[0], parts[0], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert len(gradients(monkeypatch, without_noise(accumulate=3))) == 4


def test_the_best_models_are_averaged(monkeypatch):
    kept, validate = [], Loop._validate

    def spied(self, batches):
        validate(self, batches)
        kept.append({name: tensor.clone() for name, tensor in self.model.state_dict().items()})

    monkeypatch.setattr(Loop, "_validate", spied)
    result = train(shorter(epochs=30, average=3), PAIRS[:5], PAIRS[5:], progress=False)
    losses = [each.loss for each in result.validations]
    best = sorted(range(30), key=losses.__getitem__)[:3]
    assert best != [29, 28, 27]  # not simply the last ones
    for name, tensor in result.translator.model.state_dict().items():
        wanted = sum(kept[index][name].double() for index in best) / 3
        torch.testing.assert_close(tensor, wanted.float(), rtol=1e-6, atol=1e-7)


def test_one_vocabulary_for_both_languages(monkeypatch):
    seen = []
    monkeypatch.setattr(module, "Loop", lambda translator, *_, **__: seen.append(translator) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(shorter(tied_embeddings="three", vocabulary_size=30), PAIRS, progress=False)
    source, target = seen[0].source_tokenizer, seen[0].target_tokenizer
    source_size = target_size = len(seen[0].model.target_embedding.weight)
    assert source is target
    assert source_size == target_size == len(source) <= 30
    assert all(source.encode(word).ids != source.encode("xyzzy").ids for word in ("the", "homme"))


class Streamed(Corpus):
    """A corpus that is never whole in memory."""

    def __init__(self, pairs):
        self.pairs, self.rounds = pairs, 0

    def __iter__(self):
        self.rounds += 1
        yield from self.pairs

    def __str__(self):
        return "a stream"


def test_a_corpus_may_be_anything_that_can_be_gone_through_again():
    listed = train(shorter(), PAIRS, PAIRS[:5], progress=False)
    stream = Streamed(PAIRS)
    streamed = train(shorter(), stream, Streamed(PAIRS[:5]), progress=False)
    assert stream.rounds == 1  # so few pairs stay in memory from the first reading on
    assert [each.loss for each in listed.validations] == [each.loss for each in streamed.validations]
    with pytest.raises(TypeError, match=r"got generator; expected .* or a Corpus such as"):
        train(shorter(), iter(Streamed(PAIRS)), PAIRS, progress=False)
    with pytest.raises(TypeError, match="got list_iterator"):
        train(shorter(), PAIRS, iter(PAIRS), progress=False)


@kit.each("most", [1, 2, 3, 7, 64])
@kit.each("count", [0, 1, 2, 5, 8, 9, 100, 127])
def test_a_sample_is_spread_evenly(count, most):
    found = [int(first) for first, _ in module.sample_evenly(((str(number), "") for number in range(count)), most)[0]]
    assert len(found) <= most
    if count <= most:
        assert found == list(range(count))
    else:
        steps = {after - before for before, after in itertools.pairwise(found)}
        assert len(steps) <= 1  # all as far apart
        assert 2 * len(found) > most - 1


def test_validations_within_epochs_have_lines_of_their_own(capsys):
    result = train(shorter(validation_steps=3, batch_size=2, epochs=2), PAIRS, PAIRS)
    assert [each.step for each in result.validations] == [3, 6, 8]  # and one at the end
    lines = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["step 3", "epoch 1", "step 6", "step 8", "epoch 2"]


def test_the_best_validation_is_the_criterions(translator):
    validations = [Validation(5, 1.5, 20.0), Validation(10, 1.2, 40.0), Validation(15, 1.1, 30.0)]

    def best(criterion, of):
        by = dataclasses.replace(translator, settings=dataclasses.replace(translator.settings, criterion=criterion))
        return Training(by, [], 9, 1.0, 1.0, validations=of).best

    assert best("loss", validations) == validations[2]
    assert best("bleu", validations) == validations[1]
    assert best("loss", []) is None


def test_the_bleu_that_decides_is_shown(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for options in ({}, {"validation_steps": 2}):
        result = train(shorter(criterion="bleu", **options), PAIRS, PAIRS)
        scores = [f"{each.bleu:.1f}" for each in result.validations]
        assert re.findall(r"validation loss \d\.\d{3}, BLEU (\d+\.\d)", capsys.readouterr().err) == scores
    train(shorter(criterion="bleu"), PAIRS, PAIRS, progress=True)
    lines = [line.rstrip() for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert re.search(rf"100% 0:00:00 loss: \d\.\d{{3}} BLEU: {scores[-1]} tokens/s: [\d,]+$", lines[-1])


def test_a_halving_is_a_validation_no_better_than_the_best_before_it():
    losses = [5.0, 4.0, 4.0, 6.0, 3.0, 3.5, 2.0]
    state = TrainingState(validations=[Validation(step, loss) for step, loss in enumerate(losses)])
    assert state.halvings("loss") == 3
    assert TrainingState().halvings("loss") == 0


def drawn(count, seed):
    """Sentences of words in any order, each translated as itself in capitals."""
    words, draw = ["man", "woman", "dog", "cat", "house", "tree", "red", "big", "sees", "has", "wants"], Random(seed)
    sentences = [" ".join(draw.choices(words, k=draw.randint(3, 9))) for _ in range(count)]
    return [(sentence, sentence.upper()) for sentence in sentences]


def test_the_length_penalty_is_the_one_of_the_best_bleu_of_validation_pairs():
    settings, judges = shorter(length_penalty=None, epochs=5, seed=3), drawn(30, 2)
    lines: list[str] = []
    result = train(settings, drawn(80, 1), judges, progress=False, tell=lines.append)
    found = result.translator
    scores = {}
    for penalty in (1.0, 1.2, 1.4):
        said = found.translate([source for source, _ in judges], search=Search(length_penalty=penalty))
        scores[penalty] = corpus_bleu([each.target for each in said], [[target for _, target in judges]]).score
    assert found.settings.length_penalty == max(scores, key=scores.__getitem__)
    targets = [each.target for each in found.translate([source for source, _ in judges])]
    assert result.scores.bleu == corpus_bleu(targets, [[target for _, target in judges]]).score
    assert result.scores.exact_matches == sum(map(str.__eq__, targets, (target for _, target in judges)))
    chosen = f"length penalty {found.settings.length_penalty:g}"
    assert lines[-2:] == ["translating 30 validation pairs", chosen]


@pytest.mark.parametrize(
    ("scores", "wanted"), [([3, 5, 4], 1.2), ([3, 5, 6], 1.4), ([4, 4, 4], 1.0), ([0, 0, 0], 1.0), ([1, 2, 2], 1.2)]
)
def test_of_equal_scores_the_smaller_length_penalty_is_taken(monkeypatch, scores, wanted):
    left = iter(scores)
    monkeypatch.setattr(loop_module, "corpus_bleu", lambda *_: next(left))
    found = train(shorter(length_penalty=None, epochs=1), PAIRS, PAIRS, progress=False).translator
    assert found.settings.length_penalty == wanted
    assert next(left, None) is None


def test_pairs_that_are_too_long_to_be_learnt_choose_no_length_penalty(monkeypatch):
    seen = []
    run_before(monkeypatch, Loop, "score_translator", lambda self: seen.append(self.scoring_pairs))
    pairs = [*PAIRS, ("Go " * 60, "Va !"), ("Go.", "Va " * 60)]
    with pytest.warns(UserWarning, match="2 of 10 pairs left out"):
        train(shorter(length_penalty=None, epochs=1, max_length=50), PAIRS, pairs, progress=False)
    assert seen == [PAIRS]


def test_ctrl_c_while_the_length_penalty_is_chosen_keeps_the_model(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop_module, "corpus_bleu", interrupted)
    found = train(shorter(length_penalty=None, epochs=1), PAIRS, PAIRS, progress=False)
    assert (found.interrupted, found.resumable, len(found.epochs)) == (True, False, 1)
    assert found.translator.settings.length_penalty is None
    assert found.translator.translate("Go.").source == "Go."


def test_ctrl_c_while_the_bandwidth_is_fitted_keeps_the_model_and_its_scores(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop_module, "fit_memory", interrupted)
    result = train(shorter(length_penalty=None, epochs=1), PAIRS, PAIRS, progress=False)
    assert (result.interrupted, result.scores.sentences, result.translator.memory.is_new) == (True, len(PAIRS), True)
    assert result.translator.settings.length_penalty is not None


def test_a_length_penalty_stays_where_it_is_given_or_nothing_can_choose_it():
    given = train(shorter(length_penalty=0.5), PAIRS, PAIRS, progress=False)
    scored, given = given.scores, given.translator
    blind = train(shorter(length_penalty=None), PAIRS, progress=False)
    assert given.settings.length_penalty == 0.5
    assert blind.scores is None
    shortest = train(shorter(length_penalty=0.0), PAIRS, PAIRS, progress=False).translator
    assert (shortest.settings.length_penalty, shortest.confidence_model.pairs) == (0.0, len(PAIRS))
    assert scored.sentences == len(PAIRS)
    assert blind.translator.settings.length_penalty is None


def test_bleu_is_that_of_what_translate_writes(tmp_path):
    settings = dataclasses.replace(TINY, criterion="bleu", epochs=8, batch_size=1, learning_rate=0.01, warmup_steps=0)
    result = train(settings, PAIRS, PAIRS[:5], folder=tmp_path / "run", progress=False)
    best = max(each.bleu for each in result.validations)
    found = result.translator.translate([source for source, _ in PAIRS[:5]], search=Search(length_penalty=1))
    score = corpus_bleu([each.target for each in found], [[target for _, target in PAIRS[:5]]]).score
    assert best == pytest.approx(score)
    assert min(each.bleu for each in result.validations) < best  # the choice was one


def test_of_equally_good_validations_the_earlier_is_the_better():
    state = TrainingState(validations=[Validation(step, loss) for step, loss in ((2, 1.5), (3, 0.5), (5, 0.5), (7, 1))])
    assert state.best("loss", 3) == [3, 5, 7]
