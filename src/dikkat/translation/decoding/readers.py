"""The models of a search: what is asked of one, and several that go together."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from dikkat.translation.network.model import Batch
from dikkat.translation.settings import Precision


class Looked(Protocol):
    """What a model has read: the memory that `Reads.encode` returns."""

    def select(self, rows: Tensor) -> "Looked":
        """That of some rows, (R,) int64."""


class Outputs(Protocol):
    """An output layer for the many steps of a search."""

    bias: Tensor

    def products(self, features: Any, out: Tensor | None = None) -> Tensor:
        """Unnormalised log-probabilities less the bias, (R, V); `out` is an earlier result, to be written over."""


class Reads(Protocol):
    """What a search needs of a model: such as a `TranslationModel`.

    Attributes:
        attends: Whether there is attention.
        output_bias: (V,), of the target vocabulary.
    """

    attends: bool

    @property
    def output_bias(self) -> Tensor:
        """(V,)."""

    def eval(self) -> Self:
        """The model in evaluation mode."""

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Any, Any]:
        """(B, S) token numbers -> the memory, which can `select`, and the state before the first step."""

    def step_features(self, previous: Tensor, memory: Any, state: Any) -> tuple[Any, Tensor, Any]:
        """(R,) tokens before -> what the output layer reads; the attention weights (R, S); the next state."""

    def output_layer(self, precision: Precision) -> Outputs:
        """The output layer."""

    def select(self, state: Any, rows: Tensor) -> Any:
        """The state of some rows, (R,) int64."""

    def features(self, batch: Batch) -> Tensor:
        """What `scores` makes scores of, (N, e), at the N real positions of given translations."""

    def scores(self, features: Tensor) -> Tensor:
        """Unnormalised log-probabilities (N, V)."""


Models = Reads | Sequence[Reads]


def gathered(models: Models) -> list[Reads]:
    """Models that go together."""
    together = list(models) if isinstance(models, Sequence) else [models]
    if not together:
        raise ValueError("models: got none; expected a model or several")
    if len(together) > 1:
        for what, found in (
            ("target vocabularies of sizes", [len(model.output_bias) for model in together]),
            ("devices", [str(model.output_bias.device) for model in together]),
        ):
            if len(set(found)) > 1:
                raise ValueError(f"models: got {what} {', '.join(map(str, found))}; expected one in common")
    return together


def evaluating(models: Sequence[Reads]) -> list[Reads]:
    """Models in evaluation mode."""
    return [model.eval() for model in models]


def mean_log(scores: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean probability, of the models' unnormalised log-probabilities (R, V)."""
    return reduce(torch.logaddexp, (each.log_softmax(1) for each in scores)) - math.log(len(scores))


class Readers:
    """The models of a search, each with what it has read and where it is.

    Attributes:
        attend: Whether one of them has attention.
    """

    def __init__(self, models: Sequence[Reads], numbers: Tensor, lengths: Tensor, precision: Precision) -> None:
        self._models = models
        self._outputs = [model.output_layer(precision) for model in models]
        self._products: list[Tensor | None] = [None] * len(models)
        read = [model.encode(numbers, lengths) for model in models]
        self._memories: list[Looked] = [memory for memory, _ in read]
        self._states = [state for _, state in read]
        self.attend = any(model.attends for model in models)
        self.device = numbers.device

    def step(self, previous: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """One step of every row.

        Returns:
            Unnormalised log-probabilities less the bias (R, V), which the next step writes over; the bias (V,); where
            the models looked (R, S), None without attention.
        """
        scores, looked_at = [], []
        for index, (model, output) in enumerate(zip(self._models, self._outputs, strict=True)):
            features, weights, state = model.step_features(previous, self._memories[index], self._states[index])
            self._states[index] = state
            products = self._products[index] = output.products(features, self._products[index])
            scores.append(products)
            if model.attends:
                looked_at.append(weights)
        where = torch.stack(looked_at).mean(0) if len(looked_at) > 1 else next(iter(looked_at), None)
        if len(scores) == 1:
            return scores[0], self._outputs[0].bias, where
        mean = mean_log([each + output.bias for each, output in zip(scores, self._outputs, strict=True)])
        return mean, torch.zeros_like(mean[0]), where

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, in their order."""
        for index, model in enumerate(self._models):
            self._states[index] = model.select(self._states[index], rows)
            self._memories[index] = self._memories[index].select(rows)
