"""The example of scenes and captions, in a short form."""

import importlib.util
from pathlib import Path

import pytest
import torch

pytest.importorskip("PIL")


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("scenes", Path(__file__).parents[2] / "examples" / "scenes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_patches_inside_a_box(example):
    """Centres are at 3, 9, 15 … pixels."""
    mask = example.patches_inside((9.0, 14.0, 21.5, 28.0)).view(8, 8)
    assert mask.nonzero().tolist() == [[row, column] for row in (2, 3, 4) for column in (1, 2, 3)]


def test_each_word_has_a_map(example, tmp_path):
    model = example.train(steps=3)
    shares = example.measure(model, 7)
    assert len(shares) == 5
    assert all(0 <= share <= 1 for share in shares.values())
    scene = example.draw_scene(torch.Generator().manual_seed(2))
    captions = example.write_captions(model, torch.stack([scene.image] * 2))
    assert captions[0] == captions[1]
    trace = example.draw_page(model, scene, tmp_path / "page.html")
    assert captions[0] != scene.words  # after few steps, so that the page's words are the model's
    assert [token.text for token in trace.tokens["self"]] == captions[0]
    assert trace[-1].shape[-2:] == (len(captions[0]), 64)
    assert (tmp_path / "page.html").stat().st_size > 100_000
