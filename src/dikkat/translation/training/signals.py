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

    def __init__(self, *, verbose: bool = False) -> None:
        self.requested, self._verbose = False, verbose

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A context in which the signals are remembered, in the main thread, which alone hears them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if self._verbose:
            # Not `print`: the signal may have come within one, which must not be entered twice.
            os.write(_STDERR, b"\ndikkat: stopping after this step; Ctrl-C again stops at once\n")
