"""Sums and means of a model's records over all calls of each layer."""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat.inspection.calls import Call
from dikkat.inspection.request import Inspection, Request
from dikkat.inspection.trace import Trace


class _State(NamedTuple):
    """Sums over queries: their number (...), the weights of keys (..., m), entropies (...) and span masses (..., s)."""

    query_count: Tensor
    sums: Tensor | None
    entropy: Tensor | None
    span_mass: Tensor | None
    max_score: Tensor | None


class Totals:
    r"""Combines the records of each layer of a trace, for `record(model, sum_over="calls")`.

    With queries i of all calls c, weights w, and the decay γ, a record has

    $$ \text{sums}_j = \sum_c \gamma^{C - c} \sum_i w_{cij}, \qquad
       \text{entropy} = \frac{\sum_c \gamma^{C - c} \sum_i H(w_{ci})}{\sum_c \gamma^{C - c} n_c} $$

    where C is the last call and n_c is the number of its queries that see a key. Span masses are means like entropies.
    `top_keys` are the keys with the largest sums, `max_score` is the largest score of all calls. Each tensor has one
    row for all queries, such as (..., 1) for entropies. Keys count from the first position of the text. All calls have
    the same batch. In beam search, an element adds the calls of its row, although the search moves sequences between
    rows.

    Attributes:
        request: What to record of each call.
    """

    def __init__(self, trace: Trace, request: Request, sum_over: object, decay: float) -> None:
        if sum_over != "calls":
            raise ValueError(f"sum_over: got {sum_over!r}; expected 'calls', or None without decay")
        if not isinstance(decay, int | float) or not 0 < decay <= 1:
            raise ValueError(f"decay: got {decay!r}; expected a number above 0 and at most 1")
        for name in ("weights", "rows", "argmax", "overview"):
            if getattr(request, name) not in (None, False):
                raise ValueError(f"{name}: got a request that has no sum over calls; expected sums, top_k, entropy, "
                                 "spans or max_score")  # fmt: skip
        # `argmax` is −1 for a query that sees no key.
        self.request = replace(request, sums=request.sums or request.top_k is not None, top_k=None, argmax=True)
        self._trace, self._asked, self._decay = trace, request, float(decay)
        self._states: dict[tuple[str, int, str], tuple[int, _State]] = {}  # with the number of the record in the trace

    def add(self, record: Inspection, call: Call) -> None:
        """Add a call to the record of its layer."""
        new, key = _sum_queries(record), (call.name, call.layer, call.kind)
        if key not in self._states:
            self._states[key] = len(self._trace), new
            self._trace.add(self._record_of(new, record), call)
            return
        index, old = self._states[key]
        if old.query_count.shape != new.query_count.shape:
            raise ValueError(
                f"sum_over: got a call of {call.name!r} for {tuple(new.query_count.shape)} elements and heads, after "
                f"{tuple(old.query_count.shape)}; expected the same batch in all calls"
            )
        state = self._combine(old, new)
        self._states[key] = index, state
        self._trace.update(index, self._record_of(state, record))

    def _combine(self, old: _State, new: _State) -> _State:
        combined: dict[str, Tensor | None] = {}
        for name, earlier, later in zip(_State._fields, old, new, strict=True):
            if earlier is None or later is None:
                combined[name] = None
            elif name == "max_score":
                combined[name] = torch.maximum(earlier, later)
            elif name == "sums":
                length = max(earlier.shape[-1], later.shape[-1])
                longer = [F.pad(sums, (0, length - sums.shape[-1])) for sums in (earlier, later)]
                combined[name] = self._decay * longer[0] + longer[1]
            else:
                combined[name] = self._decay * earlier + later
        return _State(**combined)  # type: ignore[arg-type]

    def _record_of(self, state: _State, record: Inspection) -> Inspection:
        count, dtype = state.query_count.clamp(min=1e-300).unsqueeze(-1), torch.float32
        top, sums, keys = self._asked.top_k, state.sums, None
        if top is not None and sums is not None:
            largest = sums.topk(min(top, sums.shape[-1]))
            known_keys = largest.indices.masked_fill(largest.values <= 0, -1)
            keys = F.pad(known_keys, (0, top - known_keys.shape[-1]), value=-1)
        return Inspection(
            sums=sums.to(dtype) if self._asked.sums and sums is not None else None,
            top_keys=None if keys is None else keys.unsqueeze(-2),
            entropy=None if state.entropy is None else (state.entropy.unsqueeze(-1) / count).to(dtype),
            span_mass=None if state.span_mass is None else (state.span_mass / count).unsqueeze(-2).to(dtype),
            max_score=None if state.max_score is None else state.max_score.unsqueeze(-1).to(dtype),
            heads=record.heads,
            shape=(*state.query_count.shape, 1, record.shape[-1] if sums is None else sums.shape[-1]),
            positions=(0, min(0, record.positions[1])),
        )


def _sum_queries(record: Inspection) -> _State:
    """Return the sums over the queries of a call, in float64 on the CPU, with keys from position 0 of the text."""
    tensors = {name: tensor.detach().cpu().double() for name, tensor in record.tensors().items()
               if name in ("sums", "entropy", "span_mass", "max_score", "argmax")}  # fmt: skip
    sums, entropy, masses, scores = (tensors.get(name) for name in ("sums", "entropy", "span_mass", "max_score"))
    if scores is not None:
        scores = F.pad(scores, (1, 0), value=-math.inf)  # for a call without queries
    return _State(
        (tensors["argmax"] >= 0).sum(-1).double(),
        None if sums is None else F.pad(sums, (max(0, record.positions[1]), 0)),
        None if entropy is None else entropy.sum(-1),
        None if masses is None else masses.sum(-2),
        None if scores is None else scores.amax(-1),
    )
