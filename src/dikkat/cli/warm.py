"""`dikkat warm`."""

import inspect
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pkgutil import walk_packages
from types import ModuleType

from dikkat.cli.app import Command, app
from dikkat.cli.messages import suggest

_Variant = tuple[str, str, str, tuple[bool | None, ...]]  # module, kernel, dtype, flags of the kernel


@app.command(cls=Command, epilog="Example:\n\ndikkat warm")
def warm() -> None:
    """Compile all kernels for this processor now, so that later commands start faster.

    Otherwise each kernel is compiled at its first use. Kernels in the cache are not compiled again.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    begin, variants = time.monotonic(), list(_variants())
    # Workers ignore Ctrl-C, as a kernel takes long to compile: the pool terminates them.
    with get_context("spawn").Pool(cores, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as workers:
        for number, (name, seconds) in enumerate(workers.imap_unordered(_compile, variants), start=1):
            print(f"{number} of {len(variants)}: {name}, {seconds:.1f} s", flush=True)
    print(f"compiled in {time.monotonic() - begin:.0f} s")
    suggest("dikkat report, to see the folder of the kernels")


def _variants() -> Iterator[_Variant]:
    """Yield each kernel for each dtype and each score or weights with specialised code."""
    from dikkat._engine.compile import Kernel

    for module in _modules():
        for name, kernel in vars(module).items():
            if isinstance(kernel, Kernel) and kernel.make.__module__ == module.__name__:
                _, *flags = inspect.signature(kernel.make).parameters
                variants = [tuple(flag == enabled or None for flag in flags) for enabled in flags or [""]]
                variants += [(None,)] if len(flags) == 1 else []
                for dtype in ("float32", "float64"):
                    yield from ((module.__name__, name, dtype, variant) for variant in variants)


def _modules() -> Iterator[ModuleType]:
    from dikkat._engine.record import COMPILED

    for package in COMPILED:
        with suppress(ImportError):
            folders = getattr(import_module(package), "__path__", ())
            yield from (import_module(info.name) for info in walk_packages(folders, f"{package}."))


def _compile(variant: _Variant) -> tuple[str, float]:
    import numpy as np

    module, kernel, dtype, flags = variant
    begin = time.monotonic()
    getattr(import_module(module), kernel)(np.dtype(dtype), *flags)
    return f"{module}.{kernel}, {dtype}", time.monotonic() - begin
