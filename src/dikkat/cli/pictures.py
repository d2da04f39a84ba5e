"""Pictures of a translator's attention."""

import sys
from collections.abc import Sequence
from pathlib import Path

from dikkat.errors import InputError
from dikkat.show import heatmaps, save, save_page
from dikkat.translation import Translation, Translator

_PANELS = 4  # more would be too small to read; the page shows every sentence
_LONGEST = 60  # tokens of a sentence that can be read in it


def draw(
    translations: Sequence[Translation], folder: str | Path, *, translator: Translator | None = None
) -> tuple[Path, Path]:
    """Write the attention of translations as a picture, `heatmap.png`, and as a page, `translations.html`; return both.

    The picture shows the first four of at most 60 tokens; standard error says which are on the page alone. Empty
    translations are on neither.

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
        [translation.weights for translation in chosen], queries=[translation.target_tokens for translation in chosen],
        keys=[translation.source_tokens for translation in chosen], xlabel="source", ylabel="translation",
    )  # fmt: skip
    save(figure, picture)
    return picture, page
