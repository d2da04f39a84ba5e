"""The page of a translator in a real browser, without a network: `web/test/browser.mjs` is what a reader does."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

_WEB = Path(__file__).parents[2] / "web"
_NAMES = re.findall(r'^  async "([^"]+)"', (_WEB / "test" / "browser.mjs").read_text(encoding="utf-8"), re.MULTILINE)
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


@pytest.fixture(scope="session")
def outcomes(translator, tmp_path_factory):
    """What went wrong in each scenario, None where nothing did; all in one browser."""
    page = tmp_path_factory.mktemp("living") / "page.html"
    translator.export_html(page, title="English to French", examples=["The man is calm.", "Go."])
    text = page.read_text(encoding="utf-8")
    damaged = page.with_name("damaged.html")
    damaged.write_text(re.sub(r'(id="dikkat-model"[^>]*>.{4000})....', r"\1AAAA", text), encoding="utf-8")
    assert damaged.read_text(encoding="utf-8") != text
    command = [_NODE, str(_WEB / "test" / "browser.mjs"), str(page), str(damaged), _BROWSER]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.skipif(bool(_MISSING), reason=f"not here: {', '.join(_MISSING)}")
@pytest.mark.parametrize("name", _NAMES)
def test_in_a_browser(outcomes, name):
    assert outcomes[name] is None, outcomes[name]
