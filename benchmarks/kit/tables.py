"""The tables of docs/benchmarks.md, from the newest records of benchmarks/results.

    python -m benchmarks.kit.tables [RECORD.json ...]

Without arguments it writes them into the page; with records, it prints theirs.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.kit.cases import HALF, OUTLIER, PLAIN, RAGGED, TIMES_4
from benchmarks.kit.peers import EAGER, OURS, SDPA
from benchmarks.kit.processes import ROOT
from benchmarks.kit.report import RESULTS

PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- additive:begin -->", "<!-- additive:end -->"
TRANSLATOR = "<!-- translator:begin -->", "<!-- translator:end -->"
FORWARD, BOTH = "forward", "forward and backward"
HEADLINE, LARGE, LONG, STEP = (8, 256, 256, 128), (8, 1024, 1024, 128), (1, 8192, 8192, 64), (64, 1, 50, 512)
NAMED_BY_DATE = len("2026-01-02.json")
NO_GPU = "No GPU could be had: nothing was measured on one, and its rows are empty."
Record = dict[str, Any]


class Run:
    """One file: where and when, and the records by what they are of."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.environment: dict[str, Any] = content["environment"]
        self.records: list[Record] = content["results"]

    def find(self, **wanted: Any) -> Iterable[Record]:
        return (record for record in self.records if all(_get(record, name) == kept for name, kept in wanted.items()))

    def ms(self, **wanted: Any) -> float | None:
        """The median of the one record of this description; None where nothing was measured."""
        return next((record["ms"]["median"] for record in self.find(**wanted) if "ms" in record), None)

    def fastest_peer(self, **wanted: Any) -> float | None:
        peers = (record for record in self.find(**wanted) if "ms" in record and record["who"] not in OURS)
        return min((record["ms"]["median"] for record in peers), default=None)


def _get(record: Record, name: str) -> Any:
    if name == "shape":
        found = tuple(record.get(part) for part in ("batch", "queries", "keys", "features"))
        return found
    return record.get(name)


def read(path: Path) -> Run:
    return Run(json.loads(path.read_text()))


def update(page: Path = PAGE, results: Path = RESULTS) -> None:
    """Write the tables of the newest records between the page's markers."""
    cpu, cuda = sorted(results.glob("cpu-*.json")), sorted(results.glob("nvidia-*.json"))
    made = table(read(cpu[-1]) if cpu else None, read(cuda[-1]) if cuda else None)
    text = between(page.read_text(), BEGIN, END, made, page)
    newest = {path.name[:-NAMED_BY_DATE]: path for path in sorted(results.glob("translator-*.json"))}
    if newest:
        text = between(text, *TRANSLATOR, translator([read(path) for path in newest.values()]), page)
    page.write_text(text)


def between(text: str, begin: str, end: str, made: str, page: Path) -> str:
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    if not rest or not after:
        raise ValueError(f"{page}: has no {begin} … {end}")
    return f"{before}{begin}\n{made}\n{end}{after}"


def table(cpu: Run | None = None, cuda: Run | None = None) -> str:
    """Everything, in Markdown. Either may be of any device."""
    if cpu is not None and cuda is None and _on_gpu(cpu):
        cpu, cuda = None, cpu
    parts = [provenance(run) for run in (cpu, cuda) if run]
    if cuda is None:
        parts.append(NO_GPU)
    parts.append(_goals(cpu, cuda))
    for run in (cpu, cuda):
        if run:
            parts += _speeds(run)
            parts += [part for part in (_memory(run), _lengths(run), _growth(run), _absent(run)) if part]
    return "\n\n".join(parts)


def _on_gpu(run: Run) -> bool:
    return any(run.find(device="cuda"))


def provenance(run: Run) -> str:
    made = run.environment
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items())
    machine = made["device"] if _on_gpu(run) else f"{made['cores']} cores of {made['cpu']}"
    return f"{machine}; {made['date']}, commit {made['commit']}; Python {made['python']}, {versions}."


# What it must reach --------------------------------------------------------------------------------------------------


def _goals(cpu: Run | None, cuda: Run | None) -> str:
    rows = [(what, wanted, _or_empty(measured, cpu)) for what, wanted, measured in CPU_GOALS]
    rows += [(what, wanted, _or_empty(measured, cuda)) for what, wanted, measured in CUDA_GOALS]
    return markdown(["`auto`, medians", "wanted", "measured"], rows)


def _or_empty(measured: Callable[[Run], str], run: Run | None) -> str:
    return measured(run) if run else ""


def _ratio(above: float | None, below: float | None, sign: str = "×") -> str:
    return "" if above is None or below is None else f"{above / below:.3g}{sign}"


def _against(
    peer: str | None, step: str, shape: tuple[int, ...], who: str = "auto", **more: Any
) -> Callable[[Run], str]:
    """Their time over ours; `peer` None is the fastest that ran."""

    def measured(run: Run) -> str:
        wanted = {"pass": step, "shape": shape, "variant": PLAIN, **more}
        sections = [{"section": section} for section in ("shapes", "distance")]
        for section in sections:
            ours = run.ms(**wanted, **section, who=who)
            theirs = run.fastest_peer(**wanted, **section) if peer is None else run.ms(**wanted, **section, who=peer)
            if ours and theirs:
                return _ratio(theirs, ours)
        return ""

    return measured


def _beside_plain(variant: str, step: str, shape: tuple[int, ...]) -> Callable[[Run], str]:
    def measured(run: Run) -> str:
        times = [
            run.ms(**{"pass": step}, section="shapes", shape=shape, variant=which, who="auto")
            for which in (variant, PLAIN)
        ]
        return _ratio(*times)

    return measured


def _peak(run: Run) -> str:
    found = run.find(section="memory", shape=LONG, task="additive", who="triton" if _on_gpu(run) else "numba")
    return next((f"{record['peak_mib']:.0f} MiB" for record in found if "peak_mib" in record), "")


def _rate(dtype: str) -> Callable[[Run], str]:
    def measured(run: Run) -> str:
        found = run.find(section="shapes", shape=LARGE, who="auto", variant=PLAIN, dtype=dtype, **{"pass": FORWARD})
        return next((f"{record['pair_features_per_second']:.2e}" for record in found if "ms" in record), "")

    return measured


Goal = tuple[str, str, Callable[[Run], str]]
CPU_GOALS: list[Goal] = [
    (f"CPU, {HEADLINE}, {FORWARD}, against eager", "≥ 80×", _against(EAGER, FORWARD, HEADLINE)),
    ("… against the fastest peer", "≥ 5×", _against(None, FORWARD, HEADLINE)),
    (f"… {BOTH}, against eager", "≥ 50×", _against(EAGER, BOTH, HEADLINE)),
    ("… against the fastest peer", "≥ 8×", _against(None, BOTH, HEADLINE)),
    ("… with one outlier, forward, beside plain", "≤ 1.3×", _beside_plain(OUTLIER, FORWARD, HEADLINE)),
    (f"… with one outlier, {BOTH}, beside plain", "≤ 1.3×", _beside_plain(OUTLIER, BOTH, HEADLINE)),
    ("… with inputs × 4, forward, beside plain", "≤ 1.5×", _beside_plain(TIMES_4, FORWARD, HEADLINE)),
    (f"… with inputs × 4, {BOTH}, beside plain", "≤ 1.5×", _beside_plain(TIMES_4, BOTH, HEADLINE)),
    (
        f"CPU, decoder's step {STEP}, `attend_memory` against eager",
        "≥ 30×",
        _against(EAGER, FORWARD, STEP, "attend_memory"),
    ),
    ("… `attend` against eager", "", _against(EAGER, FORWARD, STEP)),
    (
        "CPU, distance, 20,000 × 20,000, d = 3, forward, against SDPA on padded features",
        "≥ 2×",
        _against(SDPA, FORWARD, (1, 20_000, 20_000, 3), task="distance"),
    ),
    (f"CPU, {LONG}, {BOTH}, peak extra memory", "≤ 64 MiB", _peak),
    (f"CPU, {LARGE}, half of the keys valid, forward", "≤ 0.6×", _beside_plain(HALF, FORWARD, LARGE)),
    (f"… {BOTH}", "≤ 0.6×", _beside_plain(HALF, BOTH, LARGE)),
]
CUDA_GOALS: list[Goal] = [
    goal
    for dtype in ("bfloat16", "float32")
    for goal in (
        (f"GPU, {dtype}, {LARGE}, forward, pair-features a second", "≥ 3.9e+12", _rate(dtype)),
        (f"… {BOTH}, against eager", "≥ 10×", _against(EAGER, BOTH, LARGE, dtype=dtype)),
        ("… against `torch.compile`", "≥ 3×", _against("torch.compile", BOTH, LARGE, dtype=dtype)),
        ("… against the fastest peer", "", _against(None, BOTH, LARGE, dtype=dtype)),
    )
]


# The tables ----------------------------------------------------------------------------------------------------------


def _speeds(run: Run) -> Iterable[str]:
    """One table a shape: who, and for each pass the time, the rate and how it compares with eager."""
    head = ["", "inputs"]
    for step in (FORWARD, BOTH):
        head += [f"{step}, ms", "10⁹/s", "eager ÷ it"]
    if _on_gpu(run):
        head.append("peak MiB")
    groups = dict.fromkeys(
        (record["task"], _get(record, "shape"), record["dtype"])
        for section in ("shapes", "distance")
        for record in run.find(section=section)
    )
    for task, shape, dtype in sorted(groups, key=lambda group: (group[0], math.prod(group[1]), group[2])):
        rows = list(_rows(run, task, shape, dtype))
        yield f"**{task} {shape}, {dtype}**\n\n" + markdown(head, [row[: len(head)] for row in rows])


def _rows(run: Run, task: str, shape: tuple[int, ...], dtype: str) -> Iterable[list[str]]:
    found = [r for r in run.records if r["section"] in ("shapes", "distance") and r.get("task") == task]
    found = [
        r for r in found if _get(r, "shape") == shape and r["dtype"] == dtype and r["variant"] not in (HALF, RAGGED)
    ]
    eager = {r["pass"]: r["ms"]["median"] for r in found if r["who"] == EAGER and r["variant"] == PLAIN and "ms" in r}
    entrants = dict.fromkeys((r["who"], r["variant"]) for r in found)
    variants = list(dict.fromkeys(variant for _, variant in entrants))
    for who, variant in sorted(entrants, key=lambda one: (variants.index(one[1]), one[0] not in OURS)):
        row = [_name(who, found), "" if variant == PLAIN else variant]
        peak = ""
        for step in (FORWARD, BOTH):
            record = next((r for r in found if (r["who"], r["variant"], r["pass"]) == (who, variant, step)), None)
            row += _cells(record, eager.get(step) if variant == PLAIN else None)
            peak = f"{record['peak_mib']:.0f}" if record and "peak_mib" in record else peak
        yield [*row, peak]


def _cells(record: Record | None, eager: float | None) -> list[str]:
    if record is None:
        return ["", "", ""]
    if "ms" not in record:
        return [_why_not(record), "", ""]
    rate = record["pair_features_per_second"] / 1e9
    return [_spread(record["ms"]), f"{rate:.3g}", _ratio(eager, record["ms"]["median"])]


def _why_not(record: Record) -> str:
    return f"not run: {record['not_run']}"


def _memory(run: Run) -> str:
    rows = [
        [f"{record['task']} {_get(record, 'shape')}", _name(record["who"]), _mib(record)]
        for record in run.find(section="memory")
    ]
    return markdown(["peak extra memory, forward and backward", "", "MiB"], rows) if rows else ""


def _mib(record: Record) -> str:
    return f"{record['peak_mib']:.0f}" if "peak_mib" in record else _why_not(record)


def _lengths(run: Run) -> str:
    rows = []
    for record in run.find(section="shapes"):
        if record["variant"] in (HALF, RAGGED) and "ms" in record:
            same = {name: record[name] for name in ("task", "dtype", "who", "pass")}
            full = run.ms(section="shapes", shape=_get(record, "shape"), variant=PLAIN, **same)
            cost = _ratio(record["ms"]["median"], full)
            rows.append(
                [
                    f"{_get(record, 'shape')}, {record['dtype']}",
                    record["variant"],
                    _name(record["who"]),
                    record["pass"],
                    cost,
                ]
            )
    return markdown(["`valid_lens`", "", "", "", "beside all valid"], rows) if rows else ""


def _growth(run: Run) -> str:
    """Time and memory of what "auto" runs, and of eager, as n = m grows."""
    found = list(run.find(section="growth"))
    rows = []
    for shape in dict.fromkeys(_get(record, "shape") for record in found):
        for dtype in dict.fromkeys(record["dtype"] for record in found):
            for who in ("auto", EAGER):
                same = [r for r in found if (_get(r, "shape"), r["dtype"], r["who"]) == (shape, dtype, who)]
                if not same:
                    continue
                runs = next((r["runs"] for r in same if "runs" in r), who)
                memory = next((_mib(r) for r in run.find(section="memory", shape=shape, task="additive", who=runs)), "")
                times = [next((_cells(r, None)[0] for r in same if r["pass"] == step), "") for step in (FORWARD, BOTH)]
                peak = next((f"{r['peak_mib']:.0f}" for r in same if "peak_mib" in r and r["pass"] == BOTH), memory)
                rows.append([f"{shape[1]:,}", dtype, _name(who, same), *times, peak])
    head = ["n = m, (1, n, m, 64)", "", "", "forward, ms", f"{BOTH}, ms", "peak MiB"]
    return markdown(head, rows) if rows else ""


def _absent(run: Run) -> str:
    return "\n".join(f"- {record['worker']}: {record['why']}" for record in run.find(section="absent"))


def _name(who: str, records: Iterable[Record] = ()) -> str:
    if who not in OURS:
        return who
    runs = next((record["runs"] for record in records if record["who"] == who and "runs" in record), "")
    return f"`{who}`" + (f" ({runs})" if runs else "")


def _spread(ms: dict[str, float]) -> str:
    return f"{_number(ms['median'])} ({_number(ms['min'])}–{_number(ms['max'])})"


def _number(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def markdown(head: list[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# The translator ------------------------------------------------------------------------------------------------------


def translator(runs: list[Run]) -> str:
    """The tables of `translation.speed`, part by part, sizes side by side."""
    made, before = [], ""
    for part, section in TRANSLATOR_PARTS.items():
        found = [run for run in runs if any(run.find(part=part))]
        where = "\n\n".join(dict.fromkeys(f"{provenance(r)} Threads: {r.environment['torch_threads']}." for r in found))
        if where and where != before:
            made.append(where)
        if found:
            made.append(section([record for run in found for record in run.find(part=part)]))
            before = where
    return "\n\n".join(made)


def _steps(what: str) -> Callable[[list[Record]], str]:
    """Tokens a second, and each against the first of its size."""

    def section(records: list[Record]) -> str:
        first: dict[str, float | None] = {}
        rows = []
        for record in records:
            spread = record.get("tokens_per_second")
            base = first.setdefault(record["size"], spread["median"] if spread else None)
            ratio = _ratio(spread["median"], base) if spread and base else ""
            cells = [_spread(spread) if spread else _why_not(record), ratio]
            compiled = f"{record['compile_seconds']:.0f}" if "compile_seconds" in record else ""
            rows.append([record["size"], record["who"], *cells, compiled])
        return _without_empty([what, "", "target tokens a second", "beside the first", "compiling, s"], rows)

    return section


def _stages(records: list[Record]) -> str:
    stages = dict.fromkeys(record["stage"] for record in records if "stage" in record)
    rows = []
    for size, who in dict.fromkeys((record["size"], record["who"]) for record in records):
        same = [record for record in records if (record["size"], record["who"]) == (size, who)]
        times = {record["stage"]: _spread(record["ms"]) for record in same if "ms" in record}
        cells = [times.get(stage, "") for stage in stages]
        rows.append([size, who, *cells] if times else [size, who, _why_not(same[0]), *cells[1:]])
    return markdown(["forward and backward, ms", "", *stages], rows)


def _step_memory(records: list[Record]) -> str:
    head = ["peak extra memory of a step", "", "MiB"]
    return markdown(head, [[record["size"], record["who"], _mib(record)] for record in records])


def _decoding(records: list[Record]) -> str:
    head = ["decoding", "batch", "beam", "", "sentences a second", "tokens a second", "same translations"]
    rows = []
    for record in records:
        speeds = ("sentences_per_second", "tokens_per_second")
        cells = [_why_not(record), ""] if "not_run" in record else [_spread(record[speed]) for speed in speeds]
        place = [str(record.get(name, "")) for name in ("batch", "beam")]
        rows.append([record["size"], *place, record["who"], *cells, str(record.get("equal", ""))])
    return markdown(head, rows)


def _equality(records: list[Record]) -> str:
    head = ["against the loop", "", "steps", "largest difference of losses", "loss, first and last"]
    rows = [
        [
            record["who"],
            record["dtype"],
            str(record["steps"]),
            f"{record['largest_difference']:.1e}",
            f"{record['first_loss']:.3f}, {record['last_loss']:.3f}",
        ]
        for record in records
    ]
    return markdown(head, rows)


def _without_empty(head: list[str], rows: list[list[str]]) -> str:
    """A table without the columns in which nothing stands."""
    kept = [index for index in range(len(head)) if any(row[index] for row in rows)]
    return markdown([head[index] for index in kept], [[row[index] for index in kept] for row in rows])


TRANSLATOR_PARTS: dict[str, Callable[[list[Record]], str]] = {
    "training": _steps("training"),
    "compiled": _steps("training, and compilers"),
    "stages": _stages,
    "without": _steps("training"),
    "memory": _step_memory,
    "decoding": _decoding,
    "loop": _steps("this library's own model"),
    "lightning": _steps("this library's own model"),  # records from when `train` ran on Lightning
    "equality": _equality,
}


if __name__ == "__main__":
    if sys.argv[1:]:
        runs = [read(Path(name)) for name in sys.argv[1:]]
        translators = [run for run in runs if any("part" in record for record in run.records)]
        print("\n\n".join(table(run) for run in runs if run not in translators))
        print(translator(translators))
    else:
        update()
