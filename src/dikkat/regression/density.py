"""The density: the log-sum-exp of the attention of a query to the rows."""

from __future__ import annotations

import warnings
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _num_samples, check_is_fitted

from dikkat.regression import frames
from dikkat.regression.base import KernelModel
from dikkat.regression.joined import Array, Joined, Rows
from dikkat.regression.likelihood import FENCE, Density, outlying
from dikkat.regression.moments.launch import Profile
from dikkat.regression.validation import LIKELIHOOD, check_count, check_kernel


class KernelDensity(DensityMixin, KernelModel):  # type: ignore[misc]  # scikit-learn has no types
    r"""Kernel density estimation, with a learned bandwidth for each feature.

    $$ f(x) = \frac{1}{\sum_j w_j} \sum_j w_j \frac{k_d}{\prod_c \sigma_c} K(\lVert (x - x_j)/\sigma \rVert) $$

    The logarithm is the log-sum-exp of the attention; $k_d$ is such that K integrates to 1. With categories it is the
    density of the numbers times the probability of the categories, by Aitchison and Aitken's kernel. Weights of rows
    count as repeats.

    Args:
        kernel: "gaussian" or "epanechnikov", as in `KernelRegressor`.
        bandwidth: σ in the units of X: "auto", for each feature the bandwidth with the largest leave-one-out
            likelihood, with a penalty on degrees of freedom (rows far beyond the quartiles have no influence);
            "silverman" or "scott", rules of thumb; or a positive number, or (d,) numbers.
        categorical_features: Columns of categories, as in `KernelRegressor`; ordered types count as categories.

    Attributes:
        bandwidth_: (d,), σ of numbers and λ of categories.
        history_: The accepted steps of a search: {"bandwidth": (d,) list, "error": the criterion}.
        columns_: The kind of each column; empty if all are numbers.
        n_features_in_: d.
        feature_names_in_: (d,), if X was a frame with column names.
        X_train_: (n, d), with the index of the level for a category.
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
        self, kernel: Profile = "gaussian", *,
        bandwidth: float | ArrayLike | Literal["silverman", "scott", "auto"] = "auto",
        categorical_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.categorical_features = categorical_features

    def fit(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Store the rows and find the bandwidth.

        If this fails or is interrupted, the estimator is unchanged.

        Args:
            X: (n, d), finite numbers, or a frame.
            y: Ignored; present for API compatibility.
            sample_weight: (n,), at least 0 and not all 0; None for 1 each.

        Returns:
            The estimator itself.

        Warns:
            UserWarning: If the bandwidth is not fixed, and a column is constant or a row far beyond the quartiles.

        Raises:
            ValueError: If a setting is not allowed, or data are not finite.
        """
        check_kernel(self.kernel, self.bandwidth, LIKELIHOOD)
        X = frames.as_table(X, sample_weight=sample_weight)
        return self._fit_in_place(X, np.zeros(_num_samples(X)), sample_weight)

    def _choose_attributes(self, rows: Rows, joined: Joined) -> dict[str, Any]:
        attributes = self._choose_bandwidths(rows, joined, Density, share=0.25)[0]  # its criterion has few minima
        if not isinstance(self.bandwidth, str):
            return attributes
        if self.bandwidth == "auto" and (outliers := outlying(joined)).any():
            warnings.warn(
                f"X: got {outliers.sum()} of {len(outliers)} rows with a number {FENCE:g} or more interquartile ranges "
                "beyond the quartiles, without influence on the bandwidth; correct them, or leave them out",
                stacklevel=5,
            )
        numbers = [j for j in range(rows.x.shape[1]) if not (rows.columns and rows.columns[j].coded)]
        counted_x = rows.x[rows.weight > 0]
        if constant := [j for j in numbers if np.ptp(counted_x[:, j]) == 0]:
            if len(counted_x) > 1:
                warnings.warn(
                    f"X: got the constant column {constant[0]}, whose bandwidth is set to 0.001 times the larger of 1 "
                    "and its value; leave it out",
                    stacklevel=5,
                )
            attributes["bandwidth_"][constant] = 1e-3 * np.abs(counted_x[0, constant]).clip(1)
        return attributes

    def score_samples(self, X: ArrayLike) -> Array:
        """Return the logarithm of the density at each query.

        Args:
            X: (n, d).

        Returns:
            (n,); −∞ for a query out of reach, or with a category unseen in `fit`.

        Raises:
            ValueError: If the features are not those of `fit`, or data are not finite.
        """
        return self.log_density(X)

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return the log-likelihood of rows: the sum of `score_samples`.

        Args:
            X: (n, d).
            y: Ignored; present for API compatibility.

        Returns:
            The sum.
        """
        return float(self.score_samples(X).sum())

    def sample(self, n_samples: int = 1, random_state: object = None) -> NDArray[Any]:
        """Draw random rows from the density.

        Args:
            n_samples: k, at least 1.
            random_state: A seed or generator, as in scikit-learn.

        Returns:
            (k, d), in the dtype of the training rows; objects that hold the cells if there are categories or dates.

        Raises:
            ValueError: If `n_samples` is not a whole number of at least 1.

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
        result[:, numbers] += self.bandwidth_[numbers] * _sample_kernel(self.kernel_, count, len(numbers), random)
        for j, column in enumerate(columns):
            if column.coded:
                changes, levels = random.random_sample(count) < self.bandwidth_[j], len(column.levels)
                result[:, j] = (result[:, j] + changes * random.randint(1, max(2, levels), count)) % levels
        if not columns:
            return np.asarray(result, self.X_train_.dtype)
        cells = np.empty(result.shape, object)
        for j, column in enumerate(columns):
            cells[:, j] = [column.cell(value) for value in result[:, j]]
        return cells


def _sample_kernel(profile: Profile, count: int, size: int, random: np.random.RandomState) -> Array:
    """Draw (count, size) from a kernel of bandwidth 1; Epanechnikov's is the projection of a (size + 2)-ball."""
    normal: Array = random.normal(size=(count, size + 2 * (profile == "epanechnikov")))
    if profile == "gaussian":
        return normal
    radius = random.random_sample((count, 1)) ** (1 / (size + 2))
    inside: Array = normal / np.linalg.norm(normal, axis=1, keepdims=True) * radius
    return inside[:, :size]
