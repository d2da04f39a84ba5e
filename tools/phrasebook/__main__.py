"""Print the phrasebook as it is shipped: English, French, and the part that a pair belongs to."""

import sys

from phrasebook import rows

sys.stdout.reconfigure(encoding="utf-8", newline="\n")
for row in rows():
    print(*row, sep="\t")
