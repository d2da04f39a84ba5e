"""The arguments that restrict the keys a query may see.

One function for each argument converts it to fields of `Restrictions`, and `restrict` combines the fields. To add an
argument, add a function to `_ARGUMENTS` and a line to `Hiding`.
"""

import math
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from dikkat._core.restrictions import FLOATS, OWN_DIMENSIONS, Restrictions, gather
from dikkat._engine.addresses import check_dense, check_storage, searchsorted
from dikkat._engine.pytorch_state import PLAIN_TYPES, can_read_values, extremes, is_eager

MaskFunction = Callable[[Tensor, Tensor], Tensor]


class Hiding(TypedDict, total=False):
    """The restrictions of a call over keys whose lengths are known."""

    mask: Tensor | MaskFunction | None
    causal: bool
    window: tuple[int | None, int | None] | None
    segment_ids: Tensor | tuple[Tensor, Tensor] | None
    bias: Tensor | None
    key_bias: Tensor | None
    exclude: Tensor | None


class Restricting(Hiding, total=False):
    """The keyword arguments of `attend` that restrict the keys a query may see; all of them apply together."""

    valid_lens: Tensor | int | None


# The arguments that all heads of a layer may share; they then have one dimension fewer than queries with heads.
BY_ELEMENT = {name: OWN_DIMENSIONS[name] for name in Restricting.__annotations__ if name in OWN_DIMENSIONS}


class Extent(NamedTuple):
    """The sizes of a call: its result's leading dimensions, n queries and m keys; and the query's device."""

    lead: torch.Size
    queries: int
    keys: int
    device: torch.device


Fields = dict[str, Any]


def check_names(arguments: Mapping[str, object], allowed: type) -> None:
    unknown_names = arguments.keys() - allowed.__annotations__.keys()
    if unknown_names:
        hint = "key_padding_mask is valid_lens, or a mask where True takes part; need_weights is return_weights"
        raise TypeError(
            f"{min(unknown_names)}: got an unknown argument; expected {', '.join(allowed.__annotations__)}"
            + f" (PyTorch's {hint})" * ("mask" in allowed.__annotations__)
        )


def restrict(
    lead: torch.Size, queries: int, keys: int, device: torch.device, **options: Unpack[Restricting]
) -> Restrictions:
    extent = Extent(lead, queries, keys, device)
    fields: Fields = {}
    arguments: Mapping[str, Any] = options
    for name, convert in _ARGUMENTS.items():  # lengths first: a later argument discards their extremes
        argument = arguments.get(name, _ABSENT.get(name))
        if argument is _ABSENT.get(name):
            continue
        for field, value in convert(argument, extent).items():
            if field in fields:
                value = _JOINED[field](fields[field], value)
                fields.pop("extremes", None)
            fields[field] = value
    restrictions = Restrictions(queries, keys, device)
    return restrictions.unchecked_copy(**fields) if fields else restrictions


def _valid_lens(valid_lens: Any, extent: Extent) -> Fields:
    """Return the lengths, aligned with the leading dimensions, and their extremes if they can be read."""
    lead, queries, keys, device = extent
    if isinstance(valid_lens, Integral) and not isinstance(valid_lens, bool):
        valid_lens = torch.tensor(int(valid_lens), device=device)
    if not isinstance(valid_lens, Tensor):
        raise TypeError(
            f"valid_lens: got {type(valid_lens).__name__}; expected a torch.Tensor of integers (convert a list with "
            "torch.tensor)"
        )
    _check_kind("valid_lens", valid_lens, device, integer=True)
    shape = tuple(valid_lens.shape)
    allowed = [tuple(lead[:1]), (*lead[:1], queries)]
    if shape not in allowed:
        raise ValueError(
            f"valid_lens: got shape {shape}; expected {allowed[0]} (one length per batch element) or {allowed[1]} "
            "(one per query), aligned with the first leading dimension and shared by the heads"
        )
    valid_lens = valid_lens.to(torch.int64)
    extremes = _check_range("valid_lens", valid_lens, 0, keys, "a length among the keys")
    return {"lens": align(valid_lens, lead)} | ({} if extremes is None else {"extremes": extremes})


def check_causal(causal: object) -> bool:
    if not isinstance(causal, bool | np.bool_):
        raise TypeError(f"causal: got {type(causal).__name__}; expected True or False")
    return bool(causal)


def _window(window: Any, extent: Extent) -> Fields:
    """Return each query's first key and one past its last, (..., n)."""
    lead, queries, keys, device = extent
    position = torch.arange(queries, device=device) + (keys - queries)
    return window_edges(window, position.reshape((1,) * len(lead) + (queries,)), 0, keys)


def window_edges(window: Any, position: Tensor, first: Any, past: Any) -> Fields:
    """Return the `starts` and `lens` of a window for queries at `position`, clamped to the keys [first, past)."""
    left, right = _check_window(window)
    starts = {} if left is None else {"starts": (position - left).clamp(first, past)}
    return starts if right is None else starts | {"lens": (position + (right + 1)).clamp(first, past)}


# The bound for a window's sides. It exceeds every number of keys, and a position plus it fits in an int64.
_FARTHEST = 2**62


def _check_window(window: tuple[int | None, int | None] | None) -> tuple[int | None, int | None]:
    """Validate a window; return its numbers of keys on the left and on the right, None for no bound."""
    if window is None:
        return None, None
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise TypeError(f"window: got {window!r}; expected (left, right), whole numbers of keys, or None for no bound")
    for side in window:
        if side is not None and (not isinstance(side, Integral) or isinstance(side, bool)):
            raise TypeError(f"window: got {side!r}; expected a whole number of keys, or None for no bound")
        if side is not None and side < 0:
            raise ValueError(f"window: got {side}; expected 0 or more keys, or None for no bound")
    left, right = (None if side is None else min(int(side), _FARTHEST) for side in window)
    return left, right


def _segment_ids(segment_ids: Any, extent: Extent) -> Fields:
    """Return the first key of each query's segment and one past its last, (..., n)."""
    lead, queries, keys, device = extent
    both_ids = (segment_ids, segment_ids) if isinstance(segment_ids, Tensor) else segment_ids
    if not isinstance(both_ids, tuple | list) or len(both_ids) != 2:
        raise TypeError(f"segment_ids: got {type(both_ids).__name__}; expected a tensor, or a pair (queries, keys)")
    for ids, count in zip(both_ids, (queries, keys), strict=True):
        _check_kind("segment_ids", ids, device, integer=True)
        if tuple(ids.shape) != (*lead[:1], count):
            raise ValueError(
                f"segment_ids: got shape {tuple(ids.shape)}; expected {(*lead[:1], count)}, one id for each of {count} "
                "queries or keys, aligned with the first leading dimension and shared by the heads"
            )
    query_ids, key_ids = (ids.to(torch.int64) for ids in both_ids)
    ordered, order = key_ids.sort(dim=-1, stable=True)
    if can_read_values(key_ids) and bool((_changes(key_ids) != _changes(ordered)).any()):
        raise ValueError("segment_ids: got a segment with separate keys; expected neighbouring keys. Or use a mask")
    first, past = (searchsorted(ordered, query_ids.contiguous(), right=right) for right in (False, True))
    start = gather(order, first)
    return {"starts": align(start, lead), "lens": align(start + (past - first), lead)}  # no key without a segment


def _changes(ids: Tensor) -> Tensor:
    return (ids[..., 1:] != ids[..., :-1]).sum(-1)


def align(valid_lens: Tensor, lead: torch.Size) -> Tensor:
    """Return lengths (B,) or (B, n) as (B, 1, ..., n or 1), with ones for the other leading dimensions."""
    if valid_lens.ndim == len(lead[:1]):
        valid_lens = valid_lens[..., None]
    head_dims = (1,) * (len(lead) - 1)
    return valid_lens.reshape(*valid_lens.shape[:-1], *head_dims, valid_lens.shape[-1]) if head_dims else valid_lens


def _mask(mask: Any, extent: Extent) -> Fields:
    lead, queries, keys, device = extent
    if not isinstance(mask, Tensor) and callable(mask):
        mask = mask(torch.arange(queries, device=device)[:, None], torch.arange(keys, device=device))
    try:
        return {"mask": _fit("mask", mask, (*lead, queries, keys), device, boolean=True)}
    except ValueError as error:
        if mask.device != device or not lead or tuple(mask.shape) != (lead[0], keys):
            raise
        none_indices = "None, " * len(lead)
        raise ValueError(
            f"{error}; to hide keys from every query of a batch element, pass mask[:, {none_indices}:]"
        ) from None


def _key_bias(key_bias: Any, extent: Extent) -> Fields:
    bias = _check_bias("key_bias", key_bias, (*extent.lead, extent.keys), extent.device)
    return {"key_bias": bias.expand(*bias.shape[:-1], extent.keys)}


def _bias(bias: Any, extent: Extent) -> Fields:
    fields: Fields = {"bias": _check_bias("bias", bias, (*extent.lead, extent.queries, extent.keys), extent.device)}
    if bias.numel() and can_read_values(bias) and bool(bias.detach().amin() > -math.inf):
        fields["bias_hides"] = False
    return fields


def _check_bias(name: str, bias: Tensor, shape: tuple[int, ...], device: torch.device) -> Tensor:
    bias = _fit(name, bias, shape, device)
    if bias.dtype not in FLOATS:
        raise TypeError(f"{name}: got dtype {bias.dtype}; expected a floating-point type of 16 bits or more")
    return bias


def _exclude(exclude: Any, extent: Extent) -> Fields:
    _check_kind("exclude", exclude, extent.device, integer=True)
    exclude = exclude.to(torch.int64)
    _check_range("exclude", exclude, -1, extent.keys - 1, "the index of a key, or -1 for none")
    return {"exclude": _fit("exclude", exclude, (*extent.lead, extent.queries), extent.device)}


_ARGUMENTS: dict[str, Callable[[Any, Extent], Fields]] = {
    "valid_lens": _valid_lens, "mask": _mask, "causal": lambda causal, _: {"causal": check_causal(causal)},
    "window": _window, "segment_ids": _segment_ids, "bias": _bias, "key_bias": _key_bias, "exclude": _exclude,
}  # fmt: skip
# The value of an argument that restricts nothing, if that is not None.
_ABSENT = {"causal": False}
# How to combine a field of two arguments: a query sees only keys that both allow.
_JOINED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "starts": torch.maximum, "lens": torch.minimum, "mask": torch.logical_and,
}  # fmt: skip


def _fit(name: str, tensor: Tensor, shape: tuple[int, ...], device: torch.device, *, boolean: bool = False) -> Tensor:
    """Check a tensor that broadcasts to `shape`; return it with as many dimensions."""
    _check_kind(name, tensor, device, boolean=boolean)
    if not broadcasts_to(tensor.shape, shape):
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}; expected one that broadcasts to {tuple(shape)}")
    return tensor.reshape((1,) * (len(shape) - tensor.ndim) + tuple(tensor.shape))


def broadcasts_to(shape: torch.Size, target: tuple[int, ...]) -> bool:
    extra = len(target) - len(shape)
    return extra >= 0 and all(size in (1, wide) for size, wide in zip(shape, target[extra:], strict=True))


def _check_kind(
    name: str, tensor: Tensor, device: torch.device, *, integer: bool = False, boolean: bool = False
) -> None:
    check_dense(name, tensor)
    if type(tensor) in PLAIN_TYPES and is_eager():
        check_storage(name, tensor)
    is_integer = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if integer and not is_integer:
        raise TypeError(f"{name}: got dtype {tensor.dtype}; expected an integer type (for example torch.int64)")
    if boolean and tensor.dtype != torch.bool:
        raise TypeError(f"{name}: got dtype {tensor.dtype}; expected torch.bool, True if the query may see the key")
    if tensor.device != device:
        raise ValueError(f"{name}: got a tensor on {tensor.device}; expected the query's device, {device}")


def _check_range(name: str, tensor: Tensor, low: int, high: int, meaning: str) -> tuple[int, int] | None:
    """Check that all values are in [low, high]; return their extremes, None if they cannot be read."""
    if not tensor.numel() or not can_read_values(tensor):
        return None
    smallest, largest = extremes(tensor)
    if smallest < low or largest > high:
        value = smallest if smallest < low else largest
        raise ValueError(f"{name}: got {value}; expected {low} to {high}, {meaning}")
    return smallest, largest
