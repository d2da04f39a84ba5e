"""The search as one compiled call: the same translations as step by step, whatever happens to the weights before."""

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from dikkat import scores
from dikkat.translation import InputError, Search, Settings, TranslationModel, beam_search, explain_search
from dikkat.translation.decoding import search as search_module
from dikkat.translation.decoding.compiled import run
from dikkat.translation.text.special_tokens import END, UNKNOWN

SOURCES = [[5, 6], [7], [8, 9, 10, 4], [UNKNOWN, 4, 5, 6], [10, 10], [9, 4, 4], [6, 6, 6, 6, 6, 6, 6]]


def make(seed=0, ends=1.5, vocabulary=113, **changes):
    torch.manual_seed(seed)
    settings = Settings(**{"embedding_size": 6, "hidden_size": 10, "dropout": 0.0} | changes)
    model = TranslationModel(settings, 11, vocabulary).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)
        model.output_bias.normal_()
        model.output_bias[END] += ends
    return model


WIDE = Search(4, n_best=3)


def step_by_step(model, sources=SOURCES, search=WIDE):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "find_panels", lambda *_: None)
        return beam_search(model, sources, search)


def assert_same(found, wanted, share=2e-5):
    for group, expected in zip(found, wanted, strict=True):
        assert [each.ids for each in group] == [each.ids for each in expected]
        assert [each.finished for each in group] == [each.finished for each in expected]
        for one, other in zip(group, expected, strict=True):
            assert one.score == pytest.approx(other.score, rel=share, abs=1e-5)
            # Scores of a bilinear form of 74 features are in the hundreds, and their differences decide the weights.
            torch.testing.assert_close(one.weights, other.weights, rtol=2e-3 if share == 1e-4 else 1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cell": "lstm", "num_layers": 3},
        {"num_layers": 2, "bidirectional": False},
        {"score": "none", "cell": "lstm"},
        {"score": "dot", "tied_embeddings": "none"},
        {"score": "scaled_dot", "num_layers": 2},
        {"score": "bilinear", "embedding_size": 37, "hidden_size": 74},
        {"score": "none", "vocabulary": 11, "tied_embeddings": "three"},
        {"lexical": False},
    ],
)
def test_the_same_translations_as_step_by_step(changes):
    model = make(**changes)
    for search in (Search(1), Search(5, n_best=4, min_ratio=0.5)):
        assert explain_search(model, search) == []
        # Of 74 features scores are so large that float32 keeps four digits of what is left of their sum.
        assert_same(beam_search(model, SOURCES, search), step_by_step(model, SOURCES, search), share=1e-4)
        assert_same(beam_search(model.double(), SOURCES, search), step_by_step(model, SOURCES, search), share=1e-11)
        model.float()


def test_many_rows_and_more_steps_than_there_is_room_for_at_first():
    model = make(ends=-50.0)
    search, sources = Search(7, max_ratio=10), [[5] * 17, *[[6, 7, 8]] * 13]
    found = beam_search(model, sources, search)
    assert len(found[0][0].ids) == 170
    assert_same(found, step_by_step(model, sources, search), share=1e-4)


# --- weights


def kept_of(model):
    return vars(model).get("_compiled")


def changed_by_an_optimizer(model, **options):
    model.requires_grad_(True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5, **options)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def another_parameter(model):
    model.target_embedding.weight = nn.Parameter(-model.target_embedding.weight.detach())


@torch.no_grad()
def in_place(model):
    model.readout.weight[3, 5] += 40.0


def another_submodule(model):
    model.readout = nn.Linear(model.readout.in_features, model.readout.out_features)


def after_train(model):
    model.readout.weight.data[3, 5] += 40.0  # of one number, which no sample need have
    model.train()


def through_data(model):
    for parameter, other in zip(model.parameters(), make(seed=7, vocabulary=11).parameters(), strict=True):
        parameter.data.lerp_(other, 0.5)


def through_numpy(model):
    model.readout.weight.detach().numpy()[:] *= -1


def through_inference_mode(model):
    with torch.inference_mode():
        model.readout.weight.neg_()


CHANGES = {
    "an optimiser": changed_by_an_optimizer,
    "one without foreach": lambda model: changed_by_an_optimizer(model, foreach=False),
    "one with foreach": lambda model: changed_by_an_optimizer(model, foreach=True),
    "a fused optimiser": lambda model: changed_by_an_optimizer(model, fused=True),
    "load_state_dict": lambda model: model.load_state_dict(make(seed=5, vocabulary=11).state_dict()),
    "load_state_dict by assignment": lambda model: model.load_state_dict(
        make(seed=6, vocabulary=11).state_dict(), assign=True
    ),
    "float64": lambda model: model.double(),
    "a part in bfloat16 and back": lambda model: model.readout.bfloat16().float(),
    "one number in place": in_place,
    "another parameter": another_parameter,
    "another submodule": another_submodule,
    "a number through .data, and train": after_train,
    "a mean through .data": through_data,
    "a matrix through NumPy": through_numpy,
    "a matrix in inference mode": through_inference_mode,
}


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_the_weights_is_seen(change, precision):
    if change == "float64" and precision == "int8":
        pytest.skip("int8 goes with float32")
    search = Search(4, n_best=3, precision=precision)
    model = make(vocabulary=11)
    before = beam_search(model, SOURCES, search)
    CHANGES[change](model)
    if change in ("another parameter", "another submodule"):
        model.train()
    found, fresh = beam_search(model, SOURCES, search), make(vocabulary=11)
    if change == "float64":
        fresh.double()
    fresh.load_state_dict(model.state_dict())
    if change != "float64":
        assert [[each.score for each in group] for group in found] != [[each.score for each in g] for g in before]
    assert_same(found, beam_search(fresh, SOURCES, search), share=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_goes_its_own_way(copied):
    model = make(vocabulary=11)
    before = beam_search(model, SOURCES, Search(4))
    other = copied(model)
    assert kept_of(other) is None
    with torch.no_grad():
        other.output_bias.mul_(-1)
    assert_same(beam_search(other, SOURCES, Search(4)), step_by_step(other, SOURCES, Search(4)))
    assert_same(beam_search(model, SOURCES, Search(4)), before, share=0)


def test_panels_are_made_once_and_go_with_their_model(caplog):
    model = make()
    with caplog.at_level("INFO", logger="dikkat"):
        for _ in range(3):
            beam_search(model, SOURCES, Search(2))
    assert ["packed into panels of 0.2 MiB" in record.message for record in caplog.records] == [True]
    (kept,) = map(weakref.ref, kept_of(model).panels.values())
    gc.disable()  # not even for a while
    try:
        del model
        assert kept() is None
    finally:
        gc.enable()


# --- what is no number: modules, attributes, hooks, modes


def swapped(model):
    """Two submodules of one shape, each in the other's place."""
    model.bridge, model.decoder.score.W_q = model.decoder.score.W_q, model.bridge


def another_readout(model):
    model.readout = copy.deepcopy(model.readout)
    model.readout.weight.mul_(-1)


def another_rule_of_attention(model):
    model.decoder.score = scores.Bilinear(10, 10)


def a_plain_parametrization(model):
    nn.utils.parametrizations.weight_norm(model.readout)


def a_submodule_of_another_class(model):
    model.readout.__class__ = Backwards


class Backwards(nn.Linear):
    def forward(self, features):
        return -super().forward(features)


def a_forward_of_its_own(model):
    model.readout.forward = lambda features: -nn.functional.linear(features, model.readout.weight)


def a_method_of_its_own(model):
    model.select = lambda state, rows: TranslationModel.select(model, state, rows)


def an_attribute(model):
    model.attends = False


def a_hook(model):
    model.readout.register_forward_hook(lambda module, inputs, output: -output)


STRUCTURE = [
    a_hook, an_attribute, swapped, another_readout, another_rule_of_attention, a_plain_parametrization,
    a_submodule_of_another_class, a_forward_of_its_own, a_method_of_its_own,
]  # fmt: skip


@pytest.mark.parametrize("change", STRUCTURE)
def test_a_change_of_the_model_counts_from_train_on(change):
    model = make(vocabulary=11, hidden_size=10, bidirectional=False, lexical=change is not an_attribute)
    before = beam_search(model, SOURCES, WIDE)
    assert kept_of(model) is not None
    with torch.no_grad():
        change(model)
    found = beam_search(model.train(), SOURCES, WIDE)
    assert_same(found, step_by_step(model))
    if change is a_method_of_its_own:  # which does what the old one did
        assert "overrides methods" in explain_search(model)[0]
    else:
        assert [group[0].score for group in found] != [group[0].score for group in before]


def test_a_mode_that_was_changed_is_changed_back():
    model = make(dropout=0.5)
    wanted = beam_search(model, SOURCES, WIDE)
    assert_same(beam_search(model.train(), SOURCES, WIDE), wanted, share=0)
    assert not any(each.training for each in model.modules())


def test_a_hook_of_all_modules_is_seen_and_its_end_too():
    model = make()
    wanted = beam_search(model, SOURCES, WIDE)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert "has hooks" in " ".join(explain_search(model))
    finally:
        handle.remove()
    assert explain_search(model) == []
    assert_same(beam_search(model, SOURCES, WIDE), wanted, share=0)


def test_a_model_that_is_as_it_was_is_not_looked_at_again(monkeypatch):
    model = make()
    wanted = beam_search(model, SOURCES, WIDE)
    monkeypatch.setattr(search_module, "search_obstacles", None)
    assert_same(beam_search(model, SOURCES, WIDE), wanted, share=0)


def test_memory_of_a_search_serves_the_next_of_its_shape(monkeypatch):
    model, made = make(num_layers=2, cell="lstm"), []
    monkeypatch.setattr(run, "Run", lambda *shape, make=run.Run: made.append(shape[1:3]) or make(*shape))
    for sources in ([[5, 6, 7]], [[9, 4, 4]], [[UNKNOWN, 7, 7]], [[5, 6, 7], [8]], [[10, 10, 4], [7, 9]], [[5, 6, 7]]):
        assert_same(beam_search(model, sources, WIDE), step_by_step(model, sources))
    assert made == [(1, 3), (2, 3)]


def test_a_search_that_failed_leaves_nothing_behind():
    model = make()
    wanted = beam_search(model, [[5, 6]], WIDE)
    with torch.no_grad():
        model.output_bias[7] = torch.inf
        with pytest.raises(InputError, match="NaN"):
            beam_search(model, [[5, 6]], WIDE)
        model.output_bias.copy_(make().output_bias)
    assert_same(beam_search(model, [[5, 6]], WIDE), wanted, share=0)


# --- threads, parts, processes


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_threads_change_no_bit(precision, monkeypatch):
    monkeypatch.setattr(run, "_ONE_THREAD_BYTES", 0)
    search = Search(5, n_best=5, precision=precision, max_length=5)
    model, found = make(num_layers=2), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(beam_search(model, SOURCES, search))
    for other in found[1:]:
        assert_same(other, found[0], share=0)


def test_a_search_in_parts_is_the_same(monkeypatch):
    model = make()
    whole = beam_search(model, SOURCES, Search(5))
    monkeypatch.setattr(run, "_FIRST_BUDGET", 1)
    monkeypatch.setattr(run, "_SMALLEST_BUDGET", 1)
    monkeypatch.setattr(run, "_RUN_SECONDS", 0.0)
    assert_same(beam_search(model, SOURCES, Search(5)), whole, share=0)


def test_ctrl_c_between_two_parts(monkeypatch):
    model, turns = make(), []

    def interrupted():
        turns.append(None)
        if len(turns) == 5:
            raise KeyboardInterrupt
        return 0.0

    monkeypatch.setattr(run, "_FIRST_BUDGET", 1)
    with monkeypatch.context() as patch:
        patch.setattr(run.time, "perf_counter", interrupted)
        with pytest.raises(KeyboardInterrupt):
            beam_search(model, SOURCES, Search(5))
    assert_same(beam_search(model, SOURCES, Search(5)), step_by_step(model, SOURCES, Search(5)))


def test_a_real_ctrl_c_ends_a_search_of_many_seconds():
    model, sources = make(hidden_size=128, embedding_size=64, ends=-50.0), [[5, 6, 7] * 20] * 32
    search = Search(20, max_ratio=10)
    beam_search(model, sources, Search(20, max_length=1))  # compiled before
    pressed = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    pressed.start()
    with pytest.raises(KeyboardInterrupt):
        beam_search(model, sources, search)
    pressed.join()
    assert_same(beam_search(model, SOURCES, Search(2)), step_by_step(model, SOURCES, Search(2)))


def test_threads_that_search_first_at_once_share_what_is_packed(caplog):
    model, ready = make(), threading.Barrier(4)

    def searching(_):
        ready.wait()
        return beam_search(model, SOURCES, Search(3))

    with caplog.at_level("INFO", logger="dikkat"), ThreadPoolExecutor(4) as pool:
        found = list(pool.map(searching, range(4)))
    assert sum("packed into panels" in each.message for each in caplog.records) == 1
    for each in found:
        assert_same(each, beam_search(model, SOURCES, Search(3)), share=0)


def _in_child(model, pipe):
    pipe.send([[each.ids for each in group] for group in beam_search(model, SOURCES, Search(3))])


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_fork_after_use():
    model = make()
    wanted = [[each.ids for each in group] for group in beam_search(model, SOURCES, Search(3))]
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(model, there))
    child.start()
    assert here.poll(60)
    assert here.recv() == wanted
    child.join()


# --- what it cannot run, and bad input


def test_what_cannot_run_is_explained():
    model = make()
    assert explain_search(model, Search(sample=True)) == ["samples are drawn, not searched"]
    assert explain_search([model, model]) == ["2 models translate together"]
    assert "torch.bfloat16" in explain_search(make().bfloat16())[0]
    hooked = make()
    hooked.readout.register_forward_hook(lambda *_: None)
    assert explain_search(hooked) == ["readout is not a plain Linear, or has hooks, so it must be called"]
    replaced = make()
    replaced.step_features = model.step_features
    assert "overrides methods" in explain_search(replaced)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast" in explain_search(model)[0]


def test_weights_that_are_not_numbers_are_named_before_the_search():
    model = make()
    with torch.no_grad():
        model.readout.weight[2, 3] = torch.nan
    with pytest.raises(InputError, match=r"readout.weight: got NaN in the weights"):
        beam_search(model, SOURCES)


def test_a_sentence_of_ten_thousand_tokens_beside_a_short_one():
    model = make(hidden_size=4, embedding_size=3)
    sources = [[7], [5, 6, 7, 8] * 2500]
    found = beam_search(model, sources, Search(2, max_length=3))
    assert found[1][0].weights.shape == (len(found[1][0].ids), 10_000)
    assert_same(found, step_by_step(model, sources, Search(2, max_length=3)), share=1e-4)


@pytest.mark.parametrize("score", ["additive", "none"])
def test_memory_of_a_search_of_one_token_grows(score):
    model, sources = make(score=score, ends=-9.0), [[5, 6]]
    beam_search(model, sources, Search(2, max_length=1))
    longer = Search(2, max_length=7)
    assert_same(beam_search(model, sources, longer), step_by_step(model, sources, longer))


@pytest.mark.parametrize("token", [11, -1, 10**9])
def test_a_token_that_the_model_does_not_have_is_refused(token):
    with pytest.raises(InputError, match=rf"got token {token}; expected 0 to 10"):
        beam_search(make(), [[5, 6], [7, token]])


@pytest.mark.parametrize(
    "change",
    [lambda model: model.train(), lambda model: model.train().eval(), lambda model: explain_search(model.bfloat16())],
)
def test_panels_go_with_train_and_when_a_change_is_seen(change):
    model = make()
    beam_search(model, SOURCES, WIDE)
    kept = weakref.ref(next(iter(kept_of(model).panels.values())))
    change(model)
    assert kept() is None


def test_a_table_whose_memory_was_given_back_is_not_read():
    model = make(embedding_size=64)
    beam_search(model, SOURCES, WIDE)
    model.target_embedding.weight.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"target_embedding.weight: got shape \(113, 64\).* was not resized"):
        beam_search(model, SOURCES, WIDE)
