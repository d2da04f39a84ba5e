"""Traces of grids and times: parts, files and differences."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import dikkat
from dikkat.inspection.calls import Call
from dikkat.inspection.request import Inspection

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
    assert [token.text for token in trace.tokens["self"]][7:9] == ["and", "image 1, row 0, column 1"]
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
    assert [loaded._tokens_of(element)["self"].parts[0] for element in (0, 1)] == grids


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (dikkat.Grid(2, 3), r"got 6 \('self'\): Grid\(2, 3\); expected 10, such as .*\['\[CLS\]', dikkat.Grid\(3, 3"),
        (["a", dikkat.Grid(4, 4)], r"got 17 .*: 1 words \+ Grid\(4, 4\); expected 10"),
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
