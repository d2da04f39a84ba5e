"""Tables of classes, and tables of 200 to 20,000 rows to learn a metric.

The tables were selected before any fit. Longer tables are sampled to `MOST` rows.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.regression.data import Data
from benchmarks.regression.frames import classes, islp, keel, numbers, r, statsmodels
from benchmarks.regression.tables import Table

MOST = 1000


def _sklearn(name: str, **settings: Any) -> Data:
    from sklearn import datasets

    function = getattr(datasets, name)
    arguments = {"random_state": 0, **settings} if name.startswith("make_") else {"return_X_y": True}
    return Data(*function(**arguments)[:2])


def _classes(name: str, **settings: Any) -> Data:
    return classes(*_sklearn(name, **settings))


_KEEL = (
    "bands chess contraceptive crx german heart housevotes led7digit monk-2 movement_libras saheart segment sonar "
    "splice tic-tac-toe titanic vowel wisconsin"
)
CLASSES: dict[str, Table] = {
    **{name: partial(keel, name) for name in _KEEL.split()},
    "wine": partial(_classes, "load_wine"),
    "cancer": partial(_classes, "load_breast_cancer"),
    "digits": partial(_classes, "load_digits"),
    "moons": partial(_classes, "make_moons", n_samples=500, noise=0.3),
    "blobs": partial(_classes, "make_classification", n_samples=500, n_classes=3, n_informative=4),
}


def _digits() -> Data:
    """Predict the digit from eight principal components."""
    from sklearn.decomposition import PCA

    x, y = _sklearn("load_digits")
    return Data(PCA(8, random_state=0).fit_transform(x), y.astype(float))


def _star98() -> Data:
    from statsmodels.datasets import star98

    dataset = star98.load_pandas()
    above, below = dataset.endog.to_numpy(float).T
    return Data(dataset.exog.to_numpy(float)[:, :12], above / (above + below))


def _numbers(load: Callable[..., Data], *arguments: str) -> Table:
    return lambda: numbers(load(*arguments))


METRIC: dict[str, Table] = {
    "diabetes": partial(_sklearn, "load_diabetes"),
    "digits": _digits,
    "star98": _star98,
    "schooling": _numbers(r, "Ecdat/Griliches", "lw", "rns mrt smsa med iq kww age school expr tenure"),
    "friedman1": partial(_sklearn, "make_friedman1", n_samples=1000, noise=1.0),
    "friedman2": partial(_sklearn, "make_friedman2", n_samples=1000, noise=100.0),
    "friedman3": partial(_sklearn, "make_friedman3", n_samples=1000, noise=0.1),
    "uncorrelated": partial(_sklearn, "make_sparse_uncorrelated", n_samples=500),
    "swiss roll": partial(_sklearn, "make_swiss_roll", n_samples=2000, noise=0.5),
    "auto": _numbers(islp, "Auto", "mpg", "cylinders displacement horsepower weight acceleration year origin"),
    "boston": _numbers(islp, "Boston", "medv"),
    "carseats": _numbers(islp, "Carseats", "Sales"),
    "college": _numbers(islp, "College", "Apps"),
    "bikeshare": _numbers(islp, "Bikeshare", "bikers", "season hr holiday weekday weathersit temp hum windspeed"),
    "diamonds": _numbers(r, "ggplot2/diamonds", "price"),
    "computers": _numbers(r, "Ecdat/Computers", "price"),
    "schools": _numbers(
        r, "Ecdat/Caschool", "testscr", "enrltot teachers calwpct mealpct computer expnstu avginc elpct"
    ),
    "clothing": _numbers(r, "Ecdat/Clothing", "tsales", "margin nown nfull npart naux hoursw inv1 inv2 ssize start"),
    "crime": _numbers(r, "Ecdat/Crime", "crmrte", "prbarr prbconv prbpris avgsen polpc density taxpc pctmin region"),
    "hours": _numbers(r, "Ecdat/Workinghours", "hours"),
    "wages": _numbers(r, "plm/Wages", "lwage"),
    "language": _numbers(r, "MASS/nlschools", "lang", "IQ GS SES COMB"),
    "galton": _numbers(r, "HistData/GaltonFamilies", "childHeight", "father mother children gender"),
    "cigarettes": _numbers(r, "Ecdat/Cigarette", "packpc", "year cpi pop income tax avgprs taxs"),
    "affairs": _numbers(statsmodels, "fair", "affairs"),
}
