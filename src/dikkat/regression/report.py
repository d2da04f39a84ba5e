"""Training rows similar to a query, plots of effects, and the HTML report of a fitted regressor."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dikkat.extras import require_extra
from dikkat.regression import intervals, pictures
from dikkat.regression.columns import columns_of, format_number, names_of
from dikkat.regression.diagnostics import curve_along, influence, middles, probabilities_along
from dikkat.regression.joined import Array
from dikkat.regression.shapes import groups_of
from dikkat.regression.summary import Summary, cells_of_row, summarise
from dikkat.show import save
from dikkat.storage.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from dikkat.regression.estimator import KernelRegressor

PANELS = 9
"""The largest number of features with a curve; more would be too small to read."""

_MOST_GROUPS = 10  # curves in a panel
_WORST_ROWS = 3  # badly predicted rows on a page
_SIMILAR_ROWS = 5  # similar rows shown for each of them
_ADDED = ("query", "row", "weight", "differs by")  # columns of `nearest` before the features
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222}
table{border-collapse:collapse;display:block;overflow-x:auto}td,th{padding:.2rem .8rem;text-align:right;
border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}"""


def choose_features(model: KernelRegressor, limit: int = PANELS) -> tuple[list[int], list[str]]:
    """Return the most influential features, largest first, and the names of the other features that vary."""
    influences, rows = influence(model), model.X_train_[model.sample_weight_ > 0]
    order = [j for j in np.argsort(-influences, kind="stable").tolist() if np.ptp(rows[:, j]) > 0]
    return order[:limit], [names_of(model)[j] for j in order[limit:]]


def effects(model: KernelRegressor, coverage: float | None) -> Figure:
    """Draw the effects of the features that change the estimate most."""
    shown, unshown = choose_features(model)
    if not shown:
        raise ValueError("X: got only constant features in fit; expected one that varies")
    if hasattr(model, "classes_"):
        panels = [probabilities_along(model, j, names_of(model)[j]) for j in shown]
        groups = list(map(str, model.classes_))
        return pictures.draw_groups(np.array([0.0, 1.0]), panels, groups, "probability", unshown)
    curves = [curve_along(model, j, names_of(model)[j], coverage) for j in shown]
    has_weight = model.sample_weight_ > 0
    return pictures.draw_effects(model.y_train_[has_weight].ravel(), curves, model.target_name_ or "y", unshown)


def _groups(model: KernelRegressor, by: str | int) -> Figure:
    """Draw a curve for each level of a category along the other features that change the estimate most."""
    (k, levels), names = groups_of(model, by), names_of(model)
    shown, unshown = choose_features(model, PANELS + 1)
    if k in shown:
        shown.remove(k)
    if len(levels) > _MOST_GROUPS:
        raise ValueError(f"by: got {by!r} with {len(levels)} levels; expected at most {_MOST_GROUPS}")
    if not shown:
        raise ValueError(f"by: got {by!r}, and no other feature varies; expected one")
    panels = [[curve_along(model, j, names[j], fixed={k: code}) for code in range(len(levels))] for j in shown[:PANELS]]
    unshown = [names[j] for j in shown[PANELS:]] + [name for name in unshown if name != names[k]]
    groups = [f"{names[k]}: {level}" for level in levels]
    return pictures.draw_groups(
        model.y_train_[model.sample_weight_ > 0].ravel(), panels, groups, model.target_name_ or "y", unshown
    )


def plot(model: KernelRegressor, ax: Axes | None, coverage: float, by: str | int | None) -> Axes | Figure:
    """Draw a panel for each feature; for a single numeric feature draw the estimate and its intervals."""
    if by is not None and hasattr(model, "classes_"):
        raise ValueError(f"by: got {by!r}; expected None, because curves for groups are those of a KernelRegressor")
    if model.n_features_in_ > 1 or any(column.coded for column in model.columns_) or hasattr(model, "classes_"):
        if ax is not None:
            raise ValueError(
                "ax: got axes; expected None, because dikkat draws a figure with a panel for each feature (features: "
                f"{model.n_features_in_})"
            )
        return effects(model, coverage) if by is None else _groups(model, by)
    if by is not None:
        raise ValueError(f"by: got {by!r}, but X has a single column of numbers; expected None")
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.gca()
    x, column = model.X_train_[:, 0], columns_of(model)[0]
    drawn = x[model.sample_weight_ > 0] if column.log else x  # other rows may lack a logarithm
    grid = column.grid(drawn.min(), drawn.max(), 201).astype(x.dtype)[:, None]
    lower, upper = intervals.interval(model, grid, coverage, "local")
    ax.plot(x, model.y_train_.ravel(), "o", color="0.45", markersize=3, alpha=0.6)
    (line,) = ax.plot(grid[:, 0], intervals.clip(model, np.asarray(model._estimate(grid))).ravel())
    ax.fill_between(grid[:, 0], lower, upper, color=line.get_color(), alpha=0.2, linewidth=0)
    ax.set_xlabel(model.bandwidth_names_[0])
    ax.set_ylabel(model.target_name_ or "y")
    return ax


def nearest(model: KernelRegressor, X: ArrayLike, k: int) -> DataFrame:
    """Return the k most similar training rows for each query."""
    with require_extra("regression"):
        import pandas
    records: list[dict[str, Any]] = []
    targets = model.y_train_.reshape(len(model.y_train_), -1)
    if hasattr(model, "classes_"):
        targets = model.classes_[targets.argmax(1), None]
    features, names = _headings(model, targets.shape[1])
    for query, similar in enumerate(_similar(model, model._query_cells(X), k)):
        for row, weight, distance in zip(*(array.tolist() for array in similar), strict=True):
            cells = zip(columns_of(model), cells_of_row(model, row), strict=True)
            values = [query, _label(model, row), weight, distance]
            records.append(
                dict(zip(_ADDED, values, strict=True))
                | dict(zip(features, [column.cell(cell) for column, cell in cells], strict=False))  # no indicators
                | dict(zip(names, targets[row].tolist(), strict=True))
            )
    return pandas.DataFrame.from_records(records)


def _headings(model: KernelRegressor, outputs: int = 1) -> tuple[list[str], list[str]]:
    """Return the names of the features and the targets beside the columns `_ADDED`, with " (X)" or " (y)" if equal."""
    names, name = names_of(model)[: model.n_features_in_], model.target_name_ or "y"
    targets = [name] if outputs == 1 else [f"{name}{output}" for output in range(outputs)]
    features = [f"{feature} (X)" if feature in _ADDED else feature for feature in names]
    return features, [f"{target} (y)" if target in (*_ADDED, *names) else target for target in targets]


def _label(model: KernelRegressor, row: int) -> Any:
    """Return the label of a training row in the frame of `fit`, else its position."""
    labels = getattr(model, "row_labels_", None)
    return row if labels is None else labels[row]


class Similar(NamedTuple):
    """Training rows, the most similar first.

    The distance has the units of y: the root of the sum, over the features, of the squares of their influence times
    the difference. That is a difference of logarithms if the model compares these, and 1 for another category.
    Influences are for differences of the root mean square size.
    """

    rows: NDArray[np.intp]
    weights: Array
    distances: Array


def _similar(
    model: KernelRegressor, queries: Array, k: int, left_out: NDArray[np.intp] | None = None
) -> Iterator[Similar]:
    """Yield for each query (in the form of `X_train_`) the k most similar rows among those with weight.

    Without the row `left_out` (queries,) of each query, whose weight is shared among the other rows.
    """
    columns = columns_of(model)
    x, scaled_queries = (
        np.column_stack([column.scaled(cells) for column, cells in zip(columns, rows.T, strict=True)])
        for rows in (model.X_train_, queries)
    )
    is_category = np.array([column.is_category for column in columns])
    periods = np.array([float(column.levels[0]) if column.kind == "periodic" else np.inf for column in columns])

    def differences(rows: Array, query: Array) -> Array:
        gap = np.mod(np.abs(np.nan_to_num(rows - query)), periods)  # 0 if a cell is missing
        return np.asarray(np.where(is_category, gap != 0, np.minimum(gap, periods - gap)))

    middle = np.array([column.scaled(number) for column, number in zip(columns, middles(model), strict=True)])
    size = np.sqrt((differences(x[model.sample_weight_ > 0], middle) ** 2).mean(0))
    scale = np.divide(influence(model), size, out=np.zeros_like(size), where=size > 0)
    for index, (query, scaled) in enumerate(zip(queries, scaled_queries, strict=True)):
        weights = np.asarray(model._smoother.attention(model._coordinates(query[None]), model.sample_weight_))[0]
        if left_out is not None:
            weights[left_out[index]] = 0
            weights = weights / max(weights.sum(), np.finfo(np.float64).tiny)
        distances = np.sqrt(((differences(x, scaled) * scale) ** 2).sum(1))
        order = np.lexsort([-weights, np.round(distances / max(distances.max(), 1e-300), 9)])
        rows = order[weights[order] > 0][:k]
        yield Similar(rows, weights[rows], distances[rows])


def write_page(model: KernelRegressor, path: str | os.PathLike[str], folds: int, coverage: float) -> None:
    """Write an HTML page: the summary, the effects, the worst predicted rows, and rows similar to each of them."""
    summary, title = summarise(model, folds), model.target_name_ or "y"
    with tempfile.TemporaryDirectory() as folder:
        save(effects(model, coverage), f"{folder}/effects.svg")
        picture = Path(folder, "effects.svg").read_text()
    band = "" if hasattr(model, "classes_") else f"; the wider band holds {100 * coverage:g} % of new values"
    sections = [
        f"<h1>{escape(title)}</h1>", "<h2>Summary</h2>", summary._repr_html_(),
        f"<h2>Effects</h2><p>The other features at their medians{band}.</p>{picture[picture.index('<svg') :]}",
        *_examples(model, summary, coverage),
    ]  # fmt: skip
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>{''.join(sections)}</html>"
    )
    write_whole(path, page.encode())


def _examples(model: KernelRegressor, summary: Summary, coverage: float) -> list[str]:
    """Return the HTML of the worst predicted rows, each with an interval and similar rows."""
    if hasattr(model, "classes_"):
        return _class_examples(model, summary)
    y, predicted = model.y_train_.ravel(), summary.left_out.predicted.ravel()
    rows = np.argsort(-np.nan_to_num(np.abs(y - predicted)), kind="stable")[:_WORST_ROWS]
    sections = [
        "<h2>The worst predicted rows, and the rows most similar to them</h2><p>The rows are sorted by how much their "
        f"differences move {escape(model.target_name_ or 'y')}. Predictions, intervals and weights are those of a "
        "model without the row, with the same bandwidths.</p>"
    ]
    for row, similar in zip(rows.tolist(), _similar(model, model.X_train_[rows], _SIMILAR_ROWS, rows), strict=True):
        estimate, low, high = map(format_number, _predict_without(model, row, coverage))
        sections.append(
            f"<h3>Row {escape(str(_label(model, row)))}: observed {format_number(y[row])}, predicted {estimate}, "
            f"{100 * coverage:g} % interval {low} … {high}</h3>{_table(model, similar)}"
        )
    return sections


def _predict_without(model: KernelRegressor, row: int, coverage: float) -> list[float]:
    """Return a row's prediction and the ends of its interval by the model without the row and its copies."""
    rows, x = model._rows, model.X_train_[[row]]
    is_copy = (rows.x == x).all(1) & (rows.y == rows.y[row]).reshape(len(rows.y), -1).all(1)
    is_copy &= (model._smoother.joined.repeat_index[row] < 0) | (np.arange(len(is_copy)) == row)
    remaining = rows.take(np.flatnonzero(~is_copy))
    if not remaining.weight.any():
        return [np.nan, -np.inf, np.inf]
    reduced = model._fit_copy(remaining, bandwidth_=model.bandwidth_, ridge_=model.ridge_, history_=model.history_)
    ends = intervals.interval(reduced, x, coverage, "jackknife+")
    return [float(np.ravel(answer)[0]) for answer in (intervals.clip(reduced, np.asarray(reduced._estimate(x))), *ends)]


def _class_examples(model: Any, summary: Summary) -> list[str]:
    """Return the HTML of the rows with the least probability of their class, each with similar rows."""
    held_out = summary.held_out
    shares = model._left_out_shares() if held_out is None else (held_out.predicted * model.y_train_).sum(1)
    probability = np.where(model.sample_weight_ > 0, shares, 1.0)
    rows = np.argsort(np.nan_to_num(probability, nan=1.0), kind="stable")[:_WORST_ROWS]
    sections = ["<h2>The worst predicted rows, and the rows most similar to them</h2>"]
    for row, similar in zip(rows.tolist(), _similar(model, model.X_train_[rows], _SIMILAR_ROWS, rows), strict=True):
        label, name = (escape(str(text)) for text in (model.classes_[model.y_train_[row].argmax()], _label(model, row)))
        sections.append(
            f"<h3>Row {name}: {label}, with probability {probability[row]:.3f}</h3>{_table(model, similar)}"
        )
    return sections


def _table(model: KernelRegressor, similar: Similar) -> str:
    count = model.n_features_in_  # without indicators of missing cells
    features, (target_name,) = _headings(model)
    lines = [["row", target_name, "differs by", "weight", *features]]
    for row, weight, distance in zip(*(array.tolist() for array in similar), strict=True):
        columns = zip(columns_of(model)[:count], cells_of_row(model, row), strict=False)
        cells = [column.cell_text(value) for column, value in columns]
        value = model.y_train_[row]
        target = str(model.classes_[value.argmax()]) if hasattr(model, "classes_") else format_number(value.item())
        lines.append([str(_label(model, row)), target, format_number(distance), f"{weight:.3f}", *cells])
    table_rows = ["".join(f"<td>{escape(cell)}</td>" for cell in line) for line in lines]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in table_rows)}</table>"
