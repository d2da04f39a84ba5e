"""The shared test kit.

A scoring function supplies a constructor and its dense twin (`Case` in `CASES`); implementations (`WAYS`) come from the
table of `dikkat._core.implementations`. Both inherit every check of `test_implementations.py`. `attend_plainly` is the
one oracle of attention: every pair, a mask of −∞, PyTorch's softmax. `visible` says which query sees which key.
"""

import inspect
import math
import random
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as replace  # tests take it from here
from functools import cache, wraps
from itertools import combinations, product
from typing import Any

import pytest
import torch
from torch import Tensor

import dikkat
from dikkat import scores
from dikkat._core import dispatch, implementations
from dikkat._core.implementations import BACKENDS, chunked, products

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

# Distinct primes, so that exchanged axes cannot pass.
BATCH, HEADS, QUERIES, KEYS, FEATURES, VALUES, HIDDENS = 2, 3, 5, 7, 4, 11, 13
QUERY_FEATURES = 6

# Numbers that no binary type holds: the twin has them as they are here, and not as a module rounds them.
FIXED, BOXCAR = 1.3, 2.7

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]

# What may stand where nobody looks; the last is finite, and its products with what is above 1 are not.
POISONS = [math.nan, math.inf, 1.7e308]

NOT_DENSE: dict[str, Callable[[Tensor], Tensor]] = {
    "sparse": lambda x: x.to_sparse(),
    "rows": lambda x: x.to_sparse_csr(),
    "mkldnn": lambda x: x.float().to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
    "jagged": lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged),
}


def not_dense(kind: str) -> tuple[Callable[[Tensor], Tensor], str]:
    """How a tensor of three dimensions is made into one of `NOT_DENSE`, and a pattern of how it is refused."""
    if kind == "mkldnn" and not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch was built without it")

    def make(x: Tensor) -> Tensor:
        with warnings.catch_warnings(action="ignore"):  # most of these are in beta
            made: Tensor = NOT_DENSE[kind](x.detach())
        return made

    nested = "nested " if kind in ("nested", "jagged") else ""
    return make, rf"got a {nested}tensor with layout {make(torch.zeros(2, 3, 5)).layout}; expected a dense tensor"


@dataclass(frozen=True)
class Case:
    """A scoring function under test.

    Attributes:
        make: Its constructor.
        dense: Scores (..., n, m) of queries (..., n, d_q) and keys (..., m, d_k), given the parameters by name.
        query_features: d_q.
        compact: Whether its score is the logarithm of a difference, which cancels near the edge of a support.
    """

    make: Callable[[], scores.Score]
    dense: Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]
    query_features: int = FEATURES
    compact: bool = False


def _apart(q: Tensor, k: Tensor) -> Tensor:
    """The differences of all pairs, (..., n, m, d)."""
    return q[..., :, None, :] - k[..., None, :, :]


def _of_keys(q: Tensor, per_key: Tensor) -> Tensor:
    """Scores that do not depend on the query, (..., n, m)."""
    return per_key[..., None, :] + 0 * q[..., :1]


def _log_kernel(kernel: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    """The logarithm of a kernel of the scaled distance r; −∞, with no gradient, where the kernel is 0."""

    def dense(p: dict[str, Tensor], q: Tensor, k: Tensor) -> Tensor:
        sigma = p["log_bandwidth"].exp() if "log_bandwidth" in p else BOXCAR
        r = (_apart(q, k) / sigma).square().sum(-1).sqrt()
        inside = kernel(r) > 0
        return kernel(torch.where(inside, r, 0.5)).log().masked_fill(~inside, -math.inf)

    return dense


CASES: dict[str, Case] = {
    "average": Case(scores.Average, lambda p, q, k: _of_keys(q, 0 * k[..., 0]), QUERY_FEATURES),
    "dot": Case(scores.Dot, lambda p, q, k: q @ k.mT),
    "scaled dot": Case(scores.ScaledDot, lambda p, q, k: q @ k.mT / math.sqrt(q.shape[-1])),
    "bilinear": Case(
        lambda: scores.Bilinear(FEATURES, QUERY_FEATURES), lambda p, q, k: q @ p["W_q.weight"].mT @ k.mT, QUERY_FEATURES
    ),
    "cosine": Case(
        scores.Cosine,
        lambda p, q, k: torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).mT,
    ),
    "vector sum": Case(
        lambda: scores.VectorSum(FEATURES),
        lambda p, q, k: ((q[..., :, None, :] + k[..., None, :, :]) * p["w_v.weight"][0]).sum(-1),
    ),
    "additive": Case(
        lambda: scores.Additive(FEATURES, QUERY_FEATURES, HIDDENS),
        lambda p, q, k: (torch.tanh(_apart(q @ p["W_q.weight"].mT, -k @ p["W_k.weight"].mT)) * p["w_v.weight"][0]).sum(
            -1
        ),
        QUERY_FEATURES,
    ),
    "gaussian": Case(lambda: scores.Gaussian(FIXED), lambda p, q, k: -(_apart(q, k) / FIXED).square().sum(-1) / 2),
    "gaussian, learned": Case(
        lambda: scores.Gaussian([1.0, 1.5, 2.0, 2.5], learnable=True),
        lambda p, q, k: -(_apart(q, k) / p["log_bandwidth"].exp()).square().sum(-1) / 2,
    ),
    "boxcar": Case(lambda: scores.Boxcar(BOXCAR), _log_kernel(lambda r: (r <= 1).to(r.dtype))),
    "epanechnikov": Case(
        lambda: scores.Epanechnikov(3.25, learnable=True), _log_kernel(lambda r: (1 - r * r).clamp(min=0)), compact=True
    ),
    "triangular": Case(
        lambda: scores.Triangular(3.25, learnable=True), _log_kernel(lambda r: (1 - r).clamp(min=0)), compact=True
    ),
    "dot, capped": Case(lambda: scores.Dot(softcap=0.7), lambda p, q, k: 0.7 * torch.tanh(q @ k.mT / 0.7)),
    "gated": Case(
        lambda: scores.Gated(FEATURES, HIDDENS),
        lambda p, q, k: _of_keys(
            q,
            ((k @ p["V.weight"].mT + p["V.bias"]).tanh() * (k @ p["U.weight"].mT + p["U.bias"]).sigmoid())
            @ p["w.weight"][0]
            + p["w.bias"],
        ),
        QUERY_FEATURES,
    ),
}


def lens(*shape: int, high: int = KEYS) -> Tensor:
    return torch.randint(0, high + 1, shape)


def _with_an_empty_row(tensor: Tensor, value: Any) -> Tensor:
    tensor[0, ..., 0] = value
    return tensor


def _mask(*shape: int) -> Tensor:
    mask = torch.rand(*shape) < 0.6
    mask[..., 0, :] = False
    return mask


def _bias(*shape: int) -> Tensor:
    bias = torch.randn(*shape, dtype=torch.float64)
    bias[..., 1] = -math.inf
    return bias.requires_grad_()


def _pair_bias(*shape: int) -> Tensor:
    """With one row of which nothing is visible."""
    bias = torch.randn(*shape, dtype=torch.float64)
    bias[..., 0, :] = -math.inf if shape[-2] > 1 else 1.5
    bias[..., 3] = -math.inf
    return bias.requires_grad_()


# What restricts a call; each is made under a seed of its own, and has rows without a key wherever it can.
RESTRICTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "lengths": lambda: {"valid_lens": torch.tensor([3, 0])},
    "lengths above 0": lambda: {"valid_lens": torch.randint(1, KEYS + 1, (BATCH,))},
    "lengths a query": lambda: {"valid_lens": _with_an_empty_row(lens(BATCH, QUERIES), 0)},
    "mask": lambda: {"mask": _mask(BATCH, 1, QUERIES, KEYS)},
    "mask a head": lambda: {"mask": _mask(HEADS, QUERIES, KEYS)},
    "mask of keys": lambda: {"mask": torch.rand(BATCH, 1, 1, KEYS) < 0.6},
    "causal": lambda: {"causal": True},
    "bias": lambda: {"key_bias": _bias(BATCH, 1, KEYS)},
    "bias for all": lambda: {"key_bias": _bias(KEYS)},
    "exclude": lambda: {"exclude": torch.randint(-1, KEYS, (BATCH, 1, QUERIES))},
    "all": lambda: {
        "valid_lens": torch.tensor([[7, 6, 0, 5, 7], [2, 7, 7, 7, 3]]),
        "mask": torch.rand(QUERIES, KEYS) < 0.8,
        "causal": True,
        "key_bias": _bias(BATCH, HEADS, KEYS),
        "exclude": torch.randint(-1, KEYS, (QUERIES,)),
    },
    "window": lambda: {"window": (2, 1)},
    "window and segments": lambda: {
        "window": (None, 4),
        "segment_ids": (
            torch.tensor([[3, 1, 1, 8, 2], [5, 5, 5, 5, 0]]),
            torch.tensor([[3] * 3 + [1] * 4, [0] + [5] * 6]),
        ),
    },
    "pair bias": lambda: {"bias": torch.randn(BATCH, 1, QUERIES, KEYS, dtype=torch.float64, requires_grad=True)},
    "pair bias that hides": lambda: {"bias": _pair_bias(1, HEADS, QUERIES, KEYS)},
    "pair bias of rows": lambda: {"bias": torch.randn(HEADS, QUERIES, 1, dtype=torch.float64, requires_grad=True)},
    "numbers": lambda: {"bias": _pair_bias(1, HEADS, QUERIES + 1, KEYS)[..., 1:, :].detach().mT.contiguous().mT},
    "all with a pair bias": lambda: {
        "valid_lens": torch.tensor([[7, 6, 0, 5, 7], [2, 7, 7, 7, 3]]),
        "mask": torch.rand(QUERIES, KEYS) < 0.8,
        "causal": True,
        "bias": _pair_bias(1, KEYS),
        "key_bias": _bias(HEADS, KEYS),
        "exclude": torch.randint(-1, KEYS, (QUERIES,)),
    },
}
# What neither ranks nor Triton's kernels take.
REFUSED = [
    "window", "window and segments", "pair bias", "pair bias that hides", "pair bias of rows", "numbers",
    "all with a pair bias",
]  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A call under test: the score and tensors, all float64 and with gradients."""

    case: Case
    score: scores.Score
    query: Tensor
    key: Tensor
    value: Tensor
    restricted: dict[str, Any]

    def to(self, dtype: torch.dtype) -> "Call":
        """The same numbers in another dtype, as leaves of their own; the score's parameters too."""
        score = self.case.make().to(torch.float64)
        score.load_state_dict(self.score.state_dict())
        restricted = {name: _leaf(t, dtype) for name, t in self.restricted.items()}
        return replace(
            self,
            score=score.to(dtype),
            query=_leaf(self.query, dtype),
            key=_leaf(self.key, dtype),
            value=_leaf(self.value, dtype),
            restricted=restricted,
        )

    def leaves(self) -> dict[str, Tensor]:
        """Everything that has a gradient, by name."""
        found = {"query": self.query, "key": self.key, "value": self.value}
        found |= {name: t for name, t in self.restricted.items() if isinstance(t, Tensor) and t.requires_grad}
        return found | dict(self.score.named_parameters())

    def parameters(self) -> dict[str, Tensor]:
        return dict(self.score.named_parameters()) | dict(self.score.named_buffers())

    def run(self, impl: str = "auto", **more: Any) -> Any:
        return dikkat.attend(self.query, self.key, self.value, score=self.score, impl=impl, **self.restricted, **more)

    def state(self, impl: str = "auto", **more: Any) -> dikkat.State:
        return dikkat.attention_state(
            self.query, self.key, self.value, score=self.score, impl=impl, **self.restricted, **more
        )

    def obstacles(self, impl: str, **more: Any) -> tuple[str, ...]:
        found = dikkat.implementations(self.query, self.key, self.value, score=self.score, **self.restricted, **more)
        return next(i.reasons for i in found if i.name == impl)


def _leaf(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().to(dtype, copy=True).requires_grad_(value.requires_grad)


def call(
    case: str, restriction: str, *, seed: int = 0, queries: int = QUERIES, round_to: torch.dtype | None = None,
    shared: str = "",
) -> Call:  # fmt: skip
    """The call of a case and a restriction.

    Args:
        case: of `CASES`.
        restriction: of `RESTRICTIONS`.
        seed: of the numbers.
        queries: n.
        round_to: a dtype that holds all numbers exactly.
        shared: the operand that all batch elements share.
    """
    torch.manual_seed(1009 * seed + 31 * list(CASES).index(case) + list(RESTRICTIONS).index(restriction))
    made = CASES[case]
    tensors = [
        torch.randn(BATCH, HEADS, length, size, dtype=torch.float64)
        for length, size in ((queries, made.query_features), (KEYS, FEATURES), (KEYS, VALUES))
    ]
    if shared:
        place = ("query", "key", "value").index(shared)
        tensors[place] = tensors[place][:1]
    score = made.make().to(torch.float64)
    restricted = RESTRICTIONS[restriction]()
    if round_to is not None:
        tensors = [t.to(round_to).to(torch.float64) for t in tensors]
        score = score.to(round_to).to(torch.float64)
        restricted = {n: _leaf(_leaf(t, round_to), torch.float64) for n, t in restricted.items()}
    query, key, value = (t.requires_grad_() for t in tensors)
    return Call(made, score, query, key, value, restricted)


def visible(limits: dict[str, Any], lead: tuple[int, ...], n: int, m: int) -> Tensor:
    """(*lead, n, m): which query sees which key, by the words of the documentation."""
    row, col = torch.arange(n)[:, None] + m - n, torch.arange(m)
    element = (*lead[:1], *(1,) * (len(lead) - 1))
    shown = torch.ones(*lead, n, m, dtype=torch.bool)
    if (lens := limits.get("valid_lens")) is not None:
        shown = shown & (col < lens.reshape(*element, -1, 1))
    if (mask := limits.get("mask")) is not None:
        shown = shown & mask
    if limits.get("causal"):
        shown = shown & (col <= row)
    if (window := limits.get("window")) is not None:
        left, right = (keys if keys is not None else n + m for keys in window)
        shown = shown & (col >= row - left) & (col <= row + right)
    if (segments := limits.get("segment_ids")) is not None:
        shown = shown & (segments[0].reshape(*element, n, 1) == segments[1].reshape(*element, 1, m))
    if (bias := limits.get("bias")) is not None:
        shown = shown & (bias != -math.inf)
    if (bias := limits.get("key_bias")) is not None:
        shown = shown & (bias != -math.inf)[..., None, :]
    if (exclude := limits.get("exclude")) is not None:
        shown = shown & (col != exclude[..., None])
    return shown


def attend_plainly(
    dense: Callable[[dict[str, Tensor], Tensor, Tensor], Tensor], parameters: dict[str, Tensor],
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, *,
    bias: Tensor | None = None, key_bias: Tensor | None = None, sink: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, log-sum-exp and weights in plain PyTorch: every pair, −∞ where it is hidden, a softmax, a product.

    Args:
        dense: A score's formula, of `CASES`.
        parameters: The score's parameters, by name.
        query: (..., n, d_q), finite.
        key: (..., m, d_k), finite.
        value: (..., m, d_v), finite.
        seen: Which query sees which key, broadcasts to (..., n, m). Biases of −∞ are the caller's to leave out.
        bias: (..., n, m).
        key_bias: (..., m).
        sink: (...).
    """
    scored = dense(parameters, query, key)
    for added in (bias, None if key_bias is None else key_bias[..., None, :]):
        if added is not None:
            scored = scored + torch.where(added == -math.inf, 0.0, added)
    logits = torch.where(seen, scored, -math.inf)
    keys = logits.shape[-1]
    if sink is not None:
        logits = torch.cat([logits, sink[..., None, None].expand(*logits.shape[:-1], 1)], -1)
    live = (logits > -math.inf).any(-1, keepdim=True)
    safe = torch.where(live, logits, 0.0)
    weights = torch.where(logits > -math.inf, safe.softmax(-1), 0.0)[..., :keys]
    lse = torch.where(live[..., 0], safe.logsumexp(-1), -math.inf)
    return weights @ value, lse, weights


def twin(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp and weights of a call, in the dtype of its tensors."""
    biases = {name: t for name, t in call.restricted.items() if name in ("bias", "key_bias")}
    return attend_plainly(
        call.case.dense, call.parameters(), call.query, call.key, call.value, seen_pairs(call), **biases
    )


def gradients(call: Call, output: Tensor, upstream: Tensor) -> dict[str, Tensor]:
    """The gradient of Σ upstream · output with respect to every leaf; 0 where there is none."""
    leaves = call.leaves()
    found = torch.autograd.grad(
        output, list(leaves.values()), upstream.to(output.dtype), allow_unused=True, retain_graph=True
    )
    return {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }


def upstream_of(output: Tensor) -> Tensor:
    """A gradient that comes from above: the same for one shape, with numbers that every dtype holds exactly."""
    return (torch.arange(output.numel()) * 7919 % 17 - 8).reshape(output.shape).to(torch.float64) / 8


@dataclass(frozen=True)
class Expected:
    """What a call should give.

    Attributes:
        exact: Each result and gradient, in float64.
        plain_error: How far plain PyTorch in the call's dtype is from it, at most.
        scale: S, the sum of the absolute values that the quantity sums; of each element, or the largest.
    """

    exact: dict[str, Tensor]
    plain_error: dict[str, Tensor]
    scale: dict[str, Tensor]


@cache
def expected(case: str, restriction: str, dtype: torch.dtype, seed: int = 0, shared: str = "") -> Expected:
    """What a call should give, whose numbers `dtype` holds exactly."""
    made = call(case, restriction, round_to=dtype, seed=seed, shared=shared)
    exact = _twin_results(made)
    plain = exact if dtype == torch.float64 else _twin_results(made.to(dtype))
    return Expected(
        exact, {name: _distance(plain[name], exact[name]).max() for name in exact}, _absolute_sums(made, exact)
    )


def _twin_results(made: Call) -> dict[str, Tensor]:
    out, lse, weights = twin(made)
    grads = gradients(made, out, upstream_of(out))
    return {"output": out.detach(), "lse": lse.detach(), "weights": weights.detach()} | grads


def _absolute_sums(made: Call, exact: dict[str, Tensor]) -> dict[str, Tensor]:
    """S for every result, from the terms of each pair: the gradient of a score is p (g·v − Σ p g·v)."""
    out, weights = exact["output"], exact["weights"]
    upstream, value = upstream_of(out).abs(), made.value.detach().abs()
    by_weight = upstream @ value.mT
    by_score = weights * (by_weight + (weights * by_weight).sum(-1, keepdim=True))
    b, h, i, j = (weights > 0).nonzero().T
    rows = {
        "query": made.query.expand(BATCH, HEADS, *made.query.shape[-2:])[b, h, i],
        "key": made.key.expand(BATCH, HEADS, *made.key.shape[-2:])[b, h, j],
    }
    rows |= {name: each.expand(len(b), *each.shape) for name, each in made.score.named_parameters()}
    rows = {name: each.detach().clone().requires_grad_() for name, each in rows.items()}

    def score(row: dict[str, Tensor]) -> Tensor:
        return made.case.dense(row, row["query"][None], row["key"][None])[0, 0]

    scored: Tensor = torch.vmap(score)(rows)
    linked = scored + 0 * rows["key"][:, 0]  # a boxcar's have no gradient
    grads = torch.autograd.grad(linked.sum(), list(rows.values()), allow_unused=True, materialize_grads=True)
    by_name = {name: grad.abs() for name, grad in zip(rows, grads, strict=True)}
    condition = torch.stack(
        [(grad * rows[name].detach().abs()).reshape(len(b), -1).sum(1) for name, grad in by_name.items()]
    ).sum(0)
    largest = torch.maximum(scored.detach().abs(), condition).max()
    amplified = torch.zeros_like(weights)
    if made.case.compact:  # log(1 − u), and its slope 1 / (1 − u), are far off near the edge, where 1 − u cancels
        amplified[b, h, i, j] = condition
    factor = by_score[b, h, i, j] * (1 + amplified[b, h, i, j])
    sums = {}
    for name, leaf in {"query": made.query, "key": made.key, **dict(made.score.named_parameters())}.items():
        terms = torch.einsum("p,p...->p...", factor, by_name[name])
        if name in ("query", "key"):
            place = b, h, i if name == "query" else j
            every = terms.new_zeros(BATCH, HEADS, *leaf.shape[-2:]).index_put(place, terms, accumulate=True)
            sums[name] = every.sum_to_size(leaf.shape).max()
        else:
            sums[name] = terms.sum(0).max()
    one, off = torch.ones((), dtype=torch.float64), weights * amplified
    return sums | {
        "value": ((weights + off).mT @ upstream).sum_to_size(value.shape).max(),
        "key_bias": by_score.sum(),
        "bias": by_score.sum(),
        "output": value.max() + off @ value + off.sum(-1, keepdim=True) * out.abs(),
        # A weight's error is relative to it as the score's is absolute; so is the log-sum-exp's.
        "weights": one + largest,
        "lse": one + largest,
    }


def _distance(came: Tensor, exact: Tensor) -> Tensor:
    same = came.to(torch.float64) == exact  # −∞ from −∞ is no distance
    return (came.to(torch.float64) - exact).abs().masked_fill(same, 0.0)


def assert_within_budget(name: str, came: Tensor, budget: Expected) -> None:
    """The error budget: at most twice plain PyTorch's error in the same dtype, plus 4·eps·S."""
    exact = budget.exact[name]
    assert came.shape == exact.shape, f"{name}: shape {tuple(came.shape)} instead of {tuple(exact.shape)}"
    eps = torch.finfo(came.dtype).eps
    # In float64 what it is held against is off as well, by as much.
    slack = 4 if came.dtype != torch.float64 else 8
    error, allowed = _distance(came, exact), 2 * budget.plain_error[name] + slack * eps * budget.scale[name]
    worst = (error - allowed).argmax()
    assert bool((error <= allowed).all()), (
        f"{name}: error {error.flatten()[worst]:.3g}, allowed {allowed.expand_as(error).flatten()[worst]:.3g}"
    )


@contextmanager
def way(name: str) -> Iterator[str]:
    """Run with an implementation: by name, or with "small tiles", where every loop of it turns several times."""
    name, _, small = name.partition(", ")
    with pytest.MonkeyPatch.context() as patch:
        if small and name == "chunked":
            patch.setattr(chunked, "_TILE", 4 * BATCH * HEADS * HIDDENS)
            patch.setattr(chunked, "_NUMBERS_FOR_A_LOOP", 1)
        elif small:
            patch.setattr(products, "_PAIRS", 1)
            patch.setattr(products, "_FACTORS", 1)
            patch.setattr(products, "_STEP", 2)
        yield name


# Without "triton", which computes in float32 on a GPU, or in Triton's interpreter: tests/interpreted has it.
WAYS = [*(name for name in BACKENDS if name != "triton"), "chunked, small tiles", "products, small tiles"]


DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@contextmanager
def record() -> Iterator[list[str]]:
    """The names of the implementations that run meanwhile."""
    ran: list[str] = []

    def spy(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def runs(*given: Any) -> Any:
            ran.append(name)
            return run(*given)

        return runs

    def spy_on_kept(run: Callable[..., Any]) -> Callable[..., Any]:
        def runs(program: dispatch.Program, *given: Any, **more: Any) -> Any:
            known = len(ran)
            found = run(program, *given, **more)
            ran[known:] = [program.name] * (found is not None)
            return found

        return runs

    with pytest.MonkeyPatch.context() as patch:
        for method in ("run_on_cpu", "run_on_device"):
            patch.setattr(dispatch.Program, method, spy_on_kept(getattr(dispatch.Program, method)))
        for name, backend in list(BACKENDS.items()):
            patch.setitem(BACKENDS, name, replace(backend, run=spy(name, backend.run)))
        yield ran


@contextmanager
def chosen(name: str) -> Iterator[str]:
    """Let "auto" take an implementation, as of `way`: the road of users, on which programs are kept."""
    first = implementations._find_fastest
    with way(name) as impl, pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "_PROGRAMS", {})  # those of this choice are kept apart
        patch.setattr(
            implementations,
            "_find_fastest",
            lambda problem, runs, *more: impl if runs(impl) else first(problem, runs, *more),
        )
        yield impl


# --- what tests are run over

# One score of each pair function, and one whose support ends: each has code of its own in an implementation.
KINDS = ["scaled dot", "additive", "gaussian", "epanechnikov"]


def _kind(score: scores.Score) -> str:
    if score.pair == "distance":
        return "gaussian" if score.profile == "gaussian" else "epanechnikov"
    return "additive" if score.pair == "additive" else "scaled dot"


_KIND_OF = {name: _kind(case.make()) for name, case in CASES.items()}
WITH_STATES = [w for w in WAYS if w != "sdpa"]
# The kernels for few queries take operands as they are: neither traced nor broadcast.
TRACED = [w for w in WAYS if w != "numba-few"]
# Those that take every call.
GENERAL = [w for w in WITH_STATES if w in TRACED and not w.startswith("products")]
# PyTorch's fused kernels, and the compiled ones for few queries, take no more than this.
SDPA_RESTRICTIONS = ["none", "lengths", "lengths above 0", "mask", "mask a head", "mask of keys", "numbers"]
FEW_RESTRICTIONS = ["none", "lengths", "lengths above 0", "lengths a query", "causal"]


def runs(way: str, case: str, restriction: str = "none", dtype: torch.dtype = torch.float64) -> bool:
    """Whether an implementation must run a call: the promise that `test_what_must_run_runs` holds it to."""
    if way.startswith("products"):  # by factors in float16, which are exact enough for these
        return case == "additive" and dtype.itemsize == 2
    if case == "dot, capped" and way in ("sdpa", "numba-few"):
        return False
    if way == "sdpa":
        return _KIND_OF[case] == "scaled dot" and restriction in SDPA_RESTRICTIONS
    return way != "numba-few" or (_KIND_OF[case] != "epanechnikov" and restriction in FEW_RESTRICTIONS)


def pairwise(
    dimensions: dict[str, Sequence[Any]], valid: Callable[..., bool] = lambda **_: True
) -> list[tuple[Any, ...]]:
    """So many combinations that every two values of two dimensions meet in one of them, if they ever may.

    Greedy, and the same at every call: the first pair that is missing, in the combination that has most of the others
    that are missing.

    Args:
        dimensions: each dimension's values, by its name.
        valid: whether a combination, by names, may be.
    """
    every = [row for row in product(*dimensions.values()) if valid(**dict(zip(dimensions, row, strict=True)))]
    having: dict[tuple[int, Any, int, Any], list[tuple[Any, ...]]] = {}
    for row in every:
        for pair in _pairs(row):
            having.setdefault(pair, []).append(row)
    missing, chosen = dict.fromkeys(having), []
    while missing:
        best = max(having[next(iter(missing))], key=lambda row: sum(pair in missing for pair in _pairs(row)))
        chosen.append(best)
        for pair in _pairs(best):
            missing.pop(pair, None)
    return sorted(chosen, key=every.index)


def _pairs(row: tuple[Any, ...]) -> list[tuple[int, Any, int, Any]]:
    return [(i, a, j, b) for (i, a), (j, b) in combinations(enumerate(row), 2)]


def over(
    *, ways: Sequence[str] = WAYS, cases: Sequence[str] = tuple(CASES), under: str = "none",
    valid: Callable[..., bool] = lambda **_: True, **dimensions: Sequence[Any],
) -> Decorator:  # fmt: skip
    """Run a test over every pair of implementation, score and further dimensions, of what must run.

    An implementation has code for each kind of score, so that the two count as one dimension here: each kind in each
    implementation meets every value of the others.

    Args:
        ways: implementations.
        cases: scores.
        under: the restriction that the test makes its calls with, where that is no dimension.
        valid: which combinations there are, of those that must run.
        dimensions: the further arguments of the test, and their values.
    """

    def may_be(engine: tuple[str, str], case: str, **more: Any) -> bool:
        way, kind = engine
        fits = _KIND_OF[case] == kind and runs(way, case, more.get("restriction", under), more.get("dtype", DTYPES[0]))
        return fits and valid(way=way, case=case, **more)

    engines = [(way, kind) for way in ways for kind in KINDS]
    rows = pairwise({"engine": engines, "case": cases, **dimensions}, may_be)
    return _loop(("way", "case", *dimensions), [(engine[0], case, *more) for engine, case, *more in rows])


def every_case(restriction: str = "none") -> Decorator:
    """Every score in every implementation that must run it."""
    return _loop(("way", "case"), [(w, c) for w in WAYS for c in CASES if runs(w, c, restriction)])


def every_kind(restriction: str = "none", ways: Sequence[str] = WAYS) -> Decorator:
    """One score of each kind in every implementation that must run it."""
    return _loop(("way", "case"), [(w, c) for w in ways for c in KINDS if runs(w, c, restriction)])


def _loop(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Decorator:
    """Run a test over rows of arguments, an item for each implementation."""

    def over_rows(test: Callable[..., None]) -> Callable[..., None]:
        own = {way: [row for row in rows if row[0] == way] for way in dict.fromkeys(row[0] for row in rows)}

        def run(way: str, **fixtures: Any) -> None:
            each(names, own[way])(test)(**fixtures)

        decorated: Callable[..., None] = pytest.mark.parametrize("way", own)(_signed(run, test, names[1:]))
        return decorated

    return over_rows


def each(names: str | Sequence[str], rows: Iterable[Any], **_: Any) -> Decorator:
    """`pytest.mark.parametrize` within one item, since an item costs more than most rows; a failure says its row."""
    names, several = ([names], False) if isinstance(names, str) else (names, True)

    def over_rows(test: Callable[..., None]) -> Callable[..., None]:
        def run(**fixtures: Any) -> None:
            for row in rows:
                given = dict(zip(names, row if several else (row,), strict=True))
                random.seed(0)
                torch.manual_seed(0)
                try:
                    test(**given, **fixtures)
                except BaseException as error:
                    error.add_note(", ".join(f"{name}={value}" for name, value in given.items()))
                    raise

        return _signed(run, test, names)

    return over_rows


def _signed(run: Callable[..., None], test: Callable[..., None], without: Sequence[str]) -> Callable[..., None]:
    """`run` as pytest is to see it: the test, with fewer arguments."""
    wrapped: Callable[..., None] = wraps(test)(run)
    own = [given for name, given in inspect.signature(test).parameters.items() if name not in without]
    wrapped.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return wrapped


def cells_said(doc: str | None) -> int:
    """The number of cells that a table of crossings says it has, in its first paragraph."""
    (said,) = re.findall(r"([\d,]+) cells", (doc or "").partition("\n\n")[0])
    return int(said.replace(",", ""))


def assert_refused(way: str, made: Call, **more: Any) -> None:
    """The implementation says why it does not run this call, and does not."""
    assert made.obstacles(way.split(",")[0], **more)
    with pytest.raises(ValueError, match="cannot run this call"):
        made.run(way, **more)


def seen_pairs(made: Call) -> Tensor:
    """Who sees whom, (B, H, n, m)."""
    return visible(made.restricted, (BATCH, HEADS), made.query.shape[-2], made.key.shape[-2])
