"""Corrections: sentence pairs that a user adds to the memory of a translator."""

import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save as dump_tensors
from torch import Tensor

from dikkat.errors import InputError
from dikkat.translation.decoding.options import length_limit
from dikkat.translation.memory.pair_memory import Ids, PairMemory, StoredPair, normalise
from dikkat.translation.memory.states import score_projection
from dikkat.translation.network.model import TranslationModel, collate
from dikkat.translation.text.slots import Slots

if TYPE_CHECKING:
    from dikkat.translation.decoding.translator import Translator

DEFAULT_BANDWIDTH = 0.06
"""The bandwidth of corrections of a model without a fitted one; see `fit_memory`."""
BIAS = 5.0
"""The log-weight of a correction at its own states, where the model's is 0."""
_DIMENSIONS = 48


def correct(translator: "Translator", source: str, target: str) -> list[str]:
    """Store a correction; return messages about a replaced correction, and about a target that will be cut."""
    if not source.strip() or not target.strip():
        side = "target" if source.strip() else "source"
        raise InputError(f"{side}: got an empty text; expected a sentence and its translation. Leave the pair out")
    for side, text in (("source", source), ("target", target)):
        if "\0" in text:  # no table can have it
            raise InputError(f"{side}: got {text!r:.120}; expected text without NUL characters")
    memory, slots = translator.memory, translator.slots
    snapshot = memory.snapshot
    pair = tokenize_pair(new_pair(source, target), translator)
    old = None if snapshot is None else snapshot.by_ids.get(pair.source_ids)
    if old is not None and old.key != pair.key and old.target_ids != pair.target_ids:
        # Equal but for numbers, and translated otherwise: then the numbers are read as text.
        pair = tokenize_pair(replace(pair, has_slots=False), translator)
    if not pair.source_ids or not pair.target_ids:
        side = "target" if pair.source_ids else "source"
        raise InputError(f"{side}: got {getattr(pair, side)!r}, which has no token of the model")
    if slots.copies(slots.mask(source)[0].text):
        raise InputError(f"source: got {source!r}; expected letters, since a text without letters is always copied")
    replaced = _store(memory, translator.model, pair)
    messages = [
        f"replaces the earlier correction {old.target!r} of {old.source!r}"
        for old in replaced
        if _masked_target(old, slots) != _masked_target(pair, slots)
    ]
    if len(pair.target_ids) > (limit := length_limit(len(pair.source_ids))):
        messages.append(f"has {len(pair.target_ids)} tokens, more than the limit of {limit}, and will be cut")
    return messages


def share_corrections(translators: Sequence["Translator"]) -> tuple[PairMemory, ...]:
    """Return a memory for each model of an ensemble, with the corrections of all of them.

    All memories store the same pairs in the same order, the first model's last. Then a search follows all of them. If
    models have different corrections of one sentence, or of sentences that differ only in slots, the first model's is
    used, and a warning has the number of the unused corrections.
    """
    pairs, unused = list[StoredPair](), list[StoredPair]()
    targets: dict[str | Ids, str] = {}  # of earlier models, by sentences and by tokens
    for translator in translators:
        snapshot = translator.memory.snapshot
        new, model_targets = list[StoredPair](), dict[str | Ids, str]()
        for stored in () if snapshot is None else snapshot.pairs:
            pair = tokenize_pair(replace(stored, has_slots=True), translator)
            target = _masked_target(pair, translator.slots)
            names = pair.key, stored.source_ids, pair.source_ids
            earlier = next((targets[name] for name in names if name in targets), None)
            if earlier is None:
                new.append(stored)
            elif earlier != target:
                unused.append(stored)
            model_targets |= {pair.key: target, stored.source_ids: target}
        targets, pairs = model_targets | targets, [*new, *pairs]
    if unused:
        warnings.warn(
            f"ensemble: {len(unused):,} corrections of later models are not used, since an earlier model has another "
            f"correction of the sentence: {unused[0].target!r} of {unused[0].source!r}{' …' if unused[1:] else ''}",
            UserWarning,
            stacklevel=3,
        )
    if not pairs:
        return tuple(PairMemory() for _ in translators)
    memories = []
    for translator in translators:
        model = translator.model
        memory = PairMemory(projection=translator.memory.projection(partial(make_projection, model)))
        for pair in pairs:
            _store(memory, model, pair)
        memories.append(memory)
    return tuple(memories)


def pack_memory(memory: PairMemory, model: TranslationModel) -> bytes:
    """Return the stored pairs for a page, which can correct too: a memory file, also without pairs, with the bias."""
    packed = deepcopy(memory)
    packed.projection(lambda: make_projection(model))
    tensors, metadata = packed.to_tensors()
    return dump_tensors(tensors | {"bias": torch.tensor([BIAS])}, metadata=metadata)


def make_projection(model: TranslationModel, bandwidth: float = DEFAULT_BANDWIDTH) -> Tensor:
    """Return the map of the output layer's inputs to queries, in units of the bandwidth."""
    return score_projection(model.output_table, _DIMENSIONS) / bandwidth


def _store(memory: PairMemory, model: TranslationModel, pair: StoredPair) -> list[StoredPair]:
    """Store a pair with the states of the model; return the pairs that it replaces."""
    projection = memory.projection(lambda: make_projection(model))
    return memory.store(replace(pair, keys=compute_keys(model, projection, [(pair.source_ids, pair.target_ids)])[0]))


def new_pair(source: str, target: str) -> StoredPair:
    """Return a correction without tokens and states."""
    return StoredPair(source, target, (), (), torch.empty(0, device="cpu"), BIAS)


def tokenize_pair(pair: StoredPair, translator: "Translator") -> StoredPair:
    """Return the pair with the token numbers of the translator."""
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    source_ids, target_ids = (
        tuple(tokenizer.numbers([masked.text])[0])
        for tokenizer, masked in zip(tokenizers, pair.mask(translator.slots), strict=True)
    )
    return replace(pair, source_ids=source_ids, target_ids=target_ids)


def _masked_target(pair: StoredPair, slots: Slots) -> str:
    return normalise(pair.mask(slots)[1].text)


@torch.no_grad()
def compute_keys(
    model: TranslationModel, projection: Tensor, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[Tensor]:
    """Return for each pair the projected states (T + 1, d) float16 before each target token and before the end."""
    batch = collate(pairs)
    was_training, device = model.training, model.output_bias.device
    features = model.eval().features(batch.to(device)).float().cpu()
    model.train(was_training)
    keys = features @ projection.t()
    limit = torch.finfo(torch.float16).max
    return list(keys.clamp(-limit, limit).half().split(batch.target_lengths.tolist()))
