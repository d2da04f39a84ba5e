"""Hugging Face's models, from tiny configurations with random weights, beside their own eager attention."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dikkat
from dikkat.huggingface import _forward

transformers = pytest.importorskip("transformers")
dikkat.register_transformers()

BATCH, LENGTH, WORDS = 3, 11, 43
IDS = torch.randint(1, WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
PADDED = torch.tensor([LENGTH, 7, 2])


def _config(kind: str) -> Any:
    if kind == "bert":
        return transformers.BertConfig(
            vocab_size=WORDS, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=17,
            max_position_embeddings=29,
        )  # fmt: skip
    if kind == "gpt2":
        return transformers.GPT2Config(vocab_size=WORDS, n_embd=12, n_layer=2, n_head=3, n_positions=29)
    if kind == "t5":
        return transformers.T5Config(
            vocab_size=WORDS, d_model=12, d_kv=5, d_ff=17, num_layers=2, num_heads=3, decoder_start_token_id=0
        )
    more = {"num_hidden_layers": 2, "hidden_size": 24, "intermediate_size": 17, "vocab_size": WORDS}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 29}
    if kind == "mistral":
        return transformers.MistralConfig(**more, **heads, sliding_window=4)
    return transformers.LlamaConfig(**more, **heads)


MODELS = {
    "bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM", "t5": "T5ForConditionalGeneration",
}  # fmt: skip


def model(kind: str, attention: str) -> nn.Module:
    torch.manual_seed(7)
    config = copy.deepcopy(_config(kind))
    config._attn_implementation = attention
    made = getattr(transformers, MODELS[kind])(config)
    for parameter in made.parameters():  # so that attention is not nearly uniform
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.4)
    return made.eval()


def _inputs(kind: str, side: str) -> dict[str, Tensor]:
    place = torch.arange(LENGTH)
    lens = PADDED[:, None]
    mask = {"none": place.expand(BATCH, -1) >= 0, "right": place < lens, "left": place >= LENGTH - lens}[side]
    given = {"input_ids": IDS, "attention_mask": mask.long()}
    return given | ({"decoder_input_ids": IDS[:, :5]} if kind == "t5" else {})


def _weights(kind: str, found: Any) -> dict[str, Tensor]:
    """The model's own weights, by what stands in the names of the modules."""
    if kind != "t5":
        return {str(i): w for i, w in enumerate(found.attentions)}
    named = {"encoder.block.{}.layer.0": found.encoder_attentions, "decoder.block.{}.layer.0": found.decoder_attentions,
             "decoder.block.{}.layer.1": found.cross_attentions}  # fmt: skip
    return {name.format(i): w for name, each in named.items() for i, w in enumerate(each)}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_logits_and_recorded_weights_are_those_of_eager_attention(kind: str, side: str) -> None:
    given, eager = _inputs(kind, side), model(kind, "eager")
    right = eager(**given, output_attentions=True)
    ours = model(kind, "dikkat")
    with dikkat.record(ours, rows=range(LENGTH if kind != "t5" else 0), sums=True, top_k=2) as trace:
        found = ours(**given)
    real = given["attention_mask"].bool() if kind != "t5" else torch.ones(BATCH, 5, dtype=torch.bool)
    torch.testing.assert_close(found.logits[real], right.logits[real], rtol=1e-4, atol=1e-4)
    weights = _weights(kind, right)
    assert len(trace.names) == len(weights)
    for name, (key, each) in zip(_in_order(kind, trace), sorted(weights.items()), strict=True):
        assert key in name
        seen = trace[name]
        queries = given["attention_mask"].bool() if each.shape[-2] == LENGTH else torch.ones(BATCH, 5).bool()
        live = queries[:, None, :, None]
        top = each.sort(-1, descending=True).values[..., :2]
        torch.testing.assert_close(seen.top_weights * live, top * live, rtol=1e-4, atol=1e-5)
        if kind != "t5":
            torch.testing.assert_close(seen.rows * live, each * live, rtol=1e-4, atol=1e-5)
        if bool(queries.all()):
            torch.testing.assert_close(seen.sums, each.sum(-2), rtol=1e-4, atol=1e-4)


def _in_order(kind: str, trace: dikkat.Trace) -> list[str]:
    return sorted(trace.names)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "t5"])
def test_generation_with_a_cache_and_padding_on_the_left(kind: str) -> None:
    given = {"input_ids": IDS, "attention_mask": _inputs(kind, "left")["attention_mask"]}
    more = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, "output_logits": True}
    right, found = (
        model(kind, attention).generate(**given, **more, return_dict_in_generate=True)
        for attention in ("eager", "dikkat")
    )
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(right.logits), rtol=1e-3, atol=1e-3)
    assert torch.equal(found.sequences, right.sequences)


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_gradients_are_those_of_eager_attention(kind: str) -> None:
    given, found = _inputs(kind, "right"), []
    for attention in ("eager", "dikkat"):
        made = model(kind, attention)
        loss = made(**given).logits[0].square().mean()
        found.append(torch.autograd.grad(loss, list(made.parameters()), allow_unused=True))
    for ours, right in zip(*found, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-3, atol=1e-4)


def test_a_function_without_masks_would_lose_them() -> None:
    """What transformers does with a name that has no mask function, and why ours has one."""
    transformers.AttentionInterface.register("bare", _forward)
    given = _inputs("gpt2", "left")
    right = model("gpt2", "eager")(**given).logits[2, -1]
    assert not torch.allclose(model("gpt2", "bare")(**given).logits[2, -1], right, atol=1e-2)
    torch.testing.assert_close(model("gpt2", "dikkat")(**given).logits[2, -1], right, rtol=1e-4, atol=1e-4)


def test_weights_are_returned_where_they_are_asked_for() -> None:
    given = _inputs("llama", "none")
    right = model("llama", "eager")(**given, output_attentions=True).attentions
    found = model("llama", "dikkat")(**given, output_attentions=True).attentions
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


def test_recorded_with_pytorchs_attention_too() -> None:
    given = _inputs("llama", "right")
    traces = []
    for attention in ("sdpa", "dikkat"):
        made = model("llama", attention)
        with dikkat.record(made, top_k=3) as trace:
            made(**given)
        traces.append(trace)
    assert traces[0].names == traces[1].names
    for name in traces[0].names:
        torch.testing.assert_close(traces[0][name].top_weights, traces[1][name].top_weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("training", [False, True])
def test_eager_attention_is_recorded_too(kind: str, training: bool) -> None:
    given, eager = _inputs(kind, "left"), model(kind, "eager").train(training)
    torch.manual_seed(3)
    right = eager(**given).logits
    torch.manual_seed(3)
    with dikkat.record(eager, sums=True, rows=[0, -1]) as trace:
        assert torch.equal(eager(**given).logits, right)
    weights = _weights(kind, eager.eval()(**given, output_attentions=True))
    assert len(trace) == len(weights)
    for name, (key, each) in zip(sorted(trace.names), sorted(weights.items()), strict=True):
        assert key in name
        if not training:
            torch.testing.assert_close(trace[name].sums, each.sum(-2), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(trace[name].rows, each[..., [0, -1], :], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(trace[name].sums.sum(-1), each.sum((-2, -1)), rtol=1e-5, atol=1e-5)  # no dropout


def test_nested_recordings_both_see_eager_attention() -> None:
    given, eager = _inputs("gpt2", "left"), model("gpt2", "eager").eval()
    with dikkat.record(eager, sums=True) as outer, dikkat.record(eager, sums=True) as inner:
        eager(**given)
    assert len(outer) == len(inner) > 0
    assert all(torch.equal(outer[name].sums, inner[name].sums) for name in inner.names)


def test_sinks_are_no_keys() -> None:
    config = transformers.GptOssConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=4, num_local_experts=2, num_experts_per_tok=1, max_position_embeddings=29,
        attn_implementation="eager",
    )  # fmt: skip
    made = transformers.GptOssForCausalLM(config).eval()
    with dikkat.record(made, sums=True) as trace:
        found = made(input_ids=IDS, output_attentions=True)
    assert len(trace) == 2
    for name, weights in zip(sorted(trace.names), found.attentions, strict=True):
        torch.testing.assert_close(trace[name].sums, weights.sum(-2), rtol=1e-5, atol=1e-5)


def test_an_attention_that_is_not_seen_is_said_to_be_none() -> None:
    def own(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *more: Any, **named: Any) -> Any:
        weights = nn.functional.softmax(query @ key.mT, dim=-1)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    transformers.AttentionInterface.register("own", own)
    made = model("gpt2", "own")
    with pytest.raises(ValueError, match=r"attn_implementation='dikkat', 'sdpa' or 'eager'.*GPT2Attention"):  # noqa: SIM117
        with dikkat.record(made, sums=True):
            made(**_inputs("gpt2", "none"))


def test_a_softmax_of_ones_own_is_not_taken_for_attention() -> None:
    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.softmax(x, dim=-1)

    with pytest.raises(ValueError, match="no attention was seen"), dikkat.record(Gate(), sums=True):
        nn.functional.softmax(torch.zeros(3), dim=-1)


@pytest.mark.parametrize("more", [{"softcap": 50.0}, {"s_aux": torch.zeros(2)}])
def test_what_is_not_served_is_refused(more: dict[str, Any]) -> None:
    x = torch.zeros(1, 2, 3, 5)
    with pytest.raises(ValueError, match=rf"{next(iter(more))}: got .* from Linear; expected None: .* 'eager' does"):
        _forward(nn.Linear(3, 3), x, x, x, None, **more)
