"""Errors of corpora, settings, model folders and trainings' folders."""

from dikkat.errors import InputError


class CorpusError(InputError):
    """A corpus cannot be read or used; the message names the file and the line."""


class SettingsError(InputError):
    """A setting is out of range, unknown or of the wrong type; the message names it."""


_LONGEST = 1000  # characters of a message


class ModelFolderError(InputError):
    """A model folder cannot be loaded, or must not be written over.

    The message is one line that can be shown on any terminal, whatever the names in a stranger's files are.
    """

    def __init__(self, message: str) -> None:
        line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in message)
        super().__init__(line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}")


class TrainingFolderError(InputError):
    """A training cannot begin or go on in its folder; the message says why, and what to do."""
