"""`dikkat translate` of texts that are too long for one process: in pieces, by shards or by workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dikkat.cli import lines
from dikkat.errors import InputError
from dikkat.storage.folders import digest
from dikkat.translation.decoding.options import Search
from dikkat.translation.decoding.shards import Piece, Pieces, Shard
from dikkat.translation.decoding.translator import Translates

# Lines of a piece: whole windows of the translator, so that what is translated in pieces is what is translated at once;
# and from about a second's work on, so that a piece costs little beside it.
_WINDOWS, _LINES = 16, 8192


def pieces(
    source: Path, folder: Path, models: Sequence[Path], batch_size: int, search: Search, *, as_json: bool
) -> Pieces:
    """The translation of a file, or of a folder of files, into a folder of pieces."""
    window = _WINDOWS * batch_size
    made_by = {
        "models": [_sum(model) for model in models],
        "batch size": batch_size,
        "search": dict(vars(search)),
        "json": as_json,
    }
    if search.sample:
        raise InputError("--sample is given with --pieces: random translations would be others in pieces; leave it out")
    return Pieces(source, folder, window * max(1, _LINES // window), made_by)


def _sum(model: Path) -> str:
    """A sum over a model folder's files."""
    if not model.is_dir():
        raise InputError(f"{model}: got no folder; expected a model folder that `dikkat train` made")
    sums = [f"{path.name} {digest(path.read_bytes())}" for path in sorted(model.iterdir()) if path.is_file()]
    return digest("\n".join(sums).encode())[:16]


def translate(
    work: Pieces, shard: Shard, load: Callable[[], Translates], batch_size: int, search: Search, *, as_json: bool
) -> None:
    """Translate a shard's pieces."""
    translator = load()

    def texts(piece: Piece) -> Iterator[str]:
        found = translator.translate_n_best(piece.lines(), batch_size=batch_size, search=search)
        for number, best in enumerate(found, start=piece.first):
            each = (lines.line(number, one, as_json=as_json, numbered=search.n_best > 1) for one in best)
            yield "".join(f"{text}\n" for text in each)

    for _ in work.translate(shard, texts):
        pass


def by_workers(work: Pieces, workers: int) -> None:
    """Let so many processes of this machine translate a shard each, with the arguments of this one.

    One that is killed is started again, unless nothing has been done since it was started.

    Raises:
        InputError: A worker failed, with what it said; what is done is kept.
    """
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}
    arguments = _without(sys.argv[1:], "--workers")

    def start(number: int) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-m", "dikkat", *arguments, f"--shard={number}/{workers}"]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment), work.done()

    running = {number: start(number) for number in range(1, workers + 1)}
    failed = ""
    try:
        while running:
            for number, (process, done) in list(running.items()):
                try:
                    _, said = process.communicate(timeout=0.1)
                except subprocess.TimeoutExpired:
                    continue
                del running[number]
                if process.returncode < 0 and work.done() > done and not failed:
                    running[number] = start(number)
                elif process.returncode:
                    failed = failed or _last_line(said) or f"worker {number} of {workers} was killed; start it again"
    finally:
        for process, _ in running.values():
            process.terminate()
            process.communicate()
    if failed:
        raise InputError(failed)


def _last_line(said: str) -> str:
    return said.strip().rpartition("\n")[2].removeprefix("dikkat: ")


def _without(arguments: list[str], option: str) -> list[str]:
    """Arguments without an option and its value."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument.partition("=")[0] != option:
            kept.append(argument)
        skip = argument == option
    return kept


def collect(work: Pieces) -> None:
    """Write the pieces, joined and checked, to standard output."""
    for content in work.collect():
        sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
