"""A text of 10⁶ lines, translated in shards whose workers are killed, beside one process left in peace.

    python -m tests.stress.shards [--lines 1000000] [--kills 10] [--seed 0]

Each line is a sentence of the phrasebook behind its own number, which a small model, trained for a minute, copies: so a
line that is lost, doubled or moved shows. The text lies in several files, plain and .gz, one without an end of
its last line. It is translated

- by one process, file by file, left in peace;
- in 8 shards by two workers at a time, of which one is killed (SIGKILL) at random moments, `--kills` times, and its
  shard started again;
- by `--workers 2`, one of whose processes is killed;

and what `--collect` joins is compared with what the one process wrote, byte for byte. Moments are drawn in pieces done
and a part of a piece, so that a machine's speed does not decide how many kills there are.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.kit.processes import environment
from benchmarks.kit.report import write
from dikkat.translation import Settings, phrasebook
from dikkat.translation.training.train import train

SHARDS, WORKERS = 8, 2
# Which share of the lines each file has, and whether it is compressed and its last line ends.
FILES = {
    "a.en.gz": (0.31, True),
    "b.en": (0.13, True),
    "c.en": (0.37, False),
    "d.en.gz": (0.19, True),
}
SETTINGS = Settings(
    embedding_size=16, hidden_size=16, learning_rate=0.01, dropout=0.0, batch_size=64, max_length=20, epochs=2,
    max_minutes=1.5,
)  # fmt: skip
# A large batch is most of the speed of a model as small as this one.
SEARCH = ("--batch-size", "256", "--beam", "1")


def model(folder: Path, seed: int) -> Path:
    """A model that copies the number before a sentence, as far as it has learnt that, and translates the rest."""
    chance = random.Random(seed)
    numbers = chance.sample(range(10**7), len(phrasebook.pairs()))  # each once, so that none is in the vocabulary
    pairs = [(f"{n} {one}", f"{n} {other}") for n, (one, other) in zip(numbers, phrasebook.pairs(), strict=True)]
    train(SETTINGS, pairs, progress=False).translator.save(folder / "model")
    return folder / "model"


def text(folder: Path, lines: int, seed: int) -> Path:
    """The text as a folder of files."""
    sentences, chance = [one for one, _ in phrasebook.pairs()], random.Random(seed)
    texts, first = folder / "texts", 0
    texts.mkdir()
    for name, (share, ends) in FILES.items():
        count = round(share * lines) if name != max(FILES) else lines - first
        content = "\n".join(f"{number} {chance.choice(sentences)}" for number in range(first, first + count)).encode()
        content += b"\n" if ends else b""
        (texts / name).write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
        first += count
    return texts


def dikkat(*words: object) -> list[str]:
    return [sys.executable, "-m", "dikkat", "translate", *map(str, words)]


def alone(model: Path, texts: Path, into: Path) -> None:
    """What one process writes, file by file."""
    with into.open("wb") as out:
        for file in sorted(texts.iterdir()):
            subprocess.run(dikkat(model, "--file", file, *SEARCH), stdout=out, env=_ENVIRONMENT, check=True)


class Killer:
    """Says when a worker is to be killed: when so many pieces are done, and a part of the time of one has passed."""

    def __init__(self, pieces: Path, total: int, kills: int, chance: random.Random) -> None:
        self.pieces, self.chance = pieces, chance
        self.due = sorted(chance.randrange(total * 9 // 10) for _ in range(kills))
        self.killed: list[dict[str, Any]] = []
        self._at: float | None = None
        self._begin = time.monotonic()

    def look(self, running: dict[int, subprocess.Popen[bytes]]) -> None:
        """Kill one of those that run, if it is time to."""
        if not self.due or not running:
            return
        done = sum(1 for _ in self.pieces.glob("*.piece"))
        if self._at is None and done >= self.due[0]:
            self._at = time.monotonic() + self.chance.uniform(0, 2)  # seconds: a piece takes one or two
        if self._at is not None and time.monotonic() >= self._at:
            shard = self.chance.choice(sorted(running))
            if running[shard].poll() is None:
                running[shard].kill()
                moment = round(time.monotonic() - self._begin, 2)
                self.killed.append({"shard": shard, "pieces_done": done, "second": moment})
                self.due.pop(0)
                self._at = None


def by_shards(words: list[str], pieces: Path, total: int, kills: int, chance: random.Random) -> dict[str, Any]:
    """Eight shards by two workers at a time, some of which are killed."""
    waiting, running = list(range(1, SHARDS + 1)), dict[int, subprocess.Popen[bytes]]()
    killer, starts = Killer(pieces, total, kills, chance), 0
    while waiting or running:
        while waiting and len(running) < WORKERS:
            shard, starts = waiting.pop(0), starts + 1
            running[shard] = subprocess.Popen([*words, f"--shard={shard}/{SHARDS}"], env=_ENVIRONMENT)
        time.sleep(0.02)
        killer.look(running)
        for shard, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[shard]
            if process.returncode == -signal.SIGKILL:
                waiting.insert(0, shard)
            elif process.returncode:
                raise RuntimeError(f"shard {shard} ended with status {process.returncode}")
    if len(killer.killed) != kills:
        raise SystemExit(f"only {len(killer.killed)} of {kills} were killed: give more lines")
    return {"starts": starts, "killed": killer.killed}


def by_workers(words: list[str], pieces: Path, total: int) -> dict[str, Any]:
    """`--workers 2`, one of whose processes is killed when a third of the pieces is done."""
    killed = None
    with subprocess.Popen([*words, f"--workers={WORKERS}"], env=_ENVIRONMENT) as process:
        while process.poll() is None:
            time.sleep(0.02)
            done = sum(1 for _ in pieces.glob("*.piece"))
            if killed is None and done >= total // 3:
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                if children:
                    subprocess.run(["kill", "-KILL", children[0]], check=True)
                    killed = done
    if process.returncode:
        raise RuntimeError(f"--workers ended with status {process.returncode}")
    if killed is None:
        raise SystemExit("nothing was killed: give more lines")
    return {"pieces_done_at_the_kill": killed}


def judged(made: Path, wanted: Path, lines: int) -> dict[str, Any]:
    """What was joined beside what one process wrote."""
    with made.open("rb") as file:
        numbers = [line.split(b" ", 1)[0].strip() for line in file]
    counted = [int(number) for number in numbers if number.isdigit()]
    return {
        "lines": len(numbers),
        "same_bytes": _sum(made) == _sum(wanted),
        "sha256": _sum(made),
        "lines_that_begin_with_a_number": len(counted),
        "lines_that_begin_with_their_own": sum(number == b"%d" % at for at, number in enumerate(numbers)),
        "distinct_numbers": len(set(counted)),
        "of_lines": lines,
    }


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# One thread each: the two workers share two cores.
_ENVIRONMENT = environment(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10**6)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    results: dict[str, Any] = {"lines": given.lines, "shards": SHARDS, "workers": WORKERS, "seconds": {}}
    with tempfile.TemporaryDirectory() as name:
        for what, found in run(Path(name), given.lines, given.kills, given.seed):
            results["seconds"][what] = found.pop("seconds")
            if found:
                results[what] = found
            print(what, json.dumps(found), f"{results['seconds'][what]:.0f} s", flush=True)
    if given.write:
        print(write("scale-shards", results))
    for what in ("shards", "workers"):
        found = results[f"by {what}"]["joined"]
        if not found["same_bytes"] or found["lines"] != given.lines:
            sys.exit(f"by {what}: not what one process writes")


def run(folder: Path, lines: int, kills: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each thing that is done: what, and what it came to."""
    begin = time.monotonic()

    def passed(**found: Any) -> dict[str, Any]:
        nonlocal begin
        seconds, begin = time.monotonic() - begin, time.monotonic()
        return {"seconds": seconds, **found}

    learnt = model(folder, seed)
    yield "training the model", passed()
    texts = text(folder, lines, seed)
    yield "making the text", passed(files=[file.name for file in sorted(texts.iterdir())])
    one = folder / "one"
    alone(learnt, texts, one)
    yield "one process", passed(bytes=one.stat().st_size)
    from dikkat.cli.sharded import pieces as planned
    from dikkat.translation.decoding.options import GREEDY

    size = planned(texts, folder / "plan", [learnt], 256, GREEDY, as_json=False).size
    total = sum(-(-round(share * lines) // size) for share, _ in FILES.values())
    for what in ("by shards", "by workers"):
        place, joined = folder / what.replace(" ", "-"), folder / f"{what}.joined"
        words = dikkat(learnt, "--file", texts, *SEARCH, "--pieces", place)
        found = (
            by_shards(words, place, total, kills, random.Random(seed))
            if what == "by shards"
            else by_workers(words, place, total)
        )
        seconds = passed()["seconds"]
        with joined.open("wb") as out:
            subprocess.run([*words, "--collect"], stdout=out, env=_ENVIRONMENT, check=True)
        left = [path.name for path in place.glob(".*")]
        count = sum(1 for _ in place.glob("*.piece"))
        verdict = judged(joined, one, lines)
        yield what, {"seconds": seconds, **found, "pieces": count, "leftovers": left, "joined": verdict}
        begin = time.monotonic()


if __name__ == "__main__":
    main()
