"""Which keys a query may see."""

import math
from collections.abc import Callable
from functools import reduce
from operator import and_
from typing import Any

from dikkat.frameworks.contract.operations import Tensor


def visible(
    arange: Callable[[Any], Tensor],
    lead: int,
    queries: Any,
    keys: Any,
    *,
    valid_lens: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    key_bias: Tensor | None = None,
    exclude: Tensor | None = None,
) -> Tensor | None:
    """The pairs that take part: the intersection of all restrictions.

    Args:
        arange: The framework's: n -> the integers 0 ... n − 1, of the type of the lengths.
        lead: How many leading dimensions the call has.
        queries: n, a number or a tensor.
        keys: m, likewise.
        valid_lens: (B,) or (B, n) integers (no leading dimension: () or (n,)).
        mask: Booleans that broadcast to (..., n, m).
        causal: Query i sees keys j <= i + m − n.
        key_bias: (..., m); −∞ hides a key.
        exclude: (..., n) integers, −1 for none.

    Returns:
        Booleans that broadcast to (..., n, m), of two dimensions at least; the rows' axis has length 1 where all
        queries see the same keys. None where nothing is restricted.
    """
    key = arange(keys)
    parts = []
    if valid_lens is not None:
        lens = valid_lens[..., None] if len(valid_lens.shape) == min(lead, 1) else valid_lens
        for _ in range(lead - 1):  # for the heads
            lens = lens[:, None]
        parts.append(key < lens[..., None])
    if causal:
        parts.append(key <= arange(queries)[:, None] + (keys - queries))
    if mask is not None:
        while len(mask.shape) < 2:  # whoever asks which keys are seen, or by whom, counts on both axes
            mask = mask[None]
        parts.append(mask)
    if key_bias is not None:
        parts.append((key_bias != -math.inf)[..., None, :])
    if exclude is not None:
        parts.append(key != exclude[..., None])
    return reduce(and_, parts) if parts else None
