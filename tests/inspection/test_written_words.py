"""Words that encoder–decoder models and models with cross attention write about an image."""

from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil  # noqa: E402

import dikkat  # noqa: E402
from stress.image_processors import build, tokenizer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of transformers
PICTURE = Image.fromarray(np.random.default_rng(5).integers(0, 255, (101, 157, 3), dtype=np.uint8))
IMAGE_PROCESSOR = ViTImageProcessorPil(size={"height": 35, "width": 35})


class Processor:
    """An image processor with a tokenizer."""

    image_processor = IMAGE_PROCESSOR
    tokenizer = tokenizer(ViTImageProcessorPil)

    def __call__(self, images: Any = None, text: Any = None, **options: Any) -> Any:
        return IMAGE_PROCESSOR(images, **options)


def captioner() -> Any:
    torch.manual_seed(3)
    sizes = {"hidden_size": 12, "intermediate_size": 17, "num_hidden_layers": 2, "num_attention_heads": 3}
    encoder = transformers.ViTConfig(**sizes, image_size=35, patch_size=7)
    decoder = transformers.GPT2Config(n_embd=12, n_layer=2, n_head=3, vocab_size=200, n_positions=64)
    joined = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    model = transformers.VisionEncoderDecoderModel(joined).eval()
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 1, 0, None
    return model


@pytest.mark.parametrize("layers", [None, "decoder.*"])
def test_words_of_a_decoder(layers: str | None) -> None:
    model, processor = captioner(), Processor()
    trace = dikkat.show.attention(model, processor, PICTURE, layers=layers, max_new_tokens=4)
    model.set_attn_implementation("eager")
    pixels = IMAGE_PROCESSOR(PICTURE, return_tensors="pt")["pixel_values"]
    output = model.generate(pixels, max_new_tokens=4, output_attentions=True, return_dict_in_generate=True)
    words = processor.tokenizer.convert_ids_to_tokens(output.sequences[0].tolist())
    assert [token.text for token in trace.tokens["self"]] == words
    assert [(part.rows, part.columns) for part in trace.parts.get("encoder", {}).values()] == [(5, 5)]
    records = {(call.layer, call.kind): record for call, record in trace.calls()}
    assert len(records) == 4
    for step in range(4):
        for kind, attentions in (("self", output.decoder_attentions), ("cross", output.cross_attentions)):
            for layer, expected in enumerate(attentions[step]):
                seen = records[layer, kind].weights[:, :, step, : expected.shape[-1]].float()
                torch.testing.assert_close(seen, expected[:, :, -1], atol=3e-4, rtol=0)


def test_words_of_cross_attention_in_the_text_model() -> None:
    base, processor, text = build("blip", "small")
    torch.manual_seed(3)
    model = transformers.BlipForConditionalGeneration(base.config).eval()
    model.generation_config.eos_token_id = None
    trace = dikkat.show.attention(model, processor, (PICTURE, text), max_new_tokens=3)
    assert {call.kind: record.sizes[1] for call, record in trace.calls()} == {"self": 3, "cross": 3}
    (grid,) = trace.parts["encoder"].values()
    assert 1 + len(grid) == next(record.sizes[2] for call, record in trace.calls() if call.kind == "cross")


def test_written_words_have_no_scores_of_their_position() -> None:
    """A query does not see the token that it writes, so "itself" and "previous" are not defined."""
    model, processor, text = build("llava", "small")
    model.generation_config.eos_token_id = None
    trace = dikkat.show.attention(model, processor, (PICTURE, text), max_new_tokens=5)
    scores = trace.scores()
    assert scores[["previous", "itself", "next"]].isna().all(axis=None)
    # The share of the first key above that of uniform weights, over the keys that each query sees.
    record = trace[0]
    shares = record.weights[0, :, :, 0].double()
    uniform = 1 / record.queries.double()
    expected = ((shares - uniform) / (1 - uniform)).mean(-1).clamp(0, 1)
    first = scores[scores["layer"] == 0]["first"].to_numpy()
    np.testing.assert_allclose(first, expected.numpy(), atol=2e-3)
