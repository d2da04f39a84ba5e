"""Summaries of inner products by Triton's kernel."""

import pytest
import torch
from torch import Tensor

import dikkat
from dikkat import scores
from dikkat._core.implementations.triton import launch as gpu_launch
from dikkat._core.implementations.triton import summaries

DEVICE = "cpu" if gpu_launch._INTERPRETED else "cuda"
N, M, TOP = 19, 53, 5


@pytest.fixture(autouse=True)
def several_tiles(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Tiles of few rows; and how often the kernel's summaries were asked for."""
    ran: list[None] = []
    run = summaries.summarise
    monkeypatch.setattr(summaries, "_SCORES", 8 * M * 2)
    monkeypatch.setattr(summaries, "_ROWS", 4)
    monkeypatch.setattr(summaries, "summarise", lambda *given: (ran.append(None), run(*given))[1])
    return ran


@pytest.mark.parametrize("restriction", ["none", "lengths", "lengths a query", "causal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_summaries_are_those_of_the_weights(restriction: str, dtype: torch.dtype, several_tiles: list[None]) -> None:
    torch.manual_seed(0)
    lead = (2, 1)
    query, key = (torch.randn(*lead, size, 16, device=DEVICE).to(dtype) for size in (N, M))
    lens = {"lengths": torch.tensor([0, 31]), "lengths a query": torch.randint(0, M + 1, (2, N))}.get(restriction)
    value = torch.randn(*lead, M, 7, device=DEVICE).to(dtype)
    given = {"valid_lens": None if lens is None else lens.to(DEVICE), "causal": restriction == "causal"}
    found = dikkat.inspect(
        query, key, value=value, score=scores.ScaledDot(), sums=True, top_k=TOP, argmax=True, max_score=True, **given
    )
    assert several_tiles
    score = (query.double() @ key.double().mT) / 4
    right = score.masked_fill(hidden(given, score), -torch.inf)
    weights = right.softmax(-1).nan_to_num(0.0)
    slack = {"rtol": 2e-5 if dtype == torch.float32 else 2e-2, "atol": 1e-5 if dtype == torch.float32 else 2e-2}
    torch.testing.assert_close(found.sums.double(), weights.sum(-2), **slack)
    torch.testing.assert_close(found.lse.double(), right.logsumexp(-1), **slack)
    torch.testing.assert_close(found.max_score.double(), right.amax(-1), **slack)
    best = weights.sort(dim=-1, descending=True, stable=True)
    torch.testing.assert_close(found.top_weights.double(), best.values[..., :TOP], **slack)
    own = weights.gather(-1, found.top_keys.clamp(min=0)).masked_fill(found.top_keys < 0, 0.0)
    torch.testing.assert_close(own, best.values[..., :TOP], **slack)
    assert torch.equal(found.argmax, found.top_keys[..., 0])
    torch.testing.assert_close(found.output.double(), weights @ value.double(), **slack)


def hidden(given: dict[str, Tensor | bool | None], score: Tensor) -> Tensor:
    """Booleans of the pairs that take no part, by loops."""
    out = torch.zeros_like(score, dtype=torch.bool)
    for b, i, j in ((b, i, j) for b in range(2) for i in range(N) for j in range(M)):
        lens = given["valid_lens"]
        length = M if lens is None else int(lens[b] if lens.ndim == 1 else lens[b, i])  # type: ignore[union-attr]
        out[b, :, i, j] = j >= length or (bool(given["causal"]) and j > i + M - N)
    return out


def test_of_equal_weights_the_first_come_first() -> None:
    query, key = torch.zeros(1, 3, 16, device=DEVICE), torch.zeros(1, M, 16, device=DEVICE)
    found = dikkat.inspect(query, key, score=scores.Dot(), top_k=TOP)
    assert found.top_keys.tolist() == [[[*range(TOP)]] * 3]


def test_a_nan_is_told() -> None:
    query, key = torch.zeros(1, 3, 16, device=DEVICE), torch.zeros(1, M, 16, device=DEVICE)
    query[0, 1] = torch.nan
    found = dikkat.inspect(query, key, score=scores.Dot(), top_k=2, sums=True)
    assert found.top_weights[0, 1].isnan().all()
    assert found.sums.isnan().all()
    assert found.top_weights[0, 2].isfinite().all()
