"""The error for what a user gave; it imports nothing."""


class InputError(ValueError):
    """An input that cannot be used; the message says what came, what is expected and what to do."""
