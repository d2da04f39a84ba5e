"""Translating: the textbook's loop, this library and, where it is installed, JoeyNMT."""

import argparse
import itertools
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.kit.turns import Task, measured, rates
from benchmarks.translation import textbook
from benchmarks.translation.corpora import Corpus
from benchmarks.translation.networks import LOOP, OURS, OURS_HALF, OURS_INT8, like, our_name, translate, way
from dikkat.translation.errors import SettingsError
from dikkat.translation.network.model import pad

Record = dict[str, Any]
Translations = Callable[[list[list[int]], int], list[list[int]]]
JOEY = "JoeyNMT"
# Sentences of a batch; how many are translated one by one; a beam that is one.
BATCH, SINGLES, BEAM = 64, 16, 5
_EQUAL = {OURS_HALF: 0.9, OURS_INT8: 0.5}


def decoding(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    """Sentences and tokens a second, with weights that were trained for a while, so that sentences end."""
    loop = learned(corpus, arguments.train_minutes)
    ours = like(loop, corpus.sizes).eval()
    sources = [source for source in corpus.held_out if source][:BATCH]
    rivals: dict[str, Translations] = {
        LOOP: lambda some, width: loop_translations(loop, some, width),
        OURS: lambda some, width: translate(ours, some, width),
        OURS_HALF: lambda some, width: translate(ours, some, width, "bfloat16"),
        OURS_INT8: lambda some, width: translate(ours, some, width, "int8"),
    }
    joey = Joey(arguments, corpus) if arguments.joey else None
    records = []
    try:
        for batch, width in itertools.product((1, BATCH), (1, BEAM)):
            some = sources if batch > 1 else sources[:SINGLES]
            print(f"  batch {batch}, beam {width}", flush=True)
            records += decoded(rivals, some, batch, width, joey, arguments.seconds / 4)
    finally:
        if joey:
            joey.end()
    why = "" if joey else "not asked for: no --joey"
    return [*records, *([{"who": JOEY, "not_run": why}] if why else [])]


def decoded(
    rivals: dict[str, Translations],
    sources: list[list[int]],
    batch: int,
    width: int,
    joey: "Joey | None",
    seconds: float,
) -> list[Record]:
    groups = [sources[at : at + batch] for at in range(0, len(sources), batch)]
    answers, tasks, records = {}, {}, []
    for who, run in rivals.items():
        record: Record = {"who": who, "batch": batch, "beam": width}
        try:
            answers[who] = [row for group in groups for row in run(group, width)]
        except (NotImplementedError, SettingsError) as error:  # a precision that this processor has not
            record["not_run"] = str(error)
        else:
            same = sum(map(list.__eq__, answers[who], answers[LOOP]))
            record |= {"tokens": sum(len(row) + 1 for row in answers[who]), "equal": same}
            # Two likeliest tokens may be as likely: one sentence in a hundred may differ, with fewer digits more. What
            # int8 costs is told in BLEU, by `sentence.py`.
            if same < _EQUAL.get(who, 0.99) * len(sources):
                record["not_run"] = f"translates {len(sources) - same} of {len(sources)} sentences differently"
            else:
                tasks[who] = Task(lambda run=run: float(sum(len(run(group, width)) for group in groups)))
        records.append(record)
    length = round(sum(len(row) + 1 for row in answers[LOOP]) / len(sources))
    if joey:
        joey.length = length
        tasks[JOEY] = Task(lambda: float(sum(joey.translate(group, width) for group in groups)))
        records.append({"who": JOEY, "batch": batch, "beam": width, "tokens": length * len(sources)})
    samples = measured(tasks, seconds)
    for record in records:
        if record["who"] in samples:
            found = rates(samples[record["who"]])
            record["sentences_per_second"] = found
            each = record["tokens"] / len(sources)
            record["tokens_per_second"] = {
                name: value if name == "runs" else value * each for name, value in found.items()
            }
    return records


def loop_translations(loop: textbook.Loop, sources: list[list[int]], width: int) -> list[list[int]]:
    if width > 1:
        return [textbook.beam(loop, source, width) for source in sources]
    return textbook.greedy(loop, *pad(sources))


def learned(corpus: Corpus, minutes: float) -> textbook.Loop:
    """The loop with weights that were trained, by our faster way."""
    entrant = way(OURS, corpus.sizes)
    for group in entrant.optimizer.param_groups:
        group["lr"] = 3e-3
    batches, start = itertools.cycle(corpus.batches(400)), time.monotonic()
    while time.monotonic() - start < 60 * minutes:
        loss = entrant.step(next(batches))
    print(f"  trained for {minutes} minutes: loss {loss:.2f}", flush=True)
    weights, loop = entrant.model.state_dict(), textbook.Loop(corpus.sizes)
    loop.load_state_dict({name: weights[our_name(name)] for name in loop.state_dict()})
    return loop.eval()


class Joey:
    """JoeyNMT in a process of its own: every sentence of the length that ours have on average."""

    def __init__(self, arguments: argparse.Namespace, corpus: Corpus) -> None:
        names = ("hidden", "embedding", "layers", "source", "target")
        settings = {name: getattr(corpus.sizes, name) for name in names} | {"threads": arguments.threads}
        self.length = 1
        self._process = subprocess.Popen(
            [arguments.joey, "-W", "ignore", str(Path(__file__).with_name("joey.py")), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def translate(self, sources: list[list[int]], width: int) -> int:
        """How many it has translated."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"sources": sources, "length": self.length, "beam": width}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        if not self._process.stdout.readline():
            raise ChildProcessError("JoeyNMT's process has died")
        return len(sources)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
