"""A heat map and a page of translations, in a folder."""

import sys
from collections.abc import Sequence
from pathlib import Path

from dikkat.show import heatmaps, save, save_page
from dikkat.translation import InputError, Translation

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
