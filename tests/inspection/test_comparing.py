"""Two recordings compared, patterns of one's own and pages of effects: sums in NumPy's float64, written out."""

import base64
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import dikkat
import kit
from dikkat.inspection import Inspection
from dikkat.inspection.calls import Call
from dikkat.inspection.joined_runs import summarise_for_page

LAYERS, HEADS, COUNT, LONGER = 2, 3, 7, 11
# The words of the longer text at these positions are those of the shorter one, in its order.
COMMON = [0, 1, 3, 4, 5, 8, 9]
WORDS = [f"w{k}" for k in range(COUNT)]
LONGER_WORDS = [WORDS[COMMON.index(k)] if k in COMMON else f"new{k}" for k in range(LONGER)]


def random_weights(queries: int, keys: int, seed: int, layers: int = LAYERS) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(layers, HEADS, queries, keys, generator=generator)).softmax(-1)


def shown(weights: Tensor, tokens: Any = None) -> dikkat.Trace:
    return dikkat.show.weights(list(weights), tokens=tokens)


def view_of(trace: dikkat.Trace, path: Path, **arguments: Any) -> Any:
    trace.to_html(path / "page.html", **arguments)
    page = (path / "page.html").read_text(encoding="utf-8")
    found = re.search(r'<script id="dikkat-content" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])["calls"]["views"][0]


def decoded(text: str) -> NDArray[Any]:
    """Signed weights: the first bit of a code is the sign, the others are minus the logarithm in steps."""
    codes = np.frombuffer(base64.b64decode(text), "<u2").astype(int)
    sizes = 2.0 ** (-(codes % 2**15) / 2048)
    return np.where(codes == 2**16 - 1, 0, np.where(codes >= 2**15, -sizes, sizes))


def variations(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """The mean over queries of half the absolute differences, in plain loops."""
    found = np.zeros(first.shape[:2])
    for layer, head in np.ndindex(*found.shape):
        rows = [
            sum(abs(p - q) for p, q in zip(*pair, strict=True)) / 2
            for pair in zip(first[layer, head], second[layer, head], strict=True)
        ]
        found[layer, head] = sum(rows) / len(rows)
    return found


def assert_ranked(table: Any, expected: NDArray[Any]) -> None:
    assert list(table.columns) == ["layer", "module", "head", "change"]
    assert (np.diff(table["change"]) <= 0).all()
    found = np.full(expected.shape, np.nan)
    found[table["layer"], table["head"]] = table["change"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_heads_are_ranked_by_the_variation_of_their_weights() -> None:
    first, second = random_weights(COUNT, COUNT, 1), random_weights(COUNT, COUNT, 2)
    table = dikkat.compare(shown(first), shown(second))
    assert_ranked(table, variations(first.double().numpy(), second.double().numpy()))
    assert set(table["module"]) == {"layer 0", "layer 1"}
    assert not dikkat.compare(shown(first), shown(first))["change"].any()
    near = first.roll(1, -1)  # from one key to another: all weight of these heads moves
    assert math.isclose(dikkat.compare(shown(torch.eye(5)), shown(torch.eye(5).roll(1, -1)))["change"][0], 1.0)
    assert not torch.equal(first, near)


def test_texts_of_other_lengths_are_compared_at_their_common_tokens(tmp_path: Path) -> None:
    first, second = random_weights(COUNT, COUNT, 3), random_weights(LONGER, LONGER, 4)
    traces = shown(first, WORDS), shown(second, LONGER_WORDS)
    common = second[:, :, COMMON][..., COMMON]
    assert_ranked(dikkat.compare(*traces), variations(first.double().numpy(), common.double().numpy()))
    difference = traces[1] - traces[0]
    for layer in range(LAYERS):
        torch.testing.assert_close(difference[layer].weights[0], common[layer] - first[layer])
    assert [token.text for token in difference.tokens["self"]] == WORDS
    view = view_of(difference, tmp_path)
    assert [text for text, *_ in view["queries"]] == [text for text, *_ in view["keys"]] == WORDS
    with pytest.raises(ValueError, match="got texts without a common token"):
        shown(first, WORDS) - shown(second, [f"x{k}" for k in range(LONGER)])


def test_a_source_and_a_target_are_aligned_each() -> None:
    first, second = random_weights(5, COUNT, 5), random_weights(5, LONGER, 6)
    target = list("abcde")
    traces = shown(first, (WORDS, target)), shown(second, (LONGER_WORDS, target))
    expected = variations(first.double().numpy(), second[..., COMMON].double().numpy())
    assert_ranked(dikkat.compare(*traces), expected)
    tokens = (traces[0] - traces[1]).tokens
    assert [[token.text for token in tokens[kind]] for kind in ("encoder", "self")] == [WORDS, target]


def test_words_at_one_position_are_both_shown() -> None:
    first, second = (random_weights(3, 3, seed) for seed in (1, 2))
    difference = shown(first, ["a", "red", "rose"]) - shown(second, ["a", "blue", "rose"])
    assert [token.text for token in difference.tokens["self"]] == ["a", "red / blue", "rose"]


class Wrapped(nn.Module):
    """As an adapter, whose modules have other names."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base = model

    def forward(self, x: Tensor) -> Any:
        return self.base(x)


def encoder(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(8, 2, 11, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def recorded(model: nn.Module, x: Tensor, **request: Any) -> dikkat.Trace:
    with torch.no_grad(), dikkat.record(model, **(request or {"weights": True})) as trace:
        model(x)
    return trace


def test_modules_of_other_names_and_elements_of_a_batch() -> None:
    x = torch.randn(2, 5, 8)
    traces = recorded(encoder(1), x), recorded(Wrapped(encoder(2)), x)
    for element in (0, -1):
        first, second = (
            torch.stack([record.weights[element].double() for _, record in trace.calls()]).numpy() for trace in traces
        )
        assert_ranked(dikkat.compare(*traces, element=element), variations(first, second))
    difference = traces[0] - traces[1]
    assert difference.names == traces[0].names
    assert difference["layers.0.self_attn"].weights.shape == (2, 2, 5, 5)
    with pytest.raises(ValueError, match="element: got 2; expected -2 to 1"):
        dikkat.compare(*traces, element=2)


def test_padding_is_no_query() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x, attn_mask=(torch.arange(5) < 3)[None, None, None])

    model, inputs = Model(), [2 * torch.randn(1, 2, 5, 4) for _ in range(2)]
    traces = [recorded(model, x) for x in inputs]
    first, second = (trace[""].weights[..., :3, :].double().numpy() for trace in traces)
    table = dikkat.compare(*traces).sort_values("head")
    np.testing.assert_allclose(table["change"], variations(first, second)[0], rtol=1e-5)
    assert (traces[0] - traces[1])[""].change[..., 3:].isnan().all()


def test_a_cut_layer_has_no_padding() -> None:
    model, x = encoder(1), torch.randn(2, 5, 8)
    whole = recorded(model, x)
    with dikkat.change(model, layers=1, cut=True):
        cut = recorded(model, x)
    for pair in ((whole, cut), (cut, whole)):
        table = dikkat.compare(*pair)
        np.testing.assert_allclose(table["change"][table["layer"] == 1], 0.5, rtol=1e-5)


def test_the_page_has_signed_weights(tmp_path: Path) -> None:
    first, second = random_weights(LONGER, LONGER, 7), random_weights(LONGER, LONGER, 8)
    difference = shown(first, LONGER_WORDS) - shown(second, LONGER_WORDS)
    expected = (first - second).double().numpy()
    view = view_of(difference, tmp_path)
    assert view["lead"] == "change"
    changes = variations(first.double().numpy(), second.double().numpy())
    for layer, shown_layer in enumerate(view["layers"]):
        np.testing.assert_allclose(shown_layer["shares"]["change"], changes[layer], rtol=1e-3)
        assert set(shown_layer["shares"]) == {"change"}
        found = decoded(shown_layer["map"]).reshape(HEADS, LONGER, LONGER)
        np.testing.assert_allclose(found, expected[layer], rtol=1e-3, atol=2e-5)
        found = decoded(shown_layer["weights"]).reshape(HEADS, LONGER, -1)
        order = np.argsort(-np.abs(expected[layer]), -1)
        np.testing.assert_allclose(found, np.take_along_axis(expected[layer], order, -1), rtol=1e-3, atol=2e-5)


def test_cells_of_a_long_text_have_the_sign_of_their_largest_difference(tmp_path: Path) -> None:
    first, second = (random_weights(128, 128, seed, layers=1) for seed in (1, 2))
    view = view_of(shown(first) - shown(second), tmp_path)
    cells = (first - second)[0].double().numpy().reshape(HEADS, 64, 2, 64, 2).transpose(0, 1, 3, 2, 4).reshape(-1, 4)
    expected = cells[np.arange(len(cells)), np.abs(cells).argmax(-1)]
    np.testing.assert_allclose(decoded(view["layers"][0]["map"]), expected, rtol=1e-3, atol=2e-5)


def test_a_difference_is_saved_and_tabled(tmp_path: Path) -> None:
    first, second = random_weights(5, 5, 1), random_weights(5, 5, 2)
    difference = shown(first) - shown(second)
    difference.save(tmp_path / "trace")
    loaded = dikkat.Trace.load(tmp_path / "trace")
    for trace in (difference, loaded):
        frame = trace.frame()
        assert len(frame) == first.numel()
        row = frame[(frame["layer"] == 1) & (frame["head"] == 2) & (frame["query"] == 3) & (frame["key"] == 4)]
        assert row["weight"].item() == (first - second)[1, 2, 3, 4].item()
        for name, view in {
            "scores": trace.scores, "attentions": trace.attentions, "rollout|attentions": trace.rollout,
            "effects": lambda trace=trace: trace.to_html(tmp_path / "page.html", effects=[]),
        }.items():  # fmt: skip
            with pytest.raises(ValueError, match=f"^({name}): got a difference of two runs; expected one run"):
                view()
    with pytest.raises(ValueError, match="layer 0'\\]: got a difference; expected two recordings with weights=True"):
        difference - shown(first)
    model, x = encoder(1), torch.randn(1, 5, 8)
    trace = recorded(model, x)
    with (
        pytest.raises(ValueError, match="weights: got a trace without all weights"),
        dikkat.change(model, weights=trace - trace),
    ):
        model(x)


def test_recordings_that_cannot_be_compared() -> None:
    x, model = torch.randn(2, 5, 8), encoder(1)
    trace = recorded(model, x)
    longer = recorded(model, torch.randn(2, COUNT, 8))
    labelled = [recorded(model, torch.randn(2, count, 8)) for count in (COUNT, LONGER)]
    for each, words in zip(labelled, (WORDS, LONGER_WORDS), strict=True):
        each.tokens = words
    for first, second, error, message in (
        (trace, recorded(model, x, top_k=2), ValueError, r"trace\['layers.0.*'\]: got .*top_keys.*; expected two"),
        (trace, recorded(model, x, layers=1, weights=True), ValueError, "got 3 calls and 1|got 3 and 1 calls"),
        (trace, recorded(model, x, heads=[1], weights=True), ValueError, r"heads \[0, 1\].* and .*heads \[1\]"),
        (trace, recorded(model, x[:1]), ValueError, "batch 2.* batch 1"),
        (*(recorded(model, x, layers=k, weights=True) for k in (0, 1)), ValueError, "layer 0.*layer 1"),
        (trace, longer, ValueError, r"trace\['layers.0.self_attn'\] - other: got 5 and 7 queries; expected equal"),
        (*labelled, ValueError, "got 7 and 11 queries; .*, or one whole text with tokens in each trace"),
        (trace, 3, TypeError, "b: got int; expected a trace of dikkat.record"),
        (torch.eye(2), trace, TypeError, "a: got Tensor; expected a trace"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            dikkat.compare(first, second)
    with pytest.raises(TypeError, match="unsupported operand"):
        trace - 3  # type: ignore[operator]


# --- patterns of one's own


@kit.each("top", [None, 3])
def test_a_pattern_is_the_mean_weight_of_its_keys(top: int | None) -> None:
    """In causal heads the queries that see a key of the mask, and more than one key; unknown weights are equal."""
    count = 9
    weights = (random_weights(count, count, 1, 1).log() + torch.full((count, count), -math.inf).triu(1)).softmax(-1)
    trace = dikkat.Trace()
    largest = weights.topk(count if top is None else top, -1)
    keys = largest.indices.masked_fill(largest.values == 0, -1)
    trace.add(
        Inspection(weights=weights) if top is None else Inspection(top_weights=largest.values, top_keys=keys),
        Call("layer"),
    )
    pairs = torch.zeros(count, count, dtype=torch.bool)
    pairs[2, 1] = pairs[5, 7] = pairs[6, [0, 3, 6]] = True  # query 5 does not see key 7
    masks = {"pairs": pairs, "subject": np.arange(count) % 4 == 2, "none": [False] * count}
    table = trace.scores(patterns=masks)
    assert list(table.columns)[4:9] == ["looks", "pairs", "subject", "none", "previous"]
    assert table["none"].isna().all()
    plain = trace.scores()
    assert plain.equals(table[plain.columns])
    for head in range(HEADS):
        for name in ("pairs", "subject"):
            mask = np.broadcast_to(np.asarray(masks[name]), (count, count))
            found = []
            for i in range(1, count):
                row = weights[0, head, i].double().numpy()
                known = {*np.argsort(-row)[: i + 1 if top is None else min(top, i + 1)].tolist()}
                rest = [j for j in range(i + 1) if j not in known]
                filled = [row[j] if j in known else row[rest].sum() / len(rest) for j in range(i + 1)]
                if mask[i, : i + 1].any():
                    found.append(sum(filled[j] for j in range(i + 1) if mask[i, j]))
            assert math.isclose(table[name][head], sum(found) / len(found), rel_tol=1e-5)


def test_masks_that_fit_some_calls_or_none() -> None:
    trace = dikkat.show.weights([random_weights(3, 5, 1, 1)[0], random_weights(4, 4, 2, 1)[0]])
    table = trace.scores(patterns={"last": [False] * 4 + [True]})
    assert table["last"].isna().tolist() == [False] * HEADS + [True] * HEADS
    for masks, error, message in (
        ({"previous": [True] * 4}, ValueError, "patterns: got the name 'previous'; expected strings except layer"),
        ({"queries": [True] * 4}, ValueError, "got the name 'queries'"),
        ({3: [True] * 4}, ValueError, "got the name 3"),
        ({"a": [1, 0, 0, 1]}, TypeError, r"got torch.int64 for 'a'; expected a mask of booleans"),
        ({"a": [True] * 3}, ValueError, r"got 'a' of shape \(3,\); expected \(n, m\) or \(m,\), .* such as \(4, 4\)"),
        ({"a": torch.ones(5, 3).bool()}, ValueError, r"got 'a' of shape \(5, 3\)"),
        ([True], TypeError, "patterns: got list; expected boolean masks by name"),
    ):
        with pytest.raises(error, match=message):
            trace.scores(patterns=masks)


# --- pages with effects


def test_the_page_has_the_effects_of_heads(tmp_path: Path) -> None:
    words = ["a", "rose", "is", "a", "rose", "is", "a"]
    model = dikkat.show.example_model()
    table = dikkat.effects(model, words, target=3, tokens=words)
    trace = recorded(model, words, top_k=8)
    trace.tokens = words
    assert view_of(trace, tmp_path)["lead"] == ""
    view = view_of(trace, tmp_path, effects=table.sort_values("effect"))
    assert view["lead"] == "effect"
    for layer, shown_layer in enumerate(view["layers"]):
        np.testing.assert_allclose(
            shown_layer["shares"]["effect"], table["effect"][4 * layer : 4 * layer + 4], rtol=1e-3
        )
        assert shown_layer["looks"] == table["looks"][4 * layer : 4 * layer + 4].tolist()
    estimates = dikkat.effects(model, words, target=3, exact=False, layers=1)
    view = view_of(trace, tmp_path, effects=estimates)
    assert view["lead"] == "estimate"
    assert view["layers"][0]["shares"]["estimate"] == [None] * 4
    np.testing.assert_allclose(view["layers"][1]["shares"]["estimate"], estimates["estimate"], rtol=1e-3)
    view_of(trace, tmp_path, effects=table.to_records())
    part = recorded(model, words, top_k=8, heads=[2], layers=1)
    assert view_of(part, tmp_path, effects=table[6:7])["layers"][0]["shares"]["effect"][0] == pytest.approx(
        table["effect"][6], rel=1e-3
    )
    for wrong, message in (
        (table.drop(columns="estimate"), "effects: got DataFrame without columns .*; expected the table of dikkat.ef"),
        (trace.scores(), "got DataFrame without columns layer, module, head, effect, estimate"),
        ([1, 2], "got list without columns"),
        (table.replace({"module": {"layers.1": "layers.2"}}), r"got head 0 of layer 1 \('layers.2'\) which is not in"),
        (table.iloc[[0, 1, 1]], r"got head 1 of layer 0 \('layers.0'\) twice"),
    ):
        with pytest.raises(ValueError, match=message):
            trace.to_html(tmp_path / "page.html", effects=wrong)
    with pytest.raises(ValueError, match="which is not in the trace"):
        part.to_html(tmp_path / "page.html", effects=table)


def test_missing_keys_of_a_causal_difference_have_no_weight():
    causal = [random_weights(COUNT, COUNT, seed).tril() for seed in (1, 2)]
    first, second = (weights / weights.sum(-1, keepdim=True) for weights in causal)
    difference = shown(first) - shown(second)
    drawn = summarise_for_page(next(difference.calls())[1].of_batch(0), ({}, {}))
    assert drawn is not None
    missing = drawn.top_keys < 0
    assert missing.any()
    assert (drawn.top_weights[missing] == 0).all()
    right = (first - second)[0].gather(-1, drawn.top_keys.clamp(min=0))
    torch.testing.assert_close(drawn.top_weights[~missing], right[~missing])
