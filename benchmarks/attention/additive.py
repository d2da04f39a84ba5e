"""Additive and distance attention: this library's implementations and their peers, in one run, on the same inputs.

    python -m benchmarks.attention.additive [--device cuda] [--only 8,256,256,128] [--quick] [--out FOLDER]

Every answer, values and gradients, is held against float64 before its speed is measured; one that is off is said to be,
and has no speed. Each framework has a process of its own (`worker.py`), all of them alive, asked in turn, round by
round. What would take too much memory or time is not run, and the record says so. `tables.py` makes the tables.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from benchmarks.kit import tables
from benchmarks.kit.cases import HALF, OUTLIER, RAGGED, TIMES_4, Case
from benchmarks.kit.peers import EAGER, FORWARD_ONLY, MATERIALISING, OURS, PEERS, WORKERS, running
from benchmarks.kit.report import RESULTS, spread, write
from benchmarks.kit.truth import Truth, truth
from benchmarks.kit.worker import FailedError, GoneError, Worker

Record = dict[str, Any]
PASSES = {False: "forward", True: "forward and backward"}
PACKAGES = ("triton", "numba", "keras", "tensorflow-cpu", "jax", "pykeops")
# One run may take so many seconds, and so many bytes beyond its inputs.
PATIENCE, ROOM = 15.0, 8e9


@dataclass(frozen=True)
class Stage:
    """What is measured together: a case, and variants of it, in turn; `weight` more rounds for the headline."""

    section: str
    case: Case
    variants: tuple[str, ...] = ()
    among: tuple[str, ...] = ()  # who takes part, where not all do
    weight: float = 1.0

    @property
    def cases(self) -> list[Case]:
        return [self.case, *(replace(self.case, variant=variant) for variant in self.variants)]


HEADLINE, LARGE, LONG, STEP = (
    Case(8, 256, 256, 128),
    Case(8, 1024, 1024, 128),
    Case(1, 8192, 8192, 64),
    Case(64, 1, 50, 512),
)
# What is asked for first comes first: a run that is out of time begins no further.
SHAPES = [HEADLINE, STEP, LARGE, LONG, Case(64, 32, 32, 256), Case(64, 10, 10, 32)]
DISTANCE = Case(1, 20_000, 20_000, 3, d_v=1, task="distance")
GROWTH = [Case(1, length, length, 64) for length in (256, 512, 1024, 2048, 4096, 8192)]


def stages(device: str, dtype: str, quick: bool) -> list[Stage]:
    if quick:
        distance = Case(1, 47, 53, 3, d_v=1, task="distance")
        return [
            Stage("shapes", Case(2, 37, 41, 16), (TIMES_4, OUTLIER, HALF)),
            Stage("shapes", Case(3, 1, 11, 16)),
            Stage("distance", distance),
            Stage("growth", Case(1, 31, 31, 16), among=("auto", EAGER)),
        ]
    lengths = {LARGE: (HALF, RAGGED)}
    weights = {HEADLINE: 3.0}
    plan = [
        Stage("shapes", case, (TIMES_4, OUTLIER, *lengths.get(case, ())), weight=weights.get(case, 1.0))
        for case in SHAPES
    ]
    if dtype == "float32":
        plan.insert(2, Stage("distance", DISTANCE, weight=2.0))
    plan += [Stage("growth", case, among=("auto", EAGER)) for case in GROWTH]
    return [replace(stage, case=replace(stage.case, dtype=dtype)) for stage in plan]


# What a run will take ------------------------------------------------------------------------------------------------


@dataclass
class Forecast:
    """What to expect of a run, by what the last one took for a pair-feature. It refuses runs, and is never reported."""

    room: float = ROOM
    share: dict[tuple[str, str, bool], float] = field(default_factory=dict)
    pace: dict[tuple[str, str, bool], float] = field(default_factory=dict)

    def objection(self, case: Case, who: str, backward: bool) -> str | None:
        key = (case.task, who, backward)
        guess = (3.0 if backward else 2.0) if who in MATERIALISING else 0.0
        needed = self.share.get(key, guess) * case.pair_bytes
        if needed > self.room:
            return f"would need some {needed / 1e9:.0f} GB"
        if self.pace.get(key, 0.0) * case.pair_features > PATIENCE:
            return f"too slow: more than {PATIENCE:.0f} s a run are to be expected"
        return None

    def learn(self, case: Case, who: str, backward: bool, *, taken: float, seconds: float) -> None:
        key = (case.task, who, backward)
        if case.pair_bytes >= 2**26:  # below, an allocator's own ways are most of it
            self.share[key] = taken / case.pair_bytes
        if seconds > 0.05:
            self.pace[key] = seconds / case.pair_features


# One contest ---------------------------------------------------------------------------------------------------------


@dataclass
class Entry:
    """Somebody who computes a case, in one pass."""

    worker: Worker
    case: Case
    who: str
    backward: bool
    objection: str | None = None
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    taken: float = 0.0
    seconds: float = 0.0
    samples: list[float] = field(default_factory=list)

    def ask(self, what: str, **more: Any) -> Any:
        return self.worker.ask(do=what, case=self.case.name, who=self.who, backward=self.backward, **more)

    def check(self, right: Truth, folder: Path, forecast: Forecast) -> None:
        """Whether it can run and is right; about how long it takes."""
        self.objection = forecast.objection(self.case, self.who, self.backward)
        if self.objection:
            return
        answer = folder / "answer.npz"
        self.taken = self.ask("run", save=str(answer))["bytes"]
        with np.load(answer) as file:
            self.errors = right.errors(dict(file))
        off = [name for name, (error, allowed) in self.errors.items() if not error <= allowed]
        if off:
            self.objection = "disagrees with float64: " + ", ".join(off)
            return
        [self.seconds] = self.ask("measure", times=1, warm=False)
        if self.seconds >= 5:
            self.samples = [self.seconds]
        forecast.learn(self.case, self.who, self.backward, taken=self.taken, seconds=self.seconds)

    def rounds(self, budget: float) -> int:
        """As many as the budget allows, but no fewer than a spread needs; none where one run has taken long enough."""
        if self.samples:
            return 0
        return min(15, max(3, int(budget / (self.seconds * (self._times + self._warm)))))

    def measure(self) -> None:
        self.samples.append(statistics.median(self.ask("measure", times=self._times, warm=self._warm)))

    @property
    def _times(self) -> int:
        return min(30, max(1, int(0.04 / self.seconds)))

    @property
    def _warm(self) -> bool:
        return self.seconds < 0.5

    def record(self, section: str, device: str, runs: str | None) -> Record:
        made = {"section": section, "device": device, **self.case.to_dict(), "who": self.who}
        made["pass"] = PASSES[self.backward]
        if runs:
            made["runs"] = runs
        if self.errors:
            made["error"] = {name: {"max": error, "allowed": allowed} for name, (error, allowed) in self.errors.items()}
        if self.objection or not self.samples:
            return made | {"not_run": self.objection or "no time was left"}
        made["ms"] = spread([1e3 * sample for sample in self.samples])
        made["pair_features_per_second"] = self.case.pair_features * 1e3 / made["ms"]["median"]
        if device == "cuda":  # elsewhere a process that has run others cannot tell
            made["peak_mib"] = self.taken / 2**20
        return made


@dataclass
class Contest:
    """A stage, with the workers that take part."""

    stage: Stage
    workers: list[Worker]
    forecast: Forecast
    device: str
    peers: tuple[str, ...]
    entries: list[Entry] = field(default_factory=list)
    runs: dict[Case, str] = field(default_factory=dict)

    def hold(self, folder: Path, budget: float) -> list[Record]:
        for case in self.stage.cases:
            self._enter(case, folder, self._takes_part(case))
        for backward in PASSES:
            ready = [e for e in self.entries if e.backward == backward and not e.objection]
            self._rounds(ready, budget * self.stage.weight)
        for worker in self.workers:
            with surviving():
                worker.ask(do="close")
        return [
            e.record(self.stage.section, self.device, self.runs[e.case] if e.who == "auto" else None)
            for e in self.entries
        ]

    def _takes_part(self, case: Case) -> Container[str]:
        """In a variant: what "auto" runs, the fastest peer of each pass, and our others where they are no burden."""
        if case == self.stage.case:
            return self.stage.among or (*OURS, *self.peers)
        heavy = {e.who for e in self.entries if e.objection or e.seconds >= 1}
        return (set(OURS) - heavy) | {"auto", self.runs[self.stage.case]} | self._fastest()

    def _enter(self, case: Case, folder: Path, among: Container[str]) -> None:
        """Open a case with all workers, and check those who take part."""
        inputs = case.inputs()
        self.runs[case] = running(case, inputs, self.device)[0]
        right = truth(case, inputs, self.device)
        path = folder / f"{len(self.runs)}.npz"
        np.savez(path, **inputs, check=right.upstream)  # type: ignore[arg-type]
        for worker in self.workers:
            with surviving():
                names = worker.ask(do="open", case=case.to_dict(), path=str(path))
                for who in names:
                    if who in among:
                        self._check(worker, case, who, right, folder)

    def _check(self, worker: Worker, case: Case, who: str, right: Truth, folder: Path) -> None:
        for backward in [False] if who in FORWARD_ONLY else PASSES:
            entry = Entry(worker, case, who, backward)
            self.entries.append(entry)
            try:
                entry.check(right, folder, self.forecast)
            except FailedError as error:
                entry.objection = f"failed: {error}"
            except GoneError as error:
                entry.objection = str(error)
                raise

    def _rounds(self, entries: list[Entry], budget: float) -> None:
        wanted = {id(entry): entry.rounds(budget) for entry in entries}
        for turn in range(max(wanted.values(), default=0)):
            for entry in entries:
                if turn < wanted[id(entry)] and not entry.objection:
                    try:
                        entry.measure()
                    except (FailedError, GoneError) as error:
                        entry.objection = str(error)

    def _fastest(self) -> set[str]:
        """The fastest peer of each pass, which alone takes part in the variants."""
        found = set()
        for backward in PASSES:
            able = [e for e in self.entries if e.backward == backward and not e.objection and e.who not in OURS]
            found |= {min(able, key=lambda e: e.seconds).who} if able else set()
        return found


@contextmanager
def surviving() -> Iterator[None]:
    """A peer that dies does not take the run with it; its records say what happened."""
    try:
        yield
    except (FailedError, GoneError) as error:
        print(f"  {error}", flush=True)


# Memory --------------------------------------------------------------------------------------------------------------


def peaks(plan: Iterable[Stage], folder: Path, log: TextIO) -> Iterator[Record]:
    """Peak extra memory of a forward and backward pass on the CPU, in a fresh process each, warmed up on little.

    Of all our own where a shape is large, and of what "auto" runs as it grows; of eager wherever it fits.
    """
    wanted: dict[tuple[Case, str], None] = {}
    for stage in plan:
        ours = running(stage.case, stage.case.inputs(), "cpu")[: 1 if stage.section == "growth" else None]
        wanted |= {(stage.case, who): None for who in [*ours, EAGER]}
    for case, who in wanted:
        record = {"section": "memory", "device": "cpu", **case.to_dict(), "who": who, "pass": PASSES[True]}
        objection = Forecast().objection(case, who, True)
        if objection:
            yield record | {"not_run": objection}
            continue
        worker = Worker("torch", log=log)
        try:
            yield record | {"peak_mib": _peak(worker, case, who, folder) / 2**20}
        except (FailedError, GoneError) as error:
            yield record | {"not_run": str(error)}
        finally:
            worker.end()


def _peak(worker: Worker, case: Case, who: str, folder: Path) -> float:
    little = replace(case, queries=min(case.queries, 128), keys=min(case.keys, 128), batch=1)
    for one in (little, case):
        path, inputs = folder / "peak.npz", one.inputs()
        np.savez(path, **inputs, check=inputs["upstream"])  # type: ignore[arg-type]
        worker.ask(do="open", case=one.to_dict(), path=str(path))
        taken: float = worker.ask(do="run", case=one.name, who=who, backward=True)["bytes"]
    return taken


def compile_formulas(worker: Worker, plan: Iterable[Stage], folder: Path) -> None:
    """KeOps compiles each formula for half a minute, once a machine: before anything is measured."""
    path = folder / "formulas.npz"
    for case in {replace(s.case, batch=2, queries=5, keys=7): None for s in plan if not s.among}:
        inputs = case.inputs()
        np.savez(path, **inputs, check=inputs["upstream"])  # type: ignore[arg-type]
        with surviving():
            worker.ask(do="open", case=case.to_dict(), path=str(path))
            for backward in PASSES:
                worker.ask(do="run", case=case.name, who="KeOps", backward=backward)


# The run -------------------------------------------------------------------------------------------------------------


def main() -> None:
    arguments = parse()
    device, deadline = arguments.device, time.monotonic() + 60 * arguments.minutes
    dtypes = ["bfloat16", "float32"] if device == "cuda" else ["float32"]
    plan = [stage for dtype in dtypes for stage in stages(device, dtype, arguments.quick)]
    if arguments.only:
        plan = [stage for stage in plan if stage.case.shape == arguments.only]
    if device == "cuda":  # time on such a machine is short: first what matters most
        plan.sort(key=lambda stage: stage.case.shape != LARGE.shape)
    with tempfile.TemporaryDirectory() as scratch, (Path(scratch) / "log").open("w") as log:
        workers, absent = recruit(device, None if arguments.verbose else log)
        results: list[Record] = [{"section": "absent", "worker": name, "why": why} for name, why in absent.items()]
        try:
            run(plan, workers, results, arguments, deadline, Path(scratch), log)
        finally:
            for worker in workers:
                worker.end()
            path = save(results, arguments)
    print(tables.table(tables.read(path)))
    print(path)
    if arguments.out == RESULTS:
        tables.update()


def run(
    plan: list[Stage],
    workers: list[Worker],
    results: list[Record],
    arguments: argparse.Namespace,
    deadline: float,
    scratch: Path,
    log: TextIO,
) -> None:
    prepare = [
        threading.Thread(target=compile_formulas, args=(worker, plan, scratch), daemon=True)
        for worker in workers
        if worker.name == "keops" and "KeOps" in arguments.peers
    ]
    for thread in prepare:
        thread.start()
    if arguments.device == "cpu":  # memory is the same however busy the machine is
        print("memory", flush=True)
        least = 0 if arguments.quick else HEADLINE.pair_features
        large = [s for s in plan if s.case.pair_features >= least or s.section == "growth"]
        results.extend(peaks(large, scratch, log))
    for thread in prepare:
        thread.join()
    forecast = Forecast() if arguments.device == "cpu" else Forecast(0.7 * torch.cuda.mem_get_info()[0])
    for stage in plan:
        if time.monotonic() > deadline:
            results.append({"section": "absent", "worker": stage.case.name, "why": "no time was left"})
            continue
        start = time.perf_counter()
        contest = Contest(stage, workers, forecast, arguments.device, arguments.peers)
        results.extend(contest.hold(scratch, arguments.seconds))
        save(results, arguments)  # what is cut short has not been in vain
        print(f"{stage.section}: {stage.case.name}, {time.perf_counter() - start:.0f} s", flush=True)


def recruit(device: str, log: TextIO | None) -> tuple[list[Worker], dict[str, str]]:
    """The workers that can be had, and why the others cannot. On a GPU all that is compared is PyTorch's."""
    workers = [Worker(name, device, log) for name in WORKERS if device == "cpu" or name == "torch"]
    absent = {worker.name: "not installed: " + ", ".join(worker.missing()) for worker in workers if worker.missing()}
    return [worker for worker in workers if worker.name not in absent], absent


def save(results: list[Record], arguments: argparse.Namespace) -> Path:
    name = torch.cuda.get_device_name().lower().replace(" ", "-") if arguments.device == "cuda" else "cpu"
    return write(name, results, *PACKAGES, folder=arguments.out)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", type=shape, help="one shape: batch,queries,keys,features")
    parser.add_argument("--peers", type=names, default=PEERS, help="these alone, by ';': " + "; ".join(PEERS))
    parser.add_argument("--quick", action="store_true", help="tiny shapes and few rounds: does it run?")
    parser.add_argument("--verbose", action="store_true", help="show what the frameworks print")
    parser.add_argument("--seconds", type=float, default=1.2, help="for each, in each pass of each case")
    parser.add_argument("--minutes", type=float, default=12.0, help="after which no further shape is begun")
    parser.add_argument("--out", type=Path, help="folder; default benchmarks/results, whose tables go to docs/")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seconds = min(arguments.seconds, 0.02)
    if arguments.out is None:  # a quick run, or a part of one, is not a result
        partial = arguments.quick or arguments.only or arguments.peers != PEERS
        arguments.out = Path(tempfile.mkdtemp(prefix="additive-")) if partial else RESULTS
    return arguments


def shape(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(";"))


if __name__ == "__main__":
    main()
