"""Comparable training rows, plots of effects, and the HTML report of a fitted regressor."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dikkat.extras import needing
from dikkat.regression import intervals, pictures
from dikkat.regression.columns import columns_of, names_of, written
from dikkat.regression.diagnostics import along, influence
from dikkat.regression.joined import Array
from dikkat.regression.summary import Summary, row_of, summarised
from dikkat.show import save
from dikkat.storage.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from dikkat.regression.estimator import KernelRegressor

PANELS = 9
"""The largest number of features with a curve; more would be too small to read."""

_WORST_ROWS, _SIMILAR_ROWS = 3, 5  # rows of a page with comparable rows, and the number of comparable rows
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222}
table{border-collapse:collapse;display:block;overflow-x:auto}td,th{padding:.2rem .8rem;text-align:right;
border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}"""


def choose_features(model: KernelRegressor, limit: int = PANELS) -> tuple[list[int], list[str]]:
    """Return the features that change the estimate most, in falling order, and the names of the other varying ones."""
    changes, rows = influence(model), model.X_train_[model.sample_weight_ > 0]
    order = [j for j in np.argsort(-changes, kind="stable").tolist() if np.ptp(rows[:, j]) > 0]
    return order[:limit], [names_of(model)[j] for j in order[limit:]]


def effects(model: KernelRegressor, coverage: float | None) -> Figure:
    """Draw the effects of the features that change the estimate most."""
    shown, unshown = choose_features(model)
    if not shown:
        raise ValueError("X: got only constant features in fit; expected one that varies")
    curves = [along(model, j, names_of(model)[j], coverage) for j in shown]
    has_weight = model.sample_weight_ > 0
    return pictures.draw_effects(model.y_train_[has_weight].ravel(), curves, model.target_name_ or "y", unshown)


def plot(model: KernelRegressor, ax: Axes | None, coverage: float) -> Axes | Figure:
    """Draw a panel for each of several features, or the estimate and its intervals along a single number."""
    if model.n_features_in_ > 1 or any(column.coded for column in model.columns_):
        if ax is not None:
            raise ValueError(f"ax: got axes for {model.n_features_in_} features; expected None: each has its own panel")
        return effects(model, coverage)
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.gca()
    x = model.X_train_[:, 0]
    at = np.linspace(x.min(), x.max(), 201, dtype=x.dtype)[:, None]
    lower, upper = intervals.interval(model, at, coverage, "local")
    ax.plot(x, model.y_train_.ravel(), "o", color="0.45", markersize=3, alpha=0.6)
    (line,) = ax.plot(at[:, 0], np.asarray(model._answer(at)).ravel())
    ax.fill_between(at[:, 0], lower, upper, color=line.get_color(), alpha=0.2, linewidth=0)
    ax.set_xlabel(model.bandwidth_names_[0])
    ax.set_ylabel(model.target_name_ or "y")
    return ax


def nearest(model: KernelRegressor, X: ArrayLike, k: int) -> DataFrame:
    """Return the k training rows of the largest weights at each query, in falling order."""
    with needing("notebook"):
        import pandas
    records: list[dict[str, Any]] = []
    targets = model.y_train_.reshape(len(model.y_train_), -1)
    name = model.target_name_ or "y"
    names = [name] if targets.shape[1] == 1 else [f"{name}{output}" for output in range(targets.shape[1])]
    features = list(zip(names_of(model), columns_of(model), strict=True))[: model.n_features_in_]  # no indicators
    names = [f"{target} (y)" if target in names_of(model) else target for target in names]
    labels = getattr(model, "row_labels_", None)
    for query, (rows, weights) in enumerate(_nearest(model, model._cells(X), k)):
        for row, weight in zip(rows.tolist(), weights.tolist(), strict=True):
            cells = zip(features, row_of(model, row), strict=False)
            records.append(
                {"query": query, "row": row if labels is None else labels[row], "weight": weight}
                | {feature: column.cell(value) for (feature, column), value in cells}
                | dict(zip(names, targets[row].tolist(), strict=True))
            )
    return pandas.DataFrame.from_records(records)


def _nearest(model: KernelRegressor, cells: Array, k: int) -> Iterator[tuple[NDArray[np.intp], Array]]:
    """Yield for each query the k rows of the largest weights, and the weights.

    Equal weights, as along straight lines, are sorted by distance, with features scaled by their effect.
    """
    changes, x = influence(model), model.X_train_
    spread = x[model.sample_weight_ > 0].std(0)
    is_category = np.array([column.is_category for column in columns_of(model)])
    scales = np.where(is_category, changes, np.divide(changes, spread, out=np.zeros_like(changes), where=spread > 0))
    for cell in cells:
        weights = np.asarray(model._smoother.attention(model._coordinates(cell[None]), model.sample_weight_))[0]
        distances = np.nan_to_num(np.where(is_category, x != cell, x - cell)) * scales  # 0 where a cell is missing
        order = np.lexsort([(distances**2).sum(1), -np.round(weights / weights.max(), 9)])
        rows = order[weights[order] > 0][:k]
        yield rows, weights[rows]


def write_page(model: KernelRegressor, path: str | os.PathLike[str], folds: int, coverage: float) -> None:
    """Write an HTML page with the summary, the effects, and the worst predicted rows with comparable rows."""
    summary, title = summarised(model, folds), model.target_name_ or "y"
    with tempfile.TemporaryDirectory() as folder:
        save(effects(model, coverage), f"{folder}/effects.svg")
        picture = Path(folder, "effects.svg").read_text()
    sections = [
        f"<h1>{escape(title)}</h1>", "<h2>Summary</h2>", summary._repr_html_(),
        f"<h2>Effects</h2><p>The other features at their medians; the wider band holds {100 * coverage:g} % of new "
        f"values.</p>{picture[picture.index('<svg') :]}", *_examples(model, summary, coverage),
    ]  # fmt: skip
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>{''.join(sections)}</html>"
    )
    write_whole(path, page.encode())


def _examples(model: KernelRegressor, summary: Summary, coverage: float) -> list[str]:
    """Return the HTML of the worst predicted rows, with an interval and comparable rows."""
    y, predicted = model.y_train_.ravel(), summary.left_out.predicted.ravel()
    rows = np.argsort(-np.nan_to_num(np.abs(y - predicted)), kind="stable")[:_WORST_ROWS]
    cells = model.X_train_[rows]
    ends = np.transpose(intervals.interval(model, cells, coverage, "local"))
    sections = ["<h2>The worst predicted rows, and the rows most similar to them</h2>"]
    for row, (low, high), (similar, weights) in zip(rows, ends, _nearest(model, cells, _SIMILAR_ROWS + 1), strict=True):
        sections.append(
            f"<h3>Row {row}: observed {written(y[row])}, predicted {written(predicted[row])}, {100 * coverage:g} % "
            f"interval {written(low)} … {written(high)}</h3>{_table(model, similar, weights)}"
        )
    return sections


def _table(model: KernelRegressor, rows: NDArray[np.intp], weights: Array) -> str:
    count = model.n_features_in_  # without indicators of missing cells
    lines = [["row", "weight", *names_of(model)[:count], model.target_name_ or "y"]]
    for row, weight in zip(rows.tolist(), weights.tolist(), strict=True):
        cells = [
            column.shown(value) for column, value in zip(columns_of(model)[:count], row_of(model, row), strict=False)
        ]
        lines.append([str(row), f"{weight:.3f}", *cells, written(model.y_train_.ravel()[row])])
    cells = ["".join(f"<td>{escape(cell)}</td>" for cell in line) for line in lines]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>"
