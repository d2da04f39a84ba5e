"""The passages that written tokens read, against the weights of one eager run on the whole written text."""

import base64
import json
import re
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers")
from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402

import dikkat  # noqa: E402
from dikkat.inspection import generation as source  # noqa: E402
from dikkat.inspection.observation import Observation  # noqa: E402

dikkat.register_transformers()

WORDS = [
    "<s>",
    "</s>",
    "[UNK]",
    *["the", "red", "cat", "sat", "on", "a", "blue", "mat", ".", "why", "?", "猫", "在", "。", "user", "bot"],
]
PROMPT = "the red cat sat .\n\na blue mat .\n\nwhy the cat ?"
# Positions of the tokens by hand: <s> is 0.
POSITIONS = {"red cat": [1, 2, 3, 4, 5], "mat": [6, 7, 8, 9], "question": [10, 11, 12, 13]}
SPANS: dict[str, Any] = {"red cat": "the red cat sat .", "mat": (19, 31), "question": "why the cat ?"}
FIRST, REST, ANSWER = "first token", "rest of the prompt", "answer so far"


def tokenizer(first: bool = True) -> Any:
    made = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("。", "isolated")]
    )
    single = "<s> $A" if first else "$A </s>"
    made.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 0), ("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>", unk_token="[UNK]",
        chat_template="{{ bos_token }}{% for m in messages %}{{ m.role }} {{ m.content }} </s> {% endfor %}bot",
    )  # fmt: skip


@cache
def model(kind: str, attention: str = "sdpa") -> Any:
    torch.manual_seed(11)
    more = {"vocab_size": len(WORDS), "attn_implementation": attention, "bos_token_id": 0, "eos_token_id": None,
            "pad_token_id": 1}  # fmt: skip
    sizes = {"hidden_size": 24, "intermediate_size": 17, "num_hidden_layers": 2, "num_attention_heads": 6,
             "num_key_value_heads": 2, "max_position_embeddings": 59}  # fmt: skip
    if kind == "t5":
        made = transformers.T5ForConditionalGeneration(transformers.T5Config(
            d_model=12, d_kv=5, d_ff=17, num_layers=2, num_heads=3, decoder_start_token_id=0, **more))  # fmt: skip
    elif kind == "gpt2":
        made = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=12, n_layer=2, n_head=3, n_positions=59, **more)
        )
    elif kind == "mistral":
        made = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, **more, sliding_window=7))
    elif kind == "gpt_oss":
        made = transformers.GptOssForCausalLM(transformers.GptOssConfig(
            **sizes | {"hidden_size": 16, "intermediate_size": 8}, **more, head_dim=4, num_local_experts=2,
            num_experts_per_tok=1, sliding_window=7))  # fmt: skip
    else:
        made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **more))
    for name, parameter in made.named_parameters():
        if parameter.ndim == 2 or name.endswith("sinks"):
            torch.nn.init.normal_(parameter, std=0.4)
    made.generation_config.eos_token_id = None
    return made.eval()


def written(kind: str, prompt: str, **arguments: Any) -> Tensor:
    """The ids of a run of the eager model, (1, length); T5's begin with the start token."""
    inputs = tokenizer(kind != "t5")(prompt, return_tensors="pt")
    eager = model(kind, "eager")
    torch.manual_seed(0)
    return eager.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], **arguments)


def weights_of(kind: str, prompt: str, ids: Tensor) -> list[Tensor]:
    """The weights (heads, tokens, keys) of each layer: row t wrote token t."""
    eager, prompt_ids = model(kind, "eager"), tokenizer(kind != "t5")(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        if kind == "t5":
            output = eager(input_ids=prompt_ids, decoder_input_ids=ids[:, :-1], output_attentions=True)
            return [layer[0] for layer in output.cross_attentions]
        output = eager(input_ids=ids[:, :-1], output_attentions=True)
        return [layer[0, :, prompt_ids.shape[1] - 1 :] for layer in output.attentions]


SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "samples": {"do_sample": True},
    "beams": {"num_beams": 3, "do_sample": False},
    "beams, short texts": {"num_beams": 3, "length_penalty": -2.0},
    "static cache": {"cache_implementation": "static", "disable_compile": True, "do_sample": False},
    "no cache": {"use_cache": False, "do_sample": False},
}
SELECTIONS: dict[str, dict[str, Any]] = {
    "all": {}, "a layer": {"layers": 1}, "heads": {"heads": [2, 0]},
    "a head of the last layer": {"layers": -1, "heads": 1},
}  # fmt: skip
KINDS = ["llama", "gpt2", "mistral", "t5"]


@pytest.mark.parametrize(("kind", "search"), [*product(KINDS, SEARCHES)])
def test_masses_are_sums_of_eager_weights(kind: str, search: str) -> None:
    arguments: dict[str, Any] = {"max_new_tokens": 7, **SEARCHES[search]}
    ids = written(kind, PROMPT, **arguments)
    weights, start = weights_of(kind, PROMPT, ids), 1 if kind == "t5" else 14
    positions = POSITIONS if kind != "t5" else {name: [k - 1 for k in own] for name, own in POSITIONS.items()}
    groups = positions | ({REST: [13]} if kind == "t5" else {FIRST: [0], ANSWER: [*range(14, 14 + 6)]})
    for selection, chosen in SELECTIONS.items():
        torch.manual_seed(0)
        made = dikkat.show.generation(model(kind), tokenizer(kind != "t5"), PROMPT, spans=SPANS, **chosen, **arguments)
        assert made.tokens == [WORDS[k] for k in ids[0, start:].tolist()], selection
        assert made.spans == list(groups)
        layers = [1] if "layers" in chosen else [0, 1]
        heads = {"heads": [2, 0], "a head of the last layer": [1]}.get(selection, list(range(len(weights[0]))))
        right = torch.stack(
            [torch.stack([weights[layer][head, :, own].sum(-1) for own in groups.values()], -1)
             for layer in layers for head in heads], 1)  # fmt: skip
        np.testing.assert_allclose(made.masses, right, rtol=1e-4, atol=1e-5, err_msg=selection)
        assert made.layers.tolist() == [layer for layer in layers for _ in heads]
        assert made.heads.tolist() == heads * len(layers)


def test_beams_are_those_that_wrote_the_text() -> None:
    """By `beam_indices`, which are not all 0 here."""
    arguments: dict[str, Any] = {"max_new_tokens": 9, "num_beams": 4, "do_sample": False}
    inputs = tokenizer()(PROMPT, return_tensors="pt")["input_ids"]
    output = model("llama", "eager").generate(
        inputs,
        **arguments,
        return_dict_in_generate=True,
        output_attentions=True,
        attention_mask=torch.ones_like(inputs),
    )
    rows = output.beam_indices[0].tolist()
    assert len(set(rows)) > 1
    right = [[layer[row, :, -1, 10:14].sum(-1).tolist() for layer in output.attentions[step]]
             for step, row in enumerate(rows)]  # fmt: skip
    made = dikkat.show.generation(model("llama"), tokenizer(), PROMPT, spans={"q": SPANS["question"]}, **arguments)
    np.testing.assert_allclose(made.masses[..., 0].reshape(len(rows), 2, 6), right, rtol=1e-4, atol=1e-5)


def test_a_sink_is_named() -> None:
    made = dikkat.show.generation(model("gpt_oss", "dikkat"), tokenizer(), PROMPT, spans=SPANS, max_new_tokens=5)
    assert made.spans == [*SPANS, FIRST, "answer and sink"]
    weights = weights_of("gpt_oss", PROMPT, written("gpt_oss", PROMPT, max_new_tokens=5))
    for layer, name in product(range(2), POSITIONS):
        right = weights[layer][:, :, POSITIONS[name]].sum(-1).T
        np.testing.assert_allclose(made.masses[:, made.layers == layer, made.spans.index(name)], right, atol=1e-5)
    np.testing.assert_allclose(made.masses.sum(-1), 1, atol=1e-6)


def test_the_table() -> None:
    made = dikkat.show.generation(model("llama"), tokenizer(), PROMPT, spans=SPANS, max_new_tokens=3)
    table = made.frame()
    assert list(table.columns) == ["token", "text", "layer", "head", "span", "mass", "even"]
    assert len(table) == 3 * 12 * 5
    row = table[(table.token == 2) & (table.layer == 1) & (table["head"] == 4) & (table.span == "mat")]
    assert row.mass.item() == made.masses[2, 10, 1]
    assert row.text.item() == made.tokens[2]
    mean = made.frame(mean=True)
    assert list(mean.columns) == ["token", "text", "span", "mass", "even"]
    assert mean.even.tolist() == [5 / 14, 4 / 14, 4 / 14, 1 / 14, 0.0] * 3
    right = table.groupby(["token", "span"]).mass.mean()
    for token, span, mass in zip(mean.token, mean.span, mean.mass, strict=True):
        assert mass == pytest.approx(right[token, span])


def content_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script id="dikkat-content" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])["calls"]["passages"]


@pytest.mark.parametrize("most", [2_000_000, 10])
def test_the_page(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_ENTRIES", most)
    made = dikkat.show.generation(
        model("llama"), tokenizer(), PROMPT, tmp_path / "page.html", spans=SPANS, max_new_tokens=4, title="<b>"
    )
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    content = content_of(page)
    assert content["prompt"] == [
        ["the red cat sat .", 0], ["\n\n", -1], ["a blue mat .", 1], ["\n\n", -1], ["why the cat ?", 2]
    ]  # fmt: skip
    assert content["spans"] == [["red cat", ""], ["mat", ""], ["question", ""], [FIRST, "first"], [ANSWER, "answer"]]
    assert content["tokens"] == made.tokens
    assert content["even"] == [0.3571, 0.2857, 0.2857, 0.0714, 0.0]
    heads = [[layer, head] for layer in range(2) for head in range(6)] if most > 10 else [[-1, -1]]
    assert content["heads"] == heads
    found = np.frombuffer(base64.b64decode(content["masses"]), "<u2").reshape(4, len(heads), 5) / 65535
    np.testing.assert_allclose(found, made.masses if most > 10 else made.masses.mean(1, keepdims=True), atol=1e-5)
    assert "<title>&lt;b&gt;</title>" in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "").split("<script")[0]
    assert "<iframe srcdoc=" in made._repr_html_()


@pytest.mark.parametrize(
    ("prompt", "names"),
    [
        (PROMPT, ["1: the red cat sat .", "2: a blue mat .", "3: why the cat ?"]),
        ("the cat sat .\nwhy ? a mat", ["1: the cat sat .", "2: why ? a mat"]),
        ("the cat sat . why ? a mat", ["1: the cat sat .", "2: why ?", "3: a mat"]),
        ("猫 在 。the 。", ["1: 猫 在 。", "2: the 。"]),
        ("the cat", ["1: the cat"]),
        ("a mat the！cat", ["1: a mat the！"]),  # "the！cat" is one token
        ([{"role": "user", "content": "the cat\nsat"}, {"role": "bot", "content": "a mat"}],
         ["1: the cat", "2: sat", "3: a mat"]),
    ],
)  # fmt: skip
def test_default_passages(prompt: Any, names: list[str]) -> None:
    made = dikkat.show.generation(model("llama"), tokenizer(), prompt, max_new_tokens=2)
    assert made.spans == [*names, *([REST] if isinstance(prompt, list) else []), FIRST, ANSWER]
    np.testing.assert_allclose(made.masses.sum(-1), 1, atol=1e-6)
    assert made.masses[0, :, -1].max() < 1e-5  # the first token saw no answer


def test_a_chat_has_one_start_and_its_passages() -> None:
    chat = [{"role": "user", "content": "why the cat ?"}]
    text = tokenizer().apply_chat_template(chat, tokenize=False)
    assert text == "<s>user why the cat ? </s> bot"
    made = dikkat.show.generation(model("llama"), tokenizer(), chat, max_new_tokens=3, spans={"cat": "the cat"})
    ids = tokenizer()(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    assert ids.tolist() == [[WORDS.index(word) for word in ["<s>", "user", "why", "the", "cat", "?", "</s>", "bot"]]]
    weights = model("llama", "eager")(ids, output_attentions=True).attentions
    right = [layer[0, :, -1, 3:5].sum(-1).tolist() for layer in weights]
    np.testing.assert_allclose(made.masses[0, :, 0].reshape(2, 6), right, atol=1e-5)


def test_a_list_of_passages() -> None:
    made, named = (
        dikkat.show.generation(model("llama"), tokenizer(), PROMPT, max_new_tokens=2, spans=spans)
        for spans in (["a blue mat .", "red cat"], {"b": "a blue mat .", "a": "red cat"})
    )
    assert made.spans[:2] == ["2: red cat", "1: a blue mat ."]
    np.testing.assert_array_equal(made.masses, named.masses)


def test_passages_of_a_chat_are_not_in_its_template() -> None:
    chat = [{"role": "user", "content": "user"}, {"role": "bot", "content": " bot\n\nuser "}]
    made = dikkat.show.generation(model("llama"), tokenizer(), chat, max_new_tokens=1)
    assert made.prompt == [
        ("<s>user ", -1), ("user", 0), (" </s> bot  ", -1), ("bot", 1), ("\n\n", -1), ("user", 2), ("  </s> bot", -1)
    ]  # fmt: skip


def test_a_shared_first_token_stays_apart() -> None:
    """Without a start token, the first word is a span of its own, unless it is the whole passage."""
    bare = tokenizer()
    bare._tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    made = dikkat.show.generation(model("llama"), bare, "the cat sat", spans={"a": "the cat"}, max_new_tokens=2)
    assert made.spans == ["a", REST, FIRST, ANSWER]
    weights = model("llama", "eager")(torch.tensor([[3, 5, 6]]), output_attentions=True).attentions
    np.testing.assert_allclose(made.masses[0, :6, 0], weights[0][0, :, -1, 1].detach(), atol=1e-5)
    made = dikkat.show.generation(model("llama"), bare, "the cat sat", spans={"a": "the"}, max_new_tokens=2)
    assert made.spans == ["a", REST, ANSWER]


class Slow:
    """A tokenizer that does not know characters."""

    all_special_ids = ()

    def __call__(self, text: str, **options: Any) -> Any:
        return transformers.BatchEncoding({"input_ids": torch.tensor([[3, 4]])})


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"prompt": ["a", "b"]}, TypeError, r"prompt: got list \['a', 'b'\]; expected one text, or"),
        ({"prompt": 3}, TypeError, "prompt: got int 3; expected one text"),
        ({"model": model("gpt2"), "prompt": "the " * 60, "spans": None}, ValueError, "text: got 61 tokens; expected"),
        ({"tokenizer": Slow()}, TypeError, "tokenizer: got Slow; expected a fast one"),
        ({"model": torch.nn.Linear(2, 2)}, TypeError, "model: got Linear; expected a Hugging Face model with generate"),
        ({"spans": ["the"]}, ValueError, "spans: got 'the' for '1: the', 2 times in the prompt"),
        ({"spans": [1]}, TypeError, "spans: got list; expected texts or pairs by name, or a list of texts"),
        ({"spans": "the red"}, TypeError, "spans: got str; expected texts or pairs by name"),
        ({"tokenizer": tokenizer()._tokenizer}, TypeError, "tokenizer: got tokenizers.Tokenizer; expected a tokeni"),
        ({"spans": {"a": "dog"}}, ValueError, "spans: got 'dog' for 'a', 0 times in the prompt; expected a passage"),
        ({"spans": {"a": "cat"}}, ValueError, "spans: got 'cat' for 'a', 2 times in the prompt"),
        ({"spans": {"a": " "}}, ValueError, "spans: got ' ' for 'a'"),
        ({"spans": {"a": (17, 19)}}, ValueError, "spans: got 'a', which has no token of its own"),
        ({"spans": {"a": (0, 99)}}, ValueError, r"spans: got \(0, 99\) for 'a'; expected .* the prompt's 46"),
        ({"spans": {"a": slice(0, 9)}}, ValueError, "spans: got slice.* for 'a'; expected a text, or a pair"),
        ({"spans": {"a": (5, 5)}}, ValueError, r"spans: got \(5, 5\)"),
        ({"spans": {"a": (0, 7), "b": (4, 11)}}, ValueError, "spans: got 'a' and 'b', which overlap"),
        ({"spans": {FIRST: "red"}}, ValueError, "spans: got the name 'first token'; expected another name"),
        ({"layers": 7}, ValueError, "layers: got 7"),
        ({"heads": 6}, ValueError, "heads: got 6; expected -6 to 5"),
        ({"num_return_sequences": 2, "do_sample": True}, ValueError, "num_return_sequences: got 2; expected 1"),
        ({"prompt_lookup_num_tokens": 3}, ValueError, "prompt_lookup_num_tokens: got 3; expected None, as each token"),
        ({"guidance_scale": 1.5}, ValueError, "guidance_scale: got 1.5; expected 1"),
    ],
)  # fmt: skip
def test_bad_input(changed: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    arguments = {"model": model("llama"), "tokenizer": tokenizer(), "prompt": PROMPT, "spans": SPANS} | changed
    with pytest.raises(error, match=message):
        dikkat.show.generation(**arguments, path=tmp_path / "page.html", max_new_tokens=2)
    assert not any(tmp_path.iterdir())


def test_a_layer_without_cross_attention() -> None:
    with pytest.raises(ValueError, match=r"layers: got 'encoder\.block\.0' of T5.*; expected layers with"):
        dikkat.show.generation(model("t5"), tokenizer(False), PROMPT, layers="encoder.block.0", max_new_tokens=2)


def test_a_call_that_attends_twice_is_refused() -> None:
    """DiffLlama's layers attend to two halves."""
    config = transformers.DiffLlamaConfig(
        vocab_size=len(WORDS), hidden_size=24, intermediate_size=17, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=59, pad_token_id=1, attn_implementation="sdpa",
    )  # fmt: skip
    made = transformers.DiffLlamaForCausalLM(config).eval()
    with pytest.raises(ValueError, match=r"model: got \d+ calls of .* for 3 tokens; expected one for each"):
        dikkat.show.generation(made, tokenizer(), PROMPT, max_new_tokens=3, min_new_tokens=3)


def test_masses_in_bfloat16_fit_the_page() -> None:
    """The sums of weights are off by up to 0.4 %."""
    made = dikkat.show.generation(
        deepcopy(model("gpt2", "eager")).bfloat16(), tokenizer(), PROMPT, spans=SPANS, max_new_tokens=2
    )
    assert made.spans[-1] == ANSWER
    content = content_of(replace(made, masses=np.full_like(made.masses, 1.002))._page())
    assert {*np.frombuffer(base64.b64decode(content["masses"]), "<u2").tolist()} == {65535}


def test_layers_without_the_kind_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_cross_attention", lambda *_: ["encoder.block.0"])
    with pytest.raises(ValueError, match="layers: got only calls without cross-attention; expected layers with"):
        dikkat.show.generation(model("t5"), tokenizer(False), PROMPT, spans=SPANS, max_new_tokens=2)


def test_beams_of_the_model_and_other_settings() -> None:
    beams = deepcopy(model("llama"))
    beams.generation_config.num_beams = 3
    made, other = (
        dikkat.show.generation(beams, tokenizer(), PROMPT, spans=SPANS, max_new_tokens=4, **arguments)
        for arguments in ({}, {"generation_config": transformers.GenerationConfig(pad_token_id=1)})
    )
    np.testing.assert_allclose(made.masses, other.masses, atol=1e-6)
    alone = dikkat.show.generation(model("llama"), tokenizer(), PROMPT, spans=SPANS, max_new_tokens=4, num_beams=3)
    np.testing.assert_allclose(made.masses, alone.masses, atol=1e-6)


def test_a_path_is_checked_before_the_model_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(model("llama")), "generate", None)
    with pytest.raises(FileNotFoundError, match="does not exist; create it"):
        dikkat.show.generation(model("llama"), tokenizer(), PROMPT, tmp_path / "no" / "page.html")


def test_a_page_under_autocast_has_the_masses_of_float32():
    """From the third token on, a shorter path computes the masses."""
    arguments = {"spans": SPANS, "max_new_tokens": 5, "do_sample": False}
    seen = []
    for follows_tensors in (True, False):
        with torch.autocast("cpu", torch.bfloat16), pytest.MonkeyPatch.context() as patch:
            if follows_tensors:
                patch.setattr(Observation, "repeats", property(lambda _: False, lambda *_: None), raising=False)
            seen.append(dikkat.show.generation(model("llama"), tokenizer(), PROMPT, **arguments))
    assert seen[0].text == seen[1].text
    np.testing.assert_allclose(seen[0].masses, seen[1].masses, rtol=0, atol=1e-6)
