"""A separate process for each framework, which measures on request and sleeps otherwise.

The parent keeps all processes alive and sends requests in turn, so that other load affects all alike. Requests and
answers are lines of JSON; arrays are passed in files.
"""

import gc
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.kit.cases import Arrays, Case
from benchmarks.kit.memory import process_status, reset_peak
from benchmarks.kit.peers import WORKERS, Peer
from benchmarks.kit.processes import command, environment


class GoneError(Exception):
    """The worker died, or was terminated after a timeout."""


class FailedError(Exception):
    """The request failed; the worker continues."""


class Worker:
    """The client of a worker process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process: subprocess.Popen[str] | None = None

    def missing(self) -> list[str]:
        """Return the required packages that are not installed."""
        return [package for package in WORKERS[self.name][1] if importlib.util.find_spec(package) is None]

    def send(self, **request: Any) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                command("kit.worker", self.name),
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
        """Return the answer to the last request.

        Raises:
            FailedError: If the request failed.
            GoneError: If the worker died or exceeded `patience` seconds; the next request starts a new one.
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

    def _lost(self, reason: str) -> None:
        self.end()
        raise GoneError(f"the process {reason}")


# The worker's side ---------------------------------------------------------------------------------------------------


class Server:
    """The worker: `open` a case, `run` it once, `measure` it, `close` all cases."""

    def __init__(self, name: str) -> None:
        self.ways = WORKERS[name][0]
        self.cases: dict[str, tuple[Case, Arrays]] = {}
        self.made: dict[tuple[str, str], Peer] = {}

    def open(self, case: dict[str, Any], path: str) -> list[str]:
        """Return the names of the peers for a case; the file has its inputs, and `check`, a second `upstream`."""
        opened = Case(**case)
        with np.load(path) as file:
            self.cases[opened.name] = opened, dict(file)
        return list(self.ways(*self.cases[opened.name], "cpu"))

    def run(self, case: str, who: str, backward: bool, save: str = "") -> dict[str, float]:
        """Run once; return seconds and peak additional bytes, and save the answer to a file."""
        opened, inputs = self.cases[case]
        peer = self._peer(case, who)
        upstream = peer.array(inputs["check"])
        reset_peak()
        before, start = process_status("VmRSS"), time.perf_counter()
        answer = peer.both(upstream) if backward else [peer.forward()]
        seconds, extra = time.perf_counter() - start, max(0, process_status("VmHWM") - before)
        if save:
            names = ["output", *opened.leaves][: len(answer)]
            np.savez(save, **{name: peer.numpy(array) for name, array in zip(names, answer, strict=True)})
        return {"seconds": seconds, "bytes": extra}

    def measure(self, case: str, who: str, backward: bool, times: int, warm: bool) -> list[float]:
        """Return the seconds of each run."""
        peer = self._peer(case, who)
        upstream = peer.array(self.cases[case][1]["upstream"])
        run: Callable[[], Any] = (lambda: peer.both(upstream)) if backward else peer.forward
        if warm:  # the caches and thread pools, which the others have had meanwhile
            run()
        samples = []
        for _ in range(times):
            start = time.perf_counter()
            run()
            samples.append(time.perf_counter() - start)
        return samples

    def close(self) -> None:
        self.made.clear()
        self.cases.clear()
        gc.collect()
        if "torch" in sys.modules:  # the compiler keeps a bounded number of shapes, and then gives up in silence
            import torch

            torch.compiler.reset()

    def _peer(self, case: str, who: str) -> Peer:
        if (case, who) not in self.made:
            self.made[case, who] = self.ways(*self.cases[case], "cpu")[who]()
        return self.made[case, who]


def serve(name: str) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what frameworks print is not an answer
    server = Server(name)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": getattr(server, request.pop("do"))(**request)}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}".partition("\n")[0][:300]}
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
