"""Write the tables of the documentation from the newest records.

    python -m benchmarks.tables [--age]

With `--age`, it lists how many lines of src/ have changed since each record.
"""

import argparse
import math
import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.kit.peers import EAGER, OURS, PEERS, SDPA
from benchmarks.kit.processes import ROOT
from benchmarks.kit.tables import Record, Run, Table, changed_lines, number, spread, times, update

Row = list[str]
PAGE = ROOT / "docs" / "benchmarks.md"
PASSES = ("forward", "forward and backward")


def _start_rows(runs: list[Run]) -> Iterable[Row]:
    for run in runs:
        results = run.results
        if run.name == "core":
            yield ["`import torch`", spread(results["import seconds"]["torch"])]
            beyond = spread(results["import seconds"]["beyond torch"])
            yield ["additional time of `import dikkat` (noise can make it negative)", beyond]
        elif run.name == "host":
            cold, warm = results["seconds"]["cold"], results["seconds"]["warm"]
            yield ["a process's first additive call, forward", f"{warm['forward']:.2f}"]
            for stage in ("forward", "backward"):
                yield [f"… {stage}, kernels not yet compiled", f"{cold[stage]:.0f}"]
        else:
            warm = run.first(what="warm")
            yield ["`dikkat translate` in a new process, until the translation", spread(warm["seconds"])]
            yield ["… only `import torch`, on the same machine", spread(warm["torch_alone"])]
            yield ["… kernels not yet compiled", number(run.first(what="cold")["seconds"])]


def _shape(record: Record) -> tuple[int, ...]:
    return tuple(record.get(name, 0) for name in ("batch", "queries", "keys", "features"))


def _timed(run: Run, **fields: Any) -> list[Record]:
    return [record for record in run.find(variant="plain", **fields) if record["section"] != "memory"]


def _attention(runs: list[Run]) -> Iterable[Row]:
    """Yield dikkat, eager PyTorch and the fastest peer for each shape and pass."""
    for run in runs:
        shapes = dict.fromkeys((r["task"], _shape(r)) for r in run.find(variant="plain", who="auto") if "ms" in r)
        for task, shape in shapes:
            for stage in PASSES:
                records = [r for r in _timed(run, task=task, **{"pass": stage}) if _shape(r) == shape]
                ours = next(r for r in records if r["who"] == "auto")["ms"]
                eager = next((r for r in records if r["who"] == EAGER), {})
                peers = [r for r in records if r["who"] in PEERS[1:] and "ms" in r]
                fastest = min(peers, key=lambda r: float(r["ms"]["median"]), default=None)
                yield [
                    f"{task} {shape}, {stage}",
                    spread(ours),
                    _compare(eager, ours),
                    f"{fastest['who']}: {_compare(fastest, ours)}" if fastest else "",
                    f"`{run.name}`",
                ]


def _compare(record: Record | None, ours: Record) -> str:
    if not record:
        return ""
    if "ms" not in record:
        return str(record["not_run"])
    return f"{number(record['ms']['median'])}, {times(record['ms']['median'], ours['median'])}"


def _who(name: str) -> str:
    return f"`{name}`" if name in OURS else name


def _memory(runs: list[Run]) -> Iterable[Row]:
    implementations = ("numba", "chunked", EAGER)
    records: dict[tuple[str, tuple[int, ...]], dict[str, Record]] = {}
    for run in runs:
        for record in run.find(section="memory"):
            if record["keys"] in (256, 8192, 20_000) and record["batch"] * record["keys"] > 256:
                records.setdefault((record["task"], _shape(record)), {}).setdefault(record["who"], record)
    for (task, shape), by_name in records.items():
        yield [f"{task} {shape}", *(_mib(by_name[who]) if who in by_name else "" for who in implementations)]


def _mib(record: Record) -> str:
    return f"{record['peak_mib']:.0f}" if "peak_mib" in record else str(record["not_run"])


def _gpu(runs: list[Run]) -> Iterable[Row]:
    """Yield `auto`, the time of its kernels, and plain PyTorch for each shape and dtype on a GPU."""
    for run in runs:
        ours = run.find(who="auto")
        for forward, both in zip(ours[::2], ours[1::2], strict=True):
            cells = []
            for record in (forward, both):
                fields = {"dtype": record["dtype"], "pass": record["pass"]}
                peers = [r for r in run.find(**fields) if _shape(r) == _shape(record) and "ms" in r]
                by_peer = {who: next((r for r in peers if r["who"] == who), None) for who in (EAGER, "torch.compile")}
                median = record["ms"]["median"]
                ratios = [times(r["ms"]["median"], median) if r else "" for r in by_peer.values()]
                cells.append([number(median), number(record["kernels_ms"]), *ratios])
            columns = ("; ".join(filter(None, cell_column)) for cell_column in zip(*cells, strict=True))
            yield [f"{_shape(forward)}, {forward['dtype']}", *columns]


def _small(runs: list[Run]) -> Iterable[Row]:
    """Yield a row for each score and pass, over calls with and without lengths and weights."""
    for score in ("scaled dot", "additive", "gaussian"):
        for stage in PASSES:
            row = [f"{score}, {stage}"]
            for run in runs:
                kinds = [
                    kind for name, kind in run.results["summary"].items() if name.split(", ")[:2] == [score, stage]
                ]
                shapes = sum(kind["shapes"] for kind in kinds)
                mean = statistics.geometric_mean([kind["geometric mean"] for kind in kinds])
                slow_count = sum(kind["below 0.9"] for kind in kinds)
                row += [f"{mean:.2f}", f"{100 * slow_count / shapes:.0f} %"]
            yield row
    for name in runs[0].results["layers"] if runs else ():
        yield [name, *(cell for run in runs for cell in (f"{run.results['layers'][name]['ratio']:.2f}", ""))]


_RELATIVE = "time relative to no recording"


def _models(runs: list[Run]) -> Iterable[Row]:
    for run in runs:
        results = run.results
        if run.name == "recording-layer":
            yield [f"GPT-2's shape, 4,096 tokens, one layer recorded: {_RELATIVE}", _format_ratio(results["ratio"])]
            share = results["growth of memory, bytes"] / results["bytes of all maps"]
            yield ["… additional memory, as a share of all attention maps", f"{100 * share:.1f} %"]
        elif run.name == "recording-generate":
            yield [f"Llama's shape, 200 new tokens, two heads recorded: {_RELATIVE}", _format_ratio(results["ratio"])]
        else:
            record = run.first(section="recording")
            alone, recorded = (record[name]["ms"]["median"] for name in ("alone", "recorded"))
            yield [
                f"GPT-2's shape in bfloat16 on an H200, 4,096 tokens, one layer recorded: {_RELATIVE}",
                f"{record['ratio']:.2f} ({alone:.1f} ms without recording, {recorded:.1f} ms with)",
            ]


def _format_ratio(ratio: Record) -> str:
    return f"{ratio['median']:.2f} ({ratio['least']:.2f}–{ratio['most']:.2f})"


_CHANGES = {
    "cut": "all heads cut", "mass": "the mass of a span", "edges": "one edge", "scale": "the odds of a span",
    "weights": "other weights",
}  # fmt: skip


def _changing(runs: list[Run]) -> Iterable[Row]:
    for run in runs:
        results = run.results
        if run.name == "changing-layer":
            for name, title in _CHANGES.items():
                memory = f"{results['peak ratio'][name]:.2f} ×"
                yield [f"one of 12 layers changed, 8,192 tokens: {title}", spread(results["ratio"][name]), memory]
        elif run.name == "changing-effects":
            for name in ("exact", "estimate"):
                title = f"`effects` of {results['heads']} heads, 128 tokens, {name}: relative to one forward pass"
                yield [title, spread(results["ratio"][name]), ""]
        elif run.name == "changing-passages":
            memory = f"{results['extra MiB']:.1f} MiB more, of which the record {results['MiB of the record']:.1f}"
            title = "256 tokens written after 8,192, masses of 50 spans recorded"
            yield [title, spread(results["ratio"]["50 spans"]), memory]
            if page := results["ratio"].get("a page of 50 spans"):  # not in the record of a6e68d7c
                yield ["… by `dikkat.show.generation`", spread(page), ""]
        elif run.name == "changing-max-score":
            title = "2,048 tokens, `max_score` of 12 layers recorded"
            yield [title, spread(results["ratio"]["max_score"]), ""]
            ratio = results["ratio to the same recording without max_score"]
            yield ["… `entropy` and `max_score`, relative to `entropy`", spread(ratio), ""]
        else:
            for kind, steps in results.items():
                for every, ratio in steps["ratio"].items():
                    yield [f"a training step with `watch({every})`, {kind}", spread(ratio), ""]


def _regression(runs: list[Run]) -> Iterable[Row]:
    for run in runs:
        if run.name == "regression-bandwidth":
            for ours in run.find(who="dikkat", points=10_000):
                peer = run.first(who="statsmodels", points=10_000, curve=ours["curve"])
                function = "the textbook's function" if ours["curve"] == "textbook" else ours["curve"]
                task = f"leave-one-out bandwidth, 10,000 points, {function}"
                yield _contest_row(task, ours, {"statsmodels": peer})
        elif run.name == "regression-dense":
            by_name = {record["who"]: record for record in run.find(what="speed")}
            peers = {who: by_name[who] for who in (SDPA, "torch.cdist, in chunks", "KeOps") if who in by_name}
            yield _contest_row("100,000 × 100,000, d = 3, float32: fit and predict", by_name["dikkat"], peers)
        elif run.name != "regression-many":
            yield from _peer_rows(run)
        else:
            for record in run.results:
                suffix = f", each from {record['neighbours']:,.0f} rows on average" if "neighbours" in record else ""
                yield _contest_row(f"a million rows: {record['what']}, {record['kernel']}{suffix}", record, {})


def _peer_rows(run: Run) -> Iterable[Row]:
    for ours in run.find(who="dikkat"):
        peers = {r["who"]: r for r in run.find(what=ours["what"]) if r["who"] != "dikkat"}
        yield _contest_row(ours["what"], ours, peers)


def _contest_row(task: str, ours: Record, peers: dict[str, Record]) -> Row:
    our_seconds = ours["seconds"]["median"]
    peer_cells = [
        f"{who} {number(r['seconds']['median'])}, {times(r['seconds']['median'], our_seconds)}"
        for who, r in peers.items()
        if "seconds" in r
    ]
    return [task, spread(ours["seconds"]), "; ".join(peer_cells)]


def _errors(runs: list[Run]) -> Iterable[Row]:
    for run in runs:
        records = run.find(what="error")
        cases = list(dict.fromkeys((r["d"], r["range_over_bandwidth"]) for r in records))
        for who in dict.fromkeys(r["who"] for r in records):
            by_case = {(r["d"], r["range_over_bandwidth"]): r for r in records if r["who"] == who}
            label = "PyTorch, from the differences x − y" if who == "plain differences" else who
            yield [label, *(_error(by_case[case]) for case in cases)]


def _error(record: Record) -> str:
    if "not_run" in record:
        return str(record["not_run"])
    if record["error"] is None:
        return f"{record['not_finite']} of {record['queries']} are NaN or infinite"
    return f"{record['error']:.0e}"


def _methods(runs: list[Run]) -> Iterable[Row]:
    for run in runs:
        records = [r for r in run.results if r["method"] != "mean"]
        groups = ((1, 999), (1, 2), (3, 6), (7, 999))
        ranks = [
            mean_ranks({(r["table"], r["method"]): r["r2"] for r in records if low <= r["columns"] <= high})
            for low, high in groups
        ]
        for method in dict.fromkeys(r["method"] for r in records):
            rows = [r for r in records if r["method"] == method]
            scores, seconds = [r["r2"] for r in rows], [value for r in rows for value in r["fit"]]
            mean = statistics.mean(max(score, -1) for score in scores)
            figures = (*(value.get(method, math.nan) for value in ranks), mean, min(scores), statistics.median(seconds))
            yield [method, *(f"{figure:.2f}" for figure in figures)]


def _coverage(runs: list[Run]) -> Iterable[Row]:
    for run in runs:
        for method in dict.fromkeys(r["method"] for r in run.results):
            rows = run.find(method=method)
            coverages = [r["coverage"] for r in rows]
            low_count = sum(share < 0.85 for share in coverages)
            yield [
                method,
                f"{statistics.mean(coverages):.3f}",
                f"{min(coverages):.2f}",
                f"{low_count} of {len(coverages)}",
                f"{statistics.mean(r['width'] for r in rows if r['width'] is not None):.2f}",
                f"{statistics.mean(r['infinite'] for r in rows):.3f}",
            ]


def mean_ranks(scores: dict[tuple[str, str], float]) -> dict[str, float]:
    """Return the mean rank of each method over the tables; 1 is the best, and ties share ranks."""
    ranks: dict[str, list[float]] = {}
    for table in dict.fromkeys(table for table, _ in scores):
        table_scores = {method: score for (name, method), score in scores.items() if name == table}
        for method, score in table_scores.items():
            better = sum(other > score for other in table_scores.values())
            ranks.setdefault(method, []).append(
                better + (1 + sum(other == score for other in table_scores.values())) / 2
            )
    return {method: statistics.mean(values) for method, values in ranks.items()}


def _scores(runs: list[Run]) -> Iterable[Row]:
    for run in runs:
        results = run.results
        if run.name == "phrasebook":
            bleu, chrf = (line.split("=")[1].split()[0] for line in (results["printed"][0], results["printed"][2]))
            yield [
                "the phrasebook's 997 held-out pairs, greedy",
                bleu,
                chrf,
                f"{spread(results['seconds'])} s for the complete demo",
            ]
            continue
        training = results["training"]
        minutes = f"{training['minutes']:.0f} minutes"
        best = results["val, by length penalty"][str(results["length penalty chosen on val"])]
        for split, scores in (("val", best), ("test 2016", results["test_2016_flickr"])):
            yield [f"{run.name}, {split}, beam 5", f"{scores['bleu']:.2f}", f"{scores['chrf']:.2f}", minutes]
            minutes = ""


def _int8(runs: list[Run]) -> Iterable[Row]:
    for run in runs:
        bleu, folder = run.first(what="BLEU that int8 costs"), run.first(what="folder of int8")
        yield [f"{bleu['float32']:.2f}", f"{bleu['int8']:.2f}", f"{100 * folder['share']:.0f} %"]


def _pages(runs: list[Run]) -> Iterable[Row]:
    for run in runs:
        if run.name == "maps":
            opening = run.first(part="opening")
            milliseconds = spread(opening["milliseconds"]["whole"])
            yield [f"a map of {opening['side']:,} × {opening['side']:,} until it is completely drawn, ms", milliseconds]
            rate = min(record["frames_per_second"]["median"] for record in run.find(part="panning"))
            longest = max(record["longest_frame_milliseconds"]["max"] for record in run.find(part="panning"))
            yield [
                "… while you drag it, at three zoom levels: frames per second; longest frame, ms",
                f"{number(rate)}; {number(longest)}",
            ]
            continue
        yield ["a translator of Multi30k: size of the file", f"{run.first(part='file')['megabytes']:.2f} MB"]
        equal = [f"beam {r['beam']}: {r['equal']} of {r['sentences']}" for r in run.find(part="tokens")]
        yield ["… sentences with the same tokens and text as from Python's int8 search", "; ".join(equal)]
        rates = [f"beam {r['beam']}: {spread(r['tokens_per_second'])}" for r in run.find(part="speed")]
        yield ["… tokens per second in Node, one sentence after the other", "; ".join(rates)]
        waits = run.first(part="browser")["milliseconds"]
        yield ["… from opening the file to the first translation with its pictures, ms", spread(waits["opening"])]
        yield [
            "… from the change of an attention weight to the new translation and pictures, beam 5, ms",
            spread(waits["pinning"]),
        ]


SHAPES = ("(batch, queries, keys, features), ms", "`auto`", "eager PyTorch", "fastest peer", "record")
SMALL = ("time of plain PyTorch divided by dikkat's time", "one thread", "below 0.9", "two threads", "below 0.9")
ERRORS = ("largest error", "d = 3, range/σ = 10", "d = 3, range/σ = 1,000", "d = 1, range/σ = 1,000")
METHODS = ("", "mean rank", "d ≤ 2", "d 3–6", "d ≥ 7", "mean score, at least −1", "lowest score", "CPU s of a fit")
COVERAGE = (
    "90 % intervals", "mean coverage", "lowest coverage", "data sets below 0.85",
    "mean width in standard deviations of y", "share of infinite intervals",
)  # fmt: skip
TABLES = [
    Table("starting", ("core", "host", "sentence-start"), ("", "seconds"), _start_rows),
    Table("attention", ("cpu",), SHAPES, _attention),
    Table("memory", ("cpu",), ("MiB", "`numba`", "`chunked`", EAGER), _memory),
    Table(
        "gpu",
        ("calls-nvidia-h200",),
        ("additive, ms: forward; forward and backward", "`auto`", "GPU time of `auto`", EAGER, "torch.compile"),
        _gpu,
    ),
    Table("small", ("small-1", "small-2"), SMALL, _small),
    Table("models", ("recording-layer", "recording-generate", "recording-nvidia-h200"), ("", ""), _models),
    Table(
        "changing",
        ("changing-layer", "changing-effects", "changing-passages", "changing-max-score", "changing-watch"),
        ("compared with the plain model", "time", "peak memory"),
        _changing,
    ),
    Table("int8", ("sentence-quality",), ("BLEU on val, float32", "int8", "size of the int8 folder"), _int8),
    Table("scores", ("phrasebook", "multi30k-en-fr", "multi30k-en-de"), ("", "BLEU", "chrF2", "training"), _scores),
    Table("pages", ("page", "maps"), ("", "measured"), _pages),
    Table(
        "regression",
        (
            "regression-bandwidth", "regression-dense", "regression-many", "regression-curves",
            "regression-jackknife", "regression-densities",
        ),
        ("seconds", "dikkat", "peers, and how many times as long"),
        _regression,
    ),
    Table("errors", ("regression-dense",), ERRORS, _errors),
    Table("methods", ("regression-review51",), METHODS, _methods),
    Table("fresh", ("regression-fresh",), METHODS, _methods),
    Table("unseen", ("regression-unseen",), METHODS, _methods),
    Table("gaps", ("regression-gaps",), METHODS, _methods),
    Table("metric", ("regression-metric",), METHODS, _methods),
    Table("classifiers", ("regression-classifiers",), METHODS, _methods),
    Table("coverage", ("regression-coverage",), COVERAGE, _coverage),
    Table("fresh-coverage", ("regression-fresh-coverage",), COVERAGE, _coverage),
    Table("unseen-coverage", ("regression-unseen-coverage",), COVERAGE, _coverage),
]  # fmt: skip


def main() -> None:
    """Write the tables, or list the ages of their records."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--age", action="store_true", help="list the changed lines of src/ since each record")
    if not parser.parse_args().age:
        update(PAGE, TABLES)
        return
    for run in {run.name: run for table in TABLES for run in table.runs()}.values():
        lines = changed_lines(run.environment["commit"].split()[0])
        print(f"{run.name:28} {run.environment['date']}  {'no such commit' if lines is None else f'{lines:,} lines'}")


if __name__ == "__main__":
    main()
