"""One framework in a process of its own, which measures when asked and sleeps while the others do.

The parent keeps all of them alive and asks them in turn, so that whatever else the machine does hits all alike. Both
sides speak lines of JSON; arrays go through files.
"""

import contextlib
import gc
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kit.cases import Arrays, Case
from benchmarks.kit.peers import WORKERS, Peer
from benchmarks.kit.processes import command, environment


class GoneError(Exception):
    """The worker has died, or was ended because it took too long."""


class FailedError(Exception):
    """The worker could not do what it was asked, and lives on."""


class Worker:
    """The parent's side."""

    def __init__(self, name: str, device: str = "cpu") -> None:
        self.name, self.device = name, device
        self._process: subprocess.Popen[str] | None = None

    def missing(self) -> list[str]:
        """The packages that it needs and that are not installed."""
        return [package for package in WORKERS[self.name][1] if importlib.util.find_spec(package) is None]

    def send(self, **request: Any) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                command("kit.worker", self.name, self.device),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # what frameworks print
                text=True,
                env=environment(**WORKERS[self.name][2]),
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._lost("has died")

    def receive(self, patience: float = 180.0) -> Any:
        """The answer to what was sent last.

        Raises:
            FailedError: What went wrong there.
            GoneError: It has died, or took more than so many seconds; the next request starts another.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(patience):
                self._lost(f"took more than {patience:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            self._lost("has died")
        answer = json.loads(line)
        if "failed" in answer:
            raise FailedError(answer["failed"])
        return answer["answer"]

    def ask(self, **request: Any) -> Any:
        self.send(**request)
        return self.receive()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _lost(self, why: str) -> None:
        self.end()
        raise GoneError(f"the process {why}")


# The worker's side ---------------------------------------------------------------------------------------------------


class Server:
    """Answers requests: `open` a case, `run` it once, `measure` it, `close` all."""

    def __init__(self, name: str, device: str) -> None:
        self.ways, self.device = WORKERS[name][0], device
        self.clock = cuda_clock() if device == "cuda" else cpu_seconds
        self.cases: dict[str, tuple[Case, Arrays]] = {}
        self.made: dict[tuple[str, str], Peer] = {}

    def open(self, case: dict[str, Any], path: str) -> list[str]:
        """The names of those who can compute a case; the file holds its inputs, and `check`, a second `upstream`."""
        opened = Case(**case)
        with np.load(path) as file:
            self.cases[opened.name] = opened, dict(file)
        return list(self.ways(*self.cases[opened.name], self.device))

    def run(self, case: str, who: str, backward: bool, save: str = "") -> dict[str, float]:
        """Once, checked: seconds and peak extra bytes; the answer to a file."""
        opened, inputs = self.cases[case]
        peer = self._peer(case, who)
        upstream = peer.array(inputs["check"])
        peak, start = Peak(self.device), time.perf_counter()
        answer = peer.both(upstream) if backward else [peer.forward()]
        seconds, extra = time.perf_counter() - start, peak.extra()
        if save:
            names = ["output", *opened.leaves][: len(answer)]
            np.savez(save, **{name: peer.numpy(array) for name, array in zip(names, answer, strict=True)})
        return {"seconds": seconds, "bytes": extra}

    def measure(self, case: str, who: str, backward: bool, times: int, warm: bool) -> list[float]:
        """Seconds of each of so many runs."""
        peer = self._peer(case, who)
        upstream = peer.array(self.cases[case][1]["upstream"])
        run: Callable[[], Any] = (lambda: peer.both(upstream)) if backward else peer.forward
        if warm:  # the caches and thread pools, which the others have had meanwhile
            run()
        return self.clock(run, times)

    def close(self) -> None:
        self.made.clear()
        self.cases.clear()
        gc.collect()
        if "torch" in sys.modules:  # the compiler keeps a bounded number of shapes, and then gives up in silence
            import torch

            torch.compiler.reset()
            if self.device == "cuda":
                torch.cuda.empty_cache()

    def _peer(self, case: str, who: str) -> Peer:
        if (case, who) not in self.made:
            self.made[case, who] = self.ways(*self.cases[case], self.device)[who]()
        return self.made[case, who]


def cpu_seconds(run: Callable[[], Any], times: int) -> list[float]:
    samples = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return samples


def cuda_clock() -> Callable[[Callable[[], Any], int], list[float]]:
    import torch

    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")  # larger than the L2 cache

    def seconds(run: Callable[[], Any], times: int) -> list[float]:
        """The device's own time, each run from a cold L2 cache."""
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)]
        for start, end in events:
            flush.zero_()
            start.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in events]

    return seconds


class Peak:
    """Memory beyond what is held now, at its highest."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        if self._cuda:
            import torch

            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            # The process's own highest mark would hide all that stays under what imports and compilers once took.
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
            self._before = process_status("VmRSS")

    def extra(self) -> int:
        if self._cuda:
            import torch

            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - self._before
        return max(0, process_status("VmHWM") - self._before)


def process_status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def serve(name: str, device: str) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what frameworks print is not an answer
    server = Server(name, device)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": getattr(server, request.pop("do"))(**request)}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}".partition("\n")[0][:300]}
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


if __name__ == "__main__":
    serve(*sys.argv[1:])
