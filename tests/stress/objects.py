"""Random uses of one object, compared with plain PyTorch in float64: no crash, no undocumented error, no wrong number.

    python -m tests.stress.objects --kind calls --cases 30000 --minutes 60
    python -m tests.stress.objects --kind recordings --seed 3 --case 17

| kind | one case |
| --- | --- |
| calls | 3 to 6 calls on one score, memory, multi-head layer or decoder, some of them after a step of an optimiser or a choice of batch elements, in other shapes, with NaN where nobody looks, or without a gradient |
| recordings | `dikkat.record` of random requests, around calls with random restrictions or of packed sequences |
| bags | 1 to 3 uses of one `AttentionPooling`, of flat or masked bags, alone or each of the one before |

The seed and the number of a case determine it, so `--case` repeats it. Kernels depend on the family of the score and
on the dtype, not on shapes: the first run compiles about 40 of them in 5 minutes and keeps them on disk. After that a
case takes about 20 ms of one core.
"""  # noqa: E501

import argparse
import math
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import dikkat
from dikkat import recurrent, scores
from tests import kit

DOUBLE = torch.float64
# Relative to the largest number: float64 is summed in another order, float32 and float16 are rounded.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3, torch.bfloat16: 6e-2}
SIZES = (1, 1, 2, 3, 5, 7, 8, 16, 33, 64)


class Draw:
    """The random choices of a case."""

    def __init__(self, seed: int, case: int, kind: str) -> None:
        self.random = np.random.default_rng((seed, case, *kind.encode()))
        self.dtype = DOUBLE if self.chance(0.7) else torch.float32
        torch.manual_seed(int(self.random.integers(2**31)))  # of parameters

    def of(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def chance(self, p: float) -> bool:
        return bool(self.random.random() < p)

    def whole(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        return int(self.random.integers(low, high + 1))

    def numbers(self, *shape: int) -> Tensor:
        return torch.from_numpy(np.asarray(self.random.standard_normal(shape)))


# The scores, by their formulas in `kit.CASES`: each made for queries and keys of d features.
MADE: dict[str, Callable[[int], scores.Score]] = {
    "dot": lambda d: scores.Dot(),
    "scaled dot": lambda d: scores.ScaledDot(),
    "bilinear": lambda d: scores.Bilinear(d, d),
    "cosine": lambda d: scores.Cosine(),
    "additive": lambda d: scores.Additive(d, d, 5),
    "gaussian": lambda d: scores.Gaussian(kit.FIXED),
    "gaussian, learned": lambda d: scores.Gaussian(1.5, learnable=True),
}


class Twin:
    """The parameters of an object in float64, and the formulas of its documentation with them."""

    def __init__(self, kind: str, subject: nn.Module, *, copies: bool = True) -> None:
        self.dense = kit.CASES[kind].dense
        own = dict(subject.named_parameters(remove_duplicate=False))
        self.parameters = {n: p.detach().double().requires_grad_() for n, p in own.items()} if copies else own
        self.of_score = {name.removeprefix("score."): p for name, p in self.parameters.items()}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, **biases: Tensor) -> Tensor:
        return kit.attend_plainly(self.dense, self.of_score, q, k, v, seen, **biases)[0]

    def weights(self, q: Tensor, k: Tensor, seen: Tensor, **biases: Tensor) -> Tensor:
        return kit.attend_plainly(self.dense, self.of_score, q, k, k, seen, **biases)[2].detach()

    def heads(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, number: int, **biases: Tensor) -> Tensor:
        """Return the output of a layer of so many heads, which share biases (B, n, m) and (B, m)."""
        given, added = self.parameters, [None] * 3
        if "in_proj_bias" in given:
            added = list(given["in_proj_bias"].chunk(3))
        q, k, v = (
            linear(t, w, b).unflatten(-1, (number, -1)).transpose(1, 2)
            for t, w, b in zip((q, k, v), given["in_proj_weight"].chunk(3), added, strict=True)
        )
        mixed = self.attend(q, k, v, seen[:, None], **{name: bias[:, None] for name, bias in biases.items()})
        return linear(mixed.transpose(1, 2).flatten(2), given["out_proj.weight"], given.get("out_proj.bias"))

    def step(self, inputs: Tensor, encoded: Tensor, seen: Tensor, state: list[Any]) -> tuple[Tensor, list[Any]]:
        """One step of a decoder, whose state has a tensor a layer, or an LSTM's pair."""
        top = state[-1] if isinstance(state[-1], Tensor) else state[-1][0]
        below = torch.cat([inputs, self.attend(top[:, None], encoded, encoded, seen)[:, 0]], -1)
        after = []
        for number, before in enumerate(state):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            weights = [self.parameters[f"{name}_l{number}"] for name in names]
            gru = isinstance(before, Tensor)
            after.append((torch.gru_cell if gru else torch.lstm_cell)(below, before, *weights))
            below = after[-1] if gru else after[-1][0]
        return below, after


def restrictions(draw: Draw, batch: int, n: int, m: int) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if draw.chance(0.5):
        shape = (batch,) if draw.chance(0.6) else (batch, n)
        limits["valid_lens"] = torch.from_numpy(draw.random.integers(0, m + 1, size=shape))
    if draw.chance(0.2):
        limits["mask"] = torch.from_numpy(draw.random.random((batch, n, m)) < 0.6)
    if draw.chance(0.25):
        limits["causal"] = draw.of((True, np.bool_(True)))
    if draw.chance(0.15):
        limits["window"] = tuple(None if draw.chance(0.3) else draw.whole(0, m) for _ in range(2))
    if draw.chance(0.15):
        limits["exclude"] = torch.from_numpy(draw.random.integers(-1, m, size=(batch, n)))
    if draw.chance(0.15):
        limits["segment_ids"] = tuple(
            torch.from_numpy(draw.random.integers(0, 3, size=(batch, size))).sort(-1).values for size in (n, m)
        )
    for name, shape in (("bias", (batch, n, m)), ("key_bias", (batch, m))):
        if draw.chance(0.15):
            limits[name] = draw_bias(draw, *shape)
    return limits


def draw_bias(draw: Draw, *shape: int) -> Tensor:
    """Numbers, some of them −∞."""
    hidden = torch.from_numpy(np.asarray(draw.random.random(shape) < 0.1))
    return draw.numbers(*shape).masked_fill(hidden, -math.inf)


def wide_biases(limits: dict[str, Any]) -> dict[str, Tensor]:
    """Leaves in float64 with the numbers of the biases."""
    biases = {name: limits[name] for name in ("bias", "key_bias") if name in limits}
    return {name: bias.detach().double().requires_grad_(bias.requires_grad) for name, bias in biases.items()}


class WrongError(Exception):
    """A number that is not the expected one."""


def check(name: str, found: Tensor | None, expected: Tensor | None, dtype: torch.dtype) -> None:
    expected = torch.zeros(()) if expected is None else expected.detach().double()
    found = torch.zeros_like(expected) if found is None else found.detach().double()
    if found.shape != expected.shape and expected.ndim:
        raise WrongError(f"{name}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    if not found.numel():
        return
    off = (found - expected).abs().max().item()
    most = TOLERANCE[dtype] * max(1.0, expected.abs().max().item())
    if not off <= most:  # NaN too
        raise WrongError(f"{name}: off by {off:.2e} of at most {most:.2e}")


def poisoned(draw: Draw, tensor: Tensor, rows: Tensor) -> Tensor:
    """The tensor with NaN or ∞ in rows that nobody may see."""
    return tensor.masked_fill(rows[..., None], draw.of((math.nan, math.inf, -math.inf, 0.0)))


def slope(result: Tensor, leaves: list[Tensor], upstream: Tensor, **more: Any) -> list[Tensor | None]:
    if not result.requires_grad:
        return [None] * len(leaves)
    return list(torch.autograd.grad(result, leaves, upstream.to(result.dtype), allow_unused=True, **more))


# Calls --------------------------------------------------------------------------------------------------------------


def randomise(draw: Draw, module: nn.Module, size: float, keep: float = 0.0) -> None:
    """New parameters; or the old ones, after a step of an optimiser."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(keep).add_(draw.numbers(*parameter.shape).to(parameter.dtype) * size)


def compare(
    draw: Draw, subject: nn.Module, twin: Twin, found: Tensor, expected: Tensor, leaves: list[tuple[Tensor, Tensor]]
) -> None:
    """The output, and the gradients by leaves, each beside its twin, and by all parameters."""
    check("output", found, expected, found.dtype)
    if not found.requires_grad:
        return
    upstream, learned = draw.numbers(*found.shape), [pair for pair in leaves if pair[0].requires_grad]
    own, others = ([pair[side] for pair in learned] for side in (0, 1))
    came = slope(found, [*own, *subject.parameters()], upstream, retain_graph=True)
    right = slope(expected, [*others, *twin.parameters.values()], upstream)
    names = [*(f"leaf {number}" for number in range(len(own))), *twin.parameters]
    for name, one, other in zip(names, came, right, strict=True):
        check(f"gradient of {name}", one, other, found.dtype)


def calls(draw: Draw) -> None:
    """3 to 6 calls on one object."""
    kind, how = draw.of(list(MADE)), draw.of(("attend", "memory", "heads", "heads", "decoder"))
    dtype, d = draw.dtype, draw.of((1, 2, 4, 8))
    if how == "decoder":
        decode(draw, kind, dtype, d)
        return
    number = draw.of([h for h in (1, 2, 4) if d % h == 0]) if how == "heads" else 1
    score = MADE[kind](d // number)
    heads = dikkat.MultiHeadAttention(d, number, score=score, bias=draw.chance(0.5)) if how == "heads" else None
    subject: nn.Module = heads or score
    randomise(draw, subject.to(dtype), 0.6)
    memory: Any = None
    batch, m, value = draw.whole(1, 3), draw.of(SIZES), d if how == "heads" else draw.of((1, 3, d))
    for _ in range(draw.whole(3, 6)):
        if draw.chance(0.3):
            randomise(draw, subject, 0.1, keep=1.0)
            memory = None
        if draw.chance(0.3) and how != "memory":
            batch, m = draw.whole(1, 3), draw.of(SIZES)
        if how == "memory" and memory is None:
            tensors = [draw.numbers(batch, m, size).to(dtype).requires_grad_(draw.chance(0.7)) for size in (d, value)]
            lens = torch.from_numpy(draw.random.integers(0, m + 1, size=batch)) if draw.chance(0.5) else None
            memory, rows = dikkat.prepare(*tensors, score=score, valid_lens=lens), torch.arange(batch)
        elif how == "memory" and draw.chance(0.3):  # as a beam search reorders
            chosen = torch.from_numpy(draw.random.integers(len(rows), size=draw.whole(1, 4)))
            memory, rows = memory.select(chosen), rows[chosen]
        n, asks = draw.of(SIZES), batch if memory is None else len(rows)
        limits = restrictions(draw, asks, n, m)
        for name in limits.keys() & {"bias", "key_bias"}:
            limits[name] = limits[name].to(dtype).requires_grad_(draw.chance(0.5))
        by_lens = limits.get("valid_lens")
        if memory is not None:
            limits.pop("valid_lens", None)
            by_lens = None if lens is None else lens[rows]
        seen = kit.visible(limits | {"valid_lens": by_lens}, (asks,), n, m)
        fresh = [draw.numbers(batch, m, size).to(dtype) for size in (d, value)]
        given = [draw.numbers(asks, n, d).to(dtype), *(fresh if memory is None else tensors)]
        if memory is None and draw.chance(0.4):
            dead = [~seen.any(2), ~seen.any(1), ~seen.any(1)]
            given = [poisoned(draw, tensor, rows) for tensor, rows in zip(given, dead, strict=True)]
        for tensor in given if memory is None else given[:1]:
            tensor.requires_grad_(draw.chance(0.7))
        with torch.no_grad() if draw.chance(0.2) else torch.enable_grad():
            if heads:
                found = heads(*given, **limits)
            elif memory is not None:
                found = dikkat.attend_memory(given[0], memory, **limits)
            else:
                found = dikkat.attend(*given, score=score, **limits)
        plain = [t.detach().double().requires_grad_(t.requires_grad) for t in given]
        clean, twin = [torch.where(t.isfinite(), t, 1.0) for t in plain], Twin(kind, subject)
        if memory is not None:
            clean[1:] = [t[rows] for t in clean[1:]]
        biases = wide_biases(limits)
        expected = twin.heads(*clean, seen, number, **biases) if heads else twin.attend(*clean, seen, **biases)
        leaves = [*zip(given, plain, strict=True), *((limits[name], bias) for name, bias in biases.items())]
        compare(draw, subject, twin, found, expected, leaves)


def decode(draw: Draw, kind: str, dtype: torch.dtype, d: int) -> None:
    """3 to 6 steps of a decoder, one by one or in one call, with a choice of sentences now and then."""
    lstm, layers, batch, m = draw.chance(0.5), draw.whole(1, 2), draw.whole(1, 3), draw.of(SIZES)
    make = recurrent.AttentionalLSTM if lstm else recurrent.AttentionalGRU
    decoder = make(3, d, d, MADE[kind](d), layers).to(dtype)
    randomise(draw, decoder, 0.6)
    twin, encoded = Twin(kind, decoder), draw.numbers(batch, m, d).to(dtype).requires_grad_(draw.chance(0.7))
    lens = torch.from_numpy(draw.random.integers(0, m + 1, size=batch)) if draw.chance(0.5) else None
    state: Any = draw.numbers(layers, batch, d).to(dtype)
    state = (state, state.sin()) if lstm else state
    memory, wide = decoder.prepare(encoded, lens), encoded.detach().double().requires_grad_(encoded.requires_grad)
    wide_state = torch.stack(state).double().unbind(1) if lstm else state.double()
    own: list[Any] = [tuple(each) if lstm else each for each in wide_state]
    rows, found, expected = torch.arange(batch), [], []
    for _ in range(draw.whole(3, 6)):
        if draw.chance(0.3):
            chosen = torch.from_numpy(draw.random.integers(len(rows), size=draw.whole(1, 4)))
            rows, memory, state = rows[chosen], memory.select(chosen), decoder.select(state, chosen)
            own = [tuple(side[chosen] for side in each) if lstm else each[chosen] for each in own]
        inputs = draw.numbers(len(rows), draw.whole(1, 3), 3).to(dtype)
        if inputs.shape[1] == 1:
            out, _, _, state = decoder.step(inputs[:, 0], memory, state)
        else:
            outs, _, _, state = decoder(inputs, memory, state, impl="reference")  # compiled: minutes a kind of score
            out = outs[:, -1]
        seen = kit.visible({"valid_lens": None if lens is None else lens[rows]}, (len(rows),), 1, m)
        for each in inputs.double().unbind(1):
            right, own = twin.step(each, wide[rows], seen, own)
        found.append(out.flatten())
        expected.append(right.flatten())
    compare(draw, decoder, twin, torch.cat(found), torch.cat(expected), [(encoded, wide)])


# Recordings ---------------------------------------------------------------------------------------------------------


class Attending(nn.Module):
    """A model whose calls are given to it."""

    def __init__(self, score: scores.Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, *given: Tensor, **limits: Any) -> Tensor:
        call = dikkat.attend_ragged if "query_offsets" in limits else dikkat.attend
        return call(*given, score=self.score, **limits)  # type: ignore[return-value]


def request(draw: Draw, longest: int) -> dict[str, Any]:
    """What to record of calls of up to so many queries."""
    made: dict[str, Any] = {}
    if draw.chance(0.3) and longest:
        made["queries"] = draw.of((draw.whole(-longest, longest - 1), slice(draw.whole(0, longest), None)))
    for name, chance, value in (
        ("weights", 0.4, True),
        ("sums", 0.4, True),
        ("entropy", 0.4, True),
        ("argmax", 0.3, True),
        ("top_k", 0.4, draw.whole(1, 5)),
        ("overview", 0.3, draw.of((2, 3, (1, 2)))),
    ):
        if draw.chance(chance):
            made[name] = value
    if draw.chance(0.5) and longest and "queries" not in made:
        made["rows"] = [draw.whole(-longest, longest - 1) for _ in range(draw.whole(1, 3))]
    return made if set(made) - {"queries"} else made | {"sums": True}


def recordings(draw: Draw) -> None:
    """One recording of one or two calls."""
    d, kind = draw.of((2, 4)), draw.of(list(MADE))
    model = Attending(MADE[kind](d)).double()
    twin = Twin(kind, model)
    expected: list[Tensor] = []
    calls_made: list[Callable[[], Any]] = []
    longest = 0
    for _ in range(draw.whole(1, 2)):
        if draw.chance(0.5):
            lengths = [
                [draw.of((0, 1, 2, 3, 5, 9)) for _ in range(count)] for count in [draw.whole(1, 4)] for _ in "qk"
            ]
            if draw.chance(0.5):
                lengths[1] = lengths[0]
            limits = {n: v for n, v in restrictions(draw, 1, 3, 3).items() if n in ("causal", "window")}
            sides = [draw.numbers(sum(each), d) for each in lengths]
            if draw.chance(0.3):
                limits["key_bias"] = draw_bias(draw, sum(lengths[1]))
            parts = zip(*(side.split(each) for side, each in zip(sides, lengths, strict=True)), strict=True)
            for number, (q, k) in enumerate(parts):
                own = dict(limits)
                if "key_bias" in limits:
                    own["key_bias"] = limits["key_bias"].split(lengths[1])[number]
                expected.append(twin.weights(q, k, kit.visible(own, (), len(q), len(k)), **wide_biases(own)))
            offsets = [torch.tensor([0, *each]).cumsum(0) for each in lengths]
            more = {"query_offsets": offsets[0], "key_offsets": offsets[1], **limits}
            longest = max(longest, *lengths[0])
            least = max(lengths[0])
        else:
            batch, n, m = draw.whole(1, 2), draw.of(SIZES), draw.of(SIZES)
            sides, more = [draw.numbers(batch, n, d), draw.numbers(batch, m, d)], restrictions(draw, batch, n, m)
            expected.append(twin.weights(*sides, kit.visible(more, (batch,), n, m), **wide_biases(more)))
            longest, least = max(longest, n), n
        calls_made.append(lambda s=sides, more=more: model(s[0], s[1], s[1], **more))
        if len(calls_made) == 1:
            first = least
    asked = request(draw, min(first, least) or longest)
    with torch.no_grad() if draw.chance(0.5) else torch.enable_grad():
        plainly = [call() for call in calls_made]
        with dikkat.record(model, **asked) as trace:
            found = [call() for call in calls_made]
    for one, other in zip(found, plainly, strict=True):
        check("output under a recording", one, other, DOUBLE)
    seen = [each for _, each in trace.calls()]
    if len(seen) != len(expected):
        raise WrongError(f"{len(seen)} records, expected {len(expected)}")
    for own, weights in zip(seen, expected, strict=True):
        compare_record(own, weights, asked)
    repr(trace)


def compare_record(seen: dikkat.Inspection, weights: Tensor, asked: dict[str, Any]) -> None:
    n, m = weights.shape[-2:]
    if (chosen := asked.get("queries")) is not None:
        numbers = list(range(*chosen.indices(n))) if isinstance(chosen, slice) else [chosen] if -n <= chosen < n else []
        weights = weights[..., numbers, :]
    if "weights" in asked:
        check("weights", seen.weights, weights, DOUBLE)
    if "rows" in asked:
        check("rows", seen.rows, weights[..., [row for row in asked["rows"] if -n <= row < n], :], DOUBLE)
    if "sums" in asked:
        check("sums", seen.sums, weights.sum(-2), DOUBLE)
    if "entropy" in asked:
        check("entropy", seen.entropy, torch.special.entr(weights).sum(-1), DOUBLE)
    if "argmax" in asked and m:
        largest = weights.amax(-1)
        at = weights.gather(-1, seen.argmax.clamp(min=0)[..., None])[..., 0]
        check("weight at argmax", torch.where(seen.argmax < 0, 0.0, at), largest, DOUBLE)
    if "top_k" in asked:
        k = asked["top_k"]
        top = weights.sort(-1, descending=True).values[..., :k]
        check("top_weights", seen.top_weights, nn.functional.pad(top, (0, k - top.shape[-1])), DOUBLE)
    if "overview" in asked:
        cells = asked["overview"] if isinstance(asked["overview"], tuple) else (asked["overview"],) * 2
        pooled, axes = weights, [min(cells[0], weights.shape[-2]), min(cells[1], m)]
        for dim, count in zip((-2, -1), axes, strict=True):
            size = pooled.shape[dim]
            where = torch.arange(size) * count // max(1, size)
            shape = list(pooled.shape)
            shape[dim] = count
            total = torch.zeros(shape, dtype=DOUBLE).index_add(dim, where, pooled)
            number = torch.bincount(where, minlength=count).double()
            pooled = total / (number[:, None] if dim == -2 else number)
        check("overview", seen.overview, pooled, DOUBLE)


# Bags ---------------------------------------------------------------------------------------------------------------


def bag_pool(given: dict[str, Tensor], rows: Tensor, lens: list[int]) -> tuple[Tensor, Tensor]:
    """The output (B, K, D) and the weights (N, K), bag by bag, with the pool's parameters in float64."""

    def projected(name: str, tensor: Tensor) -> Tensor:
        return linear(tensor, given[f"{name}.weight"], given.get(f"{name}.bias"))

    hidden = projected("V", rows).tanh()
    hidden = hidden * projected("U", rows).sigmoid() if "U.weight" in given else hidden
    shares = [each.softmax(0) for each in projected("w", hidden).split(lens)]
    return torch.stack([a.mT @ own for a, own in zip(shares, rows.split(lens), strict=True)]), torch.cat(shares)


def bags(draw: Draw) -> None:
    """1 to 3 uses of one pool: each of other bags, or each of what the one before it made."""
    dtype, d, k = draw.of((DOUBLE, torch.float32)), draw.of((1, 3, 8)), draw.of((1, 1, 2, 3))
    pool = dikkat.AttentionPooling(d, draw.of((1, 5, 16)), k, gated=draw.chance(0.7)).to(dtype)
    uses, chain = draw.whole(1, 3), draw.chance(0.5) and k == 1
    lens = [draw.of((0, 1, 2, 5, 40, 300)) for _ in range(draw.whole(1, 6))]
    x = draw.numbers(sum(lens), d).to(dtype).requires_grad_(draw.chance(0.7))
    plain = x.detach().double().requires_grad_(x.requires_grad)
    parameters = {n: p if dtype == DOUBLE else p.detach().double() for n, p in pool.named_parameters()}
    rows, wide, outputs, twins = x, plain, list[Tensor](), list[Tensor]()

    def run() -> None:
        nonlocal rows, wide, lens
        for use in range(uses):
            padded = draw.chance(0.3)
            if padded:
                mask = torch.arange(max(*lens, 1)) < torch.tensor(lens)[:, None]
                stacked = torch.full((*mask.shape, d), math.nan, dtype=dtype)
                given = stacked.masked_scatter(mask[..., None], rows), None, mask
            else:
                given = rows, torch.tensor(lens), None
            found = pool(*given, return_weights=True)
            expected, shares = bag_pool(parameters, wide, lens)
            expected = expected[:, 0] if k == 1 else expected
            check("output", found.output, expected, dtype)
            came = found.weights[given[2]] if padded else found.weights
            check("weights", came.reshape(-1, k), shares, dtype)
            outputs.append(found.output)
            twins.append(expected)
            if chain and use + 1 < uses:
                rows, wide = found.output, expected
                cut = draw.whole(0, len(lens))
                lens = [cut, len(lens) - cut]
            elif use + 1 < uses:
                lens = [draw.of((0, 1, 2, 5, 40)) for _ in range(draw.whole(1, 6))]
                rows = draw.numbers(sum(lens), d).to(dtype)
                wide = rows.double()

    if dtype == DOUBLE:
        run()
        own, leaves = [x] if x.requires_grad else [], [plain] if x.requires_grad else []
        above = [draw.numbers(*each.shape) for each in outputs]
        total, twin = (sum((o * g).sum() for o, g in zip(each, above, strict=True)) for each in (outputs, twins))
        second = draw.chance(0.4)
        came, right = (
            torch.autograd.grad(
                each, [*first, *pool.parameters()], create_graph=second, retain_graph=True, allow_unused=True
            )
            for each, first in ((total, own), (twin, leaves))
        )
        for at, (one, other) in enumerate(zip(came, right, strict=True)):
            check(f"gradient {at}", one, other, dtype)
        if second and own:
            came, right = (
                torch.autograd.grad(g[0].sin().sum(), first, allow_unused=True) if g[0].requires_grad else [None]
                for g, first in ((came, own), (right, leaves))
            )
            check("second gradient", came[0], right[0], dtype)
    else:
        run()


KINDS: dict[str, Callable[[Draw], None]] = {"calls": calls, "recordings": recordings, "bags": bags}


def one(kind: str, seed: int, case: int) -> str | None:
    """What is wrong with a case; None if all is right."""
    try:
        KINDS[kind](Draw(seed, case, kind))
    except WrongError as error:
        return f"wrong: {error}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 if any case was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=tuple(KINDS), nargs="+", default=tuple(KINDS))
    parser.add_argument("--cases", type=int, default=1000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="this one alone, with its traceback")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of each kind")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.case is not None:
        KINDS[options.kind[0]](Draw(options.seed, options.case, options.kind[0]))
        return 0
    failed = 0
    for kind in options.kind:
        end, counts, done = time.monotonic() + 60 * options.minutes, Counter[str](), 0
        while done < options.cases and time.monotonic() < end:
            if (wrong := one(kind, options.seed, done)) is not None:
                counts[wrong.partition(":")[0]] += 1
                if sum(counts.values()) <= 20:
                    print(f"  {kind} --seed {options.seed} --case {done}: {wrong}", flush=True)
            done += 1
        failed += sum(counts.values())
        print(f"{kind}: {done:,} cases, {sum(counts.values()):,} wrong {dict(counts)}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
