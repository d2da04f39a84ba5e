"""Pictures of a translator's attention."""

import sys
from collections.abc import Sequence
from pathlib import Path

from dikkat.errors import InputError
from dikkat.show import heatmaps, save, save_page
from dikkat.translation import Translation, Translator

_MOST_PANELS = 4  # more would be too small to read; the page shows every sentence
_MOST_TOKENS = 60  # of a sentence in the picture, to be readable


def draw(
    translations: Sequence[Translation], folder: str | Path, *, translator: Translator | None = None
) -> tuple[Path, Path]:
    """Write a picture, `heatmap.png`, and a page, `translations.html`, of the attention; return both paths.

    The picture shows the first four sentences of at most 60 tokens; standard error lists the omissions. Empty
    translations are skipped.

    Raises:
        InputError: All translations are empty, or the page does not support this translator.
    """
    shown = [translation for translation in translations if translation.target_tokens]
    if not shown:
        raise InputError("sentences: every sentence is empty; expected at least one with a word")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    picture, page = folder / "heatmap.png", folder / "translations.html"
    save_page(page, shown, translator=translator)
    short = [translation for translation in shown if max(translation.weights.shape) <= _MOST_TOKENS]
    drawn = (short or list(shown[:1]))[:_MOST_PANELS]  # one long sentence is better than no picture
    if long := len(shown) - len(short) - (0 if short else 1):
        sentences = "1 sentence" if long == 1 else f"{long} sentences"
        print(f"{sentences} of more than {_MOST_TOKENS} tokens: on the page, not in the picture", file=sys.stderr)
    if len(short) > _MOST_PANELS:
        print(f"the picture shows {_MOST_PANELS} of {len(shown)} sentences; the page shows all", file=sys.stderr)
    figure = heatmaps(
        [translation.weights for translation in drawn], queries=[translation.target_tokens for translation in drawn],
        keys=[translation.source_tokens for translation in drawn], xlabel="source", ylabel="translation",
    )  # fmt: skip
    save(figure, picture)
    return picture, page
