"""The page of a translator in a real browser, without a network: `web/test/browser.mjs` is what a reader does."""

import re

import pytest
from chromium import names, needs_chromium, outcomes_of


@pytest.fixture(scope="session")
def outcomes(translator, tmp_path_factory):
    def prepare(folder):
        page, damaged = folder / "page.html", folder / "damaged.html"
        translator.export_html(page, title="English to French", examples=["The man is calm.", "Go."])
        text = page.read_text(encoding="utf-8")
        damaged.write_text(re.sub(r'(id="dikkat-model"[^>]*>.{4000})....', r"\1AAAA", text), encoding="utf-8")
        assert damaged.read_text(encoding="utf-8") != text
        return page, damaged

    return outcomes_of("browser.mjs", tmp_path_factory, prepare)


@needs_chromium
@pytest.mark.parametrize("name", names("browser.mjs"))
def test_in_a_browser(outcomes, name):
    assert outcomes[name] is None, outcomes[name]
