"""Decoders: GRU and LSTM cells that attend to a memory before every step."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar, cast

from torch import Tensor

from dikkat._core import recording_hooks, validation
from dikkat._core.implementations import pack
from dikkat._engine.addresses import check_dense
from dikkat._engine.weight_versions import frozen, is_traced, learns
from dikkat.attention import Memory, project_keys
from dikkat.recurrent import sequence
from dikkat.recurrent.cells import StackedCells
from dikkat.recurrent.stack import check_lengths, check_probability, check_stack, choose_implementation
from dikkat.scores import Score

StateT = TypeVar("StateT", bound=Tensor | tuple[Tensor, Tensor])


class _Attentional(StackedCells):
    gates: int  # the number of a cell's gates

    def __init__(
        self, input_size: int, hidden_size: int, context_size: int, score: Score, num_layers: int = 1,
        dropout: float = 0.0, weight_dropout: float = 0.0, key_size: int | None = None,
    ) -> None:  # fmt: skip
        validation.check_score(score)
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "context_size": context_size}
        key_size = context_size if key_size is None else key_size
        check_stack(num_layers, dropout, **sizes, key_size=key_size)
        check_probability("weight_dropout", weight_dropout)
        super().__init__(self.gates, **sizes, num_layers=num_layers)
        self.dropout, self.weight_dropout = dropout, weight_dropout
        self.key_size = key_size
        self.score = score

    def prepare(self, encoded: Tensor, valid_lens: Tensor | None = None, values: Tensor | None = None) -> Memory:
        """Project a batch of encoded sequences to keys, once for all steps.

        Args:
            encoded: (B, m, key_size) floating point.
            valid_lens: (B,) integers, the lengths without padding. None: all positions are real.
            values: (B, m, c), whose weighted means are the contexts. None: `encoded`.

        Returns:
            A snapshot for `forward` and `step`; `memory.select(rows)` reorders its batch. Later writes to `encoded` or
            `valid_lens` have no effect. Without gradients, the memory also copies the score's weights, and stores them.
            If the score is trained, `forward` raises after its weights change. The cells' weights are not copied.
            Writes to the score through `.data` are not detected: prepare the memory again.
        """
        check_dense("encoded", encoded)
        values = encoded if values is None else values
        memory = project_keys(encoded, values, score=self.score, valid_lens=valid_lens)
        if not is_traced() and not learns(self, memory.key, memory.value):
            memory = replace(memory, seen=frozen(self.score))
        return replace(memory, packed=pack(self.score.pair, memory.key))

    def forward(
        self, inputs: Tensor, memory: Memory, state: StateT, *, lengths: Tensor | None = None,
        return_weights: bool = False, impl: str = "auto",
    ) -> tuple[Tensor, Tensor, Tensor | None, StateT]:  # fmt: skip
        """Run over whole sequences of inputs, as in training.

        Args:
            inputs: (B, T, e), one input a step.
            memory: The result of `prepare`, with m positions.
            state: The state before the first step, (layers, B, h). An LSTM takes a pair of states and cells.
            lengths: (B,) integers from 1 to T, the steps of each sequence. Later steps are not computed, and their
                inputs have no effect. None: all sequences have T steps.
            return_weights: Whether to return the attention weights.
            impl: `"numba"` runs all steps as one operation with its own backward, on a CPU, for every built-in score
                except `Cosine`. `"reference"` runs everywhere, in PyTorch's operations. For the same scores it has its
                own backward too, without second derivatives. `"auto"` uses `"numba"` if it can run.

        Returns:
            The top layer's states (B, T, h); the contexts (B, T, c); the attention weights (B, T, m) before dropout, or
            None unless requested; and the state after each sequence's last step. States, contexts and weights are 0
            after a sequence's end.

        Raises:
            TypeError: `inputs` is not a dense tensor, or `lengths` are not integers.
            ValueError: `inputs`, `lengths` or `state` have a wrong shape, `inputs` has no step, a length is outside
                1…T, or `impl` is unknown or cannot run.
        """
        check_dense("inputs", inputs)
        self._check_memory(inputs, memory)
        state_before = self._check(inputs, memory, state)
        batch, steps = inputs.shape[:2]
        if lengths is not None:
            lengths = check_lengths(lengths, batch, steps, "steps of inputs")
        factors: tuple[Tensor | None, Tensor | None] = None, None
        if self.training:
            factors = sequence.draw_factors(self, inputs, memory.key.shape[-2], self.dropout, self.weight_dropout)
        memory = self._freeze(memory)
        memory.check_recorded(self, inputs, state_before[0])
        observer = recording_hooks.current_observer()
        changes = observer is not None and observer.changes
        obstacles = ["its attention is changed"] if changes else []
        obstacles += sequence.find_obstacles(self, inputs, memory, *state_before)
        fused = choose_implementation(impl, obstacles) == "numba"
        initial = sequence.Initial(*state_before, *factors)
        with nullcontext() if observer is None else observer.as_one_call():
            if fused:
                results = sequence.run_fused(self, inputs, memory, initial, lengths)
            else:
                results = sequence.run_in_steps(self, inputs, memory, initial, lengths, calls_attention=changes)
        if observer is not None:
            with recording_hooks.observed_by(None):
                observer.observe_weights(cast(Tensor, results.weights))
        last_state = results.state if results.cell is None else (results.state, results.cell)
        weights = results.weights if return_weights else None
        return results.states, cast(Tensor, results.contexts), weights, cast(StateT, last_state)

    def step(
        self, inputs: Tensor, memory: Memory, state: StateT, *, return_weights: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None, StateT]:
        """Run one step, as in a search, whose next input depends on the last output.

        `inputs` is (B, e). The other arguments and the errors are those of `forward`.

        Returns:
            The top layer's state (B, h); the context (B, c); the attention weights (B, m), or None unless requested;
            and the state after the step.
        """
        check_dense("inputs", inputs)
        outputs, contexts, weights, state = self(
            inputs.unsqueeze(1), memory, state, return_weights=return_weights, impl="reference"
        )
        return outputs.squeeze(1), contexts.squeeze(1), None if weights is None else weights.squeeze(1), state

    def select(self, state: StateT, rows: Tensor) -> StateT:
        """Return the state (layers, B', h) of the sequences `rows`, (B',) indices, to reorder hypotheses."""
        if isinstance(state, Tensor):
            return cast(StateT, state.index_select(1, rows))
        return cast(StateT, tuple(tensor.index_select(1, rows) for tensor in state))

    def extra_repr(self) -> str:
        """Sizes, for `print(module)`."""
        sizes = f"{self.input_size}, {self.hidden_size}, {self.context_size}, num_layers={self.num_layers}"
        for name in ("dropout", "weight_dropout"):
            if value := getattr(self, name):
                sizes += f", {name}={value}"
        return sizes

    def _freeze(self, memory: Memory) -> Memory:
        """Return the memory with its copy of the score, or with this layer's score if weights are trained."""
        if memory.seen is None or learns(self):
            memory.check_fresh()
            score = self.score
        else:
            score = memory.scoring()
        return Memory(score, memory.key, memory.value, memory.valid_lens, memory.packed)

    def _check(self, inputs: Tensor, memory: Memory, state: Any) -> tuple[Tensor, Tensor | None]:
        if inputs.ndim != 3 or inputs.shape[1] < 1 or inputs.shape[2] != self.input_size:
            raise ValueError(
                f"inputs: got shape {tuple(inputs.shape)}; expected (batch, steps, {self.input_size}), "
                "with at least one step"
            )
        hidden, cell = self._split_state(state)
        expected = (self.num_layers, inputs.shape[0], self.hidden_size)
        for tensor in (hidden, cell):
            if tensor is not None and tuple(tensor.shape) != expected:
                raise ValueError(f"state: got shape {tuple(tensor.shape)}; expected {expected}: layers, batch, hidden")
        # Under autocast a state may have a narrower dtype than the inputs.
        return hidden.to(inputs.dtype), None if cell is None else cell.to(inputs.dtype)

    def _check_memory(self, inputs: Tensor, memory: Memory) -> None:
        if not isinstance(memory, Memory):
            raise TypeError(f"memory: got {type(memory).__name__}; expected the Memory that prepare returns")
        values, batch = memory.value, len(inputs)
        validation.check_alike(("inputs", inputs), ("memory.value", values))
        if values.shape[-1] != self.context_size:
            raise ValueError(
                f"memory: got values of {values.shape[-1]} features; expected {self.context_size} (context_size)"
            )
        if values.ndim == 3 and values.shape[0] not in (1, batch):
            raise ValueError(f"inputs: got a batch of {batch}; expected {len(values)}, the batch of the memory")

    def _split_state(self, state: Any) -> tuple[Tensor, Tensor | None]:
        lstm = self.gates == 4
        if lstm and isinstance(state, tuple) and len(state) == 2:
            return state
        if not lstm and isinstance(state, Tensor):
            return state, None
        allowed = "a pair of tensors" if lstm else "one tensor"
        detail = ": states and cells" if lstm else ""
        raise ValueError(f"state: got {type(state).__name__}; expected {allowed} (layers, batch, hidden){detail}")


class AttentionalGRU(_Attentional):
    r"""A stack of GRU cells that attends to a memory before every step, with the top layer's last state as the query.

    With $e_t$ the input of step t, $s_t^l$ the state of layer l after it, and L the top layer:

    $$ c_t = \mathrm{attend}(s_{t-1}^{L}, \text{memory}), \qquad
    s_t^1 = \mathrm{GRU}_1([e_t; c_t], s_{t-1}^1), \qquad s_t^l = \mathrm{GRU}_l(s_t^{l-1}, s_{t-1}^l) $$

    Bahdanau, Cho, Bengio, "Neural machine translation by jointly learning to align and translate" (2015), section 3.1
    and appendix A.1.2, with the GRU of `torch.nn.GRU`: gates r, z, n, the reset after the recurrent product, two
    bias vectors. The parameters have the names, shapes and order of
    `torch.nn.GRU(input_size + context_size, hidden_size, num_layers)`, so state dicts can be exchanged. The context's
    columns follow the input's, and the score's parameters follow under `score.`.

    Args:
        input_size: Features of an input, e.
        hidden_size: Features of a state, h, and of the score's queries.
        context_size: Features of the memory's values, c.
        score: The scoring function that compares a state with the memory's keys.
        num_layers: The number of stacked GRU cells.
        dropout: The probability of dropping a feature between layers, in training. It needs at least two layers.
        weight_dropout: The probability of dropping an attention weight, in training.
        key_size: Features of `encoded` in `prepare`, which is projected to keys. None: `context_size`.

    Raises:
        ValueError: A size is below 1, or a dropout is outside 0…1, or `dropout` is not 0 with a single layer.

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


class AttentionalLSTM(_Attentional):
    r"""A stack of LSTM cells that attends to a memory before every step, with the top layer's last state as the query.

    With $e_t$ the input of step t, $s_t^l$ and $m_t^l$ the state and the cell of layer l after it, and L the top layer:

    $$ c_t = \mathrm{attend}(s_{t-1}^{L}, \text{memory}), \qquad
    s_t^1, m_t^1 = \mathrm{LSTM}_1([e_t; c_t], s_{t-1}^1, m_{t-1}^1), \qquad
    s_t^l, m_t^l = \mathrm{LSTM}_l(s_t^{l-1}, s_{t-1}^l, m_{t-1}^l) $$

    Luong, Pham, Manning, "Effective approaches to attention-based neural machine translation" (2015), section 3. As in
    Bahdanau et al. (2015), it attends before the step. The LSTM is that of `torch.nn.LSTM`: gates i, f, g, o, two bias
    vectors. The parameters have the names, shapes and order of
    `torch.nn.LSTM(input_size + context_size, hidden_size, num_layers)`. In `weight_ih_l0` the context's columns follow
    the input's. The score's parameters have the prefix `score.`. A state is a pair of tensors (layers, B, h): states
    and cells.

    Arguments and errors are those of `AttentionalGRU`.

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
