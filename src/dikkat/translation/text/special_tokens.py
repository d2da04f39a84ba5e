"""The special tokens, which come first in every vocabulary, and the characters of slots."""

PAD, UNKNOWN, BEGIN, END = range(4)
"""Padding, an unknown word, a sentence's begin and end."""
SPECIAL = 4
"""The number of these tokens."""
SLOTS = "".join(map(chr, (*range(1, 9), *range(14, 28))))
"""The character of each slot: control characters, which are one byte each and say nothing in a text."""
