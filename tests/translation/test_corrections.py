"""Stored pairs: three engines against a reference in NumPy, corrections, files and bad input."""

import copy
import json
import math
import multiprocessing
import pickle
import sys
import tempfile
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import kit
from command import command_line
from dikkat.storage.folders import SUMS, digest
from dikkat.translation import InputError, ModelFolderError, Search, Translator, beam_search, forced_scores
from dikkat.translation.decoding import grid
from dikkat.translation.decoding import search as search_module
from dikkat.translation.decoding.correcting import compute_keys
from dikkat.translation.formats.model_folder import MEMORY, read_sums, write_memory
from dikkat.translation.memory import pair_memory
from dikkat.translation.memory.pair_memory import PairMemory, StoredPair
from dikkat.translation.memory.states import NEGLIGIBLE, States, score_projection
from dikkat.translation.network.model import collate
from dikkat.translation.text.special_tokens import UNKNOWN
from translation.taught import PAIRS
from translation.test_search import MANY, SLOTS, assert_agree, make, plain

STORED = [
    ([5, 6, 6], [4, 9, 7]), ([7, 4], [10]), ([8, 9, 10, 7], [5, 11, 12]),
    ([10, 10, 6], [7, 4]), ([9, 4], [12, 8, 6, 4]),
]  # fmt: skip


def memory_of(model, width=0.35, bias=1.5, nearest=5, dimensions=5, stored=STORED):
    """A memory whose states are near enough that several of them count, and far enough that they differ."""
    table = model.output_table.detach()
    projection = (score_projection(table, dimensions) / width).to(torch.float32)
    memory = PairMemory(projection=projection, nearest=nearest)
    for number, (source, target) in enumerate(stored):
        keys = compute_keys(model, projection, [(source, target)])[0]
        memory.store(StoredPair(f"s{number}", f"t{number}", tuple(source), tuple(target), keys, bias))
    return memory


class Mixed:
    """A model whose probabilities are mixed with a memory's, in NumPy: the formula, state after state."""

    def __init__(self, model, memory):
        self.model, self.attends, self.output_bias, self.encode = model, model.attends, model.output_bias, model.encode
        self.states, self.seen = memory.snapshot.states, []

    def step(self, previous, memory, state):
        features, weights, state = self.model.step_features(previous, memory, state)
        return self.mixed(features), weights, state

    def mixed(self, features):
        p = self.model.scores(features).softmax(1).double().numpy()
        for row, feature in enumerate(features.double().numpy()):
            query = self.states.projection.double().numpy() @ feature
            squares = ((query - self.states.keys.double().numpy()) ** 2).sum(1)
            logs = self.states.biases.double().numpy() - squares / 2
            chosen = [i for i in np.argsort(-logs)[: self.states.count] if logs[i] >= NEGLIGIBLE]
            for i in chosen:
                p[row, int(self.states.tokens[i])] += math.exp(logs[i])
            p[row] /= 1 + sum(math.exp(logs[i]) for i in chosen)
            self.seen.append(len(chosen))
        return torch.from_numpy(np.log(p))


ENGINES = ["compiled", "stepwise", "grid"]


@pytest.fixture(params=ENGINES)
def engine(request, monkeypatch):
    if request.param != "compiled":
        monkeypatch.setattr(search_module, "find_panels", lambda *_: None)
    if request.param == "grid":
        monkeypatch.setattr(grid, "can_run", lambda models, search: not search.sample)
    return request.param


@pytest.mark.usefixtures("engine")
@kit.each("slots", [({}, {}), SLOTS])
@kit.each("search", [Search(1), Search(3, n_best=2), Search(5, n_best=5, min_ratio=1.0, length_penalty=0.0)])
def test_engines_search_the_mixture(search, slots):
    model = make(seed=3)
    memory = memory_of(model)
    mixed = Mixed(model, memory)
    sources = [*MANY, [8, 5, 6]]
    found = beam_search(model, sources, search, slots, [memory.snapshot])
    for source, hypotheses in zip(sources, found, strict=True):
        assert_agree(hypotheses, plain(mixed, source, search, slots))
    assert sum(mixed.seen) > 2 * len(mixed.seen)
    alone = beam_search(model, sources, search, slots)
    assert [[one.ids for one in group] for group in alone] != [[one.ids for one in group] for group in found]


@pytest.mark.usefixtures("engine")
@torch.no_grad()
def test_the_nearest_states_of_each_token_are_returned():
    model = make(seed=3)
    memory = memory_of(model)
    states = memory.snapshot.states
    for source, (best, *_) in zip(MANY, beam_search(model, MANY, Search(3), memories=[memory.snapshot]), strict=True):
        features = model.features(collate([(source, best.ids)])).double()
        queries = features @ states.projection.double().T
        for t in range(len(best.ids)):
            squares = (queries[t] - states.keys.double()).square().sum(1)
            logs = states.biases.double() - squares / 2
            kept = {int(i) for i in logs.topk(states.count).indices if logs[i] >= NEGLIGIBLE}
            weights = dict(zip(best.nearest.states[t].tolist(), best.nearest.weights[t].tolist(), strict=True))
            assert {i for i, weight in weights.items() if weight} == kept
            for i in kept:
                assert weights[i] == pytest.approx(float(logs[i].exp()), rel=1e-6)


@pytest.mark.usefixtures("engine")
def test_a_memory_may_have_fewer_states_than_neighbours():
    model = make(seed=3)
    memory = memory_of(model, nearest=8, stored=STORED[1:2])
    assert (len(memory.snapshot.states.keys), memory.snapshot.states.count) == (2, 2)
    mixed = Mixed(model, memory)
    found = beam_search(model, MANY, Search(3), memories=[memory.snapshot])
    for source, hypotheses in zip(MANY, found, strict=True):
        assert_agree(hypotheses, plain(mixed, source, Search(3)))
    pairs = [(source, best.ids) for source, (best, *_) in zip(MANY, found, strict=True) if best.finished]
    scores = forced_scores(model, pairs, [memory.snapshot])
    assert scores == pytest.approx([best.score for best, *_ in found if best.finished], rel=1e-9)


def test_storing_concatenates_no_states(monkeypatch):
    built = []
    monkeypatch.setattr(pair_memory, "States", lambda *fields: built.append(fields) or States(*fields))
    memory = memory_of(make(seed=3))
    assert built == []
    assert memory.snapshot.states is memory.snapshot.states
    assert len(built) == 1
    assert len(memory.snapshot.states.keys) == sum(len(target) + 1 for _, target in STORED)


def test_threads_with_different_memories_get_their_own_panels(monkeypatch):
    model = make(seed=3)
    first, second = (memory_of(model, nearest=nearest).snapshot.states for nearest in (5, 3))
    panels = search_module.find_panels([model], Search())

    def interrupt(self, name, value):
        object.__setattr__(self, name, value)
        if name == "_extended" and value and value[0] is first:
            self.with_states(second)  # as another thread may do at this moment

    monkeypatch.setattr(type(panels), "__setattr__", interrupt)
    assert panels.with_states(first).sizes["nearest"] == 5


def test_many_states_in_several_blocks_in_float32():
    model = make(seed=3).float()
    memory = memory_of(model, nearest=7)
    generator = torch.Generator().manual_seed(0)
    size = len(memory.snapshot.states.projection)
    for number in range(211):  # more than two blocks of 256 states
        keys = torch.randn(5, size, generator=generator).half() * 9
        target = torch.randint(4, 13, (4,), generator=generator).tolist()
        memory.store(StoredPair(f"many {number}", "t", (4, 5, number), tuple(target), keys, 1.5))
    assert len(memory.snapshot.states.keys) > 2 * 256
    found = beam_search(model, MANY, Search(4, n_best=2), memories=[memory.snapshot])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "find_panels", lambda *_: None)
        expected = beam_search(model, MANY, Search(4, n_best=2), memories=[memory.snapshot])
    for group, other in zip(found, expected, strict=True):
        assert [one.ids for one in group] == [one.ids for one in other]
        assert [one.score for one in group] == pytest.approx([one.score for one in other], rel=1e-5)


@kit.each("top_k", [None, 3])
def test_samples_are_drawn_from_the_mixture(top_k):
    model = make(seed=3)
    memory = memory_of(model, width=0.05, bias=9.0)
    search = Search(sample=True, n_best=40, top_k=top_k)
    (found,) = beam_search(model, [[7, 4]], search, memories=[memory.snapshot])
    assert sum(sample.ids == [10] for sample in found) >= 39  # the stored translation, of probability 0.9998


def test_forced_scores_are_those_of_the_search():
    model = make(seed=3)
    memory = memory_of(model)
    found = beam_search(model, MANY, Search(3), memories=[memory.snapshot])
    pairs = [(source, best.ids) for source, (best, *_) in zip(MANY, found, strict=True) if best.finished]
    scores = forced_scores(model, pairs, [memory.snapshot])
    assert scores == pytest.approx([best.score for best, *_ in found if best.finished], rel=1e-9)
    assert scores != pytest.approx(forced_scores(model, pairs), rel=1e-3)


@pytest.mark.usefixtures("engine")
def test_an_ensemble_averages_the_mixtures():
    models = [make(seed=3), make(seed=4)]
    memories = [memory_of(models[0]), None]
    found = beam_search(models, MANY, Search(3), memories=[memories[0].snapshot, None])
    for source, hypotheses in zip(MANY, found, strict=True):
        assert_agree(hypotheses, plain([Mixed(models[0], memories[0]), models[1]], source, Search(3)))
        assert hypotheses[0].nearest is None


# --- corrections


def corrected_copy(translator, corrections=()):
    copied = copy.deepcopy(translator)
    for pair in corrections:
        copied.correct(*pair)
    return copied


NEW = [
    ("Go.", "Il voit l'homme."), ("He's calm.", "Marie a perdu !"), ("The man is Marie.", "L'homme est Marie."),
    ("She is calm.", "Elle est calme."), ("Where is Marie?", "Où est Marie ?"), ("I'm calm.", "Je suis calme."),
]  # fmt: skip


@kit.each("search", [Search(), Search(1), Search(precision="int8"), Search(3, n_best=3)])
def test_corrections_are_right_when_asked_again(translator, search):
    corrected = corrected_copy(translator, NEW)
    results = [group[0].target for group in corrected.translate_n_best([source for source, _ in NEW], search=search)]
    assert results == [target for _, target in NEW]
    assert len(corrected.memory) == len(NEW)
    assert len(translator.memory) == 0


def test_other_sentences_stay_the_same(translator):
    corrected = corrected_copy(translator, [NEW[0]])
    others = [source for source, _ in PAIRS if source != "Go."]
    assert [t.target for t in corrected.translate(others)] == [t.target for t in translator.translate(others)]


def test_the_newest_correction_wins(translator):
    corrected = corrected_copy(translator)
    assert corrected.correct("Go.", "Va chez Marie !") == []
    assert corrected.correct("Go.", "Va chez Marie !") == []
    (message,) = corrected.correct("Go.", "Elle a perdu.")
    assert message == "replaces the earlier correction 'Va chez Marie !' of 'Go.'"
    assert corrected.translate("Go.").target == "Elle a perdu."
    assert len(corrected.memory) == 1


def test_a_corrected_line_of_several_sentences_is_not_split(translator):
    line, target = "Go. I lost.", "J'ai perdu l'homme."
    assert corrected_copy(translator, [(line, target)]).translate(line).target == target


@kit.each("sentence", ["Go. I lost. ", "\u3000Go.\u00a0 I lost."])
def test_white_space_makes_no_other_sentence(translator, sentence):
    line, target = "Go. I lost.", "J'ai perdu l'homme."
    for stored, asked in ((sentence, line), (line, sentence)):
        corrected = corrected_copy(translator, [(stored, target)])
        translation = corrected.translate(asked)
        assert (translation.source, translation.target) == (asked, target)
        assert corrected.correct(asked, target) == []
        assert corrected.memory.pairs == [(asked, target)]


def test_a_composed_letter_makes_no_other_sentence(translator):
    corrected = corrected_copy(translator, [("Marie\u0301e. Go.", "Va !")])
    assert corrected.translate("Mari\u00e9e. Go.").target == "Va !"
    assert corrected.translate("Mari\u00e9e. Go.").unknown == ()


def test_terms_are_used_unless_the_correction_is_written(translator):
    source, terms = "The man is calm.", {"calm": "parti", "man": "homme"}
    corrected = corrected_copy(translator, [(source, "L'homme est perdu.")])
    found = corrected.translate(source, terms=terms)
    assert (found.target, found.unused_terms) == ("L'homme est perdu.", ("calm",))
    ensemble = Translator.ensemble([translator, corrected, translator])
    assert ensemble.translate(source, terms=terms).unused_terms == ("calm",)
    groups = next(corrected.translate_n_best([source], search=Search(n_best=3), terms=terms))
    fixed = [each for each in groups if each.target == "L'homme est perdu."]
    assert [each.unused_terms for each in fixed] == [("calm",)]
    assert all("parti" in each.target and not each.unused_terms for each in groups if each not in fixed)


@kit.each("position", [0, 1, 2])
def test_an_ensemble_follows_the_corrections_of_any_model(translator, position):
    line, target = "Go. I lost.", "J'ai perdu l'homme."
    corrected = corrected_copy(translator, [(line, target), *NEW])
    members = [copy.deepcopy(translator) for _ in range(3)]
    members[position] = corrected
    ensemble = Translator.ensemble(members)
    expected = [target, *(target for _, target in NEW)]
    assert [t.target for t in ensemble.translate([line, *(source for source, _ in NEW)])] == expected
    assert [len(member.memory) for member in members] == [7 if index == position else 0 for index in range(3)]


def test_an_ensemble_follows_the_first_of_different_corrections(translator):
    first, second = (corrected_copy(translator, [("Go.", target)]) for target in ("Elle voit Marie.", "Il a perdu."))
    second.correct("I lost.", "Va !")
    for members, expected in (((first, second), "Elle voit Marie."), ((second, first), "Il a perdu.")):
        unused = members[1].memory.pairs[0]
        message = f"1 corrections of later models are not used, .*: {unused[1]!r} of {unused[0]!r}$"
        with pytest.warns(UserWarning, match=message):
            ensemble = Translator.ensemble(members)
        assert [t.target for t in ensemble.translate([" Go. ", "I lost."])] == [expected, "Va !"]
    assert second.memory.pairs == [("Go.", "Il a perdu."), ("I lost.", "Va !")]


def test_an_ensemble_has_a_copy_of_the_corrections(translator):
    corrected = corrected_copy(translator, NEW[:1])
    ensemble = Translator.ensemble([corrected, translator])
    corrected.correct(*NEW[1])
    assert [memory.pairs for memory in ensemble.memories] == [NEW[:1]] * 2


def test_a_removed_correction_has_no_effect(translator):
    corrected = corrected_copy(translator, NEW[:2])
    assert corrected.memory.remove("  Go. ") == NEW[0][1]
    assert corrected.memory.pairs == NEW[1:2]
    assert corrected.translate("Go.").target == translator.translate("Go.").target
    assert corrected.translate(NEW[1][0]).target == NEW[1][1]
    with pytest.raises(InputError, match=r"source: got 'Go.', which has no correction; expected a corrected sentence"):
        corrected.memory.remove("Go.")
    corrected.memory.remove(NEW[1][0])
    assert corrected.memory.snapshot is None
    corrected.correct(*NEW[0])
    assert corrected.translate("Go.").target == NEW[0][1]


def test_translations_with_terms_are_best_first_by_their_mixed_scores(translator):
    source, terms = "She is calm.", {"calm": "perdu"}
    corrected = corrected_copy(translator, [(source, "Elle est calme.")])
    search = Search(8, n_best=8, length_penalty=0.0)
    group = next(corrected.translate_n_best([source], search=search, terms=terms))
    finished = [each for each in group if each.finished and not each.repeated]
    assert len(finished) > 3
    scores = [each.score for each in finished]
    assert scores == sorted(scores, reverse=True)
    assert scores == pytest.approx(corrected.score([(source, each.target) for each in finished]), rel=1e-4)
    assert scores != pytest.approx(translator.score([(source, each.target) for each in finished]), rel=1e-3)
    samples = Search(sample=True, n_best=6)
    plain_samples = next(corrected.translate_n_best([source], search=samples))
    with_terms = next(corrected.translate_n_best([source], search=samples, terms=terms))
    kept = [(a.target, b.target) for a, b in zip(plain_samples, with_terms, strict=True) if "perdu" in a.target]
    assert all(a == b for a, b in kept)


def test_sources_say_which_correction_a_token_follows(translator):
    corrected = corrected_copy(translator, [NEW[0]])
    translation = corrected.translate("Go.")
    assert len(translation.sources) == len(translation.target_tokens)
    for (source,) in translation.sources:
        assert source[:2] == NEW[0]
        assert source.weight == pytest.approx(math.exp(5) / (1 + math.exp(5)), abs=5e-3)
    assert translator.translate("Go.").sources == []
    both = corrected.translate("Go. Go.")
    assert len(both.sources) == len(both.target_tokens)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda memory: pickle.loads(pickle.dumps(memory))])
def test_a_copy_has_its_own_corrections(translator, copied):
    corrected = corrected_copy(translator, NEW[:2])
    other = copied(corrected)
    other.correct(*NEW[2])
    assert (len(corrected.memory), len(other.memory)) == (2, 3)
    assert other.memory.pairs == NEW[:3]
    assert other.translate(NEW[0][0]).target == NEW[0][1]


def test_threads_correct_and_translate_at_once(translator):
    corrected, results, start = corrected_copy(translator), {}, threading.Barrier(len(NEW))

    def work(pair):
        start.wait()
        corrected.correct(*pair)
        results[pair[0]] = corrected.translate(pair[0]).target

    threads = [threading.Thread(target=work, args=(pair,)) for pair in NEW]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict(NEW)
    assert sorted(corrected.memory.pairs) == sorted(NEW)


# --- bad input


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (("", "Va !"), "source: got an empty text"),
        (("Go.", "Va\0"), r"target: got 'Va\\x00'; expected text without NUL characters"),
        (("Go.", " \t"), "target: got an empty text"),
        (("12", "13"), "expected letters"),
        (("a" * 10_001, "Va !"), "source: got 10,001 characters"),
        (("Go.", "\ud800"), "target: got .* expected Unicode"),
    ],
)
def test_what_cannot_be_corrected_is_an_error(translator, pair, message):
    corrected = corrected_copy(translator)
    with pytest.raises(InputError, match=message):
        corrected.correct(*pair)
    assert len(corrected.memory) == 0


@pytest.mark.parametrize("target", ["Va Zürich !", "Zürich", "Qwrtz zürich va Bjørk."])
@pytest.mark.parametrize("search", [Search(), Search(beam=1)], ids=["beam", "greedy"])
def test_unknown_words_of_a_correction_are_written(translator, target, search, tmp_path):
    corrected = corrected_copy(translator)
    assert corrected.correct("Go.", target) == []
    assert UNKNOWN in corrected.memory.snapshot.pairs[0].target_ids
    corrected.save(tmp_path / "model")
    for model in (corrected, Translator.load(tmp_path / "model"), Translator.ensemble([corrected, corrected])):
        best = model.translate("Go.", search=search)
        assert best.target == target
        assert "<unk>" not in best.target_tokens
    assert "Zürich" not in corrected.translate("She won.").target


def test_a_sentence_with_another_unknown_word_gets_its_own(translator):
    corrected = corrected_copy(translator)
    assert corrected.correct("She is calm.", "Zut alors !") == []
    assert corrected.translate("SHE is calm.").target == "Zut alors !"  # the same tokens
    assert corrected.correct("Foobar is calm.", "Foobar dort.") == []
    assert corrected.translate("Foobar is calm.").target == "Foobar dort."
    assert corrected.translate("Zanzibar is calm.").target == "Zanzibar dort."


def test_an_exact_correction_is_not_doubted(translator):
    corrected = corrected_copy(translator)
    for source, target in [("Foobar is 12.", "Va va va va !"), ("She is calm.", " Zut\n\talors ! ")]:
        assert corrected.correct(source, target) == []
    first, second = corrected.translate(["Foobar is 12.", "She is calm."])
    assert (first.target, second.target) == ("Va va va va !", "Zut alors !")
    assert (first.repeated, first.unknown, first.lost, first.flags) == (False, (), (), ())
    assert first.target_tokens == ["Va", "va", "va", "va", "!"]
    assert second.target_tokens == ["Zut", "alors", "!"]


def test_a_long_source_is_corrected(translator):
    corrected = corrected_copy(translator)
    source = "go " * 3_000
    assert corrected.correct(source, "Va !") == []
    assert corrected.translate(source).target == "Va !"


def test_a_target_beyond_the_length_limit_is_reported(translator):
    assert "more than the limit of 14" in corrected_copy(translator).correct("Go.", "Va ! " * 9)[-1]


# --- files


@kit.each("int8", [False, True])
def test_a_folder_keeps_the_corrections(translator, tmp_path, int8):
    corrected = corrected_copy(translator, NEW)
    corrected.save(tmp_path / "model", int8=int8)
    loaded = Translator.load(tmp_path / "model")
    assert loaded.memory.pairs == NEW
    assert [t.target for t in loaded.translate([source for source, _ in NEW])] == [target for _, target in NEW]
    loaded.correct("I lost.", "Va !")
    loaded.save(tmp_path / "model")
    assert len(Translator.load(tmp_path / "model").memory) == len(NEW) + 1


def test_pages_contain_the_corrections(translator):
    text = NEW[0][1].encode()
    assert text not in translator.bundle()
    assert corrected_copy(translator, NEW).bundle().count(text) == 1
    assert translator.memory.snapshot is None


def test_a_folder_without_a_bandwidth_has_no_memory(translator, tmp_path):
    replace(translator, memory=PairMemory()).save(tmp_path / "model")
    assert not (tmp_path / "model" / MEMORY).exists()


def test_a_bandwidth_outlasts_saving_and_removed_corrections(translator, tmp_path):
    width, unit = 0.083, score_projection(translator.model.output_table, 48)
    replace(translator, memory=PairMemory(projection=unit / width)).save(tmp_path / "model")
    written = (tmp_path / "model" / MEMORY).read_bytes()
    for _ in range(7):  # entries of metadata would have a random order
        Translator.load(tmp_path / "model").save(tmp_path / "model")
        assert (tmp_path / "model" / MEMORY).read_bytes() == written
    for change in (lambda loaded: loaded.correct(*NEW[0]), lambda loaded: loaded.memory.remove(NEW[0][0])):
        loaded = Translator.load(tmp_path / "model")
        change(loaded)
        loaded.save(tmp_path / "model")
        projection = Translator.load(tmp_path / "model").memory.projection(None)
        torch.testing.assert_close(projection, unit / width)


def rewritten(folder, change):
    """Change the tensors and metadata of a folder's memory, with the right checksums."""
    path = folder / MEMORY
    data = path.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    tensors = load_file(path)
    change(tensors, metadata)
    save_file(tensors, path, metadata)
    sums = [line for line in (folder / SUMS).read_text().splitlines() if MEMORY not in line]
    (folder / SUMS).write_text("\n".join([*sums, f"{digest(path.read_bytes())}  {MEMORY}"]) + "\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, metadata: tensors["model"].fill_(0),
        lambda tensors, metadata: metadata.update(nearest="0"),
        lambda tensors, metadata: metadata.update(nearest="x"),
        lambda tensors, metadata: tensors.pop("keys"),
        lambda tensors, metadata: tensors.update(keys=tensors["keys"].float()),
        lambda tensors, metadata: tensors.update(keys=tensors["keys"][1:].clone()),
        lambda tensors, metadata: tensors["keys"].fill_(math.nan),
        lambda tensors, metadata: tensors.update(projection=tensors["projection"][:, 1:].clone()),
        lambda tensors, metadata: tensors.update(
            projection=tensors["projection"][:0].clone(), keys=tensors["keys"][:, :0].clone()
        ),
        lambda tensors, metadata: tensors.update(
            projection=tensors["projection"].repeat(9, 1), keys=tensors["keys"].repeat(1, 9)
        ),
        lambda tensors, metadata: tensors["biases"].fill_(16.5),
        lambda tensors, metadata: tensors["biases"].fill_(-16.5),
        lambda tensors, metadata: tensors["target_tokens"].fill_(1_000),
        lambda tensors, metadata: tensors["source_tokens"].fill_(-1),
        lambda tensors, metadata: tensors["source_lengths"].fill_(-1),
        lambda tensors, metadata: tensors["target_lengths"].fill_(2**30),
        lambda tensors, metadata: tensors["texts"].fill_(255),
        lambda tensors, metadata: tensors.update(texts=torch.tensor(list(b'[["a"]]'), dtype=torch.uint8)),
        lambda tensors, metadata: tensors.update(texts=torch.tensor(list(b'[["a", "b", true]]'), dtype=torch.uint8)),
    ],
)
def test_a_memory_that_does_not_fit_is_an_error(translator, tmp_path, change):
    corrected_copy(translator, NEW).save(tmp_path / "model")
    rewritten(tmp_path / "model", change)
    with pytest.raises(ModelFolderError, match=r"memory\.safetensors: damaged, or of another model"):
        Translator.load(tmp_path / "model")


def test_a_memory_that_could_not_be_loaded_is_not_saved(translator, tmp_path, monkeypatch):
    corrected = corrected_copy(translator, NEW)
    corrected.save(tmp_path / "model")
    size = (tmp_path / "model" / MEMORY).stat().st_size
    monkeypatch.setattr(pair_memory, "LARGEST", size)
    corrected.save(tmp_path / "model")
    monkeypatch.setattr(pair_memory, "LARGEST", size - 1)
    with pytest.raises(ModelFolderError, match=f"memory: got {size:,} bytes of corrections; expected at most"):
        corrected.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_damaged_memory_is_an_error(translator, tmp_path):
    corrected_copy(translator, NEW).save(tmp_path / "model")
    path = tmp_path / "model" / MEMORY
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ModelFolderError, match=r"memory\.safetensors: damaged: its checksum differs"):
        Translator.load(tmp_path / "model")
    path.unlink()
    with pytest.raises(ModelFolderError, match=r"memory\.safetensors: missing"):
        Translator.load(tmp_path / "model")


def test_a_model_that_changed_since_its_loading_is_not_corrected(translator, tmp_path):
    folder = tmp_path / "model"
    translator.save(folder)
    sums = read_sums(folder)
    first, second = (corrected_copy(Translator.load(folder), [pair]).memory for pair in NEW[:2])
    write_memory(folder, first, sums)
    with pytest.raises(ModelFolderError, match="another program changed the model since it was loaded"):
        write_memory(folder, second, sums)
    assert Translator.load(folder).memory.pairs == NEW[:1]
    write_memory(folder, second, read_sums(folder))
    assert Translator.load(folder).memory.pairs == NEW[1:2]


def _write_often(folder, pair, start, results):
    """Store a correction in a model folder until it has succeeded five times, with a temporary folder of its own."""
    tempfile.tempdir = tempfile.mkdtemp(dir=folder.parent)
    start.wait()
    conflicts = successes = 0
    while successes < 5:
        sums = read_sums(folder)
        try:
            translator = Translator.load(folder)
            translator.correct(pair[0], f"{pair[1]} {pair[1]}" if successes % 2 else pair[1])
            write_memory(folder, translator.memory, sums)
            successes += 1
        except ModelFolderError as error:
            if not any(text in str(error) for text in ("another program changed", "checksum differs", "missing")):
                raise
            conflicts += 1
    results.put(conflicts)


def test_two_processes_lose_no_correction(translator, tmp_path):
    folder = tmp_path / "model"
    translator.save(folder)
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(2), context.Queue()
    writers = [context.Process(target=_write_often, args=(folder, pair, start, results)) for pair in NEW[:2]]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert sorted(Translator.load(folder).memory.pairs) == sorted(NEW[:2])
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[:3] != "tmp") == [".model.lock", "model"]


def test_a_memory_without_a_checksum_is_an_error(translator, tmp_path):
    replace(translator, memory=PairMemory()).save(tmp_path / "model")
    (tmp_path / "model" / MEMORY).write_bytes(b"")
    with pytest.raises(ModelFolderError, match=r"has no sum of memory\.safetensors"):
        Translator.load(tmp_path / "model")


# --- the command line


@pytest.fixture
def run(monkeypatch, capsys):
    return command_line(monkeypatch, capsys)


def test_a_score_of_corrected_lines_is_a_warning(translator, tmp_path, run):
    model, corpus = tmp_path / "model", tmp_path / "test.tsv"
    corrected_copy(translator, NEW[:2]).save(model)
    corpus.write_text("Go.\tVa !\nI lost.\tJ'ai perdu.\nHe's  calm.\tIl est calme.\n", encoding="utf-8")
    status, _, err = run("evaluate", model, "--corpus", corpus)
    assert status == 0
    assert f"{corpus}: 2 of 3 source sentences are stored corrections of {model}, so the scores are higher" in err
    translator.save(model)
    assert "stored corrections" not in run("evaluate", model, "--corpus", corpus)[2]


@pytest.mark.filterwarnings("default:.*skipped the column names")
@pytest.mark.parametrize(
    ("name", "text", "notes"),
    [
        ("a.tsv", "source\ttarget\n\nGo. \t Elle voit Marie. \n", "line 1: skipped the column names"),
        ("a.csv", 'Go.,"Elle voit Marie."\n', ""),
        ("a.tsv", "Go.\tVa !\n \nGo.\tElle voit Marie.\n", "line 3: replaces the earlier correction 'Va !'"),
    ],
)
def test_tables_of_corrections_are_read_as_corpora(translator, tmp_path, name, text, notes, run):
    translator.save(tmp_path / "model")
    (tmp_path / name).write_text(text, encoding="utf-8")
    status, _, err = run("correct", tmp_path / "model", tmp_path / name)
    assert (status, notes in err) == (0, True)
    assert Translator.load(tmp_path / "model").memory.pairs[0] == ("Go.", "Elle voit Marie.")


def test_the_command_line_corrects(translator, tmp_path, run):
    model, corrections = tmp_path / "model", tmp_path / "corrections.tsv"
    translator.save(model, int8=True)
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.name not in (SUMS, MEMORY)}
    lines = ["Go.\tVa !", "Go.\tElle voit Marie.", "I lost.\tJ'ai  perdu Zürich."]
    corrections.write_text("\n".join(lines) + "\n", encoding="utf-8")
    status, out, err = run("correct", model, corrections)
    assert (status, out) == (0, "")
    assert f"{corrections}, line 2: replaces the earlier correction 'Va !' of 'Go.'" in err
    assert f"{model}: 3 corrections read, 2 stored" in err
    assert {name: (model / name).read_bytes() for name in before} == before
    status, out, _ = run("translate", model, "Go.", "--json")
    values = json.loads(out)
    assert (status, values["target"]) == (0, "Elle voit Marie.")
    assert {(s["source"], s["target"]) for sources in values["sources"] for s in sources} == {
        ("Go.", "Elle voit Marie.")
    }
    assert json.loads(run("info", model, "--json")[1])["stored_pairs"] == 2
    assert run("quantize", model, "--output", tmp_path / "small")[0] == 0
    assert run("translate", tmp_path / "small", "Go.")[1] == "Elle voit Marie.\n"


def test_the_command_line_lists_and_removes_corrections(translator, tmp_path, monkeypatch, run):
    model, lines = tmp_path / "model", tmp_path / "lines.txt"
    corrected_copy(translator, [*NEW[:2], ("I  lost.", "Va !")]).save(model)
    status, out, err = run("correct", model, "--list")
    assert (status, out, err) == (0, f"Go.\t{NEW[0][1]}\nHe's calm.\t{NEW[1][1]}\nI  lost.\tVa !\n", "")
    lines.write_text(out, encoding="utf-8")
    status, out, err = run("correct", model, lines)
    assert (status, "3 corrections read, 3 stored" in err) == (0, True)
    lines.write_text(f"Go.\t{NEW[0][1]}\n\nI lost. \n", encoding="utf-8")
    status, out, err = run("correct", model, lines, "--remove")
    assert (status, out, err) == (0, "", f"{model}: 2 corrections removed, 1 stored\n")
    assert Translator.load(model).memory.pairs == NEW[1:2]
    status, _, err = run("correct", model, lines, "--remove")
    assert (status, f"{lines}, line 1: source: got 'Go.', which has no correction" in err) == (2, True)
    status, _, err = run("correct", model, "--remove", stdin=b"He's calm.\n")
    assert (status, err) == (0, f"{model}: 1 corrections removed, 0 stored\n")
    assert run("correct", model, "--list")[1] == ""


@pytest.mark.filterwarnings("default:.*skipped the column names")
def test_listed_corrections_can_be_removed_and_stored_again(translator, tmp_path, run):
    model, table = tmp_path / "model", tmp_path / "corrections.tsv"
    pairs = [
        ("source", "text"), ('"Go!"', "Va !"), ('He says "go".', "Va\t!"), ("I'm\tcalm\x1b[31m.", 'L\x9b"homme"'),
        ("\ufeffI lost.\x0c", "Va."),
    ]  # fmt: skip
    corrected_copy(translator, pairs).save(model)
    out = run("correct", model, "--list")[1]
    for lines in (out, *out.split("\n")[2:-1]):
        corrected_copy(translator, pairs).save(model)
        table.write_text(lines, encoding="utf-8")
        count = 1 if lines != out else len(pairs)
        status, _, err = run("correct", model, table, "--remove")
        assert (status, f"{count} corrections removed, {len(pairs) - count} stored" in err) == (0, True), err
    table.write_text(out, encoding="utf-8")
    assert run("correct", model, table)[0] == 0
    stored = Translator.load(model).memory.pairs
    assert stored == [*pairs[:-1], ("I lost.", "Va.")]


def test_a_terminal_gets_no_control_characters(translator, tmp_path, monkeypatch, run):
    corrected_copy(translator, [("Go\x1b[31m.", "Va\t!")]).save(tmp_path / "model")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    out = run("correct", tmp_path / "model", "--list")[1]
    assert out == "Go⟨1B⟩[31m.\tVa !\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "corrections: missing; expected a file, --list or --remove"),
        (["--list", "--remove"], "--list: got --remove too; expected only the model"),
        (["LINES", "--list"], "too; expected only the model"),
        (["LINES", "--remove"], "got no sentences; expected at least one"),
    ],
)
def test_options_of_corrections_that_do_not_fit(translator, tmp_path, arguments, message, run):
    translator.save(tmp_path / "model")
    (tmp_path / "lines").write_text("\n")
    arguments = [tmp_path / "lines" if each == "LINES" else each for each in arguments]
    status, out, err = run("correct", tmp_path / "model", *arguments)
    assert (status, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Go.\n", "line 1: got 'Go.', which has no tab"),
        ("Go.\tVa !\n\tVa !\n", "line 2: the source sentence is empty"),
        ("", "got no corrections"),
    ],
)
def test_a_wrong_file_of_corrections_changes_nothing(translator, tmp_path, text, message, run):
    translator.save(tmp_path / "model")
    (tmp_path / "wrong.tsv").write_text(text)
    status, out, err = run("correct", tmp_path / "model", tmp_path / "wrong.tsv")
    assert (status, out) == (2, "")
    assert message in err
    assert len(Translator.load(tmp_path / "model").memory) == 0
