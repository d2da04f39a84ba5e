"""Kill trainings at random moments, go on with them, and compare what comes out with a training left in peace.

Each child is forked from this process, which has imported everything: starting Python anew would take longer than the
whole training. From one kill to the next the number of threads changes, as it does in life: other processors are left
to the process, or `OMP_NUM_THREADS` is set. A training must then go on with as many threads as before, or say that it
does not.
"""

import argparse
import hashlib
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads of trainings as small as these would only wait, busily

import torch
import torch._dynamo  # an optimiser imports it, for seconds: here once, so that the kills fall into steps

from benchmarks.kit import report
from dikkat.translation import Settings, phrasebook
from dikkat.translation.training import checkpoints
from dikkat.translation.training.run_folder import RunFolder, step_of
from dikkat.translation.training.train import train

SETTINGS = Settings(
    embedding_size=16,
    hidden_size=16,
    min_freq=1,
    batch_size=16,
    accumulate=2,
    epochs=5,
    dropout=0.2,
    attention_dropout=0.1,
    schedule="cosine",
    validation_steps=7,
    criterion="bleu",
    average=3,
    patience=100,
    checkpoint_steps=2,
)
PAIRS = 200


class Threads(NamedTuple):
    """What a process is given to compute with.

    Attributes:
        processors: how many of them it may use.
        asked: what `OMP_NUM_THREADS` says; None where it is not set.
    """

    processors: int
    asked: int | None = None

    def take(self) -> None:
        """Make this process as if it had been started so: PyTorch sets its threads when it is imported."""
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: self.processors])
        os.environ.pop("OMP_NUM_THREADS", None)
        if self.asked is not None:
            os.environ["OMP_NUM_THREADS"] = str(self.asked)
        torch.set_num_threads(self.asked or self.processors)


# What the processes of one training are given: the first the first of them, those that go on with it any of them.
ONE, TWO = Threads(1), Threads(2)
ALWAYS_ONE = ((ONE,),)
CHANGES = (
    (ONE, TWO), (TWO, ONE), (Threads(2, asked=1), TWO), (TWO, Threads(2, asked=2)), (ONE, Threads(2, asked=1)),
    (ONE, Threads(1, asked=2)),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)  # a forked process has none of its parent's threads
    import_once()
    pairs = phrasebook.pairs()[: PAIRS + PAIRS // 4]
    training, validation = pairs[:PAIRS], pairs[PAIRS:]
    several = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) > 1
    changes = CHANGES if several else ALWAYS_ONE
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        chance = random.Random(options.seed)
        for results in kill(Path(folder), SETTINGS, training, validation, options.kills, chance, changes):
            path = report.write("kills", results, "safetensors")
    print(path)
    if results["different_in_silence"] or results["unreadable"]:
        sys.exit("a training that was killed did not come to what it would have come to")


def import_once() -> None:
    """Import here what a training imports late, and not again in each child."""
    for late in ("sacrebleu", "dikkat._core.implementations.numba.kernel", "dikkat.recurrent.fused.kernel"):
        import_module(late)


def kill(
    folder: Path,
    settings: Settings,
    training: Any,
    validation: Any,
    kills: int,
    chance: random.Random,
    changes: Sequence[tuple[Threads, ...]] = ALWAYS_ONE,
) -> Iterator[dict[str, Any]]:
    """Runs, each killed until it ends, until there were so many kills; after each run, the results so far.

    Args:
        folder: for the trainings.
        settings: of each.
        training: its pairs.
        validation: likewise.
        kills: how many there are to be.
        chance: when to kill, and what to give each process.
        changes: what the processes of a training are given to compute with, one of these at random.
    """

    def run(name: str, threads: Threads) -> Callable[[], None]:
        def body() -> None:
            warnings.showwarning = lambda message, *_: (folder / f"{name}.said").write_text(str(message))
            threads.take()
            place = folder / name
            resume = (place / "settings.json").exists()
            result = train(settings, training, validation, folder=place, resume=resume, progress=False)
            result.translator.save(folder / f"{name}.model")

        return body

    numbers = {each.asked or each.processors: each for given in changes for each in given}
    in_peace(run("first", changes[0][0]))  # in which kernels may be compiled
    seconds, wanted = 0.0, {}
    for number, threads in numbers.items():
        seconds = max(seconds, in_peace(run(f"whole-{number}", threads)))
        wanted[number] = digest(folder / f"whole-{number}.model")
    at: list[int] = []
    found: Counter[str] = Counter()
    kills_of_runs: list[int] = []
    while len(at) < kills:
        name, killed = f"run-{len(kills_of_runs) + 1}", 0
        given = chance.choice(changes)
        threads = given[0]
        while not killed_or_done(run(name, threads), chance.uniform(0, seconds)):
            killed, threads = killed + 1, chance.choice(given)
            newest = RunFolder(folder / name).newest()
            at.append(0 if newest is None else step_of(newest))
            found["unreadable"] += newest is not None and not readable(newest)
        kills_of_runs.append(killed)
        said = (folder / f"{name}.said").exists()
        same = digest(folder / f"{name}.model") == wanted[threads_of(folder / name)]
        found[f"{'equal' if same else 'different'}_{'said' if said else 'in_silence'}"] += 1
        print(f"{name}: {killed} kills, newest checkpoints {at[len(at) - killed :]}, {said=}, {same=}", flush=True)
        yield {
            "settings": settings.to_dict(),
            "pairs": len(training),
            "seconds_of_a_whole_run": seconds,
            "runs": len(kills_of_runs),
            "kills": len(at),
            "kills_of_a_run": {"median": statistics.median(kills_of_runs), "most": max(kills_of_runs)},
            "step_of_the_newest_checkpoint_at_each_kill": dict(sorted(Counter(at).items())),
            "unreadable": found["unreadable"],
            "equal": found["equal_in_silence"],
            "different_in_silence": found["different_in_silence"],
            "said_that_threads_differ": {"equal": found["equal_said"], "different": found["different_said"]},
            "sha256": wanted,
        }


def in_peace(body: Callable[[], None]) -> float:
    """Let a process come to its end; the seconds that it took."""
    started = time.perf_counter()
    if not killed_or_done(body, None):
        raise RuntimeError("nobody killed it")
    return time.perf_counter() - started


def killed_or_done(body: Callable[[], None], seconds: float | None) -> bool:
    """Kill a process after so many seconds; whether it came to its end before."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)  # one that is at its end, but not yet waited for, takes no notice
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    if os.WEXITSTATUS(status):
        raise RuntimeError("a training failed")
    return True


def readable(checkpoint: Path) -> bool:
    try:
        checkpoints.load(checkpoint)
    except ValueError as error:
        print(error, file=sys.stderr)
        return False
    return True


def threads_of(training: Path) -> int:
    """How many threads a training ended with."""
    newest = RunFolder(training).newest()
    if newest is None:
        raise RuntimeError(f"{training} came to its end without a checkpoint")
    return checkpoints.load(newest).threads


def digest(model: Path) -> str:
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
