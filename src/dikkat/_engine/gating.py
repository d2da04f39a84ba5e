"""A small network of each row, w·(tanh(V h) ⊙ sigmoid(U h)), in blocks of rows: never are all hidden features there."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from dikkat._engine.addresses import many_at_once
from dikkat._engine.local_gradients import local_gradients
from dikkat._engine.pytorch_state import autocasts, is_eager

# Numbers of a block: 768 kB in float32, so that the handful of its tensors stays in the caches.
_BLOCK = 3 * 2**16
# A forward keeps hidden features up to this share of the rows' own memory; the backward computes the others again.
_KEPT = 0.25


def blocks(rows: Tensor, width: int) -> Iterator[slice]:
    """Slices of rows that have about `_BLOCK` numbers of a width."""
    step = max(64, _BLOCK // max(1, width))
    return (slice(start, min(start + step, len(rows))) for start in range(0, len(rows), step))


def gated(
    rows: Tensor, V: nn.Linear, U: nn.Linear | None, w: nn.Linear, known: list[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """w·(tanh(V h) ⊙ sigmoid(U h)) of each row (..., m, d), without the gate if U is None.

    `known` has the scores of the same rows from an earlier pass, or is empty to get them: then no hidden features are
    kept. Returns (..., m, heads), float32 or wider, and the rows, on which all further computation must be based.
    """
    parameters = [V.weight, V.bias, w.weight, w.bias, *([] if U is None else [U.weight, U.bias])]
    if rows.is_meta or not is_eager() or autocasts(rows.device.type):
        return _unblocked(rows, *parameters), rows
    scores, same = _Gated.apply(rows, known, *parameters)  # type: ignore[no-untyped-call]
    return scores, same


def _unblocked(rows: Tensor, *parameters: Tensor) -> Tensor:
    rows, V, V_bias, w, w_bias, *gate = (t.to(_wide(rows)) for t in (rows, *parameters))
    hidden = linear(rows, V, V_bias).tanh()
    return linear(hidden * linear(rows, *gate).sigmoid() if gate else hidden, w, w_bias)


def _wide(rows: Tensor) -> torch.dtype:
    return torch.promote_types(rows.dtype, torch.float32)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, known: list[Tensor] | None, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        network, x, same = _Network(rows, parameters), rows.reshape(-1, rows.shape[-1]), rows.view_as(rows)
        room = int(_KEPT * x.nbytes) if any(ctx.needs_input_grad) and known is None else 0
        kept = x.new_empty(min(len(x), room // network.nbytes), network.width, dtype=network.dtype)
        scores = known[0].clone() if known else x.new_empty(len(x), len(network.w), dtype=network.dtype)
        for block in blocks(x, network.width) if not known else ():
            hidden = network.hidden(x[block], kept[block] if block.stop <= len(kept) else None)
            torch.addmm(network.w_bias, network.product(hidden), network.w.T, out=scores[block])
        if known == []:
            known.append(scores.detach())
        ctx.save_for_backward(rows, kept, *parameters)
        ctx.set_materialize_grads(False)
        if not ctx.needs_input_grad[0]:
            ctx.mark_non_differentiable(same)
        return scores.reshape(*rows.shape[:-1], len(network.w)), same

    @staticmethod
    def backward(ctx: Any, above: Tensor | None, of_rows: Tensor | None) -> tuple[Tensor | None, ...]:
        rows, kept, *parameters = ctx.saved_tensors
        if above is None:
            return of_rows, None, *[None] * len(parameters)
        if torch.is_grad_enabled() or many_at_once(above, of_rows):
            needs = [ctx.needs_input_grad[0], *ctx.needs_input_grad[2:]]
            first, *others = local_gradients(lambda *given: [_unblocked(*given)], (rows, *parameters), needs, [above])
            return first if of_rows is None or first is None else first + of_rows, None, *others
        network, x = _Network(rows, parameters), rows.reshape(-1, rows.shape[-1])
        above, into = above.reshape(len(x), len(network.w)), None
        if ctx.needs_input_grad[0]:  # nobody else holds the gradient of the rows' other use: add in place
            into = torch.zeros_like(x) if of_rows is None else of_rows.reshape(x.shape)
        weight, bias, w, w_bias = (torch.zeros_like(t) for t in network.tensors)
        for block in blocks(x, network.width):
            own, part = above[block], x[block]
            hidden = kept[block] if block.stop <= len(kept) else network.hidden(part)
            idle = ~own.any(1)
            if bool(idle.any()):  # whatever those rows hold: 0 · NaN is NaN
                hidden, part = (t.masked_fill(idle[:, None], 0.0) for t in (hidden, part))
            slope = network.slope(hidden, own @ network.w)
            weight.addmm_(slope.T, part.to(network.dtype))
            bias += slope.sum(0)
            w.addmm_(own.T, network.product(hidden))
            w_bias += own.sum(0)
            if into is not None and into.dtype is network.dtype:
                into[block].addmm_(slope, network.weight)
            elif into is not None:
                into[block] += slope @ network.weight
        V, *U = zip(weight.split(network.hiddens), bias.split(network.hiddens), strict=True)
        found = [*V, w, w_bias, *(part for half in U for part in half)]
        return None if into is None else into.reshape(rows.shape), None, *(part.to(rows.dtype) for part in found)


class _Network:
    """The parameters, V and U concatenated, in the accumulation dtype."""

    def __init__(self, rows: Tensor, parameters: Sequence[Tensor]) -> None:
        V, V_bias, w, w_bias, *gate = parameters
        self.dtype, self.hiddens, self.gates = _wide(rows), len(V), bool(gate)
        joined = (torch.cat([V, *gate[:1]]), torch.cat([V_bias, *gate[1:]]), w, w_bias)
        self.tensors = self.weight, self.bias, self.w, self.w_bias = tuple(t.to(self.dtype) for t in joined)
        self.width, self.nbytes = len(self.weight), len(self.weight) * self.dtype.itemsize

    def hidden(self, rows: Tensor, into: Tensor | None = None) -> Tensor:
        """tanh(V h), and beside it sigmoid(U h)."""
        hidden = torch.addmm(self.bias, rows.to(self.dtype), self.weight.T, out=into)
        hidden[:, : self.hiddens].tanh_()
        hidden[:, self.hiddens :].sigmoid_()
        return hidden

    def product(self, hidden: Tensor) -> Tensor:
        return hidden[:, : self.hiddens] * hidden[:, self.hiddens :] if self.gates else hidden

    def slope(self, hidden: Tensor, above: Tensor) -> Tensor:
        """The gradient of V h and U h from that of the product: t·s has s − t²s, and ts − ts²."""
        if not self.gates:
            return above.addcmul(above * hidden, hidden, value=-1)
        slope, product = torch.empty_like(hidden), self.product(hidden)
        (t, s), (of_t, of_s) = hidden.split(self.hiddens, 1), slope.split(self.hiddens, 1)
        torch.addcmul(s, product, t, value=-1, out=of_t).mul_(above)
        torch.addcmul(product, product, s, value=-1, out=of_s).mul_(above)
        return slope
