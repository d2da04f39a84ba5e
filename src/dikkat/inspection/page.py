"""`dikkat.show.attention` and `dikkat.show.weights`: pages of attention with one call."""

import os
import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dikkat.inspection.calls import Call
from dikkat.inspection.layer_selection import Layers
from dikkat.inspection.recording import record
from dikkat.inspection.request import Inspection
from dikkat.inspection.trace import Trace
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
    effects: Any = None,
    **inputs: Any,
) -> Trace:
    """Write a self-contained page of a model's attention in a text.

    For a Hugging Face model, pass its tokenizer and a text: `attention(model, tokenizer, text, "page.html")`. For other
    models, pass the inputs and a label for each position: `attention(model, x, tokens=["a", "b"], path="p.html")`.

    The page opens on the most informative head, with lines from each token to the tokens that it attends to. It also
    has the main pattern of each head, all layers and heads as small maps, and the weight of one pair in all heads. The
    model runs once, on its fast path, without gradients.

    Args:
        model: Any model that `dikkat.record` accepts.
        *arguments: A tokenizer, a text (for an encoder and decoder a tuple of source and target), and optionally the
            path. dikkat calls the tokenizer with a text and uses its `convert_ids_to_tokens` and `all_special_ids`. If
            you pass `tokens`, the model's inputs.
        tokens: The labels of queries and keys: a list of strings, or two lists (source, target). For several elements,
            or a batch of one, a list with the labels of each element. Default: the tokenizer's tokens, or 0, 1 ...
        path: The file; its folder must exist. None writes no file: the trace shows the page as the last value of a
            notebook cell.
        element: The element of the batch on the page, or several to choose from.
        layers: The selected layers, as in `dikkat.record`; all by default.
        heads: The selected heads; all by default.
        title: The heading.
        effects: A table of `dikkat.effects`, by which the page in `path` ranks and colours the heads.
        **inputs: The model's inputs by name.

    Returns:
        The trace, with the largest weights of each query, an overview of each head, and the tokens.

    Raises:
        TypeError: The text is neither a string nor a tuple of two strings, or tokens are not strings.
        ValueError: The text has no tokens or is too long for the model, the tokenizer belongs to another model, tokens
            have another length, or `dikkat.record` raises.
        OSError: The system could not write; an existing file is unchanged.

    Source:
        The views: Vig 2019, "A Multiscale Visualization of Attention in the Transformer Model".
    """
    labels: Any = tokens
    first = arguments[0] if arguments else inputs.get("tokenizer")
    _check_tokenizer(first)
    reads_text = callable(getattr(first, "convert_ids_to_tokens", None))
    if tokens is None and reads_text and len(arguments) + ("tokenizer" in inputs) + ("text" in inputs) > 1:
        tokenizer, text, *rest = [*arguments, *(inputs.pop(name) for name in ("tokenizer", "text") if name in inputs)]
        path = rest[0] if rest else path
        arguments, (inputs, labels) = (), _encode_texts(model, tokenizer, text)
    elif any(hasattr(argument, "image_processor") or hasattr(argument, "preprocess") for argument in arguments):
        raise TypeError(
            f"attention: got {type(arguments[0]).__name__}; expected a tokenizer and a text, or the model's inputs: "
            "attention(model, **processor(images=image, return_tensors='pt'))"
        )
    with torch.no_grad(), record(model, layers=layers, heads=heads, top_k=TOP, overview=CELLS, pool="max") as trace:
        model(*arguments, **inputs)
    if labels is not None:
        trace.set_tokens(labels, element)
    if path is not None:
        trace.to_html(path, element=element, title=title, effects=effects)
    elif effects is not None:
        raise ValueError("effects: got a table without path; expected a path, or trace.to_html(path, effects=table)")
    return trace


def weights(
    weights: Weights,
    *,
    tokens: Tokens | None = None,
    path: str | os.PathLike[str] | None = None,
    title: str = "Weights",
) -> Trace:
    """Write the page of weights from any source: one map, the heads of a layer, or several layers.

    Args:
        weights: (n, m), (heads, n, m) or (layers, heads, n, m); or a list of layers, whose sizes may differ.
        tokens: The labels of queries and keys: a list of strings, or two lists (keys, queries).
        path: The file; its folder must exist. None writes no file, as in `attention`.
        title: The heading.

    Returns:
        The trace, for `scores` and `frame`.

    Warns:
        UserWarning: Rows do not add up to 1.

    Raises:
        TypeError: Weights are no real numbers, or tokens are not strings.
        ValueError: A shape does not fit, weights are below 0, above 1 or not finite, or tokens have another length.
        OSError: The system could not write; an existing file is unchanged.

    Example:
        >>> import dikkat
        >>> trace = dikkat.show.weights([[0.9, 0.1], [0.2, 0.8]], tokens=["le", "chat"])
        >>> trace[0].weights.shape
        torch.Size([1, 1, 2, 2])
    """
    is_list = isinstance(weights, list | tuple) and all(getattr(layer, "ndim", 0) >= 2 for layer in weights)
    arrays = [as_array(layer, "weights") for layer in weights] if is_list else [as_array(weights, "weights")]
    arrays = list(arrays[0]) if len(arrays) == 1 and arrays[0].ndim == 4 and not is_list else arrays
    trace, sums = Trace(), []
    for number, array in enumerate(arrays):
        heads = array[0] if array.ndim == 4 and len(array) == 1 else array
        if heads.ndim not in (2, 3) or 0 in heads.shape:
            raise ValueError(
                f"weights: got a layer of shape {array.shape}; expected (n, m) or (heads, n, m), each size at least "
                "1; for a batch pass one element"
            )
        if not ((heads >= 0) & (heads <= 1 + 1e-6)).all():  # also rejects NaN
            raise ValueError(f"weights: got {heads.min():.4g} to {heads.max():.4g}; expected weights from 0 to 1")
        sums.append(heads.sum(-1))
        batch = torch.tensor(heads, dtype=torch.float32).reshape(1, -1, *heads.shape[-2:])
        kind = "self" if batch.shape[-1] == batch.shape[-2] else "cross"
        trace.add(Inspection(weights=batch, shape=tuple(batch.shape)), Call(f"layer {number}", layer=number, kind=kind))
    low, high = min(float(layer.min()) for layer in sums), max(float(layer.max()) for layer in sums)
    if abs(low - 1) > 0.01 or abs(high - 1) > 0.01:
        title = f"{title} (rows add up to {low:.3g} … {high:.3g})"
        warnings.warn(f"weights: rows add up to {low:.3g} … {high:.3g}, not to 1", stacklevel=2)
    if tokens is not None:
        trace.tokens = tokens
    if path is not None:
        trace.to_html(path, title=title)
    return trace


def _encode_texts(model: nn.Module, tokenizer: Any, text: Any) -> tuple[dict[str, Any], Any]:
    """Return a model's inputs for a text or a pair of texts, and the tokens."""
    texts = (text,) if isinstance(text, str) else text
    if not isinstance(texts, tuple) or len(texts) > 2 or not all(isinstance(item, str) for item in texts):
        raise TypeError(f"text: got {type(text).__name__}; expected a string, or a source and a target in a tuple")
    input_name = getattr(model, "main_input_name", "input_ids")
    if input_name != "input_ids":
        raise ValueError(
            f"text: got one for {type(model).__name__}, which reads {input_name}; expected its inputs and their "
            f"labels instead: attention(model, {input_name}=..., tokens=[...])"
        )
    is_pair = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    if is_pair != (len(texts) == 2):
        expected = "a source and a target in a tuple, as it has an encoder and a decoder" if is_pair else "one string"
        raise ValueError(f"text: got {len(texts)} for {type(model).__name__}; expected {expected}")
    encodings = [encode(model, tokenizer, item) for item in texts]
    inputs, labels = dict(encodings[0]), [make_tokens(tokenizer, encoded) for encoded in encodings]
    if is_pair:
        inputs["decoder_input_ids"] = encodings[1]["input_ids"]
    return inputs, tuple(labels) if is_pair else labels[0]


def encode(model: nn.Module, tokenizer: Any, text: str, **options: Any) -> Any:
    """Return the checked inputs of a text, on the model's device."""
    _check_tokenizer(tokenizer)
    encoded = tokenizer(text, return_tensors="pt", **options)
    ids, table = encoded["input_ids"], getattr(model, "get_input_embeddings", lambda: None)()
    if not ids.numel():
        raise ValueError("text: got a text without tokens; expected at least one token")
    vocabulary_size = getattr(table, "num_embeddings", None)
    if vocabulary_size is not None and int(ids.max()) >= vocabulary_size:
        raise ValueError(
            f"tokenizer: got token {int(ids.max())} from {type(tokenizer).__name__}; expected 0 to "
            f"{vocabulary_size - 1}; pass the tokenizer of {type(model).__name__}"
        )
    limit = min(
        (size for name, module in model.named_modules() if (size := _position_count(name, module))), default=None
    )
    if limit is not None and ids.shape[-1] > limit:
        raise ValueError(
            f"text: got {ids.shape[-1]} tokens; expected at most {limit}, the positions of {type(model).__name__}"
        )
    return encoded.to(getattr(model, "device", ids.device))


def _check_tokenizer(tokenizer: Any) -> None:
    if hasattr(tokenizer, "token_to_id") and not callable(tokenizer):
        raise TypeError(
            "tokenizer: got tokenizers.Tokenizer; expected a tokenizer of transformers, such as "
            "transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)"
        )


def _position_count(name: str, module: nn.Module) -> int:
    """Return the number of positions in a table of position embeddings; 0 for other modules."""
    if not isinstance(module, nn.Embedding) or not re.search(r"(^|\.)(wpe|(embed_)?positions?(_embeddings?)?)$", name):
        return 0
    before = module.padding_idx + 1 if module.padding_idx is not None else getattr(module, "offset", 0)
    return int(module.num_embeddings - before)


def make_tokens(tokenizer: Any, encoded: Any) -> list[Token]:
    """Return the tokens to show, with their words if the tokenizer knows them."""
    ids, special = encoded["input_ids"][0].tolist(), set(tokenizer.all_special_ids)
    words = encoded.word_ids(0) if getattr(encoded, "is_fast", False) else [None] * len(ids)
    texts = []
    for token_id, piece in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        text = tokenizer.decode([token_id]).strip()
        piece = piece or str(token_id)  # a model may write numbers that its tokenizer does not know
        texts.append(piece if not text or "\N{REPLACEMENT CHARACTER}" in text else text.removeprefix("##"))
    previous_words = [None, *words]
    return [
        Token(text, token_id in special, word is not None and word == previous)
        for text, token_id, word, previous in zip(texts, ids, words, previous_words, strict=False)
    ]
