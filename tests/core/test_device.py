"""Calls as they run on a GPU: held against the kit's twin, and their operations counted. No GPU is needed."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import device
import dikkat
import kit
from dikkat import scores
from dikkat._core import dispatch, implementations, validation
from dikkat._core.implementations import sdpa
from dikkat.inspection import row_blocks

KEPT = ["none", "lengths", "lengths above 0", "lengths a query", "mask", "mask a head", "mask of keys", "causal"]
CASES = [*kit.KINDS, "vector sum", "gaussian, learned", "gated", "dot, capped"]


@kit.each(
    ("case", "restriction", "dtype", "weights"),
    kit.pairwise(
        {
            "case": CASES,
            "restriction": [*KEPT, "all", "exclude", "window", "pair bias"],
            "dtype": [torch.float64, torch.float32, torch.bfloat16],
            "weights": [False, True],
        },
        lambda restriction, dtype, **_: dtype.itemsize > 2 or restriction in KEPT,
    ),
)
def test_a_kept_call_is_right(case: str, restriction: str, dtype: torch.dtype, weights: bool) -> None:
    made = kit.call(case, restriction, round_to=dtype).to(dtype)
    budget = kit.expected(case, restriction, dtype)
    with device.kept():
        found = made.run(return_weights=weights)
        assert bool(dispatch._PROGRAMS) == (restriction in KEPT and case != "dot, capped")
    out = found[0] if weights else found
    came = {"output": out} | kit.gradients(made, out, kit.upstream_of(out))
    for name, tensor in came.items():
        assert tensor.dtype == dtype
        kit.assert_within_budget(name, tensor.detach(), budget)
    if weights:
        kit.assert_within_budget("weights", found[1].detach(), budget)


def test_second_derivatives_of_what_depends_on_values_alone() -> None:
    query, key = torch.randn(2, 3, 5), torch.randn(2, 7, 5)
    value = torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)
    with device.kept():
        out, weights = dikkat.attend(query.double(), key.double(), value, score=scores.Average(), return_weights=True)
        (grad,) = torch.autograd.grad(out.square().sum() + weights.sum(), value, create_graph=True)
        (second,) = torch.autograd.grad(grad.sum(), value)
    torch.testing.assert_close(second, torch.full_like(second, 2 * 3 / 7))


@pytest.mark.parametrize("score", [None, scores.Additive(4, 4, 5)], ids=["dot", "additive"])
def test_a_layer_of_more_queries_than_keys_is_right_when_causal(score: scores.Score | None) -> None:
    torch.manual_seed(0)
    layer = dikkat.MultiHeadAttention(8, 2, score=score).double()
    query, key = torch.randn(2, 7, 8, dtype=torch.float64), torch.randn(2, 5, 8, dtype=torch.float64)
    expected = layer(query, key, key, mask=torch.ones(7, 5, dtype=torch.bool).tril(-2))
    with device.kept():
        torch.testing.assert_close(layer(query, key, key, causal=True), expected, rtol=1e-12, atol=1e-12)


def test_precision_and_checks_that_are_asked_for_anew_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implementations, "CROSSOVERS", implementations.CROSSOVERS._replace(device=0))
    score = scores.Additive(16, 16, 8)
    query, key, value = torch.randn(2, 37, 16), torch.randn(2, 41, 16), torch.randn(2, 41, 8)
    exact = dikkat.attend(*(t.double() for t in (query, key, value)), score=copy.deepcopy(score).double()).float()
    before = torch.get_float32_matmul_precision()
    try:
        with device.device(), torch.no_grad():
            torch.set_float32_matmul_precision("high")
            assert float((dikkat.attend(query, key, value, score=score) - exact).abs().max()) > 2e-6
            torch.set_float32_matmul_precision("highest")
            assert float((dikkat.attend(query, key, value, score=score) - exact).abs().max()) < 2e-6
            lens = torch.tensor([3, 41])
            call: Any = (query, key, value), score, validation.Requested(), None, None, {"valid_lens": lens}
            assert dispatch._signature(*call)
            with dikkat.check_values():
                assert not dispatch._signature(*call)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("case", "restriction"),
    [("dot", "causal"), ("additive", "none"), ("additive", "lengths"), ("gaussian, learned", "causal")],
)
def test_second_derivatives(case: str, restriction: str) -> None:
    made = kit.call(case, restriction)
    leaves = [each for each in made.leaves().values() if each.requires_grad]

    def second(out: Tensor) -> list[Tensor]:
        first = torch.autograd.grad((out * kit.upstream_of(out)).sum(), leaves, create_graph=True, allow_unused=True)
        norm = sum(each.square().sum() for each in first if each is not None)
        return [g for g in torch.autograd.grad(norm, leaves, allow_unused=True) if g is not None]

    with device.kept():
        came = second(made.run())
    for one, other in zip(came, second(kit.twin(made)[0]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("restriction", ["none", "lengths", "lengths a query", "mask", "causal"])
def test_a_layer_is_what_its_projections_say(restriction: str) -> None:
    torch.manual_seed(0)
    layer = dikkat.MultiHeadAttention(6, 3, key_size=5, value_size=7).double()
    query, key, value = (torch.randn(2, *size, dtype=torch.float64) for size in ((4, 6), (11, 5), (11, 7)))
    given: dict[str, dict[str, Any]] = {
        "none": {},
        "lengths": {"valid_lens": torch.tensor([3, 0])},
        "lengths a query": {"valid_lens": torch.tensor([[3, 0, 11, 7], [1, 1, 2, 0]])},
        "mask": {"mask": torch.rand(2, 4, 11) < 0.4},
        "causal": {"causal": True},
    }
    lens = given[restriction].get("valid_lens", torch.tensor([11, 11]))
    seen = torch.arange(11) < lens.view(2, -1, 1)
    seen = seen & given[restriction].get("mask", torch.tensor(True))
    seen = seen & (torch.ones(4, 11).tril(7).bool() if restriction == "causal" else True)
    key[~seen.expand(2, 4, 11).any(-2)] = value[~seen.expand(2, 4, 11).any(-2)] = math.nan
    by_side = zip(
        (query, key.nan_to_num(), value.nan_to_num()),
        (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight),
        layer.in_proj_bias.chunk(3),
        strict=True,
    )
    sides = (nn.functional.linear(*each).unflatten(-1, (3, -1)).transpose(1, 2) for each in by_side)
    q, k, v = sides
    scored = (q @ k.mT / math.sqrt(2)).masked_fill(~seen[:, None], -math.inf).softmax(-1).nan_to_num()
    expected = layer.out_proj((scored @ v).transpose(1, 2).flatten(-2))
    with device.kept():
        came, weights = layer(query, key, value, return_weights=True, **given[restriction])
        alone = layer(query, key, value, **given[restriction])
    torch.testing.assert_close(weights, scored)
    for out in (came, alone):
        torch.testing.assert_close(out, expected)
    by_plain = torch.autograd.grad(expected.square().sum(), list(layer.parameters()))
    for one, other in zip(torch.autograd.grad(alone.square().sum(), list(layer.parameters())), by_plain, strict=True):
        torch.testing.assert_close(one, other)


# --- how many kernels a call launches: on tensors without numbers, so that sizes are free and none can be read

B, N, M, FEATURES, VALUES, HEADS = 8, 256, 256, 128, 64, 4
MADE: dict[str, Callable[[], Any]] = {
    "additive": lambda: scores.Additive(FEATURES, FEATURES, FEATURES),
    "scaled dot": scores.ScaledDot,
    "gaussian": lambda: scores.Gaussian([1.3] * FEATURES, learnable=True),
}
# Beyond plain PyTorch's. A mask costs more: who sees nothing is not known, and what is hidden from some is left out.
MORE = {"none": 4, "lengths": 4, "causal": 5, "mask of keys": 5, "mask": 13}


def leaf(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta", requires_grad=True)


def restricted(restriction: str) -> dict[str, Any]:
    made: dict[str, dict[str, Any]] = {
        "none": {},
        "lengths": {"valid_lens": torch.empty(B, dtype=torch.int64, device="meta")},
        "causal": {"causal": True},
        "mask of keys": {"mask": torch.empty(B, 1, M, dtype=torch.bool, device="meta")},
        "mask": {"mask": torch.empty(B, N, M, dtype=torch.bool, device="meta")},
    }
    return made[restriction]


def hidden(restrictions: dict[str, Any]) -> Tensor | None:
    """As textbooks make a mask."""
    if (lens := restrictions.get("valid_lens")) is not None:
        return (torch.arange(M, device="meta") >= lens[:, None])[:, None]
    if "causal" in restrictions:
        return torch.ones(N, M, dtype=torch.bool, device="meta").triu(1)
    return ~restrictions["mask"] if "mask" in restrictions else None


def textbook(score: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Three lines of plain PyTorch."""
    if isinstance(score, scores.Additive):
        logits = score.w_v(torch.tanh(score.W_q(query)[:, :, None] + score.W_k(key)[:, None])).squeeze(-1)
    elif isinstance(score, scores.Gaussian):
        sigma = score.bandwidth
        logits = -((query / sigma)[:, :, None] - (key / sigma)[:, None]).square().sum(-1) / 2
    else:
        logits = query @ key.mT / math.sqrt(query.shape[-1])
    return torch.softmax(logits if mask is None else logits.masked_fill(mask, -math.inf), -1) @ value


def launches(run: Callable[[], Tensor], leaves: list[Tensor]) -> int:
    """Of a forward and its backward, the third time."""
    upstream = torch.empty_like(run())

    def both() -> None:
        torch.autograd.grad(run(), leaves, upstream)

    both()
    return len(device.operations(both).names)


@kit.each("case", MADE)
@kit.each("restriction", MORE)
def test_a_call_launches_few_kernels(case: str, restriction: str) -> None:
    score, restrictions = MADE[case]().to("meta"), restricted(restriction)
    query, key, value = leaf(B, N, FEATURES), leaf(B, M, FEATURES), leaf(B, M, VALUES)
    leaves = [query, key, value, *score.parameters()]
    plain = launches(lambda: textbook(score, query, key, value, hidden(restrictions)), leaves)
    with device.device():
        ours = launches(lambda: dikkat.attend(query, key, value, score=score, **restrictions), leaves)
    assert ours <= plain + MORE[restriction], (ours, plain)


@pytest.mark.parametrize(("restriction", "more"), [("none", 2), ("causal", 2), ("lengths", 5)])
def test_a_layer_launches_few_kernels(restriction: str, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "_TESTED_DEVICES", ("meta",))
    layer, restrictions = dikkat.MultiHeadAttention(FEATURES, HEADS).to("meta"), restricted(restriction)
    query, key = leaf(B, N, FEATURES), leaf(B, M, FEATURES)

    def plain() -> Tensor:
        by_side = zip((query, key, key), layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3), strict=True)
        sides = (nn.functional.linear(*each).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in by_side)
        mask = None if restriction != "lengths" else ~hidden(restrictions)[:, None]
        out = nn.functional.scaled_dot_product_attention(*sides, attn_mask=mask, is_causal=restriction == "causal")
        return layer.out_proj(out.transpose(1, 2).flatten(-2))

    leaves = [query, key, *layer.parameters()]
    fused = launches(plain, leaves)
    with device.device():
        ours = launches(lambda: layer(query, key, key, **restrictions), leaves)
    assert ours <= fused + more, (ours, fused)


def test_a_decoders_step_launches_few_kernels() -> None:
    score = MADE["additive"]().to("meta")
    query, key, value = leaf(B, 1, FEATURES), leaf(B, M, FEATURES), leaf(B, M, VALUES)
    restrictions = restricted("lengths")
    memory = dikkat.Memory(score, key, value, **restrictions)
    leaves = [query, key, value, score.W_q.weight, score.w_v.weight]

    def plain() -> Tensor:
        logits = score.w_v(torch.tanh(score.W_q(query)[:, :, None] + key[:, None])).squeeze(-1)
        return torch.softmax(logits.masked_fill(hidden(restrictions), -math.inf), -1) @ value

    with device.device():
        ours = launches(lambda: dikkat.attend_memory(query, memory), leaves)
    assert ours <= launches(plain, leaves) + 4


# --- no number is read


@kit.each("case", kit.KINDS)
@kit.each("restriction", kit.RESTRICTIONS)
def test_no_call_reads_a_number(case: str, restriction: str) -> None:
    made = kit.call(case, restriction)
    with device.device():

        def both() -> None:
            out = made.run()
            kit.gradients(made, out, kit.upstream_of(out))
            made.state()

        assert not [device.operations(both).read for _ in range(2)][-1]


@pytest.mark.parametrize("which", ["layer", "memory", "selected", "recorded"])
def test_nothing_else_reads_a_number(which: str) -> None:
    torch.manual_seed(0)
    x, lens = torch.randn(3, 5, 8), torch.tensor([5, 0, 2])
    layer, score = dikkat.MultiHeadAttention(8, 2), scores.Additive(8, 8, 7)

    def recorded() -> None:
        with dikkat.record(layer, sums=True, top_k=2, argmax=True, rows=[1]):
            layer(x, x, x, lens)

    with device.device():
        memory = dikkat.prepare(x, x, score=score, valid_lens=lens)
        runs: dict[str, Callable[[], object]] = {
            "layer": lambda: layer(x, x, x, lens).sum().backward(),
            "memory": lambda: dikkat.attend_memory(x[:, :1], memory),
            "selected": lambda: dikkat.attend_memory(x[:2, :1], memory.select(torch.tensor([2, 0]))),
            "recorded": recorded,
        }
        for _ in range(2):
            assert not device.operations(runs[which]).read


# --- recording


@pytest.mark.parametrize("case", kit.KINDS)
@pytest.mark.parametrize("restriction", ["none", "lengths", "mask", "causal", "pair bias that hides"])
def test_what_is_seen_is_right(case: str, restriction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "_BLOCK", 2 * kit.BATCH * kit.HEADS * kit.KEYS)  # several blocks
    monkeypatch.setattr(row_blocks, "_GROUP", 2)  # and groups of keys
    made = kit.call(case, restriction)
    _, lse, weights = (each.detach() for each in kit.twin(made))
    with device.device():
        seen = dikkat.inspect(
            made.query, made.key, score=made.score, sums=True, top_k=1, entropy=True, overview=(2, 3), **made.restricted
        )
    torch.testing.assert_close(seen.lse, lse)
    torch.testing.assert_close(seen.sums, weights.sum(-2))
    torch.testing.assert_close(seen.entropy, torch.special.entr(weights).sum(-1))
    torch.testing.assert_close(seen.top_weights, weights.amax(-1, keepdim=True))
    some = weights.amax(-1) > 0
    assert torch.equal(seen.top_keys[..., 0], weights.argmax(-1).where(some, -1))


def test_the_first_of_equal_weights_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weights = torch.randint(0, 4, (3, 5, 97)) / 4  # many of each
    expected = [[sorted(range(97), key=lambda j: -row[j])[:3] for row in rows] for rows in weights.tolist()]
    monkeypatch.setattr(row_blocks, "_GROUP", 7)
    assert row_blocks._largest_weights(weights, 3)[1].tolist() == expected


def test_recording_a_layer_launches_few_kernels_and_builds_no_whole_map() -> None:
    x = torch.empty(1, 12, 4096, 64, dtype=torch.bfloat16, device="meta")
    tiles = len(list(row_blocks.blocks(4096, 12 * 4096, x.device)))
    with device.device():
        run = lambda: dikkat.inspect(x, x, score=scores.ScaledDot(), causal=True, sums=True, top_k=8)  # noqa: E731
        assert len(device.operations(run).names) <= 30 * (tiles + 1)
    assert 1 < tiles < 9
