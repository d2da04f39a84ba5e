"""The estimator: scikit-learn's manners on top of `Smoother`."""

from __future__ import annotations

import math
import os
import warnings
from numbers import Integral, Real
from statistics import NormalDist
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from dikkat.regression import files
from dikkat.regression.bandwidth import Rule, leave_one_out, rule_of_thumb
from dikkat.regression.joined import Array, Joined, join
from dikkat.regression.moments import Profile
from dikkat.regression.smoother import Smoother

Order = Literal["constant", "linear"]
OutOfReach = Literal["nan", "nearest"]


class NadarayaWatson(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""Kernel regression: attention pooling over the training rows, with a bandwidth that is found from them."""

    def __init__(
        self,
        kernel: Profile = "gaussian",
        *,
        bandwidth: float | ArrayLike | Literal["silverman", "scott", "loo"] = "loo",
        order: Order = "constant",
        tolerance: float = 0.0,
        out_of_reach: OutOfReach = "nan",
        device: str = "cpu",
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.order = order
        self.tolerance = tolerance
        self.out_of_reach = out_of_reach
        self.device = device

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Keep the training rows and find the bandwidth."""
        self._check_settings()
        self._keep(*self._validated(X, y, sample_weight, reset=True))
        return self

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Add training rows."""
        if not hasattr(self, "X_train_"):
            return self.fit(X, y, sample_weight)
        self._check_settings()
        x, values, weight = self._validated(X, y, sample_weight, reset=False)
        if values.shape[1:] != self.y_train_.shape[1:]:
            raise ValueError(
                f"y: came with shape {values.shape}; allowed: (n{', ' * (values.ndim == 1)}"
                f"{', '.join(map(str, self.y_train_.shape[1:]))}), as it was before"
            )
        old = (self.X_train_, self.y_train_, self.sample_weight_)
        self._keep(*(np.concatenate(pair) for pair in zip(old, (x, values, weight), strict=True)))
        return self

    def predict(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The local estimate."""
        query = self._query(X)
        if return_std:
            mean, deviation, _, reached = self._smoother.spread(query)
        else:
            mean, reached = self._smoother.estimate(query)
        lost = ~reached
        if lost.any():
            shares = self._shares(query, lost)
            mean[lost] = self._nearest_mean(shares)
            if return_std:
                deviation[lost] = self._nearest_deviation(shares)
        return (self._output(mean), self._output(deviation)) if return_std else self._output(mean)

    def confidence_band(self, X: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        """Where the expected value is, with some confidence."""
        if not (isinstance(level, Real) and 0 < level < 1):
            raise ValueError(f"level: came {level!r}; allowed: a number between 0 and 1, such as 0.95")
        query = self._query(X)
        mean, _, error, reached = self._smoother.spread(query)
        lost = ~reached
        if lost.any():
            shares = self._shares(query, lost)
            mean[lost] = self._nearest_mean(shares)
            error[lost] = math.nan if shares is None else math.inf
        half = NormalDist().inv_cdf((1 + level) / 2) * error
        return self._output(mean - half), self._output(mean + half)

    def attention_weights(self, X: ArrayLike, top_k: int | None = None) -> Array | csr_array:
        """What each training row weighs in the answers."""
        if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, Integral) or top_k < 1):
            raise ValueError(f"top_k: came {top_k!r}; allowed: a whole number of at least 1, or None for all")
        query = self._query(X)
        kept = np.flatnonzero(self._joined.place >= 0)
        rows = self.X_train_[kept], self.sample_weight_[kept]
        pieces = []
        for part, weights in self._smoother.weights(query, *rows):
            lost = weights.sum(1) == 0
            if lost.any() and self._answers_lost():
                shares = self._smoother.nearest(query[part][lost])
                place = self._joined.place[kept]
                weights[lost] = shares.toarray()[:, place] * (rows[1] / self._joined.weight[place])
            pieces.append(self._all_rows(weights, kept) if top_k is None else self._largest(weights, kept, int(top_k)))
        if top_k is None:
            return np.concatenate(pieces)
        from scipy.sparse import vstack

        return csr_array(vstack(pieces, format="csr"))

    def effective_neighbors(self, X: ArrayLike) -> Array:
        """How many training rows have a say."""
        query = self._query(X)
        count = self._smoother.neighbors(query)
        lost = count == 0
        if lost.any() and self._answers_lost():
            count[lost] = (self._smoother.nearest(query[lost]) > 0) @ self._joined.weight
        return count.astype(self.X_train_.dtype)

    def effective_degrees_of_freedom(self) -> float:
        """The trace of the smoother matrix."""
        check_is_fitted(self)
        return self._smoother.trace()

    def log_density(self, X: ArrayLike) -> Array:
        """The logarithm of the kernel density of the training rows."""
        query = self._query(X)
        if self.kernel == "average":
            raise ValueError("kernel: came 'average', which has no density; allowed: a kernel with a bandwidth")
        size = query.shape[1]
        ball = size / 2 * math.log(math.pi) - math.lgamma(size / 2 + 1)
        constant = {
            "gaussian": -size / 2 * math.log(2 * math.pi),
            "boxcar": -ball,
            "epanechnikov": math.log((size + 2) / 2) - ball,
            "triangular": math.log(size + 1) - ball,
        }[self.kernel]
        mass = self._smoother.log_mass(query) - math.log(self._joined.weight.sum())
        return (mass + constant - np.log(self.bandwidth_).sum()).astype(self.X_train_.dtype)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted estimator in one `.safetensors` file, whole or not at all.

        The training rows, their weights and the bandwidth are tensors, the settings JSON in the metadata: no code.

        Args:
            path: The file; its folder must exist, and a file there is replaced.

        Raises:
            NotFittedError: It is not fitted.
            OSError: The system could not write; a file there is as it was.

        Example:
            >>> import tempfile
            >>> path = f"{tempfile.mkdtemp()}/model.safetensors"
            >>> NadarayaWatson(bandwidth=0.5).fit([[0.0], [1.0]], [2.0, 3.0]).save(path)
            >>> NadarayaWatson.load(path).predict([[0.5]])
            array([2.5])
        """
        files.save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str], *, device: str = "cpu") -> NadarayaWatson:
        """Load an estimator that `save` wrote, after checking everything in the file.

        Args:
            path: The file.
            device: Where it is to compute: that on which it was fitted may not be here.

        Returns:
            An estimator that answers as the one that was saved, and goes on with `partial_fit`.

        Raises:
            InputError: A `ValueError`: the file is damaged, not of this kind, or of another version; what it holds does
                not fit together; there is no such device.
            OSError: The system could not read.
        """
        return files.load(path, device=device)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        tags.regressor_tags.poor_score = self.kernel == "average" and self.order == "constant"  # it is the mean
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        for name in ("_joined", "_smoother"):
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "X_train_"):
            self._prepare()

    def _keep(self, x: Array, y: Array, weight: Array) -> None:
        """Take these rows as the training rows, and find the bandwidth."""
        self.X_train_, self.y_train_, self.sample_weight_ = x, y, weight
        self.n_outputs_ = 1 if y.ndim == 1 else y.shape[1]
        joined = join(x, y.reshape(len(y), -1), weight)
        self.bandwidth_, self.history_ = self._found_bandwidth(joined)
        self._prepare(joined)

    def _prepare(self, joined: Joined | None = None) -> None:
        """Build what is derived from the training rows and the bandwidth, and is kept in no file."""
        if joined is None:
            joined = join(self.X_train_, self.y_train_.reshape(len(self.y_train_), -1), self.sample_weight_)
        self._joined = joined
        self._smoother = Smoother(
            joined, self.kernel, self._degree(), self.bandwidth_, float(self.tolerance), torch.device(self.device)
        )

    def _degree(self) -> int:
        return 1 if self.order == "linear" else 0

    def _found_bandwidth(self, joined: Joined) -> tuple[Array, list[dict[str, Any]]]:
        size = joined.x.shape[1]
        if self.kernel == "average":
            return np.full(size, np.inf), []
        if isinstance(self.bandwidth, str):
            if self.bandwidth != "loo":
                return rule_of_thumb(joined, self.bandwidth), []
            found, steps = leave_one_out(joined, self.kernel, self._degree(), torch.device(self.device))
            return found, [{"bandwidth": sigma.tolist(), "error": error} for sigma, error in steps]
        given = np.asarray(self.bandwidth, dtype=np.float64)
        if given.ndim and given.shape != (size,):
            raise ValueError(
                f"bandwidth: came with shape {given.shape}; allowed: a number, or ({size},), one for each feature"
            )
        if not (given.astype(joined.x.dtype) > 0).all():
            raise ValueError(f"bandwidth: came {self.bandwidth!r}, which is 0 in {joined.x.dtype}; allowed: more")
        return np.full(size, given), []

    def _validated(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, reset: bool
    ) -> tuple[Array, Array, Array]:
        x, values = validate_data(
            self, X, y, dtype=[np.float64, np.float32], multi_output=True, y_numeric=True, reset=reset
        )
        return x, values.astype(x.dtype), _weights(sample_weight, x)

    def _query(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        _one_of("out_of_reach", self.out_of_reach, get_args(OutOfReach))
        query: Array = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return query.astype(self.X_train_.dtype, copy=False)

    def _output(self, found: Array) -> Array:
        shaped = found[:, 0] if self.y_train_.ndim == 1 else found
        return shaped.astype(self.X_train_.dtype)

    def _answers_lost(self) -> bool:
        """Whether a query with no weight gets the nearest row's answer: two kernels have a weight everywhere."""
        return self.kernel in ("gaussian", "average") or self.out_of_reach == "nearest"

    def _shares(self, query: Array, lost: NDArray[np.bool_]) -> csr_array | None:
        """Who answers the queries that have no weight; None, after a warning, if nobody is to."""
        if self._answers_lost():
            return self._smoother.nearest(query[lost])
        warnings.warn(
            f"{lost.sum()} of {len(lost)} rows of X have no training row in reach of the {self.kernel} kernel and get "
            "NaN; choose a wider bandwidth, the Gaussian kernel or out_of_reach='nearest'",
            UserWarning,
            stacklevel=3,
        )
        return None

    def _nearest_mean(self, shares: csr_array | None) -> Array | float:
        return math.nan if shares is None else shares @ self._joined.y + self._joined.centre

    def _nearest_deviation(self, shares: csr_array | None) -> Array | float:
        if shares is None:
            return math.nan
        square = shares @ (self._joined.y**2 + self._joined.within)
        return np.sqrt(np.maximum(square - (shares @ self._joined.y) ** 2, 0))

    def _all_rows(self, weights: Array, kept: NDArray[np.intp]) -> Array:
        full = np.zeros((len(weights), len(self.X_train_)), dtype=self.X_train_.dtype)
        full[:, kept] = weights
        return full

    def _largest(self, weights: Array, kept: NDArray[np.intp], count: int) -> csr_array:
        count = min(count, len(kept))
        columns = np.sort(np.argpartition(-weights, count - 1, axis=1)[:, :count], axis=1)
        largest = np.take_along_axis(weights, columns, 1).astype(self.X_train_.dtype)
        ends = np.arange(len(weights) + 1) * count
        found = csr_array((largest.ravel(), kept[columns].ravel(), ends), shape=(len(weights), len(self.X_train_)))
        found.eliminate_zeros()
        return found

    def _check_settings(self) -> None:
        _one_of("kernel", self.kernel, get_args(Profile))
        _one_of("order", self.order, get_args(Order))
        _one_of("out_of_reach", self.out_of_reach, get_args(OutOfReach))
        if isinstance(self.bandwidth, str):
            _one_of("bandwidth", self.bandwidth, (*get_args(Rule), "loo"))
        else:
            _check_positive(self.bandwidth)
        if not isinstance(self.tolerance, Real) or not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance: came {self.tolerance!r}; allowed: a number of at least 0 and below 1")
        _check_device(self.device)


def _weights(given: ArrayLike | None, x: Array) -> Array:
    if given is None:
        return np.ones(len(x), dtype=x.dtype)
    if isinstance(given, Real):
        given = np.full(len(x), given)
    weight: Array = check_array(given, ensure_2d=False, dtype=x.dtype, input_name="sample_weight")
    if weight.shape != (len(x),):
        raise ValueError(f"sample_weight: came with shape {weight.shape}; allowed: ({len(x)},), one for each row of X")
    if (weight < 0).any():
        raise ValueError(f"sample_weight: came with {weight.min()}; allowed: numbers of at least 0")
    if not weight.any():
        raise ValueError("sample_weight: came all zero; allowed: at least one row whose weight is positive")
    return weight


def _one_of(name: str, given: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(given, str) or given not in allowed:
        raise ValueError(f"{name}: came {given!r}; allowed: {', '.join(map(repr, allowed))}")


def _check_positive(bandwidth: object) -> None:
    try:
        sigma = np.asarray(bandwidth, dtype=np.float64)
    except (TypeError, ValueError):
        sigma = np.array(np.nan)
    if isinstance(bandwidth, bool) or not sigma.size or not (np.isfinite(sigma) & (sigma > 0)).all():
        raise ValueError(
            f"bandwidth: came {bandwidth!r}; allowed: a positive number in the units of X, one for each feature, "
            f"{', '.join(map(repr, get_args(Rule)))} or 'loo'"
        )


def _check_device(device: object) -> None:
    try:
        kind = torch.device(device).type  # type: ignore[arg-type]
    except (RuntimeError, TypeError):
        kind = None
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device: came {device!r}; allowed: 'cpu', 'cuda' or a numbered one, such as 'cuda:1'")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: came {device!r}, and PyTorch sees no such device here; allowed: 'cpu'")
