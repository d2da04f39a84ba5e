"""Kernel regression of numbers beside categories, by its formulas, one query at a time, in NumPy."""

import numpy as np


def factor(kind, levels, widest, places, place):
    """Aitchison and Aitken's or Li and Racine's kernel of places of levels, (m,)."""
    if kind == "ordered":
        return widest ** np.abs(places - place)
    return np.where(places == place, 1 - widest, widest / (levels - 1) if levels > 1 else 0)


def weights(x, kinds, levels, bandwidth, query):
    """(m,): the product of the columns' kernels; `kinds` are "number", "category" or "ordered"."""
    found = np.ones(len(x))
    for c, kind in enumerate(kinds):
        if kind == "number":
            found = found * np.exp(-(((x[:, c] - query[c]) / bandwidth[c]) ** 2) / 2)
        else:
            found = found * factor(kind, levels[c], bandwidth[c], x[:, c], query[c])
    return found


def estimate(x, y, kinds, levels, bandwidth, order, query, weight):
    """A weighted mean, or the height of a line in the numbers."""
    w = weight * weights(x, kinds, levels, bandwidth, query)
    if order == "constant":
        return w @ y / w.sum()
    numbers = [c for c, kind in enumerate(kinds) if kind == "number"]
    z = np.column_stack([np.ones(len(x)), x[:, numbers] - query[numbers]])
    root = np.sqrt(w)
    return np.linalg.lstsq(root[:, None] * z, root * y, rcond=None)[0][0]


def leave_one_out(x, y, kinds, levels, bandwidth, order):
    """Of rows that are all at places of their own."""
    errors = []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        errors.append(
            y[i] - estimate(x[others], y[others], kinds, levels, bandwidth, order, x[i], np.ones(others.sum()))
        )
    return np.mean(np.square(errors))
