"""Kill trainings at random moments, go on with them, and compare what comes out with a training left in peace.

Each child is forked from this process, which has imported everything: starting Python anew would take longer than the
whole training.
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
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import report
from dikkat.translation import Settings, phrasebook
from dikkat.translation.checkpoints import SafetensorsIO
from dikkat.translation.curves import Curves
from dikkat.translation.progress import Listener
from dikkat.translation.run_folder import RunFolder, step_of
from dikkat.translation.training import train

SETTINGS = Settings(
    embedding_size=32,
    hidden_size=32,
    min_freq=1,
    batch_size=16,
    accumulate=2,
    epochs=6,
    dropout=0.2,
    attention_dropout=0.1,
    schedule="cosine",
    validation_steps=7,
    criterion="bleu",
    average=3,
    patience=100,
    checkpoint_steps=2,
)
PAIRS = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)  # a forked process has none of its parent's threads
    pairs = phrasebook.pairs()[: PAIRS + PAIRS // 4]
    training, validation = pairs[:PAIRS], pairs[PAIRS:]
    with tempfile.TemporaryDirectory() as folder:
        results = kill(Path(folder), SETTINGS, training, validation, options.kills, random.Random(options.seed))
    print(report.write("kills", results, "lightning", "safetensors"))
    if results["different"] or results["unreadable"]:
        sys.exit("a training that was killed did not come to what it would have come to")


def kill(
    folder: Path, settings: Settings, training: Any, validation: Any, kills: int, chance: random.Random
) -> dict[str, Any]:
    """Runs, each killed until it ends, until there were so many kills."""

    def run(name: str) -> Callable[[], None]:
        def body() -> None:
            # To draw a heat map takes longer than ten steps: nearly all kills would fall into that.
            Curves.on_translations = Listener.on_translations  # type: ignore[method-assign]
            place = folder / name
            resume = (place / "settings.json").exists()
            result = train(settings, training, validation, folder=place, resume=resume, progress=False)
            result.translator.save(folder / f"{name}.model")

        return body

    in_peace(run("first"))  # in which kernels may be compiled
    seconds = in_peace(run("whole"))
    wanted, at, runs, different, unreadable, kills_of_runs = digest(folder / "whole.model"), [], 0, 0, 0, []
    while len(at) < kills:
        runs += 1
        killed = 0
        while not killed_or_done(run(f"run-{runs}"), chance.uniform(0, seconds)):
            killed += 1
            newest = RunFolder(folder / f"run-{runs}").newest()
            at.append(0 if newest is None else step_of(newest))
            unreadable += newest is not None and not readable(newest)
        kills_of_runs.append(killed)
        different += digest(folder / f"run-{runs}.model") != wanted
        print(f"run {runs}: {killed} kills, newest checkpoints {at[len(at) - killed :]}", flush=True)
    return {
        "settings": settings.to_dict(),
        "pairs": len(training),
        "seconds_of_a_whole_run": seconds,
        "runs": runs,
        "kills": len(at),
        "kills_of_a_run": {"median": statistics.median(kills_of_runs), "most": max(kills_of_runs)},
        "step_of_the_newest_checkpoint_at_each_kill": dict(sorted(Counter(at).items())),
        "unreadable": unreadable,
        "different": different,
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
        SafetensorsIO().load_checkpoint(checkpoint)
    except ValueError as error:
        print(error, file=sys.stderr)
        return False
    return True


def digest(model: Path) -> str:
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
