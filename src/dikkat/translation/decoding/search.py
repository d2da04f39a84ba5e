import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any, Protocol, Self, get_args

import numpy as np
import torch
from torch import Tensor

from dikkat.cpu.search.launch import Advance, Beams, Step, can_rank, rank
from dikkat.errors import InputError
from dikkat.translation.errors import SettingsError
from dikkat.translation.network.model import Batch, collate, expected, pad
from dikkat.translation.network.precision import Precision, check_precision
from dikkat.translation.text.tokenizer import BEGIN, END, PAD, UNKNOWN

_BLOCK = 64  # columns; of 16 to 256 the fastest for 64 and 320 rows of 8,000
_LARGEST_RATIO = 10  # target tokens for one of the source's
_CHUNK = 1024  # tokens whose scores are in memory at once where a translation is given


@dataclass(frozen=True)
class Search:
    r"""How to look for the best translation, or to draw some at random.

    Of a sentence's hypotheses the `beam` likeliest go on from each step to the next. One that the model ends leaves
    the beam and its place is not filled again, so that a beam of 1 is greedy search. Ended ones compete by

    $$ \log p \,\Big/ \Big(\frac{5 + \text{length}}{6}\Big)^{\text{length\_penalty}} $$

    with the end counted in the length. The search of a sentence is over when no hypothesis that goes on could still
    become one of the `n_best`.
    Wu et al., "Google's neural machine translation system" (2016), section 7.

    With `sample`, `n_best` translations are drawn independently of each other, token by token, each with the
    probability that

    $$ p_v^{1/\text{temperature}} \,\Big/ \sum_w p_w^{1/\text{temperature}} $$

    gives it among the `top_k` likeliest. They come in the order in which they were drawn, and may be equal. The samples
    of a sentence depend on `seed`, its tokens and the model; other sentences have no effect but that of rounding.

    Attributes:
        beam: hypotheses of a sentence that go on, at least 1; at most as many as the model has tokens to write.
        n_best: hypotheses to return of a sentence, from 1 to `beam`; with `sample` any number from 1.
        length_penalty: from 0, where the likeliest wins, which favours short ones, to 10. A larger one favours longer
            translations; a beam of 1 is not affected.
        min_ratio: fewest target tokens for one of the source's, rounded up, from 0 to 10; one token there is always.
        max_ratio: most target tokens for one of the source's, rounded down, but at least one token; greater than 0 and
            at most 10, and no less than `min_ratio`; None: `length_limit`.
        max_length: most tokens of any translation, from 1, whatever the ratios say; None: as many as they allow.
        sample: whether to draw translations instead. `beam` and `length_penalty` then have no meaning, and must have
            their defaults, as without it the four that follow must.
        temperature: from 0.01, where the likeliest is drawn nearly always, over 1, the model's own probabilities, to
            100, where all are nearly alike.
        top_k: how many of the likeliest tokens a step draws from, at least 1; at most as many as the model has; None:
            all.
        seed: where the random numbers begin, from 0 to 4,294,967,295.
        precision: `"float32"`, or `"bfloat16"` for the output layer's product, where the processor has such: faster
            for large batches and vocabularies, and scores have two to three digits.

    Raises:
        SettingsError: a value of the wrong type or out of its range, or two that contradict each other; the message
            names them and what is allowed.

    Example:
        >>> Search(beam=3, n_best=5)
        Traceback (most recent call last):
            ...
        dikkat.translation.errors.SettingsError: n_best is 5; it must be a whole number from 1 to 3, the beam
    """

    beam: int = 5
    n_best: int = 1
    length_penalty: float = 1.0
    min_ratio: float = 0.0
    max_ratio: float | None = None
    max_length: int | None = None
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    seed: int = 0
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        """Check every value, and those that contradict each other."""
        if not isinstance(self.sample, bool):
            raise SettingsError(f"sample is {self.sample!r}; it must be true or false")
        for name, smallest, largest in _WHOLE:
            _check_whole(name, getattr(self, name), smallest, largest)
        for name, least, most in _REAL:
            _check_real(name, getattr(self, name), least, most)
        if self.precision not in get_args(Precision):
            raise SettingsError(f"precision is {self.precision!r}; it must be one of {', '.join(get_args(Precision))}")
        if not self.sample and self.n_best > self.beam:
            raise SettingsError(f"n_best is {self.n_best}; it must be a whole number from 1 to {self.beam}, the beam")
        if self.max_ratio is not None and not 0 < self.max_ratio >= self.min_ratio:
            raise SettingsError(
                f"max_ratio is {self.max_ratio} and min_ratio {self.min_ratio}; it must be greater than 0 and at least "
                "min_ratio"
            )
        self._check_way()

    def _check_way(self) -> None:
        """No value that would do nothing."""
        unused = ("beam", "length_penalty") if self.sample else ("temperature", "top_k", "seed")
        why = "samples are drawn one by one" if self.sample else "it acts on samples alone"
        for name in unused:
            if getattr(self, name) != getattr(Search, name):
                raise SettingsError(
                    f"{name} is {getattr(self, name)} and sample is {str(self.sample).lower()}: {why}; leave one out"
                )


_WHOLE = (
    ("beam", 1, None), ("n_best", 1, None), ("max_length", 1, None), ("top_k", 1, None), ("seed", 0, 2**32 - 1),
)  # fmt: skip
_REAL = (
    ("length_penalty", 0, 10), ("min_ratio", 0, _LARGEST_RATIO), ("max_ratio", 0, _LARGEST_RATIO),
    ("temperature", 0.01, 100),
)  # fmt: skip


def _check_whole(name: str, value: object, smallest: int, largest: int | None) -> None:
    optional = getattr(Search, name) is None
    if optional and value is None:
        return
    allowed = f"at least {smallest}" if largest is None else f"{smallest} to {largest}"
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= (largest or math.inf):
        kind = f"a whole number {'of' if largest is None else 'from'} {allowed}{', or left out' if optional else ''}"
        raise SettingsError(f"{name} is {value!r}; it must be {kind}")


def _check_real(name: str, value: object, least: float, most: float) -> None:
    optional = getattr(Search, name) is None
    if optional and value is None:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        kind = f"a number from {least} to {most}{', or left out' if optional else ''}"
        raise SettingsError(f"{name} is {value!r}; it must be {kind}")


Table = np.ndarray[Any, Any]


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
    """What a search needs of a model: `TranslationModel` is one, and those of other frameworks are.

    Attributes:
        attends: whether there is attention.
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
DEFAULT = Search()
GREEDY = Search(beam=1)


@dataclass(frozen=True)
class Hypothesis:
    """What a search found for a sentence.

    Attributes:
        ids: the T target tokens, without the end.
        score: log-probability of the tokens and, where it is finished, the end; natural logarithm, not normalised.
        weights: (T, S) float32 on the CPU: where each token looked; every row adds up to 1. Of a model without
            attention all are alike.
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


def _fewest(search: Search, source_tokens: int) -> int:
    # A ratio means the decimal number that was written: 1.1 times 10 is 11, and not a little more.
    return max(1, math.ceil(Fraction(str(search.min_ratio)) * source_tokens))


def _most(search: Search, source_tokens: int) -> int:
    most = length_limit(source_tokens)
    if search.max_ratio is not None:
        most = max(1, math.floor(Fraction(str(search.max_ratio)) * source_tokens))
    return most if search.max_length is None else min(most, search.max_length)


def greedy(models: Models, sources: Sequence[Sequence[int]]) -> list[Hypothesis]:
    """Translate a batch by taking the likeliest token at every step: `beam_search` with a beam of 1.

    Args:
        models: as in `beam_search`.
        sources: token numbers, at least one in each sentence.

    Returns:
        One hypothesis a source, in their order.

    Raises:
        InputError: as in `beam_search`.
    """
    return [found[0] for found in beam_search(models, sources, GREEDY)]


@torch.no_grad()
def beam_search(models: Models, sources: Sequence[Sequence[int]], search: Search = DEFAULT) -> list[list[Hypothesis]]:
    r"""Translate a batch by beam search, or draw translations. What has ended costs nothing any more.

    `<pad>` and `<bos>` are never output, and `<eos>` not before the fewest tokens that `search` wants, of which there
    is one at least. `<unk>` is, but only for a source that has an unknown word itself, which a caller can put in its
    place, and with attention, which says which; otherwise the likeliest known word is better than a hole. Where the
    fewest tokens of a sentence are more than the most, it is cut at the most.

    Several models of one vocabulary translate together: their probabilities are averaged at every step, and so is
    where they look, of those that have attention. With M models of probabilities $p_m$ a token's log-probability is

    $$ \log \frac1M \sum_{m=1}^{M} p_m(y_t \mid y_{<t}, x) $$

    The same input gives the same result. Of equally likely hypotheses the one that stood higher in the beam goes
    first, then the one with the lower token number. What else is in the batch has no effect but that of rounding.

    Args:
        models: the network, or several of the same vocabularies and on one device; they are put in evaluation mode.
        sources: token numbers, at least one in each sentence.
        search: the beam and what else there is to choose.

    Returns:
        For each source, in their order, `search.n_best` hypotheses, best first (fewer where the model gives all
        others a probability of 0): by the score that `Search` normalises, those that the limit cut behind all
        that are finished. Samples come in the order in which they were drawn.

    Raises:
        InputError: a source without tokens, or a model whose scores are not numbers.
        SettingsError: a beam or a `top_k` beyond the model's target vocabulary, or a precision that the processor has
            not.
        ValueError: no model, or models that do not go together.

    Example:
        >>> import torch
        >>> from dikkat.translation import Search, Settings, TranslationModel, beam_search
        >>> model = TranslationModel(Settings(embedding_size=3, hidden_size=4), source_size=11, target_size=13)
        >>> ((best, second),) = beam_search(model, [[5, 6, 7]], Search(beam=3, n_best=2, max_length=4))
        >>> best.weights.shape == (len(best.ids), 3)
        True
    """
    together = _together(models)
    if not all(sources):
        raise InputError("a source sentence has no tokens, so there is nothing to look at: leave it out")
    vocabulary = len(together[0].output_bias)
    for name, wanted in (("beam", 1 if search.sample else search.beam), ("top_k", search.top_k or 1)):
        if wanted > vocabulary:
            raise SettingsError(f"{name} is {wanted}; it must be at most {vocabulary}, the tokens that the model has")
    if not sources:
        return []
    device = together[0].output_bias.device
    check_precision(search.precision, device.type)
    numbers, lengths = (tensor.to(device) for tensor in pad(sources))
    readers = _Readers(together, numbers, lengths, search.precision)
    if not search.sample:
        return _searched(readers, _Beams(search, sources, readers.attend))
    repeated = [source for source in sources for _ in range(search.n_best)]
    readers.select(torch.arange(len(sources), device=device).repeat_interleave(search.n_best))
    drawn = [sample for (sample,) in _searched(readers, _Samples(search, repeated, readers.attend))]
    return [drawn[start : start + search.n_best] for start in range(0, len(drawn), search.n_best)]


@torch.no_grad()
def forced_scores(models: Models, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[float]:
    """The log-probabilities of given translations: the scores that a search gives to finished ones.

    Args:
        models: as in `beam_search`.
        pairs: token numbers of a source, at least one, and of its translation, without the end.

    Returns:
        One number a pair: log-probability of the tokens and the end, natural logarithm.

    Raises:
        InputError: a source without tokens.
        ValueError: as in `beam_search`.

    Example:
        >>> from dikkat.translation import Settings, TranslationModel, forced_scores
        >>> model = TranslationModel(Settings(embedding_size=3, hidden_size=4), source_size=11, target_size=13)
        >>> long, short = forced_scores(model, [([5, 6], [7, 8, 9]), ([4], [])])
        >>> long < short < 0
        True
    """
    together = _together(models)
    if not all(source for source, _ in pairs):
        raise InputError(
            "a source sentence has no tokens, so that a translation of it has no probability: leave it out"
        )
    if not pairs:
        return []
    batch = collate(pairs)
    device = together[0].output_bias.device
    batch = batch._replace(
        source=batch.source.to(device),
        source_lengths=batch.source_lengths.to(device),
        target=batch.target.to(device),
        target_lengths=batch.target_lengths.to(device),
    )
    features, gains = (model.features(batch).split(_CHUNK) for model in together), []
    for tokens, *chunks in zip(expected(batch).split(_CHUNK), *features, strict=True):
        scores = [model.scores(chunk) for model, chunk in zip(together, chunks, strict=True)]
        gains.append(_mean(scores).gather(1, tokens.unsqueeze(1)).squeeze(1).double().cpu())
    return [float(each.sum()) for each in torch.cat(gains).split(batch.target_lengths.tolist())]


def _together(models: Models) -> list[Reads]:
    """Models that go together, in evaluation mode."""
    together = list(models) if isinstance(models, Sequence) else [models]
    if not together:
        raise ValueError("models is empty; it must be a model or several")
    for what, found in (
        ("have target vocabularies of sizes", [len(model.output_bias) for model in together]),
        ("are on the devices", [str(model.output_bias.device) for model in together]),
    ):
        if len(set(found)) > 1:
            raise ValueError(f"the models {what} {', '.join(map(str, found))}; they must have one in common")
    return [model.eval() for model in together]


def _mean(scores: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean probability, of the models' unnormalised log-probabilities (R, V)."""
    return reduce(torch.logaddexp, (each.log_softmax(1) for each in scores)) - math.log(len(scores))


class _Readers:
    """The models of a search, each with what it has read and where it is.

    Attributes:
        attend: whether one of them has attention.
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
        mean = _mean([each + output.bias for each, output in zip(scores, self._outputs, strict=True)])
        return mean, torch.zeros_like(mean[0]), where

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, in their order."""
        for index, model in enumerate(self._models):
            self._states[index] = model.select(self._states[index], rows)
            self._memories[index] = self._memories[index].select(rows)


def _searched(readers: _Readers, beams: "_Beams") -> list[list[Hypothesis]]:
    previous = torch.full((len(beams.sources),), BEGIN, device=readers.device)
    while len(previous):
        found = beams.extend(*readers.step(previous))
        previous = found.tokens.to(readers.device)
        if not found.stay:
            readers.select(found.rows.to(readers.device))
    return beams.hypotheses()


class _Beams:
    """The hypotheses of a batch while they grow: B sentences of K places, best first.

    The network's rows are those places alone whose hypotheses go on, in the order of the places.
    """

    def __init__(self, search: Search, sources: Sequence[Sequence[int]], attend: bool) -> None:
        self.sources = sources
        self._search = search
        self._places, self._kept, self._penalty = self._widths()
        # Without attention nobody could say which word to put in the place of an unknown one.
        self._copies = torch.tensor([attend and UNKNOWN in source for source in sources], device="cpu")
        self._fewest = torch.tensor([_fewest(search, len(source)) for source in sources], device="cpu")
        most = torch.tensor([_most(search, len(source)) for source in sources], device="cpu")
        self._beams = Beams(self._places, self._kept, self._penalty, most)
        self._steps: list[Step] = []
        self._weights: list[Tensor] = []  # (R, S): what each step's rows looked at; none without attention
        self._sentences = torch.arange(len(sources), device="cpu")  # (R,): which one each of the network's rows is of

    def _widths(self) -> tuple[int, int, float]:
        """Places of a sentence, hypotheses that are wanted of it, and the length penalty."""
        return self._search.beam, self._search.n_best, self._search.length_penalty

    def extend(self, products: Tensor, bias: Tensor, weights: Tensor | None) -> Advance:
        """Put a token to the hypotheses."""
        copies = self._copies[self._sentences]
        may_end = self._fewest[self._sentences] <= len(self._steps)
        found = self._beams.advance(*self._candidates(products, bias, copies, may_end))
        if found.unknown:
            raise InputError(
                "the model's scores of the next token are not numbers (NaN or infinite), so that none is the best: its "
                "weights are damaged, or its training diverged. Train it again, with a lower learning rate"
            )
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
        best, tokens = _best(_allowed(scores, copies, may_end), self._places)
        return (best - scores.logsumexp(1, keepdim=True)).double().cpu(), tokens.cpu()

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
        normalised = tables.totals[steps, places] / ((6 + steps) / 6) ** self._penalty
        sentences = places // self._places
        # By sentence, finished ones first, the best first; of equal ones the one that was out first.
        order = np.lexsort((-normalised, ~finished, sentences))
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


class _Samples(_Beams):
    """As many sentences as there are samples to draw, each with one place."""

    def __init__(self, search: Search, sources: Sequence[Sequence[int]], attend: bool) -> None:
        super().__init__(search, sources, attend)
        # One number a step, from a stream of the sample's own: so what else is drawn has no effect.
        longest = max(_most(search, len(source)) for source in sources)
        streams = (
            np.random.default_rng([search.seed, index % search.n_best, *source]) for index, source in enumerate(sources)
        )
        self._draws = torch.from_numpy(np.stack([stream.random(longest) for stream in streams]))

    def _widths(self) -> tuple[int, int, float]:
        return 1, 1, 0.0

    def _candidates(self, products: Tensor, bias: Tensor, copies: Tensor, may_end: Tensor) -> tuple[Tensor, Tensor]:
        """(R, 1) log-probability of a token that is drawn for each row, and the token."""
        scores = products + bias
        allowed, tokens = _allowed(scores, copies, may_end), None
        if self._search.top_k is not None:
            allowed, tokens = _best(allowed, self._search.top_k)
        peak = allowed.amax(1, keepdim=True)
        sums = ((allowed - peak).double() / self._search.temperature).exp().cumsum(1)
        total = sums[:, -1:]
        draws = self._draws[self._sentences, len(self._steps)].to(sums.device).unsqueeze(1)
        # Less than the total even after rounding, so that the token at which the sum passes it has a share in it.
        draws = torch.minimum(draws * total, total.nextafter(torch.zeros_like(total)))
        places = torch.searchsorted(sums, draws, right=True).clamp(max=sums.shape[1] - 1)  # of NaN, the last
        chosen = places if tokens is None else tokens.gather(1, places)
        gains = scores.gather(1, chosen) - scores.logsumexp(1, keepdim=True)
        return gains.double().cpu(), chosen.cpu()


def _allowed(scores: Tensor, copies: Tensor, may_end: Tensor) -> Tensor:
    """Scores (R, V) with −∞ for the tokens that may not come out."""
    allowed = scores.clone()
    allowed[:, [PAD, BEGIN]] = -torch.inf
    allowed[:, END].masked_fill_(~may_end.to(scores.device), -torch.inf)
    allowed[:, UNKNOWN].masked_fill_(~copies.to(scores.device), -torch.inf)
    return allowed


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
