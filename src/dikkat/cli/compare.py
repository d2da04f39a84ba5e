"""`dikkat compare`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dikkat.cli.app import Command, app, option
from dikkat.cli.messages import complain
from dikkat.cli.options import (
    CorpusOption,
    TestOption,
    ValidationOption,
    check_together,
    given,
    naming_options,
    option_name,
    setting_options,
    with_options,
)
from dikkat.cli.tables import show_table
from dikkat.errors import InputError

if TYPE_CHECKING:
    from dikkat.translation.training.comparison import Trial


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "dikkat compare phrasebook --vary score=additive,dot --output compared\n\n"
    "dikkat compare phrasebook --vary score=additive,dot,bilinear,none --vary cell=gru,lstm --output compared\n\n"
    "dikkat compare phrasebook --vary hidden_size=32,64,128 --vary seed=0,1 --output compared",
)
@with_options(setting_options())
def compare(
    recipe: Annotated[
        str,
        typer.Argument(help="A recipe: a file, or the name of one that `dikkat recipes` lists.", show_default=False),
    ],
    vary: Annotated[
        list[str],
        option(
            "A setting and its values: score=additive,dot. Given several times, every combination is trained.",
            "SETTING=VALUES",
        ),
    ],
    output: Annotated[
        Path,
        option(
            "Where to put a folder for each, comparison.json, comparison.png and comparison.svg. A comparison that was "
            "interrupted there goes on.",
            "FOLDER",
            "--output",
            "-o",
        ),
    ],
    corpus: CorpusOption = None,
    validation: ValidationOption = None,
    test: TestOption = None,
    **options: Any,
) -> None:
    """Train a recipe with different settings, and print and plot quality against time and tokens a second.

    Options replace the recipe's values in all trainings; what neither gives follows from the corpus.
    """
    from dikkat.translation.formats.recipe import Recipe
    from dikkat.translation.training.comparison import combinations
    from dikkat.translation.training.comparison import compare as compare_trials

    varied, values = _varied(vary), given({"corpus": corpus, "validation": validation, "test": test, **options})
    if both := sorted(varied.keys() & values.keys()):
        raise InputError(f"{option_name(both[0])} is given, and --vary has its values: leave one of them out")
    check_together({**values, **varied})
    plan = Recipe.load(recipe)
    with naming_options():
        plan = plan.with_values(values)
    trials = combinations(plan, varied)
    done: list[Trial] = []
    try:
        for trial in compare_trials(trials, output):
            done.append(trial)
            print(f"{len(done)} of {len(trials)}: {trial.name}: {trial.error or 'done'}", file=sys.stderr)
    except KeyboardInterrupt:
        complain("interrupted; to go on, give the same command again")
        raise typer.Exit(130) from None
    show_table(["", "parameters", "loss", "BLEU", "chrF2", "seconds", "tokens/s"], [_row(trial) for trial in done])
    for trial in done:
        if trial.error:
            print(f"{trial.name}: {trial.error}")
    if drawn := [trial for trial in done if trial.bleu is not None]:
        from dikkat.cli.pictures import draw_comparison

        for path in draw_comparison(drawn, output):
            print(f"picture: {path}")
    if any(trial.error for trial in done):
        raise typer.Exit(1)


def _varied(given: Sequence[str]) -> dict[str, list[Any]]:
    """The values of each setting that is varied."""
    from dikkat.translation.formats.recipe import read_value

    texts: dict[str, str] = {}
    for text in given:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not equals or not values:
            raise InputError(f"--vary {text}: write --vary SETTING=VALUE,VALUE, such as --vary score=additive,dot")
        if name in texts:
            raise InputError(f"--vary {name} is given twice: write --vary {name}={texts[name]},{values}")
        texts[name] = values
    return {name: [read_value(value, f"--vary {name}") for value in text.split(",")] for name, text in texts.items()}


def _row(trial: "Trial") -> Sequence[str]:
    numbers = (
        (trial.parameters, ",.0f"),
        (trial.validation_loss, ".3f"),
        (trial.bleu, ".2f"),
        (trial.chrf, ".2f"),
        (trial.seconds, ",.0f"),
        (trial.tokens_per_second, ",.0f"),
    )
    cells = ["" if number is None else format(number, style) for number, style in numbers]
    return [trial.name, *(cells if trial.error is None else ["failed", *cells[1:]])]
