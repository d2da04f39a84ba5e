"""Training a translator with Bahdanau attention: the textbook's loop beside this library, and beside no attention.

    python -m benchmarks.translation.training [--data FOLDER] [--size book|real] [--minutes 2] [--out FOLDER]

All have the same weights and read the same batches, in turn. Loss and gradients are held against the loop in float64
before anything is timed. FOLDER holds Multi30k's train.en.gz and train.fr.gz, for the size *real*.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kit.report import RESULTS, write
from benchmarks.kit.turns import Task, measured, rates
from benchmarks.translation.corpora import Corpus, given, tokens
from benchmarks.translation.networks import (
    LOOP,
    LOOP_HALF,
    OURS,
    OURS_HALF,
    Way,
    WithoutAttention,
    our_way,
    way,
)
from dikkat.translation.network.model import Batch

Record = dict[str, Any]
# Batches in a round, which take a second or a few.
BATCHES = {"book": 40, "real": 3}
# Largest error of a loss or gradient, as a share of its largest number.
ALLOWED = {LOOP: 1e-4, OURS: 1e-4, LOOP_HALF: 0.125, OURS_HALF: 0.125}


def wrong(exact: dict[str, Tensor], found: dict[str, Tensor], allowed: float) -> list[str]:
    """The parts of an answer that are off."""
    return [
        name
        for name, right in exact.items()
        if not (found[name].double() - right).abs().max() <= allowed * right.abs().max()
    ]


def training(corpus: Corpus, seconds: float) -> list[Record]:
    """Target tokens a second, of whole steps: forward, backward, clipping and Adam."""
    batches = corpus.batches(BATCHES[corpus.sizes.name])
    loop = way(LOOP, corpus.sizes, torch.float64)
    exact = {name: tensor.clone() for name, tensor in loop.gradients(batches[0]).items()}
    records, tasks = [], {}
    for name, allowed in ALLOWED.items():
        entrant, record = way(name, corpus.sizes), {"who": name}
        if off := wrong(exact, entrant.gradients(batches[0]), allowed):
            record["not_run"] = "disagrees with float64: " + ", ".join(off)
        else:
            tasks[name] = trained(entrant, batches)
        records.append(record)
    samples = measured(tasks, seconds)
    return [r if "not_run" in r else r | {"tokens_per_second": rates(samples[r["who"]])} for r in records]


def without(corpus: Corpus, seconds: float) -> list[Record]:
    """Whole steps with attention and without it."""
    torch.manual_seed(0)
    ways = {"with attention": way(OURS, corpus.sizes), "without": our_way(OURS, WithoutAttention(corpus.sizes))}
    batches = corpus.batches(BATCHES[corpus.sizes.name])
    samples = measured({name: trained(one, batches) for name, one in ways.items()}, seconds)
    return [{"who": name, "tokens_per_second": rates(found)} for name, found in samples.items()]


def trained(entrant: Way, batches: Sequence[Batch]) -> Task:
    """A step on each of the batches."""
    own = [entrant.prepare(batch) for batch in batches]

    def run() -> float:
        for batch in own:
            entrant.step(batch)
        return sum(map(tokens, own))

    return Task(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with train.en.gz and train.fr.gz, for the size real")
    parser.add_argument("--size", choices=["book", "real"], help="this size alone")
    parser.add_argument("--minutes", type=float, default=2.0, help="of measuring, in each part")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the records")
    arguments = parser.parse_args()
    for corpus in given(arguments.data, arguments.size):
        for part, measure in {"training": training, "without": without}.items():
            common = {"part": part, "size": corpus.sizes.name}
            records = [common | record for record in measure(corpus, 60 * arguments.minutes)]
            print(*records, sep="\n")
            print(write(f"translator-{part}-{corpus.sizes.name}", records, "numba", folder=arguments.out), flush=True)


if __name__ == "__main__":
    main()
