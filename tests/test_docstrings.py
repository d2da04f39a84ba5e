import re
from pathlib import Path

import dikkat


def test_docstrings_hold_no_sphinx_markup():
    """The pages are Markdown: a role or a double backtick would be shown as it is."""
    folder = Path(dikkat.__file__).parent
    found = [
        f"{path.relative_to(folder)}:{number}: {line.strip()}"
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(r":func:|:meth:|:class:|\.\. math::|``", line)
    ]
    assert found == []
