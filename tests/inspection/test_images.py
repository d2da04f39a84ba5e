"""Grids on images: the drawn cell is the token that changes with the pixels there, for real processors."""

import json
import re
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil  # noqa: E402
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil  # noqa: E402
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil  # noqa: E402

import dikkat  # noqa: E402
from dikkat.inspection.image_inputs import ImageInputs  # noqa: E402
from dikkat.inspection.images import locate_pixels  # noqa: E402
from stress.image_processors import build  # noqa: E402
from white_squares import SIZE, check_squares, square_image  # noqa: E402

# The grids of the 157 × 101 image, counted by hand, by kind of attention.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of transformers

GRIDS: dict[str, dict[str, list[tuple[int, int]]]] = {
    "vit": {"self": [(4, 4)]},
    "dinov2": {"self": [(4, 4)]},
    "yolos": {"self": [(2, 4)]},
    "clip": {"image": [(4, 4)]},
    "llava": {"self": [(4, 4)]},
    "llava_next": {"self": [(4, 4), *[(1, 8)] * 6]},
    "qwen2_vl": {"self": [(4, 6)]},
    "idefics3": {"self": [(2, 2)] * 5},
    "paligemma": {"self": [(4, 4)]},
}
TEXT = "user : what is"


@cache
def built(kind: str) -> tuple[Any, Any, str | None]:
    return build(kind, "sectioned" if kind == "qwen2_vl" else "small")


def source(text: str | None, image: Any) -> Any:
    return image if text is None else (image, text)


def picture(width: int = SIZE[0], height: int = SIZE[1]) -> Any:
    return Image.fromarray(np.random.default_rng(5).integers(0, 255, (height, width, 3), dtype=np.uint8))


def tiny_vit(**settings: Any) -> Any:
    torch.manual_seed(3)
    sizes = {"hidden_size": 12, "intermediate_size": 17, "num_hidden_layers": 2, "num_attention_heads": 3}
    return transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=35, patch_size=7, **settings)).eval()


VIT = ViTImageProcessorPil(size={"height": 35, "width": 35})


@pytest.mark.parametrize("kind", GRIDS)
def test_drawn_cell_is_the_changed_token(kind: str) -> None:
    report = check_squares(*built(kind), squares=2)
    assert not report["faults"]
    assert report["cells"] >= 1
    assert report["parts"] == GRIDS[kind]


@pytest.mark.parametrize("kind", [kind for kind in GRIDS if kind != "clip"])
def test_maps_equal_eager(kind: str) -> None:
    model, processor, text = built(kind)
    model = deepcopy(model).double()
    trace = dikkat.show.attention(model, processor, source(text, picture()))
    inputs = ImageInputs.read(model, processor, source(text, picture())).arguments
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True).attentions
    calls = [record for call, record in trace.calls() if call.kind == "self"]
    assert len(calls) == len(expected) > 0
    for record, weights in zip(calls, expected, strict=True):
        assert record.top_weights is not None
        assert record.top_keys is not None
        torch.testing.assert_close(record.top_weights, weights.gather(-1, record.top_keys.clamp(min=0)) *
                                   (record.top_keys >= 0), atol=1e-6, rtol=0)  # fmt: skip
        largest = weights.topk(record.top_weights.shape[-1]).values
        torch.testing.assert_close(record.top_weights, largest, atol=1e-6, rtol=0)


def test_words_and_special_tokens_are_named() -> None:
    model, processor, _ = built("llava")
    trace = dikkat.show.attention(model, processor, (picture(), "what <image> is on"))
    labels = [token.text for token in trace.tokens["self"]]
    assert labels[:2] == ["what", "row 1, column 1"]
    assert labels[17:] == ["is", "on"]
    registers = transformers.Dinov2WithRegistersModel(transformers.Dinov2WithRegistersConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=3, image_size=35, patch_size=7, num_register_tokens=2,
    )).eval()  # fmt: skip
    trace = dikkat.show.attention(registers, VIT, picture())
    labels = [token.text for token in trace.tokens["self"]]
    assert labels[:4] == ["class token", "register 1", "register 2", "row 1, column 1"]


def test_rows_with_separators_are_one_image() -> None:
    trace = dikkat.show.attention(*built("llava_next")[:2], (picture(), TEXT))
    labels = [token.text for token in trace.tokens["self"]]
    assert [label for label in labels if label.startswith("image 2")] == [
        f"image 2, row {row}, column {column}" for row in range(1, 7) for column in range(1, 9)
    ]
    assert not any(label.startswith("image 3") for label in labels)


def test_frame_of_a_crop() -> None:
    """Shortest side 35, so 54 × 35 pixels, of which the middle 35 × 35: 101 of 157 columns, from 28 on."""
    processor = CLIPImageProcessorPil(size={"shortest_edge": 35}, crop_size={"height": 35, "width": 35})
    grid = dikkat.show.attention(tiny_vit(), processor, picture()).parts["self"][1]
    assert abs(grid.image.width - 101) <= 3
    assert grid.image.height == 101
    seen, image = np.asarray(grid.image), np.asarray(picture())
    lefts = [left for left in range(20, 36) if np.array_equal(image[:, left : left + seen.shape[1]], seen)]
    assert len(lefts) == 1
    assert abs(lefts[0] - 28) <= 2


def test_a_page_has_the_original_with_the_frame_of_a_crop(tmp_path: Path) -> None:
    processor = CLIPImageProcessorPil(size={"shortest_edge": 35}, crop_size={"height": 35, "width": 35})
    dikkat.show.attention(tiny_vit(), processor, picture(), tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    content = json.loads(re.findall(r'<script id="dikkat-content" type="application/json">(.*?)</script>', page)[0])
    (image,) = content["calls"]["images"]
    original = image["original"]
    assert (original["width"], original["height"]) == SIZE
    left, top, right, bottom = original["frame"]
    assert (top, bottom) == (0, 101)
    assert abs(left - 28) <= 2
    assert right - left == image["width"]
    assert original["source"].startswith("data:image/")


def test_padding_is_grey() -> None:
    class Padding(BitImageProcessorPil):
        """Pads to a square, below and on the right."""

        def __call__(self, images: Any, **options: Any) -> Any:
            side = max(images.size)
            square = Image.new("RGB", (side, side))
            square.paste(images, (0, 0))
            return VIT(square, **options)

    grid = dikkat.show.attention(tiny_vit(), Padding(), picture()).parts["self"][1]
    assert grid.image.size == (157, 157)
    assert (np.asarray(grid.image)[102:] == 128).all()
    assert np.array_equal(np.asarray(grid.image)[:101], np.asarray(picture()))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "I;16", "1", "CMYK"])
def test_modes_of_images(mode: str) -> None:
    deep = picture().convert("L").convert("I").point(lambda value: value * 257).convert("I;16")
    image = deep if mode == "I;16" else picture().convert(mode)
    plain = (picture().convert("L") if mode == "I;16" else image).convert("RGB")
    drawn = dikkat.show.attention(tiny_vit(), VIT, image).parts["self"][1].image
    assert np.abs(np.asarray(drawn.convert("RGB")).astype(int) - np.asarray(plain)).max() <= 1


def test_arrays_and_paths(tmp_path: Path) -> None:
    pixels = np.asarray(picture())
    expected = dikkat.show.attention(tiny_vit(), VIT, picture())[0].top_weights
    picture().save(tmp_path / "image.png")
    path = tmp_path / "image.png"
    for image in (pixels, pixels / 255, torch.tensor(pixels).permute(2, 0, 1), path, str(path)):
        assert torch.equal(dikkat.show.attention(tiny_vit(), VIT, image)[0].top_weights, expected)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ([(picture(), "what is")], "image: got a tuple of 2 in a list"),
        (np.zeros((2, 31, 37, 3)), r"image: got shape \(2, 31, 37, 3\)"),
        ("what is on the table?", "image: got 'what is on the table\\?', which is no file"),
        ("what is on the table " * 30, "image: got 'what is on the table .*, which is no file"),
        ((picture(), "what is"), "text: got a text for ViTModel, which reads only images"),
        (Image.new("RGB", (1, 1)), "image: got 1 × 1 pixels; expected at least"),
        ((picture(), 3), "text: got int"),
    ],
)  # fmt: skip
def test_bad_images(image: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError, OSError), match=message):
        dikkat.show.attention(tiny_vit(), VIT, image)


def test_image_without_text_and_foreign_processors() -> None:
    model, processor, _ = built("llava")
    with pytest.raises(ValueError, match=r"text: got none for LlavaForConditionalGeneration.*\(image, text\)"):
        dikkat.show.attention(model, processor, picture())
    with pytest.raises(ValueError, match=r"text: got none for LlavaForConditionalGeneration"):
        dikkat.show.attention(model, processor, (picture(), " "))
    beams = {"num_beams": 2}
    for options in (beams, {"generation_config": transformers.GenerationConfig(**beams)}):
        with pytest.raises(ValueError, match="num_beams: got 2; expected 1, as each token needs one call"):
            dikkat.show.attention(model, processor, (picture(), TEXT), max_new_tokens=2, **options)
    with pytest.raises(ValueError, match="max_new_tokens: got 0"):
        dikkat.show.attention(model, processor, (picture(), TEXT), max_new_tokens=0)
    with pytest.raises(TypeError, match="processor: got ViTImageProcessorPil, which reads only images"):
        dikkat.show.attention(model, VIT, (picture(), TEXT))
    with pytest.raises(ValueError, match="processor: got the inputs pixel_values of ViTImageProcessorPil"):
        dikkat.show.attention(tiny_vit(), ViTImageProcessorPil(size={"height": 31, "width": 31}), picture())
    with pytest.raises(ValueError, match="processor: got the inputs input_ids"):
        dikkat.show.attention(model, built("qwen2_vl")[1], (picture(), TEXT))
    with pytest.raises(TypeError, match="attention: got 3 arguments after the processor"):
        dikkat.show.attention(tiny_vit(), VIT, picture(), "a.html", "b")
    with pytest.raises(TypeError, match="do_sample: got an argument without max_new_tokens; expected only"):
        dikkat.show.attention(tiny_vit(), VIT, picture(), do_sample=False)


class Mixing(torch.nn.Module):
    """Attention over patches that a convolution or a permutation has mixed."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        size = {"overlap": 11, "mixed": 21}.get(kind, 7)
        self.patches = torch.nn.Conv2d(3, 12, size, 7, padding=(size - 7) // 2)
        self.attention = torch.nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.patches(pixel_values).flatten(2).mT
        if self.kind == "shuffled":
            x = x[:, torch.randperm(25, generator=torch.Generator().manual_seed(3))]
        if self.kind == "transposed":
            x = x.unflatten(1, (5, 5)).transpose(1, 2).flatten(1, 2)
        if self.kind == "windows":
            x = x[:, :24].reshape(4, 6, 12)
        return self.attention(x, x, x)[0]


def test_own_models_and_orders() -> None:
    for kind in ("plain", "overlap", "transposed", "shuffled"):
        torch.manual_seed(1)
        grid = dikkat.show.attention(Mixing(kind), VIT, picture()).parts["self"][0]
        assert (grid.rows, grid.columns) == (5, 5)
        shuffled = torch.randperm(25, generator=torch.Generator().manual_seed(3)).tolist()
        orders = {"transposed": [5 * (k % 5) + k // 5 for k in range(25)], "shuffled": shuffled}
        assert list(grid.order or range(25)) == orders.get(kind, [*range(25)])


@pytest.mark.parametrize(("kind", "reason"), [("mixed", "several patches"), ("windows", "4 windows or tiles")])
def test_unknown_positions_raise(kind: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"{reason}.*tokens=.*dikkat.Grid"):
        dikkat.show.attention(Mixing(kind), VIT, picture())


def test_processors_that_look_at_the_content_raise() -> None:
    class Stretching(BitImageProcessorPil):
        """Scales by the largest number of the image, so that black and white are alike."""

        def __call__(self, images: Any, **options: Any) -> Any:
            values = VIT(images, **options)
            values["pixel_values"] = values["pixel_values"] / values["pixel_values"].amax().clamp(min=1e-3)
            return values

    dark = Image.fromarray(np.asarray(picture()) // 3)
    with pytest.raises(ValueError, match="the processor changes an image according to its content"):
        dikkat.show.attention(tiny_vit(), Stretching(), dark)


def test_processors_that_flip_some_images_raise() -> None:
    class Flipping(BitImageProcessorPil):
        """Flips an image whose left half is brighter."""

        def __call__(self, images: Any, **options: Any) -> Any:
            pixels = np.asarray(images).astype(float)
            middle = pixels.shape[1] // 2
            is_flipped = pixels[:, :middle].mean() > pixels[:, -middle:].mean() + 1
            return VIT(images.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if is_flipped else images, **options)

    half = Image.fromarray(np.where(np.arange(157)[None, :, None] < 60, np.asarray(picture()), 0).astype(np.uint8))
    with pytest.raises(ValueError, match="the processor changes an image according to its content"):
        dikkat.show.attention(tiny_vit(), Flipping(), half)


class OnDevice(torch.Tensor):
    """A tensor of another device without float64: only its copy on the CPU can be computed with."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        with torch._C.DisableTorchFunctionSubclass():
            if name == "cpu":
                return arguments[0].as_subclass(torch.Tensor)
            if name in ("is_floating_point", "__get__"):
                return function(*arguments, **(keywords or {}))
        raise RuntimeError(f"{name}: the tensor is on another device")


def test_pixels_on_another_device() -> None:
    def encode(image: Any) -> dict[str, Any]:
        return {"pixel_values": VIT(image, return_tensors="pt")["pixel_values"].as_subclass(OnDevice)}

    x, y = locate_pixels(encode, encode(picture()), picture())["pixel_values"]
    assert (type(x), x.dtype) == (torch.Tensor, torch.float64)
    assert float(x[0, 0, 17, 17]) == pytest.approx(157 / 2, abs=1)
    assert float(y[0, 0, 17, 17]) == pytest.approx(101 / 2, abs=1)


@pytest.mark.parametrize("kind", ["llava", "qwen2_vl"])
def test_written_words(kind: str, tmp_path: Path) -> None:
    model, processor, text = built(kind)
    model.generation_config.eos_token_id = None
    trace = dikkat.show.attention(model, processor, (picture(), text), tmp_path / "a.html", max_new_tokens=5)
    inputs = ImageInputs.read(model, processor, (picture(), text)).arguments
    count = inputs["input_ids"].shape[1]
    model.set_attn_implementation("eager")
    try:
        output = model.generate(**inputs, max_new_tokens=5, output_attentions=True, return_dict_in_generate=True)
    finally:
        model.set_attn_implementation("sdpa")
    written = processor.tokenizer.convert_ids_to_tokens(output.sequences[0, count:].tolist())
    assert [token.text for token in trace.tokens["self"]][count:] == written
    for step, layers in enumerate(output.attentions):
        for layer, weights in enumerate(layers):
            record = trace[layer]
            assert record.weights is not None
            assert record.queries is not None
            assert record.weights.dtype == torch.float16
            assert record.queries[step] == count + step
            expected = torch.zeros(1, weights.shape[1], count + 5)
            expected[..., : weights.shape[-1]] = weights[:, :, -1]
            torch.testing.assert_close(record.weights[:, :, step].float(), expected, atol=3e-4, rtol=0)
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    content = json.loads(re.findall(r'<script id="dikkat-content" type="application/json">(.*?)</script>', page)[0])
    (view,) = content["calls"]["views"]
    assert [label[0] for label in view["queries"]] == written
    assert [label[0] for label in view["keys"]][count:] == written


def test_square_leaves_the_rest_black() -> None:
    assert np.asarray(square_image(3, 5, 7)).sum() == 7 * 7 * 3 * 255
