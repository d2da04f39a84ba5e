"""How many threads a training computes with: they share sums among them, so that their number decides the last bits."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_threads() -> Iterator[None]:
    """Behind it, PyTorch has as many threads as before."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def go_on_with(begun: int) -> str | None:
    """Give PyTorch as many threads as a training began with, unless someone or something stands against that.

    Args:
        begun: The number of threads in the checkpoint.

    Returns:
        None where it has as many now; otherwise one line about why it has not, and what follows.
    """
    now = torch.get_num_threads()
    if now == begun:
        return None
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked not in ("", str(begun)):
        reason = f"OMP_NUM_THREADS is {asked}: unset it to go on with {begun}"
    elif _processors() < begun:
        reason = f"this process may use {_processors()} of the processors"
    else:
        torch.set_num_threads(begun)
        return None
    return (
        f"the training began with {begun} threads and goes on with {now}, so that the last bits of its weights may "
        f"differ from those of a training that was never stopped ({reason})"
    )


def _processors() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
