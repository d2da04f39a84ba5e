"""The bandwidth of corrections, compared with corrections that are stored and scored one bandwidth after another."""

import math
from dataclasses import replace
from statistics import fmean, pstdev

import pytest
import torch

from dikkat.translation.decoding import correction_bandwidth
from dikkat.translation.decoding.correction_bandwidth import fit_memory
from dikkat.translation.memory.pair_memory import PairMemory
from dikkat.translation.memory.states import score_projection
from translation.taught import PAIRS

HELPFUL = [("He's home.", "Il est chez moi."), ("She sees the man.", "Elle voit l'homme.")]
HELD_OUT = [
    ("He's calm.", "Il est chez moi."), ("She sees Marie.", "Elle voit l'homme."),
    ("I lost Marie.", "J'ai perdu Marie."),
]  # fmt: skip
WIDTHS = (0.05, 0.3, 0.7, 2.0, 5.0)


def bandwidth_of(memory, translator):
    unit = score_projection(translator.model.output_table, 48)
    return float(unit.norm() / memory.projection(None).norm())


def expected_bandwidth(translator, corrections, held_out):
    unit = score_projection(translator.model.output_table, 48)
    scores = {}
    for width in WIDTHS:
        corrected = replace(translator, memory=PairMemory(projection=unit / width))
        for pair in corrections:
            corrected.correct(*pair)
        scores[width] = corrected.score(held_out)
    best = max(scores, key=lambda width: fmean(scores[width]))
    for width in WIDTHS:
        lost = [high - low for high, low in zip(scores[best], scores[width], strict=True)]
        if fmean(lost) <= pstdev(lost) / math.sqrt(len(lost)):
            return width


@pytest.mark.parametrize(
    ("corrections", "held_out"),
    [
        (HELPFUL, HELD_OUT[:1]),
        (HELPFUL, HELD_OUT),
        (HELPFUL, PAIRS),
        (PAIRS[::2], PAIRS[1::2]),
        (HELPFUL, [*HELD_OUT[:2], PAIRS[0]]),  # .7, although 2 is best
    ],
)
def test_the_smallest_bandwidth_within_a_standard_error(translator, monkeypatch, corrections, held_out):
    monkeypatch.setattr(correction_bandwidth, "BANDWIDTHS", WIDTHS)
    memory = fit_memory(translator, corrections, held_out)
    expected = expected_bandwidth(translator, corrections, held_out)
    assert (bandwidth_of(memory, translator), len(memory)) == (pytest.approx(expected, rel=1e-5), 0)


def test_corrected_and_empty_sentences_are_not_compared(translator, monkeypatch):
    monkeypatch.setattr(correction_bandwidth, "BANDWIDTHS", WIDTHS)
    unscored = [("", "Va !"), (" ", ""), ("\x02", "Va !"), ("Go.", "v" * 10_001)]
    more = [*HELD_OUT, ("  He's  home. ", "Il est calme."), *unscored]
    memories = fit_memory(translator, HELPFUL, HELD_OUT), fit_memory(translator, [*HELPFUL, ("", "Va !")], more)
    first, second = (memory.projection(None) for memory in memories)
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize(("corrections", "held_out"), [([], PAIRS), (PAIRS[:1], []), (PAIRS[:1], PAIRS[:1])])
def test_without_pairs_to_compare(translator, corrections, held_out):
    assert bandwidth_of(fit_memory(translator, corrections, held_out), translator) == pytest.approx(0.06)
