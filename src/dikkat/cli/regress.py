"""`dikkat regress`."""

import math
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from dikkat.cli.app import Command, app, option
from dikkat.cli.messages import worded
from dikkat.cli.tables import show_table
from dikkat.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dikkat.regression import NadarayaWatson
    from dikkat.regression.diagnostics import LeftOut
    from dikkat.regression.tables import Table

MODEL, PREDICTIONS = "model.safetensors", "predictions"

_PICTURES, _ENDINGS = ("fit", "attention", "history"), (".png", ".svg")
_POOLINGS = "average", "gaussian", "learned"  # the columns of the experiment's predictions
_CURVES = 8  # most features with a curve; more would be too small to read
_FAR = 1e3  # bandwidth over a feature's range at which all its values weigh alike
_ARGUMENT = re.compile(r"^\w+(?=: got\b)")  # the estimator's argument in the message of an error
_OPTIONS = {"sample_weight": "weights"}  # options that are not called as the argument is
_DATA, _MODEL, _RESULT = "Data", "Model", "Result"


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "dikkat regress\n\n"
    "dikkat regress homes.csv --target price --output homes\n\n"
    "dikkat regress homes.csv --target price --feature area --feature age --order linear --predict new-homes.csv\n\n"
    "dikkat regress homes.parquet --target price --kernel epanechnikov --bandwidth 12,5",
)
def regress(
    table: Annotated[
        Path | None,
        typer.Argument(
            help="A file with a row for each case and a name for each column: .csv or .tsv, plain or .gz, or .parquet. "
            "Without one, the textbook's experiment is made: fifty points, pooled in three ways.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[str | None, option("The column to predict.", "COLUMN", panel=_DATA)] = None,
    feature: Annotated[
        list[str] | None,
        option(
            "A column to predict it from. May be given several times. \\[default: all other columns of numbers]",
            "COLUMN",
            panel=_DATA,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        option(
            "A column that says how much each row counts: 2 as if it were there twice, 0 as if it were not.",
            "COLUMN",
            panel=_DATA,
        ),
    ] = None,
    predict: Annotated[
        Path | None,
        option(
            "Another table with the same features, for whose rows the target is predicted. \\[default: the table "
            "itself]",
            "TABLE",
            panel=_DATA,
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        option(
            "How weight falls with distance: gaussian, over all rows; epanechnikov, triangular or boxcar, to nothing "
            "at the bandwidth; average, not at all. \\[default: gaussian]",
            "NAME",
            panel=_MODEL,
            completes=("gaussian", "epanechnikov", "boxcar", "triangular", "average"),
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        option(
            "How far the kernel reaches, in the units of the features: a number, or one for each feature with commas "
            "between; loo, that with the least error when each row is predicted from the others; loo-1se, the "
            "simplest that is hardly worse; aic or gcv, likewise by the residuals and degrees of freedom; or silverman "
            "or scott, a rule of thumb, at once. \\[default: loo]",
            "NUMBERS",
            panel=_MODEL,
            completes=("loo", "loo-1se", "aic", "gcv", "silverman", "scott"),
        ),
    ] = None,
    order: Annotated[
        str | None,
        option(
            "What is fitted around each place: constant, a mean; linear, a line, which follows slopes to the edge of "
            "the data. \\[default: constant]",
            "NAME",
            panel=_MODEL,
            completes=("constant", "linear"),
        ),
    ] = None,
    ridge: Annotated[
        float | None,
        option(
            "How much a line holds back from slopes that few rows tell: as if so many more rows at each place said "
            "that it is flat. 0: not at all. \\[default: auto]",
            "ROWS",
            panel=_MODEL,
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        option(
            "The share of the weight that may be left out of a prediction, below 1. Larger: faster on large tables. "
            "0: exact. \\[default: 0]",
            "SHARE",
            panel=_MODEL,
        ),
    ] = None,
    out_of_reach: Annotated[
        str | None,
        option(
            "What is predicted where a kernel that ends reaches no row: nan, nothing; nearest, the nearest row. "
            "\\[default: nan]",
            "NAME",
            panel=_MODEL,
            completes=("nan", "nearest"),
        ),
    ] = None,
    folds: Annotated[
        int,
        typer.Option(
            help="In how many parts the rows are held out in turn, with all chosen anew from the others, to measure "
            "how good predictions of new rows are. Each takes as long as a fit. 0: not measured.",
            metavar="N",
            rich_help_panel=_RESULT,
            min=0,
        ),
    ] = 5,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Without a table: where the random numbers begin. \\[default: 0]",
            metavar="N",
            rich_help_panel=_DATA,
            show_default=False,
            min=0,
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Where to put the model, the predictions and the pictures; files of a former run are replaced.",
            metavar="FOLDER",
            rich_help_panel=_RESULT,
        ),
    ] = Path("regression"),
) -> None:
    """Predict a column of a table from other columns by kernel regression, and see what it looks at.

    A prediction is a weighted mean over the rows, in which near ones count most: attention. What is near is learned.
    """
    data = {"target": target, "feature": feature, "weights": weights, "predict": predict}
    width = None if bandwidth is None else _bandwidth(bandwidth)
    model = {
        "kernel": kernel,
        "bandwidth": width,
        "order": order,
        "ridge": ridge,
        "tolerance": tolerance,
        "out_of_reach": out_of_reach,
    }
    _run(table, data, model, folds, seed, output)


def _run(
    table: Path | None, data: dict[str, Any], model: dict[str, Any], folds: int, seed: int | None, output: Path
) -> None:
    settings = {name: value for name, value in model.items() if value is not None}
    if table is not None and seed is not None:
        raise InputError("--seed is for the experiment, which takes no table: leave out one of them")
    if table is None and (given := [name for name, value in {**data, **settings}.items() if value is not None]):
        raise InputError(f"{_option(given[0])} is for a table: give one, as in dikkat regress TABLE --target COLUMN")
    if table is None:
        _experiment(seed or 0, _made(output))
    else:
        if folds == 1:
            raise InputError("--folds: got 1; expected at least 2, or 0 for none")
        _regression(settings, _Data.read(table, **data), folds, _made(output))


@dataclass(frozen=True)
class _Data:
    """The tables, and which columns of them are meant."""

    rows: "Table"
    asked: "Table"
    target: str
    features: list[str]
    weights: str | None
    left_out: dict[str, str]

    @classmethod
    def read(
        cls, table: Path, target: str | None, feature: list[str] | None, weights: str | None, predict: Path | None
    ) -> "_Data":
        from dikkat.regression.tables import Table

        rows = Table(table)
        if target is None:
            raise InputError(f"say with --target which column of {table} to predict: {_named(rows)}")
        used = [target] if weights is None else [target, weights]
        features, left_out = list(feature or ()), {}
        for name in used:
            rows.check_once(name)
        if not features:
            left_out = rows.others(*used)
            features = [name for name in rows.numeric() if name not in used]
            for name in features:
                rows.check_once(name)
        if not features:
            raise InputError(
                f"{table}: there is no other column of numbers to predict {target!r} from{_reasons(left_out)}"
            )
        if twice := [name for name in [*used, *features] if [*used, *features].count(name) > 1]:
            raise InputError(
                f"column {twice[0]!r} is given twice: each can be one of --target, --weights and --feature"
            )
        asked = rows if predict is None else Table(predict)
        asked.check_new(_added(target))
        return cls(rows, asked, target, features, weights, left_out)


def _named(rows: "Table") -> str:
    """The columns that can be predicted; where there are none, why not."""
    return ", ".join(rows.numeric()) or f"it has no column of numbers{_reasons(rows.others())}"


def _reasons(left_out: Mapping[str, str]) -> str:
    """Each column with what it holds."""
    return "".join(f"; {name!r} {held}" for name, held in left_out.items())


def _added(target: str) -> list[str]:
    """The columns of predictions, and of standard deviations about them."""
    return [f"{target}_predicted", f"{target}_std"]


def _regression(settings: Mapping[str, Any], data: _Data, folds: int, output: Path) -> None:
    from dikkat.cli.progress import Working
    from dikkat.regression import NadarayaWatson
    from dikkat.regression.diagnostics import hold_out, leave_out

    written = output / f"{PREDICTIONS}{data.asked.suffix}"
    if written.resolve() in (data.rows.path.resolve(), data.asked.path.resolve()):
        raise InputError(f"{written}: the predictions would replace the table itself; give another --output")
    data.asked.check_writable(written, _added(data.target))
    _check_free(output / MODEL, written, *(output / f"{name}{ending}" for name in _PICTURES for ending in _ENDINGS))
    begin = time.perf_counter()
    x, y = data.rows.frame(*data.features), data.rows.numbers(data.target)[:, 0]
    asked = data.asked.frame(*data.features)
    weight = None if data.weights is None else data.rows.numbers(data.weights)[:, 0]
    own, other = len(data.rows) ** 2, len(data.asked) * len(data.rows)
    columns = {"y": f"column {data.target!r}", "X": f"column {_widest(data)!r}"}
    with _naming_options(columns):
        with Working("finding the bandwidth", None, own).shown():
            model = NadarayaWatson(**settings).fit(x, y, weight)
        # An estimate and its deviation are a sum over the rows each; so are a row's error and its degree of freedom.
        with Working("predicting", 2 * other + 2 * own, own).shown():
            predictions = dict(zip(_added(data.target), model.predict(asked, return_std=True), strict=True))
            left_out = leave_out(model)
            freedom = model.effective_degrees_of_freedom()
        with Working(f"holding out {folds} folds", None, own).shown():
            held_out = hold_out(model, folds) if folds else None
    _describe(model, data, left_out, held_out, freedom)
    print(f"seconds: {time.perf_counter() - begin:.1f}")
    model.save(output / MODEL)
    print(f"model: {output / MODEL}")
    data.asked.write(written, predictions)
    print(f"predictions: {written}")
    _draw(model, data, left_out, output)


def _describe(
    model: "NadarayaWatson", data: _Data, left_out: "LeftOut", held_out: "LeftOut | None", freedom: float
) -> None:
    """How wide the kernel is, and how good the model."""
    from dikkat.regression.tables import GUESSED

    there = model.sample_weight_ > 0
    x = model.X_train_[there]
    low, high = x.min(0), x.max(0)
    reach = [_reach(model, sigma, spread) for sigma, spread in zip(model.bandwidth_, high - low, strict=True)]
    ends = [[f"{end:.4g}" for end in ends] for ends in (low, high)]
    show_table(["feature", "from", "to", "bandwidth"], list(zip(data.features, *ends, reach, strict=True)))
    for name, held in data.left_out.items():
        print(f"left out: {name}, which {held}")
    for each in {data.rows.path: data.rows, data.asked.path: data.asked}.values():
        if each.form.encoding == GUESSED:
            print(f"{each.path}: not UTF-8; read as Windows-1252, as spreadsheets in Western Europe write it")
    print(f"rows: {len(data.rows):,}" + ("" if there.all() else f", {len(x):,} of them with weight"))
    if held_out is not None and not math.isnan(held_out.error):
        explained = "" if math.isnan(held_out.r2) else f"R² {held_out.r2:.3f}, "
        print(f"on rows held out: {explained}root mean squared error {math.sqrt(held_out.error):.4g}")
    if not math.isnan(left_out.error):
        by = ", by which the bandwidth was chosen" if model.history_ else ""
        print(f"leaving each row out{by}: root mean squared error {math.sqrt(left_out.error):.4g}")
    print(f"effective degrees of freedom: {freedom:.1f}")


def _reach(model: "NadarayaWatson", sigma: float, spread: float) -> str:
    """A bandwidth, or what it means if it is so wide that the kernel makes no difference between the rows."""
    if 0 < _FAR * spread < sigma:
        return "a straight line" if model.order == "linear" else "no influence"
    return f"{sigma:.4g}"


def _draw(model: "NadarayaWatson", data: _Data, left_out: "LeftOut", output: Path) -> None:
    from dikkat.regression import diagnostics, pictures

    there, names = model.sample_weight_ > 0, data.features
    y, ranges = model.y_train_[there], np.ptp(model.X_train_[there], axis=0)
    varying = np.flatnonzero(ranges > 0)
    width = model.bandwidth_[varying] / ranges[varying]
    narrowest = varying[np.argsort(width, kind="stable")[:_CURVES]]
    curves = [diagnostics.along(model, c, names[c]) for c in np.sort(narrowest)]
    if len(names) == 1 and curves:
        _save(pictures.draw_curve(curves[0], y, data.target), output / "fit")
    else:
        _save(pictures.draw_fit(left_out.predicted[there], y, curves, data.target), output / "fit")
    # Along the feature by which attention tells the rows apart most.
    most = int(narrowest[0]) if len(narrowest) else 0
    among, order = diagnostics.among(model, model.X_train_[:, most]), names[most]
    _save(pictures.draw_attention(among, order), output / "attention")
    if model.history_:
        _save(pictures.draw_history(model.history_, names, ranges), output / "history")


def _experiment(seed: int, output: Path) -> None:
    from dikkat.regression import experiment, pictures
    from dikkat.regression.diagnostics import leave_out
    from dikkat.regression.tables import write_columns

    done = experiment.run(seed)
    rows = [
        [each.name, _sigma(each.model), f"{leave_out(each.model).error:.4f}", f"{each.error:.4f}"]
        for each in done.poolings
    ]
    print("y = 2 sin x + x^0.8 + noise of standard deviation 0.5, 50 training points; mean squared errors")
    show_table(["", "bandwidth", "leaving each point out", "from the truth"], rows)
    learned = done.poolings[-1].model
    steps = [
        [str(epoch), f"{step['bandwidth'][0]:.4g}", f"{step['error']:.4f}"]
        for epoch, step in enumerate(learned.history_)
    ]
    print()
    show_table(["epoch", "bandwidth", "leaving each point out"], steps)
    learned.save(output / MODEL)
    print(f"\nmodel: {output / MODEL}")
    written = output / f"{PREDICTIONS}.csv"
    predicted = {name: each.predicted for name, each in zip(_POOLINGS, done.poolings, strict=True)}
    write_columns(written, {"x": done.at, "truth": done.truth, **predicted})
    print(f"predictions: {written}")
    _save(pictures.draw_experiment(done), output / "experiment")
    _save(pictures.draw_history(learned.history_, ["x"], np.ptp(learned.X_train_, axis=0)), output / "history")


def _sigma(model: "NadarayaWatson") -> str:
    return f"{model.bandwidth_[0]:.4g}" if math.isfinite(model.bandwidth_[0]) else ""


def _save(figure: "Figure", path: Path) -> None:
    """As PNG and SVG."""
    from dikkat.show import save

    for ending in _ENDINGS:
        save(figure, path.with_suffix(ending))
    print(f"picture: {path}.png, {path.name}.svg")


def _made(folder: Path) -> Path:
    """A folder that can be written to: found out before the work, not after it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}; give another folder with --output") from error


def _check_free(*paths: Path) -> None:
    """Whether files of these names can be written or replaced."""
    for path in paths:
        if path.is_dir():
            raise InputError(f"{path}: a folder is in the way; give another --output")


def _bandwidth(text: str) -> str | float | list[float]:
    """A rule's name as it is; numbers as numbers."""
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        return text
    return numbers[0] if len(numbers) == 1 else numbers


def _widest(data: _Data) -> str:
    """The feature with the largest range."""
    with np.errstate(over="ignore"):
        return max(data.features, key=lambda name: np.ptp(data.rows.numbers(name)))


@contextmanager
def _naming_options(columns: Mapping[str, str]) -> Iterator[None]:
    """Errors and warnings about the estimator's arguments name the columns or the options instead."""

    def named(found: re.Match[str]) -> str:
        return columns.get(found[0], _option(_OPTIONS.get(found[0], found[0])))

    with worded(lambda message: message.replace("out_of_reach='nearest'", "--out-of-reach nearest")):
        try:
            yield
        except ValueError as error:
            raise InputError(_ARGUMENT.sub(named, str(error))) from error


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
