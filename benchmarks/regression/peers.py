"""Kernel regression in statsmodels, KeOps and plain PyTorch."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.kit.peers import SDPA, distance_pools

Array = np.ndarray
OURS, STATSMODELS, KEOPS, CDIST = "dikkat", "statsmodels", "KeOps", "torch.cdist, in chunks"
# Elements of a chunk of distances.
_CHUNK = 2**25


def refit_ours(data: tuple[Array, Array], query: Array, bandwidth: Any, **settings: Any) -> Callable[[], Array]:
    """Return a function that fits and predicts from the arrays each time, like the other peers."""
    from dikkat.regression import NadarayaWatson

    warm_up = tuple(array[:50] for array in data)
    NadarayaWatson(bandwidth=bandwidth, **settings).fit(*warm_up).predict(warm_up[0])  # compile
    return lambda: np.asarray(NadarayaWatson(bandwidth=bandwidth, **settings).fit(*data).predict(query))


def statsmodels_bandwidth(key: Array, value: Array) -> Array:
    """Return the leave-one-out bandwidth of a local constant regression."""
    from statsmodels.nonparametric.kernel_regression import KernelReg

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return np.asarray(KernelReg(value, key, "c" * key.shape[1], reg_type="lc", bw="cv_ls", rng=0).bw)


# Gaussian pooling in PyTorch's dtypes: query, key and value to predictions -------------------------------------------

Pool = Callable[[Array, Array, Array, float], Array]


def sdpa(query: Array, key: Array, value: Array, bandwidth: float) -> Array:
    """`scaled_dot_product_attention` on features padded to 8: ‖q − k‖² as a dot product."""
    import torch

    with torch.no_grad():
        tensors = [torch.from_numpy(array)[None] for array in (query / bandwidth, key / bandwidth, value[:, None])]
        return np.asarray(distance_pools()[SDPA](*tensors)[0, :, 0].numpy())


def chunked_cdist(query: Array, key: Array, value: Array, bandwidth: float) -> Array:
    """`cdist` in chunks of queries; with so many points it expands into a dot product."""
    import torch

    q, k, v = (torch.from_numpy(array) for array in (query, key, value))
    step = max(1, _CHUNK // len(key))
    with torch.no_grad():
        chunks = [
            torch.softmax(torch.cdist(q[start : start + step], k).square_().div_(-2 * bandwidth**2), -1) @ v
            for start in range(0, len(q), step)
        ]
        return np.asarray(torch.cat(chunks).numpy())


def differences(query: Array, key: Array, value: Array, bandwidth: float) -> Array:
    """Plain PyTorch from the differences, as exact as its dtype allows: the reference for errors."""
    import torch

    q, k, v = (torch.from_numpy(array) for array in (query / bandwidth, key / bandwidth, value))
    step = max(1, _CHUNK // key.size)
    chunks = [
        torch.softmax((q[start : start + step, None] - k).square().sum(-1) / -2, -1) @ v
        for start in range(0, len(q), step)
    ]
    return np.asarray(torch.cat(chunks).numpy())


def keops() -> tuple[Pool, Pool]:
    """Return KeOps by the quotient of two sums, as in its tutorials, and by its softmax, which does not underflow."""
    import pykeops
    import torch
    from pykeops.torch import LazyTensor

    pykeops.set_verbose(False)

    def lazy(query: Array, key: Array, bandwidth: float) -> Any:
        q, k = (torch.from_numpy(array / bandwidth) for array in (query, key))
        return ((LazyTensor(q[:, None]) - LazyTensor(k[None])) ** 2).sum(-1) / -2

    def quotient(query: Array, key: Array, value: Array, bandwidth: float) -> Array:
        both = torch.from_numpy(np.column_stack([value, np.ones_like(value)]))
        sums = lazy(query, key, bandwidth).exp() @ both
        return np.asarray((sums[:, 0] / sums[:, 1]).numpy())

    def softmax(query: Array, key: Array, value: Array, bandwidth: float) -> Array:
        values = LazyTensor(torch.from_numpy(value)[None, :, None])
        return np.asarray(lazy(query, key, bandwidth).sumsoftmaxweight(values, dim=1)[:, 0].numpy())

    return quotient, softmax


def keops_compiled(data: tuple[Array, Array]) -> dict[str, Pool]:
    """Return both KeOps functions, compiled."""
    pools = dict(zip((KEOPS, f"{KEOPS}, softmax"), keops(), strict=True))
    key, value = data
    for pool in pools.values():
        pool(key[:7], key[:11], value[:11], 1.0)
    return pools
