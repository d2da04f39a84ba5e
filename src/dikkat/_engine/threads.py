"""The threads that compiled kernels run on; kernels claim their tasks themselves.

They are PyTorch's own, of its OpenMP library, wherever that can be called: after every operation of PyTorch these wait
busily for the next, for milliseconds, and would take half of the cores from any other threads. A forked child has none
of its parent's threads, and OpenMP does not know it; there, and without such a library, each call starts threads.

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

from dikkat._engine import cancellation

# Seconds between two checks for Ctrl-C in a long call.
PART = 0.2


@cache
def _openmp() -> Any:
    """The entry point of GNU OpenMP's parallel regions, in the library that PyTorch has loaded; or None."""
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


_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def by_parts(job: Callable[[int, int], None], tasks: int, first: int) -> Iterator[int]:
    """Do tasks in parts of about `PART` seconds: Ctrl-C is handled between two of them."""
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
        cancellation.check()
        yield done


def run_on_threads(kernel: Any, call: int, tasks: int, threads: int) -> None:
    """Run a compiled function of an address on `threads` threads; a single task only on the caller's.

    Never only on some of PyTorch's threads: OpenMP would end the others, and start them again for the next operation.
    """
    if threads == 1 or tasks == 1:
        kernel(call)
        return
    region = None if _forked else _openmp()
    if region is not None:
        region(kernel, call, threads, 0)
        return
    others = [threading.Thread(target=kernel, args=(call,), daemon=True) for _ in range(min(tasks, threads) - 1)]
    interrupted: KeyboardInterrupt | None = None
    for other in others:
        other.start()
    kernel(call)
    for other in others:
        while other.is_alive():  # it writes to the caller's memory: not even Ctrl-C ends the waiting
            try:
                other.join()
            except KeyboardInterrupt as error:
                interrupted = error
    if interrupted is not None:
        raise interrupted
