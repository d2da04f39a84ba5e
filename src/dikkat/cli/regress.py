"""The command `dikkat regress`: fits, applies and plots a kernel regression of a table."""

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from dikkat.cli.app import Command, app, option
from dikkat.cli.columns import Data, form_options, predict_rows, print_formats
from dikkat.cli.messages import rewriting_warnings
from dikkat.cli.tables import show_table
from dikkat.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dikkat.regression import KernelRegressor
    from dikkat.regression.diagnostics import LeftOut
    from dikkat.regression.dialects import FormOptions
    from dikkat.regression.tables import Table

MODEL, PREDICTIONS = "model.safetensors", "predictions"
_FOLDER = Path("regression")

_VISIBLE = 0.01  # relative difference of attention weights below which a picture of them has one colour
_PICTURES, _ENDINGS = ("fit", "attention"), (".png", ".svg")
_ARGUMENT = re.compile(r"^\w+(?=: got\b)")  # an argument of the estimator in an error message
_SET_NAMES = (  # settings of the estimator for --set
    "kernel", "bandwidth", "ridge", "cv", "weights", "logarithms", "support", "metric", "periodic_features",
)  # fmt: skip
_TEXT_NAMES = ("delimiter", "decimal", "thousands", "encoding", "na")  # for --text
_ADVICE = {  # settings of the estimator in messages
    "weights='precision'": "--set weights=precision", "missing='indicator'": "--missing indicator",
    "cv=20": "--set cv=20", "support=(0, None)": "--set support=0,", "support=(0, 1)": "--set support=0,1",
}  # fmt: skip
_OPTIONS = {"sample_weight": "--weights", "ordered_features": "--ordered", "categorical_features": "--categorical"}
_MISSING = ("refuse", "drop", "indicator")  # the values of --missing
_SET_WORDS = (  # for completion in the shell
    "bandwidth=auto", "bandwidth=loo", "bandwidth=silverman", "bandwidth=scott", "kernel=gaussian",
    "kernel=epanechnikov", "ridge=auto", "logarithms=none", "support=0,", "metric=linear",
)  # fmt: skip
_DATA, _MODEL, _RESULT = "Data", "Model", "Result"

_HELP = {
    "table": "A table with column names: a text file, plain or .gz; a Parquet file or a folder of .parquet files; or - "
    "for text from standard input. Without a table, an example: fifty random points, and a curve with intervals.",
    "target": "The column to predict.",
    "feature": "A column to predict from. Repeatable. [default: all other columns of numbers, dates and categories]",
    "without": "A column to leave out. Repeatable.",
    "categorical": "A column of categories without an order. Repeatable. [default: text columns with few values]",
    "ordered": "A column of ordered categories: numbers, or text as in size=small,medium,large. Repeatable.",
    "missing": "Rows with missing cells: refuse raises an error; drop leaves them out and counts them; indicator "
    "treats a missing cell as a category, so that every row gets a prediction. [default: refuse; with --apply, as in "
    "the fit]",
    "weights": "A column with the weight of each row: 2 counts a row twice, 0 ignores it.",
    "predict": "Another table with the same features, whose target to predict. [default: the table itself]",
    "apply": "Predict TABLE with a saved model, instead of fitting one, and write homes-predictions.csv for homes.csv. "
    "Columns are matched by name.",
    "text": "Format of the text, if it is not detected: delimiter=LETTER or tab, between columns; decimal=. or ,; "
    "thousands=LETTER or none; encoding=NAME, such as cp1250; na=CELL,CELL for missing cells, numbers with a decimal "
    "point. Repeatable.",
    "order": "Local fit: constant (a mean) or linear (a line, which follows slopes to the edge). [default: linear]",
    "set": "Another setting of the model: bandwidth=NUMBER, or one number for each feature, separated by commas, in "
    "units of the feature, or a method: auto, loo, silverman or scott; kernel=gaussian or epanechnikov; ridge=ROWS or "
    "auto; cv=N for a time series: N blocks of rows, each predicted from the other blocks; weights=precision if "
    "--weights are 1/σ²; logarithms=none to compare skewed columns as they are; support=LEAST,GREATEST, the limits of "
    "the target, such as 0, if it cannot be negative; periodic_features=COLUMN:PERIOD, such as hour:24; metric=linear "
    "to learn directions. Repeatable. [default: bandwidth=auto, kernel=gaussian, ridge=auto, logarithms=auto]",
    "interval": "Also write prediction intervals with this coverage, such as 0.9.",
    "folds": "Number of folds for cross-validation, which estimates the error on new rows. Each fold takes as long as "
    "a fit. 0: none. [default: 5]",
    "seed": "Without a table: the seed of the random numbers, at least 0. [default: 0]",
    "textbook": "Without a table: fit the fifty points by the three methods of the textbook.",
    "output": "Folder for the model, the predictions and the pictures. Existing files are replaced. [default: "
    "regression; with --apply, the folder of TABLE]",
}

Names = list[str] | None


def _data(name: str, metavar: str = "COLUMN", *completes: str) -> Any:
    return option(_HELP[name], metavar, panel=_DATA, completes=completes)


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "dikkat regress\n\n"
    "dikkat regress --textbook\n\n"
    "dikkat regress homes.csv --target price --output homes\n\n"
    "dikkat regress homes.csv --target price --feature area --feature age --predict new-homes.csv\n\n"
    "dikkat regress homes.parquet --target price --set kernel=epanechnikov --set bandwidth=12,5\n\n"
    "dikkat regress new-homes.csv --apply homes/model.safetensors --interval 0.9",
)
def regress(
    context: typer.Context,
    table: Annotated[Path | None, typer.Argument(help=_HELP["table"], show_default=False)] = None,
    target: Annotated[str | None, _data("target")] = None,
    feature: Annotated[Names, _data("feature")] = None,
    without: Annotated[Names, _data("without")] = None,
    categorical: Annotated[Names, _data("categorical")] = None,
    ordered: Annotated[Names, _data("ordered")] = None,
    missing: Annotated[str | None, _data("missing", "NAME", *_MISSING)] = None,
    weights: Annotated[str | None, _data("weights")] = None,
    predict: Annotated[Path | None, _data("predict", "TABLE")] = None,
    apply: Annotated[Path | None, _data("apply", "MODEL")] = None,
    text: Annotated[Names, _data("text", "NAME=VALUE")] = None,
    order: Annotated[str | None, option(_HELP["order"], "NAME", panel=_MODEL, completes=("constant", "linear"))] = None,
    settings: Annotated[Names, option(_HELP["set"], "NAME=VALUE", "--set", panel=_MODEL, completes=_SET_WORDS)] = None,
    interval: Annotated[float | None, option(_HELP["interval"], "COVERAGE", panel=_RESULT)] = None,
    folds: Annotated[int | None, option(_HELP["folds"], "N", panel=_RESULT)] = None,
    seed: Annotated[int | None, _data("seed", "N")] = None,
    textbook: Annotated[bool, typer.Option("--textbook", help=_HELP["textbook"], rich_help_panel=_DATA)] = False,
    output: Annotated[Path | None, option(_HELP["output"], "FOLDER", "--output", "-o", panel=_RESULT)] = None,
) -> None:
    """Predict a column of a table from other columns by kernel regression, and draw its attention.

    A prediction is a weighted mean over the rows, in which the nearest rows count most: attention. The bandwidth, which
    defines near, is learned.
    """
    set_options = [name for name, value in context.params.items() if value not in (None, (), [])]
    without_table = ("table", "seed", "textbook", "output")
    table_options = ["set" if name == "settings" else name for name in set_options if name not in without_table]
    if table is None:
        if table_options:
            raise InputError(f"--{table_options[0]} needs a table, as in dikkat regress TABLE --target COLUMN")
        if seed is not None and seed < 0:
            raise InputError(f"--seed: got {seed}; expected at least 0")
        return (_run_experiment if textbook else _fit_curve)(seed or 0, _create_folder(output or _FOLDER))
    if seed is not None or textbook:
        raise InputError(f"{'--textbook' if textbook else '--seed'} is for the example without a table: remove one")
    if folds is not None and (folds < 0 or folds == 1):
        raise InputError(f"--folds: got {folds}; expected at least 2, or 0 for none")
    if interval is not None and not 0 < interval < 1:
        raise InputError(f"--interval: got {interval}; expected a number between 0 and 1, such as 0.9")
    if missing not in (None, *_MISSING):
        raise InputError(f"--missing: got {missing!r}; expected 'refuse', 'drop' or 'indicator'")
    form = form_options(_parse_pairs("text", text, _TEXT_NAMES))
    if apply is not None:
        if fit_options := [name for name in table_options if name not in ("apply", "interval", "missing", "text")]:
            raise InputError(f"--{fit_options[0]} is for fitting and --apply uses a fitted model: remove one of them")
        folder = output or (table.parent if table.is_file() or table.is_dir() else Path())
        return _apply(apply, table, form, interval, missing, _create_folder(folder))
    parameters = {name: _parse(name, value) for name, value in _parse_pairs("set", settings, _SET_NAMES).items()}
    if order is not None:
        parameters["order"] = order
    if missing == "indicator":
        parameters["missing"] = missing
    data = Data.read(table, context.params, form, parameters)
    output = _create_folder(output or _FOLDER)
    return _fit(parameters, data, interval, 5 if folds is None else folds, missing or "refuse", output)


def _parse_pairs(option: str, texts: Sequence[str] | None, known: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or name not in known:
            raise InputError(f"--{option}: got {text!r}; expected NAME=VALUE, with one of {', '.join(known)}")
        pairs[name] = value
    return pairs


def _parse(name: str, text: str) -> Any:
    from dikkat.regression.columns import is_number

    if name == "cv":
        if not text.isdecimal() or int(text) < 2:
            raise InputError(f"--set cv: got {text!r}; expected a whole number of at least 2")
        return int(text)
    if name == "support":
        ends = [end.strip() for end in text.split(",")]
        if len(ends) != 2 or not all(is_number(end) for end in ends if end):
            raise InputError(
                f"--set support: got {text!r}; expected LEAST,GREATEST, such as 0,1, or 0, for no greatest"
            )
        return tuple(float(end) if end else None for end in ends)
    if name == "periodic_features":
        pairs = [pair.rpartition(":") for pair in text.split(",")]
        if not all(column and is_number(period) for column, _, period in pairs):
            raise InputError(f"--set periodic_features: got {text!r}; expected COLUMN:PERIOD, such as hour:24")
        return {column: float(period) for column, _, period in pairs}
    if name not in ("bandwidth", "ridge"):
        return None if (name, text) == ("logarithms", "none") else text
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        return text
    return numbers[0] if len(numbers) == 1 else numbers


def _fit(
    parameters: dict[str, Any], data: Data, coverage: float | None, folds: int, missing: str, output: Path
) -> None:
    from sklearn.model_selection import KFold

    from dikkat.regression import KernelRegressor, diagnostics, summary
    from dikkat.regression.progress import working

    file = output / f"{PREDICTIONS}{data.queries.suffix}"
    names = _check_output(file, data.queries, data.target, coverage, data.rows.path)
    _check_free(output / MODEL, *(output / f"{name}{ending}" for name in _PICTURES for ending in _ENDINGS))
    begin = time.perf_counter()
    x, y, weight = data.training_rows(missing)
    queries = data.frame(data.queries, missing != "refuse")
    row_pairs, query_pairs = len(y) ** 2, len(data.queries) * len(y)
    with _naming_options({"y": f"column {data.target!r}", "X": str(data.rows.path)}):
        with working("finding the bandwidth", None, row_pairs):
            model = KernelRegressor(**parameters, **data.categories()).fit(x, y, weight)
        model.target_name_ = data.target
        # An estimate and its deviation are one sum over the rows each, as are the error and degree of freedom of a row.
        with working("predicting", 2 * query_pairs + 2 * row_pairs, row_pairs):
            predictions = dict(zip(names, predict_rows(model, queries, coverage, missing), strict=True))
            left_out = diagnostics.leave_out(model)
        with working(f"holding out {folds} folds", None, row_pairs):
            held_out = diagnostics.hold_out(model, folds if model.cv is None else KFold(folds)) if folds else None
    report = summary.make_summary(model, left_out, held_out, len(data.rows), data.left_out)
    show_table(report.headings, report.features)
    print("\n".join(report.columns), end="\n" * bool(report.columns))
    print_formats(data.rows, data.queries)
    print("\n".join(report.rows))
    print(f"seconds: {time.perf_counter() - begin:.1f}")
    _write("model", output / MODEL, model.save)
    _write("predictions", file, lambda path: data.queries.write(path, predictions))
    _draw(model, data, left_out, coverage, output)


def _apply(
    path: Path, table: Path, form: "FormOptions", coverage: float | None, missing: str | None, output: Path
) -> None:
    """Write a table with predictions; without `missing`, treat missing cells as the fit of the model did."""
    from dikkat.regression import KernelRegressor
    from dikkat.regression.dialects import STDIN
    from dikkat.regression.progress import working
    from dikkat.regression.tables import Table

    model, rows = KernelRegressor.load(path), Table(table, form)
    kinds, missing = _feature_kinds(path, model, rows), missing or model.missing
    if missing == "indicator" != model.missing:
        raise InputError(f"--missing: got 'indicator', but {path} was fitted without it; expected 'refuse' or 'drop'")
    name = "stdin" if table == STDIN else re.sub(rf"(?i){re.escape(rows.suffix)}(\.gz)?$", "", table.name)
    file = output / f"{name}-{PREDICTIONS}{rows.suffix}"
    names = _check_output(file, rows, model.target_name_, coverage)
    levels = {
        name: list(map(str, column.levels))
        for name, column in zip(kinds, model.columns_, strict=False)
        if column.coded and all(isinstance(level, str) for level in column.levels)
    }
    orders = {name: levels[name] for name in levels if kinds[name] == "ordered"}
    texts = [name for name in levels if kinds[name] == "category"]
    x = rows.frame(kinds, missing != "refuse", orders, texts)
    with _naming_options({"X": str(rows.path)}), working("predicting", None, len(rows) * len(model.X_train_)):
        columns = predict_rows(model, x, coverage, missing)
    unused = [name for name in rows.names if name not in kinds]
    print(f"features: {', '.join(kinds)}")
    if unused:
        print(f"not used: {', '.join(unused)}")
    print_formats(rows)
    skipped = int(np.isnan(columns[0]).sum())
    print(f"rows: {len(rows):,}" + (f", {skipped:,} without a prediction" if skipped else ""))
    _write("predictions", file, lambda path: rows.write(path, dict(zip(names, columns, strict=True))))


def _feature_kinds(path: Path, model: "KernelRegressor", rows: "Table") -> dict[str, str]:
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        raise InputError(f"{path}: got a model of columns without names; expected a model of a table or data frame")
    if model.n_outputs_ > 1:
        raise InputError(f"{path}: got a model that predicts {model.n_outputs_} columns; expected one column")
    if missing := [name for name in names if name not in rows.names]:
        raise InputError(f"{rows.path}: lacks the columns {', '.join(map(repr, missing))}; got {', '.join(rows.names)}")
    kinds = [column.kind for column in model.columns_ if not column.is_gap] or ["number"] * len(names)
    return dict(zip(map(str, names), map(str, kinds), strict=True))


def _check_output(file: Path, table: "Table", target: str | None, coverage: float | None, *inputs: Path) -> list[str]:
    """Return the names of the columns of the predictions; raise InputError if the file cannot be written."""
    prefix = f"{target}_" if target else ""
    names = [f"{prefix}{name}" for name in ("predicted", "std", *["lower", "upper"] * (coverage is not None))]
    if file.resolve() in [path.resolve() for path in (table.path, *inputs)]:
        raise InputError(f"{file}: the predictions would replace the table itself; give another --output")
    table.check_writable(file, names)
    _check_free(file)
    return names


def _draw(model: "KernelRegressor", data: Data, left_out: "LeftOut", coverage: float | None, output: Path) -> None:
    from dikkat.regression import columns, diagnostics, pictures, report

    has_weight, names = model.sample_weight_ > 0, columns.names_of(model)
    y = model.y_train_[has_weight]
    drawn, omitted = report.choose_features(model, report.PANELS - 1)
    curves = [diagnostics.curve_along(model, c, names[c], coverage) for c in drawn]
    notes = report.notes_of(model, omitted)
    if len(names) == 1 and curves:
        _save(pictures.draw_curve(curves[0], y, data.target), output / "fit")
    else:
        _save(pictures.draw_fit(left_out.predicted[has_weight], y, curves, data.target, notes), output / "fit")
    feature = drawn[0] if drawn else 0  # the feature with the largest effect
    attention = diagnostics.among(model, model.X_train_[:, feature])
    if np.ptp(attention.weights, axis=0).max() > _VISIBLE * attention.weights.max():
        figure = pictures.draw_attention(attention, names[feature], columns.columns_of(model)[feature])
        return _save(figure, output / "attention")
    for ending in _ENDINGS:  # of an earlier run
        (output / f"attention{ending}").unlink(missing_ok=True)
    print("no picture of the attention: each row has the same weight in all predictions")


def _fit_curve(seed: int, output: Path) -> None:
    from dikkat.regression import KernelRegressor, diagnostics, experiment, pictures, tables

    points = experiment.run_experiment(seed)
    model = KernelRegressor().fit(points.x[:, None], points.y)
    print("y = 2 sin x + x^0.8 + noise of standard deviation 0.5, 50 points")
    report = model.summary()
    show_table(report.headings, report.features)
    print("\n".join(report.rows))
    _write("model", output / MODEL, model.save)
    at = points.at[:, None]
    lower, upper = model.predict_interval(at, 0.9)
    predictions = {"predicted": np.asarray(model.predict(at)), "lower": lower, "upper": upper}
    columns = {"x": points.at, "truth": points.truth, **predictions}
    _write("predictions", output / f"{PREDICTIONS}.csv", lambda path: tables.write_columns(path, columns))
    _save(pictures.draw_curve(diagnostics.curve_along(model, 0, "x", 0.9), points.y, "y"), output / "fit")


def _run_experiment(seed: int, output: Path) -> None:
    from dikkat.regression import diagnostics, experiment, pictures, tables

    result, rows = experiment.run_experiment(seed), []
    for pooling in result.poolings:
        sigma = "" if pooling.model.bandwidth == experiment.EVERYWHERE else f"{pooling.model.bandwidth_[0]:.4g}"
        rows.append([pooling.name, sigma, f"{diagnostics.leave_out(pooling.model).error:.4f}", f"{pooling.error:.4f}"])
    print("y = 2 sin x + x^0.8 + noise of standard deviation 0.5, 50 training points; mean squared errors")
    show_table(["", "bandwidth", "leave-one-out", "from the true curve"], rows)
    learned = result.poolings[-1].model
    history = enumerate(learned.history_)
    steps = [[str(epoch), f"{step['bandwidth'][0]:.4g}", f"{step['error']:.4f}"] for epoch, step in history]
    print()
    show_table(["epoch", "bandwidth", "leave-one-out"], steps)
    print()
    _write("model", output / MODEL, learned.save)
    names, columns = ("average", "gaussian", "learned"), {"x": result.at, "truth": result.truth}
    columns |= {name: pooling.predicted for name, pooling in zip(names, result.poolings, strict=True)}
    _write("predictions", output / f"{PREDICTIONS}.csv", lambda path: tables.write_columns(path, columns))
    _save(pictures.draw_experiment(result), output / "experiment")


def _save(figure: "Figure", path: Path) -> None:
    from dikkat.show import save

    for ending in _ENDINGS:
        _write("picture", path.with_suffix(ending), lambda file: save(figure, file))


def _write(label: str, path: Path, write: Callable[[Path], object]) -> None:
    """Write a file, and print its path and whether it replaces a file."""
    note = " (replaced)" if path.exists() else ""
    write(path)
    print(f"{label}: {path}{note}")


def _create_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}; give another folder with --output") from error


def _check_free(*paths: Path) -> None:
    for path in paths:
        if path.is_dir():
            raise InputError(f"{path}: got a folder; expected a file or a new path. Choose another --output")


@contextmanager
def _naming_options(sources: Mapping[str, str]) -> Iterator[None]:
    """Replace arguments of the estimator in errors and warnings by `sources` (files and columns) and options."""

    def name_argument(match: re.Match[str]) -> str:
        name = match[0]
        return sources.get(name) or _OPTIONS.get(name) or (f"--set {name}" if name in _SET_NAMES else f"--{name}")

    def rewrite(message: str) -> str:
        for setting, words in _ADVICE.items():
            message = message.replace(setting, words)
        return _ARGUMENT.sub(name_argument, message)

    with rewriting_warnings(rewrite):
        try:
            yield
        except ValueError as error:
            raise InputError(rewrite(str(error))) from error
