"""Time concatenated sequences, compared with a padded batch and with one call per sequence.

    python -m benchmarks.attention.ragged [--seconds 20]

Self-attention, forward and backward, of 32 sequences of 16 to 2,048 rows and of 512 sequences of 8 to 64 rows, with dot
products and additive scores. The padded batch and the single calls use dikkat with "auto". A padded batch with a
boolean mask uses PyTorch's fused kernel for dot products, and separate operations for additive scores. The lengths are
a geometric series. Answers are compared before speeds.
"""

import argparse
import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

import dikkat
from benchmarks.kit.report import spread, write
from benchmarks.kit.turns import measured, once

FEATURES = 64
LENGTHS = {
    "32 of 16 to 2,048": [round(16 * 128 ** (i / 31)) for i in range(32)],
    "512 of 8 to 64": [round(8 * 8 ** (i / 511)) for i in range(512)],
}
SCORES: dict[str, Callable[[], Any]] = {
    "dot": dikkat.scores.ScaledDot,
    "additive": lambda: dikkat.scores.Additive(FEATURES, FEATURES, FEATURES),
}
Way = Callable[[], list[Tensor]]


def ways(lengths: list[int], score: Any) -> dict[str, Way]:
    """Return functions that compute output and gradients of all sequences in different ways."""
    torch.manual_seed(0)
    lens, offsets = torch.tensor(lengths), torch.tensor([0, *lengths]).cumsum(0)
    sides = [torch.randn(sum(lengths), FEATURES, requires_grad=True) for _ in range(3)]
    upstream = torch.randn(sum(lengths), FEATURES)
    padded = [pad_sequence(list(side.detach().split(lengths)), batch_first=True).requires_grad_() for side in sides]
    padded_upstream = pad_sequence(list(upstream.split(lengths)), batch_first=True)
    is_valid = torch.arange(max(lengths)) < lens[:, None]

    def ragged() -> list[Tensor]:
        out = dikkat.attend_ragged(*sides, offsets, score=score)
        return [out.detach(), *torch.autograd.grad(out, sides, upstream)]

    def one_by_one() -> list[Tensor]:
        sequences = zip(*(side.split(lengths) for side in sides), strict=True)
        out = torch.cat([dikkat.attend(*sequence, score=score) for sequence in sequences])
        return [out.detach(), *torch.autograd.grad(out, sides, upstream)]

    def batch() -> list[Tensor]:
        out = dikkat.attend(*padded, score=score, valid_lens=lens)
        return [out.detach(), *torch.autograd.grad(out, padded, padded_upstream)]

    def masked() -> list[Tensor]:
        if isinstance(score, dikkat.scores.ScaledDot):
            out = scaled_dot_product_attention(*padded, attn_mask=is_valid[:, None])
        else:
            out = dikkat.attend(*padded, score=score, mask=is_valid[:, None], impl="reference")
        return [out.detach(), *torch.autograd.grad(out, padded, padded_upstream)]

    answers = {"a padded batch": [t[is_valid] for t in batch()], "one by one": one_by_one()}
    # Additive scores of a long sequence, all pairs' features at once, are more than memory holds.
    masks = isinstance(score, dikkat.scores.ScaledDot) or len(lengths) * max(lengths) ** 2 * FEATURES < 2**28
    answers |= {"a padded batch with a mask": [t[is_valid] for t in masked()]} if masks else {}
    for name, answer in answers.items():
        for actual, expected in zip(ragged(), answer, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    runs = {"end to end": ragged, "a padded batch": batch, "one by one": one_by_one}
    return runs | ({"a padded batch with a mask": masked} if masks else {})


def same_bits(lengths: list[int], score: Any) -> bool:
    """Return True if compiled code gives each sequence the same bits as a separate call, gradients too."""
    torch.manual_seed(0)
    sides = [torch.randn(sum(lengths), FEATURES, requires_grad=True) for _ in range(3)]
    offsets, upstream = torch.tensor([0, *lengths]).cumsum(0), torch.randn(sum(lengths), FEATURES)
    if isinstance(score, dikkat.scores.Additive):  # BLAS rounds a projection by its number of rows
        with torch.no_grad():
            score.W_q.weight.copy_(torch.eye(FEATURES))
            score.W_k.weight.copy_(torch.eye(FEATURES))
    out = dikkat.attend_ragged(*sides, offsets, score=score, impl="numba")
    joint, all_equal = [out, *torch.autograd.grad(out, sides, upstream)], True
    for begin, end in pairwise(offsets.tolist()):
        sequence = [side[begin:end].detach().requires_grad_() for side in sides]
        out = dikkat.attend(*sequence, score=score, impl="numba")
        separate = [out, *torch.autograd.grad(out, sequence, upstream[begin:end])]
        all_equal &= all(torch.equal(a[begin:end], b) for a, b in zip(joint, separate, strict=True))
    return all_equal


def compare(lengths: list[int], score: Any, seconds: float) -> dict[str, Any]:
    samples = measured({name: once(run) for name, run in ways(lengths, score).items()}, seconds)
    seconds_by = {name: [s / n for s, n in rounds] for name, rounds in samples.items()}
    ours = seconds_by["end to end"]
    return {
        "seconds": {name: statistics.median(times) for name, times in seconds_by.items()},
        "times as quick as": {
            name: spread([a / b for a, b in zip(times, ours, strict=True)])
            for name, times in seconds_by.items()
            if times is not ours
        },
        "bits of its own call": same_bits(lengths, score),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each comparison")
    seconds = parser.parse_args().seconds
    results = {
        f"{label}, {name}": compare(lengths, make(), seconds)
        for label, lengths in LENGTHS.items()
        for name, make in SCORES.items()
    }
    print(write("ragged", results).read_text())


if __name__ == "__main__":
    main()
