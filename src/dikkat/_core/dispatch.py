"""The first call of a signature chooses an implementation. A cached `Program` keeps the choice for later calls."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dikkat._core import graphs, recording_hooks, validation
from dikkat._core.implementations import BACKENDS, choose
from dikkat._core.problem import Problem, Result
from dikkat._core.restricting import Restricting, align
from dikkat._core.restrictions import Hidden, are_moderate
from dikkat._engine.addresses import check_storage, exact, on_cpu
from dikkat._engine.pytorch_state import PLAIN_TYPES, check_values, extremes, has_save_hooks, is_eager, kernel_settings
from dikkat.scores import ScaledDot, Score
from dikkat.state import add_sink

_STRIDED = torch.strided
_INTEGERS = frozenset({torch.int32, torch.int64})
_FLOATS = frozenset({torch.float32, torch.float64})
_NUMBERS = frozenset({float, int})
# The restrictions that a cached program takes; masks only on a device.
_CACHED_RESTRICTIONS = ("valid_lens", "mask", "causal")
# Implementations that read their operands without converting them.
_CACHED_IMPLEMENTATIONS = frozenset({"reference", "sdpa", "numba-few", "numba"})
# The largest number of cached programs, since lengths vary.
_MAX_PROGRAMS = 1024


class Program(NamedTuple):
    """An implementation, and the call (or, if cached, the kind of call) that it was chosen for."""

    name: str  # of the implementation
    problem: Problem  # the call; without tensors if the program is cached
    findings: Any = None  # what `examine` found, which `run` takes
    records: bool = False  # whether gradients are recorded
    lens_shape: tuple[int, ...] | None = None  # shape of the lengths after `align`; None without lengths
    fast_run: Callable[..., list[Tensor] | None] | None = None  # from the implementation's `Backend.make_fast_run`
    captured: graphs.Captured | None = None  # its CUDA graphs for repeated calls on a GPU; or None

    @classmethod
    def of(cls, problem: Problem, impl: str = "auto") -> "Program":
        """Return the program that runs a problem with `impl`, or raise ValueError if it cannot; "auto" chooses."""
        if impl == "auto":
            name, problem, examined = choose(problem)
            return cls(name, problem, examined[name].findings if name in examined else None)
        if impl not in BACKENDS:
            raise ValueError(f"impl: got {impl!r}; expected 'auto', {', '.join(map(repr, BACKENDS))}")
        reasons, findings = BACKENDS[impl].examine(problem)
        if reasons:
            raise ValueError(
                f"impl: got {impl!r}, which cannot run this call: {'; '.join(reasons)}; expected 'auto', or one that "
                "dikkat.implementations() lists as running"
            )
        return cls(impl, problem, findings)

    def run(self) -> Result:
        backend, problem = BACKENDS[self.name], self.problem
        if problem.dropout and problem.seeds is None and backend.wants_seeds:
            problem = replace(problem, seeds=validation.draw_seeds(problem.lead, problem.query.device))
        observer = recording_hooks.current_observer()
        if observer is None:
            return self._run(problem)
        with recording_hooks.observed_by(None):  # nested calls of attention are part of this call
            return observer.run_call(self.name, problem.scaled(), self._run)

    def _run(self, problem: Problem) -> Result:
        if problem.sink is not None:
            result = self._run(problem.unchecked_copy(sink=None))
            state, weights = add_sink(result.state(), result.weights, problem.sink)
            return Result(state.mean, state.lse, weights, state.tail)
        findings, backend = () if self.findings is None else (self.findings,), BACKENDS[self.name]
        with exact(problem.query.device.type):  # autocast would round float32 sums to half precision
            return backend.run(problem if backend.scales else problem.scaled(), *findings)

    def for_cache(self, repeats: bool = True) -> "Program":
        """Return a copy without the call's tensors, for later calls. With `repeats`, it may use CUDA graphs."""
        problem, make_fast_run = self.problem, BACKENDS[self.name].make_fast_run
        lens_shape = None if problem.restrictions.lens is None else tuple(problem.restrictions.lens.shape)
        fast_run = None if make_fast_run is None else make_fast_run(problem)
        cache: dict[Any, Any] | None = {} if on_cpu(problem.query) else None
        captured = None
        if repeats and graphs.are_worthwhile(problem):
            captured_program = Program(choose(problem, captured=True).name, problem).for_cache(repeats=False)
            captured = graphs.Captured(captured_program) if graphs.can_capture(captured_program) else None
        return Program(
            self.name, problem.without_tensors().unchecked_copy(kept=cache), None, problem.records, lens_shape,
            fast_run, captured,
        )  # fmt: skip

    def run_on_cpu(
        self, query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor, lens: Tensor | None,
        packed: Tensor | None, *, projects_keys: bool, projects_values: bool,
    ) -> Result | None:  # fmt: skip
        """Run another call of the program's signature; return None if it needs the checks of a first call.

        This does not zero hidden rows. That is safe if they are finite (checked: else the output is NaN) and if no
        product of value and gradient can overflow (checked by `are_moderate`).

        `query` and `key` are projected. `lens` is contiguous and not yet aligned. `packed` comes from a memory.
        `projects_keys` and `projects_values` tell whether a projection computed the keys and values. Its gradient
        multiplies its inputs, which must then be finite too.
        """
        template, backend = self.problem, BACKENDS[self.name]
        restrictions, lens_extremes = template.restrictions, None
        if lens is not None:
            lens_extremes = extremes(lens) if lens.numel() else (0, 0)
            if lens_extremes[0] < 1 or lens_extremes[1] > restrictions.keys:
                return None
            if lens_extremes[0] == restrictions.keys:
                lens = None
            elif lens.dtype is not torch.int64:
                lens = lens.to(torch.int64)
        hides_keys = lens is not None or restrictions.causal
        reads_hidden = hides_keys and not backend.skips_hidden
        outputs = None if self.fast_run is None else self.fast_run(query, key, weight, value, lens)
        scores_checked = outputs is not None and len(outputs) > 2
        # The scores include those of hidden keys.
        if scores_checked and not _is_finite(outputs[2]):  # type: ignore[index]
            return None
        if hides_keys and self.records:
            if (reads_hidden or projects_keys) and not scores_checked and not _is_finite(key):
                return None
            # the first queries see no key
            has_blind_queries = restrictions.causal and restrictions.queries > restrictions.keys
            if has_blind_queries and not _is_finite(query):
                return None
            if (projects_values or not backend.skips_hidden) and not are_moderate(value):
                return None
        if outputs is not None:
            result = Result(outputs[0], None, outputs[1] if template.wants_weights else None)
        else:
            if lens is not None and self.lens_shape is not None:
                restrictions = restrictions.unchecked_copy(lens=lens.view(self.lens_shape), extremes=lens_extremes)
            problem = template.unchecked_copy(
                query=query, key=key, weight=weight, value=value, packed=packed, restrictions=restrictions,
                finite=True if reads_hidden else None,
            )  # fmt: skip
            result = backend.run(problem if backend.scales else problem.scaled())
        known_finite = scores_checked and self.records  # scores were finite, and values moderate: both checked above
        return None if reads_hidden and not known_finite and not _is_finite(result.mean) else result

    def run_on_device(
        self, query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor, lens: Tensor | None,
        mask: Tensor | None, hidden: Hidden | None,
    ) -> Result:  # fmt: skip
        """Run another call on a device, without reading values; hidden rows of queries and keys are already 0.

        `lens` is aligned with the leading dimensions, `mask` has all dimensions of the scores, and `hidden` holds the
        rows that lengths, mask and causality hide, or is None.
        """
        arguments = query, key, weight, value, lens, mask, hidden
        with exact(self.problem.restrictions.device.type):
            result = None if self.captured is None else self.captured.run(self.launch, *arguments)
            return self.launch(*arguments) if result is None else result

    def launch(self, *arguments: Any) -> Result:
        """Run the fast call, or else the backend."""
        template, (query, key, weight, value, *_, hidden) = self.problem, arguments
        if self.fast_run is not None:
            outputs: Any = self.fast_run(query, key, weight, value, hidden)
            mean, *weights = outputs
            return Result(mean.to(value.dtype), None, weights[0] if template.wants_weights else None)
        result = BACKENDS[self.name].run(self.problem_on_device(*arguments))
        return result if template.wants_state else result._replace(mean=result.mean.to(value.dtype))

    def problem_on_device(
        self, query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor, lens: Tensor | None,
        mask: Tensor | None, hidden: Hidden | None,
    ) -> Problem:  # fmt: skip
        """Return the problem with these tensors, and the rows of hidden values zeroed."""
        template = self.problem
        if hidden is not None and hidden.keys is not None:
            value = value.masked_fill(hidden.keys.unsqueeze(-1), 0.0)
        weight = None if weight is None else weight[(None,) * len(template.lead)]
        return template.unchecked_copy(query=query, key=key, weight=weight, value=value, lens=lens, mask=mask)


def _is_finite(tensor: Tensor) -> bool:
    """True if the sum of all numbers is finite; an overflow of the sum counts as not finite."""
    total = (tensor.detach() if tensor.requires_grad else tensor).sum().item()
    return total - total == 0


# Cached programs by the signature of a call before its projections, then by that of its projected operands.
_PROGRAMS: dict[Hashable, dict[Hashable, Program]] = {}


def run_call(
    query: Tensor, key: Tensor, value: Tensor, score: Score, requested: validation.Requested, impl: str,
    restricting: Restricting, heads: validation.Heads | None = None, prepared: validation.Prepared | None = None,
) -> Result:  # fmt: skip
    """Run a call with the cached program of its signature, which the first call builds.

    `heads` project the operands. `prepared` comes from a memory: its keys are projected already, and 0 past their
    lengths.
    """
    operands = query, key, value
    signature = _signature(operands, score, requested, heads, prepared, restricting) if impl == "auto" else None
    programs = None if signature is None else _PROGRAMS.get(signature)
    kernel_scales = signature is not None and prepared is None and type(score) is ScaledDot and on_cpu(query)
    if programs is not None:
        lens, mask, causal = restricting.get("valid_lens"), restricting.get("mask"), restricting.get("causal")
        result = _run_cached(programs, query, key, value, score, heads, prepared, kernel_scales, lens, mask, causal)
        if result is not None:
            return result
    make_problem: Any = validation.problem_of_call if prepared is None else validation.problem_of_prepared
    extra_arguments = (heads, kernel_scales) if prepared is None else (prepared,)
    problem = make_problem(*operands, score, requested, *extra_arguments, **restricting)
    program = Program.of(problem, impl)
    result = program.run()
    if heads is not None:  # in the projections' dtype, which autocast may have reduced
        result = result._replace(mean=result.mean.to(problem.value.dtype))
    if signature is not None and _is_reusable(program, heads, *operands):
        problem = program.problem
        weight = None if problem.weight is None else problem.weight.reshape(-1)
        projected_signature = _projected_signature(
            problem.query, problem.key, weight, problem.value, kernel_scales and heads is None
        )
        if projected_signature not in _PROGRAMS.get(signature, {}):
            if sum(map(len, _PROGRAMS.values())) >= _MAX_PROGRAMS:
                _PROGRAMS.clear()
            cached = program.for_cache()
            # Only a first call clips distances that overflow. A cached program must detect overflow in its scores.
            if cached.fast_run or problem.pair != "distance" or program.name != "reference" or not on_cpu(query):
                _PROGRAMS.setdefault(signature, {})[projected_signature] = cached
    return result


def _run_cached(
    programs: dict[Hashable, Program], query: Tensor, key: Tensor, value: Tensor, score: Score,
    heads: validation.Heads | None, prepared: validation.Prepared | None, kernel_scales: bool,
    lens: Any, mask: Any, causal: Any,
) -> Result | None:  # fmt: skip
    """Run a call of a known signature; return None if it needs the checks of a first call.

    On a device hidden rows are zeroed, because reading their values would wait for the device.
    """
    check_storage("query", query)
    check_storage("key", key)
    check_storage("value", value)
    if lens is not None:
        check_storage("valid_lens", lens)
    in_cpu_memory, hidden, projects, weight = on_cpu(query), None, heads is not None, None
    if not in_cpu_memory:
        lead = query.shape[:-2] if heads is None else torch.Size((*query.shape[:-2], heads.number))
        if lens is not None:
            lens = align(lens.to(torch.int64), lead)
        if mask is not None:
            check_storage("mask", mask)
            mask = mask[(None,) * (len(lead) + 2 - mask.ndim)]
        if causal or lens is not None or mask is not None:
            hidden = Hidden(query.shape[-2], key.shape[-2], query.device, lens, mask, bool(causal))
            query, key, value = _without_hidden(hidden, query, key, value, heads, prepared)
    if heads is not None:
        query, key, value = heads.project(query, key, value)
    if kernel_scales:
        query_side, key_side = query, key
    else:
        query_side, key_side = score.project(query, key) if prepared is None else (score.project_query(query), key)
        weight = score.pair_weight()
    program = programs.get(_projected_signature(query_side, key_side, weight, value, kernel_scales and not projects))
    if program is None:
        return None
    if not in_cpu_memory:
        return program.run_on_device(query_side, key_side, weight, value, lens, mask, hidden)
    packed = None if prepared is None else prepared.packed
    return program.run_on_cpu(
        query_side, key_side, weight, value, lens, packed,
        projects_keys=projects or key_side is not key, projects_values=projects,
    )  # fmt: skip


def _without_hidden(
    hidden: Hidden, query: Tensor, key: Tensor, value: Tensor,
    heads: validation.Heads | None, prepared: validation.Prepared | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Zero the hidden rows of the operands. Set `hidden.keys` to None unless the program must still zero values."""
    shares_tensor = value is key
    if (hidden_queries := hidden.queries) is not None:
        query = _zero_rows(query, _expand_to_inputs(hidden_queries, heads))
    if prepared is not None:
        hidden.keys = None
    elif (hidden_keys := hidden.keys) is not None:
        rows = _expand_to_inputs(hidden_keys, heads)
        key = _zero_rows(key, rows)
        if shares_tensor or heads is not None:
            value, hidden.keys = key if shares_tensor else _zero_rows(value, rows), None
    return query, key, value


def _expand_to_inputs(hidden: Tensor, heads: validation.Heads | None) -> Tensor:
    """Drop the heads dimension of a hidden-rows mask and add a feature dimension, so that it masks a layer's inputs."""
    return (hidden if heads is None or hidden.ndim == 1 else hidden.squeeze(-2)).unsqueeze(-1)


def _zero_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Zero some rows of a tensor whose gradients are already 0 in these rows."""
    if not tensor.requires_grad or not torch.is_grad_enabled():
        return tensor.masked_fill(rows, 0.0)
    zeroed: Tensor = _Zeroed.apply(tensor, rows)  # type: ignore[no-untyped-call]
    return zeroed


class _Zeroed(torch.autograd.Function):
    """Zeroes rows, and passes the gradient on, which is 0 there."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, rows: Tensor) -> Tensor:
        return tensor.masked_fill(rows, 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def run_problem(problem: Problem, impl: str = "auto") -> Result:
    """Choose a program for a problem and run it."""
    return Program.of(problem, impl).run()


def _signature(
    operands: tuple[Tensor, Tensor, Tensor], score: Score, requested: validation.Requested,
    heads: validation.Heads | None, prepared: validation.Prepared | None, restricting: Restricting,
) -> Hashable:  # fmt: skip
    """Return everything that the checks of a call depend on; None if its program cannot be cached."""
    if not is_eager():
        return None
    for name, argument in restricting.items():
        if argument is not None and argument is not False and name not in _CACHED_RESTRICTIONS:
            return None
    dropout, wants_state, wants_weights, sink = requested
    if type(dropout) not in _NUMBERS or dropout or sink is not None:
        return None
    if type(wants_state) is not bool or type(wants_weights) is not bool:
        return None
    attributes = vars(score) if isinstance(score, Score) else {"pair": score}
    if "pair" in attributes or "profile" in attributes or attributes.get("softcap") is not None:
        return None
    # Checkpointing repeats a forward, which must then save the same tensors, although it is no longer the first.
    if has_save_hooks():
        return None
    query, key, value = operands
    lens, mask, causal = restricting.get("valid_lens"), restricting.get("mask"), restricting.get("causal", False)
    if not (_is_plain(query) and _is_plain(key) and _is_plain(value)) or type(causal) is not bool:
        return None
    device_key: Hashable = None
    if not (on_cpu(query) and on_cpu(key) and on_cpu(value)):
        if check_values.everywhere:  # each call checks its values
            return None
        device, mask_shape = query.device, None
        if key.device != device or value.device != device or (isinstance(lens, Tensor) and lens.device != device):
            return None
        if mask is not None:
            if not isinstance(mask, Tensor) or not _is_plain(mask) or mask.dtype != torch.bool or mask.device != device:
                return None
            mask_shape = mask.shape
        device_key = (device, kernel_settings(device.type), mask_shape)
    elif mask is not None or score.reads_values or score.profile != "gaussian":
        return None
    lens_shape = None
    if lens is not None:
        if not isinstance(lens, Tensor) or not _is_plain(lens):
            return None
        if lens.dtype not in _INTEGERS or not lens.is_contiguous() or on_cpu(lens) is not on_cpu(query):
            return None
        lens_shape = lens.shape
    return (
        type(score), query.shape, query.dtype, key.shape, key.dtype, value.shape, value.dtype, lens_shape, causal,
        requested, heads and heads.number, prepared and (prepared.packed is None,), device_key,
    )  # fmt: skip


def _is_plain(tensor: Any) -> bool:
    return type(tensor) in PLAIN_TYPES and tensor.layout is _STRIDED and not tensor.is_nested


def _projected_signature(
    query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor, is_unprojected: bool
) -> Hashable:
    """Return the signature after the projections: whether gradients are recorded, the operands' shapes and dtypes."""
    needs_grad = query.requires_grad or key.requires_grad or value.requires_grad
    records = torch.is_grad_enabled() and (needs_grad or (weight is not None and weight.requires_grad))
    if is_unprojected:
        return records
    weight_key = None if weight is None else (type(weight), weight.shape, weight.dtype, weight.is_cpu)
    return (
        records, type(query), query.shape, query.dtype, type(key), key.shape, key.dtype, value.shape, value.dtype,
        weight_key,
    )  # fmt: skip


def _is_reusable(program: Program, heads: validation.Heads | None, *operands: Tensor) -> bool:
    """True if a program can run later calls of the same shapes with other values."""
    problem = program.problem
    value, lead, restrictions = problem.value, problem.lead, problem.restrictions
    batch = lead if heads is None else lead[:-1]
    # kernels index each batch element, and would read beyond a broadcast operand
    if not value.shape[-1] or any(t.shape[:-2] != batch for t in operands):
        return False
    if not on_cpu(operands[0]):  # there the program itself zeroes hidden rows
        by_head = heads is not None and restrictions.mask is not None and restrictions.mask.shape[-3] != 1
        return bool(restrictions.queries and restrictions.keys and lead.numel()) and not by_head
    if program.name not in _CACHED_IMPLEMENTATIONS or problem.finite is False:
        return False
    if value.dtype not in _FLOATS or any(
        type(t) not in PLAIN_TYPES or t.dtype is not value.dtype for t in (problem.query, problem.key)
    ):
        return False
    return problem.weight is None or (_is_plain(problem.weight) and problem.weight.dtype is value.dtype)
