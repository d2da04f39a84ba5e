"""Attention that a model computes itself: found in all spellings, with its source and its order."""

import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dikkat
from dikkat.inspection.dataflow import Dataflow

BATCH, HEADS, LENGTH, SIZE = 3, 2, 5, 8
X, Y = (torch.randn(BATCH, LENGTH, SIZE, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))

SOFTMAX: dict[str, Callable[[Tensor], Tensor]] = {
    "method": lambda a: a.softmax(-1),
    "torch": lambda a: torch.softmax(a, dim=-1),
    "functional": lambda a: F.softmax(a, dim=-1, dtype=torch.float32),
    "named": lambda a: F.softmax(input=a, dim=-1),
    "axis": lambda a: a.softmax(axis=-1),  # type: ignore[call-overload]
    "module": nn.Softmax(-1),
    "operator": lambda a: torch.ops.aten.softmax.int(a, -1),
    "raw operator": lambda a: torch.ops.aten._softmax.default(a, -1, False),
    "dropout": lambda a: F.dropout(a.softmax(-1), 0.5, training=False),
    "softmin": lambda a: F.softmin(-a, dim=-1),
    "exp / sum": lambda a: a.exp() / a.exp().sum(-1, keepdim=True),
    "exp / (sum + 1e-9)": lambda a: torch.exp(a - a.amax(-1, keepdim=True)) / (
        torch.sum(torch.exp(a - a.amax(-1, keepdim=True)), -1)[..., None] + 1e-9
    ),
    "exp * (1 / sum)": lambda a: torch.ones_like(a) * a.exp() * a.exp().sum(-1, keepdim=True).reciprocal(),
    "exp /= sum": lambda a: operator.itruediv(e := a.exp().masked_fill(a < -99, 0.0), e.sum(-1, keepdim=True)),
    "exp_, / sum": lambda a: (e := (a * 1).exp_()) / e.sum(-1, keepdim=True),
    "exp, normalize": lambda a: F.normalize(torch.exp(a), p=1, dim=-1),
    "exp(a - logsumexp)": lambda a: (a - a.logsumexp(-1, keepdim=True)).exp(),
    "exp(log_softmax)": lambda a: F.log_softmax(a, -1).exp(),
    "keys first": lambda a: (a.mT.exp() / a.mT.exp().sum(-2, keepdim=True)).mT,
}  # fmt: skip
PRODUCT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "@": lambda w, v: w @ v,
    "from the right": lambda w, v: (v.mT @ w.mT).mT,
    "bmm": lambda w, v: torch.bmm(w.flatten(0, 1), v.reshape(-1, LENGTH, SIZE // HEADS)).unflatten(0, (-1, HEADS)),
    "einsum": lambda w, v: torch.einsum("bhij,bhjd->bhid", w, v),
    "einsum, ellipsis": lambda w, v: torch.einsum("...ij,...jd->...id", w, v),
    "sum of products": lambda w, v: (w[..., None] * v[:, :, None]).sum(-2),
    "sum of products, keys first": lambda w, v: (v[:, :, :, None] * w.mT.unsqueeze(-1)).sum(axis=(2,)),  # type: ignore
    "einsum, other order": lambda w, v: torch.einsum("bhij,bjhd->bihd", w, v.transpose(1, 2)).transpose(1, 2),
}
# Between softmax and product, on weights that no backward needs: functions that leave the numbers as they are.
BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "mask * weights": lambda w: torch.ones_like(w) * w,
    "gate of each head": lambda w: torch.ones(HEADS, 1, 1) * w[:1, :1].new_ones(()) * w,
    "+ 0": lambda w: 0 + w + 0,
    "+= 0": lambda w: w.__iadd__(0),
    "*= 1": lambda w: w.__imul__(1),
    "masked_fill_": lambda w: w.masked_fill_(w < 0, 0),
    "weights[...] =": lambda w: [w, w.__setitem__((..., slice(0)), 0)][0],
    "normalize": lambda w: F.normalize(w, p=1, dim=-1),
    "where": lambda w: torch.where(w < 0, torch.zeros_like(w), w),
    "repeat": lambda w: w.repeat_interleave(2, 1)[:, ::2],
    "expand": lambda w: w[:, None].expand(-1, 1, -1, -1, -1).squeeze(1),
    "indices": lambda w: w[..., torch.arange(LENGTH), :],
    "after dropout": lambda w: F.dropout(w, 0.5, training=False).mul_(torch.ones_like(w)),
    "mix of heads": lambda w: torch.einsum("bhij,hg->bgij", w, torch.eye(HEADS)),
    "linear mix of heads": lambda w: F.linear(w.permute(0, 2, 3, 1), torch.eye(HEADS)).permute(0, 3, 1, 2),
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
    **{name: (lambda q, k, v, f=f: f((q @ k.mT / (SIZE // HEADS) ** 0.5).softmax(-1) * 1) @ v)
       for name, f in BETWEEN.items()},
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


# Of queries and keys (n, d), (m, d): weights that a function loses, as it does not leave weights.
LOSING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean of heads": lambda w, v: w.mean(1, keepdim=True) @ v,
    "power": lambda w, v: w**2 @ v,
    "difference": lambda w, v: (w - w.mean()) @ v,
    "another column": lambda w, v: torch.cat([w, w[..., :1]], -1)[..., :-1] @ v,
    "vmap of a product": lambda w, v: torch.vmap(torch.matmul)(w, v),
    "vmap of a sum of products": lambda w, v: torch.vmap(lambda a, b: (a[..., None] * b[:, None]).sum(-2))(w, v),
    "vmap of a vmap": lambda w, v: torch.vmap(torch.vmap(torch.mm))(w, v),
    "vmap of dropout and a product": lambda w, v: torch.vmap(lambda a, b: F.dropout(a, 0.0) @ b)(w, v),
    "three operands": lambda w, v: torch.einsum("bhij,bhjd,hg->bgid", w, v, torch.eye(HEADS)),
    "baddbmm": lambda w, v: torch.baddbmm(
        torch.zeros(()), w.flatten(0, 1), v.reshape(-1, LENGTH, SIZE // HEADS)
    ).unflatten(0, (-1, HEADS)),
}  # fmt: skip


@pytest.mark.parametrize("product", LOSING.values(), ids=LOSING)
def test_weights_that_are_not_followed_are_told_once(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    model = three(lambda q, k, v: product((q @ k.mT).softmax(-1), v))
    with pytest.warns(UserWarning, match="record: '1': not recorded") as told, dikkat.record(model) as trace:
        model(model(X))
    assert len(told) == 1
    assert trace.names == ["0", "2"]
    with pytest.warns(UserWarning, match="relevance: left out weights"):
        dikkat.relevance(model, X, target=lambda output: output[:, 0, 0])


@pytest.mark.parametrize(
    "attend",
    [
        lambda q, k, v: (e := (q @ k.mT).exp()) @ v / (e.sum(-1, keepdim=True) + 1e-9),
        torch.vmap(lambda q, k, v: (q @ k.mT).softmax(-1) @ v),
        lambda q, k, v: torch.vmap(lambda a: a.softmax(-1))(q @ k.mT) @ v,
    ],
    ids=["divided last", "within vmap", "of vmap"],
)
def test_a_softmax_that_is_not_followed_is_told(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    model = three(attend)
    with pytest.warns(UserWarning, match="record: '1': not recorded"), dikkat.record(model) as trace:
        model(X)
    assert trace.names == ["0", "2"]
    with pytest.warns(UserWarning, match="relevance: left out weights"):
        dikkat.relevance(model, X, target=lambda output: output[:, 0, 0])


EXPERTS = 4


class Gated(nn.Module):
    """Layers of attention, and a gate that weighs the results of several experts at each position."""

    def __init__(self, mix: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self.gate, self.mix = three(F.scaled_dot_product_attention), nn.Linear(SIZE, EXPERTS), mix
        self.experts = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        results = torch.stack([expert(x) for expert in self.experts], -2)
        return F.layer_norm(self.mix(self.gate(x).softmax(-1), results), [SIZE])


@pytest.mark.parametrize(
    "mix",
    [
        lambda g, y: (g[..., None] * y).sum(-2), lambda g, y: torch.einsum("bne,bned->bnd", g, y),
        lambda g, y: (g.unsqueeze(-2) @ y).squeeze(-2), lambda g, y: (y.mT @ g[..., None])[..., 0],
        lambda g, y: (g.permute(2, 0, 1)[..., None] * y.permute(2, 0, 1, 3)).sum(0),
        lambda g, y: torch.bmm(g.flatten(0, 1)[:, None], y.flatten(0, 1)).view(BATCH, LENGTH, SIZE),
    ],
)  # fmt: skip
def test_a_gate_of_experts_is_no_attention(mix: Callable[[Tensor, Tensor], Tensor]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = dikkat.attentions(model := Gated(mix).eval(), X)
        dikkat.relevance(model, X, target=lambda output: output[:, 0, 0])
    assert (len(found), len(found.by_name)) == (3, 3)


@pytest.mark.parametrize(
    "product",
    [
        lambda w, v: w @ v, lambda w, v: torch.einsum("bij,bjd->bid", w, v), lambda w, v: (v.mT @ w.mT).mT,
        lambda w, v: (w[..., None] * v[:, None]).sum(-2),
    ],
)  # fmt: skip
def test_weights_that_a_matrix_makes_are_attention_over_a_sequence(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    class Synthesizer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits, self.values = nn.Linear(SIZE, LENGTH), nn.Linear(SIZE, SIZE)

        def forward(self, x: Tensor) -> Tensor:
            return product(self.logits(x).softmax(-1), self.values(x))

    found = dikkat.attentions(model := Synthesizer().eval(), X)
    torch.testing.assert_close(found[0], model.logits(X).softmax(-1).detach())


@pytest.mark.parametrize("keys", [1, LENGTH])
@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_weights_are_those_that_were_drawn(hard: bool, keys: int) -> None:
    class Drawn(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch.manual_seed(6)
            return F.gumbel_softmax(logits=x @ x[:, :keys].mT, tau=2, hard=hard) @ x[:, :keys]

    with torch.no_grad(), dikkat.record(model := Drawn(), weights=True) as trace:
        model(X)
    torch.manual_seed(6)
    torch.testing.assert_close(trace[""].weights, F.gumbel_softmax(X @ X[:, :keys].mT, 2, hard))


def test_exponentials_that_are_no_shares_are_no_attention() -> None:
    class Gated(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            decay = (x - x.amax()).exp() * 0.3
            return F.scaled_dot_product_attention(x, x, x) + decay @ x.mT @ x / (1 + (-x).exp())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(dikkat.attentions(Gated(), X)) == 1


class Pooling(nn.Module):
    """A vector of weights for the rows of one text."""

    def __init__(self, pool: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.pool, self.score = pool, nn.Linear(SIZE, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.score(x).squeeze(-1).softmax(0), x)


@pytest.mark.parametrize(
    "pool",
    [
        lambda w, x: w @ x, lambda w, x: x.T @ w, lambda w, x: torch.einsum("m,md->d", w, x),
        lambda w, x: torch.mv(x.T, w), lambda w, x: (w[:, None] * x).sum(0), lambda w, x: F.linear(w, x.T),
    ],
)  # fmt: skip
def test_a_vector_of_weights_is_recorded_as_one_query(pool: Callable[[Tensor, Tensor], Tensor]) -> None:
    model = Pooling(pool)
    with torch.no_grad(), dikkat.record(model, weights=True) as trace:
        model(X[0])
    assert trace[""].weights is not None
    torch.testing.assert_close(trace[""].weights.flatten(), model.score(X[0])[:, 0].detach().softmax(0))
    assert trace[""].sizes[1:] == (1, LENGTH)


class Pooled(nn.Module):
    """Layers of attention, then a pool over the positions."""

    def __init__(self, pool: Callable[[Tensor, Tensor], Tensor], queries: int) -> None:
        super().__init__()
        self.layers, self.score, self.pool = three(F.scaled_dot_product_attention), nn.Linear(SIZE, queries), pool

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        return self.pool(self.score(x).softmax(1), x)


@pytest.mark.parametrize(
    ("queries", "pool"),
    [
        (1, lambda w, x: (w * x).sum(1)), (1, lambda w, x: w.mT @ x), (1, lambda w, x: w.squeeze(-1)[:, None] @ x),
        (1, lambda w, x: torch.einsum("bm,bmd->bd", w[..., 0], x)), (2, lambda w, x: w.mT @ x),
        (2, lambda w, x: torch.einsum("bmq,bmd->bqd", w, x)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("batch", [1, BATCH])
def test_a_pool_is_no_layer_of_rollout_and_relevance(
    pool: Callable[[Tensor, Tensor], Tensor], queries: int, batch: int
) -> None:
    model, x = Pooled(pool, queries).eval(), X[:batch]
    with torch.no_grad():
        right = model.score(model.layers(x)).softmax(1).mT
    weights = [each.detach()[:batch] for each in dense()[:3]]
    with torch.no_grad(), dikkat.record(model, weights=True) as trace:
        model(x)
    torch.testing.assert_close(list(trace.attentions()), weights, rtol=1e-5, atol=1e-6)
    assert [call.kind for call, _ in trace.calls()] == ["self"] * 3 + [""]
    pooled = trace[""].weights
    assert pooled is not None
    torch.testing.assert_close(pooled.reshape(right.shape), right, rtol=1e-5, atol=1e-6)
    rolled = torch.eye(LENGTH)
    for each in weights:
        rolled = (each.mean(1) + torch.eye(LENGTH)) / 2 @ rolled
    torch.testing.assert_close(trace.rollout(), rolled, rtol=1e-4, atol=1e-6)
    assert dikkat.relevance(model, x, target=lambda output: output.flatten(1)[:, 0]).shape == (batch, LENGTH, LENGTH)


class Classified(nn.Module):
    """Layers of attention, and probabilities of classes, multiplied by what each class costs."""

    def __init__(self, cost: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layers, self.classes, self.cost = three(F.scaled_dot_product_attention), nn.Linear(SIZE, 4), cost
        self.register_buffer("costs", torch.tensor([[1.0], [2.0], [3.0], [4.0]]))

    def forward(self, x: Tensor) -> Tensor:
        return self.cost(self.classes(self.layers(x)).div(2.0).softmax(-1), self.costs)


@pytest.mark.parametrize(
    "cost",
    [
        lambda p, c: p @ c, lambda p, c: (p * c.T) @ c, lambda p, c: F.linear(p, c.T), lambda p, c: (p * c.T).sum(-1),
        lambda p, c: p @ torch.tensor([1.0, 2.0, 3.0, 4.0]), lambda p, c: torch.einsum("bnc,cd->bnd", p, c.to(p)),
        lambda p, c: p @ torch.arange(4).to(p.dtype)[:, None],
    ],
)  # fmt: skip
def test_probabilities_of_classes_are_no_attention(cost: Callable[[Tensor, Tensor], Tensor]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = dikkat.attentions(model := Classified(cost).eval(), X)
        dikkat.relevance(model, X, target=lambda output: output.flatten(1)[:, 0])
    assert (len(found), len(found.cross_attentions)) == (3, 0)


def test_recording_changes_no_weights_that_a_model_returns() -> None:
    class Returning(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            weights = (x @ x.mT).softmax(-1)
            dropped = F.dropout(weights, 0.5)
            dropped[..., 0] = 0
            return dropped.mul_(2) @ x, weights

    torch.manual_seed(3)
    _, expected = Returning()(X)
    with dikkat.record(model := Returning(), weights=True) as trace:
        _, found = model(X)
    assert torch.equal(expected, found)
    assert trace[""].weights is not None
    torch.testing.assert_close(trace[""].weights[..., 1:], 2 * expected[..., 1:])


def test_what_is_noted_of_a_tensor_lies_on_its_device() -> None:
    """On the meta device, whose tensors a CPU's indices and places cannot be mixed with."""

    class Noted(Dataflow):
        def saw_weights(self, *_: Any) -> None:
            pass

    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.LayerNorm(SIZE)).to("meta")
    with Noted() as flow:
        flow.add_constants(model)
        x = model(X.to("meta"))
        weights = (x @ x.mT).softmax(-1)[..., torch.arange(LENGTH - 1, device="meta")]
        notes = [flow.origin(each) for each in (x, weights, weights.double(), x[:, :2])]
    noted = [each for note in notes for each in (note.positions, note.keys, note.weights) if each is not None]
    assert [each.device.type for each in noted] == ["meta"] * 7


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
    with pytest.raises(
        ValueError, match=r"relevance: got self-attention 1 that|model: got weights of .*another sequence"
    ):
        dikkat.relevance(made, X, Y, target=lambda output: output[:, 0, 0])
    if model in (Siamese, Windows):
        with torch.no_grad(), dikkat.record(made, weights=True) as trace:
            made(X, Y)
        with pytest.raises(ValueError, match="rollout: got self-attention 1 that does not follow number 0"):
            trace.rollout()


class OneHead(nn.Module):
    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.project, self.attend = nn.Linear(SIZE, 3 * SIZE), attend

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attend(*self.project(x).chunk(3, -1))


@pytest.mark.parametrize("attend", [lambda q, k, v: (q @ k.mT).softmax(-1) @ v,
                                    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1.0)])  # fmt: skip
def test_rollout_and_relevance_of_a_single_head_without_its_dimension(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> None:
    model, x, weights = nn.Sequential(OneHead(attend), OneHead(attend)), X, []
    for layer in model:
        q, k, v = layer.project(x).chunk(3, -1)
        weights.append((q @ k.mT).softmax(-1))
        x = x + weights[-1] @ v
    whole = rolled = torch.eye(LENGTH).expand(BATCH, -1, -1)
    for each, gradient in zip(weights, torch.autograd.grad(x[:, 0, 0].sum(), weights), strict=True):
        whole = whole + (gradient * each).detach().clamp(min=0) @ whole
        rolled = (each.detach() + torch.eye(LENGTH)) / 2 @ rolled
    with torch.no_grad(), dikkat.record(model, weights=True) as trace:
        model(X)
    torch.testing.assert_close(trace.rollout(), rolled, rtol=1e-4, atol=1e-6)
    found = dikkat.relevance(model, X, target=lambda output: output[:, 0, 0])
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match=r"model: got weights of \(3, 1, 5, 2\); expected"):
        dikkat.relevance(Shorter(), X, target=torch.sum)


class Shorter(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x[:, :2], x[:, :2])


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


def sink_of(count: int, padding: int, side: str, top_k: int = 3) -> dikkat.Trace:
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
    with torch.no_grad(), dikkat.record(model, top_k=top_k) as trace:
        model(torch.randn(2, 1, count, 4))
    return trace


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_neither_a_query_nor_the_first_token(side: str) -> None:
    padded, alone = sink_of(9, 4, side).scores(element=1), sink_of(5, 0, side).scores(element=0)
    for column in ("first", "itself", "previous", "evenly", "information", "queries", "looks"):
        assert padded[column][0] == pytest.approx(alone[column][0], abs=0.03) or padded[column][0] == alone[column][0]
    assert padded["looks"][0] == "first"
    # Every query that sees several keys has 0.9 on the first key, and spreads 0.1 over the others.
    rows = torch.tensor([[0.9, *[0.1 / row] * row, *[0.0] * (4 - row)] for row in range(1, 5)], dtype=torch.float64)
    told = torch.special.entr(rows.mean(0)).sum() - torch.special.entr(rows).sum(-1).mean()
    for table in (sink_of(9, 4, side, top_k=9).scores(element=1), sink_of(5, 0, side, top_k=9).scores(element=0)):
        assert table["information"][0] == pytest.approx(float(told) / math.log(4), rel=1e-5)


def test_tables_have_the_tokens_of_the_element() -> None:
    words = [[f"{place} of {element}" for place in range(LENGTH)] for element in range(BATCH)]
    trace = dikkat.show.attention(three(SPELLINGS["method, @"]), X, tokens=words, element=[*range(BATCH)])
    for element in (0, 1, 2, -1):
        frame = trace.frame(element=element)
        assert list(frame["query_token"]) == [words[element][place] for place in frame["query"]]


def test_tokens_of_a_batch_of_one_may_be_nested() -> None:
    words = [f"word {place}" for place in range(LENGTH)]
    trace = dikkat.show.attention(three(SPELLINGS["method, @"]), X[:1], tokens=[words])
    assert [token.text for token in trace.tokens["self"]] == words


def test_first_tries_of_a_page_without_names_have_numbers() -> None:
    trace = dikkat.show.attention(three(SPELLINGS["method, @"]), X)
    assert len(trace) == 3
    assert not trace.tokens
