"""The record of a call of cross-entropy, whose rows are pairs unless `divergence` is 0."""

from dikkat._engine.record import Record

CALL = Record(
    numbers="scores bias bias_sums", doubles="losses", integers="target", whole="rows size half gradients",
    real="smoothing scale divergence", regions="tail shares ratios sums",
)  # fmt: skip
