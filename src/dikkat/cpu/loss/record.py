"""The record of a call of cross-entropy."""

from dikkat.cpu.engine.record import Record

CALL = Record(
    numbers="scores bias bias_sums",
    doubles="losses",
    integers="target",
    whole="rows size half gradients",
    real="smoothing scale",
    regions="tail shares",
)
