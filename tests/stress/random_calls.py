"""Random calls of any kind: a signature for each number, and of each three calls with other numbers.

All arguments of a call are drawn, and what PyTorch does with it (`TRANSFORMS`): `properties` has the command line.

What they should give, `oracle` says.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

import dikkat
from dikkat import scores

SIZES = (1, 1, 2, 3, 5, 7, 11, 13)
WIDTHS = (1, 2, 3, 5, 7, 8, 8, 13, 16)
DTYPES = (torch.float32,) * 5 + (torch.float64,) * 3 + (torch.float16, torch.bfloat16)
KINDS = ("dot", "scaled dot", "bilinear", "additive", "gaussian", "boxcar", "epanechnikov", "triangular")
IMPLS = ("auto",) * 4 + ("reference", "chunked", "sdpa", "numba")
SMOOTH = ("dot", "scaled dot", "bilinear", "additive", "gaussian")
ENTRIES = ("attend",) * 4 + ("state", "weights", "memory", "layer")
# What is done with a call, mostly nothing: its gradient is taken anyway, where it has one.
TRANSFORMS = ("",) * 6 + ("checkpoint", "autocast", "jvp", "vmap", "second")
OPERANDS = ("query", "key", "value")
# PyTorch differentiates forwards in one thread at a time.
_FORWARD_MODE = Lock()
# Calls of a signature: what dikkat finds out at the first serves the others.
ROUNDS = 3


@dataclass
class Call:
    """One call, ready to be made."""

    index: int
    round: int
    dtype: torch.dtype
    kind: str
    impl: str
    entry: str
    query: Tensor
    key: Tensor
    value: Tensor
    score: scores.Score
    limits: dict[str, Any]
    lead: tuple[int, ...]
    return_weights: bool
    dropout: float
    upstream: np.ndarray | None
    hidden: str
    transform: str
    leaves: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def visible(self) -> np.ndarray:
        """(*lead, n, m): who sees whom."""
        return visible(self)

    def describe(self) -> str:
        limits = {n: tuple(t.shape) if isinstance(t, Tensor) else t for n, t in self.limits.items()}
        tensors = {
            n: (tuple(t.shape), t.stride())
            for n, t in (("query", self.query), ("key", self.key), ("value", self.value))
        }
        return (
            f"call {self.round} of signature {self.index}: "
            f"{self.entry}, {self.kind}, {self.dtype}, impl={self.impl!r}, {tensors}, {limits}, "
            f"weights={self.return_weights}, dropout={self.dropout}, hidden={self.hidden}, leaves={list(self.leaves)}, "
            f"transform={self.transform!r}"
        )


# The generator ------------------------------------------------------------------------------------------------------


def make(seed: int, index: int, *, fences: bool = False) -> list[Call]:
    """The calls of a signature.

    Args:
        seed: of the run.
        index: of the signature.
        fences: whether each tensor lies between NaN and huge numbers, which a read outside of it would show.
    """
    chance = np.random.default_rng((seed, index))

    def one_of(choices: Any) -> Any:
        return choices[int(chance.integers(len(choices)))]

    def happens(p: float) -> bool:
        return bool(chance.random() < p)

    dtype, kind, entry = one_of(DTYPES), one_of(KINDS), one_of(ENTRIES)
    lead = tuple(int(n) for n in chance.integers(1, 4, size=one_of((0, 1, 1, 2))))
    queries, keys = (0 if happens(0.01) else one_of(SIZES) for _ in range(2))
    key_size, values = one_of(WIDTHS), 0 if happens(0.01) else one_of(WIDTHS)
    query_size = one_of(WIDTHS) if kind in ("bilinear", "additive") else key_size
    wide = happens(0.2)

    def shape_of(*shape: int) -> tuple[int, ...]:
        own = tuple(1 if happens(0.2) else n for n in lead)
        own = own[len(own) - int(chance.integers(len(own) + 1)) :] if happens(0.1) else own
        return (*own, *shape)

    shapes = [shape_of(queries, query_size), shape_of(keys, key_size), shape_of(keys, values)]
    if entry == "weights":  # which takes no values
        shapes[2] = (keys, 1)
    sizes = [_magnitude(chance, dtype, wide) for _ in shapes]
    score = _score(chance, kind, query_size, key_size, dtype)
    wanted = {"valid_lens": 0.45, "mask": 0.15, "causal": 0.12, "key_bias": 0.15, "exclude": 0.1}
    wanted |= {"bias": 0.12, "window": 0.08, "segment_ids": 0.08} | ({} if entry == "layer" else {"sink": 0.1})
    wanted = {name: p for name, p in wanted.items() if happens(p)}
    layouts = [int(n) for n in chance.integers(8, size=4)]
    # The leading dimensions of the call are those that its tensors have, and not those that it was drawn with.
    lead = np.broadcast_shapes(*(shape[:-2] for shape in shapes))
    limits = {name: _limit(name, lead, queries, keys, dtype, layouts[3], chance) for name in wanted}
    hidden = one_of(("", "", "nan", "inf", "-inf"))
    if entry == "memory" and set(limits) - {"valid_lens"}:  # which keys are projected with, before a step hides more
        hidden = ""
    impl, return_weights = one_of(IMPLS), entry == "weights" or (entry != "state" and happens(0.4))
    dropout = float(chance.random()) if entry == "attend" and happens(0.03) else 0.0
    leaves = [name for name in ("query", "key", "value") if happens(0.7)]
    leaves += [name for name in ("bias", "key_bias", "sink") if happens(0.5)]
    transform = one_of(TRANSFORMS)
    if dropout or (transform == "autocast" and kind in ("bilinear", "additive")):  # which rounds what is projected
        transform = ""
    learned = getattr(score, "learnable", False)  # bandwidths, whose gradient the oracle does not know
    if transform == "second" and (wide or hidden or learned or dtype != torch.float64 or kind not in SMOOTH):
        transform = ""  # there are no second differences of these
    if happens(0.25):  # what is trained is not always attention
        leaves = []
        score.requires_grad_(False)
    if fences:
        for parameter in score.parameters():
            parameter.data = _fenced(parameter.data, index)
    calls = []
    for number in range(ROUNDS):
        tensors = []
        for shape, size, how in zip(shapes, sizes, layouts, strict=False):
            tensor = torch.from_numpy(chance.standard_normal(shape) * size)
            tensor = tensor.clamp(-6e4, 6e4) if dtype == torch.float16 else tensor
            tensors.append(_strided(how, tensor.to(dtype)))
        call = Call(
            index, number, dtype, kind, impl, entry, *tensors, score, {name: draw() for name, draw in limits.items()},
            tuple(lead), return_weights, dropout, None, hidden, transform,
        )  # fmt: skip
        if hidden:
            _poison(call, float(hidden))
        if fences:
            call.query, call.key, call.value = (_fenced(t, index) for t in (call.query, call.key, call.value))
            call.limits = {n: _fenced(t, index) if isinstance(t, Tensor) else t for n, t in call.limits.items()}
        for name in leaves:
            tensor = getattr(call, name) if name in OPERANDS else call.limits.get(name)
            if tensor is not None and not (name == "value" and entry == "weights"):
                call.leaves[name] = tensor.requires_grad_()
        call.leaves |= {name: parameter for name, parameter in score.named_parameters() if parameter.requires_grad}
        call.upstream = chance.standard_normal((*lead, queries, keys if entry == "weights" else values))
        calls.append(call)
    return calls


def _magnitude(chance: np.random.Generator, dtype: torch.dtype, wide: bool) -> float:
    if not wide:
        return float(10.0 ** chance.uniform(-1.5, 1))
    low, high = {torch.float16: (-7, 4), torch.float64: (-310, 30)}.get(dtype, (-40, 30))
    return float(10.0 ** chance.uniform(low, high))


def _score(chance: np.random.Generator, kind: str, query: int, key: int, dtype: torch.dtype) -> scores.Score:
    if kind == "dot":
        return scores.Dot()
    if kind == "scaled dot":
        return scores.ScaledDot()
    if kind == "bilinear":
        made: scores.Score = scores.Bilinear(key, query)
    elif kind == "additive":
        made = scores.Additive(key, query, WIDTHS[int(chance.integers(len(WIDTHS)))])
    else:
        sigma = float(10.0 ** chance.uniform(-1, 1.5))
        bandwidth = sigma if chance.random() < 0.7 else (sigma * chance.uniform(0.5, 2, size=key)).tolist()
        learnable = {} if kind == "boxcar" else {"learnable": bool(chance.random() < 0.5)}
        return getattr(scores, kind.capitalize())(bandwidth, **learnable).to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.from_numpy(chance.standard_normal(tuple(parameter.shape))))
    return made.to(dtype)


def _limit(
    name: str, lead: tuple[int, ...], queries: int, keys: int, dtype: torch.dtype, how: int, chance: np.random.Generator
) -> Callable[[], Any]:
    """What draws a restriction again and again, in one shape."""

    def shape(*own: int) -> tuple[int, ...]:
        full = tuple(1 if chance.random() < 0.2 else n for n in (*lead, *own))
        return full[int(chance.integers(len(lead) + 1)) :] if chance.random() < 0.3 else full

    if name == "causal":
        return lambda: True
    if name == "valid_lens":
        own = (*lead[:1], *(() if chance.random() < 0.7 else (queries,)))
        # All keys, now and then; mostly none without a key.
        low = int(chance.integers(min(1, keys) if chance.random() < 0.8 else 0, keys + 1))
        low = keys if chance.random() < 0.2 else low
        kind = torch.int32 if chance.random() < 0.2 else torch.int64
        return lambda: torch.from_numpy(chance.integers(low, keys + 1, size=own)).to(kind)
    if name == "mask":
        own = shape(queries, keys)
        return lambda: _strided(how, torch.from_numpy(chance.random(own) < 0.7))
    if name == "exclude":
        own = shape(queries)
        return lambda: torch.from_numpy(chance.integers(-1, keys, size=own))
    if name == "window":
        sides = [None if chance.random() < 0.3 else int(chance.integers(keys + 1)) for _ in range(2)]
        return lambda: tuple(sides)
    if name == "segment_ids":
        return lambda: tuple(_runs(chance, (*lead[:1], count)) for count in (queries, keys))
    own = {"bias": lambda: shape(queries, keys), "sink": lambda: shape(1)[:-1]}.get(
        name, lambda: (*shape(1)[:-1], keys)
    )()
    kind = torch.float32 if dtype in (torch.float16, torch.bfloat16) and chance.random() < 0.5 else dtype

    def bias() -> Tensor:
        drawn = chance.standard_normal(own) * 3
        if name != "sink":
            drawn[chance.random(own) < 0.1] = -math.inf
        return _strided(how if name == "bias" else 7, torch.from_numpy(np.asarray(drawn)).to(kind))

    return bias


def _runs(chance: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """Numbers of segments, those of one side by side."""
    cuts = chance.random(shape) < 0.3
    return torch.from_numpy(cuts.cumsum(-1) * (1 if chance.random() < 0.5 else -3))


def _fenced(tensor: Tensor, index: int) -> Tensor:
    """The same numbers in the same strides, between others: NaN, or numbers that are as large as the type has them."""
    tensor = tensor.detach()
    if not tensor.numel():
        return tensor
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    fence = 4 * span + 64  # as far as an operand that others share would be read for each of them
    if tensor.dtype == torch.bool:
        other: Any = True
    elif tensor.is_floating_point():
        other = math.nan if index % 2 else torch.finfo(tensor.dtype).max / 2
    else:
        other = 2**20
    room = torch.full((span + 2 * fence,), other, dtype=tensor.dtype)
    made = room.as_strided(tensor.shape, tensor.stride(), fence)
    if 0 in tensor.stride():  # rows that share memory are not written to one by one
        room[fence : fence + span] = tensor.as_strided((span,), (1,))
    else:
        made.copy_(tensor)
    return made


def _strided(how: int, tensor: Tensor) -> Tensor:
    """The same numbers, otherwise in memory: turned, with gaps, from behind others, heads inside, or as they are."""
    if how == 0:
        return tensor.mT.contiguous().mT
    if how == 1:
        return tensor.repeat_interleave(2, -1)[..., ::2]
    if how == 2:
        return torch.nn.functional.pad(tensor, (3, 1))[..., 3 : tensor.shape[-1] + 3]
    if how == 3 and tensor.ndim > 2:
        return tensor.transpose(-2, -3).contiguous().transpose(-2, -3)
    if how == 4 and tensor.ndim == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if how == 5 and tensor.ndim > 2 and tensor.shape[0] > 1:
        return tensor[:1].clone().expand(tensor.shape)
    return tensor


def visible(call: Call) -> np.ndarray:
    """(*lead, n, m): who sees whom, by the words of the contract."""
    lead, n, m = call.lead, call.query.shape[-2], call.key.shape[-2]
    shown = np.ones((*lead, n, m), dtype=bool)
    row, col = np.arange(n)[:, None], np.arange(m)
    limits = call.limits
    lens = limits.get("valid_lens")
    if lens is not None:
        per_row = lens.numpy() if lens.ndim == len(lead[:1]) + 1 else lens.numpy()[..., None]
        ones = (1,) * (len(lead) - 1)
        per_row = per_row.reshape(*lead[:1], *ones, per_row.shape[-1])
        shown &= col < per_row[..., None]
    if "mask" in limits:
        shown &= limits["mask"].numpy()
    if "causal" in limits:
        shown &= col <= row + m - n
    if "window" in limits:
        left, right = limits["window"]
        shown &= (left is None or col >= row + m - n - left) & (right is None or col <= row + m - n + right)
    if "segment_ids" in limits:
        of_row, of_col = (each.numpy() for each in limits["segment_ids"])
        same = of_row[..., :, None] == of_col[..., None, :]
        shown &= same.reshape(*same.shape[:-2], *(1,) * (len(lead) - len(lead[:1])), n, m)
    if "bias" in limits:
        shown &= numbers_of(limits["bias"], np.float64) != -np.inf
    if "key_bias" in limits:
        shown &= (numbers_of(limits["key_bias"], np.float64) != -np.inf)[..., None, :]
    if "exclude" in limits:
        shown &= col != limits["exclude"].numpy()[..., None]
    return shown


def _poison(call: Call, how: float) -> None:
    """NaN or ∞ where no query of those who share the row may look, and in queries that may look nowhere."""
    shown = call.visible
    for name, seen in (("query", shown.any(-1)), ("key", shown.any(-2)), ("value", shown.any(-2))):
        tensor = getattr(call, name)
        seen = summed(seen, tuple(tensor.shape[:-1])) > 0
        setattr(call, name, _with(tensor, ~seen, how))


def _with(tensor: Tensor, rows: np.ndarray, how: float) -> Tensor:
    """In the same layout, but where rows share memory: those are told apart first."""
    if not rows.any():
        return tensor
    if 0 in tensor.stride():
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    tensor[torch.from_numpy(rows)] = how
    return tensor


# The calls ----------------------------------------------------------------------------------------------------------


def run(call: Call) -> dict[str, Tensor]:
    """What dikkat gives: results and gradients, by name; of a transform that asks for others, a sum of these."""
    if call.transform == "jvp" and call.leaves:
        return _along(call)
    if call.transform == "checkpoint":
        results = checkpoint(_results, call, use_reentrant=False)
    else:
        with torch.autocast("cpu", torch.bfloat16, enabled=call.transform == "autocast"):
            results = _results(call)
    out = {name: t.detach() for name, t in results.items()}
    main, leaves = results[main_of(call)], list(call.leaves.values())
    if not main.requires_grad or not leaves:
        return out
    if call.transform == "second":
        grads = torch.autograd.grad(main, leaves, upstream_of(call, main), create_graph=True, allow_unused=True)
        by = [(leaf, grad) for leaf, grad in zip(leaves, grads, strict=True) if grad is not None]
        total = sum(((grad * direction(leaf)).sum() for leaf, grad in by), torch.zeros(()))
        if not total.requires_grad:
            return out
        seconds = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
        steps = [(second * direction(leaf)).sum() for leaf, second in zip(leaves, seconds, strict=True)]
        return out | {"second": torch.stack(steps).sum().detach()}
    grads = torch.autograd.grad(main, leaves, upstream_of(call, main), allow_unused=True)
    return out | {f"grad {n}": g for n, g in zip(call.leaves, grads, strict=True) if g is not None}


def main_of(call: Call) -> str:
    return "weights" if call.entry == "weights" else "output"


def upstream_of(call: Call, main: Tensor) -> Tensor:
    """The gradient that comes from above."""
    upstream = torch.from_numpy(np.broadcast_to(call.upstream, main.shape).copy()).to(main.dtype)
    return upstream.mT.contiguous().mT if call.index % 4 == 0 else upstream


def direction(tensor: Tensor) -> Tensor:
    """A direction to go in from a tensor; from what is not finite, none."""
    return torch.where(tensor.detach().isfinite(), tensor.detach().cos(), 0.0)


def moved(call: Call, tensors: dict[str, Any]) -> Call:
    """The call with other tensors in the place of some of its own, by name."""
    named = {name: tensor for name, tensor in tensors.items() if name in OPERANDS}
    limits = call.limits | {name: tensor for name, tensor in tensors.items() if name in call.limits}
    return replace(call, limits=limits, **named)


def _along(call: Call) -> dict[str, Tensor]:
    """What comes back of the derivative in a direction, which is all gradients in that direction."""
    inputs = {name: leaf for name, leaf in call.leaves.items() if name in OPERANDS or name in call.limits}
    with _FORWARD_MODE, forward_ad.dual_level():
        # A tangent is laid out as its tensor is, and none of its rows may share memory.
        own = {
            name: leaf.detach().contiguous() if 0 in leaf.stride() else leaf.detach() for name, leaf in inputs.items()
        }
        duals = {name: forward_ad.make_dual(leaf, direction(leaf)) for name, leaf in own.items()}
        results = _results(moved(call, duals))
        main = results[main_of(call)]
        primal, tangent = forward_ad.unpack_dual(main)
        out = {name: forward_ad.unpack_dual(each).primal.detach() for name, each in results.items()}
    along = (
        torch.zeros(()) if tangent is None else (upstream_of(call, primal).double() * tangent.detach().double()).sum()
    )
    return out | {"jvp": along.detach().to(primal.dtype)}


def run_together(calls: list[Call]) -> list[dict[str, Tensor]]:
    """`run` of all calls of a signature at once, by `torch.vmap`."""
    call = calls[0]
    every = [{name: getattr(each, name) for name in OPERANDS} | each.limits for each in calls]
    stacked = {
        name: tree_map(lambda *each: torch.stack(each), *(tensors[name] for tensors in every))
        for name, one in every[0].items()
        if name not in ("causal", "window") and not (name == "value" and call.entry == "weights")
    }
    leaves = [name for name in call.leaves if name in stacked]
    results = torch.vmap(lambda tensors: _results(moved(call, tensors)))(stacked)
    main = results[main_of(call)]
    grads: tuple[Tensor | None, ...] = ()
    if main.requires_grad and leaves:
        above = torch.stack([upstream_of(each, main[0]) for each in calls])
        grads = torch.autograd.grad(main, [stacked[name] for name in leaves], above, allow_unused=True)
    named = {f"grad {name}": grad for name, grad in zip(leaves, grads, strict=False) if grad is not None}
    return [{name: each[at].detach() for name, each in (results | named).items()} for at in range(len(calls))]


def _results(call: Call) -> dict[str, Tensor]:
    """The results of a call, by name."""
    given = call.query, call.key, call.value
    more: dict[str, Any] = {"score": call.score, "impl": call.impl}
    if call.entry == "state":
        found: Any = dikkat.attention_state(*given, **more, **call.limits)
        return {"output": found.mean, "lse": found.lse}
    if call.entry == "weights":
        return {"weights": dikkat.attention_weights(*given[:2], **more, **call.limits)}
    found = _entry(call)(*given, **more, **call.limits, return_weights=call.return_weights)
    return dict(zip(("output", "weights"), found if call.return_weights else (found,), strict=False))


def _entry(call: Call) -> Callable[..., Any]:
    if (
        call.entry == "memory"
        and (lens := call.limits.get("valid_lens")) is not None
        and lens.ndim != len(call.lead[:1])
    ):
        return dikkat.attend
    if call.entry == "memory":

        def through_memory(query: Tensor, key: Tensor, value: Tensor, *, score: Any, **more: Any) -> Any:
            own = np.broadcast_shapes(key.shape[:-2], value.shape[:-2])
            lens = more.pop("valid_lens", None)
            if lens is not None and (tuple(own[:1]) != call.lead[:1] or len(own) != len(call.lead)):
                return dikkat.attend(query, key, value, score=score, valid_lens=lens, **more)
            return dikkat.attend_memory(query, dikkat.prepare(key, value, score=score, valid_lens=lens), **more)

        return through_memory
    if call.entry == "layer":

        def through_layer(query: Tensor, key: Tensor, value: Tensor, *, score: Any, **more: Any) -> Any:
            layer = dikkat.DotProductAttention()
            layer.score = score
            return layer(query, key, value, **more)

        return through_layer

    def plainly(*given: Tensor, **more: Any) -> Any:
        return dikkat.attend(*given, dropout=call.dropout, **more)

    return plainly


def summed(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    array = array.sum(tuple(range(array.ndim - len(shape)))) if array.ndim > len(shape) else array
    axes = tuple(i for i, (have, want) in enumerate(zip(array.shape, shape, strict=True)) if have != want)
    return array.sum(axes, keepdims=True) if axes else array


def numbers_of(tensor: Tensor, wide: Any) -> np.ndarray:
    tensor = tensor.detach()
    return (tensor if tensor.dtype == torch.float64 else tensor.double()).numpy().astype(wide)
