"""The tables and columns of `dikkat regress`, with the kind of each column."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dikkat.errors import InputError

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]
    from numpy.typing import NDArray

    from dikkat.regression import KernelRegressor
    from dikkat.regression.dialects import FormOptions
    from dikkat.regression.joined import Array
    from dikkat.regression.tables import Table

_LETTERS = {"tab": "\t", "space": " ", "none": ""}  # hard to type


def form_options(text: Mapping[str, str]) -> "FormOptions":
    """Return the format of text from the values of --text."""
    from dikkat.regression.dialects import FormOptions

    letters = {name: _LETTERS.get(value, value) for name, value in text.items() if name != "na"}
    for name in ("delimiter", "decimal", "thousands"):
        letter = letters.get(name)
        if letter is not None and (len(letter) > 1 or (not letter and name != "thousands")):
            raise InputError(f"--text {name}: got {text[name]!r}; expected one letter")
    if letters.get("decimal") not in (None, ".", ","):
        raise InputError(f"--text decimal: got {text['decimal']!r}; expected '.' or ','")
    if letters.get("decimal") and letters.get("decimal") == letters.get("thousands"):
        raise InputError(f"--text decimal and thousands: got {letters['decimal']!r} for both; expected different ones")
    return FormOptions(**letters, na=tuple(cell.strip() for cell in text["na"].split(",")) if "na" in text else ())


@dataclass(frozen=True)
class Data:
    """The tables, and the role and kind of each column."""

    rows: "Table"  # for training
    queries: "Table"  # to predict
    target: str
    kinds: dict[str, str]  # of each feature: "number", "date", "category" or "ordered"
    weights: str | None
    left_out: dict[str, str]  # the unused columns, with reasons
    orders: dict[str, list[str]]  # the levels of ordered text columns

    @classmethod
    def read(cls, table: Path, options: Mapping[str, Any], form: "FormOptions", settings: Mapping[str, Any]) -> "Data":
        """Read the tables of the options, and select the columns."""
        from dikkat.regression.dialects import STDIN
        from dikkat.regression.tables import Table

        if table == options["predict"] == STDIN:
            raise InputError("--predict: got -, like the table; expected a file, as standard input can be read once")
        rows, target, weights = Table(table, form), options["target"], options["weights"]
        if target is None:
            choices = ", ".join(rows.numeric()) or f"no column has numbers{_format_reasons(rows.usable()[1])}"
            raise InputError(f"--target: missing; expected a column of {table}: {choices}")
        used = [target] if weights is None else [target, weights]
        orders = dict(_parse_orders(options["ordered"] or ()))
        declared = {**dict.fromkeys(options["categorical"] or (), "category"), **dict.fromkeys(orders, "ordered")}
        for name in (*used, *declared, *(options["without"] or ())):
            rows.check_once(name)
        for name, levels in orders.items():
            if name in (options["categorical"] or ()):
                raise InputError(f"column {name!r}: got --ordered and --categorical; expected only one of them")
            if not levels and rows.holds_text(name):
                raise InputError(
                    f"--ordered: got {name!r}, which holds text; expected --ordered {name}=LOWEST,…,HIGHEST"
                )
        features: list[str] = list(options["feature"] or ())
        left_out: dict[str, str] = {}
        if not features:
            excluded = dict.fromkeys(options["without"] or (), "is excluded by --without")
            features, left_out = rows.usable(*used, *excluded, *declared)
            features = [name for name in rows.names if name in features or (name in declared and name not in excluded)]
            left_out |= excluded
            if settings.get("kernel", "gaussian") != "gaussian":
                for name in [name for name in features if name not in declared and rows.kind(name) == "category"]:
                    features.remove(name)
                    left_out[name] = "holds text, and categories need the gaussian kernel"
        elif unselected := [name for name in declared if name not in features]:
            raise InputError(f"column {unselected[0]!r} is declared a category; expected --feature {unselected[0]} too")
        elif conflicting := [name for name in features if name in (options["without"] or ())]:
            raise InputError(f"column {conflicting[0]!r}: got --feature and --without; expected only one of them")
        for name in features:
            rows.check_once(name)
            if options["feature"] and name not in declared:
                rows.check_usable(name)
        if not features:
            raise InputError(f"{table}: there is no other column to predict {target!r} from{_format_reasons(left_out)}")
        if repeated := [name for name in [*used, *features] if [*used, *features].count(name) > 1]:
            raise InputError(f"column {repeated[0]!r}: got two uses; expected one of --target, --weights and --feature")
        kinds = {name: declared.get(name) or rows.kind(name) for name in features}
        known_orders = {name: levels for name, levels in orders.items() if levels}
        queries = Table(options["predict"], form) if options["predict"] else rows
        return cls(rows, queries, target, kinds, weights, left_out, known_orders)

    def frame(self, table: "Table", missing: bool) -> "pyarrow.Table":
        """Return the features of a table, for `KernelRegressor`."""
        texts = [name for name, kind in self.kinds.items() if kind == "category" and self.rows.holds_text(name)]
        return table.frame(self.kinds, missing, self.orders, texts)

    def training_rows(self, missing: str) -> "tuple[pyarrow.Table, Array, Array | None]":
        """Return features, target and weights of the training rows: with "indicator", features may be missing."""
        import pyarrow

        may_miss = missing != "refuse"
        x, y = self.frame(self.rows, may_miss), self.rows.numbers(self.target, missing=may_miss)[:, 0]
        weight = None if self.weights is None else self.rows.numbers(self.weights, missing=may_miss)[:, 0]
        usable = ((missing == "indicator") | find_complete_rows(x)) & ~np.isnan(y if weight is None else y + weight)
        if usable.all():
            return x, y, weight
        if not usable.any():
            raise InputError(
                f"{self.rows.path}: all {len(y):,} rows have a missing cell; expected at least one complete row"
            )
        return x.filter(pyarrow.array(usable)), y[usable], None if weight is None else weight[usable]

    def categories(self) -> dict[str, Any]:
        """Return the arguments of the estimator that list the categorical and ordered columns."""
        arguments = {
            f"{setting}_features": [name for name, feature_kind in self.kinds.items() if feature_kind == kind] or None
            for setting, kind in (("categorical", "category"), ("ordered", "ordered"))
        }
        return arguments if any(arguments.values()) else {}


def _parse_orders(texts: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each ordered column and its categories, lowest first; numeric columns may come without categories."""
    for text in texts:
        name, sign, listed = text.partition("=")
        levels = [level.strip() for level in listed.split(",")] if sign else []
        if sign and (len(levels) < 2 or len(set(levels)) < len(levels) or not all(levels)):
            raise InputError(f"--ordered: got {text!r}; expected a column, or one with levels: size=low,high")
        yield name.strip(), levels


def _format_reasons(left_out: Mapping[str, str]) -> str:
    return "".join(f"; {name!r} {reason}" for name, reason in left_out.items())


def find_complete_rows(x: "pyarrow.Table") -> "NDArray[np.bool_]":
    """Return the mask of the rows without missing cells."""
    from pyarrow import compute, types

    complete = np.ones(x.num_rows, bool)
    for column in x.columns:
        complete &= ~np.asarray(compute.is_null(column, nan_is_null=types.is_floating(column.type)))
    return complete


def predict_rows(model: "KernelRegressor", x: "pyarrow.Table", coverage: float | None, missing: str) -> "list[Array]":
    """Return predictions, deviations and, with a coverage, both ends of intervals; NaN for rows that are dropped."""
    import pyarrow

    usable = find_complete_rows(x) | (missing == "indicator")
    if not usable.all():
        warnings.warn(
            f"{(~usable).sum():,} of {len(usable):,} rows have a missing cell and get no prediction", stacklevel=2
        )
        x = x.filter(pyarrow.array(usable))
    columns = np.full((2 if coverage is None else 4, len(usable)), np.nan)
    if usable.any():
        columns[:2, usable] = model.predict(x, return_std=True)
    if usable.any() and coverage is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `predict` gave the same warnings
            columns[2:, usable] = model.predict_interval(x, coverage)
    return list(columns)


def print_formats(*tables: "Table") -> None:
    """Print the format of each text table that is not plain CSV in UTF-8."""
    from dikkat.regression.dialects import Form

    for table in {table.path: table for table in tables}.values():
        if table.form._replace(encoding=table.form.encoding.removesuffix("-sig")) != Form():
            print(f"{table.path}: read as {table.form}")
