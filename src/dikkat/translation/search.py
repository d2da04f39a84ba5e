import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from dikkat.kernels.numba_search import Advance, Beams, Step, can_rank, rank
from dikkat.translation.errors import InputError, SettingsError
from dikkat.translation.model import TranslationModel, pad
from dikkat.translation.precision import Precision, check_precision
from dikkat.translation.tokenizer import BEGIN, END, PAD, UNKNOWN

_BLOCK = 64  # columns; of 16 to 256 the fastest for 64 and 320 rows of 8,000


@dataclass(frozen=True)
class Search:
    r"""How to look for the best translation.

    Of a sentence's hypotheses the `beam` likeliest go on from each step to the next. One that the model ends leaves
    the beam and its place is not filled again, so that a beam of 1 is greedy search. Ended ones compete by

    $$ \log p \,\Big/ \Big(\frac{5 + \text{length}}{6}\Big)^{\text{length\_penalty}} $$

    with the end counted in the length. The search of a sentence is over when no hypothesis that goes on could still
    become one of the `n_best`.
    Wu et al., "Google's neural machine translation system" (2016), section 7.

    Attributes:
        beam: hypotheses of a sentence that go on, at least 1; at most as many as the model has tokens to write.
        n_best: hypotheses to return of a sentence, from 1 to `beam`.
        length_penalty: from 0, where the likeliest wins, which favours short ones, to 10. A larger one favours longer
            translations; a beam of 1 is not affected.
        max_length: most tokens of a translation, from 1; None: `length_limit` alone, which holds in any case.
        precision: `"float32"`, or `"bfloat16"` for the output layer's product, where the processor has such: faster
            for large batches and vocabularies, and scores have two to three digits.

    Raises:
        SettingsError: a value of the wrong type or out of its range; the message names it and the range.

    Example:
        >>> Search(beam=3, n_best=5)
        Traceback (most recent call last):
            ...
        dikkat.translation.errors.SettingsError: n_best is 5; it must be a whole number from 1 to 3, the beam
    """

    beam: int = 5
    n_best: int = 1
    length_penalty: float = 1.0
    max_length: int | None = None
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        """Check every value."""
        if not _is_number(self.beam, int) or self.beam < 1:
            raise SettingsError(f"beam is {self.beam!r}; it must be a whole number of at least 1")
        if not _is_number(self.n_best, int) or not 1 <= self.n_best <= self.beam:
            raise SettingsError(f"n_best is {self.n_best!r}; it must be a whole number from 1 to {self.beam}, the beam")
        if not _is_number(self.length_penalty, (int, float)) or not 0 <= self.length_penalty <= 10:
            raise SettingsError(f"length_penalty is {self.length_penalty!r}; it must be a number from 0 to 10")
        if self.max_length is not None and (not _is_number(self.max_length, int) or self.max_length < 1):
            raise SettingsError(f"max_length is {self.max_length!r}; it must be None or a whole number of at least 1")
        if self.precision not in get_args(Precision):
            raise SettingsError(f"precision is {self.precision!r}; it must be one of {', '.join(get_args(Precision))}")


def _is_number(value: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


Table = np.ndarray[Any, Any]
DEFAULT = Search()
GREEDY = Search(beam=1)


@dataclass(frozen=True)
class Hypothesis:
    """What a search found for a sentence.

    Attributes:
        ids: the T target tokens, without the end.
        score: log-probability of the tokens and, where it is finished, the end; natural logarithm, not normalised.
        weights: (T, S) float32 on the CPU: where each token looked; every row adds up to 1.
        finished: whether the model ended the sentence itself, rather than the limit on its length.
    """

    ids: list[int]
    score: float
    weights: Tensor
    finished: bool


def length_limit(source_tokens: int) -> int:
    """Most target tokens for a source of so many: twice as many and ten, and at most fifty more.

    A model that has not learnt to stop would go on for ever; no sensible translation comes near these.
    """
    return min(2 * source_tokens + 10, source_tokens + 50)


def greedy(model: TranslationModel, sources: Sequence[Sequence[int]]) -> list[Hypothesis]:
    """Translate a batch by taking the likeliest token at every step: `beam_search` with a beam of 1.

    Args:
        model: the network; it is put in evaluation mode.
        sources: token numbers, at least one in each sentence.

    Returns:
        One hypothesis a source, in their order.

    Raises:
        InputError: as in `beam_search`.
    """
    return [found[0] for found in beam_search(model, sources, GREEDY)]


@torch.no_grad()
def beam_search(
    model: TranslationModel, sources: Sequence[Sequence[int]], search: Search = DEFAULT
) -> list[list[Hypothesis]]:
    """Translate a batch by beam search. Ended hypotheses leave the beam, and finished sentences the batch.

    `<pad>` and `<bos>` are never output, and `<eos>` not first. `<unk>` is, but only for a source that has an
    unknown word itself, which a caller can put in its place; otherwise the likeliest known word is better than a hole.

    The same input gives the same result. Of equally likely hypotheses the one that stood higher in the beam goes
    first, then the one with the lower token number. What else is in the batch has no effect but that of rounding.

    Args:
        model: the network; it is put in evaluation mode.
        sources: token numbers, at least one in each sentence.
        search: the beam and what else there is to choose.

    Returns:
        For each source, in their order, `search.n_best` hypotheses, best first (fewer where the model gives all
        others a probability of 0): by the score that `Search` normalises, those that the limit cut behind all
        that are finished.

    Raises:
        InputError: a source without tokens, or a model whose scores are not numbers.
        SettingsError: a beam wider than the model's target vocabulary, or a precision that the processor has not.

    Example:
        >>> import torch
        >>> from dikkat.translation import Search, Settings, TranslationModel, beam_search
        >>> model = TranslationModel(Settings(embedding_size=3, hidden_size=4), source_size=11, target_size=13)
        >>> ((best, second),) = beam_search(model, [[5, 6, 7]], Search(beam=3, n_best=2, max_length=4))
        >>> best.weights.shape == (len(best.ids), 3)
        True
    """
    if not all(sources):
        raise InputError("a source sentence has no tokens, so there is nothing to look at: leave it out")
    vocabulary = len(model.output_bias)
    if search.beam > vocabulary:
        raise SettingsError(f"beam is {search.beam}; it must be at most {vocabulary}, the tokens that the model has")
    if not sources:
        return []
    model.eval()
    device = model.output_bias.device
    check_precision(search.precision, device.type)
    numbers, lengths = (tensor.to(device) for tensor in pad(sources))
    memory, state = model.encode(numbers, lengths)
    output = model.output_layer(search.precision)
    beams = _Beams(search, numbers.cpu(), lengths.cpu())
    previous = torch.full((len(sources),), BEGIN, device=device)
    while len(previous):
        features, weights, state = model.step_features(previous, memory, state)
        found = beams.extend(output.products(features), output.bias, weights)
        previous = found.tokens.to(device)
        if not found.stay:
            rows = found.rows.to(device)
            state, memory = model.select(state, rows), memory.select(rows)
    return beams.hypotheses([len(source) for source in sources])


class _Beams:
    """The hypotheses of a batch while they grow: B sentences of K places, best first.

    The network's rows are those places alone whose hypotheses go on, in the order of the places.
    """

    def __init__(self, search: Search, numbers: Tensor, lengths: Tensor) -> None:
        self._search = search
        self._copies = (numbers == UNKNOWN).any(dim=1)
        limits = [min(length_limit(length), search.max_length or math.inf) for length in lengths.tolist()]
        table = torch.tensor(limits, dtype=torch.int64)
        self._beams = Beams(search.beam, search.n_best, search.length_penalty, table)
        self._row_copies = self._copies  # (R,) bool: of the sentence that each row of the network's is of
        self._steps: list[Step] = []
        self._weights: list[Tensor] = []  # (R, S): what each step's rows looked at

    def extend(self, products: Tensor, bias: Tensor, weights: Tensor) -> Advance:
        """Put a token to the hypotheses."""
        found = self._beams.advance(*self._candidates(products, bias))
        if found.unknown:
            raise InputError(
                "the model's scores of the next token are not numbers (NaN or infinite), so that none is the best: its "
                "weights are damaged, or its training diverged. Train it again, with a lower learning rate"
            )
        self._steps.append(found.step)
        self._weights.append(weights)
        if not found.stay:
            self._row_copies = self._copies[found.sentences]
        return found

    def _candidates(self, products: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """(R, K) log-probabilities of each row's likeliest tokens that may come out, and the tokens."""
        copies, count, first = self._row_copies, self._search.beam, not self._steps
        if can_rank(products):
            return rank(products, bias, copies, count, first)
        scores = products + bias
        allowed = scores.clone()
        allowed[:, [PAD, BEGIN, *([END] if first else [])]] = -torch.inf
        allowed[:, UNKNOWN].masked_fill_(~copies.to(scores.device), -torch.inf)
        best, tokens = _best(allowed, count)
        return (best - scores.logsumexp(1, keepdim=True)).double().cpu(), tokens.cpu()

    def hypotheses(self, source_lengths: Sequence[int]) -> list[list[Hypothesis]]:
        """The n best of each sentence."""
        # In NumPy, of which an operation on a few numbers takes a quarter of the time of PyTorch's.
        tables = Step(*(np.stack([table.numpy().ravel() for table in each]) for each in zip(*self._steps, strict=True)))
        steps, places, finished = self._ranked(tables)
        ids, weights = self._walk_back(tables, steps, places)
        found: list[list[Hypothesis]] = [[] for _ in source_lengths]
        for hypothesis, place in enumerate(places.tolist()):
            sentence, is_finished = place // self._search.beam, bool(finished[hypothesis])
            length = int(steps[hypothesis]) + 1 - is_finished  # the end is no token of the translation
            looked_at = weights[hypothesis, :length, : source_lengths[sentence]].clone()  # a view would keep them all
            total = float(tables.totals[steps[hypothesis], place])
            found[sentence].append(Hypothesis(ids[hypothesis, :length].tolist(), total, looked_at, is_finished))
        return found

    def _ranked(self, tables: Step) -> tuple[Table, Table, Table]:
        """Of each sentence's n best, best first: the last step, the place there and whether it is finished; (N,)."""
        steps, places = tables.out.nonzero()
        finished = tables.ended[steps, places]
        normalised = tables.totals[steps, places] / ((6 + steps) / 6) ** self._search.length_penalty
        sentences = places // self._search.beam
        # By sentence, finished ones first, the best first; of equal ones the one that was out first.
        order = np.lexsort((-normalised, ~finished, sentences))
        sentences = sentences[order]
        within = np.arange(len(order)) - np.searchsorted(sentences, sentences)
        order = order[within < self._search.n_best]
        return steps[order], places[order], finished[order]

    def _walk_back(self, tables: Step, last_steps: Table, places: Table) -> tuple[Table, Tensor]:
        """The tokens (N, T) and what they looked at (N, T, S), of the hypotheses that end in these places."""
        ids, weights = [], []
        for step in reversed(range(len(self._steps))):
            # Behind a hypothesis's last step this reads whatever stands at its place, which nobody will look at.
            ids.append(tables.tokens[step][places])
            looked_at = self._weights[step]
            weights.append(looked_at[torch.from_numpy(tables.rows[step][places]).to(looked_at.device)])
            places = np.where(step <= last_steps, tables.origins[step][places], places)
        return np.stack(ids[::-1], axis=1), torch.stack(weights[::-1], dim=1).float().cpu()


def _best(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(R, k): each row's k greatest values, greatest first, and their columns; of equal ones the lowest first.

    The k greatest are within the k blocks of columns that have the greatest maxima: so a row is read once, and what
    has to be sorted is small. `torch.topk` on the rows takes 1.4 times as long for 5 of 8,000 and twice as long for 1,
    and breaks ties as it likes.
    """
    columns = None
    blocks = values.shape[1] // _BLOCK
    if blocks > k:
        whole = values[:, : blocks * _BLOCK].unflatten(1, (blocks, _BLOCK))
        within = torch.arange(_BLOCK, device=values.device)
        columns = (_greatest(whole.amax(dim=2), k).unsqueeze(2) * _BLOCK + within).flatten(1)
        rest = torch.arange(blocks * _BLOCK, values.shape[1], device=values.device)
        columns = torch.cat([columns, rest.expand(len(values), -1)], dim=1)
        values = values.gather(1, columns)
    chosen = _greatest(values, k)
    found, order = values.gather(1, chosen).sort(dim=1, descending=True, stable=True)
    chosen = chosen.gather(1, order)
    return found, chosen if columns is None else columns.gather(1, chosen)


def _greatest(values: Tensor, k: int) -> Tensor:
    """(R, k): the columns of each row's k greatest values, ascending; of equal ones the lowest are taken."""
    least = values.topk(k).values[:, -1:]
    columns = torch.arange(values.shape[1], device=values.device, dtype=torch.int32)
    order = torch.where(values > least, -1, columns).masked_fill_(values < least, values.shape[1])
    return order.topk(k, largest=False, sorted=False).indices.sort(dim=1).values
