"""The density: the log-sum-exp of the attention of a query to the rows."""

from __future__ import annotations

import warnings
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _num_samples, check_is_fitted

from dikkat.regression.base import KernelModel, check_at_hand
from dikkat.regression.joined import Array, Joined, Rows
from dikkat.regression.likelihood import FENCE, Density, outlying
from dikkat.regression.moments.launch import Profile
from dikkat.regression.validation import LIKELIHOOD, check_count, check_kernel


class KernelDensity(DensityMixin, KernelModel):  # type: ignore[misc]  # scikit-learn has no types
    r"""Kernel density estimation, with a bandwidth a feature that is learned.

    $$ f(x) = \frac{1}{\sum_j w_j} \sum_j w_j \frac{k_d}{\prod_c \sigma_c} K(\lVert (x - x_j)/\sigma \rVert) $$

    whose logarithm is the log-sum-exp of the attention; $k_d$ is such that K integrates to 1. Beside categories it is
    the density of the numbers times the probability of the categories, by Aitchison and Aitken's kernel. Weights of
    rows count as repeats.

    Args:
        kernel: "gaussian" or "epanechnikov", as of `KernelRegressor`.
        bandwidth: σ in the units of X: "auto", for each feature the one with the largest leave-one-out likelihood,
            with a penalty on degrees of freedom; rows are left out one by one, and those far beyond the quartiles have
            no say; "silverman" or "scott", rules of thumb; or a positive number, or (d,) numbers.
        categorical_features: Columns of categories, as of `KernelRegressor`; those whose type has an order are among
            them.

    Attributes:
        bandwidth_: (d,), σ of numbers and λ of categories.
        history_: The accepted steps of a search: {"bandwidth": (d,) list, "error": the criterion}.
        columns_: What each column is, where not all are numbers.
        n_features_in_: d.
        feature_names_in_: (d,), where X was a frame whose columns have names.
        X_train_: (n, d), of a category the index of each cell's level.
        sample_weight_: (n,).

    Source: Li and Racine 2007, sections 1.3.2 and 4.3; Silverman 1986; the criterion is in
    `dikkat.regression.likelihood`.

    Example:
        >>> x = np.random.default_rng(3).normal(size=(200, 1))
        >>> KernelDensity().fit(x).score_samples([[0.0], [3.0]]).round(1)
        array([-1. , -4.2])
    """

    ordered_features = None

    def __init__(
        self,
        kernel: Profile = "gaussian",
        *,
        bandwidth: float | ArrayLike | Literal["silverman", "scott", "auto"] = "auto",
        categorical_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.categorical_features = categorical_features

    def fit(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Keep the rows, and find the bandwidth.

        Where that fails or is interrupted, the estimator is as it was.

        Args:
            X: (n, d), finite numbers, or a frame.
            y: Nothing; for pipelines.
            sample_weight: (n,), at least 0 and not all 0; None for once each.

        Returns:
            The estimator itself.

        Warns:
            UserWarning: A bandwidth is found, and a column is constant or a row far beyond the quartiles.

        Raises:
            ValueError: A setting that is not allowed, or data that are not finite.
        """
        check_kernel(self.kernel, self.bandwidth, LIKELIHOOD)
        check_at_hand(X=X, sample_weight=sample_weight)
        return self._learn(X, np.zeros(_num_samples(X)), sample_weight)

    def _found(self, rows: Rows, joined: Joined) -> dict[str, Any]:
        attributes = self._by_likelihood(rows, joined, Density, share=0.25)[0]  # its criterion has few minima
        if not isinstance(self.bandwidth, str):
            return attributes
        if self.bandwidth == "auto" and (far := outlying(joined)).any():
            warnings.warn(
                f"X: {far.sum()} of {len(far)} rows have a number that is {FENCE:g} times the quartiles' distance or "
                "more beyond them; they have no say in the bandwidth. Correct them, or leave them out",
                stacklevel=5,
            )
        numbers = [j for j in range(rows.x.shape[1]) if not (rows.columns and rows.columns[j].coded)]
        there = rows.x[rows.weight > 0]
        if constant := [j for j in numbers if np.ptp(there[:, j]) == 0]:
            if len(there) > 1:
                warnings.warn(
                    f"X: column {constant[0]} is constant, where a density has no width; its bandwidth is a thousandth "
                    "of the value, or of 1 where that is less. Leave it out",
                    stacklevel=5,
                )
            attributes["bandwidth_"][constant] = 1e-3 * np.abs(there[0, constant]).clip(1)
        return attributes

    def score_samples(self, X: ArrayLike) -> Array:
        """The logarithm of the density at each query.

        Args:
            X: (n, d).

        Returns:
            (n,); −∞ where no row reaches, and of a category that was not there in `fit`.

        Raises:
            ValueError: Other features than in `fit`, or data that are not finite.
        """
        return self.log_density(X)

    def score(self, X: ArrayLike, y: object = None) -> float:
        """The log-likelihood of rows: the sum of `score_samples`.

        Args:
            X: (n, d).
            y: Nothing; for pipelines.

        Returns:
            The sum.
        """
        return float(self.score_samples(X).sum())

    def sample(self, n_samples: int = 1, random_state: object = None) -> NDArray[Any]:
        """Rows drawn from the density.

        Args:
            n_samples: k, at least 1.
            random_state: Where the random numbers begin, as scikit-learn takes it.

        Returns:
            (k, d), of the dtype of the training rows; beside categories or dates objects, the cells themselves.

        Raises:
            ValueError: An `n_samples` that is not a whole number of at least 1.

        Example:
            >>> KernelDensity(bandwidth=0.1).fit([[0.0], [5.0]]).sample(3, random_state=0).round(0).tolist()
            [[5.0], [5.0], [5.0]]
        """
        check_is_fitted(self)
        check_count("n_samples", n_samples)
        random, count = check_random_state(random_state), int(n_samples)
        weight = self.sample_weight_.astype(np.float64)
        chosen = random.choice(len(weight), count, p=weight / weight.sum())
        result, columns = self.X_train_[chosen].astype(np.float64), self.columns_
        numbers = [j for j in range(result.shape[1]) if not (columns and columns[j].coded)]
        result[:, numbers] += self.bandwidth_[numbers] * _drawn(self.kernel_, count, len(numbers), random)
        for j, column in enumerate(columns):
            if column.coded:
                other, levels = random.random_sample(count) < self.bandwidth_[j], len(column.levels)
                result[:, j] = (result[:, j] + other * random.randint(1, max(2, levels), count)) % levels
        if not columns:
            return np.asarray(result, self.X_train_.dtype)
        cells = np.empty(result.shape, object)
        for j, column in enumerate(columns):
            cells[:, j] = [column.cell(each) for each in result[:, j]]
        return cells


def _drawn(profile: Profile, count: int, size: int, random: np.random.RandomState) -> Array:
    """(count, size) of a kernel of bandwidth 1; Epanechnikov's is the shadow of a ball in two dimensions more."""
    normal: Array = random.normal(size=(count, size + 2 * (profile == "epanechnikov")))
    if profile == "gaussian":
        return normal
    radius = random.random_sample((count, 1)) ** (1 / (size + 2))
    inside: Array = normal / np.linalg.norm(normal, axis=1, keepdims=True) * radius
    return inside[:, :size]
