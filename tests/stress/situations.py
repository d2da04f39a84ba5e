"""Right answers, no crash and a fair slowdown where life is hard.

    python -m tests.stress.situations [auto | numba | chunked | ...]

Two Python threads at once; a forked DataLoader's workers, after the parent has computed; an installation and a home
that cannot be written to; all cores busy with other work. Each situation is a process of its own, so that one that
crashes or hangs is one that failed. All answers are held against float64.
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.kit import processes
from benchmarks.kit.cases import Case
from benchmarks.kit.peers import running, torch_ways
from benchmarks.kit.report import spread, write
from benchmarks.kit.truth import truth

CASE = Case(8, 128, 256, 128)
CALLS = 20
LIMIT = 180  # seconds for a situation


class Work:
    """One call, over and over: how long each took, and whether all were right."""

    def __init__(self, impl: str) -> None:
        inputs = CASE.inputs()
        self._right = truth(CASE, inputs)
        self._peer = torch_ways(CASE, inputs, "cpu")[impl]()
        self._upstream = self._peer.array(self._right.upstream)

    def forward(self) -> float:
        return self._checked(lambda: [self._peer.forward()])

    def both(self) -> float:
        return self._checked(lambda: list(self._peer.both(self._upstream)))

    def many(self, calls: int = CALLS) -> list[float]:
        return [self.both() for _ in range(calls)]

    def _checked(self, run: Callable[[], list[Any]]) -> float:
        start = time.perf_counter()
        answer = run()
        seconds = time.perf_counter() - start
        arrays: dict[str, np.ndarray] = {
            name: self._peer.numpy(array) for name, array in zip(["output", *CASE.leaves], answer, strict=False)
        }
        for name, (error, allowed) in self._right.errors(arrays).items():
            if not error <= allowed:
                raise ArithmeticError(f"{name}: error {error:.3g}, allowed {allowed:.3g}")
        return seconds


# The situations: each returns seconds a call -------------------------------------------------------------------------


def alone(work: Work) -> list[float]:
    return work.many()


def two_threads(work: Work) -> list[float]:
    samples: list[float] = []
    problems: list[BaseException] = []
    together = threading.Barrier(2)

    def one() -> None:
        try:
            together.wait()
            samples.extend(work.many())
        except BaseException as problem:  # a thread keeps its exceptions to itself
            problems.append(problem)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return samples


class _Items(Dataset[float]):
    """PyTorch itself refuses a backward pass in a fork of a process that has had one: forward only."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __len__(self) -> int:
        return CALLS

    def __getitem__(self, index: int) -> float:
        return self._work.forward()


def forked_loader(work: Work) -> list[float]:
    # Where one core is all there is, it warns.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    loader = DataLoader(_Items(work), batch_size=None, num_workers=2, multiprocessing_context="fork")
    samples = list(loader)
    work.many(3)  # the parent's own threads have outlived it
    return samples


def busy_cores(work: Work) -> list[float]:
    with burning(len(os.sched_getaffinity(0))):
        return work.many()


def read_only(work: Work) -> list[float]:
    """The process has been started so that it may write neither its code nor its home; see `_read_only_start`."""
    for folder in (Path(os.environ["HOME"]), Path(sys.modules["dikkat"].__file__ or "").parent):
        try:
            (folder / "written").touch()
        except OSError:
            continue
        raise RuntimeError("could not be tried: the folders can be written to")
    return work.many()


@contextmanager
def burning(processes: int) -> Iterator[None]:
    burners = [multiprocessing.get_context("spawn").Process(target=_burn, daemon=True) for _ in range(processes)]
    for burner in burners:
        burner.start()
    time.sleep(2)  # they import this file first
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def _burn() -> None:
    while True:
        pass


# Each situation has one that it is compared with: the forked workers have one thread each, and no backward pass.
SITUATIONS: dict[str, Callable[[Work], list[float]]] = {
    "alone": alone,
    "two threads at once": two_threads,
    "all cores busy": busy_cores,
    "read-only installation": read_only,
    "forward, alone, one thread": lambda work: [work.forward() for _ in range(CALLS)],
    "forked loader, two workers": forked_loader,
}
# Two at once on the same cores take twice as long; workers of a loader have a core each where there are two.
FAIR = {"two threads at once": 2.0, "all cores busy": 2.0, "read-only installation": 1.0}


def inside(situation: str, impl: str) -> None:
    """What the process of a situation does."""
    torch.manual_seed(0)
    if situation == "forward, alone, one thread":
        torch.set_num_threads(1)
    work = Work(impl)
    start = time.perf_counter()
    if situation == "forward, alone, one thread":
        work.forward()
    else:  # which is also what the parent does before it forks
        work.both()
    first = time.perf_counter() - start
    print(json.dumps({"first": first, "ms": spread([1e3 * seconds for seconds in SITUATIONS[situation](work)])}))


def _read_only_start(folder: Path) -> dict[str, Any]:
    """How to start a process that cannot write its code, its home or Numba's cache, even if it is root's."""
    source = folder / "src"
    shutil.copytree(processes.ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.nb?"))
    home = folder / "home"
    home.mkdir()
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    environment = processes.environment(source, HOME=str(home), XDG_CACHE_HOME=str(home))
    environment.pop("NUMBA_CACHE_DIR", None)
    return {"env": environment, "preexec_fn": _no_overriding}


def _no_overriding() -> None:
    """Root may write anywhere by a capability, which Linux lets it give up (prctl, PR_CAPBSET_DROP); others fail."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2, 3):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
        libc.prctl(24, capability, 0, 0, 0)


def attempt(situation: str, impl: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "installed"
        folder.mkdir()
        more = _read_only_start(folder) if situation == "read-only installation" else {"env": processes.environment()}
        command = [sys.executable, "-m", "tests.stress.situations", impl, "--inside", situation]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, **more)
        except subprocess.TimeoutExpired:
            return {"problem": f"took more than {LIMIT} s"}
        finally:
            for path in (folder, *folder.rglob("*")):
                if path.is_dir():
                    path.chmod(0o755)
        if done.returncode:
            told = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            return {"problem": told[-1], "status": done.returncode}
        warned = [line for line in done.stderr.splitlines() if "Warning" in line]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found | ({"warned": warned} if warned else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("impl", nargs="?", default="auto")
    parser.add_argument("--inside", choices=list(SITUATIONS), help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="keep what was measured in benchmarks/results")
    arguments = parser.parse_args()
    if arguments.inside:
        return inside(arguments.inside, arguments.impl)
    runs = running(CASE, CASE.inputs(), "cpu")
    if arguments.impl not in ("auto", *runs):
        parser.error(f"impl: came {arguments.impl!r}; {CASE.name} runs with auto, {', '.join(runs)}")
    print(f"{arguments.impl}" + (f" (runs {runs[0]})" if arguments.impl == "auto" else "") + f", {CASE.name}")
    found: dict[str, dict[str, Any]] = {}
    for situation in SITUATIONS:
        found[situation] = attempt(situation, arguments.impl)
        print(line(situation, found), flush=True)
    if arguments.write:
        print(write(f"stress-{arguments.impl}", {"case": CASE.name, "situations": found}, "numba"))
    sys.exit(any("problem" in result for result in found.values()))


def line(situation: str, found: dict[str, dict[str, Any]]) -> str:
    result = found[situation]
    if "problem" in result:
        return f"{situation:28} FAILED: {result['problem']}"
    base = found["forward, alone, one thread" if situation.startswith("for") else "alone"]
    ratio = result["ms"]["median"] / base["ms"]["median"] if "ms" in base else float("nan")
    result["slowdown"] = ratio
    fair = f", fair would be {FAIR[situation]:.0f}" if situation in FAIR else ""
    median, first = result["ms"]["median"], result["first"]
    told = f"; {result['warned'][0].strip()}" if "warned" in result else ""
    return f"{situation:28} {median:8.2f} ms, {ratio:5.2f} × alone{fair}; first call {first:.2f} s{told}"


if __name__ == "__main__":
    main()
