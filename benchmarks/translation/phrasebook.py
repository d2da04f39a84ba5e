"""Measure scores and time of `make demo` without the installation, each run in a new process."""

import subprocess
import sys
import tempfile
import time

from benchmarks.kit.processes import ROOT
from benchmarks.kit.report import spread, write

DEMO = ROOT / "examples" / "demo.py"
RUNS = 3


def run(folder: str) -> tuple[float, list[str]]:
    start = time.perf_counter()
    done = subprocess.run([sys.executable, DEMO], cwd=folder, check=True, capture_output=True, text=True)
    return time.perf_counter() - start, done.stdout.splitlines()


def main() -> None:
    seconds, printed = [], []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            elapsed, lines = run(folder)
        seconds.append(elapsed)
        printed.append([line for line in lines if line.startswith(("BLEU", "signature", "chrF")) or "=>" in line])
    results = {
        "seconds": spread(seconds),
        "printed": printed[0],
        "every run printed the same": len(set(map(tuple, printed))) == 1,
    }
    print(write("phrasebook", results, "tokenizers", "sacrebleu").read_text())


if __name__ == "__main__":
    main()
