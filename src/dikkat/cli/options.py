"""Options of the translation commands. Most follow from the fields of `Settings` and `Search`."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dikkat.cli.app import option
from dikkat.cli.messages import rewriting_warnings
from dikkat.errors import InputError

if TYPE_CHECKING:
    from dikkat.translation.decoding.options import Search
    from dikkat.translation.fields import Allowed
    from dikkat.translation.settings import Option

_CORPUS_HELP = (
    "The name of a corpus, such as phrasebook or multi30k-en-fr; a file with a sentence, a tab and its translation in "
    'each line; a CSV file, or \'{tsv = "pairs.csv", source = "COLUMN", target = "COLUMN"}\' to select its columns by '
    "name; a TMX, XLIFF, PO or MO file, whose languages are selected in the same way; "
    '\'{source = "FILE", target = "FILE"}\' for two files with matching lines; or \'{dataset = "NAME", source = '
    '"COLUMN", target = "COLUMN"}\' for a Hugging Face data set.'
)

ModelArgument = Annotated[Path, typer.Argument(help="A model folder from `dikkat train`.", show_default=False)]
SentencesArgument = Annotated[list[str] | None, typer.Argument(help="Sentences, each in quotes.", show_default=False)]
FileOption = Annotated[Path | None, option("A file with one sentence per line.", "FILE", "--file", "-f")]
BatchSizeOption = Annotated[
    int, typer.Option(help="Sentences per batch. Larger: faster, more memory.", min=1, metavar="N")
]
EnsembleOption = Annotated[
    list[Path] | None,
    option(
        "Another model with the same tokenizers, for an ensemble: slower, and usually better. Repeatable.", "FOLDER"
    ),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace a model in the output folder.", rich_help_panel="Result")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
CorpusOption = Annotated[str | None, option(_CORPUS_HELP, "CORPUS", panel="Corpus")]
ValidationOption = Annotated[
    str | None,
    option(
        "Validation pairs: a corpus; '{share = 0.05}' of the training pairs, which are then held out; or none. "
        "[default: the validation part of the corpus, or '{share = 0.05}' if it has none]",
        "CORPUS",
        panel="Corpus",
    ),
]
TestOption = Annotated[
    str | None,
    option("Held-out pairs to score the trained model: a corpus, or none. [default: none]", "CORPUS", panel="Corpus"),
]

_SEARCH_HELP = {
    "beam": "Partial translations that the search keeps. 1: fastest. Larger: slower, usually better, up to about 5.",
    "n_best": "Translations per sentence, best first, at most --beam; with --sample, the number of samples. With 2 or "
    "more, each line has the number of the sentence, the score (log-probability) and the translation, separated by "
    "tabs.",
    "length_penalty": "Preference for longer translations. 0: none, so short translations win. No effect with a --beam "
    "of 1. Unset: the value of the model, from its training.",
    "min_ratio": "Minimum length of a translation, as a multiple of the source length in words or parts of words.",
    "max_ratio": "Maximum length of a translation, as a multiple of the source length in words or parts of words.",
    "max_length": "Maximum length of a translation, in words or parts of words.",
    "sample": "Draw random translations by their probability, instead of searching for the best.",
    "temperature": "With --sample: below 1, likely translations become more frequent; above 1, less frequent.",
    "top_k": "With --sample: draw each word or part of a word from the N most likely.",
    "seed": "With --sample: the seed of the random numbers. The same seed gives the same translations.",
    "precision": "Number type of the weights: float32; or int8, faster and slightly less exact, on a CPU "
    "without --sample and --ensemble.",
}
_METAVARS = {bool: None, int: "N", float: "NUMBER", str: "NAME"}


def setting_options() -> dict[str, Any]:
    """Return an option for each setting, without a default: the recipe has the value of an unset option."""
    from dikkat.translation.settings import Settings

    default = Settings()
    return {
        name: _option(name, s.allowed, _setting_help(s), getattr(default, name), s.group, negative=True)
        for name, s in Settings.options().items()
    }


def _setting_help(setting: "Option") -> str:
    choices = setting.allowed.choices
    lists_choices = all(re.search(rf"\b{choice}\b", setting.help) for choice in choices)
    return setting.help if lists_choices else f"{setting.help} One of {', '.join(choices)}."


def search_options(*excluded: str) -> dict[str, Any]:
    """Return an option for each field of `Search` except the names in `excluded`."""
    from dikkat.translation.decoding.options import Search
    from dikkat.translation.fields import allowed

    return {
        name: _option(name, values, _SEARCH_HELP[name], getattr(Search, name), "Search")
        for name, values in allowed(Search).items()
        if name not in excluded
    }


def with_options(options: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces the `**options` of a command by these options, for Typer."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for name, annotation in options.items()
        ]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return function

    return decorate


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the options that are set, parsed like the values of a recipe."""
    from dikkat.translation.formats.recipe import read_value

    return {
        name: read_value(value, option_name(name)) if isinstance(value, str) else value
        for name, value in options.items()
        if value is not None
    }


def read_search(options: Mapping[str, Any]) -> "Search":
    """Return the search with these options."""
    from dikkat.translation.decoding.options import Search

    with naming_options():
        return Search(**read_options(options))


def check_conflicts(options: Mapping[str, Any]) -> None:
    """Raise InputError for contradictory options; `options` come from `read_options`."""
    if "batch_size" in options and options.get("batch_tokens", "none") != "none":
        raise InputError("--batch-size and --batch-tokens cannot be combined: remove one of them")
    if options.get("validation") == "none":
        for name in ("patience", "validation_steps", "criterion", "average"):
            if name in options:
                raise InputError(f"{option_name(name)} has no effect with --validation none: remove one of them")


@contextmanager
def naming_options() -> Iterator[None]:
    """Replace the names of settings in errors and warnings by the names of options."""
    with rewriting_warnings(_with_option_names):
        try:
            yield
        except InputError as error:
            raise type(error)(_with_option_names(str(error))) from error


def option_name(field: str) -> str:
    """Return the name of an option, --batch-size for batch_size."""
    return "--" + field.replace("_", "-")


def _with_option_names(message: str) -> str:
    """Replace settings by options: a name at the start of the message, and any name with an underscore.

    A name within a path stays: `/data/batch_size/pairs.tsv`.
    """
    from dikkat.translation.decoding.options import Search
    from dikkat.translation.fields import allowed
    from dikkat.translation.settings import Settings

    names = ["corpus", "validation", "test", *allowed(Settings), *allowed(Search)]
    with_underscore = "|".join(name for name in names if "_" in name)
    return re.sub(
        rf"^({'|'.join(names)})(?= is |: got )|(?<![\w/\\.-])({with_underscore})(?![\w/\\-]|\.\w)",
        lambda name: option_name(name[0]),
        message,
    )


def _option(name: str, allowed: "Allowed", text: str, default: object, panel: str, *, negative: bool = False) -> Any:
    """Return a flag, or an option whose text is parsed later; `negative` adds --no-… to a flag."""
    flag = allowed.kind is bool
    opposite = f"/--no-{name.replace('_', '-')}" if flag and negative else ""
    return Annotated[
        bool | None if flag else str | None,
        option(
            _with_option_names(f"{text} [default: {_format_value(default)}]"),
            _METAVARS[allowed.kind],
            f"{option_name(name)}{opposite}",
            panel=panel,
            completes=allowed.choices,
        ),
    ]


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
