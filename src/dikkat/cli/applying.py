"""`dikkat regress --apply`: a table predicted by a model that was saved."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dikkat.cli.columns import added, predicted, say_form
from dikkat.errors import InputError

if TYPE_CHECKING:
    from dikkat.regression import NadarayaWatson
    from dikkat.regression.dialects import Asked
    from dikkat.regression.tables import Table


def apply(path: Path, table: Path, form: "Asked", level: float | None, drops: bool, output: Path) -> None:
    """Predict the rows of a table, and write it with the predictions, whole or not at all.

    Rows that lack cells are an error, or get no prediction if they are dropped.
    """
    from dikkat.regression import NadarayaWatson
    from dikkat.regression.progress import Working
    from dikkat.regression.tables import Table

    model, rows = NadarayaWatson.load(path), Table(table, form)
    kinds = _kinds(path, model, rows)
    written = output / f"predictions{rows.suffix}"
    if written.resolve() == rows.path.resolve():
        raise InputError(f"{written}: the predictions would replace the table itself; give another --output")
    if written.is_dir():
        raise InputError(f"{written}: a folder is in the way; give another --output")
    names = added(model.target_name_, band=level is not None)
    rows.check_writable(written, names)
    orders = {
        name: list(map(str, column.levels))
        for name, column in zip(kinds, model.columns_, strict=False)
        if column.kind == "ordered" and isinstance(column.levels[0], str)
    }
    texts = [
        name
        for name, column in zip(kinds, model.columns_, strict=False)
        if column.kind == "category" and all(isinstance(level, str) for level in column.levels)
    ]
    x = rows.frame(kinds, drops, orders, texts)
    try:
        with Working("predicting", None, len(rows) * len(model.X_train_)).shown():
            found = predicted(model, x, level)
    except ValueError as error:
        raise InputError(f"{rows.path}: {error}") from error
    other = [name for name in rows.names if name not in kinds]
    print(f"features: {', '.join(kinds)}")
    if other:
        print(f"not used: {', '.join(other)}")
    say_form(rows)
    lost = int(np.isnan(found[0]).sum())
    print(f"rows: {len(rows):,}" + (f", {lost:,} without a prediction" if lost else ""))
    rows.write(written, dict(zip(names, found, strict=True)))
    print(f"predictions: {written}")


def _kinds(path: Path, model: "NadarayaWatson", rows: "Table") -> dict[str, str]:
    """The model's features and what they are."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        raise InputError(f"{path}: fitted to columns without names; expected a model of a table, or of a frame")
    if model.n_outputs_ > 1:
        raise InputError(f"{path}: predicts {model.n_outputs_} columns; expected a model of one")
    if lost := [name for name in names if name not in rows.names]:
        there = ", ".join(rows.names)
        raise InputError(f"{rows.path}: lacks the model's {', '.join(map(repr, lost))}. There are: {there}")
    kinds = [column.kind for column in model.columns_] or ["number"] * len(names)
    return dict(zip(map(str, names), map(str, kinds), strict=True))
