"""The benchmarks' own honesty: nothing that is wrong has a speed, and nothing that was not measured has a figure."""

import json
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_code_makes_of_the_records():
    from benchmarks import tables

    text = tables.PAGE.read_text()
    for table in tables.TABLES:
        assert f"<!-- table {table.name} -->\n{table.markdown()}\n<!-- end -->" in text


def test_each_record_of_the_page_has_a_commit_of_this_history():
    from benchmarks import tables
    from benchmarks.kit.tables import changed_lines

    runs = {run.name: run for table in tables.TABLES for run in table.runs()}
    missing = [name for name, run in runs.items() if changed_lines(run.environment["commit"].split()[0]) is None]
    assert not missing
    assert changed_lines("0000000") is None


def test_every_benchmark_that_is_listed_is_there(capsys, monkeypatch):
    from benchmarks import __main__ as front

    for bench in front.BENCHES:
        assert (ROOT / "benchmarks" / f"{bench.module.replace('.', '/')}.py").exists()
    monkeypatch.setattr("sys.argv", ["benchmarks"])
    assert front.main() == 0
    assert capsys.readouterr().out.count("\n") == len(front.BENCHES)
    monkeypatch.setattr("sys.argv", ["benchmarks", "against", "--only", "against"])
    assert front.main() == 1
    assert "left out, needs --commit" in capsys.readouterr().out


ENVIRONMENT = {"date": "2026-01-02", "commit": "abc", "cpu": "Somebody's(R) Processor", "cores": 2}


def _record(folder, name, results, day="02"):
    made = {"environment": ENVIRONMENT | {"date": f"2026-01-{day}"}, "results": results}
    (folder / f"{name}-2026-01-{day}.json").write_text(json.dumps(made))


def _timed(who, step, ms=None, **more):
    """A record of the first shape, as a run writes it."""
    shape = {"batch": 8, "queries": 256, "keys": 256, "features": 128, "section": "shapes", "variant": "plain"}
    made = {**shape, "task": "additive", "who": who, "pass": step, **more}
    return made | ({"ms": {"median": ms, "min": ms, "max": 2 * ms, "runs": 3}} if ms else {})


def test_ratios_are_of_medians_of_the_same_run_and_what_was_not_run_has_its_reason(tmp_path):
    from benchmarks import tables

    [table] = [table for table in tables.TABLES if table.name == "attention"]
    found = [
        *(_timed("auto", step, ms) for step, ms in (("forward", 2.0), ("forward and backward", 4.0))),
        *(_timed("JAX", step, ms) for step, ms in (("forward", 30.0), ("forward and backward", 8.0))),
        *(_timed("KeOps", step, 100.0) for step in ("forward", "forward and backward")),
        _timed("eager PyTorch", "forward", not_run="disagrees with float64: key"),
        _timed("eager PyTorch", "forward and backward", 10.0),
    ]
    _record(tmp_path, "cpu", found)
    made = table.markdown(tmp_path)
    assert "forward | 2 (2–4) | disagrees with float64: key | JAX: 30, 15 × | `cpu` |" in made
    assert "forward and backward | 4 (4–8) | 10, 2.5 × | JAX: 8, 2 × | `cpu` |" in made
    assert made.endswith("\n\n2 cores of Somebody's, 2026-01-02, commit abc (`cpu`).")


def test_the_newest_record_is_taken_and_the_page_changed_between_its_marks_alone(tmp_path):
    from benchmarks.kit import tables

    table = tables.Table("it", ("record", "absent"), ("", "ms"), lambda runs: [[run.results, "1"] for run in runs])
    page, place = tmp_path / "page.md", "<!-- table it -->\n{}<!-- end -->"
    page.write_text(f"before {place.format('old')} after")
    _record(tmp_path, "record", "newer", day="03")
    _record(tmp_path, "record", "older", day="01")
    for _ in range(2):
        tables.update(page, [table], tmp_path)
        text = page.read_text()
        assert text.startswith("before <!-- table it -->\n|  | ms |\n| --- | --- |\n| newer | 1 |\n\n2 cores")
        assert text.endswith("(`record`).\n<!-- end --> after")
    page.write_text("no marks")
    with pytest.raises(ValueError, match="expected it"):
        tables.update(page, [table], tmp_path)


def test_ways_that_are_as_good_share_their_ranks():
    from benchmarks.tables import mean_ranks

    found = {("a", "x"): 0.5, ("a", "y"): 0.5, ("a", "z"): 0.7, ("b", "x"): 0.1, ("b", "y"): 0.2, ("b", "z"): 0.3}
    assert mean_ranks(found) == {"x": 2.75, "y": 2.25, "z": 1.0}


@pytest.mark.parametrize("task", ["additive", "distance"])
@pytest.mark.parametrize("variant", ["plain", "one outlier of 10⁴", "half valid"])
def test_some_rows_are_enough_to_check_every_gradient(task, variant, monkeypatch):
    from benchmarks.kit import peers, truth
    from benchmarks.kit.cases import Case

    case = Case(2, 37, 41, 5, d_v=7, task=task, variant=variant)
    monkeypatch.setattr(truth, "_WORK", case.pair_features // 4)
    monkeypatch.setattr(truth, "_CHUNK", case.pair_features // 11)
    inputs = case.inputs()
    right = truth.truth(case, inputs)
    assert len(right.rows) == 37 // 4
    peer = peers.torch_ways(case, inputs, "cpu")["reference"]()
    names = ["output", *case.leaves]
    answer = dict(zip(names, map(peer.numpy, peer.both(peer.array(right.upstream))), strict=True))
    assert all(error <= allowed for error, allowed in right.errors(answer).values())
    for name in names:
        wrong = answer | {name: np.zeros_like(answer[name])}
        off = [part for part, (error, allowed) in right.errors(wrong).items() if not error <= allowed]
        assert off == [name]
        wrong = answer | {name: np.full_like(answer[name], np.nan)}
        assert not right.errors(wrong)[name][0] <= right.allowed[name]


def test_an_answer_that_is_off_has_no_speed(tmp_path):
    from benchmarks.attention import additive
    from benchmarks.kit import truth
    from benchmarks.kit.cases import Case

    class Wrong:
        """A worker whose peer is off by a thousandth."""

        def ask(self, do, save="", **_):
            assert do == "run", "it was asked for its speed"
            np.savez(save, output=right.exact["output"].numpy() * 1.001)
            return {"bytes": 0}

    case = Case(2, 5, 7, 3)
    right = truth.truth(case, case.inputs())
    entry = additive.Entry(Wrong(), case, "JAX", backward=False)
    entry.check(right, tmp_path, additive.Forecast())
    record = entry.record(None)
    assert record["not_run"] == "disagrees with float64: output"
    assert "ms" not in record


def test_a_worker_answers_fails_and_dies_without_harm(tmp_path):
    from benchmarks.kit import worker
    from benchmarks.kit.cases import Case

    case = Case(2, 5, 7, 3)
    path = tmp_path / "inputs.npz"
    inputs = case.inputs()
    np.savez(path, **inputs, check=inputs["upstream"])
    one = worker.Worker("torch")
    try:
        names = one.ask(do="open", case=case.to_dict(), path=str(path))
        assert {"eager PyTorch", "reference", "auto"} <= set(names)
        answer = tmp_path / "answer.npz"
        one.ask(do="run", case=case.name, who="reference", backward=True, save=str(answer))
        with np.load(answer) as file:
            assert file["key"].shape == (2, 7, 3)
        samples = one.ask(do="measure", case=case.name, who="auto", backward=False, times=3, warm=True)
        assert len(samples) == 3
        with pytest.raises(worker.FailedError, match="nobody"):
            one.ask(do="run", case=case.name, who="nobody", backward=False)
        one.ask(do="close")
        one._process.kill()
        with pytest.raises(worker.GoneError):
            one.ask(do="close")
    finally:
        one.end()


def test_turns_are_counted_and_bounded():
    import time

    from benchmarks.kit import turns

    order = []
    tasks = {name: turns.once(lambda name=name: order.append(name) or time.sleep(0.2)) for name in "ab"}
    samples = turns.measured(tasks, seconds=0.0)
    assert order == ["a", "a", "b", "b"] + ["a", "b"] * turns.LEAST
    assert all(len(found) == turns.LEAST for found in samples.values())
    assert all(one >= 0.2 and amount == 1 for found in samples.values() for one, amount in found)
    with pytest.raises(turns.TooLongError, match="more than 1 s"), turns.at_most(1):
        time.sleep(3)


def test_the_regression_formulas_are_the_textbooks():
    from benchmarks.regression import formulas

    key, value = np.array([[0.0, 0.0], [1.0, 2.0], [3.0, 1.0], [3.0, 1.0], [-2.0, 5.0]]), np.array([1.0, -2, 4, 8, 16])
    query, width = np.array([[0.5, 0.5], [2.0, -1.0]]), np.array([0.7, 1.9])
    for point, constant in zip(query, formulas.constant(query, key, value, width), strict=True):
        weights = np.array(
            [np.exp(-(((x - point[0]) / width[0]) ** 2 + ((y - point[1]) / width[1]) ** 2) / 2) for x, y in key]
        )
        assert constant == pytest.approx(sum(weights * value) / sum(weights), rel=1e-12)
    errors, counts = [], []
    for at, (x, y) in enumerate(key):
        near = {
            other: np.exp(-(((a - x) / width[0]) ** 2 + ((b - y) / width[1]) ** 2) / 2)
            for other, (a, b) in enumerate(key)
            if (a, b) != (x, y)
        }
        errors.append(sum(near[other] * value[other] for other in near) / sum(near.values()) - value[at])
        counts.append(len(near))
    assert sorted(counts) == [3, 3, 4, 4, 4]
    assert formulas.left_out(key, value, width) == pytest.approx(np.mean(np.square(errors)), rel=1e-12)
    near = formulas.constant(np.array([[0.1, 0.0]]), key, value, np.array([2.5, 2.5]), "epanechnikov")
    weights = np.array([1 - 0.01 / 6.25, 1 - (0.81 + 4) / 6.25])
    assert near[0] == pytest.approx(weights @ value[:2] / weights.sum(), rel=1e-12)


def test_a_contest_has_no_seconds_for_who_is_off_fails_or_takes_too_long(monkeypatch):
    import time

    from benchmarks.regression import contest, speed

    monkeypatch.setattr(contest, "LONGEST", 5)
    right = np.array([1.0, 2.0, 4.0])
    calls = []

    def judge(answer):
        return speed.judge(np.array([0, 2]), right[[0, 2]], 2.0, 1e-3, answer)

    def answering(answer):
        return lambda: calls.append(answer) or answer

    entrants = {
        "right": answering(right), "off": answering(right * 1.01), "NaN": answering(right * np.nan),
        "broken": lambda: 1 / 0, "slow": lambda: time.sleep(600),
    }  # fmt: skip
    records = contest.contest([contest.Entrant(who, run, judge, {"d": 3}) for who, run in entrants.items()])
    found = {record["who"]: record for record in records}
    assert found["right"]["seconds"]["runs"] == contest.ROUNDS
    assert found["right"]["error_of_range"] == 0
    assert found["off"]["error_of_range"] == pytest.approx(0.02)
    assert found["NaN"]["error_of_range"] is None
    assert {who: record.get("not_run") for who, record in found.items()} == {
        "right": None,
        "off": "disagrees with float64",
        "NaN": "disagrees with float64",
        "broken": "failed: ZeroDivisionError: division by zero",
        "slow": "took more than 5 s",
    }
    assert all("seconds" not in record and record["d"] == 3 for who, record in found.items() if who != "right")
    assert len(calls) == 1 + contest.ROUNDS + 2
    assert json.loads(json.dumps(records)) == records


def test_kernel_ridge_has_the_least_error_of_rows_that_it_was_solved_without():
    from benchmarks.regression.methods import KernelRidge

    random = np.random.default_rng(0)
    x = random.normal(size=(13, 2))
    y = np.sin(2 * x[:, 0]) + 0.3 * random.normal(size=13)
    square = np.square(x[:, None] - x).sum(-1)

    def error(gamma, alpha):
        kernel, found = np.exp(-gamma * square), 0.0
        for row in range(13):
            rest = np.arange(13) != row
            dual = np.linalg.solve(kernel[np.ix_(rest, rest)] + alpha * np.eye(12), y[rest] - y.mean())
            found += (kernel[row, rest] @ dual + y.mean() - y[row]) ** 2
        return found

    ways = [(gamma, alpha) for gamma in np.logspace(-3, 1, 15) for alpha in np.logspace(-4, 1, 11)]
    gamma, alpha = min(ways, key=lambda way: error(*way))
    found = KernelRidge().fit(x, y)
    assert found.gamma_ == gamma
    dual = np.linalg.solve(np.exp(-gamma * square) + alpha * np.eye(13), y - y.mean())
    np.testing.assert_allclose(found.dual_, dual, rtol=1e-9)
