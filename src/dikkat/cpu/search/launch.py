"""The bookkeeping of a beam search, and, on a CPU, what it takes from the scores; compiled by Numba."""

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dikkat import addresses
from dikkat.cpu.attention.launch import BYTES
from dikkat.cpu.engine import threads

_TYPES = {torch.float32: np.float32, torch.bfloat16: np.float32, torch.float64: np.float64}


def _beams() -> Any:
    """The compiled kernels, imported when first used."""
    from dikkat.cpu.search import kernel as search_kernel

    return search_kernel


def can_rank(products: Tensor) -> bool:
    """Whether `rank` takes such scores."""
    return products.dtype in _TYPES and not addresses.obstacles([products])


def rank(products: Tensor, bias: Tensor, copies: Tensor, may_end: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Each row's likeliest tokens that may come out, likeliest first; of equal ones the lowest first.

    Args:
        products: (R, V), unnormalised log-probabilities less the bias.
        bias: (V,), of the same dtype, float32 for bfloat16.
        copies: (R,) bool, whether `<unk>` may come out.
        may_end: (R,) bool, whether `<eos>` may.
        count: how many.

    Returns:
        Log-probabilities (R, count) float64, −∞ where there are no more; tokens (R, count) int64.
    """
    if bias.dtype != torch.promote_types(products.dtype, torch.float32):
        raise TypeError(f"the bias has dtype {bias.dtype}; beside products of {products.dtype} it must be as wide")
    products, bias, copies, may_end = (each.contiguous() for each in (products, bias, copies, may_end))
    rows = len(products)
    gains, gains_at = addresses.made((rows, count), torch.float64)
    tokens, tokens_at = addresses.made((rows, count), torch.int64)
    tasks = -(-rows // _beams().GROUP)
    _work, work_at = addresses.made((tasks, BYTES), torch.uint8)
    fields = {
        "tasks": tasks,
        "rows": rows,
        "size": products.shape[1],
        "count": count,
        "scores": addresses.address("products", products, products.dtype),
        "bias": addresses.address("bias", bias, bias.dtype),
        "half": int(products.dtype == torch.bfloat16),
        "copies": addresses.address("copies", copies, torch.bool),
        "may_end": addresses.address("may_end", may_end, torch.bool),
        "gains": gains_at,
        "tokens": tokens_at,
        "work": work_at,
    }
    _launch(_beams().candidates, _TYPES[products.dtype], fields, tasks)
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
        step: what it did.
        rows: (R',) int64: of the hypotheses that go on, the row that each comes from.
        tokens: (R',) int64: what was put to it.
        sentences: (R',) int64: which sentence it is of.
        stay: whether these are the rows that there were, in their order.
        unknown: whether a row's best gain is not a finite number.
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
        n_best: how many of those that end are wanted.
        penalty: the length penalty's exponent.
        limits: (B,) int64, the most tokens of each sentence.
    """

    def __init__(self, beam: int, n_best: int, penalty: float, limits: Tensor) -> None:
        sentences = len(limits)
        self._sentences, self._beam, self._limits = sentences, beam, limits.contiguous()
        impossible = torch.tensor(-torch.inf, dtype=torch.float64, device="cpu")
        self._totals = impossible.repeat(sentences, beam)  # −∞: an empty place
        self._totals[:, 0] = 0.0
        self._open = torch.full((sentences,), beam, device="cpu")  # places not lost to ended ones
        self._kept = impossible.repeat(sentences, n_best)  # of the best that ended
        self._length = 0
        self._fields = {
            "sentences": sentences,
            "beam": beam,
            "n_best": n_best,
            "penalty": penalty,
            "totals": addresses.address("totals", self._totals, torch.float64),
            "open": addresses.address("open", self._open, torch.int64),
            "kept": addresses.address("kept", self._kept, torch.float64),
            "limits": addresses.address("limits", self._limits, torch.int64),
        }

    def advance(self, gains: Tensor, tokens: Tensor) -> Advance:
        """One step on.

        Args:
            gains: (R, k) float64, of the hypotheses that go on, in the order of their places; best first.
            tokens: (R, k) int64.
        """
        self._length += 1
        shape = (self._sentences, self._beam)
        gains, tokens, places = gains.contiguous(), tokens.contiguous(), self._sentences * self._beam
        whole, whole_at = addresses.made((3, *shape), torch.int64)
        totals, totals_at = addresses.made(shape, torch.float64)
        flags, flags_at = addresses.made((2, *shape), torch.bool)
        going, going_at = addresses.made((3, places), torch.int64)
        step = Step(whole[0], whole[1], whole[2], totals, flags[0], flags[1])
        outcome = (ctypes.c_int64 * 3)()
        fields = self._fields | {
            "count": gains.shape[1],
            "rows": len(gains),
            "gains": addresses.address("gains", gains, torch.float64),
            "tokens": addresses.address("tokens", tokens, torch.int64),
            "length": self._length,
            "step_totals": totals_at,
            "outcome": ctypes.addressof(outcome),
        }
        for names, begin, width in (
            (("step_tokens", "step_rows", "step_origins"), whole_at, whole.itemsize),
            (("step_ended", "step_out"), flags_at, flags.itemsize),
            (("next_rows", "next_tokens", "next_sentences"), going_at, going.itemsize),
        ):
            fields |= {name: begin + index * places * width for index, name in enumerate(names)}
        _launch(_beams().advance, np.float64, fields, 1)
        found, unknown, stay = outcome
        rows, chosen, sentences = going[:, :found]
        return Advance(step, rows, chosen, sentences, bool(stay), bool(unknown))


def _launch(kernel: Any, kind: Any, fields: dict[str, Any], tasks: int) -> None:
    beams = _beams()
    values = [fields.get(name, 0) for name in (*beams.WHOLE[1:], *beams.REAL)]
    threads.launch(kernel(np.dtype(kind)), beams.FORM, values, tasks)
