"""Ctrl-C, and the signal that asks a process to end: both end a training at its next step."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STDERR = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Remembers in `requested` that the user wants an end; the second time, a `KeyboardInterrupt` ends all at once."""

    def __init__(self, *, aloud: bool = False) -> None:
        self.requested, self._aloud = False, aloud

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A context in which the signals are remembered, in the main thread, which alone hears them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self._hear) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if self._aloud:
            # Not `print`: the signal may have come within one, which must not be entered twice.
            os.write(_STDERR, b"\ndikkat: stopping after this step; Ctrl-C again stops at once\n")
