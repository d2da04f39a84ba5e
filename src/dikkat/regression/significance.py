"""A test of the columns by permutation: a column's cells exchanged among the rows."""

from typing import NamedTuple

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dikkat.regression.diagnostics import leave_out
from dikkat.regression.estimator import KernelRegressor
from dikkat.regression.joined import Array
from dikkat.regression.validation import check_count


class Significance(NamedTuple):
    """The result of permutations of each column.

    Attributes:
        p_value: (d,), the share of the permutations, the column as it is among them, that predict no worse.
        error: The leave-one-out mean squared error with the columns as they are.
        permuted: (d, n_permutations), with each column permuted.
    """

    p_value: Array
    error: float
    permuted: Array


def significance(model: KernelRegressor, n_permutations: int = 99, random_state: object = 0) -> Significance:
    r"""Test for each column that y does not depend on it.

    The cells of one column are exchanged among the rows at random, the bandwidth is found anew, and each row predicted
    from the others. With B permutations, of which b have an error of at most that of the column as it is,

    $$ p = (1 + b)/(1 + B) . $$

    Since everything is chosen anew each time, a column that is independent of y and of the other columns has a p that
    is at most α with probability at most α, however few rows there are. Where a column goes with others, exchanging it
    breaks that up as well: then a small p may say that the columns belong together. Each permutation takes as long as a
    fit, and there are B for each column.

    Args:
        model: Fitted, to one target.
        n_permutations: B, at least 1.
        random_state: Where the random numbers begin, as scikit-learn takes it.

    Returns:
        Where no row can be predicted from others, since all are equal, every p is 1.

    Raises:
        NotFittedError: The model is not fitted.
        ValueError: A number of permutations that is none; a model of several targets.

    Source: Davison and Hinkley 1997, section 4.3; Racine, Hart and Li 2006 for kernel regression, by bootstrap.

    Example:
        >>> random = np.random.default_rng(0)
        >>> x = random.uniform(0, 3, (60, 2))
        >>> model = KernelRegressor(bandwidth=0.5).fit(x, np.sin(2 * x[:, 0]) + 0.2 * random.normal(size=60))
        >>> float(significance(model, n_permutations=19).p_value[0])
        0.05
    """
    check_is_fitted(model)
    if n_permutations is None:
        raise ValueError("n_permutations: got None; expected a whole number of at least 1")
    check_count("n_permutations", n_permutations)
    if model.n_outputs_ > 1:
        raise ValueError(f"model: got one of {model.n_outputs_} targets; expected one target")
    random = check_random_state(random_state)
    x, error = model.X_train_, leave_out(model).error
    permuted = np.empty((x.shape[1], n_permutations))
    known = np.flatnonzero(model.sample_weight_ > 0)
    for j in range(x.shape[1]):
        for b in range(n_permutations):
            mixed = x.copy()
            mixed[known, j] = x[random.permutation(known), j]
            permuted[j, b] = leave_out(model._anew(model._rows._replace(x=mixed))).error
    no_worse = ~(permuted > error * (1 + 1e-9))  # NaN, where there is nothing to predict, is no better
    p_value = (1 + no_worse.sum(1)) / (1 + n_permutations)
    return Significance(p_value, error, permuted)
