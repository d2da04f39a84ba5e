"""Widgets for notebooks: a translator alive in a cell, and maps of any size. They need the extra `notebook`.

Both are drawn by the module that the page of a translator has inside, `living.js`, by the contract of anywidget.
"""

import anywidget
import traitlets

from dikkat.show.document import part

__all__ = ["MapsWidget", "TranslatorWidget"]


class _Living(anywidget.AnyWidget):
    """Base of both widgets: the script, and the style sheet of its shadow root."""

    _esm = part("living.js")
    sheet = traitlets.Unicode(part("living.css"), read_only=True).tag(sync=True)


class TranslatorWidget(_Living):
    """A translator in a cell; `Translator.widget` makes it.

    Attributes:
        text: What is typed, str; may be set.
        translation: The translation that is shown, str; empty where there is none, or no browser that shows the widget.
        address: What is seen and what the reader changed, str, as the page of a translator has it behind the # of its
            address.
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
        panels: Of each map its title, shape, labels and what its axes are, a list of dicts.
        across: How many stand beside each other, int.
        scale: The numbers with the colour of nothing and with the strongest one, two floats.
        values: All numbers as float32, little-endian, map by map and row by row, bytes.

    Example:
        >>> MapsWidget(across=2).across
        2
    """

    kind = traitlets.Unicode("maps", read_only=True).tag(sync=True)
    panels = traitlets.List(traitlets.Dict()).tag(sync=True)
    across = traitlets.Int(1).tag(sync=True)
    scale = traitlets.List(traitlets.Float(), [0.0, 1.0]).tag(sync=True)
    values = traitlets.Bytes().tag(sync=True)
