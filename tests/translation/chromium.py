"""Scenarios of `web/test` in Chromium: what a reader does with a page, without a network."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from command import once

_WEB = Path(__file__).parents[2] / "web"
_NODE = shutil.which("node")
_BROWSER = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
_MISSING = [
    name
    for name, there in (
        ("node", _NODE),
        ("chromium", _BROWSER),
        ("web/node_modules (npm ci)", (_WEB / "node_modules" / "playwright-core").is_dir()),
    )
    if not there
]
needs_chromium = pytest.mark.skipif(bool(_MISSING), reason=f"not here: {', '.join(_MISSING)}")


def names(script: str) -> list[str]:
    """The scenarios of a script."""
    return re.findall(r'^  async "([^"]+)"', (_WEB / "test" / script).read_text(encoding="utf-8"), re.MULTILINE)


def outcomes_of(
    script: str, factory: pytest.TempPathFactory, prepare: Callable[[Path], Sequence[Path]]
) -> dict[str, str | None]:
    """What went wrong in each scenario, None where nothing did; all in one browser, of what is made in a folder."""
    with once(factory, Path(script).stem) as (folder, new):
        if new:
            command = [_NODE, str(_WEB / "test" / script), *map(str, prepare(folder)), _BROWSER]
            found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
            assert found.returncode == 0, found.stderr
            (folder / "outcomes").write_text(found.stdout, encoding="utf-8")
        return json.loads((folder / "outcomes").read_text(encoding="utf-8"))
