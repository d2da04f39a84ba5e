"""The threads of compiled kernels, which claim their tasks themselves.

Kernels run on the threads of PyTorch's OpenMP library if possible. These threads spin for milliseconds after each
PyTorch operation, and would take half of the cores from other threads. A forked child has no threads of its parent, and
OpenMP does not notice. There, and without the library, each call starts threads.

Numba's threads are unsuitable: its OpenMP layer kills a forked child, and its fallback aborts if two Python threads use
it.
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
    """Return the entry point for parallel regions in the GNU OpenMP library that PyTorch loaded, or None."""
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
    """Run tasks in parts of about `PART` seconds, and handle Ctrl-C between two parts."""
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
    """Run a compiled function of an address on `threads` threads; a single task runs on the caller's thread.

    Always use all of PyTorch's threads: OpenMP would end the others, and restart them for the next operation.
    """
    if threads == 1 or tasks == 1:
        kernel(call)
        return
    region = None if _forked else _openmp()
    if region is not None:
        region(kernel, call, threads, 0)
        return
    helpers = [threading.Thread(target=kernel, args=(call,), daemon=True) for _ in range(min(tasks, threads) - 1)]
    interrupted: KeyboardInterrupt | None = None
    for helper in helpers:
        helper.start()
    kernel(call)
    for helper in helpers:
        while helper.is_alive():  # it writes to the caller's memory, so not even Ctrl-C may stop waiting
            try:
                helper.join()
            except KeyboardInterrupt as error:
                interrupted = error
    if interrupted is not None:
        raise interrupted
