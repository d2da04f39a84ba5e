"""The CPU kernels beyond the kit's tiny calls: several tiles, magnitudes, odd shapes, types, NaN, memories."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dikkat
import kit
from dikkat import scores

BATCH, HEADS = 3, 2
# Queries, keys and values' features: a tile is 32 rows and 256 keys, 128 in float64; values are narrow, or wide.
LARGE = [(37, 521, 3), (67, 293, 21)]
FLOAT32_EPS, FLOAT32_LEAST = 2.0**-23, 2.0**-149


class Projected(scores.Score):
    """Additive, over features that come projected."""

    pair = "additive"

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.v = torch.nn.Parameter(weight)

    def pair_weight(self) -> Tensor:
        return self.v


# A score and its (query, key) features.
SCORES: dict[str, tuple[Callable[[], scores.Score], int, int]] = {
    "additive": (lambda: scores.Additive(5, 7, 19), 7, 5),
    "gaussian": (lambda: scores.Gaussian([1.0, 1.5, 2.0, 2.5, 3.0], learnable=True), 5, 5),
    "epanechnikov": (lambda: scores.Epanechnikov(3.25, learnable=True), 5, 5),
    "triangular": (lambda: scores.Triangular(3.25, learnable=True), 5, 5),
    "scaled dot": (scores.ScaledDot, 19, 19),
}
PAIRS = ["additive", "gaussian", "scaled dot"]


def _lens(n: int, m: int) -> Tensor:
    lens = torch.randint(0, m + 1, (BATCH, n))
    lens[0, 0] = 0
    return lens


def _mask(n: int, m: int) -> Tensor:
    mask = torch.rand(BATCH, 1, n, m) < 0.6
    mask[:, :, 3] = False
    return mask


def _bias(m: int, *lead: int) -> Tensor:
    bias = torch.randn(*lead, m, dtype=torch.float64)
    bias[..., 1::7] = -math.inf
    return bias.requires_grad_()


def _segments(m: int) -> Tensor:
    return torch.randint(0, 5, (BATCH, m)).sort(-1, descending=True).values


RESTRICTIONS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "none": lambda n, m: {},
    "lengths": lambda n, m: {"valid_lens": torch.tensor([m - 7, 0, 11])},
    "lengths a query": lambda n, m: {"valid_lens": _lens(n, m)},
    "mask": lambda n, m: {"mask": _mask(n, m)},
    "causal": lambda n, m: {"causal": True},
    "bias": lambda n, m: {"key_bias": _bias(m, BATCH, 1)},
    "window": lambda n, m: {"window": (13, 5)},
    "segments": lambda n, m: {
        "segment_ids": (torch.arange(BATCH * n).reshape(BATCH, n) % 5, _segments(m)),
        "causal": True,
    },
    "pair bias": lambda n, m: {"bias": _bias(m, HEADS, n)},
    "pair bias for all": lambda n, m: {"bias": _bias(n, m).mT, "causal": True, "key_bias": _bias(m)},
    "pair bias of keys": lambda n, m: {"bias": _bias(m, BATCH, 1, 1)},
    "exclude": lambda n, m: {"exclude": torch.randint(-1, m, (BATCH, 1, n))},
    "all": lambda n, m: {
        "valid_lens": _lens(n, m), "mask": torch.rand(HEADS, n, m) < 0.8, "causal": True, "key_bias": _bias(m, HEADS),
        "exclude": torch.randint(-1, m, (n,)),
    },
}  # fmt: skip

Given = tuple[scores.Score, dict[str, Tensor], dict[str, Any]]


def given_(case: str, restriction: str, n: int, m: int, d_v: int, seed: int = 0) -> Given:
    """A score, and query, key and value, which share and have heads each in its own way."""
    torch.manual_seed(seed)
    make, d_q, d_k = SCORES[case]
    shapes = {"query": (BATCH, HEADS, n, d_q), "key": (BATCH, 1, m, d_k), "value": (HEADS, m, d_v)}
    leaves = {name: torch.randn(shape, dtype=torch.float64, requires_grad=True) for name, shape in shapes.items()}
    return make().double(), leaves, RESTRICTIONS[restriction](n, m)


def upstream(like: Tensor) -> Tensor:
    return kit.upstream_of(like).to(like.dtype)


def gradients(loss: Tensor, score: scores.Score, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    wanted = {n: t for n, t in (leaves | dict(score.named_parameters())).items() if t.requires_grad}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return {n: torch.zeros_like(wanted[n]) if g is None else g for n, g in zip(wanted, found, strict=True)}


def everything(made: Given, impl: str) -> dict[str, Tensor]:
    """State, weights, and the gradients through all of them."""
    score, leaves, restricted = made
    state = dikkat.attention_state(**leaves, score=score, impl=impl, **restricted)
    out, weights = dikkat.attend(**leaves, score=score, impl=impl, return_weights=True, **restricted)
    loss = (state.mean * upstream(state.mean)).sum() + torch.where(state.lse.isinf(), 0.0, state.lse).sin().sum()
    loss = loss + out.cos().sum() + (weights * upstream(weights)).sum()
    grown = {n: t for n, t in restricted.items() if isinstance(t, Tensor) and t.requires_grad}
    values = {"mean": state.mean, "lse": state.lse, "out": out, "weights": weights}
    return values | gradients(loss, score, leaves | grown)


def simple(made: Given, impl: str, **more: Any) -> dict[str, Tensor]:
    """The output and its gradients."""
    score, leaves, restricted = made
    out = dikkat.attend(**leaves, score=score, impl=impl, **restricted, **more)
    return {"out": out} | gradients((out * upstream(out)).sum(), score, leaves)


def furthest(came: Tensor, exact: Tensor) -> Tensor:
    """The largest distance; −∞ is not far from −∞, and NaN is far from everything."""
    away = (came.double() - exact.double()).abs().masked_fill(came == exact, 0.0)
    return away.nan_to_num(nan=math.inf).max() if away.numel() else away.new_zeros(())


def assert_close(came: dict[str, Tensor], exact: dict[str, Tensor], rtol: float = 1e-11, atol: float = 0.0) -> None:
    """Each tensor, relative to its own scale; ``atol`` where summands of size one may cancel in both."""
    assert came.keys() == exact.keys()
    for name, tensor in came.items():
        assert tensor.shape == exact[name].shape, name
        scale = exact[name].nan_to_num(neginf=0.0).abs().max() if tensor.numel() else 0.0
        error = furthest(tensor.detach(), exact[name].detach())
        assert error <= rtol * scale + atol, f"{name}: off by {error:.3g} of {scale:.3g}"


# --- sizes beyond every tile


@kit.each(
    ("case", "restriction", "size"),
    kit.pairwise({"case": list(SCORES), "restriction": list(RESTRICTIONS), "size": LARGE}),
)
def test_several_tiles(case: str, restriction: str, size: tuple[int, int, int]) -> None:
    made = given_(case, restriction, *size)
    assert_close(everything(made, "numba"), everything(made, "reference"))


@kit.each(
    ("case", "restriction", "size"), kit.pairwise({"case": list(SCORES), "restriction": ["none", "all"], "size": LARGE})
)
def test_several_tiles_in_float32(case: str, restriction: str, size: tuple[int, int, int]) -> None:
    score, leaves, restricted = given_(case, restriction, *size)
    single = {n: t.detach().float().requires_grad_() for n, t in leaves.items()}
    restricted = {n: kit._leaf(t, torch.float32) for n, t in restricted.items()}
    rounded = {n: t.detach().double().requires_grad_() for n, t in single.items()}
    score = score.float()
    came = everything((score, single, restricted), "numba")
    plain = everything((score, single, restricted), "reference")
    assert all(t.dtype == torch.float32 for t in came.values())
    wide = {n: kit._leaf(t, torch.float64) for n, t in restricted.items()}
    exact = everything((score.double(), rounded, wide), "reference")
    for name, tensor in exact.items():
        scale = tensor.nan_to_num(neginf=0.0).abs().max()
        allowed = 2 * furthest(plain[name], tensor) + 64 * FLOAT32_EPS * scale
        assert furthest(came[name], tensor) <= allowed, name


# --- the error budget

QUERIES, KEYS, HIDDENS = 37, 67, 19


def _set(**places: float) -> Callable[[dict[str, Tensor]], None]:
    """One feature of one query, or key, becomes a number."""

    def change(leaves: dict[str, Tensor]) -> None:
        for name, number in places.items():
            leaves[name][1, 5, 7] = number

    return change


def _scaled(by: float, names: tuple[str, ...] = ("query", "key")) -> Callable[[dict[str, Tensor]], None]:
    def change(leaves: dict[str, Tensor]) -> None:
        for name in names:
            leaves[name] *= by

    return change


def _cancel(leaves: dict[str, Tensor]) -> None:
    """Large numbers of both signs whose sums are small, large, and 0."""
    leaves["query"][..., 3] = 1e4 * torch.randn(QUERIES).sign() + torch.arange(QUERIES)
    leaves["key"][..., 3] = 1e4 * torch.randn(KEYS).sign() - torch.arange(KEYS)


def _opposite(size: float) -> Callable[[dict[str, Tensor]], None]:
    """Sums of size one from numbers whose exponentials are far apart."""

    def change(leaves: dict[str, Tensor]) -> None:
        leaves["query"][..., ::3] -= size
        leaves["key"][..., ::3] += size

    return change


def _at_the_edge(leaves: dict[str, Tensor]) -> None:
    """Each number has its exponential, and their product is far beyond the largest number, or the smallest."""
    for name in ("query", "key"):
        leaves[name][:] = 19 * leaves[name].sign()


def _small_feature(leaves: dict[str, Tensor]) -> None:
    leaves["query"][..., 3] *= 1e-3
    leaves["key"][..., 3] *= 1e-3


def _small_but_one(leaves: dict[str, Tensor]) -> None:
    _small_feature(leaves)
    leaves["query"][1, 5, 3] = 1.0


def _small_with_an_outlier(leaves: dict[str, Tensor]) -> None:
    _scaled(0.001)(leaves)
    leaves["query"][1, 5, 7] = -1e4


def _weights(change: Callable[[Tensor], None]) -> Callable[[dict[str, Tensor]], None]:
    return lambda leaves: change(leaves["v"])


MAGNITUDES: dict[str, Callable[[dict[str, Tensor]], None]] = {
    **{f"inputs × {by}": _scaled(by) for by in (0.001, 0.01, 1.0, 4.0, 8.0, 30.0, 300.0)},
    "query × 30": _scaled(30.0, ("query",)),
    "query at 1e4": _set(query=1e4),
    "query at -1e4": _set(query=-1e4),
    "key at 1e4": _set(key=1e4),
    "key at -1e4": _set(key=-1e4),
    "both at 1e4": _set(query=1e4, key=1e4),
    "both, mixed signs": _set(query=1e4, key=-1e4 + 0.5),
    "both, mixed signs, other way": _set(query=-1e4 - 0.5, key=1e4),
    "a feature of large numbers": _cancel,
    "a small feature": _small_feature,
    "a small feature but for one": _small_but_one,
    "small with an outlier": _small_with_an_outlier,
    "at the edge": _at_the_edge,
    "as large as can be": _set(query=3e38, key=-3e38),
    "subnormal": _scaled(1e-39),
    "v with zeros": _weights(lambda v: v[::3].zero_()),
    "v with tiny entries": _weights(lambda v: v[::2].mul_(1e-30)),
    "v tiny": _weights(lambda v: v.mul_(1e-30)),
    "v large": _weights(lambda v: v.mul_(4.0)),
    "v larger": _weights(lambda v: v.mul_(64.0)),
    "v a single entry": _weights(lambda v: v[1:].zero_()),
    "v zero": _weights(lambda v: v.zero_()),
    **{f"{size:g} away, and back": _opposite(size) for size in (16.0, 24.0, 41.0, 43.5, 60.0)},
}


def dense(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As the textbook writes it: output, weights, and every tanh."""
    hidden = torch.tanh(query[:, :, None] + key[:, None])
    weights = (hidden * v).sum(-1).softmax(-1)
    return weights @ value, weights, hidden


def textbook(leaves: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    own = {n: t.to(dtype).requires_grad_() for n, t in leaves.items()}
    out = dense(**own)[0]
    grads = torch.autograd.grad(out, list(own.values()), upstream(out))
    return {"out": out.detach()} | dict(zip(own, grads, strict=True))


def absolute_sums(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """S: of each tensor the largest, and of v's gradient each feature's own."""
    wide = {n: t.double() for n, t in leaves.items()}
    out, weights, hidden = dense(**wide)
    above, value = upstream(out).abs(), wide["value"].abs()
    by_weight = above @ value.mT
    by_score = (weights * (by_weight + (weights * by_weight).sum(-1, keepdim=True)))[..., None]
    by_sum = by_score * wide["v"].abs() * (1 - hidden.square())
    return {
        "out": value.max(), "query": by_sum.sum(2).max(), "key": by_sum.sum(1).max(),
        "v": (by_score * hidden.abs()).sum((0, 1, 2)), "value": (weights.mT @ above).max(),
    }  # fmt: skip


@kit.each("magnitude", MAGNITUDES)
def test_the_error_budget(magnitude: str) -> None:
    torch.manual_seed(list(MAGNITUDES).index(magnitude))
    shapes = {"query": (2, QUERIES, HIDDENS), "key": (2, KEYS, HIDDENS), "v": (HIDDENS,), "value": (2, KEYS, 11)}
    leaves = {name: torch.randn(shape) for name, shape in shapes.items()}
    leaves["v"] /= math.sqrt(HIDDENS)  # as a layer begins
    MAGNITUDES[magnitude](leaves)
    exact, plain, sums = textbook(leaves, torch.float64), textbook(leaves, torch.float32), absolute_sums(leaves)
    made = {n: t.clone().requires_grad_() for n, t in leaves.items() if n != "v"}
    came = simple((Projected(leaves["v"].clone()), made, {}), "numba")
    for name, tensor in exact.items():
        error, plain_error = ((t[name].double() - tensor).abs() for t in (came, plain))
        # Where plain PyTorch is off as a share of S, so may ours be in each feature; and below the smallest numbers.
        least = 2 * QUERIES * KEYS * FLOAT32_LEAST
        share = (plain_error / sums[name].clamp(min=least)).max()
        allowed = (2 * share + 4 * FLOAT32_EPS) * sums[name] + least
        worst = ((error - allowed).nan_to_num(nan=math.inf)).max()
        assert worst <= 0, f"{name}: error {error.max():.3g}, plain {plain_error.max():.3g}, S {sums[name].max():.3g}"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [30, 1e4])
def test_scores_of_many_queries_whose_exponentials_no_type_holds(dtype: torch.dtype, size: float) -> None:
    """Few queries have a kernel of their own; and where gradients are wanted, another one makes the scores."""
    torch.manual_seed(7)
    leaves = {"query": (2, 71, 8), "key": (2, 307, 8), "v": (8,), "value": (2, 307, 5)}
    query, key, v, value = (torch.randn(shape, dtype=dtype) for shape in leaves.values())
    query, key = size * query, size * key
    out = dikkat.attend(query, key, value, score=Projected(v), impl="numba").detach()
    exact, *_ = dense(*(t.double() for t in (query, key, v, value)))
    assert (out - exact).abs().max() <= 64 * torch.finfo(dtype).eps * exact.abs().max()


# --- odd sizes and layouts


def plain_made(case: str, hidden: int, n: int, m: int, d_v: int, dtype: torch.dtype = torch.float64) -> Given:
    """Features that come projected, and no heads."""
    torch.manual_seed(7 * hidden + n)
    shapes = {"query": (2, n, hidden), "key": (2, m, hidden), "value": (2, m, d_v)}
    leaves = {name: torch.randn(shape, dtype=dtype, requires_grad=True) for name, shape in shapes.items()}
    score = Projected(torch.randn(hidden, dtype=dtype) / math.sqrt(hidden)) if case == "additive" else None
    return score or (scores.Gaussian(math.sqrt(hidden)) if case == "gaussian" else scores.ScaledDot()), leaves, {}


@kit.each("hidden", [1, 7, 8, 9, 17, 1031])
@kit.each("case", PAIRS)
def test_hidden_sizes(case: str, hidden: int) -> None:
    made = plain_made(case, hidden, 11, 71, 5)
    assert_close(everything(made, "numba"), everything(made, "reference"))


@kit.each(("n", "m"), [(0, 67), (11, 0), (0, 0), (1, 67), (11, 1), (1, 1)])
@kit.each("case", PAIRS)
def test_no_and_one_query_or_key(case: str, n: int, m: int) -> None:
    made = plain_made(case, 13, n, m, 5)
    came = everything(made, "numba")
    assert_close(came, everything(made, "reference"))
    if m == 0:
        assert bool((came["mean"] == 0).all())
        assert bool((came["lse"] == -math.inf).all())


@kit.each("dtype", [torch.float64, torch.float32])
@kit.each("d_v", [0, 1, 3, 4, 7, 8, 16, 17])
@kit.each("case", PAIRS)
def test_value_sizes(case: str, d_v: int, dtype: torch.dtype) -> None:
    made = plain_made(case, 13, 11, 71, d_v, dtype)
    assert_close(everything(made, "numba"), everything(made, "reference"), 1e-11 if dtype == torch.float64 else 1e-4)
