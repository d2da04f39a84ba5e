"""Packed sequences: their offsets, and the calls of one sequence each."""

from collections.abc import Iterator

import torch
from torch import Tensor

from dikkat._core.problem import Problem
from dikkat._engine.addresses import check_dense
from dikkat._engine.pytorch_state import can_read_values

# The operands with a row for each query or each key, and the dimension that counts these rows.
_QUERY_ROWS = {"query": -2, "lens": -1, "starts": -1}
_KEY_ROWS = {"key": -2, "value": -2, "key_bias": -1}


def check_offsets(name: str, offsets: object, rows: int, device: torch.device) -> None:
    """Check the dtype, shape and device of offsets, and their numbers if they may be read."""
    if not isinstance(offsets, Tensor) or offsets.dtype not in (torch.int32, torch.int64):
        came = f"dtype {offsets.dtype}" if isinstance(offsets, Tensor) else type(offsets).__name__
        raise TypeError(f"{name}: got {came}; expected a torch.Tensor of int32 or int64")
    check_dense(name, offsets)
    if offsets.ndim != 1 or not len(offsets):
        raise ValueError(f"{name}: got shape {tuple(offsets.shape)}; expected (sequences + 1,)")
    if offsets.device != device:
        raise ValueError(f"{name}: got a tensor on {offsets.device}; expected the query's device, {device}")
    if can_read_values(offsets):
        _lengths(name, offsets, rows)


def _lengths(name: str, offsets: Tensor, rows: int) -> Tensor:
    """The length of each sequence, of offsets that go from 0 to `rows` without falling."""
    numbers = offsets.detach().to(torch.int64)
    falls, (first, last) = numbers[1:] < numbers[:-1], numbers[[0, -1]].tolist()
    if first != 0:
        raise ValueError(f"{name}: got {first} first; expected 0, where the first sequence begins")
    if bool(falls.any()):
        at = int(falls.nonzero()[0])
        raise ValueError(
            f"{name}: got {int(numbers[at])} and then {int(numbers[at + 1])}, at {at + 1}; expected numbers that "
            "never fall: where each sequence begins, and where the last one ends"
        )
    if last != rows:
        raise ValueError(f"{name}: got {last} last; expected {rows}, the number of rows")
    return numbers.diff()


def split_sequences(problem: Problem, query_offsets: Tensor, key_offsets: Tensor) -> Iterator[Problem]:
    restrictions = problem.restrictions
    queries = _lengths("query_offsets", query_offsets, restrictions.queries).tolist()
    keys = _lengths("key_offsets", key_offsets, restrictions.keys).tolist()
    tensors, key_start = problem.tensors(), 0
    parts = {name: tensors[name].split(queries, dim) for name, dim in _QUERY_ROWS.items()}
    parts |= {name: tensors[name].split(keys, dim) for name, dim in _KEY_ROWS.items() if name in tensors}
    for index, (n, m) in enumerate(zip(queries, keys, strict=True)):
        rows = {name: pieces[index] for name, pieces in parts.items()}
        rows |= {name: rows[name] - key_start for name in ("starts", "lens")}
        sized = restrictions.unchecked_copy(queries=n, keys=m)
        yield problem.unchecked_copy(**tensors | rows, restrictions=sized)
        key_start += m
