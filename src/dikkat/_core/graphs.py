"""CUDA graphs of repeated calls on a GPU: the host launches one graph instead of dozens of kernels.

A graph reads copies of a call's operands, and its results are copied out. It holds no state of a call, so other calls
may run between a forward and its backward, which computes from the operands.
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
from dikkat._engine.addresses import are_batched, exact
from dikkat._engine.local_gradients import local_gradients

if TYPE_CHECKING:
    from dikkat._core.dispatch import Program

# AFTER: calls before the first capture, since a capture takes as long as ten calls. _LONGER: after each eviction wait
# this many times longer, so that ever-new shapes rarely pay for a capture.
AFTER, _LONGER = 2, 8
# With more pairs than this, the kernels run longer than the host needs to launch them.
_PAIRS = 2**26
# The limits before all graphs are dropped: graphs of a stream, share of the device's memory for all streams.
_MAX_GRAPHS, _MAX_SHARE = 256, 1 / 32

Operands = Sequence[Tensor | None]


class Lane:
    """The graphs of one stream, which run one after the other and share the memory of intermediate results."""

    def __init__(self, device: torch.device) -> None:
        self.stream, self.device = torch.cuda.Stream(device), device
        self.memory_limit = _MAX_SHARE * torch.cuda.get_device_properties(device).total_memory
        self.drop()

    def drop(self) -> None:
        self.graphs: dict[Hashable, Graph] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def used_memory(self) -> int:
        blocks = [block for block in torch.cuda.memory_snapshot() if block["segment_pool_id"] == self.pool]
        return sum([int(block["total_size"]) for block in blocks] + [graph.nbytes for graph in self.graphs.values()])

    def capture(self, compute: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        """Capture a computation; return a function that repeats it, and the tensors that it writes the results to."""
        compute()  # compiles kernels, which is impossible during a capture
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
_lock = RLock()  # held from the copies into a graph to the copies out of it


def lane_of(device: torch.device) -> Lane | None:
    """Return the lane for calls on a device now; None if graphs cannot run now."""
    if device.index != torch.cuda.current_device() or torch.cuda.is_current_stream_capturing():
        return None
    key = device.index, torch._C._cuda_getCurrentRawStream(device.index)  # the public function takes 3 µs
    if key not in _LANES:
        _LANES[key] = Lane(device)
    return _LANES[key]


def are_worthwhile(problem: Problem) -> bool:
    plain = problem.pair != "inner" and not problem.wants_state
    return plain and problem.query.is_cuda and pairs_of(problem) <= _PAIRS


def can_capture(program: "Program") -> bool:
    """True if the host can launch a program's forward and backward without reading values."""
    return program.fast_run is not None or isinstance(BACKENDS[program.name].run, Operator)


class Graph:
    def __init__(self, lane: Lane, compute: Callable[[list[Tensor]], list[Tensor]], operands: list[Tensor]) -> None:
        with torch.inference_mode(False), torch.no_grad():  # so that calls in any mode can write to them
            self._inputs = [torch.empty(t.shape, dtype=t.dtype, device=t.device).copy_(t) for t in operands]
            self._replay, results = lane.capture(lambda: compute(self._inputs))
        self._results = list({id(result): result for result in results}.values())
        self._order = [next(i for i, unique in enumerate(self._results) if unique is result) for result in results]
        self.nbytes = sum(tensor.nbytes for tensor in self._inputs)

    def __call__(self, operands: list[Tensor]) -> list[Tensor]:
        with _lock:
            torch._foreach_copy_(self._inputs, operands)
            self._replay()
            copies = [torch.empty_like(result) for result in self._results]
            torch._foreach_copy_(copies, self._results)
        return [copies[i] for i in self._order]


class Captured:
    """The graphs of a cached program: a forward, and a backward for each set of operands that need gradients."""

    def __init__(self, program: "Program") -> None:
        self.program = program
        self._calls, self._disabled = 0, False
        self._captures: Counter[Hashable] = Counter()

    def run(self, launch: Callable[..., Result], *arguments: Any) -> Result | None:
        """Replay a call with the arguments of `Program.on_device`; return None if no graph can run it.

        `launch` runs the call without graphs; its gradients can be differentiated.
        """
        self._calls += 1
        *operands, hidden = arguments
        masks = hidden is not None and hidden.keys is not None
        graph = self.graph(("forward", masks), partial(self._forward, masks), operands)
        if graph is None:
            return None
        if self.program.records:
            mean, *weights = _Replayed.apply(self, graph, launch, masks, *operands)  # type: ignore[no-untyped-call]
        else:
            mean, *weights = graph([tensor for tensor in operands if tensor is not None])
        return Result(mean, None, weights[0] if self.program.problem.wants_weights else None)

    def graph(self, key: Hashable, compute: Callable[..., list[Tensor]], operands: Operands) -> Graph | None:
        """Return the graph of a computation, captured if it has none; None if it cannot be captured (yet)."""
        lane = None if self._disabled else lane_of(self.program.problem.restrictions.device)
        if lane is None:
            return None
        graph = lane.graphs.get((self, key))
        if graph is None and self._calls > AFTER * _LONGER ** self._captures[lane, key]:
            graph = self._capture(lane, key, compute, operands)
        return graph

    def _capture(
        self, lane: Lane, key: Hashable, compute: Callable[..., list[Tensor]], operands: Operands
    ) -> Graph | None:
        present = [operand is not None for operand in operands]

        def compute_on(inputs: list[Tensor]) -> list[Tensor]:
            tensors = iter(inputs)
            return compute(*(next(tensors) if is_present else None for is_present in present))

        with _lock:
            lanes = [peer for peer in {lane, *_LANES.values()} if peer.device == lane.device]
            if len(lane.graphs) >= _MAX_GRAPHS or sum(peer.used_memory() for peer in lanes) > lane.memory_limit:
                for peer in lanes:
                    peer.drop()
            try:
                graph = Graph(lane, compute_on, [tensor for tensor in operands if tensor is not None])
            except RuntimeError as error:
                lane.drop()
                self._disabled = True
                if not isinstance(error, torch.OutOfMemoryError):  # without graphs the memory may suffice
                    warnings.warn(
                        f"attend: a repeated call could not be captured as a CUDA graph ({error}); its kernels run "
                        "one by one, which is slower",
                        RuntimeWarning,
                        stacklevel=2,
                    )
                return None
            lane.graphs[self, key] = graph
            if len(lane.graphs) == 1 and lane.used_memory() > lane.memory_limit:
                lane.drop()
                self._disabled = True
                return None
            self._captures[lane, key] += 1
            return graph

    def hidden(self, masks: bool, query: Tensor, key: Tensor, lens: Tensor | None, mask: Tensor | None) -> Any:
        """Return the pairs that a call hides; `keys` is set if hidden values have not been zeroed yet."""
        causal = self.program.problem.restrictions.causal
        if lens is None and mask is None and not causal:
            return None
        hidden = Hidden(query.shape[-2], key.shape[-2], query.device, lens, mask, causal)
        if not masks:
            hidden.keys = None
        return hidden

    def _forward(
        self, masks: bool, query: Tensor, key: Tensor, weight: Any, value: Tensor, *limits: Any
    ) -> list[Tensor]:
        """Return the mean, weights if requested, and further tensors for the backward pass."""
        program, hidden = self.program, self.hidden(masks, query, key, *limits)
        wants_weights = program.problem.wants_weights
        if program.fast_run is not None:
            mean, *weights = program.fast_run(query, key, weight, value, hidden)  # type: ignore[misc]
            return [mean.to(value.dtype), *weights[:wants_weights]]
        kernel, problem = self._kernel(), self._problem(query, key, weight, value, *limits, hidden)
        keeps = program.records and kernel.keep is not None
        out, extra = kernel.keep(problem) if keeps else (kernel.forward(problem), ())
        mean = out.mean.to(value.dtype)
        outputs = [mean, *[out.weights.to(value.dtype)][:wants_weights]]
        if not program.records:
            return outputs
        return [*outputs, out.mean.detach(), out.peak, out.total, *extra]  # the caller may write to `mean`

    def backward(
        self, masks: bool, needed: tuple[bool, ...], query: Tensor, key: Tensor, weight: Any, value: Tensor,
        lens: Tensor | None, mask: Tensor | None, grad: Tensor, *saved: Tensor,
    ) -> list[Tensor]:  # fmt: skip
        """Return the needed gradients, from the operands, the mean's gradient and the forward's saved tensors."""
        program, hidden = self.program, self.hidden(masks, query, key, lens, mask)
        tensors = query, key, weight, value
        if program.fast_run is not None:
            input_grads = local_gradients(
                lambda *operands: [program.fast_run(*operands, hidden)[0].to(value.dtype)],  # type: ignore[index,misc]
                tensors, needed, [grad],
            )  # fmt: skip
            return [g for g, used in zip(input_grads, needed, strict=True) if used]  # type: ignore[misc]
        kernel, problem = self._kernel(), self._problem(*tensors, lens, mask, hidden)
        out, extra = (*saved[:3], saved[0].new_empty(0)), saved[3:]
        zeros = [None if kernel.keep else torch.zeros_like(tensor) for tensor in out[1:]]
        grads: Any = grad.to(saved[0].dtype), *zeros
        input_grads = kernel.backward(problem.unchecked_copy(wants_weights=False), Output(*out), Output(*grads), *extra)
        if hidden is not None and hidden.keys is not None:
            input_grads = input_grads._replace(value=input_grads.value.masked_fill(hidden.keys.unsqueeze(-1), 0.0))
        return [g.view(t.shape).to(t.dtype) for g, t, used in zip(input_grads, tensors, needed, strict=False) if used]

    def _kernel(self) -> Any:
        return BACKENDS[self.program.name].run

    def _problem(self, *arguments: Any) -> Problem:
        problem = self.program.problem_on_device(*arguments)
        return problem if self._kernel().keep else problem.in_wide_dtype()


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, captured: Captured, graph: Graph, launch: Callable[..., Result], masks: bool, *operands: Any
    ) -> Any:
        results = graph([operand for operand in operands if operand is not None])
        output_count = 1 + captured.program.problem.wants_weights
        ctx.captured, ctx.launch, ctx.masks = captured, launch, masks
        ctx.save_for_backward(*operands, *results[output_count:])
        ctx.set_materialize_grads(False)
        return tuple(results[:output_count])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, weights_grad: Tensor | None = None) -> tuple[Tensor | None, ...]:
        operands, saved, captured = ctx.saved_tensors[:6], ctx.saved_tensors[6:], ctx.captured
        needed, graph = ctx.needs_input_grad[4:8], None
        if grad is None and weights_grad is None:
            return (None,) * 10
        with exact(captured.program.problem.restrictions.device.type):
            if grad is not None and weights_grad is None and not torch.is_grad_enabled() and not are_batched(grad):
                compute = partial(captured.backward, ctx.masks, needed)
                graph = captured.graph(("backward", ctx.masks, needed), compute, [*operands, grad, *saved])
            if graph is None:
                hidden = captured.hidden(ctx.masks, operands[0], operands[1], *operands[4:])

                def forward(*inputs: Tensor) -> tuple[Tensor | None, Tensor | None]:
                    result = ctx.launch(*inputs, *operands[4:], hidden)
                    return result.mean, result.weights

                grads = local_gradients(forward, operands[:4], needed, (grad, weights_grad))
            else:
                results = iter(graph([tensor for tensor in (*operands, grad, *saved) if tensor is not None]))
                grads = [next(results) if is_needed else None for is_needed in needed]
        return None, None, None, None, *grads, None, None
