"""Pages of where a model looks, in one line: the entries that `dikkat.show.attention` and `dikkat.show.weights` are."""

import os
import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dikkat.inspection.layer_selection import Layers
from dikkat.inspection.recording import record
from dikkat.inspection.request import Inspection
from dikkat.inspection.trace import Call, Trace
from dikkat.show.arrays import Weights, as_array
from dikkat.show.views import CELLS, TOP, Token, Tokens

__all__ = ["attention", "weights"]


def attention(
    model: nn.Module,
    *arguments: Any,
    tokens: Tokens | Sequence[Tokens] | None = None,
    path: str | os.PathLike[str] | None = None,
    element: int | Sequence[int] = 0,
    layers: Layers | None = None,
    heads: int | Sequence[int] | None = None,
    title: str = "Where the model looks",
    **inputs: Any,
) -> Trace:
    """Write a page of where a model looks in a text: one self-contained file, whole or not at all.

    A model of Hugging Face's takes its tokenizer and a text, `attention(model, tokenizer, text, "page.html")`; any
    other what it is called with, and what its positions are: `attention(model, x, tokens=["a", "b"], path="p.html")`.

    The page opens on the head that says most, as lines from each token to those that it looks at; it has what each head
    does, all layers and heads as small maps, and one query and key with the weight in every head. The model runs once,
    as it is, on its fast path, without gradients.

    Args:
        model: Any that `dikkat.record` takes.
        *arguments: A tokenizer, a text (a source and a target in a tuple, for an encoder and decoder) and, unless it is
            given by name, the path. The tokenizer is called with a text; `convert_ids_to_tokens` and
            `all_special_ids` are asked. With `tokens`, what the model is called with.
        tokens: What queries and keys are: a list of strings, or (source, target), two lists; of several elements a
            list, with those of each, as also of a batch of one. Without a tokenizer, 0, 1, 2 ... if not given.
        path: The file; its folder must exist. None for no file: the trace, as the last value of a notebook's cell,
            shows the page.
        element: Which element of the batch is shown, with `tokens`; of several, a choice on the page.
        layers: Which layers, as `dikkat.record` takes them; all, where not given.
        heads: Which heads; all, where not given.
        title: The heading.
        **inputs: What the model is called with by name, with `tokens`.

    Returns:
        The trace, with the largest weights of each query, an overview of each head, and the tokens.

    Raises:
        TypeError: The text is no string and no two of them; tokens that are no strings.
        ValueError: A text without tokens, or with more than the model has places for; a token that the model has not:
            the tokenizer is another model's; tokens of another length; what `dikkat.record` refuses.
        OSError: The system could not write; an existing file is left as it was.

    Source:
        The views: Vig 2019, "A Multiscale Visualization of Attention in the Transformer Model".
    """
    labels: Any = tokens
    reads_text = callable(
        getattr(arguments[0] if arguments else inputs.get("tokenizer"), "convert_ids_to_tokens", None)
    )
    if tokens is None and reads_text and len(arguments) + ("tokenizer" in inputs) + ("text" in inputs) > 1:
        tokenizer, text, *rest = [*arguments, *(inputs.pop(name) for name in ("tokenizer", "text") if name in inputs)]
        path = rest[0] if rest else path
        arguments, (inputs, labels) = (), _read(model, tokenizer, text)
    elif any(hasattr(each, "image_processor") or hasattr(each, "preprocess") for each in arguments):
        raise TypeError(
            f"attention: got {type(arguments[0]).__name__}; expected a tokenizer and a text, or the model's inputs: "
            "attention(model, **processor(images=image, return_tensors='pt'))"
        )
    with torch.no_grad(), record(model, layers=layers, heads=heads, top_k=TOP, overview=CELLS, pool="max") as trace:
        model(*arguments, **inputs)
    if labels is not None:  # without, positions are called 0, 1, 2 ...
        trace.set_tokens(labels, element)
    if path is not None:
        trace.to_html(path, element=element, title=title)
    return trace


def weights(
    weights: Weights,
    *,
    tokens: Tokens | None = None,
    path: str | os.PathLike[str] | None = None,
    title: str = "Weights",
) -> Trace:
    """Write the page of weights that one has, from elsewhere: of one map, the heads of a layer, or of several layers.

    Args:
        weights: (n, m), (heads, n, m) or (layers, heads, n, m); or a list of layers, whose sizes may differ.
        tokens: What queries and keys are: a list of strings, or (keys, queries), two lists.
        path: The file; its folder must exist. None for no file, as `attention` has it.
        title: The heading.

    Returns:
        The trace, for `scores`, `frame` and the like.

    Warns:
        UserWarning: Rows that do not add up to 1.

    Raises:
        TypeError: No real numbers, or tokens that are no strings.
        ValueError: Another shape; weights below 0, above 1 or not finite; tokens of another length.
        OSError: The system could not write; an existing file is left as it was.

    Example:
        >>> import dikkat
        >>> trace = dikkat.show.weights([[0.9, 0.1], [0.2, 0.8]], tokens=["le", "chat"])
        >>> trace[0].weights.shape
        torch.Size([1, 1, 2, 2])
    """
    listed = isinstance(weights, list | tuple) and all(getattr(each, "ndim", 0) >= 2 for each in weights)
    arrays = [as_array(each, "weights") for each in weights] if listed else [as_array(weights, "weights")]
    arrays = list(arrays[0]) if len(arrays) == 1 and arrays[0].ndim == 4 and not listed else arrays
    trace, sums = Trace(), []
    for number, array in enumerate(arrays):
        heads = array[0] if array.ndim == 4 and len(array) == 1 else array
        if heads.ndim not in (2, 3) or 0 in heads.shape:
            raise ValueError(
                f"weights: got a layer of shape {array.shape}; expected (n, m) or (heads, n, m), none of them 0: of a "
                "batch, one element"
            )
        if not ((heads >= 0) & (heads <= 1 + 1e-6)).all():  # also of what is not finite
            raise ValueError(f"weights: got {heads.min():.4g} to {heads.max():.4g}; expected weights from 0 to 1")
        sums.append(heads.sum(-1))
        whole = torch.tensor(heads, dtype=torch.float32).reshape(1, -1, *heads.shape[-2:])
        kind = "self" if whole.shape[-1] == whole.shape[-2] else "cross"
        trace.add(Inspection(weights=whole, shape=tuple(whole.shape)), Call(f"layer {number}", layer=number, kind=kind))
    low, high = min(float(each.min()) for each in sums), max(float(each.max()) for each in sums)
    if abs(low - 1) > 0.01 or abs(high - 1) > 0.01:
        title = f"{title} (rows add up to {low:.3g} … {high:.3g})"
        warnings.warn(f"weights: rows add up to {low:.3g} … {high:.3g}, not to 1", stacklevel=2)
    if tokens is not None:
        trace.tokens = tokens
    if path is not None:
        trace.to_html(path, title=title)
    return trace


def _read(model: nn.Module, tokenizer: Any, text: Any) -> tuple[dict[str, Any], Any]:
    """A model's inputs for a text, and its tokens."""
    texts = (text,) if isinstance(text, str) else text
    if not isinstance(texts, tuple) or len(texts) > 2 or not all(isinstance(each, str) for each in texts):
        raise TypeError(f"text: got {type(text).__name__}; expected a string, or a source and a target in a tuple")
    takes = getattr(model, "main_input_name", "input_ids")
    if takes != "input_ids":
        raise ValueError(
            f"text: got one for {type(model).__name__}, which reads {takes}; expected a model that reads text, or the "
            f"model's inputs and the names of its positions: attention(model, {takes}=..., tokens=[...])"
        )
    pair = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    if pair != (len(texts) == 2):
        wanted = "a source and a target in a tuple, as it has an encoder and a decoder" if pair else "one string"
        raise ValueError(f"text: got {len(texts)} for {type(model).__name__}; expected {wanted}")
    encoded = [_encoded(model, tokenizer, each) for each in texts]
    inputs, labels = dict(encoded[0]), [_labels(tokenizer, each) for each in encoded]
    if pair:
        inputs["decoder_input_ids"] = encoded[1]["input_ids"]
    return inputs, tuple(labels) if pair else labels[0]


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
    places = min((each for name, module in model.named_modules() if (each := _places(name, module))), default=None)
    if places is not None and ids.shape[-1] > places:
        raise ValueError(
            f"text: got {ids.shape[-1]} tokens; expected at most {places}, which {type(model).__name__} has places for"
        )
    return encoded.to(getattr(model, "device", ids.device))


def _places(name: str, module: nn.Module) -> int:
    """How many places a table of positions has; 0 of what is none."""
    if not isinstance(module, nn.Embedding) or not re.search(r"(^|\.)(wpe|(embed_)?positions?(_embeddings?)?)$", name):
        return 0
    before = module.padding_idx + 1 if module.padding_idx is not None else getattr(module, "offset", 0)
    return int(module.num_embeddings - before)


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
