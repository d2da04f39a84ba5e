"""All weights of a model in the form of transformers' `output_attentions=True`."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dikkat.inspection.calls import OWN_SOFTMAX, Attentions
from dikkat.inspection.layer_selection import Layers
from dikkat.inspection.observation import NotSeenError
from dikkat.inspection.recording import record
from dikkat.inspection.request import Request
from dikkat.inspection.torch_attention import inspect_weights

__all__ = ["attentions"]


def attentions(
    model: nn.Module,
    *arguments: Any,
    layers: Layers | None = None,
    heads: int | Sequence[int] | None = None,
    queries: int | Sequence[int] | slice | None = None,
    **inputs: Any,
) -> Attentions:
    """Return the weights of one run, layer by layer, like `output_attentions=True` with "eager" attention.

    The model runs on its fast path, without gradients. A Hugging Face model runs a second time, with
    `output_attentions=True`, if dikkat does not know which weights it returns or cannot record some layers. The result
    then has the returned weights (see `repr`). Weights are before dropout. A query that sees no key has weights of 0,
    not uniform weights as with "eager".

    If weights of an encoder or of cross attention have another form, such as windows, they are left out with a warning.

    Args:
        model: A Hugging Face model, or any model that `dikkat.record` accepts.
        *arguments: The model's inputs.
        layers: The selected layers, as in `dikkat.record`; all by default.
        heads: The selected heads; all by default.
        queries: The selected queries; all by default.
        **inputs: The model's inputs by name.

    Returns:
        A tuple of (B, H, n, m) for each layer, on the CPU, as in `dikkat.Trace.attentions`. For an encoder and decoder,
        the tuple has the decoder's weights, and `.encoder_attentions` and `.cross_attentions` have the other weights.
        `.by_name` has the weights of each call of every module. `repr` lists all weights.

    Raises:
        TypeError: As in `dikkat.record`.
        ValueError: As in `dikkat.record`.

    Example:
        >>> import torch, dikkat
        >>> model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), 3)
        >>> weights = dikkat.attentions(model, torch.randn(1, 5, 8), heads=[0])
        >>> len(weights), weights[2].shape
        (3, torch.Size([1, 1, 5, 5]))
    """
    can_return, devices = hasattr(model, "get_encoder") and layers is None, {p.device for p in model.parameters()}
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
    with torch.no_grad():  # with the random numbers of the first run, because Informer samples keys
        returned = model(*arguments, **inputs, output_attentions=True)
    returned_maps = {name: returned[name] or () for name in returned if "attentions" in name}
    decoder = "decoder_attentions" if "decoder_attentions" in returned_maps else "attentions"
    sizes = {tuple(inspection.weights.shape[-2:]) for _, _, inspection in trace if inspection.weights is not None}
    source = OWN_SOFTMAX if any(call.source for call, _ in trace.calls()) else ""
    request, by_kind, omitted = Request(weights=True, heads=heads, queries=queries), dict[str, list[Any]](), list[str]()
    for kind, name in (("self", decoder), ("encoder", "encoder_attentions"), ("cross", "cross_attentions")):
        maps = returned_maps.pop(name, ())
        is_whole = name.replace("attentions", "global_attentions") not in returned_maps
        if kind not in trace.lacking:
            by_kind[kind] = [inspection.weights for call, inspection in trace.calls() if call.kind == kind]
        elif is_whole and all(_is_map(weights, sizes, kind) for weights in maps):
            by_kind[kind] = [inspect_weights(weights, request).weights for weights in maps]
            source = "returned by the model"
        else:
            by_kind[kind] = []
            omitted.append(name)
    if not by_kind["self"] or any(not name.startswith("encoder_") for name in returned_maps):
        return trace.attentions()  # raises an error: the model returns no weights (B, H, n, m)
    if omitted:
        names = ", ".join(omitted)
        reason = f"for which {type(model).__name__} returns no weights (B, H, n, m)"
        warnings.warn(f"attentions: left out {names}, {reason}", stacklevel=2)
    by_name: dict[str, Any] = {
        name: tuple(inspection.weights for module, _, inspection in trace if module == name) for name in trace.names
    }
    return Attentions(by_kind["self"], by_kind["encoder"], by_kind["cross"], by_name, source)


def _is_map(weights: Any, recorded: set[tuple[int, ...]], kind: str) -> bool:
    """Return whether a tensor has weights (B, H, n, m); for self-attention square or of a recorded call's size."""
    if not isinstance(weights, torch.Tensor) or weights.ndim != 4:
        return False
    if bool((weights < 0).any()) or bool((weights.sum(-1) > 1.01).any()):  # such as Autoformer's correlations
        return False
    queries, keys = weights.shape[-2:]
    return kind == "cross" or queries == keys or (queries, keys) in recorded
