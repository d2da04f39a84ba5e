"""The scikit-learn estimators `KernelRegressor` and `NadarayaWatson`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Self, get_args, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dikkat.regression import conditional, dask, diagnostics, effects, frames, intervals, validation
from dikkat.regression.bandwidth import Rule, chosen_bandwidths, rough_error
from dikkat.regression.base import KernelModel, make_history
from dikkat.regression.criterion import Searched, folds_of
from dikkat.regression.joined import Array, Joined, Rows
from dikkat.regression.logarithms import with_useful_logarithms
from dikkat.regression.metric import Metric, sample_rows
from dikkat.regression.moments.launch import Profile
from dikkat.regression.shapes import Shapes
from dikkat.regression.validation import Order
from dikkat.regression.verbs import Verbs


class KernelRegressor(RegressorMixin, Verbs, Shapes, KernelModel):  # type: ignore[misc]  # scikit-learn has no types
    r"""Kernel regression: attention pooling over the training rows, with a learned bandwidth.

    $$ \hat y(x) = \frac{\sum_j w_j K(r_j)\, y_j}{\sum_j w_j K(r_j)}, \qquad r_j = \lVert (x - x_j)/\sigma \rVert $$

    is the estimate of order "constant" (Nadaraya and Watson): the weighted mean of the values near x. The estimate of
    order "linear" is the value at x of the line fitted with these weights. It avoids the bias of the weighted mean
    at the border of the data and among unevenly spaced rows, and reproduces straight lines exactly.

    Memory is linear in the rows, and so is the time of a prediction. The time of a search is quadratic; for one feature
    it is linear except for a sort. If that is too slow, search with a sample of the rows and
    `logarithms=None`, and pass its `bandwidth_` and `ridge_`.

    Args:
        kernel: K as a function of the scaled distance r: "gaussian", e^(−r²/2); or "epanechnikov", 1 − r² below 1.
        bandwidth: σ in the units of X: a positive number, or (d,) numbers, one for each feature; "silverman" or
            "scott", rules of thumb from the features' spreads (Epanechnikov's kernel gets the radius with the same
            standard deviation); "auto", the bandwidths with the smallest leave-one-out squared error, with a penalty on
            degrees of freedom (in a crossed design, unless it clearly raises the error); or "loo", without the
            penalty. Copies (rows equal in X and y) are left out together.
            Both searches allow at most 0.8 degrees of freedom per row. The errors of several outputs are averaged.
        order: "constant" or "linear".
        ridge: ρ of the order "linear". The slope of the line is shrunk towards that of a plane through all rows, as by
            ρ more rows with that slope, one bandwidth away (or one standard deviation, if shorter). This matters little
            among many rows. Beyond the data and in gaps, the line continues with the slope of the plane. The plane has
            a step for each level of a category if that predicts rows better. A number of at least 0 (0 is the plain
            local line), or "auto": searched for, from 0.001 on, and 0.25 without a search.
        metric: "diagonal", a bandwidth for each column; or "linear", learned directions with a bandwidth each, for
            effects of sums and differences of columns. "linear" needs a searched bandwidth. A fit takes about four
            times as long as with "diagonal", and up to seven times (25 data sets of the benchmarks). Categories stay as
            they are.
        n_components: Number of directions of a linear metric, at least 1; None for as many as numeric columns.
        categorical_features: Columns of categories without an order: names, positions or a mask; "from_dtype", those of
            a categorical type or with few different texts; or None. Aitchison and Aitken's kernel multiplies the
            weights (only with kernel="gaussian"). A category that was not in `fit` is equally far from every row, and
            dikkat warns.
        ordered_features: Columns of ordered categories, in the same ways. Levels are the numbers that occur, or those
            of the type. Their kernel is Li and Racine's: λ to the power of the steps between two levels.
        periodic_features: Columns of numbers that repeat, with their periods, such as {"hour": 24}. The local line
            has no slope in them. They need kernel="gaussian".
        missing: "refuse", or "indicator": cells of X may be missing. A missing number becomes the median, and an
            additional category after the columns marks it. A missing category is one more level. Rows without y are
            left out.
        cv: For rows that depend on each other: a splitter of scikit-learn's, pairs of indices (learn, test),
            or a number of blocks of consecutive rows, as for a time series. `fit` replaces a generator by its list. The
            search and the errors behind the intervals then predict each row from other folds. With a number, half a
            block on either side of the tested block is left out too. None for independent rows.
        weights: The meaning of `sample_weight`: "repeats", the number of times each row counts; or "precision", 1/σ² of
            known errors up to a factor. With "precision" only ratios of weights matter, each row counts once, and a new
            value of weight w has the variance σ²/w.
        logarithms: "auto": with a searched bandwidth, positive and skewed columns are compared by their logarithm if
            that lowers the criterion of a short search by 3 %. Their bandwidths are those of the logarithm, and a
            number below 0 counts as 0. None: never.
        support: The least and the greatest possible y, such as (0, None) for positive numbers or (0, 1) for shares;
            None for no limit. Predictions, intervals, quantiles and samples are clipped to it.
        verbose: Whether `fit` shows its progress: a bar in a terminal or Jupyter, else a line every 30 s.

    Attributes:
        bandwidth_: (d,), float64: σ of numbers and λ of categories. λ is 0 if only rows of the same category count;
            with (c − 1)/c of c categories, or 1 of ordered ones, the column has no influence. With a metric, σ of each
            direction and then λ of the categories. σ of a constant feature is 10⁶ times its value, at least 10⁶.
            With missing cells, the λ of their indicators come last.
        bandwidth_names_: The feature or direction of each bandwidth.
        ridge_: ρ; 0 for the order "constant".
        kernel_: The `kernel` of `fit`.
        order_: The `order` of `fit`.
        history_: The accepted steps of a search, the start first: {"bandwidth": (d,) list, "error": the criterion,
            which is the leave-one-out mean squared error without a penalty}; empty without a search.
        metric_: (numbers, k), the directions of a metric, by which numbers are multiplied; or None.
        columns_: A `dikkat.regression.columns.Column` for each feature; empty if all are numbers. Dates count in days.
        n_features_in_: d.
        feature_names_in_: (d,), if X was a frame whose columns have names.
        n_outputs_: Number of outputs.
        target_name_: The name of y, or None.
        X_train_: (n, d), in X's float dtype, which results have too. A category is the index of its level.
        y_train_: (n,) or (n, outputs), float64.
        sample_weight_: (n,).
        weights_: The `weights` of `fit`.
        row_labels_: (n,), the index of the frame in `fit`; None for the positions, and in a loaded model.
        folds_: (folds, n), int8, with `cv`: 1 for rows to learn from, 2 for tested rows. Else None.

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
        self, kernel: Profile = "gaussian", *, bandwidth: float | ArrayLike | Rule | Searched = "auto",
        order: Order = "linear", ridge: float | Literal["auto"] = "auto", metric: Metric = "diagonal",
        n_components: int | None = None, categorical_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
        ordered_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
        periodic_features: Mapping[Any, float] | None = None, missing: Literal["refuse", "indicator"] = "refuse",
        cv: object = None, weights: Literal["repeats", "precision"] = "repeats",
        logarithms: Literal["auto"] | None = "auto", support: tuple[float | None, float | None] | None = None,
        verbose: bool = False,
    ) -> None:  # fmt: skip
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
        self.logarithms = logarithms
        self.support = support
        self.verbose = verbose

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Store the training rows and find the bandwidth.

        If this fails or is interrupted, the estimator is unchanged.

        Args:
            X: (n, d), finite numbers; an array or a frame.
            y: (n,) or (n, outputs), finite numbers.
            sample_weight: (n,), at least 0 and not all 0: how often each row counts, or its precision (`weights`); None
                for 1 each.
            groups: (n,), for a `cv` that splits by groups.

        Returns:
            The estimator itself.

        Warns:
            UserWarning: Neighbours along a date or a number have similar errors, or rows are equal or nearly equal in
                X, so that intervals would be too narrow (one output, a searched bandwidth, no `cv`). Weights that count
                repeats sum to more than twice the number of rows, or are not whole numbers.

        Raises:
            ValueError: A setting that is not allowed, or data that do not fit, are not finite or are not numbers.

        Example:
            >>> model = NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [2.0, 4.0], sample_weight=[1, 3])
            >>> model.predict([[0.5]])
            array([3.5])
        """
        self._check_settings()
        X = frames.as_table(X, y, sample_weight=sample_weight, groups=groups)
        validation.check_groups(self, X, groups)
        names = frames.names_of_fit(X, y)
        if self.missing == "indicator":
            X, y, sample_weight, groups, names["row_labels_"] = validation.with_values(
                X, y, sample_weight, groups, names["row_labels_"], self.cv
            )
        return self._fit_in_place(X, y, sample_weight, groups, **names)

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> Array: ...
    @overload
    def predict(self, X: ArrayLike, return_std: Literal[True]) -> tuple[Array, Array]: ...
    @overload
    def predict(self, X: ArrayLike, return_std: bool) -> Array | tuple[Array, Array]: ...
    def predict(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        r"""Return the estimate at each query.

        Args:
            X: (n, d).
            return_std: Whether to also return the standard deviation of a single value around the estimate, from the
                leave-one-out errors of rows near the query; it grows beyond the data. For the error of the estimate see
                `confidence_interval`.

        Returns:
            (n,) or (n, outputs), or the pair (estimate, standard deviation); lazy Dask arrays for a Dask collection.

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
        answer = self._estimate(self._query_cells(X, warns=return_std), return_std)
        return (
            (intervals.clip(self, answer[0]), answer[1]) if isinstance(answer, tuple) else intervals.clip(self, answer)
        )

    def _estimate(self, x: Array, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Return the estimates, and with `return_std` the deviations, at rows like `X_train_`."""
        query, smoother = self._coordinates(x), self._smoother
        mean, is_reached = smoother.estimate(query)
        far_query = query[~is_reached]
        if len(far_query):
            mean[~is_reached] = smoother.nearest(far_query) @ smoother.joined.y + smoother.joined.origin
        if not return_std:
            return self._to_output_shape(mean)
        deviation = np.hypot(self._deviations(x, is_reached)[0], np.sqrt(intervals.added_variance(self, x)))
        return self._to_output_shape(mean), self._to_output_shape(deviation)

    def _deviations(self, x: Array, is_reached: NDArray[np.bool_] | None = None) -> tuple[Array, Array]:
        """Return the deviation of single values, (n, v), and its growth beyond the data for the first output, (n,)."""
        query, smoother = self._coordinates(x), self._smoother
        is_reached = smoother.estimate(query)[1] if is_reached is None else is_reached
        deviation, growth = smoother.deviation(query)
        if len(far_rows := np.flatnonzero(~is_reached)):
            deviation[far_rows], growth[far_rows] = smoother.nearest_deviation(query[far_rows])
        return deviation, growth[:, 0]

    def gradient(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        r"""Return the derivative of the estimate with respect to each number, its marginal effect.

        Args:
            X: (n, d).
            return_std: Whether to return the standard error from the noise in y too, without the bias of smoothing.
                dikkat then warns about rows beyond the data.

        Returns:
            (n, d) or (n, d, outputs), in units of y per unit of X (per day for dates), NaN for categories, for queries
                that no row's kernel reaches, and for a number below 0 in a column compared by its logarithm; or the
                pair (gradient, standard error).

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
        check_is_fitted(self)
        if return_std and self.metric_ is not None:
            raise ValueError("return_std: got True with metric='linear'; expected False, or metric='diagonal'")
        return effects.by_columns(self, self._query_cells(X, warns=return_std), return_std)

    def confidence_interval(self, X: ArrayLike, level: float = 0.95) -> tuple[Array, Array]:
        r"""Return pointwise confidence intervals for the regression function.

        They are centred not on `predict`'s estimate but on a local line with half the bandwidth (half the volume in d
        dimensions). Its bias is small compared with its error, so they cover the function with a probability near
        `level`. The noise is measured by the leave-one-out errors of nearby rows, with Student's quantile of their
        degrees of freedom. With `cv` the intervals are wider if errors of a fold are correlated. Beyond the data they
        grow with the distance.

        Args:
            X: (n, d).
            level: The chance, between 0 and 1, that an interval contains the function's value.

        Returns:
            The lower and the upper ends, each of the shape of `predict`'s answer; infinite if too few rows are near.

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
        return self._interval(self._query_cells(X, warns=True), validation.check_share("level", level, example=0.95))

    def _interval(self, x: Array, level: float = 0.95) -> tuple[Array, Array]:
        confidence, is_reached = self._smoother.confidence(self._coordinates(x))
        error = np.hypot(confidence.error, np.sqrt(intervals.added_variance(self, x)))
        center, half = confidence.center, confidence._replace(error=error).half(level)
        center[~is_reached], half[~is_reached] = 0.0, math.inf
        ends = (intervals.clip(self, end) for end in (center - half, center + half))
        lower, upper = map(self._to_output_shape, ends)
        return lower, upper

    def predict_interval(
        self, X: ArrayLike, coverage: float = 0.9, method: intervals.Method = "jackknife+", random_state: object = 0,
        sample_weight: ArrayLike | None = None, by: ArrayLike | str | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        r"""Return prediction intervals for single new values, from the errors of rows predicted without themselves.

        - "jackknife+": symmetric, with about the same width everywhere. For exchangeable rows it contains at least
          1 − 2(1 − coverage) of the new values on average, and usually about `coverage`. A searched bandwidth depends
          on y a little, so the guarantee is not exact.
        - "local": the quantiles (1 ∓ coverage)/2 of the distribution near the query: wider where y varies more, with as
          many misses above as below. It contains `coverage` in the limit of many rows near each query.
        - "split": one half of the rows is fitted, with its own search, and the errors of the other half give the width.
          For exchangeable rows it contains at least `coverage` on average, for any noise and search. It is wider,
          because it learns from fewer rows, and takes as long as a fit.

        For dependent rows, set `cv` ("jackknife+" is then CV+). The guarantees are averages over queries. Beyond
        the data all intervals grow with the standard deviation that `predict` returns, without a guarantee: dikkat
        warns about rows beyond a column's range by more than a tenth of it.

        Args:
            X: (n, d).
            coverage: The share of new values that the intervals should contain, between 0 and 1.
            method: "jackknife+", "local" or "split".
            random_state: Seed of the halves of "split", as in scikit-learn.
            sample_weight: (n,) or a number: with weights="precision" the precisions of the new values, in the unit of
                `fit`; None for their mean.
            by: With "jackknife+": names or positions of categories. The intervals then contain about `coverage` of
                the new values in each of their levels, if rows are exchangeable, and not only on average.

        Returns:
            The lower and the upper ends, (n,) each, in units of y; infinite with too few rows.

        Raises:
            ValueError: As for `predict`; a coverage that is not between 0 and 1, another method, several targets;
                "split" with `cv`; a `sample_weight` that is not positive, or without weights="precision".

        Warns:
            UserWarning: Ends are beyond 0 (or 1), beyond which no row of `fit` is, and there is no `support`.

        Source: Barber, Candès, Ramdas and Tibshirani 2021; the formulas are in `dikkat.regression.intervals` and
        `dikkat.regression.conditional`.

        Example:
            >>> x = np.linspace(0, 5, 50)
            >>> model = KernelRegressor().fit(x[:, None], np.sin(x) + 0.1 * np.cos(99 * x))
            >>> lower, upper = model.predict_interval([[1.0]])
            >>> (upper - lower).round(1).tolist(), bool(lower[0] < np.sin(1.0) < upper[0])
            ([0.3], True)
        """
        if method not in get_args(intervals.Method):
            raise ValueError(f"method: got {method!r}; expected one of {get_args(intervals.Method)}")
        share = validation.check_share("coverage", coverage)
        x = self._query_cells(X, warns=True)
        weight = validation.check_precisions(self, sample_weight, x)
        if by is None:
            lower, upper = intervals.interval(self, x, share, method, random_state, weight)
        else:
            lower, upper = conditional.interval(self, x, share, method, by, weight)
        if self.support_ is None:
            validation.suggest_support(self, lower, upper)
        return lower.astype(self.X_train_.dtype), upper.astype(self.X_train_.dtype)

    def predict_quantiles(self, X: ArrayLike, q: ArrayLike) -> Array:
        """Return quantiles of a single new value at each query, from the errors of nearby rows.

        They never cross. Their guarantee is that of `predict_interval` with the method "local".

        Args:
            X: (n, d).
            q: (k,) numbers between 0 and 1, in any order.

        Returns:
            (n, k), in units of y, in the order of q; infinite with too few rows.

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
        return intervals.quantiles(self, self._query_cells(X, warns=True), levels).astype(self.X_train_.dtype)

    def sample(self, X: ArrayLike, n_samples: int = 1, random_state: object = None) -> Array:
        """Draw random target values for each query, from the distribution whose quantiles `predict_quantiles` returns.

        Args:
            X: (n, d).
            n_samples: k, the number of values at each query, at least 1.
            random_state: Seed, as in scikit-learn.

        Returns:
            (n, k), in units of y.

        Raises:
            ValueError: As for `predict`; several targets, or fewer than two training rows.

        Example:
            >>> x = np.linspace(0, 5, 50)
            >>> KernelRegressor().fit(x[:, None], np.sin(x)).sample([[1.0], [2.0]], 3, random_state=0).shape
            (2, 3)
        """
        validation.check_count("n_samples", n_samples)
        x, random = self._query_cells(X, warns=True), check_random_state(random_state)
        drawn = intervals.sample(self, x, int(n_samples), random)
        return drawn.astype(self.X_train_.dtype)

    def effective_degrees_of_freedom(self) -> float:
        """Return the trace of the smoother matrix over the training rows.

        Returns:
            A number from 1 (the mean of all rows; 1 + d for a plane) to the number of unique rows. It includes the
            slopes of the plane.

        Source: Hastie, Tibshirani and Friedman 2009, section 5.4.1.

        Example:
            >>> model = NadarayaWatson(bandwidth=0.1).fit([[0.0], [1.0], [5.0]], [1.0, 2.0, 3.0])
            >>> model.effective_degrees_of_freedom()
            3.0
        """
        check_is_fitted(self)
        return self._smoother.trace()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _check_settings(self) -> None:
        validation.check_settings(self)

    def _warn_of_rows(self, weighted: bool) -> None:
        if weighted and self.weights == "repeats":
            validation.warn_of_weights(self.sample_weight_)
        if self.cv is None and self._is_searched:
            diagnostics.warn_of_dependence(self)

    def _fit_copy(self, rows: Rows, **fitted_attributes: Any) -> Self:
        if self.logarithms is not None and self._is_searched and rows.metric is None and not fitted_attributes:

            def error_of(rows: Rows) -> float:
                rows = rows if rows.folds is None else sample_rows(rows)  # without folds `rough_error` samples
                joined, degree = rows.joined(), int(self.order == "linear")
                return rough_error(joined, degree, self.ridge, self.bandwidth, folds_of(rows, joined))

            rows = with_useful_logarithms(rows, error_of)
        return super()._fit_copy(rows, **fitted_attributes)

    @property
    def _is_searched(self) -> bool:
        return isinstance(self.bandwidth, str) and self.bandwidth in get_args(Searched)

    def _may_have_surface(self) -> bool:
        return self._is_searched and self.order == "linear" and self.ridge != 0 and self.metric == "diagonal"

    def _choose_attributes(self, rows: Rows, joined: Joined) -> dict[str, Any]:
        coding, setting = rows.coding, validation.check_bandwidth(self.bandwidth, rows.columns, rows.x.shape[1])
        is_fixed, degree = bool(rows.columns) and not isinstance(setting, str), int(self.order == "linear")
        bandwidth, folds = coding.to_sigma(setting) if is_fixed else setting, folds_of(rows, joined)
        chosen = chosen_bandwidths(joined, bandwidth, self.ridge, self.kernel, degree, folds)
        widths = setting if is_fixed else coding.to_bandwidth(chosen.bandwidth)
        return {"bandwidth_": widths, "ridge_": chosen.ridge, "history_": make_history(coding, chosen.steps)}

    def _to_output_shape(self, answer: Array) -> Array:
        shaped = answer[:, 0] if self.y_train_.ndim == 1 else answer
        return shaped.astype(self.X_train_.dtype)


class NadarayaWatson(KernelRegressor):
    """`KernelRegressor` with the order "constant" by default: the weighted mean, as in the textbook.

    Example:
        >>> NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [2.0, 4.0]).predict([[0.5]])
        array([3.])
    """

    def __init__(
        self, kernel: Profile = "gaussian", *, bandwidth: float | ArrayLike | Rule | Searched = "auto",
        order: Order = "constant", ridge: float | Literal["auto"] = "auto", metric: Metric = "diagonal",
        n_components: int | None = None, categorical_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
        ordered_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
        periodic_features: Mapping[Any, float] | None = None, missing: Literal["refuse", "indicator"] = "refuse",
        cv: object = None, weights: Literal["repeats", "precision"] = "repeats",
        logarithms: Literal["auto"] | None = None, support: tuple[float | None, float | None] | None = None,
        verbose: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            kernel, bandwidth=bandwidth, order=order, ridge=ridge, metric=metric, n_components=n_components,
            categorical_features=categorical_features, ordered_features=ordered_features,
            periodic_features=periodic_features, missing=missing, cv=cv, weights=weights, logarithms=logarithms,
            support=support, verbose=verbose,
        )  # fmt: skip
