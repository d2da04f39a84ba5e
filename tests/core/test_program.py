"""Programs: which calls run those of earlier calls, and that they come to the same bits as the first."""

import gc
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import dikkat
import kit
from dikkat import scores
from dikkat._core import dispatch

SCORES: dict[str, Any] = {
    "average": scores.Average,
    "dot": scores.Dot,
    "scaled dot": scores.ScaledDot,
    "bilinear": lambda: scores.Bilinear(7, 7),
    "cosine": scores.Cosine,
    "vector sum": lambda: scores.VectorSum(7),
    "additive": lambda: scores.Additive(7, 7, 13),
    "gaussian": lambda: scores.Gaussian(1.3, learnable=True),
}
# Small enough for plain products, and large enough for fused kernels; of few queries, for their own kernel.
SHAPES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "small": ((2,), 3, 5), "one": ((1,), 3, 5), "few": ((11,), 3, 2**11), "heads": ((2, 3), 5, 11),
    "large": ((5,), 67, 131),
}  # fmt: skip
RESTRICTIONS = ["none", "all", "alike", "some", "by row"]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call was run by the program of an earlier one."""
    monkeypatch.setattr(dispatch, "_PROGRAMS", {})
    run, again, found, this = dispatch.run_call, dispatch.Program.run_on_cpu, [], threading.local()

    def ran(*given: Any, **more: Any) -> Any:
        this.known = False
        result = run(*given, **more)
        found.append(this.known)
        return result

    def ran_again(self: dispatch.Program, *given: Any, **more: Any) -> Any:
        came = again(self, *given, **more)
        this.known = came is not None
        return came

    monkeypatch.setattr(dispatch, "run_call", ran)
    monkeypatch.setattr(dispatch.Program, "run_on_cpu", ran_again)
    return found


def lengths(kind: str, batch: int, queries: int, keys: int) -> Tensor | None:
    if kind == "none":
        return None
    if kind == "all":
        return torch.full((batch,), keys)
    if kind == "alike":
        return torch.full((batch,), keys - 2)
    if kind == "some":
        return torch.randint(1, keys - 1, (batch,))
    return torch.randint(1, keys + 1, (batch, queries))


def run(tensors: list[Tensor], score: scores.Score, lens: Tensor | None, weights: bool, record: bool) -> list[Tensor]:
    leaves = [t.clone().requires_grad_(record) for t in tensors]
    came = dikkat.attend(*leaves, score=score, valid_lens=lens, return_weights=weights)
    found = list(came) if isinstance(came, tuple) else [came]
    if record:
        reached = [t for t in found if t.requires_grad]  # no operand moves an average's weights
        upstream = [torch.cos(torch.arange(t.numel(), dtype=t.dtype)).view_as(t) for t in reached]
        grads = torch.autograd.grad(reached, [*leaves, *score.parameters()], upstream, allow_unused=True)
        found += [g for g in grads if g is not None]
    return found


@pytest.mark.parametrize(
    ("case", "shape", "restriction", "weights", "record", "dtype"),
    kit.pairwise(
        {
            "case": list(SCORES), "shape": list(SHAPES), "restriction": RESTRICTIONS, "weights": [False, True],
            "record": [False, True], "dtype": [torch.float32, torch.float64],
        }
    ),
)  # fmt: skip
def test_first_and_second_call_come_to_the_same_bits(
    case: str, shape: str, restriction: str, weights: bool, record: bool, dtype: torch.dtype, taken: list[bool]
) -> None:
    torch.manual_seed(0)
    lead, n, m = SHAPES[shape]
    tensors = [torch.randn(*lead, length, 7, dtype=dtype) for length in (n, m, m)]
    score, lens = SCORES[case]().to(dtype), lengths(restriction, lead[0], n, m)
    first, second = (run(tensors, score, lens, weights, record) for _ in range(2))
    assert taken == [False, True]
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0)


def test_lengths_out_of_range_are_refused_as_ever(taken: list[bool]) -> None:
    x = torch.randn(2, 5, 7)
    for _ in range(2):
        dikkat.attend(x, x, x, score=scores.Dot(), valid_lens=torch.tensor([3, 4]))
    for wrong, came in (([3, 6], "6"), ([-1, 4], "-1")):
        with pytest.raises(ValueError, match=f"valid_lens: got {came}; expected 0 to 5"):
            dikkat.attend(x, x, x, score=scores.Dot(), valid_lens=torch.tensor(wrong))
    empty = dikkat.attend(x, x, x, score=scores.Dot(), valid_lens=torch.tensor([0, 4]))
    assert not empty[0].any()
    assert taken == [False, True, False]


def test_scores_of_one_class_and_other_sizes_are_apart(taken: list[bool]) -> None:
    x = torch.randn(2, 5, 7)
    for size in (3, 11):
        score = scores.Additive(7, 7, size)
        first, second = (dikkat.attend(x, x, x, score=score) for _ in range(2))
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert taken == [False, True, False, True]


def test_what_is_not_plain_has_a_program_of_its_own(taken: list[bool]) -> None:
    x = torch.randn(2, 5, 7)
    for _ in range(2):
        dikkat.attend(x, x, x, score=scores.Dot())
    del taken[:]
    with torch.autocast("cpu", torch.bfloat16):
        dikkat.attend(x, x, x, score=scores.Dot())
    torch.func.vmap(lambda t: dikkat.attend(t, x, x, score=scores.Dot()))(x[None])
    torch.func.jvp(lambda t: dikkat.attend(t, x, x, score=scores.Dot()), (x,), (x,))
    with torch.device("cpu"):
        dikkat.attend(x, x, x, score=scores.Dot())

    class Own(scores.Dot):
        pass

    dikkat.attend(x, x, x, score=Own())
    dikkat.attend(x.half(), x.half(), x.half(), score=scores.Dot())
    assert not any(taken)


def test_a_program_keeps_no_tensor_of_a_call(taken: list[bool]) -> None:
    x = torch.randn(5, 67, 7)
    for _ in range(2):
        dikkat.attend(x, x, x, score=scores.Gaussian(), valid_lens=torch.tensor([3, 5, 7, 11, 13]))
    ((only,),) = (programs.values() for programs in dispatch._PROGRAMS.values())
    assert not only.problem.unchecked_copy(weight=None).restrictions.unchecked_copy().lens
    assert all(getattr(only.problem, name) is None for name in ("query", "key", "value", "weight"))


@pytest.mark.parametrize("recorded", [True, False])
def test_distances_whose_squares_overflow_are_clipped_where_nothing_is_recorded(
    recorded: bool, taken: list[bool]
) -> None:
    query, value = torch.zeros(1, 1, 3, requires_grad=recorded), torch.tensor([[[5.0], [7.0]]])
    key = torch.tensor([[[1.0], [1e8]]]).expand(1, 2, 3)
    for size in (1.0, 1.0, 1e17):
        came = dikkat.attend(query, size * key, value, score=scores.Gaussian())
    assert taken == [False, True, not recorded]
    assert came.item() == 5.0


@pytest.mark.parametrize(("queries", "keys"), [(3, 11), (11, 3)])
def test_a_scaled_product_is_the_same_whichever_side_is_scaled(queries: int, keys: int) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(queries, 7, dtype=torch.float64), torch.randn(keys, 7, dtype=torch.float64)
    came = dikkat.attention_weights(query, key, score=scores.ScaledDot())
    torch.testing.assert_close(came, torch.softmax(query @ key.mT / 7**0.5, -1), rtol=1e-13, atol=0)


def test_operands_that_lie_otherwise_are_read_as_they_lie(taken: list[bool]) -> None:
    """A signature says nothing of strides, nor of numbers that are stored negated."""
    torch.manual_seed(0)
    lens = torch.tensor([2, 5])
    query, key, value = torch.randn(2, 3, 7), torch.randn(2, 5, 7), torch.randn(2, 5, 11)
    score = scores.Additive(7, 7, 13)

    def turned(tensor: Tensor) -> Tensor:
        return tensor.mT.contiguous().mT

    with torch.no_grad():
        expected, weights = dikkat.attend(
            query, key, value, score=score, valid_lens=lens, return_weights=True, impl="reference"
        )
        for each in (
            (query, key, value), tuple(map(turned, (query, key, value))), (query, key, torch._neg_view(-value)),
        ):  # fmt: skip
            for whole in (lens, lens.int(), torch.stack([lens, lens]).T[:, 0]):
                came, shown = dikkat.attend(*each, score=score, valid_lens=whole, return_weights=True)
                torch.testing.assert_close(came, expected, rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(shown, weights, rtol=1e-5, atol=1e-6)
    assert any(taken[1:])


HIDDEN: dict[str, tuple[Any, int, int, int]] = {
    "few additive": (lambda: scores.Additive(64, 64, 64), 3, 256, 64),
    "few gaussian": (lambda: scores.Gaussian(1.3, learnable=True), 4, 1024, 64),
    "fused cosine": (scores.Cosine, 67, 131, 7),
    "fused vector sum": (lambda: scores.VectorSum(7), 67, 131, 7),
    "products": (lambda: scores.Bilinear(7, 7), 3, 5, 7),
    "kernel": (lambda: scores.Additive(7, 7, 13), 67, 131, 7),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_nan_does_not_reach_the_gradients_of_a_projection(name: str, taken: list[bool]) -> None:
    make, queries, keys, size = HIDDEN[name]
    torch.manual_seed(0)
    score, lens = make(), torch.tensor([keys - 3, keys - 2, keys - 2, keys - 3, keys - 2])
    query, key, value = torch.randn(5, queries, size), torch.randn(5, keys, size), torch.randn(5, keys, 11)

    def gradients() -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in (query, key, value)]
        dikkat.attend(*leaves, score=score, valid_lens=lens).square().sum().backward()
        found = [t.grad for t in (*leaves, *score.parameters())]
        score.zero_grad()
        return [t for t in found if t is not None]

    gradients()
    expected = gradients()
    assert taken == [False, True]
    key[:, keys - 2 :] = torch.nan
    value[:, keys - 2 :] = torch.nan
    for came, right in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(came, right, rtol=1e-4, atol=1e-5)


def test_a_weight_of_another_type_is_not_read_as_the_programs(taken: list[bool]) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 7), torch.randn(2, 5, 7), torch.randn(2, 5, 11)
    score = scores.Additive(7, 7, 13)
    with torch.no_grad():
        expected = dikkat.attend(query, key, value, score=score)
        dikkat.attend(query, key, value, score=score)
        for dtype in (torch.float64, torch.bfloat16):
            score.w_v.to(dtype)
            for _ in range(3):
                came = dikkat.attend(query, key, value, score=score)
                torch.testing.assert_close(came, expected, rtol=1e-2, atol=1e-2)
    assert taken == [False, True, *[False] * 6]


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_no_batch_element_has_no_length(shape: tuple[int, ...]) -> None:
    x, lens = torch.randn(0, 3, 7), torch.empty(shape, dtype=torch.int64)
    for _ in range(3):
        assert dikkat.attend(x, x, x, score=scores.Dot(), valid_lens=lens).shape == (0, 3, 7)


def test_negated_operands_have_gradients() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 67, 64), torch.randn(2, 131, 64), torch.randn(2, 131, 64)
    score = scores.Additive(64, 64, 64)
    by: list[list[Tensor]] = []
    for given in (value, torch._neg_view(-value)):
        leaf = query.clone().requires_grad_()
        dikkat.attend(leaf, key, given, score=score).square().sum().backward()
        assert leaf.grad is not None
        by.append([leaf.grad])
    torch.testing.assert_close(*by)


def test_threads_share_a_program_and_not_its_record(taken: list[bool]) -> None:
    torch.manual_seed(0)
    score, lens = scores.Additive(7, 7, 13), torch.tensor([2, 5])
    given = [[torch.randn(2, length, 7) for length in (3, 5, 5)] for _ in range(4)]
    with torch.no_grad():
        right = [dikkat.attend(*each, score=score, valid_lens=lens, impl="reference") for each in given]
        dikkat.attend(*given[0], score=score, valid_lens=lens)
    wrong: list[int] = []

    def ask(number: int) -> None:
        with torch.no_grad():
            for _ in range(500):
                came = dikkat.attend(*given[number], score=score, valid_lens=lens)
                if not torch.allclose(came, right[number], rtol=1e-5, atol=1e-6):
                    wrong.append(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
    assert not wrong
    assert len(taken) == 2005  # of which the first five are references and the first of its kind
    assert all(taken[5:])


SHARED = {"query": 0, "key": 1, "value": 2}


@kit.each(
    ("case", "shared", "queries", "restriction", "record"),
    kit.pairwise(
        {
            "case": list(SCORES),
            "shared": list(SHARED),
            "queries": [1, 5, 67],
            "restriction": ["none", "alike", "some", "by row"],
            "record": [False, True],
        }
    ),
)
def test_operands_that_elements_share_are_read_as_they_are(
    case: str, shared: str, queries: int, restriction: str, record: bool
) -> None:
    """A first call that copies them for each element says nothing of how they come the next time."""
    torch.manual_seed(0)
    score, lens = SCORES[case]().double(), lengths(restriction, 3, queries, 101)
    for _ in range(3):
        tensors = [torch.randn(3, length, 7, dtype=torch.float64) for length in (queries, 101, 101)]
        tensors[SHARED[shared]] = tensors[SHARED[shared]][:1]
        came = run(tensors, score, lens, False, record)
        lead = [tensors[0].expand(3, -1, -1), *(t.expand(3, -1, -1) for t in tensors[1:])]
        weights = torch.softmax(dense(score, *lead[:2], lens), -1)
        torch.testing.assert_close(came[0].detach(), weights.detach() @ lead[2], rtol=1e-11, atol=1e-12)
        assert not record or [g.shape for g in came[1:4]] == [t.shape for t in tensors] or case == "average"


def dense(score: Any, query: Tensor, key: Tensor, lens: Tensor | None) -> Tensor:
    """Scores (B, n, m) from the formulas, −∞ past the lengths."""
    query, key, size = query[:, :, None], key[:, None], query.shape[-1]
    if isinstance(score, scores.Average):
        found = 0 * (query + key).sum(-1)
    elif isinstance(score, scores.Gaussian):
        found = -((query - key) / score.log_bandwidth.exp()).square().sum(-1) / 2
    elif isinstance(score, scores.VectorSum):
        found = (query + key) @ score.w_v.weight[0]
    elif isinstance(score, scores.Additive):
        found = torch.tanh(query @ score.W_q.weight.T + key @ score.W_k.weight.T) @ score.w_v.weight[0]
    elif isinstance(score, scores.Bilinear):
        found = ((query @ score.W_q.weight.T) * key).sum(-1)
    else:
        found = (query * key).sum(-1)
        if isinstance(score, scores.ScaledDot):
            found = found / size**0.5
        if isinstance(score, scores.Cosine):
            found = found / (query.norm(dim=-1) * key.norm(dim=-1))
    if lens is None:
        return found
    lens = lens[:, None] if lens.ndim == 1 else lens
    return found.masked_fill(torch.arange(found.shape[-1]) >= lens[..., None], -torch.inf)


def test_values_without_a_batch_beside_a_batch_of_one() -> None:
    query, key, value = torch.randn(1, 3, 7), torch.randn(1, 5, 7), torch.randn(5, 7)
    for weights in (False, True):
        for _ in range(3):
            came = dikkat.attend(query, key, value, score=scores.Dot(), return_weights=weights)
            right = torch.softmax(query @ key.mT, -1) @ value
            torch.testing.assert_close(came[0] if isinstance(came, tuple) else came, right)


@kit.each("case", SCORES)
@kit.each(("queries", "keys"), [(3, 11), (200, 200), (1, 2**11)])
@kit.each("place", [0, 1, 2])
def test_hidden_infinities_do_not_reach_gradients(case: str, queries: int, keys: int, place: int) -> None:
    """Those that make a score of −∞ leave no trace in the output: e^−∞ is 0, but 0 · ∞ is not."""
    torch.manual_seed(0)
    score, size = SCORES[case](), torch.tensor([keys - 2, keys])
    query, key, value = torch.rand(2, queries, 7), torch.randn(2, keys, 7), torch.randn(2, keys, 7)
    for broken in (0.0, 0.0, -torch.inf, torch.inf, torch.nan):
        if place:
            (key, value)[place - 1][0, keys - 2 :] = broken
        leaves = [t.clone().requires_grad_() for t in (query, key, value)]
        dikkat.attend(*leaves, score=score, valid_lens=size).sum().backward()
        grads = [t.grad for t in (*leaves, *score.parameters()) if t.grad is not None]
        assert all(grad.isfinite().all() for grad in grads)
        score.zero_grad()


@kit.each("case", SCORES)
@kit.each("broken", [torch.nan, -torch.inf])
def test_queries_that_see_no_key_do_not_reach_gradients(case: str, broken: float) -> None:
    """Of 11 queries over 5 keys, the first 6 see none where query i sees the keys up to i + 5 − 11."""
    torch.manual_seed(0)
    score = SCORES[case]()
    for _ in range(3):
        query, key, value = (torch.randn(2, rows, 7) for rows in (11, 5, 5))
        grads = []
        for number in (broken, 0.0):
            query[:, :6] = number
            leaves = [*(t.clone().requires_grad_() for t in (query, key, value)), *score.parameters()]
            out = dikkat.attend(*leaves[:3], score=score, causal=True)
            grads.append(torch.autograd.grad(out.square().sum(), leaves, allow_unused=True, materialize_grads=True))
        torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-6)


@kit.each("case", SCORES)
@kit.each("grad", [False, True])
@kit.each("size", SHAPES)
def test_a_program_keeps_nothing_of_its_first_call_alive(case: str, grad: bool, size: str) -> None:
    lead, queries, keys = SHAPES[size]
    score = SCORES[case]()
    gc.freeze()  # what is collected below is this test's
    sources = [torch.randn(*lead, rows, 7, requires_grad=grad) for rows in (queries, keys, keys)]
    operands = [source * 2 for source in sources]
    out = dikkat.attend(*operands, score=score)
    alive = [weakref.ref(each) for each in operands]
    del operands, out
    gc.collect()
    gc.unfreeze()
    assert [each() for each in alive] == [None] * 3


@pytest.mark.filterwarnings("ignore")  # `torch.jit.trace` is deprecated, and warns of each size that it keeps
def test_a_trace_has_the_arithmetic_in_it() -> None:
    """Compiled code is no operation that a trace could keep."""
    score, lens = scores.Gaussian(1.3), torch.tensor([3, 11])
    first, second = ([torch.randn(2, rows, 7) for rows in (3, 11, 11)] for _ in range(2))
    with torch.no_grad():
        dikkat.attend(*first, score=score, valid_lens=lens)
        traced = torch.jit.trace(lambda *given: dikkat.attend(*given, score=score, valid_lens=lens), first)
        torch.testing.assert_close(traced(*second), dikkat.attend(*second, score=score, valid_lens=lens))


def test_lengths_without_their_storage_are_refused() -> None:
    operands, lens = [torch.randn(2, rows, 7) for rows in (3, 11, 11)], torch.tensor([3, 11])
    for _ in range(2):
        dikkat.attend(*operands, score=scores.Dot(), valid_lens=lens)
    lens.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"valid_lens: got shape .* storage"):
        dikkat.attend(*operands, score=scores.Dot(), valid_lens=lens)


def test_programs_keep_no_memory_by_the_key(taken: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor without end: neither for each length of a text, nor for each size of a score."""
    monkeypatch.setattr(dispatch, "_MAX_PROGRAMS", 61)
    x, score = torch.zeros(1, 1, 1), scores.Dot()
    for lens in (None, torch.tensor([1])):
        key = torch.zeros(1, 20_011, 1)
        for _ in range(2):
            dikkat.attend(x, key, key, score=score, valid_lens=lens)
    kept = [each for programs in dispatch._PROGRAMS.values() for one in programs.values() for each in one]
    assert not [each for each in kept if isinstance(each, Tensor)]
    assert len(pickle.dumps([each for each in kept if isinstance(each, tuple | int | None)])) < 2**12
    for size in range(1, 100):
        dikkat.attend(x, x, x, score=scores.Additive(1, 1, size))
    assert sum(map(len, dispatch._PROGRAMS.values())) <= 61


def test_zeros_without_numbers_behind_them_are_refused_by_the_kernels() -> None:
    """Their address is 0, and their storage says that it has all."""
    query, key, nothing = torch.randn(2, 1, 7), torch.randn(2, 5, 7), torch._efficientzerotensor((2, 5, 7))
    for score in (scores.Dot(), scores.Additive(7, 7, 3), scores.Gaussian()):
        with torch.no_grad():
            for _ in range(3):
                dikkat.attend(query, key, torch.zeros(2, 5, 7), score=score, valid_lens=torch.tensor([3, 5]))
            with pytest.raises(ValueError, match="value: got Tensor on cpu; expected a dense tensor with values"):
                dikkat.attend(query, key, nothing, score=score, valid_lens=torch.tensor([3, 5]))


@pytest.mark.parametrize("dropout", [False, True, None, "", [], "0.1", (0.0,)])
def test_a_dropout_that_is_no_number_is_refused_at_each_call(dropout: Any, taken: list[bool]) -> None:
    x = torch.randn(2, 5, 7)
    for _ in range(2):
        dikkat.attend(x, x, x, score=scores.Dot())
        with pytest.raises(TypeError, match=r"dropout: got .*; expected a number from 0 to 1"):
            dikkat.attend(x, x, x, score=scores.Dot(), dropout=dropout)
    for zero in (0, 0.0):
        dikkat.attend(x, x, x, score=scores.Dot(), dropout=zero)
    assert taken == [False, True, True, True]


def test_what_a_score_declares_for_itself_counts_at_each_call() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 7), torch.randn(2, 5, 7), torch.randn(2, 5, 7)
    plainly, own, wrong = scores.Gaussian(2.0), scores.Gaussian(2.0), scores.Gaussian(2.0)
    own.profile, wrong.pair = "boxcar", ["inner"]  # type: ignore[assignment,misc]
    right = dikkat.attend(query, key, value, score=scores.Boxcar(2.0), impl="reference")
    for _ in range(3):
        dikkat.attend(query, key, value, score=plainly)
        torch.testing.assert_close(dikkat.attend(query, key, value, score=own), right)
        with pytest.raises((TypeError, ValueError), match=r"got Gaussian.pair = "):
            dikkat.attend(query, key, value, score=wrong)


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("restriction", ["alike", "some", "by row"])
@pytest.mark.parametrize("case", ["scaled dot", "additive"])
def test_heads_and_memories_run_earlier_programs_too(
    case: str, restriction: str, record: bool, taken: list[bool]
) -> None:
    """What is hidden is met by no gradient: of a layer's projections, of the score's, of the operands."""
    torch.manual_seed(0)
    score = None if case == "scaled dot" else scores.Additive(4, 4, 61)
    layer = dikkat.MultiHeadAttention(8, 2, score=score).double()
    own = (scores.Dot() if score is None else scores.Additive(7, 7, 61)).double()
    query, key = torch.randn(3, 2, 8, dtype=torch.float64), torch.randn(3, 307, 8, dtype=torch.float64)
    lens = lengths(restriction, 3, 2, 307)
    assert lens is not None
    past = torch.arange(307) >= (lens if lens.ndim == 1 else lens.amax(1))[:, None]

    def by_key(leaf: Tensor) -> Tensor:
        return layer(query, leaf, key, lens)

    def by_value(leaf: Tensor) -> Tensor:
        return layer(query, key, leaf, lens)

    def remembered(key: Tensor) -> Tensor:
        memory = dikkat.prepare(key[..., :7], key[..., :3], score=own, valid_lens=None if lens.ndim > 1 else lens)
        return dikkat.attend_memory(query[..., :7], memory)

    for call in (by_key, by_value, remembered):
        del taken[:]
        found = []
        for how in (0.0, 0.0, torch.nan, torch.inf, 1e308):
            hidden = past[..., None] & (call is not remembered or lens.ndim == 1)
            leaf = torch.where(hidden, how, key).requires_grad_(record)
            with torch.set_grad_enabled(record):
                out = call(leaf)
            module = own if call is remembered else layer
            leaves = [leaf, *module.parameters()] if record else []
            found.append([out, *torch.autograd.grad(out.sin().sum(), leaves, allow_unused=True)] if record else [out])
        assert taken[1]
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
        for came in found[2:]:
            torch.testing.assert_close(came, found[0], rtol=1e-11, atol=1e-12)


def test_a_query_of_nan_is_nan_over_fewer_keys_than_a_vector_has(taken: list[bool]) -> None:
    """PyTorch's fused kernel, which the first call takes, gives 0 for it over fewer than 16."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 67, 11), torch.randn(2, 1031, 11)
    for length in (1030, 7):
        query[1, 3, 5] = torch.nan if length == 7 else 0.0
        came = dikkat.attend(query, key, key, score=scores.ScaledDot(), valid_lens=torch.full((2,), length))
    assert not any(taken)  # what is NaN is looked at again
    assert [program.name for of in dispatch._PROGRAMS.values() for program in of.values()] == ["sdpa"]
    assert torch.equal(came.isnan(), query.isnan().any(-1, keepdim=True).expand_as(came))


def later_restrictions(kind: str) -> tuple[dict[str, Any], Tensor]:
    """Arguments of 5 queries and 7 keys, other ones at each call, and what they add to the scores."""
    i, j = torch.arange(5)[:, None], torch.arange(7)
    if kind == "lengths and window":  # lengths that hide nothing, and a window that does
        return {"valid_lens": torch.tensor([7, 7]), "window": (None, 1)}, (j <= i + 3).double().log().expand(2, 5, 7)
    if kind == "mask":
        mask = (torch.rand(2, 5, 7) < 0.5) | (i == j)
        return {"mask": mask}, mask.double().log()
    if kind == "mask function":
        seen = torch.tensor([[(a - b) % 2 == 0 and a < b + 2 for b in range(7)] for a in range(5)])
        return {"mask": lambda a, b: ((a - b) % 2 == 0) & (a < b + 2)}, seen.double().log().expand(2, 5, 7)
    if kind == "exclude":
        exclude = torch.randint(-1, 7, (2, 5))
        return {"exclude": exclude}, (j != exclude[..., None]).double().log()
    if kind == "segments":
        of_queries, of_keys = torch.tensor([0, 0, 1, 1, 2]), torch.randint(0, 3, (2, 7)).sort().values
        seen = of_queries[:, None] == of_keys[:, None]
        return {"segment_ids": (of_queries.expand(2, 5), of_keys)}, seen.double().log()
    added = torch.randn(2, 5, 7, dtype=torch.float64)
    if kind == "key bias":
        return {"key_bias": added[:, 0]}, added[:, :1].expand(2, 5, 7)
    return {"bias": added.requires_grad_(kind == "learned bias")}, added


KINDS = ["lengths and window", "mask", "mask function", "exclude", "segments", "key bias", "bias", "learned bias"]


@kit.each("kind", KINDS)
@kit.each("case", ["dot", "scaled dot", "additive", "gaussian"])
@kit.each("record", [False, True])
def test_a_later_call_has_its_own_restriction(kind: str, case: str, record: bool) -> None:
    torch.manual_seed(0)
    score = SCORES[case]().double()
    for this in ("bias", kind, kind, kind) if kind == "learned bias" else (kind, kind, kind):
        given, added = later_restrictions(this)
        leaves = [torch.randn(2, rows, 7, dtype=torch.float64, requires_grad=record) for rows in (5, 7, 7)]
        came = dikkat.attend(*leaves, score=score, **given)
        weights = torch.softmax(dense(score, *leaves[:2], None) + added, -1).nan_to_num()
        right = weights @ leaves[2]
        torch.testing.assert_close(came, right, rtol=1e-11, atol=1e-12)
        learned = [*(leaves if record else []), *([added] if added.requires_grad else [])]
        if learned and (added.isfinite().all() or this == "mask"):
            by_ours, by_plain = (
                torch.autograd.grad(out.square().sum(), learned, retain_graph=True) for out in (came, right)
            )
            torch.testing.assert_close(by_ours, by_plain, rtol=1e-9, atol=1e-10)


@kit.each("option", ["softcap", "dropout", "sink"])
def test_a_later_call_has_its_own_options(option: str) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 5, 7, dtype=torch.float64), torch.randn(2, 11, 7, dtype=torch.float64)
    value = torch.eye(11, dtype=torch.float64).expand(2, 11, 11).contiguous()
    products = query @ key.mT
    for number in (1.5, 0.25, 1.5, 0.25):
        if option == "softcap":
            came = dikkat.attend(query, key, value, score=scores.Dot(softcap=number))
            torch.testing.assert_close(came, torch.softmax(number * (products / number).tanh(), -1))
        elif option == "sink":
            sink = torch.tensor([number, -number], dtype=torch.float64)
            came = dikkat.attend(query, key, value, score=scores.Dot(), sink=sink)
            logits = torch.cat([products, sink[:, None, None].expand(2, 5, 1)], -1)
            torch.testing.assert_close(came, torch.softmax(logits, -1)[..., :-1])
        else:
            came = dikkat.attend(query, key, value, score=scores.Dot(), dropout=number / 2)
            ratio = came / torch.softmax(products, -1)  # each weight is dropped, or grows by 1/(1 − dropout)
            torch.testing.assert_close(ratio[ratio > 0], torch.full_like(ratio[ratio > 0], 1 / (1 - number / 2)))
