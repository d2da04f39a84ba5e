"""Programs: how calls of one signature run, chosen by the first of them and kept for those that follow."""

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
from dikkat._engine.addresses import check_room, exact, on_cpu
from dikkat._engine.pytorch_state import PLAIN_TYPES, check_values, extremes, is_eager, kernel_settings, saves_by_hook
from dikkat.scores import ScaledDot, Score
from dikkat.state import sunk

_STRIDED = torch.strided
_INTEGERS = frozenset({torch.int32, torch.int64})
_FLOATS = frozenset({torch.float32, torch.float64})
_NUMBERS = frozenset({float, int})
# The restrictions that a kept program takes, masks on a device alone.
_KEPT_RESTRICTIONS = ("valid_lens", "mask", "causal")
# Implementations that read their operands as they come.
_KEPT_IMPLEMENTATIONS = frozenset({"reference", "sdpa", "numba-few", "numba"})
# The most programs that are kept, since lengths vary.
_MOST = 1024


class Program(NamedTuple):
    """An implementation and the calls that it was chosen for."""

    name: str  # the implementation's
    problem: Problem  # the call; in a cached program without its tensors
    found: Any = None  # `Examined.found`
    records: bool = False  # whether gradients are recorded
    lens_shape: tuple[int, ...] | None = None  # the shape of aligned lengths; None without lengths
    ready: Callable[..., list[Tensor] | None] | None = None  # the implementation's `Backend.ready`
    captured: graphs.Captured | None = None  # its CUDA graphs, of repeated calls on a GPU; or None

    @classmethod
    def of(cls, problem: Problem, impl: str = "auto") -> "Program":
        """Return the program of a problem, by the implementation `impl` (or ValueError) or that of "auto"."""
        if impl == "auto":
            name, problem, examined = choose(problem)
            return cls(name, problem, examined[name].found if name in examined else None)
        if impl not in BACKENDS:
            raise ValueError(f"impl: got {impl!r}; expected 'auto', {', '.join(map(repr, BACKENDS))}")
        reasons, found = BACKENDS[impl].examine(problem)
        if reasons:
            raise ValueError(
                f"impl: got {impl!r}, which cannot run this call: {'; '.join(reasons)}; expected 'auto', or one that "
                "dikkat.implementations() says runs"
            )
        return cls(impl, problem, found)

    def run(self) -> Result:
        backend, problem = BACKENDS[self.name], self.problem
        if problem.dropout and problem.seeds is None and backend.wants_seeds:
            problem = replace(problem, seeds=validation.draw_seeds(problem.lead, problem.query.device))
        told = recording_hooks.current_observers()
        if not told:
            return self._run(problem)
        problem = problem.scaled()
        with recording_hooks.observed_by():  # what an implementation calls is part of this call
            *others, last = told
            result = last.compute(self.name, problem)
            if result is None:
                others, result = [*told], self._run(problem)
            for observer in others:
                observer.observe_calls([problem])
            for observer in told:
                observer.observe_output(result.mean)
        return result

    def _run(self, problem: Problem) -> Result:
        if problem.sink is not None:
            result = self._run(problem.unchecked_copy(sink=None))
            state, weights = sunk(result.state(), result.weights, problem.sink)
            return Result(state.mean, state.lse, weights, state.tail)
        found, backend = () if self.found is None else (self.found,), BACKENDS[self.name]
        with exact(problem.query.device.type):  # sums in float32 must not be cast to halves again
            return backend.run(problem if backend.scales else problem.scaled(), *found)

    def kept(self, repeats: bool = True) -> "Program":
        """The program without the call's numbers, for others of its signature; with graphs, if it `repeats`."""
        problem, make = self.problem, BACKENDS[self.name].ready
        shape = None if problem.restrictions.lens is None else tuple(problem.restrictions.lens.shape)
        ready = None if make is None else make(problem)
        kept: dict[Any, Any] | None = {} if on_cpu(problem.query) else None
        captured = None
        if repeats and graphs.are_of_use(problem):
            other = Program(choose(problem, captured=True).name, problem).kept(repeats=False)
            captured = graphs.Captured(other) if graphs.can_capture(other) else None
        return Program(
            self.name, problem.without_tensors().unchecked_copy(kept=kept), None, problem.records, shape, ready,
            captured,
        )  # fmt: skip

    def rerun(
        self, query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor, lens: Tensor | None,
        packed: Tensor | None, *, projects_keys: bool, projects_values: bool,
    ) -> Result | None:  # fmt: skip
        """The result of another call of its signature; None if that needs the checks of a first call.

        Hidden rows are not zeroed here. That is safe if they are finite (else the output is NaN: checked) and no value
        times gradient can overflow (checked by `are_moderate`). Query and key are projected, the lengths contiguous and
        as the caller gave them, `packed` is a memory's. `projects_keys` and `projects_values` say whether a projection
        made them, whose gradient multiplies its inputs.
        """
        template, backend = self.problem, BACKENDS[self.name]
        restrictions, known = template.restrictions, None
        if lens is not None:
            known = extremes(lens) if lens.numel() else (0, 0)
            if known[0] < 1 or known[1] > restrictions.keys:
                return None
            if known[0] == restrictions.keys:
                lens = None
            elif lens.dtype is not torch.int64:
                lens = lens.to(torch.int64)
        hides = lens is not None or restrictions.causal
        reads = hides and not backend.skips_hidden
        outputs = None if self.ready is None else self.ready(query, key, weight, value, lens)
        scored = outputs is not None and len(outputs) > 2
        if scored and not _is_finite(outputs[2]):  # type: ignore[index]  # of hidden keys too
            return None
        if hides and self.records:
            if (reads or projects_keys) and not scored and not _is_finite(key):
                return None
            blind = restrictions.causal and restrictions.queries > restrictions.keys  # the first queries see no key
            if blind and not _is_finite(query):
                return None
            if (projects_values or not backend.skips_hidden) and not are_moderate(value):
                return None
        if outputs is not None:
            result = Result(outputs[0], None, outputs[1] if template.wants_weights else None)
        else:
            if lens is not None and self.lens_shape is not None:
                restrictions = restrictions.unchecked_copy(lens=lens.view(self.lens_shape), extremes=known)
            problem = template.unchecked_copy(
                query=query, key=key, weight=weight, value=value, packed=packed, restrictions=restrictions,
                finite=True if reads else None,
            )  # fmt: skip
            result = backend.run(problem if backend.scales else problem.scaled())
        known_finite = scored and self.records  # scores, and values that are moderate
        return None if reads and not known_finite and not _is_finite(result.mean) else result

    def on_device(
        self, query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor, lens: Tensor | None,
        mask: Tensor | None, hidden: Hidden | None,
    ) -> Result:  # fmt: skip
        """`rerun` on a device: its values are not looked at, and hidden rows of queries and keys are 0.

        `lens` are aligned with the leading dimensions, `mask` has as many dimensions as the pairs, and `hidden` is what
        these and causality hide, or None.
        """
        given = query, key, weight, value, lens, mask, hidden
        with exact(self.problem.restrictions.device.type):
            result = None if self.captured is None else self.captured.run(self.launched, *given)
            return self.launched(*given) if result is None else result

    def launched(self, *given: Any) -> Result:
        template, (query, key, weight, value, *_, hidden) = self.problem, given
        if self.ready is not None:
            outputs: Any = self.ready(query, key, weight, value, hidden)
            mean, *weights = outputs
            return Result(mean.to(value.dtype), None, weights[0] if template.wants_weights else None)
        result = BACKENDS[self.name].run(self.problem_on_device(*given))
        return result if template.wants_state else result._replace(mean=result.mean.to(value.dtype))

    def problem_on_device(
        self, query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor, lens: Tensor | None,
        mask: Tensor | None, hidden: Hidden | None,
    ) -> Problem:  # fmt: skip
        template = self.problem
        if hidden is not None and hidden.keys is not None:
            value = value.masked_fill(hidden.keys.unsqueeze(-1), 0.0)
        weight = None if weight is None else weight[(None,) * len(template.lead)]
        return template.unchecked_copy(query=query, key=key, weight=weight, value=value, lens=lens, mask=mask)


def _is_finite(tensor: Tensor) -> bool:
    """Whether the sum of all numbers is finite, which no overflow is."""
    total = (tensor.detach() if tensor.requires_grad else tensor).sum().item()
    return total - total == 0


# By the signature of a call before its projections, and then by that of the projected operands.
_PROGRAMS: dict[Hashable, dict[Hashable, Program]] = {}


def run_call(
    query: Tensor, key: Tensor, value: Tensor, score: Score, requested: validation.Requested, impl: str,
    restricting: Restricting, heads: validation.Heads | None = None, prepared: validation.Prepared | None = None,
) -> Result:  # fmt: skip
    """The result of a call, by the program of its signature, which the first call of a signature makes.

    `heads` project the operands. `prepared` is a memory's: its keys are projected, and 0 past their lengths.
    """
    given = query, key, value
    signature = _signature(given, score, requested, heads, prepared, restricting) if impl == "auto" else None
    programs = None if signature is None else _PROGRAMS.get(signature)
    scales = signature is not None and prepared is None and type(score) is ScaledDot and on_cpu(query)
    if programs is not None:
        lens, mask, causal = restricting.get("valid_lens"), restricting.get("mask"), restricting.get("causal")
        result = _run_known(programs, query, key, value, score, heads, prepared, scales, lens, mask, causal)
        if result is not None:
            return result
    make: Any = validation.problem_of_call if prepared is None else validation.problem_of_prepared
    more = (heads, scales) if prepared is None else (prepared,)
    problem = make(*given, score, requested, *more, **restricting)
    program = Program.of(problem, impl)
    result = program.run()
    if heads is not None:  # in the projections' dtype, which autocast may have halved
        result = result._replace(mean=result.mean.to(problem.value.dtype))
    if signature is not None and _is_kept(program, heads, *given):
        problem = program.problem
        weight = None if problem.weight is None else problem.weight.reshape(-1)
        second = _projected_signature(problem.query, problem.key, weight, problem.value, scales and heads is None)
        if second not in _PROGRAMS.get(signature, {}):
            if sum(map(len, _PROGRAMS.values())) >= _MOST:
                _PROGRAMS.clear()
            kept = program.kept()
            # Only a first call clips distances that overflow. A kept program does not, so it must detect overflow in
            # its scores.
            if kept.ready or problem.pair != "distance" or program.name != "reference" or not on_cpu(query):
                _PROGRAMS.setdefault(signature, {})[second] = kept
    return result


def _run_known(
    programs: dict[Hashable, Program], query: Tensor, key: Tensor, value: Tensor, score: Score,
    heads: validation.Heads | None, prepared: validation.Prepared | None, scales: bool,
    lens: Any, mask: Any, causal: Any,
) -> Result | None:  # fmt: skip
    """The result of a call of a known signature; None if it needs the checks of a first call.

    Hidden rows are zeroed on a device, where a look at them would wait.
    """
    check_room("query", query)
    check_room("key", key)
    check_room("value", value)
    if lens is not None:
        check_room("valid_lens", lens)
    at_hand, hidden, projects, weight = on_cpu(query), None, heads is not None, None
    if not at_hand:
        lead = query.shape[:-2] if heads is None else torch.Size((*query.shape[:-2], heads.number))
        if lens is not None:
            lens = align(lens.to(torch.int64), lead)
        if mask is not None:
            check_room("mask", mask)
            mask = mask[(None,) * (len(lead) + 2 - mask.ndim)]
        if causal or lens is not None or mask is not None:
            hidden = Hidden(query.shape[-2], key.shape[-2], query.device, lens, mask, bool(causal))
            query, key, value = _without_hidden(hidden, query, key, value, heads, prepared)
    if heads is not None:
        query, key, value = heads.project(query, key, value)
    if scales:
        compared, projected = query, key
    else:
        compared, projected = score.project(query, key) if prepared is None else (score.project_query(query), key)
        weight = score.pair_weight()
    program = programs.get(_projected_signature(compared, projected, weight, value, scales and not projects))
    if program is None:
        return None
    if not at_hand:
        return program.on_device(compared, projected, weight, value, lens, mask, hidden)
    packed = None if prepared is None else prepared.packed
    return program.rerun(
        compared, projected, weight, value, lens, packed,
        projects_keys=projects or projected is not key, projects_values=projects,
    )  # fmt: skip


def _without_hidden(
    hidden: Hidden, query: Tensor, key: Tensor, value: Tensor,
    heads: validation.Heads | None, prepared: validation.Prepared | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Operands with 0 in hidden rows; `hidden.keys` remains where the values' are left to the program."""
    same = value is key
    if (dead := hidden.queries) is not None:
        query = _zeroed(query, _of_inputs(dead, heads))
    if prepared is not None:
        hidden.keys = None
    elif (unseen := hidden.keys) is not None:
        rows = _of_inputs(unseen, heads)
        key = _zeroed(key, rows)
        if same or heads is not None:
            value, hidden.keys = key if same else _zeroed(value, rows), None
    return query, key, value


def _of_inputs(hidden: Tensor, heads: validation.Heads | None) -> Tensor:
    """Drop the heads dimension of a hidden-rows mask and add a feature dimension, so that it masks a layer's inputs."""
    return (hidden if heads is None or hidden.ndim == 1 else hidden.squeeze(-2)).unsqueeze(-1)


def _zeroed(tensor: Tensor, rows: Tensor) -> Tensor:
    """A tensor with 0 in some rows, whose gradients are 0 in those rows already."""
    if not tensor.requires_grad or not torch.is_grad_enabled():
        return tensor.masked_fill(rows, 0.0)
    found: Tensor = _Zeroed.apply(tensor, rows)  # type: ignore[no-untyped-call]
    return found


class _Zeroed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, rows: Tensor) -> Tensor:
        return tensor.masked_fill(rows, 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def run_problem(problem: Problem, impl: str = "auto") -> Result:
    return Program.of(problem, impl).run()


def _signature(
    given: tuple[Tensor, Tensor, Tensor], score: Score, requested: validation.Requested,
    heads: validation.Heads | None, prepared: validation.Prepared | None, restricting: Restricting,
) -> Hashable:  # fmt: skip
    """Everything that the checks of a call depend on; None for a call whose program is not cached."""
    if not is_eager():
        return None
    for name, each in restricting.items():
        if each is not None and each is not False and name not in _KEPT_RESTRICTIONS:
            return None
    dropout, wants_state, wants_weights, sink = requested
    if type(dropout) not in _NUMBERS or dropout or sink is not None:
        return None
    if type(wants_state) is not bool or type(wants_weights) is not bool:
        return None
    own = vars(score) if isinstance(score, Score) else {"pair": score}
    if "pair" in own or "profile" in own or own.get("softcap") is not None:
        return None
    # Checkpointing computes a forward again, and what it saves must be the same: whether it is the first or not.
    if saves_by_hook():
        return None
    query, key, value = given
    lens, mask, causal = restricting.get("valid_lens"), restricting.get("mask"), restricting.get("causal", False)
    if not (_is_plain(query) and _is_plain(key) and _is_plain(value)) or type(causal) is not bool:
        return None
    place: Hashable = None
    if not (on_cpu(query) and on_cpu(key) and on_cpu(value)):
        if check_values.everywhere:  # each call checks its values
            return None
        device, by_mask = query.device, None
        if key.device != device or value.device != device or (isinstance(lens, Tensor) and lens.device != device):
            return None
        if mask is not None:
            if not isinstance(mask, Tensor) or not _is_plain(mask) or mask.dtype != torch.bool or mask.device != device:
                return None
            by_mask = mask.shape
        place = (device, kernel_settings(device.type), by_mask)
    elif mask is not None or score.reads_values or score.profile != "gaussian":
        return None
    by_lens = None
    if lens is not None:
        if not isinstance(lens, Tensor) or not _is_plain(lens):
            return None
        if lens.dtype not in _INTEGERS or not lens.is_contiguous() or on_cpu(lens) is not on_cpu(query):
            return None
        by_lens = lens.shape
    return (
        type(score), query.shape, query.dtype, key.shape, key.dtype, value.shape, value.dtype, by_lens, causal,
        requested, heads and heads.number, prepared and (prepared.packed is None,), place,
    )  # fmt: skip


def _is_plain(tensor: Any) -> bool:
    return type(tensor) in PLAIN_TYPES and tensor.layout is _STRIDED and not tensor.is_nested


def _projected_signature(query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor, as_given: bool) -> Hashable:
    """The rest that a program depends on: whether gradients are recorded, and a score's own sizes, if it projects."""
    learns = query.requires_grad or key.requires_grad or value.requires_grad
    records = torch.is_grad_enabled() and (learns or (weight is not None and weight.requires_grad))
    if as_given:
        return records
    own = None if weight is None else (type(weight), weight.shape, weight.dtype, weight.is_cpu)
    return (
        records, type(query), query.shape, query.dtype, type(key), key.shape, key.dtype, value.shape, value.dtype, own
    )  # fmt: skip


def _is_kept(program: Program, heads: validation.Heads | None, *given: Tensor) -> bool:
    """Whether a program serves other calls of its signature, given other numbers in the shapes of these."""
    problem = program.problem
    value, lead, restrictions = problem.value, problem.lead, problem.restrictions
    rows = lead if heads is None else lead[:-1]
    if not value.shape[-1] or any(t.shape[:-2] != rows for t in given):  # a kernel would read past a row that is shared
        return False
    if not on_cpu(given[0]):  # where a program hides rows itself
        by_head = heads is not None and restrictions.mask is not None and restrictions.mask.shape[-3] != 1
        return bool(restrictions.queries and restrictions.keys and lead.numel()) and not by_head
    if program.name not in _KEPT_IMPLEMENTATIONS or problem.finite is False:
        return False
    if value.dtype not in _FLOATS or any(
        type(t) not in PLAIN_TYPES or t.dtype is not value.dtype for t in (problem.query, problem.key)
    ):
        return False
    return problem.weight is None or (_is_plain(problem.weight) and problem.weight.dtype is value.dtype)
