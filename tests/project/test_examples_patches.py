"""The examples of patches in a short form: digits among pieces, and scenes with captions."""

import importlib
from pathlib import Path

import pytest
import torch

import dikkat

pytest.importorskip("PIL")


@pytest.fixture(scope="module")
def example(request):
    """One of `examples/digits.py`, `scenes.py` and `patches.py`."""
    if request.param == "digits":
        pytest.importorskip("sklearn")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "examples")
        return importlib.import_module(request.param)


def of(name):
    return pytest.mark.parametrize("example", [name], indirect=True)


@of("patches")
def test_patches_inside_boxes(example):
    """Centres are at 3, 9, 15 … pixels."""
    boxes = torch.tensor([[9.0, 14.0, 21.5, 28.0], [-4.0, 40.0, 3.5, 99.0]])
    masks = example.patches_inside(boxes).view(2, 8, 8)
    assert masks[0].nonzero().tolist() == [[row, column] for row in (2, 3, 4) for column in (1, 2, 3)]
    assert masks[1].nonzero().tolist() == [[7, 0]]


@of("digits")
def test_the_box_holds_the_digit(example):
    digits, labels = example.read_digits()
    assert digits.shape == (1797, 16, 16)
    batch = example.make_batch(digits[:1], labels[:1], 23, torch.Generator().manual_seed(3))
    for image, (left, top, right, bottom) in zip(batch.images[:, 0], batch.boxes.tolist(), strict=True):
        assert (right - left, bottom - top) == (16, 16)
        # Noise is the only difference, and black and white stop it.
        assert (image[top:bottom, left:right] - digits[0]).abs().mean() < 0.1
    assert len({tuple(box) for box in batch.boxes.tolist()}) > 15


@of("digits")
def test_a_map_in_the_box_is_a_hit(example, monkeypatch):
    """Patches of 6 pixels whose centres lie in the box, by hand: rows 1 to 3 and columns 4 to 6 of 8."""
    box = torch.tensor([[24, 8, 40, 24]])
    values = torch.zeros(1, 8, 8)
    values[0, 2, 5], values[0, 0, 5] = 3.0, 1.0
    monkeypatch.setattr(example, "class_maps", lambda *_: {"one": values.flatten(1) / 4, "all": torch.ones(1, 64) / 64})
    shares = example.measure(None, example.Batch(None, None, box))
    assert shares == {"one": pytest.approx((0.75, 1.0)), "all": pytest.approx((9 / 64, 9 / 64))}


@of("digits")
def test_maps_are_those_of_the_class_token(example, tmp_path):
    """The notebook trains the model in full, and checks where it looks."""
    model, batch = example.train(steps=3), example.held_out(5)
    maps = example.class_maps(model, batch)
    last = dikkat.attentions(model, batch.images)[-1][:, :, 0, 1:].mean(1)
    torch.testing.assert_close(maps["weights of the last layer"], last / last.sum(-1, keepdim=True))
    for values in maps.values():
        assert values.shape == (5, 64)
        torch.testing.assert_close(values.sum(-1), torch.ones(5))
    assert example.measure(model, batch).keys() == maps.keys()
    # The only keys of the first layer are the class token itself, or a patch and its neighbours.
    seen = dikkat.attentions(model, batch.images)[0][0, 0] > 0
    assert seen[0].nonzero().tolist() == [[0]]
    assert (seen[1 + 19].nonzero()[:, 0] - 1).tolist() == [10, 11, 12, 18, 19, 20, 26, 27, 28]
    example.draw_page(model, batch.images[0], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 100_000


@of("scenes")
def test_captions_say_the_scene(example):
    """Read from the pixels: the named colour fills the middle of its box, and the relation is that of the boxes."""
    relations = set()
    _, words, scenes = example.draw_scenes(31, torch.Generator().manual_seed(5))
    assert words.shape == (31, 10)
    for scene in scenes:
        nouns = [number for number, box in enumerate(scene.boxes) if box]
        assert nouns == [1, 2, len(scene.words) - 2, len(scene.words) - 1]
        centres = []
        for number in nouns[::2]:
            left, top, right, bottom = scene.boxes[number]
            x, y = (left + right) / 2, (top + bottom) / 2
            colour = torch.tensor(example.COLOURS[scene.words[number]])
            assert (scene.image[:, int(y), int(x)] - colour).abs().max() < 0.2
            centres.append((x, y))
        (x, y), (other_x, other_y) = centres
        beside = abs(other_x - x) > abs(other_y - y)
        assert scene.words[3:-3] == (["left", "of"] if beside else ["above"])
        assert (x < other_x) if beside else (y < other_y)
        relations.add(beside)
    assert relations == {True, False}


@of("scenes")
def test_each_word_has_a_map(example, tmp_path):
    model = example.train(steps=3)
    shares = example.measure(model, 7)
    assert len(shares) == 7
    kinds = ("words", "colours", "shapes")
    words, colours, shapes = (shares[f"{kind} whose largest patch is inside the box"] for kind in kinds)
    assert (colours + shapes) / 2 == pytest.approx(words)
    assert all(0 <= share <= 1 for share in shares.values())
    scene = example.draw_scene(torch.Generator().manual_seed(2))
    captions = example.write_captions(model, torch.stack([scene.image] * 2))
    assert captions[0] == captions[1]
    trace = example.draw_page(model, scene, tmp_path / "page.html")
    assert captions[0] != scene.words  # after few steps, so that the page's words are the model's
    assert [token.text for token in trace.tokens["self"]] == captions[0]
    assert trace[-1].shape[-2:] == (len(captions[0]), 64)
    assert (tmp_path / "page.html").stat().st_size > 100_000
