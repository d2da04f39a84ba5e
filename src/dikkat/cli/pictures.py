"""A heat map and a page of translations, in a folder."""

from collections.abc import Sequence
from pathlib import Path

import torch

from dikkat.show import heatmaps, save, save_page
from dikkat.translation import InputError, Translation

_PANELS = 4  # more would be too small to read; the page shows every sentence


def draw(translations: Sequence[Translation], folder: str | Path) -> tuple[Path, Path]:
    """Write what a translator looked at as a picture, `heatmap.png`, and as a page, `translations.html`.

    Args:
        translations: sentences and their weights; empty ones are left out. The picture shows the first four.
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
    _save_heatmaps(shown[:_PANELS], picture)
    save_page(page, shown)
    return picture, page


def _save_heatmaps(shown: Sequence[Translation], path: Path) -> None:
    rows = max(len(translation.target_tokens) for translation in shown)
    columns = max(len(translation.source_tokens) for translation in shown)
    weights = torch.full((1, len(shown), rows, columns), torch.nan)  # not a number: left blank
    for panel, translation in zip(weights[0], shown, strict=True):
        height, width = translation.weights.shape
        panel[:height, :width] = translation.weights
    figure = heatmaps(
        weights,
        queries=[_filled(translation.target_tokens, rows) for translation in shown],
        keys=[_filled(translation.source_tokens, columns) for translation in shown],
        xlabel="source",
        ylabel="translation",
    )
    save(figure, path)


def _filled(tokens: list[str], length: int) -> list[str]:
    return tokens + [""] * (length - len(tokens))
