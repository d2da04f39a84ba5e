import json
import re
from dataclasses import replace

import pytest

from dikkat.cli.pictures import draw_comparison
from dikkat.translation import InputError, Translator
from dikkat.translation.formats.recipe import Recipe
from dikkat.translation.training import train as trainings
from dikkat.translation.training.comparison import Trial, combinations, compare
from dikkat.translation.training.state import Validation

SMALL = Recipe().with_values(
    {
        "corpus": {"name": "phrasebook", "first": 40},
        "validation": {"share": 0.2},
        "epochs": 1,
        "hidden_size": 8,
        "embedding_size": 7,
        "min_freq": 1,
    }
)


def test_every_combination_has_its_settings():
    found = combinations(SMALL, {"score": ["dot", "additive"], "seed": [3, 5, 7]})
    assert [(each.settings.score, each.settings.seed) for each in found.values()] == [
        ("dot", 3), ("dot", 5), ("dot", 7), ("additive", 3), ("additive", 5), ("additive", 7),
    ]  # fmt: skip
    assert next(iter(found)) == "score=dot,seed=3"
    assert {each.settings.hidden_size for each in found.values()} == {8}


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"scor": ["dot"]}, "scor: no such setting; did you mean score?"),
        ({"corpus": ["phrasebook"]}, "corpus: no such setting"),
        ({"score": ["dot", "dto"]}, "score: got 'dto'; expected one of"),
        ({"seed": [1, 1]}, "seed=1 is given twice"),
        ({"attention_dropout": [0.1], "score": ["none"]}, "0.1 and score is 'none'.*attention_dropout=0.1,score=none"),
    ],
)
def test_what_cannot_be_is_known_before_the_first_training(vary, message):
    with pytest.raises(InputError, match=message):
        combinations(SMALL, vary)


def test_each_way_is_trained_once_and_a_failure_stops_none(tmp_path, monkeypatch):
    trained, train = [], trainings.train

    def failing(settings, *rest, **more):
        trained.append(settings.score)
        if settings.score == "dot" and len(trained) < 4:
            raise RuntimeError("no\nmemory")
        return train(settings, *rest, progress=False, **more)

    monkeypatch.setattr(trainings, "train", failing)
    ways = combinations(SMALL, {"score": ["additive", "dot", "average"]})
    first, failed, last = compare(ways, tmp_path / "all")
    assert (failed.name, failed.error, failed.bleu) == ("score=dot", "RuntimeError: no memory", None)
    assert last.error is None
    model = Translator.load(tmp_path / "all" / "score=additive" / "model")
    assert first.parameters == sum(each.numel() for each in model.model.parameters())
    assert first.settings == model.settings.to_dict()
    written = json.loads((tmp_path / "all" / "comparison.json").read_text())
    assert [each["name"] for each in written] == ["score=additive", "score=dot", "score=average"]
    assert written[0]["validation_loss"] == first.validation_loss > 0
    assert trained == ["additive", "dot", "average"]
    again = list(compare(ways, tmp_path / "all"))
    assert trained == ["additive", "dot", "average", "dot"]  # what failed, and nothing else
    assert [again[0], again[2]] == [first, last]
    assert again[1].error is None
    other = combinations(SMALL.with_values({"dropout": 0.4}), {"score": ["dot"]})
    with pytest.raises(InputError, match=r"holds score=dot made otherwise: dropout was not given and is 0.4"):
        list(compare(other, tmp_path / "all"))


def test_a_result_on_other_pairs_is_not_taken_for_this_ones(tmp_path, monkeypatch):
    train = trainings.train
    monkeypatch.setattr(trainings, "train", lambda *rest, **more: train(*rest, progress=False, **more))
    first = list(compare(combinations(SMALL, {"seed": [1]}), tmp_path))
    for key, value in {
        "corpus": {"name": "phrasebook", "first": 41},
        "validation": {"share": 0.3},
        "test": {"name": "phrasebook", "part": "test", "first": 5},
    }.items():
        with pytest.raises(InputError, match=f"holds seed=1 made otherwise: {key} was .* and is .* another folder"):
            list(compare(combinations(SMALL.with_values({key: value}), {"seed": [1]}), tmp_path))
    assert Recipe.load(tmp_path / "seed=1" / "recipe.toml") == SMALL.with_values({"seed": 1})
    assert list(compare(combinations(SMALL, {"seed": [1]}), tmp_path)) == first
    (tmp_path / "seed=1" / "recipe.toml").unlink()
    with pytest.raises(InputError, match=r"result.json: .* Remove it, and the trial is made again"):
        list(compare(combinations(SMALL, {"seed": [1]}), tmp_path))


@pytest.mark.parametrize(("criterion", "wanted"), [("loss", 2), ("bleu", 4)])
def test_the_loss_is_that_of_the_best_validation_of_all(tmp_path, monkeypatch, criterion, wanted):
    train = trainings.train

    def ended_within_an_epoch(*rest, **more):
        result = train(*rest, progress=False, **more)
        validations = [Validation(step, *scores) for step, scores in enumerate([(3.0, 5.0), (2.0, 7.0), (4.0, 11.0)])]
        return replace(result, epochs=[], validations=validations)

    monkeypatch.setattr(trainings, "train", ended_within_an_epoch)
    assert next(compare({"": SMALL.with_values({"criterion": criterion})}, tmp_path)).validation_loss == wanted


def test_several_processes_do_not_compare_in_one_folder(tmp_path, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "a"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="one process compares; there are 2: leave out torchrun"):
        list(compare({"": SMALL}, tmp_path / "all"))
    assert not (tmp_path / "all").exists()


def test_an_interrupted_comparison_ends_and_goes_on(tmp_path, monkeypatch):
    train = trainings.train

    class Stopped:
        interrupted = True

    monkeypatch.setattr(trainings, "train", lambda *_, **__: Stopped)
    ways = combinations(SMALL, {"seed": [1]})
    with pytest.raises(KeyboardInterrupt):
        list(compare(ways, tmp_path))
    monkeypatch.setattr(trainings, "train", lambda *rest, **more: train(*rest, progress=False, **more))
    assert next(compare(ways, tmp_path)).error is None


def test_the_picture_has_each_way_in_the_order_of_quality(tmp_path):
    trials = [
        Trial(f"score={score},cell={cell}", {}, 5, 1.0, bleu, 3.0, 60.0, 9.0)
        for bleu, (score, cell) in enumerate([("dot", "gru"), ("dot", "lstm"), ("none", "gru")])
    ]
    picture, text = draw_comparison(trials, tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")
    labels = re.findall(r">(score=[^<]*)<", text.read_text(encoding="utf-8"))
    assert labels == ["score=none, cell=gru", "score=dot, cell=lstm", "score=dot, cell=gru"]
