"""Ctrl-C and the termination signal, which end a training at its next step."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STDERR = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A signal handler that sets `requested` the first time, and raises `KeyboardInterrupt` the second time."""

    def __init__(self, *, verbose: bool = False) -> None:
        self.requested, self._verbose = False, verbose

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Return a context that handles the signals; without effect outside the main thread, which gets all signals."""
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
            # Not `print`, which the signal may have interrupted: it is not reentrant.
            os.write(_STDERR, b"\ndikkat: stopping after this step; Ctrl-C again stops at once\n")
