"""`dikkat.change` in real modules: what it counts, how it nests, and which arguments it rejects."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dikkat
import kit

SIZE, HEADS, TOKENS = 6, 2, 5


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.map = nn.Linear(SIZE, 3 * SIZE)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.map(x).chunk(3, -1))
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def x():
    torch.manual_seed(1)
    return torch.randn(1, TOKENS, SIZE)


def test_only_the_named_heads_change(model, x):
    with dikkat.change(model, heads=[(1, 0), (2, 1)], edges=(3, 1)), dikkat.record(model, weights=True) as trace:
        model(x)
    cut = [[float(trace[layer, head].weights[..., 3, 1]) == 0 for head in range(HEADS)] for layer in range(3)]
    assert cut == [[False, False], [True, False], [False, True]]


@pytest.mark.parametrize("heads", [np.array([[1, 0]]), torch.tensor([[1, 0]]), [[1, 0]], [(np.int64(1), np.int32(0))]])
def test_heads_may_be_numbers_of_numpy_and_pytorch(model, x, heads):
    with dikkat.change(model, heads=heads, cut=True):
        changed = model(x)
    with dikkat.change(model, layers=np.int64(1), heads=torch.tensor(0), cut=True):
        assert torch.equal(changed, model(x))
    with dikkat.record(model, heads=[np.int64(1)], layers=[np.int64(2)], weights=True) as trace:
        model(x)
    assert trace[np.int64(2)].heads.tolist() == [1]


def test_a_factor_of_a_single_span_may_be_a_number(model, x):
    with dikkat.change(model, spans={"a": np.arange(2, 4)}, scale=0.5):
        changed = model(x)
    with dikkat.change(model, spans={"a": slice(2, 4)}, scale={"a": 0.5}):
        assert torch.equal(changed, model(x))
    with pytest.raises(ValueError, match=r"scale: got 2\.0 for 2 spans; expected a dictionary of numbers by span"):
        dikkat.change(model, spans={"a": slice(2), "b": slice(2, 4)}, scale=2.0).__enter__()


def test_queries_without_a_span_keep_their_output_and_are_counted(model, x):
    with dikkat.change(model, layers=0, spans={"last": slice(3, 5)}, mass=0.9) as changed:
        y = model.layers[0](x)
    # Queries 0 to 2 see no key of the span, in two heads.
    assert (changed.calls, changed.unchanged_queries) == (1, 3 * HEADS)
    torch.testing.assert_close(y[:, :3], model.layers[0](x)[:, :3])
    assert not torch.allclose(y[:, 3:], model.layers[0](x)[:, 3:])


def test_the_outer_change_applies_first(model, x):
    first, second = {"spans": {"a": slice(0, 2)}, "scale": {"a": 3.0}}, {"spans": {"b": slice(1, 3)}, "mass": 0.5}
    layer = model.layers[0]
    with dikkat.record(layer, weights=True) as plain:
        layer(x)
    row = plain[""].weights[0, 0, 4].double()
    row = row * torch.tensor([3.0, 3, 1, 1, 1])
    row = row / row.sum()
    inside = torch.tensor([False, True, True, False, False])
    row = torch.where(inside, 0.5 * row / row[inside].sum(), 0.5 * row / row[~inside].sum())
    with dikkat.change(layer, **first), dikkat.change(layer, **second), dikkat.record(layer, weights=True) as trace:
        layer(x)
    torch.testing.assert_close(trace[""].weights[0, 0, 4].double(), row, rtol=1e-5, atol=1e-6)


def test_an_exception_removes_the_change(model, x):
    before = model(x)
    with pytest.raises(RuntimeError, match="mat1"), dikkat.change(model, cut=True):
        model(model(x)[..., :2])
    assert torch.equal(model(x), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_loop_of_changes_leaves_nothing(model, x):
    before = model(x)
    for head in range(HEADS):
        with dikkat.change(model, layers=1, heads=head, cut=True):
            assert not torch.equal(model(x), before)
    assert torch.equal(model(x), before)


@kit.each("mass", [0.01, 0.3, 0.5, 0.9, 0.99])
def test_the_mass_is_the_one_requested(mass):
    torch.manual_seed(2)
    layer = Attention()
    with torch.no_grad():
        layer.map.weight.mul_(20)  # logits of hundreds
    with dikkat.change(layer, spans={"a": slice(0, 2)}, mass=mass), dikkat.record(layer, weights=True) as trace:
        layer(torch.randn(3, 11, SIZE))
    got = trace[""].weights[..., 2:, :2].double().sum(-1)
    assert float((got - mass).abs().max()) < 1e-6


def test_weights_of_another_run(model, x):
    other = torch.randn(1, TOKENS, SIZE)
    with dikkat.record(model, weights=True) as trace:
        model(other)
    with dikkat.change(model, layers=0, weights=trace), dikkat.record(model, weights=True) as changed:
        model(x)
    torch.testing.assert_close(changed[0].weights, trace[0].weights)
    assert not torch.allclose(changed[1].weights, trace[1].weights)


def test_weights_of_another_run_for_one_head(model, x):
    with dikkat.record(model, weights=True) as trace:
        model(torch.randn(1, TOKENS, SIZE))
    with dikkat.change(model, layers=0, heads=1, weights=trace), dikkat.record(model, weights=True) as changed:
        model(x)
    torch.testing.assert_close(changed[0].weights[:, 1], trace[0].weights[:, 1])
    assert not torch.allclose(changed[0].weights[:, 0], trace[0].weights[:, 0])
    with dikkat.record(model, weights=True, heads=[1]) as one, dikkat.change(model, layers=0, weights=trace):
        model(x)
    torch.testing.assert_close(one[0].weights[:, 0], trace[0].weights[:, 1])


def test_entries_that_overlap_change_a_call_once(model, x):
    change = {"spans": {"a": slice(0, 2)}, "scale": {"a": 3.0}}
    with dikkat.change(model, layers=1, **change):
        once = model(x)
    with dikkat.change(model, layers=["layers.1*", 1, -2], **change):
        torch.testing.assert_close(model(x), once)
    with (
        pytest.raises(ValueError, match=r"head 0 of 'layers\.2' twice"),
        dikkat.change(model, heads=[(2, 0), (-1, 0)], **change),
    ):
        model(x)


def test_every_entry_of_layers_must_run(model, x):
    model.layers.append(nn.Identity())
    with pytest.raises(ValueError, match="layers: got 3"), dikkat.change(model, layers=[0, 3], cut=True):
        model(x)


@kit.each("fused", [True, False])
def test_calls_without_heads_or_a_batch(fused):
    class Plain(nn.Module):
        def forward(self, x):
            return dikkat.attend(x, x, x, score=dikkat.scores.Dot()) if fused else (x @ x.T).softmax(-1) @ x

    model, x = Plain(), torch.randn(TOKENS, 4)
    with dikkat.change(model, cut=True):
        assert torch.equal(model(x), torch.zeros(TOKENS, 4))
    with dikkat.change(model, cut=True, mean=True):
        torch.testing.assert_close(model(x), Plain()(x).mean(0).expand(TOKENS, 4))


def test_a_second_run_has_the_same_positions():
    class LastToken(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x[:, -1:], x, x)

    model, x = LastToken(), torch.randn(2, TOKENS, 4)
    with dikkat.change(model, spans={"a": slice(0, 2)}, mass=0.4):
        first = model(x)
        torch.testing.assert_close(model(x), first)
    with dikkat.change(model, edges=(4, 0)):
        model(x)
        torch.testing.assert_close(model(x), F.scaled_dot_product_attention(x[:, -1:], x[:, 1:], x[:, 1:]))


@kit.each("average", [True, False])
@kit.each("batched", [True, False])
def test_multi_head_attention_returns_changed_weights(average, batched):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(SIZE, HEADS, batch_first=True)
    x = torch.randn(*([2] if batched else []), TOKENS, SIZE)
    with dikkat.change(layer, edges=(3, 1)):
        output, weights = layer(x, x, x, average_attn_weights=average)
        without, none = layer(x, x, x, need_weights=False)
    mask = torch.zeros(TOKENS, TOKENS).bool()
    mask[3, 1] = True
    true, true_weights = layer(x, x, x, attn_mask=mask, average_attn_weights=average)
    torch.testing.assert_close(output, true)
    torch.testing.assert_close(without, true)
    torch.testing.assert_close(weights, true_weights)
    assert none is None


def test_encoder_layers_leave_their_fast_path(x):
    layer = nn.TransformerEncoderLayer(SIZE, HEADS, 8, batch_first=True).eval()
    mask = torch.zeros(TOKENS, TOKENS).bool()
    mask[2, 4] = True
    with torch.no_grad(), dikkat.change(layer, edges=(2, 4)):
        changed = layer(x)
    torch.testing.assert_close(changed, layer(x, src_mask=mask))


def test_a_recurrence_changes_each_step():
    from dikkat.recurrent import AttentionalGRU

    torch.manual_seed(0)
    decoder = AttentionalGRU(3, 5, 4, dikkat.scores.Additive(4, 5, 7))
    memory, inputs = decoder.prepare(torch.randn(2, 6, 4), torch.tensor([6, 4])), torch.randn(2, 3, 3)
    start = torch.zeros(1, 2, 5)
    with dikkat.change(decoder, spans={"a": slice(0, 2)}, mass=0.7), dikkat.record(decoder, weights=True) as trace:
        _, contexts, weights, _ = decoder(inputs, memory, start, return_weights=True)
    torch.testing.assert_close(weights[..., :2].sum(-1), torch.full((2, 3), 0.7))
    torch.testing.assert_close(contexts, weights @ memory.value)
    torch.testing.assert_close(trace[""].weights, weights)
    with dikkat.change(decoder, edges=(1, 0)):
        weights = decoder(inputs, memory, start, return_weights=True)[2]
    assert (weights[:, :, 0] == 0).tolist() == [[False, True, False]] * 2


def test_autocast_and_checkpoints(model, x):
    from torch.utils.checkpoint import checkpoint

    span = {"spans": {"a": slice(0, 2)}, "mass": 0.8}
    x.requires_grad_()
    with dikkat.change(model, **span):
        plain = torch.autograd.grad(model(x).square().sum(), x)[0]
        again = torch.autograd.grad(checkpoint(model, x, use_reentrant=False).square().sum(), x)[0]
        for reentrant in (False, True):
            x.grad = None
            checkpoint(model, x, use_reentrant=reentrant).square().sum().backward()
            torch.testing.assert_close(x.grad, plain)
        with torch.autocast("cpu", dtype=torch.bfloat16), dikkat.record(model, weights=True) as trace:
            model(x)
    torch.testing.assert_close(again, plain)
    torch.testing.assert_close(trace[0].weights[..., 2:, :2].sum(-1), torch.full((1, HEADS, 3), 0.8))


def test_long_calls_run_in_blocks(monkeypatch):
    from dikkat.inspection import row_blocks

    monkeypatch.setattr(row_blocks, "_BLOCK", 50)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 13, 4, requires_grad=True) for _ in range(3))

    class Call(nn.Module):
        def forward(self):
            return F.scaled_dot_product_attention(q, k, v)

    call = Call()
    with dikkat.change(call, heads=[0, 2], spans={"a": slice(3, 9)}, scale={"a": 5.0}):
        got = call()
        gradients = torch.autograd.grad(got.square().sum(), (q, k, v))
    bias = torch.zeros(1, 3, 1, 13)
    bias[:, [0, 2], :, 3:9] = math.log(5)
    true = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    torch.testing.assert_close(got, true)
    for own, exact in zip(gradients, torch.autograd.grad(true.square().sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(own, exact)


def test_queries_of_unknown_positions_are_no_heads(x):
    class Transposed(nn.Module):
        def forward(self, x):
            h = F.layer_norm(x.mT, (TOKENS,)).mT  # positions begin with features
            h = h.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            return F.scaled_dot_product_attention(h, h, h)

    model = Transposed()
    with dikkat.record(model, weights=True) as trace:
        before = model(x)
    assert trace[""].shape == (1, HEADS, TOKENS, TOKENS)
    with dikkat.change(model, heads=1, cut=True):
        got = model(x)
    assert torch.equal(got[:, 0], before[:, 0])
    assert not got[:, 1].any()


ERRORS = {
    "layers: got 7": {"layers": 7, "cut": True},
    "heads: got 2": {"heads": 2, "cut": True},
    "heads: got pairs": {"layers": 1, "heads": [(1, 0)], "cut": True},
    "heads: got 'first'": {"heads": "first", "cut": True},
    "got no change": {},
    "got cut and mass": {"cut": True, "spans": {"a": slice(0, 1)}, "mass": 0.5},
    "without cut=True": {"mean": True, "edges": (1, 0)},
    "spans: got spans without": {"spans": {"a": slice(0, 1)}, "cut": True},
    "up to position 8; expected at most 4": {"spans": {"a": slice(2, 9)}, "mass": 0.5},
    "0 <= start < stop": {"spans": {"a": slice(3, 3)}, "mass": 0.5},
    "a list of token positions": {"spans": {"a": []}, "mass": 0.5},
    r"got \(1, 3\) for 'a'; expected .* `positions` of dikkat.show.generation": {"spans": {"a": (1, 3)}, "mass": 0.5},
    "spans that overlap": {"spans": {"a": slice(0, 2), "b": slice(1, 3)}, "mass": {"a": 0.5, "b": 0.2}},
    "a sum of 1.1": {"spans": {"a": slice(0, 1), "b": slice(1, 3)}, "mass": {"a": 0.5, "b": 0.6}},
    "expected a number 0 to 1": {"spans": {"a": slice(0, 1)}, "mass": 1.5},
    "mass: got 0.5 for 2 spans": {"spans": {"a": slice(0, 1), "b": slice(1, 3)}, "mass": 0.5},
    "scale: got .*; expected a number for each": {"spans": {"a": slice(0, 1)}, "scale": {"b": 1.0}},
    "which no changed call has": {"edges": (9, 1)},
    r"query slice\(7, None, None\) and key \[1\], which no": {"edges": (slice(7, None), 1)},
    r"edges: got slice\(-2, None, None\)": {"edges": (slice(-2, None), 1)},
    r"tokens\[0\]: got int; expected str": {"edges": ("not", "good"), "tokens": [101, 7, 8, 9, 10]},
    "tokens: got Tensor; expected a list of strings": {"edges": ("not", "good"), "tokens": torch.arange(5)},
    "a mask of 2 queries": {"edges": torch.ones(2, 2).bool()},
    "expected tokens=": {"edges": ("not", "good")},
    "such as 'goods'": {"edges": ("not", "good"), "tokens": ["not", "goods", "a", "b", "c"]},
    "a text of the same length": {"weights": torch.full((2, 2), 0.5)},
    "rows of 7 keys": {"weights": torch.full((7, 7), 1 / 7)},
    "that broadcasts to": {"weights": torch.full((3, 2, 5, 5), 0.2)},
    "neither 1 nor 0": {"weights": torch.ones(5, 5)},
    "that the model hides": {"weights": torch.full((5, 5), 0.2)},
}


@kit.each("message", ERRORS)
def test_arguments_that_are_rejected(message):
    model, x = Model(), torch.randn(1, TOKENS, SIZE)
    with pytest.raises((ValueError, TypeError), match=message), dikkat.change(model, **ERRORS[message]):
        model(x)
    assert not any(module._forward_hooks for module in model.modules())


def test_attention_that_cannot_be_changed_is_named():
    class Packed(nn.Module):
        def forward(self, x):
            return dikkat.attend_ragged(x, x, x, torch.tensor([0, 2, 5]), score=dikkat.scores.Dot())

    class LostAttention(nn.Module):
        def forward(self, x):
            return torch.cumsum((x @ x.T).softmax(-1)[..., None] * x, -2).sum(-2)

    class Product(nn.Module):
        def forward(self, x):
            return torch.tensordot((x @ x.T).softmax(-1), x, 1)

    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.lost = LostAttention()

        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x) + self.lost(x)

    x = torch.randn(5, 4)
    for model, message in ((Packed(), "packed sequences"), (Product(), "does not follow"), (Beside(), "in 'lost'")):
        with pytest.raises(ValueError, match=message), dikkat.change(model, cut=True):
            model(x)
    with pytest.raises(ValueError, match="no attention ran"), dikkat.change(LostAttention(), cut=True) as _:
        pass
    with pytest.raises(ValueError, match="no attention ran"), dikkat.change(nn.Linear(4, 4), cut=True):
        pass


def test_the_mean_needs_the_whole_text(model, x):
    class Step(nn.Module):
        def forward(self):
            return F.scaled_dot_product_attention(x[:, :1], x, x)

    step = Step()
    with pytest.raises(ValueError, match="a part of the text's queries"), dikkat.change(step, cut=True, mean=True):
        step()


def test_a_span_that_a_large_negative_bias_hides_keeps_its_weights():
    class Biased(nn.Module):
        def forward(self, q, k, v, bias):
            return dikkat.attend(q, k, v, score=dikkat.scores.Dot(), bias=bias)

    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 6)
    bias = torch.randn(2, 3, 5, 7)
    bias[:, :, 3, :2] = torch.finfo(torch.float32).min
    model = Biased()
    expected = (q.double() @ k.double().mT + bias.double()).softmax(-1) @ v.double()
    with dikkat.change(model, spans={"start": slice(0, 2)}, mass=0.4) as changed:
        result = model(q, k, v, bias)
    torch.testing.assert_close(result[:, :, 3].double(), expected[:, :, 3], rtol=1e-5, atol=1e-5)
    assert changed.unchanged_queries == 6
