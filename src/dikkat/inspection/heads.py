"""Scores of heads: the shares of their weight at the token before, the first one, the same one elsewhere, and so on."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dikkat.show.views import Token

# The shares, in the order in which tables have them; of equal ones the first is what a head does.
KINDS = ("previous", "next", "itself", "first", "same", "induction", "separator", "evenly")

_CLEAR = 0.2  # a share above which a pattern is named even if the rest, which is spread evenly, is more


class Known(NamedTuple):
    """The weights of a call's heads that are known: all, or the largest of each query.

    Attributes:
        weights: (H, n, k) in float64.
        keys: (H, n, k) int64, whose they are; −1 for none.
        queries: (n,) int64, the place of each query among the keys, if it has one there.
        key_count: m.
        is_self: Whether queries are positions of the keys' sequence.
        first_key: The position of the first key in its sequence.
        hidden: (m,), the keys that no query sees.
    """

    weights: Tensor
    keys: Tensor
    queries: Tensor
    key_count: int
    is_self: bool
    first_key: int
    hidden: Tensor


class Scores(NamedTuple):
    """The `shares` (H,) of patterns by name, the pattern that each head `looks` like, with its queries (`asked`)."""

    shares: Mapping[str, Tensor]
    looks: list[str]
    asked: list[int]


def scores_of(known: Known, tokens: Sequence[Token]) -> Scores:
    """Shares of the weight of each head, (H,) each, in 0 … 1, by the formulas of `Trace.scores`.

    Of weights that are not known, a query's are taken as equal.
    """
    weights, keys = known.weights, known.keys
    (heads, count, _), places = weights.shape, known.queries[None, :, None]
    seen = (weights > 0) & (keys >= 0)
    # Padding is before the first key that a query sees, and behind the last one.
    there = torch.arange(known.key_count)
    if not known.hidden.all():
        there = (~known.hidden).nonzero()[:, 0]
    begin, last = int(there[0]), int(there[-1])
    real = (known.queries >= begin) & (known.queries <= last) if known.is_self else torch.ones(count, dtype=torch.bool)
    causal = known.is_self and not bool((seen & (keys > places)).any())
    visible = (known.queries.clamp(begin - 1, last) if causal else known.queries.new_full((count,), last)) + 1 - begin
    found = seen.sum(-1)
    # A weight of 0 may be of a key that is hidden: what any head of the layer looks at is not.
    several = torch.where(found < keys.shape[-1], found, visible).amax(0)
    visible = torch.where(several > 1, torch.minimum(several, visible), visible).expand_as(found)
    rest = (1 - weights.sum(-1)).clamp(min=0)
    unknown = (visible - found).clamp(min=0)
    each = torch.where(unknown > 0, rest / unknown.clamp(min=1), 0.0)  # the weight of a key that is not known
    live = (found > 0) & (visible > 1) & real
    asked = dict[str, Tensor]()

    def share(name: str, wanted: Tensor, of: Tensor, among: Tensor | None = None) -> None:
        """The mean share of the wanted keys (H, n, k), of the queries in `of`, where `among` of all are wanted."""
        known_share = (weights * (wanted & seen)).sum(-1)
        listed = torch.ones_like(found) if among is None else among
        missing = (listed - (wanted & seen).sum(-1)).clamp(min=0)
        even = listed / visible.clamp(min=1)  # what the keys have of weight that is spread evenly
        beyond = ((known_share + each * missing).clamp(max=1) - even) / (1 - even).clamp(min=1e-9)
        asked[name] = (of & live & (even < 1)).sum(-1)
        found_shares[name] = _mean(beyond, of & live & (even < 1)).clamp(0, 1)

    everyone, nothing = torch.ones_like(live), weights.new_full((heads,), math.nan)
    found_shares = dict.fromkeys(KINDS, nothing)
    if known.first_key == 0:
        share("first", keys == begin, everyone & (known.queries > begin) if known.is_self else everyone)
    if known.is_self:
        share("previous", keys == places - 1, everyone & (known.queries > begin))
        if not causal:
            share("next", keys == places + 1, everyone & (known.queries < last))
        share("itself", keys == places, everyone)
    named = tokens[known.first_key : known.first_key + known.key_count]
    names, special = [token.text for token in named], [token.special for token in named]
    if len(names) == known.key_count:
        behind, columns = keys.clamp(min=0), torch.arange(known.key_count)
        past = columns <= places[0] if causal else torch.ones(count, known.key_count, dtype=torch.bool)  # (n, m)
        past = past & (columns >= begin) & (columns <= last)
        marks = torch.tensor([flag and place > begin for place, flag in enumerate(special)])
        texts = ~torch.tensor(special)[known.queries] if known.is_self else torch.ones(count, dtype=torch.bool)
        wanted = {"separator": marks & past & texts[:, None]}
        if known.is_self:
            numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
            ids = torch.tensor([numbers[name] for name in names])
            alike = ids[known.queries][:, None] == ids[None]  # (n, m)
            here = columns == known.queries[:, None]
            after = torch.zeros_like(alike)
            after[:, 1:] = (alike & (columns >= begin) & (columns < known.queries[:, None]))[:, :-1]
            wanted |= {"same": alike & ~here & past, "induction": after & ~here}
        for name, pairs in wanted.items():
            among, rows = pairs.sum(-1).expand(heads, count), torch.arange(count)[None, :, None]
            share(name, pairs[rows, behind], among > 0, among)
    even = 1 / visible.clamp(min=1).to(weights.dtype)
    evenly = torch.minimum(weights * seen, even[..., None]).sum(-1) + unknown * torch.minimum(each, even)
    found_shares["evenly"] = _mean((evenly - even) / (1 - even).clamp(min=1e-9), live).clamp(min=0, max=1)
    asked["evenly"] = live.sum(-1)
    looks = [_looks({name: (float(found_shares[name][head]), int(of[head])) for name, of in asked.items()})
             for head in range(heads)]  # fmt: skip
    counts = [int(asked[name][head]) if name else 0 for head, name in enumerate(looks)]
    return Scores(found_shares | {"information": _information(known, seen, each, unknown, live)}, looks, counts)


def _looks(shares: Mapping[str, tuple[float, int]]) -> str:
    """Return the name of what a head does. A share of k queries counts (k − 1) / (k + 1), so that one query is none."""
    believed = {name: share * (of - 1) / (of + 1) for name, (share, of) in shares.items() if share == share}
    patterns = {name: believed[name] for name in KINDS if name in believed and name != "evenly"}
    best = max(patterns, key=lambda name: patterns[name], default="")
    if patterns.get(best, 0.0) >= _CLEAR or patterns.get(best, 0.0) > believed.get("evenly", 0.0):
        return best
    return "evenly" if "evenly" in believed else best


def _mean(values: Tensor, of: Tensor) -> Tensor:
    """The mean of each head's values (H, n) over some queries; NaN over none."""
    return torch.where(of, values, 0.0).sum(-1) / torch.where(of.any(-1), of.sum(-1), math.nan)


def _information(known: Known, seen: Tensor, each: Tensor, unknown: Tensor, live: Tensor) -> Tensor:
    weights = known.weights * (seen & live[..., None])
    spread = weights.new_zeros(len(weights), known.key_count)
    spread.scatter_add_(1, known.keys.clamp(min=0).flatten(1), weights.flatten(1))
    shown, asking = ~known.hidden, live.sum(-1)
    rest = (each * unknown * live).sum(-1, keepdim=True) / shown.sum().clamp(min=1)
    mean = (spread + rest * shown) / asking[:, None].clamp(min=1)
    of_rows = torch.special.entr(weights).sum(-1) + unknown * torch.special.entr(each)
    most = asking.clamp(max=int(shown.sum())).clamp(min=2).log()
    told: Tensor = (torch.special.entr(mean).sum(-1) - _mean(of_rows, live)) / most
    return told.clamp(0, 1)
