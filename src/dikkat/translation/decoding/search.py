"""Translations of a batch by beam search or at random, and the probability of given ones.

A search runs at one of two speeds: as one compiled call on the weights of one model
(`dikkat.translation.decoding.compiled`), or step by step in PyTorch (`stepwise`).
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from threading import Lock

import torch
from torch import nn

from dikkat._engine import addresses
from dikkat._engine.weight_versions import Writes
from dikkat.errors import InputError
from dikkat.translation.decoding import grid
from dikkat.translation.decoding.compiled import run
from dikkat.translation.decoding.compiled.network import Panels
from dikkat.translation.decoding.hypothesis import Hypothesis, Sentence
from dikkat.translation.decoding.options import DEFAULT, GREEDY, Search, limits
from dikkat.translation.decoding.stepwise import mean_log, step_by_step
from dikkat.translation.errors import SettingsError
from dikkat.translation.network.model import COMPILED, TranslationModel, collate, expected
from dikkat.translation.network.weights import every_module_has_hooks, search_obstacles
from dikkat.translation.text.special_tokens import SPECIAL, UNKNOWN

_LOG = logging.getLogger("dikkat")
_lock = Lock()
_CHUNK = 1024  # tokens whose scores are in memory at once where a translation is given

Models = TranslationModel | Sequence[TranslationModel]


def greedy(models: Models, sources: Sequence[Sequence[int]]) -> list[Hypothesis]:
    """Translate a batch by taking the likeliest token at every step: one hypothesis a source, in their order.

    Arguments and errors are those of `beam_search`, with a beam of 1.
    """
    return [group[0] for group in beam_search(models, sources, GREEDY)]


@torch.no_grad()
def beam_search(
    models: Models,
    sources: Sequence[Sequence[int]],
    search: Search = DEFAULT,
    slots: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {}),
) -> list[list[Hypothesis]]:
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
        slots: The slot numbers of source and target tokens, 0 to 62. A hypothesis writes only slots of its source, each
            at most once. A hypothesis that lacks some ends no search and ranks behind those that have all. Samples
            ignore slots.

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
    for name, requested in (("beam", 1 if search.sample else search.beam), ("top_k", search.top_k or 1)):
        if requested > vocabulary:
            raise SettingsError(
                f"{name}: got {requested}; expected at most {vocabulary}, the tokens that the model has"
            )
    if not sources:
        return []
    # Without attention nobody could say which word to put in the place of an unknown one.
    attends = any(model.attends for model in together)
    bits_of_source, slot_bits = dict[int, int](), torch.zeros(vocabulary, dtype=torch.int64, device="cpu")
    if not search.sample:
        bits_of_source = {token: 1 << slot for token, slot in slots[0].items() if slot in slots[1].values()}
        for token, slot in slots[1].items():
            slot_bits[token] = 1 << slot
    only_slots = bool(slot_bits[SPECIAL:].all())  # then a translation may be empty
    sentences = []
    for source in sources:
        fewest, most = limits(search, len(source))
        needed = reduce(or_, (bits_of_source.get(token, 0) for token in source), 0)
        sentences.append(Sentence(source, attends and UNKNOWN in source, 0 if only_slots else fewest, most, needed))
    if panels := runnable(together, search):
        return run.search(panels, sentences, search, slot_bits)
    if not grid.runs(together, search):
        return step_by_step(together, sentences, search, slot_bits)
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    for has_slots, engine in ((False, grid.searched), (True, step_by_step)):
        chosen = [index for index, sentence in enumerate(sentences) if bool(sentence.slots) is has_slots]
        found = engine(together, [sentences[index] for index in chosen], search, slot_bits) if chosen else []
        for index, hypotheses in zip(chosen, found, strict=True):
            results[index] = hypotheses
    return results


def gathered(models: Models) -> list[TranslationModel]:
    """Models that translate together."""
    together = list(models) if isinstance(models, Sequence) else [models]
    if not together:
        raise ValueError("models: got none; expected a model or several")
    if len(together) > 1:
        for name, values in (
            ("target vocabularies of sizes", [len(model.output_bias) for model in together]),
            ("devices", [str(model.output_bias.device) for model in together]),
        ):
            if len(set(values)) > 1:
                raise ValueError(f"models: got {name} {', '.join(map(str, values))}; expected one in common")
    return together


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
    together = [model.eval() for model in gathered(models)]
    if not all(source for source, _ in pairs):
        raise InputError(
            "a source sentence has no tokens, so that a translation of it has no probability: leave it out"
        )
    if not pairs:
        return []
    batch = collate(pairs).to(together[0].output_bias.device)
    features, gains = (model.features(batch).split(_CHUNK) for model in together), []
    for tokens, *chunks in zip(expected(batch).split(_CHUNK), *features, strict=True):
        scores = [model.scores(chunk) for model, chunk in zip(together, chunks, strict=True)]
        gains.append(mean_log(scores).gather(1, tokens.unsqueeze(1)).squeeze(1).double().cpu())
    return [float(each.sum()) for each in torch.cat(gains).split(batch.target_lengths.tolist())]


# --- as one compiled call


def explain(models: Models, search: Search = DEFAULT) -> list[str]:
    """Return the reasons why a search takes step after step in PyTorch, and does not run as one compiled call, if any.

    Example:
        >>> from dikkat.translation import Search, Settings, TranslationModel
        >>> model = TranslationModel(Settings(embedding_size=3, hidden_size=4), source_size=11, target_size=13)
        >>> explain(model, Search(beam=3))
        []
        >>> explain(model, Search(sample=True))
        ['samples are drawn, and nothing is searched']
    """
    together, reasons = gathered(models), []
    if search.sample:
        reasons.append("samples are drawn, and nothing is searched")
    if len(together) > 1:
        reasons.append(f"{len(together)} models translate together")
    for model in together:
        kept: Compiled | None = vars(model).get(COMPILED)
        if kept is None or torch.is_autocast_enabled("cpu") or not kept.fits():
            vars(model).pop(COMPILED, None)  # frees its panels, which are stale
            reasons += search_obstacles(model.eval())
    if search.precision == "int8" and together[0].output_bias.dtype != torch.float32:
        reasons.append(f"int8 goes with weights of float32, and these are of {together[0].output_bias.dtype}")
    return reasons


def runnable(models: Sequence[TranslationModel], search: Search) -> Panels | None:
    """Return the model's weights in panels, for the compiled call; None if it cannot do this search.

    They are made for the first search, by one of the threads that search at once, and kept.
    """
    reasons, int8 = explain(models, search), search.precision == "int8"
    if reasons and int8:
        raise SettingsError(f"precision: got 'int8', which cannot run here: {'; '.join(reasons)}; expected 'float32'")
    if reasons:
        return None
    model = models[0]
    with _lock:
        kept: Compiled | None = vars(model).get(COMPILED)
        if kept is None:  # `explain` drops what does not fit
            kept = vars(model)[COMPILED] = Compiled(model)
        if int8 not in kept.panels:
            kept.panels[int8] = _packed(model, int8=int8)
        return kept.panels[int8]


def _packed(model: TranslationModel, *, int8: bool) -> Panels:
    for name, tensor in model.named_parameters():
        addresses.check_numbers(name, tensor, "cpu")  # a storage that was given back would end the process
        if bool(tensor.isnan().any()):
            raise InputError(
                f"{name}: got weights that are not numbers (NaN): they are damaged, or the model's training "
                "diverged. Train it again, with a lower learning rate"
            )
        if int8 and tensor.ndim == 2 and not math.isfinite(float(tensor.detach().abs().max())):
            raise InputError(f"{name}: got infinite weights, which have no scale for int8; expected finite ones")
    panels = Panels(model, int8)
    kind = "int8" if int8 else str(panels.dtype).removeprefix("torch.")
    _LOG.info("search: weights of %s packed into panels of %.1f MiB, kept", kind, panels.nbytes / 2**20)
    return panels


class Compiled:
    """A model's panels, by whether they are int8, until the model drops them or a write to its tensors is seen."""

    def __init__(self, model: nn.Module) -> None:
        # No reference to the model itself: without a cycle, it is freed with its last reference.
        self.panels: dict[bool, Panels] = {}
        self._writes = Writes([*model.parameters(), *model.buffers()])

    def fits(self) -> bool:
        """Whether a search of the model may run on the panels."""
        return self._writes.are_none() and not every_module_has_hooks()

    def __reduce__(self) -> tuple[Callable[..., None], tuple[()]]:
        """A copy of a model, or one that is unpickled, has none."""
        return type(None), ()
