"""Rollout and gradient relevance, computed from the weights of all layers."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointError

from dikkat._core import recording_hooks
from dikkat._core.dispatch import run_problem
from dikkat._core.problem import Problem, Result
from dikkat._engine.pytorch_state import is_transformed, uncompiled
from dikkat.inspection.dataflow import Dataflow
from dikkat.inspection.origins import Origin, Streams
from dikkat.inspection.torch_attention import call_multi_head, multi_head_arguments

__all__ = ["relevance", "rolled_out"]


def rolled_out(layers: Sequence[Tensor], chain: Sequence[tuple[int, int]]) -> Tensor:
    """Return the (B, n, n) product of all layers, each the mean of the identity and the weights (B, H, n, n)."""
    if not layers:
        raise ValueError("rollout: got no layer of self-attention; expected at least one")
    if not all(isinstance(t, Tensor) and t.ndim in (3, 4) and len({*t.shape[-2:]}) == 1 for t in layers):
        shapes = ", ".join(str(tuple(t.shape)) for t in layers if isinstance(t, Tensor)) or "of several runs"
        raise ValueError(
            f"rollout: got weights {shapes}; expected (B, H, n, n) or (B, n, n) of one run, recorded without `queries`"
        )
    check_chain("rollout", chain)
    rollout = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype)
    for weights in layers:
        layer_rollout = (_add_head_dim(weights).mean(1) + torch.eye(weights.shape[-1], dtype=weights.dtype)) / 2
        layer_rollout = layer_rollout / layer_rollout.sum(-1, keepdim=True)
        rollout = layer_rollout @ rollout
    return rollout


def check_chain(name: str, chain: Sequence[tuple[int, int]]) -> None:
    """Check that each self-attention reads the output of the previous one, in the same arrangement."""
    for number, ((_, written), (read, _)) in enumerate(pairwise(chain), 1):
        if read != written:
            raise ValueError(
                f"{name}: got self-attention {number} that does not follow number {number - 1}: it reads another "
                "sequence, or other windows; expected layers of one sequence (select them with `layers`)"
            )


def relevance(model: nn.Module, *arguments: Any, target: int | Callable[[Any], Tensor], **inputs: Any) -> Tensor:
    r"""Return the (B, n, n) relevance of each position to one result of a model: gradients × weights, layer by layer.

    $$ R \leftarrow R + \operatorname{mean}_h \big(\nabla A_h \odot A_h\big)^+ R, \qquad R_0 = I $$

    where A are the weights of a layer of self-attention, and ∇A is the gradient of the result with respect to A. Row i
    of R is the relevance of all positions to position i. For a classifier, use the row of the position that it
    classifies, such as `[0, 0]`. The model runs once, with its weights in the graph.

    Args:
        model: A model with only self-attention: PyTorch, dikkat, or Hugging Face ("sdpa", "eager" or "dikkat").
        *arguments: The model's inputs.
        target: A function of the model's output that returns a number, or one number per element of the batch; or the
            index of a class, whose logit `output.logits[..., target]` is the result.
        **inputs: The model's inputs by name.

    Returns:
        (B, n, n), on the model's device, without a gradient.

    Raises:
        TypeError: `target` is neither a function nor an index.
        ValueError: No self-attention ran; layers have different lengths; the result does not depend on the weights;
            attention ran inside gradient checkpointing; or the call is inside `vmap` or `grad`, or in inference mode.

    Source:
        Chefer, Gur and Wolf 2021, "Generic Attention-model Explainability", section 3, equations 5 and 6.

    Example:
        >>> import torch, dikkat
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 2), torch.nn.Linear(8, 3)).eval()
        >>> dikkat.relevance(model, torch.randn(1, 5, 8), target=lambda output: output[0, 0, 2]).shape
        torch.Size([1, 5, 5])
    """
    if not callable(target) and type(target) is not int:
        raise TypeError(f"target: got {type(target).__name__}; expected a function of the output, or a class's number")
    if is_transformed() or torch.is_inference_mode_enabled():
        raise ValueError(
            "model: got a call inside a transform of torch.func, or in inference mode; expected a call outside, as "
            "relevance computes a gradient"
        )
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ValueError(f"model: got {type(model).__name__}, an encoder and decoder; expected only self-attention")
    with torch.enable_grad(), uncompiled(), _Dense(model) as flow, recording_hooks.observed_by(flow):
        output = model(*arguments, **inputs)
        result = (target(output) if callable(target) else output.logits[..., target]).sum()
    if not flow.weights:
        raise ValueError(f"model: got {type(model).__name__}, in which no attention ran; expected self-attention")
    if flow.loses_weights:
        warnings.warn(
            "relevance: left out weights that multiply values in a way that dikkat does not follow: apply softmax, "
            "then a product with the values (@, torch.bmm, torch.einsum)", stacklevel=2,
        )  # fmt: skip
    layers = [_add_head_dim(arrange(w.detach())) for w, arrange in zip(flow.weights, flow.arrangements, strict=True)]
    lengths = {tuple(layer.shape[-2:]) for layer in layers}
    if flow.has_cross_attention or any(n != m for n, m in lengths) or any(layer.ndim != 4 for layer in layers):
        hint = ", some of them of another sequence" if flow.has_cross_attention else ""
        raise ValueError(
            f"model: got weights of {', '.join(str(tuple(layer.shape)) for layer in layers)}{hint}; expected "
            "only self-attention, (B, H, n, n) or (B, n, n)"
        )
    check_chain("relevance", flow.chain)
    try:
        gradients = torch.autograd.grad(result, flow.weights, allow_unused=True) if result.requires_grad else ()
    except CheckpointError as error:
        raise ValueError(
            "model: got attention inside gradient checkpointing; call `gradient_checkpointing_disable()` or `eval()` "
            "on the model"
        ) from error
    if all(gradient is None for gradient in gradients):
        raise ValueError("target: got a result that depends on no weight; expected a function of the model's output")
    first = layers[0]
    total = torch.eye(first.shape[-1], device=first.device, dtype=first.dtype).expand(len(first), -1, -1)
    for weights, arrange, gradient in zip(layers, flow.arrangements, gradients, strict=True):
        if gradient is not None:
            total = total + (_add_head_dim(arrange(gradient)) * weights).clamp(min=0).mean(1) @ total
    return total


def _add_head_dim(weights: Tensor) -> Tensor:
    """Return weights (B, H, n, m), with one head for weights (B, n, m)."""
    return weights.unsqueeze(1) if weights.ndim == 3 else weights


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _with_graph(tensor: Tensor) -> Tensor:
    """Return the tensor in a graph, even if no parameter has a gradient."""
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()


class _Dense(Dataflow):
    """Computes all attention with weights in the graph, and collects the weights."""

    before_dropout = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.add_constants(model)
        self.weights: list[Tensor] = []
        self.arrangements: list[Callable[[Tensor], Tensor]] = []
        self.chain: list[tuple[int, int]] = []
        self.loses_weights = False  # whether some weights are missing
        self.has_cross_attention = False  # whether a call read another sequence

    def softmax(self, name: str, logits: Tensor, function: Callable[[Tensor], Any]) -> tuple[Any, Tensor | None]:
        return function(_with_graph(logits) if logits.is_floating_point() else logits), None

    changes = False

    def as_heads(self) -> None:
        """Return None: relevances need repeated keys."""

    def as_one_call(self) -> AbstractContextManager[None]:
        return recording_hooks.observed_by(None)

    def saw_weights(
        self, weights: Tensor, logits: Tensor | None, arrange: Callable[[Tensor], Tensor], streams: Streams
    ) -> None:
        is_cross = streams[0].sequence != streams[1].sequence
        if streams[0].is_pool and not is_cross:  # a pool relates no positions to each other
            return
        self.has_cross_attention |= is_cross
        self.weights.append(weights)
        self.arrangements.append(arrange)
        self.chain.append((self.continued_sequence(streams), streams[2].sequence))

    def lose_weights(self) -> None:
        self.loses_weights = True

    def call_fused(self, function: Any, arguments: Any, keywords: Any, streams: Streams) -> Any:

        def attend(*inputs: Any, **options: Any) -> Tensor:
            result, weights = self._attend(*inputs, **options)
            self.saw_weights(weights, None, _unchanged, streams)
            return result

        if function is not F.multi_head_attention_forward:
            return attend(*arguments, **keywords)
        bound = multi_head_arguments(*arguments, **keywords)
        output, weights = call_multi_head(attend, bound), self.weights[-1]
        weights = weights.mean(1) if bound["average_attn_weights"] else weights
        weights = weights[0] if bound["query"].ndim == 2 else weights
        return output, weights if bound["need_weights"] else None

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return the output of `scaled_dot_product_attention` and its weights."""
        query = _with_graph(query)
        if enable_gqa:
            key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], dim=-3) for t in (key, value))
        logits = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
        if attn_mask is not None:
            masked = logits.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else None
            logits = logits + attn_mask if masked is None else masked
        blind = (logits == -torch.inf).all(-1, keepdim=True)
        weights = torch.softmax(logits.masked_fill(blind, 0.0), -1).masked_fill(blind, 0.0)
        return F.dropout(weights, dropout_p) @ value, weights

    def run_call(self, name: str, problem: Problem, run: Callable[[Problem], Result]) -> Result:
        """Compute the weights of a call in the graph."""
        streams = self.streams(problem.query, problem.key)
        with torch._C.DisableTorchFunction():
            problem = replace(problem, query=_with_graph(problem.query), kept=None)
            full = run_problem(replace(problem, wants_weights=True), "reference")
        if full.weights is not None:
            self.saw_weights(full.weights, None, _unchanged, streams)
        self.follow(full.mean, streams[2])
        return full._replace(weights=full.weights if problem.wants_weights else None)

    def observe_calls(self, problems: Sequence[Problem], output: Tensor | None = None) -> None:
        """Raise an error for packed sequences, the only calls that `run_call` does not run."""
        raise ValueError("relevance: got a call of packed sequences (attend_ragged); expected a padded batch")

    def observe_weights(self, weights: Tensor) -> None:
        """Note the weights of a recurrence."""
        unknown = Origin(-1)
        self.saw_weights(weights, None, _unchanged, (unknown, Origin(0), unknown))
