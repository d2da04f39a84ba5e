"""`dikkat compare`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dikkat.cli.app import Command, app, option
from dikkat.cli.messages import in_browser, suggest
from dikkat.cli.options import FileOption, naming_options, read_search, search_options, with_options
from dikkat.cli.train import run_folder_of
from dikkat.errors import InputError

if TYPE_CHECKING:
    from dikkat.translation import Translator


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
    from dikkat.translation.memory.pair_memory import PairMemory
    from dikkat.translation.training.epochs import load_epochs

    if line and file is not None:
        raise InputError("got --line and --file; give only one of them")
    search = read_search(options)
    last = Translator.load(model if second is None else second)
    first = last if second is None else Translator.load(model)
    languages = _languages(first, last, model, second)
    lines = _lines(line, file, [last, first], model)
    if second is None:  # the slider shows the training: the epochs have no corrections and no fitted length penalty
        last = dataclasses.replace(last, memory=PairMemory())
        if search.length_penalty is None:
            search = dataclasses.replace(search, length_penalty=last.settings.length_penalty)
    title = model.name if second is None else f"{model.name} · {second.name}"
    sides = [Side((second or model).name, [], [last.translate(lines, search=search)])]
    with naming_options():
        if second is not None:
            sides.insert(0, Side(model.name, [], [first.translate(lines, search=search)]))
        else:
            epochs = {
                epoch: translator.translate(lines, search=search)
                for epoch, translator in load_epochs(run_folder_of(model))
            }
            sides.insert(0, Side(model.name, [*epochs], [*epochs.values()]))
    page = comparison_page(
        (sides[0], sides[1]), title=title, source_language=languages[0], target_language=languages[1]
    )
    write_whole(output, page)
    print(f"page: {output}")
    suggest(in_browser(output))


def _languages(first: "Translator", last: "Translator", model: Path, second: Path | None) -> tuple[str, str]:
    """Return the language codes of both models, or "" for names that are no codes."""
    pairs = [translator.origin.languages if translator.origin else None for translator in (first, last)]
    if pairs[0] and pairs[1] and pairs[0] != pairs[1]:
        names = [" to ".join(pair) for pair in pairs if pair]
        raise InputError(
            f"{second}: translates {names[1]}, and {model} {names[0]}; expected models of one language pair"
        )
    source, target = next((pair for pair in pairs if pair), ("", ""))
    return (source, target) if max(map(len, (source, target))) <= _LONGEST_CODE else ("", "")


def _lines(line: list[str] | None, file: Path | None, translators: list["Translator"], model: Path) -> list[str]:
    """Return the sentences of the options, or else those of a model's origin."""
    from dikkat.translation.data.corpus import read_lines

    if line or file is not None:
        lines = list(read_lines(file)) if file else line or []
    else:
        stored = (t.origin.examples for t in translators if t.origin and t.origin.examples)
        lines = next(stored, "").splitlines()
        if not lines:
            raise InputError(f"{model}: has no held-out sentences; expected --line or --file")
    if not any(map(str.strip, lines)):
        raise InputError("sentences: every sentence is empty; expected at least one with a word")
    return [text for text in lines if text.strip()]


_LONGEST_CODE = 3
