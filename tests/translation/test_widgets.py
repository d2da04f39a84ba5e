"""Widgets for notebooks: what Python sends and refuses, and what a reader does with them in a real browser."""

import base64
import json
import re

import anywidget
import numpy as np
import pytest
import torch
from chromium import names, needs_chromium, outcomes_of

from dikkat.show import heatmaps
from dikkat.show.living import bundle
from dikkat.translation import InputError, Settings, Tokenizer, TranslationModel, Translator
from processes import python

# --- what Python sends


def numbers(widget):
    return np.frombuffer(widget.values, "<f4")


def test_a_translator_is_sent_whole(translator):
    widget = translator.widget("Go.", examples=["I lost."])
    state = widget.get_state()
    assert (state["kind"], state["text"], state["examples"]) == ("translator", "Go.", ["I lost."])
    assert (state["translation"], state["address"]) == ("", "")
    length = int.from_bytes(state["model"][:8], "little")
    names = json.loads(state["model"][8 : 8 + length])
    assert {"model.safetensors", "settings.json", "source.tokenizer.json", "target.tokenizer.json"} <= names.keys()
    assert max(end for _, end in names.values()) == len(state["model"]) - 8 - length
    assert len(bundle({})) == 10
    assert "export" in state["_esm"]
    assert ":host" in state["sheet"]


def test_what_cannot_be_exported_is_refused():
    words = Tokenizer.train(["Go."], "word", min_freq=1, vocabulary_size=9)
    settings = Settings(embedding_size=4, hidden_size=4)
    model = TranslationModel(settings, len(words), len(words))
    model.readout.register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="readout"):
        Translator(model, settings, words, words).widget()


def test_maps_are_sent_as_float32_in_reading_order():
    weights = torch.rand(2, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    widget = heatmaps(weights, titles=["a", "b", "c"], keys=list("tuvwxyz"), interactive=True)
    np.testing.assert_array_equal(numbers(widget), weights.float().numpy().ravel())
    assert widget.across == 3
    assert widget.scale == [0.0, weights.max().item()]
    assert [panel["title"] for panel in widget.panels] == ["a", "b", "c", "", "", ""]
    assert {tuple(panel["shape"]) for panel in widget.panels} == {(5, 7)}
    assert widget.panels[4]["keys"] == list("tuvwxyz")
    assert widget.panels[4]["queries"] is None
    assert [widget.panels[0]["xlabel"], widget.panels[0]["ylabel"]] == ["Keys", "Queries"]


def test_matrices_of_different_shapes_and_what_is_no_number():
    first, second = np.array([[np.nan, np.inf, -0.5]]), np.array([[1e300], [0.25]])
    widget = heatmaps([first, second], extent=None, interactive=True)
    assert [tuple(panel["shape"]) for panel in widget.panels] == [(1, 3), (2, 1)]
    np.testing.assert_array_equal(numbers(widget), np.array([np.nan, np.inf, -0.5, np.inf, 0.25], "f4"))


def test_an_overview_counts_what_it_was_pooled_from():
    widget = heatmaps(np.eye(4), extent=(1000, 800), interactive=True)
    assert tuple(widget.panels[0]["extent"]) == (1000, 800)
    with pytest.raises(ValueError, match=r"extent: got \(3, 800\)"):
        heatmaps(np.eye(4), extent=(3, 800), interactive=True)


@pytest.mark.parametrize("options", [{"figsize": (3, 4)}, {"cmap": "Blues"}])
def test_a_widget_has_no_size_and_no_colour_map(options):
    name, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r}: has no effect if interactive=True")):
        heatmaps(np.eye(2), interactive=True, **options)


def test_labels_and_shapes_are_checked_as_for_a_picture():
    with pytest.raises(ValueError, match="queries: got 1 tokens; expected 2"):
        heatmaps(np.eye(2), queries=["a"], interactive=True)
    with pytest.raises(ValueError, match="weights: got shape"):
        heatmaps(np.zeros((0, 2)), interactive=True)


def test_the_extra_is_named_where_it_is_missing():
    code = """
import sys
sys.modules["anywidget"] = None
from dikkat.show import heatmaps
try:
    heatmaps([[1.0]], interactive=True)
except ModuleNotFoundError as error:
    print(error)
"""
    assert re.match(r"anywidget is not installed\. Run: pip install .*\[notebook\]", python(code).stdout)


# --- what a reader does


def sent(widget):
    """What a notebook's message has of a widget: its own traits, bytes as base64."""
    own = {"_esm", *type(widget).class_traits(sync=True)} - {*anywidget.AnyWidget.class_traits()}
    return {
        name: {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes | memoryview) else value
        for name, value in widget.get_state().items()
        if name in own
    }


@pytest.fixture(scope="session")
def outcomes(translator, tmp_path_factory):
    """What went wrong in each scenario, None where nothing did; all in one browser."""
    rows, columns = np.arange(1013)[:, None], np.arange(757)
    counted = (31 * rows + 17 * columns) % 1009 / 1009
    counted[500, 300] = np.nan
    words = np.array([[[0.25, 0.5, 0.25], [0.125, np.nan, 1e-7]]]).repeat(2, 0)
    states = {
        "translator": sent(translator.widget("The man is calm.", examples=["Go."])),
        "counted": sent(heatmaps(counted, interactive=True)),
        "named": sent(
            heatmaps(words[None], queries=["me", "you"], keys=["one", "two", "<b>three</b>"], interactive=True)
        ),
    }

    def prepare(folder):
        (folder / "states.json").write_text(json.dumps(states), encoding="utf-8")
        return [folder / "states.json"]

    return outcomes_of("widget.mjs", tmp_path_factory, prepare)


@needs_chromium
@pytest.mark.parametrize("name", names("widget.mjs"))
def test_in_a_browser(outcomes, name):
    assert outcomes[name] is None, outcomes[name]
