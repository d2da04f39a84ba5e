"""The graphs of `dikkat export --onnx`: what ONNX Runtime computes from them, and what is refused."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from dikkat.cli import main
from dikkat.storage.folders import SUMS
from dikkat.translation import InputError, ModelFolderError, Search, Translator, beam_search
from dikkat.translation.formats import onnx_folder, onnx_graphs, onnx_nodes
from dikkat.translation.network.model import pad
from translation.test_compiled import make

_SCRIPT = Path(__file__).parents[2] / "docs" / "onnx_search.py"
SOURCES = [[5, 6], [7], [8, 9, 10, 4], [10, 10], [9, 4, 4], [6, 6, 6, 6, 6, 6, 6]]
_SCORES = (
    "additive", "dot", "scaled_dot", "bilinear", "cosine", "gaussian", "boxcar", "epanechnikov", "triangular",
    "vector_sum", "average", "none",
)  # fmt: skip


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("onnx_search", _SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(model, folder):
    """The graphs of a model, as `dikkat export` writes them."""
    folder.mkdir()
    found = onnx_folder.graphs(model)
    (folder / "encoder.onnx").write_bytes(found.encoder)
    (folder / "decoder.onnx").write_bytes(found.decoder)
    return folder


@pytest.mark.parametrize(
    "changes", [{}, {"cell": "lstm", "num_layers": 2, "bidirectional": False}], ids=["gru", "lstm"]
)
@pytest.mark.parametrize("score", _SCORES)
def test_graphs_write_what_the_search_writes(score, changes, script, tmp_path):
    # Of so small a width, kernels see some positions and others not.
    model = make(score=score, **changes)
    if hasattr(model.decoder.score, "log_bandwidth"):
        model.decoder.score.log_bandwidth.data.fill_(0.4)
    elif hasattr(model.decoder.score, "fixed_bandwidth"):
        model.decoder.score.fixed_bandwidth.fill_(1.5)
    graphs = script.Graphs(written(model, tmp_path / "graphs"))
    for beam in (1, 5):
        expected = beam_search(model, SOURCES, Search(beam))
        for source, (hypothesis,) in zip(SOURCES, expected, strict=True):
            found = script.translate(graphs, source, beam)
            assert (found.ids, found.finished) == (hypothesis.ids, hypothesis.finished)
            assert found.total == pytest.approx(hypothesis.score, rel=2e-5, abs=2e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_layers": 2},
        {"cell": "lstm", "score": "cosine"},
        {"tied_embeddings": "none", "embedding_size": 37, "hidden_size": 74},
        {"tied_embeddings": "three", "vocabulary": 11, "cell": "lstm", "num_layers": 3},
        {"score": "boxcar", "num_layers": 2},
    ],
)
def test_every_number_is_pytorchs(changes):
    model = make(**changes)
    onnx_folder.check(onnx_folder.graphs(model), model)


def test_lengths_rows_and_padding_are_free(script, tmp_path):
    model = make(num_layers=2)
    graphs = script.Graphs(written(model, tmp_path / "graphs"))
    numbers, lengths = pad(SOURCES)
    together = graphs.encoder.run(None, {"source": numbers.numpy(), "lengths": lengths.numpy()})
    names = [each.name for each in graphs.encoder.get_outputs()]
    for row, source in enumerate(SOURCES):
        alone = graphs.read(source)
        for name, value in zip(names, together, strict=True):
            mine = value[row, : len(source)] if name in ("keys", "values") else value[row]
            np.testing.assert_allclose(mine, alone[name][0], rtol=1e-5, atol=1e-6)


def test_a_kernel_that_reaches_nothing_looks_nowhere(script, tmp_path):
    model = make(score="boxcar")
    model.decoder.score.fixed_bandwidth.fill_(1e-3)
    onnx_folder.check(onnx_folder.graphs(model), model)
    graphs = script.Graphs(written(model, tmp_path / "graphs"))
    given = {"token": np.array([2]), **graphs.read([5, 6, 7])}
    assert graphs.decoder.run(["weights"], given)[0].tolist() == [[0.0, 0.0, 0.0]]


def test_only_plain_operators_are_used():
    found = onnx_folder.graphs(make(cell="lstm"))
    for graph in (found.encoder, found.decoder):
        model = onnx.load_from_string(graph)
        kinds = {node.op_type for node in model.graph.node}
        assert not kinds & {"GRU", "LSTM", "RNN"}
        assert [(each.domain, each.version) for each in model.opset_import] == [("", 17)]
    names = {each.name for each in onnx.load_from_string(found.decoder).graph.initializer}
    assert {"decoder.weight_hh_l0", "readout.weight", "output_bias"} <= names


# --- what is refused


def export(translator, folder, model):
    Translator(model, translator.settings, translator.source_tokenizer, translator.target_tokenizer).export_onnx(folder)


def test_graphs_that_compute_something_else_are_never_written(translator, tmp_path, monkeypatch):
    translator.export_onnx(tmp_path / "graphs")
    before = {file.name: file.read_bytes() for file in (tmp_path / "graphs").iterdir()}
    right = onnx_graphs._cell

    def wrong(g, given, own, before):
        return [g("Add", each, g.number(2e-5)) for each in right(g, given, own, before)]

    monkeypatch.setattr(onnx_graphs, "_cell", wrong)
    with pytest.raises(InputError, match=r"hidden: got numbers of the graph that are up to .* from PyTorch's"):
        translator.export_onnx(tmp_path / "graphs")
    assert {file.name: file.read_bytes() for file in (tmp_path / "graphs").iterdir()} == before
    assert set(before) == {*onnx_folder.FILES, SUMS}
    assert [entry.name for entry in tmp_path.iterdir()] == ["graphs"]


def test_a_graph_that_is_nan_is_no_match():
    with pytest.raises(InputError, match="weights: got numbers"):
        onnx_folder._compare((3,), ["weights"], [np.array([np.nan])], [np.array([0.5])])


def test_models_that_cannot_be_written_say_so(translator, tmp_path):
    hooked = make()
    hooked.readout.register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="model: got one that cannot be written as graphs: readout is no plain Linear"):
        export(translator, tmp_path / "graphs", hooked)

    class Own(type(make().decoder.score)):
        pass

    own = make()
    own.decoder.score.__class__ = Own
    with pytest.raises(InputError, match="the queries of Own are not known to be affine"):
        export(translator, tmp_path / "graphs", own)
    broken = make()
    broken.bridge.weight.data[3, 2] = torch.nan
    with pytest.raises(InputError, match=r"bridge.weight: got weights that are not finite"):
        export(translator, tmp_path / "graphs", broken)
    assert not list(tmp_path.iterdir())


def test_too_many_weights_for_a_file(monkeypatch):
    monkeypatch.setattr(onnx_nodes, "_LARGEST", 1000)
    with pytest.raises(InputError, match=r"encoder: got weights of .* GiB; expected less than 2"):
        onnx_folder.graphs(make())


def test_another_folder_is_not_destroyed(translator, tmp_path):
    translator.save(tmp_path / "model")
    with pytest.raises(ModelFolderError, match=r"holds model.safetensors"):
        translator.export_onnx(tmp_path / "model")


# --- the command, and the script


def test_the_command_exports_and_the_script_translates(translator, tmp_path, capsys, monkeypatch):
    model, graphs = tmp_path / "model", tmp_path / "graphs"
    translator.save(model)
    for arguments, status in (((model, "--onnx", graphs), 0), ((model, "--onnx", model), 2), ((model,), 2)):
        monkeypatch.setattr(sys, "argv", ["dikkat", "export", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert (stopped.value.code or 0) == status
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{graphs}: an encoder of 0.0 MB, a step of a decoder of 0.1 MB")
    command = [sys.executable, str(_SCRIPT), str(graphs), "--beam", "3", "I lost.", "", "The man is calm."]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == "J'ai perdu.\n\nL'homme est calme.\n"
