"""Training and decoding of a translator with Bahdanau attention: the textbook's loop and this library, side by side.

    python -m benchmarks.translation.speed [--data FOLDER] [--only PART,...] [--size book|real] [--threads N]
        [--minutes 2] [--joey PYTHON] [--quick] [--out FOLDER]

All ways have the same weights and read the same batches, in turn. What each computes, loss, gradients, translations, is
checked before its speed is measured; one that is off is said to be, and has no speed. FOLDER holds Multi30k's
train.en.gz and train.fr.gz, for the size *real*; PYTHON is of an environment with JoeyNMT (`joey.py`).

Each part writes a record of its own, <part>-<size>; `tables.py` makes the tables.
"""

import argparse
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.kit import tables
from benchmarks.kit.report import RESULTS, write
from benchmarks.translation import corpora, decoding, stages, steps
from benchmarks.translation.corpora import Corpus
from benchmarks.translation.networks import WAYS

Record = dict[str, Any]
PACKAGES = ("tokenizers", "numba")
PARTS: dict[str, Callable[[Corpus, argparse.Namespace], list[Record]]] = {
    "training": steps.training,
    "compiled": steps.compiled,
    "stages": stages.stages,
    "without": steps.without,
    "memory": steps.memory,
    "decoding": decoding.decoding,
    "loop": steps.loop,
    "equality": steps.equality,
}
BOOK_ALONE = ("loop", "equality")


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    found = [corpora.book()] if arguments.size != "real" else []
    if arguments.data and arguments.size != "book":
        found.append(corpora.real(arguments.data))
    if arguments.peak:
        print(steps.peak(arguments.peak, found[0]))
        return
    paths = []
    for corpus, part in itertools.product(found, arguments.only):
        if corpus.sizes.name == "book" or part not in BOOK_ALONE:
            print(f"{part}, {corpus.sizes.name}", flush=True)
            records = [{"part": part, "size": corpus.sizes.name, **r} for r in PARTS[part](corpus, arguments)]
            paths.append(write(f"translator-{part}-{corpus.sizes.name}", records, *PACKAGES, folder=arguments.out))
    print(tables.translator([tables.read(path) for path in paths]))
    print(*paths, sep="\n")
    if arguments.out == RESULTS:
        tables.update()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with train.en.gz and train.fr.gz, for the size real")
    parser.add_argument("--only", type=names, default=tuple(PARTS), help="these parts, by ',': " + ",".join(PARTS))
    parser.add_argument("--size", choices=["book", "real"], help="this size alone")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch; default all")
    parser.add_argument("--minutes", type=float, default=2.0, help="of measuring, in each part")
    parser.add_argument("--train-minutes", type=float, default=1.0, help="of training before decoding")
    parser.add_argument("--steps", type=int, default=500, help="of equality")
    parser.add_argument("--joey", help="the Python of an environment with JoeyNMT")
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run?")
    parser.add_argument("--out", type=Path, help="folder; default benchmarks/results, whose tables go to docs/")
    parser.add_argument("--peak", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := [part for part in arguments.only if part not in PARTS]:
        parser.error(f"--only: no such part: {', '.join(unknown)}")
    if arguments.size == "real" and not arguments.data:
        parser.error("--size real needs --data FOLDER")
    arguments.seconds = 60 * arguments.minutes
    if arguments.quick:
        arguments.seconds, arguments.train_minutes, arguments.steps = 0.0, 0.1, 20
    if arguments.out is None:  # a quick run is not a result
        arguments.out = Path(tempfile.mkdtemp(prefix="translation-")) if arguments.quick else RESULTS
    return arguments


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


if __name__ == "__main__":
    main()
