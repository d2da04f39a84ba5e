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

import kit
from dikkat import MultiHeadAttention, record
from dikkat.distributed import RankError, attend
from dikkat.scores import Additive, Dot, ScaledDot, Score

CALLS = [
    (*made, *how)
    for made, *how in kit.pairwise(
        {
            "made": list(zip(kit.CASES, cycle(r for r in kit.RESTRICTIONS if r not in kit.REFUSED), strict=False)),
            "dtype": [torch.float64, torch.float32],
            "impl": ["auto", "chunked"],
        }
    )
]
DROPOUT = 0.3


def part(length: int, rank: int, world: int) -> slice:
    """The positions of a sequence that lie on a rank."""
    return slice(rank * length // world, (rank + 1) * length // world)


def run(made: kit.Call, columns: slice, **more: Any) -> dict[str, Tensor]:
    """Output and gradients of a call of all ranks, of which this one has some keys; the whole of each on every rank."""
    restrictions = dict(made.restricted)
    if "key_bias" in restrictions:
        restrictions["key_bias"] = restrictions["key_bias"][..., columns]
    sides = made.query, made.key[..., columns, :], made.value[..., columns, :]
    out = attend(*sides, score=made.score, **restrictions, **more)
    # Through views of the whole: gradients are 0 where another rank has the rows.
    found = {"output": out.detach(), **kit.gradients(made, out, kit.upstream_of(out))}
    alike = {"output", "query", *dict(made.score.named_parameters())}
    return {name: _whole(name, tensor, name in alike) for name, tensor in found.items()}


def _whole(name: str, tensor: Tensor, alike: bool) -> Tensor:
    """A tensor that is the same on all ranks, or the sum of theirs."""
    if alike:
        first = tensor.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, tensor), f"{name} is not the same on all ranks"
    else:
        dist.all_reduce(tensor)
    return tensor


def uneven(rank: int, world: int) -> dict[str, Tensor]:
    """The first rank has no key, and the last one all but one."""
    start, stop = [*[0] * (world - 1), 1, kit.KEYS][rank : rank + 2]
    return run(kit.call("scaled dot", "none"), slice(start, stop))


def heads(rank: int, world: int) -> dict[str, Tensor]:
    """A layer of heads, its parameters' gradients with it."""
    layer, tensors, lens = heads_case()
    own = part(13, rank, world)
    out = layer(tensors[0], tensors[1][:, own], tensors[2][:, own], lens)
    grads = torch.autograd.grad(out, [*tensors, *layer.parameters()], kit.upstream_of(out))
    names = ["query", "key", "value", *dict(layer.named_parameters())]
    found = dict(zip(names, grads, strict=True))
    return {"output": out.detach()} | {n: _whole(n, grad, n not in ("key", "value")) for n, grad in found.items()}


def recorded(rank: int, world: int) -> dict[str, list[dict[str, Tensor]]]:
    """What each rank is told of a layer of heads, and of a call with every restriction."""
    layer, tensors, lens = heads_case()
    own = part(13, rank, world)
    with record(nn.ModuleDict({"layer": layer}), rows=range(11), sums=True) as trace:
        layer(tensors[0], tensors[1][:, own], tensors[2][:, own], lens, causal=True).sum().backward()
    assert trace.names == ["layer"]
    made = kit.call("additive", "all")
    attending = Attending(made, part(kit.KEYS, rank, world))
    with record(attending, rows=range(kit.QUERIES), sums=True) as other:
        attending()
    found = {"heads": trace["layer"].tensors(), "all": other[""].tensors()}
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, found)
    return {name: [each[name] for each in gathered] for name in found}


class Attending(nn.Module):
    """A module that attends over a group."""

    def __init__(self, made: kit.Call, columns: slice) -> None:
        super().__init__()
        self.made, self.columns = made, columns

    def forward(self) -> None:
        run(self.made, self.columns)


def heads_case(alone: bool = False) -> tuple[MultiHeadAttention, list[Tensor], Tensor]:
    torch.manual_seed(7)
    group = None if alone else dist.group.WORLD
    layer = MultiHeadAttention(12, 2, score=Additive(6, 6, 5), group=group).double()
    tensors = [torch.randn(2, length, 12, dtype=torch.float64).requires_grad_() for length in (11, 13, 13)]
    return layer, tensors, torch.tensor([9, 4])


def hidden(rank: int, world: int) -> dict[str, Tensor]:
    """NaN in keys and values that no query sees, and in a query that sees no key."""
    return run(hidden_case(), part(kit.KEYS, rank, world))


def hidden_case(broken: float = math.nan) -> kit.Call:
    made = kit.call("additive", "none")
    mask = torch.ones(kit.QUERIES, kit.KEYS, dtype=torch.bool)
    mask[:, 4], mask[1] = False, False
    with torch.no_grad():
        made.key[..., 4, :], made.value[..., 4, 1], made.query[..., 1, 2] = broken, broken, broken
    return kit.replace(made, restricted={"mask": mask})


def dropped(rank: int, world: int) -> dict[str, Tensor]:
    """Weights that are dropped, as values that are one for each key show them; seeds that are alike on all ranks."""
    torch.manual_seed(19)
    return run(dropped_case(), part(67, rank, world), dropout=DROPOUT)


def dropped_case() -> kit.Call:
    made = kit.call("additive", "none")
    torch.manual_seed(5)
    sizes = {"query": (2, 61, 6), "key": (2, 67, 4)}
    sides = {name: torch.randn(*size, dtype=torch.float64).requires_grad_() for name, size in sizes.items()}
    values = torch.eye(67, dtype=torch.float64).expand(2, 67, 67).contiguous().requires_grad_()
    return kit.replace(made, **sides, value=values)


class Own(Score):
    """A score of a user's own, which may raise an error or end its process."""

    pair = "inner"

    def __init__(self, does: str = "") -> None:
        super().__init__()
        self.does = does

    def project_key(self, key: Tensor) -> Tensor:
        if self.does == "leave":
            os._exit(0)
        return key @ torch.zeros(7, 5) if self.does == "fail" else key


def refused(rank: int, world: int) -> dict[str, str]:
    """The errors of this rank where the last one brings something else."""
    last, found = rank == world - 1, {}
    x = torch.zeros(2, 3, 5)
    ways: dict[str, tuple[list[Tensor], dict[str, Any]]] = {
        "features": ([torch.zeros(2, 3, 7 if last else 5), x], {}),
        "dtype": ([x.double() if last else x] * 2, {}),
        "score": ([x, x], {"score": Dot() if last else ScaledDot()}),
        "causal": ([x, x], {"causal": last}),
        "lengths": ([x, x], {"valid_lens": torch.ones((2, 3) if last else (2,), dtype=torch.int64)}),
        "one rank's mistake": ([x, x[:1].expand(3, 3, 5) if last else x], {}),
        "one rank's lengths": ([x, x], {"valid_lens": torch.full((2, 3), 100 if last else 1)}),
        "one rank's score": ([x, x], {"score": Own("fail" if last else "")}),
        "gradients": ([x.clone().requires_grad_() if last else x, x], {}),
    }
    for name, ((query, key), more) in ways.items():
        with pytest.raises((RankError, ValueError, RuntimeError)) as caught:
            attend(query, key, key, **{"score": ScaledDot(), **more})
        found[name] = str(caught.value)

    class Alone(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return attend(x, x, x, score=ScaledDot())

    model = Alone()
    with pytest.raises(RankError) as caught, record(model, sums=True) if last else nullcontext():
        model(x)
    found["recorded"] = str(caught.value)
    return found


def leaves_midway(rank: int, world: int, folder: Path) -> None:
    """The last rank goes while the others wait for its state; they say so, each in a file."""
    x = torch.zeros(1, 3, 5)
    try:
        attend(x, x, x, score=Own("leave" if rank == world - 1 else ""))
    except RankError as error:
        (folder / f"rank-{rank}.txt").write_text(str(error))
    os._exit(0)  # the group is broken: there is nothing to tidy up


def all_calls(rank: int, world: int, folder: Path) -> None:
    results: dict[Any, Any] = {}
    for index, (case, restriction, dtype, impl) in enumerate(CALLS):
        made = kit.call(case, restriction, round_to=dtype).to(dtype)
        # What is compiled joins as anything else does: four processes need not load it too.
        results[index] = run(made, part(kit.KEYS, rank, world), impl="chunked" if world > 2 else impl)
    for each in (uneven, heads, hidden, dropped, recorded, refused):
        results[each.__name__] = each(rank, world)
    if rank == 0:
        torch.save(results, folder / f"results-{world}.pt")
    if world > 2:
        dist.barrier()
        leaves_midway(rank, world, folder)
