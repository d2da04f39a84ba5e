"""Sequences end to end: each as if it were alone, in every score and implementation."""

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import dikkat
import kit
from dikkat import scores
from dikkat._core.dispatch import Program
from dikkat._core.operators import _flat
from dikkat._core.validation import Requested, problem_of_sequences

# Empty sequences of either kind, one of a single row, and some that a task's rows and a tile's keys do not hold.
QUERIES, KEYS = (5, 0, 41, 1, 3, 2), (7, 3, 43, 0, 2, 19)
WAYS = ["reference", "chunked", "chunked, small tiles", "numba"]
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "window": {"window": (2, 1)},
    "causal window": {"causal": True, "window": (3, None)},
    "bias": {"key_bias": True},
}


def offsets(lengths: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def call(case: str, option: str, dtype: torch.dtype, *, heads: tuple[int, ...] = (3,)) -> tuple[Any, dict[str, Tensor]]:
    """A score and operands that float64 and `dtype` hold alike, as leaves."""
    torch.manual_seed(31 * list(kit.CASES).index(case) + list(OPTIONS).index(option))
    made = kit.CASES[case]
    shapes = {
        "query": (*heads, sum(QUERIES), made.query_features),
        "key": (*heads, sum(KEYS), kit.FEATURES),
        "value": (*[1 for _ in heads], sum(KEYS), kit.VALUES),
    }
    if "key_bias" in OPTIONS[option]:
        shapes["key_bias"] = (*heads, sum(KEYS))
    operands = {name: torch.randn(shape).to(torch.bfloat16).to(dtype) for name, shape in shapes.items()}
    if "key_bias" in operands:
        operands["key_bias"][..., 1] = -math.inf
    score = made.make()
    with torch.no_grad():
        for parameter in score.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return score.to(dtype), {name: operand.requires_grad_() for name, operand in operands.items()}


def results(score: Any, operands: dict[str, Tensor], option: str, way: str | None, **more: Any) -> dict[str, Any]:
    """Output, weights, log-sum-exp and gradients: of one call, or with no way of plain calls of each sequence alone."""
    plain = {name: value for name, value in OPTIONS[option].items() if name != "key_bias"} | more
    given = [operands[name] for name in ("query", "key", "value")]
    if way is None:
        parts = []
        for (q0, q1), (k0, k1) in zip(pairwise(offsets(QUERIES)), pairwise(offsets(KEYS)), strict=True):
            own = dict(plain)
            if "key_bias" in operands:
                own["key_bias"] = operands["key_bias"][..., k0:k1]
            cut = given[0][..., q0:q1, :], given[1][..., k0:k1, :], given[2][..., k0:k1, :]
            lse = dikkat.attention_state(*cut, score=score, **own).lse
            parts.append((*dikkat.attend(*cut, score=score, return_weights=True, **own), lse))
        outs, weights, lses = zip(*parts, strict=True)
        out, lse = torch.cat(outs, -2), torch.cat(lses, -1)
    else:
        if "key_bias" in operands:
            plain["key_bias"] = operands["key_bias"]
        with kit.way(way) as impl:
            places = offsets(QUERIES, torch.int32), offsets(KEYS)
            out, weights = dikkat.attend_ragged(*given, *places, score=score, impl=impl, return_weights=True, **plain)
            lse = dikkat.ragged_state(*given, *places, score=score, impl=impl, **plain).lse
    loss = (out * kit.upstream_of(out)).sum() + lse.masked_fill(lse == -math.inf, 0.0).sum()
    loss = loss + sum((w.square() * (1 + i)).sum() for i, w in enumerate(weights))
    leaves = operands | dict(score.named_parameters())
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    found = {f"gradient of {n}": torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(leaves, grads)}  # noqa: B905
    return found | {"output": out, "lse": lse} | {f"weights {i}": w for i, w in enumerate(weights)}


@kit.each(("case", "option", "way"), kit.pairwise({"case": [*kit.CASES], "option": [*OPTIONS], "way": WAYS}))
def test_each_sequence_is_as_if_it_were_alone(case: str, option: str, way: str) -> None:
    score, operands = call(case, option, torch.float64)
    expected = results(score, operands, option, None, impl="reference")
    for name, came in results(score, operands, option, way).items():
        torch.testing.assert_close(came, expected[name], rtol=1e-9, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@kit.each(("case", "dtype", "way"), kit.pairwise({"case": kit.KINDS, "dtype": kit.DTYPES[1:], "way": WAYS}))
def test_errors_are_those_of_plain_calls(case: str, dtype: torch.dtype, way: str) -> None:
    """At most twice those of plain PyTorch on each sequence in the same dtype, and some of a number's last digit."""
    exact = results(*call(case, "causal", torch.float64), "causal", None, impl="reference")
    plain = results(*call(case, "causal", dtype), "causal", None, impl="reference")
    for name, came in results(*call(case, "causal", dtype), "causal", way).items():
        if came.numel():
            away = [(each.double() - exact[name]).nan_to_num(0, 0, 0).abs().max() for each in (came, plain[name])]
            largest = exact[name].nan_to_num(0, 0, 0).abs().max()
            assert came.dtype == plain[name].dtype
            assert away[0] <= 2 * away[1] + 8 * torch.finfo(came.dtype).eps * (1 + largest), (name, *away)


@kit.each("way", WAYS)
@kit.each("case", kit.KINDS)
def test_what_a_sequence_holds_has_no_effect_on_others(case: str, way: str) -> None:
    """Nor have keys without queries, and queries without keys."""
    score, operands = call(case, "none", torch.float64)
    with torch.no_grad():
        clean = [each.clone() for each in operands.values()]
        operands["query"][:, 46] = math.nan  # the sequence without keys
        for each in (operands["key"], operands["value"]):
            each[:, 7:10] = math.inf  # the sequence without queries
            each[:, -1] = math.nan
    places, others = (offsets(QUERIES), offsets(KEYS)), slice(0, sum(QUERIES) - QUERIES[-1])
    given, found = list(operands.values()), []
    with kit.way(way) as impl:
        for tensors in (given, [each.requires_grad_() for each in clean]):
            out = dikkat.attend_ragged(*tensors, *places, score=score, impl=impl)
            leaves = [*tensors, *score.parameters()]
            grads = torch.autograd.grad(out[:, others].square().sum(), leaves, allow_unused=True)
            found.append([out[:, others], *(g for g in grads[:3] if g is not None)])
    for broken, whole in zip(*found, strict=True):
        cut = slice(0, broken.shape[-2] - (0 if broken.shape[-2] == others.stop else KEYS[-1]))
        assert torch.isfinite(broken[:, cut][:, : others.stop]).all()
        torch.testing.assert_close(broken[:, : min(cut.stop, others.stop)], whole[:, : min(cut.stop, others.stop)])


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 37), st.integers(0, 37)), max_size=7), st.integers(0, 3), st.booleans())
def test_any_lengths(lengths: list[tuple[int, int]], kind: int, causal: bool) -> None:
    queries, keys = zip(*lengths, strict=True) if lengths else ((), ())
    torch.manual_seed(len(lengths))
    score = kit.CASES[kit.KINDS[kind]].make().to(torch.float64)
    size = kit.CASES[kit.KINDS[kind]].query_features
    given = [
        torch.randn(sum(n), d, dtype=torch.float64, requires_grad=True)
        for n, d in ((queries, size), (keys, kit.FEATURES), (keys, 5))
    ]
    found = []
    for impl in ("reference", "chunked", "numba"):
        out = dikkat.attend_ragged(*given, offsets(queries), offsets(keys), score=score, causal=causal, impl=impl)
        found.append([out, *torch.autograd.grad(out.square().sum(), given)])
    for others in found[1:]:
        torch.testing.assert_close(others, found[0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", kit.KINDS)
def test_dropout_is_the_same_in_all_implementations(case: str) -> None:
    score, operands = call(case, "causal", torch.float64)
    found = []
    for way in WAYS:
        torch.manual_seed(5)
        found.append(results(score, operands, "causal", way, dropout=0.4))
    for others in found[1:]:
        for name, came in others.items():
            torch.testing.assert_close(came, found[0][name], rtol=1e-9, atol=1e-10)
    heads, out = found[0]["weights 2"], found[0]["output"]
    assert not torch.equal(out[0], out[1])
    assert heads.sum(-1).allclose(torch.ones(()).double())


def test_states_over_other_keys_merge() -> None:
    score, operands = call("additive", "none", torch.float64)
    query, key, value = operands.values()
    cut, rest = (3, 1, 20, 0, 1, 19), (4, 2, 23, 0, 1, 0)
    owner = torch.cat([torch.tensor([0] * a + [1] * b) for a, b in zip(cut, rest, strict=True)])
    parts = [
        dikkat.ragged_state(
            query, key[:, owner == i], value[:, owner == i], offsets(QUERIES), offsets(lengths), score=score
        )
        for i, lengths in enumerate((cut, rest))
    ]
    whole = dikkat.attend_ragged(query, key, value, offsets(QUERIES), offsets(KEYS), score=score)
    torch.testing.assert_close(dikkat.merge(*parts).mean, whole)


@pytest.mark.parametrize("impl", ["chunked", "numba"])
@pytest.mark.parametrize("case", kit.KINDS)
def test_it_is_an_operator(case: str, impl: str) -> None:
    score, operands = call(case, "bias", torch.float64, heads=(2,))
    places = offsets(QUERIES), offsets(KEYS)

    def run(*given: Tensor) -> Tensor:
        return dikkat.attend_ragged(*given[:3], *places, score=score, key_bias=given[3], impl=impl)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    given = list(operands.values())
    leaves = [*given, *score.parameters()]
    for ours, theirs in zip(
        *(torch.autograd.grad(f(*given).square().sum(), leaves, allow_unused=True) for f in (run, compiled)),
        strict=True,
    ):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)
    problem = problem_of_sequences(*given[:3], *places, score, Requested(), False, None, given[3])
    flat = [t.detach().requires_grad_(t.requires_grad) if isinstance(t, Tensor) else t for t in _flat(problem)]
    torch.library.opcheck(getattr(torch.ops.dikkat, impl).default, flat)


@kit.each("way", WAYS)
@kit.each("case", kit.KINDS)
def test_gradients_are_those_of_differences(case: str, way: str) -> None:
    torch.manual_seed(3)
    score = kit.CASES[case].make().to(torch.float64)
    shapes = ((5, kit.CASES[case].query_features), (7, kit.FEATURES), (7, 3))
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    with kit.way(way) as impl:
        torch.autograd.gradcheck(
            lambda *a: dikkat.attend_ragged(*a, offsets((2, 0, 3)), offsets((4, 1, 2)), score=score, impl=impl), given
        )


X = torch.zeros(5, 4)


@kit.each(
    ("change", "error", "message"),
    [
        ({"query_offsets": torch.tensor([0, 3, 2, 5])}, ValueError, "query_offsets: got 3 and then 2, at 2; expected"),
        ({"query_offsets": torch.tensor([0, 2**63 - 1, -2, 5])}, ValueError, f"got {2**63 - 1} and then -2, at 2"),
        ({"query_offsets": torch.tensor([1, 5])}, ValueError, "query_offsets: got 1 as the first offset; expected 0"),
        ({"query_offsets": torch.tensor([0, 4])}, ValueError, "query_offsets: got 4 as the last offset; expected 5"),
        ({"query_offsets": torch.tensor([0, 6])}, ValueError, "query_offsets: got 6 as the last offset; expected 5"),
        ({"query_offsets": torch.tensor([0.0, 5.0])}, TypeError, "query_offsets: got dtype torch.float32"),
        ({"query_offsets": torch.tensor([False, True])}, TypeError, "query_offsets: got dtype torch.bool"),
        ({"query_offsets": [0, 5]}, TypeError, "query_offsets: got list"),
        ({"query_offsets": torch.tensor([[0, 5]])}, ValueError, r"query_offsets: got shape \(1, 2\)"),
        ({"query_offsets": torch.tensor([], dtype=torch.int64)}, ValueError, r"query_offsets: got shape \(0,\)"),
        ({"query_offsets": torch.tensor([0, 5], device="meta")}, ValueError, "query_offsets: got a tensor on meta"),
        ({"key_offsets": torch.tensor([0, 2, 5])}, ValueError, r"key_offsets: got shape \(3,\); expected \(2,\)"),
        ({"key_offsets": torch.tensor([0, 2**62])}, ValueError, f"key_offsets: got {2**62} as the last offset"),
        ({"key_offsets": torch.tensor([-1, 5])}, ValueError, "key_offsets: got -1 as the first offset; expected 0"),
        ({"window": (1, -1)}, ValueError, "window: got -1"),
        ({"key_bias": torch.zeros(4)}, ValueError, r"key_bias: got shape \(4,\)"),
        ({"impl": "sdpa"}, ValueError, "'sdpa', which cannot run this call: .*would need an n × m mask"),
        ({"impl": "numba-few"}, ValueError, "'numba-few', which cannot run this call"),
        ({"causal": 1}, TypeError, "causal: got int; expected True or False"),
    ],
)
def test_errors_say_what_came(change: dict[str, Any], error: type[Exception], message: str) -> None:
    given: dict[str, Any] = {"query": X, "key": X, "value": X, "query_offsets": torch.tensor([0, 5])}
    with pytest.raises(error, match=message):
        dikkat.attend_ragged(**given | {"score": scores.Dot()} | change)


@pytest.mark.parametrize("impl", ["reference", "chunked", "numba"])
def test_compiled_calls_read_no_row_that_wrong_offsets_name(impl: str) -> None:
    """PyTorch cannot read the offsets of a compiled call, so nothing checks them: they are cut to the rows."""
    x = torch.randn(5, 4)
    compiled = torch.compile(
        lambda places: dikkat.attend_ragged(x, x, x, places, score=scores.Dot(), impl=impl), backend="aot_eager"
    )
    expected = torch.cat([dikkat.attend(rows, rows, rows, score=scores.Dot()) for rows in (x[:2], x[2:])])
    torch.testing.assert_close(compiled(torch.tensor([0, 2, 5])), expected)
    torch.testing.assert_close(compiled(torch.tensor([0, 2, 7])), expected)
    for wrong in ([0, 9, 5], [-3, 2, 5], [0, 2**62, -(2**62)]):
        assert torch.isfinite(compiled(torch.tensor(wrong))).all()


def test_the_first_calls_of_a_thread_may_be_compiled() -> None:
    x = torch.randn(5, 4)
    compiled = torch.compile(
        lambda: dikkat.attend_ragged(x, x, x, offsets((2, 3)), score=scores.Dot(), impl="reference"),
        backend="aot_eager",
    )
    with ThreadPoolExecutor(1) as pool:
        result, again = (pool.submit(compiled).result() for _ in range(2))
    parts = [torch.nn.functional.scaled_dot_product_attention(*3 * [rows], scale=1.0) for rows in (x[:2], x[2:])]
    torch.testing.assert_close(result, torch.cat(parts))
    assert torch.equal(again, result)


def test_a_million_sequences_of_one_row() -> None:
    value = torch.randn(1_000_000, 2)
    out = dikkat.attend_ragged(value, value, value, torch.arange(1_000_001), score=scores.Dot())
    assert torch.equal(out, value)


@pytest.mark.parametrize("heads", [None, 3])
def test_nested_tensors_go_in_and_come_out(heads: int | None) -> None:
    lengths = (5, 1, 17)
    shape = (sum(lengths), 4) if heads is None else (sum(lengths), heads, 4)
    given = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    nested = [torch.nested.nested_tensor_from_jagged(t, offsets(lengths)) for t in given]
    if heads is not None:
        nested = [t.transpose(1, 2) for t in nested]
    out, weights = dikkat.attend(*nested, score=scores.ScaledDot(), causal=True, return_weights=True)
    assert out.is_nested
    assert out.shape[0] == len(lengths)
    assert [w.shape[-1] for w in weights] == [*lengths]
    (out.values().sum()).backward()
    flat = [t.detach() if heads is None else t.detach().transpose(0, 1) for t in given]
    flat = [t.requires_grad_() for t in flat]
    plain = dikkat.attend_ragged(*flat, offsets(lengths), score=scores.ScaledDot(), causal=True)
    torch.testing.assert_close(out.values(), plain)
    plain.sum().backward()
    for own, other in zip(given, flat, strict=True):
        assert own.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(own.grad, other.grad if heads is None else other.grad.transpose(0, 1))
    listed = dikkat.implementations(*nested, score=scores.ScaledDot())
    assert {i.name for i in listed if i.runs} == {"numba", "chunked", "reference"}


def test_nested_tensors_that_are_refused() -> None:
    dot = scores.Dot()
    whole = torch.nested.nested_tensor_from_jagged(torch.randn(5, 4), torch.tensor([0, 2, 5]))
    other = torch.nested.nested_tensor_from_jagged(torch.randn(5, 4), torch.tensor([0, 3, 5]))
    holes = torch.nested.narrow(
        torch.randn(2, 5, 4), 1, torch.tensor([0, 1]), torch.tensor([2, 3]), layout=torch.jagged
    )
    with pytest.raises(ValueError, match="key: got a nested tensor with holes"):
        dikkat.attend(whole, holes, holes, score=dot)
    with pytest.raises(ValueError, match="value: got other lengths"):
        dikkat.attend(whole, whole, other, score=dot)
    with pytest.raises(ValueError, match="query: got a nested tensor of shape"):
        dikkat.attend(*[whole.transpose(1, 2)] * 3, score=dot)
    with pytest.raises(TypeError, match="mask: got a value with nested tensors"):
        dikkat.attend(whole, whole, whole, score=dot, mask=torch.ones(1, 1, dtype=torch.bool))


def test_a_recording_sees_each_sequence() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return dikkat.attend_ragged(x, x, x, torch.tensor([0, 2, 5]), score=scores.Dot(), impl=self.impl)

    layer, x = Layer(), torch.randn(5, 4)
    for layer.impl in ("reference", "numba"):
        _, weights = dikkat.attend_ragged(x, x, x, torch.tensor([0, 2, 5]), score=scores.Dot(), return_weights=True)
        with torch.no_grad(), dikkat.record(layer, weights=True) as trace:
            layer(x)
        came = [seen.weights for _, _, seen in trace]
        torch.testing.assert_close(came, weights)


def test_packed_sequences_are_computed_tile_by_tile() -> None:
    """A call as large as this one would fill 40 GB with the scores of all pairs."""
    lengths = (100_000,)
    problem = problem_of_sequences(
        *[torch.zeros(100_000, 4)] * 3, *[offsets(lengths)] * 2, scores.Dot(), Requested(), False, None, None
    )
    assert Program.of(problem).name == "numba"


@pytest.mark.parametrize("case", ["scaled dot", "gaussian"])
def test_on_the_meta_device(case: str) -> None:
    score, x = kit.CASES[case].make().to("meta"), torch.empty(3, 7, 4, device="meta", requires_grad=True)
    offsets = torch.tensor([0, 3, 7], device="meta")
    out = dikkat.attend_ragged(x, x, x, offsets, score=score)
    assert (out.shape, out.device.type) == ((3, 7, 4), "meta")
    assert torch.autograd.grad(out.sum(), x)[0].shape == x.shape
    assert dikkat.ragged_state(x, x, x, offsets, score=score).lse.shape == (3, 7)
    with pytest.raises(ValueError, match="return_weights: got True on meta"):
        dikkat.attend_ragged(x, x, x, offsets, score=score, return_weights=True)
