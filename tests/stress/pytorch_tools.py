"""Layers under PyTorch's tools, compared with the same layer alone: every tool × every layer that it can take.

    python -m tests.stress.pytorch_tools --only compile ddp

`compile` makes one full graph and changes all shapes afterwards. `ddp`, `fsdp` and `dtensor` train on two gloo ranks.
`tied` trains a layer whose parameters are shared. `tests/core` exports layers and attends to packed rows.
"""

import argparse
import copy
import faulthandler
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_module, distribute_tensor

import dikkat
from dikkat import scores
from tests import kit
from tests.stress import objects

FEATURES, STEPS = 8, 3
# That a rank may take for a layer.
SECONDS = 300


class Layer(nn.Module):
    """A layer of self-attention with a projection in front, with lengths."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(FEATURES, FEATURES), inner

    def forward(self, x: Tensor, lens: Tensor) -> Tensor:
        h = self.first(x).tanh()
        h = h.to_local() if isinstance(h, DTensor) else h
        if isinstance(self.inner, dikkat.AttentionPooling):
            return self.inner(h, mask=torch.arange(h.shape[1]) < lens[:, None])  # type: ignore[no-any-return]
        return self.inner(h, h, h, lens)  # type: ignore[no-any-return]


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "dot product": dikkat.DotProductAttention,
    "additive": lambda: dikkat.AdditiveAttention(FEATURES, FEATURES, 5),
    "heads": lambda: dikkat.MultiHeadAttention(FEATURES, 2),
    "heads, additive": lambda: dikkat.MultiHeadAttention(FEATURES, 2, score=scores.Additive(4, 4, 3)),
    # A bandwidth for each feature: `fully_shard` takes no parameter that is a scalar.
    "heads, gaussian": lambda: dikkat.MultiHeadAttention(
        FEATURES, 4, score=scores.Gaussian([1.5, 2.0], learnable=True)
    ),
    "bags": lambda: dikkat.AttentionPooling(FEATURES, 5),
}
SHAPES = ((2, 5), (3, 11), (4, 2), (7, 33))


def made(name: str) -> Layer:
    torch.manual_seed(0)
    return Layer(LAYERS[name]()).double()


def batch(rows: int, length: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(rows * 100 + length)
    return torch.randn(rows, length, FEATURES, dtype=torch.float64), torch.randint(1, length + 1, (rows,))


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


def gradients(layer: nn.Module, run: Callable[..., Tensor], given: tuple[Tensor, Tensor]) -> list[Tensor]:
    out = run(*given)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), list(layer.parameters()))]


def compiled(name: str) -> None:
    for dynamic in (None, True):
        torch.compiler.reset()
        layer = made(name)
        run = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        for shape in (*SHAPES, SHAPES[0]):
            same(gradients(layer, run, batch(*shape)), gradients(layer, layer, batch(*shape)))


def trained(layer: Layer, run: Callable[..., Tensor], part: slice) -> None:
    """`STEPS` steps on a part of a batch."""
    optimiser = torch.optim.SGD([p for p in layer.parameters() if p.requires_grad], lr=0.5)
    for step in range(STEPS):
        x, lens = batch(4, 5 + step)
        optimiser.zero_grad()
        run(x[part], lens[part]).square().mean().backward()
        optimiser.step()


def on_mesh(tool: str, name: str) -> None:
    """Train a layer on all ranks, and compare it with a training alone."""
    alone, layer, rank, mesh = made(name), made(name), dist.get_rank(), init_device_mesh("cpu", (2,))
    trained(alone, alone, slice(None))
    half = slice(2 * rank, 2 * rank + 2)
    if tool == "ddp":
        trained(layer, nn.parallel.DistributedDataParallel(layer), half)
    elif tool == "fsdp":
        fully_shard(layer.inner, mesh=mesh)
        fully_shard(layer, mesh=mesh)
        trained(layer, layer, half)
    else:
        distribute_module(layer.first, mesh)

        def run(x: Tensor, lens: Tensor) -> Tensor:
            whole = distribute_tensor(x, mesh, [Replicate()])
            with pytest.raises(TypeError, match="got a DTensor; expected this rank's tensor"):
                layer.inner(whole, *[whole, whole][: 2 * (name != "bags")])
            return layer(whole, lens)  # type: ignore[no-any-return]

        trained(layer, run, slice(None))
    found = [p.full_tensor() if isinstance(p, DTensor) else p for p in layer.parameters()]
    same([p.detach() for p in found], [p.detach() for p in alone.parameters()])


def rank_of(rank: int, tool: str, names: Sequence[str], folder: str, said: Any) -> None:
    """One of two ranks, for all layers; rank 0 says what came of each. A rank that hangs says where, and ends."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    for name in names:
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        outcome = outcome_of(lambda name: on_mesh(tool, name), name)
        outcomes = [None, None]
        dist.all_gather_object(outcomes, outcome)
        if rank == 0:
            said.put((name, next((each for each in outcomes if each != "right"), "right")))
    faulthandler.cancel_dump_traceback_later()
    dist.destroy_process_group()


def on_ranks(tool: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each layer and what came of it."""
    said = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = torch.multiprocessing.spawn(rank_of, (tool, names, folder, said), nprocs=2, join=False)
        try:
            while not ranks.join():
                pass
        except Exception as error:
            yield "ranks", f"{type(error).__name__}: {error}"
    while not said.empty():
        yield said.get()


def tied(name: str) -> None:
    """A layer whose first projection is also the output's, and whose keys are projected as its queries are."""
    layer = made(name)
    inner: Any = layer.inner
    inner.out_proj.weight = layer.first.weight
    if isinstance(inner.score, scores.Additive):
        inner.score.W_k.weight = inner.score.W_q.weight
    plain = copy.deepcopy(layer)
    kind = {"Additive": "additive", "Gaussian": "gaussian, learned", "ScaledDot": "scaled dot"}

    def by_formula(x: Tensor, lens: Tensor) -> Tensor:
        h, twin = plain.first(x).tanh(), objects.Twin(kind[type(inner.score).__name__], plain.inner, copies=False)
        seen = kit.visible({"valid_lens": lens}, h.shape[:1], h.shape[1], h.shape[1])
        return twin.heads(h, h, h, seen, inner.num_heads)

    for subject, run in ((layer, layer), (plain, by_formula)):
        optimiser = torch.optim.AdamW(subject.parameters(), lr=0.05)
        for step in range(6):
            optimiser.zero_grad()
            run(*batch(3, 4 + step % 2)).square().mean().backward()
            optimiser.step()
    same([p.detach() for p in layer.parameters()], [p.detach() for p in plain.parameters()])


HERE: dict[str, Callable[[str], None]] = {"compile": compiled, "tied": tied}
ON_RANKS = ("ddp", "fsdp", "dtensor")
# The layers that a tool takes, where these are not all.
TAKES = {"tied": [name for name in LAYERS if "heads" in name]}


def outcome_of(run: Callable[[str], None], name: str) -> str:
    try:
        run(name)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[-600:]}\n{traceback.format_exc(limit=-6)}"
    return "right"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 if a cell failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=(*HERE, *ON_RANKS), default=(*HERE, *ON_RANKS))
    parser.add_argument("--layers", nargs="+", choices=tuple(LAYERS), default=tuple(LAYERS))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    outcomes = []
    for tool in options.only:
        names = [name for name in options.layers if name in TAKES.get(tool, LAYERS)]
        cells = on_ranks(tool, names) if tool in ON_RANKS else ((name, outcome_of(HERE[tool], name)) for name in names)
        for name, outcome in cells:
            print(f"{tool}, {name}: {outcome}", flush=True)
            outcomes.append(outcome)
    failed = sum(outcome != "right" for outcome in outcomes)
    print(f"{len(outcomes)} cells, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
