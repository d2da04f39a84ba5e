"""The classifier: the shares of the classes among the rows near a query."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from dikkat.regression import frames
from dikkat.regression.bandwidth import Rule
from dikkat.regression.base import KernelModel
from dikkat.regression.joined import Array, Joined, Rows
from dikkat.regression.likelihood import LogLoss, classes_of
from dikkat.regression.logistic import Plane, plane
from dikkat.regression.metric import Metric
from dikkat.regression.moments.launch import Profile
from dikkat.regression.validation import LIKELIHOOD, Order, check_kernel, check_metric, check_name


class KernelClassifier(ClassifierMixin, KernelModel):  # type: ignore[misc]  # scikit-learn has no types
    r"""Classification by attention: the shares of the classes among the rows near a query, with a learned bandwidth.

    $$ p_c(x) = \frac{\sum_{j \in c} w_j K(r_j) + \alpha\,\pi_c}{\sum_j w_j K(r_j) + \alpha},
    \qquad r_j = \lVert (x - x_j)/\sigma \rVert $$

    with $\pi$ the probabilities of a plane of log-odds through all rows. If the plane fits, the nearby rows change them
    little; far from all rows they are the answer. Weights of rows count as repeats.

    Args:
        kernel: "gaussian" or "epanechnikov", as in `KernelRegressor`.
        bandwidth: σ in the units of X: "auto", for each feature the bandwidth with the least leave-one-out log-loss,
            with the penalty of `KernelRegressor` on degrees of freedom; "silverman" or "scott", rules of thumb; or a
            positive number, or (d,) numbers.
        order: "linear", with π from a plane of log-odds (logistic regression); or "constant", with the shares of the
            classes among all rows plus one additional row of each class.
        prior: α, the number of rows that π counts as: a positive number; or "auto", found together with the
            bandwidth, and 1 if the bandwidth is fixed.
        metric: "diagonal" or "linear", as in `KernelRegressor`.
        n_components: The number of directions of a linear metric; None for as many as numeric columns.
        categorical_features: Columns of categories, as in `KernelRegressor`.
        ordered_features: Columns of ordered categories, as in `KernelRegressor`.
        periodic_features: Columns of periodic numbers, as in `KernelRegressor`.

    Attributes:
        classes_: (C,), sorted.
        bandwidth_: (d,), σ of numbers and λ of categories.
        prior_: α.
        class_prior_: (C,), π for the order "constant".
        history_: The accepted steps of a search: {"bandwidth": (d,) list, "error": the penalised log-loss}.
        metric_: (numbers, k), the directions of a linear metric, else None.
        columns_: The kind of each column; empty if all are numbers.
        n_features_in_: d.
        feature_names_in_: (d,), if X was a frame with column names.
        X_train_: (n, d), with the index of the level for a category.
        y_train_: (n, C), 1 for the class of each row and 0 elsewhere.
        sample_weight_: (n,).

    Source: Li and Racine 2007, chapter 5; the criterion is in `dikkat.regression.likelihood`.

    Example:
        >>> x = [[0.0], [0.5], [1.0], [3.0], [3.5], [4.0]]
        >>> model = KernelClassifier().fit(x, ["low", "low", "low", "high", "high", "high"])
        >>> model.predict([[0.8], [3.2]]).tolist()
        ['low', 'high']
    """

    def __init__(
        self, kernel: Profile = "gaussian", *, bandwidth: float | ArrayLike | Rule | Literal["auto"] = "auto",
        order: Order = "linear", prior: float | Literal["auto"] = "auto", metric: Metric = "diagonal",
        n_components: int | None = None, categorical_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
        ordered_features: ArrayLike | Literal["from_dtype"] | None = "from_dtype",
        periodic_features: Mapping[Any, float] | None = None,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.order = order
        self.prior = prior
        self.metric = metric
        self.n_components = n_components
        self.categorical_features = categorical_features
        self.ordered_features = ordered_features
        self.periodic_features = periodic_features

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Store the training rows, and find the bandwidth and the prior.

        If this fails or is interrupted, the estimator is unchanged.

        Args:
            X: (n, d), finite numbers, or a frame.
            y: (n,), the class of each row.
            sample_weight: (n,), at least 0 and not all 0; None for 1 each.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If a setting is not allowed, data do not fit, or y has no classes.
        """
        check_kernel(self.kernel, self.bandwidth, LIKELIHOOD)
        check_name("order", self.order, get_args(Order))
        check_metric(self.metric, self.n_components, self.bandwidth)
        is_number = isinstance(self.prior, Real) and not isinstance(self.prior, bool) and 0 < float(self.prior) < np.inf
        if not (is_number or (isinstance(self.prior, str) and self.prior == "auto")):
            raise ValueError(
                f"prior: got {self.prior!r}; expected 'auto' or a positive number (how many rows the prior counts as)"
            )
        X = frames.as_table(X, y, sample_weight=sample_weight)
        if y is None:
            return self._fit_in_place(X, None, sample_weight)
        labels = column_or_1d(y, warn=True)
        if labels.dtype == object and (missing := [row for row, value in enumerate(labels.tolist()) if value is None]):
            raise ValueError(f"y: got None in row {missing[0]}; expected a class for each row")
        assert_all_finite(labels, input_name="y", estimator_name=type(self).__name__)
        check_classification_targets(labels)
        classes, label = np.unique(labels, return_inverse=True)
        return self._fit_in_place(X, np.eye(len(classes))[label], sample_weight, classes_=classes)

    def _choose_attributes(self, rows: Rows, joined: Joined) -> dict[str, Any]:
        fixed_prior = None if self.prior == "auto" else float(self.prior)
        several_classes, fitted_plane = len(self.classes_) > 1, None

        def make_criterion(sample: Joined) -> LogLoss:
            known = None if fitted_plane is None else fitted_plane[1] if sample is joined else _plane(sample)[1]
            return LogLoss(sample, fixed_prior, known)

        if self.order == "linear" and several_classes:
            fitted_plane = _plane(joined)
        attributes, alpha = self._choose_bandwidths(rows, joined, make_criterion if several_classes else None)
        class_weight = rows.weight.astype(np.float64) @ rows.y + 1
        plane_of_all = None if fitted_plane is None else fitted_plane[0]
        prior = alpha if fixed_prior is None else fixed_prior
        return attributes | {"prior_": prior, "class_prior_": class_weight / class_weight.sum(), "_plane": plane_of_all}

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return the probability of each class at each query.

        Args:
            X: (n, d).

        Returns:
            (n, C), in the order of `classes_`; they sum to 1.

        Raises:
            ValueError: If the features are not those of `fit`, or data are not finite.

        Example:
            >>> model = KernelClassifier(bandwidth=1.0, prior=1.0).fit([[0.0], [4.0]], ["a", "b"])
            >>> model.predict_proba([[0.0], [2.0]]).round(2)
            array([[0.75, 0.25],
                   [0.5 , 0.5 ]])
        """
        query = self._query_coordinates(X)
        prior = self.class_prior_[None] if self._plane is None else self._plane.shares(query)
        shares = self._smoother.shares(query, self.prior_, prior).clip(0)
        return np.asarray((shares / shares.sum(1, keepdims=True)).astype(self.X_train_.dtype))

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Return the logarithms of `predict_proba`.

        Args:
            X: (n, d).

        Returns:
            (n, C).
        """
        return np.asarray(np.log(self.predict_proba(X)))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable class at each query.

        Args:
            X: (n, d).

        Returns:
            (n,), from `classes_`.
        """
        best = self.predict_proba(X).argmax(1)
        result: NDArray[Any] = self.classes_[best]
        return result


def _plane(joined: Joined) -> tuple[Plane, Array]:
    """Return the plane of log-odds, and the probability of each row's class by the plane without that row."""
    rows = joined.rows()
    return plane(joined.x[rows.unique], classes_of(joined, rows), rows.weight, joined.y.shape[1])
