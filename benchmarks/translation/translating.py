"""Measure the BLEU of int8 translation, and the time of a translation in a new process.

    python -m benchmarks.translation.translating --model FOLDER [--data FOLDER] [--only quality,start] [--out FOLDER]

- `quality`: BLEU of the validation pairs in float32 and in int8, and the folders' sizes;
- `start`: seconds from the command to the answer, with and without compiled kernels.

The folder of --data has Multi30k (train and val, .en.gz and .fr.gz), the folder of --model a translator trained on it.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.kit.processes import environment
from benchmarks.kit.report import RESULTS, spread, write
from dikkat.translation import AlignedCorpus, Search, Translator, evaluate

Record = dict[str, Any]
SENTENCE = "A man is walking in the park."


def quality(arguments: argparse.Namespace) -> list[Record]:
    pairs = list(AlignedCorpus(arguments.data / "val.en.gz", arguments.data / "val.fr.gz"))
    sources, targets = zip(*pairs, strict=True)
    translator = Translator.load(arguments.model)
    bleu = {}
    for precision in ("float32", "int8"):
        translations = translator.translate(list(sources), search=Search(precision=precision))  # type: ignore[arg-type]
        bleu[precision] = evaluate([translation.target for translation in translations], list(targets)).bleu
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small"
        translator.save(small, int8=True)
        sizes = [sum(file.stat().st_size for file in translation.iterdir()) for translation in (small, arguments.model)]
    lost, share = bleu["float32"] - bleu["int8"], sizes[0] / sizes[1]
    return [
        {"what": "BLEU that int8 costs", **bleu, "lost": lost},
        {"what": "folder of int8", "bytes": sizes, "share": share},
    ]


def start(arguments: argparse.Namespace) -> list[Record]:
    """Time `dikkat translate` in new processes, in turn with importing only PyTorch."""
    command = [sys.executable, "-m", "dikkat", "translate", str(arguments.model), SENTENCE]
    run(command)
    runs = [(run(command), run([sys.executable, "-c", "import torch"])) for _ in range(7)]
    with tempfile.TemporaryDirectory() as empty:
        cold = run(command, NUMBA_CACHE_DIR=empty)
    warm, torch_alone = (spread(list(samples)) for samples in zip(*runs, strict=True))
    return [{"what": "warm", "seconds": warm, "torch_alone": torch_alone}, {"what": "cold", "seconds": cold}]


def run(command: list[str], **variables: str) -> float:
    """Return the seconds of a process."""
    begin = time.perf_counter()
    subprocess.run(command, env=environment(**variables), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


PARTS: dict[str, tuple[Callable[[argparse.Namespace], list[Record]], tuple[str, ...]]] = {
    "quality": (quality, ("data", "model")),
    "start": (start, ("model",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help="parts, by ','")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the records")
    arguments = parser.parse_args()
    for part in arguments.only:
        measure, needed = PARTS[part]
        if missing := [f"--{name}" for name in needed if getattr(arguments, name) is None]:
            print(f"{part}: left out, needs {' and '.join(missing)}")
            continue
        records = [{"part": part, **record} for record in measure(arguments)]
        print(*records, sep="\n", flush=True)
        print(write(f"sentence-{part}", records, "numba", folder=arguments.out))


if __name__ == "__main__":
    main()
