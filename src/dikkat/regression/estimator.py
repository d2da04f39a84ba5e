"""The estimator: scikit-learn's interface over `Smoother`."""

from __future__ import annotations

import math
import os
from numbers import Integral, Real
from typing import Any, Literal, Self, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dikkat.errors import InputError
from dikkat.regression import collections, effects, files
from dikkat.regression.bandwidth import choose
from dikkat.regression.coding import Coding
from dikkat.regression.factors import factors_of
from dikkat.regression.joined import Array, Joined, join
from dikkat.regression.local import Setting
from dikkat.regression.moments import Profile
from dikkat.regression.rows import Rows, checked_query, checked_rows
from dikkat.regression.smoother import Smoother
from dikkat.regression.validation import (
    Neighbors,
    Order,
    check_count,
    check_device,
    check_neighbors,
    check_settings,
    checked_bandwidth,
)


class NadarayaWatson(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""Kernel regression: attention pooling over the training rows, with a bandwidth that is found from them.

    $$ \hat y(x) = \frac{\sum_j w_j K(r_j)\, y_j}{\sum_j w_j K(r_j)}, \qquad r_j = \lVert (x - x_j)/\sigma \rVert $$

    is the estimate of order "constant" (Nadaraya and Watson's): the weighted mean of the values about x. That of order
    "linear" is the height at x of the line fitted under the same weights: it has no bias at the border of the data, nor
    where they lie unevenly, and gives straight lines back exactly.

    Weights of rows count as repeats: a row of weight 2 is two rows, and one of weight 0 is none. Memory is linear in
    the rows, time for a prediction as well; time for a search is quadratic, and for one feature without `neighbors`
    linear but for a sort. Where that is too much, give a number: it may be the `bandwidth_` that was found for a part
    of the rows.

    Args:
        kernel: K as a function of the scaled distance r: "gaussian", e^(−r²/2); or "epanechnikov", 1 − r² below 1.
        bandwidth: σ in the units of X: a positive number, or (d,) numbers, one for each feature; "silverman" or
            "scott", rules of thumb from the features' spreads (a kernel that ends gets the radius with which its
            standard deviation is that of the rules' Gaussian); "loo": for each feature the one with the least
            leave-one-out squared error, where copies, rows equal in X and y, are left out together; "aic", with
            the least corrected AIC instead; or "loo-1se": the simplest, with few
            features and wide bandwidths, whose leave-one-out error is at most one standard error above the least. Over
            several outputs that is the mean error: outputs of different units should be brought to one.
        order: "constant" or "linear".
        ridge: Of the order "linear", ρ: how many rows' worth of doubt there is that there is a slope. It is as if so
            many more rows at each query, one bandwidth off (or one standard deviation of the feature, where that is
            shorter), said that the slope is 0: among many rows it changes little, beyond the data and in gaps the line
            becomes the mean of the nearest rows. A number of at least 0, where 0 is the plain local line; or "auto":
            with a bandwidth that is searched for the one that the search finds, from 0.001 on, and 0.25 otherwise.
        neighbors: k, at least 2, for bandwidths that are wider where rows are sparse: at a query σ times the distance
            of its k-th nearest row, in standard deviations of the numbers, over the geometric mean of that distance
            over all rows; none is wider than the widest at a row. Rows with the same numbers count as one; categories
            keep their λ. None for the same bandwidths everywhere; or "auto", with a bandwidth that is searched for, to
            find by the same criterion whether None or one of four k is best, which takes five times as long: with
            "loo-1se" a k has to be better by more than a standard error.
        device: Where to compute, as PyTorch names it: "cpu", "cuda" or "cuda:1".
        categorical_features: Which columns hold categories without an order: names, places or a mask of columns;
            "from_dtype", those of a frame whose type is one of categories; or None. Their kernel is Aitchison and
            Aitken's, a factor of the weights; only beside the Gaussian. A category that was not there in `fit` is as
            far from every row, which is warned of.
        ordered_features: Which columns hold ordered categories, likewise; with "from_dtype" those whose type has an
            order. Levels are the numbers that occur, or what the type says. Their kernel is Li and Racine's, λ to the
            power of the steps between two levels.

    Attributes:
        bandwidth_: (d,), float64: σ, with `neighbors` that of a typical row; of a category λ. λ is 0 where only rows of
            the same category count, and (c − 1)/c of c categories, or 1 of ordered ones, where the column counts for
            nothing. Of a constant feature, found by a rule or a search, so wide that the feature does not count: 10⁶
            times its value, or 10⁶ where that is below 1.
        ridge_: ρ, for the order "linear"; 0 for "constant".
        neighbors_: k, or None.
        kernel_: The kernel that answers: what `kernel` was in `fit`.
        order_: The order that answers: what `order` was in `fit`.
        history_: The accepted steps of a search, the start first: {"bandwidth": (d,) list, "error": the criterion, for
            "loo" and "loo-1se" the leave-one-out mean squared error}, of which the last may be larger; empty otherwise,
            and where there is nothing to choose by.
        columns_: What each column is, a `dikkat.regression.columns.Column`, where not all are numbers. Columns of dates
            in frames count as days since the first one.
        n_features_in_: d.
        feature_names_in_: (d,), where X was a frame whose columns have names.
        n_outputs_: Number of outputs.
        target_name_: The name of y, where it is a column that has one; otherwise None.
        X_train_: (n, d), the training rows, float32 if they were given so and float64 otherwise; as are all answers. Of
            a category the place of each cell among the column's levels.
        y_train_: (n,) or (n, outputs), as y was given; float64.
        sample_weight_: (n,).

    Source: Nadaraya 1964; Watson 1964; the linear order and its bias: Fan 1992; the bandwidth: Li and Racine 2007,
    section 2.2.2.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(0, 5, 50)
        >>> model = NadarayaWatson(order="linear").fit(x[:, None], 2 * np.sin(x) + x**0.8)
        >>> model.predict([[1.0], [2.5]]).round(2)
        array([2.68, 3.28])
    """

    def __init__(
        self,
        kernel: Profile = "gaussian",
        *,
        bandwidth: float | ArrayLike | Literal["silverman", "scott", "loo", "loo-1se", "aic"] = "loo-1se",
        order: Order = "constant",
        ridge: float | Literal["auto"] = "auto",
        neighbors: Neighbors = None,
        device: str = "cpu",
        categorical_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
        ordered_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.order = order
        self.ridge = ridge
        self.neighbors = neighbors
        self.device = device
        self.categorical_features = categorical_features
        self.ordered_features = ordered_features

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Keep the training rows and find the bandwidth.

        Where that fails or is interrupted, the estimator is as it was: not fitted, or with the whole of its old model.

        Args:
            X: (n, d), finite numbers; an array or a frame.
            y: (n,) or (n, outputs), finite numbers.
            sample_weight: (n,), at least 0 and not all 0: how often each row counts; None for once.

        Returns:
            The estimator itself.

        Raises:
            ValueError: A setting that is not allowed, or data that do not fit, are not finite or are not numbers.

        Example:
            >>> model = NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [2.0, 4.0], sample_weight=[1, 3])
            >>> model.predict([[0.5]])
            array([3.5])
        """
        return self._learn(X, y, sample_weight, reset=True)

    def partial_fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Add training rows: the result is that of `fit` to all rows there have been.

        The bandwidth is found anew, from all rows. Where many parts come, give it as a number. Where it fails or is
        interrupted, no row was added: it may be called again with the same rows.

        Args:
            X: (n, d), as for `fit`.
            y: (n,) or (n, outputs), as it was before.
            sample_weight: (n,), or None.

        Returns:
            The estimator itself.

        Raises:
            ValueError: As for `fit`; other features or outputs than before.

        Example:
            >>> model = NadarayaWatson(bandwidth=1.0).fit([[0.0]], [2.0]).partial_fit([[1.0]], [4.0])
            >>> model.predict([[0.5]])
            array([3.])
        """
        return self._learn(X, y, sample_weight, reset=not hasattr(self, "X_train_"))

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
                far the function may go on from there. How far the estimate itself is off is
                `confidence_band`'s to say.

        Returns:
            (n,) or (n, outputs), as y was given; or the pair (estimate, standard deviation). Of a Dask collection
                Dask arrays, still to be made.

        Raises:
            ValueError: Other features than in `fit`, or data that are not finite.

        Example:
            >>> NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [2.0, 4.0]).predict([[0.5]], return_std=True)
            (array([3.]), array([2.]))
        """
        if collections.is_dask(X):
            check_is_fitted(self)
            found: Array | tuple[Array, Array] = collections.predict(self, X, return_std)
            return found
        return self._answer(self._query(X), return_std)

    def _answer(self, query: Array, return_std: bool = False) -> Array | tuple[Array, Array]:
        """The estimates, and as asked for the deviations, at queries in coordinates."""
        smoother = self._current()
        if not return_std:
            mean, reached = smoother.estimate(query)
            if not reached.all():
                mean[~reached], _ = smoother.nearest_spread(query[~reached], False)
            return self._output(mean)
        mean, deviation, reached = smoother.spread(query)
        if not reached.all():
            mean[~reached], deviation[~reached] = smoother.nearest_spread(query[~reached], True)
        return self._output(mean), self._output(deviation)

    def attention_weights(self, X: ArrayLike, top_k: int | None = None) -> Array | csr_array:
        """The attention of each query to each training row: the kernel's weights, which sum to 1.

        For the order "constant", the weights times `y_train_` are the estimate.

        Args:
            X: (n, d).
            top_k: How many of the largest weights to keep in each row; None for all.

        Returns:
            (n, m), the training rows in the order in which they were given, those of weight 0 with 0; with `top_k` a
            `scipy.sparse.csr_array`, for which all weights exist for some rows at a time only. A query out of reach has
            the weights of the nearest row.

        Raises:
            ValueError: As for `predict`; a `top_k` that is not a whole number of at least 1.

        Example:
            >>> model = NadarayaWatson("epanechnikov", bandwidth=2.0).fit([[0.0], [1.0], [5.0]], [1.0, 2.0, 3.0])
            >>> model.attention_weights([[0.5], [0.0]])
            array([[0.5       , 0.5       , 0.        ],
                   [0.57142857, 0.42857143, 0.        ]])
        """
        check_count("top_k", top_k)
        query = self._query(X)
        return self._current().attention(query, self.sample_weight_, top_k)

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
            >>> model = NadarayaWatson(bandwidth=0.3, order="linear", ridge=0).fit(x[:, None], 3 * x)
            >>> model.gradient([[1.0], [2.5]]).round(6)
            array([[3.],
                   [3.]])
        """
        query = self._query(X)
        smoother, size = self._current(), len(self.bandwidth_)
        slope, norm = effects.gradient(smoother, query)
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
            >>> x = np.linspace(0, 5, 50)
            >>> model = NadarayaWatson(bandwidth=0.4).fit(x[:, None], np.sin(x) + 0.1 * np.cos(99 * x))
            >>> lower, upper = model.confidence_band([[1.0], [7.0]])
            >>> (lower[0] < np.sin(1.0) < upper[0]).item(), (upper - lower).round(1).tolist()
            (True, [0.2, 8.2])
        """
        if not (isinstance(level, Real) and 0 < level < 1):
            raise ValueError(f"level: got {level!r}; expected a number between 0 and 1, such as 0.95")
        return self._interval(self._query(X), float(level))

    def _interval(self, query: Array, level: float = 0.95) -> tuple[Array, Array]:
        """The ends of the confidence band at queries in coordinates."""
        band, reached = self._current().band(query)
        center, half = band.center, band.half(level)
        if not reached.all():
            center[~reached], _ = self._current().nearest_spread(query[~reached], False)
            half[~reached] = math.inf
        return self._output(center - half), self._output(center + half)

    def effective_neighbors(self, X: ArrayLike) -> Array:
        r"""The number of training rows that have a say at each query: $(\sum_j w_j K_j)^2 / \sum_j w_j K_j^2$.

        Args:
            X: (n, d).

        Returns:
            (n,): between 1 and the number of rows, where these have weight 1. Out of reach, the nearest ones count.

        Raises:
            ValueError: As for `predict`.

        Source: Kish 1965, chapter 11, of weights.

        Example:
            >>> model = NadarayaWatson("epanechnikov", bandwidth=1.5).fit([[0.0], [1.0], [5.0]], [1, 2, 3])
            >>> model.effective_neighbors([[0.5]])
            array([2.])
        """
        query, smoother = self._query(X), self._current()
        count = smoother.neighbors(query)
        lost = count == 0
        if lost.any():
            count[lost] = (smoother.nearest(query[lost]) > 0) @ smoother.joined.weight
        return count.astype(self.X_train_.dtype)

    def effective_degrees_of_freedom(self) -> float:
        """The trace of the smoother matrix over the training rows.

        Returns:
            From 1 (the mean of all; for the order "linear" 1 + d, a plane through all) to the number of places.

        Source: Hastie, Tibshirani and Friedman 2009, section 5.4.1.

        Example:
            >>> model = NadarayaWatson(bandwidth=0.1).fit([[0.0], [1.0], [5.0]], [1.0, 2.0, 3.0])
            >>> model.effective_degrees_of_freedom()
            3.0
        """
        check_is_fitted(self)
        return self._current().trace()

    def log_density(self, X: ArrayLike) -> Array:
        r"""The logarithm of the kernel density of the training rows at each query.

        $$ \log \frac{1}{\sum_j w_j} \sum_j w_j \frac{k_d}{\prod_c \sigma_c} K(\lVert (x - x_j)/\sigma \rVert) , $$

        the log-sum-exp of the attention, with $k_d$ such that K integrates to 1 over d dimensions: $(2\pi)^{-d/2}$ for
        the Gaussian, and $(d + 2)/(2 V_d)$ for Epanechnikov's with $V_d$ the volume of the unit ball. Beside categories
        it is the density of the numbers times the probability of the categories: Aitchison and Aitken's kernel is 1 − λ
        for the same one. With `neighbors` σ is that at x, and the integral not quite 1.

        Args:
            X: (n, d).

        Returns:
            (n,); −∞ where no row reaches and of a category that was not there in `fit`, which has no probability.

        Raises:
            ValueError: As for `predict`; ordered features.

        Source: Silverman 1986, section 4.2.

        Example:
            >>> NadarayaWatson("epanechnikov", bandwidth=2.0).fit([[0.0], [1.0]], [0, 0]).log_density([[0.5]])
            array([-1.04536777])
        """
        query, smoother = self._query(X), self._current()
        if any(column.kind == "ordered" for column in self.columns_):
            raise ValueError("ordered_features: got some, whose kernel does not sum to 1; expected none for a density")
        own = [-np.log1p(-self.bandwidth_[j]) for j, column in enumerate(self.columns_) if column.coded]
        density: Array = smoother.log_density(query) - sum(own)
        return density.astype(self.X_train_.dtype)

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
        self._check_settings(saved=True)
        names = getattr(self, "feature_names_in_", None)
        rows = (self.X_train_, self.y_train_, self.sample_weight_, self.bandwidth_)
        files.write(
            path,
            files.Saved(
                self._saved_settings(),
                *rows,
                None if names is None else list(names),
                self.history_,
                self.ridge_,
                self.columns_,
                self.target_name_,
                self.neighbors_,
            ),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load an estimator that `save` wrote, after checking everything in the file.

        Args:
            path: The file.

        Returns:
            An estimator of the class that `load` was called on. It answers as the one that was saved, and goes on with
            `partial_fit`. It computes on the CPU, since the device on which it was fitted may not be here;
            `set_params(device=...)` moves it.

        Raises:
            InputError: A `ValueError`: the file is damaged, not of this kind, or of another version; what it holds does
                not fit together.
            OSError: The system could not read.
        """
        saved = files.read(path, cls()._saved_settings())
        model = cls(**saved.settings)
        try:
            model._check_settings()
        except ValueError as error:
            raise InputError(f"{path}: {error}") from error
        if saved.feature_names is not None:
            model.feature_names_in_ = np.array(saved.feature_names, dtype=object)
        model.n_features_in_ = saved.x.shape[1]
        model._take(Rows(saved.x, saved.y, saved.weight, saved.columns))
        model.target_name_ = saved.target
        model.bandwidth_, model.history_, model.ridge_ = saved.bandwidth, saved.history, saved.ridge
        model.neighbors_, joined = saved.neighbors, model._joined()
        try:
            check_neighbors(saved.neighbors, joined)
        except ValueError as error:
            raise InputError(f"{path}: {error}") from error
        model._smooth(joined)
        return model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_smoother", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "X_train_"):
            self._smooth(self._joined())

    def _learn(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, reset: bool) -> Self:
        """Learn from these rows, with `reset` from them alone; in one step, which an interrupt comes before or after.

        All is learned by another object with the same settings, whose attributes this one takes.
        """
        self._check_settings()
        other = object.__new__(type(self))
        other.__dict__ = dict(vars(self))
        name = getattr(y, "name", None)
        other.target_name_ = name if isinstance(name, str) else None
        before = None if reset else Rows(self.X_train_, self.y_train_, self.sample_weight_, self.columns_)
        other._take(checked_rows(other, X, y, sample_weight, before))
        if self.neighbors is not None:
            check_neighbors(self.neighbors, other._joined())
        other._choose()
        self.__dict__ = other.__dict__
        return self

    def _take(self, rows: Rows) -> None:
        """Take these as the training rows, under the settings of now."""
        self.X_train_, self.y_train_, self.sample_weight_, self.columns_ = rows
        self.kernel_, self.order_ = self.kernel, self.order
        self.n_outputs_ = 1 if self.y_train_.ndim == 1 else self.y_train_.shape[1]

    def _choose(self) -> None:
        """Find bandwidth and ridge for the training rows."""
        joined, coding = self._joined(), self._coding()
        asked = checked_bandwidth(self.bandwidth, self.columns_)
        numbers = bool(self.columns_) and not isinstance(asked, str)
        found = choose(
            joined,
            coding.widths(asked) if numbers else asked,
            self.ridge,
            self.kernel,
            int(self.order == "linear"),
            torch.device(self.device),
            self.neighbors,
        )
        self.bandwidth_, self.ridge_ = asked if numbers else coding.bandwidths(found.bandwidth), found.ridge
        self.neighbors_ = None if found.neighbors is None else int(found.neighbors)
        self.history_ = [{"bandwidth": coding.bandwidths(each).tolist(), "error": error} for each, error in found.steps]
        self._smooth(joined)

    def _coding(self) -> Coding:
        return Coding(self.columns_, self.X_train_.shape[1])

    def _at(self, x: Array) -> Array:
        """Rows such as `X_train_` as queries in coordinates."""
        return self._coding().coordinates(x.astype(self.X_train_.dtype))

    def _joined(self) -> Joined:
        coding, y = self._coding(), self.y_train_.reshape(len(self.y_train_), -1)
        x = coding.coordinates(self.X_train_)
        return join(x, y, self.sample_weight_, coding.feature, coding.numbers, coding.center().astype(x.dtype))

    def _smooth(self, joined: Joined) -> None:
        """Build what answers, and is kept in no file, for the settings of now."""
        degree, factors = int(self.order_ == "linear"), factors_of(joined, self.neighbors_)
        device, sigma = torch.device(self.device), self._coding().widths(self.bandwidth_)[joined.feature]
        self._smoother = Smoother(Setting(joined, self.kernel_, degree, sigma, self.ridge_, device, factors))

    def _current(self) -> Smoother:
        """The smoother, on the device of now, which may change after `fit`."""
        if torch.device(self.device) != self._smoother.device:
            self._smooth(self._smoother.joined)
        return self._smoother

    def _query(self, X: ArrayLike) -> Array:
        """Queries in coordinates."""
        check_is_fitted(self)
        self._check_settings()
        return self._coding().coordinates(checked_query(self, X))

    def _output(self, found: Array) -> Array:
        shaped = found[:, 0] if self.y_train_.ndim == 1 else found
        return shaped.astype(self.X_train_.dtype)

    def _check_settings(self, saved: bool = False) -> None:
        """All settings; with `saved` those that a file holds."""
        check_settings(self.kernel, self.bandwidth, self.order, self.ridge, self.neighbors)
        if not saved:
            check_device(self.device)

    def _saved_settings(self) -> dict[str, Any]:
        """The settings as JSON has them, of a fitted one those that its answers have; not the device."""
        settings: dict[str, Any] = self.get_params()
        settings.pop("device", None)  # of the machine
        settings |= {name: getattr(self, f"{name}_", settings[name]) for name in ("kernel", "order")}
        if not isinstance(settings.get("ridge", ""), str):  # a derived class may do without
            settings["ridge"] = float(settings["ridge"])
        if isinstance(settings.get("neighbors"), Integral):
            settings["neighbors"] = int(settings["neighbors"])
        if not isinstance(settings["bandwidth"], str):
            settings["bandwidth"] = np.asarray(settings["bandwidth"], np.float64).tolist()
        for name in ("categorical_features", "ordered_features"):
            if not isinstance(settings.get(name), str | None):
                settings[name] = np.asarray(settings[name]).tolist()
        return settings
