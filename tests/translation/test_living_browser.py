"""The page of a translator in a real browser, without a network: `web/test/browser.mjs` is what a reader does."""

import re

import pytest
from chromium import names, needs_chromium, outcomes_of


@pytest.fixture(scope="session")
def outcomes(translator, tmp_path_factory):
    page = tmp_path_factory.mktemp("living") / "page.html"
    translator.export_html(page, title="English to French", examples=["The man is calm.", "Go."])
    text = page.read_text(encoding="utf-8")
    damaged = page.with_name("damaged.html")
    damaged.write_text(re.sub(r'(id="dikkat-model"[^>]*>.{4000})....', r"\1AAAA", text), encoding="utf-8")
    assert damaged.read_text(encoding="utf-8") != text
    return outcomes_of("browser.mjs", page, damaged)


@needs_chromium
@pytest.mark.parametrize("name", names("browser.mjs"))
def test_in_a_browser(outcomes, name):
    assert outcomes[name] is None, outcomes[name]
