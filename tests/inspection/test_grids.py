"""Traces of grids and times: parts, files and differences."""

import base64
import dataclasses
import gzip
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import dikkat
from dikkat.inspection.calls import Call
from dikkat.inspection.request import Inspection
from dikkat.show import blocks, views

GREY = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4) * 20)
GRID = dikkat.Grid(2, 3, image=GREY, box=(1, 0, 4, 2))
PARTS = ["[CLS]", GRID, "and", dikkat.Grid(1, 2, image=GREY, order=[1, 0])]
COUNT = 10


def trace_of(*layers: torch.Tensor, kind: str = "self") -> dikkat.Trace:
    """A trace of weights (B, H, n, m)."""
    trace = dikkat.Trace()
    for number, weights in enumerate(layers):
        trace.add(Inspection(weights=weights, shape=tuple(weights.shape)), Call(f"layer {number}", 0, number, kind))
    return trace


def random_weights(*shape: int, seed: int = 3) -> torch.Tensor:
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (2 * logits).softmax(-1)


def test_a_trace_has_the_parts_of_its_tokens():
    trace = trace_of(random_weights(1, 2, COUNT, COUNT))
    trace.tokens = PARTS
    assert trace.parts == {"self": {1: GRID, 8: PARTS[3]}}
    assert [token.text for token in trace.tokens["self"]][7:9] == ["and", "image 2, row 1, column 2"]
    other = trace_of(random_weights(1, 2, COUNT, COUNT))
    other.tokens = trace.tokens
    assert other.parts == trace.parts
    trace.tokens = ["a"] * COUNT
    assert trace.parts == {"self": {}}


def test_a_source_or_an_image_tower_has_a_grid():
    trace = trace_of(random_weights(1, 2, 5, 6), kind="cross")
    trace.tokens = (dikkat.Grid(2, 3), ["a", "b", "c", "d", "e"])
    assert trace.parts == {"self": {}, "encoder": {0: dikkat.Grid(2, 3)}}
    both = trace_of(random_weights(1, 2, 6, 6), random_weights(1, 2, 5, 5))
    both.tokens = {"self": ["a", "b", "c", "d", "e"], "image": dikkat.Grid(2, 3)}
    assert both.parts["image"] == {0: dikkat.Grid(2, 3)}


def test_elements_of_a_batch_have_different_grids(tmp_path):
    trace = trace_of(random_weights(2, 1, 6, 6))
    grids = [dikkat.Grid(2, 3, image=GREY), dikkat.Grid(2, 3, image=GREY.transpose(Image.Transpose.ROTATE_180))]
    trace.set_tokens([[grids[0]], grids[1]], [0, 1])
    trace.save(tmp_path / "trace")
    loaded = dikkat.Trace.load(tmp_path / "trace")
    for recording in (trace, loaded):
        assert [recording.tokens_of(element)["self"].parts[0] for element in (0, 1)] == grids
        assert recording.tokens == recording.tokens_of(-2)  # the first of two
        assert recording.parts == {"self": {0: grids[0]}}


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (dikkat.Grid(2, 3), r"got 6 \('self'\): Grid\(2, 3\); expected 10, such as .*\['\[CLS\]', dikkat.Grid\(3, 3"),
        (["a", dikkat.Grid(4, 4)], r"got 17 .*: 1 word \+ Grid\(4, 4\); expected 10"),
        ({"encoder": dikkat.Grid(2, 3)}, r"got 6 \('encoder'\); expected none, as no call reads a source"),
    ],
)
def test_a_grid_of_another_size(tokens, message):
    trace = trace_of(random_weights(1, 1, COUNT, COUNT))
    with pytest.raises(ValueError, match=message):
        trace.tokens = tokens


def test_a_file_keeps_parts_and_one_copy_of_an_image(tmp_path):
    trace = trace_of(random_weights(1, 2, COUNT + 2, COUNT + 2))
    trace.tokens = [*PARTS, dikkat.Times([0.25, 1.5], series=[1, 2, 3])]
    trace.save(tmp_path / "trace")
    assert dikkat.Trace.load(tmp_path / "trace").tokens == trace.tokens
    assert dikkat.Trace.load(tmp_path / "trace").parts == trace.parts
    content = (tmp_path / "trace").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["dikkat"]
    assert len(json.loads(header)["images"]) == 1


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (r"\"rows\": 2", r"\"rows\": 9", "parts: got a malformed grid .*positions 1 to 27"),
        (r"\"image\": 0", r"\"image\": 7", "parts: got a malformed grid"),
        (r"\"columns\"", r"\"colonnes\"", "parts: got a malformed grid"),
        ("iVBOR", "AAAAA", "images: got a damaged image"),
    ],
)
def test_a_damaged_file(tmp_path, before, after, message):
    trace = trace_of(random_weights(1, 1, COUNT, COUNT))
    trace.tokens = PARTS
    trace.save(tmp_path / "trace")
    content = (tmp_path / "trace").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = content[8:start].replace(before.encode(), after.encode()).rstrip()
    (tmp_path / "trace").write_bytes(len(header).to_bytes(8, "little") + header + content[start:])
    with pytest.raises(ValueError, match=message):
        dikkat.Trace.load(tmp_path / "trace")


def test_a_difference_keeps_complete_grids():
    first, second = trace_of(random_weights(1, 2, 8, 8)), trace_of(random_weights(1, 2, 8, 8, seed=5))
    first.tokens, second.tokens = ["a", GRID, "b"], ["a", GRID, "c"]
    difference = first - second
    assert difference.parts == {"self": {1: GRID}}
    assert [difference.tokens["self"][position].text for position in (0, 7)] == ["a", "b / c"]
    longer = trace_of(random_weights(1, 2, 9, 9))
    longer.tokens = ["a", "new", GRID, "b"]
    assert (longer - first).parts == {"self": {1: GRID}}
    cut = trace_of(random_weights(1, 2, 7, 7))
    cut.tokens = ["a", *(token.text for token in first.tokens["self"][1:6]), "b"]
    assert (first - cut).parts == {"self": {}}


@pytest.mark.parametrize(
    "parts",
    [
        (dikkat.Grid(2, 3), dikkat.Grid(3, 2)),
        (dikkat.Grid(2, 3), dikkat.Grid(2, 3, order=[5, 2, 0, 1, 4, 3])),
        (["a", dikkat.Grid(1, 5)], [dikkat.Grid(1, 5), "a"]),
        (dikkat.Times([1, 2, 3, 4, 5, 6]), dikkat.Times([1, 2, 3, 4, 5, 7])),
    ],
)
def test_a_difference_of_other_parts(parts):
    traces = [trace_of(random_weights(1, 2, 6, 6, seed=seed)) for seed in (3, 5)]
    for trace, tokens in zip(traces, parts, strict=True):
        trace.tokens = tokens
    for subtract in (lambda: traces[0] - traces[1], lambda: dikkat.compare(*traces)):
        with pytest.raises(ValueError, match=r"trace - other: got 'self' with .* expected equal rows"):
            subtract()
    traces[1].tokens = list("abcdef")
    assert (traces[0] - traces[1]).parts == {"self": {}}


def test_a_difference_of_equal_orders_on_two_images():
    order, traces = [5, 2, 0, 1, 4, 3], [trace_of(random_weights(1, 2, 6, 6, seed=seed)) for seed in (3, 5)]
    grids = [
        dikkat.Grid(2, 3, order=order, image=image) for image in (GREY, GREY.transpose(Image.Transpose.ROTATE_180))
    ]
    for trace, grid in zip(traces, grids, strict=True):
        trace.tokens = grid
    assert (traces[0] - traces[1]).parts == {"self": {0: grids[0]}}


# --- blocks, while recording and on pages


def content_of(path) -> dict:
    page = path.read_text(encoding="utf-8")
    return json.loads(re.findall(r'<script id="dikkat-content" type="application/json">(.*?)</script>', page)[0])[
        "calls"
    ]


def decoded(text: str, signed: bool = False) -> np.ndarray:
    codes = np.frombuffer(gzip.decompress(base64.b64decode(text)), np.uint8).astype(float)
    if signed:
        return np.where(codes % 128, np.where(codes > 127, -1, 1) * 2.0 ** ((codes % 128 - 127) / 6), 0)
    return np.where(codes, 2.0 ** ((codes - 255) / 12), 0)


def block_members(parts: list, side: int) -> np.ndarray:
    """The (groups, positions) shares of positions in groups, from the rule: words, and blocks of rows and columns."""
    groups, position = [], 0
    for part in parts:
        if isinstance(part, str):
            groups.append([position])
            position += 1
            continue
        cells = np.arange(part.rows * part.columns) if part.order is None else np.argsort(part.order)
        cells = position + cells.reshape(part.rows, part.columns)  # the position of each cell
        for top in range(0, part.rows, side):
            groups += [cells[top : top + side, left : left + side].ravel() for left in range(0, part.columns, side)]
        position += len(part)
    members = np.zeros((len(groups), position))
    for number, positions in enumerate(groups):
        members[number, positions] = 1 / len(positions)
    return members


LONG = [
    "[CLS]",
    dikkat.Grid(17, 19, image=GREY, order=np.random.default_rng(2).permutation(323)),
    "and",
    dikkat.Grid(3, 2),
]
LONG_COUNT = 331


class Attention(torch.nn.Module):
    def __init__(self, attend=None) -> None:
        super().__init__()
        self.attend = attend or torch.nn.functional.scaled_dot_product_attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attend(x, x, x)


WAYS = {
    "fused": Attention(),
    "eager": Attention(lambda q, k, v: (q @ k.mT / 5**0.5).softmax(-1) @ v),
    "numba": Attention(lambda q, k, v: dikkat.attend(q, k, v, score=dikkat.scores.ScaledDot(), impl="numba")),
    "gaussian": Attention(lambda q, k, v: dikkat.attend(q, k, v, score=dikkat.scores.Gaussian(2.0))),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "chosen", [{}, {"heads": [1]}, {"queries": [-1, 3]}, {"weights": True}, {"spans": {"a": slice(2, 9)}}]
)
def test_blocks_are_means_of_all_weights(way, chosen):
    x = torch.randn(2, 3, LONG_COUNT, 5, generator=torch.Generator().manual_seed(4))
    with dikkat.record(WAYS[way], blocks=LONG, **chosen) as trace:
        WAYS[way](x)
    x = x.double()
    logits = -torch.cdist(x, x).square() / 8 if way == "gaussian" else x @ x.mT / 5**0.5
    weights, members = logits.softmax(-1).numpy(), block_members(LONG, 2)
    if "heads" in chosen:
        weights = weights[:, [1]]
    if "queries" in chosen:
        expected, outside = weights[:, :, [-1, 3]] @ members.T, None
    else:
        expected, outside = members @ weights @ members.T, weights[:, :, [0, 324]]
    np.testing.assert_allclose(trace[""].blocks, expected, atol=2e-6)
    assert (trace[""].outside is None) == (outside is None)
    if outside is not None:
        np.testing.assert_allclose(trace[""].outside, outside, atol=2e-6)
    if "spans" in chosen:
        np.testing.assert_allclose(trace[""].span_mass[..., 0], weights[..., 2:9].sum(-1), atol=2e-6)


def test_blocks_of_rows_with_separators(tmp_path, monkeypatch):
    """A separator after each row of patches does not make the blocks strips of one row."""
    image, rows, columns = Image.new("L", (19, 17)), 17, 19
    boxes = [(0, row, columns, row + 1) for row in range(rows)]
    tokens = ["[CLS]", *(entry for box in boxes for entry in (dikkat.Grid(1, columns, image=image, box=box), "\n"))]
    tokens += [dikkat.Grid(2, 3, image=GREY), dikkat.Times([0.0, 1.0, 2.0])]
    names = [("[CLS]", 0, 0)]
    for row in range(rows):
        names += [("image", row, column) for column in range(columns)] + [(f"separator {row}", 0, 0)]
    names += [("another image", *divmod(cell, 3)) for cell in range(6)] + [("times", time, 0) for time in range(3)]

    def members(side):
        blocks_of = [(name, row // side, column // side) for name, row, column in names]
        shares = np.array([[block == other for other in blocks_of] for block in dict.fromkeys(blocks_of)], float)
        return shares / shares.sum(-1, keepdims=True)

    count = len(names)
    model, x = Attention(), torch.randn(1, 2, count, 5, generator=torch.Generator().manual_seed(4))
    weights = (x.double() @ x.double().mT / 5**0.5).softmax(-1)[0].numpy()
    with dikkat.record(model, blocks=tokens) as trace:
        model(x)
    assert members(2).shape == (1 + 9 * 10 + rows + 2 + 2, count)
    np.testing.assert_allclose(trace[""].blocks[0], members(2) @ weights @ members(2).T, atol=2e-6)
    trace.tokens = tokens
    for budget, side in ((10**6, 2), (23_000, 4)):
        monkeypatch.setattr(views, "_MAP_BYTES", budget)
        trace.to_html(tmp_path / "page.html")
        (layer,) = content_of(tmp_path / "page.html")["views"][0]["layers"]
        assert layer["maps"]["block"] == side
        shown = decoded(layer["maps"]["blocks"]).reshape(2, len(members(side)), -1)
        np.testing.assert_allclose(shown, members(side) @ weights @ members(side).T, rtol=0.03)


def test_blocks_of_calls_of_other_lengths():
    model = Attention()
    with dikkat.record(model, blocks=LONG, entropy=True) as trace:
        model(torch.randn(1, 2, 7, 5))
    assert trace[""].blocks is None
    for tokens, error, message in (
        (["a", "b"], ValueError, "blocks: got tokens without dikkat.Grid"),
        (3, TypeError, "tokens: got int"),
    ):
        with pytest.raises(error, match=message):
            dikkat.record(model, blocks=tokens)
    with (
        pytest.raises(ValueError, match="blocks: got a request that has no sum over calls"),
        dikkat.record(model, blocks=LONG, sum_over="calls"),
    ):
        pass


REQUESTS = [{"weights": True}, {"blocks": PARTS, "top_k": 2}, {"blocks": PARTS}, {"top_k": COUNT}, {"top_k": 2}]


@pytest.mark.parametrize("request_of", REQUESTS, ids=map(", ".join, REQUESTS))
def test_a_page_has_all_weights_of_a_small_grid(tmp_path, request_of):
    model, x = Attention(), torch.randn(1, 2, COUNT, 5, generator=torch.Generator().manual_seed(4))
    with dikkat.record(model, **request_of) as trace:
        model(x)
    trace.tokens = PARTS
    trace.to_html(tmp_path / "page.html")
    content = content_of(tmp_path / "page.html")
    ((view,), (image,)) = content["views"], content["images"]
    assert (image["width"], image["height"]) == (4, 3)
    assert np.array_equal(Image.open(io.BytesIO(base64.b64decode(image["source"].partition(",")[2]))), GREY)
    first, second = view["parts"][0]
    assert view["parts"][1] == view["parts"][0]
    assert first == {
        "kind": "grid", "number": 0, "above": 0, "start": 1, "rows": 2, "columns": 3, "image": 0,
        "box": [1.0, 0.0, 4.0, 2.0],
    }  # fmt: skip
    assert (second["start"], second["image"], second["box"]) == (8, 0, [0, 0, 4, 3])
    (layer,) = view["layers"]
    assert (layer["top"], layer["cells"], layer["maps"]["block"], layer["maps"]["rows"]) == (0, [0, 0], 1, "")
    assert layer["whole"] == (request_of.keys() != {"top_k"})
    weights = (x.double() @ x.double().mT / 5**0.5).softmax(-1)[0].numpy()
    if request_of == {"top_k": 2}:
        weights = np.where(weights >= np.sort(weights)[..., -2:-1], weights, 0)
    reading = [*range(8), 9, 8]  # the second grid is read from its right to its left
    assert [text for text, *_ in view["keys"]][8] == "image 2, row 1, column 1"
    shown = decoded(layer["maps"]["blocks"]).reshape(weights.shape)
    np.testing.assert_allclose(shown, weights[:, reading][:, :, reading], rtol=0.03)
    assert layer["looks"] == ["", ""] if request_of == {"blocks": PARTS} else all(layer["looks"])


def test_a_page_of_a_difference_is_signed(tmp_path):
    first, second = random_weights(1, 2, COUNT, COUNT), random_weights(1, 2, COUNT, COUNT, seed=7)
    traces = [trace_of(first), trace_of(second)]
    for trace in traces:
        trace.tokens = PARTS
    (traces[0] - traces[1]).to_html(tmp_path / "page.html")
    (layer,) = content_of(tmp_path / "page.html")["views"][0]["layers"]
    shown = decoded(layer["maps"]["blocks"], signed=True).reshape(2, COUNT, COUNT)
    reading = [*range(8), 9, 8]
    np.testing.assert_allclose(shown, (first - second)[0].numpy()[:, reading][:, :, reading], rtol=0.06, atol=1e-6)


@pytest.mark.parametrize("request_of", [{"blocks": LONG, "top_k": 3}, {"weights": True}])
def test_a_page_of_many_heads_has_larger_blocks_and_the_rows_of_words(tmp_path, monkeypatch, request_of):
    model, x = Attention(), torch.randn(1, 2, LONG_COUNT, 5, generator=torch.Generator().manual_seed(4))
    with dikkat.record(model, **request_of) as trace:
        model(x)
    trace.tokens = LONG
    monkeypatch.setattr(views, "_MAP_BYTES", 20_000)
    trace.to_html(tmp_path / "page.html")
    (layer,) = content_of(tmp_path / "page.html")["views"][0]["layers"]
    weights, members = (x.double() @ x.double().mT / 5**0.5).softmax(-1)[0].numpy(), block_members(LONG, 4)
    assert layer["maps"]["block"] == 4
    shown = decoded(layer["maps"]["blocks"]).reshape(2, len(members), len(members))
    np.testing.assert_allclose(shown, members @ weights @ members.T, rtol=0.03)
    reading = np.concatenate([[0], 1 + np.argsort(LONG[1].order), np.arange(324, LONG_COUNT)])
    shown = decoded(layer["maps"]["rows"]).reshape(2, 2, LONG_COUNT)
    np.testing.assert_allclose(shown, weights[:, [0, 324]][..., reading], rtol=0.03)
    monkeypatch.setattr(views, "_MAP_BYTES", 1)
    trace.to_html(tmp_path / "page.html")
    (layer,) = content_of(tmp_path / "page.html")["views"][0]["layers"]
    assert layer["maps"]["block"] >= 19
    assert not layer["maps"]["rows"]
    monkeypatch.setattr(views, "_MOST_MAP_BYTES", 1)
    with pytest.raises(ValueError, match=r"page: got maps of 2 heads .*; select layers=... or heads="):
        trace.to_html(tmp_path / "page.html")


def test_a_page_of_a_large_model_has_three_megabytes(tmp_path):
    """24 layers of 16 heads of 1,025 tokens; the weights of a layer are blocks that need no map of all weights."""
    count, trace = 1 + 32 * 32, dikkat.Trace()
    groups, cells = 1 + 16 * 16, torch.arange(32) // 2
    groups_of = torch.cat([torch.tensor([0]), (1 + cells[:, None] * 16 + cells).flatten()])
    for number in range(24):
        blocks = random_weights(1, 16, groups, groups, seed=number).float()
        rows = random_weights(1, 16, 1, count, seed=number).float()
        record = Inspection(blocks=blocks, outside=rows, query_groups=groups_of, key_groups=groups_of,
                            shape=(1, 16, count, count))  # fmt: skip
        trace.add(record, Call(f"{number}", 0, number))
    trace.tokens = ["[CLS]", dikkat.Grid(32, 32, image=np.random.default_rng(3).random((448, 448, 3)))]
    trace.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size <= 3_000_000


def test_runs_that_continue_a_text_are_one_map(tmp_path):
    """A prompt with an image, and two further words, of which each sees the keys before it."""
    generator = torch.Generator().manual_seed(5)
    trace = dikkat.Trace()
    weights = torch.randn(1, 2, 10, 10, generator=generator, dtype=torch.float64)
    weights = weights.masked_fill(torch.ones(10, 10).triu(1).bool(), -torch.inf).softmax(-1)
    for run, (start, end) in enumerate([(0, 8), (8, 9), (9, 10)]):
        own = weights[:, :, start:end, :end]
        record = Inspection(weights=own, shape=tuple(own.shape), positions=(start, 0))
        trace.add(record, Call("attention", run, 0))
    trace.tokens = ["a", dikkat.Grid(2, 3), "b"]
    trace.to_html(tmp_path / "page.html")
    (view,) = content_of(tmp_path / "page.html")["views"]
    assert [[part["start"] for part in parts] for parts in view["parts"]] == [[1], [1]]
    assert [text for text, *_ in view["queries"]][7:] == ["b", "8", "9"]
    shown = decoded(view["layers"][0]["maps"]["blocks"]).reshape(2, 10, 10)
    np.testing.assert_allclose(shown, weights[0].numpy(), rtol=0.03)


def test_labels_of_a_tower_as_long_as_the_text(tmp_path):
    trace = dikkat.Trace()
    for number, kind in enumerate(("", "self")):
        trace.add(Inspection(weights=random_weights(1, 1, 6, 6), shape=(1, 1, 6, 6)), Call(kind, 0, number, kind))
    trace.tokens = {"self": list("abcdef"), "image": dikkat.Grid(2, 3)}
    trace.to_html(tmp_path / "page.html")
    tower, text = content_of(tmp_path / "page.html")["views"]
    assert ("parts" in tower, "parts" in text) == (True, False)
    for axis in ("queries", "keys"):
        assert [label for label, *_ in tower[axis]][3] == "row 2, column 1"
        assert [label for label, *_ in text[axis]] == list("abcdef")


def test_selected_queries_as_many_as_patches(tmp_path):
    trace, queries = dikkat.Trace(), torch.tensor([1, 2, 3, 4])
    for kind, keys, first in (("self", 5, 0), ("cross", 4, -1)):
        record = Inspection(weights=random_weights(1, 1, 4, keys), shape=(1, 1, 4, keys), queries=queries,
                            positions=(0, first))  # fmt: skip
        trace.add(record, Call(kind, 0, 0, kind))
    trace.tokens = {"self": ["<s>", "a", "red", "big", "dog"], "encoder": dikkat.Grid(2, 2)}
    trace.to_html(tmp_path / "page.html")
    cross, text = content_of(tmp_path / "page.html")["views"]
    for view in (text, cross):
        assert [label for label, *_ in view["queries"]] == ["a", "red", "big", "dog"]
    assert [label for label, *_ in cross["keys"]][1] == "row 1, column 2"


def test_a_page_numbers_positions_as_the_table_does(tmp_path):
    trace, order = trace_of(torch.eye(6)[None, None]), [5, 2, 0, 1, 4, 3]
    trace.tokens = dikkat.Grid(2, 3, order=order)
    trace.to_html(tmp_path / "page.html")
    (view,) = content_of(tmp_path / "page.html")["views"]
    table = trace.frame()
    texts = dict(zip(table["key"].tolist(), table["key_token"], strict=True))
    for side, axis in enumerate(("queries", "keys")):
        positions = view["positions"][side]
        assert positions == np.argsort(order).tolist()
        assert [texts[position] for position in positions] == [text for text, *_ in view[axis]]
    trace = dikkat.Trace()
    record = Inspection(weights=random_weights(1, 1, 2, 6), shape=(1, 1, 2, 6), queries=torch.tensor([5, 3]))
    trace.add(record, Call("", 0, 0, "self"))
    trace.to_html(tmp_path / "page.html")
    assert content_of(tmp_path / "page.html")["views"][0]["positions"] == [[5, 3], [*range(6)]]


def test_patches_are_no_labels_of_a_text(tmp_path):
    trace = trace_of(random_weights(1, 2, COUNT, COUNT), random_weights(1, 2, 5, 5))
    trace.tokens = PARTS
    trace.to_html(tmp_path / "page.html")
    views_of_page = content_of(tmp_path / "page.html")["views"]
    assert ["parts" in view for view in views_of_page] == [True, False]
    assert [text for text, *_ in views_of_page[1]["keys"]] == [*"01234"]


@pytest.mark.parametrize("labels", [LONG, [LONG]])
def test_one_call_records_exact_blocks(tmp_path, labels):
    x = torch.randn(1, 2, LONG_COUNT, 5, generator=torch.Generator().manual_seed(4))
    trace = dikkat.show.attention(Attention(), x, tokens=labels, path=tmp_path / "page.html")
    assert trace.parts["self"][1] == LONG[1]
    (layer,) = content_of(tmp_path / "page.html")["views"][0]["layers"]
    assert layer["whole"]
    weights, members = (x.double() @ x.double().mT / 5**0.5).softmax(-1)[0].numpy(), block_members(LONG, 2)
    shown = decoded(layer["maps"]["blocks"]).reshape(2, len(members), len(members))
    np.testing.assert_allclose(shown, members @ weights @ members.T, rtol=0.03)


def read_order(grid: dikkat.Grid) -> np.ndarray:
    return np.arange(len(grid)) if grid.order is None else np.argsort(grid.order)


LAYOUTS_OF_ONE_LENGTH = {
    "upright": (dikkat.Grid(2, 3, image=GREY), dikkat.Grid(3, 2, image=GREY.transpose(Image.Transpose.ROTATE_180))),
    "another order": (dikkat.Grid(2, 3), dikkat.Grid(2, 3, order=[5, 2, 0, 1, 4, 3])),
    "large": (dikkat.Grid(20, 30), dikkat.Grid(30, 20)),
}


@pytest.mark.parametrize("grids", LAYOUTS_OF_ONE_LENGTH.values(), ids=LAYOUTS_OF_ONE_LENGTH)
def test_elements_of_a_batch_on_one_page(tmp_path, grids):
    count = len(grids[0])
    x = torch.randn(2, 2, count, 5, generator=torch.Generator().manual_seed(4))
    dikkat.show.attention(Attention(), x, tokens=[*grids], element=[0, 1], path=tmp_path / "page.html")
    content = content_of(tmp_path / "page.html")
    assert [view["parts"][1][0]["rows"] for view in content["views"]] == [grid.rows for grid in grids]
    weights = (x.double() @ x.double().mT / 5**0.5).softmax(-1).numpy()
    for element, (view, grid) in enumerate(zip(content["views"], grids, strict=True)):
        (layer,), expected = view["layers"], weights[element][:, read_order(grid)][:, :, read_order(grid)]
        if layer["whole"]:
            members = block_members([dikkat.Grid(grid.rows, grid.columns)], layer["maps"]["block"])
        else:
            members = np.eye(count) if count < 256 else block_members([dikkat.Grid(grid.rows, grid.columns)], 2)
            expected = np.where(expected >= np.sort(expected)[..., -min(16, count)][..., None], expected, 0)
        shown = decoded(layer["maps"]["blocks"]).reshape(2, len(members), len(members))
        np.testing.assert_allclose(shown, members @ expected @ members.T, rtol=0.03, atol=1e-6)
    is_equal = count < 256 and grids[1].order is None  # each patch is a block
    assert [layer["whole"] for view in content["views"] for layer in view["layers"]] == [True, is_equal]
    if grids[0].image is not None:
        assert [view["parts"][1][0]["image"] for view in content["views"]] == [0, 1]
        assert len(content["images"]) == 2


@pytest.mark.parametrize("grids", LAYOUTS_OF_ONE_LENGTH.values(), ids=LAYOUTS_OF_ONE_LENGTH)
def test_blocks_are_not_drawn_on_another_grid(tmp_path, grids):
    model, x = Attention(), torch.randn(1, 2, len(grids[0]), 5, generator=torch.Generator().manual_seed(4))
    with dikkat.record(model, blocks=grids[0]) as trace:
        model(x)
    trace.save(tmp_path / "trace")
    for recording in (trace, dikkat.Trace.load(tmp_path / "trace")):
        recording.to_html(tmp_path / "page.html", tokens=grids[0])
        if len(grids[0]) < 256 and grids[1].order is None:  # each patch is a block
            recording.to_html(tmp_path / "page.html", tokens=grids[1])
            continue
        with pytest.raises(ValueError, match=r"trace\[''\]: got blocks of another layout; expected the tokens"):
            recording.to_html(tmp_path / "page.html", tokens=grids[1])


class Cross(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, k)


@pytest.mark.parametrize("grids", LAYOUTS_OF_ONE_LENGTH.values(), ids=LAYOUTS_OF_ONE_LENGTH)
def test_a_source_of_the_length_of_the_target(tmp_path, grids):
    source, target = grids
    q, k = torch.randn(2, 1, 2, len(source), 5, generator=torch.Generator().manual_seed(4)).unbind()
    recorded = dikkat.show.attention(Cross(), q, k, tokens=([source], [target]))
    trace = dikkat.Trace()
    trace.add(recorded[0], Call("cross", 0, 0, "cross"))
    trace.tokens = ([source], [target])
    trace.to_html(tmp_path / "page.html")
    (view,) = content_of(tmp_path / "page.html")["views"]
    assert [axis[0]["rows"] for axis in view["parts"]] == [target.rows, source.rows]
    (layer,), count = view["layers"], len(source)
    weights = (q.double() @ k.double().mT / 5**0.5).softmax(-1)[0].numpy()
    expected = weights[:, read_order(target)][:, :, read_order(source)]
    side = 1 if count < 256 else 2
    members = [block_members([dikkat.Grid(grid.rows, grid.columns)], side) for grid in (target, source)]
    if not layer["whole"]:
        expected = np.where(expected >= np.sort(expected)[..., -min(16, count)][..., None], expected, 0)
    shown = decoded(layer["maps"]["blocks"]).reshape(2, len(members[0]), len(members[1]))
    np.testing.assert_allclose(shown, members[0] @ expected @ members[1].T, rtol=0.03, atol=1e-6)


def test_more_grids_than_blocks():
    """A video with a grid for each frame has at least one block for each."""
    frames = [dikkat.Grid(1, 1)] * 257
    assert blocks.recorded_side([dict(enumerate(frames))]) == 1
    tokens = [dikkat.Grid(2, 1)] * 257
    model, x = Attention(), torch.randn(1, 1, 514, 3, generator=torch.Generator().manual_seed(4))
    with dikkat.record(model, blocks=tokens) as trace:
        model(x)
    weights = (x.double() @ x.double().mT / 3**0.5).softmax(-1)[0, 0].numpy()
    expected = weights.reshape(257, 2, 257, 2).mean((1, 3))
    np.testing.assert_allclose(trace[""].blocks[0, 0], expected, atol=1e-6)


def test_times_on_a_page(tmp_path):
    trace = trace_of(random_weights(1, 1, 5, 5))
    series = np.sin(np.arange(4001))
    trace.tokens = dikkat.Times([0.5, 1, 2, 4, 8], series=series)
    trace.to_html(tmp_path / "page.html")
    content = content_of(tmp_path / "page.html")
    (part,) = content["views"][0]["parts"][1]
    assert "images" not in content
    assert (part["kind"], part["start"], part["values"]) == ("times", 0, [0.5, 1, 2, 4, 8])
    assert len(part["series"]) == 2000
    assert (min(part["series"]), max(part["series"])) == pytest.approx((series.min(), series.max()), rel=1e-4)


# --- patterns, distances, contacts


@pytest.mark.parametrize("name", ["class", "class token", "CLS", "cls_token", "[class]", "<class_token>", "classtoken"])
def test_names_of_a_class_token(name):
    trace = trace_of(random_weights(1, 1, 7, 7))
    trace.tokens = ["[CLS]", dikkat.Grid(2, 3)]
    expected = trace.scores()["class"][0]
    assert expected >= 0
    trace.tokens = [name, dikkat.Grid(2, 3)]
    assert trace.scores()["class"][0] == expected
    trace.tokens = ["classic", dikkat.Grid(2, 3)]
    assert np.isnan(trace.scores()["class"][0])


def cells_of(rows: int, columns: int) -> np.ndarray:
    return np.array([divmod(cell, columns) for cell in range(rows * columns)])


def pattern_masks() -> dict[str, np.ndarray]:
    """Which keys of a class token, two registers and a 4 × 5 grid are in a pattern, by the words of the table."""
    cells, masks = cells_of(4, 5), {name: np.zeros((23, 23), bool) for name in ("nearby", "row", "column")}
    for i, (row, column) in enumerate(cells):
        for j, (other_row, other_column) in enumerate(cells):
            if i != j:
                near = max(abs(row - other_row), abs(column - other_column)) == 1
                for name, is_in in (("nearby", near), ("row", row == other_row), ("column", column == other_column)):
                    masks[name][3 + i, 3 + j] = is_in
    for name, keys in (("class", [0]), ("registers", [1, 2])):
        masks[name] = np.zeros((23, 23), bool)
        masks[name][:, keys] = True
        masks[name][keys] = False
    return masks


@pytest.mark.parametrize("pattern", pattern_masks())
def test_patterns_on_a_grid(pattern):
    mask, weights = pattern_masks()[pattern], random_weights(1, 3, 23, 23)
    is_query = mask.any(1)
    strong = np.where(is_query[:, None], mask / np.maximum(mask.sum(1, keepdims=True), 1), 1 / 23)
    weights[0, 1] = torch.tensor(0.9 * strong + 0.1 / 23)
    trace = trace_of(weights)
    trace.tokens = ["[CLS]", "register 1", "[REG2]", dikkat.Grid(4, 5)]
    table = trace.scores()
    uniform = mask.sum(1) / 23
    masses = (weights[0].numpy() * mask).sum(-1)
    expected = ((masses - uniform) / (1 - uniform))[:, is_query].mean(-1).clip(0, 1)
    np.testing.assert_allclose(table[pattern], expected, rtol=1e-6, atol=1e-8)
    assert table["looks"][1] == pattern
    trace.tokens = [str(number) for number in range(23)]
    assert pattern not in trace.scores()


def test_patterns_follow_the_order_of_cells():
    order = np.random.default_rng(4).permutation(20)
    weights = random_weights(1, 1, 20, 20)
    shuffled = weights[:, :, order][:, :, :, order]
    traces = [trace_of(weights), trace_of(shuffled)]
    traces[0].tokens, traces[1].tokens = dikkat.Grid(4, 5), dikkat.Grid(4, 5, order=order)
    tables = [trace.scores() for trace in traces]
    for name in ("nearby", "row", "column"):
        np.testing.assert_allclose(tables[0][name], tables[1][name])
    np.testing.assert_allclose(*[trace.distances()["distance"] for trace in traces])


@pytest.mark.parametrize("unit", ["patches", "pixels"])
def test_mean_attention_distances(unit):
    weights = random_weights(1, 3, 24, 24)
    trace = trace_of(weights)
    trace.tokens = ["[CLS]", dikkat.Grid(3, 5, image=GREY, box=(0, 0, 4, 2)), dikkat.Grid(2, 4, image=GREY)]
    sizes = [(1, 1), (1, 1)] if unit == "patches" else [(2 / 3, 4 / 5), (3 / 2, 4 / 4)]
    by_query = np.zeros((3, 23))
    for first, cells, size in ((1, cells_of(3, 5), sizes[0]), (16, cells_of(2, 4), sizes[1])):
        centres = cells * size
        lengths = np.linalg.norm(centres[:, None] - centres[None], axis=-1)
        own = weights[0, :, first : first + len(cells), first : first + len(cells)].numpy()
        by_query[:, first - 1 : first - 1 + len(cells)] = (own * lengths).sum(-1) / own.sum(-1)
    table = trace.distances(unit=unit)
    np.testing.assert_allclose(table["distance"], by_query.mean(-1), rtol=1e-12)
    assert table["head"].tolist() == [0, 1, 2]


def test_distances_of_known_weights():
    """A head that looks three columns to the right, and one that looks at its own patch."""
    weights = torch.zeros(1, 2, 7, 7, dtype=torch.float64)
    weights[0, 0, torch.arange(7), (torch.arange(7) + 3).clamp(max=6)] = 1
    weights[0, 1] = torch.eye(7)
    trace = trace_of(weights)
    trace.tokens = dikkat.Grid(1, 7)
    np.testing.assert_allclose(trace.distances()["distance"], [(4 * 3 + 2 + 1 + 0) / 7, 0])


def test_a_changed_copy_has_the_pixel_size():
    grid = dikkat.Grid(2, 3, image=np.zeros((41, 6002)))
    copy = dataclasses.replace(grid, rows=1, columns=2)
    np.testing.assert_allclose(copy.cell_size(), (3001, 41))
    with pytest.raises(ValueError, match=r"pixel_size: got \(1, 0\); expected \(width, height\)"):
        dikkat.Grid(2, 3, image=np.zeros((41, 53)), pixel_size=(1, 0))


def test_distances_in_pixels_of_an_image_that_is_scaled_down(tmp_path):
    """Two patches of 3,001 × 41 pixels, and a head that looks at the other patch."""
    trace = trace_of(torch.eye(2, dtype=torch.float64).flip(0)[None, None])
    trace.tokens = dikkat.Grid(1, 2, image=Image.new("L", (6002, 41)))
    trace.save(tmp_path / "a.safetensors")
    for saved in (trace, dikkat.inspection.Trace.load(tmp_path / "a.safetensors")):
        assert saved.parts["self"][0].image.width == 2048
        np.testing.assert_allclose(saved.distances(unit="pixels")["distance"], [3001])


def test_distances_that_are_none():
    trace = trace_of(random_weights(1, 1, 6, 6))
    with pytest.raises(ValueError, match="distances: got no self-attention over a grid; expected tokens="):
        trace.distances()
    trace.tokens = dikkat.Grid(2, 3)
    with pytest.raises(ValueError, match="unit: got 'pixels' for part 0 without an image"):
        trace.distances(unit="pixels")
    with pytest.raises(ValueError, match="unit: got 'cm'; expected 'patches' or 'pixels'"):
        trace.distances(unit="cm")
    model = Attention()
    with dikkat.record(model, top_k=2) as largest:
        model(torch.randn(1, 1, 6, 5))
    with pytest.raises(ValueError, match=r"got .*top_weights.*; expected a recording with weights=True"):
        largest.distances()


def test_contacts_of_a_protein():
    layers = [random_weights(2, heads, 9, 9, seed=heads) for heads in (3, 2)]
    maps = np.concatenate([layer.numpy() for layer in layers], 1)[:, :, 1:-1, 1:-1]
    maps = maps + maps.transpose(0, 1, 3, 2)
    expected = np.empty_like(maps)
    for element, head in np.ndindex(maps.shape[:2]):
        own = maps[element, head]
        expected[element, head] = own - np.outer(own.sum(1), own.sum(0)) / own.sum()
    trace = trace_of(*layers)
    trace.withheld = ""
    np.testing.assert_allclose(trace.contacts(), expected, rtol=1e-12, atol=1e-15)
    assert trace.contacts(residues=slice(0, 4)).shape == (2, 5, 4, 4)
    with pytest.raises(ValueError, match=r"contacts: got weights \(1, 1, 5, 5\), \(1, 1, 6, 6\)"):
        trace_of(random_weights(1, 1, 5, 5), random_weights(1, 1, 6, 6)).contacts()


def test_contacts_are_the_inputs_of_the_regression_of_esm():
    esm = pytest.importorskip("transformers.models.esm.modeling_esm")
    weights = random_weights(1, 4, 11, 11)
    expected = esm.average_product_correct(esm.symmetrize(weights[..., 1:-1, 1:-1]))
    torch.testing.assert_close(trace_of(weights).contacts(), expected)
