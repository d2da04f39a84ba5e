"""The methods that explain, save and load a fitted regressor or classifier."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from dikkat.regression import files, report, validation
from dikkat.regression.columns import names_of
from dikkat.regression.summary import Summary, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame


class Verbs:
    """The common methods of `KernelRegressor` and `KernelClassifier`."""

    @property
    def bandwidth_names_(self: Any) -> list[str]:
        """(d,), the feature, or direction of a metric, of each number in `bandwidth_`."""
        check_is_fitted(self)
        if self.metric_ is None:
            return names_of(self)
        coding = self._rows.coding
        directions = [f"direction {number}" for number in range(1, coding.num_numeric + 1)]
        return [*directions, *(names_of(self)[j] for j in coding.coded)]

    def summary(self: Any, folds: int = 5) -> Summary:
        """Return the summary that `dikkat regress` prints: a table of the features, and how well rows are predicted.

        Args:
            folds: The number of folds that are held out in turn, each of which takes as long as a fit; 0 for none.

        Returns:
            A `dikkat.regression.summary.Summary`, which prints as text and shows as a table in notebooks.

        Raises:
            NotFittedError: It is not fitted.
            ValueError: An invalid number of folds.

        Example:
            >>> import numpy as np
            >>> from dikkat.regression import KernelRegressor
            >>> x = np.linspace(0, 5, 50)
            >>> print(KernelRegressor().fit(x[:, None], np.round(np.sin(x), 3)).summary(folds=0).rows[0])
            rows: 50
        """
        check_is_fitted(self)
        return summarise(self, folds)

    def nearest(self: Any, X: ArrayLike, k: int = 5) -> DataFrame:
        """Return the most similar training rows for each query: the rows whose differences move the estimate least.

        Args:
            X: (n, d).
            k: The number of rows for each query, at least 1.

        Returns:
            A pandas frame with k rows for each query, the most similar first: the query's position, the row's index in
            the frame of `fit` (its position for an array or a loaded model), its weight (`attention_weights`), how
            much the differences move y ("differs by", from `summary`'s influences), its cells (NaN or NaT if missing)
            and its y. Rows of weight 0 are left out. A feature named like a column before it gets the suffix " (X)",
            and a y named like another column " (y)".

        Raises:
            ImportError: pandas is not installed.
            ValueError: As for `predict`; an invalid k.

        Example:
            >>> from dikkat.regression import KernelRegressor
            >>> model = KernelRegressor(bandwidth=1.0).fit([[0.0], [1.0], [5.0]], [1.0, 2.0, 3.0])
            >>> model.nearest([[0.9]], k=2)[["row", "weight", "x", "y"]].round(2).values.tolist()
            [[1.0, 0.6, 1.0, 2.0], [0.0, 0.4, 0.0, 1.0]]
        """
        validation.check_count("k", k)
        return report.nearest(self, X, int(k))

    def report(self: Any, path: str | os.PathLike[str], folds: int = 5, coverage: float | None = None) -> None:
        """Write a page with the summary, the effects with their intervals, and the worst predicted rows.

        The page is one HTML file without scripts or external files.

        Args:
            path: The file, which is replaced if it exists.
            folds: As for `summary`.
            coverage: As for `predict_interval`; None for 0.9. A classifier has no intervals.

        Raises:
            NotFittedError: It is not fitted.
            ValueError: Several targets, only constant features, invalid folds or coverage, or a classifier's coverage.
            OSError: The system could not write.
        """
        check_is_fitted(self)
        report.write_page(self, path, folds, _check_coverage(self, coverage))

    def plot(
        self: Any, ax: Axes | None = None, coverage: float | None = None, by: str | int | None = None
    ) -> Axes | Figure:  # fmt: skip
        """Draw the estimate and its prediction intervals, against one feature or in a panel for each of several.

        With several features, the nine with the largest effects have a panel each, with the other features at their
        medians or most frequent categories. Curves span the rows with weight.

        With `by`, each panel has a curve with 95 % confidence for each group, without intervals for new values. A
        classifier has a curve of the probability for each class (of two classes, for the second), without intervals.

        Args:
            ax: Axes for one feature; None for matplotlib's current axes.
            coverage: As for `predict_interval`, by "local" for one feature and "jackknife+" for several; None for 0.9.
            by: The name or position of a category with at most ten levels, the groups.

        Returns:
            The axes; with several features or a category, the figure.

        Raises:
            ValueError: An invalid coverage or `by`, several targets, only constant features, an `ax` for several
                features, or a coverage with `by` or of a classifier.

        Warns:
            UserWarning: A group of `by` has fewer than three rows.
        """
        check_is_fitted(self)
        return report.plot(self, ax, _check_coverage(self, coverage, by), by)

    def save(self: Any, path: str | os.PathLike[str]) -> None:
        """Save the fitted estimator in one `.safetensors` file, written atomically.

        Args:
            path: The file, which is replaced if it exists.

        Raises:
            NotFittedError: It is not fitted.
            OSError: The system could not write; an existing file stays as it was.

        Example:
            >>> import tempfile
            >>> from dikkat.regression import NadarayaWatson
            >>> path = f"{tempfile.mkdtemp()}/model.safetensors"
            >>> NadarayaWatson(bandwidth=0.5).fit([[0.0], [1.0]], [2.0, 3.0]).save(path)
            >>> NadarayaWatson.load(path).predict([[0.5]])
            array([2.5])
        """
        check_is_fitted(self)
        files.save_model(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load an estimator that `save` wrote, after checking everything in the file.

        Args:
            path: The file.

        Returns:
            An estimator of this class with the same answers. A splitter in `cv` is saved only as its name, so that
            `fit` raises an error.

        Raises:
            InputError: A `ValueError`: the file is damaged, not of this kind, or of another version.
            OSError: The system could not read.
        """
        model: Self = files.load_model(cls, path)
        return model


def _check_coverage(model: Any, coverage: float | None, by: str | int | None = None) -> float:
    """Return the coverage of the drawn intervals; raise for several targets, or a coverage without such intervals."""
    is_classifier = hasattr(model, "classes_")
    if not is_classifier:
        validation.check_one_target(model)
    if coverage is not None and (is_classifier or by is not None):
        raise ValueError(
            f"coverage: got {coverage!r}; expected None, because curves of "
            f"{'probabilities' if is_classifier else 'groups'} have no intervals for new values"
        )
    return validation.check_share("coverage", 0.9 if coverage is None else coverage)
