"""The estimator: scikit-learn's interface over `Smoother`."""

from __future__ import annotations

import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from typing import Any, Literal, Self, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from dikkat.errors import InputError
from dikkat.regression import collections, files
from dikkat.regression.bandwidth import choose
from dikkat.regression.coding import Coding
from dikkat.regression.factors import factors_of
from dikkat.regression.held_out import LeftOut, folds_of, judged, nothing
from dikkat.regression.joined import Array, Joined, join
from dikkat.regression.local import Setting
from dikkat.regression.looking import Looking
from dikkat.regression.moments import Profile
from dikkat.regression.progress import Working
from dikkat.regression.rows import Rows, checked_query, checked_rows, complete_pairs
from dikkat.regression.smoother import Smoother
from dikkat.regression.validation import (
    Missing,
    Neighbors,
    Order,
    OutOfReach,
    check_device,
    check_neighbors,
    check_settings,
    checked_bandwidth,
    checked_folds,
)


class NadarayaWatson(Looking, RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
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
        kernel: K as a function of the scaled distance r: "gaussian", e^(−r²/2); "epanechnikov", 1 − r² below 1;
            "triangular", 1 − r below 1; "boxcar", 1 up to 1; "average", 1 everywhere, which has no bandwidth.
        bandwidth: σ in the units of X: a positive number, or (d,) numbers, one for each feature; "silverman" or
            "scott", rules of thumb from the features' spreads (a kernel that ends gets the radius with which its
            standard deviation is that of the rules' Gaussian); "loo": for each feature the one with the least
            leave-one-out squared error, where copies, rows equal in X and y, are left out together; "aic" and "gcv",
            with the least corrected AIC or generalised cross-validation instead; or "loo-1se": the simplest, with few
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
        tolerance: The share of a query's weight that may be left out, at least 0 and below 1: far blocks of rows are
            skipped where they weigh less together. 0 leaves out what is 0 in the dtype.
        out_of_reach: What a query gets that no training row reaches, where the kernel is 0 from some distance on:
            "nan", with a warning, or "nearest", the answer of the nearest row in the scaled distance. To `score` and
            `score_` a query without an answer counts as answered with the mean of the training rows, as in a search.
            The Gaussian kernel reaches everywhere: far from all rows the nearest has all the weight.
        device: Where to compute, as PyTorch names it: "cpu", "cuda" or "cuda:1".
        categorical_features: Which columns hold categories without an order: names, places or a mask of columns;
            "from_dtype", those of a frame whose type is one of categories; or None. Their kernel is Aitchison and
            Aitken's, a factor of the weights; only beside the Gaussian. A category that was not there in `fit` is as
            far from every row, which is warned of.
        ordered_features: Which columns hold ordered categories, likewise; with "from_dtype" those whose type has an
            order. Levels are the numbers that occur, or what the type says. Their kernel is Li and Racine's, λ to the
            power of the steps between two levels.
        missing: What is done with rows that lack a cell of X or y: "refuse", an error; or "drop", `fit` leaves them
            out, and answers to such rows of X are NaN, with a warning.
        nested_score: Whether `fit` measures `score_` too: True for five folds, or the number of folds. Each takes about
            as long as the rest of the fit.
        verbose: Whether what takes long (`fit`, `predict`, `confidence_band`, and of `dikkat.regression` `hold_out` and
            `significance`) shows on standard error how far it is: a bar on a terminal, elsewhere a line every half a
            minute.

    Attributes:
        bandwidth_: (d,), float64: σ, with `neighbors` that of a typical row; of a category λ; infinite for the kernel
            "average". λ is 0 where only rows of the same category count, and (c − 1)/c of c categories, or 1 of
            ordered ones, where the column counts for nothing. Of a constant feature, found by a rule or a search, so
            wide that the feature does not count: 10⁶ times its value, or 10⁶ where that is below 1.
        ridge_: ρ, for the order "linear"; 0 for "constant".
        neighbors_: k, or None.
        kernel_: The kernel that answers: what `kernel` was in `fit`.
        order_: The order that answers: what `order` was in `fit`.
        history_: The accepted steps of a search, the start first: {"bandwidth": (d,) list, "error": the criterion, for
            "loo" and "loo-1se" the leave-one-out mean squared error}, of which the last may be larger; empty otherwise,
            and where there is nothing to choose by.
        score_: With `nested_score`, R² on rows that were held out: each fold is predicted by a model of the other folds
            alone, for which bandwidth and ridge are found anew. 0 is as good as the mean; of several outputs the mean.
            That is the accuracy to expect on new rows, which `history_` is not. It is kept in no file.
        columns_: What each column is, a `dikkat.regression.columns.Column`, where not all are numbers. Columns of dates
            in frames count as days since the first one.
        n_dropped_: How many rows lacked cells and were left out.
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
        bandwidth: float | ArrayLike | Literal["silverman", "scott", "loo", "loo-1se", "aic", "gcv"] = "loo-1se",
        order: Order = "constant",
        ridge: float | Literal["auto"] = "auto",
        neighbors: Neighbors = None,
        tolerance: float = 0.0,
        out_of_reach: OutOfReach = "nan",
        device: str = "cpu",
        categorical_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
        ordered_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
        missing: Missing = "refuse",
        nested_score: bool | int = False,
        verbose: bool | int = False,
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.order = order
        self.ridge = ridge
        self.neighbors = neighbors
        self.tolerance = tolerance
        self.out_of_reach = out_of_reach
        self.device = device
        self.categorical_features = categorical_features
        self.ordered_features = ordered_features
        self.missing = missing
        self.nested_score = nested_score
        self.verbose = verbose

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
        query, missing = self._query(X)
        with self._bar("predicting"):
            return self._answer(query, missing, return_std)

    def _answer(
        self, query: Array, missing: NDArray[np.bool_], return_std: bool = False, scored: bool = False
    ) -> Array | tuple[Array, Array]:
        """The same of queries in coordinates; if they are `scored`, out of reach the mean of the training rows."""
        smoother = self._current()
        if return_std:
            mean, deviation, reached = smoother.spread(query)
        else:
            mean, reached = smoother.estimate(query)
            deviation = np.empty_like(mean)
        if not reached.all():
            mean[~reached], deviation[~reached] = self._nearest(query, ~reached, return_std, scored)
        mean[missing] = deviation[missing] = np.nan
        return (self._output(mean), self._output(deviation)) if return_std else self._output(mean)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        r"""R², $1 - \sum_i w_i (y_i - \hat y_i)^2 / \sum_i w_i (y_i - \bar y)^2$, the mean over the outputs.

        Args:
            X: (n, d).
            y: (n,) or (n, outputs), what should have been predicted.
            sample_weight: (n,), or None.

        Returns:
            1 for perfect predictions, 0 for those of the mean.

        A row that no training row reaches, which `predict` answers with NaN, counts as answered with the mean of the
        training rows, with a warning: not to answer is no better than to know nothing. With `missing="drop"` rows that
        lack a cell of X or y are left out; `predict`'s warning counts those of X.

        Raises:
            ValueError: As for `predict`; no row that lacks nothing.

        Example:
            >>> model = NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0]], [2.0, 4.0])
            >>> round(model.score([[0.5], [9.0], [-9.0]], [3.0, 4.0, 2.0]), 2)
            1.0
        """
        query, missing = self._query(X)
        predicted = np.asarray(self._answer(query, missing, scored=True))
        if self.missing == "drop":
            predicted, y, sample_weight = complete_pairs(predicted, y, sample_weight, missing)
        return float(r2_score(y, predicted, sample_weight=sample_weight))

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
                self.n_dropped_,
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
        model._take(Rows(saved.x, saved.y, saved.weight, saved.columns, saved.dropped))
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
        tags.input_tags.allow_nan = self.missing == "drop"
        tags.regressor_tags.poor_score = self.kernel == "average" and self.order == "constant"  # it is the mean
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
        before = (
            None if reset else Rows(self.X_train_, self.y_train_, self.sample_weight_, self.columns_, self.n_dropped_)
        )
        other._take(checked_rows(other, X, y, sample_weight, before))
        other._check_neighbors()
        with other._bar("finding the bandwidth"):
            other._choose()
        other.__dict__.pop("score_", None)
        if folds := checked_folds(self.nested_score):
            with other._bar(f"holding out {folds} folds"):
                other.score_ = other._hold_out(folds).r2
        self.__dict__ = other.__dict__
        return self

    def _take(self, rows: Rows) -> None:
        """Take these as the training rows, under the settings of now."""
        self.X_train_, self.y_train_, self.sample_weight_, self.columns_, self.n_dropped_ = rows
        self.kernel_, self.order_ = self.kernel, self.order
        self.n_outputs_ = 1 if self.y_train_.ndim == 1 else self.y_train_.shape[1]

    def _hold_out(self, folds: int) -> LeftOut:
        """Predict each training row by a model of the other folds, for which everything is chosen anew.

        A search does not start from what was found for all rows: that has seen those that are held out, and keeps what
        it has followed of their noise. Of noise in 8 columns that made the score higher by 0.2 to 0.3.
        """
        x, y, weight, joined = self.X_train_, self.y_train_, self.sample_weight_, self._joined()
        if joined.rows_apart == 1:
            return nothing(y)
        predicted, fold = np.full(y.shape, np.nan), folds_of(joined, y, weight, folds)
        settings = {**self.get_params(), "kernel": self.kernel_, "order": self.order_, "verbose": False}
        for each in range(fold.max() + 1):
            out, rest = fold == each, (fold != each) & (fold >= 0)
            other = NadarayaWatson(**{name: settings[name] for name in NadarayaWatson().get_params()})
            other._take(Rows(x[rest], y[rest], weight[rest], self.columns_, 0))
            other._choose()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of rows out of reach
                predicted[out] = other._answer(*other._at(x[out]), scored=True)
        return judged(predicted, y, weight, joined)

    def _bar(self, name: str) -> AbstractContextManager[None]:
        """Within, it is shown how far the work is, if that is asked for."""
        return Working(name, None, len(self.X_train_) ** 2).shown() if self.verbose else nullcontext()

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

    def _at(self, x: Array) -> tuple[Array, NDArray[np.bool_]]:
        """Rows such as `X_train_` as queries in coordinates, which lack no cells."""
        return self._coding().coordinates(x.astype(self.X_train_.dtype)), np.zeros(len(x), dtype=bool)

    def _joined(self) -> Joined:
        coding, y = self._coding(), self.y_train_.reshape(len(self.y_train_), -1)
        x = coding.coordinates(self.X_train_)
        return join(x, y, self.sample_weight_, coding.feature, coding.numbers, coding.center().astype(x.dtype))

    def _smooth(self, joined: Joined) -> None:
        """Build what answers, and is kept in no file, for the settings of now."""
        degree, device = int(self.order_ == "linear"), torch.device(self.device)
        sigma = self._coding().widths(self.bandwidth_)[joined.feature]
        how = self.kernel_, degree, sigma, self.ridge_, float(self.tolerance), device
        self._smoother = Smoother(Setting(joined, *how, factors_of(joined, self.neighbors_)))

    def _current(self) -> Smoother:
        """The smoother, with the settings that may change after `fit` as they are now."""
        old = self._smoother
        if (float(self.tolerance), torch.device(self.device)) != (old.tolerance, old.device):
            self._smooth(old.joined)
        return self._smoother

    def _query(self, X: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
        """Queries in coordinates, and which of them lack cells."""
        check_is_fitted(self)
        self._check_settings()
        query, missing = checked_query(self, X)
        return self._coding().coordinates(query), missing

    def _output(self, found: Array) -> Array:
        shaped = found[:, 0] if self.y_train_.ndim == 1 else found
        return shaped.astype(self.X_train_.dtype)

    def _answers_lost(self) -> bool:
        """Whether a query with no weight gets the nearest row's answer: two kernels have a weight everywhere."""
        return self.kernel_ in ("gaussian", "average") or self.out_of_reach == "nearest"

    def _nearest(
        self, query: Array, lost: NDArray[np.bool_], deviates: bool = False, scored: bool = False
    ) -> tuple[Array, Array]:
        """Mean and deviation for the queries that have no weight: the nearest rows', or after a warning NaN.

        Where they are `scored`, the mean of the training rows instead.
        """
        if self._answers_lost():
            return self._current().nearest_spread(query[lost], deviates)
        get = "count as answered with the mean of y" if scored else "get NaN"
        warnings.warn(
            f"{lost.sum()} of {len(lost)} rows of X have no training row in reach of the {self.kernel_} kernel and "
            f"{get}; choose a wider bandwidth, the Gaussian kernel or out_of_reach='nearest'",
            UserWarning,
            stacklevel=4,
        )
        unknown = np.full((int(lost.sum()), self.n_outputs_), np.nan)
        if scored:
            return np.broadcast_to(self._current().joined.mean(), unknown.shape), unknown
        return unknown, unknown

    def _check_settings(self, saved: bool = False) -> None:
        """All settings; with `saved` those that a file holds."""
        check_settings(
            self.kernel,
            self.bandwidth,
            self.order,
            self.ridge,
            self.tolerance,
            self.out_of_reach,
            self.missing,
            self.neighbors,
        )
        if not saved:
            check_device(self.device)
            checked_folds(self.nested_score)

    def _check_neighbors(self) -> None:
        """Whether there are so many rows as neighbours."""
        if self.neighbors is not None:
            check_neighbors(self.neighbors, self._joined())

    def _saved_settings(self) -> dict[str, Any]:
        """The settings as JSON has them, of a fitted one those that its answers have; not the device."""
        settings: dict[str, Any] = self.get_params()
        for name in ("device", "nested_score", "verbose"):  # of the machine and of the moment
            settings.pop(name, None)
        settings |= {name: getattr(self, f"{name}_", settings[name]) for name in ("kernel", "order")}
        settings["tolerance"] = float(settings["tolerance"])
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
