"""Measures made of the weights of all layers together: rollout, and relevance by gradients."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointError

from dikkat._core import recording_hooks
from dikkat._core.dispatch import run_problem
from dikkat._core.problem import Problem, Result
from dikkat._engine.pytorch_state import is_transformed, uncompiled
from dikkat.inspection.captured import given_to_heads, heads_of

__all__ = ["relevance", "rolled_out"]


def rolled_out(layers: Sequence[Tensor]) -> Tensor:
    """The product of all layers' weights (B, H, n, n), of each the mean of its heads and the identity: (B, n, n)."""
    if not layers:
        raise ValueError("rollout: got no layer of self-attention; expected at least one")
    whole = torch.eye(layers[0].shape[-1])
    for weights in layers:
        if weights.ndim != 4 or weights.shape[-1] != weights.shape[-2] or weights.shape[-1] != layers[0].shape[-1]:
            raise ValueError(
                f"rollout: got weights {tuple(weights.shape)}; expected (B, H, n, n), with the same n in every layer: "
                "record one run, without `queries`, of layers that follow each other"
            )
        own = (weights.mean(-3) + torch.eye(weights.shape[-1])) / 2
        own = own / own.sum(-1, keepdim=True)
        whole = own @ whole
    return whole


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
    with torch.enable_grad(), uncompiled(), _in_graph() as layers:
        output = model(*arguments, **inputs)
        result = (target(output) if callable(target) else output.logits[..., target]).sum()
    _check_lengths(model, layers)
    try:
        gradients = torch.autograd.grad(result, layers, allow_unused=True) if result.requires_grad else ()
    except CheckpointError as error:
        raise ValueError(
            "model: got attention within a checkpoint, whose weights are not there twice; expected none, as after "
            "`gradient_checkpointing_disable()`, or a model in evaluation"
        ) from error
    if all(each is None for each in gradients):
        raise ValueError("target: got a result in which no weight has a part; expected one that depends on the model")
    whole = torch.eye(layers[0].shape[-1], device=layers[0].device, dtype=layers[0].dtype).expand(
        len(layers[0]), -1, -1
    )
    for weights, gradient in zip(layers, gradients, strict=True):
        if gradient is not None:
            whole = whole + (gradient * weights).detach().clamp(min=0).mean(1) @ whole
    return whole


def _check_lengths(model: nn.Module, layers: list[Tensor]) -> None:
    if not layers:
        raise ValueError(f"model: got {type(model).__name__}, in which no attention was seen; expected self-attention")
    lengths = {tuple(each.shape[-2:]) for each in layers}
    if len(lengths) > 1 or any(n != m for n, m in lengths) or any(each.ndim != 4 for each in layers):
        raise ValueError(
            f"model: got attention of {', '.join(map(str, sorted(lengths)))} queries and keys; expected self-attention "
            "of one length alone, (B, H, n, n)"
        )


@contextmanager
def _in_graph() -> Iterator[list[Tensor]]:
    """Within, this thread's attention is computed by its weights, which are collected and have gradients."""
    found: list[Tensor] = []
    with recording_hooks.observed_by(_Dense(found)), _Mode(found):
        yield found


def _rooted(tensor: Tensor) -> Tensor:
    """The tensor, in a graph also where no parameter has a gradient."""
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()


class _Dense:
    """Computes dikkat's calls by all their weights."""

    def __init__(self, found: list[Tensor]) -> None:
        self._found = found

    def compute(self, name: str, problem: Problem) -> Result | None:
        """The result, and its weights kept."""
        with recording_hooks.observed_by():
            problem = replace(problem, query=_rooted(problem.query), kept=None)
            whole = run_problem(replace(problem, wants_weights=True), "reference")
        if whole.weights is not None:
            self._found.append(whole.weights)
        return whole._replace(weights=whole.weights if problem.wants_weights else None)

    def observe_calls(self, problems: Sequence[Problem]) -> None:
        """Refuse packed sequences, the only calls that `compute` does not run."""
        raise ValueError("relevance: got a call of packed sequences (attend_ragged); expected a padded batch")

    def observe_weights(self, weights: Tensor) -> None:
        """Take what a recurrence made."""
        self._found.append(weights)


class _Mode(TorchFunctionMode):
    """Computes PyTorch's attention by its weights."""

    def __init__(self, found: list[Tensor]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is F.multi_head_attention_forward:
            return self._attend_by_heads(given_to_heads(*args, **named))
        if func is F.scaled_dot_product_attention:
            return self._attend(*args, **named)
        if func is F.softmax and args:
            args = _rooted(args[0]), *args[1:]
        result = func(*args, **named)
        if func is F.softmax and result.ndim == 4:
            self._found.append(result)
        return result

    def _attend_by_heads(self, given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """`multi_head_attention_forward`, by its weights."""
        query, key, mask = heads_of(given)
        value, heads, alone = given["value"], given["num_heads"], given["value"].ndim == 2
        matrix = given["v_proj_weight"] if given["use_separate_proj_weight"] else given["in_proj_weight"].chunk(3)[2]
        bias = given["in_proj_bias"]
        value = F.linear(value[:, None] if alone else value, matrix, None if bias is None else bias.chunk(3)[2])
        if given["bias_v"] is not None:
            value = torch.cat([value, given["bias_v"].expand(1, value.shape[1], -1)])
        if given["add_zero_attn"]:
            value = torch.cat([value, value.new_zeros(1, *value.shape[1:])])
        value = value.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
        value = value if given["static_v"] is None else given["static_v"].unflatten(0, (-1, heads))
        mean = self._attend(query, key, value, mask, given["dropout_p"] if given["training"] else 0.0)
        output = F.linear(mean.permute(2, 0, 1, 3).flatten(-2), given["out_proj_weight"], given["out_proj_bias"])
        weights = self._found[-1].mean(1) if given["average_attn_weights"] else self._found[-1]
        weights = weights[0] if alone else weights
        return output[:, 0] if alone else output, weights if given["need_weights"] else None

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """`scaled_dot_product_attention`, by its weights."""
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
        self._found.append(weights)
        return F.dropout(weights, dropout_p) @ value
