"""A page on which two models translate the same sentences side by side, with their attention weights."""

from collections.abc import Sequence
from typing import NamedTuple

from dikkat.show.document import document, escaped
from dikkat.show.page import Aligned, pack_translation, paragraph


class Side(NamedTuple):
    """The translations of a model, or of the models after each epoch of a training.

    Attributes:
        name: The name of the model.
        epochs: The number of each epoch; empty for one model.
        translations: The translations of all sentences, by each model.
    """

    name: str
    epochs: Sequence[int]
    translations: Sequence[Sequence[Aligned]]


def comparison_page(
    sides: tuple[Side, Side], *, title: str, source_language: str = "", target_language: str = ""
) -> str:
    """Return the page of two sides with the same sentences, of which a slider selects an epoch.

    Without JavaScript, the page shows the sentences and the translations of the last epoch.
    """
    sentences, articles = [], []
    for index, originals in enumerate(zip(*(side.translations[-1] for side in sides), strict=True)):
        versions = [
            [
                (*pack_translation(group[index], f"translations[{index}]"), group[index].target)
                for group in side.translations
            ]
            for side in sides
        ]
        sentences.append({"source": originals[0].source, "versions": versions})
        texts = [paragraph(originals[0].source, "source", "source", source_language)]
        for side, translation in zip(sides, originals, strict=True):
            texts += [
                f"<h3>{escaped(side.name)}</h3>",
                paragraph(translation.target, "target", "target", target_language),
            ]
        articles.append(f'<article class="card">{"".join(texts)}</article>')
    names = [{"name": side.name, "epochs": list(side.epochs)} for side in sides]
    languages = [source_language, target_language]
    compared = {"sides": names, "languages": languages, "sentences": sentences}
    return document(title, "\n".join(['<main id="room">', *articles, "</main>"]), compared=compared)
