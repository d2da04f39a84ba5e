import re
from pathlib import Path

import dikkat

FOLDER = Path(dikkat.__file__).parent


def test_docstrings_hold_no_sphinx_markup():
    """The pages are Markdown: a role or a double backtick would be shown as it is."""
    found = [
        f"{path.relative_to(FOLDER)}:{number}: {line.strip()}"
        for path in sorted(FOLDER.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(r":func:|:meth:|:class:|\.\. math::|``", line)
    ]
    assert found == []
