"""The calls of `test_attend.py`, as each rank makes them; rank 0 writes what all came to."""

import math
import os
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import kit
from dikkat import MultiHeadAttention, record
from dikkat.distributed import RankError, attend, blocks, passing, positions
from dikkat.scores import Additive, Dot, Gaussian, ScaledDot, Score

METHODS = ["ring", "zigzag", "reduce"]
DTYPES = [torch.float64, torch.float32]
# A restriction and a pair function meet in a kernel, whose own tests see to that; here both meet what ranks do.
CALLS = [
    (*made, *how)
    for made, *how in kit.pairwise(
        {
            "made": list(zip(kit.CASES, cycle(kit.RESTRICTIONS), strict=False)),
            "dtype": DTYPES,
            "method": METHODS,
            "small": [0, 1],
        }
    )
]
# What is compiled, where "auto" takes it: the calls above are plain PyTorch's, which starts quicker.
COMPILED = [
    ("additive", "all", "zigzag"), ("additive", "lengths", "reduce"), ("gaussian, learned", "bias", "ring"),
    ("scaled dot", "none", "ring"), ("bilinear", "causal", "zigzag"), ("dot", "lengths", "reduce"),
]  # fmt: skip


def split(made: kit.Call, rank: int, world: int, method: str) -> tuple[dict[str, Tensor], dict[str, Any], Tensor]:
    """A rank's tensors and restrictions, as views of the whole, and which queries it has."""
    order = "zigzag" if method == "zigzag" else "contiguous"
    n, m = made.query.shape[-2], made.key.shape[-2]
    rows = torch.arange(n) if method == "reduce" else positions(n, rank, world, order)
    columns = positions(m, rank, world, order)
    tensors = {
        "query": made.query[..., rows, :],
        "key": made.key[..., columns, :],
        "value": made.value[..., columns, :],
    }
    restricted = dict(made.restricted)
    if "key_bias" in restricted:
        restricted["key_bias"] = restricted["key_bias"][..., columns]
    if "mask" in restricted and restricted["mask"].shape[-2] == n:
        restricted["mask"] = restricted["mask"][..., rows, :]
    if "exclude" in restricted:
        restricted["exclude"] = restricted["exclude"][..., rows]
    if "valid_lens" in restricted and restricted["valid_lens"].ndim == 2:
        restricted["valid_lens"] = restricted["valid_lens"][:, rows]
    return tensors, {"order": order, **restricted}, rows


def many_pieces(patch: pytest.MonkeyPatch, pairs: int = 1) -> None:
    """Keys travel in as many pieces as they can that make so many pairs."""
    patch.setattr(passing, "_LEAST", 1)
    patch.setattr(passing, "_PAIRS", pairs)


def run(made: kit.Call, rank: int, world: int, method: str, **more: Any) -> dict[str, Tensor]:
    """Output and gradients of a call of all ranks, the whole of each, on every rank."""
    tensors, restricted, rows = split(made, rank, world, method)
    restricted["method"] = "reduce" if method == "reduce" else "ring"
    out = attend(**tensors, score=made.score, **restricted, **more)
    upstream = kit.upstream_of(torch.empty(*out.shape[:-2], made.query.shape[-2], out.shape[-1]))[..., rows, :]
    found = kit.gradients(made, out, upstream)  # through the views: zeros where another rank has the rows
    whole = torch.zeros(*out.shape[:-2], made.query.shape[-2], out.shape[-1], dtype=out.dtype)
    whole[..., rows, :] = out.detach()
    alike = {"query", *dict(made.score.named_parameters())} if method == "reduce" else set()
    for name, tensor in {"output": whole, **found}.items():
        if name in alike or (name == "output" and method == "reduce"):
            first = tensor.clone()
            dist.broadcast(first, 0)
            assert torch.equal(first, tensor), f"{name} is not the same on all ranks"
        else:
            dist.all_reduce(tensor)
    return {"output": whole, **found}


def dtensors(rank: int, world: int) -> dict[str, dict[str, Tensor]]:
    """Keys on the ranks; queries too, or on all of them: 5 queries and 7 keys leave a rank of four with fewer."""
    mesh, found = init_device_mesh("cpu", (world,)), {}
    for placed in (Shard(2), Replicate()):
        made = kit.call("scaled dot", "lengths")
        sides = {"query": placed, "key": Shard(2), "value": Shard(2)}
        leaves = {name: distribute_tensor(getattr(made, name).detach(), mesh, [to]) for name, to in sides.items()}
        for leaf in leaves.values():
            leaf.requires_grad_()
        out = attend(**leaves, score=made.score, **made.restricted)
        assert out.placements == (placed,)
        grads = torch.autograd.grad(out, list(leaves.values()), distribute_tensor(kit.upstream_of(out), mesh, [placed]))
        parts = dict(zip(["output", *leaves], [out, *grads], strict=True))
        found[str(placed)] = {name: tensor.full_tensor().detach() for name, tensor in parts.items()}
    return found


def uneven(rank: int, world: int) -> dict[str, dict[str, Tensor]]:
    """The first rank has no key, and the last one all but one."""
    found = {}
    for method in ("ring", "reduce"):
        made = kit.call("scaled dot", "none")
        start, stop = [*[0] * (world - 1), 1, kit.KEYS][rank : rank + 2]
        rows = torch.arange(kit.QUERIES) if method == "reduce" else positions(kit.QUERIES, rank, world)
        sides = made.query[..., rows, :], made.key[..., start:stop, :], made.value[..., start:stop, :]
        out = attend(*sides, score=made.score, method=method)
        shape = (*out.shape[:-2], kit.QUERIES, out.shape[-1])
        grads = kit.gradients(made, out, kit.upstream_of(torch.empty(shape))[..., rows, :])
        whole = torch.zeros(shape, dtype=out.dtype)
        whole[..., rows, :] = out.detach()
        for name, tensor in {"output": whole, **grads}.items():
            if method == "ring" or name in ("key", "value"):
                dist.all_reduce(tensor)
        found[method] = {"output": whole, **grads}
    return found


def heads(rank: int, world: int) -> dict[str, dict[str, Tensor]]:
    """A layer of heads, its parameters' gradients with it; gradients of what a rank has a share of are summed."""
    found = {}
    for method in ("ring", "reduce"):
        layer, tensors, lens = heads_case(method)
        n, m = positions(11, rank, world), positions(13, rank, world)
        rows = n if method == "ring" else torch.arange(11)
        out = layer(tensors[0][:, rows], tensors[1][:, m], tensors[2][:, m], lens)
        upstream = kit.upstream_of(torch.empty(2, 11, 12))[:, rows]
        grads = torch.autograd.grad(out, [*tensors, *layer.parameters()], upstream)
        names = ["query", "key", "value", *dict(layer.named_parameters())]
        found[method] = dict(zip(names, grads, strict=True))
        for name, grad in found[method].items():
            if method == "ring" or name in ("key", "value"):
                dist.all_reduce(grad)
        whole = torch.zeros(2, 11, 12, dtype=torch.float64)
        whole[:, rows] = out.detach()
        if method == "ring":
            dist.all_reduce(whole)
        found[method]["output"] = whole
    return found


def recorded(rank: int, world: int) -> dict[str, list[dict[str, Tensor]]]:
    """What each rank's own queries look at: of a layer of heads, and of a call in zigzag with every restriction."""
    found: dict[str, list[dict[str, Tensor]]] = {}
    for method in ("ring", "reduce"):
        layer, tensors, lens = heads_case(method)
        n, m = positions(11, rank, world), positions(13, rank, world)
        rows = n if method == "ring" else torch.arange(11)
        with record(nn.ModuleDict({"layer": layer}), rows=range(len(rows)), sums=True) as trace:
            out = layer(tensors[0][:, rows], tensors[1][:, m], tensors[2][:, m], lens, causal=True)
            out.sum().backward()
        assert trace.names == ["layer"]
        found[method] = _gathered({"positions": rows, **trace["layer"].tensors()})
    for method in ("zigzag", "reduce"):
        tensors, restricted, rows = split(restricted_case(), rank, world, method)
        layer = Attending(restricted_case().score, method="reduce" if method == "reduce" else "ring", **restricted)
        with record(layer, rows=range(len(rows)), sums=True) as trace:
            layer(**tensors)
        found[f"{method}, all"] = _gathered({"positions": rows, **trace[""].tensors()})
    return found


def restricted_case() -> kit.Call:
    return kit.call("additive", "all")


class Attending(nn.Module):
    """A module that attends over a group."""

    def __init__(self, score: nn.Module, **options: Any) -> None:
        super().__init__()
        self.score, self.options = score, options

    def forward(self, **tensors: Tensor) -> Tensor:
        return attend(**tensors, score=self.score, **self.options)


def _gathered(found: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """What every rank found, on every rank."""
    all_of_them: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_of_them, found)
    return all_of_them


def heads_case(method: str, alone: bool = False) -> tuple[MultiHeadAttention, list[Tensor], Tensor]:
    torch.manual_seed(7)
    group = None if alone else dist.group.WORLD
    layer = MultiHeadAttention(12, 2, score=Additive(6, 6, 5), group=group, method=method).double()
    tensors = [torch.randn(2, length, 12, dtype=torch.float64).requires_grad_() for length in (11, 13, 13)]
    return layer, tensors, torch.tensor([9, 4])


def hidden(rank: int, world: int) -> dict[str, Tensor]:
    """NaN in keys and values that no query of any rank sees, and in a query that sees no key."""
    made = hidden_case()
    return run(made, rank, world, "ring", impl="chunked")


def hidden_case(broken: float = math.nan) -> kit.Call:
    made = kit.call("additive", "none")
    mask = torch.ones(kit.QUERIES, kit.KEYS, dtype=torch.bool)
    mask[:, 4], mask[1] = False, False
    with torch.no_grad():
        made.key[..., 4, :], made.value[..., 4, 1], made.query[..., 1, 2] = broken, broken, broken
    return kit.replace(made, restricted={"mask": mask})


def dropped(rank: int, world: int) -> dict[str, dict[str, Tensor]]:
    """Weights that are dropped, as values that are one for each key show them; seeds that are alike on all ranks."""
    found = {}
    for method in METHODS:
        torch.manual_seed(19)
        found[method] = run(dropped_case(), rank, world, method, dropout=DROPOUT)
    return found


DROPOUT = 0.3


def dropped_case() -> kit.Call:
    made = kit.call("additive", "none")
    torch.manual_seed(5)
    sizes = {"query": (2, 61, 6), "key": (2, 67, 4)}
    sides = {name: torch.randn(*size, dtype=torch.float64).requires_grad_() for name, size in sizes.items()}
    values = torch.eye(67, dtype=torch.float64).expand(2, 67, 67).contiguous().requires_grad_()
    return kit.replace(made, **sides, value=values)


class Own(Score):
    """A score of one's own, with an attribute of each kind."""

    pair = "inner"

    def __init__(self, *, fails: bool = False, turned: bool = False, centre: Tensor | None = None) -> None:
        super().__init__()
        self.fails, self.turned, self.centre = [fails], turned, torch.zeros(5) if centre is None else centre

    def project_key(self, key: Tensor) -> Tensor:
        return key @ torch.zeros(7, 5) if self.fails[0] else key - self.centre


def refused(rank: int, world: int, folder: Path) -> dict[str, str]:
    """What ranks are told where one of them brings something else."""
    last, found = rank == world - 1, {}
    x = torch.zeros(2, 3, 5)
    ways: dict[str, tuple[list[Tensor], dict[str, Any]]] = {
        "features": ([torch.zeros(2, 3, 7 if last else 5), x], {}),
        "dtype": ([x.double() if last else x] * 2, {}),
        "score": ([x, x], {"score": Dot() if last else ScaledDot()}),
        "bandwidth": ([x, x], {"score": Gaussian(2.0 if last else 1.0)}),
        "order": ([x, x], {"order": "zigzag" if last else "contiguous"}),
        "lengths": ([x, x], {"valid_lens": torch.tensor([3, 2 if last else 1])}),
        "one rank's mistake": ([x, x[:1].expand(3, 3, 5) if last else x], {}),
        "one rank's lengths": ([x, x], {"valid_lens": torch.full((2, 3), 100 if last else 1)}),
        "one rank's score": ([x, x], {"score": Own(fails=last)}),
        "a score's tensor": ([x, x], {"score": Own(centre=torch.full((5,), float(last)))}),
        "a score's switch": ([x, x], {"score": Own(turned=last)}),
        "gradients": ([x, x.clone().requires_grad_() if last else x], {}),
    }
    for name, ((query, key), more) in ways.items():
        with pytest.raises((RankError, ValueError, RuntimeError)) as caught:
            attend(query, key, key, **{"score": ScaledDot(), **more})
        found[name] = str(caught.value)
    with pytest.raises(RankError) as caught, record(nn.Identity(), sums=True) if last else nullcontext():
        attend(x, x, x, score=ScaledDot())
    found["recorded"] = str(caught.value)
    dist.barrier()
    if world == 2:
        told = dist.FileStore(f"{folder}/late", world)
        if rank == 0:
            with pytest.raises(RankError) as caught:
                attend(x, x, x, score=Dot(), timeout=0.5)
            found["late"] = str(caught.value)
            told.set("late", "")
        else:
            told.wait(["late"])
    return found


def leaves_midway(rank: int, world: int, folder: Path) -> None:
    """Rank 2 goes while it works on rank 1's first piece, and has more to send; the others say so, each in a file.

    Of those who are left the last one goes while the others wait for its state.
    """
    left = dist.new_group([0, 1, 3])
    x = torch.zeros(1, 4 * world, 5)
    worked, calls = blocks.Shard.pool, iter(range(1000))

    def pool(shard: blocks.Shard, keys: blocks.Keys, into: Any) -> None:
        if next(calls) == 1 and rank == 2:
            os._exit(0)
        worked(shard, keys, into)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks.Shard, "pool", pool)
        many_pieces(patch)
        try:
            attend(x[:, :4], x[:, :4], x[:, :4], score=Dot())
        except RankError as error:
            (folder / f"rank-{rank}.txt").write_text(str(error))
        if rank == 3:  # the last of those who are left goes while the others wait for its state
            patch.setattr(blocks.Shard, "pool", lambda *_: os._exit(0))
        try:
            attend(x[:, :4], x[:, :4], x[:, :4], score=Dot(), group=left, method="reduce")
        except RankError as error:
            (folder / f"rank-{rank}-reduce.txt").write_text(str(error))
    os._exit(0)  # the groups are broken: there is nothing to tidy up


def all_calls(rank: int, world: int, folder: Path) -> None:
    results = {}
    for index, (case, restriction, dtype, method, small) in enumerate(CALLS):
        made = kit.call(case, restriction, round_to=dtype).to(dtype)
        with pytest.MonkeyPatch.context() as patch:
            if small:  # every loop turns several times
                # Of four ranks those with one query would make one piece of what makes two for the first.
                many_pieces(patch, pairs=12)
                patch.setattr(blocks, "_ROWS", 2 * 6 * (11 + 13) * 8)
            results[index] = run(made, rank, world, method, impl="chunked")
    for case, restriction, method in COMPILED:
        results[case, restriction] = run(kit.call(case, restriction), rank, world, method)
    more = {
        "uneven": uneven,
        "dtensor": dtensors,
        "heads": heads,
        "hidden": hidden,
        "dropped": dropped,
        "recorded": recorded,
    }
    for name, case in more.items():
        results[name] = case(rank, world)
    results["refused"] = refused(rank, world, folder)
    if rank == 0:
        torch.save(results, folder / f"results-{world}.pt")
    if world > 2:
        dist.barrier()
        leaves_midway(rank, world, folder)
