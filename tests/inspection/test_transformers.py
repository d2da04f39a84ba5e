"""Hugging Face's models, from tiny configurations with random weights, beside their own eager attention."""

import copy
import inspect
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dikkat
from dikkat import huggingface
from dikkat.huggingface import _forward, _mask

transformers = pytest.importorskip("transformers")
from stress import transformers_walk as walk  # noqa: E402

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
    for name, (key, each) in zip(sorted(trace.names), sorted(weights.items()), strict=True):
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


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "t5"])
@pytest.mark.parametrize(("cache", "side"), [("dynamic", "left"), ("static", "none"), ("static", "left")])
def test_generation_with_a_cache(kind: str, cache: str, side: str) -> None:
    given = {"input_ids": IDS, "attention_mask": _inputs(kind, side)["attention_mask"]}
    more = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, "output_logits": True}
    if cache == "static":
        more |= {"cache_implementation": "static", "disable_compile": True}
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
    for name, (key, own) in zip(sorted(trace.names), sorted(weights.items()), strict=True):
        each = own
        assert key in name
        if kind in ("gpt2", "llama", "mistral"):  # a query that sees no key has no weights, where "eager" has the mean
            each = each * given["attention_mask"][:, None, :, None]
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


def test_a_sink_that_scales_rows_afterwards_hides_no_key() -> None:
    config = transformers.GraniteSWAConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=29, pad_token_id=0,
    )  # fmt: skip
    made = transformers.GraniteSWAForCausalLM(config).eval()
    for name, parameter in made.named_parameters():
        if name.endswith(("sinks", "q_proj.weight")):
            nn.init.normal_(parameter, std=2.0)
    sums = {}
    for impl in ("eager", "dikkat"):
        made.set_attn_implementation(impl)
        with dikkat.record(made, sums=True) as trace:
            made(input_ids=IDS)
        sums[impl] = [trace[name].sums for name in sorted(trace.names)]
    assert len(sums["eager"]) == 2
    torch.testing.assert_close(sums["eager"], sums["dikkat"], rtol=1e-4, atol=1e-5)


def test_an_attention_function_of_ones_own_is_recorded() -> None:
    found: list[Tensor] = []

    def own(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *more: Any, **named: Any) -> Any:
        found.append(nn.functional.softmax(query @ key.mT, dim=-1))
        return (found[-1] @ value).transpose(1, 2).contiguous(), found[-1]

    transformers.AttentionInterface.register("own", own)
    made = model("gpt2", "own")
    with dikkat.record(made, weights=True) as trace:
        made(**_inputs("gpt2", "none"))
    torch.testing.assert_close(list(trace.attentions()), found, rtol=0, atol=0)
    assert "by its own softmax" in repr(trace)


def test_a_softmax_of_ones_own_is_not_taken_for_attention() -> None:
    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.softmax(x, dim=-1)

    with pytest.raises(ValueError, match="no attention ran"), dikkat.record(Gate(), sums=True):
        nn.functional.softmax(torch.zeros(3), dim=-1)


def test_soft_caps_and_sinks_are_those_of_eager_attention() -> None:
    sizes: dict[str, Any] = {
        "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "pad_token_id": 0,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 29,
        "sliding_window": 3,
    }  # fmt: skip
    capped = transformers.Gemma2Config(**sizes, attn_logit_softcapping=0.5)
    sunk = transformers.GptOssConfig(**sizes, num_local_experts=2, num_experts_per_tok=1)
    for config in (capped, sunk):
        torch.manual_seed(3)
        made = transformers.AutoModelForCausalLM.from_config(config).eval()
        for name, parameter in made.named_parameters():
            if name.endswith(("sinks", "q_proj.weight")):
                nn.init.normal_(parameter, std=2.0)
        found = {}
        for impl in ("eager", "dikkat"):
            made.set_attn_implementation(impl)
            made.zero_grad()
            logits = made(input_ids=IDS).logits
            logits.square().sum().backward()
            found[impl] = logits, {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
        torch.testing.assert_close(found["dikkat"], found["eager"], rtol=1e-4, atol=1e-5)
        assert any("sinks" in name for name in found["dikkat"][1]) == (config is sunk)


@pytest.mark.parametrize("name", ["sinks", "indices", "block_indices", "cache", "something_new"])
def test_what_is_not_served_is_refused(name: str) -> None:
    x = torch.zeros(1, 2, 3, 5)
    with pytest.raises(ValueError, match=rf"{name}: got Tensor from Linear; expected None, because .*; use 'eager'"):
        _forward(nn.Linear(3, 3), x, x, x, None, **{name: torch.zeros(2)})


HANDED_ON = [
    ("bert", {"output_hidden_states": [1]}),
    ("gpt2", {"labels": IDS, "shift_labels": IDS}),
    ("llama", {"output_hidden_states": [0, 2]}),
    ("llama", {"labels": IDS, "ignore_index": int(IDS[0, 5])}),
    ("llama", {"labels": IDS, "shift_labels": IDS}),
]


@pytest.mark.parametrize(("kind", "more"), HANDED_ON)
def test_what_the_loss_and_the_recorder_take_reaches_them(kind: str, more: dict[str, Any]) -> None:
    right, found = (model(kind, attention)(IDS, **more) for attention in ("eager", "dikkat"))
    for name in right.keys() - {"past_key_values"}:
        torch.testing.assert_close(found[name], right[name], rtol=1e-4, atol=1e-4)
    if "labels" in more:
        assert found.loss != model(kind, "dikkat")(IDS, labels=IDS).loss


def test_all_that_a_model_hands_on_to_its_loss_is_let_through() -> None:
    losses = transformers.loss.loss_utils.LOSS_MAPPING
    names = {
        each.name
        for loss in ("ForCausalLM", "ForMaskedLM", "ForSemanticSegmentation")
        for each in inspect.signature(losses[loss]).parameters.values()
        if each.default is not each.empty
    }
    general = set(transformers.utils.TransformersKwargs.__annotations__)
    assert "num_items_in_batch" in names & general
    x = torch.zeros(1, 2, 3, 5)
    for name in (names | general) - {"is_causal"}:  # which is a flag, of the masks
        _forward(nn.Linear(3, 3), x, x, x, None, **{name: torch.ones(2, dtype=torch.int64).sum()})


def test_a_layer_that_joins_numbers_to_its_mask_is_refused() -> None:
    x, layer = torch.zeros(1, 2, 3, 5), nn.Linear(3, 3)
    layer.compressor = nn.Identity()
    with pytest.raises(ValueError, match=r"compressor: got Identity from Linear; expected None"):
        _forward(layer, x, x, x, None)


@pytest.mark.parametrize(
    "kind",
    ["big_bird", "bigbird_pegasus", "bloom", "codegen", "data2vec-vision", "falcon", "gpt_neox_japanese", "gptj", "led",
     "megatron-bert", "mpt", "mvp", "nllb-moe", "openai-gpt", "pegasus_x", "sam"],
)  # fmt: skip
def test_a_model_that_attends_by_itself_is_refused_before_it_is_made(kind: str) -> None:
    config = transformers.CONFIG_MAPPING[kind]()
    refused = pytest.raises(ValueError, match=r"attn_implementation: got 'dikkat' for \w+; expected 'eager'")
    with torch.device("meta"), refused:
        transformers.AutoModel.from_config(config, attn_implementation="dikkat")


def test_a_model_that_attends_by_itself_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    config = transformers.BloomConfig(vocab_size=WORDS, hidden_size=12, n_layer=1, n_head=3)
    transformers.BloomForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="got 'dikkat' for BloomForCausalLM; expected 'eager'"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="dikkat")


def test_a_model_that_attends_by_itself_is_refused_when_it_is_changed() -> None:
    config = transformers.SwitchTransformersConfig(
        vocab_size=WORDS, d_model=12, d_kv=5, d_ff=17, num_layers=1, num_decoder_layers=1, num_heads=3, num_experts=2
    )
    made = transformers.SwitchTransformersModel(config)
    with pytest.raises(ValueError, match="got 'dikkat' for SwitchTransformersModel; expected 'eager'"):
        made.set_attn_implementation("dikkat")
    bloom = transformers.BloomModel(transformers.BloomConfig(vocab_size=WORDS, hidden_size=12, n_layer=1, n_head=3))
    bloom.set_attn_implementation("dikkat")  # of such, transformers warns, and leaves them as they are
    assert bloom.config._attn_implementation == "eager"


def test_a_model_changed_to_dikkat_computes_with_it() -> None:
    made, given = model("llama", "eager"), _inputs("llama", "left")
    right = made(**given).logits
    made.set_attn_implementation("dikkat")
    with dikkat.record(made, sums=True) as trace:
        found = made(**given).logits
    assert made.config._attn_implementation == "dikkat"
    assert trace[trace.names[0]].lse is not None  # which eager attention does not have
    torch.testing.assert_close(found[0], right[0], rtol=1e-4, atol=1e-4)


def test_chosen_keys_are_refused() -> None:
    cls, config = transformers.DeepseekV32ForCausalLM, walk.shrink(transformers.DeepseekV32Config(), "paired")
    with pytest.raises(ValueError, match="indices: got Tensor from DeepseekV32Attention; expected None"):
        walk.made(cls, config, "dikkat")(input_ids=IDS)


def test_a_static_cache_without_a_mask() -> None:
    found = []
    for attention in ("eager", "dikkat"):
        made = model("llama", attention)
        cache = transformers.StaticCache(made.config, max_cache_len=23)
        steps = [made(input_ids=ids, past_key_values=cache).logits for ids in IDS.split([6, 1, 4], dim=1)]
        found.append(torch.cat(steps, dim=1))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_mask_of_numbers_is_taken_as_it_is(kind: str) -> None:
    prefix = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    prefix[:, :4] = True  # the first four see each other
    mask = torch.where(prefix, 0.25, torch.finfo(torch.float32).min).expand(BATCH, 1, -1, -1)
    right, found = (model(kind, each)(input_ids=IDS, attention_mask=mask).logits for each in ("eager", "dikkat"))
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


KINDS = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")


def _told(found: dikkat.Attentions) -> dict[str, Any]:
    """Weights by the names that transformers gives them."""
    if not found.cross_attentions:
        return {"attentions": found}
    own = {"decoder_attentions": found, "cross_attentions": found.cross_attentions}
    return own | {"encoder_attentions": found.encoder_attentions}


def _equal(found: Any, right: Any) -> None:
    """Weights in tuples of tuples; only queries that see a key count."""
    if isinstance(right, tuple):
        assert isinstance(found, tuple)
        assert len(found) == len(right)
        for one, other in zip(found, right, strict=True):
            _equal(one, other)
    else:
        assert found.shape == right.shape
        live = found.sum(-1, keepdim=True) > 0.5
        torch.testing.assert_close(found, right * live, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("attention", ["dikkat", "sdpa", "eager"])
@pytest.mark.parametrize("side", ["none", "left"])
def test_attentions_are_those_of_eager(kind: str, attention: str, side: str) -> None:
    given = _inputs(kind, side)
    right = model(kind, "eager")(**given, output_attentions=True)
    found = _told(dikkat.attentions(model(kind, attention), **given))
    assert found.keys() == {name for name in KINDS if right.get(name)}
    for name, weights in found.items():
        _equal(tuple(weights), right[name])


@pytest.mark.parametrize("kind", ["llama", "mistral", "t5"])
@pytest.mark.parametrize("attention", ["dikkat", "sdpa", "eager"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_attentions_of_a_generation_are_those_of_eager(kind: str, attention: str, cache: str) -> None:
    given = {"input_ids": IDS, "attention_mask": _inputs(kind, "left")["attention_mask"]}
    more = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, "disable_compile": True}
    more |= {"cache_implementation": "static"} if cache == "static" else {}
    told = {"output_attentions": True, "return_dict_in_generate": True}
    right = model(kind, "eager").generate(**given, **more, **told)
    made = model(kind, attention)
    with dikkat.record(made, layers=-1, heads=[1, 2], weights=True) as trace:
        made.generate(**given, **more)
    for name, weights in _told(trace.attentions()).items():
        steps = [right[name]] if name == "encoder_attentions" else right[name]
        found = [weights] if name == "encoder_attentions" else weights
        assert len(found) == len(steps)
        for one, other in zip(found, steps, strict=True):
            _equal(tuple(one), (other[-1][:, [1, 2]],))


def test_of_two_towers_the_words_are_in_the_tuple_and_both_by_name() -> None:
    for cls in walk.classes("llava"):
        _, eager, given, _ = walk.prepared(cls, "llava")
        pictures = torch.randn(3, 3, *[eager.config.vision_config.image_size] * 2)
        size = eager.get_image_features(pixel_values=pictures).pooler_output[0].shape[-2]
        ids = torch.cat([torch.full((3, size), eager.config.image_token_id), given["input_ids"]], 1)
        both = {"input_ids": ids, "pixel_values": pictures, "attention_mask": torch.ones_like(ids)}
        _equal(tuple(dikkat.attentions(eager, **both)), eager(**both, output_attentions=True).attentions)
        assert {name.split(".")[1] for name in dikkat.attentions(eager, **both).by_name} == {
            "vision_tower",
            "language_model",
        }
        found = dikkat.attentions(eager, layers="*vision_tower*", **both)
        assert len(found) == 0
        assert len(found.by_name) > 1


def test_of_a_stage_of_several_blocks_the_last_is_in_the_tuple() -> None:
    """The table of what Swin returns is that of a model within it."""
    config = transformers.SwinConfig(
        image_size=28, patch_size=7, embed_dim=6, depths=[3, 2], num_heads=[2, 3], window_size=2,
        attn_implementation="eager",
    )  # fmt: skip
    model, x = transformers.SwinModel(config).eval(), torch.randn(2, 3, 28, 28)
    found = dikkat.attentions(model, x)
    _equal(tuple(found), model(x, output_attentions=True).attentions)
    assert len(found.by_name) == 5


def _softmax(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """Weights by their definition, in double precision."""
    return (query.double() @ key.double().mT / query.shape[-1] ** 0.5 + bias.double()).softmax(-1)


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("biased_heads", [0, 1, 6])
@pytest.mark.parametrize("masked_heads", [1, 6])
def test_heads_that_share_keys(queries: int, biased_heads: int, masked_heads: int) -> None:
    query, key, value = torch.randn(3, 6, queries, 7), torch.randn(3, 2, 11, 7), torch.randn(3, 2, 11, 13)
    mask = torch.rand(3, masked_heads, queries, 11) < 0.7
    mask[..., 0] = True
    bias = torch.randn(1, biased_heads, queries, 11) if biased_heads else None
    hidden = torch.where(mask, 0.0, -torch.inf)
    weights = _softmax(query, key.repeat_interleave(3, 1), hidden if bias is None else hidden + bias)
    output, found = _forward(nn.Linear(3, 3), query, key, value, mask, position_bias=bias, output_attentions=True)
    expected = (weights @ value.double().repeat_interleave(3, 1)).transpose(1, 2)
    torch.testing.assert_close(output, expected.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found, weights.float(), rtol=1e-5, atol=1e-5)


def test_masks_without_heads_broadcast_over_shared_keys() -> None:
    query, key, value = torch.randn(3, 6, 1, 7), torch.randn(3, 2, 12, 7), torch.randn(3, 2, 12, 13)
    mask, bias = torch.rand(1, 12) < 0.7, torch.randn(6, 1, 12)
    weights = _softmax(query, key.repeat_interleave(3, 1), torch.where(mask, bias, -torch.inf))
    output, found = _forward(nn.Linear(3, 3), query, key, value, mask, position_bias=bias, output_attentions=True)
    torch.testing.assert_close(found, weights.float(), rtol=1e-5, atol=1e-5)
    expected = (weights @ value.double().repeat_interleave(3, 1)).transpose(1, 2)
    torch.testing.assert_close(output, expected.float(), rtol=1e-5, atol=1e-5)


def test_a_position_bias_and_a_mask_of_numbers_add_up() -> None:
    query, key, value = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 11, 7), torch.randn(2, 3, 11, 13)
    bias, mask = torch.randn(1, 3, 5, 11), torch.randn(2, 1, 5, 11)
    weights = _softmax(query, key, bias + mask)
    output, found = _forward(nn.Linear(3, 3), query, key, value, mask, position_bias=bias, output_attentions=True)
    torch.testing.assert_close(output, (weights @ value.double()).transpose(1, 2).float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found, weights.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("of_module", [False, True])
@pytest.mark.parametrize("of_call", [None, False, True])
def test_only_a_mask_hides(biased: bool, of_module: bool, of_call: bool | None) -> None:
    """In eager attention too; PyTorch's function, for which masks are left out, is told of causality otherwise."""
    query, key, value = torch.randn(2, 3, 5, 7), torch.randn(2, 3, 5, 7), torch.randn(2, 3, 5, 13)
    module, bias = nn.Linear(3, 3), torch.randn(1, 3, 5, 5) if biased else None
    module.is_causal = of_module
    later = torch.full((5, 5), -torch.inf).triu(1)
    for mask, hidden in ((None, torch.zeros(())), (_mask(q_length=5, kv_length=5, batch_size=2), later)):
        weights = _softmax(query, key, hidden if bias is None else hidden + bias)
        output, _ = _forward(module, query, key, value, mask, position_bias=bias, is_causal=of_call)
        torch.testing.assert_close(output, (weights @ value.double()).transpose(1, 2).float(), rtol=1e-5, atol=1e-5)


def test_a_layer_that_denies_its_causality_gets_the_mask() -> None:
    """AIMv2's text is causal, which its layers do not say: transformers' "sdpa" shows them what comes later."""
    config = transformers.Aimv2TextConfig(
        vocab_size=WORDS, hidden_size=12, intermediate_size=17, num_hidden_layers=2, num_attention_heads=3,
        max_position_embeddings=29,
    )  # fmt: skip
    given, cls = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, transformers.Aimv2TextModel
    right, found = (walk.made(cls, config, each)(**given).last_hidden_state for each in ("eager", "dikkat"))
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


def test_causality_alone_is_computed_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mask of all pairs in each layer."""
    seen = []

    def spied(*given: Any, mask: Tensor | None, causal: bool, **more: Any) -> Any:
        seen.append((mask is None, causal))
        return dikkat.attend(*given, mask=mask, causal=causal, **more)

    monkeypatch.setattr(huggingface, "attend", spied)
    made = model("llama", "dikkat")
    made(**_inputs("llama", "none"))
    made(**_inputs("llama", "left"))
    assert seen == [(True, True)] * 2 + [(False, False)] * 2


@pytest.mark.parametrize("biased", [False, True])
def test_dropout_drops_as_many_weights_as_it_says(biased: bool) -> None:
    query, key, drop = torch.randn(2, 3, 17, 7), torch.randn(2, 3, 101, 7), 0.3
    bias = torch.randn(1, 3, 17, 101) if biased else None
    weights = _softmax(query, key, bias if bias is not None else torch.zeros(())).float().transpose(1, 2)
    value = torch.eye(101).expand(2, 3, -1, -1)  # so that the output is the weights
    output, _ = _forward(nn.Linear(3, 3), query, key, value, None, drop, position_bias=bias, is_causal=False)
    kept = output != 0
    torch.testing.assert_close(output, weights / (1 - drop) * kept, rtol=1e-4, atol=1e-6)
    assert abs(kept.double().mean() - (1 - drop)) < 5 * (drop * (1 - drop) / kept.numel()) ** 0.5


def test_a_model_in_training_drops_weights() -> None:
    made = model("gpt2", "dikkat").train()
    for module in made.modules():
        if isinstance(module, nn.Dropout) and module is not made.transformer.h[0].attn.attn_dropout:
            module.p = 0.0
    made.transformer.h[0].attn.attn_dropout.p = 0.5
    given = _inputs("gpt2", "none")
    assert not torch.allclose(made(**given).logits, made(**given).logits, atol=1e-3)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "t5"])
@pytest.mark.parametrize("side", ["none", "right"])
def test_weights_are_returned_by_every_layer(kind: str, side: str) -> None:
    given = _inputs(kind, side)
    right, found = (model(kind, each)(**given, output_attentions=True) for each in ("eager", "dikkat"))
    assert len(_weights(kind, right)) == (6 if kind == "t5" else 2)
    torch.testing.assert_close(_weights(kind, found), _weights(kind, right), rtol=1e-4, atol=1e-5)
    assert not any("attentions" in name for name in model(kind, "dikkat")(**given))  # unless they are asked for


@pytest.mark.parametrize("kind", ["clip", "gemma3_text", "modernbert", "opt", "qwen2", "vit", "wav2vec2", "whisper"])
def test_a_model_of_the_walk_is_as_eager(kind: str) -> None:
    for cls in walk.classes(kind):
        row = walk.walked(cls, kind)
        assert row["result"] == "equal", row


def small_of(kind: str, **settings: Any) -> Any:
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=29, hidden_size=16, intermediate_size=11, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=8, **settings,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="dikkat").eval()


def test_a_layer_that_attends_twice_is_asked_for_its_weights() -> None:
    model, ids = small_of("diffllama"), torch.tensor([[3, 1, 4, 1, 5]])
    config = model.config.__class__(**model.config.to_dict() | {"attn_implementation": "eager"})
    eager = type(model)._from_config(config, attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    found = dikkat.attentions(model, input_ids=ids)
    torch.testing.assert_close([*found], [*eager(input_ids=ids, output_attentions=True).attentions])
    assert found.source == "returned by the model"
    with torch.no_grad(), dikkat.record(model, weights=True) as trace:
        model(input_ids=ids)
    assert trace["model.layers.1.self_attn", -1].weights.shape == (1, 2, 5, 5)
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn' attended several times in one layer.*use trace"):
        trace.attentions()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_model_with_adapters_is_the_model_in_it() -> None:
    peft = pytest.importorskip("peft")
    ids, base = IDS[:1], model("llama", "sdpa")
    right = dikkat.attentions(base, input_ids=ids)
    made = peft.get_peft_model(base, peft.LoraConfig(target_modules=["q_proj"])).eval()
    found = dikkat.attentions(made, input_ids=ids)
    torch.testing.assert_close(list(found), list(right), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["original_full", "block_sparse"])
def test_weights_of_a_model_that_attends_by_itself(kind: str) -> None:
    config = transformers.BigBirdConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=256, attention_type=kind, block_size=4, num_random_blocks=1,
    )  # fmt: skip
    made, ids = transformers.BigBirdModel(config).eval(), torch.randint(3, WORDS, (2, 64))
    right = made(input_ids=ids, output_attentions=True).attentions
    found = dikkat.attentions(made, input_ids=ids, heads=[1])
    torch.testing.assert_close(list(found), [each[:, [1]] for each in right], rtol=1e-5, atol=1e-6)
    assert found.source == ("by its own softmax" if kind == "original_full" else "returned by the model")


@pytest.mark.parametrize("kind", ["timesformer", "donut-swin"])
def test_a_model_whose_layers_attend_several_times_is_asked_for_its_weights(kind: str) -> None:
    """TimeSformer attends over time and space in each layer and returns those over space; Donut one of each stage."""
    if kind == "timesformer":
        config: Any = transformers.TimesformerConfig(
            image_size=8, patch_size=4, num_frames=2, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=8,
        )  # fmt: skip
        made: Any = transformers.TimesformerModel(config).eval()
    else:
        config = transformers.DonutSwinConfig(
            image_size=32, patch_size=4, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4
        )
        made = transformers.DonutSwinModel(config).eval()
    images = torch.randn(2, 2, 3, 8, 8) if kind == "timesformer" else torch.randn(2, 3, 32, 32)
    right = made(pixel_values=images, output_attentions=True).attentions
    found = dikkat.attentions(made, pixel_values=images)
    torch.testing.assert_close(list(found), list(right), rtol=1e-5, atol=1e-6)
    assert (found.source, len(found.by_name)) == ("returned by the model", 4)


@pytest.mark.filterwarnings("ignore")
def test_maps_of_pooled_queries_are_not_square() -> None:
    config = transformers.FunnelConfig(
        vocab_size=50, block_sizes=[2, 2], d_model=16, n_head=2, d_head=8, d_inner=16, num_decoder_layers=1
    )
    model, ids = transformers.FunnelModel(config).eval(), torch.tensor([[4, 7, 9, 5, 11, 6, 8]])
    right, found = model(ids, output_attentions=True).attentions, dikkat.attentions(model, ids)
    torch.testing.assert_close(list(found), list(right), rtol=1e-5, atol=1e-6)
    assert any(weights.shape[-1] != weights.shape[-2] for weights in found)


SIDES = {
    "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8, "decoder_ffn_dim": 8,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_correlations_are_no_maps_even_if_they_are_square() -> None:
    config = transformers.AutoformerConfig(
        prediction_length=4, context_length=8, label_length=4, lags_sequence=[1], num_time_features=1, d_model=16,
        **SIDES,
    )  # fmt: skip
    made, values, times = transformers.AutoformerModel(config).eval(), torch.randn(2, 13), torch.randn(2, 13, 1)
    given = {
        "past_values": values[:, :9], "past_time_features": times[:, :9], "past_observed_mask": torch.ones(2, 9),
        "future_values": values[:, 9:], "future_time_features": times[:, 9:],
    }  # fmt: skip
    assert made(**given, output_attentions=True).decoder_attentions[0].shape == (2, 2, 8, 8)
    with pytest.raises(ValueError, match="attentions: model: got AutoformerModel, in which no attention ran"):
        dikkat.attentions(made, **given)


@pytest.mark.filterwarnings("ignore:record", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["led", "led with a global token", "deformable_detr"])
def test_windows_of_an_encoder_are_left_out_with_a_warning(kind: str) -> None:
    if kind == "deformable_detr":  # the weights of its encoder and of cross attention are those of sampled points
        backbone = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1],
            out_features=["stage2", "stage3", "stage4"],
        )  # fmt: skip
        points = transformers.DeformableDetrConfig(backbone_config=backbone, d_model=32, num_queries=5, **SIDES)
        made: Any = transformers.DeformableDetrModel(points).eval()
        given = {"pixel_values": torch.randn(2, 3, 128, 128)}
    else:
        windows = transformers.LEDConfig(
            vocab_size=WORDS, d_model=16, attention_window=4, max_encoder_position_embeddings=64,
            max_decoder_position_embeddings=64, **SIDES,
        )  # fmt: skip
        made, ids = transformers.LEDModel(windows).eval(), torch.randint(3, WORDS, (2, 16))
        given = {"input_ids": ids, "decoder_input_ids": ids[:, :5]}
        given |= {"global_attention_mask": torch.eye(1, 16, dtype=torch.long).expand(2, -1)} if kind != "led" else {}
    with pytest.warns(UserWarning, match="attentions: left out encoder_attentions.*, for which "):
        found = dikkat.attentions(made, **given)
    made.set_attn_implementation("eager")
    right = made(**given, output_attentions=True)
    cross = right.cross_attentions if kind != "deformable_detr" else ()
    torch.testing.assert_close([*found, *found.cross_attentions], [*right.decoder_attentions, *cross])
    assert (len(found), len(found.cross_attentions), found.encoder_attentions) == (2, len(cross), ())


@pytest.mark.filterwarnings("ignore")
def test_weights_of_a_model_that_draws_keys_are_of_one_run() -> None:
    torch.manual_seed(0)
    config = transformers.InformerConfig(
        prediction_length=4, context_length=8, lags_sequence=[1], num_time_features=1, d_model=16, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8,
    )  # fmt: skip
    made, values, times = transformers.InformerModel(config).eval(), torch.randn(2, 13), torch.randn(2, 13, 1)
    given = {
        "past_values": values[:, :9], "past_time_features": times[:, :9], "past_observed_mask": torch.ones(2, 9),
        "future_values": values[:, 9:], "future_time_features": times[:, 9:],
    }  # fmt: skip
    torch.manual_seed(1)
    right = made(**given, output_attentions=True)
    torch.manual_seed(1)
    found = dikkat.attentions(made, **given)
    assert found.source == "returned by the model"
    torch.testing.assert_close([*found, *found.cross_attentions], [*right.decoder_attentions, *right.cross_attentions])
    torch.testing.assert_close([*found.encoder_attentions], [*right.encoder_attentions])


# --- changes, beside eager attention whose softmax is edited by hand

SPAN, MASS, FACTOR = slice(1, 4), 0.6, 5.0
CHANGES: dict[str, dict[str, Any]] = {
    "cut": {"cut": True},
    "edges": {"edges": (slice(3, 9), 2)},
    "mass": {"spans": {"a": SPAN}, "mass": MASS},
    "scale": {"spans": {"a": SPAN}, "scale": {"a": FACTOR}},
}


def _edit_softmax(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Edit the weights of heads 0 and 2 within PyTorch's softmax, which "eager" attention calls."""
    real = nn.functional.softmax

    def softmax(logits: Tensor, dim: int = -1, **options: Any) -> Tensor:
        weights = real(logits, dim=dim, **options)
        n, m = weights.shape[-2:]
        visible = logits > torch.finfo(logits.dtype).min / 2
        inside = torch.zeros(m, dtype=torch.bool)
        inside[SPAN] = True
        new = torch.zeros_like(weights)
        if change == "edges":
            query = torch.arange(n)[:, None] + m - n
            cut = (query >= 3) & (query < 9) & (torch.arange(m) == 2)
            new = weights.masked_fill(cut, 0.0)
            new = new / new.sum(-1, keepdim=True)
        elif change == "scale":
            new = weights * torch.where(inside, FACTOR, 1.0)
            new = new / new.sum(-1, keepdim=True)
        elif change == "mass":
            span, rest = ((weights * part).sum(-1, keepdim=True) for part in (inside, ~inside))
            new = torch.where(inside, MASS * weights / span, (1 - MASS) * weights / rest)
            both = (visible & inside).any(-1, keepdim=True) & (visible & ~inside).any(-1, keepdim=True)
            new = torch.where(both, new, weights)
        chosen = torch.tensor([head in (0, 2) for head in range(weights.shape[1])])[:, None, None]
        return torch.where(chosen, new, weights)

    monkeypatch.setattr(nn.functional, "softmax", softmax)


# The edited softmax does not know the positions of cross attention.
@pytest.mark.parametrize(("kind", "change"), sorted({*product(MODELS, CHANGES)} - {("t5", "edges")}))
def test_changed_logits_are_those_of_an_edited_softmax(kind: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, found = _inputs(kind, "right"), {}
    for attention in ("eager", "sdpa", "dikkat"):
        ours = model(kind, attention)
        with dikkat.change(ours, heads=[0, 2], **CHANGES[change]):
            found[attention] = ours(**given).logits
    _edit_softmax(monkeypatch, change)
    right = model(kind, "eager")(**given).logits
    real = given["attention_mask"].bool() if kind != "t5" else torch.ones(BATCH, 5, dtype=torch.bool)
    for attention, logits in found.items():
        torch.testing.assert_close(logits[real], right[real], rtol=1e-4, atol=1e-4, msg=attention)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("change", ["edges", "mass", "scale"])
def test_changed_generation_with_a_cache(kind: str, cache: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"input_ids": IDS, "attention_mask": _inputs(kind, "none")["attention_mask"]}
    more = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, "output_logits": True}
    static = {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
    found = []
    for attention in ("sdpa", "dikkat"):
        ours = model(kind, attention)
        with dikkat.change(ours, heads=[0, 2], **CHANGES[change]):
            found.append(ours.generate(**given, **more, **static, return_dict_in_generate=True))
    _edit_softmax(monkeypatch, change)
    right = model(kind, "eager").generate(**given, **more, return_dict_in_generate=True)
    for each in found:
        torch.testing.assert_close(torch.stack(each.logits), torch.stack(right.logits), rtol=1e-3, atol=1e-3)
        assert torch.equal(each.sequences, right.sequences)
