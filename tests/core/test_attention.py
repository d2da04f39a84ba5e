"""The front door: what it refuses, what a memory keeps, and how its figures are reached."""

import itertools
import math
import pkgutil
import sys
from typing import Any

import pytest
import torch
from torch.masked import masked_tensor

import dikkat
import kit
from dikkat import scores
from processes import python

Q, K, V = torch.zeros(2, 3, 4), torch.zeros(2, 5, 4), torch.zeros(2, 5, 6)
DOT = scores.Dot()


@kit.each(
    ("change", "error", "message"),
    [
        ({"query": [1.0]}, TypeError, "query: got list; expected a torch.Tensor"),
        ({"query": Q.long()}, TypeError, "query: got dtype torch.int64"),
        ({"query": Q[0, 0]}, ValueError, r"query: got shape \(4,\); expected \(..., length, features\)"),
        ({"query": Q.double()}, TypeError, "key: got dtype torch.float32; expected torch.float64, that of query"),
        ({"value": V.half()}, TypeError, "value: got dtype torch.float16; expected torch.float32, that of key"),
        ({"query": Q[..., :3]}, ValueError, r"got 3 and 4 features after projection by Dot"),
        (
            {"query": torch.zeros(7, 3, 4)},
            ValueError,
            r"query, key, value: got shapes \(7, 3, 4\), \(2, 5, 4\).*that broadcast",
        ),
        ({"value": V[:, :4]}, ValueError, r"value: got 4 rows \(shape \(2, 4, 6\)\); expected 5"),
        ({"score": "dot"}, TypeError, "score: got 'dot'; expected an instance of a dikkat.scores.Score"),
        ({"score": scores.Dot}, TypeError, "score: got Dot; .*call the class to make one"),
        ({"score": scores.Additive(4, 3, 7)}, ValueError, r"query: got 4 features .* expected 3"),
        ({"score": scores.Additive(4, 4, 7).double()}, TypeError, "dtype torch.float32; expected torch.float64"),
        ({"valid_lens": torch.tensor([1, 6])}, ValueError, "valid_lens: got 6; expected 0 to 5"),
        ({"valid_lens": torch.tensor([1, -2])}, ValueError, "valid_lens: got -2; expected 0 to 5"),
        ({"valid_lens": torch.tensor([1.0, 2.0])}, TypeError, "valid_lens: got dtype torch.float32"),
        ({"valid_lens": torch.tensor([1, 2, 3])}, ValueError, r"valid_lens: got shape \(3,\)"),
        ({"valid_lens": torch.ones(2, 5, dtype=torch.int64)}, ValueError, r"expected \(2,\).*\(2, 3\)"),
        ({"mask": torch.ones(2, 3, 5)}, TypeError, "mask: got dtype torch.float32; expected torch.bool"),
        ({"mask": torch.ones(2, 5, 3, dtype=torch.bool)}, ValueError, r"broadcasts to \(2, 3, 5\)"),
        ({"mask": torch.ones(7, 2, 3, 5, dtype=torch.bool)}, ValueError, r"broadcasts to \(2, 3, 5\)"),
        (
            {"mask": torch.ones(2, 5, dtype=torch.bool)},
            ValueError,
            r"every query of a batch element, pass mask\[:, None, :\]",
        ),
        ({"mask": torch.ones(2, 4, dtype=torch.bool)}, ValueError, r"broadcasts to \(2, 3, 5\)$"),
        ({"valid_lens": [1, 2]}, TypeError, r"valid_lens: got list; .* \(convert a list with torch.tensor\)"),
        ({"score": None}, TypeError, "score: got NoneType; expected an instance of a dikkat.scores.Score"),
        ({"causal": 1}, TypeError, "causal: got int"),
        ({"key_bias": torch.zeros(2, 4)}, ValueError, r"key_bias: got shape \(2, 4\)"),
        ({"key_bias": torch.zeros(2, 5, dtype=torch.int64)}, TypeError, "key_bias: got dtype torch.int64"),
        ({"exclude": torch.zeros(2, 3)}, TypeError, "exclude: got dtype torch.float32"),
        ({"exclude": torch.full((2, 3), 5)}, ValueError, "exclude: got 5; expected -1 to 4"),
        ({"exclude": torch.full((2, 4), 0)}, ValueError, r"exclude: got shape \(2, 4\)"),
        ({"dropout": 1.5}, ValueError, "dropout: got 1.5; expected a number from 0 to 1"),
        ({"dropout": math.nan}, ValueError, "dropout: got nan"),
        ({"dropout": "0.5"}, TypeError, "dropout: got str"),
        ({"impl": "fast"}, ValueError, "impl: got 'fast'; expected 'auto'"),
        ({"impl": "sdpa", "return_weights": True}, ValueError, "'sdpa', which cannot run this call: .*show no weights"),
        ({"impl": "sdpa", "score": scores.Gaussian()}, ValueError, "pair function is 'distance'"),
        ({"key_bais": None}, TypeError, "key_bais"),
    ],
)
def test_errors_say_what_came_and_what_is_allowed(change: dict[str, Any], error: type[Exception], message: str) -> None:
    given: dict[str, Any] = {"query": Q, "key": K, "value": V, "score": DOT} | change
    with pytest.raises(error, match=message):
        dikkat.attend(**given)


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
@pytest.mark.parametrize("name", ["query", "key", "value", "valid_lens", "mask", "key_bias"])
def test_a_masked_tensor_is_refused_by_name(name: str) -> None:
    given: dict[str, Any] = {"query": Q, "key": K, "value": V, "valid_lens": torch.tensor([1, 2])}
    given |= {"mask": torch.ones(2, 3, 5, dtype=torch.bool), "key_bias": torch.zeros(2, 5)}
    given[name] = masked_tensor(given[name], torch.ones_like(given[name], dtype=torch.bool))
    with pytest.raises(TypeError, match=rf"^{name}: got a MaskedTensor; expected its get_data\(\)"):
        dikkat.attend(**given, score=DOT)


@pytest.mark.parametrize("kind", kit.NOT_DENSE)
def test_tensors_that_are_not_dense_are_refused_by_name(kind: str) -> None:
    make, came = kit.not_dense(kind)
    for name, layer in itertools.product(
        ("query", "key", "value"), (lambda *a: dikkat.attend(*a, score=DOT), dikkat.MultiHeadAttention(4, 2))
    ):
        given = {"query": Q, "key": K, "value": K}
        given[name] = make(given[name])
        with pytest.raises(TypeError, match=f"^{name}: {came}"):
            layer(*given.values())
    with pytest.raises(TypeError, match=f"^key: {came}"):
        dikkat.attention_weights(Q, make(K), score=DOT)
    with pytest.raises(TypeError, match=f"^value: {came}"):
        dikkat.prepare(K, make(V), score=DOT)
    with pytest.raises(TypeError, match=f"^query: {came}"):
        dikkat.attend_memory(make(Q), dikkat.prepare(K, V, score=DOT))
    with pytest.raises(TypeError, match=f"^scores: {came}"):
        dikkat.masked_softmax(make(Q))
    state = dikkat.attention_state(Q, K, V, score=DOT)
    with pytest.raises(TypeError, match=rf"^b\.mean: {came}"):
        dikkat.merge(state, dikkat.State(make(state.mean), state.lse))


@pytest.mark.parametrize("limit", ["valid_lens", "mask", "key_bias", "exclude"])
def test_sparse_restrictions_are_refused_by_name(limit: str) -> None:
    limits = {
        "valid_lens": torch.tensor([1, 2]),
        "mask": torch.ones(3, 5, dtype=torch.bool),
        "key_bias": torch.zeros(2, 5),
        "exclude": torch.zeros(2, 3, dtype=torch.int64),
    }
    with pytest.raises(TypeError, match=f"^{limit}: got a tensor with layout torch.sparse_coo; expected a dense"):
        dikkat.attend(Q, K, V, score=DOT, **{limit: limits[limit].to_sparse()})  # type: ignore[call-overload]


def test_a_mask_of_keys_is_told_to_have_all_its_dimensions() -> None:
    heads, mask = torch.zeros(2, 7, 3, 4), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"mask\[:, None, None, :\]"):
        dikkat.attend(heads, heads, heads, score=DOT, mask=mask)
    with pytest.raises(ValueError, match=r"mask\[:, None, None, :\]"):
        dikkat.MultiHeadAttention(4, 2)(heads[:, 0], heads[:, 0], heads[:, 0], mask=mask)


def test_errors_of_memories_and_states() -> None:
    with pytest.raises(TypeError, match="memory: got Tensor; expected a Memory"):
        dikkat.attend_memory(Q, K)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"rows: got a memory of keys .*, without a batch dimension"):
        dikkat.prepare(K[0], V[0], score=DOT).select(torch.tensor([0]))
    with pytest.raises(ValueError, match=r"valid_lens: got shape \(3,\)"):
        dikkat.prepare(K, V, score=DOT, valid_lens=torch.tensor([1, 2, 3]))
    state = dikkat.attention_state(Q, K, V, score=DOT)
    with pytest.raises(ValueError, match=r"b: got mean \(1, 3, 6\); expected \(2, 3, 6\)"):
        dikkat.merge(state, dikkat.State(state.mean[:1], state.lse[:1]))
    with pytest.raises(TypeError, match="b: got Tensor; expected a State"):
        dikkat.merge(state, state.mean)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a: got mean \(2, 3, 6\) and lse \(2,\)"):
        dikkat.merge(dikkat.State(state.mean, state.lse[:, 0]), state)
    with pytest.raises(TypeError, match=r"a\.mean: got int; expected a torch\.Tensor"):
        dikkat.merge(dikkat.State(1, 2), state)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"b\.lse: got NoneType"):
        dikkat.merge(state, dikkat.State(state.mean, None))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"b\.tail: got float"):
        dikkat.merge(state, dikkat.State(state.mean, state.lse, 0.0))  # type: ignore[arg-type]


@kit.each("impl", ["auto", "reference", "chunked"])
@kit.each("case", kit.CASES)
def test_a_memory_gives_what_attend_gives(case: str, impl: str) -> None:
    made = kit.call(case, "lengths")
    memory = dikkat.prepare(made.key, made.value, score=made.score, **made.restricted)
    came, weights = dikkat.attend_memory(made.query, memory, return_weights=True, impl=impl)
    out, _, expected = kit.twin(made)
    torch.testing.assert_close((came, weights), (out, expected), rtol=1e-12, atol=1e-12)
    upstream = kit.upstream_of(out)
    exact = kit.gradients(made, out, upstream)
    for name, grad in kit.gradients(made, came, upstream).items():
        torch.testing.assert_close(grad, exact[name], rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_a_memory_projects_its_keys_once() -> None:
    calls = []
    score = scores.Additive(4, 4, 7)
    score.W_k.register_forward_hook(lambda *_: calls.append(1))
    memory = dikkat.prepare(K, V, score=score)
    for _ in range(3):
        dikkat.attend_memory(Q, memory.select(torch.tensor([1, 0])))
    assert calls == [1]


def test_a_selected_memory_is_that_of_the_selected_rows() -> None:
    made = kit.call("additive", "lengths")
    rows = torch.tensor([1, 0, 0, 1, 1])
    memory = dikkat.prepare(made.key, made.value, score=made.score, **made.restricted).select(rows)
    came = dikkat.attend_memory(made.query[rows], memory)
    torch.testing.assert_close(came, made.run()[rows], rtol=1e-12, atol=1e-12)


def test_a_memory_whose_values_alone_have_a_batch_can_be_selected_from() -> None:
    memory = dikkat.prepare(K[:1], V + torch.arange(2.0)[:, None, None], score=DOT, valid_lens=torch.tensor([1, 5]))
    came = dikkat.attend_memory(Q, memory.select(torch.tensor([1, 1])))
    torch.testing.assert_close(came, torch.ones(2, 3, 6))


@pytest.mark.parametrize(
    ("own", "query"),
    [((), ()), ((), (4,)), ((1,), (4,)), ((2,), (2,)), ((2,), (2, 2)), ((2,), (3, 2)), ((2, 1), (2, 3))],
)
def test_the_lengths_of_a_memory_are_those_of_its_own_sentences(own: tuple[int, ...], query: tuple[int, ...]) -> None:
    """A beam beside one sentence, or several queries in a dimension that the memory has not."""
    torch.manual_seed(0)
    key, value = torch.randn(*own, 5, 4), torch.randn(*own, 5, 3)
    lens = torch.tensor([1, 4])[: own[0]] if own else torch.tensor(3)
    asked = torch.randn(*query, 3, 4)
    memory = dikkat.prepare(key, value, score=DOT, valid_lens=lens)
    aligned = lens.reshape(lens.shape + (1,) * (len(own) - lens.ndim))
    mask = (torch.arange(5) < aligned[..., None])[..., None, :]
    expected = dikkat.attend(asked, key, value, score=DOT, mask=mask)
    torch.testing.assert_close(dikkat.attend_memory(asked, memory), expected)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([0, 1], TypeError, "rows: got list"),
        (torch.tensor([True, False]), TypeError, "rows: got dtype torch.bool"),
        (torch.tensor(1), ValueError, r"rows: got shape \(\)"),
        (torch.tensor([0, 2]), ValueError, "rows: got 0 to 2; expected 0 to 1"),
        (torch.tensor([-1]), ValueError, "rows: got -1 to -1; expected 0 to 1"),
    ],
)
def test_rows_that_cannot_be_selected(rows: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dikkat.prepare(K, V, score=DOT).select(rows)


def test_a_memory_takes_no_length_a_query() -> None:
    with pytest.raises(ValueError, match="for one length per query, pass a mask to attend_memory"):
        dikkat.prepare(K, V, score=DOT, valid_lens=torch.tensor([[1], [2]]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32, torch.int64], ids=str)
def test_lengths_of_any_integer_type(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    value = torch.randn(2, 5, 6)
    out = dikkat.attend(Q, K, value, score=scores.Average(), valid_lens=torch.tensor([2, 0]).to(dtype))
    torch.testing.assert_close(out[0], value[0, :2].mean(0).expand(3, 6))
    assert bool((out[1] == 0).all())


def test_a_score_that_does_not_fit_is_named() -> None:
    def broken(**attributes: Any) -> scores.Score:
        return type("Own", (scores.Score,), attributes)()

    cases: list[tuple[scores.Score, type[Exception], str]] = [
        (broken(), TypeError, "Own.pair = None; expected 'inner', 'additive', 'distance'"),
        (broken(pair="dot"), TypeError, "Own.pair = 'dot'"),
        (broken(pair="distance", profile="cosine"), TypeError, "Own.profile = 'cosine'"),
        (broken(pair="additive"), TypeError, "got Own of pair 'additive' and no pair_weight; expected one"),
        (
            broken(pair="inner", pair_weight=lambda self: torch.ones(4)),
            TypeError,
            "got Own of pair 'inner' and a pair_weight; .* only for 'additive'",
        ),
        (
            broken(pair="additive", pair_weight=lambda self: torch.ones(3)),
            ValueError,
            r"pair_weight of Own with shape \(3,\)",
        ),
        (
            broken(pair="inner", project_key=lambda self, key: key[:, 1:]),
            ValueError,
            "got 4 rows from project_key of Own",
        ),
    ]
    for score, error, message in cases:
        with pytest.raises(error, match=message):
            dikkat.attend(Q, K, V, score=score)


def test_a_memory_and_further_restrictions_intersect() -> None:
    made = kit.call("gaussian", "lengths")
    memory = dikkat.prepare(made.key, made.value, score=made.score, **made.restricted)
    mask = torch.rand(kit.BATCH, 1, kit.QUERIES, kit.KEYS) < 0.5
    bias = torch.randn(kit.KEYS, dtype=torch.float64)
    exclude = torch.full((kit.QUERIES,), 1)
    more: dict[str, Any] = {"mask": mask, "key_bias": bias, "exclude": exclude, "causal": True}
    both = kit.replace(made, restricted=made.restricted | more)
    torch.testing.assert_close(
        dikkat.attend_memory(made.query, memory, **more), kit.twin(both)[0], rtol=1e-12, atol=1e-12
    )


def test_a_memory_hides_what_is_hidden_from_its_step() -> None:
    """A mask at a step may hide a key that the memory's lengths do not."""
    key = K.clone()
    key[:, 2] = math.nan
    value = V.clone()
    value[:, 2] = math.nan
    memory = dikkat.prepare(key, value, score=DOT)
    mask = torch.arange(5) != 2
    assert bool((dikkat.attend_memory(Q, memory, mask=mask.expand(3, 5)) == 0).all())


def test_the_log_sum_exp_is_that_of_the_true_score() -> None:
    """Vector sum: the query's share cancels in the weights, and is there in the log-sum-exp."""
    score = scores.VectorSum(3).double()
    q, k, v = (torch.randn(n, 3, dtype=torch.float64) for n in (2, 5, 5))
    dense = (q[:, None] + k[None]) @ score.w_v.weight[0]
    state = dikkat.attention_state(q, k, v, score=score)
    torch.testing.assert_close(state.lse, dense.logsumexp(-1), rtol=1e-12, atol=1e-12)


def test_a_compact_kernel_with_nothing_in_reach_is_a_row_without_a_key() -> None:
    q, k, v = torch.tensor([[0.0], [100.0]]), torch.tensor([[0.5], [1.0]]), torch.tensor([[3.0], [5.0]])
    for score in (scores.Boxcar(2.0), scores.Epanechnikov(2.0), scores.Triangular(2.0)):
        for impl in ("reference", "chunked"):
            state = dikkat.attention_state(q, k, v, score=score, impl=impl)
            assert state.mean[1].item() == 0
            assert state.lse[1].item() == -math.inf
            assert 3 < state.mean[0].item() < 5


PEAK = """
import sys, torch, dikkat
from pathlib import Path
torch.set_num_threads(1)
kind, impl, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
score = dikkat.scores.ScaledDot() if kind == "inner" else dikkat.scores.Gaussian()
def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
def run(n):
    q, k, v = (torch.randn(1, 1, n, 64, requires_grad=True) for _ in range(3))
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew: it is the parent's at first
    dikkat.attend(q, k, v, score=score, impl=impl).sum().backward()
    return memory("VmHWM") - before
run(128)
print(run(length))
"""


def peak_mib(kind: str, impl: str, length: int) -> float:
    return int(python(PEAK, kind, impl, length).stdout) / 1024


def test_chunked_needs_linear_memory() -> None:
    """Figure: n = m = 8,192, d = 64, forward and backward, at most 128 MiB (an n × m tensor alone is 256 MiB)."""
    assert peak_mib("inner", "chunked", 8_192) <= 128


def test_the_measure_of_memory_sees_a_pair_tensor() -> None:
    assert peak_mib("inner", "reference", 4_096) >= 64  # 4,096² floats
    assert peak_mib("distance", "chunked", 1_024) <= 128  # where 1,024² · 64 floats are 256 MiB


def test_importing_loads_torch_and_numpy_alone() -> None:
    """Nothing heavy; the figure for the time is in benchmarks/attention/core.py."""
    code = "import sys, torch, numpy; before = set(sys.modules); import dikkat; print(*(set(sys.modules) - before))"
    loaded = {name.split(".")[0] for name in python(code).stdout.split()}
    assert loaded - set(sys.stdlib_module_names) <= {"dikkat", "torch", "numpy"}


def test_no_submodule_has_the_name_of_a_public_function() -> None:
    """Importing a submodule sets the package's attribute of its name."""
    submodules = {module.name for module in pkgutil.iter_modules(dikkat.__path__)}
    assert submodules & set(dikkat.__all__) == {"distributed", "scores", "show"}  # public as they are
    assert callable(dikkat.implementations)


@kit.each("impl", ["auto", "reference", "chunked", "sdpa", "numba"])
@kit.each("size", [5, 131])
def test_writing_to_an_output_leaves_gradients_right_or_is_refused(impl: str, size: int) -> None:
    torch.manual_seed(0)
    for score in (scores.ScaledDot(), *([] if impl == "sdpa" else [scores.Gaussian()])):
        for _ in range(2):
            x, y = (torch.randn(2, size, 7, requires_grad=True) for _ in range(2))
            (right,) = torch.autograd.grad((dikkat.attend(x, y, y, score=score, impl="reference") + x).sum(), x)
            output = dikkat.attend(x, y, y, score=score, impl=impl)
            output += x
            try:
                (came,) = torch.autograd.grad(output.sum(), x)
            except RuntimeError as error:
                assert "modified by an inplace operation" in str(error)  # noqa: PT017
            else:
                torch.testing.assert_close(came, right, rtol=1e-4, atol=1e-5)
