"""The example of digits among pieces, in a short form."""

import importlib.util
from pathlib import Path

import pytest
import torch

import dikkat

pytest.importorskip("sklearn")
pytest.importorskip("PIL")


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("digits", Path(__file__).parents[2] / "examples" / "digits.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_box_holds_the_digit(example):
    digits, labels = example.read_digits()
    assert digits.shape == (1797, 16, 16)
    batch = example.make_batch(digits[:1], labels[:1], 23, torch.Generator().manual_seed(3))
    for image, (left, top, right, bottom) in zip(batch.images[:, 0], batch.boxes.tolist(), strict=True):
        assert (right - left, bottom - top) == (16, 16)
        # Noise is the only difference, and black and white stop it.
        assert (image[top:bottom, left:right] - digits[0]).abs().mean() < 0.1
    assert len({tuple(box) for box in batch.boxes.tolist()}) > 15


def test_a_map_in_the_box_is_a_hit(example, monkeypatch):
    """Patches of 6 pixels whose centres lie in the box, by hand: rows 1 to 3 and columns 4 to 6 of 8."""
    box = torch.tensor([[24, 8, 40, 24]])
    values = torch.zeros(1, 8, 8)
    values[0, 2, 5], values[0, 0, 5] = 3.0, 1.0
    monkeypatch.setattr(example, "class_maps", lambda *_: {"one": values.flatten(1) / 4, "all": torch.ones(1, 64) / 64})
    shares = example.measure(None, example.Batch(None, None, box))
    assert shares == {"one": pytest.approx((0.75, 1.0)), "all": pytest.approx((9 / 64, 9 / 64))}


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
