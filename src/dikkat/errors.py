"""The error for what a user gave; it imports nothing."""


class InputError(ValueError):
    """What a user gave cannot be used; the message says what it is, what is expected and what to do."""
