"""All weights of a model in the form in which transformers returns them."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dikkat.inspection.captured import inspect_weights
from dikkat.inspection.layer_selection import Layers
from dikkat.inspection.recording import NotSeenError, record
from dikkat.inspection.request import Request
from dikkat.inspection.trace import OWN_SOFTMAX, Attentions

__all__ = ["attentions"]


def attentions(
    model: nn.Module,
    *arguments: Any,
    layers: Layers | None = None,
    heads: int | Sequence[int] | None = None,
    queries: int | Sequence[int] | slice | None = None,
    **inputs: Any,
) -> Attentions:
    """The weights of one run of a model, layer by layer: what `output_attentions=True` returns with "eager" attention.

    The model runs as it is, on its fast path, without gradients. If one of Hugging Face's models does not say which
    weights it returns, or has layers that cannot be recorded, it runs once more with `output_attentions=True`, and the
    result is what it returns; `repr` says so. Weights are those before dropout; a query that sees no
    key has none, while "eager" gives it the mean of all.

    If an encoder's weights or those of cross attention have another form, such as windows, a warning says that they are
    left out.

    Args:
        model: One of Hugging Face's, or any that `dikkat.record` takes.
        *arguments: What the model is called with.
        layers: Which layers, as `dikkat.record` takes them; all, where not given.
        heads: Which heads; all, where not given.
        queries: Which queries; all, where not given.
        **inputs: What the model is called with, by name.

    Returns:
        A tuple of (B, H, n, m) for each layer, on the CPU, as `dikkat.Trace.attentions` has it: that of the decoder, of
        an encoder and decoder; `.encoder_attentions` and `.cross_attentions` are the others, and `.by_name` has the
        weights of every call of every module that attended. `repr` says what there is.

    Raises:
        TypeError: As `dikkat.record` raises it.
        ValueError: As `dikkat.record` raises it.

    Example:
        >>> import torch, dikkat
        >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), 3)
        >>> weights = dikkat.attentions(model, torch.randn(1, 5, 8), heads=[0])
        >>> len(weights), weights[2].shape
        (3, torch.Size([1, 1, 5, 5]))
    """
    can_return, devices = hasattr(model, "get_encoder") and layers is None, {each.device for each in model.parameters()}
    with torch.random.fork_rng([device for device in devices if device.type == "cuda"], enabled=can_return):
        try:
            with torch.no_grad(), record(model, layers=layers, heads=heads, queries=queries, weights=True) as trace:
                model(*arguments, **inputs)
        except NotSeenError as error:
            if not can_return:
                raise
            trace.withheld = str(error)
    if not trace.withheld or not can_return:
        return trace.attentions()
    with torch.no_grad():  # with the random numbers of the first run, as Informer draws keys
        returned = model(*arguments, **inputs, output_attentions=True)
    found = {name: returned[name] or () for name in returned if "attentions" in name}
    decoder = "decoder_attentions" if "decoder_attentions" in found else "attentions"
    sizes = {tuple(seen.weights.shape[-2:]) for _, _, seen in trace if seen.weights is not None}
    source = OWN_SOFTMAX if any(call.source for call, _ in trace.calls()) else ""
    request, parts, left_out = Request(weights=True, heads=heads, queries=queries), dict[str, list[Any]](), list[str]()
    for kind, name in (("self", decoder), ("encoder", "encoder_attentions"), ("cross", "cross_attentions")):
        maps = found.pop(name, ())
        is_whole = name.replace("attentions", "global_attentions") not in found
        if kind not in trace.lacking:
            parts[kind] = [seen.weights for call, seen in trace.calls() if call.kind == kind]
        elif is_whole and all(_is_map(each, sizes, kind) for each in maps):
            parts[kind] = [inspect_weights(each, request).weights for each in maps]
            source = "returned by the model"
        else:
            parts[kind] = []
            left_out.append(name)
    if not parts["self"] or any(not name.startswith("encoder_") for name in found):
        return trace.attentions()  # raises: what the model returns are no maps (B, H, n, m)
    if left_out:
        names = ", ".join(left_out)
        warnings.warn(f"attentions: {names}: left out: {type(model).__name__} returns no (B, H, n, m)", stacklevel=2)
    by_name: dict[str, Any] = {
        name: tuple(seen.weights for other, _, seen in trace if other == name) for name in trace.names
    }
    return Attentions(parts["self"], parts["encoder"], parts["cross"], by_name, source)


def _is_map(weights: Any, recorded: set[tuple[int, ...]], kind: str) -> bool:
    """Whether a tensor has weights (B, H, n, m) of m keys: self-attention is square, or as wide as a recorded call."""
    if not isinstance(weights, torch.Tensor) or weights.ndim != 4:
        return False
    if bool((weights < 0).any()) or bool((weights.sum(-1) > 1.01).any()):  # such as Autoformer's correlations
        return False
    queries, keys = weights.shape[-2:]
    return kind == "cross" or queries == keys or (queries, keys) in recorded
