"""The estimator: scikit-learn's interface to kernel regression."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, Self, get_args, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dikkat.errors import InputError
from dikkat.regression import dask, diagnostics, effects, files, intervals, report, validation
from dikkat.regression.bandwidth import Searched, chosen_bandwidths
from dikkat.regression.base import KernelModel, check_at_hand
from dikkat.regression.columns import refilled
from dikkat.regression.folds import folds_of, membership
from dikkat.regression.joined import Array, Coding, Rows
from dikkat.regression.metric import Metric
from dikkat.regression.moments.launch import Profile
from dikkat.regression.summary import Summary, columns_of, names_of, summarised
from dikkat.regression.validation import Order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

_MARGIN = 0.1  # of a column's range: how far beyond it queries go without a warning


class KernelRegressor(RegressorMixin, KernelModel):  # type: ignore[misc]  # scikit-learn has no types
    r"""Kernel regression: attention pooling over the training rows, with a bandwidth that is found from them.

    $$ \hat y(x) = \frac{\sum_j w_j K(r_j)\, y_j}{\sum_j w_j K(r_j)}, \qquad r_j = \lVert (x - x_j)/\sigma \rVert $$

    is the estimate of order "constant" (Nadaraya and Watson's): the weighted mean of the values about x. That of order
    "linear" is the height at x of the line fitted under the same weights: it has no bias at the border of the data, nor
    where they lie unevenly, and gives straight lines back exactly.

    Weights of rows count as repeats, a row of weight 2 is two rows, or as precisions (`weights`); one of weight 0 is
    none. Memory is linear in
    the rows, time for a prediction as well; time for a search is quadratic, and for one feature
    linear but for a sort. Where that is too much, give a number: it may be the `bandwidth_` that was found for a part
    of the rows.

    Args:
        kernel: K as a function of the scaled distance r: "gaussian", e^(−r²/2); or "epanechnikov", 1 − r² below 1.
        bandwidth: σ in the units of X: a positive number, or (d,) numbers, one for each feature; "silverman" or
            "scott", rules of thumb from the features' spreads (a kernel that ends gets the radius with which its
            standard deviation is that of the rules' Gaussian); "auto": for each feature the one with the least
            leave-one-out squared error, where copies, rows equal in X and y, are left out together, with a penalty on
            degrees of freedom; or "loo", without it. Both allow 0.8 degrees of freedom a row. Over
            several outputs that is the mean error: outputs of different units should be brought to one.
        order: "constant" or "linear".
        ridge: Of the order "linear", ρ: how many rows' worth of doubt there is that there is a slope. It is as if so
            many more rows at each query, one bandwidth off (or one standard deviation of the feature, where that is
            shorter), said that the slope is that of a plane through all rows: among many rows it changes little, beyond
            the data and in gaps the line goes on as the plane does. In that a category has a step for each level where
            rows are predicted better so. A number of at least 0, where 0 is the plain local line; or "auto":
            with a bandwidth that is searched for the one that the search finds, from 0.001 on, and 0.25 otherwise.
        metric: "diagonal", the columns with a bandwidth each; or "linear", directions that are learned, the same number
            of them or `n_components`, with a bandwidth each: for what depends on sums and differences of columns. Only
            with a bandwidth that is searched for; it takes up to seven times as long. Categories stay as they are.
        n_components: Of a linear metric, k: how many directions there are, at least 1; None for as many as columns of
            numbers.
        categorical_features: Which columns hold categories without an order: names, positions or a mask of columns;
            "from_dtype", those of a frame whose type is one of categories, or that hold few different texts; or None.
            Their kernel is Aitchison and
            Aitken's, a factor of the weights; only beside the Gaussian. A category that was not there in `fit` is as
            far from every row, which is warned of.
        ordered_features: Which columns hold ordered categories, in the same ways; with "from_dtype" those whose type
            has an order. Levels are the numbers that occur, or what the type says. Their kernel is Li and Racine's, λ
            to the power of the steps between two levels.
        periodic_features: Which columns hold numbers that come round, names or positions with their periods, such as
            {"hour": 24}. They have no slope, and stand beside the Gaussian only.
        missing: "refuse", or "indicator": cells of X may be missing. In a number's stands the median of the others, and
            whether it is missing is a category of its own behind the columns, so that distances count between known
            cells where that is better; of a category it is one more. Rows without y are left out.
        cv: For rows that depend on each other: a splitter of scikit-learn's, pairs of indices to learn from and to
            test, or a number of folds of rows that follow each other, as blocks of a series are. Rows are then
            predicted from those of other folds, where else from all others: in the search of the bandwidth, with "auto"
            and "loo" alike, and in the errors of which intervals are made. A number of folds leaves out half a block on
            either side of the tested one too. None for independent rows.
        weights: The meaning of `sample_weight`: "repeats", how often each row counts; or "precision", one over the
            variance of each row's error, up to a factor: 1/σ² of known errors. Then only ratios of weights count, a row
            counts once however large its weight is, and a new value of weight w has the variance σ²/w.

    Attributes:
        bandwidth_: (d,), float64: σ; of a category λ. λ is 0 where only rows of
            the same category count, and (c − 1)/c of c categories, or 1 of ordered ones, where the column counts for
            nothing. With a metric σ of each direction, and then λ of the categories. Of a constant feature, found by a
            rule or a search, so wide that the feature does not count: 10⁶ times its value, or 10⁶ where that is below
            1. With missing cells λ of where they are missing, of each column of numbers that has some.
        bandwidth_names_: What each of these is of: the names of the features, or of a metric's directions.
        ridge_: ρ, for the order "linear"; 0 for "constant".
        kernel_: The kernel that answers: what `kernel` was in `fit`.
        order_: The order that answers: what `order` was in `fit`.
        history_: The accepted steps of a search, the start first: {"bandwidth": (d,) list, "error": the criterion, for
            "loo" the leave-one-out mean squared error}; empty otherwise, and where there is nothing to choose by.
        metric_: (numbers, k), with a metric the directions, columns of a matrix by which the numbers are multiplied.
            Else None.
        columns_: What each column is, a `dikkat.regression.columns.Column`, where not all are numbers. Columns of dates
            in frames count as days since the first one.
        n_features_in_: d.
        feature_names_in_: (d,), where X was a frame whose columns have names.
        n_outputs_: Number of outputs.
        target_name_: The name of y, where it is a column that has one; otherwise None.
        X_train_: (n, d), the training rows, float32 if they were given so and float64 otherwise; as are all answers. Of
            a category the index of each cell's level.
        y_train_: (n,) or (n, outputs), as y was given; float64.
        sample_weight_: (n,).
        weights_: The meaning of these weights: what `weights` was in `fit`.
        row_labels_: (n,), the index of the frame in `fit`; None for an array, and in a loaded model.
        folds_: (folds, n), int8, with `cv`: 1 for rows that are learned from, 2 for those that are tested. Else None.

    Source: Nadaraya 1964; Watson 1964; the linear order and its bias: Fan 1992; the bandwidth: Li and Racine 2007,
    section 2.2.2.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(0, 5, 50)
        >>> model = KernelRegressor().fit(x[:, None], 2 * np.sin(x) + x**0.8)
        >>> model.predict([[1.0], [2.5]]).round(1)
        array([2.7, 3.3])
    """

    def __init__(
        self,
        kernel: Profile = "gaussian",
        *,
        bandwidth: float | ArrayLike | Literal["silverman", "scott", "auto", "loo"] = "auto",
        order: Order = "linear",
        ridge: float | Literal["auto"] = "auto",
        metric: Metric = "diagonal",
        n_components: int | None = None,
        categorical_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
        ordered_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
        periodic_features: Mapping[Any, float] | None = None,
        missing: Literal["refuse", "indicator"] = "refuse",
        cv: object = None,
        weights: Literal["repeats", "precision"] = "repeats",
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.order = order
        self.ridge = ridge
        self.metric = metric
        self.n_components = n_components
        self.categorical_features = categorical_features
        self.ordered_features = ordered_features
        self.periodic_features = periodic_features
        self.missing = missing
        self.cv = cv
        self.weights = weights

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Keep the training rows and find the bandwidth.

        Where that fails or is interrupted, the estimator is as it was: not fitted, or with the whole of its old model.

        Args:
            X: (n, d), finite numbers; an array or a frame.
            y: (n,) or (n, outputs), finite numbers.
            sample_weight: (n,), at least 0 and not all 0: how often each row counts, or its precision (`weights`); None
                for 1 each.
            groups: (n,), for a `cv` that splits by groups.

        Returns:
            The estimator itself.

        Warns:
            UserWarning: The bandwidth is searched for without `cv`, y is one column, and rows that are neighbours along
                a date or a number have like errors, or rows that are equal or nearly equal in X hide how far off rows
                at other places are. Or weights that count repeats sum to more than twice the number of rows, or are not
                whole numbers.

        Raises:
            ValueError: A setting that is not allowed, or data that do not fit, are not finite or are not numbers.

        Example:
            >>> model = NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [2.0, 4.0], sample_weight=[1, 3])
            >>> model.predict([[0.5]])
            array([3.5])
        """
        validation.check_settings(self.kernel, self.bandwidth, self.order, self.ridge)
        validation.check_metric(self.metric, self.n_components, self.bandwidth)
        if self.cv is None and groups is not None:
            raise ValueError(f"groups: got {type(groups).__name__} and no cv; expected a cv that splits by groups, too")
        validation.check_name("missing", self.missing, ("refuse", "indicator"))
        validation.check_name("weights", self.weights, ("repeats", "precision"))
        check_at_hand(X=X, y=y, sample_weight=sample_weight)
        return self._learn(X, y, sample_weight, groups)

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> Array: ...
    @overload
    def predict(self, X: ArrayLike, return_std: Literal[True]) -> tuple[Array, Array]: ...
    @overload
    def predict(self, X: ArrayLike, return_std: bool) -> Array | tuple[Array, Array]: ...
    def predict(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        r"""The estimate at each query.

        Args:
            X: (n, d).
            return_std: Whether to return the standard deviation too: how far single values lie from the estimate, by
                the errors with which the rows near the query are predicted from the others, and beyond the data by how
                far the function may go on from there. `confidence_interval` says how far the estimate itself is off.

        Returns:
            (n,) or (n, outputs), as y was given; or the pair (estimate, standard deviation). Of a Dask collection
                Dask arrays, still to be made.

        Raises:
            ValueError: Other features than in `fit`, or data that are not finite.

        Example:
            >>> NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [2.0, 4.0]).predict([[0.5]], return_std=True)
            (array([3.]), array([2.]))
        """
        if hasattr(X, "__dask_graph__"):
            check_is_fitted(self)
            result: Array | tuple[Array, Array] = dask.predict(self, X, return_std)
            return result
        return self._answer(self._uncertain(X) if return_std else self._cells(X), return_std)

    def _answer(self, x: Array, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The estimates, and with `return_std` the deviations, at rows like `X_train_`."""
        query, smoother = self._coordinates(x), self._smoother
        mean, reached = smoother.estimate(query)
        lost = query[~reached]
        if len(lost):
            mean[~reached] = smoother.nearest(lost) @ smoother.joined.y + smoother.joined.origin
        if not return_std:
            return self._output(mean)
        deviation = np.hypot(self._deviations(x, reached)[0], np.sqrt(intervals.unknown(self, x)))
        return self._output(mean), self._output(deviation)

    def _uncertain(self, X: ArrayLike) -> Array:
        """Queries as `_cells` returns them, with a warning of those beyond the data, where no interval is sure."""
        x, rows = self._cells(X), self.X_train_[self.sample_weight_ > 0].astype(np.float64)
        low, high = rows.min(0), rows.max(0)
        margin = _MARGIN * (high - low)
        beyond = (x < low - margin) | (x > high + margin)
        plain = [column.kind in ("number", "date") for column in columns_of(self)]
        if (beyond := beyond & plain).any():
            named = [
                f"{name} ({column.shown(least)} to {column.shown(most)})"
                for name, column, least, most, far in zip(
                    names_of(self), columns_of(self), low, high, beyond.any(0), strict=True
                ) if far
            ]  # fmt: skip
            warnings.warn(
                f"X: got {beyond.any(1).sum()} of {len(x)} rows beyond the rows in fit, in {', '.join(named[:3])}"
                f"{', …' * (len(named) > 3)}. The data say nothing about y there: intervals are wider, and may still "
                "miss it",
                UserWarning,
                stacklevel=3,
            )
        return x

    def _deviations(self, x: Array, reached: NDArray[np.bool_] | None = None) -> tuple[Array, Array]:
        """How far single values lie from the estimates, (n, v), and for the first output the growth, (n,)."""
        query, smoother = self._coordinates(x), self._smoother
        reached = smoother.estimate(query)[1] if reached is None else reached
        deviation, growth = smoother.deviation(query)
        if len(lost := np.flatnonzero(~reached)):
            deviation[lost], growth[lost] = smoother.nearest_deviation(query[lost])
        return deviation, growth[:, 0]

    def gradient(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        r"""The derivative of the estimate with respect to each number, its marginal effect.

        It is that of `predict`'s own answer, of both orders; of the linear one it is near the slope of the line that is
        fitted there. $\hat y(x + h e_c) = \hat y(x) + h\, \partial\hat y/\partial x_c + O(h^2)$.

        Args:
            X: (n, d).
            return_std: Whether to return the standard error too, which noise in y makes. What smoothing takes from a
                slope is not in it.

        Returns:
            (n, d), or (n, d, outputs): in units of y over those of X, of dates a day; NaN for categories, which have no
                derivative, and out of reach. Or the pair (gradient, standard error).

        Raises:
            ValueError: As for `predict`.

        Source: Li and Racine 2007, chapter 2; the formula is in `dikkat.regression.effects`.

        Example:
            >>> x = np.linspace(0, 5, 50)
            >>> model = KernelRegressor(bandwidth=0.3, ridge=0).fit(x[:, None], 3 * x)
            >>> model.gradient([[1.0], [2.5]]).round(6)
            array([[3.],
                   [3.]])
        """
        query, smoother = self._query(X), self._smoother
        slope, norm = effects.gradient(smoother, query)
        if self.metric_ is not None:
            if return_std:
                raise ValueError("return_std: got True with metric='linear'; expected False, or metric='diagonal'")
            slope = np.einsum("dk,nkv->ndv", self.metric_, slope)
        coding, dtype = Coding(self.columns_, self.X_train_.shape[1]), self.X_train_.dtype
        order = coding.order[: coding.numbers]

        def by_columns(answer: Array) -> Array:
            full = np.full((len(answer), self.X_train_.shape[1], answer.shape[2]), np.nan)
            full[:, order] = np.where(np.isnan(slope), np.nan, answer)
            return (full[..., 0] if self.y_train_.ndim == 1 else full).astype(dtype)

        if not return_std:
            return by_columns(slope)
        return by_columns(slope), by_columns(np.sqrt(norm[:, :, None] * smoother.noise(query)[:, None]))

    def confidence_interval(self, X: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        r"""Pointwise confidence intervals for the regression function.

        They are about a local line that is smoothed less than `predict`'s estimate: with half the bandwidth, or in d
        dimensions half the volume, its bias is a small part of its error. So the intervals hold the function itself,
        and not the smoothed one, about as often as they say; they are wider than the estimate alone would need, and
        their middle is not the estimate. With `cv` they are wider by how alike the errors of a fold are. The noise is
        measured by the errors with which the rows nearby are predicted
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
        `dikkat.regression.smoother`.

        Example:
            >>> x = np.linspace(0, 5, 50)
            >>> model = NadarayaWatson(bandwidth=0.4).fit(x[:, None], np.sin(x) + 0.1 * np.cos(99 * x))
            >>> lower, upper = model.confidence_interval([[1.0], [7.0]])
            >>> (lower[0] < np.sin(1.0) < upper[0]).item(), (upper - lower).round(1).tolist()
            (True, [0.2, 8.2])
        """
        return self._interval(self._uncertain(X), validation.checked_share("level", level, such_as=0.95))

    def _interval(self, x: Array, level: float = 0.95) -> tuple[Array, Array]:
        """The ends of the confidence intervals at rows like `X_train_`."""
        confidence, reached = self._smoother.confidence(self._coordinates(x))
        error = np.hypot(confidence.error, np.sqrt(intervals.unknown(self, x)))
        center, half = confidence.center, confidence._replace(error=error).half(level)
        center[~reached], half[~reached] = 0.0, math.inf
        return self._output(center - half), self._output(center + half)

    def predict_interval(
        self, X: ArrayLike, coverage: float = 0.9, method: intervals.Method = "jackknife+", random_state: object = 0,
        sample_weight: ArrayLike | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        r"""Intervals that hold single new values, and are made of the errors with which rows are predicted from others.

        - "jackknife+": as far to both sides, and about as wide everywhere. Of rows that are exchangeable with the new
          one it holds at least 1 − 2(1 − coverage) of the new values on average, and about `coverage` where
          errors are like those of the rows; for that the bandwidth must not depend on y, and one that was searched for
          has adapted itself a little.
        - "local": the quantiles (1 ∓ coverage)/2 of the distribution near the query. It is wider where y varies more,
          and its ends miss as many values on either side. It holds `coverage` in the limit of many rows near each
          query.
        - "split": half of the rows are fitted anew, with a search of their own, and the other half say how far off such
          a fit is. Of exchangeable rows it holds at least `coverage` of the new values on average, whatever the noise
          and the search; it is wider, since it learns from fewer rows, and takes as long as a fit.

        None of them holds of rows that depend on each other without `cv`, by which each is predicted from other folds
        (and "jackknife+" is CV+), nor of any place by itself. Beyond the data all grow with the standard deviation that
        `predict` returns, but nothing guarantees them: rows beyond a column's range by a tenth of it are warned of.

        Args:
            X: (n, d).
            coverage: The share of new values that the intervals should hold, between 0 and 1.
            method: "jackknife+", "local" or "split".
            random_state: Of "split", where the random numbers begin by which rows are halved, as scikit-learn takes it;
                the halves do not hang on y.
            sample_weight: (n,), or a number: with weights="precision" the precisions of the new values, in the unit of
                those in `fit`; None for the mean of the latter.

        Returns:
            The lower and the upper ends, (n,) each, in units of y; infinite where rows are too few to tell.

        Raises:
            ValueError: As for `predict`; a coverage that is not between 0 and 1, another method, several targets;
                "split" beside `cv`; a `sample_weight` that is not positive, or without weights="precision".

        Source: Barber, Candès, Ramdas and Tibshirani 2021; the formulas are in `dikkat.regression.intervals`.

        Example:
            >>> x = np.linspace(0, 5, 50)
            >>> model = KernelRegressor().fit(x[:, None], np.sin(x) + 0.1 * np.cos(99 * x))
            >>> lower, upper = model.predict_interval([[1.0]])
            >>> (upper - lower).round(1).tolist(), bool(lower[0] < np.sin(1.0) < upper[0])
            ([0.3], True)
        """
        if method not in get_args(intervals.Method):
            raise ValueError(f"method: got {method!r}; expected one of {get_args(intervals.Method)}")
        share = validation.checked_share("coverage", coverage)
        x, weight = self._uncertain(X), None
        if sample_weight is not None:
            weight = np.broadcast_to(np.asarray(sample_weight, np.float64), len(x))
            if self.weights_ != "precision" or not (weight > 0).all():
                raise ValueError(
                    f"sample_weight: got {weight.min()} and weights={self.weights_!r} in fit; expected positive "
                    "precisions of the new values, and weights='precision'"
                )
        lower, upper = intervals.interval(self, x, share, method, random_state, weight)
        return lower.astype(self.X_train_.dtype), upper.astype(self.X_train_.dtype)

    def predict_quantiles(self, X: ArrayLike, q: ArrayLike) -> Array:
        """Quantiles of a single new value at each query, by the errors of the rows near it.

        They never cross. Their guarantee is that of `predict_interval` with the method "local".

        Args:
            X: (n, d).
            q: (k,) numbers between 0 and 1, in any order.

        Returns:
            (n, k), in units of y, in the order of q; infinite where rows are too few to tell.

        Raises:
            ValueError: As for `predict`; a q that is not between 0 and 1, several targets.

        Example:
            >>> x = np.linspace(0, 5, 50)
            >>> model = KernelRegressor().fit(x[:, None], np.sin(x) + 0.1 * np.cos(99 * x))
            >>> model.predict_quantiles([[1.0]], [0.1, 0.5, 0.9]).round(1)
            array([[0.7, 0.8, 0.9]])
        """
        levels = np.asarray(q, np.float64)
        if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"q: got {q!r}; expected a list of numbers between 0 and 1, such as [0.1, 0.5, 0.9]")
        return intervals.quantiles(self, self._uncertain(X), levels).astype(self.X_train_.dtype)

    def sample(self, X: ArrayLike, n_samples: int = 1, random_state: object = None) -> Array:
        """New values at each query, drawn at random by the same distribution as `predict_quantiles`.

        Args:
            X: (n, d).
            n_samples: k, how many at each query; at least 1.
            random_state: Where the random numbers begin, as scikit-learn takes it.

        Returns:
            (n, k), in units of y.

        Raises:
            ValueError: As for `predict`; several targets, or fewer than two rows, which have no errors.

        Example:
            >>> x = np.linspace(0, 5, 50)
            >>> KernelRegressor().fit(x[:, None], np.sin(x)).sample([[1.0], [2.0]], 3, random_state=0).shape
            (2, 3)
        """
        validation.check_count("n_samples", n_samples)
        drawn = intervals.sample(self, self._uncertain(X), int(n_samples), check_random_state(random_state))
        return drawn.astype(self.X_train_.dtype)

    def plot(self, ax: Axes | None = None, coverage: float = 0.9) -> Axes | Figure:
        """Draw the estimate and the intervals that hold new values: along the only feature, or along each of several.

        Of several features each has a panel, in which the others are at their medians or most frequent categories; the
        one that moves the estimate most comes first. There are at most nine panels, and the other features are named.

        Args:
            ax: Where to draw one feature; None for matplotlib's current axes.
            coverage: As for `predict_interval`; along the only feature of the method "local", else of "jackknife+".

        Returns:
            The axes; or of several features, and of one of categories, the figure.

        Raises:
            ValueError: A coverage that is none; several targets; features that are all constant; an `ax` for several
                features.
        """
        check_is_fitted(self)
        if self.n_features_in_ > 1 or any(column.coded for column in self.columns_):
            if ax is not None:
                raise ValueError(f"ax: got axes for {self.n_features_in_} features; expected None, for panels")
            return report.effects(self, validation.checked_share("coverage", coverage))
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.gca()
        x = self.X_train_[:, 0]
        at = np.linspace(x.min(), x.max(), 201, dtype=x.dtype)[:, None]
        lower, upper = intervals.interval(self, at, validation.checked_share("coverage", coverage), "local")
        ax.plot(x, self.y_train_.ravel(), "o", color="0.45", markersize=3, alpha=0.6)
        (line,) = ax.plot(at[:, 0], np.asarray(self._answer(at)).ravel())
        ax.fill_between(at[:, 0], lower, upper, color=line.get_color(), alpha=0.2, linewidth=0)
        ax.set_xlabel(self.bandwidth_names_[0])
        ax.set_ylabel(self.target_name_ or "y")
        return ax

    @property
    def bandwidth_names_(self) -> list[str]:
        """(d,), what each of `bandwidth_` is of: the names of the features, or of a metric's directions."""
        check_is_fitted(self)
        if self.metric_ is None:
            return names_of(self)
        coding = self._rows.coding
        directions = [f"direction {each}" for each in range(1, coding.numbers + 1)]
        return [*directions, *(names_of(self)[j] for j in coding.coded)]

    def summary(self, folds: int = 5) -> Summary:
        """The fit in words, as `dikkat regress` prints it: a table of the features, and how well rows are predicted.

        Args:
            folds: In how many parts the rows are held out, each of which takes as long as a fit; 0 for none.

        Returns:
            A `dikkat.regression.summary.Summary`, which prints as text and shows as a table in notebooks.

        Raises:
            NotFittedError: It is not fitted.
            ValueError: Folds that are none.

        Example:
            >>> x = np.linspace(0, 5, 50)
            >>> print(KernelRegressor().fit(x[:, None], np.round(np.sin(x), 3)).summary(folds=0).rows[0])
            rows: 50
        """
        check_is_fitted(self)
        return summarised(self, folds)

    def nearest(self, X: ArrayLike, k: int = 5) -> DataFrame:
        """The training rows that count most at each query: what is comparable.

        Args:
            X: (n, d).
            k: How many rows for each query, at least 1.

        Returns:
            A pandas frame of k rows for each query, those of the largest weight first, and of equal weights the most
            similar ones: the query's position, the row's index in the frame of `fit` (of an array, and of a loaded
            model, its position), its weight (`attention_weights`), its cells (NaN or NaT where they were missing) and
            its y. Rows of weight 0 are left out.

        Raises:
            ImportError: pandas is not installed.
            ValueError: As for `predict`; a k that is none.

        Example:
            >>> model = KernelRegressor(bandwidth=1.0).fit([[0.0], [1.0], [5.0]], [1.0, 2.0, 3.0])
            >>> model.nearest([[0.9]], k=2)[["row", "weight", "x", "y"]].round(2).values.tolist()
            [[1.0, 0.6, 1.0, 2.0], [0.0, 0.4, 0.0, 1.0]]
        """
        validation.check_count("k", k)
        return report.nearest(self, X, int(k))

    def report(self, path: str | os.PathLike[str], folds: int = 5, coverage: float = 0.9) -> None:
        """Write a page with the summary, the effects with their intervals, and the rows that are predicted worst.

        Each of these stands beside the rows that are most like it. The page is one HTML file, without a script, that
        loads nothing.

        Args:
            path: The file; whole or not at all, and one that is there is replaced.
            folds: As for `summary`.
            coverage: As for `predict_interval`.

        Raises:
            NotFittedError: It is not fitted.
            ValueError: Several targets; features that are all constant; folds or a coverage that are none.
            OSError: The system could not write.
        """
        check_is_fitted(self)
        report.write_page(self, path, folds, validation.checked_share("coverage", coverage))

    def effective_degrees_of_freedom(self) -> float:
        """The trace of the smoother matrix over the training rows.

        Returns:
            From 1 (the mean of all; 1 + d of a plane through all) to the number of unique rows. The slopes of the
            plane to which a ridge draws are counted too; one that is drawn to 0 counts for less.

        Source: Hastie, Tibshirani and Friedman 2009, section 5.4.1.

        Example:
            >>> model = NadarayaWatson(bandwidth=0.1).fit([[0.0], [1.0], [5.0]], [1.0, 2.0, 3.0])
            >>> model.effective_degrees_of_freedom()
            3.0
        """
        check_is_fitted(self)
        return self._smoother.trace()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted estimator in one `.safetensors` file, whole or not at all.

        The training rows, their weights and the bandwidth are tensors, the settings JSON in the metadata: no code.

        Args:
            path: The file; its folder must exist, and a file there is replaced.

        Raises:
            NotFittedError: It is not fitted.
            ValueError: A setting that is not allowed.
            OSError: The system could not write; a file there is as it was.

        Example:
            >>> import tempfile
            >>> path = f"{tempfile.mkdtemp()}/model.safetensors"
            >>> NadarayaWatson(bandwidth=0.5).fit([[0.0], [1.0]], [2.0, 3.0]).save(path)
            >>> NadarayaWatson.load(path).predict([[0.5]])
            array([2.5])
        """
        check_is_fitted(self)
        validation.check_settings(self.kernel, self.bandwidth, self.order, self.ridge)
        names = getattr(self, "feature_names_in_", None)
        saved = files.Saved(
            self._saved_settings(), self._rows, self.bandwidth_, None if names is None else list(names), self.history_,
            self.ridge_, self.target_name_,
        )  # fmt: skip
        files.write(path, saved)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load an estimator that `save` wrote, after checking everything in the file.

        Args:
            path: The file.

        Returns:
            An estimator of the class that `load` was called on, which answers as the one that was saved. Its folds are
            those of `fit`; `cv` is there again as a number of folds, and a splitter as its name alone, which `fit`
            refuses.

        Raises:
            InputError: A `ValueError`: the file is damaged, not of this kind, or of another version; what it holds does
                not fit together.
            OSError: The system could not read.
        """
        saved = files.read(path, cls()._saved_settings())
        model, rows = cls(**saved.settings), saved.rows._replace(weights=saved.settings.get("weights", "repeats"))
        try:
            validation.check_name("weights", model.weights, ("repeats", "precision"))
            validation.check_settings(model.kernel, model.bandwidth, model.order, model.ridge)
        except ValueError as error:
            raise InputError(f"{path}: {error}") from error
        if saved.feature_names is not None:
            model.feature_names_in_ = np.array(saved.feature_names, dtype=object)
        names = range(saved.rows.x.shape[1]) if saved.feature_names is None else saved.feature_names
        kinds = dict(zip(names, saved.rows.columns, strict=False))
        periods = {name: float(column.levels[0]) for name, column in kinds.items() if column.kind == "periodic"}
        model.periodic_features = periods or None
        gaps = sum(column.is_gap for column in saved.rows.columns)
        model.n_features_in_, model.target_name_ = saved.rows.x.shape[1] - gaps, saved.target
        model.row_labels_ = None
        return model._with(rows, rows.joined(), bandwidth_=saved.bandwidth, ridge_=saved.ridge, history_=saved.history)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _learn(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, groups: ArrayLike | None, warns: bool = True
    ) -> Self:
        """Learn by another object, whose attributes this one takes in one step: an interrupt is before or after it."""
        other = object.__new__(type(self))
        other.__dict__ = dict(vars(self))
        name = getattr(y, "name", None)
        other.target_name_ = name if isinstance(name, str) else None
        if self.missing == "indicator":
            X, y, sample_weight, groups = validation.with_values(X, y, sample_weight, groups, self.cv)
        frame: Any = X
        other.row_labels_ = frame.index.to_numpy() if hasattr(X, "iloc") else None
        rows = validation.checked_rows(other, X, y, sample_weight)
        if self.cv is not None:
            rows = rows._replace(folds=membership(validation.split(self.cv, rows, groups), len(rows.x)))
        fitted = other._fitted(rows)
        if warns and sample_weight is not None and self.weights == "repeats":
            validation.warn_of_weights(rows.weight)
        if warns and self.cv is None and isinstance(self.bandwidth, str) and self.bandwidth in get_args(Searched):
            fitted._warn_of_dependence()
        self.__dict__ = fitted.__dict__
        return self

    def _warn_of_dependence(self) -> None:
        """Warn of errors that are alike along a date or a number, and of repeats and near repeats that are alike."""
        if not self._smoother.joined.numbers or self.n_outputs_ > 1:
            return
        if (column := diagnostics.dependent_column(self)) is not None:
            warnings.warn(
                f"y: got rows whose errors are like those of their neighbours in {names_of(self)[column]!r}, as in a "
                "series of time (or a mean that turns within a few rows): the bandwidth follows them, and intervals "
                "are too narrow. Expected independent errors, or folds that are far apart: `cv=20` for 20 blocks of "
                "rows in their order (sort them by that column), or a splitter by groups",
                stacklevel=4,
            )
        elif (found := intervals.errors_at_places(self)) is not None:
            warnings.warn(
                f"X: got rows at {found[0]} places, equal or nearly equal in X, as repeated measurements are. A row is "
                f"predicted with an error of {found[1]:.3g} where its repeats are there, and of {found[2]:.3g} without "
                "them, as one at a new place is: for these, intervals and errors are too small. Expected folds that "
                "keep repeats together, by `cv=GroupKFold(10)` and `groups` in fit; or the mean of each place",
                UserWarning,
                stacklevel=4,
            )

    def _anew(self, rows: Rows) -> Self:
        """An estimator of the settings that were fitted, for which everything is chosen anew from other rows."""
        other = clone(self).set_params(kernel=self.kernel_, order=self.order_)
        x, columns = refilled(rows.x, rows.columns, rows.weight)
        anew: Self = other._fitted(rows._replace(x=x, columns=columns, metric=None))
        return anew

    def _fitted(self, rows: Rows) -> Self:
        rows = self._by_metric(rows)
        joined, coding = rows.joined(), rows.coding
        given = validation.checked_bandwidth(self.bandwidth, rows.columns)
        numbers = bool(rows.columns) and not isinstance(given, str)
        degree = int(self.order == "linear")
        bandwidth = coding.widths(given) if numbers else given
        folds = folds_of(rows, joined)
        chosen = chosen_bandwidths(joined, bandwidth, self.ridge, self.kernel, degree, folds)
        return self._with(
            rows, joined, ridge_=chosen.ridge,
            bandwidth_=given if numbers else coding.bandwidths(chosen.bandwidth),
            history_=[{"bandwidth": coding.bandwidths(each).tolist(), "error": error} for each, error in chosen.steps],
        )  # fmt: skip

    def _output(self, answer: Array) -> Array:
        shaped = answer[:, 0] if self.y_train_.ndim == 1 else answer
        return shaped.astype(self.X_train_.dtype)

    def _saved_settings(self) -> dict[str, Any]:
        """The settings as JSON has them, of a fitted one those that its answers have."""
        settings = self.get_params()
        settings.pop("periodic_features", None)  # which the columns have
        answering = settings.keys() & {"kernel", "order", "weights"}
        settings |= {name: getattr(self, f"{name}_", settings[name]) for name in answering}
        if not isinstance(settings.get("cv"), Integral | str | None):
            settings["cv"] = type(settings["cv"]).__name__  # which `fit` refuses
        return {
            name: each if isinstance(each, str | None) else np.asarray(each).tolist() for name, each in settings.items()
        }


class NadarayaWatson(KernelRegressor):
    """`KernelRegressor` of the constant order by default: the weighted mean, as the textbook has it.

    Example:
        >>> NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [2.0, 4.0]).predict([[0.5]])
        array([3.])
    """

    def __init__(
        self,
        kernel: Profile = "gaussian",
        *,
        bandwidth: float | ArrayLike | Literal["silverman", "scott", "auto", "loo"] = "auto",
        order: Order = "constant",
        ridge: float | Literal["auto"] = "auto",
        metric: Metric = "diagonal",
        n_components: int | None = None,
        categorical_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
        ordered_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
        periodic_features: Mapping[Any, float] | None = None,
        missing: Literal["refuse", "indicator"] = "refuse",
        cv: object = None,
        weights: Literal["repeats", "precision"] = "repeats",
    ) -> None:
        super().__init__(
            kernel, bandwidth=bandwidth, order=order, ridge=ridge, metric=metric, n_components=n_components,
            categorical_features=categorical_features,
            ordered_features=ordered_features, periodic_features=periodic_features, missing=missing, cv=cv,
            weights=weights,
        )  # fmt: skip
