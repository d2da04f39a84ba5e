"""Every tensor of a call, under every transform of PyTorch's, in every implementation: 3,613 cells.

A cell is one call with one pair function. It comes out as the same attention in plain PyTorch (`plain`) does under the
same transform, or it is refused in the words that `REFUSALS` has for it; a cell that is refused without being listed
there is red, and so is one that is listed and runs. Of what is dear (forks, exports, compilations) `Transform.cells`
chooses some.

A recurrence with attention stands beside its equations, one sentence and one step at a time, under the same transforms.

A new tensor, transform, way or pair function is one more name in `TENSORS`, `TRANSFORMS`, `WAYS` or `SCORES`.
"""

import copy
import os
import pickle
import re
import select
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import dikkat
import kit
from dikkat import scores
from dikkat._core import implementations
from kit import BATCH, FEATURES, HEADS, HIDDENS, KEYS, QUERIES, VALUES
from recurrent import test_attentional as recurrences

Given = dict[str, Tensor]


def _numbers(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape, dtype=torch.float64)


# --- the lists that are crossed

# Each makes a tensor of the call; query, key and value are part of every one.
TENSORS: dict[str, Callable[[], Tensor]] = {
    "query": _numbers(BATCH, HEADS, QUERIES, FEATURES),
    "key": _numbers(BATCH, HEADS, KEYS, FEATURES),
    "value": _numbers(BATCH, HEADS, KEYS, VALUES),
    "bias": _numbers(HEADS, QUERIES, KEYS),
    "key_bias": _numbers(BATCH, 1, KEYS),
    "weight": _numbers(),  # of the score, in a shape of its own
    "sink": _numbers(HEADS),
    "valid_lens": lambda: torch.randint(1, KEYS + 1, (BATCH,)),
    "mask": lambda: (torch.rand(BATCH, 1, QUERIES, KEYS) < 0.6) | (torch.arange(KEYS) == 2),
    "exclude": lambda: torch.randint(-1, KEYS, (BATCH, 1, QUERIES)),
    "segment_ids": lambda: torch.randint(0, 2, (BATCH, QUERIES)),
    "offsets": lambda: torch.tensor([0, int(torch.randint(1, QUERIES, ())), QUERIES]),
}
# What goes with one of them, of the keys.
WITH = {
    "segment_ids": ("key_segments", torch.tensor([[0] * 3 + [1] * 4, [1] * 2 + [0] * 5])),
    "offsets": ("key_offsets", torch.tensor([0, 3, KEYS])),
}

# Each pair function: a score, the parameter that is its weight, and its formula's name in `kit.CASES`.
SCORES: dict[str, tuple[Callable[[], scores.Score], str, str]] = {
    "inner": (lambda: scores.Bilinear(FEATURES, FEATURES), "W_q.weight", "bilinear"),
    "additive": (lambda: scores.Additive(FEATURES, FEATURES, HIDDENS), "w_v.weight", "additive"),
    "distance": (kit.CASES["gaussian, learned"].make, "log_bandwidth", "gaussian, learned"),
}

# Those that run on a CPU and take float64, which `products` does not (`test_products.py` has it); "auto" also as it
# chooses for large calls, with whatever is fastest and no plain products.
WAYS = ["auto", "auto, large", *(name for name in implementations.BACKENDS if name not in ("triton", "products"))]


@contextmanager
def way(name: str) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        if name == "auto, large":
            patch.setattr(
                implementations, "CROSSOVERS", implementations.Crossovers(*[0] * len(implementations.Crossovers()))
            )
            patch.setattr(dikkat._core.dispatch, "_PROGRAMS", {})  # which the choice of small calls would be kept in
        yield name.partition(",")[0]


# --- the call, and the same in plain PyTorch


class Attention(torch.nn.Module):
    """A call by the names of its tensors, with the score's weight among them."""

    def __init__(self, pair: str, impl: str = "") -> None:
        super().__init__()
        make, self.weight, name = SCORES[pair]
        self.formula = kit.CASES[name].dense
        self.score, self.impl = make().double(), impl

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **more: Any) -> Tensor:
        if "weight" in more:
            parameters = {f"score.{self.weight}": more.pop("weight")}
            return torch.func.functional_call(self, parameters, (query, key, value), more)
        return self.attend(query, key, value, more)


class Ours(Attention):
    def attend(self, query: Tensor, key: Tensor, value: Tensor, more: dict[str, Any]) -> Tensor:
        more |= {"score": self.score, "impl": self.impl}
        if "offsets" in more:
            return dikkat.attend_ragged(query, key, value, more.pop("offsets"), **more)
        if "segment_ids" in more:
            more["segment_ids"] = more["segment_ids"], more.pop("key_segments")
        return dikkat.attend(query, key, value, **more)


class Plain(Attention):
    """The kit's oracle."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, more: Given) -> Tensor:
        limits: dict[str, Any] = dict(more)
        if "segment_ids" in more:
            limits["segment_ids"] = more["segment_ids"], more["key_segments"]
        seen = kit.visible(limits, (BATCH, HEADS), QUERIES, KEYS)
        if "offsets" in more:
            rows, cols = torch.arange(QUERIES), torch.arange(KEYS)
            own, of_key = ((at >= more[of][1:, None]).sum(0) for at, of in ((rows, "offsets"), (cols, "key_offsets")))
            seen = own[:, None] == of_key
        numbers = {name: more.get(name) for name in ("bias", "key_bias", "sink")}
        parameters = dict(self.score.named_parameters())
        return kit.attend_plainly(self.formula, parameters, query, key, value, seen, **numbers)[0]


def given(pair: str, name: str, module: Attention) -> tuple[Given, Tensor]:
    """The tensors of a call in which one of this name takes part, and another one for that."""
    torch.manual_seed(17 * list(SCORES).index(pair) + list(TENSORS).index(name))
    shape = dict(module.score.named_parameters())[SCORES[pair][1]].shape
    make = TENSORS[name] if name != "weight" else _numbers(*shape)
    made = {each: TENSORS[each]() for each in ("query", "key", "value")} | {name: make()}
    return made | dict([WITH[name]] if name in WITH else []), make()


# --- the transforms: each of an attention, its tensors, the name of the one that it is about, and another one for that


def leaf_of(given: Given, name: str) -> str:
    """What is differentiated by: the tensor, or the query where it has whole numbers."""
    return name if given[name].is_floating_point() else "query"


def _of(f: Attention, given: Given, name: str) -> Callable[[Tensor], Tensor]:
    return lambda tensor: f(**given | {name: tensor})


def _upstream(output: Tensor) -> Tensor:
    return kit.upstream_of(output).to(output)


def forward(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    return f(**given)


def gradient(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    leaves = {n: t.detach().clone().requires_grad_() for n, t in given.items() if t.is_floating_point()}
    out = f(**given | leaves)
    return out.detach(), torch.autograd.grad(out, list(leaves.values()), _upstream(out))


def second_gradient(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    leaf = given[by := leaf_of(given, name)].clone().requires_grad_()
    (once,) = torch.autograd.grad(f(**given | {by: leaf}).sin().sum(), leaf, create_graph=True)
    return torch.autograd.grad(once.square().sum(), leaf)


def jvp(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    leaf = given[by := leaf_of(given, name)]
    return torch.func.jvp(_of(f, given, by), (leaf,), (leaf.cos(),))


def dual(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    with forward_ad.dual_level():
        leaf = given[by := leaf_of(given, name)]
        return tuple(forward_ad.unpack_dual(f(**given | {by: forward_ad.make_dual(leaf, leaf.cos())})))


def vmap(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    return torch.vmap(_of(f, given, name))(torch.stack([given[name], other]))


def vmap_of_gradient(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    """By the tensor, and by all that the calls share: of each call its own."""
    shared = {n: t for n, t in given.items() if n != name and t.is_floating_point()}

    def loss(tensor: Tensor, shared: Given) -> Tensor:
        return f(**given | shared | {name: tensor}).sin().sum()

    by = (0, 1) if given[name].is_floating_point() else 1
    return torch.vmap(torch.func.grad(loss, by), (0, None))(torch.stack([given[name], other]), shared)


def jacobian(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    by = leaf_of(given, name)
    return torch.autograd.functional.jacobian(lambda x: f(**given | {by: x}).sum(-1).sum(1), given[by], vectorize=True)


def jacrev(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    by = leaf_of(given, name)
    return torch.func.jacrev(lambda x: f(**given | {by: x}).sum(-1).sum(1))(given[by])


def checkpointed(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    return gradient(lambda **all: checkpoint(f, use_reentrant=False, **all), given, name, other)


def autocast(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    """Of single precision, and not on the way back, as PyTorch advises."""
    single, module = {n: t.float() if t.is_floating_point() else t for n, t in given.items()}, copy.deepcopy(f).float()

    def run(**all: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return module(**all)

    out, grads = gradient(run, single, name, other)
    return out.double(), tuple(each.double() for each in grads)


def shapes(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    out, grads = gradient(f, given, name, other)
    return [torch.zeros(each.shape, dtype=each.dtype, device="cpu") for each in (out, *grads)]


def fake(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = gradient(f, {n: mode.from_tensor(t) for n, t in given.items()}, name, other)
    return [torch.zeros(each.shape, dtype=each.dtype) for each in (found[0], *found[1])]


def meta(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    return shapes(copy.deepcopy(f).to("meta"), {n: t.to("meta") for n, t in given.items()}, name, other)


def forked(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    """In a child, whose parent has used two threads, which the child has not.

    Compiled code has some of its own there, and PyTorch's matrix products would wait for ever: they get one thread.
    """
    compiled = f.impl == "numba" and f.weight == "log_bandwidth"  # which has no such product
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.rand(2**17).sin()
    gradient(f, given, name, other)  # what there is to compile, or to import, is here
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        torch.set_num_threads(2 if compiled else 1)
        try:
            out, grads = gradient(f, given, name, other)
            said: Any = [each.numpy() for each in (out, *grads)]
        except BaseException as error:
            said = error
        with os.fdopen(writes, "wb") as pipe:
            pickle.dump(said, pipe)
        os._exit(0)
    os.close(writes)
    torch.set_num_threads(before)
    with os.fdopen(reads, "rb") as pipe:
        if not (ends := bool(select.select([pipe], [], [], 30)[0])):
            os.kill(child, signal.SIGKILL)
        came = pipe.read()
    os.waitpid(child, 0)
    if not ends:
        raise TimeoutError("the child never returns")
    found = pickle.loads(came)
    if isinstance(found, BaseException):
        raise found
    out, *grads = map(torch.from_numpy, found)
    return out, tuple(grads)


def threads(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    """At once; each with a module of its own, as a weight is exchanged in it."""
    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(lambda f: gradient(f, given, name, other), [copy.deepcopy(f) for _ in range(3)])
    for each in others:
        torch.testing.assert_close(each, first)
    return first


def exported(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    class Module(torch.nn.Module):
        def forward(self, tensor: Tensor) -> Tensor:
            return f(**given | {name: tensor})

    return torch.export.export(Module(), (other,)).module()(given[name])


def compiled(f: Attention, given: Given, name: str, other: Tensor) -> Any:
    torch.compiler.reset()
    return gradient(torch.compile(f, fullgraph=True, backend="aot_eager"), given, name, other)


@dataclass(frozen=True)
class Transform:
    """What is done to a call, what is done to the plain one beside it, and how near they come."""

    ours: Callable[..., Any]
    plain: Callable[..., Any]
    within: float = 1e-9
    cells: Callable[[str, str, str], bool] = lambda way, tensor, pair: True


def few(way: str, tensor: str, pair: str) -> bool:
    """Where a cell is dear: each tensor in "auto", with one pair function; and each implementation, with the query."""
    turn = list(SCORES)[list(TENSORS).index(tensor) % len(SCORES)]
    return pair == turn and (way == "auto" or tensor == "query")


TRANSFORMS = {
    "nothing": Transform(forward, forward),
    "gradient": Transform(gradient, gradient),
    "second gradient": Transform(second_gradient, second_gradient),
    "jvp": Transform(jvp, jvp),
    "dual numbers": Transform(dual, dual),
    "vmap": Transform(vmap, vmap),
    "vmap of gradients": Transform(vmap_of_gradient, vmap_of_gradient),
    "vectorised jacobian": Transform(jacobian, jacobian),
    "jacrev": Transform(jacrev, jacrev),
    "checkpoint": Transform(checkpointed, gradient),
    "autocast": Transform(autocast, gradient, within=0.1),
    "fake tensors": Transform(fake, shapes),
    "meta tensors": Transform(meta, shapes),
    "forked child": Transform(
        forked, gradient, cells=lambda way, tensor, pair: tensor == "query" or (way, pair) == ("numba", "distance")
    ),
    "threads": Transform(threads, gradient),
    "export": Transform(exported, forward, cells=few),
    "compile": Transform(compiled, gradient, cells=few),
}


# Those that ask for the gradient of the tensor itself.
DERIVATIVES = tuple(name for name, how in TRANSFORMS.items() if how.plain is not forward and name != "vmap")


# --- the cells


@dataclass(frozen=True)
class Refusal:
    """Cells that are refused, and the words that say so; None stands for all.

    With `by_choice` a cell may be right as well: it depends on the implementation that "auto" takes.
    """

    words: str
    ways: tuple[str, ...] | None = None
    tensors: tuple[str, ...] | None = None
    transforms: tuple[str, ...] | None = None
    pairs: tuple[str, ...] | None = None
    by_choice: bool = False

    def covers(self, way: str, tensor: str, transform: str, pair: str) -> bool:
        """Whether it is about a cell."""
        asked = ((self.ways, way), (self.tensors, tensor), (self.transforms, transform), (self.pairs, pair))
        return all(of is None or one in of for of, one in asked)


FORWARD_MODE = ("jvp", "dual numbers")
BATCHED = ("vmap", "vmap of gradients", "jacrev")
COMPILED = ("chunked", "numba-few", "numba")
NOT_OF_SINKS = tuple(name for name in TENSORS if name != "sink")  # which are merged in plain PyTorch, whatever runs
REFUSALS = [
    Refusal("PyTorch fuses 'inner' only", ways=("sdpa",), pairs=("additive", "distance")),
    Refusal("no log-sum-exp", ways=("sdpa",), tensors=("sink",)),
    Refusal("would need an n × m mask", ways=("sdpa",), tensors=("exclude", "segment_ids", "offsets")),
    Refusal("under torch.func transforms, nor in forward mode", ways=("sdpa",), transforms=FORWARD_MODE + BATCHED),
    Refusal("not tested on meta", ways=("sdpa",), transforms=("meta tensors",)),
    Refusal("give no gradient to (key_)?bias", ways=("sdpa",), tensors=("bias", "key_bias"), transforms=DERIVATIVES),
    Refusal("lengths and causality, and no other", ways=("numba-few",),
            tensors=("bias", "key_bias", "mask", "exclude", "segment_ids", "offsets")),
    Refusal("outside torch.compile, torch.func and forward", ways=("numba-few",), tensors=NOT_OF_SINKS,
            transforms=("dual numbers",)),
    Refusal("outside torch.compile, torch.func and forward", ways=("numba-few",),
            transforms=("jvp", *BATCHED, "compile", "export")),
    Refusal("outside traces and dispatch modes", ways=("numba-few",), transforms=("fake tensors",)),
    Refusal("runs on the CPU", ways=("numba-few", "numba"), transforms=("meta tensors",)),
    Refusal("no forward-mode derivative", ways=("chunked", "numba"), tensors=NOT_OF_SINKS, transforms=FORWARD_MODE),
    Refusal("no second derivatives", ways=("sdpa", *COMPILED), tensors=NOT_OF_SINKS, transforms=("second gradient",)),
    Refusal("no second derivatives", ways=("auto, large",), transforms=("second gradient",), by_choice=True),
]  # fmt: skip

ROWS = [
    (name, impl, [cell for cell in product(TENSORS, SCORES) if transform.cells(impl, *cell)])
    for (name, transform), impl in product(TRANSFORMS.items(), WAYS)
]


@pytest.mark.parametrize(("transform", "impl", "cells"), [pytest.param(*row, id=f"{row[0]}-{row[1]}") for row in ROWS])
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_under_a_transform(transform: str, impl: str, cells: list[tuple[str, str]]) -> None:
    red = []
    for tensor, pair in cells:
        refusals = [r for r in REFUSALS if r.covers(impl, tensor, transform, pair)]
        with way(impl) as name:
            said = cell(transform, name, tensor, pair, refusals[0] if refusals else None)
        if said:
            red.append(f"{tensor}, {pair}: {said}")
    assert not red, "\n".join(red)


def cell(transform: str, impl: str, tensor: str, pair: str, refusal: Refusal | None) -> str:
    """What is wrong with a cell; nothing, if it is right, or refused as it is to be."""
    how = TRANSFORMS[transform]
    torch.manual_seed(0)
    module, truth = Ours(pair, impl), Plain(pair)
    truth.load_state_dict(module.state_dict())
    numbers, other = given(pair, tensor, module)
    try:
        came = how.ours(module, numbers, tensor, other)
    except Exception as error:
        words = " ".join(str(error).split())
        if refusal is None or not re.search(refusal.words, words):
            return f"{type(error).__name__}: {words[:300]}"
        return ""
    if refusal is not None and not refusal.by_choice:
        return f"it runs, and is to be refused: {refusal.words}"
    try:
        torch.testing.assert_close(came, how.plain(truth, numbers, tensor, other), rtol=how.within, atol=how.within)
    except AssertionError as error:
        return " ".join(str(error).split())
    return ""


class Recurrence(torch.nn.Module):
    """Outputs of a sequence's steps, by an operation of its own."""

    impl = weight = ""

    def __init__(self) -> None:
        super().__init__()
        self.module = recurrences.make("additive")

    def forward(self, query: Tensor, encoded: Tensor, state: Tensor, lengths: Tensor) -> Tensor:
        return self.module(query, self.module.prepare(encoded, lengths), state)[0]


class Equations(Recurrence):
    def forward(self, query: Tensor, encoded: Tensor, state: Tensor, lengths: Tensor) -> Tensor:
        return recurrences.by_hand(self.module, query, encoded, lengths, state, "additive")[0]


REFUSED_RECURRENCES = {
    "second gradient": "a recurrence has no second derivatives",
    "vectorised jacobian": "a recurrence takes one gradient at a time",
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.filterwarnings("ignore")
def test_a_recurrence_under_a_transform(transform: str) -> None:
    how, module, truth = TRANSFORMS[transform], Recurrence(), Equations()
    truth.load_state_dict(module.state_dict())
    numbers = dict(zip(("query", "encoded", "lengths", "state"), recurrences.example(module.module), strict=True))
    call = numbers, "encoded", numbers["encoded"].sin()
    if transform in REFUSED_RECURRENCES:
        with pytest.raises(RuntimeError, match=REFUSED_RECURRENCES[transform]):
            how.ours(module, *call)
    else:
        torch.testing.assert_close(how.ours(module, *call), how.plain(truth, *call), rtol=how.within, atol=how.within)


def test_the_number_of_cells_is_the_one_at_the_head() -> None:
    assert kit.cells_said(__doc__) == sum(len(cells) for *_, cells in ROWS) + len(TRANSFORMS)
