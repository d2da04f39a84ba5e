"""`dikkat regress`."""

import math
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
from dikkat.cli.columns import Data, added, asked, predicted, say_form
from dikkat.cli.messages import worded
from dikkat.cli.numbers import bandwidth_of, neighbors_of
from dikkat.cli.tables import show_table
from dikkat.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dikkat.regression import NadarayaWatson
    from dikkat.regression.columns import Column
    from dikkat.regression.diagnostics import LeftOut

MODEL, PREDICTIONS = "model.safetensors", "predictions"

_PICTURES, _ENDINGS = ("fit", "attention", "history"), (".png", ".svg")
_POOLINGS = "average", "gaussian", "learned"  # the columns of the experiment's predictions
_LEVELS = 5  # most categories that are named
_FOLDS = 5  # unless said otherwise
_CRITERIA = {"aic": "exp(AICc − 1)", "gcv": "GCV"}  # as `history_` has them, by rule; of others it is an error
_CHOSEN = ", by which the bandwidth was chosen"
_CURVES = 8  # most features with a curve; more would be too small to read
_FAR = 1e3  # bandwidth over a feature's range at which all its values weigh alike
_ARGUMENT = re.compile(r"^\w+(?=: got\b)")  # the estimator's argument in the message of an error
_OPTIONS = {
    "sample_weight": "weights",
    "ordered_features": "ordered",
    "categorical_features": "categorical",
}  # options that are not called as the argument is
_DATA, _TEXT, _MODEL, _RESULT = "Data", "How text is written", "Model", "Result"


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "dikkat regress\n\n"
    "dikkat regress homes.csv --target price --output homes\n\n"
    "dikkat regress homes.csv --target price --feature area --feature age --order linear --predict new-homes.csv\n\n"
    "dikkat regress homes.parquet --target price --kernel epanechnikov --bandwidth 12,5\n\n"
    "dikkat regress new-homes.csv --apply homes/model.safetensors --band 0.95",
)
def regress(
    table: Annotated[
        Path | None,
        typer.Argument(
            help="A file with a row for each case and a name for each column: .csv or .tsv, plain or .gz, or .parquet; "
            "or a folder of .parquet files. Without one, the textbook's experiment is made: fifty points, "
            "pooled in three ways.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[str | None, option("The column to predict.", "COLUMN", panel=_DATA)] = None,
    feature: Annotated[
        list[str] | None,
        option(
            "A column to predict it from. May be given several times. \\[default: all other columns of numbers, dates "
            "and categories]",
            "COLUMN",
            panel=_DATA,
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        option("A column not to predict it from. May be given several times.", "COLUMN", panel=_DATA),
    ] = None,
    categorical: Annotated[
        list[str] | None,
        option(
            "A column whose cells are categories: equal or not. May be given several times. \\[default: text with few "
            "different values]",
            "COLUMN",
            panel=_DATA,
        ),
    ] = None,
    ordered: Annotated[
        list[str] | None,
        option(
            "A column whose cells are categories with an order: of numbers theirs, of text as in "
            "size=small,medium,large. May be given several times.",
            "COLUMN",
            panel=_DATA,
        ),
    ] = None,
    missing: Annotated[
        str | None,
        option(
            "What is done with rows that lack a cell: refuse, an error; drop, they are left out and counted. "
            "\\[default: refuse]",
            "NAME",
            panel=_DATA,
            completes=("refuse", "drop"),
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
    apply: Annotated[
        Path | None,
        option(
            "Predict TABLE with a model that was saved, instead of fitting one. Columns are matched by their names.",
            "MODEL",
            panel=_DATA,
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        option("What stands between columns of text: a letter, or tab. \\[default: found]", "LETTER", panel=_TEXT),
    ] = None,
    decimal: Annotated[
        str | None, option("What stands before decimals: . or , \\[default: found]", "LETTER", panel=_TEXT)
    ] = None,
    thousands: Annotated[
        str | None,
        option("What stands between thousands, or none. \\[default: found]", "LETTER", panel=_TEXT),
    ] = None,
    encoding: Annotated[
        str | None, option("How letters are written, such as cp1250. \\[default: found]", "NAME", panel=_TEXT)
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
            "or scott, a rule of thumb, at once. \\[default: loo-1se]",
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
    neighbors: Annotated[
        str | None,
        option(
            "Make bandwidths wider where rows are sparse: in proportion to the distance of the so many-th nearest row. "
            "none: not at all; auto: by as many as predict best, or not at all. \\[default: none]",
            "N",
            panel=_MODEL,
            completes=("none", "auto"),
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
    band: Annotated[
        float | None,
        option("Write the confidence band of this level too, such as 0.95.", "LEVEL", panel=_RESULT),
    ] = None,
    std: Annotated[
        bool,
        typer.Option(
            "--std",
            help="With --apply, write standard deviations too, as is done without it.",
            rich_help_panel=_RESULT,
        ),
    ] = False,
    folds: Annotated[
        int | None,
        typer.Option(
            help="In how many parts the rows are held out in turn, with all chosen anew from the others, to measure "
            "how good predictions of new rows are. Each takes as long as a fit. 0: not measured. \\[default: 5]",
            metavar="N",
            rich_help_panel=_RESULT,
            show_default=False,
            min=0,
        ),
    ] = None,
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
    data = {
        "target": target,
        "feature": feature,
        "weights": weights,
        "predict": predict,
        "without": without,
        "categorical": categorical,
        "ordered": ordered,
        "apply": apply,
        "band": band,
        "std": std or None,
        "folds": folds,
    }
    text = {"delimiter": delimiter, "decimal": decimal, "thousands": thousands, "encoding": encoding}
    model = {
        "kernel": kernel,
        "bandwidth": None if bandwidth is None else bandwidth_of(bandwidth),
        "order": order,
        "ridge": ridge,
        "neighbors": neighbors_of(neighbors),
        "tolerance": tolerance,
        "out_of_reach": out_of_reach,
        "missing": missing,
    }
    _run(table, data, text, model, seed, output)


def _run(
    table: Path | None,
    data: dict[str, Any],
    text: dict[str, str | None],
    model: dict[str, Any],
    seed: int | None,
    output: Path,
) -> None:
    settings = {name: value for name, value in model.items() if value is not None}
    if table is not None and seed is not None:
        raise InputError("--seed is for the experiment, which takes no table: leave out one of them")
    given = [name for name, value in {**data, **text, **settings}.items() if value is not None]
    if table is None and given:
        raise InputError(f"{_option(given[0])} is for a table: give one, as in dikkat regress TABLE --target COLUMN")
    if table is None:
        return _experiment(seed or 0, _made(output))
    folds = _FOLDS if data["folds"] is None else data["folds"]
    if folds == 1:
        raise InputError("--folds: got 1; expected at least 2, or 0 for none")
    if (level := data["band"]) is not None and not 0 < level < 1:
        raise InputError(f"--band: got {level}; expected a number between 0 and 1, such as 0.95")
    if settings.get("missing", "drop") not in ("refuse", "drop"):
        raise InputError(f"--missing: got {settings['missing']!r}; expected 'refuse' or 'drop'")
    if data["apply"] is not None:
        return _apply(table, data, text, settings, given, _made(output))
    if data["std"] is not None:
        raise InputError("--std is for --apply: without it, standard deviations are always written")
    return _regression(settings, Data.read(table, data, asked(text), settings), data["band"], folds, _made(output))


def _apply(
    table: Path,
    data: Mapping[str, Any],
    text: Mapping[str, str | None],
    settings: Mapping[str, Any],
    given: Sequence[str],
    output: Path,
) -> None:
    from dikkat.cli.applying import apply

    allowed = {"apply", "band", "std", "missing", *text}
    if wrong := [name for name in given if name not in allowed]:
        raise InputError(f"{_option(wrong[0])} is for a fit, and --apply takes a model as it is: leave out one of them")
    apply(data["apply"], table, asked(text), bool(data["std"]), data["band"], settings.get("missing"), output)


def _regression(settings: dict[str, Any], data: Data, level: float | None, folds: int, output: Path) -> None:
    from dikkat.regression import NadarayaWatson
    from dikkat.regression.diagnostics import hold_out, leave_out
    from dikkat.regression.progress import Working

    written = output / f"{PREDICTIONS}{data.asked.suffix}"
    if written.resolve() in (data.rows.path.resolve(), data.asked.path.resolve()):
        raise InputError(f"{written}: the predictions would replace the table itself; give another --output")
    names = added(data.target, std=True, band=level is not None)
    data.asked.check_writable(written, names)
    _check_free(output / MODEL, written, *(output / f"{name}{ending}" for name in _PICTURES for ending in _ENDINGS))
    begin = time.perf_counter()
    drops = settings.get("missing") == "drop"
    x, y = data.frame(data.rows, drops), data.rows.numbers(data.target, missing=drops)[:, 0]
    asked_x = data.frame(data.asked, drops)
    weight = None if data.weights is None else data.rows.numbers(data.weights)[:, 0]
    own, other = len(data.rows) ** 2, len(data.asked) * len(data.rows)
    columns = {"y": f"column {data.target!r}", "X": f"column {_widest(data)!r}"}
    with _naming_options(columns):
        with Working("finding the bandwidth", None, own).shown():
            model = NadarayaWatson(**settings, **data.categories()).fit(x, y, weight)
        model.target_name_ = data.target
        # An estimate and its deviation are a sum over the rows each; so are a row's error and its degree of freedom.
        with Working("predicting", 2 * other + 2 * own, own).shown():
            predictions = dict(zip(names, predicted(model, asked_x, True, level), strict=True))
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
    model: "NadarayaWatson", data: Data, left_out: "LeftOut", held_out: "LeftOut | None", freedom: float
) -> None:
    """How wide the kernel is, and how good the model."""
    there = model.sample_weight_ > 0
    x = model.X_train_[there]
    low, high = x.min(0), x.max(0)
    show_table(
        ["feature", "from", "to", "bandwidth"],
        [
            (name, *_ends(column, low[j], high[j]), _reach(model, column, model.bandwidth_[j], high[j] - low[j]))
            for j, (name, column) in enumerate(zip(data.features, _columns(model), strict=True))
        ],
    )
    if model.neighbors_ is not None:
        print(f"bandwidths of a typical row: they are wider as the {model.neighbors_} nearest rows lie farther off")
    for name, column in zip(data.features, _columns(model), strict=True):
        if column.kind == "date":
            print(f"{name}: dates, which count as days since {column.shown(0)}")
        elif column.coded:
            order = " in this order" if column.kind == "ordered" else ""
            print(f"{name}: {len(column.levels)} categories{order}, {_some_of(column.levels)}")
    for name, held in data.left_out.items():
        print(f"left out: {name}, which {held}" if name else f"left out: a column that {held}")
    say_form(data.rows, data.asked)
    without_cells = f", {model.n_dropped_:,} left out for missing cells" if model.n_dropped_ else ""
    weighted = "" if there.all() else f", {len(x):,} of them with weight"
    print(f"rows: {len(data.rows):,}{without_cells}{weighted}")
    if held_out is not None and not math.isnan(held_out.error):
        explained = "" if math.isnan(held_out.r2) else f"R² {held_out.r2:.3f}, "
        print(f"on rows held out: {explained}root mean squared error {math.sqrt(held_out.error):.4g}")
    if not math.isnan(left_out.error):
        by = _CHOSEN if model.history_ and model.bandwidth not in _CRITERIA else ""
        print(f"leaving each row out{by}: root mean squared error {math.sqrt(left_out.error):.4g}")
    if model.history_ and model.bandwidth in _CRITERIA:
        print(f"{_CRITERIA[str(model.bandwidth)]}{_CHOSEN}: {model.history_[-1]['error']:.4g}")
    print(f"effective degrees of freedom: {freedom:.1f}")


def _columns(model: "NadarayaWatson") -> "Sequence[Column]":
    from dikkat.regression.columns import Column

    return model.columns_ or [Column()] * len(model.bandwidth_)


def _ends(column: "Column", low: float, high: float) -> tuple[str, str]:
    return ("", "") if column.kind == "category" else (column.shown(low), column.shown(high))


def _some_of(levels: Sequence[object]) -> str:
    return ", ".join(map(str, levels[:_LEVELS])) + (", …" if len(levels) > _LEVELS else "")


def _reach(model: "NadarayaWatson", column: "Column", sigma: float, spread: float) -> str:
    """A bandwidth, or what it means if it is so wide that the kernel makes no difference between the rows."""
    from dikkat.regression.coding import largest

    if column.coded:
        return "no influence" if sigma >= largest(column) * (1 - 1e-6) else f"λ {sigma:.4g}"
    if 0 < _FAR * spread < sigma:
        return "a straight line" if model.order == "linear" else "no influence"
    return f"{sigma:.4g}" + (" days" if column.kind == "date" else "")


def _draw(model: "NadarayaWatson", data: Data, left_out: "LeftOut", output: Path) -> None:
    from dikkat.regression import diagnostics, pictures

    there, names = model.sample_weight_ > 0, data.features
    y, ranges = model.y_train_[there], np.ptp(model.X_train_[there], axis=0)
    width = diagnostics.reach(model)
    narrowest = np.argsort(width, kind="stable")[: min(_CURVES, int((ranges > 0).sum()))]
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
        criterion = {"criterion": _CRITERIA[str(model.bandwidth)]} if model.bandwidth in _CRITERIA else {}
        _save(pictures.draw_history(model.history_, names, _units(model, ranges), **criterion), output / "history")


def _units(model: "NadarayaWatson", ranges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What bandwidths are drawn over: the range, of a category the largest λ."""
    from dikkat.regression.coding import largest

    return np.array([largest(column) if column.coded else ranges[j] for j, column in enumerate(_columns(model))])


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


def _widest(data: Data) -> str:
    """The feature with the largest range."""
    with np.errstate(over="ignore"):
        plain = [name for name in data.features if data.kinds[name] == "number"]
        if not plain:
            return data.features[0]
        return max(plain, key=lambda name: _range(data.rows.numbers(name, missing=True)))


def _range(values: np.ndarray[Any, Any]) -> float:
    known = values[~np.isnan(values)]
    return float(np.ptp(known)) if len(known) else 0.0


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
