"""`dikkat regress` on tables of more than numbers, and with a model that was saved."""

import numpy as np
import pandas as pd
import pytest

from command import command_line, made, refused
from dikkat.regression import KernelRegressor

SETTINGS = ["--target", "price", "--set", "bandwidth=0.2,60,0.4,90", "--folds", "0"]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dikkat.show.save", lambda figure, path: (figure.draw_without_rendering(), path.touch()))
    return command_line(monkeypatch, capsys, "regress")


@pytest.fixture
def homes(tmp_path):
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "id": [f"home {i}" for i in range(60)],
            "town": random.choice(["Köln", "Ulm", "Bern"], 60),
            "area": random.uniform(30, 200, 60).round(1),
            "size": random.choice(["low", "mid", "high"], 60),
            "day": pd.to_datetime("2020-01-01") + pd.to_timedelta(random.integers(0, 300, 60), "D"),
        }
    )
    frame["price"] = (3 * frame["area"] + 90 * (frame["town"] == "Ulm") + random.normal(0, 9, 60)).round(2)
    frame.to_csv(tmp_path / "homes.csv", index=False)
    return frame


def model_of(homes, **settings):
    order = pd.CategoricalDtype(["low", "mid", "high"], ordered=True)
    x = homes[["town", "area", "size", "day"]].astype({"size": order})
    bandwidth = [0.2, 60, 0.4, 90]
    return KernelRegressor(bandwidth=bandwidth, categorical_features=["town"], **settings).fit(x, homes["price"]), x


def test_categories_dates_and_what_is_left_out(run, homes):
    status, out, err = run("homes.csv", *SETTINGS, "--ordered", "size=low,mid,high", "--interval", 0.9)
    assert (status, err) == (0, "")
    model, x = model_of(homes)
    written = pd.read_csv("regression/predictions.csv")
    np.testing.assert_allclose(written["price_predicted"], model.predict(x), rtol=1e-9)
    lower, upper = model.predict_interval(x, 0.9)
    np.testing.assert_allclose(written[["price_lower", "price_upper"]], np.column_stack([lower, upper]), rtol=1e-7)
    first, last = homes["day"].min().date(), homes["day"].max().date()
    assert f"day   {first}  {last}    90 days\n".split() in [line.split()[:5] for line in out.splitlines()]
    assert "town: 3 categories, Bern, Köln, Ulm\n" in out
    assert "size: 3 categories in this order, low, mid, high\n" in out
    assert f"day: dates, counted in days since {first}\n" in out
    assert "left out: id, which holds text ('home 0' in row 1)\n" in out


def test_every_column_has_a_use_or_a_reason(run, homes):
    homes = homes.assign(same="x", empty=None)[["town", "area", "price", "same", "empty", "id", "day"]]
    homes.to_csv("homes.csv")
    kernel = ["--set", "kernel=epanechnikov", "--set", "bandwidth=90", "--folds", 0]
    out, _ = made(run("homes.csv", "--target", "price", "--without", "day", *kernel))
    reasons = {
        "a column that": "has no name",
        "same, which": "holds text ('x' in row 1), the same in all rows",
        "empty, which": "is empty",
        "id, which": "holds text ('home 0' in row 1)",
        "day, which": "is excluded by --without",
        "town, which": "holds text, and categories need the gaussian kernel",
    }
    assert {line for line in out.splitlines() if line.startswith("left out")} == {
        f"left out: {name} {reason}" for name, reason in reasons.items()
    }
    refused(
        run("homes.csv", "--target", "price", "--categorical", "town", *kernel),
        "kernel: got 'epanechnikov' with categories",
    )


@pytest.mark.filterwarnings("default")  # as outside the tests
def test_rows_that_lack_cells(run, homes):
    holes = homes.copy()
    holes.loc[3, "area"] = holes.loc[5, "price"] = np.nan
    holes.loc[4, "town"] = None
    holes.to_csv("homes.csv", index=False)
    options = [*SETTINGS, "--ordered", "size=low,mid,high"]
    refused(run("homes.csv", *options), "column 'town' has 1 of 60 cells missing, the first in row 5; add --missing")
    status, out, err = run("homes.csv", *options, "--missing", "drop")
    assert (status, err) == (0, "dikkat: 2 of 60 rows have a missing cell and get no prediction\n")
    assert "rows: 60, 3 left out for missing cells\n" in out
    written = pd.read_csv("regression/predictions.csv")
    model, x = model_of(homes.drop(index=[3, 4, 5]))
    np.testing.assert_allclose(written["price_predicted"].drop(index=[3, 4, 5]), model.predict(x), rtol=1e-9)
    assert written["price_predicted"].isna()[[3, 4]].all()
    wrong = run("homes.csv", *options, "--missing", "fill")
    refused(wrong, "--missing: got 'fill'; expected 'refuse', 'drop' or 'indicator'")


@pytest.mark.filterwarnings("default")  # as outside the tests
def test_standard_input_and_cells_that_stand_for_nothing(run, homes):
    holes = homes.assign(area=homes["area"].mask(homes.index == 3, -999))
    options = [*SETTINGS, "--ordered", "size=low,mid,high", "--missing", "drop", "--text", "na=-999,?"]
    status, out, err = run("-", *options, stdin=holes.to_csv(index=False).encode())
    assert (status, err) == (0, "dikkat: 1 of 60 rows have a missing cell and get no prediction\n")
    assert "rows: 60, 1 left out for missing cells\n" in out
    written = pd.read_csv("regression/predictions.csv")
    model, x = model_of(homes.drop(index=3))
    np.testing.assert_allclose(written["price_predicted"].drop(index=3), model.predict(x), rtol=1e-9)
    assert written["area"][3] == -999
    refused(run("-", *options, stdin=b""), "-: ")
    refused(
        run("-", *options, "--predict", "-", stdin=b""),
        "--predict: got -, like the table; expected a file, as standard",
    )


def test_a_saved_model_is_applied(run, homes, tmp_path):
    made(run("homes.csv", *SETTINGS, "--ordered", "size=low,mid,high", "-o", "made"))
    new = homes[["day", "area", "size", "town"]][::-1].assign(note="?")
    new.to_csv("new.csv", index=False, sep=";", decimal=",")
    model, _ = model_of(homes)
    status, out, err = run("new.csv", "--apply", "made/model.safetensors", "--interval", 0.5, "-o", "out")
    assert (status, err) == (0, "")
    assert "not used: note\n" in out
    assert "new.csv: read as UTF-8 with semicolons between the columns, decimal commas\n" in out
    written = pd.read_csv("out/new-predictions.csv", sep=";", decimal=",")
    assert list(written.columns[5:]) == ["price_predicted", "price_std", "price_lower", "price_upper"]
    order = pd.CategoricalDtype(["low", "mid", "high"], ordered=True)
    x = new[["town", "area", "size", "day"]].astype({"size": order})
    np.testing.assert_allclose(written["price_predicted"], model.predict(x), rtol=1e-9)
    np.testing.assert_allclose(written["price_std"], model.predict(x, return_std=True)[1], rtol=1e-7)
    made(run("new.csv", "--apply", "made/model.safetensors", "-o", "plain"))
    assert list(pd.read_csv("plain/new-predictions.csv", sep=";").columns[5:]) == ["price_predicted", "price_std"]


def test_applying_a_model_writes_next_to_the_table_and_says_when_it_replaces_a_file(run, homes, tmp_path):
    out, _ = made(run("homes.csv", *SETTINGS, "--ordered", "size=low,mid,high"))
    assert "(replaced)" not in out
    before = {path: path.read_bytes() for path in (tmp_path / "regression").iterdir()}
    (tmp_path / "new").mkdir()
    homes.to_parquet("new/spring.2021.parquet")
    homes.to_csv("new/Autumn.CSV.gz", index=False)
    (tmp_path / "new/autumn").mkdir()
    homes[:31].to_parquet("new/autumn/a.parquet")
    apply = ["--apply", "regression/model.safetensors"]
    for table, file in (
        ("new/spring.2021.parquet", "new/spring.2021-predictions.parquet"),
        ("new/Autumn.CSV.gz", "new/Autumn-predictions.csv"),
        ("new/autumn", "new/autumn-predictions.parquet"),
        ("-", "stdin-predictions.csv"),
    ):
        for note in ("", " (replaced)"):
            out, _ = made(run(table, *apply, stdin=homes.to_csv(index=False).encode()))
            assert f"predictions: {file}{note}\n" in out
        assert (tmp_path / file).is_file()
    assert {path: path.read_bytes() for path in (tmp_path / "regression").iterdir()} == before
    out, _ = made(run("homes.csv", *SETTINGS, "--ordered", "size=low,mid,high"))
    assert {line for line in out.splitlines() if line.endswith(" (replaced)")} == {
        "model: regression/model.safetensors (replaced)",
        "predictions: regression/predictions.csv (replaced)",
        *(
            f"picture: regression/{name} (replaced)"
            for name in ("fit.png", "fit.svg", "attention.png", "attention.svg")
        ),
    }


@pytest.mark.filterwarnings("default")  # as outside the tests
def test_missing_cells_where_a_model_is_applied(run, homes):
    made(run("homes.csv", *SETTINGS, "--ordered", "size=low,mid,high", "-o", "made"))
    whole = pd.read_csv("made/predictions.csv")["price_predicted"]
    homes.loc[3, "area"], homes.loc[4, "town"] = np.nan, None
    homes.to_csv("homes.csv", index=False)
    apply = ["--apply", "made/model.safetensors", "-o", "out"]
    refused(run("homes.csv", *apply), "has 1 of 60 cells missing, the first in row 5; add --missing drop to leave")
    message = (
        "--missing: got 'indicator', but made/model.safetensors was fitted without it; expected 'refuse' or 'drop'"
    )
    refused(run("homes.csv", *apply, "--missing", "indicator"), message)
    warning = "dikkat: 2 of 60 rows have a missing cell and get no prediction\n"
    status, _, err = run("homes.csv", *apply, "--missing", "drop")
    assert (status, err) == (0, warning)
    found = pd.read_csv("out/homes-predictions.csv")["price_predicted"]
    assert found.isna().tolist() == [i in (3, 4) for i in range(60)]
    np.testing.assert_allclose(found.drop(index=[3, 4]), whole.drop(index=[3, 4]), rtol=1e-9)
    refused(run("homes.csv", *apply, "--folds", 3), "--folds is for fitting and --apply uses a fitted model")
    made(run("homes.csv", "--target", "price", "--folds", 0, "--missing", "indicator", "-o", "gaps"))
    apply[1] = "gaps/model.safetensors"
    for options, gaps in (([], 0), (["--missing", "indicator"], 0), (["--missing", "drop"], 2)):
        status, _, err = run("homes.csv", *apply, *options)
        assert (status, err) == (0, warning if gaps else "")
        assert pd.read_csv("out/homes-predictions.csv")["price_predicted"].isna().sum() == gaps
    refused(run("homes.csv", *apply, "--missing", "refuse"), "cells missing")


@pytest.mark.parametrize("missing", ["drop", "indicator"])
def test_rows_without_a_weight_are_left_out(run, homes, missing):
    homes["count"] = 1 + np.arange(60.0) % 3
    homes.loc[7, "count"] = np.nan
    homes.to_csv("homes.csv", index=False)
    options = [*SETTINGS, "--ordered", "size=low,mid,high", "--weights", "count"]
    refused(
        run("homes.csv", *options), "column 'count' has 1 of 60 cells missing, the first in row 8; add --missing drop"
    )
    out, _ = made(run("homes.csv", *options, "--missing", missing))
    assert "rows: 60, 1 left out for missing cells\n" in out
    model = KernelRegressor.load("regression/model.safetensors")
    np.testing.assert_array_equal(model.sample_weight_, homes["count"].drop(index=7))
    homes.loc[9, "area"] = np.inf
    homes.to_csv("homes.csv", index=False)
    message = "column 'area' has 1 of 60 cells infinite, the first in row 10; correct them"
    refused(run("homes.csv", *options, "--missing", missing), message)


def test_a_column_that_is_named_is_what_it_holds_or_refused(run, homes, tmp_path):
    homes["day"] = "01/02/2020"
    homes["tags"] = [[1, 2]] * 60
    homes.drop(columns="tags").to_csv("homes.csv", index=False)
    homes.to_parquet("homes.parquet")
    for table, name, message in (
        ("homes.csv", "id", "column 'id' holds text ('home 0' in row 1); expected numbers, dates, or text with few"),
        ("homes.csv", "day", "column 'day' holds dates that can be read in two ways ('01/02/2020')"),
        ("homes.parquet", "tags", "column 'tags' holds list"),
    ):
        result = run(table, "--target", "price", "--feature", "area", "--feature", name)
        refused(result, message)
        assert (f"--categorical {name}" in result[2]) == (name != "tags")
    options = ["--set", "bandwidth=scott", "--folds", 0, "--feature", "id", "--categorical", "id"]
    made(run("homes.csv", "--target", "price", *options))
    options = ["--feature", "tags", "--categorical", "tags"]
    refused(
        run("homes.parquet", "--target", "price", *options),
        "got [1, 2] in column 'tags'; expected texts or numbers as categories",
    )


@pytest.mark.filterwarnings("default")  # as outside the tests
def test_numbers_that_are_categories_may_be_texts_in_another_table(run, homes):
    homes["town"] = homes["town"].map({"Köln": 50667, "Ulm": 89073, "Bern": 3000})
    homes.to_csv("homes.csv", index=False)
    settings = ["--target", "price", "--feature", "area", "--feature", "town", "--categorical", "town", "--folds", 0]
    made(run("homes.csv", *settings, "--set", "bandwidth=60,0.2", "-o", "made"))
    expected = pd.read_csv("made/predictions.csv")["price_predicted"]
    homes.astype({"town": object}).assign(town=[*homes["town"][:-1], "?"]).to_csv("new.csv", index=False)
    status, _, err = run("new.csv", "--apply", "made/model.safetensors", "-o", "out")
    assert (status, err.count("\n")) == (0, 1)
    assert "1 of 60 rows with a category in column 'town' that was not in fit" in err
    found = pd.read_csv("out/new-predictions.csv")["price_predicted"]
    np.testing.assert_allclose(found[:-1], expected[:-1], rtol=1e-9)
    assert abs(found[59] - expected[59]) > 1e-3


@pytest.mark.filterwarnings("default")  # as outside the tests
def test_what_cannot_be_applied(run, homes, tmp_path):
    made(run("homes.csv", *SETTINGS, "--ordered", "size=low,mid,high", "-o", "made"))
    apply = ["--apply", "made/model.safetensors", "-o", "out"]
    homes.drop(columns=["town", "area"]).to_csv("few.csv", index=False)
    refused(run("few.csv", *apply), "few.csv: lacks the columns 'town', 'area'; got id, size, day, price")
    homes.assign(size="huge").to_csv("huge.csv", index=False)
    refused(run("huge.csv", *apply), "huge.csv: column 'size' holds 'huge'; expected one of low, mid, high")
    homes.assign(day="soon").to_csv("soon.csv", index=False)
    refused(run("soon.csv", *apply), "soon.csv: column 'day' holds text ('soon' in row 1); expected dates")
    homes.assign(price_predicted=1).to_csv("twice.csv", index=False)
    refused(run("twice.csv", *apply), "there is a column 'price_predicted' already")
    refused(run("homes.csv", *apply, "--set", "ridge=1"), "--set is for fitting and --apply uses a fitted model")
    refused(
        run("homes.csv", "--apply", "homes.csv", "-o", "out"), "homes.csv: truncated, damaged, or not a safetensors"
    )
    refused(run("--apply", "made/model.safetensors"), "--apply needs a table")
    refused(run("homes.csv", "--apply", "made", "-o", "out"), "made: Is a directory")
    KernelRegressor(bandwidth=1.0).fit([[0.0], [1.0]], [0.0, 1.0]).save("nameless.safetensors")
    refused(
        run("homes.csv", "--apply", "nameless.safetensors"),
        "nameless.safetensors: got a model of columns without names",
    )
    assert list((tmp_path / "out").iterdir()) == []
    status, _, err = run("homes.csv", *apply)
    assert (status, err) == (0, "")
    homes.assign(town="Izmir").to_csv("new.csv", index=False)
    _, err = made(run("new.csv", *apply))
    assert "60 of 60 rows with a category in column 'town' that was not in fit" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ordered", "size=low"], "--ordered: got 'size=low'; expected a column, or one with levels: size=low,high"),
        (["--ordered", "size=low,mid"], "homes.csv: column 'size' holds 'high'; expected one of low, mid"),
        (["--ordered", "size"], "--ordered: got 'size', which holds text; expected --ordered size=LOWEST,…,HIGHEST"),
        (["--ordered", "size=low,mid,high", "--categorical", "size"], "column 'size': got --ordered and --categorical"),
        (["--categorical", "twon"], "homes.csv: there is no column 'twon'; did you mean 'town'?"),
        (["--without", "twon"], "homes.csv: there is no column 'twon'; did you mean 'town'?"),
        (
            ["--feature", "area", "--categorical", "town"],
            "column 'town' is declared a category; expected --feature town",
        ),
        (["--interval", "2"], "--interval: got 2.0; expected a number between 0 and 1"),
        (["--text", "delimiter=ab"], "--text delimiter: got 'ab'; expected one letter"),
        (["--text", "decimal=,", "--text", "thousands=,"], "--text decimal and thousands: got ',' for both"),
        (["--text", "encoding=utf-99"], "homes.csv: --text encoding: got 'utf-99'"),
        (["--text", "commas"], "--text: got 'commas'; expected NAME=VALUE, with one of delimiter, decimal"),
    ],
)
def test_what_cannot_be_used_is_one_line(run, homes, options, message):
    refused(run("homes.csv", "--target", "price", *options), message)


@pytest.mark.filterwarnings("default")  # as outside the tests
def test_advice_names_options(run, homes):
    homes["count"] = 0.1 + np.arange(60.0) % 3
    homes.loc[7, "size"] = None
    homes.to_csv("homes.csv", index=False)
    options = [*SETTINGS, "--ordered", "size=low,mid,high"]
    message = (
        "homes.csv: got 1 missing cells in column 'size', which is ordered; expected none. --missing indicator is for"
    )
    refused(run("homes.csv", *options, "--missing", "indicator"), message)
    _, err = made(run("homes.csv", *options, "--missing", "drop", "--weights", "count"))
    assert "dikkat: --weights: got weights that sum to" in err
    assert "use --set weights=precision, for which" in err
    day = pd.date_range("2021-01-01", periods=120)
    series = pd.DataFrame({"day": day, "y": np.cumsum(np.random.default_rng(0).normal(0, 1, 120))})
    series.to_csv("series.csv", index=False)
    _, err = made(run("series.csv", "--target", "y", "--folds", 0))
    assert "column 'y': got rows whose errors correlate with their neighbours' along 'day'" in err
    assert "expected independent errors, or --set cv=20, which makes 20 blocks of rows" in err
    made(run("homes.csv", "--target", "price", "--feature", "area", "--folds", 0))
    homes.assign(area=9e9).to_csv("new.csv", index=False)
    _, err = made(run("new.csv", "--apply", "regression/model.safetensors"))
    assert "dikkat: new.csv: got 60 of 60 rows beyond the rows in fit, in area" in err


@pytest.mark.filterwarnings("error")
def test_texts_are_texts_where_all_look_like_numbers(run, homes):
    codes = homes.assign(town=homes["town"].map({"Köln": "1", "Ulm": "2", "Bern": "A"}))[["town", "area", "price"]]
    codes.to_csv("codes.csv", index=False)
    new = codes[codes["town"] != "A"]
    new.to_csv("new.csv", index=False)
    options = ["--target", "price", "--categorical", "town", "--set", "bandwidth=0.2,60", "--folds", 0]
    made(run("codes.csv", *options, "-o", "made"))
    expected = pd.read_csv("made/predictions.csv")["price_predicted"][new.index]
    for file, arguments in (
        ("out/new-predictions.csv", ["new.csv", "--apply", "made/model.safetensors"]),
        ("out/predictions.csv", ["codes.csv", *options, "--predict", "new.csv"]),
    ):
        status, _, err = run(*arguments, "-o", "out")
        assert (status, err) == (0, "")
        np.testing.assert_allclose(pd.read_csv(file)["price_predicted"], expected, rtol=1e-9)


def test_missing_cells_are_learned_from_and_predicted(run, homes):
    homes.loc[::7, "area"] = np.nan
    homes.loc[3, "town"] = None
    homes.loc[5, "price"] = np.nan
    homes["customer_id"] = np.arange(100_000, 100_060)
    homes.to_csv("homes.csv", index=False)
    status, out, err = run("homes.csv", "--target", "price", "--missing", "indicator", "--folds", 0)
    assert (status, err) == (0, "")
    assert "left out: customer_id, which numbers the rows\n" in out
    assert any(line.startswith("area is missing ") for line in out.splitlines())
    written = pd.read_csv("regression/predictions.csv")
    assert np.isfinite(written["price_predicted"]).all()
    homes.drop(columns="price").to_csv("new.csv", index=False)
    status, _, err = run("new.csv", "--apply", "regression/model.safetensors", "--output", "new")
    assert (status, err) == (0, "")
    np.testing.assert_allclose(pd.read_csv("new/new-predictions.csv")["price_predicted"], written["price_predicted"])
