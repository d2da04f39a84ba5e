import math

import dense
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, r2_score
from sklearn.model_selection import GroupKFold, PredefinedSplit, StratifiedKFold
from sklearn.utils.estimator_checks import parametrize_with_checks

from dikkat.regression import KernelClassifier, KernelRegressor
from dikkat.regression.criterion import folds_of
from dikkat.regression.diagnostics import hold_out
from dikkat.regression.joined import join
from dikkat.regression.likelihood import FoldLogLoss, LogLoss
from dikkat.regression.logistic import plane

ROWS, QUERIES, SIZE, CLASSES = 37, 11, 3, 5
SIGMA = np.array([1.7, 0.9, 1.3])


def _data(seed=0):
    random = np.random.default_rng(seed)
    x, query = random.uniform(0, 4, (ROWS, SIZE)), random.uniform(0, 4, (QUERIES, SIZE))
    return x, random.integers(0, CLASSES, ROWS), query, random.integers(0, 4, ROWS).astype(float)


@parametrize_with_checks(
    [KernelClassifier(), KernelClassifier("epanechnikov", bandwidth="scott", order="constant")],
    expected_failed_checks=dense.expected_failures,
)
def test_scikit_learn_checks(estimator, check):
    with dense.short_searches():
        check(estimator)


@pytest.mark.parametrize("kernel", dense.KERNELS)
def test_probabilities_by_the_formula(kernel):
    x, y, query, weight = _data()
    model = KernelClassifier(kernel, bandwidth=SIGMA, order="constant", prior=0.7).fit(x, y, sample_weight=weight)
    r = np.sqrt((((query[:, None] - x) / SIGMA) ** 2).sum(-1))
    mass = weight * (np.exp(-(r**2) / 2) if kernel == "gaussian" else (1 - r**2).clip(0))
    of_class = np.array([mass[:, y == c].sum(1) for c in range(CLASSES)]).T
    prior = np.array([weight[y == c].sum() + 1 for c in range(CLASSES)]) / (weight.sum() + CLASSES)
    expected = (of_class + 0.7 * prior) / (mass.sum(1, keepdims=True) + 0.7)
    np.testing.assert_allclose(model.predict_proba(query), expected, rtol=1e-12)
    np.testing.assert_allclose(model.predict_log_proba(query), np.log(expected), rtol=1e-11)
    assert model.predict(query).tolist() == expected.argmax(1).tolist()


@pytest.mark.parametrize("classes", [2, 3])
def test_a_row_that_a_plane_has_not_seen(classes):
    """One step of Newton's from the plane of all, beside refits without each row."""
    random = np.random.default_rng(6)
    x, weight = random.normal(size=(41, 3)) * [1, 3, 7] + 5, random.integers(1, 3, 41).astype(float)
    y = (x[:, 0] > 5 + random.normal(size=41)).astype(int) + (classes > 2) * (x[:, 1] > 7 + random.normal(size=41))
    found, left = plane(x, y, weight, classes)
    scaled, strengths = (x - found.center) / found.spread, np.logspace(-4, 3, 8)
    whole = [_logistic(each).fit(scaled, y, weight) for each in strengths]
    best = np.argmin([abs(found.shares(x) - each.predict_proba(scaled)).max() for each in whole])
    np.testing.assert_allclose(found.shares(x), whole[best].predict_proba(scaled), atol=1e-4)
    refitted = [_refitted(scaled, y, weight, each) for each in strengths]
    np.testing.assert_allclose(left, refitted[best], atol=0.01)
    others = [np.log(each) @ weight for each in refitted]
    assert others[best] > max(others) - 1


def _logistic(strength):
    return LogisticRegression(C=strength, max_iter=1000, tol=1e-8, solver="newton-cholesky")


def _refitted(x, y, weight, strength):
    result = []
    for i in range(len(x)):
        rest = np.arange(len(x)) != i
        fit = _logistic(strength).fit(x[rest], y[rest], weight[rest])
        result.append(fit.predict_proba(x[i : i + 1])[0, y[i]])
    return result


def test_far_from_all_rows_a_plane_goes_on():
    random = np.random.default_rng(7)
    x = random.uniform(-1, 1, (101, 1))
    model = KernelClassifier().fit(x, x[:, 0] + 0.3 * random.normal(size=101) > 0)
    assert model.predict_proba([[-9.0], [9.0]])[:, 1].round(2).tolist() == [0.0, 1.0]


def test_far_from_all_rows_the_shares_of_all_remain():
    x, y, _, _ = _data()
    model = KernelClassifier(bandwidth=SIGMA, order="constant", prior=1.0).fit(x, y)
    expected = (np.bincount(y, minlength=CLASSES) + 1) / (ROWS + CLASSES)
    np.testing.assert_allclose(model.predict_proba([[1e4, 0, 0]])[0], expected, rtol=1e-12)


def _log_loss(x, y, sigma, prior, classes, out):
    """The mean log-loss of rows that are predicted without themselves, or without all their copies, by plain sums."""
    losses = []
    for i in range(len(x)):
        left = ~((x == x[i]).all(1) & (y == y[i])) if out == "copies" else np.arange(len(x)) != i
        mass = np.exp(-(((x[left] - x[i]) / sigma) ** 2).sum(1) / 2)
        share = (1 + (y[left] == y[i]).sum()) / (left.sum() + classes)
        losses.append(-math.log((mass[y[left] == y[i]].sum() + prior * share) / (mass.sum() + prior)))
    return np.mean(losses)


def test_the_criterion_is_the_log_loss_without_each_row():
    """Copies are left out together; of rows in one place with several classes, a single one."""
    x, y, _, _ = _data()
    x[4], y[4], x[7], y[7] = x[3], y[3], x[6], (y[6] + 1) % CLASSES
    joined = join(x, np.eye(CLASSES)[y], np.ones(ROWS))
    trial = LogLoss(joined, 0.7)(np.log(SIGMA))
    expected = _log_loss(x, y, SIGMA, 0.7, CLASSES, "copies")
    own = np.exp(-(((x[:, None] - x) / SIGMA) ** 2).sum(-1) / 2)
    shares = [1 / (own[i].sum() + 0.7) for i in range(ROWS)]
    assert trial.error == pytest.approx(expected / (1 - sum(shares) / (0.8 * ROWS)), rel=1e-12)


@pytest.mark.parametrize("prior", [None, 0.7])
def test_the_gradient_by_differences(prior):
    x, y, _, weight = _data(1)
    x = x.round()
    criterion = LogLoss(join(x, np.eye(CLASSES)[y], weight), prior)
    t = np.log([*SIGMA, 0.3][: SIZE + (prior is None)])
    slope, _ = criterion.gradient(criterion(t))
    for c, step in enumerate(1e-5 * np.eye(len(t))):
        expected = (criterion(t + step).error - criterion(t - step).error) / 2e-5
        assert slope[c] == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("order", ["constant", "linear"])
def test_folds_are_predicted_from_other_folds(order, tmp_path):
    random = np.random.default_rng(5)
    x, weight = random.uniform(0, 4, (61, 2)), random.integers(1, 4, 61).astype(float)
    y = np.array(["a", "b", "c"])[((x[:, 0] + 0.5 * random.normal(size=61)) // 1.5).clip(0, 2).astype(int)]
    groups = np.arange(61) % 4
    splits, settings = GroupKFold(4), {"order": order, "bandwidth": [0.8, 1.3], "prior": 0.7}
    model = KernelClassifier(**settings, cv=splits).fit(x, y, weight, groups)
    folds = folds_of(model._rows, model._smoother.joined)
    criterion = FoldLogLoss(model._smoother.joined, folds, 0.7, order == "linear")
    probability = np.empty((61, 3))
    for learned, tested in splits.split(x, y, groups):
        fit = KernelClassifier(**settings).fit(x[learned], y[learned], weight[learned])
        probability[tested] = fit.predict_proba(x[tested])
    expected = log_loss(y, probability, sample_weight=weight)
    assert criterion(np.log([0.8, 1.3])).error == pytest.approx(expected, rel=1e-9)
    criterion, t, step = FoldLogLoss(criterion.joined, folds, None, order == "linear"), np.log([0.8, 1.3, 0.7]), 1e-5
    slopes = [(criterion(t + e).error - criterion(t - e).error) / (2 * step) for e in step * np.eye(3)]
    np.testing.assert_allclose(criterion.gradient(criterion(t))[0], slopes, rtol=1e-5, atol=1e-9)
    model = KernelClassifier(order=order, cv=4).fit(x, y)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(KernelClassifier.load(tmp_path / "model").predict_proba(x), model.predict_proba(x))
    assert "cross-validation (used to select the bandwidth): log-loss" in str(model.summary(folds=0))
    one_group = np.where(groups == 1, "only here", y)
    one_fold = KernelClassifier(order=order, cv=GroupKFold(3)).fit(x, one_group, None, groups)
    assert np.isfinite(one_fold.history_[-1]["error"])
    with pytest.raises(ValueError, match="groups: got groups and cv=None"):
        KernelClassifier().fit(x, y, groups=groups)


def test_a_search_finds_which_columns_count():
    random = np.random.default_rng(3)
    x = random.uniform(-1, 1, (211, 3))
    y = np.where(np.cos(4 * x[:, 0]) + 0.2 * random.normal(size=211) > 0, "yes", "no")
    model = KernelClassifier().fit(x, y)
    assert model.bandwidth_[0] < 0.3
    assert (model.bandwidth_[1:] > 0.9).all()
    errors = [each["error"] for each in model.history_]
    assert errors == sorted(errors, reverse=True)
    new = random.uniform(-1, 1, (997, 3))
    right = np.where(np.cos(4 * new[:, 0]) > 0, "yes", "no")
    assert np.mean(model.predict(new) == right) > 0.9
    with np.errstate(all="raise"):
        turned = KernelClassifier().fit(-x[:, ::-1], y)
    np.testing.assert_allclose(turned.bandwidth_[::-1], model.bandwidth_, rtol=1e-4)


def test_labels_at_random_teach_nothing():
    random = np.random.default_rng(4)
    x, y = random.normal(size=(151, 4)), random.integers(0, 2, 151)
    probability = KernelClassifier().fit(x, y).predict_proba(random.normal(size=(499, 4)))
    assert abs(probability[:, 1] - 0.5).max() < 0.25


def test_categories_alone_are_told_by_single_rows():
    """A town whose rows are all of one class is learned, though all of them are equal."""
    random = np.random.default_rng(5)
    town = random.choice(["Lyon", "Ulm", "Graz"], 97)
    frame, y = pd.DataFrame({"town": pd.Categorical(town)}), town == "Ulm"
    model = KernelClassifier().fit(frame, y)
    probability = model.predict_proba(pd.DataFrame({"town": ["Ulm", "Lyon"]}))
    assert probability[0, 1] > 0.9
    assert probability[1, 0] > 0.9
    with pytest.warns(UserWarning, match="was not in fit"):
        unknown = model.predict_proba(pd.DataFrame({"town": ["Oslo"]}))[0, 1]
    assert abs(unknown - y.mean()) < 0.1


@pytest.mark.parametrize(
    ("y", "settings", "expected"),
    [
        ([0.5, 1.5, 2.5], {}, "Unknown label type"),
        (pd.Series(["a", "b", pd.NA], dtype="string"), {}, "y: got <NA> in row 2; expected a class for each row"),
        ([0, 1, 1], {"bandwidth": "loo"}, "expected a positive number.*'silverman', 'scott', 'auto'"),
        ([0, 1, 1], {"prior": 0}, "prior: got 0; expected 'auto' or a positive number"),
        ([0, 1, 1], {"prior": "much"}, "prior: got 'much'"),
        ([0, 1, 1], {"kernel": "box"}, "kernel: got 'box'"),
    ],
)
def test_bad_input(y, settings, expected):
    with pytest.raises(ValueError, match=expected):
        KernelClassifier(**settings).fit([[0.0], [1.0], [2.0]], y)


def test_few_rows():
    assert KernelClassifier().fit([[1.0]], ["a"]).predict([[5.0]]).tolist() == ["a"]
    assert KernelClassifier().fit([[1.0], [2.0]], ["a", "b"]).predict([[0.0], [3.0]]).tolist() == ["a", "b"]
    alone = KernelClassifier().fit([[0.0], [0.1], [0.2], [0.3], [4.0]], [0, 0, 0, 0, 1])  # a class of one row
    assert np.isfinite(alone.predict_log_proba([[0.0], [4.0], [9.0]])).all()


@pytest.mark.parametrize("flipped", [0.0, 0.02])
def test_cells_of_a_table_are_learned(flipped):
    """Exclusive or of two columns of 0 and 1, and whether a whole number is odd."""
    random = np.random.default_rng(0)
    x, whole = random.integers(0, 2, (400, 2)), random.integers(0, 10, (400, 1))
    for rows, odd in ((x, x.sum(1) % 2), (whole, whole[:, 0] % 2)):
        y = np.where(random.random(400) < flipped, 1 - odd, odd)
        assert KernelClassifier().fit(rows, y).score(rows, odd) > 0.98
        assert r2_score(odd, KernelRegressor().fit(rows, y).predict(rows)) > 0.98


@pytest.mark.parametrize("order", ["linear", "constant"])
def test_classes_of_weight_0(order):
    x, y = np.arange(9.0)[:, None], np.array(list("abcabcdda"))
    for lost in ("c", "d", "cd", "bcd"):
        weight = (~np.isin(y, list(lost))).astype(float)
        model = KernelClassifier(order=order).fit(x, y, weight)
        assert model.classes_.tolist() == list("abcd")
        assert not set(model.predict(x)) & set(lost)


def test_a_label_that_is_none():
    with pytest.raises(ValueError, match="y: got None in row 1; expected a class for each row"):
        KernelClassifier().fit([[0.0], [1.0]], np.array(["a", None], object))


def test_splitters_see_the_classes():
    random = np.random.default_rng(3)
    x = random.normal(size=(53, 2))
    y = np.where(x[:, 0] + random.normal(size=53) > 0, "b", "a")
    splitter = StratifiedKFold(5, shuffle=True, random_state=1)
    splits = list(splitter.split(x, y))
    models = [KernelClassifier(cv=cv).fit(x, y) for cv in (splitter, splits)]
    np.testing.assert_array_equal(*(model.bandwidth_ for model in models))
    fold = np.zeros(len(x), int)
    for number, (_, tested) in enumerate(splits):
        fold[tested] = number
    left_out = [hold_out(models[0], folds).predicted for folds in (splitter, PredefinedSplit(fold))]
    np.testing.assert_array_equal(*left_out)


def test_numbers_that_are_no_classes():
    x, prices = np.arange(43.0)[:, None], np.arange(43) // 2 * 1000
    with pytest.raises(ValueError, match=r"y: got 22 classes in 43 rows; expected several .*for numbers use KernelReg"):
        KernelClassifier().fit(x, prices)
    with pytest.raises(
        ValueError, match=r"y: got 22 classes in 43 rows; expected several rows of each class, or rare .* one$"
    ):
        KernelClassifier().fit(x, prices.astype(str))
    labels = np.arange(42) // 2  # two rows of each class
    assert len(KernelClassifier(bandwidth=3.0, order="constant").fit(x[:42], labels).classes_) == 21
