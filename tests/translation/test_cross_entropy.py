"""Cross-entropy, compiled, against plain PyTorch."""

import math

import pytest
import torch

import kit
from dikkat.translation import InputError, Search, SettingsError, beam_search
from dikkat.translation.network.fused_loss.launch import CrossEntropy
from dikkat.translation.network.loss import _Plain
from translation.test_search import make

KINDS = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2e-6}


@kit.each("smoothing", [0.0, 0.1, 1.0])
@kit.each("size", [2, 15, 16, 17, 53])
@kit.each("kind", KINDS)
@kit.each("threads", [1, 3])
@kit.each("divergence", [0.0, 0.7])
def test_cross_entropy_is_that_of_plain_pytorch(size, kind, smoothing, threads, divergence):
    torch.manual_seed(size)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        bias, found = torch.randn(size), []
        chunks = [
            (torch.randn(rows, size).to(kind) * 4, torch.randint(size, (rows,)))
            for rows in ((6, 2, 10) if divergence else (7, 1, 5))
        ]
        for way in (CrossEntropy, _Plain):
            wide = bias.to(torch.promote_types(kind, torch.float32))
            entropy, gradients = way(size, kind, wide, smoothing, 0.5, divergence), []
            for scores, target in chunks:
                gradients.append(scores.clone())
                entropy.add(gradients[-1], target)
            found.append((entropy.total, torch.cat(gradients), entropy.bias_gradient))
    finally:
        torch.set_num_threads(before)
    share = 1e-12 if kind == torch.float64 else 3e-6
    torch.testing.assert_close(found[0][0], found[1][0], rtol=share, atol=share)
    torch.testing.assert_close(found[0][2], found[1][2], rtol=share, atol=share)
    # bfloat16: the nearest, or its neighbour where a float32 stands between two.
    step = 0.008 if kind == torch.bfloat16 else share
    torch.testing.assert_close(found[0][1], found[1][1], rtol=step, atol=share)


def test_cross_entropy_of_what_is_no_number_is_none():
    scores = torch.tensor([[0.0, math.nan, 1.0]])
    entropy = CrossEntropy(3, torch.float32, None, 0.0, 1.0)
    entropy.add(scores, torch.tensor([0]))
    assert entropy.total.isnan()
    assert scores.isnan().all()


def test_precision_is_checked():
    with pytest.raises(SettingsError, match="precision: got 'half'; expected one of float32, int8"):
        Search(precision="half")


def test_not_a_number_in_any_row_ends_the_search():
    model = make()
    with torch.no_grad():
        model.source_embedding.weight[5] = math.nan
    with pytest.raises(InputError, match="NaN"):
        beam_search(model, [[6, 7], [5, 6]], Search(2))
