"""Calls captured as CUDA graphs: on a GPU, or with a stand-in for the graphs that a CPU can replay."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import device
import dikkat
import kit
from dikkat import scores
from dikkat._core import dispatch, graphs, implementations

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
RESTRICTIONS = ["none", "lengths", "lengths above 0", "lengths a query", "mask", "mask a head", "causal"]


class Replayable(graphs.Lane):
    """A lane whose graphs compute anew what they replay."""

    def __init__(self) -> None:
        self.memory_limit, self.device = math.inf, torch.device("cpu")
        self.drop()

    def drop(self) -> None:
        self.graphs = {}

    def used_memory(self) -> int:
        return sum(graph.nbytes for graph in self.graphs.values())

    def capture(self, compute: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        results = compute()

        def replay() -> None:
            for there, now in zip(results, compute(), strict=True):
                there.copy_(now)

        return replay, results


@contextmanager
def captured(small: bool, after: int = 0) -> Iterator[graphs.Lane | None]:
    """Within, the second call of a signature is captured; of few pairs by plain arithmetic, or by the kernels."""
    sizes = implementations.CROSSOVERS._replace(device=2**27, captured=2**27 if small else 0)
    with nullcontext() if CUDA else device.device(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "_PROGRAMS", {})
        patch.setattr(implementations, "CROSSOVERS", sizes)
        patch.setattr(graphs, "AFTER", after)
        patch.setattr(graphs, "_LANES", {})
        lane = None
        if not CUDA:
            lane = Replayable()
            patch.setattr(graphs, "are_worthwhile", lambda problem: problem.pair != "inner" and not problem.wants_state)
            patch.setattr(graphs, "lane_of", lambda _: lane)
        yield lane


def there(made: kit.Call) -> kit.Call:
    """A call on the device."""
    made.score.to(DEVICE)
    moved = {name: t.detach().to(DEVICE).requires_grad_() for name, t in made.leaves().items() if "." not in name}
    rest = {name: t.to(DEVICE) if isinstance(t, Tensor) else t for name, t in made.restricted.items()}
    return kit.Call(made.case, made.score, moved["query"], moved["key"], moved["value"], rest)


@pytest.mark.parametrize(
    ("case", "restriction", "dtype", "weights", "small"),
    kit.pairwise(
        {
            "case": ["additive", "gaussian", "gaussian, learned"],
            "restriction": RESTRICTIONS,
            "dtype": [torch.float64, torch.float32, torch.bfloat16],
            "weights": [False, True],
            "small": [False, True],
        }
    ),
    ids=str,
)
def test_a_replayed_call_is_right(case: str, restriction: str, dtype: torch.dtype, weights: bool, small: bool) -> None:
    first, other = (there(kit.call(case, restriction, seed=seed, round_to=dtype).to(dtype)) for seed in (0, 1))
    with captured(small):
        for made in (first, other):  # the first is kept, and captured as the second of its signature
            made.run(return_weights=weights)
        found, later = first.run(return_weights=weights), other.run(return_weights=weights)
        [lane] = graphs._LANES.values() if CUDA else [graphs.lane_of(torch.device("cpu"))]
        assert len(lane.graphs) == 1
        for made, result, seed in ((first, found, 0), (other, later, 1), (first, found, 0)):
            budget = kit.expected(case, restriction, dtype, seed=seed)
            out = result[0] if weights else result
            upstream = kit.upstream_of(out).to(DEVICE)
            for name, came in ({"output": out} | kit.gradients(made, out, upstream)).items():
                assert came.dtype == dtype
                kit.assert_within_budget(name, came.detach().cpu(), budget)
            if weights:
                kit.assert_within_budget("weights", result[1].detach().cpu(), budget)
        assert len(lane.graphs) == 2  # one backward


def additive(n: int = 3, m: int = 7) -> tuple[scores.Additive, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    score = scores.Additive(5, 5, 11).to(DEVICE)
    sizes = (2, n, 5), (2, m, 5), (2, m, 13)
    return score, tuple(torch.randn(size, device=DEVICE, requires_grad=True) for size in sizes)


def differentiate(out: Tensor, leaves: Any, **more: Any) -> tuple[Tensor, ...]:
    return torch.autograd.grad((out * out).sum(), leaves, **more)


@pytest.mark.parametrize("small", [False, True])
def test_what_no_graph_computes_is_launched(small: bool) -> None:
    """Gradients of weights, some operands' alone, second derivatives, and many gradients at once."""
    score, leaves = additive()
    exact = dikkat.attend(*(t.double() for t in leaves), score=score.double(), impl="reference", return_weights=True)
    wanted = torch.autograd.grad(exact[0].square().sum() + exact[1].sin().sum(), leaves, retain_graph=True)
    of_key = torch.autograd.grad(exact[0].square().sum(), leaves[1], create_graph=True, retain_graph=True)
    second = torch.autograd.grad(of_key[0].square().sum(), leaves)
    score.float()
    with captured(small):
        for _ in range(3):
            out, weights = dikkat.attend(*leaves, score=score, return_weights=True)
        assert_close(torch.autograd.grad(out.square().sum() + weights.sin().sum(), leaves, retain_graph=True), wanted)
        assert_close(differentiate(out, leaves[1], retain_graph=True), of_key)
        (again,) = differentiate(out, leaves[1], create_graph=True, retain_graph=True)
        assert_close(torch.autograd.grad(again.square().sum(), leaves, retain_graph=True), second)
        score.W_q.requires_grad_(False)
        alone = dikkat.attend(leaves[0].detach(), leaves[1], leaves[2].detach(), score=score, return_weights=True)[0]
        assert_close(differentiate(alone, leaves[1]), of_key)
        directions = torch.randn(3, *out.shape, device=DEVICE)
        batch = torch.autograd.grad(out, leaves, directions, is_grads_batched=True, retain_graph=True)
        for i, direction in enumerate(directions):
            assert_close([each[i] for each in batch], torch.autograd.grad(out, leaves, direction, retain_graph=True))


def test_what_hidden_values_are_told_of_an_infinite_gradient() -> None:
    score, leaves = additive()
    with captured(small=False):
        for _ in range(3):
            out = dikkat.attend(*leaves, score=score, valid_lens=torch.tensor([3, 7], device=DEVICE))
        (grad,) = torch.autograd.grad(out, leaves[2], torch.full_like(out, math.inf))
    assert not grad[0, 3:].any()
    assert grad[1].isinf().all()


def assert_close(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=2e-4, atol=2e-5)


def test_an_operand_that_was_written_to_is_told() -> None:
    score, (query, key, value) = additive()
    with captured(small=True):
        for _ in range(3):
            out = dikkat.attend(query, key, value * 1, score=score)
            late = value * 1
            out = dikkat.attend(query, key, late, score=score)
        with torch.no_grad():
            late.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@pytest.mark.parametrize("small", [False, True])
def test_a_result_may_be_written_to(small: bool) -> None:
    score, leaves = additive()
    (wanted,) = torch.autograd.grad(2 * dikkat.attend(*leaves, score=score, impl="reference").sum(), leaves[2])
    with captured(small):
        for _ in range(3):
            out = dikkat.attend(*leaves, score=score)
            (found,) = torch.autograd.grad(out.mul_(2).sum(), leaves[2])
            assert_close([found], [wanted])


def test_a_result_is_the_callers_own() -> None:
    score, leaves = additive()
    with captured(small=True), torch.inference_mode():
        for _ in range(3):
            first = dikkat.attend(*leaves, score=score)
        kept = first.clone()
        dikkat.attend(leaves[0] + 1, leaves[1], leaves[2], score=score)
        assert torch.equal(first, kept)
        assert not torch.equal(first.mul_(2), kept)  # ... in which they may write, in this mode too


def test_graphs_hold_no_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_MAX_GRAPHS", 3)
    with captured(small=True), torch.no_grad():
        for n in range(2, 9):
            score, leaves = additive(n)
            found = [dikkat.attend(*leaves, score=score) for _ in range(3)]
            torch.testing.assert_close(found[2], found[0])
        [lane] = graphs._LANES.values() if CUDA else [graphs.lane_of(torch.device("cpu"))]
        assert 0 < len(lane.graphs) <= 3
    monkeypatch.setattr(graphs, "_MAX_SHARE", 0)
    with captured(small=True) as lane, torch.no_grad():
        if lane:
            lane.memory_limit = 0
        found = [dikkat.attend(*leaves, score=score) for _ in range(4)]
        torch.testing.assert_close(found[3], found[0])
        assert not graphs.lane_of(torch.device("cuda", 0) if CUDA else torch.device("cpu")).graphs  # type: ignore[union-attr]


@pytest.mark.skipif(CUDA, reason="a stand-in for two streams")
def test_the_graphs_of_all_streams_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with captured(small=True) as first, torch.no_grad():
        second = Replayable()
        for number, lane in enumerate((first, second)):
            monkeypatch.setattr(graphs, "lane_of", lambda _, lane=lane: lane)
            monkeypatch.setitem(graphs._LANES, number, lane)
            score, leaves = additive(2 + number)
            for _ in range(3):
                dikkat.attend(*leaves, score=score)
        assert [len(lane.graphs) for lane in (first, second)] == [1, 1]
        second.memory_limit = first.used_memory() + second.used_memory() - 1
        score, leaves = additive(5)
        found = [dikkat.attend(*leaves, score=score) for _ in range(3)]
        torch.testing.assert_close(found[2], found[0])
        assert [len(lane.graphs) for lane in (first, second)] == [0, 1]


def test_shapes_in_turn_are_captured_ever_less(monkeypatch: pytest.MonkeyPatch) -> None:
    captures: list[None] = []
    lanes = graphs.Lane if CUDA else Replayable
    capture = lanes.capture
    monkeypatch.setattr(graphs, "_MAX_GRAPHS", 3)
    monkeypatch.setattr(lanes, "capture", lambda *given: (captures.append(None), capture(*given))[1])
    made = [additive(n) for n in range(2, 7)]
    with captured(small=True, after=1), torch.no_grad():
        for _ in range(40):
            for score, leaves in made:
                dikkat.attend(*leaves, score=score)
    assert len(made) <= len(captures) <= len(made) * 4  # after 1, 8 and 64 calls at the earliest


@pytest.mark.parametrize("error", [RuntimeError("operation not permitted"), torch.OutOfMemoryError("no memory")])
def test_a_call_that_cannot_be_captured_is_launched(monkeypatch: pytest.MonkeyPatch, error: RuntimeError) -> None:
    tried: list[None] = []

    def refuse(*_: Any) -> Any:
        tried.append(None)
        raise error

    score, leaves = additive()
    told = pytest.warns(RuntimeWarning, match="not permitted")
    with captured(small=True):
        expected = dikkat.attend(*leaves, score=score)
        monkeypatch.setattr(graphs.Lane if CUDA else Replayable, "capture", refuse)
        with nullcontext() if isinstance(error, torch.OutOfMemoryError) else told:
            found = dikkat.attend(*leaves, score=score)
        for out in (found, dikkat.attend(*leaves, score=score)):
            torch.testing.assert_close(out, expected)
    assert len(tried) == 1


@pytest.mark.skipif(not CUDA, reason="streams and captures are a GPU's")
def test_other_streams_and_a_callers_own_graph() -> None:  # pragma: no cover - no GPU here
    score, leaves = additive()
    with captured(small=False), torch.no_grad():
        expected = dikkat.attend(*leaves, score=score, impl="reference")
        streams = [torch.cuda.Stream() for _ in range(3)]
        found = []
        for _ in range(20):
            for stream in streams:
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    found.append(dikkat.attend(*leaves, score=score))
        torch.cuda.synchronize()
        for out in found:
            torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = dikkat.attend(*leaves, score=score)
        leaves[0].mul_(-1)
        graph.replay()
        torch.testing.assert_close(out, dikkat.attend(*leaves, score=score, impl="reference"), rtol=1e-4, atol=1e-5)
