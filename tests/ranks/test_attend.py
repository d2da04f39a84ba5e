"""Attention over 2 and 4 gloo ranks against the twin in `kit.py`."""

import os
import re

import pytest
import torch

import dikkat
import kit
from dikkat.distributed import attend, positions
from dikkat.distributed.order import ORDERS
from dikkat.scores import Dot
from dikkat.storage.locks import locked
from ranks.cases import CALLS, COMPILED, DROPOUT, dropped_case, heads_case, hidden_case, restricted_case
from ranks.ring import run_ranks


@pytest.fixture(scope="module", params=[2, 4])
def results(request, tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    # Test processes side by side share what one of them has the ranks do.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"ranks-{request.param}"
    folder.mkdir(exist_ok=True)
    with locked(folder / "lock", wait=True):
        if not (folder / "done").exists():
            for rank, done in enumerate(run_ranks(request.param, folder, "ranks.cases:all_calls")):
                assert done.returncode == 0, f"rank {rank}: {done.stderr[-3000:]}"
            (folder / "done").touch()
    left = {path.stem: path.read_text() for path in folder.glob("rank-*.txt")}
    return {"world": request.param, "left": left, **torch.load(folder / f"results-{request.param}.pt")}


def _check(label, case, restriction, dtype, found):
    budget = kit.expected(case, restriction, dtype)
    for name, tensor in found.items():
        assert tensor.dtype == dtype
        try:
            kit.assert_within_budget(name, tensor, budget)
        except AssertionError as error:
            raise AssertionError(f"{label}: {error}") from None


def test_values_and_gradients(results):
    """Restrictions leave some ranks without a key, and with four ranks one has a single key."""
    for index, (case, restriction, dtype, method, small) in enumerate(CALLS):
        label = f"{case}, {restriction}, {dtype}, {method}, {'many pieces' if small else 'one piece'}"
        _check(label, case, restriction, dtype, results[index])


def test_compiled_blocks(results):
    for case, restriction, method in COMPILED:
        _check(f"{case}, {method}", case, restriction, torch.float64, results[case, restriction])


def test_ranks_without_a_key(results):
    for method, found in results["uneven"].items():
        _check(f"no key on the first rank, {method}", "scaled dot", "none", torch.float64, found)


def test_distributed_tensors(results):
    for found in results["dtensor"].values():
        _check("DTensors", "scaled dot", "lengths", torch.float64, found)
    assert len(results["dtensor"]) == 2


def test_heads(results):
    for method, found in results["heads"].items():
        layer, tensors, lens = heads_case(method, alone=True)
        out = layer(*tensors, lens)
        grads = torch.autograd.grad(out, [*tensors, *layer.parameters()], kit.upstream_of(out))
        names = ["output", "query", "key", "value", *dict(layer.named_parameters())]
        for name, exact in zip(names, [out, *grads], strict=True):
            torch.testing.assert_close(found[name], exact.detach(), rtol=1e-12, atol=1e-12, msg=f"{method}: {name}")


def test_each_rank_records_what_its_own_queries_look_at(results):
    layer, tensors, lens = heads_case("ring", alone=True)
    _, of_heads = layer(*tensors, lens, causal=True, return_weights=True)
    _, _, of_call, *_ = kit.twin(restricted_case())
    right = {"ring": of_heads, "reduce": of_heads}
    right |= {"zigzag, all": of_call, "reduce, all": of_call}
    assert results["recorded"].keys() == right.keys()
    for name, weights in right.items():
        for rank, seen in enumerate(results["recorded"][name]):
            own = weights[..., seen["positions"], :].detach()
            where = f"{name}, rank {rank}"
            torch.testing.assert_close(seen["rows"], own, rtol=1e-10, atol=1e-12, msg=where)
            torch.testing.assert_close(seen["sums"], own.sum(-2), rtol=1e-10, atol=1e-12, msg=where)
            if not name.startswith("reduce"):
                assert len(seen["positions"]) < weights.shape[-2]


def test_what_nobody_sees_has_no_effect(results):
    made = hidden_case(0.0)
    out, *_ = kit.twin(made)
    exact = {"output": out.detach(), **kit.gradients(made, out, kit.upstream_of(out))}
    for name, tensor in results["hidden"].items():
        torch.testing.assert_close(tensor, exact[name], rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_dropped_weights(results):
    """Each is dropped by itself, on whichever rank its query and its key are, and in the backward as in the forward."""
    made = dropped_case()
    weights = dikkat.attention_weights(made.query, made.key, score=made.score, impl="reference")
    for method, found in results["dropped"].items():
        kept = found["output"] != 0
        assert abs(float(kept.double().mean()) - (1 - DROPOUT)) < 4 * (DROPOUT * (1 - DROPOUT) / kept.numel()) ** 0.5
        for axis in (1, 2):  # no block of keys, and none of queries, is dropped as another
            size = kept.shape[axis] // results["world"]
            first, *others = kept.split(size, axis)[: results["world"]]
            for other in others:
                alike = float((first == other).double().mean())
                assert abs(alike - (DROPOUT**2 + (1 - DROPOUT) ** 2)) < 0.05
        out = (weights * kept / (1 - DROPOUT)) @ made.value
        exact = {"output": out.detach(), **kit.gradients(made, out, kit.upstream_of(out))}
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, exact[name], rtol=1e-12, atol=1e-12, msg=f"{method}: {name}")


def test_ranks_that_disagree_are_told(results):
    found = results["refused"]
    last = results["world"] - 1
    keys = 3 * (last + 1)
    assert found["dtype"] == (
        f"dtype: got torch.float64 on rank {last} and torch.float32 on rank 0; expected the same on all ranks"
    )
    for name, text in {
        "features": rf"query: got \(2, …, 7\) on rank {last} and \(2, …, 5\) on rank 0",
        "score": rf"score: got Dot of sum .* on rank {last} and ScaledDot of sum .* on rank 0",
        "bandwidth": rf"score: got Gaussian of sum .* on rank {last} and Gaussian of sum .* on rank 0",
        "order": rf"order: got zigzag on rank {last} and contiguous on rank 0",
        "lengths": rf"valid_lens: got lengths of sum .* on rank {last} and .* on rank 0",
        "one rank's mistake": rf"group: rank {last} refuses its call: query, key, value: got shapes",
        "one rank's lengths": rf"group: rank {last} refuses its call: valid_lens: got 100; expected 0 to {keys}",
        "one rank's score": rf"group: rank {last} refuses its call: mat1 and mat2 shapes cannot be multiplied",
        "a score's tensor": rf"score: got Own of sum .* on rank {last} and Own of sum .* on rank 0",
        "a score's switch": rf"score: got Own of sum .* on rank {last} and Own of sum .* on rank 0",
        "gradients": rf"gradients: got True on rank {last} and False on rank 0",
        "recorded": rf"recorded: got True on rank {last} and False on rank 0",
    }.items():
        assert re.match(text, found[name]), found[name]
    if "late" in found:
        assert found["late"].startswith("group: rank 1 of 2 did not answer in time, as rank 0 sees it; expected ")


def test_a_rank_that_leaves_is_named(results):
    seen_by = {f"rank-{rank}": f"group: rank 2 of 4 has left, as rank {rank} sees it; expected " for rank in (0, 1, 3)}
    seen_by |= {
        f"rank-{rank}-reduce": f"group: rank 2 of 3 has left, as rank {rank} sees it; expected " for rank in (0, 1)
    }
    assert results["left"].keys() == (seen_by.keys() if results["world"] == 4 else set())
    for name, text in results["left"].items():
        assert text.startswith(seen_by[name]), text
        assert "\n" not in text


def test_positions_are_every_one_once():
    for length, world in ((0, 2), (1, 4), (7, 4), (16, 4), (23, 3)):
        for order in ORDERS:
            parts = [positions(length, rank, world, order) for rank in range(world)]
            assert torch.cat(parts).sort().values.tolist() == list(range(length))
    assert [positions(16, rank, 4, "zigzag").tolist() for rank in range(4)] == [
        [0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9],
    ]  # fmt: skip
    with pytest.raises(ValueError, match="order: got 'random'; expected 'contiguous' or 'zigzag'"):
        positions(4, 0, 2, "random")
    with pytest.raises(ValueError, match="rank: got 2 of 2; expected 0 to 1"):
        positions(4, 2, 2)


def test_without_a_group():
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="group: got no process group; expected one"):
        attend(x, x, x, score=Dot())
