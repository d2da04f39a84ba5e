"""Every two restrictions × what they hide × how, by whom and for which score, on repeated calls: 6,468 cells.

A cell is a call under both restrictions whose hidden numbers are NaN, ∞, −∞ or as large as float32 has them, made
several times: what is found out at the first serves the others. Output and gradients of what is seen are those of plain
PyTorch in float64 with clean numbers. With every pair of restrictions, any two values of two other lists meet
(`kit.pairwise`): a poison, the operand that the batch shares, a score, which numbers are poisoned (`HIDDEN`), the
function that is called (`DOORS`), and the implementation.

A new restriction, poison, shared operand, place of poison, door or score is one more name in its list.
"""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any

import pytest
import torch
from torch import Tensor

import device
import dikkat
import kit
from dikkat import scores
from dikkat._core import dispatch
from kit import BATCH, FEATURES, HEADS, KEYS, QUERIES, VALUES

ROW, COL = torch.arange(QUERIES)[:, None], torch.arange(KEYS)

# --- the lists that are crossed

LENS, LENS_A_QUERY = torch.tensor([4, 6]), torch.tensor([[4, 0, 7, 2, 3], [6, 5, 4, 7, 1]])
MASK = torch.rand(BATCH, 1, QUERIES, KEYS, generator=torch.Generator().manual_seed(2)) < 0.7
SEGMENTS = torch.tensor([[3, 1, 1, 8, 3], [5, 5, 0, 5, 5]]), torch.tensor([[3] * 3 + [1] * 4, [5] * 5 + [0] * 2])
HIDING = torch.where(torch.rand(HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(3)) < 0.3, -math.inf, 0.5)
HIDING_KEYS = torch.tensor([0.0, 0.3, -0.5, 1.0, -math.inf, 0.0, 0.2]).expand(BATCH, 1, KEYS)
EXCLUDE = torch.tensor([[[0, 3, -1, 2, 6]], [[1, -1, 4, 0, 5]]])


@dataclass(frozen=True)
class Restriction:
    """Its argument, and who sees whom by it, (B, H, n, m) or what broadcasts to that."""

    name: str
    argument: Any
    seen: Tensor


RESTRICTIONS = {
    "lengths": Restriction("valid_lens", LENS, LENS[:, None, None, None] > COL),
    "lengths a query": Restriction("valid_lens", LENS_A_QUERY, LENS_A_QUERY[:, None, :, None] > COL),
    "mask": Restriction("mask", MASK, MASK),
    "causal": Restriction("causal", True, COL <= ROW + KEYS - QUERIES),
    "window": Restriction("window", (3, 0), (ROW + KEYS - QUERIES - 3 <= COL) & (COL <= ROW + KEYS - QUERIES)),
    "segments": Restriction("segment_ids", SEGMENTS, SEGMENTS[0][:, None, :, None] == SEGMENTS[1][:, None, None, :]),
    "bias": Restriction("bias", HIDING, -math.inf < HIDING),
    "key_bias": Restriction("key_bias", HIDING_KEYS, (-math.inf < HIDING_KEYS)[..., None, :]),
    "exclude": Restriction("exclude", EXCLUDE, EXCLUDE[..., None] != COL),
}
POISONS = {"NaN": math.nan, "∞": math.inf, "−∞": -math.inf, "3e38": 3e38}
SHARED = ["nothing", "query", "key", "value"]
# Of `kit.CASES`: each pair function, a score without parameters of its own, and one whose support ends.
SCORES: dict[str, Callable[[], scores.Score]] = {
    "scaled dot": scores.ScaledDot,
    "additive": lambda: scores.Additive(FEATURES, FEATURES, 13),
    "gaussian, learned": kit.CASES["gaussian, learned"].make,
    "dot": scores.Dot,
    "epanechnikov": kit.CASES["epanechnikov"].make,
}
# What is poisoned: numbers that nobody sees who has them, in all operands or in one; or one key that some rows see and
# others do not, where the others are looked at. The contract has the latter in all implementations but PyTorch's, which
# refuse it here.
HIDDEN = {
    "from all": ("query", "key", "value", "bias", "key_bias"),
    "from all, values": ("value",),
    "from all, keys": ("key",),
    "from some": ("key", "value"),
}
# The implementations, and the door, that refuse some of the calls, and their words.
REFUSALS = {
    "sdpa": ["impl: got 'sdpa', which cannot run this call"],
    "numba-few": ["impl: got 'numba-few', which cannot run this call"],
    "attend_memory": [r"valid_lens: got shape .*; expected .*, one length for each batch element"],
}
# Those that run on a CPU; `products` takes additive scores in halves.
WAYS = ["auto", "auto, on a device", *kit.WAYS]


def through_memory(query: Tensor, key: Tensor, value: Tensor, *, score: Any, impl: str, **restricted: Any) -> Tensor:
    lens = restricted.pop("valid_lens", None)
    memory = dikkat.prepare(key, value, score=score, valid_lens=lens)
    return dikkat.attend_memory(query, memory, impl=impl, **restricted)


def mean_of_state(*given: Tensor, **named: Any) -> Tensor:
    return dikkat.attention_state(*given, **named).mean


DOORS: dict[str, Callable[..., Tensor]] = {
    "attend": dikkat.attend,
    "attention_state": mean_of_state,
    "attend_memory": through_memory,
}

# --- the cells

PAIRS = [
    (one, other)
    for one, other in combinations_with_replacement(RESTRICTIONS, 2)
    if one == other or RESTRICTIONS[one].name != RESTRICTIONS[other].name  # a call has its lengths once
]
CELLS = kit.pairwise(
    {"poison": POISONS, "shared": SHARED, "score": SCORES, "hidden": HIDDEN, "door": DOORS, "way": WAYS},
    lambda way, score, **_: score == "additive" or not way.startswith("products"),
)


@dataclass(frozen=True)
class Call:
    """A call: what it is differentiated by, its other arguments, and who sees whom by which argument."""

    score: scores.Score
    operands: dict[str, Tensor]
    others: dict[str, Any]
    seen_by: dict[str, Tensor]

    def seen(self, without: str = "") -> Tensor:
        """Who sees whom by all arguments, but perhaps one."""
        seen = torch.ones(BATCH, HEADS, QUERIES, KEYS, dtype=torch.bool)
        for name, by_it in self.seen_by.items():
            seen = seen & by_it if name != without else seen
        return seen

    def run(self, door: str, impl: str) -> tuple[Tensor, dict[str, Tensor]]:
        """The output, and what it is differentiated by."""
        leaves = {name: t.detach().clone().requires_grad_() for name, t in self.operands.items()}
        out = DOORS[door](**leaves, **self.others, score=self.score, impl=impl)
        return out, leaves | dict(self.score.named_parameters())


def call(score: str, pair: tuple[str, str], shared: str, dtype: torch.dtype) -> Call:
    torch.manual_seed(list(SCORES).index(score))
    restrictions = {each.name: each for each in (RESTRICTIONS[name] for name in pair)}
    shapes = {"query": (QUERIES, FEATURES), "key": (KEYS, FEATURES), "value": (KEYS, VALUES)}
    operands = {
        name: torch.randn(1 if name == shared else BATCH, HEADS, *own).to(dtype) for name, own in shapes.items()
    }
    numbers = {name: each.argument.to(dtype) for name, each in restrictions.items() if name in ("bias", "key_bias")}
    others = {name: each.argument for name, each in restrictions.items() if name not in numbers}
    return Call(
        SCORES[score]().to(dtype), operands | numbers, others, {n: each.seen for n, each in restrictions.items()}
    )


def truth(made: Call, score: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Plain PyTorch, in float64; a row that sees no key is 0."""
    of_score = dict(made.score.named_parameters())
    leaves = {name: t.detach().double().requires_grad_() for name, t in (made.operands | of_score).items()}
    parameters, operands = ({n: leaves[n] for n in names} for names in (of_score, made.operands))
    return kit.attend_plainly(kit.CASES[score].dense, parameters, **operands, seen=made.seen())[0], leaves


def poisoned(made: Call, poison: float, hidden: str, door: str) -> tuple[Call, Tensor]:
    """The call with poison in it, and the rows (B, H, n) that it must not reach.

    A memory projects its keys before it is told of more than their lengths: what else is hidden is not poisoned there,
    as it would reach the gradients of the projection.
    """
    operands, by_lens = dict(made.operands), {n: seen for n, seen in made.seen_by.items() if n == "valid_lens"}
    if hidden != "from some":
        for name in operands.keys() & set(HIDDEN[hidden]):
            clean = made.operands[name]
            of_memory = door == "attend_memory" and name in ("key", "value")
            seen = replace(made, seen_by=by_lens).seen() if of_memory else made.seen(without=name)
            seen = {"query": seen.any(-1)[..., None], "bias": seen, "key_bias": seen.any(-2)}.get(
                name, seen.any(-2)[..., None]
            )
            shape = (*clean.shape[:-1], seen.shape[-1])
            operands[name] = torch.where(seen.double().sum_to_size(shape) == 0, poison, clean)
        return replace(made, operands=operands), torch.ones(BATCH, HEADS, QUERIES, dtype=torch.bool)
    seen = made.seen()
    struck = int((seen.double().mean((0, 1, 2)) - 0.5).abs().argmin())
    for name in HIDDEN[hidden]:
        operands[name] = torch.where(COL[:, None] == struck, poison, operands[name])
    return replace(made, operands=operands), ~seen[..., struck]


def results(
    out: Tensor, leaves: dict[str, Tensor], rows: Tensor, hidden: str, shared: str, empty: Tensor | None = None
) -> dict[str, Tensor]:
    """The output of some rows, and the gradients by way of these alone; NaN comes back to `empty` rows.

    Where rows were struck, the gradient of what they have in common with others may be NaN.
    """
    upstream = torch.where(rows[..., None], 3 + kit.upstream_of(out).to(out.dtype), 0.0)  # 3e38 overflows by it
    if empty is not None:
        upstream = torch.where(empty[..., None], math.nan, upstream)
    found = torch.autograd.grad(out, list(leaves.values()), upstream, allow_unused=True, materialize_grads=True)
    grads = dict(zip(leaves, found, strict=True))
    if hidden == "from some":
        grads = {} if shared == "query" else {"query": grads["query"][rows]}
    return {"output": out.detach()[rows]} | grads


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_what_is_hidden_has_no_effect(pair: tuple[str, str]) -> None:
    red = []
    for cell in CELLS:
        red += [f"{', '.join(cell)}: {said}" for said in faults(pair, *cell)]
    assert not red, "\n".join(red)


def faults(
    pair: tuple[str, str], poison: str, shared: str, score: str, hidden: str, door: str, way: str
) -> Iterator[str]:
    """What is wrong with a cell's calls: poisoned, by a program of its own; clean; and poisoned, by what was kept."""
    dtype, off = (torch.float16, 0.03) if way.startswith("products") else (torch.float32, 1e-4)
    made = call(score, pair, shared, dtype)
    struck, rows = poisoned(made, POISONS[poison], hidden, door)
    right = results(*truth(made, score), rows, hidden, shared)
    dispatch._PROGRAMS.clear()
    with kit.way(way) as impl, device.kept() if way == "auto, on a device" else nullcontext():
        for each in (struck, made, struck):
            try:
                out, leaves = each.run(door, impl)
            except ValueError as error:
                if not any(re.search(words, str(error)) for words in REFUSALS.get(impl, []) + REFUSALS.get(door, [])):
                    raise
                return
            for name, came in results(out, leaves, rows, hidden, shared, ~made.seen().any(-1)).items():
                if not torch.allclose(came.double(), right[name], rtol=off, atol=off):
                    yield f"{name}: off by {float((came - right[name]).abs().max()):.3g}"
            # A distance of NaN lies beyond any support.
            swallows = poison == "NaN" and score != "epanechnikov" and not bool(out[~rows].isnan().all())
            if each is struck and swallows:
                yield "a visible NaN is swallowed"


def test_the_number_of_cells_is_the_one_at_the_head() -> None:
    assert kit.cells_said(__doc__) == len(PAIRS) * len(CELLS) * 3
