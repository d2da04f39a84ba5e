"""The page of a model's attention over its tokens: it holds the weights that "eager" attention has."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import dikkat

TEXT, OTHER = "the cat sat", "a catsat the"


def tokenizer(words: int = 7) -> transformers.PreTrainedTokenizerFast:
    vocabulary = {word: k for k, word in enumerate(["<s>", "</s>", "the", "cat", "sat", "a", "##sat"])}
    vocabulary |= {f"more{k}": k for k in range(7, words)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="a" if words == 7 else f"more{words - 1}"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


def model(kind: str, attention: str = "sdpa") -> Any:
    torch.manual_seed(5)
    more = {"vocab_size": 7, "attn_implementation": attention, "bos_token_id": 0, "eos_token_id": 1}
    if kind == "t5":
        config: Any = transformers.T5Config(d_model=12, d_kv=5, d_ff=17, num_layers=2, num_heads=3, **more)
        made: Any = transformers.T5ForConditionalGeneration(config)
    else:
        made = transformers.GPT2Model(transformers.GPT2Config(n_embd=12, n_layer=2, n_head=3, n_positions=97, **more))
    for parameter in made.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.4)
    return made.eval()


def views_in(page: str) -> dict[str, dict[str, Any]]:
    found = re.search(r'<script id="dikkat-content" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found
    views = json.loads(found[1])["calls"]["views"]
    return {view["kind"] + ("" if view["element"] is None else f"[{view['element']}]"): view for view in views}


def numbers(text: str, kind: str, steps: int = 0) -> NDArray[Any]:
    codes = np.frombuffer(base64.b64decode(text), kind)
    if not steps:
        return codes
    return np.where(codes == np.iinfo(codes.dtype).max, 0, 2.0 ** (-codes.astype(float) / steps))


def assert_holds(view: dict[str, Any], weights: Any, heads: list[int]) -> None:
    """The maps are all weights, as the text is short; and the largest ones stand with their keys."""
    assert len(view["layers"]) == len(weights)
    for layer, right in zip(view["layers"], weights, strict=True):
        expected = right[0, heads].detach().double().numpy()
        assert layer["heads"] == heads
        assert expected.shape[1:] == (len(view["queries"]), len(view["keys"])) == tuple(layer["cells"])
        found = numbers(layer["map"], "<u2", 2048).reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
        shape = (*expected.shape[:2], layer["top"])
        keys, largest = (
            numbers(layer[name], "<u2", steps).reshape(shape) for name, steps in (("keys", 0), ("weights", 2048))
        )
        np.testing.assert_allclose(largest, np.sort(expected, -1)[..., ::-1][..., : layer["top"]], rtol=2e-4, atol=1e-9)
        seen = largest > 0
        np.testing.assert_allclose(np.take_along_axis(expected, keys.astype(int), -1)[seen], largest[seen], rtol=2e-4)


def test_one_text(tmp_path: Path) -> None:
    trace = dikkat.show.attention(model("gpt2"), tokenizer(), OTHER, tmp_path / "page.html", heads=[0, 2])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    views = views_in(page)
    labels = [["<s>", True, False], ["a", False, False], ["cat", False, False], ["sat", False, True],
              ["the", False, False], ["</s>", True, False]]  # fmt: skip
    assert list(views) == ["self"]
    assert views["self"]["queries"] == views["self"]["keys"] == labels
    right = model("gpt2", "eager")(**tokenizer()(OTHER, return_tensors="pt"), output_attentions=True)
    assert_holds(views["self"], right.attentions, [0, 2])
    trace.save(tmp_path / "trace")
    again = dikkat.Trace.load(tmp_path / "trace")
    again.to_html(tmp_path / "again.html", title="What the model looks at")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page
    assert "<iframe srcdoc=" in trace._repr_html_()


def test_a_source_and_a_target(tmp_path: Path) -> None:
    trace = dikkat.show.attention(model("t5"), tokenizer(), (TEXT, OTHER), layers=None)
    trace.to_html(tmp_path / "page.html")
    views = views_in((tmp_path / "page.html").read_text(encoding="utf-8"))
    source, target = (tokenizer()(text, return_tensors="pt") for text in (TEXT, OTHER))
    right = model("t5", "eager")(**source, decoder_input_ids=target["input_ids"], output_attentions=True)
    assert_holds(views["self"], right.decoder_attentions, [0, 1, 2])
    assert_holds(views["encoder"], right.encoder_attentions, [0, 1, 2])
    assert_holds(views["cross"], right.cross_attentions, [0, 1, 2])
    assert [len(views["cross"][axis]) for axis in ("queries", "keys")] == [6, 5]


def test_several_elements_of_a_batch_are_a_choice(tmp_path: Path) -> None:
    layer, x = dikkat.SelfAttention(6, 6, 6), torch.randn(3, 4, 6)
    named = {2: list("abcd"), 0: list("wxyz")}
    dikkat.show.attention(layer, x, tokens=[*named.values()], element=[*named], path=tmp_path / "page.html")
    views = views_in((tmp_path / "page.html").read_text(encoding="utf-8"))
    for element, words in named.items():
        assert [text for text, *_ in views[f"self[{element}]"]["queries"]] == words
    with pytest.raises(ValueError, match="tokens: got 1 lists; expected 2, one for each element"):
        dikkat.show.attention(layer, x, tokens=[list("abcd")], element=[0, 1], path=tmp_path / "page.html")


@pytest.mark.parametrize(
    ("kind", "text", "words", "error", "message"),
    [
        ("gpt2", 3, 7, TypeError, "text: got int; expected a string, or a source and a target"),
        ("gpt2", (TEXT, OTHER), 7, ValueError, "text: got 2 for GPT2Model; expected one string"),
        ("t5", TEXT, 7, ValueError, "text: got 1 for T5ForConditionalGeneration; expected a source and a target"),
        ("gpt2", "the " * 96, 7, ValueError, "text: got 98 tokens; expected at most 97, the positions of GPT2Model"),
        ("gpt2", "zebra", 9, ValueError, "got token 8 from .*; expected 0 to 6; pass the tokenizer of GPT2"),
    ],
)
def test_bad_input(kind: str, text: Any, words: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dikkat.show.attention(model(kind), tokenizer(words), text)


def test_a_model_of_ones_own_and_its_words(tmp_path: Path) -> None:
    torch.manual_seed(3)
    layer, x = torch.nn.MultiheadAttention(6, 3, batch_first=True), torch.randn(2, 4, 6)
    y = torch.randn(2, 5, 6)
    trace = dikkat.show.attention(
        layer, y, x, x, tokens=(["a", "b", "c", "d"], list("vwxyz")), path=tmp_path / "page.html"
    )
    view = views_in((tmp_path / "page.html").read_text(encoding="utf-8"))["cross"]
    assert [text for text, *_ in view["keys"]] == list("abcd")
    assert [text for text, *_ in view["queries"]] == list("vwxyz")
    assert_holds(view, [layer(y, x, x, average_attn_weights=False)[1]], [0, 1, 2])
    with pytest.raises(ValueError, match=r"tokens: got 3 .*; expected 5, a label for each position"):
        trace.tokens = ["a", "b", "c"]
    with pytest.raises(TypeError):
        trace.tokens["self"] = ["a"]  # type: ignore[index]
    with pytest.raises(ValueError, match="element: got 2; expected -2 to 1"):
        trace.to_html(tmp_path / "page.html", element=2)
    with pytest.raises(ValueError, match="which reads pixel_values; expected its inputs and their labels"):
        dikkat.show.attention(transformers.ViTModel(transformers.ViTConfig(hidden_size=12, num_hidden_layers=1,
            num_attention_heads=3, intermediate_size=5, image_size=8, patch_size=4)), tokenizer(), TEXT)  # fmt: skip


def test_everything_that_attended_is_in_the_answer() -> None:
    """Poolings, stages and towers of models, of which none tells what returns its weights."""
    shapes = {
        "layers and a pool": {"layers": 3, "pool": 0}, "digits in names": {"attn1": 0, "attn2": 0},
        "stages": {"down": 2, "mid": 0, "up": 2}, "towers": {"image": 2, "text": 1}, "one": {"attention": 0},
    }  # fmt: skip
    for kind, parts in shapes.items():
        model = torch.nn.Module()
        for name, count in parts.items():
            made = [torch.nn.MultiheadAttention(6, 2, batch_first=True) for _ in range(max(1, count))]
            model.add_module(name, torch.nn.ModuleList(made) if count else made[0])
        every = [m for m in model.modules() if isinstance(m, torch.nn.MultiheadAttention)]
        model.forward = lambda x, every=every: [each(x, x, x)[0] for each in every]
        found = dikkat.attentions(model, torch.randn(1, 5, 6))
        names = [name for name, m in model.named_modules() if isinstance(m, torch.nn.MultiheadAttention)]
        assert len(found) == len(every), kind
        assert list(found.by_name) == names
        assert all(torch.equal(found.by_name[name][0], each) for name, each in zip(names, found, strict=True))
        assert all(repr(name) in repr(found) for name in names)


def test_of_siglip_the_layers_and_beside_them_the_pool() -> None:
    config = transformers.SiglipVisionConfig(
        image_size=28, patch_size=7, hidden_size=12, num_hidden_layers=3, num_attention_heads=3, intermediate_size=17
    )
    torch.manual_seed(1)
    model, x = transformers.SiglipVisionModel(config).eval(), torch.randn(2, 3, 28, 28)
    found = dikkat.attentions(model, x)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(tuple(found), model(x, output_attentions=True).attentions, rtol=1e-4, atol=1e-5)
    assert [len(each) for each in found.by_name.values()] == [1] * 4
    (pool,) = found.by_name["head.attention" if "head.attention" in found.by_name else "vision_model.head.attention"]
    assert pool.shape == (2, 3, 1, 16)


def test_runs_of_a_layer_are_layers() -> None:
    config = transformers.AlbertConfig(
        vocab_size=7, hidden_size=12, embedding_size=5, num_hidden_layers=5, num_hidden_groups=1, num_attention_heads=3,
        intermediate_size=17,
    )  # fmt: skip
    torch.manual_seed(1)
    albert, ids = transformers.AlbertModel(config).eval(), torch.tensor([[1, 3, 2]])
    right = albert.config and dikkat.attentions(albert, ids)
    for layers, wanted in ((3, [3]), (-1, [4]), (0, [0]), ([1, -2], [1, 3]), (None, [0, 1, 2, 3, 4])):
        with torch.no_grad(), dikkat.record(albert, layers=layers, weights=True) as trace:
            albert(ids)
            albert(ids)
        assert [call.layer for call, _ in trace.calls()] == wanted * 2
        assert torch.equal(next(iter(trace))[2].weights, right[wanted[0]])
    with torch.no_grad(), dikkat.record(albert, heads=[2, 0], weights=True) as trace:
        albert(ids)
    assert torch.equal(trace[-1].weights, right[4][:, [2, 0]])
    assert torch.equal(trace[3, 2].weights, right[3][:, 2])
    with pytest.raises(IndexError, match="head: got 1; expected one of 2, 0"):
        trace[3, 1]
    with pytest.raises(IndexError, match=r"trace\[5\]: got an unknown layer; expected one of 0, 1, 2, 3, 4"):
        trace[5]
    with pytest.raises(ValueError, match="layers: got 5; expected -5 to 4"), dikkat.record(albert, layers=5):
        albert(ids)


def test_a_text_that_is_written_on_is_one_view(tmp_path: Path) -> None:
    gpt2, ids = model("gpt2"), torch.tensor([[2, 3, 4, 5]])
    with dikkat.record(gpt2, top_k=9) as trace:
        ids_of_all = ids
        cache = transformers.DynamicCache()
        for _ in range(3):
            step = gpt2(ids, past_key_values=cache, use_cache=True)
            ids = step.last_hidden_state[:, -1:].argmax(-1) % 7
            ids_of_all = torch.cat([ids_of_all, ids], 1)
    trace.to_html(tmp_path / "page.html", tokens=list("abcdef"))
    view = views_in((tmp_path / "page.html").read_text(encoding="utf-8"))["self"]
    assert [text for text, *_ in view["queries"]] == [text for text, *_ in view["keys"]] == list("abcdef")
    right = model("gpt2", "eager")(ids_of_all[:, :6], output_attentions=True).attentions
    assert_holds(view, right, [0, 1, 2])
    with dikkat.record(gpt2, top_k=2) as trace:
        gpt2(ids_of_all), gpt2(ids_of_all)
    trace.to_html(tmp_path / "page.html")
    layers = views_in((tmp_path / "page.html").read_text(encoding="utf-8"))["self"]["layers"]
    assert [layer["name"] for layer in layers] == ["h.0.attn", "h.0.attn · 1", "h.1.attn", "h.1.attn · 1"]
