"""The generator of the embedded phrasebook, from a small grammar and lexicon written for it.

`dikkat.translation.phrasebook` says what the phrasebook holds and ships the pairs; this composes them again:

    PYTHONPATH=tools python -m phrasebook > src/dikkat/translation/phrasebook.tsv

It keeps to the standard library and takes about a second.
"""

from phrasebook.corpus import pairs, rows, split

__all__ = ["pairs", "rows", "split"]
