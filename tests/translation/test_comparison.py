"""Pages on which two models, or the epochs of a training, translate side by side."""

import dataclasses
import json
import re
import shutil

import pytest

from command import command_line, refused
from dikkat.translation import Search, TrainingFolderError, Translator
from dikkat.translation.formats.origin import Origin
from dikkat.translation.memory.pair_memory import PairMemory
from dikkat.translation.training.epochs import load_epochs
from dikkat.translation.training.train import train
from translation.taught import PAIRS, TINY

SETTINGS = dataclasses.replace(TINY, epochs=3, batch_size=3, keep_epochs=True)
LINES = ["Go.", "The man is calm."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with the weights of its epochs, one of other languages, and one without epochs.

    The trained model searches with another length penalty than the settings of its training, and has a correction.
    """
    folder = tmp_path_factory.mktemp("models")
    result = train(SETTINGS, PAIRS, PAIRS[:2], folder=folder / "model.training", progress=False)
    settings = dataclasses.replace(result.translator.settings, length_penalty=0.0)
    trained = dataclasses.replace(result.translator, settings=settings, memory=PairMemory())
    trained.correct(LINES[0], "Elle voit Marie.")
    date = {"date": "2026-11-22T08:00:00Z", "version": "0"}
    for name, target in (("model", "fr"), ("german", "de")):
        origin = Origin(**date, source_language="en", target_language=target, examples="Go.\nI lost.")
        dataclasses.replace(trained, origin=origin).save(folder / name)
    dataclasses.replace(trained, origin=Origin(**date)).save(folder / "plain")
    return folder


@pytest.fixture
def run(monkeypatch, capsys):
    return command_line(monkeypatch, capsys)


def content_of(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script id="dikkat-content"[^>]*>(.*?)</script>', text, re.DOTALL)[1])["compared"]


def test_epochs_are_those_of_trainings_of_their_lengths(folder):
    epochs = dict(load_epochs(folder / "model.training"))
    assert list(epochs) == [1, 2, 3]
    for count in (1, 3):
        settings = dataclasses.replace(SETTINGS, epochs=count, schedule="constant", keep_epochs=True)
        other = train(settings, PAIRS, None, progress=False)
        again = folder / f"constant-{count}.training"
        train(dataclasses.replace(settings, epochs=3), PAIRS, None, folder=again, progress=False)
        stored = dict(load_epochs(again))[count].model.state_dict()
        assert all(stored[name].equal(tensor) for name, tensor in other.translator.model.state_dict().items())


def test_a_new_training_removes_old_epochs(tmp_path):
    train(SETTINGS, PAIRS, None, folder=tmp_path, progress=False)
    train(dataclasses.replace(SETTINGS, epochs=1), PAIRS, None, folder=tmp_path, progress=False, overwrite=True)
    assert [path.name for path in (tmp_path / "epochs").iterdir()] == ["epoch-0001.safetensors"]
    train(
        dataclasses.replace(SETTINGS, keep_epochs=False), PAIRS, None, folder=tmp_path, progress=False, overwrite=True
    )
    with pytest.raises(
        TrainingFolderError, match="got no weights of epochs; expected another model, or a training wit"
    ):
        next(load_epochs(tmp_path))


@pytest.mark.parametrize("damage", ["truncated", "other"])
def test_a_damaged_epoch_is_named(tmp_path, damage):
    train(SETTINGS, PAIRS, None, folder=tmp_path, progress=False)
    path = tmp_path / "epochs" / "epoch-0001.safetensors"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        (tmp_path / "settings.json").write_text(json.dumps(dataclasses.replace(SETTINGS, hidden_size=34).to_dict()))
    with pytest.raises(TrainingFolderError, match=r"epoch-0001\.safetensors: "):
        next(load_epochs(tmp_path))


def test_the_page_has_the_translations_of_all_epochs(folder, tmp_path, run):
    page, options = tmp_path / "page.html", ["--line", LINES[0], "--line", LINES[1]]
    assert run("compare", folder / "model", *options, "-o", page)[0] == 0
    compared = content_of(page)
    assert compared["sides"] == [{"name": "model", "epochs": [1, 2, 3]}, {"name": "model", "epochs": []}]
    assert compared["languages"] == ["en", "fr"]
    assert [each["source"] for each in compared["sentences"]] == LINES
    search = Search(length_penalty=0.0)  # of the trained model
    others = 0
    for number, model in load_epochs(folder / "model.training"):
        for line, sentence in zip(LINES, compared["sentences"], strict=True):
            expected = model.translate(line, search=search)
            others += model.translate(line).target != expected.target
            source, target, weights, text = sentence["versions"][0][number - 1]
            assert (source, target, text) == (expected.source_tokens, expected.target_tokens, expected.target)
            rows = [int(code, 36) / 1000 if code != "-" else 0 for code in re.findall("-|..", weights)]
            assert rows == pytest.approx(expected.weights.flatten().tolist(), abs=6e-4)
    assert others
    trained = dataclasses.replace(Translator.load(folder / "model"), memory=PairMemory())
    targets = [sentence["versions"][1][0][3] for sentence in compared["sentences"]]
    assert targets == [trained.translate(line, search=search).target for line in LINES]
    assert "Elle voit Marie." not in targets
    assert [len(sides) for sentence in compared["sentences"] for sides in sentence["versions"]] == [3, 1, 3, 1]


def test_the_page_of_two_models_has_stored_sentences(folder, tmp_path, run):
    page = tmp_path / "page.html"
    assert run("compare", folder / "plain", folder / "model", "-o", page)[0] == 0
    compared = content_of(page)
    assert [side["name"] for side in compared["sides"]] == ["plain", "model"]
    assert [each["source"] for each in compared["sentences"]] == ["Go.", "I lost."]
    assert '<p class="target" dir="auto" lang="fr">' in page.read_text(encoding="utf-8")


def test_a_damaged_epoch_is_found_before_any_translation(folder, tmp_path, run, monkeypatch):
    for name in ("model", "model.training"):
        shutil.copytree(folder / name, tmp_path / name)
    path = tmp_path / "model.training" / "epochs" / "epoch-0003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setattr(Translator, "translate", lambda *_, **__: pytest.fail("translated"))
    refused(run("compare", tmp_path / "model"), "epoch-0003.safetensors: truncated or damaged")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["a/model", "b/model"], ["a/model", "b/model"]),
        (["a/model", "a/other"], ["model", "other"]),
        (["../x/y", "."], ["y", "a"]),
        (["a/model", "model"], ["a/model", "{folder}/model"]),
        (["a/model/", "b/../b/model"], ["a/model", "b/model"]),
    ],
)
def test_the_names_of_two_models_differ(folder, tmp_path, run, monkeypatch, arguments, names):
    start = tmp_path / "a" if "." in arguments else tmp_path
    for place in ("a", "a/model", "a/other", "b/model", "model", "x/y"):
        shutil.copytree(folder / "plain", tmp_path / place, dirs_exist_ok=True)
    monkeypatch.chdir(start)
    assert run("compare", *arguments, "--line", "Go.", "-o", tmp_path / "page.html")[0] == 0
    page = tmp_path / "page.html"
    names = [name.format(folder=tmp_path.name) for name in names]
    assert [side["name"] for side in content_of(page)["sides"]] == names
    assert f"<title>{' · '.join(names)}</title>" in page.read_text(encoding="utf-8")


def test_a_model_in_the_current_folder_is_compared_with_its_epochs(folder, tmp_path, run, monkeypatch):
    monkeypatch.chdir(folder / "model")
    assert run("compare", ".", "-o", tmp_path / "page.html")[0] == 0
    assert [side["name"] for side in content_of(tmp_path / "page.html")["sides"]] == ["model", "model"]


@pytest.mark.parametrize(
    ("pairs", "codes"),
    [
        ([("en", "pt_BR"), ("EN-GB", "pt")], ["en", "pt-BR"]),
        ([("English", "fr"), ("en", "French")], ["en", "fr"]),
        ([("German, old", "Plattdeutsch")] * 2, ["", ""]),
        ([("yue", "zh-Hant-TW")] * 2, ["yue", "zh-Hant-TW"]),
    ],
)
def test_languages_without_a_code_are_left_out(folder, tmp_path, run, pairs, codes):
    for number, (source, target) in enumerate(pairs):
        origin = Origin("today", "1", source_language=source, target_language=target)
        dataclasses.replace(Translator.load(folder / "plain"), origin=origin).save(tmp_path / f"model-{number}")
    page = tmp_path / "page.html"
    assert run("compare", tmp_path / "model-0", tmp_path / "model-1", "--line", "Go.", "-o", page)[0] == 0
    assert content_of(page)["languages"] == codes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model", "plain/../model"], "got model twice; expected another model, or only one"),
        (["model", "german"], "german: translates en to de, and "),
        (["plain"], "plain: has no held-out sentences; expected --line or --file"),
        (["plain", "--line", "Go."], "plain.training: got no weights of epochs; expected another model"),
        (["model", "missing"], "missing: model folder not found"),
        (["model", "--line", " "], "every sentence is empty"),
        (["model", "--line", "Go.", "--file", "lines"], "got --line and --file; give only one of them"),
        (["model", "plain", "--file", "none"], "none"),
    ],
)
def test_models_that_cannot_be_compared(folder, monkeypatch, arguments, message, run):
    monkeypatch.chdir(folder)
    status, out, err = run("compare", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert not (folder / "comparison.html").exists()
