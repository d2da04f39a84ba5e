"""Connections that say nothing, against `dikkat serve`: somebody else must be answered, and the log stay small.

    python tests/stress/silent_connections.py FOLDER [--connections 2000] [--seconds 60] [--descriptors 1024]

The server, of the model in FOLDER, is a process with few file descriptors. Connections of 127.0.0.1, and a fifth of
them of other addresses, are opened and send nothing or half a head; those that the server closes are opened again
after a while. All of that is on loopback and ends by itself. Meanwhile 127.0.0.1, and an address that does nothing
else, ask for `/api/health`, once a second each.
"""

import argparse
import asyncio
import math
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

WITHIN = 2.0  # seconds for an answer
LOG = 2**20  # bytes
AGAIN = 5.0  # seconds until a connection that the server closed is opened again
ASKED = b"GET /api/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Figures:
    """Counts of a run."""

    def __init__(self) -> None:
        self.opened, self.failed = 0, 0
        self.open: set[asyncio.StreamWriter] = set()
        self.most, self.files = 0, 0
        self.waited: dict[str, list[float]] = {}


async def silent(number: int, port: int, end: float, figures: Figures) -> None:
    """A connection that says nothing, again and again."""
    address = "127.0.0.1" if number % 5 else f"127.0.1.{1 + number // 5 % 250}"
    while time.monotonic() < end:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        except OSError:
            figures.failed += 1
            await asyncio.sleep(0.5)
            continue
        figures.opened += 1
        figures.open.add(writer)
        figures.most = max(figures.most, len(figures.open))
        if number % 2:
            writer.write(ASKED[:30])
        try:
            async with asyncio.timeout(max(0.01, end - time.monotonic())):
                await reader.read()
        except (OSError, TimeoutError):
            pass
        figures.open.discard(writer)
        writer.transport.abort()
        await asyncio.sleep(AGAIN)


def healthy(address: str, port: int, end: float, figures: Figures, files: Path) -> None:
    """Ask how the server is, once a second."""
    waited = figures.waited.setdefault(address, [])
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            with socket.create_connection(("127.0.0.1", port), 20, (address, 0)) as client:
                client.sendall(ASKED)
                answer = client.recv(12)
            waited.append(time.monotonic() - began if answer == b"HTTP/1.1 200" else math.inf)
        except OSError:
            waited.append(math.inf)
        figures.files = max(figures.files, len(list(files.glob("*"))))
        time.sleep(1)


async def attack(port: int, connections: int, end: float, figures: Figures) -> None:
    """All of them at once."""
    await asyncio.gather(*(silent(number, port, end, figures) for number in range(connections)))


def main() -> int:
    """Run it; the status is 1 where something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a model folder")
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--descriptors", type=int, default=1024, help="of the server")
    given = parser.parse_args()
    if not (0 < given.connections <= 10_000 and 0 < given.seconds <= 600):
        parser.error("expected at most 10,000 connections and 600 seconds")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, given.connections + 200), hard))

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (given.descriptors, given.descriptors))

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        command = [sys.executable, "-m", "dikkat", "serve", given.folder, "--port", "0"]
        with log.open("wb") as file:
            server = subprocess.Popen(command, stdout=file, stderr=file, preexec_fn=few)
        try:
            deadline = time.monotonic() + 120
            while not (found := re.search(r"running on http://127\.0\.0\.1:(\d+)", log.read_text())):
                if server.poll() is not None or time.monotonic() > deadline:
                    print(log.read_text())
                    return 1
                time.sleep(0.2)
            port, end, figures = int(found[1]), time.monotonic() + given.seconds, Figures()
            files = Path(f"/proc/{server.pid}/fd")
            asking = [
                threading.Thread(target=healthy, args=(address, port, end, figures, files))
                for address in ("127.0.0.2", "127.0.0.1")
            ]
            for each in asking:
                each.start()
            asyncio.run(attack(port, given.connections, end, figures))
            for each in asking:
                each.join()
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
        size = log.stat().st_size
    print(f"silent connections: {figures.most:,} open at once as clients see it, {figures.opened:,} opened in all, "
          f"{figures.failed:,} not taken; the server's descriptors at most: {figures.files:,}")  # fmt: skip
    good = size <= LOG
    for address, waited in figures.waited.items():
        middle, longest = sorted(waited)[len(waited) // 2], max(waited)
        print(f"health of {address}: {len(waited)} asked, median {middle:.3f} s, longest {longest:.3f} s")
        good = good and longest <= WITHIN
    print(f"log: {size:,} bytes")
    print("held" if good else f"did not hold: expected answers within {WITHIN} s and at most {LOG:,} bytes of log")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
