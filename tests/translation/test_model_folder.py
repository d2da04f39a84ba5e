import dataclasses
import errno
import hashlib
import json
import math
import os
import pickle
import shutil
import stat
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from dikkat.storage import folders
from dikkat.translation import ModelFolderError, TranslationModel, Translator
from dikkat.translation.memory.pair_memory import PairMemory
from dikkat.translation.settings import ScoreName

PARTS = {"model.safetensors", "settings.json", "source.tokenizer.json", "target.tokenizer.json"}
FILES = PARTS | {"SHA256SUMS"}


@pytest.fixture
def translator(translator):
    """Without a memory, whose file is optional."""
    return dataclasses.replace(translator, memory=PairMemory())


@pytest.fixture
def folder(translator, tmp_path):
    translator.save(tmp_path / "model")
    return tmp_path / "model"


def seal(folder):
    """New sums, as whoever means harm would write them."""
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(sums), encoding="ascii")


def refused(folder, message):
    if all((folder / name).is_file() for name in PARTS):
        seal(folder)
    with pytest.raises(ModelFolderError, match=message):
        Translator.load(folder)


def names_next_to(folder):
    return [path.name for path in folder.parent.iterdir() if path.suffix != ".lock"]


def test_a_loaded_model_is_the_saved_one(translator, folder):
    assert {path.name for path in folder.iterdir()} == FILES
    assert names_next_to(folder) == ["model"]
    loaded = Translator.load(folder)
    assert loaded.settings == translator.settings
    own, other = translator.model.state_dict(), loaded.model.state_dict()
    assert list(own) == list(other)
    assert all(torch.equal(own[name], other[name]) for name in own)
    assert all(parameter.requires_grad for parameter in loaded.model.parameters())
    for before, after in zip(translator.translate(["I lost."]), loaded.translate(["I lost."]), strict=True):
        assert (before.target, before.score) == (after.target, after.score)
        assert torch.equal(before.weights, after.weights)


@pytest.mark.parametrize("name", sorted(PARTS))
def test_a_file_that_is_not_what_was_written_is_refused(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes() + b" ")  # which JSON does not mind
    with pytest.raises(ModelFolderError, match=f"{name}: damaged: its checksum differs from SHA256SUMS"):
        Translator.load(folder)


def test_a_file_system_that_cannot_flush_folders_will_do(translator, folder, monkeypatch):
    flush = os.fsync

    def only_files(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    translator.save(folder)
    assert names_next_to(folder) == ["model"]


@pytest.mark.parametrize("score", get_args(ScoreName))
def test_a_model_with_any_score_is_saved_and_loaded(translator, tmp_path, score):
    settings = dataclasses.replace(translator.settings, score=score)
    sizes = len(translator.source_tokenizer), len(translator.target_tokenizer)
    own = dataclasses.replace(translator, model=TranslationModel(settings, *sizes), settings=settings)
    own.save(tmp_path / "model")
    loaded = Translator.load(tmp_path / "model")
    assert loaded.translate(["Go."])[0].score == own.translate(["Go."])[0].score


@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
def test_a_model_of_any_dtype_is_saved_in_that_of_every_model(translator, tmp_path, kind):
    settings = translator.settings
    model = TranslationModel(settings, len(translator.source_tokenizer), len(translator.target_tokenizer))
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    dataclasses.replace(translator, model=model.to(kind), settings=settings).save(tmp_path / "model")
    found = Translator.load(tmp_path / "model").model.state_dict()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor.to(kind).to(tensor.dtype)), name


def test_weights_of_other_settings_are_not_saved(translator, tmp_path):
    settings = dataclasses.replace(translator.settings, score="bilinear")
    other = dataclasses.replace(translator, settings=settings)
    with pytest.raises(ModelFolderError, match=r"model: .*decoder\.score\.W_k\.weight: got .*; expected nothing"):
        other.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_any_tool_can_read_the_weights(folder):
    tensors = load_file(folder / "model.safetensors")
    assert {"decoder.weight_ih_l0", "decoder.score.W_q.weight", "encoder.gru.weight_hh_l0_reverse"} <= set(tensors)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ModelFolderError, match=name.replace(".", r"\.")):
        Translator.load(folder)


def test_no_folder(tmp_path):
    refused(tmp_path / "none", "model folder not found")
    refused(tmp_path, r"settings\.json: missing")


class Bomb:
    """A pickle that tells on whoever opens it."""

    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


def content(name, change):
    """What changes a file of JSON."""

    def write(folder):
        known = json.loads((folder / name).read_text(encoding="utf-8"))
        change(known)
        (folder / name).write_text(json.dumps(known), encoding="utf-8")

    return write


def tensors(change):
    """What changes the weights."""

    def write(folder):
        known = load_file(folder / "model.safetensors")
        change(known)
        save_file(known, folder / "model.safetensors")

    return write


def settings(**changes):
    return content("settings.json", lambda known: known["settings"].update(changes))


def bias(tensor):
    return tensors(lambda known: known.update({"bridge.bias": tensor}))


def weights(data):
    return lambda folder: (folder / "model.safetensors").write_bytes(data(folder / "model.safetensors"))


# `test_hostile.py` has hundreds more, whatever is said of them.
REFUSED = [
    (bias(torch.full((32,), math.nan)), r"bridge.bias: got values that are not finite. Train again"),
    (bias(torch.zeros(31)), r"bridge\.bias: got float32 \(31,\); expected float32 \(32,\)"),
    (bias(torch.zeros(32, dtype=torch.float64)), r"bridge\.bias: got float64 \(32,\); expected float32"),
    (tensors(lambda known: known.pop("bridge.bias")), r"bridge\.bias: got nothing; expected float32 \(32,\)"),
    (tensors(lambda known: known.update(extra=torch.zeros(2, 3))), r"extra: got float32 \(2, 3\); expected nothing"),
    (settings(tied_embeddings="three"), "tied_embeddings: got 'three' with .* expected one vocabulary"),
    (settings(dropout=2), r"settings\.json: dropout: got 2"),
    (settings(colour=2), "colour: unknown setting"),
    (
        content("settings.json", lambda known: known["confidence"].update(constant="0")),
        "confidence: expected weights of",
    ),
    (settings(hidden_size=65536), r"expected float32 \(98304, "),
    (content("settings.json", lambda known: known.update(settings=None)), '"settings" is missing'),
    (content("settings.json", lambda known: known.update(format="other")), "got 'other'; expected 'dikkat translator'"),
    (lambda folder: (folder / "settings.json").write_text("[]"), "format: got None; expected 'dikkat translator'"),
    (
        content("target.tokenizer.json", lambda known: known["model"]["vocab"].update(va=99_999)),
        "vocab: got number 24 after 22; expected 23",
    ),
    (weights(lambda path: path.read_bytes() + b"more"), "truncated or damaged"),
    (weights(lambda path: path.read_bytes()[:-1]), "truncated or damaged"),
    *((weights(lambda _, protocol=p: pickle.dumps(Bomb(), protocol)), "truncated or damaged") for p in range(6)),
    *(
        (
            lambda folder, zipped=z: torch.save(
                {"weight": Bomb()}, folder / "model.safetensors", _use_new_zipfile_serialization=zipped
            ),
            "truncated or damaged",
        )
        for z in (True, False)
    ),
    *(
        (content("settings.json", lambda known, v=v: known.update(version=v)), f"version: got {v!r}; expected 2 or 3")
        for v in (0, 4, True, 2.0, "2", None)
    ),
]


def test_what_does_not_fit_is_named(translator, tmp_path):
    for number, (damage, message) in enumerate(REFUSED):
        folder = tmp_path / f"{number}"
        translator.save(folder)
        damage(folder)
        refused(folder, message)


def snapshot(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("call", range(4))
def test_a_full_disk_leaves_the_old_model(folder, monkeypatch, translator, call):
    before, calls = snapshot(folder), []
    write = folders.write_whole

    def full(path, data):
        calls.append(path)
        if len(calls) > call:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, data)

    monkeypatch.setattr(folders, "write_whole", full)
    with pytest.raises(OSError, match="No space left"):
        translator.save(folder)
    with pytest.raises(OSError, match="No space left"):
        translator.save(folder.parent / "new")
    assert snapshot(folder) == before
    assert names_next_to(folder) == ["model"]


def test_a_name_that_cannot_be_taken_leaves_the_old_model(folder, monkeypatch, translator):
    before, rename = snapshot(folder), type(folder).rename

    def failing(self, target):
        if self.name.endswith(".part"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(type(folder), "rename", failing)
    with pytest.raises(OSError, match="Input/output"):
        translator.save(folder)
    assert snapshot(folder) == before
    assert names_next_to(folder) == ["model"]


def test_saving_replaces_a_model_or_an_empty_folder_and_nothing_else(folder, translator, tmp_path):
    (folder / "settings.json").write_text("{}")
    translator.save(folder)
    Translator.load(folder)
    (tmp_path / "empty").mkdir()
    translator.save(tmp_path / "empty")
    Translator.load(tmp_path / "empty")
    translator.save(tmp_path / "deeper" / "down")
    Translator.load(tmp_path / "deeper" / "down")
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(ModelFolderError, match=r"has thesis\.tex"):
        translator.save(folder)
    with pytest.raises(ModelFolderError, match="got a file; expected a folder"):
        translator.save(folder / "thesis.tex")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "empty")
    with pytest.raises(ModelFolderError, match="got a link; expected a folder"):
        translator.save(link)
    shutil.rmtree(folder)


@pytest.mark.parametrize("renames", [1, 2])
def test_a_stop_between_the_renames_loses_no_model(folder, monkeypatch, translator, renames):
    before, rename, calls = snapshot(folder), type(folder).rename, []

    class Killed(BaseException):
        pass

    def killed(self, target):
        calls.append(self)
        if len(calls) > renames:
            raise Killed
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(type(folder), "rename", killed)
        patch.setattr(folders.shutil, "rmtree", lambda *_, **__: None)  # a killed process cleans nothing up
        if renames == 1:
            with pytest.raises(Killed):
                translator.save(folder)
            assert not folder.exists()
        else:
            translator.save(folder)
            assert folder.with_name(".model.old").exists()
    found = Translator.load(folder)  # and changes nothing: another process may be just there
    assert folder.exists() == (renames == 2)
    assert folder.with_name(".model.old").exists()
    found.save(folder)
    assert snapshot(folder) == before  # the same weights were saved again
    assert not folder.with_name(".model.old").exists()


def test_weights_that_are_no_numbers_are_not_saved(folder):
    before, broken = snapshot(folder), Translator.load(folder)
    with torch.no_grad():
        broken.model.bridge.weight[0, 0] = torch.nan
    with pytest.raises(ModelFolderError, match=r"bridge.weight: got values that are not finite. Train again"):
        broken.save(folder)
    assert snapshot(folder) == before
