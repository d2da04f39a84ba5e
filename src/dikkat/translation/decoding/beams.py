"""The hypotheses of a batch while they grow, by beam search or drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dikkat.cpu.search.rules import normalised
from dikkat.errors import InputError
from dikkat.translation.decoding.best import allowed, best
from dikkat.translation.decoding.options import Search
from dikkat.translation.text.tokenizer import END, UNKNOWN

Table = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Hypothesis:
    """What a search found for a sentence.

    Attributes:
        ids: The T target tokens, without the end.
        score: log-probability of the tokens and, where it is finished, the end; natural logarithm, not normalised.
        weights: (T, S) float32 on the CPU: where each token looked; every row adds up to 1. Of a model without
            attention all are alike.
        finished: Whether the model ended the sentence itself, rather than the limit on its length.
    """

    ids: list[int]
    score: float
    weights: Tensor
    finished: bool


class Step(NamedTuple):
    """Tables of a step of a search, of B sentences by K places; or, flat, those of all steps, one on the other.

    Attributes:
        tokens: int64: the token appended to the hypothesis that now has the place.
        rows: int64: the network's row that it continues.
        origins: int64: the place of that row, counted over all sentences.
        totals: float64: its log-probability; −∞ in an empty place.
        ended: bool: whether the model ended it here.
        out: bool: whether it ended or was cut here.
    """

    tokens: Table
    rows: Table
    origins: Table
    totals: Table
    ended: Table
    out: Table


class Advance(NamedTuple):
    """The rows of the network's next step.

    Attributes:
        rows: (R',) int64: the row that each comes from.
        tokens: (R',) int64: the token appended to it.
        stay: Whether these are the rows that there were, in their order.
    """

    rows: Tensor
    tokens: Tensor
    stay: bool


class Beams:
    """The hypotheses of a batch while they grow: B sentences of K places, best first.

    The network's rows are those places alone whose hypotheses go on, in the order of the places.
    """

    def __init__(self, search: Search, sources: Sequence[Sequence[int]], attend: bool) -> None:
        self.sources = sources
        self._search = search
        self._places, self._kept, self._penalty = self._widths()
        # Without attention nobody could say which word to put in the place of an unknown one.
        self._copies = torch.tensor([attend and UNKNOWN in source for source in sources], device="cpu")
        self._fewest = torch.tensor([search.fewest(len(source)) for source in sources], device="cpu")
        self._limits = np.array([search.most(len(source)) for source in sources])
        # In NumPy, of which an operation on a few numbers takes a quarter of the time of PyTorch's.
        self._totals = np.full((len(sources), self._places), -np.inf)  # −∞: an empty place
        self._totals[:, 0] = 0.0
        self._open = np.full(len(sources), self._places)  # places that no ended hypothesis has taken
        self._best_ended = np.full((len(sources), self._kept), -np.inf)
        self._steps: list[Step] = []
        self._weights: list[Tensor] = []  # (R, S): what each step's rows looked at; none without attention
        self._sentences = torch.arange(len(sources), device="cpu")  # (R,): which one each of the network's rows is of

    def _widths(self) -> tuple[int, int, float]:
        """Places of a sentence, hypotheses that are wanted of it, and the length penalty."""
        return self._search.beam, self._search.n_best, self._search.length_penalty

    def extend(self, products: Tensor, bias: Tensor, weights: Tensor | None) -> Advance:
        """Append a token to each hypothesis that goes on."""
        copies = self._copies[self._sentences]
        may_end = self._fewest[self._sentences] <= len(self._steps)
        gains, tokens = (each.numpy() for each in self._candidates(products, bias, copies, may_end))
        if not np.isfinite(gains[:, 0]).all():
            raise unknown_scores()
        step = self._continued(gains, tokens)
        self._steps.append(step)
        if weights is not None:
            self._weights.append(weights)
        goes_on = self._totals > -np.inf
        rows = step.rows[goes_on]
        self._sentences = torch.from_numpy(goes_on.nonzero()[0])
        stay = np.array_equal(rows, np.arange(len(gains)))
        return Advance(torch.from_numpy(rows), torch.from_numpy(step.tokens[goes_on]), stay)

    def _continued(self, gains: Table, tokens: Table) -> Step:
        """Each sentence's best continuations, best first, of which those that end or are cut leave their places."""
        (sentences, places), count = self._totals.shape, gains.shape[1]
        first = places * np.arange(sentences)[:, None]
        goes_on = self._totals > -np.inf
        row_at = np.zeros(sentences * places, np.int64)
        row_at[goes_on.ravel()] = np.arange(len(gains))
        reached = np.full((sentences, places, count), -np.inf)
        reached[goes_on] = self._totals[goes_on, None] + gains
        reached = reached.reshape(sentences, places * count)
        # Of equally likely ones that of the hypothesis that stood higher goes first, then the lower token.
        order = np.argsort(-reached, axis=1, kind="stable")[:, :places]
        totals, origins = np.take_along_axis(reached, order, 1), first + order // count
        rows = row_at[origins]
        chosen, length = tokens[rows, order % count], len(self._steps) + 1

        there = (np.arange(places) < self._open[:, None]) & (totals > -np.inf)
        ended = there & (chosen == END)
        there &= ~ended
        scores = np.where(ended, normalised(totals, length, self._penalty), -np.inf)
        self._best_ended = -np.sort(-np.hstack([self._best_ended, scores]))[:, : self._kept]
        self._open -= ended.sum(1)
        at_limit = self._limits == length
        # A log-probability only falls, and the penalty of no length divides by more than that of the limit.
        hope = normalised(np.where(there, totals, -np.inf).max(1), self._limits, self._penalty)
        over = at_limit | (self._best_ended[:, -1] >= hope)
        self._totals = np.where(there & ~over[:, None], totals, -np.inf)
        return Step(chosen, rows, origins, totals, ended, ended | (there & at_limit[:, None]))

    def _candidates(self, products: Tensor, bias: Tensor, copies: Tensor, may_end: Tensor) -> tuple[Tensor, Tensor]:
        """(R, K) log-probabilities of each row's likeliest tokens that may come out, and the tokens."""
        scores = products + bias
        likeliest, tokens = best(allowed(scores, copies, may_end), self._places)
        return (likeliest - scores.logsumexp(1, keepdim=True)).double().cpu(), tokens.cpu()

    def hypotheses(self) -> list[list[Hypothesis]]:
        """The n best of each sentence."""
        tables = Step(*(np.stack([table.ravel() for table in each]) for each in zip(*self._steps, strict=True)))
        steps, places, finished = self._ranked(tables)
        ids, weights = self._walk_back(tables, steps, places)
        found: list[list[Hypothesis]] = [[] for _ in self.sources]
        for hypothesis, place in enumerate(places.tolist()):
            sentence, is_finished = place // self._places, bool(finished[hypothesis])
            length = int(steps[hypothesis]) + 1 - is_finished  # the end is no token of the translation
            total = float(tables.totals[steps[hypothesis], place])
            positions = len(self.sources[sentence])
            if weights is None:
                looked_at = torch.full((length, positions), 1 / positions, device="cpu")
            else:
                looked_at = weights[hypothesis, :length, :positions].clone()  # a view would keep them all
            found[sentence].append(Hypothesis(ids[hypothesis, :length].tolist(), total, looked_at, is_finished))
        return found

    def _ranked(self, tables: Step) -> tuple[Table, Table, Table]:
        """Of each sentence's n best, best first: the last step, the place there and whether it is finished; (N,)."""
        steps, places = tables.out.nonzero()
        finished = tables.ended[steps, places]
        scores = normalised(tables.totals[steps, places], steps + 1, self._penalty)
        sentences = places // self._places
        # By sentence, finished ones first, the best first; of equal ones the one that was out first.
        order = np.lexsort((-scores, ~finished, sentences))
        sentences = sentences[order]
        within = np.arange(len(order)) - np.searchsorted(sentences, sentences)
        order = order[within < self._kept]
        return steps[order], places[order], finished[order]

    def _walk_back(self, tables: Step, last_steps: Table, places: Table) -> tuple[Table, Tensor | None]:
        """The tokens (N, T) and what they looked at (N, T, S), of the hypotheses that end in these places."""
        ids, weights = [], []
        for step in reversed(range(len(self._steps))):
            # Behind a hypothesis's last step this reads whatever stands at its place, which nobody will look at.
            ids.append(tables.tokens[step][places])
            if self._weights:
                looked_at = self._weights[step]
                weights.append(looked_at[torch.from_numpy(tables.rows[step][places]).to(looked_at.device)])
            places = np.where(step <= last_steps, tables.origins[step][places], places)
        found = torch.stack(weights[::-1], dim=1).float().cpu() if weights else None
        return np.stack(ids[::-1], axis=1), found


class Samples(Beams):
    """As many sentences as there are samples to draw, each with one place."""

    def __init__(self, search: Search, sources: Sequence[Sequence[int]], attend: bool) -> None:
        super().__init__(search, sources, attend)
        # One number a step, from a stream of the sample's own: so what else is drawn has no effect.
        longest = max(search.most(len(source)) for source in sources)
        streams = (
            np.random.default_rng([search.seed, index % search.n_best, *source]) for index, source in enumerate(sources)
        )
        self._draws = torch.from_numpy(np.stack([stream.random(longest) for stream in streams]))

    def _widths(self) -> tuple[int, int, float]:
        return 1, 1, 0.0

    def _candidates(self, products: Tensor, bias: Tensor, copies: Tensor, may_end: Tensor) -> tuple[Tensor, Tensor]:
        """(R, 1) log-probability of a token that is drawn for each row, and the token."""
        scores = products + bias
        possible, tokens = allowed(scores, copies, may_end), None
        if self._search.top_k is not None:
            possible, tokens = best(possible, self._search.top_k)
        peak = possible.amax(1, keepdim=True)
        sums = ((possible - peak).double() / self._search.temperature).exp().cumsum(1)
        total = sums[:, -1:]
        draws = self._draws[self._sentences, len(self._steps)].to(sums.device).unsqueeze(1)
        # Less than the total even after rounding, so that the token at which the sum passes it has a share in it.
        draws = torch.minimum(draws * total, total.nextafter(torch.zeros_like(total)))
        places = torch.searchsorted(sums, draws, right=True).clamp(max=sums.shape[1] - 1)  # of NaN, the last
        chosen = places if tokens is None else tokens.gather(1, places)
        gains = scores.gather(1, chosen) - scores.logsumexp(1, keepdim=True)
        return gains.double().cpu(), chosen.cpu()


def unknown_scores() -> InputError:
    """The error for a row of which no token is the best."""
    return InputError(
        "the model's scores of the next token are not numbers (NaN or infinite), so that none is the best: its "
        "weights are damaged, or its training diverged. Train it again, with a lower learning rate"
    )
