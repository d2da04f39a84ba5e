"""Layers under PyTorch's tools, compared with the same layer alone: every tool × every layer that it can take.

    python -m tests.stress.pytorch_tools --only compile ddp

`compile` makes one full graph and changes all shapes afterwards; `export` takes any batch and length; `ddp`, `fsdp` and
`dtensor` train on two gloo ranks; `tied` trains a layer whose parameters are shared; `packed` attends to the rows of a
`PackedSequence`.
"""

import argparse
import copy
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_module, distribute_tensor
from torch.nn.utils.rnn import pack_sequence

import dikkat
from dikkat import scores
from tests.stress import objects

FEATURES, STEPS = 8, 3


class Layer(nn.Module):
    """A layer of self-attention with a projection in front, with lengths."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(FEATURES, FEATURES), inner

    def forward(self, x: Tensor, lens: Tensor) -> Tensor:
        h = self.first(x).tanh()
        if isinstance(self.inner, dikkat.AttentionPooling):
            return self.inner(h, mask=torch.arange(h.shape[1]) < lens[:, None])  # type: ignore[no-any-return]
        return self.inner(h, h, h, lens)  # type: ignore[no-any-return]


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "dot product": dikkat.DotProductAttention,
    "additive": lambda: dikkat.AdditiveAttention(FEATURES, FEATURES, 5),
    "heads": lambda: dikkat.MultiHeadAttention(FEATURES, 2),
    "heads, additive": lambda: dikkat.MultiHeadAttention(FEATURES, 2, score=scores.Additive(4, 4, 3)),
    "heads, gaussian": lambda: dikkat.MultiHeadAttention(FEATURES, 4, score=scores.Gaussian(1.5, learnable=True)),
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


def exported(name: str) -> None:
    layer = made(name)
    rows, length = torch.export.Dim("rows", min=2), torch.export.Dim("length", min=2)
    shapes = ({0: rows, 1: length}, {0: rows})
    program = torch.export.export(layer, batch(*SHAPES[0]), dynamic_shapes=shapes).module()
    for shape in SHAPES:
        same(program(*batch(*shape)), layer(*batch(*shape)))


def trained(layer: Layer, run: Callable[..., Tensor], part: slice) -> None:
    """`STEPS` steps on a part of a batch."""
    optimiser = torch.optim.SGD([p for p in layer.parameters() if p.requires_grad], lr=0.5)
    for step in range(STEPS):
        x, lens = batch(4, 5 + step)
        optimiser.zero_grad()
        out = run(x[part], lens[part])
        (out.full_tensor() if isinstance(out, DTensor) else out).square().mean().backward()
        optimiser.step()


def rank_of(rank: int, tool: str, name: str, folder: str) -> None:
    """What one of two ranks does; rank 0 compares with a training alone."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    alone, layer, half = made(name), made(name), slice(2 * rank, 2 * rank + 2)
    trained(alone, alone, slice(None))
    mesh = init_device_mesh("cpu", (2,))
    if tool == "ddp":
        trained(layer, nn.parallel.DistributedDataParallel(layer), half)
    elif tool == "fsdp":
        fully_shard(layer.inner, mesh=mesh)
        fully_shard(layer, mesh=mesh)
        trained(layer, layer, half)
    else:
        distribute_module(layer, mesh)

        def run(x: Tensor, lens: Tensor) -> Tensor:
            return layer(*(distribute_tensor(t, mesh, [Replicate()]) for t in (x, lens)))  # type: ignore[no-any-return]

        trained(layer, run, slice(None))
    found = [p.full_tensor() if isinstance(p, DTensor) else p for p in layer.parameters()]
    same([p.detach() for p in found], [p.detach() for p in alone.parameters()])
    dist.destroy_process_group()


def on_ranks(tool: str) -> Callable[[str], None]:
    def run(name: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(rank_of, (tool, name, folder), nprocs=2)  # type: ignore[no-untyped-call]

    return run


def tied(name: str) -> None:
    """A layer whose first projection is also the output's, and whose keys are projected as its queries are."""
    layer = made(name)
    inner: Any = layer.inner
    inner.out_proj.weight = layer.first.weight
    if isinstance(inner.score, scores.Additive):
        inner.score.W_k.weight = inner.score.W_q.weight
    plain = copy.deepcopy(layer)
    pair = {"Additive": "additive", "Gaussian": "learned gaussian", "ScaledDot": "scaled dot"}[
        type(inner.score).__name__
    ]

    def by_formula(x: Tensor, lens: Tensor) -> Tensor:
        h = plain.first(x).tanh()
        shown = objects.visible({"valid_lens": lens}, *h.shape[:2], h.shape[1])
        return objects.heads(plain.inner, objects.PAIRS[pair][1], h, h, h, shown)

    for subject, run in ((layer, layer), (plain, by_formula)):
        optimiser = torch.optim.AdamW(subject.parameters(), lr=0.05)
        for step in range(6):
            optimiser.zero_grad()
            run(*batch(3, 4 + step % 2)).square().mean().backward()
            optimiser.step()
    same([p.detach() for p in layer.parameters()], [p.detach() for p in plain.parameters()])


def packed(name: str) -> None:
    """The rows of sequences end to end, as a `PackedSequence` gives them back, compared with each one alone."""
    layer = made(name)
    sequences = [torch.randn(n, FEATURES, dtype=torch.float64) for n in (5, 1, 9, 2)]
    back = torch.nn.utils.rnn.unpack_sequence(pack_sequence(sequences, enforce_sorted=False))
    offsets = torch.tensor([0, *map(len, back)]).cumsum(0)
    h = torch.cat(back)
    found = dikkat.attend_ragged(h, h, h, offsets, score=layer.inner.score)
    same(found, torch.cat([layer.inner(x[None], x[None], x[None])[0] for x in sequences]))


TOOLS: dict[str, Callable[[str], None]] = {
    "compile": compiled,
    "export": exported,
    "ddp": on_ranks("ddp"),
    "fsdp": on_ranks("fsdp"),
    "dtensor": on_ranks("dtensor"),
    "tied": tied,
    "packed": packed,
}


# The layers that a tool takes, where these are not all.
TAKES = {"tied": [name for name in LAYERS if "heads" in name], "packed": ["dot product", "additive"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 if a cell failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(TOOLS), default=tuple(TOOLS))
    parser.add_argument("--layers", nargs="+", choices=tuple(LAYERS), default=tuple(LAYERS))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cells = failed = 0
    for tool in options.only:
        for name in (name for name in options.layers if name in TAKES.get(tool, LAYERS)):
            cells += 1
            try:
                TOOLS[tool](name)
                print(f"{tool}, {name}: right", flush=True)
            except Exception as error:
                failed += 1
                print(f"{tool}, {name}: {type(error).__name__}: {str(error)[-900:]}", flush=True)
                if len(options.layers) == len(options.only) == 1:
                    traceback.print_exc()
    print(f"{cells} cells, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
