"""Pictures: what a translator looked at, and how trainings compare."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dikkat.show import heatmaps, save, save_page
from dikkat.translation import InputError, Translation

if TYPE_CHECKING:
    from dikkat.translation.compare import Trial

_PANELS = 4  # more would be too small to read; the page shows every sentence
_LONGEST = 60  # tokens of a sentence, likewise


def draw(translations: Sequence[Translation], folder: str | Path) -> tuple[Path, Path]:
    """Write what a translator looked at as a picture, `heatmap.png`, and as a page, `translations.html`.

    Args:
        translations: sentences and their weights; empty ones are left out. The picture shows the first four of at
            most 60 tokens; what it leaves to the page is said on standard error.
        folder: where; made if need be.

    Returns:
        The paths of the picture and of the page.

    Raises:
        InputError: no translation has a word to show.
        OSError: the system could not write.
    """
    shown = [translation for translation in translations if translation.target_tokens]
    if not shown:
        raise InputError("there is nothing to show: every sentence is empty. Give at least one with a word in it")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    picture, page = folder / "heatmap.png", folder / "translations.html"
    _save_heatmaps(_in_picture(shown), picture)
    save_page(page, shown)
    return picture, page


def _in_picture(shown: Sequence[Translation]) -> list[Translation]:
    short = [translation for translation in shown if max(translation.weights.shape) <= _LONGEST]
    chosen = (short or list(shown[:1]))[:_PANELS]  # one long sentence is better than no picture
    if long := len(shown) - len(short) - (0 if short else 1):
        sentences = "1 sentence" if long == 1 else f"{long} sentences"
        print(f"{sentences} of more than {_LONGEST} tokens: on the page, not in the picture", file=sys.stderr)
    if len(short) > _PANELS:
        print(f"the picture shows {_PANELS} of {len(shown)} sentences; the page shows all", file=sys.stderr)
    return chosen


def _save_heatmaps(shown: Sequence[Translation], path: Path) -> None:
    figure = heatmaps(
        [translation.weights for translation in shown],
        queries=[translation.target_tokens for translation in shown],
        keys=[translation.source_tokens for translation in shown],
        xlabel="source",
        ylabel="translation",
    )
    save(figure, path)


def draw_comparison(trials: Sequence["Trial"], folder: Path) -> tuple[Path, Path]:
    """Write quality against time and against speed as a picture, `comparison.png` and `comparison.svg`.

    Args:
        trials: those that have a result. Their BLEU is drawn, or where one has none the validation loss of all, the
            better the higher.
        folder: where.

    Returns:
        The paths of both.

    Raises:
        OSError: the system could not write.
    """
    from matplotlib.figure import Figure

    scored = all(trial.bleu is not None for trial in trials)
    qualities = [(trial.bleu if scored else trial.validation_loss) or 0.0 for trial in trials]
    labels = [",".join(part.partition("=")[2] for part in trial.name.split(",")) for trial in trials]
    figure = Figure(figsize=(10, max(4, 0.35 * len(trials))), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, places, title in (
        (left, [(trial.seconds or 0.0) / 60 for trial in trials], "minutes of training"),
        (right, [trial.tokens_per_second or 0.0 for trial in trials], "tokens a second"),
    ):
        _scatter(axes, places, qualities, labels)
        axes.set_xlabel(title)
    left.set_ylabel("BLEU" if scored else "validation loss")
    if not scored:
        left.invert_yaxis()
    figure.suptitle("varied: " + ", ".join(part.partition("=")[0] for part in trials[0].name.split(",")))
    paths = folder / "comparison.png", folder / "comparison.svg"
    for path in paths:
        save(figure, path)
    return paths


def _scatter(axes: Any, places: Sequence[float], qualities: Sequence[float], labels: Sequence[str]) -> None:
    """Points with a label beside each; labels that would overlap are moved apart, with a line to their point."""
    axes.scatter(places, qualities, s=24, zorder=3)
    low, high = min(qualities), max(qualities)
    margin = 0.1 * ((high - low) or abs(high) or 1.0)
    axes.set_ylim(low - margin, high + margin)
    axes.set_xlim(0, 1.6 * max(places))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    apart = (high - low + 2 * margin) / max(18, len(labels))
    height = low - margin
    for index in sorted(range(len(labels)), key=qualities.__getitem__):
        height = max(qualities[index], height + apart)
        axes.annotate(
            labels[index],
            (places[index], qualities[index]),
            xytext=(places[index] + 0.06 * max(places), height),
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "lw": 0.5, "color": "0.5"},
        )
