"""What is done on partitions, as Dask's graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from torch import Tensor

from dikkat.extras import needing
from dikkat.state import State, merge

Later = Any
"""What Dask will make: a `dask.delayed.Delayed`, which has no types."""

_EVERY = 4  # results that one task joins


def later(function: Callable[..., Any], *given: Any, parts: int | None = None) -> Later:
    """A call that is made where the partitions are; of so many results, if it returns several."""
    with needing("dask"):
        from dask import delayed
    return delayed(function, nout=parts, traverse=False)(*given)


def kept(results: Sequence[Later]) -> list[Later]:
    """Results that are made once and stay where they were made."""
    import dask

    return list(dask.persist(*results))


def here(results: Sequence[Later]) -> list[Any]:
    """Results, in this process.

    Raises:
        RuntimeError: Workers die of one of the tasks again and again.
    """
    import dask

    try:
        return list(dask.compute(*results))
    except Exception as error:
        if type(error).__name__ != "KilledWorker":
            raise
        raise RuntimeError(
            f"X: workers died while they worked on a partition ({error}); expected partitions of which a worker's "
            "memory holds several: make them smaller, or its memory larger"
        ) from None


def tree(function: Callable[[Any, Any], Any], results: Sequence[Later]) -> Later:
    """Results joined a few at a time, so that no task needs all of them at once."""
    while len(results) > 1:
        groups = [results[start : start + _EVERY] for start in range(0, len(results), _EVERY)]
        results = [later(_joined, function, *group) if len(group) > 1 else group[0] for group in groups]
    return results[0]


def _joined(function: Callable[[Any, Any], Any], *results: Any) -> Any:
    return reduce(function, results)


def merged(a: State, b: State) -> State:
    """The state over both, by the one rule."""
    return merge(a, b)


def added(a: Tensor, b: Tensor) -> Tensor:
    """The sum."""
    return a + b
