"""`dikkat regress` of a folder of Parquet files, partition by partition, on a Dask cluster."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dikkat.cli.tables import show_table
from dikkat.errors import InputError
from dikkat.extras import needing

if TYPE_CHECKING:
    import pandas

PREDICTIONS = "predictions"

_ROWS = 2**18  # from so many on, row groups of a file are a partition
_WAIT = 10  # seconds in which a scheduler has to answer


class Part(NamedTuple):
    """Some row groups of a file.

    Attributes:
        path: The file.
        groups: Their places in it.
        rows: How many rows they have.
    """

    path: Path
    groups: list[int]
    rows: int

    def read(self, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """These columns, or all."""
        from pyarrow import parquet  # type: ignore[import-untyped]

        with parquet.ParquetFile(self.path) as file:
            found: pandas.DataFrame = file.read_row_groups(self.groups, columns).to_pandas()
        return found if columns is None else found[list(columns)]

    def write(self, name: str, predicted: Any, path: Path) -> None:
        """All columns and the predictions, in another file, which is there whole or not at all."""
        aside = path.with_name(f".{path.name}")
        self.read().assign(**{name: predicted}).to_parquet(aside, index=False)
        aside.replace(path)


def regress(
    folder: Path,
    data: Mapping[str, Any],
    settings: Mapping[str, Any],
    cluster: Mapping[str, Any],
    given: Sequence[str],
    output: Path,
) -> None:
    """Fit the rows of a folder, say what was found, and write the predictions into another.

    Args:
        folder: Of the files.
        data: The options that say which columns are meant.
        settings: The estimator's.
        cluster: Those that say who works.
        given: The names of all options that were given.
        output: Where the predictions go.

    Raises:
        InputError: The folder or its columns are not what was asked for; nobody answers at the address.
    """
    from dikkat.regression import NadarayaWatson

    allowed = {"target", "feature", "without", "weights", "predict", "missing", *settings, *cluster}
    if wrong := [name for name in given if name not in allowed]:
        raise InputError(f"--{wrong[0]} is for a table in one file, and {folder} is a folder: leave it out")
    target, begin = data["target"], time.perf_counter()
    parts = _parts(folder)
    features = _features(parts, folder, data)
    weights = [data["weights"]] if data["weights"] else []
    asked = parts if data["predict"] is None else _parts(data["predict"])
    _check_columns(parts, [target, *features, *weights])
    _check_columns(asked, features)
    name = f"{target}_predicted"
    _check_new(asked, name)
    written = output / PREDICTIONS
    if written.resolve() in [source.resolve() for source in (folder, data["predict"]) if source is not None]:
        raise InputError(f"{written}: the predictions would replace the table itself; give another --output")
    with _cluster(**cluster):
        rows = _frame(parts, [*features, target, *weights])
        weight = rows[weights[0]] if weights else None
        with _naming_files(parts):
            model = NadarayaWatson(**settings).fit(rows[features], rows[target], weight)
        _describe(model, features, sum(part.rows for part in parts))
        predicted = model.predict(_frame(asked, features))
        with _naming_files(asked):
            _write(asked, name, predicted, _free(written))
    print(f"seconds: {time.perf_counter() - begin:.1f}")
    print(f"predictions: {written}")


def _parts(folder: Path) -> list[Part]:
    """The partitions of a folder, in the order of the files' names."""
    from pyarrow import ArrowInvalid, parquet

    found = []
    for path in sorted(folder.glob("*.parquet")):
        try:
            about = parquet.read_metadata(path)
        except ArrowInvalid as error:
            raise InputError(f"{path}: no Parquet file ({error})") from error
        groups: list[int] = []
        rows = 0
        for group in range(about.num_row_groups):
            groups, rows = [*groups, group], rows + about.row_group(group).num_rows
            if rows >= _ROWS or group == about.num_row_groups - 1:
                found.append(Part(path.resolve(), groups, rows))
                groups, rows = [], 0
    if not sum(part.rows for part in found):
        raise InputError(f"{folder}: there are no rows in .parquet files in it; expected some")
    return found


def _features(parts: Sequence[Part], folder: Path, data: Mapping[str, Any]) -> list[str]:
    """The columns to predict from."""
    from pyarrow import parquet, types

    schema = parquet.read_schema(parts[0].path)
    numbers = [field.name for field in schema if types.is_integer(field.type) or types.is_floating(field.type)]
    if data["target"] is None:
        raise InputError(f"say with --target which column of {folder} to predict: {', '.join(numbers)}")
    used = {data["target"], data["weights"], *(data["without"] or ())}
    features = list(data["feature"] or [name for name in numbers if name not in used])
    if not features:
        raise InputError(f"{folder}: there is no other column of numbers to predict {data['target']!r} from")
    if left_out := [name for name in schema.names if name not in {*features, *used}]:
        print(f"left out: {', '.join(left_out)}, which of a folder may be numbers alone")
    return features


def _check_columns(parts: Sequence[Part], names: Sequence[str]) -> None:
    """Whether every file has these columns, once each."""
    from pyarrow import parquet

    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"column {twice[0]!r} is given twice: each can be one of --target, --weights and --feature")
    for path in dict.fromkeys(part.path for part in parts):
        there = parquet.read_schema(path).names
        if lost := [name for name in names if name not in there]:
            raise InputError(f"{path}: there is no column {lost[0]!r}; expected one of {', '.join(there)}")


def _check_new(parts: Sequence[Part], name: str) -> None:
    """Whether no file has a column of this name."""
    from pyarrow import parquet

    for path in dict.fromkeys(part.path for part in parts):
        if name in parquet.read_schema(path).names:
            raise InputError(f"{path}: there is a column {name!r} already; rename it")


def _free(path: Path) -> Path:
    """A folder for the predictions, without those of a former run."""
    path.mkdir(exist_ok=True)
    for old in path.glob("part-*.parquet"):
        old.unlink()
    return path


@contextmanager
def _cluster(scheduler: str | None, workers: int | None, memory: str | None) -> Iterator[None]:
    """Within, Dask works on a cluster: that of an address, or processes of this machine."""
    with needing("dask"):
        from distributed import Client, LocalCluster
    if scheduler is not None:
        if workers is not None or memory is not None:
            name = "workers" if workers is not None else "memory"
            raise InputError(f"--{name} is for processes of this machine, and --scheduler names others: leave one out")
        try:
            client = Client(scheduler, timeout=_WAIT)
        except (OSError, ValueError) as error:
            raise InputError(f"--scheduler: got {scheduler!r}, where no Dask scheduler answers ({error})") from error
        with client:
            yield
        return
    count = workers or os.cpu_count() or 1
    try:
        local = LocalCluster(
            n_workers=count, threads_per_worker=1, memory_limit=memory or "auto", dashboard_address=":0"
        )
    except ValueError as error:
        raise InputError(f"--memory: got {memory!r}; expected a size, such as 2GiB ({error})") from error
    with local, Client(local):
        yield


@contextmanager
def _naming_files(parts: Sequence[Part]) -> Iterator[None]:
    """Errors about partitions name the files."""

    def named(found: re.Match[str]) -> str:
        return parts[int(found[1])].path.name

    try:
        yield
    except ValueError as error:
        raise ValueError(re.sub(r"partition (\d+)", named, str(error))) from error


def _frame(parts: Sequence[Part], columns: list[str]) -> Any:
    """A Dask data frame."""
    import dask.dataframe

    return dask.dataframe.from_map(Part.read, parts, columns=columns, meta=parts[0].read(columns).iloc[:0])


def _write(parts: Sequence[Part], name: str, predicted: Any, folder: Path) -> None:
    import dask

    blocks = predicted.to_delayed().ravel()
    write = dask.delayed(Part.write)
    dask.compute(
        *(
            write(part, name, block, folder.resolve() / f"part-{number:05}.parquet")
            for number, (part, block) in enumerate(zip(parts, blocks, strict=True))
        )
    )


def _describe(model: Any, features: Sequence[str], rows: int) -> None:
    boxes = model._smoother.joined.boxes
    ends = zip(
        *((min(box.low[j] for box in boxes), max(box.high[j] for box in boxes)) for j in range(len(features))),
        strict=True,
    )
    low, high = ends
    show_table(
        ["feature", "from", "to", "bandwidth"],
        [(name, f"{low[j]:.4g}", f"{high[j]:.4g}", f"{model.bandwidth_[j]:.4g}") for j, name in enumerate(features)],
    )
    print(f"rows: {rows:,} in {len(boxes)} partitions")
    if model.history_ and model.bandwidth in ("loo", "loo-1se"):
        error = math.sqrt(model.history_[-1]["error"])
        print(f"leaving each row out, by which the bandwidth was chosen: root mean squared error {error:.4g}")
