"""Overviews, sums by key, entropies, and the page of a model's calls."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import dikkat
from dikkat.inspection.calls import Call
from dikkat.inspection.request import Inspection
from dikkat.show import entropies, heatmaps, key_sums


def panels_of(figure):
    return [axes for axes in figure.axes if axes.images]


def test_an_overview_counts_the_queries_and_keys_of_the_whole_map():
    overview = torch.rand(2, 3, 5, 7)
    figure = heatmaps(overview, extent=(5000, 70_001))
    figure.draw_without_rendering()
    for index, axes in enumerate(panels_of(figure)):
        np.testing.assert_array_equal(axes.images[0].get_array(), overview[index // 3, index % 3].double().numpy())
        assert axes.images[0].get_extent() == [-0.5, 70_000.5, 4999.5, -0.5]
        assert max(axes.get_xticks()) > 10_000


@pytest.mark.parametrize("shape", [(1, 1), (1, 1023), (1023, 1), (640, 480)])
def test_an_overview_of_any_size_is_drawn(shape):
    figure = heatmaps(torch.rand(shape), extent=(2000, 3000))
    figure.draw_without_rendering()
    assert max(figure.get_size_inches()) < 20


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"extent": (4, 9)}, r"extent: got \(4, 9\); expected .* at least \(5, 7\)"),
        ({"extent": (50, 70), "keys": list("abcdefg")}, "extent: got an extent and tokens"),
    ],
)
def test_an_extent_that_does_not_fit(more, message):
    with pytest.raises(ValueError, match=message):
        heatmaps(torch.rand(5, 7), **more)


def test_a_line_for_each_head():
    sums = torch.rand(3, 11)
    axes = key_sums(sums, labels=["a", "b", "c"]).axes[0]
    for line, own in zip(axes.lines, sums, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), own.double().numpy())
        np.testing.assert_array_equal(line.get_xdata(), np.arange(11))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b", "c"]
    assert axes.get_ylim()[0] == 0


def test_tokens_under_the_line():
    axes = key_sums([3.0, 1.0], keys=["le", "$chat$"]).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["le", "$chat$"]


def test_entropies_are_means_by_layer_and_head():
    first, second = torch.rand(2, 3, 5), torch.rand(4)
    figure = entropies({"encoder.0": first, "": second})
    image = panels_of(figure)[0].images[0].get_array()
    np.testing.assert_allclose(image[0], first.double().mean((0, 2)), rtol=1e-12)
    np.testing.assert_allclose(image[1, 0], float(second.double().mean()), rtol=1e-12)
    assert image.mask[1].tolist() == [False, True, True]
    axes = panels_of(figure)[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["encoder.0", "model"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: key_sums(torch.rand(2, 3, 4)), r"sums: got shape \(2, 3, 4\); expected"),
        (lambda: key_sums([1.0, 2.0], keys="ab"), "keys: got one string; expected 2"),
        (lambda: key_sums([1.0] * 61, keys=["a"] * 61), "keys: got 61 tokens; expected 61, .* at most 60"),
        (lambda: key_sums([1.0], labels=["a", "b"]), "labels: got 2; expected 1"),
        (lambda: entropies({}), "by_layer: got no layer"),
        (lambda: entropies({"a": torch.rand(0, 3)}), r"by_layer\['a'\]: got shape \(0, 3\)"),
    ],
)
def test_refusals_say_what_came(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


# --- the page of calls


def content_of(path: Path):
    text = path.read_text(encoding="utf-8")
    (found,) = re.findall(r'<script id="dikkat-content" type="application/json">(.*?)</script>', text)
    return json.loads(found)["calls"]


def numbers(maps):
    """What the page holds of maps: (maps, rows, columns)."""
    return np.frombuffer(base64.b64decode(maps["values"]), "<f4").reshape(-1, *maps["shape"])


def test_the_page_has_the_numbers_of_every_call_and_asks_nothing_of_a_network(tmp_path: Path):
    model = torch.nn.ModuleDict({"<b>": dikkat.MultiHeadAttention(6, 3), "other": dikkat.SelfAttention(6, 6, 6)})
    with dikkat.record(model, rows=[0, -1], top_k=2, sums=True, entropy=True, overview=4) as trace:
        x = torch.randn(2, 13, 6)
        for layer in (model["<b>"], model["<b>"]):
            layer(x, x, x)
        model["other"](x)
    path = tmp_path / "page.html"
    trace.to_html(path, title="A & B")
    text = path.read_text(encoding="utf-8")
    assert "<title>A &amp; B</title>" in text
    assert re.findall(r"<h2>(.*?)</h2>", text) == ["&lt;b&gt; · 0", "&lt;b&gt; · 1", "other"]
    assert "top_keys (2, 3, 13, 2)" in text
    content = content_of(path)
    assert content["count"] == 3
    assert [call["name"] for call in content["calls"]] == ["<b> · 0", "<b> · 1", "other"]
    for call, (_, _, seen) in zip(content["calls"], trace, strict=True):
        overview, rows, sums = call["maps"]
        np.testing.assert_array_equal(numbers(overview), seen.overview[0].numpy())
        np.testing.assert_array_equal(numbers(rows), seen.rows[0].numpy())
        np.testing.assert_array_equal(numbers(sums)[0], seen.sums[0].numpy())
        assert [each["kind"] for each in call["maps"]] == ["overview", "rows", "sums"]
        assert [each["extent"] for each in call["maps"]] == [[13, 13], [2, 13], [len(numbers(sums)[0]), 13]]
        assert overview["range"] == pytest.approx([0, float(seen.overview[0].max())])
        heads = seen.sums.shape[1]
        assert {(each["heads"], each["of"], each["batch"]) for each in call["maps"]} == {(heads, heads, 2)}
    means = [seen.entropy.double().mean(-1).mean(0).tolist() for _, _, seen in list(trace)[:2]]
    np.testing.assert_allclose(numbers(content["overall"])[0][:2], means, rtol=1e-6)
    assert np.isfinite(numbers(content["overall"])[0][2]).tolist() == [True, False, False]
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_long_rows_keep_their_largest_weights(tmp_path: Path):
    sums = torch.rand(2, 20, 70_001, generator=torch.Generator().manual_seed(9))
    sums[0, 3, 69_999] = 5.0
    sums[0, 4, 1] = float("nan")
    trace = dikkat.Trace()
    trace.add(Inspection(sums=sums), Call("long"))
    trace.to_html(tmp_path / "page.html")
    (call,) = content_of(tmp_path / "page.html")["calls"]
    (maps,) = call["maps"]
    (found,) = numbers(maps)
    assert found.shape == (16, 4096)
    assert (maps["extent"], maps["heads"], maps["of"], maps["batch"]) == ([16, 70_001], 16, 20, 2)
    starts = [column * 70_001 // 4096 for column in range(4096)]
    for head, column in ((0, 0), (3, 4095), (4, 0), (15, 2000)):
        own = sums[0, head, starts[column] : ([*starts, 70_001])[column + 1]].numpy()
        assert found[head, column] == np.nanmax(own)
    assert found[3, 4095] == maps["range"][1] == 5.0


def test_names_of_calls_are_text(tmp_path: Path):
    trace = dikkat.Trace()
    trace.add(Inspection(sums=torch.rand(3)), Call("</script><script>alert(1)</script>\ud800"))
    trace.to_html(tmp_path / "page.html", title="<i>\udfff")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("<script") == 2
    assert "<h2>&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;�</h2>" in text
    assert content_of(tmp_path / "page.html")["calls"][0]["name"] == "</script><script>alert(1)</script>�"
    assert "<title>&lt;i&gt;�</title>" in text
