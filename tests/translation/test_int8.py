"""Weights in int8: the numbers, the search with them, and the folder, which a program in plain NumPy reads too."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from dikkat.cli import main
from dikkat.storage.int8 import dequantized, quantized
from dikkat.translation import InputError, ModelFolderError, Search, SettingsError, Translator, beam_search  # fmt: skip
from translation.test_compiled import SOURCES, make
from translation.test_model_folder import seal

_REFERENCE = Path(__file__).parents[2] / "docs" / "reference_decoder.py"


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("reference_decoder", _REFERENCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.integers(1, 19), st.integers(0, 2**31), st.floats(-36, 37))
def test_numbers_are_the_nearest_and_come_back_the_same(rows, columns, seed, exponent):
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent
    weight = torch.nan_to_num(weight, posinf=3e38, neginf=-3e38)
    found = quantized(weight)
    assert not bool((found.scales.view(torch.int32) & 0xFF).any())  # 16 bits: a product with 8 is exact
    exact = found.numbers.double() * found.scales.double().unsqueeze(1)
    assert torch.equal(dequantized(found).double(), exact)
    normal = found.scales > 0
    error = (exact - weight.double()).abs()
    assert bool((error <= found.scales.double().unsqueeze(1) * 0.5000001)[normal].all())
    assert bool((found.numbers.abs().amax(1) == 127)[normal].all())
    again = quantized(dequantized(found))
    assert torch.equal(again.numbers, found.numbers)
    assert torch.equal(again.scales, found.scales)


def test_rows_without_a_scale_become_zeros():
    found = quantized(torch.tensor([[0.0, -0.0], [1e-41, -1e-42], [1e-37, 2.0]]))
    assert found.numbers[:2].tolist() == [[0, 0], [0, 0]]
    assert found.scales[:2].tolist() == [0, 0]
    model = make()
    with torch.no_grad():
        model.readout.weight.zero_()
        model.bridge.weight[3] = 1e-42
    same = beam_search(model, SOURCES, Search(1)), beam_search(model, SOURCES, Search(1, precision="int8"))
    assert [[g.ids for g in group] for group in same[0]] == [[g.ids for g in group] for group in same[1]]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cell": "lstm", "num_layers": 2, "hidden_size": 34},
        {"score": "bilinear", "bidirectional": False, "tied_embeddings": "none"},
        {"score": "scaled_dot", "tied_embeddings": "three", "vocabulary": 11},
    ],
)
def test_the_reference_decoder_comes_to_the_same(changes, reference, translator, tmp_path):
    model = make(seed=3, **changes)
    rows = {name: quantized(t) for name, t in model.state_dict().items() if t.ndim == 2 and len(t) > 1}
    stored = {name: t for name, t in model.state_dict().items() if name not in rows}
    for name, each in rows.items():
        stored |= {name: each.numbers.contiguous(), f"{name}.scales": each.scales}
    save_file(stored, tmp_path / "model.safetensors")
    names = ("cell", "score", "bidirectional", "num_layers", "embedding_size", "hidden_size")
    settings = {"embedding_size": 6, "hidden_size": 10, "num_layers": 1, "bidirectional": True, "cell": "gru"}
    settings |= {"score": "additive"} | {k: v for k, v in changes.items() if k in names}
    (tmp_path / "settings.json").write_text(json.dumps({"settings": settings}))
    decoder = reference.Decoder(tmp_path)
    found = beam_search(model, SOURCES, Search(1, precision="int8"))
    for source, (hypothesis,) in zip(SOURCES, found, strict=True):
        ids, score = decoder.translate(source)
        assert ids == hypothesis.ids
        assert score == pytest.approx(hypothesis.score, rel=2e-3)  # a number that is rounded up here, and down there


def test_scores_are_near_those_of_float32():
    model = make(hidden_size=74, embedding_size=38)
    for (one,), (other,) in zip(
        beam_search(model, SOURCES, Search(1, max_length=1)),
        beam_search(model, SOURCES, Search(1, max_length=1, precision="int8")),
        strict=True,
    ):
        assert one.score != other.score
        assert other.score == pytest.approx(one.score, abs=0.3)


# --- the folder


@pytest.fixture
def small(translator, tmp_path):
    translator.save(tmp_path / "small", int8=True)
    return tmp_path / "small"


def test_a_folder_is_a_quarter_as_large_and_reads_back_exactly(translator, small, tmp_path, reference):
    translator.save(tmp_path / "large")
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (small, tmp_path / "large")]
    assert sizes[0] < 0.34 * sizes[1]  # of 32 features, which make scales an eighth
    loaded, stored = Translator.load(small), reference.read_tensors(small / "model.safetensors")
    for name, tensor in translator.model.state_dict().items():
        found = loaded.model.state_dict()[name].numpy()
        if tensor.ndim == 2 and len(tensor) > 1:
            exact = stored[name].astype(np.float64) * stored[f"{name}.scales"].astype(np.float64)[:, None]
            np.testing.assert_array_equal(found, exact)
        else:
            np.testing.assert_array_equal(found, tensor.numpy())
    loaded.save(tmp_path / "again", int8=True)
    for file in ("model.safetensors", "settings.json"):
        assert (tmp_path / "again" / file).read_bytes() == (small / file).read_bytes()


def test_it_translates_and_does_not_learn(translator, small):
    loaded = Translator.load(small)
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    sentences = ["I lost.", "The man is calm."]
    search = Search(5, precision="int8")
    found, own = loaded.translate(sentences, search=search), translator.translate(sentences, search=search)
    assert [each.target for each in found] == [each.target for each in own] == ["J'ai perdu.", "L'homme est calme."]
    assert [each.score for each in found] == [each.score for each in own]
    assert [each.target for each in loaded.translate(sentences)] == [each.target for each in own]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["bridge.weight.scales"].__setitem__(1, torch.inf), "bridge.weight.scales: got values"),
        (lambda t: t.pop("bridge.weight.scales"), "bridge.weight.scales: got nothing"),
        (lambda t: t.update({"bridge.weight": t["bridge.weight"].float()}), "bridge.weight: got float32"),
        (lambda t: t.update({"bridge.bias": t["bridge.bias"][1:].clone()}), "bridge.bias: got float32"),
    ],
)
def test_a_damaged_folder_is_refused(small, change, message):
    tensors = load_file(small / "model.safetensors")
    change(tensors)
    save_file(tensors, small / "model.safetensors")
    seal(small)
    with pytest.raises(ModelFolderError, match=message):
        Translator.load(small)


def test_weights_without_a_scale_are_refused(translator, tmp_path):
    model = make()
    with torch.no_grad():
        model.bridge.weight[0, 0] = torch.inf
    with pytest.raises(InputError, match=r"bridge.weight: got infinite weights"):
        beam_search(model, SOURCES, Search(precision="int8"))


def test_int8_never_turns_into_something_else():
    model = make()
    for models, search, why in (
        (model, Search(sample=True, precision="int8"), "samples are drawn"),
        ([model, model], Search(precision="int8"), "2 models translate together"),
        (make().double(), Search(precision="int8"), "int8 needs float32 weights"),
    ):
        with pytest.raises(SettingsError, match=f"precision: got 'int8', which cannot run here: .*{why}"):
            beam_search(models, SOURCES, search)


def test_the_command_line_quantizes(translator, tmp_path, capsys, monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["dikkat", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    model, small = tmp_path / "model", tmp_path / "small"
    translator.save(model)
    status, out, _ = run("quantize", model, "--output", small)
    assert (status, out.startswith(f"{small}: weights of ")) == (0, True)
    assert run("translate", small, "--precision", "int8", "I lost.") == (0, "J'ai perdu.\n", "")
    status, _, complaint = run("quantize", model, "--output", small)
    assert (status, complaint) == (
        2,
        f"dikkat: {small}: already has a model. Choose another folder, or add --overwrite to replace it\n",
    )
    assert run("quantize", model, "--output", small, "--overwrite")[0] == 0
    status, out, complaint = run("quantize", model, "--output", model)
    assert (status, out) == (2, "")
    assert "the model itself" in complaint
    status, _, complaint = run("translate", small, "--precision", "int8", "--sample", "I lost.")
    assert status == 2
    assert "--precision: got 'int8', which cannot run here: samples are drawn" in complaint
