"""The examples of docstrings as Griffe knows them, so that they are shown as code."""

from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Reads the section `Example:` of a docstring as `Examples:`.

    Google's style has both names, and Griffe the second alone: of the first it makes a box of text, in which each
    `>>>` is three nested quotations.
    """

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called by Griffe with each module, class and function."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
