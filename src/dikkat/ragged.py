"""Attention within each of many packed sequences, concatenated in one tensor without padding."""

from collections.abc import Iterator
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from dikkat._core import dispatch, recording_hooks, validation
from dikkat._core.problem import Problem, Result
from dikkat._core.restricting import check_names
from dikkat.scores import Score
from dikkat.state import State

__all__ = ["attend_ragged", "ragged_state"]


# The operands with a row for each query or for each key, and the dimension of these rows.
_QUERY_ROWS = {"query": -2, "lens": -1, "starts": -1}
_KEY_ROWS = {"key": -2, "value": -2, "key_bias": -1}


class Within(TypedDict, total=False):
    """The keyword arguments of `attend_ragged` that restrict which keys of its sequence a query may see."""

    causal: bool
    window: tuple[int | None, int | None] | None
    key_bias: Tensor | None


class _Options(Within, total=False):
    dropout: float
    impl: str


@overload
def attend_ragged(
    query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor | None = None, *,
    score: Score, return_weights: Literal[False] = False, **options: Unpack[_Options],
) -> Tensor: ...  # fmt: skip
@overload
def attend_ragged(
    query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor | None = None, *,
    score: Score, return_weights: Literal[True], **options: Unpack[_Options],
) -> tuple[Tensor, list[Tensor]]: ...  # fmt: skip
@overload
def attend_ragged(
    query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor | None = None, *,
    score: Score, return_weights: bool, **options: Unpack[_Options],
) -> Tensor | tuple[Tensor, list[Tensor]]: ...  # fmt: skip
def attend_ragged(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_offsets: Tensor,
    key_offsets: Tensor | None = None,
    *,
    score: Score,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    key_bias: Tensor | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
    impl: str = "auto",
) -> Tensor | tuple[Tensor, list[Tensor]]:
    r"""Attend within each of many packed sequences in one call.

    $$ o_i = \sum_{j \in V_i} w_{ij} v_j, \qquad
       w_{ij} = \frac{e^{a(q_i, k_j) + b_j}}{\sum_{l \in V_i} e^{a(q_i, k_l) + b_l}} $$

    V_i are the keys that query i may see: the keys of its sequence that no restriction hides. The result equals one
    call of `attend` per sequence. Sequences may have no queries or no keys. A query that sees no key has output 0.

    Args:
        query: (..., queries of all sequences, d_q), floating point; leading dimensions, such as heads, broadcast.
        key: (..., keys of all sequences, d_k), of the same dtype.
        value: (..., keys of all sequences, d_v), of the same dtype.
        query_offsets: (sequences + 1,) int32 or int64: the start of each sequence's queries, then the end of the last
            sequence. The first is 0, the last is the number of queries, and they never fall.
        key_offsets: (sequences + 1,), offsets of the keys; None if equal to `query_offsets`.
        score: The scoring function a, of `dikkat.scores`.
        causal: Query i of n sees keys j <= i + m − n of the m of its sequence.
        window: (left, right): query i sees keys p − left ... p + right, where p = i + m − n; None is no bound.
        key_bias: (..., keys of all sequences), b: the log of a sample weight. −∞ hides a key.
        dropout: The probability in 0 ... 1 that a normalised weight is set to 0; others are scaled by 1/(1 − dropout).
        return_weights: Whether to also return the weights before dropout.
        impl: "auto", or the name of one implementation, which then runs or raises.

    Returns:
        (..., queries of all sequences, d_v) in the dtype of `value`; with `return_weights` the pair (output, weights),
        weights a list of one tensor (..., n, m) for each sequence.

    Raises what `attend` raises.

    Source: Dao et al. 2022, whose `flash_attn_varlen_func` takes offsets as `cu_seqlens`.

    Example:
        >>> x = torch.arange(5.0)[:, None]
        >>> offsets = torch.tensor([0, 2, 5])
        >>> dikkat.attend_ragged(torch.zeros(5, 1), torch.zeros(5, 1), x, offsets, score=dikkat.scores.Dot()).flatten()
        tensor([0.5000, 0.5000, 3.0000, 3.0000, 3.0000])
    """
    requested = validation.Requested(dropout)
    key_offsets = query_offsets if key_offsets is None else key_offsets
    problem = validation.problem_of_sequences(
        query, key, value, query_offsets, key_offsets, score, requested, causal, window, key_bias
    )
    result = _run(problem, query_offsets, key_offsets, impl)
    output = result.mean.to(value.dtype)
    return (output, _weights(problem, query_offsets, key_offsets, impl, value.dtype)) if return_weights else output


def _run(problem: Problem, query_offsets: Tensor, key_offsets: Tensor, impl: str) -> Result:
    """Return the result of packed sequences, and pass each sequence to the observer."""
    observer = recording_hooks.current_observer()
    with recording_hooks.observed_by(None):
        result = dispatch.run_problem(problem, impl)
        if observer is not None and (sequences := list(_split(problem, query_offsets, key_offsets))):
            observer.observe_calls(sequences, result.mean)
    return result


def _split(problem: Problem, query_offsets: Tensor, key_offsets: Tensor) -> Iterator[Problem]:
    restrictions = problem.restrictions
    queries = validation.sequence_lengths("query_offsets", query_offsets, restrictions.queries).tolist()
    keys = validation.sequence_lengths("key_offsets", key_offsets, restrictions.keys).tolist()
    tensors, key_start = problem.tensors(), 0
    pieces_by_name = {name: tensors[name].split(queries, dim) for name, dim in _QUERY_ROWS.items()}
    pieces_by_name |= {name: tensors[name].split(keys, dim) for name, dim in _KEY_ROWS.items() if name in tensors}
    for index, (n, m) in enumerate(zip(queries, keys, strict=True)):
        rows = {name: pieces[index] for name, pieces in pieces_by_name.items()}
        rows |= {name: rows[name] - key_start for name in ("starts", "lens")}
        sized = restrictions.unchecked_copy(queries=n, keys=m)
        yield problem.unchecked_copy(**tensors | rows, restrictions=sized)
        key_start += m


def _weights(
    problem: Problem, query_offsets: Tensor, key_offsets: Tensor, impl: str, dtype: torch.dtype
) -> list[Tensor]:
    """Return each sequence's weights before dropout, (..., n, m)."""
    if query_offsets.is_meta or torch.compiler.is_compiling():
        where = "on meta" if query_offsets.is_meta else "in a compiled call"
        raise ValueError(
            f"return_weights: got True {where}, where offsets cannot be read, so the number of weights is unknown; "
            "expected False"
        )
    weights = []
    for sequence in _split(problem, query_offsets, key_offsets):
        request = sequence.unchecked_copy(dropout=0.0, wants_state=False, wants_weights=True)
        with recording_hooks.observed_by(None):
            weights.append(dispatch.run_problem(request, impl).shown_weights().to(dtype))
    return weights


def ragged_state(
    query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor | None = None, *,
    score: Score, dropout: float = 0.0, impl: str = "auto", **within: Unpack[Within],
) -> State:  # fmt: skip
    """Return the result of `attend_ragged` as a state, which `merge` combines with the state over other keys.

    The arguments are those of `attend_ragged`.

    Returns:
        `State(mean (..., queries, d_v), lse (..., queries), tail (..., queries))`, float32 or float64.

    Raises what `attend` raises.

    Example:
        >>> x, offsets = torch.zeros(3, 2), torch.tensor([0, 1, 3])
        >>> dikkat.ragged_state(x, x, x, offsets, score=dikkat.scores.Dot()).lse  # 0, and twice log 2
        tensor([0.0000, 0.6931, 0.6931])
    """
    check_names(within, Within)
    key_offsets = query_offsets if key_offsets is None else key_offsets
    causal, window, key_bias = within.get("causal", False), within.get("window"), within.get("key_bias")
    problem = validation.problem_of_sequences(
        query, key, value, query_offsets, key_offsets, score, validation.Requested(dropout, wants_state=True), causal,
        window, key_bias,
    )  # fmt: skip
    return _run(problem, query_offsets, key_offsets, impl).state()


def are_jagged(*tensors: Tensor) -> bool:
    return all(isinstance(t, Tensor) and t.is_nested and t.layout is torch.jagged for t in tensors)


def problem_of_jagged(
    query: Tensor, key: Tensor, value: Tensor, score: Score, requested: validation.Requested, causal: bool = False,
    window: tuple[int | None, int | None] | None = None, **restrictions: Any,
) -> Problem:  # fmt: skip
    unsupported = [name for name, restriction in restrictions.items() if restriction is not None]
    if unsupported:
        raise TypeError(
            f"{unsupported[0]}: got a value with nested tensors; expected None (only causal and window are supported). "
            "To pass key_bias, call attend_ragged with query.values() and query.offsets()"
        )
    rows: dict[str, Any] = {"query": query, "key": key, "value": value}  # PyTorch types no nested tensor
    for name, nested in rows.items():
        if nested.lengths() is not None:
            raise ValueError(f"{name}: got a nested tensor with holes; expected contiguous sequences")
        if nested._ragged_idx != nested.ndim - 2:  # there is no public method
            raise ValueError(
                f"{name}: got a nested tensor of shape {tuple(nested.shape)}; expected (sequences, ..., any length, "
                "features). If heads follow the length, pass nested.transpose(1, 2)"
            )
    offsets, key_offsets, value_offsets = (nested.offsets() for nested in rows.values())
    if value_offsets is not key_offsets and not torch.equal(value_offsets, key_offsets):
        raise ValueError("value: got other lengths than key; expected one value for each key")
    query, key, value = (nested.values() for nested in rows.values())
    return validation.problem_of_sequences(
        query, key, value, offsets, key_offsets, score, requested, causal, window, None
    )


def attend_jagged(
    query: Any, key: Any, value: Tensor, score: Score, requested: validation.Requested, impl: str, **options: Any
) -> Any:
    """Run `attend` on nested tensors; return a nested tensor, and a list of weights if requested."""
    problem = problem_of_jagged(query, key, value, score, requested._replace(wants_weights=False), **options)
    offsets = query.offsets(), key.offsets()
    result = _run(problem, *offsets, impl)
    output = torch.nested.nested_tensor_from_jagged(
        result.mean.to(value.dtype), query.offsets(), jagged_dim=query.ndim - 2
    )
    return (output, _weights(problem, *offsets, impl, value.dtype)) if requested.wants_weights else output
