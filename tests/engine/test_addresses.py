"""What is handed to compiled code: real numbers, as many as it is told, or an error."""

import ast
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import dikkat
import kit
from dikkat import scores
from dikkat._engine import addresses
from dikkat.recurrent import AttentionalGRU, AttentionalLSTM, GRUEncoder, LSTMEncoder
from kit import pairwise

KEYED = {
    "dot": lambda: scores.ScaledDot(),
    "cosine": lambda: scores.Cosine(),
    "bilinear": lambda: scores.Bilinear(7, 7),
    "vector sum": lambda: scores.VectorSum(7),
    "average": lambda: scores.Average(),
    "additive": lambda: scores.Additive(7, 7, 11),
    "gaussian": lambda: scores.Gaussian(2.0),
    "boxcar": lambda: scores.Boxcar(2.0),
    "epanechnikov": lambda: scores.Epanechnikov(2.0, learnable=True),
    "triangular": lambda: scores.Triangular(2.0),
}


# PyTorch's and NumPy's names for an address, however they are reached.
_ADDRESS = {
    "data_ptr", "mutable_data_ptr", "const_data_ptr", "_cdata", "__array_interface__", "__cuda_array_interface__",
    "__dlpack__", "to_dlpack", "ctypes", "data_as",
}  # fmt: skip


def _addresses_in(source: str) -> set[str]:
    """The names of addresses that a source uses as attributes, called or not, or as strings for `getattr`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(node.value.split("."))
    return found & _ADDRESS


def test_addresses_are_taken_in_one_place() -> None:
    package = Path(dikkat.__file__).parent
    others = {
        path.name: used
        for path in package.rglob("*.py")
        if path.name != "addresses.py" and (used := _addresses_in(path.read_text("utf-8")))
    }
    assert not others


@pytest.mark.parametrize(
    "line",
    [
        "x.data_ptr()", "ask = Tensor.data_ptr", "array.ctypes.data", "array.__array_interface__['data']",
        "getattr(x, 'data_ptr')", "attrgetter('ctypes.data')(x)", "x.untyped_storage()._cdata", "x.__dlpack__()",
    ],
)  # fmt: skip
def test_an_address_is_noticed_however_it_is_taken(line: str) -> None:
    assert _addresses_in(line)
    assert not _addresses_in("import ctypes; ctypes.addressof(memory)")


def test_an_array_has_an_address_if_it_is_whole() -> None:
    array = np.zeros((3, 5), np.dtype([("one", np.int64), ("two", np.int64)]))
    assert addresses.array_address(array) == array.__array_interface__["data"][0]
    with pytest.raises(ValueError, match=r"array: got strides \(80, 32\)"):
        addresses.array_address(array[:, ::2])


@kit.each(
    ("impl", "cut", "left"),
    pairwise(
        {"impl": ["reference", "chunked", "sdpa", "numba", "auto"], "cut": ["query", "key", "value"], "left": [0, 64]}
    ),
)
def test_a_storage_cut_below_its_shape_is_refused_by_all(impl: str, cut: str, left: int) -> None:
    for score in (scores.ScaledDot(), *([] if impl == "sdpa" else [scores.Gaussian(), scores.Additive(7, 7, 3)])):
        for turned in (False, True):
            given = {name: torch.randn(2, 257, 7) for name in ("query", "key", "value")}
            for _ in range(2):
                dikkat.attend(**given, score=score, impl=impl)
            if turned:
                given[cut] = given[cut].mT.contiguous().mT
            given[cut].untyped_storage().resize_(left)
            with pytest.raises(ValueError, match=rf"{cut}: got shape .* and {left} are left: it was resized"):
                dikkat.attend(**given, score=score, impl=impl)


def _resized() -> Tensor:
    tensor = torch.randn(5, 7)
    tensor.untyped_storage().resize_(4 * 34)
    return tensor


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (lambda: torch.randn(5, 7, device="meta"), ValueError, "got Tensor on meta; expected a dense tensor"),
        (lambda: torch.randn(5, 7).to_sparse(), ValueError, "got Tensor on cpu; expected a dense tensor"),
        (lambda: torch._neg_view(torch.randn(5, 7)), ValueError, "expected a dense tensor"),
        (lambda: torch._efficientzerotensor((5, 7)), ValueError, "expected a dense tensor"),
        (lambda: torch._to_functional_tensor(torch.randn(5, 7)), ValueError, "expected a dense tensor"),
        (lambda: FakeTensorMode().from_tensor(torch.randn(5, 7)), ValueError, "got FakeTensor"),
        (lambda: torch.randn(5, 7).double(), TypeError, "got dtype torch.float64; expected torch.float32"),
        (lambda: torch.randn(7, 5).t(), ValueError, r"got strides \(1, 5\); expected a contiguous tensor"),
        (_resized, ValueError, r"shape \(5, 7\), which takes 140 bytes of storage, and 136 are left"),
    ],
)
def test_only_real_numbers_have_an_address(tensor: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"key: {message}" if message.startswith("got") else message):
        addresses.address("key", tensor(), torch.float32)


def test_views_and_empty_tensors_have_one() -> None:
    base = torch.arange(35.0).reshape(5, 7)
    assert addresses.address("key", base[2:], torch.float32) == base.data_ptr() + 4 * 14
    addresses.address("key", base[:0], torch.float32)
    addresses.address("key", nn.Parameter(base), torch.float32)
    with torch.inference_mode():
        addresses.address("key", torch.empty(3), torch.float32)
    assert addresses.rows_address("key", base[:, 3:], torch.float32) == base.data_ptr() + 4 * 3
    with pytest.raises(ValueError, match="contiguous rows"):
        addresses.rows_address("key", base.t(), torch.float32)
    addresses.check_numbers("key", base.t()[::2], "cpu")


# --- without numbers: fake tensors, the meta device, and traces


def _called(score: Any, query: Tensor, lens: Tensor | None, **options: Any) -> list[Tensor]:
    found = dikkat.attend(query, query, query, score=score, valid_lens=lens, return_weights=True, **options)
    state = dikkat.attention_state(query, query, query, score=score, valid_lens=lens, **options)
    memory = dikkat.prepare(query, query, score=score, valid_lens=lens)
    selected = memory.select(torch.ones(1, dtype=torch.int64, device=query.device))
    return [*found, *state, dikkat.attend_memory(query, memory), selected.key]


@kit.each(("name", "length"), list(zip(KEYED, cycle([5, 301]))))
def test_attention_on_the_meta_device_stays_there(name: str, length: int) -> None:
    score, wanted = KEYED[name](), None
    for device in ("cpu", "meta"):
        lens = torch.full((2,), length - 1, device=device)
        query = torch.ones(2, length, 7, device=device)
        bias, exclude = torch.ones(2, length, device=device), torch.ones(2, length, device=device, dtype=torch.int64)
        score = score.to(device)
        found = [*_called(score, query, lens), *_called(score, query, None, causal=True)]
        found += _called(score, query, lens, key_bias=bias, exclude=exclude, dropout=0.3)
        assert {tensor.device.type for tensor in found} == {device}
        shapes = [tensor.shape for tensor in found]
        assert wanted in (None, shapes)
        wanted = shapes


def _decoded(device: str, cell: str, *, grad: bool) -> list[Tensor]:
    make = AttentionalGRU if cell == "gru" else AttentionalLSTM
    with torch.device(device):
        decoder = make(3, 13, 7, scores.Additive(7, 13, 11), num_layers=2)
    with torch.set_grad_enabled(grad):
        memory = decoder.eval().prepare(torch.randn(5, 17, 7, device=device), torch.full((5,), 3, device=device))
        state = torch.zeros(2, 5, 13, device=device)
        state = state if cell == "gru" else (state, state)
        outputs = decoder(torch.randn(5, 2, 3, device=device), memory, state, return_weights=True)
        memory = memory.select(torch.zeros(3, dtype=torch.int64, device=device))
        state = decoder.select(outputs[3], torch.zeros(3, dtype=torch.int64, device=device))
        step = decoder.step(torch.randn(3, 3, device=device), memory, state)
    return [*outputs[:3], *(outputs[3] if cell == "lstm" else (outputs[3],)), *step[:2]]


def _encoded(device: str, cell: str, *, grad: bool) -> list[Tensor]:
    make = GRUEncoder if cell == "gru" else LSTMEncoder
    with torch.device(device):
        encoder = make(3, 13, num_layers=2)
    with torch.set_grad_enabled(grad):
        outputs, state = encoder(torch.randn(5, 7, 3, device=device), torch.full((5,), 4, device=device))
    return [outputs, *(state if cell == "lstm" else (state,))]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("run", [_decoded, _encoded])
def test_recurrences_without_numbers(run: Any, cell: str, grad: bool) -> None:
    wanted = [tensor.shape for tensor in run("cpu", cell, grad=grad)]
    found = run("meta", cell, grad=grad)
    assert {tensor.device.type for tensor in found} == {"meta"}
    assert [tensor.shape for tensor in found] == wanted
    with FakeTensorMode():
        found = run("cpu", cell, grad=grad)
    assert {type(tensor).__name__ for tensor in found} == {"FakeTensor"}
    assert {tensor.device.type for tensor in found} == {"cpu"}
    assert [tensor.shape for tensor in found] == wanted


@pytest.fixture
def meta_by_default() -> Any:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("impl", ["sdpa", "reference", "chunked", "numba"])
@pytest.mark.parametrize("name", ["dot", "additive", "gaussian", "boxcar"])
def test_tensors_made_inside_are_where_the_call_is(name: str, impl: str, meta_by_default: None) -> None:
    if impl == "sdpa" and name != "dot":
        pytest.skip("'sdpa' compares by dot products")
    with torch.device("cpu"):
        score, query = KEYED[name](), torch.randn(3, 37, 7, requires_grad=True)
        lens = torch.tensor([37, 1, 0])
    dropped = {"valid_lens": lens, "dropout": 0.0 if impl == "sdpa" else 0.5}
    for options in ({}, {"valid_lens": lens}, {"causal": True}, dropped):
        out = dikkat.attend(query, query, query, score=score, impl=impl, **options)
        (grad,) = torch.autograd.grad(out.square().sum(), [query])
        assert grad.device.type == "cpu"
        assert grad.isfinite().all()


@pytest.mark.parametrize("impl", ["numba", "reference"])
def test_what_is_shown_where_another_device_is_the_default(impl: str, meta_by_default: None) -> None:
    with torch.device("cpu"):
        x, score = torch.randn(2, 37, 5), scores.Gaussian(1.3)
        bags = [torch.randn(3, 5), torch.randn(2, 5)]
    found = dikkat.inspect(x, x, score=score, overview=3, impl=impl)
    assert found.overview.isfinite().all()
    assert [each.device.type for each in dikkat.collate_bags(bags)] == ["cpu", "cpu"]


def test_recurrences_where_another_device_is_the_default(meta_by_default: None) -> None:
    with torch.device("cpu"):
        torch.manual_seed(0)
        decoder, encoder = AttentionalGRU(3, 13, 7, scores.Gaussian([1.0] * 13)).eval(), GRUEncoder(3, 13)
        inputs, encoded, state = torch.randn(5, 3, 3), torch.randn(5, 17, 13), torch.zeros(1, 5, 13)
        lens = torch.tensor([1, 2, 3, 1, 2])
        decoder = AttentionalGRU(3, 13, 13, scores.Gaussian([1.0] * 13)).eval()
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            memory = decoder.prepare(encoded, lens)
            outputs = decoder(inputs, memory, state, lengths=lens)[0]
            stepped = decoder.step(inputs[:, 0], memory, state)[0]
            torch.testing.assert_close(stepped, outputs[:, 0])
            assert encoder(inputs, lens)[0].isfinite().all()
    outputs.sum().backward()


def test_make_fx_sees_the_operations() -> None:
    torch.manual_seed(0)
    decoder = AttentionalGRU(3, 13, 7, scores.Additive(7, 13, 11)).eval().requires_grad_(False)
    encoder = GRUEncoder(3, 13).eval().requires_grad_(False)
    inputs, encoded, state = torch.randn(5, 2, 3), torch.randn(5, 17, 7), torch.zeros(1, 5, 13)

    def decode(inputs: Tensor, encoded: Tensor, state: Tensor) -> Tensor:
        return decoder(inputs, decoder.prepare(encoded), state)[0]

    def encode(inputs: Tensor, lengths: Tensor) -> Tensor:
        return encoder(inputs, lengths)[0]

    with torch.no_grad():
        traced = make_fx(decode)(inputs, encoded, state)
        again = torch.randn_like(encoded)
        torch.testing.assert_close(traced(inputs, again, state), decode(inputs, again, state))
        lengths = torch.tensor([2, 1, 2, 2, 1])
        traced = make_fx(encode)(inputs, torch.full((5,), 2))
        torch.testing.assert_close(traced(2 * inputs, lengths), encode(2 * inputs, lengths))


def test_compiled_and_exported_recurrences() -> None:
    torch.manual_seed(0)
    encoder = LSTMEncoder(3, 13).eval()
    inputs, lengths = torch.randn(5, 2, 3), torch.tensor([2, 1, 2, 2, 1])
    exported = torch.export.export(encoder, (inputs, torch.tensor([1, 1, 1, 2, 2])), strict=False).module()
    found, wanted = exported(inputs, lengths), encoder(inputs, lengths)
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(found[1], wanted[1])
    decoder = AttentionalGRU(3, 13, 7, scores.Additive(7, 13, 11)).eval()
    state = torch.zeros(1, 5, 13)

    def decode(inputs: Tensor, encoded: Tensor) -> Tensor:
        memory = decoder.prepare(encoded, lengths)
        first, _, _, after = decoder.step(inputs[:, 0], memory, state)
        return first + decoder(inputs, memory, after)[0].sum(1)

    encoded = torch.randn(5, 17, 7)
    with torch.no_grad():
        found = torch.compile(decode, backend="aot_eager", fullgraph=True)(inputs, encoded)
        torch.testing.assert_close(found, decode(inputs, encoded))


# --- as many numbers as the sizes say


def test_a_score_for_other_states_is_refused() -> None:
    decoder = AttentionalGRU(8, 512, 16, scores.Additive(key_size=16, query_size=7, num_hiddens=64))
    memory = decoder.prepare(torch.randn(2, 5, 16))
    for impl, message in (("numba", "got queries of 7 features, .*; expected 512"), ("reference", "expected 7")):
        with pytest.raises(ValueError, match=message):
            decoder(torch.randn(2, 3, 8), memory, torch.zeros(1, 2, 512), impl=impl)


@kit.each("grad", [False, True])
@kit.each(
    "changed",
    [
        {"value": torch.randn(5, 16, 7)}, {"value": torch.randn(4, 17, 7)}, {"key": torch.randn(5, 16, 11)},
        {"key": torch.randn(4, 17, 11)}, {"valid_lens": torch.tensor([3, 1])}, {"valid_lens": torch.tensor(3)},
    ],
)  # fmt: skip
def test_a_memory_with_a_part_replaced_by_a_shorter_one(changed: dict[str, Tensor], grad: bool) -> None:
    from dataclasses import replace

    decoder = AttentionalGRU(3, 13, 7, scores.Additive(7, 13, 11)).eval()
    with torch.set_grad_enabled(grad):
        memory = decoder.prepare(torch.randn(5, 17, 7), torch.tensor([17, 3, 2, 1, 0]))
        with pytest.raises(ValueError, match="memory: got "):
            replace(memory, **changed)
        other = replace(memory, value=torch.zeros(5, 17, 7))
        assert not decoder.step(torch.randn(5, 3), other, torch.zeros(1, 5, 13))[1].any()


def test_a_memory_that_was_resized() -> None:
    torch.manual_seed(0)
    decoder = AttentionalGRU(16, 16, 16, scores.Additive(16, 16, 16)).eval()
    inputs, state = torch.randn(5, 16), torch.zeros(1, 5, 16)
    with torch.no_grad():
        memory = decoder.prepare(torch.randn(5, 16, 16))
        memory.value.untyped_storage().resize_(0)
        memory.key.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match="it was resized"):
            decoder.step(inputs, memory, state)


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("make", [GRUEncoder, LSTMEncoder])
def test_an_encoder_of_no_sequences(make: Any, impl: str) -> None:
    encoder = make(3, 13, num_layers=2)
    outputs, state = encoder(torch.zeros(0, 7, 3), torch.zeros(0, dtype=torch.int64), impl=impl)
    assert outputs.shape == (0, 7, 26)
    for each in state if isinstance(state, tuple) else (state,):
        assert each.shape == (2, 0, 26)
    outputs.sum().backward()
