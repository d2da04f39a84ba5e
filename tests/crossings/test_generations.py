"""What is recorded of `generate` × its cache × the spans: 60 cells.

A cell has the numbers of one eager run on the written text, or raises a named error.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import dikkat
import kit

transformers = pytest.importorskip("transformers")

PROMPT, NEW, BATCH, HEADS, LAYERS, WINDOW = 11, 3, 2, 3, 2, 7
LAST = PROMPT + NEW - 1  # the last written token is no query
SPANS: dict[str, Any] = {"a slice": slice(2, 5), "a list": [1, 7, 9], "a written token": slice(9, 13)}
CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static", "disable_compile": True},
    "none": {"use_cache": False},
    "sliding": {},
}
REQUESTS: dict[str, dict[str, Any]] = {
    "sums": {"sums": True}, "entropy": {"entropy": True}, "span_mass": {}, "max_score": {"max_score": True},
    "top_keys": {"top_k": 1},
}  # fmt: skip


@cache
def model(attention: str, slides: bool) -> Any:
    torch.manual_seed(3)
    kind = "Mistral" if slides else "Llama"
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=29, hidden_size=24, intermediate_size=17, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=1, attn_implementation=attention, bos_token_id=0, eos_token_id=None, pad_token_id=0,
        max_position_embeddings=31, **{"sliding_window": WINDOW} if slides else {},
    )  # fmt: skip
    made = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for parameter in made.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.4)
    return made


TEXT = torch.randint(1, 29, (BATCH, PROMPT), generator=torch.Generator().manual_seed(5))


def generate(attention: str, name: str, **more: Any) -> Any:
    arguments = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False} | CACHES[name] | more
    return model(attention, name == "sliding").generate(TEXT, attention_mask=torch.ones_like(TEXT), **arguments)


@cache
def scores(name: str) -> list[Tensor]:
    """The arguments (B, H, n, n) of each layer's softmax in an eager run on the written text, in float64."""
    found, ids, softmax = list[Tensor](), generate("eager", name), F.softmax
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "softmax", lambda logits, *a, **k: found.append(logits.double()) or softmax(logits, *a, **k))
        model("eager", name == "sliding")(ids[:, :-1])
    assert [logits.shape for logits in found] == [(BATCH, HEADS, LAST, LAST)] * LAYERS
    return found


def rows_of_calls(name: str) -> list[slice]:
    """The queries of each call."""
    ends = range(PROMPT, PROMPT + NEW)
    return [slice(0 if name == "none" or end == PROMPT else end - 1, end) for end in ends]


def wanted(name: str, layer: int, span: Any, rows: slice) -> dict[str, Tensor]:
    logits = scores(name)[layer][:, :, rows]
    weights = logits.softmax(-1)
    return {
        "sums": weights.sum(-2), "entropy": torch.special.entr(weights).sum(-1),
        "span_mass": weights[..., span].sum(-1, keepdim=True), "max_score": logits.amax(-1),
        "top_keys": weights.argmax(-1, keepdim=True),
    }  # fmt: skip


def records(name: str, request: str, span: Any, **more: Any) -> Iterator[tuple[int, list[Any]]]:
    with dikkat.record(model("sdpa", name == "sliding"), spans={"span": span}, **REQUESTS[request], **more) as trace:
        generate("sdpa", name)
    for layer in range(LAYERS):
        yield layer, [record for call, record in trace.calls() if call.layer == layer]


def close(got: Tensor, expected: Tensor, dim: int = -1) -> None:
    """A static cache has further keys, and a sliding cache fewer."""
    size = min(got.shape[dim], expected.shape[dim])
    got, rest = got.split([size, got.shape[dim] - size], dim)
    assert not rest.any()
    torch.testing.assert_close(got.double(), expected.narrow(dim, 0, size), rtol=1e-4, atol=2e-5, check_dtype=False)


@kit.each("request_name", REQUESTS)
@kit.each("name", CACHES)
@kit.each("span_name", SPANS)
def test_generations(span_name: str, name: str, request_name: str) -> None:
    span = SPANS[span_name]
    if span_name == "a written token":
        with pytest.raises(ValueError, match=r"spans: got 'span' up to position 12; expected at most 10"):
            next(records(name, request_name, span))
        return
    for layer, calls in records(name, request_name, span):
        assert len(calls) == NEW
        for call, rows in zip(calls, rows_of_calls(name), strict=True):
            expected = wanted(name, layer, span, rows)[request_name]
            first = max(0, call.positions[1])
            if request_name == "sums":
                expected = expected[..., first:]
            got = getattr(call, request_name) + (first if request_name == "top_keys" else 0)
            close(got, expected, -1 if request_name == "sums" else -2)


@kit.each("name", CACHES)
def test_totals_of_generations(name: str) -> None:
    for request in REQUESTS:
        for layer, (total,) in records(name, request, SPANS["a slice"], sum_over="calls"):
            calls = [wanted(name, layer, SPANS["a slice"], rows) for rows in rows_of_calls(name)]
            joined = {field: torch.cat([call[field] for call in calls], -2 if field == "span_mass" else -1)
                      for field in ("entropy", "span_mass", "max_score")}  # fmt: skip
            sums = torch.stack([call["sums"] for call in calls]).sum(0)
            expected = {
                "sums": sums, "entropy": joined["entropy"].mean(-1, keepdim=True),
                "span_mass": joined["span_mass"].mean(-2, keepdim=True),
                "max_score": joined["max_score"].amax(-1, keepdim=True), "top_keys": sums.argmax(-1)[..., None, None],
            }  # fmt: skip
            close(getattr(total, request), expected[request])


def test_totals_of_a_beam_search_are_those_of_its_rows() -> None:
    """The rows of the calls, whose sequences change when the search reorders its beams."""
    more: dict[str, Any] = {"num_beams": 3, "return_dict_in_generate": True}
    output = generate("eager", "dynamic", output_attentions=True, **more)
    assert len({*output.beam_indices[0].tolist()}) > 1
    with dikkat.record(model("sdpa", False), sums=True, entropy=True, sum_over="calls") as totals:
        generate("sdpa", "dynamic", **more)
    for layer in range(LAYERS):
        weights = [step[layer].double() for step in output.attentions]
        sums = sum(F.pad(step.sum(-2), (0, LAST - step.shape[-1])) for step in weights)
        entropies = torch.cat([torch.special.entr(step).sum(-1) for step in weights], -1)
        assert sums.shape == (3 * BATCH, HEADS, LAST)
        close(totals[layer].sums, sums)
        close(totals[layer].entropy, entropies.mean(-1, keepdim=True))
