import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dikkat.attention import Memory, attend_memory, prepare
from dikkat.recurrent.stack import check_stack
from dikkat.scores import Score


class AttentionalGRU(nn.Module):
    r"""A stack of GRU cells that, before every step, looks at a memory with what it knew after the step before.

    With $e_t$ the input of step t, $s_t^l$ the state of layer l after it, and L the top layer:

    $$ c_t = \mathrm{attend}(s_{t-1}^{L}, \text{memory}), \qquad
    s_t^1 = \mathrm{GRU}_1([e_t; c_t], s_{t-1}^1), \qquad s_t^l = \mathrm{GRU}_l(s_t^{l-1}, s_{t-1}^l) $$

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

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        context_size: int,
        score: Score,
        num_layers: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "context_size": context_size}
        check_stack(num_layers, dropout, **sizes)
        self.input_size, self.hidden_size, self.context_size = input_size, hidden_size, context_size
        self.num_layers, self.dropout = num_layers, dropout
        bound = 1 / math.sqrt(hidden_size)
        for layer in range(num_layers):
            columns = input_size + context_size if layer == 0 else hidden_size
            shapes = {"weight_ih": (columns,), "weight_hh": (hidden_size,), "bias_ih": (), "bias_hh": ()}
            for name, rest in shapes.items():
                values = torch.empty(3 * hidden_size, *rest).uniform_(-bound, bound)
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(values))
        self.score = score

    def prepare(self, encoded: Tensor, valid_lens: Tensor | None = None) -> Memory:
        """Project a batch of encoded sequences to keys, once for all steps; they are the values too.

        Args:
            encoded: (B, m, c) floating point.
            valid_lens: (B,) integers, the true lengths; positions past them are never looked at. None: all are real.

        Returns:
            The memory that `forward` and `step` look at; `memory.select(rows)` reorders its batch.
        """
        return prepare(encoded, encoded, score=self.score, valid_lens=valid_lens)

    def forward(
        self, inputs: Tensor, memory: Memory, state: Tensor, *, return_weights: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Run over whole sequences of inputs, as in training.

        Args:
            inputs: (B, T, e), one input a step.
            memory: what `prepare` returned, of m positions.
            state: (layers, B, h), the state before the first step.
            return_weights: whether to return what each step looked at.

        Returns:
            The top layer's states (B, T, h); the contexts (B, T, c); the attention weights (B, T, m), or None unless
            they were asked for; the state after the last step (layers, B, h).

        Raises:
            ValueError: inputs or a state of the wrong shape, or inputs without a step.
        """
        self._check(inputs, state)
        # The inputs' share of the first layer's gates does not depend on the state: one product for all steps.
        first_weight, context_weight = self._weight("weight_ih", 0).split([self.input_size, self.context_size], dim=1)
        gates = F.linear(inputs.transpose(0, 1), first_weight, self._weight("bias_ih", 0))
        hidden = list(state.unbind(0))
        outputs, contexts, weights = [], [], []
        for input_gates in gates.unbind(0):
            context, looked_at = self._attend(hidden[-1], memory, return_weights)
            hidden = self._advance(torch.addmm(input_gates, context, context_weight.t()), hidden)
            outputs.append(hidden[-1])
            contexts.append(context)
            if looked_at is not None:
                weights.append(looked_at)
        stacked = torch.stack(weights, dim=1) if return_weights else None
        return torch.stack(outputs, dim=1), torch.stack(contexts, dim=1), stacked, torch.stack(hidden)

    def step(
        self, inputs: Tensor, memory: Memory, state: Tensor, *, return_weights: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Run one step, as in a search, where the next input depends on the last output.

        Args:
            inputs: (B, e), the input of this step.
            memory: what `prepare` returned, of m positions.
            state: (layers, B, h), the state before this step.
            return_weights: whether to return what the step looked at.

        Returns:
            The top layer's state (B, h); the context (B, c); the attention weights (B, m), or None unless they were
            asked for; the state after the step (layers, B, h).

        Raises:
            ValueError: inputs or a state of the wrong shape.
        """
        outputs, contexts, weights, state = self(inputs.unsqueeze(1), memory, state, return_weights=return_weights)
        return outputs.squeeze(1), contexts.squeeze(1), None if weights is None else weights.squeeze(1), state

    def extra_repr(self) -> str:
        """Sizes, for `print(module)`."""
        sizes = f"{self.input_size}, {self.hidden_size}, {self.context_size}, num_layers={self.num_layers}"
        return sizes + (f", dropout={self.dropout}" if self.dropout else "")

    def _attend(self, query: Tensor, memory: Memory, return_weights: bool) -> tuple[Tensor, Tensor | None]:
        """One query a sequence: (B, h) -> contexts (B, c) and weights (B, m)."""
        attended = attend_memory(query.unsqueeze(1), memory, return_weights=return_weights)
        if isinstance(attended, tuple):
            return attended[0].squeeze(1), attended[1].squeeze(1)
        return attended.squeeze(1), None

    def _advance(self, first_gates: Tensor, hidden: list[Tensor]) -> list[Tensor]:
        """All layers one step on; `first_gates` is the complete input side of the first layer's gates (B, 3h)."""
        recurrent = F.linear(hidden[0], self._weight("weight_hh", 0), self._weight("bias_hh", 0))
        advanced = [_gated(first_gates, recurrent, hidden[0])]
        for layer in range(1, self.num_layers):
            below = F.dropout(advanced[-1], self.dropout, self.training)
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            advanced.append(torch.gru_cell(below, hidden[layer], *(self._weight(name, layer) for name in names)))
        return advanced

    def _weight(self, name: str, layer: int) -> Tensor:
        return self.get_parameter(f"{name}_l{layer}")

    def _check(self, inputs: Tensor, state: Tensor) -> None:
        if inputs.ndim != 3 or inputs.shape[1] < 1 or inputs.shape[2] != self.input_size:
            raise ValueError(
                f"inputs have shape {tuple(inputs.shape)}; they must be (batch, steps, {self.input_size}), "
                "with at least one step"
            )
        expected = (self.num_layers, inputs.shape[0], self.hidden_size)
        if tuple(state.shape) != expected:
            raise ValueError(
                f"the state has shape {tuple(state.shape)}; allowed is (layers, batch, hidden) = {expected}"
            )


def _gated(input_gates: Tensor, recurrent_gates: Tensor, hidden: Tensor) -> Tensor:
    """A GRU's new state from the two sides of its gates, each (B, 3h) in the order r, z, n."""
    size = hidden.shape[-1]
    input_rz, input_n = input_gates.split([2 * size, size], dim=-1)
    recurrent_rz, recurrent_n = recurrent_gates.split([2 * size, size], dim=-1)
    reset, update = torch.sigmoid(input_rz + recurrent_rz).chunk(2, dim=-1)
    candidate = torch.tanh(torch.addcmul(input_n, reset, recurrent_n))
    return torch.lerp(candidate, hidden, update)
