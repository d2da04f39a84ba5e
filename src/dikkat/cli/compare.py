"""`dikkat compare`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dikkat.cli.app import Command, app, option
from dikkat.cli.messages import in_browser, suggest
from dikkat.cli.options import FileOption, naming_options, read_search, search_options, with_options
from dikkat.cli.train import run_folder_of
from dikkat.errors import InputError

if TYPE_CHECKING:
    from dikkat.show.comparison import Side
    from dikkat.translation import Search, Translator


@app.command(
    cls=Command,
    epilog="Examples:\n\ndikkat compare my-model my-other-model --file letters.en\n\n"
    'dikkat compare my-model --line "She is tired."',
)
@with_options({"beam": search_options()["beam"]})
def compare(
    model: Annotated[Path, typer.Argument(help="A model folder from `dikkat train`.", show_default=False)],
    second: Annotated[
        Path | None,
        typer.Argument(
            help="Another model folder. Without it, MODEL is compared with its epochs, from `dikkat train "
            "--keep-epochs`.",
            show_default=False,
        ),
    ] = None,
    line: Annotated[list[str] | None, option("A sentence. Repeatable.", "TEXT")] = None,
    file: FileOption = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.", metavar="FILE")] = Path(
        "comparison.html"
    ),
    **options: Any,
) -> None:
    """Write a page on which two models, or the epochs of a training, translate the same sentences side by side.

    Without --line and --file, the page has the held-out sentences that are stored with the model.
    """
    from dikkat.show.comparison import Side, comparison_page
    from dikkat.storage.files import write_whole
    from dikkat.translation import Translator
    from dikkat.translation.formats.model_folder import absolute

    if line and file is not None:
        raise InputError("got --line and --file; give only one of them")
    search = read_search(options)
    folders = [absolute(folder) if folder.name in ("", "..") else folder for folder in (model, second or model)]
    names = _names(folders) if second else (folders[0].name,)
    translators = [Translator.load(folder) for folder in (folders if second else folders[:1])]
    languages = _languages(translators, folders)
    lines = _lines(line, file, translators, model)
    with naming_options():
        if second is None:
            sides = _compare_epochs(translators[0], folders[0], lines, search)
        else:
            first, last = (
                Side(name, [], [translator.translate(lines, search=search)])
                for name, translator in zip(names, translators, strict=True)
            )
            sides = first, last
    page = comparison_page(sides, title=" · ".join(names), source_language=languages[0], target_language=languages[1])
    write_whole(output, page)
    print(f"page: {output}")
    suggest(in_browser(output))


def _compare_epochs(translator: "Translator", folder: Path, lines: list[str], search: "Search") -> "tuple[Side, Side]":
    """Translate with the model after each epoch, and with the trained model without its corrections.

    All search with the length penalty of the trained model, which was fitted after the last epoch.
    """
    from dikkat.show.comparison import Side
    from dikkat.translation.memory.pair_memory import PairMemory
    from dikkat.translation.training.epochs import load_epochs

    run_folder = run_folder_of(folder)
    for _ in load_epochs(run_folder):
        pass  # a damaged epoch raises before any translation
    search = dataclasses.replace(search, length_penalty=translator.settings.length_penalty)
    trained = dataclasses.replace(translator, memory=PairMemory()).translate(lines, search=search)
    epochs = {epoch: model.translate(lines, search=search) for epoch, model in load_epochs(run_folder)}
    return Side(folder.name, [*epochs], [*epochs.values()]), Side(folder.name, [], [trained])


def _names(folders: Sequence[Path]) -> tuple[str, str]:
    """Return the names of two folders, with as many of their parents as make them different."""
    from dikkat.translation.formats.model_folder import absolute

    parts = [absolute(folder).parts for folder in folders]
    counts = range(1, max(map(len, parts)) + 1)
    names = (["/".join(path[-count:]) for path in parts] for count in counts)
    for first, second in names:
        if first != second:
            return first, second
    raise InputError(f"got {folders[0]} twice; expected another model, or only one to compare it with its epochs")


def _languages(translators: Sequence["Translator"], folders: Sequence[Path]) -> tuple[str, str]:
    """Return the language codes of the models; "" for a language without a code, such as a column's name."""
    pairs = [origin.languages or ("", "") if (origin := translator.origin) else ("", "") for translator in translators]
    codes = [tuple(map(_language_code, pair)) for pair in pairs]
    for first, last in zip(codes[0], codes[-1], strict=True):
        if first and last and _main_language(first) != _main_language(last):
            names = [" to ".join(pair) for pair in pairs]
            raise InputError(
                f"{folders[1]}: translates {names[1]}, and {folders[0]} {names[0]}; expected models of one language "
                "pair"
            )
    source, target = (next(filter(None, side), "") for side in zip(*codes, strict=True))
    return source, target


def _main_language(code: str) -> str:
    return code.partition("-")[0].lower()


def _language_code(name: str) -> str:
    """Return a name as a language code, if it is one: "pt-BR" for "pt_BR", and "" for "English"."""
    from dikkat.show.page import LANGUAGE_CODE

    code = name.replace("_", "-")
    return code if LANGUAGE_CODE.fullmatch(code) else ""


def _lines(line: list[str] | None, file: Path | None, translators: Sequence["Translator"], model: Path) -> list[str]:
    """Return the sentences of the options, or else those of a model's origin."""
    from dikkat.translation.data.corpus import read_lines

    if line or file is not None:
        lines = list(read_lines(file)) if file else line or []
    else:
        stored = (t.origin.examples for t in reversed(translators) if t.origin and t.origin.examples)
        lines = next(stored, "").splitlines()
        if not lines:
            raise InputError(f"{model}: has no held-out sentences; expected --line or --file")
    if not any(map(str.strip, lines)):
        raise InputError("sentences: every sentence is empty; expected at least one with a word")
    return [text for text in lines if text.strip()]
