"""The application: its commands by name, each imported when it is called, and options of all of them."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

FLAG = " "  # as the name of a value: there is none


# The purpose of each command, in the order in which one needs them; the module of its name makes it.
_COMMANDS = {
    "train": "Train a translator on sentence pairs.",
    "translate": "Translate sentences, a file or standard input.",
    "evaluate": "Score a translator, or files of translations: BLEU and chrF.",
    "show": "Show the attention of translations, as a picture and as a page.",
    "info": "Print the origin, size, scores and settings of a translator.",
    "quantize": "Write a translator with weights in int8, a quarter of the size.",
    "export": "Write a translator as a page for browsers, or as ONNX graphs.",
    "serve": "Serve translators over HTTP: a page, and a JSON API.",
    "compare": "Train a recipe with different settings, and compare the results.",
    "recipes": "List the recipes that come with dikkat.",
    "regress": "Predict a column of a table from others by kernel regression.",
    "report": "Print versions, threads, implementations and caches, for an issue.",
}


class InterruptedCommand(Exception):  # noqa: N818  (nothing is wrong)
    """Ctrl-C, in a command that has no message of its own for it."""


class Command(TyperCommand):
    """A command whose help shows no types of Python."""

    def get_params(self, ctx: Any) -> Any:
        """The arguments and options; a value without a word of its own has the option's name."""
        parameters: Any = super().get_params(ctx)
        for each in parameters:
            if each.param_type_name == "argument":
                each.display_type_rich = lambda ctx: None
            elif each.metavar is None:
                each.metavar = FLAG if each.is_flag else each.name.upper()
        return parameters

    def get_help_option(self, ctx: Any) -> Any:  # the types of typer's own copy of click
        """The option --help."""
        return _without_value(super().get_help_option(ctx))


class _Group(TyperGroup):
    """The commands together, by names and purposes alone.

    The module of a command is imported when that is called, so that no command needs, or waits for, the libraries of
    another.
    """

    def __init__(self, *, commands: Mapping[str, Any], **more: Any) -> None:
        super().__init__(commands={name: Command(name, help=purpose) for name, purpose in _COMMANDS.items()}, **more)
        self.imported = commands

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments call, with its options."""
        name, listed, rest = super().resolve_command(ctx, args)
        if listed is not None:
            import_module(f"dikkat.cli.{name}")  # whose commands join the application
            group: Any = get_command(app)
            listed = group.imported[name]
        return name, listed, rest

    def invoke(self, ctx: Any) -> Any:
        """Import the module of the command, and run it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise InterruptedCommand from None  # typer would end without a word

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help."""
        return _without_value(super().get_help_option(ctx))

    def get_params(self, ctx: Any) -> Any:
        """The options, among them those of the shell completion."""
        return [_without_value(option) for option in super().get_params(ctx)]


def _without_value(option: Any) -> Any:
    if option is not None:
        option.metavar = FLAG
    return option


def option(text: str, metavar: str, *names: str, panel: str | None = None, completes: Sequence[str] = ()) -> Any:
    """An option whose default is nothing, or is said in its help.

    Args:
        text: Its help.
        metavar: What the help calls its value.
        names: Of the option, if they are others than its parameter's.
        panel: The heading that it stands under.
        completes: The values that the shell completes.
    """
    return typer.Option(
        *names,
        help=text,
        metavar=metavar,
        rich_help_panel=panel,
        show_default=False,
        autocompletion=(lambda incomplete: [each for each in completes if each.startswith(incomplete)])
        if completes
        else None,
    )


_PURPOSE = "Attention at work: translators that show what they look at, and kernel regression."

app = typer.Typer(
    name="dikkat",
    cls=_Group,
    help=_PURPOSE,
    epilog="Start with: dikkat train phrasebook --output my-model, or: dikkat regress\n\n"
    "Exit status: 0: done; 2: an argument or a file cannot be used, and one line says why; 130: interrupted with "
    "Ctrl-C; 1: any other error.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
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
