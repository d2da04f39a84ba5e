"""Calls on a GPU that repeat, captured as CUDA graphs: the host launches one graph in place of dozens of kernels.

A call's operands are copied to where its graph reads them, and the results from where it writes them. So a graph holds
nothing of a call: other calls may come between a forward and its backward, which computes from the operands.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dikkat._core.implementations import BACKENDS, pairs_of
from dikkat._core.operators import Operator, Output
from dikkat._core.problem import Problem, Result
from dikkat._core.restrictions import Hidden
from dikkat._engine.addresses import exact, many_at_once
from dikkat._engine.local_gradients import local_gradients

if TYPE_CHECKING:
    from dikkat._core.dispatch import Program

# The calls of a program before it is captured, since a capture takes as long as ten calls; and how many times as many
# there are before each further capture, where the graph was dropped: so shapes that never end cost few captures.
AFTER, _LONGER = 2, 8
# More pairs than these keep a GPU busy for longer than the host needs to launch their kernels.
_PAIRS = 2**26
# How many graphs a stream has, and the share of the device's memory of all streams' graphs, until all are dropped.
_MOST, _SHARE = 256, 1 / 32

Operands = Sequence[Tensor | None]


class Lane:
    """The graphs of one stream. They run one after the other, and share the memory of what they compute in between."""

    def __init__(self, device: torch.device) -> None:
        self.stream, self.device = torch.cuda.Stream(device), device
        self.most = _SHARE * torch.cuda.get_device_properties(device).total_memory
        self.drop()

    def drop(self) -> None:
        self.graphs: dict[Hashable, Graph] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def held(self) -> int:
        segments = [each for each in torch.cuda.memory_snapshot() if each["segment_pool_id"] == self.pool]
        return sum([int(each["total_size"]) for each in segments] + [graph.nbytes for graph in self.graphs.values()])

    def capture(self, compute: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        """A function that computes once more, and where it writes the results."""
        compute()  # compiles kernels, which no capture may
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                results = compute()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.stream)
        return graph.replay, results


_LANES: dict[Hashable, Lane] = {}
_lock = RLock()  # between the copies into a graph and those out of it, no other may run


def lane_of(device: torch.device) -> Lane | None:
    """Where graphs of calls on a device run now; None where none may."""
    if device.index != torch.cuda.current_device() or torch.cuda.is_current_stream_capturing():
        return None
    place = device.index, torch._C._cuda_getCurrentRawStream(device.index)  # the public way takes 3 µs
    if place not in _LANES:
        _LANES[place] = Lane(device)
    return _LANES[place]


def are_of_use(problem: Problem) -> bool:
    """Whether calls like a problem are captured as graphs, where they repeat."""
    plain = problem.pair != "inner" and not problem.wants_state
    return plain and problem.query.is_cuda and pairs_of(problem) <= _PAIRS


def can_capture(program: "Program") -> bool:
    """Whether a program has a forward and a backward of its own, which the host launches without looking at numbers."""
    return program.ready is not None or isinstance(BACKENDS[program.name].run, Operator)


class Graph:
    """A captured computation of tensors."""

    def __init__(self, lane: Lane, compute: Callable[[list[Tensor]], list[Tensor]], given: list[Tensor]) -> None:
        with torch.inference_mode(False), torch.no_grad():  # calls in any mode are to write there
            self._places = [torch.empty(t.shape, dtype=t.dtype, device=t.device).copy_(t) for t in given]
            self._replay, results = lane.capture(lambda: compute(self._places))
        self._results = list({id(each): each for each in results}.values())
        self._order = [next(i for i, own in enumerate(self._results) if own is each) for each in results]
        self.nbytes = sum(place.nbytes for place in self._places)

    def __call__(self, given: list[Tensor]) -> list[Tensor]:
        with _lock:
            torch._foreach_copy_(self._places, given)
            self._replay()
            found = [torch.empty_like(each) for each in self._results]
            torch._foreach_copy_(found, self._results)
        return [found[i] for i in self._order]


class Captured:
    """The graphs of a cached program: a forward, and a backward for each choice of operands with a gradient."""

    def __init__(self, program: "Program") -> None:
        self.program = program
        self._calls, self._refused = 0, False
        self._captures: Counter[Hashable] = Counter()

    def run(self, launched: Callable[..., Result], *given: Any) -> Result | None:
        """The result of a call with the arguments of `Program.on_device`; None if its kernels are to be launched.

        `launched` is the call without graphs, whose gradients can be differentiated.
        """
        self._calls += 1
        *operands, hidden = given
        masks = hidden is not None and hidden.keys is not None
        graph = self.graph(("forward", masks), partial(self._forward, masks), operands)
        if graph is None:
            return None
        if self.program.records:
            mean, *more = _Replayed.apply(self, graph, launched, masks, *operands)  # type: ignore[no-untyped-call]
        else:
            mean, *more = graph([each for each in operands if each is not None])
        return Result(mean, None, more[0] if self.program.problem.wants_weights else None)

    def graph(self, which: Hashable, compute: Callable[..., list[Tensor]], operands: Operands) -> Graph | None:
        """The graph of a computation, captured if there is none; None where that cannot be, or not yet."""
        lane = None if self._refused else lane_of(self.program.problem.restrictions.device)
        if lane is None:
            return None
        found = lane.graphs.get((self, which))
        if found is None and self._calls > AFTER * _LONGER ** self._captures[lane, which]:
            found = self._capture(lane, which, compute, operands)
        return found

    def _capture(
        self, lane: Lane, which: Hashable, compute: Callable[..., list[Tensor]], operands: Operands
    ) -> Graph | None:
        there = [each is not None for each in operands]

        def of_places(places: list[Tensor]) -> list[Tensor]:
            rest = iter(places)
            return compute(*(next(rest) if each else None for each in there))

        with _lock:
            lanes = [each for each in {lane, *_LANES.values()} if each.device == lane.device]
            if len(lane.graphs) >= _MOST or sum(each.held() for each in lanes) > lane.most:
                for each in lanes:
                    each.drop()
            try:
                graph = Graph(lane, of_places, [each for each in operands if each is not None])
            except RuntimeError as error:
                lane.drop()
                self._refused = True
                if not isinstance(error, torch.OutOfMemoryError):  # there may be enough without the graphs
                    warnings.warn(
                        f"attend: a repeated call could not be captured as a CUDA graph ({error}); its kernels are "
                        "launched one by one",
                        RuntimeWarning,
                        stacklevel=2,
                    )
                return None
            lane.graphs[self, which] = graph
            if len(lane.graphs) == 1 and lane.held() > lane.most:
                lane.drop()
                self._refused = True
                return None
            self._captures[lane, which] += 1
            return graph

    def hidden(self, masks: bool, query: Tensor, key: Tensor, lens: Tensor | None, mask: Tensor | None) -> Any:
        """The pairs that a call hides, with `keys` where hidden values are yet to be set to 0."""
        causal = self.program.problem.restrictions.causal
        if lens is None and mask is None and not causal:
            return None
        hidden = Hidden(query.shape[-2], key.shape[-2], query.device, lens, mask, causal)
        if not masks:
            hidden.keys = None
        return hidden

    def _forward(self, masks: bool, query: Tensor, key: Tensor, weight: Any, value: Tensor, *rest: Any) -> list[Tensor]:
        """Mean, weights where they are requested, and what a backward reads besides the operands."""
        program, hidden = self.program, self.hidden(masks, query, key, *rest)
        shown = program.problem.wants_weights
        if program.ready is not None:
            mean, *weights = program.ready(query, key, weight, value, hidden)  # type: ignore[misc]
            return [mean.to(value.dtype), *weights[:shown]]
        kernel, problem = self._kernel(), self._problem(query, key, weight, value, *rest, hidden)
        keeps = program.records and kernel.keep is not None
        out, made = kernel.keep(problem) if keeps else (kernel.forward(problem), ())
        mean = out.mean.to(value.dtype)
        found = [mean, *[out.weights.to(value.dtype)][:shown]]
        if not program.records:
            return found
        return [*found, out.mean.detach(), out.peak, out.total, *made]  # the caller may write to `mean`

    def backward(
        self, masks: bool, wanted: tuple[bool, ...], query: Tensor, key: Tensor, weight: Any, value: Tensor,
        lens: Tensor | None, mask: Tensor | None, grad: Tensor, *made: Tensor,
    ) -> list[Tensor]:  # fmt: skip
        """The gradients that are wanted, of a forward's operands, the gradient of its mean, and what it left."""
        program, hidden = self.program, self.hidden(masks, query, key, lens, mask)
        given = query, key, weight, value
        if program.ready is not None:
            found = local_gradients(
                lambda *operands: [program.ready(*operands, hidden)[0].to(value.dtype)],  # type: ignore[index,misc]
                given, wanted, [grad],
            )  # fmt: skip
            return [g for g, learns in zip(found, wanted, strict=True) if learns]  # type: ignore[misc]
        kernel, problem = self._kernel(), self._problem(*given, lens, mask, hidden)
        out, kept = (*made[:3], made[0].new_empty(0)), made[3:]
        zeros = [None if kernel.keep else torch.zeros_like(each) for each in out[1:]]
        grads: Any = grad.to(made[0].dtype), *zeros
        found = kernel.backward(problem.unchecked_copy(wants_weights=False), Output(*out), Output(*grads), *kept)
        if hidden is not None and hidden.keys is not None:
            found = found._replace(value=found.value.masked_fill(hidden.keys.unsqueeze(-1), 0.0))
        return [g.view(t.shape).to(t.dtype) for g, t, learns in zip(found, given, wanted, strict=False) if learns]

    def _kernel(self) -> Any:
        return BACKENDS[self.program.name].run

    def _problem(self, *given: Any) -> Problem:
        problem = self.program.problem_on_device(*given)
        return problem if self._kernel().keep else problem.in_wide_dtype()


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, captured: Captured, graph: Graph, launched: Callable[..., Result], masks: bool, *operands: Any
    ) -> Any:
        found = graph([each for each in operands if each is not None])
        shown = 1 + captured.program.problem.wants_weights
        ctx.captured, ctx.launched, ctx.masks = captured, launched, masks
        ctx.save_for_backward(*operands, *found[shown:])
        ctx.set_materialize_grads(False)
        return tuple(found[:shown])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, by_weight: Tensor | None = None) -> tuple[Tensor | None, ...]:
        operands, made, captured = ctx.saved_tensors[:6], ctx.saved_tensors[6:], ctx.captured
        wanted, graph = ctx.needs_input_grad[4:8], None
        if grad is None and by_weight is None:
            return (None,) * 10
        with exact(captured.program.problem.restrictions.device.type):
            if grad is not None and by_weight is None and not torch.is_grad_enabled() and not many_at_once(grad):
                compute = partial(captured.backward, ctx.masks, wanted)
                graph = captured.graph(("backward", ctx.masks, wanted), compute, [*operands, grad, *made])
            if graph is None:
                hidden = captured.hidden(ctx.masks, operands[0], operands[1], *operands[4:])

                def forward(*given: Tensor) -> tuple[Tensor | None, Tensor | None]:
                    result = ctx.launched(*given, *operands[4:], hidden)
                    return result.mean, result.weights

                found = local_gradients(forward, operands[:4], wanted, (grad, by_weight))
            else:
                rest = iter(graph([each for each in (*operands, grad, *made) if each is not None]))
                found = [next(rest) if learns else None for learns in wanted]
        return None, None, None, None, *found, None, None
