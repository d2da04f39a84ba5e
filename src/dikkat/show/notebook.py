"""Notebook widgets for a translator and for maps of any size. They need the extra `notebook`.

`living.js`, the script of the pages, draws both widgets through anywidget.
"""

import anywidget
import traitlets

from dikkat.show.document import part

__all__ = ["MapsWidget", "TranslatorWidget"]


class _Living(anywidget.AnyWidget):
    """Base class with the script and the style sheet of its shadow root."""

    _esm = part("living.js")
    sheet = traitlets.Unicode(part("living.css"), read_only=True).tag(sync=True)


class TranslatorWidget(_Living):
    """A translator in a cell; `Translator.widget` makes it.

    Attributes:
        text: The typed text, str; you can set it.
        translation: The shown translation, str; empty without a translation or without a browser.
        address: The state of the view and the reader's changes, str, as after the # in the address of a page.
        examples: Sentences to choose from, a list of str.
        model: The bundle of the model, bytes.

    Example:
        >>> TranslatorWidget(model=b"", text="Go.").text
        'Go.'
    """

    kind = traitlets.Unicode("translator", read_only=True).tag(sync=True)
    model = traitlets.Bytes().tag(sync=True)
    examples = traitlets.List(traitlets.Unicode()).tag(sync=True)
    text = traitlets.Unicode().tag(sync=True)
    address = traitlets.Unicode().tag(sync=True)
    translation = traitlets.Unicode().tag(sync=True)


class MapsWidget(_Living):
    """Maps in a cell; `heatmaps(..., interactive=True)` makes it.

    Attributes:
        panels: A dict for each map with title, shape, labels and names of the axes.
        across: The number of maps in a row, int.
        scale: The numbers with the faintest and the strongest colour, two floats.
        values: All numbers as little-endian float32, map by map and row by row, bytes.

    Example:
        >>> MapsWidget(across=2).across
        2
    """

    kind = traitlets.Unicode("maps", read_only=True).tag(sync=True)
    panels = traitlets.List(traitlets.Dict()).tag(sync=True)
    across = traitlets.Int(1).tag(sync=True)
    scale = traitlets.List(traitlets.Float(), [0.0, 1.0]).tag(sync=True)
    values = traitlets.Bytes().tag(sync=True)
