"""The benchmarks' own honesty: nothing that is wrong has a speed, and nothing that was not measured has a figure."""

import json
from dataclasses import replace

import numpy as np
import pytest

ENVIRONMENT = {
    "date": "2026-01-02",
    "commit": "abc",
    "cpu": "Somebody's",
    "cores": 2,
    "device": "cpu",
    "python": "3.11.7",
    "versions": {"torch": "2.13.0"},
}


def _record(who, ms=None, step="forward", **more):
    """As a run at the headline's shape writes it."""
    shape = {"batch": 8, "queries": 256, "keys": 256, "features": 128}
    made = {"section": "shapes", "device": "cpu", **shape, "task": "additive", "variant": "plain", "dtype": "float32"}
    made |= {"who": who, "pass": step, "runs": "numba"}
    if ms is not None:
        made |= {"ms": {"median": ms, "min": ms, "max": 2 * ms, "runs": 3}, "pair_features_per_second": 1e9}
    return made | more


def _table(*records, device="cpu"):
    from benchmarks.kit import tables

    return tables.table(tables.Run({"environment": ENVIRONMENT, "results": [r | {"device": device} for r in records]}))


def test_ratios_are_of_medians_of_the_same_run():
    made = _table(_record("eager PyTorch", 200.0), _record("JAX", 30.0), _record("auto", 2.0))
    assert "| CPU, (8, 256, 256, 128), forward, against eager | ≥ 80× | 100× |" in made
    assert "| … against the fastest peer | ≥ 5× | 15× |" in made
    assert "| `auto` (numba) |  | 2 (2–4) | 1 | 100× |  |  |  |" in made


def test_what_was_not_run_has_its_reason_and_no_figure():
    made = _table(_record("eager PyTorch", not_run="disagrees with float64: key"), _record("auto", 2.0))
    assert "| eager PyTorch |  | not run: disagrees with float64: key |  |  |  |  |  |" in made
    assert "| CPU, (8, 256, 256, 128), forward, against eager | ≥ 80× |  |" in made


def test_without_a_gpu_its_rows_are_empty_and_it_is_said():
    from benchmarks.kit import tables

    made = _table(_record("auto", 2.0))
    assert tables.NO_GPU in made
    rows = [line for line in made.splitlines() if line.startswith("| GPU")]
    assert rows
    assert all(row.endswith("|  |") for row in rows)


def test_with_a_gpu_it_is_not_said():
    from benchmarks.kit import tables

    large = {"queries": 1024, "keys": 1024, "pair_features_per_second": 4e12, "peak_mib": 7.0}
    made = _table(_record("auto", 0.25, **large), device="cuda")
    assert tables.NO_GPU not in made
    assert "| GPU, float32, (8, 1024, 1024, 128), forward, pair-features a second | ≥ 3.9e+12 | 4.00e+12 |" in made


def test_the_page_is_changed_between_its_markers_alone(tmp_path):
    from benchmarks.kit import tables

    results, page = tmp_path / "results", tmp_path / "page.md"
    results.mkdir()
    content = {"environment": ENVIRONMENT, "results": [_record("auto", 2.0)]}
    (results / "cpu-2026-01-02.json").write_text(json.dumps(content))
    page.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    for _ in range(2):
        tables.update(page, results)
        text = page.read_text()
        assert text.startswith(f"before\n{tables.BEGIN}\n2 cores of Somebody's; 2026-01-02")
        assert text.endswith(f"{tables.END}\nafter\n")
        assert "old" not in text
    page.write_text("no markers")
    with pytest.raises(ValueError, match="additive:begin"):
        tables.update(page, results)


@pytest.mark.parametrize("task", ["additive", "distance"])
@pytest.mark.parametrize("variant", ["plain", "one outlier of 10⁴", "ragged, half valid"])
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


def test_an_answer_that_is_off_has_no_speed(tmp_path, monkeypatch):
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
    record = entry.record("shapes", "cpu", None)
    assert record["not_run"] == "disagrees with float64: output"
    assert "ms" not in record


def test_a_forecast_refuses_what_would_not_fit_and_learns():
    from benchmarks.attention import additive
    from benchmarks.kit.cases import Case

    small, large = Case(8, 256, 256, 128), Case(1, 8192, 8192, 64)
    forecast = additive.Forecast()
    assert forecast.objection(large, "eager PyTorch", True) == "would need some 52 GB"
    assert forecast.objection(small, "eager PyTorch", True) is None
    assert forecast.objection(large, "numba", True) is None
    forecast.learn(small, "JAX", False, taken=0.01 * small.pair_bytes, seconds=0.01)
    assert forecast.objection(large, "JAX", False) is None
    forecast.learn(small, "KeOps", True, taken=0.0, seconds=4.0)
    assert "too slow" in (forecast.objection(large, "KeOps", True) or "")
    assert forecast.objection(replace(large, task="distance"), "KeOps", True) is None


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


def test_the_textbooks_loop_and_this_librarys_translator_agree():
    import torch

    from benchmarks.translation import corpora, networks

    sizes, batch = corpora.toy()
    ways = [networks.way(name, sizes, torch.float64) for name in (networks.LOOP, networks.REFERENCE, networks.OURS)]
    loop, *others = [one.gradients(batch) for one in ways]
    assert len(loop) == 1 + len(list(ways[1].model.parameters()))
    for other in others:
        for name, right in loop.items():
            torch.testing.assert_close(other[name], right, rtol=1e-9, atol=1e-12, msg=name)
    for one in ways:
        for parameter in one.model.parameters():
            parameter.grad *= 1e3  # as no network has, so that there is something to clip
        one.clip()
        norm = sum(parameter.grad.square().sum().item() for parameter in one.model.parameters()) ** 0.5
        assert norm == pytest.approx(1.0, rel=1e-5)
    for _ in range(3):
        losses = [one.step(one.prepare(batch)).item() for one in ways]
        assert losses == pytest.approx([losses[0]] * 3, rel=1e-9)


def test_a_translator_that_is_off_is_found():
    from benchmarks.translation import agreement, corpora, networks

    sizes, batch = corpora.toy()
    right = agreement.truth(sizes, batch)
    for name in (networks.LOOP, networks.REFERENCE, networks.OURS, networks.LOOP_HALF, networks.OURS_HALF):
        assert agreement.objection(right, networks.way(name, sizes), batch) is None
    good = networks.way(networks.OURS, sizes).gradients(batch)
    for name, tensor in good.items():
        assert right.off(good | {name: tensor * 1.001}, half=False) == [name]
        assert right.off(good | {name: tensor * float("nan")}, half=False) == [name]


def test_both_translators_say_the_same():
    import torch

    from benchmarks.translation import corpora, networks, textbook
    from benchmarks.translation.decoding import loop_translations

    sizes, batch = corpora.toy()
    torch.manual_seed(1)
    loop = textbook.Loop(sizes).double()
    for parameter in loop.parameters():  # so that sentences differ, and some of them end
        torch.nn.init.normal_(parameter, std=0.7)
    torch.nn.init.constant_(loop.output.bias[textbook.END], 2.0)
    sources = [row[:length].tolist() for row, length in zip(batch.source, batch.source_lengths, strict=True)]
    found = loop_translations(loop, sources, 1)
    assert len({tuple(row) for row in found}) > 1
    assert any(0 < len(row) < textbook.length_limit(len(source)) for row, source in zip(found, sources, strict=True))
    assert networks.translate(networks.like(loop, sizes), sources, 1) == found
    assert [textbook.beam(loop, source, 1) for source in sources] == found


def test_the_loops_beam_finds_the_best_of_all_where_nothing_is_cut_off(monkeypatch):
    import itertools
    import math

    import torch

    from benchmarks.translation import corpora, textbook

    sizes = replace(corpora.toy()[0], target=7)  # three words and what is special
    monkeypatch.setattr(textbook, "length_limit", lambda length: 3)
    lengths = torch.tensor([2])
    for seed in range(30):
        torch.manual_seed(seed)
        loop = textbook.Loop(sizes).double()
        for parameter in loop.parameters():
            torch.nn.init.normal_(parameter, std=1.5)
        encoded, start = loop.encode(loop.source_embedding(torch.tensor([[5, 6]])), lengths)
        best = (-math.inf, [])
        for words in (list(some) for count in (1, 2) for some in itertools.product((4, 5, 6), repeat=count)):
            inputs = loop.target_embedding(torch.tensor([[textbook.BEGIN, *words]]))
            scores = loop.output(loop.decode(inputs, encoded, lengths, start)[0])[0].log_softmax(-1)
            total = sum(scores[at, word].item() for at, word in enumerate([*words, textbook.END]))
            best = max(best, (total / ((5 + len(words) + 1) / 6), words))
        assert textbook.beam(loop, [5, 6], 30) == best[1]


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


def test_a_translators_table_has_ratios_within_a_size_and_reasons():
    from benchmarks.kit import tables

    def record(part, **more):
        rate = {"median": 0.0, "min": 1.0, "max": 9.0, "runs": 3}
        if "median" in more:
            more["tokens_per_second"] = rate | {"median": more.pop("median")}
        return {"part": part, "who": "loop", "size": "book"} | more

    steps = [record("training", median=200.0), record("training", median=500.0, who="dikkat")]
    steps += [record("training", median=20.0, size="real"), record("training", who="dikkat", size="real", not_run="no")]
    drift = record("equality", dtype="float64", steps=500, largest_difference=2e-15, first_loss=5.5, last_loss=0.25)
    made = tables.translator(
        [
            tables.Run({"environment": ENVIRONMENT | {"torch_threads": 2}, "results": results})
            for results in ([drift], steps[:2], steps[2:])
        ]
    )
    assert "| book | loop | 200 (1–9) | 1× |" in made
    assert "| book | dikkat | 500 (1–9) | 2.5× |" in made
    assert "| real | loop | 20 (1–9) | 1× |" in made
    assert "| real | dikkat | not run: no |  |" in made
    assert "| loop | float64 | 500 | 2.0e-15 | 5.500, 0.250 |" in made
    assert made.index("2.5×") < made.index("2.0e-15")
    assert made.count("Threads: 2.") == 1


def test_the_translators_tables_are_written_only_if_there_are_records(tmp_path):
    from benchmarks.kit import tables

    page = tmp_path / "page.md"
    page.write_text(f"{tables.BEGIN}{tables.END} {tables.TRANSLATOR[0]}old{tables.TRANSLATOR[1]}\n")
    tables.update(page, tmp_path)
    assert "old" in page.read_text()
    environment = ENVIRONMENT | {"torch_threads": 2}
    for day, mib in (("02", 7), ("01", 5)):
        results = [{"part": "memory", "size": "book", "who": "loop", "peak_mib": mib}]
        path = tmp_path / f"translator-memory-book-2026-01-{day}.json"
        path.write_text(json.dumps({"environment": environment, "results": results}))
    tables.update(page, tmp_path)
    assert "| book | loop | 7 |" in page.read_text()
    assert "| 5 |" not in page.read_text()
    assert "old" not in page.read_text()


def test_the_regression_formulas_are_the_textbooks():
    from benchmarks.regression import formulas

    key, value = np.array([[0.0, 0.0], [1.0, 2.0], [3.0, 1.0], [3.0, 1.0], [-2.0, 5.0]]), np.array([1.0, -2, 4, 8, 16])
    query, width = np.array([[0.5, 0.5], [2.0, -1.0]]), np.array([0.7, 1.9])
    for point, constant, line in zip(
        query,
        formulas.constant(query, key, value, width),
        formulas.linear(query, key, value, width),
        strict=True,
    ):
        weights = np.array(
            [np.exp(-(((x - point[0]) / width[0]) ** 2 + ((y - point[1]) / width[1]) ** 2) / 2) for x, y in key]
        )
        assert constant == pytest.approx(sum(weights * value) / sum(weights), rel=1e-12)
        design = np.column_stack([np.ones(5), key - point])
        assert line == pytest.approx(
            np.linalg.solve(design.T * weights @ design, design.T * weights @ value)[0], rel=1e-9
        )
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
    far = np.array([[900.0, 900.0]])
    assert formulas.constant(far, key, value, width)[0] == pytest.approx((4 + 8) / 2)  # the nearest, twice
    near = formulas.constant(np.array([[0.1, 0.0]]), key, value, np.array([2.5, 2.5]), "epanechnikov")
    weights = np.array([1 - 0.01 / 6.25, 1 - (0.81 + 4) / 6.25])
    assert near[0] == pytest.approx(weights @ value[:2] / weights.sum(), rel=1e-12)


@pytest.mark.parametrize("size", [2, 3])
def test_a_reach_holds_the_share_of_keys_and_weight_that_it_says(size):
    from benchmarks.regression import data, formulas

    radius, width = data.reach(0.01, size, 1e-3)
    rng = np.random.default_rng(size)
    share, weight = formulas.reach(rng.random((1500, size)), rng.random((3001, size)), width, radius)
    assert share == pytest.approx(0.01, rel=0.03)
    assert 3e-4 < 1 - weight < 3e-3
    draws = np.linalg.norm(rng.random((400_000, size)) - rng.random((400_000, size)), axis=1)
    for distance in (0.1, 0.6, 1.0):
        assert data.within(distance, size) == pytest.approx((draws <= distance).mean(), rel=0.05)


def test_what_is_timed_of_this_library_starts_from_the_arrays_each_time(monkeypatch):
    from benchmarks.regression import peers
    from dikkat.regression import NadarayaWatson

    key, value = np.array([[0.0], [1.0], [3.0]]), np.array([1.0, 2.0, 4.0])
    run = peers.ours_anew((key, value), np.array([[0.5]]), 1.0, kernel="boxcar")
    fits, fit = [], NadarayaWatson.fit
    monkeypatch.setattr(NadarayaWatson, "fit", lambda self, *data: fits.append(self) or fit(self, *data))
    assert [run(), run()] == [1.5, 1.5]
    assert len({id(model) for model in fits}) == 2


def test_a_record_names_the_commit_of_its_start(monkeypatch):
    from benchmarks.kit import report

    began = report.environment()["commit"]
    monkeypatch.setattr(report, "_git", lambda *words: "another")
    assert report.environment()["commit"] == began


def test_small_problems_are_as_nasty_as_they_say():
    from benchmarks.regression import data

    found = list(data.problems(36))
    assert [kind for kind, _ in found] == [data.problem(number)[0] for number in range(36)]
    kinds = {kind: [made for name, made in found if name == kind] for kind, _ in found}
    assert len(kinds) == 6
    assert all(len(np.unique(made.key, axis=0)) < 50 for made in kinds["ties"] if made.key.shape[1] == 1)
    assert all((np.ptp(made.key, axis=0) == 0).sum() == 1 for made in kinds["constant column"])
    for made in kinds["exact line"]:
        design = np.column_stack([np.ones(50), made.key])
        assert np.linalg.lstsq(design, made.value)[1] == pytest.approx(0, abs=1e-20)


def test_a_contest_has_no_seconds_for_who_is_off_fails_or_takes_too_long(monkeypatch):
    import time

    from benchmarks.regression import contest, predictions

    monkeypatch.setattr(contest, "LONGEST", 5)
    right = np.array([1.0, 2.0, 4.0])
    calls = []

    def judge(answer):
        return predictions.judge(np.array([0, 2]), right[[0, 2]], 2.0, 1e-3, answer)

    def answering(answer):
        return lambda: calls.append(answer) or answer

    entrants = {
        "right": answering(right),
        "off": answering(right * 1.01),
        "NaN": answering(right * np.nan),
        "broken": lambda: 1 / 0,
        "slow": lambda: time.sleep(600),
    }
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


def test_what_takes_long_is_measured_once(monkeypatch):
    from benchmarks.regression import contest

    monkeypatch.setattr(contest, "ONCE", 0.0)
    [record] = contest.contest([contest.Entrant("slow", lambda: np.ones(1), lambda answer: {})])
    assert record["seconds"]["runs"] == 1


def test_bandwidths_that_are_none_are_counted_by_their_faults():
    from benchmarks.regression import fits

    found = fits.tally([[0.1, 2.0], [-0.1, 0.0], [float("inf")], [float("nan"), 1.0], "failed: why", [0.5]])
    faults = {"negative": 1, "zero": 1, "infinite": 1, "NaN": 1, "none": 1}
    assert found == {"problems": 6, "wrong": 4, **faults, "reasons": ["failed: why"]}


def test_quality_is_over_all_folds_or_none():
    from benchmarks.regression import fits

    def fold(r2):
        return {"r2": r2, "fit_seconds": 2.0, "predict_seconds": 1.0, "not_finite": 1, "rows": 10, "columns": 3}

    found = fits.summary([fold(0.5), fold(0.7)])
    assert found["r2"] == {"mean": pytest.approx(0.6), "min": 0.5, "max": 0.7, "folds": 2}
    assert found["not_finite"] == 2
    assert fits.summary([fold(0.5), {"why": "took more than 1 s"}]) == {"not_run": "1 of 2 folds: took more than 1 s"}


def test_a_score_is_scikit_learns_and_folds_are_apart(monkeypatch):
    from sklearn.linear_model import LinearRegression
    from sklearn.metrics import r2_score

    from benchmarks.regression import fits
    from benchmarks.regression.contest import Plan

    data, plan = fits.loaded("Friedman 3", Plan()), Plan()
    for fold in (0, 3):
        inside = np.arange(500) % 5 == fold
        model = LinearRegression().fit(data.key[~inside], data.value[~inside])
        right = r2_score(data.value[inside], model.predict(data.key[inside]))
        assert fits.score("linear regression", "Friedman 3", fold, plan)["r2"] == pytest.approx(right, rel=1e-12)

    class Blank(LinearRegression):
        def predict(self, key):
            return np.full(len(key), np.nan)

    monkeypatch.setitem(fits.METHODS, "linear regression", Blank)
    found = fits.score("linear regression", "Friedman 3", 0, plan)
    assert found["not_finite"] == 100
    assert found["r2"] == pytest.approx(0, abs=0.1)


def test_a_line_through_times_says_how_straight_they_are():
    from benchmarks.regression import scale

    straight = scale.line([1e6, 2e6, 4e6], [1.5, 2.5, 4.5])
    assert straight["seconds_per_million"] == pytest.approx(1.0)
    assert straight["intercept"] == pytest.approx(0.5)
    assert straight["farthest_of_line"] == pytest.approx(0, abs=1e-12)
    assert straight["growth_over_proportional"] == pytest.approx(0.75)
    assert scale.line([1e6, 2e6, 4e6], [1.0, 4.0, 16.0])["farthest_of_line"] > 0.1


def test_a_stage_that_fails_keeps_what_it_had():
    from benchmarks.regression import estimators as regression

    def stage():
        yield {"who": "first"}
        raise ValueError("no more")

    records, cut_short = regression.collected("dense", stage())
    assert cut_short
    assert records == [
        {"stage": "dense", "who": "first"},
        {"stage": "dense", "what": "failure", "not_run": "failed: ValueError: no more"},
    ]


def _regression(**stages):
    from benchmarks.kit import tables
    from benchmarks.regression import tables as regression_tables

    environment = ENVIRONMENT | {"torch_threads": 2}
    return regression_tables.regression(
        [
            tables.Run({"environment": environment, "results": [{"stage": stage, **record} for record in records]})
            for stage, records in stages.items()
        ]
    )


def _seconds(median):
    return {"seconds": {"median": median, "min": median, "max": 2 * median, "runs": 3}}


def test_the_goals_of_regression_are_ratios_of_medians():
    dense = [
        {"what": "speed", "who": "dikkat", "error_of_range": 1e-7, **_seconds(2.0)},
        {"what": "speed", "who": "SDPA, padded features", "error_of_range": 1e-7, **_seconds(3.0)},
        {"what": "speed", "who": "KeOps", "error_of_range": None, "not_run": "disagrees with float64"},
        {"what": "speed", "who": "KeOps, softmax", "error_of_range": 1e-7, **_seconds(9.0)},
    ]
    made = _regression(dense=dense)
    assert "against SDPA on padded features | ≥ 1× | 1.5× |" in made
    assert "| … against KeOps, the faster of its ways | ≥ 3× | 4.5× |" in made
    assert "| KeOps | not run: disagrees with float64 |  |  |  |" in made
    assert "| predict, reaching 1 %, tolerance 1e-6, against all keys | ≥ 10× |  |" in made


def test_errors_are_held_against_the_budget_and_what_is_not_finite_is_counted():
    case = {"what": "error", "d": 3, "range_over_bandwidth": 1000, "allowed": 2e-6, "not_finite": 0}
    ours = {"who": "dikkat", "error": 5e-7} | case
    made = _regression(dense=[ours, case | {"who": "KeOps", "error": None, "not_finite": 7}])
    assert "2 × plain float32's + 4·eps·largest value | ≤ 1× | 0.25× (d = 3) |" in made
    assert "| dikkat | 5.0e-07 |" in made
    assert "| KeOps | 7 not finite |" in made


def test_the_least_of_the_curves_counts():
    def chosen(who, curve, seconds, error, points=10_000):
        return {"who": who, "curve": curve, "points": points, "bandwidth": 0.1, "left_out_error": error} | seconds

    made = _regression(
        bandwidth=[
            chosen("dikkat", "sine", _seconds(1.0), 0.5),
            chosen("statsmodels", "sine", _seconds(50.0), 0.25),
            chosen("dikkat", "step", _seconds(2.0), 0.5),
            chosen("statsmodels", "step", _seconds(60.0), 0.5),
            chosen("dikkat", "sine", _seconds(90.0), 9.0, points=1_000),
        ]
    )
    assert "the slowest curve | ≤ 2 s | 2 s |" in made
    assert "| … against statsmodels, the least | ≥ 20× | 30× |" in made
    assert "the largest | ≤ 1× | 2.000000× |" in made


def test_tables_are_counted_where_both_sides_ran():
    def scored(table, method, r2):
        found = {"r2": {"mean": r2, "min": r2, "max": r2, "folds": 5}}
        found |= {"fit_seconds": _seconds(1.0)["seconds"], "predict_seconds": _seconds(3.0)["seconds"]}
        return {"table": table, "method": method, "not_finite": 0, "rows": 10, "columns": 2} | found

    neighbours, ours = "k nearest neighbours", "dikkat, linear"
    records = [scored(table, neighbours, 0.5) for table in "abcd"] + [scored(table, ours, 0.7) for table in "abcd"]
    records += [scored("a", "statsmodels, linear", 0.6), scored("b", "statsmodels, linear", 0.8)]
    records += [scored("c", "statsmodels, constant", 0.1), scored("c", "statsmodels, linear", 0.71)]
    records += [{"table": "d", "method": "statsmodels, linear", "not_run": "5 of 5 folds: took more than 45 s"}]
    made = _regression(quality=records)
    assert "linear order, tables | most | 1 of 3 |" in made
    assert "not run: 5 of 5 folds: took more than 45 s" in made
    assert "| a (10 × 2) |" in made
    fitting, predicting = made.split("fitting to four folds, seconds")[1].split("predicting the fifth, seconds")
    assert "1 (1–2)" in fitting
    assert "3 (3–6)" in predicting


def test_the_regression_tables_are_written_between_their_markers(tmp_path):
    from benchmarks.regression import tables as regression_tables

    page = tmp_path / "page.md"
    page.write_text("before {}old{} after".format(*regression_tables.MARKERS))
    for day, wrong in (("01", 3), ("02", 0)):
        counts = dict.fromkeys(("negative", "zero", "infinite", "NaN", "none"), 0)
        record = {"stage": "problems", "who": "dikkat", "kind": "ties", "problems": 7, "wrong": wrong, "reasons": []}
        content = {"environment": ENVIRONMENT | {"torch_threads": 2}, "results": [record | counts]}
        (tmp_path / f"regression-problems-2026-01-{day}.json").write_text(json.dumps(content))
    regression_tables.update(page, tmp_path)
    text = page.read_text()
    assert "| small problems without a bandwidth that is one | 0 | 0 of 7 |" in text
    assert "3 of 7" not in text
    assert "old" not in text
    assert text.startswith("before")
    assert text.endswith("after")


def test_records_without_a_stage_have_no_part_in_the_tables_of_regression(tmp_path):
    from benchmarks.regression import tables

    environment = {**ENVIRONMENT, "torch_threads": 2}
    for name, record in (("many", {"what": "predictions"}), ("agreement", {"stage": "agreement"})):
        content = {"environment": environment, "results": [record]}
        (tmp_path / f"regression-{name}-2026-01-02.json").write_text(json.dumps(content))
    page = tmp_path / "page.md"
    page.write_text("\n".join((*tables.MARKERS, "after")))
    tables.update(page, tmp_path)
    assert "| kernel regression | wanted | measured |" in page.read_text()
