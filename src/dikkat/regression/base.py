"""The base class of the estimators: training rows, a bandwidth, and the attention of queries to the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from copy import deepcopy
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import _get_feature_names, check_array, check_is_fitted, validate_data

from dikkat.errors import InputError
from dikkat.regression import files, frames, validation
from dikkat.regression.bandwidth import fixed_bandwidths, rule_of_thumb
from dikkat.regression.columns import Column, encode_cells, refill_cells, warn_of_unseen
from dikkat.regression.criterion import Criterion, Membership, folds_of, membership
from dikkat.regression.joined import Array, Coding, Joined, Rows, largest_rate
from dikkat.regression.likelihood import search_likelihood
from dikkat.regression.logarithms import without_logarithms
from dikkat.regression.metric import Metric, directions, sample_rows
from dikkat.regression.moments.launch import Profile
from dikkat.regression.progress import working
from dikkat.regression.smoother import Smoother
from dikkat.regression.surfaces import second_order

# The attributes that make up `Rows`.
_ROW_ATTRIBUTES = ("X_train_", "y_train_", "sample_weight_", "columns_", "metric_", "folds_", "weights_", "surface_")


class KernelModel(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Training rows and a bandwidth.

    `fit` of a subclass calls `_fit_in_place`, which calls `_fit_copy`, which calls the subclass's `_choose_attributes`
    and `_make_smoother`. The class attributes below are defaults for settings that a subclass lacks.
    """

    kernel: Profile
    bandwidth: Any
    order: str = "constant"
    metric: Metric = "diagonal"
    n_components: int | None = None
    periodic_features: Mapping[Any, float] | None = None
    missing: str = "refuse"
    weights: str = "repeats"
    support: tuple[float | None, float | None] | None = None
    cv: object = None
    verbose: bool = False
    X_train_: Array
    y_train_: Array
    sample_weight_: Array
    columns_: tuple[Column, ...]
    metric_: Array | None
    bandwidth_: Array
    kernel_: Profile
    order_: str
    missing_: str
    support_: tuple[float | None, float | None] | None
    ridge_: float = 0.0
    history_: list[dict[str, Any]]
    folds_: Membership | None = None
    weights_: str = "repeats"
    surface_: Array | None = None
    _fit_settings: dict[str, Any]
    _smoother: Smoother

    def _fit_in_place(
        self, X: ArrayLike, y: ArrayLike | None, sample_weight: ArrayLike | None, groups: ArrayLike | None = None,
        warns: bool = True, **settings: Any,
    ) -> Self:  # fmt: skip
        """Fit a new object with `settings` as attributes, and take over its attributes.

        They are replaced in one step, so that an interrupt changes nothing. Only a generator in `cv`, which can be read
        once, becomes a list first.
        """
        if isinstance(self.cv, Iterator):
            self.cv = list(self.cv)
        model = object.__new__(type(self))
        model.__dict__ = vars(self) | settings
        rows = validation.check_rows(model, X, y, sample_weight)
        if self.cv is not None:
            rows = rows._replace(folds=membership(validation.split(model, rows, groups), len(rows.x)))
        with working("finding the bandwidth", None, len(rows.x) ** 2) if self.verbose else nullcontext():
            fitted = model._fit_copy(rows)
        if warns:
            fitted._warn_of_rows(sample_weight is not None)
        self.__dict__ = fitted.__dict__
        return self

    def _fit_copy(self, rows: Rows, **fitted_attributes: Any) -> Self:
        """Return another estimator with these settings, fitted to rows.

        With `fitted_attributes`, such as those of a saved model, it gets these and there is no search.
        """
        must_learn_metric = self.metric == "linear" and rows.metric is None and rows.coding.num_numeric > 0
        if must_learn_metric and not fitted_attributes:

            def fit_sample(sample: Rows) -> tuple[Smoother, float]:
                sample_model = self._fit_copy(sample)  # `directions` sets the sample's metric
                return sample_model._smoother, sample_model.history_[-1]["error"] if sample_model.history_ else np.inf

            rows = rows._replace(metric=directions(sample_rows(rows), self.n_components, fit_sample))
        if not fitted_attributes and self._may_have_surface():
            rows = rows._replace(surface=second_order(rows))
        joined, outputs = rows.joined(), 1 if rows.y.ndim == 1 else rows.y.shape[1]
        model = object.__new__(type(self))
        model.__dict__ = vars(self) | dict(zip(_ROW_ATTRIBUTES, rows, strict=True))
        model.__dict__ |= {f"{name}_": getattr(self, name) for name in files.ANSWER_SETTINGS}
        model.__dict__ |= {"n_outputs_": outputs, "_fit_settings": _copy_settings(self)}
        model.__dict__ |= fitted_attributes or self._choose_attributes(rows, joined)
        model._smoother = model._make_smoother(joined)
        return model

    def _refit(self, rows: Rows) -> Self:
        """Return an estimator with the settings of `fit` (and the classes), and the rest learned from `rows`."""
        x, columns = refill_cells(rows.x, rows.columns, rows.weight)
        rows = rows._replace(x=x, columns=without_logarithms(columns), metric=None, surface=None)
        return self._unfitted()._fit_copy(rows)

    def _unfitted(self) -> Self:
        """Return an estimator with the settings of `fit`, whatever `set_params` changed since, and the classes."""
        model: Self = clone(self).set_params(**self._fit_settings)
        if hasattr(self, "classes_"):
            model.classes_ = self.classes_
        return model

    def _choose_attributes(self, rows: Rows, joined: Joined) -> dict[str, Any]:
        """Hook: return the attributes that a fit chooses: the bandwidths and the path of their search."""
        raise NotImplementedError

    def _may_have_surface(self) -> bool:
        """Hook: return True if lines may be shrunk to a surface of second order."""
        return False

    def _saved_attributes(self) -> dict[str, Any]:
        """Hook: return further fitted attributes to save, as JSON values."""
        return {}

    def _loaded_attributes(self, rows: Rows, saved: dict[str, Any]) -> dict[str, Any]:
        """Hook: return fitted attributes from the saved ones, after checking them."""
        return {}

    def _warn_of_rows(self, weighted: bool) -> None:
        """Hook: warn about data for which intervals are wrong."""

    def _choose_bandwidths(
        self,
        rows: Rows,
        joined: Joined,
        make_criterion: Callable[[Joined], Criterion] | None,
        share: float | None = 1.0,
    ) -> tuple[dict[str, Any], float]:
        """Return the attributes of `_choose_attributes`, and the weight α of a classifier's prior.

        The bandwidths come from the setting, a rule of thumb or, with `make_criterion`, a search for the least
        criterion (`dikkat.regression.likelihood`).
        """
        coding, bandwidth = rows.coding, validation.check_bandwidth(self.bandwidth, rows.columns, rows.x.shape[1])
        alpha, steps = 1.0, list[tuple[Array, float]]()
        if not isinstance(bandwidth, str):
            sigma = fixed_bandwidths(joined, coding.to_sigma(bandwidth) if rows.columns else bandwidth, self.kernel)
        elif bandwidth == "auto" and make_criterion is not None and len(joined.x) > 1:
            sigma, alpha, steps = search_likelihood(make_criterion, joined, self.kernel, share)
        else:
            sigma = rule_of_thumb(joined, "scott" if bandwidth == "scott" else "silverman", self.kernel)
        return {"bandwidth_": coding.to_bandwidth(sigma), "history_": make_history(coding, steps)}, alpha

    def attention_weights(self, X: ArrayLike, top_k: int | None = None) -> Array | csr_array:
        """Return the attention weights of each query over the training rows: the kernel's weights, which sum to 1.

        For the order "constant", the weights times `y_train_` are the estimate.

        Args:
            X: (n, d).
            top_k: How many of the largest weights to keep in each row; None for all.

        Returns:
            (n, m), with the training rows in the order of `fit` and 0 for rows of weight 0. With `top_k` a
            `scipy.sparse.csr_array`, which is computed for some queries at a time to save memory. A query that no row's
            kernel reaches has the weights of the nearest row.

        Raises:
            ValueError: As for `predict`; a `top_k` that is not a whole number of at least 1.

        Example:
            >>> from dikkat.regression import NadarayaWatson
            >>> model = NadarayaWatson("epanechnikov", bandwidth=2.0).fit([[0.0], [1.0], [5.0]], [1.0, 2.0, 3.0])
            >>> model.attention_weights([[0.5], [0.0]])
            array([[0.5       , 0.5       , 0.        ],
                   [0.57142857, 0.42857143, 0.        ]])
        """
        validation.check_count("top_k", top_k, or_none=", or None for all")
        query = self._query_coordinates(X)
        return self._smoother.attention(query, self.sample_weight_, top_k)

    def effective_neighbors(self, X: ArrayLike) -> Array:
        r"""Return the effective number of training rows at each query: $(\sum_j w_j K_j)^2 / \sum_j w_j K_j^2$.

        Args:
            X: (n, d).

        Returns:
            (n,): between 1 and the number of rows, if all have weight 1. For a query that no row's kernel reaches, the
            number of nearest rows.

        Raises:
            ValueError: As for `predict`.

        Source: Kish 1965, chapter 11 (the effective sample size of weighted rows).

        Example:
            >>> from dikkat.regression import NadarayaWatson
            >>> model = NadarayaWatson("epanechnikov", bandwidth=1.5).fit([[0.0], [1.0], [5.0]], [1, 2, 3])
            >>> model.effective_neighbors([[0.5]])
            array([2.])
        """
        query, smoother = self._query_coordinates(X), self._smoother
        count = smoother.neighbors(query)
        isolated = count == 0
        if isolated.any():
            count[isolated] = (smoother.nearest(query[isolated]) > 0) @ smoother.joined.weight
        return count.astype(self.X_train_.dtype)

    def log_density(self, X: ArrayLike) -> Array:
        r"""Return the logarithm of the kernel density of the training rows at each query.

        $$ \log \frac{1}{\sum_j w_j} \sum_j w_j \frac{k_d}{\prod_c \sigma_c} K(\lVert (x - x_j)/\sigma \rVert) , $$

        the log-sum-exp of the attention, with $k_d$ such that K integrates to 1 over d dimensions: $(2\pi)^{-d/2}$ for
        the Gaussian, and $(d + 2)/(2 V_d)$ for Epanechnikov's with $V_d$ the volume of the unit ball. With categories
        it is the density of the numbers times the probability of the categories: Aitchison and Aitken's kernel is 1 − λ
        for equal categories. With a metric M the density of x is the density of x M, times |det M|.

        Args:
            X: (n, d).

        Returns:
            (n,); −∞ for a query that no row's kernel reaches, or with a category unseen in `fit`, which has no
            probability.

        Raises:
            ValueError: As for `predict`; ordered or periodic features; a metric with fewer directions than numeric
                columns.

        Source: Silverman 1986, section 4.2.

        Example:
            >>> from dikkat.regression import NadarayaWatson
            >>> NadarayaWatson("epanechnikov", bandwidth=2.0).fit([[0.0], [1.0]], [0, 0]).log_density([[0.5]])
            array([-1.04536777])
        """
        cells, smoother = self._query_cells(X), self._smoother
        query = self._coordinates(cells)
        if any(column.kind in ("ordered", "periodic") for column in self.columns_):
            raise ValueError("X: got ordered or periodic features, whose kernels do not sum to 1; expected none")
        density: Array = smoother.log_density(query)
        coding, categories = self._rows.coding, [column for column in self.columns_ if column.coded]
        for rate, column in zip(self.bandwidth_[coding.order[coding.num_numeric :]], categories, strict=True):
            density += np.log1p(-min(rate, largest_rate(column)))  # a fixed λ may be larger
        if self.metric_ is not None:
            square = len(self.metric_) == coding.num_numeric
            sign, volume = np.linalg.slogdet(self.metric_) if square else (0.0, 0.0)
            if sign == 0:
                raise ValueError(
                    f"metric: got {coding.num_numeric} directions of {len(self.metric_)} numeric columns; expected, "
                    "for a density, as many directions as columns and no constant column"
                )
            density += volume
        with np.errstate(divide="ignore"):  # a number below 0 in a column of logarithms
            density += np.log(coding.slopes(cells)).sum(1)
        return density.astype(self.X_train_.dtype)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__() | {"_version": files.VERSION}
        state.pop("_smoother", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        version = state.pop("_version", None)
        if version != files.VERSION:
            raise InputError(
                f"pickle: got a {type(self).__name__} of another version of dikkat (format {version}); expected format "
                f"{files.VERSION}: fit again"
            )
        super().__setstate__(state)
        if hasattr(self, "X_train_"):
            self._smoother = self._make_smoother(self._rows.joined())

    @property
    def _rows(self) -> Rows:
        return Rows(*(getattr(self, name) for name in _ROW_ATTRIBUTES))

    def _make_smoother(self, joined: Joined) -> Smoother:
        """Return the smoother of the fitted attributes; it is not pickled."""
        sigma = self._rows.coding.to_sigma(self.bandwidth_)[joined.feature_of]
        degree = int(self.order_ == "linear")
        return Smoother(joined, self.kernel_, degree, sigma, self.ridge_, folds_of(self._rows, joined))

    def _coordinates(self, x: Array) -> Array:
        """Convert rows in the form of `X_train_` to coordinates."""
        return self._rows.coding.coordinates(x)

    def _query_coordinates(self, X: ArrayLike) -> Array:
        """Check queries X and convert them to coordinates."""
        return self._coordinates(self._query_cells(X))

    def _query_cells(self, X: ArrayLike, warns: bool = False) -> Array:
        """Check queries X and convert them to the form of `X_train_`; `warns`: warn about queries beyond the data."""
        check_is_fitted(self)
        X = frames.select_columns(X, getattr(self, "feature_names_in_", None), self.n_features_in_)
        columns, dtype, X = self.columns_, self.X_train_.dtype, validation.fill_masked(X)
        with np.errstate(over="ignore", invalid="ignore"), validation.naming_missing_cells(self, X, self.missing_):
            if columns:
                validate_data(self, X, skip_check_array=True, reset=False)
                names = _get_feature_names(X)
                cells = encode_cells(X, columns, names)
                # A numeric column has `levels` if it had missing cells in fit.
                may_miss = [column.kind in ("number", "date", "category") and bool(column.levels) for column in columns]
                missing = np.isnan(cells) & may_miss & (self.missing_ == "indicator")
                query: Array = check_array(
                    np.where(missing, 0.0, cells), dtype=validation.DTYPES, estimator=self, input_name="X"
                )
                query[missing] = np.nan
                warn_of_unseen(query, columns, names)
                query[missing & [column.is_category for column in columns]] = -1  # as an unseen category
            else:
                query = validate_data(self, X, dtype=validation.DTYPES, reset=False)
        if query.dtype != dtype:
            validation.check_size("X", np.nan_to_num(query), float(np.finfo(dtype).max), dtype)
        if warns:
            validation.warn_of_extrapolation(self, query)
        return np.ascontiguousarray(query, dtype)


def _copy_settings(model: KernelModel) -> dict[str, Any]:
    """Return the settings, with copies of lists, mappings and arrays, which their owner may change."""
    settings: dict[str, Any] = model.get_params(deep=False)
    return {
        name: deepcopy(value) if isinstance(value, list | dict | np.ndarray) else value
        for name, value in settings.items()
    }


def make_history(coding: Coding, steps: list[tuple[Array, float]]) -> list[dict[str, Any]]:
    """Convert the (σ of each feature, error) steps of a bandwidth search to entries of the `history_` attribute."""
    return [{"bandwidth": coding.to_bandwidth(sigma).tolist(), "error": error} for sigma, error in steps]
