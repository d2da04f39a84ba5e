import dataclasses
import errno
import hashlib
import json
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
from dikkat.translation.settings import ScoreName

PARTS = {"model.safetensors", "settings.json", "source.tokenizer.json", "target.tokenizer.json"}
FILES = PARTS | {"SHA256SUMS"}


@pytest.fixture
def folder(translator, tmp_path):
    translator.save(tmp_path / "model")
    return tmp_path / "model"


def seal(folder):
    """New sums, as whoever means harm would write them."""
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in sorted(PARTS)]
    (folder / "SHA256SUMS").write_text("".join(sums), encoding="ascii")


def refused(folder, message):
    if all((folder / name).is_file() for name in PARTS):
        seal(folder)
    with pytest.raises(ModelFolderError, match=message):
        Translator.load(folder)


def test_a_loaded_model_is_the_saved_one(translator, folder):
    assert {path.name for path in folder.iterdir()} == FILES
    assert {path.name for path in folder.parent.iterdir()} == {"model"}
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
    with pytest.raises(ModelFolderError, match=f"{name}: damaged: not what was written, by its sum in SHA256SUMS"):
        Translator.load(folder)


def test_weights_that_are_not_finite_are_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["bridge.weight"][0, 0] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    refused(folder, "bridge.weight: got values that are not finite. Train again")


def test_one_table_for_two_vocabularies_is_refused(folder):
    content = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    content["settings"]["tied_embeddings"] = "three"
    (folder / "settings.json").write_text(json.dumps(content), encoding="utf-8")
    refused(folder, "model: tied_embeddings: got 'three', and .* expected one vocabulary")


def test_tokens_must_be_numbered_without_a_gap(folder):
    path = folder / "target.tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["vocab"]["va"] = 99_999
    path.write_text(json.dumps(content), encoding="utf-8")
    refused(folder, "not numbered from 0 without a gap")


def test_a_file_system_that_cannot_flush_folders_will_do(translator, folder, monkeypatch):
    flush = os.fsync

    def only_files(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    translator.save(folder)
    assert {path.name for path in folder.parent.iterdir()} == {"model"}


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
    settings = dataclasses.replace(translator.settings, score="boxcar")
    sizes = len(translator.source_tokenizer), len(translator.target_tokenizer)
    model = TranslationModel(settings, *sizes)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert {tensor.dtype for tensor in expected.values()} == {torch.float32, torch.float64}
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


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_a_truncated_file_is_named(folder, name, share):
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(share * len(data))])
    with pytest.raises(ModelFolderError, match=name.replace(".", r"\.")):
        Translator.load(folder)
    if name in PARTS:
        refused(folder, name.replace(".", r"\."))


def test_rubbish_after_the_weights_is_refused(folder):
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"more")
    refused(folder, "truncated or damaged")


def test_no_folder(tmp_path):
    refused(tmp_path / "none", "no such model folder")
    refused(tmp_path, r"settings\.json: missing")


def changed_settings(folder, **changes):
    content = json.loads((folder / "settings.json").read_text())
    (folder / "settings.json").write_text(json.dumps(content | changes))


def test_another_version_or_format_is_refused(folder):
    for version in (0, 4, True, 2.0, "2", None):
        changed_settings(folder, version=version)
        refused(folder, f"version: got {version!r}; expected 2 or 3")
    changed_settings(folder, version=2, format="other")
    refused(folder, "format: got 'other'; expected 'dikkat translator'")
    (folder / "settings.json").write_text("[]")
    refused(folder, "format: got None; expected 'dikkat translator'")


def test_settings_out_of_range_are_refused(folder, translator):
    changed_settings(folder, settings=translator.settings.to_dict() | {"dropout": 2})
    refused(folder, r"settings\.json: dropout: got 2")
    changed_settings(folder, settings=translator.settings.to_dict() | {"colour": 2})
    refused(folder, "colour: no such setting")
    changed_settings(folder, settings=None)
    refused(folder, '"settings" is missing')


def test_settings_of_a_huge_model_reserve_no_memory(folder, translator):
    changed_settings(folder, settings=translator.settings.to_dict() | {"hidden_size": 65536})
    refused(folder, r"expected float32 \(98304, ")


def changed_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_a_missing_tensor_is_named(folder):
    changed_tensors(folder, lambda tensors: tensors.pop("bridge.bias"))
    refused(folder, r"bridge\.bias: got nothing; expected float32 \(32,\)")


def test_an_extra_tensor_is_named(folder):
    changed_tensors(folder, lambda tensors: tensors.update(extra=torch.zeros(2, 3)))
    refused(folder, r"extra: got float32 \(2, 3\); expected nothing")


def test_a_misshapen_tensor_is_named_with_both_shapes(folder):
    changed_tensors(folder, lambda tensors: tensors.update({"bridge.bias": torch.zeros(31)}))
    refused(folder, r"bridge\.bias: got float32 \(31,\); expected float32 \(32,\)")


def test_a_tensor_of_another_type_is_named(folder):
    changed_tensors(folder, lambda tensors: tensors.update({"bridge.bias": torch.zeros(32, dtype=torch.float64)}))
    refused(folder, r"bridge\.bias: got float64 \(32,\); expected float32")


class Bomb:
    """A pickle that tells on whoever opens it."""

    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_in_place_of_the_weights_is_refused_unopened(folder, protocol):
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb(), protocol=protocol))
    refused(folder, "truncated or damaged")


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_saves_file_is_refused_unopened(folder, zipped):
    torch.save({"weight": Bomb()}, folder / "model.safetensors", _use_new_zipfile_serialization=zipped)
    refused(folder, "truncated or damaged")


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
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


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
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


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
    with pytest.raises(ModelFolderError, match=r"holds thesis\.tex"):
        translator.save(folder)
    with pytest.raises(ModelFolderError, match="not a folder"):
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
