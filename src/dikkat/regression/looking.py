"""What a fitted estimator looks at, and how sure it is: attention, neighbours, slopes, bands, freedom and density."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, vstack
from sklearn.utils.validation import check_is_fitted

from dikkat.regression import effects
from dikkat.regression.coding import Coding
from dikkat.regression.columns import Column
from dikkat.regression.joined import Array
from dikkat.regression.smoother import Smoother
from dikkat.regression.validation import check_count


class Looking:
    """The part of `NadarayaWatson` that shows what its answers are made of, and how far they may be off."""

    X_train_: Array
    sample_weight_: Array
    bandwidth_: Array
    y_train_: Array
    columns_: tuple[Column, ...]

    def _current(self) -> Smoother:
        raise NotImplementedError

    def _coding(self) -> Coding:
        raise NotImplementedError

    def _query(self, X: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
        raise NotImplementedError

    def _answers_lost(self) -> bool:
        raise NotImplementedError

    def _nearest(
        self, query: Array, lost: NDArray[np.bool_], deviates: bool = False, scored: bool = False
    ) -> tuple[Array, Array]:
        raise NotImplementedError

    def _output(self, found: Array) -> Array:
        raise NotImplementedError

    def _bar(self, name: str) -> AbstractContextManager[None]:
        raise NotImplementedError

    def attention_weights(self, X: ArrayLike, top_k: int | None = None) -> Array | csr_array:
        """What each training row weighs at each query: the kernel's weights, which sum to 1.

        For the order "constant", the weights times `y_train_` are the estimate.

        Args:
            X: (n, d).
            top_k: How many of the largest weights to keep in each row; None for all.

        Returns:
            (n, m), the training rows in the order in which they were given, those of weight 0 with 0; with `top_k` a
            `scipy.sparse.csr_array`, for which all weights exist for some rows at a time only. A query out of reach has
            the weights of the nearest row, or with `out_of_reach="nan"` none.

        Raises:
            ValueError: As for `predict`; a `top_k` that is not a whole number of at least 1.

        Example:
            >>> from dikkat.regression import NadarayaWatson
            >>> model = NadarayaWatson("triangular", bandwidth=2.0).fit([[0.0], [1.0], [5.0]], [1.0, 2.0, 3.0])
            >>> model.attention_weights([[0.5], [0.0]])
            array([[0.5       , 0.5       , 0.        ],
                   [0.66666667, 0.33333333, 0.        ]])
        """
        check_count("top_k", top_k)
        return self._attention(*self._query(X), top_k)

    def gradient(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        r"""How the estimate changes with each column: its derivative, the marginal effect of a number.

        It is that of `predict`'s own answer, of both orders; of the linear one it is near the slope of the line that is
        fitted there. $\hat y(x + h e_c) = \hat y(x) + h\, \partial\hat y/\partial x_c + O(h^2)$.

        Args:
            X: (n, d).
            return_std: Whether to return the standard error too, which noise in y makes. What smoothing takes from a
                slope is not in it.

        Returns:
            (n, d), or (n, d, outputs): in units of y over those of X, of dates a day; NaN for categories, which have no
            derivative, out of reach, and where a cell is missing. Or the pair (gradient, standard error).

        Raises:
            ValueError: As for `predict`; the kernel "boxcar", whose estimate is made of steps.

        Source: Li and Racine 2007, chapter 2; the formula is in `dikkat.regression.effects`.

        Example:
            >>> from dikkat.regression import NadarayaWatson
            >>> x = np.linspace(0, 5, 50)
            >>> model = NadarayaWatson(bandwidth=0.3, order="linear", ridge=0).fit(x[:, None], 3 * x)
            >>> model.gradient([[1.0], [2.5]]).round(6)
            array([[3.],
                   [3.]])
        """
        query, missing = self._query(X)
        smoother, size = self._current(), len(self.bandwidth_)
        if smoother.profile == "boxcar":
            raise ValueError(
                "kernel: got 'boxcar', whose estimate is made of steps; expected a kernel with a derivative"
            )
        slope, norm = effects.gradient(smoother, query)
        slope[missing] = np.nan
        answers = [slope] if not return_std else [slope, effects.standard_error(smoother, query, norm)]
        found = []
        for answer in answers:
            full = np.full((len(answer), size, answer.shape[2]), np.nan)
            full[:, self._coding().order[: answer.shape[1]]] = np.where(np.isnan(slope), np.nan, answer)
            found.append((full[..., 0] if self.y_train_.ndim == 1 else full).astype(self.X_train_.dtype))
        return (found[0], found[1]) if return_std else found[0]

    def confidence_band(self, X: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        r"""Pointwise confidence intervals for the regression function.

        They are about a local line that is smoothed less than `predict`'s estimate: with half the bandwidth, or in d
        dimensions half the volume, its bias is a small part of its error. So the intervals hold the function itself,
        and not the smoothed one, about as often as they say; they are wider than the estimate alone would need, and
        their middle is not the estimate. The noise is measured by the errors with which the rows nearby are predicted
        from the others, with Student's quantile of their degrees of freedom; beyond the data the intervals grow with
        the distance.

        Args:
            X: (n, d).
            level: The chance, between 0 and 1, that the interval holds its value.

        Returns:
            The lower and the upper ends, each of the shape of `predict`'s answer; infinite where too few rows have a
            say to tell noise from signal.

        Raises:
            ValueError: As for `predict`; a level that is not between 0 and 1.

        Source: Loader 1999, chapter 2; Calonico, Cattaneo and Farrell 2018; the formula is in
        `dikkat.regression.uncertainty`.

        Example:
            >>> from dikkat.regression import NadarayaWatson
            >>> x = np.linspace(0, 5, 50)
            >>> model = NadarayaWatson(bandwidth=0.4).fit(x[:, None], np.sin(x) + 0.1 * np.cos(99 * x))
            >>> lower, upper = model.confidence_band([[1.0], [7.0]])
            >>> (lower[0] < np.sin(1.0) < upper[0]).item(), (upper - lower).round(1).tolist()
            (True, [0.2, 8.2])
        """
        if not (isinstance(level, Real) and 0 < level < 1):
            raise ValueError(f"level: got {level!r}; expected a number between 0 and 1, such as 0.95")
        query, missing = self._query(X)
        with self._bar("making the band"):
            return self._interval(query, missing, level)

    def _interval(self, query: Array, missing: NDArray[np.bool_], level: float = 0.95) -> tuple[Array, Array]:
        """The same of queries in coordinates."""
        band, reached = self._current().band(query)
        center, half = band.center, band.half(float(level))
        if not reached.all():
            center[~reached], _ = self._nearest(query, ~reached)
            half[~reached] = np.where(np.isnan(center[~reached]), math.nan, math.inf)
        center[missing] = np.nan
        return self._output(center - half), self._output(center + half)

    def _attention(self, query: Array, missing: NDArray[np.bool_], top_k: int | None = None) -> Array | csr_array:
        """The same of queries in coordinates."""
        smoother, pieces = self._current(), []
        joined = smoother.joined
        kept = np.flatnonzero(joined.place >= 0)
        place, weight = joined.place[kept], self.sample_weight_[kept]
        for part, weights in smoother.weights(query, joined.x[place], weight):
            lost = weights.sum(1) == 0
            if lost.any() and self._answers_lost():
                shares = smoother.nearest(query[part][lost]).toarray()
                weights[lost] = shares[:, place] * (weight / joined.weight[place])
            weights[missing[part]] = 0
            pieces.append(self._all_rows(weights, kept) if top_k is None else self._largest(weights, kept, int(top_k)))
        return np.concatenate(pieces) if top_k is None else csr_array(vstack(pieces, format="csr"))

    def effective_neighbors(self, X: ArrayLike) -> Array:
        r"""How many training rows have a say at each query: $(\sum_j w_j K_j)^2 / \sum_j w_j K_j^2$.

        Args:
            X: (n, d).

        Returns:
            (n,): between 1 and the number of rows, where these have weight 1. 0 out of reach, with
            `out_of_reach="nan"`; NaN where a cell is missing.

        Raises:
            ValueError: As for `predict`.

        Source: Kish 1965, chapter 11, of weights.

        Example:
            >>> from dikkat.regression import NadarayaWatson
            >>> model = NadarayaWatson("boxcar", bandwidth=1.5).fit([[0.0], [1.0], [5.0]], [1, 2, 3])
            >>> model.effective_neighbors([[0.5]])
            array([2.])
        """
        (query, missing), smoother = self._query(X), self._current()
        count = smoother.neighbors(query)
        lost = count == 0
        if lost.any() and self._answers_lost():
            count[lost] = (smoother.nearest(query[lost]) > 0) @ smoother.joined.weight
        count[missing] = np.nan
        return count.astype(self.X_train_.dtype)

    def effective_degrees_of_freedom(self) -> float:
        """The trace of the smoother matrix over the training rows.

        Returns:
            From 1 (the mean of all; for the order "linear" 1 + d, a plane through all) to the number of places.

        Source: Hastie, Tibshirani and Friedman 2009, section 5.4.1.

        Example:
            >>> from dikkat.regression import NadarayaWatson
            >>> NadarayaWatson("average").fit([[0.0], [1.0], [5.0]], [1.0, 2.0, 3.0]).effective_degrees_of_freedom()
            1.0
        """
        check_is_fitted(self)
        return self._current().trace()

    def log_density(self, X: ArrayLike) -> Array:
        r"""The logarithm of the kernel density of the training rows at each query.

        $$ \log \frac{1}{\sum_j w_j} \sum_j w_j \frac{k_d}{\prod_c \sigma_c} K(\lVert (x - x_j)/\sigma \rVert) , $$

        the log-sum-exp of the attention, with $k_d$ such that K integrates to 1 over d dimensions: $(2\pi)^{-d/2}$ for
        the Gaussian; with $V_d$ the volume of the unit ball, $1/V_d$ for the boxcar, $(d + 2)/(2 V_d)$ for
        Epanechnikov's and $(d + 1)/V_d$ for the triangular kernel. Beside categories it is the density of the numbers
        times the probability of the categories: Aitchison and Aitken's kernel is 1 − λ for the same one. With
        `neighbors` σ is that at x, and the integral not quite 1.

        Args:
            X: (n, d).

        Returns:
            (n,); −∞ where no row reaches and of a category that was not there in `fit`, which has no probability; NaN
            where a cell is missing.

        Raises:
            ValueError: As for `predict`; the kernel "average", which has no integral; ordered features.

        Source: Silverman 1986, section 4.2.

        Example:
            >>> from dikkat.regression import NadarayaWatson
            >>> NadarayaWatson("boxcar", bandwidth=2.0).fit([[0.0], [1.0]], [0, 0]).log_density([[0.5]])
            array([-1.38629436])
        """
        (query, missing), smoother = self._query(X), self._current()
        if smoother.profile == "average":
            raise ValueError("kernel: got 'average', which has no density; expected a kernel with a bandwidth")
        if any(column.kind == "ordered" for column in self.columns_):
            raise ValueError("ordered_features: got some, whose kernel does not sum to 1; expected none for a density")
        own = [-np.log1p(-self.bandwidth_[j]) for j, column in enumerate(self.columns_) if column.coded]
        density: Array = smoother.log_density(query) - sum(own)
        density[missing] = np.nan
        return density.astype(self.X_train_.dtype)

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
