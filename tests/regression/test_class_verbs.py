"""The classifier's summary, nearest rows, plots, page and files."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import KFold

from dikkat.errors import InputError
from dikkat.regression import KernelClassifier, KernelRegressor
from dikkat.regression.diagnostics import hold_out

ROWS = 71


@pytest.fixture(scope="module")
def buyers():
    random = np.random.default_rng(0)
    table = pd.DataFrame({
        "age": random.uniform(20, 80, ROWS), "town": random.choice(["Ulm", "Bonn"], ROWS),
        "id": 1.5 * random.permutation(ROWS),
    }, index=[f"buyer {k}" for k in range(ROWS)])  # fmt: skip
    table.loc["buyer 3", "age"] = np.nan
    score = (table["age"].fillna(50) - 50) / 10 + 2 * (table["town"] == "Ulm") + 0.5 * random.normal(size=ROWS)
    y = pd.Series(np.where(score > 1, "yes", "no"), index=table.index, name="buys")
    settings = {"bandwidth": [9.0, 0.2, 300.0, 0.4], "prior": 1.0, "missing": "indicator"}
    return table, y, KernelClassifier(**settings).fit(table, y)


def test_missing_cells_are_a_category(buyers):
    table, y, model = buyers
    filled = table.assign(age=table["age"].fillna(table["age"].median()), gap=pd.Categorical(table["age"].isna()))
    plain = KernelClassifier(bandwidth=[9.0, 0.2, 300.0, 0.4], prior=1.0).fit(filled, y)
    np.testing.assert_allclose(model.predict_proba(table), plain.predict_proba(filled), rtol=1e-9)
    with pytest.raises(ValueError, match="X: got missing cells"):
        KernelClassifier().fit(table, y)


def test_a_summary_has_the_accuracy_and_the_log_loss_of_held_out_rows(buyers):
    table, y, model = buyers
    lines = str(model.summary(folds=0)).splitlines()
    assert lines[-2:] == [f"rows: {ROWS}", f"classes: no {(y == 'no').mean():.0%}, yes {(y == 'yes').mean():.0%}"]
    found = hold_out(model, KFold(3))
    probability = np.empty((ROWS, 2))
    for learned, held in KFold(3).split(table):
        fold = KernelClassifier(**model.get_params()).set_params(bandwidth=model.bandwidth_)
        rows = table.iloc[learned]
        if not rows["age"].isna().any():  # a column less, and so a bandwidth less
            fold.set_params(bandwidth=model.bandwidth_[:3])
            medians = rows["age"].median()
            probability[held] = fold.fit(rows, y.iloc[learned]).predict_proba(table.iloc[held].fillna({"age": medians}))
        else:
            probability[held] = fold.fit(rows, y.iloc[learned]).predict_proba(table.iloc[held])
    known = table["age"].notna().to_numpy()
    np.testing.assert_allclose(found.predicted[known], probability[known], atol=1e-9)
    text = str(model.summary(folds=2))
    fold = model._smoother.joined.folds(2)
    assert set(fold) == {0, 1}
    held = hold_out(model, 2).predicted
    loss, right = log_loss(y, held), accuracy_score(y, np.array(["no", "yes"])[held.argmax(1)])
    assert f"held-out rows: accuracy {right:.3f}, log-loss {loss:.3f}" in text


def test_nearest_rows_have_their_class_and_their_label(buyers):
    table, y, model = buyers
    found = model.nearest(table.iloc[[5]], k=4)
    assert found.columns.tolist() == ["query", "row", "weight", "differs by", *table, "buys"]
    assert found["row"][0] == "buyer 5"
    assert found["buys"].tolist() == y[found["row"]].tolist()


def test_curves_of_the_probabilities(buyers):
    table, _, model = buyers
    figure = model.plot()
    panels = {axes.get_xlabel(): axes for axes in figure.axes}
    line, marks = panels["age"].lines  # of the second class: the first has one minus its probability
    query = pd.DataFrame({"age": line.get_xdata(), "town": table["town"].mode()[0], "id": table["id"].median()})
    np.testing.assert_allclose(line.get_ydata(), model.predict_proba(query)[:, 1], atol=1e-9)
    np.testing.assert_allclose(marks.get_xdata(), np.sort(table["age"].fillna(table["age"].median())))
    assert panels["age"].get_ylabel() == "probability of buys = yes"
    towns = next(axes for axes in figure.axes if axes.get_ylabel() == "town")
    assert [tick.get_text() for tick in towns.get_yticklabels()] == ["Bonn", "Ulm"]
    assert not figure.legends
    notes = figure.get_supxlabel()
    assert notes.startswith(f"other features at: age {table['age'].median():.4g}, town {table['town'].mode()[0]}, id ")
    with pytest.raises(ValueError, match="by: got 'town'; expected None"):
        model.plot(by="town")
    with pytest.raises(ValueError, match=r"coverage: got 0.8; expected None, because curves of probabilities"):
        model.plot(coverage=0.8)
    with pytest.raises(ValueError, match=r"coverage: got 0.8; expected None"):
        model.report("page.html", coverage=0.8)


def test_curves_of_three_classes():
    x = np.arange(60.0)[:, None]
    model = KernelClassifier(bandwidth=9.0).fit(x, x[:, 0] // 20)
    figure = model.plot()
    np.testing.assert_allclose([line.get_ydata() for line in figure.axes[0].lines], model.predict_proba(
        figure.axes[0].lines[0].get_xdata()[:, None]).T, atol=1e-9)  # fmt: skip
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["0.0", "1.0", "2.0"]
    assert "moves probabilities by" in str(model.summary(folds=0))


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_a_page_has_the_rows_that_the_other_rows_predict_worst(tmp_path, kernel):
    random = np.random.default_rng(1)
    x = np.append(random.uniform(0, 4, ROWS - 3), [9.0, 9.0, 9.0])[:, None]  # with repeats
    y = np.where(x[:, 0] + random.normal(size=ROWS) > 2, "yes", "no")
    y[-3:] = "no", "yes", "yes"
    model = KernelClassifier(kernel, bandwidth=0.9, prior=1.0, order="constant").fit(x, y)
    model.report(tmp_path / "page.html", folds=0)
    page = (tmp_path / "page.html").read_text()
    probability = np.empty(ROWS)
    for row in range(ROWS):
        others = np.arange(ROWS) != row
        fit = KernelClassifier(kernel, bandwidth=0.9, prior=1.0, order="constant").fit(x[others], y[others])
        probability[row] = fit.predict_proba(x[[row]])[0, fit.classes_.tolist().index(y[row])]
    np.testing.assert_allclose(model._left_out_shares(), probability, rtol=1e-6)
    worst = int(probability.argmin())
    assert f"<h3>Row {worst}: {y[worst]}, with probability {probability[worst]:.3f}</h3>" in page
    labelled = KernelClassifier(kernel, bandwidth=0.9, prior=1.0, order="constant").fit(
        pd.DataFrame(x, index=[f"<{row}>" for row in range(ROWS)]), y
    )
    labelled.report(tmp_path / "page.html", folds=0)
    page = (tmp_path / "page.html").read_text()
    assert f"<h3>Row &lt;{worst}&gt;: {y[worst]}, with" in page
    assert f"<td>&lt;{worst}&gt;</td>" not in page[page.index(f"Row &lt;{worst}") :].split("</table>")[0]


@pytest.mark.parametrize("order", ["linear", "constant"])
def test_a_page_has_the_rows_that_the_folds_of_cv_predict_worst(tmp_path, order):
    random = np.random.default_rng(2)
    x = random.uniform(0, 4, (ROWS, 1))
    y = np.where(x[:, 0] + random.normal(size=ROWS) > 2, "yes", "no")
    settings = {"bandwidth": 0.9, "prior": 1.0, "order": order}
    folds = [
        (np.arange(20, ROWS), np.arange(0, 15)),
        (np.arange(0, 40), np.arange(40, ROWS - 3)),
        (np.arange(9, 50), [0]),
    ]
    model = KernelClassifier(cv=folds, **settings).fit(x, y)
    probability, count = np.zeros(ROWS), np.zeros(ROWS)
    for learned, tested in folds:
        fold = KernelClassifier(**settings).fit(x[learned], y[learned])
        probability[tested] += fold.predict_proba(x[tested])[np.arange(len(tested)), (y[tested] == "yes").astype(int)]
        count[tested] += 1
    expected = np.divide(probability, count, out=np.full(ROWS, np.nan), where=count > 0)
    np.testing.assert_allclose(model._left_out_shares(), expected, rtol=1e-6)
    model.report(tmp_path / "page.html", folds=0)
    worst = int(np.nanargmin(expected))
    assert (
        f"<h3>Row {worst}: {y[worst]}, with probability {expected[worst]:.3f}</h3>"
        in (tmp_path / "page.html").read_text()
    )


@pytest.mark.parametrize("order", ["linear", "constant"])
@pytest.mark.parametrize("labels", [
    ["no", "yes"], [3, 7], [False, True], [5.0, 1.0], np.array(["no", "yes"], object), np.array([3, 7], np.int8),
    np.array(["2024-01-01", "2025-03-01"], "datetime64[ns]"), np.array([5, 1], np.float32),
])  # fmt: skip
def test_a_file(buyers, tmp_path, order, labels):
    table, y, model = buyers
    classes = np.asarray(labels)[(y == "yes").astype(int)]
    model = KernelClassifier(**model.get_params() | {"order": order}).fit(table, classes)
    model.save(tmp_path / "model")
    loaded = KernelClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(table), model.predict_proba(table))
    np.testing.assert_array_equal(loaded.predict(table), model.predict(table))
    assert loaded.classes_.dtype == model.classes_.dtype
    with pytest.raises(InputError, match="got a saved KernelClassifier; expected a KernelRegressor"):
        KernelRegressor.load(tmp_path / "model")
