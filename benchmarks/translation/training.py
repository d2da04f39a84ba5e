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
# Largest error of a loss or gradient, as a share of its largest number, beside twice the error of the loop's own.
ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 0.125}
PLAIN = {LOOP: LOOP, OURS: LOOP, LOOP_HALF: LOOP_HALF, OURS_HALF: LOOP_HALF}


def wrong(exact: dict[str, Tensor], plain: dict[str, Tensor], found: dict[str, Tensor], share: float) -> list[str]:
    """The parts of an answer that are farther off than the loop's answer in the same precision accounts for."""
    return [
        name
        for name, right in exact.items()
        if not _off(found[name], right) <= 2 * _off(plain[name], right) + share * right.abs().max()
    ]


def _off(found: Tensor, right: Tensor) -> Tensor:
    return (found.double() - right).abs().max()


def training(corpus: Corpus, seconds: float) -> list[Record]:
    """Target tokens a second, of whole steps: forward, backward, clipping and Adam."""
    batches = corpus.batches(BATCHES[corpus.sizes.name])
    exact = way(LOOP, corpus.sizes, torch.float64).gradients(batches[0])
    records, tasks = [], {}
    for name, plain in PLAIN.items():
        entrant, record = way(name, corpus.sizes), {"who": name}
        own = way(plain, corpus.sizes).gradients(batches[0])
        share = ALLOWED[torch.bfloat16 if plain == LOOP_HALF else torch.float32]
        if off := wrong(exact, own, entrant.gradients(batches[0]), share):
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
