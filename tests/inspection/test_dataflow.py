"""Attention that a model computes itself: found in all spellings, with its source and its order."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dikkat

BATCH, HEADS, LENGTH, SIZE = 3, 2, 5, 8
X, Y = (torch.randn(BATCH, LENGTH, SIZE, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))

SOFTMAX: dict[str, Callable[[Tensor], Tensor]] = {
    "method": lambda a: a.softmax(-1),
    "torch": lambda a: torch.softmax(a, dim=-1),
    "functional": lambda a: F.softmax(a, dim=-1, dtype=torch.float32),
    "named": lambda a: F.softmax(input=a, dim=-1),
    "module": nn.Softmax(-1),
    "operator": lambda a: torch.ops.aten.softmax.int(a, -1),
    "raw operator": lambda a: torch.ops.aten._softmax.default(a, -1, False),
    "dropout": lambda a: F.dropout(a.softmax(-1), 0.5, training=False),
}
PRODUCT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "@": lambda w, v: w @ v,
    "from the right": lambda w, v: (v.mT @ w.mT).mT,
    "bmm": lambda w, v: torch.bmm(w.flatten(0, 1), v.reshape(-1, LENGTH, SIZE // HEADS)).unflatten(0, (-1, HEADS)),
    "einsum": lambda w, v: torch.einsum("bhij,bhjd->bhid", w, v),
    "einsum, ellipsis": lambda w, v: torch.einsum("...ij,...jd->...id", w, v),
    "einsum, other order": lambda w, v: torch.einsum("bhij,bjhd->bihd", w, v.transpose(1, 2)).transpose(1, 2),
}
FUSED = {"fused": F.scaled_dot_product_attention, "operator": torch.ops.aten.scaled_dot_product_attention}


class Layer(nn.Module):
    """Self-attention with a residual, by a function of queries, keys and values (B, H, n, d)."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.attend, self.project, self.output = attend, nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.project(x).chunk(3, -1))
        return x + self.output(self.attend(q, k, v).transpose(1, 2).flatten(-2))


def three(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> nn.Module:
    torch.manual_seed(4)
    fused = F.scaled_dot_product_attention
    return nn.Sequential(Layer(fused), Layer(attend), Layer(fused)).eval()


def dense() -> list[Tensor]:
    """The weights of all layers in plain PyTorch, in a graph."""
    x, found = X, []
    for layer in three(F.scaled_dot_product_attention):
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in layer.project(x).chunk(3, -1))
        found.append((q @ k.mT / (SIZE // HEADS) ** 0.5).softmax(-1))
        x = x + layer.output((found[-1] @ v).transpose(1, 2).flatten(-2))
    return [*found, x]


SPELLINGS = {
    **{f"{s}, {p}": (lambda q, k, v, s=SOFTMAX[s], p=PRODUCT[p]: p(s(q @ k.mT / (SIZE // HEADS) ** 0.5), v))
       for s, p in [*((s, "@") for s in SOFTMAX), *(("method", p) for p in PRODUCT)]},
    **FUSED,
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_recorded_and_has_one_relevance(spelling: str) -> None:
    *weights, output = dense()
    model = three(SPELLINGS[spelling])
    with torch.no_grad(), dikkat.record(model, weights=True) as trace:
        model(X)
    torch.testing.assert_close(list(trace.attentions()), [each.detach() for each in weights], rtol=1e-5, atol=1e-6)
    assert ("by its own softmax" in repr(trace)) == (spelling not in FUSED)
    whole = torch.eye(LENGTH).expand(BATCH, -1, -1)
    rolled = whole
    for each, gradient in zip(weights, torch.autograd.grad(output[:, 0, 0].sum(), weights), strict=True):
        whole = whole + (gradient * each).detach().clamp(min=0).mean(1) @ whole
        rolled = (each.detach().mean(1) + torch.eye(LENGTH)) / 2 @ rolled
    found = dikkat.relevance(model, X, target=lambda output: output[:, 0, 0])
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(trace.rollout(), rolled, rtol=1e-4, atol=1e-6)


class Decoder(nn.Module):
    """Layers with names that say nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.src_attn = (nn.MultiheadAttention(SIZE, HEADS, batch_first=True) for _ in range(2))
        self.memory = Layer(SPELLINGS["method, @"])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.memory(x)
        y = y + self.one(y, y, y)[0]
        return y + self.src_attn(y, x, x)[0]


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = Layer(SPELLINGS["method, @"])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.tower(x) * self.tower(y)


class Windows(nn.Module):
    """Two layers on windows of two positions, the second on windows that are shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(F.scaled_dot_product_attention) for _ in range(2)])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for shift, layer in enumerate(self.layers):
            windows = x[:, :4].roll(-shift, 1).reshape(-1, 2, SIZE)
            x = layer(windows).reshape(-1, 4, SIZE).roll(shift, 1)
        return x


@pytest.mark.parametrize("second", [X, Y])
def test_cross_attention_is_told_by_its_inputs(second: Tensor) -> None:
    found = dikkat.attentions(Decoder().eval(), X, second)
    assert (len(found), len(found.encoder_attentions), len(found.cross_attentions)) == (1, 1, 1)


@pytest.mark.parametrize(
    "model", [Siamese, Windows, Decoder, lambda: nn.Transformer(SIZE, HEADS, 1, 1, 9, batch_first=True)]
)
def test_layers_of_several_sequences_are_not_multiplied(model: Callable[[], nn.Module]) -> None:
    made = model().eval()
    with pytest.raises(ValueError, match=r"relevance: got self-attention 1 that|model: got attention of"):
        dikkat.relevance(made, X, Y, target=lambda output: output[:, 0, 0])
    if model in (Siamese, Windows):
        with torch.no_grad(), dikkat.record(made, weights=True) as trace:
            made(X, Y)
        with pytest.raises(ValueError, match="rollout: got self-attention 1 that does not follow number 0"):
            trace.rollout()


class Latents(nn.Module):
    """A text that is read by latents, which look at themselves and are then read by output queries."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.outputs = (nn.Parameter(torch.randn(n, SIZE)) for n in (4, 3))
        self.reads, self.writes = (nn.MultiheadAttention(SIZE, HEADS, batch_first=True) for _ in range(2))
        self.layers = nn.Sequential(Layer(F.scaled_dot_product_attention), Layer(SPELLINGS["method, @"]))

    def forward(self, x: Tensor) -> Tensor:
        latents, outputs = (each.expand(len(x), -1, -1) for each in (self.latents, self.outputs))
        latents = self.layers(self.reads(latents, x, x)[0])
        return self.writes(outputs, latents, latents)[0]


def test_latents_are_no_encoder() -> None:
    found = dikkat.attentions(Latents().eval(), X)
    assert [each.shape[-1] for each in found] == [4, 4]
    assert [each.shape[-1] for each in found.cross_attentions] == [LENGTH, 4]
    assert not found.encoder_attentions


def test_rollout_in_double_precision() -> None:
    model = three(F.scaled_dot_product_attention).double()
    with torch.no_grad(), dikkat.record(model, weights=True) as trace:
        model(X.double())
    assert trace.rollout().dtype == torch.float64


def sink_of(count: int, padding: int, side: str) -> dikkat.Trace:
    """A recording of a batch: a causal head with 90 % on the first real token, without padding and with it."""
    hidden, first = torch.zeros(2, count, dtype=torch.bool), torch.zeros(2, count)
    first[0, 0] = 1
    start = padding if side == "left" else 0
    first[1, start] = 1
    hidden[1, :padding] = side == "left"
    hidden[1, count - padding :] |= side == "right"
    seen = torch.ones(count, count).tril().bool() & ~hidden[:, None]
    others = (seen.sum(-1, keepdim=True) - 1).clamp(min=1)
    bias = torch.log(first[:, None] * 9 * others + (1 - first[:, None])).masked_fill(~seen, -torch.inf)

    class Head(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x * 0, x, x, attn_mask=bias[:, None])

    model = Head()
    with torch.no_grad(), dikkat.record(model, top_k=3) as trace:
        model(torch.randn(2, 1, count, 4))
    return trace


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_neither_a_query_nor_the_first_token(side: str) -> None:
    padded, alone = sink_of(9, 4, side).scores(element=1), sink_of(5, 0, side).scores(element=0)
    for column in ("first", "itself", "previous", "evenly", "queries", "looks"):
        assert padded[column][0] == pytest.approx(alone[column][0], abs=0.03) or padded[column][0] == alone[column][0]
    assert padded["looks"][0] == "first"


def test_tables_have_the_tokens_of_the_element() -> None:
    words = [[f"{place} of {element}" for place in range(LENGTH)] for element in range(BATCH)]
    trace = dikkat.show.attention(three(SPELLINGS["method, @"]), X, tokens=words, element=[*range(BATCH)])
    for element in (0, 1, 2, -1):
        frame = trace.frame(element=element)
        assert list(frame["query_token"]) == [words[element][place] for place in frame["query"]]


def test_first_tries_of_a_page_without_names_have_numbers() -> None:
    trace = dikkat.show.attention(three(SPELLINGS["method, @"]), X)
    assert len(trace) == 3
    assert not trace.tokens
