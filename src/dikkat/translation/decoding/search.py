"""Translation of a batch by beam search or sampling, and the probabilities of given translations.

Three engines search: one compiled call for a single model on a CPU (`compiled`), PyTorch step by step (`stepwise`),
and PyTorch on an accelerator (`grid`).
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import zip_longest
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
from dikkat.translation.memory.pair_memory import Snapshot, find_by_ids
from dikkat.translation.network.model import COMPILED, TranslationModel, collate, expected, pad
from dikkat.translation.network.weights import every_module_has_hooks, search_obstacles
from dikkat.translation.text.special_tokens import SPECIAL, UNKNOWN

_LOG = logging.getLogger("dikkat")
_LOCK = Lock()
_CHUNK = 1024  # tokens of given translations whose scores are in memory at once

Models = TranslationModel | Sequence[TranslationModel]


def greedy(models: Models, sources: Sequence[Sequence[int]]) -> list[Hypothesis]:
    """Translate a batch by the likeliest token of each step; return one hypothesis for each source, in order.

    Arguments and errors are those of `beam_search`, with a beam of 1.
    """
    return [group[0] for group in beam_search(models, sources, GREEDY)]


@torch.no_grad()
def beam_search(
    models: Models,
    sources: Sequence[Sequence[int]],
    search: Search = DEFAULT,
    slots: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {}),
    memories: Sequence[Snapshot | None] = (),
) -> list[list[Hypothesis]]:
    r"""Translate a batch by beam search, or draw translations. Ended hypotheses cost no further time.

    `<pad>` and `<bos>` are never output, and `<eos>` only after the minimum length of `search`, at least one token.
    `<unk>` is output only if the source has an unknown word and the model has attention, so that the caller can copy
    that word, or if the source's stored translation has one. If a sentence's minimum length exceeds its maximum, the
    maximum holds.

    Several models with one vocabulary translate together: their probabilities are averaged at each step, and so are the
    attention weights of models with attention. With M models of probabilities $p_m$ a token's log-probability is

    $$ \log \frac1M \sum_{m=1}^{M} p_m(y_t \mid y_{<t}, x) $$

    The same input gives the same result. Equally likely hypotheses are ordered by their place in the beam, then by
    token number. Other sentences of the batch have no effect except rounding.

    Args:
        models: A network, or several with the same vocabularies on one device. They are set to evaluation mode.
        sources: Token numbers, at least one in each sentence.
        search: The options of the search.
        slots: The slot numbers, 0 to 62, of source tokens and of target tokens. A slot is a token that stands for a
            number or another span that is copied. A hypothesis writes only slots of its source, each at most once. A
            hypothesis without all of them ends no search, and ranks below hypotheses with all. Samples ignore slots.
        memories: The stored pairs of each model, whose tokens are merged with the model's probabilities
            (`PairMemory.snapshot`); None or no sequence: the model's probabilities.

    Returns:
        For each source, in order, `search.n_best` hypotheses, best first by the score of `Search`; hypotheses cut by
        the limit come after all finished ones. There are fewer if all others have a probability of 0. Samples are
        in the order of drawing.

    Raises:
        InputError: A source has no tokens, or the model's scores are not finite.
        SettingsError: A beam or a `top_k` beyond the model's target vocabulary, or a precision that the processor does
            not support.
        ValueError: There are no models, or their vocabularies or devices differ.

    Example:
        >>> import torch
        >>> from dikkat.translation import Search, Settings, TranslationModel, beam_search
        >>> model = TranslationModel(Settings(embedding_size=3, hidden_size=4), source_size=11, target_size=13)
        >>> ((best, second),) = beam_search(model, [[5, 6, 7]], Search(beam=3, n_best=2, max_length=4))
        >>> best.weights.shape == (len(best.ids), 3)
        True
    """
    model_list = list_models(models)
    if not all(sources):
        raise InputError("sources: got an empty sentence; expected at least one token in each. Leave it out")
    vocabulary = len(model_list[0].output_bias)
    for name, requested in (("beam", 1 if search.sample else search.beam), ("top_k", search.top_k or 1)):
        if requested > vocabulary:
            raise SettingsError(
                f"{name}: got {requested}; expected at most {vocabulary}, the size of the model's vocabulary"
            )
    if not sources:
        return []
    # Without attention, no source word can be chosen to replace an unknown token.
    attends = any(model.attends for model in model_list)
    source_slots, target_slots = ({}, {}) if search.sample else slots
    bits_of_source = {token: 1 << slot for token, slot in source_slots.items() if slot in target_slots.values()}
    slot_bits = torch.zeros(vocabulary, dtype=torch.int64, device="cpu")
    for token, slot in target_slots.items():
        slot_bits[token] = 1 << slot
    # Without a word in the vocabulary, the translation of a source without slots must be empty.
    only_slots = len(target_slots.keys() - range(SPECIAL)) == vocabulary - SPECIAL
    sentences = []
    for source in sources:
        min_length, max_length = limits(search, len(source))
        slot_set = reduce(or_, (bits_of_source.get(token, 0) for token in source), 0) if bits_of_source else 0
        pair = find_by_ids(memories, source)
        may_copy = (attends and UNKNOWN in source) or (pair is not None and pair.has_unknown)
        sentences.append(Sentence(source, may_copy, 0 if only_slots else min_length, max_length, slot_set))
    states = [None if snapshot is None else snapshot.states for snapshot in memories] or [None] * len(model_list)
    if panels := find_panels(model_list, search):
        panels = panels if states[0] is None else panels.with_states(states[0])
        return run.search(panels, sentences, search, slot_bits)
    if not grid.can_run(model_list, search):
        return step_by_step(model_list, sentences, search, slot_bits, states)
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    for has_slots, engine in ((False, grid.search_grid), (True, step_by_step)):
        indices = [index for index, sentence in enumerate(sentences) if bool(sentence.slots) is has_slots]
        group = [sentences[index] for index in indices]
        hypotheses_of_group = engine(model_list, group, search, slot_bits, states) if group else []
        for index, hypotheses in zip(indices, hypotheses_of_group, strict=True):
            results[index] = hypotheses
    return results


def list_models(models: Models) -> list[TranslationModel]:
    """Return the models as a list; raise `ValueError` if they cannot translate together."""
    model_list = list(models) if isinstance(models, Sequence) else [models]
    if not model_list:
        raise ValueError("models: got none; expected at least one")
    if len(model_list) > 1:
        for name, values in (
            ("target vocabularies of sizes", [len(model.output_bias) for model in model_list]),
            ("devices", [str(model.output_bias.device) for model in model_list]),
        ):
            if len(set(values)) > 1:
                raise ValueError(f"models: got {name} {', '.join(map(str, values))}; expected equal ones")
    return model_list


@torch.no_grad()
def forced_scores(
    models: Models, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], memories: Sequence[Snapshot | None] = ()
) -> list[float]:
    """Compute the log-probabilities of given translations: the `score` of a finished hypothesis.

    Args:
        models: As in `beam_search`.
        pairs: (source, translation), token numbers without the end token; a source has at least one.
        memories: As in `beam_search`.

    Returns:
        The natural log-probability of each translation, its end token included.

    Raises:
        InputError: A source has no tokens.
        ValueError: As in `beam_search`.

    Example:
        >>> from dikkat.translation import Settings, TranslationModel, forced_scores
        >>> model = TranslationModel(Settings(embedding_size=3, hidden_size=4), source_size=11, target_size=13)
        >>> long, short = forced_scores(model, [([5, 6], [7, 8, 9]), ([4], [])])
        >>> long < short < 0
        True
    """
    model_list = [model.eval() for model in list_models(models)]
    if not all(source for source, _ in pairs):
        raise InputError("pairs: got an empty source sentence; expected at least one token in each. Leave it out")
    if not pairs:
        return []
    device = model_list[0].output_bias.device
    row_of = {source: row for row, source in enumerate(dict.fromkeys(tuple(source) for source, _ in pairs))}
    rows = torch.tensor([row_of[tuple(source)] for source, _ in pairs], device=device)
    source, source_lengths = pad(list(row_of))  # of several translations, their source is encoded once
    batch = collate(pairs)._replace(source=source, source_lengths=source_lengths).to(device)
    all_states = [
        None if memory is None else memory.states.to(model.output_bias)
        for model, memory in zip_longest(model_list, memories)
    ]
    features, log_probabilities = (model.features(batch, rows).split(_CHUNK) for model in model_list), []
    for tokens, *chunks in zip(expected(batch).split(_CHUNK), *features, strict=True):
        scores = [
            model.scores(chunk) if states is None else states.mix(model.scores(chunk), states.find_nearest(chunk))
            for model, chunk, states in zip(model_list, chunks, all_states, strict=True)
        ]
        log_probabilities.append(mean_log(scores).gather(1, tokens.unsqueeze(1)).squeeze(1).double().cpu())
    by_pair = torch.cat(log_probabilities).split(batch.target_lengths.tolist())
    return [float(tokens.sum()) for tokens in by_pair]


# --- as one compiled call


def explain(models: Models, search: Search = DEFAULT) -> list[str]:
    """Return the reasons why a search runs step by step in PyTorch and not as one compiled call, if any.

    Packed weights that a model keeps from an earlier search are dropped if they are outdated.

    Example:
        >>> from dikkat.translation import Search, Settings, TranslationModel
        >>> model = TranslationModel(Settings(embedding_size=3, hidden_size=4), source_size=11, target_size=13)
        >>> explain(model, Search(beam=3))
        []
        >>> explain(model, Search(sample=True))
        ['samples are drawn, not searched']
    """
    model_list, reasons = list_models(models), []
    if search.sample:
        reasons.append("samples are drawn, not searched")
    if len(model_list) > 1:
        reasons.append(f"{len(model_list)} models translate together")
    for model in model_list:
        compiled: Compiled | None = vars(model).get(COMPILED)
        if compiled is None or torch.is_autocast_enabled("cpu") or not compiled.fits():
            vars(model).pop(COMPILED, None)  # frees its memory
            reasons += search_obstacles(model.eval())
    if search.precision == "int8" and model_list[0].output_bias.dtype != torch.float32:
        reasons.append(f"int8 needs float32 weights, not {model_list[0].output_bias.dtype}")
    return reasons


def find_panels(models: Sequence[TranslationModel], search: Search) -> Panels | None:
    """Return the model's packed weights for the compiled call, or None if it cannot run this search.

    The first search packs the weights, while other threads that search wait. The model keeps them.
    """
    reasons, int8 = explain(models, search), search.precision == "int8"
    if reasons and int8:
        raise SettingsError(f"precision: got 'int8', which cannot run here: {'; '.join(reasons)}; expected 'float32'")
    if reasons:
        return None
    model = models[0]
    with _LOCK:
        compiled: Compiled | None = vars(model).get(COMPILED)
        if compiled is None:  # `explain` drops outdated panels
            compiled = vars(model)[COMPILED] = Compiled(model)
        if int8 not in compiled.panels:
            compiled.panels[int8] = _pack(model, int8=int8)
        return compiled.panels[int8]


def _pack(model: TranslationModel, *, int8: bool) -> Panels:
    for name, tensor in model.named_parameters():
        addresses.check_numbers(name, tensor, "cpu")  # a freed storage would crash the process
        if bool(tensor.isnan().any()):
            raise InputError(
                f"{name}: got NaN in the weights: they are damaged, or the model's training diverged. Train it again, "
                "with a lower learning rate"
            )
        if int8 and tensor.ndim == 2 and not math.isfinite(float(tensor.detach().abs().max())):
            raise InputError(f"{name}: got infinite weights; expected finite weights for int8")
    panels = Panels(model, int8)
    kind = "int8" if int8 else str(panels.dtype).removeprefix("torch.")
    _LOG.info("search: %s weights packed into panels of %.1f MiB, kept for later searches", kind, panels.nbytes / 2**20)
    return panels


class Compiled:
    """A model's packed weights, by whether they are int8. They are valid until the model's tensors change."""

    def __init__(self, model: nn.Module) -> None:
        # It has no reference to the model, which refers to it: a cycle would delay freeing the memory.
        self.panels: dict[bool, Panels] = {}
        self._writes = Writes([*model.parameters(), *model.buffers()])

    def fits(self) -> bool:
        """Return whether the packed weights are the model's current ones, and the search would skip no hooks."""
        return self._writes.are_none() and not every_module_has_hooks()

    def __reduce__(self) -> tuple[Callable[..., None], tuple[()]]:
        """Make copies and pickles of this object None, so that a copied model packs its own weights."""
        return type(None), ()
