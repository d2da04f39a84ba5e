"""Positions of recorded calls: steps of `generate` beside one dense run of the whole text with "eager" attention."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dikkat
from dikkat.inspection import Token
from dikkat.inspection.page_layers import content_of_page
from dikkat.show.positions import TokenList

transformers = pytest.importorskip("transformers")

WORDS, PROMPT, WRITTEN, WINDOW, PADDED = 50, 9, 8, 4, 3


def model(kind: str, attention: str) -> nn.Module:
    sizes: dict[str, Any] = {
        "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "head_dim": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 99, "pad_token_id": 0,
    }  # fmt: skip
    config = {
        "mistral": lambda: transformers.MistralConfig(**sizes, sliding_window=WINDOW),
        "gemma2": lambda: transformers.Gemma2Config(**sizes, sliding_window=WINDOW),
        "llama": lambda: transformers.LlamaConfig(**sizes),
    }[kind]()
    config._attn_implementation = attention
    torch.manual_seed(3)
    made = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in made.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.4)
    return made


def generated(kind: str, attention: str, cache: str, **request: Any) -> tuple[dikkat.Trace, Tensor, Tensor]:
    """A recording of a batch with padding on the left, the text that was written, and its mask."""
    if attention == "dikkat":
        dikkat.register_transformers()
    ids = torch.randint(3, WORDS, (2, PROMPT), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :PADDED] = 0
    more: dict[str, Any] = {"max_new_tokens": WRITTEN, "min_new_tokens": WRITTEN, "do_sample": False}
    if cache == "static":
        more |= {"cache_implementation": "static", "disable_compile": True}
    made = model(kind, attention)
    with dikkat.record(made, **request) as trace:
        text = made.generate(input_ids=ids, attention_mask=mask, **more)
    return trace, text, torch.cat([mask, mask.new_ones(2, WRITTEN)], 1)


GENERATED = [
    ("mistral", "sdpa"), ("mistral", "eager"), ("mistral", "dikkat"), ("gemma2", "eager"), ("gemma2", "dikkat"),
    ("llama", "sdpa"),
]  # fmt: skip


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(("kind", "attention"), GENERATED)
def test_steps_have_the_positions_of_the_whole_text(kind: str, attention: str, cache: str) -> None:
    trace, text, mask = generated(kind, attention, cache, weights=True)
    right = model(kind, "eager")(input_ids=text, attention_mask=mask, output_attentions=True).attentions
    real = mask.bool()
    for call, seen in trace.calls():
        dense, (query, key) = right[call.layer], seen.positions
        whole = torch.zeros(2, 4, seen.sizes[1], max(text.shape[1], key + seen.sizes[2]))
        whole[..., key : key + seen.sizes[2]] = seen.weights
        queries = slice(query, query + seen.sizes[1])
        came = whole[..., : text.shape[1]] * real[:, None, queries, None]
        torch.testing.assert_close(came, dense[:, :, queries] * real[:, None, queries, None], rtol=1e-3, atol=1e-4)

    count = text.shape[1]  # the whole text, and without the last token, which is no query
    for length in (count, count - 1):
        trace.tokens = [f"word {place}" for place in range(length)]
    with pytest.raises(ValueError, match=r"tokens: got 200 \('self'\); expected \d+ to \d+, a label"):
        trace.tokens = ["word"] * 200
    frame = trace.frame(element=1)
    assert set(frame["query"]) == set(range(PADDED, count - 1))
    assert list(frame["query_token"]) == [f"word {place}" for place in frame["query"]]
    assert list(frame["key_token"]) == [f"word {place}" for place in frame["key"]]
    assert (frame["key"] <= frame["query"]).all()
    layers = content_of_page([*trace.calls()], 0, {"self": TokenList([Token("")] * count)}, None)[1]
    assert [layer.sizes for layer in layers] == [(4, count - 1, count - 1)] * 2
    for layer in layers:  # the whole text is one map
        order = right[layer.number][0, :, :-1, :-1].sort(-1, descending=True)
        top = layer.tensors["top_weights"][..., 0]
        torch.testing.assert_close(top, order.values[..., 0], rtol=1e-3, atol=1e-4)
        clear = order.values[..., 0] - order.values[..., 1] > 1e-3
        assert torch.equal(layer.tensors["top_keys"][..., 0][clear], order.indices[..., 0][clear])


def test_modules_inside_a_layer_have_its_number():
    """`layers` selects modules by name inside the entries of a list: their calls count as these layers."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 7, batch_first=True), 3, enable_nested_tensor=False)
    with dikkat.record(model, layers=["layers.2.self_attn", "layers.0.*"], sums=True) as trace:
        model(torch.randn(2, 5, 6))
    assert [call.layer for call, _ in trace.calls()] == [0, 2]
    assert trace[2] is trace["layers.2.self_attn"]


class Twice(nn.Module):
    """Attention that runs twice on a text, as in HRM: the second run has its own slot of the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.layer_idx = nn.Linear(7, 7), 0

    def forward(self, text: Tensor, past_key_values: Any, slot: int) -> Tensor:
        query = key = self.project(text)[:, None]
        key, value = past_key_values.update(key, key, slot)
        is_seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(key.shape[2] - query.shape[2])
        return nn.functional.scaled_dot_product_attention(query, key, value, is_seen)[:, 0]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Twice()

    def forward(self, text: Tensor, cache: Any) -> Tensor:
        return self.attention(self.attention(text, cache, slot=0), past_key_values=cache, slot=1)


def test_a_module_with_two_slots_of_a_cache_has_the_positions_of_the_text():
    model, cache = Recurrent(), transformers.DynamicCache()
    with dikkat.record(model, weights=True) as trace:
        for text in torch.randn(1, 8, 7).split([5, 2, 1], dim=1):
            model(text, cache)
    assert [record.positions for _, record in trace.calls()] == [(0, 0), (0, 0), (5, 0), (5, 0), (7, 0), (7, 0)]
