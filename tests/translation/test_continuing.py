"""A trained translator learns corrections, and keeps its old translations."""

import warnings
from dataclasses import replace

import pytest
import torch

from dikkat.errors import InputError
from dikkat.translation import CorpusError, Settings, SettingsError, Tokenizer, Translator
from dikkat.translation.memory.pair_memory import PairMemory
from dikkat.translation.network.model import collate
from dikkat.translation.text.special_tokens import UNKNOWN
from dikkat.translation.training import continuing
from dikkat.translation.training.continuing import continue_training
from translation.taught import PAIRS, one_thread, taught_model, untrained  # noqa: F401 - one_thread is for all tests

CORRECTIONS = [("Go.", "Allez !"), ("She won.", "Elle a gagné.")]
QUICK = {"learning_rate": 0.01, "dropout": 0.0}


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    return Translator.load(taught_model(tmp_path_factory))


def texts(translator, pairs):
    return [translation.target for translation in translator.translate([source for source, _ in pairs])]


def test_corrections_are_learnt_and_old_pairs_kept(old):
    before = {name: tensor.clone() for name, tensor in old.model.state_dict().items()}
    lines = []
    result = continue_training(old, CORRECTIONS, PAIRS, PAIRS, values=QUICK, tell=lines.append)
    assert texts(result.translator, CORRECTIONS) == ["Allez !", "Elle a gagné."]
    assert texts(result.translator, PAIRS[1:]) == [target for _, target in PAIRS[1:]]
    assert (result.before.right, result.after.right, result.corrections, result.validation_pairs) == (0, 2, 2, 7)
    assert result.before.bleu == pytest.approx(100)
    assert result.after.bleu >= result.before.bleu - 0.3
    assert str(result).startswith("2 of 2 corrections right (0 before), BLEU 100.00 of 7 old validation pairs (100.00")
    assert result.translator.settings == old.settings
    assert lines[0] == "8 pairs in memory: 1 pairs left out, because a correction translates them differently"
    assert "2 corrections, 0 of them already right; 7 old pairs" in lines[1]
    assert "1 new source words and 2 new target words" in lines[1]
    assert result.epochs == 2 * (len(lines) - 2) < 10, "the training ends when all corrections are right"
    for name, tensor in old.model.state_dict().items():
        assert torch.equal(tensor, before[name]), "the old translator is unchanged"
    assert texts(old, PAIRS) == [target for _, target in PAIRS]


def test_stored_corrections_are_learnt_and_unlearnt_ones_stay_in_the_memory(old):
    corrected = replace(old, memory=PairMemory())
    for source, target in [("Go.", "Pars !"), ("She won.", "Elle a gagné.")]:
        corrected.correct(source, target)
    with pytest.warns(UserWarning, match=r"corrections: 1 of them left out, .* such as 'Go\.'"):
        result = continue_training(corrected, CORRECTIONS[:1], PAIRS, PAIRS, values=QUICK)
    assert (result.corrections, result.after.right, len(result.translator.memory)) == (2, 2, 0)
    assert texts(result.translator, CORRECTIONS) == ["Allez !", "Elle a gagné."]
    lines, slow = [], {"epochs": 1, "learning_rate": 1e-6}
    result = continue_training(old, CORRECTIONS, PAIRS, PAIRS, values=slow, tell=lines.append)
    assert (result.after.right, lines[-1]) == (2, "2 corrections are not in the weights, but in the memory")
    assert "0 of 2 corrections right" in lines[-2]
    assert result.translator.memory.pairs == CORRECTIONS
    assert texts(result.translator, CORRECTIONS) == ["Allez !", "Elle a gagné."]


def test_a_continued_training_is_repeatable_and_saved(old, tmp_path):
    results = [continue_training(old, CORRECTIONS, PAIRS, PAIRS, values=QUICK | {"epochs": 2}) for _ in range(2)]
    states = [result.translator.model.state_dict() for result in results]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    results[0].translator.save(tmp_path / "new")
    loaded = Translator.load(tmp_path / "new")
    assert texts(loaded, CORRECTIONS) == texts(results[0].translator, CORRECTIONS)
    assert loaded.origin.count_trained(["She won."]) == (1, 1)


def test_new_words_begin_with_a_tenth_of_the_probability_of_unknown_words(old):
    grown = continuing._grow(old, old.settings, CORRECTIONS)
    ids = [(old.source_tokenizer.encode(s).ids, old.target_tokenizer.encode(t).ids) for s, t in PAIRS]
    with torch.no_grad():
        expected, actual = (torch.log_softmax(t.model.eval()(collate(ids)).double(), 1) for t in (old, grown))
    count = expected.shape[1]
    assert actual.shape[1] == count + 2
    share = torch.log1p(0.1 * expected[:, UNKNOWN].exp())[:, None]
    torch.testing.assert_close(actual[:, :count], expected - share, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        actual[:, count:].exp().sum(1), 0.1 * (expected[:, UNKNOWN] - share[:, 0]).exp(), atol=1e-6, rtol=1e-4
    )


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_an_extended_tokenizer_keeps_all_numbers(kind):
    text = ["Il est calme.", "Où est l'homme ?"]
    tokenizer = Tokenizer.train(text, kind, min_freq=1, vocabulary_size=300)
    extended = tokenizer.extended(["« Elle » est calme.", "Ou est l'ami ?"])
    assert [extended.encode(line) for line in text] == [tokenizer.encode(line) for line in text]
    assert tokenizer.unknown("elle est calme, ami") == [(0, 4), (14, 15), (16, 19)]
    assert extended.unknown("elle est calme, ami") == [(14, 15)]
    new = {"word": ["«", "elle", "»", "ou", "ami"], "bpe": []}[kind]
    assert len(extended) == len(tokenizer) + len(new)
    assert extended.decode(extended.encode("« Elle » est l'ami ?").ids) == "« Elle » est l'ami ?"
    again = Tokenizer.from_json(extended.to_json().encode(), "here")
    assert again.to_json() == extended.to_json()
    assert tokenizer.extended(text).to_json() == tokenizer.to_json()


def test_tied_tables_of_one_vocabulary_grow_together(old):
    both = Tokenizer.train([side for pair in PAIRS for side in pair], "word", min_freq=1, vocabulary_size=300)
    shared = untrained(replace(old, source_tokenizer=both, target_tokenizer=both), tied_embeddings="three")
    grown = continuing._grow(shared, shared.settings, CORRECTIONS)
    assert grown.source_tokenizer.to_json() == grown.target_tokenizer.to_json()
    assert len(grown.model.source_table.weight) == len(both) + 3


@pytest.mark.parametrize(
    ("corrections", "copies", "old_pairs"), [(1, 2, 254), (7, 2, 242), (50, 2, 200), (201, 1, 402)]
)
def test_an_epoch_has_all_corrections_and_other_old_pairs(corrections, copies, old_pairs):
    new = [([number], [1]) for number in range(corrections)]
    old = [([number], [2]) for number in range(1_000, 1_613)]
    mixture = continuing._Mixture(new, old, Settings(batch_size=32))
    epochs = []
    for epoch in range(2):
        batches = list(mixture.epoch(epoch))
        assert len(batches) == len(mixture)
        rows = [tuple(row) for batch in batches for row in zip(*(t.tolist() for t in batch[:3:2]), strict=True)]
        sources = [source[0] for source, _ in rows]
        assert sorted(s for s in sources if s < 1_000) == sorted(copies * list(range(corrections)))
        epochs.append([s for s in sources if s >= 1_000])
        assert len(epochs[-1]) == old_pairs
    assert len(set(epochs[0])) == len(set(epochs[1])) == old_pairs
    assert len({*epochs[0], *epochs[1]}) == min(2 * old_pairs, 613)


def test_the_last_of_contradictory_corrections_counts(old):
    contradictory = [("Go.", "Pars !"), *CORRECTIONS, ("I lost.", "J'ai perdu.")]
    with pytest.warns(UserWarning, match=r"1 of them left out, because a later one .* such as 'Go\.'"):
        assert continuing._distinct(contradictory) == [
            ("Go.", "Allez !"), ("She won.", "Elle a gagné."), ("I lost.", "J'ai perdu."),
        ]  # fmt: skip


def test_sentences_of_a_line_are_also_taught_one_by_one():
    pairs = [("Go. She won.", "Allez ! Elle a gagné."), ("Go.", "Allez !"), ("Go. She won.", "Allez, elle a gagné.")]
    assert list(continuing._split(pairs)) == [("Go.", "Allez !"), ("She won.", "Elle a gagné.")]


def fake_scores(monkeypatch, scores, right):
    """Replace the BLEU of each measurement, and the number of right corrections; return the measured weights."""
    remaining, weights, measure = iter(scores), [], continuing._measure

    def measure_with_scores(translator, *pairs):
        weights.append({name: tensor.clone() for name, tensor in translator.model.state_dict().items()})
        return measure(translator, *pairs)._replace(scores=continuing.Measurement(next(remaining), right))

    monkeypatch.setattr(continuing, "_measure", measure_with_scores)
    return weights


@pytest.mark.parametrize(("scores", "share"), [([40.0, 49.8], 0.5), ([40.0, 49.0, 49.9], 0.25)])
def test_a_mean_with_the_old_weights_is_kept_if_the_last_ones_forget(old, monkeypatch, scores, share):
    weights, lines = fake_scores(monkeypatch, [50.0, *scores], right=2), []
    result = continue_training(old, PAIRS[1:3], PAIRS, PAIRS, values=QUICK | {"epochs": 1}, tell=lines.append)
    new = result.translator.model.state_dict()
    assert new.keys() == weights[0].keys() == weights[1].keys()
    for name, tensor in new.items():
        mean = (1 - share) * weights[0][name].double() + share * weights[1][name].double()
        torch.testing.assert_close(tensor.double(), mean, rtol=0, atol=1e-6)
    assert result.after == (scores[-1], 2)
    assert (
        f"{share:.0%} of new weights: 2 of 2 corrections right, BLEU {scores[-1]:.2f} of old validation pairs" in lines
    )


@pytest.mark.parametrize("bleu", [49.8, 49.6])
def test_a_memory_with_which_the_model_forgets_has_a_warning(old, monkeypatch, bleu):
    fitted, slow = [], {"epochs": 1, "learning_rate": 1e-6}
    fake_scores(monkeypatch, [50.0, 50.0, bleu], right=0)
    fit = continuing.fit_memory
    monkeypatch.setattr(continuing, "fit_memory", lambda *given: fitted.append(given[1:]) or fit(*given))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = continue_training(old, CORRECTIONS, PAIRS, PAIRS, values=slow)
    warned = [str(warning.message) for warning in caught if "that are stored" in str(warning.message)]
    assert len(warned) == (bleu == 49.6)
    assert all("got 2 that are stored, with BLEU 49.60" in text and "expected 49.70 or more" in text for text in warned)
    assert fitted == [(CORRECTIONS, PAIRS[1::2])]  # old validation pairs without the corrected sentence
    assert (result.after.bleu, result.translator.origin.validation_bleu) == (bleu, bleu)
    assert result.translator.memory.pairs == CORRECTIONS
    assert texts(result.translator, CORRECTIONS) == ["Allez !", "Elle a gagné."]


def test_weights_that_forget_are_not_kept(old):
    with pytest.raises(
        InputError, match=r"learning_rate: got 5; expected less.*fell from 100\.00 to .*by more than 0\.3"
    ):
        continue_training(old, CORRECTIONS, PAIRS, PAIRS, values={"learning_rate": 5.0, "epochs": 1, "warmup_steps": 0})


def test_weights_are_measured_when_the_time_is_over(old):
    limit = {"max_minutes": 1e-6, "learning_rate": 1e-6}
    result = continue_training(old, CORRECTIONS, PAIRS, PAIRS, values=limit)
    assert (result.after.right, result.after.bleu) == (2, result.before.bleu)
    assert result.translator.memory.pairs == CORRECTIONS
    assert result.epochs == 0
    limited = replace(old.settings, max_minutes=1e-6)
    assert [continuing._make_settings(limited, values).max_minutes for values in ({}, limit)] == [None, 1e-6]


def test_what_cannot_be_continued(old, tmp_path):
    old.save(tmp_path / "int8", int8=True)
    with pytest.raises(InputError, match="translator: got int8 weights, which cannot be trained"):
        continue_training(Translator.load(tmp_path / "int8"), CORRECTIONS, PAIRS, PAIRS)
    for values, message in (
        ({"hidden_size": 64}, "hidden_size: got 64; expected 32, as in the trained model"),
        ({"tokenizer": "bpe"}, "tokenizer: got bpe; expected word, as in the trained model"),
        ({"average": 2}, "average: got 2; a continued training does not use it"),
        ({"learning_rat": 1.0}, r"learning_rat: unknown setting; did you mean learning_rate\?"),
        ({"zzz": 1.0}, "zzz: unknown setting; there are tokenizer, min_freq, .*, length_penalty"),
    ):
        with pytest.raises(SettingsError, match=message):
            continue_training(old, CORRECTIONS, PAIRS, PAIRS, values=values)
    with pytest.raises(CorpusError, match="corrections: got no pairs, and none in the memory"):
        continue_training(old, [], PAIRS, PAIRS)
    with pytest.raises(CorpusError, match="validation: got no pairs without a correction"):
        continue_training(old, CORRECTIONS, PAIRS, PAIRS[:1])
    with pytest.raises(CorpusError, match="training: got no pairs without a correction"):
        continue_training(old, CORRECTIONS, PAIRS[:1], PAIRS)
