"""Errors of corpora, settings, model folders and training folders."""

from dikkat.errors import InputError


class CorpusError(InputError):
    """A corpus cannot be read or used; the message names the file and the line."""


class SettingsError(InputError):
    """A setting is out of range, unknown or of the wrong type; the message names it."""


_LIMIT = 1000  # characters of a message


class ModelFolderError(InputError):
    """A model folder cannot be loaded, or must not be overwritten.

    The message is one line of about 1,000 printable characters, as untrusted files may have any names in them.
    """

    def __init__(self, message: str) -> None:
        line = "".join(character if character.isprintable() else repr(character)[1:-1] for character in message)
        super().__init__(line if len(line) <= _LIMIT else f"{line[: _LIMIT // 2]} … {line[-_LIMIT // 2 :]}")


class TrainingFolderError(InputError):
    """A training cannot start or resume in its folder; the message names the reason and the remedy."""
