"""Several images in a batch or in a prompt, and division by the weights of a neutral prompt."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")
from test_written_words import Processor, captioner  # noqa: E402
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil  # noqa: E402
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil  # noqa: E402

import dikkat  # noqa: E402
from dikkat.inspection.dataflow import Dataflow  # noqa: E402
from dikkat.inspection.image_inputs import ImageInputs  # noqa: E402
from dikkat.inspection.torch_attention import weights_of_one_query  # noqa: E402
from stress.image_processors import build  # noqa: E402
from white_squares import keys_of, square_image  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of transformers
VIT, TEXT, NEUTRAL = ViTImageProcessorPil(size={"height": 35, "width": 35}), "what is on", "is the"


def picture(seed: int, width: int = 157, height: int = 101) -> Any:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def vit() -> Any:
    torch.manual_seed(3)
    sizes = {"hidden_size": 12, "intermediate_size": 17, "num_hidden_layers": 2, "num_attention_heads": 3}
    return transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=35, patch_size=7)).eval()


def boxes_of(trace: Any) -> Any:
    return {first: [*np.round(grid.box, 6)] for first, grid in trace.parts["self"].items()}


def content_of(path: Path) -> Any:
    page = path.read_text(encoding="utf-8")
    return json.loads(re.findall(r'<script id="dikkat-content" type="application/json">(.*?)</script>', page)[0])


def test_a_batch_of_images(tmp_path: Path) -> None:
    model, images = vit(), [picture(5), picture(7, 61, 83)]
    trace = dikkat.show.attention(model, VIT, images, tmp_path / "a.html")
    for number, image in enumerate(images):
        single = dikkat.show.attention(model, VIT, image)
        (grid,) = trace.tokens_of(number)["self"].parts.values()
        assert np.array_equal(np.asarray(grid.image), np.asarray(image))
        for (_, record), (_, expected) in zip(trace.calls(), single.calls(), strict=True):
            torch.testing.assert_close(record.of_batch(number).blocks, expected.of_batch(0).blocks)
    calls = content_of(tmp_path / "a.html")["calls"]
    assert [view["element"] for view in calls["views"]] == [0, 1]
    assert [(image["width"], image["height"]) for image in calls["images"]] == [(157, 101), (61, 83)]
    dikkat.show.attention(model, VIT, images, tmp_path / "b.html", element=1)
    assert [image["width"] for image in content_of(tmp_path / "b.html")["calls"]["images"]] == [61]


def test_elements_of_images_and_of_lists_of_labels(tmp_path: Path) -> None:
    single = dikkat.show.attention(vit(), VIT, picture(5), tmp_path / "a.html", element=[0])
    assert len(single.parts["self"]) == 1
    x, labels = torch.randn(2, 3, 12), [["a", "b", "c"], ["d", "e", "f"]]
    for element, shown in ((None, [0, 1]), (1, [None]), ([1, 0], [1, 0])):
        trace = dikkat.show.attention(dikkat.MultiHeadAttention(12, 3), x, x, x, tokens=labels,
                                      path=tmp_path / "b.html", element=element)  # fmt: skip
        first = 1 if element == [1, 0] else 0
        assert [token.text for token in trace.tokens_of(first)["self"]] == labels[0]
        assert [token.text for token in trace.tokens_of(1 - first)["self"]] == labels[1]
        views = content_of(tmp_path / "b.html")["calls"]["views"]
        assert [view["element"] for view in views] == shown
        assert views[0]["keys"][0][0] == ("d" if element == 1 else "a")


@pytest.mark.parametrize("kind", ["llava", "qwen2_vl", "idefics3"])
def test_several_images_in_a_prompt(kind: str) -> None:
    """The tokens that change with an image are the tokens that are drawn on the image."""
    model, processor, _ = build(kind, "sectioned" if kind == "qwen2_vl" else "small")
    images = [square_image(70, 40, 20), square_image(30, 20, 20, (113, 151))]
    token = processor.image_token  # Qwen2-VL needs words between images
    text = f"what {token} is {token} on" if kind == "qwen2_vl" else TEXT
    trace = dikkat.show.attention(model, processor, (images, text))
    labels = trace.tokens["self"]
    name = next(call.name for call, record in trace.calls() if call.kind == "self")
    drawn = [*dict.fromkeys(id(grid.image) for grid in labels.parts.values())]
    assert len(drawn) == 2
    for number in (0, 1):
        others = [*images]
        others[number] = Image.new("RGB", images[number].size)
        sources = (images, text), (others, text)
        arguments = [ImageInputs.read(model, processor, source).arguments for source in sources]
        first, second = (keys_of(model, values, name, len(labels)) for values in arguments)
        change = max(((a - b).norm(dim=-1) for a, b in zip(first, second, strict=True)), key=lambda norms: norms.max())
        for position in (change > 0.5 * change.max()).nonzero()[:, 0].tolist():
            start, grid = next((start, grid) for start, grid in labels.parts.items()
                               if start <= position < start + len(grid))  # fmt: skip
            assert id(grid.image) == drawn[number]
            row, column = grid.cells()[position - start]
            left, top, right, bottom = grid.box
            width, height = (right - left) / grid.columns, (bottom - top) / grid.rows
            cell = left + column * width, top + row * height, left + (column + 1) * width, top + (row + 1) * height
            assert np.asarray(grid.image.convert("L").crop([*map(round, cell)])).max() > 200


def test_words_about_several_images() -> None:
    model, processor, _ = build("llava", "small")
    model.generation_config.eos_token_id = None
    trace = dikkat.show.attention(model, processor, ([picture(5), picture(7)], TEXT), max_new_tokens=3)
    assert len(trace.parts["self"]) == 2
    assert trace[0].weights.shape[2] == 3


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ([(picture(5), "what")], TypeError, r"image: got a tuple of 2 in a list.*once for each text"),
        (np.zeros((3, 31, 37, 3)), ValueError, r"image: got shape \(3, 31, 37, 3\).*Pass a batch or video as"),
        ([], ValueError, "image: got an empty list"),
    ],
)  # fmt: skip
def test_bad_lists(source: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dikkat.show.attention(vit(), VIT, source)


def test_a_batch_with_different_sizes() -> None:
    uncropped = CLIPImageProcessorPil(size={"shortest_edge": 35}, do_center_crop=False)
    model = transformers.Dinov2Model(transformers.Dinov2Config(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=3, image_size=35, patch_size=7)).eval()  # fmt: skip
    with pytest.raises(ValueError, match=r"image: got pixel_values of shape .*Call attention once for each image"):
        dikkat.show.attention(model, uncropped, [picture(5, 157, 101), picture(7, 101, 157)])


def relative_weights(model: Any, processor: Any, image: Any) -> tuple[list[torch.Tensor], int]:
    """Return the divided and scaled weights for the first written word, from "eager" attention in float64."""
    rows = []
    model = model.double()
    model.set_attn_implementation("eager")
    for text in (TEXT, NEUTRAL):
        arguments = ImageInputs.read(model, processor, (image, text)).arguments
        is_image = arguments["input_ids"][0] == model.config.image_token_id
        with torch.no_grad():
            attentions = model(**arguments, output_attentions=True).attentions
        rows.append([weights[0, :, -1, is_image] for weights in attentions])
    quotients = [first / second for first, second in zip(*rows, strict=True)]
    model.set_attn_implementation("sdpa")
    return [quotient / quotient.sum(-1, keepdim=True) for quotient in quotients], int(is_image.nonzero()[0])


def test_division_by_a_neutral_prompt(tmp_path: Path) -> None:
    model, processor, _ = build("llava", "small")
    model.generation_config.eos_token_id = None
    trace = dikkat.show.attention(model, processor, (picture(5), TEXT), tmp_path / "a.html", max_new_tokens=2,
                                  neutral=NEUTRAL)  # fmt: skip
    expected, start = relative_weights(model, processor, picture(5))
    for layer, shares in enumerate(expected):
        weights = trace[layer].weights[0, :, 0].double()
        image = weights[:, start : start + shares.shape[-1]]
        torch.testing.assert_close(image, shares, atol=2e-3, rtol=5e-3)
        assert float(weights.sum()) == pytest.approx(float(image.sum()))  # words have 0
    label = f"divided by the weights for {NEUTRAL!r}"
    assert label in (tmp_path / "a.html").read_text(encoding="utf-8").replace("&#x27;", "'")
    assert {view["note"] for view in content_of(tmp_path / "a.html")["calls"]["views"]} == {label}
    figure = trace.figure(0, 1, kind="image")
    assert figure.axes[0].get_title().endswith(label)
    assert [trace.figure(0, 1, kind=kind).get_suptitle() for kind in ("lines", "map")] == [label] * 2
    plain = dikkat.show.attention(model.float(), processor, (picture(5), TEXT), max_new_tokens=2)
    with pytest.raises(ValueError, match=r"trace - other: got weights divided for neutral='is the' and ''; expected"):
        trace - plain
    assert (trace - trace).neutral == NEUTRAL
    assert plain.figure(0, 1, kind="lines").get_suptitle() == ""
    trace.save(tmp_path / "a.safetensors")
    assert dikkat.inspection.Trace.load(tmp_path / "a.safetensors").neutral == NEUTRAL


def written_weights(kind: str, text: str, neutral: str) -> Any:
    """Return a trace for the first written word and the divided weights of each layer, from "eager" in float64."""
    base, processor, _ = build(kind, "small")
    model = base if kind == "git" else transformers.BlipForConditionalGeneration(base.config).eval()
    torch.manual_seed(3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.generation_config.eos_token_id = None
    trace = dikkat.show.attention(model, processor, (picture(5), text), max_new_tokens=1, neutral=neutral)
    model.double().set_attn_implementation("eager")
    rows = []
    for prompt in (text, neutral):
        arguments = ImageInputs.read(model, processor, (picture(5), prompt)).arguments
        with torch.no_grad():
            if kind == "git":
                attentions = model(**arguments, output_attentions=True).attentions
            else:  # `generate` replaces the first token and removes the last one
                ids = arguments["input_ids"][:, :-1].clone()
                ids[:, 0] = model.config.text_config.bos_token_id
                options = {"encoder_hidden_states": model.vision_model(arguments["pixel_values"])[0]}
                options |= {"output_attentions": True, "is_decoder": True}
                attentions = model.text_decoder.bert(ids, **options).cross_attentions
        rows.append([weights[0, :, -1] for weights in attentions])
    return trace, rows


@pytest.mark.parametrize("words", [4, 20])
def test_a_neutral_prompt_without_placeholders(words: int) -> None:
    """The sequence of GIT has image tokens before the text, but its `input_ids` have no placeholders."""
    text = " ".join([*["what"] * (words - 3), "on", "on", "the"])
    trace, rows = written_weights("git", text, " ".join(["is", *["the"] * (words // 2)]))
    ((start, grid),) = trace.parts["self"].items()
    for layer, (first, second) in enumerate(zip(*rows, strict=True)):
        quotient = first[:, start : start + len(grid)] / second[:, start : start + len(grid)]
        shares = trace[layer].weights[0, :, 0, start : start + len(grid)].double()
        torch.testing.assert_close(shares, quotient / quotient.sum(-1, keepdim=True), atol=2e-3, rtol=5e-3)


def test_a_neutral_prompt_with_cross_attention(tmp_path: Path) -> None:
    trace, rows = written_weights("blip", "what is on", NEUTRAL)
    ((start, grid),) = trace.parts["encoder"].items()
    assert {call.kind for call, _ in trace.calls()} == {"cross"}
    for (_, record), first, second in zip(trace.calls(), *rows, strict=True):
        quotient = first[:, start : start + len(grid)] / second[:, start : start + len(grid)]
        shares = record.weights[0, :, 0, start : start + len(grid)].double()
        torch.testing.assert_close(shares, quotient / quotient.sum(-1, keepdim=True), atol=2e-3, rtol=5e-3)
    trace.to_html(tmp_path / "a.html")


def test_modules_that_write_no_tokens() -> None:
    model, processor, _ = build("llava", "small")
    with pytest.raises(ValueError, match="layers: got modules that write no tokens; expected layers of the language"):
        dikkat.show.attention(model, processor, (picture(5), TEXT), layers="model.vision_tower*", max_new_tokens=2)


def test_layers_of_tower_and_language_model() -> None:
    """Each layer has the weights of a page with only its module."""
    model, processor, _ = build("llava", "small")
    model.generation_config.eos_token_id = None
    trace = dikkat.show.attention(model, processor, (picture(5), TEXT), layers=[0], max_new_tokens=2)
    (name,) = trace.names
    expected = dikkat.show.attention(model, processor, (picture(5), TEXT), layers=[name], max_new_tokens=2)
    assert torch.equal(trace[name].weights, expected[name].weights)
    assert boxes_of(trace) == boxes_of(expected)


def test_inference_mode() -> None:
    model, processor, _ = build("llava", "small")
    model.generation_config.eos_token_id = None
    source = picture(5), TEXT
    for options in ({}, {"max_new_tokens": 2, "neutral": NEUTRAL}):
        expected = dikkat.show.attention(model, processor, source, **options)
        with torch.inference_mode():
            trace = dikkat.show.attention(model, processor, source, **options)
        assert boxes_of(trace) == boxes_of(expected)
        for (_, record), (_, other) in zip(trace.calls(), expected.calls(), strict=True):
            assert all(map(torch.equal, record.tensors().values(), other.tensors().values()))
    with torch.inference_mode():
        model = vit()
    with pytest.raises(ValueError, match=r"model: got parameters made in torch\.inference_mode.*Load the model"):
        dikkat.show.attention(model, VIT, picture(5))


def test_a_captioning_model_without_a_text() -> None:
    model, processor, _ = build("blip", "small")
    for options in ({}, {"max_new_tokens": 2}):
        with pytest.raises(ValueError, match=r"text: got none for BlipFor.*AttributeError.*expected \(image, text\)"):
            dikkat.show.attention(model, processor, picture(5), **options)


def test_bad_neutral_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor, _ = build("llava", "small")
    written = list[Any]()
    monkeypatch.setattr(model, "generate", lambda **options: written.append(options))
    with pytest.raises(TypeError, match="neutral: got 3 for"):
        dikkat.show.attention(model, processor, (picture(5), TEXT), max_new_tokens=2, neutral=3)
    with pytest.raises(TypeError, match="neutral: got 'is the' for an image; expected a text"):
        dikkat.show.attention(captioner(), Processor(), picture(5), max_new_tokens=2, neutral=NEUTRAL)
    with pytest.raises(ValueError, match="neutral: got an empty text; expected a text such as"):
        dikkat.show.attention(model, processor, (picture(5), TEXT), max_new_tokens=2, neutral=" ")
    assert not written
    with pytest.raises(TypeError, match="neutral: got an argument without max_new_tokens"):
        dikkat.show.attention(model, processor, (picture(5), TEXT), neutral=NEUTRAL)


def test_errors_of_generate_are_not_errors_of_the_processor() -> None:
    model, processor, _ = build("llava", "small")
    with pytest.raises(ValueError, match=r"(?s)^The following `model_kwargs` are not used.*temprature"):
        dikkat.show.attention(model, processor, (picture(5), TEXT), max_new_tokens=2, temprature=1.0)


def test_tensors_are_followed_only_in_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor, _ = build("llava", "small")
    model.generation_config.eos_token_id = None
    counts, follow = list[int](), Dataflow._follow

    def count(self: Any, call: Any) -> None:
        counts.append(1)
        follow(self, call)

    monkeypatch.setattr(Dataflow, "_follow", count)
    totals = []
    for words in (2, 7):
        counts.clear()
        dikkat.show.attention(model, processor, (picture(5), TEXT), max_new_tokens=words)
        totals.append(len(counts))
    assert totals[1] < 1.1 * totals[0]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("masked", [None, torch.bool, torch.float32])
def test_weights_of_one_query_give_the_output(packed: bool, masked: torch.dtype | None) -> None:
    """Weights times values are the output of PyTorch's function, with 2 heads of keys and 3 heads of queries each."""
    torch.manual_seed(3)
    key, value = torch.randn(1, 2, 11, 5), torch.randn(1, 2, 11, 7)
    query = torch.randn(1, 2, 3, 5) if packed else torch.randn(1, 6, 1, 5)
    is_seen = torch.rand(1, *query.shape[1:3], 11) > 0.3
    mask = {None: None, torch.bool: is_seen, torch.float32: torch.where(is_seen, torch.randn(11), -1e9)}[masked]
    options = {"attn_mask": mask, "scale": 0.4, "enable_gqa": not packed}
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)
    weights = weights_of_one_query({"query": query, "key": key, "value": value, **options})
    output = torch.einsum("bhm,bhmd->bhd", weights, value.repeat_interleave(3, 1))
    torch.testing.assert_close(output, expected.reshape(1, 6, 7))
