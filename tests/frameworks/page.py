"""The program text of docs/frameworks.md."""

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


def run(*starts: str) -> dict[str, Any]:
    """Run the page's blocks that begin with these words, one after the other; return what they have named."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    scope: dict[str, Any] = {}
    for start in starts:
        (block,) = (each for each in blocks if each.startswith(start))
        exec(block, scope)
    return scope
