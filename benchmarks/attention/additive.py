"""Time additive and distance attention: the implementations of dikkat and their peers, in turn, on the same inputs.

    python -m benchmarks.attention.additive [--only 8,256,256,128] [--quick] [--out FOLDER]

Every answer, values and gradients, is compared with float64 first; a wrong answer gets no time. Each framework runs in
a separate process (`kit/worker.py`), and the processes take turns. Runs that would need too much memory or time are
skipped, with a reason in the record.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kit.cases import HALF, OUTLIER, TIMES_4, Case
from benchmarks.kit.peers import EAGER, MATERIALISING, OURS, PEERS, WORKERS, running
from benchmarks.kit.report import RESULTS, spread, write
from benchmarks.kit.truth import Truth, truth
from benchmarks.kit.worker import FailedError, GoneError, Worker

Record = dict[str, Any]
PASSES = {False: "forward", True: "forward and backward"}
PACKAGES = ("triton", "numba", "jax", "pykeops")
# Limits of a run: seconds, and bytes in addition to its inputs.
PATIENCE, ROOM = 15.0, 8e9
HEADLINE, LARGE, LONG = Case(8, 256, 256, 128), Case(8, 1024, 1024, 128), Case(1, 8192, 8192, 64)
DISTANCE = Case(1, 20_000, 20_000, 3, d_v=1, task="distance")
# The most important first: a run that is out of time skips the rest. Variants run only with dikkat.
PLAN: dict[Case, tuple[str, ...]] = {
    HEADLINE: (TIMES_4, OUTLIER), DISTANCE: (), LARGE: (HALF,), LONG: (), Case(64, 32, 32, 256): (),
    Case(64, 1, 50, 512): (), Case(64, 10, 10, 32): (),
}  # fmt: skip
QUICK: dict[Case, tuple[str, ...]] = {
    Case(2, 37, 41, 16): (TIMES_4, OUTLIER, HALF),
    Case(1, 47, 53, 3, d_v=1, task="distance"): (),
}


@dataclass
class Forecast:
    """The expected memory and time of a run, from the bytes and seconds per pair feature of the previous run."""

    share: dict[tuple[str, str, bool], float] = field(default_factory=dict)
    pace: dict[tuple[str, str, bool], float] = field(default_factory=dict)

    def objection(self, case: Case, who: str, backward: bool) -> str | None:
        key = (case.task, who, backward)
        default_share = (3.0 if backward else 2.0) if who in MATERIALISING else 0.0
        needed = self.share.get(key, default_share) * case.pair_bytes
        if needed > ROOM:
            return f"would need some {needed / 1e9:.0f} GB"
        if self.pace.get(key, 0.0) * case.pair_features > PATIENCE:
            return f"too slow: expected more than {PATIENCE:.0f} s per run"
        return None

    def learn(self, case: Case, who: str, backward: bool, *, memory: float, seconds: float) -> None:
        key = (case.task, who, backward)
        if case.pair_bytes >= 2**26:  # for smaller cases, the allocator dominates
            self.share[key] = memory / case.pair_bytes
        if seconds > 0.05:
            self.pace[key] = seconds / case.pair_features


@dataclass
class Entry:
    """An implementation that computes a case, forward or with the backward pass."""

    worker: Worker
    case: Case
    who: str
    backward: bool
    objection: str | None = None
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    memory: float = 0.0
    seconds: float = 0.0
    samples: list[float] = field(default_factory=list)

    def ask(self, action: str, **arguments: Any) -> Any:
        return self.worker.ask(do=action, case=self.case.name, who=self.who, backward=self.backward, **arguments)

    def check(self, reference: Truth, folder: Path, forecast: Forecast) -> None:
        """Run the case once, check the answer, and estimate the time."""
        self.objection = forecast.objection(self.case, self.who, self.backward)
        if self.objection:
            return
        answer = folder / "answer.npz"
        self.memory = self.ask("run", save=str(answer))["bytes"]
        with np.load(answer) as file:
            self.errors = reference.errors(dict(file))
        wrong = [name for name, (error, allowed) in self.errors.items() if not error <= allowed]
        if wrong:
            self.objection = "disagrees with float64: " + ", ".join(wrong)
            return
        [self.seconds] = self.ask("measure", times=1, warm=False)
        if self.seconds >= 5:
            self.samples = [self.seconds]
        forecast.learn(self.case, self.who, self.backward, memory=self.memory, seconds=self.seconds)

    def rounds(self, budget: float) -> int:
        """Return the number of rounds within the budget, at least 3; 0 after one very long run."""
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

    def record(self, runs: str | None) -> Record:
        section = "distance" if self.case.task == "distance" else "shapes"
        entry = {"section": section, "device": "cpu", **self.case.to_dict(), "who": self.who}
        entry["pass"] = PASSES[self.backward]
        if runs:
            entry["runs"] = runs
        if self.errors:
            entry["error"] = {
                name: {"max": error, "allowed": allowed} for name, (error, allowed) in self.errors.items()
            }
        if self.objection or not self.samples:
            return entry | {"not_run": self.objection or "no time was left"}
        return entry | {"ms": spread([1e3 * sample for sample in self.samples])}


@dataclass
class Contest:
    """A case and its variants, which the workers compute in turn."""

    workers: list[Worker]
    forecast: Forecast
    entries: list[Entry] = field(default_factory=list)

    def hold(self, case: Case, variants: Iterable[str], names: Container[str], folder: Path, budget: float) -> Any:
        """Run the contest and return the records."""
        runs = {}
        for variation in [case, *(replace(case, variant=variant) for variant in variants)]:
            inputs = variation.inputs()
            runs[variation] = running(variation, inputs, "cpu")[0]
            self._enter(
                variation,
                inputs,
                names if variation == case else ("auto", runs[variation]),
                folder / f"{len(runs)}.npz",
            )
        for backward in PASSES:
            self._rounds([e for e in self.entries if e.backward == backward and not e.objection], budget)
        for worker in self.workers:
            with surviving():
                worker.ask(do="close")
        return [e.record(runs[e.case] if e.who == "auto" else None) for e in self.entries]

    def _enter(self, case: Case, inputs: dict[str, np.ndarray], names: Container[str], path: Path) -> None:
        """Open a case with all workers, and check the implementations in `names`."""
        reference = truth(case, inputs)
        np.savez(path, **inputs, check=reference.upstream)  # type: ignore[arg-type]
        for worker in self.workers:
            with surviving():
                for who in worker.ask(do="open", case=case.to_dict(), path=str(path)):
                    if who in names:
                        self._check(worker, case, who, reference, path.parent)

    def _check(self, worker: Worker, case: Case, who: str, reference: Truth, folder: Path) -> None:
        for backward in PASSES:
            entry = Entry(worker, case, who, backward)
            self.entries.append(entry)
            try:
                entry.check(reference, folder, self.forecast)
            except FailedError as error:
                entry.objection = f"failed: {error}"
            except GoneError as error:
                entry.objection = str(error)
                raise

    def _rounds(self, entries: list[Entry], budget: float) -> None:
        round_counts = [entry.rounds(budget) for entry in entries]
        for round_number in range(max(round_counts, default=0)):
            for entry, rounds in zip(entries, round_counts, strict=True):
                if round_number < rounds and not entry.objection:
                    try:
                        entry.measure()
                    except (FailedError, GoneError) as error:
                        entry.objection = str(error)


@contextmanager
def surviving() -> Iterator[None]:
    """Print the error of a failed worker and continue."""
    try:
        yield
    except (FailedError, GoneError) as error:
        print(f"  {error}", flush=True)


def peaks(cases: Iterable[Case], folder: Path) -> Iterator[Record]:
    """Yield the peak additional memory of a forward and backward pass on the CPU, each in a new process."""
    for case in cases:
        for who in [*running(case, case.inputs(), "cpu"), EAGER]:
            record = {"section": "memory", "device": "cpu", **case.to_dict(), "who": who, "pass": PASSES[True]}
            objection = Forecast().objection(case, who, True)
            if objection:
                yield record | {"not_run": objection}
                continue
            worker = Worker("torch")
            try:
                yield record | {"peak_mib": _peak(worker, case, who, folder) / 2**20}
            except (FailedError, GoneError) as error:
                yield record | {"not_run": str(error)}
            finally:
                worker.end()


def _peak(worker: Worker, case: Case, who: str, folder: Path) -> float:
    """Return the peak in bytes, after a small call that loads libraries and kernels."""
    small_case = replace(case, queries=min(case.queries, 128), keys=min(case.keys, 128), batch=1)
    for measured_case in (small_case, case):
        path, inputs = folder / "peak.npz", measured_case.inputs()
        np.savez(path, **inputs, check=inputs["upstream"])  # type: ignore[arg-type]
        worker.ask(do="open", case=measured_case.to_dict(), path=str(path))
        memory: float = worker.ask(do="run", case=measured_case.name, who=who, backward=True)["bytes"]
    return memory


def main() -> None:
    arguments = parse()
    deadline = time.monotonic() + 60 * arguments.minutes
    plan = QUICK if arguments.quick else PLAN
    if arguments.only:
        plan = {case: variants for case, variants in plan.items() if case.shape == arguments.only}
    with tempfile.TemporaryDirectory() as scratch:
        workers, results = recruit()
        try:
            large = [case for case in plan if arguments.quick or case.pair_features >= HEADLINE.pair_features]
            results += peaks(large, Path(scratch))
            forecast = Forecast()
            for case, variants in plan.items():
                if time.monotonic() > deadline:
                    results.append({"section": "absent", "worker": case.name, "why": "no time was left"})
                    continue
                contest = Contest(workers, forecast)
                results += contest.hold(case, variants, (*OURS, *PEERS), Path(scratch), arguments.seconds)
                path = save(results, arguments)  # keep the results of an interrupted run
                print(case.name, flush=True)
        finally:
            for worker in workers:
                worker.end()
            path = save(results, arguments)
    print(path)


def recruit() -> tuple[list[Worker], list[Record]]:
    """Return the available workers, and records of the missing ones."""
    workers = [Worker(name) for name in WORKERS]
    missing = {worker.name: worker.missing() for worker in workers if worker.missing()}
    absent = [
        {"section": "absent", "worker": name, "why": "not installed: " + ", ".join(packages)}
        for name, packages in missing.items()
    ]
    return [worker for worker in workers if worker.name not in missing], absent


def save(results: list[Record], arguments: argparse.Namespace) -> Path:
    return write("cpu", results, *PACKAGES, folder=arguments.out)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", type=shape, help="one shape: batch,queries,keys,features")
    parser.add_argument("--quick", action="store_true", help="tiny shapes and few rounds: does it run?")
    parser.add_argument("--seconds", type=float, default=1.2, help="for each, in each pass of each case")
    parser.add_argument("--minutes", type=float, default=12.0, help="after which no further shape is begun")
    parser.add_argument("--out", type=Path, help="folder; default benchmarks/results")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seconds = min(arguments.seconds, 0.02)
    if arguments.out is None:  # a quick run, or a part of one, is not a result
        partial = arguments.quick or arguments.only
        arguments.out = Path(tempfile.mkdtemp(prefix="additive-")) if partial else RESULTS
    return arguments


def shape(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    main()
