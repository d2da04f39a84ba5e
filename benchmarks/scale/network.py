"""From how many queries a rank on a ring hides its messages behind its work, on a link of so many bytes a second.

    python -m benchmarks.scale.network [--rate 200 300 700] [--rounds 9] [--back] [--write]

Two ranks of one thread, each in a network namespace of its own, are joined by a pair of virtual interfaces, on which a
token bucket lets pass so many megabits a second or, in turns with it, everything. For each number of queries a rank the
times of `attend(method="ring")` on both are compared. docs/scale.md says

    n = (h + d_v) s / (B τ)

and so that a forward over two ranks, one hop of which has a message to wait for, takes (1 + max(1, n / queries)) / 2
times as long as on a link without a limit. The n at which that is a given share above 1 is compared with the n at which
it was measured to be. B is what the link was measured to carry and τ what a pair took on the link without a limit, both
in the same run. Namespaces need root, and the commands ip and tc; a machine's delays are not simulated.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.kit.processes import command, environment
from benchmarks.kit.report import spread, write
from dikkat.distributed import attend
from dikkat.scores import Additive

SIZE = 64
QUERIES = [512, 724, 1024, 1448, 2048, 2896, 4096]
# A time so much above that of the link without a limit is told from noise.
SHARE = 0.1
# What passes a token bucket at once: little beside a message, and more than the largest packet.
BURST = 2**14
_BYTES = 2**23  # of a message that measures what the link carries


@contextmanager
def namespaces() -> Iterator[list[tuple[str, str]]]:
    """Two namespaces that a link joins, with the name of the interface in each; they are gone afterwards."""
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        raise SystemExit("network namespaces need root, and the commands ip and tc (iproute2)")
    made = [(f"dikkat-{os.getpid()}-{side}", f"ring{side}") for side in range(2)]
    try:
        for name, _ in made:
            _do("ip", "netns", "add", name)
        (first, ring0), (second, ring1) = made
        _do("ip", "-n", first, "link", "add", ring0, "type", "veth", "peer", "name", ring1, "netns", second)
        for side, (name, interface) in enumerate(made):
            _do("ip", "-n", name, "address", "add", f"10.213.7.{side + 1}/24", "dev", interface)
            for each in ("lo", interface):
                _do("ip", "-n", name, "link", "set", each, "up")
        yield made
    finally:
        for name, _ in made:  # and with it its end of the link
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _do(*words: str) -> None:
    subprocess.run(words, check=True)


def limit(interface: str, rate: int | None) -> None:
    """Let an interface send so many megabits a second; None lifts the limit."""
    if rate is None:
        _do("tc", "qdisc", "delete", "dev", interface, "root")
    else:
        bucket = ["tbf", "rate", f"{rate}mbit", "burst", str(BURST), "limit", str(2**26)]
        _do("tc", "qdisc", "replace", "dev", interface, "root", *bucket)


def child(interface: str, rank: int, rate: int, rounds: int, back: bool, folder: str) -> None:
    """One rank: times of both links for each number of queries, in turns."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    torch.manual_seed(7)
    score = Additive(SIZE, SIZE, SIZE)
    found: dict[str, Any] = {"carried": [], "seconds": {}}
    for rate_now in (rate, None):
        _together(interface, rate_now)
        found["carried"].append([_timed(lambda: _exchange(rank)) for _ in range(3)])
    for queries in QUERIES:
        torch.manual_seed(rank)
        tensors = [torch.randn(1, queries, SIZE).requires_grad_(back) for _ in range(3)]
        seconds: dict[str, list[float]] = {"limited": [], "free": []}
        for turn in range(rounds + 1):
            for name, rate_now in (("limited", rate), ("free", None)):
                _together(interface, rate_now)
                took = _attend(tensors, score, back)
                if turn:
                    seconds[name].append(took)
        found["seconds"][queries] = seconds
    Path(f"{folder}/{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _together(interface: str, rate: int | None) -> None:
    dist.barrier()
    if rate is not None or _limited(interface):
        limit(interface, rate)
    dist.barrier()


def _limited(interface: str) -> bool:
    shown = subprocess.run(["tc", "qdisc", "show", "dev", interface], check=True, capture_output=True, text=True)
    return "tbf" in shown.stdout


def _timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _exchange(rank: int) -> None:
    """A message each way at once, as in a ring."""
    sent, received = torch.zeros(_BYTES, dtype=torch.uint8), torch.empty(_BYTES, dtype=torch.uint8)
    works = [dist.isend(sent, 1 - rank), dist.irecv(received, 1 - rank)]
    for work in works:
        work.wait()


def _attend(tensors: list[torch.Tensor], score: Additive, back: bool) -> float:
    """What a forward takes, or the backward of one."""
    if not back:
        with torch.no_grad():
            return _timed(lambda: attend(*tensors, score=score, method="ring"))
    out = attend(*tensors, score=score, method="ring")
    above = torch.ones_like(out)
    dist.barrier()
    return _timed(lambda: out.backward(above))


def run(rate: int, rounds: int, back: bool) -> list[dict[str, Any]]:
    """What each rank found."""
    with tempfile.TemporaryDirectory() as folder, namespaces() as made:
        started = []
        try:
            for rank, (name, interface) in enumerate(made):
                words = ["--child", interface, rank, rate, rounds, int(back), folder]
                around = environment(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", GLOO_SOCKET_IFNAME=interface)
                inside = ["ip", "netns", "exec", name]
                started.append(subprocess.Popen([*inside, *command("scale.network", *words)], env=around))
            if any(process.wait() for process in started):
                raise SystemExit("a rank failed")
        finally:
            for process in started:
                process.kill()
        return [json.loads(Path(f"{folder}/{rank}.json").read_text()) for rank in range(2)]


def crossing(queries: list[int], ratios: list[float], level: float) -> float:
    """Where a falling curve through points comes to a level, between two of them on a straight line of logarithms."""
    for (n, above), (more, below) in zip(
        zip(queries, ratios, strict=True), zip(queries[1:], ratios[1:], strict=True), strict=False
    ):
        if above > level >= below:
            return float(n * (more / n) ** (math.log(above / level) / math.log(above / below)))
    return math.nan


def summary(found: list[dict[str, Any]], rate: int, back: bool) -> dict[str, Any]:
    """What was measured, and what the page says of it."""
    slower: dict[int, dict[str, list[float]]] = {}
    for queries in QUERIES:
        each = [rank["seconds"][str(queries)] for rank in found]
        slower[queries] = {
            name: [max(pair) for pair in zip(*(one[name] for one in each), strict=True)] for name in ("limited", "free")
        }
    medians = {n: {name: statistics.median(times) for name, times in both.items()} for n, both in slower.items()}
    carried = [_BYTES / max(statistics.median(rank["carried"][which]) for rank in found) for which in range(2)]
    most = QUERIES[-1]
    pair = medians[most]["free"] / (2 * most**2)
    size = 2 * SIZE * (8 if back else 4)  # a backward's sums travel beside the keys
    hidden = size / (carried[0] * pair)
    ratios = [medians[n]["limited"] / medians[n]["free"] for n in QUERIES]
    level = 1 + SHARE
    predicted, measured = hidden / (2 * level - 1), crossing(QUERIES, ratios, level)
    return {
        "what": f"ring over a limited link, {'backward' if back else 'forward'}",
        "megabits": rate,
        "bytes_a_second": carried[0],
        "bytes_a_second_without_limit": carried[1],
        "seconds_a_pair": pair,
        "formula": hidden,
        "queries_at_level": {"level": level, "predicted": predicted, "measured": measured},
        "measured_over_predicted": measured / predicted,
        "by_queries": [
            {
                "queries": n,
                "limited": spread(slower[n]["limited"]),
                "free": spread(slower[n]["free"]),
                "ratio": ratio,
                "predicted_ratio": (1 + max(1.0, hidden / n)) / 2,
            }
            for n, ratio in zip(QUERIES, ratios, strict=True)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, nargs="+", default=[200, 300, 700], help="megabits a second")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--back", action="store_true", help="the backward too")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--child", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        interface, rank, rate, rounds, back, folder = given.child
        return child(interface, int(rank), int(rate), int(rounds), back == "1", folder)
    signal.signal(signal.SIGTERM, lambda *_: exit(143))  # so that the namespaces go also then
    ways = [False, True] if given.back else [False]
    results = [summary(run(rate, given.rounds, back), rate, back) for rate in given.rate for back in ways]
    print(json.dumps(results, indent=1))
    if given.write:
        print(write("scale-network", results))


if __name__ == "__main__":
    main()
