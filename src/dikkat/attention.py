"""The public functions of attention: compare queries with keys, normalise the scores, average the values."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Unpack, overload

import torch
from torch import Tensor, nn

from dikkat._core import dispatch, validation
from dikkat._core.implementations import BACKENDS, choose, pack
from dikkat._core.problem import Result
from dikkat._core.restricting import Hiding, MaskFunction, Restricting, check_names, restrict
from dikkat._engine.weight_versions import Writes, frozen, is_traced, learns
from dikkat.ragged import are_jagged, attend_jagged, problem_of_jagged
from dikkat.scores import Score
from dikkat.state import State, merge

__all__ = [
    "Implementation", "Memory", "State", "attend", "attend_memory", "attention_state", "attention_weights",
    "implementations", "merge", "prepare",
]  # fmt: skip


class Restricted(Hiding, total=False):
    """The keyword arguments that every layer passes to `attend`."""

    return_weights: bool
    impl: str


class _Options(Hiding, total=False):
    """Keywords of `attend` and `attend_memory` that do not change the type they return."""

    sink: Tensor | None
    dropout: float
    impl: str


class _AllOptions(_Options, Restricting, total=False):
    """Keywords of `attend` that do not change the type it returns."""


class Implementation(NamedTuple):
    """One way to compute a call.

    Attributes:
        name: The value for `impl=`.
        runs: Whether it can run the call.
        reasons: Why it cannot run the call; empty if it can.
    """

    name: str
    runs: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Memory:
    """Keys and values for many calls, projected once by `prepare`.

    Later changes of the original tensors have no effect, also if the memory is selected, copied, or stored and loaded.

    Attributes:
        score: The scoring function, which also projects later queries.
        key: (..., m, h), projected; 0 past the length.
        value: (..., m, d_v); 0 past the length.
        valid_lens: None, or (B,) integers (a scalar without leading dimensions).
        packed: The keys in an implementation's own form, such as exponentials of many additive keys; or None.
        seen: A copy of the score made by `prepare`; None if it has no parameters, or gradients flow to them.
        writes: Detects later writes to the score's parameters; None if you construct a `Memory` yourself, and while
            PyTorch traces.
    """

    score: Score
    key: Tensor
    value: Tensor
    valid_lens: Tensor | None
    packed: Tensor | None = None
    seen: Score | None = None
    writes: Writes | None = None

    def __post_init__(self) -> None:
        """Check that keys, values and lengths fit, also after a field was replaced."""
        key, value, lens = self.key, self.value, self.valid_lens
        if key.shape[-2] != value.shape[-2] or (key.ndim > 2 and key.shape[:1] != value.shape[:1]):
            raise ValueError(
                f"memory: got keys {tuple(key.shape)} and values {tuple(value.shape)}; expected equal numbers of both, "
                "in equally many batch elements"
            )
        if lens is not None and lens.shape != key.shape[:-2][:1]:
            raise ValueError(
                f"memory: got valid_lens {tuple(lens.shape)} with keys {tuple(key.shape)}; expected "
                f"{tuple(key.shape[:-2][:1])}, one length for each batch element"
            )
        if lens is not None and lens.dtype != torch.int64:
            raise TypeError(f"memory: got valid_lens of dtype {lens.dtype}; expected torch.int64")

    def scoring(self) -> Score:
        """Return the score that compares queries: the memory's copy, or the caller's score if gradients reach it.

        Raises:
            ValueError: The score's parameters have changed since `prepare`, so keys and queries would not match.
        """
        if self.seen is not None and not learns(self.score):
            return self.seen
        self.check_fresh()
        return self.score

    def check_fresh(self) -> None:
        """Raise ValueError if the score's parameters changed since `prepare`; trained parameters have no copy."""
        if torch.compiler.is_compiling() or self.writes is None:
            return
        if not self.writes.are_none(self.score.parameters()):
            raise ValueError(
                "memory: the score's parameters changed after `prepare`, so queries and keys would not match; expected "
                "unchanged parameters. Call prepare again after each update, or call it under torch.no_grad(): then "
                "the memory keeps a copy of the parameters"
            )

    def check_recorded(self, module: nn.Module, *tensors: Tensor) -> None:
        """Raise ValueError if gradients would flow through tensors made in inference mode."""
        if torch.compiler.is_compiling() or not self.value.is_inference():
            return
        if not torch.is_inference_mode_enabled() and learns(module, *tensors):
            raise ValueError(
                "memory: got one prepared under torch.inference_mode(), through which PyTorch records no gradients; "
                "prepare it outside inference_mode, or use it under torch.no_grad()"
            )

    def select(self, rows: Tensor) -> "Memory":
        """Return the memory of some batch elements, in any order and number, as a beam search needs.

        Args:
            rows: (B',) integers, indices into the first leading dimension.

        Raises:
            TypeError: `rows` is not a tensor of integers.
            ValueError: `rows` are out of range, or the memory has no leading dimension.
        """
        if self.key.ndim < 3:
            raise ValueError(
                f"rows: got a memory of keys {tuple(self.key.shape)}, without a batch dimension to select from; "
                "expected a memory of keys (B, m, d_k)"
            )
        validation.check_rows(rows, self.key.shape[0])

        def take(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, rows)

        lens, packed = self.valid_lens, self.packed
        return replace(
            self, key=take(self.key), value=take(self.value), valid_lens=None if lens is None else take(lens),
            packed=None if packed is None else take(packed),
        )  # fmt: skip


@overload
def attend(
    query: Tensor, key: Tensor, value: Tensor, *, score: Score, return_weights: Literal[False] = False,
    **options: Unpack[_AllOptions],
) -> Tensor: ...  # fmt: skip
@overload
def attend(
    query: Tensor, key: Tensor, value: Tensor, *, score: Score, return_weights: Literal[True],
    **options: Unpack[_AllOptions],
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@overload
def attend(
    query: Tensor, key: Tensor, value: Tensor, *, score: Score, return_weights: bool, **options: Unpack[_AllOptions]
) -> Tensor | tuple[Tensor, Tensor]: ...
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score,
    valid_lens: Tensor | int | None = None,
    mask: Tensor | MaskFunction | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    segment_ids: Tensor | tuple[Tensor, Tensor] | None = None,
    bias: Tensor | None = None,
    key_bias: Tensor | None = None,
    exclude: Tensor | None = None,
    sink: Tensor | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
    impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Return for each query the average of the values, weighted by the scores of the query with their keys.

    $$ o_i = \sum_j w_{ij} v_j, \qquad
       w_{ij} = \frac{[j \in V_i]\, e^{a(q_i, k_j) + b_{ij}}}{\sum_{l \in V_i} e^{a(q_i, k_l) + b_{il}}} $$

    V_i are the keys that query i may see: the intersection of all restrictions. A row that sees no key has weights 0,
    output 0 and gradient 0. Keys hidden from a query have no effect on it, even if they are NaN.

    NaN has two exceptions, for speed, when "auto" chooses PyTorch's fused kernels for dot products. On a GPU, a NaN in
    a key or value that only *some* queries see also reaches the queries from which it is hidden, as a check would wait
    for the GPU. In a compiled graph for CPUs, a query of NaN over fewer than 16 keys gets the output 0.

    If gradients are recorded, do not modify the output in place: the backward pass may need it, and PyTorch then raises
    an error.

    Nested tensors with layout `torch.jagged`, (sequences, ..., any length, d), attend within each sequence, as in
    `attend_ragged`. The output is a nested tensor too, and the weights are a list of one tensor for each sequence.

    Leading dimensions broadcast; heads are the last of them, (B, H, n, d). Float16 and bfloat16 are accumulated in
    float32. Under autocast attention runs in the dtypes of its arguments, which may then differ.

    Args:
        query: (..., n, d_q), floating point.
        key: (..., m, d_k), of the same dtype.
        value: (..., m, d_v), of the same dtype.
        score: The scoring function a, of `dikkat.scores`.
        valid_lens: (B,) or (B, n) integers in 0 ... m, aligned with the first leading dimension and shared by the heads
            (without leading dimensions: a scalar or (n,)): key j takes part where j < valid_len.
        mask: Booleans that broadcast to (..., n, m); True takes part. Or a function that returns them: dikkat calls it
            with the numbers of the queries, (n, 1), and of the keys, (m,), both counted from 0.
        causal: Query i sees keys j <= i + m − n.
        window: (left, right): query i sees keys p − left ... p + right, where p = i + m − n; None is no bound. Keys
            outside are skipped: time and memory grow with n, not with n · m.
        segment_ids: (B, n) and (B, m) integers, or one tensor for both: a query sees only keys of its segment, such as
            one of several documents in a row. The keys of a segment must be neighbours. Other segments are skipped.
        bias: Numbers that broadcast to (..., n, m), added to the scores (a part of b), such as relative positions or
            masks of numbers. They are not copied, and have a gradient. −∞ hides a pair.
        key_bias: (..., m), the other part of b: the log of a sample weight. −∞ hides a key.
        exclude: (..., n) integers: one key index hidden from each row, −1 for none (leave-one-out).
        sink: Floating-point numbers that broadcast to the leading dimensions, (H,) for heads: one more logit without a
            value. It takes a share of the weight, so that the keys' weights sum to less than 1.
        dropout: The probability in 0 ... 1 that a normalised weight is set to 0; others are scaled by 1/(1 − dropout).
        return_weights: Whether to also return the weights before dropout.
        impl: "auto", or the name of one implementation, which then runs or raises.

    Returns:
        (..., n, d_v) in the dtype of `value`; with `return_weights` the pair (output, weights (..., n, m)).

    Raises:
        TypeError: An argument has the wrong type or dtype.
        ValueError: Shapes, devices or values do not fit, or the implementation cannot run this call.

    Source: Bahdanau, Cho and Bengio 2015, section 3.1; Vaswani et al. 2017, section 3.2.

    Example:
        >>> q, k, v = torch.zeros(2, 1, 5), torch.zeros(2, 3, 5), torch.arange(6.0).reshape(2, 3, 1)
        >>> dikkat.attend(q, k, v, score=dikkat.scores.ScaledDot(), valid_lens=torch.tensor([2, 3])).flatten()
        tensor([0.5000, 4.0000])
    """
    requested = validation.Requested(dropout, False, return_weights, sink)
    restricting: Restricting = {
        "valid_lens": valid_lens, "mask": mask, "causal": causal, "window": window, "segment_ids": segment_ids,
        "bias": bias, "key_bias": key_bias, "exclude": exclude,
    }  # fmt: skip
    if type(query) is not Tensor and are_jagged(query, key, value):
        return attend_jagged(  # type: ignore[no-any-return]  # PyTorch types no nested tensor
            query, key, value, score, requested, impl, sink=sink, **restricting
        )
    result = dispatch.run_call(query, key, value, score, requested, impl, restricting)
    return output_of(result, value, return_weights)


def output_of(result: Result, value: Tensor, return_weights: bool) -> Tensor | tuple[Tensor, Tensor]:
    mean = result.mean
    if mean.dtype is not value.dtype:
        mean = mean.to(value.dtype)
    if not return_weights:
        return mean
    weights = result.shown_weights()
    return mean, weights if weights.dtype is value.dtype else weights.to(value.dtype)


def attention_state(
    query: Tensor, key: Tensor, value: Tensor, *, score: Score, sink: Tensor | None = None, dropout: float = 0.0,
    impl: str = "auto", **restrictions: Unpack[Restricting],
) -> State:  # fmt: skip
    r"""Return the pooled result as a state, which `merge` combines with the state over other keys.

    $$ \mu_i = \sum_j w_{ij} v_j, \qquad \ell_i = \log \sum_{j \in V_i} e^{a(q_i, k_j) + b_j} $$

    $V_i$ are the keys that query i sees, and $b_j$ is the bias of key j. The mean uses weights after dropout, the
    log-sum-exp the scores before it. The arguments are those of `attend`.

    Returns:
        `State(mean (..., n, d_v), lse (..., n), tail (..., n))`, float32 or float64; a row with no key has mean 0 and
        lse −∞. `tail` is the rounding error of `lse` (see `State`).

    Raises what `attend` raises.

    Example:
        >>> x = torch.zeros(3, 2)
        >>> dikkat.attention_state(x, x, x, score=dikkat.scores.Dot()).lse  # log 3
        tensor([1.0986, 1.0986, 1.0986])
    """
    check_names(restrictions, Restricting)
    requested = validation.Requested(dropout, wants_state=True, sink=sink)
    return dispatch.run_call(query, key, value, score, requested, impl, restrictions).state()


def attention_weights(
    query: Tensor, key: Tensor, *, score: Score, sink: Tensor | None = None, impl: str = "auto",
    **restrictions: Unpack[Restricting],
) -> Tensor:  # fmt: skip
    r"""Return only the weights.

    $$ w_{ij} = \frac{[j \in V_i]\, e^{a(q_i, k_j) + b_j}}{\sum_{l \in V_i} e^{a(q_i, k_l) + b_l}} $$

    The arguments are those of `attend`; the weight of a sink is not returned.

    Returns:
        (..., n, m) in the dtype of `query`; each row sums to 1, or to 0 if it sees no key.

    Raises what `attend` raises.

    Example:
        >>> dikkat.attention_weights(torch.zeros(1, 2), torch.zeros(4, 2), score=dikkat.scores.Dot(), valid_lens=2)
        tensor([[0.5000, 0.5000, 0.0000, 0.0000]])
    """
    check_names(restrictions, Restricting)
    validation.check_features("key", key)
    no_values = key.new_empty((*key.shape[:-1], 0))
    requested = validation.Requested(wants_weights=True, sink=sink)
    result = dispatch.run_call(query, key, no_values, score, requested, impl, restrictions)
    return result.shown_weights().to(query.dtype)


def prepare(key: Tensor, value: Tensor, *, score: Score, valid_lens: Tensor | int | None = None) -> Memory:
    """Project keys once, for many later queries.

    Later writes to `key`, `value` or `valid_lens` do not change the memory. If gradients are off, or no parameter of
    the score requires one, the memory also keeps a copy of the parameters. If the parameters are trained, using a
    memory after they change raises ValueError. A write through `.data`, or by a fused optimiser on a GPU, may go
    undetected: call `prepare` again after it.

    Args:
        key: (..., m, d_k), floating point.
        value: (..., m, d_v), of the same dtype.
        score: The scoring function.
        valid_lens: (B,) integers in 0 ... m, aligned with the first leading dimension (without one: a scalar).

    Returns:
        A `Memory`, for `attend_memory`.

    Raises:
        TypeError: An argument has the wrong type or dtype.
        ValueError: Shapes, devices or values do not fit.

    Example:
        >>> score = dikkat.scores.Additive(key_size=3, query_size=5, num_hiddens=7)
        >>> memory = dikkat.prepare(torch.zeros(2, 11, 3), torch.zeros(2, 11, 13), score=score)
        >>> dikkat.attend_memory(torch.zeros(2, 1, 5), memory).shape
        torch.Size([2, 1, 13])
    """
    memory = project_keys(key, value, score=score, valid_lens=valid_lens)
    has_tensors = next(score.parameters(), next(score.buffers(), None)) is not None
    trained = is_traced() or learns(score, memory.key, memory.value)
    score_copy = frozen(score) if has_tensors and not trained else None
    return replace(memory, packed=pack(score.pair, memory.key), seen=score_copy)


def project_keys(key: Tensor, value: Tensor, *, score: Score, valid_lens: Tensor | int | None = None) -> Memory:
    """Project keys as `prepare` does, but without packing them."""
    validation.check_call(key, value, score)
    lead = validation.lead_of(("key", key), ("value", value))
    if isinstance(valid_lens, Tensor) and valid_lens.ndim != len(lead[:1]):
        raise ValueError(
            f"valid_lens: got shape {tuple(valid_lens.shape)}; expected {tuple(lead[:1])}, one length for each batch "
            "element (for one length per query, pass a mask to attend_memory)"
        )
    restrictions = restrict(lead, 1, key.shape[-2], key.device, valid_lens=valid_lens)
    is_shared = key is value
    key = validation.add_dims(key, len(lead))
    # Copies, so that writing to the caller's tensors later does not change the memory.
    key = validation.hide(key, restrictions.seen_keys()) if restrictions.may_hide() else key.clone()
    if is_shared:  # as in a decoder
        value = key
    else:
        value = validation.add_dims(value, len(lead))
        value = validation.hide(value, restrictions.seen_keys()) if restrictions.may_hide() else value.clone()
    projected = validation.add_dims(score.project_key(key), len(lead))
    if restrictions.may_hide():
        projected, value = (validation.copy_shared(t, restrictions.seen_keys()) for t in (projected, value))
    if lead:  # `select` indexes the first leading dimension of all tensors, so none may broadcast over it
        projected, value = (t.expand(lead[:1] + t.shape[1:]) for t in (projected, value))
    lens = None if restrictions.lens is None else restrictions.lens.reshape(lead[:1]).clone()
    return Memory(score, projected, value, lens, writes=None if is_traced() else Writes(score.parameters()))


@overload
def attend_memory(
    query: Tensor, memory: Memory, *, return_weights: Literal[False] = False, **options: Unpack[_Options]
) -> Tensor: ...
@overload
def attend_memory(
    query: Tensor, memory: Memory, *, return_weights: Literal[True], **options: Unpack[_Options]
) -> tuple[Tensor, Tensor]: ...
@overload
def attend_memory(
    query: Tensor, memory: Memory, *, return_weights: bool, **options: Unpack[_Options]
) -> Tensor | tuple[Tensor, Tensor]: ...
def attend_memory(
    query: Tensor, memory: Memory, *, sink: Tensor | None = None, dropout: float = 0.0, return_weights: bool = False,
    impl: str = "auto", **restrictions: Unpack[Hiding],
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Attend to a memory, as a decoder does at each step.

    `prepare` has projected the keys within the lengths. If the score's projection is trained, keys hidden only in this
    call must be finite: a NaN would reach the projection's gradient, as 0 · NaN.

    `memory` is returned by `prepare`, and contains the lengths. The queries (..., n, d_q) have its dtype. The other
    arguments are those of `attend`.

    Returns:
        (..., n, d_v), or the pair (output, weights (..., n, m)).

    Raises what `attend` raises.

    Example:
        >>> memory = dikkat.prepare(torch.zeros(2, 3, 5), torch.ones(2, 3, 1), score=dikkat.scores.Dot())
        >>> dikkat.attend_memory(torch.zeros(1, 1, 5), memory.select(torch.tensor([1]))).item()
        1.0
    """
    check_names(restrictions, Hiding)
    if not isinstance(memory, Memory):
        raise TypeError(f"memory: got {type(memory).__name__}; expected a Memory, as dikkat.prepare returns")
    validation.check_features("query", query)
    validation.check_alike(("query", query), ("memory.value", memory.value))
    score = memory.scoring()
    memory.check_recorded(score, query)
    requested = validation.Requested(dropout, wants_weights=return_weights, sink=sink)
    result = dispatch.run_call(
        query, memory.key, memory.value, score, requested, impl, {"valid_lens": memory.valid_lens, **restrictions},
        prepared=validation.Prepared(memory.packed),
    )  # fmt: skip
    return output_of(result, memory.value, return_weights)


def implementations(
    query: Tensor, key: Tensor, value: Tensor, *, score: Score, sink: Tensor | None = None, dropout: float = 0.0,
    return_weights: bool = False, return_state: bool = False, **restrictions: Unpack[Restricting],
) -> list[Implementation]:  # fmt: skip
    """List all implementations, first the one that `impl="auto"` picks, and why some cannot run a call.

    The arguments are those of `attend`; with `return_state` the call is `attention_state`.

    Returns:
        One `Implementation(name, runs, reasons)` for each implementation.

    Raises what `attend` raises.

    Example:
        >>> x = torch.zeros(1, 2, 8)
        >>> [i.name for i in dikkat.implementations(x, x, x, score=dikkat.scores.Dot()) if i.runs]
        ['numba-few', 'sdpa', 'reference', 'chunked', 'numba']
    """
    check_names(restrictions, Restricting)
    requested = validation.Requested(dropout, wants_weights=return_weights, wants_state=return_state, sink=sink)
    make_problem = problem_of_jagged if are_jagged(query, key, value) else validation.problem_of_call
    first, problem, examined = choose(make_problem(query, key, value, score, requested, **restrictions))
    entries = []
    for name in sorted(BACKENDS, key=lambda name: name != first):
        reasons = tuple((examined.get(name) or BACKENDS[name].examine(problem)).reasons)
        entries.append(Implementation(name, not reasons, reasons))
    return entries
