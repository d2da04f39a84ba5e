"""The application: its commands by name, each imported when it is called, and options of all of them."""

import pydoc
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dikkat import __version__

# The purpose of each command, in the order in which one needs them; the module of its name makes it.
_COMMANDS = {
    "train": "Train a translator on sentence pairs.",
    "translate": "Translate sentences, a file or standard input.",
    "align": "Link the words of sentence pairs.",
    "evaluate": "Score a translator, or files of translations: BLEU and chrF.",
    "show": "Show the attention of translations, as a picture and as a page.",
    "info": "Print the origin, size, scores and settings of a translator.",
    "quantize": "Write a translator with weights in int8, a quarter of the size.",
    "export": "Write a translator as a page for browsers.",
    "serve": "Serve translators over HTTP: a page, and a JSON API.",
    "recipes": "List the recipes that come with dikkat.",
    "regress": "Predict a column of a table from others by kernel regression.",
    "warm": "Compile all kernels for this processor, so that nothing waits for them later.",
    "report": "Print versions, threads, implementations and caches, for an issue.",
}

_PURPOSE = "See what attention looks at: in translators, in tables, in models of your own."
_DOORS = {
    "Sentences of your own, a translator in one page": (
        "dikkat train --corpus pairs.tsv --output my-model",
        "dikkat export my-model --html translator.html",
    ),
    "A table of your own, a curve with its interval": ("dikkat regress table.csv --target y --output curve",),
    "A model of your own, a page of its attention, in Python": (
        "with dikkat.record(model) as trace:",
        "    model(inputs)",
        'trace.to_html("attention.html")',
    ),
    "Nothing at hand yet": ("dikkat train phrasebook --output my-model", "dikkat regress"),
    "All commands": ("dikkat --help",),
}
_STATUS = (
    "Exit status: 0: done; 2: an argument or a file cannot be used, and one line says why; 130: interrupted with "
    "Ctrl-C; 1: any other error."
)


class InterruptedCommand(Exception):  # noqa: N818  (nothing is wrong)
    """Ctrl-C, in a command that has no message of its own for it."""


class Command(TyperCommand):
    """A command whose help begins with the first example of its epilog, and shows no types of Python."""

    def get_params(self, ctx: Any) -> Any:
        """The arguments and options; a value without a word of its own has the option's name."""
        parameters: Any = super().get_params(ctx)
        for each in parameters:
            if each.param_type_name == "argument":
                each.display_type_rich = lambda ctx: None
            elif each.metavar is None:
                each.metavar = each.name.upper()
        return parameters

    def get_help(self, ctx: Any) -> str:  # the types of typer's own copy of click
        """The page of help, in the reader's pager where a terminal is too low for it."""
        page: str = super().get_help(ctx)
        if sys.stdout.isatty() and page.count("\n") + 2 > shutil.get_terminal_size().lines:
            pydoc.pager(page)
            return ""
        return page

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Plain text of any width, without frames. Rich would take longer than all else."""
        formatter.width = _width()
        _, first, *others = (_typed(each, formatter.width) for each in (self.epilog or "").split("\n\n"))
        with formatter.section("Example"):
            formatter.write(first + "\n\n")
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        panels: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            kind = "Arguments" if each.param_type_name == "argument" else "Options"
            panels.setdefault(getattr(each, "rich_help_panel", None) or kind, []).append(each.get_help_record(ctx))
        _write_panels(formatter, panels)
        if others:
            with formatter.section("More examples"):
                formatter.write("\n".join(others))


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 100) - 1


def _typed(line: str, width: int) -> str:
    """A command as it can be typed, on as many lines as it needs, none of which ends within quotes."""
    whole = re.sub(r"(['\"]).*?\1", lambda quoted: quoted[0].replace(" ", "\0"), line)
    parts = textwrap.wrap(
        whole, width - 2, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return " \\\n".join(parts).replace("\0", " ")


def _write_panels(formatter: Any, panels: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Names and what they mean, side by side, or on a narrow terminal one below the other."""
    for title, rows in panels.items():
        with formatter.section(title):
            formatter.write_dl(rows, col_max=26 if formatter.width > 60 else 2)


class _Group(TyperGroup):
    """The commands by names and purposes; the module of a command is imported when that is called."""

    def __init__(self, *, commands: Mapping[str, Any], **more: Any) -> None:
        super().__init__(commands={name: Command(name, help=purpose) for name, purpose in _COMMANDS.items()}, **more)
        self.imported = commands

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.width = _width()
        formatter.write_text(_PURPOSE)
        own = [each.get_help_record(ctx) or ("", "") for each in self.get_params(ctx)]
        _write_panels(formatter, {"Commands, each with a --help": list(_COMMANDS.items()), "Options": own})
        formatter.write_paragraph()
        formatter.write_text(_STATUS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        if listed is not None:
            import_module(f"dikkat.cli.{name}")  # whose commands join the application
            group: Any = get_command(app)
            listed = group.imported[name]
        return name, listed, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise InterruptedCommand from None  # typer would end without a word


def option(text: str, metavar: str | None, *names: str, panel: str | None = None, completes: Sequence[str] = ()) -> Any:
    """An option with the help `text` and without a default, or with one that its help says.

    `metavar` is what the help calls its value, None for a flag; `names` are the option's, if others than its
    parameter's; `panel` is the heading that it stands under, and `completes` has the values that the shell completes.
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


def _doors(width: int) -> str:
    parts = [textwrap.fill(_PURPOSE, width)]
    for title, lines in _DOORS.items():
        typed = [_typed(line, width) if line.startswith("dikkat") else f"  {line}" for line in lines]
        parts.append("\n".join([textwrap.fill(f"{title}:", width), *typed]))
    return "\n\n".join(parts)


app = typer.Typer(
    name="dikkat", cls=_Group, help=_PURPOSE, invoke_without_command=True, pretty_exceptions_enable=False,
    rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


def _print_version(requested: bool) -> None:
    if requested:
        print(f"dikkat {__version__}")
        raise typer.Exit


@app.callback(help=_PURPOSE)
def options(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the application itself; without a command, the ways in."""
    if context.invoked_subcommand is None:
        print(_doors(_width()))
