"""Translations of a batch by beam search or at random, and the probability of given ones."""

from collections.abc import Sequence

import torch

from dikkat import stopping
from dikkat.errors import InputError
from dikkat.translation.decoding import compiled
from dikkat.translation.decoding.beams import Beams, Hypothesis, Samples
from dikkat.translation.decoding.options import DEFAULT, GREEDY, Search
from dikkat.translation.decoding.readers import Models, Readers, evaluating, gathered, mean_log
from dikkat.translation.errors import SettingsError
from dikkat.translation.network.model import collate, expected, pad
from dikkat.translation.network.precision import check_precision
from dikkat.translation.settings import Precision
from dikkat.translation.text.tokenizer import BEGIN

_CHUNK = 1024  # tokens whose scores are in memory at once where a translation is given


def greedy(models: Models, sources: Sequence[Sequence[int]]) -> list[Hypothesis]:
    """Translate a batch by taking the likeliest token at every step: `beam_search` with a beam of 1.

    Args:
        models: As in `beam_search`.
        sources: Token numbers, at least one in each sentence.

    Returns:
        One hypothesis a source, in their order.

    Raises:
        InputError: As in `beam_search`.
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
        models: The network, or several of the same vocabularies and on one device; they are put in evaluation mode.
        sources: Token numbers, at least one in each sentence.
        search: The beam and what else there is to choose.

    Returns:
        For each source, in their order, `search.n_best` hypotheses, best first (fewer where the model gives all
        others a probability of 0): by the score that `Search` normalises, those that the limit cut behind all
        that are finished. Samples come in the order in which they were drawn.

    Raises:
        InputError: A source without tokens, or a model whose scores are not numbers.
        SettingsError: A beam or a `top_k` beyond the model's target vocabulary, or a precision that the processor has
            not.
        ValueError: No model, or models that do not go together.

    Example:
        >>> import torch
        >>> from dikkat.translation import Search, Settings, TranslationModel, beam_search
        >>> model = TranslationModel(Settings(embedding_size=3, hidden_size=4), source_size=11, target_size=13)
        >>> ((best, second),) = beam_search(model, [[5, 6, 7]], Search(beam=3, n_best=2, max_length=4))
        >>> best.weights.shape == (len(best.ids), 3)
        True
    """
    together = gathered(models)
    if not all(sources):
        raise InputError("a source sentence has no tokens, so there is nothing to look at: leave it out")
    vocabulary = len(together[0].output_bias)
    for name, wanted in (("beam", 1 if search.sample else search.beam), ("top_k", search.top_k or 1)):
        if wanted > vocabulary:
            raise SettingsError(f"{name}: got {wanted}; expected at most {vocabulary}, the tokens that the model has")
    if not sources:
        return []
    device = together[0].output_bias.device
    if ready := compiled.runnable(together, search):
        return compiled.translations(ready, sources, search)
    check_precision(search.precision, device.type)
    numbers, lengths = (tensor.to(device) for tensor in pad(sources))
    precision: Precision = "bfloat16" if search.precision == "bfloat16" else "float32"
    readers = Readers(evaluating(together), numbers, lengths, precision)
    if not search.sample:
        return _searched(readers, Beams(search, sources, readers.attend))
    repeated = [source for source in sources for _ in range(search.n_best)]
    readers.select(torch.arange(len(sources), device=device).repeat_interleave(search.n_best))
    drawn = [sample for (sample,) in _searched(readers, Samples(search, repeated, readers.attend))]
    return [drawn[start : start + search.n_best] for start in range(0, len(drawn), search.n_best)]


def _searched(readers: Readers, beams: "Beams") -> list[list[Hypothesis]]:
    previous = torch.full((len(beams.sources),), BEGIN, device=readers.device)
    while len(previous):
        stopping.look()
        found = beams.extend(*readers.step(previous))
        previous = found.tokens.to(readers.device)
        if not found.stay:
            readers.select(found.rows.to(readers.device))
    return beams.hypotheses()


@torch.no_grad()
def forced_scores(models: Models, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[float]:
    """The log-probabilities of given translations: the scores that a search gives to finished ones.

    Args:
        models: As in `beam_search`.
        pairs: Token numbers of a source, at least one, and of its translation, without the end.

    Returns:
        One number a pair: log-probability of the tokens and the end, natural logarithm.

    Raises:
        InputError: A source without tokens.
        ValueError: As in `beam_search`.

    Example:
        >>> from dikkat.translation import Settings, TranslationModel, forced_scores
        >>> model = TranslationModel(Settings(embedding_size=3, hidden_size=4), source_size=11, target_size=13)
        >>> long, short = forced_scores(model, [([5, 6], [7, 8, 9]), ([4], [])])
        >>> long < short < 0
        True
    """
    together = evaluating(gathered(models))
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
        gains.append(mean_log(scores).gather(1, tokens.unsqueeze(1)).squeeze(1).double().cpu())
    return [float(each.sum()) for each in torch.cat(gains).split(batch.target_lengths.tolist())]
