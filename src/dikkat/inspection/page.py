"""`dikkat.show.attention` and `dikkat.show.weights`: pages of attention with one call."""

import os
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dikkat.inspection.calls import Call
from dikkat.inspection.image_inputs import is_processor
from dikkat.inspection.image_pages import locate_images, record_written_words
from dikkat.inspection.layer_selection import Layers
from dikkat.inspection.recording import record
from dikkat.inspection.request import Inspection, Requesting
from dikkat.inspection.text_inputs import check_tokenizer, encode_texts
from dikkat.inspection.trace import PAGE_TITLE, Trace
from dikkat.show.arrays import Weights, as_array
from dikkat.show.positions import Part, Token, Tokens, of_only_element, tokens_of
from dikkat.show.views import CELLS, TOP

__all__ = ["attention", "weights"]


def attention(
    model: nn.Module,
    *arguments: Any,
    tokens: Tokens | Sequence[Tokens] | None = None,
    path: str | os.PathLike[str] | None = None,
    element: int | Sequence[int] | None = None,
    layers: Layers | None = None,
    heads: int | Sequence[int] | None = None,
    title: str = PAGE_TITLE,
    effects: Any = None,
    **inputs: Any,
) -> Trace:
    """Write a self-contained page of a model's attention in a text.

    For a Hugging Face model, pass its tokenizer and a text: `attention(model, tokenizer, text, "page.html")`. For an
    image, pass the processor: `attention(model, processor, image, "page.html")`, or `(image, text)` for a model that
    reads both. `([image, image], text)` has several images. `[image, image]` is a batch, for a model without text. With
    `max_new_tokens`, the page has a map for each word that the model writes. For other models, pass the inputs and a
    label for each position: `attention(model, x, tokens=["a", "b"], path="p.html")`.

    dikkat measures the position of each token on the image: it runs the processor on test images, and the model's
    embeddings with gradients. If tokens have no such position, as after a resampler, an error shows how to pass them.

    The page opens on the most informative head, with lines from each token to the tokens that it attends to. It also
    has the main pattern of each head, all layers and heads as small maps, and the weight of one pair in all heads. The
    recorded run uses the model's fast path, without gradients.

    Args:
        model: Any model that `dikkat.record` accepts.
        *arguments: A tokenizer and a text (for an encoder and decoder a tuple of source and target), or a processor and
            an image, a list of images, or a tuple of these and a text; optionally the path. An image is a Pillow image,
            a path, or an array or tensor, as in `dikkat.Grid`. dikkat calls the tokenizer with a text and uses its
            `convert_ids_to_tokens` and `all_special_ids`. If you pass `tokens`, the model's inputs.
        tokens: The labels of queries and keys: a list of strings and parts (`dikkat.Grid`, `Words`, `Times`), a part,
            or two lists (source, target). For several elements, or a batch of one, a list with the labels of each
            element. Default: the tokenizer's tokens, or 0, 1, ...
        path: The file; its folder must exist. None writes no file: the trace shows the page as the last value of a
            notebook cell.
        element: The element of the batch on the page, or several to choose from. Default: all images of a list, or all
            elements with a list of labels in `tokens`; otherwise the first.
        layers: The selected layers, as in `dikkat.record`. Default: all; for a model that writes a text about an image,
            the layers of the language model.
        heads: The selected heads; all by default.
        title: The heading.
        effects: A table of `dikkat.effects`, by which the page in `path` ranks and colours the heads.
        **inputs: The model's inputs by name; with a processor, `max_new_tokens` and other arguments of `generate`. With
            `neutral`, a prompt such as "Write a general description of the image.", the weights of image tokens are
            divided by those of this prompt's last query, and scaled to a sum of 1 for each head. Weights below 2⁻²⁴
            count as 2⁻²⁴.

    Returns:
        The trace, with the largest weights of each query, an overview of each head, and the tokens.

    Raises:
        TypeError: The text is neither a string nor a tuple of two strings, or tokens are not strings.
        ValueError: The text has no tokens or is too long for the model, the tokenizer or processor belongs to another
            model, tokens have another length, the positions on the image are unknown, or `dikkat.record` raises.
        OSError: The system could not write; an existing file is unchanged.

    Source:
        The views: Vig 2019, "A Multiscale Visualization of Attention in the Transformer Model". Division by a neutral
        prompt: Zhang et al. 2025, "MLLMs Know Where to Look", section 4.1, relative attention.
    """
    labels: Any = tokens
    first = arguments[0] if arguments else inputs.get("tokenizer")
    check_tokenizer(first)
    reads_text = callable(getattr(first, "convert_ids_to_tokens", None))
    if tokens is None and reads_text and len(arguments) + ("tokenizer" in inputs) + ("text" in inputs) > 1:
        tokenizer, text, *rest = [*arguments, *(inputs.pop(name) for name in ("tokenizer", "text") if name in inputs)]
        path = rest[0] if rest else path
        arguments, (inputs, labels) = (), encode_texts(model, tokenizer, text)
    elif tokens is None and arguments and is_processor(arguments[0]):
        processor, *rest = arguments
        if not 0 < len(rest) < 3:
            raise TypeError(f"attention: got {len(rest)} arguments after the processor; expected an image or "
                            "(image, text), and optionally the path")  # fmt: skip
        path = rest[1] if len(rest) > 1 else path
        if "max_new_tokens" in inputs:
            trace = record_written_words(model, processor, rest[0], layers, heads, **inputs)
            return _write_page(trace, path, element=element or 0, title=title, effects=effects)
        if inputs:
            raise TypeError(f"{next(iter(inputs))}: got an argument without max_new_tokens; expected only an image, or "
                            "(image, text)")  # fmt: skip
        arguments, (inputs, labels, layers) = (), locate_images(model, processor, rest[0], layers, heads)
    # Lists of labels belong to all elements, unless `element` selects some of them.
    is_batch = isinstance(labels, list) and len(labels) > 1 and not isinstance(labels[0], str | Token | Part)
    has_all = tokens is None or element is None or isinstance(element, int)
    labelled: Any = element if not has_all else [*range(len(labels))] if is_batch else 0
    element = labelled if element is None else element
    request = request_of_page(labels if isinstance(labelled, int) or labels is None else labels[0], heads)
    with torch.no_grad(), record(model, layers=layers, **request) as trace:
        model(*arguments, **inputs)
    if labels is not None:
        trace.set_tokens(labels, labelled)
    return _write_page(trace, path, element=element, title=title, effects=effects)


def _write_page(trace: Trace, path: str | os.PathLike[str] | None, *, effects: Any, **options: Any) -> Trace:
    if path is not None:
        trace.to_html(path, effects=effects, **options)
    elif effects is not None:
        raise ValueError("effects: got a table without path; expected a path, or trace.to_html(path, effects=table)")
    return trace


def request_of_page(tokens: Any, heads: int | Sequence[int] | None) -> Requesting:
    """Return what a page needs of each call; with grids in the tokens, also the mean weights of blocks of patches."""
    sequences = {} if tokens is None else tokens_of(of_only_element(tokens))
    request: Requesting = {"top_k": TOP, "overview": CELLS, "pool": "max", "heads": heads}
    return request | {"blocks": sequences} if any(labels.parts for labels in sequences.values()) else request


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
