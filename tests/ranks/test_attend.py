"""Attention over 2 and 4 gloo ranks against the twin in `kit.py`."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore, destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import dikkat
import kit
from command import once
from dikkat.distributed import attend
from dikkat.scores import Dot
from processes import python
from ranks.cases import CALLS, DROPOUT, dropped_case, heads_case, hidden_case

# One of the processes of a gloo group.
RANK = """
import sys
from pathlib import Path
import torch, torch.distributed as dist
from ranks.cases import all_calls
torch.set_num_threads(1)
rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), world), rank=rank, world_size=world)
all_calls(rank, world, folder)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module", params=[2, 4])
def results(request, tmp_path_factory):
    with once(tmp_path_factory, f"ranks-{request.param}") as (folder, new):
        if new:
            with ThreadPoolExecutor(request.param) as pool:
                list(pool.map(lambda rank: python(RANK, rank, request.param, folder), range(request.param)))
    left = {path.stem: path.read_text() for path in folder.glob("rank-*.txt")}
    return {"world": request.param, "left": left, **torch.load(folder / f"results-{request.param}.pt")}


def _assert_within_budget(label, case, restriction, dtype, found):
    budget = kit.expected(case, restriction, dtype)
    for name, tensor in found.items():
        assert tensor.dtype == dtype
        try:
            kit.assert_within_budget(name, tensor, budget)
        except AssertionError as error:
            raise AssertionError(f"{label}: {error}") from None


def test_values_and_gradients(results):
    """Restrictions leave some ranks without a key, and with four ranks one has a single key."""
    for index, (case, restriction, dtype, impl) in enumerate(CALLS):
        _assert_within_budget(f"{case}, {restriction}, {dtype}, {impl}", case, restriction, dtype, results[index])


def test_ranks_without_a_key(results):
    _assert_within_budget("no key on the first rank", "scaled dot", "none", torch.float64, results["uneven"])


def test_heads(results):
    layer, tensors, lens = heads_case(alone=True)
    out = layer(*tensors, lens)
    grads = torch.autograd.grad(out, [*tensors, *layer.parameters()], kit.upstream_of(out))
    names = ["output", "query", "key", "value", *dict(layer.named_parameters())]
    for name, exact in zip(names, [out, *grads], strict=True):
        torch.testing.assert_close(results["heads"][name], exact.detach(), rtol=1e-12, atol=1e-12, msg=name)


def test_each_rank_records_what_queries_look_at(results):
    layer, tensors, lens = heads_case(alone=True)
    _, of_heads = layer(*tensors, lens, causal=True, return_weights=True)
    _, _, of_call, *_ = kit.twin(kit.call("additive", "all"))
    for name, weights in {"heads": of_heads, "all": of_call}.items():
        for rank, seen in enumerate(results["recorded"][name]):
            where = f"{name}, rank {rank}"
            torch.testing.assert_close(seen["rows"], weights.detach(), rtol=1e-10, atol=1e-12, msg=where)
            torch.testing.assert_close(seen["sums"], weights.detach().sum(-2), rtol=1e-10, atol=1e-12, msg=where)


def test_what_nobody_sees_has_no_effect(results):
    made = hidden_case(0.0)
    _assert_exact(results["hidden"], made, kit.twin(made)[0])


def test_dropped_weights(results):
    """Each is dropped by itself, on whichever rank its key is, and in the backward as in the forward."""
    made, found = dropped_case(), results["dropped"]
    weights = dikkat.attention_weights(made.query, made.key, score=made.score, impl="reference")
    kept = found["output"] != 0
    assert abs(float(kept.double().mean()) - (1 - DROPOUT)) < 4 * (DROPOUT * (1 - DROPOUT) / kept.numel()) ** 0.5
    size = kept.shape[-1] // results["world"]
    first, *others = kept.split(size, -1)[: results["world"]]
    for other in others:  # the keys of no rank are dropped as those of another
        alike = float((first == other).double().mean())
        assert abs(alike - (DROPOUT**2 + (1 - DROPOUT) ** 2)) < 0.05
    _assert_exact(found, made, (weights * kept / (1 - DROPOUT)) @ made.value)


def _assert_exact(found, made, out):
    exact = {"output": out.detach(), **kit.gradients(made, out, kit.upstream_of(out))}
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, exact[name], rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_ranks_that_disagree_are_told(results):
    found, last = results["refused"], results["world"] - 1
    keys = 3 * (last + 1)
    assert found["dtype"] == (
        f"dtype: got torch.float64 on rank {last} and torch.float32 on rank 0; expected the same on all ranks"
    )
    for name, text in {
        "features": rf"query: got \(2, 3, 7\) on rank {last} and \(2, 3, 5\) on rank 0",
        "score": rf"score: got Dot of \[\] on rank {last} and ScaledDot of \[\] on rank 0",
        "causal": rf"causal: got True on rank {last} and False on rank 0",
        "lengths": rf"valid_lens: got \(2, 3, 'torch.int64'\) on rank {last} and \(2, 'torch.int64'\) on rank 0",
        "one rank's mistake": rf"group: rank {last} raised an error: query, key, value: got shapes",
        "one rank's lengths": rf"group: rank {last} raised an error: valid_lens: got 100; expected 0 to {keys}",
        "one rank's score": rf"group: rank {last} raised an error: mat1 and mat2 shapes cannot be multiplied",
        "gradients": rf"gradients: got True on rank {last} and False on rank 0",
        "recorded": rf"recorded: got True on rank {last} and False on rank 0",
    }.items():
        assert re.match(text, found[name]), found[name]


def test_a_rank_that_leaves_ends_the_call_of_the_others(results):
    assert results["left"].keys() == ({"rank-0", "rank-1", "rank-2"} if results["world"] == 4 else set())
    for name, text in results["left"].items():
        assert text.startswith(f"group: rank {name[-1]} found that another of 4 ranks left or did not answer in time (")
        assert "\n" not in text


def test_a_call_that_cannot_be_made():
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="group: got no process group; expected one"):
        attend(x, x, x, score=Dot())
    with pytest.raises(TypeError, match=r"lens: got an unknown argument; expected mask, .* valid_lens"):
        attend(x, x, x, score=Dot(), lens=2)


@pytest.mark.parametrize(
    "given", [{"window": (1, 1)}, {"segment_ids": torch.zeros(1, 3).long()}, {"bias": torch.zeros(3, 3)}], ids=str
)
def test_what_ranks_do_not_take_is_refused_by_name(given):
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        x = torch.zeros(1, 3, 2)
        with pytest.raises(ValueError, match=f"{next(iter(given))}: got a value with keys on several ranks"):
            attend(x, x, x, score=Dot(), **given)
    finally:
        destroy_process_group()


def test_a_second_derivative_is_refused_by_name():
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        x = torch.randn(1, 3, 2, requires_grad=True)
        (grad,) = torch.autograd.grad(attend(x, x, x, score=Dot()).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="a group has no second derivatives"):
            torch.autograd.grad(grad.sum(), x, allow_unused=True)
    finally:
        destroy_process_group()


def test_a_distributed_tensor_is_refused_by_name() -> None:
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        x = torch.ones(1, 3, 2)
        spread = distribute_tensor(x, init_device_mesh("cpu", (1,)), [Replicate()])
        for given in ((spread, x, x), (x, spread, x), (x, x, spread)):
            with pytest.raises(TypeError, match="got a DTensor; expected this rank's tensor, from its to_local"):
                dikkat.attend(*given, score=Dot())
        torch.testing.assert_close(dikkat.attend(spread.to_local(), x, x, score=Dot()), x)
    finally:
        destroy_process_group()
