"""The options of translation; most are made from the fields of `Settings` and `Search`, each described in one place."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from dikkat.cli.app import option
from dikkat.cli.messages import worded
from dikkat.errors import InputError
from dikkat.translation.decoding.options import Search
from dikkat.translation.fields import Allowed, allowed
from dikkat.translation.settings import Settings

_SPELLINGS = (
    "A name, such as phrasebook or multi30k-en-fr; a file with a sentence, a tab and its translation in each line; "
    'a CSV file, or \'{tsv = "pairs.csv", source = "COLUMN", target = "COLUMN"}\' for columns by name; '
    '\'{source = "FILE", target = "FILE"}\', whose lines belong together; or \'{dataset = "NAME", '
    'source = "COLUMN", target = "COLUMN"}\''
)

ModelArgument = Annotated[Path, typer.Argument(help="A model folder that `dikkat train` made.", show_default=False)]
SentencesArgument = Annotated[list[str] | None, typer.Argument(help="Sentences, each in quotes.", show_default=False)]
FileOption = Annotated[Path | None, option("A file of sentences, one a line.", "FILE", "--file", "-f")]
BatchSizeOption = Annotated[
    int, typer.Option(help="Sentences to translate at once. Larger: faster, more memory.", min=1, metavar="N")
]
EnsembleOption = Annotated[
    list[Path] | None,
    option(
        "A further model with the same tokenizers, which takes part in every translation. May be given several times. "
        "Slower, and mostly better.",
        "FOLDER",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
CorpusOption = Annotated[str | None, option(f"{_SPELLINGS}.", "CORPUS", panel="Corpus")]
ValidationOption = Annotated[
    str | None,
    option(
        "Pairs to validate the model on while it learns: a corpus; '{share = 0.05}' of the pairs, which are then not "
        "learnt from; or none. [default: the corpus's own, or else '{share = 0.05}']",
        "CORPUS",
        panel="Corpus",
    ),
]
TestOption = Annotated[
    str | None,
    option(
        "Pairs to score the trained model on: a corpus, or none. They are not learnt from. [default: none]",
        "CORPUS",
        panel="Corpus",
    ),
]

_SEARCH_HELP = {
    "beam": "Partial translations that are followed at the same time, before the best is chosen. 1: fastest. Larger: "
    "slower, and mostly better, up to 5 or so.",
    "n_best": "Translations of each sentence, the best first, at most as many as --beam; with --sample, as many as are "
    "drawn. With 2 or more, a line holds "
    "the sentence's number, the translation's score (its log-probability) and the translation, with tabs between.",
    "length_penalty": "How strongly longer translations are preferred. 0: not at all, so that short ones win. No "
    "effect with a --beam of 1. Without: the model's own, which its training chose or was given.",
    "min_ratio": "Shortest translation, as a multiple of the source's length in words, or parts of words.",
    "max_ratio": "Longest translation, as a multiple of the source's length in words, or parts of words.",
    "max_length": "Longest translation, in words, or parts of words.",
    "sample": "Draw translations at random, the likelier the more often, instead of looking for the best.",
    "temperature": "With --sample: below 1, likely translations are drawn even more often; above 1, less often.",
    "top_k": "With --sample: draw each word, or part of one, from the N likeliest only.",
    "seed": "With --sample: the seed of the random numbers. The same seed gives the same translations.",
    "precision": "Number type of the weights: float32; or int8, several times as fast and a little coarser, on a CPU, "
    "without --sample and --ensemble.",
}
_METAVARS = {bool: None, int: "N", float: "NUMBER", str: "NAME"}


def setting_options() -> dict[str, Any]:
    """An option for each setting, without a default: what is not given is the recipe's."""
    default = Settings()
    return {
        name: _option(name, each.allowed, described(name), getattr(default, name), each.group, negative=True)
        for name, each in Settings.options().items()
    }


def described(setting: str) -> str:
    """The help of a setting, with the values it may have if they are few."""
    text, choices = Settings.options()[setting].help, Settings.options()[setting].allowed.choices
    named = all(re.search(rf"\b{value}\b", text) for value in choices)
    return text if named else f"{text} One of {', '.join(choices)}."


def search_options(*excluded: str) -> dict[str, Any]:
    """An option for each field of `Search`, but those of the names `excluded`."""
    return {
        name: _option(name, each, _SEARCH_HELP[name], getattr(Search, name), "Search")
        for name, each in allowed(Search).items()
        if name not in excluded
    }


def with_options(options: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator: the function's `**given` become these options, for Typer to see."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function)
        kept = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for name, annotation in options.items()
        ]
        function.__signature__ = signature.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
        function.__annotations__ = {each.name: each.annotation for each in (*kept, *more)}
        return function

    return decorate


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the options that were given, as a recipe would have them."""
    from dikkat.translation.formats.recipe import read_value

    return {
        name: read_value(value, option_name(name)) if isinstance(value, str) else value
        for name, value in options.items()
        if value is not None
    }


def search_given(options: Mapping[str, Any]) -> Search:
    """The search that the options describe."""
    with naming_options():
        return Search(**given(options))


def check_together(options: Mapping[str, Any]) -> None:
    """A check that options do not contradict each other, of those that `given` returns."""
    if "batch_size" in options and options.get("batch_tokens", "none") != "none":
        raise InputError("--batch-size and --batch-tokens are both given: leave one of them out")
    if options.get("validation") == "none":
        for name in ("patience", "validation_steps", "criterion", "average"):
            if name in options:
                raise InputError(
                    f"{option_name(name)} is given and --validation is none: without validation it has no effect"
                )


@contextmanager
def naming_options() -> Iterator[None]:
    """Errors and warnings about settings name the options instead."""
    with worded(_with_option_names):
        try:
            yield
        except InputError as error:
            raise type(error)(_with_option_names(str(error))) from error


def option_name(field: str) -> str:
    """The option of a field."""
    return "--" + field.replace("_", "-")


def _with_option_names(message: str) -> str:
    """A message with options for settings: where it begins with one, or where an underscore tells one from a word.

    A name within a path is none: `/data/batch_size/pairs.tsv`.
    """
    names = ["corpus", "validation", "test", *allowed(Settings), *allowed(Search)]
    certain = "|".join(name for name in names if "_" in name)
    return re.sub(
        rf"^({'|'.join(names)})(?= is |: got )|(?<![\w/\\.-])({certain})(?![\w/\\-]|\.\w)",
        lambda name: option_name(name[0]),
        message,
    )


def _option(name: str, allowed: Allowed, text: str, default: object, panel: str, *, negative: bool = False) -> Any:
    """A flag, or an option whose value is read later, as that of a recipe; `negative` adds a --no-… to a flag."""
    flag = allowed.kind is bool
    opposite = f"/--no-{name.replace('_', '-')}" if flag and negative else ""
    return Annotated[
        bool | None if flag else str | None,
        option(
            _with_option_names(f"{text} [default: {_written(default)}]"),
            _METAVARS[allowed.kind],
            f"{option_name(name)}{opposite}",
            panel=panel,
            completes=allowed.choices,
        ),
    ]


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
