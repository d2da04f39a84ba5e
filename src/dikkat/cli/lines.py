"""Sentences in, as they come; translations out, a line each; and a progress bar on a terminal."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from dikkat.cli.messages import complain, printable
from dikkat.errors import InputError
from dikkat.translation import Translation
from dikkat.translation.data.corpus import MAX_CHARACTERS, decode_line, read_lines

_ARRIVING = 1 << 16  # bytes: most that are taken from standard input at once
_ONE_LINE = str.maketrans("\t\n\r", "   ")  # which a byte-pair model could write

_ONE_LINE_OF_HTML = {ord(letter): f"&#{ord(letter)};" for letter in "\t\n\r\u2028\u2029"}


def groups(sentences: list[str] | None, file: Path | None) -> Iterator[Iterable[str]]:
    """Sentences that can wait for each other: those given, those of a file, or what standard input has by now."""
    if sentences:
        yield sentences
    elif file:
        yield read_lines(file)
    else:
        if sys.stdin.isatty():
            print("Type a sentence and press Enter; Ctrl-D ends.", file=sys.stderr)
        yield from arriving(cast("BufferedReader", sys.stdin.buffer), "standard input")


def arriving(stream: BufferedReader, name: str) -> Iterator[Iterator[str]]:
    """The lines of a stream in groups of what has come: who types, or waits for an answer, need not write more."""
    number, rest, ended = 0, b"", False
    while not ended:
        block = stream.read1(_ARRIVING)
        *lines, rest = (rest + block).split(b"\n")
        ended = not block
        if rest and (ended or len(rest) > 5 * MAX_CHARACTERS):  # no sentence has so many bytes: decoding says so
            lines, rest = [*lines, rest], b""
        yield (decode_line(line, f"{name}, line {at}") for at, line in enumerate(lines, start=number + 1))
        number += len(lines)


def json_text(values: object, **layout: Any) -> str:
    """JSON in its own letters, except those that a terminal would obey."""
    text = json.dumps(values, ensure_ascii=False, **layout)  # which escapes the other control characters
    return re.sub(r"[\x7f-\x9f\u2028\u2029]", lambda letter: f"\\u{ord(letter[0]):04x}", text)


@contextmanager
def naming(place: str | Path | None, before: int) -> Iterator[None]:
    """Errors name the line of a file or of standard input, or the sentence that was given, and no Python index."""
    try:
        yield
    except InputError as error:
        pattern = r"^sentences\[(\d+)\]"
        text = re.sub(pattern, lambda found: _position(place, before + int(found[1]) + 1), str(error))
        raise type(error)(text) from error


def warn_about(translation: Translation, place: str | Path | None, number: int) -> None:
    """Print one line with the signs that a translation is wrong, if there are any."""
    words = [word for word in dict.fromkeys(translation.unknown) if any(map(str.isalnum, word))]
    signs = [f"not learnt by the model: {', '.join(words)}"] * bool(words)
    signs += ["the translation repeated itself and was cut"] * translation.repeated
    signs += ["the translation did not end and was cut"] * (not translation.finished)
    if signs:
        complain(f"{_position(place, number)}: {'; '.join(signs)}")


def _position(place: str | Path | None, number: int) -> str:
    return f"sentence {number}" if place is None else f"{place}, line {number}"


def line(number: int, translation: Translation, *, as_json: bool, numbered: bool, markup: bool = False) -> str:
    """A translation as a line of JSON or text."""
    if as_json:
        weights = [[round(weight, 4) for weight in row] for row in translation.weights.tolist()]
        most = translation.weights.argmax(1).tolist() if translation.target_tokens else []
        values = {"sentence": number, **vars(translation), "weights": weights, "alignment": most}
        return json_text(values)
    target = printable(translation.target.translate(_ONE_LINE_OF_HTML if markup else _ONE_LINE))
    target = target.replace("⟨85⟩", "\x85") if markup else target  # in HTML no reference says it
    return f"{number}\t{translation.score:.3f}\t{target}" if numbered else target


def line_count(file: Path | None) -> int | None:
    """The lines of a file that can be read twice, plain or .gz; None for others."""
    if file is None or not file.is_file():  # a pipe is no regular file
        return None
    try:
        return sum(1 for _ in read_lines(file))
    except (InputError, OSError):  # said when the lines are translated, after those before the damage
        return None


@contextmanager
def progress(count: Callable[[], int | None], doing: str = "translating") -> Iterator[Any]:
    """A function to call after each sentence.

    It draws a bar on standard error where that is a terminal, unless the translations go to a terminal too: there the
    lines themselves show how far it is.
    """
    total = count() if sys.stderr.isatty() and not sys.stdout.isatty() else None
    if total is None:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
