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

from dikkat.regression import frames, validation
from dikkat.regression.bandwidth import Rule
from dikkat.regression.base import KernelModel
from dikkat.regression.columns import is_missing
from dikkat.regression.criterion import Criterion, folds_of
from dikkat.regression.joined import Array, Joined, Rows
from dikkat.regression.likelihood import FoldLogLoss, LogLoss, classes_of
from dikkat.regression.logistic import Plane, plane
from dikkat.regression.metric import Metric
from dikkat.regression.moments.launch import Profile
from dikkat.regression.validation import LIKELIHOOD, Order, check_kernel, check_metric, check_name
from dikkat.regression.verbs import Verbs

_MANY_CLASSES = 20  # from which classes of fewer than two rows on average are an error


class KernelClassifier(ClassifierMixin, Verbs, KernelModel):  # type: ignore[misc]  # scikit-learn has no types
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
        missing: "refuse", or "indicator" for missing cells of X, as in `KernelRegressor`.
        cv: For rows that depend on each other, as in `KernelRegressor`: the search then predicts rows from other folds.
        verbose: Whether `fit` shows its progress.

    Attributes:
        classes_: (C,), sorted.
        bandwidth_: (d,), σ of numbers and λ of categories.
        prior_: α.
        class_prior_: (C,), π for the order "constant".
        history_: The accepted steps of a search: {"bandwidth": (d,) list, "error": the penalised log-loss, or with
            `cv` the log-loss}.
        folds_: (folds, n), int8, with `cv`, as in `KernelRegressor`.
        metric_: (numbers, k), the directions of a linear metric, else None.
        columns_: The kind of each column; empty if all are numbers.
        n_features_in_: d.
        feature_names_in_: (d,), if X was a frame with column names.
        X_train_: (n, d), with the index of the level for a category.
        y_train_: (n, C), 1 for the class of each row and 0 elsewhere.
        sample_weight_: (n,).
        target_name_: The name of y, or None.
        row_labels_: (n,), the index of the frame in `fit`, or None.

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
        periodic_features: Mapping[Any, float] | None = None, missing: Literal["refuse", "indicator"] = "refuse",
        cv: object = None, verbose: bool = False,
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
        self.missing = missing
        self.cv = cv
        self.verbose = verbose

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Self:
        """Store the training rows, and find the bandwidth and the prior.

        If this fails or is interrupted, the estimator is unchanged.

        Args:
            X: (n, d), finite numbers, or a frame.
            y: (n,), the class of each row.
            sample_weight: (n,), at least 0 and not all 0; None for 1 each.
            groups: (n,), for a `cv` that splits by groups.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If a setting is not allowed, data do not fit, y has no classes, or more than 20 classes with
                fewer than two rows on average.
        """
        self._check_settings()
        X = frames.as_table(X, y, sample_weight=sample_weight, groups=groups)
        validation.check_groups(self, X, groups)
        if y is None:
            return self._fit_in_place(X, None, sample_weight)
        labels = column_or_1d(y, warn=True)
        if labels.dtype == object and (gaps := [row for row, value in enumerate(labels.tolist()) if is_missing(value)]):
            raise ValueError(f"y: got {labels[gaps[0]]} in row {gaps[0]}; expected a class for each row")
        assert_all_finite(labels, input_name="y", estimator_name=type(self).__name__)
        count, has_fractions = len(set(labels.tolist())), labels.dtype.kind == "f" and (labels % 1).any()
        if count > _MANY_CLASSES and 2 * count > len(labels) and not has_fractions:  # scikit-learn refuses fractions
            hint = "; for numbers use KernelRegressor" if labels.dtype.kind in "iuf" else ""
            raise ValueError(
                f"y: got {count} classes in {len(labels)} rows; expected several rows of each class, or rare classes "
                f"merged into one{hint}"
            )
        check_classification_targets(labels)
        classes, label = np.unique(labels, return_inverse=True)
        names = frames.names_of_fit(X, y)
        return self._fit_in_place(X, np.eye(len(classes))[label], sample_weight, groups, classes_=classes, **names)

    def _check_settings(self) -> None:
        check_kernel(self.kernel, self.bandwidth, LIKELIHOOD)
        check_name("order", self.order, get_args(Order))
        check_name("missing", self.missing, ("refuse", "indicator"))
        check_metric(self.metric, self.n_components, self.bandwidth)
        is_number = isinstance(self.prior, Real) and not isinstance(self.prior, bool) and 0 < float(self.prior) < np.inf
        if not (is_number or (isinstance(self.prior, str) and self.prior == "auto")):
            raise ValueError(
                f"prior: got {self.prior!r}; expected 'auto' or a positive number (how many rows the prior counts as)"
            )

    def _choose_attributes(self, rows: Rows, joined: Joined) -> dict[str, Any]:
        fixed_prior = None if self.prior == "auto" else float(self.prior)
        several_classes, fitted_plane = len(self.classes_) > 1, None

        folds = folds_of(rows, joined)

        def make_criterion(sample: Joined) -> Criterion:
            if folds is not None:
                return FoldLogLoss(joined, folds, fixed_prior, self.order == "linear")
            known = None if fitted_plane is None else fitted_plane[1] if sample is joined else _plane(sample)[1]
            return LogLoss(sample, fixed_prior, known)

        if self.order == "linear" and several_classes:
            fitted_plane = _plane(joined)
        make, share = make_criterion if several_classes else None, 1.0 if folds is None else None
        attributes, alpha = self._choose_bandwidths(rows, joined, make, share)
        plane_of_all = None if fitted_plane is None else fitted_plane[0]
        prior = alpha if fixed_prior is None else fixed_prior
        return attributes | {"prior_": prior, "class_prior_": _class_prior(rows), "_plane": plane_of_all}

    def _saved_attributes(self) -> dict[str, Any]:
        labels = self.classes_.astype(str) if self.classes_.dtype.kind == "M" else self.classes_
        return {"classes": labels.tolist(), "label_type": self.classes_.dtype.str, "prior": float(self.prior_)}

    def _loaded_attributes(self, rows: Rows, saved: dict[str, Any]) -> dict[str, Any]:
        classes: Any = saved.get("classes")
        prior = saved.get("prior")
        are_labels = isinstance(classes, list) and all(isinstance(label, str | int | float) for label in classes)
        if not are_labels or rows.y.shape[1:] != (len(classes),) or not np.isin(rows.y, (0, 1)).all():
            raise ValueError(f"classes: got {classes!r}; expected a text or number for each column of y_train_")
        if not isinstance(prior, float) or not 0 <= prior < np.inf:
            raise ValueError(f"prior: got {prior!r}; expected a number of at least 0")
        try:
            self.classes_ = np.array(classes).astype(saved["label_type"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"label_type: got {saved.get('label_type')!r}; expected a dtype of the classes") from error
        plane_of_all = _plane(rows.joined())[0] if self.order == "linear" and len(classes) > 1 else None
        return {"prior_": prior, "class_prior_": _class_prior(rows), "_plane": plane_of_all}

    def _estimate(self, x: Array) -> Array:
        """Return the probabilities (n, C) at rows like `X_train_`."""
        query = self._coordinates(x)
        prior = self.class_prior_[None] if self._plane is None else self._plane.shares(query)
        shares = self._smoother.shares(query, self.prior_, prior).clip(0)
        return np.asarray((shares / shares.sum(1, keepdims=True)).astype(self.X_train_.dtype))

    def _left_out_shares(self) -> Array:
        """Return the probability of each training row's class by the other rows, or by those of its folds, (n,).

        It is NaN for a row of weight 0, and for a row that no fold tests.
        """
        joined = self._smoother.joined
        if (folds := self._smoother.folds) is not None:
            by_folds = FoldLogLoss(joined, folds, self.prior_, self.order_ == "linear")
            by_folds.profile = self.kernel_
            return by_folds.tested(self._smoother.log_bandwidth)
        criterion = LogLoss(joined, self.prior_, None if self._plane is None else _plane(joined)[1])
        criterion.profile = self.kernel_
        shares, rows = criterion.left_out(self._smoother.log_bandwidth), joined.rows()
        single, by_unique = len(rows.unique) - len(joined.repeats.unique), np.full(len(joined.x) + 1, np.nan)
        by_unique[rows.unique[:single]] = shares[:single]
        result, is_repeat = by_unique[joined.unique_index], joined.repeat_index >= 0
        result[is_repeat] = shares[single:][joined.repeat_index[is_repeat]]
        return np.asarray(result)

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
        return self._estimate(self._query_cells(X))

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


def _class_prior(rows: Rows) -> Array:
    class_weight = rows.weight.astype(np.float64) @ rows.y + 1
    return np.asarray(class_weight / class_weight.sum())


def _plane(joined: Joined) -> tuple[Plane, Array]:
    """Return the plane of log-odds, and the probability of each row's class by the plane without that row."""
    rows = joined.rows()
    return plane(joined.x[rows.unique], classes_of(joined, rows), rows.weight, joined.y.shape[1])
