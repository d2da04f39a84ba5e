import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple, TypeVar, cast
from uuid import uuid4

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dikkat import call, scores
from dikkat.attention import Memory, attend_memory, project
from dikkat.backends import pack
from dikkat.cpu.recurrence import launch as fused
from dikkat.masking import check_dense
from dikkat.recurrent import cells
from dikkat.recurrent.stack import check_lengths, check_probability, check_stack, choose
from dikkat.scores import Score, is_plain
from dikkat.snapshot import frozen, learns, traced


@dataclass(frozen=True)
class Covered:
    """A decoder's state with what the steps so far looked at: `begin` makes the first one.

    Attributes:
        state: of the cells, (layers, B, h), of an LSTM two of them.
        coverage: (B, m), the sum of the weights that each position has had.
    """

    state: Tensor | tuple[Tensor, Tensor]
    coverage: Tensor


StateT = TypeVar("StateT", bound=Tensor | tuple[Tensor, Tensor] | Covered)  # what comes in goes out

# Scores whose queries are an affine function of the state: a recurrence can do that as one matrix product.
_AFFINE = (
    scores.ScaledDot, scores.VectorSum, scores.Average,
    scores.Gaussian, scores.Boxcar, scores.Epanechnikov, scores.Triangular,
)  # fmt: skip


class _Masks(NamedTuple):
    """What is kept of the features between layers, (layers − 1, B, T, h), and of the weights, (B, T, m), scaled."""

    features: Tensor | None
    weights: Tensor | None


class _Once:
    """What is made when it is first asked for, by one of the threads that ask."""

    def __init__(self, make: Callable[[], fused.Stepper]) -> None:
        self._make, self._lock = make, Lock()
        self._made: fused.Stepper | None = None

    def __call__(self) -> fused.Stepper:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made


class _Stepped(Memory):
    """A memory for steps without gradients, with what they share: weights in panels, exponentials.

    Rows that are selected are told to the steps; the memory itself is copied only where somebody asks for it.
    """

    def __new__(cls, *_: Any, **changed: Any) -> Any:
        """What `dataclasses.replace` makes of it is a plain memory: what steps share is of the old one."""
        return Memory(**changed) if changed else super().__new__(cls)

    def __init__(self, whole: Memory, make: _Once, batch: int, rows: Tensor | None = None) -> None:
        own = {"whole": whole, "make": make, "batch": batch, "rows": rows}
        self.__dict__ |= own | {"seen": whole.seen, "maker": whole.maker, "stamp": whole.stamp, "score": whole.score}

    def __reduce__(self) -> Any:
        """Copied and stored as a plain memory: what steps share is addresses."""
        return self.selected().__reduce__()

    @cached_property
    def stepper(self) -> fused.Stepper:
        """Made for the first step, since `forward` needs none; of weights that nobody changes."""
        whole: fused.Stepper = self.make()
        return whole if self.rows is None else whole.select(self.rows)

    def __getattribute__(self, name: str) -> Any:
        if name in _OF_ROWS:
            return getattr(self.selected(), name)
        return super().__getattribute__(name)

    def selected(self) -> Memory:
        """A plain memory of the rows."""
        whole: Memory = self.whole
        return whole if self.rows is None else whole.select(self.rows)

    def select(self, rows: Tensor) -> Memory:
        """Some of the sequences."""
        call.check_rows(rows, self.batch)
        composed = rows.to(torch.int64, copy=True) if self.rows is None else self.rows.index_select(0, rows)
        return _Stepped(self.whole, self.make, len(rows), composed)


_OF_ROWS = {"key", "value", "valid_lens", "packed"}


class _State(NamedTuple):
    """A state's parts: hidden and cell (layers, B, h), the cell of an LSTM alone, and the coverage (B, m), if any."""

    hidden: Tensor
    cell: Tensor | None
    coverage: Tensor | None


class _Attentional(nn.Module):
    """A stack of cells that looks at a memory before every step: what a GRU and an LSTM share."""

    gates: int  # of a cell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        context_size: int,
        score: Score,
        num_layers: int = 1,
        dropout: float = 0.0,
        weight_dropout: float = 0.0,
        coverage: bool = False,
    ) -> None:
        super().__init__()
        call.check_score(score)
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "context_size": context_size}
        check_stack(num_layers, dropout, **sizes)
        check_probability("weight_dropout", weight_dropout)
        self.input_size, self.hidden_size, self.context_size = input_size, hidden_size, context_size
        self.num_layers, self.dropout, self.weight_dropout = num_layers, dropout, weight_dropout
        bound = 1 / math.sqrt(hidden_size)
        for layer in range(num_layers):
            columns = input_size + context_size if layer == 0 else hidden_size
            shapes = {"weight_ih": (columns,), "weight_hh": (hidden_size,), "bias_ih": (), "bias_hh": ()}
            for name, rest in shapes.items():
                values = torch.empty(self.gates * hidden_size, *rest).uniform_(-bound, bound)
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(values))
        self.coverage = coverage
        if coverage:
            like = next(score.parameters(), torch.empty(0))
            features = score.project_key(like.new_zeros(1, context_size)).shape[-1]
            self.coverage_weight = nn.Parameter(torch.zeros(features))
        _check_queries(score, hidden_size)
        self.score = score
        self._maker = uuid4().hex

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy is another layer, whose weights go their own way."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # PyTorch's own has no types
        self._maker = uuid4().hex

    def prepare(self, encoded: Tensor, valid_lens: Tensor | None = None) -> Memory:
        """Project a batch of encoded sequences to keys, once for all steps; they are the values too.

        Args:
            encoded: (B, m, c) floating point.
            valid_lens: (B,) integers, the true lengths; positions past them are never looked at. None: all are real.

        Returns:
            The memory that `forward` and `step` look at; `memory.select(rows)` reorders its batch. What this call saw
            is what counts: writing to `encoded` or `valid_lens` afterwards changes nothing. Nor does changing the
            weights, of cells and score alike, where gradients are off: the memory keeps a copy of them, also when it
            is stored. Where the weights learn, `forward` takes them as they are, and refuses a memory once its score
            has been changed.
        """
        return self._prepared(encoded, valid_lens, frozen)

    def prepare_live(self, encoded: Tensor, valid_lens: Tensor | None = None) -> Memory:
        """`prepare` without the copy of the weights, for a search that is over before anybody changes them.

        Args:
            encoded: (B, m, c) floating point.
            valid_lens: (B,) integers, the true lengths; None: all positions are real.

        Returns:
            The memory. Its steps have the weights of the first step, or those of a later one: change none meanwhile.
        """
        return self._prepared(encoded, valid_lens, lambda module: module)

    def _prepared(self, encoded: Tensor, valid_lens: Tensor | None, keep: Callable[[nn.Module], nn.Module]) -> Memory:
        check_dense("encoded", encoded)
        memory = project(encoded, encoded, score=self.score, valid_lens=valid_lens)
        if not traced() and not learns(self, memory.key, memory.value):
            # What hooks make of weights they make when a module is called.
            seen = keep(self.score if self._hooked() else self)
            memory = replace(memory, seen=seen, maker=self._maker)
        if self.coverage:  # the keys change from step to step: nothing can be kept of them
            return memory
        seen_by = memory.seen
        if self._obstacles(encoded, memory, self.score) or not isinstance(seen_by, _Attentional):
            return replace(memory, packed=pack(self.score.pair, memory.key))
        if torch.is_grad_enabled():
            return memory
        looked_at = Memory(seen_by.score, memory.key, memory.value, memory.valid_lens)
        once = _Once(lambda: fused.Stepper(seen_by._layers(), seen_by._attention(looked_at)))
        return _Stepped(memory, once, len(memory.key))

    def begin(self, state: Tensor | tuple[Tensor, Tensor], memory: Memory) -> Tensor | tuple[Tensor, Tensor] | Covered:
        """The state before the first step: with coverage, nothing has been looked at.

        Args:
            state: of the cells, (layers, B, h), of an LSTM two of them.
            memory: what `prepare` returned, of m positions.

        Returns:
            What `forward` and `step` take: the state itself, or, with coverage, `Covered`.
        """
        if not self.coverage:
            return state
        hidden = state if isinstance(state, Tensor) else state[0]
        return Covered(state, hidden.new_zeros(hidden.shape[1], memory.key.shape[-2]))

    def forward(
        self,
        inputs: Tensor,
        memory: Memory,
        state: StateT,
        *,
        lengths: Tensor | None = None,
        return_weights: bool = False,
        impl: str = "auto",
    ) -> tuple[Tensor, Tensor, Tensor | None, StateT]:
        """Run over whole sequences of inputs, as in training.

        Args:
            inputs: (B, T, e), one input a step.
            memory: what `prepare` returned, of m positions.
            state: before the first step: (layers, B, h), of an LSTM two of them, its states and its cells; with
                coverage what `begin` makes of that.
            lengths: (B,) integers from 1 to T, the steps that each sequence has: the others cost nothing, and what
                stands there has no effect. None: all have T.
            return_weights: whether to return what each step looked at.
            impl: `"numba"` runs all steps as one operation, with a backward of its own, on a CPU, for every score but
                `Cosine` and those of one's own, without coverage; `"reference"` is a loop of PyTorch's operations, and
                runs everywhere; `"auto"` takes the first where it runs.

        Returns:
            The top layer's states (B, T, h); the contexts (B, T, c); the attention weights (B, T, m) before dropout, or
            None unless they were asked for; all 0 where a sequence is over. The state after each sequence's last step.

        Raises:
            TypeError: inputs that are no dense tensor, or lengths that are not integers.
            ValueError: inputs, lengths or a state of the wrong shape, inputs without a step, a length outside 1 … T, or
                an `impl` that is none or cannot run.
        """
        check_dense("inputs", inputs)
        self._check_memory(inputs, memory)
        before = self._check(inputs, memory, state)
        batch, steps = inputs.shape[:2]
        if lengths is not None:
            lengths = check_lengths(lengths, batch, steps, "steps of inputs")
        masks = self._masks(inputs, memory)
        by, memory = self._as_seen(memory)
        memory.check_recorded(by, inputs, before.hidden)
        fits = choose(impl, by._obstacles(inputs, memory, memory.score, before)) == "numba"
        run = by._fused if fits else by._plain
        outputs, contexts, weights, last = run(inputs, memory, before, lengths, masks, return_weights)
        return outputs, contexts, weights, cast(StateT, self._joined(last))

    def step(
        self, inputs: Tensor, memory: Memory, state: StateT, *, return_weights: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None, StateT]:
        """Run one step, as in a search, where the next input depends on the last output.

        Args:
            inputs: (B, e), the input of this step.
            memory: what `prepare` returned, of m positions.
            state: before this step, as in `forward`.
            return_weights: whether to return what the step looked at.

        Returns:
            The top layer's state (B, h); the context (B, c); the attention weights (B, m), or None unless they were
            asked for; the state after the step.

        Raises:
            TypeError: inputs that are no dense tensor.
            ValueError: inputs or a state of the wrong shape.
        """
        check_dense("inputs", inputs)
        if isinstance(memory, _Stepped) and self._steps(memory):
            hidden, cell, _ = self._check(inputs.unsqueeze(1), memory, state)
            if len(inputs) != memory.batch:
                raise _other_batch(memory.batch, len(inputs))
            found = memory.stepper.step(cast(_Attentional, memory.seen)._first_gates(inputs), hidden, cell)
            contexts, weights = cast(Tensor, found.contexts), found.weights if return_weights else None
            return found.state[-1], contexts, weights, cast(StateT, self._joined(_State(found.state, found.cell, None)))
        outputs, contexts, weights, state = self(inputs.unsqueeze(1), memory, state, return_weights=return_weights)
        return outputs.squeeze(1), contexts.squeeze(1), None if weights is None else weights.squeeze(1), state

    def select(self, state: StateT, rows: Tensor) -> StateT:
        """The state of some of the sequences, in any order and number: how a beam search reorders.

        Args:
            state: (layers, B, h), of an LSTM two of them; with coverage, both.
            rows: (B',) integers, indices into B.

        Returns:
            The same of (layers, B', h).
        """
        chosen: Tensor | tuple[Tensor, Tensor] | Covered
        if isinstance(state, Covered):
            chosen = Covered(self.select(state.state, rows), state.coverage.index_select(0, rows))
        elif isinstance(state, Tensor):
            chosen = state.index_select(1, rows)
        else:
            chosen = state[0].index_select(1, rows), state[1].index_select(1, rows)
        return cast(StateT, chosen)

    def extra_repr(self) -> str:
        """Sizes, for `print(module)`."""
        sizes = f"{self.input_size}, {self.hidden_size}, {self.context_size}, num_layers={self.num_layers}"
        for name in ("dropout", "weight_dropout"):
            if value := getattr(self, name):
                sizes += f", {name}={value}"
        return f"{sizes}, coverage=True" if self.coverage else sizes

    # --- what both ways share

    def _first_gates(self, inputs: Tensor) -> Tensor:
        """The inputs' share of the first layer's gates, which does not depend on the state: one product for all."""
        weight = self._weight("weight_ih", 0)[:, : self.input_size]
        return F.linear(inputs, weight, self._weight("bias_ih", 0))

    def _context_weight(self) -> Tensor:
        return self._weight("weight_ih", 0)[:, self.input_size :]

    def _weight(self, name: str, layer: int) -> Tensor:
        weight: Tensor = getattr(self, f"{name}_l{layer}")  # which pruning and the like compute
        return weight

    def _hooked(self) -> bool:
        return bool(self._forward_hooks or self._forward_pre_hooks)

    def _steps(self, memory: _Stepped) -> bool:
        """Whether a step is to be what the memory keeps for steps."""
        if self.training or self.coverage or torch.is_grad_enabled() or memory.maker != self._maker:
            return False
        return bool(memory.batch) and not (self._hooked() or traced())

    def _as_seen(self, memory: Memory) -> tuple["_Attentional", Memory]:
        """Whose weights count, and a plain memory with the score that does.

        This layer as the memory saw it; or as it is, where its weights learn, or another made the memory.
        """
        by, score = self, self.score
        if memory.seen is None or learns(self):
            memory.check_fresh()  # of the score alone: the cells are as they are
        else:
            score = memory.scoring()
            if isinstance(memory.seen, _Attentional) and memory.maker == self._maker:
                by = memory.seen
        return by, Memory(score, memory.key, memory.value, memory.valid_lens, memory.packed)

    def _masks(self, inputs: Tensor, memory: Memory) -> _Masks:
        """Drawn at once, so that both ways drop the same."""
        if not self.training:
            return _Masks(None, None)

        def drawn(p: float, *shape: int) -> Tensor | None:
            return F.dropout(inputs.new_ones(shape), p) if p else None

        batch, steps = inputs.shape[:2]
        features = drawn(self.dropout, self.num_layers - 1, batch, steps, self.hidden_size)
        return _Masks(features, drawn(self.weight_dropout, batch, steps, memory.key.shape[-2]))

    # --- as one operation

    def _obstacles(self, inputs: Tensor, memory: Memory, score: Score, before: _State | None = None) -> list[str]:
        states = () if before is None else (before.hidden, before.cell)
        tensors = (inputs, memory.key, memory.value, memory.valid_lens, *states)
        reasons = fused.obstacles((*tensors, *self.parameters()))
        if type(score) not in (scores.Additive, scores.Bilinear, scores.Dot, *_AFFINE):
            reasons.append(f"the queries of {type(score).__name__} are not known to be affine in the state")
        for name, part in score.named_children():
            if not is_plain(part):
                reasons.append(f"score.{name} is no plain torch.nn.Linear, or has hooks: it has to be called")
        if memory.key.ndim != 3 or len(memory.key) != len(inputs):
            reasons.append(
                f"the memory's keys have shape {tuple(memory.key.shape)}, not ({len(inputs)}, positions, features)"
            )
        if not len(inputs):
            reasons.append("the batch is empty")
        if self.coverage:
            reasons.append("with coverage the keys change from step to step")
        return reasons

    def _query_map(self, score: Score) -> tuple[Tensor | None, Tensor | None]:
        """The matrix and bias that make a query of a state."""
        if type(score) is scores.Dot:
            return None, None
        if isinstance(score, scores.Additive | scores.Bilinear):
            return score.W_q.weight, score.W_q.bias
        weight = self._weight("weight_hh", 0)
        bias = score.project_query(weight.new_zeros(1, self.hidden_size))
        unit = torch.eye(self.hidden_size, dtype=weight.dtype, device=weight.device)
        return (score.project_query(unit) - bias).t(), bias[0]

    def _attention(self, memory: Memory, kept: Tensor | None = None) -> fused.Attention:
        score = memory.score
        query_weight, query_bias = self._query_map(score)
        size, keys = self.hidden_size if query_weight is None else query_weight.shape[0], memory.key.shape[-1]
        if keys != size:
            raise ValueError(
                f"the memory's keys have {keys} features and the queries of {type(score).__name__} {size}; both "
                "must have as many"
            )
        return fused.Attention(
            pair=score.pair,
            profile=score.profile,
            key=memory.key,
            value=memory.value,
            seen=memory.valid_lens,
            weight=score.pair_weight(),
            query_weight=query_weight,
            query_bias=query_bias,
            context_weight=self._context_weight(),
            kept=kept,
        )

    def _layers(self) -> list[fused.Layer]:
        names = ("weight_hh", "bias_hh", "weight_ih", "bias_ih")
        found = ([self._weight(name, layer) for name in names] for layer in range(self.num_layers))
        return [fused.Layer(*(weights[:2] if layer == 0 else weights)) for layer, weights in enumerate(found)]

    def _fused(
        self,
        inputs: Tensor,
        memory: Memory,
        before: _State,
        lengths: Tensor | None,
        masks: _Masks,
        return_weights: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None, _State]:
        rows = fused.Rows.of(lengths, *inputs.shape[:2])
        kept = None if masks.weights is None else fused.take(masks.weights, rows)
        dropped = None if masks.features is None else torch.stack([fused.take(m, rows) for m in masks.features])
        found = fused.run(
            self._first_gates(fused.take(inputs, rows)),
            before.hidden,
            before.cell,
            self._layers(),
            rows,
            attention=self._attention(memory, kept),
            dropped=dropped,
        )
        outputs, contexts = fused.put(found.states, rows), fused.put(cast(Tensor, found.contexts), rows)
        weights = fused.put(cast(Tensor, found.weights), rows) if return_weights else None
        return outputs, contexts, weights, _State(found.state, found.cell, None)

    # --- as a loop of PyTorch's operations

    def _plain(
        self,
        inputs: Tensor,
        memory: Memory,
        before: _State,
        lengths: Tensor | None,
        masks: _Masks,
        return_weights: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None, _State]:
        goes_on = None
        if lengths is not None:
            lengths = lengths.to(inputs.device)
            goes_on = (torch.arange(inputs.shape[1], device=inputs.device) < lengths[:, None]).unsqueeze(-1)
            inputs = torch.where(goes_on, inputs, 0.0)
        gates, context_weight = self._first_gates(inputs), self._context_weight()
        states, coverage = list(before.hidden.unbind(0)), before.coverage
        cell_states = None if before.cell is None else list(before.cell.unbind(0))
        outputs, contexts, weights = [], [], []
        for step in range(inputs.shape[1]):
            kept = None if masks.weights is None else masks.weights[:, step]
            context, looked_at = self._attend(states[-1], memory, coverage, return_weights, kept)
            first = torch.addmm(gates[:, step], context, context_weight.t())
            dropped = None if masks.features is None else masks.features[:, :, step]
            new, new_cells = self._advance(first, states, cell_states, dropped)
            outputs.append(new[-1])
            contexts.append(context)
            weights.append(looked_at)
            if goes_on is not None:
                new = _where(goes_on[:, step], new, states)
                if new_cells is not None and cell_states is not None:
                    new_cells = _where(goes_on[:, step], new_cells, cell_states)
            if coverage is not None and looked_at is not None:
                added = looked_at if goes_on is None else torch.where(goes_on[:, step], looked_at, 0.0)
                coverage = coverage + added
            states, cell_states = new, new_cells
        found = [outputs, contexts, weights] if return_weights else [outputs, contexts]
        stacked = [torch.stack(cast(list[Tensor], each), dim=1) for each in found]
        if goes_on is not None:
            stacked = [torch.where(goes_on, each, 0.0) for each in stacked]
        last = _State(torch.stack(states), None if cell_states is None else torch.stack(cell_states), coverage)
        return stacked[0], stacked[1], stacked[2] if return_weights else None, last

    def _attend(
        self, query: Tensor, memory: Memory, coverage: Tensor | None, return_weights: bool, kept: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """One query a sequence: (B, h) -> contexts (B, c) and weights (B, m) before dropout."""
        if coverage is not None:
            lens = None if memory.valid_lens is None else memory.valid_lens.expand(len(query))
            # Behind a length the coverage is 0, as the weights are.
            covered = coverage.unsqueeze(-1) * self.coverage_weight
            keys = memory.key + covered.to(memory.key.dtype)
            memory = Memory(memory.score, keys, memory.value.expand(len(keys), -1, -1), lens)
        wanted = return_weights or kept is not None or coverage is not None
        attended = attend_memory(query.unsqueeze(1), memory, return_weights=wanted)
        if not isinstance(attended, tuple):
            return attended.squeeze(1), None
        context, weights = attended
        if kept is not None:
            context = (weights * kept.unsqueeze(1)) @ memory.value
        return context.squeeze(1), weights.squeeze(1)

    def _advance(
        self, first_gates: Tensor, hidden: Sequence[Tensor], cell: Sequence[Tensor] | None, dropped: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        """All layers one step on; `first_gates` is the complete input side of the first layer's gates (B, G·h)."""
        new: list[Tensor] = []
        new_cells: list[Tensor] = []
        input_gates = first_gates
        for layer in range(self.num_layers):
            if layer:
                below = new[-1] if dropped is None else new[-1] * dropped[layer - 1]
                input_gates = F.linear(below, self._weight("weight_ih", layer), self._weight("bias_ih", layer))
            recurrent = F.linear(hidden[layer], self._weight("weight_hh", layer), self._weight("bias_hh", layer))
            # Under autocast the products are narrow; the states, on which all later ones build, stay as they are.
            input_gates, recurrent = (each.to(hidden[layer].dtype) for each in (input_gates, recurrent))
            if cell is None:
                new.append(cells.gru(input_gates, recurrent, hidden[layer]))
            else:
                state, after = cells.lstm(input_gates, recurrent, cell[layer])
                new.append(state)
                new_cells.append(after)
        return new, new_cells if cell is not None else None

    def _check(self, inputs: Tensor, memory: Memory, state: Any) -> _State:
        if inputs.ndim != 3 or inputs.shape[1] < 1 or inputs.shape[2] != self.input_size:
            raise ValueError(
                f"inputs have shape {tuple(inputs.shape)}; they must be (batch, steps, {self.input_size}), "
                "with at least one step"
            )
        coverage = None
        if self.coverage:
            if not isinstance(state, Covered):
                raise ValueError(
                    f"the state is of type {type(state).__name__}; with coverage it is what begin makes of it"
                )
            state, coverage = state.state, state.coverage
            positions = (len(inputs), memory.key.shape[-2])
            if tuple(coverage.shape) != positions:
                raise ValueError(
                    f"the coverage has shape {tuple(coverage.shape)}; allowed is (batch, positions) = {positions}"
                )
        hidden, cell = self._parted(state)
        expected = (self.num_layers, inputs.shape[0], self.hidden_size)
        for each in (hidden, cell):
            if each is not None and tuple(each.shape) != expected:
                raise ValueError(
                    f"the state has shape {tuple(each.shape)}; allowed is (layers, batch, hidden) = {expected}"
                )
        # Under autocast a state may come narrower than the inputs are.
        cell, coverage = (None if each is None else each.to(inputs.dtype) for each in (cell, coverage))
        return _State(hidden.to(inputs.dtype), cell, coverage)

    def _check_memory(self, inputs: Tensor, memory: Memory) -> None:
        if not isinstance(memory, Memory):
            raise TypeError(f"memory: came {type(memory).__name__}; allowed: a Memory, as prepare makes")
        values, batch = memory.value, len(inputs)
        call.check_alike(("inputs", inputs), ("memory.value", values))
        if values.shape[-1] != self.context_size:
            raise ValueError(
                f"the memory's values have {values.shape[-1]} features; they must have {self.context_size}, the "
                "context_size that this was made with"
            )
        if values.ndim == 3 and values.shape[0] not in (1, batch):
            raise _other_batch(values.shape[0], batch)

    def _parted(self, state: Any) -> tuple[Tensor, Tensor | None]:
        raise NotImplementedError

    def _joined(self, state: _State) -> Tensor | tuple[Tensor, Tensor] | Covered:
        own = state.hidden if state.cell is None else (state.hidden, state.cell)
        return own if state.coverage is None else Covered(own, state.coverage)


class AttentionalGRU(_Attentional):
    r"""A stack of GRU cells that, before every step, looks at a memory with what it knew after the step before.

    With $e_t$ the input of step t, $s_t^l$ the state of layer l after it, and L the top layer:

    $$ c_t = \mathrm{attend}(s_{t-1}^{L}, \text{memory}), \qquad
    s_t^1 = \mathrm{GRU}_1([e_t; c_t], s_{t-1}^1), \qquad s_t^l = \mathrm{GRU}_l(s_t^{l-1}, s_{t-1}^l) $$

    With `coverage` a position's projected key $k'_j$ becomes $k'_j + c_{tj} u$, with $c_{tj}$ the sum of the weights
    that the position had before step t, before dropout, and u learnt, 0 at first: for an additive score
    $v \cdot \tanh(W_q s_{t-1} + W_k h_j + c_{tj} u)$. Tu, Lu, Liu, Liu, Li, "Modeling coverage for neural machine
    translation" (2016), section 3.1; See, Liu, Manning, "Get to the point" (2017), section 2.3, equation 11.

    Bahdanau, Cho, Bengio, "Neural machine translation by jointly learning to align and translate" (2015), section 3.1
    and appendix A.1.2, with the GRU of `torch.nn.GRU`: gates r, z, n, the reset after the recurrent product, two
    bias vectors. The parameters are named, shaped and ordered as those of
    `torch.nn.GRU(input_size + context_size, hidden_size, num_layers)`, the context's columns after the input's, so
    that state dicts go from one to the other; the score's parameters follow under `score.`.

    Args:
        input_size: features of an input, e.
        hidden_size: features of a state, h; the score's queries have as many.
        context_size: features of the memory's values, c.
        score: the scoring function that compares a state with the memory's keys.
        num_layers: GRU cells on top of each other.
        dropout: probability with which a feature is dropped between layers, in training only; it needs two layers.
        weight_dropout: probability with which an attention weight is dropped, in training only.
        coverage: whether the comparison takes in how much each position was looked at before; in a loop of PyTorch's
            operations, slower than the one operation. The state before the first step is then what `begin` makes.

    Raises:
        ValueError: a size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> import torch, dikkat
        >>> from dikkat.recurrent import AttentionalGRU
        >>> decoder = AttentionalGRU(3, 5, 7, dikkat.scores.Additive(7, 5, 11))
        >>> sentences = torch.randn(2, 13, 7)
        >>> memory = decoder.prepare(sentences, torch.tensor([13, 4]))
        >>> outputs, contexts, weights, state = decoder(torch.randn(2, 6, 3), memory, torch.zeros(1, 2, 5))
        >>> outputs.shape, contexts.shape, weights, state.shape
        (torch.Size([2, 6, 5]), torch.Size([2, 6, 7]), None, torch.Size([1, 2, 5]))
    """

    gates = 3

    def _parted(self, state: Any) -> tuple[Tensor, Tensor | None]:
        if not isinstance(state, Tensor):
            raise ValueError(
                f"the state is of type {type(state).__name__}; allowed is one tensor (layers, batch, hidden)"
            )
        return state, None


class AttentionalLSTM(_Attentional):
    r"""A stack of LSTM cells that, before every step, looks at a memory with what it knew after the step before.

    With $e_t$ the input of step t, $s_t^l$ and $m_t^l$ the state and the cell of layer l after it, and L the top layer:

    $$ c_t = \mathrm{attend}(s_{t-1}^{L}, \text{memory}), \qquad
    s_t^1, m_t^1 = \mathrm{LSTM}_1([e_t; c_t], s_{t-1}^1, m_{t-1}^1), \qquad
    s_t^l, m_t^l = \mathrm{LSTM}_l(s_t^{l-1}, s_{t-1}^l, m_{t-1}^l) $$

    Luong, Pham, Manning, "Effective approaches to attention-based neural machine translation" (2015), section 3, with
    the order of attending of Bahdanau et al. (2015) and the LSTM of `torch.nn.LSTM`: gates i, f, g, o, two bias
    vectors; `coverage` as in `AttentionalGRU`. The parameters are named, shaped and ordered as those of
    `torch.nn.LSTM(input_size + context_size, hidden_size, num_layers)`, the context's columns after the input's; the
    score's parameters follow under `score.`. A state is a pair of tensors (layers, B, h): states and cells.

    Args:
        input_size: features of an input, e.
        hidden_size: features of a state, h; the score's queries have as many.
        context_size: features of the memory's values, c.
        score: the scoring function that compares a state with the memory's keys.
        num_layers: LSTM cells on top of each other.
        dropout: probability with which a feature is dropped between layers, in training only; it needs two layers.
        weight_dropout: probability with which an attention weight is dropped, in training only.
        coverage: whether the comparison takes in how much each position was looked at before; in a loop of PyTorch's
            operations, slower than the one operation. The state before the first step is then what `begin` makes.

    Raises:
        ValueError: a size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> import torch, dikkat
        >>> from dikkat.recurrent import AttentionalLSTM
        >>> decoder = AttentionalLSTM(3, 5, 7, dikkat.scores.Bilinear(7, 5))
        >>> memory = decoder.prepare(torch.randn(2, 13, 7))
        >>> zeros = torch.zeros(1, 2, 5)
        >>> outputs, contexts, weights, (state, cell) = decoder(torch.randn(2, 6, 3), memory, (zeros, zeros))
        >>> outputs.shape, cell.shape
        (torch.Size([2, 6, 5]), torch.Size([1, 2, 5]))
    """

    gates = 4

    def _parted(self, state: Any) -> tuple[Tensor, Tensor | None]:
        if not isinstance(state, tuple) or len(state) != 2:
            raise ValueError(
                f"the state is of type {type(state).__name__}; allowed is a pair of tensors (layers, batch, hidden): "
                "states and cells"
            )
        return state


def _check_queries(score: Score, hidden_size: int) -> None:
    """A score that says which queries it takes takes states."""
    if type(score) not in (scores.Additive, scores.Bilinear, *_AFFINE):
        return
    like = next(score.parameters(), next(score.buffers(), torch.empty(0)))
    if like.is_meta:  # where a product loads PyTorch's compiler, and a run says the same
        return
    try:
        with torch.no_grad():
            score.project_query(like.new_zeros(1, hidden_size))
    except ValueError as error:
        raise ValueError(f"score: it does not fit states, of hidden_size={hidden_size} features: {error}") from None


def _where(condition: Tensor, new: Sequence[Tensor], old: Sequence[Tensor]) -> list[Tensor]:
    return [torch.where(condition, after, before) for after, before in zip(new, old, strict=True)]


def _other_batch(of_memory: int, of_inputs: int) -> ValueError:
    return ValueError(f"the memory is of {of_memory} sequences and the inputs are of {of_inputs}; both must be as many")
