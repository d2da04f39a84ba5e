"""`dikkat regress` of a folder of Parquet files."""

import numpy as np
import pandas as pd
import pytest
from distributed import LocalCluster

from command import command_line
from dikkat.regression import NadarayaWatson


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run `dikkat regress` in an empty folder; returns (status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    return command_line(monkeypatch, capsys, "regress")


@pytest.fixture
def homes(tmp_path):
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.uniform(1, 9, (60, 2)), columns=["area", "age"])
    frame["price"] = frame["area"] ** 2 - frame["age"] + random.normal(0, 1, 60)
    frame["count"] = random.integers(0, 4, 60)
    frame["town"] = "Lyon"
    (tmp_path / "homes.d").mkdir()
    for name, rows in {"a": slice(0, 23), "b": slice(23, 23), "c": slice(23, 60)}.items():
        frame.iloc[rows].to_parquet(tmp_path / f"homes.d/{name}.parquet", row_group_size=20)
    return frame


@pytest.fixture(scope="module")
def address():
    options = {"processes": False, "dashboard_address": ":0", "protocol": "tcp"}
    with LocalCluster(n_workers=1, threads_per_worker=2, **options) as cluster:
        yield cluster.scheduler_address


def _check(homes, folder):
    x, y = homes[["area", "age"]], homes["price"]
    wanted = NadarayaWatson(bandwidth=[1.5, 4.0]).fit(x, y, homes["count"]).predict(x)
    parts = sorted(folder.glob("*.parquet"))
    written = pd.concat([pd.read_parquet(path) for path in parts], ignore_index=True)
    pd.testing.assert_frame_equal(written[homes.columns], homes)
    np.testing.assert_allclose(written["price_predicted"], wanted, rtol=1e-10)


OPTIONS = ["--target", "price", "--weights", "count", "--bandwidth", "1.5,4", "-o", "made"]


def test_a_folder_on_a_cluster(run, homes, tmp_path, address, monkeypatch):
    monkeypatch.setattr("dikkat.cli.partitions._ROWS", 20)  # each group of rows is a partition
    (tmp_path / "made/predictions").mkdir(parents=True)
    (tmp_path / "made/predictions/part-00009.parquet").touch()  # of a former run
    status, out, err = run("homes.d", *OPTIONS, "--scheduler", address)
    assert (status, err) == (0, "")
    assert "left out: town, which of a folder may be numbers alone" in out
    assert "rows: 60 in 4 partitions" in out
    _check(homes, tmp_path / "made/predictions")


def test_a_folder_on_this_machine(run, homes, tmp_path, monkeypatch):
    """With threads in place of processes, which take seconds to start; their memory is that of all tests."""
    started = []

    def cluster(**given):
        started.append(given)
        return LocalCluster(**given, processes=False)

    monkeypatch.setattr("distributed.LocalCluster", cluster)
    status, out, _ = run("homes.d", *OPTIONS, "--workers", "1", "--memory", "64GiB")
    assert status == 0
    assert "rows: 60 in 2 partitions" in out
    assert (started[0]["n_workers"], started[0]["memory_limit"]) == (1, "64GiB")
    _check(homes, tmp_path / "made/predictions")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["homes.d"], "say with --target which column of homes.d to predict: area, age, price, count"),
        (["homes.d", "--target", "prize"], "a.parquet: there is no column 'prize'; expected one of area, age, price"),
        (
            ["homes.d", "--target", "price", "--folds", "3"],
            "--folds is for a table in one file, and homes.d is a folder",
        ),
        (["homes.d/a.parquet", "--target", "price", "--workers", "2"], "--workers is for a folder of .parquet files"),
        (["homes.d", "--target", "price", "--scheduler", "a", "--memory", "1GiB"], "--memory is for processes of this"),
        (["homes.d", "--target", "price", "--scheduler", "tcp://127.0.0.1:1"], "where no Dask scheduler answers"),
        (["homes.d", "--target", "price", "--feature", "price"], "column 'price' is given twice"),
        (["empty", "--target", "price"], "empty: there are no rows in .parquet files in it"),
        (["odd", "--target", "price"], "b.parquet: there is no column 'price'; expected one of area, age"),
        (["broken", "--target", "price"], "x.parquet: no Parquet file"),
    ],
)
def test_folders_that_cannot_be(run, homes, tmp_path, monkeypatch, options, message):
    monkeypatch.setattr("dikkat.cli.partitions._WAIT", 0.5)
    for name in ("empty", "odd", "broken"):
        (tmp_path / name).mkdir()
    homes.to_parquet(tmp_path / "odd/a.parquet")
    homes[["area", "age"]].to_parquet(tmp_path / "odd/b.parquet")
    (tmp_path / "broken/x.parquet").write_text("no")
    status, _, err = run(*options)
    assert status == 2
    assert err.count("\n") == 1
    assert message in err


def test_a_file_with_what_is_no_number(run, homes, tmp_path, address):
    homes.loc[30, "age"] = np.nan
    homes.iloc[23:].to_parquet(tmp_path / "homes.d/c.parquet")
    status, _, err = run("homes.d", *OPTIONS, "--scheduler", address)
    assert status == 2
    assert err.splitlines()[-1] == "dikkat: --feature: got nan in c.parquet; expected finite numbers"
