"""The bookkeeping of a beam search, and, on a CPU, what it takes from the scores; compiled by Numba."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dikkat import addresses
from dikkat.cpu.engine.record import Call
from dikkat.cpu.search.record import CALL, GROUP

_TYPES = (torch.float32, torch.bfloat16, torch.float64)


def can_rank(products: Tensor) -> bool:
    """Whether `rank` runs on such scores."""
    return products.dtype in _TYPES and not addresses.obstacles([products])


def rank(products: Tensor, bias: Tensor, copies: Tensor, may_end: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Each row's likeliest tokens that may come out, likeliest first; of equal ones the lowest first.

    Args:
        products: (R, V), unnormalised log-probabilities less the bias.
        bias: (V,), of the same dtype, float32 for bfloat16.
        copies: (R,) bool, whether `<unk>` may come out.
        may_end: (R,) bool, whether `<eos>` may.
        count: How many.

    Returns:
        Log-probabilities (R, count) float64, −∞ where there are no more; tokens (R, count) int64.
    """
    if bias.dtype != torch.promote_types(products.dtype, torch.float32):
        wide = torch.promote_types(products.dtype, torch.float32)
        raise TypeError(f"bias: got dtype {bias.dtype}; expected {wide}, beside products of {products.dtype}")
    from dikkat.cpu.search import kernel

    call = Call(CALL, bias.dtype)
    call.fields |= {
        "rows": len(products),
        "size": products.shape[1],
        "count": count,
        "half": products.dtype == torch.bfloat16,
    }
    call.point("scores", products.contiguous(), products.dtype)
    for name, tensor in (("bias", bias), ("copies", copies), ("may_end", may_end)):
        call.point(name, tensor.contiguous())
    gains, tokens = call.new("gains", len(products), count), call.new("tokens", len(products), count)
    call.run(kernel.candidates, -(-len(products) // GROUP), vector=call.lanes)
    return gains, tokens


class Step(NamedTuple):
    """What a step did: tables of B sentences by K places, of PyTorch; or those of all steps together, of NumPy."""

    tokens: Any  # int64: what was put to the hypothesis that now has the place
    rows: Any  # int64: which row it went on from
    origins: Any  # int64: the place of that row, counted over all sentences
    totals: Any  # float64: its log-probability
    ended: Any  # bool: whether the model ended it here
    out: Any  # bool: whether it ended or was cut here


class Advance(NamedTuple):
    """What came of a step.

    Attributes:
        step: What it did.
        rows: (R',) int64: of the hypotheses that go on, the row that each comes from.
        tokens: (R',) int64: what was put to it.
        sentences: (R',) int64: which sentence it is of.
        stay: Whether these are the rows that there were, in their order.
        unknown: Whether a row's best gain is not a finite number.
    """

    step: Step
    rows: Tensor
    tokens: Tensor
    sentences: Tensor
    stay: bool
    unknown: bool


class Beams:
    """The hypotheses of a batch while they grow: B sentences of K places, best first; on the CPU.

    Args:
        beam: K.
        n_best: How many of those that end are wanted.
        penalty: The length penalty's exponent.
        limits: (B,) int64, the most tokens of each sentence.
    """

    def __init__(self, beam: int, n_best: int, penalty: float, limits: Tensor) -> None:
        sentences = len(limits)
        self._shape, self._call = (sentences, beam), Call(CALL, torch.float64)
        self._call.fields |= {"sentences": sentences, "beam": beam, "n_best": n_best, "penalty": penalty}
        impossible = torch.tensor(-torch.inf, dtype=torch.float64, device="cpu")
        totals = self._call.point("totals", impossible.repeat(sentences, beam))  # −∞: an empty place
        totals[:, 0] = 0.0
        # Places not taken by ended hypotheses; the best scores of those.
        self._call.point("open", torch.full((sentences,), beam, device="cpu"))
        self._call.point("best_ended", impossible.repeat(sentences, n_best))
        self._call.point("limits", limits.contiguous())

    def advance(self, gains: Tensor, tokens: Tensor) -> Advance:
        """One step on.

        Args:
            gains: (R, k) float64, of the hypotheses that go on, in the order of their places; best first.
            tokens: (R, k) int64.
        """
        from dikkat.cpu.search import kernel

        call = self._call
        call.fields["length"] += 1
        call.fields["rows"], call.fields["count"] = gains.shape
        call.point("gains", gains.contiguous())
        call.point("tokens", tokens.contiguous())
        step = Step(*(call.new(f"step_{name}", *self._shape) for name in Step._fields))
        places = self._shape[0] * self._shape[1]
        going = [call.new(f"next_{name}", places) for name in ("rows", "tokens", "sentences")]
        outcome = call.new("outcome", 3)
        call.run(kernel.advance, 1)
        found, unknown, stay = outcome.tolist()
        rows, chosen, sentences = (each[:found] for each in going)
        return Advance(step, rows, chosen, sentences, bool(stay), bool(unknown))
