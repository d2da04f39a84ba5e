"""Views of a model's attention over its tokens: heads of a layer, all heads, one query and key."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dikkat.inspection.choice import Layers
from dikkat.inspection.front import of_all_weights
from dikkat.inspection.recording import record
from dikkat.inspection.request import Inspection, Request
from dikkat.inspection.trace import Token

if TYPE_CHECKING:
    import os

    from dikkat.inspection import Trace

__all__ = ["attention", "views_of"]

_TOP = 16  # most keys of a query that are told of one by one
_CELLS = 64  # cells of a head's map, in each direction
_ENTRIES = 1_800_000  # most weights of a page that are told of one by one, in three bytes each

# Weights are stored as whole numbers, minus their base-2 logarithm in so many steps; web/src/page/views.ts reads them.
_COARSE, _FINE = 12, 2048


def attention(
    model: nn.Module,
    tokenizer: Any,
    text: str | tuple[str, str],
    path: "str | os.PathLike[str] | None" = None,
    *,
    layers: Layers | None = None,
    heads: int | Sequence[int] | None = None,
    title: str = "Where the model looks",
) -> "Trace":
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
    shortest = min(each["input_ids"].shape[-1] for each in encoded)
    with (
        torch.no_grad(),
        record(model, layers=layers, heads=heads, top_k=min(_TOP, shortest), overview=_CELLS, pool="max") as trace,
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


def views_of(trace: "Trace") -> list[dict[str, Any]]:
    """The views of a trace with tokens, as `web/src/page/views.ts` reads them: one of each kind of attention."""
    kinds = {kind: [call for call in calls if call[1] == calls[0][1]] for kind, calls in trace.by_kind().items()}
    seen = {kind: [(name, _described(name, one)) for name, _, one in calls] for kind, calls in kinds.items()}
    rows = sum(one["top_weights"][..., 0].numel() for calls in seen.values() for _, one in calls)
    most = max(1, _ENTRIES // max(1, rows))
    return [
        {
            "kind": kind,
            "queries": _named(trace.tokens, "encoder" if kind == "encoder" else "self", calls[0][1], "queries"),
            "keys": _named(trace.tokens, "self" if kind == "self" else "encoder", calls[0][1], "keys"),
            "layers": [_layer(name, one, most) for name, one in calls],
        }
        for kind, calls in seen.items()
    ]


def _described(name: str, seen: Inspection) -> dict[str, Tensor]:
    """The largest weights (H, n, k) with their keys and the map (H, a, b), of the first element of a batch."""
    if seen.weights is not None:
        request = Request(top_k=min(_TOP, seen.weights.shape[-1]), overview=_CELLS, pool="max")
        of_map = of_all_weights(seen.weights[..., 0], seen.weights, request)
        seen = replace(of_map, heads=seen.heads, queries=seen.queries)
    if seen.top_weights is None or seen.top_keys is None or seen.overview is None:
        raise ValueError(f"trace[{name!r}]: got {', '.join(seen.tensors())}; expected weights, or top_k and overview")
    maps = {"top_weights": seen.top_weights, "top_keys": seen.top_keys, "overview": seen.overview}
    found = {what: tensor.reshape(-1, *tensor.shape[-3:])[0] if tensor.ndim > 3 else tensor[:1]
             for what, tensor in maps.items()}  # fmt: skip
    numbers = {"heads": seen.heads, "queries": seen.queries}
    return found | {what: tensor for what, tensor in numbers.items() if tensor is not None}


def _named(tokens: Mapping[str, list[Token]], kind: str, seen: Mapping[str, Tensor], axis: str) -> list[Token]:
    """The labels of an axis; numbers where there are too few, as in what a model wrote itself."""
    known, chosen = tokens.get(kind, []), seen.get("queries") if axis == "queries" else None
    count = seen["top_keys"].shape[-2] if axis == "queries" else int(seen["top_keys"].max()) + 1
    places = list(range(max(count, 0 if axis == "queries" else len(known)))) if chosen is None else chosen.tolist()
    return [known[place] if place < len(known) else Token(str(place)) for place in places]


def _layer(name: str, seen: Mapping[str, Tensor], most: int) -> dict[str, Any]:
    """One layer's numbers: of its heads the largest weights, with their keys, and the maps."""
    weights, keys = (seen[what][..., :most].numpy() for what in ("top_weights", "top_keys"))
    if keys.max(initial=0) >= 2**16:
        raise ValueError(f"trace[{name!r}]: got {keys.max() + 1} keys; expected at most {2**16}")
    heads = seen["heads"].tolist() if "heads" in seen else list(range(len(weights)))
    return {
        "name": name or "model",
        "heads": heads,
        "top": weights.shape[-1],
        "keys": _packed(np.maximum(keys, 0).astype("<u2")),
        "weights": _packed(_steps(weights, np.uint8, _COARSE)),
        "cells": list(seen["overview"].shape[-2:]),
        "map": _packed(_steps(seen["overview"].numpy(), np.uint16, _FINE)),
    }


def _steps(weights: NDArray[Any], kind: type, steps: int) -> NDArray[Any]:
    """Minus the base-2 logarithms in so many steps, rounded; the largest number for what is smaller still."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.rint(-np.log2(weights.astype(np.float64)) * steps)
    most = np.iinfo(kind).max
    return np.nan_to_num(logs, nan=most, posinf=most).clip(0, most).astype(kind)


def _packed(numbers: NDArray[Any]) -> str:
    """Numbers in base64, little-endian."""
    return base64.b64encode(numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()).decode()
