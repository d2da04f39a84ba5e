r"""States of stored pairs, and the merge of their tokens with a model's distribution.

A model's distribution of the next token and a memory are two states of attention, and states merge: with the weights
$K_i = \exp(b_i - \lVert q - k_i \rVert^2 / 2)$ of the stored states i,

$$ p(v) = \frac{p_{\text{model}}(v) + \sum_i K_i\,[v = v_i]}{1 + \sum_i K_i} $$

Far from all stored states the model decides, at a stored state the memory. The query q and the keys k_i are the output
layer's inputs in units of the bandwidth. Khandelwal and others, "Nearest neighbor machine translation" (2021), section
2, with a weight of the memory that depends on the distances.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

NEGLIGIBLE = -16.0
"""States whose log-weight is below this have no effect: 1e-7 of the model's weight."""


class Nearest(NamedTuple):
    """The stored states with the largest weights for each of R queries.

    Attributes:
        states: (R, K) int64, their numbers.
        weights: (R, K) their weights $K_i$, at least float32; 0 for a negligible state.
    """

    states: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class States:
    """The N stored states: one before each target token, the end included. Nothing writes to them later.

    Attributes:
        projection: (d, e) float32, from the output layer's inputs to queries, in units of the bandwidth.
        keys: (N, d) float32, the stored states.
        tokens: (N,) int64, the token after each state.
        biases: (N,) float32, the log-weights b of the states; the model's is 0.
        pairs: (N,) int64, the number of each state's pair.
        count: The most states that have an effect on a query, K.
    """

    projection: Tensor
    keys: Tensor
    tokens: Tensor
    biases: Tensor
    pairs: Tensor
    count: int

    def to(self, like: Tensor) -> "States":
        """Return the states on the device of `like`, with numbers of its dtype, at least float32."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        projection, keys, biases = (
            tensor.to(like.device, dtype) for tensor in (self.projection, self.keys, self.biases)
        )
        return States(projection, keys, self.tokens.to(like.device), biases, self.pairs.to(like.device), self.count)

    def find_nearest(self, features: Tensor) -> Nearest:
        """Return the states with the largest weights for the output layer's inputs (R, e)."""
        queries = F.linear(features.to(self.keys.dtype), self.projection)
        # Without −‖q‖²/2, which is equal for all states of a row.
        scores = torch.addmm(self.biases - self.keys.square().sum(1) / 2, queries, self.keys.t())
        states = scores.topk(self.count).indices
        distances = (queries.unsqueeze(1) - self.keys[states]).square().sum(2)
        log_weights = self.biases[states] - distances / 2
        return Nearest(states, torch.where(log_weights < NEGLIGIBLE, 0.0, log_weights.exp()))

    def mix(self, scores: Tensor, nearest: Nearest) -> Tensor:
        """Return the log-probabilities (R, V) of the mixture, from unnormalised log-probabilities of the model."""
        weights = nearest.weights
        masses = torch.zeros_like(scores, dtype=weights.dtype).scatter_add_(1, self.tokens[nearest.states], weights)
        total = weights.sum(1, keepdim=True)
        return torch.logaddexp(scores.to(weights.dtype).log_softmax(1), masses.log()) - total.log1p()


def score_projection(output_table: Tensor, size: int) -> Tensor:
    r"""Return the (d, e) map of the output layer's inputs to d ≤ `size` numbers, whose distances are those of scores.

    With all dimensions, the distance of two inputs is the root mean square difference of the scores that they give to
    all tokens, after subtracting the mean difference, which has no effect on probabilities. The first `size` principal
    directions are kept.

    Args:
        output_table: (V, e) the weight of the output layer.
        size: The largest number of dimensions.
    """
    table = output_table.detach().double().cpu()
    centred = table - table.mean(0)
    values, directions = torch.linalg.eigh(centred.t() @ centred / len(table))
    order = values.argsort(descending=True)[:size]
    projection: Tensor = (directions[:, order] * values[order].clamp(min=0).sqrt()).t().float().contiguous()
    return projection
