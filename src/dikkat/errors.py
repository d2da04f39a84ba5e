"""The error for unusable input, in a module without imports."""


class InputError(ValueError):
    """An input that cannot be used; the message names the value, the expectation and the remedy."""
