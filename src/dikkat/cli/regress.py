"""`dikkat regress`."""

import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from dikkat.cli.app import Command, app, option
from dikkat.cli.columns import Data, form_options, predicted, say_form
from dikkat.cli.tables import show_table
from dikkat.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dikkat.regression import KernelRegressor
    from dikkat.regression.diagnostics import LeftOut
    from dikkat.regression.dialects import FormOptions
    from dikkat.regression.tables import Table

MODEL, PREDICTIONS = "model.safetensors", "predictions"

_PICTURES, _ENDINGS = ("fit", "attention"), (".png", ".svg")
_ARGUMENT = re.compile(r"^\w+(?=: got\b)")  # the estimator's argument in the message of an error
_SET = ("kernel", "bandwidth", "ridge", "cv", "weights")  # the estimator's settings for --set
_TEXT = ("delimiter", "decimal", "thousands", "encoding", "na")  # the names for --text
_OPTIONS = {"sample_weight": "--weights", "ordered_features": "--ordered", "categorical_features": "--categorical"}
_MISSING = ("refuse", "drop", "indicator")  # the values of --missing
_SETTINGS = (  # those of --set that are words
    "bandwidth=auto", "bandwidth=loo", "bandwidth=silverman", "bandwidth=scott", "kernel=gaussian",
    "kernel=epanechnikov", "ridge=auto",
)  # fmt: skip
_DATA, _MODEL, _RESULT = "Data", "Model", "Result"

_HELP = {
    "table": "A file with a row for each case and a name for each column: text, plain or .gz, or Parquet; - for text "
    "from standard input; or a folder of .parquet files. Without one, fifty points are drawn and a curve through "
    "them, with its intervals.",
    "target": "The column to predict.",
    "feature": "A column to predict it from. May be given several times. [default: all other columns of numbers, dates "
    "and categories]",
    "without": "A column not to predict it from. May be given several times.",
    "categorical": "A column whose cells are categories: equal or not. May be given several times. [default: text with "
    "few different values]",
    "ordered": "A column whose cells are categories with an order: of numbers theirs, of text as in "
    "size=small,medium,large. May be given several times.",
    "missing": "What is done with rows that lack a cell: refuse, an error; drop, they are left out and counted; "
    "indicator, a missing cell is a category of its own beside the number, and every row is predicted. "
    "[default: refuse]",
    "weights": "A column that says how much each row counts: 2 as if it were there twice, 0 as if it were not.",
    "predict": "Another table with the same features, for whose rows the target is predicted. [default: the table "
    "itself]",
    "apply": "Predict TABLE with a model that was saved, instead of fitting one. Columns are matched by their names.",
    "text": "How text is written, where it is not found: delimiter=LETTER or tab, between columns; decimal=. or ,; "
    "thousands=LETTER or none; encoding=NAME, such as cp1250; na=CELL,CELL, which stand for nothing, numbers "
    "with a point. May be given several times.",
    "order": "What is fitted around each place: constant, a mean; linear, a line, which follows slopes to the edge of "
    "the data. [default: linear]",
    "set": "Another setting of the model: bandwidth=NUMBER, or one for each feature with commas between, in its units, "
    "or how it is found, auto, loo, silverman or scott; kernel=gaussian or epanechnikov; ridge=ROWS or auto; "
    "cv=N, for a series in its order: N blocks of rows, each predicted from the others; weights=precision, for "
    "--weights of 1/σ². "
    "May be given several times. [default: bandwidth=auto, kernel=gaussian, ridge=auto]",
    "interval": "Write intervals too that hold this share of new values, such as 0.9.",
    "folds": "In how many parts the rows are held out in turn, with all chosen anew from the others, to measure how "
    "good predictions of new rows are. Each takes as long as a fit. 0: not measured. [default: 5]",
    "seed": "Without a table: where the random numbers begin, at least 0. [default: 0]",
    "textbook": "Without a table: pool the fifty points in the textbook's three ways.",
    "output": "Where to put the model, the predictions and the pictures; files of a former run are replaced.",
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
    settings: Annotated[Names, option(_HELP["set"], "NAME=VALUE", "--set", panel=_MODEL, completes=_SETTINGS)] = None,
    interval: Annotated[float | None, option(_HELP["interval"], "COVERAGE", panel=_RESULT)] = None,
    folds: Annotated[int | None, option(_HELP["folds"], "N", panel=_RESULT)] = None,
    seed: Annotated[int | None, _data("seed", "N")] = None,
    textbook: Annotated[bool, typer.Option("--textbook", help=_HELP["textbook"], rich_help_panel=_DATA)] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help=_HELP["output"], metavar="FOLDER", rich_help_panel=_RESULT)
    ] = Path("regression"),
) -> None:
    """Predict a column of a table from other columns by kernel regression, and see what it looks at.

    A prediction is a weighted mean over the rows, in which near ones count most: attention. What is near is learned.
    """
    given = [name for name, value in context.params.items() if value not in (None, (), [])]
    others = ("table", "seed", "textbook", "output")
    named = ["set" if name == "settings" else name for name in given if name not in others]
    if table is None:
        if named:
            raise InputError(f"--{named[0]} is for a table: give one, as in dikkat regress TABLE --target COLUMN")
        if seed is not None and seed < 0:
            raise InputError(f"--seed: got {seed}; expected at least 0")
        return (_experiment if textbook else _curve)(seed or 0, _made(output))
    if seed is not None or textbook:
        extra = "--textbook" if textbook else "--seed"
        raise InputError(f"{extra} is for the experiment, which takes no table: leave one out")
    if folds is not None and (folds < 0 or folds == 1):
        raise InputError(f"--folds: got {folds}; expected at least 2, or 0 for none")
    if interval is not None and not 0 < interval < 1:
        raise InputError(f"--interval: got {interval}; expected a number between 0 and 1, such as 0.9")
    if missing not in (None, *_MISSING):
        raise InputError(f"--missing: got {missing!r}; expected 'refuse', 'drop' or 'indicator'")
    form, drops = form_options(_pairs("text", text, _TEXT)), missing == "drop"
    if apply is not None:
        if wrong := [name for name in named if name not in ("apply", "interval", "missing", "text")]:
            raise InputError(f"--{wrong[0]} is for a fit, and --apply takes a model as it is: leave out one of them")
        return _apply(apply, table, form, interval, drops, _made(output))
    model = {name: _value(name, each) for name, each in _pairs("set", settings, _SET).items()}
    if order is not None:
        model["order"] = order
    if missing == "indicator":
        model["missing"] = missing
    data = Data.read(table, context.params, form, model)
    return _regression(model, data, interval, 5 if folds is None else folds, drops, _made(output))


def _pairs(option: str, given: Sequence[str] | None, known: Sequence[str]) -> dict[str, str]:
    result = {}
    for each in given or ():
        name, sign, value = each.partition("=")
        if not sign or name not in known:
            raise InputError(f"--{option}: got {each!r}; expected NAME=VALUE, with one of {', '.join(known)}")
        result[name] = value
    return result


def _value(name: str, text: str) -> Any:
    """A setting of the estimator: numbers as numbers, "none" as None, and words as they are."""
    if name == "cv":
        return int(text) if text.isdecimal() else text
    if name not in ("bandwidth", "ridge"):
        return text
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        return text
    return numbers[0] if len(numbers) == 1 else numbers


def _regression(
    settings: dict[str, Any], data: Data, coverage: float | None, folds: int, drops: bool, output: Path
) -> None:
    from sklearn.model_selection import KFold

    from dikkat.regression import KernelRegressor, diagnostics, summary
    from dikkat.regression.progress import working

    written, names = _written(output, data.queries, data.target, coverage, data.rows.path)
    _check_free(output / MODEL, *(output / f"{name}{ending}" for name in _PICTURES for ending in _ENDINGS))
    begin = time.perf_counter()
    gaps = "missing" in settings
    x, y, weight = data.learned(drops, gaps)
    queries = data.frame(data.queries, drops or gaps)
    own, other = len(y) ** 2, len(data.queries) * len(y)
    with _naming_options({"y": f"column {data.target!r}", "X": f"column {_widest(data)!r}"}):
        with working("finding the bandwidth", None, own):
            model = KernelRegressor(**settings, **data.categories()).fit(x, y, weight)
        model.target_name_ = data.target
        # An estimate and its deviation are a sum over the rows each; so are a row's error and its degree of freedom.
        with working("predicting", 2 * other + 2 * own, own):
            predictions = dict(zip(names, predicted(model, queries, coverage), strict=True))
            left_out = diagnostics.leave_out(model)
        with working(f"holding out {folds} folds", None, own):
            held_out = diagnostics.hold_out(model, folds if model.cv is None else KFold(folds)) if folds else None
    said = summary.described(model, left_out, held_out, len(data.rows), data.left_out)
    show_table(summary.HEADINGS, said.features)
    print("\n".join(said.columns), end="\n" * bool(said.columns))
    say_form(data.rows, data.queries)
    print("\n".join(said.rows))
    print(f"seconds: {time.perf_counter() - begin:.1f}")
    model.save(output / MODEL)
    print(f"model: {output / MODEL}")
    data.queries.write(written, predictions)
    print(f"predictions: {written}")
    _draw(model, data, left_out, coverage, output)


def _apply(path: Path, table: Path, form: "FormOptions", coverage: float | None, drops: bool, output: Path) -> None:
    """Predict the rows of a table; those that lack cells are an error, or get no prediction if they are dropped."""
    from dikkat.regression import KernelRegressor
    from dikkat.regression.progress import working
    from dikkat.regression.tables import Table

    model, rows = KernelRegressor.load(path), Table(table, form)
    kinds = _kinds(path, model, rows)
    written, names = _written(output, rows, model.target_name_, coverage)
    levels = {
        name: list(map(str, column.levels))
        for name, column in zip(kinds, model.columns_, strict=False)
        if column.coded and all(isinstance(level, str) for level in column.levels)
    }
    orders = {name: levels[name] for name in levels if kinds[name] == "ordered"}
    texts = [name for name in levels if kinds[name] == "category"]
    x = rows.frame(kinds, drops or model.missing == "indicator", orders, texts)
    try:
        with working("predicting", None, len(rows) * len(model.X_train_)):
            result = predicted(model, x, coverage)
    except ValueError as error:
        raise InputError(f"{rows.path}: {error}") from error
    other = [name for name in rows.names if name not in kinds]
    print(f"features: {', '.join(kinds)}")
    if other:
        print(f"not used: {', '.join(other)}")
    say_form(rows)
    lost = int(np.isnan(result[0]).sum())
    print(f"rows: {len(rows):,}" + (f", {lost:,} without a prediction" if lost else ""))
    rows.write(written, dict(zip(names, result, strict=True)))
    print(f"predictions: {written}")


def _kinds(path: Path, model: "KernelRegressor", rows: "Table") -> dict[str, str]:
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        raise InputError(f"{path}: fitted to columns without names; expected a model of a table, or of a frame")
    if model.n_outputs_ > 1:
        raise InputError(f"{path}: predicts {model.n_outputs_} columns; expected a model of one")
    if lost := [name for name in names if name not in rows.names]:
        there = ", ".join(rows.names)
        raise InputError(f"{rows.path}: lacks the model's {', '.join(map(repr, lost))}. There are: {there}")
    kinds = [column.kind for column in model.columns_ if not column.is_gap] or ["number"] * len(names)
    return dict(zip(map(str, names), map(str, kinds), strict=True))


def _written(
    output: Path, table: "Table", target: str | None, coverage: float | None, *inputs: Path
) -> tuple[Path, list[str]]:
    """The file of the predictions, and the names of their columns, checked before the work."""
    written, start = output / f"{PREDICTIONS}{table.suffix}", f"{target}_" if target else ""
    names = [f"{start}{name}" for name in ("predicted", "std", *["lower", "upper"] * (coverage is not None))]
    if written.resolve() in [path.resolve() for path in (table.path, *inputs)]:
        raise InputError(f"{written}: the predictions would replace the table itself; give another --output")
    table.check_writable(written, names)
    _check_free(written)
    return written, names


def _draw(model: "KernelRegressor", data: Data, left_out: "LeftOut", coverage: float | None, output: Path) -> None:
    from dikkat.regression import columns, diagnostics, pictures, report

    there, names = model.sample_weight_ > 0, columns.names_of(model)
    y = model.y_train_[there]
    shown, others = report.choose_features(model, report.PANELS - 1)
    curves = [diagnostics.along(model, c, names[c], coverage) for c in shown]
    if len(names) == 1 and curves:
        _save(pictures.draw_curve(curves[0], y, data.target), output / "fit")
    else:
        _save(pictures.draw_fit(left_out.predicted[there], y, curves, data.target, others), output / "fit")
    most = shown[0] if shown else 0  # along the feature that moves the estimate most
    among, order = diagnostics.among(model, model.X_train_[:, most]), names[most]
    _save(pictures.draw_attention(among, order, columns.columns_of(model)[most]), output / "attention")


def _curve(seed: int, output: Path) -> None:
    """Fit a curve through the points of the experiment, and show it with its intervals."""
    from dikkat.regression import KernelRegressor, diagnostics, experiment, pictures, summary, tables

    done = experiment.run_experiment(seed)
    model = KernelRegressor().fit(done.x[:, None], done.y)
    print("y = 2 sin x + x^0.8 + noise of standard deviation 0.5, 50 points")
    said = model.summary()
    show_table(summary.HEADINGS, said.features)
    print("\n".join(said.rows))
    model.save(output / MODEL)
    print(f"model: {output / MODEL}")
    written, at = output / f"{PREDICTIONS}.csv", done.at[:, None]
    lower, upper = model.predict_interval(at, 0.9)
    ends = {"predicted": np.asarray(model.predict(at)), "lower": lower, "upper": upper}
    tables.write_columns(written, {"x": done.at, "truth": done.truth, **ends})
    print(f"predictions: {written}")
    _save(pictures.draw_curve(diagnostics.along(model, 0, "x", 0.9), done.y, "y"), output / "fit")


def _experiment(seed: int, output: Path) -> None:
    from dikkat.regression import diagnostics, experiment, pictures, tables

    done, rows = experiment.run_experiment(seed), []
    for each in done.poolings:
        sigma = "" if each.model.bandwidth == experiment.EVERYWHERE else f"{each.model.bandwidth_[0]:.4g}"
        rows.append([each.name, sigma, f"{diagnostics.leave_out(each.model).error:.4f}", f"{each.error:.4f}"])
    print("y = 2 sin x + x^0.8 + noise of standard deviation 0.5, 50 training points; mean squared errors")
    show_table(["", "bandwidth", "leaving each point out", "from the truth"], rows)
    learned = done.poolings[-1].model
    history = enumerate(learned.history_)
    steps = [[str(epoch), f"{step['bandwidth'][0]:.4g}", f"{step['error']:.4f}"] for epoch, step in history]
    print()
    show_table(["epoch", "bandwidth", "leaving each point out"], steps)
    learned.save(output / MODEL)
    print(f"\nmodel: {output / MODEL}")
    written, ways = output / f"{PREDICTIONS}.csv", ("average", "gaussian", "learned")
    predicted = {way: each.predicted for way, each in zip(ways, done.poolings, strict=True)}
    tables.write_columns(written, {"x": done.at, "truth": done.truth, **predicted})
    print(f"predictions: {written}")
    _save(pictures.draw_experiment(done), output / "experiment")


def _save(figure: "Figure", path: Path) -> None:
    from dikkat.show import save

    for ending in _ENDINGS:
        save(figure, path.with_suffix(ending))
    print(f"picture: {path}.png, {path.name}.svg")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}; give another folder with --output") from error


def _check_free(*paths: Path) -> None:
    """Refuse files that a folder is in the way of."""
    for path in paths:
        if path.is_dir():
            raise InputError(f"{path}: a folder is in the way; give another --output")


def _widest(data: Data) -> str:
    ranges = {data.features[0]: -1.0}
    for name in (name for name in data.features if data.kinds[name] == "number"):
        with np.errstate(over="ignore"):
            known = data.rows.numbers(name, missing=True)
            ranges[name] = float(np.ptp(known[~np.isnan(known)])) if not np.isnan(known).all() else 0.0
    return max(ranges, key=lambda name: ranges[name])


@contextmanager
def _naming_options(columns: Mapping[str, str]) -> Iterator[None]:
    """Errors about the estimator's arguments name the columns or the options instead."""

    def named(match: re.Match[str]) -> str:
        name = match[0]
        return columns.get(name) or _OPTIONS.get(name) or (f"--set {name}" if name in _SET else f"--{name}")

    try:
        yield
    except ValueError as error:
        raise InputError(_ARGUMENT.sub(named, str(error))) from error
