"""Grids, words and times: their checks, and images of every kind."""

import numpy as np
import pytest
import torch
from PIL import Image

import dikkat
from dikkat.show.positions import tokens_of

FLOATS = np.linspace(0, 1, 5 * 7 * 3).reshape(5, 7, 3)  # rows, columns, colours
BYTES = np.round(FLOATS * 255).astype(np.uint8)
IMAGES = {
    "floats": FLOATS,
    "float32": FLOATS.astype(np.float32),
    "uint8": BYTES,
    "uint16": (FLOATS * 65535).round().astype(np.uint16),
    "integers": BYTES.astype(np.int64),
    "channels first": np.moveaxis(FLOATS, -1, 0),
    "a tensor": torch.tensor(FLOATS),
    "a tensor, channels first": torch.tensor(np.moveaxis(BYTES, -1, 0)),
    "bfloat16": torch.tensor(FLOATS).bfloat16(),
    "with a gradient": torch.tensor(FLOATS, requires_grad=True),
    "RGBA, opaque": np.concatenate([BYTES, np.full((5, 7, 1), 255, np.uint8)], -1),
    "Pillow": Image.fromarray(BYTES),
    "Pillow, RGBA": Image.fromarray(BYTES).convert("RGBA"),
}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_of_any_kind(name):
    image = dikkat.Grid(1, 1, image=IMAGES[name]).image
    assert (image.mode, image.size) == ("RGB", (7, 5))
    assert np.abs(np.asarray(image, int) - BYTES).max() <= (1 if "16" in name else 0)


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_a_grey_image(axis):
    grey = FLOATS[..., 0]
    image = dikkat.Grid(1, 1, image=grey if axis is None else np.expand_dims(grey, axis)).image
    assert image.mode == "L"
    np.testing.assert_array_equal(np.asarray(image), BYTES[..., 0])


@pytest.mark.parametrize("mode", ["1", "P", "LA", "CMYK", "I;16", "I", "F", "HSV"])
def test_pillow_images_of_every_mode_are_grey_or_rgb(mode):
    half = {"1": 1, "LA": (128, 255), "I;16": 32896, "I": 32896, "F": 0.5}.get(mode, 0)
    image = dikkat.Grid(1, 1, image=Image.new(mode, (3, 2), half)).image
    assert image.mode in ("L", "RGB")
    if mode in ("LA", "I;16", "I", "F"):
        assert np.unique(np.asarray(image)).tolist() == [128]


def test_a_tensor_has_its_channels_first_if_both_fit():
    first, last = torch.zeros(3, 5, 4), np.zeros((3, 5, 4))
    first[0], last[..., 0], last[..., 3] = 1, 1, 1
    for image, size in ((first, (4, 5)), (last, (5, 3))):
        read = dikkat.Grid(1, 1, image=image).image
        assert read.size == size
        assert read.getpixel((0, 0)) == (255, 0, 0)


def test_transparent_pixels_are_white():
    assert dikkat.Grid(1, 1, image=np.zeros((2, 3, 4))).image.getpixel((0, 0)) == (255, 255, 255)
    palette = Image.new("P", (2, 2))
    palette.info["transparency"] = 0
    assert dikkat.Grid(1, 1, image=palette).image.getpixel((0, 0)) == (255, 255, 255)


def test_a_file_is_read_upright(tmp_path):
    sideways, exif = Image.fromarray(BYTES), Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    sideways.save(tmp_path / "photo.png", exif=exif)
    grid = dikkat.Grid(1, 1, image=tmp_path / "photo.png")
    assert grid.image.size == (5, 7)
    assert grid.image == dikkat.Grid(1, 1, image=str(tmp_path / "photo.png")).image


def test_a_pixel_and_a_very_large_image():
    assert dikkat.Grid(1, 1, image=np.ones((1, 1))).image.size == (1, 1)
    large = np.broadcast_to(np.uint8(9), (20_000, 10_000))
    grid = dikkat.Grid(2, 2, image=large, box=(0, 0, 10_000, 5_000))
    assert grid.image.size == (1024, 2048)
    assert grid.box == (0, 0, 1024, 512)


def test_grids_of_one_image_share_it():
    image = Image.fromarray(BYTES)
    assert dikkat.Grid(1, 1, image=image).image is image


NOT_IMAGES = {
    "a batch": (np.zeros((1, 3, 5, 7)), ValueError, r"got shape \(1, 3, 5, 7\); .*for one image of a batch"),
    "a row": (np.zeros(5), ValueError, r"image: got shape \(5,\); expected a Pillow image, a path"),
    "two colours": (np.zeros((5, 7, 2)), ValueError, r"image: got shape \(5, 7, 2\)"),
    "empty": (np.zeros((0, 7)), ValueError, r"image: got shape \(0, 7\)"),
    "normalised": (np.linspace(-2, 2, 6).reshape(2, 3), ValueError, "got float64 from -2 to 2; .*normalises them"),
    "digits": (np.full((8, 8), 16.0), ValueError, "got float64 from 16 to 16; expected .*floats from 0 to 1"),
    "NaN": (np.full((2, 2), np.nan), ValueError, "got float64 from nan to nan"),
    "large integers": (np.full((2, 2), 256), ValueError, "got int64 from 256 to 256"),
    "complex": (np.zeros((2, 2), complex), TypeError, "image: got dtype complex128"),
    "a number": (3, TypeError, "image: got int; expected a Pillow image"),
    "text in a file": (__file__, ValueError, "image: got .*test_places.py': cannot identify image"),
    "no file": ("/nowhere/photo.png", FileNotFoundError, "nowhere"),
}


@pytest.mark.parametrize("name", NOT_IMAGES)
def test_images_that_are_none(name):
    source, error, message = NOT_IMAGES[name]
    with pytest.raises(error, match=message):
        dikkat.Grid(1, 1, image=source)


def test_a_file_of_too_many_pixels(tmp_path, monkeypatch):
    Image.fromarray(BYTES).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(ValueError, match=r"large.png': Image size \(35 pixels\) exceeds limit"):
        dikkat.Grid(1, 1, image=tmp_path / "large.png")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rows": 0}, ValueError, "rows: got 0; expected a whole number of at least 1"),
        ({"columns": 2.5}, TypeError, "columns: got 2.5"),
        ({"box": (0, 0, 1, 1)}, ValueError, r"box: got \(0, 0, 1, 1\) without an image"),
        ({"image": FLOATS, "box": (0, 0, 9, 5)}, ValueError, r"box: got .*inside the image of 7 × 5 pixels"),
        ({"image": FLOATS, "box": (3, 0, 3, 5)}, ValueError, r"box: got .*expected \(left, top, right, bottom\)"),
        ({"image": FLOATS, "box": (3, 0, 5)}, ValueError, r"box: got \(3, 0, 5\); expected \(left"),
        ({"order": [0, 1, 2, 3, 4, 4]}, ValueError, "order: got 6 cells; expected 0 to 5, once each"),
    ],
)
def test_grids_that_are_none(arguments, error, message):
    with pytest.raises(error, match=message):
        dikkat.Grid(**{"rows": 2, "columns": 3} | arguments)


@pytest.mark.parametrize(
    ("values", "series", "message"),
    [
        ([], None, r"values: got numbers of shape \(0,\)"),
        ([0, 1, 1], None, "values: got times that do not rise"),
        ([0, np.inf], None, "values: got numbers of shape .*finite"),
        ([0, 1], [[1.0]], r"series: got numbers of shape \(1, 1\)"),
        ([0, 1], [np.nan], "series: got numbers .*finite"),
    ],
)
def test_times_that_are_none(values, series, message):
    with pytest.raises(ValueError, match=message):
        dikkat.Times(values, series=series)


def test_parts_become_tokens():
    parts = ["[CLS]", dikkat.Words(["a", "b"]), dikkat.Grid(2, 3), dikkat.Times([0.5, 2]), "end"]
    tokens = tokens_of(parts)["self"]
    assert [token.text for token in tokens] == [
        "[CLS]", "a", "b", *(f"row {cell // 3 + 1}, column {cell % 3 + 1}" for cell in range(6)), "0.5", "2", "end",
    ]  # fmt: skip
    assert tokens.parts == {3: dikkat.Grid(2, 3), 9: dikkat.Times([0.5, 2])}
    assert tokens_of(dikkat.Grid(2, 3))["self"].parts == {0: dikkat.Grid(2, 3)}
    assert tokens_of((dikkat.Grid(2, 3), ["a"]))["encoder"].parts == {0: dikkat.Grid(2, 3)}


def test_cells_of_several_grids_have_different_texts():
    texts = [token.text for token in tokens_of([dikkat.Grid(1, 2), "and", dikkat.Grid(1, 2)])["self"]]
    assert texts[0] == "image 1, row 1, column 1"
    assert len({*texts}) == 5
    close = dikkat.Times([1_000_000.0, 1_000_000.1]).labels()
    assert close[0] != close[1]


def test_an_order_names_the_cell_of_each_position():
    grid = dikkat.Grid(2, 2, order=torch.tensor([0, 2, 1, 3]))
    assert grid.cells() == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert tokens_of(grid)["self"][1].text == "row 2, column 1"


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        (["a", 3], TypeError, r"tokens\[1\]: got int; expected str or dikkat.inspection.Token, or dikkat.Grid, Words"),
        ({"vision": ["a"]}, TypeError, "tokens: got 'vision'; expected 'self', and 'encoder' for a source, 'image'"),
        (dikkat.Words, TypeError, "tokens: got type; expected a list"),
    ],
)
def test_tokens_that_are_none(tokens, error, message):
    with pytest.raises(error, match=message):
        tokens_of(tokens)
    with pytest.raises(TypeError, match=r"texts\[0\]: got int"):
        dikkat.Words([3])


def test_a_photograph_is_a_jpeg_and_a_drawing_a_png():
    from dikkat.show.pictures import data_url, parse_png, png_text

    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (97, 89, 3)).astype(np.uint8))
    drawing = Image.new("RGB", (97, 89), "red")
    assert data_url(noise).startswith("data:image/jpeg;base64,")
    assert data_url(drawing).startswith("data:image/png;base64,")
    assert parse_png(png_text(noise)) == noise
    with pytest.raises(ValueError, match="images: got a damaged image"):
        parse_png(png_text(noise)[:40])


def test_a_box_ends_at_the_edge_of_the_image():
    for box in ((0, 0, 5, 5), (0, 0, 4, 4.5), (-0.5, 0, 4, 4)):
        with pytest.raises(ValueError, match=r"box: got .* inside the image of 4 × 4 pixels"):
            dikkat.Grid(1, 1, image=np.zeros((4, 4)), box=box)
    large = np.zeros((25, 20_480), np.uint8)
    with pytest.raises(ValueError, match="inside the image of 20480 × 25 pixels"):
        dikkat.Grid(1, 1, image=large, box=(0, 0, 20_489, 25))
    assert dikkat.Grid(1, 1, image=large, box=(10_240, 0, 20_480, 25)).box == (1024, 0, 2048, 2)


def test_whole_numbers_of_numpy():
    grid = dikkat.Grid(np.int64(2), np.int64(3), order=np.array([5, 2, 0, 1, 4, 3]))
    assert [*map(type, (grid.rows, grid.columns, grid.order[0]))] == [int] * 3
    with pytest.raises(TypeError, match=r"order: got \[0.9, 1.7\]; expected a list of whole numbers"):
        dikkat.Grid(1, 2, order=[0.9, 1.7])


def test_whole_numbers_as_an_image():
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    for image in (Image.fromarray(grey).convert("I"), grey.astype(np.int64)):
        np.testing.assert_array_equal(np.asarray(dikkat.Grid(1, 1, image=image).image), grey)
    with pytest.raises(ValueError, match=r"image: got int64 from 0 to 1; expected up to 255"):
        dikkat.Grid(1, 1, image=np.eye(4, dtype=np.int64))
    np.testing.assert_array_equal(np.asarray(dikkat.Grid(1, 1, image=np.eye(4, dtype=bool)).image), 255 * np.eye(4))
