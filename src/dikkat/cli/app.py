"""The Typer application: its commands, the layout of help, and the options of `dikkat` itself."""

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

# The purpose of each command. `dikkat.cli.NAME` defines the command and is imported only if the command runs.
_COMMANDS = {
    "train": "Train a translator on sentence pairs.",
    "translate": "Translate sentences, a file or standard input.",
    "align": "Link the words of sentence pairs.",
    "evaluate": "Score a translator, or files of translations, by BLEU and chrF.",
    "correct": "Store corrections, which later translations of a translator follow.",
    "show": "Draw the attention of translations, as a picture and as a page.",
    "compare": "Write a page on which two models, or the epochs of one, translate side by side.",
    "info": "Print the origin, size, scores and settings of a translator.",
    "quantize": "Save a translator with int8 weights, a quarter of the size.",
    "export": "Save a translator as an HTML page that translates in the browser.",
    "serve": "Serve translators over HTTP, with a page and a JSON API.",
    "recipes": "List the built-in recipes.",
    "regress": "Predict a column of a table from other columns by kernel regression.",
    "warm": "Compile all kernels for this processor now, so that later commands start faster.",
    "report": "Print versions, threads, implementations and caches, for an issue.",
}

_PURPOSE = "See what attention looks at: in translators, in tables and in your own models."
_EXAMPLES = {
    "Train a translator on your sentence pairs, and save it as a page": (
        "dikkat train --corpus pairs.tsv --output my-model",
        "dikkat export my-model --html translator.html",
    ),
    "Fit a curve to your table, with intervals": ("dikkat regress table.csv --target y --output curve",),
    "Save a page with the attention of your model, in Python": (
        "with dikkat.record(model) as trace:",
        "    model(inputs)",
        'trace.to_html("attention.html")',
    ),
    "Try it without data": ("dikkat train phrasebook --output my-model", "dikkat regress"),
    "List all commands": ("dikkat --help",),
}
_STATUS = (
    "Exit status: 0 for success; 2 for an unusable argument or file, with one line that gives the reason; 130 after "
    "Ctrl-C; 1 for any other error."
)


UsageError: Any = typer.BadParameter.__bases__[0]
"""The usage error of click, or of the copy of click in newer versions of typer."""


class InterruptedCommand(Exception):  # noqa: N818  (not an error)
    """Ctrl-C, in a command without its own message for it."""


class Command(TyperCommand):
    """A command whose help begins with the first example of its epilog and shows no Python types."""

    def get_params(self, ctx: Any) -> Any:
        """Return the arguments and options; the name of an option replaces a missing metavar."""
        parameters: Any = super().get_params(ctx)
        for parameter in parameters:
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda ctx: None
            elif parameter.metavar is None:
                parameter.metavar = parameter.name.upper()
        return parameters

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; an error names this command, also if an option lacks its value."""
        try:
            rest: list[str] = super().parse_args(ctx, args)
            return rest
        except UsageError as error:
            error.ctx = ctx
            raise

    def get_help(self, ctx: Any) -> str:  # the types of typer's own copy of click
        """Return the help; on a terminal with too few lines, show it in the pager and return an empty string."""
        page: str = super().get_help(ctx)
        if sys.stdout.isatty() and page.count("\n") + 2 > shutil.get_terminal_size().lines:
            pydoc.pager(page)
            return ""
        return page

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help as plain text without frames. Rich would take longer than all other work."""
        formatter.width = _width()
        _, *examples = (_wrap_command(line, formatter.width) for line in (self.epilog or "").split("\n\n"))
        if examples:
            with formatter.section("Example"):
                formatter.write(examples[0] + "\n\n")
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panel = getattr(parameter, "rich_help_panel", None) or kind
            panels.setdefault(panel, []).append(parameter.get_help_record(ctx))
        _write_panels(formatter, panels)
        if examples[1:]:
            with formatter.section("More examples"):
                formatter.write("\n".join(examples[1:]))


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 100) - 1


def _wrap_command(line: str, width: int) -> str:
    """Wrap a shell command so that it can still be pasted: no line ends within quotes."""
    protected = re.sub(r"(['\"]).*?\1", lambda quoted: quoted[0].replace(" ", "\0"), line)
    lines = textwrap.wrap(
        protected, width - 2, initial_indent="  ", subsequent_indent="    ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return " \\\n".join(lines).replace("\0", " ")


def _write_panels(formatter: Any, panels: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Write names and their help in two columns, or on a narrow terminal in one."""
    for title, rows in panels.items():
        with formatter.section(title):
            formatter.write_dl(rows, col_max=26 if formatter.width > 60 else 2)


class _Group(TyperGroup):
    def __init__(self, *, commands: Mapping[str, Any], **options: Any) -> None:
        super().__init__(commands={name: Command(name, help=purpose) for name, purpose in _COMMANDS.items()}, **options)
        self.imported = commands

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.width = _width()
        formatter.write_text(_PURPOSE)
        options = [parameter.get_help_record(ctx) or ("", "") for parameter in self.get_params(ctx)]
        _write_panels(formatter, {"Commands, each with --help": list(_COMMANDS.items()), "Options": options})
        formatter.write_paragraph()
        formatter.write_text(_STATUS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, arguments = super().resolve_command(ctx, args)
        if command is not None:
            try:
                import_module(f"dikkat.cli.{name}")  # registers the command
            except ModuleNotFoundError as error:
                if {"-h", "--help"}.isdisjoint(arguments):
                    raise
                command.help = f"{command.help}\n\nIts options need an extra.\n\n\b\n{error}"
                return name, command, arguments
            group: Any = get_command(app)
            command = group.imported[name]
        return name, command, arguments

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise InterruptedCommand from None  # typer would end without a message


def option(text: str, metavar: str | None, *names: str, panel: str | None = None, completes: Sequence[str] = ()) -> Any:
    """Return an option with the help `text`, which must also give the default.

    `metavar` is the name of the value in the help, None for a flag. `names` are the names of the option if they differ
    from its parameter's. `panel` is its heading in the help. The shell completes the values in `completes`.
    """
    return typer.Option(
        *names,
        help=text,
        metavar=metavar,
        rich_help_panel=panel,
        show_default=False,
        autocompletion=(lambda incomplete: [value for value in completes if value.startswith(incomplete)])
        if completes
        else None,
    )


def _examples(width: int) -> str:
    paragraphs = [textwrap.fill(_PURPOSE, width)]
    for title, lines in _EXAMPLES.items():
        code = [_wrap_command(line, width) if line.startswith("dikkat") else f"  {line}" for line in lines]
        paragraphs.append("\n".join([textwrap.fill(f"{title}:", width), *code]))
    return "\n\n".join(paragraphs)


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
    """Options of `dikkat` itself; without a command, print examples."""
    if context.invoked_subcommand is None:
        print(_examples(_width()))
