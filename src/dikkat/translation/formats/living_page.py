"""Translators as a page: one HTML file with the weights in int8 and a decoder of its own."""

from collections.abc import Sequence
from pathlib import Path

from dikkat.errors import InputError
from dikkat.show.living import SCORES, bundle, living_page
from dikkat.translation.formats import model_folder
from dikkat.translation.network.model import TranslationModel


def check(model: TranslationModel, contents: model_folder.Contents) -> None:
    """Whether the page's decoder can compute what a model does.

    Raises:
        InputError: It cannot; the message says why.
    """
    reasons = []
    if contents.settings.coverage:
        reasons.append("it has coverage, and the page's decoder has none")
    if contents.settings.score not in SCORES:
        reasons.append(f"its score is {contents.settings.score}, and the page's decoder has {', '.join(SCORES)}")
    reasons += [] if reasons else model.undescribed()
    if reasons:
        raise InputError(f"model: got one that cannot be a page: {'; '.join(reasons)}")


def made(
    model: TranslationModel, contents: model_folder.Contents, *, title: str, examples: Sequence[str], where: Path
) -> str:
    """A translator's page.

    Args:
        model: The network.
        contents: What its model folder would hold.
        title: The heading.
        examples: Sentences to begin with.
        where: What it is made for, for messages.

    Raises:
        InputError: A model that the page's decoder cannot compute.
    """
    check(model, contents)
    return living_page(model_folder.content(contents, int8=True, where=where), title=title, examples=examples)


def bundled(model: TranslationModel, contents: model_folder.Contents, *, where: Path) -> bytes:
    """A translator as a widget carries it: the bundle of `dikkat.show.living`.

    Args:
        model: The network.
        contents: What its model folder would hold.
        where: What it is made for, for messages.

    Raises:
        InputError: A model that the page's decoder cannot compute.
    """
    check(model, contents)
    return bundle(model_folder.content(contents, int8=True, where=where))
