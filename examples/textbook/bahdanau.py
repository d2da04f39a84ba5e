"""Bahdanau attention: a translator learns 600 pairs by heart, and shows where it looks.

The encoder reads the English words, the decoder writes French ones, and before each word it looks at the English anew:
its state is the query, the encoder's outputs are keys and values. The recipe is the chapter's (`recipes/book.toml`):
two layers of 32 hidden numbers, 250 rounds over the short pairs. Judged is what has been learnt of these very pairs,
by the chapter's four sentences and by all 600.

The chapter's exercises exchange one part at a time, and so does this program: GRU cells for LSTM ones, the additive
score for the scaled dot product. All four ways are trained alike; the table says what each costs and what it learns.
What they cost is processor time, the median of several turns in which all four come one after the other: so neither
another program nor a machine that grows warm is on the side of one of them.

- `bahdanau-heatmaps.png`: what the GRU with the additive score looked at in each of the four sentences, one row a
  French word. Look for rows that share an English word, as *il est* does *He's*, and for one that goes back to a
  word, as *moi* may to *I'm*. Pairs as short as these can be learnt from the encoder's last state alone, so that many
  a row is undecided.
- `bahdanau-comparison.png`: the loss by round and by second of the processor, and how many French words and marks a
  second each way learns from. Lines that lie together by round and apart by second are ways that learn alike and cost
  differently.

Takes some minutes on one core; `--quick` makes eight rounds, after which nothing is learnt well.
"""

import argparse
import time
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from dikkat.show import heatmaps, save
from dikkat.translation import Search, Training, Translation, Translator, bleu_k, train
from dikkat.translation.formats.recipe import Recipe

SENTENCES = {"Go.": "Va !", "I lost.": "J'ai perdu.", "He's calm.": "Il est calme.", "I'm home.": "Je suis chez moi."}
GREEDY = Search(beam=1)
WAYS = list(product(("gru", "lstm"), ("additive", "scaled_dot")))
TURNS, TURN = 5, 10  # and the rounds of each


class Way(NamedTuple):
    """One way to build the translator, and what it came to.

    Attributes:
        name: cell and score.
        training: the translator, and how it became one.
        four: the four sentences as it translates them.
        bleu: BLEU-2 of each, from 0 to 1.
        right: the share of all pairs that it translates exactly.
        tokens: French words and marks of a round, the sentences' ends among them.
    """

    name: str
    training: Training
    four: list[Translation]
    bleu: list[float]
    right: float
    tokens: int


def words(translator: Translator, sentence: str) -> list[str]:
    """Words and punctuation marks in lower case, as the model learns them."""
    return [piece.lower() for piece in translator.target_tokenizer.encode(sentence).pieces]


def try_way(recipe: Recipe, cell: str, score: str) -> Way:
    """Train one way, and judge it by what it has learnt."""
    recipe = recipe.with_values({"cell": cell, "score": score})
    pairs = list(recipe.data()[0])
    training = train(recipe.settings, pairs, progress=False)
    translator = training.translator
    four = translator.translate(SENTENCES, search=GREEDY)
    bleu = [
        bleu_k(words(translator, one.target), words(translator, target), k=2)
        for one, target in zip(four, SENTENCES.values(), strict=True)
    ]
    answers = translator.translate([source for source, _ in pairs], search=GREEDY)
    right = [
        words(translator, one.target) == words(translator, target)
        for one, (_, target) in zip(answers, pairs, strict=True)
    ]
    tokens = sum(len(words(translator, target)) + 1 for _, target in pairs)
    name = f"{cell.upper()}, {score.replace('_', ' ')}"
    return Way(name, training, four, bleu, sum(right) / len(right), tokens)


def measure(recipe: Recipe, turns: int, rounds: int) -> list[float]:
    """Seconds of the processor that a round costs in each way: the median of some turns that all ways take.

    They have all been trained before: what is computed for the first time is compiled, and that is no part of the cost.
    """
    pairs = list(recipe.data()[0])
    taken: list[list[float]] = [[] for _ in WAYS]
    for _ in range(turns):
        for (cell, score), seconds in zip(WAYS, taken, strict=True):
            settings = recipe.with_values({"cell": cell, "score": score, "epochs": rounds}).settings
            before = time.process_time()
            train(settings, pairs, progress=False)
            seconds.append((time.process_time() - before) / rounds)
    return [median(seconds) for seconds in taken]


def table(ways: list[Way], costs: list[float]) -> str:
    """A line a way."""
    lines = ["way               parameters  seconds  tokens/s   loss  exactly right  BLEU-2 of the four"]
    for way, cost in zip(ways, costs, strict=True):
        training = way.training
        count = sum(weight.numel() for weight in training.translator.model.parameters())
        lines.append(
            f"{way.name:<16}  {count:>10,}  {cost * len(training.epochs):>7.1f}  {way.tokens / cost:>8,.0f}  "
            f"{training.epochs[-1].training_loss:>5.3f}  {way.right:>13.1%}  {np.mean(way.bleu):>18.2f}"
        )
    return "\n".join(lines)


def draw_heatmaps(four: list[Translation]) -> Figure:
    """A panel a sentence."""
    return heatmaps(
        [one.weights for one in four],
        queries=[one.target_tokens for one in four],
        keys=[one.source_tokens for one in four],
        xlabel="English",
        ylabel="French",
    )


def draw_comparison(ways: list[Way], costs: list[float]) -> Figure:
    """Loss by round, loss by second, tokens a second."""
    figure = Figure(figsize=(13, 3.8), layout="constrained")
    by_round, by_second, rates = figure.subplots(1, 3)
    styles = [f"{colour}{line}" for colour, line in product(("C0", "C3"), ("-", "--"))]
    for way, cost, style in zip(ways, costs, styles, strict=True):
        losses = [epoch.training_loss for epoch in way.training.epochs]
        rounds = np.arange(1, len(losses) + 1)
        by_round.plot(rounds, losses, style, label=way.name)
        by_second.plot(rounds * cost, losses, style)
    for axes, label in ((by_round, "round"), (by_second, "second of the processor")):
        axes.set(xlabel=label, ylabel="loss of a word in training", yscale="log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    by_round.legend(frameon=False)
    names, speeds = [way.name for way in ways], [way.tokens / cost for way, cost in zip(ways, costs, strict=True)]
    rates.barh(names, speeds, color=["#7fb2da", "#b9d5ea", "#e58a8a", "#f2c1c1"])
    for place, speed in enumerate(speeds):
        rates.text(speed / 2, place, f"{speed:,.0f}", ha="center", va="center")
    rates.set(xlabel="tokens a second of the processor")
    rates.xaxis.set_major_locator(MaxNLocator(4))  # as many as have room for five digits each
    rates.xaxis.set_major_formatter("{x:,.0f}")
    rates.invert_yaxis()
    for axes in (by_round, by_second, rates):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def main(output: Path, quick: bool) -> None:
    """Print what was found, and write the figures."""
    torch.set_num_threads(1)  # of products this small, a second thread makes nothing faster
    output.mkdir(parents=True, exist_ok=True)
    recipe = Recipe.load("book").with_values({"corpus": {"name": "phrasebook", "first": 600}})
    if quick:
        recipe = recipe.with_values({"epochs": 8})
    ways = [try_way(recipe, cell, score) for cell, score in WAYS]
    costs = measure(recipe, *((1, 1) if quick else (TURNS, TURN)))
    first = ways[0]
    for one, target, bleu in zip(first.four, SENTENCES.values(), first.bleu, strict=True):
        print(f"{one.source} => {one.target}  (should be: {target}  BLEU-2 {bleu:.2f})")
    print(table(ways, costs))
    save(draw_heatmaps(first.four), output / "bahdanau-heatmaps.png")
    save(draw_comparison(ways, costs), output / "bahdanau-comparison.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("textbook-figures"), help="the folder for the figures")
    parser.add_argument("--quick", action="store_true", help="eight rounds: to see that it runs")
    options = parser.parse_args()
    main(options.output, options.quick)
