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
    return {view["kind"]: view for view in json.loads(found[1])["calls"]["views"]}


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
        keys, largest = numbers(layer["keys"], "<u2").reshape(shape), numbers(layer["weights"], "u1", 12).reshape(shape)
        np.testing.assert_allclose(largest, np.sort(expected, -1)[..., ::-1][..., : layer["top"]], rtol=0.03, atol=1e-5)
        seen = largest > 0
        np.testing.assert_allclose(np.take_along_axis(expected, keys.astype(int), -1)[seen], largest[seen], rtol=0.03)


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
    again.to_html(tmp_path / "again.html", title="Where the model looks")
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


@pytest.mark.parametrize(
    ("kind", "text", "words", "error", "message"),
    [
        ("gpt2", 3, 7, TypeError, "text: got int; expected a string, or a source and a target"),
        ("gpt2", (TEXT, OTHER), 7, ValueError, "text: got 2 for GPT2Model; expected one string"),
        ("t5", TEXT, 7, ValueError, "text: got 1 for T5ForConditionalGeneration; expected a source and a target"),
        ("gpt2", "zebra", 9, ValueError, "got token 8 from .*; expected 0 to 6.*the tokenizer is another model's"),
    ],
)
def test_bad_input(kind: str, text: Any, words: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dikkat.show.attention(model(kind), tokenizer(words), text)
