"""The example of digits among pieces, in a short form."""

import importlib.util
from pathlib import Path

import pytest
import torch

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


def test_the_class_token_looks_at_the_digit(example, tmp_path):
    model, batch = example.train(steps=250), example.held_out(100)
    with torch.no_grad():
        assert (model(batch.images).argmax(-1) == batch.labels).float().mean() > 0.5
    shares = example.measure(model, batch)
    print(shares)
    assert shares["uniform"][0] == pytest.approx(0.11, abs=0.02)
    for name in ("weights of the last layer", "relevance"):
        share, hits = shares[name]
        assert share > 3 * shares["uniform"][0], shares
        assert hits > 0.8, shares
    example.draw_page(model, batch.images[0], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 100_000
