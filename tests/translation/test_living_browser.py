"""The page of a translator in a real browser, without a network: `web/test/browser.mjs` is what a reader does."""

import re

import pytest
from chromium import names, needs_chromium, outcomes_of

from translation.test_corrections import corrected_copy


@pytest.fixture(scope="session")
def outcomes(translator, tmp_path_factory):
    def prepare(folder):
        page, damaged, renewed = folder / "page.html", folder / "damaged.html", folder / "renewed.html"
        translator.export_html(page, title="English to French", examples=["The man is calm.", "Go."])
        text = page.read_text(encoding="utf-8")
        damaged.write_text(re.sub(r'(id="dikkat-model"[^>]*>.{4000})....', r"\1AAAA", text), encoding="utf-8")
        assert damaged.read_text(encoding="utf-8") != text
        corrected_copy(translator, [("Go.", "Elle est calme.")]).export_html(renewed, examples=["The man is calm."])
        return page, damaged, renewed

    return outcomes_of("browser.mjs", tmp_path_factory, prepare)


@needs_chromium
@pytest.mark.parametrize("name", names("browser.mjs"))
def test_in_a_browser(outcomes, name):
    assert outcomes[name] is None, outcomes[name]
