"""Training with one and with two threads beside a process that uses a core all the time, in turns.

    python -m tests.stress.beside [--minutes 0.25] [--turns 3] [--write]

On two idle cores; `dikkat train phrasebook` says how many tokens a second it learnt from.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.kit.processes import ROOT, environment
from benchmarks.kit.report import spread, write


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=0.25, help="of each training")
    parser.add_argument("--turns", type=int, default=3, help="trainings of each number of threads")
    parser.add_argument("--write", action="store_true", help="keep the record in benchmarks/results")
    options = parser.parse_args()
    speeds: dict[int, list[float]] = {1: [], 2: []}
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            for _ in range(options.turns):
                for threads, found in speeds.items():
                    found.append(speed(threads, options.minutes))
                    print(f"threads {threads}: {found[-1]:,.0f} tokens/s", flush=True)
        finally:
            busy.kill()
    spreads = {str(threads): spread(found) for threads, found in speeds.items()}
    ratio = spreads["2"]["median"] / spreads["1"]["median"]
    print(f"two threads over one, medians: {ratio:.2f}")
    if options.write:
        print(write("beside", {"tokens_per_second": spreads, "two_over_one": ratio}))


def speed(threads: int, minutes: float) -> float:
    """Tokens a second of a training in a process of its own, in an environment without wishes for its waiting."""
    own = environment(OMP_NUM_THREADS=str(threads))
    own.pop("OMP_WAIT_POLICY", None)
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "phrasebook", "--max-minutes", minutes, "--test", "none", "--output", Path(folder, "model")]
        command = [sys.executable, "-m", "dikkat", *map(str, words)]
        done = subprocess.run(command, env=own, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(re.findall(r"([\d,]+) tokens/s", done.stderr)[-1].replace(",", ""))


if __name__ == "__main__":
    main()
