"""The special tokens, which are the first of every vocabulary, and the characters of slots."""

PAD, UNKNOWN, BEGIN, END = range(4)
"""The numbers of padding, of an unknown word, and of the beginning and the end of a sentence."""
SPECIAL = 4
"""The number of special tokens."""
SLOTS = "".join(map(chr, (*range(1, 9), *range(14, 28))))
"""The character of each slot: control characters, which are single bytes without a meaning in text."""
