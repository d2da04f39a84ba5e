class InputError(ValueError):
    """What a user gave cannot be used; the message says what came, what is allowed and what to do."""


class CorpusError(InputError):
    """A corpus cannot be read or used; the message names the file and the line."""


class SettingsError(InputError):
    """A setting is out of range, unknown or of the wrong type; the message names it."""


class ModelFolderError(InputError):
    """A model folder cannot be loaded, or must not be written over."""
