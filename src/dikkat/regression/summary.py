"""The summary of a fitted regressor, for `KernelRegressor.summary` and `dikkat regress`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.model_selection import KFold, PredefinedSplit

from dikkat.regression.columns import Column, columns_of, format_number, names_of
from dikkat.regression.diagnostics import LeftOut, hold_out, influence, leave_out
from dikkat.regression.joined import Coding, largest_rate
from dikkat.regression.progress import working

if TYPE_CHECKING:
    from dikkat.regression.estimator import KernelRegressor

_HEADINGS = ["feature", "from", "to", "bandwidth", "moves y by"]
_CLASS_HEADINGS = [*_HEADINGS[:-1], "moves probabilities by"]
_FAR = 1e3  # bandwidth / range of the feature; from this ratio on all values have the same weight
_SEPARATE = 1e-6  # λ below which other categories have no weight
_MAX_LEVELS = 5  # at most so many categories are listed by name
_STRAIGHT = "a straight line"
_USED_IN_SEARCH = " (used to select the bandwidth)"


@dataclass(frozen=True)
class Summary:
    """The summary of a fitted model.

    Attributes:
        features: For each feature the name, lowest and highest value, bandwidth (or its meaning), and effect on the
            estimate: the root mean square change if the feature is set to its median.
        columns: Notes on columns: categories, the origin of dates, omitted columns.
        rows: The number of rows, and the errors of their predictions.
        left_out: Each row predicted from all other rows.
        held_out: Each row predicted by a model fitted to the other folds; None without folds.
        headings: The headings of `features`.
    """

    features: list[tuple[str, str, str, str, str]]
    columns: list[str]
    rows: list[str]
    left_out: LeftOut
    held_out: LeftOut | None
    headings: list[str]

    def __str__(self) -> str:
        cells = [tuple(self.headings), *self.features]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        table = [
            "  ".join(cell.rjust(width) if index else cell.ljust(width) for index, (cell, width) in enumerate(pairs))
            for pairs in (list(zip(row, widths, strict=True)) for row in cells)
        ]
        return "\n".join([*table, *self.columns, *self.rows])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = [f"<tr>{''.join(f'<th>{heading}</th>' for heading in self.headings)}</tr>"]
        table += [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.features]
        return f"<table>{''.join(table)}</table><p>{'<br>'.join(map(escape, [*self.columns, *self.rows]))}</p>"


def summarise(model: KernelRegressor, folds: int) -> Summary:
    """Return the model's summary, with its errors on rows held out in `folds` folds; `folds=0` holds out no rows."""
    left_out = LeftOut(np.empty(0), math.nan, math.nan) if hasattr(model, "classes_") else leave_out(model)
    rows = len(model.X_train_)
    with working(f"holding out {folds} folds", None, rows**2) if model.verbose and folds else nullcontext():
        held_out = hold_out(model, _splitter(model, folds)) if folds else None
    return make_summary(model, left_out, held_out)


def _splitter(model: KernelRegressor, folds: int) -> Any:
    """Return the splitter: a random one without `cv`, else blocks of rows, or the model's folds merged to `folds`."""
    if model.folds_ is None:
        return folds
    if isinstance(model._fit_settings["cv"], Integral):
        return KFold(folds)
    tested = model.folds_ == 2  # groups stay whole
    return PredefinedSplit(np.where(tested.any(0), tested.argmax(0) * folds // len(tested), -1))


def make_summary(
    model: KernelRegressor, left_out: LeftOut, held_out: LeftOut | None, count: int | None = None,
    left_out_columns: Mapping[str, str] | None = None,
) -> Summary:  # fmt: skip
    """Return the summary. `count` includes rows that were left out, and `left_out_columns` is {name: reason}."""
    omitted = [
        f"left out: {f'{name}, which' if name else 'a column that'} {reason}"
        for name, reason in (left_out_columns or {}).items()
    ]
    rows = _describe_rows(model, left_out, held_out, count)
    headings = _CLASS_HEADINGS if hasattr(model, "classes_") else _HEADINGS
    return Summary(_features(model), [*_describe_columns(model), *omitted], rows, left_out, held_out, headings)


def cells_of_row(model: KernelRegressor, row: int) -> list[float]:
    """Return a training row's cells as numbers; NaN for a missing cell."""
    numbers: list[float] = model.X_train_[row].tolist()
    for column, number in zip(columns_of(model), tuple(numbers), strict=True):
        if column.is_gap and number:
            numbers[int(column.origin)] = np.nan
    return numbers


def describe_bandwidths(model: KernelRegressor) -> list[str]:
    """Return the text of each feature's bandwidth: a number in its units, or its meaning if all weights are equal.

    The meaning is "a straight line", "a parabola" with a square in a surface of second order, or "no influence". If the
    plane has steps, it is "steps" for a category and "a wave" for a periodic feature. With a metric, whose bandwidths
    are along directions, numbers get "".
    """
    rows, coding = model.X_train_[model.sample_weight_ > 0], Coding(model.columns_, model.X_train_.shape[1])
    ranges = np.ptp(rows, axis=0)
    ranges[coding.order[: coding.num_numeric]] = np.ptp(coding.numbers(rows), axis=0)
    coding, result = model._rows.coding, [""] * len(ranges)
    positions = range(len(ranges)) if model.metric_ is None else coding.coded
    widths = model.bandwidth_ if model.metric_ is None else model.bandwidth_[coding.num_numeric :]
    for j, sigma in zip(positions, widths, strict=True):
        result[j] = _describe_bandwidth(model, columns_of(model)[j], float(sigma), float(ranges[j]))
        if result[j] == _STRAIGHT and model._smoother.shrinks and coding.has_square(j):
            result[j] = "a parabola"
    return result


def _describe_bandwidth(model: KernelRegressor, column: Column, sigma: float, spread: float) -> str:
    smoother = model._smoother
    has_steps = smoother.shrinks and len(smoother.trend.spread) > smoother.joined.num_numeric
    if hasattr(model, "classes_"):
        has_steps = model.order_ == "linear"  # of the log-odds
    if column.kind == "periodic":
        if sigma <= _FAR * float(column.levels[0]):
            return format_number(sigma)
        return "a wave" if has_steps else "no influence"
    if column.coded:
        if sigma >= largest_rate(column) * (1 - 1e-6):
            return "steps" if has_steps else "no influence"
        return "separate" if sigma < _SEPARATE else f"λ {sigma:.4g}"
    if spread == 0:
        return "constant"
    if _FAR * spread < sigma:
        if model.order_ == "constant":
            return "no influence"
        return "a line of its logarithm" if column.log else _STRAIGHT
    return format_number(sigma) + (" days" if column.kind == "date" else " of its logarithm" if column.log else "")


def _features(model: KernelRegressor) -> list[tuple[str, str, str, str, str]]:
    x = model.X_train_[model.sample_weight_ > 0]
    low, high = x.min(0), x.max(0)

    def shown(column: Column, end: float) -> str:
        return "" if column.kind == "category" else column.cell_text(end)

    effects = influence(model)
    effects[effects < 1e-6 * effects.max()] = 0  # rounding errors of a column without influence
    features = zip(names_of(model), columns_of(model), low, high, describe_bandwidths(model), effects, strict=True)
    return [
        (name, shown(column, low_end), shown(column, high_end), reach, f"{float(f'{change:.3g}'):,.12g}")
        for name, column, low_end, high_end, reach, change in features
    ]


def _describe_columns(model: KernelRegressor) -> list[str]:
    lines = []
    if model.metric_ is not None:
        widths = ", ".join(format_number(width) for width in model.bandwidth_[: model.metric_.shape[1]])
        lines.append(f"numbers are compared along {model.metric_.shape[1]} directions, with bandwidths {widths}")
    for name, column in zip(names_of(model), columns_of(model), strict=True):
        if column.kind == "date":
            lines.append(f"{name}: dates, counted in days since {column.cell_text(0)}")
        elif column.kind == "periodic":
            lines.append(f"{name}: repeats after {float(column.levels[0]):g}")
        elif column.coded:
            order, ellipsis = " in this order" * (column.kind == "ordered"), ", …" * (len(column.levels) > _MAX_LEVELS)
            levels = ", ".join(map(str, column.levels[:_MAX_LEVELS]))
            lines.append(f"{name}: {len(column.levels)} categories{order}, {levels}{ellipsis}")
    return lines


def _describe_rows(model: KernelRegressor, left_out: LeftOut, held_out: LeftOut | None, count: int | None) -> list[str]:
    has_weight = model.sample_weight_ > 0
    count = len(has_weight) if count is None else count
    omitted = f", {count - len(has_weight):,} left out for missing cells" if len(has_weight) < count else ""
    weighted = "" if has_weight.all() else f", {has_weight.sum():,} of them with weight"
    lines = [f"rows: {count:,}{omitted}{weighted}"]
    if hasattr(model, "classes_"):
        return [*lines, *_describe_classes(model, held_out)]
    if held_out is not None and not math.isnan(held_out.error):
        explained = "" if math.isnan(held_out.r2) else f"R² {held_out.r2:.3f}, "
        lines.append(f"held-out rows: {explained}root mean squared error {format_number(math.sqrt(held_out.error))}")
    if not math.isnan(left_out.error):
        criterion = _USED_IN_SEARCH if model.history_ and model.folds_ is None else ""
        lines.append(f"leave-one-out{criterion}: root mean squared error {format_number(math.sqrt(left_out.error))}")
    if model.history_ and model.folds_ is not None:
        error = math.sqrt(model.history_[-1]["error"])
        lines.append(f"cross-validation{_USED_IN_SEARCH}: root mean squared error {format_number(error)}")
    lines.append(f"effective degrees of freedom: {model.effective_degrees_of_freedom():.1f}")
    return lines


def _describe_classes(model: Any, held_out: LeftOut | None) -> list[str]:
    counts = model.sample_weight_.astype(np.float64) @ model.y_train_
    classes = ", ".join(
        f"{label} {share:.0%}"
        for label, share in zip(model.classes_[:_MAX_LEVELS], counts / counts.sum(), strict=False)
    )
    lines = [f"classes: {classes}{', …' * (len(counts) > _MAX_LEVELS)}"]
    if held_out is not None and not math.isnan(held_out.error):
        known = ~np.isnan(held_out.predicted).any(1) & (model.sample_weight_ > 0)
        p, y, weight = held_out.predicted[known], model.y_train_[known], model.sample_weight_[known]
        loss = np.average(-np.log((p * y).sum(1).clip(1e-15)), weights=weight)
        right = np.average(p.argmax(1) == y.argmax(1), weights=weight)
        lines.append(f"held-out rows: accuracy {right:.3f}, log-loss {loss:.3f}")
    if model.history_:
        name = "leave-one-out{}: penalised" if model.folds_ is None else "cross-validation{}:"
        lines.append(f"{name.format(_USED_IN_SEARCH)} log-loss {model.history_[-1]['error']:.3f}")
    return lines
