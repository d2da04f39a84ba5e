"""What comes wrong is named: what came, and what is allowed. Layers raise the same types as functions."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from dikkat.frameworks import keras as dikkat
from dikkat.frameworks.keras import backend

X = np.ones((2, 3, 5), np.float32)
LONGER = np.ones((2, 7, 5), np.float32)
WIDER = np.ones((2, 3, 11), np.float32)

INPUT = keras.Input((5,))


class Pairless(dikkat.Score):
    """It does not say how it compares."""


class Profiled(dikkat.Gaussian):
    profile = "tent"


def attend(query: Any = X, key: Any = X, value: Any = X, score: Any = None, **limits: Any) -> Any:
    return dikkat.attend(query, key, value, score=dikkat.Dot() if score is None else score, **limits)


def dot(query: Any = X, key: Any = X, value: Any = X, **limits: Any) -> Any:
    return dikkat.DotProductAttention()(query, key, value, **limits)


def heads(query: Any = X, key: Any = X, value: Any = X, **limits: Any) -> Any:
    return dikkat.MultiHeadAttention(5, num_heads=1)(query, key, value, **limits)


def built(layer: Any, *shapes: tuple[int, ...]) -> Any:
    layer.build(*shapes)
    return layer


BAD_VALUES: dict[str, tuple[Callable[[], Any], str]] = {
    "value: got 7 rows": (lambda: attend(value=LONGER), r"expected 3, one for each key"),
    "query, key: got 5 and 11 features": (lambda: attend(key=WIDER), "Bilinear, Additive"),
    "got shapes query": (lambda: attend(X, X[:1].repeat(3, 0), X), "leading dimensions that broadcast"),
    "query: got shape": (lambda: attend(X[0, 0]), r"\(5,\); expected \(..., length, features\)"),
    "valid_lens: got 4": (lambda: attend(valid_lens=np.array([4, 0])), "0 to 3, a length among the keys"),
    "valid_lens: got -1": (lambda: heads(valid_lens=np.array([2, -1])), "0 to 3"),
    "valid_lens: got shape": (lambda: dot(valid_lens=np.array([1, 2, 3])), r"expected \(2,\).*or \(2, 3\)"),
    "mask: got shape": (lambda: attend(mask=np.ones((3, 2), bool)), r"\(3, 2\).*broadcasts to \(2, 3, 3\)"),
    "attention_mask: got shape": (lambda: dot(attention_mask=np.ones((2, 3, 7), bool)), r"to \(2, 3, 3\)"),
    "key_mask: got shape": (lambda: dot(key_mask=np.ones((2, 7), bool)), r"to \(2, 3\)"),
    "query_mask: got shape": (lambda: heads(query_mask=np.ones((7,), bool)), r"to \(2, 3\)"),
    "key_bias: got shape": (lambda: heads(key_bias=np.ones((2, 7), "f")), r"broadcasts to \(2, 1, 3\)"),
    "exclude: got 3": (lambda: dot(exclude=np.array([[0, 3, -1]])), "-1 to 2, the index of a key"),
    "exclude: got shape": (lambda: attend(exclude=np.zeros((2, 7), int)), r"broadcasts to \(2, 3\)"),
    "dropout: got 1.5": (lambda: dikkat.DotProductAttention(dropout=1.5), "from 0 to 1"),
    "num_hiddens: got 0": (lambda: dikkat.AdditiveAttention(0), "at least 1"),
    "value_dim, num_heads: got 5 and 2": (lambda: dikkat.SelfAttention(4, 5, 2), "a multiple of the second"),
    "bandwidth: got 0.0": (lambda: dikkat.KernelAttention(0.0), "positive finite numbers"),
    "bandwidth: got": (lambda: dikkat.Gaussian([[1.0]]), "one a feature"),
    "query: got 5 features; expected 2": (lambda: attend(score=dikkat.Gaussian([1.0, 2.0])), "each bandwidth"),
    "query: got 11 features": (lambda: dikkat.MultiHeadAttention(5, num_heads=1)(WIDER, X, X), "expected 5"),
    "query, key, value: got shapes": (lambda: heads(X[0], X[0], X[0]), r"each \(B, length, features\)"),
    "key: got 11 features": (
        lambda: dikkat.attend(X, WIDER, X, score=built(dikkat.Additive(3), X.shape, X.shape)),
        "expected 5, as this was made",
    ),
    "layer: got Sequential, of which no public attribute leads to its weight": (
        lambda: dikkat.tensors(built(keras.Sequential([dikkat.Linear(3)]), (2, 5))),
        "weight.*as attributes of their own",
    ),
    "layer: got Functional, of which no public attribute leads to its weight": (
        lambda: dikkat.load_tensors(keras.Model(INPUT, dikkat.Linear(3)(INPUT)), {}),
        "weight.*as attributes of their own",
    ),
    "layer: got Linear that is not built": (lambda: dikkat.tensors(dikkat.Linear(3)), "call it once"),
    "weight: got": (
        lambda: dikkat.load_tensors(built(dikkat.Linear(3), (2, 5)), {"weight": np.ones((3, 7)), "bias": np.ones(3)}),
        r"\(3, 7\); expected \(3, 5\)",
    ),
    "bias: got nothing": (
        lambda: dikkat.load_tensors(built(dikkat.Linear(3), (2, 5)), {"weight": np.ones((3, 5))}),
        "of another layer, or of one of other sizes",
    ),
}


@pytest.mark.parametrize("came", BAD_VALUES)
def test_bad_values(came: str) -> None:
    call, allowed = BAD_VALUES[came]
    with pytest.raises(ValueError, match=rf"(?s){came}.*{allowed}"):
        call()


BAD_TYPES: dict[str, tuple[Callable[[], Any], str]] = {
    "query: got dtype int32": (lambda: attend(X.astype(np.int32)), "float16, bfloat16, float32, float64"),
    "valid_lens: got dtype float32": (lambda: attend(valid_lens=np.ones(2, "f")), "an integer type"),
    "valid_lens: got dtype bool": (lambda: attend(valid_lens=np.ones(2, bool)), "an integer type"),
    "mask: got dtype float32": (lambda: attend(mask=np.ones((3, 3), "f")), "bool, True where a pair takes part"),
    "attention_mask: got dtype float32": (lambda: heads(attention_mask=np.ones((3, 3), "f")), "bool"),
    "key_bias: got dtype int32": (lambda: attend(key_bias=np.ones((2, 3), np.int32)), "floating-point"),
    "exclude: got dtype float32": (lambda: attend(exclude=np.ones((2, 3), "f")), "an integer type"),
    "causal: got int": (lambda: attend(causal=1), "True or False"),
    "score: got Dot;": (lambda: attend(score=dikkat.Dot), "make one, with its brackets"),
    "score: got 'dot'": (lambda: dikkat.MultiHeadAttention(4, num_heads=2, score="dot"), "an instance of"),
    "score: Pairless.pair: got None": (lambda: attend(score=Pairless()), "'inner', 'additive', 'distance'"),
    "score: Profiled.profile: got 'tent'": (
        lambda: dikkat.MultiHeadAttention(4, num_heads=2, score=Profiled()),
        "'gaussian', 'boxcar'",
    ),
    "key: got dtype float16": (lambda: attend(key=X.astype("float16")), "float32, that of query"),
    "value: got dtype float32": (
        lambda: attend(X.astype("float16"), X.astype("float16")),
        "float16, that of query",
    ),
    "dropout: got str": (lambda: dikkat.DotProductAttention("half"), "a number from 0 to 1"),
    "use_bias: got an argument that MultiHeadAttention has not": (
        lambda: dikkat.MultiHeadAttention(8, num_heads=2, use_bias=False),
        "expected embed_dim, num_heads, .*bias, seed, .*name",
    ),
    "flash_attention, kernel_initializer: got arguments that MultiHeadAttention has not": (
        lambda: dikkat.MultiHeadAttention(8, num_heads=2, kernel_initializer="zeros", flash_attention=True),
        "expected embed_dim",
    ),
    "use_scale: got an argument that AdditiveAttention has not": (
        lambda: dikkat.AdditiveAttention(3, use_scale=True),
        "expected num_hiddens, dropout, seed, .*name",
    ),
    "score_mode: got an argument that Attention has not": (
        lambda: dikkat.Attention(dikkat.Dot(), score_mode="concat"),
        "expected score, dropout",
    ),
    "scale: got an argument that Dot has not": (lambda: dikkat.Dot(scale=2.0), "expected .*dtype"),
    "takes 2 positional arguments but 3": (lambda: dikkat.MultiHeadAttention(8, 2), ""),
    "num_hiddens: got 2.0": (lambda: dikkat.Additive(2.0), "a whole number"),
    "bandwidth: got 'wide'": (lambda: dikkat.Gaussian("wide"), "a positive number"),
    "layer: got list": (lambda: dikkat.tensors([]), "a Keras layer or model"),
}


@pytest.mark.parametrize("came", BAD_TYPES)
def test_bad_types(came: str) -> None:
    call, allowed = BAD_TYPES[came]
    with pytest.raises(TypeError, match=rf"(?s){came}.*{allowed}"):
        call()


def test_a_failed_load_leaves_the_layer_as_it_was() -> None:
    layer = built(dikkat.Linear(3), (2, 5))
    before = dikkat.tensors(layer)
    with pytest.raises(ValueError, match=r"bias: got \(5,\); expected \(3,\)"):
        dikkat.load_tensors(layer, {"weight": np.ones((3, 5)), "bias": np.ones(5)})
    np.testing.assert_array_equal(dikkat.tensors(layer)["weight"], before["weight"])


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="runs eagerly, where values can be read")
def test_where_no_value_can_be_read_lengths_are_cut() -> None:
    x, lens = keras.Input((None, 5)), keras.Input((), dtype="int32")
    _, weights = dikkat.Attention(dikkat.Average())(x, x, x, lens, return_weights=True)
    found = keras.Model([x, lens], weights).predict([X, np.array([-4, 9], np.int32)], verbose=0)
    np.testing.assert_allclose(found, [np.zeros((3, 3)), np.full((3, 3), 1 / 3)], rtol=1e-6)


@pytest.mark.parametrize("name", ["openvino", "numpy"])
def test_a_backend_that_is_not_served_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", name)
    with pytest.raises(ImportError, match=f"KERAS_BACKEND: got '{name}'; expected tensorflow, jax, torch"):
        importlib.reload(backend)
    monkeypatch.delenv("KERAS_BACKEND")  # Keras's own file says so
    monkeypatch.setattr(keras.backend, "backend", lambda: name)
    with pytest.raises(ImportError, match=f"KERAS_BACKEND: got '{name}'; expected tensorflow, jax, torch"):
        importlib.reload(backend)


def test_without_keras_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(ImportError, match=r"pip install .*\[keras\]"):
        importlib.reload(backend)


def test_without_a_backend_the_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def find_spec(self, name: str, *others: Any) -> None:
            if name == "keras":
                raise ModuleNotFoundError("No module named 'jax'", name="jax")

    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    with pytest.raises(ImportError, match=r"does not find jax.*'.\[tensorflow\]' or '.\[jax\]'"):
        importlib.reload(backend)
