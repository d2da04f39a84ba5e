"""The page of a translator in Firefox, where there is one; `test_living_browser.py` has what else a reader does."""

import os
import shutil

import pytest
from firefox import Firefox

_PROGRAM = os.environ.get("FIREFOX") or shutil.which("firefox-esr") or shutil.which("firefox")
_RESULT = 'document.querySelector(".result").textContent'
_TAB, _ENTER, _RIGHT = "\ue004", "\ue007", "\ue014"


@pytest.mark.skipif(_PROGRAM is None, reason="no Firefox here")
def test_a_reader_types_and_steers_with_the_keyboard(translator, tmp_path):
    page, profile = tmp_path / "page.html", tmp_path / "profile"
    profile.mkdir()
    translator.export_html(page, title="English to French", examples=["The man is calm."])
    with Firefox(_PROGRAM, profile) as firefox:
        firefox.go(page.as_uri())
        assert firefox.until(f'document.querySelectorAll(".map .cell").length && {_RESULT}') == "L'homme est calme."
        firefox.until('document.querySelector("#text").select() || document.activeElement.id === "text"')
        firefox.keys("I lost.")
        assert firefox.until(f'{_RESULT} === "J\'ai perdu."')

        for _ in range(40):
            firefox.keys(_TAB)
            if firefox.until('String(document.activeElement.matches(".weight-row input[type=range]"))') == "true":
                break
        before = float(firefox.until("document.activeElement.value"))
        firefox.keys(_RIGHT)
        assert "step 1: I at" in firefox.until('document.querySelector(".changes li")?.textContent')
        assert float(firefox.until("document.activeElement.value")) > before

        firefox.keys(_TAB)  # the same weight as a number
        firefox.until('document.activeElement.select() || document.activeElement.matches("input.number")')
        firefox.keys(f"75{_ENTER}")
        assert firefox.until('/75%/.test(document.querySelector(".changes li").textContent) && location.hash').endswith(
            "pins=0-0-0.75"
        )
        assert firefox.until('document.querySelector(".trouble").hidden')
