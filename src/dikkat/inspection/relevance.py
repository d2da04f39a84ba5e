"""Measures made of the weights of all layers together: rollout, and relevance by gradients."""

import warnings
from collections.abc import Callable, Sequence
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
from dikkat.inspection.captured import call_multi_head, multi_head_arguments
from dikkat.inspection.dataflow import Dataflow, Origin, Streams

__all__ = ["relevance", "rolled_out"]


def rolled_out(layers: Sequence[Tensor], chain: Sequence[tuple[int, int]]) -> Tensor:
    """The product of all layers' weights, (B, H, n, n) or (B, n, n), each the mean of its heads and the identity."""
    if not layers:
        raise ValueError("rollout: got no layer of self-attention; expected at least one")
    if not all(isinstance(each, Tensor) and each.ndim in (3, 4) and len({*each.shape[-2:]}) == 1 for each in layers):
        shapes = ", ".join(str(tuple(each.shape)) for each in layers if isinstance(each, Tensor)) or "of several runs"
        raise ValueError(
            f"rollout: got weights {shapes}; expected (B, H, n, n) or (B, n, n) of one run, recorded without `queries`"
        )
    check_chain("rollout", chain)
    whole = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype)
    for weights in layers:
        own = (_with_heads(weights).mean(1) + torch.eye(weights.shape[-1], dtype=weights.dtype)) / 2
        own = own / own.sum(-1, keepdim=True)
        whole = own @ whole
    return whole


def check_chain(name: str, chain: Sequence[tuple[int, int]]) -> None:
    """Check that each self-attention reads the sequence that the one before wrote, in the same arrangement."""
    for number, ((_, written), (read, _)) in enumerate(pairwise(chain), 1):
        if read != written:
            raise ValueError(
                f"{name}: got self-attention {number} that does not follow number {number - 1}: it reads another "
                "sequence, or other windows of it; expected layers of one sequence (choose them with `layers`)"
            )


def relevance(model: nn.Module, *arguments: Any, target: int | Callable[[Any], Tensor], **inputs: Any) -> Tensor:
    r"""How much each position matters to one result of a model, at each position: gradients × weights, layer by layer.

    $$ R \leftarrow R + \operatorname{mean}_h \big(\nabla A_h \odot A_h\big)^+ R, \qquad R_0 = I $$

    where A are the weights of a layer of self-attention, and ∇A the gradient of the result by them. A row of R says
    what mattered to a position: of a classifier the row of the position that it reads, such as `[0, 0]`. The model runs
    once, with its weights in the graph.

    Args:
        model: One with self-attention alone: of PyTorch's, dikkat's, or Hugging Face's ("sdpa", "eager" or "dikkat").
        *arguments: What it is called with.
        target: A function of the model's output that gives a number, or one for each element of the batch; or the
            number of a class, whose logit `output.logits[..., target]` is taken.
        **inputs: What it is called with, by name.

    Returns:
        (B, n, n), on the model's device, without a gradient.

    Raises:
        TypeError: `target` is neither.
        ValueError: No self-attention ran, or layers of several lengths; a result that no weight has a part in;
            PyTorch's attention within a checkpoint; a call within `vmap`, `grad` and their like, or in inference mode.

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
            "model: got a call within a transform of torch.func, or in inference mode; relevance takes a gradient "
            "itself: expected a call outside"
        )
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ValueError(f"model: got {type(model).__name__}, an encoder and decoder; expected self-attention alone")
    with torch.enable_grad(), uncompiled(), _Dense(model) as flow, recording_hooks.observed_by(flow):
        output = model(*arguments, **inputs)
        result = (target(output) if callable(target) else output.logits[..., target]).sum()
    if not flow.layers:
        raise ValueError(f"model: got {type(model).__name__}, in which no attention ran; expected self-attention")
    if flow.loses:
        warnings.warn(
            "relevance: left out weights that multiply values in a way that dikkat does not follow: apply softmax, "
            "then a product with the values (@, torch.bmm, torch.einsum)", stacklevel=2,
        )  # fmt: skip
    maps = [_with_heads(arranged(each.detach())) for each, arranged in zip(flow.layers, flow.arranged, strict=True)]
    lengths = {tuple(each.shape[-2:]) for each in maps}
    if flow.crosses or any(n != m for n, m in lengths) or any(each.ndim != 4 for each in maps):
        others = ", some of them of another sequence" if flow.crosses else ""
        raise ValueError(
            f"model: got weights of {', '.join(str(tuple(each.shape)) for each in maps)}{others}; expected "
            "self-attention alone, (B, H, n, n) or (B, n, n)"
        )
    check_chain("relevance", flow.chain)
    try:
        gradients = torch.autograd.grad(result, flow.layers, allow_unused=True) if result.requires_grad else ()
    except CheckpointError as error:
        raise ValueError(
            "model: got attention within a checkpoint, whose weights are not there twice; expected none, as after "
            "`gradient_checkpointing_disable()`, or a model in evaluation"
        ) from error
    if all(each is None for each in gradients):
        raise ValueError("target: got a result in which no weight has a part; expected one that depends on the model")
    first = maps[0]
    whole = torch.eye(first.shape[-1], device=first.device, dtype=first.dtype).expand(len(first), -1, -1)
    for weights, arranged, gradient in zip(maps, flow.arranged, gradients, strict=True):
        if gradient is not None:
            whole = whole + (_with_heads(arranged(gradient)) * weights).clamp(min=0).mean(1) @ whole
    return whole


def _with_heads(weights: Tensor) -> Tensor:
    """Weights (B, H, n, m), of weights (B, n, m) with one head."""
    return weights.unsqueeze(1) if weights.ndim == 3 else weights


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _rooted(tensor: Tensor) -> Tensor:
    """The tensor, in a graph also where no parameter has a gradient."""
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()


class _Dense(Dataflow):
    """Computes all attention by its weights, and collects these."""

    before_dropout = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.layers: list[Tensor] = []
        self.arranged: list[Callable[[Tensor], Tensor]] = []
        self.chain: list[tuple[int, int]] = []
        self.loses = False  # whether weights are not among them
        self.crosses = False  # whether a call looked at another sequence

    def softmax(self, name: str, logits: Tensor, function: Callable[[Tensor], Any]) -> tuple[Any, Tensor | None]:
        return function(_rooted(logits) if logits.is_floating_point() else logits), None

    def saw_weights(self, weights: Tensor, arranged: Callable[[Tensor], Tensor], streams: Streams) -> None:
        crosses = streams[0].sequence != streams[1].sequence
        if streams[0].pools and not crosses:  # a pool says nothing of one position to another
            return
        self.crosses |= crosses
        self.layers.append(weights)
        self.arranged.append(arranged)
        self.chain.append((self.continued_sequence(streams), streams[2].sequence))

    def lose_weights(self) -> None:
        self.loses = True

    def call_fused(self, function: Any, arguments: Any, named: Any, streams: Streams) -> Any:

        def attend(*inputs: Any, **more: Any) -> Tensor:
            result, weights = self._attend(*inputs, **more)
            self.saw_weights(weights, _unchanged, streams)
            return result

        if function is not F.multi_head_attention_forward:
            return attend(*arguments, **named)
        given = multi_head_arguments(*arguments, **named)
        output, weights = call_multi_head(attend, given), self.layers[-1]
        weights = weights.mean(1) if given["average_attn_weights"] else weights
        weights = weights[0] if given["query"].ndim == 2 else weights
        return output, weights if given["need_weights"] else None

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The output of `scaled_dot_product_attention`, and its weights."""
        query = _rooted(query)
        if enable_gqa:
            key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], dim=-3) for each in (key, value))
        logits = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
        if attn_mask is not None:
            hidden = logits.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else None
            logits = logits + attn_mask if hidden is None else hidden
        dead = (logits == -torch.inf).all(-1, keepdim=True)
        weights = torch.softmax(logits.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0)
        return F.dropout(weights, dropout_p) @ value, weights

    def compute(self, name: str, problem: Problem) -> Result | None:
        streams = self.streams_of(problem)
        with recording_hooks.observed_by(), torch._C.DisableTorchFunction():
            problem = replace(problem, query=_rooted(problem.query), kept=None)
            whole = run_problem(replace(problem, wants_weights=True), "reference")
        if whole.weights is not None:
            self.saw_weights(whole.weights, _unchanged, streams)
        return whole._replace(weights=whole.weights if problem.wants_weights else None)

    def observe_calls(self, problems: Sequence[Problem]) -> None:
        """Refuse packed sequences, the only calls that `compute` does not run."""
        raise ValueError("relevance: got a call of packed sequences (attend_ragged); expected a padded batch")

    def observe_weights(self, weights: Tensor) -> None:
        """Take what a recurrence made, which looks at a memory."""
        unknown = Origin(-1)
        self.saw_weights(weights, _unchanged, (unknown, Origin(0), unknown))
