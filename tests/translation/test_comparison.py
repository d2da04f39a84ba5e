"""Pages on which two models, or the epochs of a training, translate side by side."""

import dataclasses
import json
import re
import sys

import pytest

from dikkat.cli import main
from dikkat.translation import Search, TrainingFolderError, Translator
from dikkat.translation.formats.origin import Origin
from dikkat.translation.training.epochs import load_epochs
from dikkat.translation.training.train import train
from translation.taught import PAIRS, TINY

SETTINGS = dataclasses.replace(TINY, epochs=3, batch_size=3, keep_epochs=True)
LINES = ["Go.", "The man is calm."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with the weights of its epochs, one of other languages, and one without epochs."""
    folder = tmp_path_factory.mktemp("models")
    result = train(SETTINGS, PAIRS, PAIRS[:2], folder=folder / "model.training", progress=False)
    date = {"date": "2026-11-22T08:00:00Z", "version": "0"}
    for name, target in (("model", "fr"), ("german", "de")):
        origin = Origin(**date, source_language="en", target_language=target, examples="Go.\nI lost.")
        dataclasses.replace(result.translator, origin=origin).save(folder / name)
    dataclasses.replace(result.translator, origin=Origin(**date)).save(folder / "plain")
    return folder


def run(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["dikkat", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    captured = capsys.readouterr()
    return stopped.value.code or 0, captured.out, captured.err


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


def test_the_page_has_the_translations_of_all_epochs(folder, tmp_path, capsys, monkeypatch):
    page, options = tmp_path / "page.html", ["--line", LINES[0], "--line", LINES[1]]
    assert run(capsys, monkeypatch, "compare", folder / "model", *options, "-o", page)[0] == 0
    compared = content_of(page)
    assert compared["sides"] == [{"name": "model", "epochs": [1, 2, 3]}, {"name": "model", "epochs": []}]
    assert compared["languages"] == ["en", "fr"]
    assert [each["source"] for each in compared["sentences"]] == LINES
    penalty = Translator.load(folder / "model").settings.length_penalty  # fitted after the training
    for number, model in load_epochs(folder / "model.training"):
        for line, sentence in zip(LINES, compared["sentences"], strict=True):
            expected = model.translate(line, search=Search(length_penalty=penalty))
            source, target, weights, text = sentence["versions"][0][number - 1]
            assert (source, target, text) == (expected.source_tokens, expected.target_tokens, expected.target)
            rows = [int(code, 36) / 1000 if code != "-" else 0 for code in re.findall("-|..", weights)]
            assert rows == pytest.approx(expected.weights.flatten().tolist(), abs=6e-4)
    assert [len(sides) for sentence in compared["sentences"] for sides in sentence["versions"]] == [3, 1, 3, 1]


def test_the_page_of_two_models_has_stored_sentences(folder, tmp_path, capsys, monkeypatch):
    page = tmp_path / "page.html"
    assert run(capsys, monkeypatch, "compare", folder / "plain", folder / "model", "-o", page)[0] == 0
    compared = content_of(page)
    assert [side["name"] for side in compared["sides"]] == ["plain", "model"]
    assert [each["source"] for each in compared["sentences"]] == ["Go.", "I lost."]
    assert '<p class="target" dir="auto" lang="fr">' in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model", "german"], "german: translates en to de, and "),
        (["plain"], "plain: has no held-out sentences; expected --line or --file"),
        (["plain", "--line", "Go."], "plain.training: got no weights of epochs; expected another model"),
        (["model", "missing"], "missing: model folder not found"),
        (["model", "--line", " "], "every sentence is empty"),
        (["model", "--line", "Go.", "--file", "lines"], "got --line and --file; give only one of them"),
        (["model", "plain", "--file", "none"], "none"),
    ],
)
def test_models_that_cannot_be_compared(folder, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    status, out, err = run(capsys, monkeypatch, "compare", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert not (folder / "comparison.html").exists()
