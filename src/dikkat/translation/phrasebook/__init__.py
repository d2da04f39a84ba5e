"""An English-French phrasebook: more than 20,000 sentence pairs, composed from a small grammar and lexicon.

English leaves open what French has to say; the phrasebook settles it once, so that a translation follows from the
English sentence alone:

| English | French |
| --- | --- |
| I, you, we, they | masculine; `you` is tu, one person; `they` is ils |
| friend, teacher, doctor, student, child, neighbor, cousin | masculine |
| `he eats` | présent |
| `he ate` | passé composé; for states (be, have, want, like, know, live) imparfait: `he wanted`, il voulait |
| `he's going to eat` | futur proche |
| a bare noun: `he drinks water` | partitive, il boit de l'eau; after like the definite article, il aime l'eau |
| a question | est-ce que; only `where is` and `who` as a subject go without |
| a command | tu with an exclamation mark: `Go.`, Va ! |
| big, tall | grand; of an animal, big is gros |
| know someone, know that, know how | connaître, savoir, savoir |

The module keeps to the standard library and takes less than a second to compose the book, once in a process.

Examples:
    >>> from dikkat.translation import phrasebook
    >>> training, held_out = phrasebook.split()
    >>> ("Go.", "Va !") in training
    True
"""

from dikkat.translation.phrasebook.corpus import pairs, split

__all__ = ["pairs", "split"]
