"""Translating: one sentence and many, beside the textbook's loop; what int8 costs; a translation in a new process.

    python -m benchmarks.translation.translating [--data FOLDER] [--model FOLDER] [--only speed,quality,start]
        [--size book|real] [--minutes 6] [--out FOLDER]

- `speed`: sentences a second, after a minute of training, so that sentences end. Translations are compared first;
- `quality`: BLEU of the validation pairs in float32 and in int8, and the folders' sizes;
- `start`: seconds from the command to the answer, with kernels compiled before, and without any.

FOLDER of --data holds Multi30k (train and val, .en.gz and .fr.gz); that of --model a translator trained on it.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.kit.processes import environment
from benchmarks.kit.report import RESULTS, spread, write
from benchmarks.kit.turns import Task, measured, rates
from benchmarks.translation import textbook
from benchmarks.translation.corpora import Corpus, given
from benchmarks.translation.networks import LOOP, OURS, OURS_INT8, like, our_name, translate, way
from dikkat.translation import AlignedCorpus, Search, Translator, evaluate
from dikkat.translation.network.model import pad

Record = dict[str, Any]
Translations = Callable[[list[list[int]], int], list[list[int]]]
# Sentences of a batch; how many are translated one by one; a beam that is one.
BATCH, SINGLES, BEAM = 64, 16, 5
# Of a hundred sentences so many must be the loop's: two tokens may be as likely, and int8 has its price in `quality`.
EQUAL = {OURS: 0.99, OURS_INT8: 0.5}
SAID = "A man is walking in the park."


def speed(arguments: argparse.Namespace) -> list[Record]:
    """Sentences a second of each size, and how many times the loop's."""
    records: list[Record] = []
    for corpus in given(arguments.data, arguments.size):
        loop = learned(corpus, arguments.train_minutes)
        ours = like(loop, corpus.sizes).eval()
        sources = [source for source in corpus.held_out if source][:BATCH]
        ways: dict[str, Translations] = {
            LOOP: lambda some, beam, loop=loop: by_loop(loop, some, beam),  # type: ignore[misc]
            OURS: lambda some, beam, ours=ours: translate(ours, some, beam),  # type: ignore[misc]
            OURS_INT8: lambda some, beam, ours=ours: translate(ours, some, beam, "int8"),  # type: ignore[misc]
        }
        for batch, beam in itertools.product((1, BATCH), (1, BEAM)):
            some = sources if batch > 1 else sources[:SINGLES]
            found = translated(ways, some, batch, beam, 60 * arguments.minutes / 8)
            records += [{"size": corpus.sizes.name, "batch": batch, "beam": beam, **record} for record in found]
    return records


def translated(
    ways: dict[str, Translations], sources: list[list[int]], batch: int, beam: int, seconds: float
) -> list[Record]:
    """Sentences a second of whoever translates as the loop does."""
    groups = [sources[at : at + batch] for at in range(0, len(sources), batch)]
    answers = {who: [row for group in groups for row in run(group, beam)] for who, run in ways.items()}
    records, tasks = [], {}
    for who, run in ways.items():
        same = sum(map(list.__eq__, answers[who], answers[LOOP]))
        record: Record = {"who": who, "equal": same}
        if same < EQUAL.get(who, 1) * len(sources):
            record["not_run"] = f"translates {len(sources) - same} of {len(sources)} sentences differently"
        else:
            tasks[who] = Task(lambda run=run: float(sum(len(run(group, beam)) for group in groups)))  # type: ignore[misc]
        records.append(record)
    found = {who: rates(samples) for who, samples in measured(tasks, seconds).items()}
    for record in records:
        if record["who"] in found:
            record["sentences_per_second"] = found[record["who"]]
            record["times_the_loop"] = found[record["who"]]["median"] / found[LOOP]["median"]
    return records


def by_loop(loop: textbook.Loop, sources: list[list[int]], beam: int) -> list[list[int]]:
    if beam > 1:
        return [textbook.beam(loop, source, beam) for source in sources]
    return textbook.greedy(loop, *pad(sources))


def learned(corpus: Corpus, minutes: float) -> textbook.Loop:
    """The loop with weights that were trained, by our faster way."""
    entrant = way(OURS, corpus.sizes)
    for group in entrant.optimizer.param_groups:
        group["lr"] = 3e-3
    batches, start = itertools.cycle(corpus.batches(400)), time.monotonic()
    while time.monotonic() - start < 60 * minutes:
        entrant.step(next(batches))
    weights, loop = entrant.model.state_dict(), textbook.Loop(corpus.sizes)
    loop.load_state_dict({name: weights[our_name(name)] for name in loop.state_dict()})
    return loop.eval()


def quality(arguments: argparse.Namespace) -> list[Record]:
    pairs = list(AlignedCorpus(arguments.data / "val.en.gz", arguments.data / "val.fr.gz"))
    sources, targets = zip(*pairs, strict=True)
    translator = Translator.load(arguments.model)
    found = {}
    for precision in ("float32", "int8"):
        said = translator.translate(list(sources), search=Search(precision=precision))  # type: ignore[arg-type]
        found[precision] = evaluate([each.target for each in said], list(targets)).bleu
    with tempfile.TemporaryDirectory() as place:
        small = Path(place) / "small"
        translator.save(small, int8=True)
        sizes = [sum(file.stat().st_size for file in each.iterdir()) for each in (small, arguments.model)]
    lost, share = found["float32"] - found["int8"], sizes[0] / sizes[1]
    return [
        {"what": "BLEU that int8 costs", **found, "lost": lost},
        {"what": "folder of int8", "bytes": sizes, "share": share},
    ]


def start(arguments: argparse.Namespace) -> list[Record]:
    """From the command to the answer in new processes; and importing PyTorch alone, in turn."""
    command = [sys.executable, "-m", "dikkat", "translate", str(arguments.model), SAID]
    run(command)
    runs = [(run(command), run([sys.executable, "-c", "import torch"])) for _ in range(7)]
    with tempfile.TemporaryDirectory() as empty:
        cold = run(command, NUMBA_CACHE_DIR=empty)
    warm, torch_alone = (spread(list(each)) for each in zip(*runs, strict=True))
    return [{"what": "warm", "seconds": warm, "torch_alone": torch_alone}, {"what": "cold", "seconds": cold}]


def run(command: list[str], **more: str) -> float:
    """The seconds of a process."""
    began = time.perf_counter()
    subprocess.run(command, env=environment(**more), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


PARTS: dict[str, tuple[Callable[[argparse.Namespace], list[Record]], tuple[str, ...]]] = {
    "speed": (speed, ()),
    "quality": (quality, ("data", "model")),
    "start": (start, ("model",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help="parts, by ','")
    parser.add_argument("--size", choices=["book", "real"], help="of the part speed: this one alone")
    parser.add_argument("--minutes", type=float, default=6.0, help="of measuring speed, in all")
    parser.add_argument("--train-minutes", type=float, default=1.0, help="of training before speeds are measured")
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
