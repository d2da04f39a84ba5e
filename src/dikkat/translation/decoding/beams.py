"""The hypotheses of a batch while they grow, by beam search or drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dikkat.cpu.search.launch import Advance, Step, can_rank, rank
from dikkat.cpu.search.launch import Beams as Bookkeeping
from dikkat.cpu.search.rules import normalised
from dikkat.errors import InputError
from dikkat.translation.decoding.best import allowed, best
from dikkat.translation.decoding.options import Search
from dikkat.translation.text.tokenizer import UNKNOWN

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
        most = torch.tensor([search.most(len(source)) for source in sources], device="cpu")
        self._beams = Bookkeeping(self._places, self._kept, self._penalty, most)
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
        found = self._beams.advance(*self._candidates(products, bias, copies, may_end))
        if found.unknown:
            raise unknown_scores()
        self._steps.append(found.step)
        if weights is not None:
            self._weights.append(weights)
        self._sentences = found.sentences
        return found

    def _candidates(self, products: Tensor, bias: Tensor, copies: Tensor, may_end: Tensor) -> tuple[Tensor, Tensor]:
        """(R, K) log-probabilities of each row's likeliest tokens that may come out, and the tokens."""
        if can_rank(products):
            return rank(products, bias, copies, may_end, self._places)
        scores = products + bias
        likeliest, tokens = best(allowed(scores, copies, may_end), self._places)
        return (likeliest - scores.logsumexp(1, keepdim=True)).double().cpu(), tokens.cpu()

    def hypotheses(self) -> list[list[Hypothesis]]:
        """The n best of each sentence."""
        # In NumPy, of which an operation on a few numbers takes a quarter of the time of PyTorch's.
        tables = Step(*(np.stack([table.numpy().ravel() for table in each]) for each in zip(*self._steps, strict=True)))
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
