"""The limits of a server."""

import math
from dataclasses import dataclass

from dikkat.errors import InputError


@dataclass(frozen=True)
class Limits:
    """The limits of a server. A request above a limit gets the status below and a message.

    Attributes:
        body: Maximum bytes of a request; status 413.
        characters: Maximum characters of a sentence; status 422.
        sentences: Maximum sentences of a request; status 422.
        cells: Maximum attention weights of a response, with each character counted as a token; status 422. The limit
            is eight times larger without `attention` and `markup`.
        beam: Maximum beam of a search; status 422.
        queue: Maximum number of waiting sentences; status 429.
        seconds: Maximum time of a request; status 503.
        batch: Maximum sentences in a batch.

    Raises:
        InputError: If a number is below 1, or `seconds` is not positive and finite.

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
        """Raise InputError for an invalid limit."""
        for name in ("body", "characters", "sentences", "cells", "beam", "queue", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: got {getattr(self, name)}; expected at least 1")
        if not (0 < self.seconds < math.inf):
            raise InputError(f"seconds: got {self.seconds}; expected a positive number")
