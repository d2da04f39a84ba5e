"""A search step by step in PyTorch: the models' steps, and the hypotheses of a batch while they grow."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dikkat._engine import cancellation
from dikkat._engine.addresses import sent
from dikkat.errors import InputError
from dikkat.translation.decoding.hypothesis import Hypothesis, Sentence
from dikkat.translation.decoding.length_penalty import normalised_score
from dikkat.translation.decoding.options import Search
from dikkat.translation.network.model import TranslationModel, pad
from dikkat.translation.text.special_tokens import BEGIN, END, PAD, UNKNOWN

OVER = 1e9  # above it is no log-probability, but the place of a hypothesis that has ended

Table = np.ndarray[Any, Any]


@torch.no_grad()
def step_by_step(
    models: Sequence[TranslationModel], sentences: Sequence[Sentence], search: Search
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, best first; or its samples, as they were drawn."""
    steps = ModelSteps(models, [each.tokens for each in sentences])
    if not search.sample:
        return _searched(steps, Beams(search, sentences))
    steps.select(torch.arange(len(sentences), device="cpu").repeat_interleave(search.n_best), memories=True)
    drawn = _searched(steps, Samples(search, [each for each in sentences for _ in range(search.n_best)]))
    return [
        [sample for (sample,) in drawn[start : start + search.n_best]] for start in range(0, len(drawn), search.n_best)
    ]


def _searched(steps: "ModelSteps", beams: "Beams") -> list[list[Hypothesis]]:
    tokens: Table = np.full(len(beams.sentences), BEGIN)
    while len(tokens):
        cancellation.check()
        owners = beams.owners
        tokens, rows = beams.extend(*steps.step(torch.from_numpy(tokens)))
        # Hypotheses of one sentence share its memory.
        steps.select(torch.from_numpy(rows), memories=not np.array_equal(beams.owners, owners))
    return beams.hypotheses()


def mean_log(scores: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean probability, of the models' unnormalised log-probabilities (R, V)."""
    return reduce(torch.logaddexp, (each.log_softmax(1) for each in scores)) - math.log(len(scores))


class ModelSteps:
    """The models of a search, each with its memory of the sources and its state."""

    def __init__(self, models: Sequence[TranslationModel], sources: Sequence[Sequence[int]]) -> None:
        self._models = [model.eval() for model in models]
        self._device = models[0].output_bias.device
        numbers, lengths = pad(sources)
        encoded = [model.encode(sent(numbers, self._device), lengths) for model in models]
        self._memories, self._states = [memory for memory, _ in encoded], [state for _, state in encoded]

    def step(self, previous: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run one step of every row."""
        scores, weights, previous = [], [], previous.to(self._device)
        for index, model in enumerate(self._models):
            features, looked_at, self._states[index] = model.step_features(
                previous, self._memories[index], self._states[index]
            )
            found = model.scores(features)
            scores.append(found.to(torch.promote_types(found.dtype, torch.float32)))
            if model.attends:
                weights.append(looked_at)
        mean_weights = torch.stack(weights).mean(0) if weights else None
        return scores[0] if len(scores) == 1 else mean_log(scores), mean_weights

    def select(self, rows: Tensor, *, memories: bool) -> None:
        """Go on with these rows, in their order."""
        rows = rows.to(self._device)
        self._states = [model.select(state, rows) for model, state in zip(self._models, self._states, strict=True)]
        if memories:
            self._memories = [memory.select(rows) for memory in self._memories]


# --- hypotheses


class _Tables(NamedTuple):
    """A step's tables of B·K places; or those of all steps, with one more dimension in front."""

    tokens: Table  # int64: the token appended to the hypothesis that now has the place
    rows: Table  # int64: the network's row that it continues
    origins: Table  # int64: the place of that row
    totals: Table  # float64: its log-probability
    ended: Table  # bool: the model ended it here
    out: Table  # bool: it ended or was cut here


class Beams:
    """The hypotheses of a batch while they grow: B sentences of K places, best first.

    The network's rows are those places alone whose hypotheses go on, in the order of the places. Bookkeeping is done
    in NumPy, whose operations on a few numbers take a quarter of the time of PyTorch's.

    Attributes:
        owners: (R,), the sentence of each of the network's rows.
        weights: (R, S) of each step, where its rows looked; none without attention.
    """

    def __init__(self, search: Search, sentences: Sequence[Sentence]) -> None:
        self.sentences = sentences
        self._search = search
        self._beam, self._n_best, self._penalty = self._widths()
        count = len(sentences)
        self._copies = np.array([each.copies for each in sentences])
        self._fewest = np.array([each.fewest for each in sentences])
        self._most = np.array([each.most for each in sentences])
        self._totals = np.full((count, self._beam), -np.inf)  # −∞: an empty place
        self._totals[:, 0] = 0.0
        self._open = np.full((count, 1), self._beam)  # places not taken by ended hypotheses
        self._best_ended = np.full((count, self._n_best), -np.inf)
        self._steps: list[_Tables] = []
        self.weights: list[Tensor] = []
        self.owners = np.arange(count)

    def _widths(self) -> tuple[int, int, float]:
        """Places of a sentence, hypotheses to return of it, and the length penalty."""
        return self._search.beam, self._search.n_best, self._search.penalty

    def extend(self, scores: Tensor, weights: Tensor | None) -> tuple[Table, Table]:
        """Append a token to each hypothesis that goes on.

        Args:
            scores: (R, V), unnormalised log-probabilities.
            weights: (R, S), where each row looked; None without attention.

        Returns:
            Of the hypotheses that go on, the token appended and the row continued, each (R',).
        """
        may_end = self._fewest[self.owners] <= len(self._steps)
        possible = allowed(scores, torch.from_numpy(self._copies[self.owners]), torch.from_numpy(may_end))
        gains, tokens = (each.cpu().numpy() for each in self._candidates(possible, scores))
        if not np.isfinite(gains[:, 0]).all():
            raise unknown_scores()
        if weights is not None:
            self.weights.append(weights)
        return self._advance(gains, tokens)

    def _candidates(self, possible: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """(R, K) float64 log-probabilities of each row's likeliest tokens that may come out, and the tokens."""
        likeliest, tokens = best(possible, self._beam)
        return (likeliest - scores.logsumexp(1, keepdim=True)).double(), tokens

    def _advance(self, gains: Table, tokens: Table) -> tuple[Table, Table]:
        count, beam = len(self.sentences), self._beam
        continued = np.isfinite(self._totals)
        rows = np.zeros(continued.shape, np.int64)
        rows[continued] = np.arange(len(gains))
        reached = np.full((count, beam, gains.shape[1]), -np.inf)
        reached[continued] = self._totals[continued, None] + gains
        # Stable: of equally likely ones the higher place goes first, then the lower token.
        chosen = np.argsort(-reached.reshape(count, -1), axis=1, kind="stable")[:, :beam]
        places, ranks = np.divmod(chosen, gains.shape[1])
        sentence = np.arange(count)[:, None]
        rows = rows[sentence, places]
        return self._record(tokens[rows, ranks], rows, sentence * beam + places, reached[sentence, places, ranks])

    def take(self, tables: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
        """Take steps that were chosen elsewhere, with a row of the network for every place.

        Args:
            tables: Of each step tokens, rows and log-probabilities (B, K), best first behind those that are `OVER`.
        """
        columns = torch.stack([torch.stack(each).double() for each in zip(*tables, strict=True)]).cpu().numpy()
        for tokens, rows, totals in zip(*columns, strict=True):
            going = np.isfinite(self._totals).any(1)
            if not (totals[going].max(1) > -np.inf).all():
                raise unknown_scores()
            if going.any():
                origins, left = rows.astype(np.int64), going[:, None] & (totals <= OVER)
                self._open[:] = self._beam  # those that have ended have their places in the tables
                self._record(tokens.astype(np.int64), origins, origins, np.where(left, totals, -np.inf))

    def _record(self, tokens: Table, rows: Table, origins: Table, totals: Table) -> tuple[Table, Table]:
        """Decide of the best hypotheses (B, K) of each sentence which of them end, and which go on."""
        beam, length = self._beam, len(self._steps) + 1
        there = (np.arange(beam) < self._open) & (totals > -np.inf)
        ended = there & (tokens == END)
        goes_on = there & ~ended
        with np.errstate(invalid="ignore"):
            competing = np.where(ended, normalised_score(totals, length, self._penalty), -np.inf)
        self._best_ended = -np.sort(-np.hstack([self._best_ended, competing]), axis=1)[:, : self._n_best]
        self._open = self._open - ended.sum(1, keepdims=True)
        # Log-probabilities only fall as a hypothesis grows and the divisor grows with length, so this bounds every
        # final score.
        hope = normalised_score(np.where(goes_on, totals, -np.inf).max(1), self._most, self._penalty)
        at_limit = self._most == length
        over = at_limit | (self._best_ended[:, -1] >= hope)
        out = ended | (goes_on & at_limit[:, None])
        goes_on &= ~over[:, None]
        step = _Tables(tokens, rows, origins, totals, ended, out)
        self._steps.append(_Tables(*(table.ravel() for table in step)))
        self._totals = np.where(goes_on, totals, -np.inf)
        self.owners = goes_on.nonzero()[0]
        return tokens[goes_on], rows[goes_on]

    def hypotheses(self) -> list[list[Hypothesis]]:
        """The n best of each sentence."""
        tables = _Tables(*map(np.stack, zip(*self._steps, strict=True)))
        steps, places, finished = self._ranked(tables)
        ids, weights = self._walk_back(tables, steps, places)
        results: list[list[Hypothesis]] = [[] for _ in self.sentences]
        for hypothesis, place in enumerate(places.tolist()):
            sentence, is_finished = place // self._beam, bool(finished[hypothesis])
            length = int(steps[hypothesis]) + 1 - is_finished  # the end is no token of the translation
            total = float(tables.totals[steps[hypothesis], place])
            positions = len(self.sentences[sentence].tokens)
            if weights is None:
                looked_at = torch.full((length, positions), 1 / positions, device="cpu")
            else:
                looked_at = weights[hypothesis, :length, :positions].clone()  # a view would keep them all
            results[sentence].append(Hypothesis(ids[hypothesis, :length].tolist(), total, looked_at, is_finished))
        return results

    def _ranked(self, tables: _Tables) -> tuple[Table, Table, Table]:
        """Each sentence's n best, best first: the last step, the place there and whether it is finished; (N,) each."""
        steps, places = tables.out.nonzero()
        finished = tables.ended[steps, places]
        scores = normalised_score(tables.totals[steps, places], steps + 1, self._penalty)
        sentences = places // self._beam
        # By sentence, finished ones first, the best first; of equal ones the one that was out first.
        order = np.lexsort((-scores, ~finished, sentences))
        sentences = sentences[order]
        within = np.arange(len(order)) - np.searchsorted(sentences, sentences)
        order = order[within < self._n_best]
        return steps[order], places[order], finished[order]

    def _walk_back(self, tables: _Tables, last_steps: Table, places: Table) -> tuple[Table, Tensor | None]:
        """The tokens (N, T) and what they looked at (N, T, S), of the hypotheses that end in these places."""
        ids, weights = [], []
        for step in reversed(range(len(self._steps))):
            # Past a hypothesis's last step this reads arbitrary entries, which are not used.
            ids.append(tables.tokens[step][places])
            if self.weights:
                looked_at = self.weights[step]
                weights.append(looked_at[torch.from_numpy(tables.rows[step][places]).to(looked_at.device)])
            places = np.where(step <= last_steps, tables.origins[step][places], places)
        stacked = torch.stack(weights[::-1], dim=1).float().cpu() if weights else None
        return np.stack(ids[::-1], axis=1), stacked


class Samples(Beams):
    """Samples while they grow: a sentence of one place for each."""

    def __init__(self, search: Search, sentences: Sequence[Sentence]) -> None:
        super().__init__(search, sentences)
        # One number a step, from a stream of the sample's own: so what else is drawn has no effect.
        longest = int(self._most.max())
        streams = (
            np.random.default_rng([search.seed, index % search.n_best, *sentence.tokens])
            for index, sentence in enumerate(sentences)
        )
        self._draws = torch.from_numpy(np.stack([stream.random(longest) for stream in streams]))

    def _widths(self) -> tuple[int, int, float]:
        return 1, 1, 0.0

    def _candidates(self, possible: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """(R, 1) log-probability of a token that is drawn for each row, and the token."""
        tokens = None
        if self._search.top_k is not None:
            possible, tokens = best(possible, self._search.top_k)
        peak = possible.amax(1, keepdim=True)
        sums = ((possible - peak).double() / self._search.temperature).exp().cumsum(1)
        total = sums[:, -1:]
        draws = self._draws[self.owners, len(self._steps)].to(sums.device).unsqueeze(1)
        # Less than the total even after rounding, so that the token at which the sum passes it has a share in it.
        draws = torch.minimum(draws * total, total.nextafter(torch.zeros_like(total)))
        columns = torch.searchsorted(sums, draws, right=True).clamp(max=sums.shape[1] - 1)  # of NaN, the last
        chosen = columns if tokens is None else tokens.gather(1, columns)
        gains = scores.gather(1, chosen) - scores.logsumexp(1, keepdim=True)
        return gains.double(), chosen


# --- the likeliest tokens of each row


def allowed(scores: Tensor, copies: Tensor, may_end: Tensor) -> Tensor:
    """Scores (R, V) with −∞ for the tokens that may not come out."""
    allowed = scores.clone()
    allowed[:, [PAD, BEGIN]] = -torch.inf
    allowed[:, END].masked_fill_(~may_end.to(scores.device), -torch.inf)
    allowed[:, UNKNOWN].masked_fill_(~copies.to(scores.device), -torch.inf)
    return allowed


def best(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(R, k): each row's k greatest values, greatest first, and their columns; of equal ones the lowest first."""
    # `topk` breaks ties as it likes: the second one takes the lowest columns of those that are as great as the least.
    least = values.topk(k).values[:, -1:]
    columns = torch.arange(values.shape[1], device=values.device, dtype=torch.int32)
    order = torch.where(values > least, -1, columns).masked_fill_(values < least, values.shape[1])
    chosen = order.topk(k, largest=False, sorted=False).indices.sort(dim=1).values
    greatest, order = values.gather(1, chosen).sort(dim=1, descending=True, stable=True)
    return greatest, chosen.gather(1, order)


def unknown_scores() -> InputError:
    """The error for a row whose best score is not finite."""
    return InputError(
        "the model's scores of the next token are not numbers (NaN or infinite), so that none is the best: its "
        "weights are damaged, or its training diverged. Train it again, with a lower learning rate"
    )
