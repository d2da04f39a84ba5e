"""The threads that compiled kernels run on; kernels claim their tasks themselves.

They are PyTorch's own, of its OpenMP library, wherever that can be called: after every operation of PyTorch these wait
busily for the next, for milliseconds, and would take half of the cores from any other threads. A forked child has none
of its parent's threads, and OpenMP does not know it; there, and where there is no such library, a pool of our own runs.

Not Numba's own threads: its OpenMP layer kills a forked child, and what it falls back on aborts when two Python threads
use it.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dikkat import stopping

# Seconds between two checks for Ctrl-C in a long call.
PART = 0.2


class _Worker(threading.Thread):
    """Waits for a job, runs it, waits again."""

    def __init__(self, number: int) -> None:
        super().__init__(name=f"dikkat-{number}", daemon=True)
        # Bare locks wake a thread in a few microseconds; queues and futures take ten times as long.
        self._begin, self._end = threading.Lock(), threading.Lock()
        self._begin.acquire()
        self._end.acquire()
        self._job: Callable[[], None] | None = None
        self.start()

    def begin(self, job: Callable[[], None]) -> None:
        self._job = job
        self._begin.release()

    def finish(self) -> None:
        """Wait for the job's end."""
        self._end.acquire()

    def run(self) -> None:
        while True:
            self._begin.acquire()
            if self._job is not None:
                self._job()  # compiled code, which raises nothing
            self._job = None
            self._end.release()


class Pool:
    """Threads for one caller at a time; a second caller meanwhile works alone."""

    def __init__(self) -> None:
        self._free = threading.Lock()
        self._workers: list[_Worker] = []

    def run(self, job: Callable[[], None], threads: int) -> None:
        """Run a job on so many threads at once, the caller's among them."""
        if threads <= 1 or not self._free.acquire(blocking=False):
            job()
            return
        try:
            while len(self._workers) < threads - 1:
                self._workers.append(_Worker(len(self._workers)))
            busy = self._workers[: threads - 1]
            for worker in busy:
                worker.begin(job)
            job()
            interrupted: KeyboardInterrupt | None = None
            for worker in busy:
                while True:  # they write to the caller's memory: not even Ctrl-C ends the waiting
                    try:
                        worker.finish()
                        break
                    except KeyboardInterrupt as error:
                        interrupted = error
            if interrupted is not None:
                raise interrupted
        finally:
            self._free.release()


@cache
def _openmp() -> Any:
    """GNU's OpenMP entry point for a parallel region, in the library that PyTorch has loaded; or None."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        try:
            region = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        else:
            region.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
            region.restype = None
            return region
    return None


_pool = Pool()
_forked = False


def _after_fork() -> None:
    global _pool, _forked
    _pool, _forked = Pool(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def by_parts(job: Callable[[int, int], None], tasks: int, first: int) -> Iterator[int]:
    """Do tasks in parts of about `PART` seconds: Ctrl-C is handled between two of them.

    Args:
        job: Does the tasks from one number to another.
        tasks: How many there are.
        first: How many the first part has; of each other as many as the time that the last one took suggests.

    Yields:
        How many tasks are done.
    """
    done, size = 0, max(first, torch.get_num_threads())
    while done < tasks:
        end = min(tasks, done + size)
        begin = time.perf_counter()
        job(done, end)
        seconds = time.perf_counter() - begin
        if seconds < PART / 2:
            size *= 2
        elif seconds > PART:
            size = max(size // 2, torch.get_num_threads())
        done = end
        stopping.look()
        yield done


def run(kernel: Any, call: int, tasks: int, threads: int) -> None:
    """Run a compiled function of an address on so many threads; a single task on the caller's alone.

    Never on only some of PyTorch's: OpenMP would end the others, and start them again for the next operation.

    Args:
        kernel: From `compile.Kernel`.
        call: The address.
        tasks: How many tasks there are to claim.
        threads: As many as PyTorch uses.
    """
    if threads == 1 or tasks == 1:
        kernel(call)
        return
    region = None if _forked else _openmp()
    if region is not None:
        region(kernel, call, threads, 0)
    else:
        _pool.run(lambda: kernel(call), min(tasks, threads))
