"""The special tokens, which come first in every vocabulary."""

PAD, UNKNOWN, BEGIN, END = range(4)
"""Padding, an unknown word, a sentence's begin and end."""
SPECIAL = 4
"""The number of these tokens."""
