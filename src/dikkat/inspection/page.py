"""Page of where a model looks in a text: the entry that `dikkat.show.attention` is."""

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dikkat.inspection.layer_selection import Layers
from dikkat.inspection.recording import record
from dikkat.inspection.trace import Trace
from dikkat.show.views import CELLS, TOP, Token

__all__ = ["attention"]


def attention(
    model: nn.Module,
    tokenizer: Any,
    text: str | tuple[str, str],
    path: str | os.PathLike[str] | None = None,
    *,
    layers: Layers | None = None,
    heads: int | Sequence[int] | None = None,
    title: str = "Where the model looks",
) -> Trace:
    """Write a page of where a model of Hugging Face's looks in a text: one self-contained file, whole or not at all.

    The page has three views: the heads of a layer, as lines from each token to those it looks at most; all layers and
    heads, as small maps; and one query and key, with the weight in every head. The model runs once, as it is, on its
    fast path, without gradients.

    Args:
        model: Any that `dikkat.record` takes, which the tokenizer's output is given to by name.
        tokenizer: The model's own: called with a text, it gives tensors; `convert_ids_to_tokens` and
            `all_special_ids` are asked.
        text: What the model reads; or a source and a target, of an encoder and decoder.
        path: The file; its folder must exist. None for no file: the trace, as the last value of a notebook's cell,
            shows the page.
        layers: Which layers, as `dikkat.record` takes them; all, where not given.
        heads: Which heads; all, where not given.
        title: The heading.

    Returns:
        The trace, with the largest weights of each query, an overview of each head, and the tokens.

    Raises:
        TypeError: `text` is no string and no two of them.
        ValueError: A text without tokens; a token that the model has not: the tokenizer is another model's; what
            `dikkat.record` refuses.
        OSError: The system could not write; an existing file is left as it was.

    Source:
        The three views: Vig 2019, "A Multiscale Visualization of Attention in the Transformer Model".
    """
    texts = (text,) if isinstance(text, str) else text
    if not isinstance(texts, tuple) or len(texts) > 2 or not all(isinstance(each, str) for each in texts):
        raise TypeError(f"text: got {type(text).__name__}; expected a string, or a source and a target in a tuple")
    pair = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    if pair != (len(texts) == 2):
        wanted = "a source and a target in a tuple, as it has an encoder and a decoder" if pair else "one string"
        raise ValueError(f"text: got {len(texts)} for {type(model).__name__}; expected {wanted}")
    encoded = [_encoded(model, tokenizer, each) for each in texts]
    inputs = dict(encoded[0])
    if pair:
        inputs["decoder_input_ids"] = encoded[1]["input_ids"]
    with (
        torch.no_grad(),
        record(model, layers=layers, heads=heads, top_k=TOP, overview=CELLS, pool="max") as trace,
    ):
        model(**inputs)
    labels = [_labels(tokenizer, each) for each in encoded]
    trace.tokens = {"self": labels[-1]} | ({"encoder": labels[0]} if len(labels) == 2 else {})
    if path is not None:
        trace.to_html(path, title=title)
    return trace


def _encoded(model: nn.Module, tokenizer: Any, text: str) -> Any:
    """The model's inputs of a text."""
    encoded = tokenizer(text, return_tensors="pt")
    ids, table = encoded["input_ids"], getattr(model, "get_input_embeddings", lambda: None)()
    if not ids.numel():
        raise ValueError("text: got one without tokens; expected at least one")
    words = getattr(table, "num_embeddings", None)
    if words is not None and int(ids.max()) >= words:
        raise ValueError(
            f"tokenizer: got token {int(ids.max())} from {type(tokenizer).__name__}; expected 0 to {words - 1}, which "
            f"{type(model).__name__} has: the tokenizer is another model's"
        )
    return encoded.to(getattr(model, "device", ids.device))


def _labels(tokenizer: Any, encoded: Any) -> list[Token]:
    """The tokens as they are shown, with the words that they make where the tokenizer says it."""
    ids, special = encoded["input_ids"][0].tolist(), set(tokenizer.all_special_ids)
    words = encoded.word_ids(0) if getattr(encoded, "is_fast", False) else [None] * len(ids)
    texts = []
    for each, piece in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        said = tokenizer.decode([each]).strip()
        texts.append(piece if not said or "\N{REPLACEMENT CHARACTER}" in said else said.removeprefix("##"))
    before = [None, *words]
    return [
        Token(text, each in special, word is not None and word == last)
        for text, each, word, last in zip(texts, ids, words, before, strict=False)
    ]
