"""Measure `dikkat serve` under load: 200 clients on loopback, each with consecutive requests.

    python -m benchmarks.translation.serving --model FOLDER --data FOLDER [--seconds 60] [--clients 200]

The server is a separate process; the clients are connections of this process and share its cores. First with batches of
one sentence, then with the batches of the server. Memory is measured after a tenth of the time and at the end.
"""

import argparse
import asyncio
import collections
import gzip
import json
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.kit.report import RESULTS, write

_PORT = 8765


def serve(model: str, batch: int, ready: Any) -> None:
    """Run the server in this process."""
    from dikkat.serving import Limits, create_app
    from dikkat.serving.server import run
    from dikkat.translation import Translator

    translator = Translator.load(model)
    translator.translate(["a"])
    app = create_app({"model": translator}, limits=Limits(batch=batch))
    ready.set()
    run(app, "127.0.0.1", _PORT, seconds=30)


class Clients:
    """Connections that send requests until the time is up."""

    def __init__(self, sentences: list[str], beam: int) -> None:
        self._bodies = [json.dumps({"text": sentence, "beam": beam}).encode() for sentence in sentences]
        self.statuses: collections.Counter[str] = collections.Counter()
        self.seconds: list[float] = []
        self._next = 0

    async def one(self, end: float) -> None:
        """Run one client until `end`."""
        reader, writer = await asyncio.open_connection("127.0.0.1", _PORT)
        while time.perf_counter() < end:
            body = self._bodies[self._next % len(self._bodies)]
            self._next += 1
            begin = time.perf_counter()
            header = b"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            writer.write(header + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            try:
                answer = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in answer.split(b"\r\n")
                    if line.lower().startswith(b"content-length")
                )
                await reader.readexactly(length)
            except (asyncio.IncompleteReadError, ConnectionError):
                self.statuses["lost"] += 1
                return
            status = answer[9:12].decode()
            self.statuses[status] += 1
            if status == "200":
                self.seconds.append(time.perf_counter() - begin)
            else:
                await asyncio.sleep(1)
        writer.close()


def memory(process: Any) -> int:
    """Return the resident memory of a process in bytes."""
    fields = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in fields if line.startswith("VmRSS"))


def measured(model: str, sentences: list[str], batch: int, count: int, seconds: float, beam: int) -> dict[str, Any]:
    """Return the responses of a server by status, their times, and its memory."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=serve, args=(model, batch, ready), daemon=True)
    process.start()
    ready.wait()

    async def run(clients: Clients, seconds: float) -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", _PORT)
                writer.close()
                break
            except ConnectionError:
                await asyncio.sleep(0.1)
        end = time.perf_counter() + seconds
        await asyncio.gather(*(clients.one(end) for _ in range(count)))

    try:
        asyncio.run(run(Clients(sentences, beam), seconds / 10))
        memory_before, clients = memory(process), Clients(sentences, beam)
        begin = time.perf_counter()
        asyncio.run(run(clients, seconds))
        elapsed = time.perf_counter() - begin
        memory_after = memory(process)
    finally:
        process.terminate()
        process.join()
    latencies = sorted(clients.seconds)
    return {
        "batch": batch,
        "beam": beam,
        "clients": count,
        "seconds": elapsed,
        "statuses": dict(clients.statuses),
        "sentences_per_second": len(latencies) / elapsed,
        "answer_seconds": {
            "median": statistics.median(latencies),
            "p99": latencies[int(0.99 * len(latencies))],
            "max": latencies[-1],
        },
        "memory_bytes": {"after_a_tenth": memory_before, "at_the_end": memory_after},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", required=True, help="a model folder")
    parser.add_argument("--data", type=Path, required=True, help="folder with val.en.gz")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    options = parser.parse_args()
    with gzip.open(options.data / "val.en.gz", "rt", encoding="utf-8") as lines:
        sentences = [line.strip() for line in lines][:1000]
    loads = [
        measured(options.model, sentences, 1, options.clients, options.seconds / 3, options.beam),
        measured(options.model, sentences, 64, options.clients, options.seconds, options.beam),
    ]
    for load in loads:
        print(json.dumps(load))
    speedup = loads[1]["sentences_per_second"] / loads[0]["sentences_per_second"]
    print(f"together {speedup:.2f} times as fast as one by one")
    record = {"loads": loads, "together": speedup}
    print(write(f"serving-beam-{options.beam}", record, "fastapi", "granian", folder=options.out))


if __name__ == "__main__":
    main()
