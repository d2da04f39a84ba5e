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

_Variant = tuple[str, str, str, tuple[bool | None, ...]]  # a module, its kernel, a type of number, the kernel's flags


@app.command(cls=Command, epilog="Example:\n\ndikkat warm")
def warm() -> None:
    """Compile all kernels for this processor, so that nothing waits for them later.

    Without it, each is compiled when it is first needed. Those that are there already are left as they are.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    begun, variants = time.monotonic(), list(_variants())
    # Workers that are ended, and do not end, on Ctrl-C: a kernel takes long.
    with get_context("spawn").Pool(cores, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as workers:
        for number, (name, seconds) in enumerate(workers.imap_unordered(_compiled, variants), start=1):
            print(f"{number} of {len(variants)}: {name}, {seconds:.1f} s", flush=True)
    print(f"compiled in {time.monotonic() - begun:.0f} s")
    suggest("dikkat report says where they lie")


def _variants() -> Iterator[_Variant]:
    """All kernels: for each type of number, and each kind of score or weights that it has code of its own for."""
    from dikkat._engine.compile import Kernel

    for module in _modules():
        for name, kernel in vars(module).items():
            if isinstance(kernel, Kernel) and kernel.make.__module__ == module.__name__:
                _, *flags = inspect.signature(kernel.make).parameters
                variants = [tuple(each == flag or None for each in flags) for flag in flags or [""]]
                variants += [(None,)] if len(flags) == 1 else []
                for dtype in ("float32", "float64"):
                    yield from ((module.__name__, name, dtype, variant) for variant in variants)


def _modules() -> Iterator[ModuleType]:
    from dikkat._engine.record import COMPILED

    for home in COMPILED:
        with suppress(ImportError):
            folders = getattr(import_module(home), "__path__", ())
            yield from (import_module(found.name) for found in walk_packages(folders, f"{home}."))


def _compiled(variant: _Variant) -> tuple[str, float]:
    import numpy as np

    module, kernel, dtype, flags = variant
    begun = time.monotonic()
    getattr(import_module(module), kernel)(np.dtype(dtype), *flags)
    return f"{module}.{kernel}, {dtype}", time.monotonic() - begun
