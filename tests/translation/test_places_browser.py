"""Pages of attention on images and along times in a real browser: `web/test/places.mjs` has a reader's actions."""

import json

import numpy as np
import pytest
from chromium import names, needs_chromium, outcomes_of
from PIL import Image
from placed import cells, codes, grid, page, shown, softmax, view

ROWS, COLUMNS = 5, 7
WORDS = ["USER", ":", "what", "is", "on", "the", "small", "table", "today", "?"]


def decoded(weights):
    """The weights as a page with one cell for each patch knows them."""
    numbers = codes(weights).astype(float)
    return np.where(numbers > 0, 2 ** ((numbers - 255) / 12), 0)


def black(width, height):
    return shown(Image.new("RGB", (width, height)))


def save(folder, name, views, images, layers, **more):
    (folder / f"{name}.html").write_text(page(views, images), encoding="utf-8")
    (folder / f"{name}.json").write_text(
        json.dumps({"layers": [decoded(weights).tolist() for weights in layers], **more}), encoding="utf-8"
    )


def vit(folder):
    """A class token, a register and 5 × 7 patches of which one is a sink, in two layers of three heads."""
    random = np.random.default_rng(5)
    count = 2 + ROWS * COLUMNS
    logits = random.normal(0, 1.2, (2, 3, count, count))
    logits[:, 0, :, 2 + 12] += 6  # row 2, column 6
    layers = list(softmax(logits))
    tokens = ["[CLS]", "<register>", *cells(ROWS, COLUMNS)]
    picture = Image.new("RGB", (70, 50))
    original = {"source": black(9, 5)["source"], "width": 90, "height": 50, "frame": [10, 0, 80, 50]}
    parts = [grid(2, ROWS, COLUMNS, 0, (0, 0, 70, 50))]
    shares = {0: {"evenly": [0.9, 0.1, 0.2]}, 1: {"evenly": [0.3, 0.5, 0.4]}}
    views = [view(layers, tokens, tokens, [parts, parts], looks=shares)]
    save(folder, "vit", views, [shown(picture, original=original)], layers)


def pooled(folder):
    """Blocks of 2 × 2 patches, compressed; the last row and column have smaller blocks."""
    random = np.random.default_rng(7)
    count = 2 + ROWS * COLUMNS
    layers = list(softmax(random.normal(0, 1.5, (2, 3, count, count))))
    tokens = ["[CLS]", *cells(ROWS, COLUMNS), "end"]
    parts = [grid(1, ROWS, COLUMNS, 0, (0, 0, 70, 50))]
    views = [view(layers, tokens, tokens, [parts, parts], block=2)]
    save(folder, "pooled", views, [black(70, 50)], layers)


def rows(folder):
    """Blocks of 2 × 2 patches of an image whose rows have a separator behind them."""
    count = 2 + ROWS * (COLUMNS + 1)
    layers = list(softmax(np.random.default_rng(23).normal(0, 1.5, (1, 2, count, count))))
    tokens, parts = ["[CLS]"], []
    for row in range(ROWS):
        parts.append(grid(len(tokens), 1, COLUMNS, 0, (0, 10 * row, 70, 10 * row + 10), above=row))
        tokens += [*cells(ROWS, COLUMNS)[COLUMNS * row : COLUMNS * (row + 1)], "end of a row"]
    views = [view(layers, [*tokens, "end"], [*tokens, "end"], [parts, parts], block=2)]
    save(folder, "rows", views, [black(70, 50)], layers)


def text(folder):
    """Words around a grid, read from left to right; and the words that were written, as queries of two images."""
    random = np.random.default_rng(11)
    tokens = [*WORDS[:2], *cells(3, 4), *WORDS[2:]]
    count = len(tokens)
    logits = random.normal(0, 1.3, (2, 3, count, count))
    layers = list(softmax(np.where(np.tril(np.ones((count, count), bool)), logits, -np.inf)))
    parts = [grid(2, 3, 4, 0, (0, 0, 80, 60))]
    save(folder, "text", [view(layers, tokens, tokens, [parts, parts])], [black(80, 60)], layers)
    keys = ["<s>", *cells(3, 4), "and", *cells(2, 2), "written", "words"]
    layers = list(softmax(random.normal(0, 1.3, (1, 2, 11, len(keys)))))
    parts = [[], [grid(1, 3, 4, 0, (0, 0, 80, 60)), grid(14, 2, 2, 1, (0, 0, 40, 40), number=1)]]
    queries = [f"w{k}" for k in range(11)]
    save(folder, "written", [view(layers, queries, keys, parts)], [black(80, 60), black(40, 40)], layers)


def tiles(folder):
    """Two by two tiles of one image, each with 2 × 3 patches."""
    layers = list(softmax(np.random.default_rng(13).normal(0, 1.3, (1, 2, 25, 25))))
    boxes = [(0, 0, 60, 40), (60, 0, 120, 40), (0, 40, 60, 80), (60, 40, 120, 80)]
    parts = [grid(1 + 6 * k, 2, 3, 0, box, number=k) for k, box in enumerate(boxes)]
    tokens = ["[CLS]", *cells(2, 3) * 4]
    views = [view(layers, tokens, tokens, [parts, parts]) | {"note": "divided by the weights for 'is the'"}]
    save(folder, "tiles", views, [black(120, 80)], layers)


def ordered(folder):
    """Six patches that the model reads in another order."""
    layers = list(softmax(np.random.default_rng(19).normal(0, 1.3, (1, 1, 6, 6))))
    parts = [grid(0, 2, 3, 0, (0, 0, 60, 40))]
    views = [view(layers, cells(2, 3), cells(2, 3), [parts, parts]) | {"positions": [[2, 3, 1, 5, 4, 0]] * 2}]
    save(folder, "ordered", views, [black(60, 40)], layers)


def times(folder):
    """Thirteen times at uneven distances, with their series."""
    values = np.cumsum([0, 1, 1, 2, 1, 1, 3, 1, 1, 1, 2, 1, 1]).tolist()
    layers = list(softmax(np.random.default_rng(17).normal(0, 1.3, (2, 2, 13, 13))))
    parts = [{"kind": "times", "start": 0, "values": values, "series": np.sin(values).tolist()}]
    tokens = [str(value) for value in values]
    save(folder, "times", [view(layers, tokens, tokens, [parts, parts])], [], layers)


def difference(folder):
    """The first patch has more weight in one run, the last one less; no image."""
    weights = np.zeros((1, 1, 7, 7))
    weights[..., 0, 1], weights[..., 0, 6] = 0.5, -0.25
    parts = [grid(1, 2, 3)]
    tokens = ["[CLS]", *cells(2, 3)]
    views = [
        view(list(weights), tokens, tokens, [parts, parts], lead="change", looks={0: {"change": [0.4]}}, whole=False)
    ]
    save(folder, "difference", views, [], [])


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    def prepare(folder):
        for make in (vit, pooled, rows, text, tiles, ordered, times, difference):
            make(folder)
        return [folder]

    return outcomes_of("places.mjs", tmp_path_factory, prepare)


@needs_chromium
@pytest.mark.parametrize("name", names("places.mjs"))
def test_in_a_browser(outcomes, name):
    assert outcomes[name] is None, outcomes[name]
