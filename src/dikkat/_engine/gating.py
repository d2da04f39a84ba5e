"""The gated network w·(tanh(V h) ⊙ sigmoid(U h)) of each row, in blocks of rows to save memory."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from dikkat._engine.addresses import are_batched
from dikkat._engine.local_gradients import local_gradients
from dikkat._engine.pytorch_state import autocasts, is_eager

# Numbers in a block: 768 kB in float32, so that the tensors of a block fit in the caches.
_BLOCK = 3 * 2**16
# A forward keeps hidden features up to this share of the rows' memory; the backward computes the rest again.
_KEPT = 0.25


def blocks(rows: Tensor, width: int) -> Iterator[slice]:
    """Yield slices of rows with about `_BLOCK` numbers, for `width` numbers in a row."""
    step = max(64, _BLOCK // max(1, width))
    return (slice(start, min(start + step, len(rows))) for start in range(0, len(rows), step))


def gated(
    rows: Tensor, V: nn.Linear, U: nn.Linear | None, w: nn.Linear, known: list[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return w·(tanh(V h) ⊙ sigmoid(U h)) of each row (..., m, d), without the gate if U is None.

    `known` contains the scores of these rows from an earlier pass, or is empty to receive them; no hidden features are
    then kept. Returns (..., m, heads), float32 or wider, and the rows: later computations must use the returned rows.
    """
    parameters = [V.weight, V.bias, w.weight, w.bias, *([] if U is None else [U.weight, U.bias])]
    if rows.is_meta or not is_eager() or autocasts(rows.device.type):
        return _unblocked(rows, *parameters), rows
    scores, same_rows = _Gated.apply(rows, known, *parameters)  # type: ignore[no-untyped-call]
    return scores, same_rows


def _unblocked(rows: Tensor, *parameters: Tensor) -> Tensor:
    rows, V, V_bias, w, w_bias, *gate = (t.to(_wide(rows)) for t in (rows, *parameters))
    hidden = linear(rows, V, V_bias).tanh()
    return linear(hidden * linear(rows, *gate).sigmoid() if gate else hidden, w, w_bias)


def _wide(rows: Tensor) -> torch.dtype:
    return torch.promote_types(rows.dtype, torch.float32)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, known: list[Tensor] | None, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        network, x, same_rows = _Network(rows, parameters), rows.reshape(-1, rows.shape[-1]), rows.view_as(rows)
        budget = int(_KEPT * x.nbytes) if any(ctx.needs_input_grad) and known is None else 0
        kept_hidden = x.new_empty(min(len(x), budget // network.nbytes), network.width, dtype=network.dtype)
        scores = known[0].clone() if known else x.new_empty(len(x), len(network.w), dtype=network.dtype)
        for block in blocks(x, network.width) if not known else ():
            hidden = network.hidden(x[block], kept_hidden[block] if block.stop <= len(kept_hidden) else None)
            torch.addmm(network.w_bias, network.product(hidden), network.w.T, out=scores[block])
        if known == []:
            known.append(scores.detach())
        ctx.save_for_backward(rows, kept_hidden, *parameters)
        ctx.set_materialize_grads(False)
        if not ctx.needs_input_grad[0]:
            ctx.mark_non_differentiable(same_rows)
        return scores.reshape(*rows.shape[:-1], len(network.w)), same_rows

    @staticmethod
    def backward(ctx: Any, above: Tensor | None, rows_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        rows, kept_hidden, *parameters = ctx.saved_tensors
        if above is None:
            return rows_grad, None, *[None] * len(parameters)
        if torch.is_grad_enabled() or are_batched(above, rows_grad):
            needs = [ctx.needs_input_grad[0], *ctx.needs_input_grad[2:]]
            first, *rest = local_gradients(lambda *args: [_unblocked(*args)], (rows, *parameters), needs, [above])
            return first if rows_grad is None or first is None else first + rows_grad, None, *rest
        network, x = _Network(rows, parameters), rows.reshape(-1, rows.shape[-1])
        above, into = above.reshape(len(x), len(network.w)), None
        if ctx.needs_input_grad[0]:  # no other code holds this gradient, so add in place
            into = torch.zeros_like(x) if rows_grad is None else rows_grad.reshape(x.shape)
        weight, bias, w, w_bias = (torch.zeros_like(t) for t in network.tensors)
        for block in blocks(x, network.width):
            grad, block_rows = above[block], x[block]
            hidden = kept_hidden[block] if block.stop <= len(kept_hidden) else network.hidden(block_rows)
            idle = ~grad.any(1)
            if bool(idle.any()):  # such rows may hold NaN, and 0 · NaN is NaN
                hidden, block_rows = (t.masked_fill(idle[:, None], 0.0) for t in (hidden, block_rows))
            slope = network.slope(hidden, grad @ network.w)
            weight.addmm_(slope.T, block_rows.to(network.dtype))
            bias += slope.sum(0)
            w.addmm_(grad.T, network.product(hidden))
            w_bias += grad.sum(0)
            if into is not None and into.dtype is network.dtype:
                into[block].addmm_(slope, network.weight)
            elif into is not None:
                into[block] += slope @ network.weight
        V, *U = zip(weight.split(network.hiddens), bias.split(network.hiddens), strict=True)
        grads = [*V, w, w_bias, *(tensor for half in U for tensor in half)]
        return None if into is None else into.reshape(rows.shape), None, *(tensor.to(rows.dtype) for tensor in grads)


class _Network:
    """The parameters, V and U concatenated, in the accumulation dtype."""

    def __init__(self, rows: Tensor, parameters: Sequence[Tensor]) -> None:
        V, V_bias, w, w_bias, *gate = parameters
        self.dtype, self.hiddens, self.gates = _wide(rows), len(V), bool(gate)
        joined = (torch.cat([V, *gate[:1]]), torch.cat([V_bias, *gate[1:]]), w, w_bias)
        self.tensors = self.weight, self.bias, self.w, self.w_bias = tuple(t.to(self.dtype) for t in joined)
        self.width, self.nbytes = len(self.weight), len(self.weight) * self.dtype.itemsize

    def hidden(self, rows: Tensor, into: Tensor | None = None) -> Tensor:
        """Return tanh(V h) and sigmoid(U h), concatenated."""
        hidden = torch.addmm(self.bias, rows.to(self.dtype), self.weight.T, out=into)
        hidden[:, : self.hiddens].tanh_()
        hidden[:, self.hiddens :].sigmoid_()
        return hidden

    def product(self, hidden: Tensor) -> Tensor:
        return hidden[:, : self.hiddens] * hidden[:, self.hiddens :] if self.gates else hidden

    def slope(self, hidden: Tensor, above: Tensor) -> Tensor:
        """Return the gradient of V h and U h from the product's gradient: t·s has the slopes s − t²s and ts − ts²."""
        if not self.gates:
            return above.addcmul(above * hidden, hidden, value=-1)
        slope, product = torch.empty_like(hidden), self.product(hidden)
        (t, s), (of_t, of_s) = hidden.split(self.hiddens, 1), slope.split(self.hiddens, 1)
        torch.addcmul(s, product, t, value=-1, out=of_t).mul_(above)
        torch.addcmul(product, product, s, value=-1, out=of_s).mul_(above)
        return slope
