"""The CPU kernels in whole calls: hidden rows, dropout, memories, the choice of a kernel, random shapes."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_numba import PAIRS, SCORES, assert_close, everything, given_, plain_made, simple
from torch import Tensor

import dikkat
import kit
from dikkat import scores

# --- gradients of a part, and types


@pytest.mark.parametrize("only", ["query", "key", "value", "v"])
def test_gradients_of_one_operand_alone(only: str) -> None:
    score, leaves, _ = plain_made("additive", 13, 37, 293, 5)
    exact = simple((score, leaves, {}), "reference")
    for name, tensor in (leaves | dict(score.named_parameters())).items():
        tensor.requires_grad_(name == only)
    came = simple((score, leaves, {}), "numba")
    assert_close(came, {name: exact[name] for name in ("out", only)})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", PAIRS)
def test_halves_are_accumulated_in_float32(case: str, dtype: torch.dtype) -> None:
    """What comes is what float32 gives for the same numbers, rounded once."""
    score, leaves, _ = plain_made(case, 16, 37, 521, 11, torch.float32)
    half = {n: t.detach().to(dtype).requires_grad_() for n, t in leaves.items()}
    score = score.to(dtype)
    came = simple((score, half, {}), "numba")
    score = score.float()
    if case == "scaled dot":  # whose projection is in the type that came: here a division by 4, which is exact
        assert bool((half["query"].float() / 4 == (half["query"] / 4).float()).all())
    single = {n: t.detach().float().requires_grad_() for n, t in half.items()}
    exact = simple((score, single, {}), "numba")
    for name, tensor in came.items():
        assert tensor.dtype == dtype, name
        if case == "gaussian" and name != "value":  # its division by σ rounds, in the type that came
            torch.testing.assert_close(tensor, exact[name].to(dtype), rtol=0.05, atol=0.02)
        else:
            torch.testing.assert_close(tensor, exact[name].to(dtype), rtol=0, atol=0)


# --- what is hidden

N, M = 37, 293
POISONED = [5, 134, 271]  # keys in several tiles, and not at their edges


def _some_see(hidden_by: str) -> tuple[dict[str, Any], Tensor]:
    """A restriction and who sees whom, (n, m)."""
    torch.manual_seed(0)
    row, col = torch.arange(N)[:, None], torch.arange(M)
    if hidden_by == "mask":
        seen = (row % 5 == 0) == (col % 7 == 5)  # groups of rows that have no key in common
        seen[:, POISONED] = (row % 5 == 0).expand(N, 3)
        return {"mask": seen}, seen
    if hidden_by == "lengths":
        lens = torch.randint(0, M + 1, (N,))
        lens[::6] = 3
        return {"valid_lens": lens.expand(2, N)}, col < lens[:, None]
    if hidden_by == "causal":
        return {"causal": True}, col <= row + M - N
    exclude = torch.full((N,), -1)
    exclude[2], exclude[30] = POISONED[0], POISONED[2]
    return {"exclude": exclude}, col != exclude[:, None]


@kit.each("what", ["key nan", "value nan", "value inf"])
@kit.each("hidden_by", ["mask", "lengths", "causal", "exclude"])
@kit.each("case", [*PAIRS, "triangular"])
def test_a_nan_reaches_the_rows_that_see_it_and_no_other(case: str, hidden_by: str, what: str) -> None:
    restricted, seen = _some_see(hidden_by)
    score, leaves, _ = plain_made("additive" if case == "additive" else "scaled dot", 5, N, M, 11)
    if case not in ("additive", "scaled dot"):
        score = scores.Gaussian(2.0) if case == "gaussian" else scores.Triangular(30.0)
    name, number = what.split()
    tensor = leaves[name].detach().clone()
    # Every row sees some of them where causality hides, or one of two is excluded.
    keys = POISONED if hidden_by in ("mask", "lengths") else POISONED[2:]
    tensor[1, keys, 2] = float(number)
    dirty = leaves | {name: tensor.requires_grad_()}
    clean = simple((score, leaves, restricted), "numba")
    came = simple((score, dirty, restricted), "numba")
    met = torch.zeros(2, N, dtype=torch.bool)
    met[1] = seen[:, keys].any(-1)
    assert 0 < met[1].sum() < N
    # In a value it is one feature of the output alone.
    features = slice(None) if name == "key" else slice(2, 3)
    assert not bool(came["out"][met][:, features].isfinite().any())
    torch.testing.assert_close(came["out"][~met], clean["out"][~met], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(came["query"][~met], clean["query"][~met], rtol=1e-12, atol=1e-12)
    assert bool(came["query"][met].isnan().all())
    # Keys and values that share no row with it.
    apart = ~(seen[met[1]].any(0))
    for n in ("key", "value"):
        torch.testing.assert_close(came[n][0], clean[n][0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(came[n][1, apart], clean[n][1, apart], rtol=1e-12, atol=1e-12)
    assert bool(apart.any()) or hidden_by != "mask"


# --- dropout


@kit.each("restriction", ["none", "all"])
@kit.each("case", SCORES)
def test_dropout_is_the_references(case: str, restriction: str) -> None:
    made = given_(case, restriction, 67, 521, 21)
    found = []
    for impl in ("numba", "numba", "reference"):
        torch.manual_seed(11)
        found.append(simple(made, impl, dropout=0.3))
    assert_close(found[0], found[2])
    for name, tensor in found[0].items():
        torch.testing.assert_close(tensor, found[1][name], rtol=0, atol=0)
    assert not torch.equal(found[0]["out"], simple(made, "numba", dropout=0.3)["out"])


@pytest.mark.parametrize("case", SCORES)
def test_the_same_bits_twice(case: str) -> None:
    made = given_(case, "all", 67, 521, 21)
    first, again = everything(made, "numba"), everything(made, "numba")
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, again[name], rtol=0, atol=0)


# --- memories

TYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)


def additive(dtype: torch.dtype) -> scores.Additive:
    torch.manual_seed(3)
    return scores.Additive(5, 7, 83).to(dtype)


def given_memory(dtype: torch.dtype, *heads: int, m: int = 541) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value; of so many keys that their exponentials are kept."""
    torch.manual_seed(4)
    return tuple(torch.randn(3, *heads, n, d).to(dtype) for n, d in ((2, 7), (m, 5), (m, 11)))


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a memory that is large enough for it."""
    monkeypatch.setattr("dikkat._core.implementations._PACKED", -1)


@pytest.mark.usefixtures("packing")
@TYPES
@kit.each("rows", [[0, 1, 2], [2, 0, 2, 1, 1], [1], []])
def test_a_memory_is_reordered_with_its_exponentials(rows: list[int], dtype: torch.dtype) -> None:
    score, chosen, lens = additive(dtype), torch.tensor(rows, dtype=torch.int64), torch.tensor([541, 13, 0])
    query, key, value = given_memory(dtype)
    query = query[chosen]
    memory = dikkat.prepare(key, value, score=score, valid_lens=lens)
    picked = memory.select(chosen)
    assert memory.packed is not None
    assert picked.packed is not None
    torch.testing.assert_close(picked.packed, memory.packed[chosen], rtol=0, atol=0, equal_nan=True)
    came = dikkat.attend_memory(query, picked, impl="numba")
    made = dikkat.prepare(key[chosen], value[chosen], score=score, valid_lens=lens[chosen])
    assert came.dtype == dtype
    torch.testing.assert_close(came, dikkat.attend_memory(query, made, impl="numba"), rtol=0, atol=0)
    expected = dikkat.attend(query, key[chosen], value[chosen], score=score, valid_lens=lens[chosen], impl="reference")
    torch.testing.assert_close(came, expected)


@pytest.mark.usefixtures("packing")
def test_a_memorys_exponentials_are_what_is_read() -> None:
    query, key, value = given_memory(torch.float32)
    memory = dikkat.prepare(key, value, score=additive(torch.float32))
    assert memory.packed is not None
    other = replace(memory, packed=torch.ones_like(memory.packed))  # keys of 0
    came = dikkat.attend_memory(query, other, impl="numba")
    expected = dikkat.attend(query, 0 * key, value, score=memory.score, impl="reference")
    torch.testing.assert_close(came, expected)
    assert dikkat.prepare(key, value, score=scores.Dot()).packed is None


@TYPES
def test_a_memory_gives_what_attend_gives_and_the_gradients(dtype: torch.dtype) -> None:
    score = additive(dtype)
    query, key, value = given_memory(dtype, 2, m=293)
    leaves = {n: t.requires_grad_() for n, t in (("query", query), ("key", key), ("value", value))}
    lens = torch.tensor([293, 13, 0])
    direct = simple((score, leaves, {"valid_lens": lens}), "numba")
    memory = dikkat.prepare(leaves["key"], leaves["value"], score=score, valid_lens=lens)
    wanted = leaves | dict(score.named_parameters())
    for _ in range(2):  # as a decoder asks again and again
        out = dikkat.attend_memory(leaves["query"], memory, impl="numba")
        up = kit.upstream_of(out).to(dtype)
        grads = torch.autograd.grad((out * up).sum(), list(wanted.values()), retain_graph=True)
        for name, grad in ({"out": out} | dict(zip(wanted, grads, strict=True))).items():
            torch.testing.assert_close(grad, direct[name])
    assert bool((direct["key"] != 0).any())


@pytest.mark.usefixtures("packing")
@TYPES
@pytest.mark.parametrize("restricted", ["none", "mask a head", "bias a head"])
def test_a_memory_that_heads_share(restricted: str, dtype: torch.dtype) -> None:
    score = additive(dtype)
    _, key, value = given_memory(dtype, 1)
    query = given_memory(dtype, 2)[0]
    options: dict[str, Any] = {}
    if restricted == "mask a head":
        options["mask"] = torch.rand(2, 2, 541) < 0.5
        options["mask"][0, :, 17] = False  # hidden from one head, and not from the other
        options["mask"][1, :, 17] = True
        key[:, :, 17], value[:, :, 17] = 30.0, 5.0
    elif restricted == "bias a head":
        options["key_bias"] = torch.randn(2, 541).to(dtype)
        options["key_bias"][0, 17] = -math.inf
    memory = dikkat.prepare(key, value, score=score)
    assert memory.packed is not None
    came = dikkat.attend_memory(query, memory, impl="numba", **options)
    wide = [t.double() for t in (query, key, value)]
    direct = dikkat.attend(query, key, value, score=score, impl="numba", **options)
    torch.testing.assert_close(came, direct, rtol=0, atol=0)
    if dtype != torch.bfloat16:
        options |= {"key_bias": options["key_bias"].double()} if "key_bias" in options else {}
        expected = dikkat.attend(*wide, score=score.double(), impl="reference", **options)
        torch.testing.assert_close(came.double(), expected, rtol=1e-4, atol=1e-5)


# --- choosing


@pytest.mark.parametrize(("case", "size", "chosen"), [
    ("additive", 7, "reference"), ("additive", 131, "numba"), ("gaussian", 7, "reference"), ("gaussian", 293, "numba"),
])  # fmt: skip
def test_auto_takes_the_kernels_for_what_is_large(case: str, size: int, chosen: str) -> None:
    score, leaves, _ = plain_made(case, 13, size, size, 5, torch.float32)
    with kit.record() as ran:
        dikkat.attend(**leaves, score=score)
    assert ran == [chosen]
    assert dikkat.implementations(**leaves, score=score)[0].name == chosen


# --- random shapes


@pytest.mark.usefixtures("packing")
def test_exponentials_of_other_keys_are_not_used() -> None:
    """A memory whose keys were cut, widened, or told apart under vmap since it was made."""
    score = scores.Additive(5, 7, 19)
    query, key, value = torch.randn(3, 2, 7), torch.randn(3, 71, 5), torch.randn(3, 71, 11)
    memory = dikkat.prepare(key, value, score=score)
    cut = replace(memory, key=memory.key[:, :13], value=value[:, :13])
    expected = dikkat.attend(query, key[:, :13], value[:, :13], score=score, impl="reference")
    torch.testing.assert_close(dikkat.attend_memory(query, cut, impl="numba"), expected)
    masks = torch.rand(4, 3, 1, 71) < 0.5
    came = torch.vmap(lambda mask: dikkat.attend_memory(query, memory, mask=mask, impl="numba"))(masks)
    each = [dikkat.attend(query, key, value, score=score, mask=mask, impl="reference") for mask in masks]
    torch.testing.assert_close(came, torch.stack(each))
    wide = replace(memory, score=score.double(), key=memory.key.double(), value=value.double(), writes=None)
    exact = dikkat.attend(query.double(), key.double(), value.double(), score=score, impl="reference")
    # The keys were projected in float32.
    torch.testing.assert_close(dikkat.attend_memory(query.double(), wide, impl="numba"), exact, rtol=1e-5, atol=1e-5)
