"""Whole steps of training: how fast, how much memory, how far the losses of two trainings drift apart."""

import argparse
import itertools
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.kit.processes import command, environment
from benchmarks.kit.report import spread
from benchmarks.kit.turns import LEAST, MOST, Task, TooLongError, at_most, measured, rates
from benchmarks.kit.worker import Peak
from benchmarks.translation.agreement import objection, truth
from benchmarks.translation.corpora import Corpus, tokens
from benchmarks.translation.networks import (
    COMPILED,
    LOOP,
    LOOP_HALF,
    OURS,
    OURS_HALF,
    REFERENCE,
    WHOLE,
    Way,
    WithoutAttention,
    our_way,
    way,
)
from dikkat.translation import Settings, TranslationModel, train
from dikkat.translation.data.batches import Batches
from dikkat.translation.network.model import Batch

Record = dict[str, Any]
# A compiler may take so many seconds.
PATIENCE = 180
# Batches in a round, which take a second or a few; rounds through the book in `train`.
BATCHES = {"book": 40, "real": 3}
EPOCHS = 5


def training(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    """Target tokens a second, of whole steps."""
    return compared((LOOP, REFERENCE, OURS, LOOP_HALF, OURS_HALF), corpus, arguments)


def compiled(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    """The same beside what a compiler makes of the loop: a part of its own, since compiling takes minutes."""
    return compared((LOOP, COMPILED, WHOLE, OURS), corpus, arguments)


def compared(ways: Sequence[str], corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    sizes, batches = corpus.sizes, corpus.batches(BATCHES[corpus.sizes.name])
    right = truth(sizes, batches[0])
    records, tasks = [], {}
    for name in ways:
        entrant, record = way(name, sizes), {"who": name}
        start = time.perf_counter()
        try:
            with at_most(PATIENCE):
                why = objection(right, entrant, batches[0])
        except TooLongError as error:
            why = str(error)
        if name in (COMPILED, WHOLE):
            record["compile_seconds"] = time.perf_counter() - start
        if why:
            record["not_run"] = why
        else:
            tasks[name] = trained(entrant, batches)
        records.append(record)
        print(f"  {name}: {why or 'agrees'}", flush=True)
    samples = measured(tasks, arguments.seconds)
    return [record | _rates(samples, record["who"]) for record in records]


def trained(entrant: Way, batches: Sequence[Batch]) -> Task:
    """A step on each of the batches."""
    own = [entrant.prepare(batch) for batch in batches]

    def run() -> float:
        for batch in own:
            entrant.step(batch)
        return sum(map(tokens, own))

    return Task(run)


def _rates(samples: dict[str, list[tuple[float, float]]], who: str) -> Record:
    return {"tokens_per_second": rates(samples[who])} if who in samples else {}


def without(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    """Whole steps with attention and without it."""
    torch.manual_seed(0)
    ways = {"with attention": way(OURS, corpus.sizes), "without": our_way(OURS, WithoutAttention(corpus.sizes))}
    batches = corpus.batches(BATCHES[corpus.sizes.name])
    tasks = {name: trained(one, batches) for name, one in ways.items()}
    samples = measured(tasks, arguments.seconds)
    return [{"who": name, **_rates(samples, name)} for name in tasks]


# The loop of `train` --------------------------------------------------------------------------------------------------


def loop(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    """This library's own training, whose network is another one, beside the same steps in a bare loop."""
    sizes = corpus.sizes
    settings = Settings(
        min_freq=1,
        vocabulary_size=200,
        embedding_size=sizes.embedding,
        hidden_size=sizes.hidden,
        num_layers=sizes.layers,
        dropout=0.0,
        batch_size=sizes.batch,
        epochs=EPOCHS,
        patience=EPOCHS,
    )
    numbered = Batches(corpus.training, sizes.batch, seed=0)
    torch.manual_seed(0)
    model = TranslationModel(settings, sizes.source, sizes.target)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, fused=True)

    def bare() -> float:
        done = 0
        for batch in itertools.chain.from_iterable(itertools.repeat(numbered, EPOCHS)):
            optimizer.zero_grad()
            loss = model.loss(batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip)
            optimizer.step()
            loss.item()
            done += int(batch.target_lengths.sum())
        return done

    found: dict[str, list[float]] = {"bare loop": [], "in train": []}
    bare()
    start = time.monotonic()
    for turn in range(MOST):
        if turn >= LEAST and time.monotonic() - start > arguments.seconds:
            break
        begun = time.perf_counter()
        done = bare()
        found["bare loop"].append(done / (time.perf_counter() - begun))
        # Its own count, of the time spent on training alone.
        found["in train"].append(train(settings, corpus.text, corpus.text[:64], progress=False).tokens_per_second)
    return [{"who": who, "tokens_per_second": spread(samples)} for who, samples in found.items()]


# Memory ---------------------------------------------------------------------------------------------------------------


def memory(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    """Peak extra memory of a step, in a fresh process each, warmed up on two sentences. A compiler would hide it."""
    records = []
    for name in (LOOP, REFERENCE, OURS, OURS_HALF):
        words = ["--peak", name, "--size", corpus.sizes.name, "--threads", arguments.threads]
        words += ["--data", arguments.data] if arguments.data else []
        done = subprocess.run(
            command("translation.speed", *words), env=environment(), capture_output=True, text=True, check=False
        )
        said = done.stdout.splitlines() if done.returncode == 0 else []
        why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:200]
        records.append({"who": name} | ({"peak_mib": float(said[-1])} if said else {"not_run": f"failed: {why}"}))
    return records


def peak(name: str, corpus: Corpus) -> float:
    """MiB beyond what is held before: parameters, their gradients and Adam's averages are."""
    entrant, batch = way(name, corpus.sizes), corpus.batches(1)[0]
    entrant.step(entrant.prepare(Batch(*(part[:2] for part in batch))))
    mark = Peak("cpu")
    entrant.step(entrant.prepare(batch))
    return mark.extra() / 2**20


# Equality -------------------------------------------------------------------------------------------------------------


def equality(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    """How far the losses of two trainings drift apart, from the same weights, on the same batches.

    In float64 all of it is PyTorch's clipping, which divides by the norm + 1e-6: with the loop's own it is 2e-15.
    """
    batches, records = corpus.batches(40), []
    for dtype in (torch.float64, torch.float32):
        ways = [way(name, corpus.sizes, dtype) for name in (LOOP, REFERENCE, OURS)]
        prepared = [[one.prepare(batch) for batch in batches] for one in ways]
        losses = [[] for _ in ways]
        for step in range(arguments.steps):
            for one, own, course in zip(ways, prepared, losses, strict=True):
                course.append(one.step(own[step % len(own)]).item())
        for one, course in zip(ways[1:], losses[1:], strict=True):
            far = max(abs(ours - theirs) for ours, theirs in zip(course, losses[0], strict=True))
            record = {"who": one.name, "dtype": str(dtype).removeprefix("torch."), "steps": arguments.steps}
            records.append(record | {"largest_difference": far, "first_loss": course[0], "last_loss": course[-1]})
    return records
