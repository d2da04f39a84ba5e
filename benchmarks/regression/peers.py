"""Kernel regression elsewhere: statsmodels, scikit-fda, KeOps, and what PyTorch has."""

import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from benchmarks.kit.peers import SDPA, distance_pools

Array = np.ndarray
OURS, STATSMODELS, FDA, KEOPS, CDIST = "dikkat", "statsmodels", "scikit-fda", "KeOps", "torch.cdist, in chunks"
Order = Literal["constant", "linear"]
ORDERS: tuple[Order, ...] = ("constant", "linear")
# As many as statsmodels allows its search.
_EVALUATIONS = 1000
# Elements of a chunk of distances.
_CHUNK = 2**25


def ours(data: tuple[Array, Array], bandwidth: Any, **settings: Any) -> Any:
    """This library's estimator, fitted, and what is compiled at first compiled before."""
    from dikkat.regression import NadarayaWatson

    key, value = data
    warm = NadarayaWatson(bandwidth=bandwidth, **settings).fit(key[:50], value[:50])
    warm.predict(key[:50])
    return NadarayaWatson(bandwidth=bandwidth, **settings).fit(key, value)


def ours_anew(data: tuple[Array, Array], query: Array, bandwidth: Any, **settings: Any) -> Callable[[], Array]:
    """This library's predictions from the arrays, as the others': a fitted estimator keeps the order of its rows."""
    from dikkat.regression import NadarayaWatson

    ours(data, bandwidth, **settings)  # what is compiled at first
    return lambda: np.asarray(NadarayaWatson(bandwidth=bandwidth, **settings).fit(*data).predict(query))


class FirstPrediction:
    """Of an estimator that has just been fitted, so that the order of its rows is not yet known."""

    def __init__(self, data: tuple[Array, Array], query: Array, bandwidth: Any, **settings: Any) -> None:
        from dikkat.regression import NadarayaWatson

        self._data, self._query, self.fit_seconds = data, query, list[float]()
        self._model = NadarayaWatson(bandwidth=bandwidth, **settings)

    def fit(self) -> None:
        start = time.perf_counter()
        self._model.fit(*self._data)
        self.fit_seconds.append(time.perf_counter() - start)

    def predict(self) -> Array:
        return np.asarray(self._model.predict(self._query))


# statsmodels ---------------------------------------------------------------------------------------------------------


def statsmodels_regression(data: tuple[Array, Array], bandwidth: Array | Literal["cv_ls"], order: Order) -> Any:
    from statsmodels.nonparametric.kernel_regression import KernelReg

    key, value = data
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        kind = {"constant": "lc", "linear": "ll"}[order]
        return KernelReg(value, key, "c" * key.shape[1], reg_type=kind, bw=bandwidth, rng=0)


def statsmodels_worst(data: tuple[Array, Array], order: Order) -> float:
    """The seconds that a search may take, by what one evaluation does; its simplex rarely ends much before."""
    width = 1.06 * data[0].std(0) * len(data[1]) ** (-1 / (4 + data[0].shape[1]))
    model = statsmodels_regression(data, width, order)
    start = time.perf_counter()
    model.cv_loo(width, model.est[model.reg_type])
    return _EVALUATIONS * (time.perf_counter() - start)


def statsmodels_predictions(model: Any, query: Array) -> Array:
    with np.errstate(all="ignore"):  # where no weight is left it divides by 0
        return np.asarray(model.fit(query)[0])


def statsmodels_bandwidth(key: Array, value: Array, order: Order) -> Array:
    return np.asarray(statsmodels_regression((key, value), "cv_ls", order).bw)


# scikit-fda ----------------------------------------------------------------------------------------------------------


def fda_regression(data: tuple[Array, Array], bandwidth: float, order: Order) -> Any:
    """Its bandwidth is one number, whatever the dimension."""
    from skfda.misc import hat_matrix
    from skfda.ml.regression import KernelRegression

    made = {"constant": hat_matrix.NadarayaWatsonHatMatrix, "linear": hat_matrix.LocalLinearRegressionHatMatrix}
    return KernelRegression(kernel_estimator=made[order](bandwidth=bandwidth)).fit(*data)


def fda_bandwidth(key: Array, value: Array, candidates: Array) -> Array:
    """Its own search among the candidates, by leave-one-out; in one dimension, sorted."""
    import skfda
    from skfda.misc.hat_matrix import NadarayaWatsonHatMatrix
    from skfda.preprocessing.smoothing import KernelSmoother
    from skfda.preprocessing.smoothing.validation import LinearSmootherLeaveOneOutScorer, SmoothingParameterSearch

    name = "kernel_estimator__bandwidth"
    search = SmoothingParameterSearch(
        KernelSmoother(NadarayaWatsonHatMatrix()),
        list(candidates),
        param_name=name,
        scoring=LinearSmootherLeaveOneOutScorer(),
        error_score="raise",
    )
    search.fit(skfda.FDataGrid(value, key[:, 0]))
    return np.array([search.best_params_[name]])


# Gaussian pooling in PyTorch's dtypes: query, key and value to predictions -------------------------------------------

Pool = Callable[[Array, Array, Array, float], Array]


def sdpa(query: Array, key: Array, value: Array, bandwidth: float) -> Array:
    """`scaled_dot_product_attention` on features padded to 8: ‖q − k‖² as a dot product."""
    import torch

    with torch.no_grad():
        parts = [torch.from_numpy(array)[None] for array in (query / bandwidth, key / bandwidth, value[:, None])]
        return np.asarray(distance_pools()[SDPA](*parts)[0, :, 0].numpy())


def chunked_cdist(query: Array, key: Array, value: Array, bandwidth: float) -> Array:
    """Some queries at a time; `cdist` as it comes, which for so many points is the expansion into a dot product."""
    import torch

    q, k, v = (torch.from_numpy(array) for array in (query, key, value))
    step = max(1, _CHUNK // len(key))
    with torch.no_grad():
        parts = [
            torch.softmax(torch.cdist(q[start : start + step], k).square_().div_(-2 * bandwidth**2), -1) @ v
            for start in range(0, len(q), step)
        ]
        return np.asarray(torch.cat(parts).numpy())


def differences(query: Array, key: Array, value: Array, bandwidth: float) -> Array:
    """Plain PyTorch from the differences, as exact as its dtype allows: the yardstick of errors."""
    import torch

    q, k, v = (torch.from_numpy(array) for array in (query / bandwidth, key / bandwidth, value))
    step = max(1, _CHUNK // key.size)
    parts = [
        torch.softmax((q[start : start + step, None] - k).square().sum(-1) / -2, -1) @ v
        for start in range(0, len(q), step)
    ]
    return np.asarray(torch.cat(parts).numpy())


def keops() -> tuple[Pool, Pool]:
    """The quotient of two sums, as its tutorials have it, and its softmax, which does not underflow."""
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


def keops_compiled(data: tuple[Array, Array]) -> tuple[dict[str, Pool], dict[str, float]]:
    """Both of KeOps's ways, and the seconds that each took to compile, with nothing kept from an earlier run."""
    import pykeops

    key, value = data
    pykeops.set_build_folder(tempfile.mkdtemp(prefix="keops-"))
    ways = dict(zip((KEOPS, f"{KEOPS}, softmax"), keops(), strict=True))
    seconds = {}
    for name, way in ways.items():
        start = time.perf_counter()
        way(key[:7], key[:11], value[:11], 1.0)
        seconds[name] = time.perf_counter() - start
    return ways, seconds
