"""The limits beyond which a server refuses requests."""

import math
from dataclasses import dataclass

from dikkat.errors import InputError


@dataclass(frozen=True)
class Limits:
    """The limits of a server. A request beyond one is refused at once, with a status that says why.

    Attributes:
        body: Bytes of a request; more: 413.
        characters: Of a sentence; more: 422.
        sentences: Of a request; more: 422.
        cells: Attention weights of an answer, counted as if every character were a token; more: 422. Without
            `attention` and `markup`, eight times as many.
        beam: Hypotheses of a sentence that go on; more: 422.
        queue: Sentences that wait for their turn; more: 429.
        seconds: Until the work on a request is stopped: 503.
        batch: Sentences that are translated together.

    Raises:
        InputError: A number below 1, or `seconds` that are not positive and finite.

    Example:
        >>> Limits(queue=0)
        Traceback (most recent call last):
            ...
        dikkat.errors.InputError: queue: got 0; expected at least 1
    """

    body: int = 2**20
    characters: int = 2_000
    sentences: int = 256
    cells: int = 2**22
    beam: int = 16
    queue: int = 1_024
    seconds: float = 30.0
    batch: int = 64

    def __post_init__(self) -> None:
        """Check every number."""
        for name in ("body", "characters", "sentences", "cells", "beam", "queue", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: got {getattr(self, name)}; expected at least 1")
        if not (0 < self.seconds < math.inf):
            raise InputError(f"seconds: got {self.seconds}; expected a positive number")
