"""One step of a decoder that attends, and what the steps of a call share."""

from typing import Any, NamedTuple

from keras import ops

from dikkat.frameworks.keras.additive import at_once
from dikkat.frameworks.keras.attention import compare, pool
from dikkat.frameworks.keras.backend import kind, product, wide
from dikkat.frameworks.keras.cells import gru, lstm
from dikkat.frameworks.keras.sequences import carried_on


class Memory(NamedTuple):
    """What a decoder looks at: keys projected once for all steps. `AttentionalGRU.prepare` makes it.

    Attributes:
        key: (B, m, h), projected.
        value: (B, m, c), 0 past the length.
        valid_lens: (B,) int32, the true lengths.
    """

    key: Any
    value: Any
    valid_lens: Any

    def select(self, rows: Any) -> "Memory":
        """The memory of some sequences, in any order and number: how a beam search reorders.

        Args:
            rows: (B',) integers, indices into B.
        """
        return Memory(*(ops.take(each, rows, axis=0) for each in self))


class State(NamedTuple):
    """A state's parts, in the dtype in which they are computed: (B, h) of each layer; cells and coverage, if any."""

    hidden: list[Any]
    cell: list[Any]
    coverage: list[Any]


class Steps:
    """What the steps of a call share; called with what is carried and a row of the inputs, it takes one.

    Carried are the top layer's state, the context and the weights of the step before, then all other parts of the
    state: in this order, since a scan emits the first ones.
    """

    def __init__(self, decoder: Any, memory: Memory, ends: bool, kept: Any, dropped: Any) -> None:
        self.decoder, self.memory, self.ends, self.kept, self.dropped = decoder, memory, ends, kept, dropped
        self.narrow, self.wide = kind(memory.value), wide(memory.value)
        positions = ops.arange(ops.shape(memory.key)[1])
        self.visible = ops.expand_dims(positions < ops.expand_dims(memory.valid_lens, 1), 1)  # (B, 1, m)
        self.context_kernel = ops.transpose(decoder.weight("weight_ih", 0)[:, decoder.input_size :])
        layers = range(decoder.num_layers)
        self.input_kernels = [ops.transpose(decoder.weight("weight_ih", layer)) for layer in layers[1:]]
        self.input_biases = [decoder.weight("bias_ih", layer) for layer in layers[1:]]
        self.kernels = [ops.transpose(decoder.weight("weight_hh", layer)) for layer in layers]
        self.biases = [decoder.weight("bias_hh", layer) for layer in layers]

    def carried(self, state: State) -> tuple[Any, ...]:
        """What the first step takes: it reads neither context nor weights."""
        context, weights = self.memory.value[:, 0], self.memory.key[:, :, 0]
        before = (ops.cast(ops.zeros_like(each), self.wide) for each in (context, weights))
        return (state.hidden[-1], *before, *state.hidden[:-1], *state.cell, *state.coverage)

    def state(self, carried: tuple[Any, ...]) -> State:
        """The parts of the state in what is carried."""
        top, _, _, *rest = carried
        layers = self.decoder.num_layers
        lower, rest = rest[: layers - 1], rest[layers - 1 :]
        cells = layers if self.decoder.mode == "lstm" else 0
        return State([*lower, top], rest[:cells], rest[cells:])

    def __call__(self, carried: tuple[Any, ...], row: tuple[Any, ...]) -> tuple[Any, ...]:
        """What is carried on after a step."""
        before, rest = self.state(carried), iter(row)
        gates = next(rest)
        goes_on, kept, dropped = (
            next(rest) if given else None for given in (self.ends, self.kept is not None, self.dropped is not None)
        )
        context, looked_at = self._attend(before, kept)
        gates = gates + self._product(context, self.context_kernel)
        hidden, cell = self._advance(gates, before, dropped)
        coverage = [each + looked_at for each in before.coverage]
        after = (hidden[-1], context, looked_at, *hidden[:-1], *cell, *coverage)
        return after if goes_on is None else carried_on(goes_on, after, carried)

    def _attend(self, before: State, kept: Any) -> tuple[Any, Any]:
        """One query a sequence: contexts (B, c), and weights (B, m) before dropout."""
        score, key = self.decoder.score, self.memory.key
        for coverage in before.coverage:
            # Behind a length the coverage is 0, as the weights are.
            weight = ops.cast(self.decoder.coverage_weight.value, key.dtype)
            key = key + ops.cast(ops.expand_dims(coverage, -1), key.dtype) * weight
        # As one row a sequence: XLA cannot compile the gradient of TensorFlow's product of three and two dimensions in
        # a loop.
        query = ops.expand_dims(score.project_query(ops.cast(before.hidden[-1], self.narrow)), 1)
        if score.pair == "additive":
            operands = (ops.cast(each, self.wide) for each in (query, key, score.pair_weight()))
            scores = at_once(*operands)
        else:
            scores = compare(query, key, pair=score.pair, profile=score.profile)
        context, weights = pool(scores, self.memory.value, self.visible)
        if kept is not None:
            context = product(weights * ops.cast(ops.expand_dims(kept, 1), kind(weights)), self.memory.value)
        return ops.cast(context[:, 0], self.wide), ops.cast(weights[:, 0], self.wide)

    def _advance(self, gates: Any, before: State, dropped: Any) -> tuple[list[Any], list[Any]]:
        """All layers one step on; `gates` is the complete input side of the first layer's (B, G·h)."""
        hidden: list[Any] = []
        cells: list[Any] = []
        for layer, state in enumerate(before.hidden):
            if layer:
                below = hidden[-1] if dropped is None else hidden[-1] * dropped[layer - 1]
                gates = self._product(below, self.input_kernels[layer - 1], self.input_biases[layer - 1])
            recurrent = self._product(state, self.kernels[layer], self.biases[layer])
            if before.cell:
                new, cell = lstm(gates, recurrent, before.cell[layer])
                cells.append(cell)
            else:
                new = gru(gates, recurrent, state)
            hidden.append(new)
        return hidden, cells

    def _product(self, features: Any, kernel: Any, bias: Any = None) -> Any:
        """A product in the dtype of the weights; states, on which all later ones build, stay wide."""
        result = product(ops.cast(features, kernel.dtype), kernel)
        return ops.cast(result if bias is None else result + bias, self.wide)
