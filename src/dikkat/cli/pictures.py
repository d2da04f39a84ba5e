"""Pictures of a translator's attention, and of trainings beside each other."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dikkat.errors import InputError
from dikkat.show import heatmaps, save, save_page
from dikkat.translation import Translation, Translator

if TYPE_CHECKING:
    from dikkat.translation.training.comparison import Trial

_PANELS = 4  # more would be too small to read; the page shows every sentence
_MARKERS = "os^Dv*PX<>"
_LONGEST = 60  # tokens of a sentence that can be read in it


def draw(
    translations: Sequence[Translation], folder: str | Path, *, translator: Translator | None = None
) -> tuple[Path, Path]:
    """Write the attention of translations as a picture, `heatmap.png`, and as a page, `translations.html`.

    The picture shows the first four of at most 60 tokens; standard error says which are on the page alone. Empty
    translations are on neither.

    Returns:
        The paths of the picture and of the page.

    Raises:
        InputError: No translation has a word to show, or the page cannot compute what the translator does.
    """
    shown = [translation for translation in translations if translation.target_tokens]
    if not shown:
        raise InputError("there is nothing to show: every sentence is empty. Give at least one with a word in it")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    picture, page = folder / "heatmap.png", folder / "translations.html"
    save_page(page, shown, translator=translator)
    short = [translation for translation in shown if max(translation.weights.shape) <= _LONGEST]
    chosen = (short or list(shown[:1]))[:_PANELS]  # one long sentence is better than no picture
    if long := len(shown) - len(short) - (0 if short else 1):
        sentences = "1 sentence" if long == 1 else f"{long} sentences"
        print(f"{sentences} of more than {_LONGEST} tokens: on the page, not in the picture", file=sys.stderr)
    if len(short) > _PANELS:
        print(f"the picture shows {_PANELS} of {len(shown)} sentences; the page shows all", file=sys.stderr)
    figure = heatmaps(
        [translation.weights for translation in chosen],
        queries=[translation.target_tokens for translation in chosen],
        keys=[translation.source_tokens for translation in chosen],
        xlabel="source",
        ylabel="translation",
    )
    save(figure, picture)
    return picture, page


def draw_comparison(trials: Sequence["Trial"], folder: Path) -> tuple[Path, Path]:
    """Write the BLEU of trials against time and against speed, as `comparison.png` and `comparison.svg`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, max(4, 1 + 0.25 * len(trials))), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    # The legend has the order of the points, from the top down.
    ordered = sorted(trials, key=lambda trial: trial.bleu or 0.0, reverse=True)
    for trial, style in zip(ordered, _styles([trial.name.split(",") for trial in ordered]), strict=True):
        left.plot((trial.seconds or 0.0) / 60, trial.bleu, **style)
        right.plot((trial.tokens_per_second or 0.0) / 1000, trial.bleu, **style, label=trial.name.replace(",", ", "))
    left.set(xlabel="minutes of training", ylabel="BLEU")
    right.set_xlabel("thousand tokens a second")
    for axes in (left, right):
        axes.margins(0.1)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False)
    paths = folder / "comparison.png", folder / "comparison.svg"
    for path in paths:
        save(figure, path)
    return paths


def _styles(names: Sequence[Sequence[str]]) -> Iterator[dict[str, Any]]:
    """A colour for each value of what is varied first, a marker for the rest."""
    colours = list(dict.fromkeys(first for first, *_ in names))
    markers = list(dict.fromkeys(tuple(rest) for _, *rest in names))
    for first, *rest in names:
        marker = _MARKERS[markers.index(tuple(rest)) % len(_MARKERS)]
        yield {"color": f"C{colours.index(first) % 10}", "marker": marker, "linestyle": "none", "markersize": 8}
