"""Corrections: sentence pairs that a user adds to the memory of a translator."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dikkat.errors import InputError
from dikkat.translation.decoding.options import length_limit
from dikkat.translation.memory.pair_memory import PairMemory, StoredPair
from dikkat.translation.memory.states import score_projection
from dikkat.translation.network.model import TranslationModel, collate
from dikkat.translation.text.slots import Slots
from dikkat.translation.text.special_tokens import UNKNOWN
from dikkat.translation.text.tokenizer import Tokenizer

BANDWIDTH = 1.0
"""The bandwidth of corrections: a root mean square difference of the scores of two states, in nats."""
BIAS = 5.0
"""The log-weight of a correction at its own states, where the model's is 0."""
_DIMENSIONS = 48


def correct(
    memory: PairMemory,
    model: TranslationModel,
    tokenizers: tuple[Tokenizer, Tokenizer],
    slots: Slots,
    source: str,
    target: str,
) -> list[str]:
    """Store a correction; return messages about a replaced correction, and about parts that cannot be written."""
    if not source.strip() or not target.strip():
        side = "target" if source.strip() else "source"
        raise InputError(f"{side}: got an empty text; expected a sentence and its translation. Leave the pair out")
    masked, parts, slotted = slots.mask_correction(source, target)
    source_ids, target_ids = (
        tuple(tokenizer.numbers([text])[0]) for tokenizer, text in zip(tokenizers, (masked.text, slotted), strict=True)
    )
    if not source_ids or not target_ids:
        side = "target" if source_ids else "source"
        raise InputError(f"{side}: got {source if side == 'source' else target!r}, which has no token of the model")
    if slots.copies(masked.text):
        raise InputError(f"source: got {source!r}; expected letters, since a text without letters is always copied")
    projection = memory.projection(lambda: score_projection(model.output_table, _DIMENSIONS) / BANDWIDTH)
    keys = compute_keys(model, projection, [(source_ids, target_ids)])[0]
    replaced = memory.store(StoredPair(source, target, source_ids, target_ids, keys, BIAS))
    messages = []
    if replaced is not None and replaced.target_ids != target_ids:
        messages.append(f"replaces the earlier correction {replaced.target!r} of {replaced.source!r}")
    if UNKNOWN in target_ids:
        words = [slotted[start:end] for start, end in tokenizers[1].unknown(slotted)]
        messages.append(f"words outside the target vocabulary cannot be written: {', '.join(words)}")
    elif (written := parts.write(tokenizers[1].decode(target_ids))) != target:
        messages.append(f"will be written as {written!r}")
    if len(target_ids) > length_limit(len(source_ids)):
        messages.append(f"has {len(target_ids)} tokens, more than the limit of {length_limit(len(source_ids))}")
    return messages


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
