"""Random uses of one object, compared with plain PyTorch in float64: no crash, no undocumented error, no wrong number.

    python -m tests.stress.objects --kind calls --cases 30000 --minutes 60
    python -m tests.stress.objects --kind recordings --seed 3 --case 17

| kind | one case |
| --- | --- |
| calls | 3 to 6 calls on one score, memory or multi-head layer, some of them after a step of an optimiser, in other shapes, with NaN where nobody looks, or without a gradient |
| recordings | `dikkat.record` of random requests, around calls with random restrictions or of packed sequences |
| bags | 1 to 3 uses of one `AttentionPooling`, of flat or masked bags, alone or each of the one before |

Each case is made of the seed and its number alone, so `--case` repeats it.
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

import dikkat
from dikkat import scores

DOUBLE = torch.float64
# ruff: noqa: B023 - a function is called where it is made
# Relative to the largest number: float64 is summed in another order, float32 and float16 are rounded.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3, torch.bfloat16: 6e-2}
SIZES = (1, 1, 2, 3, 5, 7, 8, 16, 33, 64)


class Draw:
    """The random choices of a case."""

    def __init__(self, seed: int, case: int, kind: str) -> None:
        self.random = np.random.default_rng((seed, case, *kind.encode()))

    def of(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def chance(self, p: float) -> bool:
        return bool(self.random.random() < p)

    def whole(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        return int(self.random.integers(low, high + 1))

    def numbers(self, *shape: int) -> Tensor:
        return torch.from_numpy(np.asarray(self.random.standard_normal(shape)))


# Plain PyTorch ------------------------------------------------------------------------------------------------------


def additive(s: Any, q: Tensor, k: Tensor) -> Tensor:
    return (s.W_q(q)[..., :, None, :] + s.W_k(k)[..., None, :, :]).tanh() @ s.w_v.weight[0]


def distance(s: Any, q: Tensor, k: Tensor) -> Tensor:
    sigma = s.log_bandwidth.exp() if s.learnable else s.fixed_bandwidth
    return -((q[..., :, None, :] - k[..., None, :, :]) / sigma).square().sum(-1) / 2


def cosine(s: Any, q: Tensor, k: Tensor) -> Tensor:
    return nn.functional.normalize(q, dim=-1) @ nn.functional.normalize(k, dim=-1).mT


PAIRS: dict[str, tuple[Callable[[int], scores.Score], Callable[[Any, Tensor, Tensor], Tensor]]] = {
    "dot": (lambda d: scores.Dot(), lambda s, q, k: q @ k.mT),
    "scaled dot": (lambda d: scores.ScaledDot(), lambda s, q, k: q @ k.mT / math.sqrt(q.shape[-1])),
    "bilinear": (lambda d: scores.Bilinear(d, d), lambda s, q, k: s.W_q(q) @ k.mT),
    "cosine": (lambda d: scores.Cosine(), cosine),
    "additive": (lambda d: scores.Additive(d, d, 5), additive),
    "gaussian": (lambda d: scores.Gaussian(1.5), distance),
    "learned gaussian": (lambda d: scores.Gaussian(1.5, learnable=True), distance),
}


def weights_of(pairs: Tensor, shown: Tensor) -> Tensor:
    """The softmax over the visible keys; 0 in a row that sees none."""
    empty = ~shown.any(-1, keepdim=True)
    return pairs.masked_fill(~shown & ~empty, -math.inf).softmax(-1).masked_fill(~shown, 0.0)


def visible(limits: dict[str, Any], batch: int, n: int, m: int) -> Tensor:
    """(batch, n, m): which query sees which key, by the words of the documentation."""
    row, col = torch.arange(n)[:, None], torch.arange(m)
    shown = torch.ones(batch, n, m, dtype=torch.bool)
    if (lens := limits.get("valid_lens")) is not None:
        shown = shown & (col < (lens[:, None, None] if lens.ndim == 1 else lens[..., None]))
    if "mask" in limits:
        shown = shown & limits["mask"]
    if limits.get("causal"):
        shown = shown & (col <= row + m - n)
    if "window" in limits:
        left, right = limits["window"]
        shown = shown & (left is None or col >= row + m - n - left) & (right is None or col <= row + m - n + right)
    return shown


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
    return limits


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


def calls(draw: Draw) -> None:
    """3 to 6 calls on one object."""
    dtype, d = draw.of((DOUBLE, DOUBLE, torch.float32)), draw.of((1, 2, 4, 8))
    kind, how = draw.of(list(PAIRS)), draw.of(("attend", "memory", "heads", "heads"))
    make, pair = PAIRS[kind]
    if how == "heads":
        number = draw.of([h for h in (1, 2, 4) if d % h == 0])
        subject: nn.Module = dikkat.MultiHeadAttention(d, number, score=make(d // number), bias=draw.chance(0.5))
        score, attends = subject.score, lambda q, k, v, shown: heads(subject, pair, q, k, v, shown)  # type: ignore[no-any-return]
    else:
        subject = score = make(d)
        attends = lambda q, k, v, shown: weights_of(pair(score, q, k), shown) @ v  # noqa: E731
    with torch.no_grad():
        for parameter in subject.parameters():
            parameter.copy_(draw.numbers(*parameter.shape) * 0.6)
    subject.to(dtype)
    twin = dict(subject.named_parameters())
    memory, batch, m, value = None, draw.whole(1, 3), draw.of(SIZES), d if how == "heads" else draw.of((1, 3, d))
    for _ in range(draw.whole(3, 6)):
        if twin and draw.chance(0.3):  # a step of an optimiser
            with torch.no_grad():
                for parameter in twin.values():
                    parameter.add_(draw.numbers(*parameter.shape).to(dtype) * 0.1)
            memory = None
        if draw.chance(0.3) and how != "memory":
            batch, m = draw.whole(1, 3), draw.of(SIZES)
        n = draw.of(SIZES)
        limits = restrictions(draw, batch, n, m)
        lens = limits.pop("valid_lens", None) if how == "memory" else None
        if how == "memory" and memory is None:
            lens = None if lens is None or lens.ndim > 1 else lens
            of_memory = [draw.numbers(batch, m, size).to(dtype).requires_grad_(draw.chance(0.7)) for size in (d, value)]
            memory = dikkat.prepare(*of_memory, score=score, valid_lens=lens), of_memory, lens
        query = draw.numbers(batch, n, d).to(dtype)
        key, of_value = memory[1] if memory else [draw.numbers(batch, m, size).to(dtype) for size in (d, value)]
        shown = visible(limits, batch, n, m)
        if memory and memory[2] is not None:
            shown = shown & visible({"valid_lens": memory[2]}, batch, n, m)
        given = [query, key, of_value]
        if not memory and draw.chance(0.4):
            dead = [~shown.any(2), ~shown.any(1), ~shown.any(1)]
            given = [poisoned(draw, tensor, rows) for tensor, rows in zip(given, dead, strict=True)]
        leaves = [t.requires_grad_(draw.chance(0.7)) if t.is_leaf and not memory else t for t in given]
        query.requires_grad_(draw.chance(0.7)) if memory else None
        quiet = draw.chance(0.2)
        with torch.no_grad() if quiet else torch.enable_grad():
            if how == "heads":
                found = subject(*given, **limits)
            elif memory:
                found = dikkat.attend_memory(query, memory[0], **limits)
            else:
                found = dikkat.attend(*given, score=score, **limits)
        plain, *others = [t.detach().double().requires_grad_(t.requires_grad) for t in given]
        clean = [torch.where(t.isfinite(), t, torch.zeros((), dtype=DOUBLE)) for t in (plain, *others)]
        with torch.enable_grad():
            expected = in_double(subject, lambda: attends(*clean, shown))
        check("output", found, expected, dtype)
        if quiet or not found.requires_grad:
            continue
        upstream = draw.numbers(*found.shape)
        wanted_leaves = [t for t in (plain, *others) if t.requires_grad]
        own = [t for t in leaves if t.requires_grad]
        # The parameters' gradients, of a twin in float64.
        came = slope(found, [*own, *twin.values()], upstream, retain_graph=True)
        right = in_double(
            subject, lambda: slope(attends(*clean, shown), [*wanted_leaves, *subject.parameters()], upstream)
        )
        names = [f"leaf {i}" for i in range(len(own))] + list(twin)
        for name, one, other in zip(names, came, right, strict=True):
            check(f"gradient of {name}", one, other, dtype)


def in_double(subject: nn.Module, compute: Callable[[], Any]) -> Any:
    """What a function makes with the object's parameters in float64; they are what they were afterwards."""
    before = {name: p.data for name, p in [*subject.named_parameters(), *subject.named_buffers()]}
    every = dict([*subject.named_parameters(), *subject.named_buffers()])
    if all(t.dtype == DOUBLE for t in before.values()):
        return compute()
    values = {name: t.double().requires_grad_(every[name].requires_grad) for name, t in before.items()}
    twin = _twin(subject, values)
    return twin(compute)


def _twin(subject: nn.Module, values: dict[str, Tensor]) -> Callable[[Callable[[], Any]], Any]:
    def run(compute: Callable[[], Any]) -> Any:
        owners = []
        for name, value in values.items():
            *path, last = name.split(".")
            owner = subject.get_submodule(".".join(path))
            store = owner._parameters if last in owner._parameters else owner._buffers
            owners.append((store, last, store[last]))
            store[last] = nn.Parameter(value) if store is owner._parameters else value  # type: ignore[assignment]
        try:
            return compute()
        finally:
            for store, last, old in owners:
                store[last] = old  # type: ignore[index]

    return run


def heads(layer: Any, pair: Any, q: Tensor, k: Tensor, v: Tensor, shown: Tensor) -> Tensor:
    """A multi-head layer by the formula of its documentation."""
    weights = layer.in_proj_weight.chunk(3)
    biases = [None] * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    q, k, v = (
        nn.functional.linear(t, w, b).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for t, w, b in zip((q, k, v), weights, biases, strict=True)
    )
    mixed = weights_of(pair(layer.score, q, k), shown[:, None]) @ v
    return layer.out_proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


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
    d, kind = draw.of((2, 4)), draw.of(list(PAIRS))
    make, pair = PAIRS[kind]
    model = Attending(make(d)).double()
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
            parts = zip(*(side.split(each) for side, each in zip(sides, lengths, strict=True)), strict=True)
            for q, k in parts:
                shown = visible(limits, 1, len(q), len(k))[0]
                expected.append(weights_of(pair(model.score, q, k), shown))
            offsets = [torch.tensor([0, *each]).cumsum(0) for each in lengths]
            more = {"query_offsets": offsets[0], "key_offsets": offsets[1], **limits}
            longest = max(longest, *lengths[0])
            least = max(lengths[0])
        else:
            batch, n, m = draw.whole(1, 2), draw.of(SIZES), draw.of(SIZES)
            sides, more = [draw.numbers(batch, n, d), draw.numbers(batch, m, d)], restrictions(draw, batch, n, m)
            expected.append(weights_of(pair(model.score, *sides), visible(more, batch, n, m)))
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
        compare_record(own, weights.detach(), asked)
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


def bag_pool(pool: Any, rows: Tensor, lens: list[int]) -> tuple[Tensor, Tensor]:
    """The output (B, K, D) and the weights (N, K), bag by bag."""
    hidden = pool.V(rows).tanh()
    hidden = hidden if pool.U is None else hidden * pool.U(rows).sigmoid()
    shares = [each.softmax(0) for each in pool.w(hidden).split(lens)]
    return torch.stack([a.mT @ own for a, own in zip(shares, rows.split(lens), strict=True)]), torch.cat(shares)


def bags(draw: Draw) -> None:
    """1 to 3 uses of one pool: each of other bags, or each of what the one before it made."""
    dtype, d, k = draw.of((DOUBLE, torch.float32)), draw.of((1, 3, 8)), draw.of((1, 1, 2, 3))
    pool = dikkat.AttentionPooling(d, draw.of((1, 5, 16)), k, gated=draw.chance(0.7)).to(dtype)
    uses, chain = draw.whole(1, 3), draw.chance(0.5) and k == 1
    lens = [draw.of((0, 1, 2, 5, 40, 300)) for _ in range(draw.whole(1, 6))]
    x = draw.numbers(sum(lens), d).to(dtype).requires_grad_(draw.chance(0.7))
    plain = x.detach().double().requires_grad_(x.requires_grad)
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
            expected, shares = in_double(pool, lambda: bag_pool(pool, wide, lens))
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
