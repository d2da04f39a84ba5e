"""Translators as pages carry them: the weights in int8, for a decoder of the page's own."""

from pathlib import Path

from dikkat.errors import InputError
from dikkat.show.living import SCORES, bundle
from dikkat.translation.formats import model_folder
from dikkat.translation.network.model import TranslationModel


def bundled(model: TranslationModel, contents: model_folder.Contents) -> bytes:
    """The bundle of `dikkat.show.living`.

    Args:
        model: The network.
        contents: What its model folder would hold.

    Raises:
        InputError: A model that the page's decoder cannot compute; the message says why.
    """
    reasons = []
    if contents.settings.coverage:
        reasons.append("it has coverage, and the page's decoder has none")
    if contents.settings.score not in SCORES:
        reasons.append(f"its score is {contents.settings.score}, and the page's decoder has {', '.join(SCORES)}")
    reasons += [] if reasons else model.undescribed()
    if reasons:
        raise InputError(f"model: got one that cannot be a page: {'; '.join(reasons)}")
    return bundle(model_folder.content(contents, int8=True, where=Path("page")))
