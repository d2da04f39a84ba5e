"""Training and decoding of a translator with Bahdanau attention: the textbook's loop and this library, side by side.

    python benchmarks/translation.py [--data FOLDER] [--only PART,...] [--size book|real] [--threads N] [--minutes 4]
        [--joey PYTHON] [--quick] [--out FOLDER]

All ways have the same weights and read the same batches, in turn. What each computes, loss, gradients, translations, is
checked before its speed is measured; one that is off is said to be, and has no speed. FOLDER holds Multi30k's
train.en.gz and train.fr.gz, for the size *real*; PYTHON is of an environment with JoeyNMT (`joey.py`).

Each part writes a record of its own, <part>-<size>; `tables.py` makes the tables.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import corpora
import tables
import textbook
from agreement import objection, truth
from corpora import Corpus, tokens
from dikkat.translation import Settings, TranslationModel, train
from dikkat.translation.batches import Batches
from dikkat.translation.model import Batch, expected, pad
from networks import (
    COMPILED,
    LOOP,
    OURS,
    OURS_HALF,
    REFERENCE,
    WAYS,
    WHOLE,
    Ours,
    Way,
    WithoutAttention,
    decode,
    encode,
    like,
    our_name,
    our_way,
    output_loss,
    real,
    translate,
    way,
)
from report import RESULTS, spread, write
from turns import LEAST, MOST, Task, TooLongError, at_most, measured, milliseconds, once, rates
from worker import Peak

Record = dict[str, Any]
PACKAGES = ("lightning", "tokenizers", "numba")
# A compiler may take so many seconds.
PATIENCE = 180
# Batches in a round, so that one takes a second or so; sentences that are decoded, in all and one by one.
ROUND = {"book": 10, "real": 2, "toy": 1}
BATCH, SINGLES, BEAM = 64, 16, 5


# Training ------------------------------------------------------------------------------------------------------------


def training(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    """Target tokens a second, of whole steps."""
    sizes, batches = corpus.sizes, corpus.batches(40)
    right = truth(sizes, batches[0])
    records, tasks = [], {}
    for name in arguments.ways:
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
            tasks[name] = trained(entrant, batches, ROUND[sizes.name])
        records.append(record)
        print(f"  {name}: {why or 'agrees'}", flush=True)
    samples = measured(tasks, arguments.seconds)
    return [record | _rates(samples, record["who"]) for record in records]


def trained(entrant: Way, batches: Sequence[Batch], count: int) -> Task:
    """Some steps of a way, on the next batches."""
    coming = itertools.cycle([entrant.prepare(batch) for batch in batches])

    def run() -> float:
        done = list(itertools.islice(coming, count))
        for batch in done:
            entrant.step(batch)
        return sum(map(tokens, done))

    return Task(run)


def _rates(samples: dict[str, list[tuple[float, float]]], who: str) -> Record:
    return {"tokens_per_second": rates(samples[who])} if who in samples else {}


def without(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    """Whole steps with attention and without it."""
    torch.manual_seed(0)
    ways = {"with attention": way(OURS, corpus.sizes), "without": our_way(OURS, WithoutAttention(corpus.sizes))}
    batches = corpus.batches(40)
    tasks = {name: trained(one, batches, ROUND[corpus.sizes.name]) for name, one in ways.items()}
    samples = measured(tasks, arguments.seconds)
    return [{"who": name, **_rates(samples, name)} for name in tasks]


# Stages --------------------------------------------------------------------------------------------------------------


def stages(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    """Milliseconds of each part of a step, forward and backward."""
    batch = corpus.batches(1)[0]
    right, records, tasks = truth(corpus.sizes, batch), [], {}
    for name in (LOOP, REFERENCE, OURS, OURS_HALF):
        entrant = way(name, corpus.sizes)
        why = objection(right, entrant, batch)
        made = {} if why else parts(entrant, batch)
        tasks |= {f"{stage}/{name}": task for stage, task in made.items()}
        records += [{"stage": stage, "who": name} for stage in made] or [{"who": name, "not_run": why}]
    samples = measured(dict(sorted(tasks.items())), arguments.seconds)
    return [r if "not_run" in r else r | {"ms": milliseconds(samples[f"{r['stage']}/{r['who']}"])} for r in records]


def parts(entrant: Way, batch: Batch) -> dict[str, Task]:
    """Each on what comes out of the one before; the embeddings' forward and backward are the encoder's."""
    batch, model = entrant.prepare(batch), entrant.model
    entrant.backward(batch)
    encoder, decoder, output = (loop_parts if isinstance(model, textbook.Loop) else our_parts)(model, batch)
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    kept = [parameter.grad.clone() for parameter in parameters]

    def restore() -> None:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient.clone()

    def optimise() -> None:
        entrant.clip()
        entrant.optimizer.step()

    def both(forward: Callable[[], tuple[Tensor, ...]]) -> Task:
        with entrant.precision(), torch.no_grad():
            upstream = [torch.randn_like(result) for result in forward()]

        def run() -> None:
            with entrant.precision():
                results = forward()
            torch.autograd.backward(results, upstream)

        return once(run, before=entrant.optimizer.zero_grad)

    made = {"encoder": both(encoder), "decoder": both(decoder), "output layer and loss": both(output)}
    return made | {"clipping and Adam": once(optimise, before=restore)}


Forwards = tuple[Callable[[], tuple[Tensor, ...]], ...]


def loop_parts(model: textbook.Loop, batch: Batch) -> Forwards:
    def encoder() -> tuple[Tensor, ...]:
        return model.encode(model.source_embedding(batch.source), batch.source_lengths)

    with torch.no_grad():
        encoded, state = encoder()
        inputs = model.target_embedding(batch.target[:, :-1])
        features = model.decode(inputs, encoded, batch.source_lengths, state)[0]
    encoded, state, inputs, features = _leaves(encoded, state, inputs, features)

    def decoder() -> tuple[Tensor, ...]:
        return model.decode(inputs, encoded, batch.source_lengths, state)[:1]

    return encoder, decoder, lambda: (textbook.masked_loss(model.output(features), batch),)


def our_parts(model: Ours, batch: Batch) -> Forwards:
    def encoder() -> tuple[Tensor, ...]:
        return encode(model.encoder, model.source_embedding(batch.source), batch.source_lengths, model.impl)

    with torch.no_grad():
        encoded, state = encoder()
        inputs = model.target_embedding(batch.target[:, :-1])
        features = model.features(batch)
    encoded, state, inputs, features = _leaves(encoded, state, inputs, features)

    def decoder() -> tuple[Tensor, ...]:
        memory = model.decoder.prepare(encoded, batch.source_lengths)
        return (decode(model.decoder, inputs, memory, state, batch.target_lengths, model.impl)[real(batch)],)

    return encoder, decoder, lambda: (output_loss(features, model.output, expected(batch), model.impl),)


def _leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().requires_grad_() for tensor in tensors]


# Lightning -----------------------------------------------------------------------------------------------------------


def lightning(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
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
        epochs=1,
    )
    numbered = Batches(corpus.training, sizes.batch, seed=0)
    torch.manual_seed(0)
    model = TranslationModel(settings, sizes.source, sizes.target)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)

    def bare() -> float:
        done = 0
        for batch in numbered:
            labels = expected(batch)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip)
            optimizer.step()
            loss.item()
            done += len(labels)
        return done

    found: dict[str, list[float]] = {"bare loop": [], "on Lightning": []}
    bare()
    start = time.monotonic()
    for turn in range(MOST):
        if turn >= LEAST and time.monotonic() - start > arguments.seconds:
            break
        begun = time.perf_counter()
        done = bare()
        found["bare loop"].append(done / (time.perf_counter() - begun))
        # Its own count, of the time spent on training alone.
        found["on Lightning"].append(train(settings, corpus.text, corpus.text[:64], progress=False).tokens_per_second)
    return [{"who": who, "tokens_per_second": spread(samples)} for who, samples in found.items()]


# Memory --------------------------------------------------------------------------------------------------------------


def memory(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    """Peak extra memory of a step, in a fresh process each, warmed up on two sentences. A compiler would hide it."""
    records = []
    for name in (LOOP, REFERENCE, OURS, OURS_HALF):
        words = [sys.executable, __file__, "--peak", name, "--size", corpus.sizes.name, "--threads", arguments.threads]
        words += ["--data", arguments.data] if arguments.data else []
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
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


# Decoding ------------------------------------------------------------------------------------------------------------


def decoding(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    """Sentences and tokens a second, with weights that were trained for a while, so that sentences end."""
    loop = learned(corpus, arguments.train_minutes)
    ours = like(loop, corpus.sizes).eval()
    sources = [source for source in corpus.held_out if source][:BATCH]
    rivals: dict[str, Callable[[list[list[int]], int], list[list[int]]]] = {
        LOOP: lambda some, width: loop_translations(loop, some, width),
        OURS: lambda some, width: translate(ours, some, width),
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


JOEY = "JoeyNMT"


def decoded(
    rivals: dict[str, Callable[[list[list[int]], int], list[list[int]]]],
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
        except NotImplementedError as error:
            record["not_run"] = str(error)
        else:
            same = sum(map(list.__eq__, answers[who], answers[LOOP]))
            record |= {"tokens": sum(len(row) + 1 for row in answers[who]), "equal": same}
            # Two likeliest tokens may be as likely: one sentence in a hundred may differ.
            if same < 0.99 * len(sources):
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


# Equality ------------------------------------------------------------------------------------------------------------


def equality(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    """How far the losses of two trainings drift apart, from the same weights, on the same batches."""
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


# The run -------------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Corpus, argparse.Namespace], list[Record]]] = {
    "training": training,
    "stages": stages,
    "without": without,
    "memory": memory,
    "decoding": decoding,
    "lightning": lightning,
    "equality": equality,
}
BOOK_ALONE = ("lightning", "equality")


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    found = [corpora.book()] if arguments.size != "real" else []
    if arguments.data and arguments.size != "book":
        found.append(corpora.real(arguments.data))
    if arguments.peak:
        print(peak(arguments.peak, found[0]))
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
    parser.add_argument("--ways", type=names, default=WAYS, help="in training, these alone, by ',': " + ",".join(WAYS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch; default all")
    parser.add_argument("--minutes", type=float, default=4.0, help="of measuring, in each part")
    parser.add_argument("--train-minutes", type=float, default=1.0, help="of training before decoding")
    parser.add_argument("--steps", type=int, default=500, help="of equality")
    parser.add_argument("--joey", help="the Python of an environment with JoeyNMT")
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run?")
    parser.add_argument("--out", type=Path, help="folder; default benchmarks/results, whose tables go to docs/")
    parser.add_argument("--peak", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = [part for part in arguments.only if part not in PARTS] + [n for n in arguments.ways if n not in WAYS]
    if unknown:
        parser.error(f"no such part or way: {', '.join(unknown)}")
    if arguments.size == "real" and not arguments.data:
        parser.error("--size real needs --data FOLDER")
    arguments.seconds = 60 * arguments.minutes
    if arguments.quick:
        arguments.seconds, arguments.train_minutes, arguments.steps = 0.0, 0.1, 20
    if arguments.out is None:  # a quick run, or one without somebody, is not a result
        partial = arguments.quick or arguments.ways != WAYS
        arguments.out = Path(tempfile.mkdtemp(prefix="translation-")) if partial else RESULTS
    return arguments


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


if __name__ == "__main__":
    main()
