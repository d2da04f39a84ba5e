"""What is refused, and in what words."""

from pathlib import Path
from typing import Any

import mxnet
import numpy
import pytest
from mxnet import np, npx

from dikkat.frameworks import mxnet as dikkat_mxnet
from dikkat.frameworks.mxnet import _require, scores


@pytest.fixture
def qkv() -> list[Any]:
    return [np.zeros((2, 3, 5)), np.zeros((2, 7, 5)), np.zeros((2, 7, 11))]


def test_a_python_that_is_too_new() -> None:
    _require.check_python((3, 11))
    with pytest.raises(ImportError, match=r"Python is 3\.12, and MXNet needs 3\.11 .*pip install '\.\[mxnet\]'"):
        _require.check_python((3, 12))


def test_a_numpy_that_is_too_new() -> None:
    _require.check_numpy("1.23.5")
    for version in ("1.24.0", "2.0.1"):
        with pytest.raises(ImportError, match=f"numpy is {version}.*pip install numpy==1.23.5"):
            _require.check_numpy(version)


def test_no_mxnet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_require, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"there is no MXNet here: pip install '\.\[mxnet\]'"):
        _require.import_mxnet()


def test_the_machine_is_looked_at_before_anything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    _require.check_machine()

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(_require.ctypes, "CDLL", missing)
    with pytest.raises(ImportError, match="the system's libgomp is missing"):
        _require.check_machine()


@pytest.mark.parametrize(("library", "package"), [("libgomp.so.1", "libgomp1"), ("libquadmath.so.0", "libquadmath0")])
def test_a_library_of_the_system_that_is_missing(library: str, package: str) -> None:
    error = _require.explain(OSError(f"{library}: cannot open shared object file: No such file or directory"))
    assert library.split(".")[0] + " is missing" in str(error)
    assert package in str(error)
    assert "does not load (corrupt)" in str(_require.explain(OSError("corrupt")))


def test_numpy_semantics_that_are_off() -> None:
    npx.reset_np()
    try:
        for call in (
            lambda: dikkat_mxnet.DotProductAttention(),
            lambda: dikkat_mxnet.masked_softmax(mxnet.nd.zeros((2, 3))),
            lambda: dikkat_mxnet.attend(*[mxnet.nd.zeros((2, 3))] * 3, score=None),
        ):
            with pytest.raises(RuntimeError, match=r"NumPy semantics are off.*call mxnet\.npx\.set_np\(\)"):
                call()
    finally:
        npx.set_np()


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"valid_lens": [2, 8]}, ValueError, "valid_lens: got 8; expected 0 to 7, a length among the keys"),
    ({"valid_lens": [-1, 3]}, ValueError, "valid_lens: got -1; expected 0 to 7"),
    ({"valid_lens": [2.5, 3]}, ValueError, r"valid_lens: got 2\.5; expected whole numbers"),
    ({"valid_lens": [float("nan"), 3]}, ValueError, "valid_lens: got nan; expected whole numbers"),
    ({"valid_lens": [2, 3, 1]}, ValueError, r"valid_lens: got shape \(3,\); expected \(2,\) .* or \(2, 3\)"),
    ({"valid_lens": numpy.array([True, True])}, TypeError, "valid_lens: got dtype bool"),
    ({"mask": [[0.5] * 7]}, TypeError, "mask: got dtype float32; expected bool, or 0 and 1"),
    ({"mask": [[1] * 5]}, ValueError, r"mask: got shape \(1, 5\); expected one that broadcasts to \(2, 3, 7\)"),
    ({"key_bias": [[0.0] * 5]}, ValueError, r"key_bias: got shape \(1, 5\)"),
    ({"key_bias": numpy.zeros((2, 7), dtype="int64")}, TypeError, "key_bias: got dtype int64"),
    ({"exclude": [[0, 7, 1]]}, ValueError, "exclude: got 7; expected -1 to 6, the index of a key, or -1 for none"),
    ({"exclude": [[0, 1]]}, ValueError, r"exclude: got shape \(1, 2\)"),
]


@pytest.mark.parametrize(("given", "error", "words"), REFUSED)
def test_restrictions(given: dict[str, Any], error: type[Exception], words: str, qkv: list[Any]) -> None:
    arrays = {name: np.array(each) for name, each in given.items()}
    with pytest.raises(error, match=words):
        dikkat_mxnet.DotProductAttention()(*qkv, **arrays)


def _heads() -> Any:
    layer = dikkat_mxnet.MultiHeadAttention(5, 1, value_size=11)
    layer.initialize()
    return layer


def test_arguments_of_another_kind(qkv: list[Any]) -> None:
    query, key, value = qkv
    layer = dikkat_mxnet.DotProductAttention()
    with pytest.raises(TypeError, match=r"query: got mxnet\.ndarray.*as_np_ndarray"):
        layer(query.as_nd_ndarray(), key, value)
    with pytest.raises(TypeError, match=r"value: got numpy\.ndarray; expected an mxnet\.np\.ndarray"):
        layer(query, key, value.asnumpy())
    with pytest.raises(TypeError, match="query: got dtype int64; expected float16, float32, float64"):
        layer(query.astype("int64"), key, value)
    with pytest.raises(TypeError, match="key: got dtype float64; expected float32, that of query"):
        layer(query, key.astype("float64"), value)
    with pytest.raises(TypeError, match=r"valid_lens: got builtins\.list"):
        layer(query, key, value, [2, 3])
    with pytest.raises(TypeError, match="causal: got int; expected True or False"):
        layer(query, key, value, causal=1)
    with pytest.raises(TypeError, match="key_padding_mask"):
        layer(query, key, value, key_padding_mask=None)
    with pytest.raises(TypeError, match=r"score: got Dot; .*: make one, with its brackets"):
        dikkat_mxnet.attend(query, key, value, score=scores.Dot)
    with pytest.raises(TypeError, match="score: got 'dot'"):
        dikkat_mxnet.attend(query, key, value, score="dot")


def test_shapes_that_do_not_fit(qkv: list[Any]) -> None:
    query, key, value = qkv
    layer = dikkat_mxnet.DotProductAttention()
    with pytest.raises(ValueError, match=r"value: got 5 rows .* expected 7, one for each key"):
        layer(query, key, np.zeros((2, 5, 11)))
    with pytest.raises(ValueError, match="query, key: got 5 and 3 features after projection"):
        layer(query, np.zeros((2, 7, 3)), value)
    with pytest.raises(ValueError, match=r"got shapes .*; expected leading dimensions that broadcast"):
        layer(np.zeros((3, 3, 5)), key, value)
    with pytest.raises(ValueError, match=r"query: got shape \(5,\); expected \(..., length, features\)"):
        layer(np.zeros(5), key, value)
    with pytest.raises(ValueError, match="all with a batch dimension, or none"):
        _heads()(query[0], key, value)
    additive = dikkat_mxnet.AdditiveAttention(key_size=3, query_size=5, num_hiddens=7)
    additive.initialize()
    with pytest.raises(ValueError, match=r"key: got 5 features \(shape \(2, 7, 5\)\); expected 3"):
        additive(query, key, value)
    with pytest.raises(TypeError, match="query: got dtype float64; expected float32, that of the layer's"):
        additive(*[each.astype("float64") for each in (query, key[..., :3], value)])


def test_pair_functions(qkv: list[Any]) -> None:
    query, key, _ = qkv
    with pytest.raises(ValueError, match="pair: got 'cosine'; expected 'inner', 'additive', 'distance'"):
        dikkat_mxnet.compare(query, key, pair="cosine")
    with pytest.raises(TypeError, match=r"weight: got None; expected v, \(h,\), for pair 'additive'"):
        dikkat_mxnet.compare(query, key, pair="additive")
    with pytest.raises(ValueError, match=r"weight: got shape \(3,\); expected \(5,\)"):
        dikkat_mxnet.compare(query, key, pair="additive", weight=np.zeros(3))
    with pytest.raises(ValueError, match="profile: got 'round'; expected "):
        dikkat_mxnet.compare(query, key, pair="distance", profile="round")


@pytest.mark.parametrize(
    ("bandwidth", "error", "words"),
    [
        (0, ValueError, r"bandwidth: got 0\.0; expected positive finite numbers"),
        ([1, float("inf")], ValueError, "bandwidth: got .*inf"),
        ([[1.0]], ValueError, r"bandwidth: got shape \(1, 1\)"),
        ("wide", TypeError, "bandwidth: got 'wide'; expected a positive number"),
    ],
)
def test_bandwidths(bandwidth: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        dikkat_mxnet.KernelAttention(bandwidth)


def test_sizes() -> None:
    with pytest.raises(ValueError, match="key_dim, num_heads: got 6 and 4; expected the first a multiple"):
        dikkat_mxnet.MultiHeadAttention(8, 4, key_dim=6)
    with pytest.raises(TypeError, match=r"num_hiddens: got 2\.5"):
        dikkat_mxnet.AdditiveAttention(3, 5, 2.5)
    with pytest.raises(ValueError, match=r"dropout: got 1\.5; expected a number from 0 to 1"):
        dikkat_mxnet.DotProductAttention(1.5)
    with pytest.raises(ValueError, match="hidden_size: got 0; expected at least 1"):
        dikkat_mxnet.GRUEncoder(3, 0)
    with pytest.raises(ValueError, match=r"dropout: got 0\.5 with one layer"):
        dikkat_mxnet.AttentionalGRU(3, 5, 7, scores.Bilinear(7, 5), dropout=0.5)


def test_weights_of_another_layer(tmp_path: Path) -> None:
    layer = dikkat_mxnet.AdditiveAttention(3, 5, 7)
    layer.initialize()
    before = dikkat_mxnet.tensors(layer)
    spoilt = before | {"score.W_k.weight": numpy.zeros((7, 4)), "score.b": numpy.zeros(3)}
    del spoilt["score.w_v.weight"]
    words = (
        r"score.W_k.weight: got \(7, 4\); expected \(7, 3\); score.w_v.weight: got nothing; expected \(1, 7\); "
        r"score.b: got \(3,\); expected nothing"
    )
    with pytest.raises(ValueError, match=words):
        dikkat_mxnet.load_tensors(layer, spoilt)
    (tmp_path / "layer.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="truncated, damaged or no safetensors file"):
        dikkat_mxnet.load_tensors(layer, tmp_path / "layer.safetensors")
    with pytest.raises(FileNotFoundError):
        dikkat_mxnet.load_tensors(layer, tmp_path / "none.safetensors")
    for name, tensor in dikkat_mxnet.tensors(layer).items():
        numpy.testing.assert_array_equal(tensor, before[name])


def test_recurrent_layers() -> None:
    encoder = dikkat_mxnet.GRUEncoder(3, 5)
    encoder.initialize()
    inputs = np.zeros((2, 7, 3))
    with pytest.raises(ValueError, match=r"lengths: got \[0, 3\]; expected each from 1 to the 7 positions"):
        encoder(inputs, np.array([0, 3]))
    with pytest.raises(ValueError, match=r"lengths: got shape \(3,\); expected \(batch,\) = \(2,\)"):
        encoder(inputs, np.array([1, 2, 3]))
    with pytest.raises(ValueError, match=r"inputs: got shape \(2, 7, 4\); expected \(batch, positions, 3\)"):
        encoder(np.zeros((2, 7, 4)), np.array([1, 2]))
    with pytest.raises(TypeError, match="inputs: got dtype float16; expected float32 or float64"):
        encoder(inputs.astype("float16"), np.array([1, 2]))
    decoder = dikkat_mxnet.AttentionalLSTM(3, 5, 11, scores.Bilinear(11, 5), coverage=True)
    decoder.initialize()
    with pytest.raises(ValueError, match=r"encoded: got shape \(2, 7, 5\); expected \(batch, positions, 11\)"):
        decoder.prepare(np.zeros((2, 7, 5)))
    with pytest.raises(ValueError, match=r"valid_lens: got shape \(2, 1\); expected \(2,\)"):
        decoder.prepare(np.zeros((2, 7, 11)), np.ones((2, 1)))
    memory, zeros = decoder.prepare(np.zeros((2, 7, 11))), np.zeros((1, 2, 5))
    with pytest.raises(ValueError, match="state: got tuple; expected what begin makes of it"):
        decoder(inputs, memory, (zeros, zeros))
    with pytest.raises(ValueError, match="state: got ndarray; expected a pair of tensors"):
        decoder(inputs, memory, decoder.begin(zeros, memory))
    with pytest.raises(ValueError, match=r"state: got shape \(1, 2, 4\)"):
        decoder(inputs, memory, decoder.begin((zeros, np.zeros((1, 2, 4))), memory))
    with pytest.raises(ValueError, match="memory: got 2 sequences; expected 1, as many as the inputs"):
        decoder(inputs[:1], memory, decoder.begin((zeros, zeros), memory))
    with pytest.raises(TypeError, match="memory: got NoneType; expected a Memory, as prepare makes"):
        decoder(inputs, None, zeros)
    with pytest.raises(ValueError, match=r"rows: got \[0, 2\]; expected indices \(rows,\) from 0 to 1"):
        memory.select(np.array([0, 2]))
    with pytest.raises(TypeError, match="score: got NoneType"):
        dikkat_mxnet.AttentionalGRU(3, 5, 7, None)
