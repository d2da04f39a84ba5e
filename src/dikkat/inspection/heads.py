"""Scores of heads: how much of their weight each pattern (previous token, first token, same token, ...) has."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dikkat.show.blocks import Layouts, find_cells
from dikkat.show.positions import Grid, Token

# The patterns in the order of the tables. If shares are equal, the first pattern wins.
PATTERNS = ("previous", "next", "itself", "first", "same", "induction", "separator", "evenly")
# The patterns of sequences with a grid, which come before the others.
GRID_PATTERNS = ("nearby", "row", "column", "class", "registers")
_CLASS, _REGISTER = r"\W*(cls|class)([ _]?token)?\W*", r"\W*(reg|register)[ _]?(token)?[ _]?\d*\W*"

_CLEAR_SHARE = 0.2  # a share from which a pattern wins even if "evenly" is larger


class KnownWeights(NamedTuple):
    """The weights of a call's heads that are known: all of them, or the k largest of each query.

    Attributes:
        weights: (H, n, k) in float64.
        keys: (H, n, k) int64, the keys of the weights; −1 for none.
        queries: (n,) int64, the position of each query among the keys; without meaning unless `is_self`.
        key_count: The number m of keys.
        is_self: Whether queries are positions of the keys' sequence.
        first_key: The position of the first key in its sequence.
        hidden: (m,), True for keys that no query sees.
    """

    weights: Tensor
    keys: Tensor
    queries: Tensor
    key_count: int
    is_self: bool
    first_key: int
    hidden: Tensor


class Scores(NamedTuple):
    """The shares (H,) by pattern, each head's main pattern, and how many queries its share is the mean of."""

    shares: Mapping[str, Tensor]
    patterns: list[str]
    query_counts: list[int]


def spread_weights(weights: Tensor, keys: Tensor, count: int) -> Tensor:
    """Return weights (..., n, m) of all keys, 0 for unknown ones, from the weights (..., n, k) of `keys`."""
    return weights.new_zeros(*weights.shape[:-1], count).scatter_add_(-1, keys.clamp(min=0), weights)


def compute_scores(
    known: KnownWeights, tokens: Sequence[Token], layouts: Layouts, key_masks: Mapping[str, Tensor] | None = None
) -> Scores:
    """Return the scores of `Trace.scores`; the unknown weights of a query count as equal (`guess`).

    `layouts` are the grids and times among the keys. `key_masks` (n, m) or (m,) add the mean shares of further keys,
    without a comparison with uniform weights.
    """
    weights, keys = known.weights, known.keys
    (heads, count, _), positions = weights.shape, known.queries[None, :, None]
    is_known = (weights > 0) & (keys >= 0)
    # Padding is before the first visible key and after the last one.
    visible_keys = torch.arange(known.key_count)
    if not known.hidden.all():
        visible_keys = (~known.hidden).nonzero()[:, 0]
    begin, last = int(visible_keys[0]), int(visible_keys[-1])
    real = (known.queries >= begin) & (known.queries <= last) if known.is_self else torch.ones(count, dtype=torch.bool)
    causal = known.is_self and not bool((is_known & (keys > positions)).any())
    visible = (known.queries.clamp(begin - 1, last) if causal else known.queries.new_full((count,), last)) + 1 - begin
    known_count = is_known.sum(-1)
    # A weight of 0 may belong to a hidden key. Keys with a weight in any head of the layer are visible.
    bound = torch.where(known_count < keys.shape[-1], known_count, visible).amax(0)
    visible = torch.where(bound > 1, torch.minimum(bound, visible), visible).expand_as(known_count)
    remaining = (1 - weights.sum(-1)).clamp(min=0)
    unknown = (visible - known_count).clamp(min=0)
    guess = torch.where(unknown > 0, remaining / unknown.clamp(min=1), 0.0)
    valid = (known_count > 0) & (visible > 1) & real
    query_counts = dict[str, Tensor]()

    def shares_of(key_mask: Tensor, key_counts: Tensor) -> Tensor:
        """Return the shares (H, n) of the keys in `key_mask` (H, n, k), which has `key_counts` of each query's keys."""
        is_target = key_mask & is_known
        missing = (key_counts - is_target.sum(-1)).clamp(min=0)
        return ((weights * is_target).sum(-1) + guess * missing).clamp(max=1)

    def add_share(name: str, key_mask: Tensor, query_mask: Tensor, key_counts: Tensor | None = None) -> None:
        """Set the mean excess of the shares of these keys (one key by default) over uniform weights."""
        target_count = torch.ones_like(known_count) if key_counts is None else key_counts
        uniform = target_count / visible.clamp(min=1)
        excess = (shares_of(key_mask, target_count) - uniform) / (1 - uniform).clamp(min=1e-9)
        query_counts[name] = (query_mask & valid & (uniform < 1)).sum(-1)
        shares[name] = _mean(excess, query_mask & valid & (uniform < 1)).clamp(0, 1)

    all_queries, unavailable = torch.ones_like(valid), weights.new_full((heads,), math.nan)
    shares = dict.fromkeys(PATTERNS, unavailable)
    if known.first_key == 0:
        add_share("first", keys == begin, all_queries & (known.queries > begin) if known.is_self else all_queries)
    if known.is_self:
        add_share("previous", keys == positions - 1, all_queries & (known.queries > begin))
        if not causal:
            add_share("next", keys == positions + 1, all_queries & (known.queries < last))
        add_share("itself", keys == positions, all_queries)
    key_index, columns, rows = keys.clamp(min=0), torch.arange(known.key_count), torch.arange(count)[None, :, None]
    reach = columns <= positions[0] if causal else torch.ones(count, known.key_count, dtype=torch.bool)  # (n, m)
    reach = reach & (columns >= begin) & (columns <= last)
    for name, mask in (key_masks or {}).items():
        key_counts = (mask & reach).sum(-1).expand(heads, count)
        shares[name] = _mean(shares_of((mask & reach)[rows, key_index], key_counts), valid & (key_counts > 0))
    key_tokens = tokens[known.first_key : known.first_key + known.key_count]
    texts, special = [token.text for token in key_tokens], [token.special for token in key_tokens]
    if len(texts) == known.key_count:
        separators = torch.tensor([is_special and index > begin for index, is_special in enumerate(special)])
        is_text = ~torch.tensor(special)[known.queries] if known.is_self else torch.ones(count, dtype=torch.bool)
        masks = {"separator": separators & reach & is_text[:, None]}
        if known.is_self:
            ids_by_text = {name: number for number, name in enumerate(dict.fromkeys(texts))}
            ids = torch.tensor([ids_by_text[name] for name in texts])
            same_text = ids[known.queries][:, None] == ids[None]  # (n, m)
            on_diagonal = columns == known.queries[:, None]
            follows_same = torch.zeros_like(same_text)
            follows_same[:, 1:] = (same_text & (columns >= begin) & (columns < known.queries[:, None]))[:, :-1]
            masks |= {"same": same_text & ~on_diagonal & reach, "induction": follows_same & ~on_diagonal}
        masks |= _grid_masks(known, texts, layouts, reach)
        for name, mask in masks.items():
            key_counts = mask.sum(-1).expand(heads, count)
            add_share(name, mask[rows, key_index], key_counts > 0, key_counts)
    uniform = 1 / visible.clamp(min=1).to(weights.dtype)
    overlap = torch.minimum(weights * is_known, uniform[..., None]).sum(-1) + unknown * torch.minimum(guess, uniform)
    shares["evenly"] = _mean((overlap - uniform) / (1 - uniform).clamp(min=1e-9), valid).clamp(min=0, max=1)
    query_counts["evenly"] = valid.sum(-1)
    patterns = [_main_pattern({name: (float(shares[name][head]), int(n[head])) for name, n in query_counts.items()})
             for head in range(heads)]  # fmt: skip
    counts = [int(query_counts[name][head]) if name else 0 for head, name in enumerate(patterns)]
    return Scores(shares | {"information": _information(known, is_known, guess, unknown, valid)}, patterns, counts)


def _main_pattern(shares: Mapping[str, tuple[float, int]]) -> str:
    """Return a head's main pattern. A share of k queries is multiplied by (k − 1) / (k + 1), 0 for a single query."""
    discounted = {name: share * (count - 1) / (count + 1) for name, (share, count) in shares.items() if share == share}
    names = [name for name in (*GRID_PATTERNS, *PATTERNS) if name in discounted and name != "evenly"]
    patterns = {name: discounted[name] for name in names}
    best = max(patterns, key=lambda name: patterns[name], default="")
    if patterns.get(best, 0.0) >= _CLEAR_SHARE or patterns.get(best, 0.0) > discounted.get("evenly", 0.0):
        return best
    return "evenly" if "evenly" in discounted else best


def _grid_masks(known: KnownWeights, texts: Sequence[str], layouts: Layouts, reach: Tensor) -> dict[str, Tensor]:
    """Return which keys (n, m) of each query are in each pattern of grids; none without a grid."""
    if not any(isinstance(layout, Grid) for layout in layouts.values()):
        return {}
    masks = {}
    for name, pattern in (("class", _CLASS), ("registers", _REGISTER)):
        matches = torch.tensor([re.fullmatch(pattern, text, re.IGNORECASE) is not None for text in texts])
        if matches.any():
            is_other = ~matches[known.queries] if known.is_self else torch.ones(len(known.queries), dtype=torch.bool)
            masks[name] = matches & reach & is_other[:, None]
    if known.is_self:
        cells = find_cells(layouts, known.first_key + known.key_count)[known.first_key :]
        number, row, column = (cells[known.queries, None] - cells[None]).abs().unbind(-1)
        neighbours = reach & (number == 0) & (cells[:, 0] >= 0) & (row + column > 0)
        masks |= {"nearby": neighbours & (row <= 1) & (column <= 1), "row": neighbours & (row == 0),
                  "column": neighbours & (column == 0)}  # fmt: skip
    return masks


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the (H,) means of values (H, n) over the queries in `mask`; NaN for no query."""
    return torch.where(mask, values, 0.0).sum(-1) / torch.where(mask.any(-1), mask.sum(-1), math.nan)


def _information(known: KnownWeights, is_known: Tensor, guess: Tensor, unknown: Tensor, valid: Tensor) -> Tensor:
    weights = known.weights * (is_known & valid[..., None])
    key_totals = weights.new_zeros(len(weights), known.key_count)
    key_totals.scatter_add_(1, known.keys.clamp(min=0).flatten(1), weights.flatten(1))
    visible_keys, query_counts = ~known.hidden, valid.sum(-1)
    unknown_share = (guess * unknown * valid).sum(-1, keepdim=True) / visible_keys.sum().clamp(min=1)
    mean = (key_totals + unknown_share * visible_keys) / query_counts[:, None].clamp(min=1)
    row_entropies = torch.special.entr(weights).sum(-1) + unknown * torch.special.entr(guess)
    max_entropy = query_counts.clamp(max=int(visible_keys.sum())).clamp(min=2).log()
    information: Tensor = (torch.special.entr(mean).sum(-1) - _mean(row_entropies, valid)) / max_entropy
    return information.clamp(0, 1)
