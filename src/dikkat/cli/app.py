"""The application, and what its commands have in common."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from dikkat.cli.options import FLAG


class Command(TyperCommand):
    """A command whose --help is not shown as if it took a value."""

    def get_help_option(self, ctx: Any) -> Any:  # the types of typer's own copy of click
        """The option --help."""
        return _without_value(super().get_help_option(ctx))


class _Group(TyperGroup):
    """The commands together, likewise."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help."""
        return _without_value(super().get_help_option(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order in which one needs them."""
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def get_params(self, ctx: Any) -> Any:
        """The options, among them those of the shell completion."""
        return [_without_value(option) for option in super().get_params(ctx)]


def _without_value(option: Any) -> Any:
    if option is not None:
        option.metavar = FLAG
    return option


_ORDER = ["train", "translate", "evaluate", "show", "compare", "recipes"]
_PURPOSE = "Train a small translator that shows what it looks at, use it, score it, and see it at work."

app = typer.Typer(
    name="dikkat",
    cls=_Group,
    help=_PURPOSE,
    epilog="Start with: dikkat train phrasebook --output my-model\n\n"
    "Exit status: 0, done; 2, something that was given cannot be used, which one line says; 130, interrupted with "
    "Ctrl-C; 1, anything else.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_SPELLINGS = (
    "A name, such as phrasebook or multi30k-en-fr; a file of lines of sentence, tab, translation; "
    "'{source: FILE, target: FILE}', whose lines belong together; or '{dataset: NAME, source: COLUMN, target: COLUMN}'"
)

ModelArgument = Annotated[Path, typer.Argument(help="A model folder that `dikkat train` made.", show_default=False)]
SentencesArgument = Annotated[list[str], typer.Argument(help="Sentences, each in quotes.", show_default=False)]
BatchSizeOption = Annotated[
    int, typer.Option(help="Sentences to translate at once. Larger: faster, more memory.", min=1, metavar="N")
]
EnsembleOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="A further model, which has its say in each translation; of the same tokenizers. May be given several "
        "times. Slower, and mostly better.",
        metavar="FOLDER",
        show_default=False,
    ),
]
CorpusOption = Annotated[
    str | None, typer.Option(help=f"{_SPELLINGS}.", metavar="CORPUS", rich_help_panel="Corpus", show_default=False)
]
ValidationOption = Annotated[
    str | None,
    typer.Option(
        help="Pairs to judge the model by while it learns: a corpus, '{share: 0.05}' of the pairs, which is then "
        "not learnt from, or none. \\[default: the corpus's own, or else '{share: 0.05}']",
        metavar="CORPUS",
        rich_help_panel="Corpus",
        show_default=False,
    ),
]
TestOption = Annotated[
    str | None,
    typer.Option(
        help="Pairs to score the trained model on: a corpus, or none. They are not learnt from. \\[default: none]",
        metavar="CORPUS",
        rich_help_panel="Corpus",
        show_default=False,
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"dikkat {version('dikkat')}")
        raise typer.Exit


@app.callback(help=_PURPOSE)
def options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_print_version, is_eager=True, metavar=FLAG
        ),
    ] = False,
) -> None:
    """Options of the application itself."""
