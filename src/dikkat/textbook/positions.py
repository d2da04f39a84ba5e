"""The sines and cosines of positions, for every framework's `PositionalEncoding`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["positions"]


def positions(num_hiddens: int, max_len: int) -> NDArray[np.float32]:
    r"""Sines and cosines of positions.

    $$ P_{i, 2j} = \sin\left(i / 10000^{2j/d}\right), \qquad P_{i, 2j+1} = \cos\left(i / 10000^{2j/d}\right) $$

    Args:
        num_hiddens: d.
        max_len: how many positions.

    Returns:
        P, (1, max_len, d).

    Source:
        Vaswani et al. 2017, section 3.5.

    Example:
        >>> positions(3, 2).round(2).tolist()[0][0]
        [0.0, 1.0, 0.0]
    """
    column: NDArray[Any] = np.arange(num_hiddens)
    angle = np.arange(max_len)[:, None] / 10000.0 ** ((column - column % 2) / num_hiddens)
    return np.where(column % 2, np.cos(angle), np.sin(angle))[None].astype(np.float32)
