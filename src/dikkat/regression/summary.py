"""The summary of a fitted regressor, in words and numbers: for a person at a prompt, and for the command."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.model_selection import KFold, PredefinedSplit

from dikkat.regression.columns import Column, columns_of, names_of, written
from dikkat.regression.diagnostics import LeftOut, hold_out, influence, leave_out
from dikkat.regression.joined import largest

if TYPE_CHECKING:
    from dikkat.regression.estimator import KernelRegressor

HEADINGS = ["feature", "from", "to", "bandwidth", "moves y by"]
_FAR = 1e3  # bandwidth over a feature's range at which all its values weigh alike
_ALONE = 1e-6  # λ below which other categories do not count
_LEVELS = 5  # most categories that are named
_CHOSEN = ", by which the bandwidth was chosen"


@dataclass(frozen=True)
class Summary:
    """A fitted model in words.

    Attributes:
        features: Of each feature its name, least and greatest value, bandwidth, or what that means, and by how much it
            moves the estimate: the root mean square change where it is put in its middle.
        columns: What there is to say of columns: the categories, where days are counted from, what was left out.
        rows: Of rows: how many there are, and how well they are predicted from others.
        left_out: Each row predicted from the others.
        held_out: Each row predicted by a model of other folds, with everything chosen anew; None without folds.
    """

    features: list[tuple[str, str, str, str, str]]
    columns: list[str]
    rows: list[str]
    left_out: LeftOut
    held_out: LeftOut | None

    def __str__(self) -> str:
        cells = [tuple(HEADINGS), *self.features]
        wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
        table = [
            "  ".join(cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(each))
            for each in (list(zip(row, wide, strict=True)) for row in cells)
        ]
        return "\n".join([*table, *self.columns, *self.rows])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = [f"<tr>{''.join(f'<th>{each}</th>' for each in HEADINGS)}</tr>"]
        table += [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.features]
        return f"<table>{''.join(table)}</table><p>{'<br>'.join(map(escape, [*self.columns, *self.rows]))}</p>"


def summarised(model: KernelRegressor, folds: int) -> Summary:
    """The summary of a model whose rows are held out in so many folds; 0 for none."""
    return described(model, leave_out(model), hold_out(model, _splitter(model, folds)) if folds else None)


def _splitter(model: KernelRegressor, folds: int) -> Any:
    """The folds themselves; of a model with `cv` blocks of rows, or of a splitter its own folds, joined to so many."""
    if model.cv is None:
        return folds
    if isinstance(model.cv, Integral) or model.folds_ is None:
        return KFold(folds)
    tested = model.folds_ == 2  # groups are not to be cut
    return PredefinedSplit(np.where(tested.any(0), tested.argmax(0) * folds // len(tested), -1))


def described(
    model: KernelRegressor,
    left_out: LeftOut,
    held_out: LeftOut | None,
    count: int | None = None,
    others: Mapping[str, str] | None = None,
) -> Summary:
    """The summary of a model of so many rows, some of which may have been left out, as `others`, columns, were."""
    lacking = [
        f"left out: {f'{name}, which' if name else 'a column that'} {held}" for name, held in (others or {}).items()
    ]
    rows = _of_rows(model, left_out, held_out, count)
    return Summary(_features(model), [*_of_columns(model), *lacking], rows, left_out, held_out)


def row_of(model: KernelRegressor, row: int) -> list[float]:
    """The numbers of a training row's cells, NaN where the cell was missing."""
    numbers: list[float] = model.X_train_[row].tolist()
    for column, number in zip(columns_of(model), tuple(numbers), strict=True):
        if column.is_gap and number:
            numbers[int(column.origin)] = np.nan
    return numbers


def reaches(model: KernelRegressor) -> list[str]:
    """The bandwidth of each feature in its units, or what it does where all values weigh alike.

    That is "a straight line"; of categories "steps", and of what comes round "a wave", where the plane has some; or "no
    influence".

    With a metric, which has bandwidths along directions, nothing of numbers.
    """
    ranges = np.ptp(model.X_train_[model.sample_weight_ > 0], axis=0)
    coding, result = model._rows.coding, [""] * len(ranges)
    places = range(len(ranges)) if model.metric_ is None else coding.coded
    widths = model.bandwidth_ if model.metric_ is None else model.bandwidth_[coding.numbers :]
    for j, sigma in zip(places, widths, strict=True):
        result[j] = _reach(model, columns_of(model)[j], float(sigma), float(ranges[j]))
    return result


def _reach(model: KernelRegressor, column: Column, sigma: float, spread: float) -> str:
    smoother = model._smoother
    steps = smoother.drawn and len(smoother.trend.spread) > smoother.joined.numbers
    if column.kind == "periodic":
        return ("a wave" if steps else "no influence") if _FAR * float(column.levels[0]) < sigma else written(sigma)
    if column.coded:
        if sigma >= largest(column) * (1 - 1e-6):
            return "steps" if steps else "no influence"
        return "each by itself" if sigma < _ALONE else f"λ {sigma:.4g}"
    if spread == 0:
        return "constant"
    if _FAR * spread < sigma:
        return "a straight line" if model.order_ == "linear" else "no influence"
    return written(sigma) + (" days" if column.kind == "date" else "")


def _features(model: KernelRegressor) -> list[tuple[str, str, str, str, str]]:
    x = model.X_train_[model.sample_weight_ > 0]
    low, high = x.min(0), x.max(0)

    def shown(column: Column, end: float) -> str:
        return "" if column.kind == "category" else column.shown(end)

    moved = influence(model)
    moved[moved < 1e-6 * moved.max()] = 0  # rounding, of a column that counts for nothing
    of_columns = zip(names_of(model), columns_of(model), low, high, reaches(model), moved, strict=True)
    return [
        (name, shown(column, least), shown(column, most), reach, f"{float(f'{change:.3g}'):,.12g}")
        for name, column, least, most, reach, change in of_columns
    ]


def _of_columns(model: KernelRegressor) -> list[str]:
    lines = []
    if model.metric_ is not None:
        widths = ", ".join(written(each) for each in model.bandwidth_[: model.metric_.shape[1]])
        lines.append(f"numbers are compared along {model.metric_.shape[1]} directions, with bandwidths {widths}")
    for name, column in zip(names_of(model), columns_of(model), strict=True):
        if column.kind == "date":
            lines.append(f"{name}: dates, which count as days since {column.shown(0)}")
        elif column.kind == "periodic":
            lines.append(f"{name}: comes round after {float(column.levels[0]):g}")
        elif column.coded:
            order, more = " in this order" * (column.kind == "ordered"), ", …" * (len(column.levels) > _LEVELS)
            some = ", ".join(map(str, column.levels[:_LEVELS]))
            lines.append(f"{name}: {len(column.levels)} categories{order}, {some}{more}")
    return lines


def _of_rows(model: KernelRegressor, left_out: LeftOut, held_out: LeftOut | None, count: int | None) -> list[str]:
    there = model.sample_weight_ > 0
    count = len(there) if count is None else count
    lacking = f", {count - len(there):,} left out for missing cells" if len(there) < count else ""
    weighted = "" if there.all() else f", {there.sum():,} of them with weight"
    lines = [f"rows: {count:,}{lacking}{weighted}"]
    if held_out is not None and not math.isnan(held_out.error):
        explained = "" if math.isnan(held_out.r2) else f"R² {held_out.r2:.3f}, "
        lines.append(f"on rows held out: {explained}root mean squared error {written(math.sqrt(held_out.error))}")
    if not math.isnan(left_out.error):
        by = _CHOSEN if model.history_ and model.cv is None else ""
        lines.append(f"leaving each row out{by}: root mean squared error {written(math.sqrt(left_out.error))}")
    if model.history_ and model.cv is not None:
        error = math.sqrt(model.history_[-1]["error"])
        lines.append(f"leaving folds out{_CHOSEN}: root mean squared error {written(error)}")
    lines.append(f"effective degrees of freedom: {model.effective_degrees_of_freedom():.1f}")
    return lines
