"""The tables and columns that `dikkat regress` is about, and the kinds that columns are taken as."""

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

_NAMES = {"tab": "\t", "space": " ", "none": ""}  # letters that are hard to type


def form_options(text: Mapping[str, str]) -> "FormOptions":
    """The form of text by the values of --text."""
    from dikkat.regression.dialects import FormOptions

    letters = {name: _NAMES.get(given, given) for name, given in text.items() if name != "na"}
    for name in ("delimiter", "decimal", "thousands"):
        given = letters.get(name)
        if given is not None and (len(given) > 1 or (not given and name != "thousands")):
            raise InputError(f"--text {name}: got {text[name]!r}; expected one letter")
    if letters.get("decimal") not in (None, ".", ","):
        raise InputError(f"--text decimal: got {text['decimal']!r}; expected . or ,")
    if letters.get("decimal") and letters.get("decimal") == letters.get("thousands"):
        raise InputError(f"--text decimal and thousands: got {letters['decimal']!r} for both; expected different ones")
    return FormOptions(**letters, na=tuple(each.strip() for each in text["na"].split(",")) if "na" in text else ())


@dataclass(frozen=True)
class Data:
    """The tables, and which columns of them are meant."""

    rows: "Table"  # to learn from
    queries: "Table"  # to predict
    target: str
    kinds: dict[str, str]  # the columns to predict from: each is taken as "number", "date", "category" or "ordered"
    weights: str | None
    left_out: dict[str, str]  # the other columns, and why
    orders: dict[str, list[str]]  # the levels of ordered columns of text

    @property
    def features(self) -> list[str]:
        """The columns to predict from."""
        return list(self.kinds)

    @classmethod
    def read(cls, table: Path, given: Mapping[str, Any], form: "FormOptions", settings: Mapping[str, Any]) -> "Data":
        """Read the tables that the options name, and find out which columns are meant."""
        from dikkat.regression.dialects import STDIN
        from dikkat.regression.tables import Table

        if table == given["predict"] == STDIN:
            raise InputError("--predict: got -, as the table is; standard input can be read once")
        rows, target, weights = Table(table, form), given["target"], given["weights"]
        if target is None:
            there = ", ".join(rows.numeric()) or f"it has no column of numbers{_reasons(rows.usable()[1])}"
            raise InputError(f"say with --target which column of {table} to predict: {there}")
        used = [target] if weights is None else [target, weights]
        orders = dict(_orders(given["ordered"] or ()))
        declared = {**dict.fromkeys(given["categorical"] or (), "category"), **dict.fromkeys(orders, "ordered")}
        for name in (*used, *declared, *(given["without"] or ())):
            rows.check_once(name)
        features: list[str] = list(given["feature"] or ())
        left_out: dict[str, str] = {}
        if not features:
            skipped = dict.fromkeys(given["without"] or (), "was to be left out")
            features, left_out = rows.usable(*used, *skipped, *declared)
            features = [name for name in rows.names if name in features or (name in declared and name not in skipped)]
            left_out |= skipped
            if settings.get("kernel", "gaussian") != "gaussian":
                for name in [name for name in features if name not in declared and rows.kind(name) == "category"]:
                    features.remove(name)
                    left_out[name] = "holds text, and categories need the gaussian kernel"
        elif lost := [name for name in declared if name not in features]:
            raise InputError(f"column {lost[0]!r} is declared a category; expected --feature {lost[0]} too")
        elif both := [name for name in features if name in (given["without"] or ())]:
            raise InputError(
                f"column {both[0]!r} is given both with --feature and with --without; leave out one of them"
            )
        for name in features:
            rows.check_once(name)
            if given["feature"] and name not in declared:
                rows.check_usable(name)
        if not features:
            raise InputError(f"{table}: there is no other column to predict {target!r} from{_reasons(left_out)}")
        if twice := [name for name in [*used, *features] if [*used, *features].count(name) > 1]:
            raise InputError(
                f"column {twice[0]!r} is given twice: each can be one of --target, --weights and --feature"
            )
        kinds = {name: declared.get(name) or rows.kind(name) for name in features}
        known = {name: levels for name, levels in orders.items() if levels}
        return cls(
            rows, Table(given["predict"], form) if given["predict"] else rows, target, kinds, weights, left_out, known
        )

    def frame(self, table: "Table", missing: bool) -> "pyarrow.Table":
        """The features of a table, for `KernelRegressor`."""
        texts = [name for name, kind in self.kinds.items() if kind == "category" and self.rows.holds_text(name)]
        return table.frame(self.kinds, missing, self.orders, texts)

    def learned(self, drops: bool, gaps: bool = False) -> "tuple[pyarrow.Table, Array, Array | None]":
        """Rows to learn from: features, target and weights; without those that lack cells, if they are dropped.

        With `gaps` features may lack cells, and rows without a target are dropped.
        """
        import pyarrow

        x, y = self.frame(self.rows, drops or gaps), self.rows.numbers(self.target, missing=drops or gaps)[:, 0]
        weight = None if self.weights is None else self.rows.numbers(self.weights)[:, 0]
        there = (gaps | complete(x)) & ~np.isnan(y)
        if there.all():
            return x, y, weight
        if not there.any():
            raise InputError(f"{self.rows.path}: each of its {len(y):,} rows lacks a cell; expected one without")
        return x.filter(pyarrow.array(there)), y[there], None if weight is None else weight[there]

    def categories(self) -> dict[str, Any]:
        """The settings that say which columns are categories."""
        result = {
            f"{setting}_features": [name for name, each in self.kinds.items() if each == kind] or None
            for setting, kind in (("categorical", "category"), ("ordered", "ordered"))
        }
        return result if any(result.values()) else {}


def _orders(given: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Columns with their levels in order; no levels where the numbers have one."""
    for each in given:
        name, sign, levels = each.partition("=")
        result = [level.strip() for level in levels.split(",")] if sign else []
        if sign and (len(result) < 2 or len(set(result)) < len(result) or not all(result)):
            raise InputError(f"--ordered: got {each!r}; expected a column, or one with levels: size=low,high")
        yield name.strip(), result


def _reasons(left_out: Mapping[str, str]) -> str:
    return "".join(f"; {name!r} {held}" for name, held in left_out.items())


def complete(x: "pyarrow.Table") -> "NDArray[np.bool_]":
    """The rows that lack no cell."""
    from pyarrow import compute, types

    there = np.ones(x.num_rows, bool)
    for column in x.columns:
        there &= ~np.asarray(compute.is_null(column, nan_is_null=types.is_floating(column.type)))
    return there


def predicted(model: "KernelRegressor", x: "pyarrow.Table", coverage: float | None) -> "list[Array]":
    """The values of these columns: NaN in rows that lack a cell, with a warning."""
    import pyarrow

    there = complete(x) | (model.missing == "indicator")
    if not there.all():
        warnings.warn(f"{(~there).sum():,} of {len(there):,} rows lack a cell and get no prediction", stacklevel=2)
        x = x.filter(pyarrow.array(there))
    result = np.full((2 if coverage is None else 4, len(there)), np.nan)
    if there.any():
        result[:2, there] = model.predict(x, return_std=True)
    if there.any() and coverage is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what was said of the predictions is true of the interval
            result[2:, there] = model.predict_interval(x, coverage)
    return list(result)


def say_form(*tables: "Table") -> None:
    """Print the form of each text that is not written in the usual way."""
    from dikkat.regression.dialects import Form

    for each in {table.path: table for table in tables}.values():
        if each.form._replace(encoding=each.form.encoding.removesuffix("-sig")) != Form():
            print(f"{each.path}: read as {each.form}")
