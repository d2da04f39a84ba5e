"""The front door: compare a query with every key, normalise over the keys, average the values."""

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
    """The keyword arguments that every layer passes on to `attend`."""

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
        name: What `impl=` takes.
        runs: Whether it can run the call.
        reasons: Why it cannot; empty where it can.
    """

    name: str
    runs: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Memory:
    """Keys and values that are attended to many times, projected once. Made by `prepare`.

    What `prepare` saw is what counts, also in a memory that is selected, copied, or stored and loaded.

    Attributes:
        score: The scoring function, which also projects the queries to come.
        key: (..., m, h), projected; 0 past the length.
        value: (..., m, d_v); 0 past the length.
        valid_lens: None, or (B,) integers (a scalar where there is no leading dimension).
        packed: What an implementation keeps of these keys, for many additive ones their exponentials; or None.
        seen: A copy of the score as it was then; None where it has no parameters, or gradients flow to them.
        writes: Those to the score's parameters since then; None in a memory made by hand, and while PyTorch traces.
    """

    score: Score
    key: Tensor
    value: Tensor
    valid_lens: Tensor | None
    packed: Tensor | None = None
    seen: Score | None = None
    writes: Writes | None = None

    def __post_init__(self) -> None:
        """Check that keys, values and lengths fit, also where one of them was replaced by hand."""
        key, value, lens = self.key, self.value, self.valid_lens
        if key.shape[-2] != value.shape[-2] or (key.ndim > 2 and key.shape[:1] != value.shape[:1]):
            raise ValueError(
                f"memory: got keys {tuple(key.shape)} and values {tuple(value.shape)}; expected as many of both, "
                "in as many batch elements"
            )
        if lens is not None and lens.shape != key.shape[:-2][:1]:
            raise ValueError(
                f"memory: got valid_lens {tuple(lens.shape)} beside keys {tuple(key.shape)}; expected "
                f"{tuple(key.shape[:-2][:1])}, one length a batch element"
            )
        if lens is not None and lens.dtype != torch.int64:
            raise TypeError(f"memory: got valid_lens of dtype {lens.dtype}; expected torch.int64")

    def scoring(self) -> Score:
        """The score that compares queries: the memory's copy, or the caller's score where it is trained.

        Raises:
            ValueError: Its parameters have been written to since, so that keys and queries would not go together.
        """
        if self.seen is not None and not learns(self.score):
            return self.seen
        self.check_fresh()
        return self.score

    def check_fresh(self) -> None:
        """Raise ValueError for parameters that were written to since: if they are trained, no copy replaces them."""
        if torch.compiler.is_compiling() or self.writes is None:
            return
        if not self.writes.are_none(self.score.parameters()):
            raise ValueError(
                "memory: the score's parameters have been changed since `prepare`, so that queries and keys would not "
                "go together; prepare it again (once for each update), or under torch.no_grad(), where it keeps what "
                "it saw"
            )

    def check_recorded(self, module: nn.Module, *tensors: Tensor) -> None:
        """Refuse gradients through what was made in inference mode, and say what to do instead."""
        if torch.compiler.is_compiling() or not self.value.is_inference():
            return
        if not torch.is_inference_mode_enabled() and learns(module, *tensors):
            raise ValueError(
                "memory: it was prepared under torch.inference_mode(), whose tensors gradients cannot be recorded "
                "through; prepare it outside inference_mode, or use it under torch.no_grad()"
            )

    def select(self, rows: Tensor) -> "Memory":
        """The memory of some batch elements, in any order and number: how a beam search reorders.

        Args:
            rows: (B',) integers, indices into the first leading dimension.

        Raises:
            TypeError: Rows that are not a tensor of integers.
            ValueError: Rows out of range, or a memory without a leading dimension.
        """
        if self.key.ndim < 3:
            raise ValueError("rows: got a memory without a leading dimension; expected one of keys (B, m, d_k)")
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
    r"""Attention: for each query the average of the values, weighted by the scores of the query with their keys.

    $$ o_i = \sum_j w_{ij} v_j, \qquad
       w_{ij} = \frac{[j \in V_i]\, e^{a(q_i, k_j) + b_{ij}}}{\sum_{l \in V_i} e^{a(q_i, k_l) + b_{il}}} $$

    V_i are the keys that query i may see: the intersection of all restrictions. A row that sees no key has weights 0,
    output 0 and gradient 0. Keys hidden from a query have no effect on it, whatever they hold.

    Where gradients are recorded, do not write to the output in place: implementations may need it on the way back, and
    PyTorch then says so.

    One exception, in exchange for speed: PyTorch's fused kernels, which "auto" chooses for dot products, let a NaN that
    is hidden from *some* queries reach those too where looking for it would wait for a device; and in a compiled graph
    for CPUs they give 0 for a query of NaN over fewer than 16 keys.

    Nested tensors with layout `torch.jagged`, (sequences, ..., any length, d), attend within each sequence, as
    `attend_ragged` does, and return such a tensor; weights are then a list, of one tensor a sequence.

    Leading dimensions broadcast; heads are the last of them, (B, H, n, d). Float16 and bfloat16 are accumulated in
    float32. Under autocast attention runs in the dtypes that it is given, which may then differ.

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
        segment_ids: (B, n) and (B, m) integers, or one tensor for both: a query sees keys of its own segment, as those
            of documents in one row. The keys of a segment stand side by side; others are skipped.
        bias: Numbers that broadcast to (..., n, m), added to the scores (a part of b): relative positions, masks of
            numbers. They are read as they lie in memory, and have a gradient. −∞ hides a pair.
        key_bias: (..., m), the other part of b: the log of a sample weight. −∞ hides a key.
        exclude: (..., n) integers: one key index that a row must not see, −1 for none (leave-one-out).
        sink: Floating-point numbers that broadcast to the leading dimensions, (H,) for heads: one more logit that no
            value goes with. It takes a share of the weight, so that those of the keys sum to less than 1.
        dropout: The probability in 0 ... 1 that a normalised weight is set to 0; the others grow by 1/(1 − dropout).
        return_weights: Whether to return the weights too, as they are before dropout.
        impl: "auto", or the name of one implementation, which then runs or raises.

    Returns:
        (..., n, d_v) in the dtype of `value`; with `return_weights` the pair (output, weights (..., n, m)).

    Raises:
        TypeError: An argument of the wrong kind or dtype.
        ValueError: Shapes, devices or values that do not fit, or an implementation that cannot run this call.

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
    """The return value of `attend`, in the dtype of `value`."""
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
    r"""The pooled result as a state, which `merge` joins with the state over other keys.

    $$ \mu_i = \sum_j w_{ij} v_j, \qquad \ell_i = \log \sum_{j \in V_i} e^{a(q_i, k_j) + b_j} $$

    The log-sum-exp is that of the true scores, before dropout. The arguments are those of `attend`.

    Returns:
        `State(mean (..., n, d_v), lse (..., n), tail (..., n))`, float32 or float64; a row with no key has mean 0 and
        lse −∞.

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
    r"""The weights alone.

    $$ w_{ij} = \frac{[j \in V_i]\, e^{a(q_i, k_j) + b_j}}{\sum_{l \in V_i} e^{a(q_i, k_l) + b_l}} $$

    The arguments are those of `attend`; the weight of a sink is not shown.

    Returns:
        (..., n, m) in the dtype of `query`; each row sums to 1, or to 0 where it sees no key.

    Raises what `attend` raises.

    Example:
        >>> dikkat.attention_weights(torch.zeros(1, 2), torch.zeros(4, 2), score=dikkat.scores.Dot(), valid_lens=2)
        tensor([[0.5000, 0.5000, 0.0000, 0.0000]])
    """
    check_names(restrictions, Restricting)
    validation.check_features("key", key)
    nothing = key.new_empty((*key.shape[:-1], 0))
    requested = validation.Requested(wants_weights=True, sink=sink)
    result = dispatch.run_call(query, key, nothing, score, requested, impl, restrictions)
    return result.shown_weights().to(query.dtype)


def prepare(key: Tensor, value: Tensor, *, score: Score, valid_lens: Tensor | int | None = None) -> Memory:
    """Project keys once, for the many queries to come.

    What this call saw is what counts: writing to `key`, `value` or `valid_lens` afterwards changes nothing. Nor does
    changing the score's parameters where gradients are off, or none of these require any: the memory keeps a copy.
    Where the parameters learn, a memory is refused once they have been changed, by an optimiser or by a write that
    PyTorch counts. A write through `.data`, or on a GPU by a fused optimiser, may not be seen: prepare it again.

    Args:
        key: (..., m, d_k), floating point.
        value: (..., m, d_v), of the same dtype.
        score: The scoring function.
        valid_lens: (B,) integers in 0 ... m, aligned with the first leading dimension (without one: a scalar).

    Returns:
        A `Memory`, for `attend_memory`.

    Raises:
        TypeError: An argument of the wrong kind or dtype.
        ValueError: Shapes, devices or values that do not fit.

    Example:
        >>> score = dikkat.scores.Additive(key_size=3, query_size=5, num_hiddens=7)
        >>> memory = dikkat.prepare(torch.zeros(2, 11, 3), torch.zeros(2, 11, 13), score=score)
        >>> dikkat.attend_memory(torch.zeros(2, 1, 5), memory).shape
        torch.Size([2, 1, 13])
    """
    memory = project_keys(key, value, score=score, valid_lens=valid_lens)
    changes = next(score.parameters(), next(score.buffers(), None)) is not None
    trained = is_traced() or learns(score, memory.key, memory.value)
    seen = frozen(score) if changes and not trained else None
    return replace(memory, packed=pack(score.pair, memory.key), seen=seen)


def project_keys(key: Tensor, value: Tensor, *, score: Score, valid_lens: Tensor | int | None = None) -> Memory:
    """`prepare` without what an implementation keeps of the keys."""
    validation.check_call(key, value, score)
    lead = validation.lead_of(("key", key), ("value", value))
    if isinstance(valid_lens, Tensor) and valid_lens.ndim != len(lead[:1]):
        raise ValueError(
            f"valid_lens: got shape {tuple(valid_lens.shape)}; expected {tuple(lead[:1])}, one length a batch "
            "element (for a length a query, give attend_memory a mask)"
        )
    restrictions = restrict(lead, 1, key.shape[-2], key.device, valid_lens=valid_lens)
    same = key is value
    key = validation.add_dims(key, len(lead))
    # Copies, so that writing to the caller's tensors later does not change the memory.
    key = validation.hide(key, restrictions.seen_keys()) if restrictions.may_hide() else key.clone()
    if same:  # as in a decoder: one copy serves both
        value = key
    else:
        value = validation.add_dims(value, len(lead))
        value = validation.hide(value, restrictions.seen_keys()) if restrictions.may_hide() else value.clone()
    projected = validation.add_dims(score.project_key(key), len(lead))
    if restrictions.may_hide():
        projected, value = (validation.unshared(t, restrictions.seen_keys()) for t in (projected, value))
    if lead:  # `select` takes rows of all of them, so none may be broadcast over the first leading dimension
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
    """`attend` over a memory: what a decoder calls at each step.

    `prepare` has projected the keys, all but those past the lengths. Where the score's projection is trained, keys that
    are hidden here alone must be finite: a NaN in one would reach the projection's gradient, as 0 · NaN.

    `memory` is made by `prepare`, with its lengths; the queries (..., n, d_q) have its dtype. The other arguments are
    those of `attend`.

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
        raise TypeError(f"memory: got {type(memory).__name__}; expected a Memory, as dikkat.prepare makes")
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
    """Which implementations could run a call, the one that `impl="auto"` picks first, and why the others could not.

    The arguments are those of `attend`; with `return_state` the call is `attention_state`.

    Returns:
        One `Implementation(name, runs, reasons)` each.

    Raises what `attend` raises.

    Example:
        >>> x = torch.zeros(1, 2, 8)
        >>> [i.name for i in dikkat.implementations(x, x, x, score=dikkat.scores.Dot()) if i.runs]
        ['numba-few', 'sdpa', 'reference', 'chunked', 'numba']
    """
    check_names(restrictions, Restricting)
    requested = validation.Requested(dropout, wants_weights=return_weights, wants_state=return_state, sink=sink)
    made = problem_of_jagged if are_jagged(query, key, value) else validation.problem_of_call
    first, problem, examined = choose(made(query, key, value, score, requested, **restrictions))
    listed = []
    for name in sorted(BACKENDS, key=lambda name: name != first):
        reasons = tuple((examined.get(name) or BACKENDS[name].examine(problem)).reasons)
        listed.append(Implementation(name, not reasons, reasons))
    return listed
