"""The tables of kernel regression in docs/benchmarks.md, from the newest record of each stage of `estimators.py`.

    python -m benchmarks.regression.tables [RECORD.json ...]

Without arguments it writes them into the page; with records, it prints theirs.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.kit.peers import SDPA
from benchmarks.kit.report import RESULTS
from benchmarks.kit.tables import NAMED_BY_DATE, PAGE, Record, Run, between, markdown, provenance, read
from benchmarks.regression.fits import METHODS, NEIGHBOURS
from benchmarks.regression.peers import KEOPS, OURS, STATSMODELS
from benchmarks.regression.predictions import ALL, ALL_COMPACT, BOUNDED, BOUNDED_WIDE, COMPACT

MARKERS = "<!-- regression:begin -->", "<!-- regression:end -->"


def update(page: Path = PAGE, results: Path = RESULTS) -> None:
    """Write the tables of the newest records between the page's markers."""
    newest = {path.name[:-NAMED_BY_DATE]: path for path in sorted(results.glob("regression-*.json"))}
    runs = [read(path) for path in newest.values()]
    made = regression([run for run in runs if "stage" in run.records[0]])  # not those of `many`, which have none
    page.write_text(between(page.read_text(), *MARKERS, made, page))


def regression(runs: list[Run]) -> str:
    """The goals, and a table for each stage."""
    found = {run.records[0]["stage"]: run for run in runs}
    records = {stage: run.records for stage, run in found.items()}
    rows = [(what, wanted, measured(records)) for what, wanted, measured in GOALS]
    parts, before = [markdown(["kernel regression", "wanted", "measured"], rows)], ""
    for stage in [stage for stage in SECTIONS if stage in found]:
        run = found[stage]
        where = f"{provenance(run)} Threads: {run.environment['torch_threads']}."
        parts += [where] if where != before else []
        parts += [part for part in SECTIONS[stage](run.records) if part]
        parts += [f"- {record['not_run']}" for record in run.find(what="failure")]
        before = where
    return "\n\n".join(parts)


def _some(records: Iterable[Record], **wanted: object) -> list[Record]:
    return [record for record in records if all(record.get(name) == kept for name, kept in wanted.items())]


def _seconds(records: Iterable[Record], **wanted: object) -> float | None:
    """The smallest median of these; None where none was measured."""
    medians = [record["seconds"]["median"] for record in _some(records, **wanted) if "seconds" in record]
    return min(medians, default=None)


def _times(above: float | None, below: float | None) -> str:
    return f"{above / below:.3g}×" if above and below else ""


# Goals ---------------------------------------------------------------------------------------------------------------

Stages = dict[str, list[Record]]


def _agrees(stages: Stages) -> str:
    found = [record["between"] for record in stages.get("agreement", []) if "between" in record]
    return f"{max(found):.1e}" if found else ""


def _curves(stages: Stages) -> list[tuple[Record, Record]]:
    """Ours and statsmodels' at the larger number of points, curve by curve, where both have an answer."""
    records = [record for record in stages.get("bandwidth", []) if "seconds" in record]
    most = max((record["points"] for record in records), default=0)
    pairs = []
    for ours in _some(records, who=OURS, points=most):
        pairs += [(ours, theirs) for theirs in _some(records, who=STATSMODELS, points=most, curve=ours["curve"])]
    return pairs


def _slowest_choice(stages: Stages) -> str:
    return _largest([ours["seconds"]["median"] for ours, _ in _curves(stages)], "{:.3g} s")


def _choice_ratio(stages: Stages) -> str:
    ratios = [theirs["seconds"]["median"] / ours["seconds"]["median"] for ours, theirs in _curves(stages)]
    return f"{min(ratios):.3g}×" if ratios else ""


def _choice_error(stages: Stages) -> str:
    return _largest([ours["left_out_error"] / theirs["left_out_error"] for ours, theirs in _curves(stages)], "{:.6f}×")


def _largest(found: list[float], form: str) -> str:
    return form.format(max(found)) if found else ""


def _against(*peers: str) -> Callable[[Stages], str]:
    """Their time over ours, of the fastest of them."""

    def measured(stages: Stages) -> str:
        records = stages.get("dense", [])
        theirs = [seconds for peer in peers if (seconds := _seconds(records, what="speed", who=peer)) is not None]
        return _times(min(theirs, default=None), _seconds(records, what="speed", who=OURS))

    return measured


def _exactness(stages: Stages) -> str:
    """Of ours over what is allowed, at the smallest bandwidth."""
    records = _some(stages.get("dense", []), what="error", range_over_bandwidth=1000, who=OURS)
    return ", ".join(f"{_times(r['error'], r['allowed'])} (d = {r['d']})" for r in records if "error" in r)


def _narrower(wide: str, narrow: str) -> Callable[[Stages], str]:
    return lambda stages: _times(*(_seconds(stages.get("narrow", []), who=who) for who in (wide, narrow)))


def _bounded(stages: Stages) -> str:
    found = _some(stages.get("narrow", []), who=BOUNDED_WIDE)
    return "".join(_error(record) for record in found)


def _peak(stages: Stages) -> str:
    return _largest([record["peak_gib"] for record in stages.get("scale", []) if "peak_gib" in record], "{:.2f} GiB")


def _growth(stages: Stages) -> str:
    lines = _some(stages.get("scale", []), what="line", of="predict_seconds")
    return ", ".join(f"{record['growth_over_proportional']:.3g}× ({record['reaches']})" for record in lines)


def _faults(who: str) -> Callable[[Stages], str]:
    def measured(stages: Stages) -> str:
        found = _some(stages.get("problems", []), who=who)
        return f"{sum(r['wrong'] for r in found)} of {sum(r['problems'] for r in found)}" if found else ""

    return measured


def _above(order: str) -> Callable[[Stages], str]:
    """On how many tables it is above statsmodels' better order, and above the neighbours, of those where all ran."""

    def measured(stages: Stages) -> str:
        found = {(r["table"], r["method"]): r["r2"]["mean"] for r in stages.get("quality", []) if "r2" in r}
        above, tables = 0, 0
        for table in dict.fromkeys(table for table, _ in found):
            peers = [found.get((table, f"{STATSMODELS}, {kind}")) for kind in ("constant", "linear")]
            theirs = [found.get((table, NEIGHBOURS)), max((r2 for r2 in peers if r2 is not None), default=None)]
            ours = found.get((table, f"{OURS}, {order}"))
            if ours is not None and None not in theirs:
                tables += 1
                above += all(ours > r2 for r2 in theirs)  # type: ignore[operator]
        return f"{above} of {tables}" if tables else ""

    return measured


GOALS: list[tuple[str, str, Callable[[Stages], str]]] = [
    ("predictions against statsmodels, largest difference", "≤ 1e-6", _agrees),
    ("leave-one-out bandwidth, 10,000 points, the slowest curve", "≤ 2 s", _slowest_choice),
    ("… against statsmodels, the least", "≥ 20×", _choice_ratio),
    ("… its leave-one-out error over statsmodels', the largest", "≤ 1×", _choice_error),
    ("fit and predict 100,000 × 100,000, d = 3, float32, against SDPA on padded features", "≥ 1×", _against(SDPA)),
    ("… against KeOps, the faster of its ways", "≥ 3×", _against(KEOPS, f"{KEOPS}, softmax")),
    ("… error at range/σ = 1,000 over the budget, 2 × plain float32's + 4·eps·largest value", "≤ 1×", _exactness),
    ("predict, reaching 1 %, tolerance 1e-6, against all keys", "≥ 10×", _narrower(ALL, BOUNDED)),
    ("… its error in float64, as a share of the range", "≤ 1e-6", _bounded),
    ("… Epanechnikov, reaching 1 %, against all keys", "", _narrower(ALL_COMPACT, COMPACT)),
    ("10 million keys, d = 2, 10,000 queries, peak memory of the process", "< 8 GiB", _peak),
    ("… predict, times per key of 1 million", "about 1×", _growth),
    ("small problems without a bandwidth that is one", "0", _faults(OURS)),
    ("… statsmodels'", "", _faults(STATSMODELS)),
    ("R² above statsmodels and the neighbours, linear order, tables", "most", _above("linear")),
    ("… constant order", "most", _above("constant")),
]


# Stage by stage ------------------------------------------------------------------------------------------------------


def _agreement(records: list[Record]) -> Iterable[str]:
    head = [
        "same bandwidth, float64",
        "d",
        "keys",
        "ours and statsmodels",
        "ours and formula",
        "statsmodels and formula",
    ]
    rows = [
        [
            record["order"],
            str(record["d"]),
            f"{record['keys']:,}",
            *(f"{far:.1e}" for far in (record["between"], *record["from_formula"].values())),
        ]
        for record in records
        if "between" in record
    ]
    yield markdown(head, rows)


def _bandwidth(records: list[Record]) -> Iterable[str]:
    head = ["leave-one-out bandwidth", "points", "", "seconds", "σ", "leave-one-out error"]
    rows = []
    for record in _named(records, "curve"):
        found = [f"{record['bandwidth']:.6g}", f"{record['left_out_error']:.8g}"] if "bandwidth" in record else ["", ""]
        rows.append([record["curve"], f"{record['points']:,}", record["who"], _cell(record), *found])
    yield markdown(head, rows)


def _dense(records: list[Record]) -> Iterable[str]:
    speeds = _some(records, what="speed")
    ours = _seconds(speeds, who=OURS)
    head = ["all keys count, float32", "fit and predict, s", "it ÷ ours", "error of range", "compiling, s"]
    rows = []
    for record in speeds:
        compiling = f"{record['compile_seconds']:.0f}" if "compile_seconds" in record else ""
        ratio = _times(_seconds([record]), ours)
        rows.append([record["who"], _cell(record), ratio, _error(record), compiling])
    yield markdown(head, rows)
    errors = _some(records, what="error")
    cases = list(dict.fromkeys((record["d"], record["range_over_bandwidth"]) for record in errors))
    head = ["largest error, float32", *(f"d = {size}, range/σ = {ratio:,}" for size, ratio in cases)]
    rows = []
    for who in dict.fromkeys(record["who"] for record in errors):
        own = {(record["d"], record["range_over_bandwidth"]): record for record in _some(errors, who=who)}
        rows.append([who, *(_far(own[case]) if case in own else "" for case in cases)])
    yield markdown(head, rows)


def _far(record: Record) -> str:
    if "not_run" in record:
        return _not_run(record)
    return f"{record['error']:.1e}" if record["error"] is not None else f"{record['not_finite']} not finite"


def _narrow(records: list[Record]) -> Iterable[str]:
    for record in _some(records, what="reach"):
        yield (
            f"Reaching 1 %: σ = {record['bandwidth']:.4g}; a ball of radius {record['radius']:.4g} holds "
            f"{100 * record['share_of_keys']:.3g} % of the keys and all but {record['share_of_weight_beyond']:.1e} "
            "of the weight, on average."
        )
    head = ["kernel and reach", "tolerance", "dtype", "fit, s", "first prediction, s", "error of range"]
    rows = []
    for record in _some(records, what="speed"):
        fit = f"{record['fit_seconds']['median']:.3g}"
        rows.append([record["who"], f"{record['tolerance']:g}", record["dtype"], fit, _cell(record), _error(record)])
    yield markdown(head, rows)


def _scale(records: list[Record]) -> Iterable[str]:
    head = ["keys, d = 2", "reaching", "dtype", "fit, s", "predict, s", "peak GiB", "of it the data"]
    rows = []
    for record in _some(records, what="keys"):
        names = ("fit_seconds", "predict_seconds", "peak_gib", "data_gib")
        cells = [_not_run(record), "", "", ""] if "not_run" in record else [f"{record[name]:.3g}" for name in names]
        rows.append([f"{record['keys']:,}", record["reaches"], record["dtype"], *cells])
    yield markdown(head, rows)
    head = ["a line through the times", "reaching", "s a million", "farthest point", "growth over the keys' own"]
    rows = [
        [
            record["of"].removesuffix("_seconds"),
            record["reaches"],
            f"{record['seconds_per_million']:.3g}",
            f"{100 * record['farthest_of_line']:.2g} %",
            f"{record['growth_over_proportional']:.3g}×",
        ]
        for record in _some(records, what="line")
    ]
    yield markdown(head, rows) if rows else ""


def _problems(records: list[Record]) -> Iterable[str]:
    counts = ("problems", "wrong", "negative", "zero", "infinite", "NaN", "none")
    head = ["small problems, linear order", "", *counts]
    rows = [[r["kind"], r["who"], *(str(r[name]) for name in counts)] for r in _named(records, "kind")]
    yield markdown(head, rows)
    reasons = {(r["who"], reason): None for r in _named(records, "kind") for reason in r["reasons"]}
    yield "\n".join(f"- {who}: {reason}" for who, reason in reasons)


def _linear(records: list[Record]) -> Iterable[str]:
    head = ["order", "keys", "queries", "dtype", "", "fit and predict, s", "error of range"]
    rows = [
        [
            record["order"],
            f"{record['keys']:,}",
            f"{record['queries']:,}",
            record["dtype"],
            record["who"],
            _cell(record),
            _error(record),
        ]
        for record in _named(records, "order")
    ]
    yield markdown(head, rows)


def _quality(records: list[Record]) -> Iterable[str]:
    found = {(record["table"], record["method"]): record for record in _named(records, "table")}
    tables = list(dict.fromkeys(table for table, _ in found))
    sizes = {
        table: next((f" ({r['rows']} × {r['columns']})" for r in _some(found.values(), table=table) if "rows" in r), "")
        for table in tables
    }
    parts: list[tuple[str, Callable[[Record], str]]] = [
        ("R², 5 folds", _r2),
        ("fitting to four folds, seconds", _fold_seconds("fit_seconds")),
        ("predicting the fifth, seconds", _fold_seconds("predict_seconds")),
    ]
    for what, cell in parts:
        rows = []
        for table in tables:
            own = [found.get((table, method)) for method in METHODS]
            rows.append([table + sizes[table], *(cell(record) if record else "" for record in own)])
        yield markdown([what, *METHODS], rows)
    notes = [(table, method, record["not_finite"]) for (table, method), record in found.items() if "r2" in record]
    yield "\n".join(
        f"- {table}, {method}: {count} predictions were no numbers" for table, method, count in notes if count
    )


def _r2(record: Record) -> str:
    if "not_run" in record:
        return _not_run(record)
    r2 = record["r2"]
    return f"{r2['mean']:.3f} ({r2['min']:.3f}–{r2['max']:.3f})"


def _fold_seconds(step: str) -> Callable[[Record], str]:
    return lambda record: "" if "not_run" in record else _spread(record[step])


def _named(records: list[Record], name: str) -> list[Record]:
    return [record for record in records if name in record]


def _cell(record: Record) -> str:
    return _spread(record["seconds"]) if "seconds" in record else _not_run(record)


def _spread(seconds: Record) -> str:
    if seconds["runs"] == 1:
        return f"{seconds['median']:.3g}"
    return f"{seconds['median']:.3g} ({seconds['min']:.3g}–{seconds['max']:.3g})"


def _not_run(record: Record) -> str:
    return f"not run: {record['not_run']}"


def _error(record: Record) -> str:
    error = record.get("error_of_range")
    return f"{error:.1e}" if error is not None else ""


SECTIONS: dict[str, Callable[[list[Record]], Iterable[str]]] = {
    "agreement": _agreement,
    "bandwidth": _bandwidth,
    "dense": _dense,
    "narrow": _narrow,
    "scale": _scale,
    "problems": _problems,
    "linear": _linear,
    "quality": _quality,
}


if __name__ == "__main__":
    if sys.argv[1:]:
        print(regression([read(Path(name)) for name in sys.argv[1:]]))
    else:
        update()
