class InputError(ValueError):
    """What a user gave cannot be used; the message says what came, what is allowed and what to do."""
