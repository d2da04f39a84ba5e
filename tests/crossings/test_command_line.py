"""Every command × what it reads × where it writes: 544 cells, of which 380 are left out by three reasons.

A command enters all rows by being named in `COMMANDS`. Each cell is a call in a process that is forked off this one,
and has to end with the right status; say what is wrong in one line, which names what the user gave; and leave no part
of a file behind.
"""

import gc
import os
import pty
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from dikkat.cli import main
from dikkat.cli.app import _COMMANDS
from translation.taught import PAIRS, taught_model

QUICK = "--epochs 1 --hidden-size 8 --embedding-size 8 --min-freq 1"
NOBODY = 65534
HEADER = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'


@dataclass(frozen=True)
class Command:
    """How a command is called, by the first word of its name in `COMMANDS`.

    Attributes:
        line: Its arguments; IN is what it reads, OUT what it writes, MODEL a translator.
        reads: What IN is: pairs, sentences, a table or a model.
        writes: What OUT is: a file or a folder.
        stdin: The arguments with which it reads standard input; else /dev/stdin is named in the place of IN.
    """

    line: str
    reads: str | None = None
    writes: str | None = None
    stdin: str | None = None


COMMANDS = {
    "train": Command(f"--corpus IN --validation none --output OUT {QUICK}", "pairs", "folder"),
    "train --from": Command(
        "--from MODEL --corpus PAIRS --validation VALIDATION --corrections IN --output OUT --epochs 1",
        "corrections",
        "folder",
    ),
    "translate": Command("MODEL --file IN", "sentences", stdin="MODEL"),
    "translate a catalogue": Command("MODEL --file IN --output OUT", "messages.po", "file"),
    "align": Command("MODEL IN --output OUT", "pairs", "file"),
    "evaluate": Command("MODEL --corpus IN --report OUT", "pairs", "folder"),
    "show": Command("MODEL --file IN --output OUT", "sentences", "folder"),
    "compare": Command("MODEL CORRECTED --file IN --output OUT", "sentences", "file"),
    "correct": Command("CORRECTED IN", "pairs"),
    "info": Command("IN", "model"),
    "quantize": Command("IN --output OUT", "model", "folder"),
    "export": Command("IN --html OUT", "model", "file"),
    "serve": Command("IN --port 0", "model"),
    "recipes": Command(""),
    "regress": Command(
        "IN --target y --folds 0 --output OUT", "table", "folder", stdin="- --target y --folds 0 -o OUT"
    ),
    "warm": Command(""),
    "report": Command(""),
}
INPUTS = ("file", "standard input", "pipe", "missing", "folder", "unreadable", "empty")
# A terminal, a file, a full disk and a reader who has gone are at standard output; the last two are where OUT is, and
# the disk there is full by a limit of 0 bytes a file, which a write meets as it meets a full disk, by another number.
OUTPUTS = ("terminal", "file", "full", "closed", "full disk", "read-only")

LEFT_OUT = {
    "warm": "compiles for minutes; tests/cli/test_warm.py",
    "serve of a model": "goes on until Ctrl-C; tests/translation/test_cli_serve.py",
    "an odd input × an odd output": "a bad input is said before anything is written; a good one is the same text",
}


def _left_out(name: str, given: str, output: str) -> str | None:
    """The reason why a cell is not looked at."""
    if name == "serve" and given == "file":
        name = "serve of a model"
    elif given not in ("file", "none") and output != "file":
        name = "an odd input × an odd output"
    return LEFT_OUT.get(name)


# What they print is their result, and goes to OUT.
SILENT = ("train", "train --from", "translate a catalogue", "align", "correct")
# A model is a folder, and a corpus is read twice: neither comes through a pipe.
READ_TWICE = ["train", "train --from", "translate a catalogue", "correct", "evaluate"]
REFUSED = {(name, given) for name in (*READ_TWICE, "info", "quantize", "export", "serve") for given in INPUTS[1:3]}
# No sentence is as good as any other number.
DONE = {("translate", "empty"), ("translate a catalogue", "empty"), ("align", "empty")}
# Status and message where no name helps: of all sentences.
OWN = {(name, "empty"): (2, "every sentence is empty") for name in ("show", "compare")}


EVERY = [
    (name, given, output)
    for name, command in COMMANDS.items()
    for given in (INPUTS if command.reads else ("none",))
    for output in (OUTPUTS if command.writes else OUTPUTS[:4])
]
CELLS = [cell for cell in EVERY if _left_out(*cell) is None]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that anybody may enter, with one of everything that a command reads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for copy in ("model", "corrected"):
            shutil.copytree(taught_model(tmp_path_factory), folder / copy)
        texts = {
            "pairs": "".join(f"{source}\t{target}\n" for source, target in PAIRS),
            "corrections": "She won.\tElle a gagné.\n",
            "validation": "I won.\tJ'ai gagné.\n",
            "messages.po": HEADER + 'msgid "Go."\nmsgstr ""\n',
            "sentences": "".join(f"{source}\n" for source, _ in PAIRS[:2]),
            "table": "x,y\n" + "".join(f"{x},{x * x}\n" for x in np.linspace(0, 3, 17)),
        }
        for kind, text in texts.items():
            (folder / kind).write_text(text, encoding="utf-8")
            (folder / f"unreadable-{kind}").write_text(text, encoding="utf-8")
            (folder / f"unreadable-{kind}").chmod(0)
            (folder / f"empty-{kind}").touch()
        (folder / "unreadable-model").mkdir(mode=0)
        (folder / "empty-model").touch()
        (folder / "folder").mkdir()
        for name in COMMANDS:  # what is imported and compiled here is there in all processes that are forked off
            if name != "warm":
                given = "missing" if name == "serve" else "file"
                line, _, _ = arguments(folder, name, given, folder / f"warm-{name}")
                run(line)
        gc.collect()
        gc.freeze()  # so that a child's collector does not write to, and so copy, all that is here
        yield folder
        gc.unfreeze()
    torch.set_num_threads(threads)


def arguments(world: Path, name: str, given: str, out: Path) -> tuple[list[str], str, bytes]:
    """The command line, the name of its input in it, and what comes by standard input."""
    command, kind = COMMANDS[name], COMMANDS[name].reads
    line, source, content = command.line, str(world / f"{given}-{kind}"), b""
    if given == "file":
        source = str(world / str(kind))
    elif given == "folder":
        source = str(world / "folder")
    elif given in INPUTS[1:3]:
        source, content = "/dev/stdin", b"" if kind == "model" else (world / str(kind)).read_bytes()
        if given == "pipe":
            source = str(out.parent / "pipe")
            os.mkfifo(source)
        elif command.stdin:
            line, source = command.stdin, "standard input"
    words = {
        "IN": source,
        "OUT": str(out),
        "MODEL": str(world / "model"),
        "CORRECTED": str(world / "corrected"),
        "PAIRS": str(world / "pairs"),
        "VALIDATION": str(world / "validation"),
    }
    return [name.split()[0], *(words.get(each, each) for each in line.split())], source, content


def call(line: list[str], content: bytes, output: str, obedient: bool) -> tuple[int, str, str]:
    """Status, standard output and standard error of a command in a process of its own."""
    ends = {"in": os.pipe(), "out": pty.openpty() if output == "terminal" else os.pipe(), "err": os.pipe()}
    if (child := os.fork()) == 0:
        os._exit(_child(line, output, ends, obedient))
    for name, (read, write) in ends.items():
        os.close(read if name == "in" else write)
    pipe = next((each for each in line if each.endswith("/pipe")), None)
    if pipe is None:
        os.write(ends["in"][1], content)
    elif (writer := os.fork()) == 0:
        with suppress(OSError):
            Path(pipe).write_bytes(content)
        os._exit(0)
    os.close(ends["in"][1])
    said = []
    for read in (ends["out"][0], ends["err"][0]):
        with suppress(OSError), os.fdopen(read, "rb", 0) as file:  # a terminal's end is an error
            blocks = []
            said.append(blocks)
            while block := file.read(1 << 16):
                blocks.append(block)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if pipe is not None:
        os.kill(writer, signal.SIGKILL)  # where nobody has read, it waits
        os.waitpid(writer, 0)
    out, err = (b"".join(blocks).decode() for blocks in said)
    return status, out, err


def _child(line: list[str], output: str, ends: dict[str, tuple[int, int]], obedient: bool) -> int:
    """Become the command, and return its exit status."""
    os.dup2(ends["in"][0], 0)
    os.dup2(ends["err"][1], 2)
    os.dup2(os.open("/dev/full", os.O_WRONLY) if output == "full" else ends["out"][1], 1)
    if output == "closed":
        os.close(ends["out"][0])
        os.dup2(_unread(), 1)
    for read, write in ends.values():
        os.close(read) if output != "closed" or read != ends["out"][0] else None
        os.close(write)
    if output == "full disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # of regular files alone
    if os.geteuid() == 0 and obedient:
        os.setgroups([])
        os.setresuid(NOBODY, NOBODY, NOBODY)  # who obeys permissions
    sys.stdin, sys.stdout, sys.stderr = (open(fd, mode, closefd=False) for fd, mode in enumerate("rww"))  # noqa: SIM115
    status = run(line)
    try:
        sys.stdout.flush()  # as Python does at its end
    except OSError as error:
        print(f"Traceback: {error!r} at the end", file=sys.stderr, flush=True)
        status = 120
    with suppress(ValueError, OSError):
        sys.stderr.flush()
    return status


def run(line: list[str]) -> int:
    """The status of a command, run in this process; each picture is a few letters: to draw it takes a second."""
    sys.argv = ["dikkat", *line]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, content, **options: content.write(b"a picture"))
        patch.setattr(Figure, "draw", lambda self, renderer: None)
        patch.setattr(Figure, "__deepcopy__", lambda self, memo: self, raising=False)
        try:
            main()
        except SystemExit as stopped:
            return stopped.code or 0
        except BaseException as error:
            print(f"Traceback: {error!r}", file=sys.stderr, flush=True)
    return 1


def _unread() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


def test_every_command_is_in_the_table() -> None:
    assert {name.split()[0] for name in COMMANDS} == set(_COMMANDS)
    counts = re.search(r"(\d+) cells, of which (\d+) are left out", __doc__)
    assert tuple(map(int, counts.groups())) == (len(EVERY), len(EVERY) - len(CELLS))


@pytest.mark.parametrize(("name", "given", "output"), CELLS)
def test_a_command_ends_as_it_should(world: Path, tmp_path: Path, name: str, given: str, output: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "made"
        place.mkdir()
        Path(folder).chmod(0o755)
        place.chmod(0o555 if output == "read-only" else 0o777)
        line, source, content = arguments(world, name, given, place / "out")
        status, _, err = call(line, content, output, obedient=given == "unreadable" or output == "read-only")
        made = {path.relative_to(place).as_posix(): path.stat().st_size for path in place.rglob("*") if path.is_file()}
    assert "Traceback" not in err, err
    said = [line for line in err.splitlines() if line.startswith("dikkat: ")]
    parts = [path for path, size in made.items() if ".part" in path or not (size or "lock" in path or given == "empty")]
    assert not parts, made
    writes = COMMANDS[name].writes
    if (name, given) in OWN:
        assert status == OWN[name, given][0], err
        assert OWN[name, given][1] in err
        return
    if (name, given) in REFUSED or given in INPUTS[3:-1] or (given == "empty" and (name, given) not in DONE):
        culprit = source
    elif output in ("full disk", "read-only"):
        culprit = str(place / "out") if output == "full disk" or writes == "file" else str(place)
    elif output == "full" and name not in SILENT:
        culprit = "standard output"
    else:
        assert (status, said) == (int(output == "closed" and name not in SILENT), []), err
        assert bool(writes) == bool(made)
        return
    assert status == 2, err
    assert len(said) == 1, err
    assert culprit in said[0], (culprit, err)
