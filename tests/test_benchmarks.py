"""The benchmarks' own honesty: nothing that is wrong has a speed, and nothing that was not measured has a figure."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
ENVIRONMENT = {
    "date": "2026-01-02",
    "commit": "abc",
    "cpu": "Somebody's",
    "cores": 2,
    "device": "cpu",
    "python": "3.11.7",
    "versions": {"torch": "2.13.0"},
}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in [name for name, module in sys.modules.items() if _is_ours(module)]:
        del sys.modules[name]


def _is_ours(module):
    return (getattr(module, "__file__", None) or "").startswith(str(BENCHMARKS))


def _record(who, ms=None, step="forward", **more):
    """As a run at the headline's shape writes it."""
    shape = {"batch": 8, "queries": 256, "keys": 256, "features": 128}
    made = {"section": "shapes", "device": "cpu", **shape, "task": "additive", "variant": "plain", "dtype": "float32"}
    made |= {"who": who, "pass": step, "runs": "numba"}
    if ms is not None:
        made |= {"ms": {"median": ms, "min": ms, "max": 2 * ms, "runs": 3}, "pair_features_per_second": 1e9}
    return made | more


def _table(*records, device="cpu"):
    import tables

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
    import tables

    made = _table(_record("auto", 2.0))
    assert tables.NO_GPU in made
    rows = [line for line in made.splitlines() if line.startswith("| GPU")]
    assert rows
    assert all(row.endswith("|  |") for row in rows)


def test_with_a_gpu_it_is_not_said():
    import tables

    large = {"queries": 1024, "keys": 1024, "pair_features_per_second": 4e12, "peak_mib": 7.0}
    made = _table(_record("auto", 0.25, **large), device="cuda")
    assert tables.NO_GPU not in made
    assert "| GPU, float32, (8, 1024, 1024, 128), forward, pair-features a second | ≥ 3.9e+12 | 4.00e+12 |" in made


def test_the_page_is_changed_between_its_markers_alone(tmp_path):
    import tables

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
    import peers
    import truth
    from cases import Case

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
    import additive
    import truth
    from cases import Case

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
    import additive
    from cases import Case

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
    import worker
    from cases import Case

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

    import corpora
    import networks

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
    import agreement
    import corpora
    import networks

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

    import corpora
    import networks
    import textbook
    from decoding import loop_translations

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

    import corpora
    import textbook

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

    import turns

    order = []
    tasks = {name: turns.once(lambda name=name: order.append(name) or time.sleep(0.2)) for name in "ab"}
    samples = turns.measured(tasks, seconds=0.0)
    assert order == ["a", "a", "b", "b"] + ["a", "b"] * turns.LEAST
    assert all(len(found) == turns.LEAST for found in samples.values())
    assert all(one >= 0.2 and amount == 1 for found in samples.values() for one, amount in found)
    with pytest.raises(turns.TooLongError, match="more than 1 s"), turns.at_most(1):
        time.sleep(3)


def test_a_translators_table_has_ratios_within_a_size_and_reasons():
    import tables

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
    import tables

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
