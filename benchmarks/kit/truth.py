"""Compute the exact answer in float64, and the allowed error of an answer.

Error ≤ 2 × plain PyTorch's error in the same dtype + 4·eps·S, with S the sum of absolute values that a quantity sums.

For large problems, rows are sampled and the upstream gradient is 0 in all other rows. Then every gradient, also the
gradient of each key, is a sum over the sampled rows only.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.kit.cases import Arrays, Case

# Pair-features that are computed in float64, for a second or two.
_WORK = 2**25
# Elements of one tensor of a chunk.
_CHUNK = 2**22


class Truth(NamedTuple):
    """Attributes:
    rows: The sampled queries.
    upstream: The upstream gradient; 0 in all other rows.
    exact: The exact `output` in these rows, and the gradient of each leaf.
    allowed: The largest allowed error of each.
    """

    rows: np.ndarray
    upstream: np.ndarray
    exact: dict[str, Tensor]
    allowed: dict[str, float]

    def errors(self, answer: Arrays) -> dict[str, tuple[float, float]]:
        """Return the largest error and the allowed error of each part of an answer."""
        errors = {}
        for name, array in answer.items():
            answered = torch.from_numpy(array).to(self.exact[name])
            if name == "output":
                answered = answered[:, self.rows]
            error = (answered - self.exact[name]).abs().max().item()
            errors[name] = (error, self.allowed[name])
        return errors


def truth(case: Case, inputs: Arrays, device: str = "cpu") -> Truth:
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(case.queries)[: max(1, _WORK * case.queries // case.pair_features)])
    upstream = np.zeros_like(inputs["upstream"])
    upstream[:, rows] = inputs["upstream"][:, rows]
    dtype = getattr(torch, case.dtype)
    tensors = {
        name: torch.from_numpy(array).to(device, dtype) if name != "valid_lens" else torch.from_numpy(array).to(device)
        for name, array in (inputs | {"upstream": upstream}).items()
    }
    exact = _answer(case, tensors, rows, torch.float64)
    plain = _answer(case, tensors, rows, dtype)
    scales = _scales(case, tensors, rows)
    eps = torch.finfo(dtype).eps
    allowed = {}
    for name, expected in exact.items():
        # In bfloat16, the second term of a long sum would allow any answer.
        slack = min(4 * eps * scales[name], expected.abs().max().item() / 8)
        allowed[name] = 2 * (plain[name].double() - expected).abs().max().item() + slack
    return Truth(rows, upstream, exact, allowed)


def _chunks(case: Case, rows: np.ndarray) -> Iterator[np.ndarray]:
    size = max(1, _CHUNK * case.queries // case.pair_features)
    yield from (rows[start : start + size] for start in range(0, len(rows), size))


def _weights(case: Case, query: Tensor, key: Tensor, v: Tensor, valid_lens: Tensor | None) -> tuple[Tensor, Tensor]:
    """The pair tensor, tanh(q + k) or q − k, and the weights."""
    if case.task == "additive":
        pairs = torch.tanh(query[:, :, None] + key[:, None])
        scores = pairs @ v
    else:
        pairs = query[:, :, None] - key[:, None]
        scores = pairs.square().sum(-1) / -2
    if valid_lens is not None:
        hidden = torch.arange(case.keys, device=key.device) >= valid_lens[:, None, None]
        scores = scores.masked_fill(hidden, -float("inf"))
    return pairs, torch.softmax(scores, -1)


def _answer(case: Case, inputs: dict[str, Tensor], rows: np.ndarray, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the answer of plain PyTorch in a dtype, computed in chunks of rows."""
    leaves = {name: inputs[name].to(dtype).requires_grad_() for name in case.leaves}
    outputs, grads = [], {name: torch.zeros_like(leaf, dtype=torch.float64) for name, leaf in leaves.items()}
    for chunk in _chunks(case, rows):
        weight = leaves.get("weight", leaves["query"])
        _, weights = _weights(case, leaves["query"][:, chunk], leaves["key"], weight, inputs.get("valid_lens"))
        out = weights @ leaves["value"]
        outputs.append(out.detach())
        upstream = inputs["upstream"][:, chunk].to(dtype)
        for name, grad in zip(leaves, torch.autograd.grad(out, list(leaves.values()), upstream), strict=True):
            grads[name] += grad
    return {"output": torch.cat(outputs, 1)} | {name: grad.to(dtype) for name, grad in grads.items()}


@torch.no_grad()
def _scales(case: Case, inputs: dict[str, Tensor], rows: np.ndarray) -> dict[str, float]:
    """Return the largest S of each part of the answer."""
    query, key, value, v = (inputs[name].double() for name in ("query", "key", "value", "weight"))
    sums = {name: torch.zeros_like(inputs[name], dtype=torch.float64) for name in case.leaves}
    for chunk in _chunks(case, rows):
        upstream = inputs["upstream"][:, chunk].double().abs()
        pairs, weights = _weights(case, query[:, chunk], key, v, inputs.get("valid_lens"))
        by_weights = upstream @ value.abs().mT
        by_scores = weights * (by_weights + (weights * by_weights).sum(-1, keepdim=True))
        slopes = (1 - pairs.square()) * v.abs() if case.task == "additive" else pairs.abs()
        sums["value"] += weights.mT @ upstream
        sums["query"][:, chunk] = torch.einsum("bnm,bnmh->bnh", by_scores, slopes)
        sums["key"] += torch.einsum("bnm,bnmh->bmh", by_scores, slopes)
        if "weight" in sums:
            sums["weight"] += torch.einsum("bnm,bnmh->h", by_scores, pairs.abs())
    return {name: tensor.max().item() for name, tensor in sums.items()} | {"output": value.abs().max().item()}
