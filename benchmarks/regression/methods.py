"""Regressors and classifiers of other libraries, each tuned only on its training rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeCV
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.svm import SVC, SVR

from benchmarks.regression.data import Array

COUNTS = [1, 2, 3, 5, 7, 10, 15, 20, 30, 50]


def _categories(x: Any) -> list[Any]:
    return list(x.select_dtypes("category").columns) if hasattr(x, "columns") else []


def _rest(x: Any) -> list[Any]:
    return [name for name in getattr(x, "columns", range(x.shape[1])) if name not in _categories(x)]


def prepared(model: Any) -> Any:
    """Add preprocessing: standardised numbers, and one-hot categories."""
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(make_column_transformer((encoder, _categories), (StandardScaler(), _rest)), model)


def searched(model: Any, scoring: str | None = None, **grid: Any) -> Any:
    """Add a grid search over five folds, stratified for classes."""
    inner = 5 if scoring else KFold(5, shuffle=True, random_state=1)
    return prepared(GridSearchCV(model, grid, cv=inner, scoring=scoring))


class KernelRidge(RegressorMixin, BaseEstimator):
    """Kernel ridge regression with the Gaussian kernel and penalty of least exact leave-one-out error."""

    def fit(self, x: Array, y: Array) -> "KernelRidge":
        self.x_, self.mean_, best = x, y.mean(), np.inf
        for gamma in np.logspace(-3, 1, 15):
            values, vectors = np.linalg.eigh(rbf_kernel(x, gamma=gamma))
            rotated = vectors.T @ (y - self.mean_)
            for alpha in np.logspace(-4, 1, 11):
                dual = vectors @ (rotated / (values + alpha))
                error = np.mean(np.square(dual / (np.square(vectors) @ (1 / (values + alpha)))))
                if error < best:
                    best, self.gamma_, self.dual_ = error, gamma, dual
        return self

    def predict(self, x: Array) -> Array:
        return self.mean_ + rbf_kernel(x, self.x_, gamma=self.gamma_) @ self.dual_


class GaussianProcess(RegressorMixin, BaseEstimator):
    """A Gaussian process fitted by likelihood, with a length scale for each of up to six columns."""

    def fit(self, x: Array, y: Array) -> "GaussianProcess":
        lengths = np.ones(x.shape[1] if x.shape[1] <= 6 else 1)
        kernel = ConstantKernel(1, (1e-3, 1e3)) * RBF(lengths, (1e-2, 1e3)) + WhiteKernel(0.1, (1e-6, 10))
        self.model_ = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=0)
        self.model_.fit(x, y)
        return self

    def predict(self, x: Array) -> Array:
        return self.model_.predict(x)


class Gam(RegressorMixin, BaseEstimator):
    """A spline of each number and a step for each category, with one penalty by generalised cross-validation."""

    def fit(self, x: Any, y: Array) -> "Gam":
        from pygam import LinearGAM, f, s
        from pygam.terms import TermList

        count = len(_categories(x))
        self.coder_ = make_column_transformer((OrdinalEncoder(), _categories), ("passthrough", _rest))
        columns = self.coder_.fit_transform(x)
        terms = TermList(*(f(column) if column < count else s(column) for column in range(columns.shape[1])))
        self.model_ = LinearGAM(terms).gridsearch(columns, y, progress=False)
        return self

    def predict(self, x: Any) -> Array:
        return self.model_.predict(self.coder_.transform(x))


def _lightgbm() -> Any:
    from lightgbm import LGBMRegressor

    return prepared(LGBMRegressor(verbose=-1, n_jobs=1, random_state=0))


REGRESSORS: dict[str, Callable[[], Any]] = {
    "Gaussian process": lambda: prepared(GaussianProcess()),
    "kernel ridge": lambda: prepared(KernelRidge()),
    "GAM": Gam,
    "ridge": lambda: prepared(RidgeCV(np.logspace(-3, 3, 25))),
    "random forest": lambda: prepared(RandomForestRegressor(random_state=0)),
    "k nearest neighbours": lambda: searched(
        KNeighborsRegressor(), n_neighbors=COUNTS, weights=["uniform", "distance"]
    ),
    "LightGBM": _lightgbm,
    "histogram boosting": lambda: prepared(HistGradientBoostingRegressor(random_state=0)),
    "linear regression": lambda: prepared(LinearRegression()),
}
EIGHT: dict[str, Callable[[], Any]] = {
    **{
        name: REGRESSORS[name]
        for name in (
            "Gaussian process", "kernel ridge", "ridge", "random forest", "k nearest neighbours", "linear regression",
        )
    },
    "gradient boosting": lambda: prepared(GradientBoostingRegressor(random_state=0)),
    "SVR": lambda: TransformedTargetRegressor(
        searched(SVR(), "r2", C=[1, 10, 100], gamma=[0.03, 0.1, 0.3]), transformer=StandardScaler()
    ),
}  # fmt: skip
"""The methods in the external evaluation of `fresh`."""
FORESTS: dict[str, Callable[[], Any]] = {
    "random forest, gaps as they are": REGRESSORS["random forest"],
    "random forest, medians": lambda: prepared(
        make_pipeline(SimpleImputer(strategy="median"), RandomForestRegressor(random_state=0))
    ),
}
_by_loss = partial(searched, scoring="neg_log_loss")
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "k nearest neighbours": lambda: _by_loss(
        KNeighborsClassifier(), n_neighbors=COUNTS, weights=["uniform", "distance"]
    ),
    "naive Bayes": lambda: prepared(GaussianNB()),
    "logistic regression": lambda: _by_loss(LogisticRegression(max_iter=2000), C=np.logspace(-3, 3, 9)),
    "SVC, calibrated": lambda: prepared(CalibratedClassifierCV(GridSearchCV(SVC(), {"C": [0.1, 1, 10, 100]}, cv=3))),
}
