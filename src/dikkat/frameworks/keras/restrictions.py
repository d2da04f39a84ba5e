"""Which keys a query may see: the checks of a call, the pairs that take part, and the softmax over them."""

import math
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

import keras
from keras import ops

from dikkat.frameworks.keras.backend import Shape, kind, readable, shape_of

_KINDS = {
    "int": ("an integer type (for example int32)", keras.backend.is_int_dtype),
    "float": ("a floating-point type", keras.backend.is_float_dtype),
    "bool": ("bool, True where a pair takes part", lambda dtype: dtype == "bool"),
}


class Sizes(NamedTuple):
    """The sizes of a call, as far as they are known.

    Attributes:
        lead: The leading dimensions of query, key and value, broadcast.
        queries: n.
        keys: m.
    """

    lead: Shape
    queries: int | None
    keys: int | None


def sizes_of(query: Any, key: Any, value: Any) -> Sizes:
    """The sizes of a call whose tensors fit each other."""
    named = {"query": query, "key": key, "value": value}
    shapes = {name: shape_of(tensor) for name, tensor in named.items()}
    keys, values = shapes["key"][-2], shapes["value"][-2]
    if None not in (keys, values) and keys != values:
        raise ValueError(
            f"value: got {values} rows (shape {shapes['value']}); expected {keys}, one for each key (shape "
            f"{shapes['key']})"
        )
    for name, tensor in named.items():
        if kind(tensor) != kind(query):
            raise TypeError(f"{name}: got dtype {kind(tensor)}; expected {kind(query)}, that of query")
    return Sizes(leading(**shapes), shapes["query"][-2], keys)


def leading(**shapes: Shape) -> Shape:
    """The leading dimensions that shapes (..., length, features) broadcast to."""
    rank = max(len(shape) for shape in shapes.values()) - 2
    common: list[int | None] = []
    for sizes in zip(*((1,) * (rank + 2 - len(shape)) + shape[:-2] for shape in shapes.values()), strict=True):
        sure = {size for size in sizes if size not in (1, None)}
        if len(sure) > 1:
            got = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise ValueError(f"{', '.join(shapes)}: got shapes {got}; expected leading dimensions that broadcast")
        common.append(sure.pop() if sure else None if None in sizes else 1)
    return tuple(common)


def check(
    sizes: Sizes, *, valid_lens: Any = None, mask: Any = None, causal: bool = False, key_bias: Any = None,
    exclude: Any = None,
) -> None:  # fmt: skip
    """A check that the restrictions of `attend` fit the sizes of a call, as far as shapes and values are known."""
    lead, queries, keys = sizes
    if not isinstance(causal, bool):
        raise TypeError(f"causal: got {type(causal).__name__}; expected True or False")
    if valid_lens is not None:
        _check_kind("valid_lens", valid_lens, "int")
        shape, expected = shape_of(valid_lens), [lead[:1], (*lead[:1], queries)]
        if not any(len(shape) == len(each) and _fits(shape, each, ()) for each in expected):
            raise ValueError(
                f"valid_lens: got shape {shape}; expected {expected[0]} (one length a batch element) or {expected[1]} "
                "(one a query), aligned with the first leading dimension and shared by the heads"
            )
        _check_range("valid_lens", valid_lens, 0, keys, "a length among the keys")
    if mask is not None:
        check_mask("mask", mask, (*lead, queries, keys))
    if key_bias is not None:
        _check_kind("key_bias", key_bias, "float")
        _check_fit("key_bias", shape_of(key_bias), (*lead, keys))
    if exclude is not None:
        _check_kind("exclude", exclude, "int")
        _check_fit("exclude", shape_of(exclude), (*lead, queries))
        _check_range("exclude", exclude, -1, None if keys is None else keys - 1, "the index of a key, or -1 for none")


def check_mask(name: str, mask: Any, shape: Shape) -> None:
    """A check that a mask is of booleans that broadcast to a shape."""
    _check_kind(name, mask, "bool")
    _check_fit(name, shape_of(mask), shape)


def _check_kind(name: str, tensor: Any, required: str) -> None:
    expected, belongs = _KINDS[required]
    if not belongs(kind(tensor)):
        raise TypeError(f"{name}: got dtype {kind(tensor)}; expected {expected}")


def _check_fit(name: str, shape: Shape, whole: Shape) -> None:
    if len(shape) > len(whole) or not _fits(shape, whole[len(whole) - len(shape) :], (1,)):
        raise ValueError(f"{name}: got shape {shape}; expected one that broadcasts to {whole}")


def _fits(shape: Shape, other: Shape, also: tuple[int, ...]) -> bool:
    """True of sizes that may be equal, as far as they are known, or are one of `also`."""
    return all(have in (None, want, *also) or want is None for have, want in zip(shape, other, strict=True))


def _check_range(name: str, tensor: Any, low: int, high: int | None, meaning: str) -> None:
    """A check that whole numbers lie in a range, where they and the range are known."""
    if high is None or not readable(tensor):
        return
    values = ops.convert_to_numpy(tensor)
    outside = values[(values < low) | (values > high)]
    if outside.size:
        raise ValueError(f"{name}: got {outside.flat[0]}; expected {low} to {high}, {meaning}")


def visible(
    lead: int, queries: Any, keys: Any, *, valid_lens: Any = None, mask: Any = None, causal: bool = False,
    key_bias: Any = None, exclude: Any = None,
) -> Any:  # fmt: skip
    """The pairs that take part, the intersection of the restrictions of `attend`; None where all do.

    Booleans that broadcast to (..., n, m), with one row where all queries see the same keys. `lead` counts the leading
    dimensions; n and m are integer tensors where they are not known before the call.
    """
    key, parts = ops.arange(keys, dtype="int32"), []
    if valid_lens is not None:
        lens = ops.cast(valid_lens, "int32")
        lens = lens[..., None] if len(lens.shape) == min(lead, 1) else lens
        for _ in range(lead - 1):  # for the heads
            lens = lens[:, None]
        parts.append(key < lens[..., None])
    if causal:
        parts.append(key <= ops.arange(queries, dtype="int32")[:, None] + (keys - queries))
    if mask is not None:
        while len(mask.shape) < 2:  # whoever asks which keys are seen, or by whom, counts on both axes
            mask = mask[None]
        parts.append(mask)
    if key_bias is not None:
        parts.append((key_bias != -math.inf)[..., None, :])
    if exclude is not None:
        parts.append(key != ops.cast(exclude, "int32")[..., None])
    return reduce(and_, parts) if parts else None


def hide(query: Any, key: Any, value: Any, shown: Any) -> tuple[Any, Any, Any]:
    """The tensors with 0 for queries that see no key, and for keys and values that no query sees, by `visible`."""
    if shown is None:
        return query, key, value
    live = ops.expand_dims(ops.any(shown, axis=-1), -1)
    seen = ops.expand_dims(ops.any(shown, axis=-2), -1)
    return ops.where(live, query, 0.0), ops.where(seen, key, 0.0), ops.where(seen, value, 0.0)


def softmax(scores: Any, shown: Any = None) -> Any:
    """Weights over the visible keys, 0 in a row that sees none; `shown` is what `visible` returns."""
    if shown is not None:
        scores = ops.where(shown, scores, -math.inf)
    if 0 in shape_of(scores):  # of which there is no maximum
        return scores
    peak = ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))
    share = ops.exp(scores - ops.where(peak == -math.inf, 0.0, peak))
    total = ops.sum(share, axis=-1, keepdims=True)
    # `== 0` and not `> 0`: a row of NaN is not an empty row.
    weights = share / ops.where(total == 0, 1.0, total)
    # In a row of NaN, what is hidden weighs nothing.
    return weights if shown is None else ops.where(shown, weights, 0.0)
