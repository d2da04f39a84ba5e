"""`dikkat.effects` beside separate cuts, and its estimates where they are exact."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dikkat
import kit

SIZE, HEADS, LAYERS, TOKENS, BATCH = 12, 3, 4, 7, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.map, self.out, self.mix = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.map(x).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        return x + self.mix(x).relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.runs = 0
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(LAYERS)), nn.Linear(SIZE, 5)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            x.mul_(0.9)  # a write to the block's result
        return self.head(x)


TARGETS = {
    "per element": lambda logits: logits[:, -1, 2].tanh(),
    "a number": lambda logits: logits.logsumexp(-1).mean(),
    "an index": 3,
}


def value(target, output):
    return float((target(output) if callable(target) else output[:, -1, target]).mean())


@kit.each("mean", [False, True])
@kit.each("target", TARGETS)
def test_effects_are_those_of_separate_cuts(target, mean):
    model, x = Model().eval(), torch.randn(BATCH, TOKENS, SIZE)
    wanted = TARGETS[target]
    table = dikkat.effects(model, x, target=wanted, mean=mean)
    with torch.no_grad():
        base, true = value(wanted, model(x)), []
        for layer in range(LAYERS):
            for head in range(HEADS):
                with dikkat.change(model, heads=[(layer, head)], cut=True, mean=mean):
                    true.append(value(wanted, model(x)) - base)
    heads = zip(table["layer"], table["head"], strict=True)
    assert list(heads) == [(k, h) for k in range(LAYERS) for h in range(HEADS)]
    np.testing.assert_allclose(table["effect"], true, atol=1e-6)
    names = ["layer", "module", "kind", "head", "effect", "estimate", "looks"]
    assert list(table.columns)[: len(names)] == names


def test_estimates_are_exact_where_the_target_is_linear():
    model, x = Model().eval(), torch.randn(BATCH, TOKENS, SIZE)
    with torch.no_grad():
        for block in model.blocks:
            block.mix.weight.zero_()
    table = dikkat.effects(model, x, target=1, layers=-1)
    np.testing.assert_allclose(table["estimate"], table["effect"], atol=1e-6)
    assert float(np.abs(table["effect"]).min()) > 1e-3


TARGETS_OF_RUNS = {"a number": lambda logits: logits[0, -1].logsumexp(-1), "an index": 0}


@kit.each("target", TARGETS_OF_RUNS)
def test_earlier_layers_run_once_and_heads_share_a_run(target):
    model, x, runs = Model().eval(), torch.randn(BATCH, TOKENS, SIZE), []
    for index, block in enumerate(model.blocks):
        original = block.map.forward
        block.map.forward = lambda t, original=original, index=index: runs.append(index) or original(t)
    target = TARGETS_OF_RUNS[target]
    estimates = dikkat.effects(model, x, target=target, exact=False)
    assert runs == [*range(LAYERS)]
    runs.clear()
    strongest = np.abs(estimates["estimate"]).argmax() // HEADS
    dikkat.effects(model, x, target=target)
    # The estimate, another run, a run of the last layer, two from the layer of the strongest head on, and one for the
    # three heads of each layer.
    expected = [2 + (index == 3) + 2 * (index >= strongest) + index + 1 for index in range(LAYERS)]
    assert [runs.count(index) for index in range(LAYERS)] == expected


class WithLoss(Model):
    def forward(self, x):
        logits = super().forward(x)
        return {"logits": logits, "loss": logits.logsumexp(-1).mean()}


class Mixing(Model):
    """A model whose elements depend on each other."""

    def forward(self, x):
        logits = super().forward(x)
        return {"logits": logits, "loss": (logits - 0.7 * logits.mean(0)).logsumexp(-1)[0, -1]}


class Centred(Model):
    def forward(self, x):
        logits = super().forward(x)
        return {"logits": logits, "loss": logits - 0.7 * logits.mean(0, keepdim=True)}


KINDS = {"a mean loss": WithLoss, "a number of all elements": Mixing, "centred elements": Centred}


@kit.each("kind", KINDS)
def test_heads_do_not_share_a_run_if_repetitions_depend_on_each_other(kind):
    model, x = KINDS[kind]().eval(), torch.randn(BATCH, TOKENS, SIZE)

    def target(output):
        return output["loss"] if output["loss"].ndim == 0 else output["loss"][0, -1].logsumexp(-1)

    table = dikkat.effects(model, x, target=target)
    with torch.no_grad():
        base = float(target(model(x)))
        for row, (layer, head) in enumerate(zip(table["layer"], table["head"], strict=True)):
            with dikkat.change(model, heads=[(layer, head)], cut=True):
                assert math.isclose(float(target(model(x))) - base, table["effect"][row], abs_tol=1e-6)


def test_what_cannot_be_measured():
    model, x = Model(), torch.randn(BATCH, TOKENS, SIZE)
    for target, error, message in (
        ("first", TypeError, "target: got str"),
        (lambda output: output.argmax(), TypeError, "a floating-point number"),
        (lambda output: output, TypeError, "a floating-point number"),
        (lambda output: output.sum() * math.nan, ValueError, "target: got nan; expected finite numbers"),
        (lambda output: model.head.bias.sum(), ValueError, "depends on no head"),
        (5, ValueError, "target: got 5; expected -5 to 4, a class of the logits"),
        (-6, ValueError, "target: got -6; expected -5 to 4"),
    ):
        with pytest.raises(error, match=message):
            dikkat.effects(model, x, target=target)
    random = nn.Sequential(model, nn.Dropout(0.5))
    with pytest.raises(ValueError, match="got dropout in '1'"):
        dikkat.effects(random.train(), x, target=0)

    class Drops(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.5)

    with pytest.raises(ValueError, match="dropout makes runs differ"):
        dikkat.effects(nn.Sequential(model, Drops()), x, target=torch.sum)
    with pytest.raises(ValueError, match="no attention ran"):
        dikkat.effects(nn.Linear(SIZE, 2), x, target=0)
    assert not any(math.isnan(p) for p in dikkat.effects(model.eval(), x, target=0, exact=False)["estimate"])


def test_inputs_without_a_batch():
    layer = nn.TransformerEncoderLayer(SIZE, HEADS, 8, batch_first=True, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(TOKENS, SIZE)
    table = dikkat.effects(encoder, x, target=lambda output: output[:, 2])  # a number for each token, not each element
    with torch.no_grad():
        base = encoder(x)[:, 2].mean()
        for row, (layer, head) in enumerate((k, h) for k in range(2) for h in range(HEADS)):
            with dikkat.change(encoder, heads=[(layer, head)], cut=True):
                assert math.isclose(encoder(x)[:, 2].mean() - base, table["effect"][row], abs_tol=1e-6)
    with pytest.raises(ValueError, match=r"target: got an index, but .* no batch dimension \(logits \(7, 12\)\); exp"):
        dikkat.effects(encoder, x, target=2)
    with pytest.raises(TypeError, match="target: got an index for tuple; expected a function of the output"):
        dikkat.effects(nn.MultiheadAttention(SIZE, HEADS).eval(), x, x, x, target=2)


def test_a_model_with_dropout_is_named():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
    with pytest.raises(ValueError, match=r"got dropout in 'layers\.0"):
        dikkat.effects(encoder.train(), torch.randn(1, TOKENS, 8), target=0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, dropout=0.0), 2)
    assert len(dikkat.effects(encoder.train(), torch.randn(1, TOKENS, 8), target=0)) == 4


def test_hooks_in_place_writes_and_replaced_forwards():
    model, x = Model().eval(), torch.randn(BATCH, TOKENS, SIZE)
    steering = torch.randn(SIZE)
    model.blocks[0].register_forward_hook(lambda _, __, output: output + steering)
    replaced = model.blocks[1].forward = lambda x: Block.forward(model.blocks[1], x).mul_(0.5)
    table = dikkat.effects(model, x, target=0)
    assert model.blocks[1].forward is replaced
    with torch.no_grad():
        base = value(0, model(x))
        with dikkat.change(model, heads=[(3, 1)], cut=True):
            assert math.isclose(value(0, model(x)) - base, table["effect"][10], abs_tol=1e-6)


def test_a_recurrence_has_effects():
    from dikkat.recurrent import AttentionalGRU

    torch.manual_seed(0)
    decoder = AttentionalGRU(3, 5, 4, dikkat.scores.Additive(4, 5, 7)).eval()
    memory, inputs, start = decoder.prepare(torch.randn(2, 6, 4)), torch.randn(2, 3, 3), torch.zeros(1, 2, 5)
    table = dikkat.effects(decoder, inputs, memory, start, target=lambda output: output[0].sum())
    with torch.no_grad():
        base = float(decoder(inputs, memory, start)[0].sum())
        with dikkat.change(decoder, cut=True):
            assert math.isclose(float(decoder(inputs, memory, start)[0].sum()) - base, table["effect"][0], abs_tol=1e-5)


class Repeated(Model):
    """One block that runs as three layers."""

    def __init__(self):
        super().__init__()
        self.blocks = self.blocks[:1]

    def forward(self, x):
        for _ in range(3):
            x = self.blocks[0](x)
        return self.head(x)


def test_the_last_layer_of_a_repeated_block_needs_its_number():
    model, x = Repeated().eval(), torch.randn(BATCH, TOKENS, SIZE)
    with pytest.raises(ValueError, match=r"layers: got -1 for 'blocks\.0', which runs as several layers"):
        dikkat.effects(model, x, target=0, layers=-1)
    last, everything = (dikkat.effects(model, x, target=0, layers=layers) for layers in (2, None))
    assert last["layer"].tolist() == [2] * HEADS
    np.testing.assert_allclose(last["effect"], everything["effect"][-HEADS:], atol=1e-6)


def test_a_mean_in_cross_attention_has_all_queries():
    """The source has the length of the target, and padding."""

    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = Block(), nn.Linear(SIZE, 5)

        def forward(self, x, source):
            q, k, v = (self.block.map(text).unflatten(-1, (-1, 4)).transpose(1, 2) for text in (x, source, source))
            mask = (torch.arange(TOKENS) < 3)[None, None, None]
            y = F.scaled_dot_product_attention(q[:, :3], k[:, 3:6], v[:, 6:], attn_mask=mask)
            return self.head(y.transpose(1, 2).flatten(-2))

    torch.manual_seed(0)
    model, texts = Cross().eval(), [*torch.randn(2, BATCH, TOKENS, SIZE)]
    table = dikkat.effects(model, *texts, target=1, mean=True)
    with torch.no_grad():
        base, true = value(1, model(*texts)), []
        for head in range(HEADS):
            with dikkat.change(model, heads=head, cut=True, mean=True):
                true.append(value(1, model(*texts)) - base)
    np.testing.assert_allclose(table["effect"], true, atol=1e-6)


def test_a_target_of_another_length_than_the_batch_raises():
    model, x = torch.nn.TransformerEncoderLayer(6, 2, 7, batch_first=True).eval(), torch.randn(2, 5, 6)
    with pytest.raises(TypeError, match=r"target: got \(6,\)"):
        dikkat.effects(model, x, target=lambda output: output[0, -1])


def test_a_page_with_effects_in_one_call(tmp_path):
    model, words = dikkat.show.example_model(), ["a", "rose", "is", "a", "rose"]
    table = dikkat.effects(model, words, target=3, exact=False)
    trace = dikkat.show.attention(model, words, tokens=words, path=tmp_path / "one.html", effects=table)
    trace.to_html(tmp_path / "two.html", effects=table)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    with pytest.raises(ValueError, match="effects: got a table without path; expected a path"):
        dikkat.show.attention(model, words, tokens=words, effects=table)


def test_a_tokenizer_of_another_library_is_named():
    tokenizers = pytest.importorskip("tokenizers")
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(TypeError, match=r"tokenizer: got tokenizers\.Tokenizer; expected a tokenizer"):
        dikkat.show.attention(Model(), raw, "a a")
