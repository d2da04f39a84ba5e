"""Reading of sentences, the output line of a translation, and progress bars."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dikkat.cli.messages import complain, printable
from dikkat.errors import InputError

if TYPE_CHECKING:
    from dikkat.translation import Translation

_BLOCK_SIZE = 1 << 16  # bytes, at most, of a read from standard input
_ONE_LINE = str.maketrans("\t\n\r", "   ")  # a byte-pair model could write these
COLUMNS = ("line", "confidence", "flags", "source", "target")
_ONE_LINE_OF_HTML = {ord(letter): f"&#{ord(letter)};" for letter in "\t\n\r\u2028\u2029"}


def groups(sentences: list[str] | None, file: Path | None) -> Iterator[Iterable[str]]:
    """Yield groups of sentences: all arguments, all lines of a file, or the available lines of standard input."""
    if sentences:
        yield sentences
    elif file:
        from dikkat.translation.data.corpus import read_lines

        yield read_lines(file)
    else:
        if sys.stdin.isatty():
            print("Type a sentence and press Enter; Ctrl-D ends.", file=sys.stderr)
        yield from read_stream(cast("BufferedReader", sys.stdin.buffer), "standard input")


def read_stream(stream: BufferedReader, name: str) -> Iterator[Iterator[str]]:
    """Yield the lines of a stream in groups, each as soon as it is available, so that interactive input works."""
    from dikkat.translation.data.corpus import MAX_CHARACTERS, decode_line

    number, rest, ended = 0, b"", False
    while not ended:
        block = stream.read1(_BLOCK_SIZE)
        *lines, rest = (rest + block).split(b"\n")
        ended = not block
        if rest and (ended or len(rest) > 5 * MAX_CHARACTERS):  # too long: decoding raises the error
            lines, rest = [*lines, rest], b""
        yield (decode_line(line, f"{name}, line {at}") for at, line in enumerate(lines, start=number + 1))
        number += len(lines)


def json_text(values: object, **layout: Any) -> str:
    """Return JSON without ASCII escapes, except for characters that control a terminal."""
    text = json.dumps(values, ensure_ascii=False, **layout)  # escapes the other control characters
    return re.sub(r"[\x7f-\x9f\u2028\u2029]", lambda letter: f"\\u{ord(letter[0]):04x}", text)


@contextmanager
def naming_lines(source: str | Path | None, lines: int | Sequence[int]) -> Iterator[None]:
    """Replace `sentences[i]` in errors by the line of the source, or by the number of the argument.

    `lines` is the number of lines before the first sentence, or the line number of each sentence.
    """
    try:
        yield
    except InputError as error:

        def position(match: re.Match[str]) -> str:
            index = int(match[1])
            return _position(source, lines + index + 1 if isinstance(lines, int) else lines[index])

        text = re.sub(r"^sentences\[(\d+)\]", position, str(error))
        raise type(error)(text) from error


def warn_about(translation: "Translation", source: str | Path | None, number: int) -> None:
    """Print one line with the problems of a translation, if it has any."""
    words = [word for word in dict.fromkeys(translation.unknown) if any(map(str.isalnum, word))]
    problems = [f"unknown words: {', '.join(words)}"] * bool(words)
    problems += ["the translation repeated itself and was cut"] * translation.repeated
    problems += ["the translation did not end and was cut"] * (not translation.finished)
    problems += [f"lost: {', '.join(dict.fromkeys(translation.lost))}"] * bool(translation.lost)
    problems += [f"invented numbers: {', '.join(dict.fromkeys(translation.invented))}"] * bool(translation.invented)
    problems += [f"unused terms: {', '.join(dict.fromkeys(translation.unused_terms))}"] * bool(translation.unused_terms)
    if problems:
        complain(f"{_position(source, number)}: {'; '.join(problems)}")


def _position(source: str | Path | None, number: int) -> str:
    return f"sentence {number}" if source is None else f"{source}, line {number}"


def json_line(number: int, translation: "Translation", *, weights: bool = False) -> str:
    """Return a translation as a line of JSON, with its (T, S) attention weights if `weights`."""
    values: dict[str, Any] = {"sentence": number, **vars(translation), "flags": translation.flags}
    values["alignment"] = translation.weights.argmax(1).tolist() if translation.target_tokens else []
    values["sources"] = [
        [{**source._asdict(), "weight": round(source.weight, 4)} for source in token_sources]
        for token_sources in translation.sources
    ]
    rows = values.pop("weights").tolist()
    if weights:
        values["weights"] = [[round(weight, 4) for weight in row] for row in rows]
    return json_text(values)


def line(number: int, translation: "Translation", *, numbered: bool, markup: bool = False) -> str:
    """Return a translation as a line of text."""
    target = one_line(translation.target, markup=markup)
    return f"{number}\t{translation.score:.3f}\t{target}" if numbered else target


def row(number: int, translation: "Translation", *, markup: bool = False) -> str:
    """Return a translation as a row of a table with the columns `COLUMNS`, separated by tabs."""
    confidence = "" if translation.confidence is None else f"{translation.confidence:.3f}"
    sides = (one_line(text, markup=markup) for text in (translation.source, translation.target))
    return "\t".join((str(number), confidence, ", ".join(translation.flags), *sides))


def one_line(text: str, *, markup: bool = False) -> str:
    """Return a text without line breaks and tabs, and without characters that control a terminal."""
    text = printable(text.translate(_ONE_LINE_OF_HTML if markup else _ONE_LINE))
    return text.replace("⟨85⟩", "\x85") if markup else text  # HTML has no reference for it


def line_count(file: Path | None) -> int | None:
    """Count the lines of a regular file, plain or .gz; return None for a pipe or a damaged file."""
    from dikkat.translation.data.corpus import read_lines

    if file is None or not file.is_file():
        return None
    try:
        return sum(1 for _ in read_lines(file))
    except (InputError, OSError):  # translation raises it again after the intact lines
        return None


@contextmanager
def progress(count: Callable[[], int | None], task_name: str = "translating") -> Iterator[Any]:
    """Yield a function to call after each sentence, which advances a bar on standard error.

    There is no bar if standard error is not a terminal, or if the translations appear on the terminal.
    """
    total = count() if sys.stderr.isatty() and not sys.stdout.isatty() else None
    if total is None:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(task_name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
