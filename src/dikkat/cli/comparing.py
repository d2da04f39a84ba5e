"""`dikkat compare`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dikkat.cli.app import Command, CorpusOption, app
from dikkat.cli.options import given, naming_options
from dikkat.cli.tables import show_table
from dikkat.translation import InputError

if TYPE_CHECKING:
    from dikkat.translation.compare import Trial


@app.command(
    cls=Command,
    epilog="Examples:\n\n"
    "dikkat compare phrasebook --vary score=additive,dot,bilinear,none --vary cell=gru,lstm --output compared\n\n"
    "dikkat compare phrasebook --vary hidden_size=32,64,128 --vary seed=0,1 --output compared",
)
def compare(
    recipe: Annotated[
        str,
        typer.Argument(help="A recipe: a file, or the name of one that `dikkat recipes` lists.", show_default=False),
    ],
    vary: Annotated[
        list[str],
        typer.Option(
            help="A setting and its values: score=additive,dot. Given several times, every combination is trained.",
            metavar="SETTING=VALUES",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Where to put a folder for each, comparison.json, comparison.png and comparison.svg. A comparison "
            "that was interrupted there goes on.",
            metavar="FOLDER",
            show_default=False,
        ),
    ],
    corpus: CorpusOption = None,
) -> None:
    """Train a recipe in several ways, and print and plot their quality against time and tokens a second."""
    from dikkat.translation.compare import combinations
    from dikkat.translation.compare import compare as compare_trials
    from dikkat.translation.recipe import Recipe

    with naming_options():
        plan = Recipe.load(recipe).with_values(given({"corpus": corpus}))
    trials = combinations(plan, dict(map(_varied, vary)))
    done: list[Trial] = []
    try:
        for trial in compare_trials(trials, output):
            done.append(trial)
            print(f"{len(done)} of {len(trials)}: {trial.name}: {trial.error or 'done'}", file=sys.stderr)
    except KeyboardInterrupt:
        print("dikkat: interrupted; to go on, give the same command again", file=sys.stderr)
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


def _varied(text: str) -> tuple[str, list[Any]]:
    from dikkat.translation.recipe import read_value

    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if not name or not equals or not values:
        raise InputError(f"--vary {text}: write --vary SETTING=VALUE,VALUE, such as --vary score=additive,dot")
    return name, [read_value(value, f"--vary {name}") for value in values.split(",")]


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
