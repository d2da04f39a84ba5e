"""The 51 tables of an external review, 34 real and 17 generated; they were not used for tuning.

The review gives names, rows and numbers of columns. The columns match these numbers, and the generated tables follow
the most obvious reading of their names.
"""

from functools import partial

import numpy as np

from benchmarks.regression.data import Array, Data
from benchmarks.regression.frames import gapminder, islp, r, statsmodels
from benchmarks.regression.tables import Draw, Table, normal, uniform

_CARS93 = (
    "Type MPG.city AirBags DriveTrain Cylinders EngineSize Horsepower RPM Man.trans.avail Fuel.tank.capacity "
    "Passengers Length Width Weight Origin"
)
REAL: dict[str, Table] = {
    "faithful": partial(r, "datasets/faithful", "waiting"),
    "gagurine": partial(r, "MASS/GAGurine", "GAG"),
    "insectsprays": partial(r, "datasets/InsectSprays", "count"),
    "mcycle": partial(r, "MASS/mcycle", "accel"),
    "heart": partial(statsmodels, "heart", "survival"),
    "toothgrowth": partial(r, "datasets/ToothGrowth", "len"),
    "trees": partial(r, "datasets/trees", "Volume"),
    "warpbreaks": partial(r, "datasets/warpbreaks", "breaks"),
    "ornstein": partial(r, "car/Ornstein", "interlocks"),
    "prestige": partial(r, "car/Prestige", "prestige", "education income women"),
    "rock": partial(r, "datasets/rock", "perm"),
    "gapminder": gapminder,
    "quakes": partial(r, "datasets/quakes", "mag"),
    "slid": partial(r, "car/SLID", "wages"),
    "airquality": partial(r, "datasets/airquality", "Ozone"),
    "copper": partial(statsmodels, "copper", "WORLDCONSUMPTION"),
    "salaries": partial(r, "car/Salaries", "salary"),
    "swiss": partial(r, "datasets/swiss", "Fertility"),
    "attitude": partial(r, "datasets/attitude", "rating"),
    "cpus": partial(r, "MASS/cpus", "perf", "syct mmin mmax cach chmin chmax"),
    "longley": partial(r, "datasets/longley", "Employed"),
    "scotland": partial(statsmodels, "scotland", "YES"),
    "bikeshare": partial(islp, "Bikeshare", "bikers", "mnth hr holiday weekday weathersit temp hum windspeed"),
    "credit": partial(islp, "Credit", "Balance", "Income Limit Cards Age Education Student Married Ethnicity"),
    "fair": partial(r, "Ecdat/Fair", "nbaffairs"),
    "wage": partial(islp, "Wage", "wage", "year age maritl race education jobclass health health_ins"),
    "diamonds": partial(r, "ggplot2/diamonds", "price"),
    "carseats": partial(islp, "Carseats", "Sales"),
    "mtcars": partial(r, "datasets/mtcars", "mpg"),
    "ecdat_housing": partial(r, "Ecdat/Housing", "price"),
    "cars93": partial(r, "MASS/Cars93", "Price", _CARS93),
    "uscrime": partial(r, "MASS/UScrime", "y"),
    "college": partial(islp, "College", "Grad.Rate"),
    "hitters": partial(islp, "Hitters", "Salary"),
}


def _hetero1(random: np.random.Generator, count: int) -> Data:
    x = random.uniform(size=(count, 1))
    return Data(x, np.sin(6 * x[:, 0]) + (0.1 + 0.6 * x[:, 0]) * random.normal(size=count))


def _trend(random: np.random.Generator, count: int) -> Data:
    """A trend whose test rows are beyond the training rows."""
    t = random.uniform(size=count)
    t[150:] = 1 + 0.3 * t[150:]
    return Data(t[:, None], 2 * t + 0.2 * np.sin(9 * t) + 0.2 * random.normal(size=count))


def _heavy_tail(random: np.random.Generator, count: int) -> Data:
    x = random.uniform(-1, 1, (count, 2))
    return Data(x, np.sin(3 * x[:, 0]) + x[:, 1] ** 2 + x[:, 1] + 0.2 * random.standard_t(3, count))


def _lognormal2(random: np.random.Generator, count: int) -> Data:
    log = random.normal(0, 1.5, (count, 2))
    return Data(np.exp(log), np.sin(log[:, 0]) + log[:, 1] / 1.5 + 0.3 * random.normal(size=count))


def _cat_slopes(random: np.random.Generator, count: int) -> Data:
    """A slope for each of four categories, with two irrelevant columns."""
    import pandas as pd

    x, group = random.normal(size=(count, 3)), random.integers(0, 4, count)
    frame = pd.DataFrame(x, columns=list("abc")).assign(group=pd.Categorical.from_codes(group, list("klmn")))
    return Data(frame, np.array([-2, -0.5, 1, 3])[group] * x[:, 0] + 0.4 * random.normal(size=count))


def _collinear6(random: np.random.Generator, count: int) -> Data:
    """Six columns from two independent ones."""
    z = random.normal(size=(count, 2))
    y = np.sin(2 * z[:, 0]) + z[:, 1] ** 2 / 2 + z[:, 1] / 2 + 0.3 * random.normal(size=count)
    return Data(np.repeat(z, 3, 1) + 0.1 * random.normal(size=(count, 6)), y)


def _integers8(random: np.random.Generator, count: int) -> Data:
    x = random.integers(0, 5, (count, 8)).astype(float)
    return Data(x, x[:, 0] + (x[:, 1] - 2) ** 2 / 2 + x[:, 2] / 2 + 0.5 * random.normal(size=count))


def _doppler(x: Array) -> Array:
    return np.sqrt(x[:, 0] * (1 - x[:, 0])) * np.sin(2.1 * np.pi / (x[:, 0] + 0.05))


def _additive5(x: Array) -> Array:
    return np.sin(6 * x[:, 0]) + 8 * (x[:, 1] - 0.5) ** 2 + 2 * np.abs(x[:, 2] - 0.5) + 2 * x[:, 3] + np.exp(x[:, 4])


def _noise_free5(x: Array) -> Array:
    return np.sin(4 * x[:, 0]) + 4 * (x[:, 1] - 0.5) * (x[:, 2] - 0.5) + 4 * (x[:, 3] - 0.5) ** 2 + 2 * x[:, 4]


# The rows to learn from, and who draws them: uniform in 0 … 1, normal, or as above.
DRAWN: dict[str, tuple[int, Draw]] = {
    "doppler": (400, uniform(_doppler, 1, 0.1)),
    "hetero1": (300, _hetero1),
    "sine1": (200, uniform(lambda x: np.sin(2 * np.pi * x[:, 0]), 1, 0.3)),
    "trend": (150, _trend),
    "heavy_tail": (200, _heavy_tail),
    "hour": (250, uniform(lambda x: np.cos(2 * np.pi * x[:, 0] - 4) + x[:, 1], 2, 0.3)),
    "lognormal2": (200, _lognormal2),
    "step2": (300, uniform(lambda x: 1.0 * ((x[:, 0] > 0.5) != (x[:, 1] > 0.5)), 2, 0.25)),
    "cat_slopes": (200, _cat_slopes),
    "additive5": (300, uniform(_additive5, 5, 0.4)),
    "noise_free5": (200, uniform(_noise_free5, 5, 0.0)),
    "collinear6": (150, _collinear6),
    "integers8": (300, _integers8),
    "noise10": (150, normal(lambda x: 0 * x[:, 0], 10, 1.0)),
    "product10": (300, normal(lambda x: x[:, 0] * x[:, 1], 10, 0.4)),
    "irrelevant20": (200, uniform(lambda x: np.sin(8 * x[:, 0]) + 2 * x[:, 1], 20, 0.3)),
    "linear20": (100, normal(lambda x: x @ np.linspace(-1.5, 1.5, 20), 20, 1.5)),
}
