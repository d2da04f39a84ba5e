"""What a training and a search ask of a device, counted on a CPU without its compiled kernels."""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_search import make

import kit
from dikkat.recurrent import encoder, sequence
from dikkat.translation import Search, beam_search, settings_for, train
from dikkat.translation.decoding import grid
from dikkat.translation.decoding import search as search_module
from dikkat.translation.decoding.hypothesis import Sentence
from dikkat.translation.decoding.options import limits
from dikkat.translation.decoding.stepwise import step_by_step
from dikkat.translation.decoding.translator import BaseTranslator
from dikkat.translation.network import loss
from dikkat.translation.network.model import TranslationModel
from dikkat.translation.text.special_tokens import UNKNOWN
from operations import Operations

PAIRS = [(f"{a} {b} {c}", f"{c} {a} {b}") for a in "abcde" for b in "fghij" for c in "kl"]
NO_SLOTS = torch.zeros(13, dtype=torch.int64)  # a bit for each target token


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (encoder, sequence):
        monkeypatch.setattr(module, "tensor_obstacles", lambda _: ["switched off"])
    monkeypatch.setattr(loss, "runs", lambda _: False)
    monkeypatch.setattr(search_module, "find_panels", lambda *_: None)


def test_an_epoch_reads_the_loss_of_each_batch(no_kernels: None) -> None:
    """And at its end the loss of the validation, and which weights are numbers."""
    given = {"epochs": 2, "embedding_size": 6, "hidden_size": 10, "batch_size": 7, "criterion": "loss", "average": 1}
    settings = settings_for(PAIRS, given)
    with Operations() as seen:
        train(settings, PAIRS, PAIRS[:9], progress=False)
    reads = {name: count for name, count in seen.counted.items() if name.startswith("read")}
    steps, epochs, parameters = 2 * -(-len(PAIRS) // 7), 2, 0
    # Loss and norm of a step; of a validation the loss.
    assert set(reads) == {"read by _local_scalar_dense"}, reads
    assert reads["read by _local_scalar_dense"] <= 2 * steps + epochs + parameters


SOURCES = [[5, 6, 7], [4], [8, 9, 10, 5, 6], [3, UNKNOWN], [6] * 9, [7, 3, 3]]
KINDS = {
    "gru": {},
    "lstm": {"cell": "lstm"},
    "lexical": {"num_layers": 1, "lexical": True},
    "dot": {"score": "dot"},
    "scaled dot": {"score": "scaled_dot"},
    "no attention": {"score": "none"},
    "untied": {"score": "bilinear", "tied_embeddings": "none"},
}
SEARCHES = [
    Search(beam=1),
    Search(beam=3),
    Search(beam=5, n_best=3, length_penalty=0.6),
    Search(beam=4, n_best=4, length_penalty=2.0, max_length=5),
    Search(beam=3, min_ratio=1.0),
]


def assert_both_agree(models: Sequence[TranslationModel], search: Search) -> None:
    copies = any(model.attends for model in models)
    sentences = [Sentence(each, copies and UNKNOWN in each, *limits(search, len(each))) for each in SOURCES]
    ways, no_states = (step_by_step, grid.search_grid), [None] * len(models)
    wanted, found = (way(models, sentences, search, NO_SLOTS, no_states) for way in ways)
    for one, other in zip(wanted, found, strict=True):
        assert [each.ids for each in one] == [each.ids for each in other]
        assert [each.finished for each in one] == [each.finished for each in other]
        for before, after in zip(one, other, strict=True):
            assert after.score == pytest.approx(before.score, abs=1e-9)
            torch.testing.assert_close(after.weights, before.weights)


@kit.each("search", SEARCHES)
@kit.each("kind", KINDS)
def test_a_grid_finds_what_step_by_step_finds(kind: str, search: Search) -> None:
    assert_both_agree([make(**KINDS[kind])], search)


def test_models_search_together_on_a_grid() -> None:
    assert_both_agree([make(), make(seed=1, cell="lstm"), make(seed=2, score="none")], Search(beam=3, n_best=2))


def test_a_step_of_a_grid_is_few_operations_and_reads_nothing() -> None:
    model = make(num_layers=1, lexical=True)
    model.output_bias.data[2] = -50.0  # no end

    def counted(longest: int) -> Operations:
        search = Search(beam=3, max_length=longest)
        sentences = [Sentence(each, True, *limits(search, len(each))) for each in SOURCES]
        with Operations() as seen:
            grid.search_grid([model], sentences, search, NO_SLOTS, [None])
        return seen

    few, more = counted(2).counted, counted(7).counted
    # The tables are read once; looking them up is the host's, and so are the parts of a cell but for one kernel.
    found = more - few
    of_cell = sum(found.pop(name, 0) for name in ("sigmoid", "tanh", "addcmul", "lerp", "index")) - 5
    assert of_cell >= 0
    assert found.total() / 5 <= 25, found
    assert not [name for name in more - few if name.startswith("read")]


def test_another_device_gets_more_sentences_at_once() -> None:
    asked = []

    class Away(BaseTranslator):
        def __init__(self, *, is_cpu: bool) -> None:
            self._bias = SimpleNamespace(is_cpu=is_cpu)

        def _models(self) -> tuple[SimpleNamespace, ...]:
            return (SimpleNamespace(output_bias=self._bias),)

        def _translate(self, lines: Sequence[str], translate: partial[Any], *_: Any, split: bool) -> list[list[str]]:
            asked.append(translate.keywords["batch_size"])
            return [[line] for line in lines]

    for is_cpu in (True, False):
        for search in (Search(beam=1), Search(beam=5), Search(sample=True, n_best=8)):
            Away(is_cpu=is_cpu).translate(["a"], search=search)
    Away(is_cpu=False).translate(["a"], batch_size=3)
    assert asked == [64, 64, 64, 2_560, 512, 320, 3]


def test_scores_that_are_no_numbers_are_an_error_on_a_grid() -> None:
    from dikkat.translation import InputError

    model = make()
    model.output_bias.data[7] = torch.nan
    search = Search(beam=2)
    with pytest.raises(InputError, match="NaN"):
        grid.search_grid([model], [Sentence([5, 6], False, *limits(search, 2))], search, NO_SLOTS, [None])


def test_a_search_on_another_device_takes_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    model, search = make(), Search(beam=2)
    assert not grid.can_run([model], search)
    wanted = beam_search(model, SOURCES, search)
    called = []
    searched = grid.search_grid
    monkeypatch.setattr(search_module, "find_panels", lambda *_: None)
    monkeypatch.setattr(grid, "can_run", lambda *_: True)
    monkeypatch.setattr(grid, "search_grid", lambda *given: called.append(1) or searched(*given))
    found = beam_search(model, SOURCES, search)
    assert called
    assert [each[0].ids for each in found] == [each[0].ids for each in wanted]
