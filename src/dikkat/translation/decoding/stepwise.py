"""A search or sampling step by step in PyTorch's operations."""

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce

import numpy as np
import torch
from torch import Tensor

from dikkat._engine import cancellation
from dikkat._engine.addresses import to_device
from dikkat.translation.decoding.compiled.beams import StepBeams, Table
from dikkat.translation.decoding.hypothesis import Hypothesis, Sentence
from dikkat.translation.decoding.options import GREEDY, Search
from dikkat.translation.memory.states import Nearest, States
from dikkat.translation.network.model import TranslationModel, pad

# A function of allowed scores (R, V), the rows' sentences and the step, which returns tokens (R, K).
Choice = Callable[[Tensor, Table, int], Tensor]


@torch.no_grad()
def step_by_step(
    models: Sequence[TranslationModel],
    sentences: Sequence[Sentence],
    search: Search,
    slot_bits: Tensor,
    states: Sequence[States | None],
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each sentence, best first, or its samples in the order of drawing."""
    steps, count = ModelSteps(models, [sentence.tokens for sentence in sentences], states), search.n_best
    if not search.sample:
        choose = partial(find_likeliest, search.beam)
        return _search(steps, StepBeams(sentences, search, slot_bits), choose)
    # Each sample is a sentence with one place.
    repeated = [sentence for sentence in sentences for _ in range(count)]
    steps.select(torch.arange(len(sentences), device="cpu").repeat_interleave(count), memories=True)
    samples = _search(steps, StepBeams(repeated, GREEDY, slot_bits), Draws(search, repeated))
    return [[sample for (sample,) in samples[start : start + count]] for start in range(0, len(samples), count)]


def _search(steps: "ModelSteps", beams: StepBeams, choose: Choice) -> list[list[Hypothesis]]:
    step = 0
    previous, _, sentences, missing = beams.rows
    while len(previous):
        cancellation.check()
        scores, weights, nearest = steps.step(torch.from_numpy(previous))
        limited, allowed = (
            to_device(tensor, scores.device) for tensor in (beams.limited, beams.allowed(step, sentences, missing))
        )
        possible = scores.index_copy(1, limited, scores[:, limited].masked_fill(~allowed, -torch.inf))
        tokens = choose(possible, sentences, step)
        gains = (possible.gather(1, tokens) - scores.logsumexp(1, keepdim=True)).double()
        beams.take(gains, tokens, weights, nearest)
        old_sentences, step = sentences, step + 1
        previous, rows, sentences, missing = beams.rows
        # Hypotheses of one sentence share its memory.
        steps.select(torch.from_numpy(rows), memories=not np.array_equal(sentences, old_sentences))
    return beams.results()


def mean_log(scores: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the models' mean probability, from unnormalised log-probabilities (R, V)."""
    return reduce(torch.logaddexp, (model_scores.log_softmax(1) for model_scores in scores)) - math.log(len(scores))


class ModelSteps:
    """The models of a search with their memories and states, and the stored states that are merged with each."""

    def __init__(
        self, models: Sequence[TranslationModel], sources: Sequence[Sequence[int]], stored: Sequence[States | None]
    ) -> None:
        self._models = [model.eval() for model in models]
        self._stored = [states and states.to(model.output_bias) for states, model in zip(stored, models, strict=True)]
        self._device = models[0].output_bias.device
        numbers, lengths = pad(sources)
        encoded = [model.encode(to_device(numbers, self._device), lengths) for model in models]
        self._memories, self._states = [memory for memory, _ in encoded], [state for _, state in encoded]

    def step(self, previous: Tensor) -> tuple[Tensor, Tensor | None, Nearest | None]:
        """Run a step of all rows.

        Returns:
            Scores (R, V); mean weights (R, S) of the models with attention; the nearest stored states of a single
            model.
        """
        scores, weights, previous, nearest = [], [], previous.to(self._device), None
        for index, (model, stored) in enumerate(zip(self._models, self._stored, strict=True)):
            features, model_weights, self._states[index] = model.step_features(
                previous, self._memories[index], self._states[index]
            )
            model_scores = model.scores(features)
            if stored is not None:
                nearest = stored.find_nearest(features)
                model_scores = stored.mix(model_scores, nearest)
            scores.append(model_scores.to(torch.promote_types(model_scores.dtype, torch.float32)))
            if model.attends:
                weights.append(model_weights)
        mean_weights = torch.stack(weights).mean(0) if weights else None
        if len(scores) > 1:
            return mean_log(scores), mean_weights, None
        return scores[0], mean_weights, nearest

    def select(self, rows: Tensor, *, memories: bool) -> None:
        """Keep only these rows, in this order; rows may be repeated."""
        rows = rows.to(self._device)
        self._states = [model.select(state, rows) for model, state in zip(self._models, self._states, strict=True)]
        if memories:
            self._memories = [memory.select(rows) for memory in self._memories]


class Draws:
    """Random next tokens, by one random number for each row and step.

    Each sample has its own random stream, so that the rest of the batch has no effect.
    """

    def __init__(self, search: Search, sentences: Sequence[Sentence]) -> None:
        self._search, longest = search, max(sentence.max_tokens for sentence in sentences)
        streams = (
            np.random.default_rng([search.seed, index % search.n_best, *sentence.tokens])
            for index, sentence in enumerate(sentences)
        )
        self._draws = torch.from_numpy(np.stack([stream.random(longest) for stream in streams]))

    def __call__(self, possible: Tensor, sentences: Table, step: int) -> Tensor:
        """Draw tokens (R, 1) by scores (R, V)."""
        tokens = None
        if self._search.top_k is not None:
            tokens = find_likeliest(self._search.top_k, possible)
            possible = possible.gather(1, tokens)
        peak = possible.amax(1, keepdim=True)
        sums = ((possible - peak).double() / self._search.temperature).exp().cumsum(1)
        total = sums[:, -1:]
        draws = self._draws[sentences, step].to(sums.device).unsqueeze(1)
        # Below the total even after rounding, so that the drawn token has a probability above 0.
        draws = torch.minimum(draws * total, total.nextafter(torch.zeros_like(total)))
        columns = torch.searchsorted(sums, draws, right=True).clamp(max=sums.shape[1] - 1)  # NaN: the last
        return columns if tokens is None else tokens.gather(1, columns)


def find_likeliest(k: int, scores: Tensor, *_: object) -> Tensor:
    """Return each row's k columns with the largest scores, largest first, and the lowest column first for ties."""
    # `topk` breaks ties arbitrarily, so the second one takes the lowest columns among ties with the smallest score.
    smallest = scores.topk(k).values[:, -1:]
    columns = torch.arange(scores.shape[1], device=scores.device, dtype=torch.int32)
    order = torch.where(scores > smallest, -1, columns).masked_fill_(scores < smallest, scores.shape[1])
    chosen = order.topk(k, largest=False, sorted=False).indices.sort(dim=1).values
    return chosen.gather(1, scores.gather(1, chosen).sort(dim=1, descending=True, stable=True).indices)
