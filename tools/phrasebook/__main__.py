"""Print the phrasebook as it is shipped: English, French, the part that a pair belongs to, and links of test pairs."""

import sys

from phrasebook import rows

sys.stdout.buffer.writelines("\t".join(row).encode() + b"\n" for row in rows())
