"""Texts of any length, translated piece by piece, by any number of processes that share a folder.

A piece is so many lines of a file. It is a file of its own, which appears whole or not at all, and says which lines it
holds, of which source, with sums of both: so a process that is killed loses the piece that it was at, another may go
on, and what is joined in the end is complete or refused.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from dikkat.errors import InputError
from dikkat.storage.files import parse_json, write_whole
from dikkat.storage.folders import digest, remove_leftovers
from dikkat.storage.headers import check_header, header
from dikkat.storage.locks import LockedError, locked
from dikkat.translation.data.corpus import decode_line, raw_lines

_FORMAT, _VERSION = "dikkat pieces of a translation", 1
_PLAN, _LOCKS = "plan.json", "locks"
# Bytes at either end of a file by which it is known again without reading all of it.
_ENDS = 2**16


class Shard(NamedTuple):
    """Which pieces a process translates: each `total`-th, from the `number`-th on.

    Attributes:
        number: From 1.
        total: How many shards there are.
    """

    number: int
    total: int

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] = os.environ) -> "Shard":
        """A shard as it is written: "3/64"; or "env", as torchrun and Slurm tell their processes.

        Raises:
            InputError: It is written otherwise, or there is no such shard.

        Example:
            >>> Shard.parse("3/64")
            Shard(number=3, total=64)
            >>> Shard.parse("env", {"RANK": "2", "WORLD_SIZE": "64"})
            Shard(number=3, total=64)
        """
        came = text
        if text == "env":
            for rank, world in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
                if rank in environment and world in environment:
                    came = f"{rank} {environment[rank]} of {world} {environment[world]}"
                    with suppress(ValueError):
                        text = f"{int(environment[rank]) + 1}/{environment[world]}"
                    break
            else:
                raise InputError(
                    "shard: got env, and neither RANK and WORLD_SIZE nor SLURM_PROCID and SLURM_NTASKS are set; "
                    "expected torchrun or Slurm to have started this process, or a shard such as 3/64"
                )
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        shard = cls(int(found[1]), int(found[2])) if found else cls(0, 0)
        if not 1 <= shard.number <= shard.total:
            raise InputError(f"shard: got {came}; expected one of 1/N to N/N, such as 3/64")
        return shard


class Piece(NamedTuple):
    """Lines of one file that are translated together.

    Attributes:
        source: The file.
        name: Its name in the folder of files, or of the file.
        place: Which of the file's pieces it is, from 0.
        first: The number of its first line, from 1.
        raw: The lines as they stand.
    """

    source: Path
    name: str
    place: int
    first: int
    raw: list[bytes]

    def lines(self) -> Iterator[str]:
        """The sentences."""
        for number, line in enumerate(self.raw, start=self.first):
            yield decode_line(line, f"{self.source}, line {number}", first=number == 1)


@dataclass(frozen=True)
class Pieces:
    """A translation in pieces.

    Args:
        source: A file of sentences, or a folder of such files, taken in the order of their names' characters. Names
            that begin with a dot do not count.
        folder: Where the pieces are written.
        size: Lines of a piece.
        made_by: What makes the translations: model and options. Pieces made by something else are not joined with them.

    Raises:
        InputError: The folder has pieces of another source, or made otherwise; or there is nothing to translate.
        OSError: The system could not read or write.
    """

    source: Path
    folder: Path
    size: int
    made_by: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"size: got {self.size} lines a piece; expected at least 1")
        (self.folder / _LOCKS).mkdir(parents=True, exist_ok=True)
        plan = {**header(_FORMAT, _VERSION), "lines": self.size, "made by": dict(self.made_by), "files": self._files()}
        with locked(self.folder / _LOCKS / "plan", wait=True):
            path = self.folder / _PLAN
            if path.exists():
                self._check(path, json.loads(json.dumps(plan)))
            else:
                _write(path, json.dumps(plan, ensure_ascii=False, indent=1))

    def translate(self, shard: Shard, translate: Callable[[Piece], Iterator[str]]) -> Iterator[int]:
        """Translate a shard's pieces, but for those that are done, and yield how many lines each has.

        Args:
            shard: Which.
            translate: The translations of a piece: for each line its text, with its end.

        Raises:
            InputError: Another process is at this shard, a line is no sentence, or the source has changed.
            OSError: The system could not write: the pieces that are done are whole.
        """
        try:
            with locked(self.folder / _LOCKS / f"{shard.number}-of-{shard.total}", wait=False):
                for piece in self._pieces(shard):
                    if self._path(piece).exists():
                        self._read(piece)
                    else:
                        self._write(piece, translate)
                    yield len(piece.raw)
        except LockedError as holder:
            raise InputError(
                f"shard: {shard.number}/{shard.total} is being translated by {holder}; wait for it, or end it"
            ) from None

    def done(self) -> int:
        """How many pieces are done."""
        return sum(1 for _ in self.folder.glob("*.piece"))

    def collect(self) -> Iterator[bytes]:
        """What was translated, piece by piece, in the order of the lines, and of the files' names.

        All of it is checked before the first piece comes.

        Raises:
            InputError: A piece is missing, or damaged, or the source has changed.
        """
        missing, first = 0, ""
        for piece in self._pieces(Shard(1, 1)):  # all of them, before anything is handed out
            if self._path(piece).exists():
                self._read(piece)
            else:
                missing += 1
                first = first or f"{piece.first:,} to {piece.first + len(piece.raw) - 1:,} of {piece.name}"
        if missing:
            raise InputError(
                f"{self.folder}: {missing:,} {'piece is' if missing == 1 else 'pieces are'} missing, the first with "
                f"lines {first}; translate the shards that are not done once more: what is done is kept"
            )
        remove_leftovers(self.folder)
        for piece in self._pieces(Shard(1, 1)):
            yield self._read(piece)

    @property
    def _sources(self) -> list[Path]:
        if not self.source.is_dir():
            return [self.source]
        found = sorted(self.source.iterdir(), key=lambda path: path.name)  # the same order on every system
        found = [path for path in found if not path.name.startswith(".")]
        if folder := next((path for path in found if path.is_dir()), None):
            raise InputError(f"{folder}: got a folder within the folder of files; expected files alone")
        if other := next((path for path in found if not path.is_file()), None):
            raise InputError(f"{other}: got a name that leads to no file; expected files alone")
        return found

    def _files(self) -> dict[str, list[Any]]:
        """The files by name, each with its size and a sum over its beginning and end."""
        found = {}
        for path in self._sources:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(0)
                ends = file.read(_ENDS)
                file.seek(max(0, size - _ENDS))
                found[path.name] = [size, digest(ends + file.read())]
        if not found:
            raise InputError(f"{self.source}: got a folder without files; expected files of sentences")
        return found

    def _check(self, path: Path, plan: Mapping[str, Any]) -> None:
        """Hold what is to be done against what was begun."""
        try:
            begun = check_header(parse_json(path.read_bytes()), _FORMAT, (_VERSION,), "choose another folder")
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None
        if begun.get("files") != plan["files"]:
            before, now = begun.get("files") or {}, plan["files"]
            changed = next(name for name in sorted({*before, *now}) if before.get(name) != now.get(name))
            raise InputError(
                f"{changed}: the file is another than when {self.folder} was begun; expected the same: translate it "
                "into another folder"
            )
        for name in ("lines", "made by"):
            if begun.get(name) != plan[name]:
                raise InputError(
                    f"{self.folder}: got {name} {_difference(begun.get(name), plan[name])}; expected as it was begun: "
                    "give the same model and options, or another folder"
                )

    def _pieces(self, shard: Shard) -> Iterator[Piece]:
        """The pieces of a shard, in order; the lines of others are passed over as they stand."""
        number = 0
        for path in self._sources:
            raw, index = raw_lines(path), 0
            while lines := list(islice(raw, self.size)):
                if number % shard.total == shard.number - 1:
                    yield Piece(path, path.name, index, index * self.size + 1, lines)
                number, index = number + 1, index + 1

    def _path(self, piece: Piece) -> Path:
        return self.folder / f"{piece.name}.{piece.place:09}.piece"

    def _said(self, piece: Piece, content: bytes) -> dict[str, Any]:
        source = hashlib.sha256(b"".join(piece.raw)).hexdigest()
        said = {"file": piece.name, "first": piece.first, "lines": len(piece.raw), "source": source}
        return {**header(_FORMAT, _VERSION), **said, "content": digest(content)}

    def _write(self, piece: Piece, translate: Callable[[Piece], Iterator[str]]) -> None:
        texts = list(translate(piece))
        if len(texts) != len(piece.raw):  # pragma: no cover - a translator returns one for each
            raise RuntimeError(f"{len(texts)} translations of {len(piece.raw)} lines")
        content = "".join(texts).encode()
        head = json.dumps(self._said(piece, content), ensure_ascii=False)
        _write(self._path(piece), f"{head}\n".encode() + content)

    def _read(self, piece: Piece) -> bytes:
        """A piece that is done, checked against its own sums, and against the source as it is now."""
        path = self._path(piece)
        head, _, content = path.read_bytes().partition(b"\n")
        try:
            said = parse_json(head)
        except ValueError:
            said = None
        now = self._said(piece, content)
        if not isinstance(said, dict) or said.get("content") != now["content"]:
            raise InputError(f"{path}: the piece is damaged; remove it, and translate again: the others are kept")
        if said != now:
            raise InputError(
                f"{path}: its lines are other lines of {piece.name} than now; translate the file that has changed into "
                "another folder"
            )
        return content


def _write(path: Path, content: bytes | str) -> None:
    """Write a file; a fault, such as a full disk, of which the system itself may not say where, names it."""
    try:
        write_whole(path, content)
    except OSError as error:
        what = f"{error.strerror or error}; pieces that are done are kept: start again when that is mended"
        raise OSError(error.errno, what, str(path)) from error


def _difference(before: Any, now: Any) -> str:
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return f"{now}, and {before} before"
    name = next(name for name in sorted({*before, *now}) if before.get(name) != now.get(name))
    return f"{name} {now.get(name)}, and {before.get(name)} before"
