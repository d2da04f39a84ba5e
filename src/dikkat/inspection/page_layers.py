"""Turn recorded calls into the layers and cards of a page."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dikkat.inspection import tables
from dikkat.inspection.calls import Call
from dikkat.inspection.comparing import head_changes
from dikkat.inspection.heads import compute_scores
from dikkat.inspection.joined_runs import join_runs, shift_to_text, summarise_for_page, with_largest_blocks
from dikkat.inspection.request import Inspection
from dikkat.show.positions import TokenList
from dikkat.show.views import Layer


def content_of_page(
    recorded: Sequence[tuple[Call, Inspection]], element: int, tokens: Mapping[str, TokenList],
    effects: tuple[str, Mapping[Any, float]] | None,
) -> tuple[list[tuple[str, Any]], list[Layer]]:  # fmt: skip
    """Return the cards and the layers of a page for one batch element.

    Cards are (name, tensors) of calls without lines, or of calls with recorded rows, sums or entropies. `effects` is
    (name, effect by (layer, module, head)).
    """
    # by module and number of its call within a run
    groups, cards = dict[tuple[str, int], list[tuple[Call, str, Inspection]]](), list[tuple[str, Any]]()
    counts, in_run = Counter[str](), Counter[tuple[str, int]]()
    total = Counter(call.name for call, _ in recorded)
    for call, record in recorded:
        name = (call.name or "model") + (f" · {counts[call.name]}" if total[call.name] > 1 else "")
        element_record = record.of_batch(element)
        empty = 0 in record.shape  # an empty sequence
        drawn = None if empty else summarise_for_page(element_record, tables.layouts_of(call.kind, record, tokens))
        if drawn is None and record.query_groups is not None and any(tables.layouts_of(call.kind, record, tokens)):
            raise ValueError(f"trace[{call.name!r}]: got blocks of another layout; expected the tokens of "
                             "record(blocks=...), or a recording with weights=True or top_k")  # fmt: skip
        if drawn is not None:
            label = call.name if call.layer >= 0 and call.run == recorded[0][0].run else name
            groups.setdefault((call.name, in_run[call.name, call.run]), []).append((call, label, drawn))
        if not empty and (drawn is None or element_record.tensors().keys() & {"rows", "sums", "entropy"}):
            cards.append((name, element_record.tensors() if element else record.tensors()))
        counts[call.name] += 1
        in_run[call.name, call.run] += 1
    layers = []
    for call, label, record, is_joined in _joined(groups.values()):
        shares, patterns, lead = dict[str, Tensor](), [("", 0)] * record.sizes[0], ""
        layouts, is_complete = tables.layouts_of(call.kind, record, tokens, is_longer=is_joined), True
        if record.change is not None:
            shares, lead = {"change": head_changes(record)}, "change"
        # Blocks alone do not give pattern scores.
        elif record.blocks is None or (record.top_keys is not None and bool((record.top_keys >= 0).any())):
            known = tables.known_weights(record, call.kind)
            scores = compute_scores(known, tables.key_tokens(known, call.kind, tokens), layouts[1])
            shares, patterns = {**scores.shares}, [*zip(scores.patterns, scores.query_counts, strict=True)]
        if effects is not None:
            lead, values = effects
            rows = ((call.layer, call.name, head) for head in tables.heads_of(record))
            shares[lead] = torch.tensor([values.get(row, math.nan) for row in rows])
        if any(layouts) and record.blocks is None:
            record, is_complete = with_largest_blocks(record, layouts), False
        moved = shift_to_text(record)
        layers.append(Layer(label, call.layer, call.kind, moved.sizes, moved.tensors(), shares, patterns, lead,
                            layouts, is_complete))  # fmt: skip
    return cards, layers


def _joined(groups: Iterable[list[tuple[Call, str, Inspection]]]) -> Iterator[tuple[Call, str, Inspection, bool]]:
    """Yield the runs of all modules, and whether several runs were joined."""
    for group in groups:
        for call, label, record in join_runs(group):
            yield call, label, record, all(record is not single for _, _, single in group)
