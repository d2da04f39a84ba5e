import re

import numpy as np
import pandas as pd
import pytest

from command import command_line, made, refused
from dikkat.regression import KernelRegressor
from dikkat.regression.diagnostics import hold_out
from dikkat.regression.report import choose_features
from processes import python

# What the extra "regression" does not bring, nor PyTorch.
OTHERS = {"tokenizers", "sacrebleu", "sacremoses", "regex", "httpx", "platformdirs", "datasets"}
SETTINGS = "bandwidth", "kernel", "ridge", "logarithms"
OTHERS |= {"tensorboard", "tensorflow", "keras", "jax", "mxnet", "pandas", "polars"}


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run `dikkat regress` in an empty folder; returns (status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    return command_line(monkeypatch, capsys, "regress")


@pytest.fixture
def quick(monkeypatch):
    """Pictures are laid out, and their files are empty."""

    def save(figure, path):
        if path.suffix == ".png":
            figure.draw_without_rendering()
        path.touch()

    monkeypatch.setattr("dikkat.show.save", save)


@pytest.fixture
def homes(tmp_path):
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.uniform(1, 9, (41, 2)).round(3), columns=["area", "age"])
    frame["price"] = (frame["area"] ** 2 - frame["age"] + random.normal(0, 1, 41)).round(3)
    frame["count"] = random.integers(0, 4, 41)
    frame["town"] = "Lyon"
    frame.to_csv(tmp_path / "homes.csv", index=False)
    return frame


def pictures(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".png", ".svg"))


def both(*names):
    return [f"{name}{ending}" for name in names for ending in (".png", ".svg")]


def test_a_table_in_a_model_predictions_and_pictures_out(run, homes, tmp_path):
    options = ["--feature", "area", "--feature", "age", "--set", "bandwidth=1.5,4", "--weights", "count"]
    options += ["--order", "constant"]
    status, out, err = run("homes.csv", "--target", "price", *options, "-o", "made")
    assert (status, err) == (0, "")
    assert pictures(tmp_path / "made") == both("attention", "fit")
    x, y, weight = homes[["area", "age"]].to_numpy(), homes["price"].to_numpy(), homes["count"].to_numpy()
    kernel = weight * np.exp(-((((x[:, None] - x) / [1.5, 4]) ** 2).sum(2)) / 2)
    kernel /= kernel.sum(1, keepdims=True)
    written = pd.read_csv(tmp_path / "made/predictions.csv")
    assert list(written.columns) == [*homes.columns, "price_predicted", "price_std"]
    pd.testing.assert_frame_equal(written[homes.columns], homes)
    np.testing.assert_allclose(written["price_predicted"], kernel @ y, rtol=1e-9)
    model = KernelRegressor.load(tmp_path / "made/model.safetensors")
    deviations = model.predict(homes[["area", "age"]], return_std=True)[1]
    np.testing.assert_allclose(written["price_std"], deviations, rtol=1e-12)
    assert list(model.feature_names_in_) == ["area", "age"]
    np.testing.assert_allclose(model.predict(homes[["area", "age"]]), written["price_predicted"], rtol=1e-12)
    lines = [line.split() for line in out.splitlines()]
    there = x[weight > 0]
    assert 0 < len(there) < 41
    assert lines[1][:4] == ["area", f"{there[:, 0].min():.4g}", f"{there[:, 0].max():.4g}", "1.5"]
    assert f"rows: 41, {len(there)} of them with weight\n" in out
    others = ~(x[:, None] == x).all(2)
    left_out = (kernel * others) @ y / (kernel * others).sum(1)
    error = np.average((y - left_out) ** 2, weights=weight)
    assert f"leave-one-out: root mean squared error {np.sqrt(error):.4g}\n" in out
    held = hold_out(model)
    assert f"held-out rows: R² {held.r2:.3f}, root mean squared error {np.sqrt(held.error):.4g}\n" in out
    assert f"effective degrees of freedom: {(np.diag(kernel)).sum():.1f}\n" in out
    assert re.search(r"^seconds: \d+\.\d$", out, re.MULTILINE)


def test_all_other_columns_of_numbers_are_the_features_and_the_bandwidth_is_found(run, quick, homes, tmp_path):
    out, _ = made(run("homes.csv", "--target", "price"))
    assert [line.split()[0] for line in out.splitlines()[:4]] == ["feature", "area", "age", "count"]
    assert pictures(tmp_path / "regression") == both("attention", "fit")
    model = KernelRegressor.load("regression/model.safetensors")
    expected = KernelRegressor().fit(homes[["area", "age", "count"]], homes["price"])
    np.testing.assert_array_equal(model.bandwidth_, expected.bandwidth_)
    assert model.get_params() == KernelRegressor().get_params()


def test_every_option_of_the_model_reaches_it(run, quick, homes):
    settings = ["kernel=epanechnikov", "ridge=0.5", "bandwidth=silverman", "cv=4", "weights=precision"]
    settings += ["logarithms=none"]
    options = ["--order", "linear", *(part for each in settings for part in ("--set", each))]
    made(run("homes.csv", "--target", "price", "--feature", "area", *options))
    model = KernelRegressor.load("regression/model.safetensors")
    assert model.folds_ is not None
    assert (np.diff(np.argmax(model.folds_ == 2, 0)) >= 0).all()  # blocks in their order
    assert len(model.folds_) == 4
    assert model.get_params() == {
        "kernel": "epanechnikov", "bandwidth": "silverman", "order": "linear", "ridge": 0.5, "metric": "diagonal",
        "n_components": None, "categorical_features": "from_dtype", "ordered_features": "from_dtype",
        "periodic_features": None, "missing": "refuse", "cv": 4, "weights": "precision", "logarithms": None,
        "support": None, "verbose": False,
    }  # fmt: skip


def test_a_support_and_periods(run, quick, homes):
    """Bools stay bools, and periodic columns are predicted from other tables."""
    homes.assign(garden=homes["age"] > 5).to_csv("homes.csv", index=False)
    options = ["--feature", "area", "--feature", "count", "--feature", "garden", "--set", "bandwidth=2,1,1"]
    made(run("homes.csv", "--target", "price", *options, "--set", "support=-9,", "--set", "periodic_features=count:4"))
    model = KernelRegressor.load("regression/model.safetensors")
    assert (*model.support, model.periodic_features) == (-9.0, None, {"count": 4.0})
    assert model.columns_[2].is_flag
    made(run("homes.csv", "--apply", "regression/model.safetensors"))
    found = pd.read_csv("homes-predictions.csv")["price_predicted"]
    frame = homes.assign(garden=homes["age"] > 5)
    np.testing.assert_allclose(found, model.predict(frame[["area", "count", "garden"]]), rtol=1e-6)


def test_another_table_is_predicted_in_its_own_format(run, quick, homes, tmp_path):
    pd.DataFrame({"id": ["a", "b", "c"], "area": [2.0, 5.0, 99.0]}).to_parquet("new.parquet")
    options = ["--feature", "area", "--set", "kernel=epanechnikov", "--set", "bandwidth=1", "--order", "constant"]
    status, _, err = run("homes.csv", "--target", "price", *options, "--predict", "new.parquet")
    assert (status, err) == (0, "")
    written = pd.read_parquet("regression/predictions.parquet")
    weights = [(1 - (homes["area"] - place) ** 2).clip(0) for place in (2.0, 5.0)]
    near = [(weight * homes["price"]).sum() / weight.sum() for weight in weights]
    nearest = homes["price"][homes["area"].argmax()]  # of what no row reaches
    np.testing.assert_allclose(written["price_predicted"], [*near, nearest], rtol=1e-12)
    assert written["id"].tolist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "table",
    ["x,y\n1,2\n", "x,y\n1,2\n1,3\n", "x,y\n1,2\n2,2\n3,2\n", "x,z,y\n1,5,2\n2,5,3\n4,5,1\n", "x,y\n1,2\n2,3\n1e6,4\n"],
    ids=["one row", "one place", "y equal", "a constant column", "an outlier"],
)
def test_tables_with_little_in_them(run, quick, tmp_path, table):
    (tmp_path / "t.csv").write_text(table)
    settings = ["--order", "linear", "--set", "kernel=epanechnikov"] if "5," in table or "1e6" in table else []
    out, _ = made(run("t.csv", "--target", "y", *settings))
    assert "nan" not in out
    assert "fit.svg" in pictures(tmp_path / "regression")


def test_equal_weights_have_no_picture(run, quick, homes, tmp_path):
    options = ["homes.csv", "--target", "price", "--folds", 0, "--set"]
    message = "no picture of the attention: each row has the same weight in all predictions\n"
    for weights in ([], ["--weights", "count"]):
        for bandwidth, is_drawn in ((3, True), (900, False)):
            out, _ = made(run(*options, f"bandwidth={bandwidth}", *weights))
            assert (message in out) == (not is_drawn)
            assert pictures(tmp_path / "regression") == both(*["attention"] * is_drawn, "fit")


def test_a_feature_without_influence_is_said_to_have_none(run, quick, tmp_path):
    random = np.random.default_rng(4)
    frame = pd.DataFrame(random.uniform(0, 1, (97, 2)), columns=["x", "noise"])
    frame["y"] = np.sin(7 * frame["x"])
    frame.to_csv("t.csv")
    for order, meaning in (("constant", "no influence"), ("linear", "a straight line")):
        features = ["--feature", "x", "--feature", "noise"]
        _, out, _ = run("t.csv", "--target", "y", *features, "--set", "bandwidth=0.1,5000", "--order", order)
        assert re.search(rf"^noise .*{meaning} +[\d.e-]+$", out, re.MULTILINE)
        assert re.search(r"^x .* 0\.1 ", out, re.MULTILINE)


def test_more_features_than_there_is_room_for_are_not_all_drawn(run, tmp_path):
    names = [f"x{i}" for i in range(12)]
    values = np.random.default_rng(4).uniform(0, 1, (23, 13))
    pd.DataFrame(values, columns=[*names, "y"]).to_csv("t.csv", index=False)
    assert (
        run("t.csv", "--target", "y", "--set", "bandwidth=" + ",".join(str(2 ** (12 - i)) for i in range(12)))[0] == 0
    )
    svg = (tmp_path / "regression/fit.svg").read_text()
    shown, others = choose_features(KernelRegressor.load("regression/model.safetensors"), 8)
    assert {name for name in names if f">{name}<" in svg} == {names[j] for j in shown}
    assert f"not shown (smallest effects): {', '.join(others)}<" in svg


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--target: missing; expected a column of homes.csv: area, age, price, count"),
        (["--target", "prise"], "homes.csv: there is no column 'prise'; did you mean 'price'?"),
        (["--target", "town"], "homes.csv: column 'town' holds text ('Lyon' in row 1); expected numbers"),
        (
            ["--target", "price", "--feature", "town"],
            "column 'town' holds text ('Lyon' in row 1), the same in all rows",
        ),
        (["--target", "price", "--feature", "area", "--without", "area"], "column 'area': got --feature and --without"),
        (["--target", "price", "--feature", "price"], "column 'price': got two uses"),
        (["--target", "price", "--set", "kernel=gausian"], "--set kernel: got 'gausian'; expected 'gaussian'"),
        (["--target", "price", "--set", "bandwidth=0"], "--set bandwidth: got 0.0; expected a positive number"),
        (
            ["--target", "price", "--set", "bandwidth=1,2"],
            "--set bandwidth: got shape (2,); expected a number, or (3,)",
        ),
        (["--target", "price", "--order", "cubic"], "--order: got 'cubic'"),
        (
            ["--target", "price", "--set", "tolerance=1"],
            "--set: got 'tolerance=1'; expected NAME=VALUE, with one of ker",
        ),
        (["--target", "price", "--set", "cv=x"], "--set cv: got 'x'; expected a whole number of at least 2"),
        (["--target", "price", "--set", "cv=1"], "--set cv: got '1'; expected a whole number of at least 2"),
        (["--target", "price", "--set", "support=0"], "--set support: got '0'; expected LEAST,GREATEST, such as 0,1"),
        (["--target", "price", "--set", "support=9,0"], "--set support: got (9.0, 0.0); expected (least, greatest)"),
        (
            ["--target", "price", "--set", "periodic_features=age"],
            "--set periodic_features: got 'age'; expected COLUMN:",
        ),
        (["--target", "price", "--weights", "negative"], "--weights: got -1.0"),
        (["--target", "price", "--weights", "zero"], "--weights: got only zeros"),
        (["--target", "price", "--seed", "1"], "--seed is for the example without a table"),
        (["--target", "price", "--predict", "none.csv"], "none.csv: No such file or directory"),
        (["--target", "price", "--predict", "new.csv"], "new.csv: there is no column 'area'"),
        (["--target", "price", "-o", "homes.csv"], "homes.csv: File exists"),
    ],
)
def test_what_cannot_be_used_is_one_line(run, homes, options, message):
    more = {"negative": -1, "zero": 0} if "negative" in options or "zero" in options else {}
    homes.assign(**more).to_csv("homes.csv", index=False)
    pd.DataFrame({"size": [1.0]}).to_csv("new.csv", index=False)
    refused(run("homes.csv", *options), message)


def test_a_table_is_not_replaced_by_its_predictions(run, homes, tmp_path):
    homes.to_csv("predictions.csv", index=False)
    before = (tmp_path / "predictions.csv").read_bytes()
    refused(run("predictions.csv", "--target", "price", "-o", "."), "the predictions would replace the table itself")
    refused(run("homes.csv", "--target", "price", "--predict", "predictions.csv", "-o", "."), "would replace the table")
    assert (tmp_path / "predictions.csv").read_bytes() == before
    homes.assign(price_std=1).to_csv("homes.csv", index=False)
    refused(run("homes.csv", "--target", "price"), "there is a column 'price_std' already")
    (tmp_path / "one.csv").write_text("y\n1\n")
    refused(run("one.csv", "--target", "y"), "there is no other column to predict 'y' from")


def test_a_cell_that_is_no_number_does_not_take_its_column_away(run, quick, homes, tmp_path):
    homes["area"] = homes["area"].astype(object)
    homes.loc[6, "area"] = "?"
    homes.to_csv("homes.csv", index=False)
    message = "homes.csv: column 'area' holds text in 1 of 41 cells ('?' in row 7); "
    options = (
        "correct it (write dates as 2020-01-31), leave it out with --without, or take its cells as categories with"
    )
    refused(run("homes.csv", "--target", "price"), message + options)
    refused(run("homes.csv", "--target", "price"), "area; if '?' means a missing cell, add --text na=?")
    refused(run("homes.csv", "--target", "price", "--feature", "area"), message + options)
    refused(run("homes.csv", "--target", "area"), message + "expected numbers")
    made(run("homes.csv", "--target", "price", "--feature", "age", "--set", "bandwidth=2"))
    homes.loc[6, "area"] = None
    homes.to_csv("homes.csv", index=False)
    refused(
        run("homes.csv", "--target", "price"),
        "column 'area' has 1 of 41 cells missing, the first in row 7; add --missing drop",
    )


def test_what_cannot_be_written_is_said_before_the_work(run, homes, tmp_path, monkeypatch):
    monkeypatch.setattr(KernelRegressor, "fit", None)  # it must not come to that
    (tmp_path / "new.csv").write_bytes("area,Straße\n1,x\n".encode("cp1252"))
    homes.rename(columns={"price": "fiyatı"}).to_csv("homes.csv", index=False)
    options = ["--target", "fiyatı", "--feature", "area", "--predict", "new.csv"]
    refused(run("homes.csv", *options), "cannot be written as cp1252, the table's encoding, which has no 'ı'")
    homes.to_csv("homes.csv", index=False)
    for name in ("model.safetensors", "predictions.csv", "fit.png"):
        (tmp_path / f"out-{name}" / name).mkdir(parents=True)
        message = f"out-{name}/{name}: got a folder; expected a file or a new path. Choose another --output"
        refused(run("homes.csv", "--target", "price", "-o", f"out-{name}"), message)

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    refused(run("homes.csv", "--target", "price"), "regression: No space left on device; give another folder with")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("area", "homes.csv: got -1e+308 and 1e+308 in column 'area'; expected a range"),
        ("price", "column 'price': got 1e+308; expected"),
    ],
)
def test_numbers_too_large_to_compute_with_are_one_line(run, homes, tmp_path, column, message):
    homes.loc[3:4, column] = [1e308, -1e308]
    homes.to_csv("homes.csv", index=False)
    refused(run("homes.csv", "--target", "price"), message)
    assert list((tmp_path / "regression").iterdir()) == []


def test_long_work_says_how_far_it_is(run, quick, homes, monkeypatch):
    monkeypatch.setattr("dikkat.regression.progress._EVERY", 0.0)
    _, err = made(run("homes.csv", "--target", "price"))
    lines = err.splitlines()
    assert re.fullmatch(
        r"finding the bandwidth: \d+\.\d passes over all pairs of rows, 0 s", lines[0].replace(" 1 s", " 0 s")
    )
    assert any(re.fullmatch(r"predicting: 100%, \d+ s", line) for line in lines)
    assert re.fullmatch(r"holding out 5 folds: \d+\.\d passes over all pairs of rows, \d+ s", lines[-1])


def test_the_bar_is_drawn_where_a_terminal_is(run, quick, homes, monkeypatch):
    for name, value in (("FORCE_COLOR", "1"), ("TTY_COMPATIBLE", "1"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)
    out, err = made(run("homes.csv", "--target", "price"))
    assert "finding the bandwidth" in err
    assert "predicting" in err
    assert "finding" not in out


def test_without_a_table_a_curve_has_its_intervals(run, tmp_path):
    status, out, err = run("-o", "made")
    assert (status, err) == (0, "")
    assert pictures(tmp_path / "made") == both("fit")
    assert "held-out rows: R²" in out
    written = pd.read_csv("made/predictions.csv")
    assert list(written.columns) == ["x", "truth", "predicted", "lower", "upper"]
    assert ((written["lower"] < written["truth"]) & (written["truth"] < written["upper"])).mean() > 0.8


def test_the_textbooks_experiment_is_made(run, tmp_path):
    status, out, err = run("--textbook", "-o", "made")
    assert (status, err) == (0, "")
    assert pictures(tmp_path / "made") == both("experiment")
    written = pd.read_csv("made/predictions.csv")
    assert list(written.columns) == ["x", "truth", "average", "gaussian", "learned"]
    model = KernelRegressor.load("made/model.safetensors")
    np.testing.assert_array_equal(model.predict(written[["x"]].to_numpy()), written["learned"])
    errors = ((written[["average", "gaussian", "learned"]].T - written["truth"]) ** 2).mean(axis=1)
    for error in errors:
        assert f" {error:.4f}\n" in out
    assert f"\n{len(model.history_) - 1} " in out
    for folder, seed in (("zero", 0), ("one", 1)):
        made(run("--textbook", "-o", folder, "--seed", seed))
    first, zero, one = ((tmp_path / name / "predictions.csv").read_bytes() for name in ("made", "zero", "one"))
    assert first == zero != one
    refused(run("--textbook", "--seed", "-1"), "--seed: got -1; expected at least 0")


@pytest.mark.parametrize("option", ["--target", "--feature", "--weights", "--set", "--order", "--text"])
def test_options_for_a_table_need_one(run, option):
    refused(run(option, "x"), f"{option} needs a table, as in dikkat regress")


def test_help_fits_80_columns(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page, _ = made(run("--help"))
    assert max(map(len, page.splitlines())) <= 80
    assert "Example" in page
    assert "…" not in page
    defaults = KernelRegressor().get_params()
    words = " ".join(page.replace("│", " ").split())
    assert len(set(re.findall(r"--[a-z]+", page.partition("Examples")[0])) - {"--help", "--set"}) <= 16
    assert f"[default: {defaults['order']}]" in words
    shown = [f"{name}={'none' if (value := defaults[name]) is None else value}" for name in SETTINGS]
    assert f"[default: {', '.join(shown)}]" in words


BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError("No module named " + name, name=name)

sys.meta_path.insert(0, Blocked())
from dikkat.cli import main
main()
"""


def test_it_needs_nothing_of_translation(homes, tmp_path):
    output = ["--set", "bandwidth=scott", "-o", tmp_path / "made"]
    done = python(BLOCKED.format(modules=OTHERS), "regress", tmp_path / "homes.csv", "--target", "price", *output)
    assert done.stderr == ""
    assert pictures(tmp_path / "made") == both("attention", "fit")
