"""Small tools of the textbook: arrays, timers, sums, checks, and classes with methods from several cells."""

import inspect
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from dikkat.scores import check_size

__all__ = [
    "Accumulator", "HyperParameters", "Timer", "add_to_class", "as_array", "call_matching", "check_attention",
    "check_heads", "check_len", "check_shape", "positions",
]  # fmt: skip

T = TypeVar("T")


def as_array(x: Any) -> Any:
    """Return the values of any framework's tensor, or of a number or list, as a NumPy array.

    Example:
        >>> as_array(torch.ones(2, dtype=torch.bfloat16, requires_grad=True))
        array([1., 1.], dtype=float32)
    """
    if isinstance(x, torch.Tensor):
        values = x.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    if hasattr(x, "asnumpy"):  # MXNet
        return x.asnumpy()
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)  # TensorFlow; anything else


class Timer:
    """A timer of several runs, in seconds; the constructor starts it.

    Attributes:
        times: The runs' times so far.

    Example:
        >>> timer = Timer()
        >>> timer.stop() >= 0, timer.sum() == timer.avg() == timer.cumsum()[-1]
        (True, True)
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self.start()

    def start(self) -> None:
        """Start a run."""
        self.began = time.perf_counter()

    def stop(self) -> float:
        """End the run and return its time."""
        self.times.append(time.perf_counter() - self.began)
        return self.times[-1]

    def avg(self) -> float:
        """Return the mean time."""
        return sum(self.times) / len(self.times)

    def sum(self) -> float:
        """Return the total time."""
        return sum(self.times)

    def cumsum(self) -> list[float]:
        """Return the cumulative times."""
        total: list[float] = np.cumsum(self.times).tolist()
        return total


class Accumulator:
    """n running sums.

    Example:
        >>> metric = Accumulator(2)
        >>> metric.add(3, 0.5)
        >>> metric.add(4, 0.25)
        >>> metric[0], metric[1]
        (7.0, 0.75)
    """

    def __init__(self, n: int) -> None:
        self.data = [0.0] * n

    def add(self, *args: Any) -> None:
        """Add one number (or array with one number) to each sum."""
        self.data = [total + float(as_array(value)) for total, value in zip(self.data, args, strict=True)]

    def reset(self) -> None:
        """Set all sums to 0."""
        self.data = [0.0] * len(self.data)

    def __getitem__(self, idx: int) -> float:
        return self.data[idx]


class HyperParameters:
    """A base class whose constructors store their arguments as attributes.

    Example:
        >>> class Model(HyperParameters):
        ...     def __init__(self, width, depth=2):
        ...         self.save_hyperparameters(ignore=["depth"])
        >>> Model(3).width, Model(3).hparams
        (3, {'width': 3})
    """

    def save_hyperparameters(self, ignore: Sequence[str] = ()) -> None:
        """Store the caller's arguments, except those in `ignore`, as attributes and in `self.hparams`."""
        caller = sys._getframe(1).f_locals
        ignored = ("self", *ignore)
        self.hparams = {
            name: value for name, value in caller.items() if name not in ignored and not name.startswith("_")
        }
        for name, value in self.hparams.items():
            setattr(self, name, value)


def add_to_class(Class: type) -> Callable[[T], T]:
    """Return a decorator that adds a function to an existing class as a method.

    Example:
        >>> class Model:
        ...     pass
        >>> @add_to_class(Model)
        ... def double(self, x):
        ...     return 2 * x
        >>> Model().double(3)
        6
    """

    def add(method: T) -> T:
        setattr(Class, method.__name__, method)  # type: ignore[attr-defined]
        return method

    return add


def check_len(a: Any, n: int) -> None:
    """Check the length of a sequence."""
    if len(a) != n:
        raise ValueError(f"a: got length {len(a)}; expected {n}")


def check_shape(a: Any, shape: Sequence[int]) -> None:
    """Check the shape of an array."""
    if tuple(a.shape) != tuple(shape):
        raise ValueError(f"a: got shape {tuple(a.shape)}; expected {tuple(shape)}")


def check_attention(queries: Sequence[int], keys: Sequence[int], values: Sequence[int]) -> tuple[int, int, int]:
    """Return the scores' shape (B, n, m) for the shapes of queries, keys and values."""
    shapes = [tuple(shape) for shape in (queries, keys, values)]
    if any(len(shape) != 3 or shape[0] != shapes[0][0] for shape in shapes) or keys[1] != values[1]:
        raise ValueError(
            f"queries, keys, values: got shapes {shapes[0]}, {shapes[1]} and {shapes[2]}; expected three dimensions "
            "each, one batch, and as many values as keys"
        )
    return queries[0], queries[1], keys[1]


def check_heads(num_hiddens: int, num_heads: int) -> None:
    """Raise unless `num_hiddens` is a multiple of `num_heads`."""
    if check_size("num_hiddens", num_hiddens) % check_size("num_heads", num_heads):
        raise ValueError(f"num_hiddens: got {num_hiddens}; expected a multiple of num_heads, {num_heads}")


def positions(num_hiddens: int, max_len: int) -> NDArray[np.float32]:
    r"""Return sines and cosines of positions.

    $$ P_{i, 2j} = \sin\left(i / 10000^{2j/d}\right), \qquad P_{i, 2j+1} = \cos\left(i / 10000^{2j/d}\right) $$

    Args:
        num_hiddens: d.
        max_len: Number of positions.

    Returns:
        P, (1, max_len, d).

    Source: Vaswani et al. 2017, section 3.5.

    Example:
        >>> positions(3, 2).round(2).tolist()[0][0]
        [0.0, 1.0, 0.0]
    """
    column: NDArray[Any] = np.arange(num_hiddens)
    angle = np.arange(max_len)[:, None] / 10000.0 ** ((column - column % 2) / num_hiddens)
    return np.where(column % 2, np.cos(angle), np.sin(angle))[None].astype(np.float32)


def call_matching(args: Sequence[Any], kwargs: dict[str, Any], *functions: Callable[..., T]) -> T:
    """Call the first function whose signature accepts these arguments: one constructor for both editions.

    Example:
        >>> call_matching((8,), {"dropout": 0.1}, lambda a, b, c: a, lambda size, dropout: (None, size, dropout))
        (None, 8, 0.1)
    """
    for function in functions:
        try:
            inspect.signature(function).bind(*args, **kwargs)
        except TypeError:
            continue
        return function(*args, **kwargs)
    expected = " or ".join(str(inspect.signature(function)) for function in functions)
    raise TypeError(f"arguments: got {args} and {kwargs}; expected {expected}")
