"""Masses of spans, largest scores, and totals over calls, compared with maps of all weights in float64."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, LlamaConfig

import dikkat
from dikkat import scores
from dikkat.inspection.torch_attention import weights_of_one_query, without_autocast

SPANS: dict[str, Any] = {"start": slice(0, 3), "even": slice(0, 11, 2), "listed": [4, 1, 4]}
POSITIONS = {"start": [0, 1, 2], "even": [0, 2, 4, 6, 8, 10], "listed": [1, 4]}


def span_masses(weights: Tensor, positions: dict[str, list[int]] = POSITIONS) -> Tensor:
    return torch.stack([weights[..., keys].sum(-1) for keys in positions.values()], -1)


def logits_of(name: str, query: Tensor, key: Tensor) -> Tensor:
    query, key = query.double(), key.double()
    if name == "gaussian":
        return -(query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1) / (2 * 1.5**2)
    return query @ key.mT / math.sqrt(query.shape[-1])


SCORES = {"scaled dot": scores.ScaledDot(), "gaussian": scores.Gaussian(1.5)}


@pytest.mark.parametrize(("queries", "keys"), [(5, 11), (719, 769)])  # blocks of rows, and compiled code
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("restriction", ["none", "lengths", "causal", "sink"])
def test_masses_and_largest_scores_of_one_call(name, queries, keys, restriction):
    query, key = torch.randn(2, 3, queries, 4), torch.randn(2, 3, keys, 4)
    logits, more = logits_of(name, query, key), {}
    if restriction == "lengths":
        more = {"valid_lens": torch.tensor([keys, 2])}
        logits[1, ..., 2:] = -torch.inf
    elif restriction == "causal":
        more = {"causal": True}
        logits = logits.masked_fill(torch.arange(keys) > torch.arange(queries)[:, None] + keys - queries, -torch.inf)
    weights, value = logits.softmax(-1), None
    if restriction == "sink":  # a model's sink is part of its softmax
        sink = torch.tensor([0.3, -1.0, 2.0])
        column = sink.double()[:, None, None].expand(2, 3, queries, 1)
        weights, value = torch.cat([logits, column], -1).softmax(-1)[..., :-1], torch.randn(2, 3, keys, 7)

        class Model(nn.Module):
            def forward(self) -> Tensor:
                return dikkat.attend(query, key, value, score=SCORES[name], sink=sink)

        model = Model()
        with dikkat.record(model, spans=SPANS, max_score=True) as trace:
            model()
        seen = trace[""]
    else:
        seen = dikkat.inspect(query, key, score=SCORES[name], spans=SPANS, max_score=True, **more)
    torch.testing.assert_close(seen.span_mass.double(), span_masses(weights), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(seen.max_score.double(), logits.amax(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("request_", [{"weights": True}, {"rows": [0]}, {"heads": [2, 0]}, {"queries": [3, 1]}])
def test_masses_with_other_requests(request_):
    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 11, 4)
    weights = logits_of("scaled dot", query, key).softmax(-1)
    weights = weights[:, request_.get("heads", slice(None))][..., request_.get("queries", slice(None)), :]
    seen = dikkat.inspect(query, key, score=scores.ScaledDot(), spans=SPANS, max_score=True, **request_)
    torch.testing.assert_close(seen.span_mass.double(), span_masses(weights), rtol=1e-5, atol=1e-6)
    assert seen.max_score.shape == weights.shape[:-1]


class Attention(nn.Module):
    """A layer with PyTorch's fused function, its own softmax, or `MultiheadAttention`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "multi-head":
            return self.layer(x, x, x, need_weights=False)[0]
        query, key = (x.unflatten(-1, (2, 3)).transpose(1, 2) for _ in range(2))
        if self.kind == "fused":
            return F.scaled_dot_product_attention(query, key, key).transpose(1, 2).flatten(2)
        return ((query @ key.mT / math.sqrt(3)).softmax(-1) @ key).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("kind", ["fused", "softmax", "multi-head"])
def test_masses_and_largest_scores_of_a_model(kind):
    model, x = Attention(kind), torch.randn(2, 11, 6)
    with dikkat.record(model, spans=SPANS, max_score=True, weights=True) as trace:
        model(x)
    seen = trace[trace.names[0]]
    torch.testing.assert_close(seen.span_mass, span_masses(seen.weights))
    assert trace.spans == tuple(SPANS)
    query, key = (x.unflatten(-1, (2, 3)).transpose(1, 2) for _ in range(2))
    if kind == "multi-head":
        weight, bias = model.layer.in_proj_weight, model.layer.in_proj_bias
        query, key, _ = (t.unflatten(-1, (2, 3)).transpose(1, 2) for t in F.linear(x, weight, bias).chunk(3, -1))
    torch.testing.assert_close(
        seen.max_score.double(), logits_of("scaled dot", query, key).amax(-1), rtol=1e-5, atol=1e-5
    )


def test_a_changed_model_shows_changed_masses():
    model, x = Attention("fused"), torch.randn(2, 11, 6)
    spans = {"start": slice(0, 3), "rest": slice(3, 11)}
    with dikkat.change(model, spans={"start": slice(0, 3)}, mass=0.4), dikkat.record(model, spans=spans) as trace:
        model(x)
    torch.testing.assert_close(trace[""].span_mass[..., 0], torch.full((2, 2, 11), 0.4))
    torch.testing.assert_close(trace[""].span_mass[..., 1], torch.full((2, 2, 11), 0.6))


def llama(attention: str) -> nn.Module:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=97, hidden_size=24, intermediate_size=29, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation=attention, sliding_window=None,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval()


GENERATE: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 0}


def eager_maps() -> tuple[Tensor, list[list[Tensor]]]:
    """The prompt, and the weights (1, 4, n, m) of each layer in each run of the model, by transformers."""
    prompt = torch.arange(1, 12)[None]
    result = llama("eager").generate(prompt, **GENERATE, output_attentions=True, return_dict_in_generate=True)
    return prompt, [list(run) for run in result.attentions]


@pytest.mark.parametrize("attention", ["sdpa", "eager", "dikkat"])
def test_masses_and_totals_of_a_generation(attention):
    dikkat.register_transformers()
    prompt, runs = eager_maps()
    model = llama(attention)
    with dikkat.record(model, spans=SPANS, sums=True) as single:
        model.generate(prompt, **GENERATE)
    for layer, name in enumerate(single.names):
        for run, maps in enumerate(runs):
            torch.testing.assert_close(single[name, run].span_mass, span_masses(maps[layer]), rtol=1e-4, atol=1e-5)
    with dikkat.record(
        model, spans=SPANS, sums=True, entropy=True, top_k=2, max_score=True, sum_over="calls", decay=0.5
    ) as total:
        model.generate(prompt, **GENERATE)
    assert len(total) == 2
    assert total.spans == tuple(SPANS)
    scores_of_calls = recorded_scores(model, prompt)
    for layer, name in enumerate(total.names):
        maps = [run[layer].double() for run in runs]
        factors = [0.5 ** (len(maps) - 1 - call) for call in range(len(maps))]
        length = maps[-1].shape[-1]
        sums = sum(
            factor * F.pad(m.sum(-2), (0, length - m.shape[-1])) for factor, m in zip(factors, maps, strict=True)
        )
        count = sum(factor * m.shape[-2] for factor, m in zip(factors, maps, strict=True))
        entropy = sum(f * torch.special.entr(m).sum((-2, -1)) for f, m in zip(factors, maps, strict=True)) / count
        masses = sum(f * span_masses(m).sum(-2) for f, m in zip(factors, maps, strict=True)) / count
        seen = total[name]
        assert seen.shape == (1, 4, 1, length)
        torch.testing.assert_close(seen.sums.double(), sums, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(seen.entropy.double(), entropy[..., None], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(seen.span_mass.double(), masses[..., None, :], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(sums.gather(-1, seen.top_keys[..., 0, :]), sums.topk(2).values, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(seen.max_score[..., 0], scores_of_calls[name])


def recorded_scores(model: nn.Module, prompt: Tensor) -> dict[str, Tensor]:
    """Return the largest score of each module's heads in all runs."""
    with dikkat.record(model, max_score=True) as trace:
        model.generate(prompt, **GENERATE)
    return {
        name: torch.stack([trace[name, call].max_score.amax(-1) for call in range(trace.count(name))]).amax(0)
        for name in trace.names
    }


def test_spans_are_saved(tmp_path):
    model, x = Attention("fused"), torch.randn(2, 11, 6)
    with dikkat.record(model, spans=SPANS, max_score=True) as trace:
        model(x)
    trace.save(tmp_path / "trace.safetensors")
    loaded = dikkat.Trace.load(tmp_path / "trace.safetensors")
    assert loaded.spans == tuple(SPANS)
    torch.testing.assert_close(loaded[""].span_mass, trace[""].span_mass, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"spans": {"a": slice(0, 12)}}, "spans: got 'a' up to position 11; expected at most 10"),
        ({"spans": {"a": slice(3, 3)}}, "spans: got slice"),
        ({"spans": {"a": [-1]}}, "expected a slice, or a list of token positions from 0"),
        ({"spans": {}}, "expected keys by name"),
        ({"max_score": 1}, "max_score: got int; expected True or False"),
        ({"sums": True, "sum_over": "queries"}, "sum_over: got 'queries'; expected 'calls'"),
        ({"sums": True, "sum_over": "calls", "decay": 0.0}, "decay: got 0.0; expected a number above 0"),
        ({"sums": True, "decay": 0.5}, "sum_over: got None; expected 'calls'"),
        ({"weights": True, "sum_over": "calls"}, "weights: got a request that has no sum over calls"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    model = Attention("fused")
    with pytest.raises((ValueError, TypeError), match=message), dikkat.record(model, **arguments):
        model(torch.randn(2, 11, 6))


def test_calls_of_another_batch_have_no_total():
    model = Attention("fused")
    with dikkat.record(model, sums=True, sum_over="calls") as trace:
        model(torch.randn(2, 11, 6))
        with pytest.raises(ValueError, match="expected the same batch"):
            model(torch.randn(3, 11, 6))
    assert len(trace) == 1


def test_a_recurrence_has_no_largest_score():
    from dikkat.recurrent import AttentionalGRU

    layer = AttentionalGRU(3, 4, 5, scores.Additive(5, 4, 6))
    memory, message = layer.prepare(torch.randn(2, 11, 5)), "max_score: got weights whose scores dikkat does not know"
    with pytest.raises(ValueError, match=message), dikkat.record(layer, max_score=True):
        layer(torch.randn(2, 7, 3), memory, torch.zeros(1, 2, 4))


class Block(nn.Module):
    """A decoder's block that calls attention twice in one module: over its own sequence and a source's."""

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        x = F.scaled_dot_product_attention(x, x, x)
        return F.scaled_dot_product_attention(x, source, source)


def test_self_and_cross_attention_have_separate_totals():
    model, x, source = Block(), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
    with dikkat.record(model, sums=True, sum_over="calls") as trace:
        model(x, source)
        model(x, source)
    assert [record.sums.shape[-1] for _, record in trace.calls()] == [5, 7]
    assert all(torch.allclose(record.sums.sum(-1), torch.tensor(10.0)) for _, record in trace.calls())


@pytest.mark.parametrize("kind", ["fused", "softmax"])
def test_queries_that_see_no_key_do_not_count_in_totals(kind):
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    visible[0] = False

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if kind == "fused":
                return F.scaled_dot_product_attention(x, x, x, attn_mask=visible)
            smallest = torch.finfo(x.dtype).min
            return ((x @ x.mT / 2).masked_fill(~visible, smallest).softmax(-1)) @ x

    x, model = torch.randn(2, 3, 5, 4), Model()
    with dikkat.record(model, entropy=True, spans={"a": slice(0, 2)}, sum_over="calls") as trace:
        model(x)
    weights = (x @ x.mT / 2).double().masked_fill(~visible, -torch.inf)[..., 1:, :].softmax(-1)
    entropy = torch.special.entr(weights).sum(-1).mean(-1, keepdim=True)
    torch.testing.assert_close(trace[""].entropy.double(), entropy, rtol=1e-5, atol=1e-6)
    masses = weights[..., :2].sum(-1).mean(-1)
    torch.testing.assert_close(trace[""].span_mass[..., 0, 0].double(), masses, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shift", [False, True])
def test_a_softmax_of_shifted_scores_has_no_largest_score(shift):
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            logits = x @ x.mT
            return (logits - logits.amax(-1, keepdim=True) if shift else logits).softmax(-1) @ x

    x, model = torch.randn(2, 3, 5, 4), Model()
    if shift:
        with (
            pytest.raises(ValueError, match="max_score: got weights whose scores"),
            dikkat.record(model, max_score=True),
        ):
            model(x)
        return
    with dikkat.record(model, max_score=True) as trace:
        model(x)
    torch.testing.assert_close(trace[""].max_score, (x @ x.mT).amax(-1))


def test_a_sink_column_leaves_the_largest_score():
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            logits = torch.cat([x @ x.mT, torch.full((*x.shape[:-1], 1), 2.0)], -1)
            return logits.softmax(-1)[..., :-1] @ x

    x, model = torch.randn(2, 3, 5, 4) / 3, Model()
    with dikkat.record(model, max_score=True) as trace:
        model(x)
    torch.testing.assert_close(trace[""].max_score, (x @ x.mT).amax(-1))


def test_a_change_that_sets_weights_has_no_largest_score():
    model, x = Attention("fused"), torch.randn(2, 11, 6)
    message = "max_score: got a change that sets weights"
    change = dikkat.change(model, spans={"start": slice(0, 3)}, mass=0.4)
    with change, pytest.raises(ValueError, match=message), dikkat.record(model, max_score=True):
        model(x)


def test_spans_beyond_the_keys_of_cross_attention_raise():
    class Model(nn.Module):
        def forward(self, x: Tensor, source: Tensor) -> Tensor:
            return dikkat.attend(x, source, source, score=scores.ScaledDot())

    model, message = Model(), "up to position 12; expected at most 4"
    with pytest.raises(ValueError, match=message), dikkat.record(model, spans={"a": slice(0, 13)}):
        model(torch.randn(2, 17, 4), torch.randn(2, 5, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("queries", [1, 4, 5])  # up to 4 queries, masses are sums of weights
@pytest.mark.parametrize(
    "change", [None, {"cut": True, "heads": 1}, {"scale": {"start": 3.0}, "spans": {"start": slice(0, 3)}}]
)
def test_masses_of_half_precision_and_of_changes(dtype, queries, change):
    query, key = (torch.randn(2, 3, length, 8, dtype=torch.float64).to(dtype) for length in (queries, 907))
    weights = logits_of("scaled dot", query, key).softmax(-1)
    if change and "cut" in change:
        weights[:, 1] = 0
    elif change:
        weights[..., :3] *= 3
        weights /= weights.sum(-1, keepdim=True)

    class Model(nn.Module):
        def forward(self) -> Tensor:
            return dikkat.attend(query, key, key, score=SCORES["scaled dot"])

    model = Model()
    with dikkat.change(model, **change) if change else nullcontext(), dikkat.record(model, spans=SPANS) as trace:
        model()
    tolerance = {torch.float16: 1e-4, torch.bfloat16: 1e-3}.get(dtype, 1e-6)
    torch.testing.assert_close(trace[""].span_mass.double(), span_masses(weights), rtol=0, atol=tolerance)


def test_the_weights_of_one_query_are_those_of_its_row():
    """Masks of booleans and numbers, heads that share keys, hidden rows, and autocast."""
    query, key = torch.randn(2, 6, 1, 8), torch.randn(2, 2, 11, 8)
    seen = torch.rand(2, 1, 1, 11) > 0.4
    seen[1] = False
    numbers = torch.where(seen, torch.randn(2, 1, 1, 11), torch.finfo(torch.float32).min)
    repeated = key.double().repeat_interleave(3, 1)
    for mask in (None, seen, numbers):
        logits = query.double() @ repeated.mT * 0.3
        if mask is not None:
            logits = logits.masked_fill(~seen, -math.inf) + (0 if mask.dtype == torch.bool else numbers.double())
        expected = logits.softmax(-1).nan_to_num(0.0)[:, :, 0]
        for grouped in (query, query.view(2, 2, 3, 8)):
            with torch.autocast("cpu", torch.bfloat16), without_autocast():
                weights = weights_of_one_query({"query": grouped, "key": key, "attn_mask": mask, "scale": 0.3})
            torch.testing.assert_close(weights.double(), expected, rtol=0, atol=1e-6)
