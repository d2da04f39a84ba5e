"""Time the first call of a process: `python -m benchmarks.attention.host [--out FOLDER]`.

In new processes, with an empty cache of compiled kernels and with the cache of the previous process.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.kit.processes import environment
from benchmarks.kit.report import RESULTS, write

FIRST = """
import json, time, torch, dikkat
torch.set_num_threads(2)
query = torch.randn(8, 256, 128, requires_grad=True)
score = dikkat.scores.Additive(128, 128, 128)
began = time.perf_counter()
out = dikkat.attend(query, query, query, score=score)
forward = time.perf_counter()
out.sum().backward()
print(json.dumps({"forward": forward - began, "backward": time.perf_counter() - forward}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    arguments = parser.parse_args()
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "warm"):
            variables = environment(NUMBA_CACHE_DIR=folder)
            process = subprocess.run([sys.executable, "-c", FIRST], env=variables, capture_output=True, check=True)
            seconds[name] = json.loads(process.stdout)
    print(json.dumps(seconds, indent=1))
    print(write("host", {"seconds": seconds}, "numba", folder=arguments.out))


if __name__ == "__main__":
    main()
