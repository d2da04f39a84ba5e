"""What the launcher and the kernel of cross-entropy both know: the record of a call."""

from dikkat.cpu.engine.record import Record

CALL = Record(
    numbers="scores bias bias_sums",
    doubles="losses",
    integers="target",
    whole="rows size half gradients",
    real="smoothing scale",
    regions="tail shares",
)
