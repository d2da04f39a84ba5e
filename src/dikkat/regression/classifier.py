"""The classifier: the shares of the classes about a query."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from dikkat.regression.bandwidth import Rule
from dikkat.regression.base import KernelModel, check_at_hand
from dikkat.regression.joined import Array, Joined, Rows
from dikkat.regression.likelihood import LogLoss, classes_of
from dikkat.regression.logistic import Plane, plane
from dikkat.regression.metric import Metric
from dikkat.regression.moments.launch import Profile
from dikkat.regression.validation import LIKELIHOOD, Order, check_kernel, check_metric, check_name


class KernelClassifier(ClassifierMixin, KernelModel):  # type: ignore[misc]  # scikit-learn has no types
    r"""Classification by attention: the shares of the classes among the rows about a query, with a learned bandwidth.

    $$ p_c(x) = \frac{\sum_{j \in c} w_j K(r_j) + \alpha\,\pi_c}{\sum_j w_j K(r_j) + \alpha},
    \qquad r_j = \lVert (x - x_j)/\sigma \rVert $$

    with $\pi$ what a plane of log-odds through all rows says: where that is right, the rows nearby change little of it,
    and far from all rows it is the answer. Weights of rows count as repeats.

    Args:
        kernel: "gaussian" or "epanechnikov", as of `KernelRegressor`.
        bandwidth: σ in the units of X: "auto", for each feature the one with the least leave-one-out log-loss, with the
            same penalty on degrees of freedom as `KernelRegressor`'s; "silverman" or "scott", rules of thumb; or a
            positive number, or (d,) numbers.
        order: "linear", with π from a plane of log-odds (logistic regression); or "constant", with the shares of the
            classes among all rows, each class counted once more.
        prior: α, how many rows' worth π counts: a positive number; or "auto", with a
            bandwidth that is searched for the one that the search finds, and 1 otherwise.
        metric: "diagonal" or "linear", as of `KernelRegressor`.
        n_components: How many directions of a linear metric there are; None for as many as columns of numbers.
        categorical_features: Columns of categories, as of `KernelRegressor`.
        ordered_features: Columns of ordered categories, as of `KernelRegressor`.
        periodic_features: Columns of numbers that come round, as of `KernelRegressor`.

    Attributes:
        classes_: (C,), sorted.
        bandwidth_: (d,), σ of numbers and λ of categories.
        prior_: α.
        class_prior_: (C,), π of the order "constant".
        history_: The accepted steps of a search: {"bandwidth": (d,) list, "error": the penalised log-loss}.
        metric_: (numbers, k), with a metric the directions. Else None.
        columns_: What each column is, where not all are numbers.
        n_features_in_: d.
        feature_names_in_: (d,), where X was a frame whose columns have names.
        X_train_: (n, d), of a category the index of each cell's level.
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
        """Keep the training rows, and find the bandwidth and the prior.

        Where that fails or is interrupted, the estimator is as it was.

        Args:
            X: (n, d), finite numbers, or a frame.
            y: (n,), the class of each row.
            sample_weight: (n,), at least 0 and not all 0; None for once each.

        Returns:
            The estimator itself.

        Raises:
            ValueError: A setting that is not allowed, data that do not fit, y that is no class.
        """
        check_kernel(self.kernel, self.bandwidth, LIKELIHOOD)
        check_name("order", self.order, get_args(Order))
        check_metric(self.metric, self.n_components, self.bandwidth)
        number = isinstance(self.prior, Real) and not isinstance(self.prior, bool) and 0 < float(self.prior) < np.inf
        if not (number or (isinstance(self.prior, str) and self.prior == "auto")):
            raise ValueError(f"prior: got {self.prior!r}; expected a positive number of rows, or 'auto'")
        check_at_hand(X=X, y=y, sample_weight=sample_weight)
        if y is None:
            return self._learn(X, None, sample_weight)
        labels = column_or_1d(y, warn=True)
        if labels.dtype == object and (lost := [row for row, each in enumerate(labels.tolist()) if each is None]):
            raise ValueError(f"y: got None in row {lost[0]}; expected a class for each row")
        assert_all_finite(labels, input_name="y", estimator_name=type(self).__name__)
        check_classification_targets(labels)
        classes, label = np.unique(labels, return_inverse=True)
        return self._learn(X, np.eye(len(classes))[label], sample_weight, classes_=classes)

    def _found(self, rows: Rows, joined: Joined) -> dict[str, Any]:
        given = None if self.prior == "auto" else float(self.prior)
        several, own = len(self.classes_) > 1, None

        def make(part: Joined) -> LogLoss:
            known = None if own is None else own[1] if part is joined else _plane(part)[1]
            return LogLoss(part, given, known)

        if self.order == "linear" and several:
            own = _plane(joined)
        attributes, doubt = self._by_likelihood(rows, joined, make if several else None)
        mass = rows.weight.astype(np.float64) @ rows.y + 1
        plane_of_all = None if own is None else own[0]
        prior = doubt if given is None else given
        return attributes | {"prior_": prior, "class_prior_": mass / mass.sum(), "_plane": plane_of_all}

    def predict_proba(self, X: ArrayLike) -> Array:
        """The probability of each class at each query.

        Args:
            X: (n, d).

        Returns:
            (n, C), in the order of `classes_`; they sum to 1.

        Raises:
            ValueError: Other features than in `fit`, or data that are not finite.

        Example:
            >>> model = KernelClassifier(bandwidth=1.0, prior=1.0).fit([[0.0], [4.0]], ["a", "b"])
            >>> model.predict_proba([[0.0], [2.0]]).round(2)
            array([[0.75, 0.25],
                   [0.5 , 0.5 ]])
        """
        query = self._query(X)
        prior = self.class_prior_[None] if self._plane is None else self._plane.shares(query)
        shares = self._smoother.shares(query, self.prior_, prior).clip(0)
        return np.asarray((shares / shares.sum(1, keepdims=True)).astype(self.X_train_.dtype))

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """The logarithms of `predict_proba`.

        Args:
            X: (n, d).

        Returns:
            (n, C).
        """
        return np.asarray(np.log(self.predict_proba(X)))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class at each query.

        Args:
            X: (n, d).

        Returns:
            (n,), of `classes_`.
        """
        best = self.predict_proba(X).argmax(1)
        result: NDArray[Any] = self.classes_[best]
        return result


def _plane(joined: Joined) -> tuple[Plane, Array]:
    """The plane through joined rows, and the probabilities of their classes without them."""
    rows = joined.rows()
    return plane(joined.x[rows.unique], classes_of(joined, rows), rows.weight, joined.y.shape[1])
