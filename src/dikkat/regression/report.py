"""Training rows similar to a query, plots of effects, and the HTML report of a fitted regressor."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dikkat.extras import require_extra
from dikkat.regression import intervals, pictures
from dikkat.regression.columns import columns_of, format_number, list_some, names_of
from dikkat.regression.diagnostics import curve_along, influence, middles, probabilities_along
from dikkat.regression.joined import Array
from dikkat.regression.shapes import groups_of
from dikkat.regression.summary import Summary, cells_of_row, summarise
from dikkat.show.heatmaps import encode_figure
from dikkat.storage.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from dikkat.regression.estimator import KernelRegressor

PANELS = 9
"""The largest number of features with a curve; more would be too small to read."""

_MOST_GROUPS, _FEW_ROWS = 10, 3  # curves in a panel; least rows of a group without a warning
_MOST_VALUES = 4  # other features whose values are in a note
_WORST_ROWS = 3  # badly predicted rows on a page
_SIMILAR_ROWS = 5  # similar rows shown for each of them
_ADDED = ("query", "row", "weight", "differs by")  # columns of `nearest` before the features
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222}
table{border-collapse:collapse;display:block;overflow-x:auto;font-size:.85rem}
td,th{padding:.2rem .5rem;text-align:right;white-space:nowrap;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}"""


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
    y, notes = model.y_train_[model.sample_weight_ > 0].ravel(), notes_of(model, unshown)
    if not hasattr(model, "classes_"):
        panels = [[curve_along(model, j, names_of(model)[j], coverage)] for j in shown]
        return pictures.draw_effects(y, panels, model.target_name_ or "y", notes=notes)
    panels = [probabilities_along(model, j, names_of(model)[j]) for j in shown]
    if len(model.classes_) == 2:  # the probability of the second class is enough
        target = " = ".join(map(str, [model.target_name_, model.classes_[1]][model.target_name_ is None :]))
        return pictures.draw_effects(y, [curves[1:] for curves in panels], f"probability of {target}", notes=notes)
    return pictures.draw_effects(y, panels, "probability", list(map(str, model.classes_)), notes)


def notes_of(model: KernelRegressor, unshown: Sequence[str] = (), by: int | None = None) -> list[str]:
    """Return the notes below panels: the values of the other features, and the features without a panel."""
    notes = [pictures.note_unshown(unshown)] * bool(unshown)
    features = zip(names_of(model), columns_of(model), middles(model), strict=True)
    fixed = [(name, column.cell_text(value), column) for j, (name, column, value) in enumerate(features) if j != by]
    if 1 < len(fixed) <= _MOST_VALUES:
        notes.insert(0, f"other features at: {', '.join(f'{name} {cell}' for name, cell, _ in fixed)}")
    elif len(fixed) > 1:
        kinds = dict.fromkeys(["medians", "most frequent categories"][column.is_category] for *_, column in fixed)
        notes.insert(0, f"other features at their {' and '.join(sorted(kinds))}")
    return notes


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
    codes = range(len(levels))
    counts = np.bincount(model.X_train_[model.sample_weight_ > 0, k].astype(int), minlength=len(codes))
    if small := [levels[code] for code in codes if counts[code] < _FEW_ROWS]:
        warnings.warn(
            f"by: got fewer than {_FEW_ROWS} rows of {list_some(small)}; expected more. The curve of a group with few "
            "rows is mostly that of the other groups",
            UserWarning,
            stacklevel=4,
        )
    panels = [[curve_along(model, j, names[j], fixed={k: code}) for code in codes] for j in shown[:PANELS]]
    unshown = [names[j] for j in shown[PANELS:]] + [name for name in unshown if name != names[k]]
    groups = [f"{names[k]}: {level}" for level in levels]
    y, target = model.y_train_[model.sample_weight_ > 0].ravel(), model.target_name_ or "y"
    return pictures.draw_effects(y, panels, target, groups, notes_of(model, unshown, k))


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
    curve, none = curve_along(model, 0, names_of(model)[0]), np.full(1, np.nan)
    ends = intervals.interval(model, curve.at[:, None], coverage, "local")
    has_weight = model.sample_weight_ > 0
    curve = replace(curve, data=model.X_train_[has_weight, 0], lower=none, upper=none, values=(*ends, coverage))
    ax = ax or pictures.current_axes()
    pictures.draw_on(ax, curve, model.y_train_[has_weight].ravel(), model.target_name_ or "y")
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
    model: KernelRegressor, queries: Array, k: int, left_out: NDArray[np.bool_] | None = None
) -> Iterator[Similar]:
    """Yield for each query (in the form of `X_train_`) the k most similar rows among those with weight.

    Without the rows `left_out` (queries, n) of each query, whose weight is shared among the other rows.
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


def _copies(model: KernelRegressor, row: int) -> NDArray[np.bool_]:
    """Return (n,), True for a row and its copies, which a prediction without the row leaves out."""
    rows = model._rows
    is_copy = (rows.x == rows.x[row]).all(1) & (rows.y == rows.y[row]).reshape(len(rows.y), -1).all(1)
    return np.asarray(is_copy & ((model._smoother.joined.repeat_index[row] < 0) | (np.arange(len(is_copy)) == row)))


def _similar_to_rows(model: KernelRegressor, rows: list[int]) -> Iterator[tuple[int, Similar]]:
    """Yield training rows, and the rows most similar to each without its copies."""
    left_out = np.array([_copies(model, row) for row in rows])
    return zip(rows, _similar(model, model.X_train_[rows], _SIMILAR_ROWS, left_out), strict=True)


def write_page(model: KernelRegressor, path: str | os.PathLike[str], folds: int, coverage: float) -> None:
    """Write an HTML page: the summary, the effects, the worst predicted rows, and rows similar to each of them."""
    summary, title = summarise(model, folds), model.target_name_ or "y"
    picture = encode_figure(effects(model, coverage), ".svg").decode()
    sections = [
        f"<h1>{escape(title)}</h1>", "<h2>Summary</h2>", summary._repr_html_(),
        f"<h2>Effects</h2>{picture[picture.index('<svg') :]}",
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
    for row, similar in _similar_to_rows(model, rows.tolist()):
        estimate, low, high = map(format_number, _predict_without(model, row, coverage))
        sections.append(
            f"<h3>Row {escape(str(_label(model, row)))}: observed {format_number(y[row])}, predicted {estimate}, "
            f"{100 * coverage:g} % interval {low} … {high}</h3>{_table(model, similar)}"
        )
    return sections


def _predict_without(model: KernelRegressor, row: int, coverage: float) -> list[float]:
    """Return a row's prediction and the ends of its interval by the model without the row and its copies."""
    x, remaining = model.X_train_[[row]], model._rows.take(np.flatnonzero(~_copies(model, row)))
    if not remaining.weight.any():
        return [np.nan, -np.inf, np.inf]
    fitted = {name: getattr(model, name) for name in ("bandwidth_", "ridge_", "history_")}
    reduced = model._unfitted()._fit_copy(remaining, **fitted)
    ends = intervals.interval(reduced, x, coverage, "jackknife+")
    return [float(np.ravel(answer)[0]) for answer in (intervals.clip(reduced, np.asarray(reduced._estimate(x))), *ends)]


def _class_examples(model: Any, summary: Summary) -> list[str]:
    """Return the HTML of the rows with the least probability of their class, each with similar rows."""
    held_out = summary.held_out
    shares = model._left_out_shares() if held_out is None else (held_out.predicted * model.y_train_).sum(1)
    probability = np.where(model.sample_weight_ > 0, shares, 1.0)
    rows = np.argsort(np.nan_to_num(probability, nan=1.0), kind="stable")[:_WORST_ROWS]
    sections = ["<h2>The worst predicted rows, and the rows most similar to them</h2>"]
    for row, similar in _similar_to_rows(model, rows.tolist()):
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
